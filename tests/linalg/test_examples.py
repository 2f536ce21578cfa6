"""Every example of the docstrings runs and shows what it says; the package loads its parts when they are asked for."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

import prismm.linalg
from prismm.errors import ArgumentError, DTypeError, ShapeError
from tests import judge

PAGE = Path(__file__).parents[2] / "docs" / "linalg.md"


def test_examples():
    def check(name):
        result = doctest.testmod(importlib.import_module(name))
        assert result.failed == 0, name

    names = [f"prismm.linalg.{module.name}" for module in pkgutil.iter_modules(prismm.linalg.__path__)]
    judge.assert_each(check, ["prismm.linalg", *names])


def test_every_name_is_there():
    for name in prismm.linalg.__all__:
        assert getattr(prismm.linalg, name).__doc__, name
    assert dir(prismm.linalg) == sorted(prismm.linalg.__all__)


def test_the_package_loads_nothing_before_it_is_asked():
    code = "import sys, prismm.linalg; print([x for x in ('numpy', 'torch', 'scipy', 'numba') if x in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_functions_take_what_the_page_says():
    """The table of operands, each yes and no of it tried."""
    la, square = prismm.linalg, np.array([[2.0, 1.0], [1.0, 3.0]])
    rows = re.findall(r"^\| `(\w+)` \| (yes|no) \| (yes|no) \| (yes|no|in a.*?) \|$", PAGE.read_text(), re.MULTILINE)
    assert sorted(row[0] for row in rows) == sorted(name for name in la.__all__ if not name.endswith("Report"))
    two = {"residual", "solve", "lstsq", "symm", "trmm"}

    def takes(verb, *operands, **keywords):
        with contextlib.suppress(ArgumentError, DTypeError, ShapeError):
            getattr(la, verb)(*operands, **keywords)
            return True
        return False

    def check(row):
        verb, is_complex, batches, integers = row
        for expected, a in ((is_complex, square + 0j), (batches, np.stack([square, square]))):
            operands = (a, a, a)[: 3 if verb == "residual" else 1 + (verb in two)]
            assert takes(verb, *operands) == (expected == "yes")
        beyond = np.array([[2**53 + 1, 0], [0, 2**53 + 1]])
        names = ("a", "x", "b") if verb == "residual" else ("a", "b") if verb in two else ("a",)
        for i, name in enumerate(names):
            operands = [beyond if j == i else square for j in range(len(names))]
            expected = integers == "yes" or name in integers.removeprefix("in").replace("and", "").split()
            assert takes(verb, *operands) == expected, name
        if verb in ("syrk", "herk", "symm"):
            operands = (square,) * (2 if verb in two else 1)
            assert not takes(verb, *operands, beyond, beta=1.0)

    judge.assert_each(check, rows)
