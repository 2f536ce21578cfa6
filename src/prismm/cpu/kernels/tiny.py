"""Tiny products in one compiled call: dot products in twice the working precision, and the certificate.

For correct rounding the operands themselves are multiplied, for `Residues` the rounded operands A', B' (float64
integers). The value is off by at most `err`, so either its rounding is certain, and then it is the value that any
engine returns, or the call gives up and leaves the product to the ordinary path.

The sum starts from σ = 1.5·2^X, which every product is small beside: σ + p rounds p to a multiple of ulp(σ) and loses
what a subtraction or two give back exactly (Dekker), so seven operations a product suffice. They are LLVM IR on
vectors of eight doubles: two rows and two vectors of columns stay in registers for the whole inner dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from prismm.core.jit import contiguous_row, counting, device, kernel, power_of_two
from prismm.cpu.kernels.byte_unit import declared
from prismm.cpu.kernels.expansion import two_sum
from prismm.cpu.kernels.finish import bounds, pigeonhole
from prismm.cpu.kernels.scale import NONFINITE, bound_terms, exponent_above, largest_bits, scale_columns, scale_rows

ROWS, LANES, VECTORS = 2, 8, 2
COLUMNS = LANES * VECTORS
_EXPONENT_MASK = 0x7FF0000000000000
_scale_rows = scale_rows.device
_scale_columns = scale_columns.device
_bound_terms = bound_terms.device


def pointer(b: Any, address: Any, pitch: Any, line: Any, offset: int, kind: Any) -> Any:
    """Code for a pointer to what lies `offset` bytes into a line, whose number may be an int."""
    i64 = ir.IntType(64)
    line = ir.Constant(i64, line) if isinstance(line, int) else line
    place = b.add(b.add(address, b.mul(pitch, line)), ir.Constant(i64, offset))
    return b.inttoptr(place, kind.as_pointer())


def load(b: Any, place: Any) -> Any:
    """Code for a vector that is aligned as its elements are."""
    value = b.load(place)
    value.align = 8
    return value


def sums(b: Any, k: Any, start: dict[Any, Any], factors: Callable[[Any], dict[Any, tuple[Any, Any]]]) -> dict[Any, Any]:
    """Code for one sum of k >= 1 products a cell, in vectors: (high, low) of each, from σ, the cell's start.

    factors: gives the two factors of each cell's term, from its index.
    """
    i64, vector = ir.IntType(64), ir.VectorType(ir.DoubleType(), LANES)
    fma = declared(b.module, f"llvm.fma.v{LANES}f64", vector, [vector, vector, vector])
    before = b.block
    loop, done = b.append_basic_block("terms"), b.append_basic_block("rest")
    b.branch(loop)
    b.position_at_end(loop)
    step = b.phi(i64)
    step.add_incoming(ir.Constant(i64, 0), before)
    total, rest = {c: b.phi(vector) for c in start}, {c: b.phi(vector) for c in start}
    for c in start:
        total[c].add_incoming(start[c], before)
        rest[c].add_incoming(ir.Constant(vector, [0.0] * LANES), before)
    after: dict[Any, Any] = {}
    for c, (x, y) in factors(step).items():
        p = b.fmul(x, y)
        e = b.call(fma, [x, y, b.fneg(p)])
        t = b.fadd(total[c], p)
        lost = b.fsub(p, b.fsub(t, total[c]))
        after[c] = t, b.fadd(rest[c], b.fadd(e, lost))
    following = b.add(step, ir.Constant(i64, 1))
    step.add_incoming(following, loop)
    for c in start:
        total[c].add_incoming(after[c][0], loop)
        rest[c].add_incoming(after[c][1], loop)
    b.cbranch(b.icmp_signed("<", following, k), loop, done)
    b.position_at_end(done)
    # σ comes off without error: both are multiples of its last place, and the difference is small beside it.
    return {c: (b.fsub(after[c][0], start[c]), after[c][1]) for c in start}


@intrinsic
def _dots(
    typingctx: Any, x: Any, x_pitch: Any, y: Any, y_pitch: Any, k: Any, sigma: Any, sigma_pitch: Any, high: Any,
    low: Any, pitch: Any,
) -> Any:  # fmt: skip
    """ROWS rows at x times COLUMNS columns at y, k >= 1 terms: high + low, each (ROWS, COLUMNS) with `pitch`.

    The sums start from `sigma` (ROWS, COLUMNS). All but k are addresses and bytes.
    """
    f64, i64 = ir.DoubleType(), ir.IntType(64)
    vector = ir.VectorType(f64, LANES)

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        x, x_pitch, y, y_pitch, k, sigma, sigma_pitch, high, low, pitch = args
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        cells = [(r, v) for r in range(ROWS) for v in range(VECTORS)]

        def factors(step: Any) -> dict[Any, tuple[Any, Any]]:
            columns = [load(b, pointer(b, y, y_pitch, step, 64 * v, vector)) for v in range(VECTORS)]
            column = b.add(x, b.mul(step, ir.Constant(i64, 8)))
            rows = []
            for r in range(ROWS):
                one = b.insert_element(
                    ir.Constant(vector, ir.Undefined), load(b, pointer(b, column, x_pitch, r, 0, f64)),
                    ir.Constant(ir.IntType(32), 0),
                )  # fmt: skip
                rows.append(b.shuffle_vector(one, ir.Constant(vector, ir.Undefined), lanes))
            return {(r, v): (rows[r], columns[v]) for r, v in cells}

        start = {c: load(b, pointer(b, sigma, sigma_pitch, c[0], 64 * c[1], vector)) for c in cells}
        for c, values in sums(b, k, start, factors).items():
            for value, target in zip(values, (high, low), strict=True):
                b.store(value, pointer(b, target, pitch, c[0], 64 * c[1], vector)).align = 8
        return context.get_dummy_value()

    address, count = types.uintp, types.intp
    return types.void(
        address, count, address, count, count, address, count, address, address, count
    ), codegen  # fmt: skip


@device
def round_and_test(s, c, sigma, factor, precision, shift, value, uncertified):
    """value = RN((s + c)·2^-shift), and s = RN(s + c); returns how many are marked as not certain: the rounding is
    open, or the range is unusual.
    """
    count = np.int64(0)
    for j in range(value.size):
        high, low = two_sum(s[j], c[j])
        err = sigma[j] * factor + abs(low) * 2.0**-50
        below = high + (low - err)
        above = high + (low + err)
        size = abs(high)
        # So far from the ends of the range scaling is exact, and nothing underflows.
        usual = (size > 2.0**-900) & (size < 2.0**900)
        scale = shift[j]
        s[j] = high
        if precision == 53:
            certain = (below == high) & (above == high)
            value[j] = high * scale
            usual &= (size * scale > 2.0**-1000) & (size * scale < 2.0**1000)
        else:
            lo = (below - abs(below) * 2.0**-51) * scale
            hi = (above + abs(above) * 2.0**-51) * scale
            certain = (np.float32(lo) == np.float32(hi)) & ((lo > 0.0) == (hi > 0.0))
            value[j] = np.float64(np.float32(high * scale))
            usual &= (size * scale > 2.0**-900) & (size * scale < 2.0**126)
        sure = certain & usual
        uncertified[j] = 0.0 if sure else 1.0
        count += np.int64(not sure)
    return count


@device
def no_products(row, column):
    """Whether every product of the sum is zero: a zero that no rounding made."""
    count = 0
    for h in range(row.size):
        count += np.int64((row[h] != 0.0) & (column[h] != 0.0))
    return count == 0


@counting
def _exponents(a, b, row_power, column_power, odd_row, odd_column):
    """e with |a| < 2^e per row and per column; those with an element that is not finite are marked as odd."""
    top = np.zeros(b.shape[1], np.int64)
    for i in range(a.shape[0]):
        bits = largest_bits(a[i])
        odd_row[i] = np.uint8(bits >= _EXPONENT_MASK)
        row_power[i] = exponent_above(bits) if bits < _EXPONENT_MASK else 0
    for h in range(b.shape[0]):
        line = b[h].view(np.int64)
        for j in range(line.size):
            top[j] = max(top[j], line[j] & 0x7FFFFFFFFFFFFFFF)
    for j in range(top.size):
        odd_column[j] = np.uint8(top[j] >= _EXPONENT_MASK)
        column_power[j] = exponent_above(top[j]) if top[j] < _EXPONENT_MASK else 0


@device
def _round_rows(a, shift, x, residual, tiny):
    """x = RN(a·2^shift); per row, residual 1 where that is inexact, and whether an element is lost."""
    for i in range(a.shape[0]):
        f = power_of_two(shift[i])
        source = contiguous_row(a, i, 0, a.shape[1])
        target = contiguous_row(x, i, 0, a.shape[1])
        inexact = lost = np.int64(0)
        for h in range(source.size):
            scaled = source[h] * f
            rounded = np.rint(scaled)
            target[h] = rounded
            # What underflows to zero equals its own rounding, and is told apart by the other flag.
            inexact |= np.int64(rounded != scaled)
            lost |= np.int64((rounded == 0.0) & (source[h] != 0.0))
        residual[i] = inexact
        tiny[i] = lost


@device
def _round_columns(b, up, y, residual, tiny):
    """The same by columns."""
    for h in range(b.shape[0]):
        source = contiguous_row(b, h, 0, up.size)
        target = contiguous_row(y, h, 0, up.size)
        for j in range(up.size):
            scaled = source[j] * up[j]
            rounded = np.rint(scaled)
            target[j] = rounded
            residual[j] = 1.0 if rounded != scaled else residual[j]
            tiny[j] |= np.uint8((rounded == 0.0) & (source[j] != 0.0))


@device
def uncovered(s, bound, kappa, low):
    """Marks, and counts, where |s| >= kappa·bound is not sure: `join`'s test of RN53(C'), with an ulp to spare, since
    what is so close may be decided on the ordinary path.
    """
    count = np.int64(0)
    for c in range(s.size):
        doubt = (bound[c] != 0.0) & (not abs(s[c]) * (1.0 - 2.0**-50) >= bound[c] * kappa)
        low[c] = 1.0 if doubt else 0.0
        count += np.int64(doubt)
    return count


@device
def _weave(y, n, out):
    """Rows (re, im) of complex columns as the real matrix [[re, im], [-im, re]] of each element."""
    for h in range(0, y.shape[0], 2):
        for j in range(n):
            re = y[h, j]
            im = y[h + 1, j]
            out[h, 2 * j] = re
            out[h, 2 * j + 1] = im
            out[h + 1, 2 * j] = -im
            out[h + 1, 2 * j + 1] = re


@kernel(
    "int64(float64[:,::1], float64[:,::1], int64, int64[::1], int64, int64, int64, float64, float64, int64, "
    "float64[:,::1], float32[:,::1], uint8[:,::1])"
)
def tiny_product(a, b, parts, thresholds, q, levels, mode, kappa, magnitude_kappa, precision, out, out32, flags):
    """A product (m, k) by (k, n) into out (precision 53) or out32 (24); returns how many real parts are left
    uncertified, and sets them to 1 in `flags`, of out's shape or empty.

    parts 2: complex operands and result as their real views, with rows (re, im, re, im, …). A complex element of b
    acts as [[re, im], [-im, re]], whose rows and columns hold its parts: the scales, norms and counts of both are those
    of real and imaginary parts laid end to end.

    mode 1: RN(exact). mode 2: RN of the product of the rounded operands, certified by kappa as in `join.join_fused`,
    a priori. Open are all entries of a row or column that holds Inf or NaN, or is far from 1.

    Errors, with |x| <= 2^e, |y| <= 2^f, 2^(L-1) <= 2k < 2^L, X = e + f + L, k real terms: the running sum stays within
    σ ± 2^(X-1), so each addition loses at most 2^(X-53), exactly what is given back; a product's own error is at most
    2^(X-L-53), and exact. k sums of these two and k - 1 additions of such sums, in any size up to k·1.5·2^(X-53), round
    off at most 1.5·2^(X-106)·(k + k(k+1)/2) < (k+2)²·2^(X-106); where |s| > 2^-900, what underflows is less still.
    """
    m, depth = a.shape
    n = b.shape[1] // parts
    whole = b.shape[1]
    columns_of_b = b
    if parts == 2:
        columns_of_b = np.empty((depth, n))
        for h in range(b.shape[0]):
            for j in range(n):
                columns_of_b[2 * h, j] = b[h, 2 * j]
                columns_of_b[2 * h + 1, j] = b[h, 2 * j + 1]
    width = (whole + COLUMNS - 1) // COLUMNS * COLUMNS
    # Filled up with zeros, because `_dots` takes whole vectors of columns and pairs of rows.
    x = np.zeros(((m + ROWS - 1) // ROWS * ROWS, depth))
    y = np.zeros((depth, width))
    rounded = np.empty((depth, n)) if parts == 2 else y
    row_power = np.zeros(m, np.int64)
    column_power = np.zeros(n, np.int64)
    odd_row = np.zeros(m, np.uint8)
    odd_column = np.zeros(n, np.uint8)
    rows = np.zeros((4, m), np.int64)
    columns = np.zeros((4, n), np.int64)
    row_counts = np.empty((m, levels), np.int64)
    column_counts = np.empty((n, levels), np.int64)
    row_terms = np.zeros((4, m))
    column_terms = np.zeros((4, n))
    row_tiny, column_tiny = np.zeros(m, np.uint8), np.zeros(n, np.uint8)
    if mode == 2:
        _scale_rows(a, thresholds, q, rows[0], rows[1], rows[2], rows[3], row_counts)
        _scale_columns(columns_of_b, 0, thresholds, q, columns[0], columns[1], columns[2], columns[3], column_counts)
        up = np.empty(n)
        for i in range(m):
            # Both scales together stay within float64's range, so that one factor each is enough.
            odd_row[i] = np.uint8(rows[0, i] >= NONFINITE or abs(rows[1, i]) > 400)
            row_power[i] = rows[0, i] + rows[1, i]
        for j in range(n):
            odd_column[j] = np.uint8(columns[0, j] >= NONFINITE or abs(columns[1, j]) > 400)
            column_power[j] = columns[0, j] + columns[1, j]
            up[j] = power_of_two(columns[1, j])
        row_residual, column_residual = np.zeros(m), np.zeros(n)
        _round_rows(a, rows[1], x, row_residual, row_tiny)
        _round_columns(columns_of_b, up, rounded, column_residual, column_tiny)
        # A priori: what is certified must depend on integers alone, as on every engine.
        _bound_terms(rows[0], rows[1], q, rows[2], rows[3], row_residual, row_tiny, depth, 1, row_terms)
        _bound_terms(
            columns[0], columns[1], q, columns[2], columns[3], column_residual, column_tiny, depth, 1, column_terms
        )
    else:
        _exponents(a, columns_of_b, row_power, column_power, odd_row, odd_column)
        for i in range(m):
            source, copy = contiguous_row(a, i, 0, depth), contiguous_row(x, i, 0, depth)
            for h in range(depth):
                copy[h] = source[h]
        for h in range(depth):
            for j in range(n):
                rounded[h, j] = columns_of_b[h, j]
    if parts == 2:
        _weave(rounded, n, y)
    length = 0
    while 2 * depth >= 1 << length:
        length += 1
    down = np.zeros(width)
    start = np.zeros(width)
    terms = np.zeros((4, width))
    odd = np.uint8(0)
    for c in range(whole):
        j = c // parts
        # σ must be far from the ends of the range.
        odd_column[j] |= np.uint8(abs(column_power[j]) > 480)
        odd |= odd_column[j]
        start[c] = 1.5 * power_of_two(column_power[j] + length)
        down[c] = power_of_two(-columns[1, j])
        for part in range(4):
            terms[part, c] = column_terms[part, j]
    factor = (depth + 2.0) * (depth + 2.0) * 2.0**-106
    sigma, s, low = np.empty((ROWS, width)), np.empty((ROWS, width)), np.empty((ROWS, width))
    value, scale, bound, uncertified = np.empty(whole), np.empty(whole), np.empty(whole), np.empty(whole)
    count = 0
    for i0 in range(0, m, ROWS):
        last = min(m, i0 + ROWS)
        for i in range(i0, i0 + ROWS):
            power = row_power[i] if i < last else 0
            if i < last:
                odd_row[i] |= np.uint8(abs(power) > 480)
            f = power_of_two(power)
            line = contiguous_row(sigma, i - i0, 0, width)
            for c in range(width):
                line[c] = start[c] * f
        for c in range(0, width, COLUMNS):
            _dots(
                np.uint64(x.ctypes.data + i0 * x.strides[0]), x.strides[0], np.uint64(y.ctypes.data + 8 * c),
                y.strides[0], depth, np.uint64(sigma.ctypes.data + 8 * c), sigma.strides[0],
                np.uint64(s.ctypes.data + 8 * c), np.uint64(low.ctypes.data + 8 * c), s.strides[0],
            )  # fmt: skip
        for i in range(i0, last):
            f = power_of_two(-rows[1, i])
            sums, tail = contiguous_row(s, i - i0, 0, whole), contiguous_row(low, i - i0, 0, whole)
            for c in range(whole):
                scale[c] = down[c] * f
            found = round_and_test(
                sums, tail, contiguous_row(sigma, i - i0, 0, whole), factor, precision, scale, value, uncertified
            )
            doubts = np.int64(0)
            if mode == 2:
                bounds(
                    row_terms[0, i], row_terms[1, i], row_terms[2, i], row_terms[3, i],
                    contiguous_row(terms, 0, 0, whole), contiguous_row(terms, 1, 0, whole),
                    contiguous_row(terms, 2, 0, whole), contiguous_row(terms, 3, 0, whole), depth / 4.0, bound,
                )  # fmt: skip
                doubts = uncovered(sums, bound, kappa, tail)
            # Nearly all rows are done here; the rest is for single entries.
            for c in range(whole if found or doubts or odd or odd_row[i] else 0):
                # No interval around zero shows that a sum is zero; that it has no terms does.
                if uncertified[c] != 0.0 and sums[c] == 0.0 and no_products(x[i], y[:, c]):
                    uncertified[c] = 0.0
                    if mode == 2 and row_tiny[i] == 0 and column_tiny[c // parts] == 0:
                        tail[c] = 0.0  # nor have the operands themselves any
                if doubts and tail[c] != 0.0:
                    # Magnitudes say nothing of overflow.
                    size = (abs(sums[c]) + bound[c]) * scale[c]
                    far = size < (2.0**1000 if precision == 53 else 2.0**126)
                    power = row_power[i] + column_power[c // parts]
                    needed = bound[c] * magnitude_kappa
                    j = c // parts
                    if not far or not pigeonhole(row_counts, i, column_counts, j, depth, power, needed, 0):
                        uncertified[c] = 1.0
                if odd_row[i] or odd_column[c // parts]:
                    uncertified[c] = 1.0
                count += np.int64(uncertified[c] != 0.0)
                if flags.size:
                    flags[i, c] = np.uint8(uncertified[c] != 0.0)
            if precision == 53:
                target = contiguous_row(out, i, 0, whole)
                for c in range(whole):
                    target[c] = value[c]
            else:
                target32 = contiguous_row(out32, i, 0, whole)
                for c in range(whole):
                    target32[c] = np.float32(value[c])
    return count


_product = tiny_product.device


@kernel(
    "void(float64[:,:,::1], float64[:,:,::1], int64[::1], int64[::1], int64, int64[::1], int64, int64, int64, float64, "
    "float64, int64, float64[:,:,::1], float32[:,:,::1], uint8[:,:,::1], int64[::1])"
)
def tiny_products(
    a, b, left, right, parts, thresholds, q, levels, mode, kappa, magnitude_kappa, precision, out, out32, flags, counts
):  # fmt: skip
    """`tiny_product` of a[left[p]] and b[right[p]] into place p of out, flags and counts, for all p."""
    no_out, no_out32 = np.empty((0, 0)), np.empty((0, 0), np.float32)
    for p in range(left.size):
        counts[p] = _product(
            a[left[p]], b[right[p]], parts, thresholds, q, levels, mode, kappa, magnitude_kappa, precision,
            out[p] if precision == 53 else no_out, out32[p] if precision == 24 else no_out32, flags[p],
        )  # fmt: skip
