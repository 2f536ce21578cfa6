"""The accuracy experiments of the papers that prismm builds on, with what they published beside what we find.

An *experiment* is a list of independent points, each a function of a random generator that returns rows of numbers.
What a paper published stands as data beside them: a *claim* names its figure, table or sentence, measures our rows and
applies an explicit rule. `names` lists the experiments without loading anything heavy; `load` imports one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.errors import ArgumentError, meant

if TYPE_CHECKING:
    from prismm.reproduce.framework import Experiment

__all__ = ["PAPERS", "Paper", "load"]


@dataclass(frozen=True)
class Paper:
    """Where an experiment comes from.

    Attributes:
        module: its file in this package.
        title: of the paper.
        citation: authors, venue, identifier.
    """

    module: str
    title: str
    citation: str


PAPERS: dict[str, Paper] = {
    "tf32-tf64": Paper(
        "tf32_tf64",
        "Mixed-Precision S/DGEMM Using the TF32 and TF64 Frameworks on Low-Precision AI Tensor Cores",
        "Valero-Lara, Jorquera, Liu, Vetter, SC-W 2023, doi:10.1145/3624062.3624084",
    ),
    "mixpert": Paper(
        "mixpert",
        "MixPert: Optimizing Mixed-Precision Floating-Point Emulation on GPU Integer Tensor Cores",
        "Lin, Sun, Zhang, Lu, LCTES 2024, doi:10.1145/3652032.3657567",
    ),
    "dgemm-tc": Paper(
        "dgemm_tc",
        "DGEMM Using Tensor Cores, and Its Accurate and Reproducible Versions",
        "Mukunoki, Ozaki, Ogita, Imamura, ISC 2020, doi:10.1007/978-3-030-50743-5_12",
    ),
    "tensor-core-numerics": Paper(
        "tensor_core_numerics",
        "Numerical Behavior of NVIDIA Tensor Cores",
        "Fasi, Higham, Mikaitis, Pranesh, 2020, MIMS EPrint 2020.10",
    ),
    "h2sgemm": Paper(
        "h2sgemm",
        "H2SGEMM: Emulating FP32 GEMM on Ascend NPUs using FP16 Units with Precision Recovery and "
        "Cache-Aware Optimization",
        "Xue, Xu, Yang, Liu, Fan, Xu, Tian, 2025, arXiv:2507.23387",
    ),
}
"""Every experiment by its name on the command line."""


def load(name: str) -> Experiment:
    """The experiment of this name.

    Raises:
        ArgumentError: for an unknown name.

    >>> from prismm.reproduce import load
    >>> load("mixpert").name
    'mixpert'
    """
    from importlib import import_module

    if name not in PAPERS:
        raise ArgumentError(f"there is no experiment {name!r}{meant(name, PAPERS)}; pass one of {', '.join(PAPERS)}")
    found: Experiment = import_module(f"prismm.reproduce.{PAPERS[name].module}").EXPERIMENT
    return found
