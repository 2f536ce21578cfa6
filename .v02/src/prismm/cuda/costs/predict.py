"""Seconds that calls on a GPU are predicted to take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prismm.cuda.implementation import implementation_of
from prismm.cuda.native.seconds import cublas_seconds

if TYPE_CHECKING:
    from prismm.core.problem import Problem
    from prismm.cuda.costs.table import Rates


def native_seconds(problem: Problem, rates: Rates, host_factor: float = 1.0) -> float:
    """Seconds that torch's call of the GPU's own product is expected to take on an idle GPU; arguments of `predict`."""
    return rates.torch.seconds(cublas_seconds(problem, rates), host_factor)


def predict(
    scheme: Any, problem: Problem, rates: Rates, engine: str | None = None, host_factor: float = 1.0,
    strassen: bool | None = None,
) -> float:  # fmt: skip
    """Seconds that a call like earlier ones is expected to take while nothing else runs on the device.

    Args:
        scheme: what multiplies.
        problem: what is multiplied.
        rates: the GPU's cost table.
        engine: of a native product, where the scheme does not say.
        slower: how many times as long the host takes as that of the table.
        strassen: whether products of residues are Strassen's; None for where that is predicted faster.
    """
    return rates.call.seconds(gpu_seconds(scheme, problem, rates, engine, strassen), host_factor)


def gpu_seconds(
    scheme: Any, problem: Problem, rates: Rates, engine: str | None = None, strassen: bool | None = None
) -> float:
    """Seconds that the GPU is expected to work on a call, whatever the host takes: as in a graph of many."""
    implementation = implementation_of(scheme)
    seconds = float(implementation.gpu_seconds(problem, rates, engine, strassen))
    return seconds + sum_seconds(problem, rates, joined=implementation.joins_sums) if problem.summed else seconds


def prediction_error(scheme: Any, rates: Rates) -> float:
    """How far the predicted seconds of a scheme that might take cuBLAS's place may be too low, beside cuBLAS's."""
    return float(getattr(rates.errors, implementation_of(scheme).error))


def sum_seconds(problem: Problem, rates: Rates, *, joined: bool) -> float:
    """Seconds that gemm's sum adds to those of a product; joined: whether it is made where digits are joined.

    C is read; what is no join of digits reads the product once more and writes the sum.
    """
    return 4 * rates.check + (1 if joined else 3) * problem.result_bytes / rates.memory
