"""Moduli and the constants of split and join, against plain integers."""

import itertools
import math

import numpy as np
import pytest

from prismm.core.moduli import (
    LIMB_BITS,
    MAX_LIMBS,
    MAX_MODULI,
    MAX_Q,
    coprime_moduli,
    largest_shift,
    norm_fraction_bits,
    norm_limit,
    operand_bits,
    residue_system,
    scheme_product,
    shift_thresholds,
    symmetric,
)
from tests.cpu.kernels.harness import LARGEST, systems

TABLE = (
    "256 255 253 251 247 241 239 233 229 227 223 217 211 199 197 193 191 181 179 173 167 163 157 151 "
    "149 139 137 131 127 113 109 107 103 101 97 89 83 79 73 71 67 61 59 53 47 43 41 37 29"
)


def test_the_published_table():
    table = tuple(map(int, TABLE.split()))
    assert coprime_moduli(256, len(table)) == table
    published = {7: 27.36, 8: 31.29, 10: 39.12, 12: 46.90, 14: 54.58, 15: 58.39, 18: 69.73, 20: 77.19}
    assert {n: round(operand_bits(n), 2) for n in published} == published


@pytest.mark.parametrize("largest", LARGEST.values())
def test_moduli_are_coprime_and_no_larger_one_was_left_out(largest):
    chosen = coprime_moduli(largest, 8)
    assert chosen[0] == largest
    for left_out in set(range(chosen[-1], largest + 1)) - set(chosen):
        assert any(math.gcd(left_out, q) > 1 for q in chosen if q > left_out)
    assert all(math.gcd(x, y) == 1 for x in chosen for y in chosen if x != y)


def test_too_many_moduli_are_refused():
    assert coprime_moduli(6, 2) == (6, 5)
    with pytest.raises(ValueError, match="only 2 coprime"):
        coprime_moduli(6, 3)


@pytest.mark.parametrize("moduli", range(2, MAX_MODULI + 1))
def test_the_norm_limit_keeps_quotients_away_from_a_half(moduli):
    product, limit = scheme_product(moduli), norm_limit(moduli)
    assert product == math.prod(coprime_moduli(256, moduli))
    assert limit * 2**16 <= product * (2**16 - 1)  # limit <= P(1 - 2^-16)
    assert limit * 2**15 > product * (2**15 - 1)  # and no more is given away than that


@pytest.mark.parametrize("moduli", range(2, MAX_MODULI + 1))
def test_thresholds_agree_with_the_definition(moduli, rng):
    thresholds = shift_thresholds(moduli)
    assert thresholds[-1] >= 1 and all(x > y for x, y in itertools.pairwise(thresholds))
    norms = [1, 2, 3] + [t + d for t in thresholds for d in (-1, 0, 1)] + [int(x) for x in rng.integers(1, 2**62, 20)]
    for norm in norms:
        if 0 < 2 * norm <= norm_limit(moduli):
            t = largest_shift(moduli, norm)
            assert norm <= thresholds[t]
            assert t + 1 == len(thresholds) or norm > thresholds[t + 1]


@pytest.mark.parametrize("terms", [0, 1, 2, 3, 100, 8192, 131071, 2**22, 2**23 - 1, 2**23, 2**24, 2**40])
def test_norms_fit_the_limit_unscaled_and_in_64_bits(terms):
    found = set()
    for moduli in range(2, MAX_MODULI + 1):
        q = norm_fraction_bits(moduli, terms)
        found.add(q)
        if q > 0:
            assert 2 * max(terms, 1) * 4**q <= norm_limit(moduli)
            assert terms * 4**q < 2**63, "the sum of squares is kept in int64"
            full = min(MAX_Q, q + 1)
            assert full == q or 2 * max(terms, 1) * 4**full > norm_limit(moduli) or terms * 4**full >= 2**60
    assert len(found) > 1


def test_symmetric_residues():
    for q in (2, 3, 127, 128, 255, 256):
        for value in range(-3 * q, 3 * q):
            r = symmetric(value, q)
            assert (r - value) % q == 0 and -q < 2 * r <= q


def test_every_system_covers_its_scheme_and_its_tables_are_exact():
    for moduli, kind, system in systems():
        q_product = math.prod(system.moduli)
        assert q_product >= scheme_product(moduli), (moduli, kind)
        assert q_product // system.moduli[-1] < scheme_product(moduli), "one modulus more than needed"
        if kind == "int8":
            assert system.moduli == coprime_moduli(256, moduli)
        assert system.limbs <= MAX_LIMBS
        assert q_product < 2 ** (LIMB_BITS * system.limbs)
        value = sum(
            int(x) << (LIMB_BITS * (system.limbs - 1 - i)) for i, x in enumerate(system.product[: system.limbs])
        )
        assert value == q_product
        for index, q in enumerate(system.moduli):
            assert system.modulus[index] == q and system.reciprocal[index] == 1.0 / q
            inverse = pow(q_product // q, -1, q)
            for p in range(system.parts):
                assert (int(system.right[index, p]) - (1 << (system.part_bits * p))) % q == 0
                assert (int(system.left[index, p]) - (inverse << (system.part_bits * p))) % q == 0
                assert max(abs(system.left[index, p]), abs(system.right[index, p])) <= q // 2
            for d in range(system.digit_split):
                row = system.weights[index * system.digit_split + d]
                weight = sum(int(x) << (LIMB_BITS * (system.limbs - 1 - i)) for i, x in enumerate(row[: system.limbs]))
                assert (weight - (q_product // q << (7 * d))) % q_product == 0 and weight < q_product
                assert not row[system.limbs :].any() and row.max() < 2**LIMB_BITS


def test_every_step_of_split_and_join_stays_exact():
    """The inequalities behind the docstrings, on the actual tables."""
    for moduli, kind, system in systems():
        largest_part = 2**system.part_bits + 1  # the last part; the others are at most half of it
        operand = math.isqrt(norm_limit(moduli) // 2)
        assert operand <= 2 ** (system.part_bits * system.parts)
        for table in (system.left, system.right):
            u = max(
                abs(row[-1]) * largest_part + sum(abs(c) * 2.0 ** (system.part_bits - 1) for c in row[:-1])
                for row in table
            )
            assert u < 2.0**53
            for q, row in zip(system.moduli, table, strict=True):
                if q % 2:
                    # rint(u/q + bias) must not pass a half: (q-1)/2 is 1/(2q) below it.
                    size = abs(row[-1]) * largest_part + sum(abs(c) * 2.0 ** (system.part_bits - 1) for c in row[:-1])
                    assert size / q * 2.0**-52 + system.bias < 0.5 / q, (moduli, kind, q)
        digits = len(system.moduli) * system.digit_split
        largest_digit = LARGEST[kind] // 2 if system.digit_split == 1 else 128
        assert digits * largest_digit * 2.0**LIMB_BITS < 2.0**53
        assert len(system.weights) % 4 == 0 and len(system.weights) >= digits
        # The quotient leaves out all but two limbs: what they may amount to, over Q, must stay below 2^-18.
        left_out = digits * largest_digit * 2.0 ** (LIMB_BITS * (system.limbs - 2)) / math.prod(system.moduli)
        assert left_out < 2.0**-18 or system.limbs == 2
        if kind != "float64":
            assert system.parts <= 2, "the int8 kernels know one or two parts"


def test_an_engine_with_too_small_moduli_is_refused():
    with pytest.raises(ValueError):
        residue_system(22, 16)


def test_tables_are_padded_with_harmless_moduli():
    for _, _, system in systems():
        assert np.all(system.modulus[len(system.moduli) :] == 1.0) and len(system.modulus) % 4 == 0
