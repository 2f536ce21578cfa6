"""Partial products of pieces that are all here, by the steps of a GPU."""

from __future__ import annotations

from typing import Any

import torch

from prismm.core.accuracy import join_test, parse_target
from prismm.cuda.device import Device
from prismm.cuda.partial import more, steps
from prismm.cuda.partial.steps import COUNTS, LARGEST, NORM1, NORM2, RESIDUAL, SHIFT, Work
from prismm.cuda.residues.split import STATISTICS
from prismm.cuda.residues.tables import CertificateTest
from prismm.formats import FP32, FP64


def work_of(dtype: torch.dtype, k: int, moduli: int, target: str, device: Device) -> Work:
    """The work of a product of this inner dimension: "correctly-rounded", or "reproducible" for native grade."""
    form = FP64 if dtype in (torch.float64, torch.complex128) else FP32
    parts = 2 if dtype.is_complex else 1
    goal = parse_target("native" if target == "reproducible" else target)
    test = CertificateTest(*join_test(goal, parts * k, form), parts * k, form.precision)
    return Work(moduli, parts * k, parts, test, device, torch.device("cpu"))


def every_step(pieces: list[tuple[Any, Any]], work: Work) -> tuple[Any, Any, list[Any], Any, Any]:
    """Of pieces (m, k_p) by (k_p, n): the result, flags of what is not certified, statistics of both sides, combined
    digits, and those of each piece (pieces, groups, moduli, m, n).
    """
    sides = [[(a.mT.contiguous(), b)[side] for a, b in pieces] for side in (0, 1)]
    statistics, splits = [], []
    for side, some in enumerate(sides):
        own = [torch.zeros(STATISTICS, x.shape[1], dtype=torch.int64, device=x.device) for x in some]
        for x, each in zip(some, own, strict=True):
            steps.measure_largest(x, each, work)
        largest = torch.stack([each[LARGEST] for each in own]).amax(0)
        for x, each in zip(some, own, strict=True):
            each[LARGEST] = largest
            steps.measure_norms(x, each, work)
        whole = own[0].clone()
        for row in (NORM2, NORM1, *range(COUNTS, STATISTICS)):
            whole[row] = sum(each[row] for each in own)
        found = []
        for x in some:
            each = whole.clone()
            found.append((steps.split(x, each, work, left=side == 0), each))
        whole[SHIFT] = found[0][1][SHIFT]
        whole[RESIDUAL] = sum(each[RESIDUAL] for _, each in found)
        statistics.append(whole)
        splits.append([each for each, _ in found])
    digits = torch.stack([steps.multiply(x, y, work) for x, y in zip(*splits, strict=True)])
    m, n = digits.shape[3:]
    # Filled: what memory held before is no part of a case.
    total = steps.add(digits.contiguous(), work, steps.empty_digits(m, n, work).fill_(0xA5))
    dtypes = {(53, 1): torch.float64, (24, 1): torch.float32, (53, 2): torch.complex128, (24, 2): torch.complex64}
    out = torch.full((m, n), torch.nan, dtype=dtypes[work.test.precision, work.parts], device=work.place)
    flags = steps.join(total, *statistics, out, work)
    return out, flags, statistics, total, digits


def every_step_again(
    pieces: list[tuple[Any, Any]], statistics: list[Any], out: Any, pending: Any, work: Work, part: int
) -> Any:  # fmt: skip
    """Pending entries of a real part, with `every_step`'s statistics and result: certified by magnitudes where these
    say something, and made again by more moduli. Returns the combined digits.
    """
    system = more.More(work, part)
    if work.levels:
        sums = sum(more.magnitudes(a.mT.contiguous(), b, tuple(statistics), system) for a, b in pieces)
        more.certify(sums, *statistics, out, pending, system)
    splits, lost = [], []
    for side, known in enumerate(statistics):
        given = ((a.mT.contiguous(), b)[side] for a, b in pieces)
        found = [more.split(x, known, system, left=side == 0) for x in given]
        splits.append([each for each, _ in found])
        lost.append(torch.stack([each for _, each in found]).amax(0))
    digits = torch.stack([more.multiply(x, y, system) for x, y in zip(*splits, strict=True)])
    total = more.add(digits.contiguous(), system, more.empty_digits(*digits.shape[3:], system).fill_(0xA5))
    more.join(total, *statistics, torch.cat(lost), out, pending, system)
    return total
