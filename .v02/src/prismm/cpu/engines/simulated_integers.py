"""INT8 matrix engines that this machine lacks, simulated: they serve `Residues`, and `Slices` of unit "int8".

Their sums are exact as long as they stay within INT32, so every bit of a result is that of any other integer engine:
that is what such a run shows of an engine, of a model that was probed, or of one from a file.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.core.engine_names import SIMULATED
from prismm.cpu.engines.base import Proof, add_blocks
from prismm.errors import EngineError
from prismm.formats import INT8, INT32

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prismm.numerics.model import EngineModel

__all__ = ["SimulatedInt8Engine", "engine"]


@dataclass(frozen=True)
class SimulatedInt8Engine:
    """An `Engine` that multiplies residues as its model says.

    Attributes:
        name: the engine's name.
        model: how it multiplies and adds.
        largest_modulus: of the residues that it takes.
        dtype: element type of residues.
        sum_dtype: element type of their sums.
    """

    name: str
    model: EngineModel
    largest_modulus: int = 256
    dtype: str = "int8"
    sum_dtype: str = "int32"

    def prove(self) -> Proof:
        """See `Engine.prove`."""
        from prismm.cpu.engines import integer as cpu

        return cpu.proof_of(self)

    def multiply(
        self,
        left: NDArray[np.int8],
        right: NDArray[np.int8],
        out: NDArray[np.int32],
        moduli: tuple[int, ...],
    ) -> None:
        """out[q] = left[q] (m, k) @ right[q] (k, n); residues are added block by block."""
        add_blocks(lambda x, y, z: self.product(x, y, z, 1), left, right, out, moduli)

    def product(self, left: NDArray[np.int8], right: NDArray[np.int8], out: NDArray[np.int32], workers: int) -> None:
        """out = left (m, K) @ right (K, n), as the engine makes it."""
        import numpy as np

        from prismm.numerics import products

        # Models run on float64, which holds the digits and sums of INT8 and INT32.
        x, y = (np.ascontiguousarray(z, np.float64) for z in (left, right))
        out[...] = products.gemm(self.model, x, y, None, 1, None, workers)


@functools.lru_cache(maxsize=64)
def engine(name: str) -> SimulatedInt8Engine:
    """The engine of this name: simulated:DEVICE, simulated:DEVICE.int8.int32 or simulated:PATH.json.

    Raises:
        ArgumentError: for an unknown name, or a file that cannot be read or holds no model.
        EngineError: for one that has no INT8 products with sums in INT32.

    >>> engine("simulated:a100").model.name
    'a100.int8.int32'
    """
    from prismm.cpu.engines import simulated
    from prismm.numerics import catalogue

    device = name.removeprefix(SIMULATED)
    models = catalogue.models_of(device) if device in catalogue.devices() else simulated.engine(name).models
    for model in models:
        if (model.input, model.output) == (INT8, INT32):
            return SimulatedInt8Engine(name, model)
    has = ", ".join(dict.fromkeys(f"{m.input.name} -> {m.output.name}" for m in models)) or "other formats"
    raise EngineError(
        f"engine {name!r} multiplies no INT8 with sums in INT32; it has {has}: pass one that does, such as "
        "'simulated:a100', or engine='cpu'"
    )
