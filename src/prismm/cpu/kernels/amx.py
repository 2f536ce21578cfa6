"""INT8 products on the AMX tile unit: a micro-kernel in LLVM IR, whose sums are reduced to bytes beside the next one.

``tdpbsud`` adds the product of a tile of 16 x 64 signed bytes and one of 64 x 16 unsigned bytes (four rows a dword) to
16 x 16 int32, in 16 cycles. The packed residues of `vnni` are its operands as they are: rows of A at a stride of one
row, a panel of B as two tiles at a stride of 128 bytes. As there, Σ a·(b + 128) - 128·Σ a = Σ a·b modulo 2^32, which is
the int32 sum where |Σ a·b| < 2^31, as k <= `vnni.CHUNK` ensures.

A step of 64 in k takes 32 rows and 32 columns: two tiles of A and two of B (4 kB) for four products (64 cycles). Four
sums leave a register for each operand, so that each is loaded once (`ORDER`). Six sums, of 48 rows, would leave two,
and seven loads for six products; where a sibling thread is busy, a load costs more than half of a product. Rows of A
come from the L2 cache, by loads that leave the L1 cache alone (``tileloaddt1``), where `DEPTH` steps of a panel of B
stay for all strips of 32 rows; from the L2 cache both would come too slowly. The int32 sums wait in scratch between
such depths, and are reduced modulo q while the next tile is multiplied: a dot product of bytes, a quotient in float32
and a multiply-add for 16 of them. Only bytes leave the kernel.

A panel of B comes from the L3 cache, 2 kB a step, once for all strips of A that are in the L2 cache. Of a long inner
dimension few strips would fit there, and the panels would come too slowly: so it is cut into spans (`span_steps`), and
the sums of a span begin with the digits of the one before. A span's sums without the rows' offsets are below
2^14·2·64·`SPAN` + 2^7; the offset, below 2^14·k in magnitude, comes with the last one: all stay below 2^31 for k <=
`CUT`, and longer ones, up to `vnni.CHUNK`, are not cut.

Reduction: with v + 2^31 as four unsigned bytes, u = Σ byte·(256^b mod q) - (2^31 mod q) has |u| <= 4·255·128 + 128 <
2^17, since the factors are at most 128 in magnitude. u is exact in float32, and u·(1/q) there errs by at most
2^-23·|u|/q < 2^-6/q. An odd q leaves at least 1/(2q) between u/q and the midpoint of two integers, so that the quotient
is the nearest integer and the digit lies in [-(q-1)/2, (q-1)/2]. For q = 256 the quotient is exact, and a tie's +128
becomes the byte -128, the same number modulo 256.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from prismm.core.jit import counting, device, kernel
from prismm.cpu.kernels.byte_unit import add_pairs, declared, dot, everywhere, nearest_integers
from prismm.cpu.kernels.lanes import loop, number
from prismm.cpu.kernels.vnni import CHUNK

STRIP_ROWS, PANEL = 32, 32
"""Rows and columns of a tile."""

DEPTH = 16
"""Steps of 64 in k whose 2 kB of a panel, 32 kB in all, stay in an L1 cache of 48 kB."""

BLOCK_BYTES = 720 << 10
"""Bytes of A that stay in an L2 cache of 2 MiB while the panels of a modulus pass by."""

MOST_STRIPS = 30
"""Strips that are multiplied by all panels of a modulus before the next ones, at most."""

SPAN, CUT = 40, 1 << 16
"""Steps of 64 in k of a span, at most, and the longest inner dimension that is cut into such."""

DIGIT_BYTES = 8 << 20
"""Bytes of digits that wait for their join, in the L3 cache."""


def span_steps(steps: int) -> int:
    """Steps of 64 in k of one span of so many: spans of equal length, but for the last."""
    spans = (steps + SPAN - 1) // SPAN if 64 * steps <= CUT else 1
    return (steps + spans - 1) // spans


_span_steps = device(span_steps)


def block_strips(steps: int) -> int:
    """Strips, so many steps of each, that are multiplied by all panels of a modulus before the next ones."""
    return max(1, min(BLOCK_BYTES // (64 * steps * STRIP_ROWS), MOST_STRIPS))


_block_strips = device(block_strips)


def joined_strips(rows: int, columns: int, moduli: int) -> int:
    """Strips whose digits of all moduli are made before they are joined: a modulus of B is then read from the L3 cache
    once for all of them.
    """
    most = DIGIT_BYTES // (STRIP_ROWS * -(-max(columns, 1) // PANEL) * PANEL * moduli)
    return max(1, min(-(-max(rows, 1) // STRIP_ROWS), most))


SCRATCH_BYTES = 2 * MOST_STRIPS * STRIP_ROWS * PANEL * 4
"""Bytes of scratch that `digits_of` needs: int32 tiles of a block in two panels."""


_I8, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_V32, _VF, _B16 = ir.VectorType(_I32, 16), ir.VectorType(_F32, 16), ir.VectorType(_I8, 16)
_POINTER = _I8.as_pointer()

ORDER = {
    2: "b06 a04 b17 d00 a15 d01 d10 d11",
    1: "b06 a04 b17 d00 d01",
}
"""A step of 64 in k for strips of 32 and 16 rows: loads (matrix, which 16 rows or columns, register), and products
(which rows, which columns)."""

AHEAD = 3
"""Lines of the next panel that are fetched into the L2 cache beside a step: eleven strips fetch all 32 of each step."""

ROWS_AHEAD = 2
"""Rows of the next strip of A, in the same place of the next block or modulus, of which a line each is fetched beside a
step: the last sixteen panels fetch all 32."""

_BESIDE = 4
"""Rows of the earlier tile that are reduced beside a step."""


@functools.cache
def supported() -> bool:
    """Whether the CPU that Numba compiles for has AMX's INT8 tiles (the system may refuse them all the same)."""
    features = set(cpu_target.target_context.codegen()._get_host_cpu_features().split(","))
    return {"+amx-tile", "+amx-int8", "+avx512f", "+avx512bw", "+avx512dq", "+avx512vl", "+avx512vnni"} <= features


def _pointer(b: Any, address: Any, kind: Any = _I8) -> Any:
    return b.inttoptr(address, kind.as_pointer())


def _tile(b: Any, name: str, registers: list[int], *memory: Any) -> None:
    """An instruction on tile registers, and, where it is a load or a store, an address and a stride."""
    kinds: list[Any] = [_I8] * len(registers) + ([_POINTER, _I64] if memory else [])
    operands = [ir.Constant(_I8, x) for x in registers]
    if memory:
        operands += [_pointer(b, memory[0]), memory[1]]
    b.call(declared(b.module, f"llvm.x86.{name}", ir.VoidType(), kinds), operands)


def _configuration(module: Any) -> Any:
    """Palette 1: eight tiles of 16 rows of 64 bytes."""
    name = "prismm.amx.configuration"
    if name not in module.globals:
        data = bytearray(64)
        data[0] = 1
        for tile in range(8):
            data[16 + 2 * tile] = 64
            data[48 + tile] = 16
        kind = ir.ArrayType(_I8, 64)
        table = ir.GlobalVariable(module, kind, name)
        table.initializer, table.global_constant, table.linkage = ir.Constant(kind, data), True, "internal"
        table.align = 64
    return module.globals[name]


@intrinsic
def configure(typingctx: Any) -> Any:
    """Tile registers for this thread, until `release`: in between nothing of Python's, and no other user of tiles."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        table = b.bitcast(_configuration(b.module), _POINTER)
        b.call(declared(b.module, "llvm.x86.ldtilecfg", ir.VoidType(), [_POINTER]), [table])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def release(typingctx: Any) -> Any:
    """Tile registers back to their initial state, so that the system saves nothing at a switch of threads."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        b.call(declared(b.module, "llvm.x86.tilerelease", ir.VoidType(), []), [])
        return context.get_dummy_value()

    return types.void(), codegen


class _Reduction:
    """Int32 sums of one row of a tile, 2 x 16, to bytes: see the module."""

    def __init__(self, b: Any, tile: Any, rows: Any, pitch: Any, tail: Any, keep: Any, target: Any, table: Any) -> None:
        self.b, self.tile, self.rows, self.pitch, self.tail, self.target = b, tile, rows, pitch, tail, target
        self.keep = b.trunc(keep, _I32)
        fold, bias, minus, inverse = (self._load(b.add(table, number(4 * x)), _I32) for x in range(4))
        self.fold, self.bias = everywhere(b, fold), everywhere(b, bias)
        self.minus = everywhere(b, minus)
        self.inverse = everywhere(b, b.bitcast(inverse, _F32))

    def _load(self, address: Any, kind: Any, align: int = 4) -> Any:
        value = self.b.load(_pointer(self.b, address, kind))
        value.align = align
        return value

    def row(self, row: Any) -> None:
        b = self.b
        offset = self._load(b.add(self.rows, b.add(b.mul(row, self.pitch), self.tail)), _I32)
        offset = b.and_(offset, self.keep)
        # Flipping the sign bit adds 2^31: the bytes are then those of a positive number, as ``vpdpbusd`` reads them.
        start = everywhere(b, b.xor(offset, ir.Constant(_I32, -(1 << 31))))
        for half in range(PANEL // 16):
            place = b.add(self.tile, b.add(b.mul(row, number(4 * PANEL)), number(64 * half)))
            x = b.add(self._load(place, _V32, 64), start)
            u = dot(b, self.bias, x, self.fold)
            quotient = nearest_integers(b, b.fmul(b.sitofp(u, _VF), self.inverse))
            u = add_pairs(b, u, quotient, self.minus)
            place = b.add(self.target, b.add(b.mul(row, number(PANEL)), number(16 * half)))
            b.store(b.trunc(u, _B16), _pointer(b, place, _B16)).align = 1


def _micro(tall: int) -> Any:
    """The micro-kernel for 16·tall rows and 32 columns, as an intrinsic (see `micro2`)."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        (a, pitch, panel, steps, fresh, here, before, before_a, before_rows, tail, keep, target, table, ahead,
         ahead_a) = args  # fmt: skip
        prefetch = declared(b.module, "llvm.prefetch.p0", ir.VoidType(), [_POINTER, _I32, _I32, _I32])
        to_l2 = [ir.Constant(_I32, x) for x in (0, 2, 1)]  # a read, of data, for the L2 cache
        reduction = _Reduction(b, before, before_a, pitch, tail, keep, target, table)
        sixteen = b.mul(pitch, number(16))

        def step(index: Any) -> None:
            x, y = b.add(a, b.mul(index, number(64))), b.add(panel, b.mul(index, number(64 * PANEL)))
            of_a, of_b = b.add(ahead_a, b.mul(index, number(64))), b.add(ahead, b.mul(index, number(64 * AHEAD)))
            places = [b.add(of_b, number(64 * line)) for line in range(AHEAD)]
            for place in places + [b.add(of_a, b.mul(pitch, number(row))) for row in range(ROWS_AHEAD)]:
                b.call(prefetch, [_pointer(b, place), *to_l2])
            held: dict[tuple[str, str], int] = {}
            for what in ORDER[tall].split():
                which, last = what[1], what[2]
                if what[0] == "d":
                    _tile(b, "tdpbsud", [2 * int(which) + int(last), held["a", which], held["b", last]])
                    continue
                held[what[0], which] = int(last)
                if what[0] == "a":
                    _tile(b, "tileloaddt164", [int(last)], b.add(x, b.mul(sixteen, number(int(which)))), pitch)
                else:
                    _tile(b, "tileloadd64", [int(last)], b.add(y, number(64 * int(which))), number(4 * PANEL))

        names = "fresh", "more", "begin", "both", "between", "multiply", "rest", "reduce", "done"
        blocks = {x: b.append_basic_block(x) for x in names}
        sums = [
            b.add(here, number(16 * 4 * PANEL * (register // 2) + 64 * (register % 2))) for register in range(2 * tall)
        ]
        b.cbranch(b.icmp_signed("!=", fresh, number(0)), blocks["fresh"], blocks["more"])
        b.position_at_end(blocks["fresh"])
        for register in range(2 * tall):
            _tile(b, "tilezero", [register])
        b.branch(blocks["begin"])
        b.position_at_end(blocks["more"])
        for register in range(2 * tall):
            _tile(b, "tileloadd64", [register], sums[register], number(4 * PANEL))
        b.branch(blocks["begin"])
        b.position_at_end(blocks["begin"])
        # The first loop multiplies steps and reduces rows of the earlier tile. When one of the two is finished, another
        # loop completes the other.
        pairs = b.udiv(before_rows, number(_BESIDE))
        few = b.select(b.icmp_signed("<", steps, pairs), steps, pairs)
        none = b.icmp_signed("==", before_rows, number(0))
        b.cbranch(none, blocks["multiply"], blocks["both"])
        b.position_at_end(blocks["both"])
        i = b.phi(_I64)
        i.add_incoming(number(0), blocks["begin"])
        step(i)
        for r in range(_BESIDE):
            reduction.row(b.add(b.mul(i, number(_BESIDE)), number(r)))
        after = b.add(i, number(1))
        i.add_incoming(after, blocks["both"])
        b.cbranch(b.icmp_signed("<", after, few), blocks["both"], blocks["between"])
        b.position_at_end(blocks["between"])
        b.cbranch(b.icmp_signed("<", after, steps), blocks["multiply"], blocks["rest"])
        b.position_at_end(blocks["multiply"])
        i = b.phi(_I64)
        i.add_incoming(after, blocks["between"])
        i.add_incoming(number(0), blocks["begin"])
        step(i)
        following = b.add(i, number(1))
        i.add_incoming(following, blocks["multiply"])
        b.cbranch(b.icmp_signed("<", following, steps), blocks["multiply"], blocks["done"])
        b.position_at_end(blocks["rest"])
        first = b.mul(after, number(_BESIDE))
        b.cbranch(b.icmp_signed("<", first, before_rows), blocks["reduce"], blocks["done"])
        b.position_at_end(blocks["reduce"])
        r = b.phi(_I64)
        r.add_incoming(first, blocks["rest"])
        reduction.row(r)
        following = b.add(r, number(1))
        r.add_incoming(following, blocks["reduce"])
        b.cbranch(b.icmp_signed("<", following, before_rows), blocks["reduce"], blocks["done"])
        b.position_at_end(blocks["done"])
        for register in range(2 * tall):
            _tile(b, "tilestored64", [register], sums[register], number(4 * PANEL))
        return context.get_dummy_value()

    @intrinsic
    def micro(
        typingctx: Any, a: Any, pitch: Any, panel: Any, steps: Any, fresh: Any, here: Any, before: Any, before_a: Any,
        before_rows: Any, tail: Any, keep: Any, target: Any, table: Any, ahead: Any, ahead_a: Any,
    ) -> Any:  # fmt: skip
        address, count = types.uintp, types.intp
        kinds = (address, count, address, count, count, address, address, address, count, count, count)
        return types.void(*kinds, address, address, address, address), codegen

    return micro


_micro1, micro2 = _micro(1), _micro(2)
"""micro2(a, pitch, panel, steps, fresh, here, before, before_a, before_rows, tail, keep, target, table, ahead,
ahead_a): int32 `here` (32, 32) = itself, or zeros where `fresh`, plus 32 rows at a, `pitch` bytes apart, times a panel,
over steps >= 1 of 64 in k. On the way the tile `before`, of `before_rows` (a multiple of `_BESIDE`, or 0) rows at
before_a, whose offsets stand `tail` bytes from their start and count where `keep` is -1, not where it is 0, is reduced
by `table` (`_factors`) and written to `target` as (rows, 32) bytes. `AHEAD` lines a step are fetched from `ahead` on,
and one of `ROWS_AHEAD` rows at ahead_a. All but steps, fresh, before_rows, tail and keep are addresses and bytes."""


@device
def _factors(modulus, table):
    """table (4 int32): bytes 256^b mod q; -(2^31 mod q); -q as int16 (and 0); 1/q as float32."""
    q = np.int64(modulus)
    word = np.int64(0)
    power = np.int64(1)
    for b in range(4):
        c = power - q if power > q // 2 else power
        c = np.int64(-128) if c == 128 else c  # the same modulo 256
        word |= (c & 255) << (8 * b)
        power = power * 256 % q
    # The 2^31 that made the sums positive comes off again here, modulo q.
    half = (np.int64(1) << 31) % q
    half = half - q if half > q // 2 else half
    table[0] = np.int32(word)
    table[1] = np.int32(-half)
    # The upper half is 0, so that the upper 16 bits of a quotient, copies of its sign, count for nothing.
    table[2] = np.int32(-q & 65535)
    table.view(np.float32)[3] = np.float32(1.0 / modulus)


@intrinsic
def _begin_with(typingctx: Any, digits: Any, tile: Any) -> Any:
    """The digits (32, 32) at one address as an int32 tile at another: what the sums of a later span begin with."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        digits, tile = args

        def sixteen(index: Any, total: Any) -> Any:
            some = b.load(_pointer(b, b.add(digits, b.mul(index, number(16))), _B16))
            some.align = 16
            b.store(b.sext(some, _V32), _pointer(b, b.add(tile, b.mul(index, number(64))), _V32)).align = 64
            return total

        loop(b, number(STRIP_ROWS * PANEL // 16), sixteen)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp), codegen


@device
def _multiply(left, right, first, rows, panel, panels, begin, depth, tail, modulus, tiles, tables, digits):
    """digits (strips, panels, moduli, 32, 32) of one chunk of the inner dimension: see `digits_of`."""
    pitch = left.shape[2]
    count = left.shape[0]
    steps = (depth + 63) // 64
    # A single panel stays in the cache anyway, and what a span begins with is there only once another tile is made.
    span = _span_steps(steps) if panels > 1 else steps
    strips = (rows + STRIP_ROWS - 1) // STRIP_ROWS
    block = _block_strips(span)
    size = STRIP_ROWS * PANEL
    # The tile that waits for its reduction; none at first.
    before = np.uint64(tiles.ctypes.data)
    before_a = np.uint64(left.ctypes.data)
    before_rows = np.int64(0)
    keep = np.int64(-1)
    target = np.uint64(digits.ctypes.data)
    table = np.uint64(tables.ctypes.data)
    turn = np.int64(0)
    for which in range(count):
        _factors(modulus[which], tables[which])
        base = left.ctypes.data + which * left.strides[0] + first * pitch + begin
        for s0 in range(0, strips, block):
            for k0 in range(0, steps, span):
                length = min(span, steps - k0)
                # The rows that are multiplied next: of the next span, block or modulus.
                following = base + s0 * STRIP_ROWS * pitch + 64 * (k0 + span)
                if k0 + span >= steps and s0 + block < strips:
                    following = base + (s0 + block) * STRIP_ROWS * pitch
                elif k0 + span >= steps:
                    following = base + left.strides[0]
                passes = (length + DEPTH - 1) // DEPTH
                # Passes of equal length: a short last one would load and store all sums for few steps.
                share = (length + passes - 1) // passes
                for p in range(panels):
                    b = right.ctypes.data + which * right.strides[0] + (panel + p) * right.strides[1] + begin * PANEL
                    turn = 1 - turn
                    for h in range(0, length, share):
                        fresh = np.int64(h == 0 and k0 == 0)
                        last = h + share >= length
                        n = min(share, length - h)
                        here_b = np.uint64(b + 64 * PANEL * (k0 + h))
                        for strip in range(s0, min(strips, s0 + block)):
                            a = np.uint64(base + strip * STRIP_ROWS * pitch)
                            here_a = a + np.uint64(64 * (k0 + h))
                            # One pass over a span needs two tiles, which then stay in the L1 cache.
                            slot = turn * block + strip - s0 if passes > 1 else (turn * block + strip - s0) % 2
                            here = np.uint64(tiles.ctypes.data + 4 * size * slot)
                            its_digits = np.uint64(
                                digits.ctypes.data + ((strip * digits.shape[1] + p) * count + which) * size
                            )
                            if h == 0 and k0 > 0:
                                _begin_with(its_digits, here)
                            # The strips of a block share the fetch of the next panel: each goes on where the one before
                            # it ends.
                            ahead = here_b + np.uint64(right.strides[1] + 64 * AHEAD * (strip - s0) * n)
                            # Only the last panels prefetch rows that follow. Earlier panels prefetch their own rows,
                            # which are in the cache already.
                            row = ROWS_AHEAD * (p - panels) + STRIP_ROWS
                            ahead_a = np.uint64(following + ((strip - s0) * STRIP_ROWS + row) * pitch + 64 * h)
                            ahead_a = ahead_a if row >= 0 else here_a
                            tall = min(2, (rows - strip * STRIP_ROWS + 15) // 16)
                            given = (
                                here_a, pitch, here_b, n, fresh, here, before, before_a, before_rows, tail, keep,
                                target, table, ahead, ahead_a,
                            )  # fmt: skip
                            if tall == 2:
                                micro2(*given)
                            else:
                                _micro1(*given)
                            # Reduced just now: until another tile is complete there is nothing to do beside the
                            # products.
                            before_rows = np.int64(0)
                            if last:
                                before, before_a, before_rows = here, a, 16 * tall
                                keep = np.int64(-1) if k0 + span >= steps else np.int64(0)
                                table = np.uint64(tables.ctypes.data + 16 * which)
                                target = its_digits
    # The last tile is reduced beside a product that nobody reads.
    here = np.uint64(tiles.ctypes.data)
    here = here + np.uint64(4 * size) if here == before else here
    a, b = np.uint64(left.ctypes.data + first * pitch), np.uint64(right.ctypes.data + panel * right.strides[1])
    one = np.int64(1)
    _micro1(a, pitch, b, one, one, here, before, before_a, before_rows, tail, keep, target, table, b, a)


@device
def _add_digits(digits, more, rows, panels, modulus):
    """Digits plus those of another chunk, modulo the moduli."""
    for strip in range((rows + STRIP_ROWS - 1) // STRIP_ROWS):
        for p in range(panels):
            for which in range(digits.shape[2]):
                q = np.int32(modulus[which])
                # For q = 256 the digit is -128 and never 128, which no byte holds.
                high, low = (q - 1) // 2, -(q // 2)
                for r in range(min(STRIP_ROWS, rows - strip * STRIP_ROWS)):
                    for j in range(PANEL):
                        s = np.int32(digits[strip, p, which, r, j]) + np.int32(more[strip, p, which, r, j])
                        s = s - q if s > high else s
                        s = s + q if s < low else s
                        digits[strip, p, which, r, j] = np.int8(s)


@counting
def digits_of(left, right, first, rows, panel, panels, k, modulus, tiles, tables, digits):
    """Digits of rows first, first + 1, … of left (moduli, m, pitch) times `panels` panels of right (moduli, panels,
    >= k/4, 32): the products modulo the moduli, in [-q/2, q/2].

    digits (strips of 32 rows, panels, moduli, 32, 32) of int8; tiles: `SCRATCH_BYTES` aligned to 64; tables (moduli, 4)
    of int32 is scratch as well. Whole sixteens of rows are read: `left` has room for them. Between `configure` and
    `release`.
    """
    pitch = left.shape[2]
    chunks = (k + CHUNK - 1) // CHUNK
    for chunk in range(chunks):
        begin = chunk * CHUNK
        depth = min(k - begin, CHUNK)
        # The offsets stand at the end of each row; rows are handed over from `begin` on, so the distance counts from
        # there.
        tail = pitch - 4 * (chunks - chunk) - begin
        if chunk == 0:
            _multiply(left, right, first, rows, panel, panels, begin, depth, tail, modulus, tiles, tables, digits)
        else:
            more = np.empty(digits.shape, np.int8)
            _multiply(left, right, first, rows, panel, panels, begin, depth, tail, modulus, tiles, tables, more)
            _add_digits(digits, more, rows, panels, modulus)


@kernel("void(int8[:,:,:], uint32[:,:,:,::1], int64, float64[::1], int8[::1], int32[:,::1], int8[:,:,:,:,::1])")
def tile_digits(left, right, k, modulus, tiles, tables, digits):
    """All digits of left (moduli, m, pitch) times right: what the engine's proof and the tests look at.

    m is a multiple of 16.
    """
    zero = np.int64(0)
    configure()
    digits_of(left, right, zero, left.shape[1], zero, right.shape[1], k, modulus, tiles, tables, digits)
    release()
