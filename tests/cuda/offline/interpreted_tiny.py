"""Batches of tiny products in the interpreter against the bits of a CPU and exact arithmetic; tells what is wrong.

python -m tests.cuda.harness.interpreter tiny [part/parts]
"""

import itertools

import numpy as np
import torch
from triton.experimental.gluon import language as gl

import prismm
from prismm.core.bounds import ConventionalBound
from prismm.cuda.device import COUNTS, Device
from prismm.cuda.native.kernels import tiny
from prismm.formats import FP32, FP64
from prismm.testing import HOSTILE, SPECIAL, exact_product
from tests.cuda.harness import gluon_interpreter
from tests.cuda.harness.evidence import tell
from tests.cuda.harness.programs_of_tiny import tiny_program
from tests.cuda.offline.interpreted_direct import laid_out

TARGETS = {"reproducible": {"reproducible": True}, "correctly-rounded": {"accuracy": "correctly-rounded"}}
SHAPES = [(4, 4, 4), (3, 5, 7), (8, 16, 16), (1, 2, 1), (1, 16, 3), (9, 1, 2)]
DTYPES = ("float64", "float32", "complex128", "complex64")


class Memory(gluon_interpreter.Shared):
    """Shared memory that is told to be so many tiles of another layout: the same elements."""

    def _reinterpret(self, kind, shape, layout):
        if not isinstance(layout, gl.SwizzledSharedLayout):
            return super()._reinterpret(kind, shape, layout)
        assert layout.max_phase == self.layout.max_phase == 1
        assert [gluon_interpreter.number(x) for x in shape] == list(self.data.shape)
        return Memory(kind, self.data, layout)


def multiply(
    a: np.ndarray, b: np.ndarray, target: str | None, layouts=("rows", "rows")
) -> tuple[np.ndarray, list[int]]:
    """The kernel on this CPU, and its counts."""
    x, y = (laid_out(z, layout) for z, layout in zip((a, b), layouts, strict=True))
    batch = max(x.shape[0], y.shape[0])
    out = torch.full((batch, x.shape[1], y.shape[2]), torch.nan, dtype=torch.promote_types(x.dtype, y.dtype))
    program, counts = tiny_program(x, y, out, target, Device("interpreter", False, True, 3))
    workspace = program.run_by_triton(x, y, out)
    return out.numpy(), workspace[counts.offset :].view(torch.int64)[:COUNTS].tolist()


def hostile(name: str, dtype: str, shape: tuple[int, int, int], count: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """A batch."""
    pairs = [HOSTILE[name](*shape, seed=11 + x, dtype=np.dtype(dtype)) for x in range(count)]
    return np.stack([a for a, _ in pairs]), np.stack([b for _, b in pairs])


def different(c: np.ndarray, expected: np.ndarray) -> int:
    """Real numbers with other bits, zeros' signs among them."""
    x, y = (np.ascontiguousarray(z).view(z.real.dtype) for z in (c, expected))
    return int((~((x == y) & (np.signbit(x) == np.signbit(y)) | (np.isnan(x) & np.isnan(y)))).sum())


def bits(name: str, dtype: str, shape: tuple[int, int, int], target: str) -> int:
    """Numbers that are not a CPU's."""
    a, b = hostile(name, dtype, shape)
    return different(multiply(a, b, target)[0], prismm.matmul(a, b, **TARGETS[target]))


def special(name: str, dtype: str, target: str | None) -> int:
    """Numbers that are not what the defining sum gives where Inf or NaN meet, and others that are not a CPU's."""
    pairs = [SPECIAL[name](5, 6, 4, seed=8 + x, dtype=np.dtype(dtype)) for x in range(2)]
    a, b = np.stack([x for x, _ in pairs]), np.stack([x for _, x in pairs])
    c, _ = multiply(a, b, target)
    expected = prismm.matmul(a, b, **TARGETS[target or "correctly-rounded"])
    if target is None:
        known = np.isfinite(expected)
        return int((np.isfinite(c) != known).sum()) + different(np.where(known, 0, c), np.where(known, 0, expected))
    return different(c, expected)


def bounded(name: str, dtype: str, shape: tuple[int, int, int]) -> int:
    """Entries beyond the bound of a conventional product; of normal data nothing is to be recomputed."""
    a, b = hostile(name, dtype, shape)
    c, counts = multiply(a, b, None)
    wrong = 0
    for x, y, z in zip(a, b, c, strict=True):
        exact = exact_product(x, y)
        form = FP64 if dtype in ("float64", "complex128") else FP32
        terms = shape[1] * (2 if np.iscomplexobj(x) else 1)
        bounds = ConventionalBound(form, x, y, terms, 2.0**-53)
        wrong += int((~exact.within(z, bounds.at(z, slice(None), slice(None)))).sum())
    return wrong + (sum(counts) if name == "normal" else counts[0])


def edges(dtype: str, target: str | None) -> int:
    """Sums that overflow on the way, or just do or just do not, underflow to each sign, and cancel."""
    double = dtype in ("float64", "complex128")
    top, least = (1e308, 5e-324) if double else (3e38, 1e-45)
    largest = float(np.finfo(np.float64 if double else np.float32).max)
    half = 2.0**-53 * 2.0**1023 if double else 2.0**-24 * 2.0**127
    rows = [
        [top, top, -top, 3], [largest, half, 0, 0], [largest, half / 2, 0, 0], [largest, half, -least, 0],
        [least, least, 0, 0], [-least, 0, 0, 0], [3, -3, 0, 0], [-0.0, 0, -0.0, 0], [1, 2.0**-60, 0, -1],
    ]  # fmt: skip
    columns = [[1, 1, 1, 1], [1, 1, 1, 1], [0.5, 0.5, 0.5, 0.5], [0.75, 0, 0, 0], [-1, -1, -1, -1]]
    a, b = np.array([rows, rows], dtype=dtype), np.array([columns, columns], dtype=dtype).swapaxes(1, 2)
    c, _ = multiply(a, b, target)
    expected = prismm.matmul(a, b, **TARGETS[target or "correctly-rounded"])
    if target is None:
        return int((np.isfinite(c) != np.isfinite(expected)).sum())
    return different(c, expected)


def strided(dtype: str, target: str | None, layouts: tuple[str, str], one: int | None) -> int:
    """Integers in other layouts, in several programs, one matrix for a batch among them; none is to be recomputed."""
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-9, 10, (37, 5, 6)), rng.integers(-9, 10, (37, 6, 3)))
    if dtype.startswith("complex"):
        a, b = a + 1j * rng.integers(-9, 10, a.shape), b + 1j * rng.integers(-9, 10, b.shape)
    a, b = (a[:1] if one == 0 else a).astype(dtype), (b[:1] if one == 1 else b).astype(dtype)
    c, counts = multiply(a, b, target, layouts)
    return int((c != a @ b).sum()) + any(counts)


def main(part: str = "0/1") -> None:
    own, parts = map(int, part.split("/"))
    gluon_interpreter.interpret(tiny)
    gluon_interpreter.allocate_shared_memory.__globals__["Shared"] = Memory
    cases: list = []
    for turn, name in enumerate(HOSTILE):
        for more, target in enumerate(TARGETS):
            for x in (0, 1):
                dtype, shape = DTYPES[(turn + more + 2 * x) % 4], SHAPES[(turn + 2 * more + 3 * x) % len(SHAPES)]
                cases.append((bits, name, dtype, shape, target))
        cases.append((bounded, name, DTYPES[turn % 4], SHAPES[turn % len(SHAPES)]))
    targets = (None, *TARGETS)
    cases += [(special, name, DTYPES[turn % 4], target) for turn, name in enumerate(SPECIAL) for target in targets]
    cases += [(edges, dtype, target) for dtype in DTYPES for target in targets]
    for turn, pair in enumerate(itertools.product(("rows", "columns", "apart"), repeat=2)):
        cases += [(strided, DTYPES[(turn + x) % 4], targets[turn % 3], pair, one) for x, one in enumerate((None, 0, 1))]
    for check, *rest in cases[own::parts]:
        tell([check.__name__, *rest], wrong=int(check(*rest)))
