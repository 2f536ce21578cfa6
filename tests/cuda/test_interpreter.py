"""The kernels of a GPU in Triton's interpreter: the bits of a CPU, where there is no GPU."""

import pytest

from tests.cuda.harness.processes import interpreted

pytest.importorskip("triton")


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "part"), [("nvidia", 0), *((device, part) for device in ("any", "hopper") for part in range(4))]
)
def test_interpreted_kernels_give_the_bits_of_a_cpu(device, part):
    """On a Hopper GPU with the kernels that it would run: TMA, warp specialisation, assembly and all."""
    found = interpreted("residues", f"{part}/4", device)
    assert len(found) == len(range(part, 45, 4))
    assert not [entry for entry in found if entry["wrong"]]
    assert all(entry.get("again", 1) > 0 for entry in found)


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_balanced_operands_give_the_bits_of_a_cpu(part):
    found = interpreted("balance", f"{part}/3")
    assert len(found) == (11 if part == 0 else 7)
    assert not [entry for entry in found if entry["wrong"]]
    assert all(entry.get("again", 1) > 0 and entry.get("proved", 1) > 0 for entry in found)


@pytest.mark.evidence
@pytest.mark.slow
def test_leading_limbs_spared_bits_and_single_entries_hold_against_integers():
    found = interpreted("more")
    assert len(found) == 107
    assert not [entry for entry in found if entry["wrong"]]
    # The cases can fail: limbs that are left out change sums, bits are spared, and entries are proved.
    assert sum(entry.get("differ", 0) for entry in found) > 100
    assert {entry["kept"] for entry in found if "kept" in entry} == {5, 6}
    assert sum(entry.get("spared", 0) for entry in found) > 10 and sum(entry.get("proved", 0) for entry in found) > 20
