"""Proofs that native products cannot overflow, in the interpreter; tells whether each proof held.

python -m tests.cuda.harness.interpreter proofs seed cases

Cases are a list in JSON: type, terms, the exponent of all elements, and one that is not finite, or null.
"""

import json

import numpy as np
import torch

from prismm.cuda.device import Device
from prismm.cuda.launch.arguments import OUT, A, B, BufferView
from prismm.cuda.launch.program import Program
from prismm.cuda.native.cublas import finish_native, prove
from prismm.cuda.operands import vectors_of
from prismm.cuda.views import Result
from tests.cuda.harness.evidence import tell

DEVICE = Device("interpreter", False, False, 1)


def main(seed: str, cases: str) -> None:
    rng = np.random.default_rng(int(seed))
    for dtype, k, scale, other in json.loads(cases):
        kind = getattr(torch, dtype)
        shapes = (1, 9, k), (1, k, 9)
        a, b = (torch.from_numpy(rng.uniform(1.0, 2.0, s) * rng.choice([-1, 1], s)).to(kind) for s in shapes)
        a, b = (torch.ldexp(x, torch.tensor(scale)).to(kind) for x in (a, b))
        if other is not None:
            a[0, 3, 1] = other
        out = torch.full((1, 9, 9), float("nan"), dtype=kind)
        program = Program()
        counts = program.allocate(torch.int64, 4)
        left, right = vectors_of(a, A, columns=False), vectors_of(b, B, columns=True)
        found = prove(program, left, right, DEVICE)
        target = Result(BufferView(OUT, 0, kind), 1, 9, 9, (81, 9, 1))
        finish_native(program, target, left, right, counts, DEVICE, found)
        program.run_by_triton(a, b, out)
        tell([dtype, k, scale, str(other)], proved=bool(torch.isnan(out).all()))
