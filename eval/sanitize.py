"""A kernel under sanitizers: address and undefined-behaviour on a CPU, compute-sanitizer on a GPU.

Comes in: a program built around a kernel-tier source (`rag_driver.h`) and content of small or odd sizes. Goes out:
the first thing a tool found, as a sentence, or "". The program runs in a candidate's worker, never here.
"""

from __future__ import annotations

import base64
import re
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.arena import tensor_bytes
from eval.records import FunctionalProblem, MachineError, ScalarArgument, TensorSpec
from eval.session import Session
from eval.workers import WorkerFailed, Workers

RUN_LIMIT_S = 120.0
GPU_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
CPU_TOOLS = ("address", "undefined-behaviour")
REFUSED, FOUND = 3, 9  # exit codes: of the driver when the kernel refuses the call, of compute-sanitizer
SOFT_TOOLS = frozenset({"initcheck"})  # padding that is read and thrown away is no error
# kDLInt, kDLUInt, kDLFloat, kDLBfloat, kDLComplex, kDLBool of DLPack
DTYPE_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5}
_FOUND = (
    re.compile(r"ERROR: AddressSanitizer: ([^\n]{0,160})"),
    re.compile(r"runtime error: ([^\n]{0,160})"),
    re.compile(r"========= (?!COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY)([^\n]{10,160})"),
)
_LINE = re.compile(r"kernel\d+\.(?:cpp|cu):(\d+)")


def call_file(session: Session) -> bytes:
    """The arguments of one call on the session's first draw, as `rag_driver.h` reads them."""
    position = {a.name: i for i, a in enumerate(session.fp.tensors)}
    parts = []
    for argument in session.fp.arguments:
        if isinstance(argument, ScalarArgument):
            parts.append(_number(argument.value))
        else:
            content = session.draws[0].bytes(position[argument.name]).tobytes()
            parts.append(_tensor(argument.spec, 3) + content)
    parts += [_number(value) for _, value in session.fp.abi_constants]
    parts += [_tensor(spec, 4) for spec in session.fp.outputs]
    return b"".join(parts)


def _number(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<qq", 2, value)
    return struct.pack("<qd", 1, value) if isinstance(value, float) else struct.pack("<qq", 0, int(value))


def _tensor(spec: TensorSpec, tag: int) -> bytes:
    kind = spec.dtype.rstrip("0123456789")
    code, bits = (6, 8) if kind == "bool" else (DTYPE_CODES[kind], int(spec.dtype.removeprefix(kind)))
    rank = len(spec.shape)
    return struct.pack(f"<{5 + rank}q", tag, code, bits, rank, *spec.shape, tensor_bytes(spec))


def takes(fp: FunctionalProblem) -> bool:
    """Whether every argument has a form that the driver knows."""
    return all(not isinstance(a, ScalarArgument) or isinstance(a.value, bool | int | float) for a in fp.arguments)


@dataclass(frozen=True, slots=True)
class Report:
    """`ran`: the tools that ran to their end; `found`: (tool, what it found)."""

    ran: tuple[str, ...]
    found: tuple[tuple[str, str], ...]


def sanitize(session: Session, program: Path, workers: Workers) -> Report:
    """Run every tool once, in a child of `workers`. Content is that of the session, which is small."""
    payload = {"program": str(program), "call": base64.b64encode(call_file(session)).decode(), "gpu": session.on_gpu}
    try:
        reply = workers.call("eval.sanitize:run", payload, deadline_s=RUN_LIMIT_S)
    except WorkerFailed as failure:
        if failure.kind == "raised":
            raise MachineError(f"The sanitizers cannot run here: {failure.message}.") from failure
        return Report(("address",), (("address", f"the checked program did not end ({failure.message})"),))
    return Report(tuple(reply["ran"]), tuple((tool, what) for tool, what in reply["found"]))


def run(payload: dict[str, Any]) -> dict[str, Any]:
    """In a candidate's worker: start the program under each tool."""
    file = Path("call.bin")
    file.write_bytes(base64.b64decode(payload["call"]))
    environment = {
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:allocator_may_return_null=1", "PATH": "/usr/bin:/bin",
        "UBSAN_OPTIONS": "print_stacktrace=0", "OMP_NUM_THREADS": "4",
    }  # fmt: skip
    command = [payload["program"], str(file)]
    if not payload["gpu"]:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
        bad = done.returncode not in (0, REFUSED)
        return {"ran": CPU_TOOLS, "found": [[" and ".join(CPU_TOOLS), _first(done.stderr)]] if bad else []}
    ran, found = [], []
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    for name in GPU_TOOLS if Path(tool).is_file() else ():
        checked = [tool, "--tool", name, "--error-exitcode", str(FOUND), *command]
        done = subprocess.run(checked, capture_output=True, text=True, errors="replace", check=False)
        log = done.stdout + done.stderr
        if "SUMMARY" in log:  # else the tool itself did not work
            ran.append(name)
        if done.returncode == FOUND and "SUMMARY" in log:
            found.append([name, _first(log)])
    return {"ran": ran, "found": found}


def _first(log: str) -> str:
    """What the tool says first, with the line of the candidate's source."""
    sentence = next((m.group(1).strip() for pattern in _FOUND if (m := pattern.search(log))), "it ended in a crash")
    sentence = re.sub(r" on address 0x.*| on unknown address 0x.*", "", sentence)
    line = _LINE.search(log)
    return f"{sentence}, line {line.group(1)}" if line else sentence

