"""Residues of integers by dot products of bytes (`byte_unit`), as intrinsics in LLVM IR.

An integer, made positive, is a few dwords of bytes d_b; its residue is r = Σ d_b·(256^b mod q), four terms an
instruction, less q·rint(r/q). The factors are at most q/2 in magnitude, so |r| <= (128·bytes + 1)·q, less than 2^15·q
and 2^23 for 36 bytes. The quotient comes from float32: r is exact there, the computed r/q is off by less than 0.2/q and
the fraction of r/q is at least 1/(2q) from a half for odd q; for q = 256 it is exact, and 2^-9 sends ties to -128.
q·rint(r/q) comes from 16-bit integers.

Four vectors of 16 residues become one of 64 bytes. Per 64 residues, on AVX-512: four ``vpdpbusd`` per dword, sixteen
instructions of reduction, and four or five that pack them; in float64 it would be twelve for 8.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from prismm.cpu.kernels.byte_unit import (
    F32,
    I8,
    I32,
    I64,
    LANES,
    add_pairs,
    as_bytes,
    declared,
    dot,
    everywhere,
    nearest_integers,
    vector,
)  # fmt: skip

_V32, _V8, _VF = vector(I32, LANES), vector(I8, LANES), vector(F32, LANES)
_ZERO = ir.Constant(_V32, [0] * LANES)


def _load(b: Any, address: Any, offset: Any, kind: Any) -> Any:
    value = b.load(b.inttoptr(b.add(address, offset), kind.as_pointer()))
    value.align = 4
    return value


class _Modulus:
    """What residues modulo one number are made of, in all lanes: bytes of 256^b mod q by dwords, offset, q, 1/q."""

    def __init__(self, b: Any, table: Any, offset: Any, modulus: Any, dwords: int | None) -> None:
        self.b, self.table = b, table
        self.numbers = [self._number(ir.Constant(I64, 4 * d)) for d in range(dwords or 0)]
        self.offset = everywhere(b, offset)
        # The upper half is 0, so that the upper 16 bits of a quotient, copies of its sign, count for nothing.
        negative = b.and_(b.sub(ir.Constant(I32, 0), b.fptosi(modulus, I32)), ir.Constant(I32, 65535))
        self.minus = everywhere(b, negative)
        q = b.fptrunc(modulus, F32)
        even = b.fcmp_ordered("==", q, ir.Constant(F32, 256.0))
        self.inverse = everywhere(b, b.fdiv(ir.Constant(F32, 1.0), q))
        self.bias = everywhere(b, b.select(even, ir.Constant(F32, 2.0**-9), ir.Constant(F32, 0.0)))

    def _number(self, offset: Any) -> Any:
        return everywhere(self.b, _load(self.b, self.table, offset, I32))

    def residues(self, dwords: list[Any]) -> Any:
        """Of 16 integers, as int32: in [-(q-1)/2, (q-1)/2], or [-128, 127]."""
        total = self.offset
        for dword, number in zip(dwords, self.numbers, strict=True):
            total = dot(self.b, total, dword, number)
        return self._reduced(total)

    def residues_of_many(self, source: Any, places: list[int], dwords: Any) -> list[Any]:
        """Of vectors whose dword d stands at source + place·dwords + 128·d, for any number of dwords."""
        b = self.b
        # All vectors share the loop over dwords, so that each dword of factors is loaded once for four.
        before, loop, done = b.block, b.append_basic_block("dwords"), b.append_basic_block("reduced")
        b.branch(loop)
        b.position_at_end(loop)
        d, totals = b.phi(I64), [b.phi(_V32) for _ in places]
        d.add_incoming(ir.Constant(I64, 0), before)
        number = self._number(b.mul(d, ir.Constant(I64, 4)))
        new = []
        for total, place in zip(totals, places, strict=True):
            total.add_incoming(self.offset, before)
            line, half = divmod(place, 128)
            to = b.add(b.mul(b.add(b.mul(dwords, ir.Constant(I64, line)), d), ir.Constant(I64, 128)), source)
            new.append(dot(b, total, _load(b, to, ir.Constant(I64, half), _V32), number))
            total.add_incoming(new[-1], loop)
        following = b.add(d, ir.Constant(I64, 1))
        d.add_incoming(following, loop)
        b.cbranch(b.icmp_signed("<", following, dwords), loop, done)
        b.position_at_end(done)
        return [self._reduced(total) for total in new]

    def _reduced(self, total: Any) -> Any:
        b = self.b
        fma = declared(b.module, "llvm.fma.v16f32", _VF, [_VF, _VF, _VF])
        quotient = nearest_integers(b, b.call(fma, [b.sitofp(total, _VF), self.inverse, self.bias]))
        return add_pairs(b, total, quotient, self.minus)


def row_residues(dwords: int | None) -> Any:
    """The intrinsic row_residues(source, groups, table, offset, modulus, out): int32 sum of the residues of 64·groups
    integers, groups >= 1, in lines of 32: dword d of line x stands at source + (x·dwords + d)·128; they go to `out` as
    bytes. Without a number of dwords it is the second argument.
    """

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source, groups, table, offset, modulus, out = args if dwords else (args[0], *args[2:])
        numbers = _Modulus(b, table, offset, modulus, dwords)
        before = b.block
        loop, done = b.append_basic_block("row"), b.append_basic_block("rest")
        b.branch(loop)
        b.position_at_end(loop)
        step, total = b.phi(I64), b.phi(_V32)
        step.add_incoming(ir.Constant(I64, 0), before)
        total.add_incoming(_ZERO, before)
        if dwords is None:
            place = b.add(source, b.mul(b.mul(step, ir.Constant(I64, 2 * 128)), args[1]))
            four = numbers.residues_of_many(place, [0, 64, 128, 192], args[1])
        else:
            start = b.mul(step, ir.Constant(I64, 2 * dwords * 128))
            four = []
            for vector in range(4):
                places = [(vector // 2 * dwords + d) * 128 + vector % 2 * 64 for d in range(dwords)]
                lines = [_load(b, source, b.add(start, ir.Constant(I64, place)), _V32) for place in places]
                four.append(numbers.residues(lines))
        packed = as_bytes(b, four)
        # Unsigned ones times signed bytes: their sum, which the end of the row holds.
        more = dot(b, total, ir.Constant(_V8, [1] * 64), packed)
        # From four of each vector in turn to each vector's sixteen in turn.
        order = ir.Constant(_V32, [4 * (x % 4) + x // 4 for x in range(LANES)])
        straight = b.shuffle_vector(b.bitcast(packed, _V32), _ZERO, order)
        place = b.inttoptr(b.add(out, b.mul(step, ir.Constant(I64, 4 * LANES))), _V32.as_pointer())
        b.store(straight, place).align = 1
        following = b.add(step, ir.Constant(I64, 1))
        # `residues_of_many` appends blocks: the way back is from where the body ended.
        step.add_incoming(following, b.block)
        total.add_incoming(more, b.block)
        b.cbranch(b.icmp_signed("<", following, groups), loop, done)
        b.position_at_end(done)
        return b.call(declared(b.module, "llvm.vector.reduce.add.v16i32", I32, [_V32]), [more])

    return _emit(codegen, dwords, types.int32)


def _emit(codegen: Any, dwords: int | None, result: Any) -> Any:
    """The intrinsic of (source, groups, table, offset, modulus, out), with the number of dwords after `source` where it
    is not known.
    """
    kinds = (types.intp, types.uintp, types.int32, types.float64, types.uintp)
    if dwords is not None:

        @intrinsic
        def emit(typingctx: Any, source: Any, groups: Any, table: Any, offset: Any, modulus: Any, out: Any) -> Any:
            return result(types.uintp, *kinds), codegen

        return emit

    @intrinsic
    def emit_many(
        typingctx: Any, source: Any, dwords: Any, groups: Any, table: Any, offset: Any, modulus: Any, out: Any
    ) -> Any:
        return result(types.uintp, types.intp, *kinds), codegen

    return emit_many


def panel_residues(dwords: int | None) -> Any:
    """The intrinsic panel_residues(source, groups, table, offset, modulus, out): residues of 4·groups rows of 32
    integers as dwords of four unsigned bytes, residue + 128; row x's dword d of all columns stands at source +
    (x·dwords + d)·128, group h of four rows goes to out + 128·h. Without a number of dwords it is the second argument.
    """

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source, groups, table, offset, modulus, out = args if dwords else (args[0], *args[2:])
        numbers = _Modulus(b, table, offset, modulus, dwords)
        before = b.block
        loop, done = b.append_basic_block("panel"), b.append_basic_block("rest")
        b.branch(loop)
        b.position_at_end(loop)
        step = b.phi(I64)
        step.add_incoming(ir.Constant(I64, 0), before)
        # In each lane of 128 bits, from four columns of each row in turn to four rows of each column in turn.
        order = [16 * (x // 16) + 4 * (x % 4) + x % 16 // 4 for x in range(64)]
        for half in range(2):
            if dwords is None:
                place = b.add(source, b.mul(b.mul(step, ir.Constant(I64, 4 * 128)), args[1]))
                four = numbers.residues_of_many(place, [128 * x + 64 * half for x in range(4)], args[1])
            else:
                start = b.mul(step, ir.Constant(I64, 4 * dwords * 128))
                four = []
                for x in range(4):
                    places = [ir.Constant(I64, (x * dwords + d) * 128 + 64 * half) for d in range(dwords)]
                    four.append(numbers.residues([_load(b, source, b.add(start, p), _V32) for p in places]))
            packed = as_bytes(b, four)
            word = b.shuffle_vector(packed, packed, ir.Constant(ir.VectorType(I32, 64), order))
            # Flipping the top bit of every byte adds 128, from signed to unsigned.
            word = b.xor(b.bitcast(word, _V32), ir.Constant(_V32, [-0x7F7F7F80] * LANES))
            place = b.add(b.mul(step, ir.Constant(I64, 128)), ir.Constant(I64, 64 * half))
            b.store(word, b.inttoptr(b.add(out, place), _V32.as_pointer())).align = 4
        following = b.add(step, ir.Constant(I64, 1))
        step.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<", following, groups), loop, done)
        b.position_at_end(done)
        return context.get_dummy_value()

    return _emit(codegen, dwords, types.void)
