"""The fast path of calls on a GPU: products of a layout that was multiplied before.

A *layout* is all that a call depends on but for the addresses of its operands and its result: types, shapes, strides,
flags, keywords, settings. The second call of one looks nothing up but this: torch compares the tensors with those of
the first call, by guards as its compiler makes them, which see derivatives and transformations too; the launches are
one graph that takes the new addresses (`cuda.launch.program`). So a call takes the host less than `torch.matmul` does,
wherever its operands lie.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prismm.core.guards import guards_of
from prismm.cuda.execute import addend_of, queued_with_row, run_in_workspace, spoils, stream_of
from prismm.cuda.gemm.sum import spoilt
from prismm.cuda.launch.settings import fingerprint_of_settings
from prismm.cuda.operands import PreparedOnDevice

if TYPE_CHECKING:
    import torch

    from prismm.cuda.backend import GpuCall
    from prismm.cuda.execute import Queued
    from prismm.cuda.gemm.sum import Sum

__all__ = [
    "MOST_CALLS",
    "PLAIN_ACCURACY",
    "fast_path",
    "fast_row",
    "fast_sum",
    "forget",
    "known",
    "remember",
    "remember_sum",
    "repeated",
]

PLAIN_ACCURACY = type(None), str, float, int
"""Types of an accuracy that cannot change between two calls."""
MOST_CALLS = 4096
"""Most calls in a cache."""
_MOST_ALIKE = 16
"""Most layouts of the same shapes and keywords."""


def _allocator_of(call: GpuCall, device: torch.device) -> Callable[[], torch.Tensor]:
    """What makes memory for a result on the current device, as torch's compiled programs do where that is there: past
    the dispatcher, in a third of the time.
    """
    import torch

    shape, dtype = tuple(call.shape), call.dtype
    strides = torch.empty(shape, device="meta").stride()
    try:
        if torch.version.cuda is None:
            raise ImportError("a torch without CUDA")
        from torch._C._dynamo import guards

        empty = guards._empty_strided_cuda  # type: ignore[attr-defined]
    except (ImportError, AttributeError):
        return lambda: torch.empty(shape, dtype=dtype, device=device)
    return lambda: empty(shape, strides, dtype)


@dataclass(eq=False, slots=True)
class _Layout:
    """What a call was asked, and what was planned.

    Attributes:
        guards: of its tensors, each once.
        kinds: of keywords which equal others of another type.
        settings: of the settings under which it was planned.
        call: what was planned.
        index: of its device.
        aligned: its program where all addresses are multiples of 16.
        steps: of gemm's C in the result's shape; empty where the call is no sum or has no C.
        patterns: of gemm's factors; empty where the call is no sum.
        allocate: makes memory for a result.
        current_device: tells torch's.
    """

    guards: Any
    kinds: tuple[Any, ...]
    settings: int
    call: GpuCall
    index: int
    aligned: Queued | None
    steps: tuple[int, ...]
    patterns: tuple[int, ...]
    allocate: Callable[[], torch.Tensor]
    current_device: Callable[[], int]

    def queue(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, others: tuple[int, ...],
        queued: Queued | None = None,
    ) -> torch.Tensor | None:  # fmt: skip
        """The product of a and b; None where a slower way has to see to it. others: bases behind the workspace; queued:
        another program than the call's own, for addresses that are multiples of 16.
        """
        try:
            result = self.allocate() if out is None else out
        except _no_memory():  # of which the slower way tells
            return None
        left, right, place = a.data_ptr(), b.data_ptr(), result.data_ptr()
        if queued is None:
            queued = self.aligned
            if queued is None or (left | right | place) & 15:
                queued = self.call.programs.get((False, left % 16, right % 16, place % 16, *self.steps))
        if queued is None or (out is not None and spoils(self.call, left, right, place, out)):
            return None
        try:
            run_in_workspace(self.call, queued, (left, right, place), others)
        except _no_memory():
            return None
        return result


def _no_memory() -> type[RuntimeError]:
    """What torch raises where memory is short."""
    import torch

    return torch.OutOfMemoryError


_LAYOUTS: dict[Hashable, list[_Layout]] = {}
"""By shapes and keywords, and which operands are one."""
_forgotten = 0
"""Calls of `forget` so far. A function that `repeated` made before the last of them makes no more products."""


def forget() -> None:
    """Keep none of them."""
    global _forgotten
    _LAYOUTS.clear()
    _forgotten += 1


def known() -> int:
    """How many layouts there are."""
    return sum(map(len, _LAYOUTS.values()))


def _kinds(keywords: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of numbers that are equal, types may differ."""
    return type(keywords[0]), type(keywords[2]), type(keywords[5])


def _different(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """The tensors of a call, each once, as guards ask for them."""
    if out is None:
        return (a,) if a is b else (a, b)
    return (a, out) if a is b else (a, b, out)


def _find(key: Hashable, tensors: tuple[torch.Tensor, ...], keywords: tuple[Any, ...]) -> _Layout | None:
    """The layout of a call."""
    some = _LAYOUTS.get(key)
    if some is None:
        return None
    kinds, settings = _kinds(keywords), fingerprint_of_settings()
    for found in some:
        if found.guards.check(*tensors) and found.settings == settings and found.kinds == kinds:
            return found if found.current_device() == found.index else None
    return None


def fast_path(a: Any, b: Any, keywords: tuple[Any, ...], out: Any) -> torch.Tensor | None:
    """The product of tensors like those of an earlier call; None where anything is out of the ordinary."""
    prepared = type(a) is PreparedOnDevice or type(b) is PreparedOnDevice
    x, y = (_tensor(a), _tensor(b)) if prepared else (a, b)
    try:
        key: Hashable = (x.shape, y.shape, out is None, x is y, keywords)
        if prepared:
            key = key, _key(a), _key(b)
        found = _find(key, _different(x, y, out), keywords)
        if found is None:
            return None
    except (TypeError, AttributeError, RuntimeError):  # what cannot be hashed, is no tensor, or has no shape
        return None
    parts = _parts(found, a, b) if prepared else ()
    return None if parts is None else found.queue(x, y, out, parts)


def fast_row(a: Any, b: Any, row: Any, keywords: tuple[Any, ...]) -> torch.Tensor | None:
    """`fast_path`, and a row that is added to all rows of the rounded product: by the kernel that writes it where it
    can, with the bits of torch's own addition, by which it is added elsewhere. None where `fast_path` takes no product
    of these operands. row: (n,), real, without gaps, of the result's type, on the operands' device.
    """
    try:
        found = _find((a.shape, b.shape, True, a is b, keywords), _different(a, b, None), keywords)
        if found is None or row.dtype is not found.call.dtype:
            return None
        queued = None if (a.data_ptr() | b.data_ptr()) & 15 else queued_with_row(found.call, a, b, row)
    except (TypeError, AttributeError, RuntimeError):
        return None
    if queued is not None:
        return found.queue(a, b, None, (0, 0, row.data_ptr()), queued)
    value = found.queue(a, b, None, ())
    return None if value is None else value.add_(row)


def repeated(
    a: Any, b: Any, row: Any, keywords: tuple[Any, ...], shown: tuple[torch.Tensor, ...]
) -> Callable[[tuple[torch.Tensor, ...]], torch.Tensor | None] | None:  # fmt: skip
    """A function that multiplies further operands of this layout without a look-up, for a caller that keeps it.

    Its results are those of `fast_path` or, with a row, `fast_row`. It takes tensors like `shown`, and returns None for
    tensors that differ from them, or that need a slower way.

    Args:
        a, b, row: as `fast_path` and `fast_row` take them; row is None for a product alone.
        shown: the row, if there is one, a, and b, as the caller has them: they may require derivatives.

    Returns:
        The function; None where `fast_path` does not know the layout, where one tensor is shown twice, or without a row
        where no program is for addresses that are multiples of 16.
    """
    if len(set(map(id, shown))) < len(shown):
        return None
    found = _find((a.shape, b.shape, True, False, keywords), (a, b), keywords)
    if found is None:
        return None
    adds = row is not None
    queued = queued_with_row(found.call, a, b, row) if adds else found.aligned
    if queued is None and not adds:
        return None
    check, times_forgotten = guards_of(*shown).check, _forgotten

    def again(tensors: tuple[torch.Tensor, ...]) -> torch.Tensor | None:
        if not check(*tensors) or times_forgotten != _forgotten or fingerprint_of_settings() != found.settings:
            return None
        x, y = tensors[-2:]
        if found.current_device() != found.index:
            return None
        if queued is None:  # torch adds the row
            value = found.queue(x, y, None, ())
            return None if value is None else value.add_(tensors[0].detach())
        if (x.data_ptr() | y.data_ptr()) & 15:
            return None
        return found.queue(x, y, None, (0, 0, tensors[0].data_ptr()) if adds else (), queued)

    return again


def fast_sum(
    a: Any, b: Any, c: Any, factors: tuple[complex, complex], transposes: tuple[str, str], keywords: tuple[Any, ...],
    out: Any,
) -> torch.Tensor | None:  # fmt: skip
    """`fast_path` of `prismm.gemm`, of tensors."""
    try:
        read = None if factors[1] == 0 else c
        tensors = _each_once(a, b, read, out)
        key = (*(x.shape for x in tensors), out is None, out is read, keywords, factors, transposes)
        found = _find(key, tensors, keywords)
        if found is None or (out is not None and read is not None and spoilt(read, out)):
            return None
    except (TypeError, AttributeError, RuntimeError):
        return None
    place = 0 if read is None else read.data_ptr()
    return found.queue(a, b, out, (0, 0, place, *found.patterns))


def _each_once(*tensors: Any) -> tuple[Any, ...]:
    """Those that are there, the last one not again where it is the one before."""
    found = tuple(x for x in tensors if x is not None)
    return found[:-1] if tensors[-1] is tensors[-2] is not None else found


def _tensor(x: Any) -> Any:
    return x.data if type(x) is PreparedOnDevice else x


def _key(x: Any) -> Hashable:
    return x.key if type(x) is PreparedOnDevice else None


def _parts(found: _Layout, a: Any, b: Any) -> tuple[int, ...] | None:
    """Addresses of prepared parts; None where another stream made them."""
    stream = stream_of(found.index)
    # Memory that is used on another stream has to be told to the allocator: `backend.memories_of` does.
    if any(type(x) is PreparedOnDevice and x.stream != stream for x in (a, b)):
        return None
    return tuple(x.memory.data_ptr() if type(x) is PreparedOnDevice and x.memory is not None else 0 for x in (a, b))


def remember(
    call: GpuCall, operands: tuple[Any, Any], tensors: tuple[torch.Tensor, torch.Tensor], keywords: tuple[Any, ...],
    out: Any,
) -> None:  # fmt: skip
    """That `fast_path` may take calls like one that was checked, if its operands, tensors or prepared ones, went to the
    kernels as they are, unconverted.
    """
    if not _taken(call, operands, tensors, out):
        return
    x, y = map(_tensor, operands)
    key: Hashable = (x.shape, y.shape, out is None, x is y, keywords)
    if any(type(z) is PreparedOnDevice for z in operands):
        key = key, *map(_key, operands)
    _keep(key, call, _different(x, y, out), keywords)


def remember_sum(
    call: GpuCall, operands: tuple[Any, Any, Any], tensors: tuple[torch.Tensor, torch.Tensor], sum_: Sum,
    transposes: tuple[str, str], keywords: tuple[Any, ...], out: Any,
) -> None:  # fmt: skip
    """That `fast_sum` may take calls like one that was checked; operands: A and B as they were given, and C where it is
    read.
    """
    import torch

    a, b, c = operands
    if any(type(x) is PreparedOnDevice for x in (a, b)) or not _taken(call, (a, b), tensors, out):
        return
    addend, result = addend_of(call, sum_.broadcast(call.shape, call.dtype)), out is None or out.is_contiguous()
    if c is not None and (type(c) is not torch.Tensor or c.dtype != call.dtype or addend is None):
        return
    if not result or (c is not None and addend is not None and addend.data_ptr() != c.data_ptr()):
        return
    shown = _each_once(a, b, c, out)
    if len(set(map(id, shown))) < len(shown):
        return
    key = (*(x.shape for x in shown), out is None, out is c, keywords, (sum_.alpha, sum_.beta), transposes)
    _keep(key, call, shown, keywords, () if addend is None else tuple(addend.stride()), sum_.patterns)


def _taken(
    call: GpuCall, operands: tuple[Any, Any], tensors: tuple[torch.Tensor, torch.Tensor], out: Any
) -> bool:  # fmt: skip
    """Whether operands went to the kernels as they are, and results where they belong."""
    import torch

    if call.spans is None or (out is not None and type(out) is not torch.Tensor):
        return False
    for x, y in zip(operands, tensors, strict=True):
        if type(x) is PreparedOnDevice:
            if y.dtype != call.dtype or y.data_ptr() != x.data.data_ptr():
                return False
        elif type(x) not in (torch.Tensor, torch.nn.Parameter) or x.dtype != y.dtype or x.data_ptr() != y.data_ptr():
            return False
    return True


def _keep(
    key: Hashable, call: GpuCall, tensors: tuple[torch.Tensor, ...], keywords: tuple[Any, ...],
    steps: tuple[int, ...] = (), patterns: tuple[int, ...] = (),
) -> None:  # fmt: skip
    """Add a layout, unless it is there."""
    import torch

    settings = fingerprint_of_settings()
    if _find(key, tensors, keywords) is not None:
        return
    if len(_LAYOUTS) >= MOST_CALLS:
        # All at once: an order of use would cost each hit.
        _LAYOUTS.clear()
    aligned = call.programs.get((False, 0, 0, 0, *steps))
    some = _LAYOUTS.setdefault(key, [])
    some.append(
        _Layout(
            guards_of(*tensors), _kinds(keywords), settings, call, call.index, aligned, steps, patterns,
            _allocator_of(call, tensors[0].device), torch._C._cuda_getDevice,
        )
    )  # fmt: skip
    del some[:-_MOST_ALIKE]
