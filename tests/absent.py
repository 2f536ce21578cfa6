"""Runs of the suite beside prismm's required packages alone (`--core`): what the tests import besides is absent."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import pytest

TESTS = str(Path(__file__).parent)
OPTIONAL = frozenset((
    "torch", "triton", "scipy", "sklearn", "matplotlib", "flint", "dask", "distributed", "jax", "opt_einsum",
    "nbclient", "nbformat", "myst_nb", "sphinx",
))  # fmt: skip
"""Packages of extras."""


class SkipsWhatImports(MetaPathFinder):
    """Skips tests, or modules of tests, that import a package of an extra which no other finder has found.

    Where prismm imports one, the import fails as it does for users: uninvited, it fails the test.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """The answer of the last finder."""
        if name not in OPTIONAL:
            return
        frame = sys._getframe(1)
        while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame.f_code.co_filename.startswith(TESTS):
            raise pytest.skip.Exception(f"{name} is not installed", allow_module_level=True)
