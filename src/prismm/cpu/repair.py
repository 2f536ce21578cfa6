"""Repair: uncertified entries, recomputed one by one until each is proved.

The paths, cheapest first: magnitudes (a 7-bit lower bound of |a||b|, or the proof that every product is zero),
double-double, exact arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import accuracy
from prismm.core.error_free import rounded_products
from prismm.core.outcome import Job, Outcome, for_kernels, real_parts
from prismm.core.specials import layout
from prismm.cpu.engines.base import INT8_BLOCK
from prismm.cpu.entries import GATHER_BYTES, Entries, gathered, in_slices, taken, used_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.core.composite import Side
    from prismm.core.scales import Scales
    from prismm.cpu.entries import Gathered
    from prismm.cpu.many_product import ByteEngine

_MANY_MAGNITUDES = 1 << 22
"""Products of magnitudes from which on an engine multiplies all of them."""

_SHARED = 2
"""Entries for each of their rows and columns from which on zeros are looked for in these."""


def repair(
    a: NDArray[Any],
    b: NDArray[Any],
    out: NDArray[Any],
    entries: Entries,
    job: Job,
    outcome: Outcome,
    scales: tuple[Scales, Scales] | None = None,
) -> None:
    """Prove or recompute the entries of `out`, which belong to finite rows and columns.

    scales: of a scheme that scaled, for the magnitude path.
    """
    if entries.i.size == 0:
        return
    entries = before_recomputing(a, b, out, entries, job, outcome, scales)
    pairs = True
    if not entries.width:
        from prismm.cpu.escalation import escalate

        entries, pairs = escalate(a, b, out, entries, job, outcome)
    if pairs:
        entries = _in_double_double(a, b, out, entries, job, outcome)
        if not entries.width:
            entries, _ = escalate(a, b, out, entries, job, outcome, alone=True)
    exactly(a, b, out, entries, job, outcome)


def _without_products(
    a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], entries: Entries, job: Job, outcome: Outcome
) -> Entries:
    """Set the entries of AB, or of a sum, that have no nonzero product of elements: to 0, or to beta·C, rounded. The
    function returns the other entries.
    """
    from prismm.cpu.kernels.zeros import any_products

    plain, target = job.epilogue is None or job.epilogue.trivial, real_parts(out)[entries.part]
    # The value of a sum says nothing of AB.
    chosen = np.flatnonzero(target[entries.place] == 0) if plain else np.arange(entries.i.size)
    (i, ri), (j, ci) = used_of(entries.i[chosen], a.shape[0]), used_of(entries.j[chosen], b.shape[1])
    # Bits of few entries' rows and columns take longer than these entries.
    if chosen.size < max(1, _SHARED * (i.size + j.size)):
        return entries
    # A vector without a zero has a product with any that is not zero.
    (full_row, some_row), (full_column, some_column) = _filled(a, 1), _filled(b, 0)
    here, there = entries.i[chosen], entries.j[chosen]
    hit = (full_row[here] & some_column[there]) | (some_row[here] & full_column[there])
    if hit.all():
        return entries
    hit = hit.view(np.uint8)
    for part in (entries.part,) if plain else range(len(real_parts(out))):
        left, right = _bits(a, i, part, "left"), _bits(b, j, part, "right")
        in_slices(
            lambda s, left=left, right=right: any_products(left, right, ri[s], ci[s], hit[s]),
            chosen.size, job.workers, 1 << 15,
        )  # fmt: skip
    nothing = np.zeros(entries.i.size, np.bool_)
    nothing[chosen] = hit == 0
    if plain:
        target[entries.keep(nothing).place] = 0
        outcome.count("magnitude", int(np.count_nonzero(nothing)))
    elif nothing.any():
        _of_c_alone(a, b, out, entries.keep(nothing), job, outcome)
    return entries.keep(~nothing)


def _of_c_alone(
    a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], entries: Entries, job: Job, outcome: Outcome
) -> None:
    """Set entries of which no product of elements is nonzero to the part of beta·C, rounded."""
    target = real_parts(out)[entries.part]
    _, _, beta, addends = _summands(out, entries, job)
    used = np.flatnonzero(beta)
    if used.size > 1:
        exactly(a[:, :0], b[:0], out, entries, job, outcome)
        return
    value = np.zeros(entries.i.size)
    if used.size:
        value = rounded_products(addends[:, used[0]], float(beta[used[0]]), job.result.precision)
    target[entries.place] = value
    outcome.count("exact", int(entries.i.size))


def _filled(x: NDArray[Any], axis: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of each row (axis 1) or column (axis 0): whether no part of its elements is zero, and whether any is not."""
    nonzero = [part != 0 for part in real_parts(x)]
    full: NDArray[np.bool_] = np.all([part.all(axis=axis) for part in nonzero], axis=0)
    live: NDArray[np.bool_] = np.any([part.any(axis=axis) for part in nonzero], axis=0)
    return full, live


def _bits(x: NDArray[Any], index: NDArray[np.int64], part: int, side: Side) -> NDArray[np.uint64]:
    """A bit for each element of some rows, or columns, of an operand's real part, which says whether it is nonzero:
    (rows or columns, words).
    """
    axis = 0 if side == "left" else 1
    length = x.shape[1 - axis] * (2 if np.iscomplexobj(x) else 1)
    found = np.zeros((index.size, -(-length // 64) * 8), np.uint8)
    step, every = max(1, GATHER_BYTES // (32 * max(1, length))), index.size == x.shape[axis]
    for first in range(0, index.size, step):
        here = slice(first, first + step)
        piece = (x[here] if axis == 0 else x[:, here]) if every else taken(x, index[here], axis)
        some = layout(piece, part, side)
        packed = np.packbits((some if axis == 0 else some.T) != 0, axis=1)
        found[first : first + step, : packed.shape[1]] = packed
    return found.view(np.uint64)


def before_recomputing(
    a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], entries: Entries, job: Job, outcome: Outcome,
    scales: tuple[Scales, Scales] | None,
) -> Entries:  # fmt: skip
    """Certify entries by their magnitudes or zeros, which takes no sums of elements; returns the entries that are left.
    `repair` has the same arguments.
    """
    plain = job.epilogue is None or job.epilogue.trivial
    # Magnitudes are of AB alone; with an epilogue the value at hand is another sum.
    if plain and scales is not None and job.target is not None and job.target.kind != "correctly-rounded":
        return by_magnitude(a, b, real_parts(out)[entries.part], entries, job, outcome, scales)
    return _without_products(a, b, out, entries, job, outcome)


@np.errstate(all="ignore")
def by_magnitude(
    a: NDArray[Any],
    b: NDArray[Any],
    target: NDArray[Any],
    entries: Entries,
    job: Job,
    outcome: Outcome,
    scales: tuple[Scales, Scales],
) -> Entries:
    """Certify by magnitudes: κ·ε <= LB, all in integers and one product; or no product is nonzero, so the entry is
    0. The target is not correct rounding, of which magnitudes say nothing.
    """
    done, terms = np.zeros(entries.i.size, np.bool_), a.shape[1] * (2 if np.iscomplexobj(a) else 1)
    for where, total, hit in magnitude_sums(a, b, entries, job, scales):
        done[where] = certified(entries.keep(where), total, hit, target, terms, job, scales)
    outcome.count("magnitude", int(done.sum()))
    return entries.keep(~done)


@np.errstate(all="ignore")
def certified(
    entries: Entries,
    total: NDArray[np.int64],
    hit: NDArray[np.uint8],
    target: NDArray[Any],
    terms: int,
    job: Job,
    scales: tuple[Scales, Scales],
) -> NDArray[np.bool_]:
    """Which entries their `magnitude_sums` prove, of sums of so many real terms."""
    from prismm.cpu.kernels.magnitude import certify

    assert job.target is not None
    factor = accuracy.magnitude_kappa(job.target, job.terms, job.result)
    proved = np.empty(entries.i.size, np.uint8)
    rows, columns = scales
    certify(
        entries.i, entries.j, total, hit, target[entries.place].astype(np.float64), rows.terms, columns.terms,
        rows.power, columns.power, rows.shift, columns.shift, terms / 4.0, factor, 2.0 ** (job.result.maxexp - 2),
        proved,
    )  # fmt: skip
    return proved.view(np.bool_)


def magnitude_sums(
    a: NDArray[Any], b: NDArray[Any], entries: Entries, job: Job, scales: tuple[Scales, Scales]
) -> Iterator[tuple[NDArray[np.int64] | slice, NDArray[np.int64], NDArray[np.uint8]]]:
    """(which entries, the sums of the products of their 7-bit magnitudes, whether any product of elements is nonzero),
    in pieces.
    """
    from prismm.cpu.engines.integer import choose
    from prismm.cpu.kernels.dot import magnitude_dots, magnitudes
    from prismm.cpu.many_product import takes_bytes

    rows, columns = scales
    engine = choose("cpu")
    k = a.shape[1] * (2 if np.iscomplexobj(a) else 1)
    # The sums stay within int32, and no modulus is involved: an engine of bytes takes magnitudes as they are.
    if entries.i.size * k > _MANY_MAGNITUDES and k <= INT8_BLOCK and not entries.width and takes_bytes(engine):
        yield from _magnitude_products(a, b, entries, scales, engine)
        return
    for piece in gathered(a, b, entries, (entries.part,), job.workers):
        left = np.empty(piece.rows.shape, np.uint8)
        right = np.empty(piece.columns.shape, np.uint8)
        magnitudes(piece.rows, rows.exponent[piece.row_index], left)
        magnitudes(piece.columns, columns.exponent[piece.column_index], right)
        total = np.empty(piece.ri.size, np.int64)
        hit = np.empty(piece.ri.size, np.uint8)

        def dots(
            s: slice,
            left: NDArray[Any] = left,
            right: NDArray[Any] = right,
            piece: Gathered = piece,
            total: NDArray[Any] = total,
            hit: NDArray[Any] = hit,
        ) -> None:
            magnitude_dots(left, right, piece.ri[s], piece.ci[s], total[s], hit[s])

        in_slices(dots, piece.ri.size, job.workers)
        yield piece.where, total, hit


def _magnitude_products(
    a: NDArray[Any], b: NDArray[Any], entries: Entries, scales: tuple[Scales, Scales], engine: ByteEngine
) -> Iterator[tuple[NDArray[np.int64] | slice, NDArray[np.int64], NDArray[np.uint8]]]:
    """The same of many entries, as products of bytes by an engine: of the magnitudes, and of ones and zeros where there
    are zeros.
    """
    from prismm.cpu.kernels.dot import magnitude_bytes
    from prismm.cpu.kernels.magnitude import pick

    operands = []
    sides: tuple[Side, Side] = ("left", "right")
    for x, side, scale in zip((a, b), sides, scales, strict=True):
        real = for_kernels(layout(x, entries.part, side))
        both = np.empty((2, *real.shape), np.int8)
        magnitude_bytes(real, scale.exponent, side == "left", both[0], both[1])
        operands.append(both)
    left, right = operands
    n, whole = right.shape[2], bool(left[1].all() and right[1].all())
    count = 1 if whole else 2
    # Rows at a time, so that both int32 products stay within the bytes of a piece.
    step = max(4, GATHER_BYTES // (8 * max(n, 1)))
    # In order of rows, so that the entries of a piece are a range; one piece takes them as they are.
    order = None if step >= left.shape[1] else np.argsort(entries.i, kind="stable")
    for i0 in range(0, left.shape[1], step):
        where: NDArray[np.int64] | slice = slice(None)
        if order is not None:
            lo, hi = np.searchsorted(entries.i, [i0, i0 + step], sorter=order)
            where = order[lo:hi]
        mine = entries.keep(where)
        if mine.i.size == 0:
            continue
        part = np.ascontiguousarray(left[:count, i0 : i0 + step])
        products = np.empty((count, part.shape[1], n), np.int32)
        # So short a sum is never reduced.
        engine.multiply(part, right[:count], products, (256,) * count)
        total, hits = np.empty(mine.i.size, np.int64), np.empty(mine.i.size, np.uint8)
        pick(products, mine.i, mine.j, i0, total, hits)
        yield where, total, hits


def bound_in_units(rows: NDArray[np.float64], columns: NDArray[np.float64], a: NDArray[Any], job: Job) -> Any:
    """The bound of `cpu.kernels.join`, entry by entry, from the vectors of matching rows and columns."""
    # ½·½ for each of K terms: what two rounded elements leave out together.
    terms = a.shape[1] * (2 if np.iscomplexobj(a) else 1) / 4.0
    with np.errstate(over="ignore", invalid="ignore"):
        first = rows[3] * columns[0] + columns[3] * rows[0] + rows[3] * columns[3] * terms
        second = (rows[1] * columns[2] + (rows[2] + rows[1]) * columns[1]) * (1.0 + 2.0**-40)
    return np.minimum(first, second)


def _in_double_double(
    a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], entries: Entries, job: Job, outcome: Outcome
) -> Entries:
    """Recompute in double-double, the epilogue's sum where there is one; what its own bound leaves open stays."""
    from prismm.cpu.kernels.dot import double_double, double_double_sums

    target, precision = real_parts(out)[entries.part], job.result.precision
    parts, alpha, beta, addends = _summands(out, entries, job)
    plain = job.epilogue is None or job.epilogue.trivial
    done = np.zeros(entries.i.size, np.bool_)
    for piece in gathered(a, b, entries, parts, job.workers):
        value = np.empty(piece.ri.size)
        undecided = np.empty(piece.ri.size, np.uint8)

        def dots(
            s: slice, piece: Gathered = piece, value: NDArray[Any] = value, undecided: NDArray[Any] = undecided
        ) -> None:
            operands = piece.rows, piece.columns, piece.ri[s], piece.ci[s]
            if plain:
                double_double(*operands, precision, value[s], undecided[s])
            else:
                added = addends[piece.where[s]]
                double_double_sums(*operands, alpha, added, beta, precision, value[s], undecided[s])

        in_slices(dots, piece.ri.size, job.workers)
        # Values without proof are not stored: the entry keeps the scheme's until exact arithmetic has it.
        proved = undecided == 0
        chosen = piece.where[proved]
        target[entries.keep(chosen).place] = value[proved]
        done[chosen] = True
    outcome.count("double-double", int(done.sum()))
    return entries.keep(~done)


def _summands(
    out: NDArray[Any], entries: Entries, job: Job
) -> tuple[tuple[int, ...], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """What `exact_dots` adds: parts of the product, their factors, those of C's parts, and these, entry by entry."""
    parts: tuple[int, ...] = (entries.part,)
    alpha, beta = np.ones(1), np.empty(0)
    addends = np.empty((entries.i.size, 0))
    if job.epilogue is not None and not job.epilogue.trivial:
        count = 2 if np.iscomplexobj(out) else 1
        factors = job.epilogue.factors(entries.part, count)
        # A part that is not multiplied is not summed.
        parts = tuple(part for part in range(count) if factors[part]) or (entries.part,)
        alpha, beta = factors[list(parts)], factors[2 : 2 + count].copy()
        c = job.epilogue.c
        if c is None or not beta.any():
            beta = np.empty(0)
        else:
            addends = np.stack([x[entries.place].astype(np.float64) for x in real_parts(c)], axis=1)
    return parts, alpha, beta, addends


def exactly(
    a: NDArray[Any],
    b: NDArray[Any],
    out: NDArray[Any],
    entries: Entries,
    job: Job,
    outcome: Outcome,
    path: str = "exact",
) -> None:
    """Set entries to the exactly rounded value of a·b (or of the epilogue's sum)."""
    from prismm.cpu.kernels.exact import exact_dots

    target = real_parts(out)[entries.part]
    parts, alpha, beta, addends = _summands(out, entries, job)
    for piece in gathered(a, b, entries, parts, job.workers):
        value = np.empty(piece.ri.size)
        added = np.ascontiguousarray(addends[piece.where])

        def dots(s: slice, piece: Gathered = piece, value: NDArray[Any] = value, added: NDArray[Any] = added) -> None:
            exact_dots(
                piece.rows,
                piece.columns,
                piece.ri[s],
                piece.ci[s],
                alpha,
                added[s],
                beta,
                job.result.precision,
                value[s],
            )

        in_slices(dots, piece.ri.size, job.workers)
        target[entries.keep(piece.where).place] = value
    outcome.count(path, int(entries.i.size))
