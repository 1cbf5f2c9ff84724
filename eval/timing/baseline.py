"""Eager against the other baselines for one problem on one machine: measured once, kept in the cache.

The others are torch.compile, and on a GPU a CUDA graph of eager. Comes in: a way to open a ProblemSession. Goes out: a
Baseline. They are timed in interleaved pairs in a reference worker of their own, so that dynamo and its caches never
sit beside the eager calls that candidates race.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rag_kernels.eval.ids import content_id
from rag_kernels.eval.records import Device, FunctionalProblem, Ratio
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.sessions.reference_times import VARIANTS, BaselineFailed, ReferenceTimes
from rag_kernels.eval.timing.paired_ratio import Paired, interleave, median_us, pairs_for
from rag_kernels.eval.timing_rule import TimingRule

BASELINE_VERSION = "6"  # of what is measured; by which numbers is the rule's own version


@dataclass(frozen=True, slots=True)
class Baseline:
    """`compile_us` in microseconds; `compile_over_eager`: its time over eager's. `note` says why they are None."""

    compile_us: float | None
    compile_over_eager: Ratio | None
    note: str


NOT_ASKED = Baseline(None, None, "torch.compile was not asked for")


def baseline_file(fp: FunctionalProblem, device: Device, *, environment: str, rule: TimingRule, cache: Path) -> Path:
    """Return where this problem's baseline on this machine is, or will be, kept."""
    key = content_id("bl", fp.problem.source, device.key, environment, BASELINE_VERSION, rule.version)
    return cache / "baselines" / f"{key}.json"


def open_baseline(file: Path, open_session: Callable[[], ProblemSession]) -> Baseline:
    """Return the cached baseline, or one measured now (torch.compile takes seconds to a minute on a CPU)."""
    if not file.is_file():
        with open_session() as own:
            times = ReferenceTimes(own)
            baseline = _measure(own, times)
        if times.out_of_memory:  # for other programs on the device, perhaps
            return baseline
        file.parent.mkdir(parents=True, exist_ok=True)
        staged = file.with_suffix(f".{os.getpid()}.tmp")
        staged.write_text(json.dumps(asdict(baseline)))
        staged.rename(file)
    kept = json.loads(file.read_text())
    ratio = Ratio(**kept.pop("compile_over_eager")) if kept["compile_over_eager"] else None
    kept.pop("compile_over_eager", None)
    return Baseline(compile_over_eager=ratio, **kept)


def _measure(session: ProblemSession, timed: ReferenceTimes) -> Baseline:
    timed.prepare_baselines()
    while timed.variants:
        try:
            return _timed(session, timed)
        except BaselineFailed as failed:
            timed.drop(failed)
    return Baseline(None, None, timed.compile_note)


def _timed(session: ProblemSession, timed: ReferenceTimes) -> Baseline:
    rule = session.limits.timing
    pairs = pairs_for(2 * timed.eager_estimate_s(), rule, least=rule.baseline_pairs, most=rule.pairs)
    calls = timed.calls_for(timed.eager_estimate_s() / rule.faster)
    with session.device_lock.alone():
        paired = interleave(
            Paired({variant: [] for variant in ["eager", *timed.variants]}, rule=rule),
            pairs,
            session.rng,
            before=lambda _: session.write(session.random_recipe()),
            measure=lambda variant: timed.call(variant, cold=session.on_gpu, calls=calls),
        )
    best = min(timed.variants, key=lambda v: median_us(paired.seconds[v]))
    note = "" if best == "compile" else f"the better baseline is {VARIANTS[best]}"
    note = "; ".join(filter(None, [timed.compile_note, note]))
    return Baseline(median_us(paired.seconds[best]), paired.speedup("eager", best), note)
