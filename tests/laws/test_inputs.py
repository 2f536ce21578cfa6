"""What users hold: data frames, labelled arrays, sparse matrices, bfloat16; names of schemes; out in any way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import prismm
from prismm.errors import ArgumentError, DTypeError, OperandError, ShapeError
from tests.judge import CORRECT, assert_same_bits


class Frame:
    """What pandas, xarray and polars have in common, with a column of a name that tensors use."""

    is_cuda = np.array([1.0, 2.0])

    def __init__(self, x: Any) -> None:
        self.x = x

    def to_numpy(self) -> Any:
        if isinstance(self.x, Exception):
            raise self.x
        return self.x


def calls(a: Any, b: Any) -> list[np.ndarray]:
    """The product by every verb that multiplies."""
    return [
        prismm.matmul(a, b, **CORRECT), prismm.matmul(a, b), prismm.gemm(a, b, **CORRECT),
        prismm.matmul(prismm.prepare(a, side="left", **CORRECT), b), prismm.matmul(a, prismm.prepare(b, **CORRECT)),
        prismm.tensordot(a, b, axes=1, **CORRECT), prismm.einsum("ij,jk->ik", a, b, **CORRECT),
    ]  # fmt: skip


def test_values_are_taken_without_labels(rng):
    x, y = rng.integers(-9, 9, (4, 3)).astype(float), rng.integers(-9, 9, (3, 5)).astype(float)
    for product in calls(Frame(x), Frame(y)):
        assert type(product) is np.ndarray
        assert_same_bits(product, x @ y)
    assert_same_bits(prismm.matmul(Frame(x), y), x @ y)
    assert prismm.explain(Frame(x), Frame(y)).k == 3
    assert prismm.check(Frame(x), Frame(y), x @ y).operands == ("float64", "float64")
    with pytest.raises(OperandError, match="out is a Frame; pass a NumPy array"):
        prismm.matmul(x, y, out=Frame(np.empty((4, 5))))
    with pytest.raises(DTypeError, match=r"b has dtype object.*b\.astype"):
        prismm.matmul(x, Frame(y.astype(object)))
    with pytest.raises(OperandError, match=r"a cannot be read: to_numpy failed \(gone\)"):
        prismm.matmul(Frame(OSError("gone")), y)
    with pytest.raises(OperandError, match=r"a\.to_numpy\(\) gives a list"):
        prismm.matmul(Frame([1.0]), y)


def test_pandas(rng):
    pandas = pytest.importorskip("pandas")
    x, y = rng.integers(-9, 9, (4, 3)).astype(float), rng.integers(-9, 9, (3, 5)).astype(float)
    a = pandas.DataFrame(x, columns=["is_cuda", "toarray", "z"], index=list("wxyz"))
    b = pandas.DataFrame(y, index=[5, 4, 3])  # labels are not aligned
    for product in calls(a, b):
        assert type(product) is np.ndarray
        assert_same_bits(product, x @ y)
    assert_same_bits(prismm.matmul(a["z"], a["z"], **CORRECT), x[:, 2] @ x[:, 2])
    assert_same_bits(prismm.matmul(pandas.DataFrame(x > 0), pandas.DataFrame(y > 0)), (x > 0) @ (y > 0))
    with pytest.raises(DTypeError, match="has dtype object"):
        prismm.matmul(a.assign(z="text"), b)


def test_xarray(rng):
    xarray = pytest.importorskip("xarray")
    x, y = rng.integers(-9, 9, (4, 3)).astype(float), rng.integers(-9, 9, (3, 5)).astype(float)
    a, b = xarray.DataArray(x, dims=("time", "x")), xarray.DataArray(y, dims=("x", "y"))
    for product in calls(a, b):
        assert type(product) is np.ndarray
        assert_same_bits(product, x @ y)


def test_sparse_matrices_are_refused_with_the_remedy():
    sparse = pytest.importorskip("scipy.sparse")
    x = np.eye(3)
    for call in (prismm.matmul, prismm.vecdot, prismm.tensordot, lambda a, b: prismm.einsum("ij,jk", a, b)):
        with pytest.raises(OperandError, match=r"is a csr_array.*\.toarray\(\) makes one"):
            call(sparse.csr_array(x), x)


def test_bfloat16_of_ml_dtypes(rng):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = rng.integers(-9, 9, (4, 4)).astype(ml_dtypes.bfloat16)
    for product in calls(x, x):
        assert_same_bits(product, x.astype(np.float32) @ x.astype(np.float32))


@pytest.mark.parametrize("name", ["residues:15", "words:bf16x6", "native", "auto", "slices:int8:dp", "TILE-INT8"])
def test_schemes_by_name(name, rng):
    from prismm.schemes.names import parse_scheme

    a, b = rng.standard_normal((5, 6)), rng.standard_normal((6, 4))
    if name in ("native", "auto"):  # BLAS has the same bits for small integers alone, wherever its operands lie
        a, b = np.rint(9 * a), np.rint(9 * b)
    scheme = parse_scheme(name)
    expected = prismm.matmul(a, b, scheme=scheme)
    assert_same_bits(prismm.matmul(a, b, scheme=name), expected)
    assert_same_bits(prismm.matmul(a, b, scheme=np.str_(name)), expected)
    assert_same_bits(prismm.gemm(a, b, scheme=name), prismm.gemm(a, b, scheme=scheme))
    assert_same_bits(a @ prismm.prepare(b, scheme=name), a @ prismm.prepare(b, scheme=scheme))
    assert_same_bits(prismm.einsum("ij,jk", a, b, scheme=name), prismm.einsum("ij,jk", a, b, scheme=scheme))
    assert prismm.explain(a, b, scheme=name).scheme == prismm.explain(a, b, scheme=scheme).scheme
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(a).requires_grad_()
    assert_same_bits(prismm.matmul(x, torch.from_numpy(b), scheme=name).detach().numpy(), expected)
    assert prismm.Rule(scheme=name.lower()).recipe.keywords["scheme"] == scheme
    with prismm.emulate(scheme=name.lower()):
        assert torch.from_numpy(a).mm(torch.from_numpy(b)).shape == (5, 4)


@pytest.mark.parametrize(
    ("name", "words"),
    [("residue:15", "did you mean 'residues:15'"), ("words:tf23x3", "did you mean 'words:tf32x3'"),
     ("bogus", "pass auto, native, residues or residues:N"), ("", "pass auto"), ("residues:999", "999")],
)  # fmt: skip
def test_names_of_no_scheme_say_what_there_is(name, words):
    x = np.eye(2)
    for call in (
        lambda: prismm.matmul(x, x, scheme=name),
        lambda: prismm.gemm(x, x, scheme=name),
        lambda: prismm.prepare(x, scheme=name),
        lambda: prismm.explain(x, x, scheme=name),
        lambda: prismm.vecdot(x, x, scheme=name),
    ):
        with pytest.raises(ArgumentError, match=words):
            call()
    with pytest.raises(ArgumentError, match="a name such as 'residues:15'"):
        prismm.matmul(x, x, scheme=7)


def test_out_as_the_third_argument_and_of_wider_types(rng):
    a, b = rng.standard_normal((4, 3)), rng.standard_normal((3, 2))
    for keywords in ({}, CORRECT, {"reproducible": True}):
        expected = prismm.matmul(a, b, **keywords)
        for dtype in ("float64", "complex128", "longdouble"):
            out = np.full((4, 2), 7, dtype)
            assert prismm.matmul(a, b, out, **keywords) is out
            assert np.array_equal(out, expected)
        narrow = prismm.matmul(a.astype("f4"), b.astype("f4"), **keywords)
        out = np.empty((4, 2))
        assert_same_bits(prismm.matmul(a.astype("f4"), b.astype("f4"), out, **keywords), narrow.astype(float))
        for kind in ("float32", "int64", "bool"):
            with pytest.raises(DTypeError, match=f"out has dtype {kind}, the product has float64.*Cannot cast ufunc"):
                prismm.matmul(a, b, np.empty((4, 2), kind), **keywords)
        with pytest.raises(ShapeError, match="non-broadcastable"):
            prismm.matmul(a, b, np.empty((1, 4, 2)), **keywords)
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(a)
    with pytest.raises(DTypeError, match="out has dtype complex128"):
        prismm.matmul(x, x.T, out=torch.empty(4, 4, dtype=torch.complex128))
