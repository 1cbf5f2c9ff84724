"""A/A: how often would a win be claimed where there is none?

    python tests/bench/aa.py [--trials 200] [--device cpu|cuda] [examples/swiglu.py ...]

Three kinds of trial, by turns over the problems: eager against itself (`timing.race.self_check`); a kernel against a
copy of its source with another comment, each built and loaded in a worker of its own; and the module itself as a
candidate, raced against eager with cold caches, in a process of its own each time. The pairs are as many as a trial's.
A win is claimed by the rule for published results: not too short to time, the interval's lower end above 1.00 and the
median above 1.02; a module's first win is confirmed, as `generate` does it, with fresh processes on both sides, and
that counts. Prints a Markdown table of the rates with Wilson's 95 % interval; a loss is the same rule turned round.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from rag_kernels.eval.build.compile import BuildError, build, toolchain
from rag_kernels.eval.build.products import Library
from rag_kernels.eval.judge import LocalJudge, open_judge
from rag_kernels.eval.places import default_cache
from rag_kernels.eval.problem import load_problem
from rag_kernels.eval.process.sandbox import Sandbox
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Backend, Candidate, FunctionalProblem, Ratio
from rag_kernels.eval.sessions.candidate_buffers import BoundBuffers
from rag_kernels.eval.sessions.candidate_session import LoadedCandidate
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.sessions.reference_times import ReferenceTimes
from rag_kernels.eval.sessions.reference_worker import Resources
from rag_kernels.eval.timing.paired_ratio import Paired, orders, pairs_for
from rag_kernels.eval.timing.race import Race, self_check
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.experiments.wilson import wilson
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.offline.writer import OfflineWriter
from rag_kernels.records import Brief

RULE = TimingRule()
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEFAULT = [EXAMPLES / f"{name}.py" for name in ("softmax_scale", "swiglu", "rmsnorm", "bias_gelu_residual")]
LEAST_MEDIAN = 1.02


@dataclass
class Counts:
    """What came of one kind of trial on one problem."""

    ratios: list[Ratio] = field(default_factory=list)
    asking: list[float] = field(default_factory=list)  # how long asking takes beside a burst
    confirmed: int = 0  # trials whose first race was a win, so that it was run again

    @property
    def wins(self) -> int:
        return sum(map(is_win, self.claiming))

    @property
    def losses(self) -> int:
        return sum(r.high < 1.0 and r.median < 1 / LEAST_MEDIAN for r in self.claiming)

    @property
    def claiming(self) -> list[Ratio]:
        """Without what is too short to time."""
        return [ratio for ratio, asking in zip(self.ratios, self.asking, strict=True) if asking <= RULE.most_asking]


def is_win(ratio: Ratio) -> bool:
    return ratio.low > 1.0 and ratio.median > LEAST_MEDIAN


def copies(judge: LocalJudge, fp: FunctionalProblem) -> list[tuple[Library, str]]:
    """The offline writer's first kernel-tier source for the problem, built twice from different bytes."""
    brief = Brief("aa", fp, judge.device, (), (), "", 1, 1)
    source = next(p.candidate.source for p in OfflineWriter().propose(brief) if p.candidate.tier == "kernel")
    texts = [source, f"// a copy\n{source}"]
    built = build([(t, judge.device.backend) for t in texts], tools=toolchain(judge.device.arch), cache=default_cache())
    libraries = []
    for one, text in zip(built, texts, strict=True):
        if isinstance(one, BuildError):
            raise SystemExit(f"The kernel for {fp.problem.name} does not build: {one.reason}")
        libraries.append((Library(one.library), text))
    return libraries


def race(
    session: ProblemSession,
    reference: ReferenceTimes,
    sides: list[list[BoundBuffers]],
    subjects: list[LoadedCandidate],
    pairs: int,
) -> tuple[Ratio, float]:
    """Two kernels on the same content in random order, as `eval.timing.race` times a kernel against eager."""
    names = ["one", "other"]
    times = Paired({name: [] for name in names})
    cold = session.on_gpu
    with session.device_lock.alone():
        for number, order in enumerate(orders(names, pairs, session.rng)):
            if number >= session.limits.timing.pairs and times.is_narrow("one", "other"):
                break
            times.orders.append(order)
            recipe = session.random_recipe()
            session.write(recipe)
            for name in order:
                side = names.index(name)
                with subjects[1 - side].frozen():
                    recipes = [recipe] * len(sides[side])
                    subjects[side].prepare_all(sides[side], recipes, cold=cold, written=True)
                    burst = len(sides[side]) > 1
                    subject, places = subjects[side], sides[side]
                    seconds = subject.call_all(places, reference) if burst else subject.call(places[0])
                    times.seconds[name].append(seconds)
    shortest = min(statistics.median(taken) for taken in times.seconds.values())
    asking = statistics.median(subjects[0].round_trips) / shortest if subjects[0].round_trips else 0.0
    return times.speedup("one", "other"), asking


class Modules:
    """Races of the problem's own module against eager."""

    def __init__(self, judge: LocalJudge, own: Workers, fp: FunctionalProblem) -> None:
        self.judge, self.own, self.fp = judge, own, fp
        self.calls = self.confirmed = 0

    def session(self) -> ProblemSession:
        judge = self.judge
        resources = Resources(
            workers=judge.workers,
            candidate_workers=self.own,
            device=judge.device,
            limits=judge.limits,
            device_lock=judge.sessions.device_lock,
        )
        return ProblemSession(self.fp, resources)

    def race(self, session: ProblemSession) -> tuple[Ratio, float]:
        text = re.sub(r"\bModel\b", "ModelNew", self.fp.problem.source)
        with LoadedCandidate(session, Candidate(text, "module", self.judge.device.backend), None) as module:
            race = Race(module, module.bind(session), ReferenceTimes(session), ["eager"])
            race.run(cold=True, pairs=5)  # warm: not counted
            times = race.run(cold=True)
            self.calls = race.calls
            return times.speedup("candidate", "eager"), race.asking(times)

    def trial(self, session: ProblemSession) -> tuple[Ratio, float]:
        """A win is run again with fresh processes."""
        ratio, asking = self.race(session)
        if not is_win(ratio) or asking > RULE.most_asking:
            return ratio, asking
        self.confirmed += 1
        with self.session() as fresh:
            return self.race(fresh)


def measure(judge: LocalJudge, own: Workers, path: Path, trials: int, seconds: float) -> dict[str, Counts]:
    """All kinds of trial on one problem, by turns; none is begun after so many seconds."""
    end = perf_counter() + seconds
    fp = functionalize(load_problem(path), workers=judge.workers)
    kinds_of = ("eager against itself", "a kernel against its copy", "the module against eager")
    counts = {kind: Counts() for kind in kinds_of}
    with ExitStack() as stack:
        stack.enter_context(judge.sessions.device_lock.shared())
        modules = Modules(judge, own, fp)
        session = stack.enter_context(modules.session())
        subjects = [
            stack.enter_context(LoadedCandidate(session, Candidate(text, "kernel", judge.device.backend), library))
            for library, text in copies(judge, fp)
        ]
        reference = ReferenceTimes(session)
        calls = reference.calls_for(reference.eager_estimate_s() / RULE.faster)
        sides = [[subject.bind(session) for _ in range(calls)] for subject in subjects]
        limits = judge.limits
        pairs = pairs_for(
            2 * reference.eager_estimate_s(),
            limits.timing,
        )
        kinds: list[Callable[[], tuple[Ratio, float]]] = [
            lambda: (self_check(session, reference, pairs), 0.0),
            lambda: race(session, reference, sides, subjects, pairs),
            lambda: modules.trial(session),
        ]
        for kind in kinds[:2]:
            kind()  # warm: not counted
        for number in range(trials):
            if perf_counter() > end:
                break
            found = counts[kinds_of[number % len(kinds)]]
            ratio, asking = kinds[number % len(kinds)]()
            found.ratios.append(ratio)
            found.asking.append(asking)
        counts[kinds_of[2]].confirmed = modules.confirmed
        timers = (reference, *subjects)
        trips = [round(statistics.median(s.round_trips or [0.0]) * 1e6) for s in timers]
        notes = f"{calls} calls a burst ({modules.calls} of the module)"
        notes += f", single calls {reference.eager_estimate_s() * 1e6:.0f} us, round trips {trips} us"
        asked = {kind: round(statistics.median(found.asking or [0.0]), 2) for kind, found in counts.items()}
        made = sum(len(found.ratios) for found in counts.values())
        print(f"{path.stem}: {made} trials of at most {pairs} pairs, {notes}, asking {asked}", file=sys.stderr)
        medians = {kind: [round(r.median, 3) for r in found.ratios] for kind, found in counts.items()}
        print(f"{path.stem}: medians {medians}", file=sys.stderr)
    return counts


def row(problem: str, kind: str, found: Counts) -> str:
    count = len(found.ratios)
    if not count:
        return f"| {problem} | {kind} | 0 |"
    low, high = wilson(found.wins, count)
    off = sorted(abs(r.median - 1) for r in found.ratios)[int(0.95 * count)]
    rate = f"{100 * found.wins / count:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
    short = count - len(found.claiming)
    counts = f"{count} | {short} | {found.confirmed} | {found.wins}"
    return f"| {problem} | {kind} | {counts} | {rate} | {found.losses} | {100 * off:.1f} % |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", type=Path, default=DEFAULT)
    parser.add_argument("--trials", type=int, default=200, help="over all problems and kinds")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=36000.0, help="of each problem, at most")
    asked = parser.parse_args()
    backend: Backend = asked.device
    lines, everything = [], Counts()
    each = max(3, math.ceil(asked.trials / len(asked.problems)))
    box = Sandbox((default_cache() / "builds",), gpu=backend == "cuda")
    with open_judge(backend) as judge, Workers(sandbox=box) as own:
        for path in asked.problems:
            for kind, found in measure(judge, own, path, each, asked.seconds).items():
                everything.ratios += found.ratios
                everything.asking += found.asking
                everything.confirmed += found.confirmed
                lines.append(row(path.stem, kind, found))
        machine = judge.device.name
    print(f"Machine: {machine}.\n")
    heads = ("trials", "too short", "confirmed", "false wins", "rate (95 % interval)", "false losses", "95 % within")
    print(f"| problem | trial | {' | '.join(heads)} |")
    print(f"|---|---|{'---:|' * len(heads)}")
    print("\n".join([*lines, row("all", "all", everything)]))


if __name__ == "__main__":
    main()
