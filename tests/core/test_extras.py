"""What is installed with prismm, and what messages say of the rest: pyproject.toml, CITATION.cff and `core.extras`."""

from __future__ import annotations

import doctest
import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import prismm
from prismm.core import extras

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_docstrings() -> None:
    assert doctest.testmod(extras).failed == 0


def names(requirements: list[str]) -> set[str]:
    """The packages of requirements."""
    return {re.split(r"[\[<>=;!~ ]", one)[0] for one in requirements}


def whole(extra: str) -> set[str]:
    """The packages that an extra brings, by other extras too."""
    found = set()
    for one in PROJECT["optional-dependencies"][extra]:
        if inner := re.match(r"prismm\[(.*)\]", one):
            found |= set().union(*map(whole, inner[1].split(",")))
        else:
            found |= names([one])
    return found


def test_the_core_is_small() -> None:
    assert names(PROJECT["dependencies"]) == {"numpy", "numba", "typer", "rich", "threadpoolctl"}


def test_extras() -> None:
    there = PROJECT["optional-dependencies"]
    assert there.keys() >= {"torch", "plot", "exact", "jax", "dask", "gpu-probe", "demo", "all", "dev"}
    assert whole("all") == set().union(*(whole(name) for name in there if name not in ("dev", "docs", "all")))
    assert whole("dev") >= whole("torch") | whole("demo") and "torch" not in whole("demo")
    for one in [*PROJECT["dependencies"], *(x for some in there.values() for x in some)]:
        assert ">=" in one or one.startswith(("prismm[", "cuda-core")), f"{one} has no lower bound"


@pytest.mark.parametrize("extra", extras.PACKAGES)
def test_messages_name_what_brings_it(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra where prismm is installed, the packages where it only lies there."""
    monkeypatch.setattr(extras, "_provided", lambda: frozenset({extra}))
    assert extras.install(extra) == f"pip install 'prismm[{extra}]'"
    monkeypatch.setattr(extras, "_provided", frozenset)
    words = extras.install(extra).removeprefix("pip install ").replace("'", "").split()
    assert names(words) == whole(extra)
    assert str(extras.missing("it", extra)).endswith(f"it with: {extras.install(extra)}")


def test_extras_of_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no distribution of that name is installed, none has any."""

    def none(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.metadata", none)
    assert extras._provided.__wrapped__() == frozenset()


def test_the_citation_is_of_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    fields = dict(re.findall(r"^([a-z-]+): (.*)$", text, re.MULTILINE))
    assert fields["version"] == prismm.__version__ and fields["license"] == PROJECT["license"]
    assert fields["title"] == PROJECT["name"] and fields["type"] == "software"
    assert re.findall(r"- name: (.*)", text) == [author["name"] for author in PROJECT["authors"]]
