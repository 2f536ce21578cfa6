"""Ways to multiply, timed in turn on the same operands: what the rows of gpu_figures.csv are made of."""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import _common
import _gpu_ozaki as ozaki
import numpy as np
import torch

import prismm
from prismm.cuda.costs.calibrate import phases_of, seconds_of
from prismm.reproduce.algorithm3 import slices_needed
from prismm.schemes import Slices

_PEAK = 3 * 1024**3
"""Bytes that a group's operands and results may take before what is cached is given back."""


class Broken(Exception):
    """The device's context is lost: nothing more can be measured in this process."""


@dataclass(frozen=True)
class Way:
    """A way to multiply: cuBLAS ("native", "tf32", "fp16"), `_gpu_ozaki` ("ozaki"), or prismm with these arguments.

    x: the variable's value where it is the way's own, such as a number of moduli.
    """

    name: str
    form: dict[str, Any] = field(default_factory=dict)
    own: str = ""
    x: Any = None

    @property
    def native(self) -> bool:
        """Whether it is the product that others are compared with."""
        return self.own == "native"


NATIVE = Way("cuBLAS", own="native")
TF32 = Way("cuBLAS, 1 x TF32", own="tf32")
FP16 = Way("cuBLAS, FP16 operands", own="fp16")
PUBLISHED = Way("FP16 slices in torch", own="ozaki")


@dataclass(frozen=True)
class Group:
    """Ways that are compared on the same operands.

    phi: entries (rand - 0.5)·exp(phi·randn), as in Mukunoki et al.; None: normal ones. parts: a figure that also gets
    the times of the kernels. counts: a figure that also gets the numbers of low-precision products.
    """

    figure: str
    dtype: str
    m: int
    n: int
    k: int
    x: Any
    ways: tuple[Way, ...]
    phi: float | None = None
    label: str = ""
    parts: str = ""
    counts: str = ""


def square(figure: str, dtype: str, n: int, ways: Iterable[Way], **more: Any) -> Group:
    """A group of square matrices; x is their order."""
    return Group(figure, dtype, n, n, n, n, tuple(ways), **more)


@dataclass
class Session:
    """Where and how long to measure, and the rows so far; each is written when it is there."""

    device: str = "cuda"
    seconds: float = 0.5
    least: int = 3
    most: int = 9
    folder: Any = _common.RESULTS
    rows: list[dict[str, Any]] = field(default_factory=list)
    deadline: float = float("inf")
    _machine: dict[str, Any] | None = None

    def late(self) -> bool:
        """Whether no further group should begin."""
        return time.monotonic() > self.deadline

    def machine(self) -> dict[str, Any]:
        """Columns of the device and the versions."""
        if self._machine is None:
            gpu = torch.cuda.get_device_name(0) if self.device == "cuda" else "none"
            self._machine = {"gpu": gpu, **_common.machine()}
        return self._machine

    def add(
        self, figure: str, series: str, x: Any, values: list[float], unit: str, error: float | None = None,
        part: str = "", scheme: str = "",
    ) -> None:  # fmt: skip
        """One row: the median of the values, and the middle 60 % of them."""
        low, middle, high = spread(values)
        self.rows.append({
            "figure": figure, "series": series, "part": part, "x": x, "value": middle, "low": low, "high": high,
            "unit": unit, "error": "" if error is None else error, "scheme": scheme, "repeats": len(values),
            **self.machine(),
        })  # fmt: skip
        _common.write("gpu_figures", self.rows, key=KEY, folder=self.folder)
        told = "" if error is None else f" error {error:.2g}"
        say(f"  {figure} {series} {part} {x}: {middle:.4g} {unit} ({low:.4g} to {high:.4g}){told}")

    def timer(self, call: Callable[[], Any]) -> float:
        """Seconds of one call: by events on the device, or by the clock."""
        if self.device == "cuda":
            return seconds_of(call)
        start = time.perf_counter()
        call()
        return time.perf_counter() - start


KEY = ("figure", "series", "part", "x", "unit", "gpu")
"""Columns that tell rows apart."""


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def spread(values: list[float]) -> tuple[float, float, float]:
    """20 % quantile, median, 80 % quantile.

    >>> spread([3.0, 1.0, 2.0])
    (1.0, 2.0, 3.0)
    """
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[math.floor(0.2 * last)], statistics.median(ordered), ordered[math.ceil(0.8 * last)]


def race(
    calls: dict[Hashable, Callable[[], Any]], timer: Callable[[Callable[[], Any]], float], session: Session
) -> dict[Hashable, list[float]]:
    """Seconds of calls in turn, after calls that did not count: as many rounds as fit the session's seconds, within its
    bounds; two where a round takes longer than a second.
    """
    times: dict[Hashable, list[float]] = {name: [] for name in calls}

    def round_() -> float:
        for name, call in calls.items():
            times[name].append(timer(call))
        return max(sum(found[-1] for found in times.values()), 1e-9)

    once = round_()
    rounds = min(session.most, max(session.least if once < 1.0 else 2, int(session.seconds / once)))
    for _ in range(rounds - 1):
        round_()
    return times


def operands(
    dtype: str, m: int, n: int, k: int, phi: float | None, device: str
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Two matrices from a seed."""
    torch.manual_seed(m + n + k)
    kind = getattr(torch, dtype)

    def drawn(*shape: int) -> torch.Tensor:
        normal = torch.randn(*shape, dtype=kind, device=device)
        if phi is None:
            return normal
        return (torch.rand(*shape, dtype=kind, device=device) - 0.5) * torch.exp(phi * normal)

    return drawn(m, k), drawn(k, n)


def reference(a: torch.Tensor, b: torch.Tensor) -> np.ndarray:
    """Some entries of the product in a wider type: of 8 rows and 48 columns at most."""
    wide = np.longdouble if a.dtype == torch.float64 else np.float64
    return a[:8].cpu().numpy().astype(wide) @ b[:, :48].cpu().numpy().astype(wide)


def error_of(c: torch.Tensor, exact: np.ndarray) -> float:
    """Relative error of these entries in the Frobenius norm."""
    found = c[: exact.shape[0], : exact.shape[1]].cpu().numpy().astype(exact.dtype)
    return float(np.sqrt(np.sum((found - exact) ** 2) / np.sum(exact**2)))


def estimated(scheme: Slices, a: torch.Tensor, b: torch.Tensor) -> Slices:
    """The scheme with as many slices as Algorithm 3 of Mukunoki et al. finds on 64 rows, for engines that do not
    estimate by themselves.
    """
    rows = a[:64].double().cpu().numpy()
    sums = b.double().abs().sum(1).cpu().numpy()
    # Rounded slices hold one bit more than those of the listing.
    bits = max(1, scheme.layout(a.shape[1]).bits - (scheme.rounding == "nearest"))
    roundoff = 2.0**-53 if scheme.mode == "DP" else 2.0**-24
    needed, fast = slices_needed([rows], sums, bits, roundoff)
    return dataclasses.replace(scheme, slices=needed, fast=scheme.fast and fast)


def forms(way: Way, a: torch.Tensor, b: torch.Tensor) -> Iterator[dict[str, Any]]:
    """Arguments to try, one after another."""
    yield way.form
    scheme = way.form.get("scheme")
    if isinstance(scheme, Slices) and scheme.mode != "CR" and scheme.slices is None:
        yield {**way.form, "scheme": estimated(scheme, a, b)}


def checked(error: Exception, device: str) -> str:
    """The error in words.

    Raises:
        Broken: where the device works no more.
    """
    if device == "cuda":
        try:
            torch.cuda.synchronize()
        except Exception as lost:
            raise Broken(f"{type(error).__name__}: {error}") from lost
    return f"{type(error).__name__}: {str(error)[:300]}"


def call_of(way: Way, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, form: dict[str, Any]) -> Callable[[], Any]:
    """What is timed."""
    if way.own == "native":
        return lambda: torch.mm(a, b, out=out)
    if way.own == "fp16":
        x, y = a.half(), b.half()
        return lambda: torch.mm(x, y)
    if way.own == "ozaki":
        slices = ozaki.slices_for(a, b)
        return lambda: ozaki.multiply(a, b, out, *slices)
    if way.own == "tf32":

        def on_tf32() -> None:
            torch.set_float32_matmul_precision("high")
            try:
                torch.mm(a, b, out=out)
            finally:
                torch.set_float32_matmul_precision("highest")

        return on_tf32
    return lambda: prismm.matmul(a, b, out=out, **form)


def prepared(
    way: Way, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, device: str
) -> tuple[Callable[[], Any], dict[str, Any]] | None:  # fmt: skip
    """A call that has run once, with the arguments that served; None, with a message, where none did."""
    message, tried = "", forms(way, a, b)
    while True:
        try:
            form = next(tried, None)
            if form is None:
                break
            call = call_of(way, a, b, out, form)
            out.zero_()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            return call, form
        except Exception as error:
            message = checked(error, device)
    say(f"  left out: {way.name}{'' if way.x is None else f' {way.x}'}: {message}")
    return None


def series_of(way: Way, group: Group) -> str:
    """The name in the CSV. cuBLAS does not ask how its entries are drawn."""
    return way.name if not group.label or (way.native and group.phi is not None) else f"{way.name}, {group.label}"


def run(group: Group, session: Session) -> None:
    """Measure a group: throughput, ratio to cuBLAS, error; and what its figures of parts and counts ask for."""
    if session.late():
        say(f"  out of time before {group.figure} {group.label} {group.x}")
        return
    a, b = operands(group.dtype, group.m, group.n, group.k, group.phi, session.device)
    out = torch.empty(group.m, group.n, dtype=a.dtype, device=session.device)
    exact = reference(a, b)
    calls: dict[Hashable, Callable[[], Any]] = {}
    forms_of: dict[Hashable, dict[str, Any]] = {}
    errors: dict[Hashable, float | None] = {}
    for place, way in enumerate(group.ways):
        found = prepared(way, a, b, out, session.device)
        if found is None:
            continue
        calls[place], forms_of[place] = found
        errors[place] = None if way.own == "fp16" else error_of(out, exact)
        # At addresses that were seen three times a call's launches become one.
        for _ in range(3):
            if session.timer(calls[place]) > 0.05:
                break
    native = next((place for place in calls if group.ways[place].native), None)
    times = race(calls, session.timer, session)
    operations = 2.0 * group.m * group.n * group.k
    for place, seconds in times.items():
        way = group.ways[place]
        series, x = series_of(way, group), group.x if way.x is None else way.x
        scheme = str(forms_of[place].get("scheme", ""))
        rates = [operations / s / 1e12 for s in seconds]
        session.add(group.figure, series, x, rates, "TFLOP/s", errors[place], scheme=scheme)
        if native is not None and place != native:
            ratios = [theirs / ours for theirs, ours in zip(times[native], seconds, strict=True)]
            session.add(group.figure, series, x, ratios, "times cuBLAS", errors[place], scheme=scheme)
        if group.counts and way.own == "ozaki":
            slices, fast, _ = ozaki.slices_for(a, b)
            session.add(group.counts, series, x, [float(ozaki.products(slices, fast))], "products")
        if group.counts and isinstance(forms_of[place].get("scheme"), Slices):
            _count(group, way, series, a, b, forms_of[place], session)
        if group.parts and not way.own:
            _apart(group, way, series, a, b, forms_of[place], session)
    del calls, out, a, b
    if session.device == "cuda" and torch.cuda.memory_reserved() > _PEAK:
        torch.cuda.empty_cache()


def _count(
    group: Group, way: Way, series: str, a: torch.Tensor, b: torch.Tensor, form: dict[str, Any], session: Session
) -> None:  # fmt: skip
    try:
        _, report = prismm.matmul(a, b, full_output=True, **form)
        session.add(group.counts, series, group.x, [float(report.products)], "products", scheme=str(report.scheme))
    except Exception as error:
        say(f"  no counts of {series}: {checked(error, session.device)}")


def _apart(
    group: Group, way: Way, series: str, a: torch.Tensor, b: torch.Tensor, form: dict[str, Any], session: Session
) -> None:  # fmt: skip
    from prismm.cuda import calls as cuda_calls

    try:
        if session.device != "cuda":
            raise ValueError("kernels are timed one by one on a GPU only")
        cuda_calls.forget()
        out = prismm.matmul(a, b, **form)
        (call,) = cuda_calls.known()
        for kernel, seconds in phases_of(call, a, b, out).items():
            session.add(group.parts, series, group.x, [1e3 * seconds], "ms", part=kernel)
    except Exception as error:
        say(f"  no parts of {series}: {checked(error, session.device)}")
