"""Symmetric products on a GPU: tiles that are left out, and the bits of whole products in all others."""

import pytest
import torch

from prismm.cuda import symmetric
from prismm.cuda.symmetric import lower_tiles
from tests.cuda.harness.processes import compiled, interpreted

pytest.importorskip("triton")


@pytest.mark.parametrize("rows, columns", [(128, 256), (128, 128), (128, 64)])
def test_every_tile_that_has_an_entry_below_the_diagonal_is_made_once(rows, columns):
    for n in (1, 127, 128, 129, 640, 1537, 5000):
        down, across = -(-n // rows), -(-n // columns)
        places = [divmod(int(x), 65536) for x in lower_tiles(down, across, rows, columns, 8, torch.device("cpu"))]
        wanted = {(i, j) for i in range(down) for j in range(across) if min((i + 1) * rows, n) > j * columns}
        assert len(places) == len(set(places)) and set(places) == wanted


def test_half_the_tiles_of_large_products_are_left_out():
    for n, most in ((4096, 0.54), (8192, 0.52)):
        made = lower_tiles(n // 128, n // 256, 128, 256, 8, torch.device("cpu"))
        assert len(made) * 128 * 256 < most * n * n
    assert symmetric.LEAST > 256  # from where there are tiles to leave out


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize(("device", "part"), [(device, part) for device in ("any", "hopper") for part in range(4)])
def test_interpreted_symmetric_products_have_the_bits_of_whole_ones(device, part):
    """Whatever stands in memory before; what lies above the diagonal is neither made nor repaired."""
    found = interpreted("symmetric", f"{part}/4", device)
    assert len(found) == len(range(part, 25, 4))
    assert not [entry for entry in found if entry["wrong"] or entry["written"] or not entry.get("counted", True)]
    for entry in found:
        name, *rest = entry["case"]
        if name == "planes":
            assert (entry["left_out"] > 0) == (rest[1] > 256)
        elif name in ("float64", "float32"):  # of a matrix that is split once on a Hopper GPU
            assert entry["once"] == (device == "hopper" and rest[-1] is None)


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [("sm_90", "float64"), ("sm_90", "float32"), ("sm_90", "complex64"), ("sm_80", "float32")],
)
def test_symmetric_products_compile(architecture, dtype):
    found = compiled("symmetric", architecture, dtype)
    names = {entry["kernel"] for entry in found}
    wanted = {"mirror", "join_fast", "combine_digits", "combine_values"}
    before = "symmetric_" if architecture == "sm_90" else ""
    wanted |= {f"{before}residue_product"}
    wanted |= {"split_words", f"{before}words_product"} if dtype in ("float32", "complex64") else set()
    assert names == wanted
    for entry in found:
        if entry["kernel"].endswith("product"):
            # The portable kernel takes all 255 registers and puts six beside them.
            spilled = 24 if entry["kernel"] == "words_product" else 0
            assert entry["stack"] <= spilled and not entry["serialized"], entry
