"""Implementation: how a scheme runs on a CPU; one class for each scheme, those from outside included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from prismm.core.accuracy import Target
from prismm.core.outcome import Job, Outcome
from prismm.core.problem import Problem
from prismm.errors import ArgumentError, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from prismm.core.composite import Side


class Blocks(NamedTuple):
    """Rows and columns of the blocks in which a product is made, and bytes of workspace that one takes."""

    rows: int
    columns: int
    bytes: int


class Pass(NamedTuple):
    """What one pass over the products of a call made.

    Attributes:
        outcome: of the products that are done.
        done: which products of the batch; None for all.
        outcome_of: the outcome of the p-th product, with its bound, for a report.
    """

    outcome: Outcome
    done: NDArray[np.bool_] | None
    outcome_of: Callable[[int], Outcome]


class Freedom(NamedTuple):
    """What a pass may and must do.

    Attributes:
        report: whether a report asks for outcomes and bounds.
        named: whether the caller or ``PRISMM_ENGINE`` named the engine, which then multiplies alone.
        prepared: whether an operand was split before.
        as_torch: whether the caller's arrays are tensors.
    """

    report: bool
    named: bool
    prepared: bool
    as_torch: bool


class Implementation(Protocol):
    """A scheme on a CPU. `cpu.composite.CompositeImplementation` is the base for schemes of rounded products."""

    scheme: Any
    rounds_every_term: bool
    """Whether K of its bound counts every term that stands for a large integer."""
    keeps_precision: bool
    """Whether real operands of a complex product may stay in float32 where no target is asked for."""

    def engine(self, problem: Problem, name: str | None, *, may_read_data: bool) -> tuple[str, tuple[str, ...]]:
        """The engine that multiplies, by name, and why, where that is not plain.

        Args:
            problem: what is multiplied.
            name: the engine that the caller asked for, or None.
            may_read_data: whether the engine may depend on the numbers of rows and columns.

        Raises:
            ArgumentError, EngineError: for an engine, parameters or a problem that the scheme does not serve, with the
            remedy.
        """

    def check_target(self, problem: Problem, target: Target | None) -> None:
        """ArgumentError for a target that the scheme cannot certify for this problem."""

    def products(self, problem: Problem, engine: str) -> int:
        """Matrix products on the engine for one product of the batch."""

    def seconds(self, problem: Problem, engine: str, workers: int) -> float:
        """Predicted seconds of one product of the batch."""

    def blocks(self, problem: Problem, engine: str, job: Job) -> Blocks:
        """How one product is cut to stay in the job's memory."""

    def expected_repairs(
        self, problem: Problem, a: NDArray[Any], b: NDArray[Any], dtype: np.dtype[Any], engine: str, workers: int
    ) -> tuple[float, str] | None:
        """Predicted seconds of repairs for these data, and a reason for the plan; None without a prediction.

        Only `explain` calls this.
        """

    def prepare(self, x: NDArray[Any], side: Side, job: Job, engine: str) -> Any:
        """What `prismm.prepare` keeps of a matrix, with `nbytes`; None where nothing is gained by it."""

    def in_one_pass(
        self, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], job: Job, problem: Problem, engine: str,
        freedom: Freedom,
    ) -> Pass | None:  # fmt: skip
        """All products of a batch, or a tall or long one, in one pass; None where each is made by `run`."""

    def run(
        self, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], job: Job, engine: str, left: Any = None,
        right: Any = None, *, as_torch: bool = False,
    ) -> Outcome:  # fmt: skip
        """out = a @ b, or the job's sum, up to its target; certified and repaired.

        Args:
            a: (m, k).
            b: (k, n).
            out: (m, n), written.
            job: what is asked.
            engine: as `engine` gave it.
            left: what `prepare` kept of a, or None.
            right: what `prepare` kept of b, or None.
            as_torch: whether the caller's arrays are tensors.
        """


def implementation_of(scheme: Any) -> Implementation:
    """The scheme's implementation on a CPU.

    Raises:
        EngineError: for a scheme that has none.
        ArgumentError: for one that returns something else.
    """
    found: Implementation | None = scheme.implementation("cpu")
    if found is None:
        raise EngineError(f"{scheme} does not run on a CPU; pass tensors on a GPU, or another scheme")
    if not callable(getattr(found, "run", None)):
        raise ArgumentError(
            f"implementation('cpu') of {scheme} returned {found!r}, which runs nothing; return "
            f"prismm.schemes.CompositeImplementation(self), or None"
        )
    return found
