"""From the arguments of a call to what will run: check, normalise, select, and the plan that tells it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import arrays, environment, terms
from prismm.core.accuracy import Target
from prismm.core.memory import workspace_limit
from prismm.core.outcome import Job
from prismm.core.plan import Decision, Plan, bound_text, with_repairs
from prismm.core.prepared import Prepared
from prismm.core.problem import Problem
from prismm.core.request import (
    Request,
    check_apart,
    check_prepared,
    check_scalars,
    check_sides,
)
from prismm.core.workspace import MIN_WORKSPACE
from prismm.cpu import blas_threads
from prismm.cpu.alternatives import alternatives
from prismm.cpu.choice import CpuColumn, Sample
from prismm.cpu.costs import blas_seconds
from prismm.cpu.engines.named import BLAS, forced, refuse_simulated
from prismm.cpu.implementation import Implementation, implementation_of
from prismm.errors import DTypeError, OperandError, ShapeError
from prismm.formats import format_of
from prismm.planning import auto
from prismm.schemes.native import fits_single, gemm_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

PREPARED_SIZE = 1024
"""Rows and columns that the choice for a prepared operand counts on: its partner's are not known."""


@dataclass(frozen=True)
class Call:
    """A call after normalisation, with its scheme and engine chosen; `plan` tells the rest when someone asks.

    logical: whether the result is a logical or of bools, for which `dtype` is the type of the counts.
    """

    a: NDArray[Any]
    b: NDArray[Any]
    c: NDArray[Any] | None
    factors: tuple[complex, complex] | None
    family: str
    source: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    implementation: Implementation
    engine: str
    reasons: tuple[str, ...]
    problem: Problem
    request: Request
    batch: tuple[int, ...]
    k: int
    left: Any
    right: Any
    terms: int
    inputs: list[NDArray[Any]]
    logical: bool

    @property
    def scheme(self) -> Any:
        """The scheme that was chosen, or asked for."""
        return self.implementation.scheme

    def workspace_bytes(self, operands: int, result: int) -> int:
        """Bytes of workspace for a product of so many bytes of operands and result: the caller's, or its share."""
        if self.request.workspace is not None:
            return max(self.request.workspace.nbytes, MIN_WORKSPACE)
        return workspace_limit(operands, result)

    @property
    def reproducible(self) -> bool:
        """Whether the bits depend on operands, types, k and target alone."""
        return self.request.reproducible or bool(self.scheme.reproducible) or self.problem.rounded

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan, with its predictions."""
        return make_plan(self)

    def apart_from(self, target: NDArray[Any]) -> Call:
        """The call with copies of the matrices that a result there may overwrite: a report reads them later."""

        def apart(x: NDArray[Any]) -> NDArray[Any]:
            return x.copy() if np.may_share_memory(x, target) else x

        return replace(self, a=apart(self.a), b=apart(self.b), c=None if self.c is None else apart(self.c))

    @property
    def decision(self) -> Decision:
        """What was chosen, for a report, which then need not hold the operands."""
        a, b = (np.broadcast_to(np.empty((), x.dtype), x.shape) for x in (self.a, self.b))
        call = replace(self, a=a, b=b, c=None, source=None, left=None, right=None, inputs=[])
        return Decision(
            self.scheme, self.engine, self.request.target, self.reproducible, functools.partial(make_plan, call)
        )


def as_array(x: Any, name: str) -> arrays.Array:
    """The operand normalised, whether prepared, normalised already, or raw."""
    if isinstance(x, Prepared):
        if x.is_cuda:
            raise OperandError(
                f"{name} was prepared on a GPU; gemm and mixed devices need the CPU: prepare a copy there"
            )
        return x.array
    return x if isinstance(x, arrays.Array) else arrays.normalise(x, name)


def normalise_call(
    a: Any, b: Any, extra: tuple[complex, complex, arrays.Array | None] | None, request: Request
) -> Call:
    """The call with everything checked and chosen, before any work on the data's size."""
    environment.check_arithmetic()
    blas_threads.check_numpy()
    check_sides(a, b)
    named = [("a", as_array(a, "a")), ("b", as_array(b, "b"))]
    if extra is not None and extra[2] is not None:
        named.append(("c", extra[2]))
    for name, array in named:
        check_apart(request, name, array.data)
    family = arrays.same_family(named)
    x, y = named[0][1].data, named[1][1].data
    shape = arrays.product_shape(x.shape, y.shape)
    data = [array.data for _, array in named]
    dtype = arrays.result_dtype(data, request.out_dtype)
    logical = extra is None and request.out_dtype is None and {z.dtype.kind for z in data} == {"b"}
    if family == "dlpack":
        arrays.check_type_survives(named[0][1].source, np.zeros(1, bool if logical else dtype), np.from_dlpack)
    if extra is not None:
        check_scalars(extra[0], extra[1], dtype.kind == "c")
        if extra[0] == 0:
            # alpha = 0 never reads A and B: an empty inner dimension has the same shape and no elements.
            x, y = np.zeros((*x.shape[:-1], 0), dtype), np.zeros((*y.shape[:-2], 0, *y.shape[-2:][1:]), dtype)
            a = b = None
    check_prepared(a, b, dtype.name)
    k = x.shape[-1]
    x = x if x.ndim > 1 else x[None, :]
    y = y if y.ndim > 1 else y[:, None]
    x, y, each = terms.widened(x, y)
    if each > 1 and (isinstance(a, Prepared) or isinstance(b, Prepared)):
        raise OperandError(
            "a prepared operand meets integers beyond 2^53, or long doubles that are no float64; pass both matrices "
            "unprepared"
        )
    if logical:
        request = _counting(request, a, b)
    summed = extra is not None and (extra[0] != 1 or extra[1] != 0)
    implementation, engine, reasons, problem = select(
        x,
        y,
        dtype,
        request,
        summed=summed,
        terms_per_element=each,
        may_read_data=True,
    )
    left = a.split if isinstance(a, Prepared) else None
    right = b.split if isinstance(b, Prepared) else None
    c = None
    if extra is not None and extra[2] is not None and extra[1] != 0:
        c = extra[2].data
        if terms.several(c):
            raise DTypeError(
                f"c holds numbers of type {c.dtype} that are no float64; pass c.astype(float) if rounding them is meant"
            )
        c = terms.numbers(c)
        if dtype.kind == "c" and c.dtype.kind != "c":
            c = c.astype(np.complex128)
        try:
            c = np.broadcast_to(c, shape)
        except ValueError:
            raise ShapeError(f"c has shape {c.shape}, the product has shape {shape}; c must broadcast to it") from None
    inputs = [array.data for _, array in named]
    implementation.check_target(problem, request.target)
    # Where several terms stand for an element, a sum that is rounded has them all.
    summands = problem.terms if implementation.rounds_every_term else max(k, 1) * problem.parts
    batch = tuple(np.broadcast_shapes(x.shape[:-2], y.shape[:-2])) if x.ndim > 2 or y.ndim > 2 else ()
    factors = extra[:2] if extra is not None and summed else None
    return Call(
        x, y, c, factors, family, named[0][1].source, shape, dtype, implementation, engine, reasons, problem, request,
        batch, k, left, right, summands, inputs, logical,
    )  # fmt: skip


def _counting(request: Request, a: Any, b: Any) -> Request:
    """The request of a logical or, as a product of zeros and ones: its entries are counts, and the result is where they
    are above 1/2.

    In native grade an entry is within K·u·n + K·η of its count n, as |a||b| is n itself: within K·η where n = 0, and
    above 1/2 from n = 1 on, as K·u is below 1/4 for float64 and any K below 2^50.
    """
    if request.target in (Target("native"), Target("correctly-rounded")):
        return request
    if isinstance(a, Prepared) or isinstance(b, Prepared):
        raise OperandError(
            f"an operand of bools was prepared with accuracy={str(request.target)!r}, which a logical or does not "
            f"follow from; prepare it with accuracy='native', or with out_dtype='float64' for counts"
        )
    return replace(request, target=Target("native"))


def problem_of(
    a: NDArray[Any], b: NDArray[Any], dtype: np.dtype[Any], request: Request, *, summed: bool, terms_per_element: int
) -> tuple[Problem, Sample | None]:
    """The `Problem` of a product of two matrices, or of each of a batch; the data that a choice may look at."""
    result, native = format_of(dtype), gemm_dtype(a, b, np.empty(0, dtype), None)
    problem = Problem(
        m=a.shape[-2], n=b.shape[-1], k=a.shape[-1],
        # A batch of left operands against one matrix is one tall product.
        batch=tuple(np.broadcast_shapes(a.shape[:-2], b.shape[:-2])) if b.ndim > 2 else (),
        result=result, target=request.target or Target("fast"), reproducible=request.reproducible,
        one_type=a.dtype == b.dtype == dtype and terms_per_element == 1, is_complex=dtype.kind == "c", summed=summed,
        terms_per_element=terms_per_element, native=format_of(native), fits_float32=fits_single(a) and fits_single(b),
    )  # fmt: skip
    if not a.size or not b.size:
        return problem, None
    return problem, Sample(a.reshape(-1, a.shape[-1]), b.reshape(-1, *b.shape[-2:])[0], native)


def select(
    a: NDArray[Any], b: NDArray[Any], dtype: np.dtype[Any], request: Request, *, summed: bool, terms_per_element: int,
    may_read_data: bool,
) -> tuple[Implementation, str, tuple[str, ...], Problem]:  # fmt: skip
    """The scheme's implementation, its engine and reasons.

    Args:
        a: (..., m, k).
        b: (..., k, n).
        dtype: of the result.
        request: the checked keywords.
        summed: whether gemm adds something.
        terms_per_element: terms that stand for one element of a large integer.
        may_read_data: whether the choice may depend on the data (never for what is reproducible) and on the numbers
            of rows and columns; without, two operands that are prepared apart get the same.
    """
    problem, sample = problem_of(a, b, dtype, request, summed=summed, terms_per_element=terms_per_element)
    if not may_read_data:
        problem, sample = replace(problem, m=PREPARED_SIZE, n=PREPARED_SIZE), None
    scheme = request.scheme
    reasons: tuple[str, ...] = ("asked for by the caller",)
    if scheme is None:
        refuse_simulated(request.engine, "prismm.Auto()")
        if problem.rounded and forced(request.engine) is not None:
            problem = replace(problem, fits_float32=False)  # sums in float64 are no engine's
        asked = BLAS if request.engine == BLAS else forced(request.engine)
        chosen = auto.choose(problem, CpuColumn(), sample, asked)
        scheme, reasons = chosen.scheme, chosen.reasons
    implementation = implementation_of(scheme)
    engine, why = implementation.engine(problem, request.engine, may_read_data=may_read_data)
    return implementation, engine, (*reasons, *why), problem


def make_plan(call: Call) -> Plan:
    """All that can be said of a call before it runs."""
    a, b, problem, request, scheme, engine, dtype = (
        call.a, call.b, call.problem, call.request, call.scheme, call.engine, call.dtype
    )  # fmt: skip
    batch, implementation = call.batch, call.implementation
    count = math.prod(batch)
    limit = call.workspace_bytes(a.nbytes + b.nbytes, problem.m * problem.n * dtype.itemsize)
    blocks = implementation.blocks(
        problem, engine, Job(problem.result, request.target, problem.terms, False, request.threads, limit)
    )
    seconds = implementation.seconds(problem, engine, request.threads)
    return Plan(
        m=problem.m, n=problem.n, k=call.k, batch=batch, operands=(a.dtype.name, b.dtype.name), result=dtype.name,
        target=request.target, scheme=scheme, engine=engine,
        reproducible=call.reproducible,
        threads=request.threads, products=implementation.products(problem, engine) * count,
        row_panel=blocks.rows, column_block=blocks.columns, workspace_bytes=blocks.bytes,
        predicted_seconds=seconds * count, native_seconds=blas_seconds(problem, request.threads) * count,
        bound=bound_text(scheme, request.target, problem.result, problem.is_complex), reasons=call.reasons,
        alternatives=alternatives(problem, scheme, seconds, request.threads),
    )  # fmt: skip


def foreseen(call: Call) -> Plan:
    """The plan of a call with what repairs are expected to add, where a sample of the data can tell."""
    plan, target = call.plan, call.request.target
    if target is None or call.batch or call.left is not None or call.right is not None:
        return plan
    repairs = call.implementation.expected_repairs(
        call.problem, call.a, call.b, call.dtype, call.engine, call.request.threads
    )
    return with_repairs(plan, repairs)
