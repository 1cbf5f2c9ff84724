"""A stranger's own writer, judge and archive, handed in by the public names alone: nothing is patched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rag_kernels import (
    Brief,
    Candidate,
    Draft,
    Grown,
    MemoryArchive,
    Options,
    ScriptedJudge,
    ScriptedWriter,
    evaluate,
    generate,
    grow,
    open_session,
    winner,
)

PROBLEM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(16, 16)]


def get_init_inputs():
    return []
"""
SOURCE = """#include "rag_kernel.h"
void relu(rk::Tensor<const float> x, rk::Tensor<float> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = x.data[i] > 0.0f ? x.data[i] : 0.0f;
}
RK_EXPORT(forward, relu)
"""


class Unroller:
    """A writer: it drafts the same loop, unrolled once more in each round."""

    name = "unroller"

    def propose(self, brief: Brief) -> Sequence[Draft]:
        times = 2**brief.round
        source = SOURCE.replace("  for", f"#pragma GCC unroll {times}\n  for")
        return [Draft(Candidate(source, "kernel", brief.device.backend), f"unrolled {times} times")]


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    file = tmp_path / "relu.py"
    file.write_text(PROBLEM)
    return file


def test_a_writer_a_judge_and_an_archive_of_ones_own(problem: Path) -> None:
    judge, archive = ScriptedJudge(), MemoryArchive()
    attempts = list(generate(problem, writer=Unroller(), judge=judge, archive=archive, rounds=2))
    best = winner(attempts)
    assert best is not None and best.writer == "unroller" and best.judged.device == judge.device
    assert [a.idea for a in attempts] == ["unrolled 2 times", "unrolled 4 times", best.idea]  # the last is confirmed
    assert judge.asked == [attempts[0].candidate.id, attempts[1].candidate.id]
    assert archive.attempts(attempts[0].run_id) == attempts  # it is open still, and holds what was written alone
    assert archive.stats()["kernels"] == 2


def test_an_archive_may_be_named_as_before_and_a_kernel_be_judged_by_ones_own_judge(
    problem: Path, tmp_path: Path
) -> None:
    kernel, judge = tmp_path / "kernel.cpp", ScriptedJudge()
    kernel.write_text(SOURCE)
    attempt = evaluate(problem, kernel, judge=judge, archive=":memory:")
    assert judge.confirmed == [attempt.candidate.id]
    assert attempt.candidate.source == SOURCE


def test_a_session_with_them_serves_many_runs(problem: Path) -> None:
    archive, options = MemoryArchive(), Options(rounds=1, retrieval="off")
    with open_session(options, writer=Unroller(), judge=ScriptedJudge(), archive=archive) as session:
        grown = [event for event in grow([problem], session) if isinstance(event, Grown)]
    assert [(g.name, g.failure) for g in grown] == [("relu", "")]
    best = winner(grown[0].attempts)
    assert best is not None and best.idea == "unrolled 2 times"
    assert best in archive.attempts(best.run_id)


def test_a_script_is_a_writer(problem: Path) -> None:
    writer = ScriptedWriter([SOURCE, "int wrong;"])
    attempts = list(generate(problem, writer=writer, judge=ScriptedJudge(), archive=MemoryArchive(), rounds=1))
    assert [a.candidate.source for a in attempts[:2]] == [SOURCE, "int wrong;"]
