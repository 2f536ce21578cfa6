"""`Slices`: exact sums of slice products, the same bits on every path, bounds, counts of slices, refusals."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

import prismm
from prismm.core.composite import Composite, Scaled, Setting
from prismm.cpu.engines import torch_int8
from prismm.cpu.engines.integer import available
from prismm.cpu.engines.simulated import names
from prismm.cpu.kernels import weigh
from prismm.cpu.slices import products as slice_products
from prismm.cpu.slices.count import slices_table
from prismm.cpu.slices.engines import prove
from prismm.cpu.slices.products import multiply_slices, product_pairs
from prismm.errors import ArgumentError, EngineError
from prismm.formats import FP32, FP64, round_fraction
from prismm.schemes.slice_layout import UNITS, choose_block, expected_slices, longest_block, slice_bits
from prismm.schemes.slices import Slices
from prismm.testing import HOSTILE, exact_product
from prismm.testing.dyadic import Dyadic, multiply
from tests.cpu.kernels.slice_twin import two, vector

COUNTS = {"fp16": 4, "int8": 4, "fp64": 2, "fp16-fp16": 6, "bf16": 3, "fp32-fp64": 2}
ALL = [
    Slices(unit, slices=slices, exponents=exponents, rounding=rounding, fast=fast)
    for unit, slices in COUNTS.items()
    for exponents in ("grid", "adaptive")
    for rounding in ("nearest", "toward-zero")
    for fast in (False, True)
]


def scaled(x, side):
    """As the flow scales: each vector's largest magnitude into [1/2, 1)."""
    axis = 1 if side == "left" else 0
    x = np.asarray(x, np.float64)
    exponent = np.frexp(np.abs(x).max(axis=axis, initial=0.0))[1].astype(np.int64)
    down = -np.expand_dims(exponent, axis)
    data = np.ldexp(np.ldexp(x, down // 2), down - down // 2)
    return Scaled(side, np.ascontiguousarray(data), exponent, np.zeros(exponent.size, np.bool_))


def setting_for(scheme, engine=None, workers=2, memory=1 << 28, result=FP64):
    return Setting(result, workers, memory, scheme.implementation("cpu").engine_for(engine))


def product(scheme, left, right, **how):
    setting = setting_for(scheme, **how)
    return scheme.implementation("cpu").multiply(
        scheme.implementation("cpu").split(left, setting), scheme.implementation("cpu").split(right, setting), setting
    )


def same(x, y):
    np.testing.assert_array_equal(x.high, y.high)
    np.testing.assert_array_equal(x.low, y.low)


def operands(name, m, k, n, seed):
    a, b = HOSTILE[name](m, k, n, seed)
    return scaled(a, "left"), scaled(b, "right")


def exact_of(left, right):
    return multiply(Dyadic.from_array(left.data), Dyadic.from_array(right.data))


def twin(scheme, left, right):
    """The kept sum in fractions, entry by entry."""
    layout = scheme.layout(left.k)
    rows = [vector(x, layout, scheme.slices) for x in left.data.tolist()]
    columns = [vector(x, layout, scheme.slices) for x in right.data.T.tolist()]
    found = np.empty((len(rows), len(columns)), object)
    for (i, (a, e, _)), (j, (b, f, _)) in itertools.product(enumerate(rows), enumerate(columns)):
        total = Fraction(0)
        for p, q in itertools.product(range(scheme.slices), repeat=2):
            if not scheme.fast or p + q + 2 <= scheme.slices + 1:
                total += sum(x * y for x, y in zip(a[p], b[q], strict=True)) * two(e[p] + f[q])
        found[i, j] = total
    return found


@pytest.mark.covering
@pytest.mark.parametrize("unit", COUNTS)
@pytest.mark.parametrize("exponents", ["grid", "adaptive"])
@pytest.mark.parametrize("rounding", ["nearest", "toward-zero"])
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", ["normal", "wide_rows", "ties", "zeros_rows_cols"])
def test_value_is_the_exact_sum_of_the_twins_products(unit, exponents, rounding, fast, name, seed):
    scheme = Slices(unit, slices=COUNTS[unit], exponents=exponents, rounding=rounding, fast=fast)
    left, right = operands(name, 3, 37, 4, seed)
    joined = product(scheme, left, right)
    expected = twin(scheme, left, right)
    for i, j in np.ndindex(expected.shape):
        high, low = Fraction(joined.high[i, j]), Fraction(joined.low[i, j])
        if abs(expected[i, j]) < two(-900):
            assert abs(high + low - expected[i, j]) <= Fraction(joined.floor)
            continue
        assert joined.high[i, j] == float(expected[i, j])  # Python divides integers to nearest even
        assert abs(high + low - expected[i, j]) <= abs(expected[i, j]) * two(-103)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("scheme", [s for s in ALL if s.exponents == "adaptive" and (s.slices or 0) > 2], ids=str)
def test_values_that_underflow_beside_their_vectors_are_rounded_once(scheme, dtype, rng):
    """Of rows with elements down to 2^-1074, and columns that are zero where these are large."""
    k, ends = 12, np.repeat([-1074, -1060, -1022, -960], 3)
    a = rng.integers(1, 200, (4, k)) * np.ldexp(1.0, -1074 + rng.integers(0, 120, (4, k)))
    a[0] = 2.0**-1074
    a[1] = 3 * 2.0 ** ends.astype(float)
    a[:, 0] = 0.75
    b = rng.integers(-8, 9, (k, 6)) * np.ldexp(1.0, -1074 + rng.integers(0, 60, (k, 6)))
    b[:, :3] = np.eye(k)[:, [1, 5, 9]] * [1.0, 2.0**300, 0.625]
    b[0] = 0.0
    b[1, 3:] = 2.0 ** np.array([0.0, 40.0, 1000.0])
    terms = 2 * k if dtype == "complex128" else k  # of the real product that is made
    left = scaled(np.pad(a, ((0, 0), (0, terms - k))), "left")
    right = scaled(np.pad(b, ((0, terms - k), (0, 0))), "right")
    expected = twin(scheme, left, right)
    got = prismm.matmul(a.astype(dtype), b.astype(dtype), scheme=scheme)
    small = 0
    for i, j in np.ndindex(expected.shape):
        value = expected[i, j] * two(int(left.exponent[i] + right.exponent[j]))
        small += 0 < abs(expected[i, j]) < two(-1022)
        assert got[i, j] == round_fraction(FP64, value.numerator, 1 - value.denominator.bit_length()), (i, j)
    assert small > 5


def choices(name, scheme):
    return {
        "name": name, "unit": scheme.unit, "exponents": scheme.exponents, "rounding": scheme.rounding,
        "fast": scheme.fast,
    }  # fmt: skip


@pytest.mark.covering(
    ("name", "unit"), ("name", "exponents"), ("name", "rounding"), ("name", "fast"),
    ("unit", "exponents", "rounding", "fast"), of=choices,
)  # fmt: skip
@pytest.mark.parametrize("name", sorted(HOSTILE))
@pytest.mark.parametrize("scheme", ALL, ids=str)
def test_bounds_hold_at_every_entry(name, scheme, seed):
    left, right = operands(name, 5, 64, 6, seed)
    magnitude = multiply(Dyadic.from_array(np.abs(left.data)), Dyadic.from_array(np.abs(right.data)))
    exact = exact_of(left, right)
    joined = product(scheme, left, right)
    gap = abs(Dyadic.from_array(joined.high) + Dyadic.from_array(joined.low) - exact)
    allowed = magnitude.times(Dyadic.from_array(np.full((1, 1), joined.gamma)))
    allowed = allowed + Dyadic.from_array(np.full((1, 1), joined.floor))
    for row, column in zip(joined.rows, joined.columns, strict=True):
        allowed = allowed + Dyadic.from_array(row[:, None]).times(Dyadic.from_array(column[None]))
    short = (allowed - gap).numerators < 0
    assert not short.any(), np.argwhere(short)[0]


def test_bound_is_no_more_than_a_small_multiple_of_the_error(rng):
    """Otherwise certificates fail for nothing: the worst entry's error is above 1/1000 of its bound."""
    for scheme in (Slices("int8", slices=4), Slices("int8", slices=4, fast=True), Slices("fp16", slices=3)):
        left, right = scaled(rng.standard_normal((30, 64)), "left"), scaled(rng.standard_normal((64, 30)), "right")
        joined = product(scheme, left, right)
        exact = exact_of(left, right)
        gap = abs(Dyadic.from_array(joined.high) - exact).rounded(FP64)
        bound = sum(np.outer(r, c) for r, c in zip(joined.rows, joined.columns, strict=True))
        assert 1e-3 < (gap / bound).max() <= 1


CR = [
    Slices(unit, "CR", exponents=exponents, rounding=rounding)
    for unit in UNITS
    for exponents in ("grid", "adaptive")
    for rounding in ("nearest", "toward-zero")
]


CR_CASES = [
    (name, scheme)
    for name in sorted(HOSTILE)
    for scheme in CR
    # Thousands of products; the units with longer slices show the same.
    if not (name.startswith(("wide", "subnormal", "one_huge")) and scheme.unit in ("fp16-fp16", "bf16"))
]


@pytest.mark.covering(("name", "exponents"), ("name", "rounding"), ("unit", "exponents", "rounding"), of=choices)
@pytest.mark.parametrize(("name", "scheme"), CR_CASES, ids=str)
def test_cr_is_the_correctly_rounded_product(name, scheme, seed):
    """high is RN of the exact product of the scaled operands, and so is high + low to float32, bit for bit."""
    left, right = operands(name, 6, 40, 5, seed)
    exact = exact_of(left, right)
    double, single = exact.rounded(FP64), exact.rounded(FP32)
    lowest = np.where(exact.numerators == 0, 0, exact.exponents)
    representable = lowest >= -1074
    joined = product(scheme, left, right)
    assert (joined.high == double)[representable].all()
    both = Dyadic.from_array(joined.high) + Dyadic.from_array(joined.low)
    assert (both.rounded(FP32) == single)[representable].all()
    assert not joined.columns[0].any() and not joined.rows[1].any()  # nothing is left over
    if representable.all():
        assert joined.floor == 0.0
    if joined.gamma == 0.0 and joined.floor == 0.0:
        assert not (both - exact).numerators.any()


@pytest.mark.slow
@pytest.mark.parametrize("unit", list(UNITS))
def test_grouping_blocks_workers_and_memory_change_no_bit(unit, seed):
    left, right = operands("phi2", 40, 150, 70, seed)
    bits = slice_bits(UNITS[unit], 150, "nearest")
    d = -(-40 // bits)
    for exponents, fast in itertools.product(("grid", "adaptive"), (False, True)):
        how = {"slices": d, "exponents": exponents, "fast": fast, "bits": bits}
        expected = product(Slices(unit, **how), left, right)
        for other in (
            Slices(unit, **how, group=False),
            Slices(unit, **how, k_block=64),
            Slices(unit, **how, k_block=7, group=False),
        ):
            same(product(other, left, right), expected)
        same(product(Slices(unit, **how), left, right, workers=1), expected)
        small = product(Slices(unit, **how), left, right, memory=1 << 20)
        same(small, expected)


def test_pieces_of_rows_change_no_bit(seed):
    left, right = operands("normal", 60, 40, 30, seed)
    for scheme in (Slices("int8", slices=3), Slices("fp16", slices=3, exponents="adaptive")):
        setting = setting_for(scheme)
        x, y = scheme.implementation("cpu").split(left, setting), scheme.implementation("cpu").split(right, setting)
        pairs = product_pairs(3, 3, None)
        how = {"group": True, "workers": 2}
        whole = multiply_slices(x, y, pairs, setting.engine, **how, workspace_bytes=1 << 30)
        pieces = multiply_slices(x, y, pairs, setting.engine, **how, workspace_bytes=30_000)
        same(pieces, whole)
        assert pieces.notes["engine calls"] > whole.notes["engine calls"]


def test_carries_are_taken_before_limbs_overflow(seed, monkeypatch):
    left, right = operands("phi1", 8, 30, 7, seed)
    scheme = Slices("fp16-fp16", slices=8)
    expected = product(scheme, left, right)
    calls = []
    carry = weigh.carry
    monkeypatch.setattr(weigh, "carry", lambda limbs: (calls.append(1), carry(limbs)))
    product(scheme, left, right)
    usual = len(calls)
    monkeypatch.setattr(slice_products, "_SPILL", 3)
    same(product(scheme, left, right), expected)
    assert len(calls) > 2 * usual
    # 2^15 products of 24 bits, shifted by 23, stay below 2^63; between carries there are at most _SPILL and a batch.
    limbs = np.zeros((1, 4, 1), np.int64)
    position = np.full(1 << 15, 23, np.int64)
    for value in (2.0**53 - 1, 1 - 2.0**53):
        limbs[:] = 0
        weigh.add_float64(np.full(1 << 15, value), 1, 1, position, limbs)
        assert sum(int(x) << (24 * i) for i, x in enumerate(limbs[0, :, 0])) == int(value) << 38


@pytest.mark.covering("unit")
@pytest.mark.parametrize("unit", list(UNITS))
@pytest.mark.parametrize("exponents", ["grid", "adaptive"])
def test_every_engine_gives_the_same_bits(unit, exponents, seed):
    left, right = operands("phi1", 9, 70, 8, seed)
    scheme = Slices(unit, slices=3, exponents=exponents)
    expected = product(scheme, left, right, engine="cpu:float64")
    served = 0
    for engine in (None, "cpu", "cpu:blas", "cpu:int8", *names()):
        if engine == "cpu:int8" and not available()[engine][0]:
            continue
        try:
            joined = product(scheme, left, right, engine=engine)
        except (ArgumentError, EngineError):
            continue
        same(joined, expected)
        served += 1
    assert served >= {"int8": 2, "fp64": 3}.get(unit, 4)


def test_the_int8_unit_is_taken_wherever_it_is_exact_and_fast():
    """Whatever is fastest for Residues; a plain loop, which torch has on some CPUs, is exact and slower than FP64."""
    expected = "cpu:int8" if available()["cpu:int8"][0] and torch_int8.is_fast() else "cpu:float64"
    assert {Slices("int8").implementation("cpu").engine_for(name).name for name in (None, "cpu")} == {expected}


def test_they_print_what_is_not_usual():
    for scheme in (Slices(), Slices("int8", "CR"), Slices("fp64", slices=3, fast=True, k_block=32, group=False)):
        assert eval(repr(scheme), {"Slices": Slices}) == scheme
    assert str(Slices("int8", slices=7)) == "Slices(unit='int8', mode='DP', slices=7)"


def test_simulated_engines_that_keep_the_units_bits_are_taken_and_others_refused(rng):
    left, right = scaled(rng.uniform(0.5, 1, (4, 64)), "left"), scaled(rng.uniform(0.5, 1, (64, 4)), "right")
    for name in ("simulated:volta", "simulated:ampere", "simulated:hopper"):
        same(product(Slices("fp16", "CR"), left, right, engine=name), product(Slices("fp16", "CR"), left, right))

    class Short:
        """Keeps 10 bits of each sum."""

        name = "short"

        def multiply(self, left, right, inputs, accumulate, workers):
            exact = left.astype(np.float64) @ right.astype(np.float64)
            fraction, e = np.frexp(exact)
            return np.ldexp(np.rint(fraction * 1024), e - 10)

    from prismm.cpu.slices.engines import SliceEngine

    with pytest.raises(EngineError, match="pass a smaller bits="):
        prove(SliceEngine("short", "float32", Short()), UNITS["fp16"], 8, 64, "nearest")


def test_engines_that_have_no_such_unit_are_refused():
    with pytest.raises(ArgumentError, match="has no unit 'fp16'"):
        Slices("fp16").implementation("cpu").engine_for("cpu:int8")
    with pytest.raises(ArgumentError, match="has no unit 'int8'"):
        Slices("int8").implementation("cpu").engine_for("cpu:blas")
    with pytest.raises(EngineError, match="multiplies no INT8 with sums in INT32; it has fp16 -> fp32"):
        Slices("int8").implementation("cpu").engine_for("simulated:volta")
    with pytest.raises(EngineError, match="bf16"):
        Slices("bf16").implementation("cpu").engine_for("simulated:volta")
    with pytest.raises(ArgumentError, match="unknown engine 'nonsense'; pass 'cpu' or one of"):
        Slices("fp16").implementation("cpu").engine_for("nonsense")


@pytest.mark.parametrize("exponents", ["grid", "adaptive"])
@pytest.mark.parametrize("unit", ["int8", "fp16"])
def test_empty_slices_are_skipped_and_sparse_ones_compressed(unit, exponents, rng):
    a = rng.integers(-100, 101, (30, 50)).astype(float)
    a[::3] *= 1 + 2.0**-40  # a third of the rows have bits far down
    b = rng.integers(-100, 101, (50, 20)).astype(float)
    b[:, ::4] += 2.0**-30
    left, right = scaled(a, "left"), scaled(b, "right")
    joined = product(Slices(unit, "CR", exponents=exponents), left, right)
    assert joined.notes["compressed products"] > 0
    if exponents == "grid":
        assert joined.notes["skipped products"] > 0
    d = joined.notes["most slices"]
    assert joined.products + joined.notes.get("skipped products", 0) <= d * d
    exact = exact_of(left, right)
    np.testing.assert_array_equal(joined.high, exact.rounded(FP64))
    # Beside rows and columns that fill every slice nothing is skipped, and the bits are the same.
    full = rng.uniform(0.5, 1, (200, 50)), rng.uniform(0.5, 1, (50, 200))
    more = product(
        Slices(unit, "CR", exponents=exponents),
        scaled(np.concatenate([left.data, full[0]]), "left"),
        scaled(np.concatenate([right.data, full[1]], axis=1), "right"),
    )
    np.testing.assert_array_equal(more.high[:30, :20], joined.high)
    np.testing.assert_array_equal(more.low[:30, :20], joined.low)


@pytest.mark.parametrize("scheme", [s for s in ALL if s.unit in ("fp16", "int8")], ids=str)
def test_an_entry_depends_on_its_row_and_column_alone(scheme, rng):
    assert scheme.reproducible
    a, b = HOSTILE["phi2"](20, 60, 30, 5)
    b[:, 3] = np.ldexp(b[:, 3], rng.integers(-200, 200, 60))
    whole = product(scheme, scaled(a, "left"), scaled(b, "right"))
    order = rng.permutation(60)
    turned = product(scheme, scaled(a[:, order], "left"), scaled(b[order], "right"))
    same(turned, whole)
    for name in ("rows", "columns", "gamma", "floor"):
        np.testing.assert_array_equal(getattr(turned, name), getattr(whole, name))
    some = product(scheme, scaled(a[3:5], "left"), scaled(b[:, 2:4], "right"))
    np.testing.assert_array_equal(some.high, whole.high[3:5, 2:4])
    np.testing.assert_array_equal(some.low, whole.low[3:5, 2:4])


def published(phi, k, rng, m=96):
    def draw(shape):
        return (rng.random(shape) - 0.5) * np.exp(phi * rng.standard_normal(shape))

    return scaled(draw((m, k)), "left"), scaled(draw((k, m)), "right")


@pytest.mark.parametrize("exponents", ["adaptive", pytest.param("grid", marks=pytest.mark.slow)])
def test_algorithm_3_gives_the_published_count(exponents, rng):
    """d = 11 and 66 products at k = 7168, φ = 0.1, with the 5 bits a slice that the paper's ρ leaves at this k."""
    scheme = Slices("fp16", "DP", exponents=exponents, rounding="toward-zero", fast=True, k_block=7168)
    assert scheme.layout(7168).bits == 5
    left, right = published(0.1, 7168, rng)
    joined = product(scheme, left, right)
    assert joined.notes["most slices"] == 11
    assert joined.products == 66
    assert not scheme.reproducible


def test_algorithm_3_takes_the_literal_algorithm_1s_count(rng):
    """Algorithm 1 as printed (σ = 2^(ρ+τ), ρ = ⌈53 - (24 - log2 k)/2⌉) needs the same 11 slices."""
    k = 7168
    left, right = published(0.1, k, rng)
    rho = int(np.ceil(53 - (24 - np.log2(k)) / 2))
    x, weights = left.data.copy(), np.abs(right.data).sum(axis=1)
    whole = np.abs(x) @ weights
    d, share = 0, np.inf
    while share > np.sqrt(k) * 2.0**-53:
        d += 1
        tau = np.ceil(np.log2(np.abs(x).max(axis=1))).astype(int)
        sigma = np.ldexp(1.0, rho + tau)[:, None]
        t = (x + sigma) - sigma
        x = x - t
        share = (np.abs(t) @ weights / whole).max()
    assert d == 11


@pytest.mark.covering("phi")
@pytest.mark.parametrize("mode", ["DP", "SP"])
@pytest.mark.parametrize("phi", [0.1, 1.0, 2.0])
def test_estimated_modes_reach_their_grade(mode, phi, rng):
    """Sums over rows and columns of |A||B|, which Algorithm 3 asks, are met to 4u; single entries to k·u.

    The algorithm weighs a slice by whole rows and columns. In wide data and fast mode an entry whose own terms are few
    can therefore err more: with φ = 2, up to 43u in 16,000 entries of 400 draws, where rows and columns stay below u.
    """
    for unit, fast in itertools.product(("fp16", "int8", "fp64"), (False, True)):
        left, right = published(phi, 256, rng, 40)
        joined = product(Slices(unit, mode, fast=fast), left, right)
        exact = exact_of(left, right)
        gap = abs(Dyadic.from_array(joined.high) - exact).rounded(FP64)
        size = np.abs(left.data) @ np.abs(right.data)
        u = 2.0**-53 if mode == "DP" else 2.0**-24
        for axis in (0, 1):
            assert (gap.sum(axis) / size.sum(axis)).max() <= 4 * u, (unit, fast, axis)
        assert (gap / size).max() <= (16 if phi < 2 or not fast else 256) * u + 2.0**-53, (unit, fast)


def test_fast_mode_is_off_where_a_split_ends_first(rng):
    integers = scaled(rng.integers(-5, 6, (20, 30)), "left"), scaled(rng.standard_normal((30, 20)), "right")
    joined = product(Slices("fp16", fast=True), *integers)
    exact = exact_of(*integers)
    assert np.abs(joined.high - exact.rounded(FP64)).max() <= 2.0**-50
    assert joined.products >= joined.notes["most slices"]  # the integers' one slice meets all of the other side
    both = scaled(rng.integers(-500, 501, (20, 30)), "left"), scaled(rng.integers(-500, 501, (30, 20)), "right")
    assert not (Dyadic.from_array(product(Slices("bf16", fast=True), *both).high) - exact_of(*both)).numerators.any()


def test_algorithm_3_cuts_deeper_where_weights_are_far_apart():
    """The columns of b that meet small elements of a are large, so that more slices are needed than even data take."""
    a, b = HOSTILE["graded"](10, 64, 10, 3)
    left, right = scaled(a, "left"), scaled(b, "right")
    scheme = Slices("fp16")
    joined = product(scheme, left, right)
    assert joined.notes["most slices"] > expected_slices(scheme.layout(64).bits, 64, 53) + 1


@pytest.mark.parametrize("unit", list(UNITS))
@pytest.mark.parametrize("rounding", ["nearest", "toward-zero"])
def test_bits_and_blocks_are_the_most_that_multiply_exactly(unit, rounding):
    u = UNITS[unit]
    for k in (1, 2, 7, 64, 1000, 1024, 2048):
        bits = slice_bits(u, k, rounding)
        largest = 2 ** (bits - 1) if rounding == "nearest" else 2**bits - 1
        assert k * largest**2 <= u.sum_limit and largest <= u.digit_limit
        assert bits == 26 or not u.holds(bits + 1, k, rounding)
        assert longest_block(u, bits, rounding) >= k
        assert not u.holds(bits, longest_block(u, bits, rounding) + 1, rounding)
        block = choose_block(u, k, rounding)
        assert 1 <= block <= k
    assert slice_bits(u, 1, rounding) == {
        ("fp16", "nearest"): 12, ("fp16", "toward-zero"): 11, ("int8", "nearest"): 8, ("int8", "toward-zero"): 7,
        ("fp64", "nearest"): 26, ("fp64", "toward-zero"): 26, ("fp16-fp16", "nearest"): 6,
        ("fp16-fp16", "toward-zero"): 5, ("bf16", "nearest"): 9, ("bf16", "toward-zero"): 8,
        ("fp32-fp64", "nearest"): 25, ("fp32-fp64", "toward-zero"): 24,
    }[unit, rounding]  # fmt: skip


def test_extreme_digits_sum_exactly_on_their_engines():
    """The longest block of largest digits, where one more term would not fit."""
    for name, unit in UNITS.items():
        engine = Slices(name).implementation("cpu").engine_for(None)
        for rounding in ("nearest", "toward-zero"):
            bits = slice_bits(unit, 64, rounding)
            block = min(longest_block(unit, bits, rounding), 1 << 14)
            prove(engine, unit, bits, block, rounding)


@pytest.mark.covering("unit")
@pytest.mark.parametrize("unit", list(UNITS))
@pytest.mark.parametrize("exponents", ["grid", "adaptive"])
@pytest.mark.parametrize("rounding", ["nearest", "toward-zero"])
@pytest.mark.parametrize("group", [False, True])
def test_largest_digits_at_the_longest_block_lose_nothing(unit, exponents, rounding, group):
    """Every sum is as large as it may be, and so is every sum of sums that are made together."""
    u = UNITS[unit]
    for bits in {slice_bits(u, 64, rounding), slice_bits(u, 500, rounding), slice_bits(u, 1500, rounding)}:
        block = longest_block(u, bits, rounding)
        if block > 1 << 14:
            continue
        k = 2 * block + 3
        # All ones when truncated; rounded, the largest first digit, and in every other place the lowest one.
        ones = 1 - 2.0**-53
        values = {
            "toward-zero": (ones, -ones),
            "nearest": (ones, 0.5 + sum(2.0 ** (-bits * p - 1) for p in range(1, 53 // bits))),
        }[rounding]
        for x in values:
            left, right = scaled(np.full((1, k), x), "left"), scaled(np.full((k, 2), ones), "right")
            exact = exact_of(left, right).rounded(FP64)
            scheme = Slices(unit, "CR", exponents=exponents, rounding=rounding, bits=bits, group=group)
            np.testing.assert_array_equal(product(scheme, left, right).high, exact)


def test_table_of_units_answers_what_better_hardware_would_save():
    table = {row["unit"]: row for row in slices_table(7168, block=False, rounding="toward-zero")}
    assert (table["fp16"]["slices"], table["fp16"]["fast"], table["fp16"]["products"]) == (11, 66, 121)
    assert table["fp16-fp16"]["slices"] == 0  # 7168 terms exceed 2^11: not without blocks
    assert table["fp32-fp64"]["fast"] < table["int8"]["fast"] < table["fp16"]["fast"]
    assert table["bf16"]["fast"] == table["fp16"]["fast"]  # at this k the sums, not the inputs, limit both
    blocked = {row["unit"]: row for row in slices_table(7168)}
    for name, row in blocked.items():
        assert UNITS[name].holds(row["bits"], row["k_block"], "nearest")
        assert row["fast"] <= (table[name]["fast"] or 10**9)
    assert blocked["bf16"]["fast"] >= blocked["fp16"]["fast"] < blocked["fp16-fp16"]["fast"]
    with pytest.raises(ArgumentError, match="pass k >= 1"):
        slices_table(0)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"unit": "fp8"}, "pass one of 'fp16'"), ({"mode": "QP"}, "'CR'"), ({"exponents": 3}, "'grid'"),
        ({"rounding": "up"}, "'toward-zero'"), ({"fast": 1}, "False, True"), ({"group": None}, "False, True"),
        ({"slices": 0}, "integer from 1"), ({"slices": True}, "integer from 1"), ({"k_block": 1.5}, "or None"),
        ({"bits": 30}, "from 1 to 26"), ({"mode": "CR", "slices": 3}, "leave slices out"),
        ({"mode": "CR", "fast": True}, "leave fast out"), ({"unit": "int8", "bits": 9}, "at most bits=8"),
    ],
)  # fmt: skip
def test_refused_arguments_name_what_to_pass(arguments, match):
    with pytest.raises(ArgumentError, match=match):
        Slices(**arguments)


def test_blocks_that_do_not_fit_are_refused_before_any_work():
    with pytest.raises(ArgumentError, match="pass k_block=1024 or less"):
        Slices("fp16", bits=8, k_block=4096).check(5000, FP64)
    with pytest.raises(ArgumentError, match="pass k_block=2048 or less"):
        Slices("fp16-fp16", k_block=10**6).check(5000, FP64)
    Slices("fp16", bits=8, k_block=4096).check(1000, FP64)


def test_is_a_composite_scheme_whose_plan_is_what_happens(seed):
    left, right = operands("normal", 30, 200, 30, seed)
    for scheme in ALL[:8]:
        assert isinstance(scheme.implementation("cpu"), Composite)
        assert product(scheme, left, right).products == scheme.products_for(200, FP64)
        assert scheme.workspace(60, 30, 200, FP64) > scheme.workspace(30, 30, 200, FP64) > 0
    assert Slices("int8") == Slices("int8") and hash(Slices("int8")) == hash(Slices("int8"))
    assert Slices(mode="CR").reproducible and Slices(mode="CR").rounds_correctly
    assert not Slices().reproducible


def test_empty_products_are_zeros():
    for m, k, n in ((0, 3, 2), (2, 0, 3), (2, 3, 0)):
        left = Scaled("left", np.zeros((m, k)), np.zeros(m, np.int64), np.zeros(m, np.bool_))
        right = Scaled("right", np.zeros((k, n)), np.zeros(n, np.int64), np.zeros(n, np.bool_))
        for scheme in (Slices(), Slices("int8", slices=2), Slices("fp16", "CR", exponents="adaptive")):
            joined = product(scheme, left, right)
            assert joined.high.shape == (m, n) and not joined.high.any()


def test_exact_product_of_the_package_agrees(rng):
    """The reference in scaled units is that of the given operands."""
    a, b = rng.standard_normal((5, 30)), rng.standard_normal((30, 5))
    left, right = scaled(a, "left"), scaled(b, "right")
    joined = product(Slices("fp16", "CR"), left, right)
    back = np.ldexp(joined.high, left.exponent[:, None] + right.exponent)
    np.testing.assert_array_equal(back, exact_product(a, b).rounded(np.float64))
