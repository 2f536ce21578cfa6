"""Native: the GEMM of NumPy's BLAS (or torch's, for tensors) in the precision of the result, certified a priori."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from prismm.core.scheme import BuiltIn
from prismm.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Native(BuiltIn):
    """The engine's own GEMM.

    Value: a sum of rounded products in an order that the BLAS chooses. Bound: K·u·(|a||b|) + K·η for any such order
    (Jeannerod and Rump 2013). Reproducible: no. Scale-invariant: in practice, but not promised. Entries that
    overflow on the way are recomputed, so that ±Inf appears exactly where the exact result overflows.

    Args:
        compute: precision of the GEMM: None for the result's own, "float64" to multiply float32 data in float64 (their
            products are then exact) and round once; on a GPU by float64's matrix instructions ("cuda:fp64").

    Raises:
        ArgumentError: for another ``compute``.

    Source: Jeannerod and Rump, "Improved error bounds for inner products in floating-point arithmetic", 2013.

    >>> import numpy as np, prismm
    >>> prismm.matmul(np.ones((1, 2)), np.ones((2, 1)), scheme=prismm.Native())
    array([[2.]])
    """

    room = "native"

    compute: Literal["float32", "float64"] | None = None

    def __post_init__(self) -> None:
        if self.compute not in (None, "float32", "float64"):
            raise ArgumentError(f"Native(compute={self.compute!r}); pass None, 'float32' or 'float64'")

    @property
    def reproducible(self) -> bool:
        """Always False: the order of summation is the library's."""
        return False

    @property
    def is_conventional(self) -> bool:
        """Always True: an entry is a sum of rounded products in the precision of the GEMM."""
        return True


def gemm_dtype(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], compute: str | None) -> np.dtype[Any]:
    """Element type in which the GEMM runs: at least float32, at least the result's, wide enough to hold the
    operands.
    """
    import numpy as np

    kind = np.result_type(a.dtype, b.dtype, out.dtype, np.float32)
    return np.result_type(kind, np.float64) if compute == "float64" else kind


def native_meets(tolerance: float, terms: int, unit: float, result_unit: float) -> bool:
    """Whether (K+2)·u·(|a||b|), u that of the GEMM, is within tol·|a||b|; a narrower result is rounded on top of it."""
    return (terms + 2) * unit * (1.0 + 2.0**-20) <= tolerance and unit <= result_unit


def fits_single(x: NDArray[Any]) -> bool:
    """Whether float32 holds every value of an array's type."""
    import numpy as np

    return bool(x.dtype in (np.float32, np.float16, np.int8, np.uint8, np.int16, np.uint16))
