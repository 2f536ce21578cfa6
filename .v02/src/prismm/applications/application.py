"""What every application shares: its description, timing beside the native run, verdicts, a command line."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prismm.applications.tables import machine
from prismm.applications.ways import Way, way
from prismm.errors import ArgumentError, EngineError

DEFAULT_WAYS = "tf32,bf16,default,reproducible,correctly-rounded"


class Unavailable(Exception):
    """The application needs something that is not installed; the message says what to install."""


@dataclass(frozen=True)
class Verdict:
    """How good an output is.

    error: relative error against the certified reference. passed: whether the application's own criterion holds.
    detail: what was looked at, in words.
    """

    error: float
    passed: bool
    detail: str


@dataclass(frozen=True)
class Application:
    """A program: input of a size from a seed, what is timed, and what its output is judged by.

    make(size, seed, device, dtype) -> problem; solve(problem) -> output; refer(problem) -> reference, whose products
    are certified or exact; judge(problem, output, reference) -> Verdict. sizes: of the whole measurement by device,
    and "quick" for tests. dtypes: what it solves in; float64 only where that is of use.
    """

    name: str
    title: str
    make: Callable[[int, int, str, torch.dtype], Any]
    solve: Callable[[Any], Any]
    refer: Callable[[Any], Any]
    judge: Callable[[Any, Any, Any], Verdict]
    sizes: dict[str, int]
    dtypes: tuple[str, ...] = ("float32",)


def synchronise(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def timed(call: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Seconds of a call on the wall's clock, the device's work included, and its result."""
    synchronise(device)
    start = time.perf_counter()
    result = call()
    synchronise(device)
    return time.perf_counter() - start, result


def measure(
    app: Application, device: str, size: int, seed: int, dtype: str, names: Sequence[str], repeats: int
) -> Iterator[dict[str, Any]]:
    """Rows of one problem: the native way first, then the others, all timed in turn after a first run that is judged.

    A way that this machine cannot go, or on which the program breaks down, gives a row without numbers that says why.
    """
    problem = app.make(size, seed, device, getattr(torch, dtype))
    reference = app.refer(problem)
    known = {name: way(name, device) for name in ("native", *names)}
    fixed = {"app": app.name, "device": device, "dtype": dtype, "size": size, "seed": seed}

    def run(way: Way) -> tuple[float, Any]:
        with way.context():
            return timed(lambda: app.solve(problem), device)

    verdicts: dict[str, Verdict] = {}
    missing: dict[str, str] = {}
    broken: set[str] = set()
    for name in known:
        missing[name] = known[name].missing
        if not missing[name]:
            try:
                verdicts[name] = app.judge(problem, run(known[name])[1], reference)
            except (ArgumentError, EngineError) as error:
                missing[name] = " ".join(str(error).split())
            except (ArithmeticError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
                missing[name] = " ".join(str(error).split())
                broken.add(name)
    seconds: dict[str, list[float]] = {name: [] for name in verdicts}
    for _ in range(repeats):
        for name in verdicts:
            seconds[name].append(run(known[name])[0])
    for name, reason in missing.items():
        if reason:
            row = {**fixed, "way": name, "guaranteed": known[name].guaranteed, "note": reason}
            yield row | ({"passed": False} if name in broken else {})
        else:
            yield _row(fixed, known[name], seconds["native"], seconds[name], verdicts[name], verdicts["native"].error)


def _row(
    fixed: dict[str, Any], way: Way, theirs: list[float], ours: list[float], verdict: Verdict, native_error: float
) -> dict[str, Any]:
    ratios = sorted(a / b for a, b in zip(theirs, ours, strict=True))
    return {
        **fixed,
        "way": way.name,
        "guaranteed": way.guaranteed,
        "speed": statistics.median(ratios),
        "speed_low": ratios[0],
        "speed_high": ratios[-1],
        "seconds": statistics.median(ours),
        "native_seconds": statistics.median(theirs),
        "error": verdict.error,
        "native_error": native_error,
        "passed": verdict.passed,
        "note": verdict.detail,
        "repeats": len(ours),
    }


def context(device: str) -> dict[str, Any]:
    """Columns that say where the numbers come from."""
    return {**machine(), "gpu": torch.cuda.get_device_name(0) if device == "cuda" else "", "threads": threads(device)}


def threads(device: str) -> int:
    """Threads of torch's products."""
    return torch.get_num_threads() if device == "cpu" else 0


def shown(row: dict[str, Any]) -> str:
    """One line of words."""
    head = f"{row['app']:<13} {row['dtype']:<8} {row['size']:>6} {row.get('way', ''):<18}"
    if "speed" not in row:
        return f"{head} {'FAILED' if 'passed' in row else 'not here'}: {row['note']}"
    passed = "passed" if row["passed"] else "FAILED"
    return (
        f"{head} x{row['speed']:<6.3g} {1e3 * row['seconds']:>9.4g} ms  error {row['error']:.3g} "
        f"(native {row['native_error']:.3g})  {passed}: {row['note']}"
    )


def main(*apps: Application) -> None:
    """The command line of one application; exits with 1 where a guaranteed way misses the criterion."""
    parser = argparse.ArgumentParser(
        description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--size", type=int, help="default: " + "; ".join(f"{a.name} {a.sizes}" for a in apps))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=sorted({dtype for app in apps for dtype in app.dtypes}), default="float32")
    parser.add_argument("--ways", default="native", help=f"native, or several such as {DEFAULT_WAYS}; any scheme too")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    failed = False
    for app in apps:
        size = options.size or app.sizes[options.device]
        try:
            rows = measure(
                app, options.device, size, options.seed, options.dtype, options.ways.split(","), options.repeats
            )
            for row in rows:
                print(shown(row), flush=True)
                failed |= row["guaranteed"] and not row.get("passed", True)
        except Unavailable as error:
            print(f"{app.name}: {error}", file=sys.stderr)
            failed = True
    sys.exit(failed)
