"""What the GPU's counters say of a kernel: Nsight Compute (ncu) over a program around a kernel-tier source.

Comes in: the program that is built for compute-sanitizer (with -O3, so its kernels are the real ones) and a call at
the timed sizes. Goes out: `Counters` of the longest kernel. A few chosen metrics only: they take a few replays, and say
more than all of them would. Where ncu is missing, forbidden (ERR_NVGPUCTRPERM) or slow, nothing is said, nothing fails,
and it is not asked again. The program runs in a candidate's worker, never here; one that prints figures like ncu's
misleads whoever wrote it.
"""

from __future__ import annotations

import base64
import csv
import math
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rag_kernels.eval.build.products import Programs
from rag_kernels.eval.instruments.sanitizers import call_file, takes
from rag_kernels.eval.process.workers import WorkerFailed, Workers
from rag_kernels.eval.records import Candidate, Counters, Passed, Verdict
from rag_kernels.eval.sessions.problem_knowledge import ProblemKnowledge
from rag_kernels.eval.sessions.problem_session import ProblemSession

RUN = "rag_kernels.eval.instruments.nsight_compute:run"
COUNT_LIMIT_S = 45.0
START_S = 10.0  # of a worker, and to write its call
LAUNCHES = 32  # of a call that are looked at
SHOWN_BYTES = 1 << 20  # of a tensor's content; a larger one repeats them
PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/ncu")

TIME = "gpu__time_duration.sum"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
REGISTERS = "launch__registers_per_thread"
L2_HITS = "lts__t_sector_hit_rate.pct"
WAVES = "launch__waves_per_multiprocessor"
# How many blocks each lets on a multiprocessor.
LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
}
STALLS = {
    reason: f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
    for reason in (
        "long_scoreboard",
        "short_scoreboard",
        "lg_throttle",
        "mio_throttle",
        "math_pipe_throttle",
        "barrier",
        "wait",
        "no_instruction",
        "drain",
    )
}
METRICS = (TIME, DRAM, SM, OCCUPANCY, REGISTERS, L2_HITS, WAVES, *LIMITS.values(), *STALLS.values())


def read_counters(text: str) -> Counters | None:
    """Return the longest kernel in what `ncu --csv --page raw --print-units base` printed; None when it holds none."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    rows = [row for row in csv.DictReader(lines[start:]) if (row.get("ID") or "").isdigit()]  # not that of units
    if not rows:
        return None
    longest = max(rows, key=lambda row: _value(row, TIME))
    whole = sum(_value(row, TIME) for row in rows)
    limits = {name: _value(longest, metric) or math.inf for name, metric in LIMITS.items()}
    stalls = {reason: _value(longest, metric) for reason, metric in STALLS.items()}
    stall = max(stalls, key=stalls.__getitem__)
    return Counters(
        kernel=longest.get("Kernel Name", "").split("(")[0].removeprefix("void ")[:80],
        kernels=len(rows),
        time_share=_value(longest, TIME) / whole if whole else 1.0,
        dram=_value(longest, DRAM) / 100,
        sm=_value(longest, SM) / 100,
        occupancy=_value(longest, OCCUPANCY) / 100,
        held_by=min(limits, key=limits.__getitem__),
        registers=int(_value(longest, REGISTERS)),
        l2_hits=_value(longest, L2_HITS) / 100,
        waves=_value(longest, WAVES),
        stall=stall.replace("_", " "),
        stall_share=stalls[stall] / (sum(stalls.values()) or 1.0),
    )


def in_a_line(c: Counters) -> str:
    """Return all that was counted, for a person."""
    return (
        f"{c.kernel} ({c.time_share:.0%} of the time of {c.kernels}): DRAM {c.dram:.0%}, SM {c.sm:.0%}, occupancy "
        f"{c.occupancy:.0%} (held by {c.held_by}), {c.registers} registers a thread, L2 hits {c.l2_hits:.0%}, "
        f"{c.waves:.2g} waves, {c.stall_share:.0%} of stalls {c.stall}"
    )


def _value(row: dict[str, str], metric: str) -> float:
    """Zero where ncu has no value."""
    try:
        value = float((row.get(metric) or "").replace(",", ""))
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0


class Profiler:
    """Looks at the leaders of one judge: candidates that no earlier one of their session beats.

    `checked` builds a candidate's programs, and names the workers in which they run.
    """

    def __init__(self, checked: Callable[[Candidate], tuple[Programs, Workers]], *, wanted: bool) -> None:
        self._checked, self._works = checked, wanted
        self._known: dict[str, Counters | None] = {}
        self.why_not = ""

    def look(self, verdict: Verdict, known: ProblemKnowledge, candidate: Candidate) -> Verdict:
        """Return the verdict with what was counted, where it is worth a look."""
        if not isinstance(verdict, Passed) or candidate.tier != "kernel" or verdict.label == "library rewrite":
            return verdict
        leads = verdict.measurement.speedup_eager.low >= known.leader.speedup
        if self._works and leads and candidate.id not in self._known and takes(known.session.fp):
            self._known[candidate.id] = self._count(known.session, candidate)
        return replace(verdict, counters=self._known.get(candidate.id))

    def _count(self, session: ProblemSession, candidate: Candidate) -> Counters | None:
        programs, workers = self._checked(candidate)
        if programs.checked is None:
            return None
        call = call_file(session, most_bytes=SHOWN_BYTES)
        payload = {"program": str(programs.checked), "call": base64.b64encode(call).decode(), "limit_s": COUNT_LIMIT_S}
        try:
            with session.device_lock.alone():
                reply = workers.call(RUN, payload, deadline_s=COUNT_LIMIT_S + START_S)
        except WorkerFailed as failure:
            reply = {"csv": "", "why": str(failure)}
        self.why_not, self._works = reply["why"], not reply["why"]
        return read_counters(reply["csv"])


def run(payload: dict[str, Any]) -> dict[str, str]:
    """Start ncu in a candidate's worker; `why` says what keeps it from working here."""
    tool = shutil.which("ncu") or next((place for place in PLACES if Path(place).is_file()), None)
    if tool is None:
        return {"csv": "", "why": "ncu is not installed"}
    Path("call.bin").write_bytes(base64.b64decode(payload["call"]))
    command = [
        tool,
        "--csv",
        "--page",
        "raw",
        "--print-units",
        "base",
        "--clock-control",
        "none",
        "--launch-count",
        str(LAUNCHES),
        "--metrics",
        ",".join(METRICS),
        payload["program"],
        "call.bin",
    ]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env=os.environ | {"TMPDIR": os.getcwd()},
    )
    try:
        said, _ = process.communicate(timeout=payload["limit_s"])
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # what it profiles, too
        process.wait()
        return {"csv": "", "why": f"ncu was not done after {payload['limit_s']:g} s"}
    errors = [line for line in said.splitlines() if line.startswith("==ERROR==") and "The application" not in line]
    return {"csv": said, "why": errors[0][:300] if errors and '"ID"' not in said else ""}
