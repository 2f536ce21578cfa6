"""The documentation site: copies the pages, adds those that come from the code, and runs Sphinx in strict mode.

    python tools/website/build.py [--out build/site]

Pages of docs/ stay readable on their own; what only a site has (navigation, references) is added to the copies. A
link that leads nowhere, a page in no menu and any other warning end the build. Nothing is fetched from elsewhere.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import cards
import commands
import reference

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DOCS = ROOT / "docs"
ROOT_PAGES = {"CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog", "benchmarks/NOTES.md": "notes"}
"""Pages of the repository that the site has too, and their names there."""

ENDINGS = (".md", ".ipynb", ".png", ".svg", ".txt")
"""Files of docs/ that are pages or shown on one."""


def main() -> None:
    """Stage the pages and build them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="folder of the HTML pages")
    out = parser.parse_args().out.resolve()
    source = out.with_name(f"{out.name}-source")
    for folder in (out, source):
        shutil.rmtree(folder, ignore_errors=True)
    stage(source)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "auto", "-b", "html"]
    done = subprocess.run([*command, str(source), str(out)], check=False)
    if done.returncode:
        sys.exit(done.returncode)
    print(f"{len(list(out.rglob('*.html')))} pages in {out}; open {out / 'index.html'}")


def stage(source: Path) -> None:
    """All sources of the site in a folder."""
    for path in sorted(x for x in DOCS.rglob("*") if x.suffix in ENDINGS and ".ipynb_checkpoints" not in x.parts):
        write(source / path.relative_to(DOCS), path)
    for name, page in ROOT_PAGES.items():
        write(source / f"{page}.md", ROOT / name)
    for name in ("conf.py", "site.css"):
        shutil.copy(HERE / name, source / name)
    for name, text in {"commands": commands.page(), "cards": cards.page(), **reference.pages()}.items():
        target = source / f"{name}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    add_navigation(source)


def write(target: Path, path: Path) -> None:
    """A copy; of Markdown, with its links as the site has them."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".md":
        target.write_text(linked(path.read_text(encoding="utf-8"), path), encoding="utf-8")
    else:
        shutil.copy(path, target)


def linked(text: str, path: Path) -> str:
    """Links between pages, whichever folder they are in, and words for links to what is no page.

    >>> linked("[how](docs/gpu.md#speed), [code](src/prismm/_api.py)", ROOT / "CHANGELOG.md")
    '[how](/gpu.md#speed), code'
    """
    pages = {ROOT / name: f"/{page}.md" for name, page in ROOT_PAGES.items()} | {ROOT / "README.md": "/index.md"}

    def of_site(match: re.Match[str]) -> str:
        mark, words, target, anchor = match.groups()
        found = (path.parent / target).resolve()
        if found in pages:
            return f"[{words}]({pages[found]}{anchor or ''})"
        if found.is_relative_to(DOCS) and found.suffix in ENDINGS:
            if path.is_relative_to(DOCS):
                return match[0]
            return f"{mark}[{words}](/{found.relative_to(DOCS).as_posix()}{anchor or ''})"
        return match[0] if not found.exists() else words

    return re.sub(r"(!?)\[([^\]\n]*(?:\n[^\]\n]*)?)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)", of_site, text)


def add_navigation(source: Path) -> None:
    """The menus of navigation.toml: a page for each section, and the sections on the first page."""
    sections = tomllib.loads((HERE / "navigation.toml").read_text(encoding="utf-8"))["section"]
    for section in sections:
        text = f"# {section['title']}\n\n{section['about']}\n\n{toctree(section['pages'])}"
        (source / f"section-{section['name']}.md").write_text(text, encoding="utf-8")
    first = source / "index.md"
    menu = toctree([f"section-{section['name']}" for section in sections], hidden=True)
    first.write_text(f"{first.read_text(encoding='utf-8')}\n{menu}", encoding="utf-8")


def toctree(pages: list[str], *, hidden: bool = False) -> str:
    """Sphinx's directive for a menu."""
    options = ":hidden:\n" if hidden else ":maxdepth: 1\n"
    return "```{toctree}\n" + options + "\n" + "\n".join(pages) + "\n```\n"


if __name__ == "__main__":
    main()
