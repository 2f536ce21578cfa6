"""Tiny products in one call: what it settles is what the ordinary road would return."""

import numpy as np
import pytest

from kernels.harness import FORMATS, MAGNITUDE, ROUNDING, call, differing, same_bits
from prismm.accuracy import Target, kappa, magnitude_kappa
from prismm.engines.cpu import DIRECT
from prismm.kernels.cpu.tiny import tiny_product
from prismm.schemes.split import Splitter
from prismm.testing import HOSTILE, SPECIAL, exact_product

DTYPES = {53: "float64", 24: "float32"}


def tiny(a, b, mode, precision, moduli=15):
    k = a.shape[1]
    splitter = Splitter(moduli, DIRECT, k, False)
    target, fmt = Target("native"), FORMATS[precision]
    out, out32 = np.full((len(a), b.shape[1]), np.nan), np.full((len(a), b.shape[1]), np.nan, np.float32)
    count = call(
        tiny_product, a=np.ascontiguousarray(a, np.float64), b=np.ascontiguousarray(b, np.float64),
        thresholds=splitter.thresholds, q=splitter.fraction_bits,
        levels=splitter.count_levels if mode == MAGNITUDE else 0, mode=mode, kappa=kappa(target, k, fmt),
        magnitude_kappa=magnitude_kappa(target, k, fmt), precision=precision, out=out, out32=out32,
    )  # fmt: skip
    return out if precision == 53 else out32.astype(np.float64), count


@pytest.mark.parametrize("precision", [53, 24])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_settled_product_is_correctly_rounded(name, precision, seed):
    settled = 0
    for k in (1, 2, 5, 16, 33):
        for m, n in ((1, 1), (3, 2), (2, 300)):
            a, b = HOSTILE[name](m, k, n, seed + k + m, DTYPES[precision])
            out, count = tiny(a, b, ROUNDING, precision)
            assert 0 <= count <= m * n
            if count == 0:
                wanted = exact_product(a, b).rounded(FORMATS[precision])
                assert same_bits(out, wanted), (k, differing(out.ravel(), wanted.ravel()))
                settled += 1
    assert settled > 5 or name not in ("normal", "uniform")


@pytest.mark.parametrize("precision", [53, 24])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_settled_native_product_is_the_schemes_and_within_its_target(name, precision, seed):
    settled = 0
    for moduli in (8, 15):
        for k in (2, 5, 16, 33):
            a, b = HOSTILE[name](4, k, 5, seed + k, DTYPES[precision])
            out, count = tiny(a, b, MAGNITUDE, precision, moduli)
            if count:
                continue
            settled += 1
            exact, fmt = exact_product(a, b), FORMATS[precision]
            bound = k * fmt.unit_roundoff * exact.magnitude("up") * (1 + 1e-12) + k * fmt.smallest_subnormal
            assert exact.within(out, bound).all()
    assert settled > 2 or name not in ("normal", "uniform")


@pytest.mark.parametrize("mode", [ROUNDING, MAGNITUDE])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values_are_left_to_others(name, mode, seed):
    a, b = SPECIAL[name](4, 6, 5, seed, "float64")
    if np.isfinite(a).all() and np.isfinite(b).all():
        b[seed % 6, seed % 5] = np.inf  # sprinkled draws this small may hold none
    assert tiny(a, b, mode, 53)[1] > 0
