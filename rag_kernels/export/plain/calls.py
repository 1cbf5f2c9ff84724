"""The Python of a file that builds its kernel with torch's own loader, and calls it: text for GPU MODE and KernelBench.

Comes in: an attempt. Goes out: text that binds `rk_kernel`, a `Call`. Knows nothing of the places it is written for.
"""

from __future__ import annotations

import pprint
import re
import textwrap
from pathlib import Path
from typing import Any

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.build.candidate_form import kernels_text
from rag_kernels.export.forms.module_file import compiled_of, literal
from rag_kernels.export.plain.texts import CPU_FLAGS, CUDA_FLAGS, binding_text, exported, kernel_text
from rag_kernels.export.runtime import CompiledForward
from rag_kernels.export.serving.torch_operator import independent

TEXT = """\
RK_KERNEL = {kernel}

RK_BINDING = {binding}


def rk_build():  # a scope of its own: names of the file around it stay as they are
{body}


rk_kernel, RkNotVerified = rk_build()
"""
BODY = """\
{carried}


from torch.utils.cpp_extension import load_inline

{built}
{forward}
return Call(
    {function},
    {arguments},
    {outputs},
    {constants},
    {device!r},
    {any_alignment},
), NotVerified
"""
CPU = """\
kernels = load_inline(
    {name!r},
    cpp_sources=[RK_BINDING, RK_KERNEL],
    extra_cflags={flags},
    extra_ldflags=["-fopenmp"],
    no_implicit_headers=True,
    verbose=True,
)
"""
CUDA = """\
arch = "".join(map(str, torch.cuda.get_device_capability())) if torch.cuda.is_available() else "90"
arch = "90a" if arch == "90" else arch  # with Hopper's own instructions
kernels = load_inline(
    {name!r},
    cpp_sources=[RK_BINDING],
    cuda_sources=[RK_KERNEL],
    extra_cflags=["-O2", "-std=c++17"],
    extra_cuda_cflags=[*{flags}, f"-gencode=arch=compute_{{arch}},code=sm_{{arch}}"],
    no_implicit_headers=True,
    with_cuda=True,
    verbose=True,
)
"""


def call_text(attempt: Attempt, *, default_queue: bool = False) -> str:
    """Return the text that builds a kernel and binds `rk_kernel`."""
    made, candidate = compiled_of(attempt), attempt.candidate
    composed = candidate.tier == "composed"
    name = f"rk_{candidate.id.removeprefix('k_')}{'_q' if default_queue else ''}"
    built, flags = (CPU, CPU_FLAGS) if candidate.backend == "cpu" else (CUDA, CUDA_FLAGS)
    forward = f"F = torch.nn.functional\n\n{forward_of(candidate.source)}" if composed else ""
    body = BODY.format(
        carried=text_of(Path(__file__).parent / "carried.py"),
        built=built.format(name=name, flags=list(flags)),
        forward=forward,
        function="forward" if composed else "kernels.forward",
        arguments=_pretty(arguments_of(attempt, made)),
        outputs="None" if composed else _pretty(outputs_of(made)),
        constants=_pretty(dict(made.constants) if composed else tuple(made.constants.values())),
        device=made.backend,
        any_alignment=made.any_alignment,
    )
    return TEXT.format(
        kernel=literal(kernel_text(candidate, default_queue=default_queue)),
        binding=literal(binding_text(exported(candidate), default_queue=default_queue)),
        body=textwrap.indent(body.rstrip(), "    "),
    )


def text_of(file: Path) -> str:
    """Return a module's text without its docstring and what stands only at the top of a file."""
    text = file.read_text().replace("from __future__ import annotations\n\n", "")
    return text[text.index('"""\n\nimport') + 5 :].strip()


def free(made: CompiledForward) -> bool:
    """Return whether its free sizes can be served without the module, which alone knows how several hang together."""
    served = made.served
    return bool(served.free) and (not served.related or independent(served, made.functional))


def arguments_of(attempt: Attempt, made: CompiledForward) -> list[tuple[str, Any, Any]]:
    """Return arguments as `carried` takes them; a dtype is `Code`."""
    moving = free(made)
    found: list[tuple[str, Any, Any]] = []
    for known, argument in zip(attempt.problem.arguments, made.served.arguments, strict=True):
        if argument.role == "scalar":
            found.append((known.name, None, argument.shape))
        else:
            shape = argument.free if moving and argument.free else tuple(argument.shape)
            found.append((known.name, Code(f"torch.{argument.dtype}"), shape))
    return found


def outputs_of(made: CompiledForward) -> list[tuple[Any, Any]]:
    """Return outputs as `carried` takes them."""
    moving = free(made)
    return [(Code(f"torch.{o.dtype}"), o.free if moving and o.free else o.shape) for o in made.served.outputs]


class Code:
    """Text that is printed as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _pretty(value: Any) -> str:
    text = pprint.pformat(value, width=100, sort_dicts=False)
    return re.sub(r"\b(nan|inf)\b", r'float("\1")', text)


def forward_of(source: str) -> str:
    """Return the Python of a composed source without its kernels."""
    text = source.replace(kernels_text(source), "")
    return re.sub(r"^KERNELS\s*=\s*[rR]?('''|\"\"\"|'|\")\s*\1[^\n]*\n", "", text, flags=re.MULTILINE).strip() + "\n"
