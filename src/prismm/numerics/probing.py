"""The probe: which model is behind a black box `dot(a, b, c)`?

Guess, ask, guess again. Inputs spread over all thresholds begin; the member of the family that reproduces the answers
(`search`) aims the next inputs, at its own cuts, roundings, blocks and limits; what it then gets wrong corrects it,
until nothing does. Constants follow from what was found so far, so none of them ends at 24 bits or at a block of 16.

Then every property is put to the question: each other value that it could have is either contradicted by an observation
(the simplest is the evidence), or a bank of aimed inputs holds some that tell the two apart and they are asked, or it
is reported as undecided between those values, because no input is known that shows it. The model has to reproduce
100,000 more random and hostile answers. Then a walk from member to member, change by change, among those that
reproduce everything: where one of them would answer otherwise, the black box is asked. Last, for some of the values
that are left, inputs that would tell them from the model are looked for, and for several of them at once, which may
hide each other. Where no member that reproduces everything is found, the nearest one is reported with its
counterexample, and no model.
"""

from __future__ import annotations

import functools
import itertools
import time
from typing import TYPE_CHECKING

from prismm.errors import ArgumentError, EngineError
from prismm.formats import Format, Integer, format_named
from prismm.numerics import family, integers, recorded, search, separation, simulate, vectors
from prismm.numerics.finding import Evidence, Finding
from prismm.numerics.observations import Observation, Observations, same
from prismm.numerics.parts import LateJoin

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from prismm.numerics.model import EngineModel

    Array = NDArray[np.float64]
    Dot = Callable[[Array, Array, Array], Array]

__all__ = ["probe"]

_FIRST_LENGTHS = (1, 2, 3, 4, 8, 16, 33, 64)
_LONG = (130, 260)
_ENDS = 256
"""Lengths at every one of which the sign of a zero is looked at."""
_TURNS = 12
_AGAIN = 200
"""Answers of each kind that are asked again where no model was found."""
_INTEGER_LENGTHS = (1, 2, 3, 4, 8, 16, 17, 32, 33, 64, 65, 128, 300)
_INTEGER_EVIDENCE = 4_000
_EFFORT = 30_000_000_000
"""Of all searches of a probe, in nanoseconds of a slow core, about: counted, not measured; so are all of these."""
_LAST = 7_000_000_000
"""And of those that come after one that found nothing."""
_WALKS = 1_500_000_000
"""Of all walks among the models that reproduce everything."""
_WHOLE = 11_000_000_000
"""What a probe may cost until only the first answers are run on models that may be as good."""
_SHARE = 0.75
"""What the next of these takes of it."""
_STEPS = 250
"""Of a walk among the models that reproduce everything: groups of changes that are looked at."""
_OF_GROUP = 6
"""Changes of each."""
_TAKEN = 60
"""Steps to another model, at most."""
_ROAD = 10
"""Steps after which it begins again."""
_KINDS = 12
"""Models, different from the first one in different properties, at which inputs are aimed, at most."""
_OF_LENGTHS = 6
"""Lengths of the inputs aimed at two models."""
_AIMED = 6
"""Values of a property at which inputs are aimed at once, at most."""
_EXAMINED = 8_000
"""Dot products in which a difference from a model with another value of a property is looked for."""
_MIXTURES = 7_000_000_000
"""What may be spent on models with several values that are left, in nanoseconds, about."""
_SHARE_OF_MIXTURES = 0.35
"""And of what is left of it, until one of them has told something."""
_AT_ONCE = 6
"""Such models at which inputs are aimed at once, half of them with one such value."""
_TRIES = 30
"""How often others are drawn to find so many."""
_OF_MIXTURES = 3
"""Lengths of the inputs for them."""
_OF_CLASS = 400
"""Inputs of each class and length."""
_DRAWN, _ELEMENT = 150_000, 25
"""What drawing inputs of a class and length takes, and an element of them, in nanoseconds, about."""
_ALIKE = 12
"""Models that differ from the one found in several properties, and from no answer, that are reported with it: as long
as each has a value that no other has."""
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
_QUICK = 25_000_000
"""What a run takes of the answers that a model has to reproduce to be looked at, in nanoseconds."""
_PASSES = 2_000_000_000
"""And what runs of all answers may take, of models that differ in one property; then such runs are quick, too."""
_GLANCE = 4_000_000
"""The same for models that differ from the one found in several properties, and are reported with it."""
_OF_CUTS = ("alignment", "carry_bits", "zero_exponent", "product_exponent")
"""Properties that matter only where terms are aligned and bits cut off."""
_COMPANIONS = 200
"""Models of a product at a time that are reported with the one found, at most."""
_LATE_BITS = 41
"""More than the numbers of late joins that are looked at."""
_SIMPLEST = 5_000_000
"""What may be spent on the simplest one of the answers that refute a model, in nanoseconds."""


def probe(
    dot: Dot,
    input: Format | Integer | str,
    output: Format | Integer | str,
    *,
    refutations: int = 100_000,
    seed: int = 0,
    name: str = "probed",
    say: Callable[[str], None] | None = None,
) -> Finding:
    """The model that reproduces a black box, property by property, with the evidence.

    Args:
        dot: takes float64 arrays a, b of shape (n, k), values of the input format, and c of shape (n,), values of the
            output format, for any n and k; returns d = c + Σ a·b of shape (n,), as the engine computes it.
        input, output: formats, or their names.
        refutations: further answers that the model has to reproduce at the end.
        seed: of the random inputs.
        name: of the model.
        say: is told of every stage, in a few words.

    Raises:
        ArgumentError: for unknown formats, what is no function, refutations or a seed that are no natural numbers, or
            answers of a wrong shape or type.
        EngineError: if the black box is not deterministic: the same inputs, asked again, alone or elsewhere in a batch,
            give another answer.

    >>> from prismm.numerics import engine, probe
    >>> t4 = engine("t4.fp16.fp32")
    >>> finding = probe(t4.dot, "fp16", "fp32", refutations=2000)
    >>> finding.model.block, finding.model.fraction_bits, finding.model.rounding
    (8, 24, 'zero')
    """
    if not callable(dot):
        raise ArgumentError(f"dot is a {type(dot).__name__}, no function; pass one of a, b and c")
    separation.natural("refutations", refutations)
    separation.natural("seed", seed)
    inputs = format_named(input) if isinstance(input, str) else input
    outputs = format_named(output) if isinstance(output, str) else output
    for which, given in (("input", inputs), ("output", outputs)):
        if not isinstance(given, (Format, Integer)):
            raise ArgumentError(f"{which}={given!r} is no format; pass its name, such as 'fp16'")
    if isinstance(inputs, Integer) != isinstance(outputs, Integer):
        raise ArgumentError("integers give integers and floats give floats; pass input and output of one kind")
    return _Probe(dot, inputs, outputs, seed, name, say or (lambda text: None)).run(refutations)


class _Probe:
    """One probe under way."""

    def __init__(
        self,
        dot: Dot,
        inputs: Format | Integer,
        output: Format | Integer,
        seed: int,
        name: str,
        say: Callable[[str], None],
    ) -> None:
        import numpy as np

        self.np, self.dot, self.inputs, self.output = np, dot, inputs, output
        self.rng, self.name, self.say = np.random.default_rng(seed), name, say
        self.seen = Observations(inputs, output)
        self.clock = self.seen.clock
        self.whole = search.Effort(_WHOLE, self.clock)
        units = (_EFFORT, _LAST, _PASSES, _WALKS, _MIXTURES, 2 * _MIXTURES)
        self.effort, self.last, self.passes, self.walks, self.mixtures, self.more = (
            search.Effort(some, self.clock).rest() for some in units
        )
        self.alike: list[EngineModel] = []
        self.asked = 0
        self.began = time.perf_counter()

    def ask(self, a: Array, b: Array, c: Array) -> Array:
        """The black box's answers, checked for shape and type."""
        np = self.np
        answered = self.dot(a.copy(), b.copy(), c.copy())  # which it may write to
        try:
            d = np.asarray(answered)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ArgumentError(
                f"the black box returned a {type(answered).__name__} that NumPy cannot read ({error}); it must return "
                f"float64 numbers of shape {c.shape}"
            ) from error
        if d.shape != c.shape or d.dtype.kind not in "fiu":
            raise ArgumentError(
                f"the black box returned {d.dtype} of shape {d.shape} for c of shape {c.shape}; it must return one "
                "real number for each row of a and b"
            )
        answers: Array = d.astype(np.float64)
        return answers

    def record(self, a: Array, b: Array, c: Array) -> Array:
        """Asked, and kept."""
        d = self.ask(a, b, c)
        self.seen.add(a, b, c, d)
        return d

    def steady(self, a: Array, b: Array, c: Array) -> None:
        """EngineError unless the same inputs give the same answers, in another order and alone."""
        np = self.np
        first = self.ask(a, b, c)
        order = self.rng.permutation(len(c))
        again = np.empty_like(first)
        again[order] = self.ask(a[order].copy(), b[order].copy(), c[order].copy())
        alone = np.array([self.ask(a[i : i + 1], b[i : i + 1], c[i : i + 1])[0] for i in range(min(len(c), 16))])
        bad = ~same(first, again)
        bad[: len(alone)] |= ~same(first[: len(alone)], alone)
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            other = again[i] if not same(first[i], again[i]) else alone[i]
            raise _unsteady(int(bad.sum()), len(c), a[i], b[i], float(c[i]), float(first[i]), float(other))

    def asked_again(self) -> None:
        """EngineError if answers on record change, each asked again alone: some that the nearest model gets wrong, as
        it does those of a black box that changes its mind now and then, and some of all.
        """
        np = self.np
        wrong = self.seen.differing(self.nearest, _AGAIN)
        others = self.rng.permutation(len(self.seen))[:_AGAIN]
        rows = np.unique(np.concatenate([wrong, others])).tolist()
        changed = []
        for a, b, c, d in map(self.seen.row, rows):
            again = self.ask(a[None], b[None], np.array([c]))[0]
            if not same(np.float64(d), again):
                changed.append((a, b, c, d, float(again)))
        if changed:
            raise _unsteady(len(changed), len(rows), *changed[0])

    def batch(
        self, aims: list[vectors.Aim], k: int, each: int, classes: tuple[str, ...] = vectors.CLASSES
    ) -> tuple[Array, Array, Array]:
        """`each` dot products of length k of these classes for every aim."""
        drawn = [vectors.draw(aim, name, k, each, self.rng) for aim in aims for name in classes]
        self.clock.spent += len(drawn) * (_DRAWN + _ELEMENT * k * each)
        a, b, c = (self.np.concatenate(parts) for parts in zip(*drawn, strict=True))
        return a, b, c

    def run(self, refutations: int) -> Finding:
        """Guess, ask, guess again; then every property for itself; then try to refute."""
        if isinstance(self.inputs, Integer) or isinstance(self.output, Integer):
            assert isinstance(self.inputs, Integer) and isinstance(self.output, Integer)
            return self.integers(self.inputs, self.output, refutations)
        anywhere = vectors.Aim(self.inputs, self.output)
        for k in (1, 7, 64):
            self.steady(*self.batch([anywhere], k, 12))
        self.say("asking inputs spread over all thresholds")
        inside = vectors.Aim(self.inputs, self.output, plain=True)
        for k in _FIRST_LENGTHS:
            self.record(*self.batch([anywhere, inside], k, vectors.share(40, k, 3)))
        for k in _LONG:
            self.record(*vectors.structure(inside, k, 48, self.rng))
        for k in range(1, _ENDS + 1):
            a, b, c = vectors.ends(anywhere, k, 8, self.rng)
            self.seen.add(a, b, c, self.ask(a, b, c), searched=False)
        model = self.fitted(family.start(self.inputs, self.output))
        turns = 0
        while model is not None and turns < _TURNS:
            turns += 1
            self.say(f"turn {turns}: asking inputs aimed at {_brief(model)}")
            refuted = functools.partial(self.refuted, count=refutations)
            steps = (self.aimed, refuted, self.questioned, self.wandered, self.examined, self.mixed)
            if not any(step(model) for step in steps):
                return self.finish(model)
            model = self.fitted(model)
        self.asked_again()
        return self.finish(None)

    def aimed(self, model: EngineModel) -> int:
        """Inputs at the thresholds of the model are asked and kept; how many answers it gets wrong."""
        wrong = 0
        for k in separation.lengths_for(model):
            a, b, c = self.batch([vectors.aim_at(model)], k, vectors.share(40, k, 2))
            d = self.record(a, b, c)
            wrong += int((~same(simulate.dot_unchecked(model, a, b, c), d)).sum())
        self.say(f"{wrong} answers differ")
        return wrong

    def fitted(self, model: EngineModel) -> EngineModel | None:
        """A model that reproduces everything seen; the best one is kept as `nearest`, in any case."""
        with self.effort.awake() as effort:
            self.nearest, mismatches = search.fit(model, self.seen, self.rng, self.say, effort)
        self.say(f"mismatches {mismatches:.4f}: {_brief(self.nearest)}")
        if mismatches > 0.0:
            beginnings = self.nearest, model
            with self.last.awake():
                self.nearest, mismatches = search.rescued(beginnings, self.seen, self.rng, self.last.part(_SHARE))
            self.say(f"mismatches {mismatches:.4f} after rare changes: {_brief(self.nearest)}")
        return self.nearest if mismatches == 0.0 else None

    def bank(
        self,
        *models: EngineModel,
        classes: tuple[str, ...] = vectors.CLASSES,
        each: int = 16,
        most: int = _OF_LENGTHS,
    ) -> Observations:
        """Inputs of these classes aimed at these models, of lengths about the ends of their blocks, `most` of them
        where there are several models, and what the first one answers.
        """
        aims, lengths = [vectors.aim_at(*models)], separation.lengths_for(*models)
        if len(models) == 1:
            aims.append(vectors.Aim(self.inputs, self.output, (), (), (), (models[0].block,)))  # type: ignore[arg-type]
            each //= 2
        else:  # a few of the lengths, for there are many pairs of models
            lengths = self.some_of(lengths, most)
            each *= len(vectors.CLASSES) // len(classes)
        found = Observations(self.inputs, self.output, self.clock)
        for k in lengths:
            a, b, c = self.batch(aims, k, vectors.share(each, k, 1), classes)
            found.add(a, b, c, simulate.dot_unchecked(models[0], a, b, c), searched=False)
            self.clock.spent += a.size * (recorded.product_cost(models[0]) + recorded.ELEMENT)
        return found

    def some_of(self, lengths: list[int], most: int = _OF_LENGTHS) -> list[int]:
        """A few of the lengths, at random."""
        return sorted(self.rng.permutation(lengths)[:most].tolist())

    def questioned(self, model: EngineModel) -> bool:
        """Every other value of every property is refuted, or asked about; whether the model got an answer wrong."""
        bank = self.bank(model)
        wrong = False
        for name in family.PROPERTIES:
            others, left = self.left(model, name)
            left = [other for other in left if self.told(other, bank) is None]
            if left and len(left) < others:  # it shows: inputs aimed at those values, too, may tell them apart
                some = self.rng.permutation(len(left))[:_AIMED]
                aimed = self.bank(model, *(left[int(i)] for i in some), classes=_shown(name))
                for other in left:
                    self.told(other, aimed)
            wrong |= self.seen.refute(model)
        return wrong

    def left(self, model: EngineModel, name: str) -> tuple[int, list[EngineModel]]:
        """How many models have another value of a property, and those of them that no answer is known to refute."""
        others = family.alternatives(model, name)
        return len(others), [other for other in others if not self.contradicted(other, model, name)]

    def contradicted(self, other: EngineModel, model: EngineModel, name: str) -> bool:
        """Whether an answer is known to refute a model that differs from this one, which reproduces all, in a property:
        where runs of all answers have taken long already, only of the first ones.
        """
        if self.passes.left <= 0:
            return self.seen.refute(other, model, (name,), _QUICK if self.whole.left > 0 else _GLANCE)
        with self.passes.awake():
            return self.seen.refute(other, model, (name,))

    def told(self, other: EngineModel, bank: Observations) -> bool | None:
        """Whether the bank's answers are right where another model gives others, which is asked; None: nowhere."""
        np = self.np
        rows = bank.differing(other, 4)
        if not rows.size:
            return None
        right = True
        for a, b, c, expected in map(bank.row, rows.tolist()):
            d = self.record(a[None], b[None], np.array([c]))
            right &= bool(same(d, np.array([expected]))[0])
        return right

    def examined(self, model: EngineModel) -> bool:
        """Where only some values of a property are refuted: inputs that tell one of the others from the model are
        looked for, for the first, the middle and the last of them, and asked; whether the model got an answer wrong.
        """
        for name in family.PROPERTIES:
            others, left = self.left(model, name)
            if not left or len(left) == others:
                continue
            for other in dict.fromkeys((left[0], left[-1], left[len(left) // 2])):
                lengths = self.some_of(separation.lengths_for(model, other))
                found, _ = separation.difference(model, other, _EXAMINED, self.rng, _shown(name), lengths)
                if found is not None:
                    a, b, c = found[0][None], found[1][None], self.np.array([found[2]])
                    self.record(a, b, c)
                    if self.seen.refute(model):
                        return True
        return False

    def mixed(self, model: EngineModel) -> bool:
        """Models with a value that is left, or with several of them, which may hide each other: inputs aimed at some of
        them and at the model are asked where they differ, until the effort for that is spent; whether the model got an
        answer wrong.
        """
        left = {name: others for name in family.PROPERTIES if (others := self.left(model, name)[1])}
        told = {model}
        for whole, focused in ((self.mixtures, True), (self.more, False)):
            with whole.awake():
                effort = whole.part(_SHARE_OF_MIXTURES)
                while left and effort.left > 0:
                    if self.mixture_told(model, left, told, focused):
                        return True
        return False

    def mixture_told(
        self,
        model: EngineModel,
        left: dict[str, list[EngineModel]],
        told: set[EngineModel],
        focused: bool,
    ) -> bool:
        """A turn of `mixed`; a property whose models are all told is taken out of `left`.

        left: models with another value, by property. told: those that the black box has been asked about. focused:
        whether single values are of one property, and half of the inputs of the classes that show it.
        """
        name = list(left)[int(self.rng.integers(len(left)))]
        everything = list(left.values())
        some: list[EngineModel] = []
        for _ in range(_TRIES):
            single = len(some) < _AT_ONCE // 2
            lists = [left[name]] if focused and single else everything
            other = family.mixture(model, lists, 1 if single else len(lists), self.rng)
            if other is not None and other not in told and other not in some:
                some.append(other)
            if len(some) == _AT_ONCE:
                break
        if not some:
            del left[name]
            return False
        classes = _shown(name) if focused and self.rng.random() < 0.5 else vectors.CLASSES
        bank = self.bank(model, *some, classes=classes, each=_OF_CLASS, most=_OF_MIXTURES)
        for other in some:
            right = self.told(other, bank)
            if right is False:
                return True
            if right:
                told.add(other)
        return False

    def wandered(self, model: EngineModel) -> bool:
        """A walk among models that reproduce everything, change by change: where one of them would answer otherwise
        than the model, the black box is asked; whether the model got an answer wrong.

        Changes that hide each other from all that was seen are found in this way, one after the other. Those models
        that no input is known to tell from this one are kept as `alike`.
        """
        with self.walks.awake():
            return self.walked(model)

    def walked(self, model: EngineModel) -> bool:
        """See `wandered`."""
        self.alike = []
        names, bank = list(family.CHANGES), self.bank(model)
        walker, taken, met = model, 0, {model}
        kinds: set[tuple[str, ...]] = set()
        for _ in range(_STEPS):
            if self.walks.left <= 0:
                break
            changes = list(family.CHANGES[names[int(self.rng.integers(len(names)))]](walker))
            for i in self.rng.permutation(len(changes))[:_OF_GROUP]:
                other = family.changed(walker, **changes[int(i)])
                if other is None or other in met:
                    continue
                differing = tuple(name for name in family.PROPERTIES if getattr(other, name) != getattr(model, name))
                if self.seen.refute(other, model, differing, _QUICK):
                    continue
                met.add(other)
                taken += 1
                right = self.told(other, bank)
                if right is None and differing not in kinds and len(kinds) < _KINDS:
                    kinds.add(differing)
                    right = self.told(other, self.bank(model, other))
                if right is False:
                    return True
                if right is None:
                    self.alike.append(other)
                    walker = other if taken % _ROAD else model
                if taken == _TAKEN:
                    return False
        return False

    def refuted(self, model: EngineModel, count: int) -> bool:
        """Whether one of `count` more answers, asked the first time, refutes the model; searches see those that do."""
        if self.asked < count:
            self.say(f"asking {count} more to refute it")
        aims = [vectors.aim_at(model), vectors.Aim(self.inputs, self.output)]  # type: ignore[arg-type]
        lengths = separation.lengths_for(model)
        once = sum(vectors.share(1000, k, 3) for k in lengths) * len(aims) * len(vectors.CLASSES)
        while self.asked < count:
            each = max(16, 1000 * min(count - self.asked, 200_000) // once + 1)
            for k in lengths:
                a, b, c = self.batch(aims, k, vectors.share(each, k, 3))
                self.seen.add(a, b, c, self.ask(a, b, c), searched=False)
                self.asked += len(c)
        wrong = self.seen.differing(model, 200)
        self.seen.search(wrong)
        return bool(wrong.size)

    def finish(self, model: EngineModel | None) -> Finding:
        """The evidence, or the first counterexample to the nearest model."""
        if model is None:
            return self.finding(None, (), 0)
        alike: list[EngineModel] = []
        shown: set[tuple[str, object]] = set()
        canonical = dict.fromkeys(m.canonical() for m in self.alike)
        for other in sorted(canonical, key=lambda m: len(m.differences(model))):
            values = {(name, value) for name, (_, value) in model.differences(other).items()}
            if len(alike) < _ALIKE and not values <= shown and not self.seen.refute(other):
                alike.append(other)
                shown |= values
        alike += self.companions(model)
        cutting = self.cutting(model, alike)
        evidence = tuple(self.evidence(model, name, alike, cutting) for name in family.PROPERTIES)
        return self.finding(model.canonical(), evidence, 0)

    def finding(self, model: EngineModel | None, evidence: tuple[Evidence, ...], unkept: int) -> Finding:
        """What was found after so many answers that were not kept."""
        from dataclasses import replace

        return Finding(
            model=None if model is None else replace(model, name=self.name, source="probed"),
            evidence=evidence,
            undecided={e.name: e.open for e in evidence if e.open},
            counterexample=self.seen.refuting(self.nearest) if model is None else None,
            nearest=self.nearest,
            observations=len(self.seen) + unkept,
            refutations=self.asked + unkept,
            seconds=time.perf_counter() - self.began,
        )

    def evidence(self, model: EngineModel, name: str, alike: list[EngineModel], cutting: list[EngineModel]) -> Evidence:
        """The simplest observation against every other value; values of models that look alike are open, too, and so
        are those of properties that matter only where bits are cut off, which `cutting` models do.
        """
        refuted: list[tuple[object, Observation]] = []
        unknown: list[object] = []
        for other in family.alternatives(model, name):
            value, against = getattr(other, name), None
            if self.contradicted(other, model, name):
                against = self.seen.refuting(other, model, (name,), _SIMPLEST)
            if against is None:
                unknown.append(value)
            else:
                refuted.append((value, against))
        mine = getattr(model, name), getattr(model.canonical(), name)
        unknown += [getattr(other, name) for other in alike if getattr(other, name) not in mine]
        if name == "depth":
            unknown += [depth for depth in self.depths(model) if depth not in mine]
        if name == "join":
            unknown += self.joins(model)
        if name in _OF_CUTS:
            unknown += [value for value in self.below(cutting, name) if value not in mine]
        shown = tuple((value, against) for value, against in dict(refuted).items() if value not in unknown)
        return Evidence(name, getattr(model, name), shown, tuple(dict.fromkeys(unknown)))

    def companions(self, model: EngineModel) -> list[EngineModel]:
        """Models of a product at a time that no answer is known to refute, summed in every way and, where signs of zero
        are left, with those: what a block loses they may lose in every addition.
        """
        found: list[EngineModel] = []
        for base in (model, *self.left(model, "zeros")[1]):
            depth = None if base.depth is None else base.depth // base.block
            one = family.changed(base, block=1, depth=depth)
            if model.block == 1 or one is None or self.at_a_glance(one):
                continue
            for change in family.CHANGES["sums"](one):
                other = family.changed(one, **change)
                if len(found) < _COMPANIONS and other is not None and not self.at_a_glance(other):
                    found.append(other)
        return found

    def depths(self, model: EngineModel) -> list[int]:
        """Depths that go with other blocks, where no answer is known to refute the two."""
        found = []
        for other in self.left(model, "block")[1]:
            for times in (1, 2, 4):
                depth = times * other.block * max(1, len(other.groups))
                deep = family.changed(other, depth=depth)
                if deep is not None and not self.at_a_glance(deep):
                    found.append(depth)
        return list(dict.fromkeys(found))

    def cutting(self, model: EngineModel, alike: list[EngineModel]) -> list[EngineModel]:
        """Models that cut bits off in a way in which this one does not, where no answer is known to refute them: summed
        in every way, with as many bits, the fewest, the most and a number in between; and those that look alike.
        """
        if model.summation == "aligned" and model.fraction_bits is not None:
            return []
        bits = self.left(model, "fraction_bits")[1]
        some = dict.fromkeys((model, bits[0], bits[len(bits) // 2], bits[-1]) if bits else (model,))
        ways = ("aligned", "sequential", "pairwise")
        found = [family.changed(other, summation=way) for other in some for way in ways]
        found = [m for m in found if m is not None and m.fraction_bits is not None and not self.at_a_glance(m)]
        found += [m for m in alike if m.fraction_bits is not None]
        return [m for m in dict.fromkeys(found) if m is not None]

    def below(self, cutting: list[EngineModel], name: str) -> list[object]:
        """Values that a property has in such a model, or may have there."""
        found: dict[object, None] = {getattr(model, name): None for model in cutting}
        for other in (other for model in cutting for other in family.alternatives(model, name)):
            value = getattr(other, name)
            if value not in found and not self.at_a_glance(other):
                found[value] = None
        return list(found)

    def joins(self, model: EngineModel) -> list[LateJoin]:
        """Late joins of which two numbers are others, where no answer is known to refute them."""
        mine = model.join
        if not isinstance(mine, LateJoin):
            return []
        found = []
        numbers = range(mine.accumulator_bits, _LATE_BITS)
        for sums, total in itertools.product(numbers, numbers):
            if sums == mine.sum_bits or total == mine.total_bits:
                continue
            join = LateJoin(sums, mine.accumulator_bits, total, mine.cutoff)
            other = family.changed(model, join=join)
            if other is not None and not self.at_a_glance(other):
                found.append(join)
        return found

    def at_a_glance(self, model: EngineModel) -> bool:
        """Whether one of the first answers refutes a model."""
        return self.seen.refute(model, most=_GLANCE)

    def integers(self, inputs: Integer, output: Integer, refutations: int) -> Finding:
        """Sums that wrap, or that are clamped every so many products."""
        for k in (1, 3, 8, 40):
            self.steady(*integers.draw(inputs, output, k, 100, self.rng))
        left = integers.candidates(inputs, output, self.name)
        asked, lengths = 0, itertools.cycle(_INTEGER_LENGTHS)
        while left and (len(self.seen) < _INTEGER_EVIDENCE or asked < refutations):
            a, b, c = integers.draw(inputs, output, next(lengths), 200, self.rng)
            d = self.ask(a, b, c)
            self.nearest = left[0]
            left = [m for m in left if bool(same(simulate.dot(m, a, b, c), d).all())]
            if not left or len(self.seen) < _INTEGER_EVIDENCE:
                self.seen.add(a, b, c, d)
            else:
                asked += len(d)
        if not left:
            self.asked_again()
            return self.finding(None, (), asked)
        model = self.nearest = left[0]
        others = [m for m in integers.candidates(inputs, output, self.name) if m != model]
        clamped = [m for m in others if m.overflow != model.overflow][:1]
        deeper = [m for m in others if m.overflow == model.overflow]
        evidence = []
        for name, against in (("overflow", clamped), ("depth", deeper)):
            answers = [(getattr(m, name), self.seen.refuting(m)) for m in against]
            refuted = tuple((value, answer) for value, answer in answers if answer is not None)
            unknown = tuple(value for value, answer in answers if answer is None)
            evidence.append(Evidence(name, getattr(model, name), refuted, unknown))
        return self.finding(model, tuple(evidence), asked)


def _unsteady(count: int, of: int, a: Array, b: Array, c: float, first: float, then: float) -> EngineError:
    return EngineError(
        f"the black box is not deterministic: {count} of {of} answers changed when asked again, first {first!r} and "
        f"then {then!r} for a={a.tolist()}, b={b.tolist()}, c={c!r}; a model needs an engine whose answer depends on "
        "a, b and c alone"
    )


def _shown(name: str) -> tuple[str, ...]:
    """The classes of inputs for a property."""
    return _SHOWN.get(name, vectors.CLASSES)


def _brief(model: EngineModel) -> str:
    """A model in a few words."""
    bits = "all" if model.fraction_bits is None else model.fraction_bits
    return f"block {model.block}, {model.summation}, {bits} bits, {model.rounding}, {model.join}"
