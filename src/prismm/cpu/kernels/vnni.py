"""INT8 products on the AVX-512 VNNI unit: a micro-kernel written in LLVM IR, whose sums never leave the cache.

Residues of A are signed bytes, four consecutive ones a dword that is broadcast; residues of B are stored as b + 128,
unsigned, in panels of 32 columns with four consecutive rows a dword. ``vpdpbusd`` adds four products of an unsigned
and a signed byte to an int32, without saturation, so Σ a·(b + 128) - 128·Σ a = Σ a·b modulo 2^32: exactly the int32
sum where |Σ a·b| < 2^31, which k <= 131071 ensures for bytes (2^14·k). Rows of A end with their -128·Σ a, one int32
per `CHUNK` of the inner dimension, and the sums start from it; between chunks they are reduced modulo q.

Per step of 4 in k: 24 vpdpbusd, 2 loads of B (128 bytes, L2), 12 broadcasts of A (48 bytes, L1): 1536 multiply-adds
in 24 cycles of an engine that takes one vpdpbusd a cycle (measured 99 % of that from k = 1024 on, 468 GOP/s on one
core at 3.66 GHz).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from prismm.core.jit import device, fma, kernel
from prismm.cpu.kernels.residue import declared, dot_function, dot_operand, everywhere

# 24 sums of 16 lanes, two vectors of B and one of A fit in the 32 registers.
ROWS, FEW_ROWS, COLUMNS = 12, 4, 32
# The largest multiple of 64 for which 2^14·k stays below 2^31.
CHUNK = 131_008
# Steps of 4 in k whose 128 kB of a panel stay in the L2 cache while all rows of a tile meet them.
DEEP = 1024
TILE_ROWS, TILE_COLUMNS = 48, 192


@functools.cache
def supported() -> bool:
    """Whether the CPU that Numba compiles for has AVX-512 VNNI."""
    features = cpu_target.target_context.codegen()._get_host_cpu_features().split(",")
    return {"+avx512f", "+avx512bw", "+avx512dq", "+avx512vl", "+avx512vnni"} <= set(features)


def _micro(rows: int) -> Any:
    """The micro-kernel for so many rows and 32 columns, as an intrinsic (see `micro12`)."""
    vectors = COLUMNS // 16
    i8, i32, i64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
    v16 = ir.VectorType(i32, 16)
    operand = dot_operand()

    def number(x: int) -> Any:
        return ir.Constant(i64, x)

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        start, pitch, offsets, panel, steps, out, width, fresh, ahead1, stride1, ahead2, stride2 = args
        dot = dot_function(b.module)
        prefetch = declared(b.module, "llvm.prefetch.p0", ir.VoidType(), [i8.as_pointer(), i32, i32, i32])

        def at(address: Any, offset: Any, kind: Any) -> Any:
            return b.inttoptr(b.add(address, offset), kind.as_pointer())

        def load(pointer: Any) -> Any:
            value = b.load(pointer)
            value.align = 4
            return value

        lines = [b.mul(pitch, number(r)) for r in range(rows)]
        places = [
            [at(out, b.mul(b.add(b.mul(width, number(r)), number(16 * v)), number(4)), v16) for v in range(vectors)]
            for r in range(rows)
        ]
        blocks = {what: b.append_basic_block(what) for what in ("fresh", "more", "loop", "done")}
        b.cbranch(b.icmp_signed("!=", fresh, number(0)), blocks["fresh"], blocks["more"])
        b.position_at_end(blocks["fresh"])
        begun = [everywhere(b, load(at(offsets, line, i32))) for line in lines]
        b.branch(blocks["loop"])
        b.position_at_end(blocks["more"])
        kept = [[load(place) for place in row] for row in places]
        b.branch(blocks["loop"])
        b.position_at_end(blocks["loop"])
        step = b.phi(i64)
        step.add_incoming(number(0), blocks["fresh"])
        step.add_incoming(number(0), blocks["more"])
        sums = [[b.phi(v16) for _ in range(vectors)] for _ in range(rows)]
        for r in range(rows):
            for v in range(vectors):
                sums[r][v].add_incoming(begun[r], blocks["fresh"])
                sums[r][v].add_incoming(kept[r][v], blocks["more"])
        for ahead, stride in ((ahead1, stride1), (ahead2, stride2)):
            to = b.inttoptr(b.add(ahead, b.mul(step, stride)), i8.as_pointer())
            b.call(prefetch, [to, ir.Constant(i32, 0), ir.Constant(i32, 2), ir.Constant(i32, 1)])
        here = b.mul(step, number(4 * COLUMNS))
        right = [b.bitcast(load(at(panel, b.add(here, number(64 * v)), v16)), operand) for v in range(vectors)]
        new = []
        for r in range(rows):
            dword = load(b.gep(at(start, lines[r], i32), [step]))
            left = b.bitcast(everywhere(b, dword), operand)
            new.append([b.call(dot, [sums[r][v], right[v], left]) for v in range(vectors)])
        following = b.add(step, number(1))
        step.add_incoming(following, blocks["loop"])
        for r in range(rows):
            for v in range(vectors):
                sums[r][v].add_incoming(new[r][v], blocks["loop"])
        b.cbranch(b.icmp_signed("<", following, steps), blocks["loop"], blocks["done"])
        b.position_at_end(blocks["done"])
        for r in range(rows):
            for v in range(vectors):
                b.store(new[r][v], places[r][v]).align = 4
        return context.get_dummy_value()

    @intrinsic
    def micro(
        typingctx: Any, start: Any, pitch: Any, offsets: Any, panel: Any, steps: Any, out: Any, width: Any,
        fresh: Any, ahead1: Any, stride1: Any, ahead2: Any, stride2: Any,
    ) -> Any:  # fmt: skip
        address, count = types.uintp, types.intp
        ahead = (address, count, address, count)
        return types.void(address, count, address, address, count, address, count, count, *ahead), codegen

    return micro


micro12 = _micro(ROWS)
"""micro12(start, pitch, offsets, panel, steps, out, width, fresh, ahead1, stride1, ahead2, stride2): out (12, 32) of
int32, `width` a row, plus, or (where `fresh`) the rows' int32 at `offsets` plus, Σ over `steps` >= 1 dwords of rows at
`start` and of the panel; `pitch` bytes from row to row. What lies at `ahead`, `stride` bytes a step, is fetched into
the L2 cache. All but steps, width and fresh are addresses and bytes."""
micro4 = _micro(FEW_ROWS)


@intrinsic
def _int32_at(typingctx: Any, address: Any) -> Any:
    """The int32 at an address."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.load(b.inttoptr(args[0], ir.IntType(32).as_pointer()))

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
def tile_product(left, first, rows, right, panel, panels, k, modulus, tile, next_left, next_right):
    """tile[:rows, :32·panels] = rows first, first + 1, … of left (m, pitch) times some panels of right (·, >= k/4, 32).

    next_left, next_right: addresses of what the next product will read first, fetched into the L2 cache on the way: its
    rows, and its first panel. Rows of `left` are contiguous. Whole micro-tiles are written: `tile` and `left` have room
    for a multiple of 4 rows.
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
        for h in range(begin, end, DEEP):
            depth = min(DEEP, end - h)
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
                    start = np.uint64(base + i * pitch + 4 * h)
                    offsets = np.uint64(base + i * pitch + tail)
                    place = np.uint64(out + (i * width + 32 * p) * 4)
                    ahead1 = np.uint64(following + i // ROWS * share * depth)
                    ahead2 = np.uint64(next_left + (p * blocks + i // ROWS) * rows_share * depth)
                    # For eight rows or fewer, two calls of four waste less than one of twelve.
                    if rows - i > 2 * FEW_ROWS:
                        micro12(
                            start, pitch, offsets, block, depth, place, width, fresh, ahead1, share, ahead2, rows_share
                        )
                        i += ROWS
                    else:
                        micro4(
                            start, pitch, offsets, block, depth, place, width, fresh, ahead1, share, ahead2, rows_share
                        )
                        i += FEW_ROWS


@device
def tile_products(left, right, i0, rows, following, j0, columns, k, modulus, tiles):
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
            next_left, next_right,
        )  # fmt: skip


@kernel("void(int8[:,:,:], uint32[:,:,:,::1], int64, float64[::1], int32[:,:,::1])")
def packed_product(left, right, k, modulus, out):
    """out (m, moduli, n) = left (moduli, m, pitch) times right (moduli, panels, >= k/4, 32), n = 32·panels, in int32;
    m is a multiple of 4. What the engine's proof and the tests look at.
    """
    zero = np.int64(0)  # of the type that the fused product has here, so that both share what is compiled
    tile_products(left, right, zero, out.shape[0], zero, zero, out.shape[2], k, modulus, out)
