"""Many uncertified entries: whatever system of moduli multiplies their rows and columns again, what it settles is
RN(exact), and every path gives the same bits.
"""

import dataclasses
import itertools

import numpy as np
import pytest

import prismm
from prismm.core.accuracy import Target
from prismm.core.many_moduli import MOST_MODULI, room
from prismm.core.outcome import Epilogue, Job, Outcome, real_parts
from prismm.cpu import escalation, many_product, repair, structure
from prismm.cpu.engines.integer import AMX, ENGINES, FLOAT64, INT8
from prismm.cpu.entries import Entries
from prismm.cpu.entry_sample import EntrySample
from prismm.cpu.escalation import Block, Choice
from prismm.cpu.many_product import Addends
from prismm.cpu.sums import Sum
from prismm.cpu.ways import Expansion, InFloat64, shared_bits
from prismm.formats import format_of
from prismm.testing import HOSTILE, exact_gemm, exact_product
from tests.cpu import units
from tests.judge import assert_same_bits

RIGHT = Target("correctly-rounded")
ALONE = Addends(np.empty(0), np.empty((0, 0, 0)))
DTYPES = ["float64", "float32", "complex128", "complex64"]
engines = pytest.mark.parametrize("engine", [AMX, units.PACKED, INT8], ids=lambda e: e.name)
packed = pytest.mark.parametrize("engine", [AMX, units.PACKED], ids=lambda e: e.name)


def job(dtype, k, workers=2, memory=1 << 30):
    return Job(format_of(dtype), RIGHT, 2 * k if np.dtype(dtype).kind == "c" else k, False, workers, memory)


def usable(engine):
    if not engine.prove().usable:
        pytest.skip(f"{engine.name} is not usable here")


def everything(out):
    i, j = (x.reshape(-1).astype(np.int64) for x in np.indices(out.shape))
    return [Entries(part, i, j) for part in range(len(real_parts(out)))]


@pytest.mark.covering("name")
@engines
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_system_settles_is_correctly_rounded(name, dtype, engine, seed):
    usable(engine)
    m, k, n = 21, 37, 35
    a, b = HOSTILE[name](m, k, n, seed, dtype)
    wanted = exact_product(a, b).rounded(dtype)
    for entries in everything(wanted):
        block = Block.of(a, b, entries)
        target = real_parts(wanted)[entries.part]
        if block.k == 0:
            assert not target.any()
            continue
        rows, columns = int(block.rows.bits.max()), int(block.columns.bits.max())
        ways = []
        for moduli, corrected in itertools.product((6, 14, 22, 31, 40, MOST_MODULI), (False, True)):
            even = dataclasses.replace(shared_bits(moduli, block.k, rows, columns), corrected=corrected)
            ways += [even, *(block._uneven(even) if corrected else [])]
        for choice in ways:
            assert choice.left + choice.right + (block.k - 1).bit_length() <= room(choice.moduli)
            system = many_product.System.of(choice.moduli, choice.left, choice.right, corrected=choice.corrected)
            value, failed = many_product.multiply(
                block.left, block.right, block.rows, block.columns, system, target.dtype, job(dtype, k), engine,
                ALONE,
            )  # fmt: skip
            assert_same_bits(np.where(failed, 0, value), np.where(failed, 0, target))
            exact = (block.rows.bits <= choice.left)[:, None] & (block.columns.bits <= choice.right)[None, :]
            assert not (failed & exact).any()


@engines
@pytest.mark.parametrize("turned", [False, True])
def test_narrow_rows_keep_their_bits_and_far_terms_are_added(engine, turned, seed):
    """Entries at the threshold of overflow: a few terms, some 80 binades below the others, decide them."""
    usable(engine)
    m, k, n = 130, 90, 120
    a, b = HOSTILE["overflow_threshold"](m, k, n, seed, "float32")
    a, b = (b.T, a.T) if turned else (a, b)
    wanted = exact_product(a, b).rounded("float32")
    block = Block.of(a, b, everything(wanted)[0])
    way = dataclasses.replace(block, stands_for=(1024, 1024, 1024)).choose(job("float32", k), engine, (), 2**20).way
    even = dataclasses.replace(shared_bits(way.moduli, block.k, way.left + 99, way.right + 99), corrected=True)
    assert way.corrected and way in block._uneven(even) and way.moduli < 14
    value, failed = block.multiply(way, wanted.dtype, job("float32", k), engine)
    assert not failed.any()
    assert_same_bits(value, wanted)


@engines
def test_panels_blocks_and_workers_change_nothing(engine, seed):
    usable(engine)
    a, b = HOSTILE["phi4"](230, 50, 450, seed)
    block = Block.of(a, b, everything(a @ b)[0])
    choice = shared_bits(16, 50, int(block.rows.bits.max()), int(block.columns.bits.max()))
    system = many_product.System.of(choice.moduli, choice.left, choice.right)
    found = [
        many_product.multiply(
            block.left, block.right, block.rows, block.columns, system, np.dtype(float), job("float64", 50, *given),
            engine, ALONE,
        )
        for given in ((1, 1 << 30), (2, 1 << 30), (3, 1 << 20))
    ]  # fmt: skip
    for value, failed in found[1:]:
        assert_same_bits(value, found[0][0])
        assert np.array_equal(failed, found[0][1])
    assert 0 < found[0][1].mean() < 1


@packed
def test_sums_of_the_largest_numbers_fit(engine):
    """Rows and columns of nothing but 2^bits - 1, the most that `shared_bits` lets in."""
    usable(engine)
    for k in (1, 2, 64, 100):
        a, b = np.full((3, k), 2.0**53 - 1), np.full((k, 40), 2.0**53 - 1)
        a[1], b[:, 1] = -a[1], -b[:, 1]
        block = Block.of(a, b, everything(a @ b)[0])
        least = next(m for m in range(2, 49) if room(m) >= 106 + (k - 1).bit_length())
        choice = shared_bits(least, k, 53, 53)
        assert (choice.left, choice.right) == (53, 53)
        system = many_product.System.of(least, 53, 53)
        value, failed = many_product.multiply(
            block.left, block.right, block.rows, block.columns, system, np.dtype(float), job("float64", k), engine,
            ALONE,
        )  # fmt: skip
        assert not failed.any()
        assert_same_bits(value, exact_product(a, b).rounded("float64"))


@pytest.mark.covering("name")
@pytest.mark.parametrize(
    ("dtype", "way"), [*((x, Expansion(y)) for x in ("float64", "float32") for y in (2, 3)), ("float32", InFloat64())]
)
@pytest.mark.parametrize("name", HOSTILE)
def test_what_sums_settle_is_correctly_rounded(name, dtype, way, seed, rng):
    for m, k, n in ((5, 1, 3), (9, 60, 300), (3, 700, 17)):
        a, b = HOSTILE[name](m, k, n, seed, dtype)
        wanted = exact_product(a, b).rounded(dtype)
        asked = np.flatnonzero(rng.random(m * n) < 0.7)
        block = Block.of(a, b, Entries(0, asked // n, asked % n))
        if block.k == 0 or (isinstance(way, InFloat64) and not block.fits_float64(job(dtype, k))):
            continue
        value, failed = block.multiply(way, wanted.dtype, job(dtype, k), None)
        sure = ~failed[block.r, block.c]
        got, right = value[block.r, block.c], wanted[asked // n, asked % n]
        assert_same_bits(np.where(sure, got, 0), np.where(sure, right, 0))
        if name in ("normal", "phi2", "graded", "wide_rows"):
            assert sure.mean() > 0.9


def forced(way, monkeypatch):
    """Make `repair` take one way for all it can; a number of moduli, negative with a correction."""
    monkeypatch.setattr(escalation, "FEW_SECONDS", 0.0)
    monkeypatch.setattr(escalation, "BLOCK_SECONDS", 0.0)
    chosen = escalation.Block.choose

    def choose(self, job, engine, tried):
        if way == "planned":
            return chosen(self, job, engine, tried)
        if tried or way in ("pairs", "exact"):
            return Choice(None, way == "pairs", 0.0)
        if isinstance(way, Expansion):
            return Choice(way, False, 0.0)
        if isinstance(way, InFloat64):
            return Choice(way if self.fits_float64(job) else None, False, 0.0)
        if engine is None:
            return Choice(None, False, 0.0)
        bits = int(self.rows.bits.max()), int(self.columns.bits.max())
        made = dataclasses.replace(shared_bits(abs(way), self.k, *bits), corrected=way < 0)
        return Choice(made, False, 0.0)

    monkeypatch.setattr(escalation.Block, "choose", choose)


@pytest.mark.covering("name")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HOSTILE)
def test_every_way_gives_the_same_bits(name, dtype, seed, monkeypatch):
    usable(units.PACKED)
    a, b = HOSTILE[name](19, 41, 23, seed, dtype)
    wanted = exact_product(a, b).rounded(dtype)
    for way in ("planned", "pairs", "exact", 20, 33, 49, -12, -30, Expansion(2), Expansion(3), InFloat64()):
        with monkeypatch.context() as patch:
            forced(way, patch)
            out, outcome = np.full(wanted.shape, 7, dtype), Outcome()
            for entries in everything(out):
                repair.repair(a, b, out, entries, job(dtype, 41), outcome)
            assert_same_bits(out, wanted)
            assert sum(outcome.paths.values()) == out.size * len(real_parts(out))
            if isinstance(way, (Expansion, InFloat64)):
                assert set(outcome.paths) <= {way.path, "exact", "magnitude"}


FACTORS = [(1.0, 1.0), (-2.0, 2.0), (0.5, -4.0), (3.0, 1.0), (-1.1, 0.7), (0.3 + 1.7j, 2.0 - 0.1j)]


@pytest.mark.covering("name", ("dtype", "factors"))
@pytest.mark.parametrize(
    ("dtype", "factors"),
    [(x, y) for x in DTYPES for y in FACTORS if x.startswith("complex") or not isinstance(y[0], complex)],
    ids=str,
)
@pytest.mark.parametrize("name", HOSTILE)
def test_sums_with_an_addend_are_rounded_once_whichever_way(name, dtype, factors, seed, rng, monkeypatch):
    """alpha·AB + beta·C with factors that are powers of two, real and complex others; C that cancels AB, next to it, or
    far off.
    """
    usable(units.PACKED)
    m, k, n = 11, 26, 13
    a, b = HOSTILE[name](m, k, n, seed, dtype)
    product = exact_product(a, b).rounded(dtype)
    near = np.where(np.isfinite(product), product, 1)
    unit = float(np.finfo(dtype).eps)
    with np.errstate(all="ignore"):
        scattered = rng.standard_normal((m, n)) * np.exp2(rng.integers(-400, 400, (m, n)))
        addends = {
            "cancels": -near, "nearly": -(near * (1 + unit * rng.integers(-3, 4, (m, n)))).astype(dtype),
            "elsewhere": np.where(np.isfinite(scattered.astype(dtype)), scattered, 1).astype(dtype), "none": None,
        }  # fmt: skip
    reached = False
    alpha, beta = factors
    for kind, c in addends.items():
        if c is not None and not np.isfinite(c).all():
            continue
        wanted = exact_gemm(alpha, a, b, beta if c is not None else 0.0, c if c is not None else np.zeros_like(product))
        wanted = wanted.rounded(dtype)
        for way in ("planned", 24, 49, -30, Expansion(2), Expansion(3), InFloat64()):
            with monkeypatch.context() as patch:
                forced(way, patch)
                out, outcome = np.full(wanted.shape, 7, dtype), Outcome()
                work = dataclasses.replace(job(dtype, k), epilogue=Epilogue(alpha, beta if c is not None else 0.0, c))
                for entries in everything(out):
                    repair.repair(a, b, out, entries, work, outcome)
            assert_same_bits(out, wanted, f"{kind}, {alpha}, {beta}, {way}")
            reached |= "more moduli" in outcome.paths
    if name in ("normal", "phi2", "lattice"):
        assert reached


@pytest.mark.parametrize("beta", [-1.0, -1.1])
def test_a_few_products_settle_a_sum_that_cancels(beta, rng, monkeypatch):
    """C takes all but what two numbers hold of AB: moduli settle the sum of three."""
    usable(units.PACKED)
    for name in ("PAIR_SECONDS", "EXACT_SECONDS"):
        monkeypatch.setattr(escalation, name, 1.0)
    monkeypatch.setattr(escalation, "expansion_seconds", lambda parts: 1.0)
    a, b = (rng.standard_normal(shape) * 2.0 ** rng.integers(-9, 9, shape) for shape in ((20, 30), (30, 24)))
    a = np.concatenate([a, np.round(a * 2.0**40) * 2.0**-70], axis=1)
    b = np.concatenate([b, b], axis=0)
    first = exact_product(a, b).rounded("float64")
    c = first / -beta if beta == -1.0 else np.round(first * 2.0**12) * 2.0**-12
    wanted, out, outcome = exact_gemm(1.0, a, b, beta, c).rounded("float64"), np.full(c.shape, 7.0), Outcome()
    work = dataclasses.replace(job("float64", a.shape[1]), epilogue=Epilogue(1.0, beta, c))
    repair.repair(a, b, out, everything(out)[0], work, outcome)
    assert_same_bits(out, wanted)
    assert outcome.paths["more moduli"] >= 0.9 * out.size and outcome.products <= 2 * MOST_MODULI


def test_complex_factors_that_would_lose_bits_make_no_product(rng):
    """Of the least numbers, and of the largest: entries are then summed one by one. Real ones lose none."""
    usable(units.PACKED)
    a, c = rng.standard_normal((5, 6)) + 1j, rng.standard_normal((5, 4)) + 1j
    for size in (2.0**-1060, 2.0**1020):
        b = rng.standard_normal((6, 4)) * size * (1.0 + 1.0j)
        for alpha, lost in ((1.1e3 if size > 1 else 0.3, False), ((1.1e3 if size > 1 else 0.3) * (1.0 + 1.0j), True)):
            work = dataclasses.replace(job("complex128", 6), epilogue=Epilogue(alpha, 0.7, c))
            found = Sum.of(c, everything(c)[0], work)
            assert found.factors is not None and (found.operands(a, b, np.inf) is None) == lost
    assert found.operands(a, b / size, np.inf) is not None and found.operands(a, b / size, 8.0) is None


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("cut", [np.triu, np.tril])
def test_parts_of_a_structured_product_are_correctly_rounded(cut, dtype, seed, monkeypatch):
    monkeypatch.setattr(structure, "LEAST_ROWS", 8)
    a, b = (cut(x) for x in HOSTILE["wide_rows_and_columns"](40, 40, 40, seed, dtype))
    wanted = exact_product(a, b).rounded(dtype)
    counted = []
    of = escalation.Block.of
    monkeypatch.setattr(escalation.Block, "of", staticmethod(lambda *given: counted.append(1) or of(*given)))
    for way in ("planned", 30, -12, Expansion(3)):
        with monkeypatch.context() as patch:
            forced(way, patch)
            out, outcome = np.full(wanted.shape, 7, dtype), Outcome()
            for entries in everything(out):
                inside = np.flatnonzero(cut(np.ones(out.shape)).reshape(-1))
                counted.clear()
                repair.repair(a, b, out, entries.keep(inside), job(dtype, 40), outcome)
                assert len(counted) >= 3
            assert_same_bits(out, np.where(cut(np.ones(out.shape)) != 0, wanted, out.dtype.type(7)))


def test_only_listed_entries_are_touched_and_engines_without_bytes_leave_them(rng, seed, monkeypatch):
    a, b = HOSTILE["graded"](40, 60, 50, seed)
    wanted = exact_product(a, b).rounded("float64")
    listed = np.flatnonzero(rng.random(2000) < 0.3)
    entries = Entries(0, listed // 50, listed % 50)
    touched = np.zeros(wanted.shape, bool)
    touched[entries.place] = True
    for engine in (*ENGINES.values(), FLOAT64):
        if not engine.prove().usable:
            continue
        with monkeypatch.context() as patch:
            forced(49, patch)
            patch.setattr(escalation, "choose", lambda _, engine=engine: engine)
            out, outcome = np.full(wanted.shape, 7.0), Outcome()
            repair.repair(a, b, out, entries, job("float64", 60), outcome)
        assert_same_bits(out, np.where(touched, wanted, 7.0))
        assert ("more moduli" in outcome.paths) == (engine.name in ("cpu:amx", "cpu:vnni", "cpu:avx2", "cpu:int8"))


def test_a_sample_knows_how_far_entries_are_from_another_rounding(rng):
    """Ties and zeros are at no distance, near ties as far as what decides them, others up to half an ulp."""
    k = 8
    a, b = np.zeros((6, k)), np.ones((k, 1))
    a[0, :2] = 2.0**53 + 2.0, 0.5
    a[1, :2] = 2.0**53, 1.0  # a tie
    a[2, :3] = 2.0**53, 1.0, 2.0**-600
    a[3, :2] = 1.5, -1.5
    a[4, :2] = 2.0**-1074, 2.0**-1073
    a[5, :3] = 2.0**1023, 2.0**1023, -(2.0**969)  # next to the threshold of overflow
    block = Block.of(a, b, everything(np.empty((6, 1)))[0])
    sample = EntrySample.of(block, job("float64", k))
    wanted = [0.5, 0.0, 2.0**-600, 0.0, 0.5 * 2.0**-1000, 2.0**969]
    assert sample.distance.tolist() == np.ldexp(wanted, sample.scale - np.array([0, 0, 0, 0, 74, 0])).tolist()


@packed
def test_near_ties_of_far_terms_are_settled_by_corrections(engine, seed):
    """Terms as low as 2^-600 decide; few of the rows and columns are exact in any system."""
    usable(engine)
    a, b = HOSTILE["near_ties"](60, 40, 50, seed)
    block = Block.of(a, b, everything(a @ b)[0])
    found = []
    for corrected in (False, True):
        choice = shared_bits(24, block.k, int(block.rows.bits.max()), int(block.columns.bits.max()))
        way = dataclasses.replace(choice, corrected=corrected)
        value, failed = block.multiply(way, np.dtype(float), job("float64", 40), engine)
        assert_same_bits(np.where(failed, 0, value), np.where(failed, 0, exact_product(a, b).rounded("float64")))
        found.append(failed.mean())
    assert found[0] > 0.5 and found[1] < 0.05, found


@pytest.mark.parametrize(("of_a", "of_b", "alpha"), [(-1074, 114, 2.0**860), (-1100, 520, 2.0**440), (960, -960, 0.7)])
def test_products_in_float64_keep_away_from_its_ends(of_a, of_b, alpha, rng, seed):
    """Elements whose norms would underflow, or nearly overflow; alpha brings sums back to float32."""
    m, k, n = 60, 40, 70
    a = np.ldexp(rng.integers(-(2**20), 2**20, (m, k)).astype(float), max(of_a, -1074))
    b = np.ldexp(np.rint(np.ldexp(rng.uniform(0.5, 1.5, (k, n)), 53)) * rng.choice([-1, 1], (k, n)), of_b)
    b[:, :2] = 0.0
    c = -exact_gemm(alpha, a, b).rounded("float32")
    c[rng.random((m, n)) > 0.05] *= np.float32(0.37)
    wanted = exact_gemm(alpha, a, b, 1.0, c).rounded("float32")
    given = {"alpha": alpha, "beta": 1.0, "out_dtype": "float32", "accuracy": "correctly-rounded"}
    for scheme in (None, "residues:8", "native"):
        assert_same_bits(prismm.gemm(a, b, c, scheme=scheme, **given), wanted)


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_panels_of_a_product_in_float64(memory, seed):
    a, b = HOSTILE["phi2"](700, 20, 30, seed, "float32")
    wanted = exact_product(a, b).rounded("float32")
    block = Block.of(a, b, everything(wanted)[0])
    for workers in (1, 3):
        value, failed = block.multiply(InFloat64(), wanted.dtype, job("float32", 20, workers, memory), None)
        assert_same_bits(np.where(failed, 0, value), np.where(failed, 0, wanted))
        assert failed.mean() < 0.01


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("exponent", [60, 75, 90])
def test_nothing_of_a_product_breaks_ties_if_alpha_is_zero(exponent, sign, monkeypatch):
    usable(units.PACKED)
    a, b = np.array([[sign * 2.0**exponent, sign * 2.0**-80]]), np.array([[1.0], [2.0**-80]])
    for value in (1 + 2.0**-52, 1 + 3 * 2.0**-52):
        c = np.array([[value]])
        with monkeypatch.context() as patch:
            forced(49, patch)
            out = np.full((1, 1), 7.0)
            work = dataclasses.replace(job("float64", 2), epilogue=Epilogue(0.0, 1.5, c))
            repair.repair(a, b, out, everything(out)[0], work, Outcome())
        assert_same_bits(out, exact_gemm(0.0, a, b, 1.5, c).rounded("float64"))
