"""Every experiment at its quick size: what must hold there, and that no verdict comes from nothing."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import pytest

from prismm.reproduce import PAPERS, load
from prismm.reproduce.algorithm3 import cut, paper_bits, products_for, slices_needed, sum_of_slices
from prismm.reproduce.run import Result, run

# What needs sizes beyond the quick ones, or differs for a reason that its note tells.
LARGE = {
    "tf32-tf64": {
        "1xTF32 error, l2, uniform data, n >= 512",
        "1xTF32 error, l1 and linf, normal data, n >= 512",
        "1xFP16 over 1xTF32, mean over n",
        "1xFP16 with FP16 output over 1xTF32, mean over n",
        "1xFP16 with FP16 sums over 1xTF32, mean over n",
        "1xFP16 with FP16 sums, simulated A100, over 1xTF32, mean over n",
        "3xTF32, simulated A100, over SGEMM, uniform data",
        "3xTF64 in chunks over DGEMM, n >= 512",
        "3xTF64 over 4xTF64, n <= 64, uniform data",
        "|3x/4x - 1|, largest n over smallest n, normal data",
    },
    "mixpert": {
        "mean E of MixPert IV, uniform",
        "mean E of FP32, sums one after the other, uniform",
        "mean E of FP32, this CPU's SGEMM, uniform",
        "mean E of 3xTF32, A100, sums not staged, uniform",
        "mean E of 3xTF32, A100, sums not staged, normal",
        "mean E of APE, sums rounded, uniform",
        "mean E of APE, sums rounded, normal",
        "mean E of APE, A100, sums not staged, uniform",
        "mean E of APE, A100, sums not staged, normal",
        "mean E of QuanTensor, two INT8 words, uniform",
        "mean E of QuanTensor, three INT8 words, uniform",
        "E of APE on GEMM, simulated A100, uniform, largest k",
    },
    "dgemm-tc": {
        "DGEMM-TC-DP, FP64 sums, over DGEMM",
        "SGEMM-TC-SP, FP32 sums, over SGEMM",
        "share of products and sums in the time, largest n",
        *(
            f"{what} magnitude of 10240 x 10240 inputs, phi={phi}"
            for what in ("smallest", "largest")
            for phi in ("0.1", "1")
        ),
    },
    "tensor-core-numerics": {
        "T4: inner dimension of a block, fp16",
        "A100: inner dimension of a block, tf32",
    },
    "h2sgemm": {
        "half precision, relative error, non-negative",
        "sb=12 term-wise over SGEMM, exponents <= -10",
        "sb=12 term-wise over element-wise",
        "term-wise over SGEMM, k >= 1024",
        "growth of that ratio from the smallest k to the largest",
        "term-wise over SGEMM, m = n = k >= 64",
    },
}


MACHINE = {
    "tf32-tf64": {"3xTF32 in chunks no worse than SGEMM", "3xTF32 over SGEMM", "3xTF64 over DGEMM"},
    "mixpert": {f"mean E of FP32, this CPU's SGEMM, {kind}" for kind in ("uniform", "normal")},
}
"""What compares with this machine's own BLAS, whose sums err half as much on some processors as on others."""


@pytest.fixture(scope="module")
def result_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Result]:
    return functools.cache(lambda name: run(load(name), tmp_path_factory.mktemp(name), "quick"))


each_paper = pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[] if x == "tensor-core-numerics" else pytest.mark.slow) for x in PAPERS]
)


@each_paper
def test_what_holds_at_small_sizes(result_of: Callable[[str], Result], name: str) -> None:
    found = {comparison.claim.what: comparison for comparison in result_of(name).comparisons}
    assert len(found) == len(result_of(name).comparisons)  # no two rows of the table look alike
    assert LARGE[name] <= set(found)
    for what, comparison in found.items():
        if what not in LARGE[name]:
            by_blas = ("differs", "too small") if what in MACHINE.get(name, ()) else ()
            allowed = ("holds", "ours alone", "not here", *by_blas)
            assert comparison.verdict in allowed, (what, comparison.values)
        assert (comparison.verdict == "not here") == bool(comparison.claim.device)
        assert (comparison.verdict == "holds") <= bool(comparison.values)
    assert sum(comparison.verdict == "holds" for comparison in found.values()) >= 8


@each_paper
def test_rows_are_numbers_and_every_panel_has_data(result_of: Callable[[str], Result], name: str) -> None:
    rows = result_of(name).rows
    assert not [row for row in rows if math.isnan(row.value)]
    for row in rows:
        assert row.figure and row.series and row.measure, row
    for panel in load(name).panels:
        drawn = rows.pick(panel.figure, measure=panel.measure)
        assert len(drawn), panel
        assert set(panel.series or ()) <= {row.series for row in drawn}, panel


@pytest.mark.parametrize("name", PAPERS)
def test_sizes_grow(name: str) -> None:
    quick, default, full = (len(load(name).points_of(size)) for size in ("quick", "default", "full"))
    assert quick <= default <= full


@pytest.mark.slow
def test_the_published_count_of_products(result_of: Callable[[str], Result]) -> None:
    """66 products at k = 7168, φ = 0.1 (Mukunoki et al. 2020, §5), by two implementations of Algorithm 3."""
    rows = result_of("dgemm-tc").rows
    assert rows.curve("5(b)", "phi=0.1", "products")[7168] == 66
    assert rows.curve("5(b)", "prismm, phi=0.1", "slices")[7168] == 11


def test_slices_of_algorithm_1_add_up_and_are_short(rng: np.random.Generator) -> None:
    x = (rng.random((5, 300)) - 0.5) * np.exp(rng.standard_normal((5, 300)))
    bits, rest, total = paper_bits(300), x, np.zeros_like(x)
    while rest.any():
        top = np.abs(rest).max(axis=1, keepdims=True)
        slice_, rest = cut(rest, bits)
        total += slice_  # exact: each slice continues the bits of those before
        unit = np.exp2(np.ceil(np.log2(np.where(top > 0, top, 1.0))) - bits)
        digits = slice_ / unit
        assert np.array_equal(digits, np.rint(digits)) and np.abs(digits).max() <= 2**bits
        assert np.all(np.abs(rest) <= unit)
    assert np.array_equal(total, x)


def test_fast_mode_is_off_where_the_split_ends_first() -> None:
    small = np.arange(1.0, 33.0).reshape(4, 8)
    d, fast = slices_needed([small], np.ones(8), 8, 2.0**-53)
    assert (d, fast, products_for(d, fast)) == (1, False, 1)
    assert products_for(3, True) == 6 and products_for(3, False) == 9
    assert np.array_equal(sum_of_slices(small, small.T.copy(), 8, 2.0**-53), small @ small.T)
