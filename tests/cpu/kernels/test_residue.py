"""Residues by dot products of bytes against Python integers, over every sum that may occur and at every length."""

import numba
import numpy as np
import pytest

from prismm.core.moduli import MAX_MODULI, byte_tables, coprime_moduli, residue_system, symmetric
from prismm.cpu.kernels import packed, residue, vnni

pytestmark = pytest.mark.skipif(not vnni.supported(), reason="neither VNNI nor AVX2")


def signed(value, q):
    """The representative that a byte holds: 128 modulo 256 is -128."""
    value = symmetric(value, q)
    return -128 if value == 128 else value


def test_every_sum_is_reduced_exactly():
    """All |r| < 2^19, for every modulus: 64 consecutive ones a call, whose first is the offset."""
    row = residue.row_residues(1)

    @numba.njit
    def reduce(table, lanes, start, modulus, out):
        total = 0
        for group in range(out.size // 64):
            total += row(
                np.uint64(lanes.ctypes.data), 1, np.uint64(table.ctypes.data), np.int32(start + 64 * group),
                modulus, np.uint64(out.ctypes.data + 64 * group),
            )  # fmt: skip
        return total

    table, lanes = np.ones(1, np.int32), np.arange(64, dtype=np.int32)
    sums = np.arange(-(1 << 19), 1 << 19)
    for q in coprime_moduli(256, MAX_MODULI):
        out = np.full(sums.size, 99, np.int8)
        total = reduce(table, lanes, -(1 << 19), float(q), out)
        wanted = (sums + q // 2) % q - q // 2
        assert np.array_equal(out, wanted), q
        assert total == wanted.sum()


@pytest.mark.parametrize("moduli", range(2, MAX_MODULI + 1))
def test_tables_stay_within_their_bounds(moduli):
    """A' + 2^bits fits the dwords, and no sum of bytes reaches 2^19."""
    tables = byte_tables(moduli)
    assert 1 << (tables.bits + 1) <= 1 << (32 * tables.dwords)
    for numbers, offset in ((tables.left, tables.left_offset), (tables.right, tables.right_offset)):
        assert numbers.shape == (moduli, tables.dwords)
        largest = 255 * np.abs(numbers.view(np.int8).astype(np.int64)).sum(axis=1) + np.abs(offset)
        assert largest.max() < 1 << 19


def integers(bits, rng, count):
    """Integers below 2^bits in magnitude that float64 holds: the extremes, borders of bytes, and any."""
    largest = (1 << bits) - (1 << max(0, bits - 53))
    found = [0, largest, largest // 2]
    for i in range(bits):
        found += [1 << i, (1 << i) - 1, (1 << i) + 1, 3 << i, 255 << i]
    while len(found) < count:
        length = int(rng.integers(1, bits + 1))
        found.append(int.from_bytes(rng.bytes(16), "little") >> (128 - length))
    # Python's conversion rounds; what it leaves is an integer again.
    found = [int(float(v)) for v in found]
    return [sign * v for v in found if v <= largest for sign in (1, -1)]


@pytest.mark.parametrize("moduli", range(2, MAX_MODULI + 1))
def test_residues_of_every_length(moduli, rng):
    tables = byte_tables(moduli)
    chosen = coprime_moduli(256, moduli)
    modulus = residue_system(moduli, 256).modulus
    whole = int(np.prod(np.array(chosen, object)))
    values = integers(tables.bits, rng, 300)
    x = np.array([float(v) for v in values])
    left = np.full((moduli, 4, 64 * (x.size // 64 + 2)), 77, np.int8)
    packed.pack_rows(
        x[None].copy(), np.zeros(1, np.int64), tables.bits, tables.left, tables.left_offset, modulus, 1, left,
        np.zeros(1), np.zeros(1, np.uint8),
    )  # fmt: skip
    right = np.full((moduli, 1, (x.size + 3) // 4 | 1, 32), 77, np.uint32)
    packed.pack_columns(
        x[:, None].copy(), 0, np.zeros(1, np.int64), tables.bits, tables.right, tables.right_offset, modulus, 0, right,
        np.zeros(1), np.zeros(1, np.uint8),
    )  # fmt: skip
    for which, q in enumerate(chosen):
        inverse = pow(whole // q, -1, q)
        assert left[which, 1, : x.size].tolist() == [signed(v * inverse, q) for v in values]
        column = right[which, 0, :, 0].copy().view(np.uint8)[: x.size].astype(int) - 128
        assert column.tolist() == [signed(v, q) for v in values]
    assert (left[:, [0, 2, 3]] == 77).all(), "other rows are not touched"
