"""Discs of complex numbers with rational centres and radii: products, exponentials, reciprocals of long products."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

BITS = 400
"""Of numbers in an exponential's sum."""

DIGITS = 512
"""Bits of the larger part to which products are truncated."""


@dataclass(frozen=True)
class Disc:
    """All z with |z - real - i·imag| <= radius.

    >>> one = Disc(Fraction(1), Fraction(0), Fraction(1, 8))
    >>> one.times(one).radius
    Fraction(17, 64)
    """

    real: Fraction
    imag: Fraction
    radius: Fraction

    @property
    def size(self) -> Fraction:
        """At least the centre's absolute value."""
        return abs(self.real) + abs(self.imag)

    def times(self, other: Disc) -> Disc:
        """A disc of all products: |zw - cd| <= |c|·s + |d|·r + r·s, of centres c, d and radii r, s."""
        return Disc(
            self.real * other.real - self.imag * other.imag, self.real * other.imag + self.imag * other.real,
            self.size * other.radius + other.size * self.radius + self.radius * other.radius,
        )  # fmt: skip


def exponential(real: Fraction, imag: Fraction, slack: Fraction) -> Disc:
    """exp(t + d) for t = real + i·imag, |t| <= 2^-8, and all |d| <= slack <= 2^-8.

    The centre is 16 terms of Taylor's sum for exp(t), of t truncated to 2^-400. Each truncation errs by less than 2
    units in the last place, and is made smaller by the factors that follow; the terms left out are at most
    2·|t|^16/16!. And |exp(t)| <= 1 + 2^-7, |exp(d) - 1| <= slack·(1 + 2^-7).
    """
    x, y = int(real * 2**BITS), int(imag * 2**BITS)
    total, term = [0, 0], [2**BITS, 0]
    for k in range(1, 17):
        total = [total[0] + term[0], total[1] + term[1]]
        product = term[0] * x - term[1] * y, term[0] * y + term[1] * x
        term = [(part >> BITS) // k for part in product]
    rest = 2 * (abs(real) + abs(imag)) ** 16 / math.factorial(16) + Fraction(1, 2 ** (BITS - 10))
    unit = Fraction(1, 2**BITS)
    return Disc(total[0] * unit, total[1] * unit, rest + slack * (1 + Fraction(1, 32)))


class LongProduct:
    """A product of float64 or complex128 numbers as (real + i·imag)·2^exponent, truncated.

    A truncation that leaves DIGITS bits errs by less than √2 units, relatively by d < 2^(1.5-DIGITS). After `count` of
    them P/exact is in 1 ± ((1+d)^count - 1), at most count·2d <= count·2^(3-DIGITS) off 1.
    """

    def __init__(self) -> None:
        self.real, self.imag, self.exponent, self.count = 1, 0, 0, 0

    def multiply(self, z: complex) -> None:
        """Times z."""
        (x, e), (y, f) = _integer(z.real), _integer(z.imag)
        least = min(e, f)
        x, y = x << (e - least), y << (f - least)
        self.real, self.imag = self.real * x - self.imag * y, self.real * y + self.imag * x
        surplus = max(0, max(self.real.bit_length(), self.imag.bit_length()) - DIGITS)
        self.real >>= surplus
        self.imag >>= surplus
        self.exponent += least + surplus
        self.count += 1

    @property
    def zero(self) -> bool:
        """Whether a factor is 0."""
        return not (self.real or self.imag)

    def reciprocal(self) -> tuple[Disc, int]:
        """(disc, e): the reciprocal of the exact product, which is not 0, is in disc·2^e: 1/exact = (P/exact)/P."""
        norm = self.real**2 + self.imag**2
        centre = Disc(Fraction(self.real, norm), Fraction(-self.imag, norm), Fraction(0))
        one = Disc(Fraction(1), Fraction(0), Fraction(self.count, 2 ** (DIGITS - 3)))
        return centre.times(one), -self.exponent


def _integer(x: float) -> tuple[int, int]:
    """(integer, e) with x = integer·2^e; e is 0 for 0."""
    mantissa, e = math.frexp(x)
    return (int(mantissa * 2.0**53), e - 53) if x else (0, 0)
