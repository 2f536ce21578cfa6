"""The direct engine's kernels on blocks: rows that meet a block of columns of their own each, in one call.

Block u holds the rows first[u] … first[u+1] - 1 of the left operand and the columns u·n … u·n + n - 1 of the right one.
Results have n columns. Bytes and operations are those of `direct_product` and `combine`, block by block.
"""

import numpy as np

from prismm.core.jit import counting, kernel
from prismm.cpu.kernels.combine import combine
from prismm.cpu.kernels.direct import direct_product

_direct_product = direct_product.device
_combine = combine.device


@counting
def _columns(x, start, stop):
    """Columns of a matrix as one of their own."""
    # A slice of columns is not contiguous, which the types of the kernels ask for.
    y = np.empty((x.shape[0], stop - start))
    for i in range(x.shape[0]):
        for j in range(stop - start):
            y[i, j] = x[i, start + j]
    return y


@kernel(
    "int64(int64[::1], float64[:,:,::1], float64[:,:,::1], int64[::1], int64[::1], float64[:,::1], float64[:,::1], "
    "float64, int64[::1], int64[::1], int64[:,::1], int64[:,::1], int64, int64, float64, float64, int64, "
    "float64[:,:], float32[:,:], float64[:,::1], int32[::1])"
)
def direct_blocks(
    first, left, right, row_shift, column_shift, row_terms, column_terms, terms, row_power, column_power, row_counts,
    column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32, low, failed,
):  # fmt: skip
    """`direct_product` of every block; entries are listed by their row in all."""
    n = right.shape[0] // (first.size - 1)
    count = np.int64(0)
    for u in range(first.size - 1):
        i0, i1, j0, j1 = first[u], first[u + 1], u * n, u * n + n
        found = _direct_product(
            left[i0:i1], right[j0:j1], row_shift[i0:i1], column_shift[j0:j1], _columns(row_terms, i0, i1),
            _columns(column_terms, j0, j1), terms, row_power[i0:i1], column_power[j0:j1], row_counts[i0:i1],
            column_counts[j0:j1], k, mode, kappa, magnitude_kappa, precision, out[i0:i1], out32[i0:i1], low[i0:i1],
            failed[count:],
        )  # fmt: skip
        # The kernel of a block counts rows from its own first one.
        for c in range(count, count + found):
            failed[c] += i0 * n
        count += found
    return count


@kernel(
    "int64(int64[::1], float64[:,::1], float64[:,::1], float64[:,::1], float64[:,::1], int64, int64[::1], int64[::1], "
    "float64[:,::1], float64[:,::1], float64, float64[:,:], float64[:,:], float64[::1], int64[::1], int64[::1], "
    "int64[:,::1], int64[:,::1], int64, int64, float64, float64, int64, float64[:,:], float32[:,:], int32[::1])"
)
def combine_blocks(
    first, high1, low1, high2, low2, unit, row_shift, column_shift, row_terms, column_terms, terms, add1, add2, factors,
    row_power, column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32, failed,
):  # fmt: skip
    """`combine` of every block likewise."""
    n = high1.shape[1]
    count = np.int64(0)
    for u in range(first.size - 1):
        i0, i1, j0, j1 = first[u], first[u + 1], u * n, u * n + n
        found = _combine(
            high1[i0:i1], low1[i0:i1], high2[i0:i1], low2[i0:i1], unit, row_shift[i0:i1], column_shift[j0:j1],
            _columns(row_terms, i0, i1), _columns(column_terms, j0, j1), terms, add1[i0:i1], add2[i0:i1], factors,
            row_power[i0:i1], column_power[j0:j1], row_counts[i0:i1], column_counts[j0:j1], k, mode, kappa,
            magnitude_kappa, precision, out[i0:i1], out32[i0:i1], failed[count:],
        )  # fmt: skip
        for c in range(count, count + found):
            failed[c] += i0 * n
        count += found
    return count
