"""Answers on record: models run on them as `simulate.dot` does, and no answer is left out that could refute one."""

import numpy as np
import pytest

from prismm.formats import FP16, FP32, INT8, INT32
from prismm.numerics import engine, simulate, vectors
from prismm.numerics.family import alternatives
from prismm.numerics.model import EngineModel
from prismm.numerics.observations import Observations, same
from prismm.numerics.random_models import random_model
from prismm.numerics.recorded import Record
from prismm.numerics.separation import lengths_for

ENDS = ("zero_exponent", "subnormal_products", "subnormal_outputs", "subnormal_accumulators", "overflow")
ENDS += ("product_overflow",)


def drawn(model, rng, each=3):
    """Batches of every class and length."""
    aims = [vectors.aim_at(model), vectors.Aim(model.input, model.output)]
    for k in lengths_for(model):
        for aim in aims:
            for name in vectors.CLASSES:
                yield vectors.draw(aim, name, k, each, rng)
            yield vectors.ends(aim, k, 8, rng)


@pytest.mark.parametrize("case", [*range(4), *(pytest.param(i, marks=pytest.mark.slow) for i in range(4, 12))])
def test_models_run_on_records_as_on_arrays(case, seed):
    """Rows of all lengths in one record, in any order, on a member and on its neighbours, flushing and padding too."""
    rng = np.random.default_rng([seed, case])
    model = random_model(rng)
    record, expected = Record(model.input, model.output), []
    others = [m for name in ("subnormal_inputs", "block", "depth", "rounding") for m in alternatives(model, name)]
    other = others[int(rng.integers(len(others)))]
    for a, b, c in drawn(model, rng):
        d = simulate.dot_unchecked(model, a, b, c)
        record.add(a, b, c, d)
        expected.append(same(simulate.dot_unchecked(other, a, b, c), d))
    order = rng.permutation(len(record))
    right = np.concatenate(expected)[order]
    ones, wrong = np.ones(len(record)), np.zeros(len(record), np.int8)
    assert record.missed(model, order, ones, True) == 0.0
    assert record.missed(other, order, ones, True, wrong=wrong) == np.count_nonzero(~right)
    assert (wrong.astype(bool) == ~right).all()
    if not right.all():
        wrong[:] = 0
        assert record.missed(other, order, ones, True, 0.0, wrong) == 1.0  # the first one ends it
        assert int(wrong.argmax()) == int(np.argmin(right)) and wrong.sum() == 1
    a, b, c, d = record.row(int(order[0]))
    assert same(simulate.dot_unchecked(model, a[None], b[None], np.array([c])), np.array([d])).all()


@pytest.mark.covering("name")
@pytest.mark.parametrize("case", range(4))
@pytest.mark.parametrize("name", ENDS)
def test_answers_that_are_left_out_cannot_show_the_property(name, case, seed):
    rng = np.random.default_rng([seed, case])
    model = random_model(rng)
    everything, some = (Observations(model.input, model.output) for _ in range(2))
    for a, b, c in drawn(model, rng):
        d = simulate.dot_unchecked(model, a, b, c)
        everything.add(a, b, c, d, searched=False)
        some.add(a, b, c, d, searched=False)
    for other in alternatives(model, name)[::5]:
        assert everything.refute(other) == some.refute(other, model, (name,)), getattr(other, name)


def test_refuting_ends_with_the_simplest(rng):
    model, other = engine("t4.fp16.fp32"), engine("v100.fp16.fp32")
    seen = Observations(FP16, FP32)
    for k in (9, 1, 4):
        a, b, c = vectors.draw(vectors.aim_at(model), "cut", k, 400, rng)
        seen.add(a, b, c, simulate.dot_unchecked(model, a, b, c))
    assert not seen.refute(model) and seen.refuting(model) is None
    found = seen.refuting(other)
    assert found is not None and len(found.a) == min(len(seen.row(int(i))[0]) for i in seen.differing(other, 2000))
    before = len(seen.all())
    seen.search(seen.differing(other, 3))
    assert len(seen.all()) == before + 3


def test_integers_on_record(rng):
    model = engine("h100-mma-satfinite.int8.int32")
    record = Record(INT8, INT32)
    a, b = (rng.integers(-128, 128, (50, 37)).astype(float) for _ in range(2))
    c = rng.integers(-(2**31), 2**31, 50).astype(float)
    record.add(a, b, c, model.dot(a, b, c))
    wrapping = EngineModel("", INT8, INT32, overflow="wrap")
    differ = np.count_nonzero(wrapping.dot(a, b, c) != model.dot(a, b, c))
    assert record.missed(model, np.arange(50), np.ones(50), True) == 0.0
    assert record.missed(wrapping, np.arange(50), np.ones(50), True) == differ
