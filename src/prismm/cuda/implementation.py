"""Implementation: how a scheme runs on a GPU; one class for each scheme, those from outside included."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from prismm.cuda.blocks import BATCH_BYTES, Blocks, Cut, blocks_within
from prismm.cuda.device import COUNTS
from prismm.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from prismm.core.problem import Problem
    from prismm.cuda.costs.table import Rates
    from prismm.cuda.device import Device
    from prismm.cuda.launch.arguments import BufferView
    from prismm.cuda.launch.program import Program
    from prismm.cuda.operands import PreparedParts
    from prismm.cuda.views import Result, Vectors

Statistics = list[tuple[list["BufferView"], list["BufferView"]]]
"""Where the statistics of rows and columns stand: for `Blocks.batches` matrices of a batch at a time, block by block.
"""


@dataclass(frozen=True, eq=False)
class Job:
    """A product to be written down as launches.

    Attributes:
        program: the launches so far.
        a, b: the operands, (batch, m, k) and (batch, k, n); batch is 1 where one matrix serves all.
        left, right: their rows and columns, in the program's bases.
        target: where the result goes.
        addend: gemm's C, or None; without a sum a row that is added to all rows of the rounded product, where
            `Implementation.adds_rows`.
        counts: (4,) int64, entries by how they were certified, see `cuda.device.COUNTS`; behind them an
        implementation's
            own (`Implementation.counters`).
        config: of `Implementation.launch_config`.
        blocks: of `Implementation.blocks`.
        problem, device, engine: what is multiplied, and where.
        prepared: parts of prepared operands.
        full_output: whether counts and statistics are read back.
        one_matrix: whether the columns of B are the rows of A, in the same memory.
    """

    program: Program
    a: torch.Tensor
    b: torch.Tensor
    left: Vectors
    right: Vectors
    target: Result
    addend: Result | None
    counts: BufferView
    config: Any
    blocks: Blocks
    problem: Problem
    device: Device
    engine: str
    prepared: tuple[PreparedParts | None, PreparedParts | None] = (None, None)
    full_output: bool = False
    one_matrix: bool = False


class Implementation(Protocol):
    """A scheme on a GPU. `Composite` is the base for schemes of rounded products."""

    scheme: Any
    joins_sums: bool
    """Whether gemm's sum is made from unrounded products, by `queue_sum`; else from what `queue_product` rounds."""
    a_priori: bool
    """Whether a theorem covers entries that nothing else has certified."""
    third_path: str
    """How the entries of the third of a call's counts were certified."""
    serves_symmetric: bool
    """Whether tiles above the diagonal may be left out of a symmetric product."""
    error: str
    """Which of `cuda.costs.cublas.Errors` its predictions have."""

    def check(self, problem: Problem, engine: str | None, device: Device) -> str:
        """The engine that multiplies, where the caller asked for this one, or for none.

        Raises:
            EngineError: for parameters, types or targets that a GPU does not serve. ArgumentError: for another engine.
        """

    def one_kernel(self, engine: str) -> bool:
        """Whether the whole product is one kernel on this engine."""

    def blocks(self, problem: Problem, engine: str, device: Device, cut: Cut) -> Blocks:
        """How the product is cut to stay in the GPU's memory."""

    def products(self, problem: Problem) -> int:
        """Products on the matrix unit for one product of the batch."""

    def products_on(self, engine: str, problem: Problem, device: Device) -> int:
        """The same on an engine, where that matters."""

    def faster_engine(self, problem: Problem, rates: Rates) -> tuple[str, str] | None:
        """An engine with the same bits that is predicted faster than the usual one, and why; None where there is none.

        Args:
            problem: the product's sizes, types and target.
            rates: the GPU's cost table, without the rates of units that this call must not use.
        """

    def gpu_seconds(
        self, problem: Problem, rates: Rates, engine: str | None = None, strassen: bool | None = None
    ) -> float:
        """Seconds that the GPU is expected to work on a product.

        Args:
            problem: what is multiplied.
            rates: the GPU's cost table.
            engine: which one multiplies; None for the usual one.
            strassen: whether products of residues are Strassen's; None for where that is predicted faster.
        """

    def expected_repairs(
        self, problem: Problem, a: torch.Tensor, b: torch.Tensor, rates: Rates
    ) -> tuple[float, str] | None:
        """Predicted seconds of repairs for these data, and a reason for the plan; None without a prediction.

        Only `explain` calls this. It waits for the device.

        Args:
            problem: the product's sizes, types and target; not those of a batch.
            a, b: the operands.
            rates: the GPU's cost table.
        """

    def launch_config(self, problem: Problem, device: Device) -> Any:
        """What launches depend on, worked out once a call; None where there is nothing."""

    def counters(self, shape: tuple[int, ...], blocks: Blocks) -> int:
        """How many int64 an implementation counts in for itself, for a result (batch, m, n)."""

    def entries_again(self, counters: list[int]) -> int:
        """How many entries, of those counted as exact, more moduli recomputed, by what it counted for itself."""

    def queue(self, job: Job) -> Statistics | None:
        """Write down out = a @ b, certified and repaired; the counts are set."""

    def adds_rows(self, problem: Problem, config: Any, blocks: Blocks) -> bool:
        """Whether `queue` adds a row to all rows of the rounded product, with a second rounding, as it is written."""

    def queue_product(self, job: Job) -> None:
        """Write down the product that gemm's sum is made from, into workspace; what is not finite is left as it is."""

    def queue_sum(self, job: Job) -> Statistics | None:
        """Write down out = alpha·a @ b + beta·c from unrounded products."""

    def bound(
        self, problem: Problem, engine: str, device: Device, a: Any, b: Any, statistics: Any, weight: float
    ) -> Any:
        """The bound of each entry, for a report.

        Args:
            problem, engine, device: what was multiplied, and where.
            a, b: matrices on the device, whose selected entries come to the CPU.
            statistics: of rows and columns, (10, vectors) each, where `queue` returned where they stand.
            weight: by how much alpha makes errors grow, at most.
        """

    def prepare(
        self, x: torch.Tensor, side: Literal["left", "right"], device: Device, step: int
    ) -> tuple[Program, PreparedParts] | None:
        """What splits a matrix once, and where its parts are then; None where nothing is gained by it."""


class Composite:
    """Base for schemes of several products; subclasses have `check`, `workspace`, `queue` and the rest."""

    joins_sums: ClassVar[bool] = False
    a_priori: ClassVar[bool] = False
    third_path: ClassVar[str] = "magnitude"
    serves_symmetric: ClassVar[bool] = False
    error: ClassVar[str] = "residues"

    def __init__(self, scheme: Any) -> None:
        self.scheme = scheme

    def one_kernel(self, engine: str) -> bool:
        """None is."""
        return False

    def workspace(self, problem: Problem, rows: int, columns: int) -> int:
        """Bytes of workspace for a block of a product."""
        raise NotImplementedError

    def blocks(self, problem: Problem, engine: str, device: Device, cut: Cut) -> Blocks:
        """As large as memory allows, and as many products of a batch at once."""
        # Blocks of prepared operands are no concern here: these schemes keep nothing of them.
        return within_memory(problem, lambda rows, columns: self.workspace(problem, rows, columns))

    def counters(self, shape: tuple[int, ...], blocks: Blocks) -> int:
        """None of its own."""
        return 0

    def faster_engine(self, problem: Problem, rates: Rates) -> tuple[str, str] | None:
        """There is none."""
        return None

    def expected_repairs(
        self, problem: Problem, a: torch.Tensor, b: torch.Tensor, rates: Rates
    ) -> tuple[float, str] | None:
        """There is no prediction."""
        return None

    def products_on(self, engine: str, problem: Problem, device: Device) -> int:
        """As many on every engine."""
        count: int = self.products(problem)
        return count

    def products(self, problem: Problem) -> int:
        """Products for one product of the batch."""
        raise NotImplementedError

    def entries_again(self, counters: list[int]) -> int:
        """None are."""
        return 0

    def adds_rows(self, problem: Problem, config: Any, blocks: Blocks) -> bool:
        """It does not."""
        return False

    def queue(self, job: Job) -> Statistics | None:
        """See `Implementation.queue`."""
        raise NotImplementedError

    def queue_product(self, job: Job) -> None:
        """The product as it is; its counts are the sum's to make."""
        import torch

        self.queue(replace(job, addend=None, counts=job.program.allocate(torch.int64, COUNTS)))

    def queue_sum(self, job: Job) -> Statistics | None:
        """Sums are made from rounded products."""
        raise NotImplementedError

    def prepare(
        self, x: torch.Tensor, side: Literal["left", "right"], device: Device, step: int
    ) -> tuple[Program, PreparedParts] | None:
        """Nothing is kept but the matrix: its parts are made in the launch that also splits the other operand."""
        return None


def within_memory(problem: Problem, workspace: Callable[[int, int], int]) -> Blocks:
    """The largest blocks that memory allows, with as many products of a batch as fit. workspace: bytes that a block of
    so many rows and columns takes.
    """
    rows, columns, each = blocks_within(problem, workspace)
    together = max(1, min(problem.count, BATCH_BYTES // max(1, each)))
    return Blocks(rows, columns, each * together)


def implementation_of(scheme: Any) -> Implementation:
    """The scheme's implementation on a GPU.

    Raises:
        EngineError: for a scheme that has none.
    """
    found: Implementation | None = scheme.implementation("cuda")
    if found is None:
        raise EngineError(
            f"{scheme} runs on a CPU so far; pass CPU tensors, or a scheme that a GPU has: Residues, Native, "
            "ScaledHalf, Words, TileInt8 or Slices"
        )
    return found
