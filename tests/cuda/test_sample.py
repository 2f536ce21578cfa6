"""What Auto's look at a sample of the data says, and what comes of it; on tensors of a CPU."""

import math

import pytest

from prismm.core.accuracy import parse_target
from prismm.core.problem import Problem
from prismm.core.request import Request
from prismm.cuda import plan as cuda_plan
from prismm.cuda import sample as cuda_sample
from prismm.cuda.choice import Uncertified
from prismm.cuda.device import Device
from prismm.formats import FP32, FP64
from prismm.schemes import Native, Residues

torch = pytest.importorskip("torch")

H200 = Device("NVIDIA H200", True, True, 132)


def problem_of(n, result=FP64, is_complex=False, k=None, batch=()):
    return Problem(n, n, k or n, batch, result, parse_target("native"), False, True, is_complex)


def operands(seed, phi, shape=(1024, 1024), dtype=torch.float64):
    """(rand - 0.5)·exp(phi·randn), the test matrices of Mukunoki et al."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(2):
        x, y = (
            torch.rand(shape, generator=generator, dtype=torch.float64) - 0.5,
            torch.randn(shape, generator=generator),
        )
        found.append((x * torch.exp(phi * y.double())).to(dtype))
    return found


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    """Of the machine that the tests run on."""
    for name in ("PRISMM_RATES", "PRISMM_ENGINE", "NVIDIA_TF32_OVERRIDE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda *_: (1 << 37, 1 << 37))


def chosen(problem, share):
    options = Request(problem.target, None, False, None, None, 1, None)
    return cuda_plan.choose(problem, options, H200, sample=share)


@pytest.mark.parametrize("is_complex", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_data_of_a_few_binades_leave_nothing_open_and_wide_data_do(is_complex):
    problem = problem_of(1024, is_complex=is_complex)
    shares = []
    for phi in (0.0, 0.1, 1.0, 2.0):
        a, b = operands(7, phi)
        if is_complex:
            a, b = torch.complex(a, a.roll(1, 0)), torch.complex(b, b.roll(1, 1))
        look = cuda_sample.DataSample(a, b, problem)
        shares.append([look(moduli).entries for moduli in (14, 15, 16)])
    assert max(shares[0]) == max(shares[1]) == 0.0
    for wide in shares[2:]:
        assert 0.05 < wide[0] < 0.6 and wide[1] < 0.25 * wide[0] and wide[2] < 0.25 * wide[1]


@pytest.mark.slow
def test_strips_that_are_not_certified_as_a_whole_are_seen():
    """Of short inner dimensions, where the least counts of large elements of many vectors are small: as simulated for
    strips of 64 rows and 128 columns of normal data.
    """
    torch.manual_seed(1)
    for k, result, moduli, least, most in (
        (96, FP32, 7, 0.7, 1.0), (128, FP32, 7, 0.2, 1.0), (224, FP32, 7, 0.0, 0.0), (1024, FP32, 7, 0.0, 0.0),
        (256, FP64, 14, 1.0, 1.0), (2048, FP64, 14, 0.0, 0.0), (256, FP64, 15, 0.0, 0.0),
    ):  # fmt: skip
        a, b = torch.randn(2048, k, dtype=torch.float64), torch.randn(k, 2048, dtype=torch.float64)
        problem = Problem(8192, 8192, k, (), result, parse_target("native"), False, True)
        left = cuda_sample.DataSample(a, b, problem)(moduli)
        assert least <= left.strips <= most and left.entries < 1e-3, (k, left)
        if least == most:
            a[::64] = 0.0  # half of what is looked at, and no part of any least count
            assert cuda_sample.DataSample(a, b, problem)(moduli).strips == left.strips
    # What would be made by residues by its shape alone is left to a conventional product.
    problem = Problem(4096, 4096, 2048, (), FP64, parse_target("native"), False, True)
    assert chosen(problem, None).scheme == Residues(14)
    assert isinstance(chosen(problem, lambda moduli: Uncertified(0.0, 0.0, 0.5)).scheme, Native)


def test_no_power_of_two_shows_in_a_share():
    a, b = operands(3, 1.0)
    powers = torch.ldexp(torch.ones(1024, dtype=torch.float64), torch.arange(-512, 512))
    problem = problem_of(1024)
    assert (
        cuda_sample.DataSample(a, b, problem)(14).entries
        == cuda_sample.DataSample(a * powers[:, None], b * powers, problem)(14).entries
        > 0.0
    )


def test_zeros_and_what_is_not_finite_are_no_reason_to_leave_residues():
    problem = problem_of(256)
    a, b = operands(5, 0.1, (256, 256))
    a[3], b[:, 9] = 0.0, math.nan
    a[20, 4], a[40, 1] = math.inf, -math.inf
    assert cuda_sample.DataSample(a, b, problem)(14).entries == 0.0
    assert cuda_sample.DataSample(torch.zeros(256, 256), b, problem)(14).entries == 0.0


def test_vectors_batches_and_narrow_types_are_looked_at():
    a, b = operands(5, 0.1, (300, 300))
    assert cuda_sample.DataSample(a[0], b, problem_of(300))(14).entries == 0.0
    assert cuda_sample.DataSample(a, b[:, 0], problem_of(300))(14).entries == 0.0
    assert cuda_sample.DataSample(a.expand(4, 300, 300), b, problem_of(300, batch=(4,)))(14).entries == 0.0
    a, b = operands(5, 2.0, (300, 300), torch.float32)
    assert cuda_sample.DataSample(a, b, problem_of(300, FP32))(7).entries > 0.01


def test_what_a_share_makes_auto_take():
    """Nothing open: what the shape says. Some that magnitudes prove: the same, where products are long enough. Some to
    be set to their exact values: more moduli. Many, whatever the moduli: cuBLAS.
    """
    problem = problem_of(8192)
    assert chosen(problem, lambda moduli: Uncertified(0.0, 0.0)).scheme == chosen(problem, None).scheme == Residues(14)
    spread = chosen(problem, lambda moduli: Uncertified(0.2, 0.0))
    assert spread.scheme == Residues(14) and "0.2 of a sample's entries uncertified" in spread.reasons[0]
    wide = chosen(problem, lambda moduli: Uncertified(0.2, 0.02) if moduli == 14 else Uncertified(1e-5, 0.0))
    assert isinstance(wide.scheme, Residues) and wide.scheme.moduli > 14
    sparse = chosen(problem, lambda moduli: Uncertified(0.8, 0.4))
    assert sparse.scheme == Native() and "0.4 to be made exact" in sparse.reasons[0]
    assert chosen(problem_of(4096), lambda moduli: Uncertified(0.2, 0.0)).scheme == Native()


def test_a_sample_that_shows_none_any_more_does_not_mean_none():
    """From 3 in 4096 on, a modulus more would do where zero meant zero; the times of exact values say otherwise."""
    problem = problem_of(8192)
    found = chosen(
        problem, lambda moduli: Uncertified(3 / 4096, 3 / 4096) if moduli == 14 else Uncertified(0.0, 0.0)
    ).scheme
    assert found == Native() or found.moduli > 15


def test_magnitudes_of_seven_bits_prove_entries_of_some_wide_data():
    problem = problem_of(1024)
    lefts = [cuda_sample.DataSample(*operands(7, phi), problem)(14) for phi in (1.0, 2.0, 4.0)]
    assert 0.0 <= lefts[0].exact < 0.002 and lefts[0].entries > 0.05
    assert 0.0 < lefts[1].exact < 0.5 * lefts[1].entries
    assert lefts[2].exact > 0.4


def test_where_no_product_is_not_zero_nothing_is_left():
    a, b = operands(7, 1.0, (256, 256))
    a[:, 128:], b[:128] = 0.0, 0.0
    left = cuda_sample.DataSample(a, b, problem_of(256))(14)
    assert left.entries > 0.5 and left.exact == 0.0


@pytest.mark.parametrize(
    "problem",
    [
        problem_of(256), Problem(4096, 4096, 4096, (), FP64, parse_target("native"), True, True),
        Problem(4096, 4096, 4096, (), FP64, parse_target("correctly-rounded"), False, True),
        Problem(4096, 4096, 4096, (), FP32, parse_target("native"), False, True),
    ],
)  # fmt: skip
def test_nothing_is_looked_at_where_it_decides_nothing(problem):
    def never(moduli):
        raise AssertionError("looked at")

    assert chosen(problem, never).reasons
