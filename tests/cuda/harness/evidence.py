"""What kernels compile to, and what the interpreter makes of them, kept by what it follows from.

A *case* is one line of facts that a module of the tests tells (`tell`): how many entries are wrong, how many matrix
instructions a kernel has. It follows from the kernels' sources and everything that they import, the launches (grids,
constants, arguments, tables), the operands, what a CPU returned for comparison, Triton's version, the interpreter and
the case's own source. All of these go into a hash. Finding it takes no kernel: `Recorder` runs a module once without
running or compiling any, and notes what would have been. A case whose hash stands in the committed record with its
facts has nothing to add; any other runs.

Records are files of JSON in `tests/gpu/records/`, one for each module, with a digest of their own contents.
"""

from __future__ import annotations

import ast
import fcntl
import functools
import hashlib
import inspect
import io
import json
import os
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
FOLDER = Path(__file__).parents[1] / "records"
FOLLOWED = re.compile(r"tests\.|prismm\.cuda\.(\w+\.)?kernels\.|prismm\.testing|prismm\.core\.(bounds|specials)\.")
"""Imports whose sources belong to a case: of all other modules of prismm, what they return does."""


class EvidenceError(Exception):
    """A record that does not hold what its digest or its hashes say."""


# --- Sources ----------------------------------------------------------------------------------------------------------


def code_of(text: str) -> str:
    """Python source without comments, docstrings, blank lines and trailing blanks; the same by any Python."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (int(node.end_lineno or 0) - node.lineno + 1)
    return "\n".join(line for line in map(str.rstrip, lines) if line)


@functools.cache
def _parsed(path: Path) -> tuple[str, tuple[Path, ...]]:
    """A file's code without comments, docstrings and layout, and the followed modules that it imports."""
    text = path.read_text()
    tree = ast.parse(text)
    imported: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported += [x.name for x in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported += [node.module, *(f"{node.module}.{x.name}" for x in node.names)]
    found = {_path_of(name) for name in imported if FOLLOWED.match(f"{name}.")}
    return code_of(text), tuple(sorted(x for x in found if x is not None))


def _path_of(module: str) -> Path | None:
    parts = module.split(".")
    base = (ROOT if parts[0] == "tests" else SOURCES).joinpath(*parts)
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _sources() -> Path:
    import prismm

    return Path(prismm.__file__).parents[1]


SOURCES = _sources()


@functools.cache
def closure(*paths: Path) -> str:
    """A hash of files and all that they import from the followed packages."""
    seen: dict[Path, str] = {}
    left = list(paths)
    while left:
        path = left.pop()
        if path not in seen:
            seen[path], more = _parsed(path)
            left += more
    return hashlib.sha256(json.dumps(sorted(seen.values())).encode()).hexdigest()


def kernel_source(kernel: Any) -> str:
    """A kernel's name, with a hash of its file and what that imports."""
    function = kernel.fn
    return f"{function.__name__} {closure(Path(inspect.getsourcefile(function) or ''))}"


def common() -> str:
    """What every case follows from: Triton, this file, and what stands between a program and its kernels."""
    from prismm.cuda.launch import program as launch
    from prismm.cuda.launch.compile import as_tensor, described_to_triton

    own = [inspect.getsource(x) for x in (launch.Program.run_by_triton, as_tensor, described_to_triton)]
    helpers = closure(*(Path(__file__).with_name(f"{x}.py") for x in ("interpreter", "gluon_interpreter", "ptx")))
    return hashlib.sha256(json.dumps([version("triton"), *own, helpers]).encode()).hexdigest()


# --- Contents ---------------------------------------------------------------------------------------------------------


def contents(x: Any) -> str:
    """A hash of an array's or tensor's type, shape, strides and elements; every NaN counts as the same."""
    import numpy as np
    import torch

    told = f"{x.dtype} {tuple(x.shape)}"
    if isinstance(x, torch.Tensor):
        told += f" {tuple(x.stride())}"
        x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
        x = (x.contiguous().view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()
    x = np.ascontiguousarray(x)
    real = x.view(x.real.dtype) if x.dtype.kind == "c" else x
    if real.dtype.kind == "f":
        real = np.where(np.isnan(real), np.nan, real)
    return f"{told} {hashlib.sha256(real.tobytes()).hexdigest()}"


def described(x: Any) -> str:
    """An argument or constant of a launch as text, without addresses."""
    from prismm.cuda.launch.arguments import Tiled

    if hasattr(x, "data_ptr"):
        return contents(x)
    if isinstance(x, Tiled):
        return f"Tiled({described(x.buffer)}, {x.shape}, {x.strides}, {x.box}, {x.layout})"
    if callable(x) and hasattr(x, "__qualname__"):
        return f"{x.__module__}.{x.__qualname__}"
    return repr(x)


def launches(program: Any) -> Iterator[str]:
    """A program as text, a launch a line."""
    yield f"{program.alignments} {program.workspace}"
    for launch in program.launches:
        kernel = getattr(launch, "kernel", None)
        if kernel is None:
            yield repr(launch) if is_dataclass(launch) else type(launch).__name__
            continue
        constants = {name: described(x) for name, x in sorted(launch.constants.items())}
        yield f"{kernel_source(kernel)} {launch.grid} {[described(x) for x in launch.arguments]} {constants}"


def specialised(program: Any, launch: Any) -> str:
    """What one launch's kernel is compiled for: of integers, whether they are 1 or multiples of 16."""
    from prismm.cuda.launch.arguments import BufferView

    def kind(x: Any) -> str:
        if isinstance(x, BufferView):
            return f"{x.dtype} {program.aligned(x)}"
        if isinstance(x, int) and not isinstance(x, bool):
            return "1" if x == 1 else f"{x % 16 == 0} {abs(x) >> 31 > 0}"
        if hasattr(x, "data_ptr"):
            return f"{x.dtype} {x.data_ptr() % 16}"
        return described(x)

    constants = {name: described(x) for name, x in sorted(launch.constants.items())}
    return f"{kernel_source(launch.kernel)} {[kind(x) for x in launch.arguments]} {constants}"


# --- Records ----------------------------------------------------------------------------------------------------------

Cases = dict[str, tuple[str, dict[str, Any]]]
"""Hash and facts by a case's name: the module's arguments, what the case is called, and which of that name it is."""


def _digest(cases: Cases) -> str:
    return hashlib.sha256(json.dumps(cases, sort_keys=True).encode()).hexdigest()


def read(module: str, folder: Path = FOLDER) -> Cases:
    """The record of a module, empty where there is none.

    Raises:
        EvidenceError: the file is not what was written.
    """
    path = folder / f"{module}.json"
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
        cases = {name: (key, facts) for name, (key, facts) in found["cases"].items()}
    except (ValueError, KeyError, TypeError) as error:
        raise EvidenceError(f"{path.name} is no record of evidence: {error}") from error
    if found["digest"] != _digest(cases):
        raise EvidenceError(f"{path.name} does not hold what its digest says: record it anew (make evidence)")
    return cases


def write(module: str, arguments: str, told: Cases, folder: Path = FOLDER) -> None:
    """Replace the cases of a module with these arguments; processes that write take turns."""
    folder.mkdir(exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cases = {name: case for name, case in read(module, folder).items() if not name.startswith(f"{arguments} [")}
        cases |= told
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(cases[name])}" for name in sorted(cases))
        path = folder / f"{module}.json"
        path.with_suffix(".new").write_text(f'{{"digest": "{_digest(cases)}", "cases": {{\n{lines}\n}}}}\n')
        path.with_suffix(".new").replace(path)
    finally:
        os.close(lock)


# --- Cases ------------------------------------------------------------------------------------------------------------


class Recorder:
    """Follows the cases of one module: hashes in a first pass that runs no kernel, facts where they have to run."""

    def __init__(self, module: str, source: Path, arguments: Iterable[str]) -> None:
        self.arguments = " ".join(arguments)
        self._start = f"{common()} {closure(source)} {module} {self.arguments}"
        self.told: list[tuple[str, str, dict[str, Any]]] = []
        """Name, hash and facts of each case so far in this pass."""
        self.wanted: set[str] | None = None
        """Cases that run in this pass; None in the first one, in which none does."""
        self._names: dict[str, int] = {}
        self._events: list[str] = []

    def note(self, *events: str) -> None:
        """What the case that is told next follows from."""
        assert not any(" at 0x" in event for event in events), "an address would make every hash new"
        self._events += events

    @property
    def runs(self) -> bool:
        """Whether kernels of the case that is told next are to run."""
        return self.wanted is not None and len(self.told) in self._wanted_places

    def again(self, wanted: set[str]) -> None:
        """Begin the pass in which the wanted cases run."""
        self._wanted_places = {x for x, (name, _, _) in enumerate(self.told) if name in wanted}
        self.wanted, self.told, self._names, self._events = wanted, [], {}, []

    def tell(self, case: list[Any], **facts: Any) -> None:
        """End a case. case: what it is called."""
        label = f"{self.arguments} {json.dumps(case)}"
        self._names[label] = count = self._names.get(label, 0) + 1
        name = label if count == 1 else f"{label} {count}"
        key = hashlib.sha256(json.dumps([self._start, name, *self._events]).encode()).hexdigest()[:24]
        self.told.append((name, key, {"case": case, **facts}))
        self._events = []


_RECORDER: Recorder | None = None


def tell(case: list[Any], **facts: Any) -> None:
    """End a case of the module that runs: what it is called, and what was found."""
    if _RECORDER is None:
        print(json.dumps({"case": case, **facts}), flush=True)
    else:
        _RECORDER.tell(case, **facts)


def note(*events: Any) -> None:
    """Numbers that the case which is told next follows from, beside programs, operands and a CPU's products."""
    if _RECORDER is not None:
        _RECORDER.note(*map(repr, events))


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """A kernel without a program, where the case that is told next wants it to run."""
    followed = _RECORDER
    if followed is None or followed.runs:
        kernel[grid](*arguments, **constants)
    else:
        followed.note(kernel_source(kernel), f"{grid} {sorted(constants.items())}", *map(described, arguments))


def runs() -> bool:
    """Whether the case that is told next is to run."""
    return _RECORDER is None or _RECORDER.runs


def recorder() -> Recorder | None:
    """Of the module that runs."""
    return _RECORDER


def cases_of(
    module: str, source: Path, arguments: list[str], main: Callable[..., None], known: Cases, fresh: bool
) -> tuple[Cases, list[str]]:
    """The cases that a module tells, and which of them ran: those that are not known, or all.

    Raises:
        EvidenceError: a case that ran has other facts than the record says of its hash, or the passes differ.
    """
    global _RECORDER
    followed = _RECORDER = Recorder(module, source, arguments)
    try:
        main(*arguments)
        first = followed.told
        if len({name for name, _, _ in first}) != len(first):
            raise EvidenceError(f"{module} {arguments} tells two cases of one name")
        wanted = {name for name, key, _ in first if fresh or known.get(name, ("",))[0] != key}
        if wanted:
            followed.again(wanted)
            main(*arguments)
            if [name for name, _, _ in followed.told] != [name for name, _, _ in first]:
                raise EvidenceError(f"{module} {arguments} tells other cases where kernels run")
        found: Cases = {}
        for (name, key, _), (_, _, facts) in zip(first, followed.told, strict=True):
            facts = json.loads(json.dumps(facts))
            if name not in wanted:
                facts = known[name][1]
            elif name in known and known[name][0] == key and known[name][1] != facts:
                raise EvidenceError(f"{name} of {module} gives {facts}; the record says {known[name][1]}")
            found[name] = key, facts
        return found, sorted(wanted)
    finally:
        _RECORDER = None
