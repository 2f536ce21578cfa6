"""An experiment small enough to be looked through: what the tests of the framework run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from prismm.reproduce.claims import Claim, at_most, equals
from prismm.reproduce.framework import Experiment, Point, Row, Size
from prismm.reproduce.plot import Panel


@dataclass
class Toy:
    """Points that count how often they ran, and stop at one of them if asked."""

    stop_at: str = ""
    ran: list[str] = field(default_factory=list)

    def point(self, n: int) -> Point:
        def run(rng: np.random.Generator) -> list[Row]:
            key = f"n={n}"
            if key == self.stop_at:
                raise KeyboardInterrupt
            self.ran.append(key)
            return [
                Row("1", "line", "value", float(rng.random()), "n", n),
                Row("1", "odd", "value", float("nan") if n == 4 else -1 / 3, "n", n),
            ]

        return Point(f"n={n}", run)

    def points(self, size: Size) -> list[Point]:
        return [self.point(n) for n in {"quick": (1, 2, 3, 4), "default": (1, 2, 3, 4, 5), "full": (1, 1)}[size]]

    def experiment(self, version: int = 1) -> Experiment:
        claims = (
            Claim("Fig. 1", "line", "<= 1", at_most(1.0), lambda rows: list(rows.curve("1", "line", "value").values())),
            Claim("Fig. 1", "odd", "= 2", equals(2.0), lambda rows: list(rows.curve("1", "odd", "value").values())),
            Claim("Fig. 2", "none", "= 1", equals(1.0), lambda rows: list(rows.curve("2", "line", "value").values())),
            Claim("Fig. 3", "speed", "2x", None, device="a GPU"),
            Claim("§5", "open", "open", None, lambda rows: [float(len(rows))]),
        )
        panels = (Panel("Fig. 1", "1", "value", "n", "value"), Panel("Fig. 2", "2", "value", "n", "value"))
        return Experiment("toy", version, "A toy.", self.points, claims, panels)
