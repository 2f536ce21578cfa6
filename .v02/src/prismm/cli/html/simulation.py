"""The page of ``prismm simulate``: one dot product on some engines, with the picture of every step's bits."""

from __future__ import annotations

from prismm.cli.html.markup import Markup, joined, tag
from prismm.cli.html.page import document, facts, grid, mono, scroll
from prismm.cli.html.picture import legend, picture
from prismm.cli.numerals import decimal, hexadecimal, short
from prismm.cli.traces import Traced, about, heading, idle, is_shown, listed, lost_before, lost_bits, runs

_STEPS = 12  # with a picture


def simulation_page(many: list[Traced], origin: str) -> str:
    """The page."""
    first = many[0]
    names = ", ".join(one.model.name for one in many)
    title = f"A dot product on {names if len(many) < 4 else f'{len(many)} engines'}"
    operands: list[tuple[str, object]] = [
        ("a", mono(listed(first.inputs.a))),
        ("b", mono(listed(first.inputs.b))),
        ("c", mono(short(first.inputs.c))),
    ]
    for what, factors in (("scale a", first.inputs.scale_a), ("scale b", first.inputs.scale_b)):
        if factors is not None:
            operands.append((what, mono(listed(factors))))
    exact = [decimal(first.exact), hexadecimal(first.exact)]
    operands.append(("exact", mono(" = ".join(dict.fromkeys(exact)))))
    head = ["engine", "result", "hex float", "bits", "nearest to exact", "error in ulps"]
    rows = [
        [
            one.model.name,
            decimal(one.trace.result),
            hexadecimal(one.trace.result),
            mono(one.pattern(one.trace.result)),
            mono(one.pattern(one.nearest)),
            f"{one.ulps:.3g}",
        ]
        for one in many
    ]
    return document(
        title,
        tag("h1", title),
        tag("p", f"c + Σ a·b; operands: {origin}.", class_="lead"),
        facts(operands),
        tag("h2", "Results"),
        grid(head, rows, numbers=("result", "hex float", "error in ulps")),
        *(tag("section", tag("h2", one.model.name), dot_product(one)) for one in many),
    )


def dot_product(one: Traced, introduced: bool = False) -> Markup:
    """Every step as a picture, with its numbers under it; before them the model, unless it was `introduced`."""
    steps = one.trace.steps
    parts: list[Markup] = [] if introduced else [tag("p", about(one.model), ".", class_="lead")]
    if one.model.source and not introduced:
        certainty = f" ({one.model.certainty})" if one.model.certainty else ""
        parts.append(tag("p", f"Model: {one.model.source}{certainty}.", class_="lead"))
    shown = runs(steps)
    parts.append(legend(one.model, [step for _, _, step in shown[:_STEPS] if step is not None]))
    for number, last, step in shown[:_STEPS]:
        if step is None:
            text = idle(number, last)
            parts.append(tag("p", f"{text[:1].upper()}{text[1:]}.", class_="lead"))
            continue
        caption = heading(step, number, len(steps))
        drawing = picture(one.model, step, f"{one.model.name}, {caption}", last=number == len(steps))
        rows = [
            [
                term.label,
                short(term.value),
                lost_before(term),
                "" if term.exponent is None else term.exponent,
                short(term.kept),
                short(term.lost) if term.lost else "",
                mono(lost_bits(term, step.quantum)),
            ]
            for term in step.terms
            if is_shown(term)
        ]
        numbers = grid(
            ["term", "value", "lost before", "exponent", "kept", "lost", "lost bits"],
            rows,
            numbers=("value", "exponent", "kept", "lost"),
        )
        parts.append(
            tag(
                "figure",
                tag("figcaption", caption[:1].upper() + caption[1:]),
                scroll(drawing),
                tag("details", tag("summary", "The same in numbers"), numbers),
            )
        )
    if len(shown) > _STEPS:
        parts.append(tag("p", f"And {len(steps) - shown[_STEPS - 1][1]} more steps, without pictures.", class_="lead"))
    return joined(*parts)
