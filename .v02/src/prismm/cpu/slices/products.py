"""Products of slices and their exact sum: which pairs, how many at once, and what is skipped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prismm.core import threads
from prismm.core.composite import Lost
from prismm.cpu.slices.engines import SliceEngine
from prismm.cpu.slices.split import Sliced
from prismm.schemes.slice_layout import limb_count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SPARSE = 0.5
"""A product is compressed where fewer of its entries have a row and a column that are not empty."""
_SPILL = 1 << 14
"""Products that the limbs take before carries (2^15 fit)."""
_SMALL, _LIFT = 2.0**-960, 1100
"""Of what is larger, nothing that high and low hold is below 2^-1074; and of what is smaller, and a multiple of 2^-2148
as all sums are, nothing times 2^_LIFT.
"""

Pair = tuple[int, int]


def product_pairs(left: int, right: int, drop_above: int | None) -> list[Pair]:
    """Pairs (p, q), 0 first, largest weight first; fast mode keeps p + q <= d + 1 of the paper's 1-based p, q.

    >>> len(product_pairs(11, 11, 11)), len(product_pairs(3, 2, None))
    (66, 6)
    """
    pairs = [(p, q) for p in range(left) for q in range(right) if drop_above is None or p + q <= drop_above - 1]
    return sorted(pairs, key=lambda pair: (pair[0] + pair[1], pair[0]))


@dataclass
class Multiplied:
    """What `multiply_slices` found: high + low, whether every low is exact, whether some value underflowed.

    Attributes:
        lost: the entries that may have underflowed because they are small; None where there are none.
        products: pairs of slices that were multiplied, each over the whole inner dimension.
        notes: counts for the report.
        rest: two more numbers an entry, what high and low leave of it, where they were asked for and some low is not
            exact.
        complete: whether all these numbers together are the sums.
    """

    high: NDArray[np.float64]
    low: NDArray[np.float64]
    exact: bool
    underflow: bool
    lost: Lost | None
    products: int
    notes: dict[str, int] = field(default_factory=dict)
    rest: tuple[NDArray[np.float64], ...] = ()
    complete: bool = False


def lowest(sliced: Sliced, used: int) -> NDArray[np.int64]:
    """Per vector, the exponent from which positions of its slices are counted."""
    import numpy as np

    return np.asarray(sliced.exponent[:used].min(axis=0), np.int64)


def groups(left: Sliced, right: Sliced, pairs: list[Pair], group: bool) -> tuple[list[tuple[Pair, ...]], int, int]:
    """Runs of pairs for one call each; how many pairs are skipped as empty, and how many are sparse (alone in a run).

    Grid: pairs of equal p + q whose p follow each other, as many as the accumulator holds. Adaptive: pairs of one p
    whose q follow each other.
    """
    import numpy as np

    layout = left.layout
    # The shares of vectors whose slice is not empty.
    rows = (left.magnitude > 0).mean(axis=1)
    columns = (right.magnitude > 0).mean(axis=1)
    order = sorted(pairs) if layout.adaptive else pairs
    most = (10**9 if layout.adaptive else layout.together) if group else 1
    runs: list[list[Pair]] = []
    skipped = sparse = 0
    run_continues = False
    for p, q in order:
        share = float(np.float64(rows[p]) * columns[q])
        if share == 0.0:
            skipped += 1
            run_continues = False
        elif share < _SPARSE:
            # A sparse product is compressed by itself, so it ends the run.
            sparse += 1
            runs.append([(p, q)])
            run_continues = False
        else:
            last = runs[-1][-1] if run_continues else (-2, -2)
            follows = (last == (p, q - 1)) if layout.adaptive else (last == (p - 1, q + 1))
            if run_continues and follows and len(runs[-1]) < most:
                runs[-1].append((p, q))
            else:
                runs.append([(p, q)])
                run_continues = True
    return [tuple(run) for run in runs], skipped, sparse


def multiply_slices(
    left: Sliced,
    right: Sliced,
    pairs: list[Pair],
    engine: SliceEngine,
    *,
    group: bool,
    workers: int,
    workspace_bytes: int,
    empty: Any = None,
    further: bool = False,
) -> Multiplied:
    """Σ over the pairs of slice products with their weights, exactly, as high + low; further: and the rest.

    Rows are taken in pieces that keep limbs and products within `workspace_bytes`.
    """
    import numpy as np

    from prismm.cpu.kernels import weigh

    empty = empty or np.empty
    layout = left.layout
    m, n = left.exponent.shape[1], right.exponent.shape[1]
    runs, skipped, sparse = groups(left, right, pairs, group)
    used = (1 + max((p for p, _ in pairs), default=0), 1 + max((q for _, q in pairs), default=0))
    low_rows, low_columns = lowest(left, used[0]), lowest(right, used[1])
    row_position = left.exponent[: used[0]] - low_rows
    column_position = right.exponent[: used[1]] - low_columns
    top = int(row_position.max(initial=0)) + int(column_position.max(initial=0))
    total = sum(len(run) for run in runs) * layout.blocks
    count = limb_count(top, total)
    high, low = np.empty((m, n)), np.empty((m, n))
    rest: tuple[NDArray[np.float64], ...] = ()
    widest = max((len(run) for run in runs), default=1) if layout.adaptive else 1
    size = np.dtype(engine.sum_dtype).itemsize
    rows, batch = piece_size(m, n, count, widest, len(runs) * layout.blocks, size, workspace_bytes)
    flags = left_over = 0
    lost: list[tuple[NDArray[Any], ...]] = []
    calls = [(run, block) for block in range(layout.blocks) for run in runs]
    for i0 in range(0, m, rows):
        i1 = min(m, i0 + rows)
        limbs = empty((i1 - i0, count, n), np.int64)
        # Workspace comes with what was there before.
        limbs.reshape(-1)[:] = 0
        products = empty((batch * (i1 - i0) * n,), engine.sum_dtype)
        since = 0
        for batch_calls in _batches(calls, batch, layout.adaptive):
            _multiply_batch(left, right, batch_calls, engine, products, i0, i1, workers)
            _add_batch(products, batch_calls, limbs, row_position[:, i0:i1], column_position, layout.adaptive, workers)
            since += sum(len(run) for run, _ in batch_calls)
            if since > _SPILL:
                _in_pieces(lambda a, b, limbs=limbs: weigh.carry(limbs[a:b]), i1 - i0, workers)
                since = 0
        found = _finish(limbs, low_rows[i0:i1], low_columns, high[i0:i1], low[i0:i1], workers)
        flags |= found
        if found & weigh.UNDERFLOW:
            # What is left of them are magnitudes; zeros have the sign of what underflowed.
            i, j = np.nonzero(limbs.any(axis=1) & (np.abs(high[i0:i1]) < _SMALL))
            sign, lifted = np.copysign(1.0, high[i0:i1][i, j]), (np.empty((i1 - i0, n)), np.empty((i1 - i0, n)))
            _finish(limbs, low_rows[i0:i1] + _LIFT, low_columns, *lifted, workers)
            lost.append((i + i0, j, sign * lifted[0][i, j], sign * lifted[1][i, j]))
        if further and found & weigh.INEXACT:
            rest = rest or (np.zeros((m, n)), np.zeros((m, n)))
            _take_out(limbs, low_rows[i0:i1], low_columns, high[i0:i1], low[i0:i1], workers)
            more = _finish(limbs, low_rows[i0:i1], low_columns, rest[0][i0:i1], rest[1][i0:i1], workers)
            # The entries of `rest` decide now whether anything is left over.
            found = (found & weigh.UNDERFLOW) | more
            for x in rest:
                x[i0:i1][high[i0:i1] < 0.0] *= -1.0
        left_over |= found
    notes = {"engine calls": len(calls) * -(-m // max(rows, 1))}
    if skipped:
        notes["skipped products"] = skipped
    if sparse:
        notes["compressed products"] = sparse
    exact = not flags & weigh.INEXACT
    small = None
    if lost:
        i, j, upper, lower = (np.concatenate(some) for some in zip(*lost, strict=True))
        small = Lost(i, j, upper, lower, _LIFT)
    return Multiplied(
        high, low, exact, bool(flags & weigh.UNDERFLOW), small, len(pairs) - skipped, notes, rest, not left_over
    )  # fmt: skip


def piece_size(
    m: int, n: int, limbs: int, widest: int, products: int, size: int, workspace_bytes: int
) -> tuple[int, int]:
    """Rows at a time, and products held before they are joined (at least the widest call)."""
    n, m = max(n, 1), max(m, 1)
    batch = max(widest, min(products, 16, 1 << 14))
    rows = max(1, min(m, workspace_bytes // (n * (8 * limbs + size * batch))))
    # Products of a few rows leave the unit idle: rather fewer of them at a time.
    if rows < min(m, 64):
        batch = widest
        rows = max(1, min(m, workspace_bytes // (n * (8 * limbs + size * batch))))
    return rows, batch


Calls = list[tuple[tuple[Pair, ...], int]]


def _batches(calls: Calls, most: int, adaptive: bool) -> list[Calls]:
    """Calls in runs of at most `most` products (adaptive calls give one product per pair)."""
    found: list[Calls] = []
    room = 0
    for call in calls:
        needs = len(call[0]) if adaptive else 1
        if not found or needs > room:
            found.append([])
            room = most
        found[-1].append(call)
        room -= needs
    return found


def _multiply_batch(
    left: Sliced,
    right: Sliced,
    calls: Calls,
    engine: SliceEngine,
    products: NDArray[Any],
    i0: int,
    i1: int,
    workers: int,
) -> None:
    """One after the other into `products`, (i1 - i0)·n each; an adaptive call's side by side in each row."""
    import numpy as np

    unit = left.layout.unit
    n = right.exponent.shape[1]
    size = (i1 - i0) * n
    start = 0
    for run, block in calls:
        p, q = run[0]
        place = products[start * size :]
        rows, columns = left.magnitude[p, i0:i1] > 0, right.magnitude[q] > 0
        # Rows and columns that are empty are left out, and their sums are 0.
        if len(run) == 1 and rows.mean() * columns.mean() < _SPARSE:
            out = place[:size].reshape(i1 - i0, n)
            out[...] = 0
            ri, ci = np.flatnonzero(rows), np.flatnonzero(columns)
            if ri.size and ci.size:
                x = np.ascontiguousarray(left.slice(p, block)[i0:i1][ri])
                y = np.ascontiguousarray(right.slice(q, block)[ci])
                small = np.empty((ri.size, ci.size), engine.sum_dtype)
                engine.multiply(x, y, small, unit, workers)
                out[np.ix_(ri, ci)] = small
            start += 1
        elif left.layout.adaptive:
            out = place[: size * len(run)].reshape(i1 - i0, len(run) * n)
            engine.multiply(left.slice(p, block)[i0:i1], right.stack(q, run[-1][1], block), out, unit, workers)
            start += len(run)
        else:
            out = place[:size].reshape(i1 - i0, n)
            x = left.run(p, run[-1][0], block)[i0:i1]
            engine.multiply(x, right.run(run[-1][1], q, block), out, unit, workers)
            start += 1


def _add_batch(
    products: NDArray[Any],
    calls: Calls,
    limbs: NDArray[np.int64],
    row_position: NDArray[np.int64],
    column_position: NDArray[np.int64],
    adaptive: bool,
    workers: int,
) -> None:
    """Join a batch's products to the limbs, rows spread over the workers."""
    import numpy as np

    from prismm.cpu.kernels import weigh

    kind = products.dtype.name
    rows, _, n = limbs.shape
    size = rows * n
    if not adaptive:
        # On a grid every row and column has the same spacing, so positions are those of any of them.
        first = np.array([row_position[run[0][0], 0] + column_position[run[0][1], 0] for run, _ in calls], np.int64)
        add = getattr(weigh, f"add_{kind}")
        _in_pieces(lambda a, b: add(products[a * n :], size, n, first, limbs[a:b]), rows, workers)
        return
    scatter = getattr(weigh, f"scatter_{kind}")
    start = 0
    for run, _ in calls:
        shifts = np.ascontiguousarray(row_position[[p for p, _ in run]])
        across = np.ascontiguousarray(column_position[[q for _, q in run]])
        stride = n * len(run)
        place = products[start * size :]

        # Bound now, as the loop assigns the names anew.
        def scatter_rows(
            a: int, b: int, place: Any = place, stride: int = stride, shifts: Any = shifts, across: Any = across
        ) -> None:
            scatter(place[a * stride :], n, stride, shifts[:, a:b], across, limbs[a:b])

        _in_pieces(scatter_rows, rows, workers)
        start += len(run)


def _finish(
    limbs: NDArray[np.int64],
    row_exponent: NDArray[np.int64],
    column_exponent: NDArray[np.int64],
    high: NDArray[np.float64],
    low: NDArray[np.float64],
    workers: int,
) -> int:
    from prismm.cpu.kernels import weigh

    flags: list[int] = []

    def finish_rows(a: int, b: int) -> None:
        # A carry first: limbs hold sums of many products, while the kernel reads digits.
        weigh.carry(limbs[a:b])
        flags.append(weigh.finish_limbs(limbs[a:b], row_exponent[a:b], column_exponent, high[a:b], low[a:b]))

    _in_pieces(finish_rows, limbs.shape[0], workers)
    found = 0
    for flag in flags:
        found |= int(flag)
    return found


def _take_out(
    limbs: NDArray[np.int64],
    row_exponent: NDArray[np.int64],
    column_exponent: NDArray[np.int64],
    high: NDArray[np.float64],
    low: NDArray[np.float64],
    workers: int,
) -> None:
    from prismm.cpu.kernels import weigh

    def take_out_rows(a: int, b: int) -> None:
        weigh.take_out(limbs[a:b], row_exponent[a:b], column_exponent, high[a:b], low[a:b])

    _in_pieces(take_out_rows, limbs.shape[0], workers)


def exact_sum(left: Sliced, right: Sliced, pairs: list[Pair], i: int, j: int) -> tuple[int, int]:
    """(integer, exponent) of one entry of what `multiply_slices` adds, in Python's integers."""
    import numpy as np

    d = 1 + max((p for p, _ in pairs), default=0), 1 + max((q for _, q in pairs), default=0)
    x, y = (some.exponent[:count, at] for some, count, at in ((left, d[0], i), (right, d[1], j)))
    low, total = int(x.min()) + int(y.min()), 0
    for block in range(left.layout.blocks):
        # Every product of two digits' vectors is an integer that float64 holds, as the unit's sums do.
        rows, columns = (
            np.stack([some.slice(p, block)[at] for p in range(count)]).astype(np.float64)
            for some, count, at in ((left, d[0], i), (right, d[1], j))
        )
        products = rows @ columns.T
        total += sum(int(products[p, q]) << (int(x[p]) + int(y[q]) - low) for p, q in pairs)
    return total, low


def _in_pieces(task: Any, rows: int, workers: int) -> None:
    """task(first, last) over row ranges, about four per worker."""
    step = max(1, -(-rows // (4 * workers)))
    threads.spread(lambda a: task(a, min(rows, a + step)), list(range(0, rows, step)), workers)
