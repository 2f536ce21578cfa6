"""Many uncertified entries: whatever system of moduli multiplies their rows and columns again, what it settles is
RN(exact), and every path gives the same bits.
"""

import dataclasses

import numpy as np
import pytest

from prismm.core.accuracy import Target
from prismm.core.many_moduli import MOST_MODULI, room
from prismm.core.outcome import Job, Outcome, real_parts
from prismm.cpu import escalation, many_product, repair
from prismm.cpu.engines.integer import ENGINES, FLOAT64, INT8, VNNI
from prismm.cpu.escalation import Block, shared_bits
from prismm.cpu.repair import Entries
from prismm.formats import format_of
from prismm.testing import HOSTILE, exact_product
from tests.judge import assert_same_bits

RIGHT = Target("correctly-rounded")
DTYPES = ["float64", "float32", "complex128", "complex64"]
engines = pytest.mark.parametrize("engine", [VNNI, INT8], ids=lambda e: e.name)


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
        for moduli in (6, 14, 22, 31, 40, MOST_MODULI):
            choice = shared_bits(moduli, block.k, rows, columns)
            assert choice.left + choice.right + (block.k - 1).bit_length() <= room(moduli)
            system = many_product.System.of(choice.moduli, choice.left, choice.right)
            value, failed = many_product.multiply(
                block.left, block.right, block.rows, block.columns, system, target.dtype, job(dtype, k), engine
            )
            assert_same_bits(np.where(failed, 0, value), np.where(failed, 0, target))
            exact = (block.rows.bits <= choice.left)[:, None] & (block.columns.bits <= choice.right)[None, :]
            assert not (failed & exact).any()


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
            engine,
        )
        for given in ((1, 1 << 30), (2, 1 << 30), (3, 1 << 20))
    ]  # fmt: skip
    for value, failed in found[1:]:
        assert_same_bits(value, found[0][0])
        assert np.array_equal(failed, found[0][1])
    assert 0 < found[0][1].mean() < 1


def test_sums_of_the_largest_numbers_fit():
    """Rows and columns of nothing but 2^bits - 1, the most that `shared_bits` lets in."""
    usable(VNNI)
    for k in (1, 2, 64, 100):
        a, b = np.full((3, k), 2.0**53 - 1), np.full((k, 40), 2.0**53 - 1)
        a[1], b[:, 1] = -a[1], -b[:, 1]
        block = Block.of(a, b, everything(a @ b)[0])
        least = next(m for m in range(2, 49) if room(m) >= 106 + (k - 1).bit_length())
        choice = shared_bits(least, k, 53, 53)
        assert (choice.left, choice.right) == (53, 53)
        system = many_product.System.of(least, 53, 53)
        value, failed = many_product.multiply(
            block.left, block.right, block.rows, block.columns, system, np.dtype(float), job("float64", k), VNNI
        )
        assert not failed.any()
        assert_same_bits(value, exact_product(a, b).rounded("float64"))


def forced(way, monkeypatch):
    """Make `repair` take one way for all it can."""
    monkeypatch.setattr(escalation, "FEW_SECONDS", 0.0)
    chosen = escalation.Block.choose

    def choose(self, entries, job, engine):
        if way == "planned":
            return chosen(self, entries, job, engine)
        if way in ("double-double", "exact"):
            return None, way == "double-double"
        rows, columns = int(self.rows.bits.max()), int(self.columns.bits.max())
        return dataclasses.replace(shared_bits(int(way), self.k, rows, columns), share=1.0), False

    monkeypatch.setattr(escalation.Block, "choose", choose)


@pytest.mark.covering("name")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HOSTILE)
def test_every_way_gives_the_same_bits(name, dtype, seed, monkeypatch):
    usable(VNNI)
    a, b = HOSTILE[name](19, 41, 23, seed, dtype)
    wanted = exact_product(a, b).rounded(dtype)
    for way in ("planned", "double-double", "exact", "20", "33", "49"):
        with monkeypatch.context() as patch:
            forced(way, patch)
            out, outcome = np.full(wanted.shape, 7, dtype), Outcome()
            for entries in everything(out):
                repair.repair(a, b, out, entries, job(dtype, 41), outcome)
            assert_same_bits(out, wanted)
            assert sum(outcome.paths.values()) == out.size * len(real_parts(out))
            if way.isdigit():
                assert "double-double" not in outcome.paths


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
            forced("49", patch)
            patch.setattr(escalation, "choose", lambda _, engine=engine: engine)
            out, outcome = np.full(wanted.shape, 7.0), Outcome()
            repair.repair(a, b, out, entries, job("float64", 60), outcome)
        assert_same_bits(out, np.where(touched, wanted, 7.0))
        assert ("more moduli" in outcome.paths) == (engine.name in ("cpu:vnni", "cpu:int8"))
