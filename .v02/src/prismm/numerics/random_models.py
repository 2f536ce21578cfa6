"""Random members of the family of models that the probe searches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prismm.errors import ArgumentError
from prismm.formats import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, FP16, FP32, TF32, Format, Integer
from prismm.numerics.family import ORDERS, PARALLEL, accumulators
from prismm.numerics.model import EngineModel
from prismm.numerics.parts import MODES, SUBNORMALS, LateJoin

if TYPE_CHECKING:
    import numpy as np

__all__ = ["random_model"]


def random_model(rng: np.random.Generator, name: str = "hidden") -> EngineModel:
    """A random member of the family, of random formats; every value of every property can occur.

    >>> import numpy as np
    >>> random_model(np.random.default_rng(1)) == random_model(np.random.default_rng(1))
    True
    """

    def one(*values: Any, weights: tuple[float, ...] | None = None) -> Any:
        p = None if weights is None else [w / sum(weights) for w in weights]
        return values[int(rng.choice(len(values), p=p))]

    while True:
        inputs: Format | Integer = one(FP16, BF16, TF32, E5M2, E4M3, E3M2, E2M3, E2M1, weights=(6, 4, 2, 3, 3, 1, 1, 1))
        output: Format = one(FP32, FP16, weights=(7, 3))
        summation = one("aligned", "sequential", "pairwise", weights=(14, 3, 3))
        exact = rng.random() < (0.15 if summation == "aligned" else 0.4)
        bits = None if exact else int(rng.integers(8, 41))
        block = int(one(1, 2, 4, 8, 16, 32, 64) if rng.random() < 0.5 else rng.integers(1, 65))
        join: Any = "after" if summation == "pairwise" else one("inside", "after", "late", weights=(13, 6, 1))
        if join == "late":
            low, middle, high = (int(x) for x in rng.integers((28, 20, 26), (37, 29, 35)))
            join = LateJoin(low, middle, high, one(None, 25))
        groups: Any = ()
        group_sums = one("chained", "separate")
        times = one(1, 2, 4)
        if rng.random() < 0.15:
            groups = one(*(ORDERS if group_sums == "chained" else PARALLEL))
            times *= len(groups) if group_sums == "separate" else 1
        sums: Format = output
        accumulator = one(*accumulators(output)) if rng.random() < 0.2 else None
        sums = accumulator or output
        floor = sums.minexp - int(rng.integers(1, 13)) if rng.random() < 0.6 else None
        policies = [one(*SUBNORMALS, weights=(6, 1, 1)) for _ in range(4)]
        aligned = summation == "aligned" and bits is not None
        try:
            return EngineModel(
                name,
                inputs,
                output,
                accumulator=accumulator,
                block=block,
                depth=block * times if join == "after" or groups or accumulator else None,
                groups=groups,
                group_sums=group_sums if groups else "chained",
                product_rounding=one(*MODES) if rng.random() < 0.15 else None,
                product_overflow=one("exact", "infinity", weights=(4, 1)),
                product_exponent=one("sum", "normalised", weights=(4, 1)),
                summation=summation,
                fraction_bits=bits,
                carry_bits=int(rng.integers(0, 7)) if aligned and rng.random() < 0.3 else None,
                alignment=one("zero", "floor") if summation == "aligned" else one(*MODES),
                zero_exponent=floor if aligned else None,
                join=join,
                rounding=one(*MODES),
                output_rounding=one(None, *MODES) if rng.random() < 0.3 else None,
                overflow=one("infinity", "saturate", weights=(4, 1)),
                subnormal_inputs=policies[0],
                subnormal_accumulators=policies[1],
                subnormal_products=policies[2],
                subnormal_outputs=policies[3],
                zeros=one("ieee", "positive", "unsigned"),
            )
        except ArgumentError:
            continue
