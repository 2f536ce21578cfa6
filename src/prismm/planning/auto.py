"""Auto: from a problem to a scheme. One table for every device; what differs is in the rows that a device fills in.

| asked for | on a CPU | on a GPU |
| --- | --- | --- |
| reproducible=True | Residues; moduli from result type, K and target alone | the same |
| "native", "fast" | Native; Residues for integers beyond 2^53 | the fewest predicted seconds among Native, Residues of
    native grade, multiword FP16 (float32) and one FP64 kernel |
| a tolerance | Native where (K+2)·u is within it, otherwise Residues with the fewest moduli | Residues with the fewest
    moduli |
| "correctly-rounded" | Native("float64") for float32 data, otherwise Residues; moduli by a sample of the data, which
    cannot change the result | Residues; moduli by the fewest predicted seconds, repair included |

`prismm.cpu.choice` and `prismm.cuda.choice` are the two columns. On a CPU `prismm.planning.alternatives` weighs the
schemes of several rounded products against the table's choice: one of them is taken where its bound meets the target on
units that the machine has, and fewer seconds are predicted for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prismm.core.backend import Chosen, Column, column_of
from prismm.core.problem import Problem
from prismm.planning.moduli_count import moduli_for_native, moduli_for_tolerance
from prismm.schemes.residues import Residues


@dataclass(frozen=True)
class Auto:
    """The scheme that chooses a scheme; see the table in this module's docstring.

    Value, bound, reproducibility: those of the scheme that it selects.

    >>> import numpy as np, prismm
    >>> prismm.explain(np.ones((8, 8)), np.ones((8, 8)), scheme=prismm.Auto(), reproducible=True).scheme
    Residues(moduli=15)
    """

    @property
    def reproducible(self) -> bool:
        """What it selects may be either."""
        return False

    def select(self, problem: Problem, device: str = "cpu", sample: Any = None) -> Chosen:
        """The scheme for a problem, its engine where that matters, and the reasons.

        Args:
            problem: shapes, types and target.
            device: "cpu" for this processor, or the name of a GPU as `torch.cuda.get_device_name` gives it; no such
                GPU has to be here.
            sample: the operands' data, or a function of them, where the choice may depend on it; see the columns.

        >>> from prismm.core.accuracy import parse_target
        >>> from prismm.core.problem import Problem
        >>> from prismm.formats import FP64
        >>> problem = Problem(4096, 4096, 4096, (), FP64, parse_target("native"), reproducible=False, one_type=True)
        >>> Auto().select(problem).scheme, Auto().select(problem, "NVIDIA H200").scheme
        (Native(compute=None), Residues(moduli=14))
        """
        return choose(problem, column_of(device), sample)


def choose(problem: Problem, column: Column, sample: Any = None, engine: str | None = None) -> Chosen:
    """What the table has for a problem. engine: the one that the caller asked for."""
    assert problem.target is not None
    # First, as no data may be read here: bits must not depend on a neighbouring row.
    if problem.reproducible and problem.goal not in ("correctly-rounded", "tolerance"):
        reason = "reproducible, of native grade; the number of moduli follows from result type and K alone"
        return column.weigh(problem, Chosen(_of_native_grade(problem), engine, (reason,)))
    if problem.goal == "tolerance":
        # The order of summation in a BLAS is its own, and so are its bits.
        native = None if problem.reproducible else column.native_within(problem, sample)
        return native or column.weigh(problem, _for_tolerance(problem, engine))
    if problem.rounded:
        return column.weigh(problem, column.correctly_rounded(problem, sample, engine))
    return column.weigh(problem, column.native_grade(problem, sample, engine))


def _of_native_grade(problem: Problem) -> Residues:
    return Residues(moduli_for_native(problem.result, problem.terms))


def _for_tolerance(problem: Problem, engine: str | None) -> Chosen:
    assert problem.target is not None and problem.target.tolerance is not None
    tolerance = problem.target.tolerance
    moduli = moduli_for_tolerance(tolerance, problem.terms, problem.result)
    reason = f"the fewest moduli whose bound is likely within {tolerance:g}·|a||b|"
    return Chosen(Residues(moduli), engine, (reason,))
