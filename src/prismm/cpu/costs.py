"""What a product is expected to cost: measured rates of this kind of machine, and seconds predicted from them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.schemes.native import Native

if TYPE_CHECKING:
    from prismm.core.problem import Problem


@dataclass(frozen=True)
class Rates:
    """What one worker does in a second: multiply-adds of residues, of native GEMMs, elements split and joined (per
    modulus).
    """

    residue: float
    float64: float = 2.5e10
    float32: float = 5.0e10
    split: float = 1.6e9
    join: float = 1.3e9
    repair: float = 3.0e8


MEASURED = ("cpu:amx",)
"""Engines whose rates are measured on this machine (`cpu.measured`), and NumPy's beside them."""

RATES = {
    "cpu:vnni": Rates(2.25e11),
    "cpu:avx2": Rates(5.5e10, split=1.5e9, join=9.0e8),
    "cpu:int8": Rates(2.1e11),
    "cpu:int8-7bit": Rates(0.9e11),
    "cpu:float64": Rates(2.3e10),
    "cpu:direct": Rates(1.5e9),
}
PROCESSORS = {"znver5": {"cpu:vnni": Rates(5.3e11, split=6.4e9, join=2.6e9)}}
"""Kinds of processors, by LLVM's names, that were measured to differ: Zen 5 runs 512-bit instructions in one piece."""

CALL_SECONDS = 2.5e-4

PAIR_SECONDS, EXACT_SECONDS = 1.3e-9, 3.0e-9
"""Seconds that one worker takes for a term of a single entry (`cpu.kernels.dot`, `cpu.kernels.exact`)."""

EXACT_ENTRY_SECONDS = 7.0e-7
"""Seconds beside those of the terms of an exact sum: to clear, carry and round its limbs."""

LANE_SECONDS = 1.5e-10
"""Seconds that one worker takes for a term of a single entry of float32 data (`cpu.kernels.single`)."""

CORRECTION_SECONDS = 2.5e-10
"""Seconds for a term of what rounded operands leave out (`cpu.kernels.residuals`)."""

EXPANSION_SECONDS = {16: {2: 4.5e-10, 3: 9.0e-10}, 8: {2: 8.5e-10, 3: 1.35e-9}}
"""Seconds for a term of many entries, in so many parts (`cpu.kernels.expansions`), by the dwords of a register."""

MANY_JOIN_SECONDS = 2.0e-8
"""Seconds to round and test one of many entries, beside the digits of each modulus."""

COMPOSITE_RATES = {"cpu:blas": 2.5e10, "cpu:int8": 1.2e11, "simulated": 1.5e9}
"""Multiply-adds of parts that one worker makes in a second, sums between products included, by engine (all simulated
ones under one name)."""

ELEMENT_SECONDS, ENTRY_SECONDS = 1.8e-8, 1.2e-8
"""Seconds that one worker takes to scale and split an element, and to join and certify an entry."""


@functools.cache
def rates_of(engine: str) -> Rates:
    """The rates of an engine on this processor."""
    from llvmlite import binding

    if engine in MEASURED:
        from prismm.cpu import measured

        return measured.rates(engine)
    special = PROCESSORS.get(binding.get_host_cpu_name(), {})
    return special.get(engine) or RATES.get(engine, RATES["cpu:int8"])


def expansion_seconds(parts: int) -> float:
    """Of `EXPANSION_SECONDS`, what holds for this processor."""
    from prismm.cpu.kernels.byte_unit import register_lanes

    return EXPANSION_SECONDS[register_lanes()][parts]


def native_rates() -> Rates:
    """Rates of native products on this processor."""
    from prismm.cpu.engines.integer import expected

    best = expected()
    return rates_of(best) if best in MEASURED else RATES["cpu:int8"]


def native_rate(problem: Problem) -> float:
    """Multiply-adds of real elements that one worker's BLAS makes in a second."""
    rates = native_rates()
    return rates.float64 if problem.native_roundoff < 2.0**-30 else rates.float32


def blas_seconds(problem: Problem, workers: int) -> float:
    """Seconds expected for the native GEMM."""
    work = float(problem.m) * problem.n * problem.k
    return work * (4 if problem.is_complex else 1) / (native_rate(problem) * workers) + 2e-6


def native_seconds(scheme: Native, problem: Problem, workers: int) -> float:
    """Seconds expected for the scheme `Native`: BLAS, and a pass over the result."""
    native, entries = blas_seconds(problem, workers), problem.m * problem.n
    if scheme.compute == "float64" and problem.native_roundoff >= 2.0**-30:
        return 2.0 * native + entries * ENTRY_SECONDS / workers
    return native + entries * 4e-10


def residue_seconds(engine: str, problem: Problem, moduli: int, parts: int, workers: int) -> float:
    """Seconds expected for products modulo so many numbers, `parts` real ones for each."""
    rates = rates_of(engine)
    work = float(problem.m) * problem.n * problem.k
    if engine == "cpu:direct":
        return work * problem.parts * 12 / rates.residue + 3e-5
    split = (problem.m + problem.n) * problem.k * moduli * parts / rates.split
    join = float(problem.m) * problem.n * moduli * parts / rates.join
    return (work * moduli * parts / rates.residue + split + join) / workers + CALL_SECONDS


def composite_seconds(products: int, engine: str, problem: Problem, workers: int) -> float:
    """Seconds expected for so many rounded products, and two passes over operands and result."""
    rate = COMPOSITE_RATES.get(engine, COMPOSITE_RATES["simulated"])
    work = float(problem.m) * problem.n * problem.terms * problem.parts
    passes = (problem.m + problem.n) * problem.terms * problem.parts * ELEMENT_SECONDS
    passes += problem.m * problem.n * problem.parts * ENTRY_SECONDS
    certified = problem.goal in ("native", "tolerance")
    magnitudes = work / RATES["cpu:int8"].float64 if certified else 0.0
    return (work * products / rate + magnitudes + passes) / workers + CALL_SECONDS
