"""Whole products by way of seven products of quarters, in the interpreter, against a CPU, bit for bit; tells what is
wrong with each.

python -m tests.cuda.harness.interpreter large [part/parts]
"""

import numpy as np
import torch

import prismm
from prismm.cuda.residues.implementation import split_program
from prismm.cuda.residues.tables import tables
from prismm.schemes.residues import Residues
from prismm.testing import HOSTILE
from tests.cuda.harness.evidence import tell
from tests.cuda.harness.gluon_interpreter import interpreted_device
from tests.cuda.harness.programs import residue_program

M, K, N = 129, 257, 257


def main(share: str = "0/1") -> None:
    part, parts = map(int, share.split("/"))
    device = interpreted_device("hopper")
    cases = [("float32", 7, "normal", "native", False), ("float64", 9, "wide_rows", None, True)]
    for dtype, moduli, name, target, kept in cases[part::parts]:
        a, b = HOSTILE[name](M, K, N, seed=7, dtype=np.dtype(dtype))
        x, y = (torch.from_numpy(z[None]) for z in (a, b))
        out = torch.zeros(1, M, N, dtype=x.dtype)
        memories, sides = [torch.empty(0, dtype=torch.uint8)] * 2, [None, None]
        if kept:  # the right operand, before
            program, sides[1] = split_program(y[0], "right", tables(moduli, y.device), device, N)
            memories[1] = program.run_by_triton(y[0], y[0], y[0])
        program = residue_program(x, y, out, moduli, target, device, tuple(sides), strassen=True)
        assert "strassen_products" in [kernel for kernel, _ in program.single_launches()]
        program.run_by_triton(x, y, out, *memories)
        want = prismm.matmul(a, b, scheme=Residues(moduli), **({"accuracy": target} if target else {}))
        wrong = int((out[0].numpy().view(np.uint8) != np.ascontiguousarray(want).view(np.uint8)).sum())
        tell([dtype, moduli, name, target, kept], wrong=wrong)
