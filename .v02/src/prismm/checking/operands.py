"""The operands of a check, scaled by powers of two, in main memory or on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from prismm.core import arrays, threads
from prismm.core.outcome import for_kernels, real_parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOTHING = 1 << 20
"""Exponent of the lowest bit of a vector of zeros: they are multiples of everything."""

_SINGLE_TERMS = 1 << 16
"""Terms up to which |a||b| is multiplied in float32: it errs by less than 2^-8."""


@dataclass(frozen=True)
class Scaled:
    """An operand whose vectors have their largest element in [1/2, 1), with one element more.

    Attributes:
        data: (m, k + 1) or (k + 1, n), float64 or complex128; 0 for elements that are not finite.
        exponents: of the powers of two that were divided by.
        finite: whether a vector held neither Inf nor NaN.
    """

    data: Any
    exponents: NDArray[np.int64]
    finite: NDArray[np.bool_]


class Operands(Protocol):
    """Two matrices that can be multiplied, a (m, k) and b (k, n)."""

    is_complex: bool
    """Whether the product that is checked is; its operands may be real."""

    @property
    def terms(self) -> int:
        """Real terms of the sum that makes an entry, or its real part."""

    def scaled(self, h: int) -> tuple[Scaled, Scaled]:
        """Both operands scaled, with a further element 2^-h."""

    def sizes(self, left: Scaled, right: Scaled) -> NDArray[np.float64]:
        """|a'||b'|, within (terms + 8)·2^-24 and (2·terms + 8)·2^-1072."""

    def lowest(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each row of a and column of b an exponent p: all its finite elements are multiples of 2^p."""

    def device(self, c: NDArray[Any]) -> Any:
        """An array where the operands are."""

    def host(self, x: Any) -> NDArray[Any]:
        """An array in main memory."""

    def grid(self, rows: NDArray[np.int64] | None, columns: NDArray[np.int64] | None) -> tuple[Any, Any]:
        """Some rows of a and columns of b; None for all."""


class HostOperands:
    """`Operands` in main memory: NumPy arrays of numbers that float64 holds."""

    def __init__(self, a: NDArray[Any], b: NDArray[Any], is_complex: bool, workers: int) -> None:
        self.a, self.b, self.is_complex, self.workers = a, b, is_complex, workers

    @property
    def terms(self) -> int:
        """See `Operands`."""
        return int(max(1, self.a.shape[1]) * (2 if self.is_complex else 1))

    def scaled(self, h: int) -> tuple[Scaled, Scaled]:
        """See `Operands`."""
        return self._scaled(self.a, 1, h), self._scaled(self.b, 0, h)

    @np.errstate(all="ignore")
    def _scaled(self, x: NDArray[Any], axis: int, h: int) -> Scaled:
        # A check allows for the error of underflow.
        from prismm.cpu.kernels.unit_range import unit_columns, unit_rows

        dtype = np.dtype(np.complex128 if self.is_complex else np.float64)
        parts, lines = dtype.itemsize // 8, x.shape[1 - axis]
        given = for_kernels(x, dtype).view(np.float64)
        data = np.empty((x.shape[0], x.shape[1] + 1) if axis == 1 else (x.shape[0] + 1, x.shape[1]), dtype)
        edge = data[:, -1] if axis == 1 else data[-1]
        edge[...] = 2.0**-h * (1 + 1j if self.is_complex and axis == 0 else 1)
        exponents, finite = np.zeros(lines, np.int64), np.ones(lines, np.uint8)
        target = data.view(np.float64)

        def scale(piece: slice) -> None:
            if axis == 1:
                unit_rows(given, piece.start, piece.stop, target, exponents, finite)
            else:
                unit_columns(given, piece.start * parts, piece.stop * parts, parts, target, exponents, finite)

        if x.size:
            step = max(1, min(512, -(-lines // self.workers)))
            threads.spread(scale, [slice(s, min(lines, s + step)) for s in range(0, lines, step)], self.workers)
        return Scaled(data, exponents, finite.view(np.bool_))

    def sizes(self, left: Scaled, right: Scaled) -> NDArray[np.float64]:
        """See `Operands`."""
        if self.terms <= _SINGLE_TERMS:
            x, y = self._magnitudes(left.data[:, :-1]), self._magnitudes(right.data[:-1])
            sizes = x @ y
            # What underflows in float32 is then far below a thousandth of the sum.
            if sizes.min(initial=1.0) > 2.0**-100:
                return np.asarray(sizes, np.float64)
        product: NDArray[np.float64] = np.abs(left.data[:, :-1]) @ np.abs(right.data[:-1])
        return product

    def _magnitudes(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """|x| rounded to float32."""
        if self.is_complex:
            whole: NDArray[np.float32] = np.abs(x).astype(np.float32)
            return whole
        from prismm.cpu.kernels.unit_range import unit_magnitudes

        found = np.empty(x.shape, np.float32)
        step = max(1, -(-x.shape[0] // self.workers))
        pieces = [slice(s, min(x.shape[0], s + step)) for s in range(0, x.shape[0], step)]
        threads.spread(lambda piece: unit_magnitudes(x[piece], found[piece]), pieces, self.workers)
        return found

    def lowest(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See `Operands`."""
        return _lowest(self.a, 1), _lowest(self.b, 0)

    def device(self, c: NDArray[Any]) -> Any:
        """See `Operands`."""
        return c

    def host(self, x: Any) -> NDArray[Any]:
        """See `Operands`."""
        return np.asarray(x)

    def grid(self, rows: NDArray[np.int64] | None, columns: NDArray[np.int64] | None) -> tuple[Any, Any]:
        """See `Operands`."""
        return self.a if rows is None else self.a[rows], self.b if columns is None else self.b[:, columns]


class DeviceOperands:
    """`Operands` on a GPU, as tensors; vectors are scaled there, and judged in main memory."""

    def __init__(self, a: Any, b: Any, is_complex: bool) -> None:
        self.a, self.b, self.is_complex = a, b, is_complex

    @property
    def terms(self) -> int:
        """See `Operands`."""
        return int(max(1, self.a.shape[1]) * (2 if self.is_complex else 1))

    def scaled(self, h: int) -> tuple[Scaled, Scaled]:
        """See `Operands`."""
        return self._scaled(self.a, 1, h), self._scaled(self.b, 0, h)

    def _scaled(self, x: Any, axis: int, h: int) -> Scaled:
        import torch

        shape = (x.shape[0], x.shape[1] + 1) if axis == 1 else (x.shape[0] + 1, x.shape[1])
        data = torch.zeros(shape, dtype=torch.complex128 if self.is_complex else torch.float64, device=x.device)
        inner = data[:, :-1] if axis == 1 else data[:-1]
        inner.copy_(x)
        parts = torch.view_as_real(data) if self.is_complex else data[..., None]
        finite = torch.isfinite(parts).all(-1).all(axis)
        parts.nan_to_num_(0.0, 0.0, 0.0)
        largest = parts.abs().amax(dim=(axis, 2)).cpu().numpy()
        exponents = np.frexp(largest)[1].astype(np.int64)
        first = -(exponents // 2)
        for step in (first, -exponents - first):
            factors = torch.as_tensor(np.ldexp(1.0, step), device=x.device)
            parts *= factors[:, None, None] if axis == 1 else factors[None, :, None]
        edge = data[:, -1] if axis == 1 else data[-1]
        edge.fill_(2.0**-h * (1 + 1j if self.is_complex and axis == 0 else 1))
        return Scaled(data, exponents, finite.cpu().numpy())

    def sizes(self, left: Scaled, right: Scaled) -> NDArray[np.float64]:
        """See `Operands`."""
        product: NDArray[np.float64] = (left.data[:, :-1].abs() @ right.data[:-1].abs()).cpu().numpy()
        return product

    def lowest(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See `Operands`."""
        return _lowest(self.host(self.a), 1), _lowest(self.host(self.b), 0)

    def device(self, c: NDArray[Any]) -> Any:
        """See `Operands`."""
        import torch

        return torch.as_tensor(c, device=self.a.device)

    def host(self, x: Any) -> NDArray[Any]:
        """See `Operands`."""
        return arrays.normalise(x.detach().cpu(), "x").data

    def grid(self, rows: NDArray[np.int64] | None, columns: NDArray[np.int64] | None) -> tuple[Any, Any]:
        """See `Operands`."""
        a = self.a if rows is None else self.a[self.device(rows)]
        return a, self.b if columns is None else self.b[:, self.device(columns)]


def _lowest(x: NDArray[Any], axis: int) -> NDArray[np.int64]:
    """See `Operands.lowest`."""
    found = np.full(x.shape[1 - axis], NOTHING, np.int64)
    for part in real_parts(x):
        step = max(1, (1 << 17) // max(1, part.shape[1]))
        for i in range(0, part.shape[0], step):
            rows = part[i : i + step].astype(np.float64)
            fraction, exponent = np.frexp(np.where(np.isfinite(rows), rows, 0.0))
            whole = np.abs(np.ldexp(fraction, 53)).astype(np.int64)
            # The lowest bit that is set is a power of two, which float64 holds.
            bit = np.frexp((whole & -whole).astype(np.float64))[1] - 1
            lowest = np.where(whole == 0, NOTHING, exponent.astype(np.int64) - 53 + bit)
            least = lowest.min(axis=axis, initial=NOTHING)
            if axis == 1:
                found[i : i + step] = np.minimum(found[i : i + step], least)
            else:
                found = np.minimum(found, least)
    return found
