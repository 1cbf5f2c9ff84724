"""KernelBench runs, robust-kbench and GPU MODE: what comes in, as what, and what stays out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign import (
    ANY,
    FUNCTIONAL,
    MODULE,
    PROGRAM,
    gpu_mode,
    kernelbench,
    only,
    robust_task,
    sakana_file,
    sakana_row,
    taken,
)
from support.kept import kept_workers

from rag_kernels.archive import bundle
from rag_kernels.archive.audit import verify
from rag_kernels.archive.claims import claims_of, without_functional
from rag_kernels.archive.records import ArchiveError
from rag_kernels.eval.problem import load_module
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Candidate
from rag_kernels.ingest.description.embedder import load_embedder
from rag_kernels.ingest.description.pipeline import reindex
from rag_kernels.ingest.importers.gpu_mode import GpuMode
from rag_kernels.ingest.importers.kernelbench_runs import KernelBenchRuns
from rag_kernels.ingest.importers.robust_kbench import RobustKbench
from rag_kernels.ingest.importers.sakana import Sakana
from rag_kernels.ingest.importers.take import functionalize_imported


def test_a_kernelbench_run_comes_in_with_its_results(tmp_path: Path) -> None:
    run = kernelbench(tmp_path)
    archive, report = taken(KernelBenchRuns(licence="MIT"), run.parent)
    skipped = [(row.where.partition("/")[2], row.why) for row in report.skipped]
    assert skipped == [
        ("eval_results.json problem x", "it is not a result with a sample_id"),
        ("level_1_problem_3_sample_0_kernel.py", "KernelBench's folder has no such problem"),
        ("eval_results.json problem 9 sample 0", "there is no kernel file for it"),
    ]
    assert (report.new["kernels"], report.new["candidates"], report.new["problems"]) == (2, 3, 2)
    kernels = {kernel.problem_name: kernel for kernel in archive.kernels(ANY)}
    [claim], [unjudged] = (claims_of(archive, kernels[name].id) for name in ("1_scaled_relu", "2_other"))
    assert (claim.correct, claim.candidate_us, claim.device_name, claim.licence) == (True, 250.0, "NVIDIA L40S", "MIT")
    assert claim.speedup_eager is None
    assert (unjudged.correct, unjudged.candidate_us) == (None, None)
    assert verify(archive) == []
    (run / "level_2_problem_1_sample_0_kernel.py").write_text("class ModelNew: pass")
    _, mixed = taken(KernelBenchRuns(), run)
    assert "several levels" in mixed.skipped[0].why


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with kept_workers() as made:
        yield made


def test_robust_kbench_comes_in_forward_and_backward(tmp_path: Path, workers: Workers) -> None:
    archive, report = taken(RobustKbench(), robust_task(tmp_path))
    assert [row.where for row in report.skipped] == [
        "broken/func_forward.py",
        "highlighted/results.csv row 2",
        "highlighted/results.csv row 3",
    ]
    kernels = {kernel.problem_name: kernel for kernel in archive.kernels(ANY)}
    assert set(kernels) == {"scaled_relu_forward", "scaled_relu_backward"}
    [claim] = claims_of(archive, kernels["scaled_relu_backward"].id)
    assert (claim.candidate_us, claim.speedup_eager, claim.licence) == (500.0, 1.25, "Apache-2.0")
    assert "entry point is `backward`" in claim.notes[-1]
    assert reindex(archive, load_embedder()) == 2
    rows = list(functionalize_imported(archive, load_embedder(), workers=workers))
    assert [(row.name, row.ok) for row in rows] == [("scaled_relu_backward", True), ("scaled_relu_forward", True)]
    shapes = {kernel.problem_name: kernel.shapes for kernel in archive.kernels(ANY)}
    assert shapes == {"scaled_relu_forward": ((3, 8), (8,)), "scaled_relu_backward": ((3, 8), (3, 8), (8,))}
    assert without_functional(archive) == []
    assert verify(archive) == []


def test_a_backward_problem_computes_the_gradients(tmp_path: Path) -> None:
    archive, _ = taken(RobustKbench(), robust_task(tmp_path))
    [problem] = [problem for problem in without_functional(archive) if problem.name.endswith("backward")]
    module = load_module(problem.name, problem.source)
    gradient, x = module.get_inputs()
    model = module.Model(*module.get_init_inputs())
    weight = model.forward_model.weight
    passed = (x * weight > 0) * gradient
    for found, expected in zip(model(gradient, x), (passed * weight, (passed * x).sum(0)), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_problem_that_cannot_be_functionalized_keeps_its_kernels_with_a_note(
    tmp_path: Path, workers: Workers
) -> None:
    broken = MODULE.replace("return torch.relu", "raise KeyError('nothing')\n        return torch.relu")
    archive, _ = taken(Sakana(), sakana_file(tmp_path / "s", sakana_row(PyTorch_Code_Module=broken)))
    for _ in range(2):
        [row] = functionalize_imported(archive, load_embedder(), workers=workers)
        assert not row.ok
    assert only(archive).functional_source == FUNCTIONAL
    with archive.database.read() as con:
        notes = con.execute("SELECT record FROM functionals").fetchall()
    assert len(notes) == 2 and any("not functionalized here: " in note for (note,) in notes)


def test_gpu_mode_problems_stand_alone_and_their_texts_stay_at_home(tmp_path: Path, workers: Workers) -> None:
    checkout = gpu_mode(tmp_path / "a", "June 9 Researcher Reciprocity License\nVersion 1.0\n")
    archive, report = taken(GpuMode(), checkout)
    assert [row.where for row in report.skipped] == [
        "problems/ours/add_py/solutions/correct/whole.py",
        "problems/ours/bare_py/task.yml",
        "problems/ours/cpp_py/task.yml",
    ]
    assert (report.new["problems"], report.new["candidates"], report.new["kernels"]) == (1, 3, 2)
    assert {kernel.licence for kernel in archive.kernels(ANY)} == {"LicenseRef-June-9-Researcher-Reciprocity-1.0"}
    [row] = functionalize_imported(archive, load_embedder(), workers=workers)
    assert (row.name, row.ok, row.reason) == ("add_v2", True, "")
    assert {kernel.shapes for kernel in archive.kernels(ANY)} == {((6, 4), (6, 4))}
    with pytest.raises(ArchiveError, match="licence does not let them"):
        bundle.export(archive, tmp_path / "b.zip")
    free, _ = taken(GpuMode(), gpu_mode(tmp_path / "b", "MIT License\n"))
    assert bundle.export(free, tmp_path / "b.zip")["kernels"] == 2


def test_the_command_imports_lists_what_it_left_out_and_shows_the_claim(tmp_path: Path) -> None:
    run, place = kernelbench(tmp_path), ["--archive", str(tmp_path / "archive"), "--json"]

    def command(*words: str) -> dict[str, Any]:
        done = subprocess.run([PROGRAM, "archive", *words, *place], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    report = command("import", "--from", "kernelbench", str(run))
    assert (report["read"], report["kernels"], len(report["skipped"])) == (6, 2, 3)
    candidate = Candidate(MODULE.replace("class Model", "class ModelNew"), "module", "cuda")
    shown = command("show", candidate.id)
    assert shown["trust"] == "claimed" and shown["speedup_eager"] is None
    assert shown["claims"][0]["candidate_us"] == 250.0
