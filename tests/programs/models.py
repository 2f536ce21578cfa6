"""What the tests of whole programs run: a small model with two branches, and its data."""

from __future__ import annotations

import torch


class Branches(torch.nn.Module):
    """Linear layers inside a list, a product of activations, and a head."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8, dtype=dtype)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8, bias=False, dtype=dtype) for _ in range(2))
        self.head = torch.nn.Linear(5, 3, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        for block in self.blocks:
            x = block(x).relu()
        return self.head(x @ x.transpose(-1, -2))


def branches(seed: int, dtype: torch.dtype = torch.float32) -> tuple[Branches, torch.Tensor]:
    """The model and an input of shape (4, 5, 6)."""
    generator = torch.Generator().manual_seed(seed)
    model = Branches(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=dtype))
    return model, torch.randn(4, 5, 6, generator=generator, dtype=dtype)
