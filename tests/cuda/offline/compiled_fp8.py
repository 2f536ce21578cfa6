"""Compile the kernels of FP8 products, and the INT8 products beside them; tell what came out.

{sm_89,sm_90,sm_100,sm_120}
"""

import dataclasses
import re
from collections import Counter

from prismm.cuda.device import FP8, INT8, fp8_sum_bits_of
from tests.cuda.harness.evidence import tell
from tests.cuda.offline.compiled import TARGETS, architecture_of, told

INSTRUCTIONS = re.compile(r"(mma\.sync|wgmma\.mma_async|tcgen05\.mma)([\w.:]*)")


def instructions(text: str) -> dict[str, int]:
    """Matrix instructions by name and types, and how often each stands there."""
    found = Counter(f"{name}{rest}" for name, rest in INSTRUCTIONS.findall(text))
    return dict(sorted(found.items()))


def separate_sums(text: str) -> int:
    """Instructions of Hopper's that begin with sums of 0."""
    return len(re.findall(r"wgmma\.mma_async[^;]*\}, %rd\d+, %rd\d+, 0, 1, 1;", text))


def main(architecture: str) -> None:
    device = architecture_of(architecture)
    device = dataclasses.replace(device, fp8_sum_bits=fp8_sum_bits_of(*divmod(TARGETS[architecture][1], 10)))
    import torch

    from tests.cuda.harness.fp8_twin import program_of

    double, single = (torch.zeros(1, 256, 256, dtype=dtype) for dtype in (torch.float64, torch.float32))
    long = torch.zeros(1, 16, 1 << 16, dtype=torch.float32)
    programs = {
        "float64": program_of(double, double, double.clone(), 14, "native", device),
        "float32": program_of(single, single, single.clone(), 7, "correctly-rounded", device),
        "long": program_of(long, long.mT.contiguous(), torch.zeros(1, 16, 16), 7, None, device),
        "int8": program_of(double, double, double.clone(), 14, None, device, INT8),
    }
    seen = set()
    for name, program in programs.items():
        for kernel, compiled in program.compiled():
            wanted = kernel in ("split_digits", "digit_product", "scheme_digits", "residue_product")
            # Of a kernel that is there already the assembler says nothing.
            if wanted and compiled.hash not in seen:
                seen.add(compiled.hash)
                text, facts = compiled.asm["ptx"], told(compiled)
                kept = {x: facts.get(x) for x in ("registers", "stack", "serialized", "fused")}
                tell(
                    [name, kernel], kernel=kernel, engine=INT8 if name == "int8" else FP8,
                    instructions=instructions(text), separate=separate_sums(text),
                    waits=compiled.log.count("C7517"), shared=compiled.metadata.shared, **kept,
                )  # fmt: skip
