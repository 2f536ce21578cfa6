"""`Residues` on a CPU: split, multiply, join and certify on an engine, repair what is uncertified."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import accuracy
from prismm.core.accuracy import MAGNITUDE, RAW, ROUNDING
from prismm.core.bounds import ResidueBound, RoundedBound
from prismm.core.outcome import Job, Outcome, real_parts
from prismm.core.scales import Blocks, Scales
from prismm.core.specials import patch, patch_addend
from prismm.cpu.engines.integer import CpuEngine
from prismm.cpu.entries import Entries
from prismm.cpu.repair import exactly, repair
from prismm.cpu.residues.blocking import SplitLeft, SplitRight
from prismm.cpu.residues.product import Product
from prismm.cpu.residues.split import Splitter
from prismm.schemes.residues import Residues

if TYPE_CHECKING:
    from numpy.typing import NDArray


def multiply(
    scheme: Residues,
    a: NDArray[Any],
    b: NDArray[Any],
    out: NDArray[Any],
    job: Job,
    engine: CpuEngine,
    left: SplitLeft | None = None,
    right: SplitRight | None = None,
    blocks: Blocks | None = None,
) -> Outcome:
    """Split, multiply, join, certify and repair: out = a @ b (or the epilogue's sum) up to the job's target.

    blocks: each row of a meets columns of its own (by the direct engine).
    """
    levels = accuracy.join_mode(job.target) == MAGNITUDE
    splitter = Splitter(scheme.moduli, engine, a.shape[1], np.iscomplexobj(out), job.a_priori, levels)
    outcome = Outcome(products=splitter.products)
    work = Product(splitter, job, outcome)
    rows, columns = work.run(a, b, out, left, right) if blocks is None else work.run_blocks(a, b, out, blocks)
    start = time.perf_counter()
    parts = len(real_parts(out))
    outside = np.empty((0, 0), np.bool_)
    if job.epilogue is not None:
        met = columns.nonfinite[None, :] if blocks is None else columns.nonfinite[blocks.columns()]
        outside = rows.nonfinite[:, None] | met
    masks, special = patch_addend(out, job.epilogue, outside)
    if blocks is None:
        special += patch(a, b, out, rows.nonfinite, columns.nonfinite, job.epilogue)
    elif rows.nonfinite.any() or columns.nonfinite.any():
        for block_rows, block_columns in blocks.pieces():
            odd = rows.nonfinite[block_rows], columns.nonfinite[block_columns]
            epilogue = job.epilogue.block(block_rows) if job.epilogue is not None else None
            special += patch(a[block_rows], b[:, block_columns], out[block_rows], *odd, epilogue)
    outcome.count("special", special)
    entries = uncertified_entries(work, rows, columns, masks, blocks)
    uncertified = sum(e.i.size for e in entries)
    path = "value" if work.mode == RAW else "certified"
    outcome.count(path, out.size * parts - special - uncertified)
    if entries and job.target is None:
        # The scheme's own value with an open rounding: exact arithmetic on the rounded operands.
        for found in entries:
            a_hat = rounded_operand(a, rows.shift[:, None], found.i)
            b_hat = rounded_operand(b.T, columns.shift[:, None], found.j).T
            exactly(a_hat, b_hat, out, found, job, outcome, path="value")
    weight = 1.0
    if job.epilogue is not None:
        factors = job.epilogue.factors(0, parts)
        weight = float(abs(factors[0])) + float(abs(factors[1]))  # may overflow, silently
    scheme_bound = ResidueBound(job.result, rows, columns, splitter.terms, weight, blocks)
    if job.target is None:
        _finite_where_exact(a, b, out, job, scheme_bound, masks, outcome)
    elif uncertified:
        for found in entries:
            repair(a, b, out, found, job, outcome, (rows, columns))
    outcome.time("repair", time.perf_counter() - start)
    if work.mode == ROUNDING:
        outcome.bound = RoundedBound(job.result)
    else:
        outcome.bound = scheme_bound
    return outcome


def entries_at(part: int, i: NDArray[np.int64], j: NDArray[np.int64], blocks: Blocks | None) -> Entries:
    """Entries of the result by row and column, the latter of each row's block."""
    return Entries(part, i, j) if blocks is None else Entries(part, i, blocks.owner[i] * blocks.width + j, blocks.width)


def uncertified_entries(
    work: Product, rows: Scales, columns: Scales, masks: list[NDArray[np.bool_]], blocks: Blocks | None = None
) -> list[Entries]:
    """The uncertified entries of each real part that has any, but for entries that meet Inf or NaN.

    masks: of each part, where C of an epilogue has these.
    """
    entries = []
    for part, mask in enumerate(masks):
        mine = [(i, j) for p, i, j in work.uncertified if p == part]
        if not mine:
            continue
        i, j = np.concatenate([x[0] for x in mine]), np.concatenate([x[1] for x in mine])
        found = entries_at(part, i, j, blocks)
        # Their rows or columns counted as zero here, and have their results from `patch`.
        if rows.nonfinite.any() or columns.nonfinite.any():
            found = found.keep(~(rows.nonfinite[found.i] | columns.nonfinite[found.j]))
        if mask.any():
            found = found.keep(~mask[found.place])
        entries.append(found)
    return entries


@np.errstate(all="ignore")
def _finite_where_exact(
    a: NDArray[Any],
    b: NDArray[Any],
    out: NDArray[Any],
    job: Job,
    bound: ResidueBound,
    masks: list[NDArray[np.bool_]],
    outcome: Outcome,
) -> None:
    """Law 4 for the scheme's own value: infinite exactly where RN(exact) is. Entries that may be in the top binades, or
    beyond them, are compared with the exact value, which replaces them where only one is infinite, or their signs
    differ.
    """
    for found in entries_near_overflow(out, job, bound, masks):
        value = real_parts(out)[found.part]
        of_scheme = value[found.place]
        # Counted below, since only some of these values stay.
        exactly(a, b, out, found, job, Outcome())
        keep_finite(value, of_scheme, found, outcome)


@np.errstate(all="ignore")
def entries_near_overflow(
    out: NDArray[Any], job: Job, bound: ResidueBound, masks: list[NDArray[np.bool_]]
) -> list[Entries]:  # fmt: skip
    """Entries of the scheme's own value that may be in the top binades, or beyond them."""
    top = 2.0 ** (job.result.maxexp - 3)
    # One number first: where no bound reaches the top binades, none has to be evaluated.
    far = bound.exponent() > job.result.maxexp - 4
    reach = bound.at(np.where(np.isfinite(out), out, 0), slice(None), slice(None)) if far else 0.0
    entries = []
    for part, value in enumerate(real_parts(out)):
        i, j = np.nonzero(~((np.abs(value) < top) & (reach < top)))
        found = entries_at(part, i.astype(np.int64), j.astype(np.int64), bound.blocks)
        finite = ~(bound.rows.nonfinite[found.i] | bound.columns.nonfinite[found.j]) & ~masks[part][i, j]
        found = found.keep(finite)
        if found.i.size:
            entries.append(found)
    return entries


def keep_finite(value: NDArray[Any], of_scheme: NDArray[Any], found: Entries, outcome: Outcome) -> None:
    """Put the scheme's values back instead of exact ones, but where only one is infinite, or they differ there."""
    exact = value[found.place]
    same = (np.isinf(of_scheme) == np.isinf(exact)) & (np.isfinite(of_scheme) | (of_scheme == exact))
    value[found.keep(same).place] = of_scheme[same]
    outcome.count("value", -int((~same).sum()))
    outcome.count("exact", int((~same).sum()))


@np.errstate(all="ignore")
def rounded_operand(x: NDArray[Any], shift: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[Any]:
    """x rounded to multiples of 2^-shift, (rows, 1), in the wanted rows: the operand that the scheme multiplies
    exactly. Other rows are not filled in.
    """
    rows = np.unique(wanted)
    whole = np.empty(x.shape, np.result_type(x.dtype, np.float64))
    for source, target in zip(real_parts(x), real_parts(whole), strict=True):
        chosen, by = source[rows].astype(np.float64), shift[rows]
        target[rows] = np.ldexp(np.rint(np.ldexp(chosen, by)), -by)
    return whole
