"""Predicts how long a GPU repairs the product of given data. Only `explain` asks for this; products do not.

Some rows and columns, in groups of neighbours from all over the operands, are copied to the host. `sampled` joins their
product as the kernels join the whole product. `sampled_choice` chooses the repair of uncertified entries as
`kernels.strips` does. The shares of the sample's entries are the expected shares of all entries. The sample misses a
single large element, and a row or column unlike all others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from prismm.core.accuracy import MAGNITUDE
from prismm.core.plan import readable_seconds
from prismm.cuda.residues.join import join_tile, shared_programs
from prismm.cuda.residues.recompute import FEW_OF_STRIP, MANY_UNCERTIFIED, MOST_MAGNITUDES, UNCERTIFIED_ROWS
from prismm.cuda.residues.sampled import GROUP, Joined, Side, join_sample
from prismm.cuda.residues.sampled_choice import START, Choice, Work, choose

if TYPE_CHECKING:
    import torch

    from prismm.core.problem import Problem
    from prismm.cuda.costs.table import Rates
    from prismm.cuda.residues.sampled import Floats
    from prismm.cuda.residues.tables import CertificateTest

GROUPS = 8
"""Groups of rows, and of columns."""

PRODUCTS, ELEMENTS = 1 << 23, 1 << 19
"""The most products of a sample, and elements of each operand whose extents are read where operands are balanced."""

AT_ONCE, SINGLES, MANY_OF_ROWS = 8, 64, 3 * MANY_UNCERTIFIED / (UNCERTIFIED_ROWS * 128)
"""Of `kernels.strips`: where more than so many entries a program are left, and such a share of all, whole rows are
summed.
"""

_STRIP = 64 * 128
"""Entries of a strip; products of magnitudes certify a whole strip at a time."""


@dataclass(frozen=True)
class Sample:
    """Rows and columns of real terms, in float64.

    Attributes:
        rows, columns: (vectors, terms), groups of `GROUP` neighbours.
        other_rows, other_columns: more of them, evenly apart.
    """

    rows: Floats
    columns: Floats
    other_rows: Floats
    other_columns: Floats


@dataclass(frozen=True)
class Costs:
    """Seconds of repairs, as measured on an H200 (`benchmarks/results/wide_data_cuda.csv`).

    Least squares of the relative errors of 47 families, n = 1024 and 2048; `entry` and `term` are an H100's. Kernels
    decide by `recompute.SECONDS`, which are others.
    """

    closely: float = 1.26e-12
    """For an entry and modulus of tiles that are joined from three parts."""
    exactly: float = 4.36e-12
    """For an entry and modulus of tiles that are joined exactly."""
    first: float = 2.2e-5
    """Where any entry stays uncertified: launches that had nothing to do else."""
    entry: float = 2.4e-6
    """For an entry that a program sums in twice float64's precision, whatever its terms."""
    term: float = 2.5e-9
    """For each of its terms."""
    exact_entry: float = 1.8e-5
    """For an entry that this does not decide, summed in exact limbs."""
    listing: float = 2.4e-5
    """For a list of entries."""
    batch: float = 1.5e-6
    """For up to `AT_ONCE` of its entries, which a program sums at a time."""
    batch_term: float = 2.7e-9
    """For each of their terms."""
    row_term: float = 3.2e-12
    """For an entry and term of rows that are summed whole, each entry in its own unit."""
    again: float = 0.83
    """How many times as long products of more moduli take as the kernels' own constants have it."""
    measuring: float = 1.45
    """Likewise measuring operands anew."""
    stages: float = 2.9e-5
    """For the waits of one run of more moduli, and for those of measurements."""


COSTS = Costs()


@dataclass(frozen=True)
class Forecast:
    """A prediction of the repairs of a product.

    Attributes:
        joined: shares of its entries.
        choice: how the entries that are left are repaired; None where a sample has none.
        work: what that takes.
        seconds: by name, in the order of the work.
    """

    joined: Joined
    choice: Choice | None
    work: Work
    seconds: dict[str, float]


def sample_of(a: torch.Tensor, b: torch.Tensor) -> Sample:
    """Some rows and columns of two matrices or vectors, on any device; waits for it."""
    # Several left matrices of one right matrix are one.
    a, b = a.reshape(-1, a.shape[-1]), b[:, None] if b.ndim == 1 else b
    terms = a.shape[1] * (2 if a.is_complex() or b.is_complex() else 1)
    groups = max(1, min(GROUPS, int((PRODUCTS / terms) ** 0.5) // GROUP))
    others = max(1, ELEMENTS // terms)
    columns = b.mT
    return Sample(
        _vectors(a, _neighbours(a.shape[0], groups), terms, as_columns=False),
        _vectors(columns, _neighbours(columns.shape[0], groups), terms, as_columns=True),
        _vectors(a, _evenly(a.shape[0], others), terms, as_columns=False),
        _vectors(columns, _evenly(columns.shape[0], others), terms, as_columns=True),
    )


def _neighbours(size: int, groups: int) -> list[int]:
    starts = {int(x) // GROUP * GROUP for x in np.linspace(0, max(0, size - GROUP), groups)}
    return [x for start in sorted(starts) for x in range(start, min(start + GROUP, size))]


def _evenly(size: int, count: int) -> list[int]:
    return [int(x) for x in np.linspace(0, size - 1, min(size, count))]


def _vectors(x: torch.Tensor, index: list[int], terms: int, *, as_columns: bool) -> Floats:
    """Vectors as real terms. Of complex products the columns of every other group stand for imaginary parts."""
    import torch

    some = x.detach().index_select(0, torch.tensor(index, device=x.device)).resolve_conj()
    if terms == x.shape[1]:
        return np.ascontiguousarray(some.double().cpu().numpy())
    found: Floats = torch.view_as_real(some.to(torch.complex128)).cpu().numpy()
    if as_columns:
        imaginary = (np.arange(len(index)) // GROUP % 2 == 1)[:, None]
        re, im = found[..., 0], found[..., 1]
        found = np.stack([np.where(imaginary, im, re), np.where(imaginary, re, -im)], axis=-1)
    return np.ascontiguousarray(found.reshape(len(index), terms))


@np.errstate(all="ignore")
def forecast(
    moduli: int, problem: Problem, sample: Sample, test: CertificateTest, rates: Rates, costs: Costs = COSTS
) -> Forecast | None:
    """Predict the repairs of a product from a sample of its operands; None where no vector of the sample is finite.

    Args:
        moduli: of the product.
        problem: its shapes, types and target.
        sample: of `sample_of`.
        test: what the join asks of an entry.
        rates: the GPU's cost table.
        costs: seconds of the repairs.
    """
    rows, columns = Side.of(sample.rows, moduli), Side.of(sample.columns, moduli)
    if not len(rows.x) or not len(columns.x):
        return None
    joined = join_sample(rows, columns, moduli, problem.parts, test)
    entries = float(problem.m) * problem.n * problem.parts
    elements = float(problem.m + problem.n) * problem.terms
    work = Work(joined.left * entries, entries, elements, problem.terms, problem.result.precision, problem.parts)
    choice = None
    if joined.entries[0].size:
        choice = choose(rows, columns, joined.entries, work, (sample.other_rows, sample.other_columns))
    _, height, width, _ = join_tile(test.mode)
    strips = problem.parts * -(-problem.m // height) * -(-problem.n // width)
    programs, _ = shared_programs(2 * rates.processors, strips, height // UNCERTIFIED_ROWS)
    return Forecast(joined, choice, work, _seconds(moduli, joined, choice, work, test, programs, rates, costs))


def _longest(entries: float, programs: int) -> float:
    """Of so many entries that are spread by chance over programs, those of the one that has most."""
    mean = entries / programs
    if mean > 50.0:
        return mean + math.sqrt(2.0 * mean * math.log(programs))
    count, chance = 0, math.exp(-mean)
    rest = 1.0 - chance
    while programs * rest > 0.5 and count < 200:
        count += 1
        chance *= mean / count
        rest -= chance
    # Less than one entry is an expectation.
    return float(count) if entries >= 1.0 else entries


def _of_list(entries: float, terms: int, undecided: float, programs: int, costs: Costs) -> float:
    """Seconds of the entries of a list, of which twice float64's precision leaves such a share undecided."""
    at_once = min(AT_ONCE, max(1, math.ceil(entries / programs)))
    alone = undecided * _longest(entries, programs) * costs.exact_entry
    return costs.listing + _longest(entries / at_once, programs) * (costs.batch + terms * costs.batch_term) + alone


def _seconds(
    moduli: int, joined: Joined, choice: Choice | None, work: Work, test: CertificateTest, programs: int, rates: Rates,
    costs: Costs,
) -> dict[str, float]:  # fmt: skip
    """Seconds of each part of the repairs, by name. programs: how many sum single entries at the same time."""
    by_magnitudes = test.mode == MAGNITUDE
    judged = joined.uncertified > FEW_OF_STRIP / _STRIP if by_magnitudes else True
    exactly = joined.exactly + joined.extraordinary
    found = {
        "joins": work.entries * moduli * ((joined.closely + joined.exactly) * costs.closely + exactly * costs.exactly),
        "first": min(1.0, joined.uncertified * work.entries) * costs.first,
    }
    if by_magnitudes and judged:
        strips = min(1.0, joined.uncertified * _STRIP)
        found["magnitudes"] = work.elements * rates.tuning.magnitude_planes
        found["magnitudes"] += strips * work.entries * work.terms * rates.tuning.magnitude_products
    if choice is None or not choice.runs:
        undecided = choice.undecided if choice is not None else 0.0
        alone = work.uncertified if judged else joined.uncertified * work.entries
        each = costs.entry + work.terms * costs.term + undecided * costs.exact_entry
        listed = judged and alone > programs
        found["alone"] = (
            _of_list(alone, work.terms, undecided, programs, costs) if listed else _longest(alone, programs) * each
        )
    else:
        found["again"] = costs.again * sum(work.again(each) - START for each in choice.runs)
        found["again"] += costs.stages * len(choice.runs)
        remaining = choice.left * work.uncertified
        if remaining > SINGLES * programs and remaining > MANY_OF_ROWS * work.entries:
            found["remaining"] = work.entries * work.terms * costs.row_term
            found["remaining"] += choice.undecided * _longest(remaining, programs) * costs.exact_entry
        else:
            found["remaining"] = _of_list(remaining, work.terms, choice.undecided, programs, costs)
    if choice is not None and choice.measured:
        found["measuring"] = costs.measuring * work.measuring + costs.stages
    return found


def expected_repairs(
    moduli: int, problem: Problem, a: torch.Tensor, b: torch.Tensor, test: CertificateTest, rates: Rates
) -> tuple[float, str] | None:
    """Seconds that repairs of a product are expected to take, and the reason for a plan.

    Args:
        moduli: of the product.
        problem: its shapes, types and target.
        a: (m, k), or (k,).
        b: (k, n), or (k,).
        test: what the join asks of an entry.
        rates: the GPU's cost table.

    Returns:
        None where too many terms are added, or nothing in the sample is finite.
    """
    if problem.terms > MOST_MAGNITUDES:
        return None
    found = forecast(moduli, problem, sample_of(a, b), test, rates)
    if found is None:
        return None
    seconds = sum(found.seconds.values())
    return seconds, f"in a sample of the data {_how(found)}, in about {readable_seconds(seconds)}"


def _how(found: Forecast) -> str:
    """A sentence: the share of entries that fail, and how they are repaired."""
    joined, choice = found.joined, found.choice
    if joined.uncertified * found.work.entries < 1.0:
        share = min(1.0, max(joined.closely, joined.exactly) + joined.extraordinary)
        return f"{share:.2g} of the tiles are left by the fast join: joined once more"
    fails = f"{joined.uncertified:.2g} of the entries fail the first test"
    if choice is not None and choice.runs:
        balanced = " of balanced operands" if choice.balanced else ""
        return f"{fails}: made again by {' and '.join(map(str, choice.runs))} moduli{balanced}"
    if found.work.uncertified >= 1.0:
        return f"{fails}: made again one by one"
    return f"{fails}: certified by their magnitudes"
