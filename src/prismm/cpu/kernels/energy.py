"""Sums of squares of what lies at an address: whether a product that BLAS made is ordinary, in one short call.

Bytes: each element is read once; two operations an element.
"""

import math

import numpy as np
from numba import carray
from numba.core import types
from numba.extending import intrinsic

from prismm.core.jit import counting, device_any_order, kernel, wide_vectors
from prismm.core.pointers import words_at
from prismm.core.variables import variable


def _numbers(kind):
    """An intrinsic for the numbers of a type at an address."""

    @intrinsic
    def numbers(typingctx, address):
        def codegen(context, builder, sig, args):
            return builder.inttoptr(args[0], context.get_value_type(sig.return_type))

        return types.CPointer(kind)(types.int64), codegen

    return numbers


_floats, _doubles = _numbers(types.float32), _numbers(types.float64)


@counting
def _usual(place):
    """Whether this thread honours subnormals and rounds to nearest even, and none of some variables is set.

    place: the address of words: `environment.ARITHMETIC`, which comes from memory, or a compiler would calculate with
    it, and then those of `variables.table_of`.
    """
    x = carray(_doubles(place), 7)
    if x[0] * x[1] == 0.0 or x[2] * x[3] == 0.0 or x[3] + x[4] != x[3] or x[3] + x[5] != x[6]:
        return False
    table = words_at(place + 8 * 7)
    found = 0
    for i in range(table[1]):
        found += variable(table, i) != 0
    return found == 0


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
