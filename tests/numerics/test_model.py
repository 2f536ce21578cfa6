"""`EngineModel` as data: JSON there and back, what is refused, what two models have in common."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from prismm.errors import ArgumentError
from prismm.formats import E4M3, FP16, FP32, FP64, INT8, INT32, TF32, Format, Integer
from prismm.numerics import separation, simulate, specification, vectors
from prismm.numerics.catalogue import engine, engines
from prismm.numerics.model import BlockScale, EngineModel, LateJoin
from prismm.numerics.observations import same
from prismm.numerics.random_models import random_model
from tests.judge import assert_each
from tests.numerics.models import float_model, integer_model, plainer

MODELS = Path(__file__).parents[2] / "docs" / "numerics" / "h200" / "models"

FLOAT = EngineModel("float", FP16, FP32, block=4, fraction_bits=24)
WHOLE = EngineModel("whole", INT8, INT32, overflow="wrap")
LATE = dataclasses.replace(FLOAT, join=LateJoin(30, 22, 29, 25))
SCALED = EngineModel("scaled", E4M3, FP32, block=32, fraction_bits=25, scale=BlockScale("ue8m0", 16, "terms"))
OWN = EngineModel(
    "own",
    Format(3, 4, "e3m4", "finite"),
    Format(7, 12),
    accumulator=Format(8, 13, "e8m13"),
    groups=((1, 3), (0, 2)),
    block=4,
    depth=8,
    nan=0x7F801,
    source="a source",
    certainty="sure",
)
ODD = EngineModel("odd", Integer(7, signed=False, name="uint7"), Integer(20), depth=8, overflow="saturate")


def every_field(model):
    return {item.name: getattr(model, item.name) for item in dataclasses.fields(model)}


def read(model):
    found = EngineModel.from_json(model.to_json())
    assert every_field(found) == every_field(model)
    assert every_field(EngineModel.from_dict(model.to_dict())) == every_field(model)
    return found


@pytest.mark.parametrize("model", [FLOAT, WHOLE, LATE, SCALED, OWN, ODD], ids=lambda m: m.name)
def test_json_there_and_back(model):
    assert read(model).to_json() == model.to_json()


def test_json_of_the_catalogue():
    assert_each(lambda name: read(engine(name)), engines())


@pytest.mark.slow
def test_json_of_random_models(rng):
    for _ in range(300):
        read(random_model(rng))
        read(float_model(rng))
        read(integer_model(rng))


def test_formats_are_written_by_name_only_where_the_name_says_everything():
    content = dataclasses.replace(FLOAT, input=Format(5, 9, "fp16")).to_dict()  # a name that means another format
    assert content["output"] == "fp32"
    assert content["input"] == {"exponent_bits": 5, "fraction_bits": 9, "name": "fp16", "specials": "ieee"}
    assert EngineModel.from_dict(content).input == Format(5, 9, "fp16")


def test_json_says_what_it_is():
    content = json.loads(FLOAT.to_json())
    assert (content["kind"], content["version"], content["name"]) == ("prismm.EngineModel", 1, "float")
    assert set(content) == {"kind", "version", *every_field(FLOAT)}


@pytest.mark.parametrize("text", ["", "{", "nonsense", '{"kind": }', "\x00", None, 5, b"\xff"])
def test_no_json(text):
    with pytest.raises(ArgumentError, match="no model: not JSON"):
        EngineModel.from_json(text)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"kind": ' * 100_000, '{"kind": "prismm.EngineModel", "x": ' + "[" * 9999]
)
def test_json_that_is_nested_too_deeply(text):
    with pytest.raises(ArgumentError, match=r"no model: nested too deeply; pass what EngineModel\.to_json wrote"):
        EngineModel.from_json(text)


@pytest.mark.parametrize("text", ["[]", "1", "null", '"x"', "{}", '{"kind": "prismm.Other"}', '{"kind": null}'])
def test_another_kind(text):
    with pytest.raises(ArgumentError, match=r'"kind" is not "prismm\.EngineModel"'):
        EngineModel.from_json(text)


@pytest.mark.parametrize("version", [0, 2, "1", None, [1], True, 1.0])
def test_another_version(version):
    with pytest.raises(ArgumentError, match=r"a model of version .*reads version 1"):
        EngineModel.from_dict(FLOAT.to_dict() | {"version": version})


@pytest.mark.parametrize("key", every_field(FLOAT))
def test_missing_keys(key):
    """Without any of them it would be read as another engine, or say less than it did."""
    content = OWN.to_dict()
    del content[key]
    for read_it in (EngineModel.from_dict, lambda content: EngineModel.from_json(json.dumps(content))):
        with pytest.raises(ArgumentError, match=rf"a model lacks {key}, .*pass what EngineModel\.to_json wrote"):
            read_it(content)


@pytest.mark.parametrize(
    ("model", "part", "key"),
    [
        *((OWN, "input", key) for key in ("exponent_bits", "fraction_bits", "name", "specials")),
        *((OWN, "output", key) for key in ("exponent_bits", "fraction_bits", "name", "specials")),
        *((OWN, "accumulator", key) for key in ("exponent_bits", "fraction_bits", "name", "specials")),
        *((ODD, "input", key) for key in ("bits", "signed", "name")),
        *((LATE, "join", key) for key in ("sum_bits", "accumulator_bits", "total_bits", "cutoff")),
        *((SCALED, "scale", key) for key in ("format", "length", "summation")),
    ],
)
def test_parts_that_lack_a_key(model, part, key):
    content = model.to_dict()
    content[part] = {name: value for name, value in content[part].items() if name != key}
    with pytest.raises(ArgumentError, match=f"{part}=.*; its keys are .*, all of them"):
        EngineModel.from_dict(content)


def test_every_committed_model_is_still_read():
    for path in sorted(MODELS.glob("*.json")):
        text = path.read_text(encoding="utf-8")
        model = EngineModel.from_json(text)
        assert model.to_json() == text.strip(), path
        assert model.name == f"h200:{path.stem}"
    assert len(list(MODELS.glob("*.json"))) == 30


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (lambda text: text.replace('"block": 4', '"block": 4, "block": 8'), "a key is there twice: block"),
        (lambda text: text.replace('"block": 4', '"block": NaN'), "NaN is no JSON"),
        (lambda text: text.replace('"block": 4', '"block": Infinity'), "Infinity is no JSON"),
        (lambda text: text[: len(text) // 2], "not JSON"),
        (lambda text: text + text, "not JSON"),
        (lambda text: "\ufeff" + text, "not JSON"),
    ],
)
def test_json_that_says_a_thing_twice_or_half(text, words):
    with pytest.raises(ArgumentError, match=words):
        EngineModel.from_json(text(FLOAT.to_json()))


@pytest.mark.parametrize("key", ["blocks", "Block", ""])
def test_unknown_keys(key):
    with pytest.raises(ArgumentError, match=f"unknown keys in a model: {key}"):
        EngineModel.from_dict(FLOAT.to_dict() | {key: 1})


WRONG = [
    *[(what, value) for what in ("name", "source", "certainty") for value in (None, 1, ["x"], "\ud800")],
    *[(what, value) for what in ("input", "output") for value in (None, 1, ["fp16"], {})],
    *[("accumulator", value) for value in (1, "int8", ["fp32"], {"exponent_bits": 8}, {"bits": 8, "x": 1})],
    *[
        (what, {"exponent_bits": 8, "fraction_bits": 7, "name": n})
        for what in ("input", "output")
        for n in (5, "\ud800")
    ],
    ("accumulator", {"exponent_bits": 8, "fraction_bits": 7, "name": ["x"]}),
    *[("block", value) for value in (0, 257, -1, True, 4.0, "4", None, [4])],
    *[("depth", value) for value in (0, 4097, True, 8.0, "8", [8])],
    *[("fraction_bits", value) for value in (0, 49, True, 24.0, "24")],
    *[("carry_bits", value) for value in (-1, 13, False, 2.0)],
    *[("zero_exponent", value) for value in (1, -1201, -132.0, True)],
    *[("nan", value) for value in (-1, 2**64, 1.0, True, "0x7f")],
    *[(what, value) for what in ("product_rounding", "output_rounding") for value in ("up", 0, [], {"x": 1}, True)],
    *[
        (what, value)
        for what in ("product_overflow", "product_exponent", "group_sums", "summation", "alignment", "rounding")
        for value in (None, "up", 1, ["zero"])
    ],
    *[("overflow", value) for value in (None, "inf", 1)],
    *[("zeros", value) for value in (None, "negative", 0)],
    *[(f"subnormal_{what}", v) for what in ("inputs", "accumulators", "products", "outputs") for v in (None, "no", 1)],
    *[("join", value) for value in (None, "late", 1, [], {"sum_bits": 7}, {"sum_bits": 30, "x": 1})],
    *[("scale", value) for value in (1, "ue8m0", [], {}, {"format": "ue8m0", "length": 16})],
    *[("input", {"bits": 8, "signed": signed, "name": ""}) for signed in ("false", 0, None)],
    *[
        ("groups", v)
        for v in (
            1,
            "01",
            [0, 1],
            [[0], "1"],
            [[0.0]],
            [[0, "b"]],
            [[[0]]],
            [[True], [0]],
            [[-1], [0]],
            [[]],
            [[0], [0]],
        )
    ],
]


@pytest.mark.parametrize(("key", "value"), WRONG, ids=lambda x: str(x)[:24])
def test_values_of_a_wrong_type_or_range(key, value):
    with pytest.raises(ArgumentError, match=f"{key}|sum_bits|unknown format|signed="):
        EngineModel.from_dict(FLOAT.to_dict() | {key: value})


@pytest.mark.parametrize(
    ("base", "changes", "said"),
    [
        (FLOAT, {"input": "fp16"}, r"input='fp16'; pass a Format or an Integer"),
        (FLOAT, {"output": 32}, r"output=32; pass a Format or an Integer"),
        (FLOAT, {"accumulator": INT32}, r"accumulator=.*; pass a Format or None"),
        (FLOAT, {"scale": "ue8m0"}, r"scale='ue8m0'; pass a BlockScale or None"),
        (FLOAT, {"groups": [[0], [1]]}, r"groups=.*; pass a tuple of tuples"),
        (FLOAT, {"groups": ((0,), ())}, r"groups=.*; pass a tuple of tuples"),
        (FLOAT, {"groups": ((0, "b"),)}, r"a residue in groups='b'; pass an integer"),
        (FLOAT, {"groups": ((0.0,), (1.0,))}, r"a residue in groups=0\.0; pass an integer"),
        (FLOAT, {"groups": ((0,), (True,))}, r"a residue in groups=True; pass an integer"),
        (FLOAT, {"groups": (([],),)}, r"a residue in groups=\[\]; pass an integer"),
        (FLOAT, {"groups": ((0,), (2,))}, r"groups=.*every residue from 0 to 1"),
        (FLOAT, {"groups": ((0, 1), (1,))}, r"groups=.*every residue from 0 to 2"),
        (FLOAT, {"groups": ((0, 1, 2),)}, r"depth=4 is no multiple of the 3 residues in groups"),
        (FLOAT, {"depth": 6}, r"block=4 does not divide the 6 products"),
        (FLOAT, {"depth": 4, "groups": ((0,), (1,)), "group_sums": "separate", "join": "after"}, r"block=4 .* the 2 "),
        (
            FLOAT,
            {"block": 2, "depth": 6, "groups": ((0, 2), (1,)), "group_sums": "separate", "join": "after"},
            r"groups=\(\(0, 2\), \(1,\)\) with group_sums='separate'; pass groups of one size, or .*'chained'",
        ),
        *[
            (
                FLOAT,
                {"nan": bits},
                rf"nan={bits:#x} is no NaN of fp32; pass the bits of one, such as 0x7fffffff, or None",
            )
            for bits in (0, 0x3C00, 0x7F800000, 0xFF800000, 0x17FC00000, 2**64 - 1)
        ],
        (FLOAT, {"output": FP16, "nan": 0x7FC00000}, r"nan=0x7fc00000 is no NaN of fp16"),
        (WHOLE, {"output": FP32}, r"input='int8' with output='fp32'; integers give integers"),
        (FLOAT, {"output": INT32}, r"input='fp16' with output='int32'; floats give floats"),
        (WHOLE, {"overflow": "infinity"}, r"overflow='infinity'; integers pass 'wrap' or 'saturate'"),
        (FLOAT, {"overflow": "wrap"}, r"overflow='wrap' is for integers"),
        *[
            (WHOLE, {key: value}, rf"{key}=.* means nothing to an integer engine; leave it")
            for key, value in {
                "accumulator": FP32,
                "groups": ((0,),),
                "group_sums": "separate",
                "product_rounding": "zero",
                "product_overflow": "infinity",
                "product_exponent": "normalised",
                "summation": "sequential",
                "fraction_bits": 24,
                "carry_bits": 2,
                "alignment": "floor",
                "zero_exponent": -1,
                "join": "after",
                "rounding": "zero",
                "output_rounding": "zero",
                "subnormal_inputs": "flush",
                "subnormal_accumulators": "flush",
                "subnormal_products": "flush",
                "subnormal_outputs": "flush",
                "zeros": "ieee",
                "nan": 0,
                "scale": BlockScale("ue8m0", 16, "terms"),
            }.items()
        ],
        (FLOAT, {"output": E4M3}, r"output='e4m3' has no infinities"),
        (FLOAT, {"accumulator": E4M3}, r"accumulator='e4m3' has no infinities"),
        (FLOAT, {"input": FP64}, r"fraction_bits=24 with input='fp64'; pass inputs of at most 24 bits, or None"),
        (FLOAT, {"alignment": "nearest"}, r"alignment='nearest'; aligned terms are cut off"),
        (FLOAT, {"alignment": "odd"}, r"alignment='odd'; aligned terms are cut off"),
        (FLOAT, {"fraction_bits": None, "carry_bits": 3}, r"carry_bits=3; only summation='aligned' with fraction_bits"),
        (FLOAT, {"summation": "sequential", "carry_bits": 3}, r"carry_bits=3; only summation='aligned'"),
        (FLOAT, {"fraction_bits": None, "zero_exponent": -140}, r"zero_exponent=-140; only summation='aligned'"),
        (FLOAT, {"summation": "sequential", "zero_exponent": -140}, r"zero_exponent=-140; only summation='aligned'"),
        (FLOAT, {"zero_exponent": -126}, r"zero_exponent=-126; pass one below -126"),
        (FLOAT, {"zero_exponent": -20, "accumulator": FP16, "output": FP16, "join": "after"}, None),
        (FLOAT, {"summation": "pairwise"}, r"summation='pairwise' .*pass join='after'"),
        (FLOAT, {"groups": ((0,), (1,)), "group_sums": "separate"}, r"group_sums='separate' .*pass join='after'"),
        (LATE, {"summation": "sequential"}, r"a LateJoin needs summation='aligned'"),
        (LATE, {"fraction_bits": None}, r"a LateJoin needs summation='aligned' with fraction_bits"),
        (LATE, {"depth": 8}, r"a LateJoin needs .*one block an instruction"),
        (LATE, {"accumulator": FP16}, r"a LateJoin needs .*no accumulator"),
        (SCALED, {"summation": "sequential"}, r"scale= needs summation='aligned'"),
        (SCALED, {"fraction_bits": None}, r"scale= needs summation='aligned' with fraction_bits"),
        (SCALED, {"join": LateJoin()}, r"scale= needs .*without separate groups or LateJoin"),
        (
            SCALED,
            {"groups": ((0,), (1,)), "group_sums": "separate", "join": "after"},
            r"scale= needs .*without separate groups",
        ),
        (SCALED, {"block": 24}, r"scale.length=16 and block=24 do not divide each other"),
        (
            SCALED,
            {"block": 8, "scale": BlockScale("ue8m0", 16, "groups")},
            r"scale.length=16 does not divide block=8",
        ),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_parameters_that_do_not_go_together(base, changes, said):
    if said is None:  # the neighbour of a rule that is none
        assert dataclasses.replace(base, **changes).zero_exponent == -20
        return
    with pytest.raises(ArgumentError, match=said):
        dataclasses.replace(base, **changes)


def test_groups_of_several_sizes_are_chained():
    unequal = dataclasses.replace(FLOAT, block=2, depth=6, groups=((0, 2), (1,)))
    assert unequal.sequences() == ((0, 2, 3, 5, 1, 4),)
    a = np.array([1.0, 2.0**-12, 3.0, 4.0, 2.0**-13, 6.0])
    assert simulate.dot(unequal, a, a).item() == specification.dot(unequal, a.tolist(), a.tolist())


@pytest.mark.slow
def test_the_family_has_separate_sums_of_one_size_only(rng):
    separate = [m for m in (random_model(rng) for _ in range(2_000)) if m.group_sums == "separate"]
    assert len(separate) > 10 and all(len({len(group) for group in m.groups}) == 1 for m in separate)


@pytest.mark.parametrize(("output", "bits"), [(FP16, 0x7E00), (FP16, 0xFC01), (FP32, 0xFFC00000), (FP64, 2**64 - 1)])
def test_bits_of_a_nan(output, bits):
    model = dataclasses.replace(FLOAT, output=output, nan=bits)
    assert int(simulate.bits(model, np.array([np.nan]))[0]) == bits


def test_parts_check_themselves():
    for what in ("sum_bits", "accumulator_bits", "total_bits"):
        for value in (7, 61, True, 24.0, None):
            with pytest.raises(ArgumentError, match=f"{what}=.*pass an integer from 8 to 60"):
                LateJoin(**{what: value})
    for value in (0, 301, 2.0):
        with pytest.raises(ArgumentError, match=r"cutoff=.*from 1 to 300 or None"):
            LateJoin(cutoff=value)
    for values, said in (
        (("e8m0", 16, "terms"), r"scale.format='e8m0'; pass one of 'ue8m0', 'ue4m3'"),
        (("ue8m0", 0, "terms"), r"scale.length=0; pass an integer from 1 to 256"),
        (("ue8m0", 257, "terms"), r"scale.length=257"),
        (("ue8m0", 16, "all"), r"scale.summation='all'; pass one of 'terms', 'groups'"),
        (("ue4m3", 16, "terms"), r"scale.format='ue4m3' has significands"),
    ):
        with pytest.raises(ArgumentError, match=said):
            BlockScale(*values)


def test_name_source_and_certainty_mean_nothing():
    other = dataclasses.replace(FLOAT, name="other", source="s", certainty="c")
    assert other == FLOAT and hash(other) == hash(FLOAT) and FLOAT.differences(other) == {}
    for item in dataclasses.fields(FLOAT):
        assert item.compare == (item.name not in ("name", "source", "certainty"))


def test_what_stands_for_none():
    assert FLOAT.instruction_depth == 4 and dataclasses.replace(FLOAT, depth=12).instruction_depth == 12
    separate = dataclasses.replace(FLOAT, groups=((0,), (1,)), group_sums="separate", join="after")
    assert separate.instruction_depth == 8 and separate.sequences() == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert OWN.sequences() == ((1, 3, 5, 7, 0, 2, 4, 6),)
    assert (FLOAT.sums, OWN.sums) == (FP32, Format(8, 13, "e8m13"))
    assert (FLOAT.last_rounding, dataclasses.replace(FLOAT, output_rounding="odd").last_rounding) == ("nearest", "odd")
    assert (FLOAT.is_integer, WHOLE.is_integer) == (False, True)
    with pytest.raises(ArgumentError, match="no floating-point sums"):
        _ = WHOLE.sums


def test_registers_never_wrap_with_the_largest_shift():
    for block in (1, 2, 3, 4, 7, 8, 31, 32):
        for join in ("inside", "after"):
            model = dataclasses.replace(FLOAT, block=block, join=join, fraction_bits=10)
            terms = block + (join == "inside")
            assert 2 ** (model.largest_shift() - 1) <= terms < 2 ** model.largest_shift()
            # Products just below four, all of one sign, and c as large: the largest sum there is.
            most = 2.0 - 2.0**-10
            a, c = [most] * block, 4.0 - 2.0**-21
            wide = dataclasses.replace(model, carry_bits=model.largest_shift())
            assert not any(step.wrapped for step in specification.trace(wide, a, a, c).steps)


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        (FLOAT, {"depth": 8}, {"depth": (None, 8)}),
        (dataclasses.replace(FLOAT, zeros="unsigned"), {"depth": 8}, {}),
        (FLOAT, {"depth": 8, "zeros": "ieee"}, {"depth": (None, 8), "zeros": ("positive", "ieee")}),
        (FLOAT, {"carry_bits": 3}, {}),
        (FLOAT, {"carry_bits": 2}, {"carry_bits": (None, 2)}),
        (FLOAT, {"accumulator": FP32}, {}),
        (FLOAT, {"accumulator": TF32}, {"accumulator": (None, TF32)}),
        (FLOAT, {"output_rounding": "zero"}, {}),
        (
            FLOAT,
            {"output_rounding": "zero", "join": "after"},
            {"output_rounding": (None, "zero"), "join": ("inside", "after")},
        ),
        (FLOAT, {"product_exponent": "normalised"}, {"product_exponent": ("sum", "normalised")}),
        (FLOAT, {"groups": ((1,), (0,))}, {}),
        (FLOAT, {"fraction_bits": 23, "rounding": "odd"}, {"fraction_bits": (24, 23), "rounding": ("nearest", "odd")}),
        (WHOLE, {"depth": 16}, {}),
        (WHOLE, {"depth": 16, "overflow": "saturate"}, {"depth": (None, 16), "overflow": ("wrap", "saturate")}),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_differences(one, other, named):
    changed = dataclasses.replace(one, **other)
    assert one.differences(changed) == named
    assert changed.differences(one) == {name: (theirs, mine) for name, (mine, theirs) in named.items()}
    assert (one.canonical() == changed.canonical()) == (not named)


def redundant(rng):
    """A model with at least one parameter that cannot matter."""
    while True:
        kind = rng.random()
        model = random_model(rng) if kind < 0.4 else float_model(rng)
        if kind > 0.6:
            model = plainer(model, rng)
        if model.scale is None and not model.is_integer and model.canonical() != model:
            return model


CARRIED = 1 + 255 / 256
SEQUENTIAL = EngineModel("", FP16, FP16, block=2, summation="sequential")


@pytest.mark.parametrize(
    ("model", "a", "b", "c"),
    [
        # A sum underflows to -0, and the padding of its instruction, or of its block, makes it +0.
        (EngineModel("", FP16, FP16, depth=2), [-(2.0**-14)], [2.0**-14], 0.0),
        (SEQUENTIAL, [-(2.0**-14)], [2.0**-14], 0.0),
        # Padding cuts off again what a carry has made longer.
        (EngineModel("", FP16, FP32, depth=2, fraction_bits=8, zeros="unsigned"), [1.0], [1.0], CARRIED),
        # A subnormal accumulator is flushed between instructions.
        (
            EngineModel("", FP16, FP16, depth=2, subnormal_accumulators="flush", zeros="unsigned"),
            [2.0**-24] * 4,
            [1.0] * 4,
            0.0,
        ),
        # A sum that is subnormal in the accumulator, but not in the output, which is what the next instruction sees.
        (
            EngineModel("", FP16, FP32, accumulator=FP16, depth=2, fraction_bits=10, rounding="odd", zeros="unsigned"),
            [2.0**-12, 2.0**-14, 2.0**-14],
            [2.0**-11, 2.0**-13, 2.0**-13],
            0.0,
        ),
    ],
    ids=["zero", "block", "carry", "flush", "subnormal"],
)
def test_what_canonical_models_must_keep(model, a, b, c):
    for depth in {model.instruction_depth, 4}:
        deep = dataclasses.replace(model, depth=depth)
        x, y = (np.array([specification.dot(m, a, b, c)]) for m in (deep, deep.canonical()))
        assert same(x, y)[0], (depth, x, y)


def test_sums_of_no_groups_are_nothing():
    assert dataclasses.replace(FLOAT, group_sums="separate").differences(FLOAT) == {}


@pytest.mark.slow
def test_canonical_models_give_the_same_bits(rng):
    for _ in range(240):
        model = redundant(rng)
        plain = model.canonical()
        assert plain.canonical() == plain and model.differences(plain) == {} and plain.name == model.name
        for k in separation.lengths_for(model)[-6:]:
            for name in vectors.CLASSES:
                a, b, c = vectors.draw(vectors.aim_at(model), name, k, 8, rng)
                x, y = simulate.dot_unchecked(model, a, b, c), simulate.dot_unchecked(plain, a, b, c)
                wrong = np.flatnonzero(~same(x, y))
                assert not wrong.size, (model, plain, a[wrong[0]], b[wrong[0]], c[wrong[0]], x[wrong], y[wrong])
