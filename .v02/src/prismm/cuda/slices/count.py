"""Algorithm 3 of Mukunoki et al. (2020) for operands on a GPU: `cpu.slices.count` in torch's own operations.

A number of slices that depends on the data has to be known to the host before it can launch what makes and multiplies
them, so this waits for the GPU, for each real product; ``slices=`` and mode "CR" do not. Bytes: about 40·d an element
of both operands, in pieces of 256 MiB. The estimate compares sums, rounded in any order, with √k·u: on the threshold a
GPU and a CPU may differ by a slice.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from prismm.cuda.slices.config import MOST_ADAPTIVE, MOST_BITS
from prismm.errors import ArgumentError
from prismm.schemes.slices import PRECISION, Slices

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_PIECE = 1 << 25
"""Elements, in float64, that are looked at together."""


def is_estimated(scheme: object) -> bool:
    """Whether a scheme's number of slices depends on the data."""
    return isinstance(scheme, Slices) and not scheme.reproducible


def fix_slice_count(scheme: Slices, a: torch.Tensor, b: torch.Tensor) -> Slices:
    """The scheme with as many slices as the data of a @ b ask for; of a batch, and of the two real products of a
    complex one, the most of any. Where a side ends before it meets the criterion nothing may be dropped: fast mode is
    off.

    Raises:
        ArgumentError: while a CUDA graph captures the stream.
    """
    import torch

    a, b = (a if a.ndim > 1 else a[None]), (b if b.ndim > 1 else b[:, None])
    k = a.shape[-1] * (2 if a.is_complex() or b.is_complex() else 1)
    if not (a.numel() and b.numel()):
        return dataclasses.replace(scheme, slices=1)
    if a.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ArgumentError(
            f"{scheme} estimates its number of slices from the data, which a CUDA graph cannot capture; pass "
            f"slices={scheme.expected(k)} or mode='CR'"
        )
    grid = _Grid(scheme.layout(k).bits, scheme.rounding == "toward-zero", scheme.unit == "int8", scheme.exponents)
    tolerance = math.sqrt(k) * 2.0 ** -PRECISION[scheme.mode]
    most, ended = 1, False
    for left, right in _real_products(a, b):
        weights = _weights(left), _weights(right)
        for x, other in ((left, weights[1]), (right, weights[0])):
            # One slice more than even data need mostly suffices; `_estimate` doubles the number where it does not.
            slices, at_end = _estimate(x, other, grid, tolerance, scheme.expected(k) + 1)
            most, ended = max(most, slices), ended or at_end
    return dataclasses.replace(scheme, slices=most, fast=scheme.fast and not ended)


def _real_products(a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Magnitudes of rows and columns (vectors, terms) of every real product: of a batch, and of both parts."""
    import torch

    batch = tuple(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    rows = a.expand(*batch, *a.shape[-2:]).reshape(-1, *a.shape[-2:])
    columns = b.mT.expand(*batch, *b.mT.shape[-2:]).reshape(-1, *b.mT.shape[-2:])
    for x, y in zip(rows, columns, strict=True):
        if not (x.is_complex() or y.is_complex()):
            yield x.abs(), y.abs()
            continue
        # A real operand gets an imaginary part of 0, so that both sides have the same 2·k terms.
        x, y = (z if z.is_complex() else z.to(torch.complex128) for z in (x, y))
        left = torch.cat([x.real, x.imag], 1).abs()
        # Magnitudes only: the minus sign of the real part's second half decides nothing here.
        yield left, torch.cat([y.real, y.imag], 1).abs()
        yield left, torch.cat([y.imag, y.real], 1).abs()


def _scaled(x: torch.Tensor) -> torch.Tensor:
    """Each vector in float64, by the power of two that brings its largest magnitude into [1/2, 1); zeros where that is
    not finite.
    """
    import torch

    x = x.double()
    top = x.amax(1, keepdim=True)
    finite = torch.isfinite(top)
    exponent = torch.frexp(torch.where(finite, top, 0.0))[1].long()
    half = exponent >> 1
    # Two factors, as 2^-exponent alone may leave float64's range: exponents reach from -1073 to 1024.
    scaled = x * _power(-half) * _power(half - exponent)
    return torch.where(finite, scaled, 0.0)


def _power(e: torch.Tensor) -> torch.Tensor:
    """2^e, exactly, |e| <= 1022."""
    import torch

    return ((e + 1023) << 52).view(torch.float64)


def _times(x: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    """x·2^e by two factors, |e| <= 2000."""
    half = e >> 1
    return x * _power(half) * _power(e - half)


@dataclasses.dataclass(frozen=True)
class _Grid:
    """Where slices of vectors begin: β, how digits are rounded, whether 128 is none, and by which exponents."""

    bits: int
    truncated: bool
    int8: bool
    exponents: str

    @property
    def most(self) -> int:
        """More slices than a GPU multiplies need not be told apart; so no power of two leaves its range either."""
        return MOST_ADAPTIVE + 1 if self.exponents == "adaptive" else max(1, -(-MOST_BITS // self.bits) + 1)

    def unit(self, first: torch.Tensor, top: torch.Tensor, p: int) -> torch.Tensor:
        """The exponent of slice p (0 first) of vectors: first, top: largest magnitudes of all, and of what is left."""
        import torch

        if self.exponents != "adaptive":
            highest = 0 if self.truncated else 2 if self.int8 and self.bits == 8 else 1
            # Where the first of eight bits would be 128, the grid begins a bit higher (`cpu.kernels.slice`).
            return torch.where(first > 0.9921875, highest, min(highest, 1)) - self.bits * (p + 1)
        unit = torch.frexp(top)[1].long() - (self.bits if self.truncated else self.bits - 1)
        if not self.truncated:
            digit = _times(top, -unit)
            unit = unit + ((digit.round() > 127) & self.int8).long() - (digit == 0.5).long()
        return torch.where(top == 0.0, 0, unit)


def _pieces(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Some vectors at a time."""
    yield from x.split(max(1, _PIECE // max(1, x.shape[1])))


def _weights(x: torch.Tensor) -> torch.Tensor:
    """Sums of magnitudes across the scaled vectors, (terms,)."""
    import torch

    return torch.stack([_scaled(piece).sum(0) for piece in _pieces(x)]).sum(0)


def _estimate(
    x: torch.Tensor, weights: torch.Tensor, grid: _Grid, tolerance: float, slices: int
) -> tuple[int, bool]:  # fmt: skip
    """(d, whether the split ended first) of one side: the first slice whose share of |x|w is within the tolerance."""
    import torch

    most = grid.most
    slices = min(slices, most)
    # Every round takes a fixed number of slices and waits for the GPU once, at `tolist`; slice by slice it would wait d
    # times.
    while True:
        shares, left = [], []
        for piece in _pieces(x):
            rest = _scaled(piece)
            whole = rest @ weights
            first = rest.amax(1, keepdim=True)
            of_slices, of_rest = [], []
            for p in range(slices):
                top = rest.amax(1, keepdim=True)
                of_rest.append(top.amax())
                unit = grid.unit(first, top, p)
                digits = _times(rest, -unit)
                digits = digits.trunc() if grid.truncated else digits.round()
                rest = rest - _times(digits, unit)
                # Of sums that are tiny the share is not: the unit comes last.
                used = _times(digits.abs() @ weights / whole, unit[:, 0])
                of_slices.append(torch.where(whole > 0, used, 0.0).amax())
                # Digits to nearest leave rests of both signs, of which the next unit needs the largest magnitude.
                rest = rest.abs()
            of_rest.append(rest.amax())
            shares.append(torch.stack(of_slices))
            left.append(torch.stack(of_rest))
        maxima = torch.cat([torch.stack(shares).amax(0), torch.stack(left).amax(0)]).tolist()
        share, over = maxima[:slices], maxima[slices:]
        for p in range(slices):
            # The end is asked first: what has no rest is exact with p slices, whatever the tolerance says of shares.
            if over[p] == 0.0:
                return max(p, 1), True
            if share[p] <= tolerance:
                return p + 1, False
        if over[slices] == 0.0:
            return slices, True
        if slices == most:
            return most, False
        slices = min(2 * slices, most)
