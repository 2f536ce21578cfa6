"""What ranks run: products of DTensors beside those of the whole operands."""

from __future__ import annotations

import functools
import itertools
import os
import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import prismm
from prismm.errors import ArgumentError, ShapeError
from prismm.testing import HOSTILE, SPECIAL
from tests.judge import assert_same_bits

ALL = {**HOSTILE, **SPECIAL}
DEVICE = "cuda" if os.environ.get("PRISMM_TESTED_RANKS") == "cuda" else "cpu"
"""Where ranks have their parts: `ranks.Ranks` says so."""

R, P = Replicate(), Partial()
S = Shard


@functools.cache
def mesh_of(shape: tuple[int, ...]) -> DeviceMesh:
    """A mesh of the first ranks; every rank has to ask for it."""
    return DeviceMesh(DEVICE, torch.arange(int(np.prod(shape))).reshape(shape))


def spread(x: Any, mesh: DeviceMesh, placements: list[Any]) -> DTensor:
    """x, which every rank has, as a DTensor; nothing is sent. Where it is Partial, rank 0 has it."""
    x = torch.from_numpy(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) else x
    x = x.to(DEVICE)
    plain = [R if each.is_partial() else each for each in placements]
    found = distribute_tensor(x, mesh, plain, src_data_rank=None)
    if plain == placements:
        return found
    local = found.to_local()
    away = any(each.is_partial() and mesh.get_local_rank(i) for i, each in enumerate(placements))
    local = torch.zeros_like(local) if away else local
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=x.shape, stride=x.stride())


def operands_of(families: str | tuple[str, ...], sizes: tuple[int, int, int], seed: int, dtype: str) -> tuple[Any, Any]:
    """a (m, k) and b (k, n) of a family; of several, each one's m rows of a and n columns of b beside each other, so
    that every row meets every column.
    """
    names = (families,) if isinstance(families, str) else families
    drawn = [ALL[name](*sizes, seed + turn, np.dtype(dtype)) for turn, name in enumerate(names)]
    return np.concatenate([a for a, _ in drawn]), np.concatenate([b for _, b in drawn], axis=1)


def bits(rank: int, shape: tuple[int, ...], cases: list[Any]) -> list[str]:
    """Which cases differ from the product of the whole operands: each (family or families, sizes, seed, type, keywords,
    placements of a, of b).
    """
    mesh = mesh_of(shape)
    if rank >= mesh.size():
        return []
    failed = []
    for name, sizes, seed, dtype, keywords, left, right in cases:
        a, b = operands_of(name, sizes, seed, dtype)
        found = prismm.matmul(spread(a, mesh, left), spread(b, mesh, right), **keywords)
        whole = found.full_tensor().cpu().numpy()
        try:
            assert_same_bits(whole, prismm.matmul(a, b, **keywords))
        except AssertionError as error:
            failed.append(f"{name} {sizes} {seed} {dtype} {keywords} {left} {right}: {error}")
    return failed


def bits_again(rank: int, shape: tuple[int, ...], cases: list[Any], bytes_: int) -> tuple[list[str], int]:
    """`bits`, with all uncertified entries multiplied again, some bytes of digits at a time; and how many of this
    rank's were decided so.
    """
    from prismm.cpu.partial import more
    from prismm.cpu.partial.join import Joined
    from prismm.distributed import again

    taken: list[int] = []
    patched = pytest.MonkeyPatch()
    patched.setattr(more, "EXACT_SECONDS", 1.0)
    patched.setattr(again, "BYTES", bytes_)
    take = Joined.take

    def counted(joined: Joined, *given: Any) -> None:
        take(joined, *given)
        taken.append(joined.outcome.paths.get("more moduli", 0))

    patched.setattr(Joined, "take", counted)
    try:
        return bits(rank, shape, cases), sum(taken)
    finally:
        patched.undo()


def bits_by_more(
    rank: int, shape: tuple[int, ...], cases: list[Any], bits_: tuple[int, int] | None, costs: dict[str, float]
) -> Any:
    """`bits`, on ranks whose GPUs make what is left again by more moduli, with fewer bits where these are given; and
    how many real parts they made so, and entries that these left. costs: constants of `distributed.inner`.
    """
    from prismm.cuda.partial import more
    from prismm.distributed import inner
    from prismm.distributed.on_gpu import AgainOnGpu

    made, left, patched = [], [], pytest.MonkeyPatch()
    join, leave = AgainOnGpu.join, AgainOnGpu.leave

    def counted(self: AgainOnGpu, *given: Any) -> None:
        join(self, *given)
        made.append(self.part)

    def noted(self: AgainOnGpu, a: Any, p: int, b: Any, q: int, landed: Any, *share: slice) -> None:
        leave(self, a, p, b, q, landed, *share)
        left.append(sum(int(x.sum()) for x in landed.pending[self.part : self.part + 1]))

    patched.setattr(AgainOnGpu, "join", counted)
    patched.setattr(AgainOnGpu, "leave", noted)
    if bits_ is not None:
        patched.setattr(more.More, "bits", bits_)
    for name, value in costs.items():
        patched.setattr(inner, name, value)
    kept = more._splitting, more._joining
    try:
        for each in kept:
            each.cache_clear()  # the bits are part of what was made before
        return bits(rank, shape, cases), len(made), sum(left)
    finally:
        patched.undo()
        for each in kept:
            each.cache_clear()


def like_torch(rank: int, shape: tuple[int, ...], cases: list[Any]) -> list[str]:
    """Which native products have other placements than torch's, or leave the bound of all K terms in any order: each
    (shape of a, of b, placements of a, of b). Torch cannot flatten a batch that two mesh dimensions shard; prismm can.
    """
    mesh, failed = mesh_of(shape), []
    if rank >= mesh.size():
        return []
    for left_shape, right_shape, left, right in cases:
        rng = np.random.default_rng(7)
        a, b = rng.standard_normal(left_shape), rng.standard_normal(right_shape)
        x, y = spread(a, mesh, left), spread(b, mesh, right)
        try:
            expected, found = torch.matmul(x, y), prismm.matmul(x, y)
        except RuntimeError as error:
            if "_StridedShard" not in str(error):
                raise
            expected = found = prismm.matmul(x, y)
        if found.placements != expected.placements or found.shape != expected.shape:
            failed.append(f"{left_shape} {right_shape} {left} {right}: {found.placements}, torch {expected.placements}")
        error = np.abs(found.full_tensor().cpu().numpy() - np.matmul(a.astype(np.longdouble), b.astype(np.longdouble)))
        if not (error <= a.shape[-1] * 2.0**-53 * np.matmul(np.abs(a), np.abs(b))).all():
            failed.append(f"{left_shape} {right_shape} {left} {right}: error {error.max()}")
    return failed


def exact_placements(rank: int, shape: tuple[int, ...], cases: list[Any]) -> list[Any]:
    """The placements of exact products, and the shape of what this rank has."""
    mesh, found = mesh_of(shape), []
    for left_shape, right_shape, left, right in cases:
        x, y = spread(np.ones(left_shape), mesh, left), spread(np.ones(right_shape), mesh, right)
        product = prismm.matmul(x, y, reproducible=True)
        found.append((product.placements, tuple(product.to_local().shape)))
    return found


def batches(rank: int, shape: tuple[int, ...], cases: list[Any]) -> None:
    """Batches, vectors and uneven shards: each (shape of a, of b, placements of a, of b)."""
    mesh = mesh_of(shape)
    if rank >= mesh.size():
        return
    for left_shape, right_shape, left, right in cases:
        rng = np.random.default_rng(9)
        a = np.ldexp(rng.standard_normal(left_shape), rng.integers(-30, 30, left_shape))
        b = np.ldexp(rng.standard_normal(right_shape), rng.integers(-30, 30, right_shape))
        for keywords in ({"reproducible": True}, {"accuracy": "correctly-rounded"}):
            found = prismm.matmul(spread(a, mesh, left), spread(b, mesh, right), **keywords)
            note = f"{left_shape} {right_shape} {left} {right}"
            assert_same_bits(found.full_tensor().cpu().numpy(), np.asarray(prismm.matmul(a, b, **keywords)), note)


def sums(rank: int, shape: tuple[int, ...], cases: list[Any]) -> None:
    """gemm: each (family, type, keywords, factors, flags, placements of a, of b, of c)."""
    mesh = mesh_of(shape)
    if rank >= mesh.size():
        return
    for name, dtype, keywords, (alpha, beta), flags, left, right, third in cases:
        a, b = ALL[name](7, 30, 5, 11, np.dtype(dtype))
        with np.errstate(all="ignore"):
            c = (-alpha * np.asarray(a @ b)).astype(dtype)
        expected = prismm.gemm(a, b, c, alpha=alpha, beta=beta, **keywords)
        x, y = (u.conj().T if flag == "C" else u.T if flag == "T" else u for u, flag in zip((a, b), flags, strict=True))
        found = prismm.gemm(
            spread(x, mesh, left), spread(y, mesh, right), spread(c, mesh, third), alpha=alpha, beta=beta,
            trans_a=flags[0], trans_b=flags[1], **keywords,
        )  # fmt: skip
        whole = found.full_tensor().cpu().numpy()
        if keywords:
            assert_same_bits(whole, expected, f"{name} {dtype} {keywords} {flags} {left} {right} {third}")
        else:
            size = abs(alpha) * (np.abs(a) @ np.abs(b)) + abs(beta) * np.abs(c)
            assert (np.abs(whole - expected) <= 2 * 33 * 2.0**-53 * size).all()


def operator_sums(rank: int, recipe: str) -> None:
    """The operator's sums, rounded as often as on one device of this kind: C a row, a column, a matrix or absent."""
    from prismm.programs import operators

    mesh = mesh_of((2,))
    if rank >= 2:
        return
    rng = np.random.default_rng(13)
    a, b = (torch.from_numpy(rng.standard_normal(size)).to(DEVICE) for size in ((6, 20), (20, 8)))
    for left, right, third in (([S(1)], [S(0)], [R]), ([S(0)], [R], [R]), ([R], [S(1)], [R]), ([S(1)], [S(0)], [S(0)])):
        for size, (alpha, beta) in itertools.product(((8,), (6, 1), (6, 8)), ((1, 1), (1, -0.5), (-1.5, 1), (3, 0))):
            c = torch.from_numpy(rng.standard_normal(size)).to(DEVICE)
            expected = operators.gemm(c, a, b, recipe, alpha, beta)
            parts = (spread(x, mesh, each) for x, each in ((c, third), (a, left), (b, right)))
            found = operators.gemm(*parts, recipe, alpha, beta).full_tensor()
            note = f"{recipe} {left} {right} {third} {size} {alpha} {beta}"
            assert_same_bits(found.cpu().numpy(), expected.cpu().numpy(), note)


def rounded_sums(rank: int, world: int) -> None:
    """Sums of a rounded product: the bits of a product and an addition on one device."""
    from prismm.cuda.rows import added
    from prismm.distributed.product import multiply

    mesh = mesh_of((world,))
    if rank >= world:
        return
    rng = np.random.default_rng(16)
    a, b = (torch.from_numpy(np.ldexp(rng.standard_normal(x), rng.integers(-9, 9, x))) for x in ((5, 20), (20, 4)))
    for keywords in ((None, None, True, *[None] * 4), ("correctly-rounded", None, False, *[None] * 4)):
        product = prismm.matmul(a, b, accuracy=keywords[0], reproducible=keywords[2])
        for left, right in (([S(1)], [S(0)]), ([S(0)], [R])):
            for size, factors in (((4,), (1.0, 1.0)), ((5, 1), (-1.5, 0.5)), (None, (3.0, 0.0))):
                c = None if size is None else torch.from_numpy(rng.standard_normal(size))
                parts = spread(a, mesh, left), spread(b, mesh, right), None if c is None else spread(c, mesh, [R])
                found = multiply(*parts, factors, keywords, stepwise=True).full_tensor()
                expected = added(product, c, *factors)
                assert_same_bits(found.cpu().numpy(), expected.numpy(), f"{keywords} {left} {size} {factors}")


def addends(rank: int) -> None:
    """gemm, and torch's operator under a policy, with C in every placement, on ranks that do and do not add it."""
    mesh, flipped = mesh_of((2,)), DeviceMesh(DEVICE, torch.tensor([1, 0]))
    if rank >= 2:
        return
    rng = np.random.default_rng(14)
    a, b = (rng.standard_normal(size) for size in ((6, 8), (8, 4)))
    ways = (([S(1)], [S(0)]), ([S(0)], [R]), ([R], [S(1)]), ([R], [R]))
    for (left, right), size in itertools.product(ways, ((6, 4), (4,), (1, 4), (6, 1), (1, 1))):
        c = rng.standard_normal(size)
        x, y = spread(a, mesh, left), spread(b, mesh, right)
        for third in (R, P, *map(S, range(len(size)))):
            z = spread(c, mesh, [third])
            note = f"{left} {right} {size} {third}"
            found = [prismm.gemm(x, y, z, beta=-0.5, reproducible=reproducible) for reproducible in (False, True)]
            for recipe, _ in itertools.product(("native", "correctly-rounded"), range(2)):
                with prismm.emulate(recipe):
                    found += [torch.addmm(z, x, y, beta=-0.5)]
            for each in found:
                assert np.allclose(each.full_tensor().cpu().numpy(), a @ b - 0.5 * c, rtol=0, atol=1e-12), note
    x, y = spread(a, mesh, [S(1)]), spread(b, mesh, [S(0)])
    for wrong, error in (
        (spread(np.ones((5, 4)), mesh, [R]), ShapeError), (spread(np.ones((6, 4)), flipped, [S(0)]), ArgumentError)
    ):  # fmt: skip
        with pytest.raises(error):
            prismm.gemm(x, y, wrong, beta=1.0)
    # A part of each rank's has the result's type, whether C is added there or not.
    single = (spread(z.astype(np.float32), mesh, [p]) for z, p in ((a, S(1)), (b, S(0))))
    mixed = prismm.gemm(*single, spread(np.ones((6, 4)), mesh, [R]), beta=1.0)
    assert mixed.to_local().dtype is torch.float64
    assert np.allclose(mixed.full_tensor().cpu().numpy(), a @ b + 1, atol=1e-5)
    # 0.0 equals -0.0, whose product of a CPU is another.
    ones = torch.ones(2, 2, dtype=torch.float64, device=DEVICE)
    for alpha in (0.0, -0.0):
        zero = prismm.gemm(*(spread(np.ones((2, 2)), mesh, [R]) for _ in range(2)), alpha=alpha).full_tensor()
        assert_same_bits(zero.cpu().numpy(), prismm.gemm(ones, ones, alpha=alpha).cpu().numpy(), f"{alpha}")


def own_schemes(rank: int) -> None:
    """Schemes of the caller's own: whose repr differs between ranks, and one that changes between products."""
    from prismm.schemes.residues import Residues

    mesh = mesh_of((2,))
    if rank >= 2:
        return
    rng = np.random.default_rng(15)
    a = rng.standard_normal((6, 6))

    class Own:
        reproducible = True
        moduli = 15

        def implementation(self, device: str) -> Any:
            return Residues(self.moduli).implementation(device)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(Residues(15), name)

    for left, right in ((S(0), R), (S(1), S(0))):
        kept = [bytearray(64) for _ in range(rank * 50)]  # so that addresses differ
        scheme = Own()
        for moduli in (15, 8):
            scheme.moduli = moduli
            found = prismm.gemm(spread(a, mesh, [left]), spread(a, mesh, [right]), scheme=scheme)
            assert_same_bits(found.full_tensor().cpu().numpy(), prismm.gemm(a, a, scheme=scheme), f"{moduli}")
        del kept


def gradients(rank: int, shape: tuple[int, ...], left: list[Any], right: list[Any], recipe: str) -> None:
    """Derivatives, by products of DTensors, beside those of the whole."""
    from prismm.programs import operators

    mesh = mesh_of(shape)
    if rank >= mesh.size():
        return
    rng = np.random.default_rng(3)
    a, b, g = (torch.from_numpy(rng.standard_normal(size)) for size in ((6, 12), (12, 8), (6, 8)))
    wholes = [x.clone().requires_grad_() for x in (a, b)]
    (operators.matmul(*wholes, recipe) * g).sum().backward()
    x, y = (spread(u, mesh, p).requires_grad_() for u, p in ((a, left), (b, right)))
    product = operators.matmul(x, y, recipe)
    product.backward(spread(g, mesh, [R] * mesh.ndim).redistribute(mesh, product.placements))
    for found, whole in ((x.grad, wholes[0].grad), (y.grad, wholes[1].grad)):
        assert whole is not None
        assert_same_bits(found.full_tensor().cpu().numpy(), whole.numpy())


def narrow(rank: int) -> None:
    """bfloat16 and float16: rounded once more from float32; and products that were prepared nowhere."""
    from prismm.programs import operators

    mesh = mesh_of((3,))
    if rank >= 3:
        return
    generator = torch.Generator().manual_seed(8)
    for kind in (torch.bfloat16, torch.float16):
        a, b = (torch.randn(size, generator=generator).to(kind) for size in ((6, 20), (20, 5)))
        x, y = spread(a, mesh, [S(1)]), spread(b, mesh, [S(0)])
        found = prismm.matmul(x, y, accuracy="correctly-rounded").full_tensor()
        assert_same_bits(found.numpy(), prismm.matmul(a, b, accuracy="correctly-rounded").numpy())
        again = operators.matmul(x, y, "correctly-rounded", kind).full_tensor()
        assert torch.equal(again, operators.matmul(a, b, "correctly-rounded", kind)) and again.dtype is kind
        third = operators.gemm(x, x, y, "correctly-rounded", beta=0).full_tensor()
        assert torch.equal(third, operators.gemm(a[:, :5], a, b, "correctly-rounded", beta=0))


def modes(rank: int) -> None:
    """Inference mode, and counts of bools."""
    mesh = mesh_of((2,))
    if rank >= 2:
        return
    rng = np.random.default_rng(12)
    a, b = (rng.standard_normal(size) for size in ((4, 6), (6, 4)))
    x, y = spread(a, mesh, [S(1)]), spread(b, mesh, [S(0)])
    with torch.inference_mode():
        found = prismm.matmul(x, y, reproducible=True)
        assert_same_bits(found.full_tensor().cpu().numpy(), prismm.matmul(a, b, reproducible=True))
    ones = spread(torch.from_numpy(a > 0), mesh, [S(1)]), spread(torch.from_numpy(b > 0), mesh, [S(0)])
    counts = prismm.gemm(*ones, reproducible=True)
    assert (counts.full_tensor().cpu().numpy() == (a > 0).astype(float) @ (b > 0)).all()


def graph(rank: int) -> None:
    """Compiled code ends its graph before a product of DTensors, and goes on behind it."""
    mesh = mesh_of((1,))
    if rank:
        return
    x = torch.arange(12.0).reshape(3, 4).double()
    a, b = spread(x, mesh, [S(1)]), spread(x.T.contiguous(), mesh, [S(0)])
    compiled = torch.compile(lambda p, q: prismm.matmul(p, q, reproducible=True) + 1, backend="eager")
    assert torch.equal(compiled(a, b).full_tensor(), x @ x.T + 1)


def bytes_sent(rank: int, m: int, k: int, n: int) -> tuple[int, int]:
    """Bytes of digits that this rank sends to others, and entries of the result."""
    mesh, sent = mesh_of((4,)), []
    original = dist.all_to_all_single

    def counted(target: Any, source: Any, received: Any, sizes: Any, **keywords: Any) -> Any:
        sent.append(source.nbytes - sizes[rank] * source.element_size())
        return original(target, source, received, sizes, **keywords)

    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    dist.all_to_all_single = counted
    try:
        prismm.matmul(spread(a, mesh, [S(1)]), spread(b, mesh, [S(0)]), reproducible=True)
    finally:
        dist.all_to_all_single = original
    return sum(sent), m * n


def small_blocks(rank: int) -> None:
    """Blocks that travel while others are multiplied, and requests in parts."""
    from prismm.cpu.partial import join
    from prismm.distributed import on_cpu

    kept = on_cpu.BLOCK_BYTES, join.ROUND_BYTES
    on_cpu.BLOCK_BYTES, join.ROUND_BYTES = 1000, 3000
    try:
        rng = np.random.default_rng(5)
        a = np.ldexp(rng.standard_normal((40, 30)), rng.integers(-200, 200, (40, 30)))
        b = np.ldexp(rng.standard_normal((30, 150)), rng.integers(-200, 200, (30, 150)))
        for left, right in ((a, b), (b.T.copy(), a.T.copy())):
            x, y = spread(left, mesh_of((4,)), [S(1)]), spread(right, mesh_of((4,)), [S(0)])
            found, whole = (prismm.matmul(*z, accuracy="correctly-rounded") for z in ((x, y), (left, right)))
            assert_same_bits(found.full_tensor().cpu().numpy(), whole)
    finally:
        on_cpu.BLOCK_BYTES, join.ROUND_BYTES = kept


def small_blocks_of_gpus(rank: int, shape: tuple[int, ...]) -> None:
    """Several blocks of columns, or of rows, on ranks with GPUs."""
    from prismm.distributed import on_gpu

    kept = on_gpu.BLOCK_BYTES, on_gpu.STEP
    on_gpu.BLOCK_BYTES, on_gpu.STEP = 1, 64
    try:
        # Where rows are sharded already, columns are scattered, and blocks are of rows.
        left, right = ([S(1)], [S(0)]) if len(shape) == 1 else ([S(0), S(1)], [R, S(0)])
        for sizes in ((7, 9, 150), (150, 9, 7)):
            assert bits(rank, shape, [("normal", sizes, 4, "float64", {"reproducible": True}, left, right)]) == []
    finally:
        on_gpu.BLOCK_BYTES, on_gpu.STEP = kept


def refused(rank: int, what: str) -> None:
    """Operands and keywords that end in an error."""
    line, grid = mesh_of((4,)), mesh_of((2, 2))
    x = torch.ones(8, 8, dtype=torch.float64)
    a, b = spread(x, line, [S(1)]), spread(x, line, [S(0)])
    if what == "meshes":
        prismm.matmul(a, spread(x, grid, [R, R]))
    elif what == "partial":
        prismm.matmul(DTensor.from_local(x, line, [Partial("max")], run_check=False), b)
    elif what == "plain":
        prismm.matmul(a, x, reproducible=True)
    elif what == "plain gemm":
        prismm.gemm(a, b, x, beta=1.0)
    elif what == "out":
        prismm.matmul(a, b, out=x)
    elif what == "integers":
        prismm.matmul(spread(x.long(), line, [S(1)]), b, reproducible=True)
    elif what == "shape":
        prismm.matmul(a, spread(torch.ones(9, 2), line, [R]))
    elif what == "accuracy":
        prismm.matmul(a, b, accuracy=[1e-9])
    elif what == "addend":
        prismm.gemm(a, b, spread(torch.ones(5, 8), line, [R]), beta=1.0)
    elif what == "mesh of c":
        prismm.gemm(a, b, spread(x, grid, [R, R]), beta=1.0)
    elif what == "scheme":
        prismm.matmul(a, b, scheme=prismm.Words.tf64(3), accuracy=1e-12)


def differing(rank: int, shape: tuple[int, ...], odd: int, what: str) -> str:
    """A product before which one rank has another setting; the error that every rank gets."""
    from prismm.errors import EngineError

    mesh, keywords = mesh_of(shape), {"reproducible": True}
    if what == "arithmetic" and rank == odd:
        torch.set_flush_denormal(True)
    if what == "environment" and rank == odd:
        os.environ["PRISMM_ENGINE"] = "cpu:float64"
    if what == "version" and rank == odd:
        prismm.__version__, kept = "0.0", prismm.__version__
    if what == "scheme":
        keywords = {"scheme": "residues:16" if rank == odd else "residues:17"}
    if what == "grade":
        keywords = {} if rank == odd else {"accuracy": 1e-13}
    x = np.ones((5, 12)) * (1 + odd)
    try:
        prismm.matmul(spread(x, mesh, [S(1)] * mesh.ndim), spread(x.T, mesh, [S(0)] * mesh.ndim), **keywords)
    except EngineError as error:
        return str(error)
    finally:
        torch.set_flush_denormal(False)
        if what == "environment" and rank == odd:
            del os.environ["PRISMM_ENGINE"]
        if what == "version" and rank == odd:
            prismm.__version__ = kept
    return ""


def late(rank: int, seconds: float) -> Any:
    """Products of a group of a short timeout, to the second of which the last rank comes too late."""
    import datetime

    group = dist.new_group(timeout=datetime.timedelta(seconds=seconds), backend="gloo")
    mesh = DeviceMesh.from_group(group, "cpu")
    x = np.ones((4, 8))
    # An equal mesh, whose group waits longer.
    others = mesh_of((dist.get_world_size(),))
    prismm.matmul(spread(x, others, [S(1)]), spread(x.T, others, [S(0)]), reproducible=True)
    operands = spread(x, mesh, [S(1)]), spread(x.T, mesh, [S(0)])
    first = prismm.matmul(*operands, reproducible=True)
    assert first.device_mesh is mesh and (first.full_tensor() == 8).all()
    if rank == dist.get_world_size() - 1:
        time.sleep(2.5 * seconds)
    began = time.monotonic()
    try:
        prismm.matmul(*operands, reproducible=True)
    except prismm.errors.EngineError as error:
        return str(error), time.monotonic() - began
    return "", 0.0


def endless(rank: int, count: int = 10**9) -> None:
    """So many products, with no other collective between them."""
    mesh = mesh_of((dist.get_world_size(),))
    x = np.ones((4, 9))
    operands = spread(x, mesh, [S(1)]), spread(x.T, mesh, [S(0)])
    for _ in range(count):
        found = prismm.matmul(*operands, reproducible=True)
        assert (found.to_local() == 9).all()


def _model() -> torch.nn.Sequential:
    """Two linear layers, the same on every rank."""
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.GELU(), torch.nn.Linear(16, 6)).double().to(DEVICE)


def _trained(model: torch.nn.Module, x: torch.Tensor, recipe: Any) -> tuple[Any, ...]:
    """Results of passes with and without derivatives, and gradients, all of them the same in each step of two blocks;
    and the record of the second block.
    """
    found: list[Any] = []
    for _ in range(2):
        with prismm.emulate(recipe, reproducible=recipe == "native") as record:
            for _ in range(3):
                model.zero_grad()
                y = model(x)
                y.square().sum().backward()
                with torch.no_grad():
                    again = model(x)
                found.append((y, again, *[p.grad for p in model.parameters() if p.ndim == 2]))
    for each in found:
        for one, first in zip(each, found[0], strict=True):
            assert_same_bits(_whole(one).detach().cpu().numpy(), _whole(first).detach().cpu().numpy())
    y, again, *gradients = found[0]
    assert_same_bits(_whole(again).cpu().numpy(), _whole(y).detach().cpu().numpy())
    return y, gradients, record


def _whole(x: Any) -> Any:
    return x.full_tensor() if isinstance(x, DTensor) else x


def tensor_parallel(rank: int, recipe: Any, sequence: bool) -> None:
    """Column-parallel, then row-parallel linear layers, with the bits of one device."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,  # noqa: F401
        parallelize_module,
    )

    mesh = mesh_of((2,))
    if rank >= 2:
        return
    x = torch.from_numpy(np.random.default_rng(6).standard_normal((4, 12))).to(DEVICE)
    y, gradients, record = _trained(_model(), x, recipe)
    outer = (S(0),) if sequence else (R,)
    plan = {
        "0": ColwiseParallel(input_layouts=outer[0]),
        "2": RowwiseParallel(output_layouts=outer[0], use_local_output=False),
    }
    model = parallelize_module(_model(), mesh, plan)
    given = x[2 * rank : 2 * rank + 2] if sequence else x
    found, weights, rows = _trained(model, given.clone(), recipe)
    assert found.placements == outer
    assert_same_bits(found.full_tensor().detach().cpu().numpy(), y.detach().cpu().numpy())
    for weight, expected in zip(weights, gradients, strict=True):
        assert_same_bits(weight.full_tensor().cpu().numpy(), expected.cpu().numpy())
    shapes = sorted((row.operator, row.m, row.k, row.n) for row in rows.rows)
    assert shapes == sorted((row.operator, row.m, row.k, row.n) for row in record.rows)
    assert all(row.method.accuracy != "off" for row in rows.rows), [row.reason for row in rows.rows]


def data_parallel(rank: int, kind: str) -> None:
    """FSDP2 and DDP: products are of whole weights, a batch of each rank's own."""
    mesh = mesh_of((2,))
    if rank >= 2:
        return
    x = torch.from_numpy(np.random.default_rng(6).standard_normal((4, 12))).to(DEVICE)
    y, _, _ = _trained(_model(), x, "correctly-rounded")
    mine = x[2 * rank : 2 * rank + 2].clone()
    if kind == "ddp":
        model: Any = torch.nn.parallel.DistributedDataParallel(_model(), process_group=mesh.get_group())
    else:
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(_model(), mesh=mesh)
    with prismm.emulate("correctly-rounded") as record:
        found = model(mine)
        found.square().sum().backward()
    assert_same_bits(found.detach().cpu().numpy(), y[2 * rank : 2 * rank + 2].detach().cpu().numpy())
    assert all(row.method.accuracy == "correctly-rounded" for row in record.rows)
    assert len(record.rows) == 5 and all(p.grad is not None for p in model.parameters())


def eight(seed: int) -> list[str]:
    """Eight ranks, threads of this process, in one to three dimensions: what goes wrong."""
    import threading
    import traceback

    from torch.testing._internal.distributed.multi_threaded_pg import ProcessLocalGroup, _install_threaded_pg

    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    _install_threaded_pg()
    store, failed = dist.HashStore(), []
    rng = np.random.default_rng(seed)
    a = np.ldexp(rng.standard_normal((9, 40)), rng.integers(-60, 60, (9, 40)))
    b = np.ldexp(rng.standard_normal((40, 11)), rng.integers(-60, 60, (40, 11)))
    kinds = ({"reproducible": True}, {"accuracy": "correctly-rounded"})
    expected = [prismm.matmul(a, b, **keywords) for keywords in kinds]
    shapes = (
        ((8,), [S(1)], [S(0)]), ((8,), [S(0)], [R]), ((2, 4), [S(0), S(1)], [R, S(0)]),
        ((4, 2), [S(1), S(1)], [S(0), S(0)]), ((2, 2, 2), [S(0), S(1), S(1)], [R, S(0), S(0)]),
    )  # fmt: skip

    def one(rank: int) -> None:
        try:
            dist.init_process_group("threaded", rank=rank, world_size=8, store=store)
            for shape, left, right in shapes:
                mesh = DeviceMesh("cpu", torch.arange(8).reshape(shape))
                for keywords, whole in zip(kinds, expected, strict=True):
                    found = prismm.matmul(spread(a, mesh, left), spread(b, mesh, right), threads=1, **keywords)
                    assert_same_bits(found.full_tensor().cpu().numpy(), whole, f"{shape} {left} {right} {keywords}")
        except BaseException as error:
            failed.append(traceback.format_exc())
            ProcessLocalGroup.exception_handle(error)

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return failed + ["a rank waits for ever"] * any(thread.is_alive() for thread in threads)
