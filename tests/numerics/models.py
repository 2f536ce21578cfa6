"""Random engine models, of every combination that is valid, and vectors at which a simulator could stumble."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from prismm.errors import ArgumentError
from prismm.formats import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    FP16,
    FP32,
    FP64,
    INT4,
    INT8,
    INT32,
    TF32,
    UINT8,
    Format,
    Integer,
)
from prismm.numerics import encodings
from prismm.numerics.model import BlockScale, EngineModel, LateJoin
from prismm.numerics.parts import MODES, SUBNORMALS

NARROW = (E4M3, E5M2, E3M2, E2M3, E2M1, E4M3FNUZ, E5M2FNUZ, FP16, BF16, TF32)
WIDE = (FP32, FP64, Format(9, 30, "e9m30"), Format(11, 23, "e11m23"), Format(8, 26, "e8m26"))
OUTPUTS = (FP32, FP16, BF16, FP64, E5M2, Format(8, 13, "e8m13"), Format(4, 5, "e4m5"), Format(11, 40, "e11m40"))


def _pick(rng: np.random.Generator, *options: object) -> object:
    return options[int(rng.integers(len(options)))]


def integer_model(rng: np.random.Generator) -> EngineModel:
    """An integer engine."""
    return EngineModel(
        "random",
        _pick(rng, INT4, INT8, UINT8, INT32, Integer(32, signed=False, name="uint32"), Integer(11, name="int11")),
        _pick(rng, INT32, INT32, Integer(20, name="int20"), Integer(32, signed=False, name="uint32")),
        block=int(_pick(rng, 1, 4)),
        depth=_pick(rng, None, 4, 16),
        overflow=_pick(rng, "wrap", "saturate"),
    )


def _groups(rng: np.random.Generator) -> tuple[tuple[int, ...], ...]:
    period = int(_pick(rng, 2, 2, 4, 4, 8))
    residues = rng.permutation(period) if rng.random() < 0.5 else np.arange(period)
    count = int(_pick(rng, 2, 2, period))
    return tuple(tuple(int(r) for r in part) for part in np.split(residues, count) if len(part))


def float_model(rng: np.random.Generator) -> EngineModel:
    """A float engine: fields at random, drawn anew until they go together."""
    while True:
        summation = _pick(rng, "aligned", "aligned", "aligned", "sequential", "pairwise")
        bits = _pick(rng, None, int(rng.integers(1, 49)), int(rng.integers(8, 30)))
        output = _pick(rng, *OUTPUTS[:3], *OUTPUTS)
        accumulator = _pick(rng, None, None, _pick(rng, *OUTPUTS), Format(8, 13, "e8m13"))
        aligned = summation == "aligned" and bits is not None
        join = _pick(rng, "inside", "inside", "after", _late(rng) if aligned else "after")
        groups = _pick(rng, (), (), _groups(rng))
        group_sums = _pick(rng, "chained", "separate")
        block = int(_pick(rng, 1, 2, 3, 4, 8, 16))
        period = sum(map(len, groups)) or 1
        depth = _pick(rng, None, block, block * period, 2 * block * period)
        sums = accumulator or output
        try:
            return EngineModel(
                "random",
                _pick(rng, *NARROW, *NARROW, *WIDE),
                output,
                accumulator=accumulator,
                block=block,
                depth=depth,
                groups=groups,
                group_sums=group_sums,
                product_rounding=_pick(rng, None, None, None, *MODES),
                product_overflow=_pick(rng, "exact", "exact", "infinity"),
                product_exponent=_pick(rng, "sum", "sum", "normalised"),
                summation=summation,
                fraction_bits=bits,
                carry_bits=_pick(rng, None, int(rng.integers(0, 13)), int(rng.integers(0, 4))) if aligned else None,
                alignment=_pick(rng, "zero", "floor") if aligned or summation == "aligned" else _pick(rng, *MODES),
                zero_exponent=_pick(rng, None, sums.minexp - int(rng.integers(1, 40))) if aligned else None,
                join=join,
                rounding=_pick(rng, *MODES),
                output_rounding=_pick(rng, None, *MODES),
                overflow=_pick(rng, "infinity", "infinity", "saturate"),
                subnormal_inputs=_pick(rng, "keep", *SUBNORMALS),
                subnormal_accumulators=_pick(rng, "keep", *SUBNORMALS),
                subnormal_products=_pick(rng, "keep", *SUBNORMALS),
                subnormal_outputs=_pick(rng, "keep", *SUBNORMALS),
                zeros=_pick(rng, "ieee", "positive", "unsigned"),
                scale=_scale(rng) if aligned and rng.random() < 0.3 else None,
            )
        except ArgumentError:
            continue


def columnwise_model(rng: np.random.Generator) -> EngineModel:
    """A model that has a kernel by whole columns."""
    while True:
        inputs, output = _pick(rng, *NARROW, FP32, FP64), _pick(rng, FP32, FP16, BF16, FP64)
        common = {"rounding": _pick(rng, "zero", "nearest"), "depth": None}
        try:
            if rng.random() < 0.5:
                return EngineModel(
                    "random", inputs, output, accumulator=_pick(rng, None, None, Format(8, 13, "e8m13")),
                    block=int(rng.integers(1, 20)), fraction_bits=int(rng.integers(7, 41)),
                    zero_exponent=_pick(rng, None, output.minexp - int(rng.integers(1, 10))),
                    zeros=_pick(rng, "positive", "unsigned"), **common,
                )  # fmt: skip
            common["depth"] = _pick(rng, None, 4)
            return EngineModel(
                "random", inputs, output, summation=_pick(rng, "aligned", "sequential"),
                zeros=_pick(rng, "positive", "ieee"), **common,
            )  # fmt: skip
        except ArgumentError:
            continue


def _late(rng: np.random.Generator) -> LateJoin:
    widths = [int(w) for w in rng.integers(8, 61, 3)] if rng.random() < 0.5 else [32, 24, 31]
    return LateJoin(*widths, cutoff=_pick(rng, None, None, 25, int(rng.integers(1, 40))))


def _scale(rng: np.random.Generator) -> BlockScale:
    kind = _pick(rng, "ue8m0", "ue4m3")
    summation = "groups" if kind == "ue4m3" else _pick(rng, "terms", "groups")
    return BlockScale(kind, int(_pick(rng, 1, 2, 4, 8, 16)), summation)


def plainer(model: EngineModel, rng: np.random.Generator) -> EngineModel:
    """The model with some fields at their defaults, so that the usual combinations come up, too."""
    names = [f.name for f in dataclasses.fields(model) if f.default is not dataclasses.MISSING]
    for name in rng.permutation(names):
        if rng.random() < 0.6:
            default = next(f.default for f in dataclasses.fields(model) if f.name == name)
            try:
                model = dataclasses.replace(model, **{str(name): default})
            except ArgumentError:
                continue
    return model


KINDS = ("any", "near", "edges", "zeros", "cancelling", "specials", "spread")


def values(format: Format | Integer, shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> np.ndarray:
    """Values of the format.

    any: every bit pattern alike; near: a few binades around 1; edges: the smallest, the largest, powers of two;
    zeros: mostly zeros of both signs; cancelling: few significands of both signs; specials: with infinities and NaN;
    spread: one significand bit, any exponent.
    """
    if isinstance(format, Integer):
        found = rng.integers(format.min, format.max + 1, shape).astype(float)
        ends = rng.choice([format.min, format.max, 0.0, 1.0], shape)
        return np.where(rng.random(shape) < (0.5 if kind == "edges" else 0.1), ends, found)
    x = encodings.decode(_patterns(format, shape, rng), format)
    sign = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
    if kind == "near":
        e = rng.integers(-4, 5, shape)
        x = sign * np.ldexp(
            rng.integers(1 << format.fraction_bits, 2 << format.fraction_bits, shape), e - format.fraction_bits
        )
    elif kind == "edges":
        ends = [
            format.max,
            format.smallest_normal,
            format.smallest_subnormal,
            1.0,
            0.0,
            math.ldexp(1.0, format.maxexp - 1),
        ]
        ends += [format.smallest_normal - format.smallest_subnormal, 1.0 + format.eps, 2.0 - format.eps]
        x = sign * rng.choice(ends, shape)
    elif kind == "zeros":
        x = np.where(rng.random(shape) < 0.8, 0.0 * sign, x)
    elif kind == "cancelling":
        e = rng.choice([-1, 0, 0, 0, 1, format.fraction_bits // 2, -format.fraction_bits // 2], shape)
        x = sign * np.ldexp(rng.choice([1.0, 1.0, 1.0 + format.eps, 1.5], shape), e)
    elif kind == "spread":
        x = sign * np.ldexp(1.0, rng.integers(format.subnormal_exponent, format.maxexp, shape))
    bad = ~np.isfinite(x) if kind != "specials" else np.zeros(shape, bool)
    x = np.where(bad | encodings.foreign(x, format), sign, x)
    if kind == "specials" and format.specials == "ieee":
        x = np.where(rng.random(shape) < 0.1, rng.choice([np.inf, -np.inf, 0.0, 1.0], shape), x)
    return x


def _patterns(format: Format, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 1 << format.bits, shape, dtype=np.uint64)


def scales(model: EngineModel, rows: int, k: int, rng: np.random.Generator) -> np.ndarray | None:
    """Block scale factors of rows."""
    if model.scale is None:
        return None
    shape = rows, -(-k // model.scale.length)
    if model.scale.format == "ue8m0":
        reach = int(_pick(rng, 2, 20, 127))
        found = np.ldexp(1.0, rng.integers(-reach, reach + 1, shape))
    else:
        found = np.abs(values(E4M3, shape, str(_pick(rng, "any", "near", "zeros")), rng))
    return np.where(rng.random(shape) < 0.01, np.nan, found)
