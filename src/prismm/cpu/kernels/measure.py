"""Norms of 16 columns at a time, and how many of their elements are large, for `scale.scale_columns`: sums and counts
stay in registers over all rows.

Per eight elements two products, a rounding up, a square, an addition, and a comparison and an addition for each level.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from prismm.core.jit import device
from prismm.cpu.kernels.byte_unit import declared
from prismm.cpu.kernels.lanes import COUNT, FLOATS, Lanes, float_at, fma, load, loop_over, number

COLUMNS, LEVELS = 16, 5
"""Columns of a call, and levels at which elements are counted."""

_BYTES = 8 * COUNT
_SINGLES = ir.VectorType(ir.FloatType(), COUNT)


def _measure(single: bool, levels: int) -> Any:
    """See `measure`."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source, pitch, rows, first, second, limits, squares, total, found, line = args
        ceil = declared(b.module, "llvm.ceil.v8f64", FLOATS, [FLOATS])
        vectors = range(COLUMNS // COUNT)
        places = [squares, total, *(b.add(found, b.mul(line, number(p))) for p in range(levels))]
        limit = [float_at(b, limits, 8 * p) for p in range(levels)]
        factors = [[load(b, b.add(x, number(_BYTES * v))) for x in (first, second)] for v in vectors]
        start = [load(b, b.add(x, number(_BYTES * v))).value for v in vectors for x in places]

        def row(h: Any, values: list[Any]) -> list[Any]:
            here, new = b.add(source, b.mul(h, pitch)), []
            for v in vectors:
                if single:
                    place = b.add(here, number(_BYTES // 2 * v))
                    x = Lanes(b, b.fpext(load(b, place, _SINGLES).value, FLOATS))
                else:
                    x = load(b, b.add(here, number(_BYTES * v)))
                size = x.magnitude()
                scaled = Lanes(b, b.call(ceil, [(size * factors[v][0] * factors[v][1]).value]))
                scaled = (scaled.equals(0.0) & (size > 0.0)).where(1.0, scaled)
                square, one, *counts = (Lanes(b, y) for y in values[v * len(places) : (v + 1) * len(places)])
                new += [fma(scaled, scaled, square).value, (one + scaled).value]
                new += [(scaled > y).where(z + 1.0, z).value for y, z in zip(limit, counts, strict=True)]
            return new

        ended = loop_over(b, rows, start, row)
        for at, value in enumerate(ended):
            v, x = divmod(at, len(places))
            Lanes(b, value).store(b.add(places[x], number(_BYTES * v)))
        return context.get_dummy_value()

    @intrinsic
    def emit(
        typingctx: Any, source: Any, pitch: Any, rows: Any, first: Any, second: Any, limits: Any, squares: Any,
        total: Any, found: Any, line: Any,
    ) -> Any:  # fmt: skip
        address, count = types.uintp, types.intp
        return types.void(address, count, count, *[address] * 6, count), codegen

    return emit


_sums, _sums_single = _measure(False, 0), _measure(True, 0)
_counts, _counts_single = _measure(False, LEVELS), _measure(True, LEVELS)


@device
def measure(size, levels, source, pitch, rows, first, second, limits, squares, total, found, line):
    """For each of 16 columns at `source`, elements of 4 or 8 bytes, a row `pitch` bytes after the other, the integers
    v = ceil(|x|·first·second), 1 where that is 0 and x is not: Σv² and Σv are added to `squares` and `total`. If levels
    are counted, how many exceed each of five limits is added to `found`, `line` bytes from one level to the next. All
    are float64; rows >= 1.
    """
    given = source, pitch, rows, first, second, limits, squares, total, found, line
    # Whether levels are counted is a constant of each intrinsic: their counts would take registers.
    if levels > 0:
        _counts(*given) if size == 8 else _counts_single(*given)
    else:
        _sums(*given) if size == 8 else _sums_single(*given)
