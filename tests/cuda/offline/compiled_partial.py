"""Compile the kernels of partial products for an architecture that need not be there; tell what came out.

{sm_80,sm_90} {float64,float32,complex128} {reproducible,correctly-rounded}
"""

from tests.cuda.harness.evidence import tell
from tests.cuda.offline.compiled import architecture_of, told

MODULI = {"reproducible": 15, "correctly-rounded": 19}


def main(architecture: str, dtype: str, target: str) -> None:
    device = architecture_of(architecture)
    import torch

    from prismm.cuda.partial import steps
    from tests.cuda.harness.partial import every_step, every_step_again, work_of

    programs: list = []

    def noted(program, a, out, *memories, b=None):
        programs.append(program)
        return torch.zeros(program.workspace, dtype=torch.uint8)

    steps.run = noted
    x = torch.zeros(256, 256, dtype=getattr(torch, dtype))
    work = work_of(x.dtype, 512, MODULI[target], target, device)
    out, _, statistics, total, _ = every_step([(x, x), (x, x)], work)
    pending = steps.finish(total, *statistics, out, work)[-1].clone()
    every_step_again([(x, x), (x, x)], statistics, out, pending, work, work.parts - 1)
    names = set()
    for program in programs:
        for kernel, compiled in program.compiled():
            if kernel not in names:
                names.add(kernel)
                tell([kernel], kernel=kernel, **told(compiled))
