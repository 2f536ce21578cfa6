"""prepare: an operand split once, counted; its bits, its refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import prismm
from prismm.cpu.residues import blocking as tiles
from prismm.cpu.residues import product
from prismm.errors import AccuracyError, ArgumentError, DTypeError, OperandError, ShapeError
from prismm.testing import HOSTILE, SPECIAL, correctly_rounded
from tests.judge import CORRECT, assert_same_bits, each_dtype, each_engine, problem

M, K, N = 40, 50, 44
"""Beyond what the direct engine takes by itself."""


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Elements that the scheme's only splitter was asked to split, by side, since the last clear()."""
    counted: dict[str, int] = {"left": 0, "right": 0}
    split = tiles.split_operand

    def counting(x: np.ndarray, *arguments: Any, left: bool, **keywords: Any) -> Any:
        counted["left" if left else "right"] += x.size
        return split(x, *arguments, left=left, **keywords)

    for user in (tiles, product):
        monkeypatch.setattr(user, "split_operand", counting)
    return counted


@each_dtype
@pytest.mark.parametrize(
    "keywords", [{"reproducible": True}, {"scheme": prismm.Residues(12)}, {"reproducible": True, **CORRECT}]
)
def test_a_prepared_operand_is_not_split_again(keywords, dtype, splits, seed):
    a, b = HOSTILE["normal"](M, K, N, seed, dtype)
    if dtype == "float32" and "accuracy" in keywords:
        keywords = {**keywords, "scheme": prismm.Residues(12)}  # else a float64 GEMM does it without splitting
    _, report = prismm.matmul(a, b, full_output=True, engine="cpu:float64", **keywords)
    assert report.splits == {"left": M * K, "right": K * N} == splits
    splits.update(left=0, right=0)
    right = prismm.prepare(b, engine="cpu:float64", **keywords)
    left = prismm.prepare(a, side="left", engine="cpu:float64", **keywords)
    assert splits == {"left": M * K, "right": K * N}
    for x, y, expected in (
        (a, right, {"left": M * K, "right": 0}),
        (left, b, {"left": 0, "right": K * N}),
        (left, right, {"left": 0, "right": 0}),
    ):
        for _ in range(2):
            splits.update(left=0, right=0)
            _, report = prismm.matmul(x, y, full_output=True)
            assert report.splits == expected == splits
    splits.update(left=0, right=0)
    prismm.matmul(np.stack([a, a, a]), right)
    assert splits == {"left": 3 * M * K, "right": 0}


@pytest.mark.covering(("engine", "dtype"), ("engine", "keywords"), ("dtype", "keywords"))
@each_engine
@each_dtype
@pytest.mark.parametrize(
    "keywords", [{"reproducible": True}, CORRECT, {"scheme": prismm.Residues(8), "accuracy": 1e-12}], ids=str
)
@pytest.mark.parametrize("name", ["phi4", "cancelling", "near_overflow", "specials", "subnormal_operands"])
def test_the_result_has_the_same_bits(name, keywords, dtype, engine, seed):
    problem(engine)
    a, b = {**HOSTILE, **SPECIAL}[name](M, K, N, seed, dtype)
    expected = prismm.matmul(a, b, engine=engine, **keywords)
    left = prismm.prepare(a, side="left", engine=engine, **keywords)
    right = prismm.prepare(b, engine=engine, **keywords)
    for x, y in ((a, right), (left, b), (left, right)):
        assert_same_bits(prismm.matmul(x, y, threads=2), expected)
    scaled = prismm.gemm(a, b, alpha=-3.0, engine=engine, **keywords)
    assert_same_bits(prismm.gemm(a, right, alpha=-3.0), scaled)
    assert_same_bits(prismm.gemm(left, right, alpha=-3.0), scaled)
    assert_same_bits(prismm.matmul(a[0], right), expected[0])
    assert_same_bits(prismm.matmul(np.stack([a, a]), right)[1], expected)
    assert_same_bits(prismm.matmul(left, np.stack([b, b]))[1], expected)


@pytest.mark.covering
@each_dtype
@pytest.mark.parametrize("accuracy", [None, "fast", "native", 1e-10, 1e-15, "correctly-rounded"])
@pytest.mark.parametrize("size", [1, 5, 40])
def test_every_target_prepares(size, accuracy, dtype, seed):
    """Also where the plan is the native product and there is nothing to split."""
    a, b = HOSTILE["phi1"](size, size + 1, size + 2, seed, dtype)
    right, left = prismm.prepare(b, accuracy=accuracy), prismm.prepare(a, side="left", accuracy=accuracy)
    expected = correctly_rounded(a, b)
    for x, y in ((a, right), (left, b), (left, right)):
        c, report = prismm.matmul(x, y, full_output=True)
        assert report.accuracy == (f"{accuracy:g}" if isinstance(accuracy, float) else accuracy or "native")
        if accuracy == "correctly-rounded":
            assert_same_bits(c, expected)
        assert (
            np.abs(c - expected) <= 2 * report.bounds + np.abs(expected) * 1e-6 * (expected.real.itemsize == 4)
        ).all()


def test_a_prepared_operand_keeps_its_own_copy(seed):
    """What happens to the caller's array later does not matter, neither to the product nor to its repair."""
    a, b = HOSTILE["cancelling"](20, 30, 25, seed)
    expected = correctly_rounded(a, b)
    right, left = prismm.prepare(b, **CORRECT), prismm.prepare(a, side="left", **CORRECT)
    b[:] = np.nan
    assert_same_bits(prismm.matmul(a, right), expected)
    a[:] = np.nan
    assert_same_bits(prismm.matmul(left, right), expected)


def test_it_knows_what_it_is():
    b = np.ones((3, 4))
    right = prismm.prepare(b, reproducible=True, engine="cpu:float64")
    assert right.shape == (3, 4)
    assert right.side == "right"
    assert right.scheme == prismm.Residues(15)
    assert right.reproducible
    assert right.engine == "cpu:float64"
    assert right.nbytes >= b.nbytes + 15 * b.size
    assert "Residues(moduli=15)" in repr(right)
    assert isinstance(right, prismm.Prepared)


@pytest.mark.parametrize(
    ("made", "used", "words"),
    [
        ({**CORRECT}, {"accuracy": "native"}, ["accuracy='correctly-rounded'", "'native'", "leave accuracy out"]),
        ({"reproducible": True}, {"accuracy": 1e-9}, ["accuracy='native'", "1e-09", "leave accuracy out"]),
        (
            {"scheme": prismm.Residues(9)},
            {"scheme": prismm.Residues(10)},
            ["Residues(moduli=9)", "Residues(moduli=10)", "scheme"],
        ),
        ({"scheme": prismm.Residues(9)}, {"scheme": prismm.Native()}, ["Residues(moduli=9)", "Native"]),
        ({"scheme": prismm.Residues(9)}, {"reproducible": True}, ["reproducible=False", "True"]),
        (
            {"reproducible": True, "engine": "cpu:float64"},
            {"engine": "cpu:direct"},
            ["engine='cpu:float64'", "'cpu:direct'"],
        ),
        ({"reproducible": True}, {"out_dtype": "float32"}, ["out_dtype='float64'", "'float32'"]),
    ],
)
def test_options_that_contradict_it_are_refused(made, used, words):
    right = prismm.prepare(np.ones((3, 3)), **made)
    left = prismm.prepare(np.ones((3, 3)), side="left", **made)
    for operands, side in (((np.ones((3, 3)), right), "right"), ((left, np.ones((3, 3))), "left")):
        with pytest.raises(OperandError) as caught:
            prismm.matmul(*operands, **used)
        for word in (f"the {side} operand was prepared with", *words):
            assert word in str(caught.value)
    assert prismm.matmul(np.ones((3, 3)), right, **made)[0, 0] == 3.0


def test_the_wrong_partner_is_refused():
    ones = np.ones((3, 3))
    right = prismm.prepare(ones, reproducible=True)
    left = prismm.prepare(ones, side="left", reproducible=True)
    with pytest.raises(OperandError, match=r"left operand was prepared for side='right'; prepare it with side='left'"):
        prismm.matmul(right, ones)
    with pytest.raises(OperandError, match=r"right operand was prepared for side='left'; prepare it with side='right'"):
        prismm.matmul(ones, left)
    with pytest.raises(ShapeError, match=r"a has shape \(3, 4\), b has shape \(3, 3\).*4 and 3"):
        prismm.matmul(np.ones((3, 4)), right)
    for other in (ones.astype(np.complex128), ones.astype(np.complex64)):
        with pytest.raises(OperandError, match=r"prepared for a float64 result.*complex128.*out_dtype='complex128'"):
            prismm.matmul(other, right)
    single = prismm.prepare(ones.astype(np.float32), reproducible=True)
    with pytest.raises(OperandError, match=r"prepared for a float32 result.*float64.*out_dtype='float64'"):
        prismm.matmul(ones, single)
    with pytest.raises(OperandError, match="integers beyond 2\\^53"):
        prismm.matmul(np.full((3, 3), 2**60 + 1), right)
    with pytest.raises(OperandError, match="scheme"):
        prismm.matmul(
            prismm.prepare(ones, side="left", scheme=prismm.Residues(9)),
            prismm.prepare(ones, scheme=prismm.Residues(10)),
        )
    assert prismm.matmul(left, right)[0, 0] == 3.0


def test_the_result_type_comes_with_it(seed):
    a, b = HOSTILE["phi1"](6, 8, 7, seed, "float32")
    wide = prismm.prepare(b, out_dtype="float64", **CORRECT)
    narrow = prismm.prepare(b.astype(np.float64), out_dtype="float32", **CORRECT)
    both = prismm.prepare(b, out_dtype="complex128", **CORRECT)
    assert_same_bits(prismm.matmul(a.astype(np.float64), wide), correctly_rounded(a, b, np.float64))
    assert_same_bits(prismm.matmul(a, wide, out_dtype="float64"), correctly_rounded(a, b, np.float64))
    assert_same_bits(prismm.matmul(a, wide), correctly_rounded(a, b, np.float64))
    assert_same_bits(prismm.matmul(a, narrow), correctly_rounded(a, b, np.float32))
    assert_same_bits(prismm.matmul(a.astype(np.complex64), both), correctly_rounded(a + 0j, b, np.complex128))


@pytest.mark.parametrize(
    ("x", "keywords", "error", "words"),
    [
        (np.ones((2, 2)), {"side": "both"}, ArgumentError, ["side='both'", "'left' or 'right'"]),
        (np.ones((2, 2)), {"side": None}, ArgumentError, ["side=None"]),
        (np.ones(3), {}, ShapeError, ["x has shape (3,)", "two dimensions"]),
        (np.ones((2, 2, 2)), {}, ShapeError, ["x has shape (2, 2, 2)"]),
        (np.array([["a"]]), {}, DTypeError, ["x has dtype"]),
        (np.array([[2**60 + 1]]), {}, DTypeError, ["2^53", "matmul"]),
        ([[1.0]], {}, OperandError, ["x is a list"]),
        (np.ones((2, 2)), {"accuracy": -1}, AccuracyError, ["accuracy=-1.0", "positive"]),
        (np.ones((2, 2)), {"scheme": "residue"}, ArgumentError, ["scheme 'residue'", "did you mean 'residues'"]),
        (np.ones((2, 2)), {"engine": "gpu"}, ArgumentError, ["'gpu'", "'cpu:float64'"]),
    ],
)
def test_bad_input(x, keywords, error, words):
    with pytest.raises(error) as caught:
        prismm.prepare(x, **keywords)
    for word in words:
        assert word in str(caught.value)


def test_preparing_twice_is_refused():
    with pytest.raises(OperandError, match="prepared already; pass the matrix itself"):
        prismm.prepare(prismm.prepare(np.ones((2, 2))))


def test_empty_operands_can_be_prepared():
    for shape, other in (((0, 3), (2, 0)), ((3, 0), (2, 3))):
        for keywords in ({"reproducible": True}, CORRECT, {}):
            right = prismm.prepare(np.ones(shape), **keywords)
            assert_same_bits(prismm.matmul(np.ones(other), right), np.zeros((2, shape[1])))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_prepare_chose_is_as_reproducible_as_it_said(dtype, seed):
    """Native in float64 is no reproducible scheme, yet a correctly rounded product has only one value."""
    a, b = (x.astype(dtype) for x in HOSTILE["normal"](M, K, N, seed, "float32"))
    keywords = {**CORRECT, "reproducible": True}
    right, left = prismm.prepare(b, **keywords), prismm.prepare(a, side="left", **keywords)
    for x, y in ((a, right), (left, b), (left, right)):
        assert_same_bits(prismm.matmul(x, y), prismm.matmul(a, b, **keywords))


@each_dtype
@pytest.mark.parametrize("keywords", [CORRECT, {"reproducible": True}, {"accuracy": 1e-12}, {"accuracy": 1e-3}])
def test_operands_prepared_apart_get_the_same_scheme(keywords, dtype):
    for m, k, n in ((30, 40, 50), (1, 1, 300), (2, 1000, 3)):
        a, b = np.ones((m, k), dtype), np.ones((k, n), dtype)
        left, right = prismm.prepare(a, side="left", **keywords), prismm.prepare(b, **keywords)
        assert left.scheme == right.scheme
        assert (prismm.matmul(left, right) == k).all()


def test_two_prepared_operands_that_differ_are_told_apart():
    left = prismm.prepare(np.ones((3, 3)), side="left", scheme=prismm.Residues(9))
    with pytest.raises(OperandError) as caught:
        prismm.matmul(left, prismm.prepare(np.ones((3, 3)), scheme=prismm.Residues(10)))
    for word in (
        "left operand was prepared with scheme=Residues(moduli=9)",
        "right one with scheme=Residues(moduli=10)",
    ):
        assert word in str(caught.value)
    assert str(caught.value).endswith("prepare both with the same scheme")


def test_it_compares_and_hashes_by_identity():
    one, other = (prismm.prepare(np.ones((3, 3)), reproducible=True) for _ in range(2))
    assert one == one and one != other
    assert len({one, other}) == 2
