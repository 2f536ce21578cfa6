"""A sample of operands on a GPU: which share of entries a join of residues would leave uncertified.

The join certifies an entry of native grade by how many elements of its row and its column are large, or by its own size
(`cuda.residues.kernels.join_exact`). Other entries are compared with products of 7-bit magnitudes, or made exact
(`cuda.residues.kernels.magnitudes`), which takes longer than the product itself where they are many. Data within a few
binades leave none, data that spread over many leave nearly all. The first call of a kind, which waits for compilers
anyway, therefore samples some rows and columns before it leaves cuBLAS. Later calls do not, and neither does one that a
graph captures.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from prismm.core.accuracy import join_test
from prismm.core.moduli import operand_bits
from prismm.cuda.residues.sampled import MARGIN
from prismm.cuda.residues.seconds import Uncertified

if TYPE_CHECKING:
    import torch

    from prismm.core.problem import Problem

VECTORS = 64
"""Rows, and columns, of the sample."""
_LEVELS = 5
_MOST_TERMS = 1 << 16
"""Elements of a vector that are read."""


class DataSample:
    """Which share of a @ b, matrices or batches of them, so many moduli would probably leave uncertified.

    It comes from a sample of 64 x 64 entries; asking for it waits for the device.
    """

    def __init__(self, a: torch.Tensor, b: torch.Tensor, problem: Problem) -> None:
        self._operands, self._problem = (a, b), problem

    @functools.cached_property
    def _vectors(self) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = self._operands
        return _normalised(_sample(a, rows=True)), _normalised(_sample(b, rows=False))

    def __call__(self, moduli: int) -> Uncertified:
        """By the tests of `join.join_tile` and `magnitudes` with 2^s·‖a‖₂ = 2^(L - 1/2), half a bit less than scales
        leave on average.
        """
        import torch

        _, kappa, magnitude_kappa = join_test(self._problem.target, self._problem.terms, self._problem.result)
        rows, columns = self._vectors
        # Parts of complex numbers, the last axis, are paired again for the product.
        values = (
            torch.view_as_complex(rows) @ torch.view_as_complex(columns).mT if rows.ndim == 3 else rows @ columns.mT
        )
        size = values.real.abs()
        terms = float(rows[0].numel())
        (units_a, one_a, counts_a), (units_b, one_b, counts_b) = (_facts(x.flatten(1), moduli) for x in (rows, columns))
        bound = 0.5 * (one_a[:, None] + one_b[None, :]) + 0.25 * terms
        units = units_a[:, None] * units_b[None, :]
        least = _thresholds(rows)
        hits = counts_a[:, None, :, None] + counts_b[None, :, None, :] - terms
        hits = (hits * (least[:, None] * least)[:, :, None, None]).amax((0, 1)).clamp_min(0.0)
        certified = (size * units >= bound * kappa) | (hits * units >= bound * magnitude_kappa)
        # What is not finite takes another path, and vectors of zeros none.
        certified |= ~torch.isfinite(bound)
        x, y = (z.flatten(1).abs() for z in (rows, columns))
        magnitudes = torch.floor(x * 128.0) @ torch.floor(y * 128.0).mT / 128.0**2
        proved = (magnitudes * units >= bound * magnitude_kappa) | ((x != 0.0).double() @ (y != 0.0).double().mT == 0.0)
        # The least counts of other strips are less than these, or more: of normal data by a third at most.
        strips = min(1.0, max(0.0, (MARGIN - _margin(x, y, moduli, magnitude_kappa)) / (MARGIN - 1.0)))
        return Uncertified(
            1.0 - float(certified.double().mean()), 1.0 - float((certified | proved).double().mean()), strips
        )


def _sample(x: torch.Tensor, *, rows: bool) -> torch.Tensor:
    """Some rows, or columns as rows, evenly spread over the middle matrix of a batch; their first elements."""
    if x.ndim == 1:
        x = x[None] if rows else x[:, None]
    matrix = x[tuple(size // 2 for size in x.shape[:-2])]
    vectors = matrix if rows else matrix.mT
    step = max(1, vectors.shape[0] // VECTORS)
    return vectors[::step][:VECTORS, :_MOST_TERMS]


def _normalised(x: torch.Tensor) -> torch.Tensor:
    """Vectors in float64 times powers of two, so that their largest elements are from a half to 1; parts of complex
    numbers along a last axis of their own.
    """
    import torch

    real = torch.view_as_real(x.to(torch.complex128)) if x.is_complex() else x.double()
    _, exponent = torch.frexp(real.abs().flatten(1).amax(1))
    return (real * torch.exp2(-exponent.double()).reshape(-1, *[1] * (real.ndim - 1))).contiguous()


def _thresholds(x: torch.Tensor) -> torch.Tensor:
    """1, halved 1 to 5 times."""
    import torch

    return 0.5 ** torch.arange(1, _LEVELS + 1, dtype=torch.float64, device=x.device)


def _facts(x: torch.Tensor, moduli: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of vectors: 2^s, ‖A'‖₁, and how many elements exceed each threshold."""
    import torch

    units = 2.0 ** (operand_bits(moduli) - 0.5) / torch.linalg.vector_norm(x, dim=1)
    size = x.abs()
    counts = (size > _thresholds(x)[:, None, None]).sum(2).double()
    return units, size.sum(1) * units, counts


def _margin(x: torch.Tensor, y: torch.Tensor, moduli: int, magnitude_kappa: float) -> float:
    """How much more `cuda.residues.kernels.join_fast` finds than it needs to certify a strip of these magnitudes, rows
    of both, as a whole: by the least counts of elements above thresholds that are the same for all.
    """
    terms, bits = x.shape[1], operand_bits(moduli)
    (power_a, counts_a), (power_b, counts_b) = _least_counts(x, bits), _least_counts(y, bits)
    hits = max(
        (a + b - terms) * 0.5 ** (p + r) for p, a in enumerate(counts_a) for r, b in enumerate(counts_b)
    )  # fmt: skip
    needed = 4.0 * (math.sqrt(terms) * 2.0**bits + 0.25 * terms) * magnitude_kappa
    return float(hits * 2.0 ** (power_a + power_b) / needed) if needed else math.inf


def _least_counts(x: torch.Tensor, bits: float) -> tuple[int, list[float]]:
    """The least e + s of vectors that are not zero, and the least counts of elements of at least 2^(that - 1 - p)."""
    import torch

    x = x[torch.isfinite(x).all(1) & (x != 0.0).any(1)]
    if not len(x):
        return 0, [math.inf] * _LEVELS
    s = torch.floor(bits - torch.log2(torch.linalg.vector_norm(x, dim=1))).long()
    counts = (x > _thresholds(x)[:, None, None]).sum(2).double()
    least = int(s.amin())
    levels = (s - least + torch.arange(_LEVELS, device=x.device)[:, None]).clamp_max(_LEVELS - 1)
    return least, counts.gather(0, levels).amin(1).tolist()


def worth_sampling(problem: Problem, a: torch.Tensor) -> bool:
    """Whether operands may be sampled: there are some, and no graph is being captured."""
    import torch

    if not math.prod((problem.m, problem.n, problem.k, *problem.batch)):
        return False
    return not (a.is_cuda and torch.cuda.is_current_stream_capturing())
