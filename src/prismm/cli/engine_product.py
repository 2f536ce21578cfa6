"""A product of two files as a matrix engine makes it, and how wrong that is beside exact arithmetic and IEEE FP32."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm import files, metrics
from prismm.cli.console import columns, said_unless_soon, say, table
from prismm.cli.documents import check_beside, check_new, is_there
from prismm.errors import ArgumentError, DTypeError, FileError, ShapeError
from prismm.files.target import Target, part_of
from prismm.formats import FP16, FP32, FP64, Format, Integer
from prismm.numerics.encodings import foreign
from prismm.testing import exact_product

if TYPE_CHECKING:
    from prismm.numerics.model import EngineModel

    Array = np.ndarray[Any, Any]

_SAMPLE = 48  # rows and columns whose entries are compared with the exact product, if there are more
_LARGE = 1 << 22  # products of two numbers: about a second of the slowest models
_ANSWER = "IEEE fp32"


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    models: list[EngineModel]
    a: Path
    b: Path
    output: Path | None
    split_k: int
    promote: int | None
    rounded: bool
    force: bool
    announced: bool


@dataclass(frozen=True)
class Row:
    """How wrong one product is, at worst over the entries compared.

    Args:
        name: of the engine.
        componentwise: largest |error| / (|A||B|).
        frobenius: ‖error‖_F / ‖C‖_F.
        ulps: largest error in units of the last place; None where the type has none of its own here.
        seconds: that it took.
        sha256: of its bits.
    """

    name: str
    componentwise: float
    frobenius: float
    ulps: float | None
    seconds: float
    sha256: str


@dataclass(frozen=True)
class Compared:
    """The products' errors."""

    product: str
    how: str
    entries: int
    sampled: bool
    changed: int
    output: Path | None
    rows: list[Row]

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-able."""
        return {
            "product": self.product,
            "how": self.how,
            "entries_compared": self.entries,
            "sampled": self.sampled,
            "inputs_rounded": self.changed,
            "output": None if self.output is None else str(self.output),
            "results": [vars(row) for row in self.rows],
        }

    def __str__(self) -> str:
        head = ["engine", "max error / |A||B|", "relative Frobenius", "max ulps", "time"]
        cells = [
            [
                row.name,
                f"{row.componentwise:.3g}",
                f"{row.frobenius:.3g}",
                "" if row.ulps is None else f"{row.ulps:.3g}",
                f"{row.seconds:.2f} s",
            ]
            for row in self.rows
        ]
        facts = [("product", self.product), ("sums", self.how)]
        if self.changed:
            facts.append(("rounded", f"{self.changed} input values, before everything else"))
        compared = f"{self.entries} entries with exact arithmetic" + (", a sample" if self.sampled else "")
        facts.append(("compared", compared))
        if self.output is not None:
            facts += [("written", str(self.output)), ("sha256", self.rows[0].sha256)]
        return f"{table(facts)}\n\n{columns(head, cells, left=('engine',))}"


def run(request: Request) -> Compared:
    """Multiply, compare, and write the product where that is asked for.

    Raises:
        FileError: for files that cannot be read or written, before any work where that can be known.
        ShapeError, DTypeError, ArgumentError: for matrices that do not fit each other or the engine.
    """
    if request.output is not None:
        files.check_result(request.output)
        part = part_of(request.output)
        check_new(request.output, request.force, beside=part)
        check_beside(request.output, (request.a, request.b))
        if is_there(part) and not request.force:
            raise FileError(f"{request.output}: an unfinished product of that name is here; pass --force to replace it")
    first = request.models[0]
    if any((m.input, m.output) != (first.input, first.output) for m in request.models):
        raise ArgumentError("engines of different formats; pass engines with the same input and output to compare them")
    if first.scale is not None:
        raise ArgumentError(f"{first.name} has block scales, which matrix files do not hold; pass another engine")
    (a, left), (b, right) = (_operand(path, first.input, request.rounded) for path in (request.a, request.b))
    if a.shape[1] != b.shape[0]:
        raise ShapeError(
            f"{request.a} is {a.shape[0]}x{a.shape[1]}, {request.b} is {b.shape[0]}x{b.shape[1]}: "
            "A must have as many columns as B has rows"
        )
    text = f"simulating {', '.join(model.name for model in request.models)} on {request.a} and {request.b}"
    large = a.shape[0] * a.shape[1] * b.shape[1] * len(request.models) >= _LARGE
    if request.announced and large:
        say(text)
    with said_unless_soon(text) if request.announced and not large else nullcontext():
        return _compared(request, a, b, left + right)


def _compared(request: Request, a: Array, b: Array, changed: int) -> Compared:
    """The product, which is written where that is asked for, beside the exact one; `changed` inputs were rounded."""
    first = request.models[0]
    dtype = dtype_of(first.output)
    # Room for the product is made before it is known.
    target = None
    if request.output is not None:
        target = Target(request.output, (a.shape[0], b.shape[1]), dtype, resume=False)
    try:
        products = [_product(model, a, b, dtype, request) for model in request.models]
        if target is not None:
            target.write(0, 0, products[0][0])
            target.complete()
            target.commit()
    except BaseException:
        if target is not None:
            target.discard()
        raise
    rows, sampled, entries = _errors(request, a, b, products)
    how = (
        "as one chain of instructions" if request.split_k == 1 else f"in {request.split_k} parts of the inner dimension"
    )
    if request.promote is not None:
        how += f", added to a sum in FP32 every {request.promote} products"
    return Compared(
        product=f"{a.shape[0]}x{a.shape[1]} by {b.shape[0]}x{b.shape[1]}, {first.input.name} to {first.output.name}",
        how=how,
        entries=entries,
        sampled=sampled,
        changed=changed,
        output=request.output,
        rows=rows,
    )


def _product(model: EngineModel, a: Array, b: Array, dtype: np.dtype[Any], request: Request) -> tuple[Array, float]:
    """The engine's product and the seconds that it took."""
    from prismm.numerics import gemm

    began = time.perf_counter()
    found = np.asarray(gemm(model, a, b, split_k=request.split_k, promote=request.promote))
    if isinstance(model.output, Integer):
        return found.astype(dtype), time.perf_counter() - began
    with np.errstate(invalid="ignore", over="ignore"):
        return found.astype(dtype), time.perf_counter() - began


def _errors(request: Request, a: Array, b: Array, products: list[tuple[Array, float]]) -> tuple[list[Row], bool, int]:
    """A row for every engine and one for FP32, over all entries or a sample; whether it is one, and of how many."""
    rng = np.random.default_rng(0)
    i, j = (np.sort(rng.permutation(n)[:_SAMPLE]) for n in (a.shape[0], b.shape[1]))
    exact = exact_product(a[i], b[:, j])
    magnitude = exact.magnitude()
    began = time.perf_counter()
    with np.errstate(all="ignore"):
        single = a.astype(np.float32) @ b.astype(np.float32)
    named = [(model.name, *made) for model, made in zip(request.models, products, strict=True)]
    named.append((_ANSWER, single, time.perf_counter() - began))
    own = [*(_has_own_type(model.output) for model in request.models), True]
    rows = []
    for (name, full, seconds), has_ulps in zip(named, own, strict=True):
        part = full[np.ix_(i, j)]
        part = part.astype(np.float64) if part.dtype.kind in "iu" else part
        rows.append(
            Row(
                name,
                metrics.componentwise(part, exact, magnitude),
                metrics.relative_frobenius(part, exact),
                float(exact.ulps(part).max(initial=0.0)) if has_ulps else None,
                seconds,
                files.sha256_of_bits(full),
            )
        )
    return rows, exact.shape != (a.shape[0], b.shape[1]), len(i) * len(j)


def dtype_of(format: Format | Integer) -> np.dtype[Any]:
    """The narrowest NumPy type that holds every value of a format.

    >>> from prismm.formats import BF16
    >>> dtype_of(FP16), dtype_of(BF16), dtype_of(Integer(32)), dtype_of(Integer(32, signed=False))
    (dtype('float16'), dtype('float32'), dtype('int32'), dtype('int64'))
    """
    if isinstance(format, Integer):
        return np.dtype(np.int32 if format.max < 1 << 31 else np.int64)
    for kind, held in ((np.float16, FP16), (np.float32, FP32)):
        within = format.fraction_bits <= held.fraction_bits and format.maxexp <= held.maxexp
        if within and format.subnormal_exponent >= held.subnormal_exponent:
            return np.dtype(kind)
    return np.dtype(np.float64)


def _has_own_type(format: Format | Integer) -> bool:
    return format in (FP16, FP32, FP64)


def _operand(path: Path, format: Format | Integer, rounded: bool) -> tuple[Array, int]:
    """The matrix in a file as values of a format, and how many of them were rounded."""
    given = files.read(path)
    if given.dtype.kind == "c":
        raise DTypeError(f"{path}: holds complex numbers; matrix engines multiply real ones")
    if given.dtype.kind == "f" and given.dtype.itemsize > 8:
        raise DTypeError(f"{path}: holds elements of type {given.dtype}; save it again with x.astype(float)")
    x = np.array(given, np.float64)
    if given.dtype.kind in "iu" and given.dtype.itemsize == 8 and (x.astype(object) != given.astype(object)).any():
        raise DTypeError(f"{path}: holds integers that are no float64")
    bad = foreign(x, format)
    if not bad.any():
        return x, 0
    if not rounded:
        raise ArgumentError(
            f"{path}: {int(bad.sum())} of {bad.size} values are none of {format.name}, first "
            f"{float(x[bad].flat[0])!r}; pass --round to round them to nearest"
        )
    return nearest(x, format, str(path)), int(bad.sum())


def nearest(x: Array, format: Format | Integer, what: str) -> Array:
    """Rounded to nearest, ties to even; beyond a format without infinities, its largest value.

    >>> nearest(np.array([2049.0, 1e6, 2.0**-26]), FP16, "").tolist()
    [2048.0, inf, 0.0]
    """
    if isinstance(format, Integer):
        if np.isnan(x).any():
            raise ArgumentError(f"{what}: holds NaN, which {format.name} has not")
        return np.clip(np.rint(x), format.min, format.max)
    if np.isnan(x).any() and not format.has_nan:
        raise ArgumentError(f"{what}: holds NaN, which {format.name} has not")
    finite = np.where(np.isfinite(x), x, 0.0)
    unit = np.maximum(np.frexp(finite)[1] - 1, format.minexp) - format.fraction_bits
    found = np.ldexp(np.rint(np.ldexp(finite, -unit)), unit)
    beyond = np.inf if format.has_infinity else format.max
    found = np.where(np.abs(found) > format.max, np.copysign(beyond, x), found)
    if format.specials == "fnuz":
        found = found + 0.0
    return np.where(np.isnan(x), np.nan, np.where(np.isinf(x), np.copysign(beyond, x), found))
