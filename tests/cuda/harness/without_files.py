"""Compile a kernel for sm_90 where Triton's cache cannot be written, is limited, and can be written.

    python -m tests.cuda.harness.without_files

One line of JSON for each in turn: what was raised and what it stands for, or the kernel's name.
"""

import json
import os
import resource
import tempfile
from pathlib import Path

from tests.cuda.offline.compiled import architecture_of


def main() -> None:
    device = architecture_of("sm_90")
    import torch
    from triton.runtime import _async_compile

    from prismm.errors import EngineError
    from tests.cuda.harness.programs import residue_program

    x = torch.zeros(1, 256, 256)
    program = residue_program(x, x, torch.empty_like(x), 7, "native", device)
    program.launches[:] = list(program._kernels())[:1]
    folder = Path(tempfile.mkdtemp())
    (folder / "file").write_text("")
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)

    for where, most in (("file/cache", unlimited[0]), ("limited", 100), ("cache", unlimited[0])):
        os.environ["TRITON_CACHE_DIR"] = str(folder / where)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, unlimited[1]))
        try:
            found = [name for name, _ in program.compiled()]
        except EngineError as error:
            found = [str(error), type(error.__cause__).__name__]
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        print(json.dumps([*found, _async_compile.active_mode.get() is None]), flush=True)


if __name__ == "__main__":
    main()
