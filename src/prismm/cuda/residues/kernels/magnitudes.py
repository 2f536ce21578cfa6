"""Entries that bounds beside |a||b| left uncertified, of whole strips: certified by magnitudes, or summed by rows.

On data that spread over many binades neither an entry's own size nor the counts of large elements say enough of
|a||b|, and a fifth of all entries, or nearly all, are uncertified. A CPU compares their bounds with products of 7-bit
magnitudes, floor(|a|·2^(7-e)). Where there are more than a few, `magnitude_planes` writes those of all elements down,
and `strips` multiplies them for the strips that need them, by matrix instructions. Integers, tests and correctly
rounded values are the same on every path, so the bits are.

Planes: 8 bytes an element read, 2 written. A strip of 64 x 128: 2·64·128·k operations in INT8 and 192·k bytes, read
again by every strip that shares them. Rows of exact values: 128·k times ten operations in float64, or 14 and as many
on integers where each entry has a unit of its own.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.counts import EXACT
from prismm.cuda.kernels.fp64 import SHIFT, STATISTICS, scaled, two_sum, wide
from prismm.cuda.residues.kernels.entries import NO_PRODUCT, decided, magnitude_proves, with_term
from prismm.cuda.residues.kernels.join_exact import bound_of, bound_terms, store_flags
from prismm.cuda.residues.kernels.many_split import exponents


@triton.jit
def count_bits(word):
    """Bits of 32-bit words."""
    x = word.to(tl.uint32, bitcast=True)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def _write_planes(
    x, batch_step, step, along, stats, planes, tile, vectors, k, pitch, DEPTH: tl.constexpr,
    PARTS: tl.constexpr, ALONG: tl.constexpr, SIDE: tl.constexpr, VECTORS: tl.constexpr,
):  # fmt: skip
    """A tile of the planes of one operand: sizes, then what is not zero, for each part; see `magnitude_planes`."""
    depths = pitch // DEPTH
    strips = tl.cdiv(vectors, SIDE) * (SIDE // VECTORS)
    batch = (tile // (strips * depths)).to(tl.int64)
    at = tile % (strips * depths) // depths * VECTORS + tl.arange(0, VECTORS)
    h = tile % depths * DEPTH + tl.arange(0, DEPTH)
    e = exponents(stats + batch * STATISTICS * vectors, vectors, at)
    planes += batch * (2 * PARTS) * wide(strips * VECTORS) * pitch
    target = planes + at.to(tl.int64)[:, None] * pitch + h[None, :]
    for part in tl.static_range(PARTS):
        source = x + batch * batch_step + part
        if ALONG:
            mask = (at < vectors)[:, None] & (h < k)[None, :]
            place = source + at.to(tl.int64)[:, None] * step + h.to(tl.int64)[None, :] * along
            value = tl.abs(tl.load(place, mask=mask, other=0.0).to(tl.float64))
            # |x| < 2^e, so a magnitude is at most 127 and fits in a signed byte.
            size = scaled(value, 7 - e[:, None]).to(tl.int32).to(tl.int8)
            # An element below 2^(e-7) has the magnitude 0, so only this plane can prove that an entry is exactly 0.
            some = (value != 0.0).to(tl.int8)
        else:
            mask = (at < vectors)[None, :] & (h < k)[:, None]
            place = source + at.to(tl.int64)[None, :] * step + h.to(tl.int64)[:, None] * along
            value = tl.abs(tl.load(place, mask=mask, other=0.0).to(tl.float64))
            size = tl.trans(scaled(value, 7 - e[None, :]).to(tl.int32).to(tl.int8))
            some = tl.trans((value != 0.0).to(tl.int8))
        tl.store(target + wide(strips * VECTORS) * pitch * (2 * part), size)
        tl.store(target + wide(strips * VECTORS) * pitch * (2 * part + 1), some)


@triton.jit(
    do_not_specialize=[
        "a_batch", "a_row", "a_step", "b_batch", "b_column", "b_step", "m", "n", "k", "depths", "row_batches",
        "column_batches", "few",
    ]
)  # fmt: skip
def magnitude_planes(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, rows, columns, left, right, uncertified_count, m, n, k,
    depths, row_batches, column_batches, few, PARTS: tl.constexpr, A_ALONG: tl.constexpr, B_ALONG: tl.constexpr,
    SIDE: tl.constexpr, DEPTH: tl.constexpr, VECTORS: tl.constexpr,
):  # fmt: skip
    """Where the number of uncertified entries exceeds few: of the vectors of both operands floor(|x|·2^(7-e))
    and, in a plane of its own, 1 for what is not zero; int8, (matrices, parts, 2, vectors rounded up to SIDE,
    depths·DEPTH).
    """
    # The count is read here and not by the host, which would have to wait for it.
    if tl.load(uncertified_count) > few:
        pitch = depths * DEPTH
        ours = tl.cdiv(m, SIDE) * (SIDE // VECTORS) * depths * row_batches
        theirs = tl.cdiv(n, SIDE) * (SIDE // VECTORS) * depths * column_batches
        for tile in range(tl.program_id(0), ours + theirs, tl.num_programs(0)):
            if tile < ours:
                _write_planes(
                    a, a_batch, a_row, a_step, rows, left, tile, m, k, pitch, DEPTH, PARTS, A_ALONG, SIDE,
                    VECTORS,
                )  # fmt: skip
            else:
                _write_planes(
                    b, b_batch, b_column, b_step, columns, right, tile - ours, n, k, pitch, DEPTH, PARTS,
                    B_ALONG, SIDE, VECTORS,
                )  # fmt: skip


@triton.jit
def sums_of_strip(
    left, right, pending, sums, m, n, i0, j0, depths, part, PARTS: tl.constexpr, STRIP: tl.constexpr,
    COLUMNS: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """sums (STRIP, COLUMNS): of products of 7-bit magnitudes; of pending entries -1 for 0 where some product of the
    operands is not zero.
    """
    pitch = depths * DEPTH
    row, column, h = tl.arange(0, STRIP), tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
    of_a, of_b = wide(tl.cdiv(m, SIDE) * SIDE) * pitch, wide(tl.cdiv(n, SIDE) * SIDE) * pitch
    x_at = left + (i0 + row).to(tl.int64)[:, None] * pitch + h[None, :]
    y_at = right + (j0 + column).to(tl.int64)[:, None] * pitch + h[None, :]
    not_certified = tl.reshape((pending[:, :, None] >> tl.arange(0, 32)[None, None, :]) & 1, [STRIP, COLUMNS])
    target = sums + row[:, None] * COLUMNS + column[None, :]
    asked = tl.full([], 1, tl.int32)
    for kind in range(0, 2):  # sizes, then what is not zero
        if asked > 0:
            acc = tl.zeros([STRIP, COLUMNS], tl.int32)
            for which in range(0, PARTS):
                # |Re||Re| + |Im||Im| for a real part, |Re||Im| + |Im||Re| for an imaginary one: magnitudes are never
                # subtracted.
                x, y = x_at + of_a * (2 * which + kind), y_at + of_b * (2 * (which ^ part) + kind)
                for h0 in range(0, pitch, DEPTH):
                    acc = tl.dot(tl.load(x + h0), tl.trans(tl.load(y + h0)), acc, out_dtype=tl.int32)
            if kind == 0:
                tl.store(target, acc)
                # A sum of 0 may stand for an exact 0 or for small products: only then is a second product made.
                asked = tl.max(tl.max(tl.where(acc == 0, not_certified, 0), 1), 0)
            else:
                # Another thread may have stored the sum that is read here.
                tl.debug_barrier()
                tl.store(target, tl.where(acc != 0, -1, 0), mask=tl.load(target) == 0)


@triton.jit
def certify(
    out, row_stride, column_stride, entry_flags, sums, rows, columns, constants, m, n, i0, j0, terms, q,
    PRECISION: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Take from entry_flags (STRIP, COLUMNS / 32) what sums prove; ROWS rows at a time, in few registers. Returns how
    many entries that are.
    """
    WIDTH: tl.constexpr = COLUMNS // 32
    column = tl.arange(0, COLUMNS)
    j = j0 + column
    column_e = exponents(columns, n, j)
    _, column_shift, n1b, db, n2b, fb = bound_terms(columns, n, j, j < n, q, True)
    done = tl.full([], 0, tl.int64)
    for r0 in range(0, STRIP, ROWS):
        row = r0 + tl.arange(0, ROWS)
        i = i0 + row
        row_e = exponents(rows, m, i)
        _e, row_shift, n1a, da, n2a, fa = bound_terms(rows, m, i, i < m, q, True)
        bound = bound_of(
            n1a[:, None], da[:, None], n2a[:, None], fa[:, None], n1b[None, :], db[None, :], n2b[None, :], fb[None, :],
            0.25 * terms, True,
        )  # fmt: skip
        total = tl.load(sums + row[:, None] * COLUMNS + column[None, :])
        words = tl.load(entry_flags + row[:, None] * WIDTH + column[None, :] // 32)
        not_certified = (words >> (column[None, :] % 32)) & 1 != 0
        at = out + i.to(tl.int64)[:, None] * row_stride + j.to(tl.int64)[None, :] * column_stride
        value = tl.load(at, mask=not_certified, other=0.0).to(tl.float64)
        exponent = -(row_shift[:, None] + column_shift[None, :])
        proved = magnitude_proves(
            tl.maximum(total, 0), total != 0, bound, row_e[:, None] + column_e[None, :], value, exponent, constants,
            PRECISION,
        )  # fmt: skip
        done += tl.sum(tl.sum((not_certified & proved).to(tl.int32), 1), 0).to(tl.int64)
        # All rows' flags have been read before any of their words is written.
        tl.debug_barrier()
        store_flags(not_certified & ~proved, entry_flags + r0 * WIDTH, ROWS, COLUMNS)
    return done


@triton.jit
def double_rows(
    a, a_row, a_step, b, b_column, b_step, sums, rows, columns, m, n, i0, j0, k, q, part, PARTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """sums (4, ROWS, COLUMNS): of products in twice float64's precision, in two parts, of which those of the first are
    summed without error (Ogita, Rump and Oishi 2005); a bound of Σ|a·b|; and the exponent of the unit of all these,
    that of `bound_terms`. Terms as in `exact.factors`.
    """
    i, j = i0 + tl.arange(0, ROWS), j0 + tl.arange(0, COLUMNS)
    in_m, in_n = i < m, j < n
    row_shift = tl.load(rows + SHIFT * m + i, mask=in_m, other=0).to(tl.int32)
    column_shift = tl.load(columns + SHIFT * n + j, mask=in_n, other=0).to(tl.int32)
    of_a, of_b = a + i.to(tl.int64) * a_row, b + j.to(tl.int64) * b_column
    s = tl.zeros([ROWS, COLUMNS], tl.float64)
    c = tl.zeros([ROWS, COLUMNS], tl.float64)
    for h0 in range(0, PARTS * k, AT_ONCE):
        # Unrolled, so that several terms' loads are on their way at once.
        for some in tl.static_range(AT_ONCE):
            h = wide(h0 + some)
            x_at, y_at = _term(of_a, a_step, of_b, b_step, h, part, PARTS)
            x = scaled(tl.load(x_at, mask=in_m & (h < PARTS * k), other=0.0).to(tl.float64), row_shift)
            y = scaled(tl.load(y_at, mask=in_n & (h < PARTS * k), other=0.0).to(tl.float64), column_shift)
            if PARTS == 2:
                y = tl.where((part == 0) & ((h & 1) == 1), -y, y)
            product = x[:, None] * y[None, :]
            both = tl.broadcast_to(x[:, None], product.shape), tl.broadcast_to(y[None, :], product.shape)
            rest = tl.fma(both[0], both[1], -product)
            s, error = two_sum(s, product)
            c += error + rest
    magnitude = _norm(rows, m, i, q)[:, None] * _norm(columns, n, j, q)[None, :]
    _store_sums(sums, s, c, magnitude, -(row_shift[:, None] + column_shift[None, :]), ROWS, COLUMNS)


@triton.jit(noinline=True)
def double_rows_by_themselves(
    a, a_row, a_step, b, b_column, b_step, sums, m, n, i0, j0, k, part, PARTS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """`double_rows` of entries that may lie far below their rows' and columns' largest elements: each in the unit of
    its own largest product (`entries.with_term`).
    """
    i, j = i0 + tl.arange(0, ROWS), j0 + tl.arange(0, COLUMNS)
    in_m, in_n = i < m, j < n
    of_a, of_b = a + i.to(tl.int64) * a_row, b + j.to(tl.int64) * b_column
    top = tl.full([ROWS, COLUMNS], NO_PRODUCT, tl.int32)
    s = tl.zeros([ROWS, COLUMNS], tl.float64)
    c = tl.zeros([ROWS, COLUMNS], tl.float64)
    size = tl.zeros([ROWS, COLUMNS], tl.float64)
    for h0 in range(0, PARTS * k, AT_ONCE):
        for some in tl.static_range(AT_ONCE):
            x_at, y_at = _term(of_a, a_step, of_b, b_step, wide(h0 + some), part, PARTS)
            x = tl.load(x_at, mask=in_m & (h0 + some < PARTS * k), other=0.0).to(tl.float64)
            y = tl.load(y_at, mask=in_n & (h0 + some < PARTS * k), other=0.0).to(tl.float64)
            if PARTS == 2:
                y = tl.where((part == 0) & (some % 2 == 1), -y, y)
            top, s, c, size = with_term(top, s, c, size, x[:, None], y[None, :])
    _store_sums(sums, s, c, size, top, ROWS, COLUMNS)


@triton.jit
def _term(of_a, a_step, of_b, b_step, h, part, PARTS: tl.constexpr):
    """Where the h-th factors of some rows and of some columns stand, as in `exact.factors`."""
    if PARTS == 1:
        return of_a + h * a_step, of_b + h * b_step
    return of_a + ((h >> 1) * a_step + (h & 1)), of_b + ((h >> 1) * b_step + ((h & 1) ^ part))


@triton.jit
def _store_sums(sums, s, c, magnitude, exponent, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = sums + (tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :])
    tl.store(at, s)
    tl.store(at + ROWS * COLUMNS, c)
    tl.store(at + 2 * ROWS * COLUMNS, magnitude)
    tl.store(at + 3 * ROWS * COLUMNS, exponent.to(tl.float64))


@triton.jit
def set_exactly(
    out, row_stride, column_stride, entry_flags, sums, plane, counts, i0, j0, k, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Set flagged entries (ROWS, COLUMNS) whose rounding sums decide, and clear their flags. sums: as of `double_rows`,
    a plane so long.
    """
    WIDTH: tl.constexpr = COLUMNS // 32
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    i, j = i0 + row, j0 + column
    words = tl.load(entry_flags + row[:, None] * WIDTH + column[None, :] // 32)
    not_certified = (words >> (column[None, :] % 32)) & 1 != 0
    of_entry = sums + (row[:, None] * COLUMNS + column[None, :])
    exponent = tl.load(of_entry + 3 * plane).to(tl.int32)
    # A complex entry adds up 2·k products, one after the other; the rest is room to spare.
    value, proved = decided(
        tl.load(of_entry), tl.load(of_entry + plane), exponent, tl.load(of_entry + 2 * plane), 2 * (k + 1024), PRECISION
    )  # fmt: skip
    at = out + i.to(tl.int64)[:, None] * row_stride + j.to(tl.int64)[None, :] * column_stride
    tl.store(at, value if PRECISION == 53 else value.to(tl.float32), mask=not_certified & proved)
    tl.debug_barrier()
    store_flags(not_certified & ~proved, entry_flags, ROWS, COLUMNS)
    tl.atomic_add(
        counts + EXACT, tl.sum(tl.sum((not_certified & proved).to(tl.int32), 1), 0).to(tl.int64), sem="relaxed"
    )  # fmt: skip


@triton.jit
def _norm(stats, vectors, at, q):
    """‖A'‖₂ of some vectors, an upper bound."""
    _, _, _, _, norm, _ = bound_terms(stats, vectors, at, at < vectors, q, False)
    return norm
