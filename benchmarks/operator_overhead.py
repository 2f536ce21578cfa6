"""How much longer a product of two 8 x 8 matrices takes by prismm's operators, or in a block of prismm.emulate, than by
torch.mm or torch.addmm, and how much longer an operator that does not multiply takes in a block.

All calls are eager, on one thread. Writes results/operator_overhead.csv.

The two are called in turn, in bursts; the overhead is the median of the differences of neighbouring bursts, and what
disturbs a burst disturbs its neighbour alike.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from _common import machine, write

import prismm
from prismm import Policy
from prismm.programs import operators

CALLS, BURSTS = 100, 400


def microseconds(call: Callable[[], Any]) -> float:
    """The thread's processor time of one call in a burst, which other programs do not add to."""
    start = time.thread_time()
    for _ in range(CALLS):
        call()
    return (time.thread_time() - start) / CALLS * 1e6


def compared(
    ours: Callable[[], Any], theirs: Callable[[], Any], block: AbstractContextManager[Any]
) -> dict[str, float]:
    """Medians, and quantiles of the differences. block: what a burst of ours runs in, entered before it."""

    def mine() -> float:
        with block:
            ours()
            return microseconds(ours)

    mine(), microseconds(theirs)
    pairs = [(mine(), microseconds(theirs)) for _ in range(BURSTS)]
    differences = sorted(x - y for x, y in pairs)
    return {
        "torch_us": statistics.median(y for _, y in pairs),
        "prismm_us": statistics.median(x for x, _ in pairs),
        "overhead_us": statistics.median(differences),
        "overhead_p20": differences[BURSTS // 5],
        "overhead_p80": differences[BURSTS * 4 // 5],
        "overhead_least": differences[0],
    }


def main() -> None:
    """Measure, print, write the CSV."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    matmul, gemm = operators.load().matmul.default, operators.load().gemm.default
    rows: list[dict[str, Any]] = []
    for dtype in (torch.float32, torch.float64):
        a = torch.randn(8, 8, dtype=dtype)
        wanting = a.clone().requires_grad_()
        none = contextlib.nullcontext()
        cases: list[tuple[str, Callable[[], Any], Callable[[], Any], AbstractContextManager[Any]]] = [
            ("torch.ops.prismm.matmul", lambda a=a: matmul(a, a, "native"), lambda a=a: torch.mm(a, a), none),
            ("prismm.matmul", lambda a=a: prismm.matmul(a, a), lambda a=a: torch.mm(a, a), none),
            ("matmul, with gradient", lambda a=wanting: matmul(a, a, "native"), lambda a=wanting: torch.mm(a, a), none),
            ("torch.ops.prismm.gemm", lambda a=a: gemm(a, a, a, "native"), lambda a=a: torch.addmm(a, a, a), none),
        ]
        again = prismm.emulate("native")
        mm, addmm = (lambda a=a: torch.mm(a, a)), (lambda a=a: torch.addmm(a, a, a))
        cases.append(("emulate, addmm", addmm, addmm, prismm.emulate("native")))
        cases.append(("emulate, a block for each call", again(mm), mm, none))
        for name, policy, function, x in (
            ("emulate", "native", torch.mm, a),
            ("emulate, with gradient", "native", torch.mm, wanting),
            ("emulate, off", Policy([]), torch.mm, a),
            ("emulate, no product", "native", torch.add, a),
        ):
            call = functools.partial(function, x, x)
            cases.append((name, call, call, prismm.emulate(policy)))
        for name, ours, theirs, block in cases:
            found = compared(ours, theirs, block)
            print(f"{name}, {dtype}: {found['overhead_us']:.1f} µs over {found['torch_us']:.1f}", flush=True)
            kind = str(dtype).removeprefix("torch.")
            settings = {"calls": CALLS, "bursts": BURSTS}
            rows.append({"what": name, "dtype": kind, "order": 8, **found, **settings, **machine()})
    print(write("operator_overhead", rows, ("what", "dtype", "order")))


if __name__ == "__main__":
    main()
