"""Nsight Compute: what it prints, as it prints it; scripted programs in its place, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import factories
import numpy as np
import pytest

from rag_kernels.eval import codec
from rag_kernels.eval.build.compile import Built, build, checked, toolchain
from rag_kernels.eval.build.products import Programs
from rag_kernels.eval.instruments import nsight_compute
from rag_kernels.eval.instruments.nsight_compute import (
    LIMITS,
    METRICS,
    STALLS,
    Profiler,
    in_a_line,
    read_counters,
    run,
)
from rag_kernels.eval.instruments.sanitizers import OPTIONS, call_file
from rag_kernels.eval.machine.device_lock import DeviceLock
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Candidate, Counters, Passed, Ratio
from rag_kernels.eval.sessions.problem_knowledge import Leader
from rag_kernels.feedback.bottleneck import HOLDS, WAITS, bottleneck_of, counted, recommendation

FIRST = (
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
)
SMALL = {nsight_compute.TIME: "4,224", nsight_compute.REGISTERS: "16"}
LARGE = {
    nsight_compute.TIME: "1,204,224",
    nsight_compute.DRAM: "41.31",
    nsight_compute.SM: "28.9",
    nsight_compute.OCCUPANCY: "22.5",
    nsight_compute.REGISTERS: "168",
    nsight_compute.L2_HITS: "51.02",
    nsight_compute.WAVES: "7.76",
    LIMITS["registers"]: "1",
    LIMITS["shared memory"]: "8",
    LIMITS["warps"]: "8",
    LIMITS["blocks"]: "32",
    STALLS["long_scoreboard"]: "6.0",
    STALLS["barrier"]: "1.5",
    STALLS["wait"]: "0.5",
    STALLS["drain"]: "n/a",
}
NO_PERMISSION = """==PROF== Connected to process 77 (/scratch/kernel.so)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target \
device 0. For instructions on enabling permissions and to get more information see https://developer.nvidia.com/ERR_NVGPUCTRPERM
==PROF== Disconnected from process 77
==WARNING== No kernels were profiled.
"""


def printed(*kernels: tuple[str, dict[str, str]]) -> str:
    """What `ncu --csv --page raw --print-units base` prints: a heading, a row of units, a row a launch."""
    names = sorted(METRICS)

    def line(cells: list[str]) -> str:
        return ",".join(f'"{cell}"' for cell in cells)

    rows = [line([*FIRST, *names]), line([*[""] * len(FIRST), *["%" if "pct" in n else "" for n in names]])]
    for number, (name, values) in enumerate(kernels):
        launch = [str(number), "77", "kernel.so", "127.0.0.1", name, "1", "7", "(256, 1, 1)", "(99, 1, 1)", "0", "9.0"]
        rows.append(line([*launch, *[values.get(n, "0") for n in names]]))
    profiled = [f'==PROF== Profiling "{name}": 0%....50%....100% - 9 passes' for name, _ in kernels]
    return "\n".join(["==PROF== Connected to process 77 (kernel.so)", *profiled, "==PROF== Disconnected", *rows]) + "\n"


REPORT = printed(("prepare(float *)", SMALL), ("void rows<4>(const float *, float *, long)", LARGE))
FOUND = Counters(
    kernel="rows<4>",
    kernels=2,
    time_share=1_204_224 / 1_208_448,
    dram=0.4131,
    sm=0.289,
    occupancy=0.225,
    held_by="registers",
    registers=168,
    l2_hits=0.5102,
    waves=7.76,
    stall="long scoreboard",
    stall_share=0.75,
)


def test_the_longest_kernel_is_read() -> None:
    assert read_counters(REPORT) == FOUND
    assert read_counters(NO_PERMISSION) is None and read_counters("") is None


def program(folder: Path, text: str) -> None:
    """A program of this name that stands in for ncu."""
    (folder / "ncu").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "ncu").chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the head of PATH; children start in another one."""
    folder, work = tmp_path / "tools", tmp_path / "work"
    folder.mkdir(), work.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(nsight_compute, "PLACES", ())
    monkeypatch.chdir(work)
    return folder


ASKED: dict[str, Any] = {"program": "/x/kernel.so", "call": "AAAA", "limit_s": 20.0}


def test_it_is_asked_for_few_metrics_and_leaves_the_clocks_alone(tools: Path) -> None:
    (tools / "report").write_text(REPORT)
    program(tools, f'echo "$@" > {tools}/asked; test -f call.bin && cat {tools}/report')
    said = run(ASKED)
    assert said["why"] == "" and read_counters(said["csv"]) == FOUND
    asked = (tools / "asked").read_text()
    assert "--clock-control none" in asked and asked.endswith("/x/kernel.so call.bin\n")
    assert len(METRICS) < 25 and ",".join(METRICS) in asked


def test_what_keeps_it_from_working_is_said(tools: Path) -> None:
    (tools / "report").write_text(NO_PERMISSION)
    program(tools, f"cat {tools}/report; exit 1")
    assert "ERR_NVGPUCTRPERM" in run(ASKED)["why"]
    program(tools, "echo '==ERROR== The application returned an error code (3).'; exit 3")
    assert run(ASKED)["why"] == ""  # the kernel refused: no fault of ncu's
    (tools / "ncu").unlink()
    assert run(ASKED)["why"] == "ncu is not installed"


def test_it_is_not_waited_for_beyond_its_limit_and_ends_with_what_it_started(tools: Path) -> None:
    program(tools, f"sleep 600 & echo $! > {tools}/child; wait")
    started = time.monotonic()
    assert run(ASKED | {"limit_s": 1.0})["why"] == "ncu was not done after 1 s"
    assert time.monotonic() - started < 15
    child = Path(f"/proc/{(tools / 'child').read_text().strip()}/stat")
    for _ in range(100):
        if not child.exists() or child.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("what it profiled still runs")


def known(best: float = 1.0) -> Any:
    fp = factories.problem()
    content = [np.arange(np.prod(a.spec.shape), dtype=np.float32).view(np.uint8) for a in fp.tensors]
    draw, device_lock = nullcontext(SimpleNamespace(bytes=lambda i: content[i])), DeviceLock((), Path())
    own = SimpleNamespace(fp=fp, in_memory=lambda _: draw, device_lock=device_lock)
    return SimpleNamespace(session=own, leader=Leader(best))


def test_only_leaders_are_looked_at_once_and_never_again_after_a_refusal(tools: Path) -> None:
    (tools / "report").write_text(REPORT)
    program(tools, f"echo x >> {tools}/count; cat {tools}/report")
    gpu, leader = Candidate("// a", "kernel", "cuda"), factories.passed(2.0)

    def times() -> int:
        return len((tools / "count").read_text().splitlines())

    with Workers() as workers:
        profiler = Profiler(lambda candidate: (Programs(Path("/x/kernel.so")), workers), wanted=True)
        for _ in range(2):  # the second time stands for the confirmation
            seen = profiler.look(leader, known(), gpu)
            assert isinstance(seen, Passed) and seen.counters == FOUND and times() == 1
        assert profiler.look(leader, known(best=3.0), Candidate("// b", "kernel", "cuda")) == leader
        assert profiler.look(leader, known(), replace(gpu, tier="composed")) == leader
        assert profiler.look(factories.wrong(), known(), gpu) == factories.wrong() and times() == 1
        program(tools, f"echo x >> {tools}/count; echo '==ERROR== ERR_NVGPUCTRPERM'; exit 1")
        for name in "cd":
            assert profiler.look(leader, known(), Candidate(f"// {name}", "kernel", "cuda")) == leader
        assert times() == 2 and "ERR_NVGPUCTRPERM" in profiler.why_not
        assert Profiler(lambda candidate: pytest.fail("asked"), wanted=False).look(leader, known(), gpu) == leader


def test_large_tensors_repeat_the_content_that_is_sent(tmp_path: Path) -> None:
    source = """#include "rag_kernel.h"
#include <cstdlib>
void scaled(rk::Tensor<const float> x, double factor, rk::Tensor<float> out) {
  for (int64_t i = 0; i < x.numel(); ++i)
    if (x.data[i] != float(i % PERIOD)) std::abort();
}
RK_EXPORT(forward, scaled)
"""
    whole, part = known(), 3000
    sources = [checked(source.replace("PERIOD", period)) for period in ("65536", "750")]
    builds = build([(text, "cpu-checked") for text in sources], tools=toolchain(), cache=tmp_path)
    for made, most in zip(builds, (None, part), strict=True):
        assert isinstance(made, Built)
        (tmp_path / "call.bin").write_bytes(call_file(whole.session, most_bytes=most))
        assert (tmp_path / "call.bin").stat().st_size < (4000 if most else 300_000)
        subprocess.run([made.library, tmp_path / "call.bin"], check=True, timeout=60, env=OPTIONS)


def test_old_verdicts_read_as_before_and_new_ones_keep_their_counters() -> None:
    old = codec.dumps(factories.passed())
    assert "counters" not in old and codec.loads(old) == factories.passed()
    seen = replace(factories.passed(), counters=FOUND)
    assert codec.loads(codec.dumps(seen)) == seen
    assert "occupancy 22% (held by registers), 168 registers" in in_a_line(FOUND)


CASES = {
    "occupancy 22% held by 168 registers a thread: keep less in registers": {},
    "88% of DRAM throughput; 51% of accesses hit the L2 cache: memory is busy": {"dram": 0.88},
    "90% of SM throughput: the SMs are busy": {"sm": 0.9},
    "its blocks fill 12% of their places: split the work": {"waves": 0.12},
    "75% of waiting warps wait for global memory: have more loads in flight": {"occupancy": 0.7},
    "75% of waiting warps wait for __syncthreads: use fewer barriers": {"occupancy": 0.7, "stall": "barrier"},
}


@pytest.mark.parametrize("said", CASES)
def test_the_counters_give_one_figure_and_one_direction(said: str) -> None:
    seen = replace(factories.passed(), counters=replace(FOUND, **CASES[said]))  # type: ignore[arg-type]
    features, device = factories.problem().features, factories.device()
    told = recommendation(seen, features, device)
    assert told.startswith("ncu, rows<4> (100% of the time of 2 kernels): ") and said in told
    assert bottleneck_of(seen, features, device).kind == counted(seen.counters)[0]  # type: ignore[arg-type]
    near = replace(seen, measurement=replace(seen.measurement, candidate_us=27.0, floor_us=26.2))
    assert recommendation(near, features, device).startswith("It is near the floor that follows")


def test_where_all_bytes_are_unavoidable_nobody_is_told_to_save_any() -> None:
    features, device = factories.problem().features, factories.device()
    busy = replace(factories.passed(), counters=replace(FOUND, dram=0.64, stall="barrier"))
    moves_all = replace(busy, measurement=replace(busy.measurement, candidate_us=100.0, floor_us=70.0))
    told = recommendation(moves_all, features, device)
    assert "64% of DRAM throughput with the unavoidable bytes" in told and "use fewer barriers" in told
    assert "no bytes are left to save" in told and "fuse passes" not in told
    assert "fuse passes" in recommendation(busy, features, device)
    behind = replace(moves_all.measurement, candidate_us=80.0, speedup_eager=Ratio(0.95, 0.94, 0.96))
    told = recommendation(replace(moves_all, measurement=behind), features, device)
    assert "none are left to save" in told and "ncu counted of rows<4>" in told and "wait for __syncthreads" in told


def test_there_is_a_direction_for_everything_that_is_counted() -> None:
    assert {reason.replace("_", " ") for reason in STALLS} == set(WAITS) and set(LIMITS) == set(HOLDS)
