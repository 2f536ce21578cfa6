"""Digits of exact partial products: sums of residues reduced to one byte per modulus, and bytes added modulo each.

The residues of a left operand carry (Q/q)^-1, so a product's symmetric residue is itself the digit of the Chinese
remainder sum, and digits of partial products add up to the digit of the whole modulo q. -128 stands for ±128 modulo
256.

Bytes: four or eight read and one written per entry and modulus; three read and written to add; some five operations.
"""

import numpy as np

from prismm.core.jit import contiguous_row, counting, kernel
from prismm.cpu.kernels.join import _combine, _reduce

_STRIP = 256


@counting
def _digits(c0, c1, c2, part, modulus, reciprocal, out):
    y = np.empty((1, _STRIP))
    for i in range(out.shape[1]):
        for which in range(out.shape[0]):
            q, r = modulus[which], reciprocal[which]
            for j0 in range(0, out.shape[2], _STRIP):
                w = min(out.shape[2], j0 + _STRIP) - j0
                target = contiguous_row(y, 0, 0, w)
                _combine(
                    contiguous_row(c0[i], which, j0, w), contiguous_row(c1[i], which, j0, w),
                    contiguous_row(c2[i], which, j0, w), part, target,
                )  # fmt: skip
                _reduce(target, q, r)
                digits = contiguous_row(out[which], i, j0, w)
                for j in range(w):
                    # By way of int32, which wraps 128 to -128: the same residue modulo 256.
                    digits[j] = np.int8(np.int32(target[j]))


@kernel("void(int32[:,:,:], int32[:,:,:], int32[:,:,:], int64, float64[::1], float64[::1], int8[:,:,:])")
def digits_int32(c0, c1, c2, part, modulus, reciprocal, out):
    """out (moduli, m, n): digits of products (m, moduli, >= n), whose rows are contiguous; part: as in `join`, REAL c0,
    DIFFERENCE c0 - c1 or CROSS c2 - c0 - c1.
    """
    _digits(c0, c1, c2, part, modulus, reciprocal, out)


@kernel("void(float64[:,:,:], float64[:,:,:], float64[:,:,:], int64, float64[::1], float64[::1], int8[:,:,:])")
def digits_float64(c0, c1, c2, part, modulus, reciprocal, out):
    """The same of float64 products."""
    _digits(c0, c1, c2, part, modulus, reciprocal, out)


@kernel("void(int8[:,::1], int8[:,::1], int64[::1])")
def add_digits(total, other, modulus):
    """total += other modulo q, row by row, symmetric."""
    for which in range(total.shape[0]):
        q = np.int16(modulus[which])
        high = np.int16((q - 1) // 2)
        low = np.int16(-(q // 2))
        x = contiguous_row(total, which, 0, total.shape[1])
        y = contiguous_row(other, which, 0, total.shape[1])
        for h in range(x.size):
            s = np.int16(np.int16(x[h]) + np.int16(y[h]))
            s = np.int16(s - q) if s > high else s
            s = np.int16(s + q) if s < low else s
            x[h] = np.int8(s)
