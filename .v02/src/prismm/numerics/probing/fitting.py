"""The model that reproduces what was seen, and inputs aimed at its thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.numerics import search, separation, simulate, vectors
from prismm.numerics.observations import same

if TYPE_CHECKING:
    from prismm.numerics.model import EngineModel
    from prismm.numerics.probing.session import Session

__all__ = ["aimed", "brief", "fitted"]

_SHARE = 0.75
"""What the next of the last searches takes of what they may cost."""


def aimed(session: Session, model: EngineModel) -> int:
    """Inputs at the thresholds of the model are asked and kept; how many answers it gets wrong."""
    wrong = 0
    for k in separation.lengths_for(model):
        a, b, c = session.batch([vectors.aim_at(model)], k, vectors.share(40, k, 2))
        d = session.record(a, b, c)
        wrong += int((~same(simulate.dot_unchecked(model, a, b, c), d)).sum())
    session.say(f"{wrong} answers differ")
    return wrong


def fitted(session: Session, model: EngineModel) -> EngineModel | None:
    """A model that reproduces everything seen; the best one is kept as `nearest`, in any case."""
    with session.effort.awake() as effort:
        session.nearest, mismatches = search.fit(model, session.seen, session.rng, session.say, effort)
    session.say(f"mismatches {mismatches:.4f}: {brief(session.nearest)}")
    if mismatches > 0.0:
        beginnings = session.nearest, model
        with session.last.awake():
            session.nearest, mismatches = search.rescued(
                beginnings, session.seen, session.rng, session.last.part(_SHARE)
            )
        session.say(f"mismatches {mismatches:.4f} after rare changes: {brief(session.nearest)}")
    return session.nearest if mismatches == 0.0 else None


def brief(model: EngineModel) -> str:
    """A model in a few words."""
    bits = "all" if model.fraction_bits is None else model.fraction_bits
    return f"block {model.block}, {model.summation}, {bits} bits, {model.rounding}, {model.join}"
