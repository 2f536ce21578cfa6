"""What holds for every engine that multiplies residues."""

from __future__ import annotations

import numpy as np

import prismm
from prismm import Residues
from tests.judge import assert_same_bits


def assert_bits_of_any_engine(a: np.ndarray, b: np.ndarray, name: str) -> None:
    """Products by an engine have the bits of float64's, for the scheme's own value and two targets, and prepared."""
    scheme = Residues(7 if a.dtype == np.float32 else 14)
    for keywords in ({}, {"accuracy": "native"}, {"accuracy": "correctly-rounded"}):
        expected = prismm.matmul(a, b, scheme=scheme, engine="cpu:float64", **keywords)
        found, report = prismm.matmul(a, b, scheme=scheme, engine=name, full_output=True, **keywords)
        assert report.engine == name
        assert_same_bits(found, expected)
    right = prismm.prepare(b, scheme=scheme, engine=name)
    assert_same_bits(prismm.matmul(a, right), prismm.matmul(a, b, scheme=scheme))
