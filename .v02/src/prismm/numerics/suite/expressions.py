"""Inputs of tests as exact expressions: "1-2^-24", "0.5*2^-24"; and products of two of them: "1-2^-11 * 2^-11"."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache

from prismm.errors import ArgumentError

__all__ = ["factors", "minus", "power", "value"]

_FACTOR = r"\d+(?:\.\d+)?(?:\^-?\d+)?"
_TERM = re.compile(rf"[+-]?{_FACTOR}(?:\*{_FACTOR})*")


def _terms(text: str) -> list[str]:
    found = _TERM.findall(text)
    if not found or "".join(found) != text:
        raise ArgumentError(f"{text!r} is no expression; write sums of terms such as 3*2^-24")
    return found


@cache
def value(text: str) -> Fraction:
    """What an expression stands for.

    >>> value("1-2^-24") == 1 - Fraction(1, 2**24), value("-0.5*2^3")
    (True, Fraction(-4, 1))
    """
    total = Fraction(0)
    for term in _terms(text):
        product = Fraction(-1 if term.startswith("-") else 1)
        for factor in term.lstrip("+-").split("*"):
            base, _, exponent = factor.partition("^")
            product *= Fraction(base) ** int(exponent or 1)
        total += product
    return total


@cache
def minus(text: str) -> str:
    """The expression of the opposite number.

    >>> minus("1-2^-24"), minus("-2"), minus("0")
    ('-1+2^-24', '2', '0')
    """
    flipped = "".join("+" + term[1:] if term.startswith("-") else "-" + term.lstrip("+") for term in _terms(text))
    return "0" if text == "0" else flipped.removeprefix("+")


@cache
def factors(product: str) -> tuple[str, str]:
    """The two expressions of a product; "0" stands for an empty place.

    >>> factors("1-2^-11 * 2^-11"), factors("0")
    (('1-2^-11', '2^-11'), ('0', '0'))
    """
    if product == "0":
        return "0", "0"
    a, by, b = product.partition(" * ")
    if not by:
        raise ArgumentError(f"{product!r} is no product; write a * b")
    return a, b


def power(exponent: int) -> str:
    """2^exponent as a product of powers that are as near to each other as can be, for formats of little range.

    >>> power(-30), power(3)
    ('2^-15 * 2^-15', '2^1 * 2^2')
    """
    return f"2^{exponent // 2} * 2^{exponent - exponent // 2}"
