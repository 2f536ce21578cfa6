"""CompositeImplementation: how a scheme of several rounded products runs on a CPU, through `cpu.flow`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prismm.core.accuracy import Target
from prismm.core.composite import Joined, Scaled, Setting, Side
from prismm.core.outcome import Job, Outcome
from prismm.core.problem import Problem
from prismm.cpu import flow
from prismm.cpu.costs import composite_seconds
from prismm.cpu.engines.named import named_or_default
from prismm.cpu.implementation import Blocks, Freedom
from prismm.formats import Format

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class CompositeImplementation:
    """A `core.composite.Composite`, and with it a `cpu.implementation.Implementation`.

    Each method of `Composite` is the scheme's of that name, unless a subclass defines it.
    """

    rounds_every_term = False
    keeps_precision = False

    def __init__(self, scheme: Any) -> None:
        self.scheme = scheme

    @property
    def reproducible(self) -> bool:
        """See `Composite.reproducible`."""
        return bool(self.scheme.reproducible)

    @property
    def granule(self) -> tuple[int, int]:
        """See `Composite.granule`."""
        found: tuple[int, int] = self.scheme.granule
        return found

    def engine_for(self, name: str | None) -> Any:
        """See `Composite.engine_for`."""
        return self.scheme.engine_for(name)

    def expected_engine(self) -> str:
        """The name of the engine that `engine_for` is expected to give for None; torch is not loaded to tell."""
        return str(self.engine_for(None).name)

    def check(self, k: int, result: Format) -> None:
        """See `Composite.check`."""
        self.scheme.check(k, result)

    def split(self, x: Scaled, setting: Setting) -> Any:
        """See `Composite.split`."""
        return self.scheme.split(x, setting)

    def multiply(self, left: Any, right: Any, setting: Setting) -> Joined:
        """See `Composite.multiply`."""
        found: Joined = self.scheme.multiply(left, right, setting)
        return found

    def products_for(self, k: int, result: Format) -> int:
        """See `Composite.products_for`."""
        return int(self.scheme.products_for(k, result))

    def workspace(self, m: int, n: int, k: int, result: Format) -> int:
        """See `Composite.workspace`."""
        return int(self.scheme.workspace(m, n, k, result))

    def engine(self, problem: Problem, name: str | None, *, may_read_data: bool) -> tuple[str, tuple[str, ...]]:
        """See `Implementation.engine`."""
        found: str = named_or_default(name, self.engine_for).name
        # An inner dimension that the scheme cannot take is refused here, before any work.
        self.check(problem.terms, problem.result)
        return found, ()

    def check_target(self, problem: Problem, target: Target | None) -> None:
        """See `Implementation.check_target`: repair certifies any target."""

    def products(self, problem: Problem, engine: str) -> int:
        """See `Implementation.products`."""
        return self.products_for(problem.terms, problem.result) * problem.parts

    def seconds(self, problem: Problem, engine: str, workers: int) -> float:
        """See `Implementation.seconds`."""
        return composite_seconds(self.products_for(problem.terms, problem.result), engine, problem, workers)

    def expected_repairs(
        self, problem: Problem, a: NDArray[Any], b: NDArray[Any], dtype: np.dtype[Any], engine: str, workers: int
    ) -> tuple[float, str] | None:
        """See `Implementation.expected_repairs`. There is no prediction."""
        return None

    def blocks(self, problem: Problem, engine: str, job: Job) -> Blocks:
        """See `Implementation.blocks`."""
        return Blocks(*flow.blocking(self, problem.m, problem.n, problem.terms, job, problem.parts))

    def prepare(self, x: NDArray[Any], side: Side, job: Job, engine: str) -> flow.SplitOperand:
        """See `Implementation.prepare`."""
        return flow.split_operand(self, x, side, job, named_or_default(engine, self.engine_for))

    def in_one_pass(
        self, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], job: Job, problem: Problem, engine: str,
        freedom: Freedom,
    ) -> None:  # fmt: skip
        """None: each product is made by itself."""

    def run(
        self, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], job: Job, engine: str, left: Any = None,
        right: Any = None, *, as_torch: bool = False,
    ) -> Outcome:  # fmt: skip
        """See `Implementation.run`."""
        return flow.multiply(self, a, b, out, job, named_or_default(engine, self.engine_for), left, right)
