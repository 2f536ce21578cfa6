"""What an engine is: something that multiplies low-precision matrices exactly, and has proved that it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

INT8_BLOCK = 131071
"""The longest inner dimension whose sums of INT8 products are certain to stay within INT32: 131071·2^14 < 2^31."""


@dataclass(frozen=True)
class Proof:
    """Outcome of an engine's self-proof: usable or not, and why."""

    usable: bool
    reason: str


@runtime_checkable
class Engine(Protocol):
    """The protocol of engines that serve `Residues`.

    It must hold that `multiply(left, right, out)` is the exact integer product of residues modulo each modulus (any
    representative that the join can reduce), for symmetric residues of moduli up to `largest_modulus`, and that `prove`
    refuses the engine on a machine where that fails.
    """

    name: str
    largest_modulus: int

    def prove(self) -> Proof:
        """Multiply extreme operands once per process and compare with exact integers."""

    def multiply(self, left: Any, right: Any, out: Any, moduli: Any) -> None:
        """out[l] = left[l] @ right[l], reduced between blocks of the inner dimension where it must be."""


def add_blocks(
    product: Callable[[NDArray[np.int8], NDArray[np.int8], NDArray[np.int32]], object],
    left: NDArray[np.int8],
    right: NDArray[np.int8],
    out: NDArray[np.int32],
    moduli: tuple[int, ...],
) -> None:
    """out[q] = left[q] (m, k) @ right[q] (k, n) by product(x, y, z), which makes z = x @ y: residues are added every
    `INT8_BLOCK` products.
    """
    import numpy as np

    from prismm.cpu.kernels.rounding import fold_int32

    for x, y, z, q in zip(left, right, out, moduli, strict=True):
        # The first block goes to the result as it is: up to here no sum leaves INT32.
        product(x[:, :INT8_BLOCK], y[:INT8_BLOCK], z)
        for h in range(INT8_BLOCK, x.shape[1], INT8_BLOCK):
            block = np.empty_like(z)
            product(x[:, h : h + INT8_BLOCK], y[h : h + INT8_BLOCK], block)
            fold_int32(z, block, float(q))
