"""gemm of a scheme's own value, without an accuracy or with "fast": RN(alpha·V + beta·C) of every entry for itself.

V is what the scheme makes of row and column before its last rounding, in exact arithmetic, whatever else is in a tile.
"""

from __future__ import annotations

from fractions import Fraction
from operator import mul

import numpy as np
import pytest

import prismm
from prismm import Slices
from prismm.core.composite import Setting
from prismm.core.specials import real_operands
from prismm.cpu.scaling import scale
from prismm.formats import FP64, format_of, round_fraction
from prismm.schemes.slice_layout import Layout
from prismm.testing import HOSTILE, exact_product
from tests.cpu.kernels.slice_twin import binade, two, vector
from tests.judge import assert_same_bits

SCHEMES = [
    Slices("int8", slices=3, fast=True), Slices("int8", slices=7), Slices("fp16", slices=4, rounding="toward-zero"),
    Slices("fp64", slices=4), Slices("int8", slices=6, exponents="adaptive"),
    Slices("fp16", slices=5, fast=True, exponents="adaptive", rounding="toward-zero"),
]  # fmt: skip


Cut = tuple[list[list[int]], list[int]]


def cut(row: np.ndarray, layout: Layout, slices: int) -> Cut:
    """The slices of a vector: digits, and the exponent of their unit."""
    exact = [Fraction(x) for x in row.tolist()]
    e = binade(max(map(abs, exact))) if any(exact) else 0
    digits, exponents, _ = vector([x / two(e) for x in exact], layout, slices)
    return digits, [x + e for x in exponents]


def value(a: np.ndarray, b: np.ndarray, scheme: Slices) -> list[list[Fraction]]:
    """V of a real product: the exact sum of the products of slices that are kept, in integers."""
    layout, d = scheme.layout(a.shape[1]), scheme.slices
    rows, columns = [cut(x, layout, d) for x in a], [cut(x, layout, d) for x in b.T]
    kept = [(p, q) for p in range(d) for q in range(d - p if scheme.fast else d)]

    def entry(row: Cut, column: Cut) -> Fraction:
        (x, e), (y, f) = row, column
        least = min(e) + min(f)
        whole = sum(sum(map(mul, x[p], y[q])) << (e[p] + f[q] - least) for p, q in kept)
        return whole * two(least)

    return [[entry(row, column) for column in columns] for row in rows]


def rounded(x: Fraction, dtype: np.dtype) -> float:
    """RN, of a fraction whose denominator is a power of two."""
    return round_fraction(format_of(dtype), x.numerator, 1 - x.denominator.bit_length())


Values = list[list[list[Fraction]]]


def values(a: np.ndarray, b: np.ndarray, scheme: Slices) -> Values:
    """V, or its real and imaginary parts."""
    if np.result_type(a, b).kind != "c":
        return [value(a, b, scheme)]
    return [value(*real_operands(a, b, part), scheme) for part in (0, 1)]


def twin(v: Values, c: np.ndarray, alpha: complex, beta: complex) -> np.ndarray:
    """RN(alpha·V + beta·C), real or complex."""
    out = np.empty_like(c)
    ar, ai, br, bi = (Fraction(x) for z in (complex(alpha), complex(beta)) for x in (z.real, z.imag))
    for i, j in np.ndindex(*c.shape):
        x, u = v[0][i][j], Fraction(float(c[i, j].real))
        if len(v) == 1:
            out[i, j] = rounded(ar * x + br * u, c.dtype)
            continue
        y, w = v[1][i][j], Fraction(float(c[i, j].imag))
        out.real[i, j] = rounded(ar * x - ai * y + br * u - bi * w, c.dtype)
        out.imag[i, j] = rounded(ar * y + ai * x + br * w + bi * u, c.dtype)
    return out


def operands(name, dtype, seed):
    """Of which C cancels AB in parts of the entries: to rounding errors, and to those of the slices."""
    a, b = HOSTILE[name](5, 12, 6, seed=seed, dtype=np.dtype(dtype))
    c = exact_product(a, b).rounded(np.dtype(dtype))
    c[::2] = prismm.matmul(a[::2], b, accuracy="native")
    c[:, -1] = HOSTILE[name](5, 1, 2, seed=seed + 1, dtype=np.dtype(dtype))[0][:, 0]
    return a, b, -c


@pytest.mark.covering(("dtype", "scheme"))
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.parametrize("name", ["normal", "wide_rows", "subnormal_results", "cancelling", "lattice", "near_ties"])
def test_the_sum_is_rounded_once(name, dtype, scheme, seed):
    a, b, c = operands(name, dtype, seed)
    factors = [(1.0, 1.0), (-0.7, 1.3), (2.0**-30, 0.0), (0.1, 0.1)]
    if np.iscomplexobj(a):
        factors = [(1.0, 1.0), (1 + 2j, -0.5j)]
    v = values(a, b, scheme)
    for addend in (c, -prismm.matmul(a, b, scheme=scheme)):
        for alpha, beta in factors:
            expected = twin(v, addend, alpha, beta)
            for accuracy in (None, "fast"):
                keywords = {} if accuracy is None else {"accuracy": accuracy}
                got = prismm.gemm(a, b, addend, alpha=alpha, beta=beta, scheme=scheme, **keywords)
                assert_same_bits(got, expected)


ALL = [
    *SCHEMES, prismm.Words.tf32(3), prismm.Words.bf16(6), prismm.ScaledHalf(), prismm.TileInt8(tile=(8, 8, 16)),
    Slices("int8", slices=12, bits=7),
]  # fmt: skip


@pytest.mark.parametrize("scheme", ALL)
def test_an_entry_does_not_depend_on_its_tile(scheme, rng):
    dtype, top = (
        (np.float32, 2.0**124) if isinstance(scheme, (prismm.ScaledHalf, prismm.TileInt8)) else (float, 2.0**1016)
    )
    a, b = rng.standard_normal((8, 30)).astype(dtype), rng.standard_normal((30, 8)).astype(dtype)
    if not scheme.reproducible:  # sums of the BLAS, whose order may be another one beside other rows
        a, b = (rng.integers(-9, 10, x.shape).astype(dtype) for x in (a, b))
    c = -prismm.matmul(a, b, scheme=scheme) + (0 if scheme.reproducible else dtype(2.0**-9))
    huge = np.concatenate([a, np.full((8, 30), top, dtype)])
    for accuracy in (None, "fast"):
        keywords = {"scheme": scheme, **({} if accuracy is None else {"accuracy": accuracy})}
        alone = prismm.gemm(a, b, c, alpha=1.0, beta=1.0, **keywords)
        beside = prismm.gemm(huge, b, np.concatenate([c, c]), alpha=1.0, beta=1.0, **keywords)
        assert_same_bits(beside[:8], alone)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_infinities_are_those_of_the_exact_sum(scheme, rng):
    a = rng.uniform(0.9, 1.1, (6, 4)) * 2.0**511
    b = rng.uniform(0.9, 1.1, (4, 7)) * 2.0**510.5
    c = np.where(rng.random((6, 7)) < 0.5, 1.0, -1.0) * 2.0**1023
    v = values(a, b, scheme)
    for alpha, beta in ((1.0, 1.0), (2.0, -1.0), (1.0, 0.3), (-4.0, 1.9), (8.0, 0.0)):
        got = prismm.gemm(a, b, c, alpha=alpha, beta=beta, scheme=scheme)
        exact = prismm.gemm(a, b, c, alpha=alpha, beta=beta, accuracy="correctly-rounded")
        own = twin(v, c, alpha, beta)
        expected = np.where((np.isinf(exact) == np.isinf(own)) & (~np.isinf(exact) | (exact == own)), own, exact)
        assert_same_bits(got, expected)


@pytest.mark.parametrize("exponents", ["grid", "adaptive"])
@pytest.mark.parametrize(("bits", "slices"), [(8, 4), (8, 7), (7, 20)])
def test_numbers_of_a_value_are_all_of_it_or_less(bits, slices, exponents, rng):
    scheme = Slices("int8", slices=slices, bits=bits, exponents=exponents)
    a, b = (rng.standard_normal(shape) * 2.0 ** rng.integers(-130, 1, shape) for shape in ((4, 30), (30, 5)))
    a[:, 15:], b[15:, ::2] = a[:, :15], -b[:15, ::2] * (1.0 + 2.0**-50)
    setting = Setting(FP64, 1, 1 << 30, scheme.implementation("cpu").engine_for(None), further=True)
    sides = scale(a, "left", 1), scale(b, "right", 1)
    found = scheme.implementation("cpu").multiply(
        *(scheme.implementation("cpu").split(x, setting) for x, _ in sides), setting
    )
    v, (e, f) = value(a, b, scheme), (units.exponent.tolist() for _, units in sides)
    for i, j in np.ndindex(4, 5):
        exact = v[i][j] / two(e[i] + f[j])
        parts = [Fraction(float(x[i, j])) for x in (found.high, found.low, *found.rest)]
        if found.whole is None:
            assert sum(parts) == exact
        else:
            integer, unit = found.whole(i, j)
            assert integer * two(unit) == exact
            assert abs(sum(parts) - exact) <= abs(sum(parts[2:])) * two(-100)
    if slices != 7:
        assert (found.whole is None) == (slices == 4) and bool(found.rest) == (slices == 20)
