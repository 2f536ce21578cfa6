"""Compile a program's kernels for sm_90 one by one, or as a call does, side by side; print what came out of each.

    python -m tests.gpu.compiled_together {one,many}

One line of JSON: of each launch the kernel's name and a digest of its assembly, and the threads that compiled.
"""

import contextlib
import hashlib
import json
import sys
import threading

from tests.gpu.compiled import architecture_of


def main() -> None:
    device = architecture_of("sm_90")
    import torch
    from triton import knobs

    from prismm.engines import launch
    from tests.gpu.programs import residue_program

    if sys.argv[1] == "one":
        launch._side_by_side = contextlib.nullcontext
    threads = set()
    knobs.compilation.listener = lambda **told: threads.add(threading.get_ident())
    x = torch.zeros(1, 512, 512)
    program = residue_program(x, x, torch.empty_like(x), 7, "native", device, quarters=True)
    found = [(name, hashlib.sha256(kernel.asm["ptx"].encode()).hexdigest()) for name, kernel in program.compiled()]
    print(json.dumps({"kernels": found, "threads": len(threads)}))


if __name__ == "__main__":
    main()
