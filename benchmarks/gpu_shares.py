"""Products of words whose tiles' chunks are shared among multiprocessors, by the number of shares.

Run: python benchmarks/gpu_shares.py; writes results/gpu_shares.csv. float32, random normal numbers; rows of the left
operand are columns in memory, as in the gradient of a layer's weights. Times are means of 20 calls in a row of the same
operands, on the device's clock; the median of five such rounds counts. shares 0 is torch's own product, in full
precision; `taken` says which number a call would take.
"""

from __future__ import annotations

import statistics
from unittest.mock import patch

import torch
from _common import machine, write
from linalg import on_gpu

import prismm
from prismm.core.problem import Problem
from prismm.cuda import calls
from prismm.cuda.costs.table import rates_of, usual_rates
from prismm.cuda.multiword import implementation as words
from prismm.formats import FP32

SHAPES = (
    (3072, 8192, 768), (768, 8192, 3072), (768, 8192, 768), (2304, 8192, 768), (1024, 3072, 768), (768, 1024, 768),
    (1024, 768, 768), (256, 4096, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 8192, 2048),
)  # fmt: skip
SHARES = (1, 2, 3, 4, 5, 6, 8)
CALLS, ROUNDS = 20, 5


def main() -> None:
    """Measure, print, write the CSV."""
    rates = rates_of(torch.cuda.get_device_name()) or usual_rates()
    torch.backends.cuda.matmul.allow_tf32 = False
    for m, k, n in SHAPES:
        a, b = torch.randn(k, m, device="cuda").T, torch.randn(k, n, device="cuda")
        problem = Problem(m, n, k, (), FP32, None, False, True)
        scheme = words.of_native_grade(problem)
        assert scheme is not None
        taken = words.shares_for(scheme, problem, rates)
        ways = {0: lambda a=a, b=b: torch.matmul(a, b)}
        ways |= {x: lambda a=a, b=b, s=scheme: prismm.matmul(a, b, scheme=s, accuracy="native") for x in SHARES}
        times = {}
        for shares, way in ways.items():
            # Earlier plans are cleared: each way has to be planned with its own number of shares.
            calls.forget()
            with (
                patch.object(words, "shares_for", lambda *rest, shares=shares: shares),
                patch.object(words, "_is_fused", lambda *rest: False),
            ):
                times[shares] = 1e3 * statistics.median(on_gpu([way], ROUNDS, CALLS)[0])
        calls.forget()
        rows = [
            {
                "m": m, "k": k, "n": n, "shares": shares, "us": us,
                "predicted_us": 1e6 * words.seconds_in(shares, scheme, problem, rates) if shares else "",
                "taken": int(shares == taken), "gpu": torch.cuda.get_device_name(), **machine(),
            }
            for shares, us in times.items()
        ]  # fmt: skip
        for row in rows:
            print(f"{m} x {k} x {n}, {row['shares']} shares: {row['us']:.1f} us, predicted {row['predicted_us']}")
        write("gpu_shares", rows, ("m", "k", "n", "shares", "gpu"))


if __name__ == "__main__":
    main()
