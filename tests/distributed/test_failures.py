"""Ranks that differ, come late or end: an error on every other one, which names them."""

import re
import time

import pytest

from tests.distributed import cases
from tests.distributed.ranks import Ranks


@pytest.mark.parametrize("what", ["environment", "version", "scheme", "grade", "arithmetic"])
@pytest.mark.parametrize("shape, odd", [((4,), 2), ((2, 2), 3)], ids=str)
def test_ranks_that_differ_are_named_everywhere(what, shape, odd, ranks):
    for text in ranks.run(cases.differing, shape, odd, what):
        assert text.startswith("ranks do not agree on a product: rank ") and f"rank {odd} has" in text, text
        assert text.count(" has [") == 1
    # What was agreed on before, or since, goes on.
    assert ranks.run(cases.differing, shape, odd, "") == [""] * 4


def named(text, rank):
    """Whether a rank is among those that an error names."""
    found = re.search(r"ranks? ([\d, ]+) did not", text)
    return found is not None and str(rank) in found[1].split(", ")


@pytest.mark.slow
def test_a_late_rank_is_named_within_the_timeout(ranks):
    answers = ranks.run(cases.late, 2.0)
    for text, seconds in answers[:-1]:
        assert "rank 3 did not come to product" in text, text
        assert seconds < 2.0 + 20.0  # where torch waits for half an hour by itself
    # The late one finds nobody there, and returns no product.
    assert answers[-1][0]


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named():
    pool = Ranks(3, timeout=20.0)
    try:
        pool.run(cases.endless, 3)
        pool.start(cases.endless)
        time.sleep(0.5)
        pool.processes[1].kill()
        for rank in (0, 2):
            returned, (name, text, _) = pool.answer(rank, 200.0)
            assert not returned and name == "EngineError" and named(text, 1), text
        with pytest.raises(AssertionError, match=r"rank 1 does not answer\n(.*\n)*rank 1, exit code -9"):
            pool.run(cases.endless, 3)
        assert not pool.fit
    finally:
        pool.close()
