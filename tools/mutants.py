"""Plant faults in copies of this tree, one at a time, and see whether the tests notice.

    python tools/mutants.py                            # every fault of mutants.toml
    python tools/mutants.py kappa residue-bound        # some of them
    python tools/mutants.py --jobs 14 -o result.csv    # several copies at once, on a machine that has the processors
    python tools/mutants.py --tests-from ../older      # whether another checkout's suite notices
    python tools/mutants.py --draw 100 --seed 3        # small changes of any line that mutations.toml names, at random

A fault is a text of one file, another one in its place, and the tests that are expected to see it. It is caught where
pytest fails (exit status 1) and names a test, though the same tests pass in an unchanged copy, which is run once for
each set of tests. What ends otherwise (an import that fails, no such test, no answer in time) does not count. Ends with
0 if every fault is caught. A drawn change that is not caught need not be a fault: it may change nothing but speed.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import mutations

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".toml")
DRAWN = Path(__file__).with_name("mutations.toml")
SOURCE = Path("src/prismm")
_WIDER = (
    "tests/laws/test_gemm.py", "tests/laws/test_batches.py", "tests/laws/test_raw_value.py",
    "tests/laws/test_matmul.py", "tests/laws/test_laws.py", "tests/laws/test_degenerate.py", "tests/schemes",
    "tests/cpu", "tests/products", "tests/linalg",
)  # fmt: skip
"""Whose fast tests run where those of a group pass, unless the group names others."""
REPLACED = ("tests", "pyproject.toml")
"""What `--tests-from` takes from another checkout."""
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "build", "*.egg-info")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Tests:
    """Paths and node ids, and pytest's -k expression, which may be empty; wider: whose fast tests run if those pass."""

    paths: tuple[str, ...]
    k: str = ""
    wider: tuple[str, ...] = ()

    @property
    def runs(self) -> list[list[str]]:
        """Arguments of pytest, of one run after the other."""
        first = [*self.paths, *(["-k", self.k] if self.k else [])]
        return [first, [*self.wider, "-m", "not slow"]] if self.wider else [first]


@dataclass(frozen=True)
class Fault:
    """A text that stands `count` times in a file of prismm, what replaces it, and the tests that should see it."""

    name: str
    file: Path
    old: str
    new: str
    tests: Tests
    why: str
    count: int = 1

    def planted(self, text: str) -> str:
        """The file's text with the fault.

        Raises:
            ValueError: where the old text stands elsewhere or otherwise, or the new one is no Python.
        """
        if (found := text.count(self.old)) != self.count:
            raise ValueError(f"{self.name}: {self.file} has the old text {found} times, not {self.count}")
        changed = text.replace(self.old, self.new)
        try:
            compile(changed, self.file, "exec")
        except SyntaxError as error:
            raise ValueError(f"{self.name}: {error}") from error
        return changed


@dataclass(frozen=True)
class Drawn(Fault):
    """A small change, found in a file's syntax tree; `old` may stand elsewhere, too."""

    change: mutations.Mutation = field(kw_only=True)

    def planted(self, text: str) -> str:
        """The file's text with the change."""
        return self.change.applied(text)


@dataclass(frozen=True)
class Result:
    """Of one run of pytest: its exit status, None where it was stopped, and the first test that failed, or ""."""

    status: int | None
    failed: str
    seconds: float

    @property
    def noticed(self) -> bool:
        """Whether a test failed."""
        return self.status == 1 and self.failed != ""


def faults() -> list[Fault]:
    """The table, in order."""
    table = tomllib.loads(TABLE.read_text())
    return [
        Fault(
            name=name,
            file=SOURCE / entry["file"],
            old=entry["old"],
            new=entry["new"],
            tests=Tests(tuple(entry["tests"]), entry.get("k", "")),
            why=entry["why"],
            count=entry.get("count", 1),
        )
        for name, entry in table.items()
    ]


def drawn(names: list[str], count: int, seed: int) -> list[Fault]:
    """`count` changes of the files of these groups of mutations.toml, of all where none is named, at random."""
    groups = tomllib.loads(DRAWN.read_text())
    if unknown := set(names) - set(groups):
        sys.exit(f"no such group: {', '.join(sorted(unknown))}; mutations.toml has {', '.join(groups)}")
    found: list[Fault] = []
    for name in names or groups:
        for file in groups[name]["files"]:
            path = SOURCE / file
            text = (ROOT / path).read_text()
            for change in mutations.mutations(text):
                old = text[change.start : change.end]
                called = f"{file}:{change.line} {old!r} -> {change.new!r} at {change.start}"
                tests = Tests(tuple(groups[name]["tests"]), wider=tuple(groups[name].get("wider", _WIDER)))
                found.append(Drawn(called, path, old, change.new, tests, groups[name]["why"], change=change))
    return random.Random(seed).sample(found, min(count, len(found)))


def copy_tree(source: Path, target: Path, *parts: str) -> None:
    """The files that git knows or would add, of these parts of a checkout; all but caches where it is none of git's."""
    command = ["git", "-C", str(source), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *parts]
    listed = subprocess.run(command, capture_output=True, text=True)
    if (source / ".git").exists() and listed.returncode == 0:
        for name in filter(None, listed.stdout.split("\0")):
            if (source / name).is_file():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source / name, target / name)
    elif not parts:
        shutil.copytree(source, target, ignore=LEFT_OUT, dirs_exist_ok=True)
    else:
        for part in parts:
            take = shutil.copytree if (source / part).is_dir() else shutil.copy2
            take(source / part, target / part)


def environment(copy: Path, scratch: Path, cache: Path | None) -> dict[str, str]:
    """One thread for BLAS, none of the caller's settings; copies share kernels, compiled by their contents."""
    # On CI, evidence of kernels that have changed would fail for that alone.
    kept = {x: y for x, y in os.environ.items() if x != "CI" and not x.startswith(("PRISMM_", "PYTEST_"))}
    return kept | {
        "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
        "PRISMM_CACHE_DIR": str(cache or scratch / "kernels"), "TRITON_CACHE_DIR": str(scratch / "triton"),
    }  # fmt: skip


def run(fault: Fault | None, tests: Tests, scratch: Path, options: argparse.Namespace) -> Result:
    """The tests in a copy of its own, with a fault or without."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as folder:
        copy = Path(folder)
        copy_tree(ROOT, copy)
        if options.tests_from is not None:
            shutil.rmtree(copy / "tests")
            copy_tree(options.tests_from, copy, *REPLACED)
        if fault is not None:
            (copy / fault.file).write_text(fault.planted((copy / fault.file).read_text()))
        command = [options.python, "-m", "pytest", "-q", "-x", "-rfE", "-p", "no:cacheprovider"]
        command += [f"--seed={options.seed}", f"--timeout={options.timeout}"]
        status: int | None = 0
        with (copy / "output").open("w+") as output:
            for arguments in tests.runs:
                if status != 0:
                    break
                status = None
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = subprocess.run(
                        [*command, *arguments], cwd=copy, env=environment(copy, scratch, options.cache),
                        timeout=2 * options.timeout, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                    ).returncode  # fmt: skip
            output.seek(0)
            text = output.read()
        if options.verbose and (status != 1 if fault else status != 0):
            print(text, file=sys.stderr, flush=True)
    failed = FAILED.search(text)
    return Result(status, failed.group(1) if failed else "", time.monotonic() - start)


def told(result: Result) -> str:
    """What a run that says nothing of a fault ended with."""
    if result.status is None:
        return "stopped: no answer in time"
    return f"exit status {result.status}" + (f", {result.failed}" if result.failed else "")


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults, or groups to draw from (default: all)")
    parser.add_argument("--draw", type=int, metavar="N", help="plant N changes drawn from the files of mutations.toml")
    parser.add_argument("--list", action="store_true", help="print the faults, and why each is dangerous")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="copies at a time (default: 1)")
    parser.add_argument("--tests-from", type=Path, metavar="DIR", help="a checkout whose tests to run instead")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that runs pytest (default: this one)")
    parser.add_argument("--timeout", type=int, default=240, metavar="S", help="seconds a test, half of a run's (240)")
    parser.add_argument("--seed", type=int, default=1, help="of random numbers (default: 1)")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where kernels are compiled (default: anew)")
    parser.add_argument("-o", "--output", type=Path, metavar="CSV", help="a line a fault, as they come")
    parser.add_argument("--verbose", action="store_true", help="print what pytest says where a run is not as expected")
    options = parser.parse_args()
    options.tests_from = options.tests_from and options.tests_from.resolve()
    return options


def main() -> int:
    """Plant what was asked for; 0 if all is caught."""
    options = parsed()
    chosen = faults() if options.draw is None else drawn(options.names, options.draw, options.seed)
    if options.names and options.draw is None:
        table = {fault.name: fault for fault in chosen}
        if unknown := set(options.names) - set(table):
            sys.exit(f"no such fault: {', '.join(sorted(unknown))}; --list names them")
        chosen = [table[name] for name in options.names]
    if options.list:
        for fault in chosen:
            print(f"{fault.name:34} {fault.file.relative_to(SOURCE)}: {fault.why}")
        return 0
    for fault in chosen:
        fault.planted((ROOT / fault.file).read_text())
    # Interpreted kernels take longest: they begin first.
    chosen.sort(key=lambda fault: not fault.tests.paths[0].startswith("tests/cuda"))
    work: list[tuple[Fault | None, Tests]] = []
    for fault in chosen:
        work += [(None, fault.tests)] * ((None, fault.tests) not in work) + [(fault, fault.tests)]
    done: dict[tuple[Fault | None, Tests], Result] = {}
    caught: set[str] = set()
    with (
        tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as scratch,
        (options.output or Path(os.devnull)).open("w", newline="") as file,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        rows = csv.writer(file)
        rows.writerow(["name", "file", "caught", "seconds", "first failing test"])
        begun = {pool.submit(run, *each, Path(scratch), options): each for each in work}
        for number, future in enumerate(as_completed(begun), 1):
            each = begun[future]
            done[each] = future.result()
            for fault in [x for x in chosen if each in ((x, x.tests), (None, x.tests))]:
                plain, result = done.get((None, fault.tests)), done.get((fault, fault.tests))
                if plain is None or result is None:
                    continue
                if plain.status == 0 and result.noticed:
                    caught.add(fault.name)
                    what = result.failed
                else:
                    what = told(result) if plain.status == 0 else f"fails unchanged: {told(plain)}"
                word = "yes" if fault.name in caught else "no"
                rows.writerow([fault.name, fault.file, word, f"{result.seconds:.1f}", what])
                file.flush()
                print(f"[{number}/{len(work)}] {fault.name}: {word}, {result.seconds:.0f} s, {what}", flush=True)
    print(f"{len(caught)} of {len(chosen)} faults are caught")
    return 0 if len(caught) == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
