"""What retrieval is worth to a language model: prompts as files, replies as files, one judgement, one table.

    python tests/bench/llm_ablation/llm_ablation.py prompts ROOT --archive ARCHIVE [--baselines ROWS.jsonl]
    python tests/bench/llm_ablation/llm_ablation.py pack ROOT --archive ARCHIVE --out BATCHES
    rag-kernels eval --batch BATCHES/NAME.jsonl --json ... > ROWS    (where the GPU is)
    python tests/bench/llm_ablation/llm_ablation.py table ROOT BATCHES ROWS ... > llm_ablation.md

Each of the problems beside this file is drafted once in each way of retrieval (an arm), by the code of `rag-kernels
sample`, with the family of the problem left out of the archive. `prompts` writes ROOT/ARM/NN_prompt.md as they would be
sent; whoever stands in for the model writes NN_reply.md beside it, and sees no other arm's. `pack` reads replies as the
writer does and writes a batch for each problem. Numbers are of the problems in order of name, the same in all arms.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from rag_kernels.budget import Ledger
from rag_kernels.eval import codec
from rag_kernels.eval.problem import load_problem
from rag_kernels.eval.records import FunctionalProblem, Problem
from rag_kernels.long_runs.sampling import Sampled, read_baselines, write_line
from rag_kernels.options import Options
from rag_kernels.records import Budget, WriterError
from rag_kernels.wiring import open_sampler

HERE = Path(__file__).resolve().parent
ARMS = ("off", "random", "hybrid", "hybrid+cards")
PROBLEM = re.compile(r"^# The problem: (\S+)$", re.MULTILINE)


def problem_files() -> list[Path]:
    return sorted((HERE / "problems").glob("*.py"))


class Forms:
    """Hold the problems' functional forms: worked out once, for all arms."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.known: dict[str, FunctionalProblem] = codec.loads(file.read_text()) if file.is_file() else {}

    def form(self, problem: Problem, make: object) -> FunctionalProblem:
        if problem.id not in self.known:
            self.known[problem.id] = make(problem)  # type: ignore[operator]
            self._file.write_text(codec.dumps(self.known))
        return self.known[problem.id]


def sampled(arm: str, asked: argparse.Namespace) -> list[tuple[int, Path, Sampled | None]]:
    """Return what each problem's draft came to in an arm; None where its reply is not there yet."""
    store, archive = asked.root / ".store" / arm, asked.root / ".archive" / arm
    shutil.rmtree(archive, ignore_errors=True)
    shutil.copytree(asked.archive, archive)
    program = shlex.join([sys.executable, str(HERE.parent / "reply_folder.py"), str(store)])
    options = Options(
        models=(f"cmd:{program}",),
        device="cuda",
        retrieval=arm,  # type: ignore[arg-type]
        leave_out="family",
        archive=str(archive),
    )
    baselines = read_baselines(asked.baselines) if asked.baselines else {}
    forms, found = Forms(asked.root / ".forms.json"), []
    with open_sampler(options, asked.target, baselines) as made:
        sampler = replace(made, functionalize=lambda problem: forms.form(problem, made.functionalize))
        for number, file in enumerate(problem_files(), start=1):
            try:
                one = sampler.sample(load_problem(file), 1, Ledger(Budget(rounds=1)), batch=f"b_{arm}")
            except WriterError:
                one = None
            found.append((number, file, one))
    return found


def write_prompts(asked: argparse.Namespace) -> None:
    numbers = {file.stem: number for number, file in enumerate(problem_files(), start=1)}
    for arm in asked.arms:
        shutil.rmtree(asked.root / ".store" / arm, ignore_errors=True)
        sampled(arm, asked)
        (asked.root / arm).mkdir(parents=True, exist_ok=True)
        for file in (asked.root / ".store" / arm).glob("*.prompt.md"):
            text = file.read_text()
            name = PROBLEM.findall(text)[0]
            (asked.root / arm / f"{numbers[name]:02d}_prompt.md").write_text(text)
        print(arm, len(list((asked.root / arm).glob("*_prompt.md"))), "prompts", flush=True)


def pack(asked: argparse.Namespace) -> None:
    numbers = {file.stem: number for number, file in enumerate(problem_files(), start=1)}
    shutil.rmtree(asked.out, ignore_errors=True)
    asked.out.mkdir(parents=True)
    for arm in asked.arms:
        for file in (asked.root / ".store" / arm).glob("*.prompt.md"):
            number = numbers[PROBLEM.findall(file.read_text())[0]]
            reply = asked.root / arm / f"{number:02d}_reply.md"
            if reply.is_file():
                shutil.copy(reply, file.with_name(file.name.replace(".prompt.", ".reply.")))
        for number, file, one in sampled(arm, asked):
            if one is None:
                print(f"{arm} {number:02d} {file.stem}: no draft")
            else:
                write_line(asked.out / f"{number:02d}_{file.stem}.jsonl", one)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, function in (("prompts", write_prompts), ("pack", pack)):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("root", type=Path)
        command.add_argument("--archive", type=Path, required=True, help="retrieved from, never changed")
        command.add_argument("--target", type=Path, default=Path("h200"))
        command.add_argument("--baselines", type=Path)
        command.add_argument("--arms", nargs="*", default=ARMS)
        if name == "pack":
            command.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.function(asked)


if __name__ == "__main__":
    main()
