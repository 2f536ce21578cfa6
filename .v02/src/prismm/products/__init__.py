"""Products of arrays beside `prismm.matmul`: `vecdot`, `tensordot` and `einsum`, named and shaped as in the Python
array API standard (https://data-apis.org/array-api), einsum as in NumPy.

Each product of two operands is one product of matrices: axes are moved and joined, as views where the arrays allow, and
`prismm.matmul` multiplies. So an entry is one sum of K products of elements, K being the number of combinations of all
indices that are summed over, and the accuracy targets of `matmul` hold for it with that K; a correctly rounded entry is
rounded once, and a reproducible one does not depend on the order of the sum. Results are the callers' kind of array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.core.lazy import attributes

if TYPE_CHECKING:
    from prismm.products.contraction import einsum
    from prismm.products.dots import tensordot, vecdot

__all__ = ["einsum", "tensordot", "vecdot"]

__getattr__ = attributes(
    globals(),
    {
        "einsum": "prismm.products.contraction", "tensordot": "prismm.products.dots",
        "vecdot": "prismm.products.dots",
    },
)  # fmt: skip
