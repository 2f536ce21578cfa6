"""Dot products of an `EngineModel` on arrays, bit for bit those of `specification`, in compiled code."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from prismm.errors import ShapeError
from prismm.numerics import encodings, products
from prismm.numerics.lowering import decoded_unchecked, operand, run, run_rows
from prismm.numerics.operands import array, check, check_model, scale_factors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from prismm.numerics.model import EngineModel

__all__ = ["bits", "dot", "dot_unchecked", "gemm", "mma"]


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
    left = operand(model, "a", x.reshape(-1, x.shape[-1]), scale_factors(model, "scale_a", x.shape, scale_a))
    right = operand(model, "b", y.reshape(-1, y.shape[-1]), scale_factors(model, "scale_b", y.shape, scale_b))
    check("c", z, model.output)
    rows, columns = (
        np.array(np.broadcast_to(np.arange(math.prod(shape)).reshape(shape), lead), np.int64, order="C").reshape(-1)
        for shape in (x.shape[:-1], y.shape[:-1])
    )
    start = np.array(np.broadcast_to(z, lead), order="C").reshape(-1)
    return run(model, left, right, rows, columns, start, x.shape[-1], workers).reshape(lead)


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
