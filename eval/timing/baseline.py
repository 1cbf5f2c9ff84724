"""Eager against the other baselines for one problem on one machine: measured once, kept in the cache.

The others are torch.compile, and on a GPU a CUDA graph of eager. Comes in: a way to open a Session. Goes out: a
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
from rag_kernels.eval.sessions.problem_session import Session
from rag_kernels.eval.timing.paired_ratio import Paired, median_us, orders, pairs_for
from rag_kernels.eval.timing.reference_times import VARIANTS

BASELINE_VERSION = "4"
FASTER = 8  # times that another baseline may be as fast as eager


@dataclass(frozen=True, slots=True)
class Baseline:
    """`compile_us` in microseconds; `compile_over_eager`: its time over eager's. `note` says why they are None."""

    compile_us: float | None
    compile_over_eager: Ratio | None
    note: str


NOT_ASKED = Baseline(None, None, "torch.compile was not asked for")


def baseline_file(fp: FunctionalProblem, device: Device, *, environment: str, cache: Path) -> Path:
    """Where this problem's baseline on this machine is, or will be, kept."""
    key = content_id("bl", fp.problem.source, device.key, environment, BASELINE_VERSION)
    return cache / "baselines" / f"{key}.json"


def open_baseline(file: Path, open_session: Callable[[], Session]) -> Baseline:
    """The cached baseline, or one measured now (torch.compile takes seconds to a minute on a CPU)."""
    if not file.is_file():
        with open_session() as own:
            baseline = _measure(own)
        if own.timed.out_of_memory:  # for other programs on the device, perhaps
            return baseline
        file.parent.mkdir(parents=True, exist_ok=True)
        staged = file.with_suffix(f".{os.getpid()}.tmp")
        staged.write_text(json.dumps(asdict(baseline)))
        staged.rename(file)
    kept = json.loads(file.read_text())
    ratio = Ratio(**kept.pop("compile_over_eager")) if kept["compile_over_eager"] else None
    kept.pop("compile_over_eager", None)
    return Baseline(compile_over_eager=ratio, **kept)


def _measure(session: Session) -> Baseline:
    limits = session.limits
    session.timed.prepare_baselines()
    if not session.timed.variants:
        return Baseline(None, None, session.timed.compile_note)
    pair_s = 2 * session.timed.eager_estimate_s()
    pairs = pairs_for(
        pair_s, least=limits.pairs // 2, most=limits.pairs, target_s=limits.timed_s, limit_s=limits.max_timed_s
    )
    calls = session.timed.calls_for(session.timed.eager_estimate_s() / FASTER)
    names = ["eager", *session.timed.variants]
    paired = Paired({variant: [] for variant in names}, orders(names, pairs, session.rng))
    times = paired.seconds
    with session.turns.alone():
        for order in paired.orders:
            session.write(session.random_recipe())
            for variant in order:
                times[variant].append(session.timed.call(variant, cold=session.on_gpu, calls=calls))
    best = min(session.timed.variants, key=lambda v: median_us(times[v]))
    note = "" if best == "compile" else f"the better baseline is {VARIANTS[best]}"
    return Baseline(median_us(times[best]), paired.speedup("eager", best), note)
