"""The verbs on a GPU: operands that live on a CUDA device are multiplied there, and the result stays there.

What differs from a CPU is where arrays live and that nothing waits: a call queues its kernels on the current stream and
returns. Only ``full_output=True`` reads counts back. What depends on shapes, strides and arguments alone is worked out
once: the plan (`cuda.backend`), and the program of launches (`cuda.execute`).
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import TYPE_CHECKING, TypeAlias

from prismm.core import accuracy
from prismm.core.arrays import lives_on_gpu
from prismm.core.outcome import Outcome
from prismm.core.plan import Decision
from prismm.core.report import Piece, Report
from prismm.cuda import device as cuda_device
from prismm.cuda import fast_path as layouts
from prismm.cuda import integers as cuda_integers
from prismm.cuda import workspace
from prismm.cuda.backend import (
    as_caller,
    check_type_survives,
    foreseen,
    memories_of,
    normalised,
    raw_tensor,
    real_operands,
    request_of,
    source_of,
    strides_of,
    target_of,
    with_promoted,
)
from prismm.cuda.execute import multiply, multiply_fast
from prismm.cuda.fast_path import MOST_CALLS, PLAIN_ACCURACY, fast_path, fast_row, fast_sum, repeated
from prismm.cuda.gemm import sum as cuda_gemm
from prismm.cuda.operands import PreparedOnDevice, overlap, shared, tensor_of
from prismm.cuda.report import report_of
from prismm.cuda.residues import fp8_proof
from prismm.cuda.slices import count as slice_count
from prismm.errors import ArgumentError, EngineError

if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any

    import torch

    from prismm.core.plan import Plan
    from prismm.cuda.backend import GpuCall


__all__ = ["explain", "fast_path", "fast_row", "fast_sum", "forget", "gemm", "known", "matmul", "repeated"]

_CALLS: dict[Hashable, GpuCall] = {}
"""Calls that were normalised before, by all that the choice depends on."""


def known() -> list[GpuCall]:
    """The calls that are kept."""
    return list(_CALLS.values())


def forget() -> None:
    """Keep none of them."""
    _CALLS.clear()
    layouts.forget()
    workspace.forget()


Given: TypeAlias = "tuple[Any, Any, Any, tuple[str, str]]"
"""The operands of gemm as the caller passed them, C where it is read, and their transpositions."""


def matmul(
    a: Any, b: Any, keywords: tuple[Any, ...], out: Any, full_output: bool, sum_: cuda_gemm.Sum | None = None,
    given: Given | None = None, symmetric: str | None = None,
) -> Any:  # fmt: skip
    """`prismm.matmul` of operands on a GPU, or `prismm.gemm` where there is a sum; arguments, results and errors are
    its own. symmetric: as of `_matmul`.

    keywords: accuracy, scheme, reproducible, out_dtype, engine, threads, workspace.

    Raises:
        EngineError: for what the GPU engine does not do yet, with what to pass instead, and where the GPU's memory is
        exhausted.
    """
    import torch

    if full_output and out is not None and lives_on_gpu(out):
        target = shared(out, "out")
        a, b = _apart(target, a, "a"), _apart(target, b, "b")
        if sum_ is not None and sum_.addend is not None:
            sum_ = dataclasses.replace(sum_, addend=_apart(target, sum_.addend, "c"))
    try:
        return _matmul(a, b, keywords, out, full_output, sum_, given, symmetric)
    except torch.OutOfMemoryError as error:
        raise EngineError(
            "the GPU has too little free memory for this product: free some (torch.cuda.empty_cache()), or multiply in "
            f"blocks of rows ({error})"
        ) from error


def _apart(target: torch.Tensor, x: Any, name: str) -> Any:
    """An operand, or a copy of it if a result at the target may overwrite it: a report reads it later."""
    if isinstance(x, PreparedOnDevice):
        return x
    tensor = shared(x, name)
    return tensor.clone() if overlap(target, tensor) else x


def _matmul(
    a: Any, b: Any, keywords: tuple[Any, ...], out: Any, full_output: bool, sum_: cuda_gemm.Sum | None,
    given: Given | None = None, symmetric: str | None = None,
) -> Any:  # fmt: skip
    """`matmul`, but for errors of memory; symmetric: see `core.problem.Problem`, and None is returned where the scheme,
    or integers that take several terms each, leave no tiles out.
    """
    import torch

    start = time.perf_counter()
    x, y, terms_per_element, keywords = real_operands(a, b, keywords)
    if symmetric is not None and terms_per_element > 1:
        return None
    if type(keywords[0]) not in PLAIN_ACCURACY:  # it may change, or not be hashable
        keywords = (accuracy.parse_target(keywords[0]), *keywords[1:])
    if slice_count.is_estimated(keywords[1]):
        # What is asked is checked before the data are read.
        checked = normalised(a, b, x, y, request_of(keywords, a, b), sum_, terms_per_element)
        if out is not None:
            target_of(out, checked, x.device)
        keywords = (keywords[0], slice_count.fix_slice_count(keywords[1], x, y), *keywords[2:])
    memories = memories_of(a, b, x.device)
    key = (
        x.dtype, x.shape, x.stride(), x.device, y.dtype, y.shape, y.stride(), y.device, out is None,
        None if out is None else strides_of(out), cuda_device.settings(), keywords, *map(type, keywords),
        *(z.key if isinstance(z, PreparedOnDevice) else None for z in (a, b)),
        sum_ and sum_.key(x.shape[-1] if x.ndim else 0), terms_per_element, symmetric,
    )  # fmt: skip
    try:
        call = _CALLS.get(key)
    except TypeError:  # keywords that cannot be hashed are no valid ones
        call = None
    if call is None:
        call = normalised(a, b, x, y, request_of(keywords, a, b), sum_, terms_per_element, symmetric)
        if call.chosen.engine == cuda_device.FP8:
            fp8_proof.prove(call.device, call.index)
        if len(_CALLS) >= MOST_CALLS:
            _CALLS.clear()
        _CALLS[key] = call
    if symmetric is not None and not call.implementation.serves_symmetric:
        return None
    if full_output and torch.cuda.is_current_stream_capturing():
        raise ArgumentError("full_output=True reads counts back, which a CUDA graph cannot capture; leave it out")
    check_type_survives(call, source_of(a, b), x.device)
    if out is None:
        result = torch.empty(call.shape, dtype=call.dtype, device=x.device)
    else:
        result = target_of(out, call, x.device)
    if terms_per_element > 1:
        raw = raw_tensor(a, "a"), raw_tensor(b, "b")
        if not all(map(cuda_integers.alike_in_size, raw)):
            report = _each_alone(call, *raw, keywords, result, full_output, sum_, start)
            answer = as_caller(result, source_of(a, b)) if out is None else out
            return (answer, report) if full_output else answer
    execution = None
    # Streams and launches go by the current device, which may be another one than the operands'.
    if torch.cuda.current_device() != call.index:
        with torch.cuda.device(call.index):
            execution = multiply(call, x, y, result, memories, full_output, sum_)
    elif (
        sum_
        or full_output
        or symmetric
        or not (out is None or result.is_contiguous())
        or not multiply_fast(call, x, y, result, memories, owned=out is not None)
    ):
        execution = multiply(call, x, y, result, memories, full_output, sum_)
        if sum_ and given and not full_output:
            layouts.remember_sum(call, given[:3], (x, y), sum_, given[3], keywords, out)
    else:
        layouts.remember(call, (a, b), (x, y), keywords, out)
    answer = as_caller(result, source_of(a, b)) if out is None else out
    return (answer, report_of(call, execution, (x.ndim > 1, y.ndim > 1), start, sum_)) if full_output else answer


def _each_alone(
    call: GpuCall, a: torch.Tensor, b: torch.Tensor, keywords: tuple[Any, ...], out: torch.Tensor, full_output: bool,
    sum_: cuda_gemm.Sum | None, start: float,
) -> Report:  # fmt: skip
    """The products of a batch, some of which hold integers beyond 2^53: as on a CPU each as if it were alone."""
    import numpy as np

    batch = call.shape[: len(call.shape) - (a.ndim > 1) - (b.ndim > 1)]
    addend = sum_.addend.expand(call.shape) if sum_ is not None and sum_.addend is not None else None
    left, right = (x.expand(*batch, *x.shape[-2:]) if x.ndim > 1 else x for x in (a, b))
    result, total, pieces = out.new_empty(call.shape), Outcome(), list[Piece]()
    for at in np.ndindex(*batch):
        x, y = (z[at] if z.ndim > 1 else z for z in (left, right))
        mine = sum_ if sum_ is None or addend is None else dataclasses.replace(sum_, addend=addend[at])
        answer = _matmul(x, y, keywords, result[at], full_output, mine)
        if full_output:
            total.merge(answer[1].outcome)
            pieces += answer[1].pieces
    out.copy_(result)  # which may overlap the operands
    total.time("total", time.perf_counter() - start)
    return Report(
        decision=Decision.of(call.plan), outcome=total, shape=call.shape, pieces=pieces, rows_kept=a.ndim > 1,
        columns_kept=b.ndim > 1, repeated=math.prod(batch),
    )  # fmt: skip


def gemm(
    a: Any, b: Any, c: Any, alpha: complex, beta: complex, trans_a: str, trans_b: str, keywords: tuple[Any, ...],
    out: Any, full_output: bool, *, symmetric: str | None = None,
) -> Any:  # fmt: skip
    """`prismm.gemm` of operands on a GPU; symmetric: as of `_matmul`."""
    # Later calls of a layout that is remembered need not be symmetric.
    given = None if symmetric else (a, b, None if beta == 0 else c, (trans_a, trans_b))
    a, b = cuda_gemm.transposed(a, trans_a, "trans_a"), cuda_gemm.transposed(b, trans_b, "trans_b")
    # A plain product takes matmul's launches, and so has its bits.
    if alpha == 1 and beta == 0:
        return matmul(a, b, keywords, out, full_output, symmetric=symmetric)
    addend = None
    # A beta of 0 leaves C unread, as in BLAS: it may hold NaN.
    if beta != 0:
        addend = cuda_integers.exact(tensor_of(c, "c"), "c", "; pass c.double() if rounding them is meant")
        keywords = with_promoted(keywords, raw_tensor(a, "a"), raw_tensor(b, "b"), shared(c, "c"))
    return matmul(a, b, keywords, out, full_output, cuda_gemm.Sum(alpha, beta, addend), given, symmetric)


def explain(a: Any, b: Any, keywords: tuple[Any, ...], *, foresee: bool = True) -> Plan:
    """`prismm.explain` of operands on a GPU; without `foresee` no sample of them is read to learn what repairs take."""
    x, y, terms_per_element, keywords = real_operands(a, b, (*keywords, None))
    call = normalised(a, b, x, y, request_of(keywords, a, b), terms_per_element=terms_per_element)
    check_type_survives(call, source_of(a, b), x.device)
    return foreseen(call, x, y) if foresee else call.plan
