"""Importers, on small files of our own in the formats of others: what comes in, as what, and what stays out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import factories as f
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from archive import bundle, queries, recheck
from archive.audit import verify
from archive.claims import claims_of, without_functional
from archive.memory import MemoryArchive
from archive.records import ArchivedKernel, ArchiveError, Edge, KernelFilter
from eval.problem import load_module
from eval.records import Candidate, Problem
from eval.workers import Workers
from ingest.embedder import load_embedder
from ingest.functionalize import PRELOAD
from ingest.importers.gpu_mode import GpuMode
from ingest.importers.kernelbench_runs import KernelBenchRuns
from ingest.importers.protocol import Importer, too_good, without_paths
from ingest.importers.robust_kbench import RobustKbench
from ingest.importers.sakana import KNOWN, Sakana
from ingest.importers.take import Report, functionalize_imported, import_from
from ingest.pipeline import reindex
from rag_kernels.exemplars import is_from
from rag_kernels.retrieval import Limits, Retriever

PROGRAM = str(Path(sys.executable).with_name("rag-kernels"))
ANY = KernelFilter(include_retracted=True)
HOME = "/home/somebody/secret/experiments/20250203_optimize_b10_s4_e0_sweep/level_1/task_3/b7_s2_fast/base/"

MODULE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))

    def forward(self, x):
        return torch.relu(x * self.weight)

def get_inputs():
    return [torch.randn(4, 8)]

def get_init_inputs():
    return [8]
"""
FUNCTIONAL = "import torch\n\ndef module_fn(x, weight):\n    return torch.relu(x * weight)\n"
CUDA = """#include <torch/extension.h>
torch::Tensor forward(torch::Tensor x, torch::Tensor w) { return torch::matmul(x, w); } // VARIANT
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward); }
"""


def sakana_row(**changes: Any) -> dict[str, Any]:
    """A row that claims to be right and twice as fast."""
    variant = changes.pop("variant", 0)
    return {
        "Op_Name": "3_scaled_relu", "Level_ID": 1, "Task_ID": 3, "Kernel_Name": "fast_relu_base",
        "CUDA_Runtime": 0.5, "PyTorch_Native_Runtime": 1.0, "PyTorch_Compile_Runtime": 0.75,
        "CUDA_Speedup_Native": 2.0, "CUDA_Speedup_Compile": 1.5, "CUDA_Code": CUDA.replace("VARIANT", str(variant)),
        "PyTorch_Code_Module": MODULE, "PyTorch_Code_Functional": FUNCTIONAL, "Correct": True, "Max_Diff": 0.001,
        "Error": None, "NCU_Profile": str({"metrics": {"SM Busy": {"unit": "%", "avg_value": 42.7, "variance": 0.0,
        "n": 5}}, "rules": {"Occupancy": {"type": "WRN", "description": "low"}}}),
        "Clang_Tidy": str({"stdout": f"{HOME}base.cu:9:3: warning: x", "errored": False}), "__index_level_0__": 1,
    } | changes  # fmt: skip


FAILED = {
    "Correct": False, "CUDA_Runtime": None, "CUDA_Speedup_Native": 0.0, "CUDA_Speedup_Compile": 0.0, "Max_Diff": None,
    "Error": f"{HOME}base.cu(7): error: expected a ';'", "NCU_Profile": None, "Clang_Tidy": None,
}  # fmt: skip


def sakana_file(folder: Path, *rows: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "level_1.parquet")
    return folder


def taken(importer: Importer, path: Path) -> tuple[MemoryArchive, Report]:
    archive = MemoryArchive()
    return archive, import_from(archive, importer, path)


def only(archive: MemoryArchive) -> ArchivedKernel:
    [kernel] = archive.kernels(ANY)
    return kernel


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
    candidate = Candidate(kernel.source, kernel.tier, kernel.backend)
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
    left_out = Limits(exclude_problem_ids=(Problem("any", MODULE).id,))
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


def kernelbench(folder: Path) -> Path:
    """A checkout with two problems and a run of three kernels, one of them judged right."""
    level, run = folder / "KernelBench" / "level1", folder / "runs" / "first"
    level.mkdir(parents=True)
    run.mkdir(parents=True)
    (level / "1_scaled_relu.py").write_text(MODULE)
    (level / "2_other.py").write_text(MODULE.replace("relu", "tanh"))
    new = MODULE.replace("class Model", "class ModelNew")
    for problem, sample, source in ((1, 0, new), (1, 1, new + "# 1\n"), (2, 0, new + "# 2\n"), (3, 0, new)):
        (run / f"level_1_problem_{problem}_sample_{sample}_kernel.py").write_text(source)
    right = {"sample_id": 0, "compiled": True, "correctness": True, "runtime": 0.25, "runtime_stats": {"std": 0.1},
             "metadata": {"hardware": "NVIDIA L40S", "device": "cuda:0"}}  # fmt: skip
    wrong = {"sample_id": 1, "compiled": True, "correctness": False, "runtime": -1.0, "runtime_stats": {},
             "metadata": {"hardware": "NVIDIA L40S", "runtime_error": f"in {HOME}x.py: bad"}}  # fmt: skip
    results = {"1": [right, wrong], "9": [right], "x": ["nonsense"]}
    (run / "eval_results.json").write_text(json.dumps(results))
    return run


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


TASK = '''
import torch
import torch.nn as nn

class AutogradFunction(torch.autograd.Function):
    backward_fn = None

def forward_fn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiplies and cuts off."""
    return torch.relu(x * weight)

class Model(nn.Module):
    def __init__(self, size: int = 4, gain: float = 1.0):
        super(Model, self).__init__()
        self.weight = nn.Parameter(gain * torch.randn(size))

    def forward(self, x, fn=forward_fn):
        return fn(x, self.weight)

def get_inputs(batch_size: int = 2, size: int = 4):
    return [torch.randn(batch_size, size, requires_grad=True)]

input_names = ["x"]
'''


def robust_task(root: Path) -> Path:
    """A checkout with one task, both directions, a kernel of its own and a highlighted one."""
    folder = root / "tasks" / "scaled_relu"
    folder.mkdir(parents=True)
    configurations = {"single_input_configs": [{"batch_size": 3}], "single_init_configs": [{"gain": 0.5}],
                      "single_shared_configs": [{"size": 8}]}  # fmt: skip
    for direction in ("forward", "backward"):
        (folder / f"func_{direction}.py").write_text(TASK)
        (folder / f"config_{direction}.json").write_text(json.dumps(configurations))
    (folder / "forward.cu").write_text(CUDA)
    (root / "highlighted" / "scaled_relu" / "backward").mkdir(parents=True)
    kernel = CUDA.replace("forward", "backward")
    (root / "highlighted" / "scaled_relu" / "backward" / "kernel.cu").write_text(kernel)
    (root / "highlighted" / "results.csv").write_text(
        "Kernel Name,Correct,Runtime (ms),Speedup,Speedup Compile,Max Diff,Error,Code,task_name,forward\n"
        "fused_grad,True,0.5,1.25,1.5,0.0,,,scaled_relu,False\n"
        "unknown,True,0.5,1.25,1.5,0.0,,,nothing,False\n"
        "broken,True,fast,1.25,1.5,0.0,,,scaled_relu,False\n"
    )
    broken = root / "tasks" / "broken"
    broken.mkdir()
    (broken / "func_forward.py").write_text(TASK)
    (broken / "config_forward.json").write_text("{}")
    return root


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(preload=PRELOAD) as made:
        yield made


def test_robust_kbench_comes_in_forward_and_backward(tmp_path: Path, workers: Workers) -> None:
    archive, report = taken(RobustKbench(), robust_task(tmp_path))
    assert [row.where for row in report.skipped] == [
        "broken/func_forward.py", "highlighted/results.csv row 2", "highlighted/results.csv row 3",
    ]  # fmt: skip
    kernels = {kernel.problem_name: kernel for kernel in archive.kernels(ANY)}
    assert set(kernels) == {"scaled_relu_forward", "scaled_relu_backward"}
    [claim] = claims_of(archive, kernels["scaled_relu_backward"].id)
    assert (claim.candidate_us, claim.speedup_eager, claim.licence) == (500.0, 1.25, "Apache-2.0")
    assert "entry point is `backward`" in claim.notes[-1]
    assert reindex(archive, load_embedder()) == 2
    rows = list(functionalize_imported(archive, load_embedder(), workers=workers))  # autograd is not traced
    assert [(row.name, row.ok) for row in rows] == [("scaled_relu_backward", False), ("scaled_relu_forward", True)]
    shapes = {kernel.problem_name: kernel.shapes for kernel in archive.kernels(ANY)}
    assert shapes == {"scaled_relu_forward": ((3, 8), (8,)), "scaled_relu_backward": ()}
    assert [problem.name for problem in without_functional(archive)] == ["scaled_relu_backward"]
    assert verify(archive) == []


def test_a_backward_problem_computes_the_gradients(tmp_path: Path) -> None:
    archive, _ = taken(RobustKbench(), robust_task(tmp_path))
    [problem] = [problem for problem in without_functional(archive) if problem.name.endswith("backward")]
    module = load_module(problem.name, problem.source)
    gradient, x = module.get_inputs()
    model = module.Model(*module.get_init_inputs())
    passed = (x * model.task.weight > 0) * gradient
    for found, expected in zip(model(gradient, x), (passed * model.task.weight, (passed * x).sum(0)), strict=True):
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


REFERENCE = """from utils import make_match_reference, Quiet as Q
import torch
from task import input_t, output_t

def ref_kernel(data: input_t) -> output_t:
    with Q():
        x, y = data
        return torch.relu(x) + y

def generate_input(size: int, seed: int) -> input_t:
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(size, 4, generator=gen), torch.randn(size, 4, generator=gen)

check_implementation = make_match_reference(ref_kernel)
"""
UTILS = """from __future__ import annotations

def make_match_reference(reference):
    return lambda data, output: (True, "")

class Quiet:
    def __enter__(self): return self
    def __exit__(self, *_): return None
"""
SUBMITTED = "import torch\nfrom task import input_t, output_t\n\ndef custom_kernel(data: input_t) -> output_t:\n" + (
    "    x, y = data\n    return torch.relu(x) + y\n"
)


def gpu_mode(root: Path, licence: str) -> Path:
    """A checkout with a set of one good problem, one in another language, and one without a reference."""
    folder = root / "problems" / "ours" / "add_py"
    (folder / "solutions" / "correct").mkdir(parents=True)
    (folder / "solutions" / "wrong").mkdir()
    (root / "LICENSE").write_text(licence)
    (root / "problems" / "ours.yaml").write_text(
        "name: Ours\nproblems:\n  - directory: ours/add_py\n    name: add_v2\n"
    )
    (root / "problems" / "ours" / "utils.py").write_text(UTILS)
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "task.yml").write_text(
        'files:\n  - {"name": "utils.py", "source": "../utils.py"}\n  - {"name": "task.py", "source": "task.py"}\n'
        'lang: "py"\ntests:\n  - {"size": 2, "seed": 1}\nbenchmarks:\n  - {"size": 2, "seed": 1}\n'
        '  - {"size": 6, "seed": 2}\n'
    )
    (folder / "task.py").write_text("input_t = output_t = tuple\n")
    (folder / "submission.py").write_text(SUBMITTED)
    (folder / "solutions" / "correct" / "ref.py").write_text(SUBMITTED + "# right\n")
    (folder / "solutions" / "wrong" / "empty.py").write_text(SUBMITTED + "# wrong\n")
    (folder / "solutions" / "correct" / "whole.py").write_text("import utils\n" + SUBMITTED)
    for name, text in (("cpp_py", "lang: cu\ntests: [{size: 1}]\n"), ("bare_py", "tests: [{size: 1}]\n")):
        (root / "problems" / "ours" / name).mkdir()
        (root / "problems" / "ours" / name / "task.yml").write_text(text)
    return root


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
