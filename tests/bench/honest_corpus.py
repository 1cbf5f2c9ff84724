"""The judge's false rejects: every kernel of the honest corpus judged, and a table by family.

    .venv/bin/python tests/bench/honest_corpus.py [--only softmax] [--harder shifted] [--every 10] [--thorough]

A kernel is flagged if it carries a label that it should not (`Honest.allowed_labels`). `--thorough` makes every check
that a confirmation makes. `--harder` changes the inputs of the problems (see HARDER): which kernels are fragile?
"""

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import comb
from time import perf_counter

from rag_kernels.eval.judge import LocalJudge, open_judge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import Passed, ProblemError, Verdict
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.eval.verdict_codes import codes
from rag_kernels.eval.zoo.honest.corpus import Honest, honest_kernels
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes

QUICK = Limits(measure_compile=False, timing=TimingRule(pairs=7, max_pairs=7, timed_s=0.02, few_pairs=3))
HARDER = {
    "scaled": "x * 1e3",
    "shifted": "x + 3",
    "offset": "x + 100",
    "tiny": "x * 1e-3",
    "zeros": "x * 0",
    "constant rows": "x[..., :1].expand(x.shape).contiguous()",
    "ties": "torch.round(x)",
    "spikes": "torch.where(torch.rand(x.shape) < 0.01, x * 1e4, x)",
    "spread": "x * 10.0 ** (torch.rand(x.shape[0]) * 6 - 3).reshape(-1, *[1] * (x.dim() - 1)).to(x.dtype)",
}


@dataclass(frozen=True)
class Outcome:
    """One judged kernel. `unexpected` are its codes beyond `passed` and the labels that it may carry."""

    honest: Honest
    verdict: Verdict
    seconds: float

    @property
    def unexpected(self) -> set[str]:
        if not isinstance(self.verdict, Passed):
            return set(codes(self.verdict))
        return {label for label in self.verdict.labels if label.split(":")[0] not in self.honest.allowed_labels}

    @property
    def rejected(self) -> bool:
        return not isinstance(self.verdict, Passed)


def harder(source: str, change: str) -> str:
    """The problem with other inputs of the same shapes: floating-point tensors are changed."""
    return source + (
        "\n\n_inputs = get_inputs\n\n\ndef get_inputs():\n"
        f"    return [({HARDER[change]}).to(x.dtype) if x.is_floating_point() else x for x in _inputs()]\n"
    )


def judged(judge: LocalJudge, corpus: list[Honest], change: str | None) -> Iterator[Outcome]:
    """Judge the kernels problem by problem, so that they share sessions; builds of a problem run together."""
    by_task: dict[str, list[Honest]] = defaultdict(list)
    for honest in corpus:
        by_task[honest.task_source].append(honest)
    for number, (source, group) in enumerate(by_task.items()):
        problem = problem_from_source(f"honest_{number}", harder(source, change) if change else source)
        print(f"{number + 1} of {len(by_task)} problems", end="\r", file=sys.stderr, flush=True)
        try:
            fp = functionalize(problem, workers=judge.workers)
            started = perf_counter()
            verdicts = judge.judge(fp, [h.candidate for h in group])
            for honest, (_, result) in zip(group, verdicts, strict=True):
                yield Outcome(honest, result.verdict, perf_counter() - started)
                started = perf_counter()
        except ProblemError as error:
            print(f"{group[0].name}: {error}\n{source}", flush=True)


def upper_bound(rejected: int, of: int) -> float:
    """Exact one-sided 95 % upper bound of a rate (Clopper and Pearson), by bisection of the binomial sum."""
    low, high = rejected / of, 1.0
    for _ in range(60):
        p = (low + high) / 2
        at_most = sum(comb(of, k) * p**k * (1 - p) ** (of - k) for k in range(rejected + 1))
        low, high = (p, high) if at_most > 0.05 else (low, p)
    return high


def report(outcomes: list[Outcome]) -> str:
    """The Markdown table, then one line for each kernel that was rejected or labelled unexpectedly."""
    heads = ["family", "kernels", "accepted", "rejected", "flagged", "median ratio", "worst ratio", "median s"]
    rows = [f"| {' | '.join(heads)} |", "|---|" + "--:|" * (len(heads) - 1)]
    families: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        families[outcome.honest.family].append(outcome)
        families["all"].append(outcome)
    for family in [*(f for f in families if f != "all"), "all"]:
        members = families[family]
        rejected = sum(o.rejected for o in members)
        ratios = [o.verdict.error_ratio for o in members if isinstance(o.verdict, Passed)] or [0.0]
        seconds = statistics.median(o.seconds for o in members)
        rows.append(
            f"| {family} | {len(members)} | {len(members) - rejected} | {rejected} "
            f"| {sum(bool(o.unexpected) for o in members) - rejected} "
            f"| {statistics.median(ratios):.2f} | {max(ratios):.2f} | {seconds:.2f} |"
        )
    rejected = sum(o.rejected for o in outcomes)
    rows.append(f"\nFalse rejects: {rejected} of {len(outcomes)}, at most {upper_bound(rejected, len(outcomes)):.2%}")
    odd = [o for o in outcomes if o.unexpected]
    rows += [f"- {o.honest.family} / {o.honest.name}: {sorted(o.unexpected)} {_why(o.verdict)}" for o in odd]
    return "\n".join(rows)


def _why(verdict: Verdict) -> str:
    parts = [getattr(verdict, name, "") for name in ("reason", "where", "log")]
    return " ".join(str(part).splitlines()[0][:300] for part in parts if part)


def main() -> None:
    """Judge what was asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a family's or a kernel's name")
    parser.add_argument("--every", type=int, default=1, help="take one kernel in so many")
    parser.add_argument("--harder", choices=HARDER, default=None)
    parser.add_argument("--thorough", action="store_true", help="with the checks of a confirmation")
    asked = parser.parse_args()
    limits = replace(QUICK, thorough=asked.thorough, timing=replace(QUICK.timing, warm_pairs=3, self_pairs=3))
    corpus = [h for h in honest_kernels() if asked.only in f"{h.family} / {h.name}"][:: asked.every]
    started = perf_counter()
    with open_judge("cpu", limits=limits, at_other_sizes=at_other_sizes) as judge:
        outcomes = list(judged(judge, corpus, asked.harder))
    print(report(outcomes))
    print(f"\n{perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()
