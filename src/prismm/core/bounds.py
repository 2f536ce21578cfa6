"""What a report can say about each entry: guaranteed bounds, worked out when asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.outcome import Epilogue, real_parts
from prismm.formats import Format

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.core.scales import Blocks, Scales

_UP = 1.0 + 2.0**-40


def half_ulp(c: NDArray[Any], result: Format) -> NDArray[np.float64]:
    """Half the distance to the next value outwards, of the larger real part; 0 for Inf and NaN."""
    sizes = np.zeros(c.shape)
    for part in real_parts(c):
        _, e = np.frexp(np.where(np.isfinite(part), part, 0.0).astype(np.float64))
        e = np.where(part == 0.0, result.subnormal_exponent, e)
        # Half of float64's η is no float64: η itself bounds it.
        half = np.ldexp(1.0, np.maximum(np.maximum(e - result.precision, result.subnormal_exponent) - 1, -1074))
        sizes = np.maximum(sizes, np.where(np.isfinite(part), half, 0.0))
    return sizes


def _weighted(factor: complex, size: NDArray[np.float64]) -> NDArray[np.float64]:
    """|factor|·size, and 0 where size is, though the modulus be beyond the largest float."""
    return np.where(size == 0.0, 0.0, np.abs(factor) * size)


def rows_and_columns(a: Any, b: Any, i: Any, j: Any) -> tuple[Any, Any]:
    """The rows of a and the columns of b that entries (i, j) of their product are made of, as matrices.

    i and j are each an index or a slice, as everywhere in bounds: `at(result, i, j)`.
    """
    return a[i] if isinstance(i, slice) else a[[i]], b[:, j] if isinstance(j, slice) else b[:, [j]]


@dataclass(frozen=True)
class RoundedBound:
    """Correctly rounded entries: half an ulp.

    Attributes:
        result: format of the result.
    """

    result: Format

    def at(self, c: NDArray[Any], i: Any, j: Any) -> NDArray[np.float64]:
        """Bound of entries (i, j) of the result c, which may be slices."""
        return half_ulp(c[i, j], self.result)


@dataclass(frozen=True)
class ResidueBound:
    """The scheme's bound before rounding, plus half an ulp; holds for repaired entries as well.

    Attributes:
        result: format of the result.
        rows: scales of A's rows.
        columns: scales of B's columns.
        terms: K, of the real sum behind each real part of an entry.
        weight: by how much an epilogue's alpha makes the product's error grow, at most.
        blocks: which columns each row meets, where products of a batch are one; else None.
    """

    result: Format
    rows: Scales
    columns: Scales
    terms: int
    weight: float = 1.0
    blocks: Blocks | None = None

    def at(self, c: NDArray[Any], i: Any, j: Any) -> NDArray[np.float64]:
        """Bound of entries (i, j) of the result c, which may be slices; of blocks all entries of some columns."""
        met = j if self.blocks is None else self.blocks.columns(j)
        r, q = self.rows.terms[:, i], self.columns.terms[:, met]
        s, t = self.rows.shift[i], self.columns.shift[met]
        if self.blocks is not None:
            r, s = r[:, :, None], s[:, None]
        elif np.ndim(s) or np.ndim(t):
            r, s = np.atleast_2d(r.reshape(4, -1))[:, :, None], np.reshape(s, (-1, 1))
            q, t = np.atleast_2d(q.reshape(4, -1))[:, None, :], np.reshape(t, (1, -1))
        with np.errstate(over="ignore", invalid="ignore"):
            first = r[3] * q[0] + q[3] * r[0] + r[3] * q[3] * (self.terms / 4.0)
            second = r[1] * q[2] + (r[2] + r[1]) * q[1]
            fraction, exponent = math.frexp(self.weight)
            units = np.minimum(first, second) * _UP * fraction
            bound = np.ldexp(units, exponent - (s + t))
            # η more makes up for what ldexp rounds away where the bound is subnormal, or underflows.
            bound = np.where(units > 0.0, bound * _UP + 2.0**-1074, bound)
        value = c[i, j]
        bound = np.reshape(bound, np.shape(value))
        return np.where(_alive(value), bound + half_ulp(value, self.result) * _UP, 0.0)

    def exponent(self) -> float:
        """log2 of a number that no entry's bound exceeds before rounding: first <= 3·u_i·v_j with u = ½‖A'‖₁ + terms
        where the row is inexact, ½‖A'‖₁ elsewhere.
        """
        total = math.log2(3.0 * max(abs(self.weight), 2.0**-1000))
        for scales in (self.rows, self.columns):
            size = scales.terms[0] + scales.terms[3] * self.terms
            with np.errstate(divide="ignore"):
                total += float(np.max(np.log2(size) - scales.shift, initial=-math.inf))
        return total


@dataclass(frozen=True)
class ConventionalBound:
    """K·u·(|a||b|) + K·η from the operands themselves; an epilogue adds its terms.

    Attributes:
        result: format of the result.
        a: (m, k), which must not have changed since.
        b: (k, n), likewise.
        terms: K, of the real sum behind each real part of an entry.
        unit_roundoff: u of the sums.
        epilogue: alpha, beta and C, or None.
    """

    result: Format
    a: NDArray[Any]
    b: NDArray[Any]
    terms: int
    unit_roundoff: float
    epilogue: Epilogue | None = None

    def at(self, c: NDArray[Any], i: Any, j: Any) -> NDArray[np.float64]:
        """Bound of entries (i, j) of the result c, which may be slices."""
        with np.errstate(over="ignore", invalid="ignore"):
            # The product of moduli is itself rounded: its own bound, (terms + 2) roundings, goes on top.
            size = product_of_moduli(*rows_and_columns(self.a, self.b, i, j)) * (1.0 + (self.terms + 4) * 2.0**-52)
            value = c[i, j]
            size = np.reshape(size, np.shape(value))
            terms, enlarged = self.terms, 1.0
            if self.epilogue is not None:
                size = _weighted(self.epilogue.alpha, size) * _UP
                terms += 3
                if self.epilogue.c is not None:
                    size = size + _weighted(self.epilogue.beta, _abs(self.epilogue.c[i, j])) * _UP
                # alpha enlarges what underflowed in AB.
                enlarged = max(1.0, float(np.abs(self.epilogue.alpha)))
            lost = terms * self.result.smallest_subnormal * enlarged
            bound = (terms * self.unit_roundoff * size + lost) * _UP
            if self.unit_roundoff < self.result.unit_roundoff:
                bound = bound + half_ulp(value, self.result) * _UP
            return np.where(_alive(value), bound, 0.0)


def _alive(c: NDArray[Any]) -> NDArray[np.bool_]:
    """Where some real part is finite, so that there is an error to bound."""
    alive: NDArray[np.bool_] = np.isfinite(c.real) | np.isfinite(c.imag) if np.iscomplexobj(c) else np.isfinite(c)
    return alive


def product_of_moduli(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """|a||b| of moduli that are rounded up, as for `_abs`; Inf where that is beyond float64."""
    # The modulus of two finite parts may be beyond float64, and Inf times zero is NaN. That of their halves is not.
    sizes = [_half(x) if np.iscomplexobj(x) else _abs(x) for x in (a, b)]
    found: NDArray[np.float64] = (sizes[0] @ sizes[1]) * math.prod(2.0 if np.iscomplexobj(x) else 1.0 for x in (a, b))
    return found


def _half(x: NDArray[Any]) -> NDArray[np.float64]:
    """|x|/2 of complex x, as `_abs` rounds |x| up."""
    parts = [0.5 * part for part in _finite_parts(x)]
    # Half of a subnormal number may lose 2^-1075.
    return np.where(x == 0.0, 0.0, np.hypot(*parts) * (1.0 + 2.0**-50) + 2.0**-1074)


def _finite_parts(x: NDArray[Any]) -> list[NDArray[np.float64]]:
    return [np.where(np.isfinite(part), part, 0).astype(np.float64) for part in real_parts(np.asarray(x))]


def _abs(x: NDArray[Any]) -> NDArray[np.float64]:
    """|x|, rounded up; of finite parts alone: a real part of a result that meets Inf or NaN has no error to bound."""
    parts = _finite_parts(x)
    return np.abs(parts[0]) if len(parts) == 1 else np.hypot(*parts) * (1.0 + 2.0**-50)
