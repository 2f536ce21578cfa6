"""Native products whose operands are looked at in place of the result."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from prismm.core.problem import Problem  # noqa: E402
from prismm.cuda.native import seconds as native_seconds  # noqa: E402
from prismm.cuda.native.seconds import is_proved  # noqa: E402
from prismm.formats import FP64  # noqa: E402
from tests.cuda.harness.processes import interpreted  # noqa: E402


def problem(m, n, k, batch=(), is_complex=False, **other):
    return Problem(m, n, k, batch, FP64, None, False, True, is_complex, **other)


def test_operands_are_read_where_they_are_smaller_than_a_large_result():
    assert (
        is_proved(problem(8192, 8192, 32))
        and is_proved(problem(2048, 2048, 512))
        and is_proved(problem(65536, 256, 64))
    )
    assert not is_proved(problem(2048, 2048, 513)) and not is_proved(problem(1024, 1024, 16))
    assert is_proved(problem(1024, 1024, 16, is_complex=True)) and is_proved(problem(512, 512, 32, (8,)))
    assert not is_proved(problem(1 << 25, 1 << 25, 1 << 22, is_complex=True))
    assert not is_proved(problem(8192, 8192, 32, summed=True))


@pytest.mark.evidence
@pytest.mark.slow
def test_the_proof_holds_up_to_the_last_exponent():
    """In the interpreter: entries that are NaN stay where nothing can overflow, and are made where something might."""
    seed = 20261123
    print("seed", seed)
    lines, proved = [], []
    for dtype, top in (("float64", 1023), ("float32", 127)):
        for k in (1, 2, 3, 8, 9):
            # |x| < 2^(scale + 1): 2·scale + 2 + 4 + ceil(log2 k) <= top.
            most = (top - 6 - (k - 1).bit_length()) // 2
            for scale in (most, most + 1, 0):
                lines.append((dtype, k, scale, None))
                proved.append(scale <= most)
        lines += [(dtype, 9, -20, float("inf")), (dtype, 9, -20, float("nan"))]
        proved += [False, False]
    assert [entry["proved"] for entry in interpreted("proofs", str(seed), json.dumps(lines))] == proved


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ("float64", "float32", "complex128", "complex64"))
def test_entries_that_overflow_are_repaired_by_tiles_or_one_by_one(dtype):
    """In the interpreter, against exact arithmetic: infinite where RN(exact) is, else within the bound."""
    found = interpreted("finish", dtype)
    assert not [entry for entry in found if entry["wrong"]]
    assert all(entry["suspicious"] for entry in found)
    # Each way is taken, also in one product.
    both = [x for x in found if 0 < x["exact"] < x["suspicious"] - x["special"]]
    assert both and any(x["special"] for x in found) and any(x["exact"] == x["suspicious"] for x in found)
    assert sum(x["suspicious"] - x["special"] - x["exact"] for x in found) > 1000


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ("float64", "float32", "complex128", "complex64"))
@pytest.mark.parametrize("shape", ((2048, 1024, 40), (8, 512, 1024, 17), (1500, 1500, 1)))
def test_results_are_those_of_a_look_at_the_result(dtype, shape, monkeypatch):
    """Eager and captured, of operands that overflow, nearly do, or hold what is not finite."""
    import prismm
    from prismm.cuda import calls as cuda_calls

    *batch, m, n, k = shape
    kind, rng = getattr(torch, dtype), np.random.default_rng(7)
    top = 1023 if dtype in ("float64", "complex128") else 127
    form = {"scheme": prismm.Native(), "accuracy": "native"}

    def operand(*sizes, scale):
        x = rng.standard_normal((*batch, *sizes))
        if kind.is_complex:
            x = x + 1j * rng.standard_normal((*batch, *sizes))
        return torch.from_numpy(x).to(kind).cuda() * 2.0**scale

    def told(x):
        return (torch.view_as_real(x) if kind.is_complex else x).nan_to_num(nan=7.0)

    made = 0
    cases = [(scale, None) for scale in (0, top // 2 - 8, top // 2 + 2, -top // 2)] + [(0, "inf"), (0, "nan")]
    for scale, spoil in cases:
        a, b = operand(m, k, scale=scale), operand(k, n, scale=scale)
        if spoil:
            a[..., 5, 0] = float(spoil)
        b = b.mT.contiguous().mT if scale else b
        results = []
        for least in (1, 1 << 60):
            monkeypatch.setattr(native_seconds, "_PROVED", least)
            cuda_calls.forget()
            for _ in range(4):
                results.append(prismm.matmul(a, b, **form))
            (call,) = cuda_calls.known()
            names = [name for queued in call.programs.values() for name, _ in queued.program.single_launches()]
            made += "largest_magnitudes" in names
            out = torch.empty_like(results[0])
            prismm.matmul(a, b, out=out, **form)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                prismm.matmul(a, b, out=out, **form)
            for _ in range(2):
                out.zero_()
                graph.replay()
                results.append(out.clone())
        for result in results[1:]:
            assert torch.equal(told(result), told(results[0])), (scale, spoil)
    assert made == 6
