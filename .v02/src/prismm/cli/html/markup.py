"""HTML and SVG, escaped: text is always text, only what `tag` made is markup."""

from __future__ import annotations

from html import escape


class Markup(str):
    """Text that is markup already."""


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element; children that are no Markup are escaped, and so are all attributes.

    Args:
        name: of the element.
        *children: None is nothing.
        **attributes: a trailing underscore is dropped, others become hyphens; None is left out, True has no value.

    >>> tag("p", "1 < 2", tag("b", "!"), class_="note")
    '<p class="note">1 &lt; 2<b>!</b></p>'
    """
    text = ""
    for key, value in attributes.items():
        if value is not None and value is not False:
            plain = key.rstrip("_").replace("_", "-")
            text += f" {plain}" if value is True else f' {plain}="{escape(str(value))}"'
    if name in _VOID:
        return Markup(f"<{name}{text}>")
    return Markup(f"<{name}{text}>{joined(*children)}</{name}>")


_VOID = ("meta", "br", "hr", "img")


def joined(*children: object) -> Markup:
    """Children one after another, escaped where they are no Markup."""
    found = (child if isinstance(child, Markup) else escape(str(child)) for child in children if child is not None)
    return Markup("".join(found))
