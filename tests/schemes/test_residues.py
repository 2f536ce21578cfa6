"""How `Residues` cuts its work: memory that keeps its word, exactness at the engines' limits, many open roundings."""

import math
import threading

import numpy as np
import pytest

import prismm
from prismm.core.moduli import symmetric
from prismm.core.workspace import Workspace
from prismm.cpu.engines.integer import DIRECT, ENGINES, FLOAT64, INT8, INT8_7BIT, available
from prismm.cpu.residues import multiply as residues
from prismm.cpu.residues import product
from prismm.cpu.residues.blocking import tiling
from prismm.cpu.residues.split import Splitter
from prismm.testing import exact_product
from tests.judge import assert_same_bits

engines = pytest.mark.parametrize("engine", [INT8, INT8_7BIT, FLOAT64], ids=lambda e: e.name)


def problem(engine):
    works, reason = available()[engine.name]
    anywhere = not engine.name.startswith(("cpu:amx", "cpu:vnni", "cpu:avx2", "cpu:int8"))
    assert works or not anywhere, f"any machine has {engine.name}: {reason}"
    if not works:
        pytest.skip(reason)


@engines
@pytest.mark.parametrize("is_complex", [False, True])
def test_tiles_fit_the_memory_they_were_given(engine, is_complex, rng):
    for _ in range(300):
        m, n = (int(2 ** rng.uniform(0, 14)) for _ in range(2))
        k = int(2 ** rng.uniform(0, 14))
        workers = int(rng.integers(1, 9))
        splitter = Splitter(int(rng.integers(7, 23)), engine, k, is_complex)
        memory = int(2 ** rng.uniform(20, 36))
        cut = tiling(m, n, splitter, workers, memory)
        assert 1 <= cut.row_panel <= max(m, 1) and 1 <= cut.column_block <= n
        assert cut.column_block <= cut.resident_columns <= n or cut.resident_columns == n
        count = len(splitter.system.moduli) * splitter.residue_parts
        size, sums = (8, 8) if engine is FLOAT64 else (1, 4)
        a_panel = count * cut.row_panel * k * size
        tile = count * cut.row_panel * cut.column_block * sums
        right = count * k * cut.resident_columns * size
        assert cut.bytes == workers * (a_panel + tile) + right
        smallest = (
            workers * count * min(m, 64) * (k * size + cut.column_block * sums) + count * k * cut.column_block * size
        )
        if memory >= 4 * smallest:
            assert cut.bytes <= memory
        larger = tiling(m, n, splitter, workers, 4 * memory)
        assert larger.resident_columns >= cut.resident_columns and larger.row_panel >= cut.row_panel


@engines
@pytest.mark.parametrize("dtype", ["float64", pytest.param("complex128", marks=pytest.mark.slow)])
def test_memory_in_use_is_what_the_tiling_said(engine, dtype, rng, monkeypatch):
    """The arrays lent at one time, counted while a product runs in pieces, and the bits of one single piece."""
    problem(engine)
    lock, live, peak, lent = threading.Lock(), [0], [0], {}

    class Counted(Workspace):
        def empty(self, shape, of):
            size = math.prod(shape) * np.dtype(of).itemsize
            with lock:
                lent[id(self)] = lent.get(id(self), 0) + size
                live[0] += size
                peak[0] = max(peak[0], live[0])
            return super().empty(shape, of)

        def __exit__(self, *error):
            with lock:
                live[0] -= lent.pop(id(self), 0)
            super().__exit__(*error)

    monkeypatch.setattr(product, "Workspace", Counted)
    m, k, n = 150, 60, 1300
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (k, n)))
    splitter = Splitter(9, engine, k, dtype == "complex128")
    memories, peaks, values = (1 << 40, 3 << 20, 1 << 10), [], []
    for memory in memories:
        job = residues_job(dtype, k, memory)
        out = np.empty((m, n), dtype)
        peak[0] = 0
        residues.multiply(prismm.Residues(9), a, b, out, job, engine)
        assert live[0] == 0
        assert 0 < peak[0] <= tiling(m, n, splitter, 2, memory).bytes
        peaks.append(peak[0])
        values.append(out)
    assert peaks[0] > peaks[2]
    assert_same_bits(values[1], values[0])
    assert_same_bits(values[2], values[0])


def residues_job(dtype, k, memory, target=None):
    from prismm.core.outcome import Job
    from prismm.formats import format_of

    terms = 2 * k if np.dtype(dtype).kind == "c" else k
    return Job(format_of(dtype), target, terms, False, 2, memory)


def test_the_direct_engine_needs_no_tiles():
    cut = tiling(5, 7, Splitter(15, DIRECT, 9, False), 2, 1)
    assert (cut.row_panel, cut.column_block, cut.resident_columns) == (5, 7, 7)
    assert cut.bytes >= 8 * 9 * (5 + 7)


def hostile_complex(k, which, rng):
    """Complex vectors whose residues modulo one of the 22-bit moduli are all nearly ±q/2, with D = -E in sign."""
    system = Splitter(8, FLOAT64, k, True).system
    q = system.moduli[which]
    unfold = pow(pow(math.prod(system.moduli) // q, -1, q), -1, q)

    def side(sign, factor):
        low = [symmetric(sign * ((q - 1) // 2 - int(x)) * factor, q) for x in rng.integers(0, 50, k)]
        return np.array(
            [x + q * int(z) * (1 if x >= 0 else -1) for x, z in zip(low, rng.integers(6, 9, k), strict=True)], float
        )

    a = side(1, unfold) + 1j * side(-1, unfold)
    b = side(1, 1) + 1j * side(1, 1)
    return a[None], b[:, None]


@pytest.mark.parametrize("k", [500, 683, 1100, 2047, 2048, 2049])
def test_complex_sums_of_wide_residues_stay_exact(k, rng):
    """D - E and F - D - E of the FP64 engine reach three times what one product may; no digit may be rounded."""
    for which in range(3):
        a, b = hostile_complex(k, which, rng)
        values = [prismm.matmul(a, b, scheme=prismm.Residues(8), engine=name) for name in ("cpu:float64", "cpu:direct")]
        assert_same_bits(values[0], values[1], f"modulus {which}")


@pytest.mark.parametrize("engine", ENGINES)
def test_long_inner_dimensions_keep_the_twins_bits(engine, rng):
    """Beyond one block of every engine but INT8 (whose own is in tests/engines), against the exact product."""
    problem(ENGINES[engine])
    k = 5000
    a = rng.standard_normal((3, k))
    b = rng.standard_normal((k, 2))
    c = prismm.matmul(a, b, scheme=prismm.Residues(18), accuracy="correctly-rounded", engine=engine)
    assert_same_bits(c, exact_product(a, b).rounded())


def test_many_open_roundings_are_settled_by_more_moduli(rng):
    """Too few moduli for correct rounding leave nearly all entries open: one product with more settles them."""
    problem(INT8)
    a, b = rng.standard_normal((160, 640)), rng.standard_normal((640, 160))
    c, report = prismm.matmul(
        a, b, scheme=prismm.Residues(12), accuracy="correctly-rounded", engine="cpu:int8", full_output=True
    )
    assert_same_bits(c, exact_product(a, b).rounded())
    assert report.paths.get("more moduli", 0) > 10_000, report.paths
