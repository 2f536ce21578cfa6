"""Dot products on record, of any lengths, with answers: in the form in which compiled code runs models on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prismm.formats import Integer
from prismm.numerics import lowering
from prismm.numerics.layers import EDGE, Reach, layers, reach

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prismm.formats import Format
    from prismm.numerics.model import EngineModel

    Array = NDArray[np.float64]
    Order = NDArray[np.int64]

__all__ = ["ELEMENT", "ROW", "Clock", "Record", "product_cost"]

_CALL, ROW = 100_000, 150
"""What a run costs beside its rows, and a row beside its products, in nanoseconds."""
_ADDED, ELEMENT = 800, 50
"""What an answer costs that is put on record, and an element of it."""
_PRODUCT = {"aligned": 12, "sequential": 35, "pairwise": 50}
"""What a product costs, by summation, in nanoseconds."""
_BLOCK = 60
"""What every block of an aligned sum, and every instruction, costs besides."""


class Clock:
    """What runs of models have cost so far, in nanoseconds of a core, about: counted, not measured, so that it is the
    same everywhere.
    """

    def __init__(self) -> None:
        self.spent = 0


def product_cost(model: EngineModel) -> int:
    """What one of its products costs, in nanoseconds of a core, about."""
    cost = _PRODUCT[model.summation] + (_BLOCK // model.block if model.summation == "aligned" else 0)
    cost += 0 if model.join == "inside" else _BLOCK // model.instruction_depth
    ends = model.product_rounding is not None or model.product_overflow != "exact" or model.subnormal_products != "keep"
    return (2 if model.groups else 1) * (cost + 15 * ends)


class Record:
    """Rows a, b, c and d, which only grow in number.

    Args:
        inputs, output: formats of a and b, of c and d.
        clock: what its runs go by.
    """

    def __init__(self, inputs: Format | Integer, output: Format | Integer, clock: Clock | None = None) -> None:
        import numpy as np

        self.inputs, self.output, self.clock = inputs, output, clock or Clock()
        self._done = np.zeros(2, np.int64)
        self._given: list[tuple[Array, Array]] = []
        self._first: list[int] = []
        self._new: dict[str, list[NDArray[Any]]] = {}
        self._whole: dict[str, NDArray[Any]] = {
            "rows": np.empty(0, np.int64),
            "places": np.empty(0, np.int64),
            "lengths": np.empty(0, np.int64),
            "layers": np.empty(0, np.int64),
            "smallest": np.empty(0, np.int64),
            "total": np.empty(0, np.int64),
            "last": np.empty(0, np.int64),
            "terms": np.empty(0, np.int64),
            "c": np.empty(0),
            "d": np.empty(0),
        }
        self._buffer = np.empty(0, np.int64)
        self._elements = 0
        self._count = 0
        self._longest = 0

    def __len__(self) -> int:
        return self._count

    def add(self, a: Array, b: Array, c: Array, d: Array, layered: bool = True) -> None:
        """a, b (n, k), c and d (n,); without a look at their layers they count as the last one."""
        import numpy as np

        n, k = a.shape
        both = np.concatenate([self._decoded(a), self._decoded(b)], 1)
        far = np.zeros(n, np.int64)
        layer, reached = far, Reach(far, far, far)
        if not isinstance(self.inputs, Integer) and not isinstance(self.output, Integer):
            reached = reach(a, b, c)
            layer = layers(a, b, c, self.inputs, self.output, reached) if layered else np.full(n, EDGE)
        new = {
            "rows": both.reshape(-1),
            "places": self._elements + 4 * k * np.arange(n),
            "lengths": np.full(n, k),
            "layers": layer,
            "smallest": reached.smallest,
            "total": reached.total,
            "last": reached.last,
            "terms": ((a != 0.0) & (b != 0.0)).sum(1) + (c != 0.0),
            "c": np.array(c, np.float64),
            "d": np.array(d, np.float64),
        }
        for name, part in new.items():
            self._new.setdefault(name, []).append(part)
        self._given.append((a, b))
        self._first.append(self._count)
        self._elements += both.size
        self._count += n
        self._longest = max(self._longest, k)
        self.clock.spent += n * (_ADDED + ELEMENT * k)

    def _decoded(self, x: Array) -> NDArray[np.int64]:
        """Significands, or integers, and exponents."""
        import numpy as np

        from prismm.numerics.kernels.dot_operands import decode_rows

        f, (n, k) = self.inputs, x.shape
        found = np.zeros((n, 2 * k), np.int64)
        if isinstance(f, Integer):
            found[:, :k] = x
        else:
            rows = np.array(x, np.float64, order="C")
            decode_rows(rows, f.fraction_bits, f.minexp, f.max, f.has_infinity, f.has_nan, 0, k, found)
        return found

    def column(self, name: str) -> NDArray[Any]:
        """Of all rows: "lengths", "layers", "terms" (how many are not zero), "c", "d", and the fields of `Reach`."""
        import numpy as np

        if self._new:
            for key, parts in self._new.items():
                self._whole[key] = np.concatenate([self._whole[key], *parts])
            self._new = {}
        return self._whole[name]

    def row(self, i: int) -> tuple[Array, Array, float, float]:
        """a, b, c and d of one row."""
        import bisect

        part = bisect.bisect_right(self._first, i) - 1
        a, b = self._given[part]
        at = i - self._first[part]
        return a[at], b[at], float(self.column("c")[i]), float(self.column("d")[i])

    def missed(
        self,
        model: EngineModel,
        order: Order,
        weights: Array,
        signs: bool,
        limit: float = float("inf"),
        wrong: NDArray[np.int8] | None = None,
    ) -> float:
        """The weights of those rows of `order` that the model does not give, added up; it ends where they exceed
        `limit`. `weights` and `wrong`, which gets 1 for them, go by place in `order`.
        """
        import numpy as np

        from prismm.numerics.kernels.replay import replay

        parameters, sequence = lowering.parameters_of(model)
        chained = bool(model.groups) and model.group_sums == "chained"
        size = 4 * (self._longest + model.instruction_depth)
        if self._buffer.size < size:
            self._buffer = np.zeros(2 * size, np.int64)
        c, d = self.column("c"), self.column("d")
        rows, places, lengths = (self._whole[name] for name in ("rows", "places", "lengths"))
        flags = np.empty(len(order), np.int8) if wrong is None else wrong
        found = replay(
            parameters,
            sequence,
            rows,
            places,
            lengths,
            c,
            d,
            weights,
            order,
            signs,
            chained,
            limit,
            self._buffer,
            flags,
            self._done,
        )
        rows_done, products = self._done.tolist()
        self.clock.spent += _CALL + rows_done * ROW + products * product_cost(model)
        return float(found)
