"""The GPU kernels in Triton's interpreter against a CPU, bit for bit; tells what is wrong with each.

python -m tests.cuda.harness.interpreter residues [part/parts [any|nvidia|hopper]]
"""

import math

import numpy as np
import torch

import prismm
from prismm.cuda import integers as cuda_integers
from prismm.cuda.device import COUNTS, Device
from prismm.cuda.residues import recompute
from prismm.cuda.residues.implementation import split_program
from prismm.cuda.residues.tables import tables
from prismm.schemes.residues import Residues
from prismm.testing import HOSTILE, SPECIAL
from tests.cuda.harness.evidence import tell
from tests.cuda.harness.gluon_interpreter import interpreted_device
from tests.cuda.harness.programs import residue_program, with_stand_ins

DEVICE = Device("interpreter", False, False, 4)
USUAL = recompute.MANY_OF_ALL, recompute.SECONDS
FORCED = 1 << 20, (1.0, 1.0, 0.0, 0.0, 0.0, 0.0, math.inf)
AGAIN = [0]
"""Entries of the last product that more moduli recomputed."""
FIRST_CALL = "first call"
"""Of cases in which what takes long to compile is not there yet."""


def _batch(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x if x.ndim == 3 else x[None])


def product(a: np.ndarray, b: np.ndarray, moduli: int, target: str | None, stand_ins: bool = False) -> np.ndarray:
    """The program of a GPU, on this CPU; stand_ins: as its first calls launch it, while kernels are compiled."""
    x, y = map(_batch, (a, b))
    out = torch.zeros(max(x.shape[0], y.shape[0]), x.shape[1], y.shape[2], dtype=x.dtype)
    program = residue_program(x, y, out, moduli, target, DEVICE)
    if stand_ins:
        program = with_stand_ins(program)
    workspace = program.run_by_triton(x, y, out)
    # Counts come first; nothing has run where the case is on record.
    counters = workspace[: 8 * (COUNTS + recompute.COUNTERS)].view(torch.int64)[COUNTS:]
    AGAIN[:] = [int(counters[recompute.AGAIN_FIRST] + counters[recompute.AGAIN_LAST])]
    return out.reshape(np.matmul(a, b).shape).numpy()


def product_of_kept(a: np.ndarray, b: np.ndarray, moduli: int, target: str | None, sides: str) -> np.ndarray:
    """The same of operands that were split before, three vectors at a time."""
    x, y = map(_batch, (a, b))
    table = tables(moduli, x.device)
    kept, memories = [None, None], [torch.empty(0, dtype=torch.uint8)] * 2
    for index, (side, z) in enumerate((("left", x), ("right", y))):
        if side in sides:
            program, kept[index] = split_program(z[0], side, table, DEVICE, 3)
            memories[index] = program.run_by_triton(z[0], z[0], z[0])
    out = torch.zeros(max(x.shape[0], y.shape[0]), x.shape[1], y.shape[2], dtype=x.dtype)
    program = residue_program(x, y, out, moduli, target, DEVICE, tuple(kept))
    program.run_by_triton(x, y, out, *memories)
    return out.reshape(np.matmul(a, b).shape).numpy()


def main(share: str = "0/1", device: str = "any") -> None:
    global DEVICE
    DEVICE = interpreted_device(device)
    part, parts = map(int, share.split("/"))
    everything = {**HOSTILE, **SPECIAL}
    cases = [("float64", 15, name, None) for name in ("carries", "subnormal_operands", "near_overflow", "wide_rows")]
    cases += [("float64", 15, "infinities", "native"), ("float32", 7, "near_ties", "correctly-rounded")]
    cases += [("complex128", 15, "specials", "native")]
    cases += [("float64", 20, "uniform", "correctly-rounded"), ("float32", 7, "normal", "native")]
    cases += [("complex128", 15, name, None) for name in ("carries", "subnormal_operands", "wide_rows")]
    cases += [("complex64", 8, "normal", "correctly-rounded"), ("complex128", 15, "infinities", "native")]
    cases += [("float64", 15, "batch", "native"), ("complex64", 7, "batch of left ones", None)]
    cases += [("float64", 15, "strided row", "native"), ("float64", 15, "phi4", "native")]
    cases += [("float64", 16, "integers", None), ("float64", 15, "subnormal_results", "native")]
    # Integers of eight moduli: in one word, and of a row with one large element in two.
    cases += [("float32", 8, "normal", "native"), ("float32", 8, "wide_rows", None), ("float32", 8, "triangular", None)]
    cases += [("float32", 8, "many columns", None), ("float64", 14, "many columns", None)]
    # Operands that were prepared.
    cases += [("float64", 15, "wide_rows", "native", "right"), ("float32", 7, "near_ties", "correctly-rounded", "left")]
    cases += [("complex128", 15, "carries", "native", "left right"), ("float64", 15, "batch", "native", "right")]
    cases += [("float64", 20, "infinities", "correctly-rounded", "left right")]
    # Many uncertified entries: by magnitudes and by rows of exact values, however few they are.
    several = [("float64", 13, "phi2", "native"), ("complex64", 6, "triangular", "native")]
    # Many that are made again by more moduli, exactly and not; the last ones in several panels and matrices at a time.
    again = [("float64", 13, "phi4", "native"), ("float64", 13, "carries", "correctly-rounded")]
    again += [("float32", 7, "wide_rows", "correctly-rounded")]
    again += [("complex128", 13, "phi4", "correctly-rounded"), ("float64", 13, "panels", "correctly-rounded")]
    again += [("float64", 13, "wide batch", "native")]
    # Most entries of several rows, and of all of their columns.
    again += [("float64", 13, "rows", "native"), ("complex128", 13, "rows", "correctly-rounded")]
    first_calls = [*several, again[0], again[3], ("float64", 15, "specials", "native")]
    first_calls = [(*case, FIRST_CALL) for case in first_calls]
    for dtype, moduli, name, target, *sides in (cases + several + again + first_calls)[part::parts]:
        limits = (0, 0) if (dtype, moduli, name, target) in several + again else (64, 2)
        recompute.MANY_UNCERTIFIED, recompute.FEW_OF_STRIP = limits
        # More moduli at once, at no price: or only where they would pay, which is never at such sizes.
        stand_ins = FIRST_CALL in sides
        forced = (dtype, moduli, name, target) in again and not stand_ins
        recompute.MANY_OF_ALL, recompute.SECONDS = FORCED if forced else USUAL
        recompute.ROOM = 1 if name in ("panels", "wide batch") else 1 << 28
        if name.startswith("batch"):
            # Three products, two at a time; one operand may serve all.
            pairs = [HOSTILE["normal"](2, 9, 3, seed=seed, dtype=np.dtype(dtype)) for seed in range(3)]
            a, b = (np.stack(x) for x in zip(*pairs, strict=True))
            b = b if name == "batch" and not sides else b[:1]
        elif name == "wide batch":
            pairs = [HOSTILE["phi4"](2, 9, 3, seed=seed, dtype=np.dtype(dtype)) for seed in range(3)]
            a, b = (np.stack(x) for x in zip(*pairs, strict=True))
        elif name == "panels":
            a, b = HOSTILE["phi4"](130, 9, 129, seed=11, dtype=np.dtype(dtype))
        elif name == "rows":
            a, b = HOSTILE["phi4"](18, 9, 128 if target == "native" else 64, seed=11, dtype=np.dtype(dtype))
        elif name == "integers":  # of 64 bits, which are two numbers each
            rng = np.random.default_rng(2)
            a, b = (rng.integers(-(2**63), 2**63 - 1, shape) for shape in ((5, 9), (9, 4)))
        elif name == "many columns":  # so that one kernel measures and splits them
            a, b = HOSTILE["normal"](2, 70, 40, seed=3, dtype=np.dtype(dtype))
            b[:, 8:16] *= np.array(2.0**-20, dtype)
            b[33, 8:16] = 1.0
        elif name == "strided row":
            a, b = HOSTILE["normal"](4, 9, 3, seed=3, dtype=np.dtype(dtype))
            a, b = np.asfortranarray(a)[1:2], b.T.copy().T[:, 1:2]
        else:
            m, n = (7, 8) if sides or name in ("phi4", "phi2", "triangular") else (2, 3)
            a, b = everything[name](m, 9, n, seed=11, dtype=np.dtype(dtype))
        keywords = {"accuracy": target} if target else {}
        expected = prismm.matmul(a, b, scheme=Residues(moduli), **keywords)
        x, y = a, b
        if name == "integers":
            x, y = (z.numpy() for z in cuda_integers.widened(*map(torch.from_numpy, (a, b)), False)[:2])
        kept = sides and not stand_ins
        got = product_of_kept(x, y, moduli, target, *sides) if kept else product(x, y, moduli, target, stand_ins)
        got, expected = (x.view(x.real.dtype) for x in (got, np.ascontiguousarray(expected)))
        word = np.int64 if got.itemsize == 8 else np.int32
        same = (got.view(word) == expected.view(word)) | (np.isnan(got) & np.isnan(expected))
        repaired = {"again": AGAIN[0]} if forced else {}
        tell([dtype, moduli, name, target, *sides], wrong=int((~same).sum()), **repaired)
