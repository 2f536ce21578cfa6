"""Programs for a GPU: the kernels of a product in order, compiled once, launched at the addresses of each call.

A product by residues is seven launches whose arguments, but for a few addresses, follow from the shapes. They are
written down once, each address as a buffer behind one of a few bases, and a call fills in the bases. From the second
call on, or once all kernels are compiled (`launch.later`), all launches are one CUDA graph, whose nodes take the
addresses of each call (`launch.graphs`). So a call costs the host about as much as one launch; Triton's own way through
the arguments would cost more than a small product.

Where there is no CUDA driver (AMD's GPUs, Triton's interpreter) the same program runs through Triton's launches.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import math
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prismm.cuda.launch import later
from prismm.cuda.launch.arguments import ADDEND, FACTORS, WORKSPACE, BufferView, Factor, Tiled
from prismm.cuda.launch.captured import ALIGNMENT
from prismm.cuda.launch.compile import (
    Pointer,
    announce,
    announce_later,
    as_tensor,
    described_to_triton,
    encode_map,
    load,
    longest_tail_first,
    read_in_turn,
    side_by_side,
    triton_files,
)
from prismm.cuda.launch.cublas import Gemm
from prismm.cuda.launch.driver import check, driver
from prismm.cuda.launch.graphs import Graph, compiled_queue, follow, is_capturing, stream_beside
from prismm.cuda.launch.steps import Join, Launch, Zero
from prismm.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from typing import Any

    import torch


LONGEST_GRID = 65535
"""Programs along a grid's second and third extent; along the first, 2^31 - 1."""

# Bytes, two lines: more than the 16 that Triton's vector loads and TMA ask of an address.
_ALIGNED = 256

_MOST_GRAPHS = 16
"""Streams, times alignments of what cuBLAS multiplies, for which a program keeps a graph."""


@dataclass
class Program:
    """Launches in order, and the workspace that they share.

    alignments: of the first three bases, a caller's, in bytes modulo 16; workspace is aligned, C need not be. splits:
    elements of the left and the right operand that launches split.
    """

    alignments: tuple[int, int, int] = (0, 0, 0)
    launches: list[Launch | Zero | Join | Gemm] = field(default_factory=list)
    _taken: int = 0
    _most: int = 0
    splits: list[int] = field(default_factory=lambda: [0, 0])
    _forked: bool = False
    _bases: tuple[int, ...] = ()
    _called: bool = False
    _graphs: dict[Hashable, Graph | list[Graph | Gemm] | None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def allocate(self, dtype: torch.dtype, *shape: int) -> BufferView:
        """A buffer in workspace for so many elements."""
        strides = tuple(math.prod(shape[x + 1 :]) for x in range(len(shape)))
        place = BufferView(WORKSPACE, self._taken, dtype, shape, strides)
        self._taken += -(-math.prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED
        self._most = max(self._most, self._taken)
        return place

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """What is allocated inside may be allocated again afterwards: launches run in order."""
        before = self._taken
        yield
        self._taken = before

    @contextlib.contextmanager
    def fork(self) -> Iterator[None]:
        """What is launched inside may run beside what follows, up to `join`."""
        self._forked = True
        yield
        self._forked = False

    def join(self) -> None:
        """What follows needs all that was launched before."""
        if any(getattr(launch, "forked", False) for launch in self.launches):
            self.launches.append(Join())

    @functools.cached_property
    def _has_product(self) -> bool:
        """Whether cuBLAS multiplies somewhere."""
        return any(isinstance(launch, Gemm) for launch in self.launches)

    @property
    def graphs(self) -> list[Graph | list[Graph | Gemm]]:
        """What calls queue on each stream: one graph, or some between products for which cuBLAS has to be called."""
        return [found for found in self._graphs.values() if found is not None]

    @property
    def workspace(self) -> int:
        """Bytes of workspace that a call must bring."""
        return self._most

    def count_split(self, elements: int, *, left: bool) -> None:
        """Add to the elements of an operand that are split."""
        self.splits[0 if left else 1] += elements

    def zero(self, place: BufferView) -> None:
        """Set workspace to zero, in its turn; one driver's call for neighbours."""
        size = -(-math.prod(place.shape) * place.dtype.itemsize // _ALIGNED) * _ALIGNED
        last = self.launches[-1] if self.launches else None
        if isinstance(last, Zero) and last.forked == self._forked and last.offset + last.size == place.offset:
            last.size += size
        elif size:
            self.launches.append(Zero(place.offset, size, self._forked))

    def tiled(self, place: BufferView, shape: tuple[int, int], box: tuple[int, int], layout: Any) -> Tiled:
        """What describes a matrix of workspace, with contiguous rows, to TMA."""
        return Tiled(place, shape, (shape[1], 1), box, layout)

    def aligned(self, place: BufferView) -> bool:
        """Whether this place is aligned to 16 bytes in every call."""
        if place.base == ADDEND:
            return False
        return (place.offset + (self.alignments[place.base] if place.base < WORKSPACE else 0)) % 16 == 0

    def launch(self, kernel: Any, grid: Sequence[int], *arguments: Any, **constants: Any) -> None:
        """kernel[grid](*arguments, **constants), in its turn.

        arguments: all that are no `constexpr`, in order: `BufferView`, `Tiled`, `Factor`, integers, or tensors that
        stay where they are. constants: the others, and Triton's options.
        """
        self.launch_compiled_later({}, kernel, grid, *arguments, **constants)

    def launch_compiled_later(
        self, meanwhile: dict[str, Any] | None, kernel: Any, grid: Sequence[int], *arguments: Any, **constants: Any
    ) -> None:
        """`launch` of a kernel that is compiled in the background (`launch.later`).

        meanwhile: constants that replace some of the kernel's own in the variant that first calls launch; the variant
        has the same effect, and compiles sooner. None: first calls launch nothing, and later launches make up for it.
        """
        x, y, z = (*grid, 1, 1)[:3]
        if max(y, z) > LONGEST_GRID or x >= 1 << 31:
            raise EngineError(f"a launch of {x} x {y} x {z} programs is beyond CUDA's grids; multiply in blocks")
        if x * y * z:
            launch = Launch(kernel, (x, y, z), arguments, constants, self._forked)
            launch.is_put_off = meanwhile is None or {**constants, **meanwhile} != constants
            if launch.is_put_off and meanwhile is not None:
                launch.meanwhile = dataclasses.replace(launch, constants={**constants, **meanwhile}, is_put_off=False)
            self.launches.append(launch)

    def gemm(self, gemm: Gemm) -> None:
        """A product of cuBLAS's, in its turn."""
        self.launches.append(gemm)

    def run(self, bases: tuple[int, ...], stream: int, captured: bool | None = None) -> None:
        """Queue everything on a CUDA stream of the current device.

        bases: addresses, of LEFT and those that follow where a place is behind them, and patterns of factors. captured:
        whether the stream's launches go to a graph of the caller's, where that is known.

        Raises:
            EngineError: where the driver refuses a launch.
        """
        if not captured and self.launch_at_once(bases, stream):
            return
        with self._lock:
            if captured is None:
                captured = is_capturing(stream)
            pieces = None if captured else self._graphs.get(self._key(bases, stream))
            if isinstance(pieces, list):
                self._bases = ()
                for one in pieces:
                    if isinstance(one, Graph):
                        one.launch(bases, stream)
                    else:
                        one.run(bases, stream)
                return
            # A graph that the caller captures would keep the variants for good.
            self._fill(bases, complete=captured)
            self._queue(bases, stream, captured)
            self._called = self._called or not captured

    def launch_at_once(self, bases: tuple[int, ...], stream: int) -> bool:
        """Queue everything as one graph, from the second call on; False, and nothing is queued, where it is none, or
        the stream's launches go to a graph of the caller's.
        """
        key = self._key(bases, stream)
        with self._lock:
            if key not in self._graphs:
                if not self._called or not self._is_complete or is_capturing(stream):
                    return False
                self._make_graph(key, bases)
            found = self._graphs[key]
            # Graphs and single launches share the parameters' memory.
            self._bases = ()
            return isinstance(found, Graph) and found.launch(bases, stream)

    def _key(self, bases: tuple[int, ...], stream: int) -> Hashable:
        """What a graph serves: a stream; where cuBLAS multiplies, which chooses kernels by alignments, those too."""
        if self._has_product and any(x % ALIGNMENT for x in bases[:FACTORS]):
            return stream, *(x % ALIGNMENT for x in bases[:FACTORS])
        return stream

    def _make_graph(self, key: Hashable, bases: tuple[int, ...]) -> None:
        """Put the launches together, in as few pieces as cuBLAS's products leave; None where the driver makes no graph
        of them, and calls queue one by one.
        """
        if len(self._graphs) >= _MOST_GRAPHS:
            self._graphs.clear()
        self._fill(bases)
        try:
            pieces = self._pieces(bases)
            self._graphs[key] = pieces[0] if len(pieces) == 1 and isinstance(pieces[0], Graph) else pieces
        except (EngineError, AttributeError):  # the latter from a driver that lacks a function
            self._graphs[key] = None

    def _pieces(self, bases: tuple[int, ...]) -> list[Graph | Gemm]:
        """The launches as graphs, and products of cuBLAS's that no graph takes."""
        done = list[Graph | Gemm]()
        graph, last, beside = Graph(), list[int](), list[int]()
        for launch in self.launches:
            if isinstance(launch, Join):
                last, beside = last + beside, []
            elif isinstance(launch, Gemm):
                found = graph.product(launch.run, bases, last)
                if found is None:
                    done += [graph, launch] if graph else [launch]
                    graph, last, beside = Graph(), [], []
                else:
                    last = found
            else:
                after = (beside or last) if launch.forked else last
                if isinstance(launch, Zero):
                    node = graph.zero(WORKSPACE, launch.offset, launch.size, bases[WORKSPACE], after)
                else:
                    assert launch.ready is not None
                    node = graph.kernel(launch.ready, after)
                if launch.forked:
                    beside = node
                else:
                    last = node
        done += [graph] if graph else []
        for one in done:
            if isinstance(one, Graph):
                one.finish()
        return done

    def run_in_stages(self, bases: tuple[int, ...], stream: int, begin: Callable[[str | None], None]) -> None:
        """`run` launch by launch on one stream, for a report.

        Args:
            bases, stream: as for `run`.
            begin: is told the stage (`launch.stages`) before its first launch, and None at the end.
        """
        with self._lock:
            self._fill(bases)
            stage = None
            for launch in self.launches:
                if isinstance(launch, Join):
                    continue
                # Memory is set to zero for what follows.
                found = stage if isinstance(launch, Zero) else launch.stage
                if found is not None and found != stage:
                    begin(stage := found)
                self._launch(launch, bases, stream)
            begin(None)

    @property
    def _is_complete(self) -> bool:
        """Whether all kernels are there."""
        return all(launch.ready is not None for launch in self._kernels())

    def _make_ready(self, complete: bool) -> None:
        """Load all kernels, or, if `complete` is false and some are still being compiled, their variants instead."""
        complete = complete or not later.goes_on()
        missing = [launch for launch in self._kernels() if launch.ready is None]
        put_off = [launch for launch in missing if launch.is_put_off]
        with later.awaited():
            begun = [launch for launch in put_off if launch.promise is None or (complete and launch.has_failed)]
            for launch in begun:
                launch.promise = self._compile_later(launch)
            # Variants are replaced together: one of these kernels may read what another one writes.
            complete = complete or all(launch.is_compiled for launch in put_off)
            now = [launch for launch in missing if not launch.is_put_off]
            if not complete:
                announce_later({launch.kernel.fn.__name__ for launch in begun if not launch.is_compiled})
                now += [x.meanwhile for x in put_off if x.meanwhile is not None and x.meanwhile.ready is None]
            for launch, compiled in self._compile_all(now, compiled_queue) if now else ():
                launch.ready = load(compiled, launch.grid, launch.arguments)
        for launch in put_off if complete else ():
            assert launch.promise is not None
            launch.ready = load(launch.promise.result(), launch.grid, launch.arguments)

    def _compile_later(self, launch: Launch) -> Future[Any]:
        """Start the background compilation of a launch's kernel for the current device."""
        from triton.runtime.driver import driver as triton_driver

        gpu = triton_driver.active
        device = gpu.get_current_device()

        def compile_it() -> Any:
            gpu.set_current_device(device)  # each thread has its own
            with triton_files():
                return self._compile(launch)

        return later.begin((id(launch.kernel), device), compile_it)

    def _fill(self, bases: tuple[int, ...], *, complete: bool = False) -> None:
        """The addresses of a call, in the parameters of all launches. complete: whether all kernels must be there."""
        if not self._is_complete:
            self._bases = ()
            self._make_ready(complete)
        if bases == self._bases:
            return
        self._bases = ()  # until all are in: the driver may refuse one
        for ready in filter(None, (launch.now for launch in self._kernels())):
            for slot, base, offset in ready.slots:
                slot.value = bases[base] + offset
            for target, tiled, facts in ready.maps:
                encode_map(target, bases[tiled.buffer.base] + tiled.buffer.offset, tiled, facts)
        self._bases = bases

    def _queue(self, bases: tuple[int, ...], stream: int, parallel: bool) -> None:
        """Every launch to the driver. parallel: what may run beside others goes to a stream of its own, which only a
        capture makes cheaper than one after the other.
        """
        if not parallel or not any(isinstance(launch, Join) for launch in self.launches):
            for launch in self.launches:
                if not isinstance(launch, Join):
                    self._launch(launch, bases, stream)
            return
        with stream_beside(stream) as other:
            apart = stream
            for launch in self.launches:
                if isinstance(launch, Join):
                    if apart != stream:
                        follow(stream, apart)
                        apart = stream
                    continue
                if launch.forked and apart != other:
                    follow(other, stream)
                    apart = other
                self._launch(launch, bases, apart if launch.forked else stream)

    def _launch(self, launch: Launch | Zero | Gemm, bases: tuple[int, ...], stream: int) -> None:
        """One launch to the driver, or cuBLAS's."""
        if isinstance(launch, Gemm):
            launch.run(bases, stream)
            return
        cuda = driver()
        if isinstance(launch, Zero):
            check(cuda.cuMemsetD8Async(bases[WORKSPACE] + launch.offset, 0, launch.size, stream))
            return
        ready = launch.now
        if ready is None:
            return
        ready.config.stream = stream
        code = cuda.cuLaunchKernelEx(ready.config_place, ready.function, ready.parameters, None)
        if code:
            check(code)

    def single_launches(self) -> list[tuple[str, Program]]:
        """Every kernel's launch as a program of its own, by the kernel's name; for measurements."""
        return [
            (launch.kernel.fn.__name__, Program(self.alignments, [launch], self._taken, self._most))
            for launch in self._kernels()
        ]

    def run_by_triton(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *others: torch.Tensor, factors: Sequence[int] = (),
        prepare: Callable[[torch.Tensor], Any] | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Everything through Triton's own launches; returns the workspace. others: the memory of LEFT, RIGHT and
        ADDEND; factors: patterns of float64 numbers; prepare: is given the workspace before anything runs.
        """
        import torch

        workspace = torch.empty(self.workspace, dtype=torch.uint8, device=out.device)
        if prepare is not None:
            prepare(workspace)
        reals = [torch.view_as_real(x) if x.is_complex() else x for x in (a, b, out, *others)]
        bases = (*reals[:3], workspace, *reals[3:])
        for launch in self.launches:
            if isinstance(launch, Join):
                continue
            if isinstance(launch, Gemm):
                raise EngineError("cuBLAS multiplies where there is CUDA's driver")
            if isinstance(launch, Zero):
                workspace[launch.offset : launch.offset + launch.size].zero_()
                continue
            arguments = [
                as_tensor(x, bases) if isinstance(x, BufferView)
                else factors[x.index] if isinstance(x, Factor)
                else described_to_triton(x, as_tensor(x.buffer, bases)) if isinstance(x, Tiled)
                else x
                for x in launch.arguments
            ]  # fmt: skip
            with triton_files():
                launch.kernel[launch.grid](*arguments, **launch.constants)
        return workspace

    def compiled(self) -> Iterator[tuple[str, Any]]:
        """Every launch's kernel by name, as Triton compiles it for its active driver's GPU."""
        for launch, found in self._compile_all(self._kernels()):
            yield launch.kernel.fn.__name__, found

    def _kernels(self) -> Iterator[Launch]:
        return (launch for launch in self.launches if isinstance(launch, Launch))

    def _compile_all(
        self, launches: Iterable[Launch], beside: Callable[[], object] = lambda: None
    ) -> list[tuple[Launch, Any]]:
        """These with their kernels; those that Triton has not compiled before, side by side: a product's take 5 to 20
        seconds one after the other. beside: what this thread does meanwhile.
        """

        def compile_all(some: list[Launch]) -> list[tuple[Launch, Any]]:
            with triton_files():
                with side_by_side():
                    compiled = {id(launch): self._compile(launch) for launch in longest_tail_first(some)}
                    announce((launch.kernel.fn.__name__, compiled[id(launch)]) for launch in some)
                    beside()
                found = ((launch, compiled[id(launch)]) for launch in some)
                # Of one that was not there before Triton gives a promise.
                return [(x, y.result() if hasattr(y, "result") else y) for x, y in found]

        # In a context of its own: after an error inside, Triton's mode would stay on, and every later kernel fail.
        return contextvars.copy_context().run(compile_all, list(launches))

    def _compile(self, launch: Launch) -> Any:
        mocks: list[Any] = []
        for x in launch.arguments:
            if isinstance(x, BufferView):
                # Triton compiles for addresses that are multiples of 16, or for others, for which 8 stands.
                mocks.append(Pointer(x.dtype, 0 if self.aligned(x) else 8))
            elif isinstance(x, Tiled):
                mocks.append(described_to_triton(x, Pointer(x.buffer.dtype, 0, x.shape)))
            elif isinstance(x, Factor):
                # Any number that Triton takes for an int64: the type must not depend on a call's pattern.
                mocks.append(1 << 40)
            else:
                mocks.append(x)
        read_in_turn(launch.kernel)
        return launch.kernel.run(*mocks, grid=launch.grid, warmup=True, **launch.constants)
