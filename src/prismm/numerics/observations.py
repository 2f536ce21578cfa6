"""What a black box answered: inputs and outputs, by length, and how many of them a model reproduces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from prismm.numerics.model import EngineModel

    Array = NDArray[np.float64]
    Dot = Callable[[Array, Array, Array], Array]

__all__ = ["Observation", "Observations", "same"]


def same(x: Array, y: Array) -> NDArray[np.bool_]:
    """Where two results are the same value of the same sign; any NaN is the same as any other.

    >>> import numpy as np
    >>> same(np.array([0.0, 1.0, np.nan]), np.array([-0.0, 1.0, np.nan])).tolist()
    [False, True, True]
    """
    import numpy as np

    return ((x == y) & (np.signbit(x) == np.signbit(y))) | (np.isnan(x) & np.isnan(y))


@dataclass(frozen=True)
class Observation:
    """One dot product: what went in, what came out."""

    a: tuple[float, ...]
    b: tuple[float, ...]
    c: float
    d: float

    @property
    def cost(self) -> tuple[int, int]:
        """By which the simplest one is chosen: terms that are not zero, then length."""
        return sum(x != 0.0 and y != 0.0 for x, y in zip(self.a, self.b, strict=True)) + (self.c != 0.0), len(self.a)


@dataclass(frozen=True)
class _Batch:
    a: Array
    b: Array
    c: Array
    d: Array


class Observations:
    """Answers of one black box, grouped by the length of their inputs."""

    def __init__(self) -> None:
        self._batches: dict[int, _Batch] = {}

    def __len__(self) -> int:
        return sum(len(batch.c) for batch in self._batches.values())

    def add(self, a: Array, b: Array, c: Array, d: Array) -> None:
        """a, b (n, k), c and d (n,)."""
        import numpy as np

        known = self._batches.get(a.shape[1])
        if known is not None:
            a, b = np.concatenate([known.a, a]), np.concatenate([known.b, b])
            c, d = np.concatenate([known.c, c]), np.concatenate([known.d, d])
        arrays = (np.ascontiguousarray(x, dtype=np.float64) for x in (a, b, c, d))
        self._batches[a.shape[1]] = _Batch(*arrays)

    def sample(
        self, count: int, rng: np.random.Generator, lengths: Callable[[int], bool] | None = None
    ) -> Observations:
        """About `count` of them from every length, at random."""
        found = Observations()
        for k, batch in self._batches.items():
            if lengths is None or lengths(k):
                n = len(batch.c)
                at = slice(None) if n <= count else rng.permutation(n)[:count]
                found.add(batch.a[at], batch.b[at], batch.c[at], batch.d[at])
        return found

    def mismatches(self, model: EngineModel, limit: float = float("inf")) -> float:
        """Shares of each length's answers that the model does not give, added up; cut short beyond `limit`."""
        from prismm.numerics import simulate

        total = 0.0
        for batch in self._batches.values():
            total += 1.0 - float(same(simulate.dot_unchecked(model, batch.a, batch.b, batch.c), batch.d).mean())
            if total > limit:
                break
        return total

    def refuting(self, model: EngineModel) -> Observation | None:
        """The simplest observation that the model does not reproduce, if there is one."""
        import numpy as np

        from prismm.numerics import simulate

        best: Observation | None = None
        for batch in self._batches.values():
            wrong = np.flatnonzero(~same(simulate.dot_unchecked(model, batch.a, batch.b, batch.c), batch.d))
            if wrong.size:
                terms = ((batch.a[wrong] != 0.0) & (batch.b[wrong] != 0.0)).sum(1) + (batch.c[wrong] != 0.0)
                i = int(wrong[int(np.argmin(terms))])
                found = Observation(tuple(batch.a[i]), tuple(batch.b[i]), float(batch.c[i]), float(batch.d[i]))
                if best is None or found.cost < best.cost:
                    best = found
        return best
