"""What a black box answered: inputs and outputs, and how many of them a model reproduces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.numerics.recorded import ROW, Clock, Record, product_cost
from prismm.numerics.vectors import share

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prismm.formats import Format, Integer
    from prismm.numerics.model import EngineModel

    Array = NDArray[np.float64]
    Rows = NDArray[np.int64]

__all__ = ["Observation", "Observations", "Some", "same"]

_FEW = 24
"""Answers of one length that count as much as those of any other."""
_RECENT = 64
"""Rows that refuted a model last, which come first."""
_UNIT = 2.0**-40
"""Weights are multiples of this, so that their sums do not depend on an order."""


def same(x: Array, y: Array) -> NDArray[np.bool_]:
    """Where two results are the same value of the same sign; any NaN is the same as any other.

    >>> import numpy as np
    >>> same(np.array([0.0, 1.0, np.nan]), np.array([-0.0, 1.0, np.nan])).tolist()
    [False, True, True]
    """
    import numpy as np

    equal: NDArray[np.bool_] = ((x == y) & (np.signbit(x) == np.signbit(y))) | (np.isnan(x) & np.isnan(y))
    return equal


@dataclass(frozen=True)
class Observation:
    """One dot product: what went in, what came out.

    Attributes:
        a: left factors.
        b: right factors, as many.
        c: what is added.
        d: the result.
    """

    a: tuple[float, ...]
    b: tuple[float, ...]
    c: float
    d: float

    @property
    def cost(self) -> tuple[int, int]:
        """By which the simplest of several is chosen: terms that are not zero, then length."""
        return sum(x != 0.0 and y != 0.0 for x, y in zip(self.a, self.b, strict=True)) + (self.c != 0.0), len(self.a)


class Some:
    """Rows of a record, each with a weight: by default every length of which there are not too few has 1 in all."""

    def __init__(self, record: Record, rows: Rows, signs: bool = True, weights: Array | None = None) -> None:
        import numpy as np

        self._record, self.rows, self._signs = record, rows, signs
        self._lengths = record.column("lengths")[rows]
        if weights is None:
            weights = _rounded(1.0 / np.maximum(np.bincount(self._lengths, minlength=1), _FEW))[self._lengths]
        self._weights = weights
        self._known: tuple[EngineModel, NDArray[np.bool_]] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def clock(self) -> Clock:
        """What runs of models on these answers have cost."""
        return self._record.clock

    def mismatches(self, model: EngineModel, limit: float = float("inf")) -> float:
        """Shares of each length's answers that the model does not give, added up; cut short beyond `limit`."""
        return self._record.missed(model, self.rows, self._weights, self._signs, limit)

    def wrong(self, model: EngineModel) -> NDArray[np.bool_]:
        """Which rows the model gets wrong."""
        import numpy as np

        if self._known is None or self._known[0] is not model:
            flags = np.zeros(len(self.rows), np.int8)
            self._record.missed(model, self.rows, self._weights, self._signs, wrong=flags)
            self._known = model, flags.astype(bool)
        return self._known[1]

    def failing(self, model: EngineModel, most: int) -> Some:
        """Some of those that the model gets wrong, the shortest first."""
        import numpy as np

        rows = self.rows[self.wrong(model)]
        order = np.argsort(self._record.column("lengths")[rows], kind="stable")
        return Some(self._record, rows[order[:most]], self._signs)

    def products(self) -> Some:
        """Those of one product without c."""
        one = (self._lengths == 1) & (self._record.column("c")[self.rows] == 0.0)
        return Some(self._record, self.rows[one], self._signs)

    def sample(
        self, count: int, rng: np.random.Generator, longest: int = 1 << 30, against: EngineModel | None = None
    ) -> Some:
        """At random, of every length up to this one: `count` of the short ones, 16·count products of the others; first
        of all those that the model `against` gets wrong, up to half of them.
        """
        import numpy as np

        wrong = None if against is None else self.wrong(against)
        parts = [np.empty(0, np.int64)]
        for k in np.unique(self._lengths):
            if k <= longest:
                most = share(count, int(k), 8)
                at = rng.permutation(np.flatnonzero(self._lengths == k))
                if wrong is not None:
                    first = at[wrong[at]][: most // 2]
                    at = np.concatenate([first, at[~np.isin(at, first)]])
                parts.append(at[:most])
        return Some(self._record, self.rows[np.concatenate(parts)], self._signs)

    def screen(self, model: EngineModel, rng: np.random.Generator, count: int, longer: bool) -> Some:
        """What tells better models from worse ones: answers that this one gets wrong, and some that it gets right, with
        the share of all answers that each part of them stands for.

        Args:
            model: the one to improve.
            rng: picks them.
            count: of the wrong ones, at most, from each of three lengths; of the right ones, three times as many.
            longer: whether to prefer long vectors to short ones.
        """
        import numpy as np

        wrong = self.wrong(model)
        failing = np.unique(self._lengths[wrong])
        chosen = failing[-3:][::-1] if longer else failing[:3]
        rows, weights = [np.empty(0, np.int64)], [np.empty(0)]
        for wanted in (True, False):
            for k in chosen:
                of_length = self._lengths == k
                at = np.flatnonzero(of_length & (wrong == wanted))
                picked = rng.permutation(at)[: count if wanted else 3 * count]
                if picked.size:
                    rows.append(self.rows[picked])
                    weight = len(at) / np.count_nonzero(of_length) / len(picked)
                    weights.append(_rounded(np.full(len(picked), weight)))
        return Some(self._record, np.concatenate(rows), self._signs, np.concatenate(weights))


class Observations:
    """All answers of one black box.

    Args:
        inputs, output: its formats.
        clock: what runs of models go by; its own where none is given.
    """

    def __init__(self, inputs: Format | Integer, output: Format | Integer, clock: Clock | None = None) -> None:
        import numpy as np

        self._record = Record(inputs, output, clock)
        self._searched: list[Rows] = []
        self._all: Some | None = None
        self._reproduced: dict[EngineModel, int] = {}
        self._ones = np.ones(0)
        self._hits = np.zeros(0, np.int64)
        self._order = np.zeros(0, np.int64)
        self._simplest: Rows | None = None
        self._recent: list[int] = []
        self._refuted = 0

    def __len__(self) -> int:
        return len(self._record)

    @property
    def clock(self) -> Clock:
        """What runs of models on these answers have cost."""
        return self._record.clock

    def add(self, a: Array, b: Array, c: Array, d: Array, searched: bool = True) -> None:
        """a, b (n, k), c and d (n,); whether a search looks at them, or only `refute` does."""
        import numpy as np

        before = len(self)
        self._record.add(a, b, c, d, layered=searched)
        if searched:
            self._searched.append(np.arange(before, len(self)))
            self._all = None

    def search(self, rows: Rows) -> None:
        """Searches look at these rows, too."""
        import numpy as np

        for k in np.unique(self._record.column("lengths")[rows]):
            same_length = rows[self._record.column("lengths")[rows] == k]
            a, b, c, d = zip(*map(self.row, same_length.tolist()), strict=True)
            self.add(np.stack(a), np.stack(b), np.array(c), np.array(d))

    def all(self) -> Some:
        """All that searches look at."""
        import numpy as np

        if self._all is None:
            self._all = Some(self._record, np.unique(np.concatenate([np.empty(0, np.int64), *self._searched])))
        return self._all

    def layer(self, highest: int) -> Some:
        """Those of the layers up to this one, whatever signs their zeros have; see `prismm.numerics.layers`."""
        rows = self.all().rows
        return Some(self._record, rows[self._record.column("layers")[rows] <= highest], signs=False)

    def unseen(self, model: EngineModel) -> int:
        """Products of those added since the model reproduced all of them; of all of them, where it has not."""
        return int(self._record.column("lengths")[self._reproduced.get(model, 0) :].sum())

    def refute(
        self,
        model: EngineModel,
        beside: EngineModel | None = None,
        names: tuple[str, ...] = (),
        most: int | None = None,
    ) -> bool:
        """Whether the model gets one of all wrong; of a model that reproduced some before, only those added since are
        run. Rows that refuted others come first. Where another model reproduces all, only those are run that can show
        one of the properties in which the two differ; as many rows as cost `most`, in nanoseconds, where that is given.
        """
        import numpy as np

        count, known = len(self), self._reproduced.get(model, 0)
        if known == count:
            return False
        self._grow()
        if self._recent and self._first_wrong(model, np.array(self._recent)) >= 0:
            return True
        order = np.arange(known, count) if known else self._order
        if beside is not None:
            shows = [self._showing(beside, model, name) for name in names]
            if all(found is not None for found in shows):
                order = order[np.any([found[order] for found in shows if found is not None], axis=0)]
        whole = len(order)
        if most is not None:
            order = self._first(order, model, most)
        if self._first_wrong(model, order) >= 0:
            return True
        if len(order) == whole:
            self._reproduced[model] = count
        return False

    def _first(self, order: Rows, model: EngineModel, most: int) -> Rows:
        """As many of these rows as the model costs so much for, in nanoseconds, about."""
        import numpy as np

        costs = self._record.column("lengths")[order[: most // ROW + 1]] * product_cost(model) + ROW
        return order[: int(np.searchsorted(np.cumsum(costs), most))]

    def _first_wrong(self, model: EngineModel, order: Rows) -> int:
        """The first of these rows that refutes the model, which is remembered; -1 if none does."""
        import numpy as np

        wrong = np.zeros(len(order), np.int8)
        if self._record.missed(model, order, self._ones, True, 0.0, wrong) == 0.0:
            return -1
        row = int(order[int(wrong.argmax())])
        self._recent = [row, *(i for i in self._recent if i != row)][:_RECENT]
        self._hits[row] += 1
        self._refuted += 1
        if self._refuted & (self._refuted - 1) == 0:  # 1, 2, 4, 8, ...
            self._order = np.argsort(-self._hits, kind="stable")
        return row

    def _showing(self, model: EngineModel, other: EngineModel, name: str) -> NDArray[np.bool_] | None:
        """Which of all could show another model's value of a property that is about the range's ends; None: any."""
        from prismm.formats import Format

        output = model.output
        if not isinstance(output, Format):
            return None
        column, found = self._record.column, None
        lowest = max(model.sums.minexp, output.minexp)
        if name in ("zero_exponent", "subnormal_products"):
            # Of zeros alone it may show in a sign.
            found = (column("smallest") < lowest) | (column("terms") == 0)
        elif name in ("subnormal_outputs", "subnormal_accumulators"):
            found = column("last") < lowest
        elif name in ("overflow", "product_overflow"):
            found = column("total") >= min(model.sums.maxexp, output.maxexp) - 1
        elif name == "product_rounding" and not any(
            m.summation == "aligned" and m.fraction_bits is not None for m in (model, other)
        ):
            # Where no exponent of a product counts, rounding shows only in products that are not exact.
            assert isinstance(model.input, Format)
            short = 2 * model.input.precision <= min(model.sums.precision, other.sums.precision)
            if short:
                highest = min(model.sums.maxexp, other.sums.maxexp) - 1
                found = (column("smallest") < max(lowest, other.sums.minexp)) | (column("total") >= highest)
        return found

    def _grow(self) -> None:
        """Orders of all rows: those that refute most first."""
        import numpy as np

        count = len(self)
        if len(self._hits) < count:
            self._ones = np.ones(count)
            self._hits = np.concatenate([self._hits, np.zeros(count - len(self._hits), np.int64)])
            self._order = np.argsort(-self._hits, kind="stable")
            self._simplest = None

    def differing(self, model: EngineModel, most: int) -> Rows:
        """Some of the answers that the model does not give."""
        import numpy as np

        self._grow()
        order = np.arange(len(self))
        wrong = np.zeros(len(order), np.int8)
        self._record.missed(model, order, self._ones, True, most - 0.5, wrong)
        return np.flatnonzero(wrong)

    def refuting(
        self,
        model: EngineModel,
        beside: EngineModel | None = None,
        names: tuple[str, ...] = (),
        most: int | None = None,
    ) -> Observation | None:
        """The simplest observation that the model does not reproduce, of the shortest length that has one, if it is one
        that searches look at, of the first ones that cost `most`, in nanoseconds, where that is given; else any.
        """
        import numpy as np

        if not self.refute(model, beside, names):
            return None
        if self._simplest is None:
            rows = self.all().rows
            terms, lengths = self._record.column("terms")[rows], self._record.column("lengths")[rows]
            self._simplest = rows[np.lexsort((terms, lengths))]
        some = self._simplest if most is None else self._first(self._simplest, model, most)
        wrong = np.zeros(len(some), np.int8)
        if self._record.missed(model, some, self._ones, True, 0.0, wrong) > 0.0:
            row = int(some[int(wrong.argmax())])
        else:
            row = self._recent[0]
        a, b, c, d = self.row(row)
        return Observation(tuple(a.tolist()), tuple(b.tolist()), c, d)

    def row(self, i: int) -> tuple[Array, Array, float, float]:
        """a, b, c and d of one of them."""
        return self._record.row(i)


def _rounded(weights: Array) -> Array:
    import numpy as np

    found: Array = np.rint(weights / _UNIT) * _UNIT
    return found
