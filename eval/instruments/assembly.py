"""What a kernel was compiled to: its own functions in assembly, as the judge's compiler makes them.

Comes in: the text of a kernel and its backend. Goes out: text of objdump (CPU) or cuobjdump (CUDA). Functions of the
runtime and of headers are left out. Knows nothing of judging; the library comes out of the judge's cache.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from rag_kernels.eval.build.compile import BuildError, build, toolchain
from rag_kernels.eval.records import Backend, MachineError

NOT_ITS_OWN = re.compile(
    r"<(?:_init|_fini|_start|__do_global|deregister_tm|register_tm|frame_dummy|tvm::|std::|rk::|non-virtual thunk|"
    r"__tvm_ffi|\.plt|virtual )"
)
FUNCTION = re.compile(r"^[0-9a-f]+ <.*>:$")
LIMIT_S = 60


def assembly(source: str, backend: Backend, cache: Path) -> str:
    """Return the assembly of a kernel's own functions.

    Raises MachineError where it does not build, or the machine has no tool to show it.
    """
    [built] = build([(source, backend)], tools=toolchain(), cache=cache)
    if isinstance(built, BuildError):
        raise MachineError(f"There is no assembly of what does not build: {built.reason}")
    tool = shutil.which("objdump") if backend == "cpu" else cuobjdump()
    if tool is None:
        name, package = ("objdump", "binutils") if backend == "cpu" else ("cuobjdump", "the CUDA toolkit")
        raise MachineError(f"Assembly is shown by {name}, which is not on the PATH: install {package}.")
    options = ["-d", "-C", "--no-show-raw-insn", "-j", ".text"] if backend == "cpu" else ["-sass"]
    command = [tool, *options, str(built.library)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise MachineError(f"{Path(tool).name} cannot read the library: {done.stderr.strip()}")
    return done.stdout.strip() if backend == "cuda" else _own(done.stdout)


def cuobjdump() -> str | None:
    """Return the reader of CUDA's libraries: on the PATH, beside nvcc, or the one that comes with Triton."""
    nvcc, triton = toolchain().nvcc, find_spec("triton")
    folders = [Path(nvcc).resolve().parent] if nvcc else []
    folders += [Path(triton.origin).parent / "backends/nvidia/bin"] if triton and triton.origin else []
    return shutil.which("cuobjdump") or next(filter(None, (shutil.which("cuobjdump", path=p) for p in folders)), None)


def _own(text: str) -> str:
    """Return the functions that are the kernel's own; all of them where none can be told apart."""
    parts = re.split(r"\n\n", text.strip())
    functions = [part for part in parts if FUNCTION.match(part.splitlines()[0] if part else "")]
    own = [part for part in functions if not NOT_ITS_OWN.search(part.splitlines()[0])]
    return "\n\n".join(own or functions)


# --- the hot loop

_CPU_LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")
_GPU_LINE = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)\s*(.*?);")
_TARGET = re.compile(r"(?:0x)?([0-9a-f]+)")
_MOVES = re.compile(r"^v?(?:mov[aud]|broadcast|gather)|^(?:LDG|LDS|STG|STS|LDSM|UTMA)")
_SUMS = re.compile(
    r"^v?(?:f?n?m(?:add|sub)|add|sub|mul|div|sqrt|rcp|max|min|dp|pmadd|padd|pmul)|"
    r"^(?:FFMA|FADD|FMUL|HFMA|HMMA|HGMMA|IMMA|DFMA|MUFU)"
)
_LANES = (("zmm", 16), ("ymm", 8), ("xmm", 4))


def hot_loop(listing: str) -> str:
    """Return the innermost loop whose instructions do the most arithmetic, loads and stores; empty where there is none.

    A loop is what lies between a jump back and where it leads. Which one runs longest is not measured: in kernels it is
    nearly always the one with the most work an instruction, since compilers unroll and vectorize that one.
    """
    best: tuple[float, list[str]] = (0.0, [])
    for part in re.split(r"\n\n|\n\s*(?=Function : )", listing):
        rows = [
            (line, found) for line in part.splitlines() if (found := _CPU_LINE.match(line) or _GPU_LINE.match(line))
        ]
        places = {int(found[1], 16): number for number, (_, found) in enumerate(rows)}
        loops = [
            (places[target], number)
            for number, (_, found) in enumerate(rows)
            if (target := _jump(found[2], found[3])) in places and places[target] <= number
        ]
        inner = [one for one in loops if not any(other != one and _within(other, one) for other in loops)]
        for first, last in inner:
            body = rows[first : last + 1]
            work = sum(_work(found[2], found[3]) for _, found in body) / len(body)
            if work > best[0]:
                best = (work, [line for line, _ in body])
    return "\n".join(best[1])


def _work(operation: str, rest: str) -> int:
    """Return what an instruction does: two for arithmetic, one for a load or store, for each number that it takes."""
    kind = 2 if _SUMS.match(operation) else 1 if _MOVES.match(operation) else 0
    packed = operation.endswith(("ps", "pd")) or "mov" not in operation
    return kind * (
        next((lanes for name, lanes in _LANES if name in rest), 1) if packed and "ss" not in operation else 1
    )


def _jump(operation: str, rest: str) -> int:
    """Return where a jump leads; -1 for anything else."""
    is_jump = operation.startswith("j") or operation.startswith("BRA")
    found = _TARGET.search(rest) if is_jump else None
    return int(found[1], 16) if found else -1


def _within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
