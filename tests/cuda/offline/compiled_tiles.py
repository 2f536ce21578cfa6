"""Compile the kernels of `TileInt8` for an architecture that need not be there; tell what came out.

    {sm_80,sm_90,gfx942} {rows,columns} level,inner[,pair]…

Each kernel, as `tests.cuda.offline.compiled` tells of it, and `issued`: INT8 matrix instructions in what the
assembler made of it, on sm_90.
"""

import re
import subprocess
import tempfile
from pathlib import Path

from tests.cuda.harness.evidence import tell
from tests.cuda.offline.compiled import architecture_of, told


def issued(cubin: bytes) -> int:
    """Matrix instructions for Hopper in a program."""
    import triton

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        tool = next(Path(triton.__file__).parent.glob("backends/nvidia/bin/nvdisasm*"))
        text = subprocess.run([tool, path], capture_output=True, text=True, check=True).stdout
    return len(re.findall(r"\bIGMMA\b", text))


def main(architecture: str, layout: str, *specs: str) -> None:
    device = architecture_of(architecture)
    import torch

    from prismm.cuda.tile_int8 import launches as tile_launches
    from prismm.schemes.tile_int8 import TileInt8
    from tests.cuda.harness.programs_of_tiles import tiles_program

    x = torch.zeros(1, 512, 512)
    a, b = (x, x) if layout == "rows" else (x.mT, x.mT)
    for spec in specs:
        level, inner, *exponent = spec.split(",")
        scheme = TileInt8(int(level), (16, int(inner), 8), *exponent)
        config = tile_launches.config_for(scheme, 512, None)
        program, _ = tiles_program(a, b, torch.empty_like(x), config, device)
        for kernel, compiled in program.compiled():
            found = told(compiled)
            if found["wgmma"]:
                found["issued"] = issued(compiled.asm["cubin"])
            tell([kernel, spec], kernel=kernel, **found)
