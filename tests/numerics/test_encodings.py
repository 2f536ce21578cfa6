"""Bit patterns against NumPy's types and against exact formulas, for every pattern of every format up to 19 bits."""

import math
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
)
from prismm.numerics.encodings import canonical_nan, decode, encode, foreign, is_nan, patterns_of, storage

NARROW = (E2M1, E2M3, E3M2, E4M3, E4M3FNUZ, E5M2, E5M2FNUZ, Format(3, 4, "e3m4"), Format(4, 3, "e4m3ieee"))
FLOATS = (*NARROW, FP16, BF16, TF32)
INTEGERS = (INT4, INT8, UINT8, Integer(2, name="int2"), Integer(13, name="int13"), Integer(19, False, "uint19"))


def named(format):
    return format.name


def value_of(pattern, format):
    """The value of one pattern, by the definition: a sign, a power of two and a significand."""
    sign = -1 if pattern >> (format.bits - 1) else 1
    exponent = (pattern >> format.fraction_bits) % (1 << format.exponent_bits)
    fraction = pattern % (1 << format.fraction_bits)
    highest, ones = (1 << format.exponent_bits) - 1, (1 << format.fraction_bits) - 1
    if format.specials == "ieee" and exponent == highest:
        return math.nan if fraction else sign * math.inf
    if format.specials == "fn" and (exponent, fraction) == (highest, ones):
        return math.nan
    if format.specials == "fnuz" and pattern == 1 << (format.bits - 1):
        return math.nan
    bias = 2 ** (format.exponent_bits - 1) - (0 if format.specials == "fnuz" else 1)
    significand = Fraction(fraction, ones + 1) + (1 if exponent else 0)
    return sign * float(significand * Fraction(2) ** (max(exponent, 1) - bias))


def identical(x, y):
    """The same bits; any NaN is the same as any other."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    return bool((((x == y) & (np.signbit(x) == np.signbit(y))) | (np.isnan(x) & np.isnan(y))).all())


@pytest.mark.parametrize("format", FLOATS, ids=named)
def test_every_pattern_goes_there_and_back(format):
    patterns = np.arange(patterns_of(format))
    values = decode(patterns, format)
    back = encode(values, format)
    assert back.dtype == storage(format)
    missing = np.isnan(values)
    assert missing.any() == format.has_nan and np.isinf(values).sum() == (2 if format.has_infinity else 0)
    assert (back[~missing] == patterns[~missing]).all()
    assert (back[missing] == (canonical_nan(format) if format.has_nan else 0)).all()
    # Different patterns of numbers are different values, -0 and +0 included.
    numbers = values[~missing]
    assert len(set(zip(numbers.tolist(), np.signbit(numbers).tolist(), strict=True))) == len(numbers)
    assert not foreign(values, format).any()


@pytest.mark.parametrize("format", (*NARROW, FP16), ids=named)
def test_every_pattern_has_the_value_of_the_definition(format):
    wanted = [value_of(p, format) for p in range(patterns_of(format))]
    assert identical(decode(range(patterns_of(format)), format), wanted)


def test_fp16_is_numpys():
    patterns = np.arange(1 << 16, dtype=np.uint16)
    assert identical(decode(patterns, FP16), patterns.view(np.float16).astype(np.float64))


@pytest.mark.parametrize(("format", "dropped"), [(BF16, 16), (TF32, 13)], ids=["bf16", "tf32"])
def test_bf16_and_tf32_are_the_upper_bits_of_fp32(format, dropped):
    patterns = np.arange(1 << format.bits, dtype=np.uint32)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wanted = (patterns << dropped).view(np.float32).astype(np.float64)
    assert identical(decode(patterns, format), wanted)


@pytest.mark.parametrize(("format", "unsigned", "kind"), [(FP32, np.uint32, np.float32), (FP64, np.uint64, np.float64)])
def test_fp32_and_fp64_are_numpys(format, unsigned, kind, rng):
    top = (1 << format.bits) - 1
    patterns = rng.integers(0, top, 100_000, dtype=unsigned, endpoint=True)
    for field in (0, ((1 << format.exponent_bits) - 1) << format.fraction_bits, 1 << (format.bits - 1)):
        ends = [(field + d) & top for d in range(-3, 4)]
        patterns = np.concatenate([patterns, np.array(ends, unsigned)])
    with np.errstate(invalid="ignore"):
        wanted = patterns.view(kind).astype(np.float64)
    values = decode(patterns, format)
    assert identical(values, wanted)
    number = ~np.isnan(values)
    assert number.sum() < len(number)
    assert (encode(values, format)[number] == patterns[number]).all()
    assert (encode(values, format)[~number] == canonical_nan(format)).all()


@pytest.mark.parametrize("format", FLOATS, ids=named)
def test_what_lies_between_two_values_is_foreign(format):
    values = decode(np.arange(patterns_of(format)), format)
    finite = np.unique(values[np.isfinite(values)])
    between = (finite[1:] + finite[:-1]) / 2
    for points in (between, np.nextafter(finite, np.inf), np.nextafter(finite, -np.inf)):
        assert foreign(points, format).all()
    beyond = 2 * finite[-1] - finite[-2]  # one spacing above the largest
    assert foreign([beyond, -beyond, 2.0 * finite[-1], 1e300], format).all()
    with pytest.raises(ArgumentError, match=rf"1 of 2 values are none of {format.name}, first .*; round them first"):
        encode([0.0, float(between[0])], format)


@pytest.mark.parametrize("format", (*FLOATS, FP32, FP64), ids=named)
def test_infinities_and_nan_belong_where_they_are_encoded(format):
    assert foreign([math.inf, -math.inf, math.nan], format).tolist() == [
        not format.has_infinity,
        not format.has_infinity,
        not format.has_nan,
    ]


def test_codes_of_ocp_fp8():
    assert decode([0x7E, 0x7F, 0xFE, 0xFF, 0x80], E4M3).tolist()[::2] == [448.0, -448.0, 0.0]
    assert np.isnan(decode([0x7F, 0xFF], E4M3)).all()
    assert decode([0x7B, 0x7C, 0xFC], E5M2).tolist() == [57344.0, math.inf, -math.inf]
    assert np.isnan(decode([0x7D, 0x7E, 0x7F], E5M2)).all()
    assert canonical_nan(E4M3) == 0x7F and canonical_nan(E5M2) == 0x7F
    for outside in (480.0, math.inf, -512.0):
        with pytest.raises(ArgumentError, match="none of e4m3"):
            encode(outside, E4M3)


def test_codes_without_negative_zero():
    for format, largest in ((E4M3FNUZ, 240.0), (E5M2FNUZ, 57344.0)):
        values = decode(np.arange(256), format)
        assert np.flatnonzero(np.isnan(values)).tolist() == [0x80] == [canonical_nan(format)]
        assert not np.signbit(values[values == 0.0]).any()
        assert np.nanmax(values) == values[0x7F] == largest
        assert not foreign([-0.0], format).any()
        assert encode([-0.0, 0.0, math.nan, -largest], format).tolist() == [0, 0, 0x80, 0xFF]
    assert encode(-0.0, E4M3) == 0x80 and encode(-0.0, E2M1) == 0x8


def test_codes_of_ocp_fp4_and_fp6():
    assert decode(np.arange(8), E2M1).tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert (decode(0x1F, E2M3), decode(0x1F, E3M2)) == (7.5, 28.0)
    assert (decode(0x01, E2M3), decode(0x01, E3M2)) == (0.125, 0.0625)
    for format in (E2M1, E2M3, E3M2):
        with pytest.raises(ArgumentError, match=f"{format.name} has no NaN"):
            canonical_nan(format)
        with pytest.raises(ArgumentError, match=f"none of {format.name}, first nan"):
            encode(math.nan, format)


@pytest.mark.parametrize("format", INTEGERS, ids=named)
def test_integers_are_in_twos_complement(format):
    patterns = np.arange(patterns_of(format))
    values = decode(patterns, format)
    half = patterns_of(format) // 2
    wanted = [p - 2 * half if format.signed and p >= half else p for p in range(2 * half)]
    assert values.tolist() == wanted
    assert (values.min(), values.max()) == (format.min, format.max)
    back = encode(values, format)
    assert back.dtype == storage(format) and (back == patterns).all()
    assert foreign([format.min - 1, format.max + 1, 0.5, math.nan, math.inf, -math.inf], format).all()
    assert not foreign([format.min, format.max, -0.0], format).any()
    for outside in (format.max + 1, format.min - 1, 0.5):
        with pytest.raises(ArgumentError, match=f"none of {format.name}"):
            encode(outside, format)


def test_ends_of_int32():
    ends = [0, 1, 2**31 - 1, 2**31, 2**32 - 1]
    assert (
        decode(ends, INT32).tolist() == [0, 1, 2**31 - 1, -(2**31), -1]
        and encode(decode(ends, INT32), INT32).tolist() == ends
    )
    unsigned = Integer(32, signed=False)
    assert decode(ends, unsigned).tolist() == ends and encode(decode(ends, unsigned), unsigned).tolist() == ends


@pytest.mark.parametrize("format", [E2M1, E4M3, FP16, TF32, FP32, INT4, INT8], ids=named)
def test_patterns_outside_the_format_are_refused(format):
    for pattern in (-1, 1 << format.bits):
        with pytest.raises(ArgumentError, match=rf"{format.name} go from 0 to 2\^{format.bits} - 1"):
            decode([0, pattern], format)
    for wrong in ([1.0], ["1"], [True, 1.5]):
        with pytest.raises(ArgumentError, match="bit patterns are integers"):
            decode(wrong, format)


def test_nan_takes_the_pattern_asked_for():
    for format, pattern in ((FP16, 0x7E00), (FP32, 0xFFC00000), (E4M3, 0xFF), (FP64, 0x7FF8000000000001)):
        found = encode([1.0, math.nan], format, nan=pattern)
        assert int(found[1]) == pattern and decode(found[:1], format)[0] == 1.0
    for pattern in (0x3C00, 0x7C00, 0x17E00, -1):
        with pytest.raises(ArgumentError, match=r"is no NaN of fp16; pass the bits of one, or None"):
            encode([math.nan], FP16, nan=pattern)


@pytest.mark.parametrize("format", [FP16, BF16, E5M2, E4M3, E3M2, E2M1, E4M3FNUZ, E5M2FNUZ], ids=named)
def test_patterns_of_nan(format):
    values = decode(np.arange(patterns_of(format)), format)
    assert [is_nan(pattern, format) for pattern in range(patterns_of(format))] == np.isnan(values).tolist()
    assert not is_nan(patterns_of(format), format) and not is_nan(-1, format)


def test_storage_is_the_smallest_word():
    sizes = {E2M1: 1, E3M2: 1, E4M3: 1, INT4: 1, FP16: 2, BF16: 2, Integer(9): 2, TF32: 4, FP32: 4, INT32: 4, FP64: 8}
    for format, size in sizes.items():
        assert storage(format) == np.dtype(f"u{size}")


def test_shapes_are_kept():
    values = decode(np.arange(12).reshape(3, 4), E2M3)
    assert values.shape == (3, 4) and (encode(values, E2M3) == np.arange(12).reshape(3, 4)).all()
    assert decode(5, E2M3).shape == () and encode(1.0, FP64).shape == () and foreign(1.0, FP64).shape == ()
    assert decode([], FP16).shape == (0,) and encode([], FP16).dtype == np.uint16
