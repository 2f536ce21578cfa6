"""Many Python threads at once, forked children, and two processes that compile into one empty cache."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from judge import CORRECT, assert_same_bits, usable_engines

import prismm
from prismm.testing import HOSTILE

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
CALLS = [CORRECT, {"reproducible": True}, {"scheme": prismm.Residues(11)}, {"accuracy": 1e-14, "reproducible": True}]


def test_eight_threads_at_once_give_the_sequential_bits(seed):
    """Of all engines, types, prepared operands and native products, on pools of one, two and three workers."""
    jobs = []
    for i, engine in enumerate(usable_engines()):
        for j, dtype in enumerate(("float64", "float32", "complex128")):
            a, b = HOSTILE["phi2"](48, 70, 50, seed + 10 * i + j, dtype)
            for x, keywords in enumerate(CALLS):
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


@needs_fork
@pytest.mark.parametrize("busy", [False, True])
def test_a_forked_child_gives_the_same_bits(busy):
    """After the parent used every engine, its pools and torch's native product; also while threads of it multiply."""
    program = FORK.replace("ENGINES", repr(usable_engines())).replace("BUSY", repr(busy))
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=180, check=False
    )
    assert ran.stdout.strip() == "child 0 parent True", (ran.stdout, ran.stderr)


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


PRODUCT = """
import sys, time
import numpy as np
rng = np.random.default_rng(7)
a, b = rng.standard_normal((48, 40)), rng.standard_normal((40, 44))
import prismm
start = time.perf_counter()
c = prismm.matmul(a, b, accuracy="correctly-rounded")
print(c.tobytes().hex(), time.perf_counter() - start)
"""


def start_product(cache: Path | str, **environment: str) -> subprocess.Popen[str]:
    """A process of its own that multiplies once, with its kernels in `cache`."""
    variables = {**os.environ, "PRISMM_CACHE_DIR": str(cache), **environment}
    return subprocess.Popen(
        [sys.executable, "-c", PRODUCT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, float, str]:
    """(bits of the product, seconds it took, stderr)."""
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    bits, seconds = out.split()
    return bits, float(seconds), err


@pytest.fixture
def right_bits() -> str:
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((48, 40)), rng.standard_normal((40, 44))
    return prismm.matmul(a, b, **CORRECT).tobytes().hex()


@pytest.mark.slow
def test_two_processes_that_compile_into_one_empty_cache(tmp_path, right_bits):
    """Both are right, each says one line; a third finds the kernels on disk, is quick and silent."""
    cache = tmp_path / "cache"
    begin = time.perf_counter()
    both = [start_product(cache), start_product(cache)]
    for process in both:
        bits, seconds, err = finish(process)
        assert bits == right_bits
        assert err.startswith("prismm: compiling kernels") and err.count("\n") == 1, err
        assert seconds < 60  # alone on an idle machine about 13
    cold = time.perf_counter() - begin
    assert list(cache.rglob("*.nbc"))
    bits, seconds, err = finish(start_product(cache))
    assert (bits, err) == (right_bits, "")
    assert seconds < max(3.0, cold / 4)


@pytest.mark.slow
def test_a_cache_that_cannot_be_written(tmp_path, right_bits):
    """A path below a regular file, as root may write to any directory; the kernels then live in memory."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    bits, seconds, err = finish(start_product(blocked / "cache"))
    assert bits == right_bits
    assert err.startswith("prismm: compiling kernels") and err.count("\n") == 1, err
    assert seconds < 60
    assert blocked.read_text() == ""


@pytest.mark.slow
def test_kernels_are_read_from_a_folder_that_became_read_only(tmp_path, right_bits):
    """A read-only install: whatever is on disk is used, nothing is written, nothing fails."""
    if os.geteuid() == 0:
        pytest.skip("root writes to read-only folders")
    cache = tmp_path / "cache"
    finish(start_product(cache))
    folders = [cache, *(path for path in cache.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        bits, seconds, err = finish(start_product(cache))
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert (bits, err) == (right_bits, "")
    assert seconds < 10


FORKED = """
import os, sys, threading, time, numpy as np, prismm
x = np.random.default_rng(0).standard_normal((300, 300))
thread = threading.Thread(target=lambda: prismm.matmul(x, x, reproducible=True))
thread.start()
time.sleep(3.0)  # amid the compilation
child = os.fork()
if child == 0:
    threading.Timer(80, os._exit, (3,)).start()
    prismm.matmul(x, x, reproducible=True)
    os._exit(0)
status = os.waitpid(child, 0)[1]
thread.join()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_while_another_thread_compiles(tmp_path):
    """The child would find the compiler's locks taken for good."""
    environment = {**os.environ, "PRISMM_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, (run.returncode, run.stderr[-2000:])
