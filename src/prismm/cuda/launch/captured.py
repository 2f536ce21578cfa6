"""What a library queues, as nodes of a graph that take other addresses: cuBLAS's kernels, whose parameters nobody
documents.

A capture records what a library would launch without running it, so addresses in it may be made up. The same product is
recorded at the addresses of a call and at two others, far away and with another distance for every base. A word of a
kernel's parameters that differs has to differ by exactly the distance of one base; it then is an address behind that
base. The third capture has to hold what is predicted from the first two, byte for byte, grids and kernels included.
Otherwise the product is not taken apart, and the library is called as ever.

Libraries choose kernels by how addresses are aligned: the made-up ones lie a multiple of 4096 bytes away, and a graph
serves calls whose bases are aligned alike, in ALIGNMENT bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from prismm.cuda.launch.arguments import FACTORS
from prismm.cuda.launch.driver import RELAXED, KernelNode, MemsetNode, check, driver

ALIGNMENT = 256
"""Bytes: what cuBLAS asks for at most; memory of torch's has it."""
NON_BLOCKING = 1
_KERNEL, _MEMSET = 0, 2

Queue: TypeAlias = Callable[[tuple[int, ...], int], None]
"""Queues work at bases on a stream."""
Slot: TypeAlias = tuple[int, int, int]
"""Where an address is stored, its base, and its offset behind that."""


@dataclass
class Node:
    """A node of a graph: its handle, the driver's parameters, the addresses among them, maps for TMA, and what has to
    live as long.
    """

    handle: int
    parameters: KernelNode | MemsetNode
    slots: list[Slot]
    maps: list[Slot] = field(default_factory=list)
    alive: object = None

    @property
    def uses(self) -> int:
        """A bit for each base that it depends on, one for all factors."""
        uses = 0
        for _, base, _ in self.slots + self.maps:
            uses |= 1 << min(base, FACTORS)
        return uses


@dataclass
class _Recorded:
    """A node as it was captured: its parameters, and of a kernel the bytes of each argument."""

    parameters: KernelNode | MemsetNode
    arguments: list[bytes]

    @property
    def rest(self) -> tuple[object, ...]:
        """All but addresses."""
        x = self.parameters
        if isinstance(x, MemsetNode):
            return x.pitch, x.value, x.element_size, x.width, x.height
        grid = x.grid_x, x.grid_y, x.grid_z, x.block_x, x.block_y, x.block_z, x.shared
        return x.function, x.kernel, x.context, *grid, *map(len, self.arguments)

    @property
    def words(self) -> bytes:
        """What may hold addresses."""
        if isinstance(self.parameters, MemsetNode):
            return (self.parameters.place or 0).to_bytes(8, "little")
        return b"".join(x.ljust(-(-len(x) // 8) * 8, b"\0") for x in self.arguments)


def captured(
    queue: Queue, bases: tuple[int, ...]
) -> list[tuple[KernelNode | MemsetNode, list[Slot], list[Slot], object]] | None:
    """The nodes of what is queued, but for their handles; None where addresses are not all that changes."""
    near, far = (tuple(x + step(h) for h, x in enumerate(bases[:FACTORS])) for step in (_near, _far))
    rest = bases[FACTORS:]
    here, there, beyond = (_record(queue, (*some, *rest)) for some in (bases[:FACTORS], near, far))
    if here is None or there is None or beyond is None or not len(here) == len(there) == len(beyond):
        return None
    found = []
    for first, other, third in zip(here, there, beyond, strict=True):
        if type(first.parameters) is not type(other.parameters) or not first.rest == other.rest == third.rest:
            return None
        places = _addresses(first.words, other.words, bases)
        if places is None or not _predicted(first.words, third.words, places):
            return None
        found.append(_node(first, places, bases))
    return found


def _near(base: int) -> int:
    return (base + 1) << 21


def _far(base: int) -> int:
    return (3 * (FACTORS - base) + 1) << 34


def _addresses(first: bytes, other: bytes, bases: tuple[int, ...]) -> list[tuple[int, int]] | None:
    """Which words are addresses, and of which base; None where one differs by anything else."""
    steps = {_near(h): h for h in range(min(len(bases), FACTORS))}
    found = []
    for place in range(0, len(first), 8):
        step = int.from_bytes(other[place : place + 8], "little") - int.from_bytes(first[place : place + 8], "little")
        if step:
            if step not in steps:
                return None
            found.append((place, steps[step]))
    return found


def _predicted(first: bytes, third: bytes, places: list[tuple[int, int]]) -> bool:
    """Whether the third capture has the addresses that follow from the others, and all else as it was."""
    words = bytearray(first)
    for place, base in places:
        address = int.from_bytes(first[place : place + 8], "little") + _far(base)
        words[place : place + 8] = address.to_bytes(8, "little")
    return words == third


def _node(
    first: _Recorded, places: list[tuple[int, int]], bases: tuple[int, ...]
) -> tuple[KernelNode | MemsetNode, list[Slot], list[Slot], object]:
    """Parameters in memory of its own, and where addresses stand there."""
    x = first.parameters
    offsets = {place: int.from_bytes(first.words[place : place + 8], "little") - bases[base] for place, base in places}
    if isinstance(x, MemsetNode):
        return x, [(ctypes.addressof(x), base, offsets[place]) for place, base in places], [], None
    memory = (ctypes.c_uint64 * (len(first.words) // 8)).from_buffer_copy(first.words)
    start = ctypes.addressof(memory)
    begins = itertools.accumulate((-(-len(y) // 8) * 8 for y in first.arguments), initial=start)
    pointers = (ctypes.c_void_p * max(1, len(first.arguments)))(*itertools.islice(begins, len(first.arguments)))
    x.parameters = ctypes.addressof(pointers)
    return x, [(start + place, base, offsets[place]) for place, base in places], [], (memory, pointers)


def _record(queue: Queue, bases: tuple[int, ...]) -> list[_Recorded] | None:
    """What is queued there, in order; None where it holds anything but kernels and memory that is set."""
    graph = ctypes.c_void_p()
    check(driver().cuGraphCreate(ctypes.byref(graph), 0))
    try:
        handles, _ = capture_into(graph, [], queue, bases)
        found = [_recorded(handle) for handle in handles]
        return [x for x in found if x is not None] if None not in found else None
    finally:
        driver().cuGraphDestroy(graph)


def _recorded(handle: int) -> _Recorded | None:
    """A node's parameters, copied; None for one of another kind."""
    cuda, kind = driver(), ctypes.c_int()
    check(cuda.cuGraphNodeGetType(handle, ctypes.byref(kind)))
    if kind.value == _MEMSET:
        memset = MemsetNode()
        check(cuda.cuGraphMemsetNodeGetParams(handle, ctypes.byref(memset)))
        return _Recorded(memset, [])
    if kind.value != _KERNEL:
        return None
    node = KernelNode()
    check(cuda.cuGraphKernelNodeGetParams_v2(handle, ctypes.byref(node)))
    if node.extra or not node.parameters:
        return None
    of, ask = (node.function, cuda.cuFuncGetParamInfo) if node.function else (node.kernel, cuda.cuKernelGetParamInfo)
    pointers = ctypes.cast(node.parameters, ctypes.POINTER(ctypes.c_void_p))
    arguments = []
    for index in itertools.count():
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        if ask(of, index, ctypes.byref(offset), ctypes.byref(size)):
            break  # beyond the last one
        arguments.append(ctypes.string_at(pointers[index] or 0, size.value))
    return _Recorded(node, arguments)


def capture_into(
    graph: ctypes.c_void_p, after: list[int], queue: Queue, bases: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    """Add to a graph what is queued, behind the nodes `after`: the new nodes, and those that none of them waits for."""
    cuda, same = driver(), ctypes.c_void_p()
    before = set(_nodes_of(graph))
    with _stream() as stream:
        # Relaxed, so that what other threads ask of the driver meanwhile neither fails nor spoils the capture.
        check(cuda.cuStreamBeginCaptureToGraph(stream, graph, array(after), None, len(after), RELAXED))
        try:
            queue(bases, stream)
        finally:
            code = cuda.cuStreamEndCapture(stream, ctypes.byref(same))
        check(code)
    nodes = [x for x in _nodes_of(graph) if x not in before]
    return nodes, [x for x in nodes if not _followers(x)]


@contextlib.contextmanager
def _stream() -> Iterator[int]:
    """A stream that nobody else uses; any other kind synchronises with the legacy default stream, which a capture does
    not allow.
    """
    stream = ctypes.c_void_p()
    check(driver().cuStreamCreate(ctypes.byref(stream), NON_BLOCKING))
    try:
        yield stream.value or 0
    finally:
        driver().cuStreamDestroy_v2(stream)


def _nodes_of(graph: ctypes.c_void_p) -> list[int]:
    """A graph's nodes, in the order in which they were added."""
    count = ctypes.c_size_t()
    check(driver().cuGraphGetNodes(graph, None, ctypes.byref(count)))
    if not count.value:
        return []
    nodes = array([0] * count.value)
    check(driver().cuGraphGetNodes(graph, nodes, ctypes.byref(count)))
    return [x or 0 for x in nodes[: count.value]]


def _followers(node: int) -> int:
    """How many nodes wait for one."""
    count = ctypes.c_size_t()
    check(driver().cuGraphNodeGetDependentNodes(node, None, ctypes.byref(count)))
    return count.value


def array(nodes: list[int]) -> ctypes.Array[ctypes.c_void_p]:
    """Handles in memory."""
    return (ctypes.c_void_p * max(1, len(nodes)))(*nodes)
