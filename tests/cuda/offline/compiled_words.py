"""Compile the kernels of products of words for an architecture that need not be there; tell what came out.

    {sm_80,sm_90,gfx942} {float32,complex64} {rows,columns} format…

Formats are those of `words_twin.formats`. Each kernel, as `tests.cuda.offline.compiled` tells of it.
"""

import re

from tests.cuda.harness.evidence import tell
from tests.cuda.harness.words_twin import formats
from tests.cuda.offline.compiled import architecture_of, told


def main(architecture: str, dtype: str, layout: str, *names: str) -> None:
    device = architecture_of(architecture)
    import torch

    from prismm.cuda.multiword import launches as multiword_launches
    from tests.cuda.harness.programs import words_program

    kinds = {
        "matrix": r"wgmma\.mma_async\.\w+\.\w+\.\w+\.f32|mma\.sync\.aligned\.\w+\.row\.col\.f32|v_mfma_f32",
        "double": r"mma\.sync\.aligned\.\w+\.row\.col\.f64|v_mfma_f64",
        "wide": r"(?:ld|st)\.global\.v[24]|global_load_dwordx[24]",
        "narrow": r"st\.global(?:\.b32|\.b16)",
    }
    x = torch.zeros(1, 256, 256, dtype=getattr(torch, dtype))
    a, b = (x, x) if layout == "rows" else (x.mT, x.mT)
    for name in names:
        name, direct, _ = name.partition(" direct")
        name, shared, _ = name.partition(" shared")
        config = multiword_launches.LaunchConfig(
            formats()[name], 64 if direct else 128, 1.0, 1.0, False, False, bool(direct), shares=2 if shared else 1
        )
        program, _ = words_program(a, b, torch.empty_like(x), config, device)
        for kernel, compiled in program.compiled():
            text = compiled.asm.get("ptx") or compiled.asm["amdgcn"]
            found = {name: len(re.findall(pattern, text)) for name, pattern in kinds.items()}
            tell([kernel, name, direct or shared], kernel=kernel, **told(compiled), **found)
