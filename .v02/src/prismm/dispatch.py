"""The verbs for operands that torch does not follow: each checks its keywords into a `Request`, and hands the operands
to the device where they are.

`matmul` and `gemm` go on to a `Problem`, a `Plan` and an `Outcome`; `prepare` ends after the split, `explain` after the
plan. Arguments, results and errors are those of the public verbs; `keywords` are accuracy, scheme, reproducible,
out_dtype, engine and threads, and for products the workspace.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

import numpy as np

from prismm.core import arrays
from prismm.core.plan import Plan
from prismm.core.prepared import Prepared
from prismm.core.request import Request, check_request, finite_scalar, transposed
from prismm.cpu import execute
from prismm.cpu.backend import foreseen, normalise_call
from prismm.cpu.fast_paths import fast_array_sum, fast_tensors
from prismm.errors import ArgumentError, OperandError
from prismm.schemes.names import scheme_of


def matmul(a: Any, b: Any, keywords: tuple[Any, ...], out: Any = None, full_output: bool = False) -> Any:
    """`prismm.matmul`."""
    keywords = _with_scheme(keywords)
    if type(a) is not np.ndarray or type(b) is not np.ndarray:
        if not full_output and (gpu := sys.modules.get("prismm.cuda.calls")) is not None:
            result = gpu.fast_path(a, b, keywords, out)
            if result is not None:
                return result
        accuracy, scheme, reproducible, out_dtype, engine, threads, workspace = keywords
        plain = scheme is out is out_dtype is engine is workspace is None and not full_output
        if plain and arrays.is_tensor(a):
            result = fast_tensors(a, b, accuracy, reproducible, threads)
            if result is not None:
                return result
        if arrays.lives_on_gpu(a) or arrays.lives_on_gpu(b):
            from prismm.cuda import calls as cuda_calls

            return cuda_calls.matmul(a, b, keywords, out, full_output)
    request, a, b = _checked(keywords[:6], a, b, keywords[6])
    return execute.run(a, b, None, request, out, full_output)


def gemm(
    a: Any, b: Any, c: Any, factors: tuple[complex, complex], transposes: tuple[str, str], keywords: tuple[Any, ...],
    out: Any = None, full_output: bool = False, lower: bool = False,
) -> Any:  # fmt: skip
    """`prismm.gemm`; factors: alpha and beta, transposes: trans_a and trans_b; lower: of a matrix in main memory the
    entries above the diagonal are not wanted.
    """
    keywords = _with_scheme(keywords)
    alpha, beta = finite_scalar(factors[0], "alpha"), finite_scalar(factors[1], "beta")
    if beta != 0 and c is None:
        raise ArgumentError(f"beta={beta!r} needs c; pass it, or beta=0")
    if not full_output and (gpu := sys.modules.get("prismm.cuda.calls")) is not None and type(a) is not np.ndarray:
        result = gpu.fast_sum(a, b, c, (alpha, beta), transposes, keywords, out)
        if result is not None:
            return result
    if arrays.lives_on_gpu(a) or arrays.lives_on_gpu(b):
        from prismm.cuda import calls as cuda_calls

        return cuda_calls.gemm(a, b, c, alpha, beta, *transposes, keywords, out, full_output)
    plain = type(a) is np.ndarray and type(b) is np.ndarray and out is None and not full_output
    a, b = transposed(a, transposes[0], "trans_a"), transposed(b, transposes[1], "trans_b")
    if plain and _leaves_open(keywords):
        x, y = (z.data if type(z) is arrays.Array else z for z in (a, b))
        result = fast_array_sum(x, y, c, alpha, beta)
        if result is not None:
            return result
    request, a, b = _checked(keywords[:6], a, b, keywords[6])
    addend = arrays.normalise(c, "c") if beta != 0 else None
    return execute.run(a, b, (alpha, beta, addend), request, out, full_output, lower)


def symmetric(
    a: Any, c: Any, factors: tuple[complex, complex], hermitian: bool, keywords: tuple[Any, ...]
) -> Any:  # fmt: skip
    """alpha·a·aᵀ + beta·c of tensors on a GPU, hermitian: with the conjugate transpose; entries above the diagonal are
    copies of those below it. None if the scheme, or wide integers, need all tiles. Arguments and errors as of
    `gemm`.
    """
    from prismm.cuda import calls as cuda_calls

    alpha, beta = finite_scalar(factors[0], "alpha"), finite_scalar(factors[1], "beta")
    how = "C" if hermitian else "T"
    return cuda_calls.gemm(a, a, c, alpha, beta, "N", how, _with_scheme(keywords), None, False, symmetric=how)


def prepare(x: Any, side: Literal["left", "right"], keywords: tuple[Any, ...]) -> Prepared:
    """`prismm.prepare`."""
    if side not in ("left", "right"):
        raise ArgumentError(f"side={side!r}; pass 'left' or 'right'")
    request, x, _ = _checked(_with_scheme(keywords), x, None)
    if isinstance(x, Prepared):
        raise OperandError("this operand is prepared already; pass the matrix itself")
    if arrays.lives_on_gpu(x):
        from prismm.cuda import prepare as cuda_prepared

        return cuda_prepared.prepare(x, side, request)
    return execute.prepare(x, side, request)


def explain(a: Any, b: Any, keywords: tuple[Any, ...], *, foresee: bool = True) -> Plan:
    """`prismm.explain`; without `foresee` no sample is multiplied to learn what repairs will take."""
    a, b, keywords = arrays.untraced(a), arrays.untraced(b), _with_scheme(keywords)
    if arrays.lives_on_gpu(a) or arrays.lives_on_gpu(b):
        from prismm.cuda import calls as cuda_calls

        return cuda_calls.explain(a, b, keywords, foresee=foresee)
    request, a, b = _checked(keywords, a, b)
    call = normalise_call(a, b, None, request)
    return foreseen(call) if foresee else call.plan


def _leaves_open(keywords: tuple[Any, ...]) -> bool:
    """Whether these are a call's of native grade that asks for nothing else."""
    accuracy, scheme, reproducible, *rest = keywords
    native_grade = accuracy is None or (isinstance(accuracy, str) and accuracy == "native")
    return native_grade and scheme is None and reproducible is False and all(x is None for x in rest)


def _with_scheme(keywords: tuple[Any, ...]) -> tuple[Any, ...]:
    """The keywords with the scheme that a name stands for."""
    return (keywords[0], scheme_of(keywords[1]), *keywords[2:]) if isinstance(keywords[1], str) else keywords


def _checked(keywords: tuple[Any, ...], a: Any, b: Any, workspace: Any = None) -> tuple[Request, Any, Any]:
    accuracy, scheme, reproducible, out_dtype, engine, threads = keywords
    return check_request(accuracy, scheme, reproducible, out_dtype, engine, threads, a, b, workspace)
