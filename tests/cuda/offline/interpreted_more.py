"""Functions that `residues.kernels.many` relies on, in Triton's interpreter, against exact integers and fractions:
sums of leading limbs, residues of many moduli, bits that sums do not need, and single entries in units of their own
products.

Prints how many results of each case are wrong.

python -m tests.cuda.harness.interpreter more
"""

import math
from fractions import Fraction

import numpy as np
import torch
import triton
import triton.language as tl

from prismm.core.many_moduli import MOST_MODULI, room
from prismm.core.moduli import coprime_moduli
from prismm.cuda.kernels.fp64 import LARGEST
from prismm.cuda.residues.kernels.balance import BALANCES
from prismm.cuda.residues.kernels.entries import doubled_by_itself
from prismm.cuda.residues.kernels.many_choice import NORMS, spared_bits, with_spared
from prismm.cuda.residues.kernels.many_join import expansion, leading_limbs, rest_of
from prismm.cuda.residues.kernels.many_split import split_tile
from prismm.cuda.residues.recompute import SYSTEMS, bits_of, many_tables
from prismm.formats import FP32, FP64, round_fraction
from tests.cuda.harness.evidence import launch, tell

SIZE, TERMS = 64, 200


@triton.jit
def expand(
    digits, plane, system, moduli, nothing, out, KEPT: tl.constexpr, SIZE: tl.constexpr, TOGETHER: tl.constexpr
):  # fmt: skip
    """out (5, SIZE) = what `expansion` returns: h, m, t, limbs shifted out and a bound."""
    at = tl.arange(0, SIZE)
    h, m, t, lead, missing = expansion(digits, at, plane, system, moduli, nothing, KEPT, TOGETHER)
    tl.store(out + at, h)
    tl.store(out + SIZE + at, m)
    tl.store(out + 2 * SIZE + at, t)
    tl.store(out + 3 * SIZE + at, lead.to(tl.float64))
    tl.store(out + 4 * SIZE + at, missing)


@triton.jit
def limbs_kept(out, rest, lost, bits, below):
    """out, rest = how many limbs suffice, and what that leaves."""
    kept = leading_limbs(tl.load(lost) != 0, tl.load(bits), tl.load(below))
    tl.store(out, kept)
    tl.store(rest, rest_of(kept, tl.load(below)))


@triton.jit
def spared(state, terms, q, left, right, out):
    """out (3,) = bits that sums do not need, and bits of both sides, as `multiply_again` has them."""
    bits = spared_bits(state, tl.load(terms), tl.load(q))
    tl.store(out, bits)
    tl.store(out + 1, with_spared(tl.load(left), bits // 2))
    tl.store(out + 2, with_spared(tl.load(right), bits - bits // 2))


@triton.jit
def alone(
    a, b, part, k, out, proved, PRECISION: tl.constexpr, PARTS: tl.constexpr, ENTRIES: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """out, proved (ENTRIES,): sums of products of rows of a and b, which have PARTS·k elements."""
    rows = tl.arange(0, ENTRIES)
    of_a, of_b = a + rows[:, None] * (k * PARTS), b + rows[:, None] * (k * PARTS)
    of_part = tl.load(part + rows)[:, None]
    value, sure = doubled_by_itself(of_a, PARTS, of_b, PARTS, k, of_part, PRECISION, PARTS, ENTRIES, LANES)
    tl.store(out + rows, value)
    tl.store(proved + rows, sure.to(tl.int32))


def integers(rng: np.random.Generator, chosen: tuple[int, ...], most: int, below: int) -> list[int]:
    """Integers of up to so many bits, near powers of two and at the ends of the range among them, some all of whose
    digits are the largest or the least, or next to them, and some whose leading limb is 1 and nearly cancels, so that
    sums of leading limbs lose as much as they may.
    """
    found, whole = [0, 1, -1, (1 << most) - 1, 1 - (1 << most), 1 << (most - 1), 1 << (most // 2)], math.prod(chosen)
    for start in range(0, 4 * SIZE, 4):
        # But for one or two moduli, which decide where the sum is.
        digits = [int(rng.integers(0, 2)) for _ in chosen]
        if start % 8:
            digits = [p - 1 - y for p, y in zip(chosen, digits, strict=True)]
        digits[start % len(chosen)] = int(rng.integers(0, chosen[start % len(chosen)]))
        x = sum(y * (whole // p) for p, y in zip(chosen, digits, strict=True)) % whole
        x -= whole if 2 * x > whole else 0
        found += [x] if abs(x) <= 1 << most else []
    del found[SIZE // 2 :]
    for limbs in (4, 5) * 4:
        second = int(rng.integers((1 << 39) - 1024, 1 << 39))
        x = (((1 << 80) - (second << 40) - (1 << 39)) << 40) - int(rng.integers(1, 1 << 39))
        x <<= max(40 * limbs - below, 0)
        found += [x if limbs == 4 else -x] if x < 1 << most else []
    while len(found) < SIZE:
        bits = int(rng.integers(1, most + 1))
        one = int.from_bytes(rng.bytes(most // 8 + 1), "little") & ((1 << bits) - 1)
        found.append(one * int(rng.choice([-1, 1])))
    return found


def expanded(rung: int, kept: int, together: bool, seed: int) -> dict[str, int]:
    """How many sums of so many limbs are further from the integer than they may be, and than those of all limbs."""
    rng, moduli = np.random.default_rng(seed), SYSTEMS[53][rung]
    chosen = coprime_moduli(256, moduli)
    whole = math.prod(chosen)
    below = bits_of(moduli, TERMS)[2]
    exact = integers(rng, chosen, room(moduli), below)
    digits = np.array([[x * pow(whole // p, -1, p) % p for x in exact] for p in chosen], np.uint8)
    table, out = many_tables(53, torch.device("cpu")), torch.zeros(5, SIZE, dtype=torch.float64)
    launch(
        expand, (1,), torch.from_numpy(digits), SIZE, table.systems[rung].contiguous(), moduli, table.nothing_there,
        out, KEPT=kept, SIZE=SIZE, TOGETHER=together,
    )  # fmt: skip
    wrong = differ = 0
    for x, (h, m, t, lead, missing) in zip(exact, out.T.tolist(), strict=True):
        unit = Fraction(2) ** (240 - 40 * int(lead) - below)
        off = abs((Fraction(h) + Fraction(m)) * unit - x)
        # What `join_exact.spread` adds to a bound.
        limit = (Fraction(missing) + 2 * abs(Fraction(t)) + abs(Fraction(m)) / 2**50) * unit
        wrong += off > limit + (Fraction(2) ** (40 * (9 - kept) + 13 - below) if kept < 9 else 0)
        differ += off > limit
    return {"wrong": wrong, "differ": differ}


@triton.jit
def split(
    x, stats, powers, base, planes, lost, bits, moduli, VECTORS: tl.constexpr, DEPTH: tl.constexpr, NVIDIA: tl.constexpr
):  # fmt: skip
    """planes (moduli, VECTORS, DEPTH) of x."""
    split_tile(
        x, DEPTH, 1, stats, stats, 0, powers, base, planes, lost, 0, 0, 0, VECTORS, VECTORS, DEPTH, bits, BALANCES,
        moduli, VECTORS * DEPTH, DEPTH, 0, 1, True, True, VECTORS, DEPTH, NVIDIA,
    )  # fmt: skip


def residues(bits: int, nvidia: bool, seed: int) -> dict[str, int]:
    """How many residues of scaled integers are wrong, of all moduli. Some integers have only largest or least bytes."""
    rng, chosen, vectors, depth = np.random.default_rng(seed), coprime_moduli(256, MOST_MODULI), 4, 16
    ends = [(1 << 53) - 1, 0x1F808080808080, 0x1F7F7F7F7F7F7F, 0x10000000000000, 0x1FFFFFFFFFFF7F, 0x10808080807F7F]
    whole = rng.integers(1 << 52, 1 << 53, (vectors, depth))
    whole[:, :6] = ends
    x = whole * rng.choice([-1, 1], whole.shape) * np.ldexp(1.0, -rng.integers(0, max(bits - 52, 1), whole.shape))
    x[:, 0] = np.abs(x[:, 0]) * np.ldexp(1.0, 53 - np.frexp(x[:, 0])[1])  # so that all have the same scale
    table = many_tables(53, torch.device("cpu"))
    stats = torch.zeros(10, vectors, dtype=torch.int64)
    stats[LARGEST.value] = torch.from_numpy(np.abs(x).max(axis=1)).view(torch.int64)
    planes = torch.zeros(len(chosen), vectors, depth, dtype=torch.int8)
    lost = torch.zeros(vectors, dtype=torch.int32)
    launch(
        split, (1,), torch.from_numpy(x), stats, table.powers[-1].contiguous(), table.base, planes, lost, bits,
        len(chosen), VECTORS=vectors, DEPTH=depth, NVIDIA=nvidia,
    )  # fmt: skip
    integer = [[int(Fraction(float(v)) * 2 ** (bits - 53)) for v in row] for row in x]
    wrong = sum(
        (int(planes[t, i, h]) - integer[i][h]) % p != 0
        for t, p in enumerate(chosen) for i in range(vectors) for h in range(depth)
    )  # fmt: skip
    return {"wrong": int(wrong + bool(lost.any()))}


def limbs(moduli: int, terms: int) -> dict[str, int]:
    """How many limbs a system keeps where vectors lost bits.

    The case is wrong if fewer than nine are kept where vectors lost none, or if `rest_of` is not the limit that
    `expanded` checks, or is not far below the least bound of an entry.
    """
    left, right, below = bits_of(moduli, terms)
    kept, rest = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.float64)
    found = []
    for lost in (1, 0):
        numbers = [torch.tensor([x], dtype=torch.int32) for x in (lost, min(left, right), below)]
        launch(limbs_kept, (1,), kept, rest, *numbers)
        found.append(int(kept))
        if lost:
            least, told = Fraction(2) ** (min(left, right) - 2), Fraction(float(rest))
            wrong = told != (Fraction(2) ** (40 * (9 - int(kept)) + 13 - below) if int(kept) < 9 else 0)
            wrong |= told > least / 2**9
    return {"wrong": int(wrong or found[1] != 9), "kept": found[0]}


def norms(seed: int) -> dict[str, int]:
    """How many sums of A' and B' with the spared bits are beyond the room of their moduli; and the bits spared."""
    rng, wrong, most = np.random.default_rng(seed), 0, 0
    for _ in range(8):
        k, q = int(rng.choice([3, 16, 100, TERMS])), int(rng.choice([9, 14, 20]))
        width = int(rng.choice([0, 5, 60, 400]))
        a, b = (
            np.where(rng.random((6, k)) < 0.3, 1.0, rng.random((6, k))) * 2.0 ** rng.integers(-width, 1, (6, k))
            for _ in range(2)
        )
        if rng.random() < 0.3:  # all of a row next to its largest element
            a[0] = 1.0 - 2.0**-53
        if rng.random() < 0.3:
            b[0] = 1.0 - 2.0**-53
        e = [np.frexp(x.max(axis=1))[1] for x in (a, b)]
        units = [np.ceil(np.ldexp(x, q - y[:, None])).sum(axis=1).max() for x, y in zip((a, b), e, strict=True)]
        state = torch.zeros(64, dtype=torch.int64)
        state[NORMS.value], state[NORMS.value + 1] = int(units[0]), int(units[1])
        moduli = int(rng.choice(SYSTEMS[int(rng.choice([24, 53]))]))
        left, right, _ = bits_of(moduli, k)
        out, room_of = torch.zeros(3, dtype=torch.int32), [torch.tensor([x], dtype=torch.int32) for x in (left, right)]
        launch(spared, (1,), state, torch.tensor([k]), torch.tensor([q]), *room_of, out)
        extra, *bits_of_sides = out.tolist()
        most = max(most, extra)
        sides = []
        for x, y, bits in zip((a, b), e, bits_of_sides, strict=True):
            units_of = [Fraction(2) ** (bits - int(z)) for z in y]
            sides.append([[round(Fraction(v) * u) for v in row.tolist()] for row, u in zip(x, units_of, strict=True)])
        largest = max(sum(u * v for u, v in zip(x, y, strict=True)) for x in sides[0] for y in sides[1])
        wrong += largest > 1 << room(moduli)
    return {"wrong": wrong, "spared": most}


def vectors(rng: np.random.Generator, kind: str, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Two vectors."""
    x, y = rng.standard_normal((2, length))
    if kind == "wide":
        x, y = (np.ldexp(z, rng.integers(-500, 500, length)) for z in (x, y))
    elif kind == "growing":  # so that the unit of each lane does, by more than there is
        x, y = (np.ldexp(z, np.linspace(-1060, 500, length).astype(int)) for z in (x, y))
    elif kind == "cancelling":
        x[1::2], y[1::2] = x[: length // 2 * 2 : 2], -y[: length // 2 * 2 : 2]
        y[-1] *= 2.0**-60
    elif kind == "subnormal":
        x = np.ldexp(x, -1070)
    elif kind == "tiny":
        x, y = np.ldexp(x, -600), np.ldexp(y, -500)
    elif kind == "zero":
        x[:] = 0.0
    elif kind == "large":
        x, y = np.ldexp(x, 520), np.ldexp(y, 502)
    return x, y


KINDS = ("normal", "wide", "growing", "cancelling", "subnormal", "tiny", "zero", "large")


def singles(precision: int, parts: int, seed: int) -> dict[str, int]:
    """How many entries that are proved are not RN of the exact sum; how many are proved."""
    rng, k = np.random.default_rng(seed), TERMS
    pairs = [vectors(rng, kind, parts * k) for kind in KINDS]
    a, b = (np.stack(x) for x in zip(*pairs, strict=True))
    if precision == 24:
        with np.errstate(over="ignore"):
            a, b = (np.where(np.isfinite(z), z, 0.0).astype(np.float64) for z in (np.float32(a), np.float32(b)))
    part = np.arange(len(KINDS), dtype=np.int32) % parts
    out, proved = torch.zeros(len(KINDS), dtype=torch.float64), torch.zeros(len(KINDS), dtype=torch.int32)
    launch(
        alone, (1,), torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(part), k, out, proved,
        PRECISION=precision, PARTS=parts, ENTRIES=len(KINDS), LANES=32,
    )  # fmt: skip
    wrong = 0
    for index in range(len(KINDS)):
        x, y = ([Fraction(float(v)) for v in z[index]] for z in (a, b))
        if parts == 2:
            y = [y[h ^ int(part[index])] * (-1 if part[index] == 0 and h % 2 else 1) for h in range(len(y))]
        exact = sum((u * v for u, v in zip(x, y, strict=True)), Fraction(0))
        rounded = round_fraction(FP64 if precision == 53 else FP32, exact.numerator, 1 - exact.denominator.bit_length())
        wrong += bool(proved[index]) and float(out[index]) != rounded
    return {"wrong": wrong, "proved": int(proved.sum())}


def main() -> None:
    for rung in (0, 5, 9, 12, 13, 15):
        for kept in (5, 6, 9):
            if kept < 9 and SYSTEMS[53][rung] <= 18:
                continue  # P takes four limbs
            for together in (False, True):
                tell(["limbs", rung, kept, together], **expanded(rung, kept, together, 100 * rung + kept))
    for bits in (53, 60, 100, 170, 286):
        for nvidia in (False, True):
            tell(["residues", bits, nvidia], **residues(bits, nvidia, bits))
    for moduli in (*SYSTEMS[53], *SYSTEMS[24][:3]):
        for terms in (1, 2048, 131072):
            tell(["kept", moduli, terms], **limbs(moduli, terms))
    for seed in range(4):
        tell(["norms", seed], **norms(seed))
    for precision in (53, 24):
        for parts in (1, 2):
            tell(["singles", precision, parts], **singles(precision, parts, 7 * precision + parts))
