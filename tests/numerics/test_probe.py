"""The probe: known engines and hidden ones are recovered with evidence, others refused with a counterexample."""

import dataclasses
import inspect
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from prismm.errors import ArgumentError, EngineError
from prismm.formats import FP16, FP32, INT8, INT32
from prismm.numerics import engine, probe, separate, simulate, vectors
from prismm.numerics.family import alternatives, changed
from prismm.numerics.observations import same
from prismm.numerics.probing import session
from prismm.numerics.random_models import random_model
from prismm.numerics.rationals import round_to
from prismm.numerics.separation import lengths_for
from tests.recorded import followed, recorded

KNOWN = ["v100.fp16.fp32", "a100.bf16.fp32", "h100-mma.fp16.fp16", "h100-wgmma.e4m3.fp32"]
KNOWN += [pytest.param("mi100.fp16.fp32", marks=pytest.mark.slow)]
INTEGERS = ["h100-mma.int8.int32", "h100-mma-satfinite.int8.int32"]

SEEDS = {"mi100.fp16.fp32": 1}
"""Of all others 0; see `test_the_search_does_not_stop_beside_a_model`."""


@pytest.fixture
def probed(once):
    """A model of the catalogue and what a probe of it finds: one probe in all processes of a run."""

    def found(name):
        model = engine(name)
        seed = SEEDS.get(name, 0)
        return model, once(name, lambda: probe(model.dot, model.input, model.output, refutations=2000, seed=seed))

    return found


@pytest.mark.slow
def test_the_search_does_not_stop_beside_a_model():
    model = engine("mi100.fp16.fp32")
    assert probe(model.dot, model.input, model.output, refutations=2000).model is not None


def reproduces(model, observation):
    found = model.dot(observation.a, observation.b, observation.c)
    return bool(same(np.atleast_1d(found), np.array([observation.d]))[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*KNOWN, *INTEGERS])
def test_known_engines_are_recovered(name, probed):
    model, finding = probed(name)
    assert finding.model is not None and finding.counterexample is None and finding.nearest is not None
    assert (finding.model.name, finding.refutations >= 2000) == ("probed", True)
    assert finding.observations >= finding.refutations
    for key, (_, value) in finding.model.differences(model).items():
        assert key == "nan" or value in finding.undecided[key], (key, value)
    assert not separate(model, finding.model, effort=20_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*KNOWN, *INTEGERS])
def test_every_observation_in_evidence_refutes_its_value(name, probed):
    _, finding = probed(name)
    assert finding.model is not None
    refuted = 0
    for evidence in finding.evidence:
        assert evidence.decided == (not evidence.open) == (evidence.name not in finding.undecided)
        assert evidence.open == finding.undecided.get(evidence.name, ())
        for _, observation in evidence.refuted:
            assert reproduces(finding.model, observation)
        if finding.model.is_integer:
            refuted += len(evidence.refuted)
            continue
        others = alternatives(finding.nearest, evidence.name)
        for value, observation in evidence.refuted:
            same_value = [m for m in others if getattr(m, evidence.name) == value]
            assert same_value
            assert any(not reproduces(m, observation) for m in same_value), (evidence.name, value)
            refuted += 1
    assert refuted > (100 if not finding.model.is_integer else 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_undecided_values_cannot_be_told_apart(name, probed, rng):
    """Each goes with a model that differs in this property, or in another one that is undecided as well."""
    _, finding = probed(name)
    nearest, undecided = finding.nearest, finding.undecided
    assert finding.model is not None and nearest is not None
    for key, values in undecided.items():
        for value in (values[int(i)] for i in rng.permutation(len(values))[:3]):
            beside = (m for other in ("block", *undecided) for m in alternatives(nearest, other))
            with_it = (changed(m, **{key: value}) for m in itertools.chain([nearest], beside))
            assert any(agree(finding.model, m, rng) for m in with_it if m is not None), (key, value)


def agree(model, other, rng):
    """Whether 2,000 products aimed at two models show no difference."""
    aim, lengths = vectors.aim_at(model, other), lengths_for(model, other)
    each = -(-2000 // (len(lengths) * len(vectors.CLASSES)))
    for k in lengths:
        for kind in vectors.CLASSES:
            a, b, c = vectors.draw(aim, kind, k, each, rng)
            if not same(*(simulate.dot_unchecked(m, a, b, c) for m in (model, other))).all():
                return False
    return True


def kahan(a, b, c):
    """c + Σ a·b in FP32 with compensation."""
    total, error = c.astype(np.float32), np.zeros(len(c), np.float32)
    for i in range(a.shape[1]):
        term = (a[:, i] * b[:, i]).astype(np.float32) - error
        after = total + term
        error, total = (after - total) - term, after
    return total.astype(np.float64)


def rounded_away(a, b, c):
    """The exact sum, rounded to the nearest FP32 with ties away from zero."""

    def one(x, y, z):
        terms = [*(x * y).tolist(), float(z)]  # products of FP16 are exact in FP64
        if not np.isfinite(terms).all():
            return np.sum(terms)
        exact = sum(map(Fraction, terms))
        if not exact:
            return 0.0
        inner, outer = round_to(exact, FP32, "zero", "saturate"), round_to(exact, FP32, "nearest")
        half = abs(exact - Fraction(inner)) * 2 == Fraction(2) ** FP32.ulp_exponent(inner)
        tie = half and math.isfinite(outer)
        return float(np.nextafter(np.float32(inner), np.float32(np.inf if exact > 0 else -np.inf))) if tie else outer

    return np.array([one(x, y, z) for x, y, z in zip(a, b, c, strict=True)])


@pytest.mark.slow
@pytest.mark.parametrize("dot", [kahan, rounded_away], ids=lambda f: f.__name__)
def test_engines_outside_the_family_are_reported_with_a_counterexample(dot):
    def box(a, b, c):
        with np.errstate(all="ignore"):
            return dot(a, b, c)

    finding = probe(box, FP16, FP32, refutations=2000)
    assert finding.model is None and finding.evidence == () and finding.undecided == {}
    example = finding.counterexample
    assert example is not None and finding.nearest is not None
    a, b = (np.array([x]) for x in (example.a, example.b))
    assert same(box(a, b, np.array([example.c])), np.array([example.d])).all()
    assert not reproduces(finding.nearest, example)


def noisy(a, b, c, rng=np.random.default_rng(1)):  # noqa: B008
    return engine("a100.fp16.fp32").dot(a, b, c) + (rng.random(len(c)) < 0.02)


def by_place(a, b, c):
    """The last dot product of a batch is computed otherwise."""
    found = np.array(engine("a100.fp16.fp32").dot(a, b, c))
    found[len(c) // 2 :] += 1.0
    return found


def by_size(a, b, c):
    """A small batch takes another path."""
    found = engine("a100.fp16.fp32" if len(c) > 1 else "v100.fp16.fp32").dot(a, b, c)
    return found if len(c) > 1 else found + 1.0


def seldom(a, b, c, rng=np.random.default_rng(2)):  # noqa: B008
    """One bit in 10,000 answers is wrong."""
    found = engine("a100.fp16.fp32").dot(a, b, c)
    return np.where(rng.random(len(c)) < 1e-4, np.nextafter(found.astype(np.float32), np.float32(9.0)), found)


def far_down(a, b, c):
    """Rows behind the 300th are computed otherwise."""
    return np.concatenate([engine("a100.fp16.fp32").dot(a[:300], b[:300], c[:300]), np.zeros(max(0, len(c) - 300))])


@pytest.mark.slow
@pytest.mark.parametrize("box", [seldom, far_down], ids=lambda f: f.__name__)
def test_black_boxes_that_are_seldom_not_deterministic(box):
    """They are found out where no model reproduces their answers: these are asked again, each alone."""
    with np.errstate(all="ignore"), pytest.raises(EngineError, match=r"not deterministic: \d+ of \d+ answers changed"):
        probe(box, "fp16", "fp32")


@pytest.mark.parametrize("formats", [pytest.param(("fp16", "fp32"), marks=pytest.mark.slow), ("int8", "int32")])
def test_black_boxes_may_write_to_what_they_are_given(formats):
    model = engine("a100." + ".".join(formats))

    def box(a, b, c):
        a[np.abs(a) < 2.0**-14] = b[np.abs(b) < 2.0**-14] = 0.0
        c[...] = simulate.dot_unchecked(model, a, b, c)
        b[...] = a[...] = np.nan
        return c

    finding = probe(box, *formats, refutations=2000)
    flushing = {"subnormal_inputs": "flush-to-positive"} if formats[0] == "fp16" else {}
    assert finding.model is not None and not separate(finding.model, dataclasses.replace(model, **flushing))


@pytest.mark.parametrize("box", [noisy, by_place, by_size], ids=lambda f: f.__name__)
def test_black_boxes_that_are_not_deterministic(box):
    with np.errstate(all="ignore"), pytest.raises(EngineError, match=r"not deterministic: \d+ of \d+ answers changed"):
        probe(box, "fp16", "fp32", refutations=0)


@pytest.mark.parametrize("offset", [1.0, -3.0])
def test_integers_outside_the_family(offset):
    """A sum that is off where it is large: neither wraps nor clamps."""
    model = engine("h100-mma.int8.int32")

    def box(a, b, c):
        d = model.dot(a, b, c)
        return np.where(np.abs(d) > 2.0**30, d + offset, d)

    finding = probe(box, INT8, INT32, refutations=2000)
    assert finding.model is None and finding.evidence == () and finding.nearest is not None
    seen = finding.counterexample
    assert seen is not None
    assert seen.d == box(np.array([seen.a]), np.array([seen.b]), np.array([seen.c]))[0]
    assert not reproduces(finding.nearest, seen)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a100-satfinite.uint8.int32", "a100-satfinite.int8.int32"])
def test_evidence_of_integers_refutes_what_it_is_said_to(name):
    """Sums of unsigned products only grow: where they are clamped cannot be seen."""
    model = engine(name)
    finding = probe(model.dot, model.input, model.output, refutations=2000)
    assert finding.model is not None and finding.model.overflow == "saturate"
    for evidence in finding.evidence:
        for value, seen in evidence.refuted:
            other = dataclasses.replace(finding.model, **{evidence.name: value})
            assert reproduces(model, seen) and not reproduces(other, seen), (evidence.name, value, seen)
    if not model.input.signed:
        assert len(finding.undecided["depth"]) == 255
    else:
        assert finding.model.depth == model.depth


def test_integers_that_are_not_deterministic():
    model, count = engine("h100-mma.int8.int32"), iter(range(10**9))
    with pytest.raises(EngineError, match="not deterministic"):
        probe(lambda a, b, c: model.dot(a, b, c) + next(count) % 2, INT8, INT32, refutations=0)


@pytest.mark.parametrize(
    "box",
    [
        lambda a, b, c: np.zeros(len(c) + 1),
        lambda a, b, c: c[:, None],
        lambda a, b, c: 0.0,
        lambda a, b, c: c.astype(complex),
        lambda a, b, c: c.astype(str),
        lambda a, b, c: c != 0.0,
        lambda a, b, c: None,
        lambda a, b, c: [[1.0], 2.0] * len(c),
    ],
)
def test_answers_of_a_wrong_shape_or_type(box):
    for formats in (("fp16", "fp32"), ("int8", "int32")):
        with pytest.raises(ArgumentError, match=r"must return (one real number for each row|float64 numbers of shape)"):
            probe(box, *formats)


def test_formats_that_do_not_go_together():
    def box(a, b, c):
        raise AssertionError("asked before the formats were looked at")

    for input, output in (("int8", "fp32"), ("fp16", "int32"), (INT8, FP32), (FP16, INT32)):
        with pytest.raises(ArgumentError, match="integers give integers and floats give floats"):
            probe(box, input, output)
    with pytest.raises(ArgumentError, match="unknown format 'fp8'"):
        probe(box, "fp8", "fp32")


def test_what_cannot_be_probed():
    def box(a, b, c):
        raise AssertionError("asked before the arguments were looked at")

    with pytest.raises(ArgumentError, match="dot is a str, no function"):
        probe("a100", "fp16", "fp32")
    for bad in (5, None):
        with pytest.raises(ArgumentError, match=f"input={bad} is no format"):
            probe(box, bad, "fp32")
    for keywords in ({"seed": -1}, {"seed": "x"}, {"refutations": None}, {"refutations": 1.5}, {"refutations": -1}):
        with pytest.raises(ArgumentError, match="pass an integer of 0 or more"):
            probe(box, "fp16", "fp32", **keywords)


@pytest.mark.slow
def test_what_is_asked_belongs_to_the_formats():
    def box(a, b, c):
        return simulate.dot(engine("h100-wgmma.e4m3.fp32"), a, b, c)  # which refuses what does not

    assert probe(box, "e4m3", "fp32", refutations=500, seed=3, name="mine").model.name == "mine"


def recovered(number):
    """Whether a probe of a random model finds a model, and what tells the two apart."""
    hidden = random_model(np.random.default_rng([number, 2021]))
    finding = probe(hidden.dot, hidden.input, hidden.output, seed=number)
    difference = finding.model and separate(hidden, finding.model, effort=20_000, seed=number)
    return {
        "found": finding.model is not None,
        "difference": str((hidden.differences(finding.model), str(difference))) if difference else "",
    }


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("number", range(40))
def test_hidden_models(number, monkeypatch, pytestconfig):
    """Half of a probe's time goes to mixtures of values that are left: a fifth of it shows what they show of nearly all
    models, and follows from sources alone. Every tenth one, another one in each run, gets all of it, and is made anew.
    """
    if not (number + pytestconfig.option.seed) % 10:
        assert recovered(number) == {"found": True, "difference": ""}
    monkeypatch.setattr(session, "_MIXTURES", session._MIXTURES // 5)
    sources = followed("prismm.numerics", "prismm.numerics.random_models", packages=("numpy", "numba"))
    own = inspect.getsource(recovered)
    found = recorded("probes", f"hidden model {number}", [own, *sources], lambda: recovered(number))
    assert found == {"found": True, "difference": ""}
