"""Rates of a GPU from timed calls: what ``prismm calibrate`` measures, and the lines through it.

Every kernel's time is a launch and so much for every element and modulus (`cuda_rates.Line`): non-negative coefficients
that make the relative errors' sum of squares least. The rest are medians.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from prismm import cuda_words_calls as words
from prismm.cuda_plan import LONG, Need, residue_operations, shape_of, uninterrupted, written_seconds
from prismm.cuda_rates import Line, Rates, once_over
from prismm.engines import cuda_direct
from prismm.engines.cuda import BLAS
from prismm.engines.cuda_slices import FP64 as FP64_UNIT
from prismm.formats import FP64
from prismm.schemes.native import Native
from prismm.schemes.residues import Residues
from prismm.schemes.scaled_half import ScaledHalf

if TYPE_CHECKING:
    import torch

__all__ = ["Timed", "fit", "measure", "phases_of", "seconds_of"]

LEFT = ("split_rows", "split_rows_at_once")
RIGHT = ("largest_columns", "sum_columns", "split_columns", "split_columns_at_once")
LOOKS = ("look_again", "finish")
"""Kernels that split left and right operands, and that see to what a join leaves; `Timed.phases` has their names."""
_DIRECT = "multiply_directly"


class Case(NamedTuple):
    """A call that is timed: order, type, scheme, accuracy, engine."""

    n: int
    dtype: str
    scheme: Any
    accuracy: str = "native"
    engine: str | None = None


_SMALL = (512, 1024)
_LARGE = (2048, 4096, 8192)
CASES: tuple[Case, ...] = (
    *(Case(n, "float64", Native(), engine=BLAS) for n in (64, *_LARGE)),
    *(Case(n, "float64", Native(), engine=FP64_UNIT) for n in (64, *_SMALL)),
    *(Case(n, "float32", Native("float64")) for n in (64, *_SMALL)),
    *(Case(n, "float64", Residues(14)) for n in (*_SMALL, *_LARGE)),
    *(Case(n, "float64", Residues(18)) for n in (*_SMALL, *_LARGE)),
    *(Case(n, "float64", Residues(20), "correctly-rounded") for n in _LARGE),
    *(Case(n, "float32", Residues(8)) for n in (*_SMALL, *_LARGE)),
    *(Case(n, "float32", Residues(13), "correctly-rounded") for n in _LARGE),
    *(Case(n, "float32", ScaledHalf(chunk=128)) for n in (*_SMALL, *_LARGE)),
)
"""All of them."""

_REPEATS = 7
_TOGETHER, _TOGETHER_SECONDS = 20, 2e-3
"""Calls of a graph, so that what comes before the first one counts for little, and how long they take at most."""
_BUSY_SECONDS = 1.0
"""How long products of residues run at a stretch, to see what power leaves of their rate."""
_REPAIR = 5e-11
"""Seconds that repair takes for an entry and term; it shows in few calls, so it is taken from an H200."""


@dataclass(frozen=True)
class Timed:
    """A timed call: what was asked, the scheme, seconds of the call, of the GPU's own product, of each kernel."""

    need: Need
    scheme: Any
    seconds: float
    native_seconds: float
    phases: dict[str, float]


def fit(
    name: str,
    processors: int,
    timed: Iterable[Timed],
    *,
    launch: float,
    memory: float,
    sustained: float | None = None,
    repair: float = _REPAIR,
) -> Rates:
    """The rates that fit timed calls of real data best.

    Args:
        name, processors: of the GPU.
        timed: calls; among them, by residues, such of two sizes and two numbers of moduli, of native grade and
            correctly rounded; some with words, by cuBLAS, and in one kernel; float64 and float32.
        launch, memory, sustained, repair: measured otherwise; sustained None: from calls that took long.
    """
    calls = [one for one in timed if not one.need.is_complex]
    residues = [one for one in calls if isinstance(one.scheme, Residues)]
    short = [one for one in residues if one.phases["residue_product"] < LONG]
    products = _line([(1.0, _operations(one, processors)) for one in short], _phase(short, "residue_product"))
    int8 = 1.0 / products[1]
    if sustained is None:
        long = [one for one in residues if one.phases["residue_product"] >= 2 * LONG]
        found = [_operations(one, processors) / one.phases["residue_product"] for one in long]
        sustained = min(int8, statistics.median(found)) if found else int8
    native = [one for one in residues if not one.need.rounded]
    direct = [one for one in calls if _DIRECT in one.phases]
    cublas = [one for one in calls if isinstance(one.scheme, Native) and _DIRECT not in one.phases]
    wordy = [one for one in calls if "words_product" in one.phases]
    own = {p: [one for one in calls if one.need.result.precision == p] for p in (53, 24)}
    finished = [one for one in native if one.need.result == FP64]
    looks = _line([(1.0, one.need.m * one.need.n) for one in finished], [_sum(one, LOOKS) for one in finished])
    split = _line(
        [(1.0, math.prod(words.split_work(one.scheme, one.need))) for one in wordy], _phase(wordy, "split_words")
    )
    return Rates(
        name=name,
        processors=processors,
        float64=_own_rate(own[53], processors, launch, memory),
        float32=_own_rate(own[24], processors, launch, memory),
        launch=launch,
        memory=memory,
        call=max(1e-6, _before(residues + wordy)),
        call_natively=max(1e-6, _before(cublas)),
        call_directly=max(1e-6, _before(direct)),
        int8=int8,
        sustained=sustained,
        product=max(products[0], 1e-9),
        left=_by_moduli(residues, lambda one: _sum(one, LEFT), lambda need: need.m * need.k),
        right=_by_moduli(residues, lambda one: _sum(one, RIGHT), lambda need: need.k * need.n),
        join=_by_moduli(native, lambda one: one.phases["join_quickly"], lambda need: need.m * need.n),
        rounded=_by_moduli(
            [one for one in residues if one.need.rounded],
            lambda one: one.phases["join_quickly"],
            lambda need: need.m * need.n,
        ),
        finish=Line(looks[0], looks[1], 0.0),
        repair=repair,
        words=statistics.median(
            _operations(one, processors) / (one.phases["words_product"] - once_over(one.need.result_bytes, memory))
            for one in wordy
        ),
        split_words=Line(split[0], 0.0, split[1]),
        direct=statistics.median(
            one.phases[_DIRECT] / cuda_direct.seconds_of(shape_of(one.need), processors, 1.0, math.inf)
            for one in direct
        ),
    )


def _phase(calls: list[Timed], name: str) -> list[float]:
    return [one.phases[name] for one in calls]


def _sum(one: Timed, names: tuple[str, ...]) -> float:
    """Of those of these kernels that ran."""
    return sum(one.phases.get(name, 0.0) for name in names)


def _operations(one: Timed, processors: int) -> float:
    """Of a call's products of residues or words, as predictions count them."""
    if isinstance(one.scheme, Residues):
        return residue_operations(one.need, one.scheme.moduli, processors)
    return words.operations(one.scheme, one.need, processors)


def _own_rate(calls: list[Timed], processors: int, launch: float, memory: float) -> float:
    """Operations a second of the GPU's own products of a type."""
    rates = []
    for one in calls:
        need = one.need
        busy = one.native_seconds - launch - written_seconds(need, memory)
        seconds = uninterrupted(need, max(busy, 1e-9), processors)
        rates.append(2.0 * need.m * need.n * need.k / seconds)
    return statistics.median(rates)


def _before(calls: list[Timed]) -> float:
    """Seconds of a call that none of its kernels takes: the median of what is left of calls when the times of their
    kernels are taken off. That is as uncertain as those, so that short calls have more weight.
    """
    left = []
    for one in calls:
        inside = one.native_seconds if isinstance(one.scheme, Native) and _DIRECT not in one.phases else 0.0
        left.append((one.seconds - inside - sum(one.phases.values()), one.seconds**-2))
    rest = sum(weight for _, weight in left) / 2.0
    for seconds, weight in sorted(left):
        rest -= weight
        if rest <= 0.0:
            return seconds
    return 0.0


def _by_moduli(calls: list[Timed], seconds: Callable[[Timed], float], elements: Callable[[Need], int]) -> Line:
    rows = [(1.0, float(elements(one.need)), float(elements(one.need) * one.scheme.moduli)) for one in calls]
    return Line(*_line(rows, [seconds(one) for one in calls]))


def _line(rows: Sequence[tuple[float, ...]], seconds: Sequence[float]) -> list[float]:
    """Coefficients c >= 0 with the least Σ(rows·c/seconds - 1)²: the best of those of all subsets of columns.

    >>> [round(x, 6) for x in _line([(1, 2), (1, 4), (1, 8)], [7.0, 13.0, 25.0])]
    [1.0, 3.0]
    """
    import numpy as np

    matrix = np.array(rows, float) / np.array(seconds, float)[:, None]
    wanted, width = np.ones(len(rows)), matrix.shape[1]
    best, least = np.zeros(width), math.inf
    for size in range(1, width + 1):
        for some in itertools.combinations(range(width), size):
            chosen = matrix[:, some]
            scale = np.abs(chosen).max(axis=0)
            found = np.linalg.lstsq(chosen / scale, wanted, rcond=None)[0] / scale
            error = float(np.square(chosen @ found - wanted).sum())
            if (found >= 0.0).all() and error < least * (1.0 - 1e-9):
                best, least = np.zeros(width), error
                best[list(some)] = found
    return [float(x) for x in best]


def measure(index: int, say: Callable[[str], None]) -> Rates:
    """The rates of a GPU: two or three minutes, on a device that does nothing else.

    Raises:
        EngineError: for a GPU on which prismm does not run.
    """
    import torch

    from prismm.engines import cuda

    device = cuda.device_of(index)
    properties = torch.cuda.get_device_properties(index)
    free = torch.cuda.mem_get_info(index)[0]
    with torch.cuda.device(index):
        timed = []
        for case in CASES:
            if 40 * case.n**2 * (8 if case.dtype == "float64" else 4) > free:
                continue
            say(f"{case.scheme} of order {case.n}, {case.dtype}, {case.accuracy}")
            timed.append(_timed(case))
        say("launches, memory, a second of products at a stretch")
        tiny = torch.ones(32, 32, device="cuda")
        launch = _seconds(lambda: torch.mm(tiny, tiny))
        block = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
        other = torch.empty_like(block)
        memory = 2 * block.numel() / _seconds(lambda: other.copy_(block))
        sustained = _sustained(properties.multi_processor_count, free)
    return fit(
        device.name, properties.multi_processor_count, timed, launch=launch, memory=memory, sustained=sustained
    )  # fmt: skip


def _timed(case: Case) -> Timed:
    import torch

    import prismm
    from prismm import cuda_calls

    n, kind = case.n, getattr(torch, case.dtype)
    torch.manual_seed(n)
    a, b = (torch.randn(n, n, dtype=kind, device="cuda") for _ in range(2))
    out, own = torch.empty_like(a), torch.empty_like(a)
    cuda_calls.forget()

    def ours() -> None:
        prismm.matmul(a, b, out=out, scheme=case.scheme, accuracy=case.accuracy, engine=case.engine)

    def theirs() -> None:
        torch.mm(a, b, out=own)

    for _ in range(5):  # calls at addresses that were seen several times are one launch
        ours()
        theirs()
    pairs = [(seconds_of(ours), seconds_of(theirs)) for _ in range(_REPEATS)]
    (call,) = cuda_calls.known()
    phases = phases_of(call, a, b, out)
    if not call.native:
        # One by one kernels take a few microseconds longer than one after the other.
        share = _replayed(ours, statistics.median(x for x, _ in pairs)) / sum(phases.values())
        phases = {name: share * seconds for name, seconds in phases.items()}
    return Timed(
        call.need, case.scheme, statistics.median(x for x, _ in pairs), statistics.median(y for _, y in pairs), phases
    )


def _replayed(call: Callable[[], None], seconds: float) -> float:
    """Seconds that a call, which takes so long by itself, takes the device, by replays of a graph of some."""
    import torch

    count = max(1, min(_TOGETHER, int(_TOGETHER_SECONDS / seconds)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    return _seconds(graph.replay) / count


def phases_of(call: Any, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> dict[str, float]:
    """Seconds of the kernels of a `GpuCall` that ran on these operands, one by one, each right after the one before it;
    those that see to what a join leaves after all from the join on, since they leave nothing for the next time.
    """
    found: dict[str, float] = {}
    before: list[Callable[[], Any]] = []
    for name, run in _apart(call, a, b, out):
        found[name] = found.get(name, 0.0) + _seconds(run, functools.partial(_all_of, tuple(before)))
        before = [*before, run] if name in LOOKS or name == "join_quickly" else [run]
    return found


def _all_of(calls: tuple[Callable[[], Any], ...]) -> None:
    for call in calls:
        call()


def _apart(call: Any, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> list[tuple[str, Callable[[], None]]]:
    """The call's kernels by name, each to be run for itself, over the scratch memory of a whole run."""
    import torch

    (queued,) = call.programs.values()
    scratch = torch.empty(queued.program.scratch, dtype=torch.uint8, device=a.device)
    bases = a.data_ptr(), b.data_ptr(), out.data_ptr(), scratch.data_ptr()
    stream = torch.cuda.current_stream().cuda_stream
    queued.program.run(bases, stream)
    return [(name, functools.partial(_run, one, bases, stream, scratch)) for name, one in queued.program.apart()]


def _run(program: Any, bases: tuple[int, ...], stream: int, scratch: torch.Tensor) -> None:
    """A program over its memory, of which the scratch has to be alive."""
    program.run(bases, stream)


def _sustained(processors: int, free: int) -> float:
    """Operations a second of products of residues that run for long, of so many bytes of memory."""
    import torch

    import prismm
    from prismm import cuda_calls

    scheme = Residues(14)
    # In one block, so that there is one product.
    n = 8192 if 4 * scheme.moduli * 8192**2 < free // 4 else 4096
    a, b = (torch.randn(n, n, dtype=torch.float64, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    cuda_calls.forget()
    prismm.matmul(a, b, out=out, scheme=scheme, accuracy="native")
    (call,) = cuda_calls.known()
    product = dict(_apart(call, a, b, out))["residue_product"]
    count = max(4, round(_BUSY_SECONDS / _seconds(product)))

    def many() -> None:
        for _ in range(count):
            product()

    many()
    return residue_operations(call.need, scheme.moduli, processors) * count / seconds_of(many)


def _seconds(call: Callable[[], Any], before: Callable[[], Any] | None = None) -> float:
    """The median of some calls on the device, each after another one that is not timed."""
    seconds_of(call, before)
    return statistics.median(seconds_of(call, before) for _ in range(_REPEATS))


def seconds_of(call: Callable[[], Any], before: Callable[[], Any] | None = None) -> float:
    """One call on the device, by events, after another one that is not timed."""
    import torch

    if before is not None:
        before()
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    stop.record()
    stop.synchronize()
    return 1e-3 * float(start.elapsed_time(stop))
