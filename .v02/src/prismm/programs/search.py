"""The search of a tuner: which level each product gets, by seconds that were measured and errors that were."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from prismm.errors import ArgumentError, PrismmError
from prismm.programs.margins import FACTOR, FEW_FACTOR, upper
from prismm.programs.policy import fingerprint
from prismm.programs.recipe import Recipe
from prismm.programs.trials import Levels, Trial, Trials
from prismm.programs.tuning import Tuned, Tuning

if TYPE_CHECKING:
    from prismm.programs.record import Call

GAIN = 0.98
"""A level serves a site only if it takes at most so much of the time of every more accurate one: times are noisy."""

LEAST, ENOUGH, MOST_RUNS = 0.03, 0.1, 8
"""Each level is timed again for so many seconds at least, longer than another process keeps the processor, and at most;
in between so often at most.
"""

SMALL = 1024
"""So many choices of levels are searched to the end, as far as they are not hopeless."""

Cost = Callable[["Call", Recipe], float]


class Search:
    """Greedy lowering, raising of predecessors, exchanges, and a last word from the inputs held back."""

    def __init__(
        self, bench: Trials, cost: Cost | None, margin: float | None, trials: int, tell: Callable[[str], None]
    ) -> None:
        self.bench, self.cost, self.margin, self.limit, self.tell = bench, cost, margin, trials, tell
        self.sites = bench.sites
        count = len(bench.program.inputs)
        self.count = count if count < 4 else (count + 1) // 2
        self.dropped: dict[str, str] = {}
        self.tried: set[Levels] = set()
        self.times = [[math.inf] * len(ladder) for ladder in bench.ladders]

    def policy(self, full_output: bool) -> Any:
        """Search, and say what was found."""
        base = (0,) * len(self.sites)
        self._first_level(base)
        self._profile()
        best = self._greedy(base)
        best = self._rest(self._exchange(best))
        best, trial = self._held_back(best, base)
        bound = upper(trial.errors, self.margin)
        note = (
            f"tuned by prismm: error at most {bound:.2g} expected on new inputs, {max(trial.errors):.2g} measured, "
            f"tolerance {self.bench.tolerance:g}"
        )
        model = self.bench.program.model
        policy = self.bench.policy(best, model=None if model is None else fingerprint(model), note=note)
        if not full_output:
            return policy
        tuned = tuple(
            Tuned(site.name, recipe, self.times[i][best[i]], self.times[i][0], tuple(sorted(site.sources)))
            for i, (site, recipe) in enumerate(zip(self.sites, self.bench.recipes(best), strict=True))
        )
        seconds = None if self.cost is not None else sum(self.bench.torch_seconds()[0])
        return policy, Tuning(
            policy, tuned, tuple(trial.errors), bound, self.bench.tolerance, len(self.bench.known), self._time(best),
            self._time(base), seconds, self.dropped, tuple(sorted(self.bench.unseen)),
        )  # fmt: skip

    def _first_level(self, base: Levels) -> None:
        count = len(self.bench.program.inputs)
        trial = self.bench.measure(base, count)
        bound = upper(trial.errors, self.margin)
        self.tell(f"first level, {self.bench.ladders[0][0]}: error {max(trial.errors):.3g}, bound {bound:.3g}")
        if len(trial.errors) < count or not bound <= self.bench.tolerance:
            raise ArgumentError(
                f"tolerance {self.bench.tolerance:g} is out of reach: with {self.bench.ladders[0][0]} everywhere the "
                f"error is {max(trial.errors):.3g}, at most {bound:.3g} on new inputs; pass a larger tolerance, or "
                f"levels that begin with 'correctly-rounded' or a wider scheme"
            )

    # Profile: seconds of every site at every level.

    def _profile(self) -> None:
        depth = max(len(ladder) for ladder in self.bench.ladders)
        for level in range(depth):
            levels = tuple(min(level, len(ladder) - 1) for ladder in self.bench.ladders)
            try:
                self._profile_level(level, levels)
            except PrismmError as error:
                names = {str(ladder[level]) for ladder in self.bench.ladders if level < len(ladder)}
                if level == 0:
                    raise
                for name in names:
                    self.dropped[name] = " ".join(str(error).split())
                self.tell(f"{', '.join(sorted(names))} cannot be run here: {error}")
        # A level that is not clearly faster than every more accurate one serves nobody.
        for row in self.times:
            fastest = row[0]
            for level in range(1, len(row)):
                if row[level] <= GAIN * fastest:
                    fastest = row[level]
                else:
                    row[level] = math.inf

    def _profile_level(self, level: int, levels: Levels) -> None:
        trial = self.bench.measure(levels, 1)
        # Short runs are timed several times: what else a machine does may take longer than they do.
        start, runs, gone = time.perf_counter(), 0, 0.0
        while self.cost is None and not trial.failure and gone < (LEAST if runs >= MOST_RUNS else ENOUGH):
            trial = self.bench.again(levels)
            runs, gone = runs + 1, time.perf_counter() - start
        for i, ladder in enumerate(self.bench.ladders):
            if level >= len(ladder):
                continue
            if self.cost is not None:
                self.times[i][level] = sum(self.cost(call, ladder[level]) for call in self.sites[i].calls)
            elif not trial.failure:
                self.times[i][level] = trial.seconds[i]
            else:
                # All at once fail: the site alone may not.
                alone = tuple(level if j == i else 0 for j in range(len(self.sites)))
                one = self.bench.measure(alone, 1)
                self.times[i][level] = math.inf if one.failure else one.seconds[i]
        error = trial.failure or f"error {max(trial.errors):.3g}"
        self.tell(
            f"profile of level {level + 1}: {error}, {sum(row[level] for row in self.times if level < len(row)):.3g} s"
        )

    def _time(self, levels: Levels) -> float:
        return sum(row[level] for row, level in zip(self.times, levels, strict=True))

    def _keeps(self, levels: Levels) -> bool:
        """Whether the inputs of the search stay within the tolerance by the factor; measured."""
        known = levels in self.bench.known
        if not known and len(self.tried) >= self.limit:
            return False
        self.tried.add(levels)
        trial = self.bench.measure(levels, self.count)
        good = self._good(trial)
        self.tell(
            f"trial {len(self.tried)}: {self._words(levels)}: {_outcome(trial)}: {'good' if good else 'too much'}"
        )
        return good

    def _good(self, trial: Trial) -> bool:
        """Whether a trial of the search is good enough to go on from; the last word has `_held_back`."""
        if trial.failure or len(trial.errors) < self.count:
            return False
        factor = self.margin or (FACTOR if len(self.bench.program.inputs) >= 3 else FEW_FACTOR)
        return factor * max(trial.errors[: self.count]) <= self.bench.tolerance

    def _words(self, levels: Levels) -> str:
        changed = [
            f"{site.name} {recipe}"
            for site, recipe, level in zip(self.sites, self.bench.recipes(levels), levels, strict=True)
            if level
        ]
        return f"{self._time(levels):.3g} s, {'; '.join(changed) or 'first level everywhere'}"

    def _lower(self, levels: Levels, site: int) -> Levels | None:
        """The next level of a site that is faster, or None."""
        for level in range(levels[site] + 1, len(self.times[site])):
            if math.isfinite(self.times[site][level]):
                return (*levels[:site], level, *levels[site + 1 :])
        return None

    def _raise(self, levels: Levels, site: int) -> Levels | None:
        """The next more accurate level of a site, or None."""
        for level in range(levels[site] - 1, -1, -1):
            if math.isfinite(self.times[site][level]):
                return (*levels[:site], level, *levels[site + 1 :])
        return None

    def _greedy(self, levels: Levels) -> Levels:
        done: set[int] = set()
        while True:
            order = sorted(
                (i for i in range(len(self.sites)) if i not in done),
                key=lambda i: self.times[i][levels[i]],
                reverse=True,
            )
            for site in order:
                lowered = self._lower(levels, site)
                if lowered is not None:
                    break
                done.add(site)
            else:
                return levels
            found = next((x for x in self._with_predecessors(levels, lowered, site) if self._keeps(x)), None)
            if found is None:
                done.add(site)
            else:
                levels = found

    def _with_predecessors(self, levels: Levels, lowered: Levels, site: int) -> Iterator[Levels]:
        """The site lowered; then with a predecessor that takes less time raised, where that is faster all the same."""
        yield lowered
        cheaper = [
            i
            for i in self.sites[site].sources
            if i != site and self.times[i][levels[i]] < self.times[site][levels[site]]
        ]
        for source in sorted(cheaper, key=lambda i: self.times[i][levels[i]]):
            raised = self._raise(lowered, source)
            if raised is not None and self._time(raised) < self._time(levels):
                yield raised

    def _exchange(self, levels: Levels) -> Levels:
        """One site lower, or one lower and another higher, as long as that is faster."""
        found: Levels | None = levels
        while found is not None:
            levels = found
            ahead = sorted(set(self._neighbours(levels)), key=self._time)
            found = next((x for x in ahead if not self._hopeless(x) and self._keeps(x)), None)
        return levels

    def _rest(self, levels: Levels) -> Levels:
        """Where few choices are left that are faster and not hopeless: those, too, the nearest in time first."""
        if math.prod(len(row) for row in self.times) > SMALL:
            return levels
        every = itertools.product(*([i for i, x in enumerate(row) if math.isfinite(x)] for row in self.times))
        ahead = sorted((x for x in every if self._time(x) < GAIN * self._time(levels)), key=self._time, reverse=True)
        for choice in ahead:
            if self._time(choice) < GAIN * self._time(levels) and not self._hopeless(choice) and self._keeps(choice):
                levels = choice
        return levels

    def _neighbours(self, levels: Levels) -> Iterator[Levels]:
        now = self._time(levels)
        for site in range(len(self.sites)):
            lowered = self._lower(levels, site)
            while lowered is not None:
                yield lowered
                for other in range(len(self.sites)):
                    raised = self._raise(lowered, other) if other != site else None
                    while raised is not None:
                        if self._time(raised) < GAIN * now:
                            yield raised
                        raised = self._raise(raised, other)
                lowered = self._lower(lowered, site)

    def _hopeless(self, levels: Levels) -> bool:
        """Whether a choice at least as accurate everywhere broke the tolerance: such are not run."""
        return any(
            all(x <= y for x, y in zip(trial.levels, levels, strict=True)) and not self._good(trial)
            for trial in self.bench.known.values()
            if trial.failure or len(trial.errors) >= self.count or max(trial.errors, default=0.0) > self.bench.tolerance
        )

    def _held_back(self, best: Levels, base: Levels) -> tuple[Levels, Trial]:
        """The fastest choice that kept the bound and keeps it on all inputs."""
        everything = len(self.bench.program.inputs)
        good = [x.levels for x in self.bench.known.values() if self._good(x)]
        ahead = [best, *sorted((x for x in good if self._time(x) >= self._time(best)), key=self._time), base]
        for levels in ahead:
            trial = self.bench.measure(levels, everything)
            whole = not trial.failure and len(trial.errors) == everything
            if whole and upper(trial.errors, self.margin) <= self.bench.tolerance:
                return levels, trial
            self.tell(f"held-back inputs: {self._words(levels)}: {_outcome(trial)}: too much")
        raise AssertionError("the first level was checked on all inputs before")


def _outcome(trial: Trial) -> str:
    return trial.failure or f"error {max(trial.errors):.3g}"
