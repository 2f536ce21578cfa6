"""Sums of squares of what lies at an address: whether a product that BLAS made is finite, in one short call.

Bytes: each element is read once; two operations an element.
"""

import numpy as np
from numba import carray
from numba.core import types
from numba.extending import intrinsic

from prismm.core.jit import device_any_order, kernel, wide_vectors


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


@device_any_order
def _squares(values, zero):
    total = zero
    for i in range(values.size):
        total += values[i] * values[i]
    return total


@kernel("float32(int64, int64)", nogil=False)
def energy32(address, count):
    """Σx² of float32 numbers in float32, in any order; Inf or NaN where one of them or the sum is not finite."""
    wide_vectors()
    return _squares(carray(_floats(address), count), np.float32(0.0))


@kernel("float64(int64, int64)", nogil=False)
def energy64(address, count):
    """The same of float64 numbers, in float64."""
    wide_vectors()
    return _squares(carray(_doubles(address), count), 0.0)
