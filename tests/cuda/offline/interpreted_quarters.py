"""Products of residue planes by way of seven products of quarters, in the interpreter, against exact integers; prints
one line of JSON a case.

python -m tests.cuda.harness.interpreter quarters [part/parts]
"""

import torch

from prismm.cuda.residues import strassen as cuda_strassen
from prismm.cuda.residues.tables import tables
from tests.cuda.harness.evidence import tell
from tests.cuda.harness.gluon_interpreter import interpreted_device
from tests.cuda.offline.interpreted_product import wrong_digits

SHAPES = ((129, 257, 257), (255, 511, 511), (192, 321, 272), (256, 512, 1040), (300, 770, 650))
"""Rows, columns, inner dimension: one vector, or one line, in the second halves, nearly all of them, and all; tiles
that are cut off; stages that are few and many.
"""
KINDS = ("any", "least", "greatest", "edges")


def residues(moduli: int, rows: int, k: int, kind: str) -> torch.Tensor:
    """Planes (1, moduli, rows, k) of residues as they are stored: 128 less than what is in [0, p)."""
    p = tables(moduli, torch.device("cpu")).reduction[:moduli, 0].reshape(1, moduli, 1, 1).long()
    found = torch.randint(0, 1 << 30, (1, moduli, rows, k)) % p
    if kind == "least":
        found = torch.zeros_like(found)
    elif kind == "greatest":
        found = torch.zeros_like(found) + p - 1
    elif kind == "edges":
        found = torch.where(torch.rand(found.shape) < 0.5, 0, p - 1)
    return (found - 128).to(torch.int8)


def main(share: str = "0/1") -> None:
    part, parts = map(int, share.split("/"))
    torch.manual_seed(4)
    device = interpreted_device("hopper")
    cases = [(shape, 2, kind) for shape in SHAPES for kind in KINDS[:: 1 if shape == SHAPES[0] else 3]]
    cases.append((SHAPES[0], 22, "edges"))
    for (rows, columns, k), moduli, kind in cases[part::parts]:
        assert cuda_strassen.serves(rows, columns, k)
        left, right = (residues(moduli, x, k, kind) for x in (rows, columns))
        wrong = wrong_digits(left, right, device, quarters=True)
        tell([rows, columns, k, moduli, kind], wrong=wrong)
