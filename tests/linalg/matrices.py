"""Classical matrices of any order by name: SciPy's, those that textbooks test solvers with, and tables of real data."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.linalg
import scipy.sparse
from scipy.sparse.csgraph import laplacian

Matrix = Any
"""A NumPy array, or a sparse one of SciPy's."""


def second_difference(n: int) -> Matrix:
    """Of the one-dimensional Poisson equation."""
    return scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))


def poisson(n: int) -> Matrix:
    """The five-point Laplacian on about n points of a rectangle."""
    side = max(1, round(n**0.5))
    line, other = second_difference(side), second_difference(max(1, n // side))
    one, two = (scipy.sparse.eye_array(x.shape[0]) for x in (line, other))
    return scipy.sparse.kron(line, two) + scipy.sparse.kron(one, other)


def biharmonic(n: int) -> Matrix:
    """Of a clamped beam: the square of the second difference."""
    return second_difference(n) @ second_difference(n)


def convection(n: int) -> Matrix:
    """Convection and diffusion, upwind: not symmetric."""
    return second_difference(n) * 1.5 + scipy.sparse.diags_array([-0.7, 0.7], offsets=[-1, 0], shape=(n, n))


def path_laplacian(n: int) -> Matrix:
    """Of the graph of a path, with one vertex grounded."""
    path = scipy.sparse.diags_array([1.0, 1.0], offsets=[-1, 1], shape=(n, n))
    grounded = laplacian(path).tolil()
    grounded[0, 0] += 1.0
    return grounded.tocoo()


def wilkinson(n: int) -> Matrix:
    """Wilkinson's W+, tridiagonal."""
    middle = np.abs(np.arange(n) - (n - 1) / 2)
    return scipy.sparse.diags_array([np.ones(n - 1), middle + 0.25, np.ones(n - 1)], offsets=[-1, 0, 1])


def frank(n: int) -> Matrix:
    """Frank's upper Hessenberg matrix, of determinant 1."""
    i, j = np.indices((n, n))
    return np.where(j >= i - 1, n - np.maximum(i, j), 0).astype(float)


def lehmer(n: int) -> Matrix:
    """min(i, j) / max(i, j)."""
    i, j = np.indices((n, n)) + 1.0
    return np.minimum(i, j) / np.maximum(i, j)


def minimum(n: int) -> Matrix:
    """min(i, j), whose inverse is tridiagonal."""
    i, j = np.indices((n, n)) + 1
    return np.minimum(i, j)


def moler(n: int) -> Matrix:
    """Positive definite with one tiny eigenvalue."""
    i, j = np.indices((n, n)) + 1
    return np.where(i == j, i, np.minimum(i, j) - 2)


def cauchy(n: int) -> Matrix:
    """1 / (x_i + y_j), rounded."""
    i, j = np.indices((n, n)) + 1.0
    return 1.0 / (i + j + 0.5)


def lotkin(n: int) -> Matrix:
    """Hilbert's matrix with a first row of ones."""
    a = scipy.linalg.hilbert(n)
    a[0] = 1.0
    return a


def kahan(n: int) -> Matrix:
    """Kahan's triangular matrix."""
    s, c = np.sin(1.2), np.cos(1.2)
    return s ** np.arange(n)[:, None] * (np.eye(n) - c * np.triu(np.ones((n, n)), 1))


def prolate(n: int) -> Matrix:
    """Symmetric Toeplitz, nearly singular."""
    k = np.arange(1, n)
    return scipy.linalg.toeplitz(np.concatenate([[0.6], np.sin(0.6 * np.pi * k) / (np.pi * k)]))


def grcar(n: int) -> Matrix:
    """Toeplitz with sensitive eigenvalues."""
    return scipy.sparse.diags_array([-1.0, 1.0, 1.0, 1.0, 1.0], offsets=[-1, 0, 1, 2, 3], shape=(n, n))


SQUARE: dict[str, Callable[[int], Matrix]] = {
    "hilbert": scipy.linalg.hilbert,
    "inverse hilbert": lambda n: scipy.linalg.invhilbert(min(n, 12)),
    "pascal": lambda n: scipy.linalg.pascal(min(n, 25)).astype(float),
    "inverse pascal": lambda n: scipy.linalg.invpascal(min(n, 16)).astype(float),
    "hadamard": lambda n: scipy.linalg.hadamard(1 << (n.bit_length() - 1)),
    "helmert": lambda n: scipy.linalg.helmert(n, full=True),
    "fiedler": lambda n: scipy.linalg.fiedler(np.arange(1.0, n + 1) ** 1.5),
    "companion": lambda n: scipy.linalg.companion(np.arange(1.0, n + 2)),
    "leslie": lambda n: scipy.linalg.leslie(1.0 / np.arange(1.0, n + 1), np.linspace(0.9, 0.3, n - 1)),
    "circulant": lambda n: scipy.linalg.circulant(0.5 ** np.arange(float(n))),
    "hankel": lambda n: scipy.linalg.hankel(np.arange(1.0, n + 1)),
    "toeplitz": lambda n: scipy.linalg.toeplitz(0.9 ** np.arange(float(n))),
    "dft": lambda n: scipy.linalg.dft(n),
    "vandermonde": lambda n: np.vander(np.linspace(-1.0, 1.0, min(n, 24))),
    "second difference": second_difference, "poisson": poisson, "biharmonic": biharmonic, "convection": convection,
    "path": path_laplacian, "wilkinson": wilkinson, "frank": lambda n: frank(min(n, 40)), "lehmer": lehmer,
    "minimum": minimum, "moler": moler, "cauchy": cauchy, "lotkin": lotkin, "kahan": kahan, "prolate": prolate,
    "grcar": grcar,
}  # fmt: skip
"""Matrices of about so many rows; some exist up to a size alone."""

DATA = {"iris": (150, 4), "wine": (178, 13), "diabetes": (442, 10), "linnerud": (20, 3), "breast_cancer": (569, 30)}
"""Tables of measurements that scikit-learn brings, and their shapes."""


def observations(name: str, rows: int | None = None) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The first rows of a table with a column of ones, and what is to be explained."""
    load = getattr(importlib.import_module("sklearn.datasets"), f"load_{name}")
    table = load(scaled=False) if name == "diabetes" else load()
    x, y = np.asarray(table.data, dtype=float)[:rows], np.asarray(table.target, dtype=float)[:rows]
    return np.hstack([np.ones((len(x), 1)), x]), y.reshape(len(y), -1)


def published() -> dict[str, str]:
    """The Matrix Market texts in SciPy's own tests, the examples of the format's definition among them; none where a
    distribution leaves the tests out. They are read, not imported.
    """
    source = Path(scipy.io.__file__).parent / "tests" / "test_mmio.py"
    if not source.is_file():
        return {}
    assigned = [node for node in ast.parse(source.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign)]
    texts = {ast.unparse(node.targets[0]).strip("_"): getattr(node.value, "value", None) for node in assigned}
    return {name: text for name, text in texts.items() if str(text).startswith("%%MatrixMarket")}
