"""The rule by which speed is told: every number of it, with its reason, and the version that follows from them.

Comes in: nothing. Goes out: a `TimingRule`, which `Limits` carries. Each group names the file that times by it; to
change how fast something is told, change a number here, and what docs/judge.md (of pairs, tests/test_judge_timing.py
and tests/test_numerics.py too) says of it. A changed number changes `version`, and with it the judge's version and the
key of cached baselines: results of two versions are never compared, and archived ones stay as they are until
`rag-kernels archive reverify` judges them again. `CHECKS_VERSION` in `judge.py` stays.

Not here, since these are how an instrument works and children have no rule: how caches are emptied
(`sessions/problem_contents.py`, `children/gpu/buffers.py`), how much is looked at (`timing/looks.py`), the delay's
clock (`children/gpu/delay.py`), and which of a device's counters say that it was throttled (`machine/throttling.py`).
Whoever changes those raises `CHECKS_VERSION`. `tests/test_timing_rule.py` lets no number stand in the files that time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rag_kernels.eval.ids import content_id


@dataclass(frozen=True, slots=True)
class TimingRule:
    """Numbers of the rule; times in seconds, memory in bytes. The defaults suit problems of 20 us to 20 ms."""

    # Pairs: one measurement of each side on the same content, in random order. How many: `timing/race.py`, and
    # `pairs_for` in `timing/paired_ratio.py`, where the loop over pairs is; `timing/looks.py` spreads looks over them.
    # At least, and no more where intervals are narrow: an interval of 30 ratios spans some 20 ranks. With 16 there were
    # false wins (docs/measured/verdict_time.md).
    pairs: int = 30
    max_pairs: int = 60  # beyond, intervals narrow by less than a machine drifts
    timed_s: float = 0.5  # aim for this much time in pairs: what disturbs a machine for a moment is then a few of them
    max_timed_s: float = 20.0  # of pairs whose calls are slow
    # After each so many, before `pairs`, a race asks whether the candidate is behind; so many are timed of one that is
    # clearly slow, and stand between two looks (`timing/looks.py`). The least with an order-statistic interval.
    few_pairs: int = 7
    slow_factor: float = 4.0  # times as slow as eager is clearly slow: no interval of 30 pairs would reach 1
    behind: float = 0.97  # of the best speed-up so far: a top of the interval below it ends the race early
    warm_pairs: int = 11  # of a second figure, told beside the first or only held against it: few, since no claim is
    self_pairs: int = 30  # of eager against itself, in a confirmation: as many as of a race
    baseline_pairs: int = 15  # at least, `pairs` at most, of eager and the others: confirmations time them anew

    # Calls before the pairs, which say how much to time.
    first_calls: int = 2  # of a candidate, of which the faster counts: the first may make what is made once
    eager_calls: int = 3  # of eager, of which the fastest counts: it sets the pairs of all candidates
    delay_calls: int = 2  # of each baseline, of which the last counts: the first launches take a host longer
    trial_bursts: int = 2  # of which the faster says whether longer ones are needed

    # Intervals: `timing/paired_ratio.py`.
    deviations: float = 1.96  # of a rank's normal distribution on either side of the median: about 95 %
    further: int = 1  # ranks that an interval is wider on either side: the normal distribution is an approximation
    narrow: float = 1.02  # from the bottom of an interval to its top: no further pairs are needed
    min_half: int = 5  # pairs of either order; with fewer the orders are not told apart
    quiet: float = 0.02  # what eager against itself may be off by: the width at which pairs end

    # What disturbs: `timing/race.py`.
    throttled: float = 0.5  # of the pairs: where more of them were, the rest is too few to stand for all
    busy: float = (
        0.5  # of the time of either side's calls (CPU), spent waiting for a core: their ratio is worth nothing
    )
    wake_s: float = 2e-4  # of such waiting is what a worker takes that is woken up a few times

    # Bursts: several calls with one wait at the end, since waiting for a GPU takes some 100 us. How long ones are:
    # `calls_for` in `sessions/reference_times.py`; the candidate's: `timing/race.py`.
    burst_calls: int = 64  # at most, of the reference
    few_calls: int = 2  # at least, of what is shorter than `single_s`: with one nothing of the wait is shared
    burst_s: float = 1.5e-3  # to aim at: fifteen times the way there and back
    single_s: float = 4e-3  # a call that takes longer is timed by itself
    burst_bytes: int = 8 << 30  # of a side's buffers: contents differ, so that every call has its own
    least_burst: int = 8  # of a candidate whose buffers are slow to bind
    most_burst: int = 256  # of a candidate whose calls are the shortest
    candidate_burst_s: float = 0.25  # of a slow candidate's burst at most: it gets fewer calls than the reference
    bind_s: float = 1.5  # for the buffers of a burst: modules, which each of them takes anew, may be slow to make
    faster: float = 8.0  # times that another baseline may be as fast as eager: its burst is made for that

    # Asking: what a request for no call takes is subtracted, from the reference in `sessions/reference_times.py`, from
    # the candidate in `call_all` of `sessions/candidate_session.py`.
    asking_s: float = 1e-4  # about what asking for a call, and waiting for a GPU, takes
    aimed_asking: float = 0.125  # of a burst's time, when its calls are counted: half of the most, since both vary
    most_asking: float = 0.25  # of a burst's time: beyond, the way there and back may decide a race
    most_trip: float = 0.5  # of the reference's burst is subtracted at most: a slow answer makes no time of nothing
    least_s: float = 1e-9  # of a call that was over before the way there and back: impossible, and judged so

    # A GPU's delay: calls are queued behind it, so that the device's time is measured and not the host's way there.
    least_delay_s: float = 4e-4  # a host that slept needs 0.1 to 0.35 ms longer for its first launches
    most_delay_s: float = 1e-2  # a launch queue holds some thousand kernels, which takes a host longer than this
    delay_per_host: float = 1.25  # times the host's time for a burst, beside the least
    late_tries: int = 3  # of a reference's burst whose delay was over before the host had launched it all

    # What is seen of a race beside its ratio: `timing/looks.py` draws it, `trial/timed.py` and `trial/recurrence.py`
    # tell it.
    rechecked: int = 2  # timed calls whose whole output the oracle checks, chosen in secret
    repeats_rechecked: int = 4  # calls more whose output bytes came before: honest ones of few values repeat in all
    outside_factor: float = 1.5  # a kernel that takes a program so much longer than the device works outside its time
    outside_us: float = 20.0  # beside that: what launches take a host
    unrelated_draws: int = (
        6  # contents that share nothing with others, for one timed call in five: a draw takes a while
    )
    unrelated_pairs: int = 4  # on unrelated contents and on others, of which one may be disturbed
    unrelated_near: int = 4  # other pairs that one is held against, since a machine's load comes in stretches
    unrelated_slower: float = 1.25  # times, in the median, as slow there as beside it: the label
    unrelated_second: float = 1.125  # times, in the second least: below it one pair may have made the median
    unrelated_noise: float = 0.85  # of the other pairs are less slow than this beside their own neighbours
    # Times as slow, beside eager, on contents that a confirmation tries besides: where the problem draws one number
    # throughout and others may come; beside the problem's own, a few of it off by three; rows of all sizes; where it
    # orders or selects, rows in order or with a few far elements (a heap may take ten times as long, and honestly).
    # Each of so many races has to show it.
    elsewhere_races: int = 3
    elsewhere_pairs: int = 7
    elsewhere_not_alike: float = 1.5
    elsewhere_shifted: float = 2.0
    elsewhere_spread: float = 10.0  # a sine of hundreds takes several times as long, and honestly
    elsewhere_ordered: float = 10.0

    # Floors: what is faster than the device can be is not believed (`trial/physical_floor.py`).
    impossible: float = 2.0  # times as fast as a copy of its bytes from memory: rejected
    suspicious: float = 1.25  # times: labelled; a measured ceiling and a cold cache are known to 10 % or so each
    pruned: float = 1.5  # times as fast as its products: beyond Winograd's and Strassen's gains at these sizes

    @property
    def version(self) -> str:
        """Return a short name of these numbers."""
        return content_id("t", *(f"{name}={value}" for name, value in asdict(self).items())).removeprefix("t_")[:8]
