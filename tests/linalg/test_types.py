"""Every function takes every type, batches, empty arrays and tensors, and gives back what it was given."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import prismm.linalg
from tests import judge

KINDS = [np.float32, np.float64, np.complex64, np.complex128]
DATA = {"gram", "syrk", "herk", "symm", "trmm", "covariance", "correlation", "residual", "solve", "inv", "lstsq"}
"""Functions whose results are of the operands' type."""

CORRECT: dict[str, object] = {"accuracy": "correctly-rounded"}
KEYWORDS = {name: CORRECT for name in ("gram", "symm", "trmm")} | {
    name: {"beta": 1.0, **CORRECT} for name in ("syrk", "herk")
}


def mirrored(x, conjugate=True):
    other = np.swapaxes(x, -1, -2)
    return x + (np.conj(other) if conjugate else other)


def operands(rng, kind, batch, n):
    """Of each function, by name."""

    def drawn(*shape):
        x = rng.standard_normal((*batch, *shape))
        return (x + (1j * rng.standard_normal(x.shape) if np.dtype(kind).kind == "c" else 0)).astype(kind)

    a, b, tall = drawn(n, n), drawn(n, 2), drawn(n + 2, n)
    hermitian, unit = mirrored(a), np.eye(n, dtype=kind)
    return {
        "gram": (tall,), "syrk": (a, mirrored(a, False)), "herk": (a, hermitian), "symm": (mirrored(a, False), b),
        "trmm": (a, b), "covariance": (tall,), "correlation": (tall,), "residual": (a, b, b), "solve": (a, b),
        "inv": (a,), "lstsq": (tall, drawn(n + 2, 2)), "det": (a,), "eigh": (hermitian,),
        "is_positive_definite": (hermitian + kind(40) * unit,),
    }  # fmt: skip


@pytest.mark.covering("n", "kind")
@pytest.mark.parametrize("n", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_function_takes_every_type(rng, n, kind):
    def check(case):
        batch, tensors, name = case
        given = operands(rng, kind, batch, n)[name]
        keywords = KEYWORDS.get(name, {})
        plain = getattr(prismm.linalg, name)(*given, **keywords)
        plain = plain if isinstance(plain, tuple) else (plain,)
        found = plain
        if tensors:
            found = getattr(prismm.linalg, name)(*(torch.from_numpy(x) for x in given), **keywords)
            found = found if isinstance(found, tuple) else (found,)
        for x, wanted in zip(found, plain, strict=True):
            assert isinstance(x, torch.Tensor if tensors else np.ndarray) or not batch
            judge.assert_same_bits(np.asarray(x), np.asarray(wanted))
            assert name not in DATA or np.asarray(x).dtype == kind
            assert np.asarray(x).shape[: len(batch)] == batch

    names = [name for name in prismm.linalg.__all__ if not name.endswith("Report")]
    cases = list(itertools.product([(), (2,)] if n else [(2,), (0,)], [False, True], names))
    assert set(operands(rng, kind, (), 3)) == set(names)
    judge.assert_each(check, cases)


@pytest.mark.slow
def test_views_are_taken_as_they_are(rng):
    """Conjugate, transposed, reversed and read-only ones have the bits of copies of them."""

    def check(name):
        given = operands(rng, np.complex128, (), 4)[name]
        keywords = KEYWORDS.get(name, {})
        verb = getattr(prismm.linalg, name)

        def bits(found):
            return [np.asarray(x) for x in (found if isinstance(found, tuple) else (found,))]

        lazy = [torch.from_numpy(x).conj() for x in given]
        turned = [np.asfortranarray(x) for x in given]
        back = [np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1] for x in given]
        for x in back:
            x.setflags(write=False)
        for views, copies in ((lazy, [np.conj(x) for x in given]), (turned, given), (back, given)):
            for x, y in zip(bits(verb(*views, **keywords)), bits(verb(*copies, **keywords)), strict=True):
                judge.assert_same_bits(x, y)

    judge.assert_each(check, [name for name in prismm.linalg.__all__ if not name.endswith("Report")])
