"""The bound of a composite product, tile by tile, from the operands' own magnitudes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.bounds import _UP, _abs, _alive, _weighted, half_ulp
from prismm.core.outcome import Epilogue
from prismm.core.specials import layout
from prismm.cpu.scaling import Units, bound_of, measure, scale
from prismm.formats import Format

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class CompositePiece:
    """The bound of one tile of a composite product: (gamma, rows, columns, floor) per real part, in scaled units."""

    i0: int
    i1: int
    j0: int
    j1: int
    terms: list[tuple[float, NDArray[np.float64], NDArray[np.float64], float]]


@dataclass(frozen=True)
class CompositeBound:
    """gamma·(|a||b|) + Σ rows⊗columns + floor before rounding, plus half an ulp; holds for repaired entries as well.

    |a||b| comes from the operands, which must not have changed since.
    """

    result: Format
    a: NDArray[Any]
    b: NDArray[Any]
    rows: Units
    columns: Units
    pieces: list[CompositePiece]
    epilogue: Epilogue | None = None

    def at(self, c: NDArray[Any], i: Any, j: Any) -> NDArray[np.float64]:
        """Bound of entries (i, j) of the result c, which may be slices."""
        rows = np.atleast_1d(np.arange(c.shape[0])[i])
        columns = np.atleast_1d(np.arange(c.shape[1])[j])
        bound = np.zeros((rows.size, columns.size))
        for piece in self.pieces:
            r = np.flatnonzero((rows >= piece.i0) & (rows < piece.i1))
            q = np.flatnonzero((columns >= piece.j0) & (columns < piece.j1))
            if r.size and q.size:
                bound[np.ix_(r, q)] = self._tile(piece, rows[r], columns[q])
        value = c[i, j]
        bound = np.reshape(bound, np.shape(value)) + half_ulp(value, self.result) * _UP
        return np.where(_alive(value), bound, 0.0)

    def _tile(self, piece: CompositePiece, i: NDArray[np.int64], j: NDArray[np.int64]) -> NDArray[np.float64]:
        tile_units = self.rows.take(i), self.columns.take(j)
        parts: list[NDArray[np.float64]] = []
        sizes: list[NDArray[np.float64]] = []
        for part, (gamma, rows, columns, floor) in enumerate(piece.terms):
            size = None
            if gamma > 0.0 or self.epilogue is not None:
                x = np.abs(scale(layout(self.a[i], part, "left"), "left", 1)[0].data)
                y = np.abs(scale(layout(self.b[:, j], part, "right"), "right", 1)[0].data)
                size = measure(x, y, True, False)
                sizes.append((size.size + 2.0**-990) * size.up)
            vectors = rows[:, i - piece.i0], columns[:, j - piece.j0]
            parts.append(bound_of(gamma, *vectors, floor, size, tile_units, self.a.shape[1] * len(piece.terms)))
        units = np.maximum.reduce(parts)
        exponent = tile_units[0].exponent[:, None] + tile_units[1].exponent[None, :]
        if self.epilogue is not None:
            # A complex factor mixes both parts; 2^-90 of all magnitudes is the arithmetic's own.
            factors = np.abs(self.epilogue.factors(0, len(parts)))[:2]
            # Their powers of two join the exponent, so that small factors cannot make it underflow.
            top = int(np.frexp(factors.max())[1])
            weight = float(np.ldexp(factors, -top).sum())
            units = weight * _UP * (units + np.maximum.reduce(sizes) * 2.0**-90)
            exponent = exponent + top
        with np.errstate(over="ignore"):
            bound: NDArray[np.float64] = np.ldexp(units, exponent)
            # η more makes up for what ldexp rounds away where the bound is subnormal, or underflows.
            bound = np.where(units > 0.0, bound * _UP + 2.0**-1074, bound)
            if self.epilogue is not None and self.epilogue.c is not None:
                added = _abs(self.epilogue.c[np.ix_(i, j)])
                bound = bound + _weighted(self.epilogue.beta, added) * 2.0**-90 + 2.0**-1074
        return bound
