"""What retrieval is worth to a language model: prompts as files, replies as files, one judgement, one table.

    python tests/bench/llm_ablation/llm_ablation.py prompts ROOT --archive ARCHIVE [--baselines ROWS.jsonl]
    python tests/bench/llm_ablation/llm_ablation.py deal ROOT [--seed 1]; ... gather ROOT
    python tests/bench/llm_ablation/llm_ablation.py pack ROOT --archive ARCHIVE --out BATCHES
    rag-kernels eval --batch BATCHES/NAME.jsonl --no-confirm --verdicts NAME.jsonl    (where the GPU is)
    python tests/bench/llm_ablation/llm_ablation.py table NAME.jsonl ... [--keep ALL.jsonl.gz]
    python tests/bench/llm_ablation/llm_ablation.py seeds ONE.jsonl.gz OTHER.jsonl.gz ...

Each of the problems beside this file is drafted once in each way of retrieval (an arm), by the code of `rag-kernels
sample`, with the family of the problem left out of the archive. `prompts` writes ROOT/ARM/NN_prompt.md as they would be
sent; whoever stands in for the model writes NN_reply.md beside it, and sees no other arm's. `pack` reads replies as the
writer does and writes a batch for each problem. `deal` lays the prompts out for as many sessions as arms, as
ROOT/dealt/SESSION/NN_prompt.md: each session has every problem once, in an arm and at a place that are drawn. So it
sees no other arm of a problem, and what sessions differ by falls on all arms alike. Arms joined by a bar
(`bm25|hybrid`) share one place: each problem has one of them. `gather` takes the replies back to their arms. `seeds`
takes several such measurements together: a problem's drafts in an arm count as one, by their geometric mean.
Numbers are of the problems in order of name, the same in all arms.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import random
import re
import shlex
import shutil
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rag_kernels.budget import Ledger
from rag_kernels.eval import codec
from rag_kernels.eval.problem import load_problem
from rag_kernels.eval.records import FunctionalProblem, Passed, Problem, verdict_name
from rag_kernels.experiments.bootstrap import Interval, ratio_interval, share_interval
from rag_kernels.long_runs.sampling import Sampled, Verdicts, read_baselines, write_line
from rag_kernels.options import Options
from rag_kernels.records import Budget, WriterError
from rag_kernels.run.session import run_setting
from rag_kernels.wiring import open_sampler

HERE = Path(__file__).resolve().parent
ARMS = ("off", "random", "bm25", "hybrid", "hybrid+cards")
BARRING = ("suspicious", "degenerate problem")  # labels that keep a kernel off the leaderboard
SHARED = "|"  # between arms that share a place
DEAL = ".deal.json"  # which prompt was dealt where: not to be read before all are answered
SIDES = ("prompt", "reply")
STORE = re.compile(r"cmd:[^\" ]*python[^\" ]* \S*reply_folder\.py \S*?/\.store/")  # where it was on the host
ARCHIVE = re.compile(r"[^\"\s]*/\.archive/")
PROBLEM = re.compile(r"^# The problem: (\S+)$", re.MULTILINE)


def problem_files(asked: argparse.Namespace) -> list[tuple[int, Path]]:
    """Return the files that were asked for, or those beside this one, with their numbers."""
    files = asked.problems or sorted((HERE / "problems").glob("*.py"))
    return list(enumerate(sorted(files, key=lambda file: file.stem), start=1))


class Forms:
    """Hold the problems' functional forms: worked out once, for all arms."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.known: dict[str, FunctionalProblem] = codec.loads(file.read_text()) if file.is_file() else {}

    def form(self, problem: Problem, make: Callable[[Problem], FunctionalProblem]) -> FunctionalProblem:
        if problem.id not in self.known:
            self.known[problem.id] = make(problem)
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
        for number, file in problem_files(asked):
            try:
                one = sampler.sample(load_problem(file), 1, Ledger(Budget(rounds=1)), batch=f"b_{arm}")
            except WriterError:
                one = None
            found.append((number, file, one))
    return found


def write_prompts(asked: argparse.Namespace) -> None:
    numbers = {file.stem: number for number, file in problem_files(asked)}
    for arm in asked.arms:
        shutil.rmtree(asked.root / ".store" / arm, ignore_errors=True)
        sampled(arm, asked)
        (asked.root / arm).mkdir(parents=True, exist_ok=True)
        for file in (asked.root / ".store" / arm).glob("*.prompt.md"):
            text = file.read_text()
            name = PROBLEM.findall(text)[0]
            (asked.root / arm / f"{numbers[name]:02d}_prompt.md").write_text(text)
        print(arm, len(list((asked.root / arm).glob("*_prompt.md"))), "prompts", flush=True)


def dealt(numbers: Sequence[int], arms: Sequence[str], seed: int) -> list[list[tuple[str, int]]]:
    """Return for each session the arms and problems in the order in which they are answered.

    There are as many sessions as arms. Arms are shared out evenly: a session draws each for as many problems as
    another, or for one more; of arms that share a place each has half of the problems.
    """
    draw, problems, order = random.Random(seed), list(numbers), [arm.split(SHARED) for arm in arms]
    draw.shuffle(problems)
    draw.shuffle(order)
    found: list[list[tuple[str, int]]] = []
    for turn in range(len(order)):
        hand: list[tuple[str, int]] = []
        for place, number in enumerate(problems):
            arm = order[(place + turn) % len(order)]
            hand.append((arm[place // len(order) % len(arm)], number))
        draw.shuffle(hand)
        found.append(hand)
    return found


def deal(asked: argparse.Namespace) -> None:
    arms = [arm for shared in asked.arms for arm in shared.split(SHARED)]
    numbers = sorted({int(file.name[:2]) for arm in arms for file in (asked.root / arm).glob("*_prompt.md")})
    hands = dealt(numbers, asked.arms, asked.seed)
    for session, hand in enumerate(hands, start=1):
        folder = asked.root / "dealt" / str(session)
        folder.mkdir(parents=True)
        for place, (arm, number) in enumerate(hand, start=1):
            shutil.copyfile(asked.root / arm / f"{number:02d}_prompt.md", folder / f"{place:02d}_prompt.md")
    (asked.root / DEAL).write_text(json.dumps(hands))
    print(f"{sum(map(len, hands))} prompts for {len(hands)} sessions in {asked.root / 'dealt'}")


def gather(asked: argparse.Namespace) -> None:
    for session, hand in enumerate(json.loads((asked.root / DEAL).read_text()), start=1):
        for place, (arm, number) in enumerate(hand, start=1):
            reply = asked.root / "dealt" / str(session) / f"{place:02d}_reply.md"
            if reply.is_file():
                shutil.copyfile(reply, asked.root / arm / f"{number:02d}_reply.md")
            else:
                print(f"no reply to {place:02d} of session {session}")


def pack(asked: argparse.Namespace) -> None:
    numbers = {file.stem: number for number, file in problem_files(asked)}
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """Hold what came of one draft: its speed-up over the better baseline, none where it was not right, and tokens.

    What the judge itself failed to judge (out of memory beside other judges) is no outcome, and counts nowhere.
    """

    speedup: float | None
    us: float | None
    said: str
    prompt_tokens: int
    reply_tokens: int
    exemplars: int
    cards: int


Found = dict[str, dict[str, Outcome]]  # by arm and problem


def table(asked: argparse.Namespace) -> None:
    told = [line for file in asked.verdicts for line in lines_of(file)]
    kept = [line if ours(line) else without_texts(line) for line in told]
    if asked.keep:
        asked.keep.write_bytes(gzip.compress("".join(kept).encode(), mtime=0))
    found = outcomes(told, asked.without)
    arms = [arm for arm in asked.arms if arm in found]
    names = sorted({name for by_problem in found.values() for name in by_problem})
    parts = [summary(arms, found), by_what_was_shown(arms, found), each(arms, names, found)]
    print("\n\n".join("\n".join(lines) for lines in [*parts, spread(found)]))


def lines_of(file: Path) -> list[str]:
    text = gzip.decompress(file.read_bytes()).decode() if file.suffix == ".gz" else file.read_text()
    return ARCHIVE.sub("", STORE.sub("cmd:reply_folder.py ", text)).splitlines(keepends=True)


def outcomes(lines: Sequence[str], without: Sequence[str] = ()) -> Found:
    found: Found = {}
    for line in lines:
        row = json.loads(line)
        if "verdicts" in row:
            verdicts = codec.decode(row["verdicts"])
            arm, came = arm_of(verdicts), outcome(verdicts)
        else:
            arm, came = row["arm"], row["outcome"] and Outcome(**row["outcome"])
        if came and row["problem"] not in without:
            found.setdefault(arm, {})[row["problem"]] = came
    return found


def seeds(asked: argparse.Namespace) -> None:
    """Print what several measurements come to together, of all drafts and of those that are right."""
    several = [outcomes(lines_of(file), asked.without) for file in asked.verdicts]
    lines = [
        "| arm | problems | drafts | right | faster than PyTorch | over `off` | over `random` | over `off`, right |"
    ]
    lines.append("|---|---:|---:|---:|---:|---:|---:|---:|")
    every, right = pooled(several, kept), pooled(several, lambda one: one.speedup)
    for arm in (arm for arm in asked.arms if arm in every):
        drafts = [value for values in every[arm].values() for value in values]
        correct = sum(map(len, right[arm].values()))
        cells = [arm, str(len(every[arm])), str(len(drafts)), str(correct), str(sum(value > 1 for value in drafts))]
        over = ((every, "off"), (every, "random"), (right, "off"))
        cells += ["" if arm == c else told(ratio_interval(by[arm], by.get(c, {}))) for by, c in over]
        lines.append(f"| {' | '.join(cells)} |")
    print("\n".join(lines))


def pooled(several: Sequence[Found], value: Callable[[Outcome], float | None]) -> dict[str, dict[str, list[float]]]:
    """Return what an outcome is worth in each of several measurements, by arm and problem, where it is anything."""
    found: dict[str, dict[str, list[float]]] = {}
    for by_arm in several:
        for arm, own in by_arm.items():
            for name, one in own.items():
                if (worth := value(one)) is not None:
                    found.setdefault(arm, {}).setdefault(name, []).append(worth)
    return found


def arm_of(told: Verdicts) -> str:
    return str(run_setting(told.sampled.run, "batch")).removeprefix("b_")


def ours(line: str) -> bool:
    """Return whether the line is of a problem beside this file, whose text may be handed on."""
    row = json.loads(line)
    return "verdicts" not in row or (HERE / "problems" / f"{row['problem']}.py").is_file()


def without_texts(line: str) -> str:
    """Return what came of a draft, its reply, and the digest of its prompt, which has the text of others."""
    row = json.loads(line)
    told: Verdicts = codec.decode(row["verdicts"])
    [call] = told.sampled.calls[-1:]
    came = outcome(told)
    kept = {
        "problem": row["problem"],
        "arm": arm_of(told),
        "outcome": came and asdict(came),
        "reply": call.reply,
        "prompt_sha256": hashlib.sha256(call.prompt.encode()).hexdigest(),
    }
    return json.dumps(kept) + "\n"


def outcome(told: Verdicts) -> Outcome | None:
    """Return what came of a run's last draft; None where there is a draft and the judge said nothing of it."""
    calls, brief = told.sampled.calls, told.sampled.told[-1].brief
    tokens = sum(call.prompt_tokens for call in calls), sum(call.completion_tokens for call in calls)
    shown = len(brief.exemplars), len(brief.cards)
    if not told.attempts:
        return None if told.sampled.drafts else Outcome(None, None, "no code", *tokens, *shown)
    judged = told.attempts[-1].judged
    if isinstance(judged.verdict, Passed) and not any(label.startswith(BARRING) for label in judged.verdict.labels):
        return Outcome(judged.verdict.measurement.speedup, judged.verdict.measurement.candidate_us, "", *tokens, *shown)
    return Outcome(None, None, verdict_name(judged.verdict), *tokens, *shown)


def summary(arms: Sequence[str], found: Mapping[str, Mapping[str, Outcome]]) -> list[str]:
    """Return a row for each arm. A draft that is wrong, or slower than PyTorch, leaves PyTorch: a speed-up of 1."""
    lines = [
        "| arm | problems | right at first reply | faster than PyTorch | speed-up, 1 where PyTorch stays | over `off` "
        "| over `random` | speed-up of what is right | over `off`, where both are right | tokens of a prompt "
        "| of a reply |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for arm in arms:
        own = found[arm]
        cells = [arm, str(len(own))]
        for shares in ([one.speedup is not None for one in own.values()], [kept(one) > 1 for one in own.values()]):
            share = share_interval([float(value) for value in shares])
            cells.append(f"{sum(shares)} ({share.low:.0%} to {share.high:.0%})")
        values = {name: [kept(one)] for name, one in own.items()}
        cells.append(told(ratio_interval(values, None)))
        for control in ("off", "random"):
            below = {name: [kept(one)] for name, one in found.get(control, {}).items()}
            cells.append(told(ratio_interval(values, below)) if below and control != arm else "")
        right = {name: [one.speedup] for name, one in own.items() if one.speedup is not None}
        below = {name: [one.speedup] for name, one in found.get("off", {}).items() if one.speedup is not None}
        cells.append(told(ratio_interval(right, None)))
        cells.append(told(ratio_interval(right, below)) if below and arm != "off" else "")
        cells += [f"{statistics.mean(getattr(one, f'{kind}_tokens') for one in own.values()):.0f}" for kind in SIDES]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def by_what_was_shown(arms: Sequence[str], found: Mapping[str, Mapping[str, Outcome]]) -> list[str]:
    """Return the ratio to `off`, PyTorch kept where it is faster, by what the prompt showed, and how far it hangs on
    single problems.
    """
    lines = ["| over `off`, 1 where PyTorch stays | problems | ratio | without the problem that helps it most |"]
    lines.append("|---|---:|---:|---:|")
    below = {name: [kept(one)] for name, one in found.get("off", {}).items()}
    kinds: dict[str, Callable[[Outcome], bool]] = {
        "with exemplars": lambda one: one.exemplars > 0,
        "with cards alone": lambda one: not one.exemplars and one.cards > 0,
    }
    for arm in arms:
        for kind, fits in kinds.items():
            above = {name: [kept(one)] for name, one in found[arm].items() if fits(one) and name in below}
            if not above or arm == "off":
                continue
            most = max(above, key=lambda name: above[name][0] / below[name][0])
            rest = {name: value for name, value in above.items() if name != most}
            cells = [f"{arm}, {kind}", str(len(above)), told(ratio_interval(above, below))]
            lines.append(f"| {' | '.join([*cells, told(ratio_interval(rest, below))])} |")
    return lines


def each(arms: Sequence[str], names: Sequence[str], found: Mapping[str, Mapping[str, Outcome]]) -> list[str]:
    lines = [f"| problem | {' | '.join(arms)} |", f"|---|{'---:|' * len(arms)}"]
    for name in names:
        cells = []
        for arm in arms:
            one = found[arm].get(name)
            right = one and one.speedup is not None
            cells.append(f"{one.speedup:.2f} ({one.us:.0f} us)" if one and right else one.said if one else "not judged")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def spread(found: Mapping[str, Mapping[str, Outcome]]) -> list[str]:
    """Return how far drafts of one problem lie apart whatever their arm: less than that is no arm's doing."""
    by_problem: dict[str, list[float]] = {}
    for own in found.values():
        for name, one in own.items():
            by_problem.setdefault(name, []).append(math.log(kept(one)))
    several = [values for values in by_problem.values() if len(values) > 1]
    squares = sum(statistics.variance(values) * (len(values) - 1) for values in several)
    free = sum(len(values) - 1 for values in several)
    if not free:
        return []
    apart = math.exp(math.sqrt(squares / free)) - 1
    return [f"Drafts of one problem lie {apart:.0%} apart (standard deviation, all arms, PyTorch where it is faster)."]


def kept(one: Outcome) -> float:
    return max(1.0, one.speedup or 1.0)


def told(interval: Interval) -> str:
    """Return an interval in words; nothing where no problem has both sides."""
    return "" if math.isnan(interval.mean) else f"{interval.mean:.2f} ({interval.low:.2f} to {interval.high:.2f})"


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
        command.add_argument("--problems", nargs="*", type=Path, help="instead of those beside this file")
        if name == "pack":
            command.add_argument("--out", type=Path, required=True)
    command = commands.add_parser("deal")
    command.set_defaults(function=deal)
    command.add_argument("root", type=Path)
    command.add_argument("--arms", nargs="*", default=ARMS)
    command.add_argument("--seed", type=int, default=1)
    command = commands.add_parser("gather")
    command.set_defaults(function=gather)
    command.add_argument("root", type=Path)
    command = commands.add_parser("table")
    command.set_defaults(function=table)
    command.add_argument("verdicts", type=Path, nargs="+")
    command.add_argument("--without", nargs="*", default=[], metavar="PROBLEM", help="problems that do not count")
    command.add_argument("--keep", type=Path, help="write all verdicts into one file; of others' problems no text")
    command.add_argument("--arms", nargs="*", default=ARMS)
    command = commands.add_parser("seeds")
    command.set_defaults(function=seeds)
    command.add_argument("verdicts", type=Path, nargs="+", help="one measurement each")
    command.add_argument("--without", nargs="*", default=[], metavar="PROBLEM", help="problems that do not count")
    command.add_argument("--arms", nargs="*", default=ARMS)
    asked = parser.parse_args()
    asked.function(asked)


if __name__ == "__main__":
    main()
