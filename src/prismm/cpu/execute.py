"""From a call on a CPU to its outcome: what is cut from a batch, which implementation runs, and the report."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from prismm.core import arrays, environment, terms
from prismm.core import threads as pool
from prismm.core.accuracy import MAGNITUDE, join_mode
from prismm.core.memory import workspace_limit
from prismm.core.outcome import Epilogue, Job, Outcome
from prismm.core.prepared import Prepared
from prismm.core.report import Piece, Pieces, Report
from prismm.core.request import Request, check_apart
from prismm.cpu import blas_threads
from prismm.cpu.backend import Call, normalise_call, select
from prismm.cpu.implementation import Freedom
from prismm.errors import DTypeError, OperandError, ShapeError
from prismm.formats import format_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

APART = 1 << 24
"""Multiply-adds up to which a product of a batch is one worker's: workers that share it would wait for each other."""


def prepare(x: Any, side: Literal["left", "right"], request: Request) -> Prepared:
    """`prismm.prepare` of a matrix in main memory."""
    environment.check_arithmetic()
    blas_threads.check_numpy()
    array = arrays.normalise(x, "x")
    if array.data.ndim != 2:
        raise ShapeError(f"x has shape {array.data.shape}; prepare takes a matrix of two dimensions")
    if terms.several(array.data):
        raise DTypeError(
            "x holds integers beyond 2^53, or long doubles that are no float64, which are not prepared; pass them to "
            "matmul directly"
        )
    copy = arrays.Array(
        np.array(array.data, order="C"), array.family, array.source if array.family == "dlpack" else None
    )
    dtype = arrays.result_dtype([copy.data], request.out_dtype)
    if copy.family == "dlpack":
        arrays.check_type_survives(copy.source, np.zeros(1, dtype), np.from_dlpack)
    data = terms.numbers(copy.data)
    left, right = (data, data.T) if side == "left" else (data.T, data)
    implementation, engine, _, _ = select(
        left, right, dtype, request, summed=False, terms_per_element=1, may_read_data=False
    )
    split = None
    if data.size:
        data = data.astype(np.complex128) if dtype.kind == "c" and data.dtype.kind != "c" else data
        workspace_bytes = workspace_limit(2 * data.nbytes, data.nbytes)
        job = Job(format_of(dtype), request.target, 1, False, request.threads, workspace_bytes)
        split = implementation.prepare(data, side, job, engine)
    asked = dtype.name if request.out_dtype is not None else None
    return Prepared(
        side, implementation.scheme, request.target, request.reproducible, engine, dtype.name, asked, copy, split
    )  # fmt: skip


def run(
    a: Any,
    b: Any,
    extra: tuple[complex, complex, arrays.Array | None] | None,
    request: Request,
    out: Any,
    full_output: bool,
    lower: bool = False,
) -> Any:
    """`prismm.matmul`, or `prismm.gemm` where `extra` has alpha, beta and C. lower: entries above the diagonal are not
    wanted.
    """
    start = time.perf_counter()
    call = normalise_call(a, b, extra, request)
    target = _target_array(out, call)
    if full_output and target is not None:
        call = call.apart_from(target)
    # All matrices of a batch are written as rows of one view, or stacked.
    scattered = target is not None and bool(call.batch) and not target.flags.c_contiguous
    # Operands are read until the last tile is done: where the target may be one of them, it is written at the end.
    fresh = target is None or scattered or any(np.may_share_memory(target, x) for x in call.inputs)
    # A logical or is made of counts, and a wider target gets the values of the result's type.
    fresh = fresh or call.logical or (target is not None and target.dtype != call.dtype)
    # The scheme may skip entries above the diagonal; zeros keep these finite.
    make = np.zeros if lower else np.empty
    result = make(call.shape, call.dtype) if fresh or target is None else target
    apart = call.problem.big_integers and not all(map(terms.alike, call.inputs[:2]))
    outcome, pieces = _each_alone(call, result, full_output) if apart else _multiply(call, result, full_output, lower)
    value = result > 0.5 if call.logical else result
    if target is not None and fresh:
        target[...] = value
    answer = arrays.as_caller(np.asarray(value), call.family, call.source) if out is None else out
    outcome.time("total", time.perf_counter() - start)
    if not full_output:
        return answer
    report = Report(
        decision=call.decision, outcome=outcome, shape=call.shape, pieces=pieces,
        rows_kept=len(call.shape) > 0 and call.inputs[0].ndim > 1, columns_kept=call.inputs[1].ndim > 1,
        repeated=math.prod(call.batch),
    )  # fmt: skip
    return answer, report


def _target_array(out: Any, call: Call) -> NDArray[Any] | None:
    """`out` as a NumPy view, checked."""
    if out is None:
        return None
    arrays.refuse_lazy(out)
    array = arrays.normalise(out, "out")
    if array.family != call.family:
        raise OperandError(f"out is of kind {array.family}, the operands are of kind {call.family}; pass the same kind")
    if array.family == "numpy" and not isinstance(out, np.ndarray):
        raise OperandError(f"out is a {type(out).__name__}; pass a NumPy array, such as np.empty(shape)")
    if array.data.shape != call.shape:
        raise ShapeError(
            f"out has shape {array.data.shape}, the product has shape {call.shape} (a non-broadcastable output, as "
            f"NumPy says); pass np.empty{call.shape}"
        )
    # A copy stands for an array of a type that NumPy lacks.
    copied = str(getattr(out, "dtype", "")).endswith("bfloat16")
    dtype = np.dtype(bool) if call.logical else call.dtype
    holds = array.data.dtype == dtype or (array.family == "numpy" and np.can_cast(dtype, array.data.dtype, "safe"))
    if copied or not holds:
        name = "bfloat16" if copied else array.data.dtype.name
        raise DTypeError(
            f"out has dtype {name}, the product has {dtype.name}; pass out_dtype or another out (NumPy's words: Cannot "
            f"cast ufunc 'matmul' output from {dtype.name} to {name})"
        )
    if not array.data.flags.writeable or (
        array.family == "numpy" and array.data.dtype is not out.dtype and not out.dtype.isnative
    ):
        raise OperandError("out is read-only or of foreign byte order; pass a writable native array")
    if arrays.overlaps_itself(array.data):
        raise OperandError(
            f"out has entries that share memory (shape {array.data.shape}, strides {array.data.strides}); pass one "
            f"with memory for each, such as np.empty(shape) or torch.empty(shape)"
        )
    check_apart(call.request, "out", array.data)
    return array.data


def _multiply(
    call: Call, result: NDArray[Any], report: bool, lower: bool = False
) -> tuple[Outcome, Sequence[Piece]]:  # fmt: skip
    """Carry out the two-dimensional products of a call; its pieces are for a report alone."""
    a, b = call.a, call.b
    if result.size == 0:
        return Outcome(), []
    view: NDArray[Any] = (
        result.reshape(*call.batch, call.problem.m, call.problem.n) if result.ndim else result.reshape(1, 1)
    )
    addend: NDArray[Any] | None = call.c.reshape(view.shape) if call.c is not None else None
    if call.batch and b.ndim == 2:
        # A batch of left operands against one matrix is one tall product.
        rows = math.prod(call.batch) * call.problem.m
        a = a.reshape(rows, a.shape[-1])
        view = view.reshape(rows, call.problem.n)
        addend = addend.reshape(view.shape) if addend is not None else None
    batch, (m, n) = view.shape[:-2], view.shape[-2:]
    if a.shape[-1] == 0:
        # An empty sum is zero; one zero term stands for it.
        a, b = np.zeros((m, 1), call.dtype), np.zeros((1, n), call.dtype)
    freedom = Freedom(
        report=report, named=call.request.engine is not None or bool(environment.variable(b"PRISMM_ENGINE")),
        prepared=call.left is not None or call.right is not None, as_torch=call.family == "torch",
    )  # fmt: skip
    job = replace(_job(call, a, b, view, addend, call.request.threads), lower=lower)
    whole = call.implementation.in_one_pass(a, b, view, job, call.problem, call.engine, freedom)
    stack = view.reshape(-1, m, n)
    if whole is not None and (whole.done is None or whole.done.all()):
        outcome_of = whole.outcome_of
        return whole.outcome, Pieces(len(stack), lambda p: Piece(stack[p], outcome_of(p)))
    if not batch:
        outcome = _one(call, a, b, view, job)
        return outcome, [Piece(view, outcome)]
    # From here on products are made one at a time, each with a matrix of its own on both sides.
    a, b = (_broadcast(x, batch) for x in (a, b))
    if whole is None:
        return _each(call, list(np.ndindex(*batch)), a, b, view, addend)
    done, outcome_of = whole.done, whole.outcome_of
    assert done is not None
    places = [tuple(map(int, at)) for at in np.argwhere(~done)]
    total, pieces = _each(call, places, a, b, view, addend)
    total.merge(whole.outcome)
    known = {int(np.ravel_multi_index(at, batch)): piece for at, piece in zip(places, pieces, strict=True)}
    return total, Pieces(len(stack), lambda p: known[p] if p in known else Piece(stack[p], outcome_of(p)))


def _each_alone(call: Call, result: NDArray[Any], report: bool) -> tuple[Outcome, Sequence[Piece]]:
    """The products of a batch, some of which hold integers beyond 2^53: the bits of one must not tell what the others
    hold, so each is normalised and planned as if it were alone.
    """
    a, b = call.inputs[:2]
    a, b = a if a.ndim > 1 else a[None, :], b if b.ndim > 1 else b[:, None]
    a, b = (_broadcast(x, call.batch) for x in (a, b))
    view = result.reshape(*call.batch, call.problem.m, call.problem.n)
    addend = call.c.reshape(view.shape) if call.c is not None else None
    total, pieces = Outcome(), list[Piece]()
    for at in np.ndindex(*call.batch):
        left, right = (arrays.Array(x[at], call.family, call.source) for x in (a, b))
        extra = None
        if call.factors is not None:
            extra = (*call.factors, None if addend is None else arrays.Array(addend[at], call.family, call.source))
        outcome, found = _multiply(normalise_call(left, right, extra, call.request), view[at], report)
        total.merge(outcome)
        if report:
            pieces += found
    return total, pieces


def _broadcast(x: NDArray[Any], batch: tuple[int, ...]) -> NDArray[Any]:
    # What broadcasting returns is read-only even where nothing is repeated, and torch warns of that.
    return x if x.shape[:-2] == batch else np.broadcast_to(x, (*batch, *x.shape[-2:]))


def _each(
    call: Call, places: list[tuple[int, ...]], a: NDArray[Any], b: NDArray[Any], view: NDArray[Any],
    addend: NDArray[Any] | None,
) -> tuple[Outcome, list[Piece]]:  # fmt: skip
    """The products of a batch at some places, one by one; small ones by several workers, each a product at a time."""
    request, small = call.request, call.problem.m * call.problem.n * call.problem.k <= APART
    # Room that the caller gave serves one product at a time.
    workers = min(request.threads, len(places)) if small and request.workspace is None else 1
    threads = 1 if workers > 1 else request.threads
    outcomes: list[Any] = [None] * len(places)

    def one(p: int) -> None:
        if workers > 1:
            pool.limit_openmp()
        at = places[p]
        c = addend[at] if addend is not None else None
        outcomes[p] = _one(call, a[at], b[at], view[at], _job(call, a[at], b[at], view[at], c, threads))

    if workers > 1:
        pool.spread(one, list(range(len(places))), workers)
    else:
        for p in range(len(places)):
            one(p)
    total = Outcome()
    for outcome in outcomes:
        total.merge(outcome)
    return total, [Piece(view[at], outcome) for at, outcome in zip(places, outcomes, strict=True)]


def _job(
    call: Call, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], c: NDArray[Any] | None, threads: int
) -> Job:  # fmt: skip
    """What a product, or each of a batch, is asked for."""
    epilogue = Epilogue(*call.factors, c) if call.factors is not None else None
    target = call.request.target
    return Job(
        result=format_of(call.dtype),
        target=target,
        # gemm's target counts three roundings more: of both factors and of the sum.
        terms=call.terms + (3 if epilogue is not None else 0),
        a_priori=join_mode(target) == MAGNITUDE,
        workers=threads,
        workspace_bytes=call.workspace_bytes(a.nbytes + b.nbytes, out.nbytes),
        epilogue=epilogue,
        workspace=call.request.workspace,
    )


def _one(call: Call, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], job: Job) -> Outcome:
    """One two-dimensional product by the plan's scheme."""
    implementation = call.implementation
    if call.dtype.kind == "c":
        # A native product without a target keeps the operands' precision.
        raw = implementation.keeps_precision and call.request.target is None
        a, b = (
            x if x.dtype.kind == "c" else x.astype(np.result_type(x, np.complex64) if raw else np.complex128)
            for x in (a, b)
        )
    return implementation.run(a, b, out, job, call.engine, call.left, call.right, as_torch=call.family == "torch")
