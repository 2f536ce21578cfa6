"""The kernels of products of words in Triton's interpreter, against exact arithmetic; tells what is wrong with each.

python -m tests.cuda.harness.interpreter words [part/parts [nvidia|hopper]]
"""

import numpy as np
import torch

from prismm.core.accuracy import Target
from prismm.cuda.device import Device
from prismm.cuda.multiword import launches as multiword_launches
from prismm.testing import HOSTILE, SPECIAL, exact_product, ieee_specials
from tests.cuda.harness import words_twin as twin
from tests.cuda.harness.evidence import note, tell
from tests.cuda.harness.gluon_interpreter import interpreted_device
from tests.cuda.harness.programs import words_program

DEVICE = Device("interpreter", False, True, 4)
CASES = [
    ("normal", "float32", (3, 9, 5), "fp16 2 12", "native"),
    ("wide_rows", "complex64", (3, 70, 5), "fp16 2 12", "native"),
    ("subnormal_operands", "float32", (3, 200, 5), "fp16 2 12", "native"),
    ("near_overflow", "complex64", (2, 9, 3), "fp16 2 12", "native"),
    ("overflow_threshold", "float32", (2, 9, 3), "fp16 2 12", "native"),
    ("infinities", "float32", (3, 80, 5), "fp16 2 12", None),
    ("infinities", "complex64", (3, 70, 5), "fp16 2 12", "native"),
    ("triangular", "float32", (60, 60, 66), "fp16 2 12", "native"),
    ("triangular", "complex64", (20, 40, 40), "tf32 2 0", "native"),
    ("wide_rows", "float32", (3, 300, 5), "tf32 2 0", "tolerance"),
]
DIRECT = [
    ("normal", (4, 12, 8), "native"),
    ("wide_rows", (4, 200, 12), "native"),
    ("subnormal_operands", (4, 200, 8), "native"),
    ("near_overflow", (4, 128, 4), "native"),
    ("overflow_threshold", (4, 60, 8), "native"),
    ("infinities", (4, 80, 8), None),
    ("infinities", (4, 80, 8), "native"),
    ("triangular", (132, 140, 264), "native"),
    ("cancelling", (4, 132, 136), "tolerance"),
]
"""Of float32, by the kernel that cuts its operands itself: rows of multiples of 16 bytes."""


ROWS = [
    ("float32", False, 1, (1, 130, 70, 135)),
    ("float32", False, 3, (2, 9, 300, 16)),
    ("float32", False, 1, (2, 66, 3, 65)),
    ("float32", True, 1, (1, 8, 140, 132)),
    ("complex64", False, 2, (1, 5, 200, 9)),
]
"""Type, whether one kernel cuts and multiplies, shares at most, and (batch, m, k, n); of three terms all are repaired,
by tiles.
"""

SHARED = [
    ("float32", "fp16 2 12", 64, 2, (1, 5, 128, 9)),
    ("float32", "fp16 2 12", 64, 3, (2, 133, 500, 130)),
    ("float32", "fp16 2 12", 128, 8, (1, 70, 700, 48)),
    ("float32", "tf32 2 0", 64, 5, (2, 20, 400, 16)),
    ("float32", "tf32 2 0", 256, 2, (1, 9, 600, 40)),
    ("float32", "fp16 2 12", 512, 4, (1, 9, 300, 5)),
    ("complex64", "fp16 2 12", 64, 4, (2, 5, 150, 70)),
]
"""Type, words, chunk, shares at most, and (batch, m, k, n)."""


def batched(
    a: torch.Tensor, b: torch.Tensor, name: str, target: Target | None, direct: bool = False, chunk: int | None = None,
    shares: int = 1, row: torch.Tensor | None = None,
) -> tuple[torch.Tensor, list[int]]:  # fmt: skip
    """The launches of a GPU, run on this CPU; row: numbers that they add to each row of the product."""
    terms = a.shape[2] * (2 if a.is_complex() else 1)
    words, chunk = twin.formats()[name], 64 if direct else chunk or multiword_launches.chunk_for(terms)
    config = multiword_launches.config_for(words, chunk, terms, target, "a100", direct, shares=shares)
    out = torch.full((max(len(a), len(b)), a.shape[1], b.shape[2]), torch.nan, dtype=a.dtype)
    program, counts = words_program(a, b, out, config, DEVICE, adds=row is not None)
    names = [x.kernel.fn.__name__ for x in program.launches]
    added = ["add_shares"] if shares > 1 and terms > chunk else []
    product = ["multiply_by_words"] if direct else ["split_words", "words_product", *added]
    assert names == [*product, "repair_words"], names
    others = [] if row is None else [torch.zeros(1), torch.zeros(1), row]
    workspace = program.run_by_triton(a, b, out, *others)
    return out, workspace[counts.offset : counts.offset + 32].view(torch.int64).tolist()


def product(
    a: np.ndarray, b: np.ndarray, name: str, target: Target | None, direct: bool = False
) -> tuple[np.ndarray, list[int]]:
    """Of one matrix each, in memory aligned as a GPU's allocator does it."""
    x, y = (aligned(torch.from_numpy(v))[None] for v in (a, b))
    out, counts = batched(x, y, name, target, direct)
    return out[0].numpy(), counts


def aligned(x: torch.Tensor) -> torch.Tensor:
    """The same numbers and strides, from a multiple of 64 bytes on."""
    size = x.element_size()
    memory = torch.empty(x.numel() + 64 // size, dtype=x.dtype)
    start = -memory.data_ptr() % 64 // size
    found = memory.as_strided(x.shape, x.stride(), start)
    found.copy_(x)
    return found


def outside(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, own: multiword_launches.Bound) -> int:
    """How many entries of real products are not within their bound."""
    x, y = a.double(), b.double()
    largest = x.abs().amax(2, True) * y.abs().amax(1, True) * 2.0**-28
    # Float64's own error is less than 2^-20 of what is allowed.
    note(own)
    allowed = own.gamma * (x.abs() @ y.abs()) + own.terms * own.floor * largest
    return int((~((out.double() - x @ y).abs() <= allowed)).sum())


def normal(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    """Numbers that are the same on any machine."""
    return torch.from_numpy(rng.standard_normal(shape, np.float32))


def batches_directly() -> None:
    """Several products by one kernel: strides of 0, several tiles a program, rows and columns as they come."""
    rng = np.random.default_rng(5)
    for transposed in (False, True):
        a, b = aligned(normal(rng, 3, 132, 100)), aligned(normal(rng, 1, 100, 136))
        if transposed:
            a, b = aligned(normal(rng, 1, 100, 132)).mT, aligned(normal(rng, 3, 136, 100)).mT
        out, counts = batched(a, b, "fp16 2 12", None, True)
        wrong = outside(out, a, b, multiword_launches.bound(multiword_launches.HALVES, 100, 64, "a100", True))
        tell(["batch", transposed], wrong=wrong, counts=counts)


def chunks() -> None:
    """Every chunk, shorter and longer than the stages that are in shared memory, by programs of several tiles each."""
    rng = np.random.default_rng(6)
    a, b = aligned(normal(rng, 2, 260, 580)), aligned(normal(rng, 2, 580, 136))
    for name, words in twin.formats().items():
        for chunk in multiword_launches.CHUNKS:
            out, counts = batched(a, b, name, None, chunk=chunk)
            wrong = outside(out, a, b, multiword_launches.bound(words, 580, chunk, "a100"))
            tell(["chunk", name, chunk], wrong=wrong, counts=counts)


def shares() -> None:
    """Chunks that are shared, evenly or not, of several tiles and matrices, and one that cannot be. Each last product
    has an entry whose shares overflow and whose sum does not, and each first one a row of zeros.
    """
    rng = np.random.default_rng(8)
    for dtype, name, chunk, count, (batch, m, k, n) in SHARED:
        a, b = normal(rng, batch, m, k), normal(rng, batch, k, n)
        if dtype == "complex64":
            a, b = torch.complex(a, normal(rng, batch, m, k)), torch.complex(b, normal(rng, batch, k, n))
        a[0, 1] = 0
        a[-1, 0, :2] = a[-1, 0, -2:] = 2.0**123
        b[-1, :2, 0], b[-1, -2:, 0] = 16.0, -16.0
        terms = k * (2 if dtype == "complex64" else 1)
        own = multiword_launches.bound(twin.formats()[name], terms, chunk, "a100")
        for target in (None, Target("native")):
            out, counts = batched(a, b, name, target, chunk=chunk, shares=count)
            alone, _ = batched(a, b, name, target, chunk=chunk)
            real, vectors, columns = [], [], []
            for z in range(batch):
                real.append(torch.from_numpy(out[z].numpy().view(np.float32)))
                vectors.append(torch.from_numpy(np.ascontiguousarray(twin.real_vectors(a[z].numpy(), "left"))))
                columns.append(torch.from_numpy(np.ascontiguousarray(twin.real_vectors(b[z].numpy(), "right").T)))
            wrong = outside(torch.stack(real), torch.stack(vectors), torch.stack(columns), own)
            # Shares of a chunk each are added as chunks are.
            whole = count >= -(-terms // chunk)
            wrong += int((out != alone).sum()) if whole else int(torch.equal(out, alone))
            wrong += int((out[0, 1] != 0).sum()) + int(sum(counts) == 0)
            tell(["shares", dtype, name, chunk, count, str(target)], wrong=wrong, counts=counts)


def rows() -> None:
    """Kernels that add a row give the bits of an addition afterwards: those that write results, and those that repair
    entries alone and by tiles. The row begins at an odd multiple of 4 bytes.
    """
    rng = np.random.default_rng(9)
    for dtype, direct, shares, (batch, m, k, n) in ROWS:
        if direct and DEVICE.sm90 is False:
            continue
        a, b = aligned(normal(rng, batch, m, k)), aligned(normal(rng, batch, k, n))
        row = normal(rng, n + 1)[1:]
        if dtype == "complex64":
            a, b = torch.complex(a, normal(rng, batch, m, k)), torch.complex(b, normal(rng, batch, k, n))
            row = torch.complex(row, normal(rng, n))
        # A row of zeros, and an entry that cancels, which is repaired; zeros of either sign are added to them.
        a[0, 1] = 0
        a[0, 2], b[0, 0, 0] = 0, -b[0, 1, 0]
        a[0, 2, :2] = 1
        row[0], row[-1] = -0.0, 0.0
        plain, counts = batched(a, b, "fp16 2 12", Target("native"), direct, 64, shares)
        found, again = batched(a, b, "fp16 2 12", Target("native"), direct, 64, shares, row)
        wanted = plain + row
        wrong = int((found.view(torch.int32) != wanted.view(torch.int32)).sum()) + int(counts != again)
        tell(["row", dtype, direct, shares, k], wrong=wrong + int(sum(counts) == 0), counts=counts)


def repairs() -> None:
    """All entries of products with few terms, in tiles above and beside each other, of more matrices than programs."""
    rng = np.random.default_rng(7)
    for shape in ((9, 20, 6, 12), (1, 530, 5, 68), (1, 70, 4, 1040), (3, 130, 4, 66)):
        batch, m, k, n = shape
        a, b = normal(rng, batch, m, k), normal(rng, batch, k, n)
        out, counts = batched(a, b, "fp16 2 12", Target("native"))
        wrong = int((out != (a.double() @ b.double()).float()).sum())
        wrong += abs(sum(counts) - out.numel())
        tell(["repair", *shape], wrong=wrong, counts=counts)


def hidden() -> None:
    """Entries of 2^200 + 2^(128 ± …) - 2^200, of which float64 sees nothing: infinite where float32 ends."""
    m = n = 8
    size, sign = 2.0**100, torch.tensor([1.0, -1.0]).repeat(m // 2)
    a = torch.stack([size * sign, 2.0**28 * sign, -size * sign], 1)
    b = torch.stack([torch.full((n,), size), 2.0 ** (100.0 - torch.arange(n) % 3), torch.full((n,), size)])
    out, counts = batched(a[None].contiguous(), b[None].contiguous(), "fp16 2 12", Target("native"))
    right = exact_product(a.numpy(), b.numpy()).rounded("float32")
    wrong = int((out[0].numpy() != right).sum()) + int(np.isinf(right).sum() != 24)
    tell(["hidden"], wrong=wrong, counts=counts)


def infinite() -> None:
    """Entries around the end of float32 and far beyond it: a tile's float64 products decide all of them."""
    rng = np.random.default_rng(10)
    a, b = normal(rng, 1, 70, 12), normal(rng, 1, 12, 66)
    a *= 2.0 ** torch.arange(-10, 60)[None, :, None].clamp(max=45)
    b *= 2.0**100
    out, counts = batched(a, b, "fp16 2 12", Target("native"))
    right = exact_product(a[0].numpy(), b[0].numpy()).rounded("float32")
    wrong = int((np.isinf(out[0].numpy()) != np.isinf(right)).sum()) + int(
        (out[0].sign().numpy() != np.sign(right)).sum()
    )
    # Both kinds are there, and none is summed exactly.
    wrong += int(not 500 < np.isinf(right).sum() < right.size - 500) + counts[1]
    tell(["infinite"], wrong=wrong, counts=counts)


def main(share: str = "0/1", device: str = "nvidia") -> None:
    global DEVICE
    DEVICE = interpreted_device(device)
    part, parts = map(int, share.split("/"))
    cases = [(*case, False) for case in CASES]
    if part == 0:
        repairs()
        hidden()
        infinite()
        shares()
        rows()
    if device == "hopper":
        cases += [(name, "float32", shape, "fp16 2 12", kind, True) for name, shape, kind in DIRECT]
        if part == 0:
            batches_directly()
        if part == parts - 1:
            chunks()
    for generator, dtype, shape, name, kind, direct in cases[part::parts]:
        a, b = {**HOSTILE, **SPECIAL}[generator](*shape, seed=3, dtype=np.dtype(dtype))
        target = Target(kind, 1e-4 if kind == "tolerance" else None) if kind else None
        wrong = 0
        for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b))):
            c, counts = product(x, y, name, target, direct)
            left, right = twin.real_vectors(a, "left"), twin.real_vectors(b, "right").T
            terms, real = left.shape[1], c.view(np.float32)
            special = ieee_specials(a, b).view(np.float64) if generator in SPECIAL else np.zeros(real.shape)
            plain = np.isfinite(special)
            wrong += int((~plain & ~((real == special) | (np.isnan(real) & np.isnan(special)))).sum())
            if generator not in SPECIAL:
                exact = exact_product(left, right)
                slack = target.tolerance if target and target.tolerance else terms * 2.0**-24
                allowed = slack * exact.magnitude("up") + terms * 2.0**-149
                wrong += int((~exact.within(real, allowed)).sum())
        tell([generator, dtype, name, direct], wrong=wrong, counts=counts)
