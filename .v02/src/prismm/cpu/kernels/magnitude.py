"""Certificates by magnitudes: whether κ·ε <= LB, of entries whose lower bounds of |a||b| are integers.

Per entry 100 bytes read and 30 operations: 15 ns.
"""

import numpy as np

from prismm.core.jit import kernel


@kernel("void(int32[:,:,::1], int64[::1], int64[::1], int64, int64[::1], uint8[::1])")
def pick(products, i, j, first, total, hit):
    """Read the entries (i, j) from products (1 or 2, rows, columns), whose first row is row `first`.

    total: the product of magnitudes. hit: whether the second product, of ones and zeros, is positive; 1 if there is
    none, as then all elements are nonzero.
    """
    for e in range(i.size):
        r, c = i[e] - first, j[e]
        total[e] = products[0, r, c]
        hit[e] = np.uint8(products.shape[0] == 1 or products[products.shape[0] - 1, r, c] != 0)


@kernel(
    "void(int64[::1], int64[::1], int64[::1], uint8[::1], float64[::1], float64[:,::1], float64[:,::1], int64[::1], "
    "int64[::1], int64[::1], int64[::1], float64, float64, float64, uint8[::1])"
)
def certify(
    i, j, total, hit, value, row_terms, column_terms, row_power, column_power, row_shift, column_shift, terms, factor,
    top, proved,
):  # fmt: skip
    """proved: whether factor·ε <= total·2^(power - 14), with ε as in `finish.bounds`, and |value| + ε is below `top`
    (magnitudes say nothing of overflow); or no product of elements is nonzero (hit is 0).
    """
    for e in range(i.size):
        r, c = i[e], j[e]
        n1, d, n2, f = row_terms[0, r], row_terms[1, r], row_terms[2, r], row_terms[3, r]
        n1b, db, n2b, fb = column_terms[0, c], column_terms[1, c], column_terms[2, c], column_terms[3, c]
        first = f * n1b + fb * n1 + f * fb * terms
        second = (d * n2b + (n2 + d) * db) * (1.0 + 2.0**-40)
        bound = min(first, second)
        # Magnitudes of 7 bits on both sides: a unit of their sum is 2^-14 of the two binades.
        lower = np.ldexp(np.float64(total[e]), row_power[r] + column_power[c] - 14)
        reach = abs(value[e]) + np.ldexp(bound, -(row_shift[r] + column_shift[c]))
        sure = (hit[e] == 0) | (bound * factor <= lower)
        proved[e] = np.uint8(sure & (reach < top))
