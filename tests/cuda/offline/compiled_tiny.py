"""Compile the kernel of batches of tiny products for an architecture that need not be there; tell what came out.

    {sm_80,sm_90} {float64,float32,complex128}

Of each order and target: what `tests.cuda.offline.compiled` tells, and how many reads have 16 bytes.
"""

import re

from tests.cuda.harness.evidence import tell
from tests.cuda.offline.compiled import architecture_of, told

ORDERS = {"float64": (4, 16, 32), "float32": (4, 16), "complex128": (4, 16)}


def main(architecture: str, dtype: str) -> None:
    device = architecture_of(architecture)
    import torch

    from tests.cuda.harness.programs_of_tiny import tiny_program

    for n in ORDERS[dtype]:
        x = torch.zeros(1000, n, n, dtype=getattr(torch, dtype))
        for target in (None, "correctly-rounded", "reproducible"):
            program, _ = tiny_program(x, x, torch.empty_like(x), target, device)
            for kernel, compiled in program.compiled():
                wide = len(re.findall(r"ld\.global\.v[24]\.b", compiled.asm["ptx"]))
                tell([kernel, n, target], kernel=kernel, wide=wide, **told(compiled))
