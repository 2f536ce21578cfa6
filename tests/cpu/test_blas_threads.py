"""Threads of BLAS libraries keep the state in which they were started: none makes a product that it would spoil."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch

import prismm
from prismm.cpu.blas_threads import _by_torch, _right

N = 96
UPWARDS = 0x800
on_x86_linux = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or not sys.platform.startswith("linux"),
    reason="the codes of fesetround are those of x86",
)


def multiplies_flushed(product: Any) -> Any:
    def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        torch.set_flush_denormal(True)
        try:
            c = product(a, b)
        finally:
            torch.set_flush_denormal(False)
        return c

    return multiply


def rounds_upwards(product: Any) -> Any:
    def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        libc = ctypes.CDLL(None)
        libc.fesetround(UPWARDS)
        try:
            c = product(a, b)
        finally:
            libc.fesetround(0)
        return c

    return multiply


@on_x86_linux
@pytest.mark.parametrize("product", [np.matmul, _by_torch])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_probe_notices_a_spoilt_share(product, threads):
    assert _right(product, threads)
    assert not _right(multiplies_flushed(product), threads)
    assert not _right(rounds_upwards(product), threads)


@on_x86_linux
@pytest.mark.parametrize("spoil", [multiplies_flushed, rounds_upwards])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_threads_of_torch_that_were_started_in_another_state(spoil, dtype):
    """The state is the default again when prismm is called; OpenMP's threads of this new thread keep the other one."""
    smallest = torch.finfo(dtype).tiny
    # Flushed to 0, or rounded up from 1 + u/2.
    a = torch.eye(N, dtype=dtype) * smallest
    b = torch.full((N, N), 0.5, dtype=dtype)
    x, y = torch.zeros(2, N, N, dtype=dtype)
    x[:, :2] = y[0] = 1.0
    y[1] = torch.finfo(dtype).eps / 4
    half, one = a.numpy()[0, 0] * b.numpy(), np.ones((N, N), b.numpy().dtype)
    assert half.all()
    large = torch.ones(300, 300)
    found: dict[str, Any] = {}

    def calls() -> None:
        torch.set_num_threads(2)
        spoil(torch.mm)(large, large)  # which starts the threads
        found["torch"] = torch.mm(a, b).numpy()
        found["default"] = prismm.matmul(a, b), prismm.matmul(x, y)
        found["gemm"] = prismm.gemm(a, b, a * 0, beta=1.0), prismm.gemm(x, y, a * 0, beta=1.0)
        found["batch"] = prismm.matmul(a[None], b[None])[0], prismm.matmul(x[None], y[None])[0]
        found["Native"] = tuple(prismm.matmul(p, q, scheme=prismm.Native()) for p, q in ((a, b), (x, y)))
        found["small"] = prismm.matmul(a[:64, :64], b[:64, :64]), prismm.matmul(x[:64, :64], y[:64, :64])
        found["tolerance"] = prismm.matmul(a, b, accuracy=1e-3), prismm.matmul(x, y, accuracy=1e-3)
        found["correct"] = tuple(prismm.matmul(p, q, accuracy="correctly-rounded") for p, q in ((a, b), (x, y)))

    threads = torch.get_num_threads()
    try:
        worker = threading.Thread(target=calls)
        worker.start()
        worker.join()
    finally:
        torch.set_num_threads(threads)
    del found["torch"]
    assert len(found) == 7
    for name, (low, high) in found.items():
        np.testing.assert_array_equal(
            low.numpy().view(f"i{low.element_size()}"),
            half[: len(low), : len(low)].view(f"i{low.element_size()}"),
            name,
        )
        np.testing.assert_array_equal(high.numpy(), one[: len(high), : len(high)], name)


IMPORTED = """
import ctypes, sys
libm = ctypes.CDLL("libm.so.6")
if sys.argv[1] == "flushed":
    state = (ctypes.c_uint32 * 8)()
    libm.fegetenv(state)
    state[7] |= 0x8040
    libm.fesetenv(state)
elif sys.argv[1] == "upwards":
    libm.fesetround(0x800)
import numpy as np
libm.fesetenv(ctypes.c_void_p(-1))
import prismm
a, b = np.full((96, 96), 2.0**-1022), 0.5 * np.eye(96)
for call in (
    lambda: prismm.matmul(a, b),
    lambda: prismm.matmul(a, b, accuracy="correctly-rounded"),
    lambda: prismm.gemm(a, b),
    lambda: prismm.matmul(a, b, scheme=prismm.Native()),
    lambda: prismm.matmul(a, prismm.prepare(b)),
    lambda: prismm.prepare(b),
    lambda: print(prismm.explain(a, b), file=sys.stderr),
):
    try:
        c = call()
        print(c is None or isinstance(c, prismm.core.prepared.Prepared) or bool((c == 2.0**-1023).all()))
    except prismm.errors.EngineError as error:
        print(error)
"""


@pytest.mark.slow
@on_x86_linux
@pytest.mark.parametrize("state", ["flushed", "upwards", "quiet"])
def test_numpy_that_was_imported_in_another_state(state):
    variables = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    code = [sys.executable, "-c", IMPORTED, state]
    lines = subprocess.run(code, check=True, capture_output=True, text=True, env=variables).stdout.splitlines()
    assert len(lines) == 7
    if state == "quiet" or os.cpu_count() == 1:  # BLAS has no other threads there
        assert lines == ["True"] * 7
        return
    for line in lines:
        assert "threads of NumPy's BLAS flush subnormal" in line and "import NumPy before what changes that" in line
