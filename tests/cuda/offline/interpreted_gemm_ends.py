"""gemm's launches in Triton's interpreter at the ends of float32's range, against exact arithmetic; tells what is
wrong with each.

python -m tests.cuda.harness.interpreter gemm_ends float32|complex64
"""

import dataclasses
import itertools

import numpy as np

from prismm.schemes.multiword import Words
from prismm.schemes.native import Native
from prismm.schemes.scaled_half import ScaledHalf
from prismm.schemes.tile_int8 import TileInt8
from prismm.testing import exact_gemm
from tests.cuda.harness.evidence import tell
from tests.cuda.harness.gluon_interpreter import interpreted_device
from tests.cuda.offline import interpreted_gemm
from tests.edges import drawn, factors, thought_out


def in_float32(a, b):
    """A product as cuBLAS makes it, overflows on the way included: float32 sums of float32 products, one by one."""
    total = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for h in range(a.shape[1]):
        total += a[:, h : h + 1] * b[h : h + 1]
    return total


def main(dtype: str) -> None:
    """Sums at the ends of float32's range: which entries overflow, and what the target allows, of sums from values;
    which overflow of sums that are asked for nothing else.
    """
    interpreted_gemm.DEVICE = dataclasses.replace(interpreted_device("hopper"), sm90=False)
    for which, turn in itertools.product(("top", "low"), range(2)):
        a, b, c = drawn(which, np.random.default_rng(turn), dtype, 4, 6, 6) if turn else thought_out(which, dtype)
        with np.errstate(all="ignore"):
            product = in_float32(a, b)
        size = np.abs(a).astype(float) @ np.abs(b).astype(float)
        terms = a.shape[1] * (2 if np.iscomplexobj(a) else 1) + 3
        # Of all pairs the ones that decide; each entry that is summed exactly takes the interpreter long.
        ways = [(0, "native", pair) for pair in factors(which)[::3][: 2 - turn]]
        if which == "top" and not turn:
            ways += [(7, "fast", pair) for pair in ((1.0, 1.0), (2.0**60, -1.0))]
            ways += [(x, "fast", (16.0, -1.0)) for x in (ScaledHalf(), Words.tf32(), TileInt8())]
            if dtype == "float32":
                ways += [(Native("float64"), "native", (16.0, -1.0))]
        for scheme, target, (alpha, beta) in ways:
            exact = exact_gemm(alpha, a, b, beta, c)
            right = exact.rounded(dtype)
            whole = abs(alpha) * size + abs(beta) * np.abs(c).astype(float)
            allowed = terms * (2.0**-24 * whole * (1 + 1e-10) + 2.0**-149)
            got = interpreted_gemm.made(a, b, c, alpha, beta, scheme, target, product=product)
            parts = [np.ascontiguousarray(x).view(x.real.dtype) for x in (got, right)]
            infinite = [np.where(np.isfinite(x), 0, x) for x in parts]  # NaN, too, is wrong
            wrong = int((infinite[0] != infinite[1]).sum())
            if target == "native":
                clean = np.isfinite(right)
                wrong += int((exact.error(np.where(clean, got, 0))[clean] > allowed[clean]).sum())
            case = [which, turn, dtype, str(scheme), target, str(alpha), str(beta)]
            tell(case, wrong=wrong)
