"""prismm multiplies matrices to a stated accuracy on hardware that is fast only at low accuracy.

It splits each operand into low-precision parts, multiplies the parts exactly on a matrix engine, joins the
products, and certifies every entry of the result.

>>> import numpy as np, prismm
>>> a = np.array([[1e16, 1.0, -1e16]])
>>> b = np.ones((3, 1))
>>> prismm.matmul(a, b, accuracy="correctly-rounded")
array([[1.]])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.core.lazy import attributes

if TYPE_CHECKING:
    from prismm._api import explain, gemm, matmul, prepare
    from prismm.checking.check import check
    from prismm.core.check import Check
    from prismm.core.plan import Plan
    from prismm.core.prepared import Prepared
    from prismm.core.report import Report
    from prismm.planning.auto import Auto
    from prismm.products.contraction import einsum
    from prismm.products.dots import tensordot, vecdot
    from prismm.programs.compile import compile
    from prismm.programs.emulate import emulate
    from prismm.programs.places import scope
    from prismm.programs.policy import Policy, Rule
    from prismm.programs.tune import tune
    from prismm.schemes.multiword import Words
    from prismm.schemes.native import Native
    from prismm.schemes.residues import Residues
    from prismm.schemes.scaled_half import ScaledHalf
    from prismm.schemes.slices import Slices
    from prismm.schemes.tile_int8 import TileInt8

__version__ = "0.1.0"

_HOMES = {
    "matmul": "prismm._api",
    "gemm": "prismm._api",
    "prepare": "prismm._api",
    "explain": "prismm._api",
    "einsum": "prismm.products.contraction",
    "tensordot": "prismm.products.dots",
    "vecdot": "prismm.products.dots",
    "check": "prismm.checking.check",
    "Check": "prismm.core.check",
    "Plan": "prismm.core.plan",
    "Auto": "prismm.planning.auto",
    "Policy": "prismm.programs.policy",
    "Rule": "prismm.programs.policy",
    "emulate": "prismm.programs.emulate",
    "compile": "prismm.programs.compile",
    "scope": "prismm.programs.places",
    "tune": "prismm.programs.tune",
    "Report": "prismm.core.report",
    "Prepared": "prismm.core.prepared",
    "Residues": "prismm.schemes.residues",
    "Native": "prismm.schemes.native",
    "Words": "prismm.schemes.multiword",
    "ScaledHalf": "prismm.schemes.scaled_half",
    "TileInt8": "prismm.schemes.tile_int8",
    "Slices": "prismm.schemes.slices",
}
_MODULES = (
    "distributed", "engines", "errors", "formats", "jax", "linalg", "metrics", "numerics", "programs", "schemes",
    "testing",
)  # fmt: skip

__all__ = [
    "Auto",
    "Check",
    "Native",
    "Plan",
    "Policy",
    "Prepared",
    "Report",
    "Residues",
    "Rule",
    "ScaledHalf",
    "Slices",
    "TileInt8",
    "Words",
    "check",
    "compile",
    "einsum",
    "emulate",
    "explain",
    "gemm",
    "matmul",
    "prepare",
    "scope",
    "tensordot",
    "tune",
    "vecdot",
]


__getattr__ = attributes(globals(), _HOMES, _MODULES)


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])
