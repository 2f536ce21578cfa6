"""k nearest neighbours: one product of queries and points gives all distances, a proof makes the labels exact.

Distances come from |y|² − 2x·y in float32. A conventional product's error bound, K·u·|x||y|, says which points may be
among the nearest ten; those alone are compared by exact distances (the features are integers, so float64 sums of
their squared differences are exact). Where the bound holds, as in IEEE float32 and with prismm's certified targets,
the labels are those of exact arithmetic: the run passes if all are. Reduced precision breaks the bound and may drop a
neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from prismm.applications.application import Application, Verdict, main
from prismm.applications.counts import centred, digits, readings
from prismm.applications.references import relative

NEIGHBOURS, SPARE = 10, 22


@dataclass(frozen=True)
class Search:
    """Queries (q, d) and points (n, d), integers in float32, and the points' labels (n,)."""

    queries: torch.Tensor
    points: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True)
class Answer:
    """Labels (q,), neighbours (q, 10) from near to far, the share of queries that had to look at every point, and 64
    rows of |y|² − 2x·y as computed.
    """

    labels: torch.Tensor
    neighbours: torch.Tensor
    searched: float
    scores: torch.Tensor


def make(size: int, seed: int, device: str, dtype: torch.dtype) -> Search:
    """`size` points and size/16 queries of size/32 features in 100 classes, at least 64."""
    queries = max(64, size // 16)
    x, labels = readings(size + queries, max(64, size // 32), 100, seed, device)
    return split(centred(x), labels, queries)


def make_digits(size: int, seed: int, device: str, dtype: torch.dtype) -> Search:
    """The bundled digits in an order of the seed: the first 400 are queries."""
    x, labels = digits()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return split(centred(x[order].to(device)), labels[order].to(device), 400)


def split(x: torch.Tensor, labels: torch.Tensor, queries: int) -> Search:
    """The first points ask, the others answer."""
    return Search(x[:queries].contiguous(), x[queries:].contiguous(), labels[queries:])


def solve(problem: Search) -> Answer:
    """Labels of the queries: the most frequent one of the nearest ten, the smaller one of equals."""
    x, y = problem.queries, problem.points
    squares = (y * y).sum(1)
    scores = x @ y.T
    scores.mul_(-2).add_(squares)
    count = min(NEIGHBOURS + SPARE, len(y))
    near, candidates = torch.topk(scores, count, dim=1, largest=False)
    # |computed − true| <= error: (d+2)·u·|y|² of the squares, 2·d·u·|x||y| of the product, and the last two roundings.
    norm = squares.max().sqrt()
    error = (x.shape[1] + 4) * 2.0**-24 * norm * (norm + 2 * torch.linalg.vector_norm(x, dim=1))
    open_ = (near[:, -1] <= near[:, NEIGHBOURS - 1] + 2 * error) & (count < len(y))
    neighbours = refined(x, y, candidates)
    for i in open_.nonzero().flatten().tolist():
        neighbours[i] = refined(x[i : i + 1], y, torch.arange(len(y), device=y.device)[None])
    votes = torch.nn.functional.one_hot(problem.labels[neighbours]).sum(1)
    return Answer(votes.argmax(1), neighbours, open_.double().mean().item(), scores[:64].clone())


def refined(x: torch.Tensor, y: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """The nearest of the candidates by exact distances, equals in order of their index."""
    candidates = candidates.sort(dim=1).values
    found = []
    step = max(1, (1 << 26) // (candidates.shape[1] * x.shape[1]))
    for i in range(0, len(x), step):
        some = candidates[i : i + step]
        distances = (x[i : i + step, None, :] - y[some]).double().square().sum(2)
        order = distances.argsort(dim=1, stable=True)[:, :NEIGHBOURS]
        found.append(some.gather(1, order))
    return torch.cat(found)


def refer(problem: Search) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Labels, neighbours and scores in exact arithmetic: all are integers below 2^53 in float64, every sum too."""
    x, y = problem.queries.double(), problem.points.double()
    largest = float(x.abs().max() * y.abs().max()) * 4 * x.shape[1]
    if largest >= 2.0**53:
        raise OverflowError(f"sums up to {largest:g} are not exact in float64; take smaller features")
    squares = (y * y).sum(1)
    neighbours, rows = [], []
    for i in range(0, len(x), 1024):
        scores = squares - 2 * (x[i : i + 1024] @ y.T)
        neighbours.append(scores.argsort(dim=1, stable=True)[:, :NEIGHBOURS] if len(y) < 4096 else _first(scores))
        if i == 0:
            rows.append(scores[:64].clone())
    near = torch.cat(neighbours)
    votes = torch.nn.functional.one_hot(problem.labels[near]).sum(1)
    return votes.argmax(1), near, torch.cat(rows)


def _first(scores: torch.Tensor) -> torch.Tensor:
    """The nearest ten in order, equals in order of their index."""
    last = torch.topk(scores, NEIGHBOURS, dim=1, largest=False).values[:, -1:]
    found = []
    for row, limit in zip(scores, last, strict=True):
        index = (row <= limit).nonzero().flatten()
        found.append(index[row[index].argsort(stable=True)][:NEIGHBOURS])
    return torch.stack(found)


def judge(
    problem: Search, answer: Answer, reference: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> Verdict:  # fmt: skip
    """How many labels and neighbours differ from those of exact arithmetic."""
    labels, neighbours, scores = reference
    wrong = int((answer.labels != labels).sum())
    others = int((answer.neighbours != neighbours).sum())
    error = relative(answer.scores, scores)
    detail = f"{wrong} of {len(labels)} labels and {others} neighbours differ; {100 * answer.searched:.2g} % searched"
    return Verdict(error, wrong == 0 and others == 0, detail)


APP = Application("knn", "kNN", make, solve, refer, judge, {"quick": 2048, "cpu": 16384, "cuda": 131072})
DIGITS = Application(
    "knn-digits", "kNN, digits", make_digits, solve, refer, judge, {"quick": 1797, "cpu": 1797, "cuda": 1797}
)

if __name__ == "__main__":
    main(APP, DIGITS)
