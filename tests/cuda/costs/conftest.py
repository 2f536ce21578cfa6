"""What tests of rate tables share."""

import pytest

from prismm.cuda.costs.table import rates_of


@pytest.fixture
def no_user_table(monkeypatch, tmp_path):
    """No table of this machine's user counts."""
    monkeypatch.setenv("PRISMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PRISMM_RATES", raising=False)
    rates_of.cache_clear()
    yield
    rates_of.cache_clear()
