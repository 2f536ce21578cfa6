"""ScaledHalf: the split over every FP16 and BF16 value, the value against a twin, the bound against exact products."""

import doctest
from fractions import Fraction

import numpy as np
import pytest

import prismm
import prismm.schemes.scaled_half
from prismm.core.composite import Composite, Scaled, Setting
from prismm.cpu.engines.floats import Accumulation, engine_for
from prismm.errors import ArgumentError, EngineError
from prismm.formats import BF16, FP16, FP32, FP64
from prismm.metrics import relative_frobenius
from prismm.numerics import specification
from prismm.schemes.scaled_half import ScaledHalf
from prismm.testing import HOSTILE, exact_gemm, exact_product
from tests.judge import (
    assert_bounds_hold,
    assert_meets,
    assert_overflow_is_right,
    assert_same_bits,
    entry_terms,
    magnitudes,
)


def scaled(x, side):
    """As the flow hands operands over."""
    x = np.asarray(x, np.float64)
    axis = 1 if side == "left" else 0
    exponent = np.frexp(np.abs(x).max(axis=axis, initial=0.0))[1].astype(np.int64)
    data = np.ldexp(x, -(exponent[:, None] if side == "left" else exponent[None, :]))
    return Scaled(side, np.ascontiguousarray(data), exponent, np.zeros(exponent.size, bool))


def setting(scheme, engine=None):
    return Setting(FP32, 2, 1 << 30, scheme.implementation("cpu").engine_for(engine))


def words_of(scheme, x, side="left"):
    return scheme.implementation("cpu").split(scaled(x, side), setting(scheme))


def multiply(scheme, a, b, engine=None):
    """Operands and joined value in the scaled units."""
    left, right = scaled(a, "left"), scaled(b, "right")
    how = setting(scheme, engine)
    return (
        left.data,
        right.data,
        scheme.implementation("cpu").multiply(
            scheme.implementation("cpu").split(left, how), scheme.implementation("cpu").split(right, how), how
        ),
    )


def finite_values(fmt):
    """Every finite value of a 16-bit format."""
    bits = np.arange(1 << 16, dtype=np.uint32)
    x = bits.astype(np.uint16).view(np.float16) if fmt is FP16 else (bits << 16).view(np.float32)
    return x[np.isfinite(x)].astype(np.float64)


def half(y, rounding):
    """y rounded to FP16 by NumPy; toward zero by a step back where that went too far."""
    with np.errstate(over="ignore"):
        h = y.astype(np.float16)
        if rounding == "zero":
            h = np.where(np.abs(h.astype(float)) > np.abs(y), np.nextafter(h, np.float16(0)), h)
    return h.astype(np.float64)


@pytest.mark.parametrize("rounding", ["nearest", "zero"])
@pytest.mark.parametrize("sb", [-16, 0, 6, 12, 13, 20, 40])
@pytest.mark.parametrize("values", ["fp16", "bf16", "float32", "float64"])
def test_the_split_is_two_roundings(values, sb, rounding, rng):
    if values in ("fp16", "bf16"):
        x = finite_values(FP16 if values == "fp16" else BF16)[None, :]
    else:
        x = np.ldexp(rng.uniform(-1, 1, (4, 4000)).astype(values).astype(float), rng.integers(-80, 20, (4, 4000)))
    scheme = ScaledHalf(sb=sb, rounding=rounding)
    words = words_of(scheme, x)
    y = np.ldexp(scaled(x, "left").data, words.shift[:, None])
    high = half(y, rounding)
    low = half(np.ldexp(y - high, sb), rounding)
    np.testing.assert_array_equal(words.high, high)
    np.testing.assert_array_equal(words.low, low)
    assert np.abs(words.high).max() <= 2.0**15 and np.abs(words.low).max() < 2.0**16
    turned = words_of(scheme, x.T, "right")
    assert_same_bits(turned.high.T + 0.0, words.high + 0.0)
    assert_same_bits(turned.low.T + 0.0, words.low + 0.0)
    # sum of parts: what is left is within half (all) of the low word's last place
    left_out = np.abs(y - high - np.ldexp(low, -sb))
    place = np.maximum(np.ldexp(1.0, np.frexp(low)[1] - 11), 2.0**-24) * (0.5 if rounding == "nearest" else 1.0)
    assert (left_out <= np.ldexp(place, -sb)).all()
    # idempotent: a high word is its own high word
    again = words_of(ScaledHalf(sb=sb, rounding=rounding, scale=False), words.high)
    np.testing.assert_array_equal(again.high, words.high)
    assert not again.low.any() and not again.residual.any()


@pytest.mark.parametrize("scheme", [ScaledHalf(), ScaledHalf(sb=0), ScaledHalf(scale=False)], ids=str)
def test_every_fp16_value_is_kept_exactly(scheme):
    x = finite_values(FP16)
    for operand in (x[:, None], x[None, :]):
        words = words_of(scheme, operand)
        whole = words.high.astype(float) + np.ldexp(words.low.astype(float), -scheme.sb)
        if scheme.sb == 0 and operand.shape[0] == 1:
            continue  # 2^-25 needs the amplification
        np.testing.assert_array_equal(np.ldexp(whole, -words.shift[:, None]), scaled(operand, "left").data)
        assert not words.residual.any()


@pytest.mark.parametrize("scheme", [ScaledHalf(), ScaledHalf(sb=3), ScaledHalf(sb=12, rounding="zero")], ids=str)
@pytest.mark.parametrize("side", ["left", "right"])
def test_norms_are_upper_bounds_and_tight(scheme, side, rng):
    x = np.ldexp(rng.standard_normal((3, 50)), -rng.integers(0, 60, (3, 50)))
    x[1] = np.ldexp(rng.standard_normal(50), -rng.integers(0, 700, 50))
    x[2] = 0.0
    words = words_of(scheme, x if side == "left" else x.T, side)
    data = scaled(x, "left").data
    high, low = (w if side == "left" else w.T for w in (words.high, words.low))
    for i in range(3):
        unit = Fraction(2) ** int(words.shift[i])
        h = [Fraction(float(v)) / unit for v in high[i]]
        w = [Fraction(float(v)) / unit / 2**scheme.sb for v in low[i]]
        d = [Fraction(float(v)) - p - q for v, p, q in zip(data[i], h, w, strict=True)]
        for norm, parts in ((words.high_norm[i], h), (words.low_norm[i], w), (words.residual[i], d)):
            square = sum(v * v for v in parts)
            assert square <= Fraction(float(norm)) ** 2 <= square * Fraction(1000001, 1000000) + Fraction(1, 2**700)


def twin(scheme, a, b, engine):
    """The value of one entry, from the words, the engine's specification, and sums in the stated order."""
    left, right = words_of(scheme, a), words_of(scheme, b, "right")
    model = engine_for(engine).model(FP16, FP32)
    k, chunk = a.shape[1], scheme.chunk_for(a.shape[1])
    value = np.zeros((a.shape[0], b.shape[1]))
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            sums = []
            for h in range(0, k, chunk):
                high, low = ((w[i, h : h + chunk].tolist()) for w in (left.high, left.low))
                high2, low2 = ((w[h : h + chunk, j].tolist()) for w in (right.high, right.low))
                pairs = ((high, high2), (high, low2), (low, high2))
                sums.append([specification.dot(model, x, y) for x, y in pairs])
            down = 2.0**-scheme.sb
            if scheme.order == "term":
                small = big = 0.0
                for hh, hl, lh in sums:
                    small = (small + hl) + lh
                    big += hh
                value[i, j] = small * down + big
            else:
                total = np.float32(0)
                for hh, hl, lh in sums:
                    for term in (hh, hl * down, lh * down):
                        total = np.float32(total + np.float32(term))
                value[i, j] = total
    return np.ldexp(value, -left.shift[:, None] - right.shift[None, :])


@pytest.mark.covering("scheme")
@pytest.mark.parametrize("name", ["normal", "cancelling", "zeros_rows_cols", "carries"])
@pytest.mark.parametrize("engine", ["simulated:volta", "simulated:hopper", "simulated:rn"])
@pytest.mark.parametrize(
    "scheme",
    [
        ScaledHalf(),
        ScaledHalf(order="element", chunk=16),
        ScaledHalf(sb=5, chunk=None, rounding="zero"),
        ScaledHalf(order="element", chunk=7, sb=-3, scale=False),
        ScaledHalf(scale=False, chunk=9),
    ],
    ids=str,
)
def test_the_value_is_the_twins(scheme, engine, name, rng):
    a, b = HOSTILE[name](3, 70, 4, rng, np.float32)
    _, _, joined = multiply(scheme, a, b, engine)
    assert_same_bits(joined.high, twin(scheme, a, b, engine), name)
    assert joined.low is None and joined.products == 3


SCHEMES = [
    ScaledHalf(),
    ScaledHalf(order="element", chunk=32),
    ScaledHalf(sb=0),
    ScaledHalf(sb=6, chunk=None, rounding="zero"),
    ScaledHalf(sb=20, chunk=5),
    ScaledHalf(sb=-16),
    ScaledHalf(sb=40, order="element"),
    ScaledHalf(scale=False, chunk=16),
]


def assert_within_bound(a, b, joined, note):
    """|high - exact| <= gamma·(|a||b|) + Σ rows·columns + floor, with everything on the right rounded down."""
    exact = exact_product(a, b)
    with np.errstate(over="ignore"):
        outer = (joined.rows[:, :, None] * joined.columns[:, None, :]).sum(axis=0)
        bound = (joined.gamma * exact.magnitude("down") + outer) * (1 - 2.0**-40) + joined.floor
    held = exact.within(joined.high, bound)
    assert held.all(), f"{note}: {int((~held).sum())} bounds do not hold, first at {np.argwhere(~held)[0]}"


@pytest.mark.covering("name", ("scheme", "engine"))
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("engine", [None, "simulated:volta", "simulated:ampere", "simulated:rz"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_the_bound_holds_on_hostile_operands(scheme, engine, name, seed):
    for dtype in (np.float32, np.float64):
        a, b = HOSTILE[name](6, 40, 5, seed, dtype)
        a, b, joined = multiply(ScaledHalf() if not fits(scheme, a, b) else scheme, a, b, engine)
        assert_within_bound(a, b, joined, dtype)


def fits(scheme, a, b):
    """Operands that FP16 words hold as they are, or a scheme that scales."""
    largest = max(float(np.abs(x).max(initial=0)) for x in (a, b))
    return scheme.scale or largest < 2.0**14


class ExactEngine:
    """Adds without error, so that a bound can only be met by the terms of the split."""

    name = "exact"

    def accumulation(self, k, inputs, accumulate, largest):
        return Accumulation(0.0, 0.0)

    def multiply(self, left, right, inputs, accumulate, workers):
        assert left.shape[1] == 1
        return left.astype(float) @ right.astype(float)


def draw_bits(rng, shape, bits):
    """Numbers in [1, 2) of so many significant bits, the last of them set."""
    whole = rng.integers(1 << (bits - 2), 1 << (bits - 1), shape) * 2 + 1
    return whole * 2.0 ** (1 - bits)


@pytest.mark.parametrize("k", [1, 30])
@pytest.mark.parametrize(("left", "right"), [(24, 11), (11, 24), (24, 24), (20, 20), (24, 20), (53, 3), (3, 53)])
def test_what_the_split_leaves_out_is_bounded_and_hardly_overrated(left, right, k, rng):
    """20 bits are two words exactly: then low·low is all that is missing; 24 and 53 bits leave residuals too."""
    scheme = ScaledHalf(chunk=1)
    how = Setting(FP32, 2, 1 << 30, ExactEngine())
    a, b = scaled(draw_bits(rng, (40, k), left), "left"), scaled(draw_bits(rng, (k, 40), right), "right")
    joined = scheme.implementation("cpu").multiply(
        scheme.implementation("cpu").split(a, how), scheme.implementation("cpu").split(b, how), how
    )
    assert joined.gamma < 2.0**-45
    assert_within_bound(a.data, b.data, joined, (left, right))
    bound = joined.rows.T @ joined.columns
    share = exact_product(a.data, b.data).error(joined.high) / bound
    assert share.max() > (0.5 if k == 1 else 0.05)


@pytest.mark.parametrize("shape", [(3, 0, 2), (0, 5, 4), (2, 1, 0), (1, 1, 1)])
def test_empty_products(shape):
    m, k, n = shape
    for scheme in SCHEMES:
        _, _, joined = multiply(scheme, np.ones((m, k)), np.ones((k, n)))
        np.testing.assert_array_equal(joined.high, np.full((m, n), 0.25 * k))
        assert joined.rows.shape[1] == m and joined.columns.shape[1] == n


def test_low_words_that_are_all_zero_cost_no_product(rng):
    a, b = rng.integers(-8, 9, (5, 9)).astype(float), rng.standard_normal((9, 4)).astype(np.float32)
    assert multiply(ScaledHalf(), a, a.T)[2].products == 1
    x, y, joined = multiply(ScaledHalf(), a, b)
    assert joined.products == 2
    assert_within_bound(x, y, joined, "")


def test_the_bound_sees_the_span_of_a_row():
    """Elements of a row down to 2^-29 of its largest keep 22 bits, smaller ones fewer, and the bound says so."""
    near, far = np.array([[1.0, 1 / 3 * 2.0**-27]]), np.array([[1.0, 1 / 3 * 2.0**-45]])
    right = np.array([[0.0], [1.0]])
    for a, bits in ((near, 21), (far, 1)):
        x, y, joined = multiply(ScaledHalf(), a, right)
        size = (abs(x) @ abs(y))[0, 0]
        bound = joined.gamma * size + (joined.rows.T @ joined.columns)[0, 0] + joined.floor
        error = abs(joined.high[0, 0] - (x @ y)[0, 0])
        assert error <= bound
        if bits == 21:
            assert error <= 2.0**-21 * size
        else:
            assert bound > 0.01 * size


def draw(rng, shape, symmetric, offset=0):
    x = rng.random(shape, dtype=np.float32)
    return ((2 * x - 1) if symmetric else x) * np.float32(2.0**offset)


@pytest.mark.covering("k")
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("k", [32, 100, 256, 1024, 4096, pytest.param(16384, marks=pytest.mark.slow)])
def test_no_worse_than_native_on_the_papers_inputs(k, symmetric, rng):
    errors = []
    for offset in (0, -13, 9):
        a, b = draw(rng, (40, k), symmetric, offset), draw(rng, (k, 40), symmetric)
        _, _, joined = multiply(ScaledHalf(), a, b)
        value = np.ldexp(joined.high, scaled(a, "left").exponent[:, None] + scaled(b, "right").exponent[None, :])
        exact = a.astype(float) @ b.astype(float)  # 2^-29 of a float32 ulp
        errors.append((relative_frobenius(value.astype(np.float32), exact), relative_frobenius(a @ b, exact)))
    ours, native = np.mean(errors, axis=0)
    assert ours <= native


def test_unscaled_words_show_the_papers_figure_8(rng):
    """Without scaling, small inputs lose their low words unless these are amplified."""
    a, b = draw(rng, (30, 256), True, -9), draw(rng, (256, 30), True, -9)
    exact = a.astype(float) @ b.astype(float)
    errors = {}
    for sb in (0, 6, 12):
        _, _, joined = multiply(ScaledHalf(sb=sb, scale=False), a, b)
        value = np.ldexp(joined.high, scaled(a, "left").exponent[:, None] + scaled(b, "right").exponent[None, :])
        errors[sb] = relative_frobenius(value, exact)
    assert errors[12] * 30 < errors[0] and errors[12] * 2 < errors[6] < errors[0]


def test_words_beyond_fp16_are_an_error_that_names_the_remedy():
    one = np.ones((1, 1))
    assert multiply(ScaledHalf(sb=11, scale=False), one * 32784.0, one)[2].high[0, 0] == 32784.0 / 2**17
    for sb, x in ((12, 32784.0), (12, 65520.0), (0, 65520.0), (12, 2.0**20), (13, 16392.0)):
        with pytest.raises(ArgumentError, match=r"exponent .*scale=True"):
            words_of(ScaledHalf(sb=sb, scale=False), one * x)
        with pytest.raises(ArgumentError, match="65504"):
            words_of(ScaledHalf(sb=sb, scale=False), one * -x, "right")


@pytest.mark.parametrize("sb", [41, -17, 12.0, True, "12"])
def test_the_range_of_sb_is_explained(sb):
    with pytest.raises(ArgumentError, match=r"-2 - e_min <= sb <= 26 - e_max(.|\n)*Eq. 6 has 27"):
        ScaledHalf(sb=sb)


@pytest.mark.parametrize("wrong", [{"order": "row"}, {"chunk": 0}, {"chunk": 2.0}, {"rounding": "up"}, {"scale": 1}])
def test_other_parameters_are_refused(wrong):
    with pytest.raises(ArgumentError, match=f"ScaledHalf.{next(iter(wrong))}="):
        ScaledHalf(**wrong)


def test_engines():
    assert ScaledHalf().implementation("cpu").engine_for(None).name == "cpu:blas"
    assert ScaledHalf().implementation("cpu").engine_for("simulated:ampere").name == "simulated:ampere"
    for name in ("simulated:fp16", "simulated:volta-fp16"):
        with pytest.raises(EngineError, match="engine='cpu'"):
            ScaledHalf().implementation("cpu").engine_for(name)
    with pytest.raises(ArgumentError, match="'simulated:volta'"):
        ScaledHalf().implementation("cpu").engine_for("cpu:int8")


def test_it_is_a_composite_scheme():
    scheme = ScaledHalf()
    assert isinstance(scheme.implementation("cpu"), Composite) and not scheme.reproducible and scheme.granule == (1, 1)
    assert scheme.products_for(100, FP64) == 3 and scheme.workspace(10, 20, 30, FP32) > 0
    assert scheme.check(1000, FP32) is None
    assert [scheme.chunk_for(k) for k in (1, 32, 64, 100, 1024, 5000)] == [16, 16, 16, 32, 256, 256]
    assert ScaledHalf(chunk=None).chunk_for(77) == 77 and ScaledHalf(order="element").chunk_for(100) == 100
    assert words_of(scheme, np.ones((2, 3))).nbytes == 2 * 24 + 4 * 16


def test_it_prints_what_is_not_the_default():
    assert repr(ScaledHalf()) == "ScaledHalf(sb=12)"
    scheme = ScaledHalf(sb=0, order="element", chunk=None, rounding="zero", scale=False)
    assert eval(repr(scheme)) == scheme


def test_examples():
    assert doctest.testmod(prismm.schemes.scaled_half).failed == 0


TARGETS = [None, "fast", "native", 1e-5, 1e-12, "correctly-rounded"]


@pytest.mark.covering("name", ("target", "dtype"))
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
def test_every_target_through_matmul(dtype, target, name, seed):
    a, b = HOSTILE[name](7, 30, 6, seed, dtype)
    exact, magnitude = exact_product(a, b), magnitudes(a, b)
    for scheme, engine in ((ScaledHalf(), None), (ScaledHalf(order="element"), "simulated:ampere")):
        c, report = prismm.matmul(a, b, scheme=scheme, accuracy=target, engine=engine, full_output=True)
        note = f"{scheme} {engine}"
        assert report.engine == (engine or "cpu:blas")
        assert_overflow_is_right(exact, c, note)
        assert_bounds_hold(exact, c, report, note)
        if target not in (None, "fast"):
            assert_meets(target, exact, magnitude, c, entry_terms(a, c), note)


@pytest.mark.parametrize("target", [None, "native", "correctly-rounded"])
@pytest.mark.parametrize("engine", [None, "simulated:volta"])
def test_operands_as_they_are_meet_their_targets_too(engine, target, seed):
    scheme, tried = ScaledHalf(scale=False, chunk=20), 0
    for name in HOSTILE:
        a, b = HOSTILE[name](7, 30, 6, seed, np.float32)
        if not fits(scheme, a, b):
            continue
        tried += 1
        c, report = prismm.matmul(a, b, scheme=scheme, accuracy=target, engine=engine, full_output=True)
        exact = exact_product(a, b)
        assert_bounds_hold(exact, c, report, name)
        if target is not None:
            assert_meets(target, exact, magnitudes(a, b), c, 30, name)
    assert tried > 8


@pytest.mark.parametrize("scheme", [ScaledHalf(), ScaledHalf(order="element", sb=9)], ids=str)
@pytest.mark.parametrize("target", [None, "native", "correctly-rounded"])
def test_powers_of_two_pass_straight_through(scheme, target, rng):
    a, b = rng.standard_normal((9, 40)).astype(np.float32), rng.standard_normal((40, 8)).astype(np.float32)
    rows, columns = (2.0 ** rng.integers(-20, 20, n) for n in (9, 8))
    c = prismm.matmul(a, b, scheme=scheme, accuracy=target)
    turned = prismm.matmul((a * rows[:, None]).astype("f4"), (b * columns).astype("f4"), scheme=scheme, accuracy=target)
    assert_same_bits(turned, (c * rows[:, None] * columns).astype(np.float32))


def test_batches_prepared_operands_and_sums(rng):
    a, b = rng.standard_normal((3, 9, 40)), rng.standard_normal((40, 8))
    scheme = ScaledHalf(chunk=None)
    whole = prismm.matmul(a, b, scheme=scheme, engine="simulated:volta")
    for i in range(3):
        assert_same_bits(whole[i], prismm.matmul(a[i], b, scheme=scheme, engine="simulated:volta"))
    right = prismm.prepare(b, side="right", scheme=scheme, engine="simulated:volta")
    assert_same_bits(prismm.matmul(a[0], right), whole[0])
    c = rng.standard_normal((9, 8))
    d, report = prismm.gemm(a[0], b, c, alpha=2.0, beta=-1.0, scheme=scheme, accuracy="native", full_output=True)
    assert exact_gemm(2.0, a[0], b, -1.0, c).within(d, report.bounds).all()
    assert "ScaledHalf" in str(prismm.explain(a[0], b, scheme=scheme, accuracy="native"))
