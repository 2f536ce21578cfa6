"""Seconds that products of residues are predicted to take: split, products, join and repair."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from prismm.core.fp8_moduli import FAMILIES, fp8_moduli, fp8_products
from prismm.core.moduli import byte_tables
from prismm.cuda.costs.table import waves
from prismm.cuda.residues import strassen as cuda_strassen
from prismm.cuda.residues.recompute import MOST_MAGNITUDES, seconds_again
from prismm.cuda.residues.split import columns_fused

if TYPE_CHECKING:
    from prismm.core.problem import Problem
    from prismm.cuda.costs.table import Rates


class Uncertified(NamedTuple):
    """Expected shares that a join leaves.

    Attributes:
        entries: those that the join cannot certify.
        exact: those among them that magnitudes cannot certify either.
        strips: strips that the fast join cannot certify as a whole.
    """

    entries: float
    exact: float
    strips: float = 0.0


_STEP = 128
"""Terms of a step of the product: planes are padded to whole ones."""

_STRIP, _ROWS = 8192, 16
"""Entries of a strip, and how many of it have a row's sums made with theirs."""

_SINGLE_PASSES = 0.5
"""Share of the launches behind the join that there are in float32, which has no second pass."""

_INTEGERS = 64 * 1.7e9
"""Integer multiplications a second of a multiprocessor, at a usual clock."""

WHOLE = 8192**3
"""Products of elements up to which Strassen's products are not made: as many as a calibration times."""


def uncertified_seconds(left: Uncertified, moduli: int, problem: Problem, rates: Rates) -> float:
    """Seconds that entries take which the fast join does not certify.

    These are the exact join of strips that hold some; planes of magnitudes and their products; and exact values one by
    one or, where they are many, by rows or by more moduli.
    """
    tuning, entries = rates.tuning, entries_of(problem)
    elements = problem.count * (problem.m + problem.n) * problem.k * problem.parts
    products = entries * problem.terms
    strips = min(1.0, left.entries * _STRIP)
    share = left.exact if problem.terms <= MOST_MAGNITUDES else left.entries
    exact = min(share * rates.repair, tuning.exact_by_rows * min(1.0, share * _ROWS))
    joined = max(strips, left.strips) * entries * tuning.exact_join * moduli
    magnitudes = elements * tuning.magnitude_planes + products * tuning.magnitude_products
    exactly = products * exact
    if problem.terms <= MOST_MAGNITUDES:
        exactly = min(exactly, seconds_again(problem))
    return joined + strips * magnitudes + exactly


def entries_of(problem: Problem) -> int:
    """Real entries of the result."""
    return problem.count * problem.m * problem.n * problem.parts


def residue_seconds(moduli: int, problem: Problem, rates: Rates, strassen: bool | None = None) -> float:
    """Seconds that the GPU is expected to work on a product by so many moduli.

    strassen: whether its products are Strassen's seven; None for where that is predicted faster.
    """
    tuning, count, parts = rates.tuning, problem.count, problem.parts
    planes = moduli * (3 if problem.is_complex else 1)
    m, n, k = problem.m, problem.n, max(1, problem.k)
    if strassen is None:
        strassen = rates.sm90 and by_strassen(problem, planes, rates)
    seconds = rates.product + (_strassen_seconds if strassen else _whole_seconds)(problem, planes, rates)
    launches = right_launches(problem, moduli, rates.processors, sm90=rates.sm90)
    for line, elements, share in ((rates.left, m * k, 1.0), (rates.right, k * n, launches)):
        seconds += share * line.launch + count * elements * (parts * line.element + planes * line.modulus)
    seconds += count * m * tuning.split_vector
    # A part of a complex entry is joined from two or three digits a modulus.
    entries = float(count * m * n)
    join = rates.rounded if problem.rounded else rates.join
    seconds += join.seconds(entries * parts * (2 * parts - 1), moduli)
    # float32 has no second pass, but its check reads what the join has marked: see `residues.join.join_digits`.
    precise = problem.result.precision == 53
    again = entries * ((tuning.rejoin_complex if precise else parts) if problem.is_complex else 1)
    again *= tuning.rejoin_rounded if problem.rounded and precise else 1
    launches = 1.0 if precise else _SINGLE_PASSES
    return seconds + launches * rates.finish.launch + again * rates.finish.element


def fp8_seconds(moduli: int, problem: Problem, rates: Rates) -> float:
    """Seconds by FP8 products; as if their unit were as fast as the INT8 unit where no rate of it is known, a guess.
    Hopper's adds the sums of single instructions besides, which takes longer.

    To what residues by INT8 take, splits add a plane for each product that is more, and read the operands once more;
    the change of base (`cuda.residues.kernels.convert_fp8`) reads two bytes and multiplies as often as there are pairs
    of moduli.
    """
    family, parts = FAMILIES[0 if rates.tuning.fp8 else 1 if rates.sm90 else 0], 3 if problem.is_complex else 1
    products, entries = fp8_products(moduli, family), float(problem.count * problem.m * problem.n)
    unit = replace(rates, int8=rates.tuning.fp8, sustained=rates.tuning.fp8) if rates.tuning.fp8 else rates
    seconds = residue_seconds(moduli, problem, rates, False)
    seconds += _whole_seconds(problem, parts * products, unit) - _whole_seconds(problem, parts * moduli, rates)
    for line, elements in ((rates.left, problem.m * problem.k), (rates.right, problem.k * problem.n)):
        seconds += problem.count * elements * parts * (products - moduli) * line.modulus
        seconds += rates.one_pass_seconds(problem.count * elements * problem.number_bytes)
    read = rates.one_pass_seconds(math.ceil(entries * parts * (2 * products + moduli)))
    operations = problem.parts * moduli * len(fp8_moduli(moduli, family))
    return seconds + max(read, entries * operations / (_INTEGERS * rates.processors))


def fp8_is_faster(moduli: int, problem: Problem, rates: Rates) -> bool:
    """Whether products by FP8, the same bits, are predicted to be faster than those by INT8; never without a rate."""
    return bool(rates.tuning.fp8) and fp8_seconds(moduli, problem, rates) < residue_seconds(moduli, problem, rates)


def residue_operations(problem: Problem, moduli: int, processors: int, ends: int) -> float:
    """Operations of products of residues in full tiles and steps, with those of the processors that wait for the last
    ones, and as many as the beginning and end of a tile take the time of, in terms.
    """
    tiles = -(-problem.m // 128) * -(-problem.n // 256) * moduli * problem.count
    inner = -(-max(1, problem.k) // _STEP) * _STEP + ends
    return 2.0 * tiles * 128 * 256 * inner / waves(tiles, processors)


def _whole_seconds(problem: Problem, moduli: int, rates: Rates) -> float:
    """Seconds of products modulo so many numbers; of narrow results, or of a short inner dimension, what takes longer
    are planes and digits on their way from and to memory.
    """
    product = _multiplied_seconds(problem, moduli, rates)
    m, n, k = problem.m, problem.n, max(1, problem.k)
    return max(product, float(problem.count) * (m * k + k * n + m * n) * moduli / rates.memory)


def _multiplied_seconds(problem: Problem, moduli: int, rates: Rates) -> float:
    """Seconds of products on the matrix unit. Beginnings and ends of tiles take time but no power, which is what limits
    long products.
    """
    whole, alone = (
        residue_operations(problem, moduli, rates.processors, ends) / rates.int8
        for ends in (rates.tuning.residue_ends, 0)
    )
    return max(whole, rates.at_length(alone))


def _strassen_seconds(problem: Problem, moduli: int, rates: Rates) -> float:
    """`_whole_seconds` where seven products of quarters take the place of eight, with all that is added for them: see
    `cuda.residues.kernels.strassen` for its bytes.
    """
    m, n, k = cuda_strassen.quarter(problem.m, problem.n, max(1, problem.k))
    products = replace(problem, m=m, n=n, k=k, batch=(*problem.batch, 7))
    # m, n and k are of quarters: 2 bytes an element and 11/4 an entry of whole matrices are 8 and 11 here.
    moved = problem.count * moduli * (4.0 * k * 2 * (m + n) + 11.0 * m * n)
    added = 3 * rates.check + moved / rates.memory
    return _multiplied_seconds(products, moduli, rates) + added


def by_strassen(problem: Problem, moduli: int, rates: Rates) -> bool:
    """Whether a product of residues is predicted to be faster from seven of quarters."""
    if problem.m * problem.n * problem.k <= WHOLE or not cuda_strassen.serves(problem.m, problem.n, problem.k):
        return False
    return rates.tuning.strassen_margin * _strassen_seconds(problem, moduli, rates) < _whole_seconds(
        problem, moduli, rates
    )


def right_launches(problem: Problem, moduli: int, processors: int, *, sm90: bool) -> float:
    """The share of the right operand's launches that there are: one of three where it measures and splits columns."""
    if not sm90 or problem.is_complex:
        return 1.0
    size = max(1, problem.k) * problem.number_bytes
    together = columns_fused(problem.count, problem.n, size, byte_tables(moduli).dwords, processors)
    return 1 / 3 if together else 1.0
