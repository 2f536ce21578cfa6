"""What earlier blocks found out about products: a later block with the same policy begins with it.

A program that opens a block for each of its steps meets all of its products for the first time in each. What is decided
for one (`block.Known`) follows from the policy, the settings, the place and the layout alone: it is kept under these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prismm.programs.policy import Policy
    from prismm.programs.record import Call

Decisions = dict[Any, "Decision"]
"""By place, whether autograd asks, and layout."""

_MOST_POLICIES, _MOST = 64, 1 << 14
"""Policies, and decisions of each, that are kept."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How a product is made.

    Attributes:
        call: the first one, for tables.
        run, torchs, on_gpu, above: as in `block.Known`.
    """

    call: Call
    run: Any
    torchs: bool
    on_gpu: bool
    above: bool

    def entry(self, number: int) -> Call:
        """The call as another record has it, untimed."""
        found = object.__new__(type(self.call))  # as `dataclasses.replace`, in a tenth of its time
        found.__dict__.update(self.call.__dict__, index=number, seconds=0.0)
        return found


_KEPT: dict[tuple[Policy, Any], Decisions] = {}


def decisions_under(policy: Policy, settings: Any) -> Decisions:
    """Those that were made under a policy and settings."""
    found = _KEPT.get((policy, settings))
    if found is None:
        if len(_KEPT) >= _MOST_POLICIES:
            _KEPT.clear()
        found = _KEPT[policy, settings] = {}
    return found


def keep(decisions: Decisions, key: Any, found: Decision) -> None:
    """Add one."""
    if len(decisions) >= _MOST:
        decisions.clear()
    decisions[key] = found
