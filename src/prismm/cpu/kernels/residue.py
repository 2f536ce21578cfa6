"""Residues of integers by dot products of bytes on the VNNI unit, as intrinsics in LLVM IR.

An integer, made positive, is a few dwords of bytes d_b; its residue is r = Σ d_b·(256^b mod q), four terms an
instruction, less q·rint(r/q). The factors are at most q/2 in magnitude, so |r| <= (128·bytes + 1)·q, less than 2^15·q
and 2^23 for 36 bytes. The quotient comes from float32: r is exact there, the computed r/q is off by less than 0.2/q and
the fraction of r/q is at least 1/(2q) from a half for odd q; for q = 256 it is exact, and 2^-9 sends ties to -128.
q·rint(r/q) comes from 16-bit integers.

Four vectors of 16 residues become one of 64 bytes. Per 64 residues: four ``vpdpbusd`` per dword, sixteen instructions
of reduction, and four or five that pack them; in float64 it would be twelve for 8.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba.core import types
from numba.extending import intrinsic

LANES = 16
_I8, _I16, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_V32, _V16, _V8, _VF = (
    ir.VectorType(_I32, LANES), ir.VectorType(_I16, 2 * LANES), ir.VectorType(_I8, 4 * LANES),
    ir.VectorType(_F32, LANES),
)  # fmt: skip
_ZERO = ir.Constant(_V32, [0] * LANES)


def declared(module: Any, name: str, result: Any, kinds: list[Any]) -> Any:
    """A function of LLVM, declared once per module."""
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, kinds), name)


def dot_operand() -> Any:
    """The operands' type of ``vpdpbusd``, which LLVM 22 corrected from 16 x i32 to the 64 bytes that they are."""
    return _V8 if binding.llvm_version_info[0] >= 22 else _V32


def dot_function(module: Any) -> Any:
    """``vpdpbusd``: an int32 plus four products of unsigned and signed bytes, in 16 lanes."""
    operand = dot_operand()
    return declared(module, "llvm.x86.avx512.vpdpbusd.512", _V32, [_V32, operand, operand])


def everywhere(b: Any, x: Any) -> Any:
    """A scalar in 16 lanes."""
    kind = ir.VectorType(x.type, LANES)
    nothing = ir.Constant(kind, ir.Undefined)
    return b.shuffle_vector(b.insert_element(nothing, x, ir.Constant(_I32, 0)), nothing, ir.Constant(_V32, [0] * LANES))


def _load(b: Any, address: Any, offset: Any, kind: Any) -> Any:
    value = b.load(b.inttoptr(b.add(address, offset), kind.as_pointer()))
    value.align = 4
    return value


def pair_function(module: Any) -> tuple[Any, Any]:
    """``vpdpwssd``: an int32 plus two products of 16-bit integers, in 16 lanes; and its operands' type, which LLVM 22
    corrected likewise.
    """
    kind = _V16 if binding.llvm_version_info[0] >= 22 else _V32
    return declared(module, "llvm.x86.avx512.vpdpwssd.512", _V32, [_V32, kind, kind]), kind


def nearest_integers(b: Any, x: Any) -> Any:
    """Float32 in 16 lanes, rounded to the nearest int32, ties to even."""
    kinds = [_VF, _V32, _I16, _I32]
    convert = declared(b.module, "llvm.x86.avx512.mask.cvtps2dq.512", _V32, kinds)
    # 8: to nearest whatever the mode of the thread, and no exceptions told.
    return b.call(convert, [x, _ZERO, ir.Constant(_I16, -1), ir.Constant(_I32, 8)])


class _Modulus:
    """What residues modulo one number are made of, in all lanes: bytes of 256^b mod q by dwords, offset, q, 1/q."""

    def __init__(self, b: Any, table: Any, offset: Any, modulus: Any, dwords: int | None) -> None:
        self.b, self.table = b, table
        self.numbers = [self._number(ir.Constant(_I64, 4 * d)) for d in range(dwords or 0)]
        self.offset = everywhere(b, offset)
        self.pair, kind = pair_function(b.module)
        # The upper half is 0, so that the upper 16 bits of a quotient, copies of its sign, count for nothing.
        negative = b.and_(b.sub(ir.Constant(_I32, 0), b.fptosi(modulus, _I32)), ir.Constant(_I32, 65535))
        self.minus = b.bitcast(everywhere(b, negative), kind)
        self.kind = kind
        q = b.fptrunc(modulus, _F32)
        even = b.fcmp_ordered("==", q, ir.Constant(_F32, 256.0))
        self.inverse = everywhere(b, b.fdiv(ir.Constant(_F32, 1.0), q))
        self.bias = everywhere(b, b.select(even, ir.Constant(_F32, 2.0**-9), ir.Constant(_F32, 0.0)))

    def _number(self, offset: Any) -> Any:
        return self.b.bitcast(everywhere(self.b, _load(self.b, self.table, offset, _I32)), dot_operand())

    def _dot(self, total: Any, dword: Any, number: Any) -> Any:
        return self.b.call(dot_function(self.b.module), [total, self.b.bitcast(dword, dot_operand()), number])

    def residues(self, dwords: list[Any]) -> Any:
        """Of 16 integers, as int32: in [-(q-1)/2, (q-1)/2], or [-128, 127]."""
        total = self.offset
        for dword, number in zip(dwords, self.numbers, strict=True):
            total = self._dot(total, dword, number)
        return self._reduced(total)

    def residues_of_many(self, source: Any, places: list[int], dwords: Any) -> list[Any]:
        """Of vectors whose dword d stands at source + place·dwords + 128·d, for any number of dwords."""
        b = self.b
        # All vectors share the loop over dwords, so that each dword of factors is loaded once for four.
        before, loop, done = b.block, b.append_basic_block("dwords"), b.append_basic_block("reduced")
        b.branch(loop)
        b.position_at_end(loop)
        d, totals = b.phi(_I64), [b.phi(_V32) for _ in places]
        d.add_incoming(ir.Constant(_I64, 0), before)
        number = self._number(b.mul(d, ir.Constant(_I64, 4)))
        new = []
        for total, place in zip(totals, places, strict=True):
            total.add_incoming(self.offset, before)
            line, half = divmod(place, 128)
            to = b.add(b.mul(b.add(b.mul(dwords, ir.Constant(_I64, line)), d), ir.Constant(_I64, 128)), source)
            new.append(self._dot(total, _load(b, to, ir.Constant(_I64, half), _V32), number))
            total.add_incoming(new[-1], loop)
        following = b.add(d, ir.Constant(_I64, 1))
        d.add_incoming(following, loop)
        b.cbranch(b.icmp_signed("<", following, dwords), loop, done)
        b.position_at_end(done)
        return [self._reduced(total) for total in new]

    def _reduced(self, total: Any) -> Any:
        b = self.b
        fma = declared(b.module, "llvm.fma.v16f32", _VF, [_VF, _VF, _VF])
        quotient = nearest_integers(b, b.call(fma, [b.sitofp(total, _VF), self.inverse, self.bias]))
        return b.call(self.pair, [total, b.bitcast(quotient, self.kind), self.minus])


def _bytes(b: Any, four: list[Any]) -> Any:
    """Four vectors of 16 int32 within a byte as 64 bytes: a lane of 128 bits has four of each, in turn."""
    words = declared(b.module, "llvm.x86.avx512.packssdw.512", _V16, [_V32, _V32])
    narrow = declared(b.module, "llvm.x86.avx512.packsswb.512", _V8, [_V16, _V16])
    return b.call(narrow, [b.call(words, four[:2]), b.call(words, four[2:])])


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
        step, total = b.phi(_I64), b.phi(_V32)
        step.add_incoming(ir.Constant(_I64, 0), before)
        total.add_incoming(_ZERO, before)
        if dwords is None:
            place = b.add(source, b.mul(b.mul(step, ir.Constant(_I64, 2 * 128)), args[1]))
            four = numbers.residues_of_many(place, [0, 64, 128, 192], args[1])
        else:
            start = b.mul(step, ir.Constant(_I64, 2 * dwords * 128))
            four = []
            for vector in range(4):
                places = [(vector // 2 * dwords + d) * 128 + vector % 2 * 64 for d in range(dwords)]
                lines = [_load(b, source, b.add(start, ir.Constant(_I64, place)), _V32) for place in places]
                four.append(numbers.residues(lines))
        packed = _bytes(b, four)
        # Unsigned ones times signed bytes: their sum, which the end of the row holds.
        ones = b.bitcast(ir.Constant(_V8, [1] * 64), dot_operand())
        more = b.call(dot_function(b.module), [total, ones, b.bitcast(packed, dot_operand())])
        # From four of each vector in turn to each vector's sixteen in turn.
        order = ir.Constant(_V32, [4 * (x % 4) + x // 4 for x in range(LANES)])
        straight = b.shuffle_vector(b.bitcast(packed, _V32), _ZERO, order)
        place = b.inttoptr(b.add(out, b.mul(step, ir.Constant(_I64, 4 * LANES))), _V32.as_pointer())
        b.store(straight, place).align = 1
        following = b.add(step, ir.Constant(_I64, 1))
        # `residues_of_many` appends blocks: the way back is from where the body ended.
        step.add_incoming(following, b.block)
        total.add_incoming(more, b.block)
        b.cbranch(b.icmp_signed("<", following, groups), loop, done)
        b.position_at_end(done)
        return b.call(declared(b.module, "llvm.vector.reduce.add.v16i32", _I32, [_V32]), [more])

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
        step = b.phi(_I64)
        step.add_incoming(ir.Constant(_I64, 0), before)
        # In each lane of 128 bits, from four columns of each row in turn to four rows of each column in turn.
        order = [16 * (x // 16) + 4 * (x % 4) + x % 16 // 4 for x in range(64)]
        for half in range(2):
            if dwords is None:
                place = b.add(source, b.mul(b.mul(step, ir.Constant(_I64, 4 * 128)), args[1]))
                four = numbers.residues_of_many(place, [128 * x + 64 * half for x in range(4)], args[1])
            else:
                start = b.mul(step, ir.Constant(_I64, 4 * dwords * 128))
                four = []
                for x in range(4):
                    places = [ir.Constant(_I64, (x * dwords + d) * 128 + 64 * half) for d in range(dwords)]
                    four.append(numbers.residues([_load(b, source, b.add(start, p), _V32) for p in places]))
            packed = _bytes(b, four)
            word = b.shuffle_vector(packed, packed, ir.Constant(ir.VectorType(_I32, 64), order))
            # Flipping the top bit of every byte adds 128, from signed to unsigned.
            word = b.xor(b.bitcast(word, _V32), ir.Constant(_V32, [-0x7F7F7F80] * LANES))
            place = b.add(b.mul(step, ir.Constant(_I64, 128)), ir.Constant(_I64, 64 * half))
            b.store(word, b.inttoptr(b.add(out, place), _V32.as_pointer())).align = 4
        following = b.add(step, ir.Constant(_I64, 1))
        step.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<", following, groups), loop, done)
        b.position_at_end(done)
        return context.get_dummy_value()

    return _emit(codegen, dwords, types.void)
