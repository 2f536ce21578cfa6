"""Residues by FP8 products on a GPU: kernels beside slow twins, what they compile to, and what the engine refuses."""

import dataclasses
import math

import numpy as np
import pytest

import prismm
from prismm.core import accuracy
from prismm.core.fp8_moduli import FAMILIES, digit_table, fp8_moduli, fp8_products
from prismm.core.moduli import MAX_MODULI, coprime_moduli, scheme_product
from prismm.core.problem import Problem
from prismm.core.request import check_request
from prismm.cuda import plan as cuda_plan
from prismm.cuda.device import FP8, INT8, Device
from prismm.cuda.implementation import implementation_of
from prismm.cuda.residues import fp8, fp8_proof
from prismm.errors import ArgumentError, EngineError
from prismm.formats import FP32, FP64, Format
from prismm.numerics import products
from prismm.numerics.catalogue import engine
from prismm.schemes.residues import Residues
from prismm.schemes.scaled_half import ScaledHalf
from prismm.testing import HOSTILE
from tests import judge
from tests.cuda.harness import fp8_twin as twin
from tests.cuda.harness.processes import compiled, interpreted

pytest.importorskip("triton")

B200 = Device("NVIDIA B200", False, True, 148, float64_dot=False, fp8_sum_bits=24)
H100 = Device("NVIDIA H100 80GB HBM3", True, True, 132, fp8_sum_bits=14)
A100 = Device("NVIDIA A100", False, True, 108)
L40S = Device("NVIDIA L40S", False, True, 142, 99 << 10, fp8_sum_bits=14)
RTX5090 = Device("NVIDIA RTX 5090", False, True, 170, 99 << 10, fp8_sum_bits=24)


def problem(n=512, result=FP64, **options):
    return Problem(
        n, n, n, (), result, accuracy.parse_target(options.pop("accuracy", "native")), False, True, **options
    )


def chosen(of, device, **options):
    request, *_ = check_request(None, options.get("scheme"), False, None, options.get("engine"), None, None, None)
    return cuda_plan.choose(of, request, device, options.get("cut", (None, None)))


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("unit", twin.UNITS)
def test_interpreted_kernels_do_what_slow_twins_do(unit):
    """On a unit that keeps as few bits of a sum as this one; and the proof sees when it keeps one less."""
    found = interpreted("fp8", unit, "kernels")
    proofs = {entry["case"][1]: entry["reason"] for entry in found if entry["case"][0] == "proof"}
    assert proofs[0] is None and "inexact on extreme digits modulo" in proofs[-1]
    rest = [entry for entry in found if entry["case"][0] != "proof"]
    assert {entry["case"][0] for entry in rest} == {"split", "convert", "multiply"}
    assert not [entry for entry in rest if entry["wrong"] or entry.get("statistics")]


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("unit", twin.UNITS)
def test_interpreted_products_have_the_bits_of_int8(unit):
    found = interpreted("fp8", unit, "products")
    assert len(found) == 8 and not [entry for entry in found if entry["wrong"]]


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "fp8_instruction", "int8_instruction"),
    [
        ("sm_89", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", "mma.sync.aligned.m16n8k32.row.col."),
        ("sm_90", "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3", "wgmma.mma_async.sync.aligned.m64n"),
        ("sm_100", "tcgen05.mma.cta_group::1.kind::f8f6f4", ""),
        ("sm_120", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", "mma.sync.aligned.m16n8k32.row.col."),
    ],
)
def test_kernels_compile_to_matrix_instructions(architecture, fp8_instruction, int8_instruction):
    found = compiled("fp8", architecture)
    products = [entry for entry in found if entry["kernel"] == "digit_product"]
    assert products
    kernels = {entry["kernel"] for entry in found if entry["engine"] == FP8}
    assert kernels == {"split_digits", "digit_product", "scheme_digits"}
    for entry in products:
        assert list(entry["instructions"]) == [fp8_instruction]
        count = entry["instructions"][fp8_instruction]
        if architecture == "sm_90":
            # Each has a sum of its own, for which the assembler waits before it is added.
            assert entry["separate"] == count == 4 and entry["waits"] > 0
    for entry in found:
        assert entry["shared"] <= (99 << 10 if architecture in ("sm_89", "sm_120") else 227 << 10)
        assert entry["stack"] <= 64, entry
    (whole,) = [entry for entry in found if entry["kernel"] == "residue_product"]
    assert all(name.startswith(int8_instruction) for name in whole["instructions"]) and whole["instructions"]


def test_digits_of_other_moduli_make_the_digits_of_the_scheme(rng):
    """The change of base in Python's integers, with the numbers that the kernel is compiled with."""

    def check(case):
        family, moduli = case
        moduli_of_products = fp8_moduli(moduli, family)
        whole, product = math.prod(moduli_of_products), scheme_product(moduli)
        bits, fractions, weights = fp8.conversion(moduli, moduli_of_products)
        assert max(fractions) < 1 << 31 and max(map(abs, weights)) <= 128
        most = (product - (product >> 16)) // 2
        for value in (0, 1, -1, most, -most, most // 3, -most // 7, int(rng.integers(1 << 40)) % (most + 1)):
            d = [value * pow(whole // q, -1, q) % q for q in moduli_of_products]
            z = (sum(x * y for x, y in zip(d, fractions, strict=True)) + (1 << (bits - 1))) >> bits
            assert sum(x * (whole // q) for x, q in zip(d, moduli_of_products, strict=True)) - z * whole == value
            step = len(d) + 1
            for t, p in enumerate(coprime_moduli(256, moduli)):
                total = sum(x * w for x, w in zip([*d, z], weights[t * step : (t + 1) * step], strict=True))
                assert abs(total) < 1 << 24
                assert total % p == value * pow(product // p, -1, p) % p

    judge.assert_each(check, [(family, moduli) for family in FAMILIES for moduli in range(2, MAX_MODULI + 1)])


def test_sums_stay_where_they_are_exact():
    """What `product_fp8` proves of its three sums, of every modulus and device."""
    for device in (B200, H100, L40S, RTX5090):
        family, config = fp8.family_for(device), fp8.product_config(device)
        moduli = [q for q, _ in family.triples] + sorted({q for some in family.singles for q in some})
        for row in fp8.product_rows(moduli, family):
            largest, block = digit_table(row[0], family).largest, row[3]
            assert block * largest**2 <= 1 << 24 and block % config.depth == 0 and block >= 512
            if device.fp8_sum_bits == 14:
                assert 32 * largest**2 <= 1 << 14
                assert config.imprecise == 32 or (config.apart and config.depth == 32)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_proof_fails_on_every_unit_of_fewer_bits(family):
    """Whether the unit adds whole blocks, or the compiler the sums of four instructions or of one; where those fit in
    the unit's bits, they are exact.
    """
    hopper = engine("h100-wgmma.e4m3.fp32")
    for rows, columns, q in fp8_proof.extreme_residues(family):
        table, block = digit_table(q, family), rows.shape[1] - 3
        for bits in range(11, 25):
            kept = Format(8, bits - 1, name=f"e8m{bits - 1}")
            unit = dataclasses.replace(hopper, name=kept.name, fraction_bits=bits - 1, accumulator=kept)
            for x, digits in enumerate(table.digits.astype(np.float64)):
                left, right = digits[rows[[x], :block]], digits[columns[x::3, :block]].T
                exact, size = (left @ right).astype(np.int64), np.abs(digits).max() ** 2
                for step in (block, 128, 32):
                    # All steps but the last are alike.
                    first, last = (
                        products.gemm(unit, left[:, h : h + step], right[h : h + step], None, 1, None, 1)
                        for h in (0, block - step)
                    )
                    found = (first * (block // step - 1) + last).astype(np.int64)
                    wrong = (found - exact) % q != 0
                    before = (step - 32) * size if step > 32 else 31 * size
                    assert wrong.any() or before < 2**bits, (q, bits, x, step)
                    assert not wrong.any() or step * size > 2**bits, (q, bits, x, step)


def test_the_engine_runs_residues_where_it_is_asked_for():
    for device, family in ((B200, FAMILIES[0]), (H100, FAMILIES[1])):
        for options in ({}, {"scheme": Residues(15)}, {"scheme": Residues(7)}):
            choice = chosen(problem(), device, engine=FP8, **options)
            assert choice.engine == FP8 and isinstance(choice.scheme, Residues)
            products = implementation_of(choice.scheme).products_on(FP8, problem(), device)
            assert products == fp8_products(choice.scheme.moduli, family)
            other = chosen(problem(), device, engine=INT8, scheme=choice.scheme)
            assert choice.blocks.workspace > other.blocks.workspace
    assert any("as fast as INT8" in reason for reason in chosen(problem(), B200, engine=FP8).reasons)


@pytest.mark.parametrize("n", [64, 512, 2048])
@pytest.mark.parametrize("result", [FP64, FP32])
def test_nobody_gets_it_who_did_not_ask(n, result):
    for device in (B200, H100):
        for scheme in (None, Residues(15)):
            assert chosen(problem(n, result), device, scheme=scheme).engine != FP8


def test_what_it_refuses():
    with pytest.raises(EngineError, match=r"NVIDIA A100 has no FP8 matrix instructions .*engine='cuda:int8'"):
        chosen(problem(), A100, engine=FP8)
    with pytest.raises(EngineError, match="no FP8 matrix instructions"):
        chosen(problem(), dataclasses.replace(B200, fp8_sum_bits=11), engine=FP8, scheme=Residues(15))
    with pytest.raises(EngineError, match="prepared operands hold 8-bit residues"):
        chosen(problem(), B200, engine=FP8, scheme=Residues(15), cut=(128, None))
    with pytest.raises(ArgumentError):
        chosen(problem(result=FP32), B200, engine=FP8, scheme=ScaledHalf())


def test_a_unit_that_is_not_exact_is_refused(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(fp8_proof, "_proved", _Cached("inexact on extreme digits modulo 61", 0))
    with pytest.raises(EngineError, match="before the capture"):
        fp8_proof.prove(B200, 0)
    monkeypatch.setattr(fp8_proof, "_proved", _Cached("inexact on extreme digits modulo 61", 1))
    with pytest.raises(EngineError, match=r"B200's FP8 products are inexact on .*; pass engine='cuda:int8'"):
        fp8_proof.prove(B200, 0)
    monkeypatch.setattr(fp8_proof, "_proved", _Cached(None, 1))
    fp8_proof.prove(B200, 0)


class _Cached:
    """A cached function."""

    def __init__(self, answer, currsize):
        self.answer, self.currsize = answer, currsize

    def __call__(self, device, index):
        return self.answer

    def cache_info(self):
        return self


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_the_bits_are_those_of_int8(dtype, seed):
    torch = pytest.importorskip("torch")
    scheme = Residues(7 if dtype == "float32" else 15)
    for kind, generate in HOSTILE.items():
        a, b = (torch.from_numpy(x).cuda() for x in generate(33, 700, 65, seed, np.dtype(dtype)))
        for options in ({}, {"accuracy": "native"}, {"accuracy": "correctly-rounded"}):
            found, other = (prismm.matmul(a, b, scheme=scheme, engine=x, **options) for x in (FP8, INT8))
            assert torch.equal(
                torch.view_as_real(found).view(torch.int64) if found.is_complex() else found.view(torch.uint8),
                torch.view_as_real(other).view(torch.int64) if other.is_complex() else other.view(torch.uint8),
            ), kind
