"""Stages of a call: which part of the work a launch does, and the seconds of each as CUDA's events tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SPLIT, MULTIPLY, JOIN, REPAIR = "split", "multiply", "join and certify", "repair"
"""As a CPU's reports name them."""

_STAGES = {
    "split": SPLIT,
    "split_sm90": SPLIT,
    "split_fp8": SPLIT,
    "scale": SPLIT,
    "adaptive": SPLIT,
    "layout": SPLIT,
    "strassen": MULTIPLY,
    "product": MULTIPLY,
    "product_sm90": MULTIPLY,
    "product_fp8": MULTIPLY,
    "convert_fp8": JOIN,
    "split_product_sm90": MULTIPLY,
    "pair_product": MULTIPLY,
    "gemv": MULTIPLY,
    "tiny": MULTIPLY,
    "split_k": MULTIPLY,
    "digit_sums": JOIN,
    "join_fast": JOIN,
    "join": JOIN,
    "pairs": JOIN,
    "certify": JOIN,
    "combine": JOIN,
    "mirror": JOIN,
    "repair": REPAIR,
    "magnitudes": REPAIR,
    "again": REPAIR,
    "strips": REPAIR,
    "recompute": REPAIR,
    "overflow": REPAIR,
    "finish": REPAIR,
}
"""By the file of a kernel."""

_OTHERS = {"put_part": JOIN, "strassen_sums": SPLIT}
"""By the name of a kernel that does something else than others of its file."""


def stage_of(kernel: Any) -> str:
    """The stage of a kernel."""
    function = kernel.fn
    return _OTHERS.get(function.__name__) or _STAGES[function.__module__.rpartition(".")[2]]


class StageTimes:
    """When each stage of a call began on the current stream, and when the last one ended."""

    def __init__(self) -> None:
        self._events: list[tuple[str | None, torch.cuda.Event]] = []

    def begin(self, stage: str | None) -> None:
        """What is queued from now on is of this stage; None for the end of the call."""
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append((stage, event))

    def seconds(self) -> dict[str, float]:
        """Seconds of each stage, with what the GPU waits for the host meanwhile; waits for the end."""
        found: dict[str, float] = {}
        if self._events:
            self._events[-1][1].synchronize()
        for (stage, start), (_, end) in zip(self._events, self._events[1:], strict=False):
            if stage is not None:
                # CUDA's events count milliseconds.
                found[stage] = found.get(stage, 0.0) + 1e-3 * float(start.elapsed_time(end))
        return found
