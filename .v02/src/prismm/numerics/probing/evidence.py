"""The evidence for a model that reproduces everything seen: what refutes every other value, and what is open."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from prismm.numerics import family
from prismm.numerics.changes import CHANGES
from prismm.numerics.finding import Evidence, Finding
from prismm.numerics.parts import LateJoin

if TYPE_CHECKING:
    from prismm.numerics.model import EngineModel
    from prismm.numerics.observations import Observation
    from prismm.numerics.probing.session import Session

__all__ = ["finish"]

_ALIKE = 12
"""Models that differ from the one found in several properties, and from no answer, that are reported with it: as long
as each has a value that no other has."""
_OF_CUTS = ("alignment", "carry_bits", "zero_exponent", "product_exponent")
"""Properties that matter only where terms are aligned and bits cut off."""
_COMPANIONS = 200
"""Models of a product at a time that are reported with the one found, at most."""
_LATE_BITS = 41
"""More than the numbers of late joins that are looked at."""
_SIMPLEST = 5_000_000
"""What may be spent on the simplest one of the answers that refute a model, in nanoseconds."""


def finish(session: Session, model: EngineModel | None) -> Finding:
    """The evidence, or the first counterexample to the nearest model."""
    if model is None:
        return session.finding(None, (), 0)
    alike: list[EngineModel] = []
    shown: set[tuple[str, object]] = set()
    canonical = dict.fromkeys(m.canonical() for m in session.alike)
    for other in sorted(canonical, key=lambda m: len(m.differences(model))):
        values = {(name, value) for name, (_, value) in model.differences(other).items()}
        if len(alike) < _ALIKE and not values <= shown and not session.seen.refute(other):
            alike.append(other)
            shown |= values
    alike += _companions(session, model)
    cuts = _cutting(session, model, alike)
    evidence = tuple(_evidence_of(session, model, name, alike, cuts) for name in family.PROPERTIES)
    return session.finding(model.canonical(), evidence, 0)


def _evidence_of(
    session: Session, model: EngineModel, name: str, alike: list[EngineModel], cuts: list[EngineModel]
) -> Evidence:
    """The simplest observation against every other value; values of models that look alike are open, too, and so
    are those of properties that matter only where bits are cut off, which the models of `cuts` do.
    """
    refuted: list[tuple[object, Observation]] = []
    unknown: list[object] = []
    for other in family.alternatives(model, name):
        value, against = getattr(other, name), None
        if session.contradicted(other, model, name):
            against = session.seen.refuting(other, model, (name,), _SIMPLEST)
        if against is None:
            unknown.append(value)
        else:
            refuted.append((value, against))
    mine = getattr(model, name), getattr(model.canonical(), name)
    unknown += [getattr(other, name) for other in alike if getattr(other, name) not in mine]
    if name == "depth":
        unknown += [depth for depth in _depths(session, model) if depth not in mine]
    if name == "join":
        unknown += _late_joins(session, model)
    if name in _OF_CUTS:
        unknown += [value for value in _below(session, cuts, name) if value not in mine]
    shown = tuple((value, against) for value, against in dict(refuted).items() if value not in unknown)
    return Evidence(name, getattr(model, name), shown, tuple(dict.fromkeys(unknown)))


def _companions(session: Session, model: EngineModel) -> list[EngineModel]:
    """Models of a product at a time that no answer is known to refute, summed in every way and, where signs of zero
    are left, with those: what a block loses they may lose in every addition.
    """
    found: list[EngineModel] = []
    for base in (model, *session.left(model, "zeros")[1]):
        depth = None if base.depth is None else base.depth // base.block
        one = family.changed(base, block=1, depth=depth)
        if model.block == 1 or one is None or session.at_a_glance(one):
            continue
        for change in CHANGES["sums"](one):
            other = family.changed(one, **change)
            if len(found) < _COMPANIONS and other is not None and not session.at_a_glance(other):
                found.append(other)
    return found


def _depths(session: Session, model: EngineModel) -> list[int]:
    """Depths that go with other blocks, where no answer is known to refute the two."""
    found = []
    for other in session.left(model, "block")[1]:
        for times in (1, 2, 4):
            depth = times * other.block * max(1, len(other.groups))
            deep = family.changed(other, depth=depth)
            if deep is not None and not session.at_a_glance(deep):
                found.append(depth)
    return list(dict.fromkeys(found))


def _cutting(session: Session, model: EngineModel, alike: list[EngineModel]) -> list[EngineModel]:
    """Models that cut bits off in a way in which this one does not, where no answer is known to refute them: summed
    in every way, with as many bits, the fewest, the most and a number in between; and those that look alike.
    """
    if model.summation == "aligned" and model.fraction_bits is not None:
        return []
    bits = session.left(model, "fraction_bits")[1]
    some = dict.fromkeys((model, bits[0], bits[len(bits) // 2], bits[-1]) if bits else (model,))
    ways = ("aligned", "sequential", "pairwise")
    found = [family.changed(other, summation=way) for other in some for way in ways]
    found = [m for m in found if m is not None and m.fraction_bits is not None and not session.at_a_glance(m)]
    found += [m for m in alike if m.fraction_bits is not None]
    return [m for m in dict.fromkeys(found) if m is not None]


def _below(session: Session, cuts: list[EngineModel], name: str) -> list[object]:
    """Values that a property has in such a model, or may have there."""
    found: dict[object, None] = {getattr(model, name): None for model in cuts}
    for other in (other for model in cuts for other in family.alternatives(model, name)):
        value = getattr(other, name)
        if value not in found and not session.at_a_glance(other):
            found[value] = None
    return list(found)


def _late_joins(session: Session, model: EngineModel) -> list[LateJoin]:
    """Late joins of which two numbers are others, where no answer is known to refute them."""
    mine = model.join
    if not isinstance(mine, LateJoin):
        return []
    found = []
    numbers = range(mine.accumulator_bits, _LATE_BITS)
    for sums, total in itertools.product(numbers, numbers):
        if sums == mine.sum_bits or total == mine.total_bits:
            continue
        join = LateJoin(sums, mine.accumulator_bits, total, mine.cutoff)
        other = family.changed(model, join=join)
        if other is not None and not session.at_a_glance(other):
            found.append(join)
    return found
