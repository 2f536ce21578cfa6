"""A script run as Python would run it, in a block of `emulate` that reaches all of its threads and its own ``@``."""

from __future__ import annotations

import builtins
import contextlib
import gc
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, TextIO

from prismm.cli import ending, interrupts, streams
from prismm.cli.console import say
from prismm.cli.rewriting import HELPERS, compiled


class Program:
    """A script, and the block in which it runs until `close`.

    stdout: the stream that the script's output goes to. After `run` its threads and exit handlers go on in the block.
    """

    def __init__(self, script: Path, arguments: list[str], block: Any, stdout: TextIO) -> None:
        self.script, self.arguments, self.block, self.stdout = script, arguments, block, stdout
        self._open = contextlib.ExitStack()

    def run(self) -> int:
        """Run the script's code; its exit code."""
        from prismm.programs import numpy_products

        path = os.path.abspath(self.script)
        module = self._open.enter_context(_as_program(self.script, path, self.arguments, self.stdout))
        with interrupts.left_alone():
            try:
                code = compiled(self.script.read_bytes(), path)
                for name, helper in HELPERS.items():  # they stay, for code of the script that outlives its run
                    setattr(builtins, name, helper())
                for context in (numpy_products.by_name(), _in_threads(self.block), self.block):
                    self._open.enter_context(context)
                exec(code, module.__dict__)
            except KeyboardInterrupt as error:
                if sys.excepthook is sys.__excepthook__:
                    say("interrupted; what ran until then:")
                else:
                    _report(error, path)
                return interrupts.EXIT_CODE
            except BaseException as error:
                return _report(error, path)
        return 0

    def close(self) -> None:
        """The end: products are torch's and NumPy's again."""
        self._open.close()


@contextlib.contextmanager
def _in_threads(block: Any) -> Iterator[None]:
    """Enter the block in threads that the script starts, until each ends; wait for those that Python would wait for."""
    from prismm.programs.places import Spots, without_internals

    start, started = threading.Thread.start, []

    def start_in_block(thread: threading.Thread) -> None:
        try:
            if not Spots().here().place.internal:
                thread.run = _within(block, thread.run)  # type: ignore[method-assign]
                started.append(thread)
            start(thread)
        except BaseException as error:
            without_internals(error)
            raise

    threading.Thread.start = start_in_block  # type: ignore[assignment, method-assign]
    before = set() if ending.is_here() else {id(executor) for executor in _executors()}
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
        if not ending.is_here():  # else Python has done so
            for executor in _executors():
                if id(executor) not in before:
                    executor.shutdown()
            for thread in started:
                if not thread.daemon and thread is not threading.current_thread():
                    thread.join()


def _executors() -> list[Any]:
    """The executors of this process, whose threads end when they are asked to."""
    futures = sys.modules.get("concurrent.futures")
    return [] if futures is None else [one for one in gc.get_objects() if issubclass(type(one), futures.Executor)]


def _within(block: Any, run: Callable[[], None]) -> Callable[[], None]:
    from prismm.programs.places import without_internals

    def run_in_block() -> None:
        try:
            with block:
                run()
        except BaseException as error:
            without_internals(error)
            raise

    return run_in_block


@contextlib.contextmanager
def _as_program(script: Path, path: str, arguments: list[str], stdout: TextIO) -> Iterator[types.ModuleType]:
    """The module ``__main__``, arguments and streams as the script would find them without us."""
    argv, folders, main = sys.argv, list(sys.path), sys.modules["__main__"]
    outputs = sys.stdout, sys.stderr
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path), __annotations__={},
        __builtins__=builtins,
    )  # fmt: skip
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    stdout.flush()
    sys.stdout, sys.stderr = streams.given(stdout), streams.given(sys.stderr)
    sys.modules["__main__"] = module
    try:
        yield module
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = argv, folders, main
        if not ending.is_here():  # else the command's streams are other ones by now
            with contextlib.suppress(Exception):  # the script's streams are the script's affair
                sys.stdout.flush()
            sys.stdout, sys.stderr = outputs


def _report(error: BaseException, path: str) -> int:
    """Report an exception that ends a program as Python does, from the script's own first line on; the exit code."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    place = error.__traceback__
    while place is not None and os.path.abspath(place.tb_frame.f_code.co_filename) != path:
        place = place.tb_next
    if place is None and not isinstance(error, SyntaxError):
        place = error.__traceback__
    error = error.with_traceback(place)
    try:
        sys.excepthook(type(error), error, place)
    except SystemExit as end:
        return _report(end, path)
    except BaseException as other:
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exception(other.with_traceback(other.__traceback__ and other.__traceback__.tb_next))
        print("\nOriginal exception was:", file=sys.stderr)
        traceback.print_exception(error)
    return 1
