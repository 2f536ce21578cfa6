"""Digits of FP8 products: every residue of every modulus, both identities, and how many products a scheme takes."""

import math
from itertools import product

import numpy as np
import pytest

from prismm.core.fp8_moduli import (
    FAMILIES,
    block_length,
    digit_table,
    e4m3_integers,
    fp8_moduli,
    fp8_products,
    fp8_system,
)
from prismm.core.moduli import MAX_MODULI, scheme_product, symmetric
from prismm.formats import E4M3
from prismm.numerics import encodings
from tests import judge

WIDE, NARROW = FAMILIES


def moduli_of(family):
    return [q for q, _ in family.triples] + sorted({q for some in family.singles for q in some})


def test_digits_are_the_integers_of_the_format():
    every = encodings.decode(np.arange(256, dtype=np.uint8), E4M3)
    finite = every[np.isfinite(every)]
    assert set(finite[finite == np.rint(finite)].tolist()) == set(map(float, e4m3_integers(448)))


def test_products_of_digits_are_products_of_residues(rng):
    """Σ w·f(a)·g(b) ≡ a·b for all residues a and many b, and digits are short enough."""

    def check(case):
        family, q = case
        table = digit_table(q, family)
        assert set(table.digits.ravel().tolist()) <= set(e4m3_integers(family.largest))
        residues = np.arange(q)
        some = rng.choice(residues, 64)
        total = sum(w * np.outer(f, f[some]) for w, f in zip(table.weights, table.digits, strict=True))
        assert not ((total - np.outer(residues, some)) % q).any()
        for depth in (16, 32):
            block = block_length(table, family.capacity, depth)
            assert block % depth == 0 and block >= family.block and block * table.largest**2 <= family.capacity

    judge.assert_each(check, [(family, q) for family in FAMILIES for q in moduli_of(family)])


@pytest.mark.parametrize("family", FAMILIES, ids=["wide", "narrow"])
def test_systems(family):
    """Coprime moduli whose product is at least the scheme's; its tables join residues of any integer in range."""

    def check(moduli):
        chosen = fp8_moduli(moduli, family)
        whole = math.prod(chosen)
        assert whole == math.lcm(*chosen) >= scheme_product(moduli)
        system = fp8_system(moduli, family)
        assert system.moduli == chosen
        # The largest of what is added in a limb: `moduli.system_of`.
        assert len(chosen) * system.digit_split < 64
        for value in (scheme_product(moduli) // 2 - 1, -(scheme_product(moduli) // 2 - 1), scheme_product(moduli) // 7):
            digits = [value * pow(whole // q, -1, q) % q for q in chosen]
            total = sum(symmetric(d, q) * (whole // q) for d, q in zip(digits, chosen, strict=True))
            assert symmetric(total, whole) == value

    judge.assert_each(check, range(2, MAX_MODULI + 1))


def test_counts_of_products():
    """The published construction (arXiv:2603.10634) takes 36 and 39 for the first two, and 18 to 21 for float32."""
    assert [fp8_products(moduli, WIDE) for moduli in (14, 15, 7)] == [25, 27, 11]
    assert [fp8_products(moduli, NARROW) for moduli in (14, 15, 7)] == [30, 32, 13]


@pytest.mark.parametrize("q", [3, 5])
def test_two_products_gain_nothing_for_a_prime(q):
    """w1·f1(a)·g1(b) + w2·f2(a)·g2(b) ≡ a·b takes a side that is a multiple of a, or of b: for all f1 and f2."""
    target = np.outer(np.arange(q), np.arange(q)) % q
    multiples = {tuple((w * np.arange(q) % q).tolist()) for w in range(q)}
    functions = [np.array(f) for f in product(range(q), repeat=q)][:: 1 if q == 3 else 61]
    found = 0
    for f1, f2 in product(functions, repeat=2):
        determinants = (np.outer(f1, f2) - np.outer(f2, f1)) % q
        if not determinants.any():
            continue  # dependent: their sum is one product, of a multiple of a
        # Two rows of the equation determine g1 and g2 (with their weights); then all the others must hold.
        i, j = np.argwhere(determinants)[0]
        inverse = pow(int(determinants[i, j]), -1, q)
        g1 = inverse * (f2[j] * target[i] - f2[i] * target[j]) % q
        g2 = inverse * (f1[i] * target[j] - f1[j] * target[i]) % q
        if not ((np.outer(f1, g1) + np.outer(f2, g2) - target) % q).any():
            found += 1
            assert tuple(g1.tolist()) in multiples and tuple(g2.tolist()) in multiples
    assert found
