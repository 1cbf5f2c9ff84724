"""The zoo in KernelBench's form: which texts have a meaning there, and the `ModelNew` file of each.

Comes in: nothing, and for CUDA sources a library and the functional form of the problem. Goes out: `Entry`s. CUDA
kernels of the kernel tier keep their source: `ModelNew` allocates the outputs and calls the library that nvcc made of
it. Modules stay what they are, but what they make or patch for a CPU they make or patch for CUDA. Kernels and composed
sources in C++ for a CPU are left out; so is what aims at names, files or channels of our judge, or at a CPU's state,
since elsewhere that does nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rag_kernels.eval.records import Candidate, FunctionalProblem
from rag_kernels.eval.zoo.cuda_tasks import CUDA_TASKS, cuda
from rag_kernels.eval.zoo.specimen import Text as Source
from rag_kernels.eval.zoo.tasks import TASKS
from rag_kernels.zoo.parts import honest_corpus
from rag_kernels.zoo.runner import Kind, Text, chosen, texts_of

OURS = {
    "'channel'": "our channel",
    "S_ISSOCK": "our channel",
    ".Loaded": "our worker",
    "'Loaded'": "our worker",
    "'eval": "our modules",
    "memfd:arena": "our shared memory",
    "/dev/shm": "our shared memory",
    "mmap.mmap": "our shared memory",
    "set_flush_denormal": "a CPU's state",
    "mkldnn.enabled": "a CPU's state",
}
ON_GPU = {
    "autocast('cpu'": "autocast('cuda'",
    "zeros_like(a), 'CPU')": "zeros_like(a), 'CUDA')",
    "torch.empty(x.shape)": "torch.empty(x.shape, device=x.device)",
    "torch.randn(256, 512)": "torch.randn(256, 512).to(x.device)",
    "torch.randn(x.shape)": "torch.randn(x.shape).to(x.device)",
    "torch.zeros(self.shape)": "torch.zeros(self.shape, device='cuda')",
    "torch.ones(self.shape, dtype=torch.bool)": "torch.ones(self.shape, dtype=torch.bool, device='cuda')",
}
MODEL_NEW = """\
import operator

import torch
import torch.nn as nn
import tvm_ffi

source = r'''
SOURCE'''
# `source`, as nvcc has compiled it
kernel = tvm_ffi.load_module(LIBRARY).get_function("forward")


class ModelNew(nn.Module):
INIT
    def forward(self, *inputs):
        outputs = [torch.empty(shape, dtype=dtype, device=inputs[0].device) for shape, dtype in OUTPUTS]
        kernel(*inputs, *(operator.attrgetter(path)(self) for path in HELD), *CONSTANTS, *outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One text of the zoo with its problem; `why_not` says what keeps it from KernelBench."""

    text: Text
    problem: str
    why_not: str = ""

    @property
    def key(self) -> tuple[str, Kind, str]:
        return self.text.candidate.backend, self.text.kind, self.text.name

    @property
    def is_module(self) -> bool:
        return self.text.candidate.tier == "module"


def entries() -> list[Entry]:
    """Every variant, twin and honest CUDA kernel; twins with the same source once."""
    cpu, cuda = texts_of(chosen("cpu"), (), "cpu"), texts_of(chosen("cuda"), honest_corpus("cuda"), "cuda")
    found: dict[object, Entry] = {}
    for source, group in (*cuda.items(), *cpu.items()):
        for text in group:
            own = (source, text.candidate) if text.kind == "twin" else text.name
            found.setdefault(own, Entry(text, source, why_not(text)))
    return list(found.values())


def why_not(text: Text) -> str:
    if text.candidate.backend == "cpu" and text.candidate.tier != "module":
        return "C++ for a CPU"
    if text.kind == "specimen" and text.candidate.tier == "module":
        return next((f"aims at {what}" for word, what in OURS.items() if word in text.candidate.source), "")
    return ""


def part_of(entries: Sequence[Entry], number: int, of: int) -> list[Entry]:
    """Those of one part; what KernelBench cannot be given is no part's."""
    return [e for e in entries if not e.why_not][number - 1 :: of]


def module_new(source: str) -> str:
    """A module's text for CUDA."""
    for old, new in ON_GPU.items():
        source = source.replace(old, new)
    return source


def modules_on_gpu(number: int, of: int) -> dict[str, list[Text]]:
    """One part of the modules as CUDA candidates for our own judge, by problem, each task's plain CUDA body first.

    They keep their names; a specimen whose twin is no module is compared with the plain body.
    """
    todo = [e for e in entries() if e.is_module and not e.why_not]
    names = {TASKS[task].problem: task for task in CUDA_TASKS}
    found: dict[str, list[Text]] = {}
    for entry in sorted(todo, key=lambda e: e.problem)[number - 1 :: of]:
        plain = Candidate(cuda(names[entry.problem]), "kernel", "cuda")
        group = found.setdefault(entry.problem, [Text("twin", f"{names[entry.problem]}, plain", "plain", plain)])
        group.append(_moved(entry.text, plain))
    return found


def _moved(text: Text, plain: Candidate) -> Text:
    assert text.specimen is not None
    twin = Source(module_new(text.specimen.twin.source), "module")
    if text.specimen.twin.tier != "module":
        twin = Source(plain.source)
    specimen = replace(text.specimen, backend="cuda", twin=twin)
    return replace(text, candidate=Candidate(module_new(text.candidate.source), "module", "cuda"), specimen=specimen)


def kernel_new(source: str, library: Path, fp: FunctionalProblem) -> str:
    """`ModelNew` around a CUDA source of the kernel tier; it has the module's own `__init__`, so the same weights."""
    shapes = [f"({spec.shape}, torch.{spec.dtype})" for spec in fp.outputs]
    text = MODEL_NEW.replace("LIBRARY", repr(str(library))).replace("OUTPUTS", f"[{', '.join(shapes)}]")
    text = text.replace("HELD", repr([a.path for a in fp.tensors if a.role != "input"]))
    text = text.replace("CONSTANTS", repr([value for _, value in fp.abi_constants]))
    return text.replace("INIT", _init(fp.problem.source)).replace("SOURCE", source)


def _init(source: str) -> str:
    """The lines of the module's `__init__`."""
    (model,) = (n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "Model")
    (init,) = (n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    return "\n".join(source.splitlines()[init.lineno - 1 : init.end_lineno]) + "\n"
