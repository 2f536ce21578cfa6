"""Split scaled rows or columns into residues as the VNNI kernel reads them (`vnni`): the same residues as `split`.

Left: (moduli, rows, pitch) signed bytes; the row's elements, zeros, and at its end -128 times the sum of the residues
of each chunk of the inner dimension, as int32. Right: (moduli, panels, k/4, 32) dwords of four unsigned bytes b + 128,
of rows 4h to 4h + 3; rows and columns beyond the matrix hold 128, that is zero. Tables: `moduli.ByteTables`.

Bytes: 8 read (4 by the `single` twins) and one written per element and modulus; about half an instruction of 512 bits
(`residue`).
"""

import numpy as np

from prismm.core.jit import contiguous_part, contiguous_row, counting, device, fma, kernel, single, wide_vectors
from prismm.cpu.kernels.prepare import prepare1, prepare2, prepare3, single1, single2, single3
from prismm.cpu.kernels.residue import panel_residues, row_residues
from prismm.cpu.kernels.rounding import add_bytes, nearest_residue
from prismm.cpu.kernels.scale import bound_terms, scale_columns, scale_rows, two_factors
from prismm.cpu.kernels.split import column_factors, prepare_across
from prismm.cpu.kernels.vnni import CHUNK

_DEEP, _WIDE = 32, 4
_row1, _row2, _row3, _row_many = row_residues(1), row_residues(2), row_residues(3), row_residues(None)
_panel1, _panel2, _panel3, _panel_many = (
    panel_residues(1), panel_residues(2), panel_residues(3), panel_residues(None),
)  # fmt: skip


@device
def _to_dwords(x, bits, dwords, first, count):
    """x + 2^bits, with integers |x| < 2^bits <= 2^287 in float64, as `count` rows of dwords from `first` on, the lowest
    dword first. Of more than two dwords x is spoiled.

    x = x1·2^32 + x0 with 0 <= x0 < 2^32, both exact; then x1 likewise.
    """
    wide_vectors()
    low = contiguous_row(dwords, first, 0, x.size)
    if count == 1:
        # With 2^bits added all bytes are digits of a positive number; the table's offset takes it off modulo q.
        offset = np.int64(1) << bits
        for h in range(x.size):
            low[h] = np.int32(np.int64(x[h]) + offset)
    elif count == 2:
        high = contiguous_row(dwords, first + 1, 0, x.size)
        offset = np.int64(1) << bits
        for h in range(x.size):
            y = np.int64(x[h]) + offset
            low[h] = np.int32(y)
            high[h] = np.int32(y >> 32)
    else:
        for d in range(count - 1):
            dword = contiguous_row(dwords, first + d, 0, x.size)
            for h in range(x.size):
                x1 = np.floor(x[h] * 2.0**-32)
                dword[h] = np.int32(np.int64(fma(-x1, 2.0**32, x[h])))
                x[h] = x1
        high = contiguous_row(dwords, first + count - 1, 0, x.size)
        offset = np.int64(1) << (bits - 32 * (count - 1))
        for h in range(x.size):
            high[h] = np.int32(np.int64(x[h]) + offset)


@device
def _prepare_panel(source, pitch, size, rows, factors, residual, tiny, bits, count, to):
    """`prepare1` and its like, by the bytes of an element and the number of dwords."""
    given = source, pitch, rows, factors, residual, tiny, bits, to
    if count == 1:
        prepare1(*given) if size == 8 else single1(*given)
    elif count == 2:
        prepare2(*given) if size == 8 else single2(*given)
    else:
        prepare3(*given) if size == 8 else single3(*given)


@counting
def _prepare_long_row(a, i, factors, residuals, small, bits, count, dwords):
    """Row i of `a` in lines of 32, of any number of dwords, in loops: what is split again into many moduli."""
    k = a.shape[1]
    whole = np.empty(32)
    for line in range((k + 31) // 32):
        size = min(32, k - 32 * line)
        whole[:] = 0.0
        prepare_across(
            contiguous_row(a, i, 32 * line, size), contiguous_row(factors, 0, 0, size),
            contiguous_row(factors, 1, 0, size), whole, residuals, small,
        )  # fmt: skip
        _to_dwords(whole, bits, dwords, line * count, count)


@kernel(
    "void(float64[:,::1], int64[::1], int64, int32[:,::1], int32[::1], float64[::1], int64, int8[:,:,::1], "
    "float64[::1], uint8[::1])"
)
def pack_rows(a, scale, bits, table, offset, q, first, out, residual2, tiny):
    """The left operand's residues of rows of `a` (m, k) scaled by 2^scale, written to rows first, first + 1, … of out;
    Σδ² and underflow flag are added per row.
    """
    m, k = a.shape
    count = table.shape[1]
    # The kernel packs 64 residues at a time.
    padded = (k + 63) // 64 * 64
    lines, rest = k // 32, k % 32
    # In lines of 32, all of whose dwords stand together; those beyond the matrix hold zeros.
    dwords = np.empty((padded // 32 * count, 32), np.int32)
    factors = np.empty((2, 32))
    end = np.zeros((1, 32), a.dtype)
    residuals = np.empty(32)
    small = np.empty(32, np.uint8)
    for line in range(lines, padded // 32):
        _to_dwords(np.zeros(32), bits, dwords, line * count, count)
    height, pitch = out.shape[1:]
    chunks = (k + CHUNK - 1) // CHUNK
    flat = out.reshape((out.shape[0] * height, pitch))
    ends = flat.view(np.int32)
    numbers = np.uint64(table.ctypes.data)
    source = np.uint64(dwords.ctypes.data)
    for i in range(m):
        residuals[:] = 0.0
        small[:] = 0
        factors[:] = 0.0
        if -(1 << 16) < scale[i] < 1 << 16:
            factors[0, :], factors[1, :] = two_factors(scale[i])
        size = a.itemsize
        row = a.ctypes.data + i * a.strides[0]
        if count > 3:
            _prepare_long_row(a, i, factors, residuals, small, bits, count, dwords)
        place = np.uint64(factors.ctypes.data)
        sums_at, small_at = np.uint64(residuals.ctypes.data), np.uint64(small.ctypes.data)
        if lines > 0 and count <= 3:
            _prepare_panel(np.uint64(row), 32 * size, size, lines, place, sums_at, small_at, bits, count, source)
        if rest > 0 and count <= 3:
            # Copied, because reading a whole line of 32 would run past the row, and at the end past the matrix.
            for h in range(rest):
                end[0, h] = a[i, 32 * lines + h]
            to = source + np.uint64(128 * count * lines)
            _prepare_panel(
                np.uint64(end.ctypes.data), 0, size, np.int64(1), place, sums_at, small_at, bits, count, to
            )  # fmt: skip
        for h in range(32):
            residual2[i] += residuals[h]
            tiny[i] |= small[h]
        for which in range(table.shape[0]):
            line = which * height + first + i
            # By address: counted references to so many short rows would cost as much as their residues.
            contiguous_row(flat, line, padded, pitch - padded)[:] = 0
            sums = contiguous_row(ends, line, pitch // 4 - chunks, chunks)
            constants = numbers + np.uint64(4 * which * count)
            target = np.uint64(flat.ctypes.data + line * pitch)
            # The last chunk first: its lines may reach into the row's end, where the sums are to stand.
            for chunk in range(chunks - 1, -1, -1):
                h0 = chunk * CHUNK
                groups = (min(padded, h0 + CHUNK) - h0) // 64
                here, there = source + np.uint64(4 * count * h0), target + np.uint64(h0)
                if count == 1:
                    total = _row1(here, groups, constants, offset[which], q[which], there)
                elif count == 2:
                    total = _row2(here, groups, constants, offset[which], q[which], there)
                elif count == 3:
                    total = _row3(here, groups, constants, offset[which], q[which], there)
                else:
                    total = _row_many(here, count, groups, constants, offset[which], q[which], there)
                sums[chunk] = np.int32(-128 * np.int64(total))


@kernel(
    "void(float64[:,::1], int64, int64[::1], int64, int32[:,::1], int32[::1], float64[::1], int64, "
    "uint32[:,:,:,::1], float64[::1], uint8[::1])"
)
def pack_columns(b, start, scale, bits, table, offset, q, panel, out, residual2, tiny):
    """The right operand's residues of columns start, start + 1, … of `b` (k, N) scaled by 2^scale, written from `panel`
    on; Σδ² and flag are added per column.
    """
    wide_vectors()
    k = b.shape[0]
    count = table.shape[1]
    lines = np.zeros((1, 32))
    dwords = np.empty((_WIDE * _DEEP * count, 32), np.int32)
    f1 = np.empty(32 * _WIDE)
    f2 = np.empty(32 * _WIDE)
    factors = np.empty((2, 32))
    whole = contiguous_row(lines, 0, 0, 32)
    # A few panels and a few rows at a time: rows are read, and panels written, in long pieces.
    for j0 in range(0, scale.size, 32 * _WIDE):
        n = min(scale.size, j0 + 32 * _WIDE) - j0
        panels = (n + 31) // 32
        column_factors(scale[j0 : j0 + n], f1[:n], f2[:n])
        for h0 in range(0, k, _DEEP):
            deep = min(_DEEP, k - h0)
            for p in range(n // 32 if count <= 3 else 0):
                for x in range(32):
                    factors[0, x] = f1[32 * p + x]
                    factors[1, x] = f2[32 * p + x]
                source = np.uint64(b.ctypes.data + h0 * b.strides[0] + (start + j0 + 32 * p) * b.itemsize)
                to = np.uint64(dwords.ctypes.data + p * _DEEP * count * 128)
                _prepare_panel(
                    source, b.strides[0], b.itemsize, deep, np.uint64(factors.ctypes.data),
                    np.uint64(residual2.ctypes.data + 8 * (j0 + 32 * p)), np.uint64(tiny.ctypes.data + j0 + 32 * p),
                    bits, count, to,
                )  # fmt: skip
            # Up to three rows more than there are: a dword holds four.
            for x in range(min(_DEEP, k + 3 - h0)):
                # Rows beyond the matrix, a last panel of fewer than 32 columns, and all of many dwords.
                for p in range(n // 32 if x < deep and count <= 3 else 0, panels):
                    p0 = 32 * p
                    size = min(n - p0, 32)
                    whole[:] = 0.0
                    if h0 + x < k:
                        prepare_across(
                            contiguous_row(b, h0 + x, start + j0 + p0, size), contiguous_part(f1, p0, size),
                            contiguous_part(f2, p0, size), whole, contiguous_part(residual2, j0 + p0, size),
                            contiguous_part(tiny, j0 + p0, size),
                        )  # fmt: skip
                    _to_dwords(whole, bits, dwords, (p * _DEEP + x) * count, count)
            groups = min((k + 3) // 4, (h0 + _DEEP) // 4) - h0 // 4
            for p in range(panels):
                source = np.uint64(dwords.ctypes.data + p * _DEEP * count * 128)
                # All moduli while the dwords are in the cache.
                for which in range(table.shape[0]):
                    place = ((which * out.shape[1] + panel + j0 // 32 + p) * out.shape[2] + h0 // 4) * 128
                    target = np.uint64(out.ctypes.data + place)
                    numbers = np.uint64(table.ctypes.data + which * count * 4)
                    if count == 1:
                        _panel1(source, groups, numbers, offset[which], q[which], target)
                    elif count == 2:
                        _panel2(source, groups, numbers, offset[which], q[which], target)
                    elif count == 3:
                        _panel3(source, groups, numbers, offset[which], q[which], target)
                    else:
                        _panel_many(source, count, groups, numbers, offset[which], q[which], target)


_scale_rows, _scale_columns, _bound_terms = scale_rows.device, scale_columns.device, bound_terms.device
_pack_rows, _pack_columns = pack_rows.device, pack_columns.device


@kernel(
    "void(float64[:,::1], int64[::1], int64, int64, int32[:,::1], int32[::1], float64[::1], int64, int64, int64, "
    "int8[:,:,::1], int64[::1], int64[::1], int64[:,::1], float64[:,::1])"
)
def pack_left(
    a, thresholds, q, bits, table, offset, modulus, first, terms, a_priori, out, exponent, shift, counts, bounds
):  # fmt: skip
    """`scale.scale_rows`, `pack_rows` and `scale.bound_terms` of a real operand in one call: between calls a worker may
    have to wait for the interpreter, which takes longer than a small operand.
    """
    wide_vectors()
    norm2, norm1 = np.empty(a.shape[0], np.int64), np.empty(a.shape[0], np.int64)
    residual2, tiny = np.zeros(a.shape[0]), np.zeros(a.shape[0], np.uint8)
    _scale_rows(a, thresholds, q, exponent, shift, norm2, norm1, counts)
    _pack_rows(a, shift, bits, table, offset, modulus, first, out, residual2, tiny)
    _bound_terms(exponent, shift, q, norm2, norm1, residual2, tiny, terms, a_priori, bounds)


@kernel(
    "void(float64[:,::1], int64, int64[::1], int64, int64, int32[:,::1], int32[::1], float64[::1], int64, int64, "
    "int64, uint32[:,:,:,::1], int64[::1], int64[::1], int64[:,::1], float64[:,::1])"
)
def pack_right(
    b, start, thresholds, q, bits, table, offset, modulus, panel, terms, a_priori, out, exponent, shift, counts, bounds
):  # fmt: skip
    """The same of columns start, start + 1, … of `b` (k, N), as many as `exponent` has."""
    wide_vectors()
    n = exponent.size
    norm2, norm1 = np.empty(n, np.int64), np.empty(n, np.int64)
    residual2, tiny = np.zeros(n), np.zeros(n, np.uint8)
    _scale_columns(b, start, thresholds, q, exponent, shift, norm2, norm1, counts)
    _pack_columns(b, start, shift, bits, table, offset, modulus, panel, out, residual2, tiny)
    _bound_terms(exponent, shift, q, norm2, norm1, residual2, tiny, terms, a_priori, bounds)


pack_left_single, pack_right_single = single(pack_left), single(pack_right)


@kernel("void(int8[:,:,::1], int8[:,:,::1], int8[:,:,::1], uint32[:,:,:,::1])")
def pack_residues(left, right, x, y):
    """Plain residues left (moduli, m, k) and right (moduli, k, n) into zeroed packed arrays x and y."""
    count, m, k = left.shape
    n = right.shape[2]
    chunks = (k + CHUNK - 1) // CHUNK
    for which in range(count):
        for i in range(m):
            source, target = contiguous_row(left[which], i, 0, k), contiguous_row(x[which], i, 0, x.shape[2])
            ends = target.view(np.int32)
            for chunk in range(chunks):
                total = np.int64(0)
                for h in range(chunk * CHUNK, min(k, (chunk + 1) * CHUNK)):
                    target[h] = source[h]
                    total += source[h]
                ends[ends.size - chunks + chunk] = np.int32(-128 * total)
        whole = right[which]
        for p in range(y.shape[1]):
            w = min(n - 32 * p, 32)
            for h in range(0, k, 4):
                dwords = contiguous_row(y[which, p], h // 4, 0, w)
                for g in range(h, min(k, h + 4)):
                    row = contiguous_row(whole, g, 32 * p, w)
                    shift = np.uint32(8 * (g - h))
                    for j in range(w):
                        dwords[j] |= np.uint32(np.int32(row[j]) + 128) << shift


@kernel("void(int8[:,:,::1], int8[:,:,::1], int64, int64, int64, float64[::1], int8[:,:,::1])")
def add_packed_rows(x, y, first, last, k, modulus, out):
    """Residues of x + y, both as `pack_rows` leaves them, of rows first to last - 1."""
    height, pitch = out.shape[1:]
    chunks = (k + CHUNK - 1) // CHUNK
    of_x, of_y = x.reshape((x.shape[0] * height, pitch)), y.reshape((x.shape[0] * height, pitch))
    flat = out.reshape((x.shape[0] * height, pitch))
    ends = flat.view(np.int32)
    for which in range(x.shape[0]):
        q = np.int16(modulus[which])
        for i in range(which * height + first, which * height + last):
            for chunk in range(chunks):
                h0 = chunk * CHUNK
                size = min(k - h0, CHUNK)
                total = add_bytes(
                    contiguous_row(of_x, i, h0, size), contiguous_row(of_y, i, h0, size), q,
                    contiguous_row(flat, i, h0, size),
                )  # fmt: skip
                contiguous_row(ends, i, pitch // 4 - chunks + chunk, 1)[0] = np.int32(-128 * np.int64(total))
            # Zeros, since the product reads whole steps of k.
            contiguous_row(flat, i, k, pitch - 4 * chunks - k)[:] = 0


@kernel("void(uint32[:,:,:,::1], uint32[:,:,:,::1], float64[::1], uint32[:,:,:,::1])")
def add_packed_columns(x, y, modulus, out):
    """Residues of x + y, both as `pack_columns` leaves them."""
    for which in range(x.shape[0]):
        q = np.int16(modulus[which])
        low, high = np.int16(-(q // 2)), np.int16((q - 1) // 2)
        u = x[which].view(np.uint8).reshape(-1)
        v = y[which].view(np.uint8).reshape(-1)
        o = out[which].view(np.uint8).reshape(-1)
        for h in range(u.size):
            # Both bytes are 128 more than their residues.
            s = np.int16(np.int16(u[h]) + np.int16(v[h]) - 256)
            o[h] = np.uint8(nearest_residue(s, q, low, high) + 128)


_add_rows, _add_columns = add_packed_rows.device, add_packed_columns.device


@kernel(
    "void(float64[:,::1], float64[:,::1], float64[:,::1], int64[::1], int64, int64, int32[:,::1], int32[::1], "
    "float64[::1], int64, int64, int64, int8[:,:,:,::1], int64[::1], int64[::1], int64[:,::1], float64[:,::1])"
)
def pack_complex_left(
    both, real, imag, thresholds, q, bits, table, offset, modulus, first, terms, a_priori, out, exponent, shift,
    counts, bounds,
):  # fmt: skip
    """`pack_left` of a complex operand: `both` has rows of real and imaginary parts; the residues of their sums go to
    out[2].
    """
    wide_vectors()
    m, k = real.shape
    norm2, norm1 = np.empty(m, np.int64), np.empty(m, np.int64)
    residual2, tiny = np.zeros(m), np.zeros(m, np.uint8)
    # One scale for both parts of a row: its norm is that of the real sum behind an entry.
    _scale_rows(both, thresholds, q, exponent, shift, norm2, norm1, counts)
    _pack_rows(real, shift, bits, table, offset, modulus, first, out[0], residual2, tiny)
    _pack_rows(imag, shift, bits, table, offset, modulus, first, out[1], residual2, tiny)
    _add_rows(out[0], out[1], first, first + m, k, modulus, out[2])
    _bound_terms(exponent, shift, q, norm2, norm1, residual2, tiny, terms, a_priori, bounds)


@kernel(
    "void(float64[:,::1], float64[:,::1], float64[:,::1], int64, int64[::1], int64, int64, int32[:,::1], int32[::1], "
    "float64[::1], int64, int64, int64, uint32[:,:,:,:,::1], int64[::1], int64[::1], int64[:,::1], float64[:,::1])"
)
def pack_complex_right(
    both, real, imag, start, thresholds, q, bits, table, offset, modulus, panel, terms, a_priori, out, exponent,
    shift, counts, bounds,
):  # fmt: skip
    """The same of columns, which stand in `both` one part below the other."""
    wide_vectors()
    n = exponent.size
    norm2, norm1 = np.empty(n, np.int64), np.empty(n, np.int64)
    residual2, tiny = np.zeros(n), np.zeros(n, np.uint8)
    _scale_columns(both, start, thresholds, q, exponent, shift, norm2, norm1, counts)
    _pack_columns(real, start, shift, bits, table, offset, modulus, panel, out[0], residual2, tiny)
    _pack_columns(imag, start, shift, bits, table, offset, modulus, panel, out[1], residual2, tiny)
    _add_columns(out[0], out[1], modulus, out[2])
    _bound_terms(exponent, shift, q, norm2, norm1, residual2, tiny, terms, a_priori, bounds)


pack_complex_left_single, pack_complex_right_single = single(pack_complex_left, 3), single(pack_complex_right, 3)
