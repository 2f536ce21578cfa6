"""Systems of up to 49 moduli: tables, residues, extents and the join, against Python integers."""

import math
from fractions import Fraction

import numpy as np
import pytest
from numba import njit

from prismm.core.many_moduli import MOST_BITS, MOST_MODULI, byte_numbers, many_moduli, offset_bits, part_numbers, room
from prismm.core.moduli import coprime_moduli, symmetric
from prismm.cpu.engines.integer import VNNI
from prismm.cpu.kernels import many, vnni
from prismm.cpu.kernels.extent import extent_columns, extent_rows
from prismm.cpu.kernels.many_residues import residues
from prismm.cpu.kernels.residuals import UNIT, residual_product
from prismm.formats import round_fraction
from prismm.testing import HOSTILE
from tests.cpu.kernels.harness import FORMATS, bound_vectors, call, differing, encode, hostile_integers, same_bits

precisions = pytest.mark.parametrize("precision", [53, 24])


def test_no_system_is_larger():
    """The last one takes all coprime numbers that the greedy choice finds."""
    with pytest.raises(ValueError, match="only 49"):
        coprime_moduli(256, MOST_MODULI + 1)
    assert many_moduli(MOST_MODULI).limbs == many.LIMBS


@pytest.mark.parametrize("moduli", [2, 5, 19, 22, 23, 31, 40, 49])
def test_limbs_stay_exact_and_the_quotient_is_never_near_a_half(moduli):
    """What `many_moduli` promises of its tables, in integers."""
    system = many_moduli(moduli)
    product = math.prod(system.moduli)
    assert 2 ** (room(moduli) + 1) <= product - (product >> 16) < 2 ** (room(moduli) + 2)
    for x in range(system.limbs):
        assert 128 * int(system.weights[:, x].sum()) < 2**53
    for q, row in zip(system.moduli, system.weights.tolist(), strict=True):
        assert sum(int(w) << (40 * (system.limbs - 1 - x)) for x, w in enumerate(row)) == product // q
    below = sum(Fraction(128 * int(system.weights[:, x].sum())) * 2 ** (40 * (system.limbs - 1 - x))
                for x in range(2, system.limbs))  # fmt: skip
    rounding = Fraction(4 * 64) / 2**53
    assert below / product + rounding < Fraction(1, 2**17)


def joined(
    system, values, shift, rng, precision, bounds=None, correction=None, error=None, factors=(), addends=(),
):  # fmt: skip
    """One row of integers through `join_many`: values and the listed entries."""
    n = len(values)
    c, _, _ = encode(system, values, 0, rng, wide=False)
    whole = np.zeros((1, len(system.moduli), -(-n // 16) * 16), np.int32)
    whole[0, :, :n] = c[:, 0]
    rows, columns = bound_vectors(np.zeros(n) if bounds is None else np.asarray(bounds, np.float64))
    nothing = np.empty((0, 0))
    given = (nothing, nothing) if correction is None else (correction[None], error[None])
    out, out32, failed = np.full((1, n), np.nan), np.full((1, n), np.nan, np.float32), np.empty(n, np.int32)
    count = call(
        many.join_many, c=whole, modulus=system.modulus, reciprocal=system.reciprocal, weights=system.weights,
        product=system.product, quotient=system.quotient, row_shift=np.zeros(1, np.int64),
        column_shift=np.zeros(n, np.int64) + shift, row_terms=rows, column_terms=columns, terms=0.0,
        correction=given[0], error=given[1], factors=np.array(factors, np.float64),
        addends=np.concatenate(addends)[None] if addends else nothing, precision=precision, out=out, out32=out32,
        failed=failed,
    )  # fmt: skip
    return (out if precision == 53 else out32.astype(np.float64))[0], set(failed[:count].tolist())


def numbers(moduli, rng, count=150):
    """Integers that every limb, window and midpoint could be wrong about."""
    limit = 2 ** room(moduli)
    found = hostile_integers(limit, rng, count)
    for bits in range(60, room(moduli), 13):  # midpoints with one bit far below, and numbers that cancel far down
        odd = 2 * int(rng.integers(2**52, 2**53)) + 1
        for far in range(0, bits - 54, 29):
            found += [sign * ((odd << (bits - 54)) + d * (1 << far)) for d in (-1, 1) for sign in (-1, 1)]
        found += [(1 << bits) - (1 << int(rng.integers(0, bits))), (1 << bits) + 1, odd << (bits - 54)]
    return [v for v in found if abs(v) <= limit]


@precisions
@pytest.mark.parametrize("moduli", [2, 6, 13, 19, 24, 25, 31, 37, 43, 48, 49])
def test_every_system_rounds_the_exact_integer_once(moduli, precision, rng):
    fmt = FORMATS[precision]
    values = numbers(moduli, rng)
    sizes = np.array([v.bit_length() for v in values])
    binade = rng.choice(
        [fmt.subnormal_exponent - 1, fmt.subnormal_exponent + 9, fmt.minexp, 0, fmt.maxexp, 1030, 2500], len(values)
    )
    shifts = sizes - binade - rng.integers(-2, 3, len(values))
    out, listed = joined(many_moduli(moduli), values, shifts, rng, precision)
    wanted = [round_fraction(fmt, v, -int(s)) for v, s in zip(values, shifts, strict=True)]
    assert same_bits(out, wanted), [(values[i], g, w) for i, g, w in differing(out, wanted)]
    assert not listed


@precisions
@pytest.mark.parametrize("moduli", [13, 25, 37, 49])
def test_what_is_not_listed_rounds_alike_within_its_bound(moduli, precision, rng):
    fmt = FORMATS[precision]
    values = [v for v in numbers(moduli, rng) if v]
    bounds = np.array([math.ldexp(rng.random(), int(rng.integers(-3, max(2, v.bit_length() - 30)))) for v in values])
    shifts = np.array([v.bit_length() - int(rng.integers(fmt.subnormal_exponent, fmt.maxexp + 1)) for v in values])
    out, listed = joined(many_moduli(moduli), values, shifts, rng, precision, bounds)
    for e, (v, s, bound) in enumerate(zip(values, shifts.tolist(), bounds.tolist(), strict=True)):
        if e in listed:
            continue
        for end in (v - Fraction(bound), v + Fraction(bound)):
            scaled = end * 2**1100
            assert scaled.denominator == 1
            assert same_bits([out[e]], [round_fraction(fmt, int(scaled), -s - 1100)]), (v, bound, s)
    assert len(listed) < len(values)


@precisions
@pytest.mark.parametrize("moduli", [2, 13, 25])
def test_what_overflows_within_its_bound_is_infinite(moduli, precision, rng):
    """Beyond the threshold no two numbers round differently, so that a bound need not be small."""
    fmt = FORMATS[precision]
    top = room(moduli)
    values = [int(s) * ((1 << top) - int(rng.random() * 2.0 ** (top - 3))) for s in rng.choice([-1, 1], 200)]
    bounds = np.array([abs(v) * rng.choice([2.0**-30, 2.0**-9, 0.2]) for v in values])
    shifts = np.array([v.bit_length() - fmt.maxexp for v in values]) - rng.integers(1, 5, len(values))
    out, listed = joined(many_moduli(moduli), values, shifts, rng, precision, bounds)
    assert same_bits(out, np.copysign(np.inf, [float(v) for v in values])) and not listed


@pytest.mark.parametrize("bits", [1, 30, 31, 62, 63, 64, 94, 95, 126, 158, 173, 190, 191, 222, 254, 255, MOST_BITS])
def test_residues_of_integers_of_any_length(bits, rng):
    x = np.ldexp(rng.integers(-(2**52), 2**52, 700) * 2.0**-52, bits)
    x = np.rint(np.where(rng.random(700) < 0.5, x, np.ldexp(x, -rng.integers(0, bits + 1, 700))))
    x[:4] = 2.0**bits, -(2.0**bits), 0.0, 1.0
    for moduli in (3, 22, 49):
        system = many_moduli(moduli)
        whole = math.prod(system.moduli)
        for left in (False, True):
            wanted = np.array([
                [symmetric(int(v) * (pow(whole // q, -1, q) if left else 1), q) for v in x] for q in system.moduli
            ]).astype(np.int8)  # fmt: skip
            got = np.empty((moduli, x.size), np.int8)
            residues(x, part_numbers(moduli, bits, left=left), system.modulus, got)
            assert np.array_equal(got, wanted)
            if not vnni.supported():
                continue
            from prismm.cpu.kernels.packed import pack_columns, pack_rows

            rows = np.ascontiguousarray(x.reshape(4, 175))
            packed = np.full((moduli, 4, VNNI.pitch(175)), 77, np.int8)
            rest = np.zeros(4, np.int64), offset_bits(bits), *byte_numbers(moduli, bits, left=left), system.modulus, 0
            pack_rows(rows, *rest, packed, np.zeros(4), np.zeros(4, np.uint8))
            assert np.array_equal(packed[:, :, :175], wanted.reshape(moduli, 4, 175))
            columns = np.ascontiguousarray(rows.T)
            right = np.full((moduli, *VNNI.panel_shape(4, 175)), 99, np.uint32)
            pack_columns(columns, 0, *rest, right, np.zeros(4), np.zeros(4, np.uint8))
            plain = right.view(np.uint8).reshape(moduli, -1, 32, 4).astype(np.int64) - 128
            plain = plain.transpose(0, 1, 3, 2).reshape(moduli, -1, 32)[:, :175, :4]
            assert np.array_equal(plain, wanted.reshape(moduli, 4, 175).transpose(0, 2, 1))


@pytest.mark.parametrize("name", HOSTILE)
def test_extents_are_those_of_the_elements(name, seed):
    a, b = HOSTILE[name](7, 40, 9, seed)
    a[3] = 0.0
    for x, kernel, vectors in ((a, extent_rows, a), (b, extent_columns, b.T)):
        x = np.ascontiguousarray(x)
        top, low = np.full((2, len(vectors)), 9, np.int64)
        norm1, norm2 = np.full((2, len(vectors)), np.nan)
        kernel(x, top, low, norm1, norm2)
        for i, vector in enumerate(vectors):
            exact = [Fraction(float(v)) for v in vector if v != 0]
            if not exact:
                assert (top[i], low[i], norm1[i], norm2[i]) == (0, 0, 0, 0)
                continue
            largest = max(map(abs, exact))
            assert Fraction(2) ** (int(top[i]) - 1) <= largest < Fraction(2) ** int(top[i])
            unit = Fraction(2) ** int(low[i])
            assert all((v / unit).denominator == 1 for v in exact)
            assert any((v / unit / 2).denominator != 1 for v in exact)
            scaled = [abs(v) / Fraction(2) ** int(top[i]) for v in exact]
            assert abs(Fraction(norm1[i]) - sum(scaled)) <= Fraction(1, 2**45)
            assert abs(Fraction(norm2[i]) - sum(v * v for v in scaled)) <= Fraction(1, 2**45)


@precisions
@pytest.mark.parametrize("moduli", [3, 13, 25, 37, 49])
def test_corrections_of_any_size_decide_or_leave_open(moduli, precision, rng):
    """C' + e for e far above C' to far below its last bit, at midpoints above all, exact or with an error."""
    fmt = FORMATS[precision]
    values = numbers(moduli, rng)
    values += [
        (2 * int(rng.integers(1 << (precision - 1), 1 << precision)) + 1) << int(rng.integers(0, 20)) for _ in range(99)
    ]
    values = [v for v in values if abs(v) <= 2 ** room(moduli)]
    n = len(values)
    size = np.exp2(rng.choice([-1560.0, -900, -400, -120, -60, 0, 40, 200], n) + rng.random(n))
    e = np.ldexp(rng.choice([-1.0, 0.0, 1.0], n) * size, 650)
    factor = rng.choice([0.0, 2.0**-44, 2.0**-40, 0.3, 0.7, 2.0, 2.0**300, 2.0**500], n)
    error = np.minimum(np.abs(e), 2.0**480) * factor
    error = np.where(e == 0.0, rng.choice([0.0, 2.0**-300], n), error)
    binade = rng.choice([fmt.subnormal_exponent, fmt.subnormal_exponent + 9, fmt.minexp, 0, fmt.maxexp, 1030, 1900], n)
    shifts = np.array([v.bit_length() for v in values]) - binade
    out, listed = joined(many_moduli(moduli), values, shifts, rng, precision, correction=e, error=error)
    settled = 0
    for x, (v, s) in enumerate(zip(values, shifts.tolist(), strict=True)):
        if x in listed:
            continue
        settled += e[x] != 0.0
        for end in (-1, 0, 1):
            exact = v + (Fraction(e[x]) + end * Fraction(error[x])) / 2**650
            scaled = exact * 2**2400
            assert scaled.denominator == 1
            wanted = round_fraction(fmt, int(scaled), -s - 2400)
            assert same_bits([out[x]], [wanted]), (v, e[x], error[x], s, out[x], wanted)
        assert same_bits([out[x]], [wanted])
    assert settled > n // 10


@pytest.mark.parametrize("name", HOSTILE)
def test_residual_products_are_within_their_error(name, seed, rng):
    m, k, n = 4, 23, 5
    a, b = (np.ascontiguousarray(x) for x in HOSTILE[name](m, k, n, seed))
    tops = [np.frexp(np.abs(x).max(axis=axis))[1].astype(np.int64) for x, axis in ((a, 1), (b, 0))]
    for bits in (3, 20, 60, 150):
        s, t = bits - tops[0], bits - tops[1]
        value, error = np.full((2, m, n), np.nan)
        residual_product(a, b, s, t, value, error)
        for i in range(m):
            for j in range(n):
                exact = Fraction(0)
                for h in range(k):
                    x = Fraction(float(a[i, h])) * Fraction(2) ** int(s[i])
                    y = Fraction(float(b[h, j])) * Fraction(2) ** int(t[j])
                    exact += x * y - round(x) * round(y)
                missed = abs(Fraction(value[i, j]) - exact * 2**UNIT)
                assert missed <= Fraction(error[i, j])
                assert error[i, j] <= 2.0**700 * 4.0**bits


@njit
def _of_products(c, i, j, w, modulus, reciprocal, weights, sums):
    many.product_sums(c, i, j, w, modulus, reciprocal, weights, sums)


@njit
def _of_digits(d, i, panel, w, modulus, reciprocal, weights, sums):
    many.digit_sums(d, i, panel, w, modulus, reciprocal, weights, sums)


@pytest.mark.slow
@pytest.mark.parametrize("moduli", [2, 9, 13, 19, 25, 31, 37, 43, 49])
def test_digits_and_products_have_the_same_limbs(moduli, rng):
    """Two to nine limbs: sums of int32 products, and of the bytes that tiles leave of them, panel by panel."""
    system, rows, n = many_moduli(moduli), 50, 90
    tables = system.modulus, system.reciprocal, system.weights
    c = rng.integers(-(2**31), 2**31, (rows, moduli, 96)).astype(np.int32)
    q = np.array(system.moduli)[:, None]
    digits = np.zeros((2, 3, moduli, 32, 32), np.int8)
    reduced = (c + q // 2) % q - q // 2
    for strip, panel in np.ndindex(2, 3):
        part = reduced[32 * strip : 32 * strip + 32, :, 32 * panel : 32 * panel + 32]
        digits[strip, panel, :, : part.shape[0]] = part.transpose(1, 0, 2)
    for i in (0, 1, 31, 32, 49):
        for panel in (0, 1, 2):
            w = n - 32 * panel
            found = np.full((2, many.LIMBS, 256), 7.0)
            _of_products(c, i, 32 * panel, w, *tables, found[0])
            _of_digits(digits, i, panel, w, *tables, found[1])
            exact = [
                sum(int(x) << (40 * (system.limbs - 1 - place)) for place, x in enumerate(sums[: system.limbs, w - 1]))
                for sums in found
            ]
            # For q = 256 a digit of 128 is -128 as a byte: the product of all moduli less.
            assert (exact[0] - exact[1]) % math.prod(system.moduli) == 0
            same = (found[0] == found[1])[: system.limbs, :w].all(axis=0)
            assert same.mean() > 0.9
            assert (found[:, : system.limbs, (w + 15) // 16 * 16 :] == 7.0).all()
