"""Symmetric and triangular products: targets in every entry, symmetry in every bit, the bits of whole products."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import prismm
import prismm.linalg
from prismm.cpu.engines.integer import choose
from prismm.cpu.native import product as native_product
from prismm.cpu.native import single
from prismm.cpu.residues import streamed
from prismm.cpu.residues.product import Product
from prismm.errors import ArgumentError, DTypeError, OperandError, ShapeError
from prismm.linalg import symmetric
from prismm.testing import HOSTILE, exact_gemm
from tests import judge

KINDS = [np.float64, np.float32, np.complex128, np.complex64]
TARGETS = [None, "fast", "correctly-rounded", 1e-10]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks so small that every way to cut is taken."""
    monkeypatch.setattr(symmetric, "SMALLEST", 5)


def drawn(rng, shape, kind):
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)
    return (x + (1j * rng.standard_normal(shape) if np.dtype(kind).kind == "c" else 0)).astype(kind)


def hermitian(x):
    return x + np.conj(np.swapaxes(x, -1, -2))


def test_gram_meets_every_target_and_is_hermitian(rng):
    def check(case):
        kind, target = case
        a = drawn(rng, (9, 13), kind)
        found = prismm.linalg.gram(a, accuracy=target)
        judge.assert_same_bits(found, np.conj(found.T) + 0)
        left = np.ascontiguousarray(np.conj(a.T))
        assert found.dtype == kind
        if target != "fast":
            exact = exact_gemm(1.0, left, a)
            judge.assert_meets(
                target or "native", exact, judge.magnitudes(left, a), found, judge.entry_terms(left, found)
            )

    judge.assert_each(check, [(kind, target) for kind in KINDS for target in TARGETS])


def test_bits_are_those_of_the_whole_product(rng):
    def check(case):
        kind, keywords = case
        a = drawn(rng, (23, 11), kind)
        whole = prismm.gemm(a, a, trans_b="C", **keywords)
        judge.assert_same_bits(np.tril(prismm.linalg.herk(a, **keywords)), np.tril(whole))

    ways = [{"reproducible": True}, {"accuracy": "correctly-rounded"}]
    judge.assert_each(check, [(kind, keywords) for kind in KINDS for keywords in ways])


def test_syrk_and_herk(rng):
    def check(case):
        kind, verb, trans, uplo = case
        a, c = drawn(rng, (12, 7), kind), drawn(rng, (12, 12), kind)
        shown = np.ascontiguousarray(a.T) if trans != "N" else a
        other = np.conj if verb == "herk" else np.asarray
        c = c + other(c.T)
        if verb == "herk":
            np.fill_diagonal(c, c.diagonal().real)
        right = np.ascontiguousarray(other(a.T))
        left = a
        if trans == "C":
            left, right = np.ascontiguousarray(np.conj(a)), np.ascontiguousarray(a.T)
        exact = exact_gemm(1.5, left, right, -0.5, c).rounded(kind)
        call = getattr(prismm.linalg, verb)
        read = c
        if uplo is not None:
            read = (np.tril if uplo == "L" else np.triu)(c) + (np.triu if uplo == "L" else np.tril)(
                c * 7, 1 if uplo == "L" else -1
            )
        found = call(shown, read, alpha=1.5, beta=-0.5, trans=trans, uplo=uplo, accuracy="correctly-rounded")
        if uplo is None:
            judge.assert_same_bits(found + 0, exact + 0)
        else:
            mask = np.tri(12, dtype=bool) if uplo == "L" else np.tri(12, dtype=bool).T
            judge.assert_same_bits(found + 0, np.where(mask, exact, read) + 0)

    judge.assert_each(check, [
        (kind, verb, trans, uplo)
        for kind in (np.float64, np.complex64)
        for verb, trans in (("syrk", "N"), ("syrk", "T"), ("herk", "N"), ("herk", "C"))
        for uplo in (None, "L", "U")
    ])  # fmt: skip


def test_symm(rng):
    def check(case):
        side, uplo = case
        a, b, c = drawn(rng, (8, 8), np.float64), drawn(rng, (8, 5), np.float64), drawn(rng, (8, 5), np.float64)
        if side == "R":
            b, c = b.T.copy(), c.T.copy()
        whole = (
            a + a.T if uplo is None else np.tril(a) + np.tril(a, -1).T if uplo == "L" else np.triu(a) + np.triu(a, 1).T
        )
        left, right = (whole, b) if side == "L" else (b, whole)
        expected = exact_gemm(2.0, left, right, 3.0, c).rounded()
        given = whole if uplo is None else a
        found = prismm.linalg.symm(given, b, c, alpha=2.0, beta=3.0, side=side, uplo=uplo, accuracy="correctly-rounded")
        judge.assert_same_bits(found, expected)

    judge.assert_each(check, [(side, uplo) for side in "LR" for uplo in (None, "L", "U")])


def test_trmm(rng):
    def check(case):
        side, uplo, trans, unit, kind = case
        a, b = drawn(rng, (14, 14), kind), drawn(rng, (14, 3), kind)
        b = b if side == "L" else b.T.copy()
        t = np.tril(a) if uplo == "L" else np.triu(a)
        if unit:
            np.fill_diagonal(t, 1.0)
        op = {"N": t, "T": t.T, "C": np.conj(t.T)}[trans].copy()
        left, right = (op, b) if side == "L" else (b, op)
        a[np.triu_indices(14, 1) if uplo == "L" else np.tril_indices(14, -1)] = np.nan
        if unit:
            np.fill_diagonal(a, np.nan)
        found = prismm.linalg.trmm(
            a, b, alpha=-2.0, side=side, uplo=uplo, trans=trans, unit=unit, accuracy="correctly-rounded"
        )
        judge.assert_same_bits(found + 0, exact_gemm(-2.0, left, right).rounded(kind) + 0)

    judge.assert_each(check, [
        (side, uplo, trans, unit, kind)
        for side in "LR" for uplo in "LU" for trans in "NTC" for unit in (False, True)
        for kind in (np.float64, np.complex64)
    ])  # fmt: skip


@pytest.mark.covering("name", ("kind", "keywords"))
@pytest.mark.parametrize(
    "keywords", [{"reproducible": True}, {"accuracy": "correctly-rounded"}, {"scheme": "residues:9"}], ids=str
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(HOSTILE))
def test_hostile_data_have_the_bits_of_the_whole_product(name, kind, keywords, seed, monkeypatch):
    """Entries of every column meet rows from theirs on, in one pass over A and in several."""
    a = HOSTILE[name](210, 90, 3, seed, kind)[0]
    whole = prismm.gemm(a, a, trans_b="C", **keywords)
    for rows in (None, 96):
        if rows is not None:
            monkeypatch.setattr(streamed, "rows_per_pass", lambda *_, rows=rows: rows)
        found = prismm.linalg.herk(a, **keywords)
        monkeypatch.undo()
        judge.assert_same_bits(np.tril(found), np.tril(whole))
        judge.assert_same_bits(np.triu(found, 1), np.triu(np.conj(whole.T), 1))


@pytest.mark.covering("name")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(HOSTILE))
def test_panels_of_native_products_begin_at_the_diagonal(name, kind, seed, monkeypatch):
    """Of real matrices there is one panel by BLAS's syrk, or two where NumPy's library has none by that name."""
    monkeypatch.setattr(native_product, "LOWER_PANEL", 24)
    monkeypatch.setattr(native_product, "SYRK_PANEL", 24)
    sizes, product, lower_syrk = [], native_product.product, native_product.lower_syrk

    def noted(a, b, out=None, **rest):
        sizes.append((a.shape[0], b.shape[1]))
        return product(a, b, out, **rest)

    monkeypatch.setattr(native_product, "product", noted)
    is_real = np.dtype(kind).kind == "f"
    panels = [(35, 35)] * 3 if is_real else [(24, 24), (46, 24), (24, 24), (22, 24), (22, 22)]
    a = HOSTILE[name](70, 41, 3, seed, kind)[0]
    right = np.ascontiguousarray(np.conj(a.T))
    exact = exact_gemm(1.0, a, right)
    for there in (True, False):
        monkeypatch.setattr(native_product, "lower_syrk", lower_syrk if there else lambda *_: False)
        sizes.clear()
        found = prismm.linalg.herk(a, scheme="native")
        if np.isfinite(a).all() and not (there and is_real):
            assert sizes[: len(panels)] == panels
        judge.assert_meets("native", exact, judge.magnitudes(a, right), found, judge.entry_terms(a, found))
        assert np.array_equal(found, np.conj(found.T), equal_nan=True)


@pytest.mark.parametrize("name", list(HOSTILE))
def test_panels_of_float32_end_at_the_diagonal(name, seed, monkeypatch):
    """By one float64 product: every panel of rows meets the columns up to its last row, and no more."""
    monkeypatch.setattr(single, "LOWER_PANEL", 24)
    monkeypatch.setattr(symmetric, "_TILE", 16)
    sizes, rounded = [], single._rounded

    def noted(c, *rest):
        sizes.append(c.shape)
        return rounded(c, *rest)

    native = {"scheme": prismm.Native(compute="float64"), "accuracy": "correctly-rounded"}
    for special in (None, np.nan, np.inf):
        a = HOSTILE[name](70, 41, 3, seed, "float32")[0]
        if special is not None:
            a[[3, 40], [5, 7]] = special
        whole = prismm.gemm(a, a, trans_b="T", **native)
        monkeypatch.setattr(single, "_rounded", noted)
        # By rows and by columns: one of the two operands lies as it is widened.
        for verb, x in ((prismm.linalg.syrk, a), (prismm.linalg.gram, np.array(a.T))):
            sizes.clear()
            found = verb(x, threads=2, **native)
            assert sizes == [(24, 24), (24, 48), (22, 70)]
            judge.assert_same_bits(np.tril(found), np.tril(whole))
            judge.assert_same_bits(np.triu(found, 1), np.triu(whole.T, 1))
        monkeypatch.setattr(single, "_rounded", rounded)


def test_tiles_above_the_diagonal_are_left_out(rng, monkeypatch):
    """The product is one of fewer tiles, gemm's sum too, and the triangle that is not asked for is C's."""
    if choose("cpu").name == "cpu:float64":
        pytest.skip("no engine of packed bytes")
    tiles = []
    tile = Product.tile

    def noted(self, residues, block, rows, columns, where, *rest):
        tiles.append(where)
        tile(self, residues, block, rows, columns, where, *rest)

    monkeypatch.setattr(Product, "tile", noted)
    n = 1000
    a, c = rng.standard_normal((n, 70)), rng.standard_normal((n, n))
    found = prismm.linalg.syrk(a, c, alpha=1.5, beta=-0.5, uplo="L", reproducible=True)
    area = sum((i1 - i0) * (j1 - j0) for i0, i1, j0, j1 in tiles)
    assert n * n / 2 < area < 0.75 * n * n
    assert all(i1 > j0 for _, i1, j0, _ in tiles)
    symmetric_c = np.tril(c) + np.tril(c, -1).T
    whole = prismm.gemm(a, a, symmetric_c, alpha=1.5, beta=-0.5, trans_b="T", reproducible=True)
    judge.assert_same_bits(np.tril(found), np.tril(whole))
    judge.assert_same_bits(np.triu(found, 1), np.triu(c, 1))


def test_tensors_batches_and_integers(rng):
    a = drawn(rng, (2, 7, 12), np.complex128)
    found = prismm.linalg.gram(torch.from_numpy(a), accuracy="correctly-rounded")
    assert isinstance(found, torch.Tensor)
    judge.assert_same_bits(found.numpy(), prismm.linalg.gram(a, accuracy="correctly-rounded"))
    for i in range(2):
        judge.assert_same_bits(found[i].numpy(), prismm.linalg.gram(a[i], accuracy="correctly-rounded"))
    t = torch.from_numpy(drawn(rng, (9, 9), np.float64))
    judge.assert_same_bits(
        prismm.linalg.trmm(t, t, accuracy="correctly-rounded").numpy(),
        prismm.linalg.trmm(t.numpy(), t.numpy(), accuracy="correctly-rounded"),
    )
    whole = rng.integers(-9, 10, (6, 8))
    assert (prismm.linalg.gram(whole) == whole.T @ whole).all()
    assert prismm.linalg.gram(np.zeros((0, 3))).tolist() == [[0.0] * 3] * 3
    assert prismm.linalg.gram(np.zeros((3, 0))).shape == (0, 0)


def test_the_other_triangle_has_the_type_of_the_result():
    c = np.array([[0.0, 0.1], [0.0, 0.0]])
    for given in (c, torch.from_numpy(c)):
        a = np.ones((2, 1)) if given is c else torch.ones(2, 1, dtype=torch.float64)
        for beta in (0.0, 1.0):
            found = prismm.linalg.syrk(a, given, beta=beta, uplo="L", out_dtype="float32")
            assert str(found.dtype).endswith("float32")
            judge.assert_same_bits(np.asarray(found), np.array([[1.0, 0.1], [1.0, 1.0]], np.float32))
    kept = prismm.linalg.syrk(np.ones((3, 2, 1)), c, uplo="L")
    assert kept.shape == (3, 2, 2) and (kept[:, 0, 1] == 0.1).all()


def test_nan_is_symmetric():
    c = np.array([[np.nan, 1.0], [1.0, 2.0]])
    for verb in (prismm.linalg.syrk, prismm.linalg.herk):
        judge.assert_same_bits(verb(np.ones((2, 1)), c, beta=1.0), c + 1)
    assert np.isnan(prismm.linalg.symm(c, np.eye(2))[0]).all()
    assert (prismm.linalg.herk(np.ones((2, 1)), alpha=np.complex64(2.0)) == 2.0).all()


def test_bools_are_numbers():
    a = np.array([[True, True], [True, False]])
    for found in (prismm.linalg.gram(a), prismm.gemm(a.T, a), prismm.linalg.syrk(a, trans="T")):
        judge.assert_same_bits(found, np.array([[2.0, 1.0], [1.0, 1.0]]))


def test_bad_input(rng):
    a, skew = np.ones((3, 3)), np.array([[0.0, 1.0], [2.0, 0.0]])
    holed = np.array([[0.0, np.nan], [2.0, 0.0]])

    def check(case):
        error, match, call = case
        with pytest.raises(error, match=match):
            call()

    la = prismm.linalg
    judge.assert_each(check, [
        (ArgumentError, "unknown keyword 'out'", lambda: la.gram(a, out=a)),
        (ShapeError, "matrix", lambda: la.gram(np.ones(3))),
        (ArgumentError, "not symmetric: .*uplo", lambda: la.syrk(np.ones((2, 2)), skew, beta=1.0)),
        (ArgumentError, "not symmetric|not Hermitian", lambda: la.herk(np.ones((2, 2)), skew, beta=1.0)),
        (ArgumentError, "not symmetric: .*uplo", lambda: la.symm(skew, skew)),
        (ArgumentError, "trans='C'", lambda: la.syrk(a, trans="C")),
        (ArgumentError, "trans='T'", lambda: la.herk(a, trans="T")),
        *((ArgumentError, "complex", lambda z=z: la.herk(a, alpha=z)) for z in (1j, np.complex64(1j), np.array(1j))),
        (ArgumentError, "beta.*complex", lambda: la.herk(a, a, beta=torch.tensor(1j))),
        (ArgumentError, "no number", lambda: la.herk(a, alpha="x")),
        (ArgumentError, "no number", lambda: la.syrk(a, a, beta="x")),
        (ArgumentError, "needs c", lambda: la.syrk(a, beta=1.0)),
        (ShapeError, "equal shapes", lambda: la.syrk(np.ones((2, 1)), np.eye(3), beta=0.0, uplo="L")),
        (ShapeError, "equal shapes", lambda: la.syrk(a, np.ones((2, 3, 3)), uplo="U")),
        (ShapeError, "equal shapes", lambda: la.syrk(a, np.ones(3), beta=1.0)),
        (OperandError, "kinds", lambda: la.syrk(a, torch.eye(3), uplo="L")),
        (DTypeError, "real c", lambda: la.syrk(a, a * 1j, uplo="L")),
        (ArgumentError, r"c\[0, 1\] is nan, .* asks for 2.0", lambda: la.herk(a[:2], holed, beta=1.0)),
        (ArgumentError, r"c\[0, 0\] is \(nan\+1j\)", lambda: la.herk(a[:2], np.diag([np.nan + 1j, 0]), beta=1.0)),
        (ArgumentError, "uplo='X'", lambda: la.syrk(a, uplo="X")),
        (ArgumentError, "side='X'", lambda: la.symm(a, a, side="X")),
        (ShapeError, "square", lambda: la.trmm(np.ones((2, 3)), np.ones((3, 3)))),
        (ShapeError, "do not fit", lambda: la.trmm(a, np.ones((2, 3)))),
        (ShapeError, "equal shapes", lambda: la.syrk(a, np.eye(4), beta=1.0)),
        (ArgumentError, "unit='no'; pass True or False", lambda: la.trmm(a, a, unit="no")),
        (ArgumentError, "uplo=array", lambda: la.syrk(a, uplo=np.array(["L", "U"]))),
        (ArgumentError, "trans=array", lambda: la.herk(a, trans=np.array(["N", "C"]))),
        (ArgumentError, "scheme=3 is no scheme", lambda: la.gram(a, scheme=3)),
    ])  # fmt: skip


def test_tensors_without_entries_and_tensors_that_torch_follows_are_refused():
    """By the name under which they came in, whichever function looks at them first."""
    x, la = torch.eye(3, dtype=torch.float64), prismm.linalg
    verbs = {
        "a": (la.gram, la.syrk, la.herk, lambda z: la.symm(z, x), lambda z: la.trmm(z, x)),
        "b": (lambda z: la.symm(x, z), lambda z: la.trmm(x, z), lambda z: la.symm(x, z, uplo="U", side="R")),
        "c": (lambda z: la.syrk(x, z, beta=1.0), lambda z: la.herk(x, z, uplo="L")),
    }  # fmt: skip
    kinds = {
        "has layout": x.to_sparse(), "is on meta": x.to("meta"), "requires grad": x.clone().requires_grad_()
    }  # fmt: skip
    for name, calls in verbs.items():
        for words, z in kinds.items():
            for call in calls:
                with pytest.raises(OperandError, match=f"^{name} {words}"):
                    call(z)
        for call in calls:
            for transform in (torch.func.vmap, torch.func.grad):
                with pytest.raises(OperandError, match=f"^{name} is inside a transform"):
                    transform(lambda z, call=call: call(z).sum())(torch.stack([x, x]))
