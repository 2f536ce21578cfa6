import pytest

from tests.distributed.ranks import Ranks


@pytest.fixture(scope="package")
def ranks():
    """Four processes that the package's tests share; smaller meshes are made of some of them."""
    pool = Ranks(4)
    yield pool
    pool.close()
