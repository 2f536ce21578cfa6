"""Covariance and correlation matrices, centred exactly and rounded once.

With m observations x and column sums s, m(m-1)·cov = m·xᵀx̄ - s·sᴴ =: N. N is one product of exact parts: m·x is a sum
of two float64 matrices, as x is one of two numbers of 26 bits, and s is a sum of parts until nothing remains.
N₁ = RN(N) and N₂ = RN(N - N₁) leave |N - N₁ - N₂| <= u·|N₂|, and quotients are made of both; `quotients.py` rounds
them, and asks for the integer N where that is not enough. Of complex data all this holds for real and for imaginary
parts, which are rounded apart. N is Hermitian: its real part is symmetric, the imaginary part antisymmetric.

Columns are multiplied by powers of two before, so that their largest entries are near 2^460: no sum overflows, as
N < 2·2^52·2^920, and N below 2^-800 alone may underflow, which is left to integers, as is a column whose numbers this
would round.

The quotient q = fl(N₁/D) by D = m(m - ddof) has the rest r = N₁ - q·D, a float64 number, so N/D is
q + (r + N₂)/D but for 2^-104 of it. A correlation is N_ij over the product of two roots: of a root s_i = fl(√N₁) the
rest is d_i = (N₁ - s_i² + N₂)/(2·s_i), which leaves 2^-104 of it; with s_i·s_j = p + e exactly the denominator is
p + (e + s_i·d_j + s_j·d_i), and its quotient is made in the same way, from terms of which each has an error of a few
2^-105.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.error_free import split, two_product, two_sum
from prismm.errors import ArgumentError, ShapeError
from prismm.formats import format_of
from prismm.linalg.expansions import Products, expand
from prismm.linalg.operands import Operand, common, operand
from prismm.linalg.quotients import rounded_cosine, rounded_once, rounded_ratio

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MOST = 2**26
ALL_PARTS = 48
"""Parts of 53 bits that hold any sum of float64 numbers, whose bits are 2^-1074 … 2^1024 and as many more as log2 m."""

TOP = 460
"""Columns have entries below 2^TOP, and one of at least half of that."""

TINY = 2.0**-800
"""Below this N may be so near to the end of the range that N₂ is not what it is elsewhere."""

FAINT = 2.0**100
"""Below this N, the root of N₁·2^(-2·TOP), or the rest of that root, may underflow."""


def covariance(x: Any, /, *, ddof: int = 1) -> Any:
    """The covariance matrix of the columns of x, correctly rounded: every entry is the number nearest to the exact one.

    Args:
        x: (..., m, n), real or complex: m observations of n variables. NumPy array or torch tensor.
        ddof: the divisor is m - ddof; an integer.

    Returns:
        (..., n, n), symmetric in every bit; float32 for float32. ±Inf where the exact covariance overflows. Of complex
        x the entry i, j is that of x_i and the conjugate of x_j, as in `numpy.cov`: each part is the number nearest to
        the exact one. The matrix is Hermitian in every bit, its diagonal real; complex64 for complex64.

    Raises:
        ShapeError: if x is not a matrix, or has ``ddof`` rows or fewer. DTypeError: if its entries are not numbers.
        ArgumentError: for NaN, Inf, a ``ddof`` that is negative or no integer, integers beyond 2^53 and more than 2^26
            rows. OperandError: as `prismm.matmul`.

    >>> import numpy as np, prismm.linalg
    >>> x = np.array([[1e9 + 1.0, 0.0], [1e9 + 2.0, 1.0], [1e9 + 3.0, 2.0]])
    >>> prismm.linalg.covariance(x)
    array([[1., 1.],
           [1., 1.]])
    >>> prismm.linalg.covariance(np.array([[1.0, 1e9 + 1.0j], [2.0, 1e9 + 2.0j], [3.0, 1e9 + 3.0j]]))
    array([[1.+0.j, 0.-1.j],
           [0.+1.j, 1.+0.j]])
    """
    source, dtype = _checked(x, ddof)
    return _of_each(source, dtype, lambda data: _covariance(_scatter(data, dtype, source.device), operator.index(ddof)))


def _covariance(scatter: _Scatter, less: int) -> NDArray[Any]:
    """Of one matrix."""
    divisor, format = scatter.m * (scatter.m - less), format_of(scatter.real)
    exponents = -(scatter.scale[:, None] + scatter.scale)

    def part(n: _Part) -> NDArray[Any]:
        def exact(i: int, j: int) -> float:
            number, exponent = n.exact(i, j)
            return rounded_ratio(number, divisor, exponent, format)

        high, low = _quotient(n.high, n.low, np.array(float(divisor)), np.array(0.0))
        return rounded_once(high, low, exponents, scatter.real, n.doubtful, exact, n.mirror)

    with np.errstate(all="ignore"):
        return _joined([part(n) for n in scatter.parts], scatter.dtype)


def _joined(parts: list[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The matrix of these real and, if there are any, imaginary parts."""
    found: NDArray[Any] = np.zeros(parts[0].shape, dtype)
    found.real = parts[0]
    if len(parts) > 1:
        found.imag = parts[1]
        np.fill_diagonal(found.imag, 0.0)
    return found


def correlation(x: Any, /) -> Any:
    """The correlation matrix of the columns of x, correctly rounded, so with ones on the diagonal and nothing beyond
    ±1.

    A column without spread gives NaN, as in NumPy, but for no warning. Of complex x both parts are NaN, on the diagonal
    the real one alone, which else is 1; each part of an entry is correctly rounded. Arguments and errors are those of
    `covariance`.

    >>> import numpy as np, prismm.linalg
    >>> prismm.linalg.correlation(np.array([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]))
    array([[1., 1.],
           [1., 1.]])
    """
    source, dtype = _checked(x, 1)
    return _of_each(source, dtype, lambda data: _correlation(_scatter(data, dtype, source.device)))


def _correlation(scatter: _Scatter) -> NDArray[Any]:
    """Of one matrix."""
    whole = scatter.parts[0]
    squares = np.diagonal(whole.high)
    # A complex column may be constant in one part and tiny in the other. Its N is so small that the root underflows.
    apart = (squares < FAINT) & ((squares != 0.0) | np.diagonal(whole.doubtful)) | scatter.wide
    spread = np.array(
        [whole.exact(i, i)[0] > 0 if apart[i] else square > 0.0 for i, square in enumerate(squares)], bool
    )
    known, format = spread[:, None] & spread, format_of(scatter.real)
    unclear = (apart[:, None] | apart) & known
    with np.errstate(all="ignore"):
        first, second = np.diagonal(whole.high) * 2.0 ** (-2 * TOP), np.diagonal(whole.low) * 2.0 ** (-2 * TOP)
        root = np.sqrt(first)
        p, e = two_product(root, root)
        rest = ((first - p) - e + second) / (2.0 * root)
        p, e = two_product(np.broadcast_to(root[:, None], whole.high.shape), np.broadcast_to(root, whole.high.shape))
        crossed = root[:, None] * rest
        denominator = p, e + (crossed + crossed.T)

    def part(n: _Part) -> NDArray[Any]:
        def exact(i: int, j: int) -> float:
            return rounded_cosine(n.exact(i, j)[0], whole.exact(i, i)[0], whole.exact(j, j)[0], format)

        high, low = _quotient(n.high, n.low, *denominator)
        high, low = np.where(known, high, 0.0), np.where(known, low, 0.0)
        found = rounded_once(high, low, -2 * TOP, scatter.real, unclear | n.doubtful & known, exact, n.mirror)
        found[~known] = np.nan
        return found

    with np.errstate(all="ignore"):
        found = _joined([part(n) for n in scatter.parts], scatter.dtype)
    np.fill_diagonal(found.real, np.where(spread, 1.0, np.nan))
    return found


def _quotient(high: Floats, low: Floats, divisor: Floats, rest: Floats) -> tuple[Floats, Floats]:
    """(high + low)/(divisor + rest) as a sum of two numbers."""
    q = high / divisor
    p, e = two_product(q, divisor)
    return two_sum(q, ((high - p) - e + low - q * rest) / divisor)


@dataclass(frozen=True, eq=False)
class _Part:
    """The real or the imaginary part of N.

    Attributes:
        high, low: N₁ and N₂, (n, n); 0 for wide columns.
        doubtful: where N₁ and N₂ may not be N but for 2^-106 of it, (n, n).
        exact: (numerator, exponent) of N_ij of unscaled columns.
        mirror: 1 if it is symmetric, -1 if it is antisymmetric.
    """

    high: Floats
    low: Floats
    doubtful: NDArray[np.bool_]
    exact: Callable[[int, int], tuple[int, int]]
    mirror: float


@dataclass(frozen=True, eq=False)
class _Scatter:
    """N = m·xᵀx̄ - s·sᴴ, of columns x_j times 2^scale_j.

    Attributes:
        dtype: of results.
        parts: the real part and, of complex data, the imaginary one.
        m: how many rows.
        scale: (n,).
        wide: columns that cannot be scaled without rounding, (n,).
    """

    dtype: np.dtype[Any]
    parts: list[_Part]
    m: int
    scale: NDArray[np.int32]
    wide: NDArray[np.bool_]

    @property
    def real(self) -> np.dtype[Any]:
        """The type of a part."""
        return np.zeros(0, self.dtype).real.dtype


class _Integers:
    """N of unscaled columns, in integers.

    Args:
        parts: (m, n, p), real parts and imaginary ones, if p is 2.
    """

    def __init__(self, parts: Floats) -> None:
        self.parts = parts
        self.columns: dict[int, tuple[list[list[int]], int]] = {}

    def real(self, i: int, j: int) -> tuple[int, int]:
        """(numerator, exponent) of the real part of N_ij; the exponents are those of both columns, added."""
        (left, e), (right, f) = self._column(i), self._column(j)
        return sum(map(self._scatter, left, right)), e + f

    def imag(self, i: int, j: int) -> tuple[int, int]:
        """Of the imaginary part."""
        (left, e), (right, f) = self._column(i), self._column(j)
        return self._scatter(left[1], right[0]) - self._scatter(left[0], right[1]), e + f

    def _scatter(self, x: list[int], y: list[int]) -> int:
        products: int = sum(map(operator.mul, x, y))
        return len(x) * products - sum(x) * sum(y)

    def _column(self, j: int) -> tuple[list[list[int]], int]:
        """Integers of each part and e with x_j = integers·2^e."""
        if j not in self.columns:
            mantissa, exponents = np.frexp(self.parts[:, j].T)
            least = int(np.min(exponents, where=mantissa != 0.0, initial=1100))
            whole, shift = np.ldexp(mantissa, 53).astype(np.int64), np.where(mantissa != 0.0, exponents - least, 0)
            pairs = zip(whole.tolist(), shift.tolist(), strict=True)
            self.columns[j] = [[a << b for a, b in zip(*pair, strict=True)] for pair in pairs], least - 53
        return self.columns[j]


def _checked(x: Any, ddof: Any) -> tuple[Operand, np.dtype[Any]]:
    """The observations, and the type of results."""
    source = operand(x, "x")
    _, dtype = common({"x": source})
    try:
        less = operator.index(ddof)
    except TypeError:
        raise ArgumentError(f"ddof={ddof!r}; pass an integer >= 0") from None
    if less < 0:
        raise ArgumentError(f"ddof={less}; pass an integer >= 0")
    if source.data.ndim < 2 or source.data.shape[-2] <= less:
        raise ShapeError(f"x has shape {source.data.shape}; pass a matrix of more than {less} rows")
    if source.data.shape[-2] > MOST:
        raise ArgumentError(f"x has {source.data.shape[-2]} rows; pass at most 2^26")
    return source, dtype


def _of_each(source: Operand, dtype: np.dtype[Any], one: Callable[[NDArray[Any]], NDArray[Any]]) -> Any:
    """The results of all matrices of a batch."""
    *batch, _, n = source.data.shape
    found = np.zeros((*batch, n, n), dtype)
    for at in np.ndindex(*batch):
        found[at] = one(source.data[at])
    return source.returned(found)


def _scatter(data: NDArray[Any], dtype: np.dtype[Any], device: Any) -> _Scatter:
    """Of one matrix of observations."""
    m, n = data.shape
    kind = np.complex128 if data.dtype.kind == "c" else np.float64
    parts = np.ascontiguousarray(data, kind).view(np.float64).reshape(m, n, 2 if data.dtype.kind == "c" else 1)
    products, integers = Products(device), _Integers(parts)

    def joined(x: Floats) -> NDArray[Any]:
        return np.ascontiguousarray(x).view(kind)[..., 0]

    with np.errstate(all="ignore"):
        scale = (TOP - np.frexp(np.abs(parts).max(axis=(0, 2)))[1]).astype(np.int32)
        scaled = np.ldexp(parts, scale[:, None])
        wide = (np.ldexp(scaled, -scale[:, None]) != parts).any(axis=(0, 2))
        scaled[:, wide] = 0.0
        left, right = [joined(m * x).T for x in split(scaled)], np.conj(joined(scaled))
        sums = expand(products, [np.ones((1, m), kind)], [joined(scaled)], ALL_PARTS)
        rows = [*left, *(-part.T for part in sums for _ in sums)]
        columns = [right, right, *(np.conj(part) for _ in sums for part in sums)]
        found = expand(products, [np.concatenate(rows, axis=1)], [np.concatenate(columns, axis=0)], 2)
        first, second = found[0], found[1] if len(found) > 1 else np.zeros_like(found[0])
        mantissa, exponents = np.frexp(scaled)
        # Parts of entries of N are multiples of this; where it is in the range, N₁ and N₂ have no underflow.
        least = np.maximum(np.min(exponents, axis=(0, 2), where=mantissa != 0.0, initial=TOP) - 53, -1074)

        def part(high: Floats, low: Floats, exact: Callable[[int, int], tuple[int, int]], mirror: float) -> _Part:
            tiny = (np.abs(high) < TINY) & ((high != 0.0) | (least[:, None] + least < -1074))
            return _Part(high, low, tiny | wide[:, None] | wide, exact, mirror)

        real = part(first.real, second.real, integers.real, 1.0)
        imag = [part(first.imag, second.imag, integers.imag, -1.0)] if kind == np.complex128 else []
    return _Scatter(dtype, [real, *imag], m, scale, wide)
