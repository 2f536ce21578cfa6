"""What a device brings: a column of `planning.auto`'s table, and an implementation of each scheme.

A backend is found by name, so that nothing here or in `planning` imports a device's code.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple, Protocol

from prismm.core.problem import Problem


class Chosen(NamedTuple):
    """A scheme for a problem.

    Attributes:
        scheme: the scheme.
        engine: the engine; None where any will do.
        reasons: why it was chosen.
    """

    scheme: Any
    engine: str | None
    reasons: tuple[str, ...]


class Column(Protocol):
    """A device's column of the table in `planning.auto`."""

    def native_within(self, problem: Problem, sample: Any) -> Chosen | None:
        """Native, where its bound is within the problem's tolerance; None where it is not certain to be."""

    def correctly_rounded(self, problem: Problem, sample: Any, engine: str | None) -> Chosen:
        """For a problem whose entries are all to be correctly rounded."""

    def native_grade(self, problem: Problem, sample: Any, engine: str | None) -> Chosen:
        """For the targets "native" and "fast"."""

    def weigh(self, problem: Problem, chosen: Chosen) -> Chosen:
        """The table's choice, or another scheme that meets the target in fewer predicted seconds."""


def column_of(device: str) -> Column:
    """The column of "cpu", or of the GPU of this name."""
    package = "cpu" if device == "cpu" else "cuda"
    found: Column = import_module(f"prismm.{package}.choice").column(device)
    return found


def fp8_predictions(device: str, moduli: int, problem: Problem) -> tuple[str, ...]:
    """What residues by FP8 are predicted to take on cards with the matrix unit of this device of the catalogue."""
    found: tuple[str, ...] = import_module("prismm.cuda.residues.prediction").fp8_predictions(device, moduli, problem)
    return found


def simulated_engines() -> Any:
    """The module of simulated matrix units, which models of `numerics` make."""
    return import_module("prismm.cpu.engines.simulated")
