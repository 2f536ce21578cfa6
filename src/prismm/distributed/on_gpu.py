"""The steps of a product whose inner dimension is sharded, on a rank's GPU: `cuda.partial`.

What certificates leave to the CPU is copied there: digits of the tiles concerned, rows and columns of uncertified
entries, whole operands where Inf or NaN stand in one. A sum of gemm is joined on the CPU, from the GPU's digits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from prismm.core.accuracy import RAW, ROUNDING, join_test
from prismm.core.outcome import Epilogue, Outcome, real_parts
from prismm.core.scales import NONFINITE, Scales
from prismm.core.special_values import Special
from prismm.cpu.entries import Entries
from prismm.cpu.partial import scales
from prismm.cpu.partial.join import Joined, join
from prismm.cpu.partial.setting import Setting
from prismm.cuda.device import Device, device_of
from prismm.cuda.operands import tensor_of
from prismm.cuda.partial import more, steps
from prismm.cuda.partial.more import More
from prismm.cuda.partial.steps import COUNTS, LARGEST, NORM1, NORM2, RESIDUAL, SHIFT, Split, Work
from prismm.cuda.residues.recompute import MOST_MAGNITUDES
from prismm.cuda.residues.split import STATISTICS
from prismm.cuda.residues.tables import CertificateTest
from prismm.distributed.gpu_share import GpuLanded
from prismm.distributed.inner import Met, Piece, within
from prismm.errors import EngineError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Tensor = torch.Tensor

BLOCK_BYTES = 128 << 20
"""Bytes of digits that travel at a time."""

STEP = 256
"""Vectors to multiples of which blocks are cut: the product's tiles are as wide."""

RESERVED = 16
"""Multiprocessors that the persistent product leaves to the copies of digits that run beside it."""

PIECE = 1 << 22
"""Entries of gemm's sums that are joined on the CPU at a time."""

_INFINITE = 0x7FF0000000000000
_LONGEST = 1 << 23


def serves(place: torch.device, setting: Setting) -> bool:
    """Whether there are kernels for a product on this GPU."""
    try:
        device_of(place.index)
    except EngineError:
        return False
    # As on one GPU: counts of large elements are exact in float32 below 2^24 terms.
    return setting.k < _LONGEST


def on_gpu(a: Tensor, b: Tensor, setting: Setting, workers: int) -> tuple[OnGpu, tuple[Tensor, Tensor]]:
    """The backend, and the operands as kernels read them."""
    backend = OnGpu(setting, device_of(a.device.index), a.device, workers)
    return backend, (_readable(a, setting), _readable(b, setting))


def _readable(x: Tensor, setting: Setting) -> Tensor:
    x = tensor_of(x.to(torch.uint8) if x.dtype is torch.bool else x, "an operand")
    return x.to(torch.complex128) if setting.is_complex and not x.is_complex() else x


class OnGpu:
    """A rank's GPU; see `distributed.inner.Backend`.

    Args:
        setting: of the whole product.
        device, place: the GPU.
        workers: threads of the CPU.
    """

    def __init__(self, setting: Setting, device: Device, place: torch.device, workers: int) -> None:
        self.setting, self.workers, self.place = setting, workers, place
        terms = setting.terms + (3 if setting.summed else 0)
        test = CertificateTest(
            *join_test(setting.target, terms, setting.result), setting.terms, setting.result.precision
        )  # fmt: skip
        device = replace(device, programs=max(1, device.programs - RESERVED))
        self.work = Work(setting.moduli, setting.terms, setting.parts, test, device, place)

    def operand(self, x: Tensor, *, left: bool) -> GpuOperand:
        """An operand."""
        return GpuOperand(x, left, self.setting, self.work)

    def empty_digits(self, m: int, n: int) -> Tensor:
        """Room for digits."""
        return steps.empty_digits(m, n, self.work)

    def blocks(
        self, left: GpuOperand, p: int, right: GpuOperand, q: int, taken: set[int | None]
    ) -> Iterator[tuple[Tensor, slice, slice]]:
        """Digits, some columns or rows at a time, which are split just before."""

        def split(operand: GpuOperand, number: int, here: slice, *, keep: bool) -> Split:
            return operand.split(number, here, keep=keep)

        multiply = functools.partial(steps.multiply, work=self.work)
        yield from blocks_of((left, p), (right, q), taken, self.setting.moduli * self.work.groups, split, multiply)

    def add(self, found: Tensor, into: Tensor | None = None) -> Tensor:
        """Digits of all ranks, added."""
        return steps.add(found, self.work, into)

    def join(
        self, digits: Tensor, left: GpuOperand, p: int, right: GpuOperand, q: int, rows: slice, columns: slice,
        found: list[Special], epilogue: Epilogue | None,
    ) -> GpuLanded:  # fmt: skip
        """Set the entries that the GPU certifies; the others stay in tiles."""
        m, n = digits.shape[2:]
        out = torch.empty(m, n, dtype=_torch_type(self.setting.dtype), device=self.place)
        landed = GpuLanded(out, rows.start, columns.start)
        if not out.numel():
            return landed
        statistics = left.statistics(p, rows), right.statistics(q, columns)
        if epilogue is None or epilogue.trivial:
            flags = steps.join(digits, *statistics, out, self.work)
            landed.tiles = list(_flagged(flags.cpu().numpy(), m, n, self.work.strip)) if bool(flags.any()) else []
        else:
            step = max(1, PIECE // n)
            landed.tiles = [(np.arange(i, min(m, i + step)), np.arange(n)) for i in range(0, m, step)]

        def piece(i: NDArray[np.int64], j: NDArray[np.int64]) -> Piece:
            some = epilogue
            if epilogue is not None and epilogue.c is not None:
                some = Epilogue(epilogue.alpha, epilogue.beta, np.ascontiguousarray(epilogue.c[np.ix_(i, j)]))
            wholes = rows.start + i, columns.start + j
            joined = join(
                _on_cpu(digits, i, j, self.setting), left.scales(p, wholes[0]), right.scales(q, wholes[1]),
                self.setting, specials=within(found, *wholes), epilogue=some, workers=self.workers,
            )  # fmt: skip
            return Piece(joined, *wholes)

        def pending() -> list[Tensor]:
            # Copies: what kernels are given begins at multiples of 16 bytes.
            return [x.clone() for x in steps.finish(digits, *statistics, out, self.work)]

        landed.piece, landed.pending_of_tiles = piece, pending
        return landed

    def again(self, part: int) -> AgainOnGpu | None:
        """The most moduli, where entries are certified, and magnitudes of so many terms fit."""
        short = self.work.terms <= MOST_MAGNITUDES or self.work.test.mode == ROUNDING
        return AgainOnGpu(self, part) if self.work.test.mode != RAW and short else None

    def stacked(self, results: list[Tensor], shape: tuple[int, ...]) -> Tensor:
        """One tensor."""
        if not results:
            return torch.empty(shape, dtype=_torch_type(self.setting.dtype), device=self.place)
        return results[0].view(shape) if len(results) == 1 else torch.stack(results).view(shape)


def _torch_type(dtype: np.dtype[Any]) -> torch.dtype:
    found: torch.dtype = getattr(torch, dtype.name)
    return found


def _flagged(
    flags: NDArray[np.int32], m: int, n: int, strip: tuple[int, int, int]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Rows and columns of the tiles that are flagged in some part, strip by strip."""
    tile, height, width = strip
    word = np.bitwise_or.reduce(flags, axis=0)
    lanes = np.arange(height)
    for s in np.flatnonzero(word.any(axis=1)).tolist():
        tiles = int(np.bitwise_or.reduce(word[s]))
        rows = s * height + lanes[(tiles >> lanes // tile) & 1 == 1]
        columns = (np.flatnonzero(word[s])[:, None] * width + np.arange(width)).reshape(-1)
        yield rows[rows < m], columns[columns < n]


def _on_cpu(digits: Tensor, i: NDArray[np.int64], j: NDArray[np.int64], setting: Setting) -> NDArray[np.int8]:
    """Digits (parts, moduli, rows, columns) of some rows and columns as `cpu.partial.residues.multiply` has them:
    symmetric, those of the three products that make a complex one combined.
    """
    some = digits
    for axis, index in ((2, i), (3, j)):
        if index.size < digits.shape[axis]:
            some = some.index_select(axis, torch.from_numpy(index).to(digits.device))
    found = some.cpu().numpy().astype(np.int16)
    modulus = setting.modulus.astype(np.int16)[:, None, None]
    if setting.is_complex:
        d, e, f = found
        found = np.stack([d - e, f - d - e])
    found %= modulus
    return np.where(found > (modulus - 1) // 2, found - modulus, found).astype(np.int8)


def blocks_of(
    left: tuple[GpuOperand, int], right: tuple[GpuOperand, int], taken: set[int | None], entry_bytes: int,
    split: Callable[..., Split], multiply: Callable[[Split, Split], Tensor],
) -> Iterator[tuple[Tensor, slice, slice]]:  # fmt: skip
    """As of `Backend.blocks`, of matrices of operands; entry_bytes: of digits. split: (operand, number, vectors, keep),
    for one side's vectors as a whole, which are kept, and for some of the other's.
    """
    if not (left[0].count and right[0].count):
        return
    everything = slice(None)
    cut, whole = (right, left) if 1 not in taken or 0 in taken else (left, right)
    vector_bytes, count = entry_bytes * max(1, whole[0].count), cut[0].count
    step = max(1, BLOCK_BYTES // (vector_bytes * STEP)) * STEP if not {0, 1} <= taken else max(1, count)
    first = split(*whole, everything, keep=True)
    for start in range(0, count, step):
        here = slice(start, min(count, start + step))
        second = split(*cut, here, keep=False)
        if whole is left:
            yield multiply(first, second), everything, here
        else:
            yield multiply(second, first), here, everything


class AgainOnGpu:
    """One real part of a product made again by more moduli; see `distributed.inner.Again`."""

    def __init__(self, backend: OnGpu, part: int) -> None:
        self.backend, self.part = backend, part
        self.system = more.More(backend.work, part)
        self.lost: dict[bool, Tensor] = {}

    def empty_digits(self, m: int, n: int) -> Tensor:
        """Room for digits."""
        return more.empty_digits(m, n, self.system)

    def blocks(
        self, left: GpuOperand, p: int, right: GpuOperand, q: int, taken: set[int | None]
    ) -> Iterator[tuple[Tensor, slice, slice]]:
        """Digits, some columns or rows at a time, which are split just before."""
        for operand in (left, right):
            self.lost[operand.left] = torch.zeros(operand.count, dtype=torch.int32, device=self.backend.place)

        def split(operand: GpuOperand, number: int, here: slice, *, keep: bool) -> Split:
            found, self.lost[operand.left][here] = operand.split_again(number, here, self.system)
            return found

        multiply = functools.partial(more.multiply, more=self.system)
        yield from blocks_of((left, p), (right, q), taken, self.system.moduli, split, multiply)

    def add(self, found: Tensor, into: Tensor | None = None) -> Tensor:
        """Digits of all ranks, added."""
        return more.add(found, self.system, into)

    def losses(self) -> Tensor:
        """Whether rows, and then columns, lost bits; combined by maximum."""
        return torch.cat([self.lost[True], self.lost[False]])[None]

    def magnitudes(self, left: GpuOperand, p: int, right: GpuOperand, q: int) -> Tensor | None:
        """Sums of a piece; None where certificates do not go by |a||b|."""
        if not self.backend.work.levels:
            return None
        (x, of_x), (y, of_y) = left.known(p), right.known(q)
        found: Tensor = more.magnitudes(x, y, (of_x, of_y), self.system)
        return found

    def certify(
        self, sums: Tensor | None, left: GpuOperand, p: int, right: GpuOperand, q: int, landed: GpuLanded, rows: slice,
        columns: slice,
    ) -> int:  # fmt: skip
        """Certify by magnitudes; returns how many entries are still pending."""
        if not landed.out.numel():
            return 0
        pending = landed.pending[self.part]
        if sums is not None:
            statistics = left.statistics(p, rows), right.statistics(q, columns)
            more.certify(sums[:, rows, columns].contiguous(), *statistics, landed.out, pending, self.system)
        return int(pending.sum(dtype=torch.int64))

    def join(
        self, digits: Tensor, lost: Tensor, left: GpuOperand, p: int, right: GpuOperand, q: int, landed: GpuLanded,
        rows: slice, columns: slice,
    ) -> None:  # fmt: skip
        """Set the pending entries whose rounding the digits prove."""
        if not landed.out.numel():
            return
        of_both = torch.cat([lost[0][: left.count][rows], lost[0][left.count :][columns]])
        statistics = left.statistics(p, rows), right.statistics(q, columns)
        more.join(digits, *statistics, of_both, landed.out, landed.pending[self.part], self.system)

    def leave(
        self, left: GpuOperand, p: int, right: GpuOperand, q: int, landed: GpuLanded, rows: slice, columns: slice
    ) -> None:
        """Make a piece of the entries that are still pending."""
        places = landed.pending[self.part].nonzero() if landed.out.numel() else torch.zeros(0, 2)
        if not len(places):
            return
        (i, r), (j, c) = (np.unique(x, return_inverse=True) for x in places.cpu().numpy().T)
        wholes, entries = (rows.start + i, columns.start + j), Entries(self.part, r, c)
        joined = Joined(
            np.zeros((i.size, j.size), self.backend.setting.dtype), self.backend.setting, left.scales(p, wholes[0]),
            right.scales(q, wholes[1]), [entries], [], Outcome(), None, self.backend.workers, tried=True,
        )  # fmt: skip
        values = landed.part(self.part)[places[:, 0], places[:, 1]]
        real_parts(joined.out)[self.part][r, c] = values.cpu().numpy()
        landed.single.append((Piece(joined, *wholes), entries, places))


class GpuOperand:
    """Tensors; see `distributed.inner.Operand`. Of vectors (10, ·) statistics as of `cuda.partial.steps`."""

    def __init__(self, x: Tensor, left: bool, setting: Setting, work: Work) -> None:
        self.left, self.setting, self.work = left, setting, work
        self.batch = tuple(x.shape[:-2])
        self.matrices = math.prod(self.batch)
        self._parts: list[Tensor] = list(x.reshape(self.matrices, *x.shape[-2:]))
        self.count = int(x.shape[-2] if left else x.shape[-1])
        self._statistics = torch.zeros(
            self.matrices, STATISTICS, self.count, dtype=torch.int64, device=x.device
        )  # fmt: skip
        self._kept: tuple[int, Split] | None = None
        self._turned: tuple[int, Tensor] | None = None
        self._host: NDArray[np.int64] | None = None

    def _standing(self, p: int) -> Tensor:
        """Matrix p as (k, vectors), its vectors neighbours; the last one stays."""
        if self._turned is None or self._turned[0] != p:
            x = self._parts[p].mT if self.left else self._parts[p]
            self._turned = p, x if x.shape[1] == 1 or x.stride(1) == 1 else x.contiguous()
        return self._turned[1]

    def _rows(self, first: int, last: int) -> Tensor:
        """Some rows of the statistics of all matrices, (rows, matrices·count)."""
        return self._statistics[:, first:last].transpose(0, 1).reshape(last - first, self.matrices * self.count)

    def _set(self, first: int, rows: Tensor) -> None:
        count = len(rows)
        self._statistics[:, first : first + count] = rows.view(count, self.matrices, self.count).transpose(0, 1)

    def extents(self) -> Tensor:
        """Patterns of the largest magnitudes."""
        for p in range(self.matrices):
            steps.measure_largest(self._standing(p), self._statistics[p], self.work)
        return self._rows(LARGEST, LARGEST + 1)

    def norms(self, extent: Tensor) -> Tensor:
        """Integer norms, and counts where they are wanted."""
        self._set(LARGEST, extent)
        for p in range(self.matrices):
            steps.measure_norms(self._standing(p), self._statistics[p], self.work)
        return torch.cat([self._rows(NORM2, NORM1 + 1), self._rows(COUNTS, COUNTS + self.setting.levels)])

    def scaled(self, norm: Tensor) -> None:
        """All ranks' norms."""
        self._set(NORM2, norm[:2])
        self._set(COUNTS, norm[2:])

    def split(self, p: int, vectors: slice, keep: bool = False) -> Split:
        """Planes of some vectors of matrix p; the last one stays that was to be kept."""
        if keep and self._kept is not None and self._kept[0] == p:
            return self._kept[1]
        if keep:
            self._kept = None  # its memory first
        statistics = self._statistics[p][:, vectors]
        found = steps.split(self._standing(p)[:, vectors], statistics, self.work, left=self.left)
        if keep:
            self._kept = p, found
            self._turned = None
        return found

    def known(self, p: int) -> tuple[Tensor, Tensor]:
        """Matrix p as (k, vectors), and its statistics."""
        return self._standing(p), self._statistics[p]

    def split_again(self, p: int, vectors: slice, system: More) -> tuple[Split, Tensor]:
        """Planes of more moduli of some vectors of matrix p, and which lost bits."""
        return more.split(
            self._standing(p)[:, vectors], self._statistics[p][:, vectors].contiguous(), system, left=self.left
        )

    @property
    def lost(self) -> Tensor:
        """Sums of squares of residuals, or bounds of them."""
        return self._rows(RESIDUAL, RESIDUAL + 1)

    @lost.setter
    def lost(self, found: Tensor) -> None:
        self._set(RESIDUAL, found)
        self._kept = self._turned = self._host = None

    def statistics(self, p: int, share: slice) -> Tensor:
        """Of some vectors of matrix p, for the GPU's join."""
        return self._statistics[p][:, share].contiguous()

    def _counted(self, p: int) -> NDArray[np.int64]:
        """Statistics of matrix p on the CPU, with all ranks' numbers."""
        if self._host is None:
            self._host = self._statistics.cpu().numpy()
        found: NDArray[np.int64] = self._host[p]
        return found

    def _exponent(self, largest: NDArray[np.int64]) -> NDArray[np.int64]:
        finite = largest < _INFINITE
        # frexp gives |x| < 2^e with |x| >= 2^(e-1), as all engines do; 0 for zero.
        return np.where(finite, np.frexp(np.where(finite, largest, 0).view(np.float64))[1], NONFINITE).astype(np.int64)

    def nonfinite(self, p: int) -> NDArray[np.bool_]:
        """By the largest patterns."""
        found: NDArray[np.bool_] = (self._statistics[p, LARGEST] >= _INFINITE).cpu().numpy()
        return found

    def whole(self, p: int) -> NDArray[Any]:
        """A copy."""
        found: NDArray[Any] = self._parts[p].cpu().numpy()
        return found

    def met(self, p: int, vectors: NDArray[np.int64]) -> Met:
        """Copies of those that are asked for."""
        chosen, positions = np.unique(vectors, return_inverse=True)
        index = torch.from_numpy(chosen).to(self._statistics.device)
        matrix = self._parts[p].index_select(0 if self.left else 1, index).cpu().numpy()
        counted = self._counted(p)[:, chosen]
        shift = np.where(counted[LARGEST] < _INFINITE, counted[SHIFT], -NONFINITE)
        return Met(matrix, self._exponent(counted[LARGEST]), shift, positions)

    def extents_of(self, p: int, met: Met, maximum: Callable[[Any], Any]) -> NDArray[np.int64]:
        """From the copies."""
        found: NDArray[np.int64] = maximum(scales.extents(met.matrix, "left" if self.left else "right"))
        return found

    def scales(self, p: int, vectors: NDArray[np.int64]) -> Scales:
        """Of some vectors of matrix p, for the CPU's join."""
        counted = self._counted(p)[:, vectors]
        norm = counted[[NORM2, NORM1, *range(COUNTS, COUNTS + self.setting.levels)]]
        # Σ ceil(2^10·|δ|)², which is above Σδ² in units of 2^-20, in those of `scales.UNIT`; 0 only where all are.
        lost = np.stack([counted[RESIDUAL] << (scales.UNIT - 20), np.zeros_like(counted[RESIDUAL])])
        return scales.scales(self._exponent(counted[LARGEST]), norm, lost, self.setting)
