"""Sums of squares of what lies at an address: whether a product that BLAS made is ordinary, in one short call.

Bytes: each element is read once; two operations an element.
"""

import math

import numpy as np
from llvmlite import ir
from numba import carray
from numba.core import types
from numba.extending import intrinsic

from prismm.core.jit import device, device_any_order, kernel, wide_vectors
from prismm.core.pointers import words_at


@intrinsic
def _floats(typingctx, address):
    """The float32 numbers at an address."""

    def codegen(context, builder, sig, args):
        return builder.inttoptr(args[0], context.get_value_type(sig.return_type))

    return types.CPointer(types.float32)(types.int64), codegen


@intrinsic
def _doubles(typingctx, address):
    """The float64 numbers at an address."""

    def codegen(context, builder, sig, args):
        return builder.inttoptr(args[0], context.get_value_type(sig.return_type))

    return types.CPointer(types.float64)(types.int64), codegen


@intrinsic
def _value_of(typingctx, getenv, name):
    """What C's getenv returns for the name at an address: an address, or 0."""

    def codegen(context, builder, sig, args):
        word = args[1].type
        function = builder.inttoptr(args[0], ir.FunctionType(word, [word]).as_pointer())
        return builder.call(function, [args[1]])

    return types.int64(types.int64, types.int64), codegen


CONSTANTS = (2.0**-1022, 0.5, 2.0**-1074, 1.0, 2.0**-53, 1.5 * 2.0**-53, 1.0 + 2.0**-52)
"""What `_usual` multiplies and adds; they come from memory, or a compiler would."""


@device
def _usual(place):
    """Whether this thread honours subnormals and rounds to nearest even, and none of some variables is set.

    place: the address of words: `CONSTANTS`, the address of C's getenv, how many names, and the addresses of these.
    """
    x = carray(_doubles(place), 7)
    if x[0] * x[1] == 0.0 or x[2] * x[3] == 0.0 or x[3] + x[4] != x[3] or x[3] + x[5] != x[6]:
        return False
    table = words_at(place)
    named = 0
    for i in range(table[8]):
        named += _value_of(table[7], table[9 + i]) != 0
    return named == 0


@device_any_order
def _squares(values, zero):
    total = zero
    for i in range(values.size):
        total += values[i] * values[i]
    return total


@kernel("float32(int64, int64, int64)", nogil=False)
def energy32(address, count, place):
    """Σx² of float32 numbers in float32, in any order; Inf or NaN where one of them or the sum is not finite, and NaN
    where the thread's arithmetic or a variable is not the usual one (`_usual`).
    """
    wide_vectors()
    return _squares(carray(_floats(address), count), np.float32(0.0)) if _usual(place) else np.float32(math.nan)


@kernel("float64(int64, int64, int64)", nogil=False)
def energy64(address, count, place):
    """The same of float64 numbers, in float64."""
    wide_vectors()
    return _squares(carray(_doubles(address), count), 0.0) if _usual(place) else math.nan
