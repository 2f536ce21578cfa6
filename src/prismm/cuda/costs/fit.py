"""Rates of a GPU from timed calls: the lines through what ``prismm calibrate`` measured.

What the GPU takes is fitted to times in which the host has no part: of kernels that were queued before they began, and
of graphs of many calls. Every kernel's time is a launch and so much for every element and modulus
(`cuda.costs.table.Line`):
non-negative coefficients that make the relative errors' sum of squares least. The rest are medians. What the host takes
is fitted to eager calls of prismm and of torch in turn, the faster half of them: torch's, and the median of what a pair
differs by. Hosts are busy otherwise for seconds, and take several times as long then.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from prismm.core.problem import Problem
from prismm.cuda.costs.table import LONG, Host, Line, Rates
from prismm.cuda.costs.tuning import Tuning
from prismm.cuda.multiword import implementation as multiword
from prismm.cuda.native import tiles as kernel_tiles
from prismm.cuda.native.seconds import bytes_to_check, cublas_seconds, shape_of
from prismm.cuda.residues.seconds import residue_operations, right_launches
from prismm.formats import FP64

__all__ = ["LEFT", "REPAIR_KERNELS", "RIGHT", "Pair", "Timed", "fit"]

LEFT = ("split_rows", "split_rows_fused")
RIGHT = ("largest_columns", "sum_columns", "split_columns", "split_columns_fused")
REPAIR_KERNELS = ("rejoin_tiles", "finish", "magnitude_planes", "repair_strips")
"""Kernels that split left and right operands, and that see to what a join leaves; `Timed.kernels` has their names."""
_DIRECT = {"multiply_directly", "multiply_by_groups"}

_REPAIR = 5e-11
"""Seconds that repair takes for an entry and term; it shows in few calls, so it is taken from an H200."""

_LEAST = 1e-7
"""Seconds that a launch, and the host's share in a call, have at least: differences of noisy times may be less."""

_SHORT, _SOME = 2.0, 6
"""How many times as long as the shortest call a short one is; and how many longer ones tell when the GPU begins: those
that keep it busy for more say less about the host.
"""

_BRIEF = 1.5e-5
"""Seconds that a short product of the GPU's own takes at most: at n = 512 in float64 on an H200."""

_TURNS = 8
"""How often the launch and the rate of the GPU's own products are fitted in turn; each depends on the other by a
hundredth.
"""


class Pair(NamedTuple):
    """Seconds of an eager call of prismm and of one of torch after it, on an idle GPU; and what
    `cuda.costs.host_speed.seconds` was about then.
    """

    ours: float
    theirs: float
    host_speed: float


@dataclass(frozen=True)
class Timed:
    """Seconds of a call, timed again and again.

    Args:
        need, scheme: what was asked.
        kernels: of each of its kernels by itself; whole: of the call among many in a graph; native: of the GPU's own
            product in such a graph. In all of these the host has no part.
        pairs: of eager calls.
    """

    problem: Problem
    scheme: Any
    kernels: dict[str, list[float]]
    whole: list[float]
    native: list[float]
    pairs: list[Pair]

    def and_again(self, other: Timed) -> Timed:
        """With those of another round."""
        kernels = {name: [*seconds, *other.kernels[name]] for name, seconds in self.kernels.items()}
        whole, native, pairs = self.whole + other.whole, self.native + other.native, self.pairs + other.pairs
        return Timed(self.problem, self.scheme, kernels, whole, native, pairs)


class _Call(NamedTuple):
    """`Timed` in medians; the kernels' seconds are such that they add up to the whole's."""

    problem: Problem
    scheme: Any
    phases: dict[str, float]
    whole: float
    native: float
    pairs: list[Pair]

    @property
    def direct(self) -> bool:
        """Whether it is a native product in one kernel."""
        return not _DIRECT.isdisjoint(self.phases)


def _typical(one: Timed) -> _Call:
    """One by one kernels take a little longer than one after the other, or side by side. What is in the way makes times
    longer, never shorter: of two in the middle the lower one counts.
    """
    whole, native = (max(_LEAST, statistics.median_low(x)) for x in (one.whole, one.native))
    phases = {name: max(0.0, statistics.median_low(x)) for name, x in one.kernels.items()}
    share = whole / max(_LEAST, sum(phases.values()))
    return _Call(one.problem, one.scheme, {k: share * v for k, v in phases.items()}, whole, native, one.pairs)


def fit(
    name: str, processors: int, timed: Iterable[Timed], *, memory: float, sm90: bool,
    sustained: float | None = None, repair: float = _REPAIR, multiword_fused: tuple[float, float] | None = None,
    fp8: float = 0.0,
) -> Rates:  # fmt: skip
    """The rates that fit timed calls of real data best.

    Args:
        name, processors: of the GPU.
        timed: calls; among them, by residues, such of two sizes and two numbers of moduli, of native grade and
            correctly rounded; some with words, by cuBLAS, and in one kernel; float64 and float32; tiny ones and such as
            take the GPU some times as long.
        memory, sustained, repair: measured otherwise; sustained None: from calls that took long.
        multiword_fused: operations and seconds of products of words that are cut where they are multiplied.
        sm90: see `Rates`.
        fp8: see `Tuning`.
    """
    timed, tuning = list(timed), Tuning(fp8=fp8)
    calls = [_typical(one) for one in timed if not one.problem.is_complex]
    residues = [one for one in calls if "residue_product" in one.phases]
    # Power limits the unit in longer products, so these would make the rate of short ones too low.
    short = [one for one in residues if one.phases["residue_product"] < LONG]
    products = _line([(1.0, _operations(one, processors)) for one in short], _phase(short, "residue_product"))
    int8 = 1.0 / products[1]
    if sustained is None:
        long = [one for one in residues if one.phases["residue_product"] >= 2 * LONG]
        found = [_operations(one, processors) / one.phases["residue_product"] for one in long]
        sustained = min(int8, statistics.median(found)) if found else int8
    native = [one for one in residues if not one.problem.rounded]
    rounded = [one for one in residues if one.problem.rounded]
    direct = [one for one in calls if one.direct]
    cublas = [one for one in calls if "finish_native" in one.phases]
    # Where a tile's chunks are shared, processors are busy in another way.
    wordy = [one for one in calls if "words_product" in one.phases and "add_shares" not in one.phases]
    brief = [one for one in wordy if one.phases["words_product"] < LONG] or wordy
    finished = [one for one in native if one.problem.result == FP64]
    again = _line(
        [(1.0, one.problem.m * one.problem.n) for one in finished], [_sum(one, REPAIR_KERNELS) for one in finished]
    )
    split = _line(
        [(1.0, math.prod(multiword.split_work(one.scheme, one.problem))) for one in wordy], _phase(wordy, "split_words")
    )
    # A native product takes cuBLAS's time, reading the result once, and the check's launch.
    check = statistics.median(one.whole - one.native - bytes_to_check(one.problem) / memory for one in cublas)
    check = max(_LEAST, check)
    ours, theirs, host_speed = _hosts(calls)
    many, took = multiword_fused or (0.0, math.inf)
    rates = Rates(
        name=name, processors=processors, float64=1.0, float32=1.0, launch=_LEAST, check=check, memory=memory,
        call=ours, torch=theirs, host_speed=host_speed, int8=int8, sustained=sustained,
        product=max(products[0], 1e-9),
        left=_by_moduli(
            # Times are positive, and a noisy one may be less than what its rows are counted with.
            residues, lambda one: max(_LEAST, _sum(one, LEFT) - tuning.split_vector * one.problem.m),
            lambda problem: problem.m * problem.k,
        ),
        right=_by_moduli(
            residues, lambda one: _sum(one, RIGHT), lambda problem: problem.k * problem.n,
            lambda one: right_launches(one.problem, one.scheme.moduli, processors, sm90=sm90),
        ),
        join=_by_moduli(native, lambda one: one.phases["join_fast"], lambda problem: problem.m * problem.n),
        rounded=_by_moduli(rounded, lambda one: one.phases["join_fast"], lambda problem: problem.m * problem.n),
        finish=Line(again[0], again[1], 0.0),
        repair=repair,
        # Noisy times of launches take at most half away.
        multiword=statistics.median(
            _operations(one, processors) / max(x - tuning.multiword_launches / 2, x / 2)
            for one, x in zip(brief, _phase(brief, "words_product"), strict=True)
        ),
        multiword_fused=many / max(took - tuning.multiword_launches / 2, took / 2),
        multiword_split=Line(split[0], 0.0, split[1]),
        fp64_kernel=statistics.median(
            one.whole / kernel_tiles.seconds_of(shape_of(one.problem), processors, 1.0, math.inf, sm90=sm90)
            for one in direct
        ),
        sm90=sm90, tuning=tuning,
    )  # fmt: skip
    return _with_native_rates(rates, calls)


def _phase(calls: list[_Call], name: str) -> list[float]:
    return [one.phases[name] for one in calls]


def _sum(one: _Call, names: tuple[str, ...]) -> float:
    """Of those of these kernels that ran."""
    return sum(one.phases.get(name, 0.0) for name in names)


def _operations(one: _Call, processors: int) -> float:
    """Of a call's products of residues or words, as predictions count them."""
    if "residue_product" in one.phases:
        return residue_operations(one.problem, one.scheme.moduli, processors, Tuning().residue_ends)
    return multiword.operations(one.scheme, one.problem, processors, Tuning())


def _with_native_rates(rates: Rates, calls: list[_Call]) -> Rates:
    """With launch and rates of the GPU's own products: the rates by those that fill it; the launch, with what
    predictions leave out of short products, by the largest of these in float64, where one kernel is about as fast.
    """
    short = [one for one in calls if one.problem.result == FP64 and one.native < _BRIEF]
    size = max((_size(one.problem) for one in short), default=min(_size(one.problem) for one in calls))
    small = [one for one in short or calls if _size(one.problem) == size]
    for _ in range(_TURNS):
        # Rates and launch are fitted in turn: each is what the other leaves of the times.
        rates = dataclasses.replace(
            rates, float64=_native_rate(calls, 53, rates), float32=_native_rate(calls, 24, rates)
        )
        bare = dataclasses.replace(rates, launch=0.0)
        launch = statistics.median(one.native - cublas_seconds(one.problem, bare) for one in small)
        rates = dataclasses.replace(rates, launch=max(_LEAST, launch))
    return rates


def _size(problem: Problem) -> int:
    return problem.m * problem.n * problem.k


def _native_rate(calls: list[_Call], precision: int, rates: Rates) -> float:
    """Operations a second of the GPU's own products of a type: by which the calls that fill it are predicted right."""
    of_type = [one for one in calls if one.problem.result.precision == precision]
    full = [one for one in of_type if _is_full(one.problem, rates.processors)]
    return statistics.median(_rate_of(one, rates) for one in full or of_type)


_FULL, _LARGEST_TILE = 4, 128
"""Waves of tiles from which on a product counts for the rate of such products, and rows and columns of such a tile."""


def _is_full(problem: Problem, processors: int) -> bool:
    tiles = problem.count * -(-problem.m // _LARGEST_TILE) * -(-problem.n // _LARGEST_TILE)
    return tiles >= _FULL * processors


def _rate_of(one: _Call, rates: Rates) -> float:
    """The rate by which a product is predicted to take as long as it does: predictions fall as the rate grows."""
    low, high = 1e9, 1e18
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        # Of the two only the one of the result's precision counts.
        seconds = cublas_seconds(one.problem, dataclasses.replace(rates, float64=middle, float32=middle))
        low, high = (middle, high) if seconds > one.native else (low, middle)
    return math.sqrt(low * high)


_HALVINGS = 50
"""Of an interval of rates, on a scale of logarithms: to a part in 2^45."""


def _hosts(calls: list[_Call]) -> tuple[Host, Host, float]:
    """The host's share in calls of prismm and in those of torch: `least` of the shortest ones, which the GPU has done
    before they are handed over; `before` of those that keep the GPU busy for longer than that. And the host's speed.
    """

    def work(one: _Call) -> float:
        return max(one.whole, one.native)

    shortest = min(work(one) for one in calls)
    *least, host_speed = _in_turn([pair for one in calls if work(one) <= _SHORT * shortest for pair in one.pairs])
    long = sorted((one for one in calls if min(one.whole, one.native) > max(least)), key=work)[:_SOME]
    rests = [x._replace(ours=x.ours - one.whole, theirs=x.theirs - one.native) for one in long for x in one.pairs]
    before = _in_turn(rests)[:2] if rests else least
    ours, theirs = (Host(min(x, y), y) for x, y in zip(before, least, strict=True))
    return ours, theirs, host_speed


def _in_turn(pairs: list[Pair]) -> Pair:
    """What is typical of the faster half of them, of which the difference is known best."""
    calm = sorted(pairs, key=lambda pair: pair.ours + pair.theirs)[: -(-len(pairs) // 2)]
    theirs = statistics.median(pair.theirs for pair in calm)
    difference = statistics.median(pair.ours - pair.theirs for pair in calm)
    host_speed = statistics.median(pair.host_speed for pair in calm)
    return Pair(max(_LEAST, theirs + difference), max(_LEAST, theirs), host_speed)


def _by_moduli(
    calls: list[_Call], seconds: Callable[[_Call], float], elements: Callable[[Problem], int],
    launches: Callable[[_Call], float] = lambda one: 1.0,
) -> Line:  # fmt: skip
    """launches: the share of the launches that a call makes."""
    counts = [(one, elements(one.problem)) for one in calls]
    rows = [(launches(one), float(count), float(count * one.scheme.moduli)) for one, count in counts]
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
            # Columns, 1 and elements times moduli, differ by many orders of magnitude; the solver wants them alike.
            scale = np.abs(chosen).max(axis=0)
            found = np.linalg.lstsq(chosen / scale, wanted, rcond=None)[0] / scale
            error = float(np.square(chosen @ found - wanted).sum())
            # Sizes go up, so a coefficient more has to be better than rounding.
            if (found >= 0.0).all() and error < least * (1.0 - 1e-9):
                best, least = np.zeros(width), error
                best[list(some)] = found
    return [float(x) for x in best]
