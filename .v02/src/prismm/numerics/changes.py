"""Changes to a model that the probe's searches try: values of several properties at once, by what they are about.

Properties that only show together are changed together: where the one is wrong, the others cannot be told.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from prismm.formats import Format
from prismm.numerics.family import (
    BITS,
    BLOCKS,
    CARRY,
    ORDERS,
    PARALLEL,
    accumulators,
    late_joins,
    zero_exponents,
)
from prismm.numerics.model import EngineModel
from prismm.numerics.parts import MODES, SUBNORMALS, LateJoin, Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["CHANGES", "ORDERING", "RARE"]

_ANY_BITS = 40
"""More fraction bits than most products need."""


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
    """Block and depth, in the model's order of k or in ascending order; a tree instead of a chain."""
    for block in BLOCKS:
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
    for block in BLOCKS:
        yield from _groups(model, block, (1, 2, 4))


def _groups(model: EngineModel, block: int, depths: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    late = isinstance(model.join, LateJoin)
    if not late:
        for groups, times in itertools.product(ORDERS, depths):
            yield {
                "block": block,
                "depth": times * block,
                "groups": groups,
                "group_sums": "chained",
                "join": model.join,
            }
    if model.join != "inside":
        for groups, times in itertools.product(PARALLEL, (1,) if late else depths):
            depth = times * block * len(groups)
            yield {"block": block, "depth": depth, "groups": groups, "group_sums": "separate", "join": model.join}


def _shapes(model: EngineModel) -> Iterator[dict[str, Any]]:
    """Every block with every order and depth, for the model's kind of join."""
    for block in BLOCKS:
        yield from _joins(model, block)
        yield from _groups(model, block, (1, 2, 4))


def _sums(model: EngineModel) -> Iterator[dict[str, Any]]:
    """How a block is summed, to how many bits."""
    plain = model.join != "after" and not model.groups and model.accumulator is None
    for bits in BITS:
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
    for block in BLOCKS:
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
            ("ieee", "positive", "unsigned"), range(1, max(BLOCKS) // model.block + 1)
        ):
            yield {"zeros": zeros, "depth": times * model.block}
        for zeros, block in itertools.product(("ieee", "positive", "unsigned"), BLOCKS):
            yield {"zeros": zeros, "block": block, "depth": None}


def _signs(model: EngineModel) -> Iterator[dict[str, Any]]:
    """What the sign of a zero shows: where an instruction ends, and what becomes of sums that are flushed."""
    flushed = tuple(itertools.product(SUBNORMALS, repeat=2))
    depths: Iterable[int | None] = (model.depth,)
    if model.join == "inside" and not model.groups:
        depths = range(model.block, 4 * max(BLOCKS) + 1, model.block)
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
    for bits, alignment in itertools.product(BITS, ("zero", "floor")):
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
    for carry in CARRY:
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


def _carried_blocks(model: EngineModel) -> Iterator[dict[str, Any]]:
    """Blocks that are long enough for their carry bits to show, though no bit is cut off below."""
    for block, carry in itertools.product(BLOCKS, range(8)):
        changes = list(_joins(model, block))
        if model.join == "inside":  # or c comes after, which short vectors do not show where nothing is cut off
            changes += ({**changes[0], "depth": times * block, "join": "after"} for times in (1, 2, 4))
        for change in changes:
            kept = model.fraction_bits or _ANY_BITS
            yield {**change, "summation": "aligned", "fraction_bits": kept, "carry_bits": carry}


def _rounded_blocks(model: EngineModel) -> Iterator[dict[str, Any]]:
    """Exact sums of blocks, with every rounding after them and at the end: either looks like the other."""
    modes: tuple[Mode | None, ...] = (None, *MODES)
    for block, rounding, last in itertools.product(BLOCKS, MODES, modes):
        for change in _joins(model, block):
            own = {"rounding": rounding, "output_rounding": last}
            yield {**change, **own, "summation": "aligned", "fraction_bits": None}


def _narrowed(model: EngineModel) -> Iterator[dict[str, Any]]:
    """Sums of some bits in the output's format instead of wide ones that are rounded at the end, with what becomes of
    products beyond it: either looks like the other.
    """
    if model.accumulator is None:
        return
    own = {"accumulator": None, "rounding": model.last_rounding, "output_rounding": None}
    for beyond, bits in itertools.product(("exact", "infinity"), BITS):
        for alignment in MODES:
            yield {**own, "product_overflow": beyond, "fraction_bits": bits, "alignment": alignment}


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
    "late": late_joins,
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
