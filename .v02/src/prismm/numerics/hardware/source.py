"""CUDA C++ source of the kernel that runs one matrix instruction on many independent dot products.

Each warp (``mma``) or warpgroup (``wgmma``) takes n problems at a time, n the columns of the instruction's D: problem j
is the dot product in row (j + turn) mod m and column j, and all other rows of A are zero. Along k the instruction
repeats with D as its next C, in the same registers. All data are bit patterns in global memory. Positions come from
`prismm.numerics.hardware.layouts` as tables in constant memory, so what its tests prove is what runs.

The only arithmetic is the instruction's own; the rest is loads, stores and shifts.
"""

from __future__ import annotations

from collections.abc import Iterable

from prismm.formats import Format, Integer
from prismm.numerics.hardware.instructions import Instruction
from prismm.numerics.hardware.layouts import (
    LEADING_BYTES,
    STRIDE_BYTES,
    Fragment,
    a_fragment,
    b_fragment,
    d_fragment,
    shared_offset,
)

__all__ = ["KERNEL", "WARPS", "kernel_source"]

KERNEL = "multiply"
"""Name of the kernel: multiply(a, b, c, d, count, length, turn, turn_step).

Args of the kernel: patterns of A and B (count × length, rows of one problem each), of C and D (count); ``length`` a
multiple of the instruction's k; group i of n problems stands at turn + i · turn_step, modulo m.
"""

WARPS = 4
"""Warps in a block."""


def _word(format: Format | Integer) -> str:
    """The C type of a pattern in global memory."""
    return {8: "u8", 16: "u16", 32: "u32", 64: "u64"}[max(8, 1 << (format.bits - 1).bit_length())]


def _table(name: str, kind: str, values: Iterable[int]) -> str:
    listed = list(values)
    return f"__constant__ {kind} {name}[{len(listed)}] = {{{', '.join(map(str, listed))}}};\n"


def _places(name: str, fragment: Fragment) -> str:
    """Tables of the first and the second coordinate, for all threads one after another."""
    return "".join(
        _table(f"{name}_{which}", "u8", (place[axis] for thread in fragment.places for place in thread))
        for axis, which in enumerate(("row", "col"))
    )


def _fill(name: str, fragment: Fragment, condition: str, value: str, turned: bool) -> str:
    """Code that fills registers ``name`` with this thread's elements: ``value`` of problem ``p``, or 0.

    The problem of an element is its column, or if ``turned`` its row, turned back.
    """
    elements = fragment.registers * fragment.per_register
    bits = fragment.register_bits // fragment.per_register
    problem = f"({name}_row[at] + M - turn) % M" if turned else f"{name}_col[at]"
    return f"""
#pragma unroll
    for (u32 i = 0; i < {fragment.registers}; ++i) {name}[i] = 0;
#pragma unroll
    for (u32 i = 0; i < {elements}; ++i) {{
      const u32 at = thread * {elements} + i;
      const u32 p = {problem};
      if ({condition})
        {name}[i / {fragment.per_register}] |= (reg)({value}) << (i % {fragment.per_register} * {bits});
    }}"""


def _operands(name: str, count: int, constraint: str) -> str:
    return ", ".join(f'"{constraint}"({name}[{i}])' for i in range(count))


def _numbers(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{first + i}" for i in range(count)) + "}"


_HEAD = """// {name}
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef {reg} reg;
enum : u32 {{ M = {m}, N = {n}, K = {k} }};
"""

_BEGIN = """
extern "C" __global__ void __launch_bounds__({block})
{kernel}(const {inp}* __restrict__ a, const {inp}* __restrict__ b, const {out}* __restrict__ c, {out}* __restrict__ d,
         u64 count, u32 length, u32 turn, u32 turn_step)
{{
  const u64 group = {group};
  const u32 thread = {thread};
  const u64 first = group * N;
  if (first >= count) return;
  turn = (turn + group % M * turn_step) % M;
  reg D[{registers}];
  {{{load}
  }}
"""

_END = """
#pragma unroll
  for (u32 i = 0; i < {elements}; ++i) {{
    const u32 at = thread * {elements} + i;
    const u32 p = D_col[at];
    if (D_row[at] == (p + turn) % M && first + p < count)
      d[first + p] = ({out})(D[i / {each}] >> (i % {each} * {bits}));
  }}
}}
"""


def kernel_source(instruction: Instruction) -> str:
    """The source of the kernel; NVRTC and nvcc compile it without any header.

    >>> from prismm.numerics.hardware.instructions import instruction_named
    >>> "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in kernel_source(instruction_named("mma.fp16.fp32"))
    True
    """
    warp = instruction.kind == "mma"
    drawn = d_fragment(instruction)
    head = _HEAD.format(
        name=instruction.name,
        reg="u64" if drawn.register_bits == 64 else "u32",
        m=instruction.m,
        n=instruction.n,
        k=instruction.k,
    )
    begin = _BEGIN.format(
        block=WARPS * 32,
        kernel=KERNEL,
        inp=_word(instruction.input),
        out=_word(instruction.output),
        group=f"(u64)blockIdx.x * {WARPS} + threadIdx.x / 32" if warp else "blockIdx.x",
        thread="threadIdx.x % 32" if warp else "threadIdx.x",
        registers=drawn.registers,
        load=_fill("D", drawn, "D_row[at] == (p + turn) % M && first + p < count", "c[first + p]", turned=False),
    )
    end = _END.format(
        out=_word(instruction.output),
        elements=drawn.registers * drawn.per_register,
        each=drawn.per_register,
        bits=drawn.register_bits // drawn.per_register,
    )
    tables, loop = (_mma if warp else _wgmma)(instruction, drawn)
    return head + tables + _places("D", drawn) + begin + loop + end


def _mma(instruction: Instruction, drawn: Fragment) -> tuple[str, str]:
    """Tables and the loop along k of a warp's instruction."""
    a, b = a_fragment(instruction), b_fragment(instruction)
    constraint = "l" if drawn.register_bits == 64 else "r"
    shift = f" << {instruction.shift}" if instruction.shift else ""

    def fill(name: str, fragment: Fragment, side: str, index: str, turned: bool) -> str:
        value = f"(reg){side}[(first + p) * length + k0 + {index}]{shift}"
        return _fill(name, fragment, "p < N && first + p < count", value, turned)

    d_count, a_count = drawn.registers, a.registers
    listed = ", ".join(
        (
            _numbers(0, d_count),
            _numbers(d_count, a_count),
            _numbers(d_count + a_count, b.registers),
            _numbers(0, d_count),
        )
    )
    loop = f"""
#pragma unroll 1
  for (u32 k0 = 0; k0 < length; k0 += K) {{
    reg A[{a_count}], B[{b.registers}];{fill("A", a, "a", "A_col[at]", True)}{fill("B", b, "b", "B_row[at]", False)}
    __syncwarp();
    asm volatile("{instruction.ptx} {listed};"
                 : {_operands("D", d_count, "+" + constraint)}
                 : {_operands("A", a_count, constraint)},
                   {_operands("B", b.registers, constraint)});
  }}"""
    return _places("A", a) + _places("B", b), loop


def _wgmma(instruction: Instruction, drawn: Fragment) -> tuple[str, str]:
    """Tables and the loop along k of a warpgroup's instruction, operands in shared memory."""
    size = instruction.input_bits // 8
    word = {1: "u8", 2: "u16", 4: "u32"}[size]
    m, n, k = instruction.m, instruction.n, instruction.k
    tables = "".join(
        _table(f"{name}_byte", "u16", (shared_offset(row, at, size) for row in range(rows) for at in range(k)))
        for name, rows in (("A", m), ("B", n))
    )
    shift = f" << {instruction.shift}" if instruction.shift else ""
    immediates = {"f16": ", 1, 1, 0, 0", "bf16": ", 1, 1, 0, 0", "s8": ""}.get(instruction.ptx.split(".")[-1], ", 1, 1")
    d_count = drawn.registers
    listed = f"{_numbers(0, d_count)}, %{d_count}, %{d_count + 1}, scale_d{immediates}"

    def fill(name: str, side: str, problem: str) -> str:
        return f"""
    for (u32 at = thread; at < {name}_size * K; at += {instruction.threads}) {{
      const u32 p = {problem};
      {word} value = 0;
      if (p < N && first + p < count) value = ({word})(({word}){side}[(first + p) * length + k0 + at % K]{shift});
      *({word}*)({name} + {name}_byte[at]) = value;
    }}"""

    rows = STRIDE_BYTES // 8
    loop = f"""
  __shared__ __align__(128) u8 A[M * {rows}], B[N * {rows}];
  enum : u32 {{ A_size = M, B_size = N }};
  const u64 place = (u64){LEADING_BYTES >> 4} << 16 | (u64){STRIDE_BYTES >> 4} << 32;  // no swizzle
  const u64 a_place = place | ((u32)__cvta_generic_to_shared(A) & 0x3FFFF) >> 4;
  const u64 b_place = place | ((u32)__cvta_generic_to_shared(B) & 0x3FFFF) >> 4;
#pragma unroll 1
  for (u32 k0 = 0; k0 < length; k0 += K) {{{fill("A", "a", "(at / K + M - turn) % M")}{fill("B", "b", "at / K")}
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // what was stored is seen by the tensor core
    __syncthreads();
    asm volatile("wgmma.fence.sync.aligned;" : {_operands("D", d_count, "+r")} :: "memory");
    asm volatile("{{ .reg .pred scale_d; setp.ne.b32 scale_d, %{d_count + 2}, 0; "
                 "{instruction.ptx} {listed}; }}"
                 : {_operands("D", d_count, "+r")}
                 : "l"(a_place), "l"(b_place), "r"(1) : "memory");
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    // Naming D keeps the compiler from reading it before the instruction has written it.
    asm volatile("wgmma.wait_group.sync.aligned 0;" : {_operands("D", d_count, "+r")} :: "memory");
    __syncthreads();
  }}"""
    return tables, loop
