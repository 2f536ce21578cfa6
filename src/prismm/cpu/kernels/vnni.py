"""INT8 products on a unit of bytes (`byte_unit`): a micro-kernel written in LLVM IR, whose sums never leave the cache.

Residues of A are signed bytes, four consecutive ones a dword that is broadcast; residues of B are stored as b + 128,
unsigned, in panels of 32 columns with four consecutive rows a dword. ``vpdpbusd``, or what stands for it, adds four
products of an unsigned and a signed byte to an int32, without saturation, so Σ a·(b + 128) - 128·Σ a = Σ a·b modulo
2^32: exactly the int32 sum where |Σ a·b| < 2^31, which k <= 131071 ensures for bytes (2^14·k). Rows of A end with their
-128·Σ a, one int32 per `CHUNK` of the inner dimension, and the sums start from it; between chunks they are reduced
modulo q.

Per step of 4 in k on AVX-512: 24 vpdpbusd, 2 loads of B (128 bytes, L2), 12 broadcasts of A (48 bytes, L1): 1536
multiply-adds in 24 cycles of an engine that takes one vpdpbusd a cycle (measured 99 % of that from k = 1024 on, 468
GOP/s on one core at 3.66 GHz). With AVX2, per step, 4 rows and 16 columns: 16 vpmaddwd, 16 vpaddd, and 4 instructions
that widen B: 256 multiply-adds; A is widened once a tile, for 12 uses (measured 71 Gmultiply-adds/s on one core of a
Zen 3).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload

from prismm.core.jit import HELPER, counting, device, fma, kernel
from prismm.cpu.kernels.byte_unit import (
    I8,
    I32,
    I64,
    LANES,
    declared,
    dot,
    dot_of_words,
    everywhere,
    register_lanes,
    unit,
    vector,
    widens,
    words_of,
)  # fmt: skip
from prismm.cpu.kernels.lanes import loop

# On AVX-512 24 sums of 16 lanes, two vectors of B and one of A fit in the 32 registers.
ROWS, FEW_ROWS, COLUMNS = 12, 4, 32
# The largest multiple of 64 for which 2^14·k stays below 2^31.
CHUNK = 131_008
# Steps of 4 in k whose 128 kB of a panel stay in the L2 cache while all rows of a tile meet them.
DEEP = 1024
# The same where bytes are widened, so that the widened rows of a tile (96 kB) stay there too.
WIDE_DEEP = 256
TILE_ROWS, TILE_COLUMNS = 48, 192


def supported() -> bool:
    """Whether the CPU that Numba compiles for has one of the units."""
    return unit() != ""


def _micro(rows: int) -> Any:
    """The micro-kernel for so many rows and 32 columns, as an intrinsic (see `micro12`)."""

    def number(x: int) -> Any:
        return ir.Constant(I64, x)

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        start, pitch, offsets, offset_pitch, panel, steps, out, width, fresh, ahead1, stride1, ahead2, stride2 = args
        prefetch = declared(b.module, "llvm.prefetch.p0", ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
        lanes = register_lanes()
        kind = vector(I32, lanes)

        def at(address: Any, offset: Any, kind: Any) -> Any:
            return b.inttoptr(b.add(address, offset), kind.as_pointer())

        def load(pointer: Any) -> Any:
            value = b.load(pointer)
            value.align = 4
            return value

        def block(first: int, tall: int, columns: range, fetches: bool) -> None:
            """Some rows and columns, whose sums fit the registers."""
            lines = [b.mul(pitch, number(first + r)) for r in range(tall)]
            places = [
                [at(out, b.mul(b.add(b.mul(width, number(first + r)), number(j)), number(4)), kind) for j in columns]
                for r in range(tall)
            ]
            blocks = {what: b.append_basic_block(what) for what in ("fresh", "more", "loop", "done")}
            b.cbranch(b.icmp_signed("!=", fresh, number(0)), blocks["fresh"], blocks["more"])
            b.position_at_end(blocks["fresh"])
            ends = [at(offsets, b.mul(offset_pitch, number(first + r)), I32) for r in range(tall)]
            begun = [everywhere(b, load(end), lanes) for end in ends]
            b.branch(blocks["loop"])
            b.position_at_end(blocks["more"])
            kept = [[load(place) for place in row] for row in places]
            b.branch(blocks["loop"])
            b.position_at_end(blocks["loop"])
            step = b.phi(I64)
            step.add_incoming(number(0), blocks["fresh"])
            step.add_incoming(number(0), blocks["more"])
            sums = [[b.phi(kind) for _ in columns] for _ in range(tall)]
            for r in range(tall):
                for v in range(len(columns)):
                    sums[r][v].add_incoming(begun[r], blocks["fresh"])
                    sums[r][v].add_incoming(kept[r][v], blocks["more"])
            for ahead, stride in ((ahead1, stride1), (ahead2, stride2)) if fetches else ():
                to = b.inttoptr(b.add(ahead, b.mul(step, stride)), I8.as_pointer())
                b.call(prefetch, [to, ir.Constant(I32, 0), ir.Constant(I32, 2), ir.Constant(I32, 1)])
            here = b.mul(step, number(4 * COLUMNS))
            right = [load(at(panel, b.add(here, number(4 * j)), kind)) for j in columns]
            wide = [words_of(b, x, False) for x in right] if widens() else []
            new = []
            for r in range(tall):
                left = everywhere(b, load(b.gep(at(start, lines[r], I32), [step])), lanes)
                if wide:
                    odd = load(b.gep(at(start, lines[r], I32), [b.add(step, number(WIDE_DEEP))]))
                    pair = left, everywhere(b, odd, lanes)
                    new.append([dot_of_words(b, s, x, pair) for s, x in zip(sums[r], wide, strict=True)])
                else:
                    new.append([dot(b, s, x, left) for s, x in zip(sums[r], right, strict=True)])
            following = b.add(step, number(1))
            step.add_incoming(following, blocks["loop"])
            for r in range(tall):
                for v in range(len(columns)):
                    sums[r][v].add_incoming(new[r][v], blocks["loop"])
            b.cbranch(b.icmp_signed("<", following, steps), blocks["loop"], blocks["done"])
            b.position_at_end(blocks["done"])
            for r in range(tall):
                for v in range(len(columns)):
                    b.store(new[r][v], places[r][v]).align = 4

        # Of 32 registers of 512 bits 24 hold sums, of 16 of 256 bits 8.
        tall, across = (rows, COLUMNS) if lanes == LANES else (FEW_ROWS, COLUMNS // 2)
        for first in range(0, rows, tall):
            for j in range(0, COLUMNS, across):
                block(first, tall, range(j, j + across, lanes), first == j == 0)
        return context.get_dummy_value()

    @intrinsic
    def micro(
        typingctx: Any, start: Any, pitch: Any, offsets: Any, offset_pitch: Any, panel: Any, steps: Any, out: Any,
        width: Any, fresh: Any, ahead1: Any, stride1: Any, ahead2: Any, stride2: Any,
    ) -> Any:  # fmt: skip
        address, count = types.uintp, types.intp
        rows, ahead = (address, count, address, count), (address, count, address, count)
        return types.void(*rows, address, count, address, count, count, *ahead), codegen

    return micro


micro12 = _micro(ROWS)
"""micro12(start, pitch, offsets, offset_pitch, panel, steps, out, width, fresh, ahead1, stride1, ahead2, stride2): out
(12, 32) of int32, `width` a row, plus, or (where `fresh`) the rows' int32 at `offsets` plus, Σ over `steps` >= 1 dwords
of rows at `start` and of the panel; `pitch` and `offset_pitch` bytes from row to row. Where the unit widens bytes, the
rows are those of `widen`. What lies at `ahead`, `stride` bytes a step, is fetched into the L2 cache. All but steps,
width and fresh are addresses and bytes."""
micro4 = _micro(FEW_ROWS)


@intrinsic
def widen(typingctx: Any, source: Any, steps: Any, target: Any) -> Any:
    """`steps` >= 1 dwords of signed bytes as 16-bit integers: dwords of the even bytes, and `WIDE_DEEP` dwords later
    those of the odd ones. Eight dwords are read and written at a time.
    """

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        kind = vector(I32, 8)

        def row(h: Any, total: Any) -> Any:
            here = b.mul(h, ir.Constant(I64, 32))
            x = b.load(b.inttoptr(b.add(args[0], here), kind.as_pointer()))
            x.align = 4
            for words, offset in zip(words_of(b, x, True), (0, 4 * WIDE_DEEP), strict=True):
                place = b.inttoptr(b.add(args[2], b.add(here, ir.Constant(I64, offset))), kind.as_pointer())
                b.store(b.bitcast(words, kind), place).align = 4
            return total

        loop(b, b.udiv(b.add(args[1], ir.Constant(I64, 7)), ir.Constant(I64, 8)), row)
        return context.get_dummy_value()

    return types.void(types.uintp, types.intp, types.uintp), codegen


def has_wide_rows() -> bool:
    """In kernels: whether the unit widens bytes, as a constant."""
    raise NotImplementedError("a device function")


@overload(has_wide_rows, jit_options=HELPER)
def _has_wide_rows() -> Any:
    found = widens()
    return lambda: found


@counting
def wide_rows(rows):
    """Scratch for so many rows as `widen` writes them; next to nothing where the unit reads bytes."""
    return np.empty((rows if has_wide_rows() else 1, 2 * WIDE_DEEP if has_wide_rows() else 1), np.int32)


@intrinsic
def _int32_at(typingctx: Any, address: Any) -> Any:
    """The int32 at an address."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.load(b.inttoptr(args[0], I32.as_pointer()))

    return types.int32(types.uintp), codegen


@device
def _fold(tile, rows, columns, offset, pitch, modulus):
    """Reduce sums modulo q, and add the rows' int32 at `offset`: the start of the next chunk."""
    r = 1.0 / modulus
    for i in range(rows):
        row = tile[i]
        start = np.int64(_int32_at(np.uint64(offset + i * pitch)))
        for j in range(columns):
            v = np.float64(row[j])
            # Wraps as the hardware does: the offset belongs to the unsigned bytes of the next chunk.
            row[j] = np.int32(np.int64(fma(-np.rint(v * r), modulus, v)) + start)


@device
def tile_product(left, first, rows, right, panel, panels, k, modulus, tile, wide, next_left, next_right):
    """tile[:rows, :32·panels] = rows first, first + 1, … of left (m, pitch) times some panels of right (·, >= k/4, 32).

    next_left, next_right: addresses of what the next product will read first, fetched into the L2 cache on the way: its
    rows, and its first panel. Rows of `left` are contiguous. Whole micro-tiles are written: `tile` and `left` have room
    for a multiple of 4 rows. wide: scratch from `wide_rows`, for as many.
    """
    pitch = left.shape[1]
    width = tile.strides[0] // 4
    steps = (k + 3) // 4
    height = right.shape[1]
    chunks = (k + CHUNK - 1) // CHUNK
    base = left.ctypes.data + first * pitch
    out = tile.ctypes.data
    for chunk in range(chunks):
        begin = chunk * (CHUNK // 4)
        end = min(steps, begin + CHUNK // 4)
        # The offsets stand at the end of each row, the first chunk's first.
        tail = pitch - 4 * (chunks - chunk)
        if chunk > 0:
            _fold(tile, rows, 32 * panels, base + tail, pitch, modulus)
        deep = WIDE_DEEP if has_wide_rows() else DEEP
        for h in range(begin, end, deep):
            depth = min(deep, end - h)
            if has_wide_rows():
                for i in range((rows + FEW_ROWS - 1) // FEW_ROWS * FEW_ROWS):
                    source = np.uint64(base + i * pitch + 4 * h)
                    widen(source, depth, np.uint64(wide.ctypes.data + i * wide.strides[0]))
            fresh = np.int64(h == 0)
            blocks = (rows + ROWS - 1) // ROWS
            # Bytes to fetch per step, so that the next panel, and the next rows, have come when they are needed.
            share = 128 // blocks
            rows_share = rows * pitch // (blocks * panels * steps) + 1
            for p in range(panels):
                following = right.ctypes.data + ((panel + p + 1) * height + h) * 128
                following = following if p + 1 < panels else next_right
                block = np.uint64(right.ctypes.data + ((panel + p) * height + h) * 128)
                i = 0
                while i < rows:
                    start, row_pitch = base + i * pitch + 4 * h, pitch
                    if has_wide_rows():
                        start, row_pitch = wide.ctypes.data + i * wide.strides[0], wide.strides[0]
                    offsets = np.uint64(base + i * pitch + tail)
                    place = np.uint64(out + (i * width + 32 * p) * 4)
                    ahead1 = np.uint64(following + i // ROWS * share * depth)
                    ahead2 = np.uint64(next_left + (p * blocks + i // ROWS) * rows_share * depth)
                    # For eight rows or fewer, two calls of four waste less than one of twelve.
                    if rows - i > 2 * FEW_ROWS:
                        micro12(
                            np.uint64(start), row_pitch, offsets, pitch, block, depth, place, width, fresh,
                            ahead1, share, ahead2, rows_share,
                        )  # fmt: skip
                        i += ROWS
                    else:
                        micro4(
                            np.uint64(start), row_pitch, offsets, pitch, block, depth, place, width, fresh,
                            ahead1, share, ahead2, rows_share,
                        )  # fmt: skip
                        i += FEW_ROWS


@device
def tile_products(left, right, i0, rows, following, j0, columns, k, modulus, tiles, wide):
    """`tile_product` for every modulus: rows i0 to i0 + rows of left (moduli, m, pitch), columns from j0 on of right
    (moduli, panels, >= k/4, 32) into tiles (rows, moduli, columns). following: the first row that the next tile reads.
    """
    last = left.shape[0] - 1
    for which in range(last + 1):
        after = 0 if which == last else which + 1
        row = following if which == last else i0
        next_left = left[after].ctypes.data + row * left.shape[2]
        next_right = right[after, j0 // 32].ctypes.data
        tile_product(
            left[which], i0, rows, right[which], j0 // 32, (columns + 31) // 32, k, modulus[which], tiles[:, which],
            wide, next_left, next_right,
        )  # fmt: skip


@kernel("void(int8[:,:,:], uint32[:,:,:,::1], int64, float64[::1], int32[:,:,::1])")
def packed_product(left, right, k, modulus, out):
    """out (m, moduli, n) = left (moduli, m, pitch) times right (moduli, panels, >= k/4, 32), n = 32·panels, in int32;
    m is a multiple of 4. What the engine's proof and the tests look at.
    """
    zero = np.int64(0)  # of the type that the fused product has here, so that both share what is compiled
    wide = wide_rows(out.shape[0])
    tile_products(left, right, zero, out.shape[0], zero, zero, out.shape[2], k, modulus, out, wide)
