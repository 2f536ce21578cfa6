"""Gluon kernels in Triton's interpreter: what they compute, and that they wait for what they read.

Each partition of a warp-specialised kernel is a thread, which waits at mbarriers as a GPU's warps do. One runs at a
time, always the last of those that need not wait: the one that copies, as far ahead as barriers let it, the same way in
every run. Whatever is asynchronous happens as late as it may: a TMA copy arrives when its barrier is waited for, an
asynchronous copy when its group is, and a matrix instruction reads shared memory and writes its sums when it is waited
for; until then sums and memory hold rubbish, memory from the moment that the next copy into it begins. So a kernel that
reads too early, or gives a stage back too early, goes wrong here.

Layouts say nothing, but for assembly of several elements: there they say which thread has which. Within a partition
there is one thread, so barriers among its warps do nothing.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime import interpreter, jit

from prismm.cuda.device import Device
from prismm.cuda.multiword.kernels import (
    product_sm90 as words_product_sm90,
)
from prismm.cuda.multiword.kernels import (
    split_product_sm90 as words_direct_sm90,
)
from prismm.cuda.multiword.kernels import (
    split_sm90 as words_split_sm90,
)
from prismm.cuda.native.kernels import product as direct
from prismm.cuda.native.kernels import product_sm90 as direct_sm90
from prismm.cuda.residues.kernels import product_sm90, split_sm90
from prismm.cuda.residues.kernels import split_fragments_sm90 as split_fragments
from prismm.cuda.slices.kernels import product_sm90 as slice_product_sm90
from prismm.cuda.tile_int8.kernels import product_sm90 as tile_product_sm90
from tests.cuda.harness import ptx

_NUMPY = {tl.bfloat16: np.dtype(np.uint16)}


def number(x: Any) -> Any:
    """A constant, or a number of the interpreter's, as one of Python's."""
    x = x.value if isinstance(x, tl.constexpr) else x
    return x.handle.data.item() if isinstance(x, tl.core.tensor) else x


def tensor_of(data: np.ndarray, kind: Any) -> Any:
    """A block of numbers."""
    return tl.core.tensor(interpreter.TensorHandle(data, kind), tl.block_type(kind, list(data.shape)))


def rubbish(shape: list[int], kind: Any) -> np.ndarray:
    """Numbers that nothing was written to: NaN, or 0xA5 in every byte."""
    found = np.empty([number(x) for x in shape], interpreter._get_np_dtype(kind))
    spoil(found)
    return found


def spoil(x: np.ndarray) -> None:
    """Overwrite with rubbish."""
    x[...] = np.nan if x.dtype.kind == "f" else np.frombuffer(b"\xa5" * x.itemsize, x.dtype)[0]


def swizzled(x: np.ndarray, layout: gl.NVMMASharedLayout) -> np.ndarray:
    """The elements of a tile in the order in which TMA puts them: panels of as many columns as the swizzle has bytes,
    in which 16 bytes change places with others of their row by bits 7 to 9 of the address.
    """
    width, size = layout.swizzle_byte_width, x.itemsize
    assert width in (32, 64, 128) and not layout.transposed
    rows, columns = math.prod(x.shape[:-1]), x.shape[-1]
    row, column = np.divmod(np.arange(rows * columns), columns)
    address = column * size // width * rows * width + row * width + column * size % width
    address ^= (address >> 7 & width // 16 - 1) << 4
    found = np.empty(x.size, x.dtype)
    found[address // size] = x.reshape(-1)
    return found


class Shared:
    """A tile in shared memory, or a part of one."""

    def __init__(self, kind: Any, data: np.ndarray, layout: Any = None, onwards: np.ndarray | None = None):
        self.kind, self.data, self.layout = kind, data, layout
        self.onwards = data if onwards is None else onwards
        """The memory from where this begins."""

    def index(self, at: Any) -> Shared:
        """One of the first axis."""
        return Shared(self.kind, self.data[number(at)], self.layout, self.data[number(at) :])

    def _reinterpret(self, kind: Any, shape: list[Any], layout: gl.SharedLinearLayout | gl.NVMMASharedLayout) -> Shared:
        """What stands there now, as memory in another layout has it; the same memory, where no layout changes, or where
        it is to be overwritten by numbers of another kind.
        """
        if isinstance(layout, gl.NVMMASharedLayout):
            shape = [number(x) for x in shape]
            if kind == self.kind and math.prod(shape) == self.data.size:
                assert layout.swizzle_byte_width == self.layout.swizzle_byte_width
                return Shared(kind, self.data.reshape(shape), layout)
            memory = self.onwards.reshape(-1).view(interpreter._get_np_dtype(kind))[: math.prod(shape)].reshape(shape)
            assert np.shares_memory(memory, self.data)
            return Shared(kind, memory, layout)
        assert kind == self.kind
        place = np.zeros((1, len(shape)), np.int64)
        for base in layout.offset_bases:
            place = np.concatenate([place, place ^ np.array(base)])
        found = np.empty([number(x) for x in shape], self.data.dtype)
        found[tuple(place.T)] = swizzled(self.data, self.layout)
        return Shared(kind, found)

    def slice(self, start: Any, length: Any, axis: int = 0) -> Shared:
        """Elements from start on along an axis."""
        place = [slice(None)] * self.data.ndim
        place[axis] = slice(number(start), number(start) + number(length))
        return Shared(self.kind, self.data[tuple(place)])

    def permute(self, order: tuple[int, ...]) -> Shared:
        """The same memory with its axes in another order."""
        return Shared(self.kind, self.data.transpose(order))

    def load(self, layout: Any) -> Any:
        """What stands there now."""
        found = tensor_of(self.data.copy(), self.kind)
        found.placed = layout.value if isinstance(layout, tl.constexpr) else layout
        return found

    def store(self, x: Any) -> None:
        """Overwrite it."""
        assert tuple(x.handle.data.shape) == self.data.shape
        self.data[...] = x.handle.data


class Stopped(Exception):
    """Another partition failed."""


class Turns:
    """Partitions of which one runs at a time: the last one whose condition holds."""

    def __init__(self, count: int):
        self.changed = threading.Condition()
        self.ready: list[Callable[[], bool] | None] = [lambda: True] * count
        """What each waits for; None of those that have ended."""
        self.turn: int | None = count - 1
        self.failure: BaseException | None = None

    def wait(self, own: int, ready: Callable[[], bool]) -> None:
        """Until the condition holds, and none of a later partition does."""
        with self.changed:
            self.ready[own] = ready
            self._choose()
            self.changed.wait_for(lambda: self.turn == own or self.failure is not None)
            if self.failure is not None:
                raise Stopped

    def end(self, own: int, failure: BaseException | None = None) -> None:
        """This partition is through, or all are, if it failed."""
        with self.changed:
            self.ready[own] = None
            if failure is not None and self.failure is None:
                self.failure = failure
            self._choose()

    def _choose(self) -> None:
        waiting = [(x, ready) for x, ready in enumerate(self.ready) if ready is not None]
        self.turn = max((x for x, ready in waiting if ready()), default=None)
        if waiting and self.turn is None and self.failure is None:
            self.failure = RuntimeError("a barrier is waited for that nobody completes")
        self.changed.notify_all()


class Own(threading.local):
    """Which partition a thread is, if any."""

    turns: Turns | None = None
    number = 0

    def give_way(self, ready: Callable[[], bool] = lambda: True) -> None:
        """To partitions that go first, and to all until the condition holds."""
        if self.turns is not None:
            self.turns.wait(self.number, ready)
        elif not ready():
            raise RuntimeError("a barrier is waited for that nobody completes")


_OWN = Own()


class Barrier:
    """An mbarrier: a phase ends when all have arrived, and as many bytes as were announced."""

    def __init__(self) -> None:
        self.count = self.left = self.announced = self.copied = self.phase = 0
        self.on_the_way: list[tuple[Shared, np.ndarray]] = []
        self.there: list[tuple[Shared, np.ndarray]] = []

    def init(self, count: int) -> None:
        """Have so many arrive in every phase."""
        self.count = self.left = count

    def arrive(self, count: int, announced: int = 0) -> None:
        """So many arrive, and announce so many bytes."""
        assert self.count > 0, "a barrier that nobody has made"
        assert self.left >= count, "more arrive than were expected"
        self.left -= count
        self.announced += announced
        self._settle()
        _OWN.give_way()

    def copy(self, target: Shared, found: np.ndarray) -> None:
        """What a copy brings, when its phase is waited for."""
        assert target.data.shape == found.shape and target.data.dtype == found.dtype
        spoil(target.data)
        self.on_the_way.append((target, found))
        self.copied += found.nbytes
        self._settle()

    def _settle(self) -> None:
        """End the phase, once everything is there."""
        if self.left == 0 and self.announced == self.copied:
            self.there += self.on_the_way
            self.on_the_way, self.announced, self.copied = [], 0, 0
            self.left = self.count
            self.phase += 1

    def wait(self, phase: int) -> None:
        """Until the phase of this parity has ended."""
        _OWN.give_way(lambda: self.phase % 2 != phase % 2)
        for target, found in self.there:
            target.data[...] = found
        self.there = []


class Barriers:
    """So many in shared memory."""

    def __init__(self, count: int):
        self.each = [Barrier() for _ in range(count)]

    def index(self, at: Any) -> Barrier:
        return self.each[number(at)]


def _arrive(barrier: Barrier, count: int = 1, pred: Any = True) -> None:
    if number(pred):
        barrier.arrive(number(count))


MBARRIER = SimpleNamespace(
    MBarrierLayout=lambda: Barriers, init=lambda barrier, count: barrier.init(number(count)), arrive=_arrive,
    expect=lambda barrier, size, pred=True: barrier.arrive(1, number(size)) if number(pred) else None,
    wait=lambda barrier, phase, pred=True: barrier.wait(number(phase)) if number(pred) else None,
)  # fmt: skip


class Described:
    """A matrix that TMA copies from, as a kernel sees it."""

    def __init__(self, of: TensorDescriptor):
        self.matrix = torch.as_strided(of.base, of.shape, of.strides)
        self.dtype = tl.str_to_ty(jit.mangle_type(of.base), None).element_ty
        self.box, self.layout = tuple(of.block_shape), of.layout
        self.block_type = SimpleNamespace(nbytes=math.prod(self.box) * self.matrix.element_size())

    def at(self, *start: int) -> np.ndarray:
        """A box from there on; zeros outside of the matrix."""
        found = torch.zeros(self.box, dtype=self.matrix.dtype)
        inside = self.matrix[self._part(start)]
        found[tuple(slice(0, x) for x in inside.shape)] = inside
        return (found.view(torch.uint16) if found.dtype == torch.bfloat16 else found).numpy()

    def store(self, box: np.ndarray, *start: int) -> None:
        """Overwrite what is there of a box from there on."""
        target = self.matrix[self._part(start)]
        target.copy_(torch.from_numpy(box)[tuple(slice(0, x) for x in target.shape)])

    def _part(self, start: tuple[int, ...]) -> tuple[slice, ...]:
        return tuple(slice(x, x + step) for x, step in zip(start, self.box, strict=True))


def _copy_tile(source: Described, at: list[Any], barrier: Barrier, target: Shared, pred: Any = True) -> None:
    if number(pred):
        barrier.copy(target, source.at(*map(number, at)))


class Stores(threading.local):
    """Copies out of shared memory, which they read when they are waited for."""

    def __init__(self) -> None:
        self.begun: list[tuple[Described, list[int], Shared]] = []

    def begin(self, target: Described, at: list[Any], source: Shared) -> None:
        """One of a tile."""
        self.begun.append((target, [number(x) for x in at], source))

    def wait(self, left: Any) -> None:
        """All but the last ones have read their tiles."""
        while len(self.begun) > number(left):
            target, at, source = self.begun.pop(0)
            target.store(source.data, *at)


_STORES = Stores()


def allocate_shared_memory(kind: Any, shape: list[Any], layout: Any) -> Shared | Barriers:
    """Memory that nothing was written to, or barriers."""
    return Barriers(number(shape[0])) if layout is Barriers else Shared(kind, rubbish(shape, kind), layout)


class Copies(threading.local):
    """Asynchronous copies, in groups, that arrive when they are waited for."""

    def __init__(self) -> None:
        self.begun: list[tuple[Shared, np.ndarray]] = []
        self.groups: list[list[tuple[Shared, np.ndarray]]] = []

    def async_copy_global_to_shared(self, target: Shared, pointers: Any, mask: Any) -> None:
        """0 where the mask is not set."""
        found = tl.load(pointers, mask=mask & (tl.zeros(pointers.shape, tl.int32) == 0), other=0.0).handle.data
        assert found.shape == target.data.shape and found.dtype == target.data.dtype
        spoil(target.data)
        self.begun.append((target, found))

    def commit_group(self) -> None:
        """What has begun is a group."""
        self.groups.append(self.begun)
        self.begun = []

    def wait_group(self, left: int) -> None:
        """All groups but the last ones have arrived."""
        while len(self.groups) > number(left):
            for target, found in self.groups.pop(0):
                target.data[...] = found


def _matrix(x: Shared) -> np.ndarray:
    """Operands of matrix instructions in float64, which holds them."""
    if x.kind == tl.bfloat16:
        return (x.data.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if x.kind == tl.float32:  # of TF32, whose instructions do not read the last 13 bits
        return (x.data.copy().view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    return x.data.astype(np.float64)


class Groups(threading.local):
    """Asynchronous matrix instructions of a warpgroup."""

    def __init__(self) -> None:
        self.begun: list[tuple[Shared, Shared, np.ndarray | None, np.ndarray]] = []

    def multiply(self, left: Shared, right: Shared, sums: Any, use_acc: Any = True, is_async: bool = False) -> Any:
        """sums, or 0, + left @ right: exact of integers, of others rounded once."""
        assert is_async
        kind = sums.dtype
        found = rubbish(list(sums.handle.data.shape), kind)
        self.begun.append((left, right, sums.handle.data if number(use_acc) else None, found))
        return tensor_of(found, kind)

    def wait(self, left: Any, deps: tuple[Any, ...]) -> Any:
        """All but the last ones have read their operands and written their sums."""
        while len(self.begun) > number(left):
            x, y, start, found = self.begun.pop(0)
            with np.errstate(all="ignore"):
                product = _matrix(x) @ _matrix(y)
                found[...] = (product if start is None else product + start).astype(found.dtype)
        return deps if len(deps) > 1 else deps[0]


_COPIES, _GROUPS = Copies(), Groups()


def mma_v2(x: Any, y: Any, sums: Any) -> Any:
    """sums + x @ y of float64, in an order of NumPy's."""
    assert x.dtype == y.dtype == sums.dtype == tl.float64
    with np.errstate(all="ignore"):
        return tensor_of(sums.handle.data + x.handle.data @ y.handle.data, tl.float64)


def warp_specialize(partitions: list[tuple[Any, tuple[Any, ...]]], warps: list[int], registers: list[int]) -> None:
    """All partitions, each until it waits."""
    turns = Turns(len(partitions))

    def run(own: int, function: Any, arguments: tuple[Any, ...]) -> None:
        _OWN.turns, _OWN.number = turns, own
        try:
            _OWN.give_way()
            function(*arguments)
            assert not _GROUPS.begun, "matrix instructions that nobody waits for"
            assert not _STORES.begun, "copies that nobody waits for"
        except BaseException as error:
            turns.end(own, error)
        else:
            turns.end(own)

    threads = [threading.Thread(target=run, args=(x, *each), daemon=True) for x, each in enumerate(partitions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if turns.failure is not None:
        raise turns.failure


def _places(layout: gl.DistributedLinearLayout) -> np.ndarray:
    """Which element, by its place in the flat tensor, thread and register hold: (warps, registers, lanes)."""

    def all_of(bases: list[list[int]]) -> np.ndarray:
        found = np.zeros((1, len(layout.shape)), np.int64)
        for base in bases:
            found = np.concatenate([found, found ^ np.array(base)])
        return found

    parts = all_of(layout.warp_bases), all_of(layout.reg_bases), all_of(layout.lane_bases)
    where = parts[0][:, None, None] ^ parts[1][None, :, None] ^ parts[2][None, None, :]
    return np.ravel_multi_index(tuple(np.moveaxis(where, -1, 0)), tuple(layout.shape))


def inline_asm_elementwise(
    code: Any, constraints: Any, values: list[Any], dtype: Any, is_pure: bool, pack: int
) -> Any:  # fmt: skip
    """Of `pack` neighbouring registers of a thread at a time; of more than one, tensors in the first one's layout."""
    if number(pack) == 1:
        return tl.inline_asm_elementwise(code, constraints, values, dtype=dtype, is_pure=is_pure, pack=1)
    places = _places(values[0].placed)
    warps, registers, lanes = places.shape
    shape = values[0].handle.data.shape
    operands = []
    for x in values:
        flat = np.broadcast_to(x.handle.data, shape).reshape(-1)[places]
        operands.append(np.moveaxis(flat.reshape(warps, registers // pack, pack, lanes), 2, -1))
    found = ptx.threads(number(code), number(constraints).count("="), operands)
    results = []
    for kind in dtype if isinstance(dtype, tuple) else (dtype,):
        result = np.empty(math.prod(shape), interpreter._get_np_dtype(kind))
        count = number(pack) * result.itemsize // 4  # registers of a piece
        own, found = np.ascontiguousarray(found[..., :count]), found[..., count:]
        result[places] = np.moveaxis(own.view(result.dtype), -1, 2).reshape(warps, registers, lanes)
        results.append(tensor_of(result.reshape(shape), kind))
    return tuple(results) if isinstance(dtype, tuple) else results[0]


def reduce(x: Any, axis: Any, combine: Any) -> Any:
    """Along an axis, or over all elements: halves with each other, as a function of two blocks says."""
    data, axis = x.handle.data, number(axis)
    data = data.reshape(-1) if axis is None else np.moveaxis(data, axis, 0)
    while (half := len(data) // 2) > 0:
        data = combine(tensor_of(data[:half], x.dtype), tensor_of(data[half:], x.dtype)).handle.data
    if data.ndim > 1:
        return tensor_of(data[0], x.dtype)
    return tl.core.tensor(interpreter.TensorHandle(data, x.dtype), x.dtype)


class Kernel(interpreter.InterpretedFunction):
    """A function of Gluon's."""

    def run(self, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
        given = [Described(x) if isinstance(x, TensorDescriptor) else x for x in arguments]
        super().run(*given, grid=grid, warmup=warmup, **named)


_type_named = jit._normalize_ty


def _normalized(kind: Any) -> str:
    """The interpreter reads types as they are written, as tl's alone."""
    return _type_named(kind.removeprefix("gl.") if isinstance(kind, str) else kind)


_to_tensor = interpreter.interpreter_semantic.to_tensor


def _all_to_tensors(x: Any, check_type: bool = True) -> Any:
    """The interpreter makes numbers of numbers that are assigned, but not of several at once."""
    if type(x) is tuple and x and all(type(each) is int for each in x):
        return tuple(_to_tensor(each, check_type) for each in x)
    return _to_tensor(x, check_type)


def _language() -> SimpleNamespace:
    """`gl`, as what runs here sees it."""
    same = {
        name: lambda *arguments, _name=name, **named: getattr(tl, _name)(*arguments, **named)
        for name in (
            "program_id", "num_programs", "cdiv", "abs", "max", "min", "sum", "maximum", "minimum", "where", "load",
            "store", "join", "split", "fma", "broadcast",
        )
    }  # fmt: skip
    kinds = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64")
    return SimpleNamespace(
        **{name: getattr(gl, name) for name in dir(gl) if name.endswith("Layout")},
        **{name: getattr(tl, name) for name in (*kinds, "constexpr", "pointer_type")},
        **same,
        static_range=lambda *limits: range(*map(number, limits)),
        static_assert=lambda condition, text="": None,
        arange=lambda start, end, layout=None: tl.arange(number(start), number(end)),
        zeros=lambda shape, kind, layout=None: tl.zeros([number(x) for x in shape], kind),
        full=lambda shape, value, kind, layout=None: tl.full([number(x) for x in shape], value, kind),
        convert_layout=lambda x, layout, assert_trivial=False: x,
        thread_barrier=lambda: None,
        allocate_shared_memory=allocate_shared_memory,
        inline_asm_elementwise=inline_asm_elementwise,
        reduce=reduce,
        warp_specialize=warp_specialize,
    )


def interpret(*modules: ModuleType) -> None:
    """Have modules' Gluon functions run here from now on, in this module's order of imports."""
    stands_in = {
        "gl": _language(), "tl": tl, "async_copy": _COPIES, "mma_v2": mma_v2, "mbarrier": MBARRIER,
        "fence_async_shared": lambda: None,
        "tma": SimpleNamespace(
            async_copy_global_to_shared=_copy_tile, async_copy_shared_to_global=_STORES.begin, store_wait=_STORES.wait
        ),
        "warpgroup_mma": _GROUPS.multiply, "warpgroup_mma_wait": _GROUPS.wait,
    }  # fmt: skip
    functions: dict[int, Kernel] = {}
    for module in modules:
        for name, value in list(vars(module).items()):
            if isinstance(value, GluonJITFunction):
                setattr(module, name, functions.setdefault(id(value), Kernel(value.fn)))
            elif name in stands_in and not inspect.ismodule(value):
                setattr(module, name, stands_in[name])
        vars(module).update(gl=stands_in["gl"], tl=tl)
        for name in ("async_copy", "mbarrier", "tma"):
            if name in vars(module):
                setattr(module, name, stands_in[name])
    jit._normalize_ty = _normalized
    interpreter.interpreter_semantic.to_tensor = _all_to_tensors
    tl.block_type.layout = None


def interpreted_device(name: str) -> Device:
    """A device that has all that is written for sm_90 ("hopper"), for other GPUs of NVIDIA's, or for none ("any")."""
    if name == "hopper":
        interpret(
            direct, product_sm90, direct_sm90, split_fragments, split_sm90, slice_product_sm90,
            tile_product_sm90, words_product_sm90, words_split_sm90, words_direct_sm90,
        )  # fmt: skip
    return Device("interpreter", name == "hopper", name != "any", 4)
