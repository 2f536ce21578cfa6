"""Tables derived from published figures: against measured ones, and what `Auto` takes by them."""

import csv
import dataclasses
import doctest
import math
from pathlib import Path

import pytest

import prismm.cuda.costs.derive
import prismm.cuda.costs.facts
from prismm.core.accuracy import parse_target
from prismm.core.problem import Problem
from prismm.cuda.choice import GpuColumn
from prismm.cuda.costs import derive
from prismm.cuda.costs.derive import PORTABLE, REFERENCE, REFERENCE_MEASURED, derived, speeds_of
from prismm.cuda.costs.facts import _content, cards, from_attributes
from prismm.cuda.costs.first_use import ESTIMATED, estimated, is_estimated
from prismm.cuda.costs.predict import gpu_seconds
from prismm.cuda.costs.table import Rates, calibrated, committed
from prismm.cuda.device import BLAS, FP8, Device
from prismm.cuda.device import FP64 as FP64_ENGINE
from prismm.cuda.native.seconds import checked_seconds, cublas_seconds
from prismm.formats import FP32, FP64
from prismm.planning.auto import Auto, choose
from prismm.schemes.native import Native
from prismm.schemes.residues import Residues
from prismm.schemes.scaled_half import ScaledHalf

H100, H200, RTX4090 = REFERENCE, "NVIDIA H200", "NVIDIA GeForce RTX 4090"
CUBLAS = "Native(compute=None)", BLAS
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
SLOW_FP64 = [name for name, facts in cards().items() if facts.fp64_matrix < 0.05 * facts.fp32 and facts.int8 > 2e14]

pytestmark = pytest.mark.usefixtures("no_user_table")


def problem_of(m, n, k, result, batch=(), is_complex=False, target="native"):
    return Problem(
        m, n, k, batch, result, parse_target(target), reproducible=False, one_type=True, is_complex=is_complex
    )


def device_of(rates):
    return Device(rates.name, rates.sm90, True, rates.processors)


# --- Published facts --------------------------------------------------------------------------------------------------


def test_facts_of_cards_agree_with_each_other():
    """Published rates are those of multiprocessors and clocks; where power or a licence caps the matrix unit, less."""
    architectures = _content()["architectures"]
    wrong = []
    for card in _content()["cards"]:
        rates = architectures[card["capability"]]
        cycles = card["processors"] * card["clock_mhz"] * 1e6
        capped = card["name"] == "NVIDIA H20"
        for unit, key, least, most in (
            ("int8", "int8_tops", 0.84, 1.02), ("fp16", "fp16_tflops", 0.84, 2.02), ("fp32", "fp32_tflops", 0.98, 1.02),
            ("fp8", "fp8_tflops", 0.84, 2.02),
        ):  # fmt: skip
            if (rates[unit] == 0) != (key not in card):
                wrong.append((card["name"], unit, "there or not"))
            share = card[key] * 1e12 / (cycles * rates[unit]) if rates[unit] else 1.0
            # Of Rubin FP8 alone is published; the rest is a B300's.
            if not (capped or least <= share <= most or (card["name"], unit) == ("Rubin", "fp8")):
                wrong.append((card["name"], unit, share))
        if (
            not capped
            and not 0.9 <= card["fp64_matrix_tflops"] / card["fp64_tflops"] / rates["fp64_matrix_times"] <= 1.1
        ):
            wrong.append((card["name"], "fp64"))
        if not set(card["sources"]) <= set(_content()["sources"]) or not card["sources"]:
            wrong.append((card["name"], "sources"))
    assert not wrong


def test_what_a_driver_says_is_what_is_published():
    """An RTX 4090's and an A100's attributes: clocks in kHz, the bus in bits, FP32's rate by FP64's."""
    ada = from_attributes("x", {13: 2520000, 16: 128, 36: 10501000, 37: 384, 75: 8, 76: 9, 87: 64})
    ampere = from_attributes("x", {13: 1410000, 16: 108, 36: 1215000, 37: 5120, 75: 8, 76: 0, 87: 2})
    for found, name in ((ada, RTX4090), (ampere, "NVIDIA A100-SXM4-40GB")):
        published = cards()[name]
        for part in ("memory", "int8", "fp16", "fp64", "fp64_matrix", "fp32", "clock"):
            assert math.isclose(getattr(found, part), getattr(published, part), rel_tol=0.01), (name, part)
        assert found.capability == published.capability and found.listed
        assert (found.fp8 is None) == (published.fp8 is None) == (name != RTX4090)
        assert published.fp8 is None or math.isclose(found.fp8, published.fp8, rel_tol=0.01)
    with pytest.raises(ValueError, match="does not say"):
        from_attributes("x", {13: 0, 16: 128, 36: 1, 37: 384, 75: 8, 76: 9, 87: 64})


def test_an_architecture_that_is_not_listed_has_little_int8():
    """Blackwell Ultra and what may follow: residues would be promised nothing."""
    newer = from_attributes("NVIDIA R200", {13: 2000000, 16: 200, 36: 4000000, 37: 8192, 75: 15, 76: 0, 87: 64})
    assert not newer.listed and newer.int8 < newer.fp16 / 10
    assert derived(newer).int8 < derived(cards()["NVIDIA B200"]).int8 / 5


# --- The tables -------------------------------------------------------------------------------------------------------


def test_the_reference_is_given_its_own_table():
    table, expected = derived(cards()[H100]), committed()[H100]
    groups = ("tuning", "cublas", "errors")
    assert dataclasses.replace(table, **{x: getattr(expected, x) for x in groups}) == expected
    for group in groups:
        ours, theirs = (dataclasses.replace(getattr(x, group), provenance="") for x in (table, expected))
        assert ours == theirs
        assert "estimated" in getattr(table, group).provenance
    assert derived(cards()[H100], REFERENCE_MEASURED) == table


def test_every_table_is_one():
    for facts in cards().values():
        table = derived(facts)
        assert Rates.from_json(table.to_json(), facts.name) == table
        assert table.name == facts.name and table.sm90 == (facts.capability[0] == 9)
        assert (table.multiword_fused > 0.0) == table.sm90


def test_every_figure_has_a_resource():
    """A figure that is added to `Rates` says by what it is bound, or is listed here as one without a unit."""
    unitless = {
        "rejoin_complex", "rejoin_rounded", "residue_ends", "strassen_margin", "multiword_chunk_end", "multiword_ends",
        "multiword_scattered", "slices_fp16", "slices_fp64", "tile_products", "tile_folds", "tile_pairs", "tile_split",
        "tile_certify", "provenance", "complex128", "complex64", "share", "tile_256x128", "tile_128x128", "tile_128x64",
        "tile_64x64", "tile_64x32", "tile_32x32", "ends", "halves", "both_halves", "odd", "cut_passes", "unhidden",
        "scattered",
    }  # fmt: skip
    of_host_or_facts = {"name", "processors", "sm90", "call", "torch", "host_speed", "tuning", "cublas", "errors"}
    base = committed()[REFERENCE]
    tables = (base, base.tuning, base.cublas, base.cublas.float64)
    names = {part.name for table in tables for part in dataclasses.fields(table)}
    assert names - unitless - of_host_or_facts == set(derive._RESOURCES)
    assert not (unitless | of_host_or_facts) & set(derive._RESOURCES)


def test_every_figure_is_scaled_by_its_resource_alone():
    """Names that groups share are not mixed up: cuBLAS's shares stay, errors are no rates."""
    base, table = committed()[REFERENCE], derived(cards()[RTX4090])
    for kind in ("float64", "float32", "complex128", "complex64"):
        assert getattr(table.cublas, kind) == getattr(base.cublas, kind)
    assert table.tuning.kernel_start == base.tuning.kernel_start
    assert table.tuning.multiword_launches == base.tuning.multiword_launches
    instructions = speeds_of(cards()[RTX4090])["instructions"]
    assert math.isclose(table.tuning.split_vector, base.tuning.split_vector / instructions)
    for name in ("residue_ends", "multiword_ends", "multiword_chunk_end", "multiword_scattered"):
        assert getattr(table.tuning, name) == getattr(base.tuning, name)


def test_estimates_err_by_more_than_measured_tables():
    """By more yet where plain Triton kernels run; by no more than leaves what is several times as fast."""
    for name, facts in cards().items():
        for part in ("kernel", "scattered", "residues", "multiword"):
            more = getattr(derived(facts).errors, part) - getattr(committed()[REFERENCE].errors, part)
            least, most = (0.0, 0.0) if name == H100 else (0.01, 0.05) if facts.sm90 else (0.1, 0.5)
            assert least <= more <= most, (name, part)


def test_an_h200_is_nearly_its_own_table():
    """From its published figures alone: within 10 % in rates and 15 in large splits and joins."""
    table, measured = derived(cards()[H200]), committed()[H200]
    for part, off in (("float64", 0.1), ("float32", 0.1), ("int8", 0.1), ("multiword", 0.1), ("memory", 0.1)):
        assert math.isclose(getattr(table, part), getattr(measured, part), rel_tol=off), part
    for part in ("left", "right", "join"):
        ours, theirs = (getattr(x, part).seconds(4096**2, 14) for x in (table, measured))
        assert math.isclose(ours, theirs, rel_tol=0.15), part


def test_slow_fp64_units_make_joins_slower():
    """13 + 21 instructions an entry of two a cycle and multiprocessor, of which an H100's are hidden."""
    facts = cards()[RTX4090]
    instructions = (13 + 1.5 * 14) / (2 * facts.processors * facts.clock)
    found = derived(facts).join
    entry = found.element + 14 * found.modulus
    assert instructions < entry < 2 * instructions
    assert entry > 8 * (committed()[H100].join.element + 14 * committed()[H100].join.modulus)


def test_plain_triton_products_reach_a_share_of_the_matrix_unit():
    for facts in cards().values():
        share = derived(facts).int8 / (facts.int8 if facts.sm90 else facts.int8_plain)
        assert math.isclose(share, committed()[H100].int8 / cards()[H100].int8 if facts.sm90 else PORTABLE["int8"])


def test_fp8_counts_where_blocks_are_summed_in_the_unit():
    """On Blackwell and later; a measurement takes the place of the published rate, within reason."""
    for name, facts in cards().items():
        blackwell = facts.capability[0] >= 10
        assert derived(facts).tuning.fp8 == (PORTABLE["fp8"] * facts.fp8 if blackwell else 0.0), name
    facts = cards()["NVIDIA B300 SXM6 AC"]
    plain = derived(facts).tuning.fp8
    # 803 TOP/s of a large product and 551 of that of a measurement, on an H100.
    reached = REFERENCE_MEASURED.int8 / (PORTABLE["int8"] * cards()[H100].int8)
    for share, expected in ((1.2, 1.2), (0.7, 0.7), (1e-3, derive._LEAST), (1e3, 1.0 / PORTABLE["fp8"])):
        measured = dataclasses.replace(REFERENCE_MEASURED, fp8=share * plain * reached)
        assert derived(facts, measured).tuning.fp8 == pytest.approx(expected * plain)
    hopper = dataclasses.replace(REFERENCE_MEASURED, fp8=1e15)
    assert derived(cards()[H200], hopper).tuning.fp8 == 0.0
    newer = from_attributes("NVIDIA R200", {13: 2000000, 16: 200, 36: 4000000, 37: 8192, 75: 15, 76: 0, 87: 64})
    assert derived(newer).tuning.fp8 > 10 * derived(newer).int8


def test_less_power_for_an_operation_limits_long_products():
    pcie, sxm = derived(cards()["NVIDIA H100 PCIe"]), derived(cards()[H100])
    assert pcie.sustained / pcie.int8 < 0.75 * sxm.sustained / sxm.int8
    ampere = derived(cards()["NVIDIA A100-SXM4-80GB"])
    assert math.isclose(ampere.sustained / ampere.int8, sxm.sustained / sxm.int8)


@pytest.mark.parametrize("name", [H200, RTX4090, "NVIDIA A100-SXM4-80GB"])
def test_measurements_take_the_place_of_published_figures(name):
    facts = cards()[name]
    speeds = speeds_of(facts)
    half = dataclasses.replace(
        REFERENCE_MEASURED, float64=0.5 * speeds["fp64_matrix"] * REFERENCE_MEASURED.float64,
        float32=speeds["fp32"] * REFERENCE_MEASURED.float32, memory=speeds["memory"] * REFERENCE_MEASURED.memory,
        launch=1.2 * REFERENCE_MEASURED.launch, int8=None, int8_library=None,
    )  # fmt: skip
    plain, found = derived(facts), derived(facts, half)
    assert math.isclose(found.float64, 0.5 * plain.float64) and math.isclose(found.float32, plain.float32)
    assert math.isclose(found.memory, plain.memory) and math.isclose(found.check, 1.2 * plain.check)
    assert math.isclose(found.int8, plain.int8) and math.isclose(found.left.launch, 1.2 * plain.left.launch)
    if facts.sm90:
        faster = dataclasses.replace(half, int8_library=1.1 * facts.int8 / cards()[H100].int8 * 8.4e14)
    else:
        faster = dataclasses.replace(half, int8=1.1 * facts.int8 / cards()[H100].int8 * 5.51e14)
    assert (REFERENCE_MEASURED.int8_library, REFERENCE_MEASURED.int8) == (8.4e14, 5.51e14)
    assert math.isclose(derived(facts, faster).int8, 1.1 * plain.int8)


def test_an_h100_measured_as_if_it_were_unknown_has_its_own_table():
    """By its driver's attributes and the measurement of a first use, both as they were on an H100."""
    attributes = {13: 1980000, 16: 132, 36: 2619000, 37: 5120, 75: 9, 76: 0, 87: 2}
    measured = derive.Measured(
        57964899157613.27, 49853365672752.22, 3025102099015.6616, 4.052479905076325e-06, None, 836899312738178.1
    )
    found, table = derived(from_attributes(H100, attributes), measured), committed()[H100]
    for part in ("float64", "float32", "memory", "int8", "multiword", "launch", "check", "product", "fp64_kernel"):
        assert math.isclose(getattr(found, part), getattr(table, part), rel_tol=0.02), part
    for part in ("left", "right", "join", "rounded"):
        ours, theirs = (getattr(x, part).seconds(4096**2, 14) for x in (found, table))
        assert math.isclose(ours, theirs, rel_tol=0.02), part


def test_a_busy_gpu_does_not_make_it_useless():
    """Measurements far from what is published do not count in full; none makes a matrix unit faster than it can be."""
    facts = cards()[RTX4090]
    busy = dataclasses.replace(REFERENCE_MEASURED, float64=1e9, float32=1e9, memory=1e9, launch=1.0, int8=1e9)
    idle = dataclasses.replace(REFERENCE_MEASURED, float64=1e18, float32=1e18, memory=1e18, launch=1e-9, int8=1e18)
    plain, slow, fast = derived(facts), derived(facts, busy), derived(facts, idle)
    for part in ("float64", "float32", "memory", "int8"):
        assert getattr(slow, part) == pytest.approx(derive._LEAST * getattr(plain, part)), part
    for part in ("float64", "float32", "memory"):
        assert getattr(fast, part) == pytest.approx(derive._MOST * getattr(plain, part)), part
    assert fast.int8 == pytest.approx(facts.int8)


# --- What is chosen ---------------------------------------------------------------------------------------------------


TORCH = "torch.mm"
MISPREDICTED = problem_of(256, 256, 32768, FP64)
"""Measured tables predict 15 % too little for cuBLAS; no shape that they are fitted to is so long."""


def rows_on_record(name):
    """Problems that were timed on a GPU: the GPU's milliseconds by (scheme, engine) for each, and `TORCH`'s."""
    found, rates = {}, committed()[name]
    for file in RESULTS.glob("gpu_sweep*.csv"):
        for row in _rows(file):
            if row["gpu"] == name:
                _add(found.setdefault(_problem(row), {}), row, row["engine"], float(row["native_graph_ms"]))
    for row in _rows(RESULTS / "gpu_gemm.csv"):
        if row["gpu"] == name and row["call"] != "correctly-rounded":
            engine = "cuda:fp16" if row["scheme"].startswith("ScaledHalf") else "cuda:int8"
            native = float(row["graph_ms"]) * float(row["graph_ratio"])
            _add(found.setdefault(_problem({**row, **dict.fromkeys("mk", row["n"])}), {}), row, engine, native)
    for problem, times in found.items():
        # What Auto may take besides is cuBLAS with its check.
        times.setdefault(CUBLAS, times[TORCH] + 1e3 * checked_seconds(problem, rates))
    return found


def _add(times, row, engine, native):
    """The shortest of several records counts."""
    for way, milliseconds in (((_plain(row["scheme"]), engine), float(row["graph_ms"])), (TORCH, native)):
        times[way] = min(milliseconds, times.get(way, math.inf))


def single_kernels_on_record(name):
    """The GPU's milliseconds in one kernel, in units of cuBLAS's, where no sweep has it: by problem."""
    found = {}
    for row in _rows(RESULTS / "gpu_candidates.csv"):
        if row["gpu"] == name and row["asked"] == "native" and row["candidate"] in ("cublas", "fp64"):
            found.setdefault(_problem(row), {})[row["candidate"]] = float(row["us"])
    for row in _rows(RESULTS / "gpu_direct.csv"):
        if row["gpu"] == name and row["tile"] in ("cuBLAS", "chosen"):
            names = {"cuBLAS": "cublas", "chosen": "fp64"}
            found.setdefault(_problem(row), {})[names[row["tile"]]] = float(row["ms"])
    return {problem: x["fp64"] / x["cublas"] for problem, x in found.items() if len(x) == 2}


def _rows(file):
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def _problem(row):
    batch = (int(row["batch"]),) if int(row.get("batch") or 0) > 1 else ()
    result = FP64 if row["dtype"] in ("float64", "complex128") else FP32
    m, n, k = (int(row[x]) for x in "mnk")
    return problem_of(m, n, k, result, batch, row["dtype"].startswith("complex"))


def _plain(scheme):
    """A scheme's name without the chunk, which follows from the inner dimension."""
    return "ScaledHalf" if scheme.startswith("ScaledHalf") else scheme


def _engine(scheme, engine):
    return engine or {Residues: "cuda:int8", ScaledHalf: "cuda:fp16"}[type(scheme)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [H100, H200])
def test_published_figures_choose_as_well_as_measurements(name):
    """In every row on record within 10 % of the best, by the GPU's time, as it is chosen. What has no time in its row
    has that of another record, or the other card's, which differs by its memory alone, in units of cuBLAS's time;
    without one, what the measured table predicts in such units.
    """
    rates, measured = derived(cards()[name]), committed()[name]
    column, rows = GpuColumn(device_of(rates), rates), rows_on_record(name)
    sister = H200 if name == H100 else H100
    other, kernels = rows_on_record(sister), {**single_kernels_on_record(sister), **single_kernels_on_record(name)}
    worse, guessed = [], 0
    for problem, times in rows.items():
        chosen = choose(problem, column)
        key = _plain(str(chosen.scheme)), _engine(chosen.scheme, chosen.engine)
        milliseconds = times.get(key)
        if milliseconds is None:
            beside = other.get(problem, {})
            if chosen.engine == FP64_ENGINE and problem in kernels:
                share = kernels[problem]
            elif key in beside:
                share = beside[key] / beside[TORCH]
            else:
                guessed += 1
                native = cublas_seconds(problem, measured)
                share = gpu_seconds(chosen.scheme, problem, measured, chosen.engine) / native
            milliseconds = share * times[TORCH]
        best = min(ms for way, ms in times.items() if way != TORCH)
        if milliseconds > 1.1 * best:
            worse.append((problem, chosen, milliseconds / best, times))
        if milliseconds > 1.1 * best and problem == MISPREDICTED:
            # Not for being estimated.
            same = choose(problem, GpuColumn(device_of(measured), measured))
            assert (same.scheme, same.engine) == (chosen.scheme, chosen.engine) and milliseconds < 1.15 * best
            worse.pop()
    assert len(rows) > 200 and guessed <= 3
    assert not worse


@pytest.mark.parametrize("name", SLOW_FP64)
def test_float64_goes_to_residues_where_fp64_is_slow(name):
    """A 64th of FP32's rate: from about n = 384 on, and long before an H100 does."""
    taken = {n: Auto().select(problem_of(n, n, n, FP64), name).scheme for n in (16, 32, 384, 512, 1024, 4096, 16384)}
    assert all(isinstance(taken[n], Residues) for n in taken if n >= 384)
    assert not any(isinstance(taken[n], Residues) for n in taken if n <= 32)
    table = derived(cards()[name])
    problem = problem_of(4096, 4096, 4096, FP64)
    assert cublas_seconds(problem, table) > 5 * gpu_seconds(Residues(14), problem, table)
    assert Auto().select(problem_of(4096, 4096, 4096, FP32), name).scheme == Native()


@pytest.mark.parametrize(
    ("names", "result", "scheme", "least", "most"),
    [
        (("A100",), FP64, Native, 1, 16384), (("B200",), FP64, Native, 1, 3200),
        (("NVIDIA H20 ",), FP64, Residues, 320, 16384),
        (("NVIDIA H20 ",), FP32, Native, 64, 4096),
        (("H100 PCIe", "H100 NVL", "GH200"), FP64, Residues, 2900, 16384),
        (("H100 PCIe", "H100 NVL", "GH200"), FP64, Native, 64, 1600),
        (("H100 PCIe", "H100 NVL", "GH200"), FP32, ScaledHalf, 900, 8192),
        (("A100",), FP32, Residues, 1500, 16384), (("B200", "B300"), FP32, ScaledHalf, 1200, 8192),
        (("B200",), FP64, Residues, 4032, 16384),
        (("B300",), FP64, Residues, 256, 16384), (("B300",), FP64, Native, 16, 192),
    ],
)  # fmt: skip
def test_the_page_of_gpus_says_what_is_chosen(names, result, scheme, least, most):
    """`docs/gpu.md`, "Rates of a GPU"."""
    found = [name for name in cards() if any(part in f"{name} " for part in names)]
    assert len(found) >= len(names)
    for name in found:
        for n in (64, 256, 512, 1024, 2048, 4096, 8192, 16384, least, most):
            if least <= n <= most:
                assert isinstance(Auto().select(problem_of(n, n, n, result), name).scheme, scheme), (name, n)


def test_a_table_with_slow_fp64_is_enough():
    """The H100's with FP64 units of a 64th: nothing else of an RTX 4090 decides."""
    h100 = cards()[H100]
    facts = dataclasses.replace(h100, fp64=h100.fp32 / 64, fp64_matrix=h100.fp32 / 64)
    rates = derived(facts)
    column = GpuColumn(device_of(rates), rates)
    for n in (256, 512, 1024, 2048, 8192):
        assert isinstance(choose(problem_of(n, n, n, FP64), column).scheme, Residues), n


def test_little_int8_leaves_float32_to_others():
    """Blackwell Ultra: INT8 products of float32 are no faster than its own; float64 has no fast unit at all."""
    name = "NVIDIA B300 SXM6 AC"
    for n in (256, 1024, 4096, 8192):
        assert not isinstance(Auto().select(problem_of(n, n, n, FP32), name).scheme, Residues)
    problem = problem_of(4096, 4096, 4096, FP64)
    ultra, blackwell = (derived(cards()[x]) for x in (name, "NVIDIA B200"))
    seconds = [gpu_seconds(Residues(14), problem, rates, "cuda:int8") for rates in (ultra, blackwell)]
    assert seconds[0] > 5 * seconds[1]


@pytest.mark.parametrize(
    ("name", "result", "expected"),
    [
        # At n = 512, 2048, 8192 and 16384: `docs/fp8_prediction.md`.
        ("NVIDIA B200", FP64, ("native", "native", "fp8", "fp8")),
        ("NVIDIA B200", FP32, ("native", "words", "words", "fp8")),
        ("NVIDIA B300 SXM6 AC", FP64, ("fp8",) * 4),
        ("NVIDIA B300 SXM6 AC", FP32, ("native", "words", "words", "words")),
        ("Rubin", FP64, ("fp8",) * 4), ("Rubin", FP32, ("native", "words", "words", "fp8")),
        ("NVIDIA GeForce RTX 5090", FP64, ("int8",) * 4), ("NVIDIA GeForce RTX 5090", FP32, ("native",) * 4),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", FP64, ("int8",) * 4),
        (H100, FP64, ("native", "native", "int8", "int8")),
    ],
)  # fmt: skip
def test_auto_chooses_between_four_units(name, result, expected):
    found = []
    for n in (512, 2048, 8192, 16384):
        choice = Auto().select(problem_of(n, n, n, result), name)
        unit = "fp8" if choice.engine == FP8 else "int8"
        found.append({Native: "native", ScaledHalf: "words", Residues: unit}[type(choice.scheme)])
    assert tuple(found) == expected


def test_tiny_batches_of_float32_are_not_made_on_slow_fp64_units():
    for name, engine in ((RTX4090, BLAS), (H100, "cuda:fp64")):
        assert Auto().select(problem_of(16, 16, 16, FP32, (4096,)), name).engine == engine


@pytest.mark.parametrize("target", ["native", "fast", "correctly-rounded", "1e-9"])
def test_auto_answers_for_every_card_without_one(target):
    target = float(target) if target[0].isdigit() else target
    for name in cards():
        for result in (FP64, FP32):
            for shape in ((1, 512, 512), (64, 4096, 64), (3000, 3000, 3000)):
                found = Auto().select(problem_of(*shape, result, target=target), name)
                assert found.scheme is not None and not any("no rates" in reason for reason in found.reasons)


def test_which_tables_are_estimates():
    for name in cards():
        assert is_estimated(name) == (name not in committed())
        assert (calibrated(name) is None) == is_estimated(name)
    assert estimated("NVIDIA of tomorrow") is None and not is_estimated("NVIDIA of tomorrow")
    assert "estimated" in ESTIMATED and "prismm calibrate" in ESTIMATED


def test_examples():
    for module in (prismm.cuda.costs.derive, prismm.cuda.costs.facts):
        assert doctest.testmod(module).failed == 0
