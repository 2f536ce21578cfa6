"""Products whose bits are on record: every reproducible target, result type and hostile generator."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prismm.cuda.costs.table import rates_of
from prismm.schemes.residues import Residues
from prismm.testing import HOSTILE


def needs_rates() -> None:
    """Skip where Auto knows nothing of this GPU, and takes cuBLAS."""
    import torch

    name = torch.cuda.get_device_name()
    if rates_of(name) is None:
        pytest.skip(f"no rates of {name} are known")


RECORD = Path(__file__).parents[1] / "bits.json"
SHAPE = 33, 70, 65
SEED = 20261121


def _keywords(moduli: int, tolerance: float) -> dict[str, dict[str, Any]]:
    return {
        "value": {"scheme": Residues(moduli)},
        "reproducible": {"reproducible": True},
        "correctly-rounded": {"accuracy": "correctly-rounded"},
        "tolerance": {"accuracy": tolerance, "reproducible": True},
    }


KEYWORDS = {
    "float64": _keywords(15, 1e-13),
    "float32": _keywords(7, 1e-6),
    "complex128": _keywords(15, 1e-13),
    "complex64": _keywords(7, 1e-6),
}
CASES = [
    (dtype, name, target) for dtype, targets in KEYWORDS.items() for name, target in itertools.product(HOSTILE, targets)
]


def operands(dtype: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The case's matrices."""
    return HOSTILE[name](*SHAPE, seed=SEED, dtype=np.dtype(dtype))


def digest(c: np.ndarray) -> str:
    """Of the bytes of a result, in order."""
    return hashlib.sha256(np.ascontiguousarray(c).tobytes()).hexdigest()[:16]


def recorded() -> dict[str, str]:
    """Digest by case."""
    return json.loads(RECORD.read_text())


def key(dtype: str, name: str, target: str) -> str:
    """The case in the record."""
    return f"{dtype} {name} {target}"
