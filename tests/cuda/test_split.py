"""The split that matrix instructions make, beside the plain one: the same residues, norms and counts."""

import dataclasses
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from prismm.cuda.device import Device, device_of  # noqa
from prismm.cuda.launch.arguments import A, BufferView  # noqa
from prismm.cuda.launch.program import Program  # noqa: E402
from prismm.cuda.residues import split as residues_split  # noqa: E402
from prismm.cuda.residues.split import split_vectors, allocate_statistics  # noqa
from prismm.cuda.residues.tables import tables  # noqa
from prismm.cuda.views import Vectors  # noqa: E402

H200 = Device("NVIDIA H200", True, True, 132)
PLANES = (14, 20, 8, 7, 4)


def hostile(rng, vectors, k, dtype):
    """Vectors of many kinds: ordinary, wide, subnormal, huge, tiny, of integers, of powers of two, zero, not finite."""
    info = np.finfo(dtype)
    x = rng.standard_normal((vectors, k))
    with np.errstate(over="ignore", under="ignore"):
        for i in range(vectors):
            kind = i % 13
            if kind == 1:
                x[i] *= np.exp2(rng.integers(-60, 60, k))
            elif kind == 2:
                x[i] *= float(info.tiny) * rng.choice([1.0, 0.01])
            elif kind == 3:
                x[i] *= float(info.max) / 16
            elif kind == 4:
                x[i] = np.where(rng.random(k) < 0.5, float(info.smallest_subnormal), 1e30 * x[i])
            elif kind == 5:
                x[i] = np.rint(1e6 * x[i])
            elif kind == 6:
                x[i] = np.exp2(rng.integers(-20, 3, k)) * rng.choice([-1, 1], k)
            elif kind == 7:
                x[i] = 0.0
            elif kind == 8:
                x[i] = np.where(rng.random(k) < 0.01, x[i], 0.0)
            elif kind == 9:
                x[i, rng.integers(k)] = rng.choice([np.inf, -np.inf, np.nan])
            elif kind == 10:
                x[i] = np.where(rng.random(k) < 0.5, float(info.smallest_subnormal), 0.0)
            elif kind == 11:
                x[i] = np.rint(x[i]) + rng.choice([0.0, 0.5], k)  # ties, before powers of two
    return x.astype(dtype)


def program_of(x, moduli, device, *, left, layout, measure):
    """The launches that split vectors, and where planes and statistics are."""
    vectors, k = x.shape
    program = Program((0, 0, 0))
    steps = (0, k, 1) if layout == "rows" else (0, 1, vectors)
    place = Vectors(BufferView(A, 0, x.dtype), 1, vectors, k, steps)
    statistics = allocate_statistics(program, place)
    table = tables(moduli, x.device)
    split = split_vectors(
        program, place, statistics, table, device, left=left, levels=True, measure=measure
    )  # fmt: skip
    return program, split


def test_the_fast_kernel_takes_rows_and_short_columns():
    def kernels(vectors, k, layout, dtype=torch.float64, moduli=14, device=H200):
        x = torch.empty(vectors, k, dtype=dtype)
        program, _ = program_of(x, moduli, device, left=True, layout=layout, measure=False)
        return [launch.kernel.fn.__name__ for launch in program.launches if hasattr(launch, "kernel")]

    plain = ["largest_columns", "sum_columns", "split_columns"]
    assert kernels(64, 64, "rows") == kernels(5000, 60000, "rows") == ["split_rows_fused"]
    assert kernels(64, 1 << 16, "rows") == kernels(64, 64, "rows", torch.complex128) == ["split_rows"]
    assert kernels(64, 64, "rows", device=dataclasses.replace(H200, sm90=False)) == ["split_rows"]
    assert kernels(2048, 2048, "columns") == kernels(4096, 4096, "columns", torch.float32, 7)
    assert kernels(2048, 2048, "columns") == ["split_columns_fused"]
    assert kernels(2048, 2064, "columns") == kernels(1024, 2048, "columns") == plain
    assert kernels(2048, 2048, "columns", moduli=20) == plain


@pytest.mark.parametrize("moduli", PLANES)
def test_fragments_give_the_residues(moduli, rng):
    """What the matrix instructions are given, multiplied with exact integers."""
    table = tables(moduli, torch.device("cpu"))
    primes = table.reduction.numpy()[:moduli, 0]
    sides = (table.left, table.left_fragments), (table.right, table.right_fragments)
    # Of eight moduli also what serves integers of 31 bits and a sign, in one word.
    kinds = [(table.words, 0, table.bits)] + [(1, 1, 31)] * (moduli == 8)
    groups = -(-moduli // (16 if table.words == 3 else 8))
    assert len(table.left_fragments) == groups + len(kinds) - 1
    for words, first, bits in kinds:
        for rows, found in sides:
            at_once = {1: 4, 2: 2, 3: 1}[words]
            numbers = [int(x) for x in rng.integers(0, 2**62, at_once)]
            pattern = [[(x >> (32 * w)) & 0xFFFFFFFF for w in range(words)] for x in numbers]
            fours = [0] * 4
            for e, one in enumerate(pattern):
                fours[words * e : words * (e + 1)] = one
            for group in range(groups):
                for g in range(8):
                    for variant in range(2 if at_once == 4 else 1):
                        for half in range(2):
                            t = (16 if words == 3 else 8) * group + g + (8 * half if words == 3 else 0)
                            own = found[first + group]
                            if t >= moduli:
                                assert words < 3 or not own[0, :, g, 2 * half].any()
                                continue
                            e = 0 if words == 3 else 2 * variant + half
                            sums, reductions = own[0, :, g].numpy(), own[1, :, g].numpy()
                            total = int(sums[0, 2 * half])
                            for lane in range(4):
                                factors = int(sums[lane, 4 + 2 * variant + half]) & 0xFFFFFFFF
                                for byte in range(4):
                                    signed = ((factors >> (8 * byte)) & 0xFF ^ 0x80) - 0x80
                                    total += signed * ((fours[lane] >> (8 * byte)) & 0xFF)
                            y = np.int32(total).view(np.float32)
                            inverse, shift = (
                                np.int32(v).view(np.float32) for v in reductions[0, 4 * half : 4 * half + 2]
                            )
                            q = np.float32(float(y) * float(inverse) + float(shift)).view(np.int32)
                            low = (int(q) * int(reductions[0, 4 * half + 2]) + total) & 0xFF
                            residue = (low ^ 0x80) - 0x80
                            p, integer = int(primes[t]), sum(x << (32 * w) for w, x in enumerate(pattern[e]))
                            expected = int(rows.numpy()[t, 0]) * (integer - 2**bits)
                            assert (residue - expected) % p == 0 and abs(residue) <= p // 2 + 1


@pytest.mark.gpu
@pytest.mark.parametrize("measure", [False, True])
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("moduli", PLANES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_both_kernels_write_the_same(dtype, moduli, layout, measure, rng, monkeypatch):
    device = device_of(0)
    if not device.sm90:
        pytest.skip("the GPU is no Hopper")
    for vectors, k in [(1104, 2048), (1059, 333), (1104, 16), (1057, 1)] if layout == "columns" else [
        (208, 4096), (65, 333), (130, 2064), (13, 1)
    ]:  # fmt: skip
        x = hostile(rng, vectors, k, dtype)
        y = torch.from_numpy(x if layout == "rows" else np.ascontiguousarray(x.T)).cuda()
        for left in (False, True):
            results = []
            for fast in (True, False):
                if not fast:
                    monkeypatch.setattr(residues_split, "_is_split_fused", lambda *_: False)
                program, split = program_of(
                    y.view(vectors, k), moduli, device, left=left, layout=layout, measure=measure
                )  # fmt: skip
                monkeypatch.undo()
                workspace = torch.full((program.workspace,), 0x5A, dtype=torch.uint8, device="cuda")
                program.run((y.data_ptr(),) * 3 + (workspace.data_ptr(),), torch.cuda.current_stream().cuda_stream)

                def read(place, workspace=workspace):
                    size = math.prod(place.shape) * place.dtype.itemsize
                    some = workspace[place.offset : place.offset + size].view(place.dtype).view(place.shape)
                    return some.cpu().numpy()

                results.append((read(split.planes), read(split.statistics)[0]))
            names = {launch.kernel.fn.__name__ for launch in program.launches if hasattr(launch, "kernel")}
            assert not any(name.endswith("fused") for name in names)
            (planes, own), (expected, theirs) = results
            finite = np.isfinite(x).all(1)
            assert ((own[0] >= 0x7FF << 52) == ~finite).all()
            assert (own[0][finite] >> 52 == theirs[0][finite] >> 52).all()
            assert (own[4] == theirs[4]).all()
            own, theirs = own[1:, finite], theirs[1:, finite]
            assert (own == theirs).all(), np.argwhere(own != theirs)[:5]
            order = np.arange(vectors)
            if not left:  # `split.plane_row`
                r = order % 64
                order = order - r + 8 * ((r % 16) // 2) + 2 * (r // 16) + r % 2
            assert (planes[0][:, order[finite], :] == expected[0][:, order[finite], :]).all()
