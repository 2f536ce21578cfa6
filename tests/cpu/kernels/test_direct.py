"""The direct engine against Python integers: scale, limbs, exact sums and one rounding."""

import math
from fractions import Fraction
from operator import mul

import numpy as np
import pytest

from prismm.core.moduli import norm_limit
from prismm.cpu.engines.integer import DIRECT
from prismm.cpu.kernels.direct import LIMBS, direct_product, limb_columns, limb_rows
from prismm.cpu.residues.split import Splitter
from prismm.formats import round_fraction
from tests.cpu.kernels.harness import FORMATS, RAW, call, differing, dot, exact_power, integers, rn, same_bits

LIMB = 22


def limbs_of(x, count, *, columns=False, scale=0):
    m, k = x.shape
    out = np.full((m, count, k), np.nan)
    residual2, tiny = np.zeros(m), np.zeros(m, np.uint8)
    kernel = limb_columns if columns else limb_rows
    source = np.ascontiguousarray(x.T if columns else x)
    call(
        kernel,
        a=source,
        b=source,
        scale=np.zeros(m, np.int64) + scale,
        limbs=count,
        out=out,
        residual2=residual2,
        tiny=tiny,
    )
    return out, residual2, tiny


def multiply(a, b, limbs, shift, precision):
    """One call on (m, k) and (n, k) integers, results as float64."""
    m, n = len(a), len(b)
    left, _, _ = limbs_of(a, limbs)
    right, _, _ = limbs_of(b, limbs, columns=True)
    out, out32 = np.full((m, n), np.nan), np.full((m, n), np.nan, np.float32)
    call(
        direct_product, left=left, right=right, row_shift=np.zeros(m, np.int64),
        column_shift=np.zeros(n, np.int64) + shift, row_terms=np.zeros((4, m)), column_terms=np.zeros((4, n)),
        terms=0.0, row_power=np.zeros(m, np.int64), column_power=np.zeros(n, np.int64),
        row_counts=np.empty((m, 0), np.int64), column_counts=np.empty((n, 0), np.int64), k=a.shape[1], mode=RAW,
        kappa=0.0, magnitude_kappa=0.0, precision=precision, out=out, out32=out32, low=np.empty((0, 0)),
        failed=np.empty(0, np.int32),
    )  # fmt: skip
    return out if precision == 53 else out32.astype(np.float64)


def operands(moduli, k, rng, kind):
    """Integer rows (4, k) and columns (300, k) whose 2-norms may be as large as the scheme allows."""
    top = math.isqrt(norm_limit(moduli) // 2)
    each = float(top) / math.sqrt(k) * (1 - 2.0**-40)
    if kind == "largest":
        a, b = np.full((4, k), each), np.full((300, k), each)
        a[1::2] *= -1
        b[::3, ::2] *= -1
    elif kind == "one large":
        a, b = np.zeros((4, k)), rng.integers(-3, 4, (300, k)).astype(np.float64)
        a[:, -1] = np.array([1.0, -1.0, 0.5, 1 - 2.0**-53]) * float(top) * (1 - 2.0**-52)
        b[:, 0] = each
    else:
        a = rng.uniform(-1, 1, (4, k)) * each
        b = np.ldexp(rng.uniform(-1, 1, (300, k)), -rng.integers(0, 60, (300, k))) * each
    return np.rint(a), np.rint(b)


@pytest.mark.covering
@pytest.mark.parametrize("precision", [53, 24])
@pytest.mark.parametrize("kind", ["largest", "one large", "random"])
@pytest.mark.parametrize("moduli", [2, 6, 11, 12, 16, 17, 18, 22])
def test_any_product_is_rounded_once(moduli, kind, precision, rng):
    fmt = FORMATS[precision]
    limbs = Splitter(moduli, DIRECT, 10, False).limbs
    assert limbs <= LIMBS
    for k in (1, 5, 258):
        a, b = operands(moduli, k, rng, kind)
        b = b[: 300 if k < 9 else 20]
        rows, columns = ([integers(x)[0] for x in operand] for operand in (a, b))
        exact = [[sum(map(mul, x, y)) for y in columns] for x in rows]
        size = max(1, max(abs(v) for row in exact for v in row)).bit_length()
        for shift in (0, size + 1070 if precision == 53 else size + 145, size - fmt.maxexp):
            got = multiply(a, b, limbs, shift, precision)
            wanted = [[round_fraction(fmt, v, -shift) for v in row] for row in exact]
            assert same_bits(got, wanted), (k, shift, differing(np.ravel(got), np.ravel(wanted)))


def test_long_sums_take_their_carries(rng):
    """Thousands of products of one sign whose limbs are all nearly as large as limbs may be."""
    for moduli, k in ((17, 4100), (22, 1027), (11, 8191)):
        a, b = operands(moduli, k, rng, "largest")
        if moduli > 11:  # else the scheme has no room for them
            for x in (a, b):
                x[2:4] = (2.0**21 - rng.integers(1, 50, (2, k))) * 2.0**22 + 2.0**21 - rng.integers(1, 50, (2, k))
            a[3] += 2.0**50
        assert all(2 * dot(x, x) <= norm_limit(moduli) for x in (*a, *b[:4]))
        got = multiply(a, b[:4], Splitter(moduli, DIRECT, k, False).limbs, 0, 53)
        assert same_bits(got, [[rn(dot(x, y), FORMATS[53]) for y in b[:4]] for x in a])


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("moduli", [2, 11, 12, 17, 18, 22])
def test_limbs_are_balanced_and_add_up(moduli, columns, rng):
    top = math.isqrt(norm_limit(moduli) // 2)
    largest = float(top) * (1 - 2.0**-52)
    count = Splitter(moduli, DIRECT, 10, False).limbs
    row = [0.0, 0.5, 1.5, -2.5, largest, -largest] + [float(x) for x in rng.uniform(-1, 1, 30) * largest]
    row += [s * 2.0**e for e in range(top.bit_length() - 1) for s in (1, -1)]
    out, residual2, tiny = limbs_of(np.array([row, row[::-1]]), count, columns=columns)
    for i, values in enumerate((row, row[::-1])):
        for h, x in enumerate(values):
            assert sum(int(d) << (LIMB * p) for p, d in enumerate(out[i, :, h])) == round(Fraction(x))
            assert max(abs(d) for d in out[i, :, h]) <= 2.0**LIMB
            assert max([abs(d) for d in out[i, :-1, h]], default=0) <= 2.0 ** (LIMB - 1)
        square = sum((Fraction(x) - round(Fraction(x))) ** 2 for x in values)
        assert abs(Fraction(float(residual2[i])) - square) <= square * exact_power(-40) and square > 0
    assert not tiny.any()


@pytest.mark.parametrize("columns", [False, True])
def test_nonfinite_and_vanishing_elements(columns):
    x = np.array([[1.0, np.inf, 2.0], [np.nan, 1.0, 1.0], [1.0, 2.0**-1000, 3.0], [4.0, 0.0, 0.0]])
    scale = np.array([-(1 << 20), -(1 << 20), 3, -1000])
    out, residual2, tiny = limbs_of(x, 3, columns=columns, scale=scale)
    assert not out[:2].any() and not residual2[:2].any()
    assert out[2, 0].tolist() == [8.0, 0.0, 24.0] and not out[2, 1:].any() and not out[3].any()
    assert tiny[2:].tolist() == [1, 1] and residual2[2] == 0.0
