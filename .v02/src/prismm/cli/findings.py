"""What a probe found, as text and as JSON: a line for every property, and the catalogue entries that are the same."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from prismm.cli.console import columns
from prismm.cli.numerals import hexadecimal, short
from prismm.formats import Format, Integer
from prismm.numerics.parts import BlockScale, LateJoin

if TYPE_CHECKING:
    from prismm.numerics.finding import Evidence, Finding
    from prismm.numerics.model import EngineModel
    from prismm.numerics.observations import Observation

_TERMS = 4  # of an observation in a line of text
_LOOKED = 40_000  # dot products that are looked at before two models count as equal
_NAMES = 8  # of equal engines on a terminal; pages and JSON have all


def value_text(value: Any) -> str:
    """A property's value for people.

    >>> value_text(None), value_text(24), value_text(((0,), (1,)))
    ('none', '24', '{0} {1}')
    """
    if value is None:
        return "none"
    if isinstance(value, (Format, Integer)):
        return value.name or str(value)
    if isinstance(value, LateJoin):
        cutoff = "" if value.cutoff is None else f", cutoff {value.cutoff}"
        return f"late ({value.sum_bits}, {value.accumulator_bits}, {value.total_bits}{cutoff})"
    if isinstance(value, BlockScale):
        return f"{value.format} by {value.length}, {value.summation}"
    if isinstance(value, tuple):
        return " ".join("{" + ",".join(map(str, group)) + "}" for group in value) if value else "none"
    return str(value)


def values_text(values: tuple[Any, ...] | list[Any]) -> str:
    """Several values, runs of integers as ranges.

    >>> values_text((1, 2, 3, 7, "nearest"))
    '1-3, 7, nearest'
    """
    whole = sorted(v for v in values if isinstance(v, int) and not isinstance(v, bool))
    parts: list[str] = []
    start = 0
    for i, value in enumerate(whole):
        if i + 1 == len(whole) or whole[i + 1] != value + 1:
            first = whole[start]
            parts.append(str(first) if first == value else f"{first}{'-' if first >= 0 else ' to '}{value}")
            start = i + 1
    return ", ".join(parts + [value_text(v) for v in values if not isinstance(v, int)])


def observation_text(seen: Observation, terms: int | None = _TERMS) -> str:
    """Products that are not zero with their places, c, and the answer.

    >>> from prismm.numerics.observations import Observation
    >>> observation_text(Observation((1.0, 0.0, 0.5), (1.0, 1.0, 2.0**-12), 2.0, 3.0))
    'a[0]·b[0] = 1·1, a[2]·b[2] = 0.5·2^-12, c = 2 gives 3'
    """
    places = [
        i
        for i, (x, y) in enumerate(zip(seen.a, seen.b, strict=True))
        if (x != 0.0 and y != 0.0) or not (math.isfinite(x) and math.isfinite(y))
    ]
    shown = places if terms is None else places[:terms]
    parts = [f"a[{i}]·b[{i}] = {_factor(seen.a[i])}·{_factor(seen.b[i])}" for i in shown]
    if len(places) > len(shown):
        parts.append(f"{len(places) - len(shown)} more products")
    if not places:
        negative = [i for i, (x, y) in enumerate(zip(seen.a, seen.b, strict=True)) if str(x * y).startswith("-")]
        sort = "product is zero" if len(seen.a) == 1 else f"{len(seen.a)} products are zero"
        parts.append(f"the {sort}" + (f", {len(negative)} of them -0" if negative else ""))
    return f"{', '.join(parts)}, c = {short(seen.c)} gives {short(seen.d)}"


def _factor(value: float) -> str:
    """In parentheses where it is a sum or a product itself."""
    text = short(value)
    return f"({text})" if re.search(r"(?<![\^pe])[-+*]", text[1:]) else text


def simplest(evidence: Evidence) -> tuple[Any, Observation] | None:
    """The refuted value whose observation has the fewest terms; of several, the one nearest to the true one."""
    return min(evidence.refuted, key=lambda item: (item[1].cost, _distance(item[0], evidence.value)), default=None)


def closest(evidence: Evidence) -> tuple[Any, Observation] | None:
    """The refuted value that is nearest to the true one, if it is a number; else the simplest."""
    if not isinstance(evidence.value, int):
        return simplest(evidence)
    return min(evidence.refuted, key=lambda item: (_distance(item[0], evidence.value), item[1].cost), default=None)


def _distance(other: Any, value: Any) -> float:
    return abs(other - value) if isinstance(other, int) and isinstance(value, int) else math.inf


def decided_by(evidence: Evidence) -> str:
    """What decides a property, in a line."""
    best = simplest(evidence)
    parts = []
    if best is not None:
        other, seen = best
        more = len(evidence.refuted) - 1
        nor = f", nor {more} {'other' if more == 1 else 'others'}" if more else ""
        parts.append(f"{observation_text(seen)}: not {value_text(other)}{nor}")
    if evidence.open:
        parts.append(f"undecided: {values_text(evidence.open)} cannot be told apart from it")
    return "; ".join(parts) or "there is no other value beside the rest"


@dataclass(frozen=True)
class Kin:
    """How the catalogue's engines of the same formats compare with what was found.

    Args:
        same: names of the entries whose models are the one found.
        alike: of those that differ in undecided properties alone.
        equal: of those that are described otherwise, though no input found tells them apart; looked for where none is
            the same or alike.
        nearest: of those that differ in the fewest properties, where there are none of these.
        differing: these properties, as {name: (found, the catalogue's)}.
    """

    same: list[str]
    alike: list[str]
    equal: list[str]
    nearest: list[str]
    differing: dict[str, tuple[Any, Any]]


def kin(finding: Finding) -> Kin:
    """The catalogue's entries beside the model that was found."""
    from prismm.numerics import separate
    from prismm.numerics.catalogue import engine, engines

    found = Kin([], [], [], [], {})
    if finding.model is None:
        return found
    others: list[tuple[str, dict[str, tuple[Any, Any]]]] = []
    for name in engines():
        entry = engine(name)
        if (entry.input, entry.output) != (finding.model.input, finding.model.output) or entry.scale is not None:
            continue
        differing = finding.model.differences(entry)
        differing.pop("nan", None)  # the probe sees values, which have no payload
        decided = {key: pair for key, pair in differing.items() if pair[1] not in finding.undecided.get(key, ())}
        if not decided:
            (found.alike if differing else found.same).append(name)
        others.append((name, decided))
    if found.same or found.alike or not others:
        return found
    equal = [name for name, _ in others if not separate(finding.model, engine(name), effort=_LOOKED, short=False)]
    if equal:
        return Kin([], [], equal, [], {})
    _, fewest = min(others, key=lambda item: len(item[1]))
    return Kin([], [], [], [name for name, decided in others if decided == fewest], fewest)


def report(finding: Finding, name: str) -> str:
    """All of it for a terminal."""
    parts: list[str] = []
    model = finding.model
    if model is None:
        nearest = finding.nearest
        formats = "" if nearest is None else f" ({_formats(nearest)})"
        parts.append(f"{name}{formats}: no model of the family reproduces its answers")
        if finding.counterexample is not None:
            parts.append(f"counterexample to the nearest model: {observation_text(finding.counterexample, 12)}")
            parts.append(f"  where the nearest model gives {short(answer(finding))}")
        if nearest is not None:
            rows = [[item, value_text(value)] for item, value in properties(nearest)]
            parts.append(f"nearest model:\n{columns(['property', 'value'], rows, left=('property', 'value'))}")
    else:
        parts.append(f"{name} ({_formats(model)})")
        rows = [[e.name, value_text(e.value), decided_by(e)] for e in finding.evidence]
        parts.append(columns(["property", "value", "decided by"], rows, left=("property", "value", "decided by")))
        undecided = [
            f"  {key}: {values_text((getattr(model, key), *others))}" for key, others in finding.undecided.items()
        ]
        if undecided:
            parts.append("\n".join(["undecided, no input found tells these apart:", *undecided]))
    parts.extend(finding.notes)
    parts.append(counts(finding))
    if model is not None:
        parts.append(known(finding, _NAMES))
        sure = sureness(finding)
        if sure:
            parts.append(sure)
    return "\n\n".join(parts)


def counts(finding: Finding) -> str:
    """How much was asked."""
    reproduced = "all of them reproduced" if finding.model is not None else "not all of them reproduced"
    return (
        f"{finding.observations} answers, {reproduced}; {finding.refutations} of them asked to refute the model; "
        f"{finding.seconds:.1f} s"
    )


def known(finding: Finding, most: int | None = None) -> str:
    """Whether the catalogue has the model, with at most this many names of each kind."""
    found = kin(finding)
    if found.same:
        text = f"the catalogue has this model: {_names(found.same, most)}"
        return text + (f"; and, different in what is undecided, {_names(found.alike, most)}" if found.alike else "")
    if found.alike:
        return f"the catalogue has models that differ in what is undecided alone: {_names(found.alike, most)}"
    if found.equal:
        names = _names(found.equal, most)
        return f"the catalogue describes otherwise what no input found tells from this model: {names}"
    if not found.nearest:
        return "the catalogue has no model of these formats"
    differing = "; ".join(
        f"{key}, which is {value_text(theirs)} there and {value_text(mine)} here"
        for key, (mine, theirs) in found.differing.items()
    )
    return f"the catalogue has no such model; the nearest, {_names(found.nearest, most)}, differs in {differing}"


def sureness(finding: Finding) -> str:
    """How sure the catalogue is of its entries that are this model, a line for each answer; "" without any."""
    from prismm.numerics.catalogue import engine

    told: dict[str, list[str]] = {}
    for name in kin(finding).same:
        told.setdefault(engine(name).certainty, []).append(name)
    return "\n".join(f"how sure that is of {_names(of, _NAMES)}: {certainty}" for certainty, of in told.items())


def _names(names: list[str], most: int | None) -> str:
    more = 0 if most is None else len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def answer(finding: Finding) -> float:
    """What the nearest model makes of the counterexample."""
    seen, nearest = finding.counterexample, finding.nearest
    if seen is None or nearest is None:
        return math.nan
    return float(nearest.dot(list(seen.a), list(seen.b), seen.c))


def _formats(model: EngineModel) -> str:
    return f"{model.input.name} · {model.input.name} + {model.output.name}"


def properties(model: EngineModel) -> list[tuple[str, Any]]:
    """The fields that say how it computes."""
    left_out = ("name", "input", "output", "nan", "scale", "source", "certainty")
    return [(item.name, getattr(model, item.name)) for item in fields(model) if item.name not in left_out]


def as_json(finding: Finding, name: str) -> dict[str, Any]:
    """Everything; exact numbers as hex floats, vectors as [place, a, b] of the products that are not zero."""
    from prismm.numerics.catalogue import engine

    beside = kin(finding)
    return {
        "target": name,
        "in_family": finding.model is not None,
        "model": None if finding.model is None else finding.model.to_dict(),
        "evidence": [
            {
                "property": e.name,
                "value": value_text(e.value),
                "decided": e.decided,
                "refuted": [{"value": value_text(other), "by": _seen(seen)} for other, seen in e.refuted],
                "open": [value_text(other) for other in e.open],
            }
            for e in finding.evidence
        ],
        "undecided": {key: [value_text(v) for v in others] for key, others in finding.undecided.items()},
        "counterexample": None if finding.counterexample is None else _seen(finding.counterexample),
        "nearest": None if finding.nearest is None else finding.nearest.to_dict(),
        "observations": finding.observations,
        "refutations": finding.refutations,
        "seconds": finding.seconds,
        "notes": list(finding.notes),
        "catalogue": beside.same,
        "catalogue_certainty": {name: engine(name).certainty for name in beside.same},
        "catalogue_up_to_undecided": beside.alike,
        "catalogue_equal": beside.equal,
        "catalogue_nearest": beside.nearest,
        "catalogue_differences": {
            key: {"found": value_text(mine), "catalogue": value_text(theirs)}
            for key, (mine, theirs) in beside.differing.items()
        },
    }


def _seen(seen: Observation) -> dict[str, Any]:
    return {
        "k": len(seen.a),
        "products": [
            [i, hexadecimal(float(x)), hexadecimal(float(y))]
            for i, (x, y) in enumerate(zip(seen.a, seen.b, strict=True))
            if x != 0.0 or y != 0.0
        ],
        "c": hexadecimal(seen.c),
        "d": hexadecimal(seen.d),
    }
