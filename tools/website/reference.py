"""The API reference, from docstrings: a page for each public module, an entry for each name of its ``__all__``."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

MODULES = {
    "prismm": "What most programs need.",
    "prismm.schemes": "", "prismm.errors": "", "prismm.programs": "", "prismm.numerics": "", "prismm.formats": "",
    "prismm.metrics": "", "prismm.testing": "", "prismm.engines": "", "prismm.linalg": "",
    "prismm.distributed": "",
}  # fmt: skip

SECTIONS = r"Args|Attributes|Returns|Raises|Yields"
ITEM = re.compile(r"^(\*{0,2}[A-Za-z_][\w.]*(?:, \*{0,2}[A-Za-z_][\w.]*)*)(?: \(.*?\))?: (.*)$", re.DOTALL)
INHERITED = (object, Exception, BaseException, ValueError, TypeError, RuntimeError, OSError, tuple, dict, str)


def pages() -> dict[str, str]:
    """Markdown by the name of the page."""
    return {f"api/{name.rpartition('.')[2]}": page(name, about) for name, about in MODULES.items()}


def page(name: str, about: str) -> str:
    """One module."""
    module = importlib.import_module(name)
    lines = [
        f"# {name}",
        "",
        markdown(about or inspect.getdoc(module) or ""),
        "",
        "```{py:currentmodule} " + name,
        "```",
    ]
    for public in sorted(names_of(module), key=str.lower):
        lines += ["", entry(public, getattr(module, public), first_home(name, public))]
    return "\n".join(lines) + "\n"


def names_of(module: Any) -> list[str]:
    """Public names that are described: of errors, which has no ``__all__``, its classes."""
    listed = getattr(module, "__all__", None)
    if listed is None:
        listed = [
            name
            for name, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == module.__name__
        ]
    return [
        name for name in listed if inspect.isroutine(getattr(module, name)) or inspect.isclass(getattr(module, name))
    ]


def first_home(module: str, public: str) -> bool:
    """Whether this is the page that the index leads to: a name may stand in two modules."""
    return module == "prismm" or public not in vars(importlib.import_module("prismm"))["__all__"]


def entry(name: str, value: Any, indexed: bool) -> str:
    """A function, or a class with its public members."""
    kind = "class" if inspect.isclass(value) else "function"
    body = [markdown(inspect.getdoc(value) or "")]
    if kind == "class":
        body += [member(key, value, indexed) for key in members_of(value)]
    depth = 4 if kind == "class" else 3
    return directive(kind, name + signature_of(value), body, depth, indexed)


def members_of(kind: type) -> list[str]:
    """Methods and properties with a docstring, of its own or of a base of prismm's."""
    found = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("prismm"):
            found |= {key: item for key, item in vars(base).items() if not key.startswith("_")}
    described = (property, classmethod, staticmethod)
    kinds = {
        key for key, item in found.items()
        if isinstance(item, described) or inspect.isfunction(item) or hasattr(item, "func")
    }  # fmt: skip
    return sorted(key for key in kinds if inspect.getdoc(getattr(kind, key, found[key])))


def member(name: str, owner: type, indexed: bool) -> str:
    """A method or a property."""
    raw = inspect.getattr_static(owner, name)
    if isinstance(raw, property) or not callable(getattr(owner, name)):
        return directive("property", name, [markdown(inspect.getdoc(raw) or "")], 3, indexed)
    kind = {classmethod: "classmethod", staticmethod: "staticmethod"}.get(type(raw), "method")
    signature = signature_of(getattr(owner, name), bound=kind == "method")
    return directive(kind, name + signature, [markdown(inspect.getdoc(raw) or "")], 3, indexed)


def directive(kind: str, signature: str, body: list[str], colons: int, indexed: bool) -> str:
    """Sphinx's description of an object, in MyST."""
    fence = ":" * colons
    options = "" if indexed else ":no-index:\n"
    return (
        f"{fence}{{py:{kind}}} {signature}\n{options}\n" + "\n\n".join(text for text in body if text) + f"\n{fence}\n"
    )


def signature_of(value: Any, *, bound: bool = False) -> str:
    """Names and defaults; types are in the text."""
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):
        return ""
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    plain = [x.replace(annotation=inspect.Parameter.empty, default=default_of(x)) for x in parameters]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


class Shown:
    """A default as it is printed."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def default_of(parameter: inspect.Parameter) -> Any:
    """The default, where it is short and its text is Python's."""
    if parameter.default is inspect.Parameter.empty:
        return parameter.default
    text = repr(parameter.default)
    return Shown(text if len(text) < 40 and not text.startswith("<") else "...")


def markdown(docstring: str) -> str:
    """A docstring as Markdown: sections as lists, examples as blocks."""
    lines, place = docstring.splitlines(), 0
    out: list[str] = []
    while place < len(lines):
        line = lines[place]
        if line.startswith(">>>"):
            end = place
            while end < len(lines) and lines[end].strip():
                end += 1
            out += ["```python", *lines[place:end], "```"]
            place = end
        elif re.fullmatch(rf"(?:{SECTIONS}):", line):
            end = place + 1
            while end < len(lines) and (not lines[end].strip() or lines[end].startswith("    ")):
                end += 1
            out += ["", f"**{line[:-1]}**", "", *items(lines[place + 1 : end]), ""]
            place = end
        else:
            out.append(line)
            place += 1
    return re.sub(r"(?<!`)``([^`\n]+)``(?!`)", r"`\1`", "\n".join(out).strip())


def items(lines: list[str]) -> list[str]:
    """The list of a section: an entry begins where a line is not indented further.

    >>> items(["    a, b: two", "        matrices.", "    c: one."])
    ['- `a, b`: two matrices.', '- `c`: one.']
    >>> items(["    The product, with", "    NumPy's rules."])
    ["The product, with NumPy's rules."]
    """
    starts = [i for i, line in enumerate(lines) if line.startswith("    ") and not line.startswith("     ")]
    hanging = any(line.startswith("        ") for line in lines) or all(ITEM.match(lines[i].strip()) for i in starts)
    if not hanging:
        return [" ".join(line.strip() for line in lines if line.strip())]
    found = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        text = " ".join(line.strip() for line in lines[start:end] if line.strip())
        match = ITEM.match(text)
        found.append(f"- `{match[1]}`: {match[2]}" if match else f"- {text}")
    return found
