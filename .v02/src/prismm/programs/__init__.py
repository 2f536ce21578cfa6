"""Whole programs: their products intercepted, compiled, recorded and tuned, by policies.

`prismm.emulate` and `prismm.compile` are the ways in; here are what they take and return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.core.lazy import attributes

if TYPE_CHECKING:
    from prismm.programs.gradients import whole_batch
    from prismm.programs.places import scope
    from prismm.programs.policy import Policy, Rule
    from prismm.programs.recipe import Recipe
    from prismm.programs.record import Call, Record
    from prismm.programs.tuning import Tuning

_HOMES = {
    "Policy": "policy",
    "Rule": "policy",
    "Recipe": "recipe",
    "Call": "record",
    "Record": "record",
    "scope": "places",
    "Tuning": "tuning",
    "whole_batch": "gradients",
}

__all__ = ["Call", "Policy", "Recipe", "Record", "Rule", "Tuning", "scope", "whole_batch"]


__getattr__ = attributes(globals(), {name: f"prismm.programs.{home}" for name, home in _HOMES.items()})
