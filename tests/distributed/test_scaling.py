"""The scaling model: bytes counted one by one, lower bounds of the literature, and the product that two GPUs made."""

from __future__ import annotations

import csv
import doctest
import itertools
import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from prismm.distributed import scaling
from prismm.distributed.links import Links, Traffic
from prismm.distributed.scaling import model
from prismm.errors import ArgumentError

N = 4096
WORD = 8
ASKED = {
    "torch": {"scheme": "native"},
    "prismm": {"reproducible": True},
    "correctly rounded": {"accuracy": "correctly-rounded"},
}
"""What the ways of the committed times ask for."""
PLAIN = {"scheme": "native", "gpu": "NVIDIA H200"}


def test_docstrings() -> None:
    assert doctest.testmod(scaling).failed == 0


def test_predictions_are_those_of_the_committed_times() -> None:
    """On one, two and four H100s within 15 %, but where many small messages are waited for."""
    path = Path(__file__).parents[2] / "benchmarks" / "results" / "distributed_layouts.csv"
    off = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            n, count, how = int(row["n"]), int(row["gpus"]), row["layout"].replace("rows", "row").replace("one", "row")
            kind = ASKED[row["way"]]
            points = model(n, n, n, devices=(count,), layouts=(how,), gpu=row["gpu"], operands="placed", **kind).points
            ratio = 1e3 * points[0].seconds / float(row["milliseconds"])
            if not 1 / 1.15 < ratio < 1.15:
                off[n, count, how, row["way"]] = ratio
    assert list(off) == [(8192, 4, "inner", "prismm")] and off[8192, 4, "inner", "prismm"] > 0.75


def received(grid: tuple[int, int, int], host: tuple[int, int, int], axis: int) -> tuple[Counter, Counter]:
    """Pieces that each device receives over the network and within its host when the devices along an axis of the grid
    gather their pieces: hosts first, as `model` says. Each device has to have all pieces in the end.
    """
    network: Counter = Counter()
    nvlink: Counter = Counter()
    places = list(itertools.product(*map(range, grid)))
    has = {place: {place[axis]} for place in places}
    for stage, count in ((True, network), (False, nvlink)):
        before = {place: set(pieces) for place, pieces in has.items()}
        for here, there in itertools.product(places, repeat=2):
            same_line = all(x == y for i, (x, y) in enumerate(zip(here, there, strict=True)) if i != axis)
            same_host = here[axis] // host[axis] == there[axis] // host[axis]
            same_seat = here[axis] % host[axis] == there[axis] % host[axis]
            if same_line and (same_seat if stage else same_host):
                count[here] += len(before[there] - has[here])
                has[here] |= before[there]
    assert all(pieces == set(range(grid[axis])) for pieces in has.values())
    return network, nvlink


@pytest.mark.parametrize(("grid", "host"), [((4, 2, 1), (2, 2, 1)), ((2, 2, 2), (1, 2, 2)), ((1, 6, 1), (1, 3, 1))])
def test_gathered_bytes_are_those_of_a_count(grid: tuple[int, int, int], host: tuple[int, int, int]) -> None:
    for axis in range(3):
        traffic = Traffic(Links())
        traffic.move(float(grid[axis]), grid[axis], host[axis])  # a piece of each device is one byte
        network, nvlink = received(grid, host, axis)
        for place in itertools.product(*map(range, grid)):
            assert (network[place], nvlink[place]) == (traffic.network, pytest.approx(traffic.nvlink))


def one(layout: str, devices: int, **keywords) -> scaling.Point:
    (point,) = model(N, N, N, devices=(devices,), layouts=(layout,), **{**PLAIN, **keywords}).points
    return point


def test_bytes_of_each_layout() -> None:
    """On 4 devices of a host: row and column gather an operand, 2-D half of each, inner adds partial products."""
    whole = WORD * N * N
    assert one("row", 4).nvlink_bytes == one("column", 4).nvlink_bytes == whole * 3 / 4
    assert one("2-D", 4).grid == (2, 2, 1) and one("2-D", 4).nvlink_bytes == whole / 2
    assert one("inner", 4).nvlink_bytes == whole * 3 / 4
    exact = one("inner", 4, scheme="residues:15")
    scales = 2 * 88 * 2 * N * 3 / 4
    assert exact.nvlink_bytes == 15 * N * N * 3 / 4 + scales
    # Digits go to whoever adds them: 8 of 16 devices are on another host.
    assert one("inner", 16, scheme="residues:15").network_bytes == 15 * N * N / 2 + 2 * 88 * 2 * N / 16
    assert one("row", 4, operands="placed").nvlink_bytes == 0.0
    assert one("row", 4, operands="placed", result="replicated").nvlink_bytes == whole * 3 / 4
    # An all-reduce is a sum and a gather.
    assert one("inner", 4, result="replicated").nvlink_bytes == 2 * whole * 3 / 4
    assert one("row", 16).network_bytes == whole / 16


def least_words(sizes: tuple[int, int, int], devices: int) -> float:
    """Words that some device has to send or receive where operands and result are spread evenly, whatever its memory:
    Al Daas, Ballard, Grigori, Kumar and Rouse, SPAA 2022, theorem 3.
    """
    x, y, z = sorted(sizes, reverse=True)
    if devices <= x / y:
        most = y * z + (x * y + x * z) / devices
    elif devices <= x * y / z**2:
        most = 2 * math.sqrt(x * y * z**2 / devices) + x * y / devices
    else:
        most = 3 * (x * y * z / devices) ** (2 / 3)
    return most - (x * y + x * z + y * z) / devices


@pytest.mark.parametrize("sizes", [(N, N, N), (N, 2 * N, 16 * N), (32 * N, N, N), (N, N, 32 * N)])
def test_no_prediction_moves_less_than_any_algorithm_must(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    links = Links(per_host=64)
    found = model(m, n, k, devices=(2, 8, 64, 512, 4096), links=links, **PLAIN)
    for point in found.points:
        least = WORD * least_words(sizes, point.devices)
        assert point.nvlink_bytes + point.network_bytes >= least * (1 - 1e-12)
    moved = min(point.nvlink_bytes for point in found.points if point.devices == 2)
    assert moved == WORD * least_words(sizes, 2) or m == n == k, "one cut reaches the bound of two devices"


def setting(m: int, n: int, k: int) -> scaling._Setting:
    """Of native products on H200s."""
    problem, scheme, _ = scaling._problem(m, n, k, "float64", None, "native", False, "NVIDIA H200")
    rates = scaling._rates("NVIDIA H200")
    return scaling._Setting(problem, scheme, rates, Links(), False, True, False, 0.0, 141e9, 1.0)


def test_a_cube_of_devices_reaches_the_bound() -> None:
    point = setting(N, N, N).point("2.5-D", (4, 4, 4), (2, 2, 2))
    assert point.nvlink_bytes + point.network_bytes == pytest.approx(WORD * least_words((N, N, N), 64))


def test_one_device_is_the_cost_table() -> None:
    (point,) = model(N, N, N, devices=(1,), **PLAIN).points
    assert (point.layout, point.efficiency, point.exchange_seconds) == ("row", 1.0, 0.0)
    assert point.nvlink_bytes == point.network_bytes == 0.0 and point.memory_bytes == 3 * WORD * N * N


def test_two_gpus_as_measured() -> None:
    """11.1 ms on two H200s, by torch: float64, n = 8192, inner dimension sharded, result on both."""
    (point,) = model(
        8192, 8192, 8192, devices=(2,), layouts=("inner",), operands="placed", result="replicated", **PLAIN
    ).points
    assert point.seconds == pytest.approx(11.1e-3, rel=0.15)


def test_grids_are_the_fastest() -> None:
    """No other grid of the layout, in no other place over the hosts, is predicted faster; here by brute force."""
    found = model(N, 8 * N, N, devices=(64,), layouts=("2-D", "2.5-D"), **PLAIN)
    for point in found.points:
        grids = [g for g in itertools.product(range(1, 65), repeat=3) if math.prod(g) == 64]
        deep = [g for g in grids if (g[2] > 1 and g[0] * g[1] > 1 if point.layout == "2.5-D" else
                                     g[2] == 1 and min(g[:2]) > 1)]  # fmt: skip
        hosts = [h for h in itertools.product((1, 2, 4, 8), repeat=3) if math.prod(h) == 8]
        fits = [(g, h) for g in deep for h in hosts if not any(x % y for x, y in zip(g, h, strict=True))]
        assert point.seconds == min(setting(N, 8 * N, N).point(point.layout, g, h).seconds for g, h in fits)


def test_hidden_exchange() -> None:
    plain, half, whole = (one("row", 16, overlap=x) for x in (0.0, 0.5, 1.0))
    assert plain.seconds == plain.compute_seconds + plain.exchange_seconds
    assert whole.seconds == pytest.approx(max(plain.compute_seconds, plain.exchange_seconds))
    assert half.seconds == pytest.approx((plain.seconds + whole.seconds) / 2)


def test_a_table_and_the_best_layout() -> None:
    found = model(N, N, N, devices=(1, 2, 8), accuracy="correctly-rounded", memory=2e9)
    lines = str(found).splitlines()
    assert len(lines) == 3 + len(found.points) and "exact" in lines[1]
    assert sum("does not fit" in line for line in lines) == sum(not point.fits for point in found.points)
    best = found.best(8)
    assert best.fits and all(best.seconds <= p.seconds for p in found.points if p.devices == 8 and p.fits)
    assert {p.layout for p in found.points if p.devices == 2} == {"row", "column", "inner"}, "no 2-D grid of a prime"
    with pytest.raises(ArgumentError, match="pass more devices"):
        replace(found, points=tuple(replace(p, fits=False) for p in found.points)).best(8)


def test_partial_products_are_exact_where_bits_are_promised() -> None:
    assert not model(N, N, N, devices=(2,)).exact
    assert model(N, N, N, devices=(2,), reproducible=True).exact
    assert model(N, N, N, devices=(2,), accuracy="correctly-rounded").exact
    assert model(N, N, N, devices=(2,), scheme="residues:15").exact
    assert model(N, N, N, devices=(2,), reproducible=True).message_bytes == 15
    assert model(N, N, N, devices=(2,), dtype="complex64", reproducible=True).message_bytes == 3 * 8


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"devices": (12,)}, "8 a host"), ({"devices": ()}, "empty"), ({"layouts": ("rows",)}, "row, column"),
        ({"dtype": "float16"}, "float64"), ({"gpu": "no such"}, "calibrate"), ({"overlap": 1.5}, "share"),
        ({"operands": "here"}, "placed"), ({"result": "here"}, "replicated"), ({"memory": 0.0}, "bytes"),
    ],
)  # fmt: skip
def test_refused(keywords, words) -> None:
    with pytest.raises(ArgumentError, match=words):
        model(N, N, N, **keywords)


def test_refused_sizes_and_links() -> None:
    with pytest.raises(ArgumentError, match="k=0"):
        model(N, N, 0)
    for keywords in ({"per_host": 0}, {"network": 0.0}, {"nvlink": math.inf}, {"startup": -1.0}):
        with pytest.raises(ArgumentError, match=next(iter(keywords))):
            Links(**keywords)


def test_plot(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    found = model(N, N, N, devices=(1, 2, 8), memory=2e8, **PLAIN)
    axes = found.plot(tmp_path / "model.png").axes[0]
    assert (tmp_path / "model.png").read_bytes().startswith(b"\x89PNG")
    shown = sum(len(line.get_xdata()) for line in axes.lines if line.get_marker() == "o")
    assert shown == len(found.points) and not all(point.fits for point in found.points)


def test_neither_torch_nor_matplotlib_is_needed() -> None:
    program = (
        "import sys; sys.modules.update(torch=None, matplotlib=None)\n"
        "from prismm.distributed.scaling import model\n"
        "print(model(64, 64, 64, reproducible=True))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "residues" in done.stdout.lower()
