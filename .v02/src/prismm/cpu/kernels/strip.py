"""Σ y_l·W_l of a strip of products by residues: digits and limbs of 16 entries at a time, in registers over all moduli.

What `join.sums_of` computes, as intrinsics in LLVM IR: every sum is exact, so any order gives the same. Per modulus and
8 entries: a conversion, a product, a rounding, and 1 + limbs fused multiply-adds; nothing is stored but the sums. In
Numba's loops the tests whether arrays overlap cost as much as the arithmetic of a strip of 128.

Products are int32 (`vnni`), or digits that are reduced already (`amx`): bytes in panels of 32 columns, of real products
alone (`panel_join` joins those of complex ones).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from prismm.core.jit import device
from prismm.cpu.kernels.byte_unit import declared
from prismm.cpu.kernels.lanes import float_at, number

_LANES = 8
_VECTORS = 2
_I8, _I32, _I64, _F64 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.DoubleType()
_V8, _V32, _VF = (ir.VectorType(kind, _LANES) for kind in (_I8, _I32, _F64))
_NOTHING = ir.Constant(_VF, [0.0] * _LANES)


def _at(b: Any, address: Any, offset: Any, kind: Any) -> Any:
    return b.inttoptr(b.add(address, offset), kind.as_pointer())


def _everywhere(b: Any, address: Any, offset: Any) -> Any:
    """The float64 at address + offset in all lanes."""
    return float_at(b, b.add(address, offset), 0).value


def combined(b: Any, part: int, addresses: list[Any], offset: Any, kind: Any = _V32) -> Any:
    """Eight integer products or digits of one modulus, as `join._combine` makes them: D, D - E or F - D - E."""
    values = []
    for address in addresses[: part + 1]:
        integers = b.load(_at(b, address, offset, kind))
        integers.align = 4
        values.append(b.sitofp(integers, _VF))
    if part == 0:
        return values[0]
    if part == 1:
        return b.fsub(values[0], values[1])
    return b.fsub(b.fsub(values[2], values[0]), values[1])


def limb_sums(part: int, limbs: int, digits: bool = False) -> Any:
    """The intrinsic for a part of the product (`join.REAL`, `DIFFERENCE`, `CROSS`) and so many limbs, from int32
    products or digits: `pitch` bytes from one modulus to the next, and for digits `across` from panel to panel.
    """
    kind = _V8 if digits else _V32

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        *products, pitch, across, moduli, modulus, reciprocal, weights, line, sums, width, sixteens = args
        fma = declared(b.module, "llvm.fma.v8f64", _VF, [_VF, _VF, _VF])
        nearest = declared(b.module, "llvm.rint.v8f64", _VF, [_VF])
        before = b.block
        strip, loop, store, done = (b.append_basic_block(name) for name in ("strip", "modulus", "store", "done"))
        b.branch(strip)
        b.position_at_end(strip)
        column = b.phi(_I64)
        column.add_incoming(number(0), before)
        b.branch(loop)
        b.position_at_end(loop)
        which = b.phi(_I64)
        which.add_incoming(number(0), strip)
        totals = [[b.phi(_VF) for _ in range(limbs)] for _ in range(_VECTORS)]
        q, r = (_everywhere(b, table, b.mul(which, number(8))) for table in (modulus, reciprocal))
        place = b.mul(which, line)
        numbers = [_everywhere(b, weights, b.add(place, number(8 * x))) for x in range(limbs)]
        following = b.add(which, number(1))
        new: list[list[Any]] = []
        for vector in range(_VECTORS):
            if digits:
                # A panel of 32 columns holds two sixteens.
                panel = b.mul(b.lshr(column, number(1)), across)
                place = b.add(panel, b.shl(b.and_(column, number(1)), number(4)))
                place = b.add(place, number(_LANES * vector))
            else:
                place = b.add(b.mul(column, number(4 * _LANES * _VECTORS)), number(4 * _LANES * vector))
            y = v = combined(b, part, products, b.add(b.mul(which, pitch), place), kind)
            if not digits:
                y = b.call(fma, [b.fneg(b.call(nearest, [b.fmul(v, r)])), q, v])
            new.append([b.call(fma, [y, number, total]) for number, total in zip(numbers, totals[vector], strict=True)])
            for total, value in zip(totals[vector], new[vector], strict=True):
                total.add_incoming(_NOTHING, strip)
                total.add_incoming(value, loop)
        which.add_incoming(following, loop)
        b.cbranch(b.icmp_signed("<", following, moduli), loop, store)
        b.position_at_end(store)
        for vector in range(_VECTORS):
            place = b.add(b.mul(column, number(8 * _LANES * _VECTORS)), number(8 * _LANES * vector))
            for x in range(limbs):
                b.store(new[vector][x], _at(b, sums, b.add(b.mul(width, number(x)), place), _VF)).align = 8
        after = b.add(column, number(1))
        column.add_incoming(after, store)
        b.cbranch(b.icmp_signed("<", after, sixteens), strip, done)
        b.position_at_end(done)
        return context.get_dummy_value()

    @intrinsic
    def emit(
        typingctx: Any, c0: Any, c1: Any, c2: Any, pitch: Any, across: Any, moduli: Any, modulus: Any, reciprocal: Any,
        weights: Any, line: Any, sums: Any, width: Any, sixteens: Any,
    ) -> Any:  # fmt: skip
        address, count = types.uintp, types.intp
        tables = (address, address, address, count, address, count)
        return types.void(address, address, address, count, count, count, *tables, count), codegen

    return emit


@functools.cache
def by_limbs(part: int, digits: bool, most: int) -> Any:
    """A helper of kernels that calls the intrinsic of `limb_sums` for the number of limbs, from two to `most`."""
    sums_of = limb_sums(part, most, digits)
    fewer = by_limbs(part, digits, most - 1) if most > 2 else None

    def last(a0: Any, a1: Any, a2: Any, pitch: Any, across: Any, moduli: Any, w: Any, limbs: Any, modulus: Any,
             reciprocal: Any, weights: Any, sums: Any) -> None:  # fmt: skip
        tables = modulus.ctypes.data, reciprocal.ctypes.data, weights.ctypes.data, weights.strides[0]
        target = sums.ctypes.data, sums.strides[0], (w + 15) // 16
        sums_of(a0, a1, a2, pitch, across, moduli, *tables, *target)

    last.__qualname__ = f"limbs_{part}_{digits}_{most}"  # `jit`: a name of its own
    exactly = device(last)
    if fewer is None:
        return exactly

    def chosen(a0: Any, a1: Any, a2: Any, pitch: Any, across: Any, moduli: Any, w: Any, limbs: Any, modulus: Any,
               reciprocal: Any, weights: Any, sums: Any) -> None:  # fmt: skip
        given = (a0, a1, a2, pitch, across, moduli, w, limbs, modulus, reciprocal, weights, sums)
        if limbs == most:
            exactly(*given)
        else:
            fewer(*given)

    chosen.__qualname__ = f"by_limbs_{part}_{digits}_{most}"
    return device(chosen)


def _strip(part: int) -> Any:
    """See `strip_sums`."""
    sums_of = by_limbs(part, False, 5)

    def strip(c0: Any, c1: Any, c2: Any, i: Any, w: Any, limbs: Any, modulus: Any, reciprocal: Any,
              weights: Any, sums: Any) -> None:  # fmt: skip
        row = i * c0.strides[0]
        a0, a1, a2 = c0.ctypes.data + row, c1.ctypes.data + row, c2.ctypes.data + row
        sums_of(
            a0, a1, a2, c0.strides[1], np.int64(0), c0.shape[1], w, limbs, modulus, reciprocal, weights, sums
        )  # fmt: skip

    strip.__qualname__ = f"strip_{part}"  # `jit`: a name of its own
    return device(strip)


strip_sums, strip_sums_difference, strip_sums_cross = _strip(0), _strip(1), _strip(2)
"""strip_sums(c0, c1, c2, i, w, limbs, modulus, reciprocal, weights, sums): the limbs of S of row i of the int32
products c0 (rows, moduli, columns), or of c0 - c1, or of c2 - c0 - c1, go to sums (limbs or more, at least w); c1 and
c2 where they count. Whole sixteens are read and written: columns and sums have room."""
