"""Products of residue planes in the interpreter against exact integers; tells what is wrong with each.

python -m tests.cuda.harness.interpreter product [part/parts]
"""

import torch

from prismm.cuda.device import Device
from prismm.cuda.residues.tables import tables
from tests.cuda.harness.evidence import tell
from tests.cuda.harness.gluon_interpreter import interpreted_device
from tests.cuda.harness.planes import digits_of, exact_digits, planes_program

MODULI = 2
LENGTHS, LONG = (1, 129, 256, 300, 384, 385, 512, 1000), (32768, 33024, 33200, 70000)
"""Of the inner dimension, as in `test_product`."""
SHAPES = ((1, 1), (64, 256), (65, 257), (300, 70), (1, 700))


def wrong_digits(left: torch.Tensor, right: torch.Tensor, device: Device, quarters: bool = False) -> int:
    """How many are not those of exact integers."""
    batch = max(left.shape[0], right.shape[0])
    program, digits, fill = planes_program(left, right, device, quarters)
    nothing = torch.zeros(1)
    workspace = program.run_by_triton(nothing, nothing, nothing, prepare=fill)
    found = digits_of(workspace, digits, right.shape[2])
    x, y = (z.expand(batch, -1, -1, -1) for z in (left, right))
    return int((found != exact_digits(x, y, tables(left.shape[1], left.device))).sum())


def main(share: str = "0/1") -> None:
    part, parts = map(int, share.split("/"))
    torch.manual_seed(3)
    devices = [interpreted_device(name) for name in ("nvidia", "hopper")]
    cases: list = [(1, 1, 70, 260, k, kind) for k in LENGTHS for kind in ("any", "least", "greatest", "opposite")]
    cases += [(1, 1, 66, 5, k, kind) for k in LONG for kind in ("least", "opposite")]
    cases += [(own, own, *shape, 400, "any") for shape in SHAPES for own in (1, 3)]
    cases += [(x, y, 65, 257, 400, "any") for x, y in ((1, 3), (3, 1))]
    for left_batch, right_batch, rows, columns, k, kind in cases[part::parts]:
        left = torch.randint(-128, 128, (left_batch, MODULI, rows, k), dtype=torch.int8)
        right = torch.randint(-128, 128, (right_batch, MODULI, columns, k), dtype=torch.int8)
        if kind != "any":  # the largest sums that there are, next to any
            left[:, :, ::2] = -128
            right[:, :, ::3] = {"least": -128, "greatest": 127, "opposite": 127}[kind]
            if kind == "opposite":
                left[:, :, 1::2] = 127
        # Of long ones Hopper's kernel, whose stages and halves meet sums that are reduced on the way.
        wrong = sum(wrong_digits(left, right, device) for device in (devices if k < 30000 else devices[1:]))
        case = [left_batch, right_batch, rows, columns, k, kind]
        tell(case, wrong=wrong)
