"""The member of the family that reproduces what was observed.

Step by step, each on the inputs that show what it looks for. One product alone, then with c, then two and four of them
show what a term goes through and how few terms are added: from every kind of sum and join, properties are changed group
by group as long as more answers come out right. Long vectors then show blocks, depth and order, and all together are
mended on all observations.
The share of answers that a model reproduces grows with every property that is right, because the classes of inputs
(`vectors.CLASSES`) show different ones; where it gets stuck, the next best beginning is tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.numerics.family import CHANGES, ORDERING, changed
from prismm.numerics.parts import LateJoin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from prismm.numerics.model import EngineModel
    from prismm.numerics.observations import Observations

__all__ = ["Effort", "climb", "fit", "starts"]

_SCREEN = 16
"""Observations of each kind and length in the first look at a candidate."""
_FINALISTS = 24
"""Candidates of a group that are judged by all observations."""
_BEAM = 3
"""Beginnings that are followed to the end."""
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
_JOINT = ("levels", "rounded_products", "rounded_sums")
"""Where the one is wrong, the others cannot be told: many candidates, tried where nothing else leads on."""
_NEAR = 0.1
"""Mismatches from which on a model is almost right."""
_CANDIDATE = 5_000
"""What a candidate costs, in products."""
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
    """How much a search may still do: dot products of one term, of which a candidate itself is worth many."""

    def __init__(self, units: int) -> None:
        self.left = units

    def spend(self, units: int) -> bool:
        """Whether there is any left after this."""
        self.left -= units
        return self.left > 0


def fit(
    model: EngineModel,
    observations: Observations,
    rng: np.random.Generator,
    say: Callable[[str], None],
    effort: Effort | None = None,
) -> tuple[EngineModel, float]:
    """The model that reproduces all observations and its mismatches 0.0, or the best one found and what is left."""
    effort = effort or Effort(1 << 60)
    best, least = climb(model, observations, rng, _USUAL, 2, effort=effort)
    if 0.0 < least < _NEAR:
        best, least = climb(best, observations, rng, _USUAL, 3, _JOINT, effort)
    if least == 0.0:
        return best, least
    pool = _short(best, observations, rng, say, effort)
    for groups, kicks in ((_USUAL, 0), (_USUAL, _KICKS), (_DESPERATE, _KICKS)):
        for turn in range(len(pool) + kicks):
            candidate = pool[turn] if turn < len(pool) else _kicked(best, rng)
            use = groups if turn < len(pool) else _USUAL
            found, score = climb(candidate, observations, rng, use, 6, _JOINT if turn < len(pool) else (), effort)
            if score < least:
                best, least = found, score
            if least == 0.0 or effort.left <= 0:
                return best, least
        pool = [best]
        say(f"mismatches {least:.4f} so far")
    return best, least


def _short(
    model: EngineModel,
    observations: Observations,
    rng: np.random.Generator,
    say: Callable[[str], None],
    effort: Effort,
) -> list[EngineModel]:
    """Beginnings: what explains products alone, then products with c, then two, then four of them."""
    beam = [model]
    products = observations.products().sample(240, rng)
    stages = (
        (products, _TERMS, 4),
        (observations.sample(300, rng, longest=1), _TERMS, 6),
        (observations.sample(200, rng, longest=2), _TERMS, 5),
        (observations.sample(150, rng, longest=4), ("blocks", *_TERMS), 3),
    )
    for stage, (some, groups, tried) in enumerate(stages):
        wider = list(dict.fromkeys(s for m in beam for s in (m, *starts(m))))
        ranked = sorted(((some.mismatches(s), i, s) for i, s in enumerate(wider)), key=lambda item: item[:2])
        kinds: set[tuple[object, ...]] = set()
        climbed: list[tuple[float, int, EngineModel]] = []
        for _, i, candidate in ranked:
            join = None if stage == 0 else candidate.join  # products alone do not show it
            kind = candidate.summation, candidate.fraction_bits is None, join
            if kind in kinds:
                continue
            kinds.add(kind)
            found, score = climb(candidate, some, rng, groups, 4, effort=effort)
            climbed.append((score, i, found))
            if len(climbed) >= tried or sum(s == 0.0 for s, _, _ in climbed) >= _BEAM or effort.left <= 0:
                break
        climbed.sort(key=lambda item: item[:2])
        if climbed[0][0] > 0.0:
            found, score = climb(climbed[0][2], some, rng, groups, 4, _JOINT, effort)
            climbed = sorted([(score, -1, found), *climbed], key=lambda item: item[:2])
        say(f"short vectors: {', '.join(f'{s:.3f}' for s, _, _ in climbed[:_BEAM])}")
        beam = list(dict.fromkeys(m for _, _, m in climbed))[:_BEAM]
    return beam


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
    observations: Observations,
    rng: np.random.Generator,
    groups: tuple[str, ...] = _USUAL,
    sweeps: int = 6,
    joint: tuple[str, ...] = (),
    effort: Effort | None = None,
) -> tuple[EngineModel, float]:
    """The best model that changes of one group at a time lead to, and its mismatches: 0.0 if it reproduces all.

    Where no group of `groups` leads on, those of `joint` are tried, too.
    """
    effort = effort or Effort(1 << 60)
    best = observations.mismatches(model)
    for _ in range(sweeps):
        before = best
        for group in groups:
            if best == 0.0 or effort.left <= 0:
                return model, best
            model, best = _improve(model, best, observations, rng, group, effort)
        if best < before:
            continue
        for group in joint:
            model, best = _improve(model, best, observations, rng, group, effort)
            if best < before or effort.left <= 0:
                break
        if best == before:
            break
    return model, best


def _improve(
    model: EngineModel, best: float, observations: Observations, rng: np.random.Generator, group: str, effort: Effort
) -> tuple[EngineModel, float]:
    """The best of the group's changes, if it is better."""
    ranked: list[tuple[float, int, EngineModel]] = []
    screen = observations.screen(model, rng, _SCREEN, group in ORDERING)
    limit = screen.mismatches(model, float("inf"))
    for order, candidate in enumerate(_candidates(model, group)):
        effort.spend(_CANDIDATE)
        score = screen.mismatches(candidate, limit)
        if score < limit:
            ranked.append((score, order, candidate))
            ranked.sort(key=lambda item: item[:2])
            del ranked[_FINALISTS:]
            if len(ranked) == _FINALISTS:
                limit = ranked[-1][0]
    whole = observations.terms()
    for _, _, candidate in ranked:
        effort.spend(whole)
        score = observations.mismatches(candidate, best)
        if score < best:
            model, best = candidate, score
    return model, best


def _candidates(model: EngineModel, group: str) -> Iterator[EngineModel]:
    seen = {model}
    for change in CHANGES[group](model):
        found = changed(model, **change)
        if found is not None and found not in seen:
            seen.add(found)
            yield found
