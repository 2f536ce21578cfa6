"""Matrices where they are multiplied: float64 or complex128 arrays in main memory, or such tensors on their device.

What a proof asks of a matrix as a whole is here for both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import arrays
from prismm.linalg.entries import beside, is_complex, ldexp
from prismm.linalg.rounding import TAU, above, inflation
from prismm.linalg.rounding import product_above as _product_above

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.linalg.expansions import Products

    Floats = NDArray[np.float64]
    Matrix = Any

STRIP = 1 << 16
"""Entries that are scaled at a time."""

REACH = 500
"""Powers of two beyond which `ldexp` scales: 2^±REACH twice over is a float64."""

NOTHING = -10000
"""For the exponent of 0: below those of all numbers times powers of two, by more than half."""


def host(x: Matrix) -> Floats:
    """The matrix in main memory."""
    found: Floats = x.cpu().numpy() if arrays.is_tensor(x) else x
    return found


def all_finite(x: Matrix) -> bool:
    """Whether no entry is NaN or Inf."""
    return bool(x.isfinite().all() if arrays.is_tensor(x) else np.isfinite(x).all())


def magnitude(x: Matrix) -> Matrix:
    """|x|, entry by entry."""
    return x.abs() if arrays.is_tensor(x) else np.abs(x)


def side_by_side(blocks: list[Any]) -> Matrix:
    """[x y …]."""
    if arrays.is_tensor(blocks[0]):
        import torch

        return torch.cat(blocks, dim=1)
    return np.concatenate(blocks, axis=1)


def one_above_another(blocks: list[Any]) -> Matrix:
    """[x; y; …]."""
    if arrays.is_tensor(blocks[0]):
        import torch

        return torch.cat(blocks, dim=0)
    return np.concatenate(blocks, axis=0)


def zeros(shape: tuple[int, ...], like: Matrix, kind: Any = None) -> Matrix:
    """Where the other matrix is; of its type, or of float64."""
    if arrays.is_tensor(like):
        return like.new_zeros(shape, dtype=kind and like.real.dtype)
    return np.zeros(shape, kind or like.dtype)


def identity(n: int, like: Matrix) -> Matrix:
    """Where the other matrix is, and of its type."""
    if arrays.is_tensor(like):
        import torch

        return torch.eye(n, dtype=like.dtype, device=like.device)
    return np.eye(n, dtype=like.dtype)


def adjoint(x: Matrix) -> Matrix:
    """Its conjugate transpose, by rows."""
    return contiguous(x.mH.resolve_conj() if arrays.is_tensor(x) else np.conj(x.T))


def contiguous(x: Matrix) -> Matrix:
    """By rows."""
    return x.contiguous() if arrays.is_tensor(x) else np.ascontiguousarray(x)


def diagonal(x: Matrix) -> NDArray[Any]:
    """Its diagonal, in main memory."""
    found: NDArray[Any] = host(x.diagonal())
    return found


def rows_of(x: Matrix, order: NDArray[np.intp]) -> Matrix:
    """x[order]."""
    if arrays.is_tensor(x):
        import torch

        return x[torch.from_numpy(order).to(x.device)]
    return x[order]


def size_above(x: Matrix) -> Matrix:
    """At least |x|, entry by entry: itself of real numbers, else the sum of both parts' sizes.

    >>> import numpy as np
    >>> size_above(np.array([-3.0])), bool(size_above(np.array([3.0 - 4.0j]))[0] >= 7.0)
    (array([3.]), True)
    """
    if is_complex(x):
        return above(magnitude(x.real) + magnitude(x.imag))
    return magnitude(x)


def balanced(x: Matrix) -> tuple[Matrix, NDArray[np.int32], NDArray[np.int32]]:
    """(DXF, exponents of D, those of F): the largest parts of rows, then of columns, are in [1/2, 1), by powers of two;
    X itself where that would lose a bit.

    >>> import numpy as np
    >>> scaled, rows, columns = balanced(np.array([[3.0 * 2.0**900, 2.0**-1000]]))
    >>> scaled.tolist(), rows.tolist(), columns.tolist()
    ([[0.75, 0.5]], [-902], [0, 1901])
    """
    size = _larger_part(x)
    return _scaled_or_not(x, *(_exponents_on_device(size) if arrays.is_tensor(x) else _exponents(size)))


def columns_scaled(x: Matrix) -> tuple[Matrix, NDArray[np.int32]]:
    """(XF, exponents of F): the same of columns alone.

    >>> import numpy as np
    >>> columns_scaled(np.array([[3.0, 2.0**-1000]]))[1].tolist()
    [-2, 999]
    """
    if not len(x):
        return x, np.zeros(x.shape[1], np.int32)
    size = magnitude(_larger_part(x))
    tops = _sizes(host(size.amax(dim=0) if arrays.is_tensor(x) else size.max(axis=0)))
    found, _, columns = _scaled_or_not(x, np.zeros(len(x), np.int32), _shift(tops))
    return found, columns


def last_bit(x: Matrix) -> int:
    """e so that every entry is a multiple of 2^e.

    >>> import numpy as np
    >>> last_bit(np.array([0.0, 1.0]))
    -52
    """
    if arrays.is_tensor(x):
        import torch

        size = x.abs()
        smallest = float(torch.where(size == 0.0, torch.inf, size).min()) if size.numel() else np.inf
    else:
        smallest = min(
            (float(np.min(np.abs(x[at]), where=x[at] != 0.0, initial=np.inf)) for at in _strips(x)), default=np.inf
        )  # fmt: skip
    return max(int(np.frexp(smallest)[1]) - 53, -1074) if smallest < np.inf else 1024


def gap(c: Matrix) -> Matrix:
    """At least |1 - c|, where c stood.

    >>> import numpy as np
    >>> gap(np.array([[1.0, -0.5], [0.0, 0.75]]))[0].tolist() == [5e-324, 0.5]
    True
    """
    n = len(c)
    if arrays.is_tensor(c):
        import torch

        diagonal = above(np.abs(1.0 - c.diagonal().cpu().numpy()))
        c = c.abs_()
        c.diagonal().copy_(torch.from_numpy(diagonal))
        return c
    diagonal = above(np.abs(1.0 - c[np.arange(n), np.arange(n)]))
    np.abs(c, out=c)
    c[np.arange(n), np.arange(n)] = diagonal
    return c


def product_above(m: Matrix, v: Matrix, products: Products) -> Matrix:
    """At least m·v entry by entry, for m >= 0 and v >= 0, and 0 where each term of the sum is 0: `rounding`'s. With a
    tensor m and a matrix v that is one the result is one, else an array.

    By the bound of `Products.native` exact <= (found + kη)/(1 - k·u), which is at most (found + 2kτ)·inflation(k + 2)
    for k·u <= 1/2.
    """
    if not arrays.is_tensor(m):
        return _product_above(m, v)
    import torch

    columns = v if v.ndim == 2 else v[:, None]
    k = m.shape[1]
    found = products.native(m, columns)
    bound = (found + 2 * k * TAU) * inflation(k + 2)
    if arrays.is_tensor(v):
        if not found.all():
            met = (m != 0.0).float() @ (columns != 0.0).float()
            bound = torch.where((found == 0.0) & (met == 0.0), 0.0, bound)
    elif not found.all():
        # As in `rounding`: 0 for certain where no index has both factors. Sums of zeros and ones cannot vanish.
        met = (m != 0.0).float() @ torch.from_numpy((columns != 0.0).astype(np.float32)).to(m.device)
        bound = np.where((found == 0.0) & (met.cpu().numpy() == 0.0), 0.0, bound)
    return bound if v.ndim == 2 else bound[:, 0]


def row_norm(x: Matrix) -> float:
    """About ‖x‖∞."""
    if arrays.is_tensor(x):
        return float(x.abs().sum(dim=1).max()) if len(x) else 0.0
    return float(np.abs(x).sum(axis=1).max(initial=0.0))


def scaled_norm(x: Matrix, rows: NDArray[np.int32], columns: NDArray[np.int32], products: Products) -> float:
    """About ‖F·x·D‖∞ for x >= 0, with the exponents of D (`rows`) and F (`columns`)."""
    top = int(rows.max(initial=NOTHING))
    weights = np.ldexp(1.0, rows - top)
    sums = products.native(x, weights[:, None])[:, 0] if arrays.is_tensor(x) else x @ weights
    return float(np.max(np.ldexp(sums, columns + top), initial=0.0))


@dataclass(frozen=True, eq=False)
class Scaled:
    """A system DAF·(F⁻¹X·2^κ) = DB·2^κ with powers of two D, F and 2^κ.

    Attributes:
        a, b: DAF and DB·2^κ; exact but for columns of b that lost bits.
        rows, columns, kappa: the exponents of D, F and 2^-κ.
        lost: the columns of b of which an entry fell below 2^-1022 and was rounded, by half of 2^-1074 at most.
    """

    a: Matrix
    b: Matrix
    rows: NDArray[np.int32]
    columns: NDArray[np.int32]
    kappa: NDArray[np.int32]
    lost: NDArray[np.bool_]

    @classmethod
    def not_at_all(cls, a: Matrix, b: Matrix) -> Scaled:
        """The system as it is."""
        rows, columns, kappa = (np.zeros(size, np.int32) for size in (*a.shape, b.shape[1]))
        return cls(a, b, rows, columns, kappa, np.zeros(b.shape[1], bool))


def scaling(a: Matrix, b: Matrix) -> Scaled:
    """A system scaled so that rows, then columns of a, then columns of b, have largest entries in [1/2, 1). The matrix
    stays as it is where that would lose a bit.
    """
    scaled, rows, columns = balanced(a)
    tops = host(_sizes(b) + beside(rows, b)[:, None]).max(axis=0, initial=NOTHING)
    kappa = _shift(tops)
    twice = beside(rows[:, None] + kappa, b)
    right = ldexp(b, twice)
    lost: NDArray[Any] = host((ldexp(right, -twice) != b).any(axis=0))
    return Scaled(scaled, right, rows, columns, -kappa, lost)


def _larger_part(x: Matrix) -> Matrix:
    """Real matrices as they are; of complex ones the larger size of both parts."""
    if not is_complex(x):
        return x
    if arrays.is_tensor(x):
        import torch

        return torch.view_as_real(x).abs().amax(dim=-1)
    return np.maximum(np.abs(x.real), np.abs(x.imag))


def _scaled_or_not(
    x: Matrix, rows: NDArray[np.int32], columns: NDArray[np.int32]
) -> tuple[Matrix, NDArray[np.int32], NDArray[np.int32]]:
    """A matrix times powers of two of rows and columns, and these; itself, and zeros, where that would lose a bit."""
    if not arrays.is_tensor(x):
        parts = x.view(np.float64)
        scaled = _scaled(parts, rows, np.repeat(columns, x.itemsize // 8))
        found = None if scaled is None else scaled.view(x.dtype)
    elif not x.is_complex():
        found = _scaled_on_device(x, rows, columns)
    else:
        import torch

        scaled = _scaled_on_device(torch.view_as_real(x).flatten(1), rows, np.repeat(columns, 2))
        found = None if scaled is None else torch.view_as_complex(scaled.reshape(*x.shape, 2))
    return (x, *(np.zeros(size, np.int32) for size in x.shape)) if found is None else (found, rows, columns)


def _sizes(x: Matrix) -> Any:
    """The exponents of `frexp`; NOTHING for zeros."""
    if arrays.is_tensor(x):
        import torch

        return torch.frexp(x)[1].masked_fill_(x == 0.0, NOTHING)
    found: NDArray[np.int32] = np.frexp(x)[1]
    found[x == 0.0] = NOTHING
    return found


def _shift(top: NDArray[np.int32]) -> NDArray[np.int32]:
    """The powers of two that bring largest entries of such exponents into [1/2, 1); 0 for zeros."""
    return np.where(top <= NOTHING // 2, 0, -top).astype(np.int32)


def _strips(x: Floats) -> Iterator[slice]:
    """Rows of a matrix that fit the cache together with what is made of them."""
    step = max(1, STRIP // max(1, x[0].size)) if len(x) else 1
    return (slice(i, i + step) for i in range(0, len(x), step))


def _exponents(a: Floats) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Of rows and columns of an array, as in `balanced`."""
    rows, tops = np.zeros(len(a), np.int32), np.full(a.shape[1], NOTHING, np.int32)
    for at in _strips(a):
        size = np.abs(a[at])
        rows[at] = _shift(_sizes(size.max(axis=1, initial=0.0)))
        found = _sizes(_times_powers(size, rows[at, None], size).max(axis=0))
        # Products below 2^-1021 are rounded, perhaps to 0.
        small = found < -1020
        if small.any():
            found[small] = (_sizes(a[at, small]) + rows[at, None]).max(axis=0)
        np.maximum(tops, found, out=tops)
    return rows, _shift(tops)


def _scaled(a: Floats, rows: NDArray[np.int32], columns: NDArray[np.int32]) -> Floats | None:
    """The matrix times powers of two; None where that loses a bit."""
    scaled: Floats = np.empty_like(a)
    least = int(rows.min(initial=0)) + int(columns.min(initial=0))
    for at in _strips(a):
        _times_powers(a[at], rows[at, None], scaled[at], columns)
        smallest = float(np.abs(a[at]).min(initial=np.inf))
        # Products in the normal range are exact.
        if smallest > 0.0 and math.frexp(smallest)[1] - 1 + least >= -1022:
            continue
        if not (_times_powers(scaled[at], -rows[at, None], np.empty_like(a[at]), -columns) == a[at]).all():
            return None
    return scaled


def _times_powers(x: Floats, rows: Any, out: Floats, columns: Any = 0) -> Floats:
    """x·2^(rows + columns), rounded once; several times as fast as `ldexp` where all powers are float64s."""
    if max(np.abs(rows).max(initial=0), np.abs(columns).max(initial=0)) > REACH:
        np.ldexp(x, rows + columns, out=out)
    else:
        np.multiply(x, np.ldexp(1.0, rows) * np.ldexp(1.0, columns), out=out)
    return out


def _exponents_on_device(a: Any) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Of rows and columns of a tensor, as in `balanced`."""
    import torch

    if not a.numel():
        return np.zeros(a.shape[0], np.int32), np.zeros(a.shape[1], np.int32)
    size = _sizes(a)
    rows = _shift(size.amax(dim=1).cpu().numpy())
    size += torch.from_numpy(rows).to(a.device)[:, None]
    return rows, _shift(size.amax(dim=0).cpu().numpy())


def _scaled_on_device(a: Any, rows: NDArray[np.int32], columns: NDArray[np.int32]) -> Any:
    """The tensor times powers of two; None where that loses a bit, or might between two factors."""
    import torch

    if max(np.abs(rows).max(initial=0), np.abs(columns).max(initial=0)) > REACH:
        twice = torch.from_numpy(rows[:, None] + columns).to(a.device)
        scaled = ldexp(a, twice)
        return scaled if torch.equal(ldexp(scaled, -twice), a) else None
    there, back = (
        [torch.from_numpy(np.ldexp(1.0, sign * x)).to(a.device) for x in (rows, columns)] for sign in (1, -1)
    )
    scaled = a * there[0][:, None]
    scaled *= there[1]
    same = scaled * back[1]
    same *= back[0][:, None]
    return scaled if torch.equal(same, a) else None
