"""Implementation of `Residues` on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.accuracy import MAGNITUDE, Target, join_mode
from prismm.core.backend import fp8_predictions
from prismm.core.outcome import Job, Outcome
from prismm.core.problem import Problem
from prismm.cpu.choice import DIRECT_WORK, is_thin, is_tiny
from prismm.cpu.costs import residue_seconds
from prismm.cpu.engines.integer import DIRECT, ENGINES, DirectEngine, choose
from prismm.cpu.engines.named import BLAS, engine_named, forced
from prismm.cpu.engines.simulated_fp8 import SimulatedFp8Engine
from prismm.cpu.forecast import LEAST_WORK, expected_repairs
from prismm.cpu.implementation import Blocks, Freedom, Pass
from prismm.cpu.residues import batch as batch_products
from prismm.cpu.residues import forecast, long
from prismm.cpu.residues.blocking import prepare_left, prepare_right, tiling
from prismm.cpu.residues.multiply import multiply
from prismm.cpu.residues.split import Splitter
from prismm.errors import ArgumentError
from prismm.schemes.residues import Residues

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.core.composite import Side


class Implementation:
    """`Residues` on a CPU; see `cpu.implementation.Implementation`."""

    rounds_every_term = False
    keeps_precision = False

    def __init__(self, scheme: Residues) -> None:
        self.scheme = scheme

    @property
    def digit_moduli(self) -> int:
        """Moduli of its digits, which add up where the inner dimension lies in pieces (`cpu.partial`)."""
        return self.scheme.moduli

    def engine(self, problem: Problem, name: str | None, *, may_read_data: bool) -> tuple[str, tuple[str, ...]]:
        """The engine asked for, the direct one for small products, or the best of this processor."""
        asked = forced(name)
        if name == BLAS:
            raise ArgumentError(
                f"engine={BLAS!r} multiplies no residues, and this product takes {self.scheme}; leave engine out, or "
                f"pass one of {', '.join(map(repr, ENGINES))}"
            )
        if asked is not None:
            return asked, (f"engine {asked} asked for by the caller", *self._digits(problem, asked))
        # Only here may shapes decide: prepared operands must get the same engine, whatever the partner.
        if may_read_data and (is_tiny(problem) or is_thin(problem)):
            how = "tiny" if is_tiny(problem) else "one operand is tiny"
            return DIRECT.name, (f"{how}: exact integer dot products beat any pipeline",)
        best = choose("cpu").name
        if best in ("cpu:int8-7bit", "cpu:float64"):
            return best, (f"{best}: no INT8 unit of this CPU proved itself exact",)
        return best, ()

    def check_target(self, problem: Problem, target: Target | None) -> None:
        """Every target is certified."""

    def products(self, problem: Problem, engine: str) -> int:
        """One for each modulus (FP8: one or three) and for each of the real products that make a complex one; 1 by the
        direct engine.
        """
        return 1 if engine == DIRECT.name else self._splitter(problem, engine).products

    def seconds(self, problem: Problem, engine: str, workers: int) -> float:
        """Of products, splits and joins."""
        return residue_seconds(engine, problem, *self._counts(problem, engine), workers)

    def blocks(self, problem: Problem, engine: str, job: Job) -> Blocks:
        """Panels of rows and blocks of columns; the direct engine takes the whole."""
        if engine == DIRECT.name:
            return Blocks(problem.m, problem.n, 0)
        cut = tiling(problem.m, problem.n, self._splitter(problem, engine), job.workers, job.workspace_bytes)
        return Blocks(cut.row_panel, cut.column_block, cut.bytes)

    def expected_repairs(
        self, problem: Problem, a: NDArray[Any], b: NDArray[Any], dtype: np.dtype[Any], engine: str, workers: int
    ) -> tuple[float, str] | None:
        """By a sample, if the product is large enough."""
        if problem.goal == "fast" or engine == DIRECT.name or problem.multiply_adds < LEAST_WORK:
            return None
        with np.errstate(all="ignore"):
            sample = forecast.tested(problem, a, b, self.scheme.moduli, engine, dtype, workers)
        return expected_repairs(problem, sample, workers)

    def prepare(self, x: NDArray[Any], side: Side, job: Job, engine: str) -> Any:
        """The residues of all moduli."""
        k = x.shape[1 if side == "left" else 0]
        tested = join_mode(job.target) == MAGNITUDE
        is_complex = x.dtype.kind == "c"
        splitter = Splitter(self.scheme.moduli, engine_named(engine), k, is_complex, a_priori=tested, levels=tested)
        return (prepare_left if side == "left" else prepare_right)(x, splitter, job.workers)

    def in_one_pass(
        self, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], job: Job, problem: Problem, engine: str,
        freedom: Freedom,
    ) -> Pass | None:  # fmt: skip
        """Batches and tall products of the direct engine, and long products, where another way gives the same bits."""
        batch, (m, n), k = out.shape[:-2], out.shape[-2:], a.shape[-1]
        free = not freedom.report and not freedom.named
        # What `prepare` has split for the best engine is split again where compiled passes take less.
        again = freedom.prepared and not freedom.report and engine == choose("cpu").name
        again = again and (is_tiny(problem) or is_thin(problem))
        if (again or engine == DIRECT.name) and (batch or m * n * k > DIRECT_WORK):
            report = freedom.report or (freedom.named and not again)
            outcome, part = batch_products.multiply(self.scheme, a, b, out, job, report=report)
            return Pass(outcome, None, part)
        # Reports and named engines are about the ordinary pipeline, which this path goes around.
        if batch or not free or job.epilogue is not None or not long.suits(m, n, k):
            return None
        alike = np.iscomplexobj(a) == np.iscomplexobj(b) == np.iscomplexobj(out)
        if not alike or not long.multiply(self.scheme, a, b, out, job):
            return None
        return Pass(Outcome(), None, lambda _: Outcome())

    def run(
        self, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], job: Job, engine: str, left: Any = None,
        right: Any = None, *, as_torch: bool = False,
    ) -> Outcome:  # fmt: skip
        """See `cpu.residues.multiply`."""
        chosen = engine_named(engine)
        if isinstance(chosen, DirectEngine):
            left = right = None
        return multiply(self.scheme, a, b, out, job, chosen, left, right)

    def _digits(self, problem: Problem, engine: str) -> tuple[str, ...]:
        """What a plan says of FP8 products: moduli, products, blocks of the inner dimension, and predictions for cards
        that have the unit.
        """
        chosen = engine_named(engine)
        if not isinstance(chosen, SimulatedFp8Engine):
            return ()
        system = chosen.system(self.scheme.moduli)
        single = sum(len(chosen.table(q).weights) == 1 for q in system.moduli)
        block = min(map(chosen.block, system.moduli))
        blocks = f"sums of up to {block} terms are exact"
        if problem.k > block:
            blocks += f", and k = {problem.k} is cut for them"
        return (
            f"{self.scheme} by products of e4m3 digits: {single} moduli of one product, {len(system.moduli) - single} "
            f"of three; {blocks}",
            *fp8_predictions(chosen.model.name.partition(".")[0], int(self.scheme.moduli), problem),
        )

    def _splitter(self, problem: Problem, engine: str) -> Splitter:
        return Splitter(self.scheme.moduli, engine_named(engine), problem.k, problem.is_complex)

    def _counts(self, problem: Problem, engine: str) -> tuple[int, int]:
        """Moduli, and real products for each."""
        if engine == DIRECT.name:
            return 1, 1
        splitter = self._splitter(problem, engine)
        return splitter.products // splitter.residue_parts, splitter.residue_parts
