"""The plan of a product on a GPU: scheme, engine, blocks, and all that can be said before it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prismm.core import engine_names as names
from prismm.core.backend import Chosen
from prismm.core.plan import Plan, bound_text
from prismm.core.problem import Problem
from prismm.cuda.alternatives import alternatives
from prismm.cuda.blocks import Blocks, Cut
from prismm.cuda.choice import GpuColumn, Sample
from prismm.cuda.costs import host_speed as host_speed
from prismm.cuda.costs.first_use import ESTIMATED, is_estimated
from prismm.cuda.costs.predict import native_seconds, predict
from prismm.cuda.costs.table import rates_of, usual_rates
from prismm.cuda.device import FP64, Device, default_engine
from prismm.cuda.implementation import Implementation, implementation_of
from prismm.cuda.native.tiny import tiny_seconds
from prismm.errors import ArgumentError, EngineError
from prismm.planning.auto import choose as choose_scheme

if TYPE_CHECKING:
    from prismm.core.request import Request


@dataclass(frozen=True)
class LaunchPlan:
    """What is launched for a product: scheme, engine, why, and the blocks in which it is made."""

    scheme: Any
    engine: str
    reasons: tuple[str, ...]
    blocks: Blocks


def choose(
    problem: Problem, request: Request, device: Device, cut: Cut = (None, None), sample: Sample | None = None,
    *, one_kernel: bool = True,
) -> LaunchPlan:  # fmt: skip
    """Scheme, engine and blocks.

    Args:
        problem: what is multiplied.
        request: the caller's keywords.
        device: the GPU.
        cut: rows and columns of a block, where prepared operands have been cut so.
        sample: what so many moduli would leave uncertified, where it is to be known (`cuda.sample`).
        one_kernel: whether Auto may take a native product in one kernel, or FP8 units: no operand is prepared.

    Raises:
        ArgumentError: for an engine that is none of a GPU's, or too few moduli. EngineError: for a scheme that does not
        run on a GPU. Both name ``PRISMM_ENGINE`` where the call goes well without it.
    """
    unprepared = one_kernel and cut == (None, None)
    column = GpuColumn(device, rates_of(device.name), one_kernel=one_kernel, fp8=unprepared)
    default = default_engine() if request.engine is None else None
    if default is None:
        return _choose(problem, request, request.engine, column, cut, sample)
    try:
        return _choose(problem, request, default, column, cut, sample)
    except (ArgumentError, EngineError) as error:
        # Where the call goes wrong without the variable too, that error is the caller's.
        _choose(problem, request, None, column, cut, sample)
        raise type(error)(f"PRISMM_ENGINE={default!r}: {error}") from None


def _choose(
    problem: Problem, request: Request, engine: str | None, column: GpuColumn, cut: Cut, sample: Sample | None
) -> LaunchPlan:
    """`choose` with this engine."""
    if engine not in (None, "cuda", *names.CUDA):
        names.check(engine)
        known = ", ".join(map(repr, names.CUDA))
        raise ArgumentError(f"engine={engine!r} for operands on a GPU; pass 'cuda' or one of {known}")
    scheme = request.scheme
    reasons: tuple[str, ...] = ("asked for by the caller",)
    tiny = scheme is None and engine in (None, "cuda") and column.takes_tiny(problem)
    if scheme is None:
        scheme, engine, reasons = choose_scheme(problem, column, sample, engine)
    else:
        scheme, engine, reasons = column.with_unit(problem, Chosen(scheme, engine, reasons))
    implementation = implementation_of(scheme)
    if tiny:
        # One kernel, in registers and shared memory: no workspace.
        blocks = implementation.blocks(problem, FP64, column.device, cut)
        return LaunchPlan(scheme, FP64, reasons, blocks._replace(workspace=0, tiny=True))
    from_values = problem.summed and not implementation.joins_sums
    if from_values:
        _check_sum(implementation, problem)
    name = implementation.check(problem, engine, column.device)
    blocks = implementation.blocks(problem, name, column.device, cut)
    # The rounded product stands in workspace until the sum has read it.
    if from_values:
        blocks = blocks._replace(workspace=blocks.workspace + problem.result_bytes)
    return LaunchPlan(scheme, name, (*reasons, *blocks.reasons), blocks)


def _check_sum(implementation: Implementation, problem: Problem) -> None:
    """EngineError where gemm's sum of rounded products would not keep what it promises."""
    scheme, kind = implementation.scheme, problem.target.kind if problem.target is not None else None
    if scheme.reproducible or problem.reproducible or kind in ("correctly-rounded", "tolerance"):
        raise EngineError(
            f"gemm on a GPU rounds the product of {scheme} before it adds C; pass prismm.Residues(...) for one "
            "rounding, or CPU tensors"
        )
    if problem.reads_operands and not problem.sum_bounded:
        raise EngineError(
            f"{scheme} decides no overflow of gemm on a GPU with an alpha as large as this one: times what the product "
            f"of {problem.terms} terms was rounded by, it may pass the largest number; leave scheme out, or pass "
            "prismm.Residues(...)"
        )
    if kind == "native" and not problem.sum_of_values:
        raise EngineError(
            f"{scheme} certifies no gemm on a GPU with an alpha that is complex, or beyond 16 in magnitude, or with "
            "2^23 terms or more; leave scheme out, or pass prismm.Residues(...)"
        )


def make_plan(problem: Problem, chosen: LaunchPlan, request: Request, device: Device, left: str, right: str) -> Plan:
    """All that can be said of a call before it runs.

    Predictions are those of an H200 where the GPU is unknown, beside this host as fast as it is just now.

    Args:
        problem: what is multiplied.
        chosen: of `choose`.
        request: the caller's keywords.
        device: the GPU.
        left, right: types of the operands.
    """
    scheme, blocks, implementation = chosen.scheme, chosen.blocks, implementation_of(chosen.scheme)
    rates = rates_of(device.name) or usual_rates()
    reasons = (*chosen.reasons, ESTIMATED) if is_estimated(device.name) else chosen.reasons
    host_factor = host_speed.seconds() / rates.host_speed
    if blocks.tiny:
        seconds = rates.call.seconds(tiny_seconds(problem, rates), host_factor)
    else:
        seconds = predict(scheme, problem, rates, chosen.engine, host_factor, blocks.strassen)
    # k in the caller's elements, of which one of 64 bits may be several terms.
    return Plan(
        m=problem.m, n=problem.n, k=problem.k // problem.terms_per_element, batch=problem.batch, operands=(left, right),
        result=problem.dtype, target=problem.target, scheme=scheme, engine=chosen.engine,
        reproducible=request.reproducible or bool(scheme.reproducible) or problem.rounded, threads=1,
        products=problem.count * (1 if blocks.tiny else implementation.products_on(chosen.engine, problem, device)),
        row_panel=blocks.rows, column_block=blocks.columns, workspace_bytes=blocks.workspace, predicted_seconds=seconds,
        native_seconds=native_seconds(problem, rates, host_factor),
        bound=bound_text(scheme, problem.target, problem.result, problem.is_complex), reasons=reasons,
        alternatives=alternatives(problem, scheme, chosen.engine, blocks.tiny, device, host_factor),
    )  # fmt: skip
