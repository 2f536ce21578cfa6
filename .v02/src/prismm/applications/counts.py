"""Points whose features are counts: scikit-learn's handwritten digits, or many classes of 12-bit sensor readings.

All coordinates are integers, so that every decision between distances has an exact answer.
"""

from __future__ import annotations

import torch

from prismm.applications.application import Unavailable
from prismm.core.extras import install


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """The 1797 bundled images, 64 pixels of 0 to 16, and their digits."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise Unavailable(f"the digits come from scikit-learn; install it with: {install('demo')}") from error
    data = load_digits()
    return torch.from_numpy(data.data).float(), torch.from_numpy(data.target).long()


def readings(
    points: int, features: int, classes: int, seed: int, device: str
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Readings of 0 to 4095 in float32 and their classes: each class a mean with independent noise about it."""
    generator = torch.Generator(device).manual_seed(seed)
    means = 2048 + 40 * torch.randn(classes, features, generator=generator, device=device)
    labels = torch.randint(classes, (points,), generator=generator, device=device)
    x = torch.empty(points, features, device=device)
    for i in range(0, points, 8192):
        part = means[labels[i : i + 8192]]
        x[i : i + 8192] = torch.normal(part, 300.0, generator=generator).round_().clamp_(0, 4095)
    return x, labels


def centred(x: torch.Tensor) -> torch.Tensor:
    """x minus the rounded mean of every feature: still integers, with smaller norms."""
    return x - x.double().mean(0).round().float()
