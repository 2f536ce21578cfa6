"""einsum against rational arithmetic and NumPy, on random subscripts; its errors; more than two operands."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import prismm
from prismm.errors import AccuracyError, ArgumentError, DTypeError, OperandError, ShapeError
from prismm.products.subscripts import parse
from tests.judge import CORRECT, assert_each, assert_same_bits
from tests.products.exact import exact_einsum


def draw(shape: tuple[int, ...], rng: np.random.Generator, dtype: str = "float64") -> np.ndarray:
    """Numbers of many binades, some of which cancel."""
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-30, 30, shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape) * 2.0 ** rng.integers(-30, 30, shape)
    return x.astype(dtype)


def random_subscripts(count: int, rng: np.random.Generator) -> tuple[str, list[tuple[int, ...]]]:
    """Subscripts and shapes: repeated indices, sums of one operand alone, ellipses that broadcast, any order."""
    size = {letter: int(rng.integers(1, 4)) for letter in "abcdX"}
    dots = rng.random() < 0.3
    batch = tuple(int(n) for n in rng.integers(1, 3, int(rng.integers(0, 3)))) if dots else ()
    terms, shapes = [], []
    for _ in range(count):
        letters = "".join(rng.choice(list("abcdX"), int(rng.integers(0, 4))))
        at = int(rng.integers(0, len(letters) + 1))
        mine = tuple(n if rng.random() < 0.7 else 1 for n in batch[int(rng.integers(0, len(batch) + 1)) :])
        terms.append(letters[:at] + ("..." if dots else "") + letters[at:])
        shapes.append(tuple(size[x] for x in letters[:at]) + mine + tuple(size[x] for x in letters[at:]))
    text = ",".join(terms)
    if rng.random() < 0.7:
        found = [x for x in "abcdX" if x in text and rng.random() < 0.5]
        result = "".join(rng.permutation(found)) if found else ""
        at = int(rng.integers(0, len(result) + 1))
        text += "->" + result[:at] + ("..." if dots else "") + result[at:]
    return text, shapes


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.parametrize("count", [1, 2])
def test_one_product_is_rounded_once(count, dtype, rng):
    def check(case: tuple[str, list[np.ndarray]]) -> None:
        text, operands = case
        wanted = parse(text, [x.ndim for x in operands])
        expected = exact_einsum(list(wanted.inputs), wanted.output, operands, dtype)
        c = prismm.einsum(text, *operands, **CORRECT)
        assert type(c) is type(np.einsum(text, *operands)) or count == 1
        assert_same_bits(np.asarray(c) + 0.0, expected + 0.0, text)
        assert np.shape(c) == np.einsum(text, *operands).shape
        summed = {x for labels in wanted.inputs for x in labels} - set(wanted.output)
        size = {x: n for labels, y in zip(wanted.inputs, operands, strict=True) for x, n in zip(labels, y.shape)}  # noqa: B905
        terms = 2 * int(np.prod([size[x] for x in summed])) + 2
        magnitude = np.einsum(text, *(np.abs(x) for x in operands)).astype(float)
        native = np.abs(prismm.einsum(text, *operands) - np.asarray(expected).astype(c.dtype))
        assert (native <= 2 * terms * np.finfo(c.dtype).eps * magnitude).all()

    cases = []
    for _ in range(25 if dtype == "float64" else 10):
        text, shapes = random_subscripts(count, rng)
        cases.append((text, [draw(shape, rng, dtype) for shape in shapes]))
    assert_each(check, cases)


@pytest.mark.parametrize("text", ["ij,jk->ik", "ijk,kjl->il", "ij,k->k", "ij,kl->", "iij,j->i", "ij,jk"])
def test_reproducible_sums_know_no_order(text, rng):
    """Indices that are summed over may come in any order, in any layout."""
    left, right = text.partition("->")[0].split(",")
    size = dict(zip("ijkl", (6, 7, 5, 8), strict=True))
    a, b = (draw(tuple(size[x] for x in term), rng) for term in (left, right))
    c = prismm.einsum(text, a, b, reproducible=True)
    order = rng.permutation(7)
    shuffled = [np.take(x, order, axis=term.index("j")) if "j" in term else x for x, term in ((a, left), (b, right))]
    if "j" not in text.partition("->")[2] and text != "iij,j->i":
        assert_same_bits(prismm.einsum(text, *shuffled, reproducible=True), c)
    output = "".join(parse(text, [a.ndim, b.ndim]).output)
    assert_same_bits(prismm.einsum(f"{right},{left}->{output}", b, a, reproducible=True), c)
    assert_same_bits(prismm.einsum(text, a, np.asfortranarray(b), reproducible=True, threads=2), c)


def test_it_is_one_exact_product(rng):
    """A sum over two indices at once, and over one that an operand lacks, cancels as a whole."""
    a = np.array([[1e16, 1.0], [1.0, -1e16]])
    assert prismm.einsum("ij->", a, **CORRECT) == 2.0
    assert prismm.einsum("ij,k->k", a, np.array([3.0, 2.0**-60]), **CORRECT).tolist() == [6.0, 2.0**-59]
    assert prismm.einsum("ij,kl->", a, a, **CORRECT) == 4.0
    x = draw((9, 8), rng)
    _, report = prismm.einsum("ij,ij->", x, x, full_output=True)
    assert report.bounds.shape == (1, 1)


@pytest.mark.parametrize("path", [[(0, 1), (0, 1)], [(1, 2), (0, 1)], ["einsum_path", (0, 2), (1, 0)]])
def test_three_operands_by_a_path(path, rng):
    a, b, c = draw((3, 4), rng), draw((4, 5), rng), draw((5, 2), rng)
    expected = np.einsum("ij,jk,kl->il", a, b, c)
    magnitude = np.einsum("ij,jk,kl->il", *map(np.abs, (a, b, c)))
    found, reports = prismm.einsum("ij,jk,kl->il", a, b, c, path=path, reproducible=True, full_output=True)
    assert (np.abs(found - expected) <= 1e-14 * magnitude).all() and len(reports) == 2
    assert_same_bits(prismm.einsum("ij,jk,kl->il", a, b, c, path=path, reproducible=True, threads=1), found)


def test_many_operands_by_the_path_of_opt_einsum(rng):
    pytest.importorskip("opt_einsum")
    for count in (3, 4, 5):
        for _ in range(4):
            text, shapes = random_subscripts(count, rng)
            operands = [rng.standard_normal(shape) for shape in shapes]
            found, expected = prismm.einsum(text, *operands), np.einsum(text, *operands)
            magnitude = np.einsum(text, *map(np.abs, operands))
            assert found.shape == expected.shape
            assert (np.abs(found - expected) <= 1e-12 * magnitude).all(), text


def test_types_of_products_on_the_way(rng):
    """Of the promoted type of all operands: a float32 pair is not rounded to float32 before float64 comes."""
    a, b = (rng.standard_normal((3, 3)).astype(np.float32) for _ in range(2))
    c = rng.standard_normal((3, 3))
    path = [(0, 1), (0, 1)]
    found = prismm.einsum("ij,jk,kl->il", a, b, c, path=path)
    assert found.dtype == np.float64
    assert np.abs(found - a.astype(float) @ b.astype(float) @ c).max() < 1e-13
    assert prismm.einsum("ij,jk,kl->il", a, b, c * 1j, path=path).dtype == np.complex128
    narrow = prismm.einsum("ij,jk,kl->il", a, b, c, path=path, out_dtype="float32")
    assert_same_bits(narrow, found.astype(np.float32))
    logical = prismm.einsum("ij,jk,kl->il", a > 0, b > 0, c > 0, path=path)
    assert_same_bits(logical, np.einsum("ij,jk,kl->il", a > 0, b > 0, c > 0))


def test_more_than_two_operands_promise_no_more_than_they_can():
    x = np.eye(2)
    with pytest.raises(AccuracyError, match=r"'correctly-rounded' of 3 operands, which are 2 products, each rounded"):
        prismm.einsum("ij,jk,kl", x, x, x, **CORRECT)
    with pytest.raises(ArgumentError, match="reproducible=True of 3 operands: the bits depend on the order"):
        prismm.einsum("ij,jk,kl", x, x, x, reproducible=True)


def test_without_opt_einsum(monkeypatch):
    monkeypatch.setitem(sys.modules, "opt_einsum", None)
    x = np.eye(2)
    with pytest.raises(ArgumentError, match=r"needs opt_einsum .* pip install opt_einsum, or pass path="):
        prismm.einsum("ij,jk,kl", x, x, x)
    assert_same_bits(prismm.einsum("ij,jk,kl", x, x, x, path=[(0, 1), (0, 1)]), x)
    assert_same_bits(prismm.einsum("ij,jk", x, x), x)


@pytest.mark.parametrize(
    ("text", "shapes", "error", "words"),
    [
        ("ij,jk", [(2, 3)], ArgumentError, "name 2 operands, and 1 are passed"),
        ("ij,jk", [(2, 3), (4, 2)], ShapeError, "axes 'j' have 3 and 4 elements"),
        ("ij,jk", [(2, 1), (4, 2)], ShapeError, "axes 'j' have 1 and 4 elements"),
        ("...i,...i", [(2, 3), (4, 3)], ShapeError, r"the axes of \.\.\. have 2 and 4"),
        ("ijk,jk", [(2, 3), (3, 2)], ArgumentError, r"operands\[0\] has 2 axes, and 'ijk' names 3"),
        ("i,jk", [(2, 3), (3, 2)], ArgumentError, r"operands\[0\] has 2 axes, and 'i' names 1"),
        ("ij,jk->iz", [(2, 3), (3, 2)], ArgumentError, "the result's 'z' is in no operand"),
        ("ij,jk->ii", [(2, 3), (3, 2)], ArgumentError, "the result has 'i' twice"),
        ("...j,jk->k", [(2, 3), (3, 2)], ArgumentError, r"write \.\.\. in the result"),
        ("i1,jk", [(2, 3), (3, 2)], ArgumentError, "'1' is no letter"),
        ("i.j,jk", [(2, 3), (3, 2)], ArgumentError, r"'\.' is no letter"),
        ("......i", [(2,)], ArgumentError, r"'\.' is no letter"),
        ("ii", [(2, 3)], ShapeError, "axes 'i' have 2 and 3"),
    ],
)
def test_subscripts_that_do_not_fit(text, shapes, error, words):
    with pytest.raises(error, match=words):
        prismm.einsum(text, *(np.ones(shape) for shape in shapes))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ([(0, 1)], "leaves 2 operands"), ([(0, 0), (0, 1)], r"the step \(0, 0\) where 3 operands"),
        ([(0, 3), (0, 1)], r"the step \(0, 3\)"), ([(0, 1, 2)], "pass pairs"), ([(0, 1), (0, 1), (0, 0)], "the step"),
    ],
)  # fmt: skip
def test_paths_that_do_not_fit(path, words):
    x = np.eye(2)
    with pytest.raises(ArgumentError, match=words):
        prismm.einsum("ij,jk,kl", x, x, x, path=path)
    with pytest.raises(ArgumentError, match="which are one product; leave it out"):
        prismm.einsum("ij,jk", x, x, path=path)


def test_other_arguments_are_refused():
    x = np.eye(2)
    with pytest.raises(ArgumentError, match="subscripts are a ndarray"):
        prismm.einsum(x, [0, 1], x, [1, 2])
    with pytest.raises(ArgumentError, match="without operands"):
        prismm.einsum("ij,jk")
    with pytest.raises(OperandError, match=r"operands\[1\] is a list"):
        prismm.einsum("ij,jk", x, [[1.0]])
    with pytest.raises(DTypeError, match=r"operands\[0\] has dtype object"):
        prismm.einsum("ij,jk", x.astype(object), x)


@pytest.mark.parametrize("text", ["ij,kj->ik", "bij,bjk->bik", "ii->i", "ij->", "ij,ij->ij", "i,j->ji"])
def test_tensors_have_derivatives(text, rng):
    torch = pytest.importorskip("torch")
    terms = text.partition("->")[0].split(",")
    operands = [torch.from_numpy(rng.standard_normal((3,) * len(term))).requires_grad_() for term in terms]
    copies: list[Any] = [x.detach().clone().requires_grad_() for x in operands]
    found, expected = prismm.einsum(text, *operands), torch.einsum(text, *copies)
    torch.testing.assert_close(found, expected)
    for result in (found, expected):
        (result**2).sum().backward()
    for x, y in zip(operands, copies, strict=True):
        torch.testing.assert_close(x.grad, y.grad)


def test_empty_axes():
    assert_same_bits(prismm.einsum("ij,jk->ik", np.ones((2, 0)), np.ones((0, 3))), np.zeros((2, 3)))
    assert_same_bits(prismm.einsum("ij->j", np.ones((2, 0))), np.zeros(0))
    assert_same_bits(prismm.einsum("ij->i", np.ones((2, 0))), np.zeros(2))
