"""Tables and constants that the kernels of residues read, made once a device."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from prismm.core.moduli import (
    byte_tables,
    coprime_moduli,
    norm_fraction_bits,
    norm_limit,
    paired_system,
    residue_system,
    scheme_product,
    shift_thresholds,
    symmetric,
)

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from prismm.core.moduli import ByteTables


NEARLY_ONE_WORD = 32
"""`Tables.bits` of eight moduli: integers that take two words, but rarely have more than 31 bits and a sign."""


@dataclass(frozen=True, eq=False)
class Tables:
    """What the kernels read for the scheme of so many moduli, on one device.

    left, right: (moduli, 17) int32, see `cuda.residues.kernels.split.FIELDS`; reduction: (3·moduli, 3) int32, three
    times the
    same, see `cuda.residues.kernels.product.reduced`; thresholds: int64, see `moduli.shift_thresholds`; limit_bits:
    bits of the first of them, before it was cut to int64; left_fragments, right_fragments: see `_all_fragments`.
    """

    moduli: int
    bits: int
    words: int
    limbs: int
    left: torch.Tensor
    right: torch.Tensor
    reduction: torch.Tensor
    thresholds: torch.Tensor
    limit_bits: int
    left_fragments: torch.Tensor
    right_fragments: torch.Tensor

    def fraction_bits(self, terms: int) -> int:
        """q of `moduli.norm_fraction_bits`."""
        return norm_fraction_bits(self.moduli, terms)


def float_reduction(p: int, offset: int) -> tuple[int, int, int, int, int]:
    """What `cuda.residues.kernels.split` reduces x modulo p by in float32, |x| < 2^20, with c·p >= 2^23 + 2^20: the
    patterns of c·p + offset, 1/p, 3·2^22 - c, -p, and c·p.
    """
    # A multiple of 256, so that the low byte of the pattern of c·p + r is r's.
    c = 256 * -(-((1 << 23) + (1 << 20)) // (256 * p))
    base = 0x4B000000 + c * p - (1 << 23)
    patterns = [int(np.float32(x).view(np.int32)) for x in (1.0 / p, 3.0 * (1 << 22) - c, -float(p))]
    return base + offset, patterns[0], patterns[1], patterns[2], base


def fragments(rows: NDArray[np.int32], words: int) -> NDArray[np.int32]:
    """What threads of `cuda.residues.kernels.split_sm90` hold, (groups of moduli, 2, 4, 8, 8): of a group's 8 moduli,
    or 16 of
    three words, first where the sums start and the factors, then the reductions; by the word that a thread brings, and
    the modulus.

    rows: of `Tables.left` or `right`.
    """
    moduli, group = len(rows), 16 if words == 3 else 8
    found = np.zeros((-(-moduli // group), 2, 4, 8, 8), dtype=np.int32)
    for t, row in enumerate(rows):
        block, lane, second = t // group, t % 8, t % group >= 8
        sums, reductions = found[block, 0, :, lane], found[block, 1, :, lane]
        # The other eight rows are of the same moduli, unless they have moduli of their own.
        for half in (second,) if words == 3 else (False, True):
            sums[:, 2 * half : 2 * half + 2] = row[12]
            reductions[:, 4 * half : 4 * half + 3] = row[13], row[14], -row[10]
        for element in range(4 // words):
            sums[words * element : words * (element + 1), 4 + element + second] = row[6 : 6 + words]
    return found


@functools.lru_cache(maxsize=256)
def tables(moduli: int, device: torch.device) -> Tables:
    """The tables, made and copied once."""
    import torch

    chosen = coprime_moduli(256, moduli)
    whole = math.prod(chosen)
    packed = byte_tables(moduli)
    rows: dict[str, list[list[int]]] = {"left": [], "right": []}
    for side, factors, words, offsets in (
        ("left", [pow(whole // p, -1, p) for p in chosen], packed.left, packed.left_offset),
        ("right", [1] * moduli, packed.right, packed.right_offset),
    ):
        for t, p in enumerate(chosen):
            halves = [symmetric(factors[t] << (16 * x), p) for x in range(6)]
            dwords = [int(x) for x in words[t]] + [0] * (3 - packed.dwords)
            # 128 more, so that the residue in [0, p) less 128 fits in a signed byte. With |Σ| < 6·2^16·2^7 < 2^26 the
            # quotient by floor(2^32/p) may be one too small.
            offset = (128 + int(offsets[t])) % p + p * -(-(1 << 26) // p)
            floats = float_reduction(p, int(offsets[t]) % p)
            rows[side].append([*halves, *dwords, offset, p, (1 << 32) // p, *floats])
    reduction = [[p, (1 << 32) // p, p * -(-(1 << 30) // p)] for p in chosen]
    # ν fits in an int64, so a threshold beyond that refuses nothing.
    thresholds = [min(t, 2**63 - 1) for t in shift_thresholds(moduli)]
    return Tables(
        moduli,
        packed.bits,
        packed.dwords,
        residue_system(moduli, 256).limbs,
        torch.tensor(rows["left"], dtype=torch.int32).to(device),
        torch.tensor(rows["right"], dtype=torch.int32).to(device),
        # A complex product has three planes a modulus, and a plane's number is its index here.
        torch.tensor(3 * reduction, dtype=torch.int32).to(device),
        torch.tensor(thresholds, dtype=torch.int64).to(device),
        (norm_limit(moduli) // 2).bit_length(),
        *(
            torch.from_numpy(_all_fragments(np.array(rows[side], dtype=np.int32), packed)).to(device)
            for side in ("left", "right")
        ),
    )


@functools.cache
def left_factors(moduli: int, device: torch.device) -> torch.Tensor:
    """(moduli,) int32: what the residues of left operands are multiplied by, for each modulus p in [0, p)."""
    import torch

    chosen = coprime_moduli(256, moduli)
    whole = math.prod(chosen)
    return torch.tensor([pow(whole // p, -1, p) for p in chosen], dtype=torch.int32).to(device)


def _all_fragments(rows: NDArray[np.int32], packed: ByteTables) -> NDArray[np.int32]:
    """`fragments`, and where one word is only just too short, those of integers below 2^31 in one behind them."""
    found = fragments(rows, packed.dwords)
    if packed.bits != NEARLY_ONE_WORD:
        return found
    narrow = rows.copy()
    for row in narrow:
        factor, p = int(row[0]), int(row[10])
        row[12] = float_reduction(p, (-factor << 31) % p)[0]
    return np.concatenate([found, fragments(narrow, 1)])


@dataclass(frozen=True)
class CertificateTest:
    """What a join asks of an entry: mode and kappas of `accuracy.join_test`, terms K, precision of the result."""

    mode: int
    kappa: float
    magnitude_kappa: float
    terms: int
    precision: int


@functools.cache
def join_constants(moduli: int, test: CertificateTest, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The float64 constants of `cuda.residues.kernels.join_exact`, and what `cuda.residues.kernels.join_fast` needs to
    know of kappa, copied once and kept for good: a graph that a caller captured reads them wherever they are.
    """
    import torch

    system = residue_system(moduli, 256)
    exact_constants = [test.kappa, test.magnitude_kappa, *system.quotient, *system.product]
    exact_constants += list(system.weights[:moduli].reshape(-1))
    half = scheme_product(moduli) / 2
    # bound <= ½‖A'‖₁ + ½‖B'‖₁ + K/4 <= √(K·P/2) + K/4, in units of a quarter of 2^(e+s+e+s).
    bound = math.sqrt(test.terms * half) + 0.25 * test.terms
    needed = [4.0 * bound * test.magnitude_kappa * (1 + 2.0**-20)]
    tensors = [
        torch.tensor([float(x) for x in some], dtype=torch.float64).to(device) for some in (exact_constants, needed)
    ]
    return tensors[0], tensors[1]


@functools.cache
def fast_join_constants(moduli: int, parts: int, numbers: int) -> tuple[float, ...]:
    """What `cuda.residues.kernels.join_fast` is compiled with, for sums of so many numbers: 1/P, P, 2·E, the least
    |h|, weights."""
    system = paired_system(moduli, numbers, parts)
    head = (system.inverse, *system.product, 2.0 * system.error, system.least)
    return (*head, *(part for weight in system.weights for part in weight))


@functools.cache
def second_pass_constants(moduli: int, parts: int, device: torch.device) -> torch.Tensor:
    """`fast_join_constants` of sums of three numbers, in memory."""
    import torch

    return torch.tensor(fast_join_constants(moduli, parts, 3), dtype=torch.float64).to(device)
