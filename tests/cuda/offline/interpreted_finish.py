"""Repairs of native products (`native.kernels.finish`) in the interpreter, against exact arithmetic: how many entries
of each product are wrong.

python -m tests.cuda.harness.interpreter finish dtype
"""

import numpy as np
import torch

from prismm.cuda.device import COUNTS, Device
from prismm.cuda.launch.arguments import OUT, A, B, BufferView
from prismm.cuda.launch.program import Program
from prismm.cuda.native.cublas import finish_native
from prismm.cuda.operands import vectors_of
from prismm.cuda.views import Result
from prismm.formats import FP32, FP64
from prismm.testing import HOSTILE, correctly_rounded, exact_product
from tests.cuda.harness.evidence import tell

DEVICE, PLAIN = Device("interpreter", False, True, 2), Device("interpreter", False, False, 2)
"""With matrix instructions of float64, and without."""
HUGE = {53: 2.0**520, 24: 2.0**72}
"""Sums of products of such numbers overflow."""


def laid_out(x, turned):
    """(batch, ·, ·) by rows or columns."""
    x = torch.from_numpy(x)
    return x.mT.contiguous().mT if turned else x.contiguous()


def real(a, b):
    """Matrices whose real product has the parts of the entries of ab side by side."""
    if not np.iscomplexobj(a):
        return a, b
    columns = np.stack([np.stack([b.real, b.imag], -1), np.stack([-b.imag, b.real], -1)], 1)
    return a.view(a.real.dtype), np.ascontiguousarray(columns).reshape(2 * b.shape[0], 2 * b.shape[1])


def judged(c, product, a, b, u):
    """(how many entries of a product are wrong, and how many of the suspicious ones are not RN(exact)); a complex entry
    is two real ones, side by side.
    """
    a, b = real(a, b)
    rounded = correctly_rounded(a, b)
    same = (c == rounded) | (np.isnan(c) & np.isnan(rounded))
    finite = [np.where(np.isfinite(x), x, 0) for x in (a, b)]
    exact, form = exact_product(*finite), FP64 if u == 2.0**-53 else FP32
    # |a||b| may be beyond float64.
    down = exact_product(finite[0].astype(float) * 2.0**-60, finite[1]).magnitude("down")
    bound = down * (a.shape[1] * u * 2.0**60) + a.shape[1] * form.smallest_subnormal
    fine = np.where(np.isfinite(rounded), np.isfinite(c) & exact.within(c, bound), same)
    # Where nothing is suspicious, nothing is written.
    kept = np.abs(product) < (2.0**1023 if form == FP64 else 2.0**127)
    return int((~fine | (kept & (c != product))).sum()), int((~same & ~kept).sum())


def compare(name, a, b, turned=(False, False), device=DEVICE, expected=None):
    """Tell of operands (batch, ·, ·), of which one may be broadcast. expected: entries that are recomputed one by one,
    if known, or "all" but those that meet Inf or NaN.
    """
    batch, m, n = max(len(a), len(b)), a.shape[1], b.shape[2]
    parts = 2 if np.iscomplexobj(a) else 1
    x, y = (laid_out(z, columns) for z, columns in zip((a, b), turned, strict=True))
    kind = x.dtype.to_real()
    # Of real products, as a GPU makes them: C99's recovery of infinities is nobody's sum.
    with np.errstate(all="ignore"):
        pairs = [(a[p % len(a)], b[p % len(b)]) for p in range(batch)]
        product = np.stack([np.matmul(*real(*pair)) for pair in pairs])
    out = torch.from_numpy(product.copy())
    out = torch.view_as_complex(out.reshape(batch, m, n, 2)) if parts == 2 else out
    program = Program()
    counts = program.allocate(torch.int64, COUNTS)
    program.zero(counts)
    left, right = vectors_of(x, A, columns=False), vectors_of(y, B, columns=True)
    target = Result(BufferView(OUT, 0, out.dtype), batch, m, n, (m * n, n, 1))
    finish_native(program, target, left, right, counts, device)
    workspace = program.run_by_triton(x, y, out)
    special, exact, *_ = workspace[counts.offset :].view(torch.int64)[:COUNTS].tolist()
    c = (torch.view_as_real(out) if parts == 2 else out).numpy().reshape(product.shape)
    u = 2.0**-53 if kind == torch.float64 else 2.0**-24
    found = [judged(*each, *pair, u) for *each, pair in zip(c, product, pairs, strict=True)]
    wrong, other = (sum(one) for one in zip(*found, strict=True))
    suspicious = ~(np.abs(product) < (2.0**1023 if u == 2.0**-53 else 2.0**127))
    # Entries that no tile repairs are RN(exact).
    if expected is not None:
        wrong += exact != (int(suspicious.sum()) - special if expected == "all" else expected)
    if expected == "all":
        wrong += other
    nonfinite = np.stack([~np.isfinite(real(*pair)[0]).all(1)[:, None] | ~np.isfinite(real(*pair)[1]).all(0)[None]
                          for pair in pairs])  # fmt: skip
    wrong += special != int(nonfinite.sum())
    tell([name, *a.shape, *b.shape, turned], wrong=wrong, suspicious=int(suspicious.sum()), special=special,
         exact=exact)  # fmt: skip


def hostile(name, dtype, shape, batch=1):
    """A batch of such operands."""
    found = [HOSTILE[name](*shape, seed=seed, dtype=dtype) for seed in range(batch)]
    return tuple(np.stack(x) for x in zip(*found, strict=True))


def threshold_near(rng, dtype, m, k, n, precision):
    """Sums as near to where overflow begins as row by row is told: by factors of 1 ± 2^-j."""
    top = 1024 if precision == 53 else 128
    a, b = rng.uniform(0.5, 1.0, (m, k)), np.repeat(rng.uniform(0.5, 1.0, (k, 1)), n, 1)
    near = 1.0 + rng.choice([-1.0, 1.0], m) * 2.0 ** -rng.integers(1, precision + 2, m).astype(float)
    # The scale of each row is divided among its elements and those of the columns.
    a = a * (near / (a @ b[:, 0]))[:, None]
    a, b = a * 2.0 ** (top // 2), b * 2.0 ** (top - top // 2)
    sign = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    return a.astype(dtype)[None], (b * sign).astype(dtype)[None]


def spoiled(rng, dtype, precision, m, k, n):
    """Inf, NaN, Inf beside zeros and beside the least subnormal numbers, and infinities that meet."""
    a, b = rng.standard_normal((2, m, k)), rng.standard_normal((2, k, n))
    least = 2.0**-1074 if precision == 53 else 2.0**-149
    a[0, :, 1] = np.inf
    b[0, 1, ::3], b[0, 1, 1::3] = least, -least
    b[0, 1, 2::6] = 0.0
    b[0, 3, 4::5] = -np.inf
    a[1, ::2, 0], a[1, 1::4, k - 1] = np.nan, -np.inf
    b[1, k - 1, ::2] = least
    if np.dtype(dtype).kind == "c":
        a, b = a + 1j * np.roll(a, 1, 1), b + 1j * 0.5
    return a.astype(dtype), b.astype(dtype)


def main(dtype: str) -> None:
    rng = np.random.default_rng(31)
    precision = 53 if dtype in ("float64", "complex128") else 24
    whole = dtype.startswith("complex")

    def normal(*shape):
        x = rng.standard_normal(shape)
        return (x + 1j * rng.standard_normal(shape) if whole else x).astype(dtype)

    huge = np.dtype(dtype).type(HUGE[precision])
    for shape, turned in (((33, 37, 21), (False, True)), ((5, 16, 70), (True, False)), ((40, 100, 3), (True, True))):
        compare("near overflow", *hostile("near_overflow", dtype, shape), turned, expected=0)
    # Tiles of many matrices, and operands that serve them all.
    compare("near overflow", *hostile("near_overflow", dtype, (5, 18, 6), 5), expected=0)
    compare("near overflow", hostile("near_overflow", dtype, (4, 17, 9))[0], normal(3, 17, 9) * huge)
    for batch, m, k, n in ((1, 35, 19, 34), (1, 70, 1, 7), (2, 1, 33, 40), (3, 45, 2, 1), (1, 1, 5, 200)):
        compare("overflow", normal(batch, m, k) * huge, normal(batch, k, n) * huge, expected=0 if k > 1 else None)
    compare("threshold", *hostile("overflow_threshold", dtype, (8, 9, 3)), expected="all" if precision == 53 else None)
    if not whole:
        compare("near threshold", *threshold_near(rng, dtype, 96, 21, 6, precision))
        compare("near threshold", *threshold_near(rng, dtype, 96, 1, 6, precision))
    for shape in ((20, 18, 19), (33, 6, 5)):
        compare("not finite", *spoiled(rng, dtype, precision, *shape), expected=0)
    # Two entries in one tile, of real numbers and what is not finite.
    a, b = normal(1, 20, 12), normal(1, 12, 70)
    a[0, 7, 3], b[0, 3, 60] = huge, huge
    compare("few", a, b, expected="all")
    b[0, 3, 60] = np.inf
    compare("few", a * np.dtype(dtype).type(2.0**-10), b, expected="all")
    # In one tile matrices with one, many and none.
    a, b = normal(5, 6, 20), normal(5, 20, 9)
    a[1] *= huge
    b[1] *= huge
    for matrix in (0, 3):
        a[matrix, 4] *= huge
        b[matrix, :, 2] *= huge
    compare("some matrices", a, b, expected=4 if whole else 2)
    compare("one by one", *hostile("near_overflow", dtype, (3, 8, 4)), device=PLAIN, expected="all")
