"""A walk from model to model, change by change, among those that reproduce everything seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.numerics import family
from prismm.numerics.changes import CHANGES
from prismm.numerics.probing.session import QUICK

if TYPE_CHECKING:
    from prismm.numerics.model import EngineModel
    from prismm.numerics.probing.session import Session

__all__ = ["wandered"]

_STEPS = 250
"""Groups of changes that a walk looks at."""
_OF_GROUP = 6
"""Changes of each group."""
_TAKEN = 60
"""Steps to another model, at most."""
_ROAD = 10
"""Steps after which it begins again."""
_KINDS = 12
"""Models, different from the first one in different properties, at which inputs are aimed, at most."""


def wandered(session: Session, model: EngineModel) -> bool:
    """A walk among models that reproduce everything, change by change: where one of them would answer otherwise
    than the model, the black box is asked; whether the model got an answer wrong.

    Changes that hide each other from all that was seen are found in this way, one after the other. Those models
    that no input is known to tell from this one are kept as `alike`.
    """
    with session.walks.awake():
        return _walked(session, model)


def _walked(session: Session, model: EngineModel) -> bool:
    """See `wandered`."""
    session.alike = []
    names, bank = list(CHANGES), session.bank(model)
    walker, taken, met = model, 0, {model}
    kinds: set[tuple[str, ...]] = set()
    for _ in range(_STEPS):
        if session.walks.left <= 0:
            break
        changes = list(CHANGES[names[int(session.rng.integers(len(names)))]](walker))
        for i in session.rng.permutation(len(changes))[:_OF_GROUP]:
            other = family.changed(walker, **changes[int(i)])
            if other is None or other in met:
                continue
            differing = tuple(name for name in family.PROPERTIES if getattr(other, name) != getattr(model, name))
            if session.seen.refute(other, model, differing, QUICK):
                continue
            met.add(other)
            taken += 1
            right = session.told(other, bank)
            if right is None and differing not in kinds and len(kinds) < _KINDS:
                kinds.add(differing)
                right = session.told(other, session.bank(model, other))
            if right is False:
                return True
            if right is None:
                session.alike.append(other)
                walker = other if taken % _ROAD else model
            if taken == _TAKEN:
                return False
    return False
