"""Round a float64 GEMM of float32 data to float32 and list the entries whose rounding is open.

Also the residue helpers that complex products and long inner dimensions need.
"""

import numpy as np

from prismm.core.jit import contiguous_row, device, fma, kernel, wide_vectors


@device
def _round_row(c, a, b, factor, out, fail):
    """Widen by the bound and by an ulp of float64 at each end; equal roundings of both ends decide the entry."""
    for j in range(c.size):
        err = a * b[j] * factor
        low = c[j] - err
        high = c[j] + err
        low -= abs(low) * 2.0**-51
        high += abs(high) * 2.0**-51
        below = np.float32(low)
        out[j] = below if c[j] != 0.0 else np.float32(0.0)
        fail[j] = np.uint8(not ((below == np.float32(high)) & ((low > 0.0) == (high > 0.0))))


@kernel("int64(float64[:,::1], float64[::1], float64[::1], float64, float32[:,:], int32[::1])")
def round_to_float32(c, row_norm, column_norm, factor, out, failed):
    """out = RN(c) where |exact - c| <= factor·row_norm_i·column_norm_j certifies it; returns how many it does not.

    An exact zero is +0, a negative value that underflows -0; an interval that holds both signs is open.
    """
    m, n = c.shape
    fail = np.empty(n, np.uint8)
    rounded = np.empty(n, np.float32)
    count = 0
    for i in range(m):
        _round_row(c[i], row_norm[i], column_norm, factor, rounded, fail)
        trouble = 0
        for j in range(n):
            out[i, j] = rounded[j]
            trouble += np.int64(fail[j])
        # Nearly all rows have no failure, and are not searched.
        if trouble:
            for j in range(n):
                if fail[j]:
                    failed[count] = i * n + j
                    count += 1
    return count


@device
def nearest_residue(s, q, low, high):
    """The residue of |s| <= q that is nearest to 0, from low = -(q // 2) to high = (q - 1) // 2, all of them int16."""
    s = np.int16(s - q) if s > high else s
    return np.int16(s + q) if s < low else s


@device
def add_bytes(u, v, q, out):
    """Set out to the residues of u + v that are nearest to 0, and return their sum. u, v: such residues."""
    wide_vectors()
    low, high = np.int16(-(q // 2)), np.int16((q - 1) // 2)
    total = np.int32(0)
    for h in range(out.size):
        s = nearest_residue(np.int16(np.int16(u[h]) + np.int16(v[h])), q, low, high)
        out[h] = np.int8(s)
        total += np.int32(s)
    return total


@kernel("void(int8[:,:,::1], int8[:,:,::1], float64[::1], int8[:,:,::1])")
def add_residues_int8(x, y, modulus, out):
    """Symmetric residue of x + y: the third operand of the three-product complex scheme."""
    moduli, size = x.shape[0], x.shape[1] * x.shape[2]
    of_x, of_y, flat = x.reshape((moduli, size)), y.reshape((moduli, size)), out.reshape((moduli, size))
    for which in range(moduli):
        add_bytes(
            contiguous_row(of_x, which, 0, size), contiguous_row(of_y, which, 0, size), np.int16(modulus[which]),
            contiguous_row(flat, which, 0, size),
        )  # fmt: skip


@kernel("void(float64[:,:,::1], float64[:,:,::1], float64[::1], float64[:,:,::1])")
def add_residues_float64(x, y, modulus, out):
    """The same for float64 residues."""
    for which in range(x.shape[0]):
        q = modulus[which]
        r = 1.0 / q
        for i in range(x.shape[1]):
            u = x[which, i]
            v = y[which, i]
            o = out[which, i]
            for h in range(u.size):
                s = u[h] + v[h]
                o[h] = fma(-np.rint(s * r), q, s)


@kernel("void(int32[:,::1], int32[:,::1], float64)")
def fold_int32(total, block, modulus):
    """total = (total mod q) + (block mod q), symmetric: sums over blocks of the inner dimension never overflow."""
    r = 1.0 / modulus
    for i in range(total.shape[0]):
        x = total[i]
        y = block[i]
        for j in range(x.size):
            # An int32 is exact in float64, and the error of its quotient far below 1/(2q).
            u = np.float64(x[j])
            v = np.float64(y[j])
            u = fma(-np.rint(u * r), modulus, u)
            v = fma(-np.rint(v * r), modulus, v)
            x[j] = np.int32(u + v)


@kernel("void(float64[:,::1], float64[:,::1], float64)")
def fold_float64(total, block, modulus):
    """The same for float64 products."""
    r = 1.0 / modulus
    for i in range(total.shape[0]):
        x = total[i]
        y = block[i]
        for j in range(x.size):
            u = fma(-np.rint(x[j] * r), modulus, x[j])
            v = fma(-np.rint(y[j] * r), modulus, y[j])
            x[j] = u + v
