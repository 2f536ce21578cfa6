"""JSON as its standard has it: a key stands once in an object, NaN and Infinity are no numbers, and text is Unicode.

Python's own reader takes the last of several values of a key, so that a damaged file reads as another one.
"""

from __future__ import annotations

import json
import math
from typing import Any

__all__ = ["is_version", "loads"]


def loads(text: str) -> Any:
    """What a JSON text says.

    Raises:
        ValueError: if the text is not JSON. TypeError: unless it is text. RecursionError: if it is nested too deep.

    >>> loads('{"a": [1, 2.5, null]}')
    {'a': [1, 2.5, None]}
    >>> loads('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: a key is there twice: a
    """
    found = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_finite)
    if "\\u" in text:  # nothing else makes halves of a pair, which no file could hold in UTF-8
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a text has half of a surrogate pair") from None
    return found


def is_version(value: object, known: int) -> bool:
    """Whether a version is the one that is known: the integer itself, not 1.0 or true.

    >>> is_version(1, 1), is_version(True, 1), is_version(2, 1)
    (True, False, False)
    """
    return type(value) is int and value == known


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are there once each."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"a key is there twice: {key[:40]}")
        found[key] = value
    return found


def _finite(text: str) -> float:
    """A number of float64's range: beyond it Python reads an infinity."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is beyond float64")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
