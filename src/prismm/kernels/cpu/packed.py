"""Split scaled rows or columns into residues as the VNNI kernel reads them (`vnni`): the same residues as `split`.

Left: (moduli, rows, pitch) signed bytes; the row's elements, zeros, and at its end -128 times the sum of the residues
of each chunk of the inner dimension, as int32. Right: (moduli, panels, k/4, 32) dwords of four unsigned bytes b + 128,
of rows 4h to 4h + 3; rows and columns beyond the matrix hold 128, that is zero.

An even modulus, 256, would leave +128 on a tie; 2^-9, added to u/q before it is rounded, sends it to -128: the fraction
of u/256 is a multiple of 1/256 and exact. Bytes: 8 read and one written per element and modulus; about 7 flops.
"""

import numpy as np

from prismm.kernels.cpu.jit import device, fma, kernel
from prismm.kernels.cpu.scale import two_factors
from prismm.kernels.cpu.split import column_factors, cut, prepare_across, round_row, squares
from prismm.kernels.cpu.vnni import CHUNK

_DEEP, _WIDE = 32, 4
_ALL_128 = 128.0 * (1.0 + 2.0**8 + 2.0**16 + 2.0**24)


@device
def _emit_row(parts, start, c, q, r, out):
    """Residues of one row as int8; returns their sum."""
    total = np.int64(0)
    bias = 2.0**-9 if q == 256.0 else 0.0
    if parts.shape[0] == 1:
        x0 = parts[0, start : start + out.size]
        c0 = c[0]
        for h in range(out.size):
            u = x0[h] * c0
            y = np.int32(fma(-np.rint(fma(u, r, bias)), q, u))
            out[h] = np.int8(y)
            total += y
    else:
        x0 = parts[0, start : start + out.size]
        x1 = parts[1, start : start + out.size]
        c0 = c[0]
        c1 = c[1]
        for h in range(out.size):
            u = fma(x1[h], c1, x0[h] * c0)
            y = np.int32(fma(-np.rint(fma(u, r, bias)), q, u))
            out[h] = np.int8(y)
            total += y
    return total


@kernel(
    "void(float64[:,::1], int64[::1], int64, float64[:,::1], float64[::1], float64[::1], int64, int8[:,:,::1], "
    "float64[::1], uint8[::1])"
)
def pack_rows(a, scale, part_bits, c, q, r, first, out, residual2, tiny):
    """The left operand's residues of rows of `a` (m, k) scaled by 2^scale, written to rows first, first + 1, … of out;
    Σδ² and underflow flag are added per row.
    """
    m, k = a.shape
    parts = np.empty((c.shape[1], k))
    residual = np.empty(k)
    pitch = out.shape[2]
    chunks = (k + CHUNK - 1) // CHUNK
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
            row = out[which, first + i]
            for chunk in range(chunks):
                h0 = chunk * CHUNK
                h1 = min(k, h0 + CHUNK)
                total = _emit_row(parts, h0, c[which], q[which], r[which], row[h0:h1])
                row.view(np.int32)[pitch // 4 - chunks + chunk] = np.int32(-128 * total)
            for h in range(k, pitch - 4 * chunks):
                row[h] = 0


@device
def _emit_panel(parts, c, q, r, out):
    """Residues of a few rows and 32 columns as dwords of four rows: Σ 256^i·(y_i + 128), exact in float64."""
    bias = 2.0**-9 if q == 256.0 else 0.0
    c0 = c[0]
    c1 = c[1] if parts.shape[1] == 2 else 0.0
    for h in range(out.shape[0]):
        a0 = parts[4 * h, 0]
        a1 = parts[4 * h + 1, 0]
        a2 = parts[4 * h + 2, 0]
        a3 = parts[4 * h + 3, 0]
        target = out[h]
        if parts.shape[1] == 2:
            b0 = parts[4 * h, 1]
            b1 = parts[4 * h + 1, 1]
            b2 = parts[4 * h + 2, 1]
            b3 = parts[4 * h + 3, 1]
            for j in range(32):
                u0 = fma(b0[j], c1, a0[j] * c0)
                u1 = fma(b1[j], c1, a1[j] * c0)
                u2 = fma(b2[j], c1, a2[j] * c0)
                u3 = fma(b3[j], c1, a3[j] * c0)
                y0 = fma(-np.rint(fma(u0, r, bias)), q, u0)
                y1 = fma(-np.rint(fma(u1, r, bias)), q, u1)
                y2 = fma(-np.rint(fma(u2, r, bias)), q, u2)
                y3 = fma(-np.rint(fma(u3, r, bias)), q, u3)
                dword = fma(y3, 2.0**24, fma(y2, 2.0**16, fma(y1, 2.0**8, y0 + _ALL_128)))
                target[j] = np.uint32(np.int64(dword))
        else:
            for j in range(32):
                u0 = a0[j] * c0
                u1 = a1[j] * c0
                u2 = a2[j] * c0
                u3 = a3[j] * c0
                y0 = fma(-np.rint(fma(u0, r, bias)), q, u0)
                y1 = fma(-np.rint(fma(u1, r, bias)), q, u1)
                y2 = fma(-np.rint(fma(u2, r, bias)), q, u2)
                y3 = fma(-np.rint(fma(u3, r, bias)), q, u3)
                dword = fma(y3, 2.0**24, fma(y2, 2.0**16, fma(y1, 2.0**8, y0 + _ALL_128)))
                target[j] = np.uint32(np.int64(dword))


@kernel(
    "void(float64[:,::1], int64, int64[::1], int64, float64[:,::1], float64[::1], float64[::1], int64, "
    "uint32[:,:,:,::1], float64[::1], uint8[::1])"
)
def pack_columns(b, start, scale, part_bits, c, q, r, panel, out, residual2, tiny):
    """The right operand's residues of columns start, start + 1, … of `b` (k, N) scaled by 2^scale, written from `panel`
    on; Σδ² and flag are added per column.
    """
    k = b.shape[0]
    parts = np.zeros((_WIDE, _DEEP, c.shape[1], 32))
    f1 = np.empty(32 * _WIDE)
    f2 = np.empty(32 * _WIDE)
    # A few panels and a few rows at a time: rows are read, and panels written, in long pieces.
    for j0 in range(0, scale.size, 32 * _WIDE):
        n = min(scale.size, j0 + 32 * _WIDE) - j0
        panels = (n + 31) // 32
        column_factors(scale[j0 : j0 + n], f1[:n], f2[:n])
        parts[panels - 1, :, :, n - 32 * (panels - 1) :] = 0.0
        for h0 in range(0, k, _DEEP):
            for x in range(min(_DEEP, k + 3 - h0)):
                for p in range(panels):
                    p0 = 32 * p
                    p1 = min(n, p0 + 32)
                    j = j0 + p0
                    if h0 + x < k:
                        row = b[h0 + x, start + j : start + j0 + p1]
                        target = parts[p, x]
                        prepare_across(
                            row, f1[p0:p1], f2[p0:p1], target, residual2[j : j0 + p1], tiny[j : j0 + p1]
                        )  # fmt: skip
                        cut(target[0], part_bits, target)
                    else:
                        parts[p, x] = 0.0
            stop = min((k + 3) // 4, (h0 + _DEEP) // 4)
            for p in range(panels):
                for which in range(c.shape[0]):
                    target = out[which, panel + j0 // 32 + p, h0 // 4 : stop]
                    _emit_panel(parts[p], c[which], q[which], r[which], target)


@kernel("void(int8[:,:,::1], int8[:,:,::1], int8[:,:,::1], uint32[:,:,:,::1])")
def pack_residues(left, right, x, y):
    """Plain residues left (moduli, m, k) and right (moduli, k, n) into zeroed packed arrays x and y."""
    count, m, k = left.shape
    n = right.shape[2]
    chunks = (k + CHUNK - 1) // CHUNK
    for which in range(count):
        for i in range(m):
            row = x[which, i]
            for h in range(k):
                row[h] = left[which, i, h]
                row.view(np.int32)[row.size // 4 - chunks + h // CHUNK] -= 128 * np.int32(left[which, i, h])
        for h in range(k):
            for j in range(n):
                byte = np.uint32(np.int64(right[which, h, j]) + 128)
                y[which, j // 32, h // 4, j % 32] |= byte << np.uint32(8 * (h % 4))


@kernel("void(int8[:,:,::1], int8[:,:,::1], int64, int64, int64, float64[::1], int8[:,:,::1])")
def add_packed_rows(x, y, first, last, k, modulus, out):
    """Residues of x + y, both as `pack_rows` leaves them, of rows first to last - 1."""
    pitch = out.shape[2]
    chunks = (k + CHUNK - 1) // CHUNK
    for which in range(x.shape[0]):
        q = modulus[which]
        r = 1.0 / q
        bias = 2.0**-9 if q == 256.0 else 0.0
        for i in range(first, last):
            u = x[which, i]
            v = y[which, i]
            o = out[which, i]
            for chunk in range(chunks):
                total = np.int64(0)
                for h in range(chunk * CHUNK, min(k, (chunk + 1) * CHUNK)):
                    s = np.float64(np.int32(u[h]) + np.int32(v[h]))
                    s = fma(-np.rint(fma(s, r, bias)), q, s)
                    o[h] = np.int8(np.int32(s))
                    total += np.int32(s)
                o.view(np.int32)[pitch // 4 - chunks + chunk] = np.int32(-128 * total)
            for h in range(k, pitch - 4 * chunks):
                o[h] = 0


@kernel("void(uint32[:,:,:,::1], uint32[:,:,:,::1], float64[::1], uint32[:,:,:,::1])")
def add_packed_columns(x, y, modulus, out):
    """Residues of x + y, both as `pack_columns` leaves them."""
    for which in range(x.shape[0]):
        q = np.int16(modulus[which])
        high = np.int16((q - 1) // 2)
        low = np.int16(-(q // 2))
        u = x[which].view(np.uint8).reshape(-1)
        v = y[which].view(np.uint8).reshape(-1)
        o = out[which].view(np.uint8).reshape(-1)
        for h in range(u.size):
            s = np.int16(np.int16(u[h]) + np.int16(v[h]) - 256)
            s = np.int16(s - q) if s > high else s
            s = np.int16(s + q) if s < low else s
            o[h] = np.uint8(s + 128)
