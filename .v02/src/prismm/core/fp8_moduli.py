"""Residue number systems for FP8 (e4m3) products: which integers are digits, and which moduli take one product.

A product modulo q is a sum Σ_i w_i·f_i(a)·g_i(b) ≡ a·b with functions f_i, g_i from residues to e4m3 values and fixed
weights w_i. Two forms serve here:

- *One product.* f(a) is any e4m3 integer that is ≡ a modulo q. 17 is no e4m3 value, but 17 - 53 = -36 = -9·2² is one:
  modulo 53 every residue has such a representative up to 72.
- *Three products.* a ≡ x + c·y with x, y and x + y in the digit set; then a·b ≡ (1 - c)·xx' + c·(x + y)(x' + y') +
  (c² - c)·yy' (Karatsuba and Ofman 1962). All digits up to 176 that allow it are 3,409 pairs, which reach every residue
  modulo 1693 for c = 434.

`docs/internals/fp8-residues.md` has the proofs: two products gain nothing for a prime modulus, how sums stay exact, and
how few products suffice. `benchmarks/fp8_moduli.py` is the search.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.core.moduli import ResidueSystem, scheme_product, system_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIGNIFICANDS = 16
"""e4m3 has four significand bits: every integer up to 16, then even ones up to 32, multiples of 4 up to 64, …"""


@functools.cache
def e4m3_integers(largest: int) -> tuple[int, ...]:
    """The integers up to `largest` <= 448 in magnitude that e4m3 represents, the smallest magnitudes first.

    >>> [n for n in e4m3_integers(40) if n > 13]
    [14, 15, 16, 18, 20, 22, 24, 26, 28, 30, 32, 36, 40]
    >>> len(e4m3_integers(448))
    109
    """
    found = {m << e for m in range(1, SIGNIFICANDS) for e in range(9) if m << e <= largest}
    return (0, *(sign * n for n in sorted(found) for sign in (1, -1)))


@dataclass(frozen=True, eq=False)
class DigitTable:
    """How residues of one modulus are multiplied.

    Attributes:
        modulus: q.
        weights: of the products.
        digits: (products, q), the digit of every product for the residues 0 to q - 1.
        largest: the largest magnitude of a digit.
    """

    modulus: int
    weights: tuple[int, ...]
    digits: NDArray[np.int64]
    largest: int


@dataclass(frozen=True)
class DigitFamily:
    """Moduli for sums that are exact up to `capacity`.

    Attributes:
        capacity: the largest magnitude of a sum of digits' products that is certain to be exact.
        block: how many products any block of the inner dimension may have at least.
        largest: no digit exceeds this: block·largest² <= capacity.
        singles: sets of coprime moduli of one product. The first is ordered: any number of its first ones may serve.
        triples: moduli of three products, coprime to each other and to all `singles`, with their c; largest first.
    """

    capacity: int
    block: int
    largest: int
    singles: tuple[tuple[int, ...], ...]
    triples: tuple[tuple[int, int], ...]


FAMILIES = (
    DigitFamily(
        capacity=2**24,
        block=512,
        largest=176,
        singles=(
            (61, 55, 53, 49, 47, 43, 41, 39, 37, 32, 31, 29, 23, 19, 17),
            (61, 55, 53, 49, 47, 43, 41, 37, 32, 31, 29, 27, 23, 19, 17, 13),
        ),
        triples=(
            (1693, 434), (1637, 54), (1627, 265), (1613, 184), (1609, 106), (1601, 164), (1583, 387), (1579, 45),
            (1571, 356), (1567, 35),
        ),
    ),
    DigitFamily(
        capacity=2**14,
        block=32,
        largest=22,
        singles=(
            (39, 37, 35, 32, 31, 29, 23, 19, 17),
            (37, 35, 33, 32, 31, 29, 23, 19, 17, 13),
            (37, 35, 32, 31, 29, 27, 23, 19, 17, 13, 11),
        ),
        triples=(
            (937, 51), (929, 126), (919, 50), (911, 86), (887, 46), (883, 46), (881, 48), (863, 45), (859, 70),
            (857, 56), (853, 52), (839, 51), (829, 45), (827, 43),
        ),
    ),
)  # fmt: skip
"""For FP32 sums that keep 24 bits, and for sums that keep 14 (Hopper's and Ada's FP8)."""


def family_of(capacity: int) -> DigitFamily | None:
    """The family with the fewest products for sums that are exact up to `capacity`; None where it is too small for all.

    >>> family_of(2**24).largest, family_of(2**14).largest, family_of(2**11)
    (176, 22, None)
    """
    return next((family for family in FAMILIES if family.capacity <= capacity), None)


@functools.cache
def fp8_moduli(moduli: int, family: DigitFamily) -> tuple[int, ...]:
    """The moduli with which `Residues(moduli)` takes the fewest FP8 products, largest first.

    >>> wide = FAMILIES[0]
    >>> len(fp8_moduli(14, wide)), fp8_products(14, wide), fp8_products(15, wide), fp8_products(7, wide)
    (19, 25, 27, 11)
    """
    needed = scheme_product(moduli)
    triples = [q for q, _ in family.triples]
    best: tuple[int, int, tuple[int, ...]] | None = None
    for singles in (*(family.singles[0][:x] for x in range(len(family.singles[0]))), *family.singles):
        for count in range(len(triples) + 1):
            chosen = (*triples[:count], *singles)
            if math.prod(chosen) >= needed:
                # Of equally many products the one with more moduli: it has fewer of three products to combine.
                cost = len(singles) + 3 * count, count
                if best is None or cost < best[:2]:
                    best = (*cost, chosen)
                break
    assert best is not None, (moduli, family)
    return best[2]


def fp8_products(moduli: int, family: DigitFamily) -> int:
    """How many FP8 products `Residues(moduli)` takes."""
    three = {q for q, _ in family.triples}
    return sum(3 if q in three else 1 for q in fp8_moduli(moduli, family))


@functools.cache
def fp8_system(moduli: int, family: DigitFamily) -> ResidueSystem:
    """The tables that split and join need."""
    return system_of(moduli, fp8_moduli(moduli, family))


@functools.cache
def digit_table(modulus: int, family: DigitFamily) -> DigitTable:
    """The digits of a modulus of the family: of all that serve, those of the smallest magnitude.

    Raises:
        ValueError: for a modulus some residue of which has no digits.

    >>> table = digit_table(53, FAMILIES[0])
    >>> table.digits[0, 17], table.largest, table.weights
    (np.int64(-36), 72, (1,))
    """
    import numpy as np

    found = np.zeros((1, modulus), np.int64)
    chosen: dict[int, tuple[int, ...]] = {}
    integers = e4m3_integers(family.largest)
    c = dict(family.triples).get(modulus)
    if c is None:
        weights: tuple[int, ...] = (1,)
        for x in integers:
            chosen.setdefault(x % modulus, (x,))
    else:
        weights = ((1 - c) % modulus, c, (c * c - c) % modulus)
        among = set(integers)
        triples = [(x, x + y, y) for x in integers for y in integers if x + y in among]
        for digits in sorted(triples, key=lambda d: max(map(abs, d))):
            chosen.setdefault((digits[0] + c * digits[2]) % modulus, digits)
    if len(chosen) < modulus:
        raise ValueError(f"{modulus - len(chosen)} residues modulo {modulus} have no digits up to {family.largest}")
    found = np.array([chosen[residue] for residue in range(modulus)], np.int64).T
    return DigitTable(modulus, weights, np.ascontiguousarray(found), int(np.abs(found).max()))


def block_length(table: DigitTable, capacity: int, depth: int) -> int:
    """Terms of the inner dimension that are summed before the sum is read: whole instructions of `depth` products whose
    sums stay within `capacity`.

    >>> block_length(digit_table(53, FAMILIES[0]), 2**24, 32)
    3232
    """
    return max(1, capacity // table.largest**2 // depth) * depth
