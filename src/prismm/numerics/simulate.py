"""Dot products of an `EngineModel` on arrays, bit for bit those of `specification`, in compiled code."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from prismm.errors import ArgumentError, ShapeError
from prismm.formats import E4M3, Format, Integer
from prismm.numerics import encodings
from prismm.numerics.parts import MODES, SUBNORMALS, LateJoin

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from prismm.numerics.model import EngineModel

__all__ = ["bits", "dot", "dot_unchecked"]

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
        ArgumentError: for values that the formats do not have, or scales that are missing or too many.
        ShapeError: if shapes do not fit.

    >>> from prismm.formats import FP16, FP32
    >>> from prismm.numerics.model import EngineModel
    >>> volta = EngineModel("v100", FP16, FP32, block=4, fraction_bits=23, rounding="zero")
    >>> dot(volta, [[1.0, 2.0**-12], [1.0, 1.0]], [1.0, 2.0**-12]).tolist()
    [1.0, 1.000244140625]
    """
    import numpy as np

    x, y, z = (np.asarray(value, np.float64) for value in (a, b, c))
    if not x.ndim or not y.ndim or x.shape[-1] != y.shape[-1] or not x.shape[-1]:
        raise ShapeError(f"a {x.shape} and b {y.shape} end in k; pass the same k, at least 1")
    try:
        lead = np.broadcast_shapes(x.shape[:-1], y.shape[:-1], z.shape)
    except ValueError:
        raise ShapeError(f"a {x.shape}, b {y.shape} and c {z.shape}: all but k must broadcast") from None
    scales = _scales(model, x, y, scale_a, scale_b)
    left, right = decoded(model, "a", x.reshape(-1, x.shape[-1])), decoded(model, "b", y.reshape(-1, y.shape[-1]))
    check("c", z, model.output)
    rows, columns = (
        np.array(np.broadcast_to(np.arange(math.prod(shape)).reshape(shape), lead), np.int64, order="C").reshape(-1)
        for shape in (x.shape[:-1], y.shape[:-1])
    )
    start = np.array(np.broadcast_to(z, lead), order="C").reshape(-1)
    out = _run(model, left, right, rows, columns, start, scales, x.shape[-1], workers)
    return out.reshape(lead)


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
    import numpy as np

    n, k = a.shape
    each = np.arange(n, dtype=np.int64)
    return _run(model, _decode(model, a)[0], _decode(model, b)[0], each, each, c, None, k, workers)


def bits(model: EngineModel, d: ArrayLike) -> NDArray[Any]:
    """The bit patterns of results d in the output format, NaN as `model.nan` (None: the canonical one).

    >>> from prismm.formats import FP16, FP32
    >>> from prismm.numerics.model import EngineModel
    >>> volta = EngineModel("v100", FP16, FP32, block=4, fraction_bits=23, rounding="zero", nan=0x7FFFFFFF)
    >>> [hex(x) for x in bits(volta, dot(volta, [[1.0], [float("inf")]], [0.0]))]
    ['0x0', '0x7fffffff']
    """
    return encodings.encode(d, model.output, model.nan)


def check(what: str, values: NDArray[np.float64], format: Format | Integer) -> None:
    """Refuse values that the format does not have."""
    bad = encodings.foreign(values, format)
    if bad.any():
        raise ArgumentError(
            f"{int(bad.sum())} of {bad.size} values of {what} are none of {format.name or format}, first "
            f"{float(values[bad].flat[0])!r}; round them first"
        )


def _scales(
    model: EngineModel, x: NDArray[Any], y: NDArray[Any], scale_a: ArrayLike | None, scale_b: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Scale factors of every row of a and of b."""
    import numpy as np

    scale = model.scale
    if scale is None:
        if scale_a is not None or scale_b is not None:
            raise ArgumentError(f"{model.name} has no block scales; leave out scale_a and scale_b")
        return None
    found = []
    for what, given, operand in (("scale_a", scale_a, x), ("scale_b", scale_b, y)):
        shape = (*operand.shape[:-1], -(-operand.shape[-1] // scale.length))
        if given is None:
            raise ArgumentError(f"{model.name} takes block scales; pass {what} of shape {shape}")
        factors = np.asarray(given, np.float64)
        try:
            factors = np.broadcast_to(factors, shape)
        except ValueError:
            raise ShapeError(f"{what} has shape {factors.shape}; pass {shape}") from None
        if scale.format == "ue8m0":
            power, exponent = np.frexp(factors)
            good = (power == 0.5) & (exponent >= -126) & (exponent <= 128)
        else:
            good = ~encodings.foreign(factors, E4M3) & ~np.signbit(factors)
        bad = ~(good | np.isnan(factors))
        if bad.any():
            raise ArgumentError(f"{float(factors[bad].flat[0])!r} in {what} is no {scale.format} value")
        found.append(np.array(factors, order="C").reshape(-1, shape[-1]))
    return found[0], found[1]


Rows = tuple["NDArray[np.int64]", "NDArray[np.int32]"]


def decoded(model: EngineModel, what: str, x: NDArray[np.float64]) -> Rows:
    """Rows of the input format as significands and exponents, padded to whole instructions.

    Raises:
        ArgumentError: for values that the format does not have.
    """
    found, foreign = _decode(model, x)
    if foreign:
        check(what, x, model.input)
    return found


def decoded_unchecked(model: EngineModel, x: NDArray[np.float64]) -> Rows:
    """`decoded`, without a look at the values."""
    return _decode(model, x)[0]


def run_rows(model: EngineModel, left: Rows, right: Rows, c: NDArray[np.float64]) -> NDArray[np.float64]:
    """Every row of `left` times the same row of `right`, plus c, on the calling thread."""
    import numpy as np

    from prismm.kernels.cpu import engine

    n, padded = left[0].shape
    out = np.empty(n)
    each, none = np.arange(n), np.empty((n, 0))
    engine.dots(*lowered(model), *left, *right, each, each, c, none, none, 0, padded, 0, n, out)
    return out


def _decode(model: EngineModel, x: NDArray[np.float64]) -> tuple[Rows, int]:
    import numpy as np

    depth = model.instruction_depth
    n, k = x.shape
    if isinstance(model.input, Integer):
        foreign = int(encodings.foreign(x, model.input).sum())
        whole = np.zeros((n, -(-k // depth) * depth), np.int64)
        if not foreign:
            whole[:, :k] = x
        return (whole, np.zeros((n, 0), np.int32)), foreign
    from prismm.kernels.cpu import engine

    m = np.empty((n, -(-k // depth) * depth), np.int64)
    e = np.empty(m.shape, np.int32)
    f = model.input
    flush = SUBNORMALS.index(model.subnormal_inputs)
    foreign = engine.decode(
        np.array(x, order="C"), f.fraction_bits, f.minexp, f.max, f.has_infinity, f.has_nan, flush, m, e
    )
    return (m, e), foreign


def _run(
    model: EngineModel,
    left: Rows,
    right: Rows,
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    c: NDArray[np.float64],
    scales: tuple[NDArray[np.float64], NDArray[np.float64]] | None,
    k: int,
    workers: int | None,
) -> NDArray[np.float64]:
    """Row rows[i] of `left` times row columns[i] of `right`, for all i."""
    import numpy as np

    from prismm.engines import pool
    from prismm.kernels.cpu import engine

    n = len(rows)
    out = np.empty(n)
    parameters, order = lowered(model)
    if scales is None:
        scales = np.empty((len(left[0]), 0)), np.empty((len(right[0]), 0))
    padded = left[0].shape[1]

    def task(start: int) -> None:
        stop = min(start + chunk, n)
        engine.dots(parameters, order, *left, *right, rows, columns, c, *scales, 0, padded, start, stop, out)

    chunk = max(1, _CHUNK // padded)
    if n <= chunk:
        task(0)
    else:
        pool.spread(task, list(range(0, n, chunk)), pool.worker_count(workers))
    return out


def lowered(model: EngineModel) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The model as parameters of the kernel, and the order of an instruction's products."""
    import numpy as np

    from prismm.kernels.cpu import engine as e

    p = np.zeros(e.PARAMETERS, np.int64)
    depth = model.instruction_depth
    p[e.BLOCK], p[e.DEPTH], p[e.SEQUENCES] = model.block, depth, 1
    if isinstance(model.input, Integer):
        assert isinstance(model.output, Integer)
        p[e.SUMMATION], p[e.SATURATE] = e.INTEGER, model.overflow == "saturate"
        p[e.LOWEST], p[e.HIGHEST] = model.output.min, model.output.max
        return p, np.arange(depth, dtype=np.int64)
    assert isinstance(model.output, Format)
    sequences = model.sequences()
    p[e.SEQUENCES] = len(sequences)
    kinds = {"aligned": e.ALIGNED, "sequential": e.SEQUENTIAL, "pairwise": e.PAIRWISE}
    p[e.SUMMATION] = kinds[model.summation]
    if model.summation == "aligned" and model.fraction_bits is None:
        p[e.SUMMATION] = e.EXACT
    late = isinstance(model.join, LateJoin)
    p[e.JOIN] = e.LATE if late else e.INSIDE if model.join == "inside" else e.AFTER
    p[e.INPUT_FRACTION], p[e.INPUT_WIDE] = model.input.fraction_bits, model.input.precision > 27
    for at, f in ((e.SUMS_FRACTION, model.sums), (e.OUT_FRACTION, model.output)):
        p[at : at + 3] = f.fraction_bits, f.minexp, f.maxexp
    p[e.PRODUCT_ROUNDING] = -1 if model.product_rounding is None else MODES.index(model.product_rounding)
    p[e.PRODUCT_INFINITY] = model.product_overflow == "infinity"
    p[e.NORMALISED] = model.product_exponent == "normalised"
    p[e.FRACTION_BITS] = -1 if model.fraction_bits is None else model.fraction_bits
    p[e.CARRY_BITS] = -1 if model.carry_bits is None else model.carry_bits
    p[e.ALIGNMENT] = MODES.index(model.alignment)
    p[e.ZERO_EXPONENT] = e.NONE if model.zero_exponent is None else model.zero_exponent
    p[e.ROUNDING], p[e.LAST_ROUNDING] = MODES.index(model.rounding), MODES.index(model.last_rounding)
    p[e.SATURATE] = model.overflow == "saturate"
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
        by_group = {"ue8m0": e.GROUPS_UE8M0, "ue4m3": e.GROUPS_UE4M3}[model.scale.format]
        p[e.SCALE] = e.TERMS if model.scale.summation == "terms" else by_group
        p[e.SCALE_LENGTH] = model.scale.length
    p[e.PLAIN] = (
        model.summation == "aligned" and model.fraction_bits is not None and model.alignment == "zero"
        and model.product_rounding is None and model.product_overflow == "exact" and model.product_exponent == "sum"
        and model.subnormal_products == "keep" and not model.groups and model.scale is None
    )  # fmt: skip
    return p, np.array([i for sequence in sequences for i in sequence], np.int64)
