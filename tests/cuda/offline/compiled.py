"""Compile every GPU kernel as a product launches it, for an architecture that need not be there; tell what came out.

    {sm_80,sm_90,gfx942} moduli {float64,float32} modes

Of each kernel: its name, what its assembly holds, and the registers and spills that the assembler reports.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path

from prismm.cuda.device import Device
from tests.cuda.harness.evidence import tell

TARGETS = {
    **{f"sm_{x}": ("cuda", x, 32) for x in (80, 89, 90, 100, 120)},
    "gfx942": ("hip", "gfx942", 64),
}
SHARED = {"sm_89": 99 << 10, "sm_120": 99 << 10}
"""Bytes of shared memory that a program may have, where they are fewer than a Hopper GPU's."""


_ARCHITECTURE: list[str] = []


def architecture() -> str:
    """The one for which kernels are compiled now."""
    return _ARCHITECTURE[-1]


def architecture_of(name: str) -> Device:
    """The device for which kernels are compiled from here on, into a cache of its own."""
    _ARCHITECTURE.append(name)
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    class NoDevice:
        """What Triton asks of a driver before it compiles."""

        def get_current_target(self):
            return GPUTarget(*TARGETS[name])

        def get_current_device(self):
            return 0

        def get_current_stream(self, device):
            return 0

    driver.set_active(NoDevice())
    shared = SHARED.get(name, 227 << 10)
    return Device("none", name == "sm_90", name != "gfx942", 132, shared, name != "sm_100")


def main(name: str, moduli: str, dtype: str, modes: str = "2") -> None:
    device, n, count = architecture_of(name), 256, int(moduli)
    import torch

    from prismm.cuda.gemm.sum import Sum
    from tests.cuda.harness.programs import residue_program, sum_program

    seen = set()
    x = torch.zeros(1, n, n, dtype=getattr(torch, dtype))
    programs = [residue_program(x, x, torch.empty_like(x), count, (None, "correctly-rounded", "native")[mode], device)
                for mode in map(int, modes)]  # fmt: skip
    programs.append(residue_program(x, x, torch.empty_like(x), 0, "native", device))
    if device.sm90:  # columns that are many, and short
        wide = torch.zeros(1, n, 16 * n, dtype=x.dtype)
        programs.append(residue_program(x, wide, torch.empty_like(wide), count, "native", device))
        large = torch.zeros(1, 2 * n, 2 * n, dtype=x.dtype)
        programs.append(residue_program(large, large, torch.empty_like(large), count, "native", device, quarters=True))
    sum_ = Sum(0.5, 0.5, x)
    programs += [sum_program(x, x, torch.empty_like(x), x, sum_, each, "native", device)[0] for each in (count, 0)]
    for program in programs:
        for kernel, compiled in program.compiled():
            if compiled.hash not in seen:
                seen.add(compiled.hash)
                tell([kernel], kernel=kernel, **told(compiled))


def told(compiled) -> dict:
    """Instructions of interest; registers and spilled bytes where the assembler says."""
    text = compiled.asm.get("ptx") or compiled.asm["amdgcn"]
    words = {
        "wgmma": r"wgmma\.mma_async",
        "mma": r"mma\.sync\.aligned\.\w+\.\w+\.\w+(?:\.satfinite)?\.(?:s32\.s8|f32\.f16|f64\.f64)",
        "mfma": r"v_mfma_(?:i32|f32)",
        "dp4a": r"dp4a\.", "fused": r"fma\.rn\.f64|v_fma_f64", "products": r"mul(?:\.rn)?\.f64|v_mul_f64",
    }  # fmt: skip
    found: dict = {name: len(re.findall(pattern, text)) for name, pattern in words.items()}
    # What the assembler says of matrix instructions that it lets run one after the other (C7510, C7512, C7514).
    found["serialized"] = "serializ" in compiled.log.lower()
    if "cubin" in compiled.asm:
        import triton

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "kernel.cubin")
            path.write_bytes(compiled.asm["cubin"])
            tool = next(Path(triton.__file__).parent.glob("backends/nvidia/bin/cuobjdump*"))
            usage = subprocess.run([tool, "--dump-resource-usage", path], capture_output=True, text=True, check=True)
        found["registers"] = max(map(int, re.findall(r"REG:(\d+)", usage.stdout)))
        found["stack"] = max(map(int, re.findall(r"STACK:(\d+)", usage.stdout)))
    return found
