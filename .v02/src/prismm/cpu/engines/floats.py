"""Engines that multiply matrices of low-precision floating-point values, and say how they add.

`BlasEngine` is what a CPU has: products of short significands are exact in float32 or float64, sums are rounded to
nearest in an order that the BLAS chooses. Other arithmetics are simulated (`cpu.engines.simulated`), never replaced by
better ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from prismm.core import engine_names as names
from prismm.errors import ArgumentError, EngineError
from prismm.formats import FP16, FP32, FP64, Format

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Accumulation:
    """|computed - exact| <= gamma·(|left||right|) + floor, entry by entry, for values of the input format."""

    gamma: float
    floor: float


@runtime_checkable
class FloatEngine(Protocol):
    """The protocol of engines that serve floating-point parts.

    It must hold that `multiply` is within `accumulation` of the exact product, for all values of the input format whose
    products and sums do not overflow.
    """

    @property
    def name(self) -> str:
        """As `engine=` and reports have it."""

    def refuse(self, inputs: Format, accumulate: Format) -> str | None:
        """Why it cannot multiply values of `inputs` with sums in `accumulate`; None where it can."""

    def accumulation(self, k: int, inputs: Format, accumulate: Format, largest: float = math.inf) -> Accumulation:
        """The error of a product of inner dimension k, of values up to `largest` (at most the largest of `inputs`)."""

    def multiply(
        self, left: NDArray[Any], right: NDArray[Any], inputs: Format, accumulate: Format, workers: int
    ) -> NDArray[Any]:
        """left (m, k) @ right (k, n), both of values of `inputs` in float32 or float64 arrays.

        Returns a new array of values of `accumulate`: float32 where those fit in it, else float64.
        """


@dataclass(frozen=True)
class BlasEngine:
    """SGEMM and DGEMM of the words themselves: exact products, sums rounded to nearest in float32 or float64."""

    name: str = "cpu:blas"

    def refuse(self, inputs: Format, accumulate: Format) -> str | None:
        """See `FloatEngine.refuse`."""
        if accumulate not in (FP32, FP64):
            return f"the CPU adds in fp32 or fp64, not in {accumulate.name or accumulate}"
        # Products have to be exact: the bound k·u speaks of the roundings of sums alone.
        if 2 * inputs.precision > accumulate.precision:
            return f"products of {inputs.precision}-bit significands are not exact in {accumulate.name}"
        return None

    def accumulation(self, k: int, inputs: Format, accumulate: Format, largest: float = math.inf) -> Accumulation:
        """k·u for any order of summation of exact products (Jeannerod and Rump 2013); each product may lose η/2."""
        return Accumulation(k * accumulate.unit_roundoff, k * accumulate.smallest_subnormal)

    def multiply(
        self, left: NDArray[Any], right: NDArray[Any], inputs: Format, accumulate: Format, workers: int
    ) -> NDArray[Any]:
        """See `FloatEngine.multiply`."""
        import numpy as np

        reason = self.refuse(inputs, accumulate)
        if reason is not None:
            raise EngineError(f"engine 'cpu:blas' cannot be used here: {reason}; pass engine='simulated:…'")
        dtype = np.float32 if accumulate == FP32 else np.float64
        result: NDArray[Any] = np.matmul(left.astype(dtype, copy=False), right.astype(dtype, copy=False))
        return result


BLAS = BlasEngine()


def engine_for(name: str | None = None) -> FloatEngine:
    """The engine of this name: BLAS for None, "cpu" and "cpu:blas", a simulated one for "simulated:…".

    Raises:
        ArgumentError: for an unknown name, with those there are.

    >>> engine_for().name, engine_for("simulated:volta").name
    ('cpu:blas', 'simulated:volta')
    """
    if name in (None, "cpu", BLAS.name):
        return BLAS
    from prismm.cpu.engines import simulated

    if name is None or not name.startswith("simulated:"):
        raise names.not_here(str(name)) or ArgumentError(
            f"engine {name!r} multiplies integers alone; pass one of {', '.join(map(repr, float_engines()))}"
        )
    return simulated.engine(name)


def blas_for(name: str | None, scheme: str) -> BlasEngine:
    """BLAS, for a scheme that multiplies by it alone.

    Raises:
        ArgumentError: for any other engine.
    """
    if name not in (None, "cpu", BLAS.name):
        assert name is not None
        names.check(name)
        raise names.not_here(name) or ArgumentError(
            f"engine {name!r} does not serve {scheme}, which multiplies by BLAS alone; pass engine='cpu'"
        )
    return BLAS


def float_engines() -> list[str]:
    """The names that `engine_for` knows."""
    from prismm.cpu.engines import simulated

    return ["cpu", BLAS.name, *simulated.names()]


def accumulator_of(engine: FloatEngine, inputs: Format) -> Format:
    """The format in which the engine adds products of `inputs`: FP32 where it can, else FP16, else FP64.

    Raises:
        EngineError: where it can do none of them.

    >>> accumulator_of(engine_for("simulated:volta-fp16"), FP16).name
    'fp16'
    """
    for accumulate in (FP32, FP16, FP64):
        if engine.refuse(inputs, accumulate) is None:
            return accumulate
    raise EngineError(
        f"engine {engine.name!r} cannot be used here: {engine.refuse(inputs, FP32)}; "
        f"pass another of {', '.join(map(repr, float_engines()))}"
    )
