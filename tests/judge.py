"""What the tests of the core judge with: bits, engines, and the accuracy targets as exact statements.

The targets are written down here a second time, in exact rational arithmetic and from their definitions, so
that no slip in `prismm.core.accuracy` can hide itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest

import prismm
from prismm.formats import format_of
from prismm.testing import ExactProduct, exact_gemm
from prismm.testing.dyadic import Dyadic
from prismm.testing.parts import moduli, moduli_product, read, real_arrays, scalar

ENGINES = ("cpu:amx", "cpu:vnni", "cpu:avx2", "cpu:int8", "cpu:int8-7bit", "cpu:float64", "cpu:direct")
DTYPES = ("float64", "float32", "complex128", "complex64")
CORRECT = {"accuracy": "correctly-rounded"}

each_dtype = pytest.mark.parametrize("dtype", DTYPES)
each_engine = pytest.mark.parametrize("engine", ENGINES)


def usable_engines() -> list[str]:
    """The engines that proved themselves on this machine; at least the two that any machine has."""
    found = [name for name, (works, _) in prismm.engines.available().items() if works]
    assert {"cpu:float64", "cpu:direct"} <= set(found)
    assert set(found) <= set(ENGINES)
    return found


def problem(engine: str | None) -> None:
    """Skip the test where this machine cannot run the engine."""
    if engine is not None:
        works, reason = prismm.engines.available()[engine]
        if not works:
            pytest.skip(reason)


def assert_each(check: Callable[[Any], None], cases: Iterable[Any]) -> None:
    """The check of every case; what it says of all those that fail."""
    failed, count = [], 0
    for count, case in enumerate(cases, 1):  # noqa: B007
        try:
            check(case)
        except Exception as error:
            failed.append(f"{case}: {type(error).__name__}: {error}")
    assert count, "no cases"
    assert not failed, f"{len(failed)} of {count} cases fail:\n" + "\n".join(failed[:20])


def words(x: np.ndarray) -> np.ndarray:
    """The bit patterns of an array's real parts; every NaN counts as the same."""
    x = np.ascontiguousarray(x)
    reals = x.view(x.real.dtype)
    bits = reals.view(f"u{reals.itemsize}").copy()
    bits[np.isnan(reals)] = np.iinfo(bits.dtype).max
    return bits


def assert_same_bits(got: Any, expected: Any, note: str = "") -> None:
    """Equal types, shapes and bits, signs of zero included; otherwise say how many differ, and show the first."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype, (note, got.dtype, expected.dtype)
    assert got.shape == expected.shape, (note, got.shape, expected.shape)
    if got.size == 0:
        return
    x, y = np.atleast_1d(got), np.atleast_1d(expected)
    different = (words(x) != words(y)).reshape(*x.shape, -1).any(axis=-1)
    if different.any():
        first = tuple(int(i) for i in np.argwhere(different)[0])
        raise AssertionError(
            f"{note} {int(different.sum())} of {x.size} entries differ; at {first}: {x[first]!r}, expected {y[first]!r}"
        )


_ROUNDED: WeakKeyDictionary[ExactProduct, dict[np.dtype[Any], np.ndarray]] = WeakKeyDictionary()


def rounded(exact: ExactProduct, dtype: Any) -> np.ndarray:
    """RN(exact), kept: one draw is judged under many targets, on many engines."""
    found = _ROUNDED.setdefault(exact, {})
    dtype = np.dtype(dtype)
    if dtype not in found:
        found[dtype] = exact.rounded(dtype)
        found[dtype].flags.writeable = False
    return found[dtype]


def unit_roundoff(c: np.ndarray) -> Dyadic:
    """u of the result's type, exactly."""
    return power(-format_of(c.dtype).precision)


def power(exponent: int, factor: int = 1) -> Dyadic:
    """factor·2^exponent as a (1, 1) matrix."""
    return Dyadic(np.array([[factor]], dtype=object), np.array([[exponent]], np.int64))


def dyadic(x: float) -> Dyadic:
    """A float, exactly, as a (1, 1) matrix."""
    return Dyadic.from_array(np.array([[x]]))


def room(target: Any, exact: ExactProduct, magnitude: Dyadic, c: np.ndarray, terms: int) -> list[Dyadic]:
    """What the target allows |c - exact| to be, for each real part: the table of the documentation."""
    u, eta = unit_roundoff(c), format_of(c.dtype).subnormal_exponent
    if target == "native":
        return [magnitude.times(u).times(power(0, terms)) + power(eta, terms) for _ in exact.parts]
    assert isinstance(target, float)
    slack = magnitude.times(dyadic(target)) + power(eta - 1)
    return [slack + abs(part).times(u) for part in exact.parts]


def entry_terms(a: np.ndarray, c: np.ndarray) -> int:
    """K of the targets: k, or 2k where the result is complex."""
    return a.shape[1] * (2 if c.dtype.kind == "c" else 1)


def assert_overflow_is_right(exact: ExactProduct, c: np.ndarray, note: str = "") -> None:
    """±Inf exactly where RN(exact) overflows, whatever the target; NaN nowhere."""
    expected = real_arrays(rounded(exact, c.dtype))
    for got, right in zip(real_arrays(c), expected, strict=True):
        assert not np.isnan(got).any(), note
        np.testing.assert_array_equal(np.where(np.isinf(got), got, 0), np.where(np.isinf(right), right, 0), note)


def assert_meets(
    target: Any, exact: ExactProduct, magnitude: Dyadic, c: np.ndarray, terms: int, note: str = ""
) -> None:
    """Every entry meets a named target or tolerance, decided in exact arithmetic."""
    assert_overflow_is_right(exact, c, note)
    if target == "correctly-rounded":
        assert_same_bits(c, rounded(exact, c.dtype), note)
        return
    for part, x, allowed in zip(exact.parts, real_arrays(c), room(target, exact, magnitude, c, terms), strict=True):
        finite = np.isfinite(x)
        gap = abs(part - Dyadic.from_array(np.where(finite, x, 0)))
        bad = ((allowed - gap).numerators < 0).astype(bool) & finite
        assert not bad.any(), f"{note}: {int(bad.sum())} entries miss {target!r}, the first at {np.argwhere(bad)[0]}"


def magnitudes(a: np.ndarray, b: np.ndarray) -> Dyadic:
    """|a||b| exactly (of complex operands an upper bound, 2^-128 off at most)."""
    return moduli_product(read(a), read(b), "up", None)


def norms(x: np.ndarray, axis: int) -> Dyadic:
    """2-norms of rows (axis 1) or columns (axis 0), without overflow, rounded up a little."""
    size = np.abs(np.stack([np.asarray(p, np.float64) for p in real_arrays(x)]))
    top = np.frexp(size.max(axis=(0, axis + 1), keepdims=True))[1]
    scaled = np.sqrt((np.ldexp(size, -top) ** 2).sum(axis=(0, axis + 1), keepdims=True))
    found = Dyadic.from_array((scaled * (1 + 2.0**-40))[0])
    return Dyadic(found.numerators, found.exponents + top[0])


def assert_bounds_hold(exact: ExactProduct, c: np.ndarray, report: Any, note: str = "") -> None:
    """Report.bounds bound every error, Report.bound agrees with them, and every real entry took one path."""
    bounds = report.bounds
    assert bounds.shape == c.shape and bounds.dtype == np.float64, note
    assert not np.isnan(bounds).any(), note
    held = exact.within(c, bounds)
    assert held.all(), f"{note}: {int((~held).sum())} bounds do not hold, the first at {np.argwhere(~held)[0]}"
    assert sum(report.paths.values()) == c.size * (2 if c.dtype.kind == "c" else 1), (note, report.paths)


def assert_gemm(a: Any, b: Any, c: Any, alpha: complex, beta: complex, *ways: dict[str, Any]) -> None:
    """By each way d meets its target, with |alpha||a||b| + |beta||c| for |a||b|, and its bounds hold."""
    exact = exact_gemm(alpha, a, b, beta, c)
    size = moduli(scalar("alpha", alpha), "up").times(moduli_product(read(a), read(b), "up", None))
    if beta != 0:
        size = size + moduli(scalar("beta", beta), "up").times(moduli(read(c), "up"))
    for keywords in ways:
        note = f"alpha={alpha}, beta={beta}, {keywords}"
        d, report = prismm.gemm(a, b, c, alpha=alpha, beta=beta, full_output=True, **keywords)
        assert_sum_meets(exact, size, a, d, report, keywords, note)
        # Calls without a report may go another way.
        alone = prismm.gemm(a, b, c, alpha=alpha, beta=beta, **keywords)
        assert_sum_meets(exact, size, a, alone, None, keywords, f"{note}, no report")


def assert_sum_meets(
    exact: ExactProduct, size: Dyadic, a: Any, d: Any, report: Any, keywords: dict[str, Any], note: str
) -> None:
    """One way's result d, against the exact sum and the size that its target is relative to."""
    assert_overflow_is_right(exact, d, note)
    terms, eta = entry_terms(a, d) + 3, format_of(d.dtype).subnormal_exponent
    accuracy = keywords.get("accuracy", "native")
    if accuracy == "correctly-rounded":
        assert_same_bits(d, rounded(exact, d.dtype), note)
    for part, x in zip(exact.parts, real_arrays(d), strict=True):
        finite = np.isfinite(x)
        gap = abs(part - Dyadic.from_array(np.where(finite, x, 0)))
        if accuracy == "native":
            allowed = size.times(unit_roundoff(d)).times(power(0, terms)) + power(eta, terms)
        elif not isinstance(accuracy, float):
            continue
        else:
            allowed = size.times(dyadic(accuracy)) + power(eta - 1)
            allowed = allowed + abs(part).times(unit_roundoff(d))
        assert not ((allowed - gap).numerators < 0)[finite].any(), note
    if report is not None:
        assert_bounds_hold(exact, d, report, note)
