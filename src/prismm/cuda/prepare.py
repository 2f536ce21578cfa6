"""`prismm.prepare` on a GPU: a matrix split once, its parts kept on the device beside a copy of it.

Rows or columns are split so many at a time (`STEP`), each time into planes of their own: products of large matrices are
made in blocks, and a block takes whole planes. Only residues are kept. Words of a matrix are split together with those
of the other operand, in one launch that takes less than it takes to queue it; a native product has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from prismm.core import arrays
from prismm.core.problem import Problem
from prismm.cuda import integers as cuda_integers
from prismm.cuda import plan as cuda_plan
from prismm.cuda.costs.first_use import estimate_rates
from prismm.cuda.device import FP8, device_of
from prismm.cuda.implementation import implementation_of
from prismm.cuda.operands import PreparedOnDevice, name_of, numpy_dtype, result_dtype, tensor_of
from prismm.cuda.slices import count as slice_count
from prismm.errors import EngineError, ShapeError
from prismm.formats import format_of

if TYPE_CHECKING:
    from prismm.core.request import Request

STEP = 8192
"""Rows or columns of a block."""


def prepare(x: Any, side: Literal["left", "right"], request: Request) -> PreparedOnDevice:
    """`prismm.prepare` of a matrix on a GPU; nothing waits.

    Raises:
        ShapeError: unless x is a matrix. EngineError: for schemes that do not run on a GPU, or too little memory.
    """
    import torch

    tensor = cuda_integers.exact(tensor_of(x, "x"), "x", ", which are not prepared; pass them to matmul directly")
    if tensor.ndim != 2:
        raise ShapeError(f"x has shape {tuple(tensor.shape)}; prepare takes a matrix of two dimensions")
    dtype = result_dtype([tensor], request.out_dtype)
    kind = torch.complex128 if dtype.is_complex and not tensor.is_complex() else tensor.dtype
    device = device_of(tensor.device.index)
    estimate_rates(device, tensor.device.index)
    rows, columns = tensor.shape
    # Nothing is known of the other operand: as many vectors as this one has stand for it.
    m, k = (rows, columns) if side == "left" else (columns, rows)
    problem = Problem(
        m=m, n=m, k=k, batch=(), result=format_of(numpy_dtype(dtype)), target=request.target,
        reproducible=request.reproducible, one_type=kind == dtype, is_complex=dtype.is_complex,
    )  # fmt: skip
    if slice_count.is_estimated(request.scheme):
        raise EngineError(
            f"{request.scheme} estimates its number of slices from both operands; pass slices= as well, or mode='CR'"
        )
    chosen = cuda_plan.choose(problem, request, device, one_kernel=False)  # which depends on the other operand
    if chosen.engine == FP8:
        raise EngineError(f"prepare keeps 8-bit residues, which {FP8!r} does not multiply; leave engine out")
    parts = memory = None
    with torch.cuda.device(tensor.device):
        stream = torch._C._cuda_getCurrentRawStream(tensor.device.index)
        try:
            copy = tensor.to(kind, copy=True)
            # Kernels read vectors whose elements are neighbours, or that are neighbours themselves.
            copy = copy if 1 in copy.stride() else copy.contiguous()
            split = implementation_of(chosen.scheme).prepare(copy, side, device, STEP)
            if split is not None:
                program, parts = split
                memory = torch.empty(program.workspace, dtype=torch.uint8, device=copy.device)
                # Bases of A, B and the result: a split reads one operand and writes to workspace alone.
                program.run((*[copy.data_ptr()] * 3, memory.data_ptr()), stream)
        except torch.OutOfMemoryError as error:
            raise EngineError(
                f"the GPU has too little free memory to keep this operand of shape {(rows, columns)} split: free some "
                "(torch.cuda.empty_cache()), or pass the matrix itself"
            ) from error
    asked = name_of(dtype) if request.out_dtype is not None else None
    array = arrays.Array(copy, "torch" if arrays.is_tensor(x) else "dlpack", None)  # type: ignore[arg-type]
    return PreparedOnDevice(
        side, chosen.scheme, request.target, request.reproducible, chosen.engine, name_of(dtype), asked, array, None,
        parts, memory, stream,
    )  # fmt: skip
