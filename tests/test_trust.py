"""What a headline says beside the speed: memory of a call, and what could not be tried."""

from collections.abc import Iterator
from dataclasses import replace

import factories
import pytest
from judging import OF_SANITIZERS, altered, verdict
from support.kept import kept_judge

from rag_kernels.archive.rows import trust_of
from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import (
    MORE_MEMORY,
    SLOWER,
    UNCHECKED,
    UNRELATED,
    Candidate,
    FunctionalProblem,
    Passed,
    with_labels_of,
)
from rag_kernels.eval.verdict_codes import codes
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes
from rag_kernels.report.json_rows import judged_row

ROWS, COLUMNS = 1280, 1024
PROBLEM = f"""
import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)
rows, columns = {ROWS}, {COLUMNS}
def get_inputs():
    return [torch.randn(rows, columns)]
def get_init_inputs():
    return []
"""
SUMS = PROBLEM.replace("torch.softmax(x, -1)", "(x * 2 + 1).sum(-1)")
REFUSES = f'RK_CHECK(n == 128 || (n == {COLUMNS} && rows == {ROWS}), "128 columns, or one size");'
ONE_SIZE = f'RK_CHECK(n == {COLUMNS} && rows == {ROWS}, "one size");'
MODULE = """
import torch, torch.nn as nn
class ModelNew(nn.Module):
    def forward(self, x):
        y = x.repeat(8, 1)
        return torch.softmax(y, -1)[: len(x)].clone()
"""


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    limits = replace(OF_SANITIZERS, draws=1)
    with kept_judge("cpu", limits=limits, at_other_sizes=at_other_sizes) as opened:
        yield opened


@pytest.fixture(scope="module")
def quick(judge: LocalJudge) -> Iterator[LocalJudge]:
    """Judge without sanitizers and further sizes."""
    limits = replace(judge.limits, thorough=False)
    with kept_judge("cpu", limits=limits, at_other_sizes=at_other_sizes) as opened:
        yield opened


@pytest.fixture(scope="module")
def softmax(judge: LocalJudge) -> FunctionalProblem:
    return functionalize(problem_from_source("softmax", PROBLEM), workers=judge.workers)


@pytest.mark.parametrize(
    "workspace",
    [
        "std::vector<float> w(16 << 20, 1.f); volatile float v = w[5]; (void)v;",  # given back at the end of a call
        "static std::vector<float> w(16 << 20, 1.f); volatile float v = w[5]; (void)v;",  # kept by the first one
    ],
)
def test_a_workspace_beyond_the_modules_is_in_the_headline(
    quick: LocalJudge, softmax: FunctionalProblem, workspace: str
) -> None:
    passed = verdict(quick, softmax, altered(workspace))
    assert isinstance(passed, Passed) and MORE_MEMORY in passed.labels, passed
    m = passed.measurement
    assert m.candidate_extra_bytes is not None and 64 << 20 <= m.candidate_extra_bytes < 80 << 20
    assert m.eager_extra_bytes is not None and m.eager_extra_bytes < 8 << 20


def test_what_a_module_takes_beside_its_outputs_is_told(quick: LocalJudge, softmax: FunctionalProblem) -> None:
    passed = verdict(quick, softmax, MODULE, "module")
    assert isinstance(passed, Passed) and MORE_MEMORY in passed.labels, passed
    taken = passed.measurement.candidate_extra_bytes
    whole = 4 * ROWS * COLUMNS
    assert taken is not None and 15 * whole <= taken <= 18 * whole


def test_the_modules_temporaries_are_counted_and_a_kernel_without_any_is_none_the_worse(quick: LocalJudge) -> None:
    fp = functionalize(problem_from_source("sums", SUMS), workers=quick.workers)
    source = """
#include "rag_kernel.h"
void sums(rk::Tensor<const float> x, ARGUMENTS rk::Tensor<float> out) {
  for (int64_t r = 0; r < x.size(0); ++r) {
    float s[16] = {};
    for (int64_t i = 0; i < x.size(1); ++i) s[i % 16] += x.data[r * x.size(1) + i] * 2 + 1;
    float t = 0;
    for (float v : s) t += v;
    out.data[r] = t;
  }
}
RK_EXPORT(forward, sums)
""".replace("ARGUMENTS", "".join(f"int64_t c{i}, " for i, _ in enumerate(fp.abi_constants)))
    passed = verdict(quick, fp, source)
    assert isinstance(passed, Passed) and MORE_MEMORY not in passed.labels, passed
    m, temporary = passed.measurement, 4 * ROWS * COLUMNS
    assert m.eager_extra_bytes is not None and 0.9 * temporary <= m.eager_extra_bytes <= 2.2 * temporary
    assert m.candidate_extra_bytes is not None and m.candidate_extra_bytes < 4 << 20


def test_a_kernel_that_refuses_small_sizes_is_tried_at_the_smallest_that_it_takes(
    judge: LocalJudge, softmax: FunctionalProblem
) -> None:
    passed = verdict(judge, softmax, altered(REFUSES))
    assert isinstance(passed, Passed) and "shape-specialised" in passed.labels, passed
    assert f"smaller sizes: rows=160 instead of {ROWS}, columns=128 instead of {COLUMNS}" in " ".join(passed.checks)
    assert any(check.endswith("kinds of special values") for check in passed.checks)
    assert "sanitizers: address, undefined-behaviour, thread" in passed.checks
    assert not any(label.startswith(UNCHECKED) for label in passed.labels)


@pytest.mark.parametrize(
    ("before", "middle", "expected"),
    [
        (REFUSES, "m = 0;", "wrong"),  # without its maximum: overflows on inputs that the problem does not draw
        (ONE_SIZE + "float p8[8]; volatile int at = 8; p8[at] = 1; (void)p8;", "", "rejected:sanitizer"),
    ],
)
def test_nor_is_it_excused_from_special_values_and_sanitizers(
    judge: LocalJudge, softmax: FunctionalProblem, before: str, middle: str, expected: str
) -> None:
    found = verdict(judge, softmax, altered(before, middle))
    assert expected in codes(found), found


def test_what_could_not_be_tried_lowers_the_trust(judge: LocalJudge, softmax: FunctionalProblem) -> None:
    """A fence by assembly keeps ThreadSanitizer out, and no size is small enough for it."""
    source = altered('asm volatile("" ::: "memory");')
    ((_, judged),) = judge.judge(softmax, [Candidate(source, "kernel", "cpu")])
    passed = judged.verdict
    assert isinstance(passed, Passed) and f"{UNCHECKED}: sanitizers: thread" in passed.labels, passed
    assert passed.trust == "verified"
    confirmed = replace(passed, measurement=replace(passed.measurement, confirmed=True))
    assert confirmed.trust == "confirmed in part" and confirmed.claims_speed == passed.claims_speed
    assert replace(confirmed, labels=()).trust == "confirmed"
    assert trust_of(confirmed) == "verified" and trust_of(replace(confirmed, labels=())) == "confirmed"
    row = judged_row(replace(judged, verdict=confirmed))
    assert row["trust"] == "confirmed in part" and row["candidate_extra_bytes"] is not None


def test_a_confirmation_keeps_what_was_seen_before_unless_it_shows_otherwise() -> None:
    passed = factories.passed()
    before = replace(passed, labels=("fragile: low", SLOWER, "noisy machine"), precision="split-precision")
    again = replace(passed, labels=("fragile: low",), checks=())
    kept = with_labels_of(again, before)
    assert kept.labels == ("fragile: low", SLOWER) and kept.precision == "split-precision" and not kept.claims_speed
    disproved = with_labels_of(replace(again, checks=(UNRELATED,)), before)
    assert disproved.labels == ("fragile: low",)
