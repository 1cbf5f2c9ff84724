"""A kernel under sanitizers: address, undefined behaviour and threads on a CPU, compute-sanitizer on a GPU.

Comes in: programs built around the functions of a source (`rag_driver.cpp`), and calls at small or odd sizes: of a
kernel-tier source its one function on the session's content, of a composed one what its forward called, as its own
worker recorded it. Goes out: the first thing that each tool found, as a sentence. The programs run in a candidate's
worker, never here.

ThreadSanitizer finds a data race by what OpenMP and locks order, not by the numbers, so that one call on one core is
enough; the program has an OpenMP runtime of its own (`rag_openmp.cpp`), since libgomp's barriers are hidden from the
tool. What that cannot judge is left out with a note, and never rejected: a source that needs more than the runtime
has, one that orders its threads by fences, `omp flush` or assembly, and a machine on which the tool does not work.
"""

from __future__ import annotations

import base64
import ctypes
import os
import re
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_kernels.eval.buffers.shared_arena import tensor_bytes
from rag_kernels.eval.build.call_file import READ, REPEATED, WRITTEN, number, tensor
from rag_kernels.eval.build.products import Programs
from rag_kernels.eval.process.workers import WorkerFailed, Workers
from rag_kernels.eval.records import FunctionalProblem, MachineError, ScalarArgument
from rag_kernels.eval.sessions.problem_session import ProblemSession

RUN = "rag_kernels.eval.instruments.sanitizers:run"
RUN_LIMIT_S, GPU_LIMIT_S = 120.0, 40.0
GPU_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
MORE = {"memcheck": ("--padding", "512")}  # or what lies beyond a tensor may be the next one
CPU_TOOLS = ("address", "undefined-behaviour")
THREAD_LIMIT_S = 45.0
REFUSED, UNKNOWN, FOUND, RACY = 3, 4, 9, 66  # exit codes: of the driver (twice), compute-sanitizer, TSan
NO_RANDOMIZE = 0x0040000  # TSan's shadow memory has fixed places, which a randomized layout may have taken
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:allocator_may_return_null=1",
    "PATH": "/usr/bin:/bin",
    "UBSAN_OPTIONS": "print_stacktrace=0",
    "OMP_NUM_THREADS": "4",
    "TSAN_OPTIONS": f"halt_on_error=1:exitcode={RACY}:history_size=7:report_thread_leaks=0:report_signal_unsafe=0:"
    "report_mutex_bugs=0:report_destroy_locked=0:detect_deadlocks=0:allocator_may_return_null=1",
}
ANEW, ANEW_CODE = "device made anew", 8  # no tool: the call once more when its device was reset; how the driver ends
SOFT_TOOLS = frozenset({"initcheck"})  # padding that is read and thrown away is no error
_FOUND = (
    re.compile(r"ERROR: AddressSanitizer: ([^\n]{0,160})"),
    re.compile(r"runtime error: ([^\n]{0,160})"),
    re.compile(r"WARNING: ThreadSanitizer: ([^\n(]{0,160})"),
    re.compile(r"========= (?!COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY)([^\n]{10,160})"),
)
_ERROR = re.compile(r"========= (?:Invalid|Uninitialized|Error: Race|Race reported|Barrier error|Program hit)")
_CAUGHT = re.compile(r'(?:kernel\d+|candidate)\.(?:cpp|cu)", line (\d+), in (\w+)')  # by tvm-ffi's own handler
_FRAME = re.compile(r"#\d+ 0x[0-9a-f]+ in (\w+)[^\n]*?(?:kernel\d+|candidate)\.(?:cpp|cu):(\d+)")
_LINE = re.compile(r"(?:kernel\d+|main|cuda|candidate)\.(?:cpp|cu):(\d+)")  # the last ones of torch's loader


def call_file(session: ProblemSession, most_bytes: int | None = None, draw: int = 0) -> bytes:
    """Return the arguments of one call on a draw of the session's, as `rag_driver.cpp` reads them.

    A tensor of more than `most_bytes` repeats its first ones.
    """
    position = {a.name: i for i, a in enumerate(session.fp.tensors)}
    parts = []
    with session.in_memory(draw) as content_of:
        for argument in session.fp.arguments:
            if isinstance(argument, ScalarArgument):
                parts.append(number(argument.value))
                continue
            content = content_of.bytes(position[argument.name])
            if most_bytes is None or len(content) <= most_bytes:
                parts.append(tensor(argument.spec, len(content), READ) + content.tobytes())
            else:
                head = tensor(argument.spec, len(content), REPEATED) + struct.pack("<q", most_bytes)
                parts.append(head + content[:most_bytes].tobytes())
    parts += [number(value) for _, value in session.fp.abi_constants]
    parts += [tensor(spec, tensor_bytes(spec), WRITTEN) for spec in session.fp.outputs]
    return b"".join(parts)


def takes(fp: FunctionalProblem) -> bool:
    """Return whether every argument has a form that the driver knows."""
    return all(not isinstance(a, ScalarArgument) or isinstance(a.value, bool | int | float) for a in fp.arguments)


@dataclass(frozen=True, slots=True)
class Report:
    """`ran`: the tools that ran to their end or found something; `found`: (tool, what); `left_out`: why not."""

    ran: tuple[str, ...]
    found: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...] = ()


def sanitize(
    programs: Programs, workers: Workers, calls: Sequence[bytes], *, on_gpu: bool, recorded: bool
) -> list[Report]:
    """Return what every tool says of each of these calls, made in a child of `workers`.

    If that dies, one report is all.
    """
    payload = {
        "checked": str(programs.checked or ""),
        "raced": str(programs.raced or ""),
        "gpu": on_gpu,
        "recorded": recorded,
        "calls": [base64.b64encode(call).decode() for call in calls],
    }
    return sanitized(workers, RUN, payload, 3 * RUN_LIMIT_S * len(calls)) if calls else []


def sanitized(workers: Workers, target: str, payload: Any, deadline_s: float) -> list[Report]:
    """Return the reports that `target` makes in a child of `workers`; one if it dies."""
    try:
        replies = workers.call(target, payload, deadline_s=deadline_s)["reports"]
    except WorkerFailed as failure:
        if failure.kind == "raised":
            raise MachineError(f"The sanitizers cannot run here: {failure.message}.") from failure
        return [Report(("address",), (("address", f"the checked program did not end ({failure.message})"),))]
    return [Report(tuple(r["ran"]), tuple((t, what) for t, what in r["found"]), tuple(r["left_out"])) for r in replies]


def run(payload: dict[str, Any]) -> dict[str, Any]:
    """Start the programs under their tools, in a candidate's worker."""
    files = [f"call{i}.bin" for i in range(len(payload["calls"]))]
    for file, call in zip(files, payload["calls"], strict=True):
        Path(file).write_bytes(base64.b64decode(call))
    if payload["gpu"]:
        return {"reports": _on_gpu(payload["checked"], files)}
    recorded = bool(payload.get("recorded"))
    return {"reports": [_on_cpu(payload["checked"], payload["raced"], file, recorded) for file in files]}


def _on_cpu(checked: str, raced: str, call: str, recorded: bool) -> dict[str, Any]:
    """Run both programs side by side. A call that was recorded was not refused then."""
    ran: list[str] = []
    found: list[list[str]] = []
    left_out: list[str] = []
    threads = _start(raced, call, "raced.log") if raced else None
    if checked:
        address = _start(checked, call, "checked.log")
        ran += CPU_TOOLS
        try:
            ended = address.wait(RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            address.kill()
            Path("checked.log").write_text(f"runtime error: it was not done after {RUN_LIMIT_S:.0f} s")
            ended = address.wait()
        if ended == UNKNOWN or (ended == REFUSED and recorded):
            if threads is not None:
                threads.kill()
            return {"ran": [], "found": [], "left_out": ["its calls could not be made again in a program"]}
        if ended not in (0, REFUSED) and _is_mere_fault(_log("checked.log")):
            ended = _again_without_fake_stacks(checked, call)
        if ended not in (0, REFUSED):
            found.append([" and ".join(CPU_TOOLS), said_first(_log("checked.log"))])
    if threads is not None and not found:
        try:
            code = threads.wait(THREAD_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
        log = _log("raced.log")
        if code in (0, REFUSED, RACY):
            ran.append("thread")
            found += [["thread", said_first(log)]] * (code == RACY)
        else:
            why = log.strip().splitlines()[0][:160] if log.strip() else f"it ended with code {code}"
            left_out.append(f"ThreadSanitizer: {why if code is not None else f'not done after {THREAD_LIMIT_S:.0f} s'}")
    if threads is not None:
        threads.kill()
    return {"ran": ran, "found": found, "left_out": left_out}


def _is_mere_fault(log: str) -> bool:
    """Return whether the source faulted without a word of a tool."""
    return _CAUGHT.search(log) is not None and not any(pattern.search(log) for pattern in _FOUND)


def _again_without_fake_stacks(checked: str, call: str) -> int:
    """Run it again on the stack itself, and return how that ends.

    Its own stacks, which show what outlives a function, GCC 13 aligns by less than a vector of 64 bytes needs.
    """
    again = _start(checked, call, "checked.log", more="detect_stack_use_after_return=0")
    try:
        return again.wait(RUN_LIMIT_S)
    except subprocess.TimeoutExpired:
        again.kill()
        Path("checked.log").write_text(f"runtime error: it was not done after {RUN_LIMIT_S:.0f} s")
        return again.wait()


def _start(program: str, call: str, log: str, *, more: str = "") -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None)
    options = OPTIONS | {"ASAN_OPTIONS": ":".join(filter(None, (OPTIONS["ASAN_OPTIONS"], more)))}
    with open(log, "wb") as file:
        return subprocess.Popen(
            [program, call],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
            env=options,
            preexec_fn=lambda: libc.personality(NO_RANDOMIZE),
        )


def _log(name: str) -> str:
    return Path(name).read_text(errors="replace")


def _on_gpu(program: str, files: Sequence[str]) -> list[dict[str, Any]]:
    """Run all calls in one program: a tool takes seconds to start, and less for a call."""
    tool = compute_sanitizer()
    reports: list[dict[str, Any]] = [{"ran": [], "found": [], "left_out": []} for _ in files]
    if tool is None:
        return [report | {"left_out": ["compute-sanitizer does not work here"]} for report in reports]
    with open("anew.log", "wb") as told:
        anew = subprocess.Popen([program, "--anew", files[0]], stdin=subprocess.DEVNULL, stdout=told, stderr=told)
    together = side_by_side([tool], [(name, files) for name in GPU_TOOLS], [program])
    unclear = [name for name, code, _ in together if code in (None, FOUND) and len(files) > 1]
    alone = side_by_side([tool], [(name, [file, file]) for name in unclear for file in files], [program])
    for name, code, log in together:
        results = [(c, text) for n, c, text in alone if n == name] or [(code, log)] * len(files)
        if code == FOUND and all(c != FOUND for c, _ in results):
            results[-1] = (code, log)
        for report, (code_, log_) in zip(reports, results, strict=True):
            if "SUMMARY" not in log_ and code_ != FOUND:  # the tool itself did not work
                report["left_out"].append(log_ if code_ is None else f"{name} does not work here")
                continue
            report["ran"].append(name)
            report["found"] += [[name, said_first(log_)]] * (code_ == FOUND)
    if _ended(anew, GPU_LIMIT_S) == ANEW_CODE:
        reports[0]["found"].append([ANEW, _log("anew.log").strip()[:160]])
    return reports


def _ended(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """Return how a process ends; None, and no process, where it takes longer."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def compute_sanitizer() -> str | None:
    """Return its path, where there is one."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    return tool if Path(tool).is_file() else None


def side_by_side(
    tool: Sequence[str],
    jobs: Sequence[tuple[str, Sequence[str]]],
    program: Sequence[str],
    *,
    limit_s: float | None = None,
    environment: dict[str, str] | None = None,
    apart: bool = False,
) -> list[tuple[str, int | None, str]]:
    """Name, exit code and log of each tool of compute-sanitizer; no code, and why, of one that took too long.

    `apart` runs each in a folder of its own.
    """
    started = []
    for job, (name, files) in enumerate(jobs):
        folder = Path(f"tool{job}" if apart else ".")
        folder.mkdir(exist_ok=True)
        command = [*tool, "--tool", name, "--error-exitcode", str(FOUND), *MORE.get(name, ()), *program, *files]
        with open(f"tool{job}.log", "wb") as log:
            started.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=environment,
                    cwd=folder,
                )
            )
    results: list[tuple[str, int | None, str]] = []
    limit_s = limit_s or GPU_LIMIT_S
    end = time.monotonic() + limit_s
    for job, ((name, _), process) in enumerate(zip(jobs, started, strict=True)):
        try:
            code = process.wait(max(0.0, end - time.monotonic()))
            results.append((name, code, _log(f"tool{job}.log")))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # what it looks at, too
            process.wait()
            text = _log(f"tool{job}.log")
            why = f"{name} was not done after {limit_s:.0f} s"
            results.append((name, FOUND, text) if _ERROR.search(text) else (name, None, why))  # many take long to tell
    return results


def as_site(said: str) -> str:
    """Return what `said_first` says as compilers tell a place: "kernel.cpp:3: heap-buffer-overflow in reach()"."""
    found = re.fullmatch(r"(.*), line (\d+)(?: of (\w+))?", said)
    if found is None:
        return f"kernel.cpp: {said}"
    inside = f" in {found[3]}()" if found[3] else ""
    return f"kernel.cpp:{found[2]}: {found[1]}{inside}"


def said_first(log: str) -> str:
    """Return what the tool says first, with the line of the candidate's source."""
    sentence = next((m.group(1).strip() for pattern in _FOUND if (m := pattern.search(log))), "it ended in a crash")
    sentence = re.sub(r" on address 0x.*| on unknown address 0x.*", "", sentence)
    caught = _CAUGHT.search(log)
    if caught is not None and _is_mere_fault(log):
        return f"a segmentation fault, line {caught[1]} of {caught[2]}"
    line, frame = _LINE.search(log), _FRAME.search(log)
    if line is None:  # the tool itself was ended by another thread's crash
        return f"{sentence}, line {caught[1]} of {caught[2]}" if caught is not None else sentence
    inside = f" of {frame[1]}" if frame is not None and frame[2] == line[1] else ""
    return f"{sentence}, line {line[1]}{inside}"
