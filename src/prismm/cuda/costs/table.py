"""What a GPU reaches, as a table: made by ``prismm calibrate``, or committed for GPUs that prismm was measured on.

What the GPU takes and what the host takes are apart: a slower host changes `call`, `torch` and `host_speed` alone.
Choices go by the GPU's own seconds, so that they are the same beside any host.

A table is JSON (`Rates.to_json`). For a GPU the first of these counts: the file that ``PRISMM_RATES`` names; the one
that ``prismm calibrate`` left in the user's cache folder; the committed one; an estimate (`costs.first_use`). They are
looked for once a process.
"""

from __future__ import annotations

import functools
import json
import math
import os
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from prismm.core import cache_files, strict_json
from prismm.cuda.costs.cublas import Cublas, CublasTimes, Errors
from prismm.cuda.costs.tuning import Tuning
from prismm.errors import ArgumentError, FileError

__all__ = [
    "Host",
    "Line",
    "Rates",
    "calibrated",
    "committed",
    "file_name",
    "rates_of",
    "read",
    "user_file",
    "usual_rates",
    "waves",
]

_FORMAT, _VERSION = "prismm rates", 6


@dataclass(frozen=True)
class Line:
    """Seconds that some launches take: `launch`, and for every element `element` and, times the moduli (or words),
    `modulus`.

    >>> Line(1.0, 0.5, 0.25).seconds(10, 2)
    11.0
    """

    launch: float
    element: float
    modulus: float

    def seconds(self, elements: float, moduli: float) -> float:
        """For so many elements."""
        return self.launch + elements * (self.element + moduli * self.modulus)


LONG = 0.02
"""Seconds of products on the matrix unit after which power limits them."""

_INSTRUCTIONS = 0.6
"""The share of a call's host time that is instructions: of two H200s' hosts one took 1.65 times as long for a call
where a loop took 1.7 times as long, the other one 1.4 times where it took 1.8 times.
"""


@dataclass(frozen=True)
class Host:
    """What a call that was made before takes besides the GPU: seconds until the GPU begins with it; and what it takes
    in all at least, when the GPU is done before the host has handed everything over.

    >>> host = Host(before=16.0, least=24.0)
    >>> host.seconds(2.0), host.seconds(30.0)
    (24.0, 46.0)
    """

    before: float
    least: float

    def seconds(self, gpu: float, host_factor: float = 1.0) -> float:
        """Of a call on an idle GPU, which works on it for so long, beside a host so many times as slow. Some of the
        host's share is instructions, which go with its speed; the rest is on the way to the GPU.
        """
        share = 1.0 + _INSTRUCTIONS * (host_factor - 1.0)
        # A short call waits for the host, a long one for the GPU, which begins before the host is done.
        return max(share * self.least, share * self.before + gpu)


@dataclass(frozen=True)
class Rates:
    """What a GPU reaches, for predictions: operations and bytes a second, seconds of launches. All but `call` and
    `torch` are the GPU's, of kernels that follow one another in a graph.

    Args:
        name: of the GPU, as its driver says it.
        processors: multiprocessors, for how well tiles fill it.
        float64, float32: operations a second of its own products.
        launch: seconds of a product of its own that is too small to count; check: of a kernel that finds nothing to do.
        memory: bytes a second.
        call, torch: the host's share in calls of prismm, of whatever kind, and of ``torch.mm``.
        host_speed: what `cuda.costs.host_speed.seconds` was on that host then.
        int8: operations a second of the products of residues, of short ones; sustained: of those that take so long that
            power limits them; product: seconds of the launch of one, or of one by words that are cut where they are
            multiplied.
        left, right: split of an operand, by elements and moduli.
        join, rounded: join of the result, by entries and moduli, in native grade and for correct rounding.
        finish: the launch of second looks and, for every entry in float64, what they take in native grade.
        repair: seconds an entry and term.
        multiword: operations a second of products of words of 16 bits; multiword_fused: of such as are cut where they
            are multiplied, 0 for GPUs without that kernel.
        multiword_split: split of operands, by elements and words of 16 bits.
        fp64_kernel: how many times as long products in one FP64 kernel take as on an H200.
        sm90: whether it has compute capability 9.0, for which there are kernels of its own.
        tuning: figures that are not measured by a calibration; cublas: how the time of cuBLAS's products follows from
            their shapes; errors: how far predictions are off. A table may lack these.
    """

    name: str
    processors: int
    float64: float
    float32: float
    launch: float
    check: float
    memory: float
    call: Host
    torch: Host
    host_speed: float
    int8: float
    sustained: float
    product: float
    left: Line
    right: Line
    join: Line
    rounded: Line
    finish: Line
    repair: float
    multiword: float
    multiword_fused: float
    multiword_split: Line
    fp64_kernel: float
    sm90: bool
    tuning: Tuning = field(default_factory=Tuning)
    cublas: Cublas = field(default_factory=Cublas)
    errors: Errors = field(default_factory=Errors)

    def native(self, precision: int) -> float:
        """Operations a second of the GPU's own products, by the result's precision."""
        return self.float64 if precision == 53 else self.float32

    def at_length(self, seconds: float) -> float:
        """What products take that would take so long if power never limited the matrix unit; whatever their type."""
        return seconds + max(0.0, seconds - LONG) * (self.int8 / self.sustained - 1.0)

    def one_pass_seconds(self, size: int) -> float:
        """Seconds of a kernel that reads or writes so many bytes once."""
        return self.check + size / self.memory

    def to_json(self) -> str:
        """The table as text, which `from_json` reads."""
        return json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str = "the table") -> Rates:
        """The table of a text.

        Raises:
            FileError: if the text is not such a table, is of another version or incomplete, or has unknown keys or
                numbers that are not positive.
        """
        try:
            content = strict_json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FileError(f"{source}: not JSON: {error}") from None
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise FileError(f"{source}: not a table of rates; make one with `prismm calibrate`")
        if not strict_json.is_version(content.get("version"), _VERSION):
            raise FileError(
                f"{source}: version {content.get('version')!r}, this prismm reads {_VERSION}; make one with `prismm "
                f"calibrate`"
            )
        _refuse_unknown(source, content, cls, {"format", "version"})
        given: dict[str, Any] = {}
        for part in fields(cls):
            value = content.get(part.name)
            # Annotations are strings here, and name the types of fields.
            if part.type in _PARTS:
                kind, names, least = _PARTS[str(part.type)]
                if not isinstance(value, dict) or set(value) != set(names):
                    listed = " and ".join((", ".join(names[:-1]), names[-1]))
                    raise FileError(f"{source}: {part.name} is {value!r}, not {listed}")
                numbers = {key: _number(source, f"{part.name}.{key}", x, least) for key, x in value.items()}
                given[part.name] = kind(**numbers)
            elif part.type in _GROUPS:
                given[part.name] = _group(source, part.name, _GROUPS[str(part.type)], {} if value is None else value)
            else:
                least = 0.0 if part.name in _MAY_BE_0 else _POSITIVE
                given[part.name] = _plain(source, part.name, str(part.type), value, least)
        return cls(**given)


def waves(tiles: int, processors: int) -> float:
    """How much of a GPU so many tiles keep busy.

    >>> waves(66, 132), waves(198, 132)
    (0.5, 0.75)
    """
    return tiles / (-(-tiles // processors) * processors) if tiles else 1.0


_POSITIVE = math.ulp(0.0)
_MAY_BE_0 = {"multiword_fused", "fp8", "kernel_start", "kernel", "scattered", "residues", "multiword"}
_GROUPS = {"Tuning": Tuning, "Cublas": Cublas, "Errors": Errors}

_PARTS: dict[str, tuple[type[Line] | type[Host], tuple[str, ...], float]] = {
    kind.__name__: (kind, tuple(part.name for part in fields(kind)), least)
    for kind, least in ((Line, 0.0), (Host, _POSITIVE))
}
"""Fields of several numbers: their class, its names, and what each is at least."""


def _refuse_unknown(source: str, content: dict[str, Any], kind: Any, besides: set[str]) -> None:
    unknown = sorted(content.keys() - {part.name for part in fields(kind)} - besides)
    if unknown:
        raise FileError(f"{source}: unknown keys {', '.join(unknown)}; make a table with `prismm calibrate`")


def _group(source: str, name: str, kind: Any, value: Any) -> Any:
    """The figures that a table has; those that it lacks, as tables of other GPUs do, are the usual ones."""
    if not isinstance(value, dict):
        raise FileError(f"{source}: {name} is {value!r}, not a table of figures")
    _refuse_unknown(source, value, kind, set())
    kinds, given = {part.name: str(part.type) for part in fields(kind)}, {}
    for key, x in value.items():
        within = f"{name}.{key}"
        if kinds[key] == "CublasTimes":
            given[key] = _times(source, within, x)
        else:
            given[key] = _plain(source, within, kinds[key], x, 0.0 if key in _MAY_BE_0 else _POSITIVE)
    return kind(**given)


def _times(source: str, name: str, value: Any) -> CublasTimes:
    """What a table says of one type: all of it."""
    names = [part.name for part in fields(CublasTimes)]
    if not isinstance(value, dict) or set(value) != set(names):
        raise FileError(f"{source}: {name} is {value!r}, not {', '.join(names)}")
    times = CublasTimes(**{key: _number(source, f"{name}.{key}", x, 0.0) for key, x in value.items()})
    if times.share == 0.0 or not times.tiles():
        raise FileError(f"{source}: {name} has no share of the rate, or no tiles")
    return times


def _plain(source: str, name: str, kind: str, value: Any, least: float = _POSITIVE) -> Any:
    """A value of this type, as a field declares it."""
    if kind == "bool":
        if not isinstance(value, bool):
            raise FileError(f"{source}: {name} is {value!r}, not true or false")
        return value
    if kind == "str":
        if not isinstance(value, str) or not value:
            raise FileError(f"{source}: {name} is {value!r}, not a name")
        return value
    number = _number(source, name, value, least)
    if kind == "int" and not isinstance(value, int):
        raise FileError(f"{source}: {name} is {value!r}, not an integer")
    return int(number) if kind == "int" else number


def _number(source: str, name: str, value: Any, least: float = _POSITIVE) -> float:
    # A bool is an int to Python, and NaN fails any comparison.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= sys.float_info.max:
        raise FileError(f"{source}: {name} is {value!r}, not a number above 0")
    return float(value)


def read(path: Path) -> Rates:
    """The table in a file.

    Raises:
        FileError: where it cannot be read, or is none.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    return _decoded(path, content)


def _decoded(path: Path, content: bytes) -> Rates:
    try:
        return Rates.from_json(content.decode("utf-8"), str(path))
    except UnicodeDecodeError:
        raise FileError(f"{path}: not a table of rates; make one with `prismm calibrate`") from None


@functools.cache
def committed() -> dict[str, Rates]:
    """The tables that prismm brings, by the GPU's name.

    >>> sorted(committed())
    ['NVIDIA H100 80GB HBM3', 'NVIDIA H200']
    """
    folder = Path(__file__).parent
    tables = [read(path) for path in sorted(folder.glob("nvidia-*.json"))]
    return {table.name: table for table in tables}


def usual_rates() -> Rates:
    """What stands for a GPU whose rates are not known."""
    return committed()["NVIDIA H200"]


def file_name(name: str) -> str:
    """Of the table of a GPU of this name.

    >>> file_name("NVIDIA H200")
    'nvidia-h200.json'
    """
    return "-".join("".join(x if x.isalnum() else " " for x in name.lower()).split()) + ".json"


def user_file(name: str, make: bool = False) -> Path | None:
    """Where ``prismm calibrate`` puts the table of a GPU of this name, those of other versions being elsewhere; None
    where there is no folder for it. make: whether that is made.
    """
    found = cache_files.folder(f"rates-{_VERSION}", make)
    return None if found is None else found / file_name(name)


@functools.cache
def rates_of(name: str) -> Rates | None:
    """The table of a GPU of this name, an estimate where it was not calibrated; None where nothing is known of it.

    Raises:
        FileError: for a damaged file. ArgumentError: where ``PRISMM_RATES`` names the table of another GPU.
    """
    from prismm.cuda.costs.first_use import estimated

    return calibrated(name) or estimated(name)


def calibrated(name: str) -> Rates | None:
    """The table that was measured on a GPU of this name by ``prismm calibrate``; raises like `rates_of`."""
    asked = os.environ.get("PRISMM_RATES")
    if asked:
        table = read(Path(asked))
        if table.name != name:
            raise ArgumentError(f"PRISMM_RATES={asked!r} has the rates of {table.name}, this is {name}; unset it")
        return table
    path = user_file(name)
    return (None if path is None else _read_user_table(path)) or committed().get(name)


def _read_user_table(path: Path) -> Rates | None:
    """The table of the user's own in a file; None where there is none, or another user may have written it."""
    try:
        content = cache_files.read(path)
    except FileError as error:
        # A table that nobody named is an offer: without it the committed one serves, so this is no error.
        cache_files.tell(f"warning: a table of rates is not loaded: {error}")
        return None
    except OSError:
        return None
    return _decoded(path, content)
