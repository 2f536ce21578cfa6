"""What blocks decided about products, kept for later blocks with the same policy.

A program may open a new block in each of its steps. Without this module every step would plan all its products again.
A decision depends only on the policy, the settings, the place and the layout, so these are its key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prismm.programs.policy import Policy
    from prismm.programs.record import Call

Decisions = dict[Any, "Decision"]
"""Their keys are (place, whether the product is one of a backward pass, layout)."""

_MOST_POLICIES, _MOST = 64, 1 << 14
"""At most so many policies are kept, and so many decisions of each."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How a product is made.

    Attributes:
        call: the first product, for the rows of records.
        run, torchs, on_gpu, above: as in `block.Known`.
    """

    call: Call
    run: Any
    torchs: bool
    on_gpu: bool
    above: bool

    def entry(self, number: int) -> Call:
        """A copy of the call for another record, with its number there and no time."""
        found = object.__new__(type(self.call))  # as `dataclasses.replace`, in a tenth of its time
        found.__dict__.update(self.call.__dict__, index=number, seconds=0.0)
        return found


_KEPT: dict[tuple[Policy, Any], Decisions] = {}


def decisions_under(policy: Policy, settings: Any) -> Decisions:
    """The decisions under a policy and settings; the caller may add to them with `keep`."""
    found = _KEPT.get((policy, settings))
    if found is None:
        if len(_KEPT) >= _MOST_POLICIES:
            _KEPT.clear()
        found = _KEPT[policy, settings] = {}
    return found


def keep(decisions: Decisions, key: Any, found: Decision) -> None:
    """Add a decision; the others are dropped first if there are too many."""
    if len(decisions) >= _MOST:
        decisions.clear()
    decisions[key] = found
