"""Several workloads of a problem: how they are written, and a kernel judged on all of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from factories import problem as made
from foreign import PROGRAM

from rag_kernels.eval.contract import contract, joint_contract
from rag_kernels.eval.records import Problem, ProblemError
from rag_kernels.eval.workloads import Workload, heaviest, problem_at, read_shapes, workloads_of

PROBLEM = """
import torch

ROWS, COLS = 64, 32
height = width = 2


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    depth = 1
    return [torch.randn(ROWS, COLS, height, width, depth)]


def get_init_inputs():
    return []
"""
LISTED = PROBLEM + '\n\ndef get_workloads():\n    return [{"ROWS": 1, "weight": 3}, {"ROWS": 9, "COLS": 7}]\n'
KERNEL = """
#include "rag_kernel.h"
void twice(rk::Tensor<const float> x, rk::Tensor<float> out) {
  for (int64_t i = 0; i < COUNT; ++i) out.data[i] = x.data[i] > 0 ? 2 * x.data[i] : 0;
}
RK_EXPORT(forward, twice)
"""


def test_shapes_are_every_combination() -> None:
    assert [w.name for w in read_shapes("batch=1,8 seq=16")] == ["batch=1, seq=16", "batch=8, seq=16"]
    for wrong in ("", "batch", "batch=", "batch=0", "=3", "batch=a"):
        with pytest.raises(ProblemError, match="NAME=1,8,64"):
            read_shapes(wrong)


def test_a_problem_lists_its_workloads_in_its_text() -> None:
    assert workloads_of(Problem("p", PROBLEM)) == ()
    assert workloads_of(Problem("p", LISTED)) == (
        Workload((("ROWS", 1),), 3.0),
        Workload((("ROWS", 9), ("COLS", 7))),
    )
    for wrong in ("rows()", "[{'ROWS': 1.5}]", "[{'ROWS': 1, 'weight': 0}]", "[3]"):
        with pytest.raises(ProblemError, match="written out"):
            workloads_of(Problem("p", f"{PROBLEM}\ndef get_workloads():\n    return {wrong}\n"))


def test_a_size_goes_by_any_of_its_names() -> None:
    sized = problem_at(Problem("p", PROBLEM), Workload((("COLS", 5), ("width", 3), ("depth", 4))))
    assert "ROWS, COLS = 64, 5" in sized.source and "height = width = 3" in sized.source and "depth = 4" in sized.source
    with pytest.raises(ProblemError, match=r"no size 'batch': its sizes are ROWS, COLS, height, width, depth"):
        problem_at(Problem("p", PROBLEM), Workload((("batch", 5),)))


def test_the_heaviest_has_the_most_to_do() -> None:
    often, large = Workload((("ROWS", 1),), 3.0), Workload((("ROWS", 9), ("COLS", 7)))
    assert heaviest(Problem("p", PROBLEM), (often, large)) is often  # 3 times 1 x 32, which is more than 9 x 7
    assert heaviest(Problem("p", PROBLEM), (Workload((("ROWS", 1),)), large)) is large


def test_a_contract_of_all_workloads_has_free_what_differs_among_them() -> None:
    at, rows, both = (made(shape=shape) for shape in ((64, 32), (9, 32), (9, 7)))
    own = contract(at, [made(shape=(63, 32))], any_alignment=True)
    kept = joint_contract(at, own, [at, rows], any_alignment=False)
    assert (kept.tensors, kept.alignment) == (own.tensors, "allocation")
    assert joint_contract(at, own, [rows, both], any_alignment=True).tensors[0].shape == ("M", "N")
    assert joint_contract(at, None, [rows], any_alignment=True).tensors[0].shape == ("N", "32")


@pytest.mark.parametrize(("count", "verdicts"), [("x.numel()", ["passed", "passed"]), ("128", ["passed", "wrong"])])
def test_a_kernel_is_judged_on_all_of_them(tmp_path: Path, count: str, verdicts: list[str]) -> None:
    (tmp_path / "listed.py").write_text(LISTED)
    (tmp_path / "kernel.cpp").write_text(KERNEL.replace("COUNT", count))
    words = ["eval", "listed.py", "kernel.cpp", "--device", "cpu", "--no-confirm", "--archive", ":memory:", "--json"]
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=240, cwd=tmp_path)
    *rows, total = map(json.loads, done.stdout.splitlines())
    assert [row["verdict"] for row in rows] == verdicts, done.stderr
    assert [row["workload"] for row in rows] == ["ROWS=1", "ROWS=9, COLS=7"] and rows[0]["weight"] == 3
    assert (total["passed"], total["workloads"]) == (verdicts.count("passed"), 2)
    expected = sum(row["weight"] * row["candidate_us"] for row in rows if row["verdict"] == "passed")
    assert total["candidate_us"] == pytest.approx(expected)
    assert done.returncode == (0 if verdicts == ["passed", "passed"] else 1)
