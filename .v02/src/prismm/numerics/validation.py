"""Which parameters of an `EngineModel` go together: every rule in one place, with an error that says what to pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.errors import ArgumentError
from prismm.formats import Format, Integer
from prismm.numerics.encodings import canonical_nan, is_nan
from prismm.numerics.parts import MODES, SUBNORMALS, BlockScale, LateJoin, integer, one_of, text

if TYPE_CHECKING:
    from prismm.numerics.model import EngineModel

__all__ = ["check_float_engine", "check_groups", "check_integer_engine", "check_types"]


def check_types(model: EngineModel) -> None:
    """Every field for itself."""
    for what in ("name", "source", "certainty"):
        text(what, getattr(model, what))
    for what in ("input", "output"):
        if not isinstance(getattr(model, what), (Format, Integer)):
            raise ArgumentError(f"{what}={getattr(model, what)!r}; pass a Format or an Integer of prismm.formats")
    if model.accumulator is not None and not isinstance(model.accumulator, Format):
        raise ArgumentError(f"accumulator={model.accumulator!r}; pass a Format or None")
    for what in ("input", "output", "accumulator"):
        text(f"the name of {what}", getattr(getattr(model, what), "name", ""))
    integer("block", model.block, 1, 256)
    integer("fraction_bits", model.fraction_bits, 1, 48, none=True)
    integer("carry_bits", model.carry_bits, 0, 12, none=True)
    integer("zero_exponent", model.zero_exponent, -1200, 0, none=True)
    integer("nan", model.nan, 0, 2**64 - 1, none=True)
    one_of("group_sums", model.group_sums, ("chained", "separate"))
    one_of("product_rounding", model.product_rounding, (None, *MODES))
    one_of("product_overflow", model.product_overflow, ("exact", "infinity"))
    one_of("product_exponent", model.product_exponent, ("sum", "normalised"))
    one_of("summation", model.summation, ("aligned", "sequential", "pairwise"))
    one_of("alignment", model.alignment, MODES)
    one_of("rounding", model.rounding, MODES)
    one_of("output_rounding", model.output_rounding, (None, *MODES))
    one_of("overflow", model.overflow, ("infinity", "saturate", "wrap"))
    one_of("zeros", model.zeros, ("ieee", "positive", "unsigned"))
    for what in ("inputs", "accumulators", "products", "outputs"):
        one_of(f"subnormal_{what}", getattr(model, f"subnormal_{what}"), SUBNORMALS)
    if not isinstance(model.join, LateJoin):
        one_of("join", model.join, ("inside", "after"))
    if model.scale is not None and not isinstance(model.scale, BlockScale):
        raise ArgumentError(f"scale={model.scale!r}; pass a BlockScale or None")
    groups = model.groups
    if not isinstance(groups, tuple) or not all(isinstance(g, tuple) and g for g in groups):
        raise ArgumentError(f"groups={groups!r}; pass a tuple of tuples of residues, such as ((0, 1), (2, 3))")
    for group in groups:
        for residue in group:
            integer("a residue in groups", residue, 0, 4095)
    check_groups(model)


def check_groups(model: EngineModel) -> None:
    """Groups, depth and block against each other."""
    integer("depth", model.depth, 1, 4096, none=True)
    groups = model.groups
    residues = [r for group in groups for r in group]
    if sorted(residues) != list(range(len(residues))):
        raise ArgumentError(f"groups={groups!r}; every residue from 0 to {len(residues) - 1} stands in one group, once")
    if model.group_sums == "separate" and len({len(group) for group in groups}) > 1:
        raise ArgumentError(
            f"groups={groups!r} with group_sums='separate'; pass groups of one size, or group_sums='chained'"
        )
    depth = model.instruction_depth
    if groups and depth % len(residues):
        raise ArgumentError(f"depth={depth} is no multiple of the {len(residues)} residues in groups")
    for sequence in model.sequences():
        if len(sequence) % model.block:
            raise ArgumentError(f"block={model.block} does not divide the {len(sequence)} products of a running sum")


def check_integer_engine(model: EngineModel) -> None:
    """Only formats, depth and overflow mean something."""
    if not isinstance(model.output, Integer):
        raise ArgumentError(f"input={model.input.name!r} with output={model.output.name!r}; integers give integers")
    if model.overflow not in ("wrap", "saturate"):
        raise ArgumentError(f"overflow={model.overflow!r}; integers pass 'wrap' or 'saturate'")
    plain = type(model).__dataclass_fields__
    for item in plain.values():
        if item.name in ("name", "input", "output", "block", "depth", "overflow", "source", "certainty"):
            continue
        if getattr(model, item.name) != item.default:
            raise ArgumentError(
                f"{item.name}={getattr(model, item.name)!r} means nothing to an integer engine; leave it"
            )


def check_float_engine(model: EngineModel) -> None:
    """Parameters against each other."""
    inputs, output, join = model.input, model.output, model.join
    if not isinstance(inputs, Format) or not isinstance(output, Format):
        raise ArgumentError(f"input={inputs.name!r} with output={output.name!r}; floats give floats")
    for what, format in (("output", output), ("accumulator", model.sums)):
        if format.specials != "ieee":
            raise ArgumentError(f"{what}={format.name!r} has no infinities; pass fp16, bf16, fp32 or fp64")
    if model.nan is not None and not is_nan(model.nan, output):
        raise ArgumentError(
            f"nan={model.nan:#x} is no NaN of {output.name or output}; pass the bits of one, such as "
            f"{canonical_nan(output):#x}, or None"
        )
    if model.overflow == "wrap":
        raise ArgumentError("overflow='wrap' is for integers; pass 'infinity' or 'saturate'")
    aligned, bits = model.summation == "aligned", model.fraction_bits
    if aligned and bits is not None and inputs.precision > 24:
        raise ArgumentError(f"fraction_bits={bits} with input={inputs.name!r}; pass inputs of at most 24 bits, or None")
    if aligned and model.alignment not in ("zero", "floor"):
        raise ArgumentError(f"alignment={model.alignment!r}; aligned terms are cut off toward 'zero' or to the 'floor'")
    if not aligned or bits is None:
        for what in ("carry_bits", "zero_exponent"):
            if getattr(model, what) is not None:
                raise ArgumentError(
                    f"{what}={getattr(model, what)}; only summation='aligned' with fraction_bits has it"
                )
    if model.zero_exponent is not None and model.zero_exponent >= model.sums.minexp:
        raise ArgumentError(f"zero_exponent={model.zero_exponent}; pass one below {model.sums.minexp}")
    if model.summation == "pairwise" and join != "after":
        raise ArgumentError("summation='pairwise' is a tree of products; pass join='after'")
    separate = bool(model.groups) and model.group_sums == "separate"
    if separate and join == "inside":
        raise ArgumentError("group_sums='separate' leaves no sum that c could be inside of; pass join='after'")
    if isinstance(join, LateJoin):
        whole = model.block * (len(model.groups) if separate else 1)
        if not aligned or bits is None or model.instruction_depth != whole or model.accumulator is not None:
            raise ArgumentError(
                "a LateJoin needs summation='aligned' with fraction_bits, one block an instruction, and no accumulator"
            )
    if model.scale is not None:
        if not aligned or bits is None or separate or isinstance(join, LateJoin):
            raise ArgumentError(
                "scale= needs summation='aligned' with fraction_bits, without separate groups or LateJoin"
            )
        if model.block % model.scale.length and model.scale.length % model.block:
            raise ArgumentError(f"scale.length={model.scale.length} and block={model.block} do not divide each other")
        if model.scale.summation == "groups" and model.block % model.scale.length:
            raise ArgumentError(f"scale.length={model.scale.length} does not divide block={model.block}")
