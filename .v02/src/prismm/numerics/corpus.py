"""Hostile test vectors for matrix instructions, in bit patterns, and files of what hardware answered to them.

Vectors come from an integer generator of this file's own, so the same arguments give the same bits on every machine
and in every version of NumPy; a corpus therefore stores answers only, and the digest of the inputs they belong to. The
first vectors of a longer list are those of a shorter one.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prismm.core import strict_json
from prismm.errors import ArgumentError, FileError
from prismm.formats import Format, Integer, format_named
from prismm.numerics.encodings import storage
from prismm.numerics.hostile import GENERATOR, shortened, vectors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bits = NDArray[np.unsignedinteger[Any]]

__all__ = ["Corpus", "Part", "digest", "parts_of", "problems", "update", "vectors"]

MAGIC = "prismm corpus"
VERSION = 1
"""Of the file: a line of JSON (the header), a line feed, and the answers as little-endian words, xz-compressed."""

_HEADER_BYTES = 1 << 16


@dataclass(frozen=True)
class Part:
    """Problems of one length in a corpus.

    Args:
        length: products per problem, a multiple of the instruction's k.
        count: problems.
        short: whether every problem has fewer products than an instruction, and +0 · +0 behind them.
    """

    length: int
    count: int
    short: bool = False


def parts_of(k: int, count: int) -> tuple[Part, ...]:
    """How a corpus of ``count`` problems is divided: 3/4 of one instruction, and 1/12 each of 2, of 4, and of less.

    >>> [(part.length, part.count, part.short) for part in parts_of(16, 1200)]
    [(16, 900, False), (32, 100, False), (64, 100, False), (16, 100, True)]
    """
    some = count // 12
    return (Part(k, count - 3 * some), Part(2 * k, some), Part(4 * k, some), Part(k, some, short=True))


def problems(
    input: Format | Integer, output: Format | Integer, k: int, count: int, seed: int
) -> Iterator[tuple[Part, Bits, Bits, Bits]]:
    """The parts of a corpus with their vectors: (part, a, b, c), a and b of shape (part.count, part.length)."""
    for number, part in enumerate(parts_of(k, count)):
        a, b, c = vectors(input, output, part.length, part.count, seed + number)
        if part.short:
            a, b = shortened(a, b, seed + number)
        yield part, a, b, c


def digest(input: Format | Integer, output: Format | Integer, k: int, count: int, seed: int) -> str:
    """SHA-256 of all vectors of a corpus, in hexadecimal."""
    found = hashlib.sha256()
    for _, a, b, c in problems(input, output, k, count, seed):
        update(found, a, b, c)
    return found.hexdigest()


def update(sha: hashlib._Hash, *vectors: Bits) -> None:
    """Take vectors into a digest."""
    for x in vectors:
        sha.update(x.astype(x.dtype.newbyteorder("<")).tobytes())


@dataclass(frozen=True, eq=False)
class Corpus:
    """What an instruction of one device answered to `problems`.

    Args:
        instruction: its name, as `prismm.numerics.hardware.instructions` has it.
        input: name of the format of the factors.
        output: name of the format of C and D.
        k: products in one instruction.
        count: problems.
        seed: of the vectors.
        inputs_sha256: `digest` of the vectors.
        answers: patterns of D, (count,), in the order of `problems`.
        device: name of the device.
        driver: version of CUDA its driver supports.
        cuda: version of the compiler.
        sass: mnemonics of the matrix instructions that ran; empty if unknown.
        generator: version of the generator of the vectors.
    """

    instruction: str
    input: str
    output: str
    k: int
    count: int
    seed: int
    inputs_sha256: str
    answers: Bits
    device: str
    driver: str
    cuda: str
    sass: tuple[str, ...] = ()
    generator: int = GENERATOR

    def sets(self) -> Iterator[tuple[Part, Bits, Bits, Bits, Bits]]:
        """The parts with their vectors and answers: (part, a, b, c, d). The vectors are not verified: see `inputs`."""
        first = 0
        source, result = format_named(self.input), format_named(self.output)
        for part, a, b, c in problems(source, result, self.k, self.count, self.seed):
            yield part, a, b, c, self.answers[first : first + part.count]
            first += part.count

    def inputs(self) -> list[tuple[Part, Bits, Bits, Bits]]:
        """The vectors, generated anew and verified.

        Raises:
            FileError: if they are not those that were answered, because the generator has changed.
        """
        source, result = format_named(self.input), format_named(self.output)
        if self.generator != GENERATOR or self.inputs_sha256 != digest(source, result, self.k, self.count, self.seed):
            raise FileError(
                f"the answers of {self.instruction} belong to other vectors (generator {self.generator}, here "
                f"{GENERATOR}); collect them anew, or read them with the version of prismm that wrote them"
            )
        return list(problems(source, result, self.k, self.count, self.seed))

    def save(self, path: str | Path) -> None:
        """Write the corpus to a file.

        Raises:
            FileError: if it cannot be written.
        """
        words = self.answers.astype(self.answers.dtype.newbyteorder("<")).tobytes()
        header = {
            "format": MAGIC,
            "version": VERSION,
            **{name: getattr(self, name) for name in _FIELDS},
            "sass": list(self.sass),
            "answers_sha256": hashlib.sha256(words).hexdigest(),
        }
        try:
            Path(path).write_bytes(json.dumps(header).encode() + b"\n" + lzma.compress(words, preset=9))
        except OSError as error:
            raise FileError(f"cannot write {path}: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> Corpus:
        """Read a corpus from a file; nothing in it is trusted.

        Raises:
            FileError: if it cannot be read, is no corpus, is truncated or damaged, or of a newer version.
        """
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise FileError(f"cannot read {path}: {error}") from error
        line, found, payload = content[:_HEADER_BYTES].partition(b"\n")
        if not found:
            raise FileError(f"{path} is no corpus: it has no header; pass a file that Corpus.save wrote")
        return cls._parsed(path, _header(path, line), content[len(line) + 1 :] if payload else b"")

    @classmethod
    def _parsed(cls, path: str | Path, header: dict[str, Any], payload: bytes) -> Corpus:
        import numpy as np

        kind = storage(format_named(header["output"]))
        size = header["count"] * kind.itemsize
        reader = lzma.LZMADecompressor(format=lzma.FORMAT_XZ)
        try:
            words = reader.decompress(payload, max_length=size + 1)  # no more memory than the header promises
        except (lzma.LZMAError, EOFError, MemoryError) as error:
            raise FileError(f"{path} is damaged: {error}; fetch or collect it anew") from error
        if len(words) != size or not reader.eof or reader.unused_data:
            raise FileError(f"{path} holds {len(words)} bytes of answers where {size} belong; fetch or collect it anew")
        if hashlib.sha256(words).hexdigest() != header["answers_sha256"]:
            raise FileError(f"{path} is damaged: its answers do not have their checksum; fetch or collect it anew")
        answers = np.frombuffer(words, kind.newbyteorder("<")).astype(kind)
        return cls(**{name: header[name] for name in _FIELDS}, sass=tuple(header["sass"]), answers=answers)


_FIELDS: dict[str, type] = {
    "instruction": str,
    "input": str,
    "output": str,
    "k": int,
    "count": int,
    "seed": int,
    "inputs_sha256": str,
    "device": str,
    "driver": str,
    "cuda": str,
    "generator": int,
}


def _header(path: str | Path, line: bytes) -> dict[str, Any]:
    """The header of a file, with every field there and of its type."""
    try:
        header = strict_json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise FileError(
            f"{path} is no corpus: its first line is no JSON; pass a file that Corpus.save wrote"
        ) from error
    if not isinstance(header, dict) or header.get("format") != MAGIC:
        raise FileError(f"{path} is no corpus: its header does not say {MAGIC!r}; pass a file that Corpus.save wrote")
    version = header.get("version")
    if not strict_json.is_version(version, VERSION):
        raise FileError(f"{path} is a corpus of version {version!r}, and {VERSION} is known here; upgrade prismm")
    known = {**_FIELDS, "sass": list, "answers_sha256": str}
    unknown = sorted(header.keys() - known.keys() - {"format", "version"})
    if unknown:
        raise FileError(f"{path} is malformed: unknown keys {', '.join(unknown)}; fetch or collect it anew")
    for name, kind in known.items():
        if not isinstance(header.get(name), kind) or isinstance(header[name], bool):
            raise FileError(f"{path} is malformed: {name} is {header.get(name)!r}, no {kind.__name__}")
    if not 1 <= header["k"] <= 4096 or not 0 <= header["count"] <= 1 << 28:
        raise FileError(f"{path} is malformed: k is {header['k']} and count {header['count']}")
    if not all(isinstance(name, str) for name in header["sass"]):
        raise FileError(f"{path} is malformed: sass is {header['sass']!r}")
    for name in ("input", "output"):
        try:
            format_named(header[name])
        except ArgumentError as error:
            raise FileError(f"{path} is malformed, or of a newer version: {error}") from error
    return header
