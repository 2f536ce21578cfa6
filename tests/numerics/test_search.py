"""The family's rarer changes, and what a search does that found nothing."""

import numpy as np
import pytest

from prismm.formats import E3M2, FP16, FP32
from prismm.numerics import family, search, separate, simulate, vectors
from prismm.numerics.model import EngineModel
from prismm.numerics.observations import Observations
from prismm.numerics.parts import LateJoin
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
        (CARRIED, {"block": 4, "depth": 16, "fraction_bits": None, "carry_bits": None, "alignment": "zero"}),
        (ROUNDED, {"block": 8, "depth": 8, "rounding": "nearest", "output_rounding": None}),
        (ROUNDED, {"depth": 4}),
    ],
    ids=["carried", "rounded", "depth"],
)
def test_rare_changes_lead_out_of_dead_ends(hidden, wrong, rng):
    seen, near = asked(hidden, rng), family.changed(hidden, **wrong)
    assert near is not None and seen.refute(near)
    found, mismatches = search.rescued((near,), seen, rng, search.Effort(20_000_000_000))
    assert mismatches == 0.0 and not seen.refute(found)
    assert not separate(hidden, found, effort=4000), found


@pytest.mark.parametrize("name", family.RARE)
def test_rare_changes_are_of_the_family(name):
    model = family.start(FP16, FP32)
    some = [family.changed(model, **change) for change in list(family.RARE[name](model))[::17]]
    assert all(found is not None and found.summation == "aligned" for found in some)


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
