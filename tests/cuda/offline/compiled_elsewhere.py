"""Compile what calls launch for GPUs that prismm has not run on; tell the shared memory that each kernel takes.

{sm_89,sm_100,sm_120}
"""

from tests.cuda.harness.evidence import tell
from tests.cuda.offline.compiled import architecture_of


def main(architecture: str) -> None:
    device = architecture_of(architecture)
    import torch

    from prismm import Slices
    from prismm.core.accuracy import Target
    from prismm.cuda.multiword import launches as multiword_launches
    from prismm.cuda.native.tiles import Shape, tile_for
    from prismm.cuda.tile_int8 import launches as tile_launches
    from prismm.schemes.tile_int8 import TileInt8
    from tests.cuda.harness import words_twin
    from tests.cuda.harness.programs import direct_program, residue_program, words_program
    from tests.cuda.harness.programs_of_tiles import tiles_program
    from tests.cuda.harness.slices_program import slices_program

    double, single = (torch.zeros(1, 256, 256, dtype=dtype) for dtype in (torch.float64, torch.float32))
    programs = {
        "residues": residue_program(double, double, double.clone(), 15, "native", device),
        "rounded": residue_program(single, single, single.clone(), 12, "correctly-rounded", device),
        "native": residue_program(double, double, double.clone(), 0, "native", device),
    }
    for scheme in (Slices("int8", slices=7, fast=True), Slices("fp16", slices=6, fast=True)):
        programs[str(scheme)] = slices_program(double, double, double.clone(), scheme, "native", device)[0]
    for x in (double, single):
        shapes = [Shape(n, n, n, 1, x.element_size()) for n in (16, 64, 200, 600, 2000)]
        for tile in dict.fromkeys(tile_for(shape, 132, device.shared) for shape in shapes):
            programs[f"{tile.rows} by {tile.columns} {x.dtype}"] = direct_program(x, x, x.clone(), tile, device)[0]
    for name in ("fp16 2 12", "tf32 2 0"):
        form, chunk = words_twin.formats()[name], multiword_launches.chunk_for(256)
        config = multiword_launches.config_for(form, chunk, 256, Target("native"), "a100")
        programs[name] = words_program(single, single, single.clone(), config, device)[0]
    tiled = tile_launches.config_for(TileInt8(level=4, tile=(8, 128, 8), fallback=False), 256, Target("native"))
    programs["tiles"] = tiles_program(single, single, single.clone(), tiled, device)[0]
    for name, program in programs.items():
        for kernel, compiled in program.compiled():
            tell([name, kernel], program=name, kernel=kernel, shared=compiled.metadata.shared)
