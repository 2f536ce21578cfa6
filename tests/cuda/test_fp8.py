"""Residues by FP8 products on a GPU: kernels beside slow twins, what they compile to, and what the engine refuses."""

import dataclasses
import functools
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
from prismm.cuda.costs.predict import gpu_seconds
from prismm.cuda.costs.table import rates_of
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
from tests.cuda.harness.pretended import pretended
from tests.cuda.harness.processes import compiled, interpreted

pytest.importorskip("triton")

B200 = Device("NVIDIA B200", False, True, 148, float64_dot=False, fp8_sum_bits=24)
H100 = Device("NVIDIA H100 80GB HBM3", True, True, 132, fp8_sum_bits=14)
A100 = Device("NVIDIA A100", False, True, 108)
L40S = Device("NVIDIA L40S", False, True, 142, 99 << 10, fp8_sum_bits=14)
B300 = Device("NVIDIA B300 SXM6 AC", False, True, 148, float64_dot=False, fp8_sum_bits=24)
RTX5090 = Device("NVIDIA GeForce RTX 5090", False, True, 170, 99 << 10, fp8_sum_bits=24)


def problem(n=512, result=FP64, target="native", reproducible=False):
    return Problem(n, n, n, (), result, target and accuracy.parse_target(target), reproducible, True)


@pytest.fixture
def lone_gpu(monkeypatch, tmp_path):
    """No table of this machine's user counts, and a GPU has free memory."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (100 << 30, 140 << 30))
    monkeypatch.setenv("PRISMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PRISMM_RATES", raising=False)
    rates_of.cache_clear()
    yield
    rates_of.cache_clear()


def chosen(of, device, **options):
    scheme, engine = options.get("scheme"), options.get("engine")
    request, *_ = check_request(None, scheme, of.reproducible, None, engine, None, None, None)
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
        # Triton has no `tcgen05.mma` of INT8.
        (
            "sm_100",
            "tcgen05.mma.cta_group::1.kind::f8f6f4",
            "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.",
        ),
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
    for device, guessed in ((H100, True), (B200, False)):
        assert guessed == any("as fast as INT8" in x for x in chosen(problem(), device, engine=FP8).reasons)


# --- Auto -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("lone_gpu")
@pytest.mark.parametrize("n", [64, 512, 2048, 8192])
@pytest.mark.parametrize("result", [FP64, FP32])
@pytest.mark.parametrize("device", [H100, L40S, A100, RTX5090])
def test_nobody_gets_it_who_did_not_ask(n, result, device):
    """Where sums are short, or INT8 is predicted faster."""
    for scheme in (None, Residues(15)):
        assert chosen(problem(n, result), device, scheme=scheme).engine != FP8


@pytest.mark.usefixtures("lone_gpu")
@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({}, "native"), ({"scheme": Residues(15)}, None), ({"scheme": Residues(15), "engine": "cuda"}, "native"),
        ({}, "correctly-rounded"), ({}, "1e-9"), ({"reproducible": True}, "native"),
    ],
)  # fmt: skip
def test_auto_takes_it_where_it_is_predicted_faster(options, asked):
    """On a B300, whose INT8 is slow; the moduli are those that INT8 would get."""
    target = float(asked) if asked and asked[0].isdigit() else asked
    found = dict(options)
    product = problem(4096, target=target, reproducible=found.pop("reproducible", False))
    choice = chosen(product, B300, **found)
    assert choice.engine == FP8 and isinstance(choice.scheme, Residues)
    assert any("the same bits: predicted" in reason for reason in choice.reasons)
    without = chosen(product, dataclasses.replace(B300, fp8_sum_bits=0), **found)
    assert without.engine != FP8
    seconds = [gpu_seconds(choice.scheme, product, rates_of(B300.name), unit) for unit in (FP8, INT8, None)]
    assert seconds[2] == seconds[0] < seconds[1]
    # Prepared operands hold residues of 8 bits, and an engine that is asked for is taken.
    assert chosen(product, B300, scheme=Residues(15), cut=(128, None)).engine == INT8
    assert chosen(product, B300, scheme=Residues(15), engine=INT8).engine == INT8


@pytest.mark.usefixtures("lone_gpu")
def test_plans_say_what_else_there_was():
    product = problem(4096)
    request, *_ = check_request("native", None, False, None, None, None, None, None)
    for device, taken in ((B300, FP8), (RTX5090, INT8)):
        plan = cuda_plan.make_plan(product, chosen(product, device), request, device, "float64", "float64")
        assert plan.engine == taken and plan.products == (25 if taken == FP8 else 14)
        other = {FP8: INT8, INT8: FP8}[taken]
        (found,) = [x for x in plan.alternatives if x.engine == other]
        assert found.reason == "predicted slower" and found.predicted_seconds > plan.predicted_seconds
    device = dataclasses.replace(B300, fp8_sum_bits=0)
    plan = cuda_plan.make_plan(product, chosen(product, device), request, device, "float64", "float64")
    assert FP8 not in [plan.engine, *(x.engine for x in plan.alternatives)]


@pytest.mark.usefixtures("lone_gpu")
@pytest.mark.parametrize("verdict", [None, "inexact on extreme digits modulo 61", RuntimeError("it does not compile")])
def test_auto_takes_a_unit_that_has_proved_itself(verdict, monkeypatch, tmp_path):
    """Otherwise the call launches INT8 kernels, and says nothing of FP8; a call that asks for FP8 is refused."""
    torch = pytest.importorskip("torch")
    asked = []

    def proved(device, index):
        asked.append(device)
        if isinstance(verdict, RuntimeError):
            raise verdict
        return verdict

    monkeypatch.setattr(fp8_proof, "_proved", functools.cache(proved))
    a = torch.zeros(2048, 2048, dtype=torch.float64)
    with pretended(B300, tmp_path) as launched:
        plan = prismm.explain(a, a, accuracy="native")
        prismm.matmul(a, a, accuracy="native")
        kernels = {line.partition("[")[0].removeprefix("fork ") for line in launched if "[" in line}
        exact = verdict is None
        assert (plan.engine == FP8) == exact and ("digit_product" in kernels) == exact
        assert ("residue_product" in kernels) != exact and set(asked) == {B300}
        assert exact == any("FP8" in reason for reason in plan.reasons)
        if isinstance(verdict, str):
            with pytest.raises(EngineError, match="inexact on extreme digits"):
                prismm.matmul(a, a, scheme=Residues(14), engine=FP8)


@pytest.mark.usefixtures("lone_gpu")
def test_what_is_prepared_or_captured_goes_by_int8(monkeypatch, tmp_path):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(fp8_proof, "_proved", _Cached(None, 0))
    a = torch.zeros(2048, 2048, dtype=torch.float64)
    with pretended(B300, tmp_path), pytest.MonkeyPatch.context() as patch:
        assert prismm.prepare(a, scheme=Residues(14)).engine == INT8
        assert prismm.explain(a, a).engine == FP8
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert not fp8_proof.is_exact(B300, 0)


# --- Refusals ---------------------------------------------------------------------------------------------------------


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
