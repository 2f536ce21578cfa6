"""Tensors on a GPU: bounds that hold, results that stay there, and a CPU's bits where they are promised."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import prismm.linalg
from tests import judge
from tests.linalg import reference

pytestmark = pytest.mark.gpu
KINDS = [np.float64, np.float32, np.complex128, np.complex64]
CORRECT = {"accuracy": "correctly-rounded"}


def drawn(rng, shape, kind):
    x = rng.standard_normal(shape)
    return (x + (1j * rng.standard_normal(shape) if np.dtype(kind).kind == "c" else 0)).astype(kind)


def on_gpu(*arrays):
    return [None if x is None else torch.from_numpy(np.ascontiguousarray(x)).cuda() for x in arrays]


def back(x):
    assert x.is_cuda
    return x.cpu().numpy()


def test_symmetric_products_have_a_cpus_bits(rng):
    def check(case):
        kind, keywords = case
        a, b = drawn(rng, (37, 70), kind), drawn(rng, (37, 20), kind)
        c = drawn(rng, (37, 37), kind)
        same, hermitian, lower = c + c.T, c + np.conj(c.T), np.tril(c)
        x, y, z, h, t = on_gpu(a, b, same, hermitian, lower)
        for verb, here, there, more in (
            ("gram", (a,), (x,), {}),
            ("syrk", (a, same), (x, z), {"alpha": 2.0, "beta": -1.0}),
            ("herk", (a, hermitian), (x, h), {"alpha": 0.7, "beta": 1.0}),
            ("symm", (same, b), (z, y), {}),
            ("trmm", (lower, b), (t, y), {}),
        ):
            multiply = getattr(prismm.linalg, verb)
            judge.assert_same_bits(
                back(multiply(*there, **keywords, **more)), multiply(*here, **keywords, **more), verb
            )

    judge.assert_each(check, [(kind, how) for kind in KINDS for how in (CORRECT, {"reproducible": True})])


def test_solutions(rng):
    def check(case):
        kind, a = case
        b = drawn(rng, (len(a), 2), kind)
        x, report = prismm.linalg.solve(*on_gpu(a, b), full_output=True)
        assert report.proved
        reference.assert_holds(reference.solution(a, b), back(x), report)
        x, report = prismm.linalg.solve(*on_gpu(a, b), full_output=True, **CORRECT)
        reference.assert_holds(reference.solution(a, b), back(x), report)
        assert report.correctly_rounded.all()

    systems = [(kind, drawn(rng, (15, 15), kind)) for kind in KINDS]
    systems += [(np.float64, reference.hilbert(11)), (np.float64, reference.of_condition(rng, 15, 1e14))]
    judge.assert_each(check, systems)


def test_residuals_inverses_and_least_squares(rng):
    for kind in KINDS:
        a, x, b = drawn(rng, (13, 13), kind), drawn(rng, (13, 3), kind), drawn(rng, (13, 3), kind)
        judge.assert_same_bits(back(prismm.linalg.residual(*on_gpu(a, x, b))), prismm.linalg.residual(a, x, b))
        found, report = prismm.linalg.inv(*on_gpu(a), full_output=True)
        reference.assert_holds(reference.solution(a, np.eye(13, dtype=kind)), back(found), report)
        tall = drawn(rng, (20, 6), kind)
        wanted = prismm.linalg.lstsq(tall, drawn(np.random.default_rng(1), (20, 2), kind), **CORRECT)
        found = prismm.linalg.lstsq(*on_gpu(tall, drawn(np.random.default_rng(1), (20, 2), kind)), **CORRECT)
        judge.assert_same_bits(back(found), wanted)


def test_what_is_proved_of_one_matrix(rng):
    a = rng.standard_normal((24, 24))
    (x,) = on_gpu(a + a.T)
    _, report = prismm.linalg.det(x, full_output=True)
    _, wanted = prismm.linalg.det(a + a.T, full_output=True)
    assert report.sign == wanted.sign
    assert prismm.linalg.is_positive_definite(on_gpu(a @ a.T + np.eye(24))[0])
    assert not prismm.linalg.is_positive_definite(x)
    w, v, report = prismm.linalg.eigh(x, full_output=True)
    others, _, rest = prismm.linalg.eigh(a + a.T, full_output=True)
    # Differences of float64 numbers and sums of two bounds: each is off by 2^-53 of itself.
    assert (np.abs(back(w) - others) <= (report.bounds + rest.bounds) * (1 + 2.0**-50)).all() and v.is_cuda
    for of in (prismm.linalg.covariance, prismm.linalg.correlation):
        judge.assert_same_bits(back(of(x)), of(a + a.T))
