"""The error of every entry of a product, at the speed of a product.

Rows of a and columns of b are scaled by powers of two, so that the largest element of each lies in [1/2, 1): a', b',
and c' = c·2^-(e_i+f_j). One product by residues gives F = RN_24(c' - t - a'b' + ρ): the sum is made exactly from the
joined product and rounded once, to float32, so the leading digits that c and ab share cost nothing. Then

    |(c' - a'b') - (F + t)| <= B + τ + 2^-52·|F + t|,

B the scheme's bound and half an ulp of float32, τ = (2K+8)·2^-1072 what scaling may have lost to underflow: at most
2^-1073 of an element of size 1 or less, and of c'. t = 2^-2h comes from one further term 2^-h·2^-h of the inner
dimension, which the scheme represents exactly: without it c' - a'b' could be 0, and a sum that cancels completely takes
exact arithmetic.

Exact entries are found by granularity: a row's elements are multiples of 2^p_i, a column's of 2^q_j, c of its own ulp.
So c - ab is a multiple of the smaller of 2^(p_i+q_j) and an ulp of c, and it is 0 where it is below both.
"""

from __future__ import annotations

import functools
import math
import threading
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm import dispatch
from prismm.core import threads
from prismm.core.bounds import ResidueBound
from prismm.core.moduli import MAX_MODULI, operand_bits
from prismm.core.outcome import for_kernels, real_parts
from prismm.formats import Format
from prismm.schemes.residues import Residues

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.checking.operands import Operands, Scaled
    from prismm.core.report import Report

UP, DOWN = 1.0 + 2.0**-50, 1.0 - 2.0**-50
_BLOCK = 1 << 15
"""Entries that are judged at a time: arrays of a megabyte stay in a cache."""

_LARGEST = 2.0**60
"""Of |c'| in the sum: beyond it c has nothing of the product, which is at most K."""

_MARGIN = 12.0
"""Bits beyond the result's precision and log2 K: of a correctly rounded c at most one entry in 2^12 stays uncertain."""

TIGHT = 1 / 8
"""How far the bound of an error may be beyond it, as a share of it; errors below an ulp's 64th apart."""


def _factors(bound: ResidueBound) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Matrices (m, 2) and (2, n) whose product bounds every entry before rounding, by measured 2-norms alone; the
    product's own roundings, and underflow, come on top. Of scales that leave both within float64's range.
    """
    r, q = bound.rows.terms, bound.columns.terms
    left = np.stack([r[1], r[2] + r[1]], axis=1) * (bound.weight * (1.0 + 2.0**-40))
    right = np.stack([q[2], q[1]])
    return np.ldexp(left, -bound.rows.shift[:, None]), np.ldexp(right, -bound.columns.shift)


@dataclass(frozen=True)
class Errors:
    """Upper bounds of all entries, in arrays of one shape that are filled in, and what is not certain about them.

    Attributes:
        absolute: of |c - exact|.
        componentwise: the same over |a||b|.
        relative: the same over |exact|.
        ulps: the same in ulps of RN(exact).
        correct: whether c is RN(exact).
        special: whether RN(exact) is no finite number.
        wrong: whether c is wrongly Inf or NaN, or wrongly finite.
        uncertain: which entries `recompute` has to decide.
    """

    absolute: NDArray[np.float64]
    componentwise: NDArray[np.float64]
    relative: NDArray[np.float64]
    ulps: NDArray[np.float64]
    correct: NDArray[np.bool_]
    special: NDArray[np.bool_]
    wrong: NDArray[np.bool_]
    uncertain: NDArray[np.bool_]

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> Errors:
        """Arrays that say that nothing is wrong."""
        absolute, componentwise, relative, ulps = (np.zeros(shape) for _ in range(4))
        special, wrong, uncertain = (np.zeros(shape, np.bool_) for _ in range(3))
        return cls(absolute, componentwise, relative, ulps, np.ones(shape, np.bool_), special, wrong, uncertain)

    def piece(self, p: int) -> Errors:
        """Views of one product of a batch."""
        return Errors(*(getattr(self, item.name)[p] for item in fields(self)))


@dataclass(frozen=True)
class Residual:
    """What is known of one product of matrices beside its errors.

    Attributes:
        report: of the product that the bounds come from.
        left: a'.
        right: b'.
        sizes: lower bounds of |a'||b'|, (m, n).
    """

    report: Report
    left: Scaled
    right: Scaled
    sizes: NDArray[np.float64]


def moduli_for(precision: int, terms: int) -> int:
    """Moduli that tell the error of a c of so many bits, for sums of so many terms.

    >>> moduli_for(53, 2048), moduli_for(24, 2048)
    (20, 13)
    """
    wanted = precision + _MARGIN + math.log2(max(terms, 1))
    moduli = 4
    while moduli < MAX_MODULI and operand_bits(moduli) < wanted:
        moduli += 1
    return moduli


def measure(
    operands: Operands, c: NDArray[Any], result: Format, found: Errors, engine: str | None, workers: int
) -> Residual:
    """Fill in the errors of c, (m, n) entries of a product of matrices.

    Entries of rows and columns that hold Inf or NaN, and those of c that are no finite numbers, are uncertain.
    """
    terms = operands.terms
    moduli = moduli_for(result.precision, terms)
    # The scheme's scales leave a row of norm up to √(terms+1) at least so many bits below 1.
    h = min(50, int(operand_bits(moduli) - 0.5 * math.log2(terms + 2)) - 3)
    left, right = operands.scaled(h)
    scaled_c = _scaled_result(c, left, right, workers)
    dtype = "complex64" if operands.is_complex else "float32"
    keywords = None, Residues(moduli), False, dtype, engine, workers, None
    product, report = dispatch.gemm(
        left.data, right.data, operands.device(scaled_c), (-1.0, 1.0), ("N", "N"), keywords, None, True
    )
    residual = operands.host(product)
    sizes = operands.sizes(left, right)
    sizes *= 1.0 - (terms + 8) * 2.0**-24 if terms < 1 << 20 else 0.5
    sizes -= lost_by_scaling(terms)
    np.maximum(sizes, 0.0, out=sizes)
    known = Residual(report, left, right, sizes)
    judge = _Judge(operands, c, residual, result, 2.0 ** (-2 * h), known, found)
    threads.spread(judge.rows, _row_blocks(c.shape), workers)
    return known


def lost_by_scaling(terms: int) -> float:
    """τ: what underflow may take from c' - a'b' or from |a'||b'|."""
    return (2 * terms + 8) * 2.0**-1072


def _row_blocks(shape: tuple[int, ...]) -> list[slice]:
    step = max(1, _BLOCK // max(1, shape[1]))
    return [slice(i, min(shape[0], i + step)) for i in range(0, shape[0], step)]


def _scaled_result(c: NDArray[Any], left: Scaled, right: Scaled, workers: int) -> NDArray[Any]:
    """c' with 0 for what is not finite, or beyond all bounds."""
    scaled = np.zeros(c.shape, np.complex128 if np.iscomplexobj(c) else np.float64)

    def rows(i: slice) -> None:
        shift = -(left.exponents[i, None] + right.exponents[None, :])
        for source, target in zip(real_parts(c[i]), real_parts(scaled[i]), strict=True):
            with np.errstate(all="ignore"):
                part = np.ldexp(source.astype(np.float64), shift)
                np.copyto(target, part, where=np.abs(part) <= _LARGEST)

    threads.spread(rows, _row_blocks(c.shape), workers)
    return scaled


class _Judge:
    """Turns a residual into bounds, some rows at a time."""

    def __init__(
        self, operands: Operands, c: NDArray[Any], residual: NDArray[Any], result: Format, offset: float,
        known: Residual, found: Errors,
    ) -> None:  # fmt: skip
        self.operands, self.c, self.residual, self.offset, self.found = operands, c, residual, offset, found
        self.left, self.right, self.known = known.left, known.right, known
        self.columns = known.right.finite.view(np.uint8)
        top = result.max * (1.0 - 2.0**-10)
        self.numbers = offset, result.precision, result.subnormal_exponent, top, _LARGEST, TIGHT
        piece = known.report.pieces[0]
        self.bound, self.value = piece.outcome.bound, piece.result
        self.factors = _factors(self.bound) if isinstance(self.bound, ResidueBound) else None
        self.lock = threading.Lock()

    @functools.cached_property
    def _lowest(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Asked for only where some error may be 0."""
        return self.operands.lowest()

    def rows(self, i: slice) -> None:
        """Fill in these rows."""
        from prismm.cpu.kernels.errors import combine_parts, judge

        shape, found, parts = self.c[i].shape, self.found, real_parts(self.c[i])
        rows = self.left.exponents[i], self.right.exponents, self.left.finite[i].view(np.uint8), self.columns
        bound = self._bound(i)
        error, low, ulps = (np.empty((len(parts), *shape)) for _ in range(3))
        correct, uncertain = (np.empty((len(parts), *shape), np.uint8) for _ in range(2))
        none = np.empty(0, np.int64)
        for part, (x, f) in enumerate(zip(parts, real_parts(self.residual[i]), strict=True)):
            numbers = for_kernels(x), for_kernels(f)
            out = error[part], low[part], ulps[part], correct[part], uncertain[part]
            if judge(*numbers, bound, *rows, none, none, *self.numbers, *out):
                with self.lock:
                    p, q = self._lowest
                judge(*numbers, bound, *rows, p[i], q, *self.numbers, *out)
        combine_parts(
            error, low, ulps, correct, uncertain, bound, self.known.sizes[i], *rows[:2], TIGHT, found.absolute[i],
            found.componentwise[i], found.relative[i], found.ulps[i], found.correct[i], found.uncertain[i],
        )  # fmt: skip

    def _bound(self, i: slice) -> NDArray[np.float64]:
        """Of c' - a'b' before its rounding to float32."""
        lost = lost_by_scaling(self.operands.terms)
        if self.factors is None:
            bound: NDArray[np.float64] = self.bound.at(self.value, i, slice(None))
        else:
            bound = self.factors[0][i] @ self.factors[1]
        bound *= UP
        bound += lost
        return bound


def ulp_exponent(x: NDArray[np.float64], result: Format) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Significands in [1/2, 1), and exponents of an ulp in a format; of 0 the least one."""
    fraction, exponent = np.frexp(x)
    lowest = result.subnormal_exponent
    return np.abs(fraction), np.where(x == 0.0, lowest, np.maximum(exponent - result.precision, lowest))
