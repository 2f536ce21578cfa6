"""Tensors on a GPU: bounds that hold, results that stay there, and a CPU's bits where they are promised."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

import prismm
import prismm.linalg
from prismm import ScaledHalf, Words
from prismm.testing import HOSTILE, exact_gemm
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


def lower_triangle_of(whole):
    """It, and its copy across the diagonal."""
    whole = back(whole)
    other = np.conj(np.swapaxes(whole, -1, -2))
    found = np.where(np.tri(whole.shape[-1], dtype=bool), whole, other)
    at = np.arange(whole.shape[-1])
    found[..., at, at] = found[..., at, at].real
    return found


@pytest.mark.parametrize("name", list(HOSTILE))
def test_tiles_that_are_left_out_change_no_bit(name, seed):
    """Of matrices that end within tiles, with their rows or their columns contiguous; made in any order before."""

    def check(case):
        kind, turned, keywords = case
        a = HOSTILE[name](700, 130, 3, seed, kind)[0]
        (x,) = on_gpu(a.T if turned else a)
        x = x.mT if turned else x
        torch.full((8, 700, 700), torch.nan, dtype=x.dtype, device="cuda")  # rubbish, in memory that is taken next
        found = back(prismm.linalg.herk(x, **keywords))
        judge.assert_same_bits(found, lower_triangle_of(prismm.gemm(x, x, trans_b="C", **keywords)))

    ways = [CORRECT, {"reproducible": True}, {"scheme": "residues:9"}]
    judge.assert_each(check, [(kind, turned, how) for kind in KINDS for turned in (False, True) for how in ways])


def test_large_symmetric_products(rng):
    """Sums with C, batches, words, products of several tiles a program, and in panels."""
    for kind in KINDS:
        (x,) = on_gpu(drawn(rng, (2100, 600), kind))
        c = x[:, :300] @ x[:, :300].mH
        c = torch.tril(c) + torch.tril(c, -1).mH
        c.diagonal().copy_(c.diagonal().real)
        for keywords in (CORRECT, {"reproducible": True}):
            found = prismm.linalg.herk(x, c, alpha=0.7, beta=-1.0, **keywords)
            whole = prismm.gemm(x, x, c, alpha=0.7, beta=-1.0, trans_b="C", **keywords)
            judge.assert_same_bits(back(found), lower_triangle_of(whole))
            found = prismm.linalg.gram(x, **keywords)
            judge.assert_same_bits(back(found), lower_triangle_of(prismm.gemm(x, x, trans_a="C", **keywords)))
        (batch,) = on_gpu(drawn(rng, (3, 530, 90), kind))
        found = prismm.linalg.herk(batch, reproducible=True)
        judge.assert_same_bits(
            back(found), lower_triangle_of(prismm.gemm(batch, batch, trans_b="C", reproducible=True))
        )
        one = batch[:1].expand(3, -1, -1)
        for found in (
            prismm.linalg.herk(one, reproducible=True), prismm.gemm(one, one, trans_b="C", reproducible=True),
        ):  # fmt: skip
            for matrix in found:
                judge.assert_same_bits(lower_triangle_of(matrix), back(prismm.linalg.herk(batch[0], reproducible=True)))
        schemes = ["native", "slices:fp16:3"]
        if kind in (np.float32, np.complex64):
            schemes += [ScaledHalf(chunk=128), Words.bf16(6)]
        for scheme in schemes:
            found = back(prismm.linalg.herk(x, scheme=scheme, accuracy="fast"))
            judge.assert_same_bits(found, np.conj(found.T) + 0)
            whole = back(prismm.gemm(x, x, trans_b="C", scheme=scheme, accuracy="fast"))
            if scheme not in ("native", "slices:fp16:3"):
                judge.assert_same_bits(np.tril(found), np.tril(whole))


def test_default_symmetric_products_meet_their_target(rng):
    for kind in KINDS:
        a = drawn(rng, (300, 600), kind)
        found = back(prismm.linalg.gram(*on_gpu(a)))
        left = np.ascontiguousarray(np.conj(a.T))
        judge.assert_same_bits(found, np.conj(found.T) + 0)
        judge.assert_meets(
            "native", exact_gemm(1.0, left, a), judge.magnitudes(left, a), found, judge.entry_terms(left, found)
        )


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
        found, report = prismm.linalg.inv(*on_gpu(a), full_output=True, **CORRECT)
        judge.assert_same_bits(back(found), prismm.linalg.inv(a, **CORRECT))
        large = drawn(rng, (2, 130, 130), kind)
        found = prismm.linalg.inv(*on_gpu(large), **CORRECT)
        judge.assert_same_bits(back(found), prismm.linalg.inv(large, **CORRECT))
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


def test_determinants_and_eigenvalues_of_every_type(rng):
    """Enclosures meet those of a CPU; in batches and of ill-conditioned matrices, too."""

    def check(case):
        kind, a = case
        values, report = prismm.linalg.det(*on_gpu(a), full_output=True)
        others, wanted = prismm.linalg.det(a, full_output=True)
        assert np.abs(np.asarray(back(values)) - others).max() <= 1e-14 * np.abs(others).max()
        unit = 2.0 ** (np.asarray(wanted.exponent) - np.asarray(report.exponent))
        for part in (np.real, np.imag):
            assert (part(report.lower) <= part(wanted.upper) * unit).all()
            assert (part(wanted.lower) * unit <= part(report.upper)).all()
        h = np.ascontiguousarray(a + np.conj(np.swapaxes(a, -1, -2)))
        w, v, report = prismm.linalg.eigh(*on_gpu(h), full_output=True)
        others, _, rest = prismm.linalg.eigh(h, full_output=True)
        assert (np.abs(back(w).astype(float) - others) <= (report.bounds + rest.bounds) * (1 + 2.0**-50)).all()
        assert v.is_cuda and back(v).dtype == kind

    cases = [(kind, drawn(rng, (3, 20, 20), kind)) for kind in KINDS]
    cases += [(np.float64, reference.hilbert(11)[None]), (np.complex128, reference.hilbert(9)[None] * (1 + 1j))]
    judge.assert_each(check, cases)


def test_complex_covariances_have_a_cpus_bits(rng):
    for kind in KINDS:
        x = drawn(rng, (2, 40, 6), kind) + kind(1000)
        for of in (prismm.linalg.covariance, prismm.linalg.correlation):
            judge.assert_same_bits(back(of(*on_gpu(x))) + 0, of(x) + 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_prepared_matrices_serve_cupys_iterative_solvers(rng, kind, side):
    """Products of an operator have the bits of `matmul`, and stay CuPy's."""
    cupy = pytest.importorskip("cupy")
    solvers = pytest.importorskip("cupyx.scipy.sparse.linalg")
    root = drawn(rng, (60, 60), kind)
    a, b = (root @ np.conj(root.T) + 60 * np.eye(60)).astype(kind), drawn(rng, 60, kind)
    x, y = cupy.asarray(a), cupy.asarray(b)
    prepared = prismm.prepare(x, side=side, reproducible=True)
    assert prepared.dtype == np.dtype(kind)
    operator = solvers.aslinearoperator(prepared)
    assert operator.shape == a.shape and operator.dtype == np.dtype(kind)
    adjoint = np.ascontiguousarray(np.conj(a.T))
    for found, wanted in (
        (operator.matvec(y), prismm.matmul(a, b, reproducible=True)),
        (operator.rmatvec(y), prismm.matmul(adjoint, b, reproducible=True)),
        (operator.H.matvec(y), prismm.matmul(adjoint, b, reproducible=True)),
        (operator.matmat(cupy.stack([y, y], axis=1)), prismm.matmul(a, np.stack([b, b], 1), reproducible=True)),
    ):
        assert isinstance(found, cupy.ndarray) and found.dtype == kind
        judge.assert_same_bits(cupy.asnumpy(found) + 0, wanted + 0)
    single = np.dtype(kind).itemsize // (2 if np.dtype(kind).kind == "c" else 1) == 4
    tolerance = 1e-4 if single else 1e-10
    for solve in (solvers.cg, solvers.gmres):
        # CuPy 14 has SciPy's name for it.
        relative = {"rtol" if "rtol" in inspect.signature(solve).parameters else "tol": tolerance}
        for matrix in (operator, prepared):
            found, info = solve(matrix, y, **relative)
            assert info == 0 and isinstance(found, cupy.ndarray) and found.dtype == kind
            rest = prismm.linalg.residual(a, cupy.asnumpy(found), b)
            assert np.linalg.norm(rest) <= 2 * tolerance * np.linalg.norm(b)


def test_a_prepared_matrix_of_a_tensor_has_torchs_type(rng):
    for kind in KINDS:
        (x,) = on_gpu(drawn(rng, (5, 5), kind))
        assert prismm.prepare(x, reproducible=True).dtype == x.dtype
