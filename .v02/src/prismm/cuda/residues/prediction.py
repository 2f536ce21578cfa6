"""What residues by FP8 are predicted to take on cards that are not here, beside other ways: from published rates."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from prismm.core.plan import readable_seconds
from prismm.cuda.costs.predict import gpu_seconds
from prismm.cuda.costs.table import rates_of
from prismm.cuda.device import INT8
from prismm.cuda.multiword.implementation import of_native_grade
from prismm.cuda.native.seconds import cublas_seconds
from prismm.cuda.residues.seconds import fp8_seconds
from prismm.schemes.residues import Residues

if TYPE_CHECKING:
    from prismm.core.problem import Problem
    from prismm.cuda.costs.table import Rates

__all__ = ["CARDS", "FP8_WAY", "INT8_WAY", "NATIVE", "WORDS", "crossovers", "fp8_predictions", "ways"]

NATIVE, INT8_WAY, FP8_WAY, WORDS = "native", "INT8", "FP8", "16-bit words"

CARDS = {
    "b200-tcgen05": ("NVIDIA B200", "NVIDIA B300 SXM6 AC"),
    "rtx5090": ("NVIDIA GeForce RTX 5090",),
    "rtxpro6000": ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition",),
}
"""Cards with the matrix unit of a device of `numerics.catalogue`; others have no long FP8 sums, or no known rate."""

_STEP, _LARGEST = 64, 32768
"""Sizes that `crossovers` tries: multiples of one up to the other."""


def ways(moduli: int, problem: Problem, rates: Rates) -> dict[str, float]:
    """Predicted seconds of the GPU by each way to the product, with so many moduli for residues; words of 16 bits where
    they have the result's grade.
    """
    words = of_native_grade(problem)
    found = {
        NATIVE: cublas_seconds(problem, rates),
        INT8_WAY: gpu_seconds(Residues(moduli), problem, rates, INT8),
        FP8_WAY: fp8_seconds(moduli, problem, rates),
    }
    return found if words is None else {**found, WORDS: gpu_seconds(words, problem, rates)}


@functools.lru_cache(maxsize=64)
def crossovers(card: str, moduli: int, problem: Problem) -> dict[str, int | None]:
    """For each other way the least n, a multiple of 64, from which FP8 is predicted faster for n x n matrices up to
    32768; None if nowhere. problem: its types and target count.
    """
    rates = rates_of(card)
    assert rates is not None, card
    found: dict[str, int | None] = {}
    done: set[str] = set()
    for n in range(_LARGEST, 0, -_STEP):
        seconds = ways(moduli, _square(problem, n), rates)
        for way in seconds.keys() - done - {FP8_WAY}:
            if seconds[FP8_WAY] < seconds[way]:
                found[way] = n
            else:
                done.add(way)
                found.setdefault(way, None)
        if not seconds.keys() - done - {FP8_WAY}:
            break
    return found


def _square(problem: Problem, n: int) -> Problem:
    return replace(problem, m=n, k=n, n=n, batch=(), strided_vector=False)


def fp8_predictions(device: str, moduli: int, problem: Problem) -> tuple[str, ...]:
    """A line for each card with a simulated device's matrix unit.

    >>> from prismm.core.problem import Problem
    >>> from prismm.formats import FP64
    >>> problem = Problem(4096, 4096, 4096, (), FP64, None, reproducible=False, one_type=True)
    >>> print(*fp8_predictions("b200-tcgen05", 14, problem), sep="\\n")  # doctest: +ELLIPSIS
    prediction for an NVIDIA B200, not measured: ... ms by FP8, ... ms native, ... ms by INT8; FP8 is faster than ...
    prediction for an NVIDIA B300 SXM6 AC, not measured: ...
    """
    return tuple(_line(card, moduli, problem) for card in CARDS.get(device, ()))


def _line(card: str, moduli: int, problem: Problem) -> str:
    rates = rates_of(card)
    assert rates is not None, card
    seconds = ways(moduli, problem, rates)
    times = [f"{readable_seconds(seconds[FP8_WAY])} by FP8"]
    times += [
        f"{readable_seconds(took)} {way if way == NATIVE else f'by {way}'}"
        for way, took in seconds.items()
        if way != FP8_WAY
    ]
    least = crossovers(card, moduli, _square(problem, _STEP))
    faster = [f"{way} from n = {least[way]} on" for way in seconds if least.get(way) is not None]
    others = [way for way in seconds if way in least and least[way] is None]
    text = f"; FP8 is faster than {', '.join(faster)}" if faster else ""
    text += f"; at no size than {', '.join(others)}" if faster and others else ""
    return f"prediction for an {card}, not measured: {', '.join(times)}{text}"
