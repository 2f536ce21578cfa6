"""The probe of an integer engine: sums that wrap, or that are clamped every so many products."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from prismm.numerics import integers, simulate
from prismm.numerics.finding import Evidence, Finding
from prismm.numerics.observations import same

if TYPE_CHECKING:
    from prismm.formats import Integer
    from prismm.numerics.probing.session import Session

__all__ = ["probe_integers"]

_LENGTHS = (1, 2, 3, 4, 8, 16, 17, 32, 33, 64, 65, 128, 300)
_EVIDENCE = 4_000


def probe_integers(session: Session, inputs: Integer, output: Integer, refutations: int) -> Finding:
    """Sums that wrap, or that are clamped every so many products."""
    for k in (1, 3, 8, 40):
        session.steady(*integers.draw(inputs, output, k, 100, session.rng))
    left = integers.candidates(inputs, output, session.name)
    asked, lengths = 0, itertools.cycle(_LENGTHS)
    while left and (len(session.seen) < _EVIDENCE or asked < refutations):
        a, b, c = integers.draw(inputs, output, next(lengths), 200, session.rng)
        d = session.ask(a, b, c)
        session.nearest = left[0]
        left = [m for m in left if bool(same(simulate.dot(m, a, b, c), d).all())]
        if not left or len(session.seen) < _EVIDENCE:
            session.seen.add(a, b, c, d)
        else:
            asked += len(d)
    if not left:
        session.asked_again()
        return session.finding(None, (), asked)
    model = session.nearest = left[0]
    others = [m for m in integers.candidates(inputs, output, session.name) if m != model]
    clamped = [m for m in others if m.overflow != model.overflow][:1]
    deeper = [m for m in others if m.overflow == model.overflow]
    evidence = []
    for name, against in (("overflow", clamped), ("depth", deeper)):
        answers = [(getattr(m, name), session.seen.refuting(m)) for m in against]
        refuted = tuple((value, answer) for value, answer in answers if answer is not None)
        unknown = tuple(value for value, answer in answers if answer is None)
        evidence.append(Evidence(name, getattr(model, name), refuted, unknown))
    return session.finding(model, tuple(evidence), asked)
