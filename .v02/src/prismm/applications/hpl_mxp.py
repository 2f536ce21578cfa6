"""HPL-MxP: a linear system solved to float64 accuracy by an LU factorisation in low precision and GMRES.

The matrix is the benchmark's: entries of a linear congruential generator in (-1/2, 1/2), each diagonal entry the sum of
its row's absolute values. A recursive LU without pivoting runs in float32 (or float64) and is almost all products of
matrices; GMRES in float64, preconditioned by the factors, restores the accuracy. The run passes if the scaled residual
‖Ax−b‖∞ / (‖A‖∞‖x‖∞ + ‖b‖∞) / (n·2^-53) is below 16, as in HPL and HPL-MxP (hpl-mxp.org).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from prismm import linalg
from prismm.applications.application import Application, Verdict, main
from prismm.applications.cholesky import half
from prismm.applications.references import residual, sample

LIMIT = 16.0
MOST_PROVED = 2048
"""Systems up to this size are also solved with proved bounds."""

MULTIPLIER, MASK = 6364136223846793005, (1 << 64) - 1


@dataclass(frozen=True)
class System:
    """A x = b in float64; the factorisation is made in `dtype`."""

    a: torch.Tensor
    b: torch.Tensor
    dtype: torch.dtype


@dataclass(frozen=True)
class Solution:
    """x, the factors (L below the diagonal and on it, U of unit diagonal above) and GMRES iterations."""

    x: torch.Tensor
    factors: torch.Tensor
    iterations: int


def make(size: int, seed: int, device: str, dtype: torch.dtype) -> System:
    """The benchmark's matrix and right side of order `size`."""
    state = 2 * seed + 1
    a = uniform(size, size, state, device).T  # the generator runs down the columns
    weight = a.abs().sum(1)
    a.diagonal().copy_(weight - a.diagonal().abs())
    return System(a, uniform(1, size, state + size, device)[0], dtype)


def uniform(rows: int, columns: int, seed: int, device: str) -> torch.Tensor:
    """rows * columns numbers in (-1/2, 1/2) of the generator s -> 6364136223846793005·s + 1 (mod 2^64), in order."""
    along = powers((MULTIPLIER, 1), columns + 1)
    down = powers(along[-1], rows)
    multiplier, addend = (signed([step[i] for step in along[1:]], device) for i in range(2))
    starts = signed([(m * seed + c) & MASK for m, c in down], device).unsqueeze(1)
    found = torch.empty(rows, columns, dtype=torch.float64, device=device)
    chunk = max(1, (1 << 26) // columns)
    for i in range(0, rows, chunk):
        # int64 wraps; a negative state stands for itself plus 2^64, so that half a turn is added instead of taken.
        states = starts[i : i + chunk] * multiplier + addend
        found[i : i + chunk] = states.double() * 2.0**-64 + torch.where(states < 0, 0.5, -0.5)
    return found


def powers(step: tuple[int, int], count: int) -> list[tuple[int, int]]:
    """(m, c) of s -> m·s + c (mod 2^64), `step` taken 0, 1, … count - 1 times."""
    found = [(1, 0)]
    for _ in range(count - 1):
        m, c = found[-1]
        found.append((m * step[0] & MASK, (c * step[0] + step[1]) & MASK))
    return found


def to_signed(x: int) -> int:
    """The int64 with the same bits."""
    return (x + (1 << 63)) % (1 << 64) - (1 << 63)


def signed(values: list[int], device: str) -> torch.Tensor:
    """States as int64."""
    return torch.tensor([to_signed(x) for x in values], dtype=torch.int64, device=device)


Inverses = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Inverses of the diagonal blocks of L and U, by their first row."""


def factor(a: torch.Tensor, inverses: Inverses, at: int, block: int) -> None:
    """Overwrite a by its factors L and U (unit diagonal in U), halving until a block is small."""
    n = len(a)
    if n <= block:
        # Dominant rows make dominant columns of the transpose, where partial pivoting has nothing to exchange.
        lu, pivots = torch.linalg.lu_factor(a.T)
        if bool((pivots != torch.arange(1, n + 1, device=a.device)).any()):
            raise ArithmeticError(f"the matrix is not diagonally dominant at row {at}: LU without pivoting is unstable")
        a.copy_(lu.T)
        eye = torch.eye(n, dtype=a.dtype, device=a.device)
        lower = torch.linalg.solve_triangular(a.tril(), eye, upper=False)
        upper = torch.linalg.solve_triangular(a, eye, upper=True, unitriangular=True)
        inverses[at] = lower, upper
        return
    h = half(n, block)
    factor(a[:h, :h], inverses, at, block)
    solve_rows(a[:h, h:], a[:h, :h], inverses, at, block)
    solve_columns(a[h:, :h], a[:h, :h], inverses, at, block)
    a[h:, h:] -= a[h:, :h] @ a[:h, h:]
    factor(a[h:, h:], inverses, at + h, block)


def solve_rows(x: torch.Tensor, lu: torch.Tensor, inverses: Inverses, at: int, block: int) -> None:
    """Overwrite x by L^-1 x."""
    n = len(lu)
    if n <= block:
        x.copy_(inverses[at][0] @ x)
        return
    h = half(n, block)
    solve_rows(x[:h], lu[:h, :h], inverses, at, block)
    x[h:] -= lu[h:, :h] @ x[:h]
    solve_rows(x[h:], lu[h:, h:], inverses, at + h, block)


def solve_columns(x: torch.Tensor, lu: torch.Tensor, inverses: Inverses, at: int, block: int) -> None:
    """Overwrite x by x U^-1."""
    n = len(lu)
    if n <= block:
        x.copy_(x @ inverses[at][1])
        return
    h = half(n, block)
    solve_columns(x[:, :h], lu[:h, :h], inverses, at, block)
    x[:, h:] -= x[:, :h] @ lu[:h, h:]
    solve_columns(x[:, h:], lu[h:, h:], inverses, at + h, block)


def precondition(v: torch.Tensor, factors: torch.Tensor, inverses: Inverses) -> torch.Tensor:
    """U^-1 L^-1 v in the factors' precision, block by block."""
    starts = sorted(inverses)
    ends = [*starts[1:], len(factors)]
    scale = v.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    x = (v / scale).to(factors.dtype)
    for i, j in zip(starts, ends, strict=True):
        x[i:j] = inverses[i][0] @ (x[i:j] - factors[i:j, :i] @ x[:i])
    for i, j in zip(reversed(starts), reversed(ends), strict=True):
        x[i:j] = inverses[i][1] @ (x[i:j] - factors[i:j, j:] @ x[j:])
    return x.double() * scale


def solve(system: System, restart: int = 50) -> Solution:
    """Factor in low precision, then refine with GMRES in float64 until the residual is as small as float64 allows."""
    a, b = system.a, system.b
    factors = a.to(system.dtype)  # a copy, unless it is float64 already
    factors = factors.clone() if factors is a else factors
    inverses: Inverses = {}
    factor(factors, inverses, 0, 512 if len(b) <= 8192 else 1024)
    x = precondition(b, factors, inverses)
    norm = float(a.abs().sum(1).max())
    iterations = 0
    for _ in range(5):
        r = b - torch.mv(a, x)
        goal = len(b) * 2.0**-53 * (norm * float(x.abs().max()) + float(b.abs().max()))
        if float(r.abs().max()) <= goal:  # a scaled residual of 1
            break
        step, used = gmres(a, r, factors, inverses, restart, goal)
        x, iterations = x + step, iterations + used
    return Solution(x, factors, iterations)


def gmres(
    a: torch.Tensor,
    r: torch.Tensor,
    factors: torch.Tensor,
    inverses: Inverses,
    steps: int,
    goal: float,
) -> tuple[torch.Tensor, int]:
    """GMRES on A x = r, preconditioned from the right, until the residual's 2-norm is at most goal / 4."""
    beta = float(torch.linalg.norm(r))
    basis, directions = [r / beta], []
    hessenberg = torch.zeros(steps + 1, steps, dtype=torch.float64)
    y = torch.zeros(0, dtype=torch.float64)
    for k in range(steps):
        directions.append(precondition(basis[k], factors, inverses))
        w = torch.mv(a, directions[k])
        for _ in range(2):  # the preconditioned matrix is nearly the identity: one pass leaves w far from orthogonal
            for i, v in enumerate(basis):
                part = torch.dot(v, w).item()
                hessenberg[i, k] += part
                w = w - part * v
        size = float(torch.linalg.norm(w))
        hessenberg[k + 1, k] = size
        target = torch.zeros(k + 2, 1, dtype=torch.float64)
        target[0] = beta
        small = hessenberg[: k + 2, : k + 1]
        y = torch.linalg.lstsq(small, target).solution[:, 0]
        left = float(torch.linalg.norm(torch.mv(small, y) - target[:, 0]))
        if left <= goal / 4 or size == 0.0 or not math.isfinite(size):
            break
        basis.append(w / size)
    return sum(part * direction for part, direction in zip(y.tolist(), directions, strict=True)), len(directions)


@dataclass(frozen=True)
class Reference:
    """rows, columns: the sampled entries by which the factors are judged. x: the solution, every component proved to be
    within one ulp; None for a large system.
    """

    rows: torch.Tensor
    columns: torch.Tensor
    x: torch.Tensor | None


def refer(system: System) -> Reference:
    """The sample, and the solution of a system that is solved with proofs in seconds."""
    n = len(system.a)
    x = linalg.solve(system.a, system.b) if n <= MOST_PROVED else None
    return Reference(sample(n, 48, 0), sample(n, 256, 1), x)


def judge(system: System, solution: Solution, reference: Reference) -> Verdict:
    """The scaled residual, of exact entries; the error is that of the factors, ‖A − LU‖ / ‖A‖ on a sample."""
    rows, columns = (index.to(system.a.device) for index in (reference.rows, reference.columns))
    lower = solution.factors[rows].clone()
    lower[torch.arange(lower.shape[1], device=lower.device) > rows[:, None]] = 0
    upper = solution.factors[:, columns].clone()
    place = torch.arange(len(upper), device=upper.device)[:, None]
    upper[place > columns] = 0
    upper[place == columns] = 1
    chosen = system.a[rows][:, columns]
    error = float(torch.linalg.norm(residual(chosen, lower, upper)) / torch.linalg.norm(chosen))
    scaled = scaled_residual(system, solution.x)
    detail = f"scaled residual {scaled:.3g} (below 16), {solution.iterations} iterations"
    if reference.x is not None:
        off = float((solution.x - reference.x).abs().max() / reference.x.abs().max())
        detail += f", x off by {off:.2g} of its largest component"
    return Verdict(error, scaled < LIMIT, detail)


def scaled_residual(system: System, x: torch.Tensor) -> float:
    """HPL's, from a residual whose entries are rounded once."""
    a, b = system.a, system.b
    largest = 0.0
    for i in range(0, len(a), 4096):  # in pieces, since A is large
        largest = max(largest, float(linalg.residual(a[i : i + 4096], x, b[i : i + 4096]).abs().max()))
    weight = float(a.abs().sum(1).max()) * float(x.abs().max()) + float(b.abs().max())
    return largest / weight / (len(b) * 2.0**-53)


APP = Application(
    "hpl-mxp", "HPL-MxP", make, solve, refer, judge, {"quick": 768, "cpu": 2048, "cuda": 32768},
    ("float32", "float64"),
)  # fmt: skip

if __name__ == "__main__":
    main(APP)
