"""Scale, round and cut a panel of 32 columns, eight elements at a time in registers: `split.prepare_across` and
`packed._to_dwords` of many rows in one loop.

Per eight elements: two products, a rounding, the residual and its square, and the integer's dwords; factors, sums of
squares and flags of 32 columns stay in registers over all rows.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from prismm.cpu.kernels.byte_unit import declared
from prismm.cpu.kernels.lanes import COUNT, Lanes, everywhere, fma, load, loop, number

TINY = 2.0**-300
"""Scaled elements below this are flagged, as in `split`."""

_VECTORS = 32 // COUNT
_I8, _I32, _I64, _F32, _F64 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.DoubleType()
_INTS, _WORDS, _FLOATS, _SINGLES = (ir.VectorType(kind, COUNT) for kind in (_I64, _I32, _F64, _F32))


def _words(y: Lanes, dwords: int, offset: Lanes) -> list[Any]:
    """y + 2^bits as dwords, the lowest first: `packed._to_dwords`."""
    b = y.b

    def whole(x: Lanes) -> Lanes:
        return Lanes(b, b.fptosi(x.value, _INTS))

    # An int64 holds two dwords; the upper ones of three come from x·2^-32.
    if dwords == 3:
        floor = declared(b.module, "llvm.floor.v8f64", _FLOATS, [_FLOATS])
        high = Lanes(b, b.call(floor, [(y * 2.0**-32).value]))
        low = whole(fma(-high, 2.0**32, y))
        rest = whole(high) + offset
        return [b.trunc(x.value, _WORDS) for x in (low, rest, rest >> 32)]
    z = whole(y) + offset
    return [b.trunc(x.value, _WORDS) for x in ((z, z >> 32) if dwords == 2 else (z,))]


def _prepare(dwords: int, single: bool) -> Any:
    """See `prepare1`."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source, pitch, rows, factors, residual, tiny, bits, out = args
        size = 4 if single else 8
        shift = b.sub(bits, number(32)) if dwords == 3 else bits
        offset = everywhere(b, b.shl(number(1), shift))

        def place(base: Any, vector: int, width: int = 8) -> Any:
            return b.add(base, number(width * COUNT * vector))

        zero = Lanes(b, ir.Constant(_FLOATS, [0.0] * COUNT))
        f1 = [load(b, place(factors, v)) for v in range(_VECTORS)]
        f2 = [load(b, place(b.add(factors, number(8 * 32)), v)) for v in range(_VECTORS)]
        # Columns that count as zero are selected, not multiplied by 0: Inf times 0 is no number.
        used = [f.differs(0.0) for f in f1]
        # The loop helper carries one number; LLVM makes registers of these slots.
        slots = [b.alloca(_FLOATS) for _ in range(_VECTORS)]
        flags = [b.alloca(_I8) for _ in range(_VECTORS)]
        for v in range(_VECTORS):
            b.store(load(b, place(residual, v)).value, slots[v])
            b.store(ir.Constant(_I8, 0), flags[v])

        def row(index: Any, total: Any) -> Any:
            line = b.add(source, b.mul(index, pitch))
            target = b.add(out, b.mul(index, number(4 * 32 * dwords)))
            for v in range(_VECTORS):
                a = load(b, place(line, v, size), _SINGLES if single else _FLOATS)
                a = Lanes(b, b.fpext(a.value, _FLOATS)) if single else a
                x = used[v].where(a * f1[v] * f2[v], zero)
                y = x.rint()
                d = x - y
                b.store(fma(d, d, Lanes(b, b.load(slots[v]))).value, slots[v])
                small = (x.magnitude() < TINY) & a.differs(0.0) & used[v]
                b.store(b.or_(b.load(flags[v]), b.bitcast(small.value, _I8)), flags[v])
                for which, words in enumerate(_words(y, dwords, offset)):
                    to = b.add(target, number(4 * 32 * which + 4 * COUNT * v))
                    b.store(words, b.inttoptr(to, _WORDS.as_pointer())).align = 4
            return total

        loop(b, rows, row)
        for v in range(_VECTORS):
            Lanes(b, b.load(slots[v])).store(place(residual, v))
            mask = b.bitcast(b.load(flags[v]), ir.VectorType(ir.IntType(1), COUNT))
            at = b.inttoptr(place(tiny, v, 1), ir.VectorType(_I8, COUNT).as_pointer())
            before = b.load(at)
            before.align = 1
            b.store(b.or_(before, b.zext(mask, before.type)), at).align = 1
        return context.get_dummy_value()

    @intrinsic
    def emit(
        typingctx: Any, source: Any, pitch: Any, rows: Any, factors: Any, residual: Any, tiny: Any, bits: Any, out: Any
    ) -> Any:
        address, count = types.uintp, types.intp
        return types.void(address, count, count, address, address, address, count, address), codegen

    return emit


prepare1, prepare2, prepare3 = (_prepare(dwords, False) for dwords in (1, 2, 3))
"""prepare1(source, pitch, rows, factors, residual, tiny, bits, out): of rows >= 1 of 32 elements at source, `pitch`
bytes apart, times two factors each (two rows of 32, the first zero where a column counts as zero): the nearest integers
plus 2^bits as dwords, 128 bytes a dword and row, to `out`; squares of the residuals onto 32 float64 at `residual`;
bytes at `tiny` are set to 1 where a nonzero element scales to next to nothing. 1, 2 or 3 dwords; `single`: float32."""
single1, single2, single3 = (_prepare(dwords, True) for dwords in (1, 2, 3))
