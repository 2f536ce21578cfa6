"""The family of models that the probe searches: which values every property takes, changes to try, random members.

Known engines are members, and so is everything between them: blocks of 1 to 64 products, 1 to 48 kept fraction bits,
every rounding, summation, join and policy of `EngineModel`.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from prismm.errors import ArgumentError
from prismm.formats import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, FP16, FP32, TF32, Format, Integer
from prismm.numerics.model import EngineModel
from prismm.numerics.parts import MODES, SUBNORMALS, LateJoin, Mode
from prismm.numerics.validation import check_float_engine, check_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np

__all__ = [
    "CHANGES",
    "ORDERING",
    "PROPERTIES",
    "RARE",
    "alternatives",
    "changed",
    "mixture",
    "random_model",
    "start",
    "twins",
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

_BLOCKS = range(1, 65)
_BITS: tuple[int | None, ...] = (*range(1, 49), None)
_ANY_BITS = 40
"""More than most products need."""
_CARRY: tuple[int | None, ...] = (*range(8), None)
_PARALLEL: tuple[tuple[tuple[int, ...], ...], ...] = (((0,), (1,)), ((0,), (1,), (2,), (3,)))
"""Groups with sums of their own."""
_ORDERS: tuple[tuple[tuple[int, ...], ...], ...] = (
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


def _joins(model: EngineModel, block: int) -> Iterator[dict[str, Any]]:
    """Depths and joins of ascending blocks, for the model's kind of join."""
    plain = {"block": block, "depth": None, "groups": (), "group_sums": "chained"}
    if model.join != "after":
        yield {**plain, "join": model.join}
        if model.accumulator is not None:
            yield from ({**plain, "depth": times * block, "join": model.join} for times in (2, 4))
    else:
        yield from ({**plain, "depth": times * block, "join": "after"} for times in (1, 2, 4))


def _blocks(model: EngineModel) -> Iterator[dict[str, Any]]:
    """Block and depth, in the model's order of k or in ascending order; a tree in place of a chain."""
    for block in _BLOCKS:
        if model.groups:
            own = block * (len(model.groups) if model.group_sums == "separate" else 1)
            yield from ({"block": block, "depth": times * own} for times in (1, 2, 4))
        for change in _joins(model, block):
            yield change
            if model.summation != "aligned" and model.join == "after":
                yield {**change, "summation": "pairwise" if model.summation == "sequential" else "sequential"}


def _orders(model: EngineModel) -> Iterator[dict[str, Any]]:
    """Groups, and the depth that goes with them, for the model's block and its fractions and multiples."""
    whole = model.instruction_depth
    blocks = (model.block, whole, *(whole // i for i in (2, 4, 8) if whole % i == 0), 2 * whole)
    for block in dict.fromkeys(b for b in blocks if 1 <= b <= 64):
        yield from _groups(model, block, (1, 2, 3, 4, 8, 16))
        if model.join == "after":
            plain = {"block": block, "groups": (), "group_sums": "chained", "join": "after"}
            yield from ({**plain, "depth": times * block} for times in (3, 8, 16))


def _grouped(model: EngineModel) -> Iterator[dict[str, Any]]:
    """Groups, with every block."""
    for block in _BLOCKS:
        yield from _groups(model, block, (1, 2, 4))


def _groups(model: EngineModel, block: int, depths: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    late = isinstance(model.join, LateJoin)
    if not late:
        for groups, times in itertools.product(_ORDERS, depths):
            yield {
                "block": block,
                "depth": times * block,
                "groups": groups,
                "group_sums": "chained",
                "join": model.join,
            }
    if model.join != "inside":
        for groups, times in itertools.product(_PARALLEL, (1,) if late else depths):
            depth = times * block * len(groups)
            yield {"block": block, "depth": depth, "groups": groups, "group_sums": "separate", "join": model.join}


def _shapes(model: EngineModel) -> Iterator[dict[str, Any]]:
    """Every block with every order and depth, for the model's kind of join."""
    for block in _BLOCKS:
        yield from _joins(model, block)
        yield from _groups(model, block, (1, 2, 4))


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


def _sums(model: EngineModel) -> Iterator[dict[str, Any]]:
    """How a block is summed, to how many bits."""
    plain = model.join != "after" and not model.groups and model.accumulator is None
    for bits in _BITS:
        for alignment in ("zero", "floor"):
            change = {"summation": "aligned", "fraction_bits": bits, "alignment": alignment}
            yield change
            if model.summation != "aligned":  # one by one, too
                yield {**change, "block": 1, **({"depth": None} if plain else {})}
        for alignment in MODES:
            for summation in ("sequential", "pairwise"):
                yield {"summation": summation, "fraction_bits": bits, "alignment": alignment}


def _trees(model: EngineModel) -> Iterator[dict[str, Any]]:
    """Block, join and kind of sum together: where the one is wrong, the others cannot be told."""
    for block in _BLOCKS:
        for join in ("inside", "after", LateJoin()):
            for summation in ("aligned", "sequential", "pairwise"):
                for bits in dict.fromkeys((model.fraction_bits, None)):
                    other = {"join": join, "summation": summation, "fraction_bits": bits}
                    depth = None if join != "after" else block
                    yield {"block": block, "groups": (), "group_sums": "chained", "depth": depth, **other}


def _roundings(model: EngineModel) -> Iterator[dict[str, Any]]:
    """Running sums and their rounding."""
    output = model.output
    assert isinstance(output, Format)
    for accumulator, rounding in itertools.product(accumulators(output), MODES):
        for bits in dict.fromkeys((model.fraction_bits, None)):
            change = {"accumulator": accumulator, "rounding": rounding, "fraction_bits": bits}
            yield change
            if model.rounding != rounding:
                yield {**change, "output_rounding": model.last_rounding}


def _rounded_ends(model: EngineModel) -> Iterator[dict[str, Any]]:
    """Running sums and their rounding, with flushing or the ends of instructions: where they are wide, nothing else may
    show them.
    """
    flushed = tuple(itertools.product(SUBNORMALS, repeat=2))
    for accumulator, rounding in itertools.product(accumulators(model.output), MODES):  # type: ignore[arg-type]
        for outputs, sums in flushed:
            flushing = {"subnormal_outputs": outputs, "subnormal_accumulators": sums}
            change = {"accumulator": accumulator, "rounding": rounding, **flushing}
            yield change
            if model.rounding != rounding:
                yield {**change, "output_rounding": model.last_rounding}
        if model.join == "inside" and not model.groups:
            for times in (1, 2, 4):
                yield {"accumulator": accumulator, "rounding": rounding, "depth": times * model.block}


def _last_roundings(model: EngineModel) -> Iterator[dict[str, Any]]:
    modes: tuple[Mode | None, ...] = (None, *MODES)
    for rounding, last in itertools.product(MODES, modes):
        yield {"rounding": rounding, "output_rounding": last}


def _policies(model: EngineModel) -> Iterator[dict[str, Any]]:
    names = ("subnormal_inputs", "subnormal_accumulators", "subnormal_products", "subnormal_outputs")
    for values in itertools.product(SUBNORMALS, repeat=4):
        yield dict(zip(names, values, strict=True))


def _zeros(model: EngineModel) -> Iterator[dict[str, Any]]:
    for zeros, inputs in itertools.product(("ieee", "positive", "unsigned"), SUBNORMALS):
        yield {"zeros": zeros, "subnormal_inputs": inputs}
        yield {"zeros": zeros, "subnormal_outputs": inputs}
        yield {"zeros": zeros, "subnormal_products": inputs}


def _paddings(model: EngineModel) -> Iterator[dict[str, Any]]:
    """Where an instruction ends, which a sum of nothing but -0 shows."""
    if model.join == "inside" and not model.groups:
        for zeros, times in itertools.product(
            ("ieee", "positive", "unsigned"), range(1, max(_BLOCKS) // model.block + 1)
        ):
            yield {"zeros": zeros, "depth": times * model.block}
        for zeros, block in itertools.product(("ieee", "positive", "unsigned"), _BLOCKS):
            yield {"zeros": zeros, "block": block, "depth": None}


def _signs(model: EngineModel) -> Iterator[dict[str, Any]]:
    """What the sign of a zero shows: where an instruction ends, and what becomes of sums that are flushed."""
    flushed = tuple(itertools.product(SUBNORMALS, repeat=2))
    depths: Iterable[int | None] = (model.depth,)
    if model.join == "inside" and not model.groups:
        depths = range(model.block, 4 * max(_BLOCKS) + 1, model.block)
    for depth, zeros, (outputs, sums) in itertools.product(depths, ("ieee", "positive", "unsigned"), flushed):
        change = {"zeros": zeros, "subnormal_outputs": outputs, "subnormal_accumulators": sums}
        yield change if depth == model.depth else {**change, "depth": depth}


def _underflows(model: EngineModel) -> Iterator[dict[str, Any]]:
    """What becomes of products and sums that are too small, and of the sign of their zeros."""
    flushed = tuple(itertools.product(SUBNORMALS, repeat=2))
    modes: tuple[Mode | None, ...] = (None, *MODES)
    for rounding, zeros, (products, outputs) in itertools.product(modes, ("ieee", "positive", "unsigned"), flushed):
        change = {"product_rounding": rounding, "zeros": zeros}
        yield {**change, "subnormal_products": products, "subnormal_outputs": outputs}


def _empty_sums(model: EngineModel) -> Iterator[dict[str, Any]]:
    """What the sign of a zero shows where zeros have an exponent: floors and policies that hide each other."""
    flushed = tuple(itertools.product(SUBNORMALS, repeat=3))
    for exponent, zeros in itertools.product(
        dict.fromkeys((model.zero_exponent, None)), ("ieee", "positive", "unsigned")
    ):
        for inputs, products, outputs in flushed:
            flushing = {"subnormal_inputs": inputs, "subnormal_products": products, "subnormal_outputs": outputs}
            yield {"zero_exponent": exponent, "zeros": zeros, **flushing}


def _joined_ends(model: EngineModel) -> Iterator[dict[str, Any]]:
    """Where c joins, with what becomes of operands and products that are too small, or how many bits are kept."""
    plain = {"groups": (), "group_sums": "chained"}
    for join, zeros in itertools.product(("inside", "after"), ("ieee", "positive", "unsigned")):
        for inputs, products in itertools.product(SUBNORMALS, repeat=2):
            change = {"zeros": zeros, "subnormal_inputs": inputs, "subnormal_products": products}
            for depth in (None, model.block) if join == "inside" else (model.block, 2 * model.block, 4 * model.block):
                yield {**plain, **change, "join": join, "depth": depth}
    for bits, alignment in itertools.product(_BITS, ("zero", "floor")):
        aligned = {**plain, "summation": "aligned", "fraction_bits": bits, "alignment": alignment}
        yield {**aligned, "join": "inside", "depth": None}
        yield {**aligned, "join": "after", "depth": model.instruction_depth}


def _products(model: EngineModel) -> Iterator[dict[str, Any]]:
    ends = itertools.product(("exact", "infinity"), ("infinity", "saturate"))
    for rounding, (beyond, overflow), exponent in itertools.product((None, *MODES), ends, ("sum", "normalised")):
        change = {"product_rounding": rounding, "product_overflow": beyond, "product_exponent": exponent}
        yield {**change, "overflow": overflow}


def _limits(model: EngineModel) -> Iterator[dict[str, Any]]:
    for overflow in ("infinity", "saturate"):
        yield {"overflow": overflow}
    for carry in _CARRY:
        yield {"carry_bits": carry}


def _floors(model: EngineModel) -> Iterator[dict[str, Any]]:
    """The exponent of zeros, which may show only with the right running sums."""
    for accumulator, rounding in itertools.product(dict.fromkeys((model.accumulator, None)), MODES):
        for exponent in zero_exponents(accumulator or model.output):
            change = {"accumulator": accumulator, "zero_exponent": exponent, "rounding": rounding}
            yield change
            if rounding != model.rounding:
                yield {**change, "output_rounding": model.last_rounding}


def _rounded_products(model: EngineModel) -> Iterator[dict[str, Any]]:
    """Roundings of products together with those of sums: either looks like the other."""
    bits = dict.fromkeys((model.fraction_bits, None, 47))
    for product, kept, accumulator in itertools.product((None, *MODES), bits, accumulators(model.output)):  # type: ignore[arg-type]
        for rounding in MODES:
            base = {"product_rounding": product, "accumulator": accumulator, "rounding": rounding}
            yield {**base, "summation": "aligned", "fraction_bits": kept, "output_rounding": None}
            if accumulator is not None:
                yield {**base, "output_rounding": model.last_rounding}


def _rounded_sums(model: EngineModel) -> Iterator[dict[str, Any]]:
    """How products are rounded, and how they are summed."""
    for product in (None, *MODES):
        for change in _sums(model):
            yield {**change, "product_rounding": product}


def _levels(model: EngineModel) -> Iterator[dict[str, Any]]:
    """How many bits are kept of sums, below which exponent of zeros."""
    for product in dict.fromkeys((model.product_rounding, None)):
        for bits, alignment in itertools.product(range(1, 49), ("zero", "floor")):
            base = {"summation": "aligned", "fraction_bits": bits, "alignment": alignment, "product_rounding": product}
            for exponent in zero_exponents(model.sums)[:1] + zero_exponents(model.sums)[-16:]:
                yield {**base, "zero_exponent": exponent}
            if model.accumulator is not None and abs(bits - (model.fraction_bits or 0)) <= 3:
                # Running sums that are wider than the output and rounded to odd look like none of their own.
                base |= {"accumulator": None, "rounding": model.last_rounding, "output_rounding": None}
                yield from ({**base, "zero_exponent": exponent} for exponent in zero_exponents(model.output))


def zero_exponents(sums: Format | Integer) -> list[int | None]:
    """None, and 40 below the smallest normal exponent of running sums."""
    assert isinstance(sums, Format)
    return [None, *range(sums.minexp - 40, sums.minexp)]


def _carried_blocks(model: EngineModel) -> Iterator[dict[str, Any]]:
    """Blocks that are long enough for their carry bits to show, though no bit is cut off below."""
    for block, carry in itertools.product(_BLOCKS, range(8)):
        changes = list(_joins(model, block))
        if model.join == "inside":  # or c comes after, which short vectors do not show where nothing is cut off
            changes += ({**changes[0], "depth": times * block, "join": "after"} for times in (1, 2, 4))
        for change in changes:
            kept = model.fraction_bits or _ANY_BITS
            yield {**change, "summation": "aligned", "fraction_bits": kept, "carry_bits": carry}


def _rounded_blocks(model: EngineModel) -> Iterator[dict[str, Any]]:
    """Exact sums of blocks, with every rounding after them and at the end: either looks like the other."""
    modes: tuple[Mode | None, ...] = (None, *MODES)
    for block, rounding, last in itertools.product(_BLOCKS, MODES, modes):
        for change in _joins(model, block):
            own = {"rounding": rounding, "output_rounding": last}
            yield {**change, **own, "summation": "aligned", "fraction_bits": None}


def _narrowed(model: EngineModel) -> Iterator[dict[str, Any]]:
    """Sums of some bits in the output's format in place of wide ones that are rounded at the end, with what becomes of
    products beyond it: either looks like the other.
    """
    if model.accumulator is None:
        return
    own = {"accumulator": None, "rounding": model.last_rounding, "output_rounding": None}
    for beyond, bits in itertools.product(("exact", "infinity"), _BITS):
        for alignment in MODES:
            yield {**own, "product_overflow": beyond, "fraction_bits": bits, "alignment": alignment}


def _late(model: EngineModel) -> Iterator[dict[str, Any]]:
    if isinstance(model.join, LateJoin):
        for what in ("sum_bits", "accumulator_bits", "total_bits"):
            for bits in range(16, 49):
                yield {"join": replace(model.join, **{what: bits})}
        for cutoff in (None, *range(8, 41)):
            yield {"join": replace(model.join, cutoff=cutoff)}


CHANGES: dict[str, Callable[[EngineModel], Iterator[dict[str, Any]]]] = {
    "sums": _sums,
    "roundings": _roundings,
    "rounded_ends": _rounded_ends,
    "last_roundings": _last_roundings,
    "products": _products,
    "policies": _policies,
    "zeros": _zeros,
    "paddings": _paddings,
    "signs": _signs,
    "underflows": _underflows,
    "empty_sums": _empty_sums,
    "joined_ends": _joined_ends,
    "limits": _limits,
    "floors": _floors,
    "late": _late,
    "blocks": _blocks,
    "orders": _orders,
    "trees": _trees,
    "grouped": _grouped,
    "shapes": _shapes,
    "rounded_products": _rounded_products,
    "rounded_sums": _rounded_sums,
    "levels": _levels,
}
"""What a search may change at once: values of one property, or of a few that show only together."""

RARE: dict[str, Callable[[EngineModel], Iterator[dict[str, Any]]]] = {
    "narrowed": _narrowed,
    "carried_blocks": _carried_blocks,
    "rounded_blocks": _rounded_blocks,
}
"""What only a search that found nothing changes: it is long, and seldom needed."""

ORDERING = ("blocks", "orders", "trees", "grouped", "shapes", "carried_blocks", "rounded_blocks")
"""Those that show only where there are several products."""


def alternatives(model: EngineModel, name: str) -> list[EngineModel]:
    """The members of the family that differ from the model in this property alone, canonically different from it.

    >>> from prismm.formats import FP16, FP32
    >>> [m.rounding for m in alternatives(start(FP16, FP32), "rounding")]
    ['nearest', 'floor', 'odd']
    """
    values: Iterable[Any]
    output = model.output
    assert isinstance(output, Format)
    if name == "block":
        factor = model.instruction_depth // model.block
        found = [changed(model, block=b, depth=None if model.depth is None else b * factor) for b in _BLOCKS] + [
            changed(model, block=b) for b in _BLOCKS
        ]
    else:
        if name == "depth":
            own = model.block * max(1, len(model.groups))
            values = [None, *(own * i for i in (1, 2, 3, 4, 6, 8)), *(model.block * i for i in (1, 2, 4, 8, 16))]
        elif name == "groups":
            values = ((), *_ORDERS) if model.group_sums == "chained" else _PARALLEL
        elif name == "join":
            late = model.join if isinstance(model.join, LateJoin) else LateJoin()
            values = ["inside", "after", late, *(change["join"] for change in _late(model))]
        else:
            choices: dict[str, Iterable[Any]] = {
                "group_sums": ("chained", "separate"),
                "summation": ("aligned", "sequential", "pairwise"),
                "fraction_bits": _BITS,
                "alignment": MODES,
                "carry_bits": _CARRY,
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
            found += [changed(model, fraction_bits=bits, alignment=way) for way in ways for bits in _BITS]
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
            groups = one(*(_ORDERS if group_sums == "chained" else _PARALLEL))
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
