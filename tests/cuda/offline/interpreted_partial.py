"""The steps of partial products in Triton's interpreter: integers and digits against those of a CPU, and what the join
certifies against a product's bits; prints one line of JSON a case.

python -m tests.cuda.harness.interpreter partial [any|nvidia|hopper]
"""

import contextlib

import numpy as np
import torch

import prismm
from prismm.core.accuracy import parse_target
from prismm.core.moduli import coprime_moduli
from prismm.core.outcome import real_parts
from prismm.cpu.partial import more, scales
from prismm.cpu.partial.setting import Setting
from prismm.cuda.partial import more as again_steps
from prismm.cuda.partial import steps
from prismm.cuda.partial.more import More
from prismm.cuda.partial.steps import COUNTS, LARGEST, NORM1, NORM2, RESIDUAL
from prismm.formats import FP32, FP64
from prismm.schemes.residues import Residues
from prismm.testing import HOSTILE
from tests.cuda.harness.evidence import tell
from tests.cuda.harness.gluon_interpreter import interpreted_device
from tests.cuda.harness.partial import every_step, every_step_again, work_of

CASES = [
    ("float64", 15, "normal", "reproducible"), ("float64", 15, "wide_rows", "reproducible"),
    ("float64", 15, "subnormal_operands", "reproducible"), ("float64", 19, "normal", "correctly-rounded"),
    ("float32", 8, "normal", "reproducible"), ("complex128", 15, "carries", "reproducible"),
    ("float64", 15, "phi4", "reproducible"), ("float32", 8, "shadowed", "reproducible"),
    ("complex128", 15, "lattice_wide", "reproducible"), ("float64", 15, "zeros_rows_cols", "reproducible"),
    ("float64", 15, "subnormal_results", "reproducible"), ("float64", 15, "cancelling", "reproducible"),
    ("complex64", 8, "normal", "correctly-rounded"), ("float64", 12, "phi4", "correctly-rounded"),
    ("float64", 10, "subnormal_results", "correctly-rounded"), ("complex128", 12, "lattice_wide", "correctly-rounded"),
    ("float32", 8, "phi4", "correctly-rounded"), ("float64", 12, "cancelling", "correctly-rounded"),
    ("float64", 12, "phi4", "correctly-rounded", (60, 61)), ("complex64", 8, "phi4", "correctly-rounded", (30, 28)),
    ("float32", 8, "phi4", "correctly-rounded", (28, 40)), ("float64", 12, "normal", "correctly-rounded", (57, 80)),
]  # fmt: skip


def differing(a: np.ndarray, b: np.ndarray, moduli: int, target: str, device) -> dict[str, int]:
    """How many numbers differ: of each side's integers, of digits, and of certified entries; and certified entries."""
    k, cut = a.shape[1], a.shape[1] // 3
    pieces = [(a[:, :cut], b[:cut]), (a[:, cut:], b[cut:])]
    tensors = [tuple(torch.from_numpy(np.ascontiguousarray(x)) for x in piece) for piece in pieces]
    work = work_of(tensors[0][0].dtype, k, moduli, target, device)
    out, flags, statistics, total, digits = every_step(tensors, work)
    goal = parse_target("native" if target == "reproducible" else target)
    double = a.dtype in (np.float64, np.complex128)
    setting = Setting(moduli, k, a.dtype.kind == "c", FP64 if double else FP32, goal)
    wrong, shifts = 0, []
    for found, side, index in zip(statistics, ("left", "right"), (0, 1), strict=True):
        own = found.numpy()
        parts = [setting.real_operand(piece[index]) for piece in pieces]
        extent = np.maximum(*(scales.extents(x, side) for x in parts))
        exponent = scales.exponents(extent)
        norm = sum(scales.norms(x, side, exponent, setting) for x in parts)
        # The exponent alone is promised of the pattern.
        above = np.frexp(own[LARGEST].view(np.float64))[1]
        wrong += int((np.where(own[LARGEST] == 0, 0, above) != exponent).sum())
        rows = own[[NORM2, NORM1, *range(COUNTS, COUNTS + setting.levels)]]
        wrong += int((rows != norm).sum())
        wrong += int((own[RESIDUAL] < 0).sum())
        shifts.append(-exponent)
    primes = np.tile(np.array(coprime_moduli(256, moduli)), work.groups)[:, None, None]
    summed = digits.numpy().astype(np.int64).sum(0).reshape(-1, *total.shape[2:]) % primes
    wrong_digits = int((summed != total.numpy().reshape(summed.shape)).sum())
    keywords = {"accuracy": "correctly-rounded"} if target == "correctly-rounded" else {"accuracy": "native"}
    expected = np.ascontiguousarray(prismm.matmul(a, b, scheme=Residues(moduli), **keywords))
    got, expected = (x.view(x.real.dtype) for x in (out.numpy(), expected))
    tile, height, width = work.strip
    word, wrong_bits, certified = flags.numpy(), 0, 0
    for i in range(got.shape[0]):
        for j in range(got.shape[1]):
            part, column = (j % 2, j // 2) if work.parts == 2 else (0, j)
            if not word[part, i // height, column // width] >> (i % height // tile) & 1:
                certified += 1
                wrong_bits += int(got[i, j].tobytes() != expected[i, j].tobytes())
    told = {"wrong": wrong, "digits": wrong_digits, "bits": wrong_bits, "certified": certified}
    expected = torch.from_numpy(np.ascontiguousarray(prismm.matmul(a, b, scheme=Residues(moduli), **keywords)))
    return told | again(tensors, (a, b), statistics, setting, work, shifts, total, expected)


def again(
    tensors: list, whole: tuple, statistics: list, setting: Setting, work, shifts: list, total, expected
) -> dict[str, int]:  # fmt: skip
    """What has no certificate, entry by entry, by magnitudes and by more moduli: digits that differ from a CPU's,
    entries that are decided, and of these that are wrong. For correct rounding all entries are made so, too.
    """
    a, b = whole
    counts = {"again_digits": 0, "again_bits": 0, "again_proved": 0, "pending": 0}
    for everything in (False, True) if work.measure else (False,):
        out = torch.from_numpy(np.full(expected.shape, np.nan, expected.numpy().dtype))
        pending = [x.clone() for x in steps.finish(total, *statistics, out, work)]
        if everything:
            pending = [torch.ones_like(x) for x in pending]
            out.fill_(complex("nan+nanj") if work.parts == 2 else np.nan)
        else:
            counts["pending"] = sum(int(x.sum()) for x in pending)
        for part in range(work.parts):
            digits = every_step_again(tensors, statistics, out, pending[part], work, part)
            system = More(work, part)
            asked = more.Again(
                part, np.arange(a.shape[0]), np.arange(b.shape[1]),
                tuple(shift + bits for shift, bits in zip(shifts, system.bits, strict=True)), system.moduli,
                system.bits,
            )  # fmt: skip
            ((_, answer),) = more.answers(setting.real_operand(a), setting.real_operand(b), asked, setting)
            primes = np.array(coprime_moduli(256, system.moduli))[:, None, None]
            counts["again_digits"] += int(((answer.digits.astype(np.int64) - digits.numpy()[0]) % primes != 0).sum())
            decided = pending[part].numpy() == 0
            got, right = (np.ascontiguousarray(real_parts(x.numpy())[part]) for x in (out, expected))
            kind = f"i{got.itemsize}"
            counts["again_bits"] += int((got.view(kind) != right.view(kind))[decided].sum())
            if everything:
                counts["again_proved"] += int(decided.sum())
                counts["again_bits"] += int((~np.isnan(got))[~decided].sum())
    return counts


def main(device: str = "any") -> None:
    for dtype, moduli, name, target, *bits in CASES:
        a, b = HOSTILE[name](5, 12, 4, seed=3, dtype=np.dtype(dtype))
        with fewer(bits):
            found = differing(a, b, moduli, target, interpreted_device(device))
        tell([dtype, moduli, name, target, *bits], **found)


@contextlib.contextmanager
def fewer(bits: list[tuple[int, int]]):
    """Fewer bits than the moduli hold leave bounds to decide; what was made of other bits is forgotten."""
    whole, kept = More.bits, (again_steps._splitting, again_steps._joining)
    for made in kept:
        made.cache_clear()
    More.bits = bits[0] if bits else whole
    try:
        yield
    finally:
        More.bits = whole
        for made in kept:
            made.cache_clear()
