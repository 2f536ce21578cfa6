"""What a first use times: its programs fit, and are the kernels that calls launch."""

import dataclasses
import time

import pytest
import torch

import prismm
from prismm.cuda.costs import measurement
from prismm.cuda.costs.derive import REFERENCE, REFERENCE_MEASURED, derived
from prismm.cuda.costs.facts import facts_of
from prismm.cuda.costs.table import calibrated
from prismm.cuda.device import Device, device_of
from prismm.cuda.residues import fp8_proof
from tests.cuda.harness.pretended import pretended

pytest.importorskip("triton")  # and no test is charged with its import

PORTABLE = Device("NVIDIA A100-SXM4-40GB", False, True, 108)
BLACKWELL = Device("NVIDIA B300 SXM6 AC", False, True, 148, float64_dot=False, fp8_sum_bits=24)


@pytest.fixture
def programs(monkeypatch):
    """Programs as they are made, over memory that takes none before it is written."""
    found = []
    monkeypatch.setattr(measurement, "_run", lambda program, memory: found.append((program, memory)))
    return found


def memory_of():
    return torch.empty(2 * measurement._COPIED, dtype=torch.uint8)


def test_products_fit_and_read_ordinary_numbers(programs):
    generator = torch.Generator().manual_seed(1)
    for kind, n, count in ((torch.float32, 64, 50), (torch.float64, 256, 1), (torch.float32, 256, 1)):
        measurement._products(kind, n, count, memory_of(), generator)
        program, memory = programs.pop()
        assert program.workspace <= memory.numel() and len(program.launches) == count
        gemm = program.launches[0]
        for operand in (gemm.a, gemm.b):
            values = memory[operand.offset : operand.offset + n * n * kind.itemsize].view(kind)
            assert 0.9 < float(values.std()) < 1.1
        ends = [place.offset + n * n * kind.itemsize for place in (gemm.a, gemm.b, gemm.out)]
        assert ends[0] <= gemm.b.offset and ends[1] <= gemm.out.offset and ends[2] <= gemm.workspace.offset


def test_the_largest_product_fits():
    n = measurement._N
    assert 3 * 8 * n * n + measurement.WORKSPACE <= 2 * measurement._COPIED
    assert 6 * measurement._LIBRARY_N**2 <= 2 * measurement._COPIED


def test_residues_are_multiplied_as_a_call_does(programs, monkeypatch, tmp_path):
    """The launch of the product, its constants and types: those of a float64 product of that size."""
    monkeypatch.setattr(measurement, "_N", 256)
    with pretended(PORTABLE, tmp_path) as launched:
        measurement._residues(PORTABLE, memory_of(), torch.Generator().manual_seed(1))
        a = torch.zeros(256, 256, dtype=torch.float64)
        prismm.matmul(a, a, scheme=prismm.Residues(14), accuracy="native")
    (launch,) = programs.pop()[0].launches
    (expected,) = (line for line in launched if line.startswith("residue_product"))
    assert [x.dtype for x in launch.arguments[:3]] == [torch.int8, torch.int8, torch.uint8]
    for name, value in launch.constants.items():
        assert f"{name}={value}" in expected
    assert expected.startswith(f"residue_product[{'x'.join(map(str, launch.grid))}]")
    assert expected.count(":i8[") == 2 and expected.count(":u8[") == 1


@pytest.mark.slow
def test_fp8_digits_are_multiplied_as_a_call_does(programs, monkeypatch, tmp_path):
    """The launch of the product, its constants and types; of planes that fit, and hold no NaN."""
    generator = torch.Generator().manual_seed(1)
    memory = torch.empty(2 * measurement._COPIED, dtype=torch.uint8)
    _, count = measurement._digits(BLACKWELL, memory, generator)
    program, _ = programs.pop()
    assert count == 25 and program.workspace <= memory.numel()
    # Two planes, and residues of two bytes.
    assert program.workspace >= (2 + 2) * count * measurement._N**2
    assert int(memory[: 2 * count * measurement._N**2].max()) < 0x7F
    monkeypatch.setattr(measurement, "_N", 256)
    monkeypatch.setattr(fp8_proof, "prove", lambda *_: None)
    with pretended(BLACKWELL, tmp_path) as launched:
        measurement._digits(BLACKWELL, memory, generator)
        a = torch.zeros(256, 256, dtype=torch.float64)
        prismm.matmul(a, a, scheme=prismm.Residues(14), accuracy="native", engine="cuda:fp8")
    (launch,) = programs.pop()[0].launches
    (expected,) = (line for line in launched if line.startswith("digit_product"))
    assert [x.dtype for x in launch.arguments[:3]] == [torch.int8, torch.int8, torch.int16]
    for name, value in launch.constants.items():
        assert f"{name}={value}" in expected
    assert expected.startswith(f"digit_product[{'x'.join(map(str, launch.grid))}]")


@pytest.mark.gpu
def test_a_measurement_of_this_gpu():
    """In less than three seconds, once compiled; the caller's random numbers stay; rates near the calibrated ones."""
    device = device_of(0)
    measurement.measure(device, 0, time.perf_counter())
    state, begin = torch.cuda.get_rng_state(), time.perf_counter()
    found = measurement.measure(device, 0, begin)
    assert time.perf_counter() - begin < 3.0
    assert torch.equal(state, torch.cuda.get_rng_state())
    assert (found.int8_library if device.sm90 else found.int8) is not None
    table = calibrated(device.name)
    if table is not None:
        estimate = derived(dataclasses.replace(facts_of(device.name, 0), name=device.name), found)
        for part in ("float64", "float32", "memory", "int8"):
            assert getattr(estimate, part) == pytest.approx(getattr(table, part), rel=0.25), part
    if device.name == REFERENCE:
        assert found.float64 == pytest.approx(REFERENCE_MEASURED.float64, rel=0.2)
