"""The public verbs: normalise -> plan -> split -> multiply -> join -> certify.

`matmul` and `gemm` normalise their operands and plan; a scheme's `multiply` splits, multiplies, joins, certifies and
repairs each two-dimensional product; `prepare` stops after the split, `explain` after the plan.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from prismm.core import arrays as interop
from prismm.core import environment
from prismm.core import threads as pool
from prismm.core.accuracy import MAGNITUDE, join_mode
from prismm.core.arrays import lives_on_gpu
from prismm.core.memory import workspace_limit
from prismm.core.outcome import Epilogue, Job, Outcome
from prismm.core.plan import Plan
from prismm.core.prepared import Prepared
from prismm.core.report import Piece, Pieces, Report
from prismm.core.request import Request, check_apart, check_request, finite_scalar, transposed
from prismm.core.workspace import MIN_WORKSPACE
from prismm.cpu import blas_threads
from prismm.cpu.calls import Call, normalise_call, select
from prismm.cpu.choice import DIRECT_WORK, is_thin, is_tiny
from prismm.cpu.engines.integer import DIRECT, choose
from prismm.cpu.fast_paths import at_once, batch_at_once, tensors_at_once
from prismm.cpu.implementation import implementation_of
from prismm.cpu.native import product as native
from prismm.cpu.residues import batch as batched
from prismm.cpu.residues import long
from prismm.errors import ArgumentError, DTypeError, OperandError, ShapeError
from prismm.formats import format_of
from prismm.schemes.native import Native
from prismm.schemes.residues import Residues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

APART = 1 << 24
"""Multiply-adds up to which a product of a batch is one worker's: workers that share it would wait for each other."""


def matmul(
    a: Any,
    b: Any,
    /,
    *,
    accuracy: str | float | None = None,
    scheme: Any = None,
    reproducible: bool = False,
    out: Any = None,
    out_dtype: Any = None,
    engine: str | None = None,
    threads: int | None = None,
    workspace: Any = None,
    full_output: bool = False,
) -> Any:
    """Multiply matrices to a stated accuracy.

    Args:
        a: array of shape (..., m, k) or (k,): NumPy array, torch CPU tensor or anything with ``__dlpack__``; float64,
            float32, complex128, complex64; float16, bfloat16 and integers are taken exactly. Any strides.
        b: array of shape (..., k, n) or (k,), of the same kind.
        accuracy: "fast", "native" (default), "correctly-rounded", or a tolerance relative to |a||b|; see the
            guarantees in the documentation. With an explicit scheme None means the scheme's own value, unrepaired;
            ``Slices(mode="CR")`` is correctly rounded all the same.
        scheme: `Auto` (default), `Residues`, `Slices`, `Words`, `ScaledHalf`, `TileInt8`, `Native`, one of
            `schemes.baselines`, or your own that keeps `schemes.Scheme`; an instance, such as
            ``Words.tf32(products=3)``.
        reproducible: the same bits on every machine, thread count, batch position and order of the inner dimension.
        out: array of the result's shape and type to write to; may overlap the operands. Of tensors that require grad
            the product has a derivative (`prismm.programs.operators`), with neither ``out`` nor ``full_output``.
        out_dtype: type of the result, wider or narrower than the operands'.
        engine: "cpu" takes the best; "cpu:vnni", "cpu:int8", "cpu:int8-7bit", "cpu:float64" and "cpu:direct" multiply
            integers, for `Residues` (and "cpu:int8" and "cpu:float64" for `Slices`). "cpu:blas" and simulated matrix
            units such as "simulated:volta" multiply the parts of `Words`, `ScaledHalf` and `Slices`; see
            `cpu.engines.simulated`. Those of INT8 ("simulated:a100") serve `Residues` as well. ``PRISMM_ENGINE`` names
            the default.
        threads: workers; default all processors, or ``PRISMM_THREADS``.
        workspace: scratch memory for `Slices`, a NumPy array of uint8, used in place of memory of its own: the product
            is cut so that slices, sums and products of slices fit in it. Its contents are lost.
        full_output: return (result, `Report`).

    Returns:
        The product, with NumPy's shape rules, as the callers' kind of array. Entries that meet Inf or NaN are what the
        defining sum gives; ±Inf elsewhere exactly where the exact value overflows.

    Raises:
        ShapeError, DTypeError, AccuracyError, ArgumentError, OperandError: before any work, for what cannot be
        multiplied. EngineError: for an engine that is not exact on this machine, or a thread that flushes subnormals.

    >>> import numpy as np, prismm
    >>> a = np.array([[1.0, 2.0**-60], [3.0, 4.0]])
    >>> prismm.matmul(a, np.ones((2, 1)), accuracy="correctly-rounded")
    array([[1.],
           [7.]])
    """
    if type(a) is not np.ndarray or type(b) is not np.ndarray:
        if interop.traced(a, b):
            # The one way up: derivatives and graphs are a matter of torch's operators, which stand on this function.
            from prismm.programs import operators

            asked = accuracy, scheme, reproducible, out_dtype, engine, threads
            return operators.matmul_of(a, b, asked, out, workspace, full_output)
        if not full_output and (gpu := sys.modules.get("prismm.cuda.calls")) is not None:
            keywords = accuracy, scheme, reproducible, out_dtype, engine, threads, workspace
            result = gpu.at_once(a, b, keywords, out)
            if result is not None:
                return result
    if (
        scheme is None
        and out is None
        and out_dtype is None
        and engine is None
        and not full_output
        and workspace is None
        and type(a) is np.ndarray
        and type(b) is np.ndarray
        and (threads is None or pool.worker_count(threads))
    ):
        shortcut = at_once if a.ndim == 2 == b.ndim else batch_at_once
        result = shortcut(a, b, accuracy, reproducible, threads)
        if result is not None:
            return result
    if scheme is out is out_dtype is engine is workspace is None and not full_output and interop.is_tensor(a):
        result = tensors_at_once(a, b, accuracy, reproducible, threads)
        if result is not None:
            return result
    if lives_on_gpu(a) or lives_on_gpu(b):
        from prismm.cuda import calls as cuda_calls

        keywords = accuracy, scheme, reproducible, out_dtype, engine, threads, workspace
        return cuda_calls.matmul(a, b, keywords, out, full_output)
    start = time.perf_counter()
    request, a, b = check_request(accuracy, scheme, reproducible, out_dtype, engine, threads, a, b, workspace)
    return _run(a, b, None, request, out, full_output, start)


def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    /,
    *,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    trans_a: Literal["N", "T", "C"] = "N",
    trans_b: Literal["N", "T", "C"] = "N",
    accuracy: str | float | None = None,
    scheme: Any = None,
    reproducible: bool = False,
    out: Any = None,
    out_dtype: Any = None,
    engine: str | None = None,
    threads: int | None = None,
    workspace: Any = None,
    full_output: bool = False,
) -> Any:
    """alpha·op(A)·op(B) + beta·C, rounded once: targets apply to the sum as a whole.

    Args:
        a, b: matrices (or batches); op is the identity, transpose or conjugate transpose.
        c: array that broadcasts to the result's shape; never read where beta is 0.
        alpha, beta: finite scalars, taken exactly; a and b are never read where alpha is 0.
        trans_a, trans_b: "N", "T" or "C".

    The other arguments, results and errors are those of `matmul`, every scheme and engine included. "native"
    guarantees |d - exact| <= (K+3)·u·(|alpha||a||b| + |beta||c|) + (K+3)·η here.

    >>> import numpy as np, prismm
    >>> x = np.array([[0.1]])
    >>> prismm.gemm(x, np.ones((1, 1)), np.array([[-0.3]]), alpha=3.0, beta=1.0, accuracy="correctly-rounded")
    array([[2.77555756e-17]])
    """
    if (aside := _aside("gemm")) is not None:
        return aside(
            a, b, c, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b, accuracy=accuracy, scheme=scheme,
            reproducible=reproducible, out=out, out_dtype=out_dtype, engine=engine, threads=threads,
            workspace=workspace, full_output=full_output,
        )  # fmt: skip
    start = time.perf_counter()
    alpha, beta = finite_scalar(alpha, "alpha"), finite_scalar(beta, "beta")
    if beta != 0 and c is None:
        raise ArgumentError(f"beta={beta!r} needs c; pass it, or beta=0")
    if lives_on_gpu(a) or lives_on_gpu(b):
        from prismm.cuda import calls as cuda_calls

        keywords = accuracy, scheme, reproducible, out_dtype, engine, threads, workspace
        return cuda_calls.gemm(a, b, c, alpha, beta, trans_a, trans_b, keywords, out, full_output)
    a, b = transposed(a, trans_a, "trans_a"), transposed(b, trans_b, "trans_b")
    request, a, b = check_request(accuracy, scheme, reproducible, out_dtype, engine, threads, a, b, workspace)
    addend = interop.normalise(c, "c") if beta != 0 else None
    return _run(a, b, (alpha, beta, addend), request, out, full_output, start)


def prepare(
    x: Any,
    /,
    *,
    side: Literal["left", "right"] = "right",
    accuracy: str | float | None = None,
    scheme: Any = None,
    reproducible: bool = False,
    out_dtype: Any = None,
    engine: str | None = None,
    threads: int | None = None,
) -> Prepared:
    """Split an operand once, to multiply with it often.

    Args:
        x: matrix of shape (k, n) for side "right", (m, k) for "left".
        side: where it will stand.

    The other arguments are those of `matmul`, every scheme and engine included, and travel with the operand. The
    result of a product with a prepared operand has the same bits as without, for every reproducible or correctly
    rounded product.

    Raises:
        ArgumentError: for another side. ShapeError: for what is no matrix. The errors of `matmul` besides.

    >>> import numpy as np, prismm
    >>> right = prismm.prepare(np.eye(3), reproducible=True)
    >>> prismm.matmul(np.ones((1, 3)), right)
    array([[1., 1., 1.]])
    """
    if (aside := _aside("prepare")) is not None:
        return aside(  # type: ignore[no-any-return]
            x, side=side, accuracy=accuracy, scheme=scheme, reproducible=reproducible, out_dtype=out_dtype,
            engine=engine, threads=threads,
        )  # fmt: skip
    if side not in ("left", "right"):
        raise ArgumentError(f"side={side!r}; pass 'left' or 'right'")
    environment.check_arithmetic()
    blas_threads.check_numpy()
    request, x, _ = check_request(accuracy, scheme, reproducible, out_dtype, engine, threads, x, None)
    if isinstance(x, Prepared):
        raise OperandError("this operand is prepared already; pass the matrix itself")
    if lives_on_gpu(x):
        from prismm.cuda import prepare as cuda_prepared

        return cuda_prepared.prepare(x, side, request)
    array = interop.normalise(x, "x")
    if array.data.ndim != 2:
        raise ShapeError(f"x has shape {array.data.shape}; prepare takes a matrix of two dimensions")
    if interop.big_integers(array.data):
        raise DTypeError("x holds integers beyond 2^53, which are not prepared; pass them to matmul directly")
    copy = interop.Array(
        np.array(array.data, order="C"), array.family, array.source if array.family == "dlpack" else None
    )
    dtype = interop.result_dtype([copy.data], request.out_dtype)
    if copy.family == "dlpack":
        interop.check_kept(copy.source, np.zeros(1, dtype), np.from_dlpack)
    left, right = (copy.data, copy.data.T) if side == "left" else (copy.data.T, copy.data)
    chosen, chosen_engine, _, _ = select(
        left, right, dtype, request, summed=False, terms_per_element=1, may_read_data=False
    )
    split = None
    if copy.data.size:
        data = copy.data.astype(np.complex128) if dtype.kind == "c" and copy.data.dtype.kind != "c" else copy.data
        memory = workspace_limit(2 * data.nbytes, data.nbytes)
        job = Job(format_of(dtype), request.target, 1, False, request.threads, memory)
        split = implementation_of(chosen).prepare(data, side, job, chosen_engine)
    asked = dtype.name if request.out_dtype is not None else None
    return Prepared(side, chosen, request.target, request.reproducible, chosen_engine, dtype.name, asked, copy, split)


def explain(
    a: Any,
    b: Any,
    /,
    *,
    accuracy: str | float | None = None,
    scheme: Any = None,
    reproducible: bool = False,
    out_dtype: Any = None,
    engine: str | None = None,
    threads: int | None = None,
) -> Plan:
    """The `Plan` of a product: what would run, why, and what it is expected to take. Nothing is multiplied.

    Arguments and errors are those of `matmul`, every scheme and engine included. `Plan.alternatives` has the schemes
    that were not taken, and why not.

    >>> import numpy as np, prismm
    >>> prismm.explain(np.ones((8, 8)), np.ones((8, 8))).scheme
    Native(compute=None)
    """
    if (aside := _aside("explain")) is not None:
        return aside(  # type: ignore[no-any-return]
            a, b, accuracy=accuracy, scheme=scheme, reproducible=reproducible, out_dtype=out_dtype, engine=engine,
            threads=threads,
        )  # fmt: skip
    a, b = interop.untraced(a), interop.untraced(b)
    if lives_on_gpu(a) or lives_on_gpu(b):
        from prismm.cuda import calls as cuda_calls

        return cuda_calls.explain(a, b, (accuracy, scheme, reproducible, out_dtype, engine, threads))
    request, a, b = check_request(accuracy, scheme, reproducible, out_dtype, engine, threads, a, b)
    return normalise_call(a, b, None, request).plan


def _aside(verb: str) -> Any:
    """The verb as it runs where torch would follow what it does, and it is none of torch's operators: outside of the
    graph that torch.compile makes of a program, beneath the levels of torch.func. None where torch does neither.
    """
    compiling = interop.compiling()
    if not compiling and not interop.transforming():
        return None
    from prismm.programs import operators

    return operators.uncompiled(verb) if compiling else operators.beneath(globals()[verb])


def _run(
    a: Any,
    b: Any,
    extra: tuple[complex, complex, interop.Array | None] | None,
    request: Request,
    out: Any,
    full_output: bool,
    start: float,
) -> Any:
    call = normalise_call(a, b, extra, request)
    target = _target_array(out, call)
    # All matrices of a batch are written as rows of one view, or stacked.
    scattered = target is not None and bool(call.batch) and not target.flags.c_contiguous
    fresh = target is None or scattered or any(np.may_share_memory(target, x) for x in call.inputs)
    result = np.empty(call.shape, call.dtype) if fresh or target is None else target
    apart = call.problem.big_integers and not all(map(interop.alike_in_size, call.inputs[:2]))
    outcome, pieces = (_each_alone if apart else _multiply)(call, result, extra, request, full_output)
    if target is not None and fresh:
        target[...] = result
    answer = interop.as_caller(result, call.family, call.source) if out is None else out
    outcome.time("total", time.perf_counter() - start)
    if not full_output:
        return answer
    report = Report(
        plan=call.plan, outcome=outcome, shape=call.shape, pieces=pieces,
        rows_kept=len(call.shape) > 0 and _ndim(call.inputs[0]) > 1, columns_kept=_ndim(call.inputs[1]) > 1,
        repeated=math.prod(call.batch),
    )  # fmt: skip
    return answer, report


def _ndim(x: NDArray[Any]) -> int:
    return int(x.ndim)


def _target_array(out: Any, call: Call) -> NDArray[Any] | None:
    """`out` as a NumPy view, checked."""
    if out is None:
        return None
    interop.refuse_lazy(out)
    array = interop.normalise(out, "out")
    if array.family != call.family:
        raise OperandError(f"out is of kind {array.family}, the operands are of kind {call.family}; pass the same kind")
    if array.data.shape != call.shape:
        raise ShapeError(f"out has shape {array.data.shape}, the product has shape {call.shape}")
    # A copy stands for an array of a type that NumPy lacks.
    copied = str(getattr(out, "dtype", "")).endswith("bfloat16")
    if copied or array.data.dtype != call.dtype:
        name = "bfloat16" if copied else array.data.dtype.name
        raise DTypeError(f"out has dtype {name}, the product has {call.dtype.name}; pass out_dtype or another out")
    if not array.data.flags.writeable or (
        array.family == "numpy" and array.data.dtype is not out.dtype and not out.dtype.isnative
    ):
        raise OperandError("out is read-only or of foreign byte order; pass a writable native array")
    if interop.overlaps_itself(array.data):
        raise OperandError(
            f"out has entries that share memory (shape {array.data.shape}, strides {array.data.strides}); pass one "
            f"with memory for each, such as np.empty(shape) or torch.empty(shape)"
        )
    check_apart(call.request, "out", array.data)
    return array.data


def _multiply(
    call: Call,
    result: NDArray[Any],
    extra: tuple[complex, complex, interop.Array | None] | None,
    request: Request,
    report: bool,
) -> tuple[Outcome, Sequence[Piece]]:
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
    batch, (m, n), k = view.shape[:-2], view.shape[-2:], a.shape[-1]
    if k == 0:
        # An empty sum is zero; one zero term stands for it.
        a, b, k = np.zeros((m, 1), call.dtype), np.zeros((1, n), call.dtype), 1
    if isinstance(call.scheme, Native) and batch:
        return _native_batch(a, b, view, addend, call, extra, request, report)
    # What `prepare` has split for the best engine is split again where compiled passes take less.
    split = call.left is not None or call.right is not None
    again = split and not report and isinstance(call.scheme, Residues) and call.engine == choose("cpu").name
    again = again and (is_tiny(call.problem) or is_thin(call.problem))
    if (again or call.engine == DIRECT.name) and (batch or m * n * k > DIRECT_WORK):
        job = _job(a, b, view, addend, call, extra, request)
        whole, part = batched.multiply(call.scheme, a, b, view, job, report=report or not (again or _unnamed(call)))
        stack = view.reshape(-1, m, n)
        return whole, Pieces(len(stack), lambda p: Piece(stack[p], part(p)))
    if not batch:
        if not report and long.suits(m, n, k) and _unnamed(call):
            job = _job(a, b, view, addend, call, extra, request)
            alike = np.iscomplexobj(a) == np.iscomplexobj(b) == np.iscomplexobj(view)
            if alike and job.epilogue is None and long.multiply(call.scheme, a, b, view, job):
                return Outcome(), []
        outcome = _one(a, b, view, addend, call, extra, request)
        return outcome, [Piece(view, outcome)]
    a, b = (_broadcast(x, batch) for x in (a, b))
    return _each(list(np.ndindex(*batch)), a, b, view, addend, call, extra, request)


def _each_alone(
    call: Call,
    result: NDArray[Any],
    extra: tuple[complex, complex, interop.Array | None] | None,
    request: Request,
    report: bool,
) -> tuple[Outcome, Sequence[Piece]]:
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
        left, right = (interop.Array(x[at], call.family, call.source) for x in (a, b))
        if extra is not None:
            extra = (*extra[:2], None if addend is None else interop.Array(addend[at], call.family, call.source))
        outcome, found = _multiply(normalise_call(left, right, extra, request), view[at], extra, request, report)
        total.merge(outcome)
        if report:
            pieces += found
    return total, pieces


def _unnamed(call: Call) -> bool:
    """Whether another way to the same bits may serve for residues: who names the engine gets that one alone."""
    unnamed = call.request.engine is None and not environment.variable(b"PRISMM_ENGINE")
    return unnamed and isinstance(call.scheme, Residues)


def _broadcast(x: NDArray[Any], batch: tuple[int, ...]) -> NDArray[Any]:
    # What broadcasting returns is read-only even where nothing is repeated, and torch warns of that.
    return x if x.shape[:-2] == batch else np.broadcast_to(x, (*batch, *x.shape[-2:]))


def _each(
    places: list[tuple[int, ...]],
    a: NDArray[Any],
    b: NDArray[Any],
    view: NDArray[Any],
    addend: NDArray[Any] | None,
    call: Call,
    extra: tuple[complex, complex, interop.Array | None] | None,
    request: Request,
) -> tuple[Outcome, list[Piece]]:
    """The products of a batch at some places, one by one; small ones by several workers, each a product at a time."""
    small = call.problem.m * call.problem.n * call.problem.k <= APART
    workers = min(request.threads, len(places)) if small and request.workspace is None else 1
    mine = replace(request, threads=1) if workers > 1 else request
    outcomes: list[Any] = [None] * len(places)

    def one(p: int) -> None:
        if workers > 1:
            pool.limit_openmp()
        at = places[p]
        c = addend[at] if addend is not None else None
        outcomes[p] = _one(a[at], b[at], view[at], c, call, extra, mine)

    if workers > 1:
        pool.spread(one, list(range(len(places))), workers)
    else:
        for p in range(len(places)):
            one(p)
    total = Outcome()
    for outcome in outcomes:
        total.merge(outcome)
    return total, [Piece(view[at], outcome) for at, outcome in zip(places, outcomes, strict=True)]


def _native_batch(
    a: NDArray[Any],
    b: NDArray[Any],
    view: NDArray[Any],
    addend: NDArray[Any] | None,
    call: Call,
    extra: tuple[complex, complex, interop.Array | None] | None,
    request: Request,
    report: bool,
) -> tuple[Outcome, Sequence[Piece]]:
    """A batch by one native call; one by one only the products for which more is asked than the a-priori bound, or that
    hold an entry that is not ordinary.
    """
    batch = view.shape[:-2]
    start = time.perf_counter()
    whole = native.Whole(call.scheme, a, b, view, _job(a, b, view, addend, call, extra, request))
    done = whole.multiply(as_torch=call.family == "torch")
    a, b = (_broadcast(x, batch) for x in (a, b))
    places = [tuple(map(int, at)) for at in np.argwhere(~done)]
    total, pieces = _each(places, a, b, view, addend, call, extra, request)
    ordinary = int(np.count_nonzero(done))
    total.products = math.prod(batch)
    total.count("a priori", ordinary * view.shape[-2] * view.shape[-1] * (2 if view.dtype.kind == "c" else 1))
    total.time("multiply", time.perf_counter() - start)
    known = dict(zip(places, pieces, strict=True))

    def piece(p: int) -> Piece:
        at = tuple(map(int, np.unravel_index(p, batch)))
        return known[at] if at in known else Piece(view[at], Outcome(bound=whole.bound(a[at], b[at], at)))

    return total, Pieces(math.prod(batch), piece)


def _job(
    a: NDArray[Any],
    b: NDArray[Any],
    out: NDArray[Any],
    c: NDArray[Any] | None,
    call: Call,
    extra: tuple[complex, complex, interop.Array | None] | None,
    request: Request,
) -> Job:
    """What a product, or each of a batch, is asked for."""
    epilogue = None
    if extra is not None and (extra[0] != 1 or extra[1] != 0):
        epilogue = Epilogue(extra[0], extra[1], c)
    terms = call.terms + (3 if epilogue is not None else 0)
    target = request.target
    memory = workspace_limit(a.nbytes + b.nbytes, out.nbytes)
    if request.workspace is not None:
        memory = max(request.workspace.nbytes, MIN_WORKSPACE)
    return Job(
        result=format_of(call.dtype),
        target=target,
        terms=terms,
        a_priori=join_mode(target) == MAGNITUDE,
        workers=request.threads,
        memory=memory,
        epilogue=epilogue,
        workspace=request.workspace,
    )


def _one(
    a: NDArray[Any],
    b: NDArray[Any],
    out: NDArray[Any],
    c: NDArray[Any] | None,
    call: Call,
    extra: tuple[complex, complex, interop.Array | None] | None,
    request: Request,
) -> Outcome:
    """One two-dimensional product by the plan's scheme."""
    job = _job(a, b, out, c, call, extra, request)
    if call.dtype.kind == "c":
        # A plain native product keeps the operands' precision.
        raw = isinstance(call.scheme, Native) and request.target is None
        a, b = (
            x if x.dtype.kind == "c" else x.astype(np.result_type(x, np.complex64) if raw else np.complex128)
            for x in (a, b)
        )
    run = implementation_of(call.scheme).run
    return run(a, b, out, job, call.engine, call.left, call.right, as_torch=call.family == "torch")
