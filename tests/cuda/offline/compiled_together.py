"""Compile a program's kernels for sm_90 one by one, and as a call does, side by side; tell whether it is the same."""

import contextlib
import hashlib
import inspect
import threading

from tests.cuda.harness.evidence import note, runs, specialised, tell
from tests.cuda.offline.compiled import architecture_of


def main() -> None:
    device = architecture_of("sm_90")
    import torch
    from triton import knobs

    from prismm.cuda.launch import program as launch
    from tests.cuda.harness.programs import residue_program

    x = torch.zeros(1, 512, 512)
    program = residue_program(x, x, torch.empty_like(x), 7, "native", device, quarters=True)
    kernels = list(program._kernels())
    ways = {"one by one": contextlib.nullcontext, "side by side": launch.side_by_side}
    note(*(specialised(program, one) for one in kernels))
    note(*(inspect.getsource(f) for f in (launch.side_by_side, launch.Program._compile_all, launch.Program._compile)))
    found, threads = {}, {}
    for way, context in ways.items() if runs() else ():
        architecture_of("sm_90")  # with an empty cache
        for one in kernels:
            one.kernel.device_caches.clear()
        threads[way] = set()
        knobs.compilation.listener = lambda own=threads[way], **told: own.add(threading.get_ident())
        launch.side_by_side = context
        made = program._compile_all(kernels)
        found[way] = [hashlib.sha256(kernel.asm["ptx"].encode()).hexdigest() for _, kernel in made]
    launch.side_by_side, knobs.compilation.listener = ways["side by side"], None
    same = bool(found) and found["one by one"] == found["side by side"]
    tell(["side by side"], same=same, kernels=len(kernels), threads=[len(x) for x in threads.values()])
