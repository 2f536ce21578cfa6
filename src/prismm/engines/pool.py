"""Worker threads for the CPU engine.

Kernels release the GIL, so plain threads suffice. Each worker limits every OpenMP runtime to one thread *for itself*
(the limit belongs to the calling thread, not to the process), so that a GEMM called in a worker neither starts nor
waits for OpenMP teams: no pools that spin against each other, and none that a fork could leave dead. The pool is
made on first use, and anew in a forked child.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from prismm.errors import ArgumentError

_LOCAL = threading.local()
_GUARD = threading.Lock()
_POOLS: dict[int, list[ThreadPoolExecutor]] = {}


FORKED = False
"""Whether this process is a forked child: OpenMP teams that the parent had started are dead in it."""


def _forget() -> None:
    global _GUARD, FORKED
    FORKED = True
    _GUARD = threading.Lock()
    _POOLS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def worker_count(threads: int | None = None) -> int:
    """Number of workers: the argument, else ``PRISMM_THREADS``, else the processors that this process may use."""
    if threads is None:
        text = os.environ.get("PRISMM_THREADS")
        if text:
            try:
                threads = int(text)
            except ValueError:
                raise ArgumentError(f"PRISMM_THREADS={text!r} is no number; set it to 1 or more") from None
            if threads < 1:
                raise ArgumentError(f"PRISMM_THREADS={text!r}; set it to 1 or more")
            return threads
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ArgumentError(f"threads={threads!r}; pass an integer of 1 or more")
    return threads


def limit_openmp() -> None:
    """Give the calling worker OpenMP teams of one; again whenever torch has come in since (it may bring a runtime)."""
    loaded = "torch" in sys.modules
    if getattr(_LOCAL, "limited", None) is loaded:
        return
    if loaded:
        import torch

        torch.get_num_threads()  # torch sets its own default on a thread's first use; let that come before ours
    from threadpoolctl import ThreadpoolController

    for library in ThreadpoolController().select(user_api="openmp").lib_controllers:
        library.set_num_threads(1)
    _LOCAL.limited = loaded


def in_worker() -> bool:
    """Whether the caller is itself a worker (nested calls then run in place)."""
    return getattr(_LOCAL, "worker", False)


def _start(place: int | None) -> None:
    """Mark the thread as a worker, and give it a processor of its own.

    Only where the workers take all processors of the process: any placement is then the same to others, while the
    system's own may leave two workers on one processor for seconds (after a BLAS call whose threads still spin, say).
    """
    _LOCAL.worker = True
    if place is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {place})


def _places(workers: int) -> list[int] | None:
    """The processors of so many workers, if they are all that this process may use."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    processors = sorted(os.sched_getaffinity(0))
    return processors if workers == len(processors) > 1 else None


@functools.cache
def _processor() -> Callable[[], int] | None:
    """What says on which processor the caller runs, if the system can."""
    import ctypes

    try:
        ask = ctypes.CDLL(None).sched_getcpu
    except (AttributeError, OSError, TypeError):
        return None
    ask.restype, ask.argtypes = ctypes.c_int, []
    return ask if ask() >= 0 else None


def _team(workers: int) -> list[ThreadPoolExecutor]:
    """So many workers, a queue each."""
    with _GUARD:
        team = _POOLS.get(workers)
        if team is None:
            places = _places(workers)
            team = _POOLS[workers] = [
                ThreadPoolExecutor(
                    1, thread_name_prefix="prismm", initializer=_start, initargs=(places[w] if places else None,)
                )
                for w in range(workers)
            ]
    return team


@contextlib.contextmanager
def _others(workers: int) -> Iterator[list[ThreadPoolExecutor]]:
    """The workers beside one whose part the caller takes: the one on the processor where the caller runs.

    The caller stays there meanwhile: a worker that hands it the interpreter's lock would draw it to the worker's own
    processor, which the two then share.
    """
    team, places = _team(workers), _places(workers)
    processor = _processor()
    here = processor() if places is not None and processor is not None else None
    if places is None or here not in places:
        yield team[1:]
        return
    mine = places.index(here)
    try:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {here})
        yield team[:mine] + team[mine + 1 :]
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, places)


def run(task: Callable[[int], Any], workers: int, *, joining: bool = False) -> list[Any]:
    """task(0), …, task(workers-1), each on its own worker; waits for all, then raises the first error, if any.

    joining: the caller takes task(0) itself. It saves waking a thread, which takes longer than a small product; the
    task must not need OpenMP's limit, which is the workers' alone.
    """
    if in_worker():
        return [task(w) for w in range(workers)]
    if not joining:
        return _collect([w.submit(task, i) for i, w in enumerate(_team(workers))])
    with _others(workers) as others:
        futures: list[Future[Any]] = [w.submit(task, i) for i, w in enumerate(others, 1)]
        results, error = [], None
        _LOCAL.worker = True
        try:
            results.append(task(0))
        except BaseException as caught:
            error = caught
        finally:
            _LOCAL.worker = False
        return results + _collect(futures, error)


def _collect(futures: list[Future[Any]], error: BaseException | None = None) -> list[Any]:
    """The results, once all have ended; the first error is raised, `error` before theirs."""
    results = []
    for future in futures:
        try:
            results.append(future.result())
        except BaseException as caught:  # an interrupt, too, must wait until no worker writes to our arrays
            error = error or caught
            for other in futures:
                other.cancel()
    for future in futures:
        if not future.cancelled():
            future.exception()
    if error is not None:
        raise error
    return results


def spread(
    task: Callable[[Any], None],
    items: list[Any],
    workers: int,
    *,
    joining: bool = False,
    failed: Callable[[BaseException], None] | None = None,
) -> None:
    """task(item) for all items, handed out in order to `workers` workers as they become free.

    joining: see `run`. failed: is told of an error in a worker, an interrupt, too, wherever it came: tasks that wait
    for others learn from it that they need not.
    """
    if not items:
        return
    lock = threading.Lock()
    position = iter(items)

    def loop(_: int) -> None:
        try:
            while True:
                with lock:
                    item = next(position, _END)
                if item is _END:
                    return
                task(item)
        except BaseException as error:
            if failed is not None:
                failed(error)
            raise

    run(loop, min(workers, len(items)), joining=joining)


_END = object()
