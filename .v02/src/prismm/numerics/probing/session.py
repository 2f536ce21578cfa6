"""A probe under way: the black box, what it answered, what the probe may still cost, and inputs to ask it.

Costs are counted in nanoseconds of a slow core, about, not measured, so that a probe is the same everywhere.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from prismm.errors import ArgumentError, EngineError
from prismm.numerics import family, recorded, search, separation, simulate, vectors
from prismm.numerics.finding import Evidence, Finding
from prismm.numerics.observations import Observations, same

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from prismm.formats import Format, Integer
    from prismm.numerics.model import EngineModel

    Array = NDArray[np.float64]
    Dot = Callable[[Array, Array, Array], Array]

__all__ = ["QUICK", "Dot", "Session"]

_AGAIN = 200
"""Answers of each kind that are asked again where no model was found."""
_EFFORT = 30_000_000_000
"""What all searches of a probe may cost."""
_LAST = 7_000_000_000
"""What the searches may cost that come after one that found nothing."""
_WALKS = 1_500_000_000
"""What all walks among the models that reproduce everything may cost."""
_WHOLE = 11_000_000_000
"""What a probe may cost until only the first answers are run on models that may be as good."""
_MIXTURES = 7_000_000_000
"""What may be spent on models with several values that are left."""
_OF_LENGTHS = 6
"""Lengths of the inputs aimed at two models."""
_DRAWN, _ELEMENT = 150_000, 25
"""What drawing inputs of a class and length takes, and an element of them."""
QUICK = 25_000_000
"""What a quick run may take of the answers that a model has to reproduce to be looked at."""
_PASSES = 2_000_000_000
"""What runs of all answers may take, of models that differ in one property; then such runs are quick, too."""
_GLANCE = 4_000_000
"""What a run of the first answers may take, of models that differ in several properties and are reported."""


class Session:
    """One probe under way."""

    def __init__(
        self,
        dot: Dot,
        inputs: Format | Integer,
        output: Format | Integer,
        seed: int,
        name: str,
        say: Callable[[str], None],
    ) -> None:
        import numpy as np

        self.np, self.dot, self.inputs, self.output = np, dot, inputs, output
        self.rng, self.name, self.say = np.random.default_rng(seed), name, say
        self.seen = Observations(inputs, output)
        self.clock = self.seen.clock
        self.whole = search.Effort(_WHOLE, self.clock)
        units = (_EFFORT, _LAST, _PASSES, _WALKS, _MIXTURES, 2 * _MIXTURES)
        self.effort, self.last, self.passes, self.walks, self.mixtures, self.more = (
            search.Effort(some, self.clock).rest() for some in units
        )
        self.alike: list[EngineModel] = []
        self.nearest: EngineModel
        self.asked = 0
        self.began = time.perf_counter()

    def ask(self, a: Array, b: Array, c: Array) -> Array:
        """The black box's answers, checked for shape and type."""
        np = self.np
        answered = self.dot(a.copy(), b.copy(), c.copy())  # which it may write to
        try:
            d = np.asarray(answered)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ArgumentError(
                f"the black box returned a {type(answered).__name__} that NumPy cannot read ({error}); it must return "
                f"float64 numbers of shape {c.shape}"
            ) from error
        if d.shape != c.shape or d.dtype.kind not in "fiu":
            raise ArgumentError(
                f"the black box returned {d.dtype} of shape {d.shape} for c of shape {c.shape}; it must return one "
                "real number for each row of a and b"
            )
        answers: Array = d.astype(np.float64)
        return answers

    def record(self, a: Array, b: Array, c: Array) -> Array:
        """Asked, and kept."""
        d = self.ask(a, b, c)
        self.seen.add(a, b, c, d)
        return d

    def steady(self, a: Array, b: Array, c: Array) -> None:
        """EngineError unless the same inputs give the same answers, in another order and alone."""
        np = self.np
        first = self.ask(a, b, c)
        order = self.rng.permutation(len(c))
        again = np.empty_like(first)
        again[order] = self.ask(a[order].copy(), b[order].copy(), c[order].copy())
        alone = np.array([self.ask(a[i : i + 1], b[i : i + 1], c[i : i + 1])[0] for i in range(min(len(c), 16))])
        bad = ~same(first, again)
        bad[: len(alone)] |= ~same(first[: len(alone)], alone)
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            other = again[i] if not same(first[i], again[i]) else alone[i]
            raise _unsteady(int(bad.sum()), len(c), a[i], b[i], float(c[i]), float(first[i]), float(other))

    def asked_again(self) -> None:
        """EngineError if answers on record change, each asked again alone: some that the nearest model gets wrong, as
        it does those of a black box that changes its mind now and then, and some of all.
        """
        np = self.np
        wrong = self.seen.differing(self.nearest, _AGAIN)
        others = self.rng.permutation(len(self.seen))[:_AGAIN]
        rows = np.unique(np.concatenate([wrong, others])).tolist()
        changed = []
        for a, b, c, d in map(self.seen.row, rows):
            again = self.ask(a[None], b[None], np.array([c]))[0]
            if not same(np.float64(d), again):
                changed.append((a, b, c, d, float(again)))
        if changed:
            raise _unsteady(len(changed), len(rows), *changed[0])

    def batch(
        self, aims: list[vectors.Aim], k: int, each: int, classes: tuple[str, ...] = vectors.CLASSES
    ) -> tuple[Array, Array, Array]:
        """`each` dot products of length k of these classes for every aim."""
        drawn = [vectors.draw(aim, name, k, each, self.rng) for aim in aims for name in classes]
        self.clock.spent += len(drawn) * (_DRAWN + _ELEMENT * k * each)
        a, b, c = (self.np.concatenate(parts) for parts in zip(*drawn, strict=True))
        return a, b, c

    def bank(
        self,
        *models: EngineModel,
        classes: tuple[str, ...] = vectors.CLASSES,
        each: int = 16,
        most: int = _OF_LENGTHS,
    ) -> Observations:
        """Inputs of these classes aimed at these models, of lengths about the ends of their blocks, `most` of them
        where there are several models, and what the first one answers.
        """
        aims, lengths = [vectors.aim_at(*models)], separation.lengths_for(*models)
        if len(models) == 1:
            aims.append(vectors.Aim(self.inputs, self.output, (), (), (), (models[0].block,)))  # type: ignore[arg-type]
            each //= 2
        else:  # a few of the lengths, for there are many pairs of models
            lengths = self.some_of(lengths, most)
            each *= len(vectors.CLASSES) // len(classes)
        found = Observations(self.inputs, self.output, self.clock)
        for k in lengths:
            a, b, c = self.batch(aims, k, vectors.share(each, k, 1), classes)
            found.add(a, b, c, simulate.dot_unchecked(models[0], a, b, c), searched=False)
            self.clock.spent += a.size * (recorded.product_cost(models[0]) + recorded.ELEMENT)
        return found

    def some_of(self, lengths: list[int], most: int = _OF_LENGTHS) -> list[int]:
        """A few of the lengths, at random."""
        return sorted(self.rng.permutation(lengths)[:most].tolist())

    def left(self, model: EngineModel, name: str) -> tuple[int, list[EngineModel]]:
        """How many models have another value of a property, and those of them that no answer is known to refute."""
        others = family.alternatives(model, name)
        return len(others), [other for other in others if not self.contradicted(other, model, name)]

    def contradicted(self, other: EngineModel, model: EngineModel, name: str) -> bool:
        """Whether an answer is known to refute a model that differs from this one, which reproduces all, in a property:
        where runs of all answers have taken long already, only of the first ones.
        """
        if self.passes.left <= 0:
            return self.seen.refute(other, model, (name,), QUICK if self.whole.left > 0 else _GLANCE)
        with self.passes.awake():
            return self.seen.refute(other, model, (name,))

    def told(self, other: EngineModel, bank: Observations) -> bool | None:
        """Whether the bank's answers are right where another model gives others, which is asked; None: nowhere."""
        np = self.np
        rows = bank.differing(other, 4)
        if not rows.size:
            return None
        right = True
        for a, b, c, expected in map(bank.row, rows.tolist()):
            d = self.record(a[None], b[None], np.array([c]))
            right &= bool(same(d, np.array([expected]))[0])
        return right

    def at_a_glance(self, model: EngineModel) -> bool:
        """Whether one of the first answers refutes a model."""
        return self.seen.refute(model, most=_GLANCE)

    def finding(self, model: EngineModel | None, evidence: tuple[Evidence, ...], unkept: int) -> Finding:
        """What was found after so many answers that were not kept."""
        return Finding(
            model=None if model is None else replace(model, name=self.name, source="probed"),
            evidence=evidence,
            undecided={e.name: e.open for e in evidence if e.open},
            counterexample=self.seen.refuting(self.nearest) if model is None else None,
            nearest=self.nearest,
            observations=len(self.seen) + unkept,
            refutations=self.asked + unkept,
            seconds=time.perf_counter() - self.began,
        )


def _unsteady(count: int, of: int, a: Array, b: Array, c: float, first: float, then: float) -> EngineError:
    return EngineError(
        f"the black box is not deterministic: {count} of {of} answers changed when asked again, first {first!r} and "
        f"then {then!r} for a={a.tolist()}, b={b.tolist()}, c={c!r}; a model needs an engine whose answer depends on "
        "a, b and c alone"
    )
