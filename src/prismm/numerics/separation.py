"""Inputs on which two models differ: aimed search, then shortening."""

from __future__ import annotations

import itertools
import numbers
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.errors import ArgumentError
from prismm.formats import Integer
from prismm.numerics import simulate, vectors
from prismm.numerics.model import EngineModel
from prismm.numerics.observations import same

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

__all__ = ["Separation", "lengths_for", "separate"]


@dataclass(frozen=True)
class Separation:
    """What `separate` found: true if there is a difference, and unpacks as a, b, c.

    Args:
        a, b: the shortest inputs found on which the models differ, of shape (k,); None where none were found.
        c: their addend.
        first, second: what the models make of them.
        tried: how many dot products were compared.
    """

    a: Array | None
    b: Array | None
    c: float | None
    first: float | None
    second: float | None
    tried: int

    def __bool__(self) -> bool:
        return self.a is not None

    def __iter__(self) -> Iterator[Array | float | None]:
        return iter((self.a, self.b, self.c))

    def __str__(self) -> str:
        if self.a is None or self.b is None:
            return f"no difference found in {self.tried} dot products aimed at both models' thresholds"
        a, b = ([float(v) for v in x] for x in (self.a, self.b))
        return f"a={a!r} b={b!r} c={self.c!r}: {self.first!r} and {self.second!r} (after {self.tried} dot products)"


def lengths_for(*models: EngineModel) -> list[int]:
    """Lengths about the ends of the models' blocks and instructions, shortest first."""
    found = {1, 2, 3, 4}
    for m in models:
        for edge in (m.block, m.instruction_depth):
            found |= {edge, edge + 1, 2 * edge, 2 * edge + 1}
        found |= {3 * m.instruction_depth}
    return sorted(k for k in found if 1 <= k <= 1024)


def separate(
    first: EngineModel, second: EngineModel, *, effort: int = 40_000, seed: int = 0, short: bool = True
) -> Separation:
    """Inputs on which two models differ, as short as they could be made, or none and how hard it looked.

    Args:
        first, second: models of the same input and output formats.
        effort: dot products to compare at most; they are aimed at the thresholds of both models.
        seed: of their random parts.
        short: whether to shorten what was found.

    Raises:
        ArgumentError: for models of different formats, or with block scales, which are not drawn; for an effort or a
            seed that is no natural number.

    >>> from prismm.numerics import engine, separate
    >>> a, b, c = separate(engine("v100.fp16.fp32"), engine("a100.fp16.fp32"))
    >>> bool(engine("v100.fp16.fp32").dot(a, b, c) == engine("a100.fp16.fp32").dot(a, b, c))
    False
    """
    import numpy as np

    for name, model in (("first", first), ("second", second)):
        if not isinstance(model, EngineModel):
            raise ArgumentError(f"{name}={model!r} is no model; pass an EngineModel, such as numerics.engine(name)")
    natural("effort", effort)
    natural("seed", seed)
    if (first.input, first.output) != (second.input, second.output):
        raise ArgumentError("models of different formats differ anyway; pass two with the same input and output")
    if first.canonical() == second.canonical():
        return Separation(None, None, None, None, None, 0)
    if first.scale is not None or second.scale is not None:
        raise ArgumentError(
            "models with block scales are not searched, because no scales are drawn; compare what dot makes of "
            "operands and scales of your own"
        )
    if isinstance(first.input, Integer):
        return _integers(first, second)
    found, tried = difference(first, second, effort, np.random.default_rng(seed))
    if found is None:
        return Separation(None, None, None, None, None, tried)
    if short:
        found = _shortened(first, second, *found)
    return _found(first, second, *found, tried)


def natural(name: str, value: object) -> None:
    """ArgumentError unless it is a natural number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < 0:
        raise ArgumentError(f"{name}={value!r}; pass an integer of 0 or more")


def difference(
    first: EngineModel,
    second: EngineModel,
    effort: int,
    rng: np.random.Generator,
    classes: tuple[str, ...] = vectors.CLASSES,
    lengths: Iterable[int] | None = None,
) -> tuple[tuple[Array, Array, float] | None, int]:
    """Inputs of these classes and lengths on which two models differ, if so many dot products show any; how many were
    tried.
    """
    import numpy as np

    aim = vectors.aim_at(first, second)
    lengths = lengths_for(first, second) if lengths is None else lengths
    tried, times = 0, 1
    while tried < effort:
        for k, name in itertools.product(lengths, classes):
            if tried < effort:
                n = vectors.share(24 * times, k, 4)
                a, b, c = vectors.draw(aim, name, k, n, rng)
                tried += n
                different = np.flatnonzero(_differ(first, second, a, b, c))
                if different.size:
                    i = int(different[0])
                    return (a[i], b[i], float(c[i])), tried
        times *= 4
    return None, tried


def _found(first: EngineModel, second: EngineModel, a: Array, b: Array, c: float, tried: int) -> Separation:
    x, y = (float(m.dot(a, b, c)) for m in (first, second))
    return Separation(a, b, c, x, y, tried)


def _differ(first: EngineModel, second: EngineModel, a: Array, b: Array, c: Array) -> NDArray[np.bool_]:
    x, y = simulate.dot_unchecked(first, a, b, c), simulate.dot_unchecked(second, a, b, c)
    return ~same(x, y)


def _shortened(first: EngineModel, second: EngineModel, a: Array, b: Array, c: float) -> tuple[Array, Array, float]:
    """Terms made zero, c too, then left out, as long as the models still differ."""
    import numpy as np

    def still(x: Array, y: Array, z: float) -> bool:
        return bool(
            _differ(first, second, np.ascontiguousarray(x[None]), np.ascontiguousarray(y[None]), np.array([z]))[0]
        )

    for _ in range(2):
        for i in range(len(a)):
            if a[i] != 0.0 or b[i] != 1.0 or np.signbit(a[i]):
                x, y = a.copy(), b.copy()
                x[i], y[i] = 0.0, 1.0
                if still(x, y, c):
                    a, b = x, y
        if c != 0.0 and still(a, b, 0.0):
            c = 0.0
    i = len(a) - 1
    while i >= 0 and len(a) > 1:
        if a[i] == 0.0:
            x, y = np.delete(a, i), np.delete(b, i)
            if still(x, y, c):
                a, b = x, y
        i -= 1
    return a, b, c


def _integers(first: EngineModel, second: EngineModel) -> Separation:
    """Integer engines differ only where sums leave the output's range."""
    import numpy as np

    inputs, output = first.input, first.output
    assert isinstance(inputs, Integer) and isinstance(output, Integer)
    tried = 0
    for k in lengths_for(first, second):
        for c in (output.max, output.max - 1, output.min, output.min + 1, 0):
            for signs in (1.0, -1.0):
                a = np.full(k, float(inputs.max if signs > 0 or not inputs.signed else inputs.min))
                b = np.full(k, float(inputs.max))
                b[k // 2 :] *= -1.0 if inputs.signed and k > 1 else 1.0
                tried += 1
                if float(first.dot(a, b, float(c))) != float(second.dot(a, b, float(c))):
                    return _found(first, second, a, b, float(c), tried)
    return Separation(None, None, None, None, None, tried)
