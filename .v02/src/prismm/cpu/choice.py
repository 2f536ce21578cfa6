"""The CPU's column of `planning.auto`'s table, and what the planner may read of the data there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from prismm.core.backend import Chosen
from prismm.core.problem import Problem
from prismm.cpu.alternatives import weigh
from prismm.cpu.costs import MEASURED, native_seconds, rates_of, residue_seconds
from prismm.cpu.engines.integer import choose, expected
from prismm.cpu.native.product import cannot_underflow
from prismm.planning.moduli_count import TINY_MODULI, moduli_for_native, moduli_for_rounding, moduli_for_sample
from prismm.schemes.native import Native, native_meets
from prismm.schemes.residues import Residues

if TYPE_CHECKING:
    from numpy.typing import NDArray

DIRECT_WORK = 40_000
"""Products of at most this many multiply-adds go to the direct engine: no pipeline pays for itself there."""

TINY_WORK = 300_000
"""Up to so many multiply-adds one compiled call in double-double is faster still, where it certifies every entry; so
many may each product of a batch have for the direct engine.
"""

RESULTS = {53: ("float64", "complex128"), 24: ("float32", "complex64")}
"""Types of real and complex results, by their precision, that residues of native grade are weighed for."""

LEAST_SIDE = 192
"""Rows and columns below which residues are not weighed against BLAS: splits would take as long as products."""

THIN = 4096
"""A tall or wide product whose smaller operand has at most so many elements goes to the direct engine as well."""

RESIDUE_WORK = 1 << 29
"""Multiply-adds from which on residues of native grade may beat BLAS, on a processor with a tile unit."""

MARGIN = 0.9
"""Residues take the place of BLAS where this share of its seconds is predicted for them: what predictions err by."""

SAMPLED_WORK = 1 << 28
"""Multiply-adds from which on a sample of the data is worth its time."""


class Sample(NamedTuple):
    """The operands' data, (m, k) and (k, n), where a choice may depend on it; the element type of the native
    product."""

    a: NDArray[Any]
    b: NDArray[Any]
    native: np.dtype[Any]


def is_tiny(problem: Problem) -> bool:
    """Whether the direct engine is the natural choice: for a product so small, or one of a batch."""
    work = problem.multiply_adds
    # A complex product is four real ones to the direct engine.
    many = bool(problem.batch) and work * (4 if problem.is_complex else 1) <= TINY_WORK
    return work <= DIRECT_WORK or many


def is_thin(problem: Problem) -> bool:
    """Whether it is because a tall or wide product has so small an operand."""
    least, most = sorted((problem.m, problem.n))
    return least * max(problem.k, 1) <= THIN and most >= 16 * least


def is_single(problem: Problem) -> bool:
    """Whether the product of two elements is exact in float64, and the result real and float32."""
    return problem.fits_float32 and problem.result.precision == 24 and not problem.is_complex


class CpuColumn:
    """See `core.backend.Column`."""

    def native_within(self, problem: Problem, sample: Sample | None) -> Chosen | None:
        """Native, where (K+2)·u is within the tolerance and no product of elements can underflow."""
        if problem.big_integers or problem.summed or sample is None:
            return None
        assert problem.target is not None and problem.target.tolerance is not None
        unit = problem.native_roundoff
        # A conventional bound has K·η for products that underflow, for which a tolerance leaves no room.
        meets = native_meets(problem.target.tolerance, problem.terms, unit, problem.result.unit_roundoff)
        if not meets or not cannot_underflow(*sample):
            return None
        return Chosen(Native(), None, (f"(K+2)·u = {(problem.terms + 2) * unit:.1e} is within the tolerance",))

    def correctly_rounded(self, problem: Problem, sample: Sample | None, engine: str | None) -> Chosen:
        """Sums in float64 for float32 data, otherwise residues; their number by a sample of large data."""
        tiny = Residues(TINY_MODULI[problem.result.precision])
        if is_tiny(problem):
            return Chosen(tiny, engine, ("leaves few roundings open in a tiny product",))
        if is_single(problem) and not problem.summed and not _residues_are_faster(problem):
            reason = "float32 products are exact in float64; one rounding test per entry"
            return Chosen(Native("float64"), engine, (reason,))
        if is_thin(problem):
            return Chosen(tiny, engine, ("leaves few roundings open in short sums",))
        return Chosen(*_by_sample(problem, sample, engine))

    def native_grade(self, problem: Problem, sample: Sample | None, engine: str | None) -> Chosen:
        """Native, but for integers beyond 2^53, and for what would be rounded twice."""
        of_grade = Residues(moduli_for_native(problem.result, problem.terms))
        if problem.goal == "fast" or not problem.big_integers:
            narrower = problem.native_roundoff < problem.result.unit_roundoff
            if problem.goal == "native" and problem.terms == 1 and narrower:
                return Chosen(of_grade, engine, ("a single product in a wider type would round twice",))
            if engine is None and sample is not None and beats_blas(problem, sample):
                reason = "certified, and fewer seconds are predicted on this CPU's tile unit than for its BLAS"
                return Chosen(of_grade, engine, (reason,))
            return Chosen(Native(), engine, ("its a-priori bound meets the target, and nothing is faster on a CPU",))
        return Chosen(of_grade, engine, ("integers beyond 2^53 and long doubles need exact operands",))

    def weigh(self, problem: Problem, chosen: Chosen) -> Chosen:
        """A scheme of several rounded products in its place, where that is predicted faster."""
        return weigh(problem, chosen)


def column(device: str = "cpu") -> CpuColumn:
    """The column of this processor."""
    return CpuColumn()


def beats_blas(problem: Problem, sample: Sample) -> bool:
    """Whether residues of native grade are predicted clearly faster than the native product: never without an engine
    whose rates are measured here, nor where a sample of the entries says that many would have to be repaired.
    """
    if not may_beat_blas(problem):
        return False
    moduli = moduli_for_native(problem.result, problem.terms)
    engine = choose("cpu").name
    native, residues = _seconds_of_both(problem, moduli, engine)
    # "fast" certifies no entry, so that none is repaired.
    share = uncertified_share(problem, sample, moduli, engine) if problem.goal == "native" else 0.0
    entries = problem.m * problem.n * (2 if problem.is_complex else 1) * share
    return residues + entries * problem.terms / rates_of(engine).repair < MARGIN * native


def may_beat_blas(problem: Problem) -> bool:
    """What `beats_blas` asks before it looks at the data: whether residues are faster if nothing is repaired."""
    if problem.multiply_adds < RESIDUE_WORK or min(problem.m, problem.n) < LEAST_SIDE or problem.batch:
        return False
    if problem.result.precision not in RESULTS or not measured_engine():
        return False
    # The sample is itself a product: it is asked only where speed alone does not decide.
    native, residues = _seconds_of_both(problem, moduli_for_native(problem.result, problem.terms), choose("cpu").name)
    return residues < MARGIN * native


def _seconds_of_both(problem: Problem, moduli: int, engine: str) -> tuple[float, float]:
    parts = 3 if problem.is_complex else 1
    return native_seconds(Native(), problem, 1), residue_seconds(engine, problem, moduli, parts, 1)


def uncertified_share(problem: Problem, sample: Sample, moduli: int, engine: str) -> float:
    """Share of the result's entries whose certificate of native grade fails, by the product of a few
    rows and columns from all over the operands.
    """
    from prismm.cpu.residues.forecast import tested

    dtype = np.dtype(RESULTS[problem.result.precision][problem.is_complex])
    return tested(problem, sample.a, sample.b, moduli, engine, dtype).failed


def measured_engine() -> bool:
    """Whether the best engine of this CPU is one of tiles, whose rates are measured. The processor's features are
    looked at first, so that nothing is proved or compiled where there is none.
    """
    from prismm.cpu.kernels import amx

    return amx.supported() and choose("cpu").name in MEASURED


def _residues_are_faster(problem: Problem) -> bool:
    """Whether fewer seconds are predicted for residues than for sums in float64: where INT8 products are as many times
    faster than those as it takes.
    """
    moduli = moduli_for_rounding(problem.result)
    return residue_seconds(expected(), problem, moduli, 1, 1) < native_seconds(Native("float64"), problem, 1)


def _by_sample(
    problem: Problem, sample: Sample | None, engine: str | None
) -> tuple[Residues, str | None, tuple[str, ...]]:
    few = problem.m * problem.n < 1 << 10  # a sample would be all of them
    if sample is None or few or problem.multiply_adds < SAMPLED_WORK or problem.big_integers:
        moduli = moduli_for_rounding(problem.result)
        return Residues(moduli), engine, ("leaves few roundings open on ordinary data",)
    with np.errstate(all="ignore"):
        rate = rates_of(choose("cpu").name).residue
        moduli, share = moduli_for_sample(problem, sample.a, sample.b, rate)
    reason = f"fewest seconds by a sample of the data, which expects {share:.2g} of the entries in repair"
    return Residues(moduli), engine, (reason,)
