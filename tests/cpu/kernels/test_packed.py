"""The VNNI kernels: packing, products and the fused join, against plain residues and Python integers."""

import numpy as np
import pytest

from prismm.cpu.engines.integer import INT8, VNNI
from prismm.cpu.kernels import byte_unit, packed, vnni
from prismm.cpu.residues.blocking import left_shape, right_shape
from prismm.cpu.residues.split import Splitter, split_operand
from prismm.testing import HOSTILE, SPECIAL
from tests.cpu.kernels.assembly import assembly

pytestmark = pytest.mark.skipif(not vnni.supported(), reason="neither VNNI nor AVX2")

SHAPES = [(1, 1, 1), (4, 3, 32), (5, 4, 33), (13, 65, 31), (97, 130, 193), (12, 260, 384)]


def draw(rng, shape, dtype):
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-30, 30, shape))
    x = x + 1j * rng.standard_normal(shape) if dtype == "complex128" else x
    x.reshape(-1)[:: 1 + x.size // 3] = np.inf
    x.reshape(-1)[1 :: 1 + x.size // 2] = 0.0
    return np.ascontiguousarray(x)


def plain(x, splitter, left):
    """Residues (parts, moduli, rows, k) or (parts, moduli, k, columns) by the plain kernels, and the scales."""
    size = x.shape[0] if left else x.shape[1]
    other = Splitter(splitter.moduli, INT8, splitter.k, splitter.is_complex, splitter.a_priori, splitter.levels)
    out = np.empty((left_shape if left else right_shape)(other, size), np.int8)
    return out, split_operand(x, other, out, left=left)


def unpacked(right, k, columns):
    """Packed right residues as (parts, moduli, k, columns)."""
    parts, count, panels, height, _ = right.shape
    numbers = right.view(np.uint8).reshape(parts, count, panels, height, 32, 4).astype(np.int64) - 128
    return numbers.transpose(0, 1, 3, 5, 2, 4).reshape(parts, count, 4 * height, 32 * panels)[:, :, :k, :columns]


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("moduli", [2, 7, 15, 22])
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_residues_are_the_plain_ones(shape, moduli, dtype, rng):
    m, k, n = shape
    splitter = Splitter(moduli, VNNI, k, dtype == "complex128", levels=True)
    a, b = draw(rng, (m, k), dtype), draw(rng, (k, n), dtype)
    left = np.full(left_shape(splitter, m), 77, np.int8)
    scales = split_operand(a, splitter, left, left=True)
    wanted, known = plain(a, splitter, True)
    assert np.array_equal(left[:, :, :m, :k], wanted)
    assert not left[:, :, :m, k:-4].any()
    assert np.array_equal(left.view(np.int32)[:, :, :m, -1], -128 * wanted.sum(axis=3, dtype=np.int64))
    right = np.full(right_shape(splitter, n), 99, np.uint32)
    split_operand(b, splitter, right, left=False)
    assert np.array_equal(unpacked(right, k, n), plain(b, splitter, False)[0])
    assert np.array_equal(scales.shift, known.shift) and np.array_equal(scales.counts, known.counts)
    # Sums of squares of residuals, whose order is the kernel's own, are upper bounds to 2^-28.
    exact = [0, 2, 3]
    assert np.array_equal(scales.terms[exact], known.terms[exact])
    assert np.allclose(scales.terms[1], known.terms[1], rtol=(k + 2) * 2.0**-53, atol=0.0)


@pytest.mark.covering("name")
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("name", [*HOSTILE, *SPECIAL])
def test_float32_is_split_as_the_same_numbers_in_float64(name, dtype, seed):
    """Residues, scales, bounds and counts: what the kernels read directly is what they read widened."""
    for m, k, n in ((5, 37, 41), (9, 8203, 33)):
        if k > 100 and name not in ("normal", "phi4", "specials", "subnormal_operands"):
            continue
        a, b = {**HOSTILE, **SPECIAL}[name](m, k, n, seed, dtype)
        splitter = Splitter(7, VNNI, k, dtype == "complex64", a_priori=True, levels=True)
        for x, left in ((a, True), (b, False), (b[:, ::-1], False), (np.asfortranarray(a), True)):
            shape = left_shape(splitter, m) if left else right_shape(splitter, n)
            kind = np.int8 if left else np.uint32
            outs, scales = [], []
            for y in (x, x.astype(np.complex128 if dtype == "complex64" else np.float64)):
                out = np.zeros(shape, kind)
                scales.append(split_operand(y, splitter, out, left=left))
                outs.append(out)
            assert np.array_equal(outs[0], outs[1]), (name, left)
            for part in ("shift", "exponent", "terms", "counts"):
                assert np.array_equal(getattr(scales[0], part), getattr(scales[1], part)), (name, left, part)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_pieces_are_the_whole(dtype, rng):
    """Rows and columns split in several calls, columns from a multiple of 32 on."""
    splitter = Splitter(9, VNNI, 37, dtype == "complex128")
    a, b = draw(rng, (50, 37), dtype), draw(rng, (37, 110), dtype)
    whole, pieces = (np.zeros(left_shape(splitter, 50), np.int8) for _ in range(2))
    split_operand(a, splitter, whole, left=True)
    for i0, i1 in ((0, 7), (7, 8), (8, 50)):
        split_operand(a[i0:i1], splitter, pieces, left=True, first=i0)
    assert np.array_equal(whole, pieces)
    if dtype == "float64":
        whole, pieces = (np.zeros(right_shape(splitter, 110), np.uint32) for _ in range(2))
        split_operand(b, splitter, whole, left=False)
        for j0, j1 in ((0, 64), (64, 96), (96, 110)):
            split_operand(b, splitter, pieces, left=False, columns=(j0, j1), first=j0)
        assert np.array_equal(unpacked(whole, 37, 110), unpacked(pieces, 37, 110))


@pytest.mark.parametrize("dtype", ["float64", pytest.param("complex128", marks=pytest.mark.slow)])
def test_sums_at_the_end_of_a_row_survive_its_residues(dtype, rng):
    """Residues are written in lines of 64, which may reach into the sums at the row's end, for any number of chunks."""
    chunk = vnni.CHUNK
    lengths = [*range(1, 200), *range(chunk - 20, chunk + 90), *range(2 * chunk - 3, 2 * chunk + 150, 3)]
    overlapping = 0
    for k in lengths:
        splitter = Splitter(4, VNNI, k, dtype == "complex128")
        pitch = VNNI.pitch(k)
        chunks = -(-k // chunk)
        overlapping += chunks > 1 and -(-k // 64) * 64 > pitch - 4 * chunks
        a = rng.integers(-9, 10, (1, k)) + (1j * rng.integers(-9, 10, (1, k)) if dtype == "complex128" else 0.0)
        left = np.full(left_shape(splitter, 1), 77, np.int8)
        split_operand(a, splitter, left, left=True)
        sums = np.add.reduceat(left[:, :, 0, :k], range(0, k, chunk), axis=2, dtype=np.int64)
        assert np.array_equal(left.view(np.int32)[:, :, 0, pitch // 4 - chunks :], -128 * sums), k
        assert not left[:, :, 0, k : pitch - 4 * chunks].any(), k
        assert (left[:, :, 1:] == 77).all(), "other rows are not touched"
    assert overlapping > 8


def packed_pair(left, right):
    count, m, k = left.shape
    rows = -(-m // vnni.FEW_ROWS) * vnni.FEW_ROWS
    x = np.zeros((count, rows, VNNI.pitch(k)), np.int8)
    y = np.zeros((count, *VNNI.panel_shape(right.shape[2], k)), np.uint32)
    packed.pack_residues(left, right, x, y)
    return x, y


@pytest.mark.parametrize("shape", [*SHAPES, (3, 4 * vnni.DEEP, 5), (14, 4 * vnni.DEEP + 1, 40)])
def test_products_are_exact(shape, rng):
    """All sign patterns of the largest residues besides random ones; the exact int32 sum up to a chunk."""
    m, k, n = shape
    for left, right in (
        (rng.integers(-128, 128, (2, m, k)), rng.integers(-128, 128, (2, k, n))),
        (np.full((2, m, k), -128), np.full((2, k, n), -128)),
        (np.full((2, m, k), -128), np.full((2, k, n), 127)),
        (np.full((2, m, k), 127), np.full((2, k, n), -128)),
    ):
        x, y = packed_pair(left.astype(np.int8), right.astype(np.int8))
        out = np.full((x.shape[1], 2, 32 * y.shape[1]), 5, np.int32)
        vnni.packed_product(x, y, k, np.array([256.0, 255.0]), out)
        assert np.array_equal(out[:m, :, :n], np.einsum("qik,qkj->iqj", left, right))


@pytest.mark.parametrize("k", [vnni.CHUNK, vnni.CHUNK + 1, 2 * vnni.CHUNK + 7])
@pytest.mark.parametrize("low", [(-128, -128), (-128, 127), (None, None)])
def test_long_sums_are_reduced_between_chunks(k, low, rng):
    left = rng.integers(-128, 128, (1, 2, k)) if low[0] is None else np.full((1, 2, k), low[0])
    right = rng.integers(-128, 128, (1, k, 3)) if low[1] is None else np.full((1, k, 3), low[1])
    x, y = packed_pair(left.astype(np.int8), right.astype(np.int8))
    out = np.zeros((x.shape[1], 1, 32), np.int32)
    vnni.packed_product(x, y, k, np.array([253.0]), out)
    difference = out[:2, 0, :3].astype(object) - left[0].astype(object) @ right[0].astype(object)
    assert not (difference % 253).any()
    assert k > vnni.CHUNK or not difference.any()


@pytest.mark.parametrize(
    ("features", "unit"),
    [
        ("+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512vnni,+avx2,+fma", "avx512-vnni"),
        ("+avx512f,+avx512bw,+avx512dq,+avx512vl,-avx512vnni,+avx2,+fma", "avx2"),
        ("+avx2,+fma,+avxvnni", "avx-vnni"), ("+avx2,+fma", "avx2"), ("+avx2", ""), ("+avx,+fma,+sse4.2", ""),
    ],
)  # fmt: skip
def test_the_unit_follows_from_the_processor(features, unit, monkeypatch):
    code = byte_unit.cpu_target.target_context.codegen()
    monkeypatch.setattr(type(code), "_get_host_cpu_features", lambda self: features)
    assert byte_unit.unit.__wrapped__() == unit


_AVX2 = "+avx2,+avx,+fma,+bmi,+bmi2,+lzcnt,+popcnt,+sse4.2,+sse4.1,+ssse3,+cx16,+f16c,+movbe"
_AVX512 = f"{_AVX2},+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512cd,+avx512vnni"


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize(
    ("processor", "features", "dots"),
    [
        ("haswell", _AVX2, {"vpmaddwd y"}),
        ("alderlake", f"{_AVX2},+avxvnni", {"vpdpbusd y"}),
        ("cascadelake", _AVX512, {"vpdpbusd z"}),
    ],
    ids=["haswell", "alderlake", "cascadelake"],
)
def test_assembly_for_a_unit(processor, features, dots):
    """Compiled for a processor, on any of its family: its instructions on its registers, and no other's."""
    kernels = "vnni.packed_product", "packed.pack_left", "packed.pack_right"
    found = assembly(processor, features, kernels, "vpdpbusd|vpmaddwd")
    assert {name for kernel in kernels for name in found[kernel] if not name.endswith(" x")} == dots
    assert dots <= set(found["vnni.packed_product"])
