"""Launches as one: a CUDA graph of a program's kernels, queued at the addresses of each call.

Queueing eight kernels one by one takes the host longer than a small product takes the GPU; a graph takes one call. And
in a graph, launches that need nothing of each other run side by side. Addresses are parameters of a graph's nodes,
which are set anew where they have changed (`launch.kernels.queue`), so that one graph serves every call of a layout.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import cache_files
from prismm.cuda.launch.arguments import FACTORS
from prismm.cuda.launch.captured import NON_BLOCKING, Node, array, capture_into, captured
from prismm.cuda.launch.driver import KernelNode, MemsetNode, address_of, check, driver
from prismm.cuda.launch.kernels import node_table as table
from prismm.cuda.launch.settings import fingerprint_of_settings

if TYPE_CHECKING:
    from prismm.cuda.launch.captured import Queue
    from prismm.cuda.launch.compile import Ready

_NO_TIMING = 2

_BESIDE: dict[int, list[ctypes.c_void_p]] = {}
"""Streams of each device for what runs beside another one in a graph."""
_LOCK = threading.Lock()


def is_capturing(stream: int) -> bool:
    """Whether a stream's launches go to a graph of the caller's: nothing may be replayed there."""
    status = ctypes.c_int()
    check(driver().cuStreamIsCapturing(stream, ctypes.byref(status)))
    return status.value != 0


def _capture_of(stream: int) -> int:
    """The number of the capture that a stream's launches go to; 0 where there is none, or it is not known."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    asked = getattr(driver(), "cuStreamGetCaptureInfo", None)
    if asked is None or asked(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number)):
        return 0
    return number.value if status.value else 0


@contextlib.contextmanager
def stream_beside(stream_of_it: int) -> Iterator[int]:
    """A stream of the current device that nobody uses and no other capture holds; kept for later. stream_of_it: the one
    that it runs beside. A stream that a caller's capture took is the capture's until that ends, for all its calls.
    """
    cuda, device = driver(), ctypes.c_int()
    check(cuda.cuCtxGetDevice(ctypes.byref(device)))
    capture = _capture_of(stream_of_it)
    with _LOCK:
        streams = _BESIDE.setdefault(device.value, [])
        held = (some for some in streams if capture and _capture_of(some.value or 0) == capture)
        idle = (some for some in streams if not is_capturing(some.value or 0))
        stream = next(held, None) or next(idle, None)
        if stream is not None:
            streams.remove(stream)
    if stream is None:
        stream = ctypes.c_void_p()
        check(cuda.cuStreamCreate(ctypes.byref(stream), NON_BLOCKING))
    try:
        yield stream.value or 0
    finally:
        with _LOCK:
            streams.append(stream)


def follow(later: int, earlier: int) -> None:
    """What is queued on a stream from now on waits for what another one holds by now."""
    cuda, event = driver(), ctypes.c_void_p()
    check(cuda.cuEventCreate(ctypes.byref(event), _NO_TIMING))
    try:
        check(cuda.cuEventRecord(event, earlier))
        check(cuda.cuStreamWaitEvent(later, event, 0))
    finally:
        # The driver keeps the event until what waits for it has gone on.
        cuda.cuEventDestroy_v2(event)


@functools.cache
def compiled_queue() -> Any:
    """`launch.kernels.queue`, which takes a second to compile, beside the kernels of a first call."""
    # Not before a call on a GPU: a plan needs no compiler.
    from prismm.cuda.launch.kernels.queue import queue

    with cache_files.announced_to(lambda _: None):  # nobody waits long for it
        fingerprint_of_settings()
        return queue.compile()


class Graph:
    """Kernels, products of cuBLAS's and workspace set to zero, in one graph that is launched at the addresses of each
    call. In its executable form it serves one stream: launches of the same one follow each other wherever they are.
    """

    def __init__(self) -> None:
        cuda = driver()
        self._graph, context = ctypes.c_void_p(), ctypes.c_void_p()
        check(cuda.cuGraphCreate(ctypes.byref(self._graph), 0))
        self._finalizers = [weakref.finalize(self, cuda.cuGraphDestroy, self._graph)]
        check(cuda.cuCtxGetCurrent(ctypes.byref(context)))
        self._context = context.value or 0
        self._nodes: list[Node] = []
        self._factors: tuple[int, ...] = ()

    def kernel(self, ready: Ready, after: list[int]) -> list[int]:
        """Add a compiled kernel, which waits for the nodes `after`; returns what follows waits for."""
        grid = ready.config
        parameters = KernelNode(
            ready.function, grid.grid_x, grid.grid_y, grid.grid_z, grid.block_x, grid.block_y, grid.block_z,
            grid.shared, ctypes.addressof(ready.parameters),
        )  # fmt: skip
        handle = ctypes.c_void_p()
        check(driver().cuGraphAddKernelNode_v2(
            ctypes.byref(handle), self._graph, array(after), len(after), ctypes.byref(parameters)
        ))  # fmt: skip
        slots = [(ctypes.addressof(slot), base, offset) for slot, base, offset in ready.slots]
        maps = [(ctypes.addressof(tile), x.buffer.base, x.buffer.offset) for tile, x, _ in ready.maps]
        self._nodes.append(Node(handle.value or 0, parameters, slots, maps, ready))
        return [handle.value or 0]

    def zero(self, base: int, offset: int, size: int, at: int, after: list[int]) -> list[int]:
        """Add the setting to zero of so many bytes, a multiple of four, behind a base that is at this address for now;
        likewise.
        """
        parameters = MemsetNode(at + offset, 0, 0, 4, size // 4, 1)
        handle = ctypes.c_void_p()
        check(driver().cuGraphAddMemsetNode(
            ctypes.byref(handle), self._graph, array(after), len(after), ctypes.byref(parameters), self._context
        ))  # fmt: skip
        self._nodes.append(Node(handle.value or 0, parameters, [(ctypes.addressof(parameters), base, offset)]))
        return [handle.value or 0]

    def product(self, queue: Queue, bases: tuple[int, ...], after: list[int]) -> list[int] | None:
        """Add what a library queues, likewise; None, and nothing is added, where its parameters do not follow from the
        bases by sums alone (`launch.captured`).
        """
        found = captured(queue, bases)
        if found is None:
            return None
        handles, last = capture_into(self._graph, after, queue, bases)
        self._nodes += [Node(handle, *rest) for handle, rest in zip(handles, found, strict=True)]
        return last

    def __len__(self) -> int:
        """How many nodes it has."""
        return len(self._nodes)

    def finish(self) -> None:
        """Make it executable, with the table that `launch.kernels.queue` reads; nothing is added afterwards."""
        cuda, ready = driver(), ctypes.c_void_p()
        check(cuda.cuGraphInstantiateWithFlags(ctypes.byref(ready), self._graph, 0))
        # One that still runs is freed when it has ended; when the interpreter ends, the driver may be gone already.
        self._finalizers.append(weakref.finalize(self, cuda.cuGraphExecDestroy, ready))
        for one in self._finalizers:
            one.atexit = False
        head = [0] * table.NODE
        for place, value in (
            (table.EXECUTABLE, ready.value or 0), (table.IS_CAPTURING, address_of("cuStreamIsCapturing")),
            (table.LAUNCH, address_of("cuGraphLaunch")),
            (table.SET_KERNEL, address_of("cuGraphExecKernelNodeSetParams_v2")),
            (table.SET_MEMSET, address_of("cuGraphExecMemsetNodeSetParams")),
            (table.MOVE_MAP, address_of("cuTensorMapReplaceAddress")), (table.CONTEXT, self._context),
            (table.NODES, len(self._nodes)), (table.FACTORS_CHANGED, 1),
        ):  # fmt: skip
            head[place] = value
        head[table.BASES : table.BASES + table.ADDRESSES] = [-1] * table.ADDRESSES
        nodes, slots = list[int](), list[int]()
        first = table.NODE + table.WORDS * len(self._nodes)
        for node in self._nodes:
            begin = first + len(slots)
            slots += [word for slot in node.slots + node.maps for word in slot]
            middle = -1 if isinstance(node.parameters, MemsetNode) else begin + table.SLOT * len(node.slots)
            nodes += [
                node.handle, ctypes.addressof(node.parameters), node.uses, begin, middle, first + len(slots),
            ]  # fmt: skip
        self._table = np.array(head + nodes + slots, np.int64)
        self._place = self._table.ctypes.data
        self._queue = compiled_queue()

    def launch(self, bases: tuple[int, ...], stream: int) -> bool:
        """Queue it on a stream, at these bases; one thread at a time. False, and nothing is queued, where the stream's
        launches go to a graph of the caller's.

        Raises:
            EngineError: where the driver refuses it.
        """
        if len(bases) > table.ADDRESSES:
            factors = bases[FACTORS:]
            if factors != self._factors:
                first = table.BASES + FACTORS
                self._table[first : first + len(factors)] = factors
                self._table[table.FACTORS_CHANGED] = 1
                self._factors = factors
            bases = bases[:FACTORS]
        code = self._queue(self._place, stream, *bases, *_PADDING[len(bases)])
        if code and code != table.CAPTURING:
            check(code)
        return not code


_PADDING = [(0,) * (table.ADDRESSES - count) for count in range(table.ADDRESSES + 1)]
