"""Facts that are on record by what they follow from, as those of GPU kernels are (`tests/cuda/harness/evidence.py`).

A fact is a pure function of sources, versions of packages and the names of its case. These go into a hash. Where it
stands in the committed record, the facts there serve; where it does not, they are made again. ``make test-all`` makes
all of them and compares.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import json
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.cuda.harness import evidence
from tests.cuda.harness.processes import FRESH

FOLDER = Path(__file__).with_name("records")


def recorded(
    record: str, case: str, follows: list[str], make: Callable[[], dict[str, Any]], folder: Path = FOLDER
) -> dict[str, Any]:
    """What `make` returns, which is JSON, from a record where its hash stands there.

    What was made is recorded. On CI a case whose hash is not the record's fails.

    Args:
        record: The file's name.
        case: What the case is called.
        follows: All that the facts follow from, beside the name: sources and versions.
        make: Makes the facts.
        folder: Where the file lies.
    """
    name = f"{case} []"
    key = hashlib.sha256(json.dumps([name, *follows]).encode()).hexdigest()[:24]
    known = evidence.read(record, folder)
    stands = name in known and known[name][0] == key
    if stands and not os.environ.get(FRESH):
        return known[name][1]
    on_ci = bool(os.environ.get("CI"))
    assert stands or not on_ci, f"evidence of {case} is of other sources: `make evidence`, and commit {record}.json"
    made: dict[str, Any] = json.loads(json.dumps(make()))
    assert not stands or known[name][1] == made, f"{case} gives {made}; the record says {known[name][1]}"
    if not stands:
        evidence.write(record, case, {name: (key, made)}, folder)
    return made


def followed(*modules: str, packages: tuple[str, ...] = ()) -> list[str]:
    """The code of modules of prismm and of all that they import of it, and the versions of packages."""
    seen: dict[str, str] = {}
    left = list(modules)
    while left:
        module = left.pop()
        if module not in seen and (path := _path_of(module)) is not None:
            seen[module], imported = _parsed(path)
            left += imported
    return [f"{module}\n{seen[module]}" for module in sorted(seen)] + [f"{x} {version(x)}" for x in packages]


@functools.cache
def _path_of(module: str) -> Path | None:
    """A module's file; None where the name is that of something in a module."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(found.origin) if found is not None and found.origin is not None else None


@functools.cache
def _parsed(path: Path) -> tuple[str, list[str]]:
    """A file's code, and what it imports of prismm: modules, and names in them."""
    text = path.read_text()
    imported: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported += [x.name for x in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported += [node.module, *(f"{node.module}.{x.name}" for x in node.names)]
    return evidence.code_of(text), [name for name in imported if name.startswith("prismm.")]
