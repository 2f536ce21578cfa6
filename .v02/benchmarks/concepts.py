"""What the pictures of docs/concepts.md show: a row's parts, the drift of truncating sums, certificates of entries.

Run: python benchmarks/concepts.py; writes results/concepts.csv. The values depend on no machine: everything is exact,
simulated bit for bit, or reproducible.

- *split*: six float32 numbers of one row, and which bits each part of four splits covers. The parts are added up
  again in exact arithmetic, and the difference from the number is checked against the covered bits.
- *drift*: sums of positive FP16 products, as tensor cores of an H100 add them and as IEEE FP32 adds one by one.
- *certificate*: distance of exact entries from the midpoints of float64 numbers, with the bounds of `Residues`, and
  the share of entries that each number of moduli certifies.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from _common import RESULTS, write

import prismm
from prismm import formats, numerics
from prismm.core.moduli import coprime_moduli, norm_limit
from prismm.testing import exact_product

KEY = ("figure", "series", "item", "part")
EXPONENTS = (0, -1, -3, -5, -8, -12)
"""Binades of the row's elements."""

SHOWN = 16
"""Moduli of the picture of certificates."""

LENGTHS = tuple(2**p for p in range(4, 16))
SEEDS = 24


def row_of(seed: int = 4) -> list[float]:
    """Float32 numbers, one in each binade."""
    rng = np.random.default_rng(seed)
    return [float(np.float32(rng.uniform(1.0, 2.0) * 2.0**e)) for e in EXPONENTS]


def rounded(format: formats.Format, x: Fraction) -> Fraction:
    """The nearest number of a format; x has a power of two as its denominator."""
    return Fraction(formats.round_fraction(format, x.numerator, 1 - x.denominator.bit_length()))


def exponent(x: Fraction | float) -> int:
    """Of the leading bit."""
    return math.frexp(float(x))[1] - 1


def words(x: float, count: int = 3) -> list[tuple[Fraction, int, int]]:
    """BF16 words of one element: value, highest and lowest bit. They follow the element's own exponent."""
    rest, found = Fraction(x), []
    for _ in range(count):
        word = rounded(formats.BF16, rest)
        if word:
            top = exponent(abs(word))
            found.append((word, top, top - formats.BF16.fraction_bits))
        rest -= word
    return found


def scaled_half(x: float, amplification: int = 12) -> list[tuple[Fraction, int, int]]:
    """Two FP16 words, the low one amplified before it is rounded."""
    high = rounded(formats.FP16, Fraction(x))
    low = rounded(formats.FP16, (Fraction(x) - high) * 2**amplification) / 2**amplification
    return [(part, top := exponent(abs(part)), top - formats.FP16.fraction_bits) for part in (high, low) if part]


def slices(x: float, largest: float, count: int = 3, bits: int = 7) -> list[tuple[Fraction, int, int]]:
    """Digits on one grid for the row: slice p holds bits below 2^(e - 7(p - 1))."""
    rest, top, found = Fraction(x), exponent(largest), []
    for place in range(1, count + 1):
        grid = Fraction(2) ** (top + 1 - bits * place)
        digit = round(rest / grid) * grid
        found.append((digit, top - bits * (place - 1), top + 1 - bits * place))
        rest -= digit
    return found


def integer(x: float, row: list[float], moduli: int = 7) -> list[tuple[Fraction, int, int]]:
    """The element rounded to the grid that `Residues` gives the row: 2‖A'‖² stays below P."""
    shift = next(
        s for s in range(80, 0, -1) if 2 * sum(math.ceil(abs(y) * 2.0**s) ** 2 for y in row) <= norm_limit(moduli)
    )
    return [(Fraction(round(Fraction(x) * 2**shift), 2**shift), exponent(max(row)), -shift)]


def joined(parts: list[tuple[Fraction, int, int]], end: int | None) -> list[tuple[Fraction, int, int]]:
    """Bits between two parts are zeros, and held by the lower one; so are those down to `end` where nothing is lost."""
    lows = [low for _, _, low in parts]
    if end is not None:
        lows[-1] = min(lows[-1], end)
    return [(value, high if not i else lows[i - 1] - 1, lows[i]) for i, (value, high, _) in enumerate(parts)]


def split() -> Iterator[dict[str, Any]]:
    """Rows of the first picture."""
    row = row_of()
    for place, x in enumerate(row):
        top = exponent(x)
        yield {
            "figure": "split",
            "series": "element",
            "item": place,
            "part": 0,
            "value": x,
            "low": top - 23,
            "high": top,
        }
        ways = {
            "Words": words(x), "ScaledHalf": scaled_half(x), "Slices": slices(x, max(row)), "Residues": integer(x, row),
        }  # fmt: skip
        for name, parts in ways.items():
            rest = abs(Fraction(x) - sum(part for part, _, _ in parts))
            lowest = min(low for _, _, low in parts)
            assert rest <= Fraction(2) ** lowest / 2 or name == "Words", (name, x)
            for part, (value, high, low) in enumerate(joined(parts, top - 23 if not rest else None), 1):
                yield {
                    "figure": "split", "series": name, "item": place, "part": part, "value": float(value), "low": low,
                    "high": high,
                }  # fmt: skip
        (whole, _, low), *_ = ways["Residues"]
        for part, modulus in enumerate(coprime_moduli(256, 7)):
            yield {
                "figure": "split", "series": "residue", "item": place, "part": modulus,
                "value": int(whole / Fraction(2) ** low) % modulus, "low": part, "high": part,
            }  # fmt: skip


def drift() -> Iterator[dict[str, Any]]:
    """Signed relative errors of sums of positive products: mean, smallest and largest over the seeds."""
    tensor_core = numerics.engine("h100-mma.fp16.fp32")
    rng = np.random.default_rng(1)
    a, b = rng.uniform(0.0, 1.0, (2, SEEDS, LENGTHS[-1])).astype(np.float16).astype(np.float64)
    for k in LENGTHS:
        x, y = a[:, :k], b[:, :k]
        exact = np.array([math.fsum(terms) for terms in x * y])
        ways = {
            "tensor core": tensor_core.dot(x, y),
            "tensor core, chunks of 128": in_chunks(tensor_core, x, y, 128),
            "IEEE FP32, one by one": np.cumsum((x * y).astype(np.float32), axis=1, dtype=np.float32)[:, -1],
        }
        for name, found in ways.items():
            errors = (np.asarray(found, np.float64) - exact) / exact
            yield {
                "figure": "drift", "series": name, "item": k, "part": 0, "value": float(errors.mean()),
                "low": float(errors.min()), "high": float(errors.max()),
            }  # fmt: skip


def in_chunks(engine: Any, x: np.ndarray, y: np.ndarray, chunk: int) -> np.ndarray:
    """Sums of chunks on the engine, which are added in IEEE FP32."""
    pieces = [np.asarray(engine.dot(x[:, i : i + chunk], y[:, i : i + chunk])) for i in range(0, x.shape[1], chunk)]
    return np.cumsum(np.stack(pieces, axis=1).astype(np.float32), axis=1, dtype=np.float32)[:, -1]


def certificates(shown: int = 16) -> Iterator[dict[str, Any]]:
    """Entries between midpoints, and certified shares."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((200, 500)), rng.standard_normal((500, 200))
    for moduli in range(14, 21):
        scheme = prismm.Residues(moduli)
        _, report = prismm.matmul(a, b, scheme=scheme, accuracy="correctly-rounded", full_output=True)
        yield {
            "figure": "certificate", "series": "share", "item": moduli, "part": 0,
            "value": report.paths.get("certified", 0) / (200 * 200), "low": "", "high": "",
        }  # fmt: skip
    exact = exact_product(a, b)
    _, report = prismm.matmul(a, b, scheme=prismm.Residues(SHOWN), full_output=True)
    nearest = exact.rounded(np.float64)
    ulp = np.spacing(abs(nearest))
    above = exact.error(np.nextafter(nearest, np.inf)) < ulp
    places = np.where(above, 1.0, -1.0) * exact.error(nearest) / ulp
    radius = (report.bounds - ulp / 2) / ulp
    order = np.argsort(abs(abs(places) - 0.5), axis=None)
    chosen = order[order.size // (2 * shown) :: order.size // shown][:shown]
    for item, index in enumerate(chosen):
        place, eps = places.flat[index], radius.flat[index]
        yield {
            "figure": "certificate", "series": "entry", "item": item, "part": 0, "value": float(place),
            "low": float(place - eps), "high": float(place + eps),
        }  # fmt: skip


def main() -> None:
    """Compute and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    for make in (split, drift, certificates):
        write("concepts", list(make()), KEY, options.results)


if __name__ == "__main__":
    main()
