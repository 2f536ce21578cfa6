"""Products whose inner dimension lies in pieces, joined exactly: the steps of `prismm.cpu.partial` as a graph.

| step | a task has | pieces meet by |
| --- | --- | --- |
| extents of rows and of columns | a chunk | maximum |
| their norms | a chunk, extents | sum |
| digits, and what rounding lost | a chunk of A and one of B, extents, norms | sum modulo each modulus |
| join: round once, certify | digits of a result chunk | |
| magnitudes of uncertified entries, for targets relative to \\|a\\|\\|b\\| | a chunk of A and one of B | sum |
| digits of more moduli, of rows and columns of many that are left | a chunk of A and one of B | sum modulo each |
| exact sums of what that leaves | a chunk of A and one of B | sum |

All that pieces give adds up exactly, in any order: neither chunks nor schedulers change a bit. Tasks leave what they
are given as it is, so that one that ran on a lost worker may run again. Steps fit together only if they read the same
numbers, so what they read is compared by sums of its bits modulo 2^64.

Memory. A step that reads chunks has a graph of its own for them (`operands.again`), and Dask merges what reads into
what uses, where the axes of all that a task takes are axes of what it gives. So at most the chunks of the tasks that
run are there, not an operand. Digits take a byte for each modulus and entry of a result chunk, in a few copies.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import dask.array as da
import numpy as np

from prismm.core.accuracy import MAGNITUDE, join_mode
from prismm.core.outcome import Epilogue, real_parts
from prismm.core.request import Request
from prismm.core.scales import Scales
from prismm.core.threads import worker_count
from prismm.cpu.entries import Entries
from prismm.cpu.partial import more, recompute, residues, scales, specials
from prismm.cpu.partial.join import Joined, join
from prismm.cpu.partial.setting import Setting, setting_of
from prismm.dask.operands import Call, again, chunk, labels, mapped, multiplied, result_chunks, token
from prismm.dask.trees import added
from prismm.errors import ArgumentError, OperandError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.core.composite import Side


class Vectors(NamedTuple):
    """What all pieces know of the rows of A, or the columns of B: arrays (2, vectors) and (norms, vectors).

    Attributes:
        extent: `scales.extents`, of all pieces.
        norm: `scales.norms`, of all pieces.
    """

    extent: NDArray[np.int64]
    norm: NDArray[np.int64]


class Reading(NamedTuple):
    """What pieces give, and what they read for it.

    Attributes:
        values: of the rows or columns of a chunk, (..., vectors, integers); or for each matrix of a result chunk.
        read: `_read` of the chunks of A, or B, or of both; added over pieces.
    """

    values: Any
    read: tuple[int, ...]


class Digits(NamedTuple):
    """What a piece gives for one matrix of a batch.

    Attributes:
        digits: of the partial product.
        lost: of the rows and of the columns.
        special: `specials.flags`; None where no row or column needs them.
    """

    digits: NDArray[np.int8]
    lost: tuple[NDArray[np.int64], NDArray[np.int64]]
    special: NDArray[np.uint8] | None


class Block(NamedTuple):
    """A result chunk.

    Attributes:
        batch: its leading axes.
        matrices: what is known of each of its matrices.
        read: what was read of A and of B for it.
    """

    batch: tuple[int, ...]
    matrices: list[Joined]
    read: tuple[int, ...]


def product(a: da.Array, b: da.Array, c: da.Array | None, call: Call, request: Request) -> da.Array:
    """The product of two arrays whose inner dimension is cut alike; with C and factors, gemm's sum.

    Raises:
        ArgumentError: for a scheme without exact partial products, a certain engine, or elements that are several
            float64 numbers each.
    """
    if request.engine not in (None, "cpu"):
        raise ArgumentError(
            f"engine={request.engine!r}, but each worker multiplies pieces of the inner dimension by its processor's "
            "best engine, to the same bits; pass engine='cpu', or rechunk the inner dimension to one chunk"
        )
    summed = call.factors is not None and call.factors != (1, 0)
    # A target without a scheme is met by residues here, whatever is fastest in one piece.
    request = dataclasses.replace(request, reproducible=request.reproducible or request.scheme is None)
    types = chunk(np.empty(0, a.dtype)).dtype, chunk(np.empty(0, b.dtype)).dtype
    setting = setting_of(a.shape[-2], a.shape[-1], b.shape[-1], types, np.dtype(call.dtype), request, summed=summed)
    if c is not None:
        setting.real_operand(chunk(np.empty(0, c.dtype)))
    return _Graph(a, b, c, call, setting).result()


class _Graph:
    """The graph of one product.

    Arrays of intermediate chunks are of any type; they have the shape that their chunks stand for.
    """

    def __init__(self, a: da.Array, b: da.Array, c: da.Array | None, call: Call, setting: Setting) -> None:
        self.a, self.b, self.c, self.call, self.setting = a, b, c, call, setting
        self.left, self.right, self.names = labels(a, b)
        self.chunks, self.token = result_chunks(a, b), token(a, b, c, call)

    def result(self) -> da.Array:
        rows, columns = (*self.left[:-2], "i"), (*self.right[:-2], "j")
        known: list[Any] = []
        for x, names, vectors, side in ((self.a, self.left, rows, "left"), (self.b, self.right, columns, "right")):
            extent = self._of_vectors("extents", _extents, _add_maxima, x, names, vectors, side)
            norm = self._of_vectors("norms", _norms, _add_norms, x, names, vectors, side, extent, vectors)
            known += [extent, vectors, norm, vectors]
        total = added(self._pieces("digits", _digits, *known), functools.partial(_add_digits, setting=self.setting),
                      np.int8)  # fmt: skip
        third = () if self.c is None else (self.c, self.names)
        joined = self._entries("join", _join, total, self.names, *known, *third)
        if join_mode(self.setting.target) == MAGNITUDE:
            sums = self._summed("magnitudes", _magnitudes, joined, tuple(known))
            joined = self._entries("certify", _certify, joined, self.names, sums, self.names)
        if self.setting.target is not None:
            pieces = self._pieces("again", _answers, *known, joined, self.names)
            answers = added(pieces, _add_answers, np.int8)
            joined = self._entries("take", _take, joined, self.names, answers, self.names)
        steps = ("recompute", "compare") if self.setting.target is None else ("recompute",)
        for step in steps:
            sums = self._summed(step, functools.partial(_exact_sums, step=step), joined, tuple(known))
            joined = self._entries("set" + step, functools.partial(_set, step=step), joined, self.names, sums,
                                   self.names, *known)  # fmt: skip
        return self._entries("result", _result, joined, self.names, *known)

    def _of_vectors(
        self, step: str, task: Any, add: Any, x: da.Array, names: tuple[str, ...], vectors: tuple[str, ...], side: str,
        *more: Any,
    ) -> da.Array:  # fmt: skip
        """Integers of each row or column, of all pieces; chunks (..., vectors, integers) stand for (..., vectors)."""
        axis = names.index("k")
        chunks = (*x.chunks[:axis], *x.chunks[axis + 1 :], (1,) * len(x.chunks[axis]))
        pieces = mapped(
            task, (*vectors, "k"), chunks, again(x, step + side + self.token), names, *more,
            name=f"prismm-{step}-{side}-{self.token}", dtype=np.int64, call=self.call, setting=self.setting, side=side,
        )  # fmt: skip
        return added(pieces, add, np.int64)

    def _pieces(self, step: str, task: Any, *more: Any) -> da.Array:
        """What each pair of chunks of A and B gives, (..., m, n, pieces)."""
        a, b = again(self.a, step + self.token), again(self.b, step + self.token)
        name = f"prismm-{step}-{self.token}"
        return multiplied(task, a, b, *more, name=name, dtype=np.int8, call=self.call, setting=self.setting)

    def _summed(self, step: str, task: Any, joined: da.Array, known: tuple[Any, ...]) -> da.Array:
        """The sums over all pieces of what is asked of them."""
        return added(self._pieces(step, task, *known, joined, self.names), _add_sums, np.int8)

    def _entries(self, step: str, task: Any, *given: Any) -> da.Array:
        """The next state of a result chunk."""
        name, dtype = f"prismm-{step}-{self.token}", self.setting.dtype
        return mapped(
            task, self.names, self.chunks, *given, name=name, dtype=dtype, call=self.call, setting=self.setting
        )  # fmt: skip


_CHANGED = (
    "the chunks of an operand were not the same each time they were read; pass persist() of it, or store it first"
)

# --- Tasks: functions of chunks ---------------------------------------------------------------------------------------


def _extents(x: Any, *, side: Side, call: Call, setting: Setting) -> Reading:
    """(..., vectors, 2)."""
    call.check()
    return _each_matrix(x, side, 2, setting, lambda matrix, _: scales.extents(matrix, side, _workers(call)))


def _norms(x: Any, extent: Reading, *, side: Side, call: Call, setting: Setting) -> Reading:
    """(..., vectors, norms)."""
    call.check()

    def norms(matrix: NDArray[Any], at: tuple[int, ...]) -> NDArray[np.int64]:
        exponent = scales.exponents(np.array(extent.values[at].T, order="C"))
        return scales.norms(matrix, side, exponent, setting, _workers(call))

    return _each_matrix(x, side, _norm_count(setting), setting, norms)


def _maximum(pieces: list[Any]) -> Any:
    return functools.reduce(np.maximum, pieces)


def _sum(pieces: list[Any]) -> Any:
    return functools.reduce(np.add, pieces)


def _norm_count(setting: Setting) -> int:
    return 2 + setting.levels


def _each_matrix(x: Any, side: Side, size: int, setting: Setting, task: Any) -> Reading:
    read = (_read(x),)
    x = setting.real_operand(chunk(x))
    batch, count = x.shape[:-2], x.shape[-2 if side == "left" else -1]
    out = np.zeros((*batch, count, size), np.int64)
    for at in np.ndindex(batch):
        out[at] = task(x[at], at).T
    return Reading(out, read)


def _read(x: Any) -> int:
    """The sum modulo 2^64 of the bits of a chunk's real parts, as integers."""
    parts = real_parts(chunk(x))
    return sum(int(part.view(f"u{part.itemsize}").sum(dtype=np.uint64)) for part in parts) % (1 << 64)


def _agreeing(*every: tuple[int, ...]) -> tuple[int, ...]:
    """What several steps read, of A or B or both.

    Raises:
        OperandError: where they read different numbers.
    """
    if any(read != every[0] for read in every):
        raise OperandError(_CHANGED)
    return every[0]


def _add_read(pieces: list[Any]) -> tuple[int, ...]:
    return tuple(sum(part) % (1 << 64) for part in zip(*(piece.read for piece in pieces), strict=True))


def _add_maxima(pieces: list[Reading]) -> Reading:
    return Reading(_maximum([piece.values for piece in pieces]), _add_read(pieces))


def _add_norms(pieces: list[Reading]) -> Reading:
    return Reading(_sum([piece.values for piece in pieces]), _add_read(pieces))


def _digits(a: Any, b: Any, *known: Reading, call: Call, setting: Setting) -> Reading:
    call.check()
    read = _read(a), _read(b)
    found, workers = [], _workers(call)
    for x, y, rows, columns in _matrices(a, b, known, setting):
        exponent = scales.exponents(rows.extent), scales.exponents(columns.extent)
        left = residues.split(x, "left", scales.shifts(exponent[0], rows.norm, setting), setting, workers)
        right = residues.split(y, "right", scales.shifts(exponent[1], columns.norm, setting), setting, workers)
        digits = residues.multiply(left, right, setting, workers)
        odd = specials.nonfinite(exponent[0]), specials.nonfinite(exponent[1])
        flags = specials.flags(x, y, *odd, setting) if odd[0].any() or odd[1].any() else None
        found.append(Digits(digits, (left.lost, right.lost), flags))
    return Reading(found, read)


def _add_digits(pieces: list[Reading], *, setting: Setting) -> Reading:
    found = []
    for every in zip(*(piece.values for piece in pieces), strict=True):
        total = every[0].digits.copy()
        for other in every[1:]:
            residues.add(total, _writable(other.digits), setting)
        lost = _sum([one.lost[0] for one in every]), _sum([one.lost[1] for one in every])
        flags = None if every[0].special is None else _maximum([one.special for one in every])
        found.append(Digits(total, lost, flags))
    return Reading(found, _add_read(pieces))


def _join(digits: Reading, *rest: Any, call: Call, setting: Setting) -> Block:
    """rest: what is known of rows and columns, and C."""
    call.check()
    shapes = [one.digits.shape[2:] for one in digits.values]
    known, c = rest[:4], rest[4] if len(rest) > 4 else None
    extents, norms = (known[0].read + known[2].read, known[1].read + known[3].read)
    read = _agreeing(extents, norms, digits.read)
    batch = _batch(known)
    if c is not None:
        c = setting.real_operand(chunk(c))
    found = []
    for one, at, (rows, columns), shape in zip(
        digits.values, np.ndindex(batch), _known(known, batch), shapes, strict=True
    ):
        exponents = scales.exponents(rows.extent), scales.exponents(columns.extent)
        left, right = (
            scales.scales(exponent, vectors.norm, _writable(lost), setting)
            for exponent, vectors, lost in zip(exponents, (rows, columns), one.lost, strict=True)
        )
        values = None
        if one.special is not None:
            odd = specials.nonfinite(exponents[0]), specials.nonfinite(exponents[1])
            values = specials.values(one.special, *odd, setting)
        epilogue = None
        if setting.summed:
            assert call.factors is not None
            addend = None if c is None else np.broadcast_to(c[at], shape)
            epilogue = Epilogue(call.factors[0], call.factors[1] if c is not None else 0.0, addend)
        found.append(join(one.digits, left, right, setting, specials=values, epilogue=epilogue, workers=_workers(call)))
    return Block(batch, found, read)


def _magnitudes(a: Any, b: Any, *rest: Any, call: Call, setting: Setting) -> Reading:
    """rest: what is known of rows and columns, and what is joined."""
    call.check()
    read = _read(a), _read(b)
    *known, joined = rest
    found = []
    for (x, y, rows, columns), one in zip(_matrices(a, b, known, setting), joined.matrices, strict=True):
        entries = _received(one).to_certify()
        exponents = scales.exponents(rows.extent), scales.exponents(columns.extent)
        found.append(
            [recompute.magnitudes(x, y, entries, exponents, setting, _workers(call))] if entries else []
        )  # fmt: skip
    return Reading(found, read)


def _changed(joined: Block, given: Reading, change: Callable[[Joined, Any], None]) -> Block:
    """The next state: copies of the matrices for which something is given, changed by it."""
    found = []
    for one, each in zip(joined.matrices, given.values, strict=True):
        if each:
            one = _copied(one)
            change(one, each)
        found.append(one)
    return Block(joined.batch, found, _agreeing(joined.read, given.read))


def _certify(joined: Block, sums: Reading, *, call: Call, setting: Setting) -> Block:
    call.check()
    return _changed(joined, sums, lambda one, each: one.certify(each[0]))


def _answers(a: Any, b: Any, *rest: Any, call: Call, setting: Setting) -> Reading:
    """What a piece answers to requests to multiply again; rest: as of `_magnitudes`."""
    call.check()
    read = _read(a), _read(b)
    *known, joined = rest
    found = []
    for (x, y, rows, columns), one in zip(_matrices(a, b, known, setting), joined.matrices, strict=True):
        asked = _received(one).to_multiply_again((rows.extent, columns.extent))
        found.append([(each, answer) for each in asked for _, answer in
                      more.answers(x, y, each, setting, workers=_workers(call))])  # fmt: skip
    return Reading(found, read)


def _add_answers(pieces: list[Reading]) -> Reading:
    found = []
    for matrix in zip(*(piece.values for piece in pieces), strict=True):
        totals = []
        for every in zip(*matrix, strict=True):
            asked, answers = every[0][0], [answer for _, answer in every]
            if len({answer.digits.shape for answer in answers}) > 1:
                raise OperandError(_CHANGED)
            given = [answer._replace(digits=_writable(answer.digits)) for answer in answers]
            totals.append((asked, more.total(given, asked)))
        found.append(totals)
    return Reading(found, _add_read(pieces))


def _take(joined: Block, answers: Reading, *, call: Call, setting: Setting) -> Block:
    call.check()

    def take(one: Joined, each: list[tuple[more.Again, more.Answer]]) -> None:
        for asked, answer in each:
            one.take(asked, *one.join_again(asked, answer))

    return _changed(joined, answers, take)


def _exact_sums(a: Any, b: Any, *rest: Any, step: str, call: Call, setting: Setting) -> Reading:
    call.check()
    read = _read(a), _read(b)
    *known, joined = rest
    found = []
    for (x, y, rows, columns), one in zip(_matrices(a, b, known, setting), joined.matrices, strict=True):
        shifts = [scales.shifts(scales.exponents(side.extent), side.norm, setting) for side in (rows, columns)]
        found.append([
            recompute.exact_sums(x, y, asked, (shifts[0], shifts[1]), _workers(call))
            for asked in _asked(one, step, rows, columns)
        ])  # fmt: skip
    return Reading(found, read)


def _set(joined: Block, sums: Reading, *known: Reading, step: str, call: Call, setting: Setting) -> Block:
    call.check()
    found = []
    for one, each, (rows, columns) in zip(joined.matrices, sums.values, _known(known, joined.batch), strict=True):
        requests = _asked(one, step, rows, columns)
        if requests:
            one = _copied(one)
        for asked, total in zip(requests, each, strict=True):
            (one.recompute if step == "recompute" else one.compare)(asked, total)
        found.append(one)
    return Block(joined.batch, found, _agreeing(joined.read, sums.read))


def _asked(joined: Joined, step: str, rows: Vectors, columns: Vectors) -> list[recompute.ExactRequest]:
    joined = _received(joined)
    ask = joined.to_recompute if step == "recompute" else joined.to_compare
    return ask((rows.extent, columns.extent))


def _add_sums(pieces: list[Reading]) -> Reading:
    """The sums of requests, of every matrix of a batch."""
    found = [
        [_sum(list(every)) for every in zip(*matrix, strict=True)]
        for matrix in zip(*(piece.values for piece in pieces), strict=True)
    ]
    return Reading(found, _add_read(pieces))


def _result(joined: Block, *known: Reading, call: Call, setting: Setting) -> NDArray[Any]:
    call.check()
    out = np.empty((*joined.batch, known[0].values.shape[-2], known[2].values.shape[-2]), setting.dtype)
    for at, one in zip(np.ndindex(joined.batch), joined.matrices, strict=True):
        out[at] = one.out
    return out


def _received(joined: Joined) -> Joined:
    """The same with arrays that kernels take, wherever it was made."""
    rows, columns = (
        Scales(*map(_writable, (side.shift, side.exponent, side.terms, side.counts)))
        for side in (joined.rows, joined.columns)
    )
    uncertified = [
        Entries(each.part, _writable(each.i), _writable(each.j), each.width) for each in joined.uncertified
    ]  # fmt: skip
    return dataclasses.replace(joined, rows=rows, columns=columns, uncertified=uncertified)


def _copied(joined: Joined) -> Joined:
    """The same with a result and counts that may change."""
    return dataclasses.replace(_received(joined), out=joined.out.copy(), outcome=copy.deepcopy(joined.outcome))


def _writable(x: NDArray[Any]) -> NDArray[Any]:
    """x, or a copy of a read-only array that another process sent."""
    return x if x.flags.writeable else x.copy()


def _workers(call: Call) -> int:
    return worker_count(call.threads)


def _batch(known: Sequence[Reading]) -> tuple[int, ...]:
    """The batch of a result chunk."""
    return np.broadcast_shapes(known[0].values.shape[:-2], known[2].values.shape[:-2])


def _known(known: Sequence[Reading], batch: tuple[int, ...]) -> Iterator[tuple[Vectors, Vectors]]:
    """What is known of rows and columns, for every matrix of a batch; vectors last."""
    every = [np.broadcast_to(x.values, (*batch, *x.values.shape[-2:])) for x in known]
    for at in np.ndindex(batch):
        # Copies: kernels take no read-only arrays, as other processes send them.
        row_extent, row_norm, column_extent, column_norm = (np.array(x[at].T, order="C") for x in every)
        yield Vectors(row_extent, row_norm), Vectors(column_extent, column_norm)


def _matrices(
    a: Any, b: Any, known: Any, setting: Setting
) -> Iterator[tuple[NDArray[Any], NDArray[Any], Vectors, Vectors]]:  # fmt: skip
    """The matrices of a batch of chunks, with what is known of rows and columns."""
    a, b, batch = setting.real_operand(chunk(a)), setting.real_operand(chunk(b)), _batch(known)
    x, y = (np.broadcast_to(operand, (*batch, *operand.shape[-2:])) for operand in (a, b))
    for at, (rows, columns) in zip(np.ndindex(batch), _known(known, batch), strict=True):
        yield x[at], y[at], rows, columns
