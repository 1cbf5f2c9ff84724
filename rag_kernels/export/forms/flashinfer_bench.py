"""The format `flashinfer-bench`: a data set for FlashInfer-Bench.

Comes in: an attempt and a folder. Goes out: the folder as `TraceSet.from_path` reads it, of one Definition, Solution,
Workload and Trace. A CPU kernel builds itself in Python.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.build.candidate_form import kernels_text
from rag_kernels.eval.records import TensorArgument
from rag_kernels.export.card import Licence
from rag_kernels.export.forms.bench_sets import (
    Axes,
    contents_path,
    indices,
    output_names,
    records,
    solution_head,
    write_cards,
    write_json,
)
from rag_kernels.export.forms.module_file import compiled_of
from rag_kernels.export.forms.portable import headers
from rag_kernels.export.package import WITH_COMPOSED, Folder
from rag_kernels.export.plain.calls import forward_of
from rag_kernels.export.plain.texts import CPU_FLAGS, CUDA_FLAGS
from rag_kernels.export.runtime import CompiledForward

# Calls the exported forward with the constants after the inputs, at sizes that were verified (-1: any but none), on the
# device where all tensors are.
ENTRY = """
static const DLTensor* rk_tensor(const TVMFFIAny& a) {{
  return a.type_index == kTVMFFITensor ? TVMFFITensorGetDLTensorPtr(a.v_obj)
      : a.type_index == kTVMFFIDLTensorPtr ? static_cast<const DLTensor*>(a.v_ptr) : nullptr;
}}
struct RkDevice {{
  int before = 0;
  explicit RkDevice(int wanted) {{ cudaGetDevice(&before); if (wanted >= 0) cudaSetDevice(wanted); }}
  ~RkDevice() {{ cudaSetDevice(before); }}
}};
static bool rk_fits(const TVMFFIAny& a, std::initializer_list<int64_t> shape) {{
  const DLTensor* t = rk_tensor(a);
  if (!t || t->ndim != int(shape.size())) return false;
  const int64_t* has = t->shape;
  int64_t count = 1;
  for (int64_t size : shape) {{
    if (size >= 0 ? size != *has : *has < 1 || *has >= (int64_t(1) << 31)) return false;
    if (size < 0 && (count *= *has) >= (int64_t(1) << 31)) return false;
    ++has;
  }}
  return true;
}}
extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_run(void* self, const TVMFFIAny* a, int32_t n, TVMFFIAny* result) {{
  TVMFFIAny all[{most}] = {{}};
  if (n != {given}) return rk::raise("TypeError", "run takes {given} arguments");
  if (!({fits})) return rk::raise("ValueError", "the kernel was verified for other sizes");
  int where = -1;
  for (int32_t i = 0; i < n; ++i) {{
    const DLTensor* t = rk_tensor(a[i]);
    if (!t) continue;
    if (t->device.device_type != kDLCUDA || (where >= 0 && t->device.device_id != where))
      return rk::raise("ValueError", "all tensors must be on one GPU");
    where = t->device.device_id;
  }}
  const RkDevice guard(where);
  int32_t count = 0;
  for (int32_t i = 0; i < {inputs}; ++i) all[count++] = a[i];
{constants}
  for (int32_t i = {inputs}; i < n; ++i) all[count++] = a[i];
  return __tvm_ffi_forward(self, all, count, result);
}}
"""
PYTHON = '''\
"""{summary}"""

from pathlib import Path

import torch
import torch.nn.functional as F
import tvm_ffi.cpp

HERE = Path(__file__).parent
LIBRARY = tvm_ffi.cpp.build(
    name={name!r},
    {kind}_files=[str(HERE / "kernel{suffix}")],
    extra_cflags={cflags},
    extra_cuda_cflags={cuda_cflags},
    extra_ldflags={ldflags},
    extra_include_paths=[str(HERE)],
    build_directory=str(HERE / "build"),
)
kernels = tvm_ffi.load_module(LIBRARY)
{forward}

def require(value, shape):  # None: any size, but of no, or of 2**31, elements none was tried
    fits = value.dim() == len(shape) and all(size in (None, has) for size, has in zip(shape, value.shape))
    if not fits or (None in shape and not 0 < value.numel() < 2**31):
        raise ValueError(f"The kernel was verified for {{shape}}, and got {{tuple(value.shape)}}.")


def run({names}):
    {checks}
    {body}
'''


def write_flashinfer_bench(attempt: Attempt, out: Path, licence: Licence | None = None) -> Path:
    """Write the data set into a new folder and return it; raises ProblemError for a kernel that cannot be one."""
    definition, workload, trace = records(attempt, "flashinfer-bench", licence)
    solution = {**solution_head(attempt, definition), "spec": _fib_spec(attempt), "sources": _fib_sources(attempt)}
    name, kind = definition["name"], definition["op_type"]
    write_json(out / "definitions" / kind / f"{name}.json", definition)
    write_json(out / "solutions" / kind / name / f"{solution['name']}.json", solution)
    write_json(out / "workloads" / kind / f"{name}.jsonl", {"definition": name, "workload": workload})
    write_json(out / "traces" / kind / f"{name}.jsonl", trace)
    if contents := indices(attempt):
        from safetensors.numpy import save_file

        place = out / contents_path(definition)
        place.parent.mkdir(parents=True)
        save_file(contents, place)
    write_cards(attempt, "flashinfer-bench", out, licence)
    return out


def _native(attempt: Attempt) -> bool:
    """Return whether flashinfer-bench's own builder takes the source: on a CPU it has no OpenMP."""
    return attempt.candidate.tier == "kernel" and attempt.candidate.backend == "cuda"


def _fib_spec(attempt: Attempt) -> dict[str, Any]:
    native = _native(attempt)
    return {
        "language": "cuda" if native else "python",
        "target_hardware": [attempt.judged.device.name],
        "entry_point": "kernel.cu::run" if native else "main.py::run",
        "dependencies": ["apache-tvm-ffi"],
        "destination_passing_style": attempt.candidate.tier == "kernel",
        **({"binding": "tvm-ffi"} if native else {}),
    }


def _fib_sources(attempt: Attempt) -> list[dict[str, str]]:
    candidate, made = attempt.candidate, compiled_of(attempt)
    ours = [{"path": name, "content": text} for name, text in headers(candidate.source).items()]
    if _native(attempt):
        return [{"path": "kernel.cu", "content": f"{candidate.source}\n{_entry(attempt, made)}"}, *ours]
    composed = candidate.tier == "composed"
    names = [a.name for a in attempt.problem.arguments]
    suffix, kind = (".cpp", "cpp") if candidate.backend == "cpu" else (".cu", "cuda")
    results = [] if composed else output_names(attempt)
    if composed:
        constants = [f"{name}={value!r}" for name, value in made.constants.items()]
        first = next((a.name for a in attempt.problem.arguments if isinstance(a, TensorArgument)), "")
        device = f", torch.cuda.device_of({first})" if first and candidate.backend == "cuda" else ""
        body = f"with torch.no_grad(){device}:\n        return forward({', '.join([*names, *constants])})"
    else:
        body = f"kernels.forward({', '.join([*names, *map(repr, made.constants.values()), *results])})"
    text = PYTHON.format(
        summary=f"Kernel {candidate.id}, which rag-kernels verified, with the flags that it was judged with.",
        name=f"rk_{candidate.id}",
        kind=kind,
        suffix=suffix,
        cflags=list(CPU_FLAGS) if candidate.backend == "cpu" else [],
        cuda_cflags=list(CUDA_FLAGS),
        ldflags=["-fopenmp"] if candidate.backend == "cpu" else [],
        forward=f"\n\n{forward_of(candidate.source)}" if composed else "",
        names=", ".join([*names, *results]),
        checks="\n    ".join(f"require({name}, {shape!r})" for name, shape in _shapes(attempt, made)),
        body=body,
    )
    source = kernels_text(candidate.source) if composed else candidate.source
    return [{"path": "main.py", "content": text}, {"path": f"kernel{suffix}", "content": source}, *ours]


def _shapes(attempt: Attempt, made: CompiledForward) -> list[tuple[str, tuple[int | None, ...]]]:
    """Return the sizes of tensor arguments, None where they are free."""
    moves = Axes(made).moves
    found = []
    for known, argument in zip(attempt.problem.arguments, made.served.arguments, strict=True):
        if argument.role != "scalar":
            shape = argument.free if moves and argument.free else argument.shape
            found.append((known.name, tuple(size if isinstance(size, int) else None for size in shape)))
    return found


def _entry(attempt: Attempt, made: CompiledForward) -> str:
    """Return C++ that exports `run`, which knows the constants."""
    shapes = zip(made.served.tensors, _shapes(attempt, made), strict=True)
    checks = [
        f"rk_fits(a[{i}], {{{', '.join('-1' if s is None else str(s) for s in sizes)}}})" for i, (_, sizes) in shapes
    ]
    constants = list(made.constants.values())
    inputs = len(made.served.arguments)
    given = inputs + len(made.served.outputs)
    lines = []
    for value in constants:
        kind, field = ("kTVMFFIFloat", "v_float64") if isinstance(value, float) else ("kTVMFFIInt", "v_int64")
        number = re.sub(r"^-?(inf|nan)$", lambda found: {"inf": "HUGE_VAL", "nan": "NAN"}[found[1]], repr(value))
        number = number if isinstance(value, float) else str(int(value))
        number = f"-{number}" if value == float("-inf") else number
        lines.append(f"  all[count].type_index = {kind}, all[count++].{field} = {number};")
    return ENTRY.format(
        fits=" && ".join(checks) or "true",
        most=given + len(constants),
        given=given,
        inputs=inputs,
        constants="\n".join(lines),
    )


PACKAGE = Folder(
    write=write_flashinfer_bench,
    loaded_by="FlashInfer-Bench's `TraceSet.from_path`, and its `apply`",
    tiers=WITH_COMPOSED,
)
