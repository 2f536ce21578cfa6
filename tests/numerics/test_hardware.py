"""Hardware engines: the messages where there is no GPU, the logic over a stand-in for one, and proofs where one is.

The stand-in answers `device.multiply_bits` in float64 (exactly, for what the proofs ask), so that everything but the
kernel runs on any machine.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prismm.core.extras import install
from prismm.errors import ArgumentError, EngineError, ShapeError
from prismm.formats import E4M3, E5M2, FP16, FP32, FP64, INT8, Format, Integer
from prismm.numerics.corpus import Corpus
from prismm.numerics.encodings import canonical_nan, decode, encode
from prismm.numerics.hardware import check as proof
from prismm.numerics.hardware import collect, device, engine, experiments
from prismm.numerics.hardware.check import check, distinct
from prismm.numerics.hardware.instructions import INSTRUCTIONS, Instruction, instruction_named
from prismm.numerics.hardware.special_cases import special_cases

HOPPER = device.Gpu("a stand-in", (9, 0), "13.0", "13.0")
Answer = Callable[..., Any]


def rounded(values: np.ndarray, output: Format | Integer) -> np.ndarray:
    """Patterns of sums: integers modulo 2^32, floats to nearest."""
    if isinstance(output, Integer):
        return (values.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32)
    narrow = values.astype({16: np.float16, 32: np.float32, 64: np.float64}[output.bits])
    return encode(narrow.astype(np.float64), output, canonical_nan(output))


def answer(
    instruction: Instruction, a: np.ndarray, b: np.ndarray, c: np.ndarray, turn: int = 0, turn_step: int = 0
) -> np.ndarray:
    with np.errstate(all="ignore"):
        products = decode(a, instruction.input) * decode(b, instruction.input)
        return rounded(products.sum(1) + decode(c, instruction.output), instruction.output)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], None]]:
    """A GPU of compute capability 9.0 whose answers are ``answer``'s, or those set."""

    def use(other: Answer) -> None:
        monkeypatch.setattr(device, "multiply_bits", other)

    monkeypatch.setattr(device, "gpu", lambda: HOPPER)
    monkeypatch.setattr(device, "compile_cubin", lambda instruction, arch=None: b"")
    use(answer)
    yield use


def without_gpu() -> bool:
    try:
        device.gpu()
    except EngineError:
        return True
    return False


def test_without_a_gpu_the_reason_is_said() -> None:
    if not without_gpu():
        pytest.skip("there is a GPU")
    with pytest.raises(EngineError, match=r"prismm\[gpu-probe\]|NVIDIA GPU"):
        engine.find("mma.fp16.fp32")
    found = engine.available()
    assert set(found) == {i.name for i in INSTRUCTIONS}
    assert all(not works and why for works, why in found.values())


def test_without_a_gpu_collecting_ends_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not without_gpu():
        pytest.skip("there is a GPU")
    assert collect.main(["--out", str(tmp_path / "x")]) == 1
    assert "GPU" in capsys.readouterr().err or not (tmp_path / "x").exists()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(device.importlib, "import_module", missing)
    with pytest.raises(EngineError, match="cuda-core.*" + re.escape(install("gpu-probe"))):
        device._core()
    with pytest.raises(EngineError, match="cuda-bindings.*" + re.escape(install("gpu-probe"))):
        device._driver()


def test_unknown_instructions_are_refused_before_any_gpu_is_sought() -> None:
    with pytest.raises(ArgumentError, match=r"'mma\.fp8'.*mma\.e4m3\.fp32"):
        engine.find("mma.fp8")


def test_a_gpu_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "gpu", lambda: dataclasses.replace(HOPPER, capability=(8, 0)))
    with pytest.raises(EngineError, match=r"9\.0 alone.*available\(\)"):
        engine.find("wgmma.fp16.fp32")
    found = engine.available()
    assert found["mma.fp16.fp32"] == (True, "")
    assert not found["mma.e4m3.fp32"][0] and "8.9" in found["mma.e4m3.fp32"][1]


def parts_of(instruction: Instruction, **_: Any) -> dict[str, Any]:
    return {"kind": instruction.kind, "input": instruction.input, "output": instruction.output}


formats_of_instructions = pytest.mark.covering("kind", "input", "output", of=parts_of)
"""Each kind, and each format of operands and of results, is among the fast tests."""


@formats_of_instructions
@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=lambda i: i.name)
def test_a_right_device_is_proved_and_examined(instruction: Instruction, stand_in: Callable[[Answer], None]) -> None:
    one = engine.HardwareEngine(instruction)
    found = check(one, samples=4)
    assert found.positions == instruction.m * instruction.n
    assert found.picked == 2 * instruction.m * instruction.k * instruction.n
    results = collect.examine(one)
    json.dumps(results)
    assert not [name for name, value in results.items() if isinstance(value, dict) and "error" in value], results
    assert set(results) >= ({"specials", "summands_lost"} if isinstance(instruction.input, Format) else set())


def wrong_k(instruction: Instruction, a: np.ndarray, b: np.ndarray, *rest: Any) -> np.ndarray:
    return answer(instruction, a, np.roll(b, 1, axis=1), *rest)


def wrong_column(instruction: Instruction, a: np.ndarray, b: np.ndarray, c: np.ndarray, *rest: Any) -> np.ndarray:
    swapped = np.arange(len(b)) ^ 1
    return answer(instruction, a, b[swapped], c, *rest)


def wrong_start(instruction: Instruction, a: np.ndarray, b: np.ndarray, c: np.ndarray, *rest: Any) -> np.ndarray:
    return answer(instruction, a, b, c[np.arange(len(c)) ^ 1], *rest)


def wrong_place(
    instruction: Instruction, a: np.ndarray, b: np.ndarray, c: np.ndarray, turn: int = 0, turn_step: int = 0
) -> np.ndarray:
    found = answer(instruction, a, b, c)
    finite = np.isfinite(decode(found, instruction.output)) & ((a != 0) & (b != 0)).all(1)
    found[finite & (np.arange(len(found)) % 128 == 77)] ^= 1
    return found


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (wrong_k, "one-hot products are wrong"),
        (wrong_column, "one-hot products are wrong"),
        (wrong_start, "values of C"),
        (wrong_place, "depend on where they stand"),
    ],
)
@pytest.mark.parametrize("name", ["mma.fp16.fp32", "mma.int8.int32", "wgmma.e5m2.fp16"])
def test_a_wrong_device_is_found_out(
    wrong: Answer, message: str, name: str, stand_in: Callable[[Answer], None]
) -> None:
    stand_in(wrong)
    with pytest.raises(EngineError, match=message):
        check(engine.find(name), samples=16)


def test_another_machine_instruction_is_found_out(
    stand_in: Callable[[Answer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in ((), ("HMMA.1688.F32",), ("QMMA.16832.F32.E4M3.E4M3",)):
        monkeypatch.setattr(proof, "sass", lambda one, found=found: found)
        with pytest.raises(EngineError, match=r"no HMMA\.16816\.F32"):
            check(engine.find("mma.e4m3.fp32"), samples=1)
    monkeypatch.setattr(proof, "sass", lambda one: ("HMMA.16816.F32",) * 2)
    assert check(engine.find("mma.e4m3.fp32"), samples=1).sass == ("HMMA.16816.F32",) * 2


def test_values_go_through_patterns(stand_in: Callable[[Answer], None]) -> None:
    one = engine.find("mma.fp16.fp32")
    assert (one.name, one.input, one.output, one.k) == ("mma.fp16.fp32", FP16, FP32, 16)
    assert one([[1.0, 2.0, 3.0]], [[4.0, 5.0, 6.0]], [0.5]).tolist() == [32.5]
    assert one.dot(np.ones((3, 40)), np.ones((3, 40))).tolist() == [40.0] * 3
    assert one.dot(np.ones((2, 0)), np.ones((2, 0)), [7.0, -1.0]).tolist() == [7.0, -1.0]
    with pytest.raises(ArgumentError, match="round them first"):
        one.dot([[1 + 2.0**-11]], [[1.0]], [0.0])
    with pytest.raises(ShapeError, match="count, length"):
        one.bits(np.zeros((2, 4), int), np.zeros((2, 5), int), np.zeros(2, int))
    with pytest.raises(ArgumentError, match="bit patterns of fp16"):
        one.bits(np.full((1, 4), 1 << 16), np.zeros((1, 4), int), np.zeros(1, int))


def test_long_batches_are_cut_where_turns_go_on(
    stand_in: Callable[[Answer], None], monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    seen = []

    def counted(instruction: Instruction, a: np.ndarray, *rest: Any) -> np.ndarray:
        seen.append((len(a), *rest[2:]))
        return answer(instruction, a, *rest)

    stand_in(counted)
    monkeypatch.setattr(engine, "_CHUNK_BYTES", 16 * 2 * 24)
    a, b = rng.integers(0, 0x7C00, (2, 50, 16))
    c = rng.integers(0, 0x7F800000, 50)
    one = engine.find("mma.fp16.fp32")
    cut = one.bits(a, b, c, turn=5, turn_step=3)
    assert seen == [(24, 5, 3), (24, 14, 3), (2, 7, 3)]
    assert np.array_equal(cut, answer(one.instruction, a, b, c))


def test_distinct_patterns_are_distinct() -> None:
    for format, count in ((E4M3, 32), (E5M2, 32), (FP16, 16), (FP64, 16), (INT8, 32)):
        assert len(set(decode(distinct(format, count), format).tolist())) == count


@formats_of_instructions
@pytest.mark.parametrize("instruction", [i for i in INSTRUCTIONS if i.input is not INT8], ids=lambda i: i.name)
def test_special_cases_are_patterns_of_their_formats(instruction: Instruction) -> None:
    cases = special_cases(instruction.input, instruction.output, instruction.k)
    assert len(cases) > 60 and len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert len(case.a) == len(case.b) <= instruction.k
        for bits, format in ((case.a, instruction.input), (case.b, instruction.input), ([case.c], instruction.output)):
            decode(np.array(bits, np.uint64), format)


def test_powers_split_into_values_of_the_format() -> None:
    for format in (FP16, E4M3, E5M2, FP64):
        low, high = 2 * format.subnormal_exponent, 2 * (format.maxexp - 1)
        for exponent in range(low - 2, high + 3):
            pair = experiments.split_power(format, exponent)
            assert (pair is not None) == (low <= exponent <= high)
            if pair is not None:
                assert np.frexp(pair[0])[1] + np.frexp(pair[1])[1] - 2 == exponent
                assert decode(encode(pair, format), format).tolist() == list(pair)


@pytest.mark.slow
def test_collecting_writes_two_files(
    stand_in: Callable[[Answer], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def partly(instruction: Instruction, *rest: Any) -> np.ndarray:
        if instruction.name == "mma.int8.int32":
            raise EngineError("this one fails")
        return answer(instruction, *rest)

    stand_in(partly)
    names = ["mma.fp16.fp16", "mma.int8.int32", "wgmma.tf32.fp32"]
    assert collect.main(["--out", str(tmp_path / "out"), "--count", "120", *names]) == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["corpora.tar", "experiments.json"]
    report = json.loads((tmp_path / "out" / "experiments.json").read_text())
    assert report["instructions"]["mma.int8.int32"] == {"error": "EngineError: this one fails"}
    assert report["instructions"]["mma.fp16.fp16"]["check"]["positions"] == 128
    with tarfile.open(tmp_path / "out" / "corpora.tar") as archive:
        assert archive.getnames() == ["mma.fp16.fp16.corpus", "wgmma.tf32.fp32.corpus"]
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    corpus = Corpus.load(tmp_path / "wgmma.tf32.fp32.corpus")
    one = instruction_named("wgmma.tf32.fp32")
    assert (corpus.count, corpus.k, corpus.device) == (120, 8, "a stand-in")
    corpus.inputs()
    for _, a, b, c, d in corpus.sets():
        assert np.array_equal(d, answer(one, a, b, c))
    assert "this one fails" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=lambda i: i.name)
def test_this_machines_instructions_are_proved(instruction: Instruction) -> None:
    works, why = engine.available()[instruction.name]
    if not works:
        pytest.skip(why)
    one = engine.HardwareEngine(instruction)
    found = check(one)
    assert found.positions == instruction.m * instruction.n
    corpus = collect.collect(instruction, count=240, seed=1, proof=False)
    again = collect.collect(instruction, count=240, seed=1, proof=False)
    assert np.array_equal(corpus.answers, again.answers)
