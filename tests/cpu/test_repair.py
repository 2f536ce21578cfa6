"""Repair, path by path: whatever a certificate leaves open ends within its target."""

import itertools

import numpy as np
import pytest

from prismm.core.accuracy import Target
from prismm.core.outcome import Epilogue, Job, Outcome, real_parts
from prismm.cpu import entries as entries_module
from prismm.cpu import repair as repair_module
from prismm.cpu.engines.integer import FLOAT64, choose
from prismm.cpu.entries import Entries, gathered
from prismm.cpu.kernels.magnitude import certify
from prismm.cpu.kernels.zeros import any_products
from prismm.cpu.many_product import takes_bytes
from prismm.cpu.repair import bound_in_units, exactly, repair
from prismm.cpu.residues.split import Splitter, split_operand
from prismm.formats import format_of
from prismm.testing import HOSTILE, exact_gemm, exact_product
from tests.judge import assert_same_bits

RIGHT = Target("correctly-rounded")
DTYPES = ["float64", "float32", "complex128", "complex64"]


def job(dtype, target, k, epilogue=None, workers=2):
    complex_ = np.dtype(dtype).kind == "c"
    return Job(format_of(dtype), target, 2 * k if complex_ else k, False, workers, 1 << 30, epilogue)


def everything(out):
    i, j = (x.reshape(-1).astype(np.int64) for x in np.indices(out.shape))
    return [Entries(part, i, j) for part in range(len(real_parts(out)))]


def scales_of(a, b, moduli, dtype):
    """Scales of both operands, as the scheme makes them."""
    splitter = Splitter(moduli, FLOAT64, a.shape[1], np.dtype(dtype).kind == "c", levels=True)
    count, parts = len(splitter.system.moduli), splitter.residue_parts
    left = split_operand(a, splitter, np.empty((parts, count, *a.shape)), left=True)
    right = split_operand(b, splitter, np.empty((parts, count, *b.shape)), left=False)
    return left, right


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HOSTILE)
def test_every_entry_is_correctly_rounded(name, dtype, seed):
    a, b = HOSTILE[name](9, 33, 8, seed, dtype)
    wanted = exact_product(a, b).rounded(dtype)
    out = np.full((9, 8), 7, dtype)
    outcome = Outcome()
    for entries in everything(out):
        repair(a, b, out, entries, job(dtype, RIGHT, 33), outcome)
    assert_same_bits(out, wanted)
    assert sum(outcome.paths.values()) == out.size * len(real_parts(out))
    if name == "normal":
        assert outcome.paths["double-double"] > out.size // 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_the_listed_entries_are_touched(dtype, seed, rng):
    a, b = HOSTILE["normal"](20, 50, 30, seed, dtype)
    wanted = exact_product(a, b).rounded(dtype)
    out = np.full((20, 30), 7, dtype)
    chosen = np.flatnonzero(rng.random(600) < 0.1)
    rng.shuffle(chosen)
    for part in range(len(real_parts(out))):
        repair(a, b, out, Entries(part, chosen // 30, chosen % 30), job(dtype, RIGHT, 50), Outcome())
    touched = np.zeros((20, 30), bool)
    touched[chosen // 30, chosen % 30] = True
    assert_same_bits(out, np.where(touched, wanted, np.full_like(out, 7)))


@pytest.mark.covering
@pytest.mark.parametrize(
    "target", [Target("native"), Target("tolerance", 1e-9), Target("tolerance", 2.0**-50)], ids=str
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HOSTILE)
def test_magnitudes_pass_an_entry_only_within_its_target(name, dtype, target, seed):
    """Start from the scheme's own value: what the magnitude path passes must already meet the target."""
    k = 40
    a, b = HOSTILE[name](8, k, 7, seed, dtype)
    moduli = 9 if np.dtype(dtype).itemsize in (4,) or dtype == "complex64" else 15
    scales = scales_of(a, b, moduli, dtype)
    exact = exact_product(a, b)
    rounded = [
        [np.ldexp(np.rint(np.ldexp(p.astype(np.float64), s)), -s) for p in real_parts(x)]
        for x, s in ((a, scales[0].shift[:, None]), (b, scales[1].shift[None]))
    ]
    if any(not np.isfinite(p).all() for parts in rounded for p in parts):
        rounded = [[p.astype(np.float64) for p in real_parts(x)] for x in (a, b)]
    made = [p[0] if len(p) == 1 else p[0] + 1j * p[1] for p in rounded]
    out = exact_product(*made).rounded(dtype)
    work = job(dtype, target, k)
    outcome = Outcome()
    for entries in everything(out):
        repair(a, b, out, entries, work, outcome, scales)
    u, eta = work.result.unit_roundoff, work.result.smallest_subnormal
    size = exact.magnitude("up")
    factor = work.terms * u if target.kind == "native" else target.tolerance + u
    finite = np.isfinite(exact.rounded(dtype))
    with np.errstate(over="ignore", invalid="ignore"):
        bound = np.where(finite, factor * size * (1 + 1e-12) + work.terms * eta, np.inf)
    assert exact.within(np.where(finite, out, 0), bound).all()
    assert np.array_equal(np.isfinite(out), finite)
    if name in ("normal", "uniform"):
        assert outcome.paths.get("magnitude", 0) > out.size // 2


@pytest.mark.covering("name")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HOSTILE)
def test_magnitudes_of_many_entries_are_those_of_each(name, dtype, seed, rng, monkeypatch):
    """Two products of bytes by an engine, and entry by entry: equal sums, and flags, in any order of entries."""
    if not takes_bytes(choose("cpu")):
        pytest.skip("no engine multiplies bytes here")
    a, b = HOSTILE[name](33, 70, 29, seed, dtype)
    scales = scales_of(a, b, 9 if np.dtype(dtype).itemsize == 4 or dtype == "complex64" else 15, dtype)
    for entries, shuffled in itertools.product(everything(np.empty((33, 29), dtype)), (False, True)):
        chosen = np.flatnonzero((entries.i * 7 + entries.j) % 3 > 0)
        entries = entries.keep(rng.permutation(chosen) if shuffled else chosen)
        found = []
        for many in (0, 1 << 60):
            monkeypatch.setattr(repair_module, "_MANY_MAGNITUDES", many)
            sums = np.full((2, entries.i.size), -1)
            for where, total, hit in repair_module.magnitude_sums(a, b, entries, job(dtype, RIGHT, 70), scales):
                sums[:, where] = total, hit
            found.append(sums)
        assert np.array_equal(*found) and found[0].min() >= 0


@pytest.mark.parametrize("k", [10, 4096])
def test_certificates_by_magnitudes_are_the_written_ones(k, rng):
    n = 3000
    i, j = rng.integers(0, 50, n), rng.integers(0, 60, n)
    left, right = (np.exp2(rng.integers(-40, 40, (4, count))) * rng.random((4, count)) for count in (50, 60))
    for x in (left, right):
        x[3] = rng.integers(0, 2, x.shape[1])
        x[1] = np.where(x[3] == 0, 0.0, np.where(rng.random(x.shape[1]) < 0.5, 1e300, x[1]))
    total, hit, value = rng.integers(0, 1 << 20, n), rng.integers(0, 2, n).astype(np.uint8), rng.standard_normal(n)
    powers, shifts = rng.integers(40, 80, 110), rng.integers(-30, 30, 110)
    proved = np.full(n, 9, np.uint8)
    certify(
        i, j, total, hit, value, left, right, powers[:50], powers[50:], shifts[:50], shifts[50:], k / 4.0, 1e-9, 2.0**9,
        proved,
    )  # fmt: skip
    bound = bound_in_units(left[:, i], right[:, j], np.empty((0, k)), job("float64", RIGHT, k))
    with np.errstate(over="ignore"):
        lower = np.ldexp(total.astype(float), powers[i] + powers[50:][j] - 14)
        reach = np.abs(value) + np.ldexp(bound, -(shifts[i] + shifts[50:][j]))
    wanted = ((hit == 0) | (bound * 1e-9 <= lower)) & (reach < 2.0**9)
    assert np.array_equal(proved, wanted) and 0 < wanted.mean() < 1


def test_disjoint_operands_are_zero_by_their_flags(seed, rng):
    """No product of nonzero elements at all: proved without a single multiplication, for correct rounding too."""
    a, b = rng.standard_normal((6, 40)), rng.standard_normal((40, 5))
    a[:, ::2] = 0.0
    b[1::2] = 0.0
    out = np.zeros((6, 5))
    outcome = Outcome()
    repair(a, b, out, everything(out)[0], job("float64", RIGHT, 40), outcome, scales_of(a, b, 15, "float64"))
    assert outcome.paths == {"magnitude": 30} and not out.any()
    a[0, 0] = 2.0**-1000
    b[0] = 2.0**-1000  # a product that underflows is a product
    outcome = Outcome()
    repair(a, b, out, everything(out)[0], job("float64", RIGHT, 40), outcome, scales_of(a, b, 15, "float64"))
    assert outcome.paths["magnitude"] == 25 and not np.signbit(out).any()


@pytest.mark.parametrize("k", [1, 63, 64, 130])
def test_bits_tell_whether_any_product_is_nonzero(k, rng, monkeypatch):
    a, b = (np.where(rng.random((40, k)) < 1.5 / k**0.5, rng.standard_normal((40, k)), 0.0) for _ in range(2))
    a[0], b[1] = -0.0, np.ldexp(1.0, -1074)
    ri, ci = (x.reshape(-1) for x in np.indices((40, 40)))
    wanted, every = ((a != 0) @ (b != 0).T.astype(int)).reshape(-1) > 0, np.arange(40)
    assert 0 < wanted.mean() < 1
    for size in (8, 1 << 20):  # a vector at a time, and all at once
        monkeypatch.setattr(repair_module, "GATHER_BYTES", size)
        bits = repair_module._bits(a, every, 0, "left"), repair_module._bits(b.T, every, 0, "right")
        hit = np.zeros(ri.size, np.uint8)
        any_products(*bits, ri, ci, hit)
        assert np.array_equal(hit != 0, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_entries_without_products_are_found_beside_full_vectors(dtype, rng):
    """Full rows meet columns of zeros; of complex elements one part may be zero, and then products of the other part
    count alone.
    """
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((40, 7), (7, 40)))
    if np.dtype(dtype).kind == "c":
        a[:20] += 1j * rng.standard_normal((20, 7)).astype(a.real.dtype)
        b[:, 30:] *= 1j
    b[:, ::3], a[5::7, 1:], b[0, 1::3] = 0, 0, 0
    nonzero = [[part != 0 for part in real_parts(x)] for x in (a, b)]
    for part, entries in enumerate(everything(np.full((40, 40), 7, dtype))):
        pairs = [(0, 0), (1, 1)] if part == 0 else [(0, 1), (1, 0)]
        there = sum(
            nonzero[0][x].astype(int) @ nonzero[1][y] for x, y in pairs if x < len(nonzero[0]) and y < len(nonzero[1])
        )
        out, outcome = np.zeros((40, 40), dtype), Outcome()
        left = repair_module._without_products(a, b, out, entries, job(dtype, RIGHT, 7), outcome)
        assert outcome.paths["magnitude"] == np.count_nonzero(there == 0) > 0
        assert np.array_equal(left.place, entries.keep(np.broadcast_to(there > 0, (40, 40)).reshape(-1)).place)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_operands_without_products_are_of_c_alone(dtype, rng):
    """Block triangular operands: above the diagonal nothing is multiplied, whatever C is; real parts of products that
    cancel are products.
    """
    complex_, kind = np.dtype(dtype).kind == "c", np.dtype(dtype)
    fmt = format_of(dtype)

    def draw(*shape):
        x = rng.standard_normal(shape)
        return (x + 1j * rng.standard_normal(shape) if complex_ else x).astype(kind)

    a, b, c = np.tril(draw(30, 30)), np.tril(draw(30, 30)), draw(30, 30)
    a[20:, 5:] = 0
    c[:3], c[3] = -0.0, float(np.ldexp(1.0, fmt.subnormal_exponent))
    c[4] = float(np.ldexp(1.9, fmt.maxexp - 1))
    for alpha, beta in ((-1.3, 0.7), (1.25 - 0.5j, 0.5 + 1.5j) if complex_ else (2.0, 1.5)):
        out, outcome = np.full((30, 30), 7, dtype), Outcome()
        for entries in everything(out):
            repair(a, b, out, entries, job(dtype, RIGHT, 30, Epilogue(alpha, beta, c)), outcome)
        assert_same_bits(out, exact_gemm(alpha, a, b, beta, c).rounded(dtype))
        assert outcome.paths["exact"] >= 435 * len(real_parts(out))


def test_zeros_that_underflow_are_no_exact_zeros(rng):
    """Values of 0 with and without a product: the former is below the least number and keeps its sign."""
    a, b = np.zeros((64, 9)), np.zeros((9, 64))
    a[::2, 0], b[0, ::2] = -(2.0**-600), 2.0**-600
    out, outcome = np.full((64, 64), -0.0), Outcome()
    repair(a, b, out, everything(out)[0], job("float64", RIGHT, 9), outcome)
    assert_same_bits(out, exact_product(a, b).rounded("float64"))
    assert outcome.paths["magnitude"] == 64 * 64 - 32 * 32


@pytest.mark.parametrize("dtype", DTYPES)
def test_gemm_entries_are_rounded_as_a_whole(dtype, seed, rng):
    for name in ("normal", "cancelling", "wide_rows", "subnormal_results"):
        a, b = HOSTILE[name](6, 21, 5, seed, dtype)
        c = rng.standard_normal((6, 5)).astype(np.dtype(dtype).type(0).real.dtype).astype(dtype)
        alpha, beta = (1.25 - 0.5j, 0.7 + 2j) if np.dtype(dtype).kind == "c" else (-1.3, 0.7)
        out = np.full((6, 5), 7, dtype)
        work = job(dtype, RIGHT, 21, Epilogue(alpha, beta, c))
        for entries in everything(out):
            repair(a, b, out, entries, work, Outcome())
        assert_same_bits(out, exact_gemm(alpha, a, b, beta, c).rounded(dtype))


@pytest.mark.parametrize("dtype", [*DTYPES, "int32"])
@pytest.mark.parametrize("lie", [lambda x: x, lambda x: x.T.copy().T, lambda x: np.repeat(x, 2, axis=1)[:, ::2]])
def test_gathered_vectors_are_those_of_the_operands(lie, dtype, rng):
    """The operands are in row order, in column order, or have gaps between their entries."""
    a, b = (lie((rng.standard_normal(shape) * 99).astype(dtype)) for shape in ((21, 700), (700, 25)))
    i, j = rng.integers(0, 21, 60), rng.integers(0, 25, 60)
    for part, whole in enumerate(real_parts(a @ b)):
        for piece in gathered(a, b, Entries(part, i, j), (part,)):
            rows, columns = piece.rows[piece.ri], piece.columns[piece.ci]
            if np.dtype(dtype).kind != "c":
                assert np.array_equal(rows, a[i[piece.where]]) and np.array_equal(columns, b.T[j[piece.where]])
            np.testing.assert_allclose((rows * columns).sum(1), whole[i[piece.where], j[piece.where]], 1e-3, 1.0)


@pytest.mark.parametrize("order", ["C", "F"])
def test_pieces_cover_every_entry_once(order, rng, monkeypatch):
    """Rows and columns gathered in small pieces: each entry in exactly one, with its own row and column.

    The rows of a plain matrix are not gathered but read in place.
    """
    monkeypatch.setattr(entries_module, "GATHER_BYTES", 8 * 10 * 3)  # three vectors of ten at a time
    a, b = np.asarray(rng.standard_normal((17, 10)), order=order), rng.standard_normal((10, 13))
    chosen = rng.permutation(17 * 13)[:90]
    entries = Entries(0, (chosen // 13).astype(np.int64), (chosen % 13).astype(np.int64))
    seen, pieces = [], 0
    for piece in gathered(a, b, entries, (0,)):
        pieces += 1
        assert np.shares_memory(piece.rows, a) if order == "C" else piece.rows.shape[0] <= 3
        assert piece.columns.shape[0] <= 3
        assert np.array_equal(piece.rows[piece.ri], a[entries.i[piece.where]])
        assert np.array_equal(piece.columns[piece.ci], b.T[entries.j[piece.where]])
        seen += piece.where.tolist()
    assert sorted(seen) == list(range(90))
    # By threes of the rows and columns that are there at all; none where no entry lies, and rows in place are one.
    ri, ci = (np.unique(x, return_inverse=True)[1] // 3 for x in (entries.i, entries.j))
    assert pieces == len(set(zip(np.zeros_like(ri) if order == "C" else ri, ci, strict=True)))
    out = np.full((17, 13), 7.0)
    exactly(a, b, out, entries, job("float64", RIGHT, 10), Outcome())
    inside = np.zeros(out.shape, bool)
    inside[entries.i, entries.j] = True
    assert_same_bits(out, np.where(inside, exact_product(a, b).rounded(), 7.0))


def test_many_entries_take_many_workers(seed):
    a, b = HOSTILE["normal"](40, 30, 40, seed, "float64")
    out = np.zeros((40, 40))
    outcome = Outcome()
    repair(a, b, out, everything(out)[0], job("float64", RIGHT, 30, workers=3), outcome)
    assert_same_bits(out, exact_product(a, b).rounded())
    assert sum(outcome.paths.values()) == 1600


def test_no_entries_no_work():
    empty = np.empty(0, np.int64)
    out = np.full((2, 2), 7.0)
    outcome = Outcome()
    repair(np.ones((2, 2)), np.ones((2, 2)), out, Entries(0, empty, empty), job("float64", RIGHT, 2), outcome)
    assert not outcome.paths and (out == 7.0).all()
