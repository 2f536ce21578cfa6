"""Pages that stand alone: one HTML file with its own style, no script, nothing fetched; light, dark and on paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prismm import __version__
from prismm.cli.html.markup import Markup, joined, tag

STYLE = """
:root { color-scheme: light dark;
  --page: #fff; --ink: #1b1f24; --faint: #6a737d; --rule: #d8dee4; --panel: #f6f8fa;
  --kept: #2458b3; --on: #fff; --zero: #c9d1d9; --lost: #c62828; --beyond: #c6282812; --carry: #1a7f53;
  --over: #8250df; --dropped: #b35900; --good: #1a7f37; }
@media screen and (prefers-color-scheme: dark) { :root {
  --page: #0e1116; --ink: #e2e8ee; --faint: #95a0ab; --rule: #30363d; --panel: #171c23;
  --kept: #7aa9f7; --on: #0e1116; --zero: #3b434d; --lost: #ff7b72; --beyond: #ff7b721c; --carry: #56d394;
  --over: #c49bff; --dropped: #f0a04b; --good: #5fd07a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 74rem; padding: 1.5rem clamp(0.9rem, 4vw, 2.5rem) 3rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", "Liberation Sans", sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 0.3rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 0.5rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 0.3rem; }
p { margin: 0.4rem 0 0.8rem; }
.lead { color: var(--faint); }
.verdict { border-left: 4px solid var(--good); background: var(--panel); padding: 0.6rem 0.9rem; margin: 1rem 0; }
.verdict.bad { border-color: var(--lost); }
code, pre, td.number, .mono { font-family: ui-monospace, "DejaVu Sans Mono", "Liberation Mono", monospace;
  font-size: 0.86em; }
.scroll { overflow-x: auto; max-width: 100%; margin: 0.4rem 0 0.8rem; background-repeat: no-repeat;
  background-image: linear-gradient(90deg, var(--page) 1.2rem, transparent),
    linear-gradient(270deg, var(--page) 1.2rem, transparent), linear-gradient(90deg, var(--rule), transparent),
    linear-gradient(270deg, var(--rule), transparent);
  background-position: 0 0, 100% 0, 0 0, 100% 0; background-size: 2.4rem 100%, 2.4rem 100%, 0.7rem 100%, 0.7rem 100%;
  background-attachment: local, local, scroll, scroll; }
table { border-collapse: collapse; font-size: 0.92rem; }
th, td { text-align: left; vertical-align: baseline; padding: 0.3rem 0.9rem 0.3rem 0;
  border-bottom: 1px solid var(--rule); }
th { font-weight: 600; color: var(--faint); white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap; }
td.wide { min-width: 15rem; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.15rem 1rem; margin: 0.6rem 0; }
dt { color: var(--faint); } dd { margin: 0; min-width: 0; }
details { margin: 0.3rem 0; } summary { cursor: pointer; }
.properties { border-top: 1px solid var(--rule); font-size: 0.94rem; }
.properties > details { margin: 0; border-bottom: 1px solid var(--rule); }
.properties > details > summary { display: grid; grid-template-columns: 13rem 11rem minmax(0, 1fr); gap: 0 1rem;
  padding: 0.3rem 0; list-style: none; }
.properties > details > summary::-webkit-details-marker { display: none; }
.properties .name::before { content: "▸"; display: inline-block; width: 1.1em; color: var(--faint); }
.properties details[open] > summary .name::before { content: "▾"; }
.properties .value { font-weight: 600; } .open { color: var(--dropped); }
.properties .why { color: var(--faint); }
details > .scroll, details > pre, details > p { margin-left: 1rem; }
pre { background: var(--panel); padding: 0.7rem 0.9rem; overflow-x: auto; line-height: 1.35; }
.legend { display: flex; flex-wrap: wrap; gap: 0.2rem 1.1rem; font-size: 0.86rem; color: var(--faint); }
.swatch { display: inline-block; width: 0.8em; height: 1em; margin-right: 0.4em; vertical-align: -0.12em;
  border: 1.5px solid; }
.swatch.kept { background: var(--kept); border-color: var(--kept); }
.swatch.zero { background: var(--zero); border-color: var(--zero); }
.swatch.carry { background: var(--carry); border-color: var(--carry); }
.swatch.lost { border-color: var(--lost); } .swatch.over { border-color: var(--over); }
.swatch.dropped { border-color: var(--dropped); }
.bars { list-style: none; margin: 0.4rem 0 0.8rem; padding: 0; font-size: 0.86rem; }
.bars > li { display: grid; grid-template-columns: minmax(0, 22rem) minmax(0, 1fr); gap: 0 0.6rem; padding: 0.15rem 0;
  align-items: center; }
.bars > li > .mono { text-align: right; } .bars div { display: flex; align-items: center; gap: 0.5rem; }
.bar { flex: none; } .bar.kept { background: var(--kept); } .bar.carry { background: var(--carry); }
.bar.zero { background: var(--zero); } .bars .faint { color: var(--faint); }
.bits { display: block; font: 13px ui-monospace, "DejaVu Sans Mono", "Liberation Mono", monospace; }
.bits text { fill: var(--ink); } .bits .end { text-anchor: end; }
.bits .faint { fill: var(--faint); } .bits .strong { font-weight: 700; }
.bits .axis, .bits .cutlabel { fill: var(--faint); font-size: 11px; text-anchor: middle; }
.bits .cutlabel { fill: var(--lost); font-weight: 700; }
.bits .tick { stroke: var(--faint); } .bits .rule { stroke: var(--rule); }
.bits .cut { stroke: var(--lost); stroke-width: 1.5; stroke-dasharray: 4 2; }
.bits path.limit { stroke-dasharray: 4 2; stroke-width: 1.5; }
.bits .beyond { fill: var(--beyond); } .bits .warning { fill: var(--lost); }
.bits .elided { stroke: var(--zero); stroke-width: 2; stroke-dasharray: 2 3; }
.bits path { fill: none; }
.bits path.zero { stroke: var(--zero); }
.bits path.kept { fill: var(--kept); stroke: var(--kept); }
.bits path.carry { fill: var(--carry); stroke: var(--carry); }
.bits path.lost { stroke: var(--lost); stroke-width: 1.4; } .bits path.over { stroke: var(--over); stroke-width: 1.4; }
.bits path.dropped { stroke: var(--dropped); stroke-width: 1.4; }
.bits .digit { font-size: 10px; text-anchor: middle; }
.bits .digit.kept, .bits .digit.carry { fill: var(--on); }
.bits .digit.zero { fill: var(--faint); opacity: 0.75; }
.bits .digit.lost { fill: var(--lost); } .bits .digit.over { fill: var(--over); }
.bits .digit.dropped { fill: var(--dropped); }
svg.map { max-width: 100%; height: auto; border: 1px solid var(--rule); }
.map rect.kept { fill: var(--kept); } .map rect.lost { fill: var(--lost); }
footer { margin-top: 3rem; color: var(--faint); font-size: 0.85rem; }
@media (max-width: 30rem) { body { font-size: 15px; } dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 0.4rem; } }
@media (max-width: 48rem) { .bars > li { grid-template-columns: minmax(0, 1fr); }
  .bars > li > .mono { text-align: left; }
  .properties > details > summary { grid-template-columns: minmax(0, 1fr) max-content; }
  .properties .why { grid-column: 1 / -1; padding-left: 1.1em; } }
@page { margin: 15mm; }
@media print { :root { color-scheme: light; }
  details::details-content { content-visibility: visible; height: auto; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .scroll { overflow: visible; } svg.bits { max-width: 100%; height: auto; } section { break-inside: auto; }
  figure, tr { break-inside: avoid; } }
img.plot { max-width: 100%; height: auto; background: #fff; }
figure { margin: 0.8rem 0 1.2rem; } figcaption { font-size: 0.92rem; margin-bottom: 0.2rem; }
"""


def document(title: str, *sections: Markup) -> str:
    """A whole page."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=f"prismm {__version__}"),
        tag("title", title),
        tag("style", Markup(STYLE)),
    )
    foot = tag("footer", f"Written by prismm {__version__}.")
    page = f"<!DOCTYPE html>\n{tag('html', head, tag('body', *sections, foot), lang='en')}\n"
    return page.encode("utf-8", "backslashreplace").decode()  # names of files may hold what UTF-8 has not


def grid(head: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[str] = ()) -> Markup:
    """A table that scrolls by itself where it is too wide; columns named in ``numbers`` stand to the right."""
    kinds = ["number" if name in numbers else None for name in head]
    top = tag("tr", *(tag("th", name, class_=kind, scope="col") for name, kind in zip(head, kinds, strict=True)))
    body = (tag("tr", *(tag("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True))) for row in rows)
    return scroll(tag("table", tag("thead", top), tag("tbody", *body)))


def scroll(content: Markup) -> Markup:
    """What may be wider than the page."""
    return tag("div", content, class_="scroll", tabindex="0")


def facts(rows: Iterable[tuple[str, object]]) -> Markup:
    """Names and values."""
    return tag("dl", *(joined(tag("dt", name), tag("dd", value)) for name, value in rows))


def mono(text: object) -> Markup:
    """Numbers and names."""
    return tag("span", text, class_="mono")
