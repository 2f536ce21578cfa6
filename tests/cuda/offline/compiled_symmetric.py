"""Compile the kernels of symmetric products for an architecture that need not be there; tell what came out.

    {sm_80,sm_90} {float64,float32,complex128,complex64}

Products of residues, their sum with C, and products of words; each kernel as `tests.cuda.offline.compiled` tells of it.
"""

from tests.cuda.harness.evidence import tell
from tests.cuda.offline.compiled import architecture_of, told


def main(architecture: str, dtype: str) -> None:
    device = architecture_of(architecture)
    import torch

    from prismm.cuda.gemm.sum import Sum
    from prismm.cuda.multiword import launches as multiword_launches
    from tests.cuda.harness.programs import residue_program, sum_program, words_program

    n, single = 512, dtype in ("float32", "complex64")
    count = 7 if single else 14
    x = torch.zeros(1, n, n, dtype=getattr(torch, dtype))
    y = x.mT if not x.is_complex() else x.mT.clone()
    out = torch.empty_like(x)
    programs = [
        residue_program(x, y, out, count, target, device, symmetric="C") for target in ("native", "correctly-rounded")
    ]
    sum_ = Sum(0.5, 0.5, x)
    programs += [
        sum_program(x, y, out, x, sum_, each, "native", device, symmetric="C")[0] for each in (count, 0)
    ]  # fmt: skip
    if single:
        config = multiword_launches.LaunchConfig(multiword_launches.HALVES, 128, 1.0, 1.0, False)
        programs.append(words_program(x, y, out, config, device, True, not x.is_complex())[0])
    kernels = {"symmetric_residue_product", "symmetric_words_product", "residue_product", "words_product", "mirror"}
    kernels |= {"join_fast", "combine_digits", "combine_values", "split_words"}
    seen = set()
    for program in programs:
        program.launches = [x for x in program.launches if hasattr(x, "kernel") and x.kernel.fn.__name__ in kernels]
        for kernel, compiled in program.compiled():
            if compiled.hash not in seen:
                seen.add(compiled.hash)
                tell([kernel], kernel=kernel, **told(compiled))
