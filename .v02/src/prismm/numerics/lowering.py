"""A model and its operands in the form in which compiled code runs them, and the run.

See `numerics.kernels.dot_parameters`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from prismm.formats import E4M3, Format, Integer
from prismm.numerics import encodings
from prismm.numerics.operands import check
from prismm.numerics.parts import MODES, SUBNORMALS, LateJoin

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prismm.numerics.model import EngineModel

    Rows = NDArray[np.int64]

__all__ = ["decoded_unchecked", "lowered", "operand", "padded", "parameters_of", "run", "run_rows"]

_CHUNK = 1 << 15
"""Products in one piece of work for a worker, about."""


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
    return run(model, left, right, each, each, c, k, workers)


def operand(
    model: EngineModel, what: str, x: NDArray[np.float64], factors: NDArray[np.float64] | None = None
) -> NDArray[np.int64]:
    """Rows as the kernel takes them (see `numerics.kernels.dot_parameters`), `padded`.

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
    from prismm.numerics.kernels.dot_operands import decode_rows

    groups = 0 if model.scale is None else -(-width // model.scale.length)
    out = np.empty((n, 2 * (width + groups)), np.int64)
    flush = SUBNORMALS.index(model.subnormal_inputs)
    rows = np.array(x, order="C")
    foreign = decode_rows(rows, f.fraction_bits, f.minexp, f.max, f.has_infinity, f.has_nan, flush, width, out)
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


def run(
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
    from prismm.numerics.kernels import dot_parameters as e
    from prismm.numerics.kernels.dot_model import dots

    n = len(rows)
    out = np.empty(n)
    parameters, order = lowered(model, k)
    width = int(parameters[e.WIDTH])

    def task(start: int) -> None:
        stop = min(start + chunk, n)
        dots(parameters, order, left, right, rows, columns, c, 0, width, start, stop, out)

    chunk = max(1, _CHUNK // width)
    if n <= chunk or workers == 1:
        dots(parameters, order, left, right, rows, columns, c, 0, width, 0, n, out)
    else:
        pool.spread(task, list(range(0, n, chunk)), pool.worker_count(workers))
    return out


def lowered(model: EngineModel, k: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The model as parameters of the kernel for operands of width k, and the order of an instruction's products."""
    from prismm.numerics.kernels import dot_parameters as e

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

    from prismm.numerics.kernels import dot_parameters as e

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
