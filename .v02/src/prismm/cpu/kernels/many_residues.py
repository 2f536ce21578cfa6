"""Residues of integers of up to 286 bits modulo many numbers, plain and elementwise: for engines that take residues as
they are, and the twin of `packed`.

Each integer is cut into parts of 24 bits, x = Σ x_p·2^(24·p); its residue is that of Σ x_p·c_p, |x_p| <= 2^23 and |c_p|
<= 128, so below 2^34 (12 of them) and exact. About 10 + 8·moduli operations an element.
"""

import numpy as np

from prismm.core.jit import contiguous_row, fma, kernel

PART_BITS = 24
_STRIP = 512


@kernel("void(float64[::1], float64[:,::1], float64[::1], int8[:,::1])")
def residues(x, numbers, modulus, out):
    """out[l] = x modulo modulus[l], symmetric, as bytes; numbers (moduli, parts): 2^(24·p) modulo each."""
    parts = np.empty((numbers.shape[1], _STRIP))
    sums = np.empty((1, _STRIP))
    up, down = 2.0**PART_BITS, 2.0**-PART_BITS
    for start in range(0, x.size, _STRIP):
        w = min(x.size, start + _STRIP) - start
        rest = contiguous_row(parts, 0, 0, w)
        for h in range(w):
            rest[h] = x[start + h]
        for p in range(numbers.shape[1] - 1):
            low, high = contiguous_row(parts, p, 0, w), contiguous_row(parts, p + 1, 0, w)
            for h in range(w):
                high[h] = np.rint(low[h] * down)
                low[h] = fma(-high[h], up, low[h])
        total = contiguous_row(sums, 0, 0, w)
        for which in range(modulus.size):
            q = modulus[which]
            r = 1.0 / q
            for h in range(w):
                total[h] = 0.0
            for p in range(numbers.shape[1]):
                part = contiguous_row(parts, p, 0, w)
                for h in range(w):
                    # Exact in any order, so each number is taken through the whole strip at a time.
                    total[h] = fma(part[h], numbers[which, p], total[h])
            for h in range(w):
                out[which, start + h] = np.int8(np.int32(fma(-np.rint(total[h] * r), q, total[h])))
