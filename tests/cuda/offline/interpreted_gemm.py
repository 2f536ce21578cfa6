"""gemm's launches in Triton's interpreter against a CPU, bit for bit; tells what is wrong with each.

python -m tests.cuda.harness.interpreter gemm [part/parts [any|nvidia|hopper]]
"""

import numpy as np
import torch

import prismm
from prismm.cuda.device import COUNTS, Device
from prismm.cuda.gemm import sum as cuda_gemm
from prismm.cuda.residues import recompute
from prismm.schemes.residues import Residues
from prismm.testing import HOSTILE, SPECIAL, exact_gemm
from tests.cuda.harness.evidence import tell
from tests.cuda.harness.gluon_interpreter import interpreted_device
from tests.cuda.harness.programs import beside_cublas, sum_program, with_stand_ins

DEVICE = Device("interpreter", False, False, 4)
EVERYTHING = {**HOSTILE, **SPECIAL}
AGAIN = [0]
"""Entries of the last sum that more moduli recomputed."""


def made(a, b, c, alpha, beta, scheme, target, in_place=False, product=None, stand_ins=False):
    """The program of a GPU, on this CPU, by a scheme or so many moduli; of cuBLAS's products for 0. product: what it
    makes of A and B there, None for one that meets the target; stand_ins: as first calls launch it.
    """
    x, y = (torch.from_numpy(np.ascontiguousarray(z))[None] for z in (a, b))
    z = torch.from_numpy(c.copy() if in_place else c) if c is not None else None
    dtype = torch.from_numpy(np.empty(0, np.result_type(a, b, *([c] if c is not None else [])))).dtype
    sum_ = cuda_gemm.Sum(complex(alpha), complex(beta), z)
    out = z[None] if in_place else torch.full((1, x.shape[1], y.shape[2]), torch.nan, dtype=dtype)
    c_view = sum_.broadcast(tuple(out.shape), dtype)
    program, products = sum_program(x, y, out, c_view, sum_, scheme, target, DEVICE)
    if stand_ins:
        program = with_stand_ins(program)
    kept = [torch.empty(0, dtype=torch.uint8)] * 2 + [c_view if c_view is not None else out]
    workspace = None
    if products is not None and scheme == 0:
        # cuBLAS's part: a product that meets the target.
        kind = out.numpy().dtype
        if product is None:
            product = prismm.matmul(a.astype(kind), b.astype(kind), accuracy="correctly-rounded")
        own = torch.from_numpy(product)
        workspace = lambda memory: memory[products.offset :].view(out.dtype)[: own.numel()].copy_(own.reshape(-1))  # noqa: E731
    memory = beside_cublas(program).run_by_triton(x, y, out, *kept, factors=sum_.patterns, prepare=workspace)
    counters = memory[: 8 * (COUNTS + recompute.COUNTERS)].view(torch.int64)[COUNTS:]
    AGAIN[:] = [int(counters[recompute.AGAIN_FIRST] + counters[recompute.AGAIN_LAST]) if products is None else 0]
    return out[0].numpy()


def same_bits(x, y):
    """How many real numbers differ."""
    x, y = (np.ascontiguousarray(z) for z in (x, y))
    x, y = x.view(x.real.dtype), y.view(y.real.dtype)
    word = np.int64 if x.itemsize == 8 else np.int32
    return int((~((x.view(word) == y.view(word)) | (np.isnan(x) & np.isnan(y)))).sum())


def operands(name, dtype, m=5, k=9, n=6):
    """A, B and C of a generator."""
    a, b = EVERYTHING[name](m, k, n, seed=11, dtype=np.dtype(dtype))
    c = EVERYTHING[name](m, n, 2, seed=12, dtype=np.dtype(dtype))[0]
    return a, b, c


def main(share: str = "0/1", device: str = "any") -> None:
    global DEVICE
    DEVICE = interpreted_device(device)
    part, parts = map(int, share.split("/"))
    cases = [
        ("normal", "float64", 15, "native", 1.0, -1.0), ("wide_rows", "float64", 15, "native", -0.7, 1.3),
        ("normal", "float64", 15, "native", 0.1, 0.0), ("cancelling", "float64", 20, "correctly-rounded", 0.3, -0.3),
        ("near_overflow", "float64", 15, "native", 3.0, 2.0**900), ("infinities", "float64", 15, "native", -2.0, 3.0),
        ("subnormal_operands", "float64", 15, "native", 2.0**60, 1e-300), ("carries", "float64", 15, None, 0.1, 0.7),
        ("near_overflow", "float64", 15, None, 0.1, 0.7), ("normal", "float32", 7, "native", 0.1, 0.7),
        ("near_ties", "float32", 7, "correctly-rounded", 0.5, 1e-8), ("infinities", "float32", 7, "native", -2.0, 0.0),
        ("normal", "complex128", 15, "native", 1 + 2j, 0.5 - 1j), ("infinities", "complex128", 15, "native", 2.0, 1j),
        ("cancelling", "complex64", 12, "correctly-rounded", -1j, 0.3), ("carries", "complex128", 15, None, 0.1j, 2.0),
        ("normal", "float64", 20, "correctly-rounded", 5e-324, 1.0), ("normal", "float64", 15, "native", 0.0, 0.3),
        ("wide_rows_and_columns", "float64", 15, "native", 1e-10, -1.0),
        ("near_overflow", "float32", 7, "native", 1e10, 1.0), ("phi2", "float64", 12, "native", 0.7, 1.3),
        ("phi2", "complex128", 12, "native", 1 + 2j, 0.5), ("near_ties", "float64", 15, "correctly-rounded", 1.0, 1e-9),
    ]  # fmt: skip
    for name, dtype, moduli, target, alpha, beta in cases[part::parts]:
        # Enough terms and entries of each kind that some are certified by |a||b| alone.
        a, b, c = operands(name, dtype, *((12, 70, 14) if name == "normal" else ()))
        for in_place in (False, True):
            if in_place and (np.iscomplexobj(a) or beta == 0):
                continue
            got = made(a, b, c if beta else None, alpha, beta, moduli, target, in_place)
            keywords = {"accuracy": target} if target else {}
            if target == "native":
                keywords["reproducible"] = True
            expected = prismm.gemm(a, b, c, alpha=alpha, beta=beta, scheme=Residues(moduli), **keywords)
            wrong = same_bits(got, expected)
            if name in ("phi2", "wide_rows"):
                first = made(a, b, c, alpha, beta, moduli, target, in_place, stand_ins=True)
                wrong += same_bits(first, expected)
            tell([name, dtype, moduli, target, str(alpha), str(beta), in_place], wrong=wrong)
    for name, dtype, alpha, beta in (
        ("normal", "float64", -0.7, 1.3), ("normal", "float32", 3.0, -1.0), ("infinities", "float64", 2.0, -1.0),
        ("near_overflow", "float64", 0.25, 1.0), ("subnormal_operands", "float32", 16.0, 1.0),
        ("normal", "complex128", 2.0, 1j), ("infinities", "complex64", -1.0, 2.0), ("normal", "float64", 0.0, 0.3),
        ("near_ties", "float32", 1.0, 1.0), ("cancelling", "float64", 1.0, -1.0),
    )[part::parts]:  # fmt: skip
        a, b, c = operands(name, dtype)
        got = made(a, b, c, alpha, beta, 0, "native")
        finite = [np.where(np.isfinite(x), x, 0) for x in (a, b, c)]
        exact = exact_gemm(alpha, *finite[:2], beta, finite[2])
        special = ~np.isfinite(prismm.gemm(a, b, c, alpha=alpha, beta=beta))
        clean = np.isfinite(exact.rounded(got.dtype)) & ~special
        # AB itself was rounded to native accuracy: K·u·|a||b| and K·η; the sum's own rounding comes on top.
        result = prismm.formats.format_of(got.dtype)
        terms = a.shape[1] * (2 if np.iscomplexobj(a) else 1)
        size = abs(alpha) * (np.abs(finite[0]).astype(float) @ np.abs(finite[1]).astype(float))
        size = size + abs(beta) * np.abs(finite[2]).astype(float)
        allowed = (terms + 3) * (result.unit_roundoff * size * (1 + 1e-10) + result.smallest_subnormal)
        wrong = int((exact.error(np.where(clean, got, 0))[clean] > allowed[clean]).sum())
        wrong += same_bits(got[special], prismm.gemm(a, b, c, alpha=alpha, beta=beta)[special])
        tell(["values", name, dtype, str(alpha), str(beta)], wrong=wrong)
