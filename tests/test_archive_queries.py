"""What the explorer reads, and the page that documents the schema."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import factories as f
import pytest

from rag_kernels.archive import browse, docs, queries
from rag_kernels.archive.duck import DuckArchive
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import Edge
from rag_kernels.archive.store import FileArchive
from rag_kernels.eval.told import told_speedup
from rag_kernels.run.standings import winner

RELU, TANH = f.problem("relu"), f.problem("tanh")
A, B, C, D = (f.candidate(RELU, variant=v).id for v in range(4))


def asked(archive: DuckArchive, sql: str) -> list[tuple[Any, ...]]:
    """What a person with a `duckdb` shell would be told."""
    with archive.database.read() as con:
        return con.execute(sql).fetchall()


@pytest.fixture(scope="module")
def archive() -> MemoryArchive:
    """Run 1: A wins, B is slower than eager, C fails after seeing A and B. Run 2: A again, elsewhere."""
    made = MemoryArchive()
    made.start_run(f.run("run1", started_at="2026-01-01T00:00:00+00:00"))
    made.start_run(f.run("run2", started_at="2026-01-02T00:00:00+00:00"))
    made.start_run(f.run("idle", started_at="2026-01-03T00:00:00+00:00"))
    made.record_call(f.llm_call("run1", "call1", cost_usd=0.25))
    made.record_call(f.llm_call("run2", "call2", cost_usd=None))
    made.record_attempt(f.attempt("run1", 1, RELU, variant=0, verdict=f.passed(3.0), cost_usd=0.25))
    made.record_attempt(f.attempt("run1", 2, RELU, variant=1, verdict=f.passed(0.5), exemplars=(f.exemplar(A),)))
    shown = (f.exemplar(A), f.exemplar(B, rank=2))
    made.record_attempt(f.attempt("run1", 3, RELU, variant=2, verdict=f.wrong(), exemplars=shown, parents=(A,)))
    made.record_attempt(f.attempt("run1", 4, RELU, variant=3, verdict=f.passed(4.0), exemplars=shown, parents=(C,)))
    made.record_attempt(f.attempt("run1", 5, TANH, variant=0, verdict=f.crashed()))
    elsewhere = f.judged(f.passed(9.0), on=f.device(name="Another CPU"))
    made.record_attempt(f.attempt("run2", 1, RELU, variant=0, judged=elsewhere, cost_usd=None))
    return made


def test_leaderboard(archive: MemoryArchive) -> None:
    device = f.device().key
    board = queries.leaderboard(archive, RELU.problem.id, device)
    assert [(row.place, row.kernel_id, row.speedup) for row in board] == [
        (1, D, pytest.approx(3.2)),
        (2, A, pytest.approx(2.4)),
        (3, B, pytest.approx(0.4)),
    ]
    assert len(queries.leaderboard(archive)) == 4
    assert queries.leaderboard(archive, "p_nosuch") == []
    best = f"SELECT kernel_id FROM best_per_graph_key WHERE graph_key = '{RELU.graph_key}' ORDER BY speedup"
    assert asked(archive, best) == [(D,), (A,)]


def test_what_may_not_win_has_no_place_and_says_why() -> None:
    archive = MemoryArchive()
    archive.start_run(f.run())
    verdicts = [
        f.passed(2.0),
        f.passed(90.0, labels=("nondeterministic", "suspicious: faster than memory")),
        f.passed(80.0, labels=("degenerate problem",)),
        f.passed(70.0),
        f.compiled(),
        f.passed(60.0, labels=("fragile: shifted",)),
        f.passed(1.5, labels=("fragile: tiny",)),
    ]
    for number, verdict in enumerate(verdicts, 1):
        shown = (f.exemplar(f.candidate(variant=1).id),)
        archive.record_attempt(f.attempt(number=number, variant=number, verdict=verdict, exemplars=shown))
    honest, *barred, fragile = (f.candidate(variant=n).id for n in range(1, 8))
    archive.retract(barred[2], "reads past the end")
    assert [p.kernel_id for p in queries.leaderboard(archive)] == [honest, fragile]
    assert asked(archive, "SELECT kernel_id FROM best_per_graph_key") == [(honest,)]
    assert dict(asked(archive, "SELECT kernel_id, why FROM unranked")) == {
        barred[0]: "suspicious: faster than memory",
        barred[1]: "degenerate problem",
        barred[2]: "retracted: reads past the end",
        barred[3]: "only built: the device it is for was not there",
        barred[4]: "fragile: shifted",
    }
    assert asked(archive, "SELECT shown, passed, won FROM exemplar_credit") == [(7, 6, 2)]
    (run,) = queries.run_table(archive)
    assert (run.passed, run.verified_kernels, run.best_speedup) == (6, 2, pytest.approx(1.6))
    assert asked(archive, "SELECT share FROM fast_p ORDER BY p") == [(1.0,), (1.0,), (1.0,), (0.0,), (0.0,)]


def test_an_exemplar_is_credited_once_for_a_candidate_that_was_confirmed() -> None:
    archive = MemoryArchive()
    archive.start_run(f.run())
    for number, verdict in enumerate([f.passed(3.0, confirmed=False), f.wrong()], 1):
        archive.record_attempt(f.attempt(number=number, verdict=verdict, exemplars=(f.exemplar(B),)))
    assert [(c.kernel_id, c.shown, c.passed, c.won) for c in browse.credit(archive)] == [(B, 1, 0, 0)]


SHELL = """
import duckdb, json, sys
con = duckdb.connect(sys.argv[1], read_only=True)
views = [name for (name,) in con.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()]
counts = {name: len(con.execute(f"SELECT * FROM {name}").fetchall()) for name in views}
counts["lineage_of"] = len(con.execute("FROM lineage_of(?)", [sys.argv[2]]).fetchall())
counts["descendants_of"] = len(con.execute("FROM descendants_of(?)", [sys.argv[2]]).fetchall())
print(json.dumps(counts))
"""


def test_any_duckdb_can_read_every_view(tmp_path: Path) -> None:
    """As from the `duckdb` shell: no code of ours is near."""
    archive = FileArchive(tmp_path)
    archive.start_run(f.run())
    archive.record_call(f.llm_call())
    archive.record_attempt(f.attempt(number=1, variant=0))
    archive.record_attempt(f.attempt(number=2, variant=1, parents=(A,), exemplars=(f.exemplar(A),)))
    archive.record_attempt(f.attempt(number=3, variant=3, parents=(B,)))
    archive.retract(D, "for the test")
    command = [sys.executable, "-I", "-c", SHELL, str(tmp_path / "archive.duckdb"), B]
    counts = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert counts == {
        "retracted": 1,
        "stale": 0,
        "kernel_cards": 3,
        "leaderboard": 2,
        "unranked": 1,
        "best_per_graph_key": 1,
        "ancestry": 3,
        "attempt_results": 3,
        "candidate_results": 3,
        "exemplars_shown": 1,
        "exemplar_credit": 1,
        "run_summary": 1,
        "kernel_costs": 3,
        "fast_p": 5,
        "lineage_of": 1,
        "descendants_of": 1,
        "only_claimed": 0,
        "claims_against_measurements": 0,
    }


def test_attempts_and_evaluations(archive: MemoryArchive) -> None:
    run = queries.attempts_of_run(archive, "run1")
    assert [(a.verdict, a.won) for a in run] == [
        ("passed", True),
        ("passed", False),
        ("wrong", False),
        ("passed", True),
        ("crashed", False),
    ]
    assert run[2].reason == "output 0 differs from the fp64 oracle" and run[2].trust is None
    judged = {e.judged.device.name for e in queries.evaluations(archive, A)}
    assert judged == {"Another CPU", f.device().name}


def test_runs_credit_and_cost(archive: MemoryArchive) -> None:
    idle, second, first = queries.run_table(archive)
    assert (first.attempts, first.passed, first.verified_kernels) == (5, 3, 3)
    assert first.cost_usd == 0.25 and first.cost_per_verified_kernel == pytest.approx(0.25 / 3)
    assert (second.cost_usd, second.cost_per_verified_kernel) == (None, None)
    assert (idle.attempts, idle.cost_usd, idle.best_speedup) == (0, 0.0, None)
    credit = {c.kernel_id: (c.shown, c.passed, c.won) for c in browse.credit(archive)}
    assert credit == {A: (3, 2, 1), B: (2, 1, 1)}
    costs = asked(archive, "SELECT kernel_id, attempts, cost_usd FROM kernel_costs")
    assert sorted(costs) == sorted([(A, 2, None), (B, 1, 0.0), (D, 1, 0.0)])
    share = asked(archive, "SELECT p, share FROM fast_p WHERE run_id = 'run1' ORDER BY p")
    assert share == [(0.0, 0.5), (1.0, 0.5), (1.5, 0.5), (2.0, 0.5), (3.0, 0.5)]


@pytest.mark.parametrize(("baselines", "claims", "best"), [("tf32", True, 3.0), ("strict", False, 1.5)])
def test_a_class_of_precision_claims_over_baselines_that_were_allowed_it(
    baselines: str, claims: bool, best: float
) -> None:
    """In the record, for the winner of a run, and in what the archive says of the run."""
    made = MemoryArchive()
    made.start_run(f.run("run1"))
    lower = replace(f.passed(3.0), precision="tf32", baseline_precision=baselines)
    attempts = [
        f.attempt("run1", 1, RELU, variant=0, verdict=lower),
        f.attempt("run1", 2, RELU, variant=1, verdict=replace(f.passed(1.5), baseline_precision=baselines)),
    ]
    for one in attempts:
        made.record_attempt(one)
    assert lower.claims_speed is claims and not replace(lower, precision="bf16").claims_speed
    assert winner(attempts) is attempts[0 if claims else 1]
    [run] = queries.run_table(made)
    assert run.best_speedup == pytest.approx(told_speedup(f.passed(best).measurement))


def test_lineage_goes_up_and_down_through_failures(archive: MemoryArchive) -> None:
    graph = queries.lineage_graph(archive, C)
    assert set(graph.edges) == {Edge(C, A, "parent"), Edge(D, C, "parent")}
    nodes = {node.id: node for node in graph.nodes}
    assert set(nodes) == {A, C, D}
    assert nodes[C].trust is None and nodes[C].problem_name == "scaled_relu"
    assert nodes[D].trust == "confirmed" and nodes[D].speedup == pytest.approx(3.2)
    (stranger,) = queries.lineage_graph(archive, "elsewhere/kernel-7").nodes
    assert (stranger.id, stranger.backend) == ("elsewhere/kernel-7", None)


def test_version_is_for_caching(archive: MemoryArchive) -> None:
    before = queries.version(archive)
    queries.run_table(archive)
    assert queries.version(archive) == before


def test_every_table_view_and_column_is_explained() -> None:
    with MemoryArchive().database.read() as con:
        bare = con.execute(
            "SELECT table_name, column_name FROM duckdb_columns() JOIN duckdb_tables() USING (table_name) "
            "WHERE duckdb_columns.comment IS NULL"
        ).fetchall()
        bare += con.execute("SELECT table_name FROM duckdb_tables() WHERE comment IS NULL").fetchall()
        macros = "SELECT function_name FROM duckdb_functions() WHERE NOT internal AND comment IS NULL"
        bare += con.execute(macros).fetchall()
        views = con.execute("SELECT view_name, comment FROM duckdb_views() WHERE NOT internal").fetchall()
        for view, comment in views:
            bare += [(view, column) for column, _, remark in docs.view_columns(con, view) if not (comment and remark)]
    assert views and bare == []
