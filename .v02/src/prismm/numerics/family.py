"""The family of models that the probe searches: which values every property takes.

Known engines are members, and so is everything between them: blocks of 1 to 64 products, 1 to 48 kept fraction bits,
every rounding, summation, join and policy of `EngineModel`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from prismm.errors import ArgumentError
from prismm.formats import BF16, FP16, FP32, Format, Integer
from prismm.numerics.model import EngineModel
from prismm.numerics.parts import MODES, SUBNORMALS, LateJoin, Mode
from prismm.numerics.validation import check_float_engine, check_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np

__all__ = [
    "BITS",
    "BLOCKS",
    "CARRY",
    "ORDERS",
    "PARALLEL",
    "PROPERTIES",
    "accumulators",
    "alternatives",
    "changed",
    "late_joins",
    "mixture",
    "start",
    "twins",
    "zero_exponents",
]

PROPERTIES = (
    "block",
    "depth",
    "groups",
    "group_sums",
    "summation",
    "fraction_bits",
    "alignment",
    "carry_bits",
    "zero_exponent",
    "join",
    "rounding",
    "output_rounding",
    "accumulator",
    "overflow",
    "product_rounding",
    "product_overflow",
    "product_exponent",
    "subnormal_inputs",
    "subnormal_accumulators",
    "subnormal_products",
    "subnormal_outputs",
    "zeros",
)
"""What the probe decides, one by one."""

BLOCKS = range(1, 65)
BITS: tuple[int | None, ...] = (*range(1, 49), None)
CARRY: tuple[int | None, ...] = (*range(8), None)
PARALLEL: tuple[tuple[tuple[int, ...], ...], ...] = (((0,), (1,)), ((0,), (1,), (2,), (3,)))
"""Groups with sums of their own."""
ORDERS: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((0,), (1,)),
    ((0, 1), (2, 3)),
    ((0, 1, 2, 3), (4, 5, 6, 7)),
    ((0,), (1,), (2,), (3,)),
    ((1,), (0,)),
    ((2, 3), (0, 1)),
)
"""Groups that are taken one after another."""


def start(inputs: Format, output: Format) -> EngineModel:
    """Where searches begin: blocks of four, aligned, toward zero.

    >>> from prismm.formats import FP16, FP32
    >>> start(FP16, FP32).block
    4
    """
    bits = 24 if inputs.precision <= 24 else None
    return EngineModel("probed", inputs, output, block=4, fraction_bits=bits, rounding="zero")


def changed(model: EngineModel, **values: Any) -> EngineModel | None:
    """The model with other values, and what cannot stand beside them at its default; None where they make no model."""
    aligned = values.get("summation", model.summation) == "aligned"
    bits = values.get("fraction_bits", model.fraction_bits)
    if not aligned or bits is None:
        values.setdefault("carry_bits", None)
        values.setdefault("zero_exponent", None)
    alignment = values.get("alignment", model.alignment)
    if aligned and alignment not in ("zero", "floor"):
        values["alignment"] = "zero"
    # As `replace`, without a look at every field for itself: the family's values are all in range.
    found = object.__new__(EngineModel)
    found.__dict__.update(model.__dict__)
    found.__dict__.update(values)
    try:
        if "block" in values or "depth" in values or "groups" in values or "group_sums" in values:
            check_groups(found)
        check_float_engine(found)
    except ArgumentError:
        return None
    return found


def accumulators(output: Format) -> list[Format | None]:
    """Formats of running sums: the output, fewer fraction bits, and wider ones that are rounded at the end."""
    found: list[Format | None] = [None]
    if output == FP32:
        found += [Format(8, bits, f"e8m{bits}") if bits != 7 else BF16 for bits in range(5, 23)]
        found += [FP16]
    elif output == FP16:
        found += [FP32, *(Format(8, bits, f"e8m{bits}") for bits in (13,))]
    return found


def twins(model: EngineModel) -> Iterator[EngineModel]:
    """Models that look like this one on short vectors far from the ends of the range."""
    output = model.output
    assert isinstance(output, Format)
    found: list[EngineModel | None] = []
    bits, aligned = model.fraction_bits, model.summation == "aligned"
    for narrow in accumulators(output):
        # Partial sums of so many bits, or running sums of them.
        if narrow is not None and narrow.fraction_bits == bits and not aligned:
            change = {"accumulator": narrow, "fraction_bits": None, "rounding": model.alignment}
            found.append(changed(model, **change, output_rounding=model.last_rounding))
    found += [changed(model, join=join, depth=None) for join in ("inside", "after", LateJoin(), LateJoin(cutoff=25))]
    one = {"block": 1, "depth": model.instruction_depth if model.join == "after" else None}
    if aligned:
        found += [changed(model, summation=way) for way in ("sequential", "pairwise")]
    else:
        for kept in dict.fromkeys((bits, None if bits is None else bits + 1)):
            found += [changed(model, summation="aligned", fraction_bits=kept, **one) for one in (one, {})]
    found += [changed(model, fraction_bits=kept) for kept in (24, 32, 40, None)]
    last = model.output_rounding if model.output_rounding or model.join != "after" else model.rounding
    found += [changed(model, rounding=mode, output_rounding=last) for mode in MODES]
    yield from (m for m in found if m is not None and m != model)


def zero_exponents(sums: Format | Integer) -> list[int | None]:
    """None, and 40 below the smallest normal exponent of running sums."""
    assert isinstance(sums, Format)
    return [None, *range(sums.minexp - 40, sums.minexp)]


def late_joins(model: EngineModel) -> Iterator[dict[str, Any]]:
    """Other numbers of bits and cutoffs of a late join."""
    if isinstance(model.join, LateJoin):
        for what in ("sum_bits", "accumulator_bits", "total_bits"):
            for bits in range(16, 49):
                yield {"join": replace(model.join, **{what: bits})}
        for cutoff in (None, *range(8, 41)):
            yield {"join": replace(model.join, cutoff=cutoff)}


def alternatives(model: EngineModel, name: str) -> list[EngineModel]:
    """The members of the family that differ from the model in this property alone, canonically different from it.

    >>> from prismm.formats import FP16, FP32
    >>> [m.zeros for m in alternatives(start(FP16, FP32), "zeros")]
    ['ieee', 'unsigned']
    """
    values: Iterable[Any]
    output = model.output
    assert isinstance(output, Format)
    if name == "block":
        factor = model.instruction_depth // model.block
        found = [changed(model, block=b, depth=None if model.depth is None else b * factor) for b in BLOCKS] + [
            changed(model, block=b) for b in BLOCKS
        ]
    else:
        if name == "depth":
            own = model.block * max(1, len(model.groups))
            values = [None, *(own * i for i in (1, 2, 3, 4, 6, 8)), *(model.block * i for i in (1, 2, 4, 8, 16))]
        elif name == "groups":
            values = ((), *ORDERS) if model.group_sums == "chained" else PARALLEL
        elif name == "join":
            late = model.join if isinstance(model.join, LateJoin) else LateJoin()
            values = ["inside", "after", late, *(change["join"] for change in late_joins(model))]
        else:
            choices: dict[str, Iterable[Any]] = {
                "group_sums": ("chained", "separate"),
                "summation": ("aligned", "sequential", "pairwise"),
                "fraction_bits": BITS,
                "alignment": MODES,
                "carry_bits": CARRY,
                "zero_exponent": zero_exponents(model.sums),
                "rounding": MODES,
                "output_rounding": (None, *MODES),
                "accumulator": accumulators(output),
                "overflow": ("infinity", "saturate"),
                "product_rounding": (None, *MODES),
                "product_overflow": ("exact", "infinity"),
                "product_exponent": ("sum", "normalised"),
                "zeros": ("ieee", "positive", "unsigned"),
            }
            values = choices.get(name, SUBNORMALS)
        found = [changed(model, **{name: value}) for value in values]
        if name == "fraction_bits" and model.fraction_bits is None:
            # Nothing is aligned yet: with fewer bits any alignment may be right.
            ways: Iterable[Mode] = ("zero", "floor") if model.summation == "aligned" else MODES
            found += [changed(model, fraction_bits=bits, alignment=way) for way in ways for bits in BITS]
        if name == "rounding" and model.output_rounding is None:
            found += [changed(model, rounding=mode, output_rounding=model.rounding) for mode in MODES]
    mine = model.canonical()
    return list(dict.fromkeys(m for m in found if m is not None and m.canonical() != mine))


def mixture(
    model: EngineModel, others: list[list[EngineModel]], most: int, rng: np.random.Generator
) -> EngineModel | None:
    """The model with values of up to `most` of these lists, one model of each, at random; None where they make none.

    Args:
        model: where `others` come from.
        others: models that differ from it in a property, for several properties. Late joins give some of their
            numbers each, depths are so many blocks.
    """
    values: dict[str, Any] = {}
    for i in rng.permutation(len(others))[: 1 + int(rng.integers(most))] if others else ():
        first, second = (others[i][int(rng.integers(len(others[i])))] for _ in range(2))
        values |= {name: getattr(first, name) for name in PROPERTIES if getattr(first, name) != getattr(model, name)}
        joins = [m.join for m in (model, first, second)]
        if "join" in values and most > 1 and all(isinstance(join, LateJoin) for join in joins):
            mine, one, two = (vars(join) for join in joins)
            values["join"] = LateJoin(**{key: one[key] if one[key] != mine[key] else two[key] for key in mine})
    block, depth = values.get("block", model.block), values.get("depth")
    if depth is not None and depth % block:
        values["depth"] = block * (depth // model.block or 1)
    found = changed(model, **values) if values else None
    return None if found is None or found.canonical() == model.canonical() else found
