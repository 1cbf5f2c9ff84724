"""Sums over tables: what the charts draw and the headline numbers.

Comes in: tables of kernels and attempts as `app.data` makes them. Goes out: smaller tables and numbers. Pure pandas:
knows nothing of archives or pages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from archive.queries import AttemptRow, Place, RunRow
from archive.records import ArchivedKernel, Exemplar

STANDING = ("verified", "confirmed")
BASELINES = {"speedup_eager": "eager", "speedup_compile": "torch.compile"}
PLUMBING = {"view", "reshape", "permute", "transpose", "expand", "slice", "select", "getitem", "clone", "contiguous"}
NUMBERS = ("speedup", "speedup_eager", "speedup_compile", "ms", "floor_percent", "cost_usd", "best")
KERNEL_COLUMNS = (
    "id", "link", "problem_id", "problem", "idea", "trust", "retracted", "label", "tier", "backend", "writer", "model",
    "operator", "operators", "dtype", "device", "speedup", "speedup_eager", "speedup_compile", "ms", "floor_percent",
    "created_at",
)  # fmt: skip
PLACE_COLUMNS = (
    "place", "id", "link", "problem_id", "problem", "trust", "label", "tier", "backend", "writer", "model", "device",
    "speedup", "speedup_eager", "speedup_compile", "ms", "floor_percent",
)  # fmt: skip
ATTEMPT_COLUMNS = (
    "run_id", "number", "round", "problem_id", "problem", "kernel_id", "outcome", "reason", "speedup", "writer",
    "model", "idea", "cost_usd", "seconds", "created_at",
)  # fmt: skip
RUN_COLUMNS = ("id", "command", "problem", "status", "attempts", "passed", "best", "cost_usd", "created_at")
EXEMPLAR_COLUMNS = ("id", "rank", "problem", "speedup", "score", "reasons")


@dataclass(frozen=True, slots=True)
class Summary:
    kernels: int
    problems: int
    attempts: int
    best_speedup: float | None
    mean_speedup: float | None
    cost_usd: float | None


def main_operators(operators: Sequence[str], most: int = 3) -> str:
    """What a problem is made of, in a few words: its distinct operators without the ones that only move data."""
    distinct = [o for o in dict.fromkeys(operators) if o not in PLUMBING] or list(dict.fromkeys(operators))
    return " + ".join(distinct[:most]) + (" + …" if len(distinct) > most else "")


def standing(kernels: pd.DataFrame) -> pd.DataFrame:
    """Kernels that count: verified here or better, not retracted."""
    return kernels[kernels["trust"].isin(STANDING) & (kernels["retracted"] == "")]


def summary(places: pd.DataFrame, problems: int, stats: Mapping[str, int | float]) -> Summary:
    best = places.groupby(["problem_id", "device"])["speedup"].max().dropna()
    unknown = stats["llm_calls"] > 0 and stats["calls_of_unknown_cost"] == stats["llm_calls"]
    return Summary(
        kernels=places["id"].nunique(),
        problems=problems,
        attempts=int(stats["attempts"]),
        best_speedup=float(best.max()) if len(best) else None,
        mean_speedup=math.exp(sum(map(math.log, best)) / len(best)) if len(best) else None,
        cost_usd=None if unknown else float(stats["cost_usd"]),
    )


def best_by_problem(places: pd.DataFrame) -> pd.DataFrame:
    """The best kernel of each problem over each baseline, best problem first."""
    timed = places.dropna(subset=["speedup"])
    best = timed.loc[timed.groupby("problem_id")["speedup"].idxmax()].sort_values("speedup", ascending=False)
    return best[["problem", *BASELINES]].rename(columns=BASELINES).reset_index(drop=True)


def fast_p(places: pd.DataFrame, problems: int) -> pd.DataFrame:
    """Share of the problems whose best kernel beats each threshold, against each baseline."""
    best = {name: places.groupby("problem_id")[column].max().dropna() for column, name in BASELINES.items()}
    top = max([2.0, *(1.1 * values.max() for values in best.values() if len(values))])
    steps = [0.5 * (top / 0.5) ** (i / 150) for i in range(151)]
    rows = [(p, float((v > p).sum()) / problems, name) for name, v in best.items() if len(v) for p in steps]
    return pd.DataFrame(rows, columns=["threshold", "share", "baseline"])


def growth(kernels: pd.DataFrame) -> pd.DataFrame:
    """Running total of kernels, at most a few hundred points."""
    times = kernels["created_at"].dropna().sort_values()
    table = pd.DataFrame({"time": times, "kernels": range(1, len(times) + 1)})
    step = max(1, len(table) // 300)
    return pd.concat([table.iloc[::step], table.tail(1)]).drop_duplicates()


def counts(kernels: pd.DataFrame, column: str, most: int = 10) -> pd.DataFrame:
    found = kernels[column].replace("", "none").value_counts().head(most)
    return found.rename_axis(column).reset_index(name="count")


def outcome_counts(attempts: pd.DataFrame) -> pd.DataFrame:
    return attempts["outcome"].value_counts().rename_axis("outcome").reset_index(name="count")


def progress(attempts: pd.DataFrame) -> pd.DataFrame:
    """Attempts in the order in which they were made, with the best speed-up so far."""
    ordered = attempts.sort_values(["created_at", "run_id", "number"]).reset_index(drop=True)
    best = ordered["speedup"].cummax().ffill()
    return ordered[["speedup", "outcome"]].assign(attempt=range(1, len(ordered) + 1), best=best)


def credit(attempts: pd.DataFrame) -> pd.DataFrame:
    """Per writer and model: how many attempts, how many passed, the best speed-up."""
    marked = attempts.assign(passed=attempts["outcome"] == "passed")
    groups = marked.groupby(["writer", "model"])
    table = groups.agg(attempts=("number", "size"), passed=("passed", "sum"), best=("speedup", "max")).reset_index()
    return table.assign(passed_percent=100 * table["passed"] / table["attempts"]).sort_values("passed", ascending=False)


def problems(kernels: pd.DataFrame, places: pd.DataFrame, attempts: pd.DataFrame) -> pd.DataFrame:
    """One row a problem, from its kernels, their places and the attempts on it."""
    names = pd.concat([t[["problem_id", "problem"]] for t in (places, kernels, attempts)])
    table = names.drop_duplicates("problem_id").set_index("problem_id")
    tried = attempts.assign(passed=attempts["outcome"] == "passed").groupby("problem_id")["passed"]
    ranked = places.groupby("problem_id")
    table = table.assign(
        operators=kernels.groupby("problem_id")["operators"].first(),
        kernels=ranked["id"].nunique(),
        attempts=tried.size(),
        passed_percent=100 * tried.mean(),
        speedup=ranked["speedup"].max(),
        devices=ranked["device"].agg(lambda names: ", ".join(sorted(set(names)))),
        **{name: ranked[column].max() for column, name in BASELINES.items()},
    )
    filled = table.fillna({"operators": "", "kernels": 0, "attempts": 0, "devices": ""})
    return filled.astype({"kernels": int, "attempts": int}).rename_axis("id").reset_index()


def table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> pd.DataFrame:
    """Rows as a table with the right types, also when there are no rows."""
    made = pd.DataFrame(rows, columns=list(columns))
    for name in made.columns.intersection(NUMBERS):
        made[name] = made[name].astype("float64")
    if "created_at" in made:
        made["created_at"] = moments(made["created_at"])
    return made


def moments(texts: pd.Series) -> pd.Series:
    return pd.to_datetime(texts, utc=True, format="ISO8601", errors="coerce").dt.tz_localize(None)


def place_row(p: Place) -> dict[str, object]:
    """A place on the leaderboard, with the names that kernels have in lists."""
    return {
        **{name: getattr(p, name) for name in Place.__dataclass_fields__},
        "id": p.kernel_id,
        "link": kernel_link(p.kernel_id),
        "problem": p.problem_name,
        "device": p.device_name,
        **_scaled(p),
    }


def run_row(r: RunRow) -> dict[str, object]:
    return {
        **{name: getattr(r, name) for name in RunRow.__dataclass_fields__},
        "id": r.run_id,
        "problem": r.problem_name,
        "best": r.best_speedup,
        "created_at": r.started_at,
    }


def attempt_row(a: AttemptRow) -> dict[str, object]:
    return {
        **{name: getattr(a, name) for name in AttemptRow.__dataclass_fields__},
        "problem": a.problem_name,
        "kernel_id": a.candidate_id,
        "outcome": a.verdict.replace("_", " "),
    }


def kernel_link(kernel_id: str) -> str:
    return f"kernel?id={kernel_id}"


def _scaled(k: Place | ArchivedKernel) -> dict[str, float | None]:
    return {
        "ms": None if k.candidate_us is None else k.candidate_us / 1e3,
        "floor_percent": None if k.floor_fraction is None else 100 * k.floor_fraction,
    }


def exemplar_row(e: Exemplar, known: pd.DataFrame) -> dict[str, object]:
    """`known` is the table of kernels by id; an exemplar may have left the archive."""
    there = e.kernel_id in known.index
    return {
        "id": e.kernel_id,
        "rank": e.rank,
        "problem": known.at[e.kernel_id, "problem"] if there else "not in this archive",
        "speedup": known.at[e.kernel_id, "speedup"] if there else None,
        "score": e.score,
        "reasons": ", ".join(e.reasons),
    }


def kernel_row(k: ArchivedKernel) -> dict[str, object]:
    """What lists show of a kernel; the sources stay behind."""
    return {
        "id": k.id,
        "link": kernel_link(k.id),
        "problem_id": k.problem_id,
        "problem": k.problem_name,
        "idea": k.idea,
        "trust": k.trust,
        "retracted": k.retracted,
        "label": k.label,
        "tier": k.tier,
        "backend": k.backend,
        "writer": k.writer,
        "model": k.model,
        "operator": main_operators(k.operators),
        "operators": ", ".join(dict.fromkeys(k.operators)),
        "dtype": ", ".join(k.dtypes),
        "device": k.device_name,
        "speedup": k.speedup,
        "speedup_eager": k.speedup_eager,
        "speedup_compile": k.speedup_compile,
        **_scaled(k),
        "created_at": k.created_at,
    }
