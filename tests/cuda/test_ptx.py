"""What the interpreter makes of PTX, against exact arithmetic; and that it finds kernels that do not wait."""

from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.cuda.harness import ptx
from tests.cuda.harness.processes import interpreted

WORD = np.dtype(np.uint32)
DOUBLE, SINGLE = np.dtype(np.float64), np.dtype(np.float32)


def exact(x, y, z):
    return Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))


def rounded_up(value, dtype):
    """The least number of the type that is no smaller."""
    near = dtype(float(value))
    candidates = [np.nextafter(near, dtype(-np.inf)), near, np.nextafter(near, dtype(np.inf))]
    return min(c for c in candidates if Fraction(float(c)) >= value)


def rounded(value):
    """The nearest float32, ties to even."""
    near = np.float32(float(value))
    candidates = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    return min(candidates, key=lambda c: (abs(Fraction(float(c)) - value), int(c.view(np.uint32)) & 1))


def test_fused_operations_round_once(rng):
    count = 300
    for scale in (0, -40, -1000):
        x = np.abs(rng.standard_normal(count)) * 2.0 ** rng.integers(-20, 20, count) * 2.0**scale
        y = rng.choice([2.0**-30, 1.0, 0.7, 5e-324, 2.0**-70], count)
        x[:3] = 0.0, 5e-324, 1.0
        (found,) = ptx.elementwise("fma.rp.f64 $0, $1, $2, 0d4330000000000000;", "=d,d,d", [x, y], [DOUBLE])
        assert [rounded_up(exact(*p, 2.0**52), np.float64) for p in zip(x, y, strict=True)] == found.tolist()
    x, y, z = ((rng.standard_normal(count) * 2.0 ** rng.integers(-30, 30, count)).astype(np.float32) for _ in range(3))
    # Ties, and what lies beside them in the last of many bits.
    x[:40], y[:40] = np.float32(1 + 2.0**-12), np.float32(1 + 2.0**-12)
    z[:40] = np.float32(2.0) ** np.arange(-20, 20).astype(np.float32)
    (near,) = ptx.elementwise("fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", [x, y, z], [SINGLE])
    assert [rounded(exact(*p)) for p in zip(x, y, z, strict=True)] == near.tolist()
    (up,) = ptx.elementwise("fma.rp.f32 $0, $1, $2, $3;", "=f,f,f,f", [x, y, z], [SINGLE])
    assert [rounded_up(exact(*p), np.float32) for p in zip(x, y, z, strict=True)] == up.tolist()
    halves = np.float32([0.5, 1.5, 2.5, -0.5, -1.5, 3.2])
    found = ptx.elementwise("cvt.rni.s32.f32 $0, $1;", "=r,f", [halves], [np.dtype(np.int32)])[0]
    assert found.tolist() == [0, 2, 2, 0, -2, 3]


def test_integers_and_bytes(rng):
    x, y, z = (rng.integers(0, 2**32, 200, dtype=np.uint64).astype(np.uint32) for _ in range(3))
    signed = [int(v) - (int(v) >> 31 << 32) for v in z]

    def of(code, *inputs):
        return ptx.elementwise(code, "=r" + ",r" * len(inputs), list(inputs), [WORD])[0].tolist()

    pairs = list(zip(x.tolist(), y.tolist(), z.tolist(), strict=True))
    assert of("mul.hi.u32 $0, $1, $2;", x, y) == [a * b >> 32 for a, b, _ in pairs]
    assert of("mad.lo.s32 $0, $1, $2, $3;", x, y, z) == [(a * b + c) % 2**32 for a, b, c in pairs]
    assert of("{ .reg .b32 n; neg.s32 n, $1; sub.s32 n, n, $2; add.s32 $0, n, 7; }", x, y) == [
        (7 - a - b) % 2**32 for a, b, _ in pairs
    ]
    assert of("prmt.b32 $0, $1, $2, 0x5410;", x, y) == [(a & 0xFFFF) | (b & 0xFFFF) << 16 for a, b, _ in pairs]
    assert of("prmt.b32 $0, $1, $2, 0x0040;", x, y) == [
        (a & 255) | (b & 255) << 8 | (a & 255) << 16 | (a & 255) << 24 for a, b, _ in pairs
    ]
    bytes_of = [[a >> 8 * i & 255 for i in range(4)] for a in x.tolist()]
    factors = [[(b >> 8 * i & 255) - 256 * (b >> 8 * i + 7 & 1) for i in range(4)] for b in y.tolist()]
    dots = [sum(p * q for p, q in zip(*two, strict=True)) for two in zip(bytes_of, factors, strict=True)]
    found = of("dp4a.u32.s32 $0, $1, $2, $3;", x, y, z)
    assert found == [(dot + c) % 2**32 for dot, c in zip(dots, signed, strict=True)]
    for half, (low, high) in {"lo": (0, 1), "hi": (2, 3)}.items():
        expected = [
            ((a & 0xFFFF) * (b >> 8 * low & 255) + (a >> 16) * (b >> 8 * high & 255) + c) % 2**32 for a, b, c in pairs
        ]
        assert of(f"dp2a.{half}.u32.u32 $0, $1, $2, $3;", x, y, z) == expected


def test_halves_of_a_number_and_several_results(rng):
    x = rng.standard_normal(50)
    by = rng.integers(-5, 6, 50).astype(np.int32) << 20
    code = "{ .reg .b32 l, h; mov.b64 {l, h}, $1; add.s32 h, h, $2; mov.b64 $0, {l, h}; }"
    (found,) = ptx.elementwise(code, "=d,d,r", [x, by], [DOUBLE])
    assert found.tolist() == np.ldexp(x, by >> 20).tolist()
    code = "mov.b64 {$0, $1}, $2;"
    low, high = ptx.elementwise(code, "=r,=r,d", [x], [np.dtype(np.int32), WORD])
    assert (low.view(np.uint32) | (high.astype(np.uint64) << np.uint64(32))).tolist() == x.view(np.uint64).tolist()


def test_words_of_two_elements(rng):
    """The code that cuts elements, against NumPy's conversions: ties, subnormal words, infinities."""
    from prismm.cuda.multiword.kernels.split_product_sm90 import words_code

    x = (rng.standard_normal((400, 2)) * 2.0 ** rng.integers(-40, 14, (400, 2))).astype(np.float32)
    x[:3] = [[1 + 2.0**-11, 1 + 3 * 2.0**-11], [np.inf, -np.inf], [0.0, -0.0]]
    with np.errstate(all="ignore"):
        scaled = x * np.float32(2.0)
        high = scaled.astype(np.float16)
        low = ((scaled - high.astype(np.float32)) * np.float32(4096.0)).astype(np.float16)
    twos = np.full(400, np.float32(2.0))
    code = words_code(12)
    found = ptx.execute(getattr(code, "value", code), 2, [x[:, 0], x[:, 1], twos, twos])
    for word, expected in zip(found, (high, low), strict=True):
        got = np.ascontiguousarray(word)[:, None].view(np.float16)
        assert np.array_equal(got, expected, equal_nan=True)
        zeros = expected == 0
        assert np.array_equal(np.signbit(got[zeros]), np.signbit(expected[zeros]))


def test_a_matrix_instruction_is_a_product_of_matrices(rng):
    """Fragments as in PTX's ISA, section 9.7.14.5.8: m16n8k16 of 8-bit integers."""
    left, right = rng.integers(-128, 128, (16, 16), dtype=np.int8), rng.integers(0, 256, (16, 8), dtype=np.uint8)
    start = rng.integers(-(2**20), 2**20, (16, 8), dtype=np.int32)
    lane = np.arange(32)
    row, four, pair = lane // 4, 4 * (lane % 4), 2 * (lane % 4)
    words = [np.stack([left[row + 8 * half, four + i] for i in range(4)], 1).view(np.uint32)[:, 0] for half in (0, 1)]
    words.append(np.stack([right[four + i, row] for i in range(4)], 1).view(np.uint32)[:, 0])
    words += [start[row + 8 * (x // 2), pair + x % 2] for x in range(4)]
    code = "mma.sync.aligned.m16n8k16.row.col.s32.s8.u8.s32 {$0, $1, $2, $3}, {$4, $5}, {$6}, {$7, $8, $9, $10};"
    found = ptx.execute(code, 4, words)
    want = left.astype(np.int64) @ right.astype(np.int64) + start
    for x, part in enumerate(found):
        assert (part.view(np.int32) == want[row + 8 * (x // 2), pair + x % 2]).all()


@pytest.mark.evidence
@pytest.mark.slow
def test_kernels_that_do_not_wait_are_found():
    found = {entry["case"][0]: entry["wrong"] for entry in interpreted("hasty")}
    right = {"as it is", "groups as they are", "words as they are", "copied words as they are", "as it was"}
    assert len(found) == 24 and {case for case, wrong in found.items() if not wrong} == right
