"""The classes of hostile dot products that `prismm.numerics.hostile.vectors` mixes, each a function of a `Kit`.

Every one returns patterns of a and b, (rows, k), and of c, (rows, 1), as 64-bit words. What each is for is in its first
line; exponents are those of values, so 1 ≤ |x| < 2 has exponent 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from prismm.formats import Format
from prismm.numerics.encodings import canonical_nan
from prismm.numerics.hostile_draw import Kit, any_bits, approximate, finite, largest_pattern, pack, signs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.uint64]
    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]
    Made = tuple[Words, Words, Words]

__all__ = ["FLOATS"]


def _centre(kit: Kit) -> Ints:
    """An exponent of products for every row: half anywhere, half where the output has its ordinary values."""
    import numpy as np

    low, high = kit.reach()
    inner_low, inner_high = max(low, kit.result.minexp), min(high, kit.result.maxexp - 6)
    return np.where(kit.draw.coin(1), kit.row(low, high), kit.row(inner_low, max(inner_low, inner_high)))


def _sign(format: Format) -> np.uint64:
    import numpy as np

    return np.uint64(1 << (format.bits - 1))


def _permuted(kit: Kit, a: Words, b: Words) -> tuple[Words, Words]:
    """Each row's products in an order of its own."""
    import numpy as np

    order = np.argsort(kit.draw.words(kit.k), axis=1, kind="stable")
    return np.take_along_axis(a, order, 1), np.take_along_axis(b, order, 1)


def _opposed(kit: Kit, a: Words, b: Words) -> tuple[Words, Words]:
    """The second half of the products is minus the first, then all are permuted."""
    half = kit.k // 2
    a[:, half : 2 * half] = a[:, :half]
    b[:, half : 2 * half] = b[:, :half] ^ _sign(kit.source)
    return _permuted(kit, a, b)


def raw(kit: Kit) -> Made:
    """Any bits."""
    a, b = (any_bits(kit.source, kit.draw.words(kit.k)) for _ in range(2))
    return a, b, any_bits(kit.result, kit.draw.words(1))


def all_finite(kit: Kit) -> Made:
    """Any finite bits: exponents from one end of the format to the other."""
    a, b, c = raw(kit)
    return finite(kit.source, a), finite(kit.source, b), finite(kit.result, c)


def narrow(kit: Kit) -> Made:
    """Products of nearly one exponent, c anywhere near: what rounding and alignment do in the open."""
    centre, width = _centre(kit), kit.row(0, 6)
    a, b = kit.factors(centre - kit.draw.between(kit.k, 0, width))
    p = kit.result.precision
    return a, b, kit.addend(centre + kit.row(-p - 4, p + 4))


def ordinary(kit: Kit) -> Made:
    """Values as those of random matrices: uniform in (-1, 1) or nearly, c = 0 or of their kind."""
    import numpy as np

    def values(columns: int, format: Format) -> Words:
        low, lead = kit.draw.words(columns), np.zeros((kit.draw.rows, columns), np.int64)
        for bit in range(1, 9):
            lead += low & np.uint64((1 << bit) - 1) == 0
        return pack(format, kit.draw.coin(columns), -1 - lead, kit.draw.words(columns))

    c = np.where(kit.draw.coin(1), kit.zero(), values(1, kit.result))
    return values(kit.k, kit.source), values(kit.k, kit.source), c


def planted(kit: Kit) -> Made:
    """Narrow ones with one or two special values at random places."""
    import numpy as np

    made = narrow(kit)
    for _ in range(2):
        for x, format in zip(made, (kit.source, kit.source, kit.result), strict=True):
            top = largest_pattern(format)
            list_ = [0, 1, top, top - 1, 1 << format.fraction_bits]
            list_ += [top + 1] * 2 if format.has_infinity else []
            list_ += [canonical_nan(format), (top + 2) | 1] if format.has_nan and format.specials == "ieee" else []
            list_ += [canonical_nan(format)] if format.has_nan and format.specials != "ieee" else []
            special = np.array(list_, np.uint64)[kit.row(0, len(list_) - 1)]
            if format.specials != "fnuz":
                special = special | signs(format, kit.draw.coin(1))
            place = kit.row(0, x.shape[1] - 1)
            here = (np.arange(x.shape[1]) == place) & kit.draw.coin(1, 64)
            x[...] = np.where(here, special, x)
    return made


def zeros(kit: Kit) -> Made:
    """Many zeros of either sign, c = 0 in half of them."""
    import numpy as np

    a, b, c = narrow(kit)
    often = kit.row(96, 250)
    for x in (a, b):
        sign = signs(kit.source, kit.draw.coin(kit.k) & (kit.source.specials != "fnuz"))
        x[...] = np.where(kit.draw.coin(kit.k, often), sign, x)
    # In one row of four all products are zeros of one sign, mostly of c's too: is the sum of -0 and -0 still -0?
    negative = kit.draw.coin(1) & (kit.source.specials != "fnuz")
    left = kit.draw.coin(kit.k)
    sign = signs(kit.source, left)
    a_zero = np.where(left, sign, np.uint64(0))
    b_bits = b & ~_sign(kit.source) | signs(kit.source, left ^ negative)
    alike = kit.draw.coin(1, 64)
    a, b = np.where(alike, a_zero, a), np.where(alike, finite(kit.source, b_bits), b)
    same = signs(kit.result, negative & (kit.result.specials != "fnuz"))
    c = np.where(kit.draw.coin(1), kit.zero(), c)
    return a, b, np.where(alike & kit.draw.coin(1, 192), same, c)


def subnormal(kit: Kit) -> Made:
    """Subnormal factors against any others, c small or subnormal."""
    import numpy as np

    f, g = kit.source, kit.result
    tiny = kit.draw.words(kit.k) & np.uint64((1 << f.fraction_bits) - 1)
    tiny |= signs(f, kit.draw.coin(kit.k) & (tiny > 0))
    centre, width = kit.row(f.subnormal_exponent, f.maxexp - 1), kit.row(0, 5)
    other = pack(f, kit.draw.coin(kit.k), centre - kit.draw.between(kit.k, 0, width), kit.draw.words(kit.k))
    swapped = kit.draw.coin(kit.k)
    near = kit.addend(centre + f.minexp - kit.row(-4, 30))
    deep = kit.addend(kit.row(g.subnormal_exponent, g.minexp + 2))
    c = np.where(kit.draw.coin(1), near, np.where(kit.draw.coin(1), deep, kit.zero()))
    return np.where(swapped, other, tiny), np.where(swapped, tiny, other), c


def cancelling(kit: Kit) -> Made:
    """Products that cancel in pairs, a few not quite; what is left was below the cut, or is c."""
    import numpy as np

    centre, width = _centre(kit), kit.row(0, 30)
    a, b = _opposed(kit, *kit.factors(centre - kit.draw.between(kit.k, 0, width)))
    flips = (kit.draw.coin(kit.k, 24) & kit.draw.coin(1)).astype(np.uint64)
    c = np.where(kit.draw.coin(1, 96), kit.zero(), kit.addend(centre - kit.row(0, 44)))
    return finite(kit.source, a ^ flips), b, c


def against(kit: Kit) -> Made:
    """c is minus the sum of the products, nearly."""
    import numpy as np

    a, b, _ = narrow(kit)
    total = approximate(a, b, kit.source)
    mantissa, binade = np.frexp(total)
    bits = np.ldexp(np.abs(mantissa), kit.result.precision).astype(np.uint64)
    c = pack(kit.result, total > 0, binade.astype(np.int64) - 1, bits)
    c = (c.astype(np.int64) + np.where(kit.draw.coin(1), 0, kit.row(-2, 2))).astype(np.uint64)
    c &= np.uint64((1 << kit.result.bits) - 1)
    return a, b, np.where(total == 0, kit.zero(), finite(kit.result, c))


def powers(kit: Kit) -> Made:
    """Powers of two and their neighbours; c a few bits around where the products end, so that ties are frequent."""
    import numpy as np

    centre, width = _centre(kit), kit.row(0, 3)
    a, b = kit.factors(centre - kit.draw.between(kit.k, 0, width))
    for x in (a, b):
        mask = (1 << kit.source.fraction_bits) - 1
        fraction = np.array([0, 0, 0, 0, 1, mask, 1 << (kit.source.fraction_bits - 1), 0], np.uint64)
        x[...] = finite(kit.source, (x & ~np.uint64(mask)) | fraction[kit.draw.between(kit.k, 0, 7)])
    p = kit.result.precision
    near = np.where(kit.draw.coin(1), kit.row(-3, 3), kit.row(p - 3, p + 3))
    mask = (1 << kit.result.fraction_bits) - 1
    fraction = np.array([0, 1, 2, 3, mask, mask - 1], np.uint64)[kit.row(0, 5)]
    return a, b, pack(kit.result, kit.draw.coin(1), centre + near, fraction)


def carry(kit: Kit) -> Made:
    """Significands as large as they get, one sign, one exponent or two: the sum's carries."""
    import numpy as np

    spread = kit.row(0, 1)
    centre = np.maximum(_centre(kit), kit.result.minexp)
    a, b = kit.factors(centre - kit.draw.between(kit.k, 0, spread), np.ones((kit.draw.rows, 1), bool))
    loose = kit.draw.coin(1)
    for x in (a, b):
        mask = np.uint64((1 << kit.source.fraction_bits) - 1)
        cleared = np.where(loose & kit.draw.coin(kit.k, 48), kit.draw.words(kit.k) & np.uint64(3), np.uint64(0))
        x[...] = finite(kit.source, (x & ~_sign(kit.source)) | (mask ^ (cleared & mask)))
    negative = kit.draw.coin(1)
    a = a | signs(kit.source, np.broadcast_to(negative, a.shape))
    high = kit.draw.words(1) | np.uint64(((1 << kit.result.fraction_bits) - 1) & ~7)
    return a, b, pack(kit.result, negative ^ kit.draw.coin(1, 32), centre + kit.row(-1, 6), high)


def overflow(kit: Kit) -> Made:
    """Sums around the output's largest value: c near it, products of any size that reach it."""
    import numpy as np

    top = kit.result.maxexp - 1
    depth = np.where(kit.draw.coin(1), kit.row(0, 6), kit.row(kit.result.fraction_bits - 2, kit.result.precision + 6))
    a, b = kit.factors(top - depth - kit.draw.between(kit.k, 0, kit.row(0, 3)))
    one = kit.draw.coin(1, 160)
    negative = kit.draw.coin(1)
    a = np.where(one, (a & ~_sign(kit.source)) | signs(kit.source, np.broadcast_to(negative, a.shape)), a)
    b = np.where(one, b & ~_sign(kit.source), b)
    high = kit.draw.words(1) | np.uint64(((1 << kit.result.fraction_bits) - 1) & ~3)
    fraction = np.where(kit.draw.coin(1, 160), high, kit.draw.words(1))
    return a, b, pack(kit.result, negative ^ kit.draw.coin(1, 64), top - kit.row(0, 2), fraction)


def floor(kit: Kit) -> Made:
    """Sums around the output's smallest value, c = 0 mostly: where an accumulator's exponent ends."""
    import numpy as np

    low = kit.result.subnormal_exponent
    depth = np.where(kit.draw.coin(1), kit.row(-12, 8), kit.row(0, 24))
    exponent = low - depth + kit.draw.between(kit.k, 0, kit.row(0, 8))
    a, b = kit.factors(exponent)
    opposed_a, opposed_b = _opposed(kit, a.copy(), b.copy())
    some = kit.draw.coin(1, 64)
    flips = (kit.draw.coin(kit.k, 64) & some).astype(np.uint64)
    a, b = np.where(some, opposed_a ^ flips, a), np.where(some, opposed_b, b)
    same = kit.draw.coin(1, 96)  # one sign, so that the small ones add up
    a, b = (np.where(same, x & ~_sign(kit.source), x) for x in (a, b))
    c = np.where(kit.draw.coin(1, 176), kit.zero(), kit.addend(low + kit.row(0, 6)))
    return finite(kit.source, a), b, c


def edge(kit: Kit) -> Made:
    """c = ±0 and exact sums on the edge of rounding at the output's smallest value, which losing any deep bit moves.

    To nearest: an odd multiple of half the smallest value, and a term far below. Toward zero: terms that add up to the
    smallest value exactly, two of them 1 + 2^-j and 1 - 2^-j times as large as the others.
    """
    import numpy as np

    f, draw, k, low = kit.source, kit.draw, kit.k, kit.result.subnormal_exponent
    place = np.arange(k)
    more = kit.row(0, 1)
    deep = low - kit.row(10, 34)
    tie = np.where(place == 0, low - 1, np.where(place == 1, deep, low + kit.row(0, 3)))
    power = kit.row(1, max(1, k.bit_length() - 1))
    shared = np.broadcast_to(low - power, (draw.rows, k)) - (place == 1)
    j = kit.row(1, f.fraction_bits)
    one_more = np.uint64(1) << (f.fraction_bits - j).astype(np.uint64)
    one_less = np.uint64(1 << f.fraction_bits) - (one_more << np.uint64(1))
    by_tie = draw.coin(1)
    exponent = np.where(by_tie, tie, shared)
    used = np.where(by_tie, place < 2 + more, place < np.left_shift(np.int64(1), power))
    fraction = np.where(place == 0, one_more, np.where(place == 1, one_less, np.uint64(0)))
    fraction = np.where(by_tie, np.uint64(0), fraction)
    first = np.clip(exponent // 2 + draw.between(1, -2, 2), f.minexp, f.maxexp - 1)
    first = np.where(exponent - first < f.subnormal_exponent, exponent // 2, first)
    sign = draw.coin(1) ^ (by_tie & (place == 1) & draw.coin(1, 96))
    a = np.where(used, pack(f, sign, first, fraction), np.uint64(0))
    b = np.where(used, pack(f, np.zeros_like(sign), exponent - first, np.zeros_like(fraction)), np.uint64(0))
    a, b = _permuted(kit, a, b)
    return a, b, kit.zero()


def cut(kit: Kit) -> Made:
    """One large term or two that cancel, and many just around where a sum of fixed width cuts them."""
    import numpy as np

    low, high = kit.reach()
    depth = np.where(kit.draw.coin(1, 160), kit.row(20, 40), kit.row(6, 24))
    big = kit.row(min(max(low, kit.result.minexp) + 16, high), max(low, min(high, kit.result.maxexp - 4)))
    small = big - depth + kit.draw.between(kit.k, -3, 3)
    by_c = kit.draw.coin(1, 80)
    place = np.arange(kit.k)
    mode = np.where(by_c, 0, kit.row(1, 2)) if kit.k > 1 else np.where(by_c, 0, 1)
    a, b = kit.factors(np.where(place < mode, big, small))
    if kit.k > 1:
        twice = (mode == 2) & (place == 1)
        a, b = np.where(twice, a[:, :1], a), np.where(twice, b[:, :1] ^ _sign(kit.source), b)
    same = kit.draw.coin(1) & (place >= mode)  # the small ones of one sign, or of either
    a, b = (np.where(same, x & ~_sign(kit.source), x) for x in (a, b))
    a, b = _permuted(kit, a, b)
    lesser = np.where(kit.draw.coin(1), kit.zero(), kit.addend(big - depth + kit.row(-3, 3)))
    return a, b, np.where(by_c, kit.addend(big), lesser)


FLOATS: dict[str, Callable[[Kit], Made]] = {
    "raw": raw,
    "planted": planted,
    "finite": all_finite,
    "narrow": narrow,
    "ordinary": ordinary,
    "zeros": zeros,
    "subnormal": subnormal,
    "cancelling": cancelling,
    "against": against,
    "powers": powers,
    "carry": carry,
    "overflow": overflow,
    "floor": floor,
    "edge": edge,
    "cut": cut,
}
