"""What a judged kernel serves, as the judge tells it: free sizes, fixed ones, and a kernel of one shape alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from factories import problem as made
from judging import OF_SIZES, verdict
from support.kept import kept_judge

from rag_kernels.eval.contract import contract, contract_line, portable
from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import FunctionalProblem, Passed, TensorArgument, TensorSpec
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes

PROBLEM = """
import torch
import torch.nn as nn

ROWS = 64

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3))

    def forward(self, x, seen):
        seen[...] = torch.cat([x, x]) * self.weight
        return seen

def get_inputs():
    return [torch.rand(ROWS, 3), torch.zeros(2 * ROWS, 3)]

def get_init_inputs():
    return []
"""
KERNEL = """
#include "rag_kernel.h"
typedef rk::Tensor<const float> In;
void twice(In x, In seen, In w, rk::Tensor<float> out) {
  int64_t rows = ROWS;
  for (int64_t r = 0; r < 2 * rows; ++r)
    for (int64_t i = 0; i < 3; ++i) out.data[r * 3 + i] = x.data[(r % rows) * 3 + i] * w.data[i];
}
RK_EXPORT(forward, twice)
"""


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=OF_SIZES, at_other_sizes=at_other_sizes) as opened:
        yield opened


@pytest.fixture(scope="module")
def problem(judge: LocalJudge) -> FunctionalProblem:
    return functionalize(problem_from_source("twice", PROBLEM), workers=judge.workers)


def test_sizes_that_were_judged_at_several_values_are_free(judge: LocalJudge, problem: FunctionalProblem) -> None:
    assert problem.written == ("1",)  # and the reference lives: its content cannot be written to
    passed = verdict(judge, problem, KERNEL.replace("ROWS", "x.size(0)"))
    assert isinstance(passed, Passed) and passed.contract is not None, passed
    told = "x[N, 3] float32, seen[2*N, 3] float32, weight[3] float32; N > 0; contiguous, at any alignment"
    assert contract_line(passed.contract) == told


def test_an_output_may_be_some_elements_longer_or_shorter_than_inputs() -> None:
    def at(rows: int, columns: int, outputs: tuple[int, ...]) -> FunctionalProblem:
        x = TensorArgument("x", "input", TensorSpec((rows, columns), "float32"), "0")
        return replace(made(), arguments=(x,), outputs=(TensorSpec(outputs, "float32"),))

    others = [at(7, 30, (6, 63, 15, 3)), at(9, 50, (8, 103, 25, 3))]
    shown = contract(at(4, 20, (3, 43, 10, 3)), others, any_alignment=True)
    assert shown.outputs == (("N-1", "2*M+3", "?", "3"),)
    assert contract_line(shown) == (
        "x[N, M] float32; N, M > 0; contiguous, at any alignment; as a module or package at its own sizes alone"
    )
    assert portable(replace(shown, outputs=(("N-1", "2*M+3"),)))


def test_an_output_may_be_a_part_of_an_input_rounded_down() -> None:
    """What windows with a stride leave; even sizes alone do not tell which way odd ones are rounded."""

    def at(size: int, halves: int, quarters: int) -> FunctionalProblem:
        x = TensorArgument("x", "input", TensorSpec((size,), "float32"), "0")
        return replace(made(), arguments=(x,), outputs=(TensorSpec((halves, quarters), "float32"),))

    shown = contract(at(32, 16, 7), [at(33, 17, 7), at(66, 33, 15), at(19, 10, 4)], any_alignment=True)
    assert shown.outputs == (("(N+1)//2", "(N-3)//4"),) and portable(shown)
    even = contract(at(32, 16, 7), [at(64, 32, 15), at(128, 64, 31)], any_alignment=True)
    assert even.outputs == (("?", "?"),)


def test_a_kernel_of_one_shape_serves_that_one(judge: LocalJudge, problem: FunctionalProblem) -> None:
    passed = verdict(judge, problem, KERNEL.replace("ROWS", "64"))
    assert isinstance(passed, Passed) and passed.contract is not None, passed
    assert "shape-specialised" in passed.labels
    assert contract_line(passed.contract).startswith("x[64, 3] float32, seen[128, 3] float32")
