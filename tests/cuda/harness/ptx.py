"""The PTX that prismm's kernels bring along, on NumPy arrays: straight lines of instructions, an array a register.

Registers are bits, arrays of uint32 or uint64; of a matrix instruction the last axis of the arrays is the lane. What
instructions do is PTX's ISA (sections 9.7.1 to 9.7.14); fused operations are rounded once, here by way of rounding to
odd in float64, which two bits more than twice float32's precision allow (Boldo and Melquiond 2008).
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import math
import re
from collections.abc import Callable

import numpy as np

Array = np.ndarray

_libm = ctypes.CDLL(ctypes.util.find_library("m"))
_libm.fma.restype, _libm.fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3
_fma = np.frompyfunc(_libm.fma, 3, 1)


def fma(x: Array, y: Array, z: Array) -> Array:
    """x·y + z of float64 or float32, rounded once, to nearest."""
    if x.dtype == np.float32:
        return _near_single(x, y, z)
    assert x.dtype == np.float64
    return np.asarray(_fma(x, y, z)).astype(np.float64)


def _halves(x: Array) -> tuple[Array, Array]:
    """x = h + l, each of 26 bits (Veltkamp), where nothing overflows."""
    c = 134217729.0 * x
    h = c - (c - x)
    return h, x - h


def _sum_and_error(x: Array, y: Array) -> tuple[Array, Array]:
    s = x + y
    z = s - x
    return s, (x - (s - z)) + (y - z)


def _upwards(x: Array, y: Array, z: Array) -> Array:
    """x·y + z of float64, rounded upwards: the rest after rounding to nearest, its sign exact (Dekker, Knuth)."""
    near = fma(x, y, z)
    (xh, xl), (yh, yl) = _halves(x), _halves(y)
    p = x * y
    low = ((xh * yh - p) + xh * yl + xl * yh) + xl * yl
    s, e = _sum_and_error(p, z)
    # near differs from s by an ulp at most, so s - near and what is added to it are exact.
    rest = (s - near) + (e + low)
    # Where a factor is so small that its product's error is not a number of float64, the sign of the product tells.
    tiny = np.abs(p) < 1e-250
    rest = np.where(tiny & (near == z), np.sign(x) * np.sign(y), rest)
    return np.where(rest > 0, np.nextafter(near, np.inf), near)


def _exact_single(x: Array, y: Array, z: Array) -> tuple[Array, Array]:
    """x·y + z of float32, as float64 and what it lost: the product is exact."""
    return _sum_and_error(x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64))


def _near_single(x: Array, y: Array, z: Array) -> Array:
    s, e = _exact_single(x, y, z)
    even = s.view(np.uint64) & np.uint64(1) == 0
    odd = np.where((e != 0) & even, np.nextafter(s, np.where(e > 0, np.inf, -np.inf)), s)
    return odd.astype(np.float32)


def _up_single(x: Array, y: Array, z: Array) -> Array:
    s, e = _exact_single(x, y, z)
    near = s.astype(np.float32)
    below = (near < s) | ((near == s) & (e > 0))
    return np.where(below, np.nextafter(near, np.float32(np.inf)), near)


def _permuted(a: Array, b: Array, selector: Array) -> Array:
    """prmt: four bytes of eight; no selector of prismm's asks for signs."""
    assert not (selector & np.uint32(0x8888)).any()
    both = (b.astype(np.uint64) << np.uint64(32)) | a
    found = np.zeros(np.broadcast_shapes(a.shape, b.shape, selector.shape), np.uint32)
    for byte in range(4):
        at = ((selector >> np.uint32(4 * byte)) & np.uint32(7)).astype(np.uint64)
        found |= ((both >> (np.uint64(8) * at)) & np.uint64(255)).astype(np.uint32) << np.uint32(8 * byte)
    return found


def _bytes(words: Array, kind: type) -> Array:
    """(…) words as (…, 4) integers, the lowest byte first."""
    return np.ascontiguousarray(words)[..., None].view(np.uint8).view(kind).astype(np.int64)


def _dot(a: Array, b: Array, c: Array) -> Array:
    """dp4a.u32.s32."""
    sums = (_bytes(a, np.uint8) * _bytes(b, np.int8)).sum(-1) + c.view(np.int32)
    return sums.astype(np.int32).view(np.uint32)


def _dot_of_two(a: Array, b: Array, c: Array, upper: bool) -> Array:
    """dp2a.lo.u32.u32, or hi: 16-bit numbers of a times the lower, or upper, two bytes of b."""
    low, high = (x.astype(np.int64) for x in (a & np.uint32(0xFFFF), a >> np.uint32(16)))
    own = _bytes(b, np.uint8)[..., 2 * upper :]
    return ((low * own[..., 0] + high * own[..., 1] + c) & 0xFFFFFFFF).astype(np.uint32)


def _matrix(a: tuple[Array, ...], b: tuple[Array, ...], c: tuple[Array, ...]) -> tuple[Array, ...]:
    """mma.m16n8k16 of s8 and u8: rows are lane // 4 and 8 more, columns of B lane // 4, of C 2·(lane % 4) + {0, 1}."""
    upper, lower = (_bytes(x, np.int8).reshape(*x.shape[:-1], 8, 16) for x in a)
    left = np.concatenate([upper, lower], -2)
    right = _bytes(b[0], np.uint8).reshape(*b[0].shape[:-1], 8, 16)
    sums = left @ np.swapaxes(right, -1, -2)
    own = sums.reshape(*sums.shape[:-2], 2, 8, 4, 2)  # half, row, lane % 4, column of two
    found = []
    for x, start in enumerate(c):
        part = own[..., x // 2, :, :, x % 2].reshape(start.shape).astype(np.int32)
        found.append((part + start.view(np.int32)).view(np.uint32))
    return tuple(found)


def _of(kind: type, function: Callable[..., Array]) -> Callable[..., Array]:
    """A function of numbers of this type, of registers."""

    def run(*words: Array) -> Array:
        with np.errstate(all="ignore"):
            result = np.asarray(function(*(x.view(kind) for x in words)))
        return result.view(np.uint64 if result.itemsize == 8 else np.uint32)

    return run


def _half(x: Array) -> Array:
    """The pattern of float32 numbers rounded to float16, to nearest."""
    with np.errstate(all="ignore"):
        return x.view(np.float32).astype(np.float16).view(np.uint16).astype(np.uint32)


_INSTRUCTIONS: dict[str, Callable[..., Array]] = {
    "mov.b32": lambda x: x,
    "prmt.b32": _permuted,
    "add.s32": _of(np.uint32, lambda x, y: x + y),
    "sub.s32": _of(np.uint32, lambda x, y: x - y),
    "neg.s32": _of(np.uint32, lambda x: ~x + np.uint32(1)),
    "min.u32": _of(np.uint32, np.minimum),
    "xor.b32": _of(np.uint32, lambda x, y: x ^ y),
    "add.u16x2": _of(np.uint16, lambda x, y: x + y),
    "min.u16x2": _of(np.uint16, np.minimum),
    "mad.lo.s32": _of(np.uint32, lambda x, y, z: x * y + z),
    "mul.hi.u32": _of(
        np.uint32, lambda x, y: ((x.astype(np.uint64) * y.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)
    ),
    "dp4a.u32.s32": _dot,
    "dp2a.lo.u32.u32": lambda a, b, c: _dot_of_two(a, b, c, False),
    "dp2a.hi.u32.u32": lambda a, b, c: _dot_of_two(a, b, c, True),
    "mul.rn.f32": _of(np.float32, lambda x, y: x * y),
    "cvt.rn.f16x2.f32": lambda x, y: _half(x) << np.uint32(16) | _half(y),
    "cvt.f32.f16": lambda x: x.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32),
    "abs.f32": lambda x: x & np.uint32(0x7FFFFFFF),
    "sub.rn.f32": _of(np.float32, lambda x, y: x - y),
    "fma.rn.f32": _of(np.float32, fma),
    "fma.rp.f32": _of(np.float32, _up_single),
    "fma.rp.f64": _of(np.float64, _upwards),
    "cvt.rni.f64.f64": _of(np.float64, np.rint),
    "cvt.rzi.f64.f64": _of(np.float64, np.trunc),
    "cvt.rni.s32.f32": _of(np.float32, lambda x: np.rint(x).astype(np.int32)),
    "cvt.rn.f32.s32": _of(np.int32, lambda x: x.astype(np.float32)),
}
_MATRIX = "mma.sync.aligned.m16n8k16.row.col.s32.s8.u8.s32"


@functools.cache
def _parsed(code: str) -> list[tuple[str, list[str | tuple[str, ...]]]]:
    """Instructions and operands; of matrix instructions the operands are tuples."""
    found = []
    for line in re.sub(r"^\s*\{|\}\s*$", "", code.strip()).split(";"):
        words = line.split(None, 1)
        if not words or words[0] == ".reg":
            continue
        operands = [
            tuple(x.strip() for x in group.split(",")) if group else single.strip()
            for group, single in re.findall(r"\{([^}]*)\}|([^,{}\s][^,{}]*)", words[1])
        ]
        found.append((words[0], operands))
    return found


def execute(code: str, outputs: int, inputs: list[Array]) -> list[Array]:
    """What the first `outputs` operands are after the code has run; inputs: the others, of one shape."""
    registers: dict[str, Array] = {}
    for number, x in enumerate(inputs):
        registers[f"${outputs + number}"] = np.ascontiguousarray(x).view(np.uint64 if x.itemsize == 8 else np.uint32)

    def value(name: str) -> Array:
        if name in registers:
            return registers[name]
        if name[:2] in ("0f", "0d"):
            return np.array([int(name[2:], 16)], np.uint32 if name[1] == "f" else np.uint64)
        return np.array([int(name, 0) % 2**32], np.uint32)

    for instruction, (target, *operands) in _parsed(code):
        if instruction == _MATRIX:
            results = _matrix(*(tuple(value(x) for x in group) for group in operands))
            registers.update(zip(target, results, strict=True))
        elif instruction == "mov.b64" and isinstance(target, tuple):
            (both,) = (value(str(x)) for x in operands)
            halves = both & np.uint64(0xFFFFFFFF), both >> np.uint64(32)
            registers.update(zip(target, (x.astype(np.uint32) for x in halves), strict=True))
        elif instruction == "mov.b32" and isinstance(target, tuple):
            (both,) = (value(str(x)) for x in operands)
            registers.update(zip(target, (both & np.uint32(0xFFFF), both >> np.uint32(16)), strict=True))
        elif instruction == "mov.b64" and isinstance(operands[0], tuple):
            low, high = (value(x).astype(np.uint64) for x in operands[0])
            registers[str(target)] = low | (high << np.uint64(32))
        else:
            registers[str(target)] = _INSTRUCTIONS[instruction](*(value(str(x)) for x in operands))
    return [registers[f"${x}"] for x in range(outputs)]


def elementwise(code: str, constraints: str, inputs: list[Array], kinds: list[np.dtype]) -> list[Array]:
    """An assembly of one element, over arrays of one shape: its results, of these types."""
    assert constraints.count("=") == len(kinds)
    shape = np.broadcast_shapes(*(x.shape for x in inputs))
    found = execute(code, len(kinds), [np.broadcast_to(x, shape) for x in inputs])
    return [
        np.broadcast_to(x, shape).view(kind).copy() if x.dtype != kind else x
        for x, kind in zip(found, kinds, strict=True)
    ]


def threads(code: str, outputs: int, inputs: list[Array]) -> Array:
    """An assembly of neighbouring elements, of arrays (warps, pieces, lanes, elements); each piece runs by itself."""
    assert math.prod(inputs[0].shape[2:]) % 32 == 0
    operands = [x[..., each] for x in inputs for each in range(x.shape[-1])]
    return np.stack(execute(code, outputs, operands), -1)
