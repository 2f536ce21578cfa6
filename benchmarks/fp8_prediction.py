"""Predicted speeds of float64 and float32 products by INT8, FP8, 16-bit words and native units, on GPUs not at hand.

No measurement: published rates (`prismm/cuda/costs/cards.json`), times the shares of them that prismm's plain Triton
kernels reach on an H100 (`prismm.cuda.costs.derive`). These are the tables that Auto goes by on such a GPU before it is
measured. Writes results/fp8_prediction.csv (rate tables, speeds and what Auto takes), docs/figures/fp8_prediction.png
and docs/fp8_prediction.md. Needs no GPU.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import Any

import _common

from prismm.core.accuracy import parse_target
from prismm.core.fp8_moduli import FAMILIES, fp8_products
from prismm.core.problem import Problem
from prismm.cuda.costs.derive import PORTABLE, derived
from prismm.cuda.costs.facts import cards
from prismm.cuda.costs.table import Rates
from prismm.cuda.device import FP8
from prismm.cuda.residues.prediction import FP8_WAY, INT8_WAY, NATIVE, WORDS, crossovers, ways
from prismm.formats import FP32, FP64
from prismm.planning.auto import Auto

ROOT = Path(__file__).parents[1]
WIDE = FAMILIES[0]
GRADES = {"float64": 14, "float32": 7}
WAYS = (NATIVE, INT8_WAY, FP8_WAY, WORDS)
NAMES = {
    "NVIDIA B200": "B200", "NVIDIA B300 SXM6 AC": "B300", "Rubin": "Rubin", "NVIDIA GeForce RTX 5090": "RTX 5090",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX PRO 6000",
}  # fmt: skip
SIZES = [256 * 2**x for x in range(8)]
TOLD = 512, 2048, 8192
"""Sizes for which the page says what Auto takes."""


@functools.cache
def table_of(name: str) -> Rates:
    """The derived table; no user's own."""
    return derived(cards()[name])


def problem_of(dtype: str, n: int) -> Problem:
    """A product of n x n matrices."""
    result = FP64 if dtype == "float64" else FP32
    return Problem(n, n, n, (), result, parse_target("native"), reproducible=False, one_type=True)


def seconds(name: str, dtype: str, n: int) -> dict[str, float]:
    """Of the GPU's work on a product of n x n matrices, by way."""
    return ways(GRADES[dtype], problem_of(dtype, n), table_of(name))


def ways_of(dtype: str) -> list[str]:
    """Words serve float32."""
    return [way for way in WAYS if way != WORDS or dtype == "float32"]


def teraflops(name: str, dtype: str, way: str, n: int) -> float:
    """2·n³ operations over the predicted seconds."""
    return 2e-12 * n**3 / seconds(name, dtype, n)[way]


def taken(name: str, dtype: str, n: int) -> str:
    """What Auto takes by the derived table."""
    choice = Auto().select(problem_of(dtype, n), name)
    kind = type(choice.scheme).__name__
    if kind == "Residues":
        return FP8_WAY if choice.engine == FP8 else INT8_WAY
    return {"Native": NATIVE, "ScaledHalf": WORDS, "Words": WORDS}[kind]


def besides() -> float:
    """Per cent of a float64 product's time on a B300, n = 8192, that are not products."""
    name = "NVIDIA B300 SXM6 AC"
    products = fp8_products(GRADES["float64"], WIDE) * 2.0 * 8192**3 / table_of(name).tuning.fp8
    return 100.0 * (1.0 - products / seconds(name, "float64", 8192)[FP8_WAY])


def draw(path: Path) -> None:
    """TFLOP/s against n, a row a type and a column a GPU."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(NAMES), figsize=(15, 6), sharex=True, constrained_layout=True)
    colours = dict(zip(WAYS, ("0.45", "tab:blue", "tab:red", "tab:green"), strict=True))
    for row, dtype in enumerate(GRADES):
        for ax, (name, short) in zip(axes[row], NAMES.items(), strict=True):
            for way in ways_of(dtype):
                ax.plot(SIZES, [teraflops(name, dtype, way, n) for n in SIZES], color=colours[way], label=way)
            ax.set(xscale="log", yscale="log", title=f"{short}, {dtype}")
            ax.set_xticks(SIZES[::2], [str(n) for n in SIZES[::2]])
            ax.grid(alpha=0.3)
        axes[row][0].set_ylabel("predicted TFLOP/s")
    axes[1][0].legend(frameon=False)
    figure.supxlabel("n of an n x n x n product")
    figure.suptitle("Prediction from published rates; nothing here is measured")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def table() -> list[dict[str, Any]]:
    """A row a GPU, type and size: its derived rates, predicted speeds by way, and what Auto takes."""
    rows = []
    for name in NAMES:
        facts, rates = cards()[name], table_of(name)
        for dtype in GRADES:
            for n in SIZES:
                speeds = {
                    f"{way} TFLOP/s": teraflops(name, dtype, way, n) if way in ways_of(dtype) else "" for way in WAYS
                }
                rows.append(
                    {
                        "gpu": name, "fp8_published": facts.fp8, "fp8": rates.tuning.fp8, "int8": rates.int8,
                        "words16": rates.multiword, "float64": rates.float64, "float32": rates.float32,
                        "memory": rates.memory, "dtype": dtype, "n": n, **speeds, "auto": taken(name, dtype, n),
                    }
                )  # fmt: skip
    return rows


def speeds(dtype: str, n: int) -> str:
    """A markdown table of TFLOP/s, of the sizes from which FP8 is faster, and of what Auto takes."""
    others = [way for way in ways_of(dtype) if way != FP8_WAY]
    head = [*ways_of(dtype), *(f"FP8 beats {way} from" for way in others), f"Auto at {', '.join(map(str, TOLD))}"]
    lines = [f"| GPU | {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1) + " --- |"]
    for name, short in NAMES.items():
        cells = [f"{teraflops(name, dtype, way, n):.3g}" for way in ways_of(dtype)]
        least = crossovers(name, GRADES[dtype], problem_of(dtype, 64))
        cells += [str(least[way] or "never") for way in others]
        lines.append(f"| {short} | {' | '.join(cells)} | {', '.join(taken(name, dtype, size) for size in TOLD)} |")
    return "\n".join(lines)


def share(unit: str) -> int:
    """Per cent of a published rate that plain Triton kernels reach."""
    return round(100 * PORTABLE[unit])


def page() -> str:
    """docs/fp8_prediction.md."""
    rates = ["| GPU | published FP8 | FP8 | INT8 | 16-bit words | float64 | float32 | memory, TB/s |"]
    rates.append("| --- |" + " ---: |" * 7)
    for name, short in NAMES.items():
        found = table_of(name)
        numbers = found.tuning.fp8, found.int8, found.multiword, found.float64, found.float32, found.memory
        figures = " | ".join(f"{1e-12 * x:.3g}" for x in numbers)
        rates.append(f"| {short} | {1e-12 * (cards()[name].fp8 or 0.0):.0f} | {figures} |")
    return f"""# Residues on FP8: predictions

**Everything on this page is a prediction. None of it is measured.** `benchmarks/fp8_prediction.py` writes it from
published rates.

![Predicted TFLOP/s of float64 and float32 products on five GPUs](figures/fp8_prediction.png)

## Which unit is fastest

float64 of native grade takes 14 INT8 products, or {fp8_products(14, WIDE)} FP8 products
([why](internals/fp8-residues.md)). float32 takes 7 or {fp8_products(7, WIDE)}, or products of 16-bit words.
Predicted TFLOP/s of 8192 x 8192 matrices, float64:

{speeds("float64", 8192)}

float32:

{speeds("float32", 8192)}

"From" is the least n, a multiple of 64, from which FP8 stays faster up to 32768. "Auto" is what `Auto` takes by these
tables at three sizes. It takes FP8 only after the GPU's own unit has multiplied extreme digits exactly, and leaves the
GPU's own product only where the predicted gain exceeds the error of predictions.

- A B300 has a thirtieth of a B200's INT8 rate. There float64 products run fastest on FP8. At n = 8192
  {besides():.0f} % of its time is splits, change of base and joins. FP64 instructions of splits and joins are slow
  there.
- A B200's published INT8 and FP8 rates are equal. But Triton compiles INT8 products to `mma.sync` there, a quarter as
  fast, and FP8 products to `tcgen05.mma`. So FP8 is faster although it takes more products.
- An RTX 5090 has half its INT8 rate for FP8 with sums in FP32. Sums in FP16 are twice as fast, but keep too few bits.
- Hopper's and Ada's FP8 sums keep too few bits for blocks, so Auto takes no FP8 there.

## Rate tables

These are the rates that kernels would reach, in TFLOP/s and TOP/s: {share("int8")} % of the published rates of INT8 and
FP8, and {share("fp16")} % of FP16's. The plain Triton kernels reach these shares of an H100's INT8 and FP16 rates. On a
B200 the INT8 rate is `mma.sync`'s, a quarter of the published one. Splits and joins follow memory and instructions, as
in `prismm.cuda.costs`.

{chr(10).join(rates)}

The model assumes that FP8 products reach the same share as INT8 products, that the matrix unit hides the integer sums
of blocks of 512 products, and that power does not limit FP8. The first use of such a GPU measures some of these rates,
FP8's among them, and `prismm calibrate` all.

The sources give only the FP8 rate of Rubin without sparsity. Its other rates, INT8 and FP64 among them, are a B300's.

## Sources

`src/prismm/cuda/costs/cards.json` has all published rates and names their sources. FP8 rates of a B200, an RTX 5090 and
an RTX PRO 6000 are second-hand quotations, not taken from the named documents.
"""


def main() -> None:
    """Table, figure, page."""
    rows = table()
    with (_common.RESULTS / "fp8_prediction.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    draw(ROOT / "docs/figures/fp8_prediction.png")
    (ROOT / "docs/fp8_prediction.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
