"""Operands as dask arrays of at least two axes, with the inner dimension cut alike, and what tasks get to know."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.blockwise import Blockwise
from dask.graph_manipulation import clone

from prismm import __version__
from prismm.core import arrays
from prismm.core.prepared import Prepared
from prismm.errors import EngineError, OperandError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Keywords = tuple[Any, ...]
"""accuracy, scheme, reproducible, out_dtype, engine and threads; the scheme is no name."""


@dataclass(frozen=True)
class Call:
    """What every task of a product gets to know, wherever it runs.

    Attributes:
        keywords: of the product.
        dtype: element type of the result.
        version: of prismm, where the graph was made.
        factors: alpha and beta of gemm; None for a product.
    """

    keywords: Keywords
    dtype: str
    version: str = __version__
    factors: tuple[complex, complex] | None = None

    @property
    def threads(self) -> int | None:
        """Workers of a task: one, as Dask runs several tasks at a time, unless the caller or ``PRISMM_THREADS`` says
        otherwise.
        """
        threads = self.keywords[5]
        return 1 if threads is None and not os.environ.get("PRISMM_THREADS") else threads

    @property
    def task_keywords(self) -> Keywords:
        """The keywords of `prismm.dispatch`, without a workspace."""
        return (*self.keywords[:5], self.threads, None)

    def check(self) -> None:
        """EngineError on a machine with another version of prismm, whose bits may be others."""
        if self.version != __version__:
            raise EngineError(
                f"this worker (process {os.getpid()}) has prismm {__version__}, and the graph was made by prismm "
                f"{self.version}; install one version everywhere"
            )


def taken(x: Any, name: str, chunks: tuple[Any, ...] | None = None) -> da.Array:
    """The operand as a dask array.

    Args:
        x: a dask array of NumPy arrays, or a NumPy array.
        name: what errors call it.
        chunks: of a NumPy array; "auto" along each axis by default.

    Raises:
        OperandError: for another array, or chunks of another kind. ShapeError: for chunks of unknown sizes. The errors
            of `core.arrays.normalise`.
    """
    if isinstance(x, da.Array):
        if not isinstance(x._meta, np.ndarray) or isinstance(x._meta, np.ma.MaskedArray):
            raise OperandError(
                f"the chunks of {name} are of type {type(x._meta).__name__}; pass {name}.map_blocks(function) with a "
                "function that makes a NumPy array of each"
            )
        if math.isnan(sum(map(sum, x.chunks))):
            raise ShapeError(
                f"the chunks of {name} have unknown sizes {x.chunks}; pass {name}.compute_chunk_sizes(), which "
                "computes them"
            )
        arrays.normalise(np.empty(0, x.dtype), name)
        return x
    if isinstance(x, Prepared) or arrays.is_tensor(x) or isinstance(x, type):
        raise OperandError(
            f"{name} is a {getattr(x, '__name__', type(x).__name__)} beside a dask array; pass a dask or NumPy array"
        )
    found = arrays.normalise(x, name).data
    return da.from_array(found, chunks=chunks or ("auto",) * found.ndim)


def pair(a: Any, b: Any) -> tuple[da.Array, da.Array]:
    """Both operands with one cut of the inner dimension, (..., m, k) and (..., k, n); vectors get an axis.

    Raises:
        ShapeError: for operands that do not fit. The errors of `taken`.
    """
    for x, name in ((a, "a"), (b, "b")):
        if isinstance(x, da.Array) and math.isnan(sum(map(sum, x.chunks))):
            taken(x, name)
    if hasattr(a, "shape") and hasattr(b, "shape"):
        arrays.product_shape(tuple(a.shape), tuple(b.shape))
    # A NumPy operand is cut where its partner is.
    if not isinstance(a, da.Array):
        b = taken(b, "b")
        inner = b.chunks[max(b.ndim - 2, 0)]
        a = taken(a, "a", (*("auto",) * (np.ndim(a) - 1), inner))
    a = taken(a, "a")
    if not isinstance(b, da.Array):
        axis = max(np.ndim(b) - 2, 0)
        chunks = [a.chunks[-1] if i == axis else "auto" for i in range(np.ndim(b))]
        b = taken(b, "b", tuple(chunks))
    b = taken(b, "b")
    left = a if a.ndim > 1 else a[None, :]
    right = b if b.ndim > 1 else b[:, None]
    _, (left, right) = da.unify_chunks(left, _labels(left, "ik"), right, _labels(right, "kj"), warn=False)
    return left, right


def labels(a: da.Array, b: da.Array) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Names of the axes of both operands and of the result, for `da.blockwise`: batches line up at their ends."""
    left, right = _labels(a, "ik"), _labels(b, "kj")
    longer = left if len(left) > len(right) else right
    return left, right, (*longer[:-2], "i", "j")


def result_chunks(a: da.Array, b: da.Array) -> tuple[tuple[int, ...], ...]:
    """Chunks of the product of a `pair`."""
    left, right, names = labels(a, b)
    found: dict[str, tuple[int, ...]] = {}
    for name, sizes in (*zip(left, a.chunks, strict=True), *zip(right, b.chunks, strict=True)):
        # An axis of one element is repeated along the other operand's.
        if name not in found or sum(found[name]) == 1:
            found[name] = sizes
    return tuple(found[name] for name in names)


def _labels(x: da.Array, last: str) -> tuple[str, ...]:
    return (*(f"b{x.ndim - 2 - axis}" for axis in range(x.ndim - 2)), *last)


def mapped(
    task: Any, names: tuple[str, ...], chunks: tuple[tuple[int, ...], ...], *given: Any, name: str, dtype: Any,
    **keywords: Any,
) -> da.Array:  # fmt: skip
    """`da.blockwise` of arrays that are cut alike; chunks: those of what it gives, along all of `names`.

    Dask merges tasks that read chunks into this one where every axis of theirs is in `names`.
    """
    found: da.Array = da.blockwise(
        task, names, *given, align_arrays=False, adjust_chunks=dict(zip(names, chunks, strict=True)), name=name,
        dtype=np.dtype(dtype), meta=np.empty((0,) * len(names), dtype), **keywords,
    )  # fmt: skip
    return found


def multiplied(
    task: Any, a: da.Array, b: da.Array, *more: Any, name: str, dtype: Any, **keywords: Any
) -> da.Array:  # fmt: skip
    """What a task makes of each chunk of A and each chunk of B that meets it: (..., m, n, pieces)."""
    left, right, names = labels(a, b)
    if a.dask.layers.keys() & b.dask.layers.keys():  # as of x.T and x, which would wait for each other
        b = again(b, name)
    chunks = (*result_chunks(a, b), (1,) * len(a.chunks[-1]))
    return mapped(task, (*names, "k"), chunks, a, left, b, right, *more, name=name, dtype=dtype, **keywords)


def again(x: da.Array, step: str) -> da.Array:
    """x for one step of several: where every chunk is read, or made element by element of what is read, as a graph of
    its own, so that no step keeps its chunks for the next one. Dask merges such readers into the tasks that use them.
    """
    layers = x.dask.layers.values()
    cheap = x.npartitions > 1 and all(isinstance(layer, Blockwise) or len(layer) == 1 for layer in layers)
    found: da.Array = clone(x, seed=step) if cheap else x
    return found


def token(a: da.Array, b: da.Array, c: da.Array | None, call: Call) -> str:
    """A name for what these give: the same in every process."""
    accuracy, scheme, *rest = call.keywords
    addend = c.name if c is not None else None
    return str(tokenize(a.name, b.name, addend, str(accuracy), scheme, rest, call.dtype, call.factors,
                        call.version))  # fmt: skip


def chunk(x: Any) -> NDArray[Any]:
    """A chunk as an array of a type that prismm multiplies."""
    return arrays.normalise(np.asarray(x), "a chunk").data
