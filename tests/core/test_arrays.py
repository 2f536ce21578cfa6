"""Arrays in and out: NumPy's kinds, torch tensors, and anything with ``__dlpack__``."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch

import prismm
from prismm.core.arrays import overlaps_itself
from prismm.errors import DTypeError, OperandError
from prismm.testing import HOSTILE, SPECIAL, correctly_rounded
from tests.judge import CORRECT, DTYPES, assert_same_bits, each_dtype, usable_engines

CALLS: list[dict[str, Any]] = [{}, CORRECT, {"reproducible": True}, {"accuracy": 1e-13}]


class Capsule:
    """An array library of which nothing is known but ``__dlpack__``."""

    def __init__(self, x: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self._x = x
        self._device = device

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._x.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


class Namespace:
    """The array API's namespace of `Standard`."""

    @staticmethod
    def from_dlpack(x: Any) -> Standard:
        return Standard(np.from_dlpack(x))


class Standard(Capsule):
    """An array-API array: it names its namespace, so results can go back to it."""

    def __array_namespace__(self, api_version: str | None = None) -> type[Namespace]:
        return Namespace

    @property
    def values(self) -> np.ndarray:
        return self._x


class Packed(Capsule):
    """An array of a package that takes arrays back, as CuPy's, and names no namespace."""

    __module__ = "packed.core"


class NarrowNamespace:
    """Of `Narrow`."""

    @staticmethod
    def from_dlpack(x: Any) -> Narrow:
        x = np.from_dlpack(x)
        return Narrow(x.astype({"float64": "float32", "complex128": "complex64"}.get(x.dtype.name, x.dtype)))


class Narrow(Standard):
    """An array library that holds no double precision, as JAX does not before it is told to."""

    def __array_namespace__(self, api_version: str | None = None) -> type[NarrowNamespace]:
        return NarrowNamespace


class Brain:
    """An array of bfloat16 of which nothing is known but ``__dlpack__``."""

    def __init__(self, x: torch.Tensor) -> None:
        self._x = x.to(torch.bfloat16)

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._x.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Broken:
    """Announces ``__dlpack__`` and cannot export."""

    def __dlpack__(self, **keywords: Any) -> Any:
        raise BufferError("no memory to export")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@each_dtype
@pytest.mark.parametrize("keywords", CALLS, ids=str)
def test_tensors_in_and_tensors_out(keywords, dtype, seed):
    a, b = HOSTILE["phi2"](20, 30, 25, seed, dtype)
    c, report = prismm.matmul(torch.from_numpy(a), torch.from_numpy(b), full_output=True, **keywords)
    assert isinstance(c, torch.Tensor) and c.dtype is getattr(torch, dtype)
    right = correctly_rounded(a, b)
    if keywords is CORRECT:
        assert_same_bits(c.numpy(), right)
    np.testing.assert_array_less(
        np.abs(c.numpy() - right), 2 * report.bounds + np.abs(right) * 1e-6 * (right.real.itemsize == 4)
    )
    if keywords.get("reproducible"):
        assert_same_bits(c.numpy(), prismm.matmul(a, b, **keywords))
    c.add_(1)  # the result is an ordinary tensor that owns its memory


@pytest.mark.parametrize("keywords", CALLS, ids=str)
def test_tensor_views_of_every_kind(keywords, seed):
    a, b = HOSTILE["normal"](12, 9, 10, seed, "complex128")
    right = correctly_rounded(a, b)
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    views = {
        "conjugate view": (torch.from_numpy(a.conj()).conj(), y),
        "conjugate transpose": (x, torch.from_numpy(np.ascontiguousarray(b.conj().T)).mH),
        "negative view": (torch.from_numpy(a.conj()).conj().real, torch.from_numpy(b.conj()).conj().imag),
        "expanded": (x[:, :1].expand(12, 9), y),
        "strided": (torch.stack([x, x], dim=2).reshape(12, 18)[:, ::2], y),
        "flipped": (x.flip(1), y.flip(0)),
    }
    for how, (left, other) in views.items():
        expected = right if left.shape == x.shape and how not in ("negative view", "expanded") else None
        if expected is None:
            expected = correctly_rounded(
                left.resolve_conj().resolve_neg().numpy(), other.resolve_conj().resolve_neg().numpy()
            )
        c = prismm.matmul(left, other, **keywords)
        assert isinstance(c, torch.Tensor)
        if keywords is CORRECT:
            assert_same_bits(c.numpy(), expected, how)
        np.testing.assert_allclose(c.numpy(), expected, rtol=1e-13, atol=1e-13, err_msg=how)


def test_the_imaginary_part_of_a_conjugate_is_a_negative_view():
    x = torch.from_numpy(np.array([[1 + 2j]])).conj().imag
    assert x.is_neg()
    assert prismm.matmul(x, x, **CORRECT).item() == 4.0
    assert prismm.matmul(x, torch.ones(1, 1, dtype=torch.float64)).item() == -2.0


@pytest.mark.parametrize("keywords", CALLS, ids=str)
def test_bfloat16_and_half_are_taken_exactly(keywords, seed):
    rng = np.random.default_rng(seed)
    for kind in (torch.bfloat16, torch.float16):
        x = torch.from_numpy(rng.standard_normal((7, 40))).to(kind)
        y = torch.from_numpy(rng.standard_normal((40, 6))).to(kind)
        c = prismm.matmul(x, y, **keywords)
        right = correctly_rounded(x.float().numpy(), y.float().numpy())
        assert c.dtype is torch.float32
        if keywords is CORRECT:
            assert_same_bits(c.numpy(), right)
        np.testing.assert_allclose(c.numpy(), right, rtol=1e-4, atol=1e-5)
        wide = prismm.matmul(x, y, out_dtype=torch.float64, **CORRECT)
        assert_same_bits(wide.numpy(), correctly_rounded(x.double().numpy(), y.double().numpy()))


def test_torch_integers_batches_and_vectors(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-(2**62), 2**62, (3, 4, 5)), rng.integers(-(2**62), 2**62, (5, 2))
    c = prismm.matmul(torch.from_numpy(a), torch.from_numpy(b), **CORRECT)
    for i in range(3):
        assert_same_bits(c[i].numpy(), correctly_rounded(a[i], b, np.float64))
    x, y = rng.standard_normal(5), rng.standard_normal((5, 2))
    d = prismm.matmul(torch.from_numpy(x), torch.from_numpy(y), **CORRECT)
    assert_same_bits(d.numpy(), correctly_rounded(x[None], y)[0])
    e = prismm.matmul(torch.from_numpy(x), torch.from_numpy(x), **CORRECT)
    assert isinstance(e, torch.Tensor) and e.shape == ()


def test_torch_out_gemm_and_prepare(seed):
    a, b = HOSTILE["phi1"](6, 8, 5, seed)
    c, _ = HOSTILE["normal"](6, 5, 1, seed)
    x, y, z = map(torch.from_numpy, (a, b, c.copy()))
    expected = prismm.gemm(a, b, c, beta=2.0, **CORRECT)
    d = prismm.gemm(x, y, z, beta=2.0, out=z, **CORRECT)
    assert d is z
    assert_same_bits(z.numpy(), expected)
    out = torch.empty(5, 6, dtype=torch.float64).T
    assert prismm.matmul(x, prismm.prepare(y, **CORRECT), out=out) is out
    assert_same_bits(out.numpy(), correctly_rounded(a, b))
    turned = prismm.gemm(x.mT.contiguous(), y, trans_a="T", **CORRECT)
    assert isinstance(turned, torch.Tensor)
    assert_same_bits(turned.numpy(), correctly_rounded(a, b))


def test_specials_in_tensors(seed):
    for dtype in DTYPES:
        a, b = SPECIAL["specials"](8, 6, 7, seed, dtype)
        for keywords in (CORRECT, {}):
            c = prismm.matmul(torch.from_numpy(a), torch.from_numpy(b), **keywords)
            right = correctly_rounded(a, b)
            assert_same_bits(np.where(np.isfinite(right), 0, c.numpy()), np.where(np.isfinite(right), 0, right))


def test_gradients_are_kept_or_refused_never_lost():
    """What they are is for tests/programs."""
    x = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    y = torch.ones(2, 2, dtype=torch.float64)
    for a, b, name in ((x, y, "a"), (y, x, "b")):
        for keywords in CALLS:
            assert prismm.matmul(a, b, **keywords).requires_grad
            with pytest.raises(OperandError, match=rf"{name} requires grad.*{name}\.detach\(\)"):
                prismm.matmul(a, b, full_output=True, **keywords)
        with pytest.raises(OperandError, match=rf"{name} requires grad.*{name}\.detach\(\)"):
            prismm.gemm(a, b)
    with pytest.raises(OperandError, match=r"c requires grad.*c\.detach\(\)"):
        prismm.gemm(y, y, x, beta=1.0)
    with pytest.raises(OperandError, match="requires grad"):
        prismm.prepare(x)
    with pytest.raises(OperandError, match="out requires grad"):
        prismm.matmul(y, y, out=x)
    assert prismm.matmul(x.detach(), y)[0, 0] == 2.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.eye(2).to_sparse(), ["layout torch.sparse_coo", ".to_dense()"]),
        (lambda: torch.eye(2, device="meta"), ["on meta", "operators.matmul"]),
    ],
)
def test_sparse_tensors_and_other_devices_are_refused(make, words):
    x = make()
    for name, operands in (("a", (x, torch.eye(2))), ("b", (torch.eye(2), x))):
        with pytest.raises(OperandError) as caught:
            prismm.matmul(*operands)
        for word in (f"{name} ", *words):
            assert word in str(caught.value)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_compressed_sparse_tensors_are_refused():
    with pytest.raises(OperandError, match=r"layout torch.sparse_csr.*to_dense"):
        prismm.matmul(torch.eye(2).to_sparse_csr(), torch.eye(2))


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn])
def test_other_torch_types_are_refused(kind):
    x = torch.ones(2, 2).to(kind)
    with pytest.raises(DTypeError, match="a has dtype"):
        prismm.matmul(x, x)


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("kind", [torch.complex32, torch.float8_e4m3fn])
def test_torch_types_that_numpy_lacks_are_refused_with_a_remedy_that_keeps_every_value(kind):
    x = torch.tensor([[1, 2], [3, 4]], dtype=torch.complex64 if kind.is_complex else torch.float32)
    x = (x + 0.5j if kind.is_complex else x).to(kind)
    with pytest.raises(DTypeError, match="NumPy does not know; pass a") as caught:
        prismm.matmul(x, x)
    kept = eval(str(caught.value).rsplit("pass ", 1)[1], {"a": x, "torch": torch})
    assert torch.equal(kept.to(torch.complex64), x.to(torch.complex64))
    assert_same_bits(prismm.matmul(kept, kept), kept @ kept)


def test_mixed_kinds_are_refused():
    x = np.ones((2, 2))
    for a, b in ((x, torch.ones(2, 2)), (torch.ones(2, 2), x), (Capsule(x), x), (torch.ones(2, 2), Capsule(x))):
        with pytest.raises(OperandError, match=r"different kinds.*convert them to one kind"):
            prismm.matmul(a, b)
    with pytest.raises(OperandError, match="out is of kind torch, the operands are of kind numpy"):
        prismm.matmul(x, x, out=torch.empty(2, 2, dtype=torch.float64))


def test_a_tensor_that_cannot_be_written_to_is_refused():
    """Of these prismm has copies only: what it wrote would be lost."""
    torch = pytest.importorskip("torch")
    x = torch.eye(2)
    with pytest.raises(DTypeError, match="out has dtype bfloat16"):
        prismm.matmul(x, x, out=torch.empty(2, 2, dtype=torch.bfloat16))
    z = torch.zeros(2, 2, dtype=torch.complex64)
    for out, a in ((z.conj(), z), (z.conj().imag, x)):
        with pytest.raises(OperandError, match="still to come"):
            prismm.matmul(a, a, out=out)
        with pytest.raises(OperandError, match="still to come"):
            prismm.gemm(a, a, out=out)
    assert torch.equal(prismm.matmul(x, x, out=z.real), x) and torch.equal(z, x.to(z.dtype))


@each_dtype
def test_dlpack_objects(dtype, seed, monkeypatch):
    a, b = HOSTILE["phi2"](10, 12, 11, seed, dtype)
    right = correctly_rounded(a, b)
    for engine in usable_engines():
        c = prismm.matmul(Capsule(a), Capsule(b), engine=engine, **CORRECT)
        assert_same_bits(c, right, engine)
        c = prismm.matmul(Standard(a), Standard(b), engine=engine, **CORRECT)
        assert isinstance(c, Standard)
        assert_same_bits(c.values, right, engine)
    strided = prismm.matmul(Capsule(np.asfortranarray(a)), Capsule(b[:, ::2]), **CORRECT)
    assert_same_bits(strided, right[:, ::2])
    package = types.ModuleType("packed")
    package.from_dlpack = lambda x: Packed(np.from_dlpack(x))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "packed", package)
        c = prismm.matmul(Packed(a), Packed(b), **CORRECT)
    assert isinstance(c, Packed)
    assert_same_bits(c._x, right)
    assert_same_bits(prismm.matmul(Packed(a), Packed(b), **CORRECT), right)
    prepared = prismm.prepare(Standard(b), **CORRECT)
    again = prismm.matmul(Standard(a), prepared)
    assert_same_bits(again.values if isinstance(again, Standard) else again, right)


def test_dlpack_objects_elsewhere_or_broken_are_refused():
    x = np.ones((2, 2))
    with pytest.raises(OperandError, match=r"a is on DLPack device \(2, 0\).*CPU: copy it"):
        prismm.matmul(Capsule(x, (2, 0)), Capsule(x))
    with pytest.raises(OperandError, match=r"b cannot be read through __dlpack__ \(no memory.*numpy.asarray\(b\)"):
        prismm.matmul(Capsule(x), Broken())


def test_a_result_is_never_made_narrower_on_its_way_back():
    """2^24 + 1 takes 25 bits: float32 has 24."""
    a, b = np.array([[2**24 + 1]]), np.array([[1]])
    wide, half = np.array([[2.0**24 + 1.0]]), np.ones((1, 1), np.float32)
    for keywords in CALLS:
        for operands, more, kind in (
            ((Narrow(a), Narrow(b)), {}, "float64"),
            ((Narrow(wide), Narrow(wide * 0 + 1)), {}, "float64"),
            ((Narrow(half), Narrow(half)), {"out_dtype": "float64"}, "float64"),
            ((Narrow(half), Narrow(half)), {"out_dtype": "complex128"}, "complex128"),
        ):
            narrow = {"float64": "float32", "complex128": "complex64"}[kind]
            words = rf"product is {kind}, and NarrowNamespace would make {narrow} of it; pass out_dtype='{narrow}'"
            for call in (
                lambda x, y, keywords: prismm.matmul(x, y, **keywords),
                lambda x, y, keywords: prismm.gemm(x, y, **keywords),
                lambda x, y, keywords: prismm.gemm(x, y, x, alpha=0.5, beta=2.0, **keywords),
                lambda x, y, keywords: prismm.explain(x, y, **keywords),
                lambda x, _, keywords: prismm.prepare(x, **keywords),
            ):
                with pytest.raises(DTypeError, match=rf"{words}.*numpy\.asarray\(a\)"):
                    call(*operands, {**keywords, **more})
        c = prismm.matmul(Narrow(a), Narrow(b), out_dtype="float32", **keywords)
        assert isinstance(c, Narrow)
        assert_same_bits(c.values, np.array([[2.0**24]], np.float32))
        assert_same_bits(prismm.matmul(np.from_dlpack(Narrow(a)), np.from_dlpack(Narrow(b)), **keywords), wide)
        assert_same_bits(prismm.matmul(Standard(a), Standard(b), **keywords).values, wide)
        assert_same_bits(prismm.matmul(Narrow(half), Narrow(half), **keywords).values, half)


@pytest.mark.parametrize("keywords", CALLS, ids=str)
def test_bfloat16_through_dlpack_alone_is_taken_exactly(keywords, seed):
    rng = np.random.default_rng(seed)
    x, y = (torch.from_numpy(rng.integers(-255, 256, shape)) for shape in ((7, 9), (9, 6)))
    right = (x @ y).numpy().astype(np.float32)  # below 2^24
    a, b = Brain(x), Brain(y)
    assert_same_bits(prismm.matmul(a, b, **keywords), right)
    assert_same_bits(prismm.gemm(a, b, a, trans_b="N", **keywords), right)
    assert_same_bits(prismm.matmul(a, prismm.prepare(b, **keywords)), right)
    assert_same_bits(prismm.matmul(a, b, out_dtype="float64", **keywords), right.astype(np.float64))
    with pytest.raises(OperandError, match="out is read-only"):
        prismm.matmul(a, b, out=Brain(torch.zeros(7, 6)), **keywords)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_subclasses_of_ndarray():
    """np.matrix is an array; masked values have no number, so they are refused."""
    m = np.matrix([[1.0, 2.0], [3.0, 4.0]])
    for keywords in CALLS:
        c = prismm.matmul(m, m, **keywords)
        assert type(c) is np.ndarray
        np.testing.assert_array_equal(c, [[7, 10], [15, 22]])
    row = prismm.matmul(m[0], m)
    assert row.shape == (1, 2)
    masked = np.ma.masked_array(np.ones((2, 2)), mask=np.eye(2, dtype=bool))
    for name, operands in (("a", (masked, np.eye(2))), ("b", (np.eye(2), masked))):
        with pytest.raises(OperandError, match=rf"{name} is a masked array; pass {name}\.filled\(value\)"):
            prismm.matmul(*operands)
    with pytest.raises(OperandError, match="out is a masked array"):
        prismm.matmul(np.eye(2), np.eye(2), out=masked)


@pytest.mark.parametrize("order", [">", "<"])
def test_either_byte_order(order, seed):
    for dtype in (*DTYPES, "float16", "int32", "uint64"):
        rng = np.random.default_rng(seed)
        a, b = (100 * rng.standard_normal((4, 6))).astype(dtype), (100 * rng.standard_normal((6, 5))).astype(dtype)
        x, y = a.astype(a.dtype.newbyteorder(order)), b.astype(b.dtype.newbyteorder(order))
        c = prismm.matmul(x, y, **CORRECT)
        assert c.dtype.isnative
        assert_same_bits(c, prismm.matmul(a, b, **CORRECT), dtype)
        np.testing.assert_array_equal(prismm.matmul(x, b), prismm.matmul(x, y))


@pytest.mark.parametrize(
    "x", [[[1.0, 2.0], [3.0, 4.0]], ((1, 2), (3, 4)), 3.0, 2, "ab", None, {1: 2}, b"12", memoryview(b"12")]
)
def test_what_is_no_array_is_refused(x):
    for name, operands in (("a", (x, np.eye(2))), ("b", (np.eye(2), x))):
        for keywords in CALLS:
            with pytest.raises(OperandError) as caught:
                prismm.matmul(*operands, **keywords)
            assert f"{name} is a {type(x).__name__}" in str(caught.value)
            assert f"numpy.asarray({name})" in str(caught.value)


class Frame:
    """Holds numbers, and makes arrays of them by a method."""

    def __init__(self, x: np.ndarray, *methods: str) -> None:
        for method in methods:
            setattr(self, method, lambda: x)


def test_what_makes_an_array_of_itself_is_refused_with_advice_that_works():
    sparse = pytest.importorskip("scipy.sparse")
    x = np.array([[1.0, 0.0], [2.0, 3.0]])
    things = [
        kind(x) for kind in (sparse.csr_matrix, sparse.csr_array, sparse.coo_array, sparse.bsr_matrix, sparse.dok_array)
    ]
    things += [Frame(x, "todense"), Frame(x, "todense", "to_numpy", "toarray")]
    for thing in things:
        for call in (
            lambda a: prismm.matmul(a, x),
            lambda a: prismm.matmul(a, x, **CORRECT),
            lambda a: prismm.gemm(a, x, x, beta=1.0),
            lambda a: prismm.gemm(a, x, trans_a="T"),
            lambda a: prismm.explain(a, x),
            lambda a: prismm.matmul(prismm.prepare(x, side="left"), a),
            lambda a: prismm.gemm(x, x, a, beta=1.0),
            lambda a: prismm.prepare(a),
        ):
            with pytest.raises(
                OperandError, match=rf"is a {type(thing).__name__}.*\(\w+\.\w+\(\) makes one\)"
            ) as caught:
                call(thing)
            method = str(caught.value).rpartition(".")[2].partition("(")[0]
            call(getattr(thing, method)())
        assert_same_bits(prismm.matmul(getattr(thing, method)(), x), x @ x)


@pytest.mark.parametrize(
    "x",
    [
        np.array([[1, "x"], [2, 3]], object),
        np.array([["a", "b"], ["c", "d"]]),
        *([np.array([["1", "2"], ["3", "4"]], np.dtypes.StringDType())] if hasattr(np.dtypes, "StringDType") else []),
        np.zeros((2, 2), "datetime64[s]"),
        np.zeros((2, 2), [("x", "f8")]),
    ],
    ids=lambda x: str(x.dtype),
)
def test_other_element_types_are_refused(x):
    for name, operands in (("a", (x, np.eye(2))), ("b", (np.eye(2), x)), ("a", (x, x))):
        for keywords in CALLS:
            with pytest.raises(DTypeError) as caught:
                prismm.matmul(*operands, **keywords)
            message = str(caught.value)
            assert f"{name} has dtype" in message and f"{name}.astype" in message and "float64" in message


def test_a_result_shares_no_memory_with_the_operands():
    x = np.eye(3)
    for engine in usable_engines():
        c = prismm.matmul(x, x, engine=engine, **CORRECT)
        assert not np.may_share_memory(c, x)
        c[:] = 5
        assert_same_bits(prismm.matmul(x, x, engine=engine, **CORRECT), np.eye(3))


class Liar(Capsule):
    """An array library whose protocol goes wrong."""

    def __init__(self, device: Any, capsule: Any = None) -> None:
        self.device, self.capsule = device, capsule

    def __dlpack_device__(self) -> Any:
        if isinstance(self.device, Exception):
            raise self.device
        return self.device

    def __dlpack__(self, **_: Any) -> Any:
        raise self.capsule


@pytest.mark.parametrize(
    ("liar", "words"),
    [
        (Liar(None), "__dlpack_device__ failed"),
        (Liar((1,)), "__dlpack_device__ failed"),
        (Liar(OSError("gone")), r"__dlpack_device__ failed \(gone\)"),
        (Liar((1, 0), KeyError("lost")), "cannot be read through __dlpack__"),
        (np.ndarray, r"is a class \(ndarray\)"),
        (torch.Tensor, r"is a class \(Tensor\)"),
    ],
)
def test_what_only_looks_like_an_array_is_refused(liar, words):
    x = np.ones((3, 3))
    for name, call in (
        ("a", lambda: prismm.matmul(liar, x)),
        ("b", lambda: prismm.matmul(x, liar)),
        ("a", lambda: prismm.explain(liar, x)),
        ("x", lambda: prismm.prepare(liar)),
    ):
        with pytest.raises(OperandError, match=f"^{name} .*{words}.*pass"):
            call()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused():
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(2, 3)])
    with pytest.raises(OperandError, match=r"a is a nested tensor; pass torch.nested.to_padded_tensor\(a, 0.0\)"):
        prismm.matmul(nested, torch.ones(3, 2), **CORRECT)


@pytest.mark.filterwarnings("ignore:.*[qQ]uantiz")
def test_a_quantized_tensor_is_refused():
    x = torch.quantize_per_tensor(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 0.5, 0, torch.qint8)
    y = torch.eye(2)
    for call in (
        lambda a: prismm.matmul(a, y),
        lambda a: prismm.matmul(a, y, **CORRECT),
        lambda a: prismm.gemm(a, y, y, beta=1.0) - y,
        lambda a: prismm.gemm(y, y, a, beta=1.0) - y,
    ):
        with pytest.raises(OperandError, match=r"[ac] is a quantized tensor; pass [ac]\.dequantize\(\)"):
            call(x)
        assert_same_bits(call(x.dequantize()), x.dequantize())


@pytest.mark.parametrize(
    ("shape", "strides", "overlaps"),
    [
        ((3, 5), (0, 8), True), ((3, 5), (16, 8), True), ((3, 5), (40, 8), False), ((3, 5), (8, 24), False),
        ((3, 2), (16, 24), False), ((4, 2), (16, 48), True), ((3, 5), (40, 4), True), ((1, 5), (0, 8), False),
        ((3, 5), (-40, 8), False), ((3, 5), (-16, 8), True), ((0, 5), (0, 0), False), ((), (), False),
    ],
)  # fmt: skip
def test_out_whose_entries_share_memory_is_refused(shape, strides, overlaps):
    memory = np.zeros(100)
    out = np.lib.stride_tricks.as_strided(memory[50:], shape, strides)
    assert overlaps_itself(out) == overlaps
    a, b = np.ones((*shape[:1], 7)), np.ones((7, *shape[1:]))
    if len(shape) < 2:
        return
    if not overlaps:
        assert (prismm.matmul(a, b, out=out) == 7.0).all()
        return
    with pytest.raises(OperandError, match=r"out has entries that share memory.*pass one with memory for each"):
        prismm.matmul(a, b, out=out)
    assert not memory.any()


def test_an_expanded_tensor_is_no_out():
    with pytest.raises(OperandError, match="out has entries that share memory"):
        prismm.matmul(torch.ones(3, 4), torch.ones(4, 5), out=torch.zeros(1, 5).expand(3, 5))
