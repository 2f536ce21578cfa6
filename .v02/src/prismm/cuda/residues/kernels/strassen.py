"""One level of Strassen's algorithm on planes of residues, in Winograd's form: seven products of quarters for eight.

With A and B cut in halves of rows, columns and the inner dimension,

    S1 = A21 + A22    T1 = B12 - B11    P1 = A11·B11    P5 = S1·T1    C11 = P1 + P2
    S2 = S1 - A11     T2 = B22 - T1     P2 = A12·B21    P6 = S2·T2    C12 = P1 + P6 + P5 + P3
    S3 = A11 - A21    T3 = B22 - B12    P3 = S4·B22     P7 = S3·T3    C21 = P1 + P6 + P7 - P4
    S4 = A12 - S2     T4 = T2 - B21     P4 = A22·T4                   C22 = P1 + P6 + P7 + P5

holds for the integers modulo p (Knuth, The Art of Computer Programming 2, 4.6.4, Winograd's 15 additions), so every
digit is the one of the ordinary product, and no bit of a result changes. Sums of residues are residues again: nothing
grows, as sums of numbers do.

The sums of an operand are put together as its quarters are, S1 and S2 above S3 and S4; of the right one, whose planes
hold columns, T1 and T2 above T3 and T4. So P2, P3, P4 and P6 take the second half of the inner dimension of both
sides, and P3, P4 and P7 the second half of both sides' vectors (`SECOND_TERMS`, `SECOND_VECTORS`: bit x - 1 of product
x). Beyond the vectors the sums take zeros: all that they enter cancels, but it has to be the same everywhere. What P3
and P4 read there may be anything, since they go to columns and rows that are beyond the end as well.

Bytes: 2 an element and modulus, and 11/4 an entry and modulus: at n = 16384 and 14 moduli 25 GB, 6 ms on an H200,
where an eighth of the products takes 11. Operations of 32 bits: 5 an element, 4.5 an entry, half of that time: two
bytes a register, which one addition and one minimum reduce (`add.u16x2`, `min.u16x2` of sm_90).
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import wide

PRODUCTS = 7
LEFT_SUMS, RIGHT_SUMS = 0b1110100, 0b1111000
"""Products whose left factor, or right one, is a sum."""
SECOND_VECTORS, SECOND_TERMS = 0b1001100, 0b0101110
"""Products whose factors are of the second halves."""

_Steps = tuple[tuple[str, str, str, str, str], ...]

LEFT_STEPS: _Steps = (
    ("s1", "q2", "+", "q3", "less"), ("s2", "s1", "-", "q0", "more"), ("s3", "q0", "-", "q2", "more"),
    ("s4", "q1", "-", "s2", "more"),
)  # fmt: skip
RIGHT_STEPS: _Steps = (
    ("s1", "q2", "-", "q0", "more"), ("s2", "q3", "-", "s1", "more"), ("s3", "q3", "-", "q2", "more"),
    ("s4", "s2", "-", "q1", "more"),
)  # fmt: skip
ENTRY_STEPS: _Steps = (
    ("s1", "q0", "+", "q1", ""), ("u2", "q0", "+", "q5", ""), ("u3", "u2", "+", "q6", ""), ("s4", "u3", "+", "q4", ""),
    ("u4", "u2", "+", "q4", ""), ("s2", "u4", "+", "q2", ""), ("s3", "u3", "-", "q3", "p"),
)  # fmt: skip
"""target = first ± second + shift modulo p, of numbers in [0, p). Quarters q0 to q3 are 11, 12, 21 and 22 of the left
operand, 11, 21, 12 and 22 of the right one; of entries q0 to q6 are P1 to P7, and s1 to s4 are C11, C12, C21 and C22.
"""


def _assembly(inputs: int, steps: _Steps, signed: bool) -> str:
    """A word of each input to a word of each of s1 to s4, four numbers modulo p each, two a register on the way.
    Operands: results, inputs, p in both halves of a word, and -p.

    signed: a byte v stands for v + 128 in [0, p), so the sum of two is less by 128, and a difference more. With p
    besides, a half stays in [0, 3p), where two subtractions of p lead back; else in [0, 2p), where one does.
    """
    # 32-bit sums serve two numbers: where one borrows from the other, `shift` gives back what was borrowed, since each
    # half ends nonnegative.
    p, minus = f"${4 + inputs}", f"${5 + inputs}"
    names = [f"q{x}" for x in range(inputs)] + [step[0] for step in steps]
    lines = ["{ .reg .b32 w, r, more, less, " + ", ".join(f"{name}{half}" for name in names for half in "eo") + ";"]
    if signed:
        lines.append(f"add.s32 more, {p}, 0x00800080; sub.s32 less, {p}, 0x00800080;")
    for x in range(inputs):
        lines.append(f"xor.b32 w, ${4 + x}, {0x80808080 if signed else 0:#x};")
        # Even and odd bytes go to halves of two registers, since a sum of two needs nine bits and more.
        lines.append(f"prmt.b32 q{x}e, w, 0, 0x4240; prmt.b32 q{x}o, w, 0, 0x4341;")
    for half in "eo":
        for target, first, sign, second, shift in steps:
            register = f"{target}{half}"
            lines.append(f"{'add' if sign == '+' else 'sub'}.s32 {register}, {first}{half}, {second}{half};")
            if shift:
                lines.append(f"add.s32 {register}, {register}, {p if shift == 'p' else shift};")
            # A half below p wraps to a large number when p is subtracted, so the minimum leaves it as it is.
            lines += [f"add.u16x2 r, {register}, {minus}; min.u16x2 {register}, {register}, r;"] * (2 if signed else 1)
    for x in range(4):
        lines.append(f"prmt.b32 w, s{x + 1}e, s{x + 1}o, 0x6240; xor.b32 ${x}, w, {0x80808080 if signed else 0:#x};")
    return " ".join(lines) + " }"


_OF_LEFT = tl.constexpr(_assembly(4, LEFT_STEPS, True))
_OF_RIGHT = tl.constexpr(_assembly(4, RIGHT_STEPS, True))
_OF_ENTRIES = tl.constexpr(_assembly(PRODUCTS, ENTRY_STEPS, False))


@triton.jit
def vector_at(row, PERMUTED: tl.constexpr):
    """The vector that stands at a row of a plane: `split.plane_row` backwards."""
    if PERMUTED:
        r = row % 64
        return row - r + 16 * (r % 8 // 2) + 2 * (r // 8) + r % 2
    return row


@triton.jit
def _place(program, width, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Rows and words of a tile, of `width` words in all."""
    tiles = tl.cdiv(width, WORDS)
    i = program // tiles * ROWS + tl.arange(0, ROWS)
    return i, program % tiles * WORDS + tl.arange(0, WORDS)


@triton.jit
def _both_halves(p):
    """p and -p in both halves of a word."""
    return p * 0x10001, (0x10000 - p) * 0x10001


@triton.jit(do_not_specialize=["vectors"])
def strassen_sums(
    planes, sums, reduction, vectors, half_vectors, plane, pitch, half_pitch, RIGHT: tl.constexpr, ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """The four sums of an operand's quarters, modulus by modulus (program axis 1): S of a left one, T of a right one.

    planes: (·, rows, pitch), of which `vectors` count; sums: (·, 2·half_vectors, 2·half_pitch). plane, pitch,
    half_pitch: in words of four bytes.
    """
    t = tl.program_id(1)
    p, minus = _both_halves(tl.load(reduction + 3 * t))
    i, j = _place(tl.program_id(0), half_pitch, ROWS, WORDS)
    # Which rows of a permuted plane hold vectors is asked of the vector, not of the row.
    upper = (vector_at(i, RIGHT) < vectors) & (i < half_vectors)
    lower = (half_vectors + vector_at(i, RIGHT) < vectors) & (i < half_vectors)
    near, far = (j < pitch) & (j < half_pitch), half_pitch + j < pitch
    at = planes + wide(plane) * t + i.to(tl.int64)[:, None] * pitch + j[None, :]
    below = at + wide(half_vectors) * pitch
    q0 = tl.load(at, mask=upper[:, None] & near[None, :], other=0)
    q1 = tl.load(at + half_pitch, mask=upper[:, None] & far[None, :], other=0)
    q2 = tl.load(below, mask=lower[:, None] & near[None, :], other=0)
    q3 = tl.load(below + half_pitch, mask=lower[:, None] & far[None, :], other=0)
    s1, s2, s3, s4 = tl.inline_asm_elementwise(
        _OF_RIGHT if RIGHT else _OF_LEFT, "=r,=r,=r,=r,r,r,r,r,r,r", [q0, q1, q2, q3, p, minus],
        dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip
    quarter = wide(half_vectors) * half_pitch
    at = sums + 4 * quarter * t + i.to(tl.int64)[:, None] * (2 * half_pitch) + j[None, :]
    inside = (i < half_vectors)[:, None] & (j < half_pitch)[None, :]
    tl.store(at, s1, mask=inside)
    tl.store(at + half_pitch, s2, mask=inside)
    tl.store(at + 2 * quarter, s3, mask=inside)
    tl.store(at + 2 * quarter + half_pitch, s4, mask=inside)


@triton.jit(do_not_specialize=["m"])
def add_products(
    products, digits, reduction, m, half_m, plane, pitch, half_pitch, PRODUCTS: tl.constexpr, ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """digits (·, m, pitch) from products (7, ·, half_m, half_pitch), modulus by modulus (program axis 1).

    plane, pitch, half_pitch: in words of four bytes.
    """
    t = tl.program_id(1)
    p, minus = _both_halves(tl.load(reduction + 3 * t))
    i, j = _place(tl.program_id(0), half_pitch, ROWS, WORDS)
    inside = (i < half_m)[:, None] & (j < half_pitch)[None, :]
    quarter = wide(half_m) * half_pitch
    at = products + quarter * t + i.to(tl.int64)[:, None] * half_pitch + j[None, :]
    step = quarter * tl.num_programs(1)
    found = ()
    for x in tl.static_range(PRODUCTS):
        found = found + (tl.load(at + step * x, mask=inside, other=0),)  # type: ignore[assignment]  # noqa: RUF005
    c1, c2, c3, c4 = tl.inline_asm_elementwise(
        _OF_ENTRIES, "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r",
        [found[0], found[1], found[2], found[3], found[4], found[5], found[6], p, minus],  # type: ignore[misc]
        dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip
    at = digits + wide(plane) * t + i.to(tl.int64)[:, None] * pitch + j[None, :]
    below = at + wide(half_m) * pitch
    upper, lower = inside & (i < m)[:, None], inside & (half_m + i < m)[:, None]
    near, far = (j < pitch)[None, :], (half_pitch + j < pitch)[None, :]
    tl.store(at, c1, mask=upper & near)
    tl.store(at + half_pitch, c2, mask=upper & far)
    tl.store(below, c3, mask=lower & near)
    tl.store(below + half_pitch, c4, mask=lower & far)
