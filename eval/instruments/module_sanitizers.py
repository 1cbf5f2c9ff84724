"""What a module builds for itself under sanitizers: its extension built anew with checks on a CPU, compute-sanitizer on
a GPU.

Comes in: a module's source and calls at small or odd sizes. Goes out: reports as `instruments.sanitizers` makes them.
The module runs in a Python of its own (`children/candidate/module_program.py`). Python, torch and the
libraries are in there too and not ours to judge, so that only what is found within the module's own code counts: on a
CPU an error with a file that was built here in its trace, on a GPU one in a kernel that the source names. A module is
arbitrary code and can tell that it is looked at: this finds mistakes, not intent.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rag_kernels.eval import codec
from rag_kernels.eval.build.call_file import CALL_LINE, REFUSED
from rag_kernels.eval.instruments.sanitizers import (
    CPU_TOOLS,
    FOUND,
    GPU_TOOLS,
    Report,
    compute_sanitizer,
    said_first,
    sanitized,
    side_by_side,
)
from rag_kernels.eval.messages.to_candidate import CandidateCode, GivenTensor, ModuleCall
from rag_kernels.eval.places import PACKAGE
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Candidate
from rag_kernels.eval.sessions.candidate_buffers import binding
from rag_kernels.eval.sessions.problem_session import ProblemSession

BUILD_LIMIT_S, TOOL_LIMIT_S = 240.0, 120.0  # a GPU's tools start Python and torch, which they slow down
CHECKS = "-fsanitize=address,undefined -fno-sanitize=shift-base,vptr -fno-omit-frame-pointer -g1"
OPTIONS = {  # torch is not built with these checks, and what it shares with the module would look wrong to them
    "ASAN_OPTIONS": "detect_leaks=0:detect_container_overflow=0:detect_odr_violation=0:alloc_dealloc_mismatch=0:"
    "allocator_may_return_null=1:handle_segv=1",
    "UBSAN_OPTIONS": "print_stacktrace=0",
    "OMP_NUM_THREADS": "4",
}
_BUILDS = {"cpu": re.compile(r"cpp_extension|PYBIND11_MODULE|\bctypes\b"), "cuda": re.compile("__global__")}
_ON_GPU = re.compile(r"^=+ (?=Invalid|Uninitialized|Error: Race|Race reported|Barrier error)", re.MULTILINE)
_KERNEL = re.compile(r"\bat (?:void )?([\w:]+)")
_UNNAMED = re.compile(r"(?:\(anonymous namespace\)|<unnamed>)::")


PROGRAM = (sys.executable, "-P", "-m", "rag_kernels.eval.children.candidate.module_program")


def builds_its_own(candidate: Candidate) -> bool:
    """Return whether this module has native code of its own."""
    return _BUILDS[candidate.backend].search(candidate.source) is not None


def sanitize_module(candidate: Candidate, sessions: Iterable[ProblemSession], workers: Workers) -> list[Report]:
    """Return what every tool says of a call at each session's sizes; if its process dies, one report is all.

    A session is asked before the next one is: that may be given its worker.
    """
    made = [(session.on_gpu, _call(candidate, session)) for session in sessions]
    payload = {"source": candidate.source, "gpu": made[0][0], "calls": [call for _, call in made]}
    deadline_s = 2 * BUILD_LIMIT_S + TOOL_LIMIT_S
    return sanitized(workers, "rag_kernels.eval.instruments.module_sanitizers:run", payload, deadline_s)


def _call(candidate: Candidate, session: ProblemSession) -> str:
    """Return the first draw, and what a worker is told to load the module and to bind it, as JSON."""
    code = CandidateCode(candidate.tier, candidate.source, library="", cubin="")
    with session.in_memory() as draw:
        tensors = tuple(
            GivenTensor(a.spec, base64.b64encode(draw.bytes(i).tobytes()).decode())
            for i, a in enumerate(session.fp.tensors)
        )
    told = binding(session.fp, candidate, session.opened)
    return codec.dumps(ModuleCall(session.device.backend, code, told, tensors))


def run(payload: dict[str, Any]) -> dict[str, Any]:
    """Build and run the program under its tools, in a candidate's worker."""
    files = [str(Path(f"call{i}.json").resolve()) for i in range(len(payload["calls"]))]
    for file, call in zip(files, payload["calls"], strict=True):
        Path(file).write_text(call)
    Path("rag_kernels").mkdir()
    for name in ("__init__.py", "eval"):
        Path("rag_kernels", name).symlink_to(PACKAGE / name)
    reports = _on_gpu(payload["source"], files) if payload["gpu"] else _on_cpu(files)
    return {"reports": reports}


def _on_cpu(files: Sequence[str]) -> list[dict[str, Any]]:
    """Build with compilers that add the checks.

    Undefined behaviour does not end the program: it may be the library's.
    """
    compiler = shutil.which(os.environ.get("CXX", "g++")) or "g++"
    runtime = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(runtime).is_file():
        return [_report(left_out="AddressSanitizer does not work here")] * len(files)
    tools = Path("bin").resolve()
    tools.mkdir()
    for name in ("c++", "g++"):
        (tools / name).write_text(f'#!/bin/sh\nexec {compiler} {CHECKS} "$@"\n')
        (tools / name).chmod(0o755)
    code, log = _plain(
        files,
        OPTIONS
        | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "CXX": str(tools / "c++"),
            "LD_PRELOAD": runtime,
        },
    )
    here = str(Path.cwd())
    return _by_call(" and ".join(CPU_TOOLS), code, log, len(files), lambda text: _own_on_cpu(text, here))


def _on_gpu(source: str, files: Sequence[str]) -> list[dict[str, Any]]:
    """Build by a run without a tool; then all tools side by side, apart: a module may write where it is."""
    tool = compute_sanitizer()
    if tool is None:
        return [_report(left_out="compute-sanitizer does not work here")] * len(files)
    code, _ = _plain(files, {})
    if code not in (0, REFUSED):
        return [_report(left_out="it does not run in a program of its own")] * len(files)
    environment = _environment({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})  # or what lies beyond a tensor is torch's
    seen = side_by_side(
        [tool, "--target-processes", "application-only"],
        [(name, files) for name in GPU_TOOLS],
        PROGRAM,
        limit_s=TOOL_LIMIT_S,
        environment=environment,
        apart=True,
    )
    names = frozenset(re.findall(r"\w+", source))
    each = [_by_call(name, code, log, len(files), lambda text: _own_on_gpu(text, names)) for name, code, log in seen]
    return [
        {key: [item for report in reports for item in report[key]] for key in ("ran", "found", "left_out")}
        for reports in zip(*each, strict=True)
    ]


def _plain(files: Sequence[str], environment: dict[str, str]) -> tuple[int | None, str]:
    """Exit code (None: it took too long) and log of the program by itself."""
    with open("program.log", "wb") as log:
        process = subprocess.Popen(
            [*PROGRAM, *files], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(environment)
        )
        try:
            code: int | None = process.wait(BUILD_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return None, f"it was not done after {BUILD_LIMIT_S:.0f} s"
    return code, Path("program.log").read_text(errors="replace")


def _environment(more: dict[str, str]) -> dict[str, str]:
    """Return variables by which extensions are built in the scratch folder and our package is found.

    Its own may be hidden.
    """
    own = {"TORCH_EXTENSIONS_DIR": str(Path("extensions").resolve()), "PYTHONPATH": str(Path.cwd())}
    return dict(os.environ) | own | more


def _by_call(
    tool: str, code: int | None, log: str, count: int, own: Callable[[str], str | None]
) -> list[dict[str, Any]]:
    """Return a report for each call.

    The program says where one begins, and what is said before the first is its, too.
    """
    before, *said = log.split(CALL_LINE)
    reports = []
    for number in range(count):
        text = said[number] if number < len(said) else ""
        error = own(before + text if number == 0 else text)
        ended = number + 1 < len(said) or (number < len(said) and code in (0, FOUND))
        if error:
            reports.append(_report(ran=tool, found=[tool, error]))
        elif ended:
            reports.append(_report(ran=tool))
        else:
            lines = [line for line in log.splitlines() if line.strip() and not line.startswith("=====")]
            why = f"it ended with code {code} ({''.join(lines[-1:])[:160]})" if code is not None else log
            reports.append(_report(left_out=f"{tool}: {why}"))
    return reports


def _report(*, ran: str = "", found: Sequence[str] = (), left_out: str = "") -> dict[str, Any]:
    tools = ran.split(" and ") if ran else []
    return {"ran": tools, "found": [list(found)] * bool(found), "left_out": [left_out] * bool(left_out)}


def _own_on_cpu(log: str, here: str) -> str | None:
    """Return the first error with a file in its trace that was built here."""
    for line in log.splitlines():
        if "runtime error: " in line and line.startswith(here):
            return said_first(line)
    error = log.find("ERROR: AddressSanitizer")
    trace = log[error:].split("\n\n")[0]
    return said_first(trace) if error >= 0 and here in trace else None


def _own_on_gpu(log: str, names: frozenset[str]) -> str | None:
    """Return the first error in a kernel whose name is one of these words."""
    starts = [m.start() for m in _ON_GPU.finditer(log)]
    for start, end in zip(starts, [*starts[1:], len(log)], strict=False):  # none in a clean log
        text = _UNNAMED.sub("", log[start:end])
        kernel = _KERNEL.search(text)
        if kernel is not None and kernel[1].split("::")[-1] in names:
            return said_first(text)
    return None
