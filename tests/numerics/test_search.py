"""The family's rarer changes, and what a search does that found nothing."""

import numpy as np
import pytest

from prismm.formats import E3M2, FP16, FP32
from prismm.numerics import changes, family, search, separate, simulate, vectors
from prismm.numerics.model import EngineModel
from prismm.numerics.observations import Observations
from prismm.numerics.parts import LateJoin
from prismm.numerics.recorded import Clock
from prismm.numerics.separation import lengths_for

CARRIED = EngineModel(
    "hidden", E3M2, FP32, block=64, depth=128, fraction_bits=36, carry_bits=4, alignment="floor", join="after",
    rounding="nearest",
)  # fmt: skip
ROUNDED = EngineModel(
    "hidden", FP16, FP32, block=2, depth=8, fraction_bits=None, join="after", rounding="floor",
    output_rounding="nearest",
)  # fmt: skip


def asked(hidden, rng, each=40):
    """Answers to inputs aimed at a model."""
    seen = Observations(hidden.input, hidden.output)
    for k in (*lengths_for(hidden), 100):
        for name in vectors.CLASSES:
            a, b, c = vectors.draw(vectors.aim_at(hidden), name, k, vectors.share(each, k, 4), rng)
            seen.add(a, b, c, simulate.dot(hidden, a, b, c))
    return seen


@pytest.mark.parametrize(
    ("hidden", "wrong"),
    [
        pytest.param(
            CARRIED,
            {"block": 4, "depth": 16, "fraction_bits": None, "carry_bits": None, "alignment": "zero"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ROUNDED,
            {"block": 8, "depth": 8, "rounding": "nearest", "output_rounding": None},
            marks=pytest.mark.slow,
        ),
        (ROUNDED, {"depth": 4}),
    ],
    ids=["carried", "rounded", "depth"],
)
def test_rare_changes_lead_out_of_dead_ends(hidden, wrong, rng):
    seen, near = asked(hidden, rng), family.changed(hidden, **wrong)
    assert near is not None and seen.refute(near)
    found, mismatches = search.rescued((near,), seen, rng, search.Effort(20_000_000_000, seen.clock))
    assert mismatches == 0.0 and not seen.refute(found)
    assert not separate(hidden, found, effort=4000), found


@pytest.mark.parametrize("name", changes.RARE)
def test_rare_changes_are_of_the_family(name):
    model = family.changed(family.start(FP16, FP16), accumulator=FP32, depth=4)
    some = [family.changed(model, **change) for change in list(changes.RARE[name](model))[::17]]
    assert len(some) > 10 and all(found is not None and found.summation == "aligned" for found in some)


def test_wide_sums_are_narrowed():
    """To what they may be instead: sums in the output's format, rounded as the result is, of any bits."""
    wide = family.changed(
        family.start(FP16, FP16), summation="sequential", accumulator=FP32, depth=4, fraction_bits=None,
        rounding="floor", output_rounding="odd",
    )  # fmt: skip
    found = {family.changed(wide, **change) for change in changes.RARE["narrowed"](wide)}
    assert family.changed(
        wide, accumulator=None, rounding="odd", output_rounding=None, fraction_bits=23, alignment="floor",
        product_overflow="infinity",
    ) in found  # fmt: skip
    assert not list(changes.RARE["narrowed"](family.start(FP16, FP16)))


@pytest.mark.parametrize("summation", ["aligned", "sequential"])
def test_where_nothing_is_cut_any_alignment_may_be_right(summation):
    exact = family.changed(family.start(FP16, FP32), fraction_bits=None, summation=summation)
    found = {(m.fraction_bits, m.alignment) for m in family.alternatives(exact, "fraction_bits")}
    ways = {"zero", "floor"} if summation == "aligned" else {"zero", "floor", "nearest", "odd"}
    assert found == {(bits, way) for bits in range(1, 49) for way in ways}
    cut = family.changed(exact, fraction_bits=20, alignment="floor")
    assert {m.alignment for m in family.alternatives(cut, "fraction_bits") if m.fraction_bits} == {"floor"}


def test_mixtures_have_values_of_the_others_alone(rng):
    model = family.start(FP16, FP32)
    others = [family.alternatives(model, name)[:5] for name in ("fraction_bits", "rounding", "overflow", "zeros")]
    names = {"fraction_bits", "rounding", "overflow", "zeros", "output_rounding"}
    several = 0
    for _ in range(200):
        found = family.mixture(model, others, len(others), rng)
        if found is None:
            continue
        differing = {name for name in family.PROPERTIES if getattr(found, name) != getattr(model, name)}
        several += len(differing) > 1
        assert differing and differing <= names
        for name in differing:
            assert getattr(found, name) in {getattr(other, name) for some in others for other in some}
    assert several > 50
    one = {family.mixture(model, [others[1]], 1, rng) for _ in range(50)}
    assert one - {None} <= set(others[1])


def test_mixtures_of_late_joins_and_depths(rng):
    late = family.changed(family.start(FP16, FP32), join=LateJoin(32, 20, 31), depth=None)
    joins = [late.__class__(**{**vars(late), "join": LateJoin(*numbers)}) for numbers in ((33, 20, 31), (32, 20, 33))]
    found = {family.mixture(late, [joins, joins], 2, rng).join for _ in range(50)}
    assert LateJoin(33, 20, 33) in found
    deep = family.changed(family.start(FP16, FP32), join="after", depth=4)
    blocks, depths = ([m for m in family.alternatives(deep, name)] for name in ("block", "depth"))
    for _ in range(100):
        mixed = family.mixture(deep, [blocks, depths], 2, rng)
        assert mixed is None or mixed.instruction_depth % mixed.block == 0
    assert np.unique([m.block for m in blocks]).size > 60


def test_no_model_is_deeper_than_models_are():
    deep = EngineModel("deep", FP16, FP32, block=65, depth=65 * 8, groups=tuple((i,) for i in range(8)))
    assert all(m.depth is None or m.depth <= 4096 for m in family.alternatives(deep, "depth"))
    assert family.changed(deep, depth=65 * 64) is None


def test_effort_goes_by_the_clock_while_it_is_awake():
    clock = Clock()
    whole, mending = search.Effort(1000, clock), search.Effort(1000, clock).rest()
    clock.spent += 300
    assert (whole.left, mending.left) == (700, 1000)
    with mending.awake():
        clock.spent += 200
        half = mending.part(0.5)
        clock.spent += 100
        assert (mending.left, half.left) == (700, 300)
    clock.spent += 500
    assert (whole.left, mending.left, half.left) == (-100, 700, -200)


def test_runs_of_models_cost_what_they_do(rng):
    seen = asked(ROUNDED, rng, 10)
    right, before = seen.all(), seen.clock.spent
    assert right.mismatches(ROUNDED) == 0.0
    whole = seen.clock.spent - before
    wrong = family.changed(ROUNDED, output_rounding="zero")
    assert right.mismatches(wrong, 0.0) > 0.0
    assert 0 < seen.clock.spent - before - whole < whole / 2  # a run ends at the first mismatch that is too much
