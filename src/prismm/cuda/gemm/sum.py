"""gemm on a GPU: alpha·AB + beta·C, what a call's launches depend on, and its bound.

By residues the sum is made as on a CPU, from X = AB exactly joined. Otherwise X is a product that meets the "native"
target, in workspace; `cuda.gemm.kernels.combine` proves that the sum, rounded once, meets gemm's. Factors are no
part of the launches, so calls that differ in them alone share a program.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.bounds import (
    ConventionalBound,
    RoundedBound,
    _alive,
    half_ulp,
    product_of_moduli,
    rows_and_columns,
)
from prismm.core.outcome import Epilogue, finite_abs
from prismm.core.request import check_scalars, refuse_vector, swaps
from prismm.cuda.operands import overlap, shared
from prismm.errors import ShapeError
from prismm.formats import FP32, FP64

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from prismm.core.problem import Problem
    from prismm.formats import Format

_LARGEST_ALPHA = 16.0
"""Of sums from values: they are certified where their X is finite, and a larger factor could carry what an X misses
beyond the largest number.
"""

_SHORT = 1 << 17
"""Inner dimensions up to which sums with no larger an alpha are `Sum.bounded`, whatever they are of."""

_UP = 1.0 + 2.0**-40


@dataclass(frozen=True, eq=False)
class Sum:
    """alpha·AB + beta·C of one call; addend: C as a tensor of a type that kernels read, None where beta is 0."""

    alpha: complex
    beta: complex
    addend: torch.Tensor | None

    def key(self, k: int) -> Hashable:
        """All that launches and the choice of a scheme depend on, for an inner dimension."""
        c = self.addend
        # Kernels are compiled and launched for C's strides, so they belong to the key; its values do not.
        layout = None if c is None else (c.dtype, c.shape, c.stride(), c.device)
        moderate = self._moderate
        bounded: Hashable = moderate and k <= _SHORT
        if not bounded:
            bounded = tuple(self.bounded(parts * k, form) for parts in (1, 2) for form in (FP32, FP64))
        return layout, self.alpha == 0, *(z.imag == 0 for z in (self.alpha, self.beta)), moderate, bounded

    @property
    def _moderate(self) -> bool:
        return finite_abs(self.alpha) <= _LARGEST_ALPHA

    @property
    def patterns(self) -> tuple[int, ...]:
        """The parts of alpha and beta, as kernels take them."""
        # Patterns, as a Python float would reach a Triton kernel in float32.
        parts = self.alpha.real, self.alpha.imag, self.beta.real, self.beta.imag
        return struct.unpack("4q", struct.pack("4d", *parts))

    def has_product(self, problem: Problem) -> bool:
        """Whether A and B are read at all."""
        return self.alpha != 0 and problem.k > 0

    def of_values(self, problem: Problem) -> bool:
        """Whether the sum may be made from products that meet the "native" target: each part of a complex one does, and
        a factor with two parts would add both parts' errors. K·u <= 1/2 is what the proof asks for.
        """
        plain = not problem.is_complex or self.alpha.imag == 0
        short = problem.terms * problem.result.unit_roundoff <= 0.5
        return self._moderate and plain and short and self.bounded(problem.terms, problem.result)

    def bounded(self, terms: int, result: Format) -> bool:
        """Whether |alpha| times what a product of so many terms errs by leaves overflow to be seen by its sums, if that
        is made from values: the figures are those of `cuda.gemm.kernels.combine`.
        """
        weight = abs(self.alpha.real) + abs(self.alpha.imag)
        if result.precision == 53:
            return weight * terms <= 2.0**51
        return weight * (terms * 2.0**104 + 2.0**122) <= 2.0**127 + 2.0**126

    def check(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """DTypeError for complex factors of a real result, ShapeError for a C that does not broadcast to it."""
        check_scalars(self.alpha, self.beta, dtype.is_complex)
        self.broadcast(shape, dtype)

    def broadcast(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """C in the result's shape, complex where that is."""
        import torch

        c = self.addend
        if c is None:
            return None
        try:
            c = c.expand(shape)
        except RuntimeError:
            raise ShapeError(
                f"c has shape {tuple(c.shape)}, the product has shape {shape}; c must broadcast to it"
            ) from None
        # Kernels read C's parts as neighbours, also of a real C that a complex sum is made with.
        return c.to(torch.complex128) if dtype.is_complex and not c.is_complex() else c

    def weight(self, is_complex: bool) -> float:
        """By how much the error of a part of AB grows, at most."""
        factors = Epilogue(self.alpha, self.beta, None).factors(0, 2 if is_complex else 1)
        return float(abs(factors[0])) + float(abs(factors[1]))


def transposed(x: Any, how: str, name: str) -> Any:
    """op(x) for a transposition flag, as a view."""
    if not swaps(x, how, name):
        return x
    tensor = shared(x, name[-1])
    refuse_vector(tuple(tensor.shape), how, name)
    return tensor.mT.conj() if how == "C" else tensor.mT


def spoilt(c: torch.Tensor, result: torch.Tensor) -> bool:
    """Whether the result may not be written over C: where they share memory, unless each real number is read and
    written at the same place.
    """
    if not overlap(c, result):
        return False
    same = c.data_ptr() == result.data_ptr() and c.stride() == result.stride() and c.dtype == result.dtype
    # Both of C's parts enter each part of an entry, whose repair would find the other one overwritten.
    return not same or result.is_complex()


def bound(sum_: Sum, result: Format, a: Any, b: Any, c: Any, terms: int, product_bound: Any) -> Any:
    """Of a sum from values.

    Args:
        sum_: alpha, beta and C.
        result: format of the result.
        a, b, c: the operands of one matrix of a batch; c may be None.
        terms: K, or 0 where there is no product.
        own: the bound of the product.
    """
    if terms == 0:
        # Without a product only the rounding of beta·C is left.
        return RoundedBound(result)
    if isinstance(product_bound, ConventionalBound):
        return ConventionalBound(result, a, b, terms, result.unit_roundoff, Epilogue(sum_.alpha, sum_.beta, c))
    return SumBound(result, a, b, terms, product_bound, sum_.weight(True))


@dataclass(frozen=True)
class SumBound:
    """By how much alpha makes it grow times the bound of X, rounding included, and half an ulp."""

    result: Format
    a: Any
    b: Any
    terms: int
    product_bound: Any
    weight: float

    def at(self, c: NDArray[Any], i: Any, j: Any) -> NDArray[np.float64]:
        """Bound of entries (i, j) of the result c, which may be slices."""
        value = c[i, j]
        # X itself is not kept: its bound is asked at 0, and its rounding is added below, by |A||B|.
        zeros = np.broadcast_to(np.zeros((), value.dtype), c.shape)
        before = self.product_bound.at(zeros, i, j)
        with np.errstate(over="ignore", invalid="ignore"):
            # The factor covers the roundings of this product itself, in any order.
            size = product_of_moduli(*rows_and_columns(self.a, self.b, i, j)) * (1.0 + (self.terms + 4) * 2.0**-52)
            size = np.reshape(size, np.shape(value))
            product = before + self.result.unit_roundoff * (size + before)
            found = (self.weight * product + half_ulp(value, self.result)) * _UP + 2.0**-1074
        return np.where(_alive(value), found, 0.0)
