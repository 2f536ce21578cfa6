"""prismm.jax.matmul under jit, grad and vmap: the bits of prismm.matmul, derivatives rounded once, early errors."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import prismm
from prismm.errors import ArgumentError, DTypeError, OperandError, ShapeError
from prismm.testing import HOSTILE
from tests.judge import CORRECT, assert_same_bits

jax = pytest.importorskip("jax")
jnp = jax.numpy

from prismm.jax import matmul  # noqa: E402

CALLS = [CORRECT, {"reproducible": True}, {"scheme": "residues:8"}]


@pytest.mark.covering("keywords")
@pytest.mark.parametrize("keywords", CALLS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_jit_has_the_bits_of_matmul(keywords, dtype, seed):
    product = jax.jit(lambda x, y: matmul(x, y, **keywords))
    for name in ("phi1", "cancelling", "subnormal_operands"):
        a, b = HOSTILE[name](6, 7, 5, seed, dtype)
        for x, y in ((a, b), (a[0], b), (a, b[:, 0]), (a[0], b[:, 0]), (np.stack([a, a]), b)):
            found = product(x, y)
            assert isinstance(found, jax.Array)
            assert_same_bits(np.asarray(found), prismm.matmul(x, y, **keywords), name)
            assert_same_bits(np.asarray(matmul(jnp.asarray(x), y, **keywords)), found)


def test_native_products_meet_their_target(seed):
    """Their bits may depend on how operands lie in memory."""
    a, b = HOSTILE["cancelling"](6, 7, 5, seed, "float32")
    exact, magnitude = a.astype(float) @ b.astype(float), np.abs(a).astype(float) @ np.abs(b)
    found = jax.jit(matmul)(a, b)
    assert found.dtype == np.float32
    assert (np.abs(found - exact) <= 7 * 2.0**-24 * magnitude * 1.001 + 7 * 2.0**-149).all()


def test_threads_of_xla_flush_subnormals_and_products_do_not():
    tiny = np.full((3, 3), 1e-41, np.float32)
    assert_same_bits(np.asarray(jax.jit(lambda x: matmul(x, np.eye(3, dtype=np.float32)))(tiny)), tiny)


@pytest.mark.parametrize("keywords", [CORRECT, {"reproducible": True}], ids=str)
def test_vmap_has_the_bits_of_each_product(keywords, rng):
    a, b = rng.standard_normal((4, 6, 5)).astype(np.float32), rng.standard_normal((5, 4, 3)).astype(np.float32)
    found = jax.vmap(lambda x, y: matmul(x, y, **keywords), (0, 1))(a, b)
    assert_same_bits(np.asarray(found), np.stack([prismm.matmul(a[i], b[:, i], **keywords) for i in range(4)]))
    vectors = rng.standard_normal((5, 7)).astype(np.float32)
    found = jax.jit(jax.vmap(lambda v: matmul(a, v, **keywords), 1, 1))(vectors)
    expected = np.stack([prismm.matmul(a, vectors[:, i], **keywords) for i in range(7)], 1)
    assert_same_bits(np.asarray(found), expected)
    # A stack on one side and the batch on the other: axes do not meet.
    found = jax.vmap(lambda x: matmul(x, a.transpose(0, 2, 1), **keywords))(a[:, None])
    assert_same_bits(np.asarray(found), prismm.matmul(a[:, None], a.transpose(0, 2, 1)[None], **keywords))


@pytest.mark.parametrize(
    ("left", "right"),
    [((4, 5), (5, 3)), ((5,), (5, 3)), ((4, 5), (5,)), ((5,), (5,)), ((2, 1, 4, 5), (3, 5, 2)), *(
        pytest.param(*shapes, marks=pytest.mark.slow)
        for shapes in (((2, 4, 5), (5, 3)), ((4, 5), (2, 5, 3)), ((1, 4, 5), (2, 5, 3)), ((5,), (2, 5, 3)))
    )],
)  # fmt: skip
def test_gradients_are_products_rounded_once(left, right, rng):
    """An operand that is repeated over a batch has one sum, also where parts of it cancel."""
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in (left, right))
    g = rng.standard_normal((np.ones(left) @ np.ones(right)).shape).astype(np.float32)
    _, pull = jax.vjp(lambda x, y: matmul(x, y, **CORRECT), a, b)
    _, reference = jax.vjp(jnp.matmul, *(x.astype(np.float32) for x in (a, b)))
    found = jax.jit(pull)(jnp.asarray(g))
    for mine, theirs, x in zip(found, reference(jnp.asarray(g)), (a, b), strict=True):
        assert mine.shape == x.shape and mine.dtype == x.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)
    x, y = (z if z.ndim > 1 else z[None] if i == 0 else z[:, None] for i, z in enumerate((a, b)))
    full = g.reshape(*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
    letters = "uvw"[3 - (full.ndim - 2) :]

    def named(z: np.ndarray, ends: str) -> tuple[str, np.ndarray]:
        """Without the axes that broadcast, which the derivative sums over."""
        kept = [i for i in range(z.ndim - 2) if z.shape[i] == full.shape[full.ndim - z.ndim + i]]
        names = letters[len(letters) - (z.ndim - 2) :]
        return "".join(names[i] for i in kept) + ends, z.reshape(*(z.shape[i] for i in kept), *z.shape[-2:])

    (of_a, x), (of_b, y) = named(x, "mk"), named(y, "kn")
    exact_a = prismm.einsum(f"{letters}mn,{of_b}->{of_a}", full, y, **CORRECT)
    exact_b = prismm.einsum(f"{of_a},{letters}mn->{of_b}", x, full, **CORRECT)
    assert_same_bits(np.asarray(found[0]), exact_a.reshape(left))
    assert_same_bits(np.asarray(found[1]), exact_b.reshape(right))


@pytest.mark.slow
def test_complex_and_real_operands_have_gradients(rng):
    a = (rng.standard_normal((4, 5)) + 1j * rng.standard_normal((4, 5))).astype(np.complex64)
    b = rng.standard_normal((5, 3)).astype(np.float32)
    for x, y in ((a, b), (b.T, a.T), (a, a.T)):
        gradients = [jax.grad(lambda x, y, f=f: jnp.abs(f(x, y) ** 2).sum(), (0, 1)) for f in (matmul, jnp.matmul)]
        found = gradients[0](x, y)
        with warnings.catch_warnings():  # some releases of JAX warn of what they do themselves
            warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
            expected = gradients[1](x, y)
        for mine, theirs in zip(found, expected, strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_derivatives_of_higher_order_and_of_batches(rng):
    a, b = rng.standard_normal((3, 4)).astype(np.float32), rng.standard_normal((4, 2)).astype(np.float32)

    def twice(f):
        inner = jax.grad(lambda x: (f(x, b) ** 3).sum())
        return jax.jit(jax.grad(lambda x: (inner(x) ** 2).sum()))(a)

    np.testing.assert_allclose(twice(matmul), twice(jnp.matmul), rtol=1e-3)
    rows = jax.vmap(jax.grad(lambda x, y: (matmul(x, y) ** 2).sum()), (0, None))(a[:, None], b)
    expected = jax.vmap(jax.grad(lambda x, y: (jnp.matmul(x, y) ** 2).sum()), (0, None))(a[:, None], b)
    np.testing.assert_allclose(rows, expected, rtol=1e-4)


def test_other_types(rng):
    x = jnp.asarray(rng.standard_normal((3, 3)), jnp.bfloat16)
    assert_same_bits(np.asarray(matmul(x, x)), prismm.matmul(np.asarray(x), np.asarray(x)))
    gradient = jax.grad(lambda v: matmul(v, x).sum())(x)
    assert gradient.dtype == jnp.bfloat16
    bools = rng.random((4, 4)) < 0.3
    assert_same_bits(np.asarray(jax.jit(matmul)(bools, bools)), prismm.matmul(bools, bools))
    ints = rng.integers(-9, 9, (3, 3)).astype(np.int32)
    y = rng.standard_normal((3, 3)).astype(np.float32)
    assert matmul(ints, ints, out_dtype="float32").dtype == np.float32
    found = jax.grad(lambda v: matmul(ints, v, out_dtype="float32").sum())(y)
    assert_same_bits(np.asarray(found), np.repeat(ints.sum(0, dtype=np.float32)[:, None], 3, 1))
    assert matmul(np.ones((2, 0), np.float32), np.ones((0, 3), np.float32)).shape == (2, 3)


def test_double_precision_needs_x64(rng):
    x = rng.standard_normal((3, 3))
    with pytest.raises(DTypeError, match=r"a has dtype float64.*jax_enable_x64"):
        matmul(x, x)
    with pytest.raises(DTypeError, match=r"the product is float64.*out_dtype='float32'"):
        jax.jit(matmul)(np.ones((2, 2), np.int32), np.ones((2, 2), np.int32))
    jax.config.update("jax_enable_x64", True)
    try:
        assert_same_bits(np.asarray(jax.jit(lambda v: matmul(v, v, **CORRECT))(x)), prismm.matmul(x, x, **CORRECT))
        wide = jax.grad(lambda v: matmul(v, x).sum())(x.astype(np.float32))
        assert wide.dtype == np.float32
    finally:
        jax.config.update("jax_enable_x64", False)


def test_errors_come_when_a_program_is_traced():
    x = np.ones((2, 3), np.float32)
    for call, error, words in (
        (lambda: jax.jit(matmul)(x, x), ShapeError, "inner dimensions 3 and 2 differ"),
        (lambda: jax.jit(lambda v: matmul(v, v.T, scheme="residue:5"))(x), ArgumentError, "did you mean 'residues:15'"),
        (lambda: matmul(x, x.T, reproducible="yes"), ArgumentError, "pass True or False"),
        (lambda: matmul([[1.0]], x), OperandError, "a is a list"),
        (lambda: matmul(x, prismm.prepare(x.T)), OperandError, "b is a Prepared"),
        (lambda: matmul(jnp.ones((2, 2), jnp.float8_e4m3fn), x), DTypeError, "a has dtype float8_e4m3fn"),
        (lambda: jax.jit(lambda v: prismm.matmul(v, v.T))(x), OperandError, r"call prismm\.jax\.matmul"),
    ):
        with pytest.raises(error, match=words):
            call()


def test_the_page_shows_what_runs():
    """Its examples of JAX, which is not there where the other pages' are run."""
    import doctest

    page = (Path(__file__).parents[2] / "docs/jax.md").read_text(encoding="utf-8")
    source = "\n".join(re.findall(r"^```pycon\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    assert "prismm.jax" in source
    example = doctest.DocTestParser().get_doctest(source, {}, "jax.md", None, 0)
    words: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=words.append)
    assert not words, "".join(words)
