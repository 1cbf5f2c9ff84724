"""KernelBench's own evaluator over the zoo, on a GPU: which cheats it accepts, and which honest kernels it rejects.

    python tests/bench/kernelbench_zoo.py --kernelbench PATH [--part 1/4] [--jobs 4] --out rows.jsonl
    python tests/bench/kernelbench_zoo.py --ours [--part 1/4] --out modules.jsonl
    python tests/bench/kernelbench_zoo.py --table rows.jsonl modules.jsonl zoo.jsonl [more.jsonl ...]

PATH is a checkout of KernelBench (PATH/src/kernelbench). `kernelbench_zoo_texts` says what each text becomes and what
is left out. CUDA sources are compiled beforehand, all at once, by nvcc with the kernel contract's light header, and
`ModelNew` loads the library: a legal one, and quick, where torch's header takes 40 s a text. Then each text has a
process of its own, forked from one that has imported torch and KernelBench, in a folder of its own, and
`eval_kernel_against_ref` as KernelBench's scripts call it (5 trials for correctness, 100 for time). --jobs of them
start at once; they check and time one after the other. A text *is accepted* if it compiled and its correctness is True;
whoever kills the process or takes longer than --timeout is rejected. What KernelBench's static checker says of the file
is noted beside it (without its demand for `__global__` and `load_inline`, which no module here meets).

Rows are appended to --out; what is in it already is skipped, so that a run that was cut off goes on. --ours has the
zoo's judge look at the same modules on the same GPU. The table takes these rows and those of `rag-kernels zoo --json`
on the GPU (for modules without --ours: on the CPU), and puts both judges side by side.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelbench_child import evaluate, stub
from kernelbench_zoo_table import table
from kernelbench_zoo_texts import Entry, entries, kernel_new, module_new, modules_on_gpu, part_of

from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.eval.machine.device import cpu_name, gpu_name
from rag_kernels.eval.places import default_cache
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.zoo.parts import read_part
from rag_kernels.zoo.report import line, row
from rag_kernels.zoo.runner import Text, judge_texts, open_zoo

STUCK_S = 300.0  # even one that waits for its turn ends some time
FILE_BYTES = 256 << 20


@dataclass
class Live:
    """One text whose process runs."""

    entry: Entry
    folder: Path
    started: float


class Run:
    """What was asked for, and the rows so far."""

    def __init__(self, asked: argparse.Namespace, folder: Path) -> None:
        self.asked, self.folder, self.out = asked, folder, asked.out
        self.ends = time.monotonic() + asked.stop_after
        rows = [json.loads(line) for line in self.out.read_text().splitlines()] if self.out.is_file() else []
        self.done = {(r["device"], r["kind"], r["name"]) for r in rows if "name" in r}

    def write(self, **values: Any) -> None:
        with self.out.open("a") as file:
            file.write(json.dumps({"judge": "kernelbench"} | values) + "\n")


# Before: every text as a file for KernelBench


def model_files(todo: Sequence[Entry], *, cache: Path) -> dict[Entry, str]:
    """`ModelNew` for each; CUDA sources compiled together, problems put into functional form once each."""
    forms: dict[str, FunctionalProblem] = {}
    kernels = [e for e in todo if not e.is_module]
    workers = Workers()
    try:
        for source in dict.fromkeys(e.problem for e in kernels):
            forms[source] = functionalize(problem_from_source("zoo", source), workers=workers)
    finally:
        workers.close()
    gpu = gpu_name()
    tools = toolchain(f"sm_{gpu.split(',')[1].strip().replace('.', '')}" if gpu else "sm_90")
    built = build([(e.text.candidate.source, "cuda") for e in kernels], tools=tools, cache=cache)
    files = {e: module_new(e.text.candidate.source) for e in todo if e.is_module}
    for entry, result in zip(kernels, built, strict=True):
        if not isinstance(result, Built):
            raise SystemExit(f"{entry.text.name} does not compile: {result.log[-500:]}")
        files[entry] = kernel_new(entry.text.candidate.source, result.library, forms[entry.problem])
    return files


def import_kernelbench(path: Path, arch: str) -> Any:
    """KernelBench's `eval`, without a look at the GPU: whoever has touched CUDA cannot be forked."""
    import torch

    sys.path.insert(0, str(path / "src"))
    stub()
    look, torch.cuda.is_available = torch.cuda.is_available, lambda: False
    try:
        from kernelbench import eval as module  # type: ignore[import-not-found]
        from kernelbench import kernel_static_checker, timing, utils  # noqa: F401
    finally:
        torch.cuda.is_available = look
    utils.set_gpu_arch([arch])
    return module


def objections(text: str) -> list[str]:
    """What KernelBench's static checker forbids in this file, its backend's demand aside."""
    from kernelbench.kernel_static_checker import validate_kernel_static  # type: ignore[import-not-found]

    return sorted(validate_kernel_static(text, backend="", precision="fp32")[1])


def ours(run: Run, groups: dict[str, list[Text]]) -> None:
    """Our judge over modules, as `rag-kernels zoo` does it; rows carry the names of the CPU's zoo."""
    todo = {
        source: [t for t in group if t.family == "plain" or ("cpu", t.kind, t.name) not in run.done]
        for source, group in groups.items()
    }
    with open_zoo("cuda") as judge:
        for seen in judge_texts(judge, {source: group for source, group in todo.items() if len(group) > 1}):
            print(line(seen), flush=True)
            if seen.text.family != "plain":
                run.write(**row(seen) | {"judge": "ours", "device": "cpu", "judged_on": "cuda"})
            if time.monotonic() > run.ends:
                return


# One text in a process of its own


def child(run: Run, module: Any, entry: Entry, model_new: str, folder: Path) -> None:
    """After the fork: everything here may be tampered with by the text; the parent believes only the answer's file."""
    os.setsid()
    os.chdir(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    sys.argv = ["scripts/run_and_check.py"]  # as KernelBench would start it: some look for words in it
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    check = module.run_and_check_correctness

    def in_turn(*arguments: Any, **keywords: Any) -> Any:
        """From the first check on the device is this text's alone, until its process ends."""
        fcntl.flock(os.open(run.folder / "turn", os.O_WRONLY | os.O_CREAT), fcntl.LOCK_EX)
        signal.alarm(int(run.asked.timeout))
        return check(*arguments, **keywords)

    module.run_and_check_correctness = in_turn
    request = {
        "problem": entry.problem,
        "model_new": model_new,
        "build": str(folder),
        "correct_trials": run.asked.correct_trials,
        "perf_trials": run.asked.perf_trials,
    }
    answer = evaluate(module, request, {})
    (folder / "answer.json").write_text(json.dumps(answer))


def start(run: Run, module: Any, entry: Entry, model_new: str) -> tuple[int, Live]:
    folder = Path(tempfile.mkdtemp(dir=run.folder))
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child(run, module, entry, model_new, folder)
            code = 0
        except BaseException as error:
            with suppress(BaseException):
                (folder / "raised").write_text(f"{type(error).__name__}: {error}"[:300])
        finally:
            os._exit(code)
    return pid, Live(entry, folder, time.monotonic())


def ended(live: Live, status: int) -> dict[str, Any]:
    """The evaluator's verdict; a process that ended without one has rejected the text."""
    answer, raised = live.folder / "answer.json", live.folder / "raised"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        late = number in (signal.SIGALRM, signal.SIGKILL)
        verdict = "timed_out" if late else f"crashed: {signal.Signals(number).name}"
        return {"accepted": False, "verdict": verdict}
    if answer.is_file():
        found: dict[str, Any] = json.loads(answer.read_text())
        return found
    why = raised.read_text() if raised.is_file() else f"ended with {os.waitstatus_to_exitcode(status)} and no verdict"
    return {"accepted": False, "verdict": "crashed", "reasons": {"evaluator": why}}


def evaluate_all(run: Run, module: Any, files: dict[Entry, str]) -> Iterator[tuple[Entry, dict[str, Any]]]:
    """As many processes as --jobs at once; yields in the order in which they end."""
    waiting, living = list(files.items()), dict[int, Live]()
    while living or (waiting and time.monotonic() < run.ends):
        while waiting and len(living) < run.asked.jobs and time.monotonic() < run.ends:
            pid, live = start(run, module, *waiting.pop(0))
            living[pid] = live
        for pid, live in list(living.items()):
            if time.monotonic() - live.started > STUCK_S:
                os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            del living[pid]
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what it left behind
            answer = ended(live, status)
            shutil.rmtree(live.folder, ignore_errors=True)
            yield live.entry, answer | {"seconds": round(time.monotonic() - live.started, 2)}
        time.sleep(0.005)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernelbench", type=Path)
    parser.add_argument("--out", type=Path, default=Path("kernelbench_zoo.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+", help="only make the table, from these files")
    parser.add_argument("--part", default="1/1", metavar="I/N")
    parser.add_argument("--only", default="", help="texts whose name contains this")
    parser.add_argument("--jobs", type=int, default=4, help="processes at once")
    parser.add_argument("--correct-trials", type=int, default=5)
    parser.add_argument("--perf-trials", type=int, default=100)
    parser.add_argument("--timeout", type=float, default=45.0, help="seconds of one text, from its first check on")
    parser.add_argument("--arch", default="Hopper", help="as KernelBench's gpu_arch")
    parser.add_argument("--stop-after", type=float, default=1e9, metavar="S", help="begin no text after it")
    parser.add_argument("--ours", action="store_true", help="our own judge over the modules, on the GPU")
    parser.add_argument("--files", type=Path, help="only write every text as KernelBench gets it to this folder")
    asked = parser.parse_args()
    if asked.table:
        print(table(asked.table))
        return
    if asked.kernelbench is None and asked.files is None and not asked.ours:
        parser.error("name a checkout of KernelBench with --kernelbench PATH")
    part = read_part(asked.part)
    with tempfile.TemporaryDirectory(prefix="kernelbench-zoo-") as folder:
        run = Run(asked, Path(folder))
        if asked.ours:
            ours(run, modules_on_gpu(*part))
            return
        theirs(run, part)


def theirs(run: Run, part: tuple[int, int]) -> None:
    """KernelBench's evaluator over one part of the zoo."""
    asked = run.asked
    share = part_of(entries(), *part)
    todo = [e for e in share if e.key not in run.done and asked.only in e.text.name]
    began = time.monotonic()
    files = model_files(todo, cache=default_cache())
    print(f"{len(files)} texts ready in {time.monotonic() - began:.0f} s", flush=True)
    if asked.files is not None:
        write_files(files, asked.files)
        return
    module = import_kernelbench(asked.kernelbench.resolve(), asked.arch)
    run.write(gpu=gpu_name() or "no GPU", cpu=cpu_name(), part=asked.part)
    for entry, answer in evaluate_all(run, module, files):
        device, kind, name = entry.key
        found = answer | {"static": objections(files[entry]), "candidate": entry.text.candidate.id}
        run.write(device=device, kind=kind, name=name, family=entry.text.family, **found)
        said = "accepts" if answer["accepted"] else f"rejects ({answer['verdict']})"
        print(f"{answer['seconds']:6.2f} s  {kind:8}  {name}: {said}", flush=True)


def write_files(files: dict[Entry, str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for entry, text in files.items():
        stem = "".join(c if c.isalnum() else "_" for c in f"{entry.text.kind} {entry.text.name}")
        (folder / f"{stem}.py").write_text(text)
        (folder / f"{stem}_problem.py").write_text(entry.problem)


if __name__ == "__main__":
    main()
