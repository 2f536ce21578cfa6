"""Products of NumPy arrays by every scheme, as hashes: what must not depend on whether torch is installed.

`python -m tests.laws.array_products [--without-torch]` prints them as JSON, with what was loaded; `--without-torch`
refuses every import of torch and triton, as an environment without them does. `--hostile` prints those alone that
depend on no package's version either: reproducible and correctly rounded products of hostile operands.
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib.abc import MetaPathFinder
from typing import Any

TORCH = ("torch", "triton")


class Refuses(MetaPathFinder):
    """Says of torch, before all other finders, that there is none."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """None for any other module, which leaves it to the finders that follow."""
        if name.partition(".")[0] in TORCH:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def products() -> dict[str, str]:
    """SHA-256 of the bits of each product, and texts of plans, by name."""
    import numpy as np

    import prismm
    from prismm.numerics import engine, gemm
    from prismm.schemes.baselines import QuanTensor
    from prismm.testing import HOSTILE

    found: dict[str, str] = {}

    def add(name: str, *bits: Any) -> None:
        joined = b"".join(np.ascontiguousarray(x).tobytes() for x in bits)
        found[name] = hashlib.sha256(joined).hexdigest()

    rng = np.random.default_rng(20260401)
    a, b, c = rng.standard_normal((70, 90)), rng.standard_normal((90, 60)), rng.standard_normal((70, 60))
    correct: dict[str, Any] = {"accuracy": "correctly-rounded"}
    for dtype in ("float64", "float32", "complex128", "complex64"):
        x, y = (z.astype(dtype) * (1 if dtype[0] == "f" else 1 + 0.5j) for z in (a, b))
        x, y = x.astype(dtype), y.astype(dtype)
        for name, keywords in (("reproducible", {"reproducible": True}), ("correctly-rounded", correct)):
            add(f"{dtype} {name}", prismm.matmul(x, y, **keywords))
    for name in HOSTILE:
        left, right = HOSTILE[name](12, 30, 10, 7)[:2]
        product, report = prismm.matmul(left, right, scheme=prismm.Residues(16), full_output=True, **correct)
        add(f"hostile {name}", product, report.bounds)
    add("gemm", prismm.gemm(a, b, c, alpha=-0.75, beta=1.25, **correct))
    add("batch", prismm.matmul(rng.standard_normal((5, 20, 30)), rng.standard_normal((5, 30, 8)), reproducible=True))
    add("tiny", prismm.matmul(a[:5, :6], b[:6, :7], reproducible=True))
    add("prepared", prismm.matmul(a, prismm.prepare(b, reproducible=True)))
    add("integers", prismm.matmul(np.arange(12).reshape(3, 4) + (1 << 60), np.full((4, 5), 3), **correct))
    schemes = [
        prismm.Slices("int8", "DP", slices=7), prismm.Slices("int8", "CR"), prismm.Slices("fp16", "CR"),
        prismm.Slices("int8", "DP"), *(prismm.TileInt8(level=level) for level in (1, 2, 3, 4)),
        QuanTensor(2),
    ]  # fmt: skip
    f, g = a.astype(np.float32), b.astype(np.float32)
    for scheme in schemes:
        x, y = (f, g) if type(scheme).__name__ in ("TileInt8", "QuanTensor") else (a, b)
        product, report = prismm.matmul(x, y, scheme=scheme, full_output=True)
        add(str(scheme), product, report.bounds)
    for scheme in (prismm.Words.tf32(3), prismm.Words.bf16(6), prismm.ScaledHalf()):
        # Sums by BLAS may be in any order, on one machine too: those of a model are not.
        add(str(scheme), prismm.matmul(f[:20], g[:, :10], scheme=scheme, engine="simulated:ampere"))
    for model in ("v100.fp16.fp32", "a2.int8.int32"):
        add(model, gemm(engine(model), np.rint(4 * a[:9]), np.rint(4 * b[:, :9])))
    for target in ({}, {"reproducible": True}, correct, {"accuracy": 1e-12}):
        plan = prismm.explain(a, b, **target)
        found[f"plan {target}"] = f"{plan.scheme}: {plan.bound}, {plan.target}, {plan.reproducible}, {plan.result}"
    return found


def hostile_products() -> dict[str, str]:
    """SHA-256 of operands, and of their reproducible and correctly rounded products, by name."""
    import numpy as np

    import prismm
    from prismm.files import sha256_of_bits
    from prismm.testing import HOSTILE

    found: dict[str, str] = {}
    for name, generate in HOSTILE.items():
        for dtype in ("float64", "float32", "complex128"):
            a, b = generate(12, 30, 10, 7, np.dtype(dtype))
            results = {
                "a": a, "b": b,
                "reproducible": prismm.matmul(a, b, reproducible=True),
                "correctly rounded": prismm.matmul(a, b, accuracy="correctly-rounded"),
            }  # fmt: skip
            found |= {f"{name} {dtype} {what}": sha256_of_bits(x) for what, x in results.items()}
    return found


def main() -> None:
    """Print the hashes, the engines that are there, and whether torch is loaded after all of it."""
    if "--without-torch" in sys.argv:
        sys.meta_path.insert(0, Refuses())
    if "--hostile" in sys.argv:
        print(json.dumps(hostile_products()))
        return
    found = products()
    loaded = "torch" in sys.modules
    from prismm import engines

    print(json.dumps({"products": found, "loaded": loaded, "engines": engines.available()}))


if __name__ == "__main__":
    main()
