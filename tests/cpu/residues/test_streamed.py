"""The packed engines' order of work: the same bits however rows and columns are cut, and what it counts."""

import threading

import numpy as np
import pytest

import prismm
from prismm.core.outcome import Job
from prismm.cpu.engines.integer import AMX, INT8, VNNI, available
from prismm.cpu.kernels import vnni
from prismm.cpu.residues import streamed
from prismm.cpu.residues.multiply import multiply
from prismm.cpu.residues.product import Product
from prismm.cpu.residues.split import Splitter
from prismm.formats import format_of
from prismm.schemes.residues import Residues
from tests.cpu import units
from tests.judge import assert_same_bits

pytestmark = pytest.mark.skipif(not vnni.supported(), reason="neither VNNI nor AVX2")

PACKED = [engine for engine in (units.PACKED, AMX) if available()[engine.name][0]]
"""The packed engines of this machine."""


def job(dtype, workers, memory):
    return Job(format_of(dtype), None, 1, a_priori=True, workers=workers, workspace_bytes=memory)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("memory", [0, 1 << 22, 1 << 30])
def test_however_it_is_cut(dtype, workers, memory, rng):
    """Little memory takes rows in turns, and splits the right operand once for each."""
    a, b = rng.standard_normal((500, 70)), rng.standard_normal((70, 450))
    if dtype == "complex128":
        a, b = a + 1j * rng.standard_normal(a.shape), b + 1j * rng.standard_normal(b.shape)
    a, b = a.astype(dtype), b.astype(dtype)
    results = []
    for engine in (*PACKED, INT8):
        out = np.empty((500, 450), dtype)
        outcome = multiply(Residues(9), a, b, out, job(dtype, workers, memory), engine)
        results.append(out)
        if engine in PACKED:
            splitter = Splitter(9, engine, 70, dtype == "complex128")
            block = streamed.block_columns(450, splitter, workers)
            turns = -(-500 // streamed.rows_per_pass(500, splitter, workers, memory, block))
            assert outcome.split_left == a.size and outcome.split_right == turns * b.size
            assert memory or turns > 1
    for other in results[1:]:
        assert_same_bits(results[0], other)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_a_tall_operand_is_joined_in_panels(dtype, rng, monkeypatch):
    """However many rows there are, what a call holds per entry stays small; the bits do not change."""
    assert streamed.PANEL_ROWS % vnni.TILE_ROWS == 0
    monkeypatch.setattr(streamed, "PANEL_ROWS", 2 * vnni.TILE_ROWS)
    largest = []
    tile = Product.tile

    def noted(self, residues, block, rows, columns, place, *rest):
        largest.append(place[1] - place[0])
        assert rows.shift.size == place[1] - place[0]
        tile(self, residues, block, rows, columns, place, *rest)

    monkeypatch.setattr(Product, "tile", noted)
    a, b = rng.standard_normal((500, 30)) * np.exp2(rng.integers(-40, 40, (500, 1))), rng.standard_normal((30, 140))
    a, b = (a + 1j * a[::-1]).astype(dtype) if dtype == "complex64" else a, b.astype(dtype)
    c = rng.standard_normal((500, 140)).astype(dtype)
    for target in (None, "correctly-rounded"):
        given = {"scheme": Residues(10), "accuracy": target, "alpha": 1.5, "beta": -1.0, "threads": 2}
        expected = prismm.gemm(a, b, c, engine="cpu:int8", **given)
        for engine in PACKED:
            assert_same_bits(prismm.gemm(a, b, c, engine=engine.name, **given), expected)
    assert largest.count(2 * vnni.TILE_ROWS) >= 10


@pytest.mark.parametrize("shape", [(3, 40, 700), (700, 40, 3), (1, 9, 1000), (90, 40, 129), (2000, 5, 130)])
def test_every_shape(shape, rng):
    m, k, n = shape
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    expected = prismm.matmul(a, b, scheme=Residues(12), engine="cpu:int8")
    for engine in PACKED:
        assert_same_bits(prismm.matmul(a, b, scheme=Residues(12), engine=engine.name), expected)


@pytest.mark.parametrize(("m", "workers"), [(66, 2), (67, 2), (74, 2), (100, 3), (131, 4)])
def test_panels_of_a_split_operand_leave_room_for_whole_steps(m, workers, rng, monkeypatch):
    """Kernels read rows by four or sixteen: a panel cut from a whole operand must not make them read past its end."""
    seen = []
    columns = Product._columns

    def noted(self, a, right, out, first_column, left):
        seen.extend((i0, i1, m) for i0, i1, _ in left.panels)
        return columns(self, a, right, out, first_column, left)

    monkeypatch.setattr(Product, "_columns", noted)
    a, b = rng.standard_normal((m, 20)), rng.standard_normal((20, 40))
    results = []
    for engine in (*PACKED, INT8):
        seen.clear()
        out = np.empty((m, 40))
        multiply(Residues(9), a, b, out, job("float64", workers, 1 << 30), engine)
        results.append(out)
        if engine in PACKED:
            step = engine.row_step
            assert 1 < len(seen) <= workers
            assert all(i0 + -(-(i1 - i0) // step) * step <= -(-m // step) * step for i0, i1, _ in seen), seen
    for other in results[1:]:
        assert_same_bits(results[0], other)


def test_blocks_are_even_and_fit():
    assert VNNI.columns_at_a_time == vnni.TILE_COLUMNS
    for n in (64, 129, 1000, 5000):
        for k in (1, 300, 20000):
            for workers in (1, 2, 7):
                splitter = Splitter(15, VNNI, k, False)
                block = streamed.block_columns(n, splitter, workers)
                assert block % 32 == 0 and block >= 32
                assert block <= 96 or block * k * 15 <= streamed.PANEL_BYTES + 32 * k * 15
                lower = streamed.block_columns(n, splitter, workers, lower=True)
                assert lower % 32 == 0 and 32 <= lower <= min(block + 31, VNNI.columns_at_a_time)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_error_in_a_split_comes_out(which, rng, monkeypatch):
    """Who waits for the left operand must not wait for ever, or fail in its own way."""
    calls = []
    split = streamed.split_operand

    def failing(x, *rest, left, **more):
        calls.append(left)
        if (left and calls.count(True) == which + 1) or (which == 2 and not left):
            raise MemoryError("no room")
        return split(x, *rest, left=left, **more)

    monkeypatch.setattr(streamed, "split_operand", failing)
    a, b = rng.standard_normal((300, 40)), rng.standard_normal((40, 300))
    with pytest.raises(MemoryError, match="no room"):
        prismm.matmul(a, b, scheme=Residues(9), engine=units.PACKED.name, threads=2)
    monkeypatch.undo()
    assert_same_bits(*(prismm.matmul(a, b, scheme=Residues(9), engine=e) for e in (units.PACKED.name, "cpu:int8")))


def test_an_interrupt_before_a_split_ends_the_wait(rng, monkeypatch):
    """Where the caller is interrupted between tasks, a piece that it has taken is never split."""
    caller, came = threading.get_ident(), threading.Event()
    split = streamed._Rows.split

    def interrupted(self, index):
        if threading.get_ident() == caller:
            came.set()
            raise KeyboardInterrupt
        assert came.wait(30)
        split(self, index)

    monkeypatch.setattr(streamed._Rows, "split", interrupted)
    a, b = rng.standard_normal((300, 40)), rng.standard_normal((40, 300))
    with pytest.raises(KeyboardInterrupt):
        prismm.matmul(a, b, scheme=Residues(9), engine=units.PACKED.name, threads=2)
