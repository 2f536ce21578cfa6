"""DGEMM-TC as Mukunoki et al. published it, in torch's operations: FP16 slices, cuBLAS on them, sums in float64."""

from __future__ import annotations

import torch

from prismm.reproduce.algorithm3 import paper_bits, products_for, slices_needed


def slices_for(a: torch.Tensor, b: torch.Tensor) -> tuple[int, bool, int]:
    """Slices by Algorithm 3 on 64 rows of A, whether fast mode stays on, and bits of a slice: not timed."""
    bits = paper_bits(a.shape[1])
    roundoff = 2.0**-53 if a.dtype == torch.float64 else 2.0**-24
    rows, sums = a[:64].double().cpu().numpy(), b.double().abs().sum(1).cpu().numpy()
    slices, fast = slices_needed([rows], sums, bits, roundoff)
    return slices, fast, bits


def power(exponent: torch.Tensor) -> torch.Tensor:
    """2^exponent in float64, exactly: a GPU's pow may round.

    >>> power(torch.tensor([-3, 0, 60])).tolist()
    [0.125, 1.0, 1.152921504606847e+18]
    """
    return ((exponent.long() + 1023) << 52).view(torch.float64)


def cut(x: torch.Tensor, bits: int, slices: int, dim: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Algorithm 1: digits in FP16 and the exponents of the vectors along `dim`, slice by slice."""
    found = []
    rest = x.double()
    for _ in range(slices):
        fraction, exponent = torch.frexp(rest.abs().amax(dim, keepdim=True))
        exponent = exponent - (fraction == 0.5).int()
        sigma = power(exponent + (53 - bits))
        slice_ = (rest + sigma) - sigma
        rest = rest - slice_
        found.append(((slice_ * power(-exponent)).half(), exponent))
    return found


def multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, slices: int, fast: bool, bits: int) -> None:
    """Algorithm 2: out = a @ b, the products of slices added in out's type, rows times columns of powers of two."""
    left, right = cut(a, bits, slices, 1), cut(b, bits, slices, 0)
    out.zero_()
    for p, (x, e) in enumerate(left, 1):
        for q, (y, f) in enumerate(right, 1):
            if fast and p + q > slices + 1:
                continue
            product = torch.mm(x, y, out_dtype=torch.float32) if x.is_cuda else x.float() @ y.float()
            out.add_(product.to(out.dtype).mul_(power(e).to(out.dtype)).mul_(power(f).to(out.dtype)))


def products(slices: int, fast: bool) -> int:
    """Products of slices."""
    return products_for(slices, fast)
