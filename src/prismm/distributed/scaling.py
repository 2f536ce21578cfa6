"""The scaling model: what one product would take on many GPUs, by layout, from rates of one GPU and of its links.

All layouts are one family. A grid of p_m × p_n × p_k = P devices cuts the rows of A, the columns of B and the inner
dimension; a device multiplies one block of A by one block of B:

| layout | grid | exchanged |
| --- | --- | --- |
| row | (P, 1, 1) | B gathered |
| column | (1, P, 1) | A gathered |
| 2-D | (p_m, p_n, 1) | blocks of A along rows of the grid, of B along its columns |
| inner | (1, 1, P) | partial products summed |
| 2.5-D | (p_m, p_n, p_k) | all of these |

Source: Solomonik and Demmel, Communication-optimal parallel 2.5D matrix multiplication, Euro-Par 2011, section 3, with
p_k layers; SUMMA (van de Geijn and Watts 1997) is one layer of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prismm.core.extras import install
from prismm.core.plan import readable_seconds
from prismm.core.problem import Problem
from prismm.core.request import check_request
from prismm.cuda.costs.predict import gpu_seconds
from prismm.cuda.costs.table import Rates, rates_of
from prismm.distributed.links import Links, Traffic
from prismm.errors import ArgumentError, EngineError
from prismm.formats import FP32, FP64
from prismm.planning.auto import Auto
from prismm.planning.moduli_count import GPU_REPAIRS, moduli_leaving
from prismm.schemes.names import scheme_of
from prismm.schemes.residues import Residues

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LAYOUTS", "Links", "Model", "Point", "model"]

LAYOUTS = ("row", "column", "2-D", "inner", "2.5-D")

Grid = tuple[int, int, int]
"""Parts of the rows of A, of the columns of B, and of the inner dimension."""


@dataclass(frozen=True)
class Point:
    """One layout on so many devices, on the grid that is predicted fastest.

    Attributes:
        layout: its name, of `LAYOUTS`.
        devices: how many.
        grid: parts of the rows of A, of the columns of B, and of the inner dimension.
        compute_seconds: of the slowest device.
        exchange_seconds: of gathers and sums.
        seconds: of the product.
        efficiency: one device's predicted seconds over devices · seconds.
        nvlink_bytes: sent by one device within its host.
        network_bytes: sent by one device to other hosts.
        memory_bytes: of one device, for operands, workspace, partial products and result.
        fits: whether a device has that memory.

    >>> import prismm
    >>> point = prismm.distributed.model(4096, 4096, 4096, devices=(2,), layouts=("row",)).points[0]
    >>> point.grid, point.fits, point.network_bytes
    ((2, 1, 1), True, 0.0)
    """

    layout: str
    devices: int
    grid: Grid
    compute_seconds: float
    exchange_seconds: float
    seconds: float
    efficiency: float
    nvlink_bytes: float
    network_bytes: float
    memory_bytes: float
    fits: bool


@dataclass(frozen=True)
class Model:
    """What `model` predicts; printed as a table.

    Attributes:
        m: rows of the product.
        n: columns of the product.
        k: inner dimension.
        dtype: element type of operands and result.
        scheme: what every device multiplies with.
        exact: whether partial products of inner parts are exact integers.
        message_bytes: of an entry of a partial product.
        gpu: the device.
        links: what connects devices.
        one_device: seconds of the whole product on one device, whether it fits or not.
        points: the predictions, by devices and layout.

    >>> import prismm
    >>> found = prismm.distributed.model(4096, 4096, 4096, devices=(2,), layouts=("row",), reproducible=True)
    >>> str(found.scheme), found.exact, len(found.points)
    ('Residues(moduli=15)', True, 1)
    """

    m: int
    n: int
    k: int
    dtype: str
    scheme: Any
    exact: bool
    message_bytes: int
    gpu: str
    links: Links
    one_device: float
    points: tuple[Point, ...]

    def best(self, devices: int) -> Point:
        """The fastest layout that fits on so many devices.

        Raises:
            ArgumentError: where none was modelled, or none fits.
        """
        found = [point for point in self.points if point.devices == devices and point.fits]
        if not found:
            raise ArgumentError(f"no layout on {devices} devices was modelled, or none fits; pass more devices")
        return min(found, key=lambda point: point.seconds)

    def __str__(self) -> str:
        links = self.links
        lines = [
            f"{self.m} × {self.k} × {self.n} {self.dtype}, {self.scheme}, on {self.gpu}: "
            f"{readable_seconds(self.one_device)} on one",
            f"{links.per_host} devices a host, NVLink {links.nvlink / 1e9:.0f} GB/s, network "
            f"{links.network / 1e9:.0f} GB/s a device; {self.message_bytes} bytes an entry of a partial product"
            f"{', exact' if self.exact else ''}",
            f"{'devices':>7}  {'layout':<6}  {'grid':<12}  {'compute':>9}  {'exchange':>9}  {'total':>9}  "
            f"{'efficiency':>10}  {'NVLink':>9}  {'network':>9}  {'memory':>9}",
        ]
        for one in self.points:
            grid = "×".join(map(str, one.grid))
            times = "  ".join(
                f"{readable_seconds(x):>9}" for x in (one.compute_seconds, one.exchange_seconds, one.seconds)
            )
            sizes = "  ".join(f"{_bytes_text(x):>9}" for x in (one.nvlink_bytes, one.network_bytes, one.memory_bytes))
            full = "" if one.fits else "  does not fit"
            lines.append(
                f"{one.devices:>7}  {one.layout:<6}  {grid:<12}  {times}  {one.efficiency:>10.2f}  {sizes}{full}"
            )
        return "\n".join(lines)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Seconds against devices, a line for each layout, beside the line of an efficiency of 1; circles that are not
        filled do not fit in memory.

        Args:
            path: of a file to write, PNG or whatever matplotlib writes by its ending; None for none.

        Raises:
            EngineError: without matplotlib.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise EngineError(f"a plot needs matplotlib; install it with: {install('plot')}") from None
        figure = Figure(figsize=(6.0, 4.2), layout="constrained")
        axes = figure.subplots()
        counts = sorted({point.devices for point in self.points})
        axes.plot(counts, [self.one_device / p for p in counts], color="0.6", linestyle="--", label="efficiency 1")
        for name in LAYOUTS:
            points = [point for point in self.points if point.layout == name]
            if not points:
                continue
            (line,) = axes.plot([x.devices for x in points], [x.seconds for x in points], label=name)
            for fits in (True, False):
                some = [x for x in points if x.fits is fits]
                face = line.get_color() if fits else "white"
                axes.plot([x.devices for x in some], [x.seconds for x in some], "o", color=line.get_color(), mfc=face)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        title = f"{self.m} × {self.k} × {self.n} {self.dtype} on {self.gpu}\n{self.scheme}"
        axes.set(xlabel="devices", ylabel="predicted seconds", title=title)
        axes.set_xticks(counts, [str(count) for count in counts], rotation=45)
        axes.minorticks_off()
        axes.legend()
        if path is not None:
            figure.savefig(path, dpi=110)
        return figure


def model(
    m: int,
    n: int,
    k: int,
    /,
    *,
    devices: Sequence[int] = (1, 2, 4, 8, 64, 512, 4096),
    layouts: Sequence[str] = LAYOUTS,
    dtype: str = "float64",
    accuracy: str | float | None = None,
    scheme: Any = None,
    reproducible: bool = False,
    gpu: str = "NVIDIA H200",
    memory: float = 141e9,
    links: Links | None = None,
    operands: str = "spread",
    result: str = "spread",
    overlap: float = 0.0,
) -> Model:
    """Predict the seconds, bytes and memory of one product on many GPUs. No GPU is needed, and nothing is multiplied.

    Args:
        m, n, k: the product of (m, k) by (k, n).
        devices: numbers of devices; beyond a host, multiples of ``links.per_host``.
        layouts: some of `LAYOUTS`. A 2-D grid has two factors above 1, a 2.5-D grid p_k > 1 and p_m·p_n > 1; where a
            number of devices has no such grid, the layout is left out.
        dtype: "float64", "float32", "complex128" or "complex64", of operands and result.
        accuracy, scheme, reproducible: as for `prismm.matmul`.
        gpu: a name as `torch.cuda.get_device_name` gives it, of a GPU with a table of rates.
        memory: bytes of a device.
        links: what connects the devices.
        operands: "spread" where each device holds 1/P of A and of B beforehand; "placed" where each holds the blocks
            that it multiplies, as DTensor's shards and replicas do, and nothing is gathered.
        result: "spread" where each device gets 1/P of the result, "replicated" where each gets all of it.
        overlap: share of the shorter of computing and exchanging that the longer one hides, from 0 to 1.

    Returns:
        The predictions; see `Model`.

    Assumptions, each of which real machines break to some degree:

    - Every device runs the scheme that one device takes for the whole product, on blocks of equal size, rounded up.
    - A block takes what the GPU's table of rates predicts for a product of its shape. Tables are of short products;
      under longer ones GPUs lower their clocks: beyond the first 10 ms a product takes 1.15 times as long. On several
      devices the host adds 0.4 ms.
    - A collective takes ``links.startup`` for each kind of link, and then moves bytes at full rate. Within a host every
      device reaches every other one at that rate. Hosts exchange first and devices of a host afterwards, one after the
      other, so that every byte crosses the network once for each host.
    - The network has no congestion, and its rate is the same between any two hosts.
    - The grid is laid out over hosts in the way that is predicted fastest. Operands are gathered whole before the
      product; nothing is sent twice.
    - Exact partial products (reproducible schemes, "correctly-rounded" and tolerances) are digits of a byte for each
      modulus (`prismm.cpu.partial`). Each device sends every other one its share of the entries, without a sum on the
      way, over the network too. Scales cost an all-reduce of 88 bytes a row and column. The device's join stands for
      making the digits. They are packed before they travel, and added and put in place afterwards; rows of A are
      transposed. The product leaves 16 multiprocessors to copies. Small messages are waited for, 1.5 ms in all.
    - Other partial products are rounded results that are added as they are.
    - Exact partial products take memory for 192 MiB on their way, others for all entries; both for the share received.
    - Few entries need repair. Correctly rounded sums of inner parts take so many moduli that hardly one does.
    - Workspace is that of residues: a byte an element and modulus. It is at most a quarter of the memory, beyond which
      prismm cuts the product into blocks. Other schemes count the bytes of their operands once more.

    Raises:
        ArgumentError: for sizes, numbers of devices, layouts or shares that are none, or a GPU without rates. The
            errors of `prismm.matmul` for its keywords.

    >>> import prismm
    >>> found = prismm.distributed.model(65536, 65536, 65536, devices=(8, 64), reproducible=True)
    >>> found.best(8).layout, 0.5 < found.best(8).efficiency < 1.0
    ('2-D', True)
    """
    links = Links() if links is None else links
    _check(m, n, k, devices, layouts, operands, result, overlap, memory, links)
    problem, scheme, exact = _problem(m, n, k, dtype, accuracy, scheme, reproducible, gpu)
    rates = _rates(gpu)
    setting = _Setting(problem, scheme, rates, links, exact, operands == "spread", result == "replicated", overlap,
                       float(memory), _lasting(gpu_seconds(scheme, problem, rates)))  # fmt: skip
    points = [
        min((setting.point(layout, grid, host) for grid in grids for host in _host_grids(grid, links)), key=_preferred)
        for count in devices
        for layout in layouts
        if (grids := list(_grids(layout, count)))
    ]
    return Model(m, n, k, dtype, scheme, exact, setting.message_bytes, gpu, links, setting.one_device,
                 tuple(points))  # fmt: skip


def _preferred(point: Point) -> tuple[bool, float, float]:
    return not point.fits, point.seconds, point.memory_bytes


def _check(
    m: int, n: int, k: int, devices: Sequence[int], layouts: Sequence[str], operands: str, result: str,
    overlap: float, memory: float, links: Links,
) -> None:  # fmt: skip
    for name, size in (("m", m), ("n", n), ("k", k)):
        if type(size) is not int or size < 1:
            raise ArgumentError(f"{name}={size!r}; pass an integer of 1 or more")
    if not devices:
        raise ArgumentError("devices is empty; pass numbers of devices such as (8, 64)")
    for count in devices:
        if type(count) is not int or count < 1 or (count > links.per_host and count % links.per_host):
            raise ArgumentError(
                f"devices={count!r} with {links.per_host} a host; pass at most so many, or a multiple of it"
            )
    for layout in layouts:
        if layout not in LAYOUTS:
            raise ArgumentError(f"layout {layout!r}; pass some of {', '.join(LAYOUTS)}")
    places = ("operands", operands, ("spread", "placed")), ("result", result, ("spread", "replicated"))
    for name, value, known in places:
        if value not in known:
            raise ArgumentError(f"{name}={value!r}; pass {known[0]!r} or {known[1]!r}")
    if not 0.0 <= overlap <= 1.0:
        raise ArgumentError(f"overlap={overlap!r}; pass a share from 0 to 1")
    if not 0.0 < memory < math.inf:
        raise ArgumentError(f"memory={memory!r}; pass the bytes of a device")


def _rates(gpu: str) -> Rates:
    found = rates_of(gpu)
    if found is None:
        raise ArgumentError(f"gpu={gpu!r} has no table of rates; make one there with `prismm calibrate`")
    return found


def _problem(
    m: int, n: int, k: int, dtype: str, accuracy: Any, scheme: Any, reproducible: bool, gpu: str
) -> tuple[Problem, Any, bool]:
    """What is multiplied, with which scheme, and whether partial products are exact integers."""
    if dtype not in ("float64", "float32", "complex128", "complex64"):
        raise ArgumentError(f"dtype={dtype!r}; pass float64, float32, complex128 or complex64")
    scheme = scheme_of(scheme) if isinstance(scheme, str) else scheme
    request, _, _ = check_request(accuracy, scheme, reproducible, None, None, None, None, None)
    result = FP64 if dtype in ("float64", "complex128") else FP32
    problem = Problem(m, n, k, (), result, request.target, request.reproducible, True, dtype.startswith("complex"))
    scheme = request.scheme if request.scheme is not None else Auto().select(problem, gpu).scheme
    exact = request.reproducible or problem.goal in ("correctly-rounded", "tolerance")
    # A scheme's own value on inner parts is a sum of its values, unless the scheme is exact by itself.
    return problem, scheme, bool(exact or (request.target is None and scheme.reproducible))


def _grids(layout: str, count: int) -> Iterator[Grid]:
    """Grids of a layout; of one device only the plain one."""
    if layout == "row":
        yield (count, 1, 1)
    elif layout == "column" and count > 1:
        yield (1, count, 1)
    elif layout == "inner" and count > 1:
        yield (1, 1, count)
    elif layout in ("2-D", "2.5-D"):
        for deep in _divisors(count):
            for across in _divisors(count // deep):
                down = count // deep // across
                if (deep == 1 < min(across, down)) if layout == "2-D" else (deep > 1 < across * down):
                    yield (down, across, deep)


def _host_grids(grid: Grid, links: Links) -> Iterator[Grid]:
    """The blocks of a grid that a host may have: as many as it has devices, so many along each side."""
    size = min(math.prod(grid), links.per_host)
    for down in _divisors(grid[0]):
        for across in _divisors(grid[1]):
            deep, rest = divmod(size, down * across)
            if rest == 0 and deep and grid[2] % deep == 0:
                yield (down, across, deep)


def _divisors(x: int) -> list[int]:
    return [d for d in range(1, x + 1) if x % d == 0]


_SCALE_BYTES = 88
"""Extents, norms and losses of a row or column: see the table of `prismm.cpu.partial`."""


_BLOCKS_BYTES = 3 * 3 * (128 << 20)
"""Three blocks of `prismm.distributed.on_gpu`: digits as they were made, as they are sent, and as they come."""


_RESERVED = 16
"""Multiprocessors that an exact product of inner parts leaves to copies: `prismm.distributed.on_gpu.RESERVED`."""

_HOST, _WAITS = 4e-4, 1.5e-3
"""Seconds of the host for a product of DTensors, and of small messages that exact sums wait for."""


def _lasting(seconds: float) -> float:
    """Of a product that would take so long at the clocks of a short one."""
    return seconds + 0.15 * max(0.0, seconds - 0.01)


@dataclass(frozen=True)
class _Setting:
    """What all points share; see `model`."""

    problem: Problem
    scheme: Any
    rates: Rates
    links: Links
    exact: bool
    gathers: bool
    replicates: bool
    overlap: float
    memory: float
    one_device: float

    @property
    def inner(self) -> Any:
        """What multiplies inner parts. Correctly rounded sums take moduli of their own."""
        problem = self.problem
        if not self.exact or problem.goal != "correctly-rounded":
            return self.scheme
        return Residues(moduli_leaving(GPU_REPAIRS / (problem.m * problem.n), problem.result, problem.terms))

    @property
    def message_bytes(self) -> int:
        """Bytes of an entry of a partial product."""
        moduli = getattr(self.inner, "moduli", None)
        if not self.exact or moduli is None:
            return self.problem.number_bytes
        # A complex product is made from three real ones, whose digits travel as they are.
        return int(moduli) * (3 if self.problem.is_complex else 1)

    def point(self, layout: str, grid: Grid, host: Grid) -> Point:
        """The prediction for a grid, of which a host has so much."""
        (m, n, k), bytes_ = (-(-s // p) for s, p in zip(self._sizes(), grid, strict=True)), self.problem.number_bytes
        devices = math.prod(grid)
        block = replace(self.problem, m=m, n=n, k=k)
        compute = gpu_seconds(self.inner if grid[2] > 1 else self.scheme, block, self.rates)
        if self.exact and grid[2] > 1:
            compute *= self.rates.processors / (self.rates.processors - _RESERVED)
        compute = _lasting(compute) + (_HOST if devices > 1 else 0.0)
        traffic = Traffic(self.links)
        message = self.message_bytes
        if self.gathers:
            traffic.move(bytes_ * m * k, grid[1], host[1])
            traffic.move(bytes_ * k * n, grid[0], host[0])
        if grid[2] > 1:
            reduced = self.replicates and not self.exact
            if self.exact:
                traffic.move(_SCALE_BYTES * (m + n), grid[2], host[2], all_reduce=True)
                traffic.exchange(message * m * n, grid[2], host[2])
                # Packed: read and written. Each other piece: added to a sum that is read and written. Put in place.
                moved = message * m * n * (2.0 + 3.0 * (grid[2] - 1) / grid[2] + 2.0 / grid[2])
                compute += (moved + 2.0 * bytes_ * m * k) / self.rates.memory + _WAITS
            else:
                traffic.move(message * m * n, grid[2], host[2], all_reduce=reduced)
        if self.replicates:
            # What an all-reduce has left to gather is other blocks of the result, one for each p_m·p_n.
            shared = grid[2] if grid[2] > 1 and not self.exact else 1
            whole = bytes_ * self.problem.m * self.problem.n
            traffic.move(whole, devices // shared, math.prod(host) // (host[2] if shared > 1 else 1))
        exchange = traffic.seconds
        seconds = compute + exchange - self.overlap * min(compute, exchange)
        memory = self._memory_bytes(grid, m, n, k, message)
        return Point(layout, devices, grid, compute, exchange, seconds, self.one_device / (devices * seconds),
                     traffic.nvlink, traffic.network, memory, memory <= self.memory)  # fmt: skip

    def _sizes(self) -> tuple[int, int, int]:
        return self.problem.m, self.problem.n, self.problem.k

    def _memory_bytes(self, grid: Grid, m: int, n: int, k: int, message: int) -> float:
        """Bytes of a device: its shares, the blocks that it gathers, workspace, a partial product, and the result."""
        problem, devices, bytes_ = self.problem, math.prod(grid), self.problem.number_bytes
        operands = float(bytes_ * (m * k + k * n))
        if self.gathers:
            operands += bytes_ * sum(
                problem.k * side / devices
                for side, parts in ((problem.m, grid[1]), (problem.n, grid[0]))
                if parts > 1  # else the share is the block
            )
        moduli = getattr(self.scheme, "moduli", None)
        planes = bytes_ if moduli is None else moduli * (3 if problem.is_complex else 1)
        native = getattr(self.scheme, "is_conventional", False)
        workspace = 0.0 if native else min(self.memory / 4, float(planes) * (m * k + k * n + (m * n if moduli else 0)))
        result = bytes_ * problem.m * problem.n / (1 if self.replicates else devices)
        partial = message * m * n / grid[2]
        # Digits travel in blocks, rounded partial products whole.
        partial += min(message * m * n, _BLOCKS_BYTES) if self.exact else message * m * n
        partial = partial if grid[2] > 1 else 0.0
        return operands + workspace + partial + result


def _bytes_text(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000.0
    return f"{size:.4g} TB"
