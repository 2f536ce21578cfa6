"""Products of residue planes on a GPU against exact integers: Hopper's kernel and the plain one."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from prismm.cuda.device import device_of  # noqa
from prismm.cuda.residues.tables import tables  # noqa: E402
from tests.cuda.harness.planes import digits_of, exact_digits, permuted, planes_program  # noqa: E402
from tests.cuda.harness.processes import interpreted  # noqa: E402

MODULI = 20

LENGTHS = (
    1, 16, 127, 128, 129, 256, 300, 384, 385, 512, 640, 1000, 2048, 32768, 32784, 33024, 33200, 65536, 70000,
)  # fmt: skip
"""Of the inner dimension: up to one stage, up to those that end and begin a tile, one more; sums that are reduced once,
just before the end, and twice.
"""


def test_rows_change_their_places_within_64():
    places = permuted(192)
    assert sorted(places) == list(range(192)) and all(x // 64 == y // 64 for x, y in enumerate(places))


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_interpreted_kernels_give_the_digits_of_exact_integers(part):
    found = interpreted("product", f"{part}/2")
    assert len(found) > 20
    assert not [entry for entry in found if entry["wrong"]]


def product(left, right, device, batch):
    """Digits of planes (batch or 1, MODULI, rows, k), and the planes' rows as the kernels take them."""
    program, digits, fill = planes_program(left, right, device)
    workspace = torch.zeros(program.workspace, dtype=torch.uint8, device=left.device)
    fill(workspace)
    program.run((0, 0, 0, workspace.data_ptr()), torch.cuda.current_stream().cuda_stream)
    assert digits.shape[0] == batch
    return digits_of(workspace, digits, right.shape[2])


@pytest.mark.gpu
@pytest.mark.parametrize("k", LENGTHS)
def test_digits_are_those_of_exact_integers(k):
    device = device_of(0)
    torch.manual_seed(k)
    print("seed", k)
    rows, columns = (130, 300) if k < 20000 else (70, 260)
    table = tables(MODULI, torch.device("cuda", 0))
    for kind in ("any", "least", "greatest", "opposite"):
        left, right = (
            torch.randint(-128, 128, (1, MODULI, x, k), dtype=torch.int8, device="cuda") for x in (rows, columns)
        )
        if kind != "any":  # the largest sums that there are, next to any
            left[:, :, ::2] = -128
            right[:, :, ::3] = {"least": -128, "greatest": 127, "opposite": 127}[kind]
            if kind == "opposite":
                left[:, :, 1::2] = 127
        want = exact_digits(left, right, table)
        for one in {device.sm90, False}:
            found = product(left, right, dataclasses.replace(device, sm90=one), 1)
            assert torch.equal(found, want), (kind, one, int((found != want).sum()))


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns"), ((1, 1), (64, 256), (65, 257), (1000, 70), (1, 5000), (3000, 3)))
@pytest.mark.parametrize("many", (1, 3))
def test_digits_of_all_shapes_and_batches(rows, columns, many):
    """Tiles that are cut off, a program with several tiles, and an operand that serves all matrices."""
    device = device_of(0)
    torch.manual_seed(rows)
    print("seed", rows)
    table = tables(MODULI, torch.device("cuda", 0))
    for own in {(many, many), (1, many), (many, 1)}:
        left, right = (
            torch.randint(-128, 128, (b, MODULI, x, 400), dtype=torch.int8, device="cuda")
            for b, x in zip(own, (rows, columns), strict=True)
        )
        found = product(left, right, device, many)
        assert torch.equal(found, exact_digits(left.expand(many, -1, -1, -1), right.expand(many, -1, -1, -1), table)), (
            own
        )
