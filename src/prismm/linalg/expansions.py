"""Sums of several float64 matrices that stand for one: their products, exactly rounded, and their normal form.

A matrix X = X₁ + X₂ + … is kept as its parts. A product of such sums is one matrix product: with [X₁ X₁ X₂ X₂] to the
left and [Y₁; Y₂; Y₁; Y₂] to the right the inner dimension runs over all pairs of parts. prismm rounds the whole sum
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm import _api
from prismm.core import arrays
from prismm.core.error_free import two_sum
from prismm.linalg.matrices import identity, one_above_another, side_by_side

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Parts = Sequence[Any]


FEW_COLUMNS = 4
"""Columns of a residual up to which BLAS's product and longer sums of what cancels beat residues."""


@dataclass(frozen=True)
class Products:
    """Products of float64 matrices where the caller's data lie. Of a tensor and a tensor they are tensors, else arrays.

    Attributes:
        device: a torch device, on which arrays are multiplied, too; None multiplies as NumPy's.
    """

    device: Any = None

    def rounded(self, left: Any, right: Any, addend: Any = None, alpha: float = 1.0) -> Any:
        """RN(alpha·left·right + addend): |result - exact| <= u·|result| + η/2."""
        stays = arrays.is_tensor(left) and arrays.is_tensor(right)
        left, right, addend = self._sent(left), self._sent(right), self._sent(addend)
        beta = 0.0 if addend is None else 1.0
        # Nearly all entries of a residual cancel.
        scheme = "native" if self.device is None and addend is not None and right.shape[1] <= FEW_COLUMNS else None
        found = _api.gemm(left, right, addend, alpha=alpha, beta=beta, accuracy="correctly-rounded", scheme=scheme)
        return self._fetched(found, stays)

    def native(self, left: Any, right: Any) -> Any:
        """left·right with |result - exact| <= k·u·|left||right| + k·η."""
        stays = arrays.is_tensor(left) and arrays.is_tensor(right)
        return self._fetched(_api.matmul(self._sent(left), self._sent(right)), stays)

    def _sent(self, x: Any) -> Any:
        if self.device is None or x is None or arrays.is_tensor(x):
            return x
        import torch

        return torch.from_numpy(np.ascontiguousarray(x)).to(self.device)

    def _fetched(self, x: Any, stays: bool) -> Any:
        return x if self.device is None or stays else x.cpu().numpy()


def paired(left: Sequence[Any], right: Parts) -> tuple[Any, Any]:
    """One left and one right matrix whose product is (Σ left)·(Σ right); those of a side may be tensors."""
    if len(left) == 1 == len(right):
        return left[0], right[0]
    rows = [x for x in left for _ in right]
    columns = [y for _ in left for y in right]
    return side_by_side(rows), one_above_another(columns)


def expand(products: Products, left: Sequence[Any], right: Parts, count: int, addends: Parts = ()) -> list[Any]:
    """At most `count` parts S of (Σ left)·(Σ right) + Σ addends, each the rounded rest of those before it.

    S_q = RN(exact - S₁ - … - S_(q-1)), so |exact - Σ S| <= u·|S_last| + η/2, of complex matrices for real and imaginary
    parts. Parts end early where a rest is 0 in every entry; then it is below η, and the last part is that 0.
    They are tensors where the factors on both sides are, and then addends have to be.

    >>> import numpy as np
    >>> x = np.array([[1.0 + 2.0**-52]])
    >>> [float(part[0, 0]) for part in expand(Products(), [x], [x], 3)] == [1.0 + 2.0**-51, 2.0**-104, 0.0]
    True
    """
    x, y = paired(left, right)
    found: list[Any] = []
    while len(found) < count:
        terms = [*addends, *(-part for part in found)]
        first, rest = (terms[0] if terms else None), terms[1:]
        wide, tall = x, y
        if rest:
            unit = identity(x.shape[0], x)
            wide = side_by_side([x, *(unit for _ in rest)])
            tall = one_above_another([y, *rest])
        found.append(products.rounded(wide, tall, first))
        if not found[-1].any():
            break
    return found


def residual_of(products: Products, a: Sequence[Any], x: Parts, b: Floats) -> Floats:
    """RN(b - (Σ a)·(Σ x))."""
    left, right = paired(a, x)
    found: Floats = products.rounded(left, right, b, -1.0)
    return found


def normalised(parts: Parts) -> list[Floats]:
    """Parts with the same exact sum, the largest first, none but the first 0 in every entry.

    Each sweep is made of `two_sum`, which keeps the exact sum whatever the entries are.
    """
    found = list(parts)
    for _ in range(3):
        for i in range(len(found) - 1, 0, -1):
            found[i - 1], found[i] = two_sum(found[i - 1], found[i])
    return [part for i, part in enumerate(found) if i == 0 or part.any()]
