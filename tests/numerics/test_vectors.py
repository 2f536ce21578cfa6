"""Hostile inputs: values of their formats, the same for the same seed, none of them dull."""

import dataclasses

import numpy as np
import pytest

from prismm.formats import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, FP16, FP32, FP64, TF32
from prismm.numerics import engine, simulate
from prismm.numerics.encodings import foreign
from prismm.numerics.model import EngineModel, LateJoin
from prismm.numerics.observations import same
from prismm.numerics.random_models import random_model
from prismm.numerics.vectors import CLASSES, Aim, aim_at, draw, ends, structure
from tests.judge import assert_each

FORMATS = [(FP16, FP32), (FP16, FP16), (BF16, FP32), (TF32, FP32), (E4M3, FP32), (E5M2, FP16), (E2M1, FP32)]
FORMATS += [(FP64, FP64), (FP32, FP16), (E2M3, BF16), (E3M2, FP32)]
LENGTHS = (1, 2, 3, 7, 33)


def identical(one, other):
    return all(same(x, y).all() for x, y in zip(one, other, strict=True))


@pytest.mark.parametrize(("input", "output"), FORMATS, ids=lambda f: f.name)
def test_values_are_those_of_the_formats(input, output, rng):
    def check(name):
        for aim in (Aim(input, output), Aim(input, output, plain=True), aimed):
            for k in LENGTHS:
                a, b, c = draw(aim, name, k, 40, rng) if name in CLASSES else structure(aim, k, 40, rng)
                assert (a.shape, b.shape, c.shape) == ((40, k), (40, k), (40,))
                assert {x.dtype for x in (a, b, c)} == {np.dtype(np.float64)}
                for x, format in ((a, input), (b, input), (c, output)):
                    assert not foreign(x, format).any(), (k, x[foreign(x, format)])

    aimed = Aim(input, output, (10, 24), (13,), (output.minexp - 6,), (4,))
    assert_each(check, [*CLASSES, "structure"])


def test_values_aimed_at_random_models_are_those_of_the_formats(rng):
    for _ in range(30):
        model = random_model(rng)
        for name in CLASSES:
            a, b, c = draw(aim_at(model), name, 9, 20, rng)
            simulate.dot(model, a, b, c)  # which refuses all others


@pytest.mark.parametrize("name", CLASSES)
def test_a_seed_says_everything(name, seed):
    aim = Aim(FP16, FP32)
    one, other, third = (draw(aim, name, 8, 60, np.random.default_rng(s)) for s in (seed, seed, seed + 1))
    assert identical(one, other)
    assert not identical(one, third)


@pytest.mark.parametrize(("input", "output"), FORMATS[:6], ids=lambda f: f.name)
def test_no_class_is_constant(input, output, rng):
    def check(name):
        a, b, c = draw(Aim(input, output), name, 8, 400, rng)
        rows = {(x.tobytes(), y.tobytes(), z.tobytes()) for x, y, z in zip(a, b, c, strict=True)}
        assert len(rows) > 100
        results = simulate.dot(EngineModel("", input, output, block=4, fraction_bits=20), a, b, c)
        patterns = {float(d).hex() + str(np.signbit(d)) for d in results}
        assert len(patterns) > 10
        assert np.signbit(results).any() and not np.signbit(results).all()

    assert_each(check, CLASSES)


def test_classes_reach_what_they_are_named_after(rng):
    """Each class shows the property it is for in more than one of 100 dot products."""
    base = EngineModel("", FP16, FP32, block=8, fraction_bits=24, rounding="zero", zero_exponent=-10 - 126)
    half = EngineModel("", FP16, FP16, block=8, fraction_bits=24, rounding="zero", zero_exponent=-20)
    shown = {
        "cut": (base, {"fraction_bits": 23}),
        "alone": (base, {"fraction_bits": 23}),
        "round": (base, {"rounding": "nearest"}),
        "sticky": (base, {"fraction_bits": 12}),
        "carry": (base, {"carry_bits": 1}),
        "subnormal": (half, {"subnormal_outputs": "flush"}),
        "floor": (half, {"zero_exponent": -16}),
        "least": (half, {"zero_exponent": -16}),
        "special": (half, {"overflow": "saturate"}),
        "zero": (base, {"zeros": "ieee"}),
        "random": (base, {"fraction_bits": 12}),
        "few": (base, {"fraction_bits": 12}),
        "order": (base, {"block": 4}),
    }
    assert set(shown) == set(CLASSES)
    for name, (model, changes) in shown.items():
        other = dataclasses.replace(model, **changes)
        a, b, c = draw(aim_at(model, other), name, 16, 2000, rng)
        differing = ~same(simulate.dot(model, a, b, c), simulate.dot(other, a, b, c))
        assert differing.sum() > 20, (name, int(differing.sum()))


def test_classes_are_mixed_as_they_say(rng):
    """Shares within six standard deviations of what they are drawn with."""
    n, aim = 4000, Aim(BF16, FP32, (24,), (23,))
    a, b, c = (
        dict(zip(CLASSES, x, strict=True)) for x in zip(*(draw(aim, w, 8, n, rng) for w in CLASSES), strict=True)
    )
    terms = {name: (a[name] != 0).sum(1) for name in CLASSES}
    full = np.signbit(a["carry"][terms["carry"] == 8])
    for what, found, wanted in [
        *((f"few: {count} terms", terms["few"] == count, 1 / 3) for count in (1, 2, 3)),
        *((f"few: a term at {place}", a["few"][:, place] != 0, 1 / 4) for place in (0, 3, 7)),
        ("few: minus", np.signbit(a["few"][a["few"] != 0]), 1 / 2),
        ("random: zeros", a["random"][:, 3] == 0, 0.1),
        ("random: c = 0", c["random"] == 0, 0.2),
        ("sticky: the sum in c", c["sticky"] != 0, 0.6),
        ("carry: minus", full[:, 0], 1 / 2),
        ("special: NaN", np.isnan(a["special"][:, 0]), 0.3 * 0.72 / 41),  # but for sums at the end of the range
        ("zero: c alone", (terms["zero"] == 0) & (c["zero"] != 0), 2 / 7),
        ("order: c = -M or M", np.abs(c["order"]) == 2.0**126, 0.9 / 8),
    ]:
        assert abs(found.mean() - wanted) < 6 * (wanted * (1 - wanted) / len(found)) ** 0.5, (
            what,
            found.mean(),
            wanted,
        )
    assert (terms["sticky"] <= 5).all() and (terms["sticky"] == 5).any()
    assert ((a["alone"] * b["alone"]).sum(1) == 0).all() and (terms["alone"] > 0).mean() > 0.5


def test_narrow_inputs_reach_what_is_cut_off(rng):
    """The largest product is raised until others are small beside it, and c beyond all of them."""
    aim = Aim(E4M3, FP32, (28,), (23,))
    for name, least in (("cut", 0.1), ("few", 0.1)):
        a, b, _ = draw(aim, name, 8, 4000, rng)
        sizes = np.abs(a * b)
        smallest = np.where(sizes > 0, sizes, np.inf).min(1)
        assert (sizes.max(1) >= 2.0**26 * smallest).mean() > least, name
    for name in ("sticky", "few"):
        a, b, c = draw(Aim(E2M3, FP32, (28,), (23,)), name, 8, 4000, rng)
        largest = np.abs(a * b).max(1)
        assert ((largest > 0) & (np.abs(c) >= 2.0**24 * largest)).mean() > 0.05, name


def test_the_ends_of_instructions_show_in_signs_of_zeros(rng):
    """At every length: -0 only where an instruction is full."""
    model = EngineModel("", FP16, FP32, block=4, depth=12, fraction_bits=20, zeros="ieee")
    for k in range(1, 40):
        a, b, c = ends(Aim(FP16, FP32), k, 16, rng)
        assert (
            (np.abs(a * b) <= 2.0**-48).all() and (np.signbit(a) | (a == 0.0)).all() and (np.abs(c) < 2.0**-124).all()
        )
        d = simulate.dot(model, a, b, c)
        assert (np.signbit(d) & (d == 0.0) & (c == 0.0)).any() == (k % 12 == 0), k


def test_special_values_come_up_where_the_format_has_them(rng):
    for input in (FP16, E4M3, E5M2, E2M1):
        a, b, c = draw(Aim(input, FP32), "special", 8, 2000, rng)
        factors = np.concatenate([a, b])
        assert np.isinf(factors).any() == input.has_infinity and np.isnan(factors).any() == input.has_nan
        assert (np.signbit(factors) & (factors == 0.0)).any()
        assert np.isinf(c).any() and np.isnan(c).any() and (np.abs(c) == FP32.max).any()


def test_subnormal_inputs_come_up(rng):
    for input, output in FORMATS:
        a, b, _ = draw(Aim(input, output), "subnormal", 8, 200, rng)
        small = [(np.abs(x) > 0) & (np.abs(x) < input.smallest_normal) for x in (a, b)]
        assert small[0].mean() > 0.05 and small[1].mean() > 0.05


def test_aims_are_the_thresholds_of_all_models():
    aim = aim_at(engine("v100.fp16.fp32"), engine("a100.fp16.fp32"))
    assert (aim.input, aim.output) == (FP16, FP32)
    assert (aim.kept, aim.precision, aim.zero_exponent, aim.block) == ((23, 24), (23,), (-132,), (4, 8))
    late = EngineModel("", FP16, FP32, block=4, fraction_bits=24, join=LateJoin(31, 22, 29))
    assert aim_at(late).kept == (22, 24, 29, 31)
    assert aim_at(engine("h100-wgmma.e4m3.fp32")).precision == (13, 23)


def test_structure_has_one_term_of_each_sign_that_is_largest(rng):
    a, b, c = structure(Aim(FP16, FP32), 9, 300, rng)
    products = a * b
    big = np.abs(products).max(1)
    alone = (np.abs(products) == big[:, None]).sum(1)
    assert set(alone.tolist()) == {1, 2}
    assert (
        (np.where(alone == 1, c, 0.0) + np.where(np.abs(products) == big[:, None], products, 0.0).sum(1)) == 0
    ).all()
    places = {tuple(np.flatnonzero(row)) for row in np.abs(products) == big[:, None]}
    assert len(places) > 30  # of 9 · 10 / 2
