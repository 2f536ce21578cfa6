"""How far a dot product on an `EngineModel` can be from the exact one.

Every operation of a float model takes numbers v̂_i and gives Σ v̂_i + e with |e| <= θ·Σ|v̂_i| + φ (`Node`). By induction
over the tree of operations, |computed - exact| <= (G - 1)·Σ|a_i b_i| + G·Σφ, with G the largest product of (1 + θ) on
the way of one product to d: if each v̂_i is that near to its exact value v_i, of products whose magnitudes sum to T_i,
then |v̂_i| <= G_i·T_i + Φ_i, and the errors (G_i - 1)·T_i + Φ_i + θ·(G_i·T_i + Φ_i) sum to (G_i·(1 + θ) - 1)·T_i +
(1 + θ)·Φ_i; each node adds its φ. The operations:

- *Rounding* of x: r·|x| + η, r = u to nearest and 2u in other modes; η is half the smallest subnormal number, or all
  of it; where sums below the smallest normal number λ are flushed, λ.
- *An aligned block* of L products, and c with them: it is Σ + δ, rounded. Of the L + 1 terms at most N lose bits, each
  less than 2^(E-F): all but the largest, which has none to lose where products and running sums have at most F
  fraction bits by their exponents (2·fraction_bits of the inputs; one more where products are normalised; those of the
  accumulator where they are rounded); else all. To the floor as toward zero. So |δ| <= g·2^E, g = N·2^-F, and
  2^E <= Σ|v̂_i| + σ, where σ = μ + L·λ·(2·largest + λ): λ and μ are the least normal values of inputs and sums, because
  subnormal factors count with exponents above their own, 2^(e_a+e_b) <= max(|a|, λ)·max(|b|, λ) <= |ab| + λ(|a| + |b|)
  + λ², and zero_exponent is below μ's. Hence (1 + θ) = (1 + r)·(1 + g) and φ = (1 + r)·g·σ + η. Exact blocks: g = 0.
- *Sequential and pairwise* blocks are chains and trees of roundings, of 2^-F (half of it to nearest) where partial
  sums have F fraction bits; then they are rounded once more. The additions of `join` "after" are roundings.
- *A LateJoin* of S groups: g = 2^-F·(N + S - 1) + 2^-sum_bits + max(2^-accumulator_bits, 2^-cutoff), because the
  groups' sums are cut off at F once more, their sum and c where the join says, and a c left out is below
  2^(E - cutoff); N counts products only, all of them where zero_exponent may be above them; σ has S times the terms
  above; cutting the sum after total_bits is a rounding of 2^-total_bits.
- *Products* that are rounded: r and η of the sums' format; flushed ones: η = its λ. Flushed inputs lose at most
  λ·largest a product, a flushed c the output's λ.

Where a register can wrap or sums saturate there is no such bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.formats import Format
from prismm.numerics.parts import LateJoin, within

if TYPE_CHECKING:
    from prismm.numerics.model import EngineModel
    from prismm.numerics.parts import Mode

__all__ = ["dot_bound", "unbounded"]

_LEAST = 5e-324  # where a product of small numbers underflows, it still counts


def unbounded(model: EngineModel) -> str | None:
    """Why the model's results are within no bound; None where they are."""
    if not isinstance(model.input, Format):
        return "it multiplies integers"
    if model.scale is not None:
        return "its operands have block scales"
    if model.carry_bits is not None and model.carry_bits < model.largest_shift():
        return f"its sums wrap around, with {model.carry_bits} carry bits for {model.block} products"
    if model.overflow == "saturate":
        return "its sums saturate where they overflow, which nobody would notice"
    return None


@dataclass(frozen=True)
class _Node:
    """An operation: log(1 + θ), φ, how many are on the way of one product, and how many there are."""

    growth: float
    floor: float
    path: float
    count: float


def dot_bound(model: EngineModel, k: int, largest: float = math.inf) -> tuple[float, float]:
    """(gamma, floor): |computed - exact| <= gamma·Σ|a_i b_i| + floor for finite results of `dot` with c = 0.

    Args:
        model: one that `unbounded` has no objection to.
        k: number of products.
        largest: of the operands' magnitudes, if it is known.

    >>> from prismm.formats import FP16, FP32
    >>> from prismm.numerics.model import EngineModel
    >>> a100 = EngineModel("a100", FP16, FP32, block=8, fraction_bits=24, zero_exponent=-132, rounding="zero")
    >>> dot_bound(a100, 1024)[0] / (128 * 2.0**-23) < 5.01  # 8 terms of 2^-24, and fp32's rounding, 128 times
    True
    """
    assert isinstance(model.input, Format)
    largest = min(largest, model.input.max)
    instructions = -(-k // model.instruction_depth)
    nodes = [*_products(model, k, largest), *_sums(model, instructions, largest)]
    growth = sum(node.growth * node.path for node in nodes)
    gamma = math.expm1(growth) * (1.0 + 2.0**-40) if growth < 600.0 else math.inf
    floor = sum(node.count * (node.floor + _LEAST) for node in nodes if node.floor) * (1.0 + gamma)
    return gamma, floor * (1.0 + 2.0**-40) + (_LEAST if floor else 0.0)


def _rounding(format: Format, mode: Mode, flushed: bool) -> tuple[float, float]:
    """(r, η)."""
    nearest = mode == "nearest"
    r = format.unit_roundoff * (1.0 if nearest else 2.0)
    eta = max(format.smallest_subnormal * (0.5 if nearest else 1.0), _LEAST)
    return r, format.smallest_normal if flushed else eta


def _products(model: EngineModel, k: int, largest: float) -> list[_Node]:
    """What happens to products by themselves."""
    assert isinstance(model.input, Format)
    nodes = []
    flushed = model.subnormal_products != "keep"
    if model.product_rounding is not None:
        r, eta = _rounding(model.sums, model.product_rounding, flushed)
        nodes.append(_Node(math.log1p(r), eta, 1, k))
    elif flushed:
        nodes.append(_Node(0.0, model.sums.smallest_normal, 0, k))
    if model.subnormal_inputs != "keep":
        nodes.append(_Node(0.0, model.input.smallest_normal * largest + _LEAST, 0, k))
    return nodes


def _sums(model: EngineModel, n: int, largest: float) -> list[_Node]:
    """The additions of n instructions."""
    output = model.output
    assert isinstance(output, Format)
    flushed = model.subnormal_outputs != "keep"
    nodes = []
    if model.subnormal_accumulators != "keep":
        nodes.append(_Node(0.0, output.smallest_normal, 0, n))
    if isinstance(model.join, LateJoin):
        return [*nodes, _late(model, model.join, n, largest)]
    sequences = model.sequences()
    blocks, joins = len(sequences[0]) // model.block, len(sequences) - 1
    r, eta = _rounding(model.sums, model.rounding, flushed)
    last, last_eta = _rounding(output, model.last_rounding, flushed)
    after = model.join == "after"
    path = blocks * (1 if after else n)
    nodes += _block(model, largest, path, n * blocks * len(sequences), r, eta)
    if after:
        nodes.append(_Node(math.log1p(r), eta, joins, n * joins))
        nodes.append(_Node(math.log1p(last), last_eta, n, n))
    elif model.accumulator is not None and not within(model.sums, output):
        nodes.append(_Node(math.log1p(last), last_eta, n, n))
    return nodes


def _block(model: EngineModel, largest: float, path: int, count: int, r: float, eta: float) -> list[_Node]:
    """`count` blocks, `path` of them one after another."""
    if model.summation == "aligned":
        g = sigma = 0.0
        if model.fraction_bits is not None:
            terms = model.block + _largest_loses(model, model.sums, with_sum=True)
            g, sigma = terms * 2.0**-model.fraction_bits, _sigma(model, largest)
        return [_Node(math.log1p(r) + math.log1p(g), (1.0 + r) * g * sigma + eta, path, count * 1.0)]
    tree = model.summation == "pairwise"
    levels = (model.block - 1).bit_length() if tree else model.block
    nodes = []
    if model.fraction_bits is not None:
        partial = 2.0 ** -(model.fraction_bits + (model.alignment == "nearest"))
        nodes.append(_Node(math.log1p(partial), 0.0, path * levels, 0))
        levels = 1
    extra = 1 if tree else 0  # a tree is added to the running sum; a single product is rounded
    steps = max(levels, 1) + extra
    return [*nodes, _Node(math.log1p(r), eta, path * steps, count * (model.block + 1))]


def _largest_loses(model: EngineModel, running: Format, with_sum: bool) -> bool:
    """Whether the term of the largest exponent may lose bits."""
    assert isinstance(model.input, Format) and isinstance(model.output, Format) and model.fraction_bits is not None
    of_products = 2 * model.input.fraction_bits + (model.product_exponent == "normalised")
    if model.product_rounding is not None:
        of_products = model.sums.fraction_bits
    of_sums = running.fraction_bits
    if not within(model.sums, model.output):
        of_sums = max(of_sums, model.output.fraction_bits)
    return max(of_products, of_sums if with_sum else 0) > model.fraction_bits


def _sigma(model: EngineModel, largest: float) -> float:
    """What 2^E may exceed the sum of the terms' magnitudes by."""
    assert isinstance(model.input, Format) and isinstance(model.output, Format)
    least = model.input.smallest_normal
    of_sums = max(model.sums.smallest_normal, model.output.smallest_normal)
    return of_sums + model.block * (2.0 * least * largest + least * least)


def _late(model: EngineModel, join: LateJoin, n: int, largest: float) -> _Node:
    output, f = model.output, model.fraction_bits
    assert isinstance(output, Format) and f is not None
    groups = len(model.sequences())
    alone = model.zero_exponent is None and not _largest_loses(model, output, with_sum=False)
    terms = model.block - alone
    of_c = 2.0**-join.accumulator_bits if join.cutoff is None else 2.0 ** -min(join.accumulator_bits, join.cutoff)
    g = 2.0**-f * (terms + groups - 1) + 2.0**-join.sum_bits + of_c
    sigma = groups * _sigma(model, largest) + output.smallest_normal
    r, eta = _rounding(output, model.rounding, model.subnormal_outputs != "keep")
    growth = math.log1p(r) + math.log1p(2.0**-join.total_bits) + math.log1p(g)
    return _Node(growth, math.expm1(growth) * sigma + eta, n, n)
