"""Predicted speeds of float64 and float32 products by INT8, FP8, BF16 words and native units, on GPUs not at hand.

No measurement: published rates, times the shares of them that prismm's kernels reach on an H100 (`prismm.cuda.costs`).
Kernels as good as the H100's are assumed for every GPU and for FP8. Writes results/fp8_prediction.csv (rate tables),
docs/figures/fp8_prediction.png and docs/fp8_prediction.md. Needs no GPU.
"""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import Any

import _common

from prismm.core.fp8_moduli import FAMILIES, fp8_moduli, fp8_products
from prismm.cuda.costs.derive import REFERENCE, derived
from prismm.cuda.costs.facts import Facts, cards
from prismm.cuda.costs.table import Rates

ROOT = Path(__file__).parents[1]
WIDE = FAMILIES[0]
GRADES = {"float64": 14, "float32": 7}
WAYS = ("native", "INT8", "FP8", "BF16 words")
BF16_PRODUCTS = 6
"""Products of three words each that float32 grade takes: those of i + j <= 2."""

FP8 = {
    "NVIDIA B200": (4.5e15, "NVIDIA HGX B200 data sheet (2024)"),
    "NVIDIA B300 SXM6 AC": (4.5e15, "glennklockwood.com/garden/processors/B300, by NVIDIA's HGX B300 data sheet"),
    "Rubin": (
        1.2e18 / 72,
        "NVIDIA's announcement of Vera Rubin NVL144 (2025): 1.2 EFLOPS of FP8 training by 72 GPUs, as in "
        "0318hs.cn/News/server/20251030-39339.html; 22 TB/s: mirrorfrog.com/en/blog/nvidia-vera-rubin-platform-6-chips-"
        "deep-dive; multiprocessors, clock and the FP64 instructions of splits and joins are taken to be a B200's; "
        "INT8, BF16 and native products are left out, since no source "
        "at hand gives dense rates",
    ),
    "NVIDIA GeForce RTX 5090": (4.19e14, "NVIDIA RTX Blackwell whitepaper V1.1 (2025), FP8 with sums in FP32"),
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": (
        1.0076e15, "Twice the rate of FP16 of its data sheet (2025), as for all units of compute capability 12.0",
    ),
}  # fmt: skip
"""Operations a second of FP8 units, dense, with sums in FP32; and where the number comes from."""

SIZES = [256 * 2**x for x in range(8)]


def facts_of(name: str) -> Facts:
    """Published figures, with the kernels of compute capability 9.0 for all."""
    known = cards()["NVIDIA B200" if name == "Rubin" else name]
    memory = 22e12 if name == "Rubin" else known.memory
    return dataclasses.replace(known, name=name, memory=memory, capability=(9, 0))


def table_of(name: str) -> tuple[Rates, float]:
    """The derived table, and operations a second of FP8 products that reach the share of INT8's on the H100."""
    rates = derived(facts_of(name))
    return rates, FP8[name][0] * derived(cards()[REFERENCE]).int8 / cards()[REFERENCE].int8


def seconds(way: str, dtype: str, n: int, rates: Rates, fp8: float) -> float:
    """Of the GPU's work on a product of n x n matrices."""
    operations, elements = 2.0 * n**3, float(n * n)
    if way == "native":
        return rates.launch + operations / rates.native(53 if dtype == "float64" else 24)
    if way == "BF16 words":
        split = rates.multiword_split
        product = rates.launch + BF16_PRODUCTS * operations / rates.multiword
        return 2 * (split.launch + elements * (split.element + 3 * split.modulus)) + product
    moduli = GRADES[dtype]
    products = fp8_products(moduli, WIDE) if way == "FP8" else moduli
    # Digits are a byte for every product. Moduli of three products leave two bytes for the join, others one.
    joined = (
        moduli if way == "INT8" else len(fp8_moduli(moduli, WIDE)) + (products - len(fp8_moduli(moduli, WIDE))) // 2
    )
    split = sum(side.launch + elements * (side.element + products * side.modulus) for side in (rates.left, rates.right))
    join = rates.join.launch + elements * (rates.join.element + joined * rates.join.modulus)
    return split + rates.product + products * operations / (fp8 if way == "FP8" else rates.int8) + join


def besides() -> float:
    """Per cent of a float64 product's time on a B300, n = 8192, that are not products."""
    rates, fp8 = table_of("NVIDIA B300 SXM6 AC")
    products = fp8_products(GRADES["float64"], WIDE) * 2.0 * 8192**3 / fp8
    return 100.0 * (1.0 - products / seconds("FP8", "float64", 8192, rates, fp8))


def ways_of(name: str, dtype: str) -> list[str]:
    """Rubin's rates of anything but FP8 are not known; words serve float32."""
    known = ("FP8",) if name == "Rubin" else WAYS
    return [way for way in known if way != "BF16 words" or dtype == "float32"]


def teraflops(name: str, dtype: str, way: str, n: int) -> float:
    """2·n³ operations over the predicted seconds."""
    rates, fp8 = table_of(name)
    return 2e-12 * n**3 / seconds(way, dtype, n, rates, fp8)


def crossover(name: str, dtype: str, way: str, other: str) -> int | None:
    """The least n, a multiple of 64, from which on `way` is faster than `other` up to 32768; None if nowhere."""
    rates, fp8 = table_of(name)
    least = None
    for n in range(32768, 63, -64):
        if seconds(way, dtype, n, rates, fp8) >= seconds(other, dtype, n, rates, fp8):
            break
        least = n
    return least


def draw(path: Path) -> None:
    """TFLOP/s against n, a row a type and a column a GPU."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(FP8), figsize=(15, 6), sharex=True, constrained_layout=True)
    colours = dict(zip(WAYS, ("0.45", "tab:blue", "tab:red", "tab:green"), strict=True))
    for row, dtype in enumerate(GRADES):
        for ax, name in zip(axes[row], FP8, strict=True):
            for way in ways_of(name, dtype):
                ax.plot(SIZES, [teraflops(name, dtype, way, n) for n in SIZES], color=colours[way], label=way)
            ax.set(xscale="log", yscale="log", title=f"{short(name)}, {dtype}")
            ax.set_xticks(SIZES[::2], [str(n) for n in SIZES[::2]])
            ax.grid(alpha=0.3)
        axes[row][0].set_ylabel("predicted TFLOP/s")
    axes[1][0].legend(frameon=False)
    figure.supxlabel("n of an n x n x n product")
    figure.suptitle("Prediction from published rates; nothing here is measured")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def short(name: str) -> str:
    """Without the vendor and the edition."""
    words = name.removeprefix("NVIDIA ").removeprefix("GeForce ").split(" Blackwell")[0]
    return words.removesuffix(" SXM6 AC")


def table() -> list[dict[str, Any]]:
    """A row a GPU: its derived rates."""
    rows = []
    for name, (published, source) in FP8.items():
        rates, fp8 = table_of(name)
        known = name != "Rubin"
        rows.append(
            {
                "gpu": name, "fp8_published": published, "fp8": fp8, "int8": rates.int8 if known else "",
                "words16": rates.multiword if known else "", "float64": rates.float64 if known else "",
                "float32": rates.float32 if known else "", "memory": rates.memory, "source": source,
            }
        )  # fmt: skip
    return rows


def speeds(dtype: str, n: int) -> str:
    """A markdown table of TFLOP/s and of the sizes from which FP8 is fastest."""
    ways = [way for way in WAYS if way != "BF16 words" or dtype == "float32"]
    lines = [
        f"| GPU | {' | '.join(ways)} | FP8 beats native from | FP8 beats INT8 from |",
        "| --- |" + " ---: |" * (len(ways) + 2),
    ]
    for name in FP8:
        known = ways_of(name, dtype)
        cells = [f"{teraflops(name, dtype, way, n):.3g}" if way in known else "?" for way in ways]
        for other in ("native", "INT8"):
            cells.append(str(crossover(name, dtype, "FP8", other) or "never") if other in known else "?")
        lines.append(f"| {short(name)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page() -> str:
    """docs/fp8_prediction.md."""
    rows = table()
    rates = ["| GPU | FP8 | INT8 | 16-bit words | float64 | float32 | memory, TB/s |", "| --- |" + " ---: |" * 6]
    for row in rows:
        figures = [f"{1e-12 * row[x]:.3g}" if row[x] else "?" for x in ("fp8", "int8", "words16", "float64", "float32")]
        rates.append(f"| {short(row['gpu'])} | {' | '.join(figures)} | {1e-12 * row['memory']:.3g} |")
    sources = [f"- {short(row['gpu'])}: {1e-12 * row['fp8_published']:.0f} TFLOP/s. {row['source']}." for row in rows]
    return f"""# Residues on FP8: predictions

**Everything on this page is a prediction. None of it is measured.** `benchmarks/fp8_prediction.py` writes it from
published rates.

![Predicted TFLOP/s of float64 and float32 products on five GPUs](figures/fp8_prediction.png)

## Which unit is fastest

float64 of native grade takes 14 INT8 products, or {fp8_products(14, WIDE)} FP8 products
([why](internals/fp8-residues.md)). float32 takes 7 or {fp8_products(7, WIDE)}, or {BF16_PRODUCTS} of BF16 words.
Predicted TFLOP/s of 8192 x 8192 matrices, float64:

{speeds("float64", 8192)}

float32:

{speeds("float32", 8192)}

"From" is the least n, a multiple of 64, from which FP8 stays faster up to 32768.

- A B200's INT8 and FP8 rates are equal, so INT8 needs fewer products and is faster.
- A B300 has a thirtieth of a B200's INT8 rate. There FP8 is the way to float64. {besides():.0f} % of its time is splits
  and joins, because they have FP64 instructions. Without these FP8 would be as fast as on a B200.
- An RTX 5090 has half its INT8 rate for FP8 with sums in FP32. Sums in FP16 are twice as fast, and too short.

## Rate tables

What kernels would reach, in TFLOP/s and TOP/s. It is the share that prismm's kernels reach on an H100, times the
published rate. Splits and joins follow memory and instructions, as in `prismm.cuda.costs`.

{chr(10).join(rates)}

Assumed: kernels as good as the H100's on every GPU, for FP8 as for INT8, and no limit by power. Adding sums of blocks
of 512 products as integers is taken to be hidden behind the matrix unit. A question mark is what no source at hand
says.

## Sources of FP8 rates

Figures of a B200, an RTX 5090 and an RTX PRO 6000 are quoted second-hand, not read in the documents that are named.

{chr(10).join(sources)}

Other rates are those of `src/prismm/cuda/costs/cards.json`, which names its sources.
"""


def main() -> None:
    """Table, figure, page."""
    rows = table()
    with (_common.RESULTS / "fp8_prediction.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    draw(ROOT / "docs/figures/fp8_prediction.png")
    (ROOT / "docs/fp8_prediction.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
