import pytest

from tests.distributed.ranks import Ranks


@pytest.fixture(scope="package")
def pools():
    """The processes that `ranks` handed out last."""
    kept = []
    yield kept
    for pool in kept:
        pool.close()


@pytest.fixture
def ranks(pools):
    """Four processes that the package's tests share, new ones after a test that lost one of them; smaller meshes are
    made of some of them.
    """
    if pools and not pools[-1].fit:
        pools.pop().close()
    if not pools:
        pools.append(Ranks(4))
    return pools[-1]
