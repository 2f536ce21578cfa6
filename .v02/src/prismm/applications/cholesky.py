"""Cholesky factorisation of a Gaussian process's covariance matrix, recursively, so that nearly all work is products.

Points are drawn in the unit cube; the covariance is Matérn-1/2 with a length of 0.1 and a nugget of 0.1. Four
products make the factor: two of the triangular solve, in its last block and between blocks, and two of the symmetric
update, on and off the diagonal. The run passes if the backward error ‖A − LLᵀ‖ / ‖A‖, computed exactly on a sample of
entries, is at most 8·√n·u, a small multiple of what rounding errors that do not conspire leave.
"""

from __future__ import annotations

import math

import torch

from prismm.applications.application import Application, Verdict, main
from prismm.applications.references import residual, sample


def make(size: int, seed: int, device: str, dtype: torch.dtype) -> torch.Tensor:
    """The covariance of `size` points."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(size, 3, dtype=torch.float64, generator=generator).to(device)
    a = torch.empty(size, size, dtype=dtype, device=device)
    for i in range(0, size, 2048):
        x, y, z = ((points[i : i + 2048, None, axis] - points[None, :, axis]) ** 2 for axis in range(3))
        squares = x + y + z
        a[i : i + 2048] = torch.exp(-10.0 * squares.sqrt())
    a.diagonal().add_(0.1)
    return a


def solve(a: torch.Tensor, block: int | None = None) -> torch.Tensor:
    """The factor L, lower triangular, with A = LLᵀ, from diagonal blocks that LAPACK factors."""
    factor = a.clone()
    cholesky(factor, {}, 0, block or (512 if len(a) <= 8192 else 1024))
    return factor.tril_()


def cholesky(a: torch.Tensor, inverses: dict[int, torch.Tensor], at: int, block: int) -> None:
    """Overwrite the lower triangle of a by its factor."""
    n = len(a)
    if n <= block:
        a.copy_(torch.linalg.cholesky(a))
        inverses[at] = torch.linalg.solve_triangular(a, torch.eye(n, dtype=a.dtype, device=a.device), upper=False)
        return
    h = half(n, block)
    cholesky(a[:h, :h], inverses, at, block)
    triangular_solve(a[h:, :h], a[:h, :h], inverses, at, block)
    symmetric_update(a[h:, h:], a[h:, :h], block)
    cholesky(a[h:, h:], inverses, at + h, block)


def triangular_solve(
    x: torch.Tensor, factor: torch.Tensor, inverses: dict[int, torch.Tensor], at: int, block: int
) -> None:
    """Overwrite x by x L^-T."""
    n = len(factor)
    if n <= block:
        x.copy_(x @ inverses[at].T)
        return
    h = half(n, block)
    triangular_solve(x[:, :h], factor[:h, :h], inverses, at, block)
    x[:, h:] -= x[:, :h] @ factor[h:, :h].T
    triangular_solve(x[:, h:], factor[h:, h:], inverses, at + h, block)


def symmetric_update(c: torch.Tensor, x: torch.Tensor, block: int) -> None:
    """Subtract x xᵀ from c, on and below the diagonal blocks."""
    n = len(c)
    if n <= block:
        c -= x @ x.T
        return
    h = half(n, block)
    symmetric_update(c[:h, :h], x[:h], block)
    c[h:, :h] -= x[h:] @ x[:h].T
    symmetric_update(c[h:, h:], x[h:], block)


def half(n: int, block: int) -> int:
    """About half of n, a multiple of the block."""
    return max(block, n // 2 // block * block)


def refer(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sampled rows and columns."""
    return sample(len(a), 192, 0), sample(len(a), 192, 1)


def judge(a: torch.Tensor, factor: torch.Tensor, reference: tuple[torch.Tensor, torch.Tensor]) -> Verdict:
    """Backward error on the sample, from exact residuals."""
    rows, columns = (index.to(a.device) for index in reference)
    chosen = a[rows][:, columns]
    error = float(torch.linalg.norm(residual(chosen, factor[rows], factor[columns].T)) / torch.linalg.norm(chosen))
    limit = 8.0 * math.sqrt(len(a)) * torch.finfo(a.dtype).eps / 2
    return Verdict(error, error <= limit, f"backward error {error:.2g} (at most {limit:.2g})")


APP = Application(
    "cholesky", "Cholesky", make, solve, refer, judge, {"quick": 640, "cpu": 2048, "cuda": 32768},
    ("float32", "float64"),
)  # fmt: skip

if __name__ == "__main__":
    main(APP)
