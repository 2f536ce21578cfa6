"""The table of ``prismm reproduce``: a claim in a row, its verdict first."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, get_args

if TYPE_CHECKING:
    from prismm.reproduce.claims import Comparison
    from prismm.reproduce.run import Result

__all__ = ["HEAD", "cells", "verdicts"]

HEAD = ["verdict", "where", "what", "published", "ours", "rule"]


def verdicts(result: Result) -> str:
    """How many claims hold, differ, or could not be judged."""
    from prismm.reproduce.claims import Verdict

    counts = Counter(found.verdict for found in result.comparisons)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict) if counts[verdict])


def cells(found: Comparison) -> list[str]:
    """A row of the table."""
    verdict = found.verdict.upper() if found.verdict == "differs" else found.verdict
    claim = found.claim
    return [verdict, claim.where, claim.what, claim.published, found.ours, found.rule]
