"""gemm of slices' own value in Triton's interpreter against a CPU, bit for bit; tells what is wrong with each.

python -m tests.cuda.harness.interpreter own_sums [part/parts [any|nvidia|hopper]]
"""

import numpy as np

import prismm
from prismm import Slices
from tests.cuda.harness.evidence import tell
from tests.cuda.harness.gluon_interpreter import interpreted_device
from tests.cuda.offline import interpreted_slice_sums
from tests.cuda.offline.interpreted_adaptive import EVERYTHING, adaptive
from tests.cuda.offline.interpreted_gemm import same_bits
from tests.cuda.offline.interpreted_slice_sums import made

SCHEMES = [
    Slices("int8", slices=7, fast=True), Slices("int8", slices=7), Slices("fp16", slices=5, rounding="toward-zero"),
    Slices("fp64", slices=4), adaptive("int8", 7, fast=True), adaptive("fp64", 3), adaptive("int8", 11),
    adaptive("fp16", 5, rounding="toward-zero"),
]  # fmt: skip
NAMES = (
    "normal", "wide_rows", "cancelling", "near_ties", "near_overflow", "overflow_threshold", "infinities", "gaps",
    "subnormal_operands", "subnormal_results", "zeros_rows_cols",
)  # fmt: skip
FACTORS = [(1.0, 1.0), (-0.7, 1.3), (2.0**40, 0.0), (5e-324, 1.0)]
CASES = [
    *((name, "float64", scheme, *FACTORS[x % 4]) for x, name in enumerate(NAMES) for scheme in SCHEMES[x % 2 :: 2]),
    *((name, "float32", SCHEMES[x % 8], *FACTORS[x % 2]) for x, name in enumerate(NAMES)),
    *((name, "complex128", SCHEMES[3 * x % 8], 1 + 2j, 0.5 - 1j) for x, name in enumerate(NAMES[:8])),
    *((name, "complex64", SCHEMES[4], -1j, 1.0) for name in NAMES[1:8:2]),
]


def main(share: str = "0/1", device: str = "any") -> None:
    interpreted_slice_sums.DEVICE = interpreted_device(device)
    part, parts = map(int, share.split("/"))
    for name, dtype, scheme, alpha, beta in CASES[part::parts]:
        shape = (3, 12, 3)
        a, b = EVERYTHING[name](*shape, seed=11, dtype=np.dtype(dtype))
        c = EVERYTHING[name](shape[0], shape[2], 2, seed=12, dtype=np.dtype(dtype))[0]
        wrong = 0
        # C cancels the product to what rounding left of it, and, of its first rows, to what slices left.
        own = -prismm.matmul(a, b, scheme=scheme)
        own[:1] = -prismm.matmul(a[:1], b, accuracy="correctly-rounded")
        for addend in (c, own):
            keywords = {"alpha": alpha, "beta": beta, "scheme": scheme}
            expected = prismm.gemm(a, b, addend if beta else None, **keywords)
            for in_place in (False,) if beta == 0 or np.iscomplexobj(a) or addend is c else (False, True):
                got = made(a, b, addend if beta else None, alpha, beta, scheme, None, in_place)
                wrong += same_bits(got, expected)
        told = [name, dtype, str(scheme), str(alpha), str(beta)]
        tell(told, wrong=wrong)
    if part == 0:
        pairs = [EVERYTHING["phi2"](5, 9, 6, seed=x, dtype=np.dtype("float64")) for x in range(3)]
        a, b = (np.stack(x) for x in zip(*pairs, strict=True))
        for scheme in (SCHEMES[1], SCHEMES[4]):
            for x, y in ((a, b), (a, b[:1])):
                c = -prismm.matmul(x, y, scheme=scheme)
                got = made(x, y, c, 1.0, 1.0, scheme, "fast", block=(2, 4))
                expected = prismm.gemm(x, np.broadcast_to(y, b.shape), c, alpha=1.0, beta=1.0, scheme=scheme)
                tell(["batch", str(scheme)], wrong=same_bits(got, expected))
