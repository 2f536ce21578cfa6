"""Problem: shapes, types and target of a product, on any device."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prismm.core.accuracy import Target
from prismm.formats import Format


@dataclass(frozen=True)
class Problem:
    """What is to be multiplied, without its data: all that a plan may depend on, hashable and comparable.

    Attributes:
        m: rows of a product.
        n: columns of a product.
        k: inner dimension; of integers beyond 2^53 with the terms that stand for each element.
        batch: shape of a batch of products, or ().
        result: format of the result, or of its real and imaginary parts.
        target: accuracy that every entry must meet; None for a scheme's own value.
        reproducible: whether the bits may depend on nothing but operands, types, k and target.
        one_type: whether both operands and the result have one element type.
        is_complex: whether the result is complex.
        summed: whether gemm adds C, or multiplies by alpha.
        sum_of_values: whether gemm's sum may be made from a rounded product that meets the "native" target.
        reads_operands: whether A and B are read at all (alpha is not 0).
        terms_per_element: terms of `k` that stand for one element of the caller's inner dimension.
        strided_vector: whether an operand is a vector and the other one's inner dimension is not contiguous.
        sum_bounded: whether gemm's sum of rounded products shows where it overflows.
        native: format in which the native product runs; None for the result's.
        fits_float32: whether float32 holds every value of both operands' types.
        symmetric: "T" or "C" where B is the transpose or conjugate transpose of A, and entries above the diagonal are
            copies of those below it; None for any other product.
    """

    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    result: Format
    target: Target | None
    reproducible: bool
    one_type: bool
    is_complex: bool = False
    summed: bool = False
    sum_of_values: bool = True
    reads_operands: bool = True
    terms_per_element: int = 1
    strided_vector: bool = False
    sum_bounded: bool = True
    native: Format | None = None
    fits_float32: bool = False
    symmetric: str | None = None

    @property
    def count(self) -> int:
        """Products of the batch."""
        return math.prod(self.batch)

    @property
    def parts(self) -> int:
        """Real numbers that make an element: 2 if complex."""
        return 2 if self.is_complex else 1

    @property
    def terms(self) -> int:
        """Real terms of the sum that makes an entry, or its real part."""
        return max(1, self.k) * self.parts

    @property
    def target_terms(self) -> int:
        """K of the accuracy targets: terms of the caller's own elements."""
        return self.terms // self.terms_per_element

    @property
    def goal(self) -> str:
        """The kind of the target; "fast" where there is none."""
        return self.target.kind if self.target is not None else "fast"

    @property
    def rounded(self) -> bool:
        """Whether every entry must be correctly rounded."""
        return self.goal == "correctly-rounded"

    @property
    def big_integers(self) -> bool:
        """Whether several terms stand for an element: integers beyond 2^53, or long doubles."""
        return self.terms_per_element > 1

    @property
    def multiply_adds(self) -> int:
        """Of elements, of one product of the batch."""
        return self.m * self.n * max(self.k, 1)

    @property
    def native_roundoff(self) -> float:
        """Unit roundoff of the native product."""
        return (self.native or self.result).unit_roundoff

    @property
    def number_bytes(self) -> int:
        """Bytes of an element of the result's type."""
        return (8 if self.result.precision == 53 else 4) * self.parts

    @property
    def operand_bytes(self) -> int:
        """Bytes of both operands, in the result's type."""
        return self.number_bytes * self.count * self.k * (self.m + self.n)

    @property
    def result_bytes(self) -> int:
        """Bytes of the result."""
        return self.number_bytes * self.count * self.m * self.n

    @property
    def dtype(self) -> str:
        """Name of the result's element type."""
        if self.is_complex:
            return "complex128" if self.result.precision == 53 else "complex64"
        return "float64" if self.result.precision == 53 else "float32"
