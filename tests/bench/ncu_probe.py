"""Does Nsight Compute work where candidates run, what does it say of a kernel, and what does it cost?

    python tests/bench/ncu_probe.py cuda [--problem examples/softmax_scale.py] [--cache FOLDER]

Judges the offline writer's first kernel for a problem, with ncu asked about it, and prints the verdict's counters, the
recommendation that follows, and the seconds of each stage. Then it runs ncu over the same program outside the sandbox
and prints what it wrote, so that a refusal can be told from a matter of the sandbox. Needs a GPU, and no archive.
"""

from __future__ import annotations

import argparse
import base64
import os
import tempfile
import time
from pathlib import Path

from rag_kernels.eval.instruments import nsight_compute
from rag_kernels.eval.instruments.sanitizers import call_file
from rag_kernels.eval.judge import LocalJudge, open_judge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.problem import load_problem
from rag_kernels.eval.records import Candidate, FunctionalProblem, Judged, Passed
from rag_kernels.feedback.bottleneck import recommendation
from rag_kernels.ingest.functional.functionalize import functionalize_to_fit, room_bytes
from rag_kernels.ingest.functional.sizes import at_other_sizes
from rag_kernels.offline.writer import OfflineWriter
from rag_kernels.records import Brief

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", choices=("cpu", "cuda"))
    parser.add_argument("--problem", type=Path, default=ROOT / "examples" / "softmax_scale.py")
    parser.add_argument("--cache", type=Path, default=None)
    asked = parser.parse_args()
    limits = Limits(ncu=True, measure_compile=False)
    with open_judge(asked.device, limits=limits, cache_dir=asked.cache, at_other_sizes=at_other_sizes) as judge:
        room = room_bytes(asked.device)
        fp = functionalize_to_fit(load_problem(asked.problem), workers=judge.workers, max_bytes=room)
        draft = OfflineWriter().propose(Brief("probe", fp, judge.device, (), (), "", 1, 1))[0]
        [(_, judged)] = judge.judge(fp, [draft.candidate])
        tell(judge, fp, judged)
        if judge.device.backend == "cuda":
            outside(judge, draft.candidate)


def tell(judge: LocalJudge, fp: FunctionalProblem, judged: Judged) -> None:
    verdict = judged.verdict
    print(f"{fp.problem.name} on {judge.device.name}, sandbox: {', '.join(judged.environment.sandbox)}")
    print("seconds:", ", ".join(f"{name} {seconds:.2f}" for name, seconds in judged.stage_s.items()))
    if not isinstance(verdict, Passed):
        print(verdict)
        return
    said = (
        nsight_compute.in_a_line(verdict.counters) if verdict.counters else f"nothing: {judge._profiler.why_not or '?'}"
    )
    print(f"ncu: {said}\nrecommendation: {recommendation(verdict, fp.features, judge.device)}")


def outside(judge: LocalJudge, candidate: Candidate) -> None:
    """The same program under ncu, without the sandbox."""
    programs, _ = judge._builder.checked(candidate)
    session = judge.sessions._kept
    if programs.checked is None or session is None:
        print("The program around the kernel does not build.")
        return
    call = base64.b64encode(call_file(session, most_bytes=nsight_compute.SHOWN_BYTES)).decode()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        started = time.monotonic()
        said = nsight_compute.run({"program": str(programs.checked), "call": call, "limit_s": 120.0})
        print(f"outside the sandbox, {time.monotonic() - started:.1f} s: {said['why'] or 'it works'}")
        print(said["csv"][-6000:])
        os.chdir("/")


if __name__ == "__main__":
    main()
