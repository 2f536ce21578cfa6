"""Split scaled rows or columns into residues.

x = a·2^s is exact in float64 (two factors; a tiny element that underflows is flagged), A' = RN(x) is again a
float64, and A' = Σ_p x_p·2^(w·p) with few-bit integers x_p. The residue of Σ_p x_p·c_p is u - q·rint(u/q), every
step exact. On the way the residual δ = x - A' is measured: its squared 2-norm, and whether any element was inexact
at all.

Bytes: 8 read and one written per element and modulus; about 6 flops per element and modulus.
"""

import numpy as np

from prismm.core.jit import device, device_any_order, fma, kernel, wide_vectors
from prismm.cpu.kernels.scale import two_factors

_TINY = 2.0**-300


@device
def round_row(row, f1, f2, rounded, residual):
    """A' = RN(a·f1·f2), in this order, and the residual; returns how many nonzero elements scale to next to nothing."""
    wide_vectors()
    tiny = 0
    for h in range(row.size):
        x = row[h] * f1 * f2
        y = np.rint(x)
        rounded[h] = y
        residual[h] = x - y
        tiny += np.int64((abs(x) < _TINY) & (row[h] != 0.0))
    return tiny


@device_any_order
def squares(x):
    """Σx²."""
    wide_vectors()
    total = 0.0
    for h in range(x.size):
        total += x[h] * x[h]
    return total


@device
def cut(rounded, part_bits, parts):
    """Cut integers in parts[0] into parts[p], lowest first, in place; each but the last at most 2^(part_bits-1)."""
    up = 2.0**part_bits
    down = 2.0**-part_bits
    for p in range(parts.shape[0] - 1):
        low = parts[p]
        high = parts[p + 1]
        for h in range(low.size):
            x = rounded[h] if p == 0 else low[h]
            y = np.rint(x * down)
            high[h] = y
            low[h] = fma(-y, up, x)


@device
def _emit_int8(parts, c, q, r, bias, out):
    # Moduli up to 256 take at most two parts (`moduli.MAX_MODULI`).
    if parts.shape[0] == 1:
        x0 = parts[0]
        c0 = c[0]
        for h in range(out.size):
            u = x0[h] * c0
            # The conversion by way of int32 wraps 128 to -128, the same residue modulo 256.
            out[h] = np.int8(np.int32(fma(-np.rint(fma(u, r, bias)), q, u)))
    elif parts.shape[0] == 2:
        x0 = parts[0]
        x1 = parts[1]
        c0 = c[0]
        c1 = c[1]
        for h in range(out.size):
            u = fma(x1[h], c1, x0[h] * c0)
            out[h] = np.int8(np.int32(fma(-np.rint(fma(u, r, bias)), q, u)))


@device
def _emit_float64(parts, c, q, r, out):
    for h in range(out.size):
        u = parts[0, h] * c[0]
        for p in range(1, parts.shape[0]):
            u = fma(parts[p, h], c[p], u)
        out[h] = fma(-np.rint(u * r), q, u)


_ROWS = (
    "void(float64[:,::1], int64[::1], int64, float64[:,::1], float64[::1], float64[::1], float64, {}[:,:,::1], "
    "float64[::1], uint8[::1])"
)


@kernel(_ROWS.format("int8"))
def split_rows_int8(a, scale, part_bits, c, q, r, bias, out, residual2, tiny):
    """Residues (moduli, m, k) of the rows of `a` scaled by 2^scale; Σδ² and underflow flag are added per row.

    Rows whose scale is 2^20 (non-finite) or more become zero.
    """
    m, k = a.shape
    parts = np.empty((c.shape[1], k))
    residual = np.empty(k)
    for i in range(m):
        if scale[i] >= 1 << 16 or scale[i] <= -(1 << 16):
            parts[:] = 0.0
        else:
            f1, f2 = two_factors(scale[i])
            # Set, never cleared: both real parts of a complex row share the flag.
            if round_row(a[i], f1, f2, parts[0], residual) > 0:
                tiny[i] = 1
            residual2[i] += squares(residual)
            cut(parts[0], part_bits, parts)
        for which in range(c.shape[0]):
            _emit_int8(parts, c[which], q[which], r[which], bias, out[which, i])


@kernel(_ROWS.format("float64"))
def split_rows_float64(a, scale, part_bits, c, q, r, bias, out, residual2, tiny):
    """The same with float64 residues, for wide moduli (`bias` unused)."""
    m, k = a.shape
    parts = np.empty((c.shape[1], k))
    residual = np.empty(k)
    for i in range(m):
        if scale[i] >= 1 << 16 or scale[i] <= -(1 << 16):
            parts[:] = 0.0
        else:
            f1, f2 = two_factors(scale[i])
            if round_row(a[i], f1, f2, parts[0], residual) > 0:
                tiny[i] = 1
            residual2[i] += squares(residual)
            cut(parts[0], part_bits, parts)
        for which in range(c.shape[0]):
            _emit_float64(parts, c[which], q[which], r[which], out[which, i])


@device
def column_factors(scale, f1, f2):
    """2^scale as two factors per column, zeros for what is not to be split."""
    for j in range(scale.size):
        if scale[j] >= 1 << 16 or scale[j] <= -(1 << 16):
            f1[j] = 0.0
            f2[j] = 0.0
        else:
            f1[j], f2[j] = two_factors(scale[j])


@device
def prepare_across(row, f1, f2, rounded, residual2, tiny):
    """`round_row` for one row of many columns, each with its own factors and residual."""
    wide_vectors()
    for j in range(row.size):
        x = row[j] * f1[j] * f2[j]
        # Selected, not multiplied: Inf times 0 is no number.
        x = 0.0 if f1[j] == 0.0 else x
        y = np.rint(x)
        rounded[j] = y
        d = x - y
        residual2[j] = fma(d, d, residual2[j])
        tiny[j] |= np.uint8((abs(x) < _TINY) & (row[j] != 0.0) & (f1[j] != 0.0))


_COLUMNS = (
    "void(float64[:,::1], int64, int64[::1], int64, float64[:,::1], float64[::1], float64[::1], float64, int64, "
    "{}[:,:,::1], float64[::1], uint8[::1])"
)


@kernel(_COLUMNS.format("int8"))
def split_columns_int8(b, start, scale, part_bits, c, q, r, bias, first, out, residual2, tiny):
    """Residues (moduli, k, n) of the columns of `b` from `start` on scaled by 2^scale, written to
    columns first, first + 1, … of out; Σδ² and flag are added per column."""
    k = b.shape[0]
    n = scale.size
    parts = np.empty((c.shape[1], n))
    f1 = np.empty(n)
    f2 = np.empty(n)
    column_factors(scale, f1, f2)
    # B is read row by row, with a vector of scales: nothing is transposed.
    for h in range(k):
        prepare_across(b[h, start : start + n], f1, f2, parts[0], residual2, tiny)
        cut(parts[0], part_bits, parts)
        for which in range(c.shape[0]):
            _emit_int8(parts, c[which], q[which], r[which], bias, out[which, h, first : first + n])


@kernel(_COLUMNS.format("float64"))
def split_columns_float64(b, start, scale, part_bits, c, q, r, bias, first, out, residual2, tiny):
    """The same with float64 residues, for wide moduli (`bias` unused)."""
    k = b.shape[0]
    n = scale.size
    parts = np.empty((c.shape[1], n))
    f1 = np.empty(n)
    f2 = np.empty(n)
    column_factors(scale, f1, f2)
    for h in range(k):
        prepare_across(b[h, start : start + n], f1, f2, parts[0], residual2, tiny)
        cut(parts[0], part_bits, parts)
        for which in range(c.shape[0]):
            _emit_float64(parts, c[which], q[which], r[which], out[which, h, first : first + n])
