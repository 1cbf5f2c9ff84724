"""The AI CUDA Engineer archive as claims: what comes in, as what, what stays out, and what becomes of claims."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import factories as f
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from foreign import ANY, FAILED, MODULE, only, sakana_file, sakana_row, taken

from rag_kernels.archive import bundle, queries, recheck
from rag_kernels.archive.audit import verify
from rag_kernels.archive.claims import claims_of
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import ArchiveError, Edge, KernelFilter
from rag_kernels.eval.records import Problem
from rag_kernels.ingest.description.embedder import load_embedder
from rag_kernels.ingest.description.pipeline import reindex
from rag_kernels.ingest.importers.gpu_mode import GpuMode
from rag_kernels.ingest.importers.kernelbench_runs import KernelBenchRuns
from rag_kernels.ingest.importers.protocol import too_good, without_paths
from rag_kernels.ingest.importers.robust_kbench import RobustKbench
from rag_kernels.ingest.importers.sakana import KNOWN, Sakana
from rag_kernels.ingest.importers.take import import_from
from rag_kernels.retrieval.retriever import RetrievalLimits, Retriever
from rag_kernels.run.exemplars import is_from


def test_a_row_of_sakana_becomes_a_claim_and_its_figures_rank_nowhere(tmp_path: Path) -> None:
    archive, report = taken(Sakana(), sakana_file(tmp_path / "s", sakana_row()))
    kernel = only(archive)
    assert (report.read, report.skipped, report.new["kernels"]) == (1, [], 1)
    assert (kernel.trust, kernel.tier, kernel.backend, kernel.retracted) == ("claimed", "module", "cuda", "")
    assert (kernel.speedup, kernel.speedup_eager, kernel.candidate_us, kernel.device_name) == (None, None, None, "")
    assert kernel.licence == "CC-BY-4.0" and "Sakana" in kernel.attribution and "KernelBench" in kernel.attribution
    assert queries.leaderboard(archive) == []
    assert archive.kernels(KernelFilter(min_trust="compiled")) == []
    [claim] = claims_of(archive, kernel.id)
    assert (claim.candidate_us, claim.eager_us, claim.compile_us) == (500.0, 1000.0, 750.0)
    assert (claim.speedup_eager, claim.correct) == (2.0, True)
    assert claim.origin == "level 1 task 3, 20250203_optimize_b10_s4_e0_sweep b7_s2, fast_relu_base"
    assert claim.notes == ("calls PyTorch's own matmul",)
    details = json.loads(claim.details)
    assert details["inferred"] == {
        "sweep": "20250203_optimize_b10_s4_e0_sweep",
        "batch": 7,
        "sample": 2,
        "edit": "base",
    }
    assert (details["ncu"], details["ncu_warnings"]) == ({"SM Busy": [42.7, "%"]}, ["Occupancy"])
    assert archive.lineage(kernel.id) == [Edge(kernel.id, f"sakana: {claim.origin}", "imported")]
    assert verify(archive) == []


def test_an_import_can_be_repeated_and_bad_rows_cost_a_line_each(tmp_path: Path) -> None:
    folder = sakana_file(
        tmp_path / "s",
        sakana_row(variant=1),
        sakana_row(CUDA_Code=" "),
        sakana_row(variant=2, **FAILED),
        sakana_row(PyTorch_Code_Module="def broken(:"),
        sakana_row(Level_ID=None),
        sakana_row(variant=3, Correct=None),
        sakana_row(variant=4),
    )
    archive, report = taken(Sakana(), folder)
    assert [row.where for row in report.skipped] == [f"level_1.parquet row {n}" for n in (1, 3, 4, 5)]
    assert [row.why.split()[0] for row in report.skipped] == ["CUDA_Code", "PyTorch_Code_Module", "Level_ID", "Correct"]
    counted = ("problems", "candidates", "kernels", "claims")
    assert [report.new[name] for name in counted] == [1, 3, 2, 3]
    again = import_from(archive, Sakana(), folder)
    assert again.read == 7 and not any(again.new.values())
    assert verify(archive) == []


def test_no_folder_of_the_authors_comes_in(tmp_path: Path) -> None:
    archive, _ = taken(Sakana(), sakana_file(tmp_path / "s", sakana_row(variant=1), sakana_row(variant=2, **FAILED)))
    with archive.database.read() as con:
        text = str([con.execute(f"FROM {table}").fetchall() for table in ("claims", "edges", "ideas", "candidates")])
    assert "base.cu(7): error" in text
    assert "somebody" not in text and "/home" not in text
    assert without_paths("/usr/lib/x.h:3 and a/b and https://x.org/y") == "x.h:3 and a/b and https://x.org/y"


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"Level_ID": 1, "Task_ID": 15}, KNOWN[1, 15]),
        ({"CUDA_Speedup_Native": 147.0}, "claims 147 times"),
        ({"Task_ID": 77}, "robust-kbench's filters: the output hardly varies"),
    ],
)
def test_what_is_known_against_a_row_hides_its_kernel_until_it_is_judged(
    changes: dict[str, Any], warning: str, tmp_path: Path
) -> None:
    verdict = tmp_path / "rk" / "tasks" / "kernelbench" / "level_1" / "task_77" / "filter_results.json"
    verdict.parent.mkdir(parents=True)
    verdict.write_text('{"filter_output_std": true, "filter_output_range": false, "filter_llm_inefficiency": true}')
    archive, _ = taken(Sakana(tmp_path / "rk"), sakana_file(tmp_path / "s", sakana_row(**changes)))
    assert archive.kernels(KernelFilter()) == []
    assert only(archive).retracted.startswith(warning)
    assert list(archive.missing_embeddings("model")) == []
    judge_here(archive)
    [kernel] = archive.kernels(KernelFilter())
    assert (kernel.trust, kernel.retracted) == ("confirmed", "")
    assert too_good(10.0) == ""


def judge_here(archive: MemoryArchive, speedup: float = 1.5) -> None:
    """What a re-judging run records of the one kernel there is."""
    kernel = only(archive)
    with archive.database.read() as con:
        [(name, source)] = con.execute("SELECT name, source FROM problems").fetchall()
    functional = replace(f.problem("relu"), problem=Problem(name, source))
    archive.start_run(f.run())
    candidate = kernel.candidate
    archive.record_attempt(f.attempt(p=functional, candidate=candidate, verdict=f.passed(speedup)))


def test_judged_here_it_ranks_by_our_figures_and_the_claim_stays_beside_them(tmp_path: Path) -> None:
    archive, _ = taken(Sakana(), sakana_file(tmp_path / "s", sakana_row()))
    judge_here(archive, 1.1)
    kernel = only(archive)
    assert (kernel.trust, kernel.speedup_eager, kernel.licence) == ("confirmed", 1.1, "CC-BY-4.0")
    assert [place.kernel_id for place in queries.leaderboard(archive)] == [kernel.id]
    with archive.database.read() as con:
        found = con.execute(
            "SELECT claimed_speedup_eager, measured_speedup_eager, verdict FROM claims_against_measurements"
        ).fetchall()
    assert found == [(2.0, 1.1, "passed")]
    assert verify(archive) == []


def test_a_claim_is_due_for_judging_and_hidden_once_it_failed_here(tmp_path: Path) -> None:
    archive, _ = taken(Sakana(), sakana_file(tmp_path / "s", sakana_row(Level_ID=1, Task_ID=15)))
    device = f.device("cuda")
    [due] = recheck.due(archive, device, "1")
    assert (due.candidate.id, due.evaluation_id, due.trust) == (only(archive).id, None, "claimed")
    functional = replace(f.problem("relu"), problem=due.problem)
    archive.start_run(f.run())
    failed = f.attempt(p=functional, candidate=due.candidate)
    recheck.record(archive, replace(failed, judged=f.judged(f.wrong(), on=device)))
    assert only(archive).retracted.endswith("judged here: wrong, output 0 differs from the fp64 oracle")
    assert archive.kernels(KernelFilter()) == [] and recheck.due(archive, device, "1") == []
    assert len(recheck.due(archive, device, "2")) == 1
    assert verify(archive) == []


def test_claimed_kernels_are_found_without_a_speed_and_left_out_with_their_problem(tmp_path: Path) -> None:
    archive, _ = taken(Sakana(), sakana_file(tmp_path / "s", sakana_row()))
    embedder = load_embedder()
    assert reindex(archive, embedder) == 1
    retriever = Retriever(archive, embedder)
    [hit] = retriever.search("relu")
    [graph_hit] = retriever.search(f.problem("relu"))
    assert hit.kernel == graph_hit.kernel == only(archive)
    assert {signal.name for signal in graph_hit.why.signals if signal.place} >= {"dense"}
    assert next(factor.weight for factor in hit.why.factors if factor.name == "speed-up") == 1
    assert not is_from(hit.kernel, f.device("cuda"))  # so it is judged here before a writer sees it
    left_out = RetrievalLimits(exclude_problem_ids=(Problem("any", MODULE).id,))
    assert retriever.search("relu", limits=left_out) == []


def test_what_is_not_of_the_archive_is_refused_in_a_sentence(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    (tmp_path / "text.parquet").write_text("no parquet")
    for importer, path, sentence in (
        (Sakana(), tmp_path / "other.parquet", "has no column Op_Name"),
        (Sakana(), tmp_path / "text.parquet", "cannot be read as Parquet"),
        (Sakana(), tmp_path / "missing", "holds no Parquet file"),
        (KernelBenchRuns(), tmp_path, "holds no KernelBench run"),
        (RobustKbench(), tmp_path, "holds no task"),
        (GpuMode(), tmp_path, "holds no task.yml"),
    ):
        with pytest.raises(ArchiveError, match=sentence):
            taken(importer, path)


def test_a_bundle_carries_claims_with_their_licences_and_exports_to_the_same_bytes(tmp_path: Path) -> None:
    folder = sakana_file(tmp_path / "s", sakana_row(variant=1), sakana_row(variant=2), sakana_row(variant=3, **FAILED))
    archive, _ = taken(Sakana(), folder)
    judged, _ = taken(Sakana(), sakana_file(tmp_path / "t", sakana_row(variant=1, Kernel_Name="other_base")))
    judge_here(judged)
    told = bundle.export(archive, tmp_path / "one.zip")
    assert (told["kernels"], told["claims"], told["candidates"]) == (2, 2, 2)
    merged = MemoryArchive()
    bundle.import_bundle(merged, tmp_path / "one.zip")
    bundle.export(merged, tmp_path / "two.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    bundle.export(judged, tmp_path / "judged.zip")
    bundle.import_bundle(merged, tmp_path / "judged.zip", trust_bundle=True)
    kernels = {kernel.id: kernel for kernel in merged.kernels(ANY)}
    both = only(judged).id
    assert len(kernels) == 2 and kernels[both].trust == "confirmed"
    assert [claim.origin.split(", ")[-1] for claim in claims_of(merged, both)] == ["fast_relu_base", "other_base"]
    assert len(merged.lineage(both)) == 2
    assert {kernel.licence for kernel in kernels.values()} == {"CC-BY-4.0"}
    assert verify(merged) == []
