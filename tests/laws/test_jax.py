"""Arrays of JAX: never narrower than promised, bfloat16 exactly, and what is traced through `jax.pure_callback`."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

import prismm
from prismm.errors import DTypeError, OperandError
from prismm.testing import HOSTILE, correctly_rounded
from tests.judge import CORRECT, assert_same_bits

jax = pytest.importorskip("jax")
jnp = jax.numpy

CALLS = [{}, CORRECT, {"reproducible": True}, {"accuracy": 1e-5}]


@pytest.mark.parametrize("keywords", CALLS, ids=str)
def test_without_x64_no_bit_is_lost_silently(keywords):
    a, b = jnp.array([[2**24 + 1]]), jnp.array([[1]])
    x = jnp.ones((1, 1))
    assert not jax.config.jax_enable_x64 and x.dtype == np.float32
    for call in (
        lambda: prismm.matmul(a, b, **keywords),
        lambda: prismm.matmul(x, x, out_dtype="float64", **keywords),
        lambda: prismm.gemm(a, b, b, beta=1.0, **keywords),
        lambda: prismm.explain(a, b, **keywords),
        lambda: prismm.prepare(a, **keywords),
    ):
        with pytest.raises(DTypeError, match=r"jax_enable_x64', True.*out_dtype='float32'.*numpy\.asarray\(a\)"):
            call()
    # Each remedy that the message names:
    assert_same_bits(prismm.matmul(np.asarray(a), np.asarray(b), **keywords), np.array([[2.0**24 + 1]]))
    c = prismm.matmul(a, b, out_dtype="float32", **keywords)
    assert isinstance(c, jax.Array)
    assert_same_bits(c, np.array([[2.0**24]], np.float32))
    jax.config.update("jax_enable_x64", True)
    try:
        c = prismm.matmul(a, b, **keywords)
        assert isinstance(c, jax.Array)
        assert_same_bits(c, np.array([[2.0**24 + 1]]))
    finally:
        jax.config.update("jax_enable_x64", False)
    with pytest.raises(DTypeError, match="jax_enable_x64"):  # a float64 array that outlived the flag
        prismm.matmul(c, c, **keywords)


@pytest.mark.parametrize("keywords", CALLS, ids=str)
def test_single_precision_comes_back_as_it_went(keywords, seed):
    for dtype in ("float32", "complex64"):
        a, b = HOSTILE["phi1"](12, 15, 9, seed, dtype)
        c = prismm.matmul(jnp.asarray(a), jnp.asarray(b), **keywords)
        assert isinstance(c, jax.Array)
        assert_same_bits(c, prismm.matmul(a, b, **keywords))


@pytest.mark.parametrize("keywords", CALLS, ids=str)
def test_bfloat16_is_taken_exactly(keywords, rng):
    a, b = rng.integers(-255, 256, (7, 9)), rng.integers(-255, 256, (9, 6))
    right = (a @ b).astype(np.float32)  # below 2^24
    x, y = jnp.asarray(a, jnp.bfloat16), jnp.asarray(b, jnp.bfloat16)
    c = prismm.matmul(x, y, **keywords)
    assert isinstance(c, jax.Array)
    assert_same_bits(c, right)
    assert_same_bits(prismm.matmul(np.asarray(x), np.asarray(y), **keywords), right)  # of ml_dtypes
    assert_same_bits(prismm.matmul(np.asarray(x), prismm.prepare(np.asarray(y), **keywords)), right)
    out = np.zeros((7, 6), jnp.bfloat16)
    with pytest.raises(DTypeError, match="out has dtype bfloat16"):
        prismm.matmul(np.asarray(x), np.asarray(y), out=out, **keywords)


def test_narrower_types_take_two_steps_that_the_messages_name():
    x = jnp.asarray([[1.0, 2.0], [3.0, 4.0]], jnp.float8_e4m3fn)
    with pytest.raises(OperandError, match=r"pass numpy\.asarray\(a\)"):
        prismm.matmul(x, x)
    with pytest.raises(DTypeError, match=r"a has dtype float8_e4m3fn.*a\.astype"):
        prismm.matmul(np.asarray(x), np.asarray(x))
    y = np.asarray(x).astype(np.float32)
    assert_same_bits(prismm.matmul(y, y), np.array([[7, 10], [15, 22]], np.float32))


def test_what_is_traced_goes_through_a_callback(seed):
    a, b = HOSTILE["phi1"](6, 7, 5, seed, "float32")
    x, y = jnp.asarray(a), jnp.asarray(b)
    for transform in (jax.jit, jax.vmap, jax.grad):
        with pytest.raises(OperandError, match=r"a is traced by JAX.*jax\.pure_callback.*set_flush_denormal\(False\)"):
            transform(lambda v: prismm.matmul(v, y, **CORRECT).sum())(x[None] if transform is jax.vmap else x)
    with pytest.raises(OperandError, match="b is traced by JAX"):
        jax.jit(lambda v: prismm.matmul(x, v))(y)

    def by_torch(left, right):
        torch.set_flush_denormal(False)
        return prismm.matmul(np.asarray(left), np.asarray(right), **CORRECT)

    def by_libc(left, right):
        ctypes.CDLL(None).fesetenv(ctypes.c_void_p(-1))
        return prismm.matmul(np.asarray(left), np.asarray(right), **CORRECT)

    right = correctly_rounded(a, b)
    for inner in (by_torch, by_libc):

        def product(left, right, inner=inner):
            shape = jax.ShapeDtypeStruct((6, 5), np.float32)
            return jax.pure_callback(inner, shape, left, right, vmap_method="sequential")

        assert_same_bits(jax.jit(product)(x, y), right)
        stack = jax.vmap(product, (0, None))(jnp.stack([x, 2 * x]), y)
        assert_same_bits(stack, np.stack([right, 2 * right]))
