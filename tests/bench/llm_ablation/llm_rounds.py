"""What further rounds are worth to a language model: judge them on one card, and tell what each kind of turn won.

    rag-kernels sample --after V1.jsonl --model ... --out B2.jsonl                     (where the model is)
    python tests/bench/llm_ablation/llm_rounds.py judge B2.jsonl --verdicts V2.jsonl   (where the GPU is)
    rag-kernels sample --after V2.jsonl --model ... --out B3.jsonl
    python tests/bench/llm_ablation/llm_rounds.py judge B3.jsonl --before V2.jsonl --verdicts V3.jsonl
    python tests/bench/llm_ablation/llm_rounds.py table V2.jsonl V3.jsonl [--drafted B3.jsonl] [--keep ALL.jsonl.gz]
    python tests/bench/llm_ablation/llm_rounds.py archive ALL.jsonl.gz --out rounds.zip

`judge` is `rag-kernels eval --batch --no-confirm --verdicts` with an archive that is gone with the process. What stands
in BEFORE is not judged again; without it all rounds of the batch are, so that all have their times of one card. In
`table` later verdicts of a run take the place of earlier ones, and drafts of `--drafted` are named that nobody judged.
What was judged on one card is never held against what was judged on another. `archive` makes a bundle of the kernels
that are right, with their lineage: evidence for cards of technique (`make starter-claims BUNDLES=rounds.zip`).
"""

from __future__ import annotations

import argparse
import gzip
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from llm_ablation import BARRING

from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import Attempt
from rag_kernels.eval.records import Passed, verdict_name
from rag_kernels.llm.branch import VERBS
from rag_kernels.long_runs.sampling import (
    Verdicts,
    built_ahead,
    judge_what_fits,
    merge,
    read_lines,
    read_verdicts,
    write_verdicts,
)
from rag_kernels.options import Options
from rag_kernels.wiring import open_session

DRAFT, EXPLORE = "first draft", "explore"
KINDS = (DRAFT, "improve", "repair", "recombine", "explore", "revisit")
BETTER = 1.01  # less is chance
# Where the program was on the host.
BRIDGE = re.compile(r"cmd:[^\" ]*python[^\" ]* \S*reply_folder\.py \S*?([^/\" ]+)( --wait \d+)?(?=\")")


def judge(asked: argparse.Namespace) -> None:
    archive, sampled, begun = MemoryArchive(), read_lines(asked.batch), time.monotonic()
    for old in read_verdicts(asked.before) if asked.before else ():
        merge(old.sampled, archive)
        for attempt in old.attempts:
            archive.record_attempt(attempt)
    options = Options(device=asked.device, archive=":memory:")
    with open_session(options, archive=archive, counters=True) as opened, built_ahead(sampled, opened.judge):
        session = replace(opened, index=lambda attempt: None)
        for one in sampled:
            for attempt in judge_what_fits(one, session, confirm=False):
                print(
                    f"{time.monotonic() - begun:.0f} s: {one.problem.name} #{attempt.number} {said(attempt)}",
                    flush=True,
                )
            write_verdicts(asked.verdicts, one, archive.attempts(one.run.id))


def said(attempt: Attempt) -> str:
    verdict = attempt.judged.verdict
    if not isinstance(verdict, Passed):
        return verdict_name(verdict)
    found = verdict.measurement
    return (
        f"{found.candidate_us:.1f} us, {found.speedup:.3f} over the better of PyTorch's ({found.eager_us:.0f} us eager)"
    )


@dataclass(frozen=True, slots=True)
class Turn:
    """Hold what one candidate came to on a card: its speed-up over the better baseline, none where it was not right;
    that of the best that it was made from; and that of the best of its problem before its round, at least PyTorch's 1.
    """

    problem: str
    round: int
    kind: str
    speedup: float | None
    us: float | None
    said: str
    of_parents: float | None
    before: float
    card: str = ""


def turns(told: Verdicts) -> Iterator[Turn]:
    """Yield what came of each candidate of a run, in order."""
    known: dict[tuple[str, str], float | None] = {}
    best: dict[tuple[str, int], float] = {}
    for attempt in sorted(told.attempts, key=lambda a: a.number):
        own, card = right(attempt), card_of(attempt)
        made_from = [(card, e.source) for e in attempt.parents if e.relation != "retrieved"]
        of_parents = max((p for key in made_from if (p := known.get(key)) is not None), default=None)
        before = max([1.0, *(v for (on, number), v in best.items() if on == card and number < attempt.round)])
        verdict = attempt.judged.verdict
        us = verdict.measurement.candidate_us if isinstance(verdict, Passed) else None
        name = "" if own is not None else verdict_name(verdict)
        yield Turn(told.sampled.problem.name, attempt.round, kind_of(attempt), own, us, name, of_parents, before, card)
        known[card, attempt.candidate.id] = own
        best[card, attempt.round] = max(best.get((card, attempt.round), before), own or 0.0)


def card_of(attempt: Attempt) -> str:
    """Return the model of the card: "H200" of "NVIDIA H200"."""
    return attempt.judged.device.name.removeprefix("NVIDIA ").split()[0]


def right(attempt: Attempt) -> float | None:
    verdict = attempt.judged.verdict
    if isinstance(verdict, Passed) and not any(label.startswith(BARRING) for label in verdict.labels):
        return verdict.measurement.speedup
    return None


def kind_of(attempt: Attempt) -> str:
    if attempt.round == 1:
        return DRAFT
    return next((kind for kind, verb in VERBS.items() if attempt.note.startswith(verb)), EXPLORE)


def table(asked: argparse.Namespace) -> None:
    texts = [gzip.decompress(f.read_bytes()).decode() if f.suffix == ".gz" else f.read_text() for f in asked.verdicts]
    with tempfile.TemporaryDirectory() as folder:
        together = Path(folder) / "verdicts.jsonl"
        together.write_text(BRIDGE.sub(r"cmd:reply_folder.py \1", "".join(texts)))
        found = read_verdicts(together)
        latest = {one.sampled.run.id: one for one in found}
        older = [one for one in found if latest[one.sampled.run.id] is not one]
        if asked.drafted:
            together.write_text(BRIDGE.sub(r"cmd:reply_folder.py \1", asked.drafted.read_text()))
            newer = {one.run.id: one for one in read_lines(together)}
            latest = {key: replace(one, sampled=newer.get(key, one.sampled)) for key, one in latest.items()}
        told = [answered(one) for one in latest.values()]
        if asked.keep:
            kept = Path(folder) / "kept.jsonl"
            for one in [*map(answered, older), *told]:
                write_verdicts(kept, one.sampled, one.attempts)
            asked.keep.write_bytes(gzip.compress(kept.read_bytes(), mtime=0))
    came = {one.sampled.problem.name: list(turns(one)) for one in told}
    left = {one.sampled.problem.name: not_judged(one) for one in told}
    print("\n".join([*by_round(came, left), "", *by_kind([turn for own in came.values() for turn in own])]))


def archive(asked: argparse.Namespace) -> None:
    """Write a bundle of what each run's latest verdicts found right."""
    from rag_kernels.archive.bundle import export
    from rag_kernels.archive.records import KernelFilter

    kept = MemoryArchive()
    with tempfile.TemporaryDirectory() as folder:
        together = Path(folder) / "verdicts.jsonl"
        together.write_bytes(gzip.decompress(asked.verdicts.read_bytes()))
        latest = {one.sampled.run.id: one for one in read_verdicts(together)}
    for one in latest.values():
        kept.start_run(one.sampled.run)
        good = [attempt for attempt in one.attempts if right(attempt) is not None]
        known = {attempt.candidate.id for attempt in good}
        for attempt in good:
            own = tuple(e for e in attempt.parents if e.relation != "retrieved" and e.source in known)
            kept.record_attempt(replace(attempt, parents=own, exemplars=(), techniques=()))
    where = KernelFilter(min_trust="verified")
    print(export(kept, asked.out, where, licence="Apache-2.0", attribution="rag-kernels, by a language model"))


def answered(told: Verdicts) -> Verdicts:
    """Return verdicts without requests that found no reply yet: with a folder for a model each is asked many times."""
    calls = tuple(call for call in told.sampled.calls if not call.error)
    return replace(told, sampled=replace(told.sampled, calls=calls))


def not_judged(told: Verdicts) -> Counter[int]:
    """Return how many drafts of each round have no verdict."""
    judged = {attempt.candidate.id for attempt in told.attempts}
    drafts = [(one.brief.round, draft) for one in told.sampled.told for draft in one.drafts or ()]
    return Counter(number for number, draft in drafts if draft.candidate.id not in judged)


def by_round(found: Mapping[str, Sequence[Turn]], left: Mapping[str, Counter[int]]) -> list[str]:
    """Return a row for each problem: what each round's candidates came to, and the best so far."""
    rounds = sorted({turn.round for own in found.values() for turn in own} | {r for own in left.values() for r in own})
    lines = [f"| problem | card | {' | '.join(f'round {number}' for number in rounds)} | best |"]
    lines.append(f"|---|---|{'---|' * len(rounds)}---:|")
    ends: list[list[float]] = []
    for name, own in sorted(found.items()):
        cards = list(dict.fromkeys(turn.card for turn in own))
        said_of = {
            number: [told_turn(turn, len(cards) > 1) for turn in own if turn.round == number] for number in rounds
        }
        for number, count in left[name].items():
            said_of[number].append(f"{count} not judged")
        cells = ["; ".join(said_of[number]) for number in rounds]
        last = [turn for turn in own if turn.card in cards[-1:]]  # a ratio is one of a card
        tops = [max([1.0, *(t.speedup or 0.0 for t in last if t.round == number)]) for number in rounds]
        ends.append(list(accumulate(tops, max)))
        best = max((t.speedup or 0.0 for t in last), default=0.0)
        lines.append(f"| {name} | {', '.join(cards)} | {' | '.join(cells)} | {f'{best:.2f}' if best else 'none'} |")
    means = [statistics.geometric_mean(column) for column in zip(*ends, strict=True)]
    lines.append(f"| best so far, 1 where PyTorch stays, mean | | {' | '.join(f'{m:.3f}' for m in means)} | |")
    return lines


def told_turn(turn: Turn, with_card: bool = False) -> str:
    card = f", {turn.card}" if with_card else ""
    came = turn.said if turn.speedup is None else f"{turn.speedup:.2f} ({turn.us:.0f} us{card})"
    return came if turn.kind == DRAFT else f"{turn.kind} {came}"


def by_kind(all_turns: Sequence[Turn]) -> list[str]:
    """Return a row for each kind of turn: how often it was right, beat what it was made from, and gave a new best."""
    lines = [
        "| turn | judged | right | better than what it was made from | its speed to theirs, where both are right "
        "| its speed to the best before, at least PyTorch | new best of its problem | faster than PyTorch |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for kind in KINDS:
        own = [turn for turn in all_turns if turn.kind == kind]
        if not own:
            continue
        ratios = [t.speedup / t.of_parents for t in own if t.speedup is not None and t.of_parents is not None]
        counted = Counter[str]()
        for turn in own:
            counted["right"] += turn.speedup is not None
            counted["best"] += (turn.speedup or 0.0) > BETTER * turn.before
            counted["faster"] += (turn.speedup or 0.0) > 1
        cells = [kind, str(len(own)), str(counted["right"])]
        cells.append(f"{sum(ratio > BETTER for ratio in ratios)} of {len(ratios)}" if ratios else "")
        cells.append(f"{statistics.geometric_mean(ratios):.2f}" if ratios else "")
        beside = [t.speedup / t.before for t in own if t.speedup is not None and kind != DRAFT]
        cells.append(f"{statistics.geometric_mean(beside):.2f}" if beside else "")
        lines.append(f"| {' | '.join([*cells, str(counted['best']), str(counted['faster'])])} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("judge")
    command.set_defaults(function=judge)
    command.add_argument("batch", type=Path)
    command.add_argument("--before", type=Path, help="verdicts that are taken as they are")
    command.add_argument("--verdicts", type=Path, required=True)
    command.add_argument("--device", default="cuda")
    command = commands.add_parser("table")
    command.set_defaults(function=table)
    command.add_argument("verdicts", type=Path, nargs="+")
    command.add_argument("--drafted", type=Path, help="a batch with drafts that nobody judged")
    command.add_argument(
        "--keep", type=Path, help="write all verdicts, earlier ones too, with prompts and replies, into one file"
    )
    command = commands.add_parser("archive")
    command.set_defaults(function=archive)
    command.add_argument("verdicts", type=Path, help="what table --keep wrote")
    command.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.function(asked)


if __name__ == "__main__":
    main()
