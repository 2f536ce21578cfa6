"""Compile the kernel of direct products, all its tiles, for an architecture that need not be there.

    {sm_80,sm_90} {float64,float32} {rows,columns,odd}

The kernel of a vector, and each tile's, as `tests.cuda.offline.compiled` tells of them, and how many copies
into shared memory have 16 bytes. odd: extents that are 1, or multiples of nothing, which make other kernels.
"""

import re
import subprocess
import tempfile
from pathlib import Path

import triton

from tests.cuda.harness.evidence import tell
from tests.cuda.offline.compiled import architecture_of, told


def inner_loops(compiled) -> list[str]:
    """Instructions of the machine code between the first and the last matrix instruction of each group's loop, one
    string a loop.
    """
    if "cubin" not in compiled.asm:
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(compiled.asm["cubin"])
        tool = next(Path(triton.__file__).parent.glob("backends/nvidia/bin/cuobjdump*"))
        text = subprocess.run([tool, "-sass", path], capture_output=True, text=True, check=True).stdout
    code = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?(\S+)", text, re.MULTILINE)
    found: list[list[int]] = []
    for place, name in enumerate(code):
        if name.startswith("DMMA"):
            if not found or place - found[-1][-1] > 300:
                found.append([])
            found[-1].append(place)
    return [" ".join(code[places[0] : places[-1]]) for places in found]


def spilled(loop: str) -> int:
    """Instructions of a loop that keep numbers in memory."""
    return sum(word.startswith(("LDL", "STL")) for word in loop.split())


def main(architecture: str, dtype: str, layout: str) -> None:
    device = architecture_of(architecture)
    import torch

    from prismm.cuda.native.tiles import BY_GROUPS, TILES, Split
    from tests.cuda.harness.programs import direct_program

    x = torch.zeros(1, 256, 256, dtype=getattr(torch, dtype))
    tiles = [tile for tile in (*TILES, *(BY_GROUPS if device.sm90 else ())) if tile.times(x.element_size())]
    if layout == "odd":
        for tile in TILES:
            for m, k, n in ((1, 1, 1), (5, 1, 3), (1, 37, 1), (129, 33, 131)):
                a, b, out = (torch.zeros(1, *shape, dtype=x.dtype) for shape in ((m, k), (k, n), (m, n)))
                found = [told(compiled) for _, compiled in direct_program(a, b, out, tile, device)[0].compiled()]
                tell([str(tile), m, k, n], tile=str(tile), **found[0])
        return
    wide, vector = (torch.zeros(1, *shape, dtype=x.dtype) for shape in ((256, 1032), (1032, 1)))
    program, _ = direct_program(wide, vector, torch.zeros(1, 256, 1, dtype=x.dtype), None, device)
    for kernel, compiled in program.compiled():
        loads = len(re.findall(r"ld\.global\.v[24]\.b", compiled.asm["ptx"]))
        tell([kernel, "vector"], tile="", kernel=kernel, **told(compiled), wide=loads)
    a, b = (x, x) if layout == "rows" else (x.mT, x.mT)
    splits = [Split(tile, 2, 128) for tile in tiles if tile.groups or tile is TILES[5]]
    ways = [(tile, None) for tile in tiles] + [(split.tile, split) for split in splits]
    for tile, split in ways:
        program, _ = direct_program(a, b, torch.empty_like(x), tile, device, split)
        for kernel, compiled in program.compiled():
            if kernel == "add_parts":
                tell([kernel, str(tile)], tile=str(tile), kernel=kernel, parted=True, **told(compiled))
                continue
            if tile.groups:
                boxes = len(re.findall(r"cp\.async\.bulk\.tensor\.3d\.shared", compiled.asm["ptx"]))
                wide = len(re.findall(r"st\.shared\.v2\.b64", compiled.asm["ptx"]))
                found = {"tile": str(tile), "kernel": kernel, "parted": split is not None, **told(compiled)}
                found |= {"wide": wide, "boxes": boxes}
                tell([kernel, str(tile), found["parted"]], **found, inner=inner_loops(compiled))
                continue
            copies = re.findall(
                r"cp\.async\.c[ag]\.shared\.global\s+\[[^\]]*\],\s*\[[^\]]*\],\s*(\w+)", compiled.asm["ptx"]
            )
            # A step waits for its tiles, and for what reads those whose place the copies after it take.
            steps = re.findall(r"cp\.async\.wait_group\s+(?!0)\S+(.*?)cp\.async\.c", compiled.asm["ptx"], re.DOTALL)
            found = {"tile": str(tile), "kernel": kernel, "parted": split is not None, **told(compiled)}
            found["steps"] = len(steps) == tile.stages and all(step.count("bar.sync") == 1 for step in steps)
            # The loop that repairs entries has few matrix instructions, and is not counted.
            found["spilled"] = sum(spilled(loop) for loop in inner_loops(compiled) if loop.count("DMMA") > 4)
            tell([kernel, str(tile), found["parted"]], **found, copies=len(copies), wide=copies.count("0x10"))
