"""pass@k, fast_p and fast_p@k of runs, with Wilson's intervals over problems.

Comes in: what runs judged. Goes out: a `Score` for each number, and a `Solved` for each problem. A candidate counts as
right when its last judgement is a pass that nothing bars, and as faster than p by the speed-up that is told of it: over
the better of eager and torch.compile, confirmed, else the lower end of the interval. Samples for the @k figures are the
candidates of the first round, which have seen no other, and replies that held no code. Knows nothing of terminals and
pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import comb
from typing import Literal

from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.queries import Judgement, last_judgements
from rag_kernels.archive.records import Run
from rag_kernels.eval.records import ProblemError
from rag_kernels.experiments.bootstrap import Interval, share_interval
from rag_kernels.llm import reply as llm_reply
from rag_kernels.run.journal import read_journal
from rag_kernels.run.session import run_setting

THRESHOLDS = (0.0, 1.0, 1.5, 2.0, 3.0)
WRITING = ("generate", "grow", "sample")  # commands that write candidates
GROUPS = ("growth", "batch")  # settings that runs of one command share


@dataclass(frozen=True, slots=True)
class Solved:
    """Hold one problem's samples of the first round, how many were right, and the best of all rounds."""

    problem_id: str
    problem: str
    samples: int
    right: int
    speedups: tuple[float, ...]  # of the right samples
    best: float | None  # of any round; None when no candidate was right
    best_at_least: bool  # it is the lower end of an interval: nothing confirmed it
    candidates: int  # of any round
    cost_usd: float | None


@dataclass(frozen=True, slots=True)
class Score:
    """Hold one number. `k` is None for the best of all that was tried; `p` is None where speed does not count."""

    metric: Literal["pass@k", "fast_p", "fast_p@k"]
    p: float | None
    k: int | None
    problems: int  # those with at least k samples
    interval: Interval


def runs_of(archive: Archive, names: Sequence[str]) -> list[Run]:
    """Return runs by their ids, all runs of a growth or a batch by its id, or for `latest` the newest that was written.

    Raises ProblemError for an id that the archive does not have.
    """
    known = [run for run in archive.runs(limit=100_000) if run.command in (*WRITING, "eval")]
    newest = next((run for run in known if run.command in WRITING), None)  # judging one kernel is no search
    found: dict[str, Run] = {}
    for name in names:
        if name == "latest" and newest:
            name = next((shared for key in GROUPS if (shared := run_setting(newest, key))), newest.id)
        same = [run for run in known if name in (run.id, *(run_setting(run, key) for key in GROUPS))]
        if not same:
            raise ProblemError(f"The archive has no run {name!r}: `generate` prints its id; see `rag-kernels app`.")
        found |= {run.id: run for run in same}
    return list(found.values())


def solved(archive: Archive, runs: Sequence[Run]) -> list[Solved]:
    """Return a row for each problem, from all runs on it, in the order of their names."""
    judged = sorted(last_judgements(archive, [run.id for run in runs]), key=lambda j: (j.problem_name, j.problem_id))
    without_code: dict[str, int] = {}
    for run in runs:
        problem_id = run_setting(run, "problem_id")
        without_code[problem_id] = without_code.get(problem_id, 0) + replies_without_code(archive, run.id)
    by_problem = groupby(judged, key=lambda j: (j.problem_id, j.problem_name))
    return [_solved(*names, list(group), without_code.get(names[0], 0)) for names, group in by_problem]


def replies_without_code(archive: Archive, run_id: str) -> int:
    """Return how many replies of the first round held nothing that could be judged."""
    told = read_journal(archive, run_id)
    if not told:
        return 0
    later = [row.calls_seen for row, t in zip(archive.briefs(run_id), told, strict=True) if t.brief.round > 1]
    calls = archive.calls(run_id)[: min(later, default=None)]
    backend = told[0].brief.device.backend
    replies = [call.reply for call in calls if call.purpose == "implement" and not call.error]
    return sum(llm_reply.candidate(reply, backend) is None for reply in replies)


def _solved(problem_id: str, name: str, judged: Sequence[Judgement], without_code: int) -> Solved:
    first = [j for j in judged if j.first_round == 1]
    best = max((j for j in judged if j.right), key=lambda j: (not j.at_least, j.speedup or 0.0), default=None)
    costs = [j.cost_usd for j in judged]
    known = [cost for cost in costs if cost is not None]
    return Solved(
        problem_id=problem_id,
        problem=name,
        samples=len(first) + without_code,
        right=sum(j.right for j in first),
        speedups=tuple(j.speedup or 0.0 for j in first if j.right),
        best=(best.speedup or 0.0) if best else None,
        best_at_least=best is not None and best.at_least,
        candidates=len(judged),
        cost_usd=sum(known) if len(known) == len(costs) else None,
    )


def scores(problems: Sequence[Solved], thresholds: Sequence[float] = THRESHOLDS) -> list[Score]:
    """Return every score that these problems allow."""
    most = max((p.samples for p in problems), default=0)
    ks = [2**n for n in range(most.bit_length()) if 2**n <= most]
    found = [_score("pass@k", problems, None, k) for k in ks]
    found += [_score("fast_p", problems, p, None) for p in thresholds]
    return found + [_score("fast_p@k", problems, p, k) for p in thresholds if p > 0 for k in ks]


def _score(
    metric: Literal["pass@k", "fast_p", "fast_p@k"], problems: Sequence[Solved], p: float | None, k: int | None
) -> Score:
    if k is None:
        values = [float(one.best is not None and one.best > (p or 0.0)) for one in problems]
    else:
        enough = [one for one in problems if one.samples >= k]
        good = [one.right if p is None else sum(s > p for s in one.speedups) for one in enough]
        values = [at_least_one(one.samples, count, k) for one, count in zip(enough, good, strict=True)]
    return Score(metric, p, k, len(values), share_interval(values))


def at_least_one(samples: int, good: int, k: int) -> float:
    """Return the chance that k samples, drawn without replacement, hold a good one (Chen et al., 2021)."""
    return 1.0 - comb(samples - good, k) / comb(samples, k)
