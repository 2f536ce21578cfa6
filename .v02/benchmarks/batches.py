"""Batches of small products, tall and long ones: microseconds a product, beside NumPy's batched product and a loop over
the batch, errors beside the times.

Run: python benchmarks/batches.py [--quick]; writes results/batches.csv. Random normal data.

--gpu: of 10^5 products on a GPU instead, beside torch.bmm: replays of graphs of ten calls each, in turn; writes
results/gpu_batches.csv.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from _common import interleaved, machine, warm_up, write

import prismm
from prismm.testing import exact_product

CALLS: dict[str, dict[str, Any]] = {
    "default": {},
    "reproducible": {"reproducible": True},
    "correctly-rounded": {"accuracy": "correctly-rounded"},
}
SHAPES = [
    (2000, 4, 4, 4),
    (2000, 16, 16, 16),
    (500, 64, 64, 64),
    (100, 128, 128, 128),
    (1, 10**6, 3, 3),
    (1, 2, 10**7, 2),
]
"""(products, m, k, n)."""


def operands(shape: tuple[int, int, int, int], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Normal operands; without a batch axis for a single product."""
    count, m, k, n = shape
    rng = np.random.default_rng(k)
    pair = []
    for rows, columns in ((m, k), (k, n)):
        x = rng.standard_normal((count, rows, columns))
        x = (x + 1j * rng.standard_normal(x.shape) if dtype.startswith("complex") else x).astype(dtype)
        pair.append(x if count > 1 else x[0])
    return pair[0], pair[1]


def halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Veltkamp's split: x as a sum of two numbers of 26 bits."""
    high = x * (2.0**27 + 1)
    high -= high - x
    return high, x - high


def long_errors(c: float, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The same for one dot product: products without error (Dekker), summed exactly."""
    p = x * y
    (x1, x0), (y1, y0) = halves(x), halves(y)
    terms = [*p.tolist(), *(((x1 * y1 - p) + x1 * y0 + x0 * y1) + x0 * y0).tolist(), -c]
    error = abs(math.fsum(terms))
    return error / float(np.spacing(abs(c))), error / math.fsum(np.abs(p).tolist())


def errors(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Largest error in ulps, and largest |error|/(|a||b|), of up to 8 products, of up to 64 rows of a tall one, or of
    the first entry of a long one.
    """
    if c.ndim == 2 and a.shape[1] > 10**4:
        return long_errors(float(c[0, 0]), a[0], b[:, 0])
    if c.ndim == 2:
        rows = np.linspace(0, len(c) - 1, min(len(c), 64)).astype(int)
        some = [(c[rows], a[rows], b)]
    else:
        some = [(c[p], a[p], b[p]) for p in np.linspace(0, len(c) - 1, 8).astype(int)]
    ulps, relative = 0.0, 0.0
    for made, x, y in some:
        exact = exact_product(x, y)
        ulps = max(ulps, float(exact.ulps(made).max()))
        relative = max(relative, float((exact.error(made) / exact.magnitude()).max()))
    return ulps, relative


def measure(shape: tuple[int, int, int, int], dtype: str, call: str, repeats: int) -> dict[str, Any]:
    """One row."""
    count, m, k, n = shape
    a, b = operands(shape, dtype)
    keywords = CALLS[call]

    def loop() -> Any:
        return [prismm.matmul(x, y, **keywords) for x, y in zip(a, b, strict=True)]

    times = interleaved(lambda: prismm.matmul(a, b, **keywords), lambda: a @ b, repeats)
    looped = interleaved(loop, lambda: a @ b, 3)["ms"] if count > 1 else times["ms"]
    ulps, relative = errors(prismm.matmul(a, b, **keywords), a, b)
    numpy_ulps, numpy_relative = errors(a @ b, a, b)
    each, plan = 1e3 / count, prismm.explain(a, b, **keywords)
    return {
        "dtype": dtype, "products": count, "m": m, "k": k, "n": n, "call": call, "scheme": str(plan.scheme),
        "threads": plan.threads, "us_a_product": times["ms"] * each,
        "loop_us_a_product": looped * each, "numpy_us_a_product": times["numpy_ms"] * each, **times,
        "max_ulps": ulps, "numpy_max_ulps": numpy_ulps, "max_relative": relative,
        "numpy_max_relative": numpy_relative,
    }  # fmt: skip


GPU_SHAPES = [(100_000, 4, 4, 4), (100_000, 8, 8, 8), (100_000, 16, 16, 16), (20_000, 32, 32, 32)]
GPU_CALLS, GPU_REPLAYS = 10, 15


def on_gpu(shape: tuple[int, int, int, int], dtype: str) -> list[dict[str, Any]]:
    """Rows of a shape, one a call."""
    import torch

    from prismm.cuda.costs.calibrate import seconds_of

    count, m, k, n = shape
    a, b = operands(shape, dtype)
    x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()

    def graph_of(call: Callable[[], Any]) -> Callable[[], None]:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(GPU_CALLS):
                call()
        return graph.replay

    calls: dict[str, Callable[[], Any]] = {"bmm": lambda: torch.bmm(x, y)}
    calls |= {name: lambda keywords=keywords: prismm.matmul(x, y, **keywords) for name, keywords in CALLS.items()}
    replays = {name: graph_of(call) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(GPU_REPLAYS):
        for name, replay in replays.items():
            times[name].append(seconds_of(replay) / GPU_CALLS)
    rows = []
    bmm = statistics.median(times["bmm"])
    bmm_ulps, bmm_relative = errors(calls["bmm"]().cpu().numpy(), a, b)
    for name, keywords in CALLS.items():
        ulps, relative = errors(calls[name]().cpu().numpy(), a, b)
        ratios = sorted(own / other for own, other in zip(times[name], times["bmm"], strict=True))
        plan = prismm.explain(x, y, **keywords)
        rows.append({
            "dtype": dtype, "products": count, "m": m, "k": k, "n": n, "call": name, "scheme": str(plan.scheme),
            "engine": plan.engine, "us": 1e6 * statistics.median(times[name]), "bmm_us": 1e6 * bmm,
            "times_bmm": statistics.median(ratios), "times_bmm_p20": ratios[int(0.2 * (len(ratios) - 1))],
            "times_bmm_p80": ratios[int(0.8 * (len(ratios) - 1))], "max_ulps": ulps, "bmm_max_ulps": bmm_ulps,
            "max_relative": relative, "bmm_max_relative": bmm_relative, "gpu": torch.cuda.get_device_name(),
        })  # fmt: skip
    return rows


def measure_gpu(dtypes: list[str]) -> None:
    """Measure all rows on a GPU, print them, write the CSV."""
    from gpu_sweep import warm_up as warm_up_gpu

    warm_up_gpu()
    rows, common = [], machine()
    for dtype in dtypes:
        for shape in GPU_SHAPES:
            for row in on_gpu(shape, dtype):
                rows.append({**row, **common})
                print(
                    f"{dtype:10s} {shape!s:22s} {row['call']:18s} {row['us']:8.1f} µs, {row['times_bmm']:.2f} x "
                    f"torch.bmm's {row['bmm_us']:8.1f}  {row['max_ulps']:.3g} ulps (bmm {row['bmm_max_ulps']:.3g})",
                    flush=True,
                )
            write("gpu_batches", rows, ("dtype", "products", "m", "k", "n", "call"))


def main() -> None:
    """Measure all rows, print them, write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="float64 batches only, three repetitions")
    parser.add_argument("--dtypes", default="float64,float32,complex128", help="comma-separated types")
    parser.add_argument("--gpu", action="store_true", help="on a GPU, beside torch.bmm")
    arguments = parser.parse_args()
    if arguments.gpu:
        measure_gpu(["float64"] if arguments.quick else arguments.dtypes.split(","))
        return
    shapes = [s for s in SHAPES if s[0] > 1] if arguments.quick else SHAPES
    dtypes = ["float64"] if arguments.quick else arguments.dtypes.split(",")
    warm_up()
    rows, common = [], machine()
    for dtype in dtypes:
        for shape in shapes if dtype == "float64" else shapes[:3]:
            for call in CALLS:
                row = measure(shape, dtype, call, 3 if arguments.quick else 7)
                rows.append({**row, **common})
                print(
                    f"{dtype:10s} {shape!s:22s} {call:18s} {row['us_a_product']:.3f} µs a product (loop "
                    f"{row['loop_us_a_product']:.3f}, numpy {row['numpy_us_a_product']:.3f}), {row['ratio']:.2f} x "
                    f"numpy  {row['max_ulps']:.3g} ulps (numpy {row['numpy_max_ulps']:.3g})",
                    flush=True,
                )
                path = write("batches", rows, ("dtype", "products", "m", "k", "n", "call"))
    print(path)


if __name__ == "__main__":
    main()
