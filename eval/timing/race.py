"""Interleaved timing of a candidate against eager (and, in a confirmation, torch.compile), on the judge's clock.

Comes in: a LoadedCandidate, the reference's clock. Goes out: paired seconds, with recipes and outputs of the calls that
will be checked. Order within a pair is random, every call has fresh content, and which calls are kept is a secret.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
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
            taken = min(self.timed_burst(cold=False)[2] for _ in range(self.rule.trial_bursts)) * len(self.burst)
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
        session, timed = self.session, self.reference
        delay_s = 0.0 if with_host else self._delay_s()
        times = Times({name: [] for name in self.variants}, rule=self.rule, delay_s=delay_s)
        clocks, count = Clocks(on_gpu=session.on_gpu), pairs or self._pairs()
        judged = pairs is None
        looks = draw_looks(session, count, in_bursts=bool(self.burst), thorough=self.thorough) if judged else Looks()
        timing = _Timing(self, times, looks, session.random_recipe(), clocks, draws, cold=cold, judged=judged)
        timed.round_trips, self.subject.round_trips = [], []
        with session.device_lock.alone(), timed.on_one_core():
            interleave(times, count, session.rng, before=timing.before, measure=timing.measure, after=timing.ends_after)
            timing.look_last()
        times.mhz = (min(clocks.mhz), max(clocks.mhz)) if clocks.mhz else None
        return times.at_full_speed()

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
                return self.timed_burst(True, delay_s, rounds)[2]
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

    def single(self, recipe: Recipe, cold: bool, delay_s: float) -> tuple[BoundBuffers, Recipe, float]:
        """Time one call of the candidate: its buffers, what they held, and seconds."""
        self.subject.prepare(self.place, recipe, cold=cold, written=True)
        if not delay_s:
            return self.place, recipe, self.subject.call(self.place)
        return self.place, recipe, self.subject.call_all([self.place], self.reference, delay_s=delay_s)

    def timed_burst(
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

    def is_behind(self, times: Times) -> bool:
        """Return whether even the top of the interval so far is below the best candidate of this session."""
        best = self.best_speedup
        return best > 0 and times.speedup("candidate", "eager").high < self.rule.behind * best

    def repeats(self, place: BoundBuffers, recipe: Recipe) -> bool:
        """Return the same bytes as for other content deserve a full check."""
        if "fingerprints" in self.session.limits.without:
            return False
        fingerprint = self.subject.fingerprint(place)
        return self.seen.setdefault(fingerprint, recipe) != recipe


@dataclass
class _Timing:
    """The pairs of one run of a race: their contents, what each call takes, what it leaves, and when there are enough.

    Only of a run that is `judged` outputs are kept to be checked, and only such a run ends by what was seen in it.
    """

    race: Race
    times: Times
    looks: Looks
    recipe: Recipe  # of this pair
    clocks: Clocks
    draws: Sequence[int]  # of which contents are made alone, where there are any
    cold: bool
    judged: bool

    def before(self, number: int) -> None:
        """Lay out the content of a pair."""
        session, in_bursts = self.race.session, bool(self.race.burst)
        taken = self.draws or self.looks.unrelated.get(number, [])
        if taken:
            self.recipe = plain(taken[0], len(session.specs))
        elif not in_bursts and number in self.looks.watched:
            self.recipe = remembered(session, self.race.subject.met)
        else:
            self.recipe = session.random_recipe()
        self.times.fresh.append(bool(taken))
        session.write(self.recipe)

    def measure(self, variant: str) -> float:
        """Return the seconds of a variant's call; on a CPU what it waited for a core is noted."""
        race = self.race
        once = self._candidate if variant == "candidate" else partial(self._reference, variant)
        if race.session.on_gpu:
            return once()
        worker = race.subject.worker if variant == "candidate" else race.session.worker
        before_s = worker.waited_s()
        seconds = once()
        waited_s = worker.waited_s() - before_s - race.rule.wake_s
        self.times.waited.setdefault(variant, []).append(min(1.0, max(0.0, waited_s) / seconds))
        return seconds

    def _reference(self, variant: str) -> float:
        race, delay_s = self.race, self.times.delay_s
        with race.subject.frozen():
            if delay_s and variant == "eager":
                race.reference.ask_for_nothing(delay_s)
            return race.reference.call(variant, cold=self.cold, calls=race.calls, delay_s=delay_s)

    def _candidate(self) -> float:
        race, looks, delay_s = self.race, self.looks, self.times.delay_s
        number, look = len(self.times.orders) - 1, Look("")
        if race.burst:
            look = looks.calls.get(number, [look])[0]
            draws = self.draws or looks.unrelated.get(number, [])
            place, called, seconds = race.timed_burst(self.cold, delay_s, look=look, draws=draws)
        else:
            place, called, seconds = race.single(self.recipe, self.cold, delay_s)
        asked = race.burst or delay_s
        self.times.asking_s.append(race.subject.asking_s / max(1, len(race.burst)) if asked else 0.0)
        repeated = race.repeats(place, called)
        few = race.repeated < race.rule.repeats_rechecked
        race.repeated += repeated
        if self.judged and (number in looks.checked or look.what or (repeated and few)):
            self._keep(Kept(place, called, race.subject.outputs(place, keep=True), look.kind))
        return seconds

    def ends_after(self, number: int) -> bool:
        """Look at what is to be looked at after a pair; return whether there are enough."""
        race, times, rule = self.race, self.times, self.race.rule
        times.slowed.append(self.clocks.slowed())
        for look in self.looks.calls.get(number, []) if not race.burst else []:
            self._look(look)
        is_look = self.judged and number + 1 < rule.pairs and not (number + 1) % rule.few_pairs
        times.stopped_early = is_look and race.is_behind(times)
        enough = self.judged and number + 1 >= rule.pairs
        narrow = enough and all(times.is_narrow("candidate", other) for other in race.variants[:-1])
        return times.stopped_early or narrow

    def look_last(self) -> None:
        """Look at what is left to the end, unless the run ended early."""
        for look in self.looks.last if not self.times.stopped_early else ():
            self._look(look)

    def _look(self, look: Look) -> None:
        """Make one more call that nobody times, which its candidate cannot know: what it left is checked."""
        race = self.race
        recipe = looked_at(race.session, race.subject.met, look, self.recipe)
        if look.what == "halves":
            outputs = race.subject.call_halves(race.place, recipe)
        elif race.session.on_gpu:
            race.single(recipe, self.cold, self.times.delay_s)
            outputs = race.subject.outputs(race.place, keep=True)
        else:
            outputs = race.subject.watched(race.place, recipe)
        self._keep(Kept(race.place, recipe, outputs, look.kind))

    def _keep(self, kept: Kept) -> None:
        """Have outputs checked: after the race, or if they are large at once.

        On a GPU that takes memory which the reference had at hand: it gets some again in calls that nobody times.
        """
        race = self.race
        if race.session.output_bytes <= AT_ONCE_BYTES:
            self.times.kept.append(kept)
        else:
            race.check(kept)
            self.times.checked += 1
        if race.session.on_gpu:
            with race.subject.frozen():
                for variant in race.variants[:-1]:
                    race.reference.call(variant, calls=race.calls)


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
