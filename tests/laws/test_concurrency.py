"""Many Python threads at once, forked children, and a fork while kernels are compiled."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import prismm
from prismm.testing import HOSTILE
from tests.judge import CORRECT, assert_same_bits, usable_engines

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
CALLS = [CORRECT, {"reproducible": True}, {"scheme": prismm.Residues(11)}, {"accuracy": 1e-14, "reproducible": True}]


@pytest.mark.slow
def test_eight_threads_at_once_give_the_sequential_bits(seed):
    """Of all engines, types, prepared operands and native products, on pools of one, two and three workers."""
    jobs = []
    for i, engine in enumerate(usable_engines()):
        for j, dtype in enumerate(("float64", "float32", "complex128")):
            a, b = HOSTILE["phi2"](48, 70, 50, seed + 10 * i + j, dtype)
            for x, keywords in enumerate(CALLS[(i + j) % 2 :: 2]):
                jobs.append((a, b, {**keywords, "engine": engine, "threads": 1 + (i + j + x) % 3}))
    expected = [prismm.matmul(a, b, **keywords) for a, b, keywords in jobs]
    right = prismm.prepare(jobs[0][1], reproducible=True)
    expected_prepared = prismm.matmul(jobs[0][0], right)
    start = threading.Barrier(8)

    def work(which: int) -> list[np.ndarray]:
        start.wait(60)
        mine = jobs[which:] + jobs[:which]
        found = [prismm.matmul(a, b, **keywords) for a, b, keywords in mine]
        assert_same_bits(prismm.matmul(jobs[0][0], right), expected_prepared)
        prismm.matmul(jobs[0][0], jobs[0][1])
        prismm.matmul(torch.from_numpy(jobs[0][0]), torch.from_numpy(jobs[0][1]))
        return found[len(jobs) - which :] + found[: len(jobs) - which]

    with ThreadPoolExecutor(8) as pool:
        for results in pool.map(work, range(8), timeout=120):
            for got, right_one, (_, _, keywords) in zip(results, expected, jobs, strict=True):
                assert_same_bits(got, right_one, f"{keywords}")


def test_an_error_in_one_thread_harms_no_other(seed):
    a, b = HOSTILE["phi2"](48, 70, 50, seed)
    expected = prismm.matmul(a, b, **CORRECT)

    def work(which: int) -> bool:
        if which % 2:
            with pytest.raises(prismm.errors.PrismmError):
                prismm.matmul(a, b[1:], **CORRECT)
            return True
        return prismm.matmul(a, b, **CORRECT).tobytes() == expected.tobytes()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(32), timeout=60))


FORK = """
import os, signal, sys, threading, time
import numpy as np, torch
import prismm

rng = np.random.default_rng(5)
a, b = rng.standard_normal((90, 300)), rng.standard_normal((300, 80))
x, y = torch.from_numpy(a), torch.from_numpy(b)
torch.set_num_threads(2)
calls = [dict(accuracy="correctly-rounded", engine=e, threads=t) for e in ENGINES for t in (1, 2)]
calls.append(dict(reproducible=True, threads=2))

def all_bits():
    found = [prismm.matmul(a, b, **k).tobytes() for k in calls]
    found.append(prismm.matmul(x, y, accuracy="correctly-rounded").numpy().tobytes())
    native = prismm.matmul(x, y).numpy()
    assert np.abs(native - a @ b).max() < 1e-11
    assert np.abs(prismm.matmul(a, b) - native).max() < 1e-11
    return found

before = all_bits()
if BUSY:
    # Other threads are in the middle of products at the moment of the fork.
    stop = threading.Event()
    def keep_busy():
        while not stop.is_set():
            prismm.matmul(a, b, accuracy="correctly-rounded", threads=2)
    threads = [threading.Thread(target=keep_busy, daemon=True) for _ in range(2)]
    for t in threads:
        t.start()
    time.sleep(0.2)
child = os.fork()
if child == 0:
    try:
        os._exit(0 if all_bits() == before else 3)
    except BaseException as error:
        print("child:", repr(error), file=sys.stderr, flush=True)
        os._exit(4)
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        break
    time.sleep(0.02)
else:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    status = None
if BUSY:
    stop.set()
    for t in threads:
        t.join(30)
after = all_bits()
print("child", "hung" if status is None else os.waitstatus_to_exitcode(status), "parent", after == before)
"""


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("busy", [False, True])
def test_a_forked_child_gives_the_same_bits(busy):
    """After the parent used every engine, its pools and torch's native product; also while threads of it multiply."""
    program = FORK.replace("ENGINES", repr(usable_engines())).replace("BUSY", repr(busy))
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=180, check=False
    )
    assert ran.stdout.strip() == "child 0 parent True", (ran.stdout, ran.stderr)


@pytest.mark.slow
@needs_fork
def test_a_forked_child_of_an_unused_library_works(seed):
    """Nothing was called before the fork: pools, proofs and kernels come to life in the child."""
    program = """
import os, sys
import numpy as np, prismm
prismm.matmul
child = os.fork()
if child == 0:
    c = prismm.matmul(np.eye(70), np.ones((70, 60)), accuracy="correctly-rounded", threads=2)
    os._exit(0 if (c == 1).all() else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.stdout.strip() == "0", ran


FORKED = """
import os, sys, threading
from prismm.core import jit

@jit.kernel("int64(int64)")
def square(x):
    return x * x

@jit.kernel("int64(int64)")
def cube(x):
    return x * x * x

thread = threading.Thread(target=square.compile)
thread.start()
while jit._COMPILE_LOCK.acquire(blocking=False):  # until the thread has it
    jit._COMPILE_LOCK.release()
child = os.fork()
if child == 0:
    threading.Timer(60, os._exit, (3,)).start()
    os._exit(0 if (square(-3), cube(-3)) == (9, -27) else 4)
status = os.waitpid(child, 0)[1]
thread.join()
assert (square(5), cube(5)) == (25, 125)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@needs_fork
@pytest.mark.slow
def test_a_fork_while_another_thread_compiles(tmp_path):
    """The child would find the compiler's locks taken for good: it would wait for the kernel that the thread compiles,
    and for every other one.
    """
    environment = {**os.environ, "PRISMM_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, (run.returncode, run.stderr[-2000:])
