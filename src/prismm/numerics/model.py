"""`EngineModel`: the arithmetic of one instruction of a matrix engine, as data.

An engine computes d = c + Σ a_i·b_i. All that is known of real ones fits one sequence of steps, of which a model says
how each is done (`specification` runs it in exact integers; `simulate` is its fast twin):

1. *Order.* The inner dimension is cut into instructions of `depth` pairs, the last one padded with zeros, and d of one
   is c of the next. Inside, `groups` says which pairs come first (or have a running sum of their own, which are added
   at the end), and every `block` pairs of a group are summed in one step.
2. *Products* are exact, or rounded to the accumulator (`product_rounding`).
3. *Summation* of the block's products (and of the running sum, if it is `inside`):
   "aligned": all terms are shifted to the largest exponent E among them, cut off each for itself below 2^(E -
   `fraction_bits`) (toward zero or to the floor: `alignment`), and added exactly, in a register with `carry_bits` above
   the two integer bits of a product, which wraps around; `fraction_bits` None keeps everything.
   "sequential": one by one, every partial sum normalised and rounded. "pairwise": in a binary tree, likewise.
4. The sum is *rounded* to the `accumulator` (by default the output format): once a block.
5. *Join*: c is "inside" the first block, or comes "after" the instruction's products in an addition of its own, or
   "late", aligned with their unrounded sum (`LateJoin`).

Sources: Fasi, Higham, Mikaitis and Pranesh 2021, §3 (what to ask of an engine); the parametrised models of MMA-Sim
and of Khattak and Mikaitis (arXiv 2510.15884), which agree on NVIDIA's engines; vendors' instruction manuals.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from prismm.core import strict_json
from prismm.errors import ArgumentError
from prismm.formats import Format, Integer, format_named
from prismm.numerics.parts import BlockScale, LateJoin, Mode, Model, Subnormals, within
from prismm.numerics.validation import check_float_engine, check_integer_engine, check_types

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

__all__ = ["BlockScale", "EngineModel", "LateJoin"]

VERSION = 1
"""Of the JSON format."""


@dataclass(frozen=True)
class EngineModel(Model):
    """What one instruction of a matrix engine computes; see the module for the steps.

    Args:
        name: what it is called in print; of no meaning in comparisons, like `source` and `certainty`.
        input: format of both operands.
        output: format of c and d.
        accumulator: what a block's sum is rounded to, None for `output`. FP32 with fewer fraction bits is one more.
        block: products summed in one step, 1 to 256.
        depth: products of one instruction; None: one block (of every group that has a sum of its own).
        groups: residues of k modulo the period (their count) that form each group; () for ascending k.
        group_sums: "chained": the groups are taken one after another into one running sum; "separate": each, all of
            one size, into its own, starting without c, and those are added from left to right.
        product_rounding: None for exact products, or how they are rounded to the accumulator.
        product_overflow: "exact", or "infinity": products from 2^maxexp of the accumulator on are infinite.
        product_exponent: by which a product is aligned: "sum" of the factors' exponents, or that of the "normalised"
            product (and always of a rounded one).
        summation: "aligned", "sequential" or "pairwise".
        fraction_bits: kept below the largest exponent (aligned) or in partial sums, of any exponent (else). None:
            everything (aligned), or partial sums are values of the accumulator, rounded by `rounding`.
        carry_bits: of the aligned sum's register, above two integer bits; the sum wraps around, in two's complement.
            None: enough.
        alignment: how terms are cut off (aligned: "zero" or "floor") or partial sums rounded to `fraction_bits`.
        zero_exponent: E is at least this while the running sum is zero or absent; None: zeros have no exponent.
        join: "inside", "after" or a `LateJoin`.
        rounding: of a block's sum, and of every other sum but the last.
        output_rounding: of the last addition (join "after") and of the conversion to the output; None: as `rounding`.
        overflow: "infinity" (from max + ulp/2 to nearest, from 2^maxexp in other modes), "saturate" at the largest
            value; integers: "wrap" or "saturate".
        subnormal_inputs, subnormal_accumulators, subnormal_products, subnormal_outputs: whether subnormal a and b, c
            of an instruction, products (below the accumulator's smallest normal value) and rounded sums are kept.
        zeros: "ieee": a sum of zeros is -0 where all are; "positive": an exact zero is +0, what underflows to zero
            keeps its sign; "unsigned": no result is -0.
        nan: bit pattern of a NaN result, one of the output's NaNs; None if not known. Any NaN operand, inf·0, and
            infinities of both signs in one sum give NaN; any other infinity gives itself.
        scale: block scale factors, if there are any.
        source: where the model comes from.
        certainty: how sure it is, in a word or two.

    Raises:
        ArgumentError: for values outside these ranges, or that exclude each other.

    >>> from prismm.formats import FP16, FP32
    >>> a100 = EngineModel("a100", FP16, FP32, block=8, fraction_bits=24, zero_exponent=-132, rounding="zero")
    >>> a100.dot([1.0, 2.0**-12], [1.0, 2.0**-12], 0.0).item() == 1 + 2.0**-24  # fp32 would round it to 1
    False
    >>> EngineModel.from_json(a100.to_json()) == a100
    True
    """

    name: str = field(compare=False)
    input: Format | Integer
    output: Format | Integer
    accumulator: Format | None = None
    block: int = 1
    depth: int | None = None
    groups: tuple[tuple[int, ...], ...] = ()
    group_sums: Literal["chained", "separate"] = "chained"
    product_rounding: Mode | None = None
    product_overflow: Literal["exact", "infinity"] = "exact"
    product_exponent: Literal["sum", "normalised"] = "sum"
    summation: Literal["aligned", "sequential", "pairwise"] = "aligned"
    fraction_bits: int | None = None
    carry_bits: int | None = None
    alignment: Mode = "zero"
    zero_exponent: int | None = None
    join: Literal["inside", "after"] | LateJoin = "inside"
    rounding: Mode = "nearest"
    output_rounding: Mode | None = None
    overflow: Literal["infinity", "saturate", "wrap"] = "infinity"
    subnormal_inputs: Subnormals = "keep"
    subnormal_accumulators: Subnormals = "keep"
    subnormal_products: Subnormals = "keep"
    subnormal_outputs: Subnormals = "keep"
    zeros: Literal["ieee", "positive", "unsigned"] = "positive"
    nan: int | None = None
    scale: BlockScale | None = None
    source: str = field(default="", compare=False)
    certainty: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_types(self)
        if isinstance(self.input, Integer):
            check_integer_engine(self)
        else:
            check_float_engine(self)

    @property
    def is_integer(self) -> bool:
        """Whether it multiplies integers."""
        return isinstance(self.input, Integer)

    @property
    def sums(self) -> Format:
        """The format of running sums: `accumulator`, or `output`."""
        found = self.accumulator or self.output
        if isinstance(found, Integer):
            raise ArgumentError(f"{self.name}: integer engines have no floating-point sums")
        return found

    @property
    def instruction_depth(self) -> int:
        """`depth`, or what stands for None."""
        separate = len(self.groups) if self.groups and self.group_sums == "separate" else 1
        return self.depth or self.block * separate

    @property
    def last_rounding(self) -> Mode:
        """`output_rounding`, or `rounding`."""
        return self.output_rounding or self.rounding

    def sequences(self) -> tuple[tuple[int, ...], ...]:
        """Indices of an instruction's pairs in order of summation, one sequence for every running sum.

        >>> from prismm.formats import E4M3, FP32
        >>> m = EngineModel("", E4M3, FP32, block=4, depth=8, groups=((0, 1), (2, 3)), fraction_bits=25)
        >>> m.sequences()
        ((0, 1, 4, 5, 2, 3, 6, 7),)
        """
        return _sequences(self.instruction_depth, self.groups, self.group_sums == "separate")

    def largest_shift(self) -> int:
        """ceil(log2(terms + 1)): with this many carry bits the register of an aligned sum never wraps."""
        return (self.block + (self.join == "inside" or self.instruction_depth > self.block)).bit_length()

    def canonical(self) -> EngineModel:
        """The same arithmetic with every parameter that cannot matter at its default: for comparisons.

        >>> from prismm.formats import FP16, FP32
        >>> m = EngineModel("", FP16, FP32, block=4, depth=8, fraction_bits=23, carry_bits=9, zeros="unsigned")
        >>> m.canonical().depth, m.canonical().carry_bits
        (None, None)
        """
        changed: dict[str, Any] = {}
        if self.is_integer:
            return replace(self, depth=None) if self.overflow == "wrap" else self
        own = self.block * (len(self.groups) if self.groups and self.group_sums == "separate" else 1)
        narrowing = self.accumulator is not None and not within(self.accumulator, self.output)
        # The zeros that fill an instruction up show in the sign of a zero, in a sum that is cut again to fewer bits
        # than it has, and where c is flushed or has another range than running sums.
        assert isinstance(self.output, Format)
        padded = (
            self.zeros != "unsigned"
            or (self.fraction_bits is not None and self.fraction_bits < self.sums.fraction_bits)
            or self.subnormal_accumulators != "keep"
            or self.sums.minexp != self.output.minexp
        )
        plain = self.join == "inside" and not self.groups and not narrowing and not padded
        if self.depth == own or plain:
            changed["depth"] = None
        if not self.groups:
            changed["group_sums"] = "chained"
        if self.carry_bits is not None and self.carry_bits >= self.largest_shift():
            changed["carry_bits"] = None
        if self.accumulator is not None and self.accumulator == self.output:
            changed["accumulator"] = None
        if self.output_rounding == self.rounding or (self.join != "after" and not narrowing):
            changed["output_rounding"] = None
        if self.fraction_bits is None or self.summation != "aligned" or self.product_rounding is not None:
            changed["product_exponent"] = "sum"
        if self.fraction_bits is None:
            changed["alignment"] = "zero"
            if self.summation == "sequential" and (self.block == 1 or plain):
                # Every addition is rounded to the accumulator, wherever a block ends.
                changed |= {"summation": "aligned", "block": 1, "depth": changed.get("depth", self.depth)}
        chained = self.groups and self.group_sums == "chained"
        if chained and self.summation == "aligned" and self.instruction_depth == self.block:
            changed["groups"] = ()  # all in one block, whose order is nothing
        if self.summation == "pairwise" and self.block <= 2 and self.instruction_depth == own:
            changed["summation"] = "sequential"
        found = replace(self, **changed)
        return found if found == self else found.canonical()

    def dot(
        self,
        a: ArrayLike,
        b: ArrayLike,
        c: ArrayLike = 0.0,
        scale_a: ArrayLike | None = None,
        scale_b: ArrayLike | None = None,
    ) -> NDArray[np.float64]:
        """c + Σ a·b over the last axis, bit for bit; see `prismm.numerics.simulate.dot`."""
        from prismm.numerics import simulate

        return simulate.dot(self, a, b, c, scale_a, scale_b)

    def to_json(self) -> str:
        """The model as versioned JSON, which `from_json` reads back."""
        return json.dumps(self.to_dict(), indent=1)

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes, as a dictionary."""
        content: dict[str, Any] = {"kind": "prismm.EngineModel", "version": VERSION}
        for item in fields(self):
            content[item.name] = _plain(getattr(self, item.name))
        return content

    @classmethod
    def from_json(cls, text: str) -> EngineModel:
        """The model of a JSON text.

        Raises:
            ArgumentError: if the text is not JSON, is of another kind or a newer version, has unknown or missing keys,
                or has values that make no model.
        """
        try:
            return cls.from_dict(_loaded(text))
        except RecursionError:
            raise ArgumentError("no model: nested too deeply; pass what EngineModel.to_json wrote") from None

    @classmethod
    def from_dict(cls, content: Any) -> EngineModel:
        """The model of a dictionary; see `from_json`."""
        if not isinstance(content, dict) or content.get("kind") != "prismm.EngineModel":
            raise ArgumentError('no model: "kind" is not "prismm.EngineModel"; pass what EngineModel.to_json wrote')
        if not strict_json.is_version(content.get("version"), VERSION):
            raise ArgumentError(f"a model of version {content.get('version')!r}; this prismm reads version {VERSION}")
        known = [item.name for item in fields(cls)]
        given = {key: value for key, value in content.items() if key not in ("kind", "version")}
        if set(given) - set(known):
            raise ArgumentError(f"unknown keys in a model: {', '.join(sorted(map(str, set(given) - set(known))))}")
        missing = [key for key in known if key not in given]
        if missing:
            raise ArgumentError(
                f"a model lacks {', '.join(missing)}, without which it would be another engine's; pass what "
                "EngineModel.to_json wrote, which has every key"
            )
        for key in ("input", "output", "accumulator"):
            if given.get(key) is not None:
                given[key] = _format(key, given[key])
        if given.get("groups") is not None:
            given["groups"] = _groups(given["groups"])
        if isinstance(given.get("join"), dict):
            given["join"] = _part(LateJoin, "join", given["join"])
        if given.get("scale") is not None:
            given["scale"] = _part(BlockScale, "scale", given["scale"])
        return cls(**given)

    def differences(self, other: EngineModel) -> dict[str, tuple[Any, Any]]:
        """The properties in which two models differ, canonically: {name: (this one's, the other's)}."""
        mine, theirs = self.canonical(), other.canonical()
        return {
            item.name: (getattr(mine, item.name), getattr(theirs, item.name))
            for item in fields(self)
            if item.compare and getattr(mine, item.name) != getattr(theirs, item.name)
        }


@functools.lru_cache(maxsize=4096)
def _sequences(depth: int, groups: tuple[tuple[int, ...], ...], separate: bool) -> tuple[tuple[int, ...], ...]:
    if not groups:
        return (tuple(range(depth)),)
    period = sum(map(len, groups))
    found = tuple(tuple(i for i in range(depth) if i % period in group) for group in groups)
    return found if separate else (tuple(i for group in found for i in group),)


def _loaded(text: str) -> Any:
    """What a JSON text says."""
    try:
        return strict_json.loads(text)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"no model: not JSON ({error}); pass what EngineModel.to_json wrote") from None


def _plain(value: Any) -> Any:
    """A field's value as JSON has it."""
    if isinstance(value, (Format, Integer)):
        if value.name and _is_named(value):
            return value.name
        return {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, (LateJoin, BlockScale)):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, tuple):
        return [list(group) for group in value]
    return value


def _is_named(value: Format | Integer) -> bool:
    try:
        return format_named(value.name) == value
    except ArgumentError:
        return False


def _format(key: str, value: Any) -> Format | Integer:
    if isinstance(value, str):
        return format_named(value)
    if isinstance(value, dict):
        kind: Any = Format if "exponent_bits" in value else Integer
        found: Format | Integer = _part(kind, key, value)
        return found
    raise ArgumentError(f"{key}={value!r}; pass a format's name or its widths")


def _part(kind: Any, key: str, value: Mapping[str, Any]) -> Any:
    known = {item.name for item in fields(kind)}
    if not isinstance(value, dict) or set(value) != known:
        raise ArgumentError(f"{key}={value!r}; its keys are {', '.join(sorted(known))}, all of them")
    return kind(**value)


def _groups(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list) or not all(isinstance(group, list) for group in value):
        raise ArgumentError(f"groups={value!r}; pass a list of lists of residues")
    return tuple(map(tuple, value))
