"""The bound of products of words, on simulated matrix units, against exact arithmetic."""

import math

import numpy as np
import pytest

from prismm.core.accuracy import Target
from prismm.cuda.multiword import launches as multiword_launches
from prismm.testing import HOSTILE, exact_product
from tests.cuda.harness import words_twin as twin

U, ETA = 2.0**-24, 2.0**-149
NAMES = [
    "uniform", "wide_rows", "wide_rows_and_columns", "cancelling", "carries", "subnormal_operands", "one_huge",
    "shadowed",
]  # fmt: skip


@pytest.mark.covering(("words", "unit"))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unit", ["h200-wgmma", "a100"])
@pytest.mark.parametrize("words", [*twin.formats(), "fp16 2 12 direct"])
def test_no_entry_is_beyond_the_bound(words, unit, name, seed):
    words, direct, _ = words.partition(" direct")
    words = twin.formats()[words]
    for dtype, k, chunk in ((np.float32, 200, 64), (np.float32, 130, 128), (np.complex64, 70, 64)):
        # Of shadowed vectors few lose more than they should: in some tens of thousands of entries some do.
        m, n = (150, 140) if name == "shadowed" else (5, 4)
        a, b = HOSTILE[name](m, k, n, seed=seed, dtype=np.dtype(dtype))
        terms = k * (1 if dtype == np.float32 else 2)
        own = multiword_launches.bound(words, terms, chunk, unit, bool(direct))
        x, y = twin.real_vectors(a, "left"), twin.real_vectors(b, "right").T
        exact = exact_product(x, y)
        size = exact.magnitude("up")
        value, largest = twin.product(a, b, words, chunk, unit, bool(direct))
        finite = np.isfinite(value)
        slack = math.ceil(terms / chunk) * ETA
        error = own.gamma * size + terms * own.floor * largest + slack
        assert exact.within(np.where(finite, value, 0.0), np.where(finite, error, np.inf)).all()
        target = Target("native")
        with np.errstate(invalid="ignore"):
            sure = finite & (np.abs(value) >= own.least(target) * largest)
        allowed = np.where(sure, terms * U * size + terms * ETA, np.inf)
        assert exact.within(np.where(sure, value, 0.0), allowed).all()


def test_the_twin_of_complex_products_is_a_complex_product(rng):
    a = (rng.standard_normal((3, 5)) + 1j * rng.standard_normal((3, 5))).astype(np.complex64)
    b = (rng.standard_normal((5, 4)) + 1j * rng.standard_normal((5, 4))).astype(np.complex64)
    c = twin.real_vectors(a, "left").astype(np.float64) @ twin.real_vectors(b, "right").T.astype(np.float64)
    expected = a.astype(np.complex128) @ b.astype(np.complex128)
    assert np.allclose(c.reshape(3, 4, 2).view(np.complex128)[..., 0], expected, rtol=1e-12)


@pytest.mark.parametrize("terms", [1, 50, 63, 64, 128, 1000, 4096, 100000])
def test_what_a_target_leaves(terms):
    chunk = multiword_launches.chunk_for(terms)
    own = multiword_launches.bound(multiword_launches.HALVES, terms, chunk, "h200-wgmma")
    assert own.least(None) == own.least(Target("fast")) == 0.0
    least = own.least(Target("native"))
    assert (least < math.inf) == (own.gamma < terms * U)
    if terms >= 64:
        # A normal product's entries are near √k·2^-4 of the largest product, which is 2^30 in scaled units.
        assert least < 2.0**10
    assert own.least(Target("tolerance", own.gamma / 2)) == math.inf
    assert own.least(Target("tolerance", 1.0)) < terms * 2.0**-13
    assert own.reach >= terms * own.floor


def test_longer_products_take_longer_chunks():
    chunks = [multiword_launches.chunk_for(k) for k in (1, 300, 1250, 1400, 8192, 1 << 20)]
    assert chunks == [64, 64, 64, 128, 256, 512]


def test_thresholds_reach_kernels_rounded_up():
    for x in (0.0, 1.0, 1.0 + 2.0**-30, 54.58616014560967, 1e-50, 3e38, math.inf):
        near = float(np.int32(multiword_launches.pattern_of(x)).view(np.float32))
        assert near >= x and (x == 0.0 or near <= max(x * (1 + 2.0**-22), 2.0**-149))
