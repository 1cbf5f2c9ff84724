"""The same forty CUDA candidates through KernelBench's evaluator and through this judge, in one run on one machine.

    python tests/bench/kernelbench_evaluator.py --kernelbench PATH [--precompile 8] --out rows.jsonl
    python tests/bench/kernelbench_evaluator.py --table rows.jsonl [more.jsonl ...]

PATH is a checkout of KernelBench (PATH/KernelBench/level1, PATH/src/kernelbench). The candidates (`cuda_candidates`)
go through four arms: `kernelbench` (each in a fresh process, `kernelbench_child`, with the trials of its scripts: 5
for correctness and 100 for time, where the function's own defaults are 1 and 10), and in our judge `own` (kernel tier
at level 1, composed at level 2, compiled by nvcc), `split` (the same texts with device code by NVRTC) and `module`
(the very `ModelNew` files that KernelBench gets).

--judges 4 has four of our judges share the GPU: each takes every fourth problem, and they compute side by side while
none of them times (`eval.machine.device_lock`); verdicts an hour are then by the clock on the wall.

Rows are appended to --out as they come; candidates that are in it already are skipped, so that a run which was cut
off goes on. --part 2/5 takes the second fifth of the problems, --limit the first so many candidates of the share.
Builds are reused from an earlier run only with --builds; those of later problems are made beside the judging, as
`eval --batch` does it. Our judge measures no torch.compile baseline here unless --compile-baseline is given, because
KernelBench's evaluator measures none.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cuda_candidates import Texts, candidates
from kernelbench_tables import tables

from rag_kernels.eval.judge import LocalJudge, open_judge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine.device import cpu_name, gpu_name
from rag_kernels.eval.problem import load_problem
from rag_kernels.eval.records import Candidate, FunctionalProblem, Judged, Passed
from rag_kernels.eval.verdict_codes import codes
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes

ARMS = ("kernelbench", "own", "split", "module")
CHILD = Path(__file__).with_name("kernelbench_child.py")


class Log:
    """Rows as JSON lines, on disk at once."""

    def __init__(self, file: Path) -> None:
        self.file = file
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
        self.done = {(r["arm"], r["name"]) for r in rows if r["kind"] == "candidate"}

    def write(self, kind: str, **values: Any) -> None:
        with self.file.open("a") as out:
            out.write(json.dumps({"kind": kind, **values}) + "\n")

    def candidate(self, arm: str, texts: Texts, seconds: float, **values: Any) -> None:
        self.write("candidate", arm=arm, name=texts.name, wrong=texts.wrong, seconds=seconds, **values)
        shown = "" if bool(texts.wrong) != values["accepted"] else f"  ({texts.wrong or 'a right one'})"
        print(f"{arm:12} {seconds:7.2f} s  {texts.name}: {values['verdict']}{shown}", flush=True)


class Run:
    """What was asked for, the share of candidates, and when to stop."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked, self.log = asked, Log(asked.out)
        self.ends: float = time.monotonic() + asked.stop_after
        part, parts = (int(n) for n in asked.part.split("/"))
        groups = [list(g) for _, g in itertools.groupby(candidates(), key=lambda t: t.problem)]
        groups = [g for number, g in enumerate(groups) if number % parts == part - 1 and asked.only in g[0].problem]
        self.share = [t for group in groups for t in group][: asked.limit]

    def todo(self, arm: str) -> list[Texts]:
        return [t for t in self.share if (arm, t.name) not in self.log.done]

    @property
    def over(self) -> bool:
        return time.monotonic() > self.ends

    def file_of(self, problem: str) -> Path:
        return Path(self.asked.kernelbench) / "KernelBench" / f"{problem}.py"


# KernelBench's evaluator


def kernelbench(run: Run) -> None:
    todo = run.todo("kernelbench")
    with nullcontext(run.asked.builds) if run.asked.builds else tempfile.TemporaryDirectory() as folder:
        compiled = _precompiled(run, todo, folder) if run.asked.precompile else {}
        for texts in todo:
            if run.over:
                return
            answer = _child(run, texts, "evaluate", folder)
            stages = dict(answer["stages"])
            before = compiled.get(texts.name, {}).get("stages", {}).get("compile")
            seconds = answer.pop("wall_s")
            if before is not None:  # its compile seconds instead of those of loading what was compiled before
                seconds += before - stages.get("compile", 0.0)
                stages |= {"compile": before, "load compiled": stages.get("compile", 0.0)}
            stages["other"] = seconds - sum(v for k, v in stages.items() if k != "load compiled")
            run.log.candidate("kernelbench", texts, seconds, **(answer | {"stages": stages}))


def _precompiled(run: Run, todo: Sequence[Texts], folder: str) -> dict[str, dict[str, Any]]:
    """What KernelBench's compiling said of each candidate; of those in `folder` from before, what it said then."""
    kept = {t.name: Path(folder) / t.name / "compile.answer.json" for t in todo}
    compiled = {name: json.loads(file.read_text()) for name, file in kept.items() if file.is_file()}
    if missing := [t for t in todo if t.name not in compiled]:
        started = time.perf_counter()
        with ThreadPoolExecutor(run.asked.precompile) as pool:
            jobs = {t.name: pool.submit(_child, run, t, "compile", folder) for t in missing}
            compiled |= {name: job.result() for name, job in jobs.items()}
        wall_s = time.perf_counter() - started
        run.log.write("precompile", seconds=wall_s, jobs=run.asked.precompile, count=len(missing))
        print(f"{len(missing)} compiled by KernelBench's build_compile_cache in {wall_s:.0f} s", flush=True)
    return compiled


def _child(run: Run, texts: Texts, mode: str, folder: str) -> dict[str, Any]:
    """KernelBench's answer; a crash or a timeout is one too."""
    build = Path(folder) / texts.name
    build.mkdir(parents=True, exist_ok=True)
    request, answer, output = (build / f"{mode}.{part}" for part in ("request.json", "answer.json", "log"))
    request.write_text(
        json.dumps(
            {
                "mode": mode,
                "kernelbench": str(Path(run.asked.kernelbench).resolve()),
                "build": str(build),
                "problem": run.file_of(texts.problem).read_text(),
                "model_new": texts.model_new,
                "arch": run.asked.arch,
                "correct_trials": run.asked.correct_trials,
                "perf_trials": run.asked.perf_trials,
            }
        )
    )
    started = time.perf_counter()
    command = [sys.executable, str(CHILD), str(request), str(answer)]
    with output.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            code: int | str = process.wait(timeout=run.asked.timeout)
        except subprocess.TimeoutExpired:
            code = "timed out"
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    wall_s = time.perf_counter() - started
    if answer.is_file():
        return {**json.loads(answer.read_text()), "wall_s": wall_s}
    verdict = code if code == "timed out" else f"the evaluator ended with {code}"
    tail = output.read_text(errors="replace")[-1500:]
    return {"verdict": verdict, "accepted": False, "stages": {}, "log": tail, "wall_s": wall_s}


# Our judge


def ours(run: Run, arm: str) -> None:
    with tempfile.TemporaryDirectory(prefix="rag-kernels-bench-", ignore_cleanup_errors=True) as folder:
        if run.asked.judges > 1:
            _several(run, arm, Path(folder))
        else:
            _judge_all(run, arm, run.asked.cache or Path(folder))


def _several(run: Run, arm: str, cache: Path) -> None:
    """Judges in processes of their own, each with its share of the problems, on one GPU and with one cache."""
    asked, started = run.asked, time.perf_counter()
    files = [asked.out.with_suffix(f".{arm}{number}.jsonl") for number in range(asked.judges)]
    same = ["--kernelbench", asked.kernelbench, "--arms", arm, "--cache", cache / "cache", "--batch", asked.batch]
    same += ["--compile-baseline"] * asked.compile_baseline
    if asked.stop_after < 1e8:
        same += ["--stop-after", asked.stop_after]
    begun = [
        subprocess.Popen(
            [sys.executable, __file__, *map(str, same), "--part", f"{n}/{len(files)}", "--out", str(file)],
            stdout=subprocess.DEVNULL,
        )
        for n, file in enumerate(files, start=1)
    ]
    for process in begun:
        process.wait()
    wall_s = time.perf_counter() - started
    for line in (line for file in files for line in file.read_text().splitlines()):
        row = json.loads(line)
        if row["kind"] == "candidate":
            run.log.write(**row)
    run.log.write("together", arm=arm, seconds=wall_s, judges=asked.judges)


def _judge_all(run: Run, arm: str, cache: Path) -> None:
    """A fault of ours ends one problem, not the run: its candidates get a row that says so."""
    judge: LocalJudge | None = None
    todo = run.todo(arm)
    ahead = ThreadPoolExecutor(4)  # what comes after the first problem is examined and built meanwhile
    forms: dict[str, Future[FunctionalProblem]] = {}
    try:
        for problem, group in itertools.groupby(todo, key=lambda t: t.problem):
            left = list(group)
            try:
                if judge is None:
                    judge = _open(run, arm, cache)
                    later = [t for t in todo[todo.index(left[0]) :] if t.problem != problem]
                    for name, group_ahead in itertools.groupby(later, key=lambda t: t.problem):
                        forms[name] = ahead.submit(_examined, run, judge, name)
                        for texts in group_ahead:
                            ahead.submit(judge.build_ahead, _candidate(arm, texts))
                _one_problem(run, arm, judge, problem, left, forms)
            except Exception as error:
                for texts in left:
                    run.log.candidate(arm, texts, 0.0, verdict=f"error: {error}"[:300], accepted=False, stages={})
                if judge is not None:
                    judge.close()
                judge = None
                forms.clear()  # what is under way there ends with that judge
            if run.over:
                return
    finally:
        ahead.shutdown(cancel_futures=True)
        if judge is not None:
            judge.close()


def _open(run: Run, arm: str, cache: Path) -> LocalJudge:
    started = time.perf_counter()
    limits = replace(Limits(), measure_compile=run.asked.compile_baseline)
    judge = open_judge("cuda", limits=limits, cache_dir=cache, at_other_sizes=at_other_sizes)
    run.log.write("once", arm=arm, what="open the judge", seconds=time.perf_counter() - started)
    return judge


def _functional(run: Run, judge: LocalJudge, problem: str) -> FunctionalProblem:
    return functionalize(load_problem(run.file_of(problem)), workers=judge.workers, deadline_s=300.0)


def _examined(run: Run, judge: LocalJudge, problem: str) -> FunctionalProblem:
    """The functional form of a later problem, with what the judge will ask about it found out."""
    fp = _functional(run, judge, problem)
    judge.examine_ahead(fp)
    return fp


def _one_problem(
    run: Run,
    arm: str,
    judge: LocalJudge,
    problem: str,
    left: list[Texts],
    forms: dict[str, Future[FunctionalProblem]],
) -> None:
    """Judge the candidates in `left`, taking each out of it when it has its verdict.

    Of a later problem only the wait for its functional form counts: it has been made beside the judging.
    """
    started = time.perf_counter()
    fp = forms[problem].result() if problem in forms else _functional(run, judge, problem)
    run.log.write("once", arm=arm, what="functionalize", seconds=time.perf_counter() - started)
    while left and not run.over:
        batch = left[: run.asked.batch]
        asked = [_candidate(arm, texts) for texts in batch]
        for texts, (judged, seconds) in zip(batch, _judged(judge, fp, asked), strict=True):
            verdict = judged.verdict
            labels = list(verdict.labels) if isinstance(verdict, Passed) else []
            run.log.candidate(
                arm,
                texts,
                seconds,
                verdict=", ".join(sorted(codes(verdict))),
                accepted=isinstance(verdict, Passed),
                labels=labels,
                reason=getattr(verdict, "reason", ""),
                stages=judged.stage_s,
                batch=len(batch),
            )
            left.remove(texts)


def _candidate(arm: str, texts: Texts) -> Candidate:
    if arm == "module":
        return Candidate(texts.model_new, "module", "cuda")
    source = texts.split if arm == "split" else texts.own
    return Candidate(source, "composed" if texts.own_tier == "composed" else "kernel", "cuda")


def _judged(judge: LocalJudge, fp: FunctionalProblem, asked: Sequence[Candidate]) -> Iterator[tuple[Judged, float]]:
    """Verdicts, each with the seconds since the one before."""
    started = time.perf_counter()
    for _, judged in judge.judge(fp, asked):
        yield judged, time.perf_counter() - started
        started = time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernelbench", type=Path)
    parser.add_argument("--out", type=Path, default=Path("kernelbench_rows.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+", help="only make the tables, from these files")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--judges", type=int, default=1, help="of ours that share the GPU")
    parser.add_argument("--cache", type=Path, help="of our judge, instead of an empty one")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--part", default="1/1", metavar="I/N")
    parser.add_argument("--only", default="", help="problems whose name contains this")
    parser.add_argument("--batch", type=int, default=1, help="candidates that our judge is given at once")
    parser.add_argument("--precompile", type=int, default=0, metavar="JOBS", help="as KernelBench's build_cache does")
    parser.add_argument("--builds", help="keep KernelBench's builds here, for a run that goes on with this --out")
    parser.add_argument("--compile-baseline", action="store_true")
    parser.add_argument("--correct-trials", type=int, default=5)
    parser.add_argument("--perf-trials", type=int, default=100)
    parser.add_argument("--timeout", type=float, default=300.0, help="of one candidate at KernelBench")
    parser.add_argument("--arch", default="Hopper", help="as KernelBench's gpu_arch")
    parser.add_argument("--stop-after", type=float, default=1e9, metavar="S", help="begin no candidate after it")
    asked = parser.parse_args()
    if asked.table:
        print(tables([json.loads(line) for file in asked.table for line in file.read_text().splitlines()]))
        return
    if asked.kernelbench is None:
        parser.error("name a checkout of KernelBench with --kernelbench PATH")
    run = Run(asked)
    run.log.write(
        "machine",
        gpu=gpu_name() or "no GPU",
        cpu=cpu_name(),
        correct_trials=asked.correct_trials,
        perf_trials=asked.perf_trials,
        compile_baseline=asked.compile_baseline,
    )
    for arm in asked.arms.split(","):
        if arm == "kernelbench":
            kernelbench(run)
        else:
            ours(run, arm)
    print(tables([json.loads(line) for line in asked.out.read_text().splitlines()]))


if __name__ == "__main__":
    main()
