"""Report: what a product was made of, and how wrong each entry can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prismm.core.outcome import Outcome

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prismm.core.plan import Decision, Plan

_RECOMPUTED = ("lane dots", "float64", "double-double", "triple-double", "exact", "more moduli")


@dataclass(frozen=True)
class Piece:
    """One two-dimensional product of the call.

    Attributes:
        result: its entries, (m, n).
        outcome: what became of them, with their bound.
    """

    result: NDArray[Any]
    outcome: Outcome


class Pieces(Sequence[Piece]):
    """The pieces of a batch, each made when it is asked for."""

    def __init__(self, count: int, make: Callable[[int], Piece]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, p: Any) -> Any:
        return (
            [self._make(q) for q in range(self._count)[p]] if isinstance(p, slice) else self._make(range(len(self))[p])
        )


@dataclass(frozen=True, repr=False)
class Report:
    """Returned beside the result by ``full_output=True``; `docs/report.md` describes its properties.

    Attributes:
        decision: scheme, engine and target, and the function that makes the plan; internal.
        outcome: the executor's record, from which the properties are read; internal.
        shape: shape of the result.
        pieces: two-dimensional products of the call, with result and bound; internal.
        rows_kept: whether the left operand was a matrix, not a vector; internal.
        columns_kept: whether the right operand was a matrix, not a vector; internal.
        repeated: left matrices that were stacked for one tall product; internal.

    >>> import numpy as np, prismm
    >>> c, report = prismm.matmul(np.eye(2), np.eye(2), accuracy="correctly-rounded", full_output=True)
    >>> report.bound(0, 0) <= 2.0**-53
    True
    """

    decision: Decision
    outcome: Outcome
    shape: tuple[int, ...]
    pieces: Sequence[Piece] = field(repr=False, default_factory=list)
    rows_kept: bool = True
    columns_kept: bool = True
    repeated: int = 1

    @property
    def plan(self) -> Plan:
        """The `Plan` that ran."""
        return self.decision.plan

    @property
    def scheme(self) -> Any:
        """The scheme that ran."""
        return self.decision.scheme

    @property
    def engine(self) -> str:
        """The engine that ran."""
        return self.decision.engine

    @property
    def accuracy(self) -> str:
        """The accuracy target; "none" where an explicit scheme returned its own value."""
        return str(self.decision.target) if self.decision.target is not None else "none"

    @property
    def reproducible(self) -> bool:
        """Whether the bits depend on nothing but operands, dtype, inner dimension and target."""
        return self.decision.reproducible

    @property
    def products(self) -> int:
        """Low-precision matrix products computed."""
        return self.outcome.products

    @property
    def paths(self) -> dict[str, int]:
        """Real entries (a complex one counts twice) by the path that gave them their final value.

        "a priori" (a theorem covers them), "certified" (the join's own test), "value" (a scheme's own value,
        uncertified: without a target, or "fast"), "magnitude", "lane dots", "float64", "double-double", "more moduli",
        "exact", "special" (Inf or NaN).
        """
        return {path: count for path, count in self.outcome.paths.items() if count}

    @property
    def roads(self) -> dict[str, int]:
        """The former name of `paths`."""
        import warnings

        warnings.warn("Report.roads is now Report.paths", DeprecationWarning, stacklevel=2)
        return self.paths

    @property
    def repaired(self) -> int:
        """Real entries that were recomputed."""
        return sum(count for path, count in self.paths.items() if path in _RECOMPUTED)

    @property
    def notes(self) -> dict[str, int]:
        """What the scheme counted, such as {"fallback tiles": 3}; often empty."""
        return dict(self.outcome.notes)

    @property
    def timings(self) -> dict[str, float]:
        """Seconds per phase; "total" is the whole call."""
        return self.outcome.timings

    @property
    def splits(self) -> dict[str, int]:
        """Elements of the left and the right operand that this call split."""
        return {"left": self.outcome.split_left, "right": self.outcome.split_right}

    def bound(self, *index: int) -> float:
        """A guaranteed upper bound on |c - exact| of one entry (of the larger real part, if complex).

        0 for an entry that is Inf or NaN. The native scheme's bound is worked out from the operands when asked for:
        they must not have been changed since.

        Raises:
            IndexError: for an index that is no entry.
        """
        import numpy as np

        if len(index) != len(self.shape):
            raise IndexError(f"index {index} for a result of shape {self.shape}: pass {len(self.shape)} integers")
        full = [int(i) for i in index]
        for axis, (i, extent) in enumerate(zip(full, self.shape, strict=True)):
            if not -extent <= i < extent:
                raise IndexError(f"index {i} is out of bounds for axis {axis} of size {extent}")
            full[axis] = i % extent
        j = full.pop() if self.columns_kept else 0
        i = full.pop() if self.rows_kept else 0
        batch = self.shape[: len(full)]
        flat = int(np.ravel_multi_index(tuple(full), batch)) if full else 0
        if len(self.pieces) == 1 and batch:
            return float(self._at(0, flat * (self.pieces[0].result.shape[0] // max(1, self.repeated)) + i, j))
        return float(self._at(flat, i, j))

    def _at(self, piece: int, i: Any, j: Any) -> NDArray[np.float64]:
        import numpy as np

        with np.errstate(all="ignore"):
            return self.pieces[piece].outcome.bound.at(self.pieces[piece].result, i, j)  # type: ignore[no-any-return]

    @property
    def bounds(self) -> NDArray[np.float64]:
        """`bound` of every entry, as an array of the result's shape; worked out at each access."""
        import numpy as np

        everything = slice(None)
        found = [self._at(p, everything, everything) for p in range(len(self.pieces))]
        if not found:
            return np.zeros(self.shape)
        return np.stack(found).reshape(self.shape)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {
            "scheme": str(self.scheme),
            "engine": self.engine,
            "accuracy": self.accuracy,
            "reproducible": self.reproducible,
            "shape": list(self.shape),
            "products": self.products,
            "paths": self.paths,
            "repaired": self.repaired,
            "notes": self.notes,
            "timings": dict(self.timings),
            "plan": self.plan.to_dict(),
        }

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape)) or "one number"
        return f"<Report of {size}: {self}>"

    def _repr_html_(self) -> str:
        from prismm.core.notebook import bar, table

        size = "×".join(map(str, self.shape)) or "one number"
        rows = [
            ["scheme", f"{self.scheme} on {self.engine}"],
            ["accuracy", self.accuracy + (", reproducible" if self.reproducible else "")],
            ["guarantee", self.plan.bound],
            ["products", str(self.products)],
            ["repaired", f"{self.repaired} of {sum(self.paths.values())} real entries"],
            *([name, str(count)] for name, count in self.notes.items() if count),
            ["time", f"{self.timings.get('total', 0.0) * 1e3:.1f} ms"],
        ]
        return table(f"product of {size} {self.plan.result}", [], rows) + bar(self.paths)

    def __str__(self) -> str:
        paths = ", ".join(f"{count} {path}" for path, count in self.paths.items()) or "no entries"
        total = self.timings.get("total", 0.0)
        notes = "".join(f", {what} {count}" for what, count in self.notes.items() if count)
        head = f"{self.scheme} on {self.engine}, accuracy {self.accuracy}"
        return f"{head}: {self.products} products, {paths}{notes}, {total * 1e3:.1f} ms"
