"""Probes of MMA-Sim and FPRev: the tree of additions, and how many bits of every kind of term survive.

FPRev ("Revealing floating-point accumulation orders", Xie et al.) sets one summand to M, one to -M and all others to
y, so small that M swallows it: the sum counts the summands outside of the smallest subtree with both. MMA-Sim lowers a
third term until M - M no longer keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.formats import FP16, FP32, FP64
from prismm.numerics.suite.expressions import power
from prismm.numerics.suite.framework import Case, Judge, Result, Setting, Test, Verdict, not_applicable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Values = Sequence[float | None]
    Earlier = Mapping[str, Result]

__all__ = ["tests", "tree"]

DEEPEST = 40
"""Bits below the largest term that are looked at."""
LAST = 48
"""The last exponent that the probe of zeros tries."""


def tests(s: Setting) -> list[Test]:
    """The probes for an engine's formats, always all of them."""
    x, y = (30, -30) if s.output == FP64 else (7, -9)
    large, small = f"2^{x} * 2^{x}", f"2^{y} * 2^{y}"
    minus = f"-{large}"
    depths = range(1, DEEPEST + 1)
    powers = tuple(power(2 * x - n) for n in depths)
    term = tuple(Case((large, p, minus)) for p in powers)
    halves = tuple(Case((large, _three_quarters(p), minus)) for p in powers)
    halves += tuple(Case((large, "-" + _three_quarters(p), minus)) for p in powers)
    c = tuple(Case((large, minus), f"2^{2 * x - n}") for n in depths)
    parts_of_c = tuple(Case((large, minus), f"{sign}0.75*2^{2 * x - n}") for sign in ("", "-") for n in depths)
    wide = f"1.5*2^{x} * 1.5*2^{x}"
    normal = tuple(Case((wide, p, f"-{wide}")) for p in powers)
    zeros = tuple(Case(("2^-14 * 2^-11", f"2^-24 * 2^{24 - k}")) for k in range(30, LAST + 1))
    masks = _masks(s.length, large, small)
    after = "after Fasi et al. 2021, §3.1.4"
    found = [
        _test("tree", "order of additions", "order", "FPRev", masks, _tree(s.length, y)),
        _test("ways", "summands of one rounding, with c", "block", "FPRev", masks, _ways(s.length, y)),
        _test("bits", "fraction bits of products", "fraction bits", "MMA-Sim", term, _deepest, True),
        _test("cut", "how products are cut off", "alignment", "MMA-Sim", halves, _cut("bits", x), True),
        _test("bits of c", "fraction bits of c", "fraction bits", "MMA-Sim", c, _deepest, True),
        _test("cut of c", "how c is cut off", "alignment", "MMA-Sim", parts_of_c, _cut("bits of c", x), True),
        _test("exponents", "products are aligned as they are", "alignment", "MMA-Sim", normal, _normalised, True),
        _test("monotone", "a larger c gives no smaller d", "monotonicity", after, _witnesses(s.length), _falls, True),
        _test("zeros", "last 2^-k that counts beside zeros", "zeros", "MMA-Sim", zeros, _zeros, True),
    ]
    if s.input != FP16 or s.output != FP16:
        found[-1] = not_applicable(found[-1], "a test with FP16 inputs and results")
    if s.output not in (FP16, FP32, FP64):
        found = [not_applicable(t, "a test with FP16, FP32 or FP64 results") for t in found]
    return found


def _test(
    id: str, title: str, decides: str, of: str, cases: tuple[Case, ...], judge: Judge, partial: bool = False
) -> Test:
    return Test(id, "probes", title, of, decides, "a reading", cases, judge, partial)


def _three_quarters(power_of_two: str) -> str:
    """0.75 times such a product."""
    a, b = power_of_two.split(" * ")
    return f"1.5*{a} * 0.5*{b}"


def _witnesses(length: int) -> tuple[Case, ...]:
    """As many terms of 2^-n as fill three quarters of 16 places, onto 1 - 2^-24 and onto 1: lost beside the latter."""
    return tuple(Case((power(-n),) * min(12, length), c) for n in range(24, 32) for c in ("1-2^-24", "1"))


def _masks(length: int, large: str, small: str) -> tuple[Case, ...]:
    """All pairs of c and the products."""
    square = large.replace("2^", "").partition(" * ")[0]
    top, tiny = f"2^{2 * int(square)}", f"2^{2 * int(small.replace('2^', '').partition(' * ')[0])}"
    found = []
    for i in range(length + 1):
        for j in range(i + 1, length + 1):
            terms = [tiny, *[small] * length]
            terms[i] = large if i else top
            terms[j] = f"-{large}"
            found.append(Case(tuple(terms[1:]), terms[0]))
    return tuple(found)


def tree(sizes: Mapping[tuple[int, int], int], leaves: Sequence[int]) -> str | None:
    """The tree in which the smallest subtree with leaves i and j has sizes[i, j] leaves; None if none has.

    Args:
        sizes: for every pair i < j.
        leaves: 0 is c, i the i-th product, counted from 1.

    >>> tree({(0, 1): 3, (0, 2): 3, (1, 2): 2}, [0, 1, 2])
    '(c (p0 p1))'
    """
    if len(leaves) == 1:
        return _name(leaves[0])
    parts: list[list[int]] = []
    for leaf in leaves:
        home = next((part for part in parts if sizes[part[0], leaf] < len(leaves)), None)
        if home is None:
            parts.append([leaf])
        else:
            home.append(leaf)
    if len(parts) == 1:
        return None
    home_of = {leaf: k for k, part in enumerate(parts) for leaf in part}
    for i, j in ((i, j) for i in leaves for j in leaves if i < j):
        if (sizes[i, j] == len(leaves)) == (home_of[i] == home_of[j]) or sizes[i, j] > len(leaves):
            return None
    words: list[str] = []
    run: list[int] = []  # products that follow each other
    for part in [*parts, []]:
        if run and (len(part) != 1 or part[0] != run[-1] + 1):
            words += [f"{_name(run[0])}…{_name(run[-1])}"] if len(run) > 2 else map(_name, run)
            run = []
        if len(part) == 1 and part[0] > 0:
            run.append(part[0])
        elif part:
            inner = tree(sizes, part)
            if inner is None:
                return None
            words.append(inner)
    return f"({' '.join(words)})"


def _name(leaf: int) -> str:
    return f"p{leaf - 1}" if leaf else "c"


def _sizes(length: int, y: int, values: Values) -> dict[tuple[int, int], int] | None:
    """Leaves of the smallest subtree with c or a product and another; None where sums count no leaves."""
    count = length + 1
    pairs = ((i, j) for i in range(count) for j in range(i + 1, count))
    outside = [(v or 0.0) / 2.0 ** (2 * y) for v in values]
    if not all(0 <= o <= count - 2 and o == int(o) for o in outside):
        return None
    return {pair: count - int(o) for pair, o in zip(pairs, outside, strict=True)}


def _tree(length: int, y: int) -> Judge:
    def judge(values: Values, _: Earlier) -> Verdict:
        sizes = _sizes(length, y, values)
        found = None if sizes is None else tree(sizes, range(length + 1))
        if found is None:
            return Verdict("failed", "no tree: sums that are exact, or cut off before they are joined")
        return Verdict("passed", found)

    return judge


def _ways(length: int, y: int) -> Judge:
    """Summands of the first sum with c, if it is of single products, and rounded once."""

    def judge(values: Values, earlier: Earlier) -> Verdict:
        sizes = _sizes(length, y, values)
        if sizes is None or earlier["tree"].status != "passed":
            return Verdict("no conclusion")
        ways = sizes[0, 1]
        if any(sizes[i, j] != ways for i in range(ways) for j in range(i + 1, ways)):
            return Verdict("failed", "a tree")
        return Verdict("passed", f"{ways}-way", ways)

    return judge


def _deepest(values: Values, _: Earlier) -> Verdict:
    """How far below the largest term the last one lies that is kept, without a gap above it."""
    kept = 0
    for v in values:
        if v is None:
            return Verdict("passed", f">= {kept}", kept)
        if v <= 0.0:
            return Verdict("passed", str(kept), kept)
        kept += 1
    return Verdict("passed", f">= {kept}", kept)


def _cut(of: str, x: int) -> Judge:
    def judge(values: Values, earlier: Earlier) -> Verdict:
        found = earlier[of]
        if found.number is None or not found.number or found.reading.startswith(">="):
            return Verdict("no conclusion")
        # 0.75·2^-n below the last bit that is kept, and its opposite.
        n = found.number
        place = 2.0 ** (2 * x - n)
        up, down = values[n - 1], values[DEEPEST + n - 1]
        if up is None or down is None:
            return Verdict("no conclusion")
        modes = {(0.0, 0.0): "RZ", (place, -place): "RN", (place, 0.0): "RU", (0.0, -place): "RD"}
        reading = modes.get((up, down))
        return Verdict("passed", reading) if reading else Verdict("failed", "neither neighbour")

    return judge


def _falls(values: Values, _: Earlier) -> Verdict:
    pairs = zip(values[::2], values[1::2], strict=True)
    found = any(x is not None and y is not None and y < x for x, y in pairs)
    return Verdict("failed", "violated") if found else Verdict("passed", "not violated")


def _normalised(values: Values, earlier: Earlier) -> Verdict:
    """Beside 2.25·2^e the last bit is that of 2^e, or that of 2^(e+1)."""
    found = earlier["bits"]
    if not found.number or found.reading.startswith(">=") or values[found.number - 1] is None:
        return Verdict("no conclusion")
    kept = values[found.number - 1]
    return Verdict("passed", "as they are") if kept else Verdict("failed", "normalised first")


def _zeros(values: Values, _: Earlier) -> Verdict:
    """2^-25 + 2^-k, in FP16: rounded up where 2^-k is kept."""
    kept = [k for k, v in zip(range(30, LAST + 1), values, strict=True) if v]
    if not kept:
        return Verdict("failed", "none")
    return Verdict("passed", f">= {LAST}" if kept[-1] == LAST else str(kept[-1]), kept[-1])
