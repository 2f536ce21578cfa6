"""How one product is to be made, as text: what operators carry in a compiled graph and rules write in a policy.

``"native"``, ``"1e-12"``, ``"correctly-rounded"``; ``"scheme=words:tf32x3"``; ``"native reproducible"``;
``"native engine=cpu:int8"``; ``"off"`` leaves it to torch.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, fields
from typing import Any

from prismm.core import engine_names as names
from prismm.core.accuracy import NAMES, parse_target
from prismm.errors import AccuracyError, ArgumentError

OFF = "off"


@dataclass(frozen=True)
class Recipe:
    """The arguments of `prismm.matmul` that say how to multiply.

    Args:
        accuracy: a target's name, a tolerance, or None: "native", or the scheme's own value.
        scheme: a scheme's name (`schemes.names`), or None for `Auto`.
        reproducible: as for `matmul`.
        engine, threads: as for `matmul`.
        off: leave the product to torch.

    Raises:
        AccuracyError, ArgumentError: for an unknown target, scheme or engine, or "off" with anything else.

    >>> from prismm.programs import Recipe
    >>> Recipe.parse("1e-12 reproducible")
    Recipe(accuracy=1e-12, scheme=None, reproducible=True, engine=None, threads=None, off=False)
    >>> str(Recipe(scheme="words:tf32x3"))
    'scheme=words:tf32x3'
    """

    accuracy: str | float | None = None
    scheme: str | None = None
    reproducible: bool = False
    engine: str | None = None
    threads: int | None = None
    off: bool = False

    def __post_init__(self) -> None:
        for name, kind in (("reproducible", bool), ("off", bool)):
            if not isinstance(getattr(self, name), kind):
                raise ArgumentError(f"{name}={getattr(self, name)!r}; pass True or False")
        for name in ("scheme", "engine"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value or len(value.split()) != 1):
                raise ArgumentError(f"{name}={value!r}; pass a name without spaces, or leave it out")
        if self.engine is not None:
            names.check(self.engine)
        if self.accuracy is not None:
            target = parse_target(self.accuracy)
            object.__setattr__(self, "accuracy", target.tolerance or target.kind)
        if self.threads is not None and (type(self.threads) is not int or self.threads < 1):
            raise ArgumentError(f"threads={self.threads!r}; pass a whole number above 0")
        if self.off and any(getattr(self, item.name) != item.default for item in fields(self) if item.name != "off"):
            raise ArgumentError(
                "off=True leaves a product to torch; leave out accuracy, scheme, reproducible and engine"
            )
        scheme = _scheme(self.scheme)
        if self.reproducible and scheme is not None and not _may_reproduce(scheme):
            raise ArgumentError(
                f"scheme {self.scheme!r} is not reproducible; pass residues:N, or leave one of both out"
            )

    @property
    def keywords(self) -> dict[str, Any]:
        """The keyword arguments for `prismm.matmul`."""
        return {
            "accuracy": self.accuracy,
            "scheme": _scheme(self.scheme),
            "reproducible": self.reproducible,
            "engine": self.engine,
            "threads": self.threads,
        }

    def asked(self, out_dtype: Any = None) -> tuple[Any, ...]:
        """The keywords of a product as `dispatch` takes them, without a workspace."""
        return self.accuracy, _scheme(self.scheme), self.reproducible, out_dtype, self.engine, self.threads, None

    @property
    def reads_data(self) -> bool:
        """Whether what runs may depend on the operands' values, not on their shapes and types alone."""
        return not (self.reproducible or self.scheme not in (None, "auto") or self.accuracy in (None, "native", "fast"))

    @property
    def looks(self) -> bool:
        """The former name of `reads_data`."""
        import warnings

        warnings.warn("Recipe.looks is now Recipe.reads_data", DeprecationWarning, stacklevel=2)
        return self.reads_data

    @functools.cached_property
    def is_default(self) -> bool:
        """Whether it asks for what `matmul` does without arguments."""
        return self.accuracy in (None, "native") and Recipe(self.accuracy) == self

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """The recipe that `str` wrote.

        Raises:
            AccuracyError, ArgumentError: for other text.
        """
        return _parsed(text)

    def __str__(self) -> str:
        if self.off:
            return OFF
        words = [] if self.accuracy is None else [str(self.accuracy)]
        words += [f"{key}={value}" for key in _NAMED if (value := getattr(self, key)) is not None]
        words += ["reproducible"] if self.reproducible else []
        return " ".join(words) or "native"


_NAMED = ("scheme", "engine", "threads")


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> Recipe:
    found: dict[str, Any] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if equals and key in ("scheme", "engine"):
            pass
        elif equals and key == "threads":
            value = int(value) if value.isdecimal() else value  # type: ignore[assignment]
        elif word in (OFF, "reproducible"):
            key, value = word, True  # type: ignore[assignment]
        else:
            key, value = "accuracy", word if word in NAMES else _number(word)  # type: ignore[assignment]
        if key in found:
            raise ArgumentError(f"{text!r} says {key} twice")
        found[key] = value
    if not found:
        raise ArgumentError("an empty recipe; pass 'native', '1e-12', 'scheme=words:tf32x3' or 'off'")
    return Recipe(**found)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise AccuracyError(
            f"unknown accuracy {text!r}; pass one of {', '.join(map(repr, NAMES))} or a number"
        ) from None


_UNNAMED: dict[str, Any] = {}
"""Schemes that no name says in full, by a digest of what they print."""


def scheme_text(scheme: Any) -> str:
    """A recipe's word for a scheme: its name, or a digest by which this process knows it again.

    Raises:
        ArgumentError: for a scheme that is no frozen dataclass.
    """
    from prismm.schemes.names import scheme_name

    try:
        content = fields(scheme)
        name = scheme_name(scheme)
    except TypeError:
        raise ArgumentError(
            f"scheme={scheme!r} does not compare by value, which products with derivatives need; make it a frozen "
            f"dataclass with hashable fields, or detach the tensors"
        ) from None
    if name is None:
        values = ", ".join(f"{item.name}={getattr(scheme, item.name)!r}" for item in content)
        text = f"{type(scheme).__module__}.{type(scheme).__qualname__}({values})"
        name = f"unnamed:{hashlib.sha256(text.encode()).hexdigest()[:24]}"
        _UNNAMED[name] = scheme
    return name


def _scheme(name: str | None) -> Any:
    """The scheme of this name, made once; of a class that was defined anew, the last one."""
    return _UNNAMED[name] if name in _UNNAMED else _parsed_scheme(name)


@functools.lru_cache(maxsize=256)
def _parsed_scheme(name: str | None) -> Any:
    from prismm.schemes.names import parse_scheme

    return parse_scheme(name)


def _may_reproduce(scheme: Any) -> bool:
    from prismm.core.scheme import selects

    return selects(scheme) or bool(scheme.reproducible)
