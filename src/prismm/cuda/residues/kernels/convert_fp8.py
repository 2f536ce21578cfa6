"""Residues of FP8 products converted into the digits of the scheme's own moduli, which every join takes.

Modulus l of FP8 products has one or three of them, whose residues merge to d_l = Σ w_i·r_i mod q_l. The d_l are the
digits of C' = Σ d_l·(Q/q_l) - z·Q with z = rint(C'/Q + Σ d_l/q_l) = rint(Σ d_l/q_l), since |C'| < Q/2. The digit of the
scheme's modulus p is C'·(P/p)^-1 modulo p, so it is Σ d_l·W_l + z·W with weights modulo p: an exact change of base.

z from integers: Σ d_l·F_l with F_l = round(2^B/q_l) differs from 2^B·Σ d_l/q_l by less than Σ (q_l - 1)/2, and
C'/Q is no closer to a half than 2^-17 (`core.moduli.norm_limit`), so that 2^-17·2^B above that sum suffices. Weights
are at most p/2 <= 128 in magnitude and d_l below 2^11, so a digit's sum of fewer than 64 products stays below 2^24.

A complex product has residues of D = Re·Re, E = Im·Im and F = (Re + Im)·(Re + Im), and Re = D - E, Im = F - D - E are
below P/2, which D, E and F need not be. So these two are converted, and the join gets Re, 0 and Re + Im for the three.

Bytes: 2 read an entry and product, 1 written an entry and modulus. Operations: an integer multiplication an entry and
pair of moduli, 266 for 14 moduli of float64.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import wide
from prismm.cuda.residues.kernels.product import reduced
from prismm.cuda.residues.kernels.product_fp8 import PRODUCT_FIELDS


@triton.jit
def _modulo(x, facts):
    """x modulo what a row of a table says, |x| < 2^30."""
    return reduced(x, tl.load(facts), tl.load(facts + 1), tl.load(facts + 2)).to(tl.int32, bitcast=True)


@triton.jit
def _part(at, plane, product, inside, PRODUCTS: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr):
    """A product's residue, or a combination of three that is congruent to that of a real or imaginary part."""
    first = at + wide(plane) * product
    r = tl.load(first, mask=inside, other=0).to(tl.int32)
    if PARTS == 2:
        other = tl.load(first + wide(plane) * PRODUCTS, mask=inside, other=0).to(tl.int32)
        if PART == 0:
            r -= other
        else:
            r = tl.load(first + wide(plane) * (2 * PRODUCTS), mask=inside, other=0).to(tl.int32) - r - other
    return r


@triton.jit
def _merged(
    at, plane, table, inside, COUNTS: tl.constexpr, PRODUCTS: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr
):  # fmt: skip
    """d_l of all moduli, in [0, q_l). COUNTS: products of each."""
    found = ()
    product = 0
    for t in tl.static_range(len(COUNTS)):
        facts = table + product * PRODUCT_FIELDS
        d = _part(at, plane, product, inside, PRODUCTS, PARTS, PART)
        if COUNTS[t] == 3:
            # Weights below q < 2^11 times numbers below 3·2^11 in magnitude.
            d = d * tl.load(facts + 4)
            second = _part(at, plane, product + 1, inside, PRODUCTS, PARTS, PART)
            third = _part(at, plane, product + 2, inside, PRODUCTS, PARTS, PART)
            d += second * tl.load(facts + PRODUCT_FIELDS + 4) + third * tl.load(facts + 2 * PRODUCT_FIELDS + 4)
        if COUNTS[t] == 3 or PARTS == 2:
            d = _modulo(d, facts)
        found = found + (d,)  # type: ignore[assignment]  # noqa: RUF005 - Triton knows no stars
        product = product + COUNTS[t]
    return found


@triton.jit
def _quotient(d, BITS: tl.constexpr, FRACTIONS: tl.constexpr):
    """z of digits d_l."""
    total = tl.full(d[0].shape, 1 << (BITS - 1), tl.int64)
    for t in tl.static_range(len(FRACTIONS)):
        total += d[t].to(tl.int64) * FRACTIONS[t]
    return (total >> BITS).to(tl.int32)


@triton.jit
def _digit(d, z, WEIGHTS: tl.constexpr, FIRST: tl.constexpr, MODULI: tl.constexpr):
    """A number congruent to the digit of the scheme's modulus whose weights begin at FIRST."""
    total = z * WEIGHTS[FIRST + MODULI]
    for t in tl.static_range(MODULI):
        total += d[t] * WEIGHTS[FIRST + t]
    return total


@triton.jit(do_not_specialize=["entries"])
def scheme_digits(
    residues, digits, table, reduction, entries, plane, BITS: tl.constexpr, FRACTIONS: tl.constexpr,
    WEIGHTS: tl.constexpr, COUNTS: tl.constexpr, PRODUCTS: tl.constexpr, MODULI: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Convert a block of entries of a plane; program axis 1: matrices of a batch.

    table: of `digit_product`; reduction: of the scheme's MODULI moduli (`product.reduced`). COUNTS, FRACTIONS: products
    and F of each modulus of FP8 products, which are PRODUCTS together; WEIGHTS: those of each of the scheme's moduli,
    W last.
    """
    LENGTH: tl.constexpr = len(COUNTS)
    batch = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < entries
    source = residues + batch * wide(plane) * (PRODUCTS if PARTS == 1 else 3 * PRODUCTS) + at
    target = digits + batch * wide(plane) * (MODULI if PARTS == 1 else 3 * MODULI) + at
    d = _merged(source, plane, table, inside, COUNTS, PRODUCTS, PARTS, 0)
    z = _quotient(d, BITS, FRACTIONS)
    if PARTS == 2:
        e = _merged(source, plane, table, inside, COUNTS, PRODUCTS, PARTS, 1)
        y = _quotient(e, BITS, FRACTIONS)
    for t in tl.static_range(MODULI):
        real = _modulo(_digit(d, z, WEIGHTS, t * (LENGTH + 1), LENGTH), reduction + 3 * t)
        tl.store(target + wide(plane) * t, real.to(tl.uint8), mask=inside)
        if PARTS == 2:
            both = _modulo(real + _digit(e, y, WEIGHTS, t * (LENGTH + 1), LENGTH), reduction + 3 * t)
            tl.store(target + wide(plane) * (MODULI + t), (real * 0).to(tl.uint8), mask=inside)
            tl.store(target + wide(plane) * (2 * MODULI + t), both.to(tl.uint8), mask=inside)
