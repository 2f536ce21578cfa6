"""Compile the kernels of `Slices` for an architecture that need not be there; tell what came out.

    {sm_80,sm_90,gfx942} {float64,float32} {rows,columns} scheme target…

scheme: slices and whether fast, "7f", or "CR", of INT8 or of a unit, "fp16:7f", with a "z" toward zero, an "a" with
exponents of their own; target: "none" or an accuracy, of gemm "sum:native" and so on. Each kernel, as
`tests.cuda.offline.compiled` tells of it.
"""

import re

from tests.cuda.harness.evidence import tell
from tests.cuda.offline.compiled import architecture_of, told


def main(architecture: str, dtype: str, layout: str, name: str, *targets: str) -> None:
    device = architecture_of(architecture)
    import torch

    from prismm import Slices
    from prismm.cuda.gemm import sum as cuda_gemm
    from tests.cuda.harness.slices_program import slices_program, slices_sum_program

    unit, _, own = name.rpartition(":")
    rounding = "toward-zero" if "z" in own else "nearest"
    exponents = "adaptive" if "a" in own else "grid"
    scheme = Slices(unit or "int8", mode="CR", rounding=rounding)
    if not own.startswith("CR"):
        scheme = Slices(unit or "int8", slices=int(own[0]), fast="f" in own, rounding=rounding, exponents=exponents)
    x = torch.zeros(1, 256, 256, dtype=getattr(torch, dtype))
    a, b = (x, x.mT) if layout == "rows" else (x.mT, x)
    seen = set()
    for target in targets:
        out, summed = torch.empty_like(x), target.startswith("sum:")
        if summed:
            sum_ = cuda_gemm.Sum(0.3 + 0j, 0.7 + 0j, x)
            own = None if target == "sum:none" else target.removeprefix("sum:")
            program = slices_sum_program(a, b, out, x, sum_, scheme, own, device)
        else:
            program, _ = slices_program(a, b, out, scheme, None if target == "none" else target, device)
        for kernel, compiled in program.compiled():
            if compiled.hash not in seen:
                seen.add(compiled.hash)
                text = compiled.asm.get("ptx") or compiled.asm["amdgcn"]
                wide = len(re.findall(r"(?:ld|st)\.global(?:\.\w+)*\.v[24]|global_(?:load|store)_dwordx[24]", text))
                tell([kernel, target], kernel=kernel, target=target, **told(compiled), wide=wide)
