"""The probe: which model is behind a black box `dot(a, b, c)`?

Guess, ask, guess again. Inputs spread over all thresholds begin; the member of the family that reproduces the answers
(`search`) aims the next inputs, at its own cuts, roundings, blocks and limits; what it then gets wrong corrects it,
until nothing does. Constants follow from what was found so far, so none of them ends at 24 bits or at a block of 16.

Then every property is put to the question: each other value that it could have is either contradicted by an observation
(the simplest is the evidence), or a bank of aimed inputs holds some that tell the two apart and they are asked, or it
is reported as undecided between those values, because no input is known that shows it. The model has to reproduce
100,000 more random and hostile answers. Then a walk from member to member, change by change, among those that
reproduce everything: where one of them would answer otherwise, the black box is asked. Last, for some of the values
that are left, inputs that would tell them from the model are looked for, and for several of them at once, which may
hide each other. Where no member that reproduces everything is found, the nearest one is reported with its
counterexample, and no model.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from prismm.errors import ArgumentError
from prismm.formats import Format, Integer, format_named
from prismm.numerics import family, separation, vectors
from prismm.numerics.probing.evidence import finish
from prismm.numerics.probing.fitting import aimed, brief, fitted
from prismm.numerics.probing.integer_engines import probe_integers
from prismm.numerics.probing.questions import examined, mixed, questioned, refuted
from prismm.numerics.probing.session import Session
from prismm.numerics.probing.walk import wandered

if TYPE_CHECKING:
    from collections.abc import Callable

    from prismm.numerics.finding import Finding
    from prismm.numerics.probing.session import Dot

__all__ = ["probe"]

_FIRST_LENGTHS = (1, 2, 3, 4, 8, 16, 33, 64)
_LONG = (130, 260)
_ENDS = 256
"""Lengths at every one of which the sign of a zero is looked at."""
_TURNS = 12


def probe(
    dot: Dot,
    input: Format | Integer | str,
    output: Format | Integer | str,
    *,
    refutations: int = 100_000,
    seed: int = 0,
    name: str = "probed",
    say: Callable[[str], None] | None = None,
) -> Finding:
    """The model that reproduces a black box, property by property, with the evidence.

    Args:
        dot: takes float64 arrays a, b of shape (n, k), values of the input format, and c of shape (n,), values of the
            output format, for any n and k; returns d = c + Σ a·b of shape (n,), as the engine computes it.
        input, output: formats, or their names.
        refutations: further answers that the model has to reproduce at the end.
        seed: of the random inputs.
        name: of the model.
        say: called with each stage, in a few words.

    Raises:
        ArgumentError: for unknown formats, what is no function, refutations or a seed that are no natural numbers, or
            answers of a wrong shape or type.
        EngineError: if the black box is not deterministic: the same inputs, asked again, alone or elsewhere in a batch,
            give another answer.

    >>> from prismm.numerics import engine, probe
    >>> t4 = engine("t4.fp16.fp32")
    >>> finding = probe(t4.dot, "fp16", "fp32", refutations=2000)
    >>> finding.model.block, finding.model.fraction_bits, finding.model.rounding
    (8, 24, 'zero')
    """
    if not callable(dot):
        raise ArgumentError(f"dot is a {type(dot).__name__}, no function; pass one of a, b and c")
    separation.natural("refutations", refutations)
    separation.natural("seed", seed)
    inputs = format_named(input) if isinstance(input, str) else input
    outputs = format_named(output) if isinstance(output, str) else output
    for which, given in (("input", inputs), ("output", outputs)):
        if not isinstance(given, (Format, Integer)):
            raise ArgumentError(f"{which}={given!r} is no format; pass its name, such as 'fp16'")
    if isinstance(inputs, Integer) != isinstance(outputs, Integer):
        raise ArgumentError("integers give integers and floats give floats; pass input and output of one kind")
    return _run(Session(dot, inputs, outputs, seed, name, say or (lambda text: None)), refutations)


def _run(session: Session, refutations: int) -> Finding:
    """Guess, ask, guess again; then every property for itself; then try to refute."""
    if isinstance(session.inputs, Integer) or isinstance(session.output, Integer):
        assert isinstance(session.inputs, Integer) and isinstance(session.output, Integer)
        return probe_integers(session, session.inputs, session.output, refutations)
    anywhere = vectors.Aim(session.inputs, session.output)
    session.say("asking inputs twice, for answers that change")
    for k in (1, 7, 64):
        session.steady(*session.batch([anywhere], k, 12))
    session.say("asking inputs spread over all thresholds")
    inside = vectors.Aim(session.inputs, session.output, plain=True)
    for k in _FIRST_LENGTHS:
        session.record(*session.batch([anywhere, inside], k, vectors.share(40, k, 3)))
    for k in _LONG:
        session.record(*vectors.structure(inside, k, 48, session.rng))
    for k in range(1, _ENDS + 1):
        a, b, c = vectors.ends(anywhere, k, 8, session.rng)
        session.seen.add(a, b, c, session.ask(a, b, c), searched=False)
    model = fitted(session, family.start(session.inputs, session.output))
    turns = 0
    while model is not None and turns < _TURNS:
        turns += 1
        session.say(f"turn {turns}: asking inputs aimed at {brief(model)}")
        steps = (aimed, functools.partial(refuted, count=refutations), questioned, wandered, examined, mixed)
        if not any(step(session, model) for step in steps):
            return finish(session, model)
        model = fitted(session, model)
    session.asked_again()
    return finish(session, None)
