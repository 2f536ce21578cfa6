"""What a black box answered: inputs and outputs, by length, and how many of them a model reproduces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.numerics.inputs import Inputs
from prismm.numerics.layers import layers
from prismm.numerics.vectors import share

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from prismm.formats import Format
    from prismm.numerics.model import EngineModel

    Array = NDArray[np.float64]
    Judge = Callable[[Array, Array], NDArray[np.bool_]]

__all__ = ["Observation", "Observations", "Screen", "alike", "same"]


def alike(x: Array, y: Array) -> NDArray[np.bool_]:
    """Where two results are the same value, of whatever sign if it is zero."""
    import numpy as np

    equal: NDArray[np.bool_] = (x == y) | (np.isnan(x) & np.isnan(y))
    return equal


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
    """One dot product: what went in, what came out."""

    a: tuple[float, ...]
    b: tuple[float, ...]
    c: float
    d: float

    @property
    def cost(self) -> tuple[int, int]:
        """By which the simplest of several is chosen: terms that are not zero, then length."""
        return sum(x != 0.0 and y != 0.0 for x, y in zip(self.a, self.b, strict=True)) + (self.c != 0.0), len(self.a)


class Screen:
    """A few answers, with the share of all answers that each part of them stands for."""

    def __init__(self, parts: list[tuple[Inputs, Array, float]], judge: Judge) -> None:
        self._parts, self._judge = parts, judge

    def mismatches(self, model: EngineModel, limit: float) -> float:
        """An estimate of the shares that the model gets wrong; cut short from `limit` on."""
        total = 0.0
        for inputs, d, weight in self._parts:
            right = self._judge(inputs.answers(model), d)
            total += weight * (1.0 - int(right.sum()) / len(right))
            if total >= limit:
                break
        return total


class Observations:
    """Answers of one black box, grouped by the length of their inputs; `judge` says which answers count as the same."""

    def __init__(self, judge: Judge = same) -> None:
        self._batches: dict[int, tuple[Inputs, Array]] = {}
        self._judge = judge
        self._reproduced: dict[EngineModel, dict[int, int]] = {}
        self._tails: dict[tuple[int, int, int], Inputs] = {}

    def __len__(self) -> int:
        return sum(len(d) for _, d in self._batches.values())

    def terms(self) -> int:
        """Products in all of them."""
        return sum(inputs.a.size for inputs, _ in self._batches.values())

    def add(self, a: Array, b: Array, c: Array, d: Array) -> None:
        """a, b (n, k), c and d (n,)."""
        import numpy as np

        known = self._batches.get(a.shape[1])
        if known is not None:
            old, before = known
            a, b = np.concatenate([old.a, a]), np.concatenate([old.b, b])
            c, d = np.concatenate([old.c, c]), np.concatenate([before, d])
        self._batches[a.shape[1]] = Inputs(a, b, c), d
        self._batches = dict(sorted(self._batches.items()))

    def layer(self, highest: int, inputs: Format, output: Format) -> Observations:
        """Those of the layers up to this one, whatever signs their zeros have; see `prismm.numerics.layers`."""
        found = Observations(alike)
        for asked, d in self._batches.values():
            at = layers(asked.a, asked.b, asked.c, inputs, output) <= highest
            if at.any():
                found.add(asked.a[at], asked.b[at], asked.c[at], d[at])
        return found

    def products(self) -> Observations:
        """Those of one product without c."""
        found = Observations(self._judge)
        if 1 in self._batches:
            inputs, d = self._batches[1]
            at = inputs.c == 0.0
            if at.any():
                found.add(inputs.a[at], inputs.b[at], inputs.c[at], d[at])
        return found

    def sample(
        self,
        count: int,
        rng: np.random.Generator,
        shortest: int = 1,
        longest: int = 1 << 30,
        against: EngineModel | None = None,
    ) -> Observations:
        """At random, of every length in this range: `count` of the short ones, 16·count products of the others; first
        of all those that the model `against` gets wrong, up to half of them.
        """
        import numpy as np

        found = Observations(self._judge)
        for k, (inputs, d) in self._batches.items():
            if shortest <= k <= longest:
                most = share(count, k, 8)
                at = rng.permutation(len(d))
                if against is not None:
                    wrong = at[~self._judge(inputs.answers(against), d)[at]][: most // 2]
                    at = np.concatenate([wrong, at[~np.isin(at, wrong)]])
                at = at[:most]
                found.add(inputs.a[at], inputs.b[at], inputs.c[at], d[at])
        return found

    def mismatches(self, model: EngineModel, limit: float = float("inf")) -> float:
        """Shares of each length's answers that the model does not give, added up; cut short beyond `limit`."""
        total = 0.0
        for inputs, d in self._batches.values():
            right = self._judge(inputs.answers(model), d)
            total += 1.0 - int(right.sum()) / len(right)
            if total > limit:
                break
        return total

    def refute(self, model: EngineModel) -> bool:
        """Whether the model gets one wrong; of a model that reproduced some before, only those added since are run."""
        known = self._reproduced.setdefault(model, {})
        for k, (inputs, d) in self._batches.items():
            first = known.get(k, 0)
            if first == len(d):
                continue
            tail = inputs
            if first:
                key = k, first, len(d)
                if key not in self._tails:
                    self._tails[key] = Inputs(inputs.a[first:], inputs.b[first:], inputs.c[first:])
                tail = self._tails[key]
            if not self._judge(tail.answers(model), d[first:]).all():
                return True
            known[k] = len(d)
        return False

    def screen(self, model: EngineModel, rng: np.random.Generator, count: int, longer: bool) -> Screen:
        """What tells better models from worse ones: answers that this one gets wrong, and some that it gets right.

        Args:
            model: the one to improve.
            rng: picks them.
            count: of the wrong ones, at most, from each of three lengths; of the right ones, three times as many.
            longer: whether to prefer long vectors to short ones.
        """
        import numpy as np

        judged = [(inputs, d, self._judge(inputs.answers(model), d)) for inputs, d in self._batches.values()]
        failing = [item for item in judged if not item[2].all()]
        chosen = failing[-3:][::-1] if longer else failing[:3]
        parts = []
        for wanted in (False, True):
            for inputs, d, right in chosen:
                at = np.flatnonzero(right == wanted)
                weight = len(at) / len(d)
                at = rng.permutation(at)[: 3 * count if wanted else count]
                if at.size:
                    parts.append((Inputs(inputs.a[at], inputs.b[at], inputs.c[at]), d[at], weight))
        return Screen(parts, self._judge)

    def refuting(self, model: EngineModel) -> Observation | None:
        """The simplest observation that the model does not reproduce, of the shortest length that has one."""
        import numpy as np

        for inputs, d in self._batches.values():
            wrong = np.flatnonzero(~self._judge(inputs.answers(model), d))
            if wrong.size:
                terms = ((inputs.a[wrong] != 0.0) & (inputs.b[wrong] != 0.0)).sum(1) + (inputs.c[wrong] != 0.0)
                i = int(wrong[int(np.argmin(terms))])
                return Observation(
                    tuple(inputs.a[i].tolist()), tuple(inputs.b[i].tolist()), float(inputs.c[i]), float(d[i])
                )
        return None
