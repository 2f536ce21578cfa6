"""BLAS's syrk by its address: entries on and below the diagonal, and what it declines."""

import numpy as np
import pytest

from prismm.cpu.native import library
from tests.judge import assert_same_bits

NAMES = {np.float64: "scipy_cblas_dsyrk64_", np.float32: "scipy_cblas_ssyrk64_"}


@pytest.mark.parametrize("kind", list(NAMES))
def test_lower_triangle_of_exact_sums(kind, rng):
    for n, k in ((1, 1), (5, 3), (150, 40), (3, 500)):
        a = rng.integers(-8, 9, (n, k)).astype(kind)
        for x in (a, np.asfortranarray(a)):
            out = np.full((n, n), 7, kind)
            if not library.lower_syrk(x, out):
                assert library.function(NAMES[kind]) is None
                continue
            assert_same_bits(
                out, np.where(np.tri(n, dtype=bool), (a.astype(float) @ a.T.astype(float)), 7).astype(kind)
            )


def test_what_it_declines(rng, monkeypatch):
    a, out = rng.standard_normal((6, 4)), np.empty((6, 6))
    read_only = np.empty((6, 6))
    read_only.flags.writeable = False
    for x, y in (
        (a[:, ::2], out), (a[::2], out[:3]), (a.astype("f4"), out), (a.astype(complex), out.astype(complex)),
        (a, np.asfortranarray(out)), (a, read_only), (a[:, :0].copy(), out),
    ):  # fmt: skip
        assert not library.lower_syrk(x, y)
    monkeypatch.setattr(library, "_serves", library._serves.__wrapped__)
    with monkeypatch.context() as patch:
        patch.setattr(library, "_syrk", lambda x, y: y.fill(0.0))  # a library that makes something else
        assert not library.lower_syrk(a, out)
    monkeypatch.setattr(library, "function", lambda _: None)
    assert not library.lower_syrk(a, out)
