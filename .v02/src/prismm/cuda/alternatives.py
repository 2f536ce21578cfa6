"""What else could make a product on a GPU, and why it was not taken: for `prismm.explain`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from prismm.core.plan import Alternative
from prismm.cuda.choice import GpuColumn, doubtful, margin, moduli_matching_cublas
from prismm.cuda.costs.predict import gpu_seconds, predict, prediction_error
from prismm.cuda.costs.table import rates_of, usual_rates
from prismm.cuda.device import BLAS, FP8, FP64, INT8, Device, spoiled_by
from prismm.cuda.implementation import implementation_of
from prismm.cuda.multiword.implementation import of_native_grade
from prismm.cuda.native.seconds import kernel_error
from prismm.cuda.native.tiny import tiny_seconds
from prismm.errors import PrismmError
from prismm.planning.auto import choose
from prismm.schemes.multiword import Words
from prismm.schemes.native import Native
from prismm.schemes.residues import Residues
from prismm.schemes.scaled_half import ScaledHalf

if TYPE_CHECKING:
    from prismm.core.problem import Problem


def alternatives(
    problem: Problem, scheme: Any, engine: str, tiny: bool, device: Device, host_factor: float
) -> tuple[Alternative, ...]:
    """What was not taken, fastest first; nothing for a result without entries.

    Args:
        problem: what is multiplied.
        scheme, engine, tiny: what was taken; whether in the kernel of tiny products.
        device: the GPU.
        slower: how many times as long the host takes as that of the cost table.
    """
    if problem.result_bytes == 0:
        return ()
    column = GpuColumn(device, rates_of(device.name), one_kernel=False)
    known = column.rates
    rates = known or usual_rates()
    taken = tiny_seconds(problem, rates) if tiny else gpu_seconds(scheme, problem, rates, engine)
    found = []
    for other, asked in _others(problem, column):
        try:
            unit = implementation_of(other).check(_without_target(problem), asked, device)
        except PrismmError:  # none of a GPU's, or not for these types
            continue
        if (other, unit) == (scheme, engine) and not tiny:
            continue
        seconds = gpu_seconds(other, problem, rates, unit)
        error = kernel_error(problem, rates) if unit == FP64 else prediction_error(other, rates)
        least = margin(error, problem, rates) if engine == BLAS else 1.0
        reason = _why_not(problem, other, unit) or _slower(seconds, taken, least)
        # By another GPU's rates "predicted slower" would be said of a GPU that nobody has measured.
        if known is None and reason is not None and "predicted" in reason:
            reason = f"no rates of {device.name} are known"
        reason = reason or "another scheme was asked for"
        found.append(Alternative(str(other), unit, predict(other, problem, rates, unit, host_factor), reason))
    return tuple(sorted(found, key=lambda one: one.predicted_seconds))


def _others(problem: Problem, column: GpuColumn) -> Iterator[tuple[Any, str | None]]:
    """Schemes that this problem may have, with the engine where they do not say which."""
    yield Native(), BLAS
    yield Native("float64") if problem.result.precision == 24 else Native(), FP64
    residues = _residues(problem, column)
    yield residues, INT8
    if column.rates is not None and column.rates.tuning.fp8:
        yield residues, FP8
    if problem.result.precision == 24:
        yield of_native_grade(problem) or ScaledHalf(), None
        yield Words.tf32(3), None
        yield Words.bf16(6), None


def _residues(problem: Problem, column: GpuColumn) -> Any:
    """With as many moduli as the table has for the target, or with those that match cuBLAS."""
    if problem.target is None or (problem.goal in ("native", "fast") and not problem.reproducible):
        return Residues(moduli_matching_cublas(problem.result, problem.terms))
    return choose(problem, column).scheme


def _without_target(problem: Problem) -> Problem:
    """The same for a scheme's own value: a target that it misses is a reason, no error."""
    return replace(problem, target=None, reproducible=False)


def _why_not(problem: Problem, scheme: Any, engine: str) -> str | None:
    """Why a scheme does not do for this problem, whatever it takes."""
    if problem.reproducible and not scheme.reproducible and not problem.rounded:
        return "not reproducible"
    if implementation_of(scheme).joins_sums:
        return None
    if problem.goal not in ("native", "fast"):
        return "certifies accuracy 'native' and 'fast' alone"
    if problem.summed and not problem.sum_of_values:
        return "its product is rounded before C is added"
    if engine == BLAS and (spoiled := spoiled_by(problem)) is not None:
        return doubtful(spoiled, problem)
    return None


def _slower(seconds: float, taken: float, least: float) -> str | None:
    """Whether its predicted seconds speak against it; both on the GPU. least: how many times as fast it had to be."""
    if seconds >= taken:
        return "predicted slower"
    # cuBLAS is left only for what is surely faster.
    if seconds * least >= taken:
        return f"predicted less than {100 * (least - 1.0):.0f} % faster, which predictions may be off by"
    return None
