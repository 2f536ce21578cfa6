"""Products side by side: what `tiny_batch` certifies has the bits of `tiny_product`, which is given one at a time."""

import numpy as np
import pytest

from prismm.core.accuracy import Target, kappa, magnitude_kappa
from prismm.core.moduli import shift_thresholds
from prismm.cpu.engines.integer import DIRECT
from prismm.cpu.kernels.tiny import tiny_product
from prismm.cpu.kernels.tiny_batch import GROUP, LANES, tiny_batch
from prismm.cpu.residues.split import Splitter
from prismm.testing import HOSTILE, SPECIAL
from tests.cpu.kernels.harness import FORMATS, MAGNITUDE, ROUNDING, call

PRECISIONS = {"float64": 53, "complex128": 53, "float32": 24, "complex64": 24}
NEAR = 2.0**299
"""Elements between its reciprocal and this are in range of both kernels."""


def both(a, b, left, right, mode, moduli, dtype):
    """(result, uncertified, counts) of all products at once, and of each alone."""
    parts, precision = 2 if dtype.startswith("complex") else 1, PRECISIONS[dtype]
    splitter = Splitter(moduli, DIRECT, a.shape[2], parts == 2)
    target, fmt, terms = Target("native"), FORMATS[precision], splitter.terms
    x, y = (np.ascontiguousarray(z, np.complex128 if parts == 2 else np.float64).view(np.float64) for z in (a, b))
    shape = (len(left), a.shape[1], parts * b.shape[2])
    given = {
        "parts": parts, "thresholds": splitter.thresholds, "q": splitter.fraction_bits,
        "levels": splitter.count_levels if mode == MAGNITUDE else 0, "mode": mode,
        "kappa": kappa(target, terms, fmt), "magnitude_kappa": magnitude_kappa(target, terms, fmt),
        "precision": precision,
    }  # fmt: skip
    found = []
    for together in (True, False):
        out, out32 = np.full(shape, np.nan), np.full(shape, np.nan, np.float32)
        flags, counts = np.zeros(shape, np.uint8), np.full(len(left), -1)
        if together:
            call(
                tiny_batch, a=x, b=y, left=left, right=right, out=out, out32=out32, uncertified=flags, counts=counts,
                **given,
            )  # fmt: skip
        else:
            for p, (i, j) in enumerate(zip(left, right, strict=True)):
                counts[p] = call(tiny_product, a=x[i], b=y[j], out=out[p], out32=out32[p], flags=flags[p], **given)
        assert np.array_equal(counts, flags.sum(axis=(1, 2)))
        found.append((out.view(np.int64) if precision == 53 else out32.view(np.int32), flags != 0))
    return found


def compare(a, b, mode, moduli, dtype, left=None, right=None):
    """Hold the two kernels against each other; returns how many entries both certify."""
    index = np.arange(len(a))
    left, right = index if left is None else left, index if right is None else right
    (value, uncertified), (expected, others) = both(a, b, left, right, mode, moduli, dtype)
    assert (uncertified | ~others).all(), "certified what the twin does not"
    assert np.array_equal(value[~uncertified], expected[~uncertified])
    sizes = np.abs(np.concatenate([z.ravel().astype(np.complex128).view(np.float64) for z in (a, b)]))
    if ((sizes == 0) | (sizes < NEAR) & (sizes > 1 / NEAR)).all():
        assert np.array_equal(uncertified, others)
    return int((~uncertified).sum())


@pytest.mark.covering("name")
@pytest.mark.parametrize("mode", [ROUNDING, MAGNITUDE])
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", [*HOSTILE, *SPECIAL])
def test_products_side_by_side_are_those_made_alone(name, dtype, mode, seed):
    make, certified = {**HOSTILE, **SPECIAL}[name], 0
    for m, k, n in ((4, 4, 4), (1, 7, 3), (5, 2, 9)):
        pairs = [make(m, k, n, seed + p, dtype) for p in range(19)]
        a, b = (np.stack(side) for side in zip(*pairs, strict=True))
        for moduli in (6, 8, 15) if mode == MAGNITUDE else (15,):
            certified += compare(a, b, mode, moduli, dtype)
    assert certified or name not in ("normal", "uniform")


@pytest.mark.parametrize("count", [1, 15, 16, 17, LANES, LANES + 1, 2 * LANES + 17])
def test_any_number_of_products_and_of_groups(count, rng):
    a, b = rng.standard_normal((9, 2, 3)), rng.standard_normal((5, 3, 4))
    left, right = rng.integers(0, 9, count), rng.integers(0, 5, count)
    for mode in (ROUNDING, MAGNITUDE):
        assert compare(a, b, mode, 15, "float64", left, right) > 6 * count


def test_products_too_large_for_many_lanes(rng):
    for m, k, n in ((40, 17, 30), (1, GROUP, 1), (70, 1, 70)):
        compare(rng.standard_normal((33, m, k)), rng.standard_normal((33, k, n)), MAGNITUDE, 15, "float64")


@pytest.mark.parametrize("mode", [ROUNDING, MAGNITUDE])
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_what_one_lane_holds_does_not_show_in_others(mode, dtype, rng):
    """Rows and columns at every exponent, zeros, sums that cancel and values that are not finite."""
    fmt = np.finfo(dtype)
    powers = np.concatenate(
        [np.arange(fmt.minexp - fmt.nmant, fmt.maxexp, 7), np.arange(-310, -290), np.arange(290, 310)]
    )
    powers = powers[(powers >= fmt.minexp - fmt.nmant) & (powers < fmt.maxexp)]
    count = len(powers)
    a, b = (rng.standard_normal((count, 3, 3)).astype(dtype) for _ in range(2))
    if dtype.startswith("complex"):
        b += 1j * rng.standard_normal(b.shape).astype(fmt.dtype)
    with np.errstate(all="ignore"):
        a[:, 1] = (rng.random((count, 3)) * np.ldexp(1.0, powers)[:, None]).astype(dtype)
        b[:, :, 2] = (rng.random((count, 3)) * np.ldexp(1.0, rng.permutation(powers))[:, None]).astype(dtype)
    a[::3, 2], b[1::4, 1] = 0, 0
    a[5::11, 0, 1], b[7::13, 2, 0] = np.inf, np.nan
    a[2::5, 0, :2], b[2::5, 1] = [1, -1], b[2::5, 0]
    for moduli in (5, 15):
        assert compare(a, b, mode, moduli, dtype)


def test_the_search_for_a_shift_starts_at_most_one_step_away():
    """What `_round` says of the thresholds: the last but x is at least 4^x, and less than 4^(x+1)."""
    for moduli in range(2, 23):
        for x, threshold in enumerate(reversed(shift_thresholds(moduli))):
            assert 4**x <= threshold < 4 ** (x + 1), (moduli, x)
