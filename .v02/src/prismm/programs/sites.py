"""Sites: the places of a program where it multiplies, what flows from one into another, and policies over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from prismm.programs.policy import Policy, Rule
from prismm.programs.recipe import Recipe

if TYPE_CHECKING:
    from prismm.programs.record import Call, Record

Key = tuple[str, str, str, bool]
"""module, where, operator, backward: what a rule can tell apart."""


@dataclass
class Site:
    """One place that multiplies: all calls that a rule cannot tell apart.

    sources: the sites whose results flow into its operands with no product between; itself where it loops. calls: how
    often it multiplies, for one input of each shape. operations: multiply-adds of all of them.
    """

    key: Key
    sources: set[int] = field(default_factory=set)
    calls: list[Call] = field(default_factory=list)

    @property
    def operations(self) -> int:
        """Multiply-adds, complex ones counted once."""
        return sum(call.operations for call in self.calls)

    @property
    def name(self) -> str:
        """module, operator, line and pass, for people."""
        module, where, operator, backward = self.key
        return " ".join(x for x in (module, operator, where, "backward" if backward else "") if x)


def key_of(call: Call) -> Key:
    """The site that a call belongs to."""
    return call.module, call.where, call.operator, call.backward


def sites_of(record: Record) -> list[Site]:
    """The sites of a run recorded with ``dependencies=True``, in order of their first call.

    Flow is followed by storage, as `emulate` keeps it: a write into a part of a tensor counts for all of it, so a site
    may have sources that never reach it; and what leaves torch (NumPy, ``item()``, a branch taken) is not followed.
    Products that were left to torch for a reason (integers, sparse tensors) are no sites.
    """
    places: dict[Key, int] = {}
    found: list[Site] = []
    home: dict[int, int] = {}
    for call in record.calls:
        if call.reason and call.reason != "no rule":
            continue
        place = places.setdefault(key_of(call), len(found))
        if place == len(found):
            found.append(Site(key_of(call)))
        found[place].calls.append(call)
        found[place].sources |= {home[index] for index in call.after if index in home}
        home[call.index] = place
    return found


def seconds_of(record: Record, sites: Sequence[Site]) -> list[float]:
    """Seconds that a run spent at each site."""
    places = {site.key: place for place, site in enumerate(sites)}
    found = [0.0] * len(sites)
    for row in record.rows:
        place = places.get((row.module, row.where, row.operator, row.backward))
        if place is not None:
            found[place] += row.seconds
    return found


def policy_of(sites: Sequence[Site], recipes: Sequence[Recipe], base: Recipe, **named: Any) -> Policy:
    """The policy that makes each site's products by its recipe, and all other products by `base`.

    Rules name a module alone where all its sites agree, operator and pass besides where those differ, and lines only
    where nothing else tells sites apart: a module's line may be that of whoever calls it.
    """
    modules: dict[str, set[Recipe]] = {}
    operators: dict[tuple[str, str, bool], set[Recipe]] = {}
    for site, recipe in zip(sites, recipes, strict=True):
        module, _, operator, backward = site.key
        modules.setdefault(module, set()).add(recipe)
        operators.setdefault((module, operator, backward), set()).add(recipe)
    rules: dict[Rule, None] = {}
    for site, recipe in zip(sites, recipes, strict=True):
        module, where, operator, backward = site.key
        if module and len(modules[module]) == 1:
            if recipe != base:
                rules[_rule(recipe, module=_literal(module))] = None
            continue
        pass_: Literal["forward", "backward"] = "backward" if backward else "forward"
        place: dict[str, Any] = {"operator": operator, "pass_": pass_}
        if not module or len(operators[module, operator, backward]) > 1:
            place["where"] = _literal(where)
        rules[_rule(recipe, module=_literal(module), **place)] = None
    return Policy((*rules, _rule(base)), **named)


def _rule(recipe: Recipe, **place: Any) -> Rule:
    return Rule(
        accuracy=recipe.accuracy, scheme=recipe.scheme, reproducible=recipe.reproducible, engine=recipe.engine,
        off=recipe.off, **place,
    )  # fmt: skip


def _literal(name: str) -> str:
    """A glob that matches this name alone.

    >>> _literal("blocks[0].*")
    'blocks[[]0].[*]'
    """
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
