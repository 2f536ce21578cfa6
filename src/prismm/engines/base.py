"""What an engine is: something that multiplies low-precision matrices exactly, and has proved that it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class Proof:
    """Outcome of an engine's self-proof: usable or not, and why."""

    usable: bool
    reason: str


@runtime_checkable
class Engine(Protocol):
    """The protocol of engines that serve `Residues`.

    It must hold that `multiply(left, right, out)` is the exact integer product of residues modulo each modulus (any
    representative that the join can reduce), for symmetric residues of moduli up to `largest_modulus`, and that `prove`
    refuses the engine on a machine where that fails.
    """

    name: str
    largest_modulus: int

    def prove(self) -> Proof:
        """Multiply extreme operands once per process and compare with exact integers."""

    def multiply(self, left: Any, right: Any, out: Any, moduli: Any) -> None:
        """out[l] = left[l] @ right[l], reduced between blocks of the inner dimension where it must be."""
