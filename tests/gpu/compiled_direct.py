"""Compile the kernel of direct products, all its tiles, for an architecture that need not be there.

    python -m tests.gpu.compiled_direct {sm_80,sm_90} {float64,float32} {rows,columns,odd}

One line of JSON a tile, as `tests.gpu.compiled` prints them, and how many copies into shared memory have 16 bytes. odd:
extents that are 1, or multiples of nothing, which make other kernels.
"""

import json
import re
import sys

from tests.gpu.compiled import architecture_of, told


def main() -> None:
    architecture, dtype, layout = sys.argv[1:]
    device = architecture_of(architecture)
    import torch

    from prismm.engines.cuda_direct import TILES
    from tests.gpu.programs import direct_program

    x = torch.zeros(1, 256, 256, dtype=getattr(torch, dtype))
    tiles = [tile for tile in TILES if tile.pace(x.element_size())]
    if layout == "odd":
        for tile in tiles:
            for m, k, n in ((1, 1, 1), (5, 1, 3), (1, 37, 1), (129, 33, 131)):
                a, b, out = (torch.zeros(1, *shape, dtype=x.dtype) for shape in ((m, k), (k, n), (m, n)))
                found = [told(compiled) for _, compiled in direct_program(a, b, out, tile, device)[0].compiled()]
                print(json.dumps({"tile": str(tile), **found[0]}), flush=True)
        return
    a, b = (x, x) if layout == "rows" else (x.mT, x.mT)
    for tile in tiles:
        program, _ = direct_program(a, b, torch.empty_like(x), tile, device)
        for kernel, compiled in program.compiled():
            copies = re.findall(
                r"cp\.async\.c[ag]\.shared\.global\s+\[[^\]]*\],\s*\[[^\]]*\],\s*(\w+)", compiled.asm["ptx"]
            )
            # A step waits for its tiles, and for what reads those whose place the copies after it take.
            steps = re.findall(r"cp\.async\.wait_group\s+(?!0)\S+(.*?)cp\.async\.c", compiled.asm["ptx"], re.DOTALL)
            assert len(steps) == tile.stages and all(step.count("bar.sync") == 1 for step in steps), len(steps)
            found = {"tile": str(tile), "kernel": kernel, **told(compiled)}
            print(json.dumps({**found, "copies": len(copies), "wide": copies.count("0x10")}), flush=True)


if __name__ == "__main__":
    main()
