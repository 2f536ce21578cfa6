"""A sample of a product by residues, for predictions of its repairs: rows and columns multiplied and tested like the
whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import accuracy
from prismm.core.accuracy import MAGNITUDE
from prismm.core.outcome import Outcome, real_parts
from prismm.cpu.costs import rates_of
from prismm.cpu.engines.integer import choose
from prismm.cpu.entries import Entries
from prismm.cpu.forecast import Sample, job_of, some_of
from prismm.cpu.many_product import takes_bytes
from prismm.cpu.repair import before_recomputing
from prismm.cpu.residues.product import Product
from prismm.cpu.residues.split import Splitter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.core.problem import Problem

LISTED_SECONDS = 1.0e-7
"""Seconds to test and list an entry that fails, and to read its magnitude."""


def tested(
    problem: Problem, a: NDArray[Any], b: NDArray[Any], moduli: int, engine: str, dtype: np.dtype[Any],
    workers: int = 1,
) -> Sample:  # fmt: skip
    """Multiply a sample by so many moduli, and test its entries. workers: of the product that is predicted."""
    a, b = some_of(problem, a, b)
    out = np.empty((a.shape[0], b.shape[1]), dtype)
    by_magnitudes = accuracy.join_mode(problem.target) == MAGNITUDE
    job = job_of(problem, by_magnitudes, 1)
    splitter = Splitter(moduli, choose(engine), a.shape[1], problem.is_complex, by_magnitudes, by_magnitudes)
    product = Product(splitter, job, Outcome())
    rows, columns = product.run(a, b, out)
    failed, left = 0, []
    for part in range(len(real_parts(out))):
        mine = [np.stack([r, c]) for p, r, c in product.uncertified if p == part]
        r, c = np.concatenate(mine, axis=1) if mine else np.empty((2, 0), np.int64)
        entries = Entries(part, r, c).keep(~(rows.nonfinite[r] | columns.nonfinite[c]))
        failed += entries.i.size
        if entries.i.size:
            scales = (rows, columns) if by_magnitudes else None
            entries = before_recomputing(a, b, out, entries, job, Outcome(), scales)
        left.append(entries)
    size = out.size * len(left)
    whole, best = float(problem.m) * problem.n * len(left), choose("cpu")
    seconds = failed / size * whole * LISTED_SECONDS
    if failed and by_magnitudes and takes_bytes(best):
        # Magnitudes take a product of bytes, and one of ones.
        seconds += 2 * whole * problem.terms / rates_of(best.name).residue / workers
    return Sample(a, b, left[0], failed / size, sum(entries.i.size for entries in left) / size, seconds)
