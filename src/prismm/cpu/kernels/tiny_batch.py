"""Many tiny products in one compiled call, each in a lane of its own: the arithmetic and certificate of `tiny`.

The same element of all products of a group lies side by side, so every step is a loop over lanes without a branch:
products of any shape fill vectors, and what data decide costs no misprediction. Columns of b are gathered as lines, as
rows of a are, so one routine scales and rounds both. A 4×4 product takes 0.3 µs on one core of a Sapphire
Rapids with rounded operands (0.15 without): 64 terms of 7 operations, and 200 more for each of 16 entries and 8 lines.

An entry that is certified here has the value of `tiny`. Fewer are certified than there, never more: exponents have a
narrower range, and ‖A'‖₂ does not enter the bound.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload

from prismm.core.jit import HELPER, bits_of, contiguous_row, device, float_of, fma, kernel
from prismm.cpu.kernels.tiny import COLUMNS, VECTORS, load, no_products, pointer, round_and_test, sums, uncovered
from prismm.cpu.kernels.tiny import LANES as VECTOR

LANES = 64
"""Products in a group, at most."""

GROUP = 1 << 14
"""Elements of the operands of a group, at most, if it has more than COLUMNS products: they stay in a fast cache."""

_SIZE = 0x7FFFFFFFFFFFFFFF
_FAR = 300


@device
def _power(exponent):
    """2^exponent, which is normal."""
    return float_of((exponent + 1023) << 52)


def _line(lines: Any, i: Any, lanes: Any) -> Any:
    """In kernels: lanes of line i."""
    raise NotImplementedError("a device function")


@overload(_line, jit_options=HELPER)
def _lanes_of_line(lines: Any, i: Any, lanes: Any) -> Any:
    def line(lines: Any, i: Any, lanes: Any) -> Any:
        return contiguous_row(lines, i, 0, lanes)

    return line


@device
def _gather(matrices, place, first, lanes, parts, row_step, column_step, lines):
    """Elements of the matrices place[first], place[first + 1], … side by side, the last one in what lanes are over:
    (r, c) as line r·row_step + (c // parts)·column_step + c % parts. In blocks of a row, as it lies in a cache line.
    """
    m, n = matrices.shape[1:]
    pitch = lines.shape[1]
    flat = matrices.reshape(1, -1)
    target = contiguous_row(lines, 0, 0, lines.size)
    for r in range(m):
        for c0 in range(0, n, 8):
            c1 = min(n, c0 + 8)
            for lane in range(lanes):
                p = place[min(first + lane, place.size - 1)]
                source = contiguous_row(flat, 0, (p * m + r) * n, n)
                for c in range(c0, c1):
                    target[(r * row_step + c // parts * column_step + c % parts) * pitch + lane] = source[c]


@device
def _exponents(lines, depth, lanes, exponent, odd, top):
    """e with |x| < 2^e for each vector of `depth` lines; one with an element that is not finite, or far from 1, is
    marked as odd and becomes zero.
    """
    bits = lines.view(np.int64)
    largest = _line(top, 0, lanes)
    for i in range(exponent.shape[0]):
        e, flags = _line(exponent, i, lanes), _line(odd, i, lanes)
        for lane in range(lanes):
            largest[lane] = 0
        for h in range(depth):
            row = _line(bits, i * depth + h, lanes)
            for lane in range(lanes):
                largest[lane] = max(largest[lane], row[lane] & _SIZE)
        some = np.int64(0)
        for lane in range(lanes):
            above = (largest[lane] >> 52) - 1022
            far = (largest[lane] != 0) & ((above < -_FAR) | (above > _FAR))
            e[lane] = 0 if far | (largest[lane] == 0) else above
            flags[lane] = np.int64(far)
            some |= np.int64(far)
        # Nearly always there is none, which saves a pass over the elements.
        for h in range(depth if some else 0):
            x = _line(lines, i * depth + h, lanes)
            for lane in range(lanes):
                x[lane] = 0.0 if flags[lane] != 0 else x[lane]


@device
def _round(lines, depth, lanes, limits, q, levels, exponent, shift, norm, inexact, lost, counts, work):
    """Scale vectors and round them in place to x = RN(2^shift·a), by the rules of `scale`; `exponent` becomes its own.

    norm: a bound on ½‖x‖₁; inexact, lost: 1 where an element is rounded, or vanishes; counts (vectors·levels, lanes).
    limits: the thresholds of `scale.shift_for`. Its search ends after one step at most: where it starts, and x is
    (bits + 1) // 2, the last threshold but x - 2 is below 4^(x-1), and the norm at least 2^(bits-1) >= 4^(x-1).
    """
    last = limits.size - 1
    up, squares, total, v = _line(work, 0, lanes), _line(work, 1, lanes), _line(work, 2, lanes), _line(work, 3, lanes)
    for i in range(exponent.shape[0]):
        e, s, size = _line(exponent, i, lanes), _line(shift, i, lanes), _line(norm, i, lanes)
        rounds, vanishes = _line(inexact, i, lanes), _line(lost, i, lanes)
        for lane in range(lanes):
            up[lane] = _power(q - e[lane])
            squares[lane] = 0.0
            total[lane] = 0.0
            rounds[lane] = 0.0
            vanishes[lane] = 0.0
        for p in range(levels):
            hits = _line(counts, i * levels + p, lanes)
            for lane in range(lanes):
                hits[lane] = 0.0
        for h in range(depth):
            a = _line(lines, i * depth + h, lanes)
            for lane in range(lanes):
                x = np.ceil(abs(a[lane]) * up[lane])
                x = 1.0 if (x == 0.0) & (a[lane] != 0.0) else x
                v[lane] = x
                squares[lane] += x * x
                total[lane] += x
            for p in range(levels):
                hits, threshold = _line(counts, i * levels + p, lanes), _power(q - 1 - p)
                for lane in range(lanes):
                    hits[lane] += 1.0 if v[lane] > threshold else 0.0
        for lane in range(lanes):
            bits = (bits_of(squares[lane]) >> 52) - 1022
            t = max(0, last - ((bits + 1) >> 1))
            following = min(t + 1, last)
            t = following if squares[lane] <= limits[following] else t
            t = t if squares[lane] != 0.0 else 0
            size[lane] = 0.5 * total[lane] * _power(t)
            s[lane] = t + q - e[lane]
            e[lane] = t + q
            # From here on the scale of rounding; that of the norm is no longer needed.
            up[lane] = _power(s[lane])
        for h in range(depth):
            a = _line(lines, i * depth + h, lanes)
            for lane in range(lanes):
                scaled = a[lane] * up[lane]
                x = np.rint(scaled)
                gone = (x == 0.0) & (a[lane] != 0.0)
                rounds[lane] = 1.0 if gone | (x != scaled) else rounds[lane]
                vanishes[lane] = 1.0 if gone else vanishes[lane]
                a[lane] = x


@device
def _weave(columns, depth, lanes, count, y):
    """Complex columns (re, im, re, …) as two real ones each: (re, -im, …) for real parts, and (im, re, …)."""
    for j in range(count):
        for h in range(0, depth, 2):
            re, im = _line(columns, j * depth + h, lanes), _line(columns, j * depth + h + 1, lanes)
            first, second = 2 * j * depth + h, (2 * j + 1) * depth + h
            real, minus = _line(y, first, lanes), _line(y, first + 1, lanes)
            imaginary, plus = _line(y, second, lanes), _line(y, second + 1, lanes)
            for lane in range(lanes):
                real[lane] = re[lane]
                minus[lane] = -im[lane]
                imaginary[lane] = im[lane]
                plus[lane] = re[lane]


@intrinsic
def _dots(typingctx: Any, x: Any, y: Any, pitch: Any, k: Any, sigma: Any, high: Any, low: Any) -> Any:
    """COLUMNS lanes of k >= 1 lines at x and y: high + low, summed from `sigma`. All but k are addresses and bytes."""
    vector = ir.VectorType(ir.DoubleType(), VECTOR)

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        x, y, pitch, k, sigma, high, low = args

        def at(address: Any, v: int, line: Any = 0) -> Any:
            return pointer(b, address, pitch, line, 64 * v, vector)

        def factors(step: Any) -> dict[int, tuple[Any, Any]]:
            return {v: (load(b, at(x, v, step)), load(b, at(y, v, step))) for v in range(VECTORS)}

        for v, values in sums(b, k, {v: load(b, at(sigma, v)) for v in range(VECTORS)}, factors).items():
            for value, target in zip(values, (high, low), strict=True):
                b.store(value, at(target, v)).align = 8
        return context.get_dummy_value()

    address, count = types.uintp, types.intp
    return types.void(address, address, count, count, address, address, address), codegen


@device
def _magnitude(row_counts, i, column_counts, j, levels, depth, best):
    """The largest hits·2^-(p+r) of `finish.pigeonhole`, or 0: |A'||B'| is at least 2^(e+f-2) times as much."""
    for lane in range(best.size):
        best[lane] = 0.0
    for p in range(levels):
        left = _line(row_counts, i * levels + p, best.size)
        for r in range(levels):
            right, unit = _line(column_counts, j * levels + r, best.size), _power(-p - r)
            for lane in range(best.size):
                best[lane] = max(best[lane], (left[lane] + right[lane] - depth) * unit)


@kernel(
    "void(float64[:,:,::1], float64[:,:,::1], int64[::1], int64[::1], int64, int64[::1], int64, int64, int64, float64, "
    "float64, int64, float64[:,:,::1], float32[:,:,::1], uint8[:,:,::1], int64[::1])"
)
def tiny_batch(
    a, b, left, right, parts, thresholds, q, levels, mode, kappa, magnitude_kappa, precision, out, out32, uncertified,
    counts,
):  # fmt: skip
    """`tiny.tiny_product` of a[left[p]] and b[right[p]] into place p of out, uncertified and counts, for all p."""
    m, depth, whole = a.shape[1], a.shape[2], b.shape[2]
    n = whole // parts
    fit = max(1, min(LANES, GROUP // (depth * (m + whole))) // COLUMNS) * COLUMNS
    pitch = min(fit, (left.size + COLUMNS - 1) // COLUMNS * COLUMNS)
    x, y = np.empty((m * depth, pitch)), np.empty((whole * depth, pitch))
    columns = np.empty((n * depth, pitch)) if parts == 2 else y
    row_power, column_power = np.empty((m, pitch), np.int64), np.empty((n, pitch), np.int64)
    row_odd, column_odd = np.empty((m, pitch), np.int64), np.empty((n, pitch), np.int64)
    # Zeros where mode 1, which does not round operands, reads them.
    row_shift, column_shift = np.zeros((m, pitch), np.int64), np.zeros((n, pitch), np.int64)
    row_norm, column_norm = np.empty((m, pitch)), np.empty((n, pitch))
    row_inexact, column_inexact = np.empty((m, pitch)), np.empty((n, pitch))
    row_lost, column_lost = np.zeros((m, pitch)), np.zeros((n, pitch))
    row_counts, column_counts = np.empty((m * levels, pitch)), np.empty((n * levels, pitch))
    values, work, top = np.empty((whole, pitch)), np.empty((7, pitch)), np.empty((1, pitch), np.int64)
    limits = thresholds.astype(np.float64)  # norms are integers below 2^53: the same comparisons
    length = 0
    while 2 * depth >= 1 << length:
        length += 1
    factor = (depth + 2.0) * (depth + 2.0) * 2.0**-106
    largest = 2.0**1000 if precision == 53 else 2.0**126
    for p0 in range(0, left.size, pitch):
        here = min(pitch, left.size - p0)
        lanes = (here + COLUMNS - 1) // COLUMNS * COLUMNS
        _gather(a, left, p0, lanes, 1, depth, 1, x)
        _gather(b, right, p0, lanes, parts, parts, depth, columns)
        _exponents(x, depth, lanes, row_power, row_odd, top)
        _exponents(columns, depth, lanes, column_power, column_odd, top)
        if mode == 2:
            _round(
                x, depth, lanes, limits, q, levels, row_power, row_shift, row_norm, row_inexact, row_lost, row_counts,
                work,
            )  # fmt: skip
            _round(
                columns, depth, lanes, limits, q, levels, column_power, column_shift, column_norm, column_inexact,
                column_lost, column_counts, work,
            )  # fmt: skip
        if parts == 2:
            _weave(columns, depth, lanes, n, y)
        for p in range(p0, p0 + here):
            counts[p] = 0
        # The lines that `_round` worked in: nothing of it is needed any more.
        sigma, scale, bound, best = (
            _line(work, 0, lanes),
            _line(work, 1, lanes),
            _line(work, 2, lanes),
            _line(work, 3, lanes),
        )
        s, low, unsure = _line(work, 4, lanes), _line(work, 5, lanes), _line(work, 6, lanes)
        for i in range(m):
            e, s1, odd1 = _line(row_power, i, lanes), _line(row_shift, i, lanes), _line(row_odd, i, lanes)
            n1, f1 = _line(row_norm, i, lanes), _line(row_inexact, i, lanes)
            for c in range(whole):
                j = c // parts
                f, s2, odd2 = _line(column_power, j, lanes), _line(column_shift, j, lanes), _line(column_odd, j, lanes)
                n2, f2 = _line(column_norm, j, lanes), _line(column_inexact, j, lanes)
                for lane in range(lanes):
                    sigma[lane] = 1.5 * _power(e[lane] + f[lane] + length)
                    scale[lane] = _power(-s1[lane] - s2[lane])
                for lane in range(0, lanes, COLUMNS):
                    _dots(
                        np.uint64(x.ctypes.data + i * depth * x.strides[0] + 8 * lane),
                        np.uint64(y.ctypes.data + c * depth * y.strides[0] + 8 * lane), x.strides[0], depth,
                        np.uint64(sigma.ctypes.data + 8 * lane), np.uint64(s.ctypes.data + 8 * lane),
                        np.uint64(low.ctypes.data + 8 * lane),
                    )  # fmt: skip
                trouble = round_and_test(s, low, sigma, factor, precision, scale, _line(values, c, lanes), unsure)
                if mode == 2:
                    for lane in range(lanes):
                        # `finish.bounds` where ‖δ‖₂ is not used: the smaller of its bounds is the first
                        bound[lane] = fma(f1[lane], n2[lane], f2[lane] * n1[lane]) + f1[lane] * f2[lane] * (depth / 4.0)
                    doubts = uncovered(s, bound, kappa, low)
                    trouble += doubts
                    if doubts:
                        _magnitude(row_counts, i, column_counts, j, levels, depth, best)
                        for lane in range(lanes):
                            least = bound[lane] * magnitude_kappa * _power(2 - e[lane] - f[lane])
                            covered = (best[lane] > 0.0) & (best[lane] >= least)
                            covered &= (abs(s[lane]) + bound[lane]) * scale[lane] < largest
                            low[lane] = 0.0 if covered else low[lane]
                else:
                    for lane in range(lanes):
                        low[lane] = 0.0
                for lane in range(lanes):
                    trouble |= odd1[lane] | odd2[lane]
                for lane in range(here if trouble else 0):
                    odd = (odd1[lane] | odd2[lane]) != 0
                    open_rounding, doubt = unsure[lane] != 0.0, low[lane] != 0.0
                    if (
                        open_rounding and s[lane] == 0.0
                        and no_products(x[i * depth : (i + 1) * depth, lane], y[c * depth : (c + 1) * depth, lane])
                    ):  # fmt: skip
                        open_rounding = False
                        doubt &= (row_lost[i, lane] != 0.0) | (column_lost[j, lane] != 0.0)
                    if odd or open_rounding or doubt:
                        uncertified[p0 + lane, i, c] = 1
                        counts[p0 + lane] += 1
            for lane in range(here):
                if precision == 53:
                    target = contiguous_row(out[p0 + lane], i, 0, whole)
                    for c in range(whole):
                        target[c] = values[c, lane]
                else:
                    target32 = contiguous_row(out32[p0 + lane], i, 0, whole)
                    for c in range(whole):
                        target32[c] = values[c, lane]
