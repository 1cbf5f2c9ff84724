"""Interleaved timing of a candidate against eager (and, in a confirmation, torch.compile), on the judge's clock.

Comes in: a LoadedCandidate, the reference's clock. Goes out: paired seconds, with recipes and outputs of the calls that
will be checked. Order within a pair is random, every call has fresh content, and which calls are kept is a secret.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from rag_kernels.eval.buffers.call_content import Recipe, plain
from rag_kernels.eval.buffers.output_snapshot import OutputSnapshot
from rag_kernels.eval.machine.throttling import Clocks
from rag_kernels.eval.records import Ratio
from rag_kernels.eval.sessions.candidate_buffers import BoundBuffers
from rag_kernels.eval.sessions.candidate_session import LoadedCandidate
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.sessions.reference_times import ReferenceTimes
from rag_kernels.eval.timing.looks import Look, Looks, draw_looks, looked_at, remembered
from rag_kernels.eval.timing.paired_ratio import Paired, interleave, pairs_for

AT_ONCE_BYTES = 1 << 30  # outputs of more are not kept until the race is over


@dataclass(frozen=True, slots=True)
class Kept:
    """What one call in a race left. `kind`: of special values, where some are among its content."""

    place: BoundBuffers
    recipe: Recipe
    outputs: OutputSnapshot
    kind: str = ""


@dataclass
class Times(Paired):
    """Of these variants one is `candidate`."""

    kept: list[Kept] = field(default_factory=list)  # outputs to be checked after it
    fresh: list[bool] = field(default_factory=list)  # pairs whose content shares nothing with that of others
    checked: int = 0  # outputs that were too large to be kept
    slowed: list[bool] = field(default_factory=list)  # pairs in which the device was throttled
    mhz: tuple[int, int] | None = None  # the least and the greatest clock of a GPU's multiprocessors
    waited: dict[str, list[float]] = field(default_factory=dict)  # CPU: by variant, shares of its times without a core
    asking_s: list[float] = field(default_factory=list)  # subtracted from each time of the candidate, for asking
    stopped_early: bool = False
    delay_s: float = 0.0  # GPU: behind which the calls were queued

    def at_full_speed(self) -> Times:
        """Leave out the throttled pairs, on all sides; unchanged where they are more than half."""
        if not any(self.slowed) or self.is_throttled:
            return self
        kept = [i for i, slowed in enumerate(self.slowed) if not slowed]
        seconds = {name: [taken[i] for i in kept] for name, taken in self.seconds.items()}
        fresh = [self.fresh[i] for i in kept] if self.fresh else []
        asking = [self.asking_s[i] for i in kept] if self.asking_s else []
        return replace(self, seconds=seconds, orders=[self.orders[i] for i in kept], fresh=fresh, asking_s=asking)

    @property
    def waiting(self) -> float:
        """Return the share of its time that either side, if it is worse, waited for a core: 0 where pairs are few."""
        many = [shares for shares in self.waited.values() if len(shares) >= 2 * self.rule.min_half]
        return max(map(statistics.median, many), default=0.0)

    def charged(self) -> Times:
        """Return the candidate's times with all that was subtracted for asking beyond `most_asking` of each.

        They are never below the device's: a kernel that is faster by these is faster.
        """
        whole = [taken + asking for taken, asking in zip(self.seconds["candidate"], self.asking_s, strict=True)]
        charged = [w - min(a, self.rule.most_asking * w) for w, a in zip(whole, self.asking_s, strict=True)]
        return replace(self, seconds=self.seconds | {"candidate": charged})

    @property
    def is_throttled(self) -> bool:
        """Whether so many pairs were throttled that none could be left out."""
        return sum(self.slowed) > self.rule.throttled * len(self.slowed)


def _leave(kept: Kept) -> None:
    """Leave large outputs unchecked."""


class Race:
    """One candidate against the reference's variants on the same content."""

    def __init__(
        self,
        subject: LoadedCandidate,
        place: BoundBuffers,
        reference: ReferenceTimes,
        variants: Sequence[str],
        check: Callable[[Kept], None] = _leave,
        *,
        best_speedup: float = 0.0,
        thorough: bool = False,
    ) -> None:
        self.subject, self.place, self.session, self.check = subject, place, place.session, check
        self.reference, self.best_speedup, self.thorough = reference, best_speedup, thorough
        self.rule = self.session.limits.timing
        self.variants = [*variants, "candidate"]
        self.seen: dict[bytes, Recipe] = {}
        self.repeated = 0
        self.burst: list[BoundBuffers] = []
        self.first_s = self._first_s()  # without what asking for it takes
        with self.subject.frozen():
            eager_s = self.reference.eager_estimate_s()
        wanted = self.reference.calls_for(min(self.first_s, eager_s))
        mine = min(
            wanted, max(1, int(self.rule.candidate_burst_s / self.first_s))
        )  # fewer of a candidate that is very slow
        self.burst = self._places(mine) if mine > 1 else []
        if len(self.burst) == self.rule.burst_calls:
            self.burst += self._places(self._missing())
        self.calls = wanted if mine < wanted else max(1, len(self.burst))  # of the reference

    def _first_s(self) -> float:
        """Return about what a call of the candidate takes."""
        self.session.write(recipe := self.session.random_recipe())
        taken = []
        with self.session.device_lock.alone():
            for _ in range(self.rule.first_calls):
                self.subject.prepare(self.place, recipe)
                taken.append(self.subject.call(self.place))
        return max(min(taken) - self.rule.asking_s * self.session.on_gpu, self.rule.least_s)

    def _places(self, wanted: int) -> list[BoundBuffers]:
        """Return buffers of their own for each call of a burst: their contents differ, as those of single calls do."""
        places: list[BoundBuffers] = []
        end = perf_counter() + self.rule.bind_s
        while len(places) < wanted and (len(places) < self.rule.least_burst or perf_counter() < end):
            places.append(self.subject.bind(self.session, beside=next(iter([*self.burst, *places]), None)))
        return places

    def _missing(self) -> int:
        """Return how many calls a burst of the most short ones needs beside them.

        For asking to take little of its time.
        """
        with self.session.device_lock.alone():
            taken = min(self._burst(cold=False)[2] for _ in range(self.rule.trial_bursts)) * len(self.burst)
        share = statistics.median(self.subject.round_trips) / max(taken, self.rule.least_s)
        wanted = math.ceil(len(self.burst) * share / self.rule.aimed_asking)
        room = self.rule.burst_bytes // (self.session.content_bytes + self.session.output_bytes)
        return min(wanted, self.rule.most_burst, room) - len(self.burst)

    def run(
        self, *, cold: bool = True, pairs: int | None = None, with_host: bool = False, draws: Sequence[int] = ()
    ) -> Times:
        """Time pairs; a clearly slow candidate, or one behind the best so far, gets few.

        Others get `rule.pairs` of them, and more until their intervals are narrow. Where these lie has no part in it: a
        run that ended once it looked good would make wins. Of a given number of `pairs` no output is checked. On a GPU
        the device's time is told, or `with_host` what a program sees that calls and waits: no delay, the judge's clock.
        With `draws` contents are these alone.
        """
        session, timed, rule = self.session, self.reference, self.rule
        delay_s = 0.0 if with_host else self._delay_s()
        times = Times({name: [] for name in self.variants}, rule=rule, delay_s=delay_s)
        clocks = Clocks(on_gpu=session.on_gpu)
        count = pairs or self._pairs()
        in_bursts = bool(self.burst)
        looks = draw_looks(session, count, in_bursts=in_bursts, thorough=self.thorough) if pairs is None else Looks()
        watched = set() if in_bursts else looks.watched
        recipe = session.random_recipe()
        timed.round_trips, self.subject.round_trips = [], []

        def before(number: int) -> None:
            nonlocal recipe
            taken = draws or looks.unrelated.get(number, [])
            if taken:
                recipe = plain(taken[0], len(session.specs))
            else:
                recipe = remembered(session, self.subject.met) if number in watched else session.random_recipe()
            times.fresh.append(bool(taken))
            session.write(recipe)

        def measure(variant: str) -> float:
            worker = session.worker if variant != "candidate" else self.subject.worker
            before_s = 0.0 if session.on_gpu else worker.waited_s()
            seconds = once(variant)
            if not session.on_gpu:
                waited_s = worker.waited_s() - before_s - rule.wake_s
                times.waited.setdefault(variant, []).append(min(1.0, max(0.0, waited_s) / seconds))
            return seconds

        def once(variant: str) -> float:
            if variant != "candidate":
                with self.subject.frozen():
                    if delay_s and variant == "eager":
                        timed.ask_for_nothing(delay_s)
                    return timed.call(variant, cold=cold, calls=self.calls, delay_s=delay_s)
            number, look = len(times.orders) - 1, Look("")
            if self.burst:
                look = looks.calls.get(number, [look])[0]
                place, called, seconds = self._burst(
                    cold, delay_s, look=look, draws=draws or looks.unrelated.get(number, [])
                )
            else:
                place, called, seconds = self._single(recipe, cold, delay_s)
            times.asking_s.append(self.subject.asking_s / max(1, len(self.burst)) if self.burst or delay_s else 0.0)
            repeated = self._repeats(place, called)
            few = self.repeated < rule.repeats_rechecked
            self.repeated += repeated
            if pairs is None and (number in looks.checked or look.what or (repeated and few)):
                self._keep(times, Kept(place, called, self.subject.outputs(place, keep=True), look.kind))
            return seconds

        def after(number: int) -> bool:
            times.slowed.append(clocks.slowed())
            for look in looks.calls.get(number, []) if not in_bursts else []:
                self._look(times, look, recipe, cold, delay_s)
            is_look = pairs is None and number + 1 < rule.pairs and not (number + 1) % rule.few_pairs
            times.stopped_early = is_look and self._is_behind(times)
            enough = pairs is None and number + 1 >= rule.pairs
            narrow = enough and all(times.is_narrow("candidate", other) for other in self.variants[:-1])
            return times.stopped_early or narrow

        with session.device_lock.alone(), timed.on_one_core():
            interleave(times, count, session.rng, before=before, measure=measure, after=after)
            for look in looks.last if not times.stopped_early else ():
                self._look(times, look, recipe, cold, delay_s)
        times.mhz = (min(clocks.mhz), max(clocks.mhz)) if clocks.mhz else None
        return times.at_full_speed()

    def _look(self, times: Times, look: Look, recipe: Recipe, cold: bool, delay_s: float) -> None:
        """Make one more call that nobody times, which its candidate cannot know: what it left is checked."""
        recipe = looked_at(self.session, self.subject.met, look, recipe)
        if look.what == "halves":
            outputs = self.subject.call_halves(self.place, recipe)
        elif self.session.on_gpu:
            self._single(recipe, cold, delay_s)
            outputs = self.subject.outputs(self.place, keep=True)
        else:
            outputs = self.subject.watched(self.place, recipe)
        self._keep(times, Kept(self.place, recipe, outputs, look.kind))

    def asking(self, times: Times) -> float:
        """Return what asking for a burst takes as a share of the shorter side's burst; 0 for single calls.

        Of the reference it counts only where its times are not events': these know nothing of asking.
        """
        calls = {"eager": 1 if times.delay_s else self.calls, "candidate": len(self.burst)}
        bursts = [n * statistics.median(times.seconds[name]) for name, n in calls.items() if n > 1]
        trips = self.reference.round_trips
        return statistics.median(trips) / min(bursts) if bursts and trips else 0.0

    def is_settled(self, times: Times) -> bool:
        """Return whether a race whose bursts were too short comes out no worse in longer ones.

        The buffers of a burst are called several times over there, in further pairs, so that asking takes little of it.
        A kernel may find its earlier answer in them: such times are never told, and decide only that those of the
        race, where every call had content of its own, do not rest on what asking took. On a GPU the reference's times
        are events', which know nothing of asking.
        """
        session, timed, rule = self.session, self.reference, self.rule
        rounds = min(math.ceil(self.asking(times) / rule.aimed_asking), rule.most_burst // max(1, len(self.burst)))
        if not self.burst or rounds < 2 or not times.delay_s:
            return False
        delay_s = min(rounds * times.delay_s, rule.most_delay_s)
        longer = Times({"eager": [], "candidate": []}, rule=rule, delay_s=delay_s)

        def measure(variant: str) -> float:
            if variant == "candidate":
                return self._burst(True, delay_s, rounds)[2]
            with self.subject.frozen():
                timed.ask_for_nothing(delay_s)
                return timed.call("eager", cold=True, calls=self.calls, delay_s=delay_s)

        with session.device_lock.alone(), timed.on_one_core():
            interleave(
                longer,
                rule.warm_pairs,
                session.rng,
                before=lambda _: session.write(session.random_recipe()),
                measure=measure,
            )
        trips_s = statistics.median(timed.round_trips)  # of both races: one noisy trip bars nothing
        burst_s = rounds * len(self.burst) * statistics.median(longer.seconds["candidate"])
        agrees = longer.speedup("candidate", "eager").high >= times.speedup("candidate", "eager").low
        return agrees and trips_s <= rule.most_asking * burst_s

    def _keep(self, times: Times, kept: Kept) -> None:
        """Have outputs checked: after the race, or if they are large at once.

        On a GPU that takes memory which the reference had at hand: it gets some again in calls that nobody times.
        """
        if self.session.output_bytes <= AT_ONCE_BYTES:
            times.kept.append(kept)
        else:
            self.check(kept)
            times.checked += 1
        if self.session.on_gpu:
            with self.subject.frozen():
                for variant in self.variants[:-1]:
                    self.reference.call(variant, calls=self.calls)

    def _delay_s(self) -> float:
        """Return the delay of this race (GPU), after a call of each variant that says how long the host needs for it.

        A candidate that launches through Python may need longer than the reference: as long as its calls took.
        """
        session, timed, rule = self.session, self.reference, self.rule
        if not session.on_gpu:
            return 0.0
        session.write(session.random_recipe())
        with session.device_lock.alone(), self.subject.frozen():
            for variant in self.variants[:-1] * rule.delay_calls:
                timed.call(variant, calls=self.calls)
        least = 0.0 if self.subject.candidate.tier == "kernel" else max(1, len(self.burst)) * self.first_s
        return min(max(timed.delay_s(self.calls), least), rule.most_delay_s)

    def _single(self, recipe: Recipe, cold: bool, delay_s: float) -> tuple[BoundBuffers, Recipe, float]:
        self.subject.prepare(self.place, recipe, cold=cold, written=True)
        if not delay_s:
            return self.place, recipe, self.subject.call(self.place)
        return self.place, recipe, self.subject.call_all([self.place], self.reference, delay_s=delay_s)

    def _burst(
        self,
        cold: bool,
        delay_s: float = 0.0,
        rounds: int = 1,
        *,
        look: Look | None = None,
        draws: Sequence[int] = (),
    ) -> tuple[BoundBuffers, Recipe, float]:
        """Time very short kernels on a GPU: seconds a call of several in a row.

        One, chosen in secret, may be checked.

        With `draws` all contents come from these; that of the chosen call may be what there is to `look` at.
        """
        chosen = self.session.rng.randrange(len(self.burst))
        recipes = [self.session.random_recipe(draws) for _ in self.burst]
        if look is not None and look.what:
            recipes[chosen] = looked_at(self.session, self.subject.met, look, recipes[chosen - 1])
        if self.subject.is_module:
            recipes = self.session.with_parameters_of(recipes[0], recipes)
        self.subject.prepare_all(self.burst, recipes, cold=cold)
        order = [place for _ in range(rounds) for place in self.session.rng.sample(self.burst, len(self.burst))]
        seconds = self.subject.call_all(order, self.reference, delay_s=delay_s)
        return self.burst[chosen], recipes[chosen], seconds / len(order)

    def _pairs(self) -> int:
        """Return the number of pairs: it follows from the reference's time, but a clearly slow candidate gets few."""
        eager_s = self.reference.eager_estimate_s()
        if self.first_s > self.rule.slow_factor * eager_s:
            return self.rule.few_pairs
        return pairs_for(2 * self.calls * eager_s, self.rule)

    def _is_behind(self, times: Times) -> bool:
        """Return whether even the top of the interval so far is below the best candidate of this session."""
        best = self.best_speedup
        return best > 0 and times.speedup("candidate", "eager").high < self.rule.behind * best

    def _repeats(self, place: BoundBuffers, recipe: Recipe) -> bool:
        """Return the same bytes as for other content deserve a full check."""
        if "fingerprints" in self.session.limits.without:
            return False
        fingerprint = self.subject.fingerprint(place)
        return self.seen.setdefault(fingerprint, recipe) != recipe


def order_matters(times: Times) -> str:
    """Swap check: a sentence where the speed-up depends on who runs first in a pair, beyond both intervals; or ""."""
    before, *rest = times.by_order("candidate", "eager")
    if all(before.low <= after.high and after.low <= before.high for after in rest):
        return ""
    return f"the speed-up depends on the order within a pair: {before.median:.2f} first, {rest[0].median:.2f} second"


def self_check(session: ProblemSession, reference: ReferenceTimes, pairs: int) -> Ratio:
    """Return eager against itself, in pairs: the ratio's interval holds 1 on a machine that is quiet enough."""
    with session.device_lock.alone():
        times = interleave(
            Paired({"one": [], "other": []}, rule=session.limits.timing),
            pairs,
            session.rng,
            before=lambda _: session.write(session.random_recipe()),
            measure=lambda _: reference.call("eager"),
        )
    return times.speedup("one", "other")
