"""Split operands: congruent residues on every engine, true measurements, and scales that can be cut and joined."""

import math
from fractions import Fraction

import numpy as np
import pytest

from prismm.core.moduli import largest_shift, norm_fraction_bits, norm_limit
from prismm.core.scales import NONFINITE, Scales
from prismm.cpu.engines.integer import DIRECT, FLOAT64, INT8, INT8_7BIT
from prismm.cpu.residues.split import Splitter, split_operand
from prismm.errors import ArgumentError
from prismm.testing import HOSTILE

ENGINES = [INT8, INT8_7BIT, FLOAT64]
DTYPES = ["float64", "float32", "complex128", "complex64", "float16", "int32"]
sides = pytest.mark.parametrize("left", [True, False])


def split(x, splitter, left, extra=0):
    """Residues (parts, moduli, vectors, k) and scales of the vectors in the rows of x."""
    engine, (m, k) = splitter.engine, x.shape
    count = len(splitter.system.moduli)
    shape = (splitter.residue_parts, count, m, k) if left else (splitter.residue_parts, count, k, m + extra)
    out = np.full(shape, 77, engine.dtype)
    scales = split_operand(x if left else x.T, splitter, out, left=left, **({} if left else {"first": extra}))
    return out if left else out[..., extra:].transpose(0, 1, 3, 2), scales


def vectors(x):
    """Rows of x as Fractions: one list per real part."""
    parts = [x.real, x.imag] if np.iscomplexobj(x) else [x]
    return [[[Fraction(v) for v in row] for row in p.astype(np.float64).tolist()] for p in parts]


def draw(dtype, k, seed):
    rng = np.random.default_rng(seed)
    if dtype == "int32":
        return rng.integers(-(2**31), 2**31, (6, k), dtype=np.int32)
    if dtype == "float16":
        return (rng.standard_normal((6, k)) * 2.0 ** rng.integers(-20, 8, (6, k))).astype(np.float16)
    names = [n for n in HOSTILE if n not in ("gram",)]
    return np.concatenate([HOSTILE[n](1, k, 1, seed + i, dtype)[0] for i, n in enumerate(names)])


@pytest.mark.covering("engine", "dtype")
@sides
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
def test_residues_are_congruent_to_the_rounded_operand(engine, dtype, left, seed):
    k = 13
    x = draw(dtype, k, seed)
    is_complex = np.iscomplexobj(x)
    for moduli in (4, 7, 15, 22):
        splitter = Splitter(moduli, engine, k, is_complex)
        residues, scales = split(x, splitter, left, extra=2)
        q = norm_fraction_bits(moduli, splitter.terms)
        parts = vectors(x)
        q_product = math.prod(splitter.system.moduli)
        for i in range(len(x)):
            whole = [abs(v) for p in parts for v in p[i]]
            largest = max(whole)
            e = math.frexp(float(largest))[1] if largest else 0
            norm = sum(math.ceil(v * Fraction(2) ** (q - e)) ** 2 for v in whole)
            s = (largest_shift(moduli, norm) if largest else 0) + q - e
            assert scales.exponent[i] == e and (scales.shift[i] == s or not largest)
            integers = [[round(v * Fraction(2) ** s) for v in p[i]] for p in parts]
            if is_complex:
                integers.append([a + b for a, b in zip(*integers, strict=True)])
            for index, modulus in enumerate(splitter.system.moduli):
                fold = pow(q_product // modulus, -1, modulus) if left else 1
                for part, values in enumerate(integers):
                    got = [int(r) for r in residues[part, index, i]]
                    assert [r % modulus for r in got] == [v * fold % modulus for v in values]
                    assert max(map(abs, got)) <= modulus // 2
            check_terms(scales, i, [v * Fraction(2) ** s for p in parts for v in p[i]])


def check_terms(scales, i, scaled):
    """The bound's vectors of one row bound what they name from above."""
    half_norm1, residual, norm2, inexact = (Fraction(float(t)) for t in scales.terms[:, i])
    rounded = [round(v) for v in scaled]
    gap = sum((v - r) ** 2 for v, r in zip(scaled, rounded, strict=True))
    assert sum(map(abs, rounded)) <= 2 * half_norm1 and sum(map(abs, scaled)) <= 2 * half_norm1
    assert sum(r * r for r in rounded) <= norm2**2 and sum(v * v for v in scaled) <= norm2**2
    assert gap <= residual**2 and bool(inexact) == (gap > 0)
    if gap > Fraction(1, 2**100):
        assert residual**2 <= gap * (1 + Fraction(1, 2**20))


@sides
def test_the_integers_alone_decide_an_a_priori_bound(left, seed):
    x = draw("float64", 13, seed)
    measured, fixed = (split(x, Splitter(9, FLOAT64, 13, False, a_priori), left)[1] for a_priori in (False, True))
    assert np.array_equal(measured.shift, fixed.shift)
    assert np.array_equal(measured.terms[[0, 2, 3]], fixed.terms[[0, 2, 3]])
    assert set(fixed.terms[1].tolist()) == {0.0, 1e300}
    assert np.array_equal(fixed.terms[1] > 0, measured.terms[1] > 0)


@sides
@pytest.mark.parametrize("is_complex", [False, True])
def test_levels_count_no_element_twice_and_none_too_many(is_complex, left, seed):
    x = draw("complex128" if is_complex else "float64", 30, seed)
    _, scales = split(x, Splitter(4, FLOAT64, 30, is_complex, levels=True), left)
    parts = vectors(x)
    counted = 0
    for i in range(len(x)):
        sizes = [abs(v) for p in parts for v in p[i]]
        for p, count in enumerate(scales.counts[i]):
            assert count <= sum(v >= Fraction(2) ** (int(scales.exponent[i]) - 1 - p) for v in sizes if v)
            counted += count
    assert counted > len(x) * 8
    assert split(x, Splitter(4, FLOAT64, 30, is_complex), left)[1].counts.shape == (len(x), 0)


@sides
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_nonfinite_vectors_are_named_and_zeroed(dtype, left, rng):
    x = rng.standard_normal((5, 9)).astype(dtype)
    clean, before = split(x, Splitter(8, INT8, 9, dtype == "complex128"), left)
    y = x.copy()
    y[1, 2] = np.inf
    y[3, 0] = complex(0, np.nan) if dtype == "complex128" else np.nan
    residues, scales = split(y, Splitter(8, INT8, 9, dtype == "complex128"), left)
    assert scales.nonfinite.tolist() == [False, True, False, True, False]
    assert (scales.exponent[[1, 3]] == NONFINITE).all()
    assert not residues[:, :, [1, 3]].any()
    keep = [0, 2, 4]
    assert np.array_equal(residues[:, :, keep], clean[:, :, keep])
    assert np.array_equal(scales.terms[:, keep], before.terms[:, keep]) and np.isfinite(scales.terms).all()


@sides
def test_strides_and_neighbours_change_nothing(left, rng):
    big = rng.standard_normal((40, 60)) * 2.0 ** rng.integers(-200, 200, (40, 60))
    x = big[::3, 5:45:2]
    splitter = Splitter(15, INT8, x.shape[1], False)
    residues, scales = split(x, splitter, left)
    read_only = x.copy()
    read_only.flags.writeable = False
    for other in (np.ascontiguousarray(x), np.asfortranarray(x), read_only, x[::-1][::-1]):
        again, more = split(other, splitter, left)
        assert np.array_equal(again, residues) and np.array_equal(more.shift, scales.shift)
    for i in range(len(x)):
        alone, one = split(x[i : i + 1], splitter, left)
        assert np.array_equal(alone[:, :, 0], residues[:, :, i]) and one.shift[0] == scales.shift[i]


def test_scales_are_cut_and_joined_without_loss(rng):
    x = rng.standard_normal((17, 6))
    _, whole = split(x, Splitter(8, INT8, 6, False, levels=True), True)
    pieces = [whole.block(0, 5), whole.block(5, 6), whole.block(6, 6), whole.block(6, 17)]
    joined = Scales.joined(pieces)
    for name in ("shift", "exponent", "terms", "counts"):
        assert np.array_equal(getattr(joined, name), getattr(whole, name))
    assert whole.block(0, 17) is whole and Scales.joined([whole]) is whole
    assert all(p.terms.flags.c_contiguous for p in pieces), "kernels want contiguous vectors"
    assert np.array_equal(whole.power, whole.shift + whole.exponent)


def test_too_few_moduli_for_the_inner_dimension():
    assert Splitter(2, INT8, 2000, False).fraction_bits == 2
    for k, is_complex in ((8161, False), (4081, True), (10**6, False)):
        with pytest.raises(ArgumentError, match="moduli=3"):
            _ = Splitter(2, INT8, k, is_complex).fraction_bits


@pytest.mark.parametrize("k", [2**22, 2**23 - 1, 2**23, 2**24, 2**26])
@pytest.mark.parametrize("is_complex", [False, True])
def test_norms_never_overflow_however_long_the_row(k, is_complex):
    """Integer norms are kept in int64: either the fraction bits shrink with k, or the length is refused."""
    splitter = Splitter(22, INT8, k, is_complex)
    try:
        q = splitter.fraction_bits
    except ArgumentError:
        assert splitter.terms >= 2**23
    else:
        assert splitter.terms * 4**q < 2**63


def test_parts_and_limbs_per_engine():
    assert [Splitter(15, e, 9, c).residue_parts for e in ENGINES for c in (False, True)] == [1, 3] * 3
    for moduli in range(2, 23):
        limbs, largest = Splitter(moduli, DIRECT, 9, False).limbs, math.isqrt(norm_limit(moduli) // 2)
        assert largest <= 2 ** (22 * limbs) and (limbs == 1 or largest > 2 ** (22 * (limbs - 1))), moduli
