"""The member of the family that reproduces what was observed: climbing, one group of properties at a time.

A property shows in some inputs and not in others (`vectors.CLASSES`), so the share of answers that a model reproduces
grows with every property that is right, and changing one group of them at a time reaches the top. Where it does not,
the search begins again elsewhere.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from prismm.numerics.family import CHANGES, changed

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from prismm.numerics.model import EngineModel
    from prismm.numerics.observations import Observations

__all__ = ["climb", "starts"]

_SCREEN = 96
"""Observations of each length in the first look at a candidate."""
_FINALISTS = 8
"""Candidates of a group that are judged by all observations."""


def starts(model: EngineModel) -> Iterator[EngineModel]:
    """Models from which a search may begin: every kind of sum and of join."""
    choices = itertools.product(("inside", "after"), ("aligned", "sequential", "pairwise"), (model.fraction_bits, None))
    for join, summation, bits in choices:
        found = changed(model, join=join, summation=summation, fraction_bits=bits)
        if found is not None:
            yield found


def climb(
    model: EngineModel,
    observations: Observations,
    rng: np.random.Generator,
    groups: tuple[str, ...] = tuple(CHANGES),
    sweeps: int = 6,
) -> tuple[EngineModel, float]:
    """The best model that changes of one group at a time lead to, and its mismatches: 0.0 if it reproduces all."""
    best = observations.mismatches(model)
    screen = observations.sample(_SCREEN, rng)
    for _ in range(sweeps):
        before = best
        for group in groups:
            if best == 0.0:
                return model, best
            model, best = _improve(model, best, observations, screen, group)
        if best == before:
            break
    return model, best


def _improve(
    model: EngineModel, best: float, observations: Observations, screen: Observations, group: str
) -> tuple[EngineModel, float]:
    """The best of the group's changes, if it is better."""
    candidates = {c.canonical(): c for c in _candidates(model, group)}
    candidates.pop(model.canonical(), None)
    ranked: list[tuple[float, int, EngineModel]] = []
    limit = float("inf")
    for order, candidate in enumerate(candidates.values()):
        score = screen.mismatches(candidate, limit)
        if score <= limit:
            ranked.append((score, order, candidate))
            ranked.sort()
            del ranked[_FINALISTS:]
            if len(ranked) == _FINALISTS:
                limit = ranked[-1][0]
    for _, _, candidate in ranked:
        score = observations.mismatches(candidate, best)
        if score < best:
            model, best = candidate, score
    return model, best


def _candidates(model: EngineModel, group: str) -> Iterator[EngineModel]:
    for change in CHANGES[group](model):
        found = changed(model, **change)
        if found is not None:
            yield found
