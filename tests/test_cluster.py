"""Judges on a real Ray, started here without a dashboard: two of them on a CPU, a core each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli_home import RELU, RIGHT, WRONG
from typer.testing import CliRunner

from rag_kernels import wiring
from rag_kernels.cli import app
from rag_kernels.cluster.ray_judge import ClusterJudge, connected, open_cluster
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine.device import gpu_count, units
from rag_kernels.eval.records import Candidate, Passed, verdict_name
from rag_kernels.eval.timing_rule import TimingRule

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")

LEFT_OUT = frozenset({"admission", "special values", "sanitizers", "repeats", "odd shapes"})
QUICK = Limits(measure_compile=False, without=LEFT_OUT, timing=TimingRule(timed_s=0.1))
SOURCES = {
    "passed": RIGHT,
    "wrong": WRONG,
    "build_failed": RIGHT.replace("RK_EXPORT", "RK_IMPORT"),
    "crashed": RIGHT.replace("#pragma omp", "*(volatile int*)nullptr = 1;\n  #pragma omp"),
    "rejected": "",
}
LONG = RIGHT.replace("#pragma omp", "struct timespec nap{0, 50000000};\n  nanosleep(&nap, nullptr);\n  #pragma omp")


def kernel(source: str) -> Candidate:
    return Candidate(f"#include <ctime>\n{source}", "kernel", "cpu" if source else "cuda")


def ray_processes(of: str = "ray") -> list[psutil.Process]:
    """Of the Ray that was started here, with this in their command line."""
    return [p for p in psutil.Process().children(recursive=True) if of in command(p) and "ray" in command(p)]


def command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()[:2])
    except psutil.Error:  # it has ended
        return ""


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with connected("ray") as ray:
        yield ray
    left = psutil.wait_procs(ray_processes(), timeout=20)[1]
    assert left == []


@pytest.fixture(scope="class")
def judge(ray: Any, cache: Path) -> Iterator[ClusterJudge]:
    with open_cluster("ray", backend="cpu", limits=QUICK, cache=str(cache), cpus=1, most=2) as judge:
        yield judge


class TestTwoJudges:
    def test_candidates_get_the_verdicts_that_are_theirs(self, judge: ClusterJudge) -> None:
        candidates = {name: kernel(source) for name, source in SOURCES.items()}
        found = {c.id: verdict_name(j.verdict) for c, j in judge.judge(RELU, list(candidates.values()))}
        assert {name: found[c.id] for name, c in candidates.items()} == {name: name for name in SOURCES}

    def test_each_judge_has_a_core_of_its_own(self, judge: ClusterJudge) -> None:
        [(_, judged)] = judge.judge(RELU, [kernel(RIGHT)])
        assert judged.environment.threads == 1 and "(1 threads)" in judged.device.name

    def test_a_judge_that_is_killed_in_the_middle_costs_a_retry(
        self, judge: ClusterJudge, caplog: pytest.LogCaptureFixture
    ) -> None:
        candidates = [kernel(LONG), kernel(RIGHT.replace("variant = 0", "variant = 9"))]
        killed: list[int] = []

        def kill_one() -> tuple[()]:
            """The process names itself after what it does. The nap takes longer than finding it."""
            busy = ray_processes("RemoteJudge.judge")
            if busy and not killed:
                busy[0].kill()
                killed.append(busy[0].pid)
            return ()

        verdicts = [judged.verdict for _, judged in judge.judge(RELU, candidates, kill_one)]
        assert killed and "is lost" in caplog.text
        assert [type(v) for v in verdicts] == [Passed, Passed]


def test_generate_on_a_cluster(ray: Any, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "Limits", lambda **given: replace(QUICK, **given))
    file = tmp_path / "relu.py"
    file.write_text(RELU.problem.source)
    arguments = ["generate", str(file), "--device", "cpu", "--cluster", "ray", "--rounds", "1", "--drafts", "1"]
    done = CliRunner().invoke(app, [*arguments, "--retrieval", "off", "--archive", ":memory:", "--json"])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert rows[-1]["type"] == "result" and rows[-1]["confirmed"] and len(rows) > 2


def test_nothing_of_the_driver_is_in_the_environment_of_ray(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was set when Ray was started here; `connected` passes a list of names on."""
    names = {name for p in ray_processes("raylet/raylet") for name in p.environ()}
    assert "PATH" in names and not {"PYTEST_CURRENT_TEST", "PYTEST_VERSION"} & names


def test_the_gpu_that_ray_gave_is_the_one_that_is_asked_and_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvidia-smi shows all GPUs, whatever CUDA_VISIBLE_DEVICES says; this one answers with what it was asked."""
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "$@"; case "$*" in *-i*) ;; *) echo another; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "-i" not in units("cuda")[0].split() and gpu_count() == 2
    for visible, count in (("1", 1), ("GPU-7c1d,GPU-11", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert units("cuda")[0].endswith(f" -i {visible.split(',')[0]}") and gpu_count() == count
