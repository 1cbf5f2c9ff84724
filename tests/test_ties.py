"""Sorts and top-k whose places look up other values: any order of equals is right, each of them once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from judging import verdict
from support.kept import kept_judge

from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.numerics.ties import Arranged, taken_by
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import FunctionalProblem, Passed
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.eval.verdict_codes import codes
from rag_kernels.ingest.functional.functionalize import functionalize

GEN = torch.Generator().manual_seed(0)
QUICK = Limits(measure_compile=False, timing=TimingRule(pairs=7, max_pairs=7, timed_s=0.01, max_timed_s=0.5))
Module = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]


def looked_up(x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    at = torch.topk(x, 6, dim=-1).indices
    return (rows.gather(1, at.unsqueeze(-1).expand(-1, -1, rows.shape[-1])).exp(), at)


def sorted_by(x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (rows[..., 0].gather(1, x.argsort(dim=1, descending=True)),)


def summed(x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (rows.gather(1, torch.topk(x, 6).indices.unsqueeze(-1).expand(-1, -1, rows.shape[-1])).sum(1),)


def of_a_vector(x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (rows[..., 0][:, torch.topk(x[0], 6).indices],)


def taken(module: Module, x: torch.Tensor, rows: torch.Tensor, got: list[torch.Tensor]) -> bool:
    """Return whether outputs are found to be right with some order of equals."""

    def run(places: dict[int, torch.Tensor]) -> tuple[list[torch.Tensor], Arranged]:
        with Arranged(places) as found:
            return list(module(x, rows)), found

    places = taken_by(got, run)
    return places is not None and all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, run(places)[0], strict=True))


@pytest.mark.parametrize("module", [looked_up, sorted_by, of_a_vector])
def test_another_order_of_equals_is_found(module: Module) -> None:
    x = torch.randint(0, 12, (16, 40), generator=GEN).float()
    for rows in (torch.randn(16, 40, 8, generator=GEN), torch.randint(0, 3, (16, 40, 8), generator=GEN).float()):
        turned = [t.clone() for t in module(x.flip(1), rows.flip(1))]  # the last of equals first
        if module is looked_up:
            turned[1] = 39 - turned[1]
        assert any(not torch.equal(a, b) for a, b in zip(turned, module(x, rows), strict=True))
        assert taken(module, x, rows, turned)
        assert taken(module, x, rows, list(module(x, rows)))


def test_of_sums_the_first_and_the_last_of_equals_are_found() -> None:
    x, rows = torch.randint(0, 12, (16, 40), generator=GEN).float(), torch.randn(16, 40, 8, generator=GEN)
    for flip in (False, True):
        order = (x.flip(1) if flip else x).sort(dim=1, descending=True, stable=True).indices[:, :6]
        at = 39 - order if flip else order
        assert taken(summed, x, rows, [rows.gather(1, at.unsqueeze(-1).expand(-1, -1, 8)).sum(1)])


@pytest.mark.parametrize("module", [looked_up, sorted_by, of_a_vector])
def test_one_of_equals_twice_and_a_lesser_one_are_wrong(module: Module) -> None:
    x = torch.randint(0, 12, (16, 40), generator=GEN).float()
    x[:, :2] = 20.0
    rows = torch.randn(16, 40, 8, generator=GEN)
    for place in (1, 5):
        got = [t.clone() for t in module(x, rows)]
        for output in got:
            output[:, place] = output[:, 0]
        assert not taken(module, x, rows, got)
    assert not taken(module, x, rows, [t.clone() for t in module(-x, rows)])


SOURCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, rows):
        at = torch.topk(x, 8, dim=-1).indices
        return torch.gather(rows, 1, at.unsqueeze(-1).expand(-1, -1, rows.shape[-1])) * 2


def get_inputs():
    return [torch.randint(0, 50, (64, 128)).float(), torch.randn(64, 128, 16)]


def get_init_inputs():
    return []
"""
KERNEL = """
#include "rag_kernel.h"
#include <algorithm>
#include <vector>

typedef rk::Tensor<const float> In;
static void run(In x, In rows, int64_t k, int64_t dim, rk::Tensor<float> out) {
  const int64_t n = x.size(1), wide = rows.size(2);
  std::vector<int64_t> at(n);
  for (int64_t r = 0; r < x.size(0); ++r) {
    const float* a = x.data + r * n;
    for (int64_t i = 0; i < n; ++i) at[i] = i;
    std::sort(at.begin(), at.end(), [a](int64_t i, int64_t j) { return a[i] > a[j] || (a[i] == a[j] && i > j); });
    for (int64_t j = 0; j < 8; ++j) {
      const int64_t from = PLACE;
      for (int64_t d = 0; d < wide; ++d) out.data[(r * 8 + j) * wide + d] = 2 * rows.data[(r * n + from) * wide + d];
    }
  }
}
RK_EXPORT(forward, run)
"""


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=QUICK) as kept:
        yield kept


@pytest.fixture(scope="module")
def problem(judge: LocalJudge) -> FunctionalProblem:
    return functionalize(problem_from_source("looked up", SOURCE), workers=judge.workers)


@pytest.mark.parametrize(
    ("place", "right"), [("at[j]", True), ("at[j && a[at[j]] == a[at[j - 1]] ? j - 1 : j]", False)]
)
def test_the_judge_takes_the_last_of_equals_but_none_twice(
    judge: LocalJudge, problem: FunctionalProblem, place: str, right: bool
) -> None:
    found = verdict(judge, problem, KERNEL.replace("PLACE", place))
    assert isinstance(found, Passed) if right else "wrong" in codes(found), found
