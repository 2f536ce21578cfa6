"""The kernels of products of words in Triton's interpreter, against exact arithmetic; prints one line of JSON a case.

python -m tests.gpu.interpreter words [part/parts [nvidia|hopper]]
"""

import json

import numpy as np
import torch

from prismm.accuracy import Target
from prismm.engines import cuda, cuda_words
from prismm.testing import HOSTILE, SPECIAL, exact_product, ieee_specials
from tests.gpu import words_twin as twin
from tests.gpu.gluon_interpreter import interpreted_device
from tests.gpu.programs import words_program

DEVICE = cuda.Device("interpreter", False, True, 4)
CASES = [
    ("normal", "float32", (3, 9, 5), "fp16 2 12", "native"),
    ("wide_rows", "complex64", (3, 70, 5), "fp16 2 12", "native"),
    ("subnormal_operands", "float32", (3, 200, 5), "fp16 2 12", "native"),
    ("near_overflow", "complex64", (2, 9, 3), "fp16 2 12", "native"),
    ("overflow_threshold", "float32", (2, 9, 3), "fp16 2 12", "native"),
    ("infinities", "float32", (3, 80, 5), "fp16 2 12", None),
    ("infinities", "complex64", (3, 70, 5), "fp16 2 12", "native"),
    ("triangular", "float32", (60, 60, 66), "fp16 2 12", "native"),
    ("triangular", "complex64", (20, 40, 40), "tf32 2 0", "native"),
    ("wide_rows", "float32", (3, 300, 5), "tf32 2 0", "tolerance"),
]


def product(a: np.ndarray, b: np.ndarray, name: str, target: Target | None) -> tuple[np.ndarray, list[int]]:
    """The pipeline of a GPU, on this CPU."""
    terms = a.shape[1] * (2 if a.dtype.kind == "c" else 1)
    problem = cuda_words.problem_for(twin.formats()[name], cuda_words.chunk_for(terms), terms, target, "a100")
    x, y = (torch.from_numpy(v)[None] for v in (a, b))
    out = torch.full((1, a.shape[0], b.shape[1]), torch.nan, dtype=x.dtype)
    program, counts = words_program(x, y, out, problem, DEVICE)
    scratch = program.run_by_triton(x, y, out)
    return out[0].numpy(), scratch[counts.offset : counts.offset + 32].view(torch.int64).tolist()


def main(share: str = "0/1", device: str = "nvidia") -> None:
    global DEVICE
    DEVICE = interpreted_device(device)
    part, parts = map(int, share.split("/"))
    for generator, dtype, shape, name, kind in CASES[part::parts]:
        a, b = {**HOSTILE, **SPECIAL}[generator](*shape, seed=3, dtype=np.dtype(dtype))
        target = Target(kind, 1e-4 if kind == "tolerance" else None) if kind else None
        wrong = 0
        for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b))):
            c, counts = product(x, y, name, target)
            left, right = twin.real_vectors(a, "left"), twin.real_vectors(b, "right").T
            terms, real = left.shape[1], c.view(np.float32)
            special = ieee_specials(a, b).view(np.float64) if generator in SPECIAL else np.zeros(real.shape)
            plain = np.isfinite(special)
            wrong += int((~plain & ~((real == special) | (np.isnan(real) & np.isnan(special)))).sum())
            if generator not in SPECIAL:
                exact = exact_product(left, right)
                slack = target.tolerance if target and target.tolerance else terms * 2.0**-24
                allowed = slack * exact.magnitude("up") + terms * 2.0**-149
                wrong += int((~exact.within(real, allowed)).sum())
        print(json.dumps({"case": [generator, dtype, name], "wrong": wrong, "counts": counts}), flush=True)
