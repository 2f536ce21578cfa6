"""Engines as `Slices` uses them: exact integer products of digits, left (m, K) times right (n, K) transposed.

| unit | engines, best first | exact because |
| --- | --- | --- |
| int8 | cpu:int8, cpu:float64 | sums within INT32 (proved at first use); within 2^53 in float64 |
| fp16, bf16, fp16-fp16 | cpu:blas (SGEMM), cpu:float64 | every partial sum is an integer of at most 2^24 |
| fp64, fp32-fp64 | cpu:blas (DGEMM), cpu:float64 | every partial sum is an integer of at most 2^53 |
| all | simulated:… | proved at first use on extreme digits, refused where it keeps fewer bits |

An integer sum below the accumulator's limit is the same on all of them, in any order: so are the bits of the result.
For the same reason a CPU engine may add blocks of the inner dimension, and products of equal weight, as long as its own
accumulator holds them, be the unit's shorter. Simulated engines keep to the unit.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from prismm.core import engine_names as names
from prismm.core import threads
from prismm.cpu.engines import simulated_integers, torch_int8
from prismm.cpu.engines.floats import FloatEngine
from prismm.cpu.engines.integer import choose, is_expected, is_taken
from prismm.cpu.engines.simulated_integers import SimulatedInt8Engine
from prismm.errors import ArgumentError, EngineError
from prismm.schemes.slice_layout import Digits, Unit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class SliceEngine:
    """How digits are held and multiplied. float_engine, int8_engine: the simulated engine that does it, else None."""

    name: str
    dtype: Literal["int8", "float32", "float64"]
    float_engine: FloatEngine | None = None
    int8_engine: SimulatedInt8Engine | None = None

    @property
    def sum_dtype(self) -> str:
        """Element type of the products."""
        return "int32" if self.dtype == "int8" else self.dtype

    @property
    def sum_limit(self) -> int | None:
        """The largest integer sum that is exact on this CPU; None where the unit's own accumulator is simulated."""
        limits = {"int8": (1 << 31) - 1, "float32": 1 << 24, "float64": 1 << 53}
        return None if self.float_engine is not None else limits[self.dtype]

    def multiply(self, left: NDArray[Any], right: NDArray[Any], out: NDArray[Any], unit: Unit, workers: int) -> None:
        """out (m, n) = left (m, K) @ right (n, K) transposed, exactly."""
        import numpy as np

        if self.float_engine is not None:
            assert unit.inputs is not None and unit.accumulate is not None
            rows = np.ascontiguousarray(left)
            columns = np.ascontiguousarray(right.T)
            out[...] = self.float_engine.multiply(rows, columns, unit.inputs, unit.accumulate, workers)
        elif self.int8_engine is not None:
            self.int8_engine.product(left, right.T, out, workers)
        elif self.dtype == "int8":
            _multiply_int8(left, right, out, workers)
        else:
            np.matmul(left, right.T, out=out)


def _multiply_int8(left: NDArray[np.int8], right: NDArray[np.int8], out: NDArray[np.int32], workers: int) -> None:
    m = left.shape[0]
    step = max(64, -(-m // workers))

    def rows(i: int) -> None:
        # Workers share the processors, so that each one's OpenMP team is a single thread.
        threads.limit_openmp()
        torch_int8.product(left[i : i + step], right.T, out[i : i + step])

    threads.spread(rows, list(range(0, m, step)), workers)


def engine_for_unit(unit: Unit, name: str | None) -> SliceEngine:
    """The engine of this name for the unit's products; the unit's own on this CPU for None and "cpu".

    Raises:
        ArgumentError: for an engine that has no such unit.
        EngineError: for one that is not exact on this machine.
    """
    if name is not None and name.startswith("simulated:"):
        return _simulated(unit, name)
    # INT8 products of oneDNN are not exact, or not fast, on every CPU, while float64 sums of digits are.
    if name in (None, "cpu") and unit.inputs is None:
        if not is_taken("cpu:int8"):
            return SliceEngine("cpu:float64", "float64")
        return SliceEngine("cpu:int8", "int8")
    if name == "cpu:int8" and unit.inputs is None:
        choose(name)
        return SliceEngine(name, "int8")
    if name in (None, "cpu", "cpu:blas") and unit.inputs is not None:
        return SliceEngine("cpu:blas", unit.dtype)
    if name == "cpu:float64":
        choose(name)
        return SliceEngine(name, "float64")
    known = f"'cpu', {'cpu:int8' if unit.inputs is None else 'cpu:blas'!r}, 'cpu:float64' or 'simulated:…'"
    raise names.not_here(str(name)) or ArgumentError(
        f"engine {name!r} has no unit {unit.name!r}; pass {known}, or another unit"
    )


def expected_for_unit(unit: Unit) -> str:
    """The name of the engine that `engine_for_unit` is expected to give for None; torch is not loaded to tell."""
    if unit.inputs is not None:
        return "cpu:blas"
    return "cpu:int8" if is_expected("cpu:int8") else "cpu:float64"


def _simulated(unit: Unit, name: str) -> SliceEngine:
    from prismm.cpu.engines.floats import engine_for

    if unit.inputs is None or unit.accumulate is None:
        choose(name)
        return SliceEngine(name, "int8", int8_engine=simulated_integers.engine(name))
    found = engine_for(name)
    reason = found.refuse(unit.inputs, unit.accumulate)
    if reason is not None:
        raise EngineError(f"engine {name!r} cannot serve unit {unit.name!r}: {reason}; pass another engine or unit")
    return SliceEngine(name, "float32" if unit.accumulate.precision <= 24 else "float64", found)


@functools.lru_cache(maxsize=256)
def prove(engine: SliceEngine, unit: Unit, bits: int, k: int, rounding: Digits) -> None:
    """Multiply extreme digits over an inner dimension of k and compare with integers.

    All largest, alternating, one of a kind, and random ones: a unit that keeps fewer bits than its accumulator should,
    or truncates what it aligns, shows it here.

    Raises:
        EngineError: where a product is not exact.
    """
    import numpy as np

    largest = unit.largest_digit(bits, rounding)
    low, high = -largest, largest
    # INT8 has no digit of 128.
    if unit.inputs is None and rounding == "nearest":
        high = min(high, 127)
    rng = np.random.default_rng(20260102)
    rows = [np.full(k, high), np.full(k, low), np.where(np.arange(k) % 2 == 0, low, high)]
    # One small term after, and before, many large ones: a sum that drops low bits misses it.
    rows.append(np.where(np.arange(k) == k - 1, -1, high))
    rows.append(np.where(np.arange(k) == 0, high, 1))
    rows += list(rng.integers(low, high + 1, (3, k)))
    digits = np.stack(rows)
    out = np.empty((len(rows), len(rows)), engine.sum_dtype)
    held = digits.astype(engine.dtype)
    engine.multiply(held, held, out, unit, 1)
    expected = digits.astype(object) @ digits.astype(object).T
    if not np.array_equal(out.astype(np.float64), expected.astype(np.float64)):
        raise EngineError(
            f"engine {engine.name!r} is not exact for slices of {bits} bits over an inner dimension of {k}: it keeps "
            f"fewer bits than unit {unit.name!r} asks for; pass a smaller bits= or k_block=, or another unit"
        )
