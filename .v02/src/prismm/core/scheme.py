"""Scheme: a way to multiply, as data; how it runs on a device is its implementation there."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

Device = Literal["cpu", "cuda"]


@runtime_checkable
class Scheme(Protocol):
    """A way to multiply. It must hold that

    - the result meets the bound in the scheme's docstring, entry by entry, for all finite operands;
    - if `reproducible`, each entry is a function of its row of A, its column of B and the scheme alone;
    - scaling rows of A or columns of B by powers of two scales the result exactly, away from overflow and underflow,
      where the scheme scales rows and columns.

    Schemes are frozen dataclasses: they print, compare and hash by value. docs/extending.md has a whole one.
    """

    @property
    def reproducible(self) -> bool:
        """Whether the value is the same on every engine, thread count, batch and order of the inner dimension."""

    def implementation(self, device: Device) -> Any:
        """How it runs on a device: a `cpu.implementation.Implementation`, or a `cuda.implementation.Implementation`;
        None where it does not run there.
        """


class BuiltIn:
    """A scheme that ships with prismm: `prismm.<device>.<room>.implementation` has its implementation there."""

    room: ClassVar[str]

    def implementation(self, device: Device) -> Any:
        """See `Scheme.implementation`."""
        found = _CLASSES.get((device, self.room))
        if found is None:
            found = import_module(f"prismm.{device}.{self.room}.implementation").Implementation
            _CLASSES[device, self.room] = found
        return found(self)


_CLASSES: dict[tuple[str, str], Any] = {}
"""Of what was asked for: looking a module up would cost each call a microsecond."""


def selects(scheme: Any) -> bool:
    """Whether it is no way to multiply but chooses one, as `Auto` does."""
    return callable(getattr(scheme, "select", None))
