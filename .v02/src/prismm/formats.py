"""Number formats as data, and one exact rounding that specifies all of them.

A floating-point format is a frozen value, never a class of its own: sign, ``exponent_bits``, ``fraction_bits``,
gradual underflow, and what its highest codes mean (``specials``): infinities and NaN as IEEE 754 has them, or less,
as the 8-bit and narrower formats of matrix engines do. Derived quantities are properties, named after
``numpy.finfo`` where that has a name. Formats wider than float64 are not described here.

This module imports nothing heavy; `format_of` knows array libraries' element types by their names.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import copysign, frexp, inf, isfinite, ldexp
from typing import Any, Literal

from prismm.errors import ArgumentError, DTypeError

__all__ = [
    "BF16",
    "E2M1",
    "E2M3",
    "E3M2",
    "E4M3",
    "E4M3FNUZ",
    "E5M2",
    "E5M2FNUZ",
    "FP16",
    "FP32",
    "FP64",
    "INT4",
    "INT8",
    "INT32",
    "TF32",
    "UINT8",
    "Format",
    "Integer",
    "Rounding",
    "format_named",
    "format_of",
    "round_fraction",
]

Rounding = Literal["nearest", "down", "up"]
"""To nearest with ties to even; toward minus infinity; toward plus infinity."""

Specials = Literal["ieee", "fn", "finite", "fnuz"]
"""What the highest exponent and negative zero encode: IEEE 754's infinities and NaN; numbers, and NaN where all bits
are ones ("fn", OCP E4M3); numbers only (OCP FP6, FP4); numbers only, and NaN instead of -0 ("fnuz", with an exponent
bias larger by one)."""


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with subnormals, no wider than float64.

    Args:
        exponent_bits: width of the exponent field, 2 to 11.
        fraction_bits: stored bits of the significand, without the leading one, 1 to 52.
        name: what it is called in print; formats of different names are different.
        specials: which codes are no finite numbers.

    Raises:
        ArgumentError: for widths outside these ranges, or unknown specials.

    >>> from prismm.formats import FP32, Format
    >>> FP32.precision, FP32.max, FP32.smallest_subnormal == 2.0**-149
    (24, 3.4028234663852886e+38, True)
    >>> Format(exponent_bits=5, fraction_bits=2, name="e5m2").max
    57344.0
    >>> Format(exponent_bits=4, fraction_bits=3, specials="fn").max
    448.0
    """

    exponent_bits: int
    fraction_bits: int
    name: str = ""
    specials: Specials = "ieee"

    def __post_init__(self) -> None:
        for what, low, bits, high in (
            ("exponent_bits", 2, self.exponent_bits, 11),
            ("fraction_bits", 1, self.fraction_bits, 52),
        ):
            if isinstance(bits, bool) or not isinstance(bits, int) or not low <= bits <= high:
                raise ArgumentError(f"{what}={bits!r} is no format within float64; pass {what} from {low} to {high}")
        if self.specials not in ("ieee", "fn", "finite", "fnuz"):
            raise ArgumentError(f"specials={self.specials!r} is unknown; pass 'ieee', 'fn', 'finite' or 'fnuz'")
        if self.specials != "ieee" and self.exponent_bits > 8:
            raise ArgumentError(f"specials={self.specials!r} is for narrow formats; pass exponent_bits up to 8")

    @property
    def bits(self) -> int:
        """Width of the format in bits, sign included."""
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def precision(self) -> int:
        """p, the bits of the significand with the leading one (``numpy.finfo``: decimal digits)."""
        return self.fraction_bits + 1

    @property
    def unit_roundoff(self) -> float:
        """u = 2^-p: the largest relative error of rounding to nearest, away from underflow."""
        return ldexp(1.0, -self.precision)

    @property
    def eps(self) -> float:
        """Distance from 1 to the next larger value, 2u."""
        return ldexp(1.0, -self.fraction_bits)

    @cached_property
    def bias(self) -> int:
        """What is subtracted from the exponent field of a normal value."""
        return (1 << (self.exponent_bits - 1)) - (self.specials != "fnuz")

    @cached_property
    def maxexp(self) -> int:
        """The smallest power of two that overflows is 2^maxexp."""
        return (1 << self.exponent_bits) - self.bias - (self.specials == "ieee")

    @cached_property
    def minexp(self) -> int:
        """The smallest normal value is 2^minexp."""
        return 1 - self.bias

    @cached_property
    def subnormal_exponent(self) -> int:
        """η = 2^subnormal_exponent, of which every finite value is a multiple."""
        return self.minexp - self.fraction_bits

    @cached_property
    def max(self) -> float:
        """Largest finite value."""
        significand = (1 << self.precision) - 1 - (self.specials == "fn")  # the last code is NaN
        return ldexp(float(significand), self.maxexp - self.precision)

    @property
    def has_infinity(self) -> bool:
        """Whether it encodes infinities."""
        return self.specials == "ieee"

    @property
    def has_nan(self) -> bool:
        """Whether it encodes NaN."""
        return self.specials != "finite"

    @property
    def smallest_normal(self) -> float:
        """Smallest positive value with a full significand."""
        return ldexp(1.0, self.minexp)

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive value, η."""
        return ldexp(1.0, self.subnormal_exponent)

    def ulp_exponent(self, value: float) -> int:
        """Exponent of the unit in the last place of the binade of ``value``; of η, if below it.

        Args:
            value: finite; only its binade matters, so it need not belong to the format.

        Raises:
            ArgumentError: if ``value`` is not finite.

        >>> from prismm.formats import FP64
        >>> FP64.ulp_exponent(1.5), FP64.ulp_exponent(0.0)
        (-52, -1074)
        """
        if not isfinite(value):
            raise ArgumentError(f"{value} has no unit in the last place; pass a finite value")
        binade = frexp(value)[1] - 1 if value else self.minexp
        return max(binade, self.minexp) - self.fraction_bits


FP64 = Format(exponent_bits=11, fraction_bits=52, name="fp64")
FP32 = Format(exponent_bits=8, fraction_bits=23, name="fp32")
TF32 = Format(exponent_bits=8, fraction_bits=10, name="tf32")
BF16 = Format(exponent_bits=8, fraction_bits=7, name="bf16")
FP16 = Format(exponent_bits=5, fraction_bits=10, name="fp16")
E5M2 = Format(exponent_bits=5, fraction_bits=2, name="e5m2")
E4M3 = Format(exponent_bits=4, fraction_bits=3, name="e4m3", specials="fn")
E3M2 = Format(exponent_bits=3, fraction_bits=2, name="e3m2", specials="finite")
E2M3 = Format(exponent_bits=2, fraction_bits=3, name="e2m3", specials="finite")
E2M1 = Format(exponent_bits=2, fraction_bits=1, name="e2m1", specials="finite")
E5M2FNUZ = Format(exponent_bits=5, fraction_bits=2, name="e5m2fnuz", specials="fnuz")
E4M3FNUZ = Format(exponent_bits=4, fraction_bits=3, name="e4m3fnuz", specials="fnuz")


@dataclass(frozen=True)
class Integer:
    """Integers in two's complement, or unsigned ones.

    Args:
        bits: width, 2 to 32.
        signed: whether there are negative ones.
        name: what it is called in print.

    Raises:
        ArgumentError: for a width outside this range, or a sign that is neither there nor absent.

    >>> from prismm.formats import INT8, UINT8
    >>> INT8.min, INT8.max, UINT8.max
    (-128, 127, 255)
    """

    bits: int
    signed: bool = True
    name: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.bits, bool) or not isinstance(self.bits, int) or not 2 <= self.bits <= 32:
            raise ArgumentError(f"bits={self.bits!r} is no integer format known here; pass bits from 2 to 32")
        if not isinstance(self.signed, bool):
            raise ArgumentError(f"signed={self.signed!r}; pass True or False")

    @property
    def min(self) -> int:
        """Smallest value."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def max(self) -> int:
        """Largest value."""
        return (1 << (self.bits - self.signed)) - 1


INT4 = Integer(4, name="int4")
INT8 = Integer(8, name="int8")
UINT8 = Integer(8, signed=False, name="uint8")
INT32 = Integer(32, name="int32")

_NAMED: dict[str, Format | Integer] = {
    f.name: f
    for f in (
        *(FP64, FP32, TF32, BF16, FP16, E5M2, E4M3, E3M2, E2M3, E2M1, E5M2FNUZ, E4M3FNUZ),
        *(INT4, INT8, UINT8, INT32),
    )
}


def format_named(name: str) -> Format | Integer:
    """The number format of this name.

    Raises:
        ArgumentError: for an unknown name, with those there are.

    >>> from prismm.formats import format_named
    >>> format_named("e4m3").max, format_named("int8").max
    (448.0, 127)
    """
    found = _NAMED.get(name) if isinstance(name, str) else None
    if found is None:
        raise ArgumentError(f"unknown format {name!r}; pass one of {', '.join(_NAMED)}")
    return found


_BY_DTYPE_NAME = {
    "float64": FP64,
    "float": FP64,
    "complex128": FP64,
    "complex": FP64,
    "float32": FP32,
    "complex64": FP32,
    "float16": FP16,
    "bfloat16": BF16,
}


def format_of(dtype: Any) -> Format:
    """The format of an element type; of one part, if complex.

    Args:
        dtype: a NumPy dtype, scalar type or name, a torch dtype, or ``float`` or ``complex``.

    Raises:
        DTypeError: if it is no floating-point type that is described here.

    >>> import numpy as np
    >>> from prismm.formats import format_of
    >>> format_of(np.complex64).name, format_of("float64").name
    ('fp32', 'fp64')
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if name is None:
        name = getattr(dtype, "__name__", None) or str(dtype)
    found = _BY_DTYPE_NAME.get(str(name).removeprefix("torch."))
    if found is None and isinstance(dtype, str):
        import numpy as np

        try:
            found = _BY_DTYPE_NAME.get(np.dtype(dtype).name)  # "f8", "<c16" and their like
        except TypeError:
            found = None
    if found is None:
        raise DTypeError(
            f"{dtype!r} is no floating-point type known here; pass float64, float32, float16, "
            "bfloat16, complex128 or complex64"
        )
    return found


def round_fraction(format: Format, numerator: int, exponent: int, rounding: Rounding = "nearest") -> float:
    """Round the exact number numerator * 2^exponent once, to a value of ``format``.

    This is the readable specification that vectorised code is compared with.

    Args:
        format: the format of the result.
        numerator: any integer.
        exponent: any integer.
        rounding: "nearest" (ties to even), "down" (toward minus infinity) or "up" (toward plus
            infinity).

    Returns:
        A float that belongs to the format. To nearest, magnitudes from max + ulp/2 on become
        infinite; directed roundings overflow to infinity or to max, by their direction. Formats
        without infinities end at max. What underflows to zero keeps its sign (but "fnuz" has no
        -0); an exact zero is +0.0.

    Raises:
        ArgumentError: for an unknown ``rounding``.

    >>> from prismm.formats import FP32, round_fraction
    >>> round_fraction(FP32, 2**24 + 1, 0), round_fraction(FP32, 2**24 + 3, 0)
    (16777216.0, 16777220.0)
    >>> round_fraction(FP32, 1, -150), round_fraction(FP32, 1, -150, "up") == 2.0**-149
    (0.0, True)
    """
    if rounding not in ("nearest", "down", "up"):
        raise ArgumentError(f"rounding={rounding!r} is unknown; pass 'nearest', 'down' or 'up'")
    if numerator == 0:
        return 0.0
    sign = -1.0 if numerator < 0 else 1.0
    magnitude = abs(numerator)
    outward = rounding == ("down" if numerator < 0 else "up")
    binade = magnitude.bit_length() + exponent - 1  # 2^binade <= |value| < 2^(binade+1)
    largest = format.max
    beyond = inf if format.has_infinity else largest
    if binade >= format.maxexp:
        return sign * (beyond if outward or rounding == "nearest" else largest)
    quantum = max(binade - format.fraction_bits, format.subnormal_exponent)
    if binade < quantum - 1:  # below a quarter of the spacing: too small to be worth a shift
        quotient = int(outward)
    else:
        shift = quantum - exponent
        if shift <= 0:
            quotient = magnitude << -shift
        else:
            quotient = magnitude >> shift
            rest = magnitude - (quotient << shift)
            half = 1 << (shift - 1)
            if rounding == "nearest":
                quotient += rest > half or (rest == half and quotient & 1)
            else:
                quotient += outward and rest > 0
    if quotient.bit_length() + quantum > format.maxexp:
        return sign * beyond
    value = min(ldexp(float(quotient), quantum), largest)  # quotient <= 2^p <= 2^53: exact
    return value if value == 0.0 and format.specials == "fnuz" else copysign(value, sign)
