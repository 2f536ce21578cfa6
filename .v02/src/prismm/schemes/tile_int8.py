"""TileInt8: fixed point per tile on INT8 units (Lin et al. 2024, MixPert)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from prismm.core.scheme import BuiltIn
from prismm.errors import ArgumentError
from prismm.formats import Format

if TYPE_CHECKING:
    pass

SEGMENTS = {1: (2, 2), 2: (2, 3), 3: (3, 2), 4: (3, 3), 5: (4, 4)}
"""Segments of left and right elements by level: l + 1 and r + 1."""
_LONGEST_STEP = 256
_MOST_STEPS = 1 << 20


@dataclass(frozen=True)
class TileInt8(BuiltIn):
    """Elements as integers of two to four 7-bit segments, with one exponent per tile; INT8 products, FP32 sums.

    Value: tiles of A are ``tile[0]`` rows by ``tile[1]`` of the inner dimension, tiles of B ``tile[1]`` by
    ``tile[2]`` columns, padded with zeros at the edges. With g the exponent of a tile's largest element and
    f = 7·segments - 1 (13, 20 or 27), x becomes X = RN(x·2^(f-g)), and X a sum of signed segments of 7 bits, cut toward
    zero; the largest element keeps its leading one and f fraction bits. If it carries to 2^(f+1), g rises by one. In
    each step of ``tile[1]`` along k, the INT8 products of segments i and j add up to integers S_(i+j), which fit INT32
    and float32 alike. Then, every operation rounded to nearest in FP32, t = S_0 + 2^-7·(S_1 + 2^-7·(S_2 + …)), and
    c = c + t·2^(g + g' - 12), steps in ascending order from c = 0.

    Bound: with u = 2^-24, s = ceil(k / tile[1]) steps, w sums S, δx = x - X·2^(f-g) and z the values of the last
    segments, |c - ab| <= γ(|a||b|) + (1+γ)(‖δa_i‖‖b_j‖ + (‖a_i‖+‖δa_i‖)‖δb_j‖) + [level 4] ‖z_i‖‖z_j‖, where
    γ = (s + w - 2)u·(1+2^-10). Proof: segments have their element's sign, so each of the w - 1 partial sums of t, in
    its units, is at most the step's Σ|X||Y|, and each of their roundings u times that; s - 1 additions to c give
    (s-1)u Σ|t| (Jeannerod and Rump 2013). The rest is Cauchy and Schwarz on ab - âb̂ = δa·b + â·δb, and on the product
    that level 4 leaves out. Residuals are measured, so data that fit the grid lose nothing here, and wide rows inside
    a tile are seen for what they are. Where sums could fall below 2^-149, s·2^-148 is added.

    Reproducible: no, an entry depends on its neighbours' tiles. It does not depend on engine, threads, or
    blocking. Scale-invariant with scaling="vectors".

    Args:
        level: 1 to 4, the paper's I to IV, (l, r) = (1, 1), (1, 2), (2, 1), (2, 2): 4, 6, 6 and 8 products (the ninth,
            of both last segments, is left out); 5 is the paper's (3, 3), 16 products, which discards nothing of
            float32 elements within 4 binades of their tile's largest.
        tile: rows, inner dimension, columns; at least 1, the inner one at most 256.
        exponent: "tile" for each tile's own, "pair" for the larger one of the two tiles that meet (Eq. 8).
        fallback: whether tile pairs in which Δ of Eq. 9 exceeds 1·u in a row or column are multiplied in two FP16
            words with amplified low part, as `ScaledHalf` does, each row and column of the tile with its own power of
            two; `Report.notes` counts them as "fallback tiles" (of normal data it takes about one tile of A in
            10^4). Their sums of tile[1] terms have γ = (s + tile[1])u·(1+2^-8) at most, and their own residuals δ.
            On a GPU entries that are not certified are summed in float64 instead: `cuda.tile_int8.launches`.
        scaling: "vectors" takes tiles of data whose rows and columns were scaled by powers of two, which keeps small
            rows beside large ones; "none" takes them of the data as given, which is the paper's way.

    Raises:
        ArgumentError: for values outside of these.

    Source: Lin, Sun, Zhang, Lu, "MixPert", LCTES 2024: Eqs. 2-4 and 7-9, §3.3. The paper rounds elements at bit 20
    for every level and then leaves segments out; here each level rounds at the last bit it keeps.

    >>> from prismm.schemes.tile_int8 import TileInt8
    >>> TileInt8(level=2).products, TileInt8().products, TileInt8(level=5).products
    (6, 8, 16)
    """

    room = "tile_int8"

    level: int = 4
    tile: tuple[int, int, int] = (16, 32, 8)
    exponent: Literal["tile", "pair"] = "tile"
    fallback: bool = True
    scaling: Literal["vectors", "none"] = "vectors"

    def __post_init__(self) -> None:
        if type(self.level) is not int or self.level not in SEGMENTS:
            raise ArgumentError(f"TileInt8(level={self.level!r}); pass 1 to 4 (the paper's I to IV) or 5 for (3, 3)")
        tile = self.tile
        if not isinstance(tile, tuple) or len(tile) != 3 or any(type(x) is not int or x < 1 for x in tile):
            raise ArgumentError(
                f"TileInt8(tile={tile!r}); pass three positive integers: rows, inner dimension, columns"
            )
        if tile[1] > _LONGEST_STEP:
            raise ArgumentError(
                f"TileInt8(tile={tile}) sums over {tile[1]} terms; pass an inner dimension of at most {_LONGEST_STEP}, "
                "so that every sum is exact in FP32"
            )
        if self.exponent not in ("tile", "pair"):
            raise ArgumentError(f"TileInt8(exponent={self.exponent!r}); pass 'tile' or 'pair'")
        if not isinstance(self.fallback, bool):
            raise ArgumentError(f"TileInt8(fallback={self.fallback!r}); pass True or False")
        if self.scaling not in ("vectors", "none"):
            raise ArgumentError(f"TileInt8(scaling={self.scaling!r}); pass 'vectors' or 'none'")

    def __repr__(self) -> str:
        shown = [f"level={self.level}"]
        plain = {f.name: f.default for f in fields(self)}
        for name in ("tile", "exponent", "fallback", "scaling"):
            if getattr(self, name) != plain[name]:
                shown.append(f"{name}={getattr(self, name)!r}")
        return f"TileInt8({', '.join(shown)})"

    @property
    def reproducible(self) -> bool:
        """Always False: the largest element of a tile decides how its neighbours are rounded."""
        return False

    @property
    def granule(self) -> tuple[int, int]:
        """Rows and columns of a tile."""
        return self.tile[0], self.tile[2]

    @property
    def segments(self) -> tuple[int, int]:
        """Segments of an element of A and of B."""
        return SEGMENTS[self.level]

    @property
    def weights(self) -> int:
        """Different weights 2^-7(i+j) among the products that are made."""
        left, right = self.segments
        return left + right - 1 - (self.level == 4)

    @property
    def products(self) -> int:
        """INT8 matrix products for one of real matrices, without fallback."""
        left, right = self.segments
        return left * right - (self.level == 4)

    def check(self, k: int, result: Format) -> None:
        """See `Composite.check`: steps are limited to 2^20, where γ is 1/16."""
        if -(-k // self.tile[1]) > _MOST_STEPS:
            raise ArgumentError(
                f"TileInt8 sums k={k} in more than {_MOST_STEPS} steps of {self.tile[1]}; "
                "pass a longer tile, or split k"
            )

    def products_for(self, k: int, result: Format) -> int:
        """See `Composite.products_for`: without fallback."""
        return self.products

    def workspace(self, m: int, n: int, k: int, result: Format) -> int:
        """See `Composite.workspace`: copies and segments of the operands, the value, and buffers of the workers."""
        steps = -(-k // self.tile[1])
        left, right = self.segments
        split = (m * (8 + left) + n * (8 + right)) * steps * self.tile[1] + 80 * (m + n) * steps
        return split + 8 * m * n + 64 * min(m * n, 1 << 17)
