"""Every order and level of torch's transforms: exact values on integers, torch's own derivatives of @ beside them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import prismm
from prismm.errors import DTypeError, OperandError, ShapeError
from prismm.programs import operators
from prismm.testing import HOSTILE, exact_gemm, exact_product
from tests.judge import assert_same_bits

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
W = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
RECIPES = (
    *("native", "fast", "1e-12", "1e-12 reproducible", "native reproducible", "correctly-rounded"),
    *("scheme=residues:15", "scheme=slices:int8:6", "native engine=cpu:float64 reproducible"),
)


def whole(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Small integers, whose sums of products are exact in every accuracy."""
    generator = torch.Generator().manual_seed(seed)
    parts = torch.randint(-8, 9, (2, *shape), generator=generator)
    return torch.complex(*parts.double()).to(dtype) if dtype.is_complex else parts[0].to(dtype)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return prismm.matmul(a, b, accuracy="correctly-rounded")


def total(f: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A cubic function of what f gives: no derivative up to the third is constant."""
    return lambda *args: (f(*args) ** 3).sum().real


VERBS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "matmul": product,
    "operator": lambda a, b: operators.matmul(a, b, "correctly-rounded"),
    "gemm": lambda a, b: operators.gemm(torch.zeros(1, dtype=torch.float64), a, b, "correctly-rounded"),
}
SECOND: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "hessian": lambda f, w: hessian(f)(w),
    "forward over forward": lambda f, w: jacfwd(jacfwd(f))(w),
    "reverse over reverse": lambda f, w: jacrev(jacrev(f))(w),
    "reverse over forward": lambda f, w: jacrev(jacfwd(f))(w),
    "functional": lambda f, w: torch.autograd.functional.hessian(f, w),
    "functional, batched": lambda f, w: torch.autograd.functional.hessian(f, w, vectorize=True),
    "forward over reverse": lambda f, w: torch.autograd.functional.hessian(
        f, w, vectorize=True, outer_jacobian_strategy="forward-mode"
    ),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("how", SECOND)
def test_second_derivatives_are_no_zeros(how, verb):
    def f(w: torch.Tensor) -> torch.Tensor:
        return VERBS[verb](X, w).square().sum()

    found = SECOND[how](f, W)
    assert found.flatten().tolist() == [20.0, 28.0, 28.0, 40.0]


@pytest.mark.parametrize("verb", VERBS)
def test_gradients_of_gradients(verb):
    def f(w: torch.Tensor) -> torch.Tensor:
        return VERBS[verb](X, w).square().sum()

    assert grad(lambda w: grad(f)(w).sum())(W).flatten().tolist() == [48.0, 68.0]
    w = W.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(w), w, create_graph=True)
    assert torch.autograd.grad(first.sum(), w)[0].flatten().tolist() == [48.0, 68.0]
    # A level of torch.func under an ordinary graph, and the other way round.
    (mixed,) = torch.autograd.grad(grad(f)(w).sum(), w)
    assert mixed.flatten().tolist() == [48.0, 68.0]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_has_second_derivatives(recipe):
    f = total(lambda w: operators.matmul(X, w, recipe))
    expected = hessian(total(lambda w: X @ w))(W)
    assert torch.equal(hessian(f)(W), expected)
    assert torch.equal(jacrev(jacrev(f))(W), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((4,), (4,)),
        ((3, 4), (4,)),
        ((4,), (4, 2)),
        ((3, 4), (4, 2)),
        ((2, 3, 4), (4, 2)),
        ((3, 4), (2, 4, 2)),
        ((2, 3, 4), (2, 4, 2)),
        ((1, 3, 4), (2, 1, 4, 2)),
        ((4,), (2, 4, 2)),
        ((2, 3, 4), (4,)),
    ],
    ids=str,
)
def test_derivatives_are_those_of_torch(left, right, dtype, seed):
    a, b = whole(left, seed, dtype), whole(right, seed + 1, dtype)
    u, v = whole(left, seed + 2, dtype), whole(right, seed + 3, dtype)
    for one, other in ((product, torch.matmul), (total(product), total(torch.matmul))):
        mine, theirs = jvp(one, (a, b), (u, v)), jvp(other, (a, b), (u, v))
        assert all(map(torch.equal, mine, theirs))
        back = [vjp(f, a, b)[1](torch.ones_like(theirs[0])) for f in (one, other)]
        assert all(map(torch.equal, *back))
    f, g = total(product), total(torch.matmul)
    if not dtype.is_complex:
        for how in (hessian, lambda f: jacrev(jacrev(f)), lambda f: jacfwd(jacfwd(f))):
            assert torch.equal(how(lambda x: f(x, b))(a), how(lambda x: g(x, b))(a))
        assert torch.equal(jacfwd(grad(f), 1)(a, b), jacfwd(grad(g), 1)(a, b))
    # Third order: along u, the change of the change of the gradient.
    third = [
        jvp(lambda x, f=f: jvp(lambda y: grad(f)(y, b), (x,), (u,))[1], (a,), (u,))[1] for f in (f, g)
    ]  # fmt: skip
    assert torch.equal(*third)


@pytest.mark.covering
@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("m", [0, 2])
@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("n", [0, 2])
def test_extents_of_zero(batch, m, k, n, seed):
    """Batch, m, k or n without entries: empty gradients, or zeros of the operands' shapes, as torch has them."""
    addend = whole((n,), seed)

    def both(a: torch.Tensor, b: torch.Tensor) -> tuple[Callable[..., torch.Tensor], ...]:
        sums = (
            lambda x, y: operators.gemm(addend, x, y, "correctly-rounded", 2, 3),
            lambda x, y: 2 * (x @ y) + 3 * addend,
        )
        return product, torch.matmul, *(sums if a.ndim == b.ndim > 1 else ())

    for left, right in itertools.product([(k,), (m, k), (batch, m, k)], [(k,), (k, n), (batch, k, n)]):
        a, b = whole(left, seed), whole(right, seed + 1)
        verbs = both(a, b)
        for mine, theirs in zip(verbs[::2], verbs[1::2], strict=True):
            first, second = (grad(total(f), (0, 1)) for f in (mine, theirs))
            assert all(map(torch.equal, first(a, b), second(a, b)))
            for dims in ((0, 0), (0, None), (None, 0)):
                stacks = [x if dim is None else torch.stack([x, x]) for x, dim in zip((a, b), dims, strict=True)]
                assert torch.equal(vmap(mine, dims)(*stacks), vmap(theirs, dims)(*stacks))
                assert all(map(torch.equal, vmap(first, dims)(*stacks), vmap(second, dims)(*stacks)))


@pytest.mark.covering
@pytest.mark.parametrize("shapes", [((3, 2), (3, 4), (4, 2)), ((2,), (3, 4), (4, 2)), ((3,), (3, 4), (4,))], ids=str)
@pytest.mark.parametrize("alpha", [1, -2, 0])
@pytest.mark.parametrize("beta", [1, 3, 0])
def test_derivatives_of_gemm_are_those_of_torch(shapes, alpha, beta, seed):
    c, a, b = (whole(shape, seed + i) for i, shape in enumerate(shapes))
    tangents = tuple(whole(shape, seed + 3 + i) for i, shape in enumerate(shapes))
    mine, theirs = (
        total(lambda c, a, b: operators.gemm(c, a, b, "correctly-rounded", alpha, beta)),
        total(lambda c, a, b: beta * c + alpha * (a @ b)),
    )
    assert all(map(torch.equal, jvp(mine, (c, a, b), tangents), jvp(theirs, (c, a, b), tangents)))
    for which in range(3):
        assert torch.equal(hessian(mine, which)(c, a, b), hessian(theirs, which)(c, a, b))
        assert all(map(torch.equal, *(jacfwd(jacrev(f, which), (0, 1, 2))(c, a, b) for f in (mine, theirs))))


def test_scalars_of_zero_read_nothing():
    """beta = 0 reads neither C nor its tangent, alpha = 0 neither operand, backwards and forwards."""
    bad, good = torch.full((2, 2), torch.inf, dtype=torch.float64), X
    _, tangent = jvp(lambda c: operators.gemm(c, X, X, beta=0), (bad,), (bad,))
    assert tangent.equal(torch.zeros(2, 2, dtype=torch.float64))
    _, back = vjp(lambda c, a: operators.gemm(c, a, X, alpha=0, beta=0), good, good)
    assert all(x.equal(torch.zeros(2, 2, dtype=torch.float64)) for x in back(bad))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_gradcheck_in_all_modes(dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b, c = (
        torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in ((2, 3), (3, 2), (2, 2))
    )
    modes = {"check_batched_grad": True, "fast_mode": True}
    for f, inputs in (
        (product, (a, b)),
        (lambda c, a, b: operators.gemm(c, a, b, "correctly-rounded", 0.5, -3), (c, a, b)),
    ):
        assert torch.autograd.gradcheck(f, inputs, check_forward_ad=True, check_batched_forward_grad=True, **modes)
        assert torch.autograd.gradgradcheck(f, inputs, check_fwd_over_rev=True, **modes)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (torch.float32, torch.float64),
        (torch.float64, torch.complex128),
        (torch.complex64, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float16),
        (torch.float32, torch.int16),
    ],
    ids=str,
)
def test_mixed_types(left, right, seed):
    """Each derivative has the type of what it is of, and the value of the product in wider types."""
    a, b, u = whole((3, 4), seed, left), whole((4, 2), seed + 1, right), whole((3, 4), seed + 2, left)
    wide = torch.complex128 if left.is_complex or right.is_complex else torch.float64
    value, tangent = jvp(lambda x: product(x, b), (a,), (u,))
    assert value.dtype == tangent.dtype == operators.result_type(left, right)
    assert torch.equal(tangent.to(wide), u.to(wide) @ b.to(wide))
    _, back = vjp(lambda x: product(x, b), a)
    ones = torch.ones_like(value)
    expected = ones.to(wide) @ b.to(wide).mH
    expected = (expected if left.is_complex else expected.real).to(left)
    assert back(ones)[0].dtype == left and torch.equal(back(ones)[0], expected)


def test_out_dtype_travels(seed):
    a, b, u = (whole(shape, seed + i, torch.float32) for i, shape in enumerate([(3, 4), (4, 2), (3, 4)]))
    value, tangent = jvp(lambda x: prismm.matmul(x, b, out_dtype="float64"), (a,), (u,))
    assert value.dtype == tangent.dtype == torch.float64 and torch.equal(tangent, (u @ b).double())
    assert hessian(lambda x: prismm.matmul(x, b, out_dtype="float64").square().sum())(a).dtype == torch.float32


@pytest.mark.parametrize("name", HOSTILE)
def test_tangents_are_rounded_once(name, seed):
    """Ȧ·B + A·Ḃ is one product, correctly rounded as a whole; so is that of gemm."""
    a, b = (np.array(x) for x in HOSTILE[name](4, 7, 3, seed, np.float32))
    u, v = (np.array(x) for x in HOSTILE[name](4, 7, 3, seed + 1, np.float32))
    c, w = (np.array(HOSTILE[name](4, 3, 3, seed + i, np.float32)[0]) for i in (2, 3))
    left, right = np.concatenate([u, a], 1), np.concatenate([b, v], 0)
    args = tuple(map(torch.from_numpy, (a, b))), tuple(map(torch.from_numpy, (u, v)))
    assert_same_bits(jvp(product, *args)[1].numpy(), exact_product(left, right).rounded(np.float32))
    args = tuple(map(torch.from_numpy, (c, a, b))), tuple(map(torch.from_numpy, (w, u, v)))
    found = jvp(lambda c, a, b: operators.gemm(c, a, b, "correctly-rounded", 0.5, -2), *args)[1]
    assert_same_bits(found.numpy(), exact_gemm(0.5, left, right, -2.0, w).rounded(np.float32))


class Count(TorchDispatchMode):
    """How many products are made."""

    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.products += func.namespace == "prismm"
        return func(*args, **(kwargs or {}))


DIMS = (None, 0, -1)


@pytest.mark.parametrize("left", [(4,), (3, 4), (2, 3, 4), (6, 1, 3, 4)], ids=str)
@pytest.mark.parametrize("right", [(4,), (4, 2), (2, 4, 2)], ids=str)
def test_a_batch_is_one_product(left, right, seed):
    for x, y in itertools.product(DIMS, DIMS):
        if x is y is None:
            continue
        a, b = (
            whole(shape if dim is None else (5, *shape), seed).movedim(0, dim or 0)
            for shape, dim in ((left, x), (right, y))
        )
        with Count() as count:
            found = vmap(product, (x, y))(a, b)
        assert count.products == 1
        assert torch.equal(found, vmap(torch.matmul, (x, y))(a, b)), (x, y)


@pytest.mark.parametrize("shapes", [((3, 4), (4, 2)), ((2, 3, 4), (2, 4, 2)), ((3, 4), (4,))], ids=str)
@pytest.mark.parametrize("addend", ["full", "last", "none"])
def test_a_batch_of_sums_is_one_product(shapes, addend, seed):
    full = (torch.zeros(shapes[0]) @ torch.zeros(shapes[1])).shape
    third = {"full": full, "last": full[-1:], "none": ()}[addend]
    for dims in itertools.product(DIMS, repeat=3):
        if dims == (None, None, None):
            continue
        c, a, b = (
            whole(shape if dim is None else (5, *shape), seed + i).movedim(0, dim or 0)
            for i, (shape, dim) in enumerate(zip((third, *shapes), dims, strict=True))
        )
        with Count() as count:
            found = vmap(lambda c, a, b: operators.gemm(c, a, b, "correctly-rounded", 2, -3), dims)(c, a, b)
        assert count.products == 1
        assert torch.equal(found, vmap(lambda c, a, b: 2 * (a @ b) - 3 * c, dims)(c, a, b)), dims


def test_batches_have_the_bits_of_single_products(seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(5, 3, 40, generator=generator), torch.randn(40, 2, generator=generator)
    for keywords in ({"reproducible": True}, {"accuracy": "correctly-rounded"}, {"scheme": prismm.Residues(moduli=9)}):

        def f(x: torch.Tensor, y: torch.Tensor, keywords: Any = keywords) -> torch.Tensor:
            return prismm.matmul(x, y, **keywords)  # fmt: skip

        expected = torch.stack([f(x, b) for x in a])
        assert torch.equal(vmap(f, (0, None))(a, b), expected)
        assert torch.equal(vmap(f, (None, 0))(b.T, a.mT), torch.stack([f(b.T, x.T) for x in a]))


def test_nests(seed):
    """Gradients of each sample, Jacobians in batches, a batch within a derivative, batches in batches."""
    x, w, y = whole((5, 3), seed), whole((3, 2), seed + 1), whole((4, 5, 3), seed + 2)

    def both(how: Callable[[Any], torch.Tensor]) -> None:
        mine, theirs = how(product), how(torch.matmul)
        assert torch.equal(mine, theirs) and theirs.any()

    both(lambda mm: vmap(grad(total(lambda w, x: mm(x, w))), (None, 0))(w, x))
    both(lambda mm: vmap(jacfwd(total(lambda w, x: mm(x, w))), (None, 0))(w, x))
    both(lambda mm: vmap(hessian(total(lambda w, x: mm(x, w))), (None, 0))(w, x))
    both(lambda mm: grad(lambda w: (vmap(lambda x: mm(x, w))(x) ** 3).sum())(w))
    both(lambda mm: hessian(lambda w: (vmap(lambda x: mm(x, w))(x) ** 3).sum())(w))
    both(lambda mm: vmap(vmap(lambda x: mm(x, w)))(y))
    both(lambda mm: jvp(lambda w: vmap(grad(total(lambda w, x: mm(x, w))), (None, 0))(w, x), (w,), (w,))[1])
    both(lambda mm: functionalize(lambda w: mm(x, w))(w))
    both(lambda mm: grad(lambda w: mm(x, mm(w, mm(w.mT, w))).sum())(w))
    with torch.no_grad():  # what torch.func does is its own affair; what is constant inside stays so
        both(lambda mm: grad(total(lambda w: mm(x, w)))(w))
    assert not grad(lambda w: torch.no_grad()(product)(x, w).sum() + 0 * w.sum())(w).any()


def test_forward_mode(seed):
    a, u, b = whole((3, 4), seed), whole((3, 4), seed + 1), whole((4, 2), seed + 2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, u)
        for f in VERBS.values():
            value, tangent = forward_ad.unpack_dual(f(dual, b))
            assert torch.equal(value, a @ b) and torch.equal(tangent, u @ b)
        with torch.no_grad():  # which is about backward derivatives
            assert torch.equal(forward_ad.unpack_dual(product(dual, b)).tangent, u @ b)
        assert forward_ad.unpack_dual(product(a, b)).tangent is None
        assert torch.equal(prismm.matmul(a, b, full_output=True)[0], a @ b)
        w = b.clone().requires_grad_()
        forward_ad.unpack_dual(product(dual, w)).tangent.sum().backward()
        assert torch.equal(w.grad, u.T @ torch.ones(3, 2, dtype=torch.float64))
        for call in (lambda: prismm.gemm(dual, b), lambda: prismm.prepare(dual), lambda: prismm.explain(dual, b)):
            with pytest.raises(OperandError, match=r"has a tangent.*programs\.operators\.gemm"):
                call()
        with pytest.raises(OperandError, match="a has a tangent, b is a Prepared; pass the matrix itself"):
            prismm.matmul(dual, prismm.prepare(b))


@pytest.mark.parametrize("how", [vmap, lambda f: grad(lambda x: f(x).sum()), lambda f: lambda x: jvp(f, (x,), (x,))])
def test_what_transforms_cannot_follow_says_so(how):
    x, w, row, array = torch.ones(3, 2, 2), torch.ones(2, 1), torch.ones(1, 2), np.ones((2, 1))
    inside = "is inside a transform of torch.func"
    for f, words in (
        (lambda a: prismm.matmul(a, w, out=torch.empty(2, 1)), "out="),
        (lambda a: prismm.matmul(a, w, full_output=True), "full_output="),
        (lambda a: prismm.matmul(a, prismm.prepare(w)), "b is a Prepared; pass the matrix itself"),
        (lambda a: prismm.matmul(a, array), "b is a ndarray; pass tensors"),
        (lambda a: prismm.gemm(a, w), "programs.operators.gemm"),
        (lambda a: prismm.gemm(row, w, a, beta=1), "programs.operators.gemm"),
        (lambda a: prismm.prepare(a), "prismm.matmul"),
        (lambda a: prismm.explain(a, w), "prismm.matmul"),
    ):
        with pytest.raises(OperandError) as caught:
            how(f)(x)
        assert inside in str(caught.value) and words in str(caught.value)
    with pytest.raises(ShapeError, match=r"\(2, 2\)|\(3, 2, 2\)"):
        how(lambda a: prismm.matmul(a, torch.ones(3, 1)))(x)
    with pytest.raises(DTypeError, match="bool"):
        how(lambda a: prismm.matmul(a, w > 0))(x)
    # Constants inside a transform are ordinary tensors.
    how(lambda a: a * prismm.matmul(row, w, full_output=True)[0].sum() * prismm.gemm(row, w).sum())(x)


def test_a_plan_needs_no_derivative():
    assert prismm.explain(X.clone().requires_grad_(), W).scheme == prismm.explain(X, W).scheme


COMPILED: dict[str, Callable[[Callable[..., torch.Tensor], torch.Tensor], torch.Tensor]] = {
    "jvp": lambda f, x: jvp(f, (x,), (2 * x,))[1],
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "hessian": lambda f, x: hessian(lambda y: (f(y) ** 3).sum())(x),
    "reverse over forward": lambda f, x: grad(lambda y: jvp(f, (y,), (y,))[1].pow(2).sum())(x),
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("how", COMPILED)
def test_compiled_code_has_tangents(how, verb):
    """A graph enters the levels of forward mode itself, which Python's `forward_ad` does not hear of."""

    def f(x: torch.Tensor, verb: Any) -> torch.Tensor:
        # The sum has a tangent of its own, so that one that is lost shows as another value.
        return COMPILED[how](lambda y: verb(y, W) + y.sum(), x)

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X, VERBS[verb]), f(X, torch.matmul))


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_compiled_code_with_levels_of_its_own(verb):
    """Operators see no tangents there: the graph ends before `prismm.matmul`, which then does; others refuse."""

    def f(x: torch.Tensor, verb: Any) -> torch.Tensor:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, 2 * x)
            return forward_ad.unpack_dual(verb(dual, W) + dual.sum()).tangent

    torch._dynamo.reset()
    with pytest.raises((torch._dynamo.exc.Unsupported, OperandError), match=r"forward_ad\.dual_level"):
        torch.compile(f, backend="eager", fullgraph=True)(X, VERBS[verb])
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="eager")
    if verb == "matmul":
        assert torch.equal(compiled(X, VERBS[verb]), f(X, torch.matmul))
    else:
        with pytest.raises(OperandError, match=r"forward_ad\.dual_level"):
            compiled(X, VERBS[verb])


@pytest.mark.parametrize("accuracy", ["native", "correctly-rounded", 1e-5])
def test_forward_derivatives_of_emulated_products(accuracy, rng):
    """Tangents are products of their own."""
    a, b, u = (torch.from_numpy(rng.integers(-9, 9, shape).astype("f4")) for shape in ((3, 4), (4, 5), (3, 4)))
    with prismm.emulate(accuracy) as record:
        value, tangent = torch.func.jvp(lambda x: torch.tanh(x) + (x @ b).sum(), (a,), (u,))
        jacobian = torch.func.jacfwd(lambda x: x @ b)(a)
        second = torch.func.hessian(lambda x: (x @ b).square().sum())(a)
        with torch.autograd.forward_ad.dual_level():
            made = torch.autograd.forward_ad.make_dual(a, u) @ b
            assert torch.equal(torch.autograd.forward_ad.unpack_dual(made).tangent, u @ b)
    assert torch.equal(jacobian, torch.func.jacfwd(lambda x: x @ b)(a))
    assert torch.equal(second, torch.func.hessian(lambda x: (x @ b).square().sum())(a))
    assert torch.isfinite(value).all() and torch.isfinite(tangent).all() and len(record.rows) >= 2
