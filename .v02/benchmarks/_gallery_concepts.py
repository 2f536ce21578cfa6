"""Pictures of concepts: parts of a row, drift of sums, certificates. Rows are those of results/concepts.csv."""

from __future__ import annotations

from typing import Any

from _gpu_drawing import COLOURS, MARKS, Row, canvas

PANELS = {
    "Words": "Words: three BF16 words of 8 bits;\neach element has its own grid",
    "ScaledHalf": "ScaledHalf: two FP16 words of 11 bits,\nthe low one amplified",
    "Slices": "Slices: digits of 7 bits\non one grid for the row",
    "Residues": "Residues: one integer for each element,\nkept as remainders",
}
TEXT = 9


def of(rows: list[Row], figure: str, series: str) -> list[Row]:
    """Rows of one series."""
    return [row for row in rows if row["figure"] == figure and row["series"] == series]


def split(rows: list[Row]) -> Any:
    """Bits of six elements, by the part that holds them."""
    figure, axes = canvas(2, 2, width=3.7, height=2.5)
    elements = of(rows, "split", "element")
    for ax, (series, title) in zip(axes, PANELS.items(), strict=True):
        for row in elements:
            ax.barh(row["item"], row["high"] - row["low"] + 1, 0.72, left=-row["high"] - 0.5, color="0.88", zorder=1)
        for row in of(rows, "split", series):
            own = elements[row["item"]]
            low, high = max(row["low"], own["low"]), min(row["high"], own["high"])
            if low <= high:
                colour = COLOURS[(row["part"] - 1) % len(COLOURS)]
                ax.barh(row["item"], high - low + 1, 0.72, left=-high - 0.5, color=colour, edgecolor="white", zorder=2)
        if series == "Residues":
            for row in elements:
                found = of(rows, "split", "residue")
                shown = [f"{x['value']}" for x in found if x["item"] == row["item"]][:3]
                box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5}
                text, place = f"{', '.join(shown)}, …", (37.5, row["item"])
                ax.annotate(text, place, ha="right", va="center", fontsize=8, zorder=3, bbox=box)
        ax.set_title(title, fontsize=TEXT)
        ax.set(xlim=(-1.5, 38), ylim=(5.6, -0.6), yticks=[])
        ax.set_xticks(range(0, 37, 6), [f"$2^{{-{x}}}$" if x else "1" for x in range(0, 37, 6)], fontsize=8)
        ax.set_xlabel("weight of the bit", fontsize=8)
    return figure


def split_claim(rows: list[Row]) -> str:
    """What the four panels have in common, and what not."""
    elements = of(rows, "split", "element")
    lost = {name: sum(_uncovered(row, of(rows, "split", name)) for row in elements) for name in PANELS}
    return (
        f"Six float32 numbers of one row, which span {elements[0]['high'] - elements[-1]['high'] + 1} binades; a bar"
        " is the 24 bits of one, and a colour the part that holds them. Words follow each element, so they keep"
        " small elements as exactly as large ones, but their products have as many weights as elements. Slices and"
        " residues share a grid along the row, so products are integers that add up without rounding; what lies"
        f" below the grid, in grey, is left out. Bits left out here: Words {lost['Words']}, ScaledHalf"
        f" {lost['ScaledHalf']}, Slices {lost['Slices']} with three slices, Residues {lost['Residues']} with seven"
        " moduli. The numbers in the last panel are remainders modulo 256, 255 and 253."
    )


def _uncovered(element: Row, parts: list[Row]) -> int:
    """Bits of an element that no part holds."""
    held: set[int] = set()
    for row in parts:
        if row["item"] == element["item"]:
            held |= set(range(row["low"], row["high"] + 1))
    return len(set(range(element["low"], element["high"] + 1)) - held)


DRIFT = ("tensor core", "tensor core, chunks of 128", "IEEE FP32, one by one")


def drift(rows: list[Row]) -> Any:
    """Signed error against length."""
    figure, (ax,) = canvas(1, width=7.0, height=3.6)
    for place, series in enumerate(DRIFT):
        found = sorted(of(rows, "drift", series), key=lambda row: row["item"])
        k = [row["item"] for row in found]
        ax.plot(
            k, [row["value"] for row in found], MARKS[place] + "-", color=COLOURS[place], label=series, markersize=4
        )
        ax.fill_between(
            k, [row["low"] for row in found], [row["high"] for row in found], color=COLOURS[place], alpha=0.15
        )
    ax.axhline(0.0, color="black", linewidth=0.8)
    ax.set_xscale("log", base=2)
    ax.set_yscale("symlog", linthresh=1e-7)
    ax.set_xlabel("number of products", fontsize=TEXT)
    ax.set_ylabel("relative error, with sign", fontsize=TEXT)
    ax.tick_params(labelsize=8)
    ax.legend(fontsize=8, loc="lower left")
    ax.grid(alpha=0.3)
    return figure


def drift_claim(rows: list[Row]) -> str:
    """The bias at the greatest length."""
    last = {series: max(of(rows, "drift", series), key=lambda row: row["item"]) for series in DRIFT}
    whole, chunked, ieee = (last[series] for series in DRIFT)
    return (
        "Sums of products of positive FP16 numbers. A Hopper tensor core cuts sums toward zero, so every error has"
        f" the same sign and they add up: {whole['value']:.1e} on average for {whole['item']} products, where"
        f" rounding to nearest gives between {ieee['low']:.1e} and {ieee['high']:.1e}. Chunks of 128 products, added"
        f" in IEEE FP32, stop the drift at {chunked['value']:.1e}. Lines are means of 24 sums, shades their range;"
        " the tensor core is simulated bit for bit."
    )


def certificate(rows: list[Row]) -> Any:
    """Left: entries with their bounds, between midpoints. Right: certified share."""
    figure, (left, right) = canvas(2, width=3.7, height=3.4)
    for row in of(rows, "certificate", "entry"):
        ok = _within(row)
        left.plot([row["low"], row["high"]], [row["item"]] * 2, color=COLOURS[0] if ok else COLOURS[1], linewidth=2.2)
        left.plot([row["value"]], [row["item"]], "o", color="black", markersize=2.5)
    for midpoint in (-0.5, 0.5):
        left.axvline(midpoint, color="0.3", linestyle="--", linewidth=1)
    left.set_title("16 entries: bound ±ε around the exact value", fontsize=TEXT)
    left.set_xlabel("ulps from the nearest float64; dashed: midpoints", fontsize=8)
    left.set(yticks=[], xlim=(-0.75, 0.75))
    shares = sorted(of(rows, "certificate", "share"), key=lambda row: row["item"])
    right.plot(
        [row["item"] for row in shares], [100 * row["value"] for row in shares], "o-", color=COLOURS[0], markersize=4
    )
    right.set_title("certified without repair", fontsize=TEXT)
    right.set_xlabel("moduli", fontsize=8)
    right.set_ylabel("% of the entries", fontsize=8)
    right.set_ylim(-4, 104)
    for ax in (left, right):
        ax.tick_params(labelsize=8)
        ax.grid(alpha=0.3)
    return figure


def _within(row: Row) -> bool:
    return bool(row["low"] > -0.5 and row["high"] < 0.5)


def certificate_claim(rows: list[Row]) -> str:
    """How the shares grow."""
    entries = of(rows, "certificate", "entry")
    shares = {row["item"]: 100 * row["value"] for row in of(rows, "certificate", "share")}
    open_ = sum(not _within(row) for row in entries)
    return (
        "Left: exact entries of a float64 product, with the bound ε of 16 moduli, from those nearest to a midpoint"
        " up. Where the whole bar lies between two midpoints, every value in it rounds to the same number: the entry"
        f" is certified as correctly rounded. The {open_} of these {len(entries)} entries whose bars cross a midpoint"
        f" are repaired. Right: each modulus more shrinks ε by a factor of about 16, so {shares[16]:.0f} % of the"
        f" entries are certified with 16 moduli and {shares[17]:.0f} % with 17. The result is correctly rounded in"
        " any case."
    )
