"""From the arguments of a call to what will run: check, normalise, select, and the plan that tells it."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import arrays as interop
from prismm.core import environment
from prismm.core.accuracy import Target
from prismm.core.composite import Composite
from prismm.core.memory import workspace_limit
from prismm.core.outcome import Job
from prismm.core.plan import Plan, bound_text
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
from prismm.cpu.choice import CpuColumn, Sample, is_thin, is_tiny
from prismm.cpu.costs import predict
from prismm.cpu.engines.integer import DIRECT, ENGINES, choose
from prismm.cpu.flow import SplitOperand, blocking
from prismm.cpu.residues.blocking import SplitLeft, SplitRight, tiling
from prismm.cpu.residues.split import Splitter
from prismm.errors import ArgumentError, DTypeError, EngineError, OperandError, ShapeError
from prismm.formats import format_of
from prismm.planning import auto
from prismm.schemes.native import Native, fits_single, gemm_dtype
from prismm.schemes.residues import Residues

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

BLAS = "cpu:blas"
"""What a report calls the engine of `Native`."""

PREPARED_SIZE = 1024
"""Rows and columns that the choice for a prepared operand counts on: its partner's are not known."""


@dataclass(frozen=True)
class Call:
    """A call after normalisation, with its scheme and engine chosen; `plan` tells the rest when someone asks."""

    a: NDArray[Any]
    b: NDArray[Any]
    c: NDArray[Any] | None
    family: str
    source: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    scheme: Any
    engine: str
    reasons: tuple[str, ...]
    problem: Problem
    request: Request
    batch: tuple[int, ...]
    k: int
    left: SplitLeft | SplitOperand | None
    right: SplitRight | SplitOperand | None
    terms: int
    inputs: list[NDArray[Any]]

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan, with its predictions."""
        return make_plan(self)


def as_array(x: Any, name: str) -> interop.Array:
    """The operand normalised, whether prepared, normalised already, or raw."""
    if isinstance(x, Prepared):
        if x.is_cuda:
            raise OperandError(
                f"{name} was prepared on a GPU; gemm and mixed devices need the CPU: prepare a copy there"
            )
        return x.array
    return x if isinstance(x, interop.Array) else interop.normalise(x, name)


def normalise_call(
    a: Any, b: Any, extra: tuple[complex, complex, interop.Array | None] | None, request: Request
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
    family = interop.same_family(named)
    x, y = named[0][1].data, named[1][1].data
    shape = interop.product_shape(x.shape, y.shape)
    arrays = [array.data for _, array in named]
    dtype = interop.result_dtype(arrays, request.out_dtype)
    if family == "dlpack":
        interop.check_kept(named[0][1].source, np.zeros(1, dtype), np.from_dlpack)
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
    big = interop.big_integers(x) or interop.big_integers(y)
    if big:
        if isinstance(a, Prepared) or isinstance(b, Prepared):
            raise OperandError("a prepared operand meets integers beyond 2^53; pass both matrices unprepared")
        x, y = interop.widened(x, y)
    summed = extra is not None and (extra[0] != 1 or extra[1] != 0)
    scheme, engine, reasons, problem = select(
        x,
        y,
        dtype,
        request,
        summed=summed,
        terms_per_element=x.shape[-1] // max(k, 1) if big else 1,
        may_read_data=True,
    )
    left = a.split if isinstance(a, Prepared) else None
    right = b.split if isinstance(b, Prepared) else None
    c = None
    if extra is not None and extra[2] is not None and extra[1] != 0:
        c = extra[2].data
        if interop.big_integers(c):
            raise DTypeError("c holds integers beyond 2^53; pass c.astype(float) if rounding them is meant")
        if dtype.kind == "c" and c.dtype.kind != "c":
            c = c.astype(np.complex128)
        try:
            c = np.broadcast_to(c, shape)
        except ValueError:
            raise ShapeError(f"c has shape {c.shape}, the product has shape {shape}; c must broadcast to it") from None
    assert left is None or not isinstance(left, SplitRight)
    assert right is None or not isinstance(right, SplitLeft)
    inputs = [array.data for _, array in named]
    inner = k
    if big and isinstance(scheme, Native):
        # Two or four terms stand for each product, in a sum that is rounded.
        inner = x.shape[-1]
        if request.target is not None and request.target.kind == "native":
            raise ArgumentError(
                f"{scheme} does not reach accuracy 'native' for integers beyond 2^53; leave scheme out, or pass "
                "prismm.Residues(...)"
            )
    terms = max(inner, 1) * (2 if dtype.kind == "c" else 1)
    batch = tuple(np.broadcast_shapes(x.shape[:-2], y.shape[:-2])) if x.ndim > 2 or y.ndim > 2 else ()
    return Call(
        x, y, c, family, named[0][1].source, shape, dtype, scheme, engine, reasons, problem, request, batch, k, left,
        right, terms,
        inputs,
    )  # fmt: skip


def engine_named(name: str) -> Any:
    """The engine that a plan names."""
    return DIRECT if name == DIRECT.name else choose(name)


def composite_engine(scheme: Composite, name: str | None) -> Any:
    """The engine of this name for a composite scheme; without one that of ``PRISMM_ENGINE``, unless it names an engine
    of this machine that serves other schemes only.
    """
    if name is None:
        name = os.environ.get("PRISMM_ENGINE") or None
        if name == BLAS or name in ENGINES:
            with contextlib.suppress(ArgumentError, EngineError):
                return scheme.engine_for(name)
            name = None
        with _names_variable(name):
            return scheme.engine_for(name)
    return scheme.engine_for(name)


@contextlib.contextmanager
def _names_variable(value: str | None) -> Iterator[None]:
    """Errors of an engine that ``PRISMM_ENGINE`` names say so; None where it names none."""
    try:
        yield
    except (ArgumentError, EngineError) as error:
        if value is None:
            raise
        raise type(error)(f"PRISMM_ENGINE={value!r}: {error}") from None


def _integer_engine(name: str | None, scheme: Any) -> str:
    """The engine asked for `Residues`; ``PRISMM_ENGINE`` may name one of other schemes, which is none here."""
    if name is not None and name.startswith("simulated:") and not isinstance(scheme, Residues):
        what = "prismm.Auto()" if scheme is None else scheme
        raise ArgumentError(
            f"engine={name!r} is a simulated matrix unit, and {what} may take none; pass scheme=prismm.Words(...), "
            f"Residues(...) or another scheme of parts, or engine='cpu'"
        )
    default = os.environ.get("PRISMM_ENGINE") or "cpu"
    if default == BLAS or default.startswith("simulated:"):
        default = "cpu"
    return default if name in (None, BLAS) else name


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
) -> tuple[Any, str, tuple[str, ...], Problem]:  # fmt: skip
    """Scheme, engine and reasons.

    Args:
        a: (..., m, k).
        b: (..., k, n).
        dtype: of the result.
        options: the checked keywords.
        summed: whether gemm adds something.
        terms_per_element: terms that stand for one element of a large integer.
        may_read_data: whether the choice may depend on the data (never for what is reproducible) and on the numbers
            of rows and columns; without, two operands that are prepared apart get the same.
    """
    problem, sample = problem_of(a, b, dtype, request, summed=summed, terms_per_element=terms_per_element)
    if not may_read_data:
        problem, sample = replace(problem, m=PREPARED_SIZE, n=PREPARED_SIZE), None
    scheme, reasons = request.scheme, ["asked for by the caller"]
    if scheme is not None and not isinstance(scheme, (Residues, Native)):
        # A composite scheme: `check_request` looked. Asking the protocol again would cost each call 10 µs.
        engine = composite_engine(scheme, request.engine)
        scheme.check(problem.terms, problem.result)
        return scheme, engine.name, tuple(reasons), problem
    asked = _integer_engine(request.engine, scheme)
    with _names_variable(asked if request.engine in (None, BLAS) else None):
        forced = choose(asked).name if asked != "cpu" else None
    if scheme is None:
        if forced is not None and request.target is not None and request.target.kind == "correctly-rounded":
            problem = replace(problem, fits_float32=False)
        chosen = auto.choose(problem, CpuColumn(), sample)
        scheme, reasons = chosen.scheme, list(chosen.reasons)
    if isinstance(scheme, Native):
        return scheme, BLAS, tuple(reasons), problem
    if request.engine == BLAS:
        raise ArgumentError(
            f"engine={BLAS!r} multiplies no residues, and this product takes {scheme}; leave engine out, or pass one "
            f"of {', '.join(map(repr, ENGINES))}"
        )
    if forced is not None:
        name = forced
        reasons.append(f"engine {name} asked for by the caller")
    elif may_read_data and (is_tiny(problem) or is_thin(problem)):
        name = DIRECT.name
        how = "tiny" if is_tiny(problem) else "one operand is tiny"
        reasons.append(f"{how}: exact integer dot products beat any pipeline")
    else:
        name = choose("cpu").name
        if name not in ("cpu:vnni", "cpu:int8"):
            reasons.append(f"{name}: no INT8 unit of this CPU proved itself exact")
    return scheme, name, tuple(reasons), problem


def make_plan(call: Call) -> Plan:
    """All that can be said of a call before it runs."""
    a, b, problem, request, scheme, engine, dtype = (
        call.a, call.b, call.problem, call.request, call.scheme, call.engine, call.dtype
    )  # fmt: skip
    batch = call.batch
    count = math.prod(batch)
    products, parts, panel, block, workspace, moduli = 1, 1, problem.m, problem.n, 0, 1
    if isinstance(scheme, Residues):
        splitter = Splitter(scheme.moduli, engine_named(engine), problem.k, problem.is_complex)
        if engine != DIRECT.name:
            moduli, parts = len(splitter.system.moduli), splitter.residue_parts
            limit = workspace_limit(a.nbytes + b.nbytes, problem.m * problem.n * dtype.itemsize)
            cut = tiling(problem.m, problem.n, splitter, request.threads, limit)
            panel, block, workspace = cut.row_panel, cut.column_block, cut.bytes
        products = moduli * parts * count
    elif isinstance(scheme, Composite):
        parts = 2 if problem.is_complex else 1
        products = scheme.products_for(problem.terms, problem.result) * parts * count
        limit = workspace_limit(a.nbytes + b.nbytes, problem.m * problem.n * dtype.itemsize)
        limit = max(request.workspace.nbytes, MIN_WORKSPACE) if request.workspace is not None else limit
        job = Job(problem.result, request.target, problem.terms, False, request.threads, limit)
        panel, block, workspace = blocking(scheme, problem.m, problem.n, problem.terms, job, parts)
    elif scheme.compute == "float64":
        workspace = 8 * (problem.k * problem.n + min(problem.m, 1024) * (problem.n + problem.k))
    seconds, native_seconds = predict(scheme, engine, problem, moduli, parts, request.threads)
    return Plan(
        m=problem.m, n=problem.n, k=call.k, batch=batch, operands=(a.dtype.name, b.dtype.name), result=dtype.name,
        target=request.target, scheme=scheme, engine=engine,
        reproducible=request.reproducible or bool(scheme.reproducible)
        or (request.target is not None and request.target.kind == "correctly-rounded"),
        threads=request.threads, products=products, row_panel=panel, column_block=block, workspace_bytes=workspace,
        predicted_seconds=seconds * count, native_seconds=native_seconds * count,
        bound=bound_text(scheme, request.target, problem.result, problem.is_complex), reasons=call.reasons,
        alternatives=alternatives(problem, scheme, seconds, request.threads),
    )  # fmt: skip
