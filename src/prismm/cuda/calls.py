"""Calls on a GPU: operands that live on a CUDA device are multiplied there, and the result stays there.

The verbs are those of `_matmul`; what differs is where arrays live and that nothing waits: a call queues its kernels on
the current stream and returns. Only ``full_output=True`` reads counts back. The path of a product by residues: split
both operands, multiply the planes of all moduli, join and certify, repair what is open (`cuda.residues.launches`); of
a native one: cuBLAS, then the entries that are not finite. A batch goes through the same launches.

What depends on shapes, strides and arguments alone is worked out once and kept: the choice, and the program of
launches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prismm.core import accuracy
from prismm.core import arrays as interop
from prismm.core.accuracy import MAGNITUDE, ROUNDING
from prismm.core.arrays import lives_on_gpu
from prismm.core.bounds import ConventionalBound, ResidueBound, RoundedBound
from prismm.core.outcome import Outcome
from prismm.core.problem import Problem
from prismm.core.report import Piece, Report
from prismm.core.request import check_prepared, check_request, check_sides
from prismm.core.scales import NONFINITE, Scales
from prismm.cuda import integers as cuda_integers
from prismm.cuda import plan as cuda_plan
from prismm.cuda import replay as cuda_repeats
from prismm.cuda import sample as cuda_look
from prismm.cuda.conventional import launches as cuda_direct
from prismm.cuda.conventional import tiny as cuda_tiny
from prismm.cuda.gemm import sum as cuda_gemm
from prismm.cuda.implementations import module_of
from prismm.cuda.launch import cublas
from prismm.cuda.launch.program import ADDEND, LEFT, OUT, SCRATCH, A, B, Place, Program
from prismm.cuda.multiword import launches as cuda_words
from prismm.cuda.operands import (
    Kept,
    PreparedOnDevice,
    meet,
    name_of,
    numpy_dtype,
    overlap,
    result_dtype,
    shared,
    span,
    tensor_of,
    vectors_of,
)
from prismm.cuda.residues import launches as cuda
from prismm.cuda.residues import strassen as cuda_quarters
from prismm.cuda.slices import count as cuda_slice_count
from prismm.errors import ArgumentError, DTypeError, EngineError, OperandError, ShapeError
from prismm.formats import format_of
from prismm.schemes.native import Native
from prismm.schemes.residues import Residues
from prismm.schemes.slices import Slices

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from prismm.core.plan import Plan
    from prismm.core.request import Request


@dataclass(frozen=True, eq=False)
class GpuCall:
    """A call after normalisation: everything but where its operands and its result are.

    left, right: shapes in which the operands are multiplied; tables and constants are on the device. spans: bytes from
    each operand's first element to the end of its last, if their matrices go to the kernels as they are. kept: of the
    operands that were prepared.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    names: tuple[str, str]
    choice: cuda_plan.Choice
    problem: Problem
    device: cuda.Device
    index: int
    request: Request
    spans: tuple[int, int] | None
    kept: tuple[Kept | None, Kept | None] = (None, None)
    programs: dict[Hashable, Queued] = field(default_factory=dict)

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan, with its predictions."""
        return cuda_plan.make_plan(self.problem, self.choice, self.request, self.device.name, *self.names)

    @functools.cached_property
    def native(self) -> bool:
        """Whether cuBLAS multiplies."""
        return self.choice.engine == cuda.BLAS

    @functools.cached_property
    def direct(self) -> bool:
        """Whether a native product is one kernel."""
        return not self.native and isinstance(self.choice.scheme, Native)

    @functools.cached_property
    def unread(self) -> int:
        """The address of what calls write and nobody reads."""
        import torch

        return _unread(torch.device("cuda", self.index)).data_ptr()

    @functools.cached_property
    def long(self) -> bool:
        """Whether the GPU works long enough on it that the host may queue it in two halves meanwhile."""
        return (
            not self.native
            and math.prod((self.problem.m, self.problem.n, self.problem.k, *self.problem.batch)) >= _LONG
        )

    @functools.cached_property
    def config(self) -> Any:
        """What is launched for a scheme that has a module of its own; None for Native and Residues."""
        scheme = self.choice.scheme
        if isinstance(scheme, (Native, Residues)):
            return None
        return module_of(scheme).launch_config(scheme, self.problem, self.device)

    @functools.cached_property
    def table(self) -> cuda.Tables:
        """What the kernels read."""
        import torch

        return cuda.tables(self.choice.scheme.moduli, torch.device("cuda", self.index))

    @functools.cached_property
    def test(self) -> cuda.Test:
        """What the join asks of an entry."""
        return cuda_plan.test_of(self.problem)


@dataclass(frozen=True, eq=False)
class Queued:
    """A call's program, and where in its scratch memory a report looks: counts, and the statistics of the operands'
    vectors: for `Choice.batches` matrices of a batch at a time those of A and of B, in blocks. unread: whether nothing
    looks at it, so that all calls may share it. products: where AB goes that gemm's sum is made from.
    """

    program: Program
    counts: Place
    statistics: list[tuple[list[Place], list[Place]]] | None
    unread: bool = False
    products: Place | None = None


_CALLS: dict[Hashable, GpuCall] = {}
"""Calls that were normalised before, by all that the choice depends on."""

_MOST_CALLS = 4096
_LONG = 1 << 31
"""Products of elements from which on a call's first launches are queued before its result is allocated."""


@dataclass(eq=False)
class _Plain:
    """A call of plain tensors that went to the kernels as they are: the settings of cuBLAS and torch under which it was
    chosen, and whether its result is a tensor like A. changing: whether a call that was begun had a flag or a setting
    that is another, so that these are asked for before later ones begin.
    """

    call: GpuCall
    settings: tuple[str | None, ...]
    like_a: bool
    changing: bool = False

    def unchanged(self) -> bool:
        """Whether those settings hold, where they matter: what is one kernel is none of cuBLAS's or torch's."""
        if self.call.direct:
            return cuda_plan.default_engine() == self.settings[-1]
        return cuda_plan.settings(self.call.problem.result.precision == 24) == self.settings

    def result(self, a: torch.Tensor) -> torch.Tensor:
        """Memory for a result that is no caller's."""
        import torch

        return (
            torch.empty_like(a) if self.like_a else torch.empty(self.call.shape, dtype=self.call.dtype, device=a.device)
        )


_AT_ONCE: dict[Hashable, _Plain] = {}
"""By all that a call depends on, but for flags of its tensors and settings."""


def known() -> list[GpuCall]:
    """The calls that are kept."""
    return list(_CALLS.values())


def forget() -> None:
    """Keep none of them."""
    _CALLS.clear()
    _AT_ONCE.clear()
    cuda_repeats.forget()


def _plain_key(a: torch.Tensor, b: torch.Tensor, keywords: tuple[Any, ...], out: torch.Tensor | None) -> Hashable:
    """All that a call of plain tensors depends on, but for settings and flags of the tensors."""
    own = None if out is None else (type(out), out.dtype, out.shape, out.stride(), out.get_device())
    return (
        a.dtype, a.shape, a.stride(), a.get_device(), b.dtype, b.shape, b.stride(), b.get_device(), own, keywords,
        type(keywords[0]), type(keywords[2]), type(keywords[5]),
    )  # fmt: skip


def _flagged(call: GpuCall, *tensors: torch.Tensor | None) -> bool:
    """Whether one of these tensors is not what its memory holds, or wants a derivative."""
    is_complex = call.problem.is_complex
    for x in tensors:  # noqa: SIM110 - a generator takes longer than what it asks for
        if x is not None and (x.requires_grad or x.is_neg() or (is_complex and x.is_conj())):
            return True
    return False


def at_once(a: Any, b: Any, keywords: tuple[Any, ...], out: Any) -> torch.Tensor | None:
    """`matmul` of tensors like those of an earlier call, without its ceremony: a GPU that waits for the host loses the
    microseconds that this takes, so what may be asked while it works is asked then. None where anything is out of the
    ordinary.
    """
    import torch

    known = cuda_repeats.find(a, b, keywords, out)
    try:
        if known is not None and (result := known.run(a, b, out)) is not None:
            return result
    except torch.OutOfMemoryError:  # `matmul` says what to do
        return None
    tensor = torch.Tensor
    if (
        not _AT_ONCE
        or type(a) is not tensor
        or type(b) is not tensor
        or type(keywords[0]) not in cuda_repeats.PLAIN_ACCURACY
    ):
        return None
    try:
        found = _AT_ONCE.get(_plain_key(a, b, keywords, out))
    except (TypeError, RuntimeError, AttributeError):  # what cannot be hashed, or has no strides
        return None
    if found is None or torch._C._cuda_getDevice() != found.call.index:
        return None
    try:
        result = _like_before(found, a, b, out, halves=known is None)
    except torch.OutOfMemoryError:
        return None
    if result is not None and known is None:
        queued = found.call.programs[False, a.data_ptr() % 16, b.data_ptr() % 16, result.data_ptr() % 16]
        unread = found.call.unread if queued.unread else 0
        cuda_repeats.remember(a, b, keywords, out, found.call.index, queued.program, found.result, unread)
    return result


def _like_before(
    found: _Plain, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, *, halves: bool
) -> torch.Tensor | None:
    """`at_once` of a call like that one. halves: whether a long one may be queued in two; as a whole it is replayed
    some time.
    """
    if found.call.direct:
        return _in_one(found, a, b, out)
    if halves and found.call.long and not found.changing:
        result = _in_halves(found, a, b, out)
        if result is not None:
            return result
    if _flagged(found.call, a, b, out) or (out is not None and not found.unchanged()):
        return None
    result = found.result(a) if out is None else out
    if not _multiply_at_once(found.call, a, b, result, (), owned=out is not None):
        return None
    # What other settings have made is thrown away.
    return result if out is not None or found.unchanged() else None


def _remember(
    call: GpuCall, operands: tuple[Any, Any], tensors: tuple[torch.Tensor, torch.Tensor], keywords: tuple[Any, ...],
    out: Any,
) -> None:  # fmt: skip
    """That `at_once` may take a call that was checked, if its operands went to the kernels as they are, unconverted."""
    import torch

    if call.spans is None or any(type(x) is not torch.Tensor for x in (*operands, *([] if out is None else [out]))):
        return
    if any(x.dtype != y.dtype or x.data_ptr() != y.data_ptr() for x, y in zip(operands, tensors, strict=True)):
        return
    if len(_AT_ONCE) >= _MOST_CALLS:
        _AT_ONCE.clear()
    a = tensors[0]
    like_a = a.is_contiguous() and a.dtype == call.dtype and tuple(a.shape) == tuple(call.shape)
    settings = cuda_plan.settings(call.problem.result.precision == 24)
    _AT_ONCE[_plain_key(*operands, keywords, out)] = _Plain(call, settings, like_a)


def _remember_prepared(
    call: GpuCall, operands: tuple[Any, Any], tensors: tuple[torch.Tensor, torch.Tensor], keywords: tuple[Any, ...],
    out: Any, result: torch.Tensor, memories: tuple[torch.Tensor, ...],
) -> None:  # fmt: skip
    """That a call with prepared operands may be repeated, if what else it takes are plain tensors."""
    import torch

    for x, y in zip(operands, tensors, strict=True):
        if type(x) is not PreparedOnDevice and (type(x) is not torch.Tensor or x.data_ptr() != y.data_ptr()):
            return
    if _flagged(call, *tensors, out) or any(x.dtype != call.dtype for x in tensors):
        return
    if (out is not None and type(out) is not torch.Tensor) or cuda_repeats.find(*operands, keywords, out) is not None:
        return
    a, b = tensors
    plain = _Plain(call, (), like_a=a.is_contiguous() and tuple(a.shape) == tuple(call.shape))
    queued = call.programs[False, a.data_ptr() % 16, b.data_ptr() % 16, result.data_ptr() % 16]
    if not queued.unread:
        cuda_repeats.remember(*operands, keywords, out, call.index, queued.program, plain.result, 0, memories)


def matmul(
    a: Any, b: Any, keywords: tuple[Any, ...], out: Any, full_output: bool, sum_: cuda_gemm.Sum | None = None
) -> Any:
    """`prismm.matmul` of operands on a GPU, or `prismm.gemm` where there is a sum; arguments, results and errors are
    its own.

    keywords: accuracy, scheme, reproducible, out_dtype, engine, threads, workspace.

    Raises:
        EngineError: for what the GPU engine does not do yet, with what to pass instead, and where the GPU's memory is
        exhausted.
    """
    import torch

    try:
        return _matmul(a, b, keywords, out, full_output, sum_)
    except torch.OutOfMemoryError as error:
        raise EngineError(
            "the GPU has too little free memory for this product: free some (torch.cuda.empty_cache()), or multiply in "
            f"blocks of rows ({error})"
        ) from error


def _matmul(a: Any, b: Any, keywords: tuple[Any, ...], out: Any, full_output: bool, sum_: cuda_gemm.Sum | None) -> Any:
    """`matmul`, but for errors of memory."""
    import torch

    start = time.perf_counter()
    x, y, wider, keywords = _real_operands(a, b, keywords)
    if type(keywords[0]) not in cuda_repeats.PLAIN_ACCURACY:  # it may change, or not be hashable
        keywords = (accuracy.parse_target(keywords[0]), *keywords[1:])
    if cuda_slice_count.is_estimated(keywords[1]):
        # What is asked is checked before the data are read.
        checked = _normalised(a, b, x, y, _options(keywords, a, b), sum_, wider)
        if out is not None:
            _target(out, checked, x.device)
        keywords = (keywords[0], cuda_slice_count.settled(keywords[1], x, y), *keywords[2:])
    memories = _memories(a, b, x.device)
    key = (
        x.dtype, x.shape, x.stride(), x.device, y.dtype, y.shape, y.stride(), y.device, out is None,
        None if out is None else _strides(out), cuda_plan.settings(), keywords, *map(type, keywords),
        *(z.key if isinstance(z, PreparedOnDevice) else None for z in (a, b)),
        sum_ and sum_.key(x.shape[-1] if x.ndim else 0), wider,
    )  # fmt: skip
    try:
        call = _CALLS.get(key)
    except TypeError:  # keywords that cannot be hashed are no valid ones
        call = None
    if call is None:
        call = _normalised(a, b, x, y, _options(keywords, a, b), sum_, wider)
        if len(_CALLS) >= _MOST_CALLS:
            _CALLS.clear()
        _CALLS[key] = call
    if full_output and torch.cuda.is_current_stream_capturing():
        raise ArgumentError("full_output=True reads counts back, which a CUDA graph cannot capture; leave it out")
    _check_kept(call, a, x.device)
    result = torch.empty(call.shape, dtype=call.dtype, device=x.device) if out is None else _target(out, call, x.device)
    if wider > 1 and not all(map(cuda_integers.alike_in_size, (raw := (_raw(a, "a"), _raw(b, "b"))))):
        report = _each_alone(call, *raw, keywords, result, full_output, sum_, start)
        answer = _as_caller(result, a) if out is None else out
        return (answer, report) if full_output else answer
    made = None
    if torch.cuda.current_device() != call.index:
        with torch.cuda.device(call.index):
            made = _multiply(call, x, y, result, memories, full_output, sum_)
    elif (
        sum_
        or full_output
        or not (out is None or result.is_contiguous())
        or not _multiply_at_once(call, x, y, result, memories, owned=out is not None)
    ):
        made = _multiply(call, x, y, result, memories, full_output, sum_)
    elif memories:
        _remember_prepared(call, (a, b), (x, y), keywords, out, result, memories)
    else:
        _remember(call, (a, b), (x, y), keywords, out)
    answer = _as_caller(result, a) if out is None else out
    return (answer, _report(call, made, x.ndim > 1, y.ndim > 1, start, sum_)) if full_output else answer


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
        made = _matmul(x, y, keywords, result[at], full_output, mine)
        if full_output:
            total.merge(made[1].outcome)
            pieces += made[1].pieces
    out.copy_(result)  # which may overlap the operands
    total.time("total", time.perf_counter() - start)
    return Report(
        plan=call.plan, outcome=total, shape=call.shape, pieces=pieces, rows_kept=a.ndim > 1, columns_kept=b.ndim > 1,
        repeated=math.prod(batch),
    )  # fmt: skip


def gemm(
    a: Any, b: Any, c: Any, alpha: complex, beta: complex, trans_a: str, trans_b: str, keywords: tuple[Any, ...],
    out: Any, full_output: bool,
) -> Any:  # fmt: skip
    """`prismm.gemm` of operands on a GPU."""
    a, b = cuda_gemm.transposed(a, trans_a, "trans_a"), cuda_gemm.transposed(b, trans_b, "trans_b")
    if alpha == 1 and beta == 0:
        return matmul(a, b, keywords, out, full_output)
    addend = None
    if beta != 0:
        addend = cuda_integers.exact(tensor_of(c, "c"), "c", "; pass c.double() if rounding them is meant")
        keywords = _with_promoted(keywords, _raw(a, "a"), _raw(b, "b"), shared(c, "c"))
    return matmul(a, b, keywords, out, full_output, cuda_gemm.Sum(alpha, beta, addend))


def _memories(a: Any, b: Any, device: torch.device) -> tuple[torch.Tensor, ...]:
    """What was kept of prepared operands, for LEFT and RIGHT; nothing where none is one. It outlives what reads it on
    another stream than the one on which it was made.
    """
    if not (isinstance(a, PreparedOnDevice) or isinstance(b, PreparedOnDevice)):
        return ()
    import torch

    found = []
    for x in (a, b):
        memory = x.memory if isinstance(x, PreparedOnDevice) else None
        if memory is None:
            memory = torch.empty(0, dtype=torch.uint8, device=device)
        elif x.stream != torch._C._cuda_getCurrentRawStream(memory.device.index):
            for tensor in (memory, x.data):
                tensor.record_stream(torch.cuda.current_stream(memory.device))
        found.append(memory)
    return tuple(found)


def _strides(out: Any) -> Any:
    return out.stride() if hasattr(out, "stride") else None


def _options(keywords: tuple[Any, ...], a: Any, b: Any) -> Request:
    asked, scheme, reproducible, out_dtype, engine, threads, workspace = keywords
    if workspace is not None:
        raise ArgumentError("workspace= serves products on a CPU; leave it out")
    return check_request(asked, scheme, reproducible, out_dtype, engine, threads, a, b)[0]


def explain(a: Any, b: Any, keywords: tuple[Any, ...]) -> Plan:
    """`prismm.explain` of operands on a GPU."""
    x, y, wider, keywords = _real_operands(a, b, (*keywords, None))
    call = _normalised(a, b, x, y, _options(keywords, a, b), wider=wider)
    _check_kept(call, a, x.device)
    return call.plan


def _raw(x: Any, name: str) -> torch.Tensor:
    """The operand as it is."""
    tensor: torch.Tensor = x.data if isinstance(x, PreparedOnDevice) else shared(x, name)
    return tensor


def _with_promoted(keywords: tuple[Any, ...], *operands: torch.Tensor) -> tuple[Any, ...]:
    """The keywords with the result's type, where integers have a say in it that nobody hears later."""
    if keywords[3] is not None or not cuda_integers.any_integers(*operands):
        return keywords
    return (*keywords[:3], cuda_integers.promoted(*operands), *keywords[4:])


def _real_operands(
    a: Any, b: Any, keywords: tuple[Any, ...]
) -> tuple[torch.Tensor, torch.Tensor, int, tuple[Any, ...]]:
    """Tensors of both, without integers; how many terms stand for each one of the inner dimension; and the keywords,
    which say what the result is where integers would have said it.
    """
    x, y = tensor_of(a, "a"), tensor_of(b, "b")
    raw = _raw(a, "a"), _raw(b, "b")
    if not cuda_integers.any_integers(*raw):
        return x, y, 1, keywords
    keywords = _with_promoted(keywords, *raw)
    prepared = isinstance(a, PreparedOnDevice) or isinstance(b, PreparedOnDevice)
    interop.product_shape(tuple(x.shape), tuple(y.shape))  # which are told as they are
    return *cuda_integers.widened(x, y, prepared), keywords


def _normalised(
    a: Any, b: Any, x: torch.Tensor, y: torch.Tensor, request: Request, sum_: cuda_gemm.Sum | None = None,
    wider: int = 1,
) -> GpuCall:  # fmt: skip
    """`normalise_call` of a caller's operands, prepared ones checked; x, y: their tensors."""
    check_sides(a, b)
    left, right = (z.kept if isinstance(z, PreparedOnDevice) else None for z in (a, b))
    call = normalise_call(x, y, request, (left, right), sum_, wider)
    check_prepared(a, b, name_of(call.dtype))
    return call


def normalise_call(
    a: torch.Tensor, b: torch.Tensor, request: Request, kept: tuple[Kept | None, Kept | None] = (None, None),
    sum_: cuda_gemm.Sum | None = None, wider: int = 1,
) -> GpuCall:  # fmt: skip
    """The call with everything checked and chosen; nothing is read from the device. wider: see `cuda.plan.Problem`."""
    import torch

    addend = sum_.addend if sum_ else None
    for name, x in (("b", b), ("c", addend)):
        if x is not None and x.device != a.device:
            raise OperandError(f"a is on {a.device}, {name} is on {x.device}; move them to one device")
    shape = interop.product_shape(tuple(a.shape), tuple(b.shape))
    dtype = result_dtype([a, b, *([addend] if addend is not None else [])], request.out_dtype)
    left = tuple(a.shape) if a.ndim > 1 else (1, *a.shape)
    right = tuple(b.shape) if b.ndim > 1 else (*b.shape, 1)
    device = cuda.device_of(a.device.index)
    batch = tuple(torch.broadcast_shapes(left[:-2], right[:-2]))
    if batch and len(right) == 2:
        # A batch of left operands against one matrix is one tall product.
        left, batch = (math.prod(left[:-1]), left[-1]), ()
    problem = Problem(
        m=left[-2],
        n=right[-1],
        k=left[-1],
        batch=batch,
        result=format_of(numpy_dtype(dtype)),
        target=request.target,
        reproducible=request.reproducible,
        one_type=a.dtype == b.dtype == dtype and wider == 1,
        is_complex=dtype.is_complex,
        terms_per_element=wider,
        strided_vector=_apart(a, b, left[-2], right[-1]),
    )
    if sum_ is not None:
        sum_.check(dtype, shape)
        problem = dataclasses.replace(
            problem, summed=True, sum_of_values=sum_.of_values(problem), reads_operands=sum_.has_product(problem),
            sum_bounded=sum_.bounded(problem.terms, problem.result),
        )  # fmt: skip
    left_kept, right_kept = kept
    steps = left_kept.step if left_kept else None, right_kept.step if right_kept else None
    look = None
    if steps == (None, None) and cuda_look.worth_a_look(problem, a):
        look = cuda_look.Look(a, b, problem)
    choice = cuda_plan.choose(problem, request, device, steps, look)
    names = name_of(a.dtype), name_of(b.dtype)
    index = a.device.index
    spans = _spans(a, b, problem, choice.engine == cuda.BLAS)
    return GpuCall(left, right, shape, dtype, names, choice, problem, device, index, request, spans, kept)


def _apart(a: torch.Tensor, b: torch.Tensor, m: int, n: int) -> bool:
    """See `cuda.plan.Problem`."""
    if n == 1:
        return a.ndim > 1 and a.shape[-1] > 1 and a.stride(-1) != 1
    return m == 1 and b.ndim > 1 and b.shape[-2] > 1 and b.stride(-2) != 1


def _target(out: Any, call: GpuCall, device: torch.device) -> torch.Tensor:
    """`out`, checked."""
    interop.refuse_lazy(out)
    tensor = shared(out, "out") if lives_on_gpu(out) else None
    if tensor is None or tensor.device != device:
        raise OperandError(f"out is not on {device}, where the operands are; pass a tensor there")
    if tuple(tensor.shape) != call.shape:
        raise ShapeError(f"out has shape {tuple(tensor.shape)}, the product has shape {call.shape}")
    if tensor.dtype != call.dtype:
        raise DTypeError(f"out has dtype {tensor.dtype}, the product has {call.dtype}; pass out_dtype or another out")
    return tensor


def _as_caller(result: torch.Tensor, source: Any) -> Any:
    namespace = None if hasattr(source, "is_cuda") else interop.namespace_of(source)
    return result if namespace is None else namespace.from_dlpack(result)


def _check_kept(call: GpuCall, source: Any, device: torch.device) -> None:
    """`interop.check_kept`, for what `_as_caller` would make of the result."""
    if not hasattr(source, "is_cuda"):
        import torch

        interop.check_kept(source, torch.empty(1, dtype=call.dtype, device=device), torch.utils.dlpack.from_dlpack)


@dataclass
class Made:
    """What was queued: the product's operands and result, (batch, ·, ·) each, and what a report reads back."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    queued: Queued
    scratch: torch.Tensor
    memories: tuple[torch.Tensor, ...]

    def read(self, place: Place) -> torch.Tensor:
        """Some scratch memory, or memory of a prepared operand, on the device."""
        size = math.prod(place.shape) * place.dtype.itemsize
        memory = self.scratch if place.base == SCRATCH else self.memories[place.base - LEFT]
        return memory[place.offset : place.offset + size].view(place.dtype).view(place.shape)


def _multiply(
    call: GpuCall, a: torch.Tensor, b: torch.Tensor, result: torch.Tensor, memories: tuple[torch.Tensor, ...],
    full_output: bool, sum_: cuda_gemm.Sum | None = None,
) -> Made | None:  # fmt: skip
    """Queue a call's launches."""
    import torch

    problem = call.problem
    if result.numel() == 0:
        return None
    if problem.k == 0 and sum_ is None:
        result.zero_()
        return None
    addend = sum_.broadcast(call.shape, call.dtype) if sum_ else None
    apart = not overlap(result, a, b) and not (addend is not None and cuda_gemm.spoilt(addend, result))
    whole = result if result.is_contiguous() and apart else torch.empty_like(result).contiguous()
    view = whole.view(math.prod(problem.batch), problem.m, problem.n)
    if call.dtype.is_complex:
        a, b = (x if x.is_complex() else x.to(torch.complex128) for x in (a, b))
    a, b = (_matrices(x.reshape(shape), problem, call.native) for x, shape in ((a, call.left), (b, call.right)))
    addend = addend.reshape(view.shape) if addend is not None else None
    addresses = a.data_ptr(), b.data_ptr(), view.data_ptr()
    steps = () if addend is None else addend.stride()
    key = full_output, addresses[0] % 16, addresses[1] % 16, addresses[2] % 16, *steps
    queued = call.programs.get(key)
    if queued is None:
        queued = call.programs[key] = _queued(call, a, b, view, full_output, addend)
    scratch = _scratch(queued, view.device)
    made = Made(a, b, view, queued, scratch, memories)
    stream, captured = _stream_of(call)
    bases = [*addresses, scratch.data_ptr()]
    if sum_ is not None:
        kept = [memory.data_ptr() for memory in memories] or [0, 0]
        bases += [*kept, addend.data_ptr() if addend is not None else 0, *sum_.patterns]
    else:
        bases += [memory.data_ptr() for memory in memories]
    queued.program.run(tuple(bases), stream, captured)
    if whole is not result:
        result.copy_(whole)
    return made if full_output else None


def _in_place(x: torch.Tensor, native: bool) -> bool:
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
        not _in_place(x, native) or 0 in x.stride() for x in (a, b)
    ):
        return None
    return span(a), span(b)


def _multiply_at_once(
    call: GpuCall, a: torch.Tensor, b: torch.Tensor, result: torch.Tensor, memories: tuple[torch.Tensor, ...],
    *, owned: bool,
) -> bool:  # fmt: skip
    """Queue a call that was queued before and whose operands and result go to the kernels as they are; False where this
    is none. owned: whether the result, contiguous, is the caller's and might overlap the operands.
    """
    if call.spans is None:
        return False
    addresses = a.data_ptr(), b.data_ptr(), result.data_ptr()
    queued = call.programs.get((False, addresses[0] % 16, addresses[1] % 16, addresses[2] % 16))
    if queued is None or (owned and _spoils(call, *addresses, result)):
        return False
    _run_over_scratch(call, queued, addresses, tuple(memory.data_ptr() for memory in memories))
    return True


def _spoils(call: GpuCall, left: int, right: int, place: int, result: torch.Tensor) -> bool:
    """Whether a result there overlaps operands there."""
    assert call.spans is not None
    size = result.nbytes
    return meet(place, size, left, call.spans[0]) or meet(place, size, right, call.spans[1])


def _stream_of(call: GpuCall) -> tuple[int, bool]:
    """The current stream of a call's device, and whether a graph captures it."""
    import torch

    return torch._C._cuda_getCurrentRawStream(call.index), torch._C._cuda_isCurrentStreamCapturing()


def _in_halves(found: _Plain, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor | None:
    """`at_once` of a long call: what needs no result is queued before there is one, and before flags and settings are
    asked for, which takes as long as small products take. None where there is nothing of it.
    """

    call = found.call
    left, right = a.data_ptr(), b.data_ptr()
    queued = call.programs.get((False, left % 16, right % 16, 0))
    halves = queued.program.halves if queued is not None else None
    if halves is None:
        return None
    if out is not None and (out.data_ptr() % 16 or _spoils(call, left, right, out.data_ptr(), out)):
        return None
    head, tail = halves
    stream, captured = _stream_of(call)
    scratch = _borrow(head.scratch, stream)
    try:
        head.run((left, right, 0, scratch), stream, captured)
        result = found.result(a) if out is None else out
        if _flagged(call, a, b, out) or not found.unchanged():
            found.changing = True
            return None
        if result.data_ptr() % 16:
            return None
        tail.run((left, right, result.data_ptr(), scratch), stream, captured)
    finally:
        _give_back(scratch)
    return result


def _in_one(found: _Plain, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor | None:
    """`at_once` of a call that is one kernel, with as few steps as there can be: they take longer than it does."""

    call = found.call
    if a.requires_grad or b.requires_grad or a.is_neg() or b.is_neg() or not found.unchanged():
        return None
    if call.problem.is_complex and _flagged(call, a, b, out):
        return None
    if out is None:
        result = found.result(a)
    elif out.requires_grad or out.is_neg():
        return None
    else:
        result = out
    left, right, place = a.data_ptr(), b.data_ptr(), result.data_ptr()
    queued = call.programs.get((False, left % 16, right % 16, place % 16))
    if queued is None or (out is not None and _spoils(call, left, right, place, out)):
        return None
    _run_over_scratch(call, queued, (left, right, place))
    return result


def _run_over_scratch(call: GpuCall, queued: Queued, addresses: tuple[int, ...], kept: tuple[int, ...] = ()) -> None:
    """Queue a program whose scratch memory nobody reads afterwards."""
    stream, captured = _stream_of(call)
    if queued.unread:
        queued.program.run((*addresses, call.unread, *kept), stream, captured)
        return
    scratch = _borrow(queued.program.scratch, stream)
    try:
        queued.program.run((*addresses, scratch, *kept), stream, captured)
    finally:
        _give_back(scratch)


def _borrow(size: int, stream: int) -> int:
    """The address of so many bytes of the current device's memory, torch's; a tensor of them takes three times as long.
    What is queued on the stream before it is given back may use it.
    """
    import torch

    return torch._C._cuda_cudaCachingAllocator_raw_alloc(size, stream)


def _give_back(address: int) -> None:
    import torch

    torch._C._cuda_cudaCachingAllocator_raw_delete(address)


def _scratch(queued: Queued, device: torch.device) -> torch.Tensor:
    """Scratch memory for a call, of which a report may read."""
    import torch

    if queued.unread:
        return _unread(device)
    return torch.empty(queued.program.scratch, dtype=torch.uint8, device=device)


_UNREAD_BYTES = 256


@functools.cache
def _unread(device: torch.device) -> torch.Tensor:
    """Memory for counts that nobody reads; kept for good, as a graph that a caller captured writes there."""
    import torch

    return torch.empty(_UNREAD_BYTES, dtype=torch.uint8, device=device)


def _matrices(x: torch.Tensor, problem: Problem, native: bool) -> torch.Tensor:
    """The operand as (batch, ·, ·), (1, ·, ·) where one serves all, to be read where it is."""
    if problem.batch:
        x = x.expand(*problem.batch, *x.shape[-2:]).flatten(0, -3)
        x = x[:1] if x.stride(0) == 0 else x
    else:
        x = x[None]
    return x if _in_place(x, native) else x.contiguous()


def _queued(
    call: GpuCall, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, full_output: bool,
    addend: torch.Tensor | None = None,
) -> Queued:  # fmt: skip
    """The program of a call: split, multiply, join, repair; in blocks of rows and columns where the scratch memory is
    bounded. addend: gemm's C, in the shape of out.
    """
    import torch

    program = Program((a.data_ptr() % 16, b.data_ptr() % 16, out.data_ptr() % 16))
    choice, joins = call.choice, 0
    if isinstance(choice.scheme, Residues) and not choice.tiny:
        steps = choice.batches, choice.rows, choice.columns
        joins = math.prod(-(-size // max(1, step)) for size, step in zip(out.shape, steps, strict=True))
    counts = program.take(torch.int64, cuda.COUNTS + 2 * joins)  # and one, aligned, for each join of residues
    left, right = vectors_of(a, A, columns=False), vectors_of(b, B, columns=True)
    steps = out.stride(0), out.stride(1), out.stride(2)
    target = cuda.Result(Place(OUT, 0, out.dtype), out.shape[0], out.shape[1], out.shape[2], steps)
    third = None
    if addend is not None:
        place = Place(ADDEND, 0, addend.dtype)
        third = cuda.Result(place, *target.extents, (addend.stride(0), addend.stride(1), addend.stride(2)))
    joined = isinstance(choice.scheme, (Residues, Slices))
    if call.problem.summed and not (call.problem.reads_operands and joined):
        return _queued_sum(call, program, a, b, out, target, third, counts)
    if choice.tiny:
        return _queued_tiny(call, program, target, left, right, counts, full_output)
    if call.native:
        if full_output:
            program.zero(counts)
        found = None
        if cuda_plan.is_proved(call.problem) and all(_is_whole(x) for x in (a, b)):
            with program.beside():
                found = cuda.prove(program, left, right, call.device)
        cuda.multiply_natively(program, left, right, target)
        program.meet()
        cuda.finish_native(program, target, left, right, counts, call.device, found)
        return Queued(program, counts, None)
    if call.direct:
        if full_output:
            program.zero(counts)
        cuda_direct.multiply_directly(program, target, left, right, counts, call.device)
        return Queued(program, counts, None, unread=not full_output and program.scratch <= _UNREAD_BYTES)
    if call.config is not None:
        block = call.choice.rows, call.choice.columns
        module = module_of(call.choice.scheme)
        if call.problem.summed:
            module.queue_sum(program, a, b, target, third, call.config, block, counts, call.device)
        else:
            module.queue(program, a, b, out, call.config, block, counts, call.device)
        return Queued(program, counts, None)
    # Beside the operands' splits, or first where both are kept.
    with program.beside() if None in call.kept else contextlib.nullcontext():
        program.zero(counts)
    statistics = []
    step, opened = choice.batches, iter(range(cuda.COUNTS, cuda.COUNTS + 2 * joins, 2))
    for t in range(0, target.batch, step):
        # Only a report looks at statistics afterwards.
        with contextlib.nullcontext() if full_output else program.lend():
            some = left.some(t, step), right.some(t, step), target.some(t, step), third and third.some(t, step)
            statistics.append(_queue_some(program, call, *some, counts, opened, full_output))
    return Queued(program, counts, statistics)


def _queued_tiny(
    call: GpuCall, program: Program, target: cuda.Result, left: cuda.Vectors, right: cuda.Vectors, counts: Place,
    full_output: bool,
) -> Queued:  # fmt: skip
    """A batch of tiny products in one kernel; for a report, the vectors' statistics besides, from their split."""
    residues = isinstance(call.choice.scheme, Residues)
    test = call.test if residues else None
    scaled = test is not None and test.mode == MAGNITUDE
    if full_output:
        program.zero(counts)
    table = call.table if scaled else None
    cuda_tiny.multiply_tiny(program, target, left, right, counts, test, table, call.device)
    if not (full_output and table is not None):
        return Queued(program, counts, None, unread=not full_output and program.scratch <= _UNREAD_BYTES)
    statistics = []
    for t in range(0, target.batch, call.choice.batches):
        made = []
        for x, is_left in ((left, True), (right, False)):
            some = x.some(t, call.choice.batches)
            made.append([cuda.take_statistics(program, some)])
            with program.lend():
                cuda.split_vectors(
                    program, some, made[-1][0], table, call.device, left=is_left, levels=True, measure=True
                )  # fmt: skip
        statistics.append((made[0], made[1]))
    return Queued(program, counts, statistics)


def _is_whole(x: torch.Tensor) -> bool:
    """Whether there are no gaps between matrices (batch, ·, ·), by rows or by columns."""
    return x.is_contiguous() or x.transpose(1, 2).is_contiguous()


def _queued_sum(
    call: GpuCall, program: Program, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, target: cuda.Result,
    addend: cuda.Result | None, counts: Place,
) -> Queued:  # fmt: skip
    """alpha·AB + beta·C from a product that meets the target, or from none."""
    import torch

    left, right = vectors_of(a, A, columns=False), vectors_of(b, B, columns=True)
    program.zero(counts)
    products = None
    if call.problem.reads_operands:
        products = program.take(out.dtype, *out.shape)
        into = cuda.Result(products, *target.extents, (out.shape[1] * out.shape[2], out.shape[2], 1))
        with program.lend():
            if call.native:
                cuda.multiply_natively(program, left, right, into)
            else:
                block, own = (call.choice.rows, call.choice.columns), program.take(torch.int64, cuda.COUNTS)
                if call.direct:
                    cuda_direct.multiply_directly(program, into, left, right, own, call.device)
                else:
                    module = module_of(call.choice.scheme)
                    module.queue(program, a, b, out, call.config, block, own, call.device, into=products)
    problem = call.problem
    cuda.combine_values(
        program, products, target, addend, left, right, problem.terms, problem.result.precision, counts, call.device
    )  # fmt: skip
    return Queued(program, counts, None, products=products)


def _queue_some(
    program: Program, call: GpuCall, left: cuda.Vectors, right: cuda.Vectors, target: cuda.Result,
    addend: cuda.Result | None, counts: Place, opened: Iterator[int], full_output: bool,
) -> tuple[list[Place], list[Place]]:  # fmt: skip
    """Queue some matrices of a batch; returns where the statistics of rows and columns stand, block by block. opened:
    which of the counts are a join's own.
    """
    table, device, test = call.table, call.device, call.test
    fixed = {"levels": test.mode == MAGNITUDE, "measure": full_output or test.mode == ROUNDING}
    rows, columns = call.choice.rows, call.choice.columns
    column_blocks = [right.part(j, j + columns) for j in range(0, target.n, columns)]
    row_blocks = [left.part(i, i + rows) for i in range(0, target.m, rows)]
    made = []
    for blocks, kept in ((row_blocks, call.kept[0]), (column_blocks, call.kept[1])):
        made.append([x.statistics for x in kept.splits] if kept else [cuda.take_statistics(program, x) for x in blocks])
    of_rows, of_columns = made

    def split(x: cuda.Vectors, index: int, *, left: bool) -> cuda.SplitVectors:
        kept = call.kept[0 if left else 1]
        if kept is not None:
            found = kept.splits[index]
        else:
            statistics = (of_rows if left else of_columns)[index]
            found = cuda.split_vectors(program, x, statistics, table, device, left=left, **fixed)
        return cuda_quarters.add_quarters(program, found, table, left=left) if call.choice.quarters else found

    # What is kept need not be split again for each block of the other operand: that one's blocks come first.
    sides = [(column_blocks, False), (row_blocks, True)]
    if call.kept[1] is not None:
        sides.reverse()
    (outer, outer_left), (inner, inner_left) = sides
    for x, some in enumerate(outer):
        with program.lend():
            with program.beside():
                first = split(some, x, left=outer_left)
            for y, other in enumerate(inner):
                with program.lend():
                    (i, j) = (x, y) if outer_left else (y, x)
                    sizes = row_blocks[i].vectors, column_blocks[j].vectors
                    products = None
                    if call.choice.quarters and cuda_quarters.serves(*sizes, left.terms):
                        products = cuda_quarters.take_products(program, *sizes, first.planes.shape[1])
                    # Nobody reads the planes of the inner operand any more once its products are there.
                    with program.lend() if products is not None else contextlib.nullcontext():
                        second = split(other, y, left=inner_left)
                        if y == 0:
                            program.meet()
                        split_a, split_b = (first, second) if outer_left else (second, first)
                        if products is None:
                            digits = cuda.multiply_planes(program, split_a, split_b, table, device)
                        else:
                            cuda_quarters.multiply_quarters(program, split_a, split_b, products, table, device)
                    if products is not None:
                        digits = cuda_quarters.add_products(program, products, *sizes, table)
                    block = i * rows, rows, j * columns, columns
                    operands = row_blocks[i], column_blocks[j], split_a, split_b
                    if call.problem.summed:
                        cuda.combine_digits(
                            program, digits, target.part(*block), addend and addend.part(*block), *operands, table,
                            test, counts, device,
                        )  # fmt: skip
                    else:
                        own = counts.at(next(opened), (1,), (1,))
                        cuda.join_digits(
                            program, digits, target.part(*block), *operands, table, test, counts, own, device
                        )  # fmt: skip
    return of_rows, of_columns


class _OnDevice:
    """A matrix on a GPU whose selected entries come to the CPU when a report asks for them."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.shape = tuple(tensor.shape)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        found: NDArray[Any] = self.tensor[index].cpu().numpy()
        return found


def _report(
    call: GpuCall, made: Made | None, left_kept: bool, right_kept: bool, start: float, sum_: cuda_gemm.Sum | None = None
) -> Report:
    total = Outcome(products=call.plan.products)
    pieces = []
    target = call.request.target
    if made is not None:
        special, exact, third, *_ = made.read(made.queued.counts).tolist()
        outcome = Outcome()
        outcome.count("special", special)
        outcome.count("exact", exact)
        outcome.count("float64" if isinstance(call.config, cuda_words.LaunchConfig) else "magnitude", third)
        path = "value" if target is None or target.kind == "fast" else "certified"
        path = "a priori" if isinstance(call.choice.scheme, Native) else path
        outcome.count(path, made.out.numel() * (1 + made.out.is_complex()) - special - exact - third)
        total.merge(outcome)
        for index in range(made.out.shape[0]):
            own = Outcome()
            own.bound = _bound(call, made, index, sum_)
            pieces.append(Piece(_OnDevice(made.out[index]), own))  # type: ignore[arg-type]
    total.time("total", time.perf_counter() - start)
    return Report(
        plan=call.plan, outcome=total, shape=call.shape, pieces=pieces, rows_kept=left_kept, columns_kept=right_kept,
        repeated=math.prod(call.shape[:-2]),
    )  # fmt: skip


def _bound(call: GpuCall, made: Made, index: int, sum_: cuda_gemm.Sum | None = None) -> Any:
    import torch

    target, result = call.request.target, call.problem.result
    if target is not None and target.kind == "correctly-rounded":
        return RoundedBound(result)
    k = call.problem.terms
    a, b = (x[index % x.shape[0]] for x in (made.a, made.b))
    left, right, own = _OnDevice(a), _OnDevice(b), None
    if call.config is not None:
        own = module_of(call.choice.scheme).bound_of(call.choice.scheme, call.problem, call.device, left, right)
    if sum_ is not None and made.queued.statistics is None:
        c = sum_.broadcast(call.shape, call.dtype)
        third = None if c is None else _OnDevice(c.reshape(made.out.shape)[index])
        return cuda_gemm.bound(sum_, result, left, right, third, k if call.problem.reads_operands else 0, own)
    if own is not None:
        return own
    if made.queued.statistics is None:
        unit = 2.0**-53 if call.direct else result.unit_roundoff
        return ConventionalBound(result, left, right, k, unit)  # type: ignore[arg-type]
    q = call.table.fraction_bits(k)
    turn, index = divmod(index, call.choice.batches)
    rows, columns = (
        _scales(torch.cat([made.read(place)[index % place.shape[0]] for place in places], 1), q)
        for places in made.queued.statistics[turn]
    )
    weight = sum_.weight(call.dtype.is_complex) if sum_ is not None else 1.0
    return ResidueBound(result, rows, columns, k, weight)


def _scales(statistics: torch.Tensor, q: int) -> Scales:
    """`Scales` of vectors from the integers that the kernels keep of them, rounded up as
    `cuda.residues.kernels.join_exact` does."""
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
