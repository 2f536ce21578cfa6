"""Formats against numpy.finfo, and the exact rounding against enumeration, Python and NumPy."""

import doctest
import itertools
import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import prismm.formats
from prismm.errors import ArgumentError, DTypeError
from prismm.formats import BF16, FP16, FP32, FP64, TF32, Format, format_of, round_fraction

NUMPY = [(FP64, np.float64), (FP32, np.float32), (FP16, np.float16)]
ALL = [FP64, FP32, TF32, BF16, FP16]
SMALL = [Format(2, 1), Format(3, 2), Format(4, 3), Format(5, 2)]


def values_by_pattern(fmt):
    """Values of the bit patterns 0, 1, 2, … up to infinity's, which counts as 2^maxexp."""
    found = []
    for exponent in range((1 << fmt.exponent_bits) - 1):
        for fraction in range(1 << fmt.fraction_bits):
            significand = Fraction(fraction, 1 << fmt.fraction_bits) + (exponent > 0)
            found.append(significand * Fraction(2) ** (max(exponent, 1) - fmt.maxexp + 1))
    return [*found, Fraction(2) ** fmt.maxexp]


def rounded_by_enumeration(fmt, values, x, rounding):
    """Search all values; neighbours in pattern order alternate between even and odd."""
    magnitude = abs(x)
    below = max(i for i, v in enumerate(values) if v <= min(magnitude, values[-1]))
    if values[below] == magnitude or below == len(values) - 1:
        chosen = below
        if below == len(values) - 1 and rounding == ("up" if x < 0 else "down"):
            chosen = below - 1
    elif rounding == "nearest":
        low, high = magnitude - values[below], values[below + 1] - magnitude
        chosen = below if low < high or (low == high and below % 2 == 0) else below + 1
    else:
        chosen = below + (rounding == ("down" if x < 0 else "up"))
    result = math.inf if chosen == len(values) - 1 else float(values[chosen])
    return -result if x < 0 else result


@pytest.mark.parametrize(("fmt", "dtype"), NUMPY)
def test_properties_are_those_of_finfo(fmt, dtype):
    info = np.finfo(dtype)
    for name in ("bits", "minexp", "maxexp", "max", "eps", "smallest_normal", "smallest_subnormal"):
        assert getattr(fmt, name) == getattr(info, name), name
    assert fmt.precision == info.nmant + 1
    assert fmt.unit_roundoff == info.eps / 2
    assert fmt.smallest_subnormal == 2.0**fmt.subnormal_exponent


def test_the_formats_without_a_numpy_type():
    assert (BF16.bits, BF16.precision, BF16.max) == (16, 8, 3.3895313892515355e38)
    assert (TF32.bits, TF32.precision, TF32.minexp, TF32.maxexp) == (19, 11, -126, 128)


@pytest.mark.covering("fmt")
@pytest.mark.parametrize("rounding", ["nearest", "down", "up"])
@pytest.mark.parametrize("fmt", SMALL, ids=lambda f: f"e{f.exponent_bits}m{f.fraction_bits}")
def test_every_value_and_midpoint_of_small_formats(fmt, rounding):
    values = values_by_pattern(fmt)
    assert values == sorted(set(values))
    low = fmt.subnormal_exponent - 3  # eighths of the smallest spacing: below, at and above each midpoint
    step = Fraction(2) ** low
    points = {int(v / step) + d for v in values for d in range(-2, 3)}
    points |= {int((v + w) / 2 / step) + d for v, w in itertools.pairwise(values) for d in (-1, 0, 1)}
    for numerator in points | {-p for p in points}:
        got = round_fraction(fmt, numerator, low, rounding)
        expected = rounded_by_enumeration(fmt, values, numerator * step, rounding)
        assert got == expected, (numerator, low)
        if numerator:
            assert math.copysign(1, got) == (-1 if numerator < 0 else 1)


@given(st.integers(-(2**120), 2**120), st.integers(-1300, 1100))
def test_fp64_is_pythons_correctly_rounded_division(numerator, exponent):
    try:
        expected = float(Fraction(numerator) * Fraction(2) ** exponent)
    except OverflowError:
        expected = math.copysign(math.inf, numerator)
    got = round_fraction(FP64, numerator, exponent)
    assert got == expected
    assert math.copysign(1, got) == math.copysign(1, expected)


def test_fp16_is_numpys_at_every_value_midpoint_and_beside():
    patterns = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = (patterns + np.append(patterns[1:], 65536.0)) / 2
    points = np.concatenate([patterns, middles, np.nextafter(middles, 0), np.nextafter(middles, np.inf)])
    with np.errstate(over="ignore"):
        expected = points.astype(np.float16).astype(np.float64)
    for x, y in zip(points.tolist(), expected.tolist(), strict=True):
        numerator, denominator = x.as_integer_ratio()
        assert round_fraction(FP16, numerator, 1 - denominator.bit_length()) == y, x


@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(-(2.0**-120), 2.0**-120))
def test_fp32_is_numpys_conversion(x):
    numerator, denominator = x.as_integer_ratio()
    with np.errstate(over="ignore", under="ignore"):
        expected = float(np.float32(x + 0.0))  # an integer has no -0.0
    got = round_fraction(FP32, numerator, 1 - denominator.bit_length())
    assert got == expected and math.copysign(1, got) == math.copysign(1, expected)


@given(st.sampled_from(ALL), st.integers(-(2**80), 2**80), st.integers(-1250, 1050))
def test_directed_roundings_enclose_the_nearest(fmt, numerator, exponent):
    down, near, up = (round_fraction(fmt, numerator, exponent, r) for r in ("down", "nearest", "up"))
    exact = Fraction(numerator) * Fraction(2) ** exponent
    assert near in (down, up)
    assert down == -math.inf or Fraction(down) <= exact
    assert up == math.inf or Fraction(up) >= exact
    if down == up:
        assert Fraction(down) == exact


@pytest.mark.parametrize("fmt", ALL, ids=lambda f: f.name)
@pytest.mark.parametrize("sign", [1, -1])
def test_overflow_begins_at_max_plus_half_an_ulp(fmt, sign):
    exponent = fmt.maxexp - fmt.precision - 101
    threshold = ((1 << (fmt.precision + 1)) - 1) << 100
    assert round_fraction(fmt, sign * threshold, exponent) == sign * math.inf
    assert round_fraction(fmt, sign * (threshold - 1), exponent) == sign * fmt.max
    inward, outward = ("down", "up") if sign > 0 else ("up", "down")
    assert round_fraction(fmt, sign * threshold * 2**3000, exponent, inward) == sign * fmt.max
    just_above = ((1 << fmt.precision) - 1 << 101) + 1
    assert round_fraction(fmt, sign * just_above, exponent, outward) == sign * math.inf


@pytest.mark.parametrize("fmt", ALL, ids=lambda f: f.name)
def test_underflow_keeps_the_sign_and_ties_to_zero(fmt):
    low = fmt.subnormal_exponent
    assert round_fraction(fmt, 1, low) == fmt.smallest_subnormal
    assert round_fraction(fmt, 1, low - 1) == 0.0
    assert round_fraction(fmt, 3, low - 1) == 2 * fmt.smallest_subnormal
    assert round_fraction(fmt, (1 << 99) + 1, low - 100) == fmt.smallest_subnormal
    assert math.copysign(1, round_fraction(fmt, -1, low - 1)) == -1
    assert math.copysign(1, round_fraction(fmt, 0, low)) == 1


def test_absurd_exponents_cost_nothing():
    assert round_fraction(FP64, 1, -(10**12)) == 0.0
    assert round_fraction(FP64, 1, -(10**12), "up") == 2.0**-1074
    assert round_fraction(FP64, -1, 10**12) == -math.inf


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_ulp_exponent_is_math_ulp(x):
    assert 2.0 ** FP64.ulp_exponent(x) == math.ulp(x)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_ulp_exponent_refuses_specials(value):
    with pytest.raises(ArgumentError, match="finite"):
        FP32.ulp_exponent(value)


@pytest.mark.parametrize("widths", [(1, 10), (12, 10), (8, 0), (11, 53)])
def test_widths_beyond_float64_are_refused(widths):
    with pytest.raises(ArgumentError, match="pass"):
        Format(*widths)


def test_unknown_rounding_is_refused():
    with pytest.raises(ArgumentError, match="'sideways'"):
        round_fraction(FP64, 1, 0, "sideways")


class TorchLike:
    """Prints as torch.bfloat16 does."""

    def __str__(self):
        return "torch.bfloat16"


@pytest.mark.parametrize(
    ("dtype", "fmt"),
    [
        (np.float64, FP64),
        (np.dtype(">f8"), FP64),
        (np.complex128, FP64),
        (np.dtype(np.complex64), FP32),
        (float, FP64),
        (complex, FP64),
        ("f4", FP32),
        ("float16", FP16),
        (TorchLike(), BF16),
    ],
)
def test_format_of(dtype, fmt):
    assert format_of(dtype) == fmt


@pytest.mark.parametrize("dtype", [np.int64, np.longdouble, "no such type", None, bool])
def test_format_of_refuses_the_rest(dtype):
    with pytest.raises(DTypeError, match="pass float64"):
        format_of(dtype)


def test_formats_are_frozen_values():
    assert Format(8, 23, "fp32") == FP32 and hash(Format(8, 23, "fp32")) == hash(FP32)
    with pytest.raises(AttributeError):
        FP32.fraction_bits = 10


def test_importing_formats_loads_nothing_heavy():
    code = "import sys, prismm.formats; print([m for m in ('numpy', 'torch', 'numba') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_examples():
    assert doctest.testmod(prismm.formats).failed == 0


@pytest.mark.parametrize("bits", [None, "8", 8.0, True, [8]])
@pytest.mark.parametrize("name", ["exponent_bits", "fraction_bits"])
def test_widths_that_are_no_integers_are_refused(name, bits):
    with pytest.raises(ArgumentError, match=f"{name}=.*pass {name} from"):
        Format(**({"exponent_bits": 8, "fraction_bits": 8} | {name: bits}))
