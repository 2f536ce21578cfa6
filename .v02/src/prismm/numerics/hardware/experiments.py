"""Targeted experiments on one instruction: each a function of an engine that returns what JSON can hold.

They ask what random vectors seldom show: which products are summed together, where the exponent of an accumulator ends,
how C enters, what zeros, infinities and NaN become. What each means is in its docstring; every answer is a bit pattern
beside the value it encodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from prismm.formats import FP16, FP32, TF32, Format
from prismm.numerics.encodings import canonical_nan, decode, encode, foreign
from prismm.numerics.hardware.engine import HardwareEngine
from prismm.numerics.hardware.special_cases import special_cases

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["EXPERIMENTS", "split_power"]

_NEGATIVE_ZERO = -0.0


def _formats(engine: HardwareEngine) -> tuple[Format, Format] | None:
    """Input and output, if they are floats."""
    if isinstance(engine.input, Format) and isinstance(engine.output, Format):
        return engine.input, engine.output
    return None


def split_power(format: Format, exponent: int) -> tuple[float, float] | None:
    """Two values of the format whose product is 2^exponent, both as near to its root as can be; None: out of reach.

    >>> split_power(FP16, -48), split_power(FP16, -49)
    ((5.960464477539063e-08, 5.960464477539063e-08), None)
    """
    low, high = format.subnormal_exponent, format.maxexp - 1
    first = min(max(exponent // 2, low), high)
    second = exponent - first
    return (2.0**first, 2.0**second) if low <= second <= high else None


def _rows(engine: HardwareEngine, cases: list[tuple[list[tuple[float, float]], float]]) -> list[dict[str, Any]]:
    """Answers to dot products given as values, padded with +0."""
    import numpy as np

    a, b = np.zeros((2, len(cases), engine.k))
    for row, (pairs, _) in enumerate(cases):
        for at, (x, y) in enumerate(pairs):
            a[row, at], b[row, at] = x, y
    c = encode([start for _, start in cases], engine.output)
    found = engine.bits(encode(a, engine.input), encode(b, engine.input), c)
    values = decode(found, engine.output)
    return [{"bits": hex(int(x)), "value": repr(float(v))} for x, v in zip(found, values, strict=True)]


def zero_exponent_half(engine: HardwareEngine) -> Any:
    """FP16 output, c = ±0: 2^-25 + 2^-k rounds to 2^-24 while the small term is kept, and to 0 once it is cut.

    The largest k kept is 25 + 21 = 46 if terms of value zero hold the exponent at -21 and 25 fraction bits are kept.
    """
    formats = _formats(engine)
    if formats is None or formats[1] != FP16:
        return None
    half = split_power(formats[0], -25)
    found: list[dict[str, Any]] = []
    for k in range(26, 53):
        small = split_power(formats[0], -k)
        if half is None or small is None:
            continue
        for first, second in ((half, small), (small, half)):
            for c in (0.0, _NEGATIVE_ZERO):
                found.append(
                    {"k": k, "large_first": first is half, "c": repr(c), **_rows(engine, [([first, second], c)])[0]}
                )
        minus = [(3 * half[0], half[1]), (-small[0], small[1])]
        if not foreign([3 * half[0]], formats[0]).any():
            found.append({"k": k, "three_halves_minus": True, **_rows(engine, [(minus, 0.0)])[0]})
    kept = [x["k"] for x in found if "c" in x and float(x["value"]) > 0]
    return {"largest_k_kept": max(kept, default=None), "rows": found} if found else None


def zero_exponent_single(engine: HardwareEngine) -> Any:
    """FP32 output, c = ±0: slots terms of 2^-149 / slots, of which two are 1 + 2^-j and 1 - 2^-j times as large.

    Their exact sum is 2^-149. Where bits below 2^(floor - F) are cut, the second of the two loses 2^-j and the first
    does not gain it, so the sum falls short and is cut to 0. The largest j kept is F - floor - 149 - log2(slots) for
    floor = -132 or -133 (F = 24 or 25), the number of slots being that of one block.
    """
    formats = _formats(engine)
    if formats is None or formats[1] != FP32:
        return None
    found: list[dict[str, Any]] = []
    for slots in (2, 4, 8, 16, 32):
        if slots > engine.k:
            break
        unit = split_power(formats[0], -149 - slots.bit_length() + 1)
        if unit is None:
            continue
        for j in range(1, formats[0].fraction_bits + 1):
            x, y = unit
            more, less = x * (1 + 2.0**-j), x * (1 - 2.0**-j)
            if foreign([more, less], formats[0]).any():
                continue
            pairs = [unit] * (slots - 2) + [(more, y), (less, y)]
            for c in (0.0, _NEGATIVE_ZERO):
                found.append({"slots": slots, "j": j, "c": repr(c), **_rows(engine, [(pairs, c)])[0]})
    kept: dict[str, int | None] = {}
    for slots in sorted({x["slots"] for x in found}):
        kept[str(slots)] = max((x["j"] for x in found if x["slots"] == slots and float(x["value"]) > 0), default=None)
    return {"largest_j_kept": kept, "rows": found} if found else None


def summands_lost(engine: HardwareEngine) -> Any:
    """Which terms are summed together (FPRev's masks): at (i, j) how many units survive +M at i and -M at j.

    All other products are one unit, too small to be seen beside M; index k is c. Two terms that meet in a fused sum
    lose all others of that sum and those before it.
    """
    import numpy as np

    formats = _formats(engine)
    if formats is None:
        return None
    source, result = formats
    k = engine.k
    top = min(2 * (source.maxexp - 1), result.maxexp - 1)
    gap = 2 * result.fraction_bits + 12
    unit = max(top - gap, 2 * source.subnormal_exponent, result.subnormal_exponent + 8)
    if source.bits == 8 and result == FP16:
        unit = max(2 * source.minexp, -12)
    large, small = split_power(source, top), split_power(source, unit)
    if large is None or small is None or top - unit < 26:
        return {"skipped": f"2^{top} and 2^{unit} are too near"}
    size, cases = 2.0**unit, []
    for i in range(k + 1):
        for j in range(k + 1):
            pairs = [small] * k
            start = 2.0**unit
            for at, sign in ((i, 1.0), (j, -1.0)):
                if at == k:
                    start = sign * 2.0**top
                else:
                    pairs[at] = (sign * large[0], large[1])
            cases.append((pairs, start))
    if foreign([size, 2.0**top], result).any():
        return {"skipped": f"c cannot be 2^{top} or 2^{unit}"}
    values = np.array([float(x["value"]) for x in _rows(engine, cases)]) / size
    return {"exponents": [top, unit], "survivors": values.reshape(k + 1, k + 1).tolist()}


def order_of_groups(engine: HardwareEngine) -> Any:
    """Whether sums before p are rounded before p is added: 1 + h at two places, then h at p (h = half an ulp of 1).

    Everything in one exact sum, or h and h meeting first, gives 1 + 2h; a rounding in between gives 1. The 1 stands at
    place 0, the h at two others, with c = 0; then one h is c; then 1 is c.
    """
    formats = _formats(engine)
    if formats is None:
        return None
    source, result = formats
    one, h = split_power(source, 0), split_power(source, -result.precision)
    if one is None or h is None:
        return None
    cases, names = [], []
    zero = (0.0, 0.0)
    for q in range(1, engine.k):
        for p in range(1, engine.k):
            if p != q:
                pairs = [one] + [zero] * (engine.k - 1)
                pairs[q] = pairs[p] = h
                cases.append((pairs, 0.0))
                names.append(f"1 at 0, h at {q} and {p}")
        pairs = [one] + [zero] * (engine.k - 1)
        pairs[q] = h
        cases.append((pairs, 2.0**-result.precision))
        names.append(f"1 at 0, h at {q} and in c")
    for q in range(engine.k):
        for p in range(q):
            pairs = [zero] * engine.k
            pairs[q] = pairs[p] = h
            cases.append((pairs, 1.0))
            names.append(f"h at {p} and {q}, 1 in c")
    found = _rows(engine, cases)
    exact = [name for name, x in zip(names, found, strict=True) if float(x["value"]) > 1]
    return {"of": len(names), "gives_1_plus_2h": exact if len(exact) < len(names) else "all"}


def final_addition(engine: HardwareEngine) -> Any:
    """How c meets the products: sums of 1 and fractions of an ulp of 1, u = 2^(1 - p), from both sides."""
    formats = _formats(engine)
    if formats is None:
        return None
    source, result = formats
    p = result.precision
    cases, names = [], []
    for quarters in range(1, 16):
        for sign in (1.0, -1.0):
            c = sign * quarters * 2.0 ** (-p - 1)
            pair = split_power(source, 0)
            assert pair is not None
            if not foreign([c], result).any():
                cases.append(([pair], c))
                names.append(f"1 · 1, c = {sign * quarters}/4 u")
            small = split_power(source, -p - 1)
            factor = [sign * quarters * small[0]] if small else []
            if small and not foreign(factor, source).any():
                cases.append(([(factor[0], small[1])], 1.0))
                names.append(f"one product {sign * quarters}/4 u, c = 1")
                pairs = [(sign * small[0], small[1])] * quarters
                if quarters <= engine.k:
                    cases.append((pairs, 1.0))
                    names.append(f"{quarters} products {sign}/4 u, c = 1")
    return dict(zip(names, _rows(engine, cases), strict=True))


def specials(engine: HardwareEngine) -> Any:
    """Signs of zero, NaN, infinities, overflow and carries: `special_cases`, each with bit patterns."""
    import numpy as np

    formats = _formats(engine)
    if formats is None:
        return None
    cases = special_cases(*formats, engine.k)
    a, b = np.zeros((2, len(cases), engine.k), np.uint64)
    for row, case in enumerate(cases):
        a[row, : len(case.a)], b[row, : len(case.b)] = case.a, case.b
    found = engine.bits(a, b, np.array([case.c for case in cases], np.uint64))
    values = decode(found, engine.output)
    return {
        case.name: {"c": hex(case.c), "bits": hex(int(x)), "value": repr(float(v))}
        for case, x, v in zip(cases, found, values, strict=True)
    }


def low_bits_of_tf32(engine: HardwareEngine) -> Any:
    """TF32: factors with 13 more bits set, as FP32 registers can hold; 1 · x comes back as what the instruction takes.

    Returns how many of 4096 come back cut to TF32, and how many rounded to nearest.
    """
    import numpy as np

    if engine.input != TF32:
        return None
    wide = HardwareEngine(replace(engine.instruction, name=engine.name + " of fp32 registers", input=FP32))
    low = (np.arange(4096, dtype=np.int64) * 2654435761) & 0x7FFFFF | 0x3F800000
    a, b = np.zeros((2, 4096, engine.k), np.int64)
    a[:, 0], b[:, 0] = low, 0x3F800000
    found: NDArray[Any] = wide.bits(a, b, np.zeros(4096, np.int64)).astype(np.int64)
    cut = low & ~0x1FFF
    rounded = (low + 0xFFF + (low >> 13 & 1)) & ~0x1FFF
    return {
        "cut": int((found == cut).sum()),
        "rounded": int((found == rounded).sum()),
        "kept": int((found == low).sum()),
        "of": 4096,
    }


def nan_patterns(engine: HardwareEngine) -> Any:
    """What NaN of different payloads become, in a and in c."""
    import numpy as np

    formats = _formats(engine)
    if formats is None:
        return None
    source, result = formats
    found: dict[str, str] = {}
    ones = encode(np.ones((1, engine.k)), source)
    for where, format in (("a", source), ("c", result)):
        if not format.has_nan:
            continue
        sign = 1 << (format.bits - 1)
        top = canonical_nan(format)
        infinity = sign - (1 << format.fraction_bits)
        quiet = 1 << (format.fraction_bits - 1)
        low = {top} if format.specials == "fn" else {top, infinity | 1, infinity | quiet, infinity | quiet | 1}
        for pattern in sorted(low | {x | sign for x in low}):
            a, c = ones.astype(np.uint64), np.zeros(1, np.uint64)
            if where == "a":
                a[0, 0] = pattern
            else:
                c[0] = pattern
            found[f"{where} = {pattern:#x}"] = hex(int(engine.bits(a, ones, c)[0]))
    return found


EXPERIMENTS: dict[str, Callable[[HardwareEngine], Any]] = {
    "zero_exponent_half": zero_exponent_half,
    "zero_exponent_single": zero_exponent_single,
    "summands_lost": summands_lost,
    "order_of_groups": order_of_groups,
    "final_addition": final_addition,
    "specials": specials,
    "nan_patterns": nan_patterns,
    "low_bits_of_tf32": low_bits_of_tf32,
}
"""All of them; an experiment returns None for an instruction that it does not concern."""
