"""The kernels of `Slices` in Triton's interpreter against a CPU, bit for bit; tells what is wrong with each.

python -m tests.cuda.harness.interpreter slices [part/parts|batches [any|nvidia|hopper]]
"""

import dataclasses

import numpy as np
import torch

import prismm
from prismm import Slices
from prismm.core.specials import real_operands
from prismm.cuda.device import Device
from prismm.testing import HOSTILE, SPECIAL, exact_product, ieee_specials
from tests.cuda.harness.evidence import tell
from tests.cuda.harness.gluon_interpreter import interpreted_device
from tests.cuda.harness.slices_program import slices_program

DEVICE = Device("interpreter", False, False, 4)


def product(
    a: np.ndarray, b: np.ndarray, scheme: Slices, target: str | float | None, block: tuple[int, int] | None = None,
    programs: int = 4,
) -> tuple[np.ndarray, list[int]]:  # fmt: skip
    """The program of a GPU, on this CPU; and the counts."""
    x, y = (torch.from_numpy(v if v.ndim == 3 else v[None]) for v in (a, b))
    dtype = torch.promote_types(x.dtype, y.dtype)
    out = torch.full((max(x.shape[0], y.shape[0]), x.shape[1], y.shape[2]), torch.nan, dtype=dtype)
    device = dataclasses.replace(DEVICE, programs=programs)
    program, counts = slices_program(x, y, out, scheme, target, device, block)
    workspace = program.run_by_triton(x, y, out)
    told = workspace[counts.offset : counts.offset + 32].view(torch.int64).tolist()
    return out.reshape(np.matmul(a, b).shape).numpy(), told


FAST, FULL, ROUNDED = Slices("int8", slices=7, fast=True), Slices("int8", slices=7), Slices("int8", mode="CR")
OWN = [(FAST, "float64"), (Slices("int8", slices=8), "float64"), (Slices("int8", slices=3, fast=True), "float32")]
UNUSUAL = (
    "normal", "near_ties", "near_overflow", "wide_rows", "zeros_rows_cols", "infinities", "subnormal_results", "lattice"
)  # fmt: skip
UNITS = [
    Slices("fp16", slices=6, fast=True), Slices("bf16", slices=7), Slices("fp16-fp16", slices=9, fast=True),
    Slices("int8", slices=8, bits=7), Slices("fp64", slices=3), Slices("fp64", slices=4), Slices("fp64", mode="CR"),
    Slices("int8", slices=10), Slices("fp16", slices=12, fast=True),
]  # fmt: skip
TRUNCATED = [
    Slices("int8", slices=7, fast=True, rounding="toward-zero"), Slices("int8", slices=4, rounding="toward-zero"),
    Slices("fp16", slices=7, rounding="toward-zero"), Slices("bf16", slices=3, fast=True, rounding="toward-zero"),
    Slices("fp16-fp16", slices=9, fast=True, rounding="toward-zero"), Slices("fp64", slices=3, rounding="toward-zero"),
    Slices("fp64", slices=2, fast=True, rounding="toward-zero"),
    Slices("fp16", slices=12, bits=5, rounding="toward-zero"),
]  # fmt: skip
CASES = [
    *((name, dtype, (4, 9, 5), scheme, None) for name in (*HOSTILE, *SPECIAL) for scheme, dtype in OWN),
    *((name, "float64", (3, 9, 4), ROUNDED, None) for name in (*HOSTILE, *SPECIAL)[::2]),
    *((name, "float32", (3, 9, 4), ROUNDED, None) for name in (*HOSTILE, *SPECIAL)[1::2]),
    ("normal", "float64", (3, 9, 4), FULL, "correctly-rounded"),
    ("near_ties", "float64", (3, 9, 4), FAST, "correctly-rounded"),
    ("near_overflow", "float64", (3, 9, 4), FULL, "fast"),
    ("infinities", "float32", (3, 9, 4), Slices("int8", slices=4), "fast"),
    *(("normal", "float64", (3, 9, 4), Slices("int8", slices=d, fast=d % 2 == 0), None) for d in (1, 2, 4, 5, 6)),
    # Longer than a tile of the split and of the product; more blocks than one.
    ("normal", "float64", (3, 1300, 4), FAST, None),
    ("wide_rows", "float32", (130, 140, 131), Slices("int8", slices=2), None),
    # Other units, and bits; more slices than the join has limbs of for eight.
    *((name, "float64", (3, 20, 4), scheme, None) for name in UNUSUAL for scheme in UNITS),
    *((name, "float32", (3, 20, 4), Slices("fp16", slices=3, fast=True), None) for name in UNUSUAL[::2]),
    *((name, "float32", (3, 20, 4), Slices("fp64", mode="CR"), None) for name in UNUSUAL[1::2]),
    *((name, "complex128", (3, 11, 4), scheme, None) for name in UNUSUAL[::3] for scheme in (FAST, UNITS[0], UNITS[4])),
    *((name, "complex64", (3, 11, 4), Slices("int8", slices=3, fast=True), None) for name in UNUSUAL[1::3]),
    ("normal", "complex128", (3, 9, 4), ROUNDED, None),
    *(
        (name, "complex128", (3, 9, 4), scheme, None)
        for name in ("infinities", "near_overflow")
        for scheme in UNITS[4:5]
    ),
    # Bits whose sums are stored in 16 and in 32, and that leave a unit four terms at a time.
    ("near_ties", "float64", (3, 4, 4), Slices("fp16", slices=4, bits=12), None),
    ("near_ties", "float64", (3, 16, 4), Slices("fp16", slices=4, bits=11), None),
    ("wide_rows", "float64", (3, 30, 4), Slices("fp64", slices=3, bits=16), None),
    ("wide_rows", "float64", (3, 8, 4), Slices("fp64", slices=3, bits=26), None),
    ("normal", "float64", (3, 30, 4), Slices("fp64", slices=5, bits=13, fast=True), None),
    # Toward zero.
    *((name, "float64", (4, 9, 5), TRUNCATED[x % 2], None) for x, name in enumerate((*HOSTILE, *SPECIAL))),
    *((name, "float64", (3, 20, 4), scheme, None) for name in UNUSUAL for scheme in TRUNCATED[2:]),
    *((name, "float32", (3, 20, 4), TRUNCATED[x], None) for x, name in enumerate(UNUSUAL)),
    *((name, "complex128", (3, 11, 4), scheme, None) for name in UNUSUAL[::3] for scheme in TRUNCATED[:6:2]),
    *(
        (name, dtype, (3, 9, 4), Slices(unit, mode="CR", rounding="toward-zero"), None)
        for name, dtype, unit in (
            ("normal", "float64", "int8"),
            ("near_ties", "float32", "fp16"),
            ("wide_rows", "complex64", "int8"),
            ("infinities", "float64", "fp64"),
        )
    ),
    ("normal", "float64", (3, 1300, 4), TRUNCATED[2], None),
    ("wide_rows", "float32", (130, 140, 131), Slices("int8", slices=2, rounding="toward-zero"), None),
    ("near_ties", "float64", (3, 4, 4), Slices("fp16", slices=4, bits=11, rounding="toward-zero"), None),
    ("near_ties", "float64", (3, 16, 4), Slices("fp16", slices=4, bits=10, rounding="toward-zero"), None),
    ("wide_rows", "float64", (3, 300, 4), Slices("fp16", slices=5, bits=8, rounding="toward-zero"), None),
    ("wide_rows", "float64", (3, 2, 4), Slices("fp64", slices=3, bits=26, rounding="toward-zero"), None),
    # A unit's sums end before the inner dimension, which is cut in blocks besides.
    ("normal", "float64", (3, 1300, 4), Slices("fp16", slices=7, fast=True), None),
    ("normal", "float64", (3, 1500, 4), Slices("fp16", slices=6, bits=10), None),
    ("wide_rows", "float64", (70, 40, 70), Slices("fp64", slices=3, fast=True), None),
]


TARGETS = [
    *((name, "float64", (3, 20, 4), FAST, "native") for name in ("normal", "wide_rows", "zeros_rows_cols")),
    *(
        (name, "float32", (3, 20, 4), Slices("int8", slices=2, fast=True), 1e-3)
        for name in ("cancelling", "triangular")
    ),
    ("overflow_threshold", "float64", (3, 9, 4), FAST, "native"),
    ("subnormal_results", "float64", (3, 9, 4), FULL, 1e-12),
    ("normal", "float64", (9, 300, 8), Slices("int8", slices=4), 1e-8),
    ("infinities", "float64", (5, 60, 7), FULL, "native"),
    *((name, "float64", (3, 20, 4), Slices("fp16", slices=6, fast=True), "native") for name in ("normal", "wide_rows")),
    *((name, "float64", (3, 20, 4), Slices("fp64", slices=3), 1e-12) for name in ("cancelling", "normal")),
    ("normal", "complex128", (3, 20, 4), Slices("fp64", slices=2), "native"),
    *((name, "float64", (3, 20, 4), TRUNCATED[0], "native") for name in ("normal", "wide_rows", "overflow_threshold")),
    *((name, "float64", (9, 70, 8), TRUNCATED[5], 1e-12) for name in ("cancelling", "normal")),
    ("normal", "float64", (9, 300, 8), TRUNCATED[1], 1e-6),
    ("triangular", "float32", (3, 20, 4), Slices("fp16", slices=2, fast=True, rounding="toward-zero"), 1e-3),
    ("infinities", "complex64", (3, 20, 4), Slices("int8", slices=4, rounding="toward-zero"), "native"),
    ("cancelling", "complex64", (3, 20, 4), Slices("int8", slices=3, fast=True), "native"),
]
"""Entries that are certified or repaired, here against exact arithmetic: which of them are is a GPU's own choice."""


def differing(got: np.ndarray, expected: np.ndarray) -> int:
    """Entries whose bits are others; NaNs are alike."""
    if np.iscomplexobj(got):
        got, expected = (np.ascontiguousarray(x).view(x.real.dtype) for x in (got, expected))
    word = np.int64 if got.itemsize == 8 else np.int32
    return int((~((got.view(word) == expected.view(word)) | (np.isnan(got) & np.isnan(expected)))).sum())


def beyond(a: np.ndarray, b: np.ndarray, c: np.ndarray, target: str | float) -> int:
    """Entries that do not meet their target; of complex ones, parts."""
    if np.iscomplexobj(c):
        parts = np.ascontiguousarray(c.real), np.ascontiguousarray(c.imag)
        return sum(beyond(*real_operands(a, b, index), part, target) for index, part in enumerate(parts))
    u, eta = (2.0**-53, 5e-324) if c.itemsize == 8 else (2.0**-24, 2.0**-149)
    special = ieee_specials(a, b)
    plain = np.isfinite(special)
    wrong = int((~plain & ~((c == special) | (np.isnan(c) & np.isnan(special)))).sum())
    rows, columns = (np.isfinite(x).all(axis) for x, axis in ((a, 1), (b, 0)))
    exact = exact_product(a[rows], b[:, columns])
    slack = a.shape[1] * u if target == "native" else float(target)
    allowed = slack * exact.magnitude("up") + u * np.abs(exact.rounded().astype(np.float64)) * (target != "native")
    lost = eta * (a.shape[1] if target == "native" else 1)
    own = c[np.ix_(rows, columns)]
    # Where the exact value rounds to infinity the entry is infinite.
    return wrong + int((~exact.within(own, allowed + lost) & (own != exact.rounded(c.dtype))).sum())


def main(share: str = "0/1", device: str = "any") -> None:
    global DEVICE
    DEVICE = interpreted_device(device)
    if share == "batches":
        return batches()
    everything = {**HOSTILE, **SPECIAL}
    part, parts = map(int, share.split("/"))
    for name, dtype, shape, scheme, target in (CASES + TARGETS)[part::parts]:
        a, b = everything[name](*shape, seed=11, dtype=np.dtype(dtype))
        wrong = 0
        for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b))):
            got, counts = product(x, y, scheme, target)
            if (name, dtype, shape, scheme, target) in TARGETS:
                wrong += beyond(a, b, got, target)
            else:
                keywords = {"accuracy": target} if target else {}
                wrong += differing(got, prismm.matmul(a, b, scheme=scheme, **keywords))
        tell([name, dtype, str(scheme), target], wrong=wrong, counts=counts)


def batches() -> None:
    """Batches, one operand for all of it, in blocks of rows and columns; k cut so that it fills the programs."""
    pairs = [HOSTILE["normal"](5, 600, 6, seed=seed) for seed in range(3)]
    a, b = (np.stack(x) for x in zip(*pairs, strict=True))
    for x, y in ((a, b), (a, b[:1]), (a[:1], b)):
        got, counts = product(x, y, FAST, None, (2, 4), 64)
        wrong = differing(got, prismm.matmul(x, y, scheme=FAST))
        tell(["batch", x.shape, y.shape], wrong=wrong, counts=counts)
