"""`residues.kernels.balance` in Triton's interpreter: products added to expansions against fractions, and whole
products of balanced operands against a CPU, bit for bit. Prints the number of wrong entries of each case.

python -m tests.cuda.harness.interpreter balance [part/parts]
"""

from fractions import Fraction

import numpy as np
import torch
import triton
import triton.language as tl

import prismm
from prismm.cuda.residues import recompute
from prismm.cuda.residues.kernels.many_sum import with_product
from prismm.schemes.residues import Residues
from prismm.testing import HOSTILE
from tests.cuda.harness.evidence import launch, tell
from tests.cuda.harness.gluon_interpreter import interpreted_device
from tests.cuda.offline import interpreted_residues

SIZE = 512


@triton.jit
def add_products(expansions, left, right, exponents, out, flags, SIZE: tl.constexpr):
    """out (4, SIZE) = h, m, t and error; flags (3, SIZE): proved, small, middling."""
    at = tl.arange(0, SIZE)
    h, m, t = tl.load(expansions + at), tl.load(expansions + SIZE + at), tl.load(expansions + 2 * SIZE + at)
    h, m, t, error, proved, small, middling = with_product(
        h, m, t, tl.load(left + at), tl.load(right + at), tl.load(exponents + at)
    )
    tl.store(out + at, h)
    tl.store(out + SIZE + at, m)
    tl.store(out + 2 * SIZE + at, t)
    tl.store(out + 3 * SIZE + at, error)
    tl.store(flags + at, proved.to(tl.int32))
    tl.store(flags + SIZE + at, small.to(tl.int32))
    tl.store(flags + 2 * SIZE + at, middling.to(tl.int32))


def expansions(rng: np.random.Generator) -> np.ndarray:
    """Numbers in three parts as a join leaves them: of 1 to 159 bits, powers of two and zeros among them."""
    found = np.zeros((3, SIZE))
    for x in range(SIZE):
        bits = int(rng.integers(0, 160))
        whole = int.from_bytes(rng.bytes(20), "little") >> (160 - bits) if bits else 0
        if x % 5 == 0:
            whole = 1 << bits if x % 2 else (1 << bits) | 1
        value = Fraction(whole * (-1) ** x, 1 << 80)
        for part in range(3):
            found[part, x] = float(value)
            value -= Fraction(found[part, x])
    return found


def added(seed: int) -> dict[str, int]:
    """How many sums are not what their flags promise; and how many are proved."""
    rng = np.random.default_rng(seed)
    given = expansions(rng)
    left, right = (np.ldexp(rng.standard_normal(SIZE), rng.integers(-500, 400, SIZE)) for _ in range(2))
    # Products far below, near and far above the expansions, and none.
    aim = rng.choice([-1400, -700, -590, -450, -300, -150, -90, -60, -20, 0, 40, 300, 950], SIZE)
    exponents = np.frexp(left)[1] + np.frexp(right)[1] - aim
    right[::17] = 0.0
    # Some cancel the expansion's first part.
    left[::11], right[::11], exponents[::11] = -given[0, ::11], 1.0, 0
    out, flags = torch.zeros(4, SIZE, dtype=torch.float64), torch.zeros(3, SIZE, dtype=torch.int32)
    launch(
        add_products, (1,), torch.from_numpy(given), torch.from_numpy(left), torch.from_numpy(right),
        torch.from_numpy(exponents.astype(np.int32)), out, flags, SIZE=SIZE,
    )  # fmt: skip
    wrong = 0
    for x in range(SIZE):
        h, m, t, error = (Fraction(float(y)) for y in out[:, x])
        proved, small, middling = (bool(y) for y in flags[:, x])
        term = Fraction(float(left[x])) * Fraction(float(right[x])) / Fraction(2) ** int(exponents[x])
        if not proved:
            continue
        # A small product is told by its sign, 2^-900 away.
        told = Fraction(int(np.sign(left[x] * right[x])), 1 << 900) if small else term
        exact = sum((Fraction(float(y)) for y in given[:, x]), told)
        fits = float(h + m) == float(h) and (float(m + t) == float(m) if m else float(h + t) == float(h))
        fits &= abs(exact - (h + m + t)) <= error and not (small and middling)
        fits &= abs(term) < Fraction(1, 1 << 599) if small else term == 0 or abs(term) >= Fraction(1, 1 << 601)
        fits &= not middling or abs(term) < Fraction(1, 1 << 399)
        wrong += not fits
    return {"wrong": wrong, "proved": int(flags[0].sum())}


CASES = [
    ("float64", 13, "near_ties", "native"), ("float64", 13, "near_ties", "correctly-rounded"),
    ("float64", 13, "overflow_threshold", "correctly-rounded"), ("float64", 13, "graded", "native"),
    ("float64", 13, "shadowed", "native"), ("float64", 13, "triangular", "correctly-rounded"),
    ("float32", 7, "near_ties", "correctly-rounded"), ("float32", 7, "shadowed", "correctly-rounded"),
    ("complex128", 13, "near_ties", "correctly-rounded"), ("complex128", 13, "graded", "native"),
    ("complex128", 13, "shadowed", "native"), ("complex64", 7, "shadowed", "correctly-rounded"),
    ("complex128", 13, "rows", "correctly-rounded"), ("complex128", 13, "lists", "native"),
    ("float64", 13, "batch", "correctly-rounded"), ("float64", 13, "columns", "correctly-rounded"),
    ("float64", 13, "rows", "native"), ("float32", 7, "rows", "correctly-rounded"),
    ("float64", 13, "lists", "native"), ("complex128", 13, "deep", "correctly-rounded"),
    ("float64", 13, "far apart", "native"),
]  # fmt: skip


def main(share: str = "0/1") -> None:
    part, parts = map(int, share.split("/"))
    if part == 0:
        for seed in range(4):
            tell(["with_product", seed], **added(seed))
    recompute.MANY_UNCERTIFIED, recompute.FEW_OF_STRIP = 0, 0
    recompute.MANY_OF_ALL, recompute.SECONDS = 1 << 20, (1.0, 1.0, 0.0, 0.0, 0.0, 0.0, -1.0)
    recompute.ROOM = 1 << 28
    for dtype, moduli, name, target in CASES[part::parts]:
        # NVIDIA's instructions for some, whatever other modules have set there.
        interpreted_residues.DEVICE = interpreted_device("nvidia" if name in ("graded", "rows", "lists") else "any")
        family = {
            "batch": "near_ties", "columns": "graded", "rows": "shadowed", "lists": "near_ties", "deep": "shadowed",
            "far apart": "normal",
        }.get(name, name)  # fmt: skip
        # Most entries of several rows, or of few; in lists some inner indices are left apart. Of deep operands so many
        # entries are left that whole rows are summed, each entry in its own unit.
        m, n = (18, 128) if name in ("rows", "lists", "deep", "far apart") else (7, 8)
        a, b = HOSTILE[family](m, 12, n, seed=11, dtype=np.dtype(dtype))
        if name == "far apart":
            rng = np.random.default_rng(11)
            a, b = (np.ldexp(x, rng.integers(-1000, 200, x.shape)) for x in (a, b))
        if name == "batch":  # three matrices by one
            a = np.stack([HOSTILE[family](7, 12, 8, seed=seed, dtype=np.dtype(dtype))[0] for seed in (11, 12, 13)])
        if name == "columns":
            a, b = np.asfortranarray(a), np.asfortranarray(b)
        expected = prismm.matmul(a, b, scheme=Residues(moduli), accuracy=target)
        got = interpreted_residues.product(a, b, moduli, target)
        words = np.dtype(f"u{np.dtype(dtype).type(0).real.itemsize}")
        same = np.ascontiguousarray(got).view(words) == np.ascontiguousarray(expected).view(words)
        # No number of moduli is tried of what lies so far apart.
        again = {} if name == "far apart" else {"again": interpreted_residues.AGAIN[0]}
        tell([dtype, moduli, name, target], wrong=int((~same).sum()), **again)
