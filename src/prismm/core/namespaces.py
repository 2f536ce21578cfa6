"""Namespaces of other libraries' arrays: whose functions take them, and where results go back to."""

from __future__ import annotations

import sys
from typing import Any


def namespace_of(x: Any) -> Any:
    """The namespace of the array API that an array names, if results can go back to it; else None."""
    namespace = getattr(x, "__array_namespace__", None)
    found = None if namespace is None else namespace()
    return found if hasattr(found, "from_dlpack") else None


def home_of(x: Any) -> Any:
    """What makes arrays like x by its ``from_dlpack``: the namespace that x names, or the package that it is of, since
    CuPy's arrays name none. None where there is neither.

    >>> import numpy as np
    >>> home_of(np.ones(2)) is np, home_of([1.0, 2.0])
    (True, None)
    """
    found = namespace_of(x)
    if found is None and hasattr(x, "__dlpack__"):
        found = sys.modules.get(type(x).__module__.partition(".")[0])
    return found if hasattr(found, "from_dlpack") else None
