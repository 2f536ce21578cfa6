"""The catalogue against hardware: every answer of an H200 to hostile vectors, bit for bit."""

import dataclasses
import functools
import hashlib
from pathlib import Path

import numpy as np
import pytest

from prismm.errors import ArgumentError
from prismm.formats import format_named
from prismm.numerics import encodings, simulate
from prismm.numerics.catalogue import engine
from prismm.numerics.corpus import Corpus, problems, update
from prismm.numerics.parts import MODES

FOLDER = Path(__file__).parent / "h200"
FILES = sorted(FOLDER.glob("*.corpus"), key=lambda path: (path.stem.split(".")[-2:], path.stem))

needs_corpora = pytest.mark.skipif(not FOLDER.is_dir(), reason="tests/numerics/h200/ is not in this checkout")


def model_of(instruction):
    """The catalogue's model of an instruction, by the parts of its name."""
    kind, *rest = instruction.split(".")
    shape = [part for part in rest if part.startswith("m16n8")]
    modifier = [part for part in rest if part in ("rz", "satfinite")]
    input, output = (part for part in rest if part not in (*shape, *modifier))
    if input == "fp64":
        shape = []  # every shape is the same chain
    return engine(f"{'-'.join(['h200', kind, *shape, *modifier])}.{input}.{output}")


@functools.lru_cache(maxsize=6)
def generated(input, output, k, count, seed):
    """Vectors, and their digest; instructions of the same formats and depth share them."""
    found = list(problems(format_named(input), format_named(output), k, count, seed))
    sha = hashlib.sha256()
    for _, a, b, c in found:
        update(sha, a, b, c)
    return found, sha.hexdigest()


def answered(model, a, b, c):
    """Patterns of D, by the model."""
    x, y = (encodings.decode(operand, model.input) for operand in (a, b))
    return simulate.bits(model, simulate.dot(model, x, y, encodings.decode(c, model.output)))


def wrong(model, bits, answers):
    """Which patterns differ; the payload of an FP64 NaN is not modelled."""
    different = bits != answers
    if model.output.bits == 64:
        different &= ~(
            np.isnan(encodings.decode(bits, model.output)) & np.isnan(encodings.decode(answers, model.output))
        )
    return np.flatnonzero(different)


@needs_corpora
def test_corpora_are_there():
    assert len(FILES) >= 30
    assert {path.stem for path in FILES} >= {
        "mma.fp16.fp32", "mma.m16n8k8.fp16.fp32", "mma.e4m3.fp32", "mma.tf32.fp32", "mma.int8.int32.satfinite",
        "mma.fp64.fp64", "mma.fp64.fp64.rz", "wgmma.fp16.fp16", "wgmma.e5m2.fp32", "wgmma.int8.int32",
    }  # fmt: skip


@needs_corpora
def test_models_of_instructions():
    for instruction, name in (
        ("mma.fp16.fp32", "h200-mma.fp16.fp32"),
        ("mma.m16n8k8.fp16.fp32", "h200-mma-m16n8k8.fp16.fp32"),
        ("mma.int8.int32.satfinite", "h200-mma-satfinite.int8.int32"),
        ("mma.m16n8k4.fp64.fp64", "h200-mma.fp64.fp64"),
        ("mma.m16n8k16.fp64.fp64.rz", "h200-mma-rz.fp64.fp64"),
        ("wgmma.e4m3.fp16", "h200-wgmma.e4m3.fp16"),
    ):
        assert model_of(instruction).name == name


def parts_of(path):
    """What an instruction is: each of these occurs in one of the replays that are fast."""
    return {"kind": path.stem.partition(".")[0], "output": model_of(path.stem).output}


@needs_corpora
@pytest.mark.covering("kind", "output", of=parts_of)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_model_gives_every_answer_of_the_h200(path):
    corpus = Corpus.load(path)
    assert (corpus.instruction, corpus.device) == (path.stem, "NVIDIA H200")
    model = model_of(corpus.instruction)
    assert (model.input.name, model.output.name) == (corpus.input, corpus.output)
    vectors, digest = generated(corpus.input, corpus.output, corpus.k, corpus.count, corpus.seed)
    assert digest == corpus.inputs_sha256
    first = 0
    for part, a, b, c in vectors:
        d = corpus.answers[first : first + part.count]
        first += part.count
        at = wrong(model, answered(model, a, b, c), d)
        assert not at.size, (len(at), part, a[at[0]], b[at[0]], c[at[0]], hex(d[at[0]]))
    assert first == len(corpus.answers) == corpus.count >= 100_000


def neighbours(model):
    """Models that differ from one in a single property, which its answers must show."""
    if model.is_integer:
        yield dataclasses.replace(model, overflow="saturate" if model.overflow == "wrap" else "wrap")
        return
    for mode in MODES:
        if mode != model.rounding:
            yield dataclasses.replace(model, rounding=mode)
    if model.fraction_bits is not None:
        for bits in (model.fraction_bits - 1, model.fraction_bits + 1):
            yield dataclasses.replace(model, fraction_bits=bits)
    near = [{"block": model.block // 2}, {"alignment": "floor"}, {"subnormal_inputs": "flush"}]
    if 2 * model.input.maxexp > model.output.maxexp - model.output.precision:  # else no product reaches the last ulp
        near.append({"overflow": "saturate" if model.overflow == "infinity" else "infinity"})
    for changes in near:
        try:
            yield dataclasses.replace(model, **changes)
        except ArgumentError:
            continue


def shown(model, other, path):
    """Whether the first part's answers tell another model from the right one."""
    corpus = Corpus.load(path)
    vectors, _ = generated(corpus.input, corpus.output, corpus.k, corpus.count, corpus.seed)
    _, a, b, c = vectors[0]
    count = 20_000
    return wrong(model, answered(other, a[:count], b[:count], c[:count]), corpus.answers[:count]).size > 0


@pytest.mark.slow
@needs_corpora
@pytest.mark.parametrize(
    "name",
    [
        "mma.fp16.fp32",
        "mma.fp16.fp16",
        "mma.tf32.fp32",
        "wgmma.e4m3.fp32",
        "wgmma.e5m2.fp16",
        "mma.fp64.fp64",
        "mma.fp64.fp64.rz",
        "mma.int8.int32",
        "wgmma.int8.int32.satfinite",
    ],
)
def test_a_neighbour_of_the_model_fails(name):
    path = FOLDER / f"{name}.corpus"
    model = model_of(name)
    for other in neighbours(model):
        if model.canonical() != other.canonical():
            assert shown(model, other, path), model.differences(other)
