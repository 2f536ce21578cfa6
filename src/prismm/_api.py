"""The public verbs. Operands that torch has to follow go to its operators (`programs.operators`), all others to
`dispatch`. Small NumPy products run directly.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

from prismm import dispatch
from prismm.core import arrays
from prismm.core import threads as pool
from prismm.core.plan import Plan
from prismm.core.prepared import Prepared, Verbs
from prismm.cpu.fast_paths import fast_batch, fast_product


def matmul(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    accuracy: str | float | None = None,
    scheme: Any = None,
    reproducible: bool = False,
    out_dtype: Any = None,
    engine: str | None = None,
    threads: int | None = None,
    workspace: Any = None,
    full_output: bool = False,
) -> Any:
    """Multiply matrices to a stated accuracy.

    Args:
        a: array of shape (..., m, k) or (k,): NumPy array, torch tensor, anything with ``__dlpack__``, a data frame or
            labelled array (``to_numpy``), whose values are taken without labels, or a dask array, whose product is
            lazy; float64, float32, complex128, complex64; float16, bfloat16, longdouble, integers and bool are taken
            exactly. Any strides.
        b: array of shape (..., k, n) or (k,), of the same kind.
        out: array of the result's shape and type to write to, or a NumPy array of a type that holds every value of the
            result's; may overlap the operands. Of tensors that require grad the product has a derivative
            (`prismm.programs.operators`), with neither ``out`` nor ``full_output``.
        accuracy: "fast", "native" (default), "correctly-rounded", or a tolerance relative to |a||b|;
            `docs/guarantees.md` has the bounds. With an explicit scheme None means the scheme's own value, unrepaired;
            ``Slices(mode="CR")`` is correctly rounded all the same.
        scheme: an instance: `Auto` (default), `Residues`, `Slices`, `Words`, `ScaledHalf`, `TileInt8`, `Native`, one of
            `schemes.baselines`, or your own that keeps `schemes.Scheme`; or a name such as "residues:15"
            (`schemes.names`).
        reproducible: the same bits on every machine, thread count, batch position and order of the inner dimension.
        out_dtype: type of the result, wider or narrower than the operands'; by default NumPy's promotion, but float32
            for narrower floats and float64 for integers and long doubles. Bools alone give their logical or, as in
            NumPy; out_dtype="float64" counts.
        engine: "cpu" or "cuda" takes the best there, ``PRISMM_ENGINE`` names the default; `core.engine_names` has a
            table of all names, simulated matrix units such as "simulated:volta" included.
        threads: workers; default all processors, or ``PRISMM_THREADS``.
        workspace: memory for `Slices`, a NumPy array of uint8, instead of memory of its own: the product is cut so that
            slices, sums and products of slices fit in it. Its contents are lost.
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
    >>> prismm.matmul(a, a, scheme="residues:15").shape
    (2, 2)
    """
    if type(a) is np.ndarray and type(b) is np.ndarray:
        plain = scheme is out is out_dtype is engine is workspace is None and not full_output
        if plain and (threads is None or pool.worker_count(threads)):
            shortcut = fast_product if a.ndim == 2 == b.ndim else fast_batch
            if (result := shortcut(a, b, accuracy, reproducible, threads)) is not None:
                return result
    elif arrays.traced(a, b):
        from prismm.programs import operators

        asked = accuracy, scheme, reproducible, out_dtype, engine, threads
        return operators.matmul_of(a, b, asked, out, workspace, full_output)
    elif arrays.chunked(a, b):
        from prismm.dask import product

        return product.matmul(a, b, (accuracy, scheme, reproducible, out_dtype, engine, threads), out, workspace,
                              full_output)  # fmt: skip
    keywords = accuracy, scheme, reproducible, out_dtype, engine, threads, workspace
    return dispatch.matmul(a, b, keywords, out, full_output)


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
        a, b: matrices (or batches) with op(A) of shape (..., m, k) and op(B) of shape (..., k, n), never read where
            alpha is 0; op is the identity, the transpose or the conjugate transpose.
        c: array that broadcasts to the result's shape; never read where beta is 0.
        alpha, beta: finite scalars, taken exactly; so bools are the numbers 0 and 1 here. Those that are no float64 or
            complex128, such as Fraction(1, 3), are refused, and so are tensors that require grad.
        trans_a, trans_b: op, "N", "T" or "C".

    The other arguments, results and errors are those of `matmul`, every scheme and engine included. "native"
    guarantees |d - exact| <= (K+3)·u·(|alpha||a||b| + |beta||c|) + (K+3)·η here.

    Raises:
        ArgumentError: for factors that are not finite, another op, and a beta other than 0 without c. ShapeError: for a
        c that does not broadcast to the result's shape. Also the errors of `matmul`.

    Source: Dongarra et al., "A set of level 3 basic linear algebra subprograms", 1990, for the operation.

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
    if arrays.chunked(a, b, c):
        from prismm.dask import product

        return product.gemm(
            a, b, c, (alpha, beta), (trans_a, trans_b), (accuracy, scheme, reproducible, out_dtype, engine, threads),
            out, workspace, full_output,
        )  # fmt: skip
    keywords = accuracy, scheme, reproducible, out_dtype, engine, threads, workspace
    if arrays.sharded(a, b, c):
        from prismm.programs import operators

        return operators.sharded_gemm(
            a, b, c, (alpha, beta), (trans_a, trans_b), keywords, out, full_output
        )  # fmt: skip
    return dispatch.gemm(a, b, c, (alpha, beta), (trans_a, trans_b), keywords, out, full_output)


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

    Returns:
        A `Prepared` operand, for `matmul`, `gemm` and ``@``.

    Raises:
        ArgumentError: for another side. ShapeError: unless x is a matrix. Also the errors of `matmul`.

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
    made = dispatch.prepare(x, side, (accuracy, scheme, reproducible, out_dtype, engine, threads))
    return dataclasses.replace(made, verbs=Verbs(matmul, prepare))


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
    """The `Plan` of a product: what would run, why, and what it is expected to take. Nothing is multiplied but, of a
    product by residues that is large or on a GPU, a sample, which says what repairs are expected to add.

    Arguments and errors are those of `matmul`. `Plan.alternatives` has what was not taken, and why.

    >>> import numpy as np, prismm
    >>> prismm.explain(np.ones((8, 8)), np.ones((8, 8))).scheme
    Native(compute=None)
    """
    if (aside := _aside("explain")) is not None:
        return aside(  # type: ignore[no-any-return]
            a, b, accuracy=accuracy, scheme=scheme, reproducible=reproducible, out_dtype=out_dtype, engine=engine,
            threads=threads,
        )  # fmt: skip
    return dispatch.explain(a, b, (accuracy, scheme, reproducible, out_dtype, engine, threads))


def _aside(verb: str) -> Any:
    """The verb as it runs where torch would follow what it does, and it is none of torch's operators: outside of the
    graph that torch.compile makes of a program, beneath the levels of torch.func. None where torch does neither.
    """
    compiling = arrays.compiling()
    if not compiling and not arrays.transforming():
        return None
    from prismm.programs import operators

    return operators.uncompiled(verb) if compiling else operators.beneath(globals()[verb])
