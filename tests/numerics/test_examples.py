"""Examples in the docstrings of `prismm.numerics` are run."""

import doctest
import importlib
import pkgutil

import pytest

import prismm.numerics

MODULES = sorted(found.name for found in pkgutil.walk_packages(prismm.numerics.__path__, "prismm.numerics."))
SLOW = ["prismm.numerics.probing"]


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * (x in SLOW)) for x in MODULES])
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
