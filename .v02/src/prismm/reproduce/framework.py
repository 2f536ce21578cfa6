"""What an experiment is: independent points that give rows of numbers, claims about them, and plots of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from prismm.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np

    from prismm.reproduce.claims import Claim
    from prismm.reproduce.plot import Panel

Size = Literal["quick", "default", "full"]
"""Seconds, for tests; under 90 seconds on two cores; as near to the paper's own sizes as a CPU gets."""

SIZES: tuple[Size, ...] = ("quick", "default", "full")


@dataclass(frozen=True)
class Row:
    """One number.

    figure: the paper's figure, table or section. series: the line in it. variable, x: what it is drawn against, and
    where. measure: what `value` is.
    """

    figure: str
    series: str
    measure: str
    value: float
    variable: str = ""
    x: float = 0.0


class Rows:
    """Rows that can be asked for a part of them.

    >>> from prismm.reproduce.framework import Row, Rows
    >>> rows = Rows([Row("1", "a", "l2", 0.5, "n", 8), Row("1", "a", "l2", 0.25, "n", 4)])
    >>> rows.curve("1", "a", "l2"), rows.curve("1", "b", "l2")
    ({4: 0.25, 8: 0.5}, {})
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = list(rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def pick(self, figure: str | None = None, series: str | None = None, measure: str | None = None) -> Rows:
        """The rows that have these names."""
        return Rows(
            row
            for row in self._rows
            if figure in (None, row.figure) and series in (None, row.series) and measure in (None, row.measure)
        )

    def curve(self, figure: str, series: str, measure: str) -> dict[float, float]:
        """x: value in increasing order of x; empty where there is none."""
        found = {row.x: row.value for row in self.pick(figure, series, measure)}
        return {x: found[x] for x in sorted(found)}

    def ratios(self, figure: str, top: str, bottom: str, measure: str, least: float = 0.0) -> list[float]:
        """Values of one series over those of another, at every x from `least` on that both have."""
        above, below = (self.curve(figure, series, measure) for series in (top, bottom))
        return [_ratio(value, below[x]) for x, value in above.items() if x in below and x >= least]


def _ratio(top: float, bottom: float) -> float:
    if bottom == 0.0:
        return 1.0 if top == 0.0 else float("inf")
    return top / bottom


@dataclass(frozen=True)
class Point:
    """An independent part of an experiment: `run` draws from its generator and returns the point's rows.

    key names everything that the rows depend on but the seed; it is what a journal knows a finished point by.
    """

    key: str
    run: Callable[[np.random.Generator], list[Row]]

    def measure(self, seed: int) -> list[Row]:
        """The rows, from a generator that depends on the seed and this point's key alone."""
        import numpy as np

        rows = self.run(np.random.default_rng([seed, zlib.crc32(self.key.encode())]))
        if not rows:
            raise RuntimeError(f"point {self.key} gave no rows")
        return rows


@dataclass(frozen=True)
class Experiment:
    """What `prismm reproduce NAME` runs.

    version: goes up whenever rows of an earlier version would no longer fit. setup: inputs, references and what is
    simulated, in words for the reader of the table. points: the points of a size.
    """

    name: str
    version: int
    setup: str
    points: Callable[[Size], list[Point]]
    claims: tuple[Claim, ...]
    panels: tuple[Panel, ...]

    def points_of(self, size: Size) -> list[Point]:
        """The points of a size, whose keys must differ."""
        points = self.points(size)
        keys = [point.key for point in points]
        if len(set(keys)) != len(keys):
            raise ArgumentError(f"experiment {self.name} has two points of the same key")
        return points
