"""Products in one kernel in the interpreter against exact arithmetic; tells what is wrong with each.

python -m tests.cuda.harness.interpreter direct [part/parts]
"""

import math

import numpy as np
import torch

import prismm
from prismm.core.bounds import ConventionalBound
from prismm.cuda.device import COUNTS, Device
from prismm.cuda.native.kernels import product as direct
from prismm.cuda.native.kernels import product_sm90 as direct_sm90
from prismm.cuda.native.kernels import repair
from prismm.cuda.native.tiles import BY_GROUPS, TILES, Split
from prismm.cuda.residues.kernels import product_sm90
from prismm.formats import FP32, FP64
from prismm.testing import HOSTILE, SPECIAL, exact_product
from tests.cuda.harness.evidence import tell
from tests.cuda.harness.gluon_interpreter import interpret
from tests.cuda.harness.programs import direct_program
from tests.cuda.offline.interpreted_finish import judged

EXTENTS = [(1, 1, 1), (3, 1, 2), (17, 65, 29), (16, 128, 1), (1, 300, 70), (40, 64, 70), (33, 33, 19)]
"""Rows, inner dimension, columns."""
OF_GROUPS = [(2, 2, 2), (64, 64, 64), (130, 34, 66), (1, 250, 40), (200, 66, 130), (64, 32, 128)]
"""Such as TMA reads: of rows that begin at multiples of 16 bytes."""
LAYOUTS = [("rows", "rows"), ("columns", "columns"), ("rows", "columns"), ("apart", "apart")]
NAMES = ["normal", "phi4", "wide_rows_and_columns", "lattice_wide", "cancelling", "ties", "subnormal_operands",
         "subnormal_results", "one_huge", "zeros_rows_cols"]  # fmt: skip


def laid_out(x: np.ndarray, layout: str) -> torch.Tensor:
    """(batch, ·, ·), by rows, by columns, or by rows of a wider matrix."""
    found = torch.from_numpy(x if x.ndim == 3 else x[None])
    if layout == "columns":
        return found.mT.contiguous().mT
    if layout == "apart":
        wider = torch.full((*found.shape[:2], found.shape[2] + 3), torch.nan, dtype=found.dtype)
        wider[:, :, 1:-2] = found
        return wider[:, :, 1:-2]
    return found.contiguous()


def multiply(a: np.ndarray, b: np.ndarray, layouts: tuple[str, str], tile) -> tuple[np.ndarray, list[int]]:
    """The kernel of a GPU, or the kernels of a split, on this CPU; and its counts."""
    tile, split = (tile.tile, tile) if isinstance(tile, Split) else (tile, None)
    x, y = (laid_out(z, layout) for z, layout in zip((a, b), layouts, strict=True))
    out = torch.full((max(x.shape[0], y.shape[0]), x.shape[1], y.shape[2]), torch.nan, dtype=x.dtype)
    device = Device("interpreter", tile.groups, True, 3)
    program, counts = direct_program(x, y, out, tile, device, split)
    workspace = program.run_by_triton(x, y, out)
    found = out.numpy() if a.ndim == 3 or b.ndim == 3 else out[0].numpy()
    return found, workspace[counts.offset :].view(torch.int64)[:COUNTS].tolist()


def bounded(name: str, tile, dtype: str, layouts: tuple[str, str], shape: tuple[int, int, int]) -> int:
    """Entries that are beyond their bound; of normal data nothing is to be recomputed."""
    a, b = HOSTILE[name](*shape, seed=7, dtype=np.dtype(dtype))
    c, counts = multiply(a, b, layouts, tile)
    exact = exact_product(a.astype(np.float64), b.astype(np.float64))
    bounds = ConventionalBound(FP64 if dtype == "float64" else FP32, a, b, shape[1], 2.0**-53)
    wrong = int((~exact.within(c, bounds.at(c, slice(None), slice(None)))).sum())
    return wrong + (sum(counts) if name == "normal" else counts[0])


def special(name: str, tile, dtype: str) -> int:
    """Entries that are not what the defining sum gives where Inf or NaN meet."""
    grouped = (tile.tile if isinstance(tile, Split) else tile) in BY_GROUPS
    a, b = SPECIAL[name](9, 72 if grouped else 70, 24 if grouped else 21, seed=8, dtype=np.dtype(dtype))
    expected = prismm.matmul(a, b, accuracy="correctly-rounded")
    c, counts = multiply(a, b, ("rows", "columns"), tile)
    outside = ~np.isfinite(expected)
    wrong = int((outside & ~((c == expected) | (np.isnan(c) & np.isnan(expected)))).sum())
    return wrong + int((~np.isfinite(c) & ~outside).sum()) + (counts[0] + counts[1] < outside.sum())


def hidden(tile) -> int:
    """2^140 between two products of 2^254 that cancel in float64; the same of numbers that float64 cannot hold."""
    wrong, more = 0, 3 * (tile in BY_GROUPS)
    for middle, expected in ((2.0**40, np.inf), (2.0**-40, 2.0**60), (-(2.0**40), -np.inf)):
        a = np.float32([[2.0**127, 2.0**100, -(2.0**127), 0.0][: 3 + more]]).repeat(6, 0)
        b = np.float32([[2.0**127], [middle], [2.0**127], [1.0]][: 3 + more]).repeat(9 + more, 1)
        a[5], b[:, 7] = 0.0, 0.0
        c, counts = multiply(a, b, ("rows", "columns"), tile)
        open_ = 5 * (8 + more)
        wrong += int((c[:5, [0, 1, 8]] != expected).sum() + c[5].any() + c[:, 7].any()) + (counts != [0, open_, 0, 0])
    return wrong if more else wrong + overflowing(tile)


def overflowing(tile) -> int:
    """Infinite sums whose exact values are none, in float64."""
    wrong = 0
    a = np.array([[1e308, 1e308, -1e308, 3.0]]).repeat(6, 0)
    b = np.array([[1.0, 9.0], [1.0, 9.0], [1.0, 9.0], [1.0, 1.0]]).repeat(4, 1)
    c, counts = multiply(a, b, ("rows", "rows"), tile)
    expected = prismm.matmul(a, b, accuracy="correctly-rounded")
    wrong += int((np.isinf(c) != np.isinf(expected)).sum()) + (not np.allclose(c, expected, rtol=1e-15))
    # Sums of parts are not multiplied again.
    return wrong + (counts[0] > 0 or (counts[1] < 24 if isinstance(tile, Split) else counts[1] > 0))


def ending(name: str, tile, dtype: str) -> int:
    """Entries that are beyond their bound, or not infinite exactly where RN(exact) is; and whether others than those at
    the threshold were made one by one.
    """
    shape = (5, 12, 4) if name == "overflow_threshold" else (20, 40, 36)
    a, b = HOSTILE[name](*shape, seed=9, dtype=np.dtype(dtype))
    if name == "normal":  # all overflow
        huge = np.dtype(dtype).type(2.0 ** (520 if dtype == "float64" else 72))
        a, b = a * huge, b * huge
    c, counts = multiply(a, b, ("rows", "columns"), tile)
    wrong, _ = judged(c, c, a, b, 2.0**-53 if dtype == "float64" else 2.0**-24)
    if name == "overflow_threshold" and dtype == "float64":
        return wrong + (counts != [0, c.size, 0, 0])
    return wrong + (name != "overflow_threshold" and counts != [0, 0, 0, 0])


def batched(tile) -> int:
    """Batches, one operand for all of it, against NumPy's long double."""
    rng, wrong, k = np.random.default_rng(3), 0, 22 if tile in BY_GROUPS else 21
    for left, right in (((3, 20, k), (3, k, 18)), ((3, 20, k), (k, 18)), ((20, k), (3, k, 18))):
        a, b = rng.standard_normal(left), rng.standard_normal(right)
        c, counts = multiply(a, b, ("rows", "rows"), tile)
        exact = np.matmul(a.astype(np.longdouble), b.astype(np.longdouble))
        size = np.matmul(np.abs(a), np.abs(b))
        wrong += int((np.abs(c - exact) > k * 2.0**-53 * size).sum()) + any(counts)
    return wrong


def one_of_many(tile) -> int:
    """One matrix of several for a whole batch of others, with entries to be recomputed: all are of that one."""
    rng, wrong = np.random.default_rng(6), 0
    for one in (0, 1):
        x, y = (torch.from_numpy(rng.integers(-9, 10, shape).astype(float)) for shape in ((3, 20, 32), (3, 32, 18)))
        x[:, 3, 5] = math.inf
        x, y = (x[:1] if one == 0 else x), (y[:1] if one == 1 else y)
        out = torch.full((3, 20, 18), torch.nan, dtype=torch.float64)
        device = Device("interpreter", tile.groups, True, 3)
        program, _ = direct_program(x, y, out, tile, device)
        program.run_by_triton(x, y, out)
        expected = np.matmul(x.numpy(), y.numpy())
        wrong += int((~((out.numpy() == expected) | (np.isnan(out.numpy()) & np.isnan(expected)))).sum())
    return wrong


def main(share: str = "0/1") -> None:
    interpret(product_sm90, direct, direct_sm90, repair)
    part, parts = map(int, share.split("/"))
    every = [(tile, x) for x in ("float64", "float32") for tile in TILES if tile.times(8 if x == "float64" else 4)]
    cases: list = []
    for index, (tile, dtype) in enumerate(every):
        for turn, shape in enumerate(EXTENTS):
            name, layouts = NAMES[(index + turn) % len(NAMES)], LAYOUTS[(index + turn) % len(LAYOUTS)]
            cases.append((bounded, name, tile, dtype, layouts, shape))
        cases.append((special, list(SPECIAL)[index % len(SPECIAL)], tile, dtype))
    small = [tile for tile in TILES if tile.rows * tile.columns <= 1024 and tile.single]
    cases += [(hidden, tile) for tile in small] + [(batched, tile) for tile in small]
    ends = ("near_overflow", "normal", "overflow_threshold")
    of_ends = [(TILES[0], "float64"), (TILES[3], "float32"), (BY_GROUPS[0], "float64"), (BY_GROUPS[1], "float32")]
    cases += [(ending, name, *which) for which in of_ends for name in ends]
    for double, single in (BY_GROUPS[:2], BY_GROUPS[2:]):
        for turn, (m, k, n) in enumerate(OF_GROUPS):
            two = (NAMES[turn], LAYOUTS[turn % 3]), (NAMES[-1 - turn], ("columns", "rows"))
            cases += [(bounded, name, double, "float64", layouts, (m, k, n)) for name, layouts in two]
            four = -(-m // 4) * 4, -(-k // 4) * 4, -(-n // 4) * 4
            cases += [(bounded, name, single, "float32", layouts, four) for name, layouts in two]
        cases += [(bounded, "normal", single, "float32", ("columns", "rows"), (132, 100, 68))]
        cases += [(special, name, tile, dtype) for name in SPECIAL
                  for tile, dtype in ((double, "float64"), (single, "float32"))]  # fmt: skip
        cases += [(check, double) for check in (overflowing, batched, one_of_many)] + [(hidden, single)]
    cases += [(one_of_many, TILES[5])]
    for check, *rest in cases[part::parts]:
        told = [f"{x.rows}x{x.columns}x{x.depth}" if hasattr(x, "rows") else x for x in rest]
        tell([check.__name__, *told], wrong=int(check(*rest)))
