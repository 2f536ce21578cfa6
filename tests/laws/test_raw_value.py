"""The raw value of `Residues(N)` against an obvious twin in Python integers, bit for bit, for every N and engine."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import prismm
from prismm.core.moduli import largest_shift, norm_fraction_bits, norm_limit
from prismm.errors import ArgumentError
from prismm.formats import format_of, round_fraction
from prismm.testing import HOSTILE, exact_product
from prismm.testing.parts import real_arrays
from tests.judge import ENGINES, assert_same_bits, each_dtype, each_engine, problem, usable_engines


def integers_of(row: list[Fraction], moduli: int, terms: int) -> tuple[list[int], int]:
    """(A', s) for one whole row or column: both real parts of complex data one after the other."""
    largest = max(map(abs, row), default=Fraction(0))
    if largest == 0:
        return [0] * len(row), 0
    e = math.frexp(largest)[1]  # 2^(e-1) <= largest < 2^e: it is a float
    q = norm_fraction_bits(moduli, terms)
    norm = sum((-(-abs(x) * Fraction(2) ** (q - e) // 1)) ** 2 for x in row)
    s = largest_shift(moduli, norm) + q - e
    rounded = [round(x * Fraction(2) ** s) for x in row]  # Python rounds ties to even
    assert 2 * sum(x * x for x in rounded) <= norm_limit(moduli)
    return rounded, s


def fractions(x: np.ndarray) -> list[list[Fraction]]:
    """Rows of x as Fractions; of a complex matrix [re | im]."""
    whole = np.concatenate([p.astype(np.float64) for p in real_arrays(x)], axis=1)
    return [[Fraction(v) for v in row] for row in whole.tolist()]


def twin(a: np.ndarray, b: np.ndarray, moduli: int) -> np.ndarray:
    """RN(Σ A'·B' · 2^-(s+t)), as the docstring of `Residues` has it."""
    k = a.shape[1]
    dtype = np.result_type(a, b)
    terms = 2 * k if dtype.kind == "c" else k
    rows = [integers_of(row, moduli, terms) for row in fractions(a)]
    columns = [integers_of(column, moduli, terms) for column in fractions(np.ascontiguousarray(b.T))]
    out = np.zeros((a.shape[0], b.shape[1]), dtype)
    fmt = format_of(dtype)
    for i, (x, s) in enumerate(rows):
        for j, (y, t) in enumerate(columns):
            if dtype.kind == "c":
                real = sum(p * q for p, q in zip(x[:k], y[:k], strict=True)) - sum(
                    p * q for p, q in zip(x[k:], y[k:], strict=True)
                )
                imaginary = sum(p * q for p, q in zip(x[:k], y[k:], strict=True)) + sum(
                    p * q for p, q in zip(x[k:], y[:k], strict=True)
                )
                out.real[i, j] = round_fraction(fmt, real, -(s + t))
                out.imag[i, j] = round_fraction(fmt, imaginary, -(s + t))
            else:
                out[i, j] = round_fraction(fmt, sum(p * q for p, q in zip(x, y, strict=True)), -(s + t))
    return out


def draws(seed: int, dtype: str, k: int) -> tuple[np.ndarray, np.ndarray]:
    """A row and a column of every hostile draw."""
    pairs = [HOSTILE[name](1, k, 1, seed + i, dtype) for i, name in enumerate(HOSTILE)]
    return np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs], axis=1)


def overflow_as_exact(value: np.ndarray, exact: np.ndarray) -> int:
    """Law 4: the exact value stands where only one of the two is infinite, or their signs differ; how many entries."""
    changed = 0
    pairs = [(value.real, exact.real), (value.imag, exact.imag)] if np.iscomplexobj(value) else [(value, exact)]
    for own, right in pairs:
        other = (np.isinf(own) != np.isinf(right)) | (np.isinf(own) & (own != right))
        own[other] = right[other]
        changed += int(other.sum())
    return changed


@pytest.mark.covering("moduli")
@each_dtype
@pytest.mark.parametrize("moduli", range(2, 23))
def test_the_value_is_the_twins_on_every_engine(moduli, dtype, seed):
    a, b = draws(seed, dtype, 14)
    exact = exact_product(a, b)
    with np.errstate(over="ignore"):
        expected = twin(a, b, moduli)
        changed = overflow_as_exact(expected, exact.rounded(dtype))
    for engine in usable_engines():
        c, report = prismm.matmul(a, b, scheme=prismm.Residues(moduli), engine=engine, full_output=True)
        assert (report.accuracy, report.engine) == ("none", engine)
        paths = {"value": c.size * len(real_arrays(c)) - changed, "exact": changed}
        assert report.paths == {path: count for path, count in paths.items() if count}
        assert_same_bits(c, expected, engine)
        assert exact.within(c, report.bounds)[np.isfinite(c)].all()


@pytest.mark.covering("engine")
@each_engine
@pytest.mark.parametrize("k", [1, 2, 3, 259])
def test_short_and_long_rows_have_the_twins_value(k, engine, seed):
    problem(engine)
    for dtype in ("float64", "complex64"):
        a, b = HOSTILE["phi1"](3, k, 4, seed, dtype)
        for moduli in (3, 8, 15, 21):
            assert_same_bits(prismm.matmul(a, b, scheme=prismm.Residues(moduli), engine=engine), twin(a, b, moduli))


@pytest.mark.parametrize("moduli", [3, 7, 15, 18])
def test_rows_of_any_magnitude_use_all_bits(moduli, seed):
    """Scaling by the norm of unscaled data wraps around here: 2^-6·U(0, 1), Gram matrices, powers of two."""
    for name in ("tiny_uniform", "gram", "powers_of_two", "uniform"):
        a, b = HOSTILE[name](6, 20, 6, seed)
        for engine in usable_engines():
            assert_same_bits(
                prismm.matmul(a, b, scheme=prismm.Residues(moduli), engine=engine), twin(a, b, moduli), name
            )


@pytest.mark.parametrize("moduli", [1, 23, 0, -1, True, 15.0, "15", None])
def test_other_numbers_of_moduli_are_refused(moduli):
    with pytest.raises(ArgumentError, match=r"moduli=.*from 2 to 22"):
        prismm.Residues(moduli)


def test_too_few_moduli_for_the_inner_dimension_are_refused():
    a, b = np.ones((1, 20_000)), np.ones((20_000, 1))
    for engine in usable_engines():
        with pytest.raises(ArgumentError, match=r"2 moduli .* 20000.*Residues\(moduli=3\)"):
            prismm.matmul(a, b, scheme=prismm.Residues(2), engine=engine)
    assert prismm.matmul(a, b, scheme=prismm.Residues(3))[0, 0] == 20_000


def test_schemes_print_compare_and_hash_by_value():
    assert prismm.Residues(15) == prismm.Residues() == prismm.Residues(moduli=15)
    assert len({prismm.Residues(15), prismm.Residues(15), prismm.Residues(14), prismm.Native()}) == 3
    assert repr(prismm.Residues(14)) == "Residues(moduli=14)"
    assert prismm.Residues().reproducible and not prismm.Native().reproducible
    assert set(ENGINES) == set(prismm.engines.available())
