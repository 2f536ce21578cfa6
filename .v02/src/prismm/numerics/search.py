"""The member of the family that reproduces what was observed.

Step by step, each on the answers that show what it looks for, and on no others (`layers`): what a term goes through and
how few terms are added; blocks, depth and order; the carry bits; the ends of the range; the signs of zeros. From every
kind of sum and join, properties are changed group by group as long as more answers come out right. Models of different
kinds that reproduce a step's answers all begin the next one, with those that look like them on short vectors (`twins`).
The share of answers that a model reproduces grows with every property that is right, because the classes of inputs
(`vectors.CLASSES`) show different ones; where it gets stuck, the next best beginning is tried.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prismm.numerics.changes import CHANGES, ORDERING, RARE
from prismm.numerics.family import PROPERTIES, alternatives, changed, twins
from prismm.numerics.layers import CARRY, EDGE, PLAIN
from prismm.numerics.parts import LateJoin
from prismm.numerics.recorded import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from prismm.numerics.model import EngineModel
    from prismm.numerics.observations import Observations, Some

__all__ = ["Effort", "climb", "fit", "rescued", "starts"]

_SCREEN = 16
"""Observations of each kind and length in the first look at a candidate."""
_FINALISTS = 24
"""Candidates of a group that are judged by all observations."""
_BEAM = 3
"""Beginnings that are followed to the end."""
_WIDE = 10
"""Beginnings of different kinds that are kept as long as they reproduce everything."""
_ROUNDS = 2
"""Times that the stages are gone through."""
_KICKS = 8
"""Beginnings beside the best model, where it is not the right one."""
_TERMS = (
    "sums",
    "roundings",
    "last_roundings",
    "products",
    "policies",
    "zeros",
    "paddings",
    "limits",
    "floors",
    "late",
)
"""Groups of properties that a product or two show."""
_JOINT = (
    "underflows",
    "empty_sums",
    "joined_ends",
    "signs",
    "rounded_ends",
    "levels",
    "rounded_products",
    "rounded_sums",
)
"""Where the one is wrong, the others cannot be told: many candidates, tried where nothing else leads on."""
_NEAR = 0.1
"""Mismatches from which on a model is almost right."""
_MENDED = 1.0
"""And from which on it is worth while to change it, before a search begins anew."""
_MENDING = 0.3
"""Of what is left for a search, the share that goes into mending such a model."""
_NEARER, _MOST = 0.03, 0.8
"""And what goes into mending one with so few mismatches after all stages."""
_ADVICE = 24
"""Of the answers that such a model gets wrong, those that say what to change."""
_LEVEL = 3
"""Models beside it from which the same is tried."""
_DISGUISES = ("accumulator", "rounding", "output_rounding", "alignment", "product_rounding")
"""Properties of which one may stand for another."""
_SETS = 24
"""Sets of properties whose changes give more of them, small ones first."""
_EQUAL = 6
"""Of the changes of a set that are right in the same answers, those that are judged by all answers."""
_GLANCE = 60
"""Answers of each length by which they are chosen."""
_ADVISED = 8
"""Changes from which a search goes on."""
_PLAIN = ("sums", "roundings", "last_roundings", "products", "late")
"""Of these, the groups that show far from the ends of the range."""
_ENDS = ("floors", "policies", "limits")
"""Those that show at the ends only."""
_USUAL = ("blocks", *_TERMS, "orders")
_DESPERATE = ("grouped", "trees", *_USUAL)


def starts(model: EngineModel) -> Iterator[EngineModel]:
    """Models of every kind of sum and join, as far as two products can tell them apart."""
    one = {"block": 1, "groups": (), "group_sums": "chained"}
    two = {**one, "block": 4}
    shapes = (
        {**two, "depth": None, "join": "inside"},
        {**one, "depth": None, "join": "inside"},
        {**two, "depth": 4, "join": "after"},
        {**one, "depth": 2, "join": "after"},
        {**one, "depth": 1, "join": "after"},
        {**one, "depth": 2, "groups": ((0,), (1,)), "group_sums": "separate", "join": "after"},
        {**two, "depth": None, "join": LateJoin()},
        {**one, "depth": None, "join": LateJoin()},
    )
    bits = model.fraction_bits or 24
    for shape in shapes:
        for summation, kept in (("aligned", bits), ("aligned", None), ("sequential", bits), ("sequential", None)):
            found = changed(model, summation=summation, fraction_bits=kept, **shape)
            if found is not None:
                yield found


class Effort:
    """What a search may still cost, by the clock of the answers that it looks at; while it rests, nothing counts."""

    def __init__(self, units: int, clock: Clock) -> None:
        self._clock, self._left, self._since = clock, units, clock.spent
        self._rests = False

    @property
    def left(self) -> int:
        """What is left, or less than nothing."""
        return self._left - (0 if self._rests else self._clock.spent - self._since)

    def part(self, share: float) -> Effort:
        """A share of what is left."""
        return Effort(int(self.left * share), self._clock)

    def rest(self) -> Effort:
        """Until it is awake again, what is done goes by others."""
        self._left, self._rests = self.left, True
        return self

    @contextlib.contextmanager
    def awake(self) -> Iterator[Effort]:
        """What is done meanwhile counts."""
        self._rests, self._since = False, self._clock.spent
        try:
            yield self
        finally:
            self.rest()


def fit(
    model: EngineModel,
    observations: Observations,
    rng: np.random.Generator,
    say: Callable[[str], None],
    effort: Effort | None = None,
) -> tuple[EngineModel, float]:
    """The model that reproduces all observations and its mismatches 0.0, or the best one found and what is left."""
    effort = effort or Effort(1 << 60, observations.clock)
    everything = observations.all()
    best, least = model, everything.mismatches(model)
    if 0.0 < least < _MENDED:
        best, least = climb(best, everything, rng, _USUAL, 3, _JOINT if least < _NEAR else (), effort)
    best, least = _advised(best, least, everything, rng, effort.part(_MENDING))
    if least == 0.0 or effort.left <= 0:
        return best, least
    for _ in range(_ROUNDS):
        pool = layered(best, observations, rng, say, effort)
        ranked = sorted(((everything.mismatches(m), i, m) for i, m in enumerate(pool)), key=lambda item: item[:2])
        for _, _, candidate in ranked[:_BEAM]:
            found, score = climb(candidate, everything, rng, _USUAL, 6, _JOINT, effort)
            if score < least:
                share = _MENDING if score > _NEARER else _MOST
                best, least = _advised(found, score, everything, rng, effort.part(share))
            if least == 0.0 or effort.left <= 0:
                return best, least
        say(f"mismatches {least:.4f} so far")
    for groups, kicks in ((_USUAL, _KICKS), (_DESPERATE, _KICKS)):
        for turn in range(1 + kicks):
            candidate = _kicked(best, rng) if turn else best
            found, score = climb(candidate, everything, rng, _USUAL if turn else groups, 6, _JOINT, effort)
            if score < least:
                best, least = found, score
            if least == 0.0 or effort.left <= 0:
                return best, least
    return best, least


def rescued(
    beginnings: tuple[EngineModel, ...], observations: Observations, rng: np.random.Generator, effort: Effort
) -> tuple[EngineModel, float]:
    """Where nothing was found, the best model that one change, or a rare one, of these leads to, and its mismatches."""
    everything = observations.all()
    best, least = beginnings[0], float("inf")

    def tried(model: EngineModel, groups: tuple[str, ...], sweeps: int, joint: tuple[str, ...] = ()) -> bool:
        nonlocal best, least
        found, score = climb(model, everything, rng, groups, sweeps, joint, effort)
        if score < least:
            best, least = found, score
        return least == 0.0 or effort.left <= 0

    for model in dict.fromkeys(beginnings):
        if tried(model, ("orders", *_USUAL), 1):
            return best, least
    # Models that are as good, but for another reason.
    alike = [other for name in _DISGUISES for other in alternatives(best, name)]
    for other in [other for other in alike if everything.mismatches(other, least) <= least][:_LEVEL]:
        if tried(other, ("orders", "blocks", *_TERMS), 2):
            return best, least
    for model in dict.fromkeys((best, *beginnings)):
        if tried(model, (*RARE, *_USUAL), 3, _JOINT):
            break
    return best, least


@dataclass(frozen=True)
class _Stage:
    """A step from short vectors far from the ends of the range to all that was seen.

    Args:
        name: of it.
        some: the answers that count.
        groups: of changes that they show.
        tried: beginnings that are followed, at most, unless they reproduce the answers as they are.
        starts: whether every kind of sum and join is tried.
        ends: whether the ends of the range show.
    """

    name: str
    some: Some
    groups: tuple[str, ...]
    tried: int
    starts: bool = False
    ends: bool = False


def _stages(model: EngineModel, observations: Observations, rng: np.random.Generator) -> Iterator[_Stage]:
    """A product alone, far from the ends of the range; then with c, two and four of them; whole vectors, which show
    the order of summation; what needs the carry bits; then everything, but for the signs of zeros.
    """
    plain, carry, edge = (observations.layer(i) for i in (PLAIN, CARRY, EDGE))
    near = model if observations.all().mismatches(model, _NEAR) < _NEAR else None

    def sample(layer: Some, longest: int = 1 << 30) -> Some:
        return layer.sample(300, rng, longest=longest, against=near)

    yield _Stage("product", plain.products().sample(240, rng), _PLAIN, 4, starts=True)
    yield _Stage("product and c", sample(plain, 1), _PLAIN, 6, starts=True)
    yield _Stage("two products", sample(plain, 2), _PLAIN, 6, starts=True)
    yield _Stage("four products", sample(plain, 4), ("blocks", *_PLAIN), 6, starts=True)
    yield _Stage("order", sample(plain), ("shapes", *_PLAIN), 6)
    yield _Stage("carries", sample(carry), ("limits", "blocks", *_PLAIN), 4)
    yield _Stage("ends, short", sample(edge, 2), _TERMS, 5, ends=True)
    yield _Stage("ends", sample(edge), _USUAL, 3, ends=True)


def layered(
    model: EngineModel,
    observations: Observations,
    rng: np.random.Generator,
    say: Callable[[str], None],
    effort: Effort,
) -> list[EngineModel]:
    """Beginnings: of every stage those models that reproduce most of it, of different kinds, begin the next one."""
    beam, mending = [model], effort.part(_MENDING).rest()
    for stage in _stages(model, observations, rng):
        pool = dict.fromkeys(s for m in beam for s in (m, *(starts(m) if stage.starts else ()), *twins(m)))
        ranked = sorted(((stage.some.mismatches(m), i, m) for i, m in enumerate(pool)), key=lambda item: item[:2])
        climbed = _followed(ranked, stage, rng, effort, mending)
        say(f"{stage.name}: {', '.join(f'{score:.3f}' for score, _, _ in climbed[:_BEAM])}")
        good = sum(score == 0.0 for score, _, _ in climbed)
        beam = list(dict.fromkeys(m for _, _, m in climbed))[: max(_BEAM, good)]
        if effort.left <= 0:
            break
    return beam


def _followed(
    ranked: list[tuple[float, int, EngineModel]],
    stage: _Stage,
    rng: np.random.Generator,
    effort: Effort,
    mending: Effort,
) -> list[tuple[float, int, EngineModel]]:
    """Where beginnings lead to, one of every kind, best first."""
    kinds: set[tuple[object, ...]] = set()
    climbed: list[tuple[float, int, EngineModel]] = []
    for score, i, candidate in ranked:
        kind = _kind(candidate, stage.ends)
        if kind in kinds:
            continue
        good = sum(s == 0.0 for s, _, _ in climbed)
        enough = good >= _BEAM or len(climbed) >= (good + 2 if good else stage.tried) or effort.left <= 0
        if good >= _WIDE or (climbed and score > 0.0 and enough):
            break
        kinds.add(kind)
        found = climb(candidate, stage.some, rng, _ENDS, 3, effort=effort)[0] if stage.ends else candidate
        found, score = climb(found, stage.some, rng, stage.groups, 4, effort=effort)
        climbed.append((score, i, found))
    climbed.sort(key=lambda item: item[:2])
    score, _, found = climbed[0]
    if score > 0.0 and mending.left > 0 and effort.left > 0:
        with mending.awake():
            found, score = _advised(found, score, stage.some, rng, mending.part(0.5), stage.groups)
            found, score = climb(found, stage.some, rng, stage.groups, 4, _JOINT, mending)
        climbed = sorted([(score, -1, found), *climbed], key=lambda item: item[:2])
    return climbed


def _kind(model: EngineModel, ends: bool) -> tuple[object, ...]:
    """What models differ in that are followed beside each other."""
    return (
        ends and model.rounding,
        model.summation,
        model.fraction_bits is None,
        type(model.join),
        model.join == "after",
        model.accumulator is None,
        model.product_rounding is None,
    )


def _advised(
    best: EngineModel,
    least: float,
    everything: Some,
    rng: np.random.Generator,
    effort: Effort,
    groups: tuple[str, ...] = _USUAL,
) -> tuple[EngineModel, float]:
    """A better model than one that is almost right, where several properties have to change at once.

    What has to change gives answers that the model gets wrong, whatever else it spoils: such a change is kept while the
    others are looked for.
    """
    while 0.0 < least < _NEAR and effort.left > 0:
        before = least
        for beginning in itertools.chain([best], _level(best, least, everything)):
            advice = sorted(_advice(beginning, everything, rng), key=lambda item: item[0])
            for _, kept, found in advice[:_ADVISED]:
                found, score = climb(found, everything, rng, groups, 2, effort=effort, kept=kept)
                if score < least:
                    best, least = found, score
                    break
            if least < before or effort.left <= 0:
                break
        if least == before:
            break
    return best, least


def _level(model: EngineModel, least: float, everything: Some) -> Iterator[EngineModel]:
    """Some models of another kind of sum that are as good: what they are still wrong about may be nearer to them."""
    found = 0
    for candidate in _candidates(model, "trees"):
        if found == _LEVEL:
            return
        if candidate.summation != model.summation and everything.mismatches(candidate, least) <= least:
            found += 1
            yield candidate


def _advice(
    model: EngineModel, everything: Some, rng: np.random.Generator
) -> Iterator[tuple[float, dict[str, Any], EngineModel]]:
    """Changed models that give some of the answers that this one gets wrong, two for every set of properties; with what
    is changed, and their mismatches.
    """
    wrong = everything.failing(model, _ADVICE)
    before = wrong.mismatches(model)
    glance = everything.sample(_GLANCE, rng)
    found: dict[tuple[str, ...], list[tuple[float, int, dict[str, Any], EngineModel]]] = {}
    for order, candidate in enumerate(dict.fromkeys(c for group in CHANGES for c in _candidates(model, group))):
        score = wrong.mismatches(candidate, before)
        if score < before:
            kept = {name: getattr(candidate, name) for name in PROPERTIES}
            kept = {name: value for name, value in kept.items() if value != getattr(model, name)}
            found.setdefault(tuple(kept), []).append((score, order, kept, candidate))
    for names in sorted(found, key=len)[:_SETS]:
        ranked = sorted(found[names], key=lambda item: item[:2])
        equal = sum(item[0] == ranked[0][0] for item in ranked)
        # Of many that are right in the same answers, those that spoil least: of a few of all answers, then of all.
        some = [(0.0, *item[1:]) for item in ranked[: max(equal, 2)]]
        if equal > _EQUAL:
            some = sorted(((glance.mismatches(item[3]), *item[1:]) for item in some), key=lambda item: item[:2])
        judged: list[tuple[float, int, dict[str, Any], EngineModel]] = []
        for _, order, kept, candidate in some[:_EQUAL]:
            limit = judged[1][0] if len(judged) > 1 else float("inf")
            score = everything.mismatches(candidate, limit)
            judged = sorted([*judged, (score, order, kept, candidate)], key=lambda item: item[:2])[:2]
        for score, _, kept, candidate in judged:
            yield score, kept, candidate


def _kicked(model: EngineModel, rng: np.random.Generator) -> EngineModel:
    """The model with two random changes: a beginning beside the top on which a search got stuck."""
    for _ in range(2):
        names = (*_TERMS, "blocks")
        changes = list(CHANGES[names[int(rng.integers(len(names)))]](model))
        if changes:
            model = changed(model, **changes[int(rng.integers(len(changes)))]) or model
    return model


def climb(
    model: EngineModel,
    observations: Some,
    rng: np.random.Generator,
    groups: tuple[str, ...] = _USUAL,
    sweeps: int = 6,
    joint: tuple[str, ...] = (),
    effort: Effort | None = None,
    kept: dict[str, Any] | None = None,
) -> tuple[EngineModel, float]:
    """The best model that changes of one group at a time lead to, and its mismatches: 0.0 if it reproduces all.

    Where no group of `groups` leads on, those of `joint` are tried, too. The values of `kept` stay as they are.
    """
    effort = effort or Effort(1 << 60, observations.clock)
    best = observations.mismatches(model)
    for _ in range(sweeps):
        before = best
        for group in groups:
            if best == 0.0 or effort.left <= 0:
                return model, best
            model, best = _improve(model, best, observations, rng, group, effort, kept)
        if best < before:
            continue
        for group in joint:
            model, best = _improve(model, best, observations, rng, group, effort, kept)
            if best < before or effort.left <= 0:
                break
        if best == before:
            break
    return model, best


def _improve(
    model: EngineModel,
    best: float,
    observations: Some,
    rng: np.random.Generator,
    group: str,
    effort: Effort,
    kept: dict[str, Any] | None = None,
) -> tuple[EngineModel, float]:
    """The best of the group's changes, if it is better."""
    ranked: list[tuple[float, int, EngineModel]] = []
    screen = observations.screen(model, rng, _SCREEN, group in ORDERING)
    limit = screen.mismatches(model)
    for order, candidate in enumerate(_candidates(model, group)):
        if kept and any(getattr(candidate, name) != value for name, value in kept.items()):
            continue
        score = screen.mismatches(candidate, limit)
        if score < limit:
            ranked.append((score, order, candidate))
            ranked.sort(key=lambda item: item[:2])
            del ranked[_FINALISTS:]
            if len(ranked) == _FINALISTS:
                limit = ranked[-1][0]
    for _, _, candidate in ranked:
        score = observations.mismatches(candidate, best)
        if score < best:
            model, best = candidate, score
    return model, best


def _candidates(model: EngineModel, group: str) -> Iterator[EngineModel]:
    seen = {model}
    for change in (CHANGES.get(group) or RARE[group])(model):
        found = changed(model, **change)
        if found is not None and found not in seen:
            seen.add(found)
            yield found
