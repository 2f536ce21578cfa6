"""`TileInt8` on a CPU: fixed point per tile, products of segments by BLAS."""

from __future__ import annotations

from prismm.core.composite import Joined, Scaled, Setting
from prismm.cpu.composite import CompositeImplementation
from prismm.cpu.engines.floats import BlasEngine, blas_for
from prismm.cpu.tile_int8.split import TileOperand
from prismm.schemes.tile_int8 import TileInt8


class Implementation(CompositeImplementation):
    """`TileInt8` on a CPU."""

    scheme: TileInt8

    def engine_for(self, name: str | None) -> BlasEngine:
        """SGEMM of the segments: its sums are the INT32 sums, exactly.

        Raises:
            ArgumentError: for any other engine.
        """
        return blas_for(name, "TileInt8")

    def split(self, x: Scaled, setting: Setting) -> TileOperand:
        """See `Composite.split`."""
        from prismm.cpu.tile_int8.split import split_tiles

        left = x.side == "left"
        return split_tiles(
            x,
            self.scheme.tile[0 if left else 2],
            self.scheme.tile[1],
            self.scheme.segments[0 if left else 1],
            self.scheme.exponent == "pair",
            self.scheme.scaling == "none",
            setting.workers,
        )

    def multiply(self, left: TileOperand, right: TileOperand, setting: Setting) -> Joined:
        """See `Composite.multiply`."""
        from prismm.cpu.tile_int8.product import TileProduct

        product = TileProduct(left, right, self.scheme.exponent == "pair", self.scheme.weights, self.scheme.fallback)
        return product.run(self.scheme.products, self.scheme.level == 4, setting.workers)
