"""Every public name has an example in its docstring, which runs and shows what it says."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest

PACKAGES = ("prismm", "prismm.distributed", "prismm.linalg", "prismm.programs", "prismm.testing")
WITHOUT = {
    "prismm.programs.Call": "made by prismm.emulate alone; the example of Record shows its attributes",
    "prismm.testing.HOSTILE": "a mapping of generators",
    "prismm.testing.SPECIAL": "a mapping of generators",
}
"""Names without an example, and why."""
SLOW = {"prismm.tune", "prismm.programs.Tuning", "prismm.programs.whole_batch", "prismm.compile"}
NAMES = {f"{package}.{name}": (package, name)
         for package in PACKAGES for name in importlib.import_module(package).__all__}  # fmt: skip


def marked(path: str) -> object:
    return pytest.param(path, marks=[pytest.mark.slow] if path in SLOW else [])


@pytest.mark.parametrize("path", map(marked, sorted(NAMES.keys() - WITHOUT.keys())))
def test_examples(path: str) -> None:
    package, name = NAMES[path]
    found = getattr(importlib.import_module(package), name)
    finder = doctest.DocTestFinder(recurse=False)
    tests = finder.find(found, path, module=inspect.getmodule(found), globs=dict(vars(inspect.getmodule(found))))
    words: list[str] = []
    result = [doctest.DocTestRunner().run(test, out=words.append) for test in tests]
    assert sum(one.attempted for one in result) and not words, "".join(words)


def test_names_without_an_example_are_public() -> None:
    assert NAMES.keys() >= WITHOUT.keys()
