"""Processes that share a GPU: to compile kernels side by side before anything is timed, and to multiply at once."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, wait
from typing import Any

from _gpu_races import Group, Session, operands, prepared, say


def serve(connection: Connection, device: str) -> None:
    """Do tasks, (name, arguments), one after another while somebody asks; answers are (whether done, what)."""
    state: dict[str, Any] = {"device": device}
    connection.send((True, "ready"))
    while True:
        try:
            name, arguments = connection.recv()
        except (EOFError, OSError):
            return
        try:
            connection.send((True, TASKS[name](state, *arguments)))
        except Exception as error:
            connection.send((False, f"{type(error).__name__}: {str(error)[:200]}"))


def _compile_way(state: dict[str, Any], group: Group, place: int) -> None:
    """Run one way of a group once, so that its kernels are on disk."""
    import torch

    way, device = group.ways[place], state["device"]
    a, b = operands(group.dtype, group.m, group.n, group.k, group.phi, device)
    prepared(way, a, b, torch.empty(group.m, group.n, dtype=a.dtype, device=device), device)
    if device == "cuda":
        del a, b
        torch.cuda.empty_cache()


def _compile_variant(state: dict[str, Any], variant: Any, n: int) -> None:
    """The same of a product of words with other constants."""
    from _gpu_pipeline import started

    for _ in started(variant, n):
        pass


def _measure(state: dict[str, Any], module: str, row: tuple[Any, ...]) -> None:
    """Measure a row of a benchmark, whatever comes out."""
    import torch

    importlib.import_module(module).measure(*row)
    torch.cuda.empty_cache()


def _hold(state: dict[str, Any], group: Group) -> list[bool]:
    """Keep the operands of a group, and run each way a few times; which of them serve."""
    import torch

    device = state["device"]
    a, b = operands(group.dtype, group.m, group.n, group.k, group.phi, device)
    out = torch.empty(group.m, group.n, dtype=a.dtype, device=device)
    found = [prepared(way, a, b, out, device) for way in group.ways]
    state["calls"] = [None if one is None else one[0] for one in found]
    for call in state["calls"]:
        for _ in range(3 if call else 0):
            call()
    _finish(device)
    return [call is not None for call in state["calls"]]


def _repeat(state: dict[str, Any], place: int, begin: float, seconds: float) -> tuple[int, float]:
    """Call one way from a moment on for so many seconds: how many calls, and how long they took."""
    call, device = state["calls"][place], state["device"]
    while time.monotonic() < begin:
        pass
    start, count = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        for _ in range(2):
            call()
        count += 2
        _finish(device)
    return count, time.monotonic() - start


def _finish(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


TASKS: dict[str, Callable[..., Any]] = {
    "compile": _compile_way, "variant": _compile_variant, "measure": _measure, "hold": _hold, "repeat": _repeat,
}  # fmt: skip


class Pool:
    """Processes of their own, each with its own context on the device.

    Used as a context manager: they end with it, whatever they are doing.
    """

    def __init__(self, count: int, device: str, patience: float = 60.0) -> None:
        context = multiprocessing.get_context("spawn")
        self.members: list[tuple[Any, Connection]] = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, device), daemon=True)
            process.start()
            theirs.close()
            self.members.append((process, ours))
        self.members = [member for member in self.members if self._answer(member, patience) is not None]

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        for process, connection in self.members:
            connection.close()
            process.terminate()
        for process, _ in self.members:
            process.join(5.0)

    def __len__(self) -> int:
        return len(self.members)

    @staticmethod
    def _answer(member: tuple[Any, Connection], patience: float) -> Any:
        """What a member says, or None where it says nothing in time or failed."""
        try:
            if member[1].poll(patience):
                done, what = member[1].recv()
                if done:
                    return what
                say(f"  a process: {what}")
        except (EOFError, OSError) as error:
            say(f"  a process ended: {error!r}")
        return None

    def ask(self, count: int, task: tuple[str, tuple[Any, ...]], patience: float = 60.0) -> list[Any]:
        """The answers of the first so many to the same task, done at once; None for one that failed."""
        chosen = self.members[:count]
        for _, connection in chosen:
            connection.send(task)
        return [self._answer(member, patience) for member in chosen]

    def spread(self, tasks: Iterable[tuple[str, tuple[Any, ...]]], seconds: float) -> int:
        """Each task to whoever is free, for so many seconds; how many were done."""
        waiting, done = list(tasks)[::-1], 0
        end = time.monotonic() + seconds
        idle = [connection for _, connection in self.members]
        busy: list[Connection] = []
        while (waiting or busy) and time.monotonic() < end:
            while waiting and idle:
                busy.append(idle.pop())
                busy[-1].send(waiting.pop())
            for connection in wait(busy, timeout=max(0.0, end - time.monotonic())):
                assert isinstance(connection, Connection)
                busy.remove(connection)
                try:
                    connection.recv()
                    done += 1
                    idle.append(connection)
                except (EOFError, OSError):
                    say("  a process ended")
            if not idle and not busy:
                break
        return done


def side_by_side(tasks: Iterable[tuple[str, tuple[Any, ...]]], device: str, seconds: float) -> None:
    """Do tasks, so that their kernels are on disk afterwards, in a process for every three processors: each compiles by
    three threads.
    """
    start, tasks = time.monotonic(), list(tasks)
    with Pool(max(1, min(12, (os.cpu_count() or 2) // 3)), device) as pool:
        done = pool.spread(tasks, seconds - (time.monotonic() - start))
    say(f"compiled {done} of {len(tasks)} calls in {time.monotonic() - start:.0f} s")


def measured_before(module: str, rows: Iterable[tuple[Any, ...]], seconds: float) -> None:
    """Rows of a benchmark, the arguments of its `measure`, once each and side by side, for their kernels."""
    if seconds > 0:
        side_by_side([("measure", (module, row)) for row in rows], "cuda", seconds)


def share(group: Group, counts: Iterable[int], session: Session, rounds: int = 3, seconds: float = 0.2) -> None:
    """Throughput of 1 and more processes that multiply at once, in all, for each way in turn."""
    counts = list(counts)
    if session.late():
        say(f"  out of time before {group.figure}")
        return
    with Pool(max(counts), session.device) as pool:
        serving = [answer for answer in pool.ask(len(pool), ("hold", (group,)), 120.0) if answer is not None]
        if len(serving) < len(pool):
            say(f"  {len(serving)} of {len(pool)} processes are ready")
        places = [place for place in range(len(group.ways)) if serving and all(found[place] for found in serving)]
        for count in counts:
            if count > len(serving) or session.late():
                say(f"  left out: {count} processes")
                continue
            rates: dict[int, list[float]] = {place: [] for place in places}
            for _ in range(rounds):
                for place in places:
                    task = "repeat", (place, time.monotonic() + 0.05, seconds)
                    found = [answer for answer in pool.ask(count, task) if answer is not None]
                    calls = sum(many / took for many, took in found)
                    rates[place].append(2.0 * group.m * group.n * group.k * calls / 1e12)
            _write(group, count, rates, session)


def _write(group: Group, count: int, rates: dict[int, list[float]], session: Session) -> None:
    native = next((place for place in rates if group.ways[place].native), None)
    for place, found in rates.items():
        name, scheme = group.ways[place].name, str(group.ways[place].form.get("scheme", ""))
        session.add(group.figure, name, count, found, "TFLOP/s", scheme=scheme)
        if native is not None and place != native:
            ratios = [ours / theirs for ours, theirs in zip(found, rates[native], strict=True)]
            session.add(group.figure, name, count, ratios, "times cuBLAS", scheme=scheme)
