"""Splits into slices: the twin's digits, the parts' sum, their sizes, and what the bound is told."""

from fractions import Fraction

import numpy as np
import pytest

from prismm.core.composite import Scaled
from prismm.cpu.slices.split import cut, cut_to_the_end
from prismm.formats import BF16, FP16
from prismm.schemes.slice_layout import UNITS, Layout
from tests.cpu.kernels.slice_twin import two, vector

CASES = [
    (unit, bits, rounding, adaptive)
    for unit, bits, rounding in (
        ("fp16", 1, "nearest"), ("fp16", 8, "nearest"), ("fp16", 11, "toward-zero"), ("fp16", 12, "nearest"),
        ("fp16", 1, "toward-zero"), ("int8", 8, "nearest"), ("int8", 7, "nearest"), ("int8", 7, "toward-zero"),
        ("fp64", 22, "nearest"), ("fp32-fp64", 24, "toward-zero"), ("bf16", 9, "nearest"),
    )
    for adaptive in (False, True)
]  # fmt: skip
cases = pytest.mark.parametrize(("unit", "bits", "rounding", "adaptive"), CASES)


def operand(data, side="left"):
    """Scaled rows (or columns), as the flow gives them."""
    data = np.asarray(data, np.float64)
    kept = np.ascontiguousarray(data if side == "left" else data.T)
    return Scaled(side, kept, np.zeros(len(data), np.int64), np.zeros(len(data), np.bool_))


def layout_of(unit, bits, rounding, adaptive, k, block):
    return Layout(UNITS[unit], bits, rounding, adaptive, k, block)


def hostile_rows(rng, k):
    """Rows in [1/2, 1): ordinary, wide, ties of every digit, next to 1, subnormal tails, empty slices, zeros."""
    rows = [rng.uniform(-1, 1, k), rng.uniform(-1, 1, k) * 2.0 ** rng.integers(-60, 1, k)]
    rows.append(np.ldexp(rng.uniform(-1, 1, k), rng.integers(-1090, 1, k)))
    ties = np.array([(int(rng.integers(0, 1 << 12)) + 0.5) * 2.0 ** -int(rng.integers(12, 40)) for _ in range(k)])
    rows.append(np.where(rng.random(k) < 0.5, -ties, ties))
    rows.append(np.where(rng.random(k) < 0.5, 1 - 2.0**-53, -(1 - 2.0**-53)))
    rows.append(np.full(k, 127 / 128))
    rows.append(np.where(np.arange(k) % 2 == 0, np.nextafter(127 / 128, 1), -127.5 / 128))
    rows.append(np.where(np.arange(k) == 0, 0.5, 2.0**-1074))
    rows.append(rng.integers(-1, 2, k) * 0.5)
    rows.append(np.zeros(k))
    rows.append(np.array([sum(127 * 2.0 ** (-8 * p - 7) for p in range(6)) + 2.0**-50] * k))
    for row in rows:
        if row.any() and np.abs(row).max() < 0.5:
            row[int(rng.integers(k))] = 0.75
        row[np.abs(row) >= 1] = 0.5
    return np.stack(rows)


@pytest.mark.covering("unit", "bits", "side")
@cases
@pytest.mark.parametrize("side", ["left", "right"])
def test_digits_are_the_twins(unit, bits, rounding, adaptive, side, rng):
    k, block = 23, 9
    data = hostile_rows(rng, k)
    layout = layout_of(unit, bits, rounding, adaptive, k, block)
    for slices in (1, 2, 5, 8, 13):
        sliced = cut(operand(data, side), layout, slices, 2)
        for i, row in enumerate(data):
            digits, exponents, left = vector(row.tolist(), layout, slices)
            for p in range(slices):
                got = np.concatenate([sliced.slice(p, b)[i] for b in range(layout.blocks)])
                assert got[:k].astype(int).tolist() == digits[p], (i, p)
                assert not got[k:].any()
                assert sliced.exponent[p, i] == exponents[p], (i, p)
                assert sliced.magnitude[p, i] == sum(map(abs, digits[p])), (i, p)
            assert sliced.remainder[slices, i] == max(map(abs, left)), i


@cases
def test_parts_stay_in_size_and_remainders_are_bounded(unit, bits, rounding, adaptive, rng):
    k = 17
    data = hostile_rows(rng, k)
    layout = layout_of(unit, bits, rounding, adaptive, k, k)
    sliced = cut(operand(data), layout, 6, 2)
    top = 127 if UNITS[unit].inputs is None and rounding == "nearest" else layout.largest_digit
    for i, row in enumerate(data):
        rest = [Fraction(x) for x in row.tolist()]
        assert sliced.norm[i] >= sum(map(abs, rest)) >= sliced.norm[i] - Fraction(k, 2**20)
        for p in range(6):
            assert sliced.remainder[p, i] >= max(map(abs, rest)), (i, p)
            digits = sliced.slice(p, 0)[i].astype(int).tolist()
            assert all(-layout.largest_digit <= d <= top for d in digits), (i, p)
            e = int(sliced.exponent[p, i])
            rest = [x - d * two(e) for x, d in zip(rest, digits, strict=True)]
            unit_left = two(e) * (1 if rounding == "toward-zero" else Fraction(1, 2) if not layout.carried else 1)
            assert max(map(abs, rest)) <= unit_left or p < 5
        assert sliced.remainder[6, i] == max(map(abs, rest)), i


def finite_values(fmt):
    """Every finite value of the format, scaled below 1 by one power of two."""
    step = 1 << fmt.fraction_bits
    values = []
    for e in range(fmt.minexp, fmt.maxexp):
        low = 0 if e == fmt.minexp else step
        values.append(np.ldexp(np.arange(low, 2 * step, dtype=np.float64), e - fmt.fraction_bits - fmt.maxexp))
    both = np.concatenate(values)
    return np.concatenate([both, -both])


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda f: f.name)
@cases
def test_every_finite_value_is_the_sum_of_its_slices(fmt, unit, bits, rounding, adaptive):
    values = finite_values(fmt)
    if bits == 1 and fmt is BF16:
        values = values[::7]
    layout = layout_of(unit, bits, rounding, adaptive, values.size, values.size)
    sliced = cut_to_the_end(operand(values[None]), layout, 1)
    total = np.zeros(values.size)
    for p in range(sliced.slices - 1, -1, -1):  # upwards from the smallest: every partial sum is a float
        total += np.ldexp(sliced.slice(p, 0)[0].astype(np.float64), int(sliced.exponent[p, 0]))
    np.testing.assert_array_equal(total, values)


@pytest.mark.parametrize(
    ("unit", "bits", "rounding", "adaptive"), [c for c in CASES if not (c[3] and c[2] == "nearest")]
)
def test_slicing_what_was_kept_keeps_it(unit, bits, rounding, adaptive, rng):
    # Not of adaptive slices rounded to nearest: a tie may go the other way, and the next slice begin higher.
    k, slices = 40, 3
    data = hostile_rows(rng, k)
    layout = layout_of(unit, bits, rounding, adaptive, k, 16)
    once = cut(operand(data), layout, slices, 1)

    def kept(sliced, i):
        total = [Fraction(0)] * k
        for p in range(sliced.slices):
            e = int(sliced.exponent[p, i])
            row = np.concatenate([sliced.slice(p, b)[i] for b in range(layout.blocks)])[:k]
            total = [t + int(d) * two(e) for t, d in zip(total, row, strict=True)]
        return total

    for i in range(len(data)):
        first = kept(once, i)
        floats = np.array([float(x) for x in first])
        if any(Fraction(f) != x for f, x in zip(floats.tolist(), first, strict=True)) or np.abs(floats).max() >= 1:
            continue  # carries beyond a float, or rounded up to 1: not an operand again
        again = cut(operand(floats[None]), layout, slices, 1)
        assert kept(again, 0) == first, i
        assert not again.remainder[slices].any(), i


@pytest.mark.parametrize("adaptive", [False, True])
def test_order_of_elements_changes_nothing_else(adaptive, rng):
    k = 300
    data = hostile_rows(rng, k)
    order = rng.permutation(k)
    layout = layout_of("int8", 8, "nearest", adaptive, k, 100)
    x, y = (cut(operand(d), layout, 7, 2) for d in (data, data[:, order]))
    for name in ("exponent", "remainder", "magnitude", "norm"):
        np.testing.assert_array_equal(getattr(x, name), getattr(y, name))
    for p in range(7):
        left, right = (np.concatenate([s.slice(p, b) for b in range(3)], axis=1) for s in (x, y))
        np.testing.assert_array_equal(left[:, order], right)
