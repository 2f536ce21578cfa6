"""A conventional product in one kernel: float64's matrix instructions, a non-finite check of the result, one store.

Products of small matrices are over before a second kernel that looks for entries that are not finite has begun.
Here a tile is checked in registers, and its uncertified entries are repaired once it has been stored (`repair`).

Float32 operands are multiplied in float64 too, whose matrix instructions are as fast on an A100, H100 or H200 as
float32's multiplications are elsewhere. Their products are exact and their sums have 29 bits more than the result, and
an entry is its sum rounded once. Nothing overflows on the way; but products that cancel may take an exact value with
them that does. So the largest magnitudes of rows and columns are kept: where an entry and 64 times the error of its
sum, at most k²·2^-53 times both, may reach float32's end, it is made exactly, unless it is beyond by more than that.
What gemm adds C to thus errs by less than 2^122 (`combine.SPARE`).

**The bound.** Float64's matrix instructions round as fused multiply-additions to nearest do, in some order: the error
is at most k·u·|a||b|/(1 - k·u) (Higham 2002, section 3.1) with u = 2^-53, for float32 with another rounding of the
result, so below the bound of a sum in float32 from two terms on; one product is exact before that rounding.

Bytes: operands once for each tile that they cross, the result once. Operations: 2·m·n·k. A step along the inner
dimension has one barrier: before what is copied ahead takes the place of what the step before has read. On an H200 at
n = 1024 float64 takes 51 µs (42 TFLOP/s of 67; cuBLAS 40), float32 42 to 48; docs/gpu.md has other shapes.

Alternatives: Triton's `tl.dot` instead of this (its right operand of float64 is read with two threads a bank: 20 %
slower); one allocation for all steps (two barriers a step: 6 % slower in tiles of 64 by 64, 3 % faster of float32);
elements of the next step read before this one's are multiplied (registers spill in tiles of 128 by 64; not timed).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from prismm.cuda.kernels.fp64 import even, wide
from prismm.cuda.native.kernels.repair import repair_double, repair_single

_INNER = gl.constexpr(16)
"""Inner dimension of an instruction."""

TOP = gl.constexpr(3.4028235e38)
"""Below 2^128 - 2^103, from which on numbers round to infinity in float32."""
SLACK = gl.constexpr(7.7e-15)
"""Above 64·2^-53, for roundings of a sum's error: see the note at the beginning."""
LARGE = gl.constexpr(8.98846567431158e307)
"""2^1023, below which the error of a sum of fewer than 2^24 products that are finite hides no overflow."""


@gluon.constexpr_function
def _copied(shape, across, size, warps):
    """How a tile of elements of so many bytes, neighbours along axis `across`, is copied: 16 bytes a thread."""
    vector = 16 // size
    lanes = min(32, shape[across] // vector)
    threads, each = [32 // lanes] * 2, [1, 1]
    threads[across], each[across] = lanes, vector
    groups = [1, 1]
    groups[1 - across] = warps
    return gl.BlockedLayout(each, threads, groups, [across, 1 - across])


@gluon.constexpr_function
def _shared(shape, across, inner, size):
    """Where a tile's elements lie so that no two that a warp reads at once share a bank: those reads are of 4 elements
    along axis `inner` and 8 along the other one, of float64 in two halves.
    """
    line = 128 // (size * shape[across])  # rows in a line of all banks
    vector, phases = 4, 4
    if size == 4:
        vector, phases = (4, 8) if across == inner else (8, 4)
    per = max(1, line)
    return gl.SwizzledSharedLayout(vector, per, max(1, phases // per), [across, 1 - across])


@gluon.jit
def _buffers(
    kind: gl.constexpr, rows: gl.constexpr, columns: gl.constexpr, layout: gl.constexpr, count: gl.constexpr
):  # fmt: skip
    """So many tiles in shared memory, each an allocation of its own: the compiler knows that they do not overlap, and
    puts no barriers between what is read from one and copied into another.
    """
    found = ()
    for _ in gl.static_range(count):
        found = found + (gl.allocate_shared_memory(kind, [rows, columns], layout),)  # type: ignore[assignment]  # noqa: RUF005
    return found


@gluon.jit
def largest_of_rows(x, ROWS: gl.constexpr):
    """The largest magnitudes of fours of a row's elements, each four one thread's."""
    return gl.max(gl.abs(x.reshape([ROWS, 4, 4])), 1)


@gluon.jit
def largest_of_columns(y, COLUMNS: gl.constexpr):
    """The same of a column's."""
    return gl.max(gl.abs(y.reshape([4, 4, COLUMNS])), 0)


@gluon.jit
def _begin(buffer, pointers, inside):
    async_copy.async_copy_global_to_shared(buffer, pointers, mask=inside)


@gluon.jit(do_not_specialize=["terms", "length", "parts", "few"])
def multiply_directly(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, counts, row_tops, column_tops, tops, m, n, terms,
    length, parts, few, PRECISION: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, ACROSS_A: gl.constexpr, ACROSS_B: gl.constexpr, UP: gl.constexpr, ALONG: gl.constexpr,
    EVEN: gl.constexpr, PARTED: gl.constexpr,
):  # fmt: skip
    """out, contiguous, of a batch (program axis 2) = AB, tiles of columns along axis 0, of rows along axis 1. counts:
    as for `residues.kernels.repair.finish`; few: as for `repair.repair_double`. ACROSS: the axis along which elements
    are neighbours; UP, ALONG: warps of a tile; EVEN: whether the inner dimension is a multiple of 16. (It is never
    known to be 1, of which the compiler makes a mess.)

    PARTED: of the inner dimension in so many parts of a length, numbered faster than matrices of the batch; out: their
    sums, in float64; row_tops, column_tops, tops: as for `split_k.add_parts`.
    """
    k = even(terms, EVEN)
    SIZE: gl.constexpr = 8 if PRECISION == 53 else 4
    WARPS: gl.constexpr = UP * ALONG
    COPY_A: gl.constexpr = _copied([ROWS, DEPTH], ACROSS_A, SIZE, WARPS)
    COPY_B: gl.constexpr = _copied([DEPTH, COLUMNS], ACROSS_B, SIZE, WARPS)
    SHARED_A: gl.constexpr = _shared([ROWS, DEPTH], ACROSS_A, 1, SIZE)
    SHARED_B: gl.constexpr = _shared([DEPTH, COLUMNS], ACROSS_B, 0, SIZE)
    MMA: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [UP, ALONG], [16, 8])
    place = gl.program_id(2)
    batch = place
    if PARTED:
        batch = place // parts
        start = (place - batch * parts) * length
        k = even(gl.minimum(length, terms - start), EVEN)
        a += wide(start) * a_step
        b += wide(start) * b_step
    a += wide(batch) * a_batch
    b += wide(batch) * b_batch
    out += wide(place) * m * n
    i0, j0 = gl.program_id(1) * ROWS, gl.program_id(0) * COLUMNS
    i = i0 + gl.arange(0, ROWS, gl.SliceLayout(1, COPY_A))
    ha = gl.arange(0, DEPTH, gl.SliceLayout(0, COPY_A))
    j = j0 + gl.arange(0, COLUMNS, gl.SliceLayout(0, COPY_B))
    hb = gl.arange(0, DEPTH, gl.SliceLayout(1, COPY_B))
    left = a + i.to(gl.int64)[:, None] * a_row + ha.to(gl.int64)[None, :] * a_step
    right = b + j.to(gl.int64)[None, :] * b_column + hb.to(gl.int64)[:, None] * b_step
    a_on, b_on = wide(DEPTH) * a_step, wide(DEPTH) * b_step
    in_m, in_n = (i < m)[:, None], (j < n)[None, :]
    of_a = _buffers(a.dtype.element_ty, ROWS, DEPTH, SHARED_A, STAGES)
    of_b = _buffers(b.dtype.element_ty, DEPTH, COLUMNS, SHARED_B, STAGES)
    # One stage fewer than there are: the last is filled by the first step, as each step fills the one before it.
    for stage in gl.static_range(STAGES - 1):
        _begin(of_a[stage], left, in_m & (ha < k - stage * DEPTH)[None, :])
        _begin(of_b[stage], right, (hb < k - stage * DEPTH)[:, None] & in_n)
        async_copy.commit_group()
        left += a_on
        right += b_on
    sums = gl.zeros([ROWS, COLUMNS], gl.float64, MMA)
    OF_A: gl.constexpr = gl.DotOperandLayout(0, MMA, 1)
    OF_B: gl.constexpr = gl.DotOperandLayout(1, MMA, 1)
    row_top = largest_of_rows(gl.zeros([ROWS, _INNER], gl.float32, OF_A), ROWS)
    column_top = largest_of_columns(gl.zeros([_INNER, COLUMNS], gl.float32, OF_B), COLUMNS)
    for first in range(0, k, STAGES * DEPTH):
        for stage in gl.static_range(STAGES):
            # The loop is unrolled by whole rounds of stages, of which the last may be cut short.
            rest = k - first - stage * DEPTH
            if rest > 0:
                # All copies but the STAGES - 2 latest have landed, so this stage is there; its barrier frees the stage
                # before as well.
                async_copy.wait_group(STAGES - 2)
                ahead: gl.constexpr = (stage + STAGES - 1) % STAGES
                rest -= (STAGES - 1) * DEPTH
                _begin(of_a[ahead], left, in_m & (ha < rest)[None, :])
                _begin(of_b[ahead], right, (hb < rest)[:, None] & in_n)
                # Groups are counted by `wait_group`, so one is committed even where masks copy nothing.
                async_copy.commit_group()
                left += a_on
                right += b_on
                for inner in gl.static_range(0, DEPTH, _INNER):
                    x = of_a[stage].slice(inner, _INNER, 1).load(OF_A)
                    y = of_b[stage].slice(inner, _INNER, 0).load(OF_B)
                    if PRECISION == 24:
                        row_top = gl.maximum(row_top, largest_of_rows(x, ROWS))
                        column_top = gl.maximum(column_top, largest_of_columns(y, COLUMNS))
                    sums = mma_v2(x.to(gl.float64), y.to(gl.float64), sums)
    # The conversions below use shared memory, into which no copy may land any more.
    async_copy.wait_group(0)
    if PRECISION == 24:
        of_row = gl.convert_layout(gl.max(row_top, 1), gl.SliceLayout(1, MMA))
        of_column = gl.convert_layout(gl.max(column_top, 0), gl.SliceLayout(0, MMA))
    value = sums
    if not PARTED:
        value = sums if PRECISION == 53 else sums.to(gl.float32)
        # Negated, so that NaN is recomputed too.
        recomputed = ~(gl.abs(value) < LARGE)
        if PRECISION == 24:
            scale = k.to(gl.float64) * k.to(gl.float64) * SLACK
            error = scale * of_row.to(gl.float64)[:, None] * of_column.to(gl.float64)[None, :]
            recomputed = ~(gl.abs(sums) + error < TOP)
        value = gl.where(recomputed, float("nan"), value)  # by which those are found below
    row = i0 + gl.arange(0, ROWS, gl.SliceLayout(1, MMA))
    column = j0 + gl.arange(0, COLUMNS, gl.SliceLayout(0, MMA))
    gl.store(
        out + row.to(gl.int64)[:, None] * n + column[None, :], value, mask=(row < m)[:, None] & (column < n)[None, :]
    )
    if PARTED:
        if PRECISION == 24:  # tiles beside and above one another store the same
            gl.store(row_tops + wide(place) * m + row, of_row, mask=row < m)
            gl.store(column_tops + wide(place) * n + column, of_column, mask=column < n)
            tile = (wide(place) * gl.num_programs(1) + gl.program_id(1)) * gl.num_programs(0) + gl.program_id(0)
            gl.store(tops + tile, gl.max(of_row, 0) * gl.max(of_column, 0))
    else:
        if gl.max(gl.max(recomputed.to(gl.int32), 1), 0) > 0:
            if PRECISION == 53:
                repair_double(
                    a, a_row, a_step, b, b_column, b_step, out, counts, i0, j0, m, n, k, few, ROWS, COLUMNS, WARPS
                )  # fmt: skip
            else:
                repair_single(
                    a, a_row, a_step, b, b_column, b_step, out, counts, sums, error, row, column, i0, j0, m, n, k,
                    ROWS, COLUMNS, WARPS,
                )  # fmt: skip
