"""Covering arrays: of all rows of a product of parameters a few, in which every pair of values still meets.

Faults of parametrised code seldom need more than two parameters at certain values. So a test that is marked
``covering`` runs its covering rows among the fast tests, and all other rows among the slow ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from random import Random

import pytest

Row = Mapping[str, Hashable]
Tuple = tuple[tuple[str, Hashable], ...]


def covering_rows(rows: Sequence[Row], together: Iterable[str | tuple[str, ...]] | None, random: Random) -> list[int]:
    """The places of a few of the rows, in which all values meet that meet in any row.

    Args:
        rows: Each a value for every parameter; a product, or what exclusions left of one.
        together: The parameters whose values have to meet: tuples of names, or a name for each value of that parameter
            alone; None for each pair (the only parameter, where there is one). Each value of every parameter occurs.
        random: Chooses among rows that do alike.

    Returns:
        Places in ascending order.
    """
    names = list(rows[0]) if rows else []
    pairs = itertools.combinations(names, min(2, len(names)))
    asked = [(x,) if isinstance(x, str) else tuple(x) for x in (pairs if together is None else together)]
    unknown = {name for group in asked for name in group} - set(names)
    if rows and unknown:
        raise ValueError(f"no parameters {sorted(unknown)}: there are {names}")
    groups = list(dict.fromkeys([*asked, *((name,) for name in names)]))
    meetings = [[tuple((name, row[name]) for name in group) for group in groups] for row in rows]
    holders: dict[Tuple, list[int]] = {}
    for place, met in enumerate(meetings):
        for meeting in met:
            holders.setdefault(meeting, []).append(place)
    # The longest groups first, then at random: what has the fewest rows to stand in is hardest to place.
    order = sorted(holders, key=lambda meeting: (-len(meeting), len(holders[meeting]), random.random()))
    missing, chosen = set(order), []
    for meeting in order:
        if meeting in missing:
            some = random.sample(holders[meeting], min(60, len(holders[meeting])))
            best = max(some, key=lambda place: sum(map(missing.__contains__, meetings[place])))
            chosen.append(best)
            missing.difference_update(meetings[best])
    return sorted(chosen)


def mark_rest_slow(items: list[pytest.Item], seed: int) -> None:
    """Of each test that is marked as covering, mark the rows slow that the covering array does without.

    A row holds a test's parameters, or what the marker's `of` makes of them.
    """
    rows: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("covering") and not item.get_closest_marker("slow"):
            rows.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, of_test in rows.items():
        if len(of_test) == 1:  # perhaps a test without parameters, for want of what they are made of
            continue
        marker = of_test[0].get_closest_marker("covering")
        row = marker.kwargs.get("of", _objects)
        found = [row(**item.callspec.params) for item in of_test]
        chosen = covering_rows(found, marker.args or None, Random(f"{seed} {name}"))
        for place in set(range(len(of_test))) - set(chosen):
            of_test[place].add_marker(pytest.mark.slow)


def _objects(**values: object) -> Row:
    """Each value as the object that it is: some cannot be hashed."""
    return {name: id(value) for name, value in values.items()}
