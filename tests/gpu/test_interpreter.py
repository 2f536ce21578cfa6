"""The kernels of a GPU in Triton's interpreter: the bits of a CPU, where there is no GPU."""

import pytest

from tests.gpu.processes import interpreted

pytest.importorskip("triton")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_interpreted_kernels_give_the_bits_of_a_cpu(part):
    found = interpreted("residues", f"{part}/4")
    assert len(found) == len(range(part, 26, 4))
    assert not [entry for entry in found if entry["wrong"]]
