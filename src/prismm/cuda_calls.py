"""Calls on a GPU: operands that live on a CUDA device are multiplied there, and the result stays there.

The verbs are those of `_matmul`; what differs is where arrays live and that nothing waits: a call queues its kernels on
the current stream and returns. Only ``full_output=True`` reads counts back. The road of a product by residues: split
both operands, multiply the planes of all moduli, join and certify, repair what is marked (`engines.cuda`); of a native
one: cuBLAS, then the entries that are not finite.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prismm import accuracy, cuda_plan, interop
from prismm.accuracy import MAGNITUDE
from prismm.bounds import ConventionalBound, ResidueBound, RoundedBound
from prismm.engines import cuda
from prismm.engines.launch import Launches
from prismm.errors import ArgumentError, DTypeError, EngineError, OperandError, ShapeError
from prismm.formats import format_of
from prismm.interop import lives_on_gpu
from prismm.report import Piece, Report
from prismm.schemes.base import Outcome
from prismm.schemes.native import Native
from prismm.schemes.split import NONFINITE, Scales

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from prismm.calls import Options
    from prismm.planner import Plan


@dataclass(frozen=True, eq=False)
class GpuCall:
    """A call after normalisation: everything but where its operands and its result are.

    left, right: shapes in which the operands are multiplied; tables and constants are on the device.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    names: tuple[str, str]
    choice: cuda_plan.Choice
    need: cuda_plan.Need
    device: cuda.Device
    index: int
    options: Options
    launches: Launches

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan, with its predictions."""
        return cuda_plan.make_plan(self.need, self.choice, self.options, *self.names)

    @property
    def native(self) -> bool:
        """Whether cuBLAS multiplies."""
        return isinstance(self.choice.scheme, Native)

    @functools.cached_property
    def table(self) -> cuda.Tables:
        """What the kernels read."""
        import torch

        return cuda.tables(self.choice.scheme.moduli, torch.device("cuda", self.index))

    @functools.cached_property
    def test(self) -> tuple[int, torch.Tensor]:
        """The join's mode, and its constants on the device."""
        import torch

        mode, kappa, magnitude_kappa = accuracy.join_test(self.options.target, self.need.terms, self.need.result)
        device = torch.device("cuda", self.index)
        return mode, cuda.join_constants(self.choice.scheme.moduli, kappa, magnitude_kappa, device)


_CALLS: dict[Hashable, GpuCall] = {}
"""Calls that were normalised before, by all that the choice depends on."""

_MOST_CALLS = 4096


def matmul(a: Any, b: Any, keywords: tuple[Any, ...], out: Any, full_output: bool) -> Any:
    """`prismm.matmul` of operands on a GPU; arguments, results and errors are its own.

    keywords: accuracy, scheme, reproducible, out_dtype, engine, threads, workspace.

    Raises:
        EngineError: for what the GPU engine does not do yet, with what to pass instead, and where the GPU's memory is
        exhausted.
    """
    import torch

    start = time.perf_counter()
    x, y = _tensor(a, "a"), _tensor(b, "b")
    key = (
        x.dtype, x.shape, x.stride(), x.device, y.dtype, y.shape, y.stride(), y.device, out is None,
        None if out is None else _strides(out), cuda_plan.settings(), keywords, *map(type, keywords),
    )  # fmt: skip
    try:
        call = _CALLS.get(key)
    except TypeError:  # keywords that cannot be hashed are no valid ones
        call = None
    if call is None:
        call = normalise_call(x, y, _options(keywords, a, b))
        if len(_CALLS) >= _MOST_CALLS:
            _CALLS.clear()
        _CALLS[key] = call
    if full_output and torch.cuda.is_current_stream_capturing():
        raise ArgumentError("full_output=True reads counts back, which a CUDA graph cannot capture; leave it out")
    result = torch.empty(call.shape, dtype=call.dtype, device=x.device) if out is None else _target(out, call, x.device)
    with _on(call) as launches, _memory_errors(call):
        made = list(_multiply(call, launches, x, y, result))
    answer = _as_caller(result, a) if out is None else out
    return (answer, _report(call, made, x.ndim > 1, y.ndim > 1, start)) if full_output else answer


def _strides(out: Any) -> Any:
    return out.stride() if hasattr(out, "stride") else None


def _options(keywords: tuple[Any, ...], a: Any, b: Any) -> Options:
    from prismm.calls import check_options

    asked, scheme, reproducible, out_dtype, engine, threads, workspace = keywords
    if workspace is not None:
        raise ArgumentError("workspace= serves products on a CPU; leave it out")
    return check_options(asked, scheme, reproducible, out_dtype, engine, threads, a, b)[0]


@contextlib.contextmanager
def _on(call: GpuCall) -> Iterator[Launches]:
    """Launches on the current stream of the operands' device."""
    import torch

    if torch.cuda.current_device() == call.index:
        yield call.launches.on(torch.cuda.current_stream().cuda_stream)
        return
    with torch.cuda.device(call.index):
        yield call.launches.on(torch.cuda.current_stream().cuda_stream)


def explain(a: Any, b: Any, keywords: tuple[Any, ...]) -> Plan:
    """`prismm.explain` of operands on a GPU."""
    return normalise_call(_tensor(a, "a"), _tensor(b, "b"), _options((*keywords, None), a, b)).plan


def normalise_call(a: torch.Tensor, b: torch.Tensor, options: Options) -> GpuCall:
    """The call with everything checked and chosen; nothing is read from the device."""
    import torch

    if a.device != b.device:
        raise OperandError(f"a is on {a.device}, b is on {b.device}; move them to one device")
    shape = interop.product_shape(tuple(a.shape), tuple(b.shape))
    dtype = _result_dtype(a, b, options.out_dtype)
    left = tuple(a.shape) if a.ndim > 1 else (1, *a.shape)
    right = tuple(b.shape) if b.ndim > 1 else (*b.shape, 1)
    device = cuda.device_of(a.device.index)
    batch = tuple(torch.broadcast_shapes(left[:-2], right[:-2]))
    if batch and len(right) == 2:
        # A batch of left operands against one matrix is one tall product.
        left, batch = (math.prod(left[:-1]), left[-1]), ()
    need = cuda_plan.Need(
        m=left[-2],
        n=right[-1],
        k=left[-1],
        batch=batch,
        result=format_of(_numpy_name(dtype)),
        target=options.target,
        reproducible=options.reproducible,
        native=a.dtype == b.dtype == dtype,
        is_complex=dtype.is_complex,
    )
    choice = cuda_plan.choose(need, options, device)
    names = _name(a.dtype), _name(b.dtype)
    index = a.device.index
    return GpuCall(left, right, shape, dtype, names, choice, need, device, index, options, Launches())


def _tensor(x: Any, name: str) -> torch.Tensor:
    import torch

    if not lives_on_gpu(x):
        raise OperandError(
            f"one operand is on a GPU, {name} is a {type(x).__name__} that is not; move it there (torch.as_tensor("
            f"{name}, device='cuda')), or the other one to the CPU"
        )
    try:
        tensor = x if isinstance(x, torch.Tensor) else torch.utils.dlpack.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise OperandError(f"{name} cannot be read through __dlpack__ ({error}); pass a torch tensor") from error
    interop.refuse_gradient(tensor, name)
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        raise OperandError(f"{name} has layout {tensor.layout}; pass {name}.to_dense()")
    if tensor.dtype in (torch.float64, torch.float32):
        return tensor
    if tensor.dtype in (torch.complex128, torch.complex64):
        return tensor.resolve_conj()
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.float()
    if tensor.dtype in (torch.int8, torch.int16, torch.int32, torch.uint8):
        return tensor.double()
    raise DTypeError(
        f"{name} has dtype {tensor.dtype}; on a GPU prismm multiplies float64, float32, complex128, complex64, "
        f"float16, bfloat16 and integers of up to 32 bits: convert it, or pass {name}.cpu()"
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _numpy_name(dtype: torch.dtype) -> Any:
    import numpy as np

    return np.dtype(_name(dtype))


def _result_dtype(a: torch.Tensor, b: torch.Tensor, out_dtype: Any) -> torch.dtype:
    import numpy as np
    import torch

    empty = [np.empty(0, _numpy_name(x.dtype)) for x in (a, b)]
    wanted = interop.result_dtype(empty, out_dtype)
    found: torch.dtype = getattr(torch, wanted.name)
    return found


def _target(out: Any, call: GpuCall, device: torch.device) -> torch.Tensor:
    """`out`, checked."""
    tensor = _tensor(out, "out") if lives_on_gpu(out) else None
    if tensor is None or tensor.device != device:
        raise OperandError(f"out is not on {device}, where the operands are; pass a tensor there")
    if tuple(tensor.shape) != call.shape:
        raise ShapeError(f"out has shape {tuple(tensor.shape)}, the product has shape {call.shape}")
    if tensor.dtype != call.dtype:
        raise DTypeError(f"out has dtype {tensor.dtype}, the product has {call.dtype}; pass out_dtype or another out")
    return tensor


@contextlib.contextmanager
def _memory_errors(call: GpuCall) -> Iterator[None]:
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise EngineError(
            f"the GPU has too little free memory for this product ({call.plan.workspace_bytes >> 20} MiB of scratch "
            f"planned): free some (torch.cuda.empty_cache()), or multiply in blocks of rows"
        ) from error


def _as_caller(result: torch.Tensor, source: Any) -> Any:
    namespace = getattr(source, "__array_namespace__", None)
    return result if namespace is None or hasattr(source, "is_cuda") else namespace().from_dlpack(result)


@dataclass
class Made:
    """One two-dimensional product that was queued: its operands and result, and what a report reads back."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    counts: torch.Tensor
    statistics: tuple[list[torch.Tensor], list[torch.Tensor]] | None


def _multiply(
    call: GpuCall, launches: Launches, a: torch.Tensor, b: torch.Tensor, result: torch.Tensor
) -> Iterator[Made]:  # fmt: skip
    """Queue the two-dimensional products of a call."""
    import torch

    need = call.need
    if result.numel() == 0:
        return
    if need.k == 0:
        result.zero_()
        return
    a, b = a.reshape(call.left), b.reshape(call.right)
    if call.dtype.is_complex:
        a, b = (x if x.is_complex() else x.to(torch.complex128) for x in (a, b))
    overlaps = any(_share_memory(result, x) for x in (a, b))
    whole = result if result.is_contiguous() and not overlaps else torch.empty_like(result).contiguous()
    view = whole.reshape(*need.batch, need.m, need.n)
    if need.batch:
        a, b = a.expand(*need.batch, need.m, need.k), b.expand(*need.batch, need.k, need.n)
    if call.native:
        torch.matmul(a, b, out=view)
    one = _repaired_native if call.native else _by_residues
    for index in range(math.prod(need.batch)):
        at = _unravel(index, need.batch)
        yield one(a[at], b[at], view[at], call, launches) if at else one(a, b, view, call, launches)
    if whole is not result:
        result.copy_(whole)


def _unravel(index: int, batch: tuple[int, ...]) -> tuple[int, ...]:
    at = []
    for extent in reversed(batch):
        at.append(index % extent)
        index //= extent
    return tuple(reversed(at))


def _share_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def _repaired_native(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, call: GpuCall, launches: Launches
) -> Made:  # fmt: skip
    """Law 4 for a native product: entries that are not finite are what the exact sum gives."""
    import torch

    counts = torch.zeros(4, dtype=torch.int64, device=a.device)
    marks = cuda.mark_nonfinite(out, launches)
    cuda.repair_marked(a, b, out, marks, counts, call.device, launches)
    return Made(a, b, out, counts, None)


def _by_residues(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, call: GpuCall, launches: Launches
) -> Made:  # fmt: skip
    """Split, multiply, join, repair; in blocks of rows and columns where the scratch memory is bounded."""
    import torch

    table, device = call.table, call.device
    mode, constants = call.test
    levels = mode == MAGNITUDE
    counts = torch.zeros(4, dtype=torch.int64, device=a.device)
    rows, columns = call.choice.rows, call.choice.columns
    statistics: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for j in range(0, out.shape[1], columns):
        some_b = b[:, j : j + columns]
        right = cuda.split_vectors(some_b.T, table, device, launches, left=False, levels=levels)
        statistics[1].append(right.statistics)
        for i in range(0, out.shape[0], rows):
            some_a, block = a[i : i + rows], out[i : i + rows, j : j + columns]
            left = cuda.split_vectors(some_a, table, device, launches, left=True, levels=levels)
            if j == 0:
                statistics[0].append(left.statistics)
            digits = cuda.multiply_planes(left, right, table, device, launches)
            marks = cuda.join_digits(digits, block, left, right, table, mode, constants, launches)
            joined = digits, left, right, table, constants
            cuda.repair_marked(some_a, some_b, block, marks, counts, device, launches, mode, joined)
    return Made(a, b, out, counts, statistics)


class _OnDevice:
    """A matrix on a GPU whose selected entries come to the CPU when a report asks for them."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.shape = tuple(tensor.shape)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        found: NDArray[Any] = self.tensor[index].cpu().numpy()
        return found


def _report(call: GpuCall, made: list[Made], left_kept: bool, right_kept: bool, start: float) -> Report:
    total = Outcome(products=call.plan.products)
    pieces = []
    target = call.options.target
    for one in made:
        special, exact, magnitude, _ = one.counts.tolist()
        outcome = Outcome()
        outcome.count("special", special)
        outcome.count("exact", exact)
        outcome.count("magnitude", magnitude)
        road = "a priori" if call.native else "value" if target is None or target.kind == "fast" else "certified"
        outcome.count(road, one.out.numel() * (1 + one.out.is_complex()) - special - exact - magnitude)
        outcome.bound = _bound(call, one)
        total.merge(outcome)
        pieces.append(Piece(_OnDevice(one.out), outcome))  # type: ignore[arg-type]
    total.time("total", time.perf_counter() - start)
    return Report(
        plan=call.plan, outcome=total, shape=call.shape, pieces=pieces, rows_kept=left_kept, columns_kept=right_kept,
        repeated=math.prod(call.shape[:-2]),
    )  # fmt: skip


def _bound(call: GpuCall, made: Made) -> Any:
    import torch

    target, result = call.options.target, call.need.result
    if target is not None and target.kind == "correctly-rounded":
        return RoundedBound(result)
    k = call.need.terms
    if made.statistics is None:
        left, right = _OnDevice(made.a), _OnDevice(made.b)
        return ConventionalBound(result, left, right, k, result.unit_roundoff)  # type: ignore[arg-type]
    q = call.table.fraction_bits(k)
    rows, columns = (_scales(torch.cat(pieces, 1), q) for pieces in made.statistics)
    return ResidueBound(result, rows, columns, k)


def _scales(statistics: torch.Tensor, q: int) -> Scales:
    """`Scales` of vectors from the integers that the kernels keep of them, rounded up as `kernels.gpu.join` does."""
    import numpy as np

    host = statistics.cpu().numpy()
    largest, norm2, norm1, residual, shift = host[:5]
    finite = largest < 0x7FF0000000000000
    e = np.where(finite, np.frexp(np.where(finite, largest, 0).view(np.float64))[1], NONFINITE).astype(np.int64)
    # frexp gives |x| < 2^e with |x| >= 2^(e-1), as the kernels do; 0 for zero.
    scale = np.ldexp(1.0, np.where(finite, shift - q + e, 0))
    slack = 1.0 + 2.0**-28
    terms = np.stack([
        0.5 * norm1 * scale,
        np.sqrt(residual.astype(np.float64)) * 2.0**-10 * slack,
        np.sqrt(norm2.astype(np.float64)) * scale * slack,
        (residual > 0).astype(np.float64),
    ])  # fmt: skip
    return Scales(shift.copy(), e, terms, np.ascontiguousarray(host[5:].T))
