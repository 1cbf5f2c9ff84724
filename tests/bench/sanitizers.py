"""The CPU's sanitizers over kernels that should pass them, and over kernels that race; prints Markdown tables.

    .venv/bin/python tests/bench/sanitizers.py [--only softmax] [--every 10] [--tool thread] [--times 20]

First every C++ kernel of the honest corpus and the zoo's honest twins, with how many could not be run and what it
costs; then the zoo's data races under ThreadSanitizer, each many times: by itself, bound to one core, and beside two
busy loops.
"""

import argparse
import multiprocessing
import os
import signal
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from rag_kernels.eval.build.compile import BuildError, Built, Flavour, build, checked, toolchain
from rag_kernels.eval.build.products import Programs
from rag_kernels.eval.instruments.sanitizers import call_file, sanitize
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine.device import open_device
from rag_kernels.eval.places import default_cache
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.process.sandbox import Sandbox
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import MachineError, ProblemError
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.sessions.reference_worker import Resources
from rag_kernels.eval.zoo.exploits.catalogue import SPECIMENS
from rag_kernels.eval.zoo.honest.corpus import honest_kernels
from rag_kernels.eval.zoo.tasks import TASKS
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes

RACES = ("a race on the accumulator",)
FLAVOURS: dict[str, Flavour] = {"address": "cpu-checked", "thread": "cpu-raced"}


@dataclass(frozen=True)
class Text:
    """A kernel-tier C++ source and the problem it is for."""

    group: str
    name: str
    source: str
    task_source: str


@dataclass(frozen=True)
class Seen:
    """`outcome` is `clean` (of every tool), `found` or `left out`; `why` is what the tools said."""

    text: Text
    outcome: str
    why: str
    run_s: float


class Bench:
    """The workers and the sessions, one problem at a time."""

    def __init__(self) -> None:
        self.cache, self.tools, self.limits = default_cache(), toolchain(), Limits(measure_compile=False)
        (self.cache / "builds").mkdir(parents=True, exist_ok=True)
        self.workers = Workers()
        self.candidates = Workers(sandbox=Sandbox((self.cache / "builds",)))
        self.device = open_device("cpu", self.workers, self.cache)

    @contextmanager
    def sessions(self, task_source: str) -> Iterator[list[ProblemSession]]:
        """The problem at small and at odd sizes."""
        fp = functionalize(problem_from_source("races", task_source), workers=self.workers)
        sizes = at_other_sizes(fp, ("small", "odd"), self.workers)
        resources = Resources(
            workers=self.workers, candidate_workers=self.candidates, device=self.device, limits=self.limits
        )
        open_ones = [ProblemSession(one, resources) for one in sizes if one is not None]
        try:
            yield open_ones
        finally:
            for session in open_ones:
                session.close()

    def built(self, texts: list[Text], flavour: Flavour) -> tuple[list[Path | None], list[float]]:
        """The programs, and the seconds of each one that was not in the cache."""
        started = perf_counter()
        results = build([(checked(t.source), flavour) for t in texts], tools=self.tools, cache=self.cache)
        for text, result in zip(texts, results, strict=True):
            if isinstance(result, BuildError):
                print(f"{text.group} / {text.name}, {flavour}: {result.reason}", flush=True)
        programs = [r.library if isinstance(r, Built) else None for r in results]
        fresh = sum(not (isinstance(r, Built) and r.cached) for r in results)
        return programs, [(perf_counter() - started) / fresh] * fresh if fresh else []

    def seen(self, text: Text, programs: Programs, sessions: list[ProblemSession], tools: Sequence[str]) -> Seen:
        started = perf_counter()
        ran: set[str] = set()
        why: list[str] = []
        calls = [call_file(session) for session in sessions]
        for report in sanitize(programs, self.candidates, calls, on_gpu=False, recorded=False):
            ran |= set(report.ran)
            why += [*report.left_out, *(f"{tool}: {what}" for tool, what in report.found)]
            if report.found:
                return Seen(text, "found", "; ".join(why), perf_counter() - started)
        outcome = "clean" if set(tools) <= ran else "left out"
        return Seen(text, outcome, "; ".join(why), perf_counter() - started)

    def judged(self, group: list[Text], built: list[list[Path | None]], tools: Sequence[str]) -> Iterator[Seen]:
        """The kernels of one problem; `built` holds the programs by tool."""
        with self.sessions(group[0].task_source) as sessions:
            for text, *paths in zip(group, *built, strict=True):
                by_tool = dict(zip(tools, paths, strict=True))
                yield self.seen(text, Programs(by_tool.get("address"), by_tool.get("thread")), sessions, tools)


def honest_texts(only: str, every: int) -> list[Text]:
    texts = [
        Text(h.family, h.name, h.candidate.source, h.task_source)
        for h in honest_kernels()
        if h.candidate.tier == "kernel" and h.candidate.backend == "cpu"
    ]
    texts += [
        Text("twins of the zoo", s.idea, s.twin.source, TASKS[s.task].problem)
        for s in SPECIMENS
        if s.backend == "cpu" and s.twin.tier == "kernel"
    ]
    return [t for t in texts if only in f"{t.group} / {t.name}"][::every]


def honest(bench: Bench, texts: list[Text], tools: Sequence[str], skip: int) -> None:
    by_task: dict[str, list[Text]] = defaultdict(list)
    for text in texts:
        by_task[text.task_source].append(text)
    by_task = dict(list(by_task.items())[skip:])
    seen: dict[str, list[Seen]] = defaultdict(list)
    build_s: dict[Flavour, list[float]] = {FLAVOURS[tool]: [] for tool in tools}
    with ThreadPoolExecutor(1) as ahead, suppress(KeyboardInterrupt):
        builds = [[ahead.submit(bench.built, group, f) for f in build_s] for group in by_task.values()]
        try:
            for number, (group, building) in enumerate(zip(by_task.values(), builds, strict=True)):
                print(f"{number + 1} of {len(by_task)} problems", end="\r", file=sys.stderr, flush=True)
                built = [future.result() for future in building]
                for seconds, (_, its_s) in zip(build_s.values(), built, strict=True):
                    seconds += its_s
                try:
                    for outcome in bench.judged(group, [paths for paths, _ in built], tools):
                        seen[outcome.text.group].append(outcome)
                        seen["all"].append(outcome)
                        if outcome.outcome != "clean":
                            where = f"{outcome.text.group} / {outcome.text.name}"
                            print(f"- {where}: {outcome.outcome}, {outcome.why}", flush=True)
                except (ProblemError, MachineError) as error:
                    print(f"{group[0].name}: {error}", flush=True)
        finally:
            ahead.shutdown(cancel_futures=True)
    print("| family | kernels | clean | left out | found | median s | longest s |\n|---|--:|--:|--:|--:|--:|--:|")
    for family in [*(f for f in seen if f != "all"), *(["all"] if seen else [])]:
        members = seen[family]
        counts = " | ".join(str(sum(s.outcome == o for s in members)) for o in ("clean", "left out", "found"))
        times = [s.run_s for s in members]
        print(f"| {family} | {len(members)} | {counts} | {statistics.median(times):.2f} | {max(times):.2f} |")
    for flavour, seconds in build_s.items():
        if seconds:
            print(f"\nBuilding a {flavour} program took {statistics.mean(seconds):.2f} s.")


def _spin() -> None:
    while True:
        pass


@contextmanager
def busy() -> Iterator[None]:
    """Two processes that compute all the time."""
    loops = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(2)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()


@contextmanager
def one_core() -> Iterator[None]:
    """New workers, bound to one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def quiet() -> Iterator[None]:
    yield


def racing(times: int) -> None:
    moods: dict[str, Callable[[], object]] = {"by itself": quiet, "on one core": one_core, "beside busy loops": busy}
    found: dict[str, list[str]] = defaultdict(list)
    for mood in moods.values():
        with mood():  # type: ignore[attr-defined]
            bench = Bench()
            for specimen in [s for s in SPECIMENS if s.idea in RACES]:
                task_source = TASKS[specimen.task].problem
                texts = [
                    Text("", f"{specimen.idea}, {i + 1}", v.source, task_source)
                    for i, v in enumerate(specimen.variants)
                ]
                with bench.sessions(task_source) as sessions:
                    for text, program in zip(texts, bench.built(texts, "cpu-raced")[0], strict=True):
                        programs = Programs(None, program)
                        outcomes = [bench.seen(text, programs, sessions, ["thread"]) for _ in range(times)]
                        found[text.name].append(f"{sum('data race' in o.why for o in outcomes)} of {times}")
    print(f"\n| kernel that races | {' | '.join(moods)} |\n|---|{'--:|' * len(moods)}")
    for name, counts in found.items():
        print(f"| {name} | {' | '.join(counts)} |")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a family's or a kernel's name")
    parser.add_argument("--every", type=int, default=1, help="take one kernel in so many")
    parser.add_argument("--skip", type=int, default=0, help="problems that an interrupted run has seen")
    parser.add_argument("--tool", choices=FLAVOURS, default=None, help="one alone, to see what each costs")
    parser.add_argument("--times", type=int, default=20, help="runs of each race, in each of three situations")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the tables of what was seen until then
    tools = [asked.tool] if asked.tool else list(FLAVOURS)
    if texts := honest_texts(asked.only, asked.every):
        honest(Bench(), texts, tools, asked.skip)
    if asked.times:
        racing(asked.times)


if __name__ == "__main__":
    main()
