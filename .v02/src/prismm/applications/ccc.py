"""CCC: correlation of genomic vectors, the product at the heart of Sparkler and CoMet.

Each vector holds a single-nucleotide polymorphism's two alleles for every person. For vectors i and j and alleles r,
s the table N_rs(i, j) counts pairs of alleles over all people: one product of the allele counts (0, 1 or 2) with
themselves. The custom correlation coefficient is 9/2·R_rs·(1 − 2/3·f_r(i))·(1 − 2/3·f_s(j)) with R = N/(4·people) and
allele frequencies f (Climer et al. 2014; Joubert et al. 2019). Genotypes are generated in Hardy-Weinberg equilibrium,
with linkage between neighbours. The run passes if every table is exact, by integer arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from prismm.applications.application import Application, Verdict, main
from prismm.applications.references import relative, sample


@dataclass(frozen=True)
class Tables:
    """counts: (2·vectors, 2·vectors), N_rs(i, j) at [r·vectors + i, s·vectors + j]; correlation: of the same shape."""

    counts: torch.Tensor
    correlation: torch.Tensor


def make(size: int, seed: int, device: str, dtype: torch.dtype) -> torch.Tensor:
    """Counts of the second allele, (size vectors, 16·size people), 0, 1 or 2."""
    generator = torch.Generator(device).manual_seed(seed)
    people = 16 * size
    frequency = 0.05 + 0.9 * torch.rand(size, generator=generator, device=device)
    counts = torch.zeros(size, people, dtype=dtype, device=device)
    for _ in range(2):  # two chromosomes
        strand = torch.zeros(people, dtype=torch.bool, device=device)
        for i in range(size):
            fresh = torch.rand(people, generator=generator, device=device) < frequency[i]
            linked = torch.rand(people, generator=generator, device=device) < 0.3
            strand = torch.where(linked, strand, fresh)
            counts[i] += strand
    return counts


def solve(second: torch.Tensor) -> Tables:
    """Tables of allele pairs and the correlation of every pair of vectors."""
    people = second.shape[1]
    alleles = torch.cat([2 - second, second])
    counts = alleles @ alleles.T
    weight = 1 - alleles.sum(1) / (3 * people)  # 1 − 2/3·f, f = sum / (2·people)
    correlation = counts * (9 / (8 * people)) * weight[:, None] * weight[None, :]
    return Tables(counts, correlation)


def refer(second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sampled vectors, their exact counts against all (by integer arithmetic), and correlations in float64."""
    vectors, people = second.shape
    rows = sample(2 * vectors, 256, 0).to(second.device)
    whole = torch.cat([2 - second, second])
    # Sums of at most 4·people are exact in float64; a GPU multiplies no int64.
    exact = whole[rows].double() @ whole.double().T if second.is_cuda else _integers(whole[rows]) @ _integers(whole).T
    weight = 1 - whole.double().sum(1) / (3 * people)
    return rows, exact, exact.double() * (9 / (8 * people)) * weight[rows, None] * weight[None, :]


def _integers(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.int64)


def judge(second: torch.Tensor, tables: Tables, reference: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> Verdict:
    """How many counts of the sample are wrong."""
    rows, exact, correlation = reference
    wrong = int((tables.counts[rows].double() != exact.double()).sum())
    error = relative(tables.correlation[rows], correlation)
    return Verdict(error, wrong == 0, f"{wrong} of {exact.numel()} counts wrong")


APP = Application("ccc", "CCC", make, solve, refer, judge, {"quick": 64, "cpu": 256, "cuda": 4096})

if __name__ == "__main__":
    main(APP)
