"""Simulated engines against published outputs of the hardware, their bounds, and the names they answer to."""

import doctest
from fractions import Fraction
from operator import mul

import numpy as np
import pytest

import prismm
import prismm.cpu.engines.floats
import prismm.cpu.engines.simulated
from prismm.cpu.engines.floats import BLAS, FloatEngine, accumulator_of, engine_for, float_engines
from prismm.cpu.engines.simulated import SimulatedEngine, names
from prismm.errors import ArgumentError, EngineError
from prismm.formats import BF16, FP16, FP32, FP64, TF32, Format
from prismm.numerics import catalogue, simulate
from prismm.numerics.model import BlockScale, EngineModel
from tests.cpu.kernels.harness import integers
from tests.numerics.kernels.low_precision import KINDS, operands

GENERATIONS = ["volta", "turing", "ampere", "hopper"]


def dot(name, *blocks, inputs=FP16, accumulate=FP32):
    """The blocks of (a, b) pairs, each padded to one of the engine's; so that one can set up the accumulator."""
    engine = engine_for(f"simulated:{name}")
    width = engine.model(inputs, accumulate).block
    flat = [pair for block in blocks for pair in [*block, *[(0.0, 0.0)] * (width - len(block))]]
    a, b = np.array(flat).T
    return float(engine.multiply(a[None, :], b[:, None], inputs, accumulate, 1)[0, 0])


@pytest.mark.parametrize(("name", "expected"), zip(GENERATIONS, [0.0, -0.5, -0.5, -0.75], strict=True))
def test_the_sum_that_tells_generations_apart(name, expected):
    """2^23 - 2^23 - 0.5 - 0.25 - 0.125 with 2^23 in the accumulator (Xie et al. 2024, Table 8)."""
    terms = [(-(2.0**13), 2.0**10), (-0.5, 1.0), (-0.25, 1.0), (-0.125, 1.0)]
    assert dot(name, [(2.0**13, 2.0**10)], terms) == expected


@pytest.mark.parametrize("name", GENERATIONS)
def test_the_published_findings(name):
    """Fasi, Higham, Mikaitis and Pranesh 2021, §3.1: what their tests found on V100, T4 and A100; H100 with two more
    bits.
    """
    wide = name == "hopper"
    one = [(1.0, 1.0)]
    assert dot(name, [(2.0**-24, 4.0)]) == 2.0**-22  # subnormal inputs count
    assert dot(name, [(1 - 2.0**-11, 1 - 2.0**-11)] * 4) == 4 * (1 - 2.0**-10 + 2.0**-22)  # exact products
    assert dot(name, one, [(0.5, 2.0**-24)] * 4) == (1.0 + 2.0**-23 if wide else 1.0)  # each term is cut off by itself
    assert dot(name, [(2.0, 1.0)], [(2.0**-11, 2.0**-12), (2.0**-12, 2.0**-12)]) == 2.0  # toward zero
    assert dot(name, [(-2.0, 1.0)], [(-(2.0**-11), 2.0**-12), (-(2.0**-12), 2.0**-12)]) == -2.0
    for sign in (1.0, -1.0):  # carries, and toward zero where they are normalised
        start = [(sign, 1.0), (sign * 2.0**-11, 2.0**-11), (sign * 2.0**-12, 2.0**-11)]
        assert dot(name, start, [(sign, 1.0)] * 4) == sign * 5.0
    # fp16 sums are rounded to nearest
    assert dot(name, [(2.0**-14, 2.0**-11), (2.0**-14, 2.0**-12)], accumulate=FP16) == 2.0**-24


@pytest.mark.parametrize(("name", "width"), [("turing", 8), ("ampere", 8), ("hopper", 16)])
def test_two_small_terms_meet_in_one_block_only(name, width):
    """FTTN's test of the block's width: 2^-24 twice beside 1."""
    small = (2.0**-12, 2.0**-12)
    for i in range(1, 20):
        later = [(0.0, 0.0)] * (i - 1) + [small]
        pairs = [small, *later]
        blocks = [pairs[h : h + width] for h in range(0, len(pairs), width)]
        assert dot(name, [(1.0, 1.0)], *blocks) == (1.0 + 2.0**-23 if i < width else 1.0), i


@pytest.mark.parametrize(("name", "last"), [("volta", 42), ("turing", 44), ("ampere", 44), ("hopper", 46)])
def test_the_least_exponent_of_an_empty_accumulator(name, last):
    """2^-25 + 2^-k into fp16: half of the least subnormal ties to 0, unless the small term survives alignment."""
    for k in range(36, 49):
        pairs = [(2.0**-14, 2.0**-11), (2.0**-24, 2.0 ** (24 - k))]
        assert dot(name, pairs, accumulate=FP16) == (2.0**-24 if k <= last else 0.0), k


def cases():
    for name in names():
        engine = engine_for(name)
        for inputs in (FP16, BF16, TF32, FP32):
            for accumulate in (FP16, FP32, FP64):
                if engine.refuse(inputs, accumulate) is None:
                    yield name, inputs, accumulate


def excess(engine, a, b, inputs, accumulate, largest=np.inf):
    """The largest |computed - exact| as a share of its bound, exactly; overflowed entries are left out."""
    got = engine.multiply(a, b, inputs, accumulate, 2)
    bound = engine.accumulation(a.shape[1], inputs, accumulate, largest)
    gamma, floor, worst = Fraction(bound.gamma), Fraction(bound.floor), Fraction(0)
    columns = [integers(column) for column in b.T]
    for i, (x, e) in enumerate(map(integers, a)):
        for j, (y, f) in enumerate(columns):
            terms, unit = list(map(mul, x, y)), 1 << (e + f)
            size = Fraction(sum(map(abs, terms)), unit)
            if not np.isfinite(got[i, j]):
                assert size > 2 ** (accumulate.maxexp - 1)
                continue
            room, gap = gamma * size + floor, abs(Fraction(float(got[i, j])) - Fraction(sum(terms), unit))
            worst = max(worst, gap / room if room else Fraction(gap != 0) * 2)
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(), ids=lambda c: f"{c[0]}-{c[1].name}-{c[2].name}")
def test_the_bound_holds(case, rng):
    name, inputs, accumulate = case
    engine = engine_for(name)
    for kind in KINDS:
        if kind == "largest" and accumulate.maxexp <= inputs.maxexp:
            continue
        for k in (1, 5, 33, 100):
            a, b = operands(kind, inputs, 3, k, 4, rng)
            largest = float(max(np.abs(a).max(), np.abs(b).max()))
            assert excess(engine, a, b, inputs, accumulate, largest) <= 1, (kind, k)
            assert excess(engine, a, b, inputs, accumulate) <= 1, (kind, k)


@pytest.mark.parametrize(
    ("name", "share"), [("volta", 0.7), ("ampere", 0.7), ("hopper", 0.35), ("rz", 0.9), ("rn", 0.45), ("fp16", 0.4)]
)
def test_the_bound_is_nearly_attained(name, share):
    """1 in the accumulator, then products of one sign that are cut off as far as the engine can cut them."""
    engine = engine_for(f"simulated:{name}")
    accumulate = accumulator_of(engine, FP16)
    acc = engine.model(FP16, accumulate)
    kept = acc.fraction_bits if acc.fraction_bits is not None else accumulate.fraction_bits
    unit = 2.0 ** -(kept // 2), 2.0 ** -(kept - kept // 2)
    factor = 2 - 2.0**-10 if acc.rounding == "zero" else 1.0
    k = acc.block + 1024
    a, b = np.full((1, k), unit[0] * factor), np.full((k, 1), unit[1] / 2)
    a[0, : acc.block], b[: acc.block] = 0.0, 0.0
    a[0, 0] = b[0] = 1.0
    assert share < excess(engine, a, b, FP16, accumulate, 1.0) <= 1


def test_the_floor_covers_subnormal_factors():
    """A subnormal factor aligns the block as if it were the least normal number, and cuts off everything else."""
    a = np.array([[2.0**-24, 2.0**-15, 2.0**-15, 2.0**-15]])
    b = np.array([[0.5], [2.0**-24], [2.0**-24], [2.0**-24]])
    engine = engine_for("simulated:volta")
    assert engine.multiply(a, b, FP16, FP32, 1)[0, 0] != float((a @ b)[0, 0])
    assert excess(engine, a, b, FP16, FP32, 0.5) <= 1


def test_names_and_their_engines():
    assert engine_for(None) is engine_for("cpu") is engine_for("cpu:blas") is BLAS
    for name in names():
        engine = engine_for(name)
        assert engine.name == name and isinstance(engine, FloatEngine) and isinstance(engine, SimulatedEngine)
    assert {"simulated:volta", "simulated:fp16", "simulated:rn", "simulated:rz", "cpu"} <= set(float_engines())
    for wrong in ("volta", "simulated:pascal", "cpu:int8", ""):
        with pytest.raises(ArgumentError, match="'simulated:volta'"):
            engine_for(wrong)
    assert accumulator_of(BLAS, FP16) == FP32 and accumulator_of(BLAS, FP32) == FP64
    assert accumulator_of(engine_for("simulated:fp16"), FP16) == FP16


def test_what_an_engine_lacks_is_refused_with_what_it_has():
    volta = engine_for("simulated:volta")
    assert "bf16" in volta.refuse(BF16, FP32) and "fp16 -> fp32" in volta.refuse(BF16, FP32)
    assert engine_for("simulated:volta-fp16").refuse(FP16, FP32) is not None
    assert volta.refuse(Format(4, 3, "e4m3"), FP32) is None  # its values are fp16 values
    assert engine_for("simulated:rn").refuse(FP64, FP64) is not None
    with pytest.raises(EngineError, match="simulated:ampere"):
        volta.multiply(np.ones((1, 1)), np.ones((1, 1)), TF32, FP32, 1)
    with pytest.raises(EngineError, match="pass another"):
        volta.accumulation(3, FP32, FP32)
    with pytest.raises(EngineError, match="pass another"):
        accumulator_of(volta, FP32)


@pytest.mark.parametrize("wrong", [1 + 2.0**-11, 65536.0, np.inf, np.nan, 2.0**-25, 3 * 2.0**-25])
def test_values_of_no_such_format_are_refused(wrong):
    engine = engine_for("simulated:volta")
    for x, y in ((wrong, 1.0), (1.0, -wrong)):
        with pytest.raises(EngineError, match=r"1 elements of the .* operand are no fp16 values"):
            engine.multiply(np.array([[x, 0.0]]), np.array([[y], [0.0]]), FP16, FP32, 1)


@pytest.mark.parametrize("kept", [23, 30, 40])
def test_the_bound_counts_the_largest_term_where_it_loses_bits_too(kept, rng):
    engine = SimulatedEngine(
        "simulated:test",
        (EngineModel("", FP32, FP32, block=4, fraction_bits=kept, zero_exponent=-132, rounding="zero"),),
    )
    for kind in ("cancelling", "narrow"):
        a, b = operands(kind, FP32, 3, 41, 4, rng)
        assert excess(engine, a, b, FP32, FP32) <= 1
    a = np.full((1, 1), 1 + 2.0**-23)
    assert excess(engine, a, a, FP32, FP32) <= 1


def test_devices_of_the_catalogue_are_engines():
    assert {"simulated:v100", "simulated:a100", "simulated:h100-mma", "simulated:h100-wgmma", "simulated:mi300"} <= set(
        names()
    )
    a100 = engine_for("simulated:a100")
    assert a100.model(TF32, FP32) == catalogue.engine("a100.tf32.fp32")
    assert engine_for("simulated:a100.tf32.fp32").model(TF32, FP32) is catalogue.engine("a100.tf32.fp32")
    assert "it has tf32 -> fp32;" in engine_for("simulated:a100.tf32.fp32").refuse(FP32, FP32) + ";"
    for wrong in ("simulated:a100.fp31.fp32", "simulated:h100.fp16.fp32", "simulated:h100"):
        with pytest.raises(ArgumentError, match="pass"):
            engine_for(wrong)


def test_a_model_of_ones_own_is_an_engine(tmp_path, rng):
    model = EngineModel("mine", BF16, FP32, block=4, fraction_bits=26, alignment="floor", join="after", depth=8)
    path = tmp_path / "mine.json"
    path.write_text(model.to_json())
    engine = engine_for(f"simulated:{path}")
    a, b = operands("patterns", BF16, 5, 30, 4, rng)
    got = engine.multiply(a, b, BF16, FP32, 2)
    assert got.dtype == np.float32 and np.array_equal(got, simulate.gemm(model, a, b), equal_nan=True)
    x, y = rng.standard_normal((2, 20, 20))
    assert abs(prismm.matmul(x, y, scheme=prismm.Words.bf16(), engine=engine.name) - x @ y).max() < 1e-4
    with pytest.raises(ArgumentError, match=r"pass a file that EngineModel\.to_json wrote"):
        engine_for(f"simulated:{tmp_path}/none.json")
    path.write_text("{}")
    with pytest.raises(ArgumentError, match=r"mine\.json': no model"):
        engine_for(f"simulated:{path}")
    path.write_text("[" * 100_000)
    with pytest.raises(ArgumentError, match=r"mine\.json': no model: nested too deeply"):
        engine_for(f"simulated:{path}")


@pytest.mark.parametrize("name", ["\0.json", "x" * 5_000 + ".json", "\ud800.json"], ids=["null", "long", "surrogate"])
def test_names_that_no_file_can_have(name):
    with pytest.raises(ArgumentError, match=r"engine='simulated:.*pass a file that EngineModel\.to_json wrote"):
        engine_for(f"simulated:{name}")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"block": 8, "fraction_bits": 24, "carry_bits": 2}, "wrap around, with 2 carry bits for 8 products"),
        ({"overflow": "saturate"}, "saturate"),
        ({"block": 32, "fraction_bits": 24, "scale": BlockScale("ue8m0", 32, "terms")}, "block scales"),
    ],
)
def test_models_without_a_bound_serve_no_scheme(changes, reason):
    engine = SimulatedEngine("simulated:test", (EngineModel("odd", FP16, FP32, **changes),))
    assert reason in engine.refuse(FP16, FP32) and "'odd' serves no scheme" in engine.refuse(FP16, FP32)
    with pytest.raises(EngineError, match=reason):
        engine.multiply(np.ones((1, 1)), np.ones((1, 1)), FP16, FP32, 1)
    with pytest.raises(EngineError, match=reason):
        engine.accumulation(3, FP16, FP32)


def test_examples():
    assert doctest.testmod(prismm.cpu.engines.simulated).failed == 0
    assert doctest.testmod(prismm.cpu.engines.floats).failed == 0
