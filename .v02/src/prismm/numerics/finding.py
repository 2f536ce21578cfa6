"""What a probe found out, with the evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prismm.numerics.model import EngineModel
    from prismm.numerics.observations import Observation

__all__ = ["Evidence", "Finding"]


@dataclass(frozen=True)
class Evidence:
    """What decides one property.

    Args:
        name: of the property, a field of `EngineModel`.
        value: the one that reproduces everything.
        refuted: other values that do not, where nothing else changes, each with the simplest observation against it.
        open: other values that no observation refutes and no inputs are known to tell apart, alone or together with
            other values of other properties.
    """

    name: str
    value: Any
    refuted: tuple[tuple[Any, Observation], ...]
    open: tuple[Any, ...]

    @property
    def decided(self) -> bool:
        """Whether every other value is refuted."""
        return not self.open


@dataclass(frozen=True)
class Finding:
    """The outcome of `probe`.

    Args:
        model: the member of the family that reproduces every observation; None where none was found: the engine is
            outside the family, or the search did not find it with the effort that it may take.
        evidence: for every property, what decides it.
        undecided: properties of which other values cannot be told from the model's by any input that was found, with
            those values.
        counterexample: without a model, the first observation that the nearest one does not reproduce.
        nearest: the model, or the member that reproduces most.
        observations: how many answers the model reproduces.
        refutations: of these, how many were asked for after the model stood, to refute it.
        seconds: time taken.
        notes: what else was seen.
    """

    model: EngineModel | None
    evidence: tuple[Evidence, ...]
    undecided: dict[str, tuple[Any, ...]]
    counterexample: Observation | None
    nearest: EngineModel | None
    observations: int
    refutations: int
    seconds: float
    notes: tuple[str, ...] = field(default=())
