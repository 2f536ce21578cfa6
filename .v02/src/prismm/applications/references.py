"""References: exact residuals of a sample of entries, and the error of what was computed."""

from __future__ import annotations

import torch

from prismm import linalg


def sample(n: int, count: int, seed: int) -> torch.Tensor:
    """`count` different indices below n, or all of them, in order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(n, generator=generator)[:count].sort().values


def residual(a: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """a - left @ right in float64, every entry the exact value rounded once."""
    found: torch.Tensor = linalg.residual(left.double(), right.double(), a.double())
    return found


def relative(x: torch.Tensor, reference: torch.Tensor) -> float:
    """‖x − reference‖_F / ‖reference‖_F in float64 (the E_γ of MixPert's Eq. 10)."""
    reference = reference.double()
    return float(torch.linalg.norm(x.double() - reference) / torch.linalg.norm(reference))
