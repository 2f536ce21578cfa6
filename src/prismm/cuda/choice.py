"""The GPU's column of `planning.auto`'s table.

| asked for | chosen |
| --- | --- |
| "native", "fast" | Native, Residues of native grade or, in float32, ScaledHalf, whichever is predicted fastest; Native
    by cuBLAS or, for small products, in one kernel on float64's matrix instructions (of float32 operands too) |
| a tolerance | Residues, moduli by what the tolerance needs |
| "correctly-rounded" | Residues, moduli by the fewest predicted seconds, repair included |
| reproducible=True | Residues, moduli from result type, K and target alone, as on a CPU |

Batches of tiny matrices are multiplied in one kernel, but for a tolerance: to the values of Residues without residues.
Residues, whose bits depend on no engine, are made by FP8 units where these are predicted faster than INT8 units.

Choices go by the GPU's own seconds: what the host takes is the same for all, and what is slower in a graph replaces
nothing. A sample of the data has a say only where residues of native grade would be taken: it may add moduli, or
leave the product to cuBLAS (`cuda.sample`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from prismm.core.backend import Chosen
from prismm.core.moduli import MAX_MODULI, operand_bits
from prismm.core.problem import Problem
from prismm.cuda.costs.predict import gpu_seconds, prediction_error, sum_seconds
from prismm.cuda.costs.table import Rates, rates_of, usual_rates
from prismm.cuda.device import BLAS, FP8, FP64, INT8, LONG_SUMS, Device, spoiled_by
from prismm.cuda.implementation import implementation_of
from prismm.cuda.multiword.implementation import of_native_grade
from prismm.cuda.native.seconds import (
    checked_seconds,
    cublas_seconds,
    kernel_error,
    kernel_seconds,
    serves_directly,
)
from prismm.cuda.native.tiny import is_conventional, of_residues, serves_batch, tiny_seconds
from prismm.cuda.residues.seconds import Uncertified, entries_of, uncertified_seconds
from prismm.formats import Format
from prismm.planning.moduli_count import share_of_normal
from prismm.schemes.multiword import Words
from prismm.schemes.native import Native
from prismm.schemes.residues import Residues
from prismm.schemes.scaled_half import ScaledHalf

Sample = Callable[[int], Uncertified]
"""What so many moduli would leave uncertified of the operands' data (`cuda.sample`)."""

_LITTLE = 1 << 20
"""Bytes of operands up to which a launch that is saved is worth more than how fast they are read."""

_MORE = 4
"""Moduli that are added to those of native grade at most, for data that spread."""

_TINY = "a batch of tiny products, in one kernel on float64's units"

_USUAL_PROCESSORS = 132
"""Multiprocessors of a GPU of which there is no table."""


class Contenders(NamedTuple):
    """Predicted seconds of the GPU, for a problem of native grade.

    Attributes:
        native: by cuBLAS.
        one_kernel: in one FP64 kernel; infinite where that is not surely as fast as cuBLAS.
        others: multiword and residues.
    """

    native: float
    one_kernel: float
    others: list[tuple[float, Any]]


class GpuColumn:
    """A GPU's column; see `core.backend.Column`.

    Attributes:
        device: how kernels are built for the GPU.
        rates: its cost table, or None where there is none.
        one_kernel: whether Native may be one kernel, for which both operands have to be there.

    Residues go by FP8 units where these are predicted faster, if `fp8` says so and the device sums blocks in them.
    """

    def __init__(self, device: Device, rates: Rates | None, *, one_kernel: bool = True, fp8: bool = True) -> None:
        if rates is not None and not (fp8 and device.fp8_sum_bits >= LONG_SUMS):
            rates = without_fp8(rates)
        self.device, self.rates, self.one_kernel = device, rates, one_kernel

    def native_within(self, problem: Problem, sample: Sample | None) -> None:
        """Never: whether products of elements underflow would have to be read from the data."""

    def correctly_rounded(self, problem: Problem, sample: Sample | None, engine: str | None) -> Chosen:
        """Residues, with the moduli whose products and repair take the fewest seconds."""
        moduli = moduli_for_rounding(problem, self.rates or usual_rates())
        return Chosen(Residues(moduli), engine, ("the fewest predicted seconds, repair included, on ordinary data",))

    def native_grade(self, problem: Problem, sample: Sample | None, engine: str | None) -> Chosen:
        """The fastest of Native by cuBLAS, Native in one kernel, multiword and residues.

        What takes cuBLAS's place is predicted faster by more than the predictions' known error, which the table has
        (`cuda.costs.cublas.Errors`); or is no slower than one kernel that takes it, since it errs less.
        """
        moduli = moduli_matching_cublas(problem.result, problem.terms)
        if not problem.one_type:
            reason = "operands and result of several types: one rounding, at the end"
            return Chosen(Residues(moduli), engine, (reason,))
        if not problem.sum_of_values:
            return Chosen(Residues(moduli), engine, ("alpha, or a long sum, asks for one rounding, at the end",))
        if engine not in (None, "cuda"):
            return Chosen(_asked_for(problem, engine, moduli), engine, (f"engine {engine} asked for by the caller",))
        kernel = Native("float64") if problem.result.precision == 24 else Native()
        if self.takes_tiny(problem):
            return Chosen(kernel, FP64, (_TINY,))
        spoiled = spoiled_by(problem)
        if self.rates is None:
            if spoiled is not None:
                return Chosen(Residues(moduli), engine, (doubtful(spoiled, problem),))
            return Chosen(
                Native(), BLAS, (f"no rates of {self.device.name} are known, and its a-priori bound meets the target",)
            )
        cublas, seconds, found = self.contenders(problem, moduli, self.rates)
        ours, best = min(found, key=lambda one: one[0])
        if spoiled is not None:
            if seconds < ours:
                return Chosen(kernel, FP64, (doubtful(spoiled, problem),))
            return Chosen(found[0][1], None, (doubtful(spoiled, problem),))
        seen = ""
        if sample is not None and best == Residues(moduli) and ours < self._enough(best, problem, cublas, seconds):
            left = sample(moduli)
            if left.entries or left.strips:
                found[-1] = _moduli_for_spread(moduli, left, problem, self.rates, sample)
                ours, best = min(found, key=lambda one: one[0])
                seen = _as_seen(moduli, left)
        if ours < self._enough(best, problem, cublas, seconds):
            faster = f"predicted {cublas / ours:.2f} times as fast as cuBLAS on the GPU"
            return Chosen(best, None, (f"of native grade, and {faster}{seen}",))
        reason = "its a-priori bound meets the target, and nothing is predicted much faster" + seen
        return Chosen(Native(), BLAS, (reason,)) if cublas <= seconds else Chosen(kernel, FP64, (reason,))

    def _enough(self, scheme: Any, problem: Problem, cublas: float, one_kernel: float) -> float:
        """The seconds below which a scheme is taken; cublas, one_kernel: those of `Contenders`."""
        assert self.rates is not None
        return min(one_kernel, cublas / margin(prediction_error(scheme, self.rates), problem, self.rates))

    def weigh(self, problem: Problem, chosen: Chosen) -> Chosen:
        """The table's choice: other schemes have been weighed. Residues of tiny products need none, and others may be
        made by FP8 units.
        """
        if chosen.engine in (None, "cuda") and self.takes_tiny(problem) and of_residues(problem):
            return Chosen(chosen.scheme, FP64, (*chosen.reasons, f"{_TINY}: the same bits"))
        return self.with_unit(problem, chosen)

    def with_unit(self, problem: Problem, chosen: Chosen) -> Chosen:
        """With the engine that is predicted fastest of those with the same bits, where any will do."""
        if chosen.engine not in (None, "cuda") or self.rates is None:
            return chosen
        found = implementation_of(chosen.scheme).faster_engine(problem, self.rates)
        return chosen if found is None else Chosen(chosen.scheme, found[0], (*chosen.reasons, found[1]))

    def takes_tiny(self, problem: Problem) -> bool:
        """Whether a batch of tiny products is made in one kernel, where no engine is asked for."""
        if not self.one_kernel or not serves_batch(problem, self.device):
            return False
        if of_residues(problem):
            return True
        # Of a GPU that is not known float64 may be slow; of others it may be too slow for float32's products.
        if self.rates is None or not is_conventional(problem):
            return False
        return tiny_seconds(problem, self.rates) <= cublas_seconds(problem, self.rates)

    def contenders(self, problem: Problem, moduli: int, rates: Rates) -> Contenders:
        """What may be taken for native grade, with the GPU's seconds."""
        native, kernel = cublas_seconds(problem, rates) + checked_seconds(problem, rates), math.inf
        # Of a vector and a strided matrix the kernel uses a sixteenth of its tiles.
        wasted = problem.strided_vector and problem.operand_bytes > _LITTLE
        if self.one_kernel and not wasted and serves_directly(problem, self.device):
            kernel = kernel_seconds(problem, rates)
            kernel = kernel if margin(kernel_error(problem, rates), problem, rates) * kernel <= native else math.inf
        if problem.summed:
            # Of these two alone: `gpu_seconds` counts the sum of the others.
            more = sum_seconds(problem, rates, joined=False)
            native, kernel = native + more, kernel + more
        # A product with a vector reads each element once: there is nothing to be gained by parts of it.
        words = of_native_grade(problem) if min(problem.m, problem.n) > 1 else None
        others = [(gpu_seconds(x, problem, rates), x) for x in (words, Residues(moduli)) if x is not None]
        return Contenders(native, kernel, others)


def margin(error: float, problem: Problem, rates: Rates) -> float:
    """How many times as fast as cuBLAS and its check something must be predicted to be to be taken by default.

    Args:
        error: by which share its prediction may be too low.
        problem: what is multiplied. What the check takes is lost for certain with cuBLAS, so that so much of the error
            is no risk.
        rates: the GPU's cost table.
    """
    return 1.0 + max(0.0, error - checked_seconds(problem, rates) / cublas_seconds(problem, rates))


def column(name: str) -> GpuColumn:
    """The column of a GPU of this name, which need not be here.

    >>> column("NVIDIA H200").rates.processors
    132
    """
    rates = rates_of(name)
    processors = rates.processors if rates is not None else _USUAL_PROCESSORS
    sm90, bits = rates is not None and rates.sm90, LONG_SUMS if rates is not None and rates.tuning.fp8 else 0
    return GpuColumn(Device(name, sm90, True, processors, fp8_sum_bits=bits), rates)


def without_fp8(rates: Rates) -> Rates:
    """The table for a GPU, or a call, that has no FP8 units."""
    return replace(rates, tuning=replace(rates.tuning, fp8=0.0)) if rates.tuning.fp8 else rates


def moduli_matching_cublas(result: Format, terms: int) -> int:
    """The fewest moduli whose typical error is no larger than cuBLAS's, on evenly scaled data.

    With N moduli the scale of a vector of norm √K is 2^s, s = floor(L_N - log2(√K)), and the relative error of the
    product about 0.43·2^-s; that of cuBLAS on an H200 is about 2.9e-17·√K in float64, 1.6e-8·√K in float32.
    """
    ours, native = (14, 2.9e-17) if result.precision == 53 else (7, 1.6e-8)
    while ours < MAX_MODULI:
        s = math.floor(operand_bits(ours) - 0.5 * math.log2(terms))
        if 0.43 * 2.0**-s <= native * math.sqrt(terms) or terms < 4:
            break
        ours += 1
    return ours


def moduli_for_rounding(problem: Problem, rates: Rates) -> int:
    """Moduli for correct rounding: products against repair of what normal data leaves uncertified."""
    best = (math.inf, MAX_MODULI)
    for moduli in range(9, MAX_MODULI + 1):
        uncertified = entries_of(problem) * share_of_normal(moduli, problem.result, problem.terms)
        # The first repair of a call costs as often as there is an entry to repair.
        repair = uncertified * problem.terms * rates.repair + min(1.0, uncertified) * rates.tuning.first_repair
        best = min(best, (gpu_seconds(Residues(moduli), problem, rates) + repair, moduli))
    return best[1]


def _moduli_for_spread(
    moduli: int, left: Uncertified, problem: Problem, rates: Rates, sample: Sample
) -> tuple[float, Residues]:
    """(seconds, scheme) where so many moduli leave entries uncertified: a few more may be faster.

    Where a sample shows none any more, a modulus is taken to leave a sixteenth, as samples of lognormal data do.
    """
    found = []
    for count in range(moduli, min(moduli + _MORE, MAX_MODULI) + 1):
        if count > moduli:
            seen = sample(count)
            left = Uncertified(seen.entries or left.entries / 16, seen.exact or left.exact / 16, seen.strips)
        seconds = gpu_seconds(Residues(count), problem, rates) + uncertified_seconds(left, count, problem, rates)
        found.append((seconds, Residues(count)))
    return min(found, key=lambda one: one[0])


def _as_seen(moduli: int, left: Uncertified) -> str:
    """What a sample showed, for a reason."""
    seen = f"; {moduli} moduli would leave {left.entries:.2g} of a sample's entries uncertified"
    seen += f", {left.exact:.2g} to be made exact" if left.exact else ""
    return seen + (f", and rejoin {left.strips:.2g} of all strips" if left.strips else "")


def doubtful(spoiled: str, problem: Problem) -> str:
    """Why cuBLAS is no conventional product, by the setting that spoils it."""
    return f"{spoiled}: cuBLAS may use fewer bits than {problem.result.name}"


def _asked_for(problem: Problem, engine: str, moduli: int) -> Any:
    """The scheme that an engine stands for."""
    if engine in (INT8, FP8):
        return Residues(moduli)
    if engine in (BLAS, FP64):
        return Native("float64" if engine == FP64 and problem.result.precision == 24 else None)
    grade = of_native_grade(problem) or ScaledHalf()
    return {"cuda:fp16": grade, "cuda:tf32": Words.tf32(), "cuda:bf16": Words.bf16()}[engine]
