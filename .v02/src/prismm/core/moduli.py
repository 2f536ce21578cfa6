"""Residue number systems: coprime moduli, the constants that split and join need, and how large operands may be.

The *scheme's* system (moduli up to 256, product P) fixes the scale exponents and so the result's bits. An *engine* may
compute with any other coprime moduli whose product Q is at least P: the integer product C' lies in (-P/2, P/2), so both
systems determine it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_MODULI = 22
"""The largest number of moduli: operands of up to 85 bits still split into two exact float64 parts."""

LIMB_BITS = 40
MAX_LIMBS = 5
MAX_Q = 20


@functools.cache
def coprime_moduli(largest: int, count: int) -> tuple[int, ...]:
    """The `count` largest pairwise coprime integers not above `largest`, taken greedily, largest first.

    >>> coprime_moduli(256, 8)
    (256, 255, 253, 251, 247, 241, 239, 233)
    """
    found: list[int] = []
    candidate = largest
    while len(found) < count and candidate > 1:
        if all(math.gcd(candidate, other) == 1 for other in found):
            found.append(candidate)
        candidate -= 1
    if len(found) < count:
        raise ValueError(f"there are only {len(found)} coprime moduli up to {largest}, not {count}")
    return tuple(found)


@functools.cache
def scheme_product(moduli: int) -> int:
    """P, the product of the scheme's first `moduli` moduli."""
    return math.prod(coprime_moduli(256, moduli))


def operand_bits(moduli: int) -> float:
    """L = log2(P-1)/2 - 1/2: the 2-norm, in bits, that a scaled row or column may have.

    >>> round(operand_bits(15), 2)
    58.39
    """
    return 0.5 * math.log2(scheme_product(moduli) - 1) - 0.5


@functools.cache
def norm_limit(moduli: int) -> int:
    """Largest allowed 2*‖A'_i‖²: just under P, with 2^-16 to spare.

    With 2‖A'_i‖² and 2‖B'_j‖² at most this, Cauchy-Schwarz gives 2|C'_ij| <= P(1 - 2^-16): the quotient by P (or by any
    larger Q) that the join rounds in floating point is never closer than 2^-17 to a half.
    """
    product = scheme_product(moduli)
    return product - (product >> 16) - 1


def norm_fraction_bits(moduli: int, terms: int) -> int:
    """q: fraction bits kept of |a|/2^e in the integer norms, so that `terms` of them fit under the limit unscaled.

    Then t = s + e - q >= 0 and ceil(|a|·2^(q-e))·2^t is an integer, which a rounded |a|·2^s cannot exceed (RN is
    monotone). Zero or less means that the scheme has too few moduli for this inner dimension.
    """
    # The kernels add squares in int64.
    room = min(norm_limit(moduli) // 2, 2**63 - 1) // max(terms, 1)
    return min(MAX_Q, (room.bit_length() - 1) // 2)


@functools.cache
def shift_thresholds(moduli: int) -> tuple[int, ...]:
    """(T_0, T_1, …): 2·ν·4^t <= limit holds exactly for ν <= T_t; decreasing, down to 1."""
    limit = norm_limit(moduli)
    thresholds = []
    t = 0
    while (threshold := limit // (2 * 4**t)) >= 1:
        thresholds.append(threshold)
        t += 1
    return tuple(thresholds)


def largest_shift(moduli: int, norm: int) -> int:
    """The largest t with 2·norm·4^t <= limit (slow and obvious; the kernels look it up in `shift_thresholds`)."""
    t = 0
    while 2 * norm * 4 ** (t + 1) <= norm_limit(moduli):
        t += 1
    return t


def symmetric(value: int, modulus: int) -> int:
    """The representative of `value` in (-modulus/2, modulus/2]."""
    value %= modulus
    return value - modulus if value > modulus // 2 else value


@dataclass(frozen=True, eq=False)
class ResidueSystem:
    """Tables for one engine's moduli: all float64, all entries exact integers (reciprocals apart).

    Attributes:
        moduli: q_l, coprime; Q is their product.
        parts: into how many an operand's integer is cut before residues are taken.
        part_bits: bits of each.
        digit_split: how many base-128 digits each residue is cut into before it meets the weights: 1 for moduli up to
            256, 3 for those of 22 bits.
        limbs: of 40 bits, that Q takes.
        modulus, reciprocal: (moduli,), q_l and 1/q_l.
        left, right: (moduli, parts), constants c with residue = Σ_p x_p·c_p mod q; `left` has (Q/q)^-1 folded in, so
            that the product's residue is itself the digit of the Chinese remainder sum Σ_l digit_l·(Q/q_l).
        weights: (digits, 5), Q/q_l in `limbs` limbs, top first, then zeros.
        product: Q likewise.
        quotient: the units of a sum's top two limbs, divided by Q.
        bias: what is added before rint, so that no residue is +q/2 where bytes do not hold that.
    """

    moduli: tuple[int, ...]
    parts: int
    part_bits: int
    digit_split: int
    limbs: int
    modulus: NDArray[np.float64]
    reciprocal: NDArray[np.float64]
    left: NDArray[np.float64]
    right: NDArray[np.float64]
    weights: NDArray[np.float64]
    product: NDArray[np.float64]
    quotient: NDArray[np.float64]
    bias: float


def limbs_of(value: int, count: int) -> list[float]:
    """Limbs of 40 bits, the top one first."""
    return [float((value >> (LIMB_BITS * x)) & ((1 << LIMB_BITS) - 1)) for x in reversed(range(count))]


DIGIT_BITS = 7


@functools.cache
def residue_system(moduli: int, largest: int) -> ResidueSystem:
    """The system with which an engine whose moduli are at most `largest` computes the scheme of `moduli` moduli."""
    product_needed = scheme_product(moduli)
    count = 1
    while math.prod(coprime_moduli(largest, count)) < product_needed:
        count += 1
    return system_of(moduli, coprime_moduli(largest, count), largest)


def system_of(moduli: int, chosen: tuple[int, ...], largest: int | None = None) -> ResidueSystem:
    """The system of coprime moduli, none above `largest`, whose product is at least that of the scheme's `moduli`.

    Parts: |A'| < 2^(L+1/2) is cut into `parts` integers of about `part_bits` bits so that u = Σ x_p·c_p stays below
    0.9·2^51. The computed u·(1/q) is then off by at most 2^-52·|u|/q < 1/(2q), so an odd q leaves |u - q·rint(u/q)|
    <= (q-1)/2. An even q may leave +q/2: int8 wraps it for q = 256, and for q = 128 `bias`, added before rint,
    breaks that tie upwards. digit_split: |y| <= 2^21 has three base-128 digits with |d| <= 128, so that up to 32
    digits times 2^40 stay below 2^53. Up to 63 do, by the same sum.
    """
    import numpy as np

    largest = largest or max(chosen)
    count = len(chosen)
    q_product = math.prod(chosen)
    bits = math.ceil(operand_bits(moduli) + 0.5)
    # Residues are symmetric: in magnitude they have a bit less than the modulus.
    modulus_bits = (largest - 1).bit_length() - 1
    parts = 1
    while True:
        part_bits = -(-bits // parts) if parts > 1 else bits
        if (1 << modulus_bits) * ((1 << part_bits) + (parts - 1) * (1 << max(part_bits - 1, 0))) < 0.9 * 2**51:
            break
        parts += 1
    inverse = [pow(q_product // q, -1, q) for q in chosen]
    left = [
        [symmetric((i << (part_bits * p)) % q, q) for p in range(parts)] for q, i in zip(chosen, inverse, strict=True)
    ]
    right = [[symmetric((1 << (part_bits * p)) % q, q) for p in range(parts)] for q in chosen]
    digit_split = 1 if largest <= 256 else -(-((largest - 1).bit_length() - 1) // DIGIT_BITS)
    # At least two, which the quotient is taken from.
    limbs = max(2, -(-q_product.bit_length() // LIMB_BITS))
    if limbs > MAX_LIMBS:
        raise ValueError(f"{moduli} moduli need {limbs} limbs, more than {MAX_LIMBS}")
    weights = [
        limbs_of(((q_product // q) << (DIGIT_BITS * d)) % q_product, limbs) for q in chosen for d in range(digit_split)
    ]
    # The join takes four digits at a time; rows of zeros fill the last group up.
    rows = -(-len(weights) // 4) * 4
    table = np.zeros((rows, MAX_LIMBS))
    table[: len(weights), :limbs] = weights
    product = np.zeros(MAX_LIMBS)
    product[:limbs] = limbs_of(q_product, limbs)
    quotient = np.array([2.0 ** (LIMB_BITS * (limbs - 1)) / q_product, 2.0 ** (LIMB_BITS * (limbs - 2)) / q_product])
    # 1 stands where there is no modulus: its inverse is finite, and all digits are 0.
    q_array = np.ones(-(-count // 4) * 4)
    q_array[:count] = chosen
    return ResidueSystem(
        moduli=chosen,
        parts=parts,
        part_bits=part_bits,
        digit_split=digit_split,
        limbs=limbs,
        modulus=q_array,
        reciprocal=1.0 / q_array,
        left=np.array(left, dtype=np.float64),
        right=np.array(right, dtype=np.float64),
        weights=table,
        product=product,
        quotient=quotient,
        bias=2.0**-9 if largest == 128 else 0.0,
    )


@dataclass(frozen=True, eq=False)
class ByteTables:
    """Residues by dot products of bytes: A' + 2^bits in `dwords` dwords of unsigned bytes d_b, lowest first, has the
    residue offset + Σ d_b·c_b modulo q.

    With |c_b| <= 128 and at most 12 bytes the sum stays below 2^19.

    Attributes:
        bits: |A'| < 2^bits.
        dwords: that A' + 2^bits takes.
        left, right: (moduli, dwords) int32, each four signed bytes c_b = 256^b mod q, for `left` times (Q/q)^-1.
        left_offset, right_offset: (moduli,) int32, -2^bits mod q likewise.
    """

    bits: int
    dwords: int
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    left_offset: NDArray[np.int32]
    right_offset: NDArray[np.int32]


@functools.cache
def byte_tables(moduli: int) -> ByteTables:
    """The tables for the scheme of `moduli` moduli of 8 bits: |A'| < 2^bits."""
    import numpy as np

    bits = math.ceil(operand_bits(moduli) + 0.5)
    dwords = -(-(bits + 1) // 32)
    chosen = coprime_moduli(256, moduli)
    whole = math.prod(chosen)
    tables, offsets = [], []
    for factors in ([pow(whole // q, -1, q) for q in chosen], [1] * moduli):
        numbers = [
            [symmetric(factor * 256**b, q) for b in range(4 * dwords)]
            for q, factor in zip(chosen, factors, strict=True)
        ]
        # 128 modulo 256 is -128 as a byte.
        tables.append(np.array(numbers).astype(np.int8).view(np.int32))
        offset = [symmetric(-factor << bits, q) for q, factor in zip(chosen, factors, strict=True)]
        offsets.append(np.array(offset, np.int32))
    return ByteTables(bits, dwords, tables[0], tables[1], offsets[0], offsets[1])


@dataclass(frozen=True, eq=False)
class PairedSystem:
    """C' of `scheme_product` from sums in two or three float64 parts: `cuda.residues.kernels.join_fast`.

    Attributes:
        weights: the parts of every P/(p1·p2), and of a last single modulus P/p; the last part is rounded.
        inverse: 1/P.
        product: the parts of P.
        error: E with |C' - (h + low)| <= E.
        least: the |h| from which on h and low are what the proof says.
    """

    weights: tuple[tuple[float, ...], ...]
    inverse: float
    product: tuple[float, ...]
    error: float
    least: float


@functools.cache
def paired_system(moduli: int, parts: int = 2, digits: int = 1) -> PairedSystem:
    """The constants of the fast join (two parts) and of its second pass (three).

    Digits are below `digits`·p in magnitude (2 for complex parts), so D = d1·p2 + d2·p1 is below 2·digits·p1·p2, and
    |S| < 2·digits·P·G for S = Σ D·W over G weights. The first part of W is W rounded to a multiple of 2^a with 2^(a+52)
    >= |S|, so its sum is exact however it is added, and q = rint(Σ D·H / P) off by nothing: the sum differs from S by
    less than 2^-20·P, `norm_limit` leaves 2^-17·P. A second of three parts is made alike from the rest; the last part
    is the rest, rounded. Errors: what that misses, G roundings of its sum, and one of the sum less q times P's part. E
    is at least 2^-104·P (three parts: 2^-130·P), so that an addition of h's low part and 2·E may round.

    >>> paired_system(14).error < 2.0**-80 * scheme_product(14), paired_system(14, 3).error < 8
    (True, True)
    """
    chosen = coprime_moduli(256, moduli)
    product = scheme_product(moduli)
    groups = [chosen[x : x + 2] for x in range(0, moduli, 2)]
    rests = [product // math.prod(group) for group in groups] + [product]
    largest = [2 * digits * math.prod(group) for group in groups]
    quotient = 2 * digits * len(groups) + 1
    found: list[list[float]] = [[] for _ in rests]
    for _ in range(parts - 1):
        unit = max(0, sum(d * abs(rest) for d, rest in zip(largest, rests, strict=False)).bit_length() - 52)
        for x, rest in enumerate(rests):
            high = (rest + ((1 << unit) >> 1)) >> unit << unit
            found[x].append(float(high))
            rests[x] = rest - high
    for x, rest in enumerate(rests):
        found[x].append(float(rest))
    sizes = [*largest, quotient]
    missing = sum(size * abs(rest - int(part[-1])) for size, rest, part in zip(sizes, rests, found, strict=True))
    low_sum = sum(d * abs(rest) for d, rest in zip(largest, rests, strict=False))
    whole = low_sum + quotient * abs(rests[-1])
    error = missing + ((len(groups) + 1) * low_sum + 2 * whole) * 2.0**-53 * (1 + 2.0**-40)
    return PairedSystem(
        weights=tuple(tuple(part) for part in found[:-1]),
        inverse=1.0 / product,
        product=tuple(found[-1]),
        error=max(float(error) * (1 + 2.0**-40), product * 2.0 ** (-104 if parts == 2 else -130)),
        least=max(4.0 * whole * (1 + 2.0**-40), 0.5) if parts == 2 else 0.5,
    )
