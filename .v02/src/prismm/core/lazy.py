"""Public names that are imported when they are first asked for (PEP 562)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def needs_torch(what: str) -> Iterator[None]:
    """EngineError where torch is imported inside and is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from prismm.core.extras import missing

        raise missing(what, "torch") from None


def attributes(
    namespace: dict[str, Any], homes: Mapping[str, str], modules: Collection[str] = ()
) -> Callable[[str], Any]:
    """A package's ``__getattr__``, which keeps what it finds in the package.

    Args:
        namespace: the package's ``globals()``.
        homes: public names, and the modules that define them.
        modules: submodules that are attributes as well.
    """
    package = namespace["__name__"]

    def found(name: str) -> Any:
        from importlib import import_module

        if name in homes:
            with needs_torch(f"{package}.{name}"):
                value = getattr(import_module(homes[name]), name)
        elif name in modules:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        namespace[name] = value
        return value

    return found
