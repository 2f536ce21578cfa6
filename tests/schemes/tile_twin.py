"""`TileInt8` in exact fractions, entry by entry from its definition: slow and obvious."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from prismm.core.composite import Scaled
from prismm.formats import FP16, FP32, Format
from tests.cpu.kernels.harness import exact_power, rn


def rounded(x: Fraction, fmt: Format) -> Fraction:
    return Fraction(rn(x, fmt))


def f32(x: Fraction) -> Fraction:
    return rounded(x, FP32)


def exponent_of(x: Fraction) -> int:
    """floor(log2 |x|), at least -990."""
    e = abs(x).numerator.bit_length() - abs(x).denominator.bit_length()
    e -= exact_power(e) > abs(x)
    return max(e, -990)


def tile_exponent(tile: list[list[Fraction]], undo: list[int], bits: int) -> int | None:
    """The exponent at which every element has at most bits + 1 bits after rounding."""
    found = []
    for row, extra in zip(tile, undo, strict=True):
        for x in row:
            if x:
                e = exponent_of(x)
                found.append(e + extra + (round(abs(x) * exact_power(bits - e)) == 2 ** (bits + 1)))
    return max(found, default=None)


def segments(x: Fraction, g: int, count: int) -> list[int]:
    """Signed digits of RN(x·2^(f-g)) to base 128, the first one first."""
    g = max(-990, min(990, g))
    whole = round(x * exact_power(7 * count - 1 - g))
    assert abs(whole) < 128**count
    sign = -1 if whole < 0 else 1
    return [sign * (abs(whole) // 128 ** (count - 1 - p) % 128) for p in range(count)]


def excess(row: list[Fraction], g: int, width: int) -> int:
    """Δ of Eq. 9 in units of u/width, of a row of a tile."""
    g = max(-990, min(990, g))
    return sum(max(0, g - exponent_of(x) - (width.bit_length() - 1)) for x in row if x)


def half_words(row: list[Fraction]) -> tuple[list[Fraction], list[Fraction], int]:
    """hi and lo of a row scaled to [2^14, 2^15), and the exponent that undoes the scaling."""
    e = max((exponent_of(x) for x in row if x), default=-990)
    scaled = [x * exact_power(14 - e) for x in row]
    high = [rounded(x, FP16) for x in scaled]
    low = [rounded((x - h) * 4096, FP16) for x, h in zip(scaled, high, strict=True)]
    return high, low, e - 14


def half_entry(x: list[Fraction], y: list[Fraction]) -> Fraction:
    """One entry of a tile pair in two FP16 words."""
    (hi, lo, e), (hj, lj, g) = half_words(x), half_words(y)
    sums = []
    for a, b in ((hi, hj), (hi, lj), (lo, hj)):
        s = Fraction(0)
        for p, q in zip(a, b, strict=True):
            s = f32(s + f32(p * q))
        sums.append(s)
    return f32(f32(sums[1] + sums[2]) / 4096 + sums[0]) * exact_power(e + g)


def integer_entry(x: list[list[int]], y: list[list[int]], weights: int) -> Fraction:
    """t of a tile pair, in units of the first segments' product."""
    sums = [0] * weights
    for a, b in zip(x, y, strict=True):
        for i, p in enumerate(a):
            for j, q in enumerate(b):
                if i + j < weights:
                    sums[i + j] += p * q
    assert all(abs(s) < 2**24 for s in sums)
    t = Fraction(sums[-1])
    for s in reversed(sums[:-1]):
        t = f32(t / 128 + s)
    return t


def twin(a: Scaled, b: Scaled, scheme: Any) -> tuple[np.ndarray, int]:
    """The value, float64, and the number of tile pairs that fall back."""
    rows = [[Fraction(float(v)) for v in row] for row in a.data]
    columns = [[Fraction(float(v)) for v in column] for column in b.data.T]
    given = scheme.scaling == "none"
    undo_a = [int(e) if given else 0 for e in a.exponent]
    undo_b = [int(e) if given else 0 for e in b.exponent]
    tm, tk, tn = scheme.tile
    count_a, count_b = scheme.segments
    total = [[Fraction(0)] * len(columns) for _ in rows]
    fallen = 0
    for h in range(0, a.k, tk):
        for i0 in range(0, len(rows), tm):
            tile_a = [row[h : h + tk] for row in rows[i0 : i0 + tm]]
            p = tile_exponent(tile_a, undo_a[i0 : i0 + tm], 7 * count_a - 1)
            for j0 in range(0, len(columns), tn):
                tile_b = [column[h : h + tk] for column in columns[j0 : j0 + tn]]
                q = tile_exponent(tile_b, undo_b[j0 : j0 + tn], 7 * count_b - 1)
                if scheme.exponent == "pair":
                    both = [e for e in (p, q) if e is not None]
                    g, f = (max(both), max(both)) if both else (None, None)
                else:
                    g, f = p, q
                g_rows = [(0 if g is None else g) - u for u in undo_a[i0 : i0 + tm]]
                f_columns = [(0 if f is None else f) - u for u in undo_b[j0 : j0 + tn]]
                over = [excess(x, e, tk) > tk for x, e in zip(tile_a, g_rows, strict=True)]
                over += [excess(y, e, tk) > tk for y, e in zip(tile_b, f_columns, strict=True)]
                falls = scheme.fallback and any(over)
                fallen += falls
                for i, (x, e) in enumerate(zip(tile_a, g_rows, strict=True)):
                    for j, (y, d) in enumerate(zip(tile_b, f_columns, strict=True)):
                        if falls:
                            t = half_entry(x, y)
                        else:
                            u = [segments(v, e, count_a) for v in x]
                            w = [segments(v, d, count_b) for v in y]
                            t = integer_entry(u, w, scheme.weights) * exact_power(e + d - 12)
                        total[i0 + i][j0 + j] = f32(total[i0 + i][j0 + j] + f32(t))
    value = np.array([[float(v) for v in row] for row in total]).reshape(len(rows), len(columns))
    return value, fallen
