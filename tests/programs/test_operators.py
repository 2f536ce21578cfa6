"""The operators: what torch asks of an operator, derivatives, strides, and the public face that stands on them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import prismm
from prismm.errors import ArgumentError, OperandError, PrismmError
from prismm.programs import Recipe, operators
from prismm.testing import HOSTILE, exact_gemm, exact_product
from tests.judge import assert_same_bits

REAL = (torch.float32, torch.float64)
DTYPES = (*REAL, torch.complex64, torch.complex128)
SHAPES = [
    *itertools.product([(4,), (3, 4), (2, 3, 4), (1, 3, 4)], [(4,), (4, 5), (2, 4, 5), (6, 1, 4, 5)]),
    ((0, 4), (4, 5)),
    ((3, 0), (0, 5)),
]


def made(shape: tuple[int, ...], seed: int, dtype: torch.dtype, strided: bool = False) -> torch.Tensor:
    """A normal tensor that wants a gradient; `strided`: every other element of a transposed one."""
    generator = torch.Generator().manual_seed(seed)
    if not strided:
        return torch.randn(shape, dtype=dtype, generator=generator).requires_grad_()
    wide = torch.randn([2 * extent for extent in reversed(shape)], dtype=dtype, generator=generator)
    return wide[tuple(slice(None, None, 2) for _ in shape)].permute(*reversed(range(len(shape)))).requires_grad_()


@pytest.mark.parametrize(
    ("dtype", "strided", "shapes"),
    [
        (torch.float32, True, ((3, 4), (4, 5))),
        pytest.param(torch.complex128, True, ((2, 3, 4), (4, 5)), marks=pytest.mark.slow),
        pytest.param(torch.float64, False, ((4,), (2, 4, 5)), marks=pytest.mark.slow),
        pytest.param(torch.float32, False, ((4,), (4,)), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_matmul_passes_opcheck(shapes, strided, dtype, seed):
    a, b = (made(shape, seed + i, dtype, strided) for i, shape in enumerate(shapes))
    torch.library.opcheck(operators.load().matmul.default, (a, b, "native"))


@pytest.mark.parametrize(
    ("dtype", "strided", "shapes"),
    [
        (torch.complex64, True, ((5,), (3, 4), (4, 5))),
        (torch.float32, False, ((3,), (3, 4), (4,))),
        (torch.float64, True, ((2, 1, 5), (2, 3, 4), (2, 4, 5))),
    ],
    ids=str,
)
@pytest.mark.slow
def test_gemm_passes_opcheck(shapes, strided, dtype, seed):
    c, a, b = (made(shape, seed + i, dtype, strided) for i, shape in enumerate(shapes))
    torch.library.opcheck(operators.load().gemm.default, (c, a, b, "native"), {"alpha": 0.5, "beta": -2.0})


@pytest.mark.parametrize("recipe", ["native reproducible", "scheme=words:tf32x3", "1e-3 threads=1"])
def test_recipes_pass_opcheck(recipe, seed):
    a, b = made((3, 4), seed, torch.float32), made((4, 5), seed + 1, torch.float32)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operators.load().matmul.default, (a, b, recipe), test_utils=tests)


@pytest.mark.covering(("left", "right"))
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_derivatives_of_matmul(left, right, dtype, seed):
    a, b = made(left, seed, dtype), made(right, seed + 1, dtype)

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return prismm.matmul(x, y, accuracy="correctly-rounded")

    assert torch.autograd.gradcheck(f, (a, b), fast_mode=True)
    if (left, right) == ((3, 4), (4, 5)):
        assert torch.autograd.gradgradcheck(f, (a, b), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize(
    "shapes",
    [
        ((5,), (3, 4), (4, 5)),
        ((3, 1), (3, 4), (4, 5)),
        ((3,), (3, 4), (4,)),
        ((1,), (3, 4), (4,)),
        ((5,), (2, 3, 4), (2, 4, 5)),
    ],
)
def test_derivatives_of_gemm(shapes, dtype, seed):
    c, a, b = (made(shape, seed + i, dtype) for i, shape in enumerate(shapes))
    alpha = 0.5 - 2j if dtype.is_complex else 0.5
    assert torch.autograd.gradcheck(
        lambda x, y, z: operators.gemm(x, y, z, "correctly-rounded", alpha=alpha, beta=-3), (c, a, b), fast_mode=True
    )


def test_mixed_types_have_derivatives_of_their_own_types(seed):
    a, b = made((3, 4), seed, torch.float64), made((4, 5), seed + 1, torch.complex128)
    assert torch.autograd.gradcheck(lambda x, y: prismm.matmul(x, y), (a, b))
    x, y = made((3, 4), seed, torch.bfloat16), made((4, 5), seed + 1, torch.float32)
    prismm.matmul(x, y).sum().backward()
    assert x.grad.dtype == torch.bfloat16 and y.grad.dtype == torch.float32


@pytest.mark.parametrize("name", HOSTILE)
def test_gradients_are_correctly_rounded_products(name, seed):
    a, b = (torch.from_numpy(np.array(x)).requires_grad_() for x in HOSTILE[name](4, 7, 3, seed, np.float32))
    g, _ = HOSTILE[name](4, 3, 1, seed + 1, np.float32)
    prismm.matmul(a, b, accuracy="correctly-rounded").backward(torch.from_numpy(np.array(g)))
    x, y = a.detach().numpy(), b.detach().numpy()
    assert_same_bits(a.grad.numpy(), exact_product(g, y.T).rounded(np.float32))
    assert_same_bits(b.grad.numpy(), exact_product(x.T, g).rounded(np.float32))


def test_a_weights_gradient_is_one_product(seed):
    """The batch stands in the inner dimension: one rounding, not one for each matrix of the batch."""
    x, w = made((6, 4, 7), seed, torch.float32), made((7, 3), seed + 1, torch.float32)
    g = made((6, 4, 3), seed + 2, torch.float32).detach()
    prismm.matmul(x, w, accuracy="correctly-rounded").backward(g)
    flat = x.detach().reshape(-1, 7).numpy()
    assert_same_bits(w.grad.numpy(), exact_product(flat.T, g.reshape(-1, 3).numpy()).rounded(np.float32))
    left, right = made((5, 7), seed, torch.float32), made((6, 7, 3), seed + 1, torch.float32)
    g = made((6, 5, 3), seed + 2, torch.float32).detach()
    prismm.matmul(left, right, accuracy="correctly-rounded").backward(g)
    wide = g.permute(1, 0, 2).reshape(5, -1).numpy()
    tall = right.detach().mT.reshape(-1, 7).numpy()
    assert_same_bits(left.grad.numpy(), exact_product(wide, tall).rounded(np.float32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gemm_is_rounded_once(dtype, seed):
    c, a, b = (made(shape, seed + i, dtype).detach() for i, shape in enumerate([(3, 5), (3, 4), (4, 5)]))
    d = operators.gemm(c, a, b, "correctly-rounded", alpha=0.25, beta=-1)
    exact = exact_gemm(0.25, a.numpy(), b.numpy(), -1.0, c.numpy())
    assert_same_bits(d.numpy(), exact.rounded(c.numpy().dtype))


@pytest.mark.covering("name")
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_sums_meet_the_native_bound(name, dtype, seed):
    """The quick path of gemm, in exact arithmetic: (K+3)·u·(|alpha||a||b| + |beta||c|) + (K+3)·η."""
    a, b = (np.array(x) for x in HOSTILE[name](4, 7, 3, seed, dtype))
    c = np.array(HOSTILE[name](4, 3, 1, seed + 1, dtype)[0])
    terms, info = 7 * (2 if a.dtype.kind == "c" else 1) + 3, np.finfo(dtype)
    for alpha, beta in ((1, 1), (-0.5, 3), (0.75, -1), (2, 1)):
        x, y, z = map(torch.from_numpy, (a, b, c))
        found = operators.gemm(z, x, y, "native", alpha=alpha, beta=beta).numpy()
        exact = exact_gemm(alpha, a, b, beta, c)
        room = terms * float(info.eps) / 2 * exact.magnitude() + terms * float(info.smallest_subnormal)
        assert (exact.within(found, room) | ~np.isfinite(found)).all(), (alpha, beta)
        assert_same_bits(np.isfinite(found), np.isfinite(exact.rounded(dtype)))


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_fast_path_has_the_bits_of_numpy(dtype, strided, seed):
    """Small tensors and arrays of the same numbers: the same value, by operator, function and array."""
    for shape in ((1, 1, 1), (3, 4, 5), (8, 8, 8), (3, 1030, 2), (70, 60, 65)):
        a = made(shape[:2], seed, dtype, strided).detach()
        b = made(shape[1:], seed + 1, dtype, strided).detach()
        expected = prismm.matmul(a.numpy(), b.numpy(), accuracy="correctly-rounded")
        for found in (prismm.matmul(a, b, accuracy="correctly-rounded"), operators.matmul(a, b, "correctly-rounded")):
            assert_same_bits(found.numpy(), expected)
        exact = exact_product(a.numpy(), b.numpy())
        k, u = shape[1] * (1 + dtype.is_complex), torch.finfo(dtype).eps / 2
        for found in (prismm.matmul(a, b), operators.matmul(a, b)):
            assert exact.within(found.numpy(), k * u * exact.magnitude() + k * 2.0**-149).all()


@pytest.mark.parametrize("value", [1e38, np.inf, np.nan])
def test_the_fast_path_leaves_specials_to_the_other(value):
    a = torch.tensor([[value, value], [1.0, 2.0]])
    b = torch.tensor([[8.0, 1.0], [-8.0, 1.0]])
    expected = prismm.matmul(a.numpy(), b.numpy())
    for found in (prismm.matmul(a, b), operators.matmul(a, b)):
        assert_same_bits(found.numpy(), expected)
    for x in (torch.ones(2, 2, dtype=torch.complex64).conj(), torch.ones(2, 2, dtype=torch.complex64).conj().imag):
        assert (prismm.matmul(x, x) == 2 * x[0, 0] ** 2).all()


def test_no_gradient_no_graph(seed):
    a = made((3, 4), seed, torch.float32)
    with torch.no_grad():
        c = prismm.matmul(a, a.T, accuracy="correctly-rounded", full_output=True)[0]
    assert not c.requires_grad
    assert torch.equal(c, prismm.matmul(a.detach(), a.T.detach(), accuracy="correctly-rounded"))
    assert not operators.matmul(a.detach(), a.T.detach()).requires_grad
    assert prismm.matmul(a, a.T).grad_fn is not None
    with torch.inference_mode():
        assert not prismm.matmul(a, a.T).requires_grad


def test_keywords_travel_with_the_derivative(seed):
    a, b = made((3, 40), seed, torch.float32), made((40, 5), seed + 1, torch.float32)
    scheme = prismm.Slices("int8", slices=3, k_block=16)  # no name says this
    c = prismm.matmul(a, b, scheme=scheme, threads=1)
    assert torch.equal(c, prismm.matmul(a.detach(), b.detach(), scheme=scheme))
    g = torch.ones_like(c)
    c.backward(g)
    assert torch.equal(a.grad, prismm.matmul(g, b.detach().T, scheme=scheme))
    wide = prismm.matmul(a, b, out_dtype="float64", accuracy=1e-12)
    assert wide.dtype == torch.float64 and wide.requires_grad


def test_what_has_no_derivative_says_so(seed):
    a = made((3, 3), seed, torch.float32)
    b = a.detach()
    for keywords in ({"out": torch.empty(3, 3)}, {"full_output": True}):
        with pytest.raises(OperandError, match=r"a requires grad, and .*=.*pass a\.detach\(\)"):
            prismm.matmul(a, b, **keywords)
    with pytest.raises(OperandError, match=r"b requires grad, a is a ndarray"):
        prismm.matmul(b.numpy(), a)
    with pytest.raises(OperandError, match=r"b requires grad, a is a Prepared"):
        prismm.matmul(prismm.prepare(b, side="left"), a)
    with pytest.raises(ArgumentError, match="did you mean 'residues'"):
        prismm.matmul(a, b, scheme="residue")
    with pytest.raises(PrismmError):
        prismm.matmul(a, b[:2])
    with pytest.raises(OperandError, match="refused by torch"):
        operators.gemm(b.double(), b, b)


def test_functorch_sees_the_derivative(seed):
    a, b = made((3, 4), seed, torch.float64).detach(), made((4, 5), seed + 1, torch.float64).detach()
    found = torch.func.grad(lambda x: operators.matmul(x, b, "correctly-rounded").square().sum())(a)
    torch.testing.assert_close(found, 2 * (a @ b) @ b.T)


def test_types_of_results():
    for x, y in itertools.product((torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32), repeat=2):
        a, b = torch.ones(2, 2, dtype=x), torch.ones(2, 2, dtype=y)
        assert prismm.matmul(a, b).dtype == operators.result_type(x, y), (x, y)
        assert operators.matmul(a, b, dtype=torch.bfloat16).dtype == torch.bfloat16
    assert str(Recipe.parse("native")) == "native"
