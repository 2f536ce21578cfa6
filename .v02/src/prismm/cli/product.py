"""A product of two files, tile by tile: it survives interruption and harms no older result."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np

import prismm
from prismm import files
from prismm.cli import tiling
from prismm.cli.certificate import Certificate, guarantee, tile_record
from prismm.cli.console import progress, said_unless_soon, say
from prismm.cli.documents import check_beside, check_new, is_there
from prismm.cli.journal import Journal, journal_of
from prismm.cli.matrices import check_elements, result_dtype
from prismm.cli.memory import available
from prismm.errors import FileError, ShapeError
from prismm.files.target import Target, explained, part_of, reserve

_CHECKPOINT = 0.5  # seconds between flushes: what a power cut can cost


@dataclass(frozen=True)
class Request:
    """What the command line asks for; ``options`` are keyword arguments of ``prismm.matmul``.

    announced: whether stderr names the operands of a slow product when it is not a terminal.
    """

    a: Path
    b: Path
    output: Path
    options: dict[str, Any]
    memory: int | None
    force: bool
    resume: bool
    quiet: bool
    announced: bool


class Interrupted(Exception):
    """A signal stopped the run; the message says what was kept, ``exit_code`` is the shell's."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class _Stop(KeyboardInterrupt):
    """A signal that asks the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(request: Request) -> Certificate:
    """Multiply the files; return the certificate once the result has its name.

    Raises a PrismmError before any work for what cannot be done, and FileError for a disk that
    fills up, after removing the temporary, unless it was to be resumed: tiles that an earlier run
    finished are never deleted. Raises Interrupted, finished tiles kept, when stopped.
    """
    with _stoppable() as asked:
        try:
            return _run(request, asked)
        except KeyboardInterrupt as stop:
            raise Interrupted("interrupted before any work", _exit_code(stop)) from stop


def _run(request: Request, asked: list[int]) -> Certificate:
    start = time.perf_counter()
    _check_output(request)
    sources = [_Source(path) for path in (request.a, request.b)]
    a, b = files.describe(request.a), files.describe(request.b)
    for path, operand in ((request.a, a), (request.b, b)):
        check_elements(path, operand.dtype)
    if a.shape[1] != b.shape[0]:
        raise ShapeError(
            f"{request.a} is {a.shape[0]}x{a.shape[1]}, {request.b} is {b.shape[0]}x{b.shape[1]}: "
            "A must have as many columns as B has rows"
        )
    sizes = f"{a.shape[0]}x{a.shape[1]} by {b.shape[0]}x{b.shape[1]}"
    with said_unless_soon(f"multiplying {request.a} by {request.b}, {sizes}") if request.announced else nullcontext():
        return _made(request, a, b, sources, start, asked)


def _made(
    request: Request,
    a: files.Description,
    b: files.Description,
    sources: list[_Source],
    start: float,
    asked: list[int],
) -> Certificate:
    """The product of operands that fit each other."""
    dtype = result_dtype(a.dtype, b.dtype, request.options)
    memory = available() // 2 if request.memory is None else request.memory
    journal, grid = _plan(request, a, b, dtype, memory)
    earlier = set(journal.tiles)
    target = Target(request.output, (grid.m, grid.n), dtype, request.resume)
    with ExitStack() as stack:
        try:
            if not request.resume:
                journal.save()
            room = memory if len(grid) == 1 else memory // 8
            left, right = (
                stack.enter_context(_operand(path, request.output.parent, room)) for path in (request.a, request.b)
            )
            while True:
                _multiply(request, grid, left, right, target, journal, sources, asked)
                sha256, digests = target.digests(grid.rows, grid.columns)
                damaged = {tile for tile in journal.tiles if journal.tiles[tile]["sha256"] != digests[tile]}
                if not damaged:
                    break
                if not damaged <= earlier:  # it was written minutes ago, and would be again
                    raise FileError(
                        f"{target.part}: {len(damaged)} of its tiles changed after they were written; see that no "
                        "other program writes there and that the disk is sound, and start over with --force"
                    )
                if not request.quiet:
                    say(f"{len(damaged)} of the kept tiles were damaged since, and are made again")
                earlier -= damaged
                for tile in damaged:
                    del journal.tiles[tile]
            target.complete()
            with _unstoppable():
                target.commit()
                journal.remove()
        except KeyboardInterrupt as stop:
            raise _interrupted(stop, target, journal, grid) from stop
        except BaseException:
            if request.resume:
                target.close()
            else:
                target.discard()
                journal.remove()
            raise
    return Certificate.of(
        list(journal.tiles.values()),
        product=f"{grid.m}x{grid.k} by {grid.k}x{grid.n}",
        dtype=dtype.name,
        accuracy=_accuracy_text(request.options),
        guarantee=guarantee(request.options["accuracy"], request.options["scheme"] is not None, grid.k, dtype),
        reproducible=bool(request.options["reproducible"]),
        tiles=len(grid),
        resumed=len(earlier),
        seconds=time.perf_counter() - start,
        sha256=sha256,
    )


def _check_output(request: Request) -> None:
    output = request.output
    files.check_result(output)
    part, journal = part_of(output), journal_of(output)
    check_new(output, request.force, beside=journal.with_name(journal.name + ".new"))
    check_beside(output, (request.a, request.b))
    if not is_there(part) or (request.force and not request.resume):
        return
    if not is_there(journal):
        raise FileError(
            f"{output}: {part} is here without its journal {journal}, so that it cannot be continued; "
            "pass --force, without --resume, to start over"
        )
    if not request.resume:
        raise FileError(
            f"{output}: an unfinished product of that name is here; --resume continues it, --force starts over"
        )


def _plan(
    request: Request,
    a: files.Description,
    b: files.Description,
    dtype: np.dtype[Any],
    memory: int,
) -> tuple[Journal, tiling.Grid]:
    """The tiles and their journal: a new one, or the one to continue if it is this request's."""
    path = journal_of(request.output)
    journal = Journal.load(path) if request.resume else Journal(path, {})
    m, k, n = a.shape[0], a.shape[1], b.shape[1]
    element = max(a.dtype.itemsize, b.dtype.itemsize, dtype.itemsize)
    grid = tiling.choose(m, k, n, element, memory)
    identity: dict[str, Any] = {
        "prismm": prismm.__version__,
        "a": _fingerprint(request.a, a),
        "b": _fingerprint(request.b, b),
        "options": {
            key: value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
            for key, value in request.options.items()
        },
        "result": {"dtype": dtype.str},
        "grid": {"rows": grid.rows, "columns": grid.columns},
    }
    if request.resume:
        if request.memory is None:  # what is free now need not be what was free then
            identity["grid"] = journal.identity.get("grid", identity["grid"])
        journal.check(identity)
        grid = tiling.Grid(m, k, n, *journal.grid(m, n))
        if not is_there(part_of(request.output)):
            raise FileError(f"nothing to resume: there is no {part_of(request.output)}; leave out --resume")
    journal.identity = identity
    return journal, grid


def _fingerprint(path: Path, description: files.Description) -> dict[str, Any]:
    """What tells an operand from another one, wherever it lies."""
    return {
        "dtype": description.dtype.str,
        "shape": list(description.shape),
        "bytes": path.stat().st_size,
        "sha256": files.sha256_of_file(path),
    }


class _Source:
    """An operand's file, which has to stay what it was when it was hashed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = self._now()

    def check(self) -> None:
        """FileError where the file has been written to, or replaced, since."""
        if self._now() != self._state:
            raise FileError(f"{self._path}: changed while it was multiplied; multiply again once it stays as it is")

    def _now(self) -> tuple[int, ...] | None:
        try:
            found = self._path.stat()
        except OSError:  # whoever reads it says so
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@contextmanager
def _operand(path: Path, directory: Path, room: int) -> Iterator[np.ndarray[Any, Any]]:
    """The matrix in ``path``; one from text that exceeds ``room`` bytes lies on disk meanwhile."""
    with ExitStack() as stack:

        def allocate(shape: tuple[int, int], dtype: np.dtype[Any], order: Literal["C", "F"]) -> np.ndarray[Any, Any]:
            nbytes = shape[0] * shape[1] * dtype.itemsize
            if nbytes <= room:
                return files.zeros(shape, dtype, order)
            name = directory / path.name
            with explained(name):
                scratch = stack.enter_context(tempfile.TemporaryFile(dir=directory))
                reserve(scratch, name, nbytes)
            return np.asarray(np.memmap(scratch, dtype, "r+", 0, shape, order))

        yield files.read(path, allocate)


def _multiply(
    request: Request,
    grid: tiling.Grid,
    left: np.ndarray[Any, Any],
    right: np.ndarray[Any, Any],
    target: Target,
    journal: Journal,
    sources: list[_Source],
    asked: list[int],
) -> None:
    """Make every tile that the journal does not list, one column panel of B after the other.

    asked: signals that came. An exception raised in a library's callback is lost, so they are looked at after each
    tile too.
    """
    pending: dict[tuple[int, int], dict[str, Any]] = {}

    def checkpoint() -> None:
        for source in sources:
            source.check()
        target.flush()
        journal.tiles.update(pending)
        pending.clear()
        journal.save()

    panel: Any
    logical = target.dtype.kind == "b"  # of bools alone, for which no type of counts was asked
    # 64-bit integers need not be floats, and only those are prepared; a logical or takes targets that counts do not.
    preparable = not logical and not any(x.dtype.kind in "iu" and x.dtype.itemsize == 8 for x in (left, right))
    last = time.monotonic()
    with progress(request.quiet) as bar:
        task = bar.add_task("multiplying", total=len(grid), completed=len(journal.tiles))
        try:
            for j in range(grid.column_panels):
                missing = [i for i in range(grid.row_panels) if (i, j) not in journal.tiles]
                if not missing:
                    continue
                panel = None  # two at once would not fit
                panel = _native(right[:, grid.column_slice(j)])
                how = request.options | {"out_dtype": None if logical else target.dtype}
                if len(missing) > 1 and preparable:
                    panel = prismm.prepare(panel, side="right", **how)
                    how = {"threads": how["threads"], "out_dtype": target.dtype}  # the panel brings the rest
                for i in missing:
                    rows = _native(left[grid.row_slice(i)])
                    tile, report = prismm.matmul(rows, panel, full_output=True, **how)
                    sha256 = target.write(grid.row_slice(i).start, grid.column_slice(j).start, tile)
                    record = tile_record(report)
                    if logical:  # the report's bounds are those of counts
                        record |= {"worst": 0.0, "unbounded": 0, "largest": float(tile.any())}
                    pending[i, j] = record | {"sha256": sha256}
                    if time.monotonic() - last > _CHECKPOINT:
                        checkpoint()
                        last = time.monotonic()
                    bar.advance(task)
                    if asked:
                        raise _Stop(asked[0])
        except KeyboardInterrupt:
            with _unstoppable():
                checkpoint()
            raise
        checkpoint()


def _interrupted(stop: KeyboardInterrupt, target: Target, journal: Journal, grid: tiling.Grid) -> Interrupted:
    """Keep what is finished, or clean up where nothing is, and say so."""
    if journal.tiles:
        target.close()
        message = (
            f"interrupted; {len(journal.tiles)} of {len(grid)} tiles are kept in {target.part}; "
            "the same command with --resume continues"
        )
    else:
        target.discard()
        journal.remove()
        message = f"interrupted before the first of {len(grid)} tiles; nothing is kept"
    return Interrupted(message, _exit_code(stop))


def _exit_code(stop: KeyboardInterrupt) -> int:
    """What a shell expects of a process that a signal ended."""
    return 128 + (stop.number if isinstance(stop, _Stop) else signal.SIGINT)


def _native(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A block in this machine's byte order."""
    return block if block.dtype.isnative else block.astype(block.dtype.newbyteorder("="))


def _accuracy_text(options: dict[str, Any]) -> str:
    accuracy = options["accuracy"]
    if accuracy is None:
        return "native" if options["scheme"] is None else "as the scheme gives it"
    return str(accuracy)


_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def _stoppable() -> Iterator[list[int]]:
    """Ctrl-C, termination and a closed terminal all end the work in an orderly way; yields the signals that came."""
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        raise _Stop(number)

    with _handled(stop):
        yield asked


@contextmanager
def _unstoppable() -> Iterator[None]:
    """Signals wait outside: what is inside takes moments and must be whole."""
    with _handled(signal.SIG_IGN):
        yield


@contextmanager
def _handled(handler: Any) -> Iterator[None]:
    """The handler for every signal that asks the process to end."""
    if threading.current_thread() is not threading.main_thread():  # only it can handle signals
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # What is ignored stays so (nohup), and what Python did not install cannot be put back.
    ours = [number for number, old in before.items() if old not in (signal.SIG_IGN, None)]
    for number in ours:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
