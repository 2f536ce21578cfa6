"""Real processes of one group, of gloo or, each with a GPU of its own, of NCCL; started once: each runs what it is
sent, all at the same time.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TIMEOUT = 120.0
"""Seconds after which a collective fails on its own: a machine may be busy."""

ANSWER = 200.0
"""Seconds after which a rank is lost: the others' collectives have failed by then, and say so."""


def _serve(rank: int, world: int, port: int, timeout: float, pipe: Any, device: str, stacks: Path) -> None:
    """Run what comes through the pipe until nothing comes. stacks: where the threads' stacks are written if a signal
    ends this process, or if SIGUSR1 asks for them.
    """
    kept = stacks.open("w")  # for as long as the process lives
    faulthandler.enable(kept)
    faulthandler.register(signal.SIGUSR1, kept)
    os.environ.update(PRISMM_THREADS="1", OMP_NUM_THREADS="1", PRISMM_TESTED_RANKS=device)
    if device == "interpreted":
        os.environ["TRITON_INTERPRET"] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, world, False, datetime.timedelta(seconds=timeout))
    if device == "cuda":
        torch.cuda.set_device(rank)
    limit = datetime.timedelta(seconds=timeout)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
    pipe.send((True, rank))
    while True:
        try:
            function, args = pipe.recv()
        except (EOFError, OSError):
            return
        if function is None:
            return
        try:
            answer = True, function(rank, *args)
        except BaseException as error:
            answer = False, (type(error).__name__, str(error), traceback.format_exc())
        pipe.send(answer)


def interpret_as(rank: int, kind: str) -> None:
    """Have this process make the steps of exact sums as a GPU would, in Triton's interpreter, of tensors on the CPU.

    kind: of `gluon_interpreter.interpreted_device`.
    """
    from prismm.cuda import operands
    from prismm.distributed import kinds, on_gpu
    from tests.cuda.harness import interpreter  # noqa: F401  (patches Triton's)
    from tests.cuda.harness.gluon_interpreter import interpreted_device

    device = interpreted_device(kind)
    on_gpu.device_of = lambda index: device
    operands.lives_on_gpu = lambda x: True
    kinds._by_gpu = lambda device_type, device, setting: True


def _context() -> Any:
    """Processes that are forked from one that has imported what all of them need."""
    context = multiprocessing.get_context("forkserver")
    # The cases' first products import these: Dynamo for DTensors, and Numba for the engines.
    context.set_forkserver_preload(["tests.distributed.cases", "torch._dynamo", "prismm.cpu.backend"])
    return context


def _call(pipe: Any, function: Callable[..., Any], args: Sequence[Any]) -> None:
    pipe.send(function(*args))


def alone(function: Callable[..., Any], *args: Any) -> Any:
    """What function(*args) returns in a process of its own."""
    context = _context()
    here, there = context.Pipe()
    process = context.Process(target=_call, args=(there, function, args), daemon=True)
    process.start()
    there.close()
    try:
        assert here.poll(TIMEOUT), "no answer"
        return here.recv()
    finally:
        process.kill()
        process.join()


class Ranks:
    """So many processes of a group; the store that they meet in is here, as with torchrun's agent."""

    def __init__(self, world: int, timeout: float = TIMEOUT, device: str = "cpu") -> None:
        import torch.distributed as dist

        self.world = world
        self.fit = True  # until a rank ends, or does not answer: what the others answer then belongs to no call
        self.directory = Path(tempfile.mkdtemp())
        self.store = dist.TCPStore("127.0.0.1", 0, world, True, wait_for_workers=False)
        # A process forked from one that has loaded CUDA cannot use CUDA. A process forked from one that has imported
        # Triton cannot switch to Triton's interpreter.
        context = _context() if device == "cpu" else multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(world):
            here, there = context.Pipe()
            serving = rank, world, self.store.port, timeout, there, device, self._stacks(rank)
            process = context.Process(target=_serve, args=serving, daemon=True)  # type: ignore[attr-defined]
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)
        for pipe in self.pipes:
            assert pipe.poll(TIMEOUT), "a rank does not start"
            pipe.recv()

    def start(self, function: Callable[..., Any], *args: Any, ranks: Sequence[int] | None = None) -> None:
        """Have ranks call function(rank, *args)."""
        for rank in range(self.world) if ranks is None else ranks:
            try:
                self.pipes[rank].send((function, args))
            except OSError:
                raise self._lost(rank) from None

    def answer(self, rank: int, seconds: float = ANSWER) -> tuple[bool, Any]:
        """Whether a rank's call returned, and what; or the name, text and traceback of its error."""
        try:
            if self.pipes[rank].poll(seconds):
                found: tuple[bool, Any] = self.pipes[rank].recv()
                return found
        except (EOFError, OSError):
            pass
        raise self._lost(rank)

    def _stacks(self, rank: int) -> Path:
        return self.directory / str(rank)

    def _lost(self, rank: int) -> AssertionError:
        """That a rank does not answer; and of every rank how it ended, or what it says and where it is."""
        self.fit = False
        for process in self.processes:
            process.join(1)
            if process.is_alive():
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(1)
        states = [
            f"rank {each}, exit code {process.exitcode}:\n{self._said(each)}\n{self._stacks(each).read_text()}"
            for each, process in enumerate(self.processes)
        ]
        return AssertionError("\n".join([f"rank {rank} does not answer", *states]))

    def _said(self, rank: int) -> str:
        """What a rank has sent that nobody has read: the traceback of its error."""
        with contextlib.suppress(EOFError, OSError):
            if self.pipes[rank].poll(0):
                returned, found = self.pipes[rank].recv()
                return "returned" if returned else str(found[2])
        return "nothing"

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What function(rank, *args) returns on every rank."""
        self.start(function, *args)
        answers = [self.answer(rank) for rank in range(self.world)]
        failed = [found[2] for returned, found in answers if not returned]
        assert not failed, "\n".join(failed)
        return [found for _, found in answers]

    def errors(self, function: Callable[..., Any], *args: Any) -> list[tuple[str, str]]:
        """The name and text of the error that function(rank, *args) ends in on every rank."""
        self.start(function, *args)
        answers = [self.answer(rank) for rank in range(self.world)]
        returned = [rank for rank, (fine, _) in enumerate(answers) if fine]
        assert not returned, f"no error on ranks {returned}"
        return [found[:2] for _, found in answers]

    def close(self) -> None:
        """End the processes."""
        self.fit = False
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send((None, ()))
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.terminate()
                process.join(5)
        shutil.rmtree(self.directory)
