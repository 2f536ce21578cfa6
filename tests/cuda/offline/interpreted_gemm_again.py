"""gemm's entries that are made again by more moduli, in Triton's interpreter: sums of expansions and C against
fractions, and whole calls against a CPU, bit for bit. Prints the number of wrong entries of each case.

python -m tests.cuda.harness.interpreter gemm_again [part/parts]
"""

from fractions import Fraction

import numpy as np
import torch
import triton
import triton.language as tl

import prismm
from prismm.cuda.kernels.flagged import bytes_of, chunks_of, following, place_of
from prismm.cuda.residues import recompute
from prismm.cuda.residues.kernels.many_sum import decided_times, total, with_addend
from prismm.formats import FP64, round_fraction
from prismm.schemes.residues import Residues
from prismm.testing import HOSTILE
from tests.cuda.harness.evidence import launch, tell
from tests.cuda.harness.gluon_interpreter import interpreted_device
from tests.cuda.offline import interpreted_gemm
from tests.cuda.offline.interpreted_balance import SIZE, expansions


@triton.jit
def totals(
    given, bounds, exponents, told, factors, c, out, units, sure, part, PARTS: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    """out (4, SIZE) = h, m, t and bound; units: exponents; sure. factors: alpha, beta and its imaginary part."""
    at = tl.arange(0, SIZE)
    h, m, t, bound, exponent, proved = total(
        tl.load(given + at), tl.load(given + SIZE + at), tl.load(given + 2 * SIZE + at), tl.load(bounds + at),
        tl.load(exponents + at), tl.load(told + at) != 0, tl.load(factors), tl.load(factors + 1), tl.load(factors + 2),
        c + PARTS * at,
        at >= 0, tl.load(part), PARTS,
    )  # fmt: skip
    tl.store(out + at, h)
    tl.store(out + SIZE + at, m)
    tl.store(out + 2 * SIZE + at, t)
    tl.store(out + 3 * SIZE + at, bound)
    tl.store(units + at, exponent)
    tl.store(sure + at, proved.to(tl.int32))


@triton.jit
def voters(sums, factors, c, shift, out, part, PARTS: tl.constexpr):
    """out (2,) = what `with_addend` makes of sums (2,)."""
    s, low = with_addend(
        tl.load(sums), tl.load(sums + 1), tl.load(shift), tl.load(factors), tl.load(factors + 1), tl.load(factors + 2),
        c, tl.load(part), PARTS,
    )  # fmt: skip
    tl.store(out, s)
    tl.store(out + 1, low)


@triton.jit
def midpoints(given, out):
    """out = whether twice float64's precision decides the first number times the second."""
    one = tl.full([], 0, tl.int32)
    _, proved = decided_times(tl.load(given), tl.load(given + 1), 0.0 * tl.load(given), one, 2.0**53, one + 32, 53)
    tl.store(out, proved.to(tl.int32))


@triton.jit
def walk(flags, seen, whose, total_bytes, pitch, m, PARTS: tl.constexpr, SPAN: tl.constexpr):
    """seen: how often a byte that has flags comes up, at the place that it belongs to. whose: in which program."""
    flags = flags.to(tl.pointer_type(tl.uint8))
    size = tl.load(total_bytes)
    chunks = chunks_of(size, SPAN)
    for chunk in range(tl.program_id(0), chunks, tl.num_programs(0)):
        some = bytes_of(flags, chunk, chunks, size, SPAN)
        left = tl.sum((some != 0).to(tl.int32), 0)
        at = tl.full([], -1, tl.int32)
        while left > 0:
            left -= 1
            at = following(some, at, SPAN)
            byte = chunk + chunks * at
            batch, part, i, j0 = place_of(byte, pitch, m, PARTS)
            place = ((batch * PARTS + part) * m + i) * pitch + j0 // 8
            tl.store(seen + place, tl.load(seen + place) + 1)
            tl.store(whose + place, tl.program_id(0))


def rounded(x: Fraction, shift: int) -> float:
    """RN(x·2^shift) to float64, of a number whose denominator is a power of two."""
    return round_fraction(FP64, x.numerator, shift - (x.denominator.bit_length() - 1))


def summed(parts: int, seed: int) -> dict[str, int]:
    """How many sums are not what they promise, and how many are sure."""
    rng = np.random.default_rng(seed)
    original = expansions(rng)
    wrong = proved = exact = signed = 0
    for alpha in (1.0, -(2.0**-700), 0.1, -3e-320, 1.7e308, 2.0 / 3.0):
        given = original.copy()
        beta = float(rng.choice([1.0, -1.0, 0.3, 2.0**-60]))
        beta_i = float(rng.choice([0.0, 1.0, -0.7])) if parts == 2 else beta
        part = int(rng.integers(parts))
        # Such that alpha·X and beta·C are of about the same size, or far apart; C may be subnormal.
        c = rng.standard_normal((SIZE, parts)) * 2.0 ** rng.integers(-60, 60, (SIZE, parts))
        c[::13] = 0.0
        c[5::29] = 5e-324
        c[7::31, 0] = rng.choice([np.inf, np.nan])
        aim = rng.choice([-1200, -700, -300, -60, 0, 60, 300], SIZE)
        exponents = (aim - np.frexp(alpha)[1]).astype(np.int32)
        cancelling = np.arange(4, SIZE, 9)
        if parts == 1 and alpha == 1.0:
            # All but the last parts of some cancel.
            c[cancelling, 0], exponents[cancelling] = -given[0, cancelling] / beta, 0
        if parts == 1 and alpha in (0.1, 2.0 / 3.0):
            # The product of alpha and a last part is left.
            beta = beta_i = -alpha
            c[cancelling, 0], exponents[cancelling] = given[0, cancelling], 0
            given[1, cancelling] = 0.0
            given[2, cancelling] = np.abs(given[0, cancelling]) * 2.0**-120 * rng.standard_normal(cancelling.size)
        bounds = np.where(np.arange(SIZE) % 3, 0.0, np.abs(given[0]) * 2.0**-70 + 2.0**-90)
        told = np.arange(SIZE) % 4 == 2
        # A few bits, at a midpoint or next to one, and a rest; some of C's are near, so that a sum has few bits, too.
        given[0, told] = rng.integers(1, 2**53, told.sum()) * 2.0**60
        given[1, told] = rng.choice([0.0, 1.0, -1.0, 0.5, 0.25], told.sum()) * 2.0**59
        given[2, told] = rng.choice([1.0, -1.0], told.sum()) * 2.0**-82
        c[told, 0] = rng.integers(-(2**52), 2**52, told.sum())
        exponents[told], bounds[told] = -60, 2.0**-80
        out, units = torch.zeros(4, SIZE, dtype=torch.float64), torch.zeros(SIZE, dtype=torch.int32)
        sure, factors = torch.zeros(SIZE, dtype=torch.int32), torch.tensor([alpha, beta, beta_i], dtype=torch.float64)
        launch(
            totals, (1,), *map(torch.from_numpy, (given, bounds, exponents, told.astype(np.int32))), factors,
            torch.from_numpy(c), out, units, sure, torch.tensor([part]), PARTS=parts, SIZE=SIZE,
        )  # fmt: skip
        first, second = (beta, 0.0) if parts == 1 else ((beta, -beta_i) if part == 0 else (beta_i, beta))
        for x in range(SIZE):
            if not sure[x]:
                continue
            proved += 1
            wrong += not np.isfinite(c[x]).all()
            if not np.isfinite(c[x]).all():
                continue
            h, m, t, bound = (Fraction(float(y)) for y in out[:, x])
            unit = Fraction(2) ** int(units[x])
            of_x = sum(map(Fraction, map(float, given[:, x]))) * Fraction(2) ** int(exponents[x])
            off = Fraction(alpha) * of_x + Fraction(first) * Fraction(float(c[x, 0]))
            off += Fraction(second) * Fraction(float(c[x, 1])) if parts == 2 else 0
            rest = Fraction(float(np.sign(given[2, x]))) * Fraction(2) ** (int(exponents[x]) - 80) * Fraction(alpha)
            if told[x]:
                off -= Fraction(float(given[2, x])) * Fraction(2) ** int(exponents[x]) * Fraction(alpha)
                signed += 1
            limit = abs(Fraction(alpha)) * Fraction(float(bounds[x])) * Fraction(2) ** int(exponents[x])
            # A rest is anything from next to nothing to nearly all of it.
            ways = [rest / 2**40, rest * (1 - Fraction(1, 2**20))] if told[x] else [-limit, Fraction(0), limit]
            fits = float(h + m) == float(h) and (float(m + t) == float(m) if m else float(h + t) == float(h))
            # A term that is told by its sign is below 2^-599 of a unit of h.
            least = unit * Fraction(1, 1 << 598)
            if bound:
                fits &= abs(off - (h + m + t) * unit) <= bound * unit - limit + least and bound * unit >= limit
            else:
                # Whatever X may be, the sum rounds as h + m + t, in the normal range and below.
                exact += 1
                places = rng.integers(-1074, -1010), -1025, -1023
                size = h.numerator.bit_length() - h.denominator.bit_length()
                for by in (0, *(int(place) - size for place in places)):
                    ends = {rounded((off + each) / unit, by) for each in ways}
                    fits &= ends == {rounded(h + m + t, by)}
            wrong += not fits
    return {"wrong": wrong, "proved": proved, "exact": exact, "signed": signed}


def voted(parts: int, seed: int) -> dict[str, int]:
    """How many sums of a voter and C are off by more than 2^-95 of the larger one."""
    rng, wrong = np.random.default_rng(seed), 0
    for turn in range(40):
        s = float(rng.standard_normal())
        low, shift = s * 2.0**-55, int(rng.integers(-300, 300))
        alpha, beta, beta_i = (float(x) for x in rng.standard_normal(3))
        c, part = np.ldexp(rng.standard_normal(2), -shift), int(rng.integers(parts))
        if turn % 4 == 0 and parts == 1:  # that cancel
            c[0] = -s * alpha / beta * 2.0**-shift
        out = torch.zeros(2, dtype=torch.float64)
        launch(
            voters, (1,), torch.tensor([s, low], dtype=torch.float64),
            torch.tensor([alpha, beta, beta_i], dtype=torch.float64), torch.from_numpy(c), torch.tensor([shift]), out,
            torch.tensor([part]), PARTS=parts,
        )  # fmt: skip
        first, second = (beta, 0.0) if parts == 1 else ((beta, -beta_i) if part == 0 else (beta_i, beta))
        addend = (Fraction(first) * Fraction(c[0]) + Fraction(second) * Fraction(c[1])) * Fraction(2) ** shift
        exact = Fraction(s) + Fraction(low) + addend / Fraction(alpha)
        size = abs(Fraction(s)) + abs(Fraction(first) * Fraction(c[0])) * Fraction(2) ** shift / abs(Fraction(alpha))
        size += abs(Fraction(second) * Fraction(c[1])) * Fraction(2) ** shift / abs(Fraction(alpha))
        wrong += abs(exact - sum(map(Fraction, out.tolist()))) > size / (1 << 95)
    return {"wrong": wrong}


def near_midpoints() -> dict[str, int]:
    """How many products of two numbers are taken to be decided, or not, and are not. Of three odd numbers of 53 bits
    one half as large again lies between two numbers.
    """
    odd = 2.0**52 + 1.0
    cases = [(1.0, odd, 1), (1.5, odd, 0), (1.25, odd, 1), (-1.5, odd, 0), (1.5, odd + 1.0, 1), (-1.0, -odd, 1)]
    out = torch.zeros(1, dtype=torch.int32)
    wrong = 0
    for f, s, expected in cases:
        launch(midpoints, (1,), torch.tensor([f, s], dtype=torch.float64), out)
        wrong += int(out) != expected
    return {"wrong": wrong}


def walked(seed: int) -> dict[str, int]:
    """How many bytes of flags do not come up once, or are flagged in a row or a column and fall to few programs."""
    rng, wrong, programs, span = np.random.default_rng(seed), 0, 16, 32
    for batch, parts, m, words, kind in (
        (2, 2, 5, 3, "some"), (1, 1, 7, 1, "some"), (3, 1, 64, 8, "all"), (1, 1, 128, 32, "row"),
        (1, 1, 128, 32, "column"),
    ):  # fmt: skip
        flags = np.zeros((batch, parts, m, 4 * words), np.uint8)
        if kind == "some":
            flags[rng.random(flags.shape) < 0.2] = 129
        elif kind == "all":
            flags[:] = 255
        elif kind == "row":
            flags[0, 0, 77] = 255
        else:
            flags[..., 5] = 1
        seen, whose = torch.zeros(flags.size, dtype=torch.int32), torch.zeros(flags.size, dtype=torch.int32)
        launch(
            walk, (programs,), torch.from_numpy(flags.view(np.int32)), seen, whose, torch.tensor([flags.size]),
            4 * words, m, PARTS=parts, SPAN=span,
        )  # fmt: skip
        there = flags.reshape(-1) != 0
        wrong += int((seen.numpy() != there).sum())
        if kind in ("row", "column"):
            wrong += int(np.bincount(whose.numpy()[there], minlength=programs).max() > there.sum() // programs + 1)
    return {"wrong": wrong}


MEASURED = (1.0, 1.0, 0.0, 0.0, 0.0, 0.0, -1.0)
ALWAYS = (1.0, 1.0, 0.0, 0.0, 0.0, 0.0, float("inf"))
CASES = [
    ("float64", 13, "phi4", "native", 0.7, -1.3, ALWAYS),
    ("float64", 13, "residual", "correctly-rounded", -1.0, 1.0, ALWAYS),
    ("float64", 13, "phi4", "correctly-rounded", -2.0, 0.0, ALWAYS),
    ("float64", 13, "near_ties", "correctly-rounded", 3.0, 1e-9, MEASURED),
    ("float64", 13, "graded", "native", 0.1, 1.0, MEASURED),
    ("float64", 13, "shadowed", "native", 1e-30, 1.0, MEASURED),
    ("float64", 13, "subnormal_results", "correctly-rounded", 0.9, -1.0, ALWAYS),
    ("float64", 13, "near_overflow", "correctly-rounded", 1.5, 1.0, ALWAYS),
    ("float32", 7, "phi4", "native", 0.1, 0.7, ALWAYS),
    ("float32", 7, "residual", "correctly-rounded", 0.3, -0.3, ALWAYS),
    ("complex128", 13, "phi4", "native", -0.5, 0.5 - 1j, ALWAYS),
    ("complex64", 7, "phi4", "correctly-rounded", 2.0, 0.3, ALWAYS),
    ("complex128", 13, "phi4", "native", 1j, 1.0, ALWAYS),
    ("float64", 13, "infinities", "native", 2.0, 1.0, ALWAYS), ("float64", 13, "rows", "native", 0.7, -1.3, ALWAYS),
    ("float64", 13, "rows", "correctly-rounded", -1.0, 1.0, MEASURED),
    ("float64", 15, "shares", "native", 0.75, -0.75, MEASURED),
    ("float64", 13, "last parts", "correctly-rounded", 1.75, 0.0, MEASURED),
    ("float64", 13, "small terms", "correctly-rounded", 1.0, -1.9, MEASURED),
]  # fmt: skip


LEFT = float((1 << 50) - 27)
"""An odd number, times which 7/4 is one, too."""


def _partner(x: int) -> int:
    """The least y such that x·y is above 2^80, and by more than 0.3·2^-52 of it."""
    return int(Fraction(1 << 80) * (1 + Fraction(3, 10) / 2**52) / x) + 1


def _above(x: int) -> float:
    """By how much x times its partner is above 2^80, in units of 2^28."""
    return float((Fraction(x * _partner(x), 1 << 80) - 1) * 2**52)


def operands(name, dtype):
    """A, B and C: of a family; such that C and AB nearly cancel; of most entries of several rows; or such that C is a
    share of AB, so that sums are next to midpoints as AB is.
    """
    if name == "last parts":
        # C cancels the first of two terms. Alpha times the second lies between two numbers, next to a midpoint.
        rng = np.random.default_rng(5)
        first = rng.integers(1 << 52, 1 << 53, 4) | 1
        second = next(x for x in range((1 << 30) + 1, 1 << 31) if 0.3 < _above(x) < 0.49)
        a = np.stack([first * 2.0**-52, np.full(4, second * 2.0**-87)], axis=1)
        b = np.array([[LEFT], [_partner(second) * 2.0**-58]])
        return a, np.repeat(b, 4, axis=1), np.repeat(first[:, None] * 2.0**-52, 4, axis=1)
    if name == "small terms":
        # Midpoints that one term of the product and one of C decide, of which C's is larger or smaller.
        tiny = np.r_[592:600, 630:650]
        a = np.stack([np.full(tiny.size, 2.0**26 + 24691), 2.0 ** -(tiny - 230.0)], axis=1)
        return a, np.array([[2.0**27 - 1235], [2.0**-230]]), 1.9 * 2.0 ** -(tiny[:, None] + 1.0)
    if name == "shares":
        a, b = HOSTILE["near_ties"](7, 64, 8, seed=11)
        return a, b, (a @ b) * np.random.default_rng(0).uniform(0.5, 1.0, (7, 8))
    family = {"residual": "phi4", "rows": "phi4"}.get(name, name)
    m, n = (70, 130) if name == "rows" else (7, 8)
    made = interpreted_gemm.EVERYTHING[family]
    a, b = made(m, 9, n, seed=11, dtype=np.dtype(dtype))
    c = made(m, n, 2, seed=12, dtype=np.dtype(dtype))[0]
    return a, b, (a @ b).astype(c.dtype) if name == "residual" else c


def main(share: str = "0/1") -> None:
    part, parts = map(int, share.split("/"))
    if part == 0:
        tell(["decided_times"], **near_midpoints())
        tell(["flagged"], **walked(3))
        for seed in range(2):
            for numbers in (1, 2):
                tell(["total", numbers, seed], **summed(numbers, seed))
                tell(["with_addend", numbers, seed], **voted(numbers, seed))
    usual = recompute.MANY_OF_ALL, recompute.SECONDS, interpreted_gemm.DEVICE
    try:
        repeat(CASES[part::parts])
    finally:
        # Other modules run in the same process.
        recompute.MANY_OF_ALL, recompute.SECONDS, interpreted_gemm.DEVICE = usual


def repeat(cases: list[tuple]) -> None:
    """Sums of these cases, all of whose uncertified entries are made again."""
    recompute.MANY_OF_ALL = 1 << 20
    for dtype, moduli, name, target, alpha, beta, seconds in cases:
        recompute.SECONDS = seconds
        interpreted_gemm.DEVICE = interpreted_device("nvidia" if name in ("graded", "rows") else "any")
        a, b, c = operands(name, dtype)
        if name == "last parts":
            beta = -alpha * LEFT
        for in_place in (False, True) if dtype == "float64" and beta and name != "rows" else (False,):
            with np.errstate(all="ignore"):
                keywords = {"reproducible": True} if target == "native" else {}
                expected = prismm.gemm(
                    a, b, c, alpha=alpha, beta=beta, scheme=Residues(moduli), accuracy=target, **keywords
                )  # fmt: skip
            got = interpreted_gemm.made(a, b, c if beta else None, alpha, beta, moduli, target, in_place)
            wrong = interpreted_gemm.same_bits(got, expected)
            # Entries of rows and columns that are not finite are not made again.
            finite = np.isfinite(a).all(axis=1)[:, None] & np.isfinite(b).all(axis=0)
            wrong += int(interpreted_gemm.AGAIN[0] > finite.sum() * (2 if np.iscomplexobj(a) else 1))
            tell(
                [dtype, moduli, name, target, str(alpha), str(beta), in_place, seconds == MEASURED], wrong=wrong,
                again=interpreted_gemm.AGAIN[0],
            )  # fmt: skip
