"""Systems of up to 49 moduli, for exact products of wide operands.

No scheme's value rests on them: they find RN(exact) where a scheme's own moduli leave it open. So rows and columns need
not share the bits: A' may have `left` of them and B' `right`, as long as k·2^(left + right) is within `room`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.core.moduli import LIMB_BITS, coprime_moduli, limbs_of, symmetric

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_MODULI = 49
"""All pairwise coprime integers up to 256 that the greedy choice finds above 28: their product has 342 bits."""

MOST_BITS = 286
"""The most bits that one side may have: nine dwords with a sign and an offset."""


@dataclass(frozen=True, eq=False)
class ManyModuli:
    """Tables of the system of the first so many moduli up to 256, of product P.

    Attributes:
        moduli: the moduli.
        room: the largest r for which |C'| <= 2^r is found: 2^(r+1) <= P·(1 - 2^-16), as for a scheme
            (`moduli.norm_limit`).
        limbs: how many limbs of 40 bits P takes.
        modulus: the moduli as float64.
        reciprocal: their inverses.
        weights: (moduli, limbs), P/q in limbs, the top one first.
        product: P likewise.
        quotient: what the top two limbs of a sum, over P, are worth.
    """

    moduli: tuple[int, ...]
    room: int
    limbs: int
    modulus: NDArray[np.float64]
    reciprocal: NDArray[np.float64]
    weights: NDArray[np.float64]
    product: NDArray[np.float64]
    quotient: NDArray[np.float64]


def room(moduli: int) -> int:
    """The largest r with 2^(r+1) <= P·(1 - 2^-16).

    >>> room(22), room(49)
    (169, 340)
    """
    product = math.prod(coprime_moduli(256, moduli))
    return (product - (product >> 16) - 1).bit_length() - 2


@functools.cache
def many_moduli(moduli: int) -> ManyModuli:
    """The system of so many moduli, at least 2 and at most `MOST_MODULI`.

    A sum S of digits |y| <= 128 times limbs below 2^40 stays below 49·2^47 < 2^53 in each limb. |S/P| < 25: what the
    limbs below the top two add to it is at most 2^53·2^-80·2^40 beside a P of at least 2^(40·(limbs - 1)), so 2^-27
    with the top limb of P at least 1; so the quotient is never closer than 2^-18 to a half.
    """
    import numpy as np

    chosen = coprime_moduli(256, moduli)
    whole = math.prod(chosen)
    # At least two, which the quotient is taken from.
    limbs = max(2, -(-whole.bit_length() // LIMB_BITS))
    modulus = np.array(chosen, np.float64)
    return ManyModuli(
        moduli=chosen,
        room=room(moduli),
        limbs=limbs,
        modulus=modulus,
        reciprocal=1.0 / modulus,
        weights=np.array([limbs_of(whole // q, limbs) for q in chosen]),
        product=np.array(limbs_of(whole, limbs)),
        quotient=np.array([2.0 ** (LIMB_BITS * (limbs - 1 - x)) / whole for x in range(2)]),
    )


@functools.lru_cache(maxsize=256)
def byte_numbers(moduli: int, bits: int, *, left: bool) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """`moduli.ByteTables`' numbers and offsets of one operand of |A'| <= 2^bits.

    The sum u of up to 36 bytes times numbers is below 36·255·128 < 2^21, so exact in float32. The computed u·(1/q) is
    off by less than 2^-22·u/q < 1/(2q), so that it is rounded to the multiple of q next to u.
    """
    import numpy as np

    chosen = coprime_moduli(256, moduli)
    whole = math.prod(chosen)
    dwords = -(-(bits + 2) // 32)
    # One side carries (P/q)^-1, so that residues of the product are themselves the digits of the sum.
    factors = [pow(whole // q, -1, q) if left else 1 for q in chosen]
    numbers = [
        [symmetric(factor * 256**b, q) for b in range(4 * dwords)] for q, factor in zip(chosen, factors, strict=True)
    ]
    # 128 modulo 256 is -128 as a byte.
    table = np.array(numbers).astype(np.int8).view(np.int32)
    offset = [symmetric(-(factor << offset_bits(bits)), q) for q, factor in zip(chosen, factors, strict=True)]
    return table, np.array(offset, np.int32)


def offset_bits(bits: int) -> int:
    """The power of two that is added to A', |A'| <= 2^bits, so that all its bytes are of a positive number."""
    return bits + 1


@functools.lru_cache(maxsize=256)
def part_numbers(moduli: int, bits: int, *, left: bool) -> NDArray[np.float64]:
    """(moduli, parts): 2^(24·p) modulo each, for |A'| <= 2^bits in parts of 24 bits (`kernels.many_residues`)."""
    import numpy as np

    chosen = coprime_moduli(256, moduli)
    whole = math.prod(chosen)
    factors = [pow(whole // q, -1, q) if left else 1 for q in chosen]
    parts = bits // 24 + 1
    return np.array(
        [[symmetric(f << (24 * p), q) for p in range(parts)] for q, f in zip(chosen, factors, strict=True)], np.float64
    )
