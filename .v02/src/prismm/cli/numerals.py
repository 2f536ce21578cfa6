"""Numbers as people write them, 2^-12 or 0x1.8p3, exactly; and exact numbers for people to read."""

from __future__ import annotations

import math
import re
from decimal import Context, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

from prismm.errors import ArgumentError
from prismm.numerics.rationals import binade

if TYPE_CHECKING:
    from prismm.formats import Format, Integer

_HEX = r"0[xX][0-9a-fA-F]*\.?[0-9a-fA-F]*(?:[pP][+-]?\d+)?"
_DECIMAL = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_TOKEN = re.compile(rf"\s*(?:(?P<number>{_HEX}|{_DECIMAL})|(?P<power>\^\s*[+-]?\d+)|(?P<sign>[-+*]))")
_LONGEST = 400  # characters of one number
_FAR = 2200  # beyond every exponent of a product of two float64
_HOW = "write decimals, hex floats such as 0x1.8p3, 2^-12, -3*2^5, 1+2^-10, inf or nan"


def parse_number(text: str) -> Fraction | float:
    """The number that a text means: exact, or as a float -0.0, an infinity or NaN.

    Decimals mean what they mean in Python, the nearest float64. Nothing is evaluated: the grammar is sums of
    products of powers.

    Raises:
        ArgumentError: for anything else.

    >>> parse_number("-3*2^5"), parse_number("1+2^-10") == 1 + Fraction(1, 1024), parse_number("0x1.8p1")
    (Fraction(-96, 1), True, Fraction(3, 1))
    >>> parse_number("-0"), parse_number("-inf"), parse_number("0.1") == Fraction(0.1)
    (-0.0, -inf, True)
    """
    plain = text.strip().replace("−", "-")
    if special := re.fullmatch(r"([+-]?)\s*(inf|infinity|nan)", plain, re.IGNORECASE):
        value = math.nan if special[2].lower() == "nan" else math.inf
        return -value if special[1] == "-" else value
    if len(plain) > _LONGEST:
        raise ArgumentError(f"a number of {len(plain)} characters; {_HOW}")
    found = _sum(text, _tokens(text, plain))
    return -0.0 if found == 0 and plain.startswith("-") and not re.search(r"[1-9]", plain) else found


def parse_numbers(text: str) -> list[Fraction | float]:
    """Numbers between commas.

    >>> parse_numbers("1, 2^-1")
    [Fraction(1, 1), Fraction(1, 2)]
    """
    return [parse_number(part) for part in text.rstrip().removesuffix(",").split(",")]


def _tokens(text: str, plain: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    place = 0
    while place < len(plain):
        match = _TOKEN.match(plain, place)
        if match is None:
            raise ArgumentError(f"{text.strip()!r} is no number; {_HOW}")
        found.append((str(match.lastgroup), match[str(match.lastgroup)]))
        place = match.end()
    return found


def _sum(text: str, tokens: list[tuple[str, str]]) -> Fraction:
    """sign? product (sign product)*, where a product is factor (* sign? factor)*."""
    total, place = Fraction(0), 0
    no_number = ArgumentError(f"{text.strip()!r} is no number; {_HOW}")
    while place < len(tokens) or place == 0:
        sign = Fraction(1)
        if place < len(tokens) and tokens[place][1] in "+-":
            sign, place = Fraction(-1 if tokens[place][1] == "-" else 1), place + 1
        elif place:
            raise no_number
        product, place = _factor(text, tokens, place, no_number)
        while place < len(tokens) and tokens[place][1] == "*":
            place += 1
            if place < len(tokens) and tokens[place][1] in "+-":
                sign, place = -sign if tokens[place][1] == "-" else sign, place + 1
            other, place = _factor(text, tokens, place, no_number)
            product *= other
        total += sign * product
    return total


def _factor(text: str, tokens: list[tuple[str, str]], place: int, no_number: ArgumentError) -> tuple[Fraction, int]:
    """number (^ exponent)?"""
    if place >= len(tokens) or tokens[place][0] != "number":
        raise no_number
    written = tokens[place][1]
    too_large = ArgumentError(f"{text.strip()!r} is beyond float64; pass 0 or numbers from 2^-1074 to below 2^1024")
    try:
        value = float.fromhex(written) if written[:2] in ("0x", "0X") else float(written)
    except OverflowError:
        raise too_large from None
    except ValueError:
        raise no_number from None
    if math.isinf(value) or (value == 0.0 and re.search(r"[1-9a-fA-F]", re.split(r"[eEpP]", written.lstrip("0xX"))[0])):
        raise too_large
    exact, place = Fraction(value), place + 1
    if place < len(tokens) and tokens[place][0] == "power":
        exponent = int(tokens[place][1][1:].replace(" ", "")) if len(tokens[place][1]) < 12 else _FAR + 1
        if exact == 0 and exponent < 0:
            raise no_number
        if abs(exponent) > _FAR or abs(exponent) * exact.numerator.bit_length() > 4 * _FAR:
            raise too_large
        exact, place = exact**exponent, place + 1
        if exact.denominator & (exact.denominator - 1):
            raise ArgumentError(f"{text.strip()!r} is no binary fraction; raise powers of two to negative exponents")
    return exact, place


def in_format(value: Fraction | float, format: Format | Integer, what: str, rounded: bool = False) -> float:
    """A number as a value of a format.

    Args:
        value: as `parse_number` gives it.
        format: to which it shall belong.
        what: it is, for the error: "a[3]".
        rounded: whether to round it to nearest, where it is none.

    Raises:
        ArgumentError: if it is no value of the format and is not to be rounded, or if the format lacks its kind.

    >>> from prismm.formats import FP16
    >>> in_format(Fraction(1, 3 * 2**0 + 1), FP16, "a[0]"), in_format(Fraction(2049), FP16, "a[0]", rounded=True)
    (0.25, 2048.0)
    """
    from prismm.formats import Format, round_fraction

    name = format.name or str(format)
    if isinstance(value, float) and value != 0.0:
        kinds = isinstance(format, Format) and (format.has_nan if math.isnan(value) else format.has_infinity)
        if not kinds:
            raise ArgumentError(f"{what}={value!r}: {name} has no {'NaN' if math.isnan(value) else 'infinity'}")
        return value
    if isinstance(value, float):
        if not isinstance(format, Format) or format.specials == "fnuz":
            return 0.0
        return value
    if isinstance(format, Format):
        nearest = round_fraction(format, value.numerator, 1 - value.denominator.bit_length())
    else:
        nearest = float(min(max(round(value), format.min), format.max))
    if not rounded and (math.isinf(nearest) or Fraction(nearest) != value):
        near = decimal(nearest)
        raise ArgumentError(
            f"{what}={decimal(value)} is no value of {name}; the nearest is {near}: pass that, or --round"
        )
    return nearest


def decimal(value: Fraction | float) -> str:
    """In decimal: shortest that is read back as the same float64, or "≈" before 17 digits where none is.

    >>> decimal(Fraction(1, 8)), decimal(-0.0), decimal(1 + Fraction(1, 2**60)), decimal(Fraction(2) ** 1030)
    ('0.125', '-0', '≈1', '≈1.1505236e+310')
    """
    if isinstance(value, float):
        return f"{value:.0f}" if value == 0.0 else _plain(value)
    try:
        near = float(value)
    except OverflowError:
        near = math.inf
    if math.isfinite(near) and Fraction(near) == value:
        return _plain(near)
    context = Context(prec=8)
    return f"≈{context.divide(Decimal(value.numerator), Decimal(value.denominator)).normalize(context):g}"


def _plain(value: float) -> str:
    text = repr(value)
    return text.removesuffix(".0")


def hexadecimal(value: Fraction | float) -> str:
    """As a hex float without needless zeros, of any exponent.

    >>> hexadecimal(Fraction(3, 8)), hexadecimal(-1.0), hexadecimal(Fraction(0)), hexadecimal(Fraction(1, 2**1080))
    ('0x1.8p-2', '-0x1p+0', '0x0p+0', '0x1p-1080')
    """
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if value == 0:
        return "-0x0p+0" if math.copysign(1.0, float(value)) < 0 else "0x0p+0"
    exact = Fraction(value)
    size = abs(exact)
    exponent = binade(size)
    scaled = size / Fraction(2) ** exponent - 1
    digits = ""
    while scaled:
        scaled *= 16
        digit = math.floor(scaled)
        digits += f"{digit:x}"
        scaled -= digit
    return f"{'-' if exact < 0 else ''}0x1{'.' if digits else ''}{digits}p{exponent:+d}"


def short(value: Fraction | float) -> str:
    """As short as it can be read exactly: a small decimal, an odd number times a power of two, or a hex float.

    >>> short(Fraction(-5, 8)), short(Fraction(3, 2**24)), short(2.0**100), short(1 + 2.0**-23), short(float("nan"))
    ('-0.625', '3*2^-24', '2^100', '1+2^-23', 'nan')
    >>> short(float.fromhex("0x1.23456p-3"))
    '0x1.23456p-3'
    """
    if value == 0 or (isinstance(value, float) and not math.isfinite(value)):
        return decimal(value)
    exact = Fraction(value)
    sign, size = ("-" if exact < 0 else ""), abs(exact)
    plain = decimal(exact)
    if len(plain.lstrip("-")) <= 6 and plain[0] != "≈" and "e" not in plain and Fraction(plain) == exact:
        return plain
    exponent = (size.numerator & -size.numerator).bit_length() - size.denominator.bit_length()
    odd = int(size / Fraction(2) ** exponent)
    if odd == 1:
        return f"{sign}2^{exponent}"
    if odd < 100:
        return f"{sign}{odd}*2^{exponent}"
    if exact.denominator == 1 and size < 10**10:
        return str(exact)
    top = binade(size)
    rest = size - Fraction(2) ** top
    if rest.numerator & (rest.numerator - 1) == 0:
        leading = short(Fraction(2) ** top)
        return f"{sign}{leading}{sign or '+'}2^{binade(rest)}"
    above = Fraction(2) ** (top + 1) - size
    if above.numerator & (above.numerator - 1) == 0:
        return f"{sign}{short(Fraction(2) ** (top + 1))}{'+' if sign else '-'}2^{binade(above)}"
    return hexadecimal(exact)


def pattern(value: float, format: Format | Integer, nan: int | None = None) -> str:
    """The bit pattern of a value of a format, in hexadecimal.

    >>> from prismm.formats import FP16, INT8
    >>> pattern(1.0, FP16), pattern(-1.0, INT8)
    ('0x3c00', '0xff')
    """
    from prismm.numerics.encodings import encode

    word = int(encode([value], format, nan)[0])
    return f"0x{word:0{-(-format.bits // 4)}x}"
