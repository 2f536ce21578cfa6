"""Scaled vectors split into planes of e4m3 digits, with the inner dimension contiguous, as FP8 units want operands.

A' = RN(a·2^s), as `split` makes it, modulo each modulus q; then the digits of that residue, from a table
(`prismm.core.fp8_moduli`): one plane for most moduli, three for the large ones, which come first. Where the left
operand's factors hold (Q/q)^-1, the product's residue is at once the digit of the Chinese remainder sum. The scale
exponents stand in the vectors' statistics, which `split`'s own kernels find, told to make no planes.

Complex vectors have three times as many planes: of real parts, imaginary parts and their sums.

Bytes: 8 read and 1 written per element and product; about 15 integer operations and a look-up per element and modulus.
The table has 23 KB for 14 moduli of float64 products, and stays in the L1 cache.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import EXPONENT, LARGEST, SHIFT, STATISTICS, wide
from prismm.cuda.residues.kernels.product import reduced
from prismm.cuda.residues.kernels.split import scale_factors, words_of_product

SPLIT_FIELDS = tl.constexpr(11)
"""Integers of a modulus in the table: six factors of 16-bit halves, an offset, q, floor(2^32/q), the least multiple of
q from 2^30 on, and where its digits begin."""


@triton.jit
def _residue_of_words(w0, w1, w2, row, q, magic, bias, WORDS: tl.constexpr):
    """A' modulo q in [0, q) from the words of A' + 2^bits."""
    # Six halves below 2^16 times factors up to q/2 < 2^10, and an offset below q: less than 2^29.
    total = (w0 & 0xFFFF) * tl.load(row) + ((w0 >> 16) & 0xFFFF) * tl.load(row + 1) + tl.load(row + 6)
    if WORDS >= 2:
        total += (w1 & 0xFFFF) * tl.load(row + 2) + ((w1 >> 16) & 0xFFFF) * tl.load(row + 3)
    if WORDS >= 3:
        total += (w2 & 0xFFFF) * tl.load(row + 4) + ((w2 >> 16) & 0xFFFF) * tl.load(row + 5)
    return reduced(total, q, magic, bias).to(tl.int32, bitcast=True)


@triton.jit
def _store_digits(target, digits, residue, first, plane, inside, THREE: tl.constexpr):
    """The digits of residues into one plane or three, which follow one another."""
    word = tl.load(digits + first + residue)
    tl.store(target, (word & 255).to(tl.uint8), mask=inside)
    if THREE:
        tl.store(target + wide(plane), ((word >> 8) & 255).to(tl.uint8), mask=inside)
        tl.store(target + 2 * wide(plane), ((word >> 16) & 255).to(tl.uint8), mask=inside)


@triton.jit
def _one_modulus(
    target, table, digits, reals, imaginaries, t, plane, inside, PRODUCTS: tl.constexpr, THREE: tl.constexpr,
    WORDS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The digits of one modulus: of real numbers, or of the three parts of complex ones."""
    row = table + t * SPLIT_FIELDS
    q, magic, bias = tl.load(row + 7), tl.load(row + 8), tl.load(row + 9)
    first = tl.load(row + 10)
    residue = _residue_of_words(reals[0], reals[1], reals[2], row, q, magic, bias, WORDS)
    _store_digits(target, digits, residue, first, plane, inside, THREE)
    if PARTS == 2:
        other = _residue_of_words(imaginaries[0], imaginaries[1], imaginaries[2], row, q, magic, bias, WORDS)
        _store_digits(target + wide(plane) * PRODUCTS, digits, other, first, plane, inside, THREE)
        both = reduced(residue + other, q, magic, bias).to(tl.int32, bitcast=True)
        _store_digits(target + wide(plane) * (2 * PRODUCTS), digits, both, first, plane, inside, THREE)


@triton.jit
def _words(at, inside, lift, factor, bits, WORDS: tl.constexpr, NVIDIA: tl.constexpr):
    value = tl.load(at, mask=inside, other=0.0).to(tl.float64)
    w0, w1, w2, _ = words_of_product(value * lift, factor, bits, WORDS, False, NVIDIA)
    return w0, w1, w2


@triton.jit(do_not_specialize=["batch_step", "vectors", "k", "bits"])
def split_digits(
    x, vector_step, element_step, batch_step, stats, planes, table, digits, vectors, k, pitch, plane, bits,
    MODULI: tl.constexpr, TRIPLES: tl.constexpr, VECTORS: tl.constexpr, TERMS: tl.constexpr, WORDS: tl.constexpr,
    NVIDIA: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Split a tile of VECTORS vectors and TERMS elements, whose scale exponents stand in stats.

    MODULI moduli, of which the first TRIPLES have three products. Program axis 1: matrices of a batch. What is split
    of a vector that is not finite is of no account.
    """
    PRODUCTS: tl.constexpr = MODULI + 2 * TRIPLES
    tiles = tl.cdiv(pitch, TERMS)
    i = tl.program_id(0) // tiles * VECTORS + tl.arange(0, VECTORS)
    h = tl.program_id(0) % tiles * TERMS + tl.arange(0, TERMS)
    batch = tl.program_id(1).to(tl.int64)
    stats += batch * STATISTICS * vectors + i
    largest = tl.load(stats + LARGEST * vectors, mask=i < vectors, other=0)
    shift = tl.load(stats + SHIFT * vectors, mask=i < vectors, other=0)
    lift, factor = scale_factors(tl.where(largest < EXPONENT, shift, 0), largest)
    lift, factor = lift[:, None], factor[:, None]
    inside = (i < vectors)[:, None] & (h < k)[None, :]
    at = x + batch * batch_step + i.to(tl.int64)[:, None] * vector_step + h.to(tl.int64)[None, :] * element_step
    reals = _words(at, inside, lift, factor, bits, WORDS, NVIDIA)
    imaginaries = reals
    if PARTS == 2:
        imaginaries = _words(at + 1, inside, lift, factor, bits, WORDS, NVIDIA)
    target = planes.to(tl.pointer_type(tl.uint8), bitcast=True)
    target += batch * wide(plane) * (PRODUCTS if PARTS == 1 else 3 * PRODUCTS)
    target += i.to(tl.int64)[:, None] * pitch + h[None, :]
    # Up to the pitch, not to k: the product reads the padding too, where digits have to be 0.
    store = (i < vectors)[:, None] & (h < pitch)[None, :]
    for t in range(TRIPLES):
        _one_modulus(target, table, digits, reals, imaginaries, t, plane, store, PRODUCTS, True, WORDS, PARTS)
        target += 3 * wide(plane)
    for t in range(TRIPLES, MODULI):
        _one_modulus(target, table, digits, reals, imaginaries, t, plane, store, PRODUCTS, False, WORDS, PARTS)
        target += plane
