"""`Slices` with exponents of their own in Triton's interpreter against a CPU, bit for bit; prints one line of JSON a
case.

python -m tests.cuda.harness.interpreter adaptive [part/parts|batches [any|nvidia|hopper]]
"""

import numpy as np

import prismm
from prismm import Slices
from prismm.testing import HOSTILE, SPECIAL
from tests.cpu.kernels.test_slice import hostile_rows
from tests.cuda.harness.evidence import tell
from tests.cuda.harness.gluon_interpreter import interpreted_device
from tests.cuda.offline import interpreted_slice_sums, interpreted_slices
from tests.cuda.offline.interpreted_gemm import operands, same_bits
from tests.cuda.offline.interpreted_slices import beyond, differing, product


def adaptive(unit: str, slices: int | None = None, **other) -> Slices:
    return Slices(unit, slices=slices, exponents="adaptive", **other)


def gaps(m: int, k: int, n: int, seed: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Few elements far apart, so that slices are, too, with products that cancel to some of the last of them."""
    rng = np.random.default_rng(seed)
    reach = 480 if dtype.itemsize // (2 if dtype.kind == "c" else 1) == 8 else 60

    def some(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape) * 2.0 ** rng.integers(-reach, reach + 1, shape)

    a, b = some(m, k), some(k, n)
    half = k // 2
    a[:, half : 2 * half] = -a[:, :half]
    b[half : 2 * half, ::2] = b[:half, ::2] * (1.0 + 2.0 ** -rng.integers(10, 70, b[:half, ::2].shape))
    if dtype.kind == "c":
        a, b = a + 1j * some(m, k), b + 1j * some(k, n)
    return a.astype(dtype), b.astype(dtype)


def ties(m: int, k: int, n: int, seed: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `hostile_rows`, whose digits are ties and ends of their range, times the same, and by a diagonal."""
    rows = hostile_rows(np.random.default_rng(seed), k)
    a = np.asarray(rows)[np.arange(m) % len(rows)]
    b = np.asarray(rows[::-1])[np.arange(n) % len(rows)].T.copy()
    b[np.arange(min(k, n)), np.arange(min(k, n))] = 1.0
    return a.astype(dtype), b.astype(dtype)


EVERYTHING = {**HOSTILE, **SPECIAL, "gaps": gaps, "digit_ties": ties}
FAST, FULL = adaptive("int8", 7, fast=True), adaptive("int8", 7)
OWN = [(FAST, "float64"), (FULL, "float64"), (adaptive("int8", 3, fast=True), "float32")]
UNUSUAL = (
    "normal", "near_ties", "near_overflow", "wide_rows", "zeros_rows_cols", "infinities", "subnormal_results",
    "lattice", "gaps", "digit_ties", "overflow_threshold", "subnormal_operands",
)  # fmt: skip
UNITS = [
    adaptive("fp16", 6, fast=True), adaptive("bf16", 7), adaptive("fp16-fp16", 9, fast=True),
    adaptive("int8", 8, bits=7), adaptive("fp64", 3), adaptive("fp64", 4), adaptive("fp32-fp64", 3, fast=True),
    adaptive("int8", 20), adaptive("fp16", 12, fast=True), adaptive("int8", 7, rounding="toward-zero"),
    adaptive("fp16", 7, rounding="toward-zero"),
    adaptive("fp64", 2, fast=True, rounding="toward-zero"), adaptive("fp16", 12, bits=1),
    adaptive("fp16", 9, bits=1, rounding="toward-zero", fast=True), adaptive("int8", 5, bits=2),
]  # fmt: skip
CASES = [
    *((name, dtype, (4, 9, 5), scheme, None) for name in EVERYTHING for scheme, dtype in OWN),
    *((name, "float64", (3, 20, 4), scheme, None) for name in UNUSUAL for scheme in UNITS),
    *((name, "float32", (3, 20, 4), UNITS[x % len(UNITS)], None) for x, name in enumerate(EVERYTHING)),
    *((name, "complex128", (3, 11, 4), UNITS[4 * x % len(UNITS)], None) for x, name in enumerate(UNUSUAL[:9])),
    *((name, "complex64", (3, 11, 4), adaptive("int8", 3, fast=True), None) for name in UNUSUAL[:9:2]),
    ("gaps", "float64", (3, 20, 4), adaptive("int8", 60), None),
    ("gaps", "float64", (2, 8, 3), adaptive("fp64", 20), None),
    # Correctly rounded on a grid.
    *((name, "float64", (3, 9, 4), adaptive("int8", mode="CR"), None) for name in ("normal", "gaps", "near_ties")),
    ("infinities", "complex64", (3, 9, 4), adaptive("fp64", mode="CR"), None),
    ("near_ties", "float64", (3, 9, 4), FAST, "correctly-rounded"),
    ("gaps", "float64", (3, 9, 4), adaptive("int8", 30), "correctly-rounded"),
    ("near_overflow", "float64", (3, 9, 4), FULL, "fast"),
    # Longer than a tile of the split and of the product; blocks of the inner dimension, that a unit's sums end before.
    ("normal", "float64", (3, 1300, 4), FAST, None),
    ("normal", "float64", (3, 1500, 4), adaptive("fp16", 6, bits=10), None),
    ("wide_rows", "float32", (130, 140, 131), adaptive("int8", 2), None),
    ("wide_rows", "float64", (70, 40, 70), adaptive("fp64", 3, fast=True), None),
    ("digit_ties", "float64", (11, 20, 11), FAST, None),
]  # fmt: skip
ROUGH = adaptive("fp16", 2, fast=True, rounding="toward-zero")
TARGETS = [
    *((name, "float64", (3, 20, 4), FAST, "native") for name in (*HOSTILE, *SPECIAL)),
    *((name, "float64", (9, 70, 8), adaptive("fp64", 2), 1e-12) for name in ("cancelling", "normal", "gaps")),
    *((name, "float32", (9, 30, 8), ROUGH, 1e-3) for name in UNUSUAL[:6]),
    *((name, "complex64", (3, 20, 4), adaptive("int8", 3), "native") for name in ("cancelling", "infinities")),
    ("digit_ties", "float64", (9, 30, 8), adaptive("int8", 4), 1e-6),
]  # fmt: skip
"""Entries that are certified or repaired, here against exact arithmetic: which of them are is a GPU's own choice."""
SUMS = [
    ("normal", "float64", FAST, "native", 1.0, -1.0), ("wide_rows", "float64", FULL, "native", -0.7, 1.3),
    ("near_overflow", "float64", FAST, "native", 3.0, 2.0**900), ("infinities", "float64", FAST, "native", -2.0, 3.0),
    ("normal", "float32", adaptive("int8", 4, fast=True), "native", 0.1, 0.7),
    ("cancelling", "float32", adaptive("fp16", 4), 1e-6, 1.0, -1.0),
    ("normal", "float64", adaptive("int8", 4), 1e-8, 2.0**40, 0.3),
    ("normal", "complex128", FAST, "native", 1 + 2j, 0.5),
    ("phi2", "complex64", adaptive("fp64", 2), "native", -1j, 1 + 1j),
    ("overflow_threshold", "float64", adaptive("fp64", 3, rounding="toward-zero"), "native", 0.5, 1.0),
    ("subnormal_operands", "float64", FULL, "native", 2.0**60, 1e-300),
    ("cancelling", "float64", FULL, "correctly-rounded", 0.3, -0.3),
    ("normal", "float64", adaptive("int8", mode="CR"), "correctly-rounded", 0.1, 0.7),
]  # fmt: skip


def main(share: str = "0/1", device: str = "any") -> None:
    interpreted_slices.DEVICE = interpreted_slice_sums.DEVICE = interpreted_device(device)
    if share == "batches":
        return batches()
    part, parts = map(int, share.split("/"))
    for case in (CASES + TARGETS)[part::parts]:
        name, dtype, shape, scheme, target = case
        a, b = EVERYTHING[name](*shape, seed=11, dtype=np.dtype(dtype))
        wrong = 0
        for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b))):
            got, counts = product(x, y, scheme, target)
            if case in TARGETS:
                wrong += beyond(a, b, got, target)
            else:
                wrong += differing(got, prismm.matmul(a, b, scheme=scheme, **({"accuracy": target} if target else {})))
        tell([name, dtype, str(scheme), target], wrong=wrong, counts=counts)
    for name, dtype, scheme, target, alpha, beta in SUMS[part::parts]:
        a, b, c = operands(name, dtype, *((9, 70, 8) if name == "normal" else ()))
        got = interpreted_slice_sums.made(a, b, c, alpha, beta, scheme, target)
        if target == "correctly-rounded":
            wrong = same_bits(got, prismm.gemm(a, b, c, alpha=alpha, beta=beta, scheme=scheme, accuracy=target))
        else:
            wrong = interpreted_slice_sums.beyond(a, b, c, alpha, beta, got, target)
        told = [name, dtype, str(scheme), target, str(alpha), str(beta)]
        tell(told, wrong=wrong)


def batches() -> None:
    """Batches, one operand for all of it, in blocks of rows and columns; k cut so that it fills the programs."""
    pairs = [HOSTILE["normal"](5, 600, 6, seed=seed) for seed in range(3)]
    a, b = (np.stack(x) for x in zip(*pairs, strict=True))
    for scheme in (adaptive("int8", 4, fast=True), adaptive("fp64", 2)):
        for x, y in ((a, b), (a, b[:1]), (a[:1], b)):
            got, counts = product(x, y, scheme, None, (2, 4), 64)
            wrong = differing(got, prismm.matmul(x, y, scheme=scheme))
            tell(["batch", x.shape, y.shape], wrong=wrong, counts=counts)
