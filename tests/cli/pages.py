"""What every page has to be: well-formed, whole in itself, without scripts."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "br", "hr", "img"}
PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]+")
"""A picture within the page."""


class _Page(HTMLParser):
    """Open elements, and everything that could load something or run."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.text: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        assert tag not in ("script", "link", "iframe", "object", "embed", "image", "use", "base", "form"), tag
        for name, value in attrs:
            if (tag, name) == ("img", "src"):
                assert PICTURE.fullmatch(value or "")
                continue
            assert not name.startswith("on") and name not in ("src", "srcset", "xlink:href", "style"), name
            if name == "href":
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)


def parsed(path: Path) -> _Page:
    """The page in a file, after these checks."""
    source = path.read_text(encoding="utf-8")
    assert source.startswith("<!DOCTYPE html>")
    assert not re.search(r"https?:|//[a-z]|url\(|@import|javascript:", PICTURE.sub("", source))
    page = _Page()
    page.feed(source)
    page.close()
    assert page.open == []
    assert page.count["html"] == page.count["head"] == page.count["body"] == 1
    assert page.count["title"] == 1 + page.count.get("svg", 0)
    assert len(set(page.ids)) == len(page.ids)
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links), page.links
    return page
