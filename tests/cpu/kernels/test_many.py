"""Systems of up to 49 moduli: tables, residues, extents and the join, against Python integers."""

import math
from fractions import Fraction

import numpy as np
import pytest

from prismm.core.many_moduli import MOST_BITS, MOST_MODULI, byte_numbers, many_moduli, offset_bits, part_numbers, room
from prismm.core.moduli import coprime_moduli, symmetric
from prismm.cpu.engines.integer import VNNI
from prismm.cpu.kernels import many, vnni
from prismm.cpu.kernels.extent import extent_columns, extent_rows
from prismm.cpu.kernels.many_residues import residues
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


def joined(system, values, shift, rng, precision, bounds=None):
    """One row of integers through `join_many`: values and the listed entries."""
    n = len(values)
    c, _, _ = encode(system, values, 0, rng, wide=False)
    whole = np.zeros((1, len(system.moduli), -(-n // 16) * 16), np.int32)
    whole[0, :, :n] = c[:, 0]
    rows, columns = bound_vectors(np.zeros(n) if bounds is None else np.asarray(bounds, np.float64))
    nothing = np.empty((0, 0))
    out, out32, failed = np.full((1, n), np.nan), np.full((1, n), np.nan, np.float32), np.empty(n, np.int32)
    count = call(
        many.join_many, c=whole, modulus=system.modulus, reciprocal=system.reciprocal, weights=system.weights,
        product=system.product, quotient=system.quotient, row_shift=np.zeros(1, np.int64),
        column_shift=np.zeros(n, np.int64) + shift, row_terms=rows, column_terms=columns, terms=0.0,
        correction=nothing, error=nothing, precision=precision, out=out, out32=out32, failed=failed,
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
        [fmt.subnormal_exponent - 1, fmt.subnormal_exponent + 9, fmt.minexp, 0, fmt.maxexp], len(values)
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
