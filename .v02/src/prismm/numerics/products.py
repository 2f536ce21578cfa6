"""Matrix products on an `EngineModel`: the loop over k, and which compiled kernel runs it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from prismm.errors import ArgumentError, ShapeError
from prismm.formats import FP64, Format, Integer
from prismm.numerics import lowering, operands
from prismm.numerics.parts import within

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from prismm.numerics.model import EngineModel

    Array = NDArray[np.float64]

__all__ = ["gemm", "path"]

_PANEL, _STRIP = 256, 512
"""Rows and columns of one piece of work on the kernels that go by whole columns."""
_TILE = 64
"""Rows and columns of one on the kernel of all models."""


def gemm(
    model: EngineModel,
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None,
    split_k: int,
    promote: int | None,
    workers: int | None,
) -> Array:
    """See `simulate.gemm`."""
    import numpy as np

    from prismm.core import threads as pool

    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[0] or not x.shape[1]:
        raise ShapeError(f"a {x.shape} and b {y.shape}; pass (m, k) and (k, n), k at least 1")
    m, k, n = x.shape[0], x.shape[1], y.shape[1]
    start = np.zeros((m, n))
    if c is not None:
        given = np.asarray(c, np.float64)
        if given.shape != (m, n):
            raise ShapeError(f"c has shape {given.shape}; pass {(m, n)}")
        operands.check("c", given, model.output)
        start[...] = given
    depth = model.instruction_depth
    instructions = -(-k // depth)
    if isinstance(split_k, bool) or not isinstance(split_k, int) or not 1 <= split_k <= instructions:
        raise ArgumentError(f"split_k={split_k!r}; k={k} is {instructions} instructions: pass 1 to {instructions}")
    whole = isinstance(promote, int) and not isinstance(promote, bool)
    if promote is not None and (not whole or promote < 1 or promote % depth):
        raise ArgumentError(f"promote={promote!r}; pass a multiple of the instruction's depth, {depth}, or None")
    if model.scale is not None:
        raise ArgumentError(f"{model.name} has block scales, which gemm does not take; call dot with scale_a, scale_b")
    count = pool.worker_count(workers)
    run = _runner(model, x, y, count)
    share, longer = divmod(instructions, split_k)
    total: Array | None = None
    first = 0
    for part in range(split_k):
        last = first + share + (part < longer)
        found = _part(model, run, start if part == 0 else np.zeros((m, n)), first * depth, last * depth, promote)
        total = found if total is None else added(model, total, found)
        first = last
    assert total is not None
    return total


def _part(
    model: EngineModel, run: Callable[[int, int, Array], Array], c: Array, k0: int, k1: int, promote: int | None
) -> Array:
    """One run of instructions, from c."""
    import numpy as np

    if promote is None:
        return run(k0, k1, c)
    for k in range(k0, k1, promote):
        c = added(model, c, run(k, min(k + promote, k1), np.zeros(c.shape)))
    return c


def added(model: EngineModel, x: Array, y: Array) -> Array:
    """x + y of the output format, rounded to nearest in it; of integers as the engine adds."""
    import numpy as np

    f = model.output
    if isinstance(f, Integer):
        exact = x + y
        if model.overflow == "saturate":
            return np.clip(exact, f.min, f.max)
        return (exact - f.min) % float(1 << f.bits) + f.min
    with np.errstate(invalid="ignore", over="ignore"):
        if f == FP64:
            return x + y
        if (f.exponent_bits, f.fraction_bits) == (8, 23):
            return (x.astype(np.float32) + y.astype(np.float32)).astype(np.float64)
    adder = type(model)("", f, f, zeros="ieee")
    rows = lowering.decoded_unchecked(adder, x.reshape(-1, 1))
    ones = lowering.decoded_unchecked(adder, np.ones((x.size, 1)))
    return lowering.run_rows(adder, rows, ones, y.reshape(-1), 1).reshape(x.shape)


def path(model: EngineModel) -> str | None:
    """Which kernel by whole columns computes the model's products of finite operands: "aligned", "chained" or "fused".

    None: only the kernel of all models does. A LateJoin, sums by pairs, products that are rounded, flushing and
    groups have no other.
    """
    f, s = model.input, model.output
    if not isinstance(f, Format) or not isinstance(s, Format):
        return None
    policies = (model.subnormal_inputs, model.subnormal_accumulators, model.subnormal_products, model.subnormal_outputs)
    plain = (
        model.join == "inside" and model.product_rounding is None and model.product_overflow == "exact"
        and not model.groups and model.scale is None and model.rounding in ("nearest", "zero")
        and model.overflow == "infinity" and policies == ("keep",) * 4 and model.summation != "pairwise"
    )  # fmt: skip
    if not plain:
        return None
    same = model.accumulator is None or model.accumulator == s
    if model.summation == "aligned" and model.fraction_bits is not None:
        kept = model.fraction_bits
        widths = f.exponent_bits <= 8 and 2 <= kept <= 40 and model.block <= 64
        widths = widths and model.sums.exponent_bits <= 8 and model.sums.fraction_bits <= kept
        ends = same or (within(model.sums, s) and model.sums.minexp == s.minexp)
        wraps = model.carry_bits is not None and model.carry_bits < model.largest_shift()
        exact = model.alignment == "zero" and model.product_exponent == "sum" and model.zeros != "ieee" and not wraps
        return "aligned" if widths and ends and exact else None
    one = model.fraction_bits is None and (model.block == 1 or model.summation == "sequential")
    if not one or not same or model.zeros == "unsigned":
        return None
    if exact_products(f):
        return "chained" if s.precision <= 51 or (s.precision == 53 and s.exponent_bits == 11) else None
    fused = f == FP64 and s == FP64 and model.rounding == "nearest"
    return "fused" if fused else None


def exact_products(inputs: Format) -> bool:
    """Whether float64 holds every product of two values exactly."""
    return 2 * inputs.precision <= 53 and 2 * inputs.maxexp <= 1024 and 2 * inputs.subnormal_exponent >= -1074


def _runner(model: EngineModel, x: Array, y: Array, workers: int) -> Callable[[int, int, Array], Array]:
    """A function of (k0, k1, c): c + x[:, k0:k1] @ y[k0:k1], whole instructions (the last one padded)."""
    import numpy as np

    chosen = path(model)
    with np.errstate(invalid="ignore", over="ignore"):
        finite = chosen is not None and bool(np.isfinite(x).all() and np.isfinite(y).all())
    if chosen is None or not finite:
        return _any_model(model, x, y, workers)
    operands.check("a", x, model.input)
    operands.check("b", y, model.input)
    columns = {"aligned": _aligned, "chained": _chained, "fused": _chained}[chosen]
    general: list[Callable[[int, int, Array], Array]] = []

    def run(k0: int, k1: int, c: Array) -> Array:
        if not np.isfinite(c).all():
            if not general:
                general.append(_any_model(model, x, y, workers))
            return general[0](k0, k1, c)
        left, right = _whole(model, x[:, k0:k1], y[k0:k1])
        return columns(model, left, right, c, workers)

    return run


def _whole(model: EngineModel, x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Whole instructions: the zeros at their end turn a sum that is -0 into +0."""
    import numpy as np

    missing = -x.shape[1] % model.instruction_depth
    return (np.pad(x, ((0, 0), (0, missing))), np.pad(y, ((0, missing), (0, 0)))) if missing else (x, y)


def columnwise(model: EngineModel, x: NDArray[Any], y: NDArray[Any], workers: int) -> Array | None:
    """x @ y of finite values of the input format, unchecked, by whole columns; None where no such kernel does it."""
    import numpy as np

    chosen = path(model)
    if chosen is None:
        return None
    run = _aligned if chosen == "aligned" else _chained
    return run(model, *_whole(model, x, y), np.zeros((x.shape[0], y.shape[1])), workers)


def _any_model(model: EngineModel, x: Array, y: Array, workers: int) -> Callable[[int, int, Array], Array]:
    import numpy as np

    from prismm.core import threads as pool
    from prismm.numerics.kernels.dot_model import dots
    from prismm.numerics.kernels.dot_parameters import WIDTH

    left, right = lowering.operand(model, "a", x), lowering.operand(model, "b", y.T)
    m, n = len(left), len(right)
    parameters, order = lowering.lowered(model, x.shape[1])
    width = int(parameters[WIDTH])

    def run(k0: int, k1: int, c: Array) -> Array:
        out = np.empty((m, n))

        def task(at: tuple[int, int, int, int]) -> None:
            i0, i1, j0, j1 = at
            rows = np.repeat(np.arange(i0, i1), j1 - j0)
            columns = np.tile(np.arange(j0, j1), i1 - i0)
            found = np.empty(len(rows))
            start = np.ascontiguousarray(c[i0:i1, j0:j1]).reshape(-1)
            dots(parameters, order, left, right, rows, columns, start, k0, min(k1, width), 0, len(rows), found)
            out[i0:i1, j0:j1] = found.reshape(i1 - i0, j1 - j0)

        pool.spread(task, _tiles(m, n, _TILE, _TILE), workers)
        return out

    return run


def _tiles(m: int, n: int, panel: int, strip: int) -> list[tuple[int, int, int, int]]:
    return [(i, min(i + panel, m), j, min(j + strip, n)) for j in range(0, n, strip) for i in range(0, m, panel)]


def _aligned(model: EngineModel, x: NDArray[Any], y: NDArray[Any], c: Array, workers: int) -> Array:
    import numpy as np

    from prismm.core import threads as pool
    from prismm.numerics.kernels import simulate as kernels

    f, to = model.input, model.sums
    assert isinstance(f, Format) and model.fraction_bits is not None
    block, padded = model.block, -(-model.block // 4) * 4
    a, b = _blocked(x, block, padded, axis=1), _blocked(y, block, padded, axis=0)
    a, b = np.ascontiguousarray(a.transpose(1, 0, 2)), b.reshape(-1, y.shape[1])
    out = c.copy()
    # An exponent below that of any product means nothing, but its power of two must have a reciprocal.
    none = 2 * f.minexp - 1
    least = none if model.zero_exponent is None else max(model.zero_exponent, none)
    extra = (model.fraction_bits, f.smallest_normal, 2.0**least)
    zero = 0.0 if model.zeros == "unsigned" else -0.0

    def task(at: tuple[int, int, int, int]) -> None:
        kernels.aligned_product(a, b, *at, *extra, *_narrow(to), _mode(model), zero, out)

    pool.spread(task, _tiles(len(x), y.shape[1], _PANEL, _STRIP), workers)
    return out


def _chained(model: EngineModel, x: NDArray[Any], y: NDArray[Any], c: Array, workers: int) -> Array:
    import numpy as np

    from prismm.core import threads as pool
    from prismm.numerics.kernels import simulate as kernels

    a, b = (np.array(z, np.float64, order="C") for z in (x, y))
    out = c.copy()
    zero = -0.0 if model.zeros == "ieee" else 0.0

    def task(at: tuple[int, int, int, int]) -> None:
        if model.input == FP64:
            kernels.fma_product(a, b, *at, zero, out)
        else:
            kernels.chained_product(a, b, *at, *_narrow(model.sums), _mode(model), zero, out)

    pool.spread(task, _tiles(len(x), y.shape[1], _PANEL, _STRIP), workers)
    return out


def _narrow(to: Format) -> tuple[int, float, float, float]:
    """How the kernels take a format: bits fewer than float64's, its smallest numbers, and where it overflows."""
    overflow = math.inf if to.maxexp == 1024 else 2.0**to.maxexp
    return 52 - to.fraction_bits, to.smallest_normal, to.smallest_subnormal, overflow


def _mode(model: EngineModel) -> int:
    from prismm.numerics.kernels import simulate as kernels

    return kernels.ZERO if model.rounding == "zero" else kernels.NEAREST


def _blocked(x: NDArray[Any], block: int, padded: int, axis: int) -> Array:
    """The inner dimension as (blocks, padded): rows (m, blocks, padded), or (blocks, padded, n), filled with zeros."""
    import numpy as np

    k = x.shape[axis]
    blocks, whole = -(-k // block), k // block * block
    if axis == 0:
        by_rows = np.zeros((blocks, padded, x.shape[1]))
        by_rows[: k // block, :block] = x[:whole].reshape(-1, block, x.shape[1])
        if whole < k:
            by_rows[-1, : k - whole] = x[whole:]
        return by_rows
    by_columns = np.zeros((x.shape[0], blocks, padded))
    by_columns[:, : k // block, :block] = x[:, :whole].reshape(x.shape[0], -1, block)
    if whole < k:
        by_columns[:, -1, : k - whole] = x[:, whole:]
    return by_columns
