"""What else could make a product: every scheme of rounded products beside those of `planning.auto`'s table, weighed.

A candidate is taken where its bound meets the target whatever the data, the machine has the units that it is made for,
it is reproducible if that is asked for, and fewer seconds are predicted for it than for the table's choice.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prismm.core import accuracy
from prismm.core.backend import Chosen
from prismm.core.plan import Alternative
from prismm.cpu.engines.integer import expected
from prismm.cpu.implementation import implementation_of
from prismm.errors import PrismmError
from prismm.planning.moduli_count import moduli_for_native
from prismm.schemes.multiword import Words
from prismm.schemes.native import Native, native_meets
from prismm.schemes.residues import Residues
from prismm.schemes.scaled_half import ScaledHalf
from prismm.schemes.slices import Slices
from prismm.schemes.tile_int8 import TileInt8

if TYPE_CHECKING:
    from prismm.core.problem import Problem

_EMULATED = ("cpu:blas", "cpu:float64", "simulated")


@dataclass(frozen=True)
class Candidate:
    """A scheme for a problem. meets: whether its bound meets the target for any data. emulated: on units that this
    machine lacks.
    """

    scheme: Any
    engine: str
    seconds: float
    meets: bool
    reproducible: bool
    emulated: bool = False

    def why_not(self, problem: Problem, seconds: float) -> str | None:
        """Why it is not taken where the choice takes `seconds`; None where it should be."""
        if problem.reproducible and not self.reproducible and problem.goal != "correctly-rounded":
            return "not reproducible"
        if not self.meets:
            return "its bound leaves entries to repair"
        if self.emulated:
            return "emulated here"
        if self.seconds >= seconds:
            return "predicted slower"
        return None


def _schemes(precision: int) -> tuple[Any, ...]:
    """Composite schemes whose usual precision suits the result."""
    if precision == 24:
        return Words.tf32(3), Words.bf16(6), ScaledHalf(), TileInt8(), Slices("int8", "SP")
    return Words.tf64(3), Slices("int8", "DP"), Slices("fp16", "DP")


def candidates(problem: Problem, workers: int = 1) -> Iterator[Candidate]:
    """The composite schemes as candidates for this problem."""
    for scheme in _schemes(problem.result.precision):
        implementation = scheme.implementation("cpu")
        try:
            engine = implementation.expected_engine()
            implementation.check(problem.terms, problem.result)
        except PrismmError:
            continue
        seconds = implementation.seconds(problem, engine, workers)
        emulated = engine.startswith(_EMULATED)
        yield Candidate(scheme, engine, seconds, _meets(implementation, problem), scheme.reproducible, emulated)


def _meets(implementation: Any, problem: Problem) -> bool:
    """Whether the bound meets the target for any data: the implementation's own `relative_bound(k)`, if it has one,
    against what the target leaves of |a||b|.
    """
    if not _bounds_may_meet(problem):
        return False
    if problem.target is None or problem.goal == "fast":
        return True
    relative = getattr(implementation, "relative_bound", None)
    if relative is None:
        return False
    room = accuracy.slack(problem.target, problem.terms, problem.result)
    return float(relative(max(1, problem.terms))) * (1.0 + 2.0**-20) <= room


def _bounds_may_meet(problem: Problem) -> bool:
    """Whether there are targets for such results that the bound of a composite scheme can meet."""
    return problem.goal != "correctly-rounded" and not problem.big_integers


@functools.cache
def _contenders(precision: int) -> bool:
    """Whether a composite scheme for results of this precision has a bound for any data, and this machine its units."""
    implementations = [scheme.implementation("cpu") for scheme in _schemes(precision)]
    return any(
        hasattr(one, "relative_bound") and not one.expected_engine().startswith(_EMULATED) for one in implementations
    )


def weigh(problem: Problem, chosen: Chosen) -> Chosen:
    """The table's choice, or a candidate that beats it."""
    scheme = chosen.scheme
    if getattr(scheme, "is_conventional", False) or not _bounds_may_meet(problem):
        # Every composite scheme makes several products of a native one's size.
        return chosen
    if not _contenders(problem.result.precision):
        return chosen
    best, found = _seconds(scheme, problem, 1), None
    for candidate in candidates(problem):
        if candidate.why_not(problem, best) is None:
            best, found = candidate.seconds, candidate
    if found is None:
        return chosen
    reason = f"its bound meets the target, and fewer seconds are predicted than for {scheme}"
    return Chosen(found.scheme, chosen.engine, (reason,))


def _seconds(scheme: Any, problem: Problem, workers: int) -> float:
    implementation = implementation_of(scheme)
    return implementation.seconds(problem, expected(), workers)


def alternatives(problem: Problem, scheme: Any, seconds: float, workers: int) -> tuple[Alternative, ...]:
    """What was not taken, fastest first, and why not."""
    native, residues = Native(), Residues(moduli_for_native(problem.result, problem.terms))
    of_native_grade = problem.goal in ("native", "fast")
    meets = of_native_grade and not problem.big_integers
    if problem.target is not None and problem.target.tolerance is not None:
        meets = native_meets(
            problem.target.tolerance, problem.terms, problem.native_roundoff, problem.result.unit_roundoff
        )
    others = [
        Candidate(native, "cpu:blas", _seconds(native, problem, workers), meets, False),
        Candidate(residues, expected(), _seconds(residues, problem, workers), of_native_grade, True),
    ]
    # Of the chosen kind another number of moduli, or type of sums, is no alternative.
    others = [*candidates(problem, workers), *(x for x in others if type(x.scheme) is not type(scheme))]
    found = [
        Alternative(str(x.scheme), x.engine, x.seconds, x.why_not(problem, seconds) or "another scheme was asked for")
        for x in others
        if x.scheme != scheme
    ]
    return tuple(sorted(found, key=lambda x: x.predicted_seconds))
