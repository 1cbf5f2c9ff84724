"""Rows and sums for tables and charts, from records and small tables.

Comes in: rows and records as `app.data` reads them. Goes out: tables and numbers. Pure pandas: knows nothing of
archives or pages.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rag_kernels.archive.browse import Failure, Paid, SignalRecord
from rag_kernels.archive.queries import AttemptRow, RunRow
from rag_kernels.archive.records import Exemplar, Run
from rag_kernels.eval.admission_records import Admission
from rag_kernels.experiments.retrieval_ablation import AblationTrial, summarise
from rag_kernels.text.likeness import likeness

BASELINES = {"eager": "eager", "over_compile": "torch.compile"}
NUMBERS = ("speedup", "cost_usd", "best", "median_speedup", "likeness", "dense", "graph")
ATTEMPT_COLUMNS = (
    "run_id",
    "number",
    "round",
    "problem_id",
    "problem",
    "kernel_id",
    "outcome",
    "reason",
    "speedup",
    "at_least",
    "won",
    "writer",
    "model",
    "idea",
    "cost_usd",
    "seconds",
    "created_at",
)
RUN_COLUMNS = (
    "id",
    "problem_id",
    "command",
    "problem",
    "status",
    "attempts",
    "passed",
    "verified_kernels",
    "best",
    "at_least",
    "seconds",
    "cost_usd",
    "created_at",
)
FAILURE_COLUMNS = ("outcome", "reason", "count", "problems")
EXEMPLAR_COLUMNS = (
    "id",
    "rank",
    "problem",
    "idea",
    "speedup",
    "score",
    "same_graph",
    "bm25",
    "dense",
    "graph",
    "others",
    "likeness",
    "shown",
    "passed",
    "won",
    "reasons",
)
SIGNAL_NAMES = {
    "same graph": "same graph",
    "bm25": "words (bm25)",
    "dense": "vectors (dense)",
    "graph": "operator graph",
    "remedy": "remedy",
    "drawn at random": "drawn at random (control)",
    "no exemplar": "nothing was shown",
}


@dataclass(frozen=True, slots=True)
class Summary:
    kernels: int
    problems: int
    attempts: int
    best_speedup: float | None
    best_at_least: bool
    mean_speedup: float | None
    cost_usd: float | None


@dataclass(frozen=True, slots=True)
class Burn:
    """Hold how much of one budget a run has used; `limit` is None where there was none."""

    name: str
    used: float
    limit: float | None


def summary(kernels: int, best: pd.DataFrame, problems: int, stats: Mapping[str, int | float]) -> Summary:
    """Return sums over attempts. `best` has a row for each problem and device."""
    gains = best["speedup"]
    greatest, at_least = best_told(best)
    unknown = stats["llm_calls"] > 0 and stats["calls_of_unknown_cost"] == stats["llm_calls"]
    return Summary(
        kernels=kernels,
        problems=problems,
        attempts=int(stats["attempts"]),
        best_speedup=greatest,
        best_at_least=at_least,
        mean_speedup=math.exp(sum(map(math.log, gains)) / len(gains)) if len(gains) else None,
        cost_usd=None if unknown else float(stats["cost_usd"]),
    )


def best_told(table: pd.DataFrame) -> tuple[float | None, bool]:
    """Return the best speed-up, and whether nothing confirmed it: what is confirmed comes before what is not."""
    known = table.dropna(subset=["speedup"])
    if known.empty:
        return None, False
    best = known.sort_values(["at_least", "speedup"], ascending=[True, False]).iloc[0]
    return float(best["speedup"]), bool(best["at_least"])


def fast_p(best: pd.DataFrame, problems: int) -> pd.DataFrame:
    """Return the share of the problems whose best kernel beats each threshold, against each baseline."""
    gains = {name: best[column].dropna() for column, name in BASELINES.items()}
    top = max([2.0, *(1.1 * values.max() for values in gains.values() if len(values))])
    steps = [0.5 * (top / 0.5) ** (i / 150) for i in range(151)]
    rows = [(p, float((v > p).sum()) / problems, name) for name, v in gains.items() if len(v) for p in steps]
    return pd.DataFrame(rows, columns=["threshold", "share", "baseline"])


def outcome_counts(attempts: pd.DataFrame) -> pd.DataFrame:
    return attempts["outcome"].value_counts().rename_axis("outcome").reset_index(name="count")


def progress(attempts: pd.DataFrame, name: str = "") -> pd.DataFrame:
    """Return attempts in the order in which they were made, with the best speed-up so far: the best confirmed one
    where any is.
    """
    ordered = attempts.sort_values(["created_at", "run_id", "number"]).reset_index(drop=True)
    unsure = ordered["at_least"].astype(bool)
    sure = ordered["speedup"].mask(unsure)
    best = (sure if sure.notna().any() else ordered["speedup"]).cummax().ffill()
    columns = ordered[["speedup", "at_least", "outcome"]]
    return columns.assign(attempt=range(1, len(ordered) + 1), best=best, name=name)


def credit(attempts: pd.DataFrame) -> pd.DataFrame:
    """Return, per writer and model of one run: attempts, passes, wins, the best confirmed speed-up, what they cost."""
    sure = attempts["speedup"].mask(attempts["at_least"].astype(bool))
    marked = attempts.assign(passed=attempts["outcome"] == "passed", sure=sure)
    groups = marked.groupby(["writer", "model"])
    table = groups.agg(
        attempts=("number", "size"),
        passed=("passed", "sum"),
        won=("won", "sum"),
        best=("sure", "max"),
        cost_usd=("cost_usd", lambda costs: costs.sum(skipna=False)),
    ).reset_index()
    percent = 100 * table["passed"] / table["attempts"]
    per_win = table["cost_usd"] / table["won"].where(table["won"] > 0)
    return table.assign(passed_percent=percent, cost_per_win=per_win).sort_values("won", ascending=False)


def burned(run: Run, attempts: pd.DataFrame, *, seconds: float, tokens: int, usd: float) -> list[Burn]:
    """Return what a run has used of each budget that its settings name."""
    try:
        settings = json.loads(run.settings)
    except ValueError:
        settings = {}
    settings = settings if isinstance(settings, dict) else {}
    rounds = int(attempts["round"].max()) if len(attempts) else 0
    limit = settings.get("rounds") or settings.get("effort")
    found = [
        Burn("rounds", rounds, limit),
        Burn("time", seconds, settings.get("budget_seconds")),
        Burn("tokens", tokens, settings.get("budget_tokens")),
        Burn("money", usd, settings.get("budget_usd")),
    ]
    return [b for b in found if isinstance(b.limit, int | float) or b.used]


def ablation(trials: Sequence[tuple[Run, Sequence[AttemptRow]]]) -> pd.DataFrame:
    """Return a row for each way of retrieval, with intervals, from finished trials."""
    made = [_trial(run, attempts) for run, attempts in trials]
    rows = [
        {
            "arm": arm.arm,
            "problems": arm.problems,
            "solved": 100 * arm.solved.mean,
            "speedup": arm.speedup.mean,
            "low": arm.speedup.low,
            "high": arm.speedup.high,
            "shown": arm.shown,
            "over_off": arm.over_off.mean if arm.over_off else None,
            "over_random": arm.over_random.mean if arm.over_random else None,
        }
        for arm in summarise(made)
    ]
    columns = ("arm", "problems", "solved", "speedup", "low", "high", "over_off", "over_random", "shown")
    return table(rows, columns)


def _trial(run: Run, attempts: Sequence[AttemptRow]) -> AblationTrial:
    settings = json.loads(run.settings)
    gains = [a.speedup for a in attempts if a.won and a.speedup is not None]
    return AblationTrial(
        problem=run.problem_name,
        problem_id=settings["problem_id"],
        arm=settings["retrieval"],
        seed=settings["seed"],
        run_id=run.id,
        candidates=len({a.candidate_id for a in attempts}),
        solved=any(a.verdict == "passed" for a in attempts),
        speedup=max([1.0, *gains]),
        shown=0,
        likest=None,
    )


def signals(reasons: Sequence[str]) -> dict[str, Any]:
    """Parse what each signal said from the reasons of retrieval: places, cosines, shares; the rest as text."""
    said: dict[str, Any] = {"same_graph": False, "bm25": None, "dense": None, "graph": None}
    others = []
    for reason in reasons:
        if reason.startswith("same graph"):
            said["same_graph"] = True
        elif match := re.fullmatch(r"bm25 rank (\d+)", reason):
            said["bm25"] = int(match[1])
        elif match := re.fullmatch(r"(dense|graph) (\d+\.\d+)", reason):
            said[match[1]] = float(match[2])
        else:
            others.append(reason)
    return {**said, "others": ", ".join(others)}


def signal_table(records: Sequence[SignalRecord]) -> pd.DataFrame:
    rows = [
        {
            "signal": SIGNAL_NAMES.get(r.signal, r.signal),
            "shown": r.shown,
            "passed": r.passed,
            "won": r.won,
            "passed_percent": 100 * r.passed / r.shown,
            "won_percent": 100 * r.won / r.shown,
            "median_speedup": r.median_speedup,
        }
        for r in records
    ]
    return table(rows, ("signal", "shown", "passed", "passed_percent", "won", "won_percent", "median_speedup"))


def table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> pd.DataFrame:
    """Return rows as a table with the right types, also when there are no rows."""
    made = pd.DataFrame(rows, columns=list(columns))
    for name in made.columns.intersection(NUMBERS):
        made[name] = made[name].astype("float64")
    if "created_at" in made:
        made["created_at"] = moments(made["created_at"])
    return made


def moments(texts: pd.Series) -> pd.Series:
    return pd.to_datetime(texts, utc=True, format="ISO8601", errors="coerce").dt.tz_localize(None)


def plain_row(row: Any) -> dict[str, object]:
    return {name: getattr(row, name) for name in type(row).__dataclass_fields__}


def run_row(r: RunRow) -> dict[str, object]:
    return {
        **plain_row(r),
        "id": r.run_id,
        "problem": r.problem_name,
        "best": r.best_speedup,
        "at_least": r.best_at_least,
        "created_at": r.started_at,
    }


def attempt_row(a: AttemptRow) -> dict[str, object]:
    return {
        **plain_row(a),
        "problem": a.problem_name,
        "kernel_id": a.candidate_id,
        "outcome": a.verdict.replace("_", " "),
    }


def failure_row(f: Failure) -> dict[str, object]:
    return {"outcome": f.verdict.replace("_", " "), "reason": f.example, "count": f.count, "problems": f.problems}


def exemplar_row(e: Exemplar, known: Paid | None, written: str) -> dict[str, object]:
    """Return the row of an exemplar. `written` is what the writer made of it; an exemplar may have left the archive."""
    row: dict[str, object] = {
        "id": e.kernel_id,
        "rank": e.rank,
        "score": e.score,
        **signals(e.reasons),
        "problem": "not in this archive",
        "reasons": ", ".join(e.reasons),
    }
    if known is not None:
        row |= plain_row(known) | {"problem": known.problem_name, "likeness": 100 * likeness(written, known.source)}
    return row


def board(ranked: pd.DataFrame) -> pd.DataFrame:
    """Return the ranked kernels of one problem and device with eager and torch.compile as rows, the best first.

    A baseline's time is the one beside the best kernel: it was measured again with each.
    """
    best = ranked.iloc[0]
    entrant = ranked["model"].where(ranked["model"] != "", ranked["writer"] + " writer")
    rows = ranked.assign(entrant=entrant, place=range(1, len(ranked) + 1))
    over = best["eager_ms"] / best["compile_ms"]
    eager = {
        "entrant": "eager PyTorch",
        "ms": best["eager_ms"],
        "speedup_eager": 1.0,
        "speedup_compile": 1 / over,
        "speedup": min(1, 1 / over),
    }
    compiled = {
        "entrant": "torch.compile",
        "ms": best["compile_ms"],
        "speedup_eager": over,
        "speedup_compile": 1.0,
        "speedup": min(over, 1),
    }
    baselines = pd.DataFrame([eager, compiled]).dropna(subset=["ms"]).assign(at_least=False)
    kept = [
        "id",
        "at_least",
        "place",
        "entrant",
        "ms",
        "speedup",
        "speedup_eager",
        "speedup_compile",
        "floor_percent",
        "label",
        "trust",
        "idea",
    ]
    together = pd.concat([rows[kept], baselines.reindex(columns=kept)], ignore_index=True)
    texts = ["id", "label", "trust", "idea"]
    return together.fillna(dict.fromkeys(texts, "")).sort_values("speedup", ascending=False, kind="stable")


def family_rows(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return one table for each family, the largest first."""
    sizes = table.groupby("family")["kernels"].sum().sort_values(ascending=False)
    return {str(name): table[table["family"] == name] for name in sizes.index}


def sensitivities(report: Admission) -> pd.DataFrame:
    """Return how much each argument, drawn anew alone, moves the output."""
    rows = [
        {"argument": s.name, "is": s.role, "change": s.change, "remark": s.why or ("" if s.change else "not at all")}
        for s in report.examination.sensitivities
    ]
    return pd.DataFrame(rows, columns=["argument", "is", "change", "remark"])


def null_kernels(report: Admission) -> pd.DataFrame:
    """Return what the judge, and KernelBench's tolerance, say of kernels that compute nothing."""
    rows = [
        {
            "kernel": n.name,
            "error": f"{n.ratio:.2g}" if math.isfinite(n.ratio) else "",
            "judge": "passes it" if n.passes else "rejects it",
            "kernelbench": "passes it" if n.kernelbench else "rejects it",
        }
        for n in report.examination.null_kernels
    ]
    return pd.DataFrame(rows, columns=["kernel", "error", "judge", "kernelbench"])
