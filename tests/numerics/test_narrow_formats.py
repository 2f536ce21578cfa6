"""Formats with fewer special codes than IEEE 754's, by enumeration of their patterns; integers; names."""

import itertools
import math
from bisect import bisect_right
from fractions import Fraction

import numpy as np
import pytest

from prismm.errors import ArgumentError
from prismm.formats import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    FP16,
    FP32,
    FP64,
    INT4,
    INT8,
    INT32,
    TF32,
    UINT8,
    Format,
    Integer,
    format_named,
    round_fraction,
)
from prismm.numerics.encodings import decode

NARROW = (E2M1, E2M3, E3M2, E4M3, E4M3FNUZ, E5M2FNUZ, E5M2)
ALL = (FP64, FP32, TF32, BF16, FP16, E5M2, E4M3, E3M2, E2M3, E2M1, E5M2FNUZ, E4M3FNUZ, INT4, INT8, UINT8, INT32)


def named(format):
    return format.name


def positive(format):
    """All finite values of no sign, in ascending order."""
    values = decode(np.arange(1 << (format.bits - 1)), format)
    return values[np.isfinite(values)].tolist()


@pytest.mark.parametrize(
    ("format", "bits", "bias", "largest", "normal", "subnormal", "infinity", "nan"),
    [  # OCP 8-bit specification, OCP Microscaling formats 1.0; "fnuz" as in LLVM's APFloat
        (E5M2, 8, 15, 57344.0, 2.0**-14, 2.0**-16, True, True),
        (E4M3, 8, 7, 448.0, 2.0**-6, 2.0**-9, False, True),
        (E3M2, 6, 3, 28.0, 0.25, 0.0625, False, False),
        (E2M3, 6, 1, 7.5, 1.0, 0.125, False, False),
        (E2M1, 4, 1, 6.0, 1.0, 0.5, False, False),
        (E5M2FNUZ, 8, 16, 57344.0, 2.0**-15, 2.0**-17, False, True),
        (E4M3FNUZ, 8, 8, 240.0, 2.0**-7, 2.0**-10, False, True),
    ],
    ids=lambda x: x.name if isinstance(x, Format) else "",
)
def test_published_tables(format, bits, bias, largest, normal, subnormal, infinity, nan):
    assert (format.bits, format.bias, format.max) == (bits, bias, largest)
    assert (format.smallest_normal, format.smallest_subnormal) == (normal, subnormal)
    assert (format.has_infinity, format.has_nan) == (infinity, nan)


@pytest.mark.parametrize("format", (*NARROW, FP16, BF16), ids=named)
def test_properties_are_those_of_the_patterns(format):
    values = positive(format)
    assert values == sorted(set(values)) and values[0] == 0.0
    assert format.max == values[-1]
    assert format.smallest_subnormal == values[1]
    assert format.smallest_normal == values[1 << format.fraction_bits] == 2.0**format.minexp
    assert format.eps == values[values.index(1.0) + 1] - 1.0
    assert 2.0 ** (format.maxexp - 1) <= format.max < 2.0**format.maxexp
    everything = decode(np.arange(1 << format.bits), format)
    assert (bool(np.isinf(everything).any()), bool(np.isnan(everything).any())) == (format.has_infinity, format.has_nan)
    for lower, upper in itertools.pairwise(values):
        assert 2.0 ** format.ulp_exponent(lower) == upper - lower


def chosen(format, values, x, rounding):
    """The value next to x that the rounding picks; patterns alternate between even and odd."""
    size, outward = abs(x), rounding == ("down" if x < 0 else "up")
    below = bisect_right(values, size) - 1
    last = len(values) - 1
    if values[below] == size:
        picked = values[below]
    elif below == last:
        spacing = values[last] - values[last - 1]
        over = size >= values[last] + spacing / 2 if rounding == "nearest" else outward
        # From the next power of two on, there is nothing to round but the infinity.
        picked = math.inf if format.has_infinity and over else values[last]
    else:
        low, high = size - values[below], values[below + 1] - size
        nearer = low > high or (low == high and below % 2 == 1)
        picked = values[below + (nearer if rounding == "nearest" else outward)]
    if picked == 0.0 and format.specials == "fnuz":
        return 0.0
    return math.copysign(picked, -1.0 if x < 0 else 1.0)


@pytest.mark.parametrize("rounding", ["nearest", "down", "up"])
@pytest.mark.parametrize("format", NARROW, ids=named)
def test_rounding_at_every_value_and_midpoint(format, rounding):
    values = [Fraction(v) for v in positive(format)]
    low = format.subnormal_exponent - 3  # eighths of the smallest spacing
    step = Fraction(2) ** low
    points = {int(v / step) + d for v in values for d in range(-2, 3)}
    points |= {int((v + w) / 2 / step) + d for v, w in itertools.pairwise(values) for d in (-1, 0, 1)}
    top = values[-1] + (values[-1] - values[-2]) * Fraction(1, 2)  # where infinities begin, if there are any
    points |= {int(x / step) + d for x in (top, Fraction(2) ** format.maxexp, 8 * values[-1]) for d in (-1, 0, 1)}
    for numerator in (points | {-p for p in points}) - {0}:
        got = round_fraction(format, numerator, low, rounding)
        wanted = chosen(format, values, numerator * step, rounding)
        assert (got, math.copysign(1, got)) == (wanted, math.copysign(1, wanted)), (numerator, low)


@pytest.mark.parametrize("format", [f for f in NARROW if not f.has_infinity], ids=named)
def test_overflow_ends_at_the_largest_value(format):
    for rounding in ("nearest", "down", "up"):
        for exponent in (format.maxexp, format.maxexp + 1, 5000):
            assert round_fraction(format, 1, exponent, rounding) == format.max
            assert round_fraction(format, -1, exponent, rounding) == -format.max


def test_underflow_loses_its_sign_only_without_negative_zero():
    for format in NARROW:
        sign = math.copysign(1, round_fraction(format, -1, format.subnormal_exponent - 2))
        assert sign == (1 if format.specials == "fnuz" else -1)


def test_special_codes_need_narrow_exponents():
    assert Format(8, 3, specials="fn").max == 2.0**128 * 1.75
    for specials in ("fn", "finite", "fnuz"):
        with pytest.raises(ArgumentError, match=f"specials='{specials}' is for narrow formats; pass exponent_bits"):
            Format(9, 3, specials=specials)
    for wrong in ("", "IEEE", None):
        with pytest.raises(ArgumentError, match="pass 'ieee', 'fn', 'finite' or 'fnuz'"):
            Format(4, 3, specials=wrong)
    assert Format(4, 3) != Format(4, 3, specials="fn")


@pytest.mark.parametrize("bits", [2, 3, 8, 31, 32])
def test_range_of_integers(bits):
    signed, unsigned = Integer(bits), Integer(bits, signed=False)
    assert (signed.min, signed.max) == (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    assert (unsigned.min, unsigned.max) == (0, 2**bits - 1)
    assert signed != unsigned


@pytest.mark.parametrize("bits", [1, 33, 0, -8, True, 8.0, "8", None])
def test_widths_of_integers_that_are_refused(bits):
    with pytest.raises(ArgumentError, match=r"bits=.*pass bits from 2 to 32"):
        Integer(bits)


def test_names():
    assert len({format.name for format in ALL}) == len(ALL)
    for format in ALL:
        assert format_named(format.name) is format


@pytest.mark.parametrize("name", ["fp8", "FP16", "", None, 16, FP16, ["fp16"]])
def test_unknown_names(name):
    with pytest.raises(ArgumentError, match=r"unknown format .*; pass one of fp64, fp32, .*e4m3fnuz, int4, .*int32"):
        format_named(name)
