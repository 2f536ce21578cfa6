"""Float32 data in float64: widened exactly, norms above the truth, lane dots right where they decide."""

import numpy as np
import pytest

from prismm.cpu.kernels import single
from prismm.testing import HOSTILE, exact_product
from tests.cpu.kernels.harness import differing, same_bits

M, N = 8, 7


def test_widening_is_exact_and_energies_are_sums_of_squares(rng):
    x = (rng.standard_normal((37, 53)) * np.exp2(rng.integers(-140, 120, (37, 53)))).astype(np.float32)
    wide, energy = np.full(x.shape, 3.0), np.full(37, 3.0)
    single.widen_rows(x, 5, 30, wide, energy)
    assert np.array_equal(wide[5:30], x[5:30]) and (wide[:5] == 3.0).all() and (energy[30:] == 3.0).all()
    squares = x.astype(np.float64) ** 2
    assert np.allclose(energy[5:30], squares[5:30].sum(axis=1), rtol=53 * 2.0**-53, atol=0.0)
    energy = np.zeros(53)
    single.widen_columns(x, 3, 20, wide, energy)
    assert np.array_equal(wide[3:20], x[3:20])
    assert np.allclose(energy, squares[3:20].sum(axis=0), rtol=37 * 2.0**-53, atol=0.0)


def test_columns_are_gathered(rng):
    b = rng.standard_normal((75, 40)).astype(np.float32)
    columns = np.array([3, 4, 17, 39])
    out = np.zeros((4, 75), np.float32)
    single.gather_single(b, columns, 0, 32, out)
    single.gather_single(b, columns, 32, 75, out)
    assert np.array_equal(out, b[:, columns].T)


@pytest.mark.parametrize("name", HOSTILE)
def test_lane_dots_are_right_where_they_decide(name, rng):
    for k in (1, 2, 63, 64, 65, 200, 1000):
        a, b = HOSTILE[name](M, k, N, int(rng.integers(2**32)), "float32")
        rows, columns = np.ascontiguousarray(a), np.ascontiguousarray(b.T)
        i, j = (x.reshape(-1).astype(np.int64) for x in np.indices((M, N)))
        norms = [
            np.sqrt(np.einsum("ij,ij->i", x, x)) * (1.0 + 2.0**-20)
            for x in (rows.astype(np.float64), columns.astype(np.float64))
        ]
        value, undecided = np.full(i.size, np.nan, np.float32), np.full(i.size, 9, np.uint8)
        single.lane_dots(rows, columns, i, j, *norms, value, undecided)
        sure = undecided == 0
        wanted = exact_product(rows, columns.T).rounded(np.float32).ravel()
        assert same_bits(value[sure], wanted[sure]), (k, differing(value[sure], wanted[sure]))
        if name in ("normal", "uniform"):  # 2 of 1.2 million were open, by 1500 seeds
            assert np.count_nonzero(~sure) <= 1
