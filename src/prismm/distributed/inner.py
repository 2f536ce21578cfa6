"""Products whose inner dimension is sharded, exactly: partial products over a mesh, step by step.

Digits of a block of columns travel while the next block is multiplied (all-to-all); every rank sums what it gets modulo
each modulus, joins and rounds its share of the entries. Rows and columns of many uncertified entries are multiplied
again (`again`). What that leaves all ranks know, and add their parts of the exact sums; no operand leaves its rank.

The order of the steps stands here once. What makes them is a `Backend`: the rank's CPU (`on_cpu`) or GPU (`on_gpu`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from prismm.core.outcome import Epilogue
from prismm.core.special_values import Special
from prismm.cpu.entries import Entries
from prismm.cpu.partial import join, recompute, specials
from prismm.cpu.partial.join import Joined
from prismm.cpu.partial.recompute import ExactRequest
from prismm.cpu.partial.setting import Setting
from prismm.distributed.again import multiply_again
from prismm.distributed.exchange import Exchange, Pending, beside

if TYPE_CHECKING:
    from numpy.typing import NDArray

AHEAD = 2
"""Blocks that may be on their way."""

AGAIN = 4096
"""GPUs decide single entries, and make a product of more moduli, if more than one in so many entries is left. CPUs
would take longer.
"""

ENTRY_SECONDS = 1.3e-8
"""Seconds that CPUs take for a term of an entry, most of them to copy rows and columns (two H200s, K = 8192)."""

AGAIN_SECONDS, AGAIN_RATE = 0.02, 6e12
"""A product of 49 moduli takes so many seconds, and besides one for so many multiply-adds of m, n and K on each GPU
(measured on the same GPUs).
"""

Axes = dict[int, int | None]
"""For each mesh dimension of the sum: 0 where rows are scattered over it, 1 where columns are, None for neither."""

Factors = tuple[complex, complex]


class Met(NamedTuple):
    """Some rows (left) or columns (right) of this rank's part of a matrix, on the CPU.

    Attributes:
        matrix: (rows, k) or (k, columns).
        exponent, shift: of all ranks' vectors, for each of these.
        positions: where the vectors that were asked for stand among them.
    """

    matrix: NDArray[Any]
    exponent: NDArray[np.int64]
    shift: NDArray[np.int64]
    positions: NDArray[np.int64]


class Operand(Protocol):
    """This rank's part of an operand, matrix by matrix of its own batch, and what is known of all ranks' rows (left) or
    columns (right).

    Attributes:
        batch: of its matrices.
        matrices: how many there are.
        count: vectors of a matrix.
        lost: (·, matrices·count), what rounding lost: this rank's once everything was split, all ranks' once set.
    """

    batch: tuple[int, ...]
    matrices: int
    count: int
    lost: Any

    def extents(self) -> Any:
        """(·, matrices·count) integers of this rank's vectors; combined by maximum."""

    def norms(self, extent: Any) -> Any:
        """(·, matrices·count) integers, with all ranks' extents; combined by sums."""

    def scaled(self, norm: Any) -> None:
        """Take all ranks' norms, from which the shifts follow."""

    def nonfinite(self, p: int) -> NDArray[np.bool_]:
        """Which vectors of matrix p hold Inf or NaN on some rank."""

    def whole(self, p: int) -> NDArray[Any]:
        """Matrix p of this rank, on the CPU."""

    def met(self, p: int, vectors: NDArray[np.int64]) -> Met:
        """Some vectors of matrix p."""

    def extents_of(self, p: int, met: Met, maximum: Callable[[Any], Any]) -> NDArray[np.int64]:
        """`cpu.partial.scales.extents` of these vectors on all ranks, which all ask for it at once."""


class Piece(NamedTuple):
    """Entries joined on the CPU, in these rows and columns of the operands, which ascend."""

    joined: Joined
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]


class Landed(Protocol):
    """This rank's share of a product."""

    @property
    def pieces(self) -> list[Piece]:
        """What of it may be uncertified, after `complete`."""

    @property
    def left(self) -> int:
        """How many entries `complete` would turn into pieces."""

    def complete(self) -> None:
        """Turn the entries that are left into pieces, which CPUs decide."""

    def close(self) -> None:
        """Make no pieces: from now on single entries are pending."""

    def result(self) -> Any:
        """(rows, columns), once all pieces are decided: an array or a tensor on the backend's device."""


class Digits(Protocol):
    """What makes digits of partial products."""

    def empty_digits(self, m: int, n: int) -> Any:
        """(groups, moduli, m, n): room for combined digits."""

    def blocks(self, left: Any, p: int, right: Any, q: int, taken: set[int | None]) -> Iterator[tuple[Any, Any, Any]]:
        """Digits (groups, moduli, m, n) of some columns of left[p] by right[q]; of some rows where columns (1) are
        taken, by ranks to which they are scattered, and of all where both are. Then where they are to stand in this
        rank's share: rows, columns.
        """

    def add(self, found: Any, into: Any = None) -> Any:
        """(ranks, groups, moduli, m, n) added modulo each modulus, into memory of `empty_digits` where it is given."""


class Again(Digits, Protocol):
    """Digits of more moduli, of one real part."""

    def losses(self) -> Any:
        """(1, ·): whether rows and columns lost bits, after `blocks`; combined by maximum."""

    def magnitudes(self, left: Any, p: int, right: Any, q: int) -> Any:
        """(2, m, n) integers of all entries, combined by sums; None where they prove nothing."""

    def certify(
        self, sums: Any, left: Any, p: int, right: Any, q: int, landed: Any, rows: slice, columns: slice
    ) -> int:  # fmt: skip
        """Certify pending entries of a share by magnitudes; how many are left."""

    def join(
        self, digits: Any, lost: Any, left: Any, p: int, right: Any, q: int, landed: Any, rows: slice, columns: slice
    ) -> None:  # fmt: skip
        """Set the pending entries of a share that are proved."""

    def leave(self, left: Any, p: int, right: Any, q: int, landed: Any, rows: slice, columns: slice) -> None:
        """Make a piece of the entries that are still pending."""


class Backend(Digits, Protocol):
    """Where a rank makes its part of the steps."""

    def operand(self, x: Any, *, left: bool) -> Operand:
        """An operand (…, rows, columns)."""

    def again(self, part: int) -> Again | None:
        """More moduli, for entries that are left; None where there are none."""

    def join(
        self, digits: Any, left: Any, p: int, right: Any, q: int, rows: slice, columns: slice, found: list[Special],
        epilogue: Epilogue | None,
    ) -> Landed:  # fmt: skip
        """Round and certify the entries of this rank's rows and columns. found: the values of special entries."""

    def stacked(self, results: list[Any], shape: tuple[int, ...]) -> Any:
        """The results of a batch."""


@dataclass
class _Shared:
    """Uncertified entries of all ranks, of one product and real part; of this rank's own ones, in their order, the
    piece and their places in it.
    """

    at: int
    entries: Entries
    owned: NDArray[np.bool_]
    piece: NDArray[np.int64]
    i: NDArray[np.int64]
    j: NDArray[np.int64]

    def of_pieces(self, own: slice) -> Iterator[tuple[int, NDArray[np.int64], Entries]]:
        """Of some of the own ones: the piece, which of them are in it, and their places."""
        for piece in np.unique(self.piece[own]).tolist():
            here = np.flatnonzero(self.piece[own] == piece)
            yield piece, here, Entries(self.entries.part, self.i[own][here], self.j[own][here])


class Product:
    """A batch of products under way on this rank.

    Args:
        a: (…, m, k), this rank's part.
        b: (…, k, n), likewise.
        setting: of the whole product.
        exchange: with the ranks that share the sums.
        axes: where the entries land.
        backend: what multiplies.
        workers: threads of the CPU.
    """

    def __init__(
        self, a: Any, b: Any, setting: Setting, exchange: Exchange, axes: Axes, backend: Backend, workers: int
    ) -> None:
        self.left, self.right = backend.operand(a, left=True), backend.operand(b, left=False)
        self.setting, self.exchange, self.axes, self.workers = setting, exchange, axes, workers
        self.backend = backend
        self.batch = np.broadcast_shapes(self.left.batch, self.right.batch)
        self.rows, self.columns = self._share(self.left.count, 0), self._share(self.right.count, 1)

    def _share(self, size: int, axis: int) -> slice:
        """Rows (0) or columns (1) that land here."""
        for index, scattered in self.axes.items():
            if scattered == axis:
                return slice(*self.exchange.share(size, index))
        return slice(0, size)

    def run(self, factors: Factors | None = None, c: NDArray[Any] | None = None) -> Any:
        """The entries that land here, (…, rows, columns). c: gemm's, of these entries."""
        left, right, exchange = self.left, self.right, self.exchange
        extent = exchange.maximum(beside(left.extents(), right.extents()))
        cut = left.matrices * left.count
        norm = exchange.total(beside(left.norms(extent[:, :cut]), right.norms(extent[:, cut:])))
        left.scaled(norm[:, :cut])
        right.scaled(norm[:, cut:])
        pairs = list(self._pairs())
        totals = self._digits(pairs, self.backend)
        lost = exchange.total(beside(left.lost, right.lost))
        left.lost, right.lost = lost[:, :cut], lost[:, cut:]
        landed = []
        for at, (p, q) in enumerate(pairs):
            epilogue = None
            if factors is not None:
                epilogue = Epilogue(*factors, None if c is None else c.reshape(len(pairs), *c.shape[-2:])[at])
            found = self._specials(p, q)
            one = self.backend.join(totals[at], left, p, right, q, self.rows, self.columns, found, epilogue)
            totals[at] = None
            plain = epilogue is None or epilogue.trivial
            if plain and not found and self.backend.again(0) is not None and self._many(one.left):
                self._make_again(p, q, one)
            else:
                one.complete()
            landed.append(one)
        pieces = [each.pieces for each in landed]
        plain = factors is None or Epilogue(*factors, None).trivial
        self._certify(pieces, pairs, plain)
        multiply_again(self, pieces, pairs)
        self._decide(pieces, pairs, plain)
        shape = (*self.batch, self.rows.stop - self.rows.start, self.columns.stop - self.columns.start)
        return self.backend.stacked([each.result() for each in landed], shape)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Which matrices of both sides each product of the batch multiplies."""
        numbers = []
        for side in (self.left, self.right):
            own = np.arange(side.matrices).reshape(side.batch)
            numbers.append(np.broadcast_to(own, self.batch).reshape(-1).tolist())
        yield from zip(*numbers, strict=True)

    def _many(self, left: int, *, single: bool = False) -> bool:
        """Whether so many entries are left on all ranks together that GPUs decide them.

        single: whether CPUs would decide them one by one, so that the time that this takes counts, too.
        """
        count, entries = int(self.exchange.total(np.array([left]))[0]), self.left.count * self.right.count
        ranks = math.prod(self.exchange.mesh.size(index) for index in self.exchange.inner)
        seconds = AGAIN_SECONDS + entries * self.setting.terms / (AGAIN_RATE * ranks)
        return AGAIN * count > entries or (single and ENTRY_SECONDS * self.setting.terms * count > seconds)

    def _make_again(self, p: int, q: int, landed: Landed) -> None:
        """Decide single entries on the GPUs. Magnitudes certify them; where many remain, a product of more moduli
        rounds them.
        """
        landed.close()
        given = self.left, p, self.right, q
        share = landed, self.rows, self.columns
        for part in range(self.setting.parts):
            system = self.backend.again(part)
            assert system is not None
            sums = system.magnitudes(*given)
            left = system.certify(None if sums is None else self.exchange.total(sums), *given, *share)
            if self._many(left, single=True):
                (total,) = self._digits([(p, q)], system)
                system.join(total, self.exchange.maximum(system.losses()), *given, *share)
            system.leave(*given, *share)

    def _digits(self, pairs: list[tuple[int, int]], maker: Digits) -> list[Any]:
        """The combined digits that land here, of each product."""
        shape = (self.rows.stop - self.rows.start, self.columns.stop - self.columns.start)
        totals = [maker.empty_digits(*shape) for _ in pairs]
        waiting: list[tuple[int, Any, Any, Pending]] = []
        (first, axis), *others = self.axes.items()

        def land() -> None:
            at, rows, columns, pending = waiting.pop(0)
            into = totals[at][:, :, rows, columns]
            found = maker.add(pending.wait(), None if others else into)
            for x, (index, each) in enumerate(others, 1):
                scattered = None if each is None else 2 + each
                found = self.exchange.start_scatter(found, scattered, index).wait()
                found = maker.add(found, into if x == len(others) else None)

        for at, (p, q) in enumerate(pairs):
            for digits, rows, columns in maker.blocks(self.left, p, self.right, q, set(self.axes.values())):
                scattered = None if axis is None else 2 + axis
                waiting.append((at, rows, columns, self.exchange.start_scatter(digits, scattered, first)))
                if len(waiting) > AHEAD:
                    land()
        while waiting:
            land()
        return totals

    def _specials(self, p: int, q: int) -> list[Special]:
        """What stands for entries that meet Inf or NaN."""
        odd = self.left.nonfinite(p), self.right.nonfinite(q)
        if not (odd[0].any() or odd[1].any()):
            return []
        flags = specials.flags(self.left.whole(p), self.right.whole(q), *odd, self.setting)
        return specials.values(self.exchange.maximum(flags), *odd, self.setting)

    def _shared(
        self, pieces: list[list[Piece]], listed: Callable[[Joined], list[Entries]]
    ) -> list[_Shared]:  # fmt: skip
        """Entries of all ranks that are listed of their pieces."""
        m, n = self.left.count, self.right.count
        keys, places = [np.zeros(0, np.int64)], [np.zeros((3, 0), np.int64)]
        for at, some in enumerate(pieces):
            for number, piece in enumerate(some):
                for e in listed(piece.joined):
                    # One int64 holds product, real part, row and column, as lists of millions are sent.
                    keys.append(((2 * at + e.part) * m + piece.rows[e.i]) * n + piece.columns[e.j])
                    places.append(np.stack([np.full(e.i.size, number), e.i, e.j]))
        own, local = np.concatenate(keys), np.concatenate(places, axis=1)
        (whole,), start = self.exchange.gathered(own[None])
        if not whole.size:
            return []
        owned = np.zeros(whole.size, np.bool_)
        owned[start : start + own.size] = True
        lines = whole // n
        kinds, mine_of = lines // m, own // (m * n)
        i, j = lines - kinds * m, whole - lines * n
        first = int(kinds[0])
        if (kinds == first).all():
            return [_Shared(first // 2, Entries(first % 2, i, j), owned, *local)]
        found = []
        for kind in np.unique(kinds).tolist():
            here = kinds == kind
            mine = np.ascontiguousarray(local[:, mine_of == kind])
            found.append(_Shared(kind // 2, Entries(kind % 2, i[here], j[here]), owned[here], *mine))
        return found

    def _met(self, each: _Shared, pairs: list[tuple[int, int]]) -> tuple[Met, Met, Entries]:
        """Rows and columns that entries meet, and the entries among them."""
        p, q = pairs[each.at]
        rows, columns = self.left.met(p, each.entries.i), self.right.met(q, each.entries.j)
        return rows, columns, Entries(each.entries.part, rows.positions, columns.positions)

    def _certify(self, pieces: list[list[Piece]], pairs: list[tuple[int, int]], plain: bool) -> None:
        if not (self.setting.levels and plain):
            return
        shared = self._shared(pieces, Joined.to_certify)
        if not shared:
            return
        sums = []
        for each in shared:
            rows, columns, entries = self._met(each, pairs)
            exponents = rows.exponent, columns.exponent
            a, b = rows.matrix, columns.matrix
            sums.append(recompute.magnitudes(a, b, [entries], exponents, self.setting, self.workers))
        whole, start = self.exchange.total(np.concatenate(sums, axis=1)), 0
        answers: dict[tuple[int, int], list[NDArray[np.int64]]] = {}
        for each in shared:
            mine = whole[:, start : start + each.owned.size][:, each.owned]
            start += each.owned.size
            for number, here, _ in each.of_pieces(slice(None)):
                answers.setdefault((each.at, number), []).append(mine[:, here])
        for (at, number), answer in answers.items():
            pieces[at][number].joined.certify(np.concatenate(answer, axis=1))

    def _decide(self, pieces: list[list[Piece]], pairs: list[tuple[int, int]], plain: bool) -> None:
        """Set what is uncertified from exact sums; and of the scheme's own value compare what may overflow."""
        of_scheme = self.setting.target is None
        shared = self._shared(pieces, lambda joined: joined.uncertified)
        for joined, asked, sums in self._exact(pieces, pairs, shared, plain, rounded=of_scheme):
            joined.recompute(asked, sums)
        if not of_scheme:
            return
        shared = self._shared(pieces, Joined.near_overflow)
        for joined, asked, sums in self._exact(pieces, pairs, shared, plain, rounded=False):
            joined.compare(asked, sums)

    def _exact(
        self, pieces: list[list[Piece]], pairs: list[tuple[int, int]], shared: list[_Shared], plain: bool, *,
        rounded: bool,
    ) -> Iterator[tuple[Joined, ExactRequest, NDArray[np.int64]]]:  # fmt: skip
        """Requests of bounded size for this rank's entries, with the sums of all ranks."""
        for each in shared:
            p, q = pairs[each.at]
            rows, columns, entries = self._met(each, pairs)
            extents = (
                self.left.extents_of(p, rows, self.exchange.maximum),
                self.right.extents_of(q, columns, self.exchange.maximum),
            )
            start = own = 0
            for asked in join.requests([entries], extents, self.setting, plain=plain, rounded=rounded):
                shifts = rows.shift, columns.shift
                sums = recompute.exact_sums(rows.matrix, columns.matrix, asked, shifts, self.workers)
                sums = self.exchange.total(sums)
                mine = np.flatnonzero(each.owned[start : start + asked.first.size])
                start += asked.first.size
                for number, here, local in each.of_pieces(slice(own, own + mine.size)):
                    chosen = mine[here]
                    one = ExactRequest((local,), asked.first[chosen], asked.limbs, asked.both, asked.rounded)
                    yield pieces[each.at][number].joined, one, sums[chosen]
                own += mine.size


def within(found: list[Special], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> list[Special]:
    """Of the values of special entries those in some rows and columns, which ascend, in places among these."""
    inside: list[Special] = []
    for (i, j), values in found:
        by_row = isinstance(j, slice)
        index, chosen = (i, rows) if by_row else (j, columns)
        kept = np.isin(index, chosen)
        local = np.searchsorted(chosen, index[kept])
        where = (local, slice(None)) if by_row else (slice(None), local)
        cut = [value[kept][:, columns] if by_row else value[rows][:, kept] for value in values]
        inside.append((where, cut))
    return inside
