"""Float32 data in float64: widen with norms on the way, gather columns, and recompute single entries in many lanes.

Bytes: 4 read and 8 written per element that is widened; a gathered column reads whole cache lines of 16 rows.
"""

import numpy as np

from prismm.core.jit import device, device_any_order, kernel
from prismm.cpu.kernels.dot import gather

LANES = 64


@device_any_order
def _widen(x, out):
    total = 0.0
    for h in range(x.size):
        v = np.float64(x[h])
        out[h] = v
        total += v * v
    return total


@kernel("void(float32[:,::1], int64, int64, float64[:,::1], float64[::1])")
def widen_rows(x, i0, i1, out, energy):
    """out[i] = x[i] and energy[i] = Σ_h x_ih², in some order of summation, for i0 <= i < i1."""
    for i in range(i0, i1):
        energy[i] = _widen(x[i], out[i])


@device
def _widen_across(x, out, energy):
    for j in range(x.size):
        v = np.float64(x[j])
        out[j] = v
        energy[j] += v * v


@kernel("void(float32[:,::1], int64, int64, float64[:,::1], float64[::1])")
def widen_columns(x, h0, h1, out, energy):
    """out[h] = x[h] for h0 <= h < h1, and energy[j] += Σ_h x_hj² over these rows."""
    for h in range(h0, h1):
        _widen_across(x[h], out[h], energy)


@kernel("void(float32[:,::1], int64[::1], int64, int64, float32[:,::1])")
def gather_single(b, columns, h0, h1, out):
    """out[c, h] = b[h, columns[c]] for h0 <= h < h1: sixteen rows at a time, so that writes fill cache lines."""
    gather(b, columns, h0, h1, 16, out)


@device
def _add_lanes(a, b, lanes):
    for lane in range(lanes.size):
        lanes[lane] += np.float64(a[lane]) * np.float64(b[lane])


@kernel(
    "void(float32[:,::1], float32[:,::1], int64[::1], int64[::1], float64[::1], float64[::1], float32[::1], uint8[::1])"
)
def lane_dots(rows, columns, ri, ci, row_norm, column_norm, value, undecided):
    """Float32 data: products are exact in float64; 64 lanes cut the bound to (k/64 + 7)·u·‖a‖‖b‖. Rounded to float32;
    undecided where the bound, or an ulp of float64 at its ends, leaves the rounding open.
    """
    k = rows.shape[1]
    lanes = np.empty(LANES)
    whole = k - k % LANES
    factor = (k / LANES + 8.0) * 2.0**-53 * (1.0 + 2.0**-20)
    for c in range(ri.size):
        a = rows[ri[c]]
        b = columns[ci[c]]
        for lane in range(LANES):
            lanes[lane] = 0.0
        for h in range(0, whole, LANES):
            _add_lanes(a[h : h + LANES], b[h : h + LANES], lanes)
        # At most one term more for each lane, which the factor covers.
        for h in range(whole, k):
            lanes[h - whole] += np.float64(a[h]) * np.float64(b[h])
        half = LANES // 2
        while half > 0:
            for lane in range(half):
                lanes[lane] += lanes[lane + half]
            half //= 2
        err = factor * row_norm[ri[c]] * column_norm[ci[c]]
        low = lanes[0] - err
        high = lanes[0] + err
        # An end that is a midpoint of float32 rounds to even and decides nothing.
        low -= abs(low) * 2.0**-51
        high += abs(high) * 2.0**-51
        below = np.float32(low)
        value[c] = below
        undecided[c] = (below != np.float32(high)) | ((low > 0.0) != (high > 0.0))
