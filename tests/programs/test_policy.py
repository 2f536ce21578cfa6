"""Policies: what a rule matches, JSON there and back, and every kind of bad file."""

from __future__ import annotations

import doctest
import importlib
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import prismm
from prismm import Policy, Rule
from prismm.errors import AccuracyError, ArgumentError, FileError, PrismmError
from prismm.programs import Recipe
from prismm.programs.policy import OPERATORS, fingerprint
from prismm.schemes.names import parse_scheme, scheme_name

from .models import Branches

SCHEMES = [
    None,
    "auto",
    "native",
    "residues:12",
    "words:tf32x3",
    "words:bf16x6",
    "scaled-half",
    "tile-int8:2",
    "slices:int8:9",
]
RECIPES = st.one_of(
    st.just(Recipe(off=True)),
    st.builds(
        Recipe,
        accuracy=st.one_of(
            st.sampled_from([None, "fast", "native", "correctly-rounded"]),
            st.floats(1e-300, 1.0, allow_subnormal=False),
        ),
        scheme=st.sampled_from(SCHEMES),
        engine=st.sampled_from([None, "cpu:int8", "simulated:ampere"]),
        threads=st.sampled_from([None, 1, 7]),
    ),
    st.builds(Recipe, scheme=st.sampled_from([None, "residues:12"]), reproducible=st.just(True)),
)


@given(RECIPES)
def test_recipes_are_text_and_back(recipe: Recipe) -> None:
    again = Recipe.parse(str(recipe))
    assert str(again) == str(recipe)
    assert again == recipe or recipe == Recipe()  # nothing said is "native", said


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("", ArgumentError, "empty recipe"),
        ("exact", AccuracyError, "unknown accuracy 'exact'"),
        ("-1", AccuracyError, "positive"),
        ("native 1e-9", ArgumentError, "twice"),
        ("off reproducible", ArgumentError, "off=True"),
        ("scheme=fp8", ArgumentError, "scheme 'fp8'"),
        ("scheme=words:tf32x3 reproducible", ArgumentError, "not reproducible"),
        ("threads=0", ArgumentError, "threads=0"),
        ("threads=x", ArgumentError, "threads='x'"),
    ],
)
def test_recipes_that_are_none(text, error, words):
    with pytest.raises(error, match=words):
        Recipe.parse(text)


def test_schemes_have_names():
    for name in SCHEMES[1:]:
        assert scheme_name(parse_scheme(name)) == name
    assert scheme_name(prismm.Slices("int8", "DP", k_block=64)) is None
    with pytest.raises(ArgumentError, match="has no name"):
        Rule(scheme=prismm.Slices("int8", "DP", k_block=64))


def test_the_first_rule_that_matches_decides():
    policy = Policy(
        [
            Rule(module="head", off=True),
            Rule(module="encoder.*", operator=("mm", "add*"), pass_="backward", accuracy=1e-9),
            Rule(where="solver.py:*", scheme=prismm.Words.tf32(3)),
            Rule(module="encoder.?", accuracy="fast"),
        ]
    )
    assert policy.choose("head", "mm") == 0
    assert policy.choose("encoder.1", "addmm", backward=True) == 1
    assert policy.choose("encoder.1", "bmm", backward=True) == 3
    assert policy.choose("encoder.1", "addmm") == 3
    assert policy.choose("encoder.layer.1", "mm") is None
    assert policy.choose("encoder", "mm", where="solver.py:12") == 2
    assert policy.recipe("", "mm").off
    assert policy.recipe("", "dot", where="solver.py:1").keywords["scheme"] == prismm.Words.tf32(3)


LETTERS = 'a.*0 "\\/\n\0\x7f\u2028é漢\U0001f600'
"""Of each class that JSON writes in its own way; all of Unicode takes seconds to list."""


@given(
    st.lists(
        st.builds(
            Rule,
            module=st.text(LETTERS, max_size=5),
            operator=st.one_of(
                st.sampled_from([*OPERATORS, "*", "add*"]), st.lists(st.sampled_from(OPERATORS), min_size=1)
            ),
            where=st.sampled_from(["*", "a.py:3"]),
            pass_=st.sampled_from([None, "forward", "backward"]),
            accuracy=st.sampled_from(["native", 1e-7, 0.1 + 0.2]),
            scheme=st.sampled_from(SCHEMES),
        )
    ),
    st.one_of(st.none(), st.text(LETTERS)),
    st.text(LETTERS),
)
def test_json_and_back(rules, model, note):
    policy = Policy(rules, model, note)
    assert Policy.from_json(policy.to_json()) == policy
    assert Policy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy


GOOD = {"kind": "prismm.Policy", "version": 1, "rules": [{"accuracy": "native"}]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"kind": "prismm.Policy", "kind": "prismm.Policy"}', "twice"),
        ('{"kind": "prismm.Policy", "version": 1, "note": "\\ud800", "rules": []}', "half of a surrogate"),
        ('{"kind": "prismm.Policy", "version": 1, "\\udfff": 1, "rules": []}', "half of a surrogate"),
        ('{"kind": "prismm.Policy", "version": 1, "rules": [{"accuracy": 1e999}]}', "1e999 is beyond float64"),
        ("[]", '"kind" is not'),
        ({"kind": "prismm.EngineModel", "version": 1}, '"kind" is not'),
        (GOOD | {"version": 2}, "version 2, of a newer prismm; this prismm reads version 1"),
        (GOOD | {"version": "1"}, "version '1'"),
        (GOOD | {"version": True}, "version True"),
        (GOOD | {"version": 1.0}, "version 1.0"),
        ({key: value for key, value in GOOD.items() if key != "kind"}, '"kind" is not'),
        ({key: value for key, value in GOOD.items() if key != "version"}, "version None"),
        ({key: value for key, value in GOOD.items() if key != "rules"}, '"rules" is None'),
        ('{"kind": "prismm.Policy", "version": 1, "rules": [{"off": true, "off": false}]}', "twice: off"),
        (GOOD | {"rule": []}, "a policy has unknown keys rule; it may have kind, version"),
        (GOOD | {"rules": {}}, '"rules" is {}'),
        (GOOD | {"note": 3}, '"note" are text'),
        (GOOD | {"rules": ["native"]}, "rule 1 is 'native'"),
        (GOOD | {"rules": [{"accuracy": "native", "modules": "x"}]}, "rule 1 has unknown keys modules"),
        (GOOD | {"rules": [{"accuracy": "native", "pass_": "forward"}]}, "rule 1 has unknown keys pass_"),
        (GOOD | {"rules": [{"accuracy": "native"}, {"accuracy": "exact"}]}, "rule 2: unknown accuracy"),
        (GOOD | {"rules": [{"accuracy": -1}]}, "rule 1: accuracy=-1.0 must be finite and positive"),
        ('{"kind": "prismm.Policy", "version": 1, "rules": [{"accuracy": NaN}]}', "NaN is no JSON"),
        (GOOD | {"rules": [{"module": "x"}]}, "rule 1: the rule for module 'x' says nothing"),
        (GOOD | {"rules": [{"module": 3, "off": True}]}, "rule 1: a rule's module is 3"),
        (GOOD | {"rules": [{"operator": "linear", "off": True}]}, "torch carries linear out as mm .* or addmm"),
        (GOOD | {"rules": [{"operator": [], "off": True}]}, "without operators"),
        (GOOD | {"rules": [{"operator": "gemm", "off": True}]}, "unknown operator 'gemm'"),
        (GOOD | {"rules": [{"pass": "both", "off": True}]}, "a rule's pass is 'both'"),
        (GOOD | {"rules": [{"scheme": "__import__('os')"}]}, "rule 1: scheme"),
        (GOOD | {"rules": [{"scheme": {"moduli": 3}}]}, "rule 1: "),
        (GOOD | {"rules": [{"off": 1}]}, "off=1"),
        (GOOD | {"rules": [{"off": True, "accuracy": "native"}]}, "leave out accuracy"),
        (GOOD | {"rules": [{"engine": "a b", "accuracy": "native"}]}, "engine='a b'"),
    ],
)
def test_bad_policies(content, words, tmp_path: Path):
    text = content if isinstance(content, str) else json.dumps(content)
    with pytest.raises(PrismmError, match=words):
        Policy.from_json(text)
    file = tmp_path / "policy.json"
    file.write_text(text)
    with pytest.raises(FileError, match=r"policy\.json: "):
        Policy.load(file)


def test_files(tmp_path: Path):
    policy = Policy([Rule(module="a", accuracy=1e-9)], note="by hand")
    policy.save(tmp_path / "p.json")
    assert Policy.load(tmp_path / "p.json") == policy
    with pytest.raises(FileError, match="No such file"):
        Policy.load(tmp_path / "q.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match="not text"):
        Policy.load(tmp_path / "binary")


def test_a_policy_is_checked_against_its_model():
    model = Branches()
    assert Policy([Rule(module="blocks.*", accuracy="native")]).check(model) == ["first", "head"]
    assert Policy.of("native").check(model) == []
    with pytest.raises(ArgumentError, match=r"names module 'encoder\.\*', which the model lacks; it has '', 'first'"):
        Policy([Rule(module="encoder.*", accuracy="native")]).check(model)
    mine = Policy([Rule(accuracy="native")], model=fingerprint(model))
    assert mine.check(model) == []
    with pytest.raises(ArgumentError, match=r"was made for the model Branches:.* this one is Linear:"):
        mine.check(torch.nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match="was made for the model"):
        prismm.emulate(mine, model=torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Policy(["native"]), "a policy of str 'native'"),
        (lambda: Policy.of(Policy([]), scheme="native"), "a policy and scheme"),
        (lambda: Policy.of(prismm.Residues(), scheme="native"), "pass one of them"),
        (lambda: Policy.of("nativ"), "unknown accuracy"),
        (lambda: Rule(reproducible=1), "reproducible=1"),
        (lambda: prismm.emulate(attention="math"), "attention='math'"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(PrismmError, match=words):
        call()


@pytest.mark.parametrize(
    "name", ["compile", "emulate", "gradients", "operators", "places", "policy", "recipe", "record"]
)
def test_docstrings(name):
    failed, tried = doctest.testmod(importlib.import_module(f"prismm.programs.{name}"))
    assert tried and not failed


def test_docstrings_of_names():
    failed, tried = doctest.testmod(importlib.import_module("prismm.schemes.names"))
    assert tried and not failed
