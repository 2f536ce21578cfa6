"""The kernels of FP8 products in Triton's interpreter against slow twins; tells what is wrong with each.

python -m tests.cuda.harness.interpreter fp8 {blackwell,any,hopper,ada} {kernels,products}
"""

import numpy as np
import torch

from prismm.cuda.device import INT8
from prismm.cuda.launch.arguments import OUT, A, B, BufferView
from prismm.cuda.launch.program import Program
from prismm.cuda.operands import vectors_of
from prismm.cuda.residues import fp8
from prismm.cuda.residues.fp8_proof import extreme_residues, failure
from prismm.cuda.residues.product import digits_shape
from prismm.cuda.residues.split import SplitVectors, allocate_statistics, plane_shape, split_vectors
from prismm.cuda.residues.tables import tables
from prismm.testing import HOSTILE, SPECIAL
from tests.cuda.harness import fp8_twin as twin
from tests.cuda.harness.evidence import contents, note, runs, tell

CPU = torch.device("cpu")
EVERY = {**HOSTILE, **SPECIAL}


def read(workspace: torch.Tensor, place: BufferView) -> np.ndarray:
    """What stands in workspace."""
    size = place.dtype.itemsize * int(np.prod(place.shape))
    return workspace[place.offset : place.offset + size].view(place.dtype).view(place.shape).numpy()


def split(x: np.ndarray, moduli: int, device, *, left: bool) -> list[int]:
    """Wrong statistics, beside those of the INT8 split, and wrong patterns of digits, of a real matrix."""
    matrix = torch.from_numpy(x)[None]
    table = tables(moduli, CPU)
    program = Program((0, 0, 0))
    vectors = vectors_of(matrix, A, columns=not left)
    splits = []
    for function in (fp8.split_digits, split_vectors):
        statistics = allocate_statistics(program, vectors)
        plain = device if function is fp8.split_digits else twin.UNITS["any"]
        splits.append(function(program, vectors, statistics, table, plain, left=left, levels=True, measure=True))
    memory = program.run_by_triton(matrix, matrix, matrix)
    if not runs():
        return [0, 0]
    found, other = (read(memory, x.statistics)[0] for x in splits)
    rows = (x if left else x.T).astype(np.float64)
    finite = np.isfinite(rows).all(1)
    shifts = np.where(finite, found[4], 0)
    expected = twin.digit_planes(twin.scaled(rows, shifts), moduli, device, left=left)
    planes = read(memory, splits[0].planes)[0].view(np.uint8)
    count, k = rows.shape
    wrong = (planes[:, :count, :k] != expected) & finite[None, :, None]
    return [int((found != other).sum()), int(wrong.sum() + np.count_nonzero(planes[:, :count, k:]))]


def convert(moduli: int, device, count: int, complex_: bool) -> int:
    """Wrong digits of extreme integers."""
    rng = np.random.default_rng(moduli)
    table = tables(moduli, CPU)
    system = fp8.fp8_tables(moduli, fp8.family_for(device), CPU)
    integers = [twin.extreme_integers(moduli, count, rng)]
    if complex_:  # D = Re + E and F = Im + D + E for any E
        integers.append(twin.extreme_integers(moduli, count, rng)[::-1])
        e = twin.extreme_integers(moduli, count, rng)
        d = integers[0] + e
        given = np.concatenate([twin.residues_of(x, moduli, device, rng) for x in (d, e, integers[1] + d + e)])
    else:
        given = twin.residues_of(integers[0], moduli, device, rng)
    given = torch.from_numpy(given)
    digits = torch.zeros((3 if complex_ else 1) * moduli, count, dtype=torch.uint8)
    program = Program((0, 0, 0))
    places = (BufferView(base, 0, x.dtype, tuple(x.shape)) for base, x in ((A, given), (OUT, digits)))
    fp8.convert_residues(program, *places, system, table, 1, count, 2 if complex_ else 1)
    program.run_by_triton(given, given, digits)
    found = digits.numpy()
    if complex_:
        return int((twin.combined(found, moduli) != np.stack([twin.converted(x, moduli) for x in integers])).sum())
    return int((found != twin.converted(integers[0], moduli)).sum())


def multiply(moduli: int, device, m: int, k: int, n: int, block: int | None = None) -> int:
    """Wrong residues of products of any digits that there are; block: cut so, where the moduli would not be."""
    rng = np.random.default_rng(k)
    system = fp8.fp8_tables(moduli, fp8.family_for(device), CPU)
    sides = []
    for count, left in ((m, True), (n, False)):
        integers = rng.integers(-(2**40), 2**40, (count, k)).astype(object)
        patterns = twin.digit_planes(integers, moduli, device, left=left)
        planes = np.zeros((1, *plane_shape(count, k, system.planes)), np.uint8)
        planes[0, :, :count, :k] = patterns
        sides.append((torch.from_numpy(planes), patterns))
    program = Program((0, 0, 0))
    splits = []
    for base, (planes, _), count in zip((A, B), sides, (m, n), strict=True):
        place = BufferView(base, 0, torch.int8, tuple(planes.shape))
        splits.append(SplitVectors(place, place, 1, count, k))
    residues = program.allocate(torch.int16, 1, *digits_shape(m, n, system.planes))
    table = system.products.clone()
    if block is not None:
        table[:, 3] = block
    longest = block or system.longest
    fp8.launch_products(program, *splits, residues, table, system.planes, longest, device)
    memory = program.run_by_triton(sides[0][0], sides[1][0], torch.zeros(1))
    found = read(memory, residues)[0, :, :, :n]
    return int((found != twin.product_residues(sides[0][1], sides[1][1], moduli, device)).sum())


def whole(a: np.ndarray, b: np.ndarray, moduli: int, target: str | None, device, c: np.ndarray | None) -> int:
    """Wrong bits of a product, or a sum, beside those of the INT8 kernels."""
    x, y = (torch.from_numpy(np.ascontiguousarray(z if z.ndim == 3 else z[None])) for z in (a, b))
    addend = None if c is None else torch.from_numpy(c[None])
    others = () if c is None else (torch.zeros(0, dtype=torch.uint8),) * 2 + (addend,)
    factors = [int(np.float64(v).view(np.int64)) for v in (0.5, 0.0, 2.0, 0.0)]
    results = []
    for engine, unit in ((twin.FP8, device), (INT8, twin.UNITS["any"])):
        out = torch.zeros(max(x.shape[0], y.shape[0]), x.shape[1], y.shape[2], dtype=x.dtype)
        program = twin.program_of(x, y, out, moduli, target, unit, engine, addend)
        program.run_by_triton(x, y, out, *others, factors=factors if c is not None else ())
        results.append(out.numpy().view(np.uint8))
    return int((results[0] != results[1]).sum())


def kernels(device) -> None:
    """Each kernel alone, and the engine's proof."""
    bits, family = device.fp8_sum_bits, fp8.family_for(device)
    with twin.unit_of(bits):
        kinds = ("carries", "wide_rows", "subnormal_operands", "near_overflow", "infinities")
        for index, kind in enumerate(kinds):
            moduli, dtype = ((14, "float64"), (7, "float32"), (20, "float64"), (2, "float64"), (15, "float64"))[index]
            a, b = EVERY[kind](9, 45, 70, seed=7, dtype=np.dtype(dtype))
            for side, x in (("rows", a), ("columns", b)):
                statistics, digits = split(x, moduli, device, left=side == "rows")
                tell(["split", kind, side], statistics=statistics, wrong=digits)
        for moduli in (2, 7, 14, 15, 22):
            for complex_ in (False, True):
                tell(["convert", moduli, complex_], wrong=convert(moduli, device, 600, complex_))
        for m, k, n in ((5, 40, 7), (130, 33, 3), (3, 700, 140)):
            tell(["multiply", m, k, n], wrong=multiply(14, device, m, k, n))
        # More blocks than are added before they are reduced.
        tell(["multiply", "many blocks"], wrong=multiply(3, device, 2, 128 * 33 + 40, 3, 128))
    only = {family.triples[0][0], family.triples[-1][0], family.singles[0][0]}
    # A unit of as many bits as it is taken for, and of one less; whole blocks take the interpreter minutes.
    for kept in (bits, bits - 1):
        note(kept, *(contents(x) for case in extreme_residues(family, 768) if case[2] in only for x in case[:2]))
        with twin.unit_of(kept):
            reason = failure(device, CPU, lambda program, a, b: program.run_by_triton(a, b, torch.zeros(1)), only, 768)
        tell(["proof", kept - bits], reason=reason)


def products(device) -> None:
    """Whole products and sums."""
    cases = [("carries", "float64", 14, None), ("near_ties", "float32", 7, "correctly-rounded")]
    cases += [("wide_rows", "float64", 15, "native"), ("carries", "complex128", 15, None)]
    cases += [("infinities", "float64", 15, "native"), ("batch", "float64", 15, "native")]
    cases += [("sum", "float64", 15, "native"), ("sum", "complex64", 7, "correctly-rounded")]
    with twin.unit_of(device.fp8_sum_bits):
        for kind, dtype, moduli, target in cases:
            name = "phi4" if kind in ("batch", "sum") else kind
            a, b = EVERY[name](5, 40, 4, seed=3, dtype=np.dtype(dtype))
            c = EVERY["normal"](5, 4, 4, seed=4, dtype=np.dtype(dtype))[0] if kind == "sum" else None
            a = np.stack([a, a[::-1], -a]) if kind == "batch" else a
            tell(["whole", kind, dtype], wrong=whole(a, b, moduli, target, device, c))


def main(unit: str, part: str) -> None:
    {"kernels": kernels, "products": products}[part](twin.UNITS[unit])
