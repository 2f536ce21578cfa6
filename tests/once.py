"""What is made by one process of a run for all of them."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def shared_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """A temporary folder that all workers of a run have in common."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder


def made_once(folder: Path, name: str, make: Callable[[], Any]) -> Any:
    """What `make` returns, made by the first process that asks for this name; the others wait for it."""
    path = folder / name
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            made = pickle.dumps(make())
            path.write_bytes(made)
    return pickle.loads(path.read_bytes())


def claimed(folder: Path, name: str) -> bool:
    """Whether this process is the first that claims the name."""
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
