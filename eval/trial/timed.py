"""How fast is a candidate that was right: its race, whether times are worth anything, and what is told of them.

Comes in: the Checks of a loaded candidate, and what its problem knows. Goes out: a `Timed`, its `Measurement`, and
labels and notes on what was seen beside the times. By which numbers: `eval/timing_rule.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rag_kernels.eval.records import SLOWER, SLOWER_ELSEWHERE, UNRELATED, Measurement, Ratio
from rag_kernels.eval.sessions.problem_knowledge import ProblemKnowledge
from rag_kernels.eval.timing.baseline import Baseline
from rag_kernels.eval.timing.looks import draw_ahead
from rag_kernels.eval.timing.paired_ratio import median_us, product
from rag_kernels.eval.timing.race import Kept, Race, Times, order_matters, self_check
from rag_kernels.eval.trial.activity_checks import done_means_done, nothing_beside
from rag_kernels.eval.trial.checks import Checks
from rag_kernels.eval.trial.recurrence import depends_on_recurrence, needs_no_recurrence

PAIRS_KEPT = 100  # of a measurement, so that an archive of many stays small


@dataclass(frozen=True, slots=True)
class Timed:
    """Times of one race, `cold` or not; in a confirmation `warm` ones too, and on a GPU those that the `host` sees.

    `peak_bytes`: what its calls took at most, where something tells.
    """

    times: Times
    cold: bool
    warm: Times | None
    host: Times | None
    peak_bytes: int | None


class Timing:
    """The timing of one candidate; `checks` look at what its calls in races left."""

    def __init__(self, known: ProblemKnowledge, checks: Checks, *, thorough: bool) -> None:
        self.known, self.session, self.rule = known, known.session, known.session.limits.timing
        self.subject, self.place, self.checks = checks.subject, checks.place, checks
        self.found, self.without = checks.found, checks.without
        self.thorough = thorough
        # Confirmed times are cold ones. On a CPU emptying the caches takes longer than most calls.
        self.cold = self.session.on_gpu or thorough

    def run(self, baseline: Baseline | None) -> Timed:
        """Race against eager and, where no baseline is known, the others; check what was kept of it."""
        reference = self.known.times
        variants = ["eager", *(reference.variants if baseline is None else [])]
        best = self.known.leader.speedup
        draw_ahead(self.session)
        with self.session.device_lock.alone():  # one turn for all: who waits for one lets the device stand idle
            race = Race(
                self.subject, self.place, reference, variants, self._check, best_speedup=best, thorough=self.thorough
            )
            timed = self._raced(race)
        times = timed.times
        for kept in times.kept:
            self._check(kept)
        nothing_beside(self.checks, self._look_again)
        self.checks.rounding()
        if "rechecks" not in self.without:
            self.found.checks.append(f"{len(times.kept) + times.checked} timed calls")
        self._recurrence(race, times)
        if self.thorough and not self.without & {"unrelated content", "fresh content"}:
            self._elsewhere(race)
        if order := order_matters(times):
            self.found.notes.append(order)
        return timed

    def _look_again(self, times: int) -> None:
        """Look closely at so many calls more, between eager's as in a race."""
        session, subject = self.session, self.subject
        with session.device_lock.alone(), self.known.times.on_one_core():
            for _ in range(times):
                session.write(recipe := session.random_recipe())
                with subject.frozen():
                    self.known.times.call("eager", cold=self.cold)
                subject.watched(self.place, recipe)

    def _raced(self, race: Race) -> Timed:
        """Run the race, again where the machine was not quiet, and those for second figures."""
        self.subject.worker.forget_peak()
        times = race.run(cold=self.cold)
        peak_bytes = self.subject.peak_since()
        if self.thorough and not self._is_quiet():
            times = race.run(cold=self.cold)
            if not self._is_quiet():
                self.found.label("noisy machine")
        self._clocks(times)
        done_means_done(self.checks)
        if race.calls > 1:
            self.found.label("burst-timed")
        short = race.asking(times) > self.rule.most_asking
        if short and times.speedup("candidate", "eager").high > 1 and not race.is_settled(times):
            asking = f"asking for {len(race.burst)} calls takes {race.asking(times):.0%} as long as they do"
            times = times.charged()
            self.found.notes.append(f"{asking}: what is more than {self.rule.most_asking:.0%} is told as theirs")
        warm = host = None
        if self.thorough:
            warm = race.run(cold=False, pairs=self.rule.warm_pairs)
            if self.session.on_gpu:
                host = self._seen_by_a_program(times, race)
        return Timed(times, self.cold, warm, host, peak_bytes)

    def _check(self, kept: Kept) -> None:
        if "rechecks" not in self.without:
            self.checks.compare_kept(kept)

    def _recurrence(self, race: Race, times: Times) -> None:
        """Label a candidate that is slower, in two races, on contents that share nothing with earlier ones."""
        if needs_no_recurrence(times):
            self.found.checks.append(UNRELATED)
        if depends_on_recurrence(times):
            self.session.forget_fresh()  # those of the first race have come once
            if recurrence := depends_on_recurrence(race.run(cold=self.cold)):
                self.found.label(SLOWER)
                self.found.notes.append(recurrence)

    def _elsewhere(self, race: Race) -> None:
        """Label a candidate that is much slower on contents that the problem does not draw, in all races of several.

        Least times of all count, which other programs disturb less than others; eager's can only excuse it.
        """

        def least(draws: Sequence[int]) -> tuple[float, float]:
            seconds = race.run(cold=False, pairs=self.rule.elsewhere_pairs, draws=draws).seconds
            return min(seconds["candidate"]), min(seconds["eager"])

        for kind, draw, most in self.session.specials.elsewhere:
            own, there = [(math.inf, math.inf)], [(math.inf, math.inf)]
            for _ in range(self.rule.elsewhere_races):
                own.append(least([]))
                there.append(least([draw]))
                mine, eager = (
                    min(b) / min(a) for a, b in zip(zip(*own, strict=True), zip(*there, strict=True), strict=True)
                )
                if mine / max(1.0, eager) <= most:
                    break
            else:
                self.found.label(SLOWER_ELSEWHERE)
                self.found.notes.append(f"{mine / max(1.0, eager):.2f} times as slow on inputs of the kind `{kind}`")
        self.found.checks.append("times on other contents")

    def _seen_by_a_program(self, times: Times, race: Race) -> Times:
        """Return times that a program sees that calls and waits; label a kernel for which it waits much longer than the
        device worked, in all races of several: it works where the clock does not look.

        Launching takes as long where other programs have the cores, which comes in stretches.
        """
        device_us = median_us(times.seconds["candidate"])
        most_us = self.rule.outside_factor * device_us + self.rule.outside_us
        found: list[tuple[float, Times]] = []
        while len(found) < (self.rule.elsewhere_races if self.subject.candidate.tier == "kernel" else 1):
            host = race.run(cold=True, pairs=self.rule.warm_pairs, with_host=True)
            found.append((median_us(host.seconds["candidate"]), host))
            if found[-1][0] <= most_us:
                return host
        seen_us, host = min(found, key=lambda one: one[0])
        if self.subject.candidate.tier == "kernel":
            self.found.label("suspicious: works outside its time")
            note = f"a program waits {seen_us:.1f} us for a call of which the device takes {device_us:.1f}"
            self.found.notes.append(note)
        return host

    def _clocks(self, times: Times) -> None:
        """Record what the device's clocks did meanwhile."""
        if any(times.slowed):
            left_out = "none could be left out" if times.is_throttled else "left out"
            self.found.notes.append(f"throttled in {sum(times.slowed)} of {len(times.slowed)} pairs: {left_out}")
        if times.is_throttled:
            self.found.label("noisy machine")
        if times.waiting > self.rule.busy:
            self.found.label("noisy machine")
            self.found.notes.append(
                f"other programs had the cores: a call waited {times.waiting:.0%} of its time for one"
            )
        if times.mhz:
            self.found.notes.append(f"SM clock {times.mhz[0]} to {times.mhz[1]} MHz")

    def _is_quiet(self) -> bool:
        """Return whether eager against itself comes out at 1; if not, the times before are worth nothing."""
        ratio = self_check(self.session, self.known.times, self.rule.self_pairs)
        self.found.checks.append("eager against itself")
        if ratio.low <= 1 + self.rule.quiet and ratio.high >= 1 - self.rule.quiet:
            return True
        span = f"{ratio.low:.2f} to {ratio.high:.2f}"
        self.found.notes.append(f"eager against itself came out at {span}: a noisy machine")
        return False


def measurement(
    known: ProblemKnowledge, timed: Timed, baseline: Baseline | None, *, floor_us: float, extra_bytes: int | None
) -> Measurement:
    """Return what is told of times: the speed-ups over eager and over the better of the other baselines."""
    times = timed.times
    against_eager = times.speedup("candidate", "eager")
    against_compile, compile_us, note = _against_compile(times, baseline, against_eager)
    return Measurement(
        candidate_us=median_us(times.seconds["candidate"]),
        eager_us=median_us(times.seconds["eager"]),
        compile_us=compile_us,
        speedup_eager=against_eager,
        speedup_compile=against_compile,
        pairs=len(times.seconds["candidate"]),
        floor_us=floor_us,
        confirmed=baseline is None,
        compile_note=note or known.times.compile_note,
        cold=timed.cold,
        speedup_warm=timed.warm.speedup("candidate", "eager") if timed.warm else None,
        candidate_host_us=_host_us(timed.host, "candidate"),
        eager_host_us=_host_us(timed.host, "eager"),
        candidate_extra_bytes=extra_bytes,
        eager_extra_bytes=known.times.peak_bytes(),
        compile_host_us=_host_us(timed.host, "compile"),
        paired_us=times.kept_us(PAIRS_KEPT),
    )


def _host_us(host: Times | None, variant: str) -> float | None:
    taken = host.seconds.get(variant) if host is not None else None
    return median_us(taken) if taken else None


def _against_compile(
    times: Times, baseline: Baseline | None, against_eager: Ratio
) -> tuple[Ratio | None, float | None, str]:
    """Return the speed-up over the best baseline but eager, its time in microseconds, and a note.

    In a confirmation it was timed in the same pairs; else the cached one counts, by way of eager.
    """
    if baseline is None:
        others = {v: median_us(taken) for v, taken in times.seconds.items() if v not in {"candidate", "eager"}}
        if not others:
            return None, None, ""
        best = min(others, key=others.__getitem__)
        return times.speedup("candidate", best), others[best], ""
    if baseline.compile_over_eager is None:
        return None, None, baseline.note
    return product(against_eager, baseline.compile_over_eager), baseline.compile_us, "compile baseline from the cache"
