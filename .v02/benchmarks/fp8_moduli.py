"""The search for moduli of FP8 products: how few products a scheme takes, and how few it must take.

Claim: with sums of 24 bits and blocks of at least 512 products, float32 grade (7 moduli) takes 11 FP8 products and no
fewer, and float64 grade 25 (14 moduli) or 27 (15), of at least 23 and 25. docs/internals/fp8-residues.md has the proof;
`prismm.core.fp8_moduli` has the moduli that were found.

Choosing coprime moduli is an integer program: maximise Σ log2 q over the chosen, no prime in two of them, with
the number of products given. Candidates are all moduli of one product; all of two, one side in one digit and the other
in two; squares of the former in three (hi, lo); primes in three (x, y, x + y), the sixteen largest whose digits are at
most 176. The bound has any number of moduli of 2·log2 |E| bits instead of those, and two digits as small as 1.

Writes results/fp8_moduli.csv. Takes ten minutes of a core; needs scipy.
"""

from __future__ import annotations

import csv
import functools
import math

import _common
import numba
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from prismm.core.fp8_moduli import e4m3_integers
from prismm.core.moduli import scheme_product

SETTINGS = ((24, 65536), (24, 16384), (24, 4096), (24, 1024), (24, 512), (24, 128), (24, 64), (14, 32))
"""Bits of sums, and products in a block at least."""

GRADES = (7, 14, 15)
MOST_TRIPLES, LARGEST_TRIPLE_DIGIT = 16, 176


@functools.cache
def digits(largest: int) -> list[int]:
    """E(largest), beyond 448 in units of e4m3's subnormal numbers, smallest first."""
    if largest <= 448:
        return list(e4m3_integers(largest))
    return sorted({s * (m << e) for m in range(16) for e in range(18) for s in (1, -1) if m << e <= largest}, key=abs)


@functools.cache
def largest_digit(modulus: int) -> int | None:
    """D(q): the least D for which digits up to D meet every residue class; None where none does."""
    met: set[int] = set()
    for digit in digits(1 << 17):
        met.add(digit % modulus)
        if len(met) == modulus:
            return abs(digit)
    return None


@functools.cache
def two_digits(modulus: int) -> int:
    """The least D for which x + c·y, x and y up to D, meets every class for some c."""
    for largest in (*range(1, 17), 18, 20):
        e = np.array(digits(largest))
        if e.size**2 >= modulus:
            for c in range(1, modulus):
                if np.unique((e[:, None] + c * e[None, :]) % modulus).size == modulus:
                    return largest
    raise ValueError(modulus)


@numba.njit
def _constant(x, y, modulus):  # type: ignore[no-untyped-def]
    """c with {x + c·y} all residues, or 0."""
    seen = np.zeros(modulus, np.int64)
    for c in range(2, modulus):
        missed = 0
        for i in range(x.size):
            r = (x[i] + c * y[i]) % modulus
            missed += seen[r] == c
            seen[r] = c
            if missed > x.size - modulus:
                break
        if missed <= x.size - modulus:
            return c
    return 0


@functools.cache
def triples(largest: int) -> list[tuple[int, int]]:
    """The largest primes of three products with digits up to `largest`, and their c."""
    e = np.array(digits(largest))
    x, y = np.meshgrid(e, e, indexing="ij")
    within = np.isin(x + y, e)
    order = np.random.default_rng(0).permutation(int(within.sum()))  # repeated residues show sooner
    x, y = x[within][order], y[within][order]
    found: list[tuple[int, int]] = []
    for modulus in range(x.size, 61, -1):
        if len(found) < MOST_TRIPLES and all(modulus % d for d in range(2, math.isqrt(modulus) + 1)):
            c = int(_constant(x, y, modulus))
            found += [(modulus, c)] if c else []
    return found


def candidates(bits: int, block: int, *, bound: bool) -> list[tuple[int, int]]:
    """(modulus, products)."""
    room = 2**bits // block
    found = []
    for modulus in range(2, 254):
        largest = largest_digit(modulus)
        if largest is None:
            continue
        if largest**2 <= room:
            found += [(modulus, 1), (modulus**2, 3)]
        elif largest * (1 if bound else two_digits(modulus)) <= room:
            found.append((modulus, 2))
    if not bound:
        found += [(q, 3) for q, _ in triples(triple_digit(bits, block))]
    return found


def triple_digit(bits: int, block: int) -> int:
    """The largest digit of triples."""
    return max(d for d in digits(LARGEST_TRIPLE_DIGIT) if d * d * block <= 2**bits)


def primes_of(modulus: int) -> set[int]:
    """The primes that divide it."""
    return {p for p in range(2, modulus + 1) if modulus % p == 0 and all(p % d for d in range(2, math.isqrt(p) + 1))}


def packed(choice: list[tuple[int, int]], products: int, more: float = 0.0) -> tuple[float, list[int]]:
    """The most bits of coprime moduli in that many products, and these moduli. more: bits of free triples."""
    divisors = [primes_of(q) for q, _ in choice]
    primes = sorted(set().union(*divisors))
    free = int(more > 0)
    rows = np.zeros((len(primes) + 1, len(choice) + free))
    for column, ((_, cost), found) in enumerate(zip(choice, divisors, strict=True)):
        rows[[primes.index(p) for p in found], column] = 1
        rows[-1, column] = cost
    most = np.ones(len(choice) + free)
    if free:
        rows[-1, -1], most[-1] = 3, np.inf
    gains = np.array([math.log2(q) for q, _ in choice] + [more] * free)
    limits = np.r_[np.ones(len(primes)), products]
    answer = milp(
        -gains, constraints=LinearConstraint(rows, -np.inf, limits), integrality=np.ones(gains.size),
        bounds=Bounds(0, most), options={"mip_rel_gap": 0.0},
    )  # fmt: skip
    assert answer.status == 0, answer.message
    return -answer.fun, [choice[x][0] for x in range(len(choice)) if answer.x[x] > 0.5]


def fewest(choice: list[tuple[int, int]], moduli: int, more: float = 0.0) -> tuple[int, list[int]]:
    """The fewest products whose moduli hold the scheme's product."""
    needed, products = math.log2(scheme_product(moduli)), 2
    while True:
        bits, chosen = packed(choice, products, more)
        if bits >= needed:
            assert more or math.prod(chosen) >= scheme_product(moduli)
            return products, sorted(chosen, reverse=True)
        products += 1


def main() -> None:
    """All settings, all grades."""
    rows = []
    for bits, block in SETTINGS:
        best, least = (candidates(bits, block, bound=bound) for bound in (False, True))
        largest = max(d for d in digits(4096) if d * d * block <= 2**bits)
        for moduli in GRADES:
            products, chosen = fewest(best, moduli)
            bound, _ = fewest(least, moduli, 2 * math.log2(len(digits(largest))))
            rows.append(
                {
                    "sum_bits": bits, "block": block, "largest_digit": largest, "moduli_int8": moduli,
                    "products": products, "bound": bound, "moduli": " ".join(map(str, chosen)),
                    "triples": " ".join(f"{q}:{c}" for q, c in triples(triple_digit(bits, block)) if q in chosen),
                }
            )  # fmt: skip
            print(rows[-1], flush=True)
    with (_common.RESULTS / "fp8_moduli.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
