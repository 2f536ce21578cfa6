"""Worker threads for the CPU engine.

Kernels release the GIL, so plain threads suffice. Each worker limits every OpenMP runtime to one thread *for itself*
(the limit belongs to the calling thread, not to the process), so that a GEMM called in a worker neither starts nor
waits for OpenMP teams: no pools that spin against each other, and none that a fork could leave dead. The pool is
made on first use, and anew in a forked child. Workers that nobody needs end: all but those of the team that has one
for each processor, which is the usual one.

An interrupt may come between any two steps of the caller. So nothing here depends on what the caller got to remember:
a `_Ticket` tells which workers began and ended, its lists and queues are changed in single steps of C code, and whoever
begins after it was called off does nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from prismm.core import environment
from prismm.errors import ArgumentError, EngineError

_LOCAL = threading.local()
_GUARD = threading.RLock()
_TEAMS: dict[int, _Team] = {}
"""By their numbers of workers; teams of one of other callers than the main thread by minus the caller's identity."""

_IDLE = 10.0
"""Seconds for which a team waits for work before it ends."""


FORKED = False
"""Whether this process is a forked child: OpenMP teams that the parent had started are dead in it."""


def _forget() -> None:
    global _GUARD, FORKED
    # The child has none of the parent's threads: teams are gone, and a lock that one of them held would stay held.
    FORKED = True
    _GUARD = threading.RLock()
    _TEAMS.clear()
    _LOCAL.home = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def worker_count(threads: int | None = None) -> int:
    """Number of workers: the argument, else ``PRISMM_THREADS``, else the processors that this process may use."""
    _go_home()
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
        return _processors()
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ArgumentError(f"threads={threads!r}; pass an integer of 1 or more")
    return threads


def _processors() -> int:
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limit_openmp() -> None:
    """Give the calling worker OpenMP teams of one; again whenever torch has come in since (it may bring a runtime)."""
    loaded = sys.modules.get("torch") is not None
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


class _Ticket:
    """A task that some workers carry out, each with its own index; how far they are, and what came of it."""

    def __init__(self, task: Callable[[int], Any], workers: int) -> None:
        self.task = task
        self.results: list[Any] = [None] * workers
        self.errors: list[tuple[int, BaseException]] = []
        self.off = False
        self.began: deque[int] = deque()
        self.ended: deque[int] = deque()
        self._woken: SimpleQueue[None] = SimpleQueue()

    def run(self, index: int) -> None:
        """A worker's part."""
        self.began.append(index)
        try:
            if not self.off:
                self.results[index] = self.task(index)
        except BaseException as error:
            self.errors.append((index, error))
        finally:
            # Counted before anybody is woken, who would not find it otherwise and wait on.
            self.ended.append(index)
            self._woken.put(None)

    def wait(self, workers: int) -> None:
        """Until so many have ended."""
        while len(self.ended) < workers:
            self._woken.get()

    def call_off(self) -> None:
        """Nobody begins any more; until all who did have ended, whatever else interrupts: the first one counts."""
        self.off = True
        while True:
            try:
                while len(self.ended) < len(self.began):
                    self._woken.get()
                return
            except BaseException:
                continue


class _Team:
    """Workers that carry out tasks together, each waiting at a queue of its own; None in a queue ends its worker.

    Queues are filled under the guard, by those who find the team among all, and the team leaves those when it ends: so
    nothing comes after None.
    """

    def __init__(self, workers: int, key: int) -> None:
        self.used, self.key = time.monotonic(), key
        # The usual team would be started anew after every pause.
        self.stays = key == _processors()
        self.queues: list[SimpleQueue[tuple[_Ticket, int] | None]] = [SimpleQueue() for _ in range(workers)]
        places = _places(workers)
        try:
            for w, queue in enumerate(self.queues):
                place = places[w] if places else None
                threading.Thread(target=self._work, args=(queue, place), name=f"prismm-{w}", daemon=True).start()
        except BaseException as error:
            for queue in self.queues:
                queue.put(None)
            if isinstance(error, RuntimeError):
                raise EngineError(f"{workers} threads cannot be started here: {error}; pass threads=1") from error
            raise

    def _work(self, queue: SimpleQueue[tuple[_Ticket, int] | None], place: int | None) -> None:
        _start(place)
        while True:
            try:
                item = queue.get(timeout=None if self.stays else _IDLE)
            except Empty:
                self._end()
                continue
            if item is None:
                return
            ticket, index = item
            ticket.run(index)
            del ticket, item  # which hold the operands

    def _end(self) -> None:
        """Tell all workers to end, unless somebody has used the team lately."""
        with _GUARD:
            if time.monotonic() - self.used < _IDLE:
                return
            if _TEAMS.get(self.key) is self:
                del _TEAMS[self.key]
            for queue in self.queues:
                queue.put(None)


def _hand_out(ticket: _Ticket, workers: int, joining: bool) -> None:
    """Give a task to a team. joining: but to one of its workers, whose part is the first and the caller's own."""
    key = workers
    # Callers that run side by side with a worker each, such as Dask's threads, would wait for the one that they shared.
    if workers == 1 and threading.current_thread() is not threading.main_thread():
        key = -threading.get_ident()
    with _GUARD:
        team = _TEAMS.get(key)
        if team is None:
            environment.check_arithmetic()  # the caller's state is what they start with, and keep
            team = _TEAMS[key] = _Team(workers, key)
        team.used = time.monotonic()
        queues = _others(team) if joining else team.queues
        for index, queue in enumerate(queues, int(joining)):
            queue.put((ticket, index))


def _others(team: _Team) -> list[SimpleQueue[tuple[_Ticket, int] | None]]:
    """The workers beside one whose part the caller takes: the one on the processor where the caller runs.

    The caller stays there until `_go_home`: a worker that hands it the interpreter's lock would draw it to the worker's
    own processor, which the two then share.
    """
    places, processor = _places(len(team.queues)), _processor()
    here = processor() if places is not None and processor is not None else None
    if places is None or here not in places:
        return team.queues[1:]
    mine = places.index(here)
    _LOCAL.home = places
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {here})
    return team.queues[:mine] + team.queues[mine + 1 :]


def _go_home() -> None:
    """The caller may run everywhere again, also where an interrupt kept an earlier call from saying so."""
    home = getattr(_LOCAL, "home", None)
    if home is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, home)
        _LOCAL.home = None


def run(
    task: Callable[[int], Any],
    workers: int,
    *,
    joining: bool = False,
    stopped: Callable[[BaseException], None] | None = None,
) -> list[Any]:
    """task(0), …, task(workers-1), each on its own worker; waits for all, then raises the first error, if any.

    joining: the caller takes task(0) itself. It saves waking a thread, which takes longer than a small product; the
    task must not need OpenMP's limit, which is the workers' alone. stopped: is told of an interrupt of the caller, so
    that tasks end soon.
    """
    # A worker that waited for its own team would wait for itself.
    if in_worker():
        return [task(w) for w in range(workers)]
    ticket = _Ticket(task, workers)
    try:
        _hand_out(ticket, workers, joining)
        if joining:
            _LOCAL.worker = True
            ticket.results[0] = task(0)
            _LOCAL.worker = False
            ticket.wait(workers - 1)
        else:
            ticket.wait(workers)
    except BaseException as error:
        if stopped is not None:
            stopped(error)
        ticket.call_off()
        raise
    finally:
        _LOCAL.worker = False
        _go_home()
    # By index, since who failed first is a matter of chance.
    if ticket.errors:
        raise min(ticket.errors, key=lambda found: found[0])[1]
    return ticket.results


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
    for others learn from it that they need not. Nothing is handed out after one.
    """
    if not items:
        return
    lock = threading.Lock()
    position = iter(items)
    over = False

    def stopped(error: BaseException) -> None:
        nonlocal over
        over = True
        if failed is not None:
            failed(error)

    def loop(_: int) -> None:
        try:
            while not over:
                with lock:
                    item = next(position, _END)
                if item is _END:
                    return
                task(item)
        except BaseException as error:
            stopped(error)
            raise

    run(loop, min(workers, len(items)), joining=joining, stopped=stopped)


_END = object()
