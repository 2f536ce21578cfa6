"""Matrix Market .mtx files (array and coordinate, gzip or not), read strictly and written exactly.

Every number is read as the nearest float64; an integer that is no float64 and a decimal beyond
float64's range are errors, never silently altered. Where a coordinate file gives an entry several
times, their sum is meant: it is made exactly and rounded once. Errors name the line. Format: Boisvert,
Pozo, Remington, "The Matrix Market Exchange Formats: Initial Design", NISTIR 5935 (1996), and what the
writers of SciPy, Julia and MATLAB make of it.
"""

from __future__ import annotations

import gzip
import itertools
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import IO, Any, Literal, NoReturn, Protocol

import numpy as np

from prismm.errors import FileError
from prismm.files.source import compression, open_regular

_CHUNK = 1 << 16  # numbers written at a time
_BLOCK = 1 << 20  # bytes read at a time
_LINE = 1 << 20  # bytes of a line: one of a small gzip file might fill the memory
_LONGEST = 1024  # characters a line may have, by the format's definition
_DIGITS = 18  # of a size: NumPy's do not exceed 2^63
_FIELDS = {"real": 1, "double": 1, "integer": 1, "unsigned-integer": 1, "complex": 2, "pattern": 0}
"""Numbers per entry; "double" and "unsigned-integer" are others' names."""
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")

_FORTRAN = re.compile(rb"([+-]?(?:\d+\.?\d*|\.\d+))(?:[dDqQ]([+-]?\d+)|([+-]\d+))")
"""1.5D+3, and 1.5+103, which is how Fortran writes exponents of three digits."""

Allocate = Callable[[tuple[int, int], "np.dtype[Any]", Literal["C", "F"]], "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class Header:
    """What the first lines say; ``line`` is the number of the line of sizes, ``diagonal`` whether an array has it."""

    layout: str
    field: str
    symmetry: str
    shape: tuple[int, int]
    entries: int
    line: int
    diagonal: bool = True

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type that the matrix is read as."""
        return np.dtype(np.complex128 if self.field == "complex" else np.float64)

    @property
    def integer(self) -> bool:
        """Whether its numbers are integers."""
        return self.field in ("integer", "unsigned-integer")


def describe(path: Path) -> Header:
    """The header of ``path``; FileError, with the line, where it does not follow the format."""
    with open_text(path) as stream:
        return _read_header(path, stream)


def read(path: Path, allocate: Allocate) -> np.ndarray[Any, Any]:
    """The matrix in ``path``, dense: float64, or complex128 for a complex field.

    ``allocate(shape, dtype, order)`` gives the zeroed array to fill.
    """
    whole = _has_diagonal(path)
    with open_text(path) as stream:
        header = _read_header(path, stream)
        if whole:
            header = replace(header, diagonal=True, entries=header.entries + header.shape[0])
        array = header.layout == "array"
        out = allocate(header.shape, header.dtype, "F" if array else "C")
        put: _Fill = _ArrayFill(header, out) if array else _CoordinateFill(header, out)
        found, promise = 0, f"{header.entries} entries that line {header.line} promises"
        for lines, columns in _columns(path, stream, header):
            found += len(lines)
            if found > header.entries:
                bad(path, lines[header.entries - found], f"more than the {promise}")
            _store(path, header, put, lines, columns)
        if found < header.entries:
            raise FileError(f"{path}: truncated: {found} of the {promise}")
        wrong = put.finish()
        if wrong is not None:
            raise FileError(f"{path}: {wrong}")
    return out


def _has_diagonal(path: Path) -> bool:
    """Whether this is a skew-symmetric array with its zero diagonal, which MATLAB's writer does not leave out."""
    with open_text(path) as stream:
        header = _read_header(path, stream)
        if header.diagonal or header.layout != "array":
            return False
        found = sum(len(lines) for lines, _ in _columns(path, stream, header))
        return found == header.entries + header.shape[0]


def write(stream: IO[bytes], array: np.ndarray[Any, Any]) -> None:
    """Write a matrix as a dense general array, every value exactly; bools as the integers 0 and 1."""
    complex_ = array.dtype.kind == "c"
    rows, columns = array.shape
    field = {"c": "complex", "b": "integer"}.get(array.dtype.kind, "real")
    stream.write(f"%%MatrixMarket matrix array {field} general\n{rows} {columns}\n".encode())
    step = max(1, _CHUNK // max(1, rows))
    for first in range(0, columns, step):
        values = np.asarray(array[:, first : first + step]).T.reshape(-1)
        if complex_:
            text = (f"{z.real!r} {z.imag!r}\n" for z in values.tolist())
        elif field == "integer":
            text = (f"{x:d}\n" for x in values.tolist())
        else:
            text = (f"{x!r}\n" for x in values.tolist())
        stream.write("".join(text).encode())


@contextmanager
def open_text(path: Path) -> Iterator[IO[bytes]]:
    """The decompressed bytes of a file; every way of failing to read them is a FileError."""
    try:
        with open_regular(path) as raw:
            by = compression(raw)
            if by is None:
                yield raw
            elif by == "gzip":
                with gzip.GzipFile(fileobj=raw) as stream:
                    yield stream  # type: ignore[misc]
            else:
                raise FileError(f"{path}: is compressed by {by}; decompress it, or compress it by gzip")
    except FileError:
        raise
    except EOFError as error:
        raise FileError(f"{path}: truncated gzip file") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise FileError(f"{path}: not a gzip file, or a damaged one: {error}") from error
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error


def bad(path: Path, line: int, what: str) -> NoReturn:
    """FileError for a line."""
    raise FileError(f"{path}, line {line}: {what}")


def show(token: bytes) -> str:
    """The beginning of a token, for a message."""
    return repr(token[:40].decode("ascii", "backslashreplace"))


def _read_header(path: Path, stream: IO[bytes]) -> Header:
    banner = stream.readline(_LONGEST + 1).removeprefix(b"\xef\xbb\xbf")
    if banner[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise FileError(f"{path}: is UTF-16 text; write it as UTF-8, e.g. iconv -f utf-16 -t utf-8")
    if b"\r" in banner.rstrip(b"\r\n"):
        raise FileError(f"{path}: its lines end in carriage returns alone; end them in line feeds")
    words = banner.lower().split()
    if len(words) == 5 and words[0] == b"%%matrixmarket" and words[1] == b"vector":
        bad(path, 1, "holds a vector; write it as a matrix of one column")
    # MATLAB's writer calls a dense matrix "mtx".
    if len(words) != 5 or words[0] != b"%%matrixmarket" or words[1] not in (b"matrix", b"mtx"):
        form = "%%MatrixMarket matrix array|coordinate real|integer|complex|pattern general|…"
        bad(path, 1, f"{show(banner.strip())} is no Matrix Market banner ({form})")
    layout, field, symmetry = (word.decode("ascii", "backslashreplace") for word in words[2:])
    if layout not in ("array", "coordinate"):
        bad(path, 1, f"layout {layout!r}; pass array or coordinate")
    if field not in _FIELDS:
        bad(path, 1, f"field {field!r}; pass real, integer, complex or pattern")
    if symmetry not in _SYMMETRIES:
        bad(path, 1, f"symmetry {symmetry!r}; pass {', '.join(_SYMMETRIES)}")
    if field == "pattern" and (layout == "array" or symmetry == "skew-symmetric"):
        bad(path, 1, f"a pattern cannot be {layout} {symmetry}; write its values, with a real or an integer field")
    for line in itertools.count(2):
        text = _line(path, stream, line)
        if not text:
            raise FileError(f"{path}: truncated: ends before the line of sizes")
        if text.strip() and not text.lstrip().startswith(b"%"):
            break
    sizes = text.split()
    wanted = 2 if layout == "array" else 3
    if len(sizes) != wanted or not all(size.isdigit() for size in sizes):
        names = "rows columns" + (" entries" if wanted == 3 else "")
        bad(path, line, f"{show(text.strip())} where the {wanted} sizes belong ({names})")
    if max(map(len, sizes)) > _DIGITS:
        bad(path, line, f"{show(text.strip())} has a size of more than {_DIGITS} digits; write one that can be held")
    m, n = int(sizes[0]), int(sizes[1])
    if symmetry != "general" and m != n:
        bad(path, line, f"a {symmetry} matrix is square, not {m}x{n}")
    if layout == "coordinate":
        entries = int(sizes[2])
    elif symmetry == "general":
        entries = m * n
    else:
        entries = n * (n - 1) // 2 if symmetry == "skew-symmetric" else n * (n + 1) // 2
    return Header(layout, field, symmetry, (m, n), entries, line, symmetry != "skew-symmetric")


def _columns(path: Path, stream: IO[bytes], header: Header) -> Iterator[tuple[Sequence[int], list[Sequence[bytes]]]]:
    """Chunks of entry lines: their line numbers, and their tokens column by column."""
    width = _FIELDS[header.field] + (2 if header.layout == "coordinate" else 0)
    line = header.line
    for texts in blocks(path, stream, line + 1):
        rows = [text.split() for text in texts]
        numbers: Sequence[int] = range(line + 1, line + 1 + len(rows))
        line += len(rows)
        if set(map(len, rows)) != {width} or b"%" in b"".join(texts):
            # Blank lines and comments may stand between entries; another width is an error.
            pairs = zip(numbers, rows, strict=True)
            content = [(i, row) for i, row in pairs if row and row[0][:1] != b"%"]
            for i, row in content:
                if len(row) != width:
                    bad(path, i, f"{show(b' '.join(row))} where {width} numbers belong")
            numbers, rows = [i for i, _ in content], [row for _, row in content]
        if rows:
            yield numbers, list(zip(*rows, strict=True))


def _line(path: Path, stream: IO[bytes], number: int) -> bytes:
    """What follows of a line; FileError where that is too much."""
    text = stream.readline(_LINE)
    if len(text) == _LINE and not text.endswith(b"\n"):
        bad(path, number, f"has more than {_LINE} bytes; break it, or leave it out where it is a comment")
    return text


def blocks(path: Path, stream: IO[bytes], line: int) -> Iterator[list[bytes]]:
    """The lines from this one on, some at a time."""
    while block := stream.read(_BLOCK):
        if not block.endswith(b"\n"):
            block += _line(path, stream, line + block.count(b"\n"))
        texts = block.removesuffix(b"\n").split(b"\n")
        yield texts
        line += len(texts)


def _store(path: Path, header: Header, put: _Fill, lines: Sequence[int], columns: list[Sequence[bytes]]) -> None:
    """Parse one chunk and hand it to the filler, turning its complaints into errors with a line."""
    numbers, i, j = columns, np.empty(0, np.int64), np.empty(0, np.int64)
    if header.layout == "coordinate":
        i = _indices(path, lines, columns[0], header.shape[0], "row")
        j = _indices(path, lines, columns[1], header.shape[1], "column")
        numbers = columns[2:]
    values = np.ones(len(lines), header.dtype)
    if header.field == "complex":
        values.real = floats(path, lines, numbers[0])
        values.imag = floats(path, lines, numbers[1])
    elif header.integer:
        values = _integers(path, lines, numbers[0])
    elif header.field != "pattern":
        values = floats(path, lines, numbers[0])
    complaint = put(i, j, values)
    if complaint is not None:
        place, what = complaint
        bad(path, lines[place], what)


def _parse(
    path: Path,
    lines: Sequence[int],
    tokens: Sequence[bytes],
    kind: Callable[[bytes], Any],
    what: str,
) -> list[Any]:
    """Every token through ``kind``; the line of the first that it does not take."""
    try:
        if b"_" in b"".join(tokens):  # Python alone reads 1_000 as a number
            raise ValueError
        return list(map(kind, tokens))
    except ValueError:
        for line, token in zip(lines, tokens, strict=True):
            try:
                kind(token.replace(b"_", b"?"))
            except ValueError:
                bad(path, line, f"{show(token)} is not {what}")
        raise


def floats(path: Path, lines: Sequence[int], tokens: Sequence[bytes]) -> np.ndarray[Any, Any]:
    """Tokens to the nearest float64 each (Python's float rounds correctly)."""
    try:
        if b"_" in b"".join(tokens):
            raise ValueError
        values = np.array(list(map(float, tokens)))
    except ValueError:
        values = np.array(_parse(path, lines, tokens, _decimal, "a number"))
    for place in np.flatnonzero(np.isinf(values)).tolist():
        if b"i" not in tokens[place].lower():
            bad(path, lines[place], f"{show(tokens[place])} is beyond the range of float64")
    return values


def _decimal(token: bytes) -> float:
    """A number as C or Fortran writes it."""
    found = _FORTRAN.fullmatch(token)
    return float(token if found is None else found[1] + b"e" + (found[2] or found[3]))


def _integers(path: Path, lines: Sequence[int], tokens: Sequence[bytes]) -> np.ndarray[Any, Any]:
    """Integer tokens as float64, each exactly."""
    values = _parse(path, lines, tokens, int, "an integer, as the file's field has it")
    if max(max(values), -min(values)) > 1 << 53:
        for line, value in zip(lines, values, strict=True):
            if not exact(value):
                bad(path, line, f"the integer {value} is no float64, {_WIDE}")
    return np.array(values, np.float64)


def exact(value: int) -> bool:
    """Whether an integer is a float64: at most 53 bits between its ends, below 2^1024."""
    magnitude = abs(value)
    trailing = (magnitude & -magnitude).bit_length() - 1
    return magnitude.bit_length() - trailing <= 53 and magnitude.bit_length() <= 1024


def _indices(path: Path, lines: Sequence[int], tokens: Sequence[bytes], size: int, name: str) -> np.ndarray[Any, Any]:
    """One-based indices to zero-based int64, each in range."""
    values = _parse(path, lines, tokens, int, f"a {name} index")
    if min(values) < 1 or max(values) > size:
        for line, value in zip(lines, values, strict=True):
            if not 1 <= value <= size:
                bad(path, line, f"{name} {value} is not between 1 and {size}")
    return np.array(values, np.int64) - 1


_WIDE = "and a real field would round it; integers of 64 bits are multiplied exactly from .npy files"


class _Fill(Protocol):
    """Stores a chunk of entries; returns (place in the chunk, what is wrong) instead of raising.

    ``finish`` is called after the last one, and returns what is wrong with them all.
    """

    def __call__(
        self, i: np.ndarray[Any, Any], j: np.ndarray[Any, Any], values: np.ndarray[Any, Any]
    ) -> tuple[int, str] | None: ...

    def finish(self) -> str | None: ...


class _ArrayFill:
    """Stores an array file's values: column by column, only the lower triangle if symmetric."""

    def __init__(self, header: Header, out: np.ndarray[Any, Any]) -> None:
        self._header, self._out, self._next = header, out, 0
        n = 0 if header.symmetry == "general" else header.shape[1]
        first = np.arange(n, dtype=np.int64)
        length = n - first - (not header.diagonal)
        self._starts = np.concatenate([[0], np.cumsum(length)[:-1]]) if n else first

    def __call__(
        self, i: np.ndarray[Any, Any], j: np.ndarray[Any, Any], values: np.ndarray[Any, Any]
    ) -> tuple[int, str] | None:
        place = np.arange(self._next, self._next + len(values))
        self._next += len(values)
        if self._header.symmetry == "general":
            # Allocated column-major, so that the transpose is one contiguous run.
            self._out.T.reshape(-1)[place[0] : place[-1] + 1] = values
            return None
        j = np.searchsorted(self._starts, place, side="right") - 1
        i = place - self._starts[j] + j + (not self._header.diagonal)
        return _mirror(self._header, self._out, i, j, values)

    def finish(self) -> None:
        """Every entry has been stored."""


class _CoordinateFill:
    """Stores (row, column, value) entries, and at the end the sums of those that are there several times."""

    def __init__(self, header: Header, out: np.ndarray[Any, Any]) -> None:
        self._header, self._out = header, out
        self._more: dict[tuple[int, int], list[Any]] = {}  # values beside the one that is stored
        self._sides = np.zeros(2, bool)  # of the diagonal, below and above, that have entries

    def __call__(
        self, i: np.ndarray[Any, Any], j: np.ndarray[Any, Any], values: np.ndarray[Any, Any]
    ) -> tuple[int, str] | None:
        place = np.flatnonzero(values != 0)  # NaN != 0 as well
        i, j, values = i[place], j[place], values[place]
        if self._header.symmetry != "general":
            above = i < j
            self._sides |= (i > j).any(), above.any()
            values = np.where(above, _mirrored(self._header, values), values)
            i, j = np.maximum(i, j), np.minimum(i, j)
        _, first = np.unique(i * self._header.shape[1] + j, return_index=True)
        new = np.zeros(len(i), bool)
        new[first] = True
        new &= self._out[i, j] == 0
        again = np.flatnonzero(~new)
        if len(again) and self._header.field == "pattern":
            at = int(again[0])
            return int(place[at]), f"the pattern has entry ({i[at] + 1}, {j[at] + 1}) already; write each of them once"
        for at in again.tolist():
            self._more.setdefault((int(i[at]), int(j[at])), []).append(values[at].item())
        # A repeated entry of the diagonal is looked at too.
        complaint = _mirror(self._header, None, i, j, values)
        if complaint is not None:
            return int(place[complaint[0]]), complaint[1]
        _mirror(self._header, self._out, i[new], j[new], values[new])
        return None

    def finish(self) -> str | None:
        """Store the sums."""
        for (i, j), more in self._more.items():
            entry = f"entry ({i + 1}, {j + 1}), which is there {len(more) + 1} times,"
            if i != j and self._sides.all():
                return (
                    f"{entry} may be meant as its own mirror image, for a {self._header.symmetry} matrix has one "
                    'triangle only: leave the other one out, or write "general"'
                )
            values = [self._out[i, j].item(), *more]
            try:
                if self._header.field == "complex":
                    total: Any = complex(_sum([z.real for z in values]), _sum([z.imag for z in values]))
                else:
                    total = _sum(values)
            except OverflowError:
                return f"{entry} has a sum beyond the range of float64"
            if self._header.integer and sum(map(int, values)) != total:
                return f"{entry} has the sum {sum(map(int, values))}, which is no float64, {_WIDE}"
            _mirror(self._header, self._out, np.array([i]), np.array([j]), np.array([total]))
        return None


def _sum(values: list[float]) -> float:
    """The sum, rounded once; OverflowError where that is beyond float64's range.

    >>> _sum([1e308, 1e308, -1e308, 2.0**970])
    1e+308
    >>> _sum([1.0, math.inf, 1e308]), _sum([math.inf, -math.inf])
    (inf, nan)
    """
    special = [x for x in values if not math.isfinite(x)]
    if special:
        return sum(special)
    try:
        return math.fsum(values)
    except OverflowError:  # of a partial sum
        return float(sum(map(Fraction, values)))


def _mirrored(header: Header, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What stands at (j, i) where these stand at (i, j)."""
    if header.symmetry == "skew-symmetric":
        return -values
    return values.conj() if header.symmetry == "hermitian" else values


def _mirror(
    header: Header,
    out: np.ndarray[Any, Any] | None,
    i: np.ndarray[Any, Any],
    j: np.ndarray[Any, Any],
    values: np.ndarray[Any, Any],
) -> tuple[int, str] | None:
    """Store entries and their mirror images, if there is an ``out``; complain about a diagonal that cannot be."""
    if header.symmetry in ("skew-symmetric", "hermitian"):
        skew = header.symmetry == "skew-symmetric"
        wrong = (i == j) & ((values if skew else values.imag) != 0)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            return at, f"the diagonal of a {header.symmetry} matrix is {'zero' if skew else 'real'}, not {values[at]}"
    if out is None:
        return None
    out[i, j] = values
    if header.symmetry != "general":
        below = i != j
        out[j[below], i[below]] = _mirrored(header, values)[below]
    return None
