"""Kernels free all memory that they allocate, although most of their helpers count no references (`jit.device`)."""

from collections.abc import Iterator

import numpy as np
import pytest
from numba.core.runtime import _nrt_python, rtsys

import prismm
from prismm.cpu.engines.integer import available
from prismm.schemes.residues import Residues
from prismm.testing import HOSTILE

GIVEN = [{"reproducible": True}, {"accuracy": "correctly-rounded"}, {"scheme": Residues(9)}]


@pytest.fixture
def counting() -> Iterator[None]:
    """Have Numba count what it allocates and frees."""
    _nrt_python.memsys_enable_stats()
    yield
    _nrt_python.memsys_disable_stats()


def held() -> tuple[int, int]:
    """How many blocks of memory, and how many owners of such, Numba has allocated and not freed."""
    found = rtsys.get_allocation_stats()
    return found.alloc - found.free, found.mi_alloc - found.mi_free


def products(engine: str) -> None:
    """Make products by kernels of all kinds, of the same operands in each call."""
    rng = np.random.default_rng(7)
    a, b, c = rng.standard_normal((70, 90)), rng.standard_normal((90, 130)), rng.standard_normal((70, 130))
    for kind in ("float64", "float32", "complex128"):
        x, y, z = (each.astype(kind) for each in (a, b, c))
        for given in GIVEN:
            prismm.matmul(x, y, engine=engine, threads=2, **given)
            prismm.gemm(x, y, z, alpha=1.5, beta=0.5, engine=engine, threads=2, **given)
    for family in ("wide_rows_and_columns", "phi4", "cancelling", "subnormal_results"):
        prismm.matmul(*HOSTILE[family](40, 50, 60, 3, "float64"), accuracy="correctly-rounded", engine=engine)


@pytest.mark.parametrize("engine", ["cpu:amx", "cpu:vnni", "cpu:avx2", "cpu:int8", "cpu:float64", "cpu:direct"])
def test_products_leave_no_memory_behind(engine, counting):
    usable, reason = available()[engine]
    if not usable:
        pytest.skip(reason)
    products(engine)
    before = held()
    products(engine)
    assert held() == before


@pytest.mark.parametrize("shape", [(3, 4), (9, 3, 4), (300, 4, 4)])
def test_tiny_products_leave_no_memory_behind(shape, counting, rng):
    x = rng.standard_normal(shape)
    found = []
    for _ in range(3):
        for given in GIVEN:
            prismm.matmul(x, x.swapaxes(-1, -2), **given)
        found.append(held())
    assert found[1] == found[2]
