"""Workers: errors, nesting, forks, and OpenMP limits that stay their own."""

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import prismm
from prismm.core import threads as pool
from prismm.errors import ArgumentError


def test_results_come_in_order_from_as_many_threads():
    barrier = threading.Barrier(3, timeout=30)

    def task(index):
        barrier.wait()  # passes only if three run at once
        return index, threading.get_ident()

    results = pool.run(task, 3)
    assert [index for index, _ in results] == [0, 1, 2]
    assert len({ident for _, ident in results}) == 3
    assert threading.get_ident() not in {ident for _, ident in results}


def test_the_first_error_comes_out_after_all_have_ended():
    ended = threading.Event()
    started = threading.Event()

    def task(index):
        if index == 0:
            started.wait(30)
            raise KeyError("first")
        started.set()
        ended.wait(0.2)
        ended.set()
        raise ValueError("second")

    with pytest.raises(KeyError, match="first"):
        pool.run(task, 2)
    assert ended.is_set(), "an error came out while another worker was still writing"
    assert pool.run(lambda i: i, 2) == [0, 1], "the pool survives"


def test_spread_hands_out_every_item_once_and_stops_at_an_error():
    seen, lock = [], threading.Lock()

    def task(item):
        with lock:
            seen.append(item)

    pool.spread(task, list(range(100)), 3)
    assert sorted(seen) == list(range(100))
    pool.spread(task, [], 3)
    assert len(seen) == 100

    def fails(item):
        if item == 5:
            raise OSError("item 5")

    with pytest.raises(OSError, match="item 5"):
        pool.spread(fails, list(range(10)), 2)


def test_nested_calls_run_in_place():
    def outer(_):
        assert pool.in_worker()
        me = threading.get_ident()
        return [ident == me for ident in pool.run(lambda _: threading.get_ident(), 4)]

    assert not pool.in_worker()
    assert pool.run(outer, 2) == [[True] * 4, [True] * 4]
    with pytest.raises(ZeroDivisionError):
        pool.run(lambda _: pool.run(lambda i: 1 // i, 2), 2)


def test_a_worker_limits_openmp_for_itself_alone():
    import torch
    from threadpoolctl import ThreadpoolController

    def openmp():
        return [lib.num_threads for lib in ThreadpoolController().select(user_api="openmp").lib_controllers]

    before, before_torch = openmp(), torch.get_num_threads()
    assert before, "torch brings an OpenMP runtime"

    def limited(_):
        pool.limit_openmp()
        return openmp(), torch.get_num_threads()

    # Eleven: workers of their own, started when every runtime was there (scikit-learn may have brought another since).
    for counts, of_torch in pool.run(limited, 11):
        assert set(counts) == {1} and of_torch == 1
    assert openmp() == before and torch.get_num_threads() == before_torch


def _workers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("prismm-")]


def _soon(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


def test_workers_that_nobody_needs_end(monkeypatch):
    """All but the usual team, which has one for each processor."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((150, 120)), rng.standard_normal((120, 130))
    expected = prismm.matmul(a, b, reproducible=True)
    usual = pool.worker_count()
    pool.run(lambda i: i, usual)
    monkeypatch.setattr(pool, "_TEAMS", {usual: pool._TEAMS[usual]})
    before = set(_workers())
    monkeypatch.setattr(pool, "_IDLE", 0.1)
    for threads in (usual + 1, usual + 2, 64):
        assert np.array_equal(prismm.matmul(a, b, reproducible=True, threads=threads), expected)
        assert pool.run(lambda i: i, threads) == list(range(threads))
    assert len(_workers()) > 64
    assert _soon(lambda: set(_workers()) <= before)
    assert list(pool._TEAMS) == [usual] and set(_workers()) >= {x for x in before if x.is_alive()}
    for _ in range(2):  # and begin anew
        assert pool.run(lambda i: i * i, 64) == [i * i for i in range(64)]


def test_a_team_may_end_at_any_time(monkeypatch):
    """Callers meet it as it ends: no task is lost, and none is done twice."""
    monkeypatch.setattr(pool, "_TEAMS", {})
    monkeypatch.setattr(pool, "_IDLE", 0.001)
    workers = pool.worker_count() + 1
    done = [0] * 3

    def caller(place):
        rng = np.random.default_rng(place)
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            joining = bool(rng.integers(2))
            assert pool.run(lambda i: i, workers, joining=joining) == list(range(workers))
            done[place] += 1
            time.sleep(rng.uniform(0.0, 0.002))

    with concurrent.futures.ThreadPoolExecutor(3) as callers:
        for result in [callers.submit(caller, place) for place in range(3)]:
            result.result(timeout=30)
    assert min(done) > 10
    assert _soon(lambda: not pool._TEAMS)


def test_what_is_busy_longer_than_a_team_waits_is_not_given_up(monkeypatch):
    monkeypatch.setattr(pool, "_TEAMS", {})
    monkeypatch.setattr(pool, "_IDLE", 0.02)
    workers = pool.worker_count() + 1

    def task(index):
        time.sleep(0.2 if index == 1 else 0.0)
        return index

    for joining in (False, True):
        assert pool.run(task, workers, joining=joining) == list(range(workers))
        assert pool.run(task, workers, joining=joining) == list(range(workers))


def test_callers_with_a_worker_each_run_side_by_side(monkeypatch):
    """As Dask's threads do; what they started ends with them."""
    monkeypatch.setattr(pool, "_TEAMS", {})
    monkeypatch.setattr(pool, "_IDLE", 0.1)
    barrier = threading.Barrier(3, timeout=30)

    def caller(_):
        return pool.run(lambda index: barrier.wait(), 1)  # passes only if three run at once

    with concurrent.futures.ThreadPoolExecutor(3) as callers:
        assert sorted(place for (place,) in callers.map(caller, range(3))) == [0, 1, 2]
    assert _soon(lambda: not pool._TEAMS)


TOO_MANY = """
import resource, threading, time, numpy as np, prismm
from prismm.core import threads as pool
from prismm.errors import EngineError
a = np.ones((200, 300))
prismm.matmul(a, a.T, reproducible=True, threads=2)
before = threading.active_count()
threading.stack_size(1 << 26)
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
try:
    pool.run(lambda i: i, 500)
except EngineError as error:
    print(error)
end = time.monotonic() + 10
while threading.active_count() > before and time.monotonic() < end:
    time.sleep(0.01)
print(threading.active_count() - before)
print(prismm.matmul(a, a.T, reproducible=True, threads=2)[0, 0])
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's limits")
def test_more_threads_than_the_system_starts():
    run = subprocess.run([sys.executable, "-c", TOO_MANY], capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout == "500 threads cannot be started here: can't start new thread; pass threads=1\n0\n300.0\n", run


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_bad_counts_are_refused(threads):
    with pytest.raises(ArgumentError, match="threads="):
        pool.worker_count(threads)


def test_counts_come_from_argument_environment_or_affinity(monkeypatch):
    monkeypatch.delenv("PRISMM_THREADS", raising=False)
    assert pool.worker_count() >= 1
    if hasattr(os, "sched_getaffinity"):
        assert pool.worker_count() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("PRISMM_THREADS", "7")
    assert pool.worker_count() == 7 and pool.worker_count(3) == 3
    for text in ("many", "0", "-2"):
        monkeypatch.setenv("PRISMM_THREADS", text)
        with pytest.raises(ArgumentError, match="PRISMM_THREADS"):
            pool.worker_count()


STORM = """
import os, random, signal, sys, time, numpy as np, prismm
shape, keywords = eval(sys.argv[1])
rng = np.random.default_rng(0)
(m, k, n), seconds = shape, 4.0
a, b, x, y = (rng.standard_normal(s) for s in ((m, k), (k, n), (m, k), (k, n)))
home = os.sched_getaffinity(0)
expected = prismm.matmul(x, y, **keywords)
begin = time.perf_counter(); prismm.matmul(a, b, **keywords); took = time.perf_counter() - begin
def interrupt(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
wrong = hits = 0
end = time.time() + seconds
while time.time() < end:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-5, 1.2 * took))
        prismm.matmul(a, b, **keywords)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        hits += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    wrong += not np.array_equal(prismm.matmul(x, y, **keywords), expected)
    wrong += os.sched_getaffinity(0) != home
print(hits, wrong)
sys.exit(2 if wrong else 0 if hits else 3)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer") or not hasattr(os, "sched_getaffinity"), reason="needs Linux")
@pytest.mark.parametrize(
    "case",
    [
        "(500, 600, 100), {'reproducible': True}", "(300, 300, 300), {'reproducible': True}",
        "(200, 300, 200), {'reproducible': True, 'engine': 'cpu:float64'}",
    ],
)  # fmt: skip
def test_a_product_after_an_interrupted_one_is_right(case):
    """Interrupts come at any time; workers that are still at it must not write to what the next product uses."""
    command = [sys.executable, "-W", "ignore", "-c", STORM, f"({case})"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, (run.returncode, run.stdout, run.stderr[-2000:])


def test_an_interrupt_ends_a_long_task_soon():
    """Workers take no more items, and those who wait for others are told."""
    told, done = [], []

    def task(item):
        time.sleep(0.02)
        done.append(item)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for joining in (False, True):
            done.clear()
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                pool.spread(task, list(range(500)), 2, joining=joining, failed=told.append)
            count = len(done)
            assert 2 < count < 250
            time.sleep(0.1)
            assert len(done) == count and isinstance(told[-1], KeyboardInterrupt)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert pool.run(lambda i: i, 2) == [0, 1] and not pool.in_worker()


LATE = """
import atexit, threading, time, numpy as np, prismm
a = np.ones((200, 300))
def late():
    time.sleep(0.5)
    print("thread", prismm.matmul(a, a.T, reproducible=True)[0, 0], flush=True)
atexit.register(lambda: print("exit", prismm.matmul(a, a.T, reproducible=True)[0, 0], flush=True))
threading.Thread(target=late).start()
"""


@pytest.mark.slow
def test_threads_that_outlive_the_main_one_multiply():
    run = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0 and "thread 300.0" in run.stdout and "exit 300.0" in run.stdout, (run.stdout, run.stderr)


FORK = """
import os, sys, numpy as np, prismm
rng = np.random.default_rng(1)
a, b = rng.standard_normal((150, 120)), rng.standard_normal((120, 130))
first = prismm.matmul(a, b, scheme=prismm.Residues(15), threads=2)
child = os.fork()
if child == 0:
    import threading
    threading.Timer(60, os._exit, (3,)).start()
    again = prismm.matmul(a, b, scheme=prismm.Residues(15), threads=2)
    os._exit(0 if np.array_equal(first, again) else 1)
_, status = os.waitpid(child, 0)
again = prismm.matmul(a, b, scheme=prismm.Residues(15), threads=2)
sys.exit(10 + os.waitstatus_to_exitcode(status) if status or not np.array_equal(first, again) else 0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_works_with_a_pool_of_its_own():
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=150, check=False
    )
    assert run.returncode == 0, (run.returncode, run.stderr)


def test_a_caller_who_joins_takes_a_share():
    barrier = threading.Barrier(3, timeout=30)
    me = threading.get_ident()

    def task(index):
        barrier.wait()  # passes only if three run at once
        assert pool.in_worker() and pool.run(lambda _: threading.get_ident(), 2) == [threading.get_ident()] * 2
        return index, threading.get_ident() == me

    assert pool.run(task, 3, joining=True) == [(0, True), (1, False), (2, False)]
    assert not pool.in_worker()


@pytest.mark.parametrize("bad", [0, 1])
def test_an_error_beside_a_caller_who_joins(bad):
    began, ended = threading.Event(), threading.Event()

    def task(index):
        if index == bad:
            began.wait(30)
            raise KeyError("bad")
        began.set()
        ended.wait(0.2)
        ended.set()

    with pytest.raises(KeyError, match="bad"):
        pool.run(task, 2, joining=True)
    assert ended.is_set(), "an error came out while another worker was still writing"
    assert not pool.in_worker() and pool.run(lambda i: i, 2, joining=True) == [0, 1]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_who_works_beside_the_caller_has_another_processor():
    """And the caller keeps its own until all have ended, no longer."""
    processors = os.sched_getaffinity(0)
    if len(processors) < 2:
        pytest.skip("one processor")

    def caller():
        found = pool.run(lambda _: os.sched_getaffinity(0), len(processors), joining=True)
        with pytest.raises(KeyError):
            pool.run({}.__getitem__, len(processors), joining=True)
        return found, os.sched_getaffinity(0)

    for mine in sorted(processors):
        with concurrent.futures.ThreadPoolExecutor(1) as one:
            one.submit(os.sched_setaffinity, 0, {mine}).result()
            one.submit(os.sched_setaffinity, 0, processors).result()
            found, after = one.submit(caller).result()
        assert all(len(places) == 1 for places in found) and set().union(*found) == processors
        assert after == processors
