"""Tiny products in one call: what it settles is what the ordinary path would return."""

import numpy as np
import pytest

from prismm.core.accuracy import Target, kappa, magnitude_kappa
from prismm.cpu.engines.integer import DIRECT
from prismm.cpu.kernels.tiny import tiny_product
from prismm.cpu.residues.split import Splitter
from prismm.testing import HOSTILE, SPECIAL, exact_product
from tests.cpu.kernels.harness import FORMATS, MAGNITUDE, ROUNDING, call, differing, same_bits

DTYPES = {53: ("float64", "complex128"), 24: ("float32", "complex64")}
KINDS = [(precision, dtype) for precision, both in DTYPES.items() for dtype in both]


def tiny(a, b, mode, precision, moduli=15):
    """The result's real parts as float64, in complex128 for complex operands, and how many are left open."""
    parts = 2 if np.iscomplexobj(a) else 1
    splitter = Splitter(moduli, DIRECT, a.shape[1], parts == 2)
    target, fmt, terms = Target("native"), FORMATS[precision], splitter.terms
    shape = (len(a), parts * b.shape[1])
    out, out32 = np.full(shape, np.nan), np.full(shape, np.nan, np.float32)
    whole = np.complex128 if parts == 2 else np.float64
    x, y = (np.ascontiguousarray(z, whole).view(np.float64) for z in (a, b))
    flags = np.zeros(shape, np.uint8)
    count = call(
        tiny_product, a=x, b=y, parts=parts, thresholds=splitter.thresholds, q=splitter.fraction_bits,
        levels=splitter.count_levels if mode == MAGNITUDE else 0, mode=mode, kappa=kappa(target, terms, fmt),
        magnitude_kappa=magnitude_kappa(target, terms, fmt), precision=precision, out=out, out32=out32, flags=flags,
    )  # fmt: skip
    assert flags.sum() == count
    return (out if precision == 53 else out32.astype(np.float64)).view(whole), count


@pytest.mark.covering("name")
@pytest.mark.parametrize(("precision", "dtype"), KINDS)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_settled_product_is_correctly_rounded(name, precision, dtype, seed):
    settled = 0
    for k in (1, 2, 5, 16, 33):
        for m, n in ((1, 1), (3, 2), (2, 300)):
            a, b = HOSTILE[name](m, k, n, seed + k + m, dtype)
            out, count = tiny(a, b, ROUNDING, precision)
            assert 0 <= count <= out.view(np.float64).size
            if count == 0:
                wanted = exact_product(a, b).rounded(dtype)
                got, wanted = (x.astype(out.dtype).view(np.float64).ravel() for x in (out, wanted))
                assert same_bits(got, wanted), (k, differing(got, wanted))
                settled += 1
    assert settled > 5 or name not in ("normal", "uniform")


@pytest.mark.covering("name")
@pytest.mark.parametrize(("precision", "dtype"), KINDS)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_settled_native_product_is_the_schemes_and_within_its_target(name, precision, dtype, seed):
    settled = 0
    for moduli in (8, 15):
        for k in (2, 5, 16, 33):
            a, b = HOSTILE[name](4, k, 5, seed + k, dtype)
            out, count = tiny(a, b, MAGNITUDE, precision, moduli)
            if count:
                continue
            settled += 1
            exact, fmt, terms = exact_product(a, b), FORMATS[precision], k * (2 if np.iscomplexobj(a) else 1)
            bound = terms * fmt.unit_roundoff * exact.magnitude("up") * (1 + 1e-12) + terms * fmt.smallest_subnormal
            assert exact.within(out.astype(dtype), bound).all()
    assert settled > 2 or name not in ("normal", "uniform")


@pytest.mark.parametrize("mode", [ROUNDING, MAGNITUDE])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values_are_left_to_others(name, dtype, mode, seed):
    a, b = SPECIAL[name](4, 6, 5, seed, dtype)
    if np.isfinite(a).all() and np.isfinite(b).all():
        b[seed % 6, seed % 5] = np.inf  # sprinkled draws this small may hold none
    assert tiny(a, b, mode, 53)[1] > 0


@pytest.mark.parametrize("spread", [0, 40, 300])
def test_the_sum_keeps_its_bound_at_every_width(spread, rng):
    """Lanes, and rows without a partner, at sums that cancel to the last bits that twice the precision holds: what is
    settled is exact, whatever stands beside it.
    """
    settled = 0
    for m, k, n in ((1, 40, 1), (2, 64, 15), (3, 64, 16), (5, 33, 17), (4, 7, 31), (7, 64, 33)):
        a = rng.standard_normal((m, k)) * np.exp2(rng.integers(-spread, spread + 1, (m, k)) // 2)
        b = rng.standard_normal((k, n)) * np.exp2(rng.integers(-spread, spread + 1, (k, n)) // 2)
        a[:, k // 2 : 2 * (k // 2)] = -a[:, : k // 2]
        b[k // 2 : 2 * (k // 2)] = b[: k // 2] * (1.0 + np.exp2(-rng.integers(20, 53, (k // 2, n)).astype(float)))
        out, count = tiny(a, b, ROUNDING, 53)
        wanted = exact_product(a, b).rounded("float64")
        if count == 0:
            assert same_bits(out, wanted), (m, k, n)
            settled += 1
    assert settled or spread > 0
