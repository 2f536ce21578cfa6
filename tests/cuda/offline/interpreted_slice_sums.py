"""gemm of slices in Triton's interpreter: a CPU's bits where they are rounded correctly, else the target; prints one
line of JSON a case.

python -m tests.cuda.harness.interpreter slice_sums [part/parts [any|nvidia|hopper]]
"""

import numpy as np
import torch

import prismm
from prismm import Slices
from prismm.cuda.device import Device
from prismm.cuda.gemm import sum as cuda_gemm
from prismm.testing import exact_gemm
from tests.cuda.harness.evidence import tell
from tests.cuda.harness.gluon_interpreter import interpreted_device
from tests.cuda.harness.slices_program import slices_sum_program
from tests.cuda.offline.interpreted_gemm import operands, same_bits

DEVICE = Device("interpreter", False, False, 4)


def made(a, b, c, alpha, beta, scheme, target, in_place=False, block=None):
    """The program of a GPU, on this CPU, of matrices or of a batch."""
    stacked = a.ndim == 3
    x, y = (torch.from_numpy(np.ascontiguousarray(z if stacked else z[None])) for z in (a, b))
    z = torch.from_numpy(c.copy()) if c is not None else None
    dtype = torch.promote_types(x.dtype, y.dtype)
    sum_ = cuda_gemm.Sum(complex(alpha), complex(beta), z)
    shape = max(x.shape[0], y.shape[0]), x.shape[1], y.shape[2]
    out = z.reshape(shape) if in_place else torch.full(shape, torch.nan, dtype=dtype)
    third = sum_.broadcast(shape, dtype)
    program = slices_sum_program(x, y, out, third, sum_, scheme, target, DEVICE, block)
    kept = [torch.empty(0, dtype=torch.uint8)] * 2 + [third if third is not None else out]
    program.run_by_triton(x, y, out, *kept, factors=sum_.patterns)
    return (out if stacked else out[0]).numpy()


FAST, FULL, ROUNDED = Slices("int8", slices=7, fast=True), Slices("int8", slices=7), Slices("int8", mode="CR")
HALVES, DOUBLES = Slices("fp16", slices=7), Slices("fp64", slices=3, rounding="toward-zero")
CUT = Slices("int8", slices=8, fast=True, rounding="toward-zero")
SINGLE = Slices("int8", slices=4, fast=True)
EXACT = "correctly-rounded"
CASES = [
    ("normal", "float64", ROUNDED, None, 1.0, -1.0), ("wide_rows", "float64", ROUNDED, None, -0.7, 1.3),
    ("near_ties", "float64", ROUNDED, None, 1.0, 1e-9), ("cancelling", "float64", FULL, EXACT, 0.3, -0.3),
    ("near_overflow", "float64", CUT, EXACT, 3.0, 2.0**900), ("infinities", "float64", ROUNDED, None, -2.0, 3.0),
    ("subnormal_operands", "float64", HALVES, EXACT, 2.0**60, 1e-300), ("carries", "float64", DOUBLES, EXACT, 0.1, 0.7),
    ("normal", "float32", ROUNDED, None, 0.1, 0.7), ("near_ties", "float32", SINGLE, EXACT, 0.5, 1e-8),
    ("near_overflow", "float32", ROUNDED, None, 1e10, 1.0), ("zeros_rows_cols", "float64", FAST, EXACT, 2.0, -1.0),
    ("normal", "complex128", ROUNDED, None, 1 + 2j, 0.5 - 1j), ("infinities", "complex128", FULL, EXACT, 2.0, 1j),
    ("cancelling", "complex64", CUT, EXACT, -1j, 0.3), ("near_ties", "complex128", DOUBLES, EXACT, 0.1j, 2.0),
    ("normal", "float64", FAST, EXACT, 5e-324, 1.0), ("phi2", "float64", HALVES, EXACT, 0.7, 0.0),
    ("subnormal_results", "float64", CUT, EXACT, 1e-3, 1.0),
    ("wide_rows_and_columns", "float64", FAST, EXACT, 1.0, -1.0),
]  # fmt: skip
TARGETS = [
    ("normal", "float64", FAST, "native", 1.0, -1.0), ("wide_rows", "float64", FULL, "native", -0.7, 1.3),
    ("near_overflow", "float64", FAST, "native", 3.0, 2.0**900), ("infinities", "float64", FAST, "native", -2.0, 3.0),
    ("normal", "float32", SINGLE, "native", 0.1, 0.7), ("cancelling", "float32", SINGLE, 1e-6, 1.0, -1.0),
    ("normal", "float64", Slices("int8", slices=4), 1e-8, 2.0**40, 0.3), ("phi2", "float64", CUT, "native", 0.7, 1.3),
    ("normal", "complex128", FAST, "native", 1 + 2j, 0.5), ("phi2", "complex64", SINGLE, "native", -1j, 1 + 1j),
    ("overflow_threshold", "float64", DOUBLES, "native", 0.5, 1.0),
]  # fmt: skip


def beyond(a, b, c, alpha, beta, got, target):
    """Entries that do not meet gemm's target, or are not what IEEE's sum gives."""
    rounded = prismm.gemm(a, b, c, alpha=alpha, beta=beta, accuracy="correctly-rounded")
    finite = [np.where(np.isfinite(x), x, 0) for x in (a, b, c)]
    exact = exact_gemm(alpha, *finite[:2], beta, finite[2])
    clean = np.isfinite(rounded)
    result = prismm.formats.format_of(got.dtype)
    terms = a.shape[1] * (2 if np.iscomplexobj(a) else 1) + 3
    u, eta = result.unit_roundoff, result.smallest_subnormal
    with np.errstate(over="ignore"):
        size = abs(alpha) * (np.abs(finite[0]).astype(float) @ np.abs(finite[1]).astype(float))
        size = (size + abs(beta) * np.abs(finite[2]).astype(float)) * (1 + 1e-10)
        value = np.abs(np.where(clean, rounded, 0).astype(complex))
        allowed = terms * (u * size + eta) if target == "native" else target * size + u * value + eta
    wrong = int((exact.error(np.where(clean, got, 0))[clean] > allowed[clean]).sum())
    return wrong + same_bits(got[~clean], rounded[~clean])


def main(share: str = "0/1", device: str = "any") -> None:
    global DEVICE
    DEVICE = interpreted_device(device)
    part, parts = map(int, share.split("/"))
    for name, dtype, scheme, target, alpha, beta in (CASES + TARGETS)[part::parts]:
        a, b, c = operands(name, dtype, *((9, 70, 8) if name == "normal" else ()))
        for in_place in (False, True):
            if in_place and (np.iscomplexobj(a) or beta == 0):
                continue
            got = made(a, b, c if beta else None, alpha, beta, scheme, target, in_place)
            if target in (None, EXACT):
                wrong = same_bits(
                    got, prismm.gemm(a, b, c, alpha=alpha, beta=beta, scheme=scheme, accuracy="correctly-rounded")
                )
            else:
                wrong = beyond(a, b, c, alpha, beta, got, target)
            told = [name, dtype, str(scheme), target, str(alpha), str(beta), in_place]
            tell(told, wrong=wrong)
    if part == 0:
        a, b, c = (np.stack(x) for x in zip(*(operands("phi2", "float64", 5, 9, 6) for _ in range(3)), strict=True))
        a, c = a * np.array([1.0, -3.0, 0.7])[:, None, None], c * np.array([1.0, 0.3, 2.0])[:, None, None]
        for x, y in ((a, b), (a, b[:1])):
            got = made(x, y, c, 0.3, -0.7, FAST, EXACT, block=(2, 4))
            expected = prismm.gemm(x, np.broadcast_to(y, b.shape), c, alpha=0.3, beta=-0.7, accuracy=EXACT)
            tell(["batch", x.shape, y.shape], wrong=same_bits(got, expected))
