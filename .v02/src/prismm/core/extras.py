"""What to install for what prismm's core does without."""

from __future__ import annotations

import functools

from prismm.errors import EngineError

PACKAGES = {
    "torch": ("torch>=2.11",),
    "plot": ("matplotlib",),
    "exact": ("python-flint",),
    "jax": ("jax",),
    "demo": ("scikit-learn", "scipy", "matplotlib", "python-flint"),
    "gpu-probe": ("cuda-core[cu13]",),
}
"""By extra, what a clone that is not installed lacks."""


def install(extra: str) -> str:
    """The command that brings an extra: by its name where prismm is installed, else by its packages' names.

    >>> install("torch") in ("pip install 'prismm[torch]'", "pip install 'torch>=2.11'")
    True
    """
    if extra in _provided():
        return f"pip install 'prismm[{extra}]'"
    names = (f"'{name}'" if set(name) & set("<>[") else name for name in PACKAGES[extra])
    return f"pip install {' '.join(names)}"


def missing(what: str, extra: str) -> EngineError:
    """The error for a feature whose package is not installed; the extra has the package's name."""
    return EngineError(f"{what} needs {extra}, which is not installed; install it with: {install(extra)}")


def is_installed(module: str) -> bool:
    """Whether a module can be found; it is not imported.

    >>> is_installed("numpy"), is_installed("there_is_no_such_module")
    (True, False)
    """
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a finder that refuses it; a module without a spec
        return False


@functools.cache
def _provided() -> frozenset[str]:
    """The extras of the installed prismm; none where it runs from a folder."""
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        return frozenset(metadata("prismm").get_all("Provides-Extra") or ())
    except PackageNotFoundError:
        return frozenset()
