"""Verdicts an hour with one, two and four judges of a cluster: the same candidates each time. Prints Markdown tables.

    python tests/bench/ray_throughput.py --gpus 1,2,4
    python tests/bench/ray_throughput.py --gpus 4,2,1 --each 3          # three problems for every judge of an arm
    python tests/bench/ray_throughput.py --gpus 4+,4,1+,1 --each 3      # with "+" processes may open all GPUs' files
    python tests/bench/ray_throughput.py --judges 1,2 --kernels 12      # on a CPU, a share of the cores each

The candidates are honest kernels of the zoo, each in several spellings: a comment that differs, so that each is built
for itself. With --each N an arm of n judges gets the first N problems n times over (a comment makes each copy a problem
of its own), so that all arms open as many problems for a verdict; without it every arm gets the same list, of which few
judges see fewer problems in the same time. Each arm starts a Ray of its own and finds an empty cache: builds,
admissions, baselines and sessions are paid for again. A judge has the same share of the host's cores in every arm, and
one candidate is judged before the first, so that compilers and libraries have been read from disk. Measured from the
first candidate that is handed in, with all judges open, to the last verdict; with --arm-seconds N an arm ends at the
latest N seconds after it began, and its rate is that of the verdicts until then. Needs no archive and no model: torch,
apache-tvm-ffi and ray.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from rag_kernels.cluster.ray_judge import ClusterJudge, open_cluster
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine.device import cpu_name, gpu_name, threads
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Backend, Candidate, FunctionalProblem, Judged
from rag_kernels.eval.verdict_codes import codes
from rag_kernels.eval.zoo.honest.corpus import cuda_kernels, honest_kernels
from rag_kernels.ingest.functional.functionalize import functionalize

OPEN_LIMIT_S = 180.0
EVERY = "+"


class OverError(Exception):
    """The arm has had its time."""


@dataclass
class Arm:
    """What came of the candidates with so many judges; `every_gpu`: as in `Limits`."""

    judges: int
    every_gpu: bool
    open_s: float = 0.0
    seconds: float = 0.0
    verdicts: dict[str, Judged] = field(default_factory=dict)

    @classmethod
    def named(cls, name: str) -> Arm:
        return cls(int(name.removesuffix(EVERY)), name.endswith(EVERY))

    @property
    def name(self) -> str:
        return f"{self.judges}{EVERY * self.every_gpu}"

    @property
    def an_hour(self) -> float:
        return 3600 * len(self.verdicts) / self.seconds if self.seconds else 0.0


Work = dict[FunctionalProblem, list[Candidate]]


def work(backend: Backend, kernels: int, spellings: int, *, problems: int | None = None) -> Work:
    """Kernels spread over the corpus, by problem, each in so many spellings; of the first `problems`."""
    corpus = cuda_kernels() if backend == "cuda" else [h for h in honest_kernels() if h.candidate.tier == "kernel"]
    chosen = corpus[:: max(1, len(corpus) // kernels)][:kernels]
    asked: dict[str, list[Candidate]] = {}
    for honest in chosen:
        for number in range(spellings):
            text = f"{honest.candidate.source}\n// spelling {number}\n"
            asked.setdefault(honest.task_source, []).append(replace(honest.candidate, source=text))
    sources = list(asked)[:problems]
    with Workers() as workers, ThreadPoolExecutor() as pool:
        named = [problem_from_source(f"task{number}", source) for number, source in enumerate(sources)]
        forms = list(pool.map(lambda problem: functionalize(problem, workers=workers), named))
    return {form: asked[source] for form, source in zip(forms, sources, strict=True)}


def copies(todo: Work, count: int) -> Work:
    """Return each problem so many times; a comment makes each copy a problem of its own, with its own candidates."""
    found: Work = {}
    for number in range(count):
        for form, candidates in todo.items():
            text = f"{form.problem.source}\n# copy {number}\n"
            texts = [replace(c, source=f"{c.source}// copy {number}\n") for c in candidates]
            found[replace(form, problem=problem_from_source(f"{form.problem.name}_{number}", text))] = texts
    return found


def run(backend: Backend, arm: Arm, todo: Work, asked: argparse.Namespace) -> Arm:
    judges = arm.judges
    with tempfile.TemporaryDirectory(prefix="rag-kernels-bench-") as cache:
        started = time.perf_counter()
        limits = Limits(measure_compile=not asked.no_compile, every_gpu=arm.every_gpu)
        cpus = asked.cpus or max(1, threads() // max(one.judges for one in asked.arms))
        with open_cluster("ray", backend=backend, limits=limits, cache=cache, cpus=cpus, most=judges) as judge:
            while judge.places < judges:
                if time.perf_counter() - started > OPEN_LIMIT_S:
                    raise SystemExit(f"Only {judge.places} of {judges} judges could be opened.")
                time.sleep(0.05)
            arm.open_s = time.perf_counter() - started
            judge_all(judge, todo, arm, asked.arm_seconds)
    return arm


def judge_all(judge: ClusterJudge, todo: Work, arm: Arm, limit_s: float) -> None:
    started, lock = time.perf_counter(), threading.Lock()

    def more() -> Sequence[Candidate]:
        if time.perf_counter() - started > limit_s:
            raise OverError
        return ()

    def one(problem: FunctionalProblem) -> None:
        try:
            for candidate, judged in judge.judge(problem, todo[problem], more):
                with lock:
                    arm.seconds = time.perf_counter() - started
                    arm.verdicts[candidate.id] = judged
        except OverError:
            pass

    with ThreadPoolExecutor(max_workers=len(todo)) as pool:
        list(pool.map(one, todo))


def table(arms: Sequence[Arm], expected: int, *, weak: bool) -> str:
    rows = [
        "| judges | candidates judged | seconds | verdicts an hour | speed-up | the same verdict | opening, s |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for arm in arms:
        alike = [other for other in arms if other.every_gpu == arm.every_gpu]
        first = min(alike, key=lambda other: other.judges)
        both = arm.verdicts.keys() & first.verdicts.keys()
        same = sum(codes(arm.verdicts[c].verdict) == codes(first.verdicts[c].verdict) for c in both)
        times = arm.an_hour / first.an_hour if first.an_hour else 0.0
        asked = expected * (arm.judges if weak else 1)
        rows.append(
            f"| {arm.name} | {len(arm.verdicts)} of {asked} | {arm.seconds:.1f} | {arm.an_hour:.0f} "
            f"| {times:.2f} | {same} of {len(both)} | {arm.open_s:.1f} |"
        )
    return "\n".join(rows)


def stages(arms: Sequence[Arm]) -> str:
    """Median seconds of a stage: what judges cost each other shows here."""
    names = sorted({name for arm in arms for judged in arm.verdicts.values() for name in judged.stage_s})
    rows = [
        f"| stage, median s (sum) | {' | '.join(f'{arm.name} judges' for arm in arms)} |",
        "|---|" + "---:|" * len(arms),
    ]
    for name in names:
        spent = [[j.stage_s[name] for j in arm.verdicts.values() if name in j.stage_s] for arm in arms]
        cells = [f"{statistics.median(each):.3f} ({sum(each):.1f})" if each else "" for each in spent]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """Print the tables after each arm, so that one that is cut off leaves what it has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    how_many = parser.add_mutually_exclusive_group(required=True)
    how_many.add_argument("--gpus", help="CUDA: how many judges in each arm, a GPU each; for example 1,2,4")
    how_many.add_argument("--judges", help="C++: the same, with shares of the cores")
    parser.add_argument("--kernels", type=int, default=30)
    parser.add_argument("--spellings", type=int, default=3)
    parser.add_argument("--cpus", type=int, default=0, help="cores of a judge; else a share by the largest arm")
    parser.add_argument("--each", type=int, help="problems for each judge of an arm, instead of the same list for all")
    parser.add_argument("--arm-seconds", type=float, default=1e9)
    parser.add_argument("--cold", action="store_true", help="judge nothing before the first arm")
    parser.add_argument("--no-compile", action="store_true", help="measure no torch.compile baseline")
    asked = parser.parse_args()
    asked.arms = [Arm.named(name) for name in (asked.gpus or asked.judges).split(",")]
    backend: Backend = "cuda" if asked.gpus else "cpu"
    todo = work(backend, asked.kernels, asked.spellings, problems=asked.each)
    expected = sum(map(len, todo.values()))
    machine = f"{gpu_name() if backend == 'cuda' else cpu_name()}, {os.cpu_count()} cores"
    whose = " for each judge" if asked.each else ""
    print(f"{expected} candidates of {len(todo)} problems{whose}; {machine}.", flush=True)
    problem, candidates = next(iter(todo.items()))
    if not asked.cold:  # compilers and libraries are read from disk before any arm
        run(backend, Arm.named("1"), {problem: candidates[:1]}, asked)
    arms: list[Arm] = []
    for arm in asked.arms:
        arms.append(run(backend, arm, copies(todo, arm.judges) if asked.each else todo, asked))
        names = Counter(code for judged in arms[-1].verdicts.values() for code in codes(judged.verdict))
        print(f"\n{arm.name} judges: {dict(names)}\n\n{table(arms, expected, weak=bool(asked.each))}", flush=True)
        print(f"\n{stages(arms)}", flush=True)


if __name__ == "__main__":
    main()
