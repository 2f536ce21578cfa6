"""One triangle copied across the diagonal: every entry, of sizes about those of a tile."""

import numpy as np
import pytest

from prismm.cpu.kernels.mirror import ROWS, SIDE, mirror, mirror_single
from tests.judge import assert_same_bits


@pytest.mark.parametrize(("kernel", "kind"), [(mirror, np.float64), (mirror_single, np.float32)])
def test_every_entry(kernel, kind, rng):
    for n in (0, 1, ROWS - 1, ROWS + 1, SIDE - 1, SIDE, SIDE + 1, 3 * SIDE + ROWS + 3):
        x = rng.standard_normal((n, n)).astype(kind)
        x[rng.random((n, n)) < 0.1] = np.nan
        x[rng.random((n, n)) < 0.1] = -0.0
        wanted = np.where(np.tri(n, dtype=bool), x, x.T)
        for start in range(0, n, SIDE):
            kernel(x, start, min(n, start + SIDE))
        assert_same_bits(x, wanted)
