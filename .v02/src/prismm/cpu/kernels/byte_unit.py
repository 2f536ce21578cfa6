"""Products of bytes and of 16-bit integers in LLVM IR, by the unit that the CPU has.

| unit | registers | four products of bytes onto an int32 |
| --- | --- | --- |
| AVX-512 VNNI | 512 bits | ``vpdpbusd`` |
| AVX-VNNI | 256 bits | ``vpdpbusd`` |
| AVX2 | 256 bits | bytes widened to 16 bits, the even and the odd ones: two ``vpmaddwd``, two additions |

All three give the same int32, modulo 2^32. No sum is saturated: a product of an unsigned and a signed byte is below
2^15 in magnitude, a pair of them below 2^16, and ``vpmaddwd`` adds pairs in 32 bits.

Vectors have 16 int32 (`LANES`), or 64 bytes; those that say so have 8. Where registers have 256 bits, LLVM keeps the
former in two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba.core.registry import cpu_target

LANES = 16
I8, I16, I32, I64, F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()

_AVX512_VNNI = {"+avx512f", "+avx512bw", "+avx512dq", "+avx512vl", "+avx512vnni"}


@functools.cache
def unit() -> str:
    """The unit of the CPU that Numba compiles for: "avx512-vnni", "avx-vnni", "avx2", or "" for a CPU without them."""
    found = set(cpu_target.target_context.codegen()._get_host_cpu_features().split(","))
    if found >= _AVX512_VNNI:
        return "avx512-vnni"
    if not found >= {"+avx2", "+fma"}:
        return ""
    return "avx-vnni" if "+avxvnni" in found else "avx2"


def has_vnni() -> bool:
    """Whether the unit adds four products of bytes in one instruction."""
    return unit() in ("avx512-vnni", "avx-vnni")


def widens() -> bool:
    """Whether bytes become 16-bit integers before they are multiplied."""
    return unit() == "avx2"


def register_lanes() -> int:
    """How many int32 a register of the unit has."""
    return 16 if unit() == "avx512-vnni" else 8


def vector(kind: Any, lanes: int) -> Any:
    """The type of a vector as wide as `lanes` int32."""
    return ir.VectorType(kind, lanes * 32 // {I8: 8, I16: 16}.get(kind, 32))


def declared(module: Any, name: str, result: Any, kinds: list[Any]) -> Any:
    """A function of LLVM, declared once per module."""
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, kinds), name)


def everywhere(b: Any, x: Any, lanes: int = LANES) -> Any:
    """A scalar in all lanes."""
    nothing = ir.Constant(ir.VectorType(x.type, lanes), ir.Undefined)
    first = ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
    return b.shuffle_vector(b.insert_element(nothing, x, ir.Constant(I32, 0)), nothing, first)


def dot(b: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    """The int32 of `total`, 16 or 8 of them, plus four products of unsigned and signed bytes each."""
    lanes = total.type.count
    if widens():
        return dot_of_words(b, total, words_of(b, unsigned, False), words_of(b, signed, True))
    if lanes > register_lanes():
        return _by_halves(dot, b, total, unsigned, signed)
    # LLVM 22 corrected the operands' type from int32 to the bytes that they are.
    kind = vector(I8 if binding.llvm_version_info[0] >= 22 else I32, lanes)
    function = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
    return _call(b, function, total.type, [total.type, kind, kind], total, unsigned, signed)


def words_of(b: Any, x: Any, signed: bool) -> tuple[Any, Any]:
    """Bytes as 16-bit integers: those at even places, and those at odd ones."""
    kind = vector(I16, x.type.element.width * x.type.count // 32)
    words = b.bitcast(x, kind)
    eight, low = (ir.Constant(kind, [number] * kind.count) for number in (8, 255))
    if signed:
        return b.ashr(b.shl(words, eight), eight), b.ashr(words, eight)
    return b.and_(words, low), b.lshr(words, eight)


def dot_of_words(b: Any, total: Any, x: tuple[Any, Any], y: tuple[Any, Any]) -> Any:
    """`dot` of bytes that `words_of` has widened."""
    return b.add(total, b.add(_pairs(b, x[0], y[0]), _pairs(b, x[1], y[1])))


def add_pairs(b: Any, total: Any, x: Any, y: Any) -> Any:
    """The int32 of `total`, 16 of them, plus two products of 16-bit integers each."""
    if unit() != "avx512-vnni":
        return b.add(total, _pairs(b, x, y))
    kind = vector(I16 if binding.llvm_version_info[0] >= 22 else I32, LANES)
    return _call(b, "llvm.x86.avx512.vpdpwssd.512", total.type, [total.type, kind, kind], total, x, y)


def nearest_integers(b: Any, x: Any) -> Any:
    """16 float32, rounded to the nearest int32, ties to even; on 256 bits in the rounding mode of the thread, which is
    that one wherever products are made (`core.environment`).
    """
    found = vector(I32, LANES)
    if unit() != "avx512-vnni":
        half, narrow = vector(I32, 8), ir.VectorType(F32, 8)
        return _by_halves(lambda b, y: _call(b, "llvm.x86.avx.cvt.ps2dq.256", half, [narrow], y), b, x)
    zero, all_lanes = ir.Constant(found, [0] * LANES), ir.Constant(I16, -1)
    # 8: to nearest whatever the mode of the thread, and no exceptions told.
    kinds = [x.type, found, I16, I32]
    return _call(b, "llvm.x86.avx512.mask.cvtps2dq.512", found, kinds, x, zero, all_lanes, ir.Constant(I32, 8))


def as_bytes(b: Any, four: list[Any]) -> Any:
    """Four vectors of 16 int32 within a byte as 64 bytes: each 128 bits have four of each, in turn."""
    return _narrowed(b, _narrowed(b, four[0], four[1]), _narrowed(b, four[2], four[3]))


def _narrowed(b: Any, x: Any, y: Any) -> Any:
    """The integers of two vectors at half their width: in each 128 bits those of x, then those of y."""
    lanes = x.type.element.width * x.type.count // 32
    if lanes > register_lanes():
        return _by_halves(_narrowed, b, x, y)
    kind, name = (I16, "packssdw") if x.type.element == I32 else (I8, "packsswb")
    kind = vector(kind, lanes)
    function = f"llvm.x86.avx512.{name}.512" if lanes == LANES else f"llvm.x86.avx2.{name}"
    return _call(b, function, kind, [x.type, y.type], x, y)


def _pairs(b: Any, x: Any, y: Any) -> Any:
    """Sums of two products of 16-bit integers, as int32, on 256 bits at a time."""
    words = vector(I16, 8)
    if x.type.element.width * x.type.count > 256:
        return _by_halves(_pairs, b, x, y)
    return _call(b, "llvm.x86.avx2.pmadd.wd", vector(I32, 8), [words, words], x, y)


def _call(b: Any, name: str, result: Any, kinds: list[Any], *operands: Any) -> Any:
    """A function of LLVM of operands that are read as of these types."""
    read = [x if x.type == kind else b.bitcast(x, kind) for x, kind in zip(operands, kinds, strict=True)]
    return b.call(declared(b.module, name, result, kinds), read)


def _by_halves(function: Callable[..., Any], b: Any, *operands: Any) -> Any:
    """A function of the lower and of the upper halves of vectors, as one vector."""
    low, high = (function(b, *(_half(b, x, which) for x in operands)) for which in range(2))
    count = 2 * low.type.count
    return b.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, count), list(range(count))))


def _half(b: Any, x: Any, which: int) -> Any:
    count = x.type.count // 2
    order = ir.Constant(ir.VectorType(I32, count), [which * count + lane for lane in range(count)])
    return b.shuffle_vector(x, ir.Constant(x.type, ir.Undefined), order)
