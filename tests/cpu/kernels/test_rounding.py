"""Rounding a float64 GEMM to float32, and the residue helpers, exhaustively where they are small."""

from fractions import Fraction

import numpy as np
import pytest

from prismm.core.moduli import coprime_moduli
from prismm.cpu.engines.integer import VNNI
from prismm.cpu.kernels.packed import add_packed_columns, add_packed_rows
from prismm.cpu.kernels.rounding import (
    add_residues_float64,
    add_residues_int8,
    fold_float64,
    fold_int32,
    round_to_float32,
)
from prismm.cpu.kernels.vnni import CHUNK
from prismm.formats import FP32
from tests.cpu.kernels.harness import rn, same_bits


@pytest.mark.parametrize("largest", [256, 128])
def test_sums_of_all_pairs_of_residues(largest):
    for q in coprime_moduli(largest, 22):
        low, high = -(q // 2), (q - 1) // 2
        r = np.arange(low, high + 1)
        x, y = (np.ascontiguousarray(z, dtype=np.int8)[None] for z in np.meshgrid(r, r))
        out = np.empty_like(x)
        add_residues_int8(x, y, np.array([float(q)]), out)
        total = out.astype(np.int64)
        assert np.array_equal((total - x.astype(np.int64) - y.astype(np.int64)) % q, np.zeros_like(total)), q
        assert total.min() >= low and total.max() <= high, q


def test_sums_of_packed_residues(rng):
    """All pairs of residues, and rows of two chunks, give what `add_residues_int8` gives. Rows on the left end with
    -128 times their sum.
    """
    pairs = [(q, q, VNNI.pitch(q), CHUNK) for q in coprime_moduli(256, 22)] + [(256, 3, VNNI.pitch(CHUNK + 70), CHUNK)]
    for q, rows, pitch, chunk in pairs:
        k = q if rows == q else chunk + 70
        r = np.arange(-(q // 2), (q - 1) // 2 + 1)
        plain = np.meshgrid(r, r) if rows == q else rng.integers(r[0], r[-1] + 1, (2, rows, k))
        x, y, out = (np.full((1, rows + 2, pitch), 99, np.int8) for _ in range(3))
        x[0, 1:-1, :k], y[0, 1:-1, :k] = plain
        modulus, wanted = np.array([float(q)]), np.empty((1, rows, k), np.int8)
        add_packed_rows(x, y, 1, rows + 1, k, modulus, out)
        add_residues_int8(*(np.ascontiguousarray(z, dtype=np.int8)[None] for z in plain), modulus, wanted)
        assert np.array_equal(out[:, 1:-1, :k], wanted) and (out[:, [0, -1]] == 99).all(), q
        chunks = -(-k // chunk)
        sums = [-128 * wanted[0, :, h : h + chunk].sum(1, dtype=np.int64) for h in range(0, k, chunk)]
        assert np.array_equal(out.view(np.int32)[0, 1:-1, -chunks:], np.stack(sums, 1)), q
        assert not out[0, 1:-1, k : pitch - 4 * chunks].any(), q
        if rows == q:
            dwords = [np.zeros((1, 1, q, 64 * 32), np.uint32) for _ in range(3)]
            for packed, z in zip(dwords, (*plain, None), strict=True):
                packed.view(np.uint8).reshape(q, -1)[:, :q] = 128 if z is None else z + 128
            add_packed_columns(*dwords[:2], modulus, dwords[2])
            assert np.array_equal(dwords[2].view(np.uint8).reshape(q, -1)[:, :q], wanted[0].astype(int) + 128), q


def test_sums_of_wide_residues(rng):
    for q in coprime_moduli(1 << 22, 8):
        half = q // 2
        x = rng.integers(-half, half + 1, (1, 4, 500)).astype(np.float64)
        y = rng.integers(-half, half + 1, (1, 4, 500)).astype(np.float64)
        edge = np.array([half, half - 1, -half, 1 - half, 0, 1, -1], np.float64)
        x[0, 0, :49], y[0, 0, :49] = np.repeat(edge, 7), np.tile(edge, 7)
        out = np.empty_like(x)
        add_residues_float64(x, y, np.array([float(q)]), out)
        assert not np.fmod(out - x - y, q).any()
        assert np.abs(out).max() <= half


def test_folding_keeps_sums_of_blocks_congruent_and_small(rng):
    edge = np.array([2**31 - 1, -(2**31), 0, 1, -1, 2**30, 131071 * 2**14])
    for q in coprime_moduli(256, 22) + coprime_moduli(128, 24):
        total = np.concatenate([rng.integers(-(2**31), 2**31, 300), np.repeat(edge, 7)]).astype(np.int32)[None]
        block = np.concatenate([rng.integers(-(2**31), 2**31, 300), np.tile(edge, 7)]).astype(np.int32)[None]
        wanted = total.astype(np.int64) + block
        fold_int32(total, block, float(q))
        assert not ((total - wanted) % q).any() and np.abs(total).max() <= q
    for q in coprime_moduli(1 << 22, 8):
        total = rng.integers(-(2**53), 2**53, (2, 300)).astype(np.float64)
        block = rng.integers(-(2**53), 2**53, (2, 300)).astype(np.float64)
        total[0, :3], block[0, :3] = 2.0**53, -(2.0**53)
        wanted = total.astype(np.int64) + block.astype(np.int64)
        fold_float64(total, block, float(q))
        assert not ((total.astype(np.int64) - wanted) % q).any() and np.abs(total).max() <= q


def test_rounding_to_float32_decides_only_what_is_certain(rng):
    m, n = 40, 300
    c = rng.standard_normal((m, n)) * 2.0 ** rng.integers(-160, 130, (m, n)).astype(float)
    near = rng.integers(2**23, 2**24, (m, n)) + 0.5  # midpoints of float32, and their neighbours
    c[: m // 2] = np.ldexp(near, rng.integers(-150, 100, (m, n)))[: m // 2] * (
        1.0 + rng.integers(-2, 3, (m // 2, n)) * 2.0**-52
    )
    c[m - 1] = np.ldexp(rng.integers(1, 2**24, n) + rng.choice([0.0, 0.5], n), -149 - rng.integers(0, 24, n))
    c[m - 2, ::3] = 0.0
    c[m - 3, :4] = np.array([2.0**128 - 2.0**103, 2.0**128, 2.0**127, 2.0**128 - 2.0**104])
    row = rng.choice([0.0, 2.0**-60, 2.0**-53, 2.0**-40, 2.0**-25], m)
    row[-4:] = [2.0**-190, 2.0**-60, 2.0**60, 2.0**-170]
    column = rng.random(n) * 2.0 ** rng.integers(-30, 30, n).astype(float)
    column[::5] = 0.0
    factor = 3.0
    out, failed = np.full((m, n), np.nan, np.float32), np.empty(m * n, np.int32)
    count = round_to_float32(c, row, column, factor, out, failed)
    listed = set(failed[:count].tolist())
    assert len(listed) == count
    for i in range(m):
        for j in range(n):
            e = Fraction(row[i]) * Fraction(column[j]) * 3
            x = Fraction(c[i, j])
            if i * n + j in listed:
                # Open, or within two ulps of float64 of being so.
                wide = e + abs(x) / 2**50
                assert not same_bits(rn(x - wide, FP32), rn(x + wide, FP32)) or x - wide <= 0 <= x + wide
            else:
                ends = rn(x - e, FP32), rn(x + e, FP32)
                assert same_bits(*ends) and same_bits(float(out[i, j]), ends[0]), (c[i, j], e)
    assert m * n // 20 < count < m * n * 19 // 20
