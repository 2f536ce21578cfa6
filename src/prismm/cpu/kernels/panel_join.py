"""The join of digits that are reduced already (`amx`): a few rows of a panel of 32 columns at a time, from bytes to
rounded, certified, stored entries.

A tile's digits of all moduli stand together, 23 kB at 15 moduli, so they come as one stream; the limbs of a row's 32
entries stay in registers over all moduli, and are expanded there (`finish_lanes.expanded`). Between join and test, h, m
and t of `ROWS` rows take 6 kB of the L1 cache, beside the terms of 32 columns.

Per entry and modulus: a byte, a conversion, and a fused multiply-add for each limb. Complex parts add and reduce two or
three digits as 16-bit integers first, 16 at a time: a sum of up to three is off by one modulus at most. Per entry 30
operations of expansion.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from prismm.core.jit import device
from prismm.cpu.kernels.amx import PANEL
from prismm.cpu.kernels.byte_unit import declared
from prismm.cpu.kernels.finish import finish_block
from prismm.cpu.kernels.finish_lanes import expanded
from prismm.cpu.kernels.join import RADIX
from prismm.cpu.kernels.lanes import COUNT, FLOATS, Lanes, float_at, fma, loop, loop_over, number

ROWS = 8
"""Rows that are joined at a time."""

_VECTORS = PANEL // COUNT
_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_POINTER, _WIDE, _WORDS = _I8.as_pointer(), 16, ir.VectorType(_I16, 16)


def _digits(b: Any, address: Any, offset: Any, count: int) -> Any:
    """So many digits from there on."""
    value = b.load(b.inttoptr(b.add(address, offset), ir.VectorType(_I8, count).as_pointer()))
    value.align = 4
    return value


def _residues(b: Any, part: int, digits: list[Any], offset: Any, modulus: Any) -> list[Any]:
    """Digits of D - E or of F - D - E modulo the number at `modulus`, in vectors of 16-bit integers, from those of D, E
    and F: all are in [-q/2, (q - 1)/2], so that of a sum of three one modulus is too much or too little.
    """
    d, e, *f = (b.sext(_digits(b, address, offset, _WIDE), _WORDS) for address in digits[: part + 1])
    total = b.sub(b.sub(f[0], d), e) if f else b.sub(d, e)
    q = b.fptosi(b.load(b.inttoptr(modulus, ir.DoubleType().as_pointer())), _I16)
    one, nothing = ir.Constant(_I16, 1), ir.Constant(_I16, 0)
    high, low = b.lshr(b.sub(q, one), one), b.sub(nothing, b.lshr(q, one))
    whole, high, low = (_in_words(b, x) for x in (q, high, low))
    total = b.select(b.icmp_signed(">", total, high), b.sub(total, whole), total)
    total = b.select(b.icmp_signed("<", total, low), b.add(total, whole), total)
    undefined = ir.Constant(_WORDS, ir.Undefined)
    pieces = (range(COUNT * v, COUNT * (v + 1)) for v in range(_WIDE // COUNT))
    return [
        b.shuffle_vector(total, undefined, ir.Constant(ir.VectorType(_I32, COUNT), list(piece))) for piece in pieces
    ]


def _in_words(b: Any, x: Any) -> Any:
    """A 16-bit integer in all lanes."""
    undefined = ir.Constant(_WORDS, ir.Undefined)
    first = b.insert_element(undefined, x, ir.Constant(_I32, 0))
    return b.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_I32, _WIDE), [0] * _WIDE))


def _expansions(part: int, limbs: int) -> Any:
    """See `_expand`, which chooses the number of limbs."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        *digits, pitch, moduli, modulus, weights, line, product, quotient, work, work_line, rows, ahead = args
        p = [float_at(b, product, 8 * x) for x in range(limbs)]
        i = [float_at(b, quotient, 8 * x) for x in range(2)]
        nothing = ir.Constant(FLOATS, [0.0] * COUNT)
        prefetch = declared(b.module, "llvm.prefetch.p0", ir.VoidType(), [_POINTER, _I32, _I32, _I32])
        to_l2 = [ir.Constant(_I32, x) for x in (0, 2, 1)]  # a read, of data, for the L2 cache

        def row(r: Any, found: Any) -> Any:
            here = b.mul(r, number(PANEL))

            def add_modulus(which: Any, sums: list[Any]) -> list[Any]:
                place = b.add(here, b.mul(which, pitch))
                b.call(prefetch, [b.inttoptr(b.add(b.add(digits[0], place), ahead), _POINTER), *to_l2])
                w = [float_at(b, b.add(weights, b.mul(which, line)), 8 * x) for x in range(limbs)]
                if part:
                    q = b.add(modulus, b.mul(which, number(8)))
                    found = [
                        y
                        for x in range(0, PANEL, _WIDE)
                        for y in _residues(b, part, digits, b.add(place, number(x)), q)
                    ]
                else:
                    found = [_digits(b, digits[0], b.add(place, number(COUNT * v)), COUNT) for v in range(_VECTORS)]
                new = []
                for v in range(_VECTORS):
                    y = Lanes(b, b.sitofp(found[v], FLOATS))
                    of_row = sums[limbs * v : limbs * (v + 1)]
                    new += [fma(y, w[x], Lanes(b, of_row[x])).value for x in range(limbs)]
                return new

            sums = loop_over(b, moduli, [nothing] * (limbs * _VECTORS), add_modulus)
            for v in range(_VECTORS):
                of_row = [Lanes(b, value) for value in sums[limbs * v : limbs * (v + 1)]]
                place = b.add(work, b.add(b.mul(r, number(8 * PANEL)), number(8 * COUNT * v)))
                for x, value in enumerate(expanded(of_row, p, i, number(RADIX))):
                    value.store(b.add(place, b.mul(work_line, number(x))))
            return found

        loop(b, rows, row)
        return context.get_dummy_value()

    @intrinsic
    def emit(
        typingctx: Any, d0: Any, d1: Any, d2: Any, pitch: Any, moduli: Any, modulus: Any, weights: Any, line: Any,
        product: Any, quotient: Any, work: Any, work_line: Any, rows: Any, ahead: Any,
    ) -> Any:  # fmt: skip
        address, count = types.uintp, types.intp
        tables = (address, address, count, address, address)
        return types.void(address, address, address, count, count, *tables, address, count, count, count), codegen

    return emit


@functools.cache
def _expand(part: int) -> Any:
    """The helper expand(d0, d1, d2, first, rows, panel, limbs, modulus, weights, product, quotient, work): h, m and t
    of some rows of a panel, from `first` on, of the product with digits d0 (strips, panels, moduli, rows of a strip,
    32), or of d0 - d1, or of d2 - d0 - d1, to rows 0 to 2 of `work`; all within one strip.
    """
    of2, of3, of4, of5 = (_expansions(part, limbs) for limbs in (2, 3, 4, 5))

    def expand(d0: Any, d1: Any, d2: Any, first: Any, rows: Any, panel: Any, limbs: Any, modulus: Any, weights: Any,
               product: Any, quotient: Any, work: Any) -> None:  # fmt: skip
        height = d0.shape[3]
        place = first // height * d0.strides[0] + panel * d0.strides[1] + first % height * d0.strides[3]
        given = (
            d0.ctypes.data + place, d1.ctypes.data + place, d2.ctypes.data + place, d0.strides[2], d0.shape[2],
            modulus.ctypes.data, weights.ctypes.data, weights.strides[0], product.ctypes.data,
            quotient.ctypes.data, work.ctypes.data, work.strides[0], np.int64(rows), d0.strides[1],
        )  # fmt: skip
        # The number of limbs is a constant of each intrinsic, so that all of them stay in registers.
        if limbs == 2:
            of2(*given)
        elif limbs == 3:
            of3(*given)
        elif limbs == 4:
            of4(*given)
        else:
            of5(*given)

    expand.__qualname__ = f"expand_{part}"  # `jit`: a name of its own
    return device(expand)


def _joined(part: int) -> Any:
    """See `join_strips`."""
    expand = _expand(part)

    def join(
        d0: Any, d1: Any, d2: Any, i0: Any, rows: Any, limbs: Any, modulus: Any, reciprocal: Any, weights: Any,
        product: Any, quotient: Any, row_shift: Any, column_shift: Any, row_terms: Any, column_terms: Any, terms: Any,
        row_power: Any, column_power: Any, row_counts: Any, column_counts: Any, k: Any, mode: Any, kappa: Any,
        magnitude_kappa: Any, precision: Any, out: Any, out32: Any, low: Any, failed: Any, count: Any, work: Any,
        edge: Any, flags: Any, extremes: Any,
    ) -> Any:  # fmt: skip
        n = column_shift.size
        height = d0.shape[3]
        for strip in range(0, rows, height):
            for j0 in range(0, n, PANEL):
                w = min(n, j0 + PANEL) - j0
                for first in range(strip, min(rows, strip + height), ROWS):
                    some = min(ROWS, min(rows, strip + height) - first)
                    expand(
                        d0, d1, d2, first, some, j0 // PANEL, limbs, modulus, weights, product, quotient, work,
                    )  # fmt: skip
                    count = finish_block(
                        RADIX * (limbs - 3), i0 + first, np.int64(some), j0, w, np.int64(PANEL), row_shift,
                        column_shift, row_terms, column_terms, terms, row_power, column_power, row_counts,
                        column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32, low, failed, count, work,
                        edge, flags, extremes,
                    )  # fmt: skip
        return count

    join.__qualname__ = f"join_strips_{part}"  # `jit`: a name of its own
    return device(join)


join_strips, join_strips_difference, join_strips_cross = _joined(0), _joined(1), _joined(2)
"""join_strips(d0, d1, d2, i0, rows, limbs, …, count, work, edge, flags, extremes): join `rows` rows, from i0 on, by all
columns, of the product with digits d0 (strips, panels, moduli, rows of a strip, 32), or of d0 - d1, or of d2 - d0 - d1;
d1 and d2 where they count. Other arguments, and the new count that is returned, as in `finish.finish`; scratch is for
`ROWS` rows of a panel, and so are `extremes`."""
