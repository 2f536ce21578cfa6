"""The page of ``prismm probe``: what was found of each engine, the evidence for it, and some sums bit by bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prismm.cli.findings import (
    answer,
    closest,
    counts,
    decided_by,
    known,
    observation_text,
    properties,
    sureness,
    value_text,
    values_text,
)
from prismm.cli.html.markup import Markup, joined, tag
from prismm.cli.html.page import document, facts, grid, mono
from prismm.cli.html.simulation import dot_product
from prismm.cli.numerals import decimal, short
from prismm.cli.operands import Inputs, published
from prismm.cli.traces import about, traced

if TYPE_CHECKING:
    from prismm.numerics.finding import Evidence, Finding
    from prismm.numerics.model import EngineModel

_SHOWN = ("fraction_bits", "rounding")
"""Properties whose evidence is drawn."""
_DRAWN = 40  # products of a sum that is drawn, at most
_TERMS = 8  # products of an observation in the evidence


def findings_page(found: list[tuple[str, Finding]], seed: int) -> str:
    """The page of one finding or of several."""
    title = f"What {found[0][0]} computes" if len(found) == 1 else f"What {len(found)} engines compute"
    contents: Markup | None = None
    if len(found) > 1:
        rows = [
            [tag("a", name, href=f"#engine-{i}"), _verdict(finding), counts(finding)]
            for i, (name, finding) in enumerate(found)
        ]
        contents = grid(["target", "found", "asked"], rows)
    sections = (
        tag("section", *_finding(name, finding, heading=len(found) > 1), id=f"engine-{i}")
        for i, (name, finding) in enumerate(found)
    )
    lead = tag("p", f"Probed as a black box, with inputs of seed {seed}.", class_="lead")
    return document(title, tag("h1", title), joined(lead, contents), *sections)


def _verdict(finding: Finding) -> str:
    return "no member of the family found" if finding.model is None else about(finding.model)


def _finding(name: str, finding: Finding, heading: bool) -> list[Markup]:
    parts = [tag("h2", name)] if heading else []
    model = finding.model
    if model is None:
        return parts + _outside(finding)
    undecided = f"; {len(finding.undecided)} properties undecided" if finding.undecided else "; every property decided"
    parts.append(tag("p", about(model), undecided, ".", class_="verdict"))
    rows: list[tuple[str, object]] = [("answers", counts(finding)), ("catalogue", known(finding))]
    rows += [("catalogue", line) for line in sureness(finding).splitlines()]
    parts.append(facts(rows + [("note", note) for note in finding.notes]))
    parts += [tag("h2", "Properties"), tag("p", "Each opens on every other value and what refutes it.", class_="lead")]
    parts.append(tag("div", *(_property(e) for e in finding.evidence), class_="properties"))
    parts += _drawings(model, finding)
    parts.append(tag("h2", "The model"))
    parts.append(tag("details", tag("summary", "As JSON, for prismm simulate"), tag("pre", model.to_json())))
    return parts


def _outside(finding: Finding) -> list[Markup]:
    """No model: the counterexample, and the nearest one."""
    parts = [tag("p", "No model of the family reproduces this engine's answers.", class_="verdict bad")]
    parts.append(facts([("answers", counts(finding)), *(("note", note) for note in finding.notes)]))
    nearest, seen = finding.nearest, finding.counterexample
    if nearest is None:
        return parts
    if seen is not None:
        text = f"{observation_text(seen, None)}, where the nearest model gives {short(answer(finding))}."
        parts += [tag("h2", "First counterexample"), tag("p", mono(text))]
        if len(seen.a) <= _DRAWN:
            parts += [
                tag("p", f"The nearest model's sum, which is {decimal(answer(finding))}:"),
                dot_product(traced(nearest, Inputs(list(seen.a), list(seen.b), seen.c))),
            ]
    parts += [tag("h2", "Nearest model"), tag("p", about(nearest), ".")]
    rows = [[name, mono(value_text(value))] for name, value in properties(nearest)]
    return [*parts, grid(["property", "value"], rows)]


def _property(evidence: Evidence) -> Markup:
    """A line that opens on every other value with the simplest observation against it."""
    mark = tag("span", " undecided", class_="open") if evidence.open else None
    line = (
        tag("span", evidence.name, class_="name"),
        tag("span", value_text(evidence.value), mark, class_="value"),
        tag("span", decided_by(evidence), class_="why"),
    )
    parts: list[Markup] = []
    if evidence.open:
        parts.append(tag("p", f"No input was found that tells these from it: {values_text(evidence.open)}."))
    against: dict[str, list[Any]] = {}
    for other, seen in evidence.refuted:
        against.setdefault(observation_text(seen, _TERMS), []).append(other)
    rows = [[mono(values_text(others)), mono(text)] for text, others in against.items()]
    if rows:
        parts.append(grid(["not", "because"], rows))
    return tag("details", tag("summary", *line), *(parts or [tag("p", "No other value was to be refuted.")]))


def _drawings(model: EngineModel, finding: Finding) -> list[Markup]:
    """The published sum, and the observations that decided what is kept and how sums are rounded."""
    drawn: dict[Any, tuple[str, Inputs]] = {}
    example = published([model])
    if example is not None:
        inputs = example.for_engine(model)
        drawn[tuple(inputs.a)] = f"{example.origin[:1].upper()}{example.origin[1:]}", inputs
    for evidence in finding.evidence:
        best = closest(evidence) if evidence.name in _SHOWN else None
        if best is not None and len(best[1].a) <= _DRAWN:
            other, seen = best
            caption = f"Why {evidence.name} is {value_text(evidence.value)} and not {value_text(other)}"
            drawn.setdefault(seen.a, (caption, Inputs(list(seen.a), list(seen.b), seen.c)))
    if not drawn:
        return []
    parts = [tag("h2", "Sums bit by bit")]
    for caption, inputs in drawn.values():
        one = traced(model, inputs)
        text = f"Result {decimal(one.trace.result)}; exactly {decimal(one.exact)}."
        parts += [tag("h3", caption), tag("p", text, class_="lead"), dot_product(one, introduced=True)]
    return parts
