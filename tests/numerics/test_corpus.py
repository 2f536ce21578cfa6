"""The vectors are the same bits for ever, hit what they are meant to hit, and corpora survive no damage unnoticed."""

from __future__ import annotations

import functools
import json
import lzma
import tempfile
from pathlib import Path

import numpy as np
import pytest

from prismm.errors import ArgumentError, FileError
from prismm.formats import BF16, E2M1, E4M3, E4M3FNUZ, E5M2, FP16, FP32, FP64, INT8, INT32, TF32, Format
from prismm.numerics import corpus, hostile
from prismm.numerics.corpus import Corpus, digest, parts_of, problems, vectors
from prismm.numerics.encodings import decode, storage
from prismm.numerics.hostile import MIXTURE
from prismm.numerics.hostile_draw import Draw, largest_pattern, pack

PAIRS = [
    *((FP16, FP32, 16), (FP16, FP16, 16), (BF16, FP32, 16), (TF32, FP32, 8), (TF32, FP32, 4)),
    *((E4M3, FP32, 32), (E4M3, FP16, 32), (E5M2, FP32, 32), (E5M2, FP16, 32), (FP64, FP64, 4)),
    *((INT8, INT32, 32), (E2M1, FP32, 64), (E4M3FNUZ, FP32, 16), (FP16, FP32, 1)),
]
NAMES = [f"{a.name}-{b.name}-{k}" for a, b, k in PAIRS]


def test_words_are_those_of_splitmix64() -> None:
    """The obvious twin, in Python integers."""
    draw = Draw(3, 7, 9)
    found = draw.words(2)
    state, mask = draw._key, (1 << 64) - 1
    for word in found.flat:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        assert int(word) == z ^ z >> 31


def test_draws_stay_in_their_range() -> None:
    draw = Draw(2000, 3)
    found = draw.between(3, -5, 6)
    assert set(np.unique(found)) == set(range(-5, 7))
    assert np.array_equal(draw.between(1, 4, 4), np.full((2000, 1), 4))
    assert 0.4 < draw.coin(4).mean() < 0.6


@pytest.mark.parametrize("format", [FP16, E4M3, E5M2, E2M1, E4M3FNUZ, BF16, FP64], ids=lambda f: f.name)
def test_packed_values_are_those_asked_for(format: Format) -> None:
    rows = 4000
    draw = Draw(rows, 11)
    exponent = draw.between(1, format.subnormal_exponent - 3, format.maxexp + 2)
    negative, fraction = draw.coin(1), draw.words(1)
    found = decode(pack(format, negative, exponent, fraction), format)
    low = (fraction & np.uint64((1 << format.fraction_bits) - 1)).astype(np.float64)
    size = np.clip(exponent, format.subnormal_exponent, format.maxexp - 1)
    significand = 1 + np.ldexp(low, -format.fraction_bits)
    quantum = np.maximum(size, format.minexp) - format.fraction_bits
    cut = np.minimum(np.ldexp(np.floor(np.ldexp(significand, size - quantum)), quantum), format.max)
    assert np.array_equal(found, np.where(negative, -cut, cut))
    assert decode(largest_pattern(format), format) == format.max


@pytest.mark.parametrize(("source", "result", "k"), PAIRS, ids=NAMES)
def test_vectors_have_their_types_and_begin_alike(source: Format, result: Format, k: int) -> None:
    a, b, c = vectors(source, result, k, 500, 5)
    assert a.shape == b.shape == (500, k) and c.shape == (500,)
    assert a.dtype == b.dtype == storage(source) and c.dtype == storage(result)
    for x, format in ((a, source), (b, source), (c, result)):
        assert int(x.max()) >> format.bits == 0
    for x, y in zip(vectors(source, result, k, 137, 5), (a, b, c), strict=True):
        assert np.array_equal(x, y[:137])
    others = vectors(source, result, k, 500, 6)
    assert not np.array_equal(others[0], a) and not np.array_equal(others[2], c)
    assert all(len(x) == 0 for x in vectors(source, result, k, 0, 5))


# What any machine must give for GENERATOR = 1; a change of one is a new generator.
DIGESTS: dict[str, str] = {
    "fp16-fp32-16": "ff656cc09f9de713",
    "fp16-fp16-16": "24bb62690270f70e",
    "bf16-fp32-16": "9546eb21c26bcbf3",
    "tf32-fp32-8": "238c79804986e228",
    "tf32-fp32-4": "43751e91d50fc86f",
    "e4m3-fp32-32": "d11004624b9ba6b7",
    "e4m3-fp16-32": "6b501076db50ea74",
    "e5m2-fp32-32": "bfc872ff3ecc8c32",
    "e5m2-fp16-32": "07a170ce3dd9ca5b",
    "fp64-fp64-4": "5bff265717d686b8",
    "int8-int32-32": "f8dca6d5f47cee0d",
    "e2m1-fp32-64": "3bb8df1437f8f21d",
    "e4m3fnuz-fp32-16": "e6c1b153a8678033",
    "fp16-fp32-1": "1ee77511f4f1f4f3",
}


@pytest.mark.parametrize(("source", "result", "k"), PAIRS, ids=NAMES)
def test_vectors_never_change(source: Format, result: Format, k: int) -> None:
    assert hostile.GENERATOR == 1
    assert digest(source, result, k, 600, 5)[:16] == DIGESTS[f"{source.name}-{result.name}-{k}"]


@pytest.mark.parametrize(("source", "result", "k"), [p for p in PAIRS if p[0] is not INT8 and p[2] > 1])
def test_the_mixture_reaches_what_it_is_for(source: Format, result: Format, k: int) -> None:
    """Counted over a few thousand vectors: specials, zeros, subnormals, cancellation, both ends of exponents."""
    count = 32 * 128
    a, b, c = vectors(source, result, k, count, 1)
    x, y, z = decode(a, source), decode(b, source), decode(c, result)
    assert sum(MIXTURE.values()) == 32
    with np.errstate(all="ignore"):
        products = x * y
        size = np.abs(products)
    finite = np.isfinite(products).all(1) & np.isfinite(z)
    assert 0.85 < finite.mean() < (1 if source.has_nan or result.has_nan else 1.01)
    assert ((x == 0) & np.signbit(x)).any() or source.specials == "fnuz"
    assert (z[np.signbit(z)] == 0).any() and (z[~np.signbit(z)] == 0).any()
    assert ((np.abs(x) < source.smallest_normal) & (x != 0)).any()
    assert ((np.abs(z) < result.smallest_normal) & (z != 0)).any()
    assert (np.abs(z) == np.inf).any() and np.isnan(z).any()
    assert (np.abs(x) == source.max).any()
    if source.has_nan:
        assert np.isnan(x).any()
    if source is not FP64:
        with np.errstate(all="ignore"):
            total = products.sum(1)
            opposed = finite & (total != 0) & (np.abs(total + z) < np.abs(total) / 64)
        assert opposed.mean() > 0.02
        lone = finite & (size.max(1) >= np.ldexp(np.median(size, 1), 16)) & (np.median(size, 1) > 0)
        if 2 * (source.maxexp - source.minexp) > 40:
            assert lone.mean() > 0.02


def test_raw_bits_hold_signalling_nans_and_infinities() -> None:
    a, _, c = vectors(FP16, FP32, 16, 32 * 400, 2)
    magnitude = a & 0x7FFF
    assert ((magnitude > 0x7C00) & (magnitude < 0x7E00)).any() and (magnitude == 0x7C00).any()
    assert np.isnan(decode(c, FP32)).any()


def test_integers_wrap_and_stay_exact() -> None:
    a, b, c = vectors(INT8, INT32, 32, 4096, 1)
    total = (decode(a, INT8) * decode(b, INT8)).sum(1) + decode(c, INT32)
    assert (total > INT32.max).any() and (total < INT32.min).any() and (np.abs(total) < INT32.max).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((FP16, INT32, 16, 1, 0), "different kinds"),
        ((INT8, FP32, 16, 1, 0), "different kinds"),
        ((FP16, FP32, 0, 1, 0), "k=0"),
        ((FP16, FP32, 4, -1, 0), "count=-1"),
    ],
)
def test_what_is_no_batch_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        vectors(*arguments)


def test_parts_chain_and_shorten() -> None:
    found = list(problems(FP16, FP32, 16, 1200, 3))
    assert [part for part, *_ in found] == list(parts_of(16, 1200))
    for part, a, b, c in found:
        assert a.shape == b.shape == (part.count, part.length) and c.shape == (part.count,)
    _, a, b, _ = found[-1]
    assert found[-1][0].short
    assert not (a[:, -1].any() or b[:, -1].any()) and a[:, 0].any() and a[:, 13].any()
    assert sum(part.count for part in parts_of(8, 1003)) == 1003


digest_once = functools.cache(digest)


@functools.cache
def whole() -> bytes:
    """The file of a corpus."""
    with tempfile.TemporaryDirectory() as folder:
        small().save(Path(folder) / "whole.corpus")
        return (Path(folder) / "whole.corpus").read_bytes()


def small(**changes: object) -> Corpus:
    count, seed = 1200, 9
    answers = Draw(count, 4).words(1).reshape(count).astype(np.uint32)
    fields = {
        "instruction": "mma.fp16.fp32",
        "input": "fp16",
        "output": "fp32",
        "k": 16,
        "count": count,
        "seed": seed,
        "inputs_sha256": digest_once(FP16, FP32, 16, count, seed),
        "answers": answers,
        "device": "a device",
        "driver": "13.0",
        "cuda": "13.0",
        "sass": ("HMMA.16816.F32",),
    }
    return Corpus(**{**fields, **changes})


def test_corpora_come_back(tmp_path: Path) -> None:
    written = small()
    written.save(tmp_path / "x.corpus")
    read = Corpus.load(tmp_path / "x.corpus")
    assert np.array_equal(read.answers, written.answers) and read.answers.dtype == np.uint32
    for name in ("instruction", "input", "output", "k", "count", "seed", "inputs_sha256", "device", "driver", "cuda"):
        assert getattr(read, name) == getattr(written, name)
    assert read.sass == written.sass and read.generator == written.generator
    inputs, sets = read.inputs(), list(read.sets())
    assert sum(len(d) for *_, d in sets) == read.count
    for (part, a, b, c), (same, *others, _) in zip(inputs, sets, strict=True):
        assert part == same and all(np.array_equal(x, y) for x, y in zip((a, b, c), others, strict=True))


def test_answers_to_other_vectors_are_refused() -> None:
    with pytest.raises(FileError, match="other vectors"):
        small(inputs_sha256="0" * 64).inputs()
    with pytest.raises(FileError, match="generator 0"):
        small(generator=0).inputs()


HEADER = ("format", "version", *corpus._FIELDS, "sass", "answers_sha256")


def damaged(content: bytes, how: str) -> bytes:
    line, _, payload = content.partition(b"\n")
    header = json.loads(line)
    if how == "empty":
        return b""
    if how == "no line":
        return b"x" * 100000
    if how == "no json":
        return b"{]\n" + payload
    if how == "deep":
        return b"[" * 60000 + b"\n" + payload
    if how == "list":
        return b"[1]\n" + payload
    if how == "truncated":
        return content[:-40]
    if how == "header alone":
        return line + b"\n"
    if how == "tail":
        return content + b"more"
    if how == "flipped":
        return content[:-200] + bytes([content[-200] ^ 1]) + content[-199:]
    if how == "other answers":
        return line + b"\n" + lzma.compress(bytes(4800))
    if how == "bomb":
        return line + b"\n" + lzma.compress(bytes(1 << 24))
    if how == "repeated":
        return line.replace(b'"k":', b'"k": 1, "k":') + b"\n" + payload
    if how.endswith(" left out"):
        del header[how.removesuffix(" left out")]
        return json.dumps(header).encode() + b"\n" + payload
    field, _, value = how.partition("=")
    header[field] = json.loads(value)
    return json.dumps(header).encode() + b"\n" + payload


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("empty", "no corpus"),
        ("no line", "no corpus"),
        ("no json", "no corpus"),
        ("deep", "no corpus"),
        ("list", "no corpus"),
        ('format="other"', "no corpus"),
        ("truncated", "damaged|bytes of answers"),
        ("header alone", "bytes of answers"),
        ("tail", "bytes of answers"),
        ("flipped", "damaged"),
        ("other answers", "checksum"),
        ("bomb", "bytes of answers"),
        ("version=2", "upgrade"),
        ('version="1"', "upgrade"),
        ("version=true", "upgrade"),
        ("version=0", "upgrade"),
        ("more=1", "malformed: unknown keys more"),
        ("repeated", "no corpus"),
        *((f"{key} left out", "malformed|no corpus|upgrade") for key in HEADER),
        ("k=0", "malformed"),
        ("k=true", "malformed"),
        ("count=-1", "malformed"),
        ("count=1e9", "malformed"),
        ("count=1201", "bytes of answers"),
        ('sass="x"', "malformed"),
        ("sass=[1]", "malformed"),
        ("device=null", "malformed"),
        ('output="fp128"', "unknown format"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, how: str, message: str) -> None:
    path = tmp_path / "x.corpus"
    path.write_bytes(damaged(whole(), how))
    with pytest.raises(FileError, match=message):
        Corpus.load(path)


def test_paths_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot read"):
        Corpus.load(tmp_path / "none")
    with pytest.raises(FileError, match="cannot write"):
        small().save(tmp_path / "none" / "x")


def test_version_stands_in_the_header(tmp_path: Path) -> None:
    small().save(tmp_path / "x")
    header = json.loads((tmp_path / "x").read_bytes().partition(b"\n")[0])
    assert header["format"] == corpus.MAGIC and header["version"] == corpus.VERSION
