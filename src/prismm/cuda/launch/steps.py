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
    """Whether the kernel is compiled in the background."""
    meanwhile: Launch | None = None
    """The variant that calls launch until then; None if they launch nothing."""
    promise: Future[Any] | None = None
    """The future of the background compilation."""

    @property
    def is_compiled(self) -> bool:
        """Whether the background compilation has succeeded."""
        return self.promise is not None and self.promise.done() and self.promise.exception() is None

    @property
    def has_failed(self) -> bool:
        """Whether the background compilation has failed."""
        return self.promise is not None and self.promise.done() and self.promise.exception() is not None

    @property
    def now(self) -> Ready | None:
        """The kernel to launch now: the variant while the kernel itself is not loaded, None if there is no variant."""
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
    """Later launches wait here for all launches that were forked before."""
