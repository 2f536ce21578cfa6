"""Which launches of a program may run side by side in a graph: those that split one operand and the other."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from prismm.cuda.device import Device  # noqa: E402
from prismm.cuda.launch.cublas import Gemm  # noqa: E402
from tests.cuda.harness.programs import residue_program  # noqa: E402

H200 = Device("NVIDIA H200", True, True, 132)


def told(program):
    """Launches by name, and whether they run beside what follows; None where all meet."""
    found = []
    for launch in program.launches:
        kernel = getattr(launch, "kernel", None)
        name = kernel.fn.__name__ if kernel is not None else "zero" if hasattr(launch, "offset") else None
        name = "cublas" if isinstance(launch, Gemm) else name
        found.append((name, getattr(launch, "forked", None)))
    return found


@pytest.mark.parametrize("dtype", (torch.float64, torch.complex64))
def test_operands_are_split_side_by_side_and_meet_before_the_product(dtype):
    x = torch.zeros(1, 256, 256, dtype=dtype)
    launches = told(residue_program(x, x, torch.empty_like(x), 14, "native", H200))
    meeting = launches.index((None, None))
    before, after = launches[:meeting], launches[meeting + 1 :]
    assert after[0] == ("residue_product", False) and not any(beside for _, beside in after)
    beside = [name for name, side in before if side]
    others = [name for name, side in before if not side]
    assert beside == ["zero", "zero", "largest_columns", "sum_columns", "split_columns"]
    assert others == ["split_rows" if dtype.is_complex else "split_rows_fused"]
    assert launches.count((None, None)) == 1


def test_a_native_product_is_looked_at_afterwards_or_its_operands_beside_it():
    x = torch.zeros(1, 256, 256, dtype=torch.float64)
    own = residue_program(x, x, torch.empty_like(x), 0, "native", H200)
    assert told(own) == [("cublas", False), ("finish_native", False)]
    a, b = (torch.zeros(1, *shape, dtype=torch.float64) for shape in ((2048, 16), (16, 2048)))
    launches = told(residue_program(a, b, torch.empty(1, 2048, 2048, dtype=a.dtype), 0, "native", H200))
    assert launches == [("largest_magnitudes", True), ("cublas", False), (None, None), ("finish_native", False)]
