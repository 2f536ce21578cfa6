"""Dot products of an `EngineModel` on arrays, bit for bit those of `specification`, in compiled code."""

from __future__ import annotations

import functools
import math
import numbers
import reprlib
from typing import TYPE_CHECKING, Any

from prismm.errors import ArgumentError, DTypeError, OperandError, ShapeError
from prismm.formats import E4M3, Format, Integer
from prismm.numerics import encodings
from prismm.numerics.model import EngineModel
from prismm.numerics.parts import MODES, SUBNORMALS, LateJoin

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Rows = NDArray[np.int64]

__all__ = ["bits", "dot", "dot_unchecked", "gemm", "mma"]

_CHUNK = 1 << 15
"""Products in one piece of work for a worker, about."""


def dot(
    model: EngineModel,
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike = 0.0,
    scale_a: ArrayLike | None = None,
    scale_b: ArrayLike | None = None,
    workers: int | None = None,
) -> NDArray[np.float64]:
    """c + Σ a·b over the last axis as the model computes it, bit for bit.

    Args:
        model: of the engine.
        a, b: (..., k), values of its input format, k >= 1; their leading axes are broadcast.
        c: (...), values of its output format.
        scale_a, scale_b: (..., ceil(k / scale.length)), with the leading axes of a and of b; only of an engine with
            block scales.
        workers: threads; None: all.

    Returns:
        float64, of the leading axes' common shape. NaN has no payload: see `bits`.

    Raises:
        ArgumentError: for values that the formats do not have, scales that are missing or too many, or a model that
            is none.
        ShapeError: if shapes do not fit.
        OperandError, DTypeError: for operands that are no arrays, or none of real numbers.

    >>> from prismm.formats import FP16, FP32
    >>> from prismm.numerics.model import EngineModel
    >>> volta = EngineModel("v100", FP16, FP32, block=4, fraction_bits=23, rounding="zero")
    >>> dot(volta, [[1.0, 2.0**-12], [1.0, 1.0]], [1.0, 2.0**-12]).tolist()
    [1.0, 1.000244140625]
    """
    import numpy as np

    check_model(model)
    x, y, z = array("a", a), array("b", b), array("c", c)
    if not x.ndim or not y.ndim or x.shape[-1] != y.shape[-1] or not x.shape[-1]:
        raise ShapeError(f"a {x.shape} and b {y.shape} end in k; pass the same k, at least 1")
    try:
        lead = np.broadcast_shapes(x.shape[:-1], y.shape[:-1], z.shape)
    except ValueError:
        raise ShapeError(f"a {x.shape}, b {y.shape} and c {z.shape}: all but k must broadcast") from None
    left = operand(model, "a", x.reshape(-1, x.shape[-1]), _factors(model, "scale_a", x.shape, scale_a))
    right = operand(model, "b", y.reshape(-1, y.shape[-1]), _factors(model, "scale_b", y.shape, scale_b))
    check("c", z, model.output)
    rows, columns = (
        np.array(np.broadcast_to(np.arange(math.prod(shape)).reshape(shape), lead), np.int64, order="C").reshape(-1)
        for shape in (x.shape[:-1], y.shape[:-1])
    )
    start = np.array(np.broadcast_to(z, lead), order="C").reshape(-1)
    return _run(model, left, right, rows, columns, start, x.shape[-1], workers).reshape(lead)


def checked(
    model: EngineModel,
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike,
    scale_a: ArrayLike | None,
    scale_b: ArrayLike | None,
) -> tuple[list[float], list[float], float, list[float], list[float]]:
    """The operands of a single dot product that `dot` takes, as Python's floats; without block scales [] for them.

    Raises:
        PrismmError: those of `dot`.
    """
    check_model(model)
    x, y, z = array("a", a), array("b", b), array("c", c)
    if x.ndim != 1 or x.shape != y.shape or not x.size or z.ndim:
        raise ShapeError(f"a {x.shape}, b {y.shape} and c {z.shape}; pass (k,), (k,) with the same k >= 1, ()")
    factors = [
        [] if found is None else found[0].tolist()
        for found in (_factors(model, "scale_a", x.shape, scale_a), _factors(model, "scale_b", y.shape, scale_b))
    ]
    for what, values, format in (("a", x, model.input), ("b", y, model.input), ("c", z, model.output)):
        check(what, values, format)
    return x.tolist(), y.tolist(), float(z), factors[0], factors[1]


def dot_unchecked(
    model: EngineModel,
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    c: NDArray[np.float64],
    workers: int | None = None,
) -> NDArray[np.float64]:
    """`dot` of rows a (n, k), b (n, k) and c (n), without scales, broadcasting or a look at the values.

    For values that are none of the formats the result means nothing.
    """
    return run_rows(model, decoded_unchecked(model, a), decoded_unchecked(model, b), c, a.shape[1], workers)


def decoded_unchecked(model: EngineModel, x: NDArray[np.float64]) -> Rows:
    """Rows (n, k) as `run_rows` takes them: for every model with the same input format, flushing of it and `padded`."""
    return _decoded(model, x)[0]


def padded(model: EngineModel, k: int) -> int:
    """Elements of a row of k, with the zeros behind it that the kernel reads: of integers and of elements with scales,
    those of whole instructions; else none.
    """
    return _whole(model, k) if model.is_integer or model.scale is not None else k


def _whole(model: EngineModel, k: int) -> int:
    """Elements of the instructions that k products take."""
    return -(-k // model.instruction_depth) * model.instruction_depth


def run_rows(
    model: EngineModel, left: Rows, right: Rows, c: NDArray[np.float64], k: int, workers: int | None = 1
) -> NDArray[np.float64]:
    """Row i of a times row i of b, of k elements, plus c[i], for all i; without block scales."""
    import numpy as np

    each = np.arange(len(left), dtype=np.int64)
    return _run(model, left, right, each, each, c, k, workers)


def gemm(
    model: EngineModel,
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    split_k: int = 1,
    promote: int | None = None,
    workers: int | None = None,
) -> NDArray[np.float64]:
    """A·B + C as a loop of the engine's instructions computes it, bit for bit.

    Every entry is `dot` of a row and a column, in ascending k. With `split_k` = s the ceil(k / depth) instructions are
    cut into s runs of the same length, the first ones longer by one where that does not divide; the first run starts
    from C, the others from +0, and their results are added to the first one's in ascending order, each sum rounded to
    nearest in the output format. With `promote` = p a run starts an accumulator (of the output format) from C or +0;
    for every p products of the run the engine starts from +0, and what it finds is added to the accumulator, rounded to
    nearest: what CUTLASS and DeepGEMM do for FP8. Sums of integer engines are those of the engine. Sums outside the
    engine have gradual underflow and the zeros of IEEE 754.

    Args:
        model: of the engine; without block scales.
        a: (m, k), values of the input format. b: (k, n), likewise. c: (m, n), values of the output format; None: +0.
            Without any product (k = 0) the result is c.
        split_k: from 1 to ceil(k / depth).
        promote: a multiple of the instruction's depth; None: not at all.
        workers: threads; None: all.

    Returns:
        (m, n), float64.

    Raises:
        ArgumentError: for values that the formats do not have, a `split_k` or `promote` that do not fit, or a model
            that is none.
        ShapeError: for matrices that do not fit.
        OperandError, DTypeError: for operands that are no arrays, or none of real numbers.

    >>> import numpy as np
    >>> from prismm.formats import E4M3, FP32, Format
    >>> from prismm.numerics.model import EngineModel
    >>> wgmma = EngineModel("", E4M3, FP32, accumulator=Format(8, 13), block=32, fraction_bits=13, rounding="zero")
    >>> ones = np.ones((1, 32768))
    >>> gemm(wgmma, ones, ones.T).item(), gemm(wgmma, ones, ones.T, promote=128).item()
    (16384.0, 32768.0)
    """
    from prismm.numerics import products

    check_model(model)
    x, y, z = array("a", a), array("b", b), None if c is None else array("c", c)
    if x.ndim == y.ndim == 2 and x.shape[1] == y.shape[0] and not (x.size and y.size):
        return _empty(model, x, y, z, split_k, promote, workers)
    return products.gemm(model, x, y, z, split_k, promote, workers)


def _empty(
    model: EngineModel,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    c: NDArray[np.float64] | None,
    split_k: int,
    promote: int | None,
    workers: int | None,
) -> NDArray[np.float64]:
    """c, or zeros: nothing is multiplied, but everything is checked, with a zero wherever there is nothing."""
    import numpy as np

    from prismm.numerics import products

    shape = x.shape[0], y.shape[1]
    start = np.zeros(shape) if c is None else c
    if start.shape != shape:
        raise ShapeError(f"c has shape {start.shape}; pass {shape}")
    left, right, addend = (np.pad(z, [(0, n == 0) for n in z.shape]) for z in (x, y, start))
    products.gemm(model, left, right, addend, split_k, promote, workers)
    return start.copy()


def mma(
    model: EngineModel, a: ArrayLike, b: ArrayLike, c: ArrayLike | None = None, workers: int | None = None
) -> NDArray[np.float64]:
    """A·B + C of one instruction: `gemm` with k at most the instruction's depth; fewer products are padded with zeros.

    Raises:
        ShapeError: for a longer k, too.

    >>> from prismm.formats import FP16, FP32
    >>> from prismm.numerics.model import EngineModel
    >>> volta = EngineModel("v100", FP16, FP32, block=4, fraction_bits=23, rounding="zero")
    >>> mma(volta, [[1.0, 2.0]], [[3.0], [4.0]], [[0.5]]).tolist()
    [[11.5]]
    """
    check_model(model)
    x = array("a", a)
    if x.ndim == 2 and x.shape[1] > model.instruction_depth:
        raise ShapeError(f"an instruction takes k up to {model.instruction_depth}, not {x.shape[1]}; call gemm")
    return gemm(model, x, b, c, workers=workers)


def bits(model: EngineModel, d: ArrayLike) -> NDArray[Any]:
    """The bit patterns of results d in the output format, NaN as `model.nan` (None: the canonical one).

    >>> from prismm.formats import FP16, FP32
    >>> from prismm.numerics.model import EngineModel
    >>> volta = EngineModel("v100", FP16, FP32, block=4, fraction_bits=23, rounding="zero", nan=0x7FFFFFFF)
    >>> [hex(x) for x in bits(volta, dot(volta, [[1.0], [float("inf")]], [0.0]))]
    ['0x0', '0x7fffffff']
    """
    return encodings.encode(d, model.output, model.nan)


def check_model(model: object) -> None:
    """Refuse what is no model."""
    if not isinstance(model, EngineModel):
        raise ArgumentError(
            f"model={reprlib.repr(model)}; pass an EngineModel, such as prismm.numerics.engine('a100.fp16.fp32')"
        )


def array(what: str, given: ArrayLike) -> NDArray[np.float64]:
    """Real numbers as float64.

    Raises:
        OperandError: for what is no array, such as lists of different lengths.
        DTypeError: for an array of other things.
    """
    import numpy as np

    try:
        found = np.asarray(given)
        real = found.dtype == object and all(isinstance(x, numbers.Real) for x in found.flat)
        if real or found.dtype.kind not in _NOT_REAL:
            return np.asarray(found, np.float64)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise OperandError(
            f"{what}={reprlib.repr(given)} is no array of numbers ({error}); pass what numpy.asarray(…, float) takes"
        ) from error
    raise DTypeError(f"{what}={reprlib.repr(given)} holds {_NOT_REAL[found.dtype.kind]}; pass real numbers")


_NOT_REAL = {"c": "complex numbers", "O": "what is no number", "S": "bytes", "U": "text", "M": "dates", "m": "times"}
"""Kinds of NumPy's types that are refused, and what they hold."""


def check(what: str, values: NDArray[np.float64], format: Format | Integer) -> None:
    """Refuse values that the format does not have."""
    bad = encodings.foreign(values, format)
    if bad.any():
        raise ArgumentError(
            f"{int(bad.sum())} of {bad.size} values of {what} are none of {format.name or format}, first "
            f"{float(values[bad].flat[0])!r}; round them first"
        )


def _factors(
    model: EngineModel, what: str, shape: tuple[int, ...], given: ArrayLike | None
) -> NDArray[np.float64] | None:
    """The scale factors of every row of an operand of this shape, checked."""
    import numpy as np

    scale = model.scale
    if scale is None:
        if given is not None:
            raise ArgumentError(f"{model.name} has no block scales; leave out {what}")
        return None
    wanted = (*shape[:-1], -(-shape[-1] // scale.length))
    if given is None:
        raise ArgumentError(f"{model.name} takes block scales; pass {what} of shape {wanted}")
    factors = array(what, given)
    try:
        factors = np.broadcast_to(factors, wanted)
    except ValueError:
        raise ShapeError(f"{what} has shape {factors.shape}; pass {wanted}") from None
    if scale.format == "ue8m0":
        power, exponent = np.frexp(factors)
        good = (power == 0.5) & (exponent >= -126) & (exponent <= 128)
    else:
        good = ~encodings.foreign(factors, E4M3) & ~np.signbit(factors)
    bad = ~(good | np.isnan(factors))
    if bad.any():
        values = "powers of two from 2^-127 to 2^127" if scale.format == "ue8m0" else "values of e4m3 without a sign"
        raise ArgumentError(
            f"{float(factors[bad].flat[0])!r} in {what} is no {scale.format} value; pass {values}, or NaN"
        )
    return factors.reshape(-1, wanted[-1])


def operand(
    model: EngineModel, what: str, x: NDArray[np.float64], factors: NDArray[np.float64] | None = None
) -> NDArray[np.int64]:
    """Rows as the kernel takes them (see `numerics.kernels.dot_model`), `padded`.

    Raises:
        ArgumentError: for values that the input format does not have.
    """
    found, foreign = _decoded(model, x, factors)
    if foreign:
        check(what, x, model.input)
    return found


def _decoded(
    model: EngineModel, x: NDArray[np.float64], factors: NDArray[np.float64] | None = None
) -> tuple[NDArray[np.int64], int]:
    """Rows as the kernel takes them, and how many values are foreign."""
    import numpy as np

    n, k = x.shape
    width = padded(model, k)
    f = model.input
    if isinstance(f, Integer):
        foreign = int(encodings.foreign(x, f).sum())
        whole = np.zeros((n, 2 * width), np.int64)
        if not foreign:
            whole[:, :k] = x
        return whole, foreign
    from prismm.numerics.kernels import dot_model as engine

    groups = 0 if model.scale is None else -(-width // model.scale.length)
    out = np.empty((n, 2 * (width + groups)), np.int64)
    flush = SUBNORMALS.index(model.subnormal_inputs)
    rows = np.array(x, order="C")
    foreign = engine.decode_rows(rows, f.fraction_bits, f.minexp, f.max, f.has_infinity, f.has_nan, flush, width, out)
    if factors is not None:
        missing = np.isnan(factors)
        known = np.where(missing, 1.0, factors)
        exponent = np.frexp(known)[1] - 1
        significand = np.ones(known.shape)
        if model.scale is not None and model.scale.format == "ue4m3":
            exponent = np.maximum(np.where(known == 0.0, E4M3.minexp, exponent), E4M3.minexp)
            significand = np.ldexp(known, E4M3.fraction_bits - exponent)
        # Beyond the operands' end there are zeros, whatever their factor.
        out[:, 2 * width :: 2], out[:, 2 * width + 1 :: 2] = 1, 0
        count = 2 * (width + factors.shape[1])
        out[:, 2 * width : count : 2] = np.where(missing, -1, significand)
        out[:, 2 * width + 1 : count : 2] = exponent
    return out, foreign


def _run(
    model: EngineModel,
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    c: NDArray[np.float64],
    k: int,
    workers: int | None,
) -> NDArray[np.float64]:
    """Row rows[i] of `left` times row columns[i] of `right`, for all i."""
    import numpy as np

    from prismm.core import threads as pool
    from prismm.numerics.kernels import dot_model as engine

    n = len(rows)
    out = np.empty(n)
    parameters, order = lowered(model, k)
    width = int(parameters[engine.WIDTH])

    def task(start: int) -> None:
        stop = min(start + chunk, n)
        engine.dots(parameters, order, left, right, rows, columns, c, 0, width, start, stop, out)

    chunk = max(1, _CHUNK // width)
    if n <= chunk or workers == 1:
        engine.dots(parameters, order, left, right, rows, columns, c, 0, width, 0, n, out)
    else:
        pool.spread(task, list(range(0, n, chunk)), pool.worker_count(workers))
    return out


def lowered(model: EngineModel, k: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The model as parameters of the kernel for operands of width k, and the order of an instruction's products."""
    from prismm.numerics.kernels import dot_model as e

    parameters, order = parameters_of(model)
    p = parameters.copy()
    p[e.WIDTH] = padded(model, k)
    # Where groups follow one another, products stand behind the zeros.
    p[e.FILLED] = k if model.scale is None else e.ALL  # zeros with a scale are read
    p[e.LENGTH] = _whole(model, k) if model.groups and model.group_sums == "chained" else k
    return p, order


def parameters_of(model: EngineModel) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same without what depends on the operands' width; not to be written to."""
    global _last
    known, parameters, order = _last
    if known is not model:
        parameters, order = _parameters(model)
        _last = model, parameters, order
    return parameters, order


_last: tuple[EngineModel | None, Any, Any] = None, None, None
"""The model that was lowered last, which is likely to run again, and what became of it."""


@functools.lru_cache(maxsize=1024)
def _order(depth: int, groups: tuple[tuple[int, ...], ...]) -> NDArray[np.int64]:
    """Indices of an instruction's products in order of summation; see `EngineModel.sequences`."""
    import numpy as np

    if not groups:
        return np.arange(depth, dtype=np.int64)
    period = sum(map(len, groups))
    return np.array([i for group in groups for i in range(depth) if i % period in group], np.int64)


@functools.lru_cache(maxsize=64)
def _widths(format: Format) -> tuple[int, int, int]:
    return format.fraction_bits, format.minexp, format.maxexp


def _parameters(model: EngineModel) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """See `parameters_of`."""
    import numpy as np

    from prismm.numerics.kernels import dot_model as e

    p: list[int] = [0] * e.PARAMETERS
    depth = model.instruction_depth
    p[e.BLOCK], p[e.DEPTH], p[e.SEQUENCES] = model.block, depth, 1
    if isinstance(model.input, Integer):
        assert isinstance(model.output, Integer)
        p[e.SUMMATION], p[e.SATURATE] = e.INTEGER, model.overflow == "saturate"
        p[e.LOWEST], p[e.HIGHEST] = model.output.min, model.output.max
        return np.array(p, np.int64), np.arange(depth, dtype=np.int64)
    assert isinstance(model.output, Format)
    separate = bool(model.groups) and model.group_sums == "separate"
    p[e.SEQUENCES] = len(model.groups) if separate else 1
    kinds = {"aligned": e.ALIGNED, "sequential": e.SEQUENTIAL, "pairwise": e.PAIRWISE}
    p[e.SUMMATION] = kinds[model.summation]
    if model.summation == "aligned" and model.fraction_bits is None:
        p[e.SUMMATION] = e.EXACT
    late = isinstance(model.join, LateJoin)
    p[e.JOIN] = e.LATE if late else e.INSIDE if model.join == "inside" else e.AFTER
    p[e.INPUT_FRACTION], p[e.INPUT_WIDE] = model.input.fraction_bits, model.input.precision > 27
    for at, f in ((e.SUMS_FRACTION, model.sums), (e.OUT_FRACTION, model.output)):
        p[at : at + 3] = _widths(f)
    p[e.PRODUCT_ROUNDING] = -1 if model.product_rounding is None else MODES.index(model.product_rounding)
    p[e.PRODUCT_INFINITY] = model.product_overflow == "infinity"
    p[e.NORMALISED] = model.product_exponent == "normalised"
    p[e.FRACTION_BITS] = -1 if model.fraction_bits is None else model.fraction_bits
    p[e.CARRY_BITS] = -1 if model.carry_bits is None else model.carry_bits
    p[e.ALIGNMENT] = MODES.index(model.alignment)
    p[e.ZERO_EXPONENT] = e.NONE if model.zero_exponent is None else model.zero_exponent
    p[e.ROUNDING], p[e.LAST_ROUNDING] = MODES.index(model.rounding), MODES.index(model.last_rounding)
    p[e.SATURATE] = model.overflow == "saturate"
    p[e.FLUSH_INPUTS] = SUBNORMALS.index(model.subnormal_inputs)
    p[e.FLUSH_C] = SUBNORMALS.index(model.subnormal_accumulators)
    p[e.FLUSH_PRODUCTS] = SUBNORMALS.index(model.subnormal_products)
    p[e.FLUSH_OUTPUTS] = SUBNORMALS.index(model.subnormal_outputs)
    p[e.ZEROS] = ("ieee", "positive", "unsigned").index(model.zeros)
    p[e.CONVERTS] = model.accumulator is not None
    if isinstance(model.join, LateJoin):
        join = model.join
        p[e.LATE_SUM], p[e.LATE_C], p[e.LATE_TOTAL] = join.sum_bits, join.accumulator_bits, join.total_bits
        p[e.LATE_CUTOFF] = -1 if join.cutoff is None else join.cutoff
    if model.scale is not None:
        p[e.SCALE] = e.TERMS if model.scale.summation == "terms" else e.GROUPS
        p[e.SCALE_BITS] = 2 * E4M3.fraction_bits if model.scale.format == "ue4m3" else 0
        p[e.SCALE_LENGTH] = model.scale.length
    p[e.ASCENDING] = not model.groups and model.scale is None
    p[e.PLAIN] = (
        model.summation == "aligned" and model.fraction_bits is not None
        and model.product_rounding is None and model.product_overflow == "exact" and model.product_exponent == "sum"
        and model.subnormal_products == "keep" and model.scale is None
    )  # fmt: skip
    return np.array(p, np.int64), _order(depth, model.groups)
