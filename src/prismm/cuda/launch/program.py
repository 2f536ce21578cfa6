"""Programs for a GPU: the kernels of a product in order, compiled once, launched at the addresses of each call.

A product by residues is seven launches whose arguments, but for a few addresses, follow from the shapes. They are
written down once, each address as a buffer behind one of a few bases, and a call fills in the bases. So a launch costs
what the driver asks for it; Triton's own way through the arguments would cost more than a small product. Calls at
addresses that were seen several times replay all launches as one CUDA graph (`launch.graphs`).

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

from prismm.cuda.launch.arguments import ADDEND, OUT, WORKSPACE, BufferView, Factor, Tiled
from prismm.cuda.launch.compile import (
    Pointer,
    as_tensor,
    described_to_triton,
    encode_map,
    load,
    side_by_side,
    triton_files,
)
from prismm.cuda.launch.cublas import Gemm
from prismm.cuda.launch.driver import check, driver
from prismm.cuda.launch.graphs import Replay, follow, is_capturing, stream_beside
from prismm.cuda.launch.stages import stage_of
from prismm.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    import torch

    from prismm.cuda.launch.compile import Ready


LONGEST_GRID = 65535
"""Programs along a grid's second and third extent; along the first, 2^31 - 1."""

# Bytes, two lines: more than the 16 that Triton's vector loads and TMA ask of an address.
_ALIGNED = 256

_TURNS = 3
"""Calls at the same addresses after which they are replayed."""

_MOST_REPLAYS = 32
"""Sets of addresses that are remembered."""


@dataclass
class _Launch:
    kernel: Any
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    forked: bool = False
    ready: Ready | None = None

    @property
    def stage(self) -> str:
        """See `launch.stages`."""
        return stage_of(self.kernel)


@dataclass
class _Zero:
    """Workspace to be set to zero."""

    offset: int
    size: int
    forked: bool = False


def _names(launch: Any, base: int) -> bool:
    """Whether a launch is given an address behind a base."""
    places = (x.buffer if isinstance(x, Tiled) else x for x in getattr(launch, "arguments", ()))
    return any(isinstance(x, BufferView) and x.base == base for x in places)


class _Join:
    """Where launches wait for what was forked before."""


@dataclass
class Program:
    """Launches in order, and the workspace that they share.

    alignments: of the first three bases, a caller's, in bytes modulo 16; workspace is aligned, C need not be. splits:
    elements of the left and the right operand that launches split.
    """

    alignments: tuple[int, int, int] = (0, 0, 0)
    launches: list[_Launch | _Zero | _Join | Gemm] = field(default_factory=list)
    _taken: int = 0
    _most: int = 0
    splits: list[int] = field(default_factory=lambda: [0, 0])
    _forked: bool = False
    _bases: tuple[int, ...] = ()
    _replays: dict[tuple[int, ...], int | Replay] = field(default_factory=dict)
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
            self.launches.append(_Join())

    @property
    def replayed(self) -> int:
        """At how many sets of addresses a call is one launch by now."""
        return sum(isinstance(found, Replay) for found in self._replays.values())

    @functools.cached_property
    def prologue_and_epilogue(self) -> tuple[Program, Program] | None:
        """What can run before there is a result, and what follows, as programs of their own; None where the result is
        asked for at once.
        """
        first = next((x for x, launch in enumerate(self.launches) if _names(launch, OUT)), 0)
        # What runs beside something else has to have met it.
        if not first or any(getattr(launch, "forked", False) for launch in self.launches[first:]):
            return None
        # Parameters are filled in for each program, so launches are its own.
        launches = [dataclasses.replace(x, ready=None) if isinstance(x, _Launch) else x for x in self.launches]
        prologue, epilogue = (
            Program(self.alignments, some, self._taken, self._most) for some in (launches[:first], launches[first:])
        )
        return prologue, epilogue

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
        if isinstance(last, _Zero) and last.forked == self._forked and last.offset + last.size == place.offset:
            last.size += size
        elif size:
            self.launches.append(_Zero(place.offset, size, self._forked))

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
        x, y, z = (*grid, 1, 1)[:3]
        if max(y, z) > LONGEST_GRID or x >= 1 << 31:
            raise EngineError(f"a launch of {x} x {y} x {z} programs is beyond CUDA's grids; multiply in blocks")
        if x * y * z:
            self.launches.append(_Launch(kernel, (x, y, z), arguments, constants, self._forked))

    def gemm(self, gemm: Gemm) -> None:
        """A product of cuBLAS's, in its turn."""
        self.launches.append(gemm)

    def replay(self, bases: tuple[int, ...], stream: int) -> bool:
        """`run` where all launches at these addresses are one by now, on a stream that nobody captures; whether they
        were.
        """
        found = self._replays.get(bases)
        if found is None or isinstance(found, int):
            return False
        found.run(stream)
        return True

    def run(self, bases: tuple[int, ...], stream: int, captured: bool | None = None) -> None:
        """Queue everything on a CUDA stream of the current device.

        bases: addresses, of LEFT and those that follow where a place is behind them, and patterns of factors. captured:
        whether the stream's launches go to a graph of the caller's, where that is known.

        Raises:
            EngineError: where the driver refuses a launch.
        """
        capturing = is_capturing(stream) if captured is None else captured
        if not capturing and self.replay(bases, stream):
            return
        with self._lock:
            self._fill(bases)
            self._queue(bases, stream, capturing)
            known = self._replays.get(bases, 0)
            if capturing or isinstance(known, Replay):  # another thread's, meanwhile
                return
            self._replays[bases] = known + 1
            if known + 1 == _TURNS:
                # Where the driver makes no graph of it, calls go on as before.
                with contextlib.suppress(EngineError):
                    self._replays[bases] = Replay(lambda capturing_stream: self._queue(bases, capturing_stream, True))
            if len(self._replays) > _MOST_REPLAYS:
                once = (x for x, found in self._replays.items() if isinstance(found, int) and x != bases)
                del self._replays[next(once, next(iter(self._replays)))]

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
                if isinstance(launch, _Join):
                    continue
                # Memory is set to zero for what follows.
                found = stage if isinstance(launch, _Zero) else launch.stage
                if found is not None and found != stage:
                    begin(stage := found)
                self._launch(launch, bases, stream)
            begin(None)

    def _fill(self, bases: tuple[int, ...]) -> None:
        """The addresses of a call, in the parameters of all launches."""
        if bases == self._bases:
            return
        self._bases = ()  # until all are in: the driver may refuse one
        if missing := [launch for launch in self._kernels() if launch.ready is None]:
            for launch, compiled in self._compile_all(missing):
                launch.ready = load(compiled, launch.grid, launch.arguments)
        for launch in self._kernels():
            ready = launch.ready
            assert ready is not None
            for slot, base, offset in ready.slots:
                slot.value = bases[base] + offset
            for target, tiled, facts in ready.maps:
                encode_map(target, bases[tiled.buffer.base] + tiled.buffer.offset, tiled, facts)
        self._bases = bases

    def _queue(self, bases: tuple[int, ...], stream: int, parallel: bool) -> None:
        """Every launch to the driver. parallel: what may run beside others goes to a stream of its own, which only a
        capture makes cheaper than one after the other.
        """
        if not parallel or not any(isinstance(launch, _Join) for launch in self.launches):
            for launch in self.launches:
                if not isinstance(launch, _Join):
                    self._launch(launch, bases, stream)
            return
        with stream_beside(stream) as other:
            apart = stream
            for launch in self.launches:
                if isinstance(launch, _Join):
                    if apart != stream:
                        follow(stream, apart)
                        apart = stream
                    continue
                if launch.forked and apart != other:
                    follow(other, stream)
                    apart = other
                self._launch(launch, bases, apart if launch.forked else stream)

    def _launch(self, launch: _Launch | _Zero | Gemm, bases: tuple[int, ...], stream: int) -> None:
        """One launch to the driver, or cuBLAS's."""
        if isinstance(launch, Gemm):
            launch.run(bases, stream)
            return
        cuda = driver()
        if isinstance(launch, _Zero):
            check(cuda.cuMemsetD8Async(bases[WORKSPACE] + launch.offset, 0, launch.size, stream))
            return
        ready = launch.ready
        assert ready is not None
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
            if isinstance(launch, _Join):
                continue
            if isinstance(launch, Gemm):
                raise EngineError("cuBLAS multiplies where there is CUDA's driver")
            if isinstance(launch, _Zero):
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

    def _kernels(self) -> Iterator[_Launch]:
        return (launch for launch in self.launches if isinstance(launch, _Launch))

    def _compile_all(self, launches: Iterable[_Launch]) -> list[tuple[_Launch, Any]]:
        """These with their kernels; those that Triton has not compiled before, side by side: a product's take 5 to 20
        seconds one after the other, those at its end most.
        """

        def compile_all(some: list[_Launch]) -> list[tuple[_Launch, Any]]:
            with triton_files():
                with side_by_side():
                    compiled = [self._compile(launch) for launch in reversed(some)][::-1]
                # Of one that was not there before Triton gives a promise.
                return [(x, y.result() if hasattr(y, "result") else y) for x, y in zip(some, compiled, strict=True)]

        # In a context of its own: after an error inside, Triton's mode would stay on, and every later kernel fail.
        return contextvars.copy_context().run(compile_all, list(launches))

    def _compile(self, launch: _Launch) -> Any:
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
        return launch.kernel.run(*mocks, grid=launch.grid, warmup=True, **launch.constants)
