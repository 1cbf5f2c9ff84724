"""The rule by which speed is told: every number of it, with its reason, and the version that follows from them.

Comes in: nothing. Goes out: a `TimingRule`, which `Limits` carries. `timing/race.py` and `timing/baseline.py` time by
it. Who reads what: pairs and intervals `timing/paired_ratio.py`, which has the loop over pairs; bursts and delays
`sessions/reference_times.py`, which says what one measurement is, how many calls too, and `race.py` for the candidate's
side; `trial/trial.py` and `trial/physical_floor.py` what bars a claim. A number that is changed here
changes `version`, and with it the judge's version and the key of cached baselines; `tests/test_timing_rule.py` holds
that, `tests/test_numerics.py` and docs/judge.md repeat some of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rag_kernels.eval.ids import content_id


@dataclass(frozen=True, slots=True)
class TimingRule:
    """Numbers of the rule; times in seconds, memory in bytes. The defaults suit problems of 20 us to 20 ms."""

    # Pairs: one measurement of each side on the same content, in random order.
    pairs: int = (
        30  # at least, and no more where intervals are narrow then: an interval of 30 ratios spans some 20 ranks
    )
    max_pairs: int = 60  # beyond, intervals narrow by less than a machine drifts
    timed_s: float = 0.5  # aim for this much time in pairs: what disturbs a machine for a moment is then a few of them
    max_timed_s: float = 20.0  # of pairs whose calls are slow
    few_pairs: int = 7  # of a candidate that is clearly slow: the least with an order-statistic interval
    slow_factor: float = 4.0  # times as slow as eager is clearly slow: no interval of 30 pairs would reach 1
    behind: float = 0.97  # of the best speed-up so far: a top of the interval below it ends the race early
    warm_pairs: int = 11  # with inputs left in the cache, in a confirmation: a second figure, told beside the first
    self_pairs: int = 30  # of eager against itself, in a confirmation: as many as of a race
    rechecked: int = 2  # timed calls whose whole output the oracle checks, chosen in secret

    # Intervals.
    narrow: float = 1.02  # from the bottom of an interval to its top: no further pairs are needed
    min_half: int = 5  # pairs of either order; with fewer the orders are not told apart
    quiet: float = 0.02  # what eager against itself may be off by: the width at which pairs end

    busy: float = (
        0.5  # of the time of either side's calls (CPU), spent waiting for a core: their ratio is worth nothing
    )
    wake_s: float = 2e-4  # of such waiting is what a worker takes that is woken up a few times

    # Bursts: several calls with one wait at the end, since waiting for a GPU takes some 100 us.
    burst_calls: int = 64  # at most, of the reference
    burst_s: float = 1.5e-3  # to aim at: fifteen times the way there and back
    single_s: float = 4e-3  # a call that takes longer is timed by itself
    burst_bytes: int = 8 << 30  # of a side's buffers: contents differ, so that every call has its own
    least_burst: int = 8  # of a candidate whose buffers are slow to bind
    most_burst: int = 256  # of a candidate whose calls are the shortest
    candidate_burst_s: float = 0.25  # of a slow candidate's burst at most: it gets fewer calls than the reference
    bind_s: float = 1.5  # for the buffers of a burst: modules, which each of them takes anew, may be slow to make
    asking_s: float = 1e-4  # about what asking for a call, and waiting for a GPU, takes
    most_asking: float = 0.25  # of a burst's time: beyond, the way there and back may decide a race
    faster: float = 8.0  # times that another baseline may be as fast as eager: its burst is made for that

    # A GPU's delay: calls are queued behind it, so that the device's time is measured and not the host's way there.
    least_delay_s: float = 4e-4  # a host that slept needs 0.1 to 0.35 ms longer for its first launches
    most_delay_s: float = 1e-2  # a launch queue holds some thousand kernels, which takes a host longer than this
    delay_per_host: float = 1.25  # times the host's time for a burst, beside the least

    outside_factor: float = 1.5  # a kernel that takes a program so much longer than the device works outside its time
    outside_us: float = 20.0  # beside that: what launches take a host

    # Floors: what is faster than the device can be is not believed.
    impossible: float = 2.0  # times as fast as a copy of its bytes from memory: rejected
    suspicious: float = 1.25  # times: labelled; a measured ceiling and a cold cache are known to 10 % or so each
    pruned: float = 1.5  # times as fast as its products: beyond Winograd's and Strassen's gains at these sizes

    @property
    def version(self) -> str:
        """Return a short name of these numbers."""
        return content_id("t", *(f"{name}={value}" for name, value in asdict(self).items())).removeprefix("t_")[:8]
