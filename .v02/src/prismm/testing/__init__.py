"""The exact reference and the hostile operands that prismm is tested with; for your tests too.

>>> import numpy as np
>>> from prismm.testing import HOSTILE, exact_product
>>> a, b = HOSTILE["cancelling"](4, 6, 4, seed=1)
>>> exact = exact_product(a, b)
>>> bool(np.all(exact.error(exact.rounded(np.float64)) <= exact.error(a @ b)))
True
"""

from __future__ import annotations

from prismm.testing.exact import (
    ExactProduct,
    correctly_rounded,
    exact_gemm,
    exact_product,
    ieee_specials,
)
from prismm.testing.generators import HOSTILE, SPECIAL, Generator, phi

__all__ = [
    "HOSTILE",
    "SPECIAL",
    "ExactProduct",
    "Generator",
    "correctly_rounded",
    "exact_gemm",
    "exact_product",
    "ieee_specials",
    "phi",
]
