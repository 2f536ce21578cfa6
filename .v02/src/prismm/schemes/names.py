"""Schemes by name, as command lines and policies write them: ``words:tf32x3``, ``residues:12``, ``slices:int8:dp``."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import Any

from prismm.errors import ArgumentError, PrismmError, meant

EXAMPLES = (
    "auto", "native", "native:float32", "native:float64", "residues", "residues:15", "words:tf32x3", "words:tf32x6",
    "words:bf16x6", "words:bf16x9", "words:fp16x3", "words:tf64x3", "scaled-half", "tile-int8", "tile-int8:3",
    "slices", "slices:int8:dp", "slices:fp16:dp", "slices:int8:sp", "slices:int8:cr",
)  # fmt: skip
"""Names to complete, and to tell what was meant."""


def scheme_of(scheme: Any) -> Any:
    """The scheme that a ``scheme=`` argument stands for: a name is parsed, anything else stays as it is.

    Raises:
        ArgumentError: for a name that stands for none.

    >>> scheme_of("residues:15"), scheme_of(None)
    (Residues(moduli=15), None)
    """
    return _parsed(str(scheme)) if isinstance(scheme, str) else scheme


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    return parse_scheme(text)


def parse_scheme(text: str | None) -> Any:
    """A scheme by its name and parameters; None for None.

    Args:
        text: auto, native, residues or residues:N with N moduli, words:FORMATxN with N products, scaled-half,
            tile-int8:LEVEL, or slices:UNIT:MODE (a unit such as int8; dp, sp, cr, or a number of slices).

    Raises:
        ArgumentError: for anything else.

    >>> parse_scheme("words:bf16x6"), parse_scheme("residues:12")
    (Words(bf16, words=3, products=6), Residues(moduli=12))
    """
    if text is None:
        return None
    import prismm

    name = text.lower()
    if name == "auto":
        return prismm.Auto()
    if match := re.fullmatch(r"native(?::(float32|float64))?", name):
        return prismm.Native(match[1])  # type: ignore[arg-type]
    if name == "residues":
        return prismm.Residues()
    if match := re.fullmatch(r"residues:(\d+)", name):
        return prismm.Residues(moduli=int(match[1]))
    if match := re.fullmatch(r"words:(tf32|bf16|fp16|tf64)(?:x(\d+))?", name):
        make = getattr(prismm.Words, match[1])
        return make(int(match[2])) if match[2] else make()
    if name == "scaled-half":
        return prismm.ScaledHalf()
    if match := re.fullmatch(r"tile-int8(?::(\d))?", name):
        return prismm.TileInt8(level=int(match[1])) if match[1] else prismm.TileInt8()
    if match := re.fullmatch(r"slices(?::([a-z0-9-]+?))?(?::(dp|sp|cr|\d+))?", name):
        chosen: dict[str, Any] = {"unit": match[1]} if match[1] else {}
        if match[2]:
            chosen |= {"slices": int(match[2])} if match[2].isdigit() else {"mode": match[2].upper()}
        return prismm.Slices(**chosen)
    raise ArgumentError(
        f"scheme {text!r}{meant(text, EXAMPLES)}; pass auto, native, residues or residues:N, words:tf32x3, "
        f"scaled-half, tile-int8 or slices:int8:dp"
    )


@functools.lru_cache(maxsize=256)
def scheme_name(scheme: Any) -> str | None:
    """The name that `parse_scheme` reads as this scheme, or None where it has parameters that names do not say.

    >>> import prismm
    >>> scheme_name(prismm.Words.tf32(3)), scheme_name(prismm.Slices("int8", slices=9))
    ('words:tf32x3', 'slices:int8:9')
    >>> scheme_name(prismm.ScaledHalf(sb=11)) is None
    True
    """
    for name in _names(scheme):
        with contextlib.suppress(PrismmError):
            if parse_scheme(name) == scheme:
                return name
    return None


def _names(scheme: Any) -> Iterator[str]:
    """Names that could be the scheme's."""
    import prismm

    yield from ("auto", "native", "native:float32", "native:float64", "scaled-half")
    if isinstance(scheme, prismm.Residues):
        yield f"residues:{scheme.moduli}"
    elif isinstance(scheme, prismm.TileInt8):
        yield f"tile-int8:{scheme.level}"
    elif isinstance(scheme, prismm.Words):
        yield from (f"words:{kind}x{scheme.products}" for kind in ("tf32", "bf16", "fp16", "tf64"))
    elif isinstance(scheme, prismm.Slices):
        yield f"slices:{scheme.unit}:{scheme.slices or scheme.mode.lower()}"
