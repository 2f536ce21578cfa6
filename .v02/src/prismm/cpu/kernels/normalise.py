"""Bring rows or columns to magnitudes in [1/2, 1) by powers of two.

Per element one read, one or two multiplications by exact powers of two and one write: 16 bytes, so memory bound (8 MiB
operands of 1024 x 1024 take about 2 ms on one core). What is smaller than 2^-1022 afterwards may have been rounded, and
is compared with what it came from.
"""

from prismm.core.jit import kernel


@kernel(
    "void(float64[:,::1], int64, int64, float64[::1], float64[::1], boolean, float64[:,::1], uint8[::1], float64[::1])"
)
def normalise(x, start, stop, first, second, left, out, lost, smallest):
    """out = x·first·second for rows `start` to `stop`, factors and flags by row (left) or by column.

    lost: set where an element was rounded. smallest: per vector, lowered to the smallest nonzero magnitude. Where
    the factor is 0 (vectors that are not finite) the outcome is 0, whatever x holds.
    """
    n = x.shape[1]
    for i in range(start, stop):
        for j in range(n):
            v = i if left else j
            f, g = first[v], second[v]
            # Selected, not multiplied by 0: Inf times 0 is no number.
            y = x[i, j] * f * g if f != 0.0 else 0.0
            out[i, j] = y
            if y != 0.0:
                smallest[v] = min(smallest[v], abs(y))
            # Undone in the opposite order, only what was rounded does not come back.
            if abs(y) < 2.0**-1022 and f != 0.0 and (y / g) / f != x[i, j]:
                lost[v] = 1
                smallest[v] = 0.0
