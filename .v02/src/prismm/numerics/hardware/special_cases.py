"""Dot products at the edges of two formats: zeros, underflow, overflow, infinities, NaN and carries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ldexp

from prismm.formats import Format
from prismm.numerics.encodings import canonical_nan, encode, foreign

__all__ = ["Case", "special_cases"]


@dataclass(frozen=True)
class Case:
    """One dot product, in bit patterns.

    Attributes:
        name: what it shows.
        a: left factors, as many as there are products; +0 · +0 fills the rest.
        b: right factors.
        c: what is added.
    """

    name: str
    a: tuple[int, ...]
    b: tuple[int, ...]
    c: int


def _case(name: str, source: Format, result: Format, pairs: list[tuple[float, float]], c: float) -> Case | None:
    """The case of these values; None if the formats do not have them."""
    if _FOREIGN in pairs:
        return None
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    if foreign([*a, *b, 0.0], source).any() or foreign(c, result).any():
        return None
    return Case(name, tuple(encode(a, source).tolist()), tuple(encode(b, source).tolist()), int(encode(c, result)))


_FOREIGN = (1.0 + 2.0**-52, 1.0)
"""Factors that stand for a product out of reach: never a factor of these cases."""


def _power(format: Format, exponent: int, sign: float = 1.0) -> tuple[float, float]:
    """Factors of sign · 2^exponent; `_FOREIGN` if the format reaches no such product."""
    first = min(max(exponent // 2, format.subnormal_exponent), format.maxexp - 1)
    second = exponent - first
    if not format.subnormal_exponent <= second < format.maxexp:
        return _FOREIGN
    return sign * ldexp(1.0, first), ldexp(1.0, second)


def _zeros(source: Format, result: Format, k: int) -> Iterator[Case | None]:
    for c in (0.0, -0.0):
        for left in (0.0, -0.0):
            for right in (0.0, 1.0, -1.0):
                yield _case(f"{k} · ({left} · {right}) + {c}", source, result, [(left, right)] * k, c)
        yield _case(f"1 - 1 + {c}", source, result, [(1.0, 1.0), (-1.0, 1.0)], c)
        yield _case(f"-1 + 1 + {c}", source, result, [(-1.0, 1.0), (1.0, 1.0)], c)
    yield _case("1 + c = -1", source, result, [(1.0, 1.0)], -1.0)
    yield _case("-1 + c = 1", source, result, [(-1.0, 1.0)], 1.0)
    small = result.subnormal_exponent
    for sign in (1.0, -1.0):
        for below in (-1, 0, 1, 2, 3, 10):
            for c in (0.0, -0.0, ldexp(sign, small), ldexp(-sign, small)):
                name = f"{sign} · 2^{small - below} + {c!r}"
                yield _case(name, source, result, [_power(source, small - below, sign)], c)
    tiny = source.smallest_subnormal
    yield _case("smallest · 1", source, result, [(tiny, 1.0)], 0.0)
    yield _case("smallest · smallest", source, result, [(tiny, tiny)], 0.0)
    yield _case("c = smallest", source, result, [], ldexp(1.0, small))
    yield _case("c = -smallest", source, result, [], -ldexp(1.0, small))


def _infinities(source: Format, result: Format, k: int) -> Iterator[Case | None]:
    inf = float("inf")
    zero, one = 0.0, 1.0
    for sign in (1.0, -1.0):
        yield _case(f"{sign} inf · 1", source, result, [(sign * inf, one)], zero)
        yield _case(f"{sign} inf · 0", source, result, [(sign * inf, zero)], zero)
        yield _case(f"{sign} inf · smallest", source, result, [(sign * inf, source.smallest_subnormal)], zero)
        yield _case(f"{sign} inf + c = inf", source, result, [(sign * inf, one)], inf)
        yield _case(f"{sign} inf + c = -inf", source, result, [(sign * inf, one)], -inf)
        yield _case(f"inf at 0, {-sign} inf at {k - 1}", source, result, _ends(k, (inf, one), (-sign * inf, one)), zero)
        yield _case(f"1 + c = {sign} inf", source, result, [(one, one)], sign * inf)
        yield _case(f"0 + c = {sign} inf", source, result, [], sign * inf)
        yield _case(f"largest · largest + c = {sign} inf", source, result, [(source.max, source.max)], sign * inf)
    if source.has_nan:
        nan = canonical_nan(source)
        unit = int(encode(1.0, source))
        for name, other in (("1", unit), ("0", 0), ("NaN", nan)):
            yield Case(f"NaN · {name}", (nan,), (other,), 0)
            yield Case(f"{name} · NaN at {k - 1}", (0,) * (k - 1) + (other,), (0,) * (k - 1) + (nan,), 0)


def _ends(k: int, first: tuple[float, float], last: tuple[float, float]) -> list[tuple[float, float]]:
    return [first, *[(0.0, 0.0)] * (k - 2), last]


def _overflow(source: Format, result: Format, k: int) -> Iterator[Case | None]:
    top = result.maxexp - 1
    ulp = result.maxexp - result.precision
    for sign in (1.0, -1.0):
        for below in range(-1, 5):
            pair = _power(source, ulp - below, sign)
            yield _case(f"{sign} · ulp / {2.0**below} + c = largest", source, result, [pair], sign * result.max)
        yield _case(
            f"{sign} · (ulp/2 + ulp/4) + c = largest",
            source,
            result,
            [_power(source, ulp - 1, sign), _power(source, ulp - 2, sign)],
            sign * result.max,
        )
        back = [_power(source, ulp, sign), _power(source, ulp, -sign)]
        yield _case(f"{sign} · (ulp - ulp) + c = largest", source, result, back, sign * result.max)
        yield _case(
            f"{sign} · (ulp at 0 - ulp at {k - 1}) + c = largest", source, result, _ends(k, *back), sign * result.max
        )
        for more in range(4):
            up, down = _power(source, top + more, sign), _power(source, top + more, -sign)
            name = f"{sign} · 2^{top + more}"
            yield _case(name, source, result, [up], 0.0)
            yield _case(f"{name} twice", source, result, [up, up], 0.0)
            yield _case(f"{name} + the same - the same", source, result, [up, up, down], 0.0)
            yield _case(f"{name} - the same", source, result, [up, down], 0.0)
            yield _case(f"{name} at 0, minus it at {k - 1}", source, result, _ends(k, up, down), 0.0)
            yield _case(f"{name} + c = {-sign} · 2^{top}", source, result, [up], -ldexp(sign, top))
    yield _case("largest · largest", source, result, [(source.max, source.max)], 0.0)
    yield _case(f"{k} · largest · largest", source, result, [(source.max, source.max)] * k, 0.0)


def _carries(source: Format, result: Format, k: int) -> Iterator[Case | None]:
    full = 2.0 - source.eps
    for sign in (1.0, -1.0):
        for count in (1, 2, 3, 4, 7, 8, 15, 16, 31, 32):
            if count <= k:
                pairs = [(sign * full, full)] * count
                yield _case(f"{count} · {sign} (2 - ulp)²", source, result, pairs, 0.0)
                for power in range(-1, 7):
                    c = sign * ldexp(2.0 - result.eps, power)
                    yield _case(f"{count} · {sign} (2 - ulp)² + c = {c!r}", source, result, pairs, c)
                    yield _case(f"{count} · {sign} (2 - ulp)² + c = {-c!r}", source, result, pairs, -c)


def special_cases(source: Format, result: Format, k: int) -> list[Case]:
    """All cases that the formats have, each with a name of its own.

    Args:
        source: format of a and b.
        result: format of c.
        k: products in one instruction, at least 2.
    """
    found: dict[str, Case] = {}
    for part in (_zeros, _infinities, _overflow, _carries):
        for case in part(source, result, k):
            if case is not None and len(case.a) <= k:
                found.setdefault(case.name, case)
    return list(found.values())
