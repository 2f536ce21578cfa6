"""Compile stages that programs of one kernel share, for an architecture that need not be there; tell what came out.

    {sm_80,sm_90}

How many instructions release and acquire, and how many take a ticket without either.
"""

import re

import triton
import triton.language as tl

from prismm.cuda.residues.kernels.tickets import finished, take, wait_for
from tests.cuda.harness.evidence import tell
from tests.cuda.offline.compiled import architecture_of


@triton.jit
def add_in_two_stages(state, numbers, total):
    """Each ticket stores a number, and then adds what another one stored."""
    ticket = take(state)
    while ticket < total:
        tl.store(numbers + ticket, ticket)
        finished(state + 1, 1)
        ticket = take(state)
    wait_for(state + 1, total)
    ticket = take(state + 2)
    while ticket < total:
        tl.store(numbers + total + ticket, ticket + tl.load(numbers + (total - 1 - ticket)))
        ticket = take(state + 2)


def main(architecture: str) -> None:
    architecture_of(architecture)
    import torch

    from prismm.cuda.launch.program import Program

    program = Program((0, 0, 0))
    state, numbers = program.allocate(torch.int64, 3), program.allocate(torch.int64, 2048)
    program.launch(add_in_two_stages, (132,), state, numbers, 1024, num_warps=8)
    for kernel, compiled in program.compiled():
        text = compiled.asm["ptx"]
        words = {
            "acquires": r"\.acquire\.", "releases": r"\.release\.add",
            "takes": r"atom\.(?:global\.gpu\.relaxed|relaxed\.gpu\.global)\.add",
        }  # fmt: skip
        tell([kernel], kernel=kernel, **{name: len(re.findall(word, text)) for name, word in words.items()})
