"""Products of dask arrays: the bits of NumPy's, whatever the chunks; what is refused; that all is lazy."""

from __future__ import annotations

import doctest
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import prismm
from prismm.core import threads as pool
from prismm.cpu.partial import more
from prismm.cpu.partial.join import Joined
from prismm.dask import exact
from prismm.errors import AccuracyError, ArgumentError, DTypeError, EngineError, OperandError, ShapeError
from prismm.testing import HOSTILE, SPECIAL
from prismm.testing.dyadic import Dyadic
from prismm.testing.exact import exact_product
from prismm.testing.parts import real_arrays
from tests.dask.chunks import chunked, computed, cut, da
from tests.judge import DTYPES, assert_each, assert_overflow_is_right, assert_same_bits, magnitudes, power

ALL = {**HOSTILE, **SPECIAL}
CORRECT, REPRODUCIBLE = {"accuracy": "correctly-rounded"}, {"reproducible": True}
TARGETS = (
    REPRODUCIBLE, CORRECT, {"scheme": "residues:9"}, {"accuracy": 1e-9, "reproducible": True},
    {"accuracy": "fast", "reproducible": True}, {"scheme": "residues:13", "accuracy": "native"},
)  # fmt: skip


def operands(name, rng, dtype, m=5, k=12, n=4):
    return ALL[name](m, k, n, seed=int(rng.integers(1 << 30)), dtype=np.dtype(dtype))


def assert_bits(a, b, rng, keywords, pieces=2):
    """The product of chunks has the bits of NumPy's arrays; both operands, or one, are dask arrays."""
    expected = prismm.matmul(a, b, **keywords)
    inner = cut(a.shape[-1], rng, pieces)
    x, y = chunked(a, rng, inner, -1), chunked(b, rng, inner if rng.integers(3) else pieces, max(b.ndim - 2, 0))
    if rng.integers(4) == 0:
        x, y = (a, y) if rng.integers(2) else (x, b)
    lazy = prismm.matmul(x, y, **keywords)
    assert isinstance(lazy, da.Array) and lazy.shape == np.shape(expected) and lazy.dtype == expected.dtype
    note = f"{getattr(x, 'chunks', None)} {getattr(y, 'chunks', None)} {keywords}"
    assert_same_bits(computed(lazy), expected, note)


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_uncertified_entries_are_multiplied_again(dtype, monkeypatch, rng):
    """By more moduli, chunk by chunk of the result."""
    monkeypatch.setattr(more, "EXACT_SECONDS", 1.0)
    taken = []
    take = Joined.take
    monkeypatch.setattr(Joined, "take", lambda *given: taken.append(given[1].moduli) or take(*given))
    for name in ("phi4", "lattice_wide", "shadowed", "cancelling"):
        for keywords in (REPRODUCIBLE, CORRECT):
            assert_bits(*operands(name, rng, dtype, 17, 60, 14), rng, keywords, 3)
    assert len(taken) > 8


def test_chunks_that_change_are_refused_where_entries_are_multiplied_again():
    """Answers that do not belong together are not added."""
    some, other = (
        exact.Reading([[(None, more.Answer(np.zeros((3, x, 2), np.int8), (np.zeros(1), np.zeros(1))))]], (0,))
        for x in (4, 5)
    )
    with pytest.raises(OperandError, match="not the same each time"):
        exact._add_answers([some, other])


@pytest.mark.parametrize("share", [6, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_hostile_operands(dtype, share, rng):
    """Families with a target each, drawn anew by every run: some, and slowly all."""

    def check(name):
        assert_bits(*operands(name, rng, dtype), rng, TARGETS[int(rng.integers(len(TARGETS)))])

    assert_each(check, rng.permutation(sorted(ALL))[:share].tolist())


@pytest.mark.parametrize("keywords", TARGETS, ids=str)
def test_bits_of_every_target(keywords, rng):
    for dtype in rng.permutation(DTYPES)[:2].tolist():
        assert_bits(*operands("phi4", rng, dtype, 20, 31, 9), rng, keywords, 3)


def test_chunks_of_one_element(rng):
    a, b = operands("wide_rows", rng, "float64", 3, 4, 2)
    x, y = da.from_array(a, chunks=1), da.from_array(b, chunks=1)
    for keywords in (REPRODUCIBLE, CORRECT, {"scheme": "residues:12"}):
        assert_same_bits(computed(prismm.matmul(x, y, **keywords)), prismm.matmul(a, b, **keywords))


SHAPES = (
    ((3, 5), (5, 4)), ((5,), (5, 4)), ((3, 5), (5,)), ((5,), (5,)), ((2, 3, 5), (5, 4)), ((3, 5), (2, 5, 4)),
    ((2, 1, 3, 5), (3, 5, 4)), ((5,), (2, 5, 4)), ((2, 3, 5), (5,)), ((2, 3, 5), (2, 5, 4)),
)  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_vectors_and_batches(shapes, rng):
    a, b = (rng.standard_normal(shape) * np.exp(9 * rng.standard_normal(shape)) for shape in shapes)
    for keywords in (REPRODUCIBLE, CORRECT, {"scheme": "residues:11"}):
        assert_bits(a, b, rng, keywords)
    c = computed(prismm.matmul(*(da.from_array(x, chunks=2) for x in (a, b))))
    assert c.shape == np.matmul(a, b).shape
    assert (np.abs(c - prismm.matmul(a, b)) <= 2**-40 * np.matmul(abs(a), abs(b))).all()


def test_empty_operands():
    for m, k, n in ((0, 3, 2), (3, 0, 2), (3, 4, 0), (0, 0, 0)):
        x, y = da.zeros((m, k), chunks=(2, 2)), da.zeros((k, n), chunks=(2, 2))
        for keywords in ({}, REPRODUCIBLE, CORRECT):
            assert_same_bits(computed(prismm.matmul(x, y, **keywords)), np.zeros((m, n)))


def test_empty_chunks(rng):
    """Chunks without elements are pieces like others."""
    a, b = operands("graded", rng, "float64", 4, 6, 3)
    x = da.from_array(a, chunks=((0, 4), (2, 0, 4)))
    y = da.from_array(b, chunks=((2, 0, 4), (3, 0)))
    for keywords in (REPRODUCIBLE, CORRECT, {"scheme": "residues:10"}):
        assert_same_bits(computed(prismm.matmul(x, y, **keywords)), prismm.matmul(a, b, **keywords))
    assert computed(prismm.matmul(x, y)).shape == (4, 3)


def test_other_types(rng):
    a, b = rng.integers(-99, 99, (4, 6)), rng.integers(-99, 99, (6, 3))
    for dtype in ("int8", "uint16", "int32", "float16", "bool"):
        x, y = a.astype(dtype), b.astype(dtype)
        for keywords in ({}, REPRODUCIBLE, CORRECT, {"out_dtype": "float32", **CORRECT}):
            assert_bits(x, y, rng, keywords)
    assert_bits(a, b.astype(float), np.random.default_rng(0), {})
    with pytest.raises(ArgumentError, match="convert it to float64"):
        prismm.matmul(da.from_array(a, chunks=2), b, reproducible=True)
    whole = prismm.matmul(da.from_array(a, chunks=(2, 6)), b, reproducible=True)
    assert_same_bits(computed(whole), prismm.matmul(a, b, reproducible=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_rounded_products_meet_their_bound(dtype, rng):
    """`dask.rounded`: |c - exact| <= K·(1 + P·u)·(u·|a||b| + η), decided in exact arithmetic."""

    def check(name):
        a, b = operands(name, rng, dtype)
        lengths = cut(a.shape[1], rng, 5)
        x, y = da.from_array(a, chunks=(3, lengths)), da.from_array(b, chunks=(lengths, 2))
        c = computed(prismm.matmul(x, y))
        assert c.dtype == a.dtype
        exact, magnitude = exact_product(a, b), magnitudes(a, b)
        u = power(-53 if c.real.dtype == np.float64 else -24)
        eta = power(-1074 if c.real.dtype == np.float64 else -149)
        terms = a.shape[1] * (2 if c.dtype.kind == "c" else 1)
        factor = power(0, terms) + u.times(power(0, terms * len(lengths)))
        bound = (magnitude.times(u) + eta).times(factor)
        assert not np.isnan(c).any()
        for part, x in zip(exact.parts, real_arrays(c), strict=True):
            finite = np.isfinite(x)
            gap = abs(part - Dyadic.from_array(np.where(finite, x, 0)))
            assert (((bound - gap).numerators >= 0) | ~finite).all()
            # What is infinite is within the bound of overflowing.
            least = Dyadic.from_array(np.full(x.shape, np.finfo(x.dtype).max))
            assert (((abs(part) + bound - least).numerators >= 0) | finite).all()

    assert_each(check, HOSTILE)


def test_other_schemes_are_added_as_they_are(rng):
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 8), (8, 3)))
    x, y = da.from_array(a, chunks=(5, 4)), da.from_array(b, chunks=(4, 3))
    for scheme in ("words:tf32x3", "scaled-half", prismm.TileInt8()):
        pieces = [prismm.matmul(a[:, h], b[h], scheme=scheme) for h in (slice(4), slice(4, 8))]
        assert_same_bits(computed(prismm.matmul(x, y, scheme=scheme)), pieces[0] + pieces[1])


def test_sums_that_overflow_on_the_way(rng):
    """Pieces cancel: what is infinite in one piece is finite in all."""
    for dtype, large in (("float64", 1e308), ("float32", 3e38), ("complex128", 1e308), ("complex64", 3e38)):
        a = np.full((2, 4), large, dtype)
        a[:, 2:] *= -1
        a[1, 3] = -large / 2
        b = np.ones((4, 3), dtype)
        b[0, 2] = np.inf
        x, y = da.from_array(a, chunks=(2, 2)), da.from_array(b, chunks=(2, 3))
        got = computed(prismm.matmul(x, y))
        exact = exact_product(a, b[:, :2])
        assert_overflow_is_right(exact, got[:, :2])
        assert_same_bits(got[:, :2], exact.rounded(dtype))
        assert np.isinf(got[:, 2].real).all()
        single = da.from_array(a, chunks=(2, 1)), da.from_array(b, chunks=(1, 3))
        assert_same_bits(computed(prismm.matmul(*single))[:, :2], exact.rounded(dtype))
    a, b = np.array([[1e200, 1e200, 1.0]]), np.array([[1e200], [-1e200], [3.0]])
    (c,) = computed(prismm.matmul(da.from_array(a, chunks=1), da.from_array(b, chunks=1)))[0]
    assert abs(c) <= 2.0**-53 * 1e300 * 1e100, "within the bound, which no number in between is"


def test_gemm(rng):
    def check(case):
        (shape_a, shape_b, shape_c), (ta, tb), (alpha, beta), keywords = case
        a, b, c = (rng.standard_normal(shape) * np.exp(4 * rng.standard_normal(shape)) for shape in
                   (shape_a, shape_b, shape_c))  # fmt: skip
        asked = {"alpha": alpha, "beta": beta, "trans_a": ta, "trans_b": tb, **keywords}
        expected = prismm.gemm(a, b, c, **asked)
        got = computed(prismm.gemm(*(da.from_array(x, chunks=3) for x in (a, b, c)), **asked))
        assert_same_bits(got, expected)
        assert_same_bits(computed(prismm.gemm(a, da.from_array(b, chunks=2), c, **asked)), expected)

    shapes = [((4, 6), (6, 3), (4, 3)), ((2, 4, 6), (6, 3), (3,)), ((6, 4), (6, 3), (1, 3))]
    every = [
        (shape, ("T" if shape[0] == (6, 4) else "N", "N"), factors, keywords)
        for shape, factors, keywords in itertools.product(
            shapes, [(1.0, 1.0), (0.3, -1.7), (2.0, 0.0), (0.0, 0.5)], [REPRODUCIBLE, CORRECT]
        )
    ]
    assert_each(check, [every[at] for at in rng.permutation(len(every))[:10]])


def test_gemm_of_complex_numbers_and_vectors(rng):
    a, b, c = (rng.standard_normal(s) + 1j * rng.standard_normal(s) for s in ((4, 6), (3, 6), (4, 3)))
    asked = {"alpha": 0.5 - 1j, "beta": 2j, "trans_b": "C", **CORRECT}
    got = prismm.gemm(*(da.from_array(x, chunks=3) for x in (a, b, c)), **asked)
    assert_same_bits(computed(got), prismm.gemm(a, b, c, **asked))
    x, y = da.from_array(a, chunks=2), da.from_array(a[0], chunks=4)
    expected = prismm.gemm(a, a[0], c[:, 0], beta=1.0, **CORRECT)
    assert_same_bits(computed(prismm.gemm(x, y, c[:, 0], beta=1.0, **CORRECT)), expected)
    native = prismm.gemm(x, y, c[:, 0], beta=1.0)
    assert np.abs(computed(native) - expected).max() <= 1e-13


def untouched(shape, chunks):
    """An array whose chunks must not be computed."""

    def fail(block):
        raise AssertionError("a chunk was computed")

    return da.zeros(shape, chunks=chunks).map_blocks(fail, meta=np.empty((0, 0)))


def test_nothing_is_computed_before_it_is_asked_for():
    x, y = untouched((6, 8), (3, 4)), untouched((8, 4), (4, 2))
    for keywords in ({}, REPRODUCIBLE, CORRECT, {"scheme": "residues:15"}):
        lazy = prismm.matmul(x, y, **keywords)
        assert lazy.chunks == ((3, 3), (2, 2))
        prismm.gemm(x, y, untouched((6, 4), 3), beta=1.0, **keywords)
    with pytest.raises(AssertionError, match="was computed"):
        computed(lazy)
    nothing = prismm.gemm(x, y, np.ones((6, 4)), alpha=0.0, beta=2.0)
    assert_same_bits(computed(nothing), np.full((6, 4), 2.0))
    free = prismm.gemm(da.ones((6, 8)), da.ones((8, 4)), untouched((6, 4), 3), beta=0.0)
    assert_same_bits(computed(free), np.full((6, 4), 8.0))


class Changing:
    """Storage that gives other numbers at one of its reads."""

    def __init__(self, shape: tuple[int, ...], at: int) -> None:
        self.shape, self.ndim, self.dtype, self.reads, self.at = shape, len(shape), np.dtype(float), 0, at

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
        found = np.ones(self.shape)[index] * (2.0 if self.reads == self.at else 1.0)
        self.reads += found.size > 0  # Dask asks for the type first
        return found


@pytest.mark.parametrize("keywords", [REPRODUCIBLE, CORRECT, {"scheme": "residues:9"}], ids=str)
def test_operands_that_change_between_steps_are_seen(keywords):
    """No step goes on with what another one found of other numbers."""

    def product(at):
        source = Changing((2, 4), at)
        x = da.from_array(source, chunks=(2, 2), asarray=False)
        return source, prismm.matmul(x, da.ones((4, 1), chunks=(2, 1)), **keywords)

    source, lazy = product(-1)
    assert computed(lazy).tolist() == [[4.0], [4.0]]
    assert source.reads == 2 * (6 if keywords == REPRODUCIBLE else 5)
    for at in range(source.reads):
        with pytest.raises(OperandError, match="not the same each time"):
            computed(product(at)[1])


def test_names_follow_from_what_is_asked(rng):
    a, b = rng.standard_normal((6, 8)), rng.standard_normal((8, 4))
    keywords = ({}, REPRODUCIBLE, CORRECT, {"accuracy": 1e-6}, {"scheme": "residues:9"}, {"scheme": "residues:10"},
                {"out_dtype": "float32"}, {"threads": 2}, {"engine": "cpu"})  # fmt: skip

    def names(chunks):
        x, y = da.from_array(a, chunks=chunks), da.from_array(b, chunks=chunks)
        return [prismm.matmul(x, y, **each).name for each in keywords]

    assert names(4) == names(4) and len({*names(4), *names(8)}) == 2 * len(keywords)


@pytest.mark.slow
def test_names_are_those_of_another_process():
    program = (
        "import dask.array as da, prismm\n"
        "x = da.ones((6, 8), chunks=4)\n"
        "print(prismm.matmul(x, x.T, reproducible=True).name)\n"
        "print(prismm.matmul(x, x.T, scheme=prismm.Words.tf32(3)).name)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    x = da.ones((6, 8), chunks=4)
    here = ({"reproducible": True}, {"scheme": prismm.Words.tf32(3)})
    assert done.stdout.split() == [prismm.matmul(x, x.T, **each).name for each in here]


def test_dask_is_not_imported_for_numpy():
    program = "import sys, numpy as np, prismm; prismm.matmul(np.eye(2), np.eye(2)); assert 'dask' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


X = da.ones((4, 6), chunks=(2, 3))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: prismm.matmul(X, X.T, np.empty((4, 4))), ArgumentError, "dask.array.store"),
        (lambda: prismm.matmul(X, X.T, full_output=True), ArgumentError, "lazy"),
        (lambda: prismm.matmul(X, X.T, workspace=np.empty(9, np.uint8)), ArgumentError, "leave it out"),
        (lambda: prismm.matmul(X, X), ShapeError, "inner dimensions 6 and 4"),
        (lambda: prismm.matmul(X[X[:, 0] > 0], X.T), ShapeError, r"a\.compute_chunk_sizes\(\)"),
        (lambda: prismm.matmul(X.T, X[X[:, 0] > 0]), ShapeError, r"b\.compute_chunk_sizes\(\)"),
        (lambda: prismm.matmul(X, X.T, accuracy="best"), AccuracyError, "best"),
        (lambda: prismm.matmul(X, X.T.astype(object)), DTypeError, "object"),
        (lambda: prismm.matmul(X, X.T, scheme="words:tf32x3", accuracy=1e-12), ArgumentError, "no exact partial"),
        (lambda: prismm.matmul(X, X.T, engine="simulated:volta", **CORRECT), ArgumentError, "rechunk the inner"),
        (lambda: prismm.matmul(X, X.T, engine="cpu:float64", **REPRODUCIBLE), ArgumentError, "engine='cpu'"),
        (lambda: prismm.matmul(X, X.T.astype(np.longdouble)), ArgumentError, "convert it to float64"),
        (lambda: prismm.matmul(X, [[1.0]]), OperandError, "pass a NumPy array"),
        (lambda: prismm.matmul(X.map_blocks(np.ma.masked_array, meta=np.ma.ones((0, 0))), X.T), OperandError, "chunks"),
        (lambda: prismm.gemm(X, X.T, beta=1.0), ArgumentError, "needs c"),
        (lambda: prismm.gemm(X, X.T, np.ones((3, 3)), beta=1.0), ShapeError, "broadcast"),
        (lambda: prismm.gemm(X, X.T, alpha=1j), DTypeError, "complex"),
        (lambda: prismm.gemm(X, X.T, np.ones((4, 4), np.longdouble), beta=1.0), ArgumentError, "convert it to float64"),
        (lambda: prismm.gemm(X, X, trans_b="X"), ArgumentError, "trans_b"),
        (lambda: prismm.explain(X, X.T), OperandError, r"compute\(\)"),
        (lambda: prismm.prepare(X), OperandError, r"compute\(\)"),
        (lambda: prismm.einsum("ij,kj", X, X), OperandError, r"compute\(\)"),
        (lambda: prismm.check(X, X, X), OperandError, r"compute\(\)"),
    ],
)  # fmt: skip
def test_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_tensors_beside_dask_arrays_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(OperandError, match="beside a dask array"):
        prismm.matmul(X, torch.ones(6, 4))
    with pytest.raises(OperandError, match="beside a dask array"):
        prismm.matmul(X, prismm.prepare(np.ones((6, 4))))


def call(*keywords, **more):
    """What tasks get to know of a product."""
    from prismm.dask.operands import Call

    return Call((*keywords, *[None] * (6 - len(keywords))), "float64", **more)


def test_workers_of_another_version_are_refused():
    with pytest.raises(EngineError, match=r"prismm 0\.0\.1.*install one version"):
        call(version="0.0.1").check()


@pytest.mark.slow
def test_the_page_shows_what_runs():
    """Its examples, which need Dask, unlike the other pages'."""
    page = (Path(__file__).parents[2] / "docs/dask.md").read_text(encoding="utf-8")
    source = "\n".join(re.findall(r"^```pycon\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    example = doctest.DocTestParser().get_doctest(source, {}, "dask.md", None, 0)
    words: list[str] = []
    doctest.DocTestRunner().run(example, out=words.append)
    assert len(example.examples) > 10 and not words, "".join(words)


def test_tasks_take_one_worker_unless_told(monkeypatch, rng):
    """Dask runs as many tasks as there are processors; none starts a team of its own."""
    most = []
    run = pool.run
    monkeypatch.setattr(pool, "run", lambda task, workers, **more: most.append(workers) or run(task, workers, **more))
    a, b = rng.standard_normal((300, 400)), rng.standard_normal((400, 200))
    x, y = da.from_array(a, chunks=(150, 200)), da.from_array(b, chunks=(200, 100))
    monkeypatch.delenv("PRISMM_THREADS", raising=False)
    assert_same_bits(computed(prismm.matmul(x, y, reproducible=True), scheduler="threads", num_workers=2),
                     prismm.matmul(a, b, reproducible=True, threads=1))  # fmt: skip
    assert set(most) == {1}
    computed(prismm.matmul(x, y, reproducible=True, threads=2))
    assert max(most) == 2
    monkeypatch.setitem(os.environ, "PRISMM_THREADS", "3")
    assert call().threads is None and call(*[None] * 5, 2).threads == 2
