"""Questions to a model that reproduces everything seen: what would tell other values of its properties from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.numerics import family, separation, vectors

if TYPE_CHECKING:
    from prismm.numerics.model import EngineModel
    from prismm.numerics.probing.session import Session

__all__ = ["examined", "mixed", "questioned", "refuted"]

_AIMED = 6
"""Values of a property at which inputs are aimed at once, at most."""
_EXAMINED = 8_000
"""Dot products in which a difference from a model with another value of a property is looked for."""
_SHARE_OF_MIXTURES = 0.35
"""What may be spent, of what is left for models with several values, until one of them has told something."""
_AT_ONCE = 6
"""Models with several values at which inputs are aimed at once, half of them with one such value."""
_TRIES = 30
"""How often others are drawn to find so many."""
_OF_MIXTURES = 3
"""Lengths of the inputs for them."""
_OF_CLASS = 400
"""Inputs of each class and length."""
_SHOWN = {
    "fraction_bits": ("cut", "alone", "sticky"),
    "alignment": ("cut", "alone", "floor"),
    "carry_bits": ("carry", "cut"),
    "zero_exponent": ("floor", "least"),
    "zeros": ("zero", "floor", "subnormal"),
    "subnormal_products": ("zero", "floor", "subnormal"),
    "subnormal_outputs": ("zero", "floor", "subnormal", "alone"),
}
"""The classes of inputs that show a property most often; all of them for the others."""


def questioned(session: Session, model: EngineModel) -> bool:
    """Every other value of every property is refuted, or asked about; whether the model got an answer wrong."""
    bank = session.bank(model)
    wrong = False
    for name in family.PROPERTIES:
        others, left = session.left(model, name)
        left = [other for other in left if session.told(other, bank) is None]
        if left and len(left) < others:  # it shows: inputs aimed at those values, too, may tell them apart
            some = session.rng.permutation(len(left))[:_AIMED]
            aimed = session.bank(model, *(left[int(i)] for i in some), classes=_shown(name))
            for other in left:
                session.told(other, aimed)
        wrong |= session.seen.refute(model)
    return wrong


def examined(session: Session, model: EngineModel) -> bool:
    """Where only some values of a property are refuted: inputs that tell one of the others from the model are
    looked for, for the first, the middle and the last of them, and asked; whether the model got an answer wrong.
    """
    for name in family.PROPERTIES:
        others, left = session.left(model, name)
        if not left or len(left) == others:
            continue
        for other in dict.fromkeys((left[0], left[-1], left[len(left) // 2])):
            lengths = session.some_of(separation.lengths_for(model, other))
            found, _ = separation.difference(model, other, _EXAMINED, session.rng, _shown(name), lengths)
            if found is not None:
                a, b, c = found[0][None], found[1][None], session.np.array([found[2]])
                session.record(a, b, c)
                if session.seen.refute(model):
                    return True
    return False


def mixed(session: Session, model: EngineModel) -> bool:
    """Models with a value that is left, or with several of them, which may hide each other: inputs aimed at some of
    them and at the model are asked where they differ, until the effort for that is spent; whether the model got an
    answer wrong.
    """
    left = {name: others for name in family.PROPERTIES if (others := session.left(model, name)[1])}
    told = {model}
    for whole, focused in ((session.mixtures, True), (session.more, False)):
        with whole.awake():
            effort = whole.part(_SHARE_OF_MIXTURES)
            while left and effort.left > 0:
                if _mixture_told(session, model, left, told, focused):
                    return True
    return False


def _mixture_told(
    session: Session,
    model: EngineModel,
    left: dict[str, list[EngineModel]],
    told: set[EngineModel],
    focused: bool,
) -> bool:
    """A turn of `mixed`; a property whose models are all told is taken out of `left`.

    left: models with another value, by property. told: those that the black box has been asked about. focused:
    whether single values are of one property, and half of the inputs of the classes that show it.
    """
    name = list(left)[int(session.rng.integers(len(left)))]
    everything = list(left.values())
    some: list[EngineModel] = []
    for _ in range(_TRIES):
        single = len(some) < _AT_ONCE // 2
        lists = [left[name]] if focused and single else everything
        other = family.mixture(model, lists, 1 if single else len(lists), session.rng)
        if other is not None and other not in told and other not in some:
            some.append(other)
        if len(some) == _AT_ONCE:
            break
    if not some:
        del left[name]
        return False
    classes = _shown(name) if focused and session.rng.random() < 0.5 else vectors.CLASSES
    bank = session.bank(model, *some, classes=classes, each=_OF_CLASS, most=_OF_MIXTURES)
    for other in some:
        right = session.told(other, bank)
        if right is False:
            return True
        if right:
            told.add(other)
    return False


def refuted(session: Session, model: EngineModel, count: int) -> bool:
    """Whether one of `count` more answers, asked the first time, refutes the model; searches see those that do."""
    if session.asked < count:
        session.say(f"asking {count} more to refute it")
    aims = [vectors.aim_at(model), vectors.Aim(session.inputs, session.output)]  # type: ignore[arg-type]
    lengths = separation.lengths_for(model)
    once = sum(vectors.share(1000, k, 3) for k in lengths) * len(aims) * len(vectors.CLASSES)
    while session.asked < count:
        each = max(16, 1000 * min(count - session.asked, 200_000) // once + 1)
        for k in lengths:
            a, b, c = session.batch(aims, k, vectors.share(each, k, 3))
            session.seen.add(a, b, c, session.ask(a, b, c), searched=False)
            session.asked += len(c)
    wrong = session.seen.differing(model, 200)
    session.seen.search(wrong)
    return bool(wrong.size)


def _shown(name: str) -> tuple[str, ...]:
    """The classes of inputs for a property."""
    return _SHOWN.get(name, vectors.CLASSES)
