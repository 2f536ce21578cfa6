"""How the time of cuBLAS's products follows from their shapes, by type: what a table has beside the rates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prismm.core.problem import Problem


@dataclass(frozen=True)
class CublasTimes:
    """Products of one type. Shares, factors and terms have no unit; `cut_seconds` are those of launches.

    Attributes:
        share: of the rate of the type's precision that the largest tiles reach where they keep all processors busy.
        tile_256x128, tile_128x128, tile_128x64, tile_64x64, tile_64x32, tile_32x32: what tiles of so many rows and
            columns, or columns and rows, reach of that; 0 for tiles that cuBLAS does not have for the type.
        ends: terms that a tile's beginning and end take the time of.
        halves: how many times as long products take where rows of one operand begin at multiples of 16 bytes, not of
            32, which are a sector of the cache; both_halves: where rows of both do.
        odd: the same where rows of an operand begin at other multiples of 8 bytes.
        cut_seconds: what cutting the inner dimension costs besides; cut_passes: how often the results of parts pass
            memory.
        unhidden: the share of writing the result, or of multiplying, whichever is less, that is not hidden behind the
            other one.
        scattered: how many times as long results take to write whose rows begin within sectors.
    """

    share: float
    tile_256x128: float
    tile_128x128: float
    tile_128x64: float
    tile_64x64: float
    tile_64x32: float
    tile_32x32: float
    ends: float
    halves: float
    both_halves: float
    odd: float
    cut_seconds: float
    cut_passes: float
    unhidden: float
    scattered: float

    def tiles(self) -> tuple[tuple[int, int, float], ...]:
        """Rows, columns and share of the tiles that there are."""
        found = (
            (256, 128, self.tile_256x128), (128, 128, self.tile_128x128), (128, 64, self.tile_128x64),
            (64, 64, self.tile_64x64), (64, 32, self.tile_64x32), (32, 32, self.tile_32x32),
        )  # fmt: skip
        turned = ((columns, rows, share) for rows, columns, share in found if rows != columns)
        return tuple(tile for tile in (*found, *turned) if tile[2] > 0.0)

    def alignment(self, size: int, n: int, k: int) -> float:
        """How many times as long a product takes for where its rows begin, of elements of so many bytes."""
        steps = size * n, size * k
        if any(step % 16 for step in steps):
            return self.odd
        apart = sum(step % _SECTOR > 0 for step in steps)
        return (1.0, self.halves, self.both_halves)[apart]

    def writing(self, size: int, n: int) -> float:
        """How many times as long the result takes to write for where its rows begin."""
        return self.scattered if size * n % _SECTOR else 1.0


_SECTOR = 32
"""Bytes of a sector of the cache."""

_FLOAT64 = CublasTimes(1.0, 0.0, 0.0, 1.0, 0.921, 0.293, 0.5, 16.5, 1.154, 1.332, 1.437, 3.78e-06, 1.56, 0.553, 1.5)
_FLOAT32 = CublasTimes(1.0, 1.0, 0.957, 0.937, 0.881, 0.543, 0.339, 35.9, 1.01, 1.03, 1.03, 3.82e-06, 0.91, 0.01, 1.0)
_COMPLEX128 = CublasTimes(0.984, 0.0, 0.0, 0.0, 1.0, 0.957, 0.916, 54.0, 1.134, 1.369, 1.369, 3.72e-06, 0.0, 0.0, 1.43)
_COMPLEX64 = CublasTimes(1.1, 0.0, 0.0, 0.0, 1.0, 0.929, 0.0, 20.0, 1.0, 1.0, 1.02, 3.66e-06, 1.92, 0.3, 1.0)


@dataclass(frozen=True)
class Cublas:
    """Of all types. A table that lacks these takes an H100's."""

    provenance: str = "taken from an NVIDIA H100"
    float64: CublasTimes = field(default=_FLOAT64)
    float32: CublasTimes = field(default=_FLOAT32)
    complex128: CublasTimes = field(default=_COMPLEX128)
    complex64: CublasTimes = field(default=_COMPLEX64)

    def of(self, problem: Problem) -> CublasTimes:
        """Those of a product's type."""
        if problem.result.precision == 53:
            return self.complex128 if problem.is_complex else self.float64
        return self.complex64 if problem.is_complex else self.float32


@dataclass(frozen=True)
class Errors:
    """How far predicted seconds, as a ratio to cuBLAS's with its check, are below measured ones at most, in four of
    five shapes in which a scheme is predicted to take about as long: what it has to be predicted faster by to be taken.

    Attributes:
        provenance: which card, and which shapes.
        kernel: of conventional products in one kernel; scattered: of those that copy elements one by one.
        residues, multiword: of these schemes.
    """

    provenance: str = "taken from an NVIDIA H100"
    kernel: float = 0.056
    scattered: float = 0.2
    residues: float = 0.1
    multiword: float = 0.05
