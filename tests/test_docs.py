"""Every example of the pages in docs/ runs, and shows what it says."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import prismm

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_there_are_pages() -> None:
    assert {"docs/schemes.md", "docs/reproduce/README.md"} <= {name_of(page) for page in PAGES}


def timed(page: Path) -> object:
    """The page; slow, where it probes an engine."""
    probes = "probe(" in page.read_text(encoding="utf-8")
    return pytest.param(page, marks=pytest.mark.slow) if probes else page


@pytest.mark.parametrize("page", map(timed, PAGES), ids=map(name_of, PAGES))
def test_examples(page: Path) -> None:
    """All examples of a page in one session, as a reader would type them."""
    found = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    example = doctest.DocTestParser().get_doctest("\n".join(found), {}, name_of(page), str(page), 0)
    words: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(example, out=words.append)
    assert not words, "".join(words)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_names(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / target).exists(), target
    for name in re.findall(r"`prismm\.(\w+)", text):
        assert hasattr(prismm, name), name


def test_every_scheme_has_its_section() -> None:
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs/schemes.md").read_text(encoding="utf-8"), re.MULTILINE)
    schemes = {"Residues", "Native", *prismm.schemes.COMPOSITE}
    assert schemes - {"Native"} <= set(sections)


def test_every_verdict_is_explained() -> None:
    text = (ROOT / "docs/reproduce/README.md").read_text(encoding="utf-8")
    for verdict in ("holds", "DIFFERS", "ours alone", "no data", "not here"):
        assert f"| {verdict} |" in text


def test_every_paper_has_its_results() -> None:
    from prismm.reproduce import PAPERS

    for name in PAPERS:
        for ending in (".csv", ".txt"):
            assert (ROOT / "docs/reproduce" / (name + ending)).stat().st_size > 0
