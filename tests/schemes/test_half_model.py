"""The analysis of two FP16 words against counting over all FP32 fractions, and the blocking model against loops."""

import doctest
import math
from fractions import Fraction

import numpy as np
import pytest

import prismm.schemes.half_model as model
from prismm.errors import ArgumentError
from prismm.schemes.half_model import (
    Blocking,
    Cache,
    admissible_sb,
    blocks_up,
    feasible_blocks,
    leading_zeros_probability,
    optimal_rows,
    paper_sb_range,
    retained_bits,
    underflow_probability,
)

CASES = ("truncated", "rounded")


def residuals():
    """x - high for every FP32 number in [1, 2), in units of 2^-23."""
    fraction = np.arange(1 << 23, dtype=np.int64)
    rest = fraction & 0x1FFF
    up = (rest > 0x1000) | ((rest == 0x1000) & ((fraction >> 13) & 1 == 1))
    return np.where(up, rest - 0x2000, rest), up


def zeros_of(rest):
    """N: 11 minus the exponent of the residual in units of 2^-23; 12 for 0."""
    return np.where(rest == 0, 12, 12 - np.frexp(np.abs(rest).astype(float))[1])


@pytest.mark.slow
def test_equation_3_counts_every_fraction():
    rest, up = residuals()
    zeros = zeros_of(rest)
    total = Fraction(0)
    for n in range(-3, 15):
        for case, chosen in zip(CASES, (~up, up), strict=True):
            counted = Fraction(int(np.count_nonzero((zeros == n) & chosen)), 1 << 23)
            assert leading_zeros_probability(n, case) == counted, (n, case)
            total += counted
    assert total == 1


@pytest.mark.slow
def test_equation_5_counts_the_low_words_below_a_limit():
    rest, _ = residuals()
    size, counts = np.unique(np.abs(rest), return_counts=True)
    exponent = np.where(size == 0, -99, np.frexp(size.astype(float))[1] - 1 - 23)
    for e in range(-20, 16):
        for sb in (0, 6, 12):
            # A low word of 0 counts with N = 12 leading zeros, that is with exponent e - 24.
            low = np.where(size == 0, -24, exponent) + e + sb
            for gradual, limit in ((True, -14), (False, -24)):
                counted = Fraction(int(counts[low < limit].sum()), 1 << 23)
                assert underflow_probability(e, sb, gradual=gradual) == counted, (e, sb, gradual)


def test_the_papers_readings_of_figure_2():
    assert underflow_probability(0, gradual=True) > Fraction(1, 10)
    assert underflow_probability(0) < Fraction(1, 1000)
    assert underflow_probability(-10) > Fraction(1, 10) > underflow_probability(-9)
    assert underflow_probability(-13) > Fraction(99, 100)
    assert [retained_bits(e) for e in (-1, -2, -3, -12, -13)] == [22, 22, 21, 12, 11]


def worst_error(exponent, sb):
    """max |x - (high + low·2^-sb)| over FP32 numbers of the exponent, with every pattern of the 14 low bits of the
    fraction, and all fractions of up to three ones or zeros.
    """
    tops = np.array([0, 1, 255, 511], np.int64)[:, None] << 14
    one = np.append(1 << np.arange(23), 0)
    three = (one[:, None, None] | one[None, :, None] | one).ravel()
    fraction = np.concatenate([(tops + np.arange(1 << 14)).ravel(), three, (1 << 23) - 1 - three])
    x = np.ldexp(((1 << 23) + fraction).astype(float), exponent - 23)
    with np.errstate(over="ignore", invalid="ignore"):
        high = x.astype(np.float16).astype(float)
        low = np.ldexp(x - high, sb).astype(np.float16).astype(float)
        return float(np.max(np.nan_to_num(np.abs(x - high - np.ldexp(low, -sb)), nan=np.inf, posinf=np.inf)))


@pytest.mark.parametrize("sb", [12, *(pytest.param(sb, marks=pytest.mark.slow) for sb in (-4, 0, 6, 11, 13, 20))])
def test_retained_bits_are_retained_and_hardly_more(sb):
    for exponent in range(-30, 18):
        bits, worst = retained_bits(exponent, sb), worst_error(exponent, sb)
        if exponent > 14 or exponent > 26 - sb:
            assert bits == 0 and worst == np.inf
        elif bits == 0:
            assert 2.0 ** (exponent - 2) <= worst < 2.0 ** (exponent + 1)
        else:
            assert 2.0 ** (exponent - bits - 2) <= worst <= 2.0 ** (exponent - bits), (exponent, bits, worst)


@pytest.mark.parametrize("e_min", range(-14, 15, 4))
@pytest.mark.parametrize("span", [0, 3, 12, 26, 28])
def test_the_admissible_range_is_exact_and_equation_6_is_one_too_large(e_min, span):
    e_max = min(14, e_min + span)
    low, high = admissible_sb(e_min, e_max)
    for sb in range(low - 2, high + 3):
        all_kept = all(retained_bits(e, sb) == 22 for e in range(e_min, e_max + 1))
        assert all_kept == (low <= sb <= high), sb
    assert paper_sb_range(e_min, e_max) == (low, high + 1)
    assert worst_error(e_max, high) < np.inf == worst_error(e_max, high + 1)


def test_the_counterexample_to_equation_6():
    with np.errstate(over="ignore"):
        assert np.float16((32784.0 - float(np.float16(32784.0))) * 2.0**12) == np.inf
    assert paper_sb_range(15, 15)[1] == 12 and admissible_sb(15, 15)[1] == 11


def test_published_blocks():
    block = Blocking(176, 64, 176)
    assert block.fused == 44 and not block.violations()
    assert [round(optimal_rows(f)) for f in (0.92, 1.0)] == [87, 91]
    assert all(blocks_up(optimal_rows(f)) == 96 for f in (0.92, 0.95, 1.0))
    assert blocks_up(96) == 96


def test_figure_5_is_the_feasible_set():
    blocks = list(feasible_blocks())
    found = {(b.rows, b.depth, b.columns) for b in blocks}
    assert len(found) == len(blocks)
    sizes = range(16, 1100, 16)
    wanted = {
        (m, k, n) for m in sizes for k in sizes for n in sizes
        if m * k <= 64 * 256 and k * n <= 64 * 256 and 6 * m * n <= 248 * 1024
    }  # fmt: skip
    assert found == wanted and (176, 64, 176) in found
    for b in blocks:
        assert not b.violations()
        assert b.fused == math.floor((524288 - 2 * b.depth * b.columns) / (b.rows * b.depth))
        assert b.fused * b.rows * b.depth == pytest.approx(b.efficiency * 524288)
        assert b.fused >= 14 and (not 0.5 <= b.columns / b.rows <= 2 or 0.87 < b.efficiency <= 1.0)


@pytest.mark.parametrize("shape", [(8, 4, 8), (4, 8, 6)])
def test_traffic_is_what_the_loops_of_algorithm_1_move(shape):
    cache = Cache(l1=400, l0=1000, unified=10**6, step=2, cores=2)
    block = Blocking(*shape, cache)
    groups = 3
    depth_blocks = groups * block.fused
    m, k, n = 12 * block.rows, depth_blocks * block.depth, 5 * block.columns
    a = b = c = 0
    for _row in range(m // block.rows):
        for _group in range(groups):
            a += block.fused * block.rows * block.depth
            for _column in range(n // block.columns):
                b += block.fused * block.depth * block.columns
                c += 2 * block.rows * block.columns
    moved = block.traffic(m, k, n)
    assert (moved.a, moved.b * cache.cores, moved.c) == (a, b, c)  # Eq. 9 counts B per core
    assert moved.total == moved.a + moved.b + moved.c
    assert moved.c == pytest.approx(2 * m * k * n * block.rows / (block.efficiency * cache.l1))


def test_the_optimal_block_balances_reading_b_against_writing_c():
    best, length = optimal_rows(0.95), 0.95 * 524288

    def moved(rows):
        return 1 / (32 * rows) + 2 * rows / length

    assert moved(best) < min(moved(best * 1.01), moved(best / 1.01))
    assert 1 / (32 * best) == pytest.approx(2 * best / length)


def test_what_cannot_be_is_refused():
    with pytest.raises(ArgumentError, match="case="):
        leading_zeros_probability(0, "up")
    with pytest.raises(ArgumentError, match="positive"):
        Blocking(0, 16, 16)
    with pytest.raises(ArgumentError, match="fits L1"):
        Blocking(1024, 512, 16).traffic(1, 1, 1)
    assert len(Blocking(250, 100, 250).violations()) == 4


def test_examples():
    assert doctest.testmod(model, optionflags=doctest.ELLIPSIS).failed == 0
