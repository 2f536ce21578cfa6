"""Every class of bounds at every way to ask for entries: the same numbers, and never below the exact error."""

from fractions import Fraction

import numpy as np
import pytest

import prismm
from prismm.core.bounds import ConventionalBound, RoundedBound, rows_and_columns
from prismm.cuda.gemm.sum import SumBound
from prismm.cuda.multiword.implementation import WordsBound
from prismm.cuda.multiword.launches import Bound
from prismm.cuda.slices.implementation import SlicesBound
from prismm.formats import FP32, FP64
from prismm.schemes.slices import Slices
from prismm.testing import exact_product

M, K, N = 6, 9, 5
INDICES = [
    (2, 3), (-1, -2), (2, slice(None)), (slice(None), 3), (slice(1, 4), slice(0, 5, 2)), (slice(None), slice(None)),
    (-2, slice(4, 0, -1)),
]  # fmt: skip
WEIGHT = 1.75


def draw(rng, dtype):
    """Operands of wide range, with a row and a column of zeros."""
    pair = []
    for shape in ((M, K), (K, N)):
        x = rng.standard_normal(shape) * np.exp2(rng.integers(-8, 9, shape))
        x = x + 1j * rng.standard_normal(shape) if dtype.startswith("complex") else x
        pair.append(x.astype(dtype))
    pair[0][4], pair[1][:, 1] = 0, 0
    return pair


def errors(a, b, c, weight):
    """|c - weight·ab| of the larger real part, exactly."""
    parts = [[(Fraction(float(z.real)), Fraction(float(z.imag))) for z in vector] for vector in (*a, *b.T, *c)]
    rows, columns, values = parts[:M], parts[M : M + N], parts[M + N :]
    found = np.empty(c.shape, object)
    for i, j in np.ndindex(*c.shape):
        pairs = list(zip(rows[i], columns[j], strict=True))
        real = weight * sum((p * r - q * s for (p, q), (r, s) in pairs), Fraction(0))
        imaginary = weight * sum((p * s + q * r for (p, q), (r, s) in pairs), Fraction(0))
        found[i, j] = max(abs(values[i][j][0] - real), abs(values[i][j][1] - imaginary))
    return found


def bounds(kind, a, b):
    """The bound of this kind, the values that it is of, and by how much these are scaled."""
    single = a.dtype in (np.float32, np.complex64)
    fmt, terms = FP32 if single else FP64, K * (2 if np.iscomplexobj(a) else 1)
    if kind == "conventional":
        return ConventionalBound(fmt, a, b, terms, fmt.unit_roundoff), a @ b, 1
    if kind == "rounded":
        return RoundedBound(fmt), exact_product(a, b).rounded(a.dtype), 1
    if kind == "sum":
        own = ConventionalBound(fmt, a, b, terms, fmt.unit_roundoff)
        return SumBound(fmt, a, b, terms, own, WEIGHT), (a @ b) * a.dtype.type(WEIGHT), WEIGHT
    if kind == "words":
        # float32 products are words of 24 bits: their sum errs like any, and nothing underflows
        return WordsBound(fmt, a, b, Bound(terms * fmt.unit_roundoff, 0.0, terms), None), a @ b, 1
    scheme = Slices("int8", slices=4 if single else 8)
    return SlicesBound(scheme, scheme.slices, fmt, a, b), prismm.matmul(a, b, scheme=scheme), 1


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32", "complex64"])
@pytest.mark.parametrize("kind", ["conventional", "rounded", "sum", "words", "slices"])
def test_entries_asked_for_in_any_way_have_bounds_that_hold(kind, dtype, rng):
    a, b = draw(rng, dtype)
    bound, c, weight = bounds(kind, a, b)
    whole = bound.at(c, slice(None), slice(None))
    assert whole.shape == c.shape
    for (i, j), error in np.ndenumerate(errors(a, b, c, Fraction(weight))):
        assert error <= Fraction(float(whole[i, j])), (i, j)
    for i, j in INDICES:
        part = np.asarray(bound.at(c, i, j))
        assert part.shape == np.shape(c[i, j])
        np.testing.assert_allclose(part, whole[i, j], rtol=1e-12)
        rows, columns = rows_and_columns(a, b, i, j)
        assert np.array_equal(rows.reshape(-1, K), a[i].reshape(-1, K))
        assert np.array_equal(columns.T.reshape(-1, K), b.T[j].reshape(-1, K))


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("kind", ["conventional", "rounded", "sum", "words", "slices"])
def test_entries_without_an_error_have_none(kind, dtype, rng):
    a, b = draw(rng, dtype)
    bound, c, _ = bounds(kind, a, b)
    is_complex = dtype.startswith("complex")
    c[0, 0], c[2, 3] = (complex(np.nan, np.nan), complex(-np.inf, np.nan)) if is_complex else (np.nan, -np.inf)
    whole = bound.at(c, slice(None), slice(None))
    assert whole[0, 0] == whole[2, 3] == 0.0 and bound.at(c, 2, 3) == 0.0
    assert (np.delete(whole.ravel(), [0, 2 * N + 3]) >= 0).all()
