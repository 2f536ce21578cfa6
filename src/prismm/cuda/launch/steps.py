"""What a program for a GPU does one after the other, but for products of cuBLAS's (`launch.cublas`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.cuda.launch.stages import stage_of

if TYPE_CHECKING:
    from concurrent.futures import Future
    from typing import Any

    from prismm.cuda.launch.compile import Ready


@dataclass
class Launch:
    """A kernel with its arguments."""

    kernel: Any
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    forked: bool = False
    ready: Ready | None = None
    is_put_off: bool = False
    """Whether the kernel is compiled beside the first calls."""
    meanwhile: Launch | None = None
    """What these launch instead of such a kernel; None for nothing."""
    promise: Future[Any] | None = None
    """Of a kernel that is being compiled so."""

    @property
    def is_compiled(self) -> bool:
        """Whether what was promised is there."""
        return self.promise is not None and self.promise.done() and self.promise.exception() is None

    @property
    def has_failed(self) -> bool:
        """Whether what was promised will not be there."""
        return self.promise is not None and self.promise.done() and self.promise.exception() is not None

    @property
    def now(self) -> Ready | None:
        """What is launched now."""
        return self.meanwhile.ready if self.ready is None and self.meanwhile is not None else self.ready

    @property
    def stage(self) -> str:
        """See `launch.stages`."""
        return stage_of(self.kernel)


@dataclass
class Zero:
    """Workspace to be set to zero."""

    offset: int
    size: int
    forked: bool = False


class Join:
    """Where launches wait for what was forked before."""
