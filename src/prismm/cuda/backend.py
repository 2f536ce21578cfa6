"""A call on a GPU before it runs: operands as tensors, everything checked, scheme and blocks chosen."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from prismm.core import arrays
from prismm.core.arrays import lives_on_gpu
from prismm.core.namespaces import home_of
from prismm.core.plan import with_repairs
from prismm.core.problem import Problem
from prismm.core.request import check_prepared, check_request, check_sides
from prismm.cuda import integers as cuda_integers
from prismm.cuda import plan as cuda_plan
from prismm.cuda import sample as cuda_sample
from prismm.cuda import workspace
from prismm.cuda.costs.first_use import estimate_rates
from prismm.cuda.costs.table import rates_of, usual_rates
from prismm.cuda.device import BLAS, FP8, default_engine, device_of
from prismm.cuda.implementation import Implementation, implementation_of
from prismm.cuda.launch import cublas
from prismm.cuda.operands import PreparedOnDevice, name_of, numpy_dtype, result_dtype, shared, span, tensor_of
from prismm.cuda.plan import LaunchPlan
from prismm.cuda.residues import fp8_proof
from prismm.errors import ArgumentError, DTypeError, OperandError, ShapeError
from prismm.formats import format_of

if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any

    import torch

    from prismm.core.plan import Plan
    from prismm.core.request import Request
    from prismm.cuda.device import Device
    from prismm.cuda.execute import Queued
    from prismm.cuda.gemm import sum as cuda_gemm
    from prismm.cuda.operands import PreparedParts


@dataclass(frozen=True, eq=False)
class GpuCall:
    """A call after normalisation: everything but where its operands and its result are.

    Attributes:
        left, right: shapes in which the operands are multiplied.
        shape, dtype: of the result.
        names: types of the operands.
        chosen: scheme, engine and blocks.
        problem: what is multiplied.
        device, index: where.
        request: the caller's keywords.
        spans: bytes from each operand's first element to the end of its last, if their matrices go to the kernels as
            they are.
        prepared: parts of prepared operands.
        programs: launches, by all that they depend on besides.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    names: tuple[str, str]
    chosen: LaunchPlan
    problem: Problem
    device: Device
    index: int
    request: Request
    spans: tuple[int, int] | None
    prepared: tuple[PreparedParts | None, PreparedParts | None] = (None, None)
    programs: dict[Hashable, Queued] = field(default_factory=dict)

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan, with its predictions."""
        return cuda_plan.make_plan(self.problem, self.chosen, self.request, self.device, *self.names)

    @functools.cached_property
    def implementation(self) -> Implementation:
        """How the scheme runs."""
        return implementation_of(self.chosen.scheme)

    @functools.cached_property
    def native(self) -> bool:
        """Whether cuBLAS multiplies."""
        return self.chosen.engine == BLAS

    @functools.cached_property
    def one_kernel(self) -> bool:
        """Whether the call is one kernel."""
        return self.implementation.one_kernel(self.chosen.engine)

    @functools.cached_property
    def unread(self) -> int:
        """The address of what calls write and nobody reads."""
        import torch

        return int(workspace.unread(torch.device("cuda", self.index)).data_ptr())

    @functools.cached_property
    def config(self) -> Any:
        """What launches depend on."""
        return self.implementation.launch_config(self.problem, self.device)


def memories_of(a: Any, b: Any, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Memory of prepared parts, for LEFT and RIGHT; nothing where no operand is prepared.

    It outlives what reads it on another stream than the one on which it was made.
    """
    if not (isinstance(a, PreparedOnDevice) or isinstance(b, PreparedOnDevice)):
        return ()
    import torch

    found = []
    for x in (a, b):
        memory = x.memory if isinstance(x, PreparedOnDevice) else None
        if memory is None:
            # A base is known by its place in the list: a side that is not prepared has one, too.
            memory = torch.empty(0, dtype=torch.uint8, device=device)
        elif x.stream != torch._C._cuda_getCurrentRawStream(memory.device.index):
            # So the allocator gives their memory to nobody while this stream reads it.
            for tensor in (memory, x.data):
                tensor.record_stream(torch.cuda.current_stream(memory.device))
        found.append(memory)
    return tuple(found)


def strides_of(out: Any) -> Any:
    """Of a tensor; None for what is none, which is refused later."""
    return out.stride() if hasattr(out, "stride") else None


def request_of(keywords: tuple[Any, ...], a: Any, b: Any) -> Request:
    """The keywords, checked."""
    asked, scheme, reproducible, out_dtype, engine, threads, workspace = keywords
    if workspace is not None:
        raise ArgumentError("workspace= serves products on a CPU; leave it out")
    return check_request(asked, scheme, reproducible, out_dtype, engine, threads, a, b)[0]


def raw_tensor(x: Any, name: str) -> torch.Tensor:
    """The operand as it is."""
    tensor: torch.Tensor = x.data if isinstance(x, PreparedOnDevice) else shared(x, name)
    return tensor


def with_promoted(keywords: tuple[Any, ...], *operands: torch.Tensor) -> tuple[Any, ...]:
    """The keywords with the result's type, where integers have a say in it that nobody hears later."""
    if keywords[3] is not None or not cuda_integers.any_integers(*operands):
        return keywords
    return (*keywords[:3], cuda_integers.promoted(*operands), *keywords[4:])


def real_operands(a: Any, b: Any, keywords: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor, int, tuple[Any, ...]]:
    """Tensors of both, without integers; how many terms stand for each one of the inner dimension; and the keywords,
    which say what the result is where integers would have said it.
    """
    x, y = tensor_of(a, "a"), tensor_of(b, "b")
    raw = raw_tensor(a, "a"), raw_tensor(b, "b")
    if not cuda_integers.any_integers(*raw):
        return x, y, 1, keywords
    keywords = with_promoted(keywords, *raw)
    prepared = isinstance(a, PreparedOnDevice) or isinstance(b, PreparedOnDevice)
    arrays.product_shape(tuple(x.shape), tuple(y.shape))  # which are told as they are
    return *cuda_integers.widened(x, y, prepared), keywords


def normalised(
    a: Any, b: Any, x: torch.Tensor, y: torch.Tensor, request: Request, sum_: cuda_gemm.Sum | None = None,
    terms_per_element: int = 1, symmetric: str | None = None,
) -> GpuCall:  # fmt: skip
    """`normalise_call` of a caller's operands, prepared ones checked; x, y: their tensors."""
    check_sides(a, b)
    left, right = (z.parts if isinstance(z, PreparedOnDevice) else None for z in (a, b))
    call = normalise_call(x, y, request, (left, right), sum_, terms_per_element, symmetric)
    check_prepared(a, b, name_of(call.dtype))
    return call


def normalise_call(
    a: torch.Tensor,
    b: torch.Tensor,
    request: Request,
    prepared: tuple[PreparedParts | None, PreparedParts | None] = (None, None),
    sum_: cuda_gemm.Sum | None = None,
    terms_per_element: int = 1,
    symmetric: str | None = None,
) -> GpuCall:
    """The call with everything checked and chosen.

    Args:
        a, b: the operands as tensors.
        request: the caller's keywords.
        prepared: parts of prepared operands.
        sum_: gemm's.
        terms_per_element, symmetric: see `core.problem.Problem`.
    """
    addend = sum_.addend if sum_ else None
    for name, x in (("b", b), ("c", addend)):
        if x is not None and x.device != a.device:
            raise OperandError(f"a is on {a.device}, {name} is on {x.device}; move them to one device")
    shape = arrays.product_shape(tuple(a.shape), tuple(b.shape))
    dtype = result_dtype([a, b, *([addend] if addend is not None else [])], request.out_dtype)
    left = tuple(a.shape) if a.ndim > 1 else (1, *a.shape)
    right = tuple(b.shape) if b.ndim > 1 else (*b.shape, 1)
    device = device_of(a.device.index)
    estimate_rates(device, a.device.index)
    # Not torch's, which imports sympy: a second of a process's first call.
    batch = tuple(np.broadcast_shapes(left[:-2], right[:-2]))
    if batch and len(right) == 2:
        # A batch of left operands against one matrix is one tall product.
        left, batch = (math.prod(left[:-1]), left[-1]), ()
    problem = Problem(
        m=left[-2], n=right[-1], k=left[-1], batch=batch, result=format_of(numpy_dtype(dtype)), target=request.target,
        reproducible=request.reproducible, one_type=a.dtype == b.dtype == dtype and terms_per_element == 1,
        is_complex=dtype.is_complex, terms_per_element=terms_per_element,
        strided_vector=_is_strided_vector(a, b, left[-2], right[-1]), symmetric=symmetric,
    )  # fmt: skip
    if sum_ is not None:
        sum_.check(dtype, shape)
        problem = dataclasses.replace(
            problem, summed=True, sum_of_values=sum_.of_values(problem), reads_operands=sum_.has_product(problem),
            sum_bounded=sum_.bounded(problem.terms, problem.result),
        )  # fmt: skip
    left_parts, right_parts = prepared
    cut = left_parts.step if left_parts else None, right_parts.step if right_parts else None
    sample = None
    # Prepared parts leave the planner no choice that data could decide.
    if cut == (None, None) and cuda_sample.worth_sampling(problem, a):
        sample = cuda_sample.DataSample(a, b, problem)
    chosen = cuda_plan.choose(problem, request, device, cut, sample)
    by_auto = chosen.engine == FP8 and FP8 not in (request.engine, default_engine())
    if by_auto and not fp8_proof.is_exact(device, a.device.index):
        # Nobody asked for FP8, so the same bits come from INT8.
        device = dataclasses.replace(device, fp8_sum_bits=0)
        chosen = cuda_plan.choose(problem, request, device, cut, sample)
    names = name_of(a.dtype), name_of(b.dtype)
    index = a.device.index
    spans = _spans(a, b, problem, chosen.engine == BLAS)
    return GpuCall(left, right, shape, dtype, names, chosen, problem, device, index, request, spans, prepared)


def foreseen(call: GpuCall, a: torch.Tensor, b: torch.Tensor) -> Plan:
    """The plan of a call with what repairs are expected to add, where a sample of the data can tell; waits for the
    device. a, b: the call's operands.
    """
    plan, problem = call.plan, call.problem
    if problem.goal == "fast" or problem.batch or call.prepared != (None, None) or call.chosen.blocks.tiny:
        return plan
    if not cuda_sample.worth_sampling(problem, a):
        return plan
    rates = rates_of(call.device.name) or usual_rates()
    return with_repairs(plan, call.implementation.expected_repairs(problem, a, b, rates))


def _is_strided_vector(a: torch.Tensor, b: torch.Tensor, m: int, n: int) -> bool:
    """See `Problem.strided_vector`."""
    if n == 1:
        return a.ndim > 1 and a.shape[-1] > 1 and a.stride(-1) != 1
    return m == 1 and b.ndim > 1 and b.shape[-2] > 1 and b.stride(-2) != 1


def target_of(out: Any, call: GpuCall, device: torch.device) -> torch.Tensor:
    """`out`, checked."""
    arrays.refuse_lazy(out)
    tensor = shared(out, "out") if lives_on_gpu(out) else None
    if tensor is None or tensor.device != device:
        raise OperandError(f"out is not on {device}, where the operands are; pass a tensor there")
    if tuple(tensor.shape) != call.shape:
        raise ShapeError(f"out has shape {tuple(tensor.shape)}, the product has shape {call.shape}")
    if tensor.dtype != call.dtype:
        raise DTypeError(f"out has dtype {tensor.dtype}, the product has {call.dtype}; pass out_dtype or another out")
    return tensor


def source_of(a: Any, b: Any) -> Any:
    """The operand of whose kind results are: the left one, unless it alone was prepared."""
    return b if isinstance(a, PreparedOnDevice) else a


def as_caller(result: torch.Tensor, source: Any) -> Any:
    """The result as the kind of array that an operand is."""
    namespace = None if hasattr(source, "is_cuda") else home_of(source)
    # DLPack shares the memory: nothing is copied.
    return result if namespace is None else namespace.from_dlpack(result)


def check_type_survives(call: GpuCall, source: Any, device: torch.device) -> None:
    """`arrays.check_type_survives`, for what `as_caller` would make of the result."""
    if not hasattr(source, "is_cuda"):
        import torch

        arrays.check_type_survives(
            source, torch.empty(1, dtype=call.dtype, device=device), torch.utils.dlpack.from_dlpack
        )


def in_place(x: torch.Tensor, native: bool) -> bool:
    """Whether a matrix, or each one of a batch, is read where it is: rows or columns of neighbouring elements; by
    cuBLAS, if they do not overlap.
    """
    rows, columns = x.shape[-2:]
    steps = x.stride()[-2], x.stride()[-1]
    return 1 in steps and 0 not in steps and not (native and cublas.leading(rows, columns, steps) is None)


def _spans(a: torch.Tensor, b: torch.Tensor, problem: Problem, native: bool) -> tuple[int, int] | None:
    """See `GpuCall`: of two matrices, or of two batches of as many."""
    many = len(problem.batch)
    if many > 1 or not a.ndim == b.ndim == 2 + many or not a.is_complex() == b.is_complex() == problem.is_complex:
        return None
    if many and not a.shape[0] == b.shape[0] == problem.batch[0]:
        return None
    if not min(problem.m, problem.n, problem.k, *problem.batch) or any(
        not in_place(x, native) or 0 in x.stride() for x in (a, b)
    ):
        return None
    return span(a), span(b)
