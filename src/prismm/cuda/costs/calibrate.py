"""Timed calls on a GPU, from which ``prismm calibrate`` makes a table of its rates (`cuda.costs.fit`).

Two kinds of times are taken. Of what the GPU takes, kernels and graphs of many calls, all is queued while the device is
held busy, so that it begins when the host is done: however slow that is, it is no part of them. Of what the host takes,
eager calls of prismm and of torch by turns, each on an idle GPU. All are taken in rounds, so that what disturbs the
machine for a while spoils few of a call's times.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from prismm.core.accuracy import Target
from prismm.core.problem import Problem
from prismm.cuda import device as cuda_device
from prismm.cuda.costs import host_speed as host_speed
from prismm.cuda.costs.fit import REPAIR_KERNELS, Pair, Timed, fit
from prismm.cuda.costs.table import Rates
from prismm.cuda.costs.tuning import Tuning
from prismm.cuda.device import BLAS, FP8, INT8, LONG_SUMS
from prismm.cuda.device import FP64 as FP64_UNIT
from prismm.cuda.launch import later
from prismm.cuda.residues.seconds import residue_operations
from prismm.errors import EngineError
from prismm.formats import FP32
from prismm.schemes.native import Native
from prismm.schemes.residues import Residues
from prismm.schemes.scaled_half import ScaledHalf

if TYPE_CHECKING:
    import torch

    from prismm.cuda.device import Device

__all__ = ["CASES", "Case", "Subject", "measure", "phases_of", "queued_seconds_of", "seconds_of", "times_of"]


class Case(NamedTuple):
    """A call that is timed: order, type, scheme, accuracy, engine."""

    n: int
    dtype: str
    scheme: Any
    accuracy: str = "native"
    engine: str | None = None


_TINY = (64, 128, 256)
_SMALL = (512, 1024)
_LARGE = (2048, 4096)
_LARGEST = 8192
CASES: tuple[Case, ...] = (
    *(Case(n, "float64", Native(), engine=BLAS) for n in (*_TINY, *_SMALL)),
    *(Case(n, "float64", Native(), engine=FP64_UNIT) for n in (64, *_SMALL)),
    *(Case(n, "float32", Native("float64")) for n in (64, *_SMALL)),
    *(Case(n, "float64", Residues(14), engine=INT8) for n in (*_SMALL, *_LARGE, _LARGEST)),
    *(Case(n, "float64", Residues(18), engine=INT8) for n in (*_SMALL, *_LARGE)),
    *(Case(n, "float64", Residues(20), "correctly-rounded", INT8) for n in (*_LARGE, _LARGEST)),
    *(Case(n, "float32", Residues(8), engine=INT8) for n in (*_SMALL, *_LARGE, _LARGEST)),
    *(Case(n, "float32", Residues(13), "correctly-rounded", INT8) for n in _LARGE),
    *(Case(n, "float32", ScaledHalf(chunk=128)) for n in (*_SMALL, *_LARGE, _LARGEST)),
)
"""All of them."""

ROUNDS, REPEATS = 2, 8
"""How often all are timed, and how often in a row."""
_UNTIMED = 6
"""Eager calls in turn that are not timed, before those that are."""
_TOGETHER, _TOGETHER_SECONDS = 100, 2e-3
"""Calls of a graph, so that what comes before the first one counts for little, and how long they take at most."""
_HELD, _LONGEST_HELD = 400_000, 1 << 30
"""Cycles for which the device is held until what is timed has been queued, at first and at most."""
_BUSY_SECONDS = 1.0
"""How long products of residues run at a stretch, to see what power leaves of their rate."""
_LONG_ENOUGH = 0.5
"""Seconds after which a kernel that takes long is not timed again."""


@dataclass(frozen=True)
class Subject:
    """What is timed of a case.

    Args:
        need, scheme: of the call.
        ours, theirs: the call, and torch's of the GPU's own product.
        replay, replay_theirs: graphs of so many of them.
        kernels: names of the call's kernels, each with what runs it and what is to run before it.
    """

    problem: Problem
    scheme: Any
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    replay: tuple[Callable[[], Any], int]
    replay_theirs: tuple[Callable[[], Any], int]
    kernels: list[tuple[str, Callable[[], Any], Callable[[], Any]]]


def measure(index: int, say: Callable[[str], None]) -> Rates:
    """The rates of a GPU: two or three minutes, on a device that does nothing else.

    Raises:
        EngineError: for a GPU on which prismm does not run.
    """
    import torch

    device = cuda_device.device_of(index)
    properties = torch.cuda.get_device_properties(index)
    free = torch.cuda.mem_get_info(index)[0]
    # The bytes of forty matrices are more than operands, planes and results of any case.
    cases = [case for case in CASES if 40 * case.n**2 * (8 if case.dtype == "float64" else 4) <= free]
    timed: dict[Case, Timed] = {}
    with torch.cuda.device(index):
        between = _seconds(lambda: None)
        for turn in range(ROUNDS):
            for case in cases:
                say(f"{case.scheme} of order {case.n}, {case.dtype}, {case.accuracy}{' again' * (turn > 0)}")
                found = times_of(_subject(case), between)
                timed[case] = timed[case].and_again(found) if turn else found
        say("memory, words cut where they are multiplied, a second of products at a stretch")
        count = properties.multi_processor_count
        memory, directly = _memory(between), _multiword_fused(device, count, between)
        sustained = _sustained(count, free)
        fp8 = fp8_rate(count) if device.fp8_sum_bits >= LONG_SUMS else 0.0
    return fit(
        device.name, count, timed.values(), memory=memory, sm90=device.sm90, sustained=sustained,
        multiword_fused=directly, fp8=fp8,
    )  # fmt: skip


def times_of(subject: Subject, between: float, repeats: int = REPEATS) -> Timed:
    """Its times. between: seconds from one event to the next with nothing between them, which are in all times of the
    GPU's.
    """
    timed = Timed(subject.problem, subject.scheme, {}, [], [], [])
    # In turn, as programs make them again and again: after other work the host takes up to twice as long for a call.
    speeds = [host_speed.seconds()]
    pairs = [(seconds_of(subject.ours), seconds_of(subject.theirs)) for _ in range(_UNTIMED + repeats)]
    speeds.append(host_speed.seconds())
    timed.pairs.extend(Pair(ours, theirs, statistics.fmean(speeds)) for ours, theirs in pairs[_UNTIMED:])
    for _ in range(repeats):
        for (replay, count), found in ((subject.replay, timed.whole), (subject.replay_theirs, timed.native)):
            found.append((queued_seconds_of(replay) - between) / count)
        kernels: dict[str, float] = {}
        for name, run, before in subject.kernels:
            kernels[name] = kernels.get(name, 0.0) + queued_seconds_of(run, before) - between
        for name, seconds in kernels.items():
            timed.kernels.setdefault(name, []).append(seconds)
    return timed


def _subject(case: Case) -> Subject:
    import torch

    import prismm
    from prismm.cuda import calls as cuda_calls

    n, kind = case.n, getattr(torch, case.dtype)
    # The same data every time, as the rate of products depends on them.
    torch.manual_seed(n)
    a, b = (torch.randn(n, n, dtype=kind, device="cuda") for _ in range(2))
    out, by_cublas = torch.empty_like(a), torch.empty_like(a)
    # So that `known` has this call alone.
    cuda_calls.forget()

    def ours() -> None:
        prismm.matmul(a, b, out=out, scheme=case.scheme, accuracy=case.accuracy, engine=case.engine)

    def theirs() -> None:
        torch.mm(a, b, out=by_cublas)

    for _ in range(5):  # calls at addresses that were seen several times are one launch
        ours()
        theirs()
    (call,) = cuda_calls.known()
    kernels = _kernels_of(call, a, b, out)
    return Subject(call.problem, case.scheme, ours, theirs, _graph_of(ours), _graph_of(theirs), kernels)


def _graph_of(call: Callable[[], None]) -> tuple[Callable[[], None], int]:
    """A graph of some calls, which has run once, and of how many."""
    import torch

    count = max(1, min(_TOGETHER, int(_TOGETHER_SECONDS / seconds_of(call))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    graph.replay()
    return graph.replay, count


def phases_of(call: Any, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> dict[str, float]:
    """Seconds of the kernels of a `GpuCall` that ran on these operands, one by one, each after the one before it."""
    found: dict[str, float] = {}
    for name, run, before in _kernels_of(call, a, b, out):
        found[name] = found.get(name, 0.0) + _seconds(run, before)
    return found


def _kernels_of(
    call: Any, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
) -> list[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    """The call's kernels: name, the kernel, and what runs before it: the one before it; before those that see to what a
    join leaves all from the join on, since they leave nothing for the next time.
    """
    found: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = []
    before: list[Callable[[], Any]] = []
    for name, run in _single_launches(call, a, b, out):
        found.append((name, run, functools.partial(_all_of, tuple(before))))
        before = [*before, run] if name in REPAIR_KERNELS or name == "join_fast" else [run]
    return found


def _all_of(calls: tuple[Callable[[], Any], ...]) -> None:
    for call in calls:
        call()


def _single_launches(
    call: Any, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
) -> list[tuple[str, Callable[[], None]]]:
    """The call's kernels by name, each to be run for itself, over the workspace of a whole run."""
    import torch

    (queued,) = call.programs.values()
    workspace = torch.empty(queued.program.workspace, dtype=torch.uint8, device=a.device)
    bases = a.data_ptr(), b.data_ptr(), out.data_ptr(), workspace.data_ptr()
    stream = torch.cuda.current_stream().cuda_stream
    queued.program.run(bases, stream)
    later.finish()  # the second run loads the kernels that were compiled in the background; those are measured
    queued.program.run(bases, stream)
    return [
        (name, functools.partial(_run, one, bases, stream, workspace)) for name, one in queued.program.single_launches()
    ]


def _run(program: Any, bases: tuple[int, ...], stream: int, workspace: torch.Tensor) -> None:
    """A program over its memory, of which the workspace has to be alive."""
    program.run(bases, stream)


def _memory(between: float) -> float:
    """Bytes a second that are read and written."""
    import torch

    block = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(block)
    return 2 * block.numel() / (_seconds(lambda: other.copy_(block)) - between)


def _multiword_fused(device: Device, processors: int, between: float) -> tuple[float, float] | None:
    """Operations and seconds of products of words that one kernel cuts and multiplies; None where there is none."""
    import torch

    from prismm.cuda.launch.program import Program
    from prismm.cuda.multiword import implementation as multiword
    from prismm.cuda.multiword import launches as multiword_launches
    from prismm.cuda.operands import result_of

    if not device.sm90:
        return None
    n, batch = 512, max(1, processors // 2)  # 16 tiles each: as many as eight times keep all processors busy
    a, b = (torch.randn(batch, n, n, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    target = Target("native")
    config = multiword_launches.config_for(
        multiword_launches.HALVES, multiword_launches.CHUNKS[0], n, target, multiword.unit_of(device), True
    )
    program = Program((0, 0, 0))
    multiword.queue_blocks(program, a, b, result_of(out), config, (n, n), program.allocate(torch.int64, 4), device)
    workspace = torch.empty(program.workspace, dtype=torch.uint8, device="cuda")
    bases = a.data_ptr(), b.data_ptr(), out.data_ptr(), workspace.data_ptr()
    (product, _) = program.single_launches()
    assert product[0] == "multiply_by_words"
    run = functools.partial(_run, product[1], bases, torch.cuda.current_stream().cuda_stream, workspace)
    problem = Problem(n, n, n, (batch,), FP32, target, False, True)
    return multiword.operations_directly(problem, processors, Tuning()), _seconds(run) - between


def _sustained(processors: int, free: int) -> float:
    """Operations a second of products of residues that run for long, of so many bytes of memory."""
    import torch

    import prismm
    from prismm.cuda import calls as cuda_calls

    scheme = Residues(14)
    # In one block, so that there is one product.
    n = 8192 if 4 * scheme.moduli * 8192**2 < free // 4 else 4096
    a, b = (torch.randn(n, n, dtype=torch.float64, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    cuda_calls.forget()
    prismm.matmul(a, b, out=out, scheme=scheme, accuracy="native", engine=INT8)
    (call,) = cuda_calls.known()
    product = dict(_single_launches(call, a, b, out))["residue_product"]
    count = max(4, round(_BUSY_SECONDS / _seconds(product)))

    def many() -> None:
        for _ in range(count):
            product()

    # Once untimed, so that clocks are where power leaves them.
    many()
    return residue_operations(call.problem, scheme.moduli, processors, Tuning().residue_ends) * count / seconds_of(many)


def fp8_rate(processors: int) -> float:
    """Operations a second of FP8 products of digits; 0 where they are not exact.

    Raises:
        EngineError: for a GPU that has none.
    """
    import torch

    import prismm
    from prismm.cuda import calls as cuda_calls
    from prismm.cuda.residues import fp8_proof

    index = torch.cuda.current_device()
    if not fp8_proof.is_exact(cuda_device.device_of(index), index):
        return 0.0
    n, scheme = _LARGE[-1], Residues(14)
    a, b = (torch.randn(n, n, dtype=torch.float64, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    cuda_calls.forget()
    prismm.matmul(a, b, out=out, scheme=scheme, accuracy="native", engine=FP8)
    (call,) = cuda_calls.known()
    # In one block or in several, of which each has its product.
    launches = [run for name, run in _single_launches(call, a, b, out) if name == "digit_product"]
    products = call.implementation.products_on(FP8, call.problem, call.device)
    operations = residue_operations(call.problem, products, processors, Tuning().residue_ends)
    return operations / sum(map(_seconds, launches))


def _seconds(call: Callable[[], Any], before: Callable[[], Any] | None = None) -> float:
    """The median of some calls on the device, each after another one that is not timed; of fewer long ones."""
    queued_seconds_of(call, before)
    begin = time.perf_counter()
    first = queued_seconds_of(call, before)
    repeats = max(2, min(ROUNDS * REPEATS - 1, int(_LONG_ENOUGH / (time.perf_counter() - begin))))
    return statistics.median([first, *(queued_seconds_of(call, before) for _ in range(repeats))])


def queued_seconds_of(call: Callable[[], Any], before: Callable[[], Any] | None = None) -> float:
    """One call on the device, by events, after another one that is not timed, without what the host takes: the device
    is held busy, and for longer where it begins before all of it has been queued.

    Raises:
        EngineError: where the device cannot be held for long enough: the call waits for it, or the host is very slow.
    """
    import torch

    cycles = _HELD
    while cycles <= _LONGEST_HELD:
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(cycles)
        if before is not None:
            before()
        start.record()
        call()
        stop.record()
        # The device has not come to the first event yet, so all was queued before it began.
        waiting = not start.query()
        stop.synchronize()
        if waiting:
            return 1e-3 * float(start.elapsed_time(stop))
        cycles *= 4
    raise EngineError("the GPU began before the host had queued what is timed; calibrate while less runs here")


def seconds_of(call: Callable[[], Any], before: Callable[[], Any] | None = None) -> float:
    """One call on the device, by events, after another one that is not timed; with what the host takes meanwhile."""
    import torch

    if before is not None:
        before()
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    stop.record()
    stop.synchronize()
    return 1e-3 * float(start.elapsed_time(stop))
