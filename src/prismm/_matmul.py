"""The public verbs: normalise -> plan -> split -> multiply -> join -> certify.

`matmul` and `gemm` normalise their operands and plan; a scheme's `multiply` splits, multiplies, joins, certifies and
repairs each two-dimensional product; `prepare` stops after the split, `explain` after the plan.
"""

from __future__ import annotations

import functools
import math
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from prismm import interop
from prismm.accuracy import MAGNITUDE, Target, kappa, magnitude_kappa, parse_target
from prismm.engines import environment, pool
from prismm.engines.cpu import DIRECT, DirectEngine, choose
from prismm.errors import ArgumentError, DTypeError, OperandError, ShapeError
from prismm.formats import format_of
from prismm.planner import (
    DIRECT_WORK,
    GRADE,
    TINY_MODULI,
    Auto,
    Need,
    Plan,
    bound_text,
    need_of,
    predict,
    workspace_limit,
)
from prismm.report import Piece, Report
from prismm.schemes import native, residues
from prismm.schemes.base import Epilogue, Job, Outcome, for_kernels
from prismm.schemes.native import Native
from prismm.schemes.prepared import Prepared
from prismm.schemes.residues import Residues, SplitLeft, SplitRight
from prismm.schemes.split import Splitter

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PLAIN = frozenset(np.dtype(name) for name in interop.RESULTS)
_NOTHING64 = np.empty((0, 0))
_NOTHING32 = np.empty((0, 0), np.float32)


@dataclass(frozen=True)
class Options:
    """The keywords that say how to multiply, checked."""

    target: Target | None
    scheme: Any
    reproducible: bool
    out_dtype: Any
    engine: str | None
    threads: int


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
    full_output: bool = False,
) -> Any:
    """Multiply matrices to a stated accuracy.

    Args:
        a: array of shape (..., m, k) or (k,): NumPy array, torch CPU tensor or anything with ``__dlpack__``;
        float64, float32,
            complex128, complex64; float16, bfloat16 and integers are taken exactly. Any strides.
        b: array of shape (..., k, n) or (k,), of the same kind.
        accuracy: "fast", "native" (default), "correctly-rounded", or a tolerance relative to |a||b|; see the
        guarantees in
            the documentation. With an explicit scheme None means the scheme's own value, unrepaired.
        scheme: `Residues`, `Native` or `Auto` (default).
        reproducible: the same bits on every machine, thread count, batch position and order of the inner dimension.
        out: array of the result's shape and type to write to; may overlap the operands.
        out_dtype: type of the result, wider or narrower than the operands'.
        engine: "cpu", "cpu:int8", "cpu:int8-7bit", "cpu:float64" or "cpu:direct".
        threads: workers; default all processors, or ``PRISMM_THREADS``.
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
    if (
        scheme is None
        and out is None
        and out_dtype is None
        and engine is None
        and not full_output
        and type(a) is np.ndarray
        and type(b) is np.ndarray
        and a.ndim == 2 == b.ndim
        and (threads is None or pool.worker_count(threads))
    ):
        result = _at_once(a, b, accuracy, reproducible)
        if result is not None:
            return result
    start = time.perf_counter()
    options, a, b = _options(accuracy, scheme, reproducible, out_dtype, engine, threads, a, b)
    return _run(a, b, None, options, out, full_output, start)


def _at_once(a: NDArray[Any], b: NDArray[Any], accuracy: Any, reproducible: Any) -> NDArray[Any] | None:
    """Two roads through the whole flow without its ceremony, for plain matrices: the default call, and tiny
    certified products.

    They take what `Auto` would select and return the same bits; None where anything is out of the ordinary (another
    target, special values, an entry that its certificate leaves open), and the ordinary road decides.
    """
    if a.dtype not in _PLAIN or b.dtype != a.dtype or a.shape[1] != b.shape[0] or a.shape[1] == 0:
        return None
    native_grade = accuracy is None or (isinstance(accuracy, str) and accuracy == "native")
    if native_grade and reproducible is False:
        environment.check_arithmetic()
        c = native.product(a, b)
        return c if native.ordinary(a, b, c) else None
    if a.dtype.kind == "c" or a.shape[0] * a.shape[1] * b.shape[1] > DIRECT_WORK or "PRISMM_ENGINE" in os.environ:
        return None
    if native_grade and reproducible is True:
        target = "native"
    elif isinstance(accuracy, str) and accuracy == "correctly-rounded" and isinstance(reproducible, bool):
        target = accuracy
    else:
        return None
    environment.check_arithmetic()
    return _tiny_at_once(a, b, target)


@functools.lru_cache(maxsize=1024)
def _tiny_recipe(dtype: np.dtype[Any], k: int, accuracy: str) -> tuple[Any, ...]:
    """What `tiny_product` needs for this type, inner dimension and target."""
    target = parse_target(accuracy)
    result = format_of(dtype)
    mode = residues.join_mode(target)
    tested = mode == MAGNITUDE
    splitter = Splitter((GRADE if tested else TINY_MODULI)[result.precision], DIRECT, k, False)
    factors = (kappa(target, k, result), magnitude_kappa(target, k, result)) if tested else (0.0, 0.0)
    levels = splitter.count_levels if tested else 0
    return splitter.thresholds, splitter.fraction_bits, levels, mode, *factors, result.precision


def _tiny_at_once(a: NDArray[Any], b: NDArray[Any], accuracy: str) -> NDArray[Any] | None:
    """A tiny real product by the direct engine in one compiled call, or None if any entry is left open."""
    from prismm.kernels.cpu.tiny import tiny_product

    recipe = _tiny_recipe(a.dtype, a.shape[1], accuracy)
    out = np.empty((a.shape[0], b.shape[1]), a.dtype)
    out64, out32 = (out, _NOTHING32) if out.dtype == np.float64 else (_NOTHING64, out)
    return out if tiny_product(for_kernels(a), for_kernels(b), *recipe, out64, out32) == 0 else None


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
    full_output: bool = False,
) -> Any:
    """alpha·op(A)·op(B) + beta·C, rounded once: targets apply to the sum as a whole.

    Args:
        a, b: matrices (or batches); op is the identity, transpose or conjugate transpose.
        c: array that broadcasts to the result's shape; never read where beta is 0.
        alpha, beta: finite scalars, taken exactly; a and b are never read where alpha is 0.
        trans_a, trans_b: "N", "T" or "C".

    The other arguments, results and errors are those of `matmul`. "native" guarantees
    |d - exact| <= (K+3)·u·(|alpha||a||b| + |beta||c|) + (K+3)·η here.

    >>> import numpy as np, prismm
    >>> x = np.array([[0.1]])
    >>> prismm.gemm(x, np.ones((1, 1)), np.array([[-0.3]]), alpha=3.0, beta=1.0, accuracy="correctly-rounded")
    array([[2.77555756e-17]])
    """
    start = time.perf_counter()
    alpha, beta = _scalar(alpha, "alpha"), _scalar(beta, "beta")
    a, b = _transposed(a, trans_a, "trans_a"), _transposed(b, trans_b, "trans_b")
    options, a, b = _options(accuracy, scheme, reproducible, out_dtype, engine, threads, a, b)
    if beta != 0 and c is None:
        raise ArgumentError(f"beta={beta!r} needs c; pass it, or beta=0")
    addend = interop.normalise(c, "c") if beta != 0 else None
    return _run(a, b, (alpha, beta, addend), options, out, full_output, start)


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

    The other arguments are those of `matmul`, and travel with the operand. The result of a product with a prepared
    operand has the same bits as without, for every reproducible or correctly rounded product.

    Raises:
        ArgumentError: for another side. ShapeError: for what is no matrix. The errors of `matmul` besides.

    >>> import numpy as np, prismm
    >>> right = prismm.prepare(np.eye(3), reproducible=True)
    >>> prismm.matmul(np.ones((1, 3)), right)
    array([[1., 1., 1.]])
    """
    if side not in ("left", "right"):
        raise ArgumentError(f"side={side!r}; pass 'left' or 'right'")
    environment.check_arithmetic()
    options, x, _ = _options(accuracy, scheme, reproducible, out_dtype, engine, threads, x, None)
    if isinstance(x, Prepared):
        raise OperandError("this operand is prepared already; pass the matrix itself")
    array = interop.normalise(x, "x")
    if array.data.ndim != 2:
        raise ShapeError(f"x has shape {array.data.shape}; prepare takes a matrix of two dimensions")
    if interop.big_integers(array.data):
        raise DTypeError("x holds integers beyond 2^53, which are not prepared; pass them to matmul directly")
    copy = interop.Array(
        np.array(array.data, order="C"), array.family, array.source if array.family == "dlpack" else None
    )
    dtype = interop.result_dtype([copy.data], options.out_dtype)
    left, right = (copy.data, copy.data.T) if side == "left" else (copy.data.T, copy.data)
    chosen, chosen_engine, _, _ = _select(left, right, dtype, options, epilogue=False, big=False, look=False)
    split: SplitLeft | SplitRight | None = None
    if isinstance(chosen, Residues) and copy.data.size:
        k = copy.data.shape[1] if side == "left" else copy.data.shape[0]
        engine_used = _engine(chosen_engine)
        mode = residues.join_mode(options.target)
        tested = mode == MAGNITUDE
        splitter = Splitter(chosen.moduli, engine_used, k, dtype.kind == "c", a_priori=tested, levels=tested)
        data = copy.data.astype(np.complex128) if dtype.kind == "c" and copy.data.dtype.kind != "c" else copy.data
        if side == "right":
            split = residues.prepare_right(data, splitter, options.threads)
        else:
            split = residues.prepare_left(data, splitter, options.threads)
    asked = dtype.name if options.out_dtype is not None else None
    return Prepared(side, chosen, options.target, options.reproducible, chosen_engine, dtype.name, asked, copy, split)


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

    Arguments and errors are those of `matmul`.

    >>> import numpy as np, prismm
    >>> prismm.explain(np.ones((8, 8)), np.ones((8, 8))).scheme
    Native(compute=None)
    """
    options, a, b = _options(accuracy, scheme, reproducible, out_dtype, engine, threads, a, b)
    return _normalise(a, b, None, options).plan


def _scalar(x: Any, name: str) -> complex:
    try:
        value = complex(x)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name}={x!r} is no number; pass a scalar") from None
    if not (math.isfinite(value.real) and math.isfinite(value.imag)):
        raise ArgumentError(f"{name}={x!r} is not finite; apply it to the result instead")
    return value


def _transposed(x: Any, how: str, name: str) -> Any:
    if how not in ("N", "T", "C"):
        raise ArgumentError(f"{name}={how!r}; pass 'N', 'T' or 'C'")
    if how == "N":
        return x
    if isinstance(x, Prepared):
        raise OperandError(f"{name}={how!r} with a prepared operand; prepare the transposed matrix instead")
    array = interop.normalise(x, name[-1])
    if array.data.ndim < 2:
        raise ShapeError(f"{name}={how!r} needs a matrix; {name[-1]} has shape {array.data.shape}")
    swapped = np.swapaxes(array.data, -1, -2)
    return interop.Array(swapped.conj() if how == "C" else swapped, array.family, array.source)


def _options(
    accuracy: Any, scheme: Any, reproducible: bool, out_dtype: Any, engine: Any, threads: Any, a: Any, b: Any
) -> tuple[Options, Any, Any]:
    """Check the keywords; what a prepared operand carries fills in, and must not be contradicted."""
    if not isinstance(reproducible, (bool, np.bool_)):
        raise ArgumentError(f"reproducible={reproducible!r}; pass True or False")
    target = parse_target(accuracy) if accuracy is not None else None
    if scheme is not None and not isinstance(scheme, (Residues, Native, Auto)):
        raise ArgumentError(
            f"scheme={scheme!r} is no scheme; pass prismm.Residues(...), prismm.Native() or prismm.Auto()"
        )
    if engine is not None and not isinstance(engine, str):
        raise ArgumentError(f"engine={engine!r}; pass a name such as 'cpu'")
    for prepared in (a, b):
        if not isinstance(prepared, Prepared):
            continue
        if target is not None and target != prepared.target and prepared.target is not None:
            raise prepared.refuse("accuracy", accuracy, str(prepared.target))
        if scheme is not None and not isinstance(scheme, Auto) and scheme != prepared.scheme:
            raise prepared.refuse("scheme", scheme, prepared.scheme)
        if reproducible and not prepared.reproducible:
            raise prepared.refuse("reproducible", True, False)
        if engine not in (None, "cpu", prepared.engine):
            raise prepared.refuse("engine", engine, prepared.engine)
        if out_dtype is not None and interop.result_dtype([prepared.data], out_dtype).name != prepared.out_dtype:
            raise prepared.refuse("out_dtype", out_dtype, prepared.out_dtype)
        target = target if target is not None else prepared.target
        out_dtype = out_dtype if out_dtype is not None else prepared.asked_dtype
        scheme, reproducible, engine = prepared.scheme, prepared.reproducible, prepared.engine
    if isinstance(a, Prepared) and isinstance(b, Prepared):
        for keyword in ("scheme", "target", "reproducible", "engine", "out_dtype"):
            if getattr(a, keyword) != getattr(b, keyword):
                raise b.refuse(keyword, getattr(a, keyword), getattr(b, keyword))
    if isinstance(scheme, Auto):
        scheme = None
    if scheme is None and target is None:
        target = Target("native")
    if scheme is not None and reproducible and not scheme.reproducible:
        raise ArgumentError(f"{scheme} is not reproducible; pass prismm.Residues(...) or leave scheme out")
    return Options(target, scheme, bool(reproducible), out_dtype, engine, pool.worker_count(threads)), a, b


@dataclass(frozen=True)
class Normalised:
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
    need: Need
    options: Options
    batch: tuple[int, ...]
    k: int
    left: SplitLeft | None
    right: SplitRight | None
    terms: int
    inputs: list[NDArray[Any]]

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan, with its predictions."""
        return _plan(self)


def _array(x: Any, name: str) -> interop.Array:
    if isinstance(x, Prepared):
        return x.array
    return x if isinstance(x, interop.Array) else interop.normalise(x, name)


def _normalise(
    a: Any, b: Any, extra: tuple[complex, complex, interop.Array | None] | None, options: Options
) -> Normalised:
    environment.check_arithmetic()
    if isinstance(a, Prepared) and a.side != "left":
        raise OperandError("the left operand was prepared for side='right'; prepare it with side='left'")
    if isinstance(b, Prepared) and b.side != "right":
        raise OperandError("the right operand was prepared for side='left'; prepare it with side='right'")
    named = [("a", _array(a, "a")), ("b", _array(b, "b"))]
    if extra is not None and extra[2] is not None:
        named.append(("c", extra[2]))
    family = interop.same_family(named)
    x, y = named[0][1].data, named[1][1].data
    shape = interop.product_shape(x.shape, y.shape)
    arrays = [array.data for _, array in named]
    dtype = interop.result_dtype(arrays, options.out_dtype)
    if extra is not None:
        if dtype.kind != "c" and (extra[0].imag != 0 or extra[1].imag != 0):
            raise DTypeError(
                f"alpha={extra[0]}, beta={extra[1]} are complex; pass out_dtype=complex128 or real scalars"
            )
        if extra[0] == 0:
            # alpha = 0 never reads A and B: an empty inner dimension has the same shape and no elements.
            x, y = np.zeros((*x.shape[:-1], 0), dtype), np.zeros((*y.shape[:-2], 0, *y.shape[-1:]), dtype)
            a = b = None
    for prepared in (a, b):
        if isinstance(prepared, Prepared) and dtype.name != prepared.out_dtype:
            raise OperandError(
                f"the {prepared.side} operand was prepared for a {prepared.out_dtype} result, and this product "
                f"gives {dtype.name}; "
                f"prepare it with out_dtype={dtype.name!r}"
            )
    k = x.shape[-1]
    x = x if x.ndim > 1 else x[None, :]
    y = y if y.ndim > 1 else y[:, None]
    big = interop.big_integers(x) or interop.big_integers(y)
    if big:
        if isinstance(a, Prepared) or isinstance(b, Prepared):
            raise OperandError("a prepared operand meets integers beyond 2^53; pass both matrices unprepared")
        x, y = interop.widened(x, y)
    epilogue = extra is not None and (extra[0] != 1 or extra[1] != 0)
    scheme, engine, reasons, need = _select(x, y, dtype, options, epilogue=epilogue, big=big, look=True)
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
    assert left is None or isinstance(left, SplitLeft)
    assert right is None or isinstance(right, SplitRight)
    inputs = [array.data for _, array in named]
    terms = max(k, 1) * (2 if dtype.kind == "c" else 1)
    batch = tuple(np.broadcast_shapes(x.shape[:-2], y.shape[:-2])) if x.ndim > 2 or y.ndim > 2 else ()
    return Normalised(
        x, y, c, family, named[0][1].source, shape, dtype, scheme, engine, reasons, need, options, batch, k, left,
        right, terms,
        inputs,
    )  # fmt: skip


def _engine(name: str) -> Any:
    return DIRECT if name == DIRECT.name else choose(name)


_BLAS = "cpu:blas"
"""What a report calls the engine of `Native`."""


def _select(
    a: NDArray[Any],
    b: NDArray[Any],
    dtype: np.dtype[Any],
    options: Options,
    *,
    epilogue: bool,
    big: bool,
    look: bool,
) -> tuple[Any, str, tuple[str, ...], Need]:
    """Scheme, engine and reasons. `look`: whether the choice may depend on the data (never for what is
    reproducible).
    """
    asked = None if options.engine == _BLAS else options.engine
    asked = asked or os.environ.get("PRISMM_ENGINE") or "cpu"
    forced = choose(asked).name if asked != "cpu" else None
    need = need_of(a, b, dtype, options.target or Target("fast"), options.reproducible, epilogue, big)
    if not look:
        from dataclasses import replace

        need = replace(need, a=None, b=None)
    scheme, reason = options.scheme, "asked for by the caller"
    if scheme is None:
        if forced is not None and options.target is not None and options.target.kind == "correctly-rounded":
            from dataclasses import replace

            need = replace(need, single=False)
        scheme, reason = Auto().select(need)
    if isinstance(scheme, Native):
        return scheme, _BLAS, (reason,), need
    reasons = [reason]
    if forced is not None:
        name = forced
        reasons.append(f"engine {name} asked for by the caller")
    elif look and need.tiny:
        name = DIRECT.name
        reasons.append("tiny: exact integer dot products beat any pipeline")
    else:
        name = choose("cpu").name
        if name != "cpu:int8":
            reasons.append(f"{name}: the INT8 units of this CPU are not exact, or torch has none")
    return scheme, name, tuple(reasons), need


def _plan(call: Normalised) -> Plan:
    """All that can be said of a call before it runs."""
    a, b, need, options, scheme, engine, dtype = (
        call.a, call.b, call.need, call.options, call.scheme, call.engine, call.dtype
    )  # fmt: skip
    batch = call.batch
    count = math.prod(batch)
    products, parts, panel, block, workspace, moduli = 1, 1, need.m, need.n, 0, 1
    if isinstance(scheme, Residues):
        splitter = Splitter(scheme.moduli, _engine(engine), need.k, need.is_complex)
        if engine != DIRECT.name:
            moduli, parts = len(splitter.system.moduli), splitter.residue_parts
            limit = workspace_limit(a.nbytes + b.nbytes, need.m * need.n * dtype.itemsize)
            cut = residues.tiling(need.m, need.n, splitter, options.threads, limit)
            panel, block, workspace = cut.row_panel, cut.column_block, cut.bytes
        products = moduli * parts * count
    elif scheme.compute == "float64":
        workspace = 8 * (need.k * need.n + min(need.m, 1024) * (need.n + need.k))
    seconds, native_seconds = predict(scheme, engine, need, moduli, parts, options.threads)
    return Plan(
        m=need.m, n=need.n, k=call.k, batch=batch, operands=(a.dtype.name, b.dtype.name), result=dtype.name,
        target=options.target, scheme=scheme, engine=engine,
        reproducible=options.reproducible or bool(scheme.reproducible)
        or (options.target is not None and options.target.kind == "correctly-rounded"),
        threads=options.threads, products=products, row_panel=panel, column_block=block, workspace_bytes=workspace,
        predicted_seconds=seconds * count, native_seconds=native_seconds * count,
        bound=bound_text(scheme, options.target, need.result, need.is_complex), reasons=call.reasons,
    )  # fmt: skip


def _run(
    a: Any,
    b: Any,
    extra: tuple[complex, complex, interop.Array | None] | None,
    options: Options,
    out: Any,
    full_output: bool,
    start: float,
) -> Any:
    call = _normalise(a, b, extra, options)
    target = _target_array(out, call)
    fresh = target is None or any(np.may_share_memory(target, x) for x in call.inputs)
    result = np.empty(call.shape, call.dtype) if fresh or target is None else target
    outcome, pieces = _multiply(call, result, extra, options)
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


def _target_array(out: Any, call: Normalised) -> NDArray[Any] | None:
    """`out` as a NumPy view, checked."""
    if out is None:
        return None
    array = interop.normalise(out, "out")
    if array.family != call.family:
        raise OperandError(f"out is of kind {array.family}, the operands are of kind {call.family}; pass the same kind")
    if array.data.shape != call.shape:
        raise ShapeError(f"out has shape {array.data.shape}, the product has shape {call.shape}")
    if array.data.dtype != call.dtype:
        raise DTypeError(
            f"out has dtype {array.data.dtype.name}, the product has {call.dtype.name}; pass out_dtype or another out"
        )
    if not array.data.flags.writeable or (
        array.family == "numpy" and array.data.dtype is not out.dtype and not out.dtype.isnative
    ):
        raise OperandError("out is read-only or of foreign byte order; pass a writable native array")
    return array.data


def _multiply(
    call: Normalised,
    result: NDArray[Any],
    extra: tuple[complex, complex, interop.Array | None] | None,
    options: Options,
) -> tuple[Outcome, list[Piece]]:
    """Carry out the two-dimensional products of a call."""
    a, b = call.a, call.b
    total = Outcome()
    pieces: list[Piece] = []
    if result.size == 0:
        return total, pieces
    view: NDArray[Any] = result.reshape(*call.batch, call.need.m, call.need.n) if result.ndim else result.reshape(1, 1)
    addend: NDArray[Any] | None = call.c.reshape(view.shape) if call.c is not None else None
    if call.batch and b.ndim == 2:
        # A batch of left operands against one matrix is one tall product.
        rows = math.prod(call.batch) * call.need.m
        a = a.reshape(rows, a.shape[-1])
        view = view.reshape(rows, call.need.n)
        addend = addend.reshape(view.shape) if addend is not None else None
    batch = view.shape[:-2]
    if batch:
        a = np.broadcast_to(a, (*batch, *a.shape[-2:]))
        b = np.broadcast_to(b, (*batch, *b.shape[-2:]))
        if (
            isinstance(call.scheme, Native)
            and extra is None
            and options.target is not None
            and options.target.kind != "tolerance"
        ):
            done = _native_batch(a, b, view, call)
            if done is not None:
                return done
    for index in np.ndindex(*batch):
        c = addend[index] if addend is not None else None
        outcome = _one(a[index], b[index], view[index], c, call, extra, options)
        total.merge(outcome)
        pieces.append(Piece(view[index], outcome))
    return total, pieces


def _native_batch(
    a: NDArray[Any], b: NDArray[Any], view: NDArray[Any], call: Normalised
) -> tuple[Outcome, list[Piece]] | None:
    """A whole batch by one native call, where every entry is ordinary and the a-priori bound is all that is asked."""
    target = call.options.target
    if call.scheme.compute is not None or target is None or target.kind == "correctly-rounded":
        return None
    from prismm.bounds import ConventionalBound

    start = time.perf_counter()
    kind = native.gemm_dtype(a, b, view, None)
    native.product(a.astype(kind, copy=False), b.astype(kind, copy=False), view, as_torch=call.family == "torch")
    if not native.ordinary(a, b, view):
        return None
    total = Outcome(products=math.prod(view.shape[:-2]))
    total.count("a priori", view.size * (2 if view.dtype.kind == "c" else 1))
    total.time("multiply", time.perf_counter() - start)
    unit = format_of(kind).unit_roundoff
    pieces = []
    for index in np.ndindex(*view.shape[:-2]):
        bound = ConventionalBound(format_of(call.dtype), a[index], b[index], call.terms, unit)
        pieces.append(Piece(view[index], Outcome(bound=bound)))
    return total, pieces


def _one(
    a: NDArray[Any],
    b: NDArray[Any],
    out: NDArray[Any],
    c: NDArray[Any] | None,
    call: Normalised,
    extra: tuple[complex, complex, interop.Array | None] | None,
    options: Options,
) -> Outcome:
    """One two-dimensional product by the plan's scheme."""
    epilogue = None
    if extra is not None and (extra[0] != 1 or extra[1] != 0):
        epilogue = Epilogue(extra[0], extra[1], c)
    if a.shape[1] == 0:
        # An empty sum is zero; one zero term stands for it.
        a, b = np.zeros((a.shape[0], 1), call.dtype), np.zeros((1, b.shape[1]), call.dtype)
    if call.dtype.kind == "c" and not (isinstance(call.scheme, Native) and options.target is None):
        a = a if a.dtype.kind == "c" else a.astype(np.complex128)
        b = b if b.dtype.kind == "c" else b.astype(np.complex128)
    terms = call.terms + (3 if epilogue is not None else 0)
    target = options.target
    job = Job(
        result=format_of(call.dtype),
        target=target,
        terms=terms,
        a_priori=residues.join_mode(target) == MAGNITUDE,
        workers=options.threads,
        memory=workspace_limit(a.nbytes + b.nbytes, out.nbytes),
        epilogue=epilogue,
    )
    if isinstance(call.scheme, Native):
        return native.multiply(call.scheme, a, b, out, job, as_torch=call.family == "torch")
    engine = _engine(call.engine)
    left, right = call.left, call.right
    if isinstance(engine, DirectEngine):
        left = right = None
    return residues.multiply(call.scheme, a, b, out, job, engine, left, right)
