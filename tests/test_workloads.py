"""Several workloads of a problem: how they are written, and a kernel judged on all of them."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from cli_home import LEFT_OUT, inside, quick_limits
from factories import problem as made
from support.kept import kept_judge

from rag_kernels import ScriptedWriter, optimize
from rag_kernels.eval.contract import contract, contract_line, joint_contract
from rag_kernels.eval.problem import load_module
from rag_kernels.eval.records import Problem, ProblemError
from rag_kernels.eval.sizes.workloads import Workload, heaviest, problem_at, read_shapes, workloads_of
from rag_kernels.ingest.functional.sizes import at_other_sizes

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


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2


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


def test_a_contract_of_all_workloads_is_the_kernels_own_one_or_lists_them() -> None:
    at, rows, both = (made(shape=shape) for shape in ((64, 32), (9, 32), (9, 7)))
    own = contract(at, [made(shape=(63, 32))], any_alignment=True)
    kept = joint_contract(at, own, [at, rows], any_alignment=False)
    assert (kept.tensors, kept.alignment, kept.only) == (own.tensors, "allocation", ())
    for held, others, told in (
        (
            own,
            [at, rows, both],
            "x[M, N] float32; contiguous, at any alignment; M=64, N=32 or M=9, N=32 or M=9, N=7 alone",
        ),
        (None, [rows], "x[N, 32] float32; contiguous, at any alignment; N=64 or N=9 alone"),
        (None, [at], "x[64, 32] float32; contiguous, at any alignment"),
    ):
        assert contract_line(joint_contract(at, held, others, any_alignment=True)) == told


def test_sizes_between_those_that_were_judged_are_not_served(tmp_path: Path) -> None:
    """The kernel is right at both workloads, and at no other number of columns: it leaves some unwritten."""
    count = "x.size(0) * (x.size(1) == 32 ? 32 : 7)"
    kernel = KERNEL.replace("COUNT", f"std::min(x.numel(), {count})").replace(
        "#include", "#include <algorithm>\n#include", 1
    )
    calls = [torch.randn(64, 32), torch.randn(9, 7)]
    limits = quick_limits(left_out=LEFT_OUT - {"odd shapes"})
    with kept_judge("cpu", limits=limits, at_other_sizes=at_other_sizes) as judge:
        best = optimize(
            Twice(), calls[:1], workloads=[calls[1:]], judge=judge, writer=ScriptedWriter([kernel]), archive=":memory:",
            retrieval="off",
        )  # fmt: skip
    assert best.attempt is not None and best.attempt.judged.verdict.contract.only
    saved = load_module("best", best.save(tmp_path / "best.py").read_text())
    for module in (best.optimized(), saved.ModelNew()):
        for x in calls:
            torch.testing.assert_close(module(x), Twice()(x))
            assert module.kernel_used
        for x in map(torch.randn, ((3, 9), (64, 7), (9, 32), (63, 31))):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert torch.equal(module(x), Twice()(x))
            assert not module.kernel_used and "none of the sizes that it was verified at" in module.kernel_reason
    # `optimized()` asked for the operator again, which the file registered first: calls go to the last of its name.
    with pytest.raises(ValueError, match="none of the sizes that it was verified at"):
        saved.COMPILED.op(torch.randn(3, 9))


@pytest.mark.parametrize(("count", "verdicts"), [("x.numel()", ["passed", "passed"]), ("128", ["passed", "wrong"])])
def test_a_kernel_is_judged_on_all_of_them(tmp_path: Path, count: str, verdicts: list[str]) -> None:
    (tmp_path / "listed.py").write_text(LISTED)
    (tmp_path / "kernel.cpp").write_text(KERNEL.replace("COUNT", count))
    words = ["eval", "listed.py", "kernel.cpp", "--device", "cpu", "--no-confirm", "--archive", ":memory:", "--json"]
    done = inside(tmp_path, *words, quick=True)
    *rows, total = done.rows
    assert [row["verdict"] for row in rows] == verdicts, done.err
    assert [row["workload"] for row in rows] == ["ROWS=1", "ROWS=9, COLS=7"] and rows[0]["weight"] == 3
    assert (total["passed"], total["workloads"]) == (verdicts.count("passed"), 2)
    expected = sum(row["weight"] * row["candidate_us"] for row in rows if row["verdict"] == "passed")
    assert total["candidate_us"] == pytest.approx(expected)
    assert done.code == (0 if verdicts == ["passed", "passed"] else 1)
