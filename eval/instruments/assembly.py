"""What a kernel was compiled to: its own functions in assembly, as the judge's compiler makes them.

Comes in: the text of a kernel and its backend. Goes out: text of objdump (CPU) or cuobjdump (CUDA). Functions of the
runtime and of headers are left out. Knows nothing of judging; the library comes out of the judge's cache.
"""

from __future__ import annotations

import re
import shutil
import subprocess
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
    tool = "objdump" if backend == "cpu" else "cuobjdump"
    if shutil.which(tool) is None:
        package = "binutils" if backend == "cpu" else "the CUDA toolkit"
        raise MachineError(f"Assembly is shown by {tool}, which is not on the PATH: install {package}.")
    options = ["-d", "-C", "--no-show-raw-insn", "-j", ".text"] if backend == "cpu" else ["-sass"]
    command = [tool, *options, str(built.library)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise MachineError(f"{tool} cannot read the library: {done.stderr.strip()}")
    return done.stdout.strip() if backend == "cuda" else _own(done.stdout)


def _own(text: str) -> str:
    """Return the functions that are the kernel's own; all of them where none can be told apart."""
    parts = re.split(r"\n\n", text.strip())
    functions = [part for part in parts if FUNCTION.match(part.splitlines()[0] if part else "")]
    own = [part for part in functions if not NOT_ITS_OWN.search(part.splitlines()[0])]
    return "\n\n".join(own or functions)
