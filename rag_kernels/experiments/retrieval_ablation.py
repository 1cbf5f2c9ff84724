"""Measure what retrieval is worth: one writer on the same problems, shown exemplars found in several ways, or none.

Comes in: problem files, ways of retrieval, and a maker of sessions that all retrieve from one archive as it was at the
start and write into another. Goes out: an `AblationTrial` for each problem, way and seed, then an `Arm` for each way,
with intervals. A trial that the results hold already is not run again. Knows nothing of terminals.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from statistics import mean

from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import Attempt, Run
from rag_kernels.choices import RetrievalMode
from rag_kernels.eval.ids import content_id
from rag_kernels.eval.problem import load_problem
from rag_kernels.eval.records import Passed, Problem, ProblemError
from rag_kernels.eval.told import told_speedup
from rag_kernels.experiments.bootstrap import Interval, ratio_interval, share_interval
from rag_kernels.options import Options
from rag_kernels.records import NoDraftError, WriterError
from rag_kernels.run import standings
from rag_kernels.run.session import Session
from rag_kernels.text.likeness import NEAR_COPY, likeness

log = logging.getLogger(__name__)

MakeSession = Callable[[Options], Session]


@dataclass(frozen=True, slots=True)
class AblationTrial:
    """Hold one problem with one way of retrieval. `speedup` is what a user gains: 1 where PyTorch stays the faster,
    or where the winner may not claim a speed of its own (a library rewrite, a lower precision).
    """

    problem: str
    problem_id: str
    arm: RetrievalMode
    seed: int
    run_id: str
    candidates: int
    solved: bool
    speedup: float
    shown: int  # different exemplars
    likest: float | None  # likeness of the winner and the exemplar that is most like it
    failure: str = ""  # why the problem could not be worked on; it counts for no arm
    first: bool = False  # was the first candidate right
    tokens: int = 0  # of all requests to models, estimated where a provider does not say


@dataclass(frozen=True, slots=True)
class Arm:
    """Hold the sums over all trials of one way of retrieval. Ratios are of geometric means, problem by problem."""

    arm: RetrievalMode
    problems: int
    solved: Interval
    first: Interval  # at the first candidate
    faster: Interval
    speedup: Interval
    over_off: Interval | None
    over_random: Interval | None
    shown: float  # exemplars a trial
    likest: float | None  # the median of the winners
    near_copies: int
    tokens: float  # a trial


def ablate(
    paths: Sequence[Path],
    make_session: MakeSession,
    options: Options,
    *,
    arms: Sequence[RetrievalMode],
    seeds: Sequence[int],
    source: Archive,
) -> Iterator[AblationTrial]:
    """Run every trial; the arms of a problem run in random order, so that no arm always has the warm machine."""
    for path in paths:
        problem = load_problem(path)
        for seed in seeds:
            order = list(arms)
            Random(f"{seed} {problem.id}").shuffle(order)
            for arm in order:
                yield _trial(problem, make_session(replace(options, retrieval=arm, seed=seed)), source)


def _trial(problem: Problem, session: Session, source: Archive) -> AblationTrial:
    options = session.options
    run = _run(problem, options)
    failure = ""
    if session.archive.run_status(run.id) != "finished":
        try:
            for _ in session.generate(problem, run):
                pass
        except NoDraftError as error:
            log.warning("%s", error)  # which is what came of it
        except (ProblemError, WriterError) as error:  # the same command tries again what a model's server broke
            failure = str(error)
    attempts = session.archive.attempts(run.id)
    best = standings.winner(attempts)
    exemplars = list(dict.fromkeys(e.kernel_id for a in attempts for e in a.exemplars))
    likest = None
    if best is not None and exemplars:
        kernels = [kernel for name in exemplars if (kernel := source.kernel(name)) is not None]
        likest = max((likeness(best.candidate.source, kernel.source) for kernel in kernels), default=None)
    return AblationTrial(
        problem=problem.name,
        problem_id=problem.id,
        arm=options.retrieval,
        seed=options.seed,
        run_id=run.id,
        candidates=len({a.candidate.id for a in attempts}),
        solved=best is not None,
        speedup=max(1.0, _speedup(best)),
        shown=len(exemplars),
        likest=likest,
        failure=failure,
        first=bool(attempts) and isinstance(attempts[0].judged.verdict, Passed),
        tokens=sum(call.prompt_tokens + call.completion_tokens for call in session.archive.calls(run.id)),
    )


def _run(problem: Problem, options: Options) -> Run:
    """Return the record of a trial's run: the same trial has the same id, so that an ablation can be resumed."""
    asked = json.dumps(asdict(replace(options, archive="", cache="")), sort_keys=True)
    settings = json.dumps(asdict(options) | {"problem_id": problem.id}, sort_keys=True)
    return Run(content_id("r", "ablate", problem.id, asked), "ablate", problem.name, settings, standings.now())


def _speedup(best: Attempt | None) -> float:
    if best is None or not isinstance(best.judged.verdict, Passed) or not best.judged.verdict.claims_speed:
        return 1.0
    return told_speedup(best.judged.verdict.measurement)


def summarise(trials: Sequence[AblationTrial]) -> list[Arm]:
    """Return an arm for each way of retrieval; a problem that failed for any arm is left out of all."""
    failed = {trial.problem_id for trial in trials if trial.failure}
    kept = [trial for trial in trials if trial.problem_id not in failed]
    of_arm: dict[RetrievalMode, dict[str, list[AblationTrial]]] = {}
    for trial in kept:
        of_arm.setdefault(trial.arm, {}).setdefault(trial.problem_id, []).append(trial)
    return [_arm(arm, of_arm) for arm in of_arm]


def _arm(arm: RetrievalMode, of_arm: dict[RetrievalMode, dict[str, list[AblationTrial]]]) -> Arm:
    own = of_arm[arm]
    trials = [trial for group in own.values() for trial in group]
    likest = sorted(trial.likest for trial in trials if trial.likest is not None)
    gains = {problem: [t.speedup for t in group] for problem, group in own.items()}

    def over(other: RetrievalMode) -> Interval | None:
        if other not in of_arm or other == arm:
            return None
        return ratio_interval(gains, {name: [t.speedup for t in group] for name, group in of_arm[other].items()})

    return Arm(
        arm=arm,
        problems=len(own),
        solved=share_interval([mean(float(t.solved) for t in group) for group in own.values()]),
        first=share_interval([mean(float(t.first) for t in group) for group in own.values()]),
        faster=share_interval([mean(float(t.speedup > 1) for t in group) for group in own.values()]),
        speedup=ratio_interval(gains, None),
        over_off=over("off"),
        over_random=over("random"),
        shown=sum(t.shown for t in trials) / max(len(trials), 1),
        likest=likest[len(likest) // 2] if likest else None,
        near_copies=sum(share >= NEAR_COPY for share in likest),
        tokens=sum(t.tokens for t in trials) / max(len(trials), 1),
    )
