"""What every test shares: the header, seeds, Hypothesis profiles, covering rows, what a run makes only once, the limit
of fast tests, and the skip of GPU tests.
"""

from __future__ import annotations

import gc
import os
import secrets
import sys
import zlib
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.absent import SkipsWhatImports
from tests.all_kernels import all_kernels
from tests.covering import mark_rest_slow
from tests.limit import FastLimit
from tests.once import claimed, made_once, shared_folder

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

# Before torch is loaded: its threads sleep where they wait, as the run's processes share the processors.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Tests of a GPU are of all ways of repair, whichever call comes first.
os.environ.setdefault("PRISMM_COMPILE", "first")

_ENGINES = pytest.StashKey[set[str]]()
_WHOLE = 5000
"""Tests of a whole run: it compiles kernels first, judges how long tests take, and names those that take longest."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="base seed of the random tests (default: a new one)")
    parser.addoption("--fast-limit", type=float, default=3.0, metavar="SECONDS", help=(
        "CPU time that a test may take which is not marked slow, in a run of the whole suite with the usual number of "
        "examples (default: 3; 0: any)"
    ))  # fmt: skip
    parser.addoption("--core", action="store_true", help=(
        "skip what imports packages that are not installed and that prismm itself does not require, as torch"
    ))  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", (
        "covering(*together, of=): rows of its parameters in which all pairs of values meet (or the values of each "
        "tuple of names given) are fast, the others slow; the run's seed decides which"
    ))  # fmt: skip
    config.addinivalue_line("markers", "needs_engine(name): skipped where the engine of this name cannot be used")
    for name in ("thread_unsafe", "leaks_references", "valgrind_error"):
        config.addinivalue_line("markers", f"{name}: a mark of NumPy's own tests")
    config.stash[_ENGINES] = set()
    if config.option.core:
        sys.meta_path.append(SkipsWhatImports())
    if config.option.seed is None:
        handed_on = getattr(config, "workerinput", {}).get("seed")
        config.option.seed = secrets.randbelow(2**32) if handed_on is None else handed_on


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """Workers get the arguments of the command line only, and have to share a seed that is not among them."""
    node.workerinput["seed"] = node.config.option.seed


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


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Without looks for garbage, which would find none among modules and tests, and set aside what was collected."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_rest_slow(items, config.option.seed)


def pytest_collection_finish(session: pytest.Session) -> None:
    limit = session.config.option.fast_limit
    if limit and len(session.items) >= _WHOLE and settings.get_current_profile_name() == "ci":
        session.config.pluginmanager.register(FastLimit(limit))


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[], Any]], Any]:
    """``once(name, make)``: what `make` returns, made by one of the run's processes for all of them."""
    folder = shared_folder(tmp_path_factory, "once")
    kept: dict[str, Any] = {}

    def made(name: str, make: Callable[[], Any]) -> Any:
        if name not in kept:
            kept[name] = made_once(folder, name, make)
        return kept[name]

    return made


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Before the tests of a whole run, compile all kernels that are not on disk, each in one of the processes: neither
    the time of the test that would come first nor its limits pay for them. A run of few tests compiles what it needs.
    """
    if len(session.items) < _WHOLE or session.config.option.collectonly:
        return
    from prismm.engines import available
    from tests.cpu.kernels import panels

    kernels = [*all_kernels(), ("panels.join_panels", panels.join_panels)]
    folder = shared_folder(session.config._tmp_path_factory, "kernels")
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = worker * len(kernels) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    for name, kernel in kernels[first:] + kernels[:first]:
        if claimed(folder, f"{name}.claimed"):
            made_once(folder, name, lambda kernel=kernel: bool(kernel.compile()))
    for name, kernel in kernels:  # what others have not done yet
        made_once(folder, name, lambda kernel=kernel: bool(kernel.compile()))
    available()


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
    # Not as tests are collected: an engine's proof compiles kernels, and every worker would.
    for mark in item.iter_markers("needs_engine"):
        from tests.judge import problem

        problem(*mark.args)
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


@pytest.hookimpl(tryfirst=True)  # before the durations are printed
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.option.durations is None and len(terminalreporter.stats.get("passed", ())) >= _WHOLE:
        config.option.durations = 15
    if config.stash[_ENGINES]:
        terminalreporter.write_line(f"engines: {', '.join(sorted(config.stash[_ENGINES]))}")
