"""What every test shares: the header, seeds, Hypothesis profiles, and the skip of GPU tests."""

from __future__ import annotations

import os
import secrets
import sys
import zlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import numpy as np

# The first example may compile kernels, so there is no deadline; a failure prints how to repeat it.
_COMMON = {
    "deadline": None,
    "derandomize": False,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile("ci", max_examples=40, **_COMMON)
settings.register_profile("thorough", max_examples=1000, **_COMMON)
settings.load_profile("ci")

_ENGINES = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="base seed of the random tests (default: a new one)")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ENGINES] = set()
    if config.option.seed is None:  # xdist hands the options on, so its workers share this one
        config.option.seed = secrets.randbelow(2**32)


def pytest_report_header(config: pytest.Config) -> list[str]:
    def version_of(package: str) -> str:
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            return f"no {package}"

    packages = ("numpy", "torch", "numba", "triton", "scipy", "python-flint")
    return [
        "prismm with " + ", ".join(map(version_of, packages)),
        f"engine: {os.environ.get('PRISMM_ENGINE', 'the best available')}",
        f"seed: {config.option.seed} (repeat with --seed {config.option.seed})",
    ]


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed of this test's own, shown when it fails and repeatable with ``--seed``."""
    base = request.config.option.seed
    value = zlib.crc32(f"{base} {request.node.nodeid}".encode())
    print(f"seed {value} (from --seed {base})")
    return value


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """A NumPy generator started from ``seed``."""
    import numpy as np

    return np.random.default_rng(seed)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


# The engines are named at the end, by the processes that ran tests: naming them loads torch, which
# neither collection nor the controller of the workers needs.


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    engines = sys.modules.get("prismm.engines")
    if engines is None:
        return
    usable = {name for name, (works, _) in engines.available().items() if works}
    session.config.stash[_ENGINES] |= usable
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["engines"] = sorted(usable)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    node.config.stash[_ENGINES].update(getattr(node, "workeroutput", {}).get("engines", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[_ENGINES]:
        terminalreporter.write_line(f"engines: {', '.join(sorted(config.stash[_ENGINES]))}")
