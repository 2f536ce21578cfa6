"""Residues of FP8 products converted into the digits of the scheme's own moduli, which every join takes.

Modulus l of FP8 products has one or three of them, whose residues merge to d_l = Σ w_i·r_i mod q_l. The d_l are the
digits of C' = Σ d_l·(Q/q_l) - z·Q with z = rint(C'/Q + Σ d_l/q_l) = rint(Σ d_l/q_l), since |C'| < Q/2. The digit of the
scheme's modulus p is C'·(P/p)^-1 modulo p, so it is Σ d_l·W_l + z·W with weights modulo p: an exact change of base.

z from integers: Σ d_l·F_l with F_l = round(2^B/q_l) differs from 2^B·Σ d_l/q_l by less than Σ (q_l - 1)/2, and
C'/Q is no closer to a half than 2^-17 (`core.moduli.norm_limit`), so that 2^-17·2^B above that sum suffices. Weights
are at most p/2 <= 128 in magnitude and d_l below 2^11, so a digit's sum of fewer than 64 products stays below 2^24.

A complex product has residues of D = Re·Re, E = Im·Im and F = (Re + Im)·(Re + Im), and Re = D - E, Im = F - D - E are
below P/2, which D, E and F need not be. So these two are converted, and the join gets Re, 0 and Re + Im for the three;
the last from the sums of digits and of z, which stays below 2^25.

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
def _part(at, plane, product, inside, part, PRODUCTS: tl.constexpr, PARTS: tl.constexpr):
    """A product's residue; of complex ones what is congruent to D - E, at the first of them, for part 0, and to
    F - D - E, at the second, for part 1.
    """
    first = at + wide(plane) * product
    r = tl.load(first, mask=inside, other=0).to(tl.int32)
    if PARTS == 2:
        r -= tl.load(first + wide(plane) * PRODUCTS, mask=inside, other=0).to(tl.int32)
        before = tl.load(first - wide(plane) * PRODUCTS, mask=inside & (part > 0), other=0).to(tl.int32)
        r = tl.where(part > 0, -r, r) - before
    return r


@triton.jit
def _merged(
    at, plane, table, inside, part, MODULI: tl.constexpr, TRIPLES: tl.constexpr, PRODUCTS: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """d_l of all moduli, in [0, q_l); the first TRIPLES have three products."""
    found = ()
    for t in tl.static_range(MODULI):
        product = t + 2 * min(t, TRIPLES)
        facts = table + product * PRODUCT_FIELDS
        d = _part(at, plane, product, inside, part, PRODUCTS, PARTS)
        if t < TRIPLES:
            # Weights below q < 2^11 times numbers below 3·2^11 in magnitude.
            d = d * tl.load(facts + 4)
            second = _part(at, plane, product + 1, inside, part, PRODUCTS, PARTS)
            third = _part(at, plane, product + 2, inside, part, PRODUCTS, PARTS)
            d += second * tl.load(facts + PRODUCT_FIELDS + 4) + third * tl.load(facts + 2 * PRODUCT_FIELDS + 4)
        if t < TRIPLES or PARTS == 2:
            d = _modulo(d, facts)
        found = found + (d,)  # type: ignore[assignment]  # noqa: RUF005 - Triton knows no stars
    return found


@triton.jit
def _zeros(like, MODULI: tl.constexpr):
    """As many zeros as there are moduli."""
    found = ()
    for _ in tl.static_range(MODULI):
        found = found + (tl.zeros(like.shape, tl.int32),)  # type: ignore[assignment]  # noqa: RUF005 - as above
    return found


@triton.jit
def _sums(d, e, MODULI: tl.constexpr):
    found = ()
    for t in tl.static_range(MODULI):
        found = found + (d[t] + e[t],)  # type: ignore[assignment]  # noqa: RUF005 - as above
    return found


@triton.jit
def _quotient(d, fractions, BITS: tl.constexpr, MODULI: tl.constexpr):
    """z of digits d_l."""
    total = tl.full(d[0].shape, 1 << (BITS - 1), tl.int64)
    for t in tl.static_range(MODULI):
        total += d[t].to(tl.int64) * tl.load(fractions + t)
    return (total >> BITS).to(tl.int32)


@triton.jit
def _store_digits(target, d, z, weights, reduction, plane, moduli, inside, MODULI: tl.constexpr):
    """The digits of the scheme's moduli, whose rows of weights follow one another."""
    for t in range(moduli):
        row = weights + t * (MODULI + 1)
        total = z * tl.load(row + MODULI)
        for x in tl.static_range(MODULI):
            total += d[x] * tl.load(row + x)
        tl.store(target + wide(plane) * t, _modulo(total, reduction + 3 * t).to(tl.uint8), mask=inside)


@triton.jit(do_not_specialize=["entries", "moduli", "parts"])
def scheme_digits(
    residues, digits, table, fractions, weights, reduction, entries, plane, moduli, parts, BITS: tl.constexpr,
    MODULI: tl.constexpr, TRIPLES: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Convert a block of entries of a plane into digits of `moduli` moduli; program axis 1: matrices of a batch.

    table: of `digit_product`; reduction: of the scheme's moduli (`product.reduced`). MODULI: of FP8 products, of which
    the first TRIPLES have three. fractions: F of each; weights: those of each of the scheme's moduli, W last. Loops
    over the scheme's moduli and over the parts, PARTS of them, stay loops: unrolled, they took minutes to compile.
    """
    PRODUCTS: tl.constexpr = MODULI + 2 * TRIPLES
    PLANES: tl.constexpr = 1 if PARTS == 1 else 3
    batch = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < entries
    source = residues + batch * wide(plane) * (PLANES * PRODUCTS) + at
    target = digits + batch * wide(plane) * PLANES * moduli + at
    if PARTS == 1:
        d = _merged(source, plane, table, inside, 0, MODULI, TRIPLES, PRODUCTS, PARTS)
        z = _quotient(d, fractions, BITS, MODULI)
        _store_digits(target, d, z, weights, reduction, plane, moduli, inside, MODULI)
    else:
        # Re; then Re + Im, from sums of the d_l and of z.
        d = _zeros(at, MODULI)
        z = tl.zeros([BLOCK], tl.int32)
        for part in range(parts):
            e = _merged(source, plane, table, inside, part, MODULI, TRIPLES, PRODUCTS, PARTS)
            z += _quotient(e, fractions, BITS, MODULI)
            d = _sums(d, e, MODULI)
            source += wide(plane) * PRODUCTS
            _store_digits(
                target + wide(plane) * (2 * moduli) * part, d, z, weights, reduction, plane, moduli, inside, MODULI
            )
        for t in range(moduli):
            tl.store(target + wide(plane) * (moduli + t), tl.zeros([BLOCK], tl.uint8), mask=inside)
