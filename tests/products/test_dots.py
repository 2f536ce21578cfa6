"""vecdot and tensordot against rational arithmetic and NumPy."""

from __future__ import annotations

import doctest
import importlib

import numpy as np
import pytest

import prismm
from prismm.errors import ArgumentError, DTypeError, ShapeError
from tests.judge import CORRECT, assert_same_bits
from tests.products.exact import exact_einsum
from tests.products.test_einsum import draw


@pytest.mark.parametrize(
    "name", ["products.contraction", "products.dots", "products.subscripts", "core.prepared", "_api"]
)
def test_docstrings(name):
    failed, tried = doctest.testmod(importlib.import_module(f"prismm.{name}"))
    assert tried and not failed


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
def test_vecdot_conjugates_the_first_operand(dtype, rng):
    a, b = draw((3, 1, 6), rng, dtype), draw((4, 6), rng, dtype)
    expected = exact_einsum([("i", ".1", "k"), ("j", "k")], ("i", "j"), [a.conj(), b], dtype)
    assert_same_bits(prismm.vecdot(a, b, **CORRECT), expected)
    c = prismm.vecdot(np.moveaxis(a, -1, 0), np.moveaxis(b, -1, 0), axis=0, **CORRECT)
    assert_same_bits(c, expected)
    assert_same_bits(
        prismm.vecdot(a, b, reproducible=True), prismm.vecdot(a[..., ::-1], b[..., ::-1], reproducible=True)
    )
    alone = prismm.vecdot(a[0, 0], b[0], **CORRECT)
    assert alone == expected[0, 0] and type(alone) is np.dtype(dtype).type
    found, report = prismm.vecdot(a, b, full_output=True, scheme="residues:15")
    assert found.shape == (3, 4) and report.scheme == prismm.Residues(15)


def test_vecdot_refuses():
    x = np.ones((2, 3))
    for call, error, words in (
        (lambda: prismm.vecdot(x, np.ones(2)), ShapeError, "axis -1 has 3 and 2 elements"),
        (lambda: prismm.vecdot(x, np.ones(3), axis=1), ShapeError, "x2 has 1 axes, and none is number 1"),
        (lambda: prismm.vecdot(x, np.array(1.0)), ShapeError, "x2 has 0 axes"),
        (lambda: prismm.vecdot(x, np.ones((5, 3))), ShapeError, "batch dimensions"),
        (lambda: prismm.vecdot(x, x, axis="k"), ArgumentError, "pass a whole number"),
        (lambda: prismm.vecdot(x.astype(object), x), DTypeError, "x1 has dtype object"),
    ):
        with pytest.raises(error, match=words):
            call()


AXES = [
    (0, (2, 3), (3, 2)), (1, (2, 3), (3, 4)), (2, (2, 3, 4), (3, 4, 2)), (3, (2, 3, 2), (2, 3, 2)), (0, (), (2,)),
    (((1, 2), (1, 0)), (2, 3, 4), (4, 3, 2)), (((-1,), (0,)), (2, 3, 4), (4, 5)), (((), ()), (2,), (3,)),
]  # fmt: skip


@pytest.mark.parametrize(("axes", "left", "right"), AXES, ids=str)
def test_tensordot_is_one_exact_product(axes, left, right, rng):
    a, b = draw(left, rng), draw(right, rng)
    expected = np.tensordot(a, b, axes)
    first = "abcd"[: a.ndim]
    of_a, of_b = (range(a.ndim - axes, a.ndim), range(axes)) if isinstance(axes, int) else axes
    second = [f"{i}" for i in range(b.ndim)]
    for i, j in zip(of_a, of_b, strict=True):
        second[j] = first[i]
    output = tuple(x for x in (*first, *second) if (x in first) != (x in second))
    found = prismm.tensordot(a, b, axes=axes, **CORRECT)
    assert_same_bits(np.asarray(found), exact_einsum([tuple(first), tuple(second)], output, [a, b], "float64"))
    assert np.shape(found) == expected.shape
    found, report = prismm.tensordot(a, b, axes=axes, full_output=True, reproducible=True)
    assert report.bounds.size == found.size


def test_tensordot_refuses():
    x, y = np.ones((2, 3)), np.ones((3, 4))
    for axes, error, words in (
        (2, ShapeError, "axis 0 of x1 has 2 elements and axis 0 of x2 has 3"),
        (3, ArgumentError, "pass a number from 0"),
        (-1, ArgumentError, "pass a number from 0"),
        (((0, 1), (0,)), ArgumentError, "2 axes of x1 and 1 of x2"),
        (((1, 1), (0, 0)), ArgumentError, "an axis of x1 twice"),
        (((2,), (0,)), ShapeError, "x1 has 2 axes, and none is number 2"),
        ("ab", ArgumentError, "pass a whole number"),
        (1.5, ArgumentError, "pass a number of axes"),
    ):
        with pytest.raises(error, match=words):
            prismm.tensordot(x, y, axes=axes)


def test_scalars_of_numpy_are_arrays_without_axes():
    third, b = np.float64(1 / 3), np.array([3.0, 2.0**-60])
    expected = np.array([1.0, 2.0**-60 / 3])
    for found in (prismm.tensordot(third, b, axes=0, **CORRECT), prismm.einsum(",i->i", third, b, **CORRECT)):
        assert_same_bits(found, expected)


def test_tensors_and_frames(rng):
    a, b = rng.standard_normal((2, 3, 4)), rng.standard_normal((4, 3, 2))
    torch = pytest.importorskip("torch")
    x, y = torch.from_numpy(a).requires_grad_(), torch.from_numpy(b)
    c = prismm.tensordot(x, y, axes=((1, 2), (1, 0)), **CORRECT)
    assert_same_bits(c.detach().numpy(), prismm.tensordot(a, b, axes=((1, 2), (1, 0)), **CORRECT))
    c.sum().backward()
    assert x.grad.shape == x.shape
    v = prismm.vecdot(torch.from_numpy(a), torch.from_numpy(a[0]))
    assert v.shape == (2, 3) and v.dtype == torch.float64
    assert (
        prismm.vecdot(torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16)).dtype == torch.float32
    )
