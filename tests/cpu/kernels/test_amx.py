"""The tile unit's kernels: against exact integers where there is a unit, on an emulated one, and as assembly."""

import os
import subprocess
import sys

import numpy as np
import pytest

import prismm
from prismm.core.moduli import MAX_MODULI, coprime_moduli
from prismm.cpu.engines.integer import AMX
from prismm.cpu.kernels import amx, packed, vnni
from prismm.schemes.residues import Residues
from prismm.testing import HOSTILE
from tests.cpu.kernels.assembly import assembly
from tests.cpu.kernels.tile_unit import emulated
from tests.judge import assert_same_bits

has_unit = pytest.mark.needs_engine("cpu:amx")
x86 = pytest.mark.skipif(not vnni.supported(), reason="packing takes VNNI or AVX2")

SHAPES = [
    (1, 1, 1), (16, 64, 32), (5, 60, 7), (33, 61, 33), (47, 100, 65), (49, 63, 31), (96, 1088, 40), (100, 65, 97),
    (48, 1024, 32), (20, 1025, 33), (65, 2113, 35), (17, 2561, 33), (50, 5200, 64), (70, 5185, 20), (16, 65600, 40),
]  # fmt: skip
"""Strips of 16 and 32 rows, panels cut short, one and more passes over k, one and more spans."""


def aligned(shape, dtype, fill, rng):
    """An array at a cache line, with any bytes in it unless `fill` says which."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = rng.integers(0, 256, size + 64, dtype=np.uint8) if fill is None else np.full(size + 64, fill, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def operands(a, b, rng):
    """Packed residues; what belongs to no element of the right operand is anything at all."""
    count, m, k = a.shape
    n = b.shape[2]
    x = aligned((count, -(-m // 16) * 16, AMX.pitch(k)), np.int8, 0, rng)
    y = aligned((count, *AMX.panel_shape(n, k)), np.uint32, None, rng)
    zeroed = np.zeros_like(y)
    packed.pack_residues(a, b, x, zeroed)
    y[:, :, : -(-k // 4)] = zeroed[:, :, : -(-k // 4)]
    return x, y


def scratch(rows, panels, count, rng):
    digits = aligned((-(-rows // amx.STRIP_ROWS), panels, count, amx.STRIP_ROWS, 32), np.int8, None, rng)
    return aligned((amx.SCRATCH_BYTES,), np.int8, None, rng), np.zeros((count, 4), np.int32), digits


def check(digits, a, b, moduli, rows=slice(None)):
    m, n = a.shape[1], b.shape[2]
    found = (
        digits.transpose(0, 3, 2, 1, 4)
        .reshape(digits.shape[0] * amx.STRIP_ROWS, len(moduli), -1)[:m, :, :n]
        .astype(np.int64)
    )
    for which, q in enumerate(moduli):
        exact = a[which].astype(np.int64) @ b[which].astype(np.int64)
        wanted = (exact + q // 2) % q - q // 2
        assert np.array_equal(found[rows, which], wanted[rows]), q


def extremes(count, m, k, n, rng):
    """Signed bytes: any, all largest with either sign, and alternating ones."""
    signs = np.where(np.arange(k) % 2 == 0, -128, 127)
    yield rng.integers(-128, 128, (count, m, k)).astype(np.int8), rng.integers(-128, 128, (count, k, n)).astype(np.int8)
    for x in (-128, 127):
        yield np.full((count, m, k), x, np.int8), np.full((count, k, n), -128, np.int8)
    a, b = np.empty((count, m, k), np.int8), np.empty((count, k, n), np.int8)
    a[...], b[...] = signs, signs[:, None]
    yield a, b


@has_unit
@pytest.mark.parametrize("shape", SHAPES)
def test_digits_are_exact(shape, rng):
    m, k, n = shape
    moduli = coprime_moduli(256, 5)
    for a, b in extremes(5, m, k, n, rng):
        x, y = operands(a, b, rng)
        tiles, tables, digits = scratch(x.shape[1], y.shape[1], 5, rng)
        amx.tile_digits(x, y, k, np.array(moduli, float), tiles, tables, digits)
        check(digits, a, b, moduli)


@has_unit
def test_digits_modulo_every_number(rng):
    moduli = coprime_moduli(256, MAX_MODULI)
    a = rng.integers(-128, 128, (MAX_MODULI, 30, 500)).astype(np.int8)
    b = rng.integers(-128, 128, (MAX_MODULI, 500, 40)).astype(np.int8)
    x, y = operands(a, b, rng)
    tiles, tables, digits = scratch(x.shape[1], y.shape[1], MAX_MODULI, rng)
    amx.tile_digits(x, y, 500, np.array(moduli, float), tiles, tables, digits)
    check(digits, a, b, moduli)


@has_unit
@pytest.mark.parametrize("extra", [-1, 0, 1, 64, 4000])
def test_chunks_of_a_long_inner_dimension(extra, rng):
    """Sums of the largest residues reach 2^31 just past a chunk."""
    k = vnni.CHUNK + extra
    moduli = coprime_moduli(256, 2)
    for a, b in extremes(2, 3, k, 4, rng):
        x, y = operands(a, b, rng)
        tiles, tables, digits = scratch(x.shape[1], y.shape[1], 2, rng)
        amx.tile_digits(x, y, k, np.array(moduli, float), tiles, tables, digits)
        check(digits, a, b, moduli)


@x86
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1), (5, 60, 7), (33, 61, 33), (49, 100, 40), (100, 65, 33), (20, 1100, 33), (1, 2600, 33), (3, 5200, 20)],
)
def test_the_same_code_on_an_emulated_unit(shape, rng):
    """Strips, panels, passes over k, and which registers are overwritten when, where there is no unit."""
    m, k, n = shape
    moduli = coprime_moduli(256, 2)
    for a, b in extremes(2, m, k, n, rng):
        x, y = operands(a, b, rng)
        tiles, tables, digits = scratch(x.shape[1], y.shape[1], 2, rng)
        digits_of, unit = emulated(np.array(moduli, float), tables)
        with np.errstate(over="ignore"):
            digits_of(x, y, 0, x.shape[1], 0, y.shape[1], k, np.array(moduli, float), tiles, tables, digits)
        check(digits, a, b, moduli)
        tiles_of_rows = sum(min(2, -(-(m - i) // 16)) for i in range(0, m, amx.STRIP_ROWS))
        assert unit.operations == 2 * 2 * tiles_of_rows * y.shape[1] * -(-k // 64) + 2, "and the last reduction's step"


@x86
def test_a_block_in_the_middle_of_an_operand(rng):
    """Rows from `first` on of a panel cut from a larger operand: strides are the operand's."""
    a = rng.integers(-128, 128, (2, 96, 70)).astype(np.int8)
    b = rng.integers(-128, 128, (2, 70, 70)).astype(np.int8)
    x, y = operands(a, b, rng)
    moduli = coprime_moduli(256, 2)
    tiles, tables, digits = scratch(32, 1, 2, rng)
    digits_of, _ = emulated(np.array(moduli, float), tables)
    with np.errstate(over="ignore"):
        digits_of(x[:, 16:80], y, 16, 32, 1, 1, 70, np.array(moduli, float), tiles, tables, digits)
    check(digits, a[:, 32:64], b[:, :, 32:64], moduli)


@pytest.mark.evidence
@pytest.mark.slow
def test_assembly_for_a_unit():
    """Compiled for a processor with tiles, on any of its family: the instructions, and no tile that is spilled."""
    features = "+amx-tile,+amx-int8,+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512vnni,+avx512cd,+fma,+avx2,+avx,+bmi,"
    features += "+bmi2,+lzcnt,+popcnt,+sse4.2,+sse4.1,+ssse3,+cx16,+f16c,+movbe,+prfchw"
    kernels = "amx.tile_digits", "fused_amx.fused_amx_product", "fused_amx.fused_amx_many_product"
    tiles = "tilestored", "tilezero", "tdpbsud", "tileloaddt1", "tileloadd"
    others = "ldtilecfg", "tilerelease", "vpdpbusd"
    told = assembly("sapphirerapids", features, kernels, "|".join((*tiles, *others)))
    # Micro-kernels of 32 and 16 rows, and one of 16 for the last tile's reduction; steps stand twice in each, with
    # and without a reduction beside them. Sums are loaded again but in the last one, which begins with zeros.
    talls = 2, 1, 1
    steps = [word[0] for tall in talls for word in amx.ORDER[tall].split()]
    sums = sum(2 * tall for tall in talls)
    for kernel in kernels:
        found = {name: sum(n for op, n in told[kernel].items() if op.split()[0] == name) for name in tiles + others}
        copies = found["tilestored"] // sums
        assert copies >= 1 and {name: found[name] for name in tiles} == {
            "tilestored": sums * copies, "tilezero": sums * copies, "tdpbsud": 2 * steps.count("d") * copies,
            "tileloaddt1": 2 * steps.count("a") * copies, "tileloadd": (2 * steps.count("b") + sums - 2) * copies,
        }, "only sums are stored, and loaded again"  # fmt: skip
        assert all(found[name] for name in others)


@has_unit
@pytest.mark.covering("name")
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
@pytest.mark.parametrize("name", list(HOSTILE))
def test_products_have_the_bits_of_every_engine(name, dtype, seed):
    a, b = HOSTILE[name](53, 70, 67, seed, dtype)
    for given in ({"scheme": Residues(9)}, {"reproducible": True}, {"accuracy": "correctly-rounded"}):
        found = [prismm.matmul(a, b, engine=engine, **given) for engine in ("cpu:amx", "cpu:float64")]
        assert_same_bits(*found)


@has_unit
def test_prepared_and_batched_operands(rng):
    a, b = rng.standard_normal((3, 90, 200)), rng.standard_normal((200, 130))
    given = {"scheme": Residues(15)}
    expected = prismm.matmul(a, b, engine="cpu:float64", **given)
    assert_same_bits(prismm.matmul(a, b, engine="cpu:amx", **given), expected)
    right = prismm.prepare(b, side="right", engine="cpu:amx", **given)
    left = prismm.prepare(a[1], side="left", engine="cpu:amx", **given)
    assert_same_bits(prismm.matmul(a[1], right), expected[1])
    assert_same_bits(prismm.matmul(left, right), expected[1])
    assert_same_bits(prismm.matmul(left, b), expected[1])


_REFUSED = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
class Stack(ctypes.Structure):
    _fields_ = [("place", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
room = ctypes.create_string_buffer(8192)
stack = Stack(ctypes.addressof(room), 0, 8192)
assert libc.sigaltstack(ctypes.byref(stack), None) == 0
import numpy as np, prismm
from prismm.cpu.engines.integer import choose
usable, reason = prismm.engines.available()["cpu:amx"]
print(usable, reason)
print(choose("cpu").name)
a = np.arange(6.0).reshape(2, 3)
try:
    prismm.matmul(a, a.T, engine="cpu:amx", reproducible=True)
except prismm.errors.EngineError as error:
    print(error)
big = np.random.default_rng(0).standard_normal((300, 300))
one, other = (prismm.matmul(big, big, reproducible=True, engine=engine) for engine in (None, "cpu:float64"))
print(np.array_equal(one, other))
"""


@pytest.mark.slow
@has_unit
def test_a_system_that_refuses_means_no_such_engine():
    """A thread's alternate signal stack is too small for the tiles' state: a reason, another engine, no SIGILL."""
    done = subprocess.run([sys.executable, "-c", _REFUSED], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("False the system refused its tile registers: a thread's alternate signal stack")
    assert lines[1] != "cpu:amx"
    assert "engine 'cpu:amx' cannot be used here" in lines[2]
    assert lines[3] == "True"


@has_unit
def test_a_forked_child_keeps_the_unit(rng):
    a, b = rng.standard_normal((200, 150)), rng.standard_normal((150, 90))
    expected = prismm.matmul(a, b, engine="cpu:amx", reproducible=True)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        found = prismm.matmul(a, b, engine="cpu:amx", reproducible=True)
        os.write(writer, b"same" if np.array_equal(found, expected) else b"other")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"same"
    os.waitpid(child, 0)
