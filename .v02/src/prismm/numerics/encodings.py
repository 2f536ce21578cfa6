"""Bit patterns and values: the encodings of every format in `prismm.formats`, exactly, both ways.

A pattern stands in the low bits of an unsigned integer, sign first, then exponent, then fraction; integers are in two's
complement. Values are float64, which holds every one of them (a NaN's payload it does not: see `encode`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prismm.errors import ArgumentError
from prismm.formats import FP32, FP64, Format, Integer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

__all__ = ["canonical_nan", "decode", "encode", "foreign", "is_nan", "patterns_of", "storage"]


def storage(format: Format | Integer) -> np.dtype[Any]:
    """The smallest unsigned NumPy type that holds a pattern.

    >>> from prismm.formats import E4M3, TF32
    >>> storage(E4M3).name, storage(TF32).name
    ('uint8', 'uint32')
    """
    import numpy as np

    return np.dtype(
        next(t for t in (np.uint8, np.uint16, np.uint32, np.uint64) if np.dtype(t).itemsize * 8 >= format.bits)
    )


def patterns_of(format: Format | Integer) -> int:
    """How many bit patterns there are, 2^bits."""
    return 1 << format.bits


def canonical_nan(format: Format) -> int:
    """A quiet NaN of the format: sign clear, all other bits set but in "fnuz" formats, whose one NaN is 10…0.

    >>> from prismm.formats import FP16, FP32
    >>> hex(canonical_nan(FP16)), hex(canonical_nan(FP32))
    ('0x7fff', '0x7fffffff')
    """
    if not format.has_nan:
        raise ArgumentError(f"{format.name or format} has no NaN")
    sign = 1 << (format.bits - 1)
    return sign if format.specials == "fnuz" else sign - 1


def is_nan(pattern: int, format: Format) -> bool:
    """Whether these are the bits of a NaN of the format.

    >>> from prismm.formats import E4M3, FP16
    >>> is_nan(0xFE00, FP16), is_nan(0xFC00, FP16), is_nan(0x17E00, FP16), is_nan(0xFF, E4M3)
    (True, False, False, True)
    """
    sign = 1 << (format.bits - 1)
    if not format.has_nan or pattern >> format.bits:
        return False
    if format.specials == "fnuz":
        return pattern == sign
    largest = ((1 << format.exponent_bits) - 1) << format.fraction_bits if format.has_infinity else sign - 2
    return pattern & (sign - 1) > largest


def decode(bits: ArrayLike, format: Format | Integer) -> NDArray[np.float64]:
    """The values of bit patterns.

    Args:
        bits: integers, of any shape, 0 <= bits < 2^format.bits.
        format: what they encode.

    Raises:
        ArgumentError: for patterns outside the format.

    >>> from prismm.formats import E4M3, FP16, INT8
    >>> decode([0x3C00, 0x0001, 0xFC00], FP16).tolist()
    [1.0, 5.960464477539063e-08, -inf]
    >>> decode([0x7E, 0x7F], E4M3).tolist(), decode([0xFF], INT8).tolist()
    ([448.0, nan], [-1.0])
    """
    import numpy as np

    patterns = np.asarray(bits)
    if patterns.dtype.kind not in "iu" and patterns.size:
        raise ArgumentError(f"bit patterns are integers, not {patterns.dtype}")
    if patterns.size and (int(patterns.min()) < 0 or int(patterns.max()) >> format.bits):
        raise ArgumentError(f"bit patterns of {format.name or format} go from 0 to 2^{format.bits} - 1")
    if format == FP64:
        return patterns.astype(np.uint64).view(np.float64)
    x = patterns.astype(np.int64)
    if isinstance(format, Integer):
        signed = np.where(x >> (format.bits - 1) & 1, x - (1 << format.bits), x) if format.signed else x
        return signed.astype(np.float64)
    if format == FP32:
        with np.errstate(invalid="ignore"):  # signalling NaNs
            return x.astype(np.uint32).view(np.float32).astype(np.float64)
    top = (1 << format.exponent_bits) - 1
    exponent = x >> format.fraction_bits & top
    fraction = x & ((1 << format.fraction_bits) - 1)
    significand = fraction + ((exponent > 0).astype(np.int64) << format.fraction_bits)
    with np.errstate(over="ignore"):  # codes of infinities and NaN
        size = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - format.bias - format.fraction_bits)
    if format.specials == "ieee":
        size = np.where(exponent == top, np.where(fraction == 0, np.inf, np.nan), size)
    elif format.specials == "fn":
        size = np.where(x & ((1 << (format.bits - 1)) - 1) == (1 << (format.bits - 1)) - 1, np.nan, size)
    value = np.where(x >> (format.bits - 1) & 1, -size, size)
    if format.specials == "fnuz":
        value = np.where(x == 1 << (format.bits - 1), np.nan, value)
    return np.asarray(value, np.float64)


def foreign(values: ArrayLike, format: Format | Integer) -> NDArray[np.bool_]:
    """Which values the format does not have. Negative zero counts as zero where there is none of its own.

    >>> from prismm.formats import BF16, INT8
    >>> foreign([1.0, 1 + 2.0**-8, float("inf")], BF16).tolist(), foreign([127, 128], INT8).tolist()
    ([False, True, False], [False, True])
    """
    import numpy as np

    x = np.asarray(values, np.float64)
    if isinstance(format, Integer):
        with np.errstate(invalid="ignore"):
            return np.asarray(~((x >= format.min) & (x <= format.max) & (np.rint(x) == x)))
    flat = x.reshape(-1)
    size = np.abs(flat)
    longer = flat.view(np.int64) & ((1 << (52 - format.fraction_bits)) - 1) != 0
    bad = longer | ~(size <= format.max)
    small = (size < format.smallest_normal) & ~bad
    if small.any():
        units = np.ldexp(size[small], -format.subnormal_exponent)
        bad[small] = units != np.rint(units)
    if format.has_infinity:
        bad &= ~np.isinf(flat)
    if format.has_nan:
        bad &= ~np.isnan(flat)
    return np.asarray(bad.reshape(x.shape))


def encode(values: ArrayLike, format: Format | Integer, nan: int | None = None) -> NDArray[Any]:
    """The bit patterns of values, in the type that `storage` names.

    Args:
        values: float64 (or what converts to it), each a value of the format.
        format: to encode in.
        nan: the pattern of NaN; None: `canonical_nan`.

    Raises:
        ArgumentError: for a value that the format does not have, as nothing is rounded; for a pattern that is no NaN.

    >>> from prismm.formats import E4M3, FP16, INT8
    >>> encode([1.0, -2.0**-24], FP16).tolist(), encode([-1], INT8).tolist(), hex(encode(float("nan"), E4M3))
    ([15360, 32769], [255], '0x7f')
    """
    import numpy as np

    x = np.asarray(values, np.float64)
    bad = foreign(x, format)
    if bad.any():
        raise ArgumentError(
            f"{int(bad.sum())} of {bad.size} values are none of {format.name or format}, first "
            f"{float(x[bad].flat[0])!r}; round them first"
        )
    kind = storage(format)
    if isinstance(format, Integer):
        return (x.astype(np.int64) & ((1 << format.bits) - 1)).astype(kind)
    if nan is not None and not is_nan(nan, format):
        raise ArgumentError(f"nan={nan:#x} is no NaN of {format.name or format}; pass the bits of one, or None")
    missing = np.isnan(x)
    if format == FP64:
        found = np.array(x, order="C").view(np.uint64)
    else:
        finite = np.where(np.isfinite(x), np.abs(x), 0.0)
        binade = np.maximum(np.frexp(finite)[1] - 1, format.minexp)
        units = np.ldexp(finite, format.fraction_bits - binade).astype(np.int64)
        # A significand's leading one, where it has one, raises the exponent field of a subnormal by one.
        pattern = units + ((binade - format.minexp) << format.fraction_bits)
        pattern = np.where(finite == 0.0, 0, pattern)
        pattern = np.where(np.isinf(x), ((1 << format.exponent_bits) - 1) << format.fraction_bits, pattern)
        negative = np.signbit(x) & ~((x == 0.0) & (format.specials == "fnuz"))
        found = (pattern + (negative.astype(np.int64) << (format.bits - 1))).astype(np.uint64)
    if missing.any():
        found = np.where(missing, np.uint64(canonical_nan(format) if nan is None else nan), found)
    return found.astype(kind)
