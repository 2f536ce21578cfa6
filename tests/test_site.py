"""The site builds without a warning, every link and anchor on it leads somewhere, and it needs no network."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import prismm

ROOT = Path(__file__).parents[1]
WEBSITE = ROOT / "tools" / "website"
if str(WEBSITE) not in sys.path:
    sys.path.append(str(WEBSITE))
build, cards, commands, reference = (
    importlib.import_module(name) for name in ("build", "cards", "commands", "reference")
)


class Links(HTMLParser):
    """What a page refers to, what it loads, and the anchors that it offers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value for key, value in attrs if value is not None}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") in ("stylesheet", "preload", "icon", "shortcut icon"):
            self.loaded.append(values["href"])
        elif tag in ("img", "script", "iframe", "source") and "src" in values:
            self.loaded.append(values["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_nb")
    folder = tmp_path_factory.mktemp("site") / "html"
    done = subprocess.run(
        [sys.executable, str(WEBSITE / "build.py"), "--out", str(folder)], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    """By their files; the theme's own templates are no pages."""
    found = sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)
    return {path: Links(path.read_text(encoding="utf-8")) for path in found}


@pytest.mark.slow
def test_links_lead_somewhere_and_nothing_comes_from_elsewhere(pages: dict[Path, Links]) -> None:
    wrong = []
    for path, page in pages.items():
        for target in (*page.links, *page.loaded):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if target in page.loaded and parts.scheme != "data":
                    wrong.append(f"{path.name} loads {target}")
                continue
            found = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not found.exists():
                wrong.append(f"{path.name}: no file {target}")
            elif parts.fragment and found in pages and unquote(parts.fragment) not in pages[found].anchors:
                wrong.append(f"{path.name}: no anchor {target}")
    assert not wrong, "\n".join(wrong)
    assert sum(len(page.links) for page in pages.values()) > 1000


@pytest.mark.slow
def test_style_sheets_load_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.css"):
        for target in re.findall(r"(?:url\(|@import )['\"]?([^'\")]+)", path.read_text(encoding="utf-8")):
            assert not target.startswith(("http:", "https:", "//")), f"{path.name} loads {target}"


@pytest.mark.slow
def test_every_page_of_docs_is_a_page_of_the_site(site: Path) -> None:
    for path in (ROOT / "docs").rglob("*"):
        if path.suffix in (".md", ".ipynb"):
            assert (site / path.relative_to(ROOT / "docs")).with_suffix(".html").exists(), path
    text = (site / "notebooks" / "same_bits.html").read_text(encoding="utf-8")
    assert "every exact engine: True" in text


@pytest.mark.slow
def test_public_names_are_in_the_reference(pages: dict[Path, Links]) -> None:
    """With an anchor each, so that they can be linked to and searched for."""
    anchors = set().union(*(page.anchors for path, page in pages.items() if path.parent.name == "api"))
    assert {f"prismm.{name}" for name in prismm.__all__ if callable(getattr(prismm, name))} <= anchors


@pytest.mark.parametrize("module", [build, cards, reference], ids=lambda module: module.__name__)
def test_examples(module: object) -> None:
    result = doctest.testmod(module)
    assert not result.failed and result.attempted


def test_the_menus_have_every_page_once() -> None:
    sections = tomllib.loads((WEBSITE / "navigation.toml").read_text(encoding="utf-8"))["section"]
    menus = [page for section in sections for page in section["pages"]]
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix()
             for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".ipynb")}  # fmt: skip
    others = {
        "commands",
        "cards",
        *build.ROOT_PAGES.values(),
        *(f"api/{name.rpartition('.')[2]}" for name in reference.MODULES),
    }
    assert sorted(menus) == sorted((pages - {"index"}) | others)


def test_every_command_and_option_is_in_the_reference() -> None:
    import typer.main

    from prismm.cli.app import app

    text = commands.page()
    found = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in found.items():
        section = re.search(rf"^## {name}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert section is not None, name
        for parameter in command.params:
            assert all(option in section[1] for option in parameter.opts if option.startswith("-")), (name, parameter)
    assert len(found) >= 12


def test_every_card_is_in_the_table() -> None:
    text = cards.page()
    assert text.count("| measured |") == 2 and text.count("| estimated |") >= 10
    assert "| NVIDIA H200 | 9.0 | 1978.9 |" in text


def test_sections_of_a_docstring_are_lists() -> None:
    text = reference.markdown(prismm.matmul.__doc__.replace("\n    ", "\n"))
    assert "**Args**\n\n- `a`: array of shape" in text and "**Returns**\n\nThe product" in text
    assert "```python\n>>> import numpy" in text
