"""Tiles cover the product once, fit in memory, and never cut the inner dimension."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prismm.cli import tiling
from prismm.errors import ArgumentError

sizes = st.one_of(st.integers(0, 400), st.integers(0, 10**7))


def test_docstrings() -> None:
    assert doctest.testmod(tiling).failed == 0


@given(sizes, sizes, sizes, st.sampled_from([4, 8, 16]), st.integers(1, 1 << 44))
def test_tiles_fit_in_memory(m: int, k: int, n: int, element: int, memory: int) -> None:
    least = (2 * k + 1) * element * tiling.WORKING_SPACE
    if memory < least:
        with pytest.raises(ArgumentError, match=f"pass --memory {least} or more"):
            tiling.choose(m, k, n, element, memory)
        return
    grid = tiling.choose(m, k, n, element, memory)
    rows, columns = min(grid.rows, m), min(grid.columns, n)
    used = (rows * k + k * columns + rows * columns) * element * tiling.WORKING_SPACE
    assert used <= memory or rows == 0 or columns == 0
    assert 1 <= grid.rows <= max(m, 1) and 1 <= grid.columns <= max(n, 1)


@pytest.mark.parametrize("most", [80, pytest.param(300, marks=pytest.mark.slow)])
@given(st.data())
def test_tiles_cover_every_entry_once(most: int, data: st.DataObject) -> None:
    m, k, n = (data.draw(st.integers(0, most)) for _ in range(3))
    memory = max(data.draw(st.integers(1, 1 << 21)), (2 * k + 1) * 8 * tiling.WORKING_SPACE)
    grid = tiling.choose(m, k, n, 8, memory)
    covered = np.zeros((m, n), int)
    for i, j in grid.tiles():
        covered[grid.row_slice(i), grid.column_slice(j)] += 1
    assert (covered == 1).all()
    assert len(list(grid.tiles())) == len(grid)


def test_what_fits_is_one_tile_unless_it_takes_long() -> None:
    assert len(tiling.choose(1000, 1000, 1000, 8, 4 * 3 * 8 * 10**6)) == 1
    assert len(tiling.choose(1000, 1000, 1000, 8, 4 * 3 * 8 * 10**6 - 32)) > 1
    assert len(tiling.choose(16384, 16384, 16384, 8, 1 << 50)) > 16
    assert len(tiling.choose(5, 10**7, 10**5, 8, 1 << 50)) > 16


def test_more_memory_never_means_more_tiles_of_a_square() -> None:
    counts = [len(tiling.choose(2000, 2000, 2000, 8, m << 20)) for m in range(2, 400, 3)]
    assert counts == sorted(counts, reverse=True)
