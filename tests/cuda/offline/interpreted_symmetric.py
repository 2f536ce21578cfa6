"""Symmetric products of a GPU in Triton's interpreter against a CPU, bit for bit; tells what is wrong with each.

python -m tests.cuda.harness.interpreter symmetric [part/parts [any|nvidia|hopper]]

Workspace and result are full of rubbish before: a tile that is left out must not be read, flagged, repaired or counted.
"""

import dataclasses

import numpy as np
import torch

import prismm
from prismm.core.accuracy import Target
from prismm.core.problem import Problem
from prismm.cuda import symmetric
from prismm.cuda.device import COUNTS, Device
from prismm.cuda.gemm import sum as cuda_gemm
from prismm.cuda.launch.program import Program
from prismm.cuda.multiword import launches as multiword_launches
from prismm.cuda.operands import result_of
from prismm.cuda.residues.tables import left_factors, tables
from prismm.cuda.symmetric import mirror_triangle
from prismm.formats import FP64
from prismm.schemes.residues import Residues
from prismm.testing import HOSTILE, SPECIAL
from tests.cuda.harness import words_twin as twin
from tests.cuda.harness.evidence import tell
from tests.cuda.harness.gluon_interpreter import interpreted_device
from tests.cuda.harness.planes import digits_of, exact_digits, planes_program
from tests.cuda.harness.programs import residue_program, sum_program, words_program

DEVICE = Device("interpreter", False, False, 4)
EVERYTHING = {**HOSTILE, **SPECIAL}
# Type and rows of matrices whose triangles are copied.
MIRRORS = [("float64", 63), ("float32", 130), ("complex128", 65), ("complex64", 1)]
# Batch, rows, terms and moduli of planes.
PLANES = [(1, 300, 33, 5), (2, 530, 40, 3), (1, 129, 700, 2), (1, 260, 40000, 1)]
# Type, rows, terms, moduli, generator, target, factors of a sum or None, rows and columns of blocks or None: strips
# lie above the diagonal, and sizes end within tiles.
CASES = [
    ("float64", 140, 70, 14, "normal", "native", None, None),
    ("float64", 70, 5, 16, "near_ties", "correctly-rounded", None, None),
    ("float64", 129, 5, 15, "infinities", None, None, None),
    ("float64", 150, 9, 14, "normal", None, None, (64, 128)),
    ("float64", 129, 9, 15, "wide_rows", None, None, None),
    ("float32", 129, 9, 7, "triangular", None, None, None),
    ("float32", 70, 9, 9, "cancelling", "correctly-rounded", None, None),
    ("complex128", 129, 5, 15, "carries", None, None, None),
    ("complex64", 70, 5, 10, "subnormal_operands", "correctly-rounded", None, None),
    ("float64", 140, 70, 15, "normal", None, (1.5, -0.5), None),
    ("float32", 130, 5, 9, "normal", "correctly-rounded", (-1.0, 1.0), None),
    ("complex128", 129, 5, 15, "normal", None, (2.0, 1.0), None),
]
WORDS = [
    ("float32", 260, 300, "normal", "fp16 2 12", "native"),
    ("float32", 129, 3, "infinities", "fp16 2 12", None),
    ("float32", 140, 400, "wide_rows", "tf32 2 0", "native"),
    ("float32", 150, 300, "cancelling", "bf16 3 0", None),
    ("complex64", 140, 150, "normal", "fp16 2 12", "native"),
]


def rows_of(name: str, n: int, k: int, dtype: str, batch: int = 1) -> np.ndarray:
    """A matrix, or several."""
    return np.stack([EVERYTHING[name](n, k, 3, seed=11 + s, dtype=np.dtype(dtype))[0] for s in range(batch)])


def rubbish(workspace: torch.Tensor) -> None:
    """Bytes that are flags, digits and counts of no sense."""
    workspace.copy_(torch.arange(len(workspace)) * 7 % 251)


def run(program, x, y, out, *others, **more):
    """How many entries of tiles that are left out were written, before they are copied; the workspace."""
    first = dataclasses.replace(program, launches=program.launches[:-1])
    assert program.launches[-1].kernel.fn.__name__ == "mirror"
    workspace = first.run_by_triton(x, y, out, *others, prepare=rubbish, **more)
    rows, columns = np.ogrid[: out.shape[1], : out.shape[2]]
    # The tiles of joins, the smallest ones that are left out together: 64 rows and up to 128 columns.
    above = torch.from_numpy((rows // 64 + 1) * 64 <= columns // 128 * 128)
    written = int((~torch.isnan(out.real[:, above])).sum())
    dataclasses.replace(program, launches=program.launches[-1:]).run_by_triton(x, y, out)
    return written, workspace


def different(x: np.ndarray, y: np.ndarray) -> int:
    """Real numbers whose bits differ."""
    x, y = (np.ascontiguousarray(z) for z in (x, y))
    x, y = x.view(x.real.dtype), y.view(y.real.dtype)
    word = np.int64 if x.itemsize == 8 else np.int32
    return int((~((x.view(word) == y.view(word)) | (np.isnan(x) & np.isnan(y)))).sum())


def turned(x: np.ndarray, how: str) -> np.ndarray:
    x = np.swapaxes(x, -1, -2)
    return np.conj(x) if how == "C" else x


def expected(whole: np.ndarray, how: str) -> np.ndarray:
    """The lower triangle of a whole product, and its copy."""
    found = np.where(np.tri(whole.shape[-1], dtype=bool), whole, turned(whole, how))
    if how == "C" and np.iscomplexobj(found):
        at = np.arange(whole.shape[-1])
        found[..., at, at] = found[..., at, at].real
    return found


def mirrors(case) -> None:
    """The last launch alone, of two matrices with numbers that are not finite, transposed and conjugated."""
    dtype, n = case
    wrong = 0
    for how in "TC":
        rng = np.random.default_rng(n)
        x = (rng.standard_normal((2, n, n)) + 1j * rng.standard_normal((2, n, n))).astype(np.complex128)
        x[:, n // 2 :, : n // 3] = 0.0
        x[0, 0, 0], x[1, -1, -1] = complex(np.inf, np.nan), complex(np.nan, -1.0)
        x = (x if dtype.startswith("complex") else x.real).astype(dtype)
        out = torch.from_numpy(x.copy())
        program = Program((0, 0, 0))
        problem = Problem(n, n, 1, (), FP64, None, False, True, out.is_complex(), symmetric=how)
        mirror_triangle(program, result_of(out), problem)
        program.run_by_triton(out, out, out)
        wrong += different(out.numpy(), expected(x, how))
    tell(["mirror", *case], wrong=wrong, written=0)


def planes(case) -> None:
    """Products of residues alone, of one set of planes and of two; a table on a CPU serves any device."""
    batch, n, k, moduli = case
    rng = np.random.default_rng(n)
    table = tables(moduli, torch.device("cpu"))
    p = table.reduction[:moduli, 0].numpy()
    x = torch.from_numpy(rng.integers(-128, 128, (batch, moduli, n, k)).astype(np.int8))
    once = DEVICE.sm90
    y = x if once else x.clone()
    program, digits, fill = planes_program(x, y, DEVICE, lower=True)

    def prepare(workspace: torch.Tensor) -> None:
        rubbish(workspace)
        fill(workspace)

    workspace = program.run_by_triton(x, x, x, prepare=prepare)
    clean = torch.empty_like(workspace)
    rubbish(clean)
    found, before = (digits_of(memory, digits, n).numpy() for memory in (workspace, clean))
    right = exact_digits(x, x, table).numpy().astype(np.int64)
    if once:
        right = right * left_factors(moduli, torch.device("cpu")).numpy()[:, None, None] % p[:, None, None]
    rows, columns = np.ogrid[:n, :n]
    above = (rows // 128 + 1) * 128 <= columns // 256 * 256
    tell(
        ["planes", *case], wrong=int((found != right)[..., np.tri(n, dtype=bool)].sum()),
        written=int((found != before)[..., above].sum()), left_out=int(above.sum()),
    )  # fmt: skip


def residues(case) -> None:
    dtype, n, k, moduli, name, target, factors, block = case
    keywords = {"accuracy": target} if target else {}
    # A batch, the rows of which are columns in memory.
    batch, how = (2, "T") if name == "triangular" else (1, "C")
    rows = rows_of(name, n, k, dtype, batch)
    x = torch.from_numpy(rows)
    x = x.mT.contiguous().mT if name in ("wide_rows", "triangular") else x
    y = x.mT if how == "T" or not x.is_complex() else x.mT.conj().resolve_conj()
    out = torch.full((batch, n, n), torch.nan, dtype=x.dtype)
    how_whole = {"trans_b": how, "scheme": Residues(moduli), **keywords}
    if factors is None:
        program = residue_program(x, y, out, moduli, target, DEVICE, symmetric=how, block=block)
        whole = np.stack([prismm.gemm(r, r, **how_whole) for r in rows])
        others, more = (), {}
    else:
        c = rows_of(name, n, n, dtype)
        c = expected(c, how)
        z = torch.from_numpy(c)
        sum_ = cuda_gemm.Sum(complex(factors[0]), complex(factors[1]), z)
        program, _ = sum_program(x, y, out, z, sum_, moduli, target, DEVICE, symmetric=how)
        if target == "native":
            how_whole["reproducible"] = True
        whole = prismm.gemm(rows[0], rows[0], c[0], alpha=factors[0], beta=factors[1], **how_whole)[None]
        others, more = [torch.empty(0, dtype=torch.uint8)] * 2 + [z], {"factors": sum_.patterns}
    names = [x.kernel.fn.__name__ for x in program.launches if hasattr(x, "kernel")]
    once = sum("split" in x for x in names) == 1
    written, workspace = run(program, x, y, out, *others, **more)
    counts = workspace[: 8 * COUNTS].view(torch.int64).tolist()
    wrong = different(out.numpy(), expected(whole, how))
    tell(list(case), wrong=wrong, written=written, once=once, counted=max(counts) <= n * n * 2)


def words(case) -> None:
    dtype, n, k, name, words_name, target = case
    rows = rows_of(name, n, k, dtype)
    x = torch.from_numpy(rows)
    one = not x.is_complex()
    y = x.mT if one else x.mT.conj().resolve_conj()
    terms = k * (1 if one else 2)
    config = multiword_launches.config_for(
        twin.formats()[words_name], multiword_launches.chunk_for(terms), terms, Target(target) if target else None,
        "a100",
    )  # fmt: skip
    found = []
    for lower in (True, False):
        out = torch.full((1, n, n), torch.nan, dtype=x.dtype)
        program, counts = words_program(x, y, out, config, DEVICE, lower, lower and one)
        workspace = program.run_by_triton(x, y, out, prepare=rubbish)
        found.append((out.numpy(), workspace[counts.offset : counts.offset + 32].view(torch.int64).tolist()))
    (lower, some), (whole, every) = found
    at = np.tri(n, dtype=bool)
    rows, columns = np.ogrid[:n, :n]
    above = (rows // 128 + 1) * 128 <= columns // 128 * 128
    written = int((~np.isnan(lower.real[0][above])).sum())
    tell(
        ["words", *case], wrong=different(lower[0][at], whole[0][at]), written=written,
        counted=all(x <= y for x, y in zip(some, every, strict=True)),
    )  # fmt: skip


def main(share: str = "0/1", device: str = "any") -> None:
    global DEVICE
    DEVICE = interpreted_device(device)
    symmetric.LEAST = 1
    part, parts = map(int, share.split("/"))
    cases = [(residues, x) for x in CASES] + [(planes, x) for x in PLANES] + [(words, x) for x in WORDS]
    cases += [(mirrors, x) for x in MIRRORS]
    for check, case in cases[part::parts]:
        check(case)
