"""What a tuner found: the policy, the decision at every site, and what it promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prismm.programs.policy import Policy
from prismm.programs.recipe import Recipe


@dataclass(frozen=True)
class Tuned:
    """The decision for a site: its recipe, its seconds for one input with that recipe and at the first level, and the
    sites whose results it multiplies (by index).
    """

    name: str
    recipe: Recipe
    seconds: float
    base_seconds: float
    sources: tuple[int, ...]


@dataclass(frozen=True)
class Tuning:
    """How a policy was found.

    Args:
        policy: the result.
        sites: what was decided where.
        errors: measured with this policy, for each input.
        upper: what the error of a new input will not exceed; see `tune`.
        tolerance: what it had to stay within.
        trials: how many choices were run, in this and earlier runs of the same tuning.
        seconds, base_seconds: of all sites together, for the first input, with this policy and with the first levels;
            measured, or by the cost given.
        torch_seconds: of torch's own products at these sites, measured; None with a cost.
        dropped: levels that could not be run, and why.
        unseen: operators that multiply inside themselves, which stay as they are.

    >>> import torch, prismm
    >>> a = torch.ones(16, 16)
    >>> _, tuning = prismm.tune(lambda x: x @ a, [a, 2 * a, 3 * a], 1e-5, full_output=True)
    >>> len(tuning.sites), max(tuning.errors) <= tuning.tolerance
    (1, True)
    """

    policy: Policy
    sites: tuple[Tuned, ...]
    errors: tuple[float, ...]
    upper: float
    tolerance: float
    trials: int
    seconds: float
    base_seconds: float
    torch_seconds: float | None
    dropped: dict[str, str]
    unseen: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {
            "policy": self.policy.to_dict(),
            "sites": [
                {"site": x.name, "recipe": str(x.recipe), "seconds": x.seconds, "base_seconds": x.base_seconds,
                 "sources": [self.sites[i].name for i in x.sources]}
                for x in self.sites
            ],
            "errors": list(self.errors), "upper": self.upper, "tolerance": self.tolerance, "trials": self.trials,
            "seconds": self.seconds, "base_seconds": self.base_seconds, "torch_seconds": self.torch_seconds,
            "dropped": self.dropped, "unseen": list(self.unseen),
        }  # fmt: skip
