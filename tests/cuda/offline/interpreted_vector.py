"""Matrices times vectors in the interpreter against exact arithmetic; tells what is wrong with each.

python -m tests.cuda.harness.interpreter vector
"""

import itertools

import numpy as np
import torch

import prismm
from prismm.core.bounds import ConventionalBound
from prismm.cuda.device import COUNTS
from prismm.cuda.launch.arguments import OUT, A, B, BufferView
from prismm.cuda.launch.program import Program
from prismm.cuda.native import launches as native_launches
from prismm.cuda.operands import vectors_of
from prismm.cuda.views import Result
from prismm.formats import FP32, FP64
from prismm.testing import HOSTILE, SPECIAL, exact_product
from tests.cuda.harness.evidence import tell
from tests.cuda.offline.interpreted_direct import NAMES, laid_out

SIZES = [(1, 1), (7, 16), (130, 37), (9, 1100), (300, 512)]
"""Rows, inner dimension."""


def multiply(a: np.ndarray, x: np.ndarray, *, left: bool) -> tuple[np.ndarray, list[int]]:
    """a @ x of matrices (·, ·) or batches, as xᵀ @ aᵀ if left, by the kernel; and counts."""
    first, second = laid_out(a, "rows"), laid_out(x, "rows")
    if left:
        first, second = second.mT, first.mT
    batch = max(first.shape[0], second.shape[0])
    out = torch.full((batch, first.shape[1], second.shape[2]), torch.nan, dtype=first.dtype)
    program = Program(tuple(z.data_ptr() % 16 for z in (first, second, out)))
    counts = program.allocate(torch.int64, COUNTS)
    program.zero(counts)
    target = Result(BufferView(OUT, 0, out.dtype), *out.shape, out.stride())
    rows, columns = vectors_of(first, A, columns=False), vectors_of(second, B, columns=True)
    native_launches.multiply_by_a_vector(program, target, *((columns, rows) if left else (rows, columns)), counts)
    workspace = program.run_by_triton(first, second, out)
    found = (out.mT if left else out).numpy()
    return found if a.ndim == 3 else found[0], workspace[counts.offset :].view(torch.int64)[:COUNTS].tolist()


def bounded(name: str, dtype: str, size: tuple[int, int], left: bool) -> int:
    """Entries that are beyond their bound; of normal data nothing is to be recomputed."""
    m, k = size
    a, x = HOSTILE[name](m, k, 1, seed=3, dtype=np.dtype(dtype))
    c, counts = multiply(a, x, left=left)
    exact = exact_product(a.astype(np.float64), x.astype(np.float64))
    bounds = ConventionalBound(FP64 if dtype == "float64" else FP32, a, x, k, 2.0**-53)
    wrong = int((~exact.within(c, bounds.at(c, slice(None), slice(None)))).sum())
    return wrong + (sum(counts) if name == "normal" else counts[0])


def special(name: str, dtype: str, left: bool) -> int:
    """Entries that are not what the defining sum gives where Inf or NaN meet."""
    a, x = SPECIAL[name](21, 70, 1, seed=4, dtype=np.dtype(dtype))
    expected = prismm.matmul(a, x, accuracy="correctly-rounded")
    c, _ = multiply(a, x, left=left)
    outside = ~np.isfinite(expected)
    wrong = int((outside & ~((c == expected) | (np.isnan(c) & np.isnan(expected)))).sum())
    return wrong + int((~np.isfinite(c) & ~outside).sum())


def hidden(left: bool) -> int:
    """2^140 between two products of 2^254 that cancel in float64; and sums that overflow on the way."""
    wrong = 0
    for middle, expected in ((2.0**40, np.inf), (2.0**-40, 2.0**60), (-(2.0**40), -np.inf)):
        a = np.float32([[2.0**127, 2.0**100, -(2.0**127)]]).repeat(6, 0)
        a[5] = 0.0
        c, counts = multiply(a, np.float32([[2.0**127], [middle], [2.0**127]]), left=left)
        wrong += int((c[:5] != expected).sum() + c[5].any()) + (counts[1] < 5)
    a = np.array([[1e308, 1e308, -1e308, 3.0]]).repeat(5, 0)
    c, counts = multiply(a, np.array([[1.0], [1.0], [1.0], [1.0]]), left=left)
    return wrong + int((c != 1e308).sum()) + (counts[0] > 0)


def batched(left: bool) -> int:
    """Batches, one operand for all of it: integers, so that products are exact."""
    rng, wrong = np.random.default_rng(5), 0
    for one in (None, 0, 1):
        a, x = (rng.integers(-9, 10, shape).astype(float) for shape in ((4, 70, 50), (4, 50, 1)))
        a, x = (a[:1] if one == 0 else a), (x[:1] if one == 1 else x)
        c, counts = multiply(a, x, left=left)
        wrong += int((c != a @ x).sum()) + any(counts)
    return wrong


def main() -> None:
    sides = (False, True)
    cases: list = []
    for turn, (size, dtype, left) in enumerate(itertools.product(SIZES, ("float64", "float32"), sides)):
        cases += [(bounded, NAMES[(turn + x) % len(NAMES)], dtype, size, left) for x in (0, 5)]
    cases += [(bounded, "normal", dtype, (40, 300), False) for dtype in ("float64", "float32")]
    # As many rows are read in other steps.
    cases += [(bounded, "phi4", "float32", (4100, 516), False), (bounded, "phi4", "float64", (4100, 1100), False)]
    cases += [(special, name, dtype, left) for name in SPECIAL for dtype in ("float64", "float32") for left in sides]
    cases += [(check, left) for check in (hidden, batched) for left in sides]
    for check, *rest in cases:
        tell([check.__name__, *rest], wrong=int(check(*rest)))
