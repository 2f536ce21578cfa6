"""Engines by the names that callers and ``PRISMM_ENGINE`` give."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from prismm.cpu.engines.integer import DIRECT, ENGINES, choose
from prismm.errors import ArgumentError, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLAS = "cpu:blas"
"""What a report calls the engine of `Native`."""


def engine_named(name: str) -> Any:
    """The integer engine that a plan names."""
    return DIRECT if name == DIRECT.name else choose(name)


@contextlib.contextmanager
def names_variable(value: str | None) -> Iterator[None]:
    """Errors of an engine that ``PRISMM_ENGINE`` names say so; None where it names none."""
    try:
        yield
    except (ArgumentError, EngineError) as error:
        if value is None:
            raise
        raise type(error)(f"PRISMM_ENGINE={value!r}: {error}") from None


def named_or_default(name: str | None, engine_for: Callable[[str | None], Any]) -> Any:
    """engine_for(name); without a name that of ``PRISMM_ENGINE``, unless it names an engine of this machine that serves
    other schemes only.
    """
    if name is None:
        name = os.environ.get("PRISMM_ENGINE") or None
        if name == BLAS or name in ENGINES:
            with contextlib.suppress(ArgumentError, EngineError):
                return engine_for(name)
            name = None
        with names_variable(name):
            return engine_for(name)
    return engine_for(name)


def forced(name: str | None) -> str | None:
    """The integer engine that the caller or ``PRISMM_ENGINE`` asks for, proved; None where any will do.

    Raises:
        ArgumentError, EngineError: for a name that is none here, or an engine that is not exact here.
    """
    default = os.environ.get("PRISMM_ENGINE") or "cpu"
    # BLAS and simulated engines are for other schemes, so as a default they leave this choice free.
    if default == BLAS or default.startswith("simulated:"):
        default = "cpu"
    asked = default if name in (None, BLAS) else name
    assert asked is not None
    with names_variable(asked if name in (None, BLAS) else None):
        return choose(asked).name if asked != "cpu" else None


def refuse_simulated(name: str | None, scheme: Any) -> None:
    """ArgumentError for a simulated matrix unit asked for what may take none."""
    if name is not None and name.startswith("simulated:"):
        raise ArgumentError(
            f"engine={name!r} is a simulated matrix unit, and {scheme} may take none; pass scheme=prismm.Words(...), "
            f"Residues(...) or another scheme of parts, or engine='cpu'"
        )
