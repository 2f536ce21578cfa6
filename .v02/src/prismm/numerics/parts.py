"""Parts of an `EngineModel`: how it rounds, how an accumulator joins late, how blocks are scaled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from prismm.errors import ArgumentError
from prismm.formats import Format, Integer

__all__ = ["MODES", "SUBNORMALS", "BlockScale", "LateJoin", "Mode", "Model", "Subnormals", "within"]

Mode = Literal["nearest", "zero", "floor", "odd"]
"""To nearest with ties to even; toward zero; toward minus infinity; to odd (toward zero, then the last bit set where
anything was lost)."""

Subnormals = Literal["keep", "flush", "flush-to-positive"]
"""What happens to values below the smallest normal one: kept; zero of the same sign; +0."""

MODES: tuple[Mode, ...] = get_args(Mode)
SUBNORMALS: tuple[Subnormals, ...] = get_args(Subnormals)


class Model:
    """The type of `EngineModel`, by which code that a model calls itself tells one from anything else."""


@dataclass(frozen=True)
class LateJoin:
    """An accumulator that is aligned with the unrounded sum of the products (CDNA3).

    With E the larger of their exponents, the sum is cut to the floor at 2^(E - sum_bits) and the accumulator at
    2^(E - accumulator_bits), their sum is normalised, cut to the floor after `total_bits` fraction bits, and rounded.

    Args:
        sum_bits, accumulator_bits, total_bits: fraction bits, 8 to 60.
        cutoff: accumulators with exponents below E - cutoff count as zero; None: all take part.
    """

    sum_bits: int = 32
    accumulator_bits: int = 24
    total_bits: int = 31
    cutoff: int | None = None

    def __post_init__(self) -> None:
        for what in ("sum_bits", "accumulator_bits", "total_bits"):
            integer(what, getattr(self, what), 8, 60)
        integer("cutoff", self.cutoff, 1, 300, none=True)


@dataclass(frozen=True)
class BlockScale:
    """Scale factors, one for every `length` consecutive elements of a row of A or a column of B.

    Args:
        format: "ue8m0" (powers of two 2^-127 … 2^127, and NaN) or "ue4m3" (E4M3 without its sign).
        length: elements that share a factor, 1 to 256.
        summation: "terms": the factors' exponents are added to every product's; "groups": products of a group are
            added exactly, multiplied by their two factors, and are one term of the alignment.
    """

    format: Literal["ue8m0", "ue4m3"]
    length: int
    summation: Literal["terms", "groups"]

    def __post_init__(self) -> None:
        one_of("scale.format", self.format, ("ue8m0", "ue4m3"))
        one_of("scale.summation", self.summation, ("terms", "groups"))
        integer("scale.length", self.length, 1, 256)
        if self.format == "ue4m3" and self.summation == "terms":
            raise ArgumentError("scale.format='ue4m3' has significands, which only scale.summation='groups' multiplies")


def integer(what: str, value: object, low: int, high: int, none: bool = False) -> None:
    if none and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ArgumentError(f"{what}={value!r}; pass an integer from {low} to {high}{' or None' if none else ''}")


def text(what: str, value: object) -> None:
    """A string that can be printed and written."""
    if not isinstance(value, str):
        raise ArgumentError(f"{what}={value!r}; pass a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"{what}={value!r} has half of a surrogate pair; pass characters only") from None


def one_of(what: str, value: object, known: tuple[Any, ...]) -> None:
    if not isinstance(value, (str, type(None))) or value not in known:
        raise ArgumentError(f"{what}={value!r}; pass one of {', '.join(map(repr, known))}")


def within(inner: Format, outer: Format | Integer) -> bool:
    """Whether every value of `inner` is one of `outer`."""
    return (
        isinstance(outer, Format)
        and inner.fraction_bits <= outer.fraction_bits
        and inner.maxexp <= outer.maxexp
        and inner.subnormal_exponent >= outer.subnormal_exponent
    )
