"""`Native` on a GPU: cuBLAS, or one kernel on float64's matrix instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prismm.core.bounds import ConventionalBound
from prismm.cuda.blocks import Blocks, Cut
from prismm.cuda.device import BLAS, FP64, Device, spoiled_by
from prismm.cuda.implementation import Composite, Job
from prismm.cuda.launch import cublas
from prismm.cuda.launch.program import LONGEST_GRID
from prismm.cuda.native.cublas import finish_native, multiply_natively, prove
from prismm.cuda.native.launches import multiply_directly
from prismm.cuda.native.seconds import (
    checked_seconds,
    cublas_seconds,
    is_proved,
    kernel_seconds,
    parts_bytes,
    serves_directly,
)
from prismm.cuda.native.tiles import MOST_ROWS
from prismm.cuda.native.tiny import multiply_tiny
from prismm.errors import ArgumentError, EngineError
from prismm.schemes.native import Native

if TYPE_CHECKING:
    import torch

    from prismm.core.problem import Problem
    from prismm.cuda.costs.table import Rates


class Implementation(Composite):
    """`Native` on a GPU; see `cuda.implementation.Implementation`."""

    a_priori = True
    scheme: Native

    def one_kernel(self, engine: str) -> bool:
        """On float64's matrix instructions."""
        return engine == FP64

    def check(self, problem: Problem, engine: str | None, device: Device) -> str:
        """cuBLAS, or float64's matrix instructions."""
        scheme, single = self.scheme, problem.result.precision == 24
        if scheme.compute == "float32" and not single:
            raise EngineError(f"{scheme} loses bits of {problem.result.name}; pass Native()")
        if engine not in (None, "cuda", BLAS, FP64):
            raise ArgumentError(f"engine={engine!r} multiplies parts of numbers; Native() takes {BLAS!r} or {FP64!r}")
        if not problem.one_type:
            raise ArgumentError(
                "Native() on a GPU takes operands and result of one type; convert them, or pass Residues"
            )
        if problem.target is not None and problem.target.kind in ("correctly-rounded", "tolerance"):
            raise EngineError(
                f"Native() certifies accuracy 'native' and 'fast' on a GPU, not {problem.target}; leave scheme out"
            )
        in_float64 = single and scheme.compute == "float64"
        # Without an engine the scheme's `compute` decides between float64's instructions and cuBLAS.
        if in_float64 if engine in (None, "cuda") else engine == FP64:
            if single and not in_float64:
                raise ArgumentError(f"engine={FP64!r} multiplies float32 in float64: pass scheme=Native('float64')")
            # Products without entries or terms launch nothing, so the kernel's limits do not concern them.
            nothing = min(problem.m, problem.n, problem.k, *problem.batch) == 0 or not problem.reads_operands
            if not nothing and not serves_directly(problem, device):
                raise EngineError(
                    f"{FP64!r} multiplies real matrices of at most {MOST_ROWS} rows and 2^30 columns, with an inner "
                    f"dimension below 2^24, in batches of at most {LONGEST_GRID}: leave engine and scheme out"
                )
            return FP64
        if in_float64:
            raise ArgumentError(f"engine={engine!r} multiplies float32 in float32: pass scheme=Native(), or {FP64!r}")
        # Without a target, cuBLAS however it is set is what was asked for.
        spoiled = spoiled_by(problem)
        if spoiled is not None and problem.target is not None:
            raise EngineError(f"{spoiled}: a native product is not certain to keep {problem.result.name}; set it back")
        return BLAS

    def blocks(self, problem: Problem, engine: str, device: Device, cut: Cut) -> Blocks:
        """The whole."""
        workspace_bytes = 0
        if problem.reads_operands:
            workspace_bytes = cublas.WORKSPACE if engine == BLAS else parts_bytes(problem, device)
        return Blocks(problem.m, problem.n, workspace_bytes)

    def products(self, problem: Problem) -> int:
        """One."""
        return 1

    def gpu_seconds(
        self, problem: Problem, rates: Rates, engine: str | None = None, strassen: bool | None = None
    ) -> float:
        """Of the kernel, or of cuBLAS and the check for entries that are not finite."""
        if engine == FP64 or (self.scheme.compute == "float64" and problem.result.precision == 24):
            return kernel_seconds(problem, rates)
        return cublas_seconds(problem, rates) + checked_seconds(problem, rates)

    def launch_config(self, problem: Problem, device: Device) -> None:
        """Nothing."""

    def queue(self, job: Job) -> None:
        """The product, then the entries that are not finite."""
        program, left, right, target = job.program, job.left, job.right, job.target
        if job.full_output:
            program.zero(job.counts)
        if job.blocks.tiny:
            multiply_tiny(program, target, left, right, job.counts, None, None, job.device)
            return
        if job.engine != BLAS:
            exactly = job.problem.summed
            multiply_directly(program, target, left, right, job.counts, job.device, exactly=exactly)
            return
        found = None
        # Beside the product in a graph: operands are read while cuBLAS multiplies, and only the check waits for both.
        if is_proved(job.problem) and all(_is_whole(x) for x in (job.a, job.b)):
            with program.fork():
                found = prove(program, left, right, job.device)
        multiply_natively(program, left, right, target)
        program.join()
        finish_native(program, target, left, right, job.counts, job.device, found)

    def queue_product(self, job: Job) -> None:
        """The product alone: gemm's sum decides what is not finite."""
        if job.engine != BLAS:
            super().queue_product(job)
        else:
            multiply_natively(job.program, job.left, job.right, job.target)

    def bound(
        self, problem: Problem, engine: str, device: Device, a: Any, b: Any, statistics: Any, weight: float
    ) -> ConventionalBound:
        """A priori, from the operands."""
        unit = 2.0**-53 if engine == FP64 else problem.result.unit_roundoff
        return ConventionalBound(problem.result, a, b, problem.terms, unit)


def _is_whole(x: torch.Tensor) -> bool:
    """Whether there are no gaps between matrices (batch, ·, ·), by rows or by columns."""
    return x.is_contiguous() or x.transpose(1, 2).is_contiguous()
