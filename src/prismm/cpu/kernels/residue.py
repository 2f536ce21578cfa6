"""Residues of integers by dot products of bytes on the VNNI unit, as intrinsics in LLVM IR.

An integer, made positive, is a few dwords of bytes d_b; its residue is Σ d_b·(256^b mod q), four terms an instruction,
then reduced once in float32, where everything is exact: |r| < 2^19, the computed r/q is off by less than 0.1/q and the
fraction of r/q is at least 1/(2q) from a half for odd q; for q = 256 it is exact, and 2^-9 sends ties to -128. Per 16
residues: one ``vpdpbusd`` per dword and six other instructions; in float64 it would be twelve for 8.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba.core import types
from numba.extending import intrinsic

LANES = 16
_I8, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_V32, _V8, _VF, _B16 = (
    ir.VectorType(_I32, LANES), ir.VectorType(_I8, 4 * LANES), ir.VectorType(_F32, LANES), ir.VectorType(_I8, LANES),
)  # fmt: skip


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


def _reduced(b: Any, dwords: list[Any], numbers: list[Any], offset: Any, q: Any, r: Any, bias: Any) -> Any:
    """Symmetric residues of 16 integers, as int32."""
    total = offset
    for dword, number in zip(dwords, numbers, strict=True):
        operand = dot_operand()
        call = [total, b.bitcast(dword, operand), b.bitcast(number, operand)]
        total = b.call(dot_function(b.module), call)
    x = b.sitofp(total, _VF)
    fma = declared(b.module, "llvm.fma.v16f32", _VF, [_VF, _VF, _VF])
    nearest = declared(b.module, "llvm.rint.v16f32", _VF, [_VF])
    quotient = b.call(nearest, [b.call(fma, [x, r, bias])])
    return b.fptosi(b.call(fma, [b.fneg(quotient), q, x]), _V32)


def _constants(b: Any, table: Any, offset: Any, modulus: Any, dwords: int) -> tuple[list[Any], Any, Any, Any, Any]:
    numbers = [
        everywhere(b, _load(b, table, ir.Constant(_I64, 4 * d), _I32)) for d in range(dwords)
    ]  # fmt: skip
    q = b.fptrunc(modulus, _F32)
    inverse = b.fdiv(ir.Constant(_F32, 1.0), q)
    even = b.fcmp_ordered("==", q, ir.Constant(_F32, 256.0))
    bias = b.select(even, ir.Constant(_F32, 2.0**-9), ir.Constant(_F32, 0.0))
    return numbers, everywhere(b, offset), everywhere(b, q), everywhere(b, inverse), everywhere(b, bias)


def row_residues(dwords: int) -> Any:
    """The intrinsic row_residues(source, pitch, groups, table, offset, modulus, out): int32 sum of the residues of
    16·groups integers, groups >= 1, whose dword d stands at source + d·pitch; they go to `out` as bytes.
    """

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source, pitch, groups, table, offset, modulus, out = args
        constants = _constants(b, table, offset, modulus, dwords)
        before = b.block
        loop, done = b.append_basic_block("row"), b.append_basic_block("rest")
        b.branch(loop)
        b.position_at_end(loop)
        step, total = b.phi(_I64), b.phi(_V32)
        step.add_incoming(ir.Constant(_I64, 0), before)
        total.add_incoming(ir.Constant(_V32, [0] * LANES), before)
        start = b.mul(step, ir.Constant(_I64, 4 * LANES))
        lines = [
            _load(b, source, b.add(start, b.mul(pitch, ir.Constant(_I64, d))), _V32) for d in range(dwords)
        ]  # fmt: skip
        y = _reduced(b, lines, *constants)
        place = b.inttoptr(b.add(out, b.mul(step, ir.Constant(_I64, LANES))), _B16.as_pointer())
        b.store(b.trunc(y, _B16), place).align = 1
        following, more = b.add(step, ir.Constant(_I64, 1)), b.add(total, y)
        step.add_incoming(following, loop)
        total.add_incoming(more, loop)
        b.cbranch(b.icmp_signed("<", following, groups), loop, done)
        b.position_at_end(done)
        return b.call(declared(b.module, "llvm.vector.reduce.add.v16i32", _I32, [_V32]), [more])

    @intrinsic
    def emit(
        typingctx: Any, source: Any, pitch: Any, groups: Any, table: Any, offset: Any, modulus: Any, out: Any
    ) -> Any:
        kinds = (types.uintp, types.intp, types.intp, types.uintp, types.int32, types.float64, types.uintp)
        return types.int32(*kinds), codegen

    return emit


def panel_residues(dwords: int) -> Any:
    """The intrinsic panel_residues(source, groups, table, offset, modulus, out): residues of 4·groups rows of 32
    integers as dwords of four unsigned bytes, residue + 128; row x's dword d of all columns stands at source +
    (x·dwords + d)·128, group h of four rows goes to out + 128·h.
    """

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source, groups, table, offset, modulus, out = args
        constants = _constants(b, table, offset, modulus, dwords)
        before = b.block
        loop, done = b.append_basic_block("panel"), b.append_basic_block("rest")
        b.branch(loop)
        b.position_at_end(loop)
        step = b.phi(_I64)
        step.add_incoming(ir.Constant(_I64, 0), before)
        start = b.mul(step, ir.Constant(_I64, 4 * dwords * 128))
        byte = ir.Constant(_V32, [255] * LANES)
        for half in range(2):
            word = None
            for x in range(4):
                places = [ir.Constant(_I64, (x * dwords + d) * 128 + 64 * half) for d in range(dwords)]
                y = _reduced(b, [_load(b, source, b.add(start, p), _V32) for p in places], *constants)
                y = b.shl(b.and_(y, byte) if x < 3 else y, ir.Constant(_V32, [8 * x] * LANES))
                word = y if word is None else b.or_(word, y)
            word = b.xor(word, ir.Constant(_V32, [-0x7F7F7F80] * LANES))
            place = b.add(b.mul(step, ir.Constant(_I64, 128)), ir.Constant(_I64, 64 * half))
            b.store(word, b.inttoptr(b.add(out, place), _V32.as_pointer())).align = 4
        following = b.add(step, ir.Constant(_I64, 1))
        step.add_incoming(following, loop)
        b.cbranch(b.icmp_signed("<", following, groups), loop, done)
        b.position_at_end(done)
        return context.get_dummy_value()

    @intrinsic
    def emit(typingctx: Any, source: Any, groups: Any, table: Any, offset: Any, modulus: Any, out: Any) -> Any:
        kinds = (types.uintp, types.intp, types.uintp, types.int32, types.float64, types.uintp)
        return types.void(*kinds), codegen

    return emit
