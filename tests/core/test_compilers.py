"""What Numba makes of helpers and of kernels."""

import gc

import numpy as np
import pytest
from numba.core.errors import NumbaError

from prismm.core import jit
from prismm.core.compilers import HelperCompiler


@jit.device
def _square(x):
    return x * x


@jit.device
def _sum_of_squares(x):
    total = 0.0
    for i in range(x.size):
        total += _square(x[i])
    return total


@pytest.fixture
def norm():
    def norm2(x):
        return _sum_of_squares(x)

    return jit.Kernel(norm2, "float64(float64[::1])", set())


def test_kernels_take_helpers_in(norm, tmp_path, monkeypatch):
    monkeypatch.setattr(jit, "cache_folder", lambda: tmp_path)
    assert norm(np.arange(5.0)) == 30.0
    compiled = norm.compile()
    (library,) = (one.library for one in compiled.overloads.values())
    names = [f.name for f in library.get_defined_functions()]
    assert any("norm2" in name and "cpython" in name for name in names)
    assert not any("cfunc" in name for name in names), "nobody calls a kernel from C"
    assert not any("_square" in name and "cpython" in name for name in names)


def test_helpers_have_no_code_of_their_own(norm, tmp_path, monkeypatch):
    monkeypatch.setattr(jit, "cache_folder", lambda: tmp_path)
    norm.compile()
    assert _square._compiler.pipeline_class is HelperCompiler
    (found,) = (one for one in _sum_of_squares.overloads.values())
    assert found.library.get_pointer_to_function(found.fndesc.llvm_func_name) == 0
    with pytest.raises(KeyError, match="pop from an empty set"):
        found.entry_point()


@jit.counting
def _zeros(n):
    return np.zeros(n)


@jit.device
def _first_of_zeros(n):
    return _zeros(n)[0]


@jit.device
def _first_of_own(n):
    return np.zeros(n)[0]


@pytest.mark.parametrize("helper", [_first_of_zeros, _first_of_own])
def test_a_helper_that_counts_no_references_gets_none(helper, tmp_path, monkeypatch):
    """It would never free what it made, or what another made for it."""
    monkeypatch.setattr(jit, "cache_folder", lambda: tmp_path)

    def caller(n):
        return helper(n)

    caller.__qualname__ = f"caller_of{helper.__name__}"
    with pytest.raises(NumbaError, match=r"counts no references|array passed into the function"):
        jit.Kernel(caller, "float64(int64)", set())(3)


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_again_afterwards(collects, norm, tmp_path, monkeypatch):
    monkeypatch.setattr(jit, "cache_folder", lambda: tmp_path)
    try:
        (gc.enable if collects else gc.disable)()
        norm.compile()
        assert gc.isenabled() == collects
    finally:
        gc.enable()
