"""Prepared operands as operands of @ and as SciPy's linear operators."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

import prismm
from prismm.errors import OperandError, ShapeError
from prismm.files import sha256_of_bits
from tests.judge import CORRECT, DTYPES, assert_same_bits, usable_engines

CALLS = [{"reproducible": True}, CORRECT, {"reproducible": True, **CORRECT}, {"scheme": "words:bf16x6"}, {}]


@pytest.mark.parametrize("keywords", CALLS, ids=str)
def test_the_operator_is_matmul(keywords, rng):
    a, b = rng.standard_normal((4, 6)), rng.standard_normal((6, 3))
    left, right = prismm.prepare(a, side="left", **keywords), prismm.prepare(b, **keywords)
    assert_same_bits(left @ b, prismm.matmul(left, b))
    assert_same_bits(a @ right, prismm.matmul(a, right))
    assert_same_bits(left @ right, prismm.matmul(left, right))
    assert_same_bits(np.stack([a, a]) @ right, prismm.matmul(np.stack([a, a]), right))
    assert_same_bits(left @ b[:, 0], prismm.matmul(left, b[:, 0]))
    assert_same_bits(a[0] @ right, prismm.matmul(a[0], right))


def test_tensors_on_both_sides(rng):
    a, b = torch.from_numpy(rng.standard_normal((4, 6))), torch.from_numpy(rng.standard_normal((6, 3)))
    expected = prismm.matmul(a, b, **CORRECT)
    for c in (prismm.prepare(a, side="left", **CORRECT) @ b, a @ prismm.prepare(b, **CORRECT)):
        assert isinstance(c, torch.Tensor) and torch.equal(c, expected)


@pytest.mark.slow
def test_operators_travel_with_it():
    """To another process too, which has loaded nothing of prismm's verbs."""
    x, right = np.array([[1.0, 2.0]]), prismm.prepare(np.array([[3.0], [4.0]]), reproducible=True)
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer) @ __import__('numpy').array([[1.0], [2.0]]))"
    left = prismm.prepare(x, side="left", reproducible=True)
    done = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(left), capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[[5.]]"
    assert_same_bits(pickle.loads(pickle.dumps(right)).rmatvec(x[0]), np.array([11.0]))


def test_what_it_is():
    right = prismm.prepare(np.ones((3, 4), np.float32))
    assert (right.dtype, right.shape, right.ndim) == (np.dtype(np.float32), (3, 4), 2)
    assert prismm.prepare(torch.ones(3, 4)).dtype == np.dtype(np.float32)


def test_what_does_not_fit_is_refused():
    right = prismm.prepare(np.ones((3, 4)))
    with pytest.raises(OperandError, match="prepare it with side='left'"):
        right @ np.ones(4)
    with pytest.raises(OperandError, match="a is a list"):
        [[1.0, 2.0, 3.0]] @ right
    with pytest.raises(ShapeError, match="inner dimensions"):
        np.ones(4) @ right
    for call in (lambda: np.ones(3) * right, lambda: np.matmul(np.ones(3), right), lambda: right + 1):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_linear_operators_have_the_bits_of_matmul(side, dtype, rng):
    linalg = pytest.importorskip("scipy.sparse.linalg")
    a, x, y = (rng.standard_normal(shape).astype(dtype) for shape in ((5, 7), (7, 3), (5, 3)))
    if np.dtype(dtype).kind == "c":
        a, x, y = a + 1j * a[::-1], x * 1j, y - 1j * y[::-1]
    for keywords in (CORRECT, {"reproducible": True}, {"reproducible": True, **CORRECT}):
        operator = linalg.aslinearoperator(prismm.prepare(a, side=side, **keywords))
        assert operator.shape == (5, 7) and operator.dtype == a.dtype
        adjoint = np.ascontiguousarray(a.conj().T)
        assert_same_bits(operator @ x, prismm.matmul(a, x, **keywords))
        assert_same_bits(operator.matvec(x[:, 0]), prismm.matmul(a, x[:, 0], **keywords))
        assert_same_bits(operator.matmat(x), prismm.matmul(a, x, **keywords))
        assert np.array_equal(operator.H @ y, prismm.matmul(adjoint, y, **keywords))
        assert np.array_equal(operator.rmatvec(y[:, 0]), prismm.matmul(adjoint, y[:, 0], **keywords))
        assert np.array_equal(operator.rmatmat(y), prismm.matmul(adjoint, y, **keywords))


def test_the_other_side_is_split_once(rng, monkeypatch):
    from prismm import dispatch

    counted = []
    prepare = dispatch.prepare
    monkeypatch.setattr(dispatch, "prepare", lambda *args: counted.append(args[1]) or prepare(*args))
    right = prismm.prepare(rng.standard_normal((4, 4)), reproducible=True)
    for _ in range(3):
        right.rmatvec(np.ones(4)), right.matvec(np.ones(4))
    assert counted == ["right", "left"]


def test_conjugate_gradients_have_the_same_bits_everywhere(rng):
    """On every engine and with any number of threads: all that SciPy adds are sums of vectors that it makes itself."""
    linalg = pytest.importorskip("scipy.sparse.linalg")
    root = rng.standard_normal((40, 40))
    a, b = root @ root.T + 40 * np.eye(40), rng.standard_normal(40)
    digests = set()
    sides = itertools.cycle([("left", 1), ("right", 2), ("left", 2), ("right", 1)])
    for engine, (side, threads) in zip((None, None, *usable_engines()), sides, strict=False):
        prepared = prismm.prepare(a, side=side, reproducible=True, engine=engine, threads=threads)
        x, info = linalg.cg(linalg.aslinearoperator(prepared), b, rtol=1e-10)
        assert info == 0 and np.abs(a @ x - b).max() < 1e-8
        digests.add(sha256_of_bits(x))
    assert len(digests) == 1
