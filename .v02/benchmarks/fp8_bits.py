"""Residues on simulated FP8 units against residues on INT8 units: the same bits in a million hostile entries.

Claim: for every family of `prismm.testing.HOSTILE`, float64, float32 and complex128, with 7 to 22 moduli, of the
scheme's own value and of correctly rounded calls, no bit of a product differs between an FP8 engine and the best INT8
engine of this processor. Blackwell's unit has 24 bits of sums and Hopper's 14, so that its blocks are of 32 terms.

Writes results/fp8_bits.csv, a line an engine, type and target. Takes about ten minutes of a core.
"""

from __future__ import annotations

import csv
import sys
import time
from typing import Any

import _common
import numpy as np

import prismm
from prismm.testing import HOSTILE

ENGINES = ("simulated:b200-tcgen05.fp8", "simulated:rtx5090.fp8", "simulated:h100-wgmma.fp8", "simulated:ada.fp8")
CASES = (
    ("float64", 14, None), ("float64", 15, None), ("float64", 22, None), ("float64", 19, "correctly-rounded"),
    ("float32", 7, None), ("float32", 11, "correctly-rounded"), ("complex128", 15, None),
)  # fmt: skip
SHAPE = 42, 47, 37


def differing(engine: str, dtype: str, moduli: int, accuracy: str | None, seed: int) -> tuple[int, int]:
    """(real entries compared, real entries that differ) over all families."""
    entries = different = 0
    scheme = prismm.Residues(moduli)
    for name, generate in HOSTILE.items():
        a, b = generate(*SHAPE, seed, np.dtype(dtype))
        keywords: dict[str, Any] = {"scheme": scheme} if accuracy is None else {"scheme": scheme, "accuracy": accuracy}
        expected = prismm.matmul(a, b, **keywords)
        found = prismm.matmul(a, b, engine=engine, **keywords)
        real = expected.real.dtype
        words = [np.ascontiguousarray(x).view(real).view(f"u{real.itemsize}") for x in (found, expected)]
        nans = [np.isnan(np.ascontiguousarray(x).view(real)) for x in (found, expected)]
        wrong = int(((words[0] != words[1]) & ~(nans[0] & nans[1])).sum())
        if wrong:
            print(f"{wrong} entries of {name} differ: {engine} {dtype} {moduli} seed {seed}", file=sys.stderr)
        entries, different = entries + words[0].size, different + wrong
    return entries, different


def main() -> None:
    """Seeds until all engines together have a million entries."""
    machine, rows, total = _common.machine(), [], 0
    for engine in ENGINES:
        for dtype, moduli, accuracy in CASES:
            start = time.perf_counter()
            entries, different = differing(engine, dtype, moduli, accuracy, 20260101)
            total += entries
            rows.append(
                {
                    "engine": engine, "dtype": dtype, "moduli": moduli, "accuracy": accuracy or "the scheme's own",
                    "families": len(HOSTILE), "entries": entries, "different": different,
                    "seconds": round(time.perf_counter() - start, 1), **machine,
                }
            )  # fmt: skip
            print(engine, dtype, moduli, accuracy, entries, different, total, flush=True)
    with (_common.RESULTS / "fp8_bits.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert total >= 10**6, total
    assert not any(row["different"] for row in rows)


if __name__ == "__main__":
    main()
