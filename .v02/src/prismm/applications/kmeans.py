"""k-means (Lloyd's iteration): one product of points and centres gives all distances, a proof makes the labels exact.

Centres are means of integers: sums and counts are kept exactly, and rounded to float32 for the product. Its error
bound, K·u·|x||c|, says which points' nearest centre is beyond doubt. The others are decided in float64 by its bound,
and the rest by fractions. So the labels of every iteration are those of exact arithmetic wherever the bound holds, as
in IEEE float32 and with prismm's certified targets: the run passes if all are.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch

import prismm
from prismm.applications.application import Application, Verdict, main
from prismm.applications.counts import centred, digits, readings
from prismm.applications.references import relative

ITERATIONS = 5


@dataclass(frozen=True)
class Points:
    """Points (n, d), integers in float32, and the indices of those that the centres start from."""

    points: torch.Tensor
    start: torch.Tensor


@dataclass(frozen=True)
class Clusters:
    """Labels (n,) after the last iteration, sums (c, d) of each cluster and counts (c,), exact; the share of decisions
    that float32 left undecided; and 64 rows of |c|² − 2x·c of the last iteration.
    """

    labels: torch.Tensor
    sums: torch.Tensor
    counts: torch.Tensor
    uncertified: float
    scores: torch.Tensor


def make(size: int, seed: int, device: str, dtype: torch.dtype) -> Points:
    """`size` points of size/32 features, at least 64, for size/32 clusters."""
    count = max(16, size // 32)
    x, _ = readings(size, max(64, size // 32), count, seed, device)
    return begin(centred(x), count, seed)


def make_digits(size: int, seed: int, device: str, dtype: torch.dtype) -> Points:
    """The bundled digits, ten clusters."""
    return begin(centred(digits()[0].to(device)), 10, seed)


def begin(x: torch.Tensor, count: int, seed: int) -> Points:
    """Centres start at points of a random choice."""
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:count]
    return Points(x, chosen.to(x.device))


def solve(problem: Points, dtype: torch.dtype = torch.float32) -> Clusters:
    """Five iterations; a cluster that loses all its points keeps its centre."""
    x = problem.points
    sums, counts = x[problem.start].double(), torch.ones(len(problem.start), dtype=torch.float64, device=x.device)
    norms = (x.double() ** 2).sum(1).sqrt()
    kept_sums, kept_counts = torch.zeros_like(sums), torch.zeros_like(counts)
    labels: torch.Tensor | None = None
    uncertified, scores = 0, torch.empty(0)
    for _ in range(ITERATIONS):
        new, left, first = assign(x, norms, sums, counts, dtype)
        uncertified += left
        scores = first
        # Only points that move change a sum; sums of integers are exact in any order.
        moved = new >= 0 if labels is None else new != labels
        if labels is not None:
            kept_sums.index_add_(0, labels[moved], -x[moved].double())
            kept_counts -= torch.bincount(labels[moved], minlength=len(counts))
        kept_sums.index_add_(0, new[moved], x[moved].double())
        kept_counts += torch.bincount(new[moved], minlength=len(counts))
        full = kept_counts > 0
        sums = torch.where(full[:, None], kept_sums, sums)
        counts = torch.where(full, kept_counts, counts)
        labels = new
    assert labels is not None
    return Clusters(labels, sums, counts, uncertified / (ITERATIONS * len(x)), scores)


def assign(
    x: torch.Tensor, norms: torch.Tensor, sums: torch.Tensor, counts: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, int, torch.Tensor]:
    """The nearest centre of every point, the first of equals; how many the first product left undecided; 64 scores."""
    means = sums / counts[:, None]
    labels, gap, scores = nearest(x, means, dtype)
    sizes = (means**2).sum(1).sqrt()
    left = (gap <= 2 * doubt(norms, sizes, x.shape[1], dtype)).nonzero().flatten()
    if len(left) and dtype != torch.float64:
        labels[left], gap, _ = nearest(x[left], means, torch.float64)
        still = left[gap <= 2 * doubt(norms[left], sizes, x.shape[1], torch.float64)]
    else:
        still = left
    for i in still.tolist():
        labels[i] = exactly(x[i], sums, counts)
    return labels, len(left), scores


def doubt(norms: torch.Tensor, sizes: torch.Tensor, d: int, dtype: torch.dtype) -> torch.Tensor:
    """A bound of a score's error: the product's d·u·|x||c| twice, squares', two roundings, and the centres' own."""
    unit = torch.finfo(dtype).eps / 2
    largest = sizes.max()
    return (d + 8) * unit * largest * (largest + 2 * norms)


def nearest(
    x: torch.Tensor, means: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The nearest centre as computed, how much farther the second one is, and the first 64 rows of scores."""
    centres = means.to(dtype)
    scores = x.to(dtype) @ centres.T
    scores.mul_(-2).add_((centres * centres).sum(1))
    first = scores[:64].clone()
    best, labels = scores.min(1)
    scores.scatter_(1, labels[:, None], torch.inf)
    return labels, (scores.min(1).values - best).double(), first


def exactly(point: torch.Tensor, sums: torch.Tensor, counts: torch.Tensor) -> int:
    """The first of the nearest centres of one point, by fractions."""
    x = [int(v) for v in point.tolist()]
    found = []
    for total, count in zip(sums.tolist(), counts.tolist(), strict=True):
        n = int(count)
        found.append(Fraction(sum((v * n - int(s)) ** 2 for v, s in zip(x, total, strict=True)), n * n))
    return found.index(min(found))


def refer(problem: Points) -> tuple[Clusters, torch.Tensor]:
    """The iteration with every decision proved in float64 or made by fractions; products correctly rounded."""
    with prismm.emulate("correctly-rounded"):
        clusters = solve(problem, torch.float64)
    return clusters, clusters.scores


def judge(problem: Points, clusters: Clusters, reference: tuple[Clusters, torch.Tensor]) -> Verdict:
    """How many labels differ from those of exact arithmetic."""
    exact, scores = reference
    wrong = int((clusters.labels != exact.labels).sum())
    error = relative(clusters.scores, scores)
    detail = f"{wrong} of {len(exact.labels)} labels differ; {100 * clusters.uncertified:.2g} % decided in float64"
    return Verdict(error, wrong == 0 and torch.equal(clusters.sums, exact.sums), detail)


APP = Application("kmeans", "k-means", make, solve, refer, judge, {"quick": 2048, "cpu": 16384, "cuda": 131072})
DIGITS = Application(
    "kmeans-digits", "k-means, digits", make_digits, solve, refer, judge, {"quick": 1797, "cpu": 1797, "cuda": 1797}
)

if __name__ == "__main__":
    main(APP, DIGITS)
