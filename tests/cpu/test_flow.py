"""The flow of composite schemes with a scheme that is told what to return, and its scaling and bounds by fractions."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import prismm
from prismm.core.accuracy import parse_target
from prismm.core.composite import Composite, Joined, Scaled, Setting
from prismm.core.outcome import Job
from prismm.cpu.composite import CompositeImplementation
from prismm.cpu.flow import blocking
from prismm.cpu.scaling import bound_of, measure, outer_sum, scale
from prismm.formats import FP64, Format
from prismm.testing import HOSTILE, exact_product
from tests.judge import assert_bounds_hold, assert_meets, assert_same_bits, magnitudes


@dataclass(frozen=True)
class Engine:
    name: str = "told"


@dataclass(frozen=True)
class Told:
    """Exact products, off by a stated share of what the stated bound allows."""

    share: float = 0.0
    gamma: float = 0.0
    term: float = 0.0
    floor: float = 0.0
    grain: tuple[int, int] = (1, 1)
    low: bool = True
    reproducible: bool = False

    def implementation(self, device: str) -> Any:
        return CompositeImplementation(self) if device == "cpu" else None

    @property
    def granule(self) -> tuple[int, int]:
        return self.grain

    def engine_for(self, name: str | None) -> Any:
        return Engine()

    def check(self, k: int, result: Format) -> None:
        pass

    def split(self, x: Scaled, setting: Setting) -> Any:
        top = np.abs(x.data).max(axis=x.axis)
        assert ((top == 0) | ((top >= 0.5) & (top < 1))).all()
        return x.data

    def multiply(self, left: Any, right: Any, setting: Setting) -> Joined:
        exact = exact_product(left, right)
        high = exact.rounded(np.float64)
        low = np.array([[float(v) for v in row] for row in _fractions(exact, high)])
        m, n = high.shape
        rows, columns = np.full((1, m), self.term), np.ones((1, n))
        off = self.share * (self.gamma * exact.magnitude("down") + self.term + self.floor) * (1 - 2.0**-40)
        total = high + off
        # What that rounds away (Knuth's two-sum) goes to low; without one, gamma has room for it.
        shadow = total - high
        low = low + ((high - (total - shadow)) + (off - shadow))
        gamma = self.gamma + (0.0 if self.low else 2.0**-51)
        return Joined(total, low if self.low else None, gamma, rows, columns, self.floor, 2, {"tiles": 1})

    def products_for(self, k: int, result: Format) -> int:
        return 2

    def workspace(self, m: int, n: int, k: int, result: Format) -> int:
        return 8 * m * n


def _fractions(exact: Any, high: np.ndarray) -> list[list[Fraction]]:
    part = exact.parts[0]
    numerators = np.broadcast_to(part.numerators, high.shape)
    exponents = np.broadcast_to(part.exponents, high.shape)
    return [
        [
            Fraction(int(numerators[i, j])) * Fraction(2) ** int(exponents[i, j]) - Fraction(float(high[i, j]))
            for j in range(high.shape[1])
        ]
        for i in range(high.shape[0])
    ]


def test_it_is_a_composite():
    assert isinstance(Told(), Composite)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["normal", "ties", "near_ties", "subnormal_results", "near_overflow", "wide_rows"])
def test_an_exact_value_needs_no_repair(name, dtype, seed):
    """A bound of nothing: one rounding of high + low is RN(exact), at ties, among subnormals and near overflow."""
    a, b = HOSTILE[name](7, 12, 9, seed, dtype)
    exact = exact_product(a, b)
    for target in (None, "native", "correctly-rounded"):
        c, report = prismm.matmul(a, b, scheme=Told(), accuracy=target, full_output=True)
        # 106 bits hold nearly every exact value here; where they do not, RN(high + low) is that of the pair.
        rest = [v for row in _fractions(exact, exact.rounded(np.float64)) for v in row]
        if all(Fraction(float(v)) == v for v in rest):
            assert_same_bits(c, exact.rounded(dtype), f"{name} {target}")
        assert not report.repaired and report.notes == {"tiles": 1} and report.products == 2


@pytest.mark.covering("scheme")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "scheme",
    [
        Told(1.0, gamma=2.0**-30), Told(-1.0, gamma=2.0**-55), Told(1.0, term=2.0**-40), Told(-1.0, floor=2.0**-26),
        Told(0.5, gamma=2.0**-24, low=False), Told(1.0, gamma=2.0**-23, term=2.0**-30, floor=2.0**-60),
    ],
    ids=str,
)  # fmt: skip
def test_values_at_the_edge_of_their_bound(scheme, dtype, seed):
    """Whatever is off by as much as the bound allows still meets the target, by certificate or repair."""
    for name in ("normal", "ties", "graded", "cancelling", "overflow_threshold", "zeros_rows_cols"):
        a, b = HOSTILE[name](8, 20, 9, seed, dtype)
        exact, magnitude = exact_product(a, b), magnitudes(a, b)
        for target in (None, "fast", "native", 1e-8, "correctly-rounded"):
            c, report = prismm.matmul(a, b, scheme=scheme, accuracy=target, full_output=True)
            assert_bounds_hold(exact, c, report, f"{name} {target}")
            if target not in (None, "fast"):
                assert_meets(target, exact, magnitude, c, 20, f"{name} {target}")


def test_certificates_do_not_repair_everything(rng):
    a, b = rng.standard_normal((30, 40)), rng.standard_normal((40, 30))
    for scheme, target, least in ((Told(1.0, gamma=2.0**-60), "correctly-rounded", 0.7),
                                  (Told(1.0, gamma=2.0**-49), "native", 1.0)):  # fmt: skip
        _, report = prismm.matmul(a, b, scheme=scheme, accuracy=target, full_output=True)
        assert report.paths["certified"] >= least * 900, report.paths


def test_a_reproducible_schemes_repairs_do_not_depend_on_order(rng):
    """Law 2: the certificate of a reproducible scheme is made of exact sums; any order of k leaves the same bits."""
    a, b = rng.standard_normal((20, 300)), rng.standard_normal((300, 20))
    order = rng.permutation(300)
    k = 300
    x = scale(a, "left", 1)[0].data, scale(b, "right", 1)[0].data
    for integers in (True, False):
        one = measure(np.abs(x[0]), np.abs(x[1]), False, integers)
        two = measure(np.abs(x[0][:, order]), np.abs(x[1][order]), False, integers)
        if integers:
            assert np.array_equal(one.size, two.size) and np.array_equal(one.rows, two.rows)
    assert k == one.size.shape[0] * 15


def test_scaling_is_exact_and_says_where_it_is_not(seed):
    for name in HOSTILE:
        for dtype in ("float64", "float32"):
            a, b = HOSTILE[name](6, 11, 7, seed, dtype)
            for x, side in ((a, "left"), (b, "right")):
                scaled, units = scale(x, side, 2)
                axis = 1 if side == "left" else 0
                exponent = np.expand_dims(units.exponent, axis)
                for index in np.ndindex(*x.shape):
                    vector = index[1 - axis]
                    back = Fraction(float(scaled.data[index])) * Fraction(2) ** int(units.exponent[vector])
                    if not units.lost[vector]:
                        assert back == Fraction(float(x[index])), (name, side, index)
                    else:
                        gap = abs(back - Fraction(float(x[index]))) / Fraction(2) ** int(units.exponent[vector])
                        assert gap <= Fraction(1, 2**1075)
                top = np.abs(scaled.data).max(axis=axis)
                assert ((top < 1) & (top >= 0.5) | units.zero).all()
                size = np.where(scaled.data == 0, 1.0, np.abs(scaled.data)).min(axis=axis)
                assert (units.smallest <= size).all() and exponent.size == top.size
    wide, units = scale(np.array([[2.0**1000, 2.0**-1074], [0.5, 2.0**-1074]]), "left", 1)
    assert units.lost.tolist() == [True, False] and wide.data[0, 1] == 0.0


@pytest.mark.parametrize("integers", [True, False])
def test_magnitudes_are_bounded_from_both_sides(integers, seed):
    for name in ("normal", "phi4", "wide_rows_and_columns", "zeros_rows_cols", "one_huge", "subnormal_operands"):
        a, b = HOSTILE[name](6, 40, 5, seed)
        x, rows = scale(a, "left", 1)
        y, columns = scale(b, "right", 1)
        left, right = np.abs(x.data), np.abs(y.data)
        tiny = not float(rows.smallest.min()) * float(columns.smallest.min()) >= 2.0**-1022
        found = measure(left, right, tiny, integers)
        unit = bound_of(1.0, np.zeros((0, 6)), np.zeros((0, 5)), 0.0, found, (rows, columns), 40)
        for i, j in np.ndindex(6, 5):
            pairs = zip(left[i].tolist(), right[:, j].tolist(), strict=True)
            exact = sum((Fraction(p) * Fraction(q) for p, q in pairs), Fraction(0))
            assert Fraction(float(found.size[i, j])) * Fraction(found.down) <= exact, (name, i, j)
            assert exact <= Fraction(float(unit[i, j])), (name, i, j)
            assert exact != 0 or unit[i, j] == 0 or tiny or integers


def test_outer_sums_never_round_down(rng):
    rows = np.ldexp(rng.random((4, 6)), -rng.integers(0, 1060, (4, 6)))
    columns = np.ldexp(rng.random((4, 5)), -rng.integers(0, 1060, (4, 5)))
    rows[0], columns[1] = 0.0, 0.0
    rows[:, 3] = 0.0
    got = outer_sum(rows, columns)
    for i, j in np.ndindex(6, 5):
        pairs = zip(rows[:, i].tolist(), columns[:, j].tolist(), strict=True)
        exact = sum((Fraction(p) * Fraction(q) for p, q in pairs), Fraction(0))
        assert Fraction(float(got[i, j])) >= exact
        assert (got[i, j] == 0) == (exact == 0)


@given(
    st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 2000), st.integers(16, 28),
    st.tuples(st.integers(1, 32), st.integers(1, 32)),
)  # fmt: skip
def test_blocks_fit_or_are_one_granule(m, n, k, bits, grain):
    job = Job(FP64, parse_target("native"), k, True, 1, 1 << bits)
    rows, columns, problem = blocking(Told(grain=grain), m, n, k, job)
    assert 1 <= rows <= m and 1 <= columns <= n
    assert rows == m or rows % grain[0] == 0
    assert columns == n or columns % grain[1] == 0
    assert problem <= job.workspace_bytes or (rows <= grain[0] and columns <= grain[1])
