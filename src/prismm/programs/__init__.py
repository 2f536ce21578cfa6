"""Whole programs: their products intercepted, compiled, recorded and tuned, by policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm._lazy import attributes

if TYPE_CHECKING:
    from prismm.programs.compile import compile
    from prismm.programs.emulate import emulate
    from prismm.programs.places import scope
    from prismm.programs.policy import Policy, Rule
    from prismm.programs.recipe import Recipe
    from prismm.programs.record import Call, Record
    from prismm.programs.tuning import Tuning

_HOMES = {
    "Policy": "policy",
    "Rule": "policy",
    "Recipe": "recipe",
    "emulate": "emulate",
    "compile": "compile",
    "Call": "record",
    "Record": "record",
    "scope": "places",
    "Tuning": "tuning",
}

__all__ = ["Call", "Policy", "Recipe", "Record", "Rule", "Tuning", "compile", "emulate", "scope"]


__getattr__ = attributes(globals(), {name: f"prismm.programs.{home}" for name, home in _HOMES.items()})
