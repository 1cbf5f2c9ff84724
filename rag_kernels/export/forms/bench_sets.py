"""The formats `flashinfer-bench` and `sol-execbench`: a data set of one Definition, Solution, Workload and Trace.

Comes in: an attempt and a folder. Goes out: the folder as `TraceSet.from_path` reads it, or as SOL-ExecBench's command
takes a problem. Inputs, parameters and buffers are the Definition's inputs; constants are part of the Solution.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.build.candidate_form import kernels_text
from rag_kernels.eval.errors import ProblemError
from rag_kernels.eval.records import Passed, TensorArgument
from rag_kernels.eval.told import told_ratio
from rag_kernels.export.card import Licence, card, card_json, card_text
from rag_kernels.export.forms.module_file import compiled_of
from rag_kernels.export.forms.portable import headers
from rag_kernels.export.forms.torch_op_package import name_of
from rag_kernels.export.plain.calls import forward_of, free, require_plain
from rag_kernels.export.plain.texts import CPU_FLAGS, CUDA_FLAGS, binding_text, exported, kernel_text
from rag_kernels.export.runtime import CompiledForward

DTYPES = frozenset("float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 bool".split())
SCALARS = {int: "int64", float: "float32", bool: "bool"}
# Calls the exported forward with the constants after the inputs, at sizes that were verified (-1: any), on the device
# where all tensors are.
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
  for (int64_t size : shape) {{
    if (size >= 0 && size != *has) return false;
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

def require(value, shape):  # None: any size
    if value.dim() != len(shape) or any(size not in (None, has) for size, has in zip(shape, value.shape)):
        raise ValueError(f"The kernel was verified for {{shape}}, and got {{tuple(value.shape)}}.")


def run({names}):
    {checks}
    {body}
'''


def write_flashinfer_bench(attempt: Attempt, out: Path, licence: Licence | None = None) -> Path:
    """Write the data set into a new folder and return it; raises ProblemError for a kernel that cannot be one."""
    definition, workload, trace = _records(attempt, "flashinfer-bench", licence)
    solution = {**_solution(attempt, definition), "spec": _fib_spec(attempt), "sources": _fib_sources(attempt)}
    name, kind = definition["name"], definition["op_type"]
    _write(out / "definitions" / kind / f"{name}.json", definition)
    _write(out / "solutions" / kind / name / f"{solution['name']}.json", solution)
    _write(out / "workloads" / kind / f"{name}.jsonl", {"definition": name, "workload": workload})
    _write(out / "traces" / kind / f"{name}.jsonl", trace)
    _cards(attempt, "flashinfer-bench", out, licence)
    return out


def write_sol_execbench(attempt: Attempt, out: Path, licence: Licence | None = None) -> Path:
    """Write the problem's folder, with the solution beside it; raises ProblemError for a kernel that cannot be one."""
    if attempt.candidate.backend != "cuda":
        raise ProblemError("SOL-ExecBench judges kernels for NVIDIA's GPUs, and this one is for the CPU.")
    if attempt.candidate.tier != "kernel":
        raise ProblemError(
            "SOL-ExecBench takes C++ or Python alone, and a composed kernel is both: export it as module."
        )
    definition, workload, trace = _records(attempt, "sol-execbench", licence)
    definition.pop("tags"), definition.pop("constraints")
    solution = {**_solution(attempt, definition), "spec": SOL_SPEC, "sources": _sol_sources(attempt)}
    _write(out / "definition.json", definition)
    _write(out / "workload.jsonl", workload)
    _write(out / "solution.json", solution)
    _write(out / "trace.jsonl", trace)
    (out / "reference.py").write_text(definition["reference"])
    _cards(attempt, "sol-execbench", out, licence)
    return out


SOL_SPEC = {
    "languages": ["cuda_cpp"],
    "target_hardware": ["LOCAL"],
    "entry_point": "main.cpp::run",
    "dependencies": [],
    "destination_passing_style": True,
    "binding": "torch",
    "compile_options": {"cflags": ["-O2"], "cuda_cflags": list(CUDA_FLAGS), "ld_flags": []},  # no fast math: as judged
}


def _records(
    attempt: Attempt, form: str, licence: Licence | None
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return Definition, Workload and Trace."""
    require_plain(attempt, form)
    made = compiled_of(attempt)
    axes = _Axes(made)
    definition = _definition(attempt, made, axes)
    workload = {
        "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, attempt.problem.problem.id)),
        "axes": axes.free,
        "inputs": {a.name: {"type": "random"} if isinstance(a, TensorArgument) else {"type": "scalar", "value": a.value}
                   for a in attempt.problem.arguments},
    }  # fmt: skip
    trace = {
        "definition": definition["name"],
        "solution": _solution_name(attempt),
        "workload": workload,
        "evaluation": _evaluation(attempt, form, licence),
    }
    return definition, workload, trace


class _Axes:
    """Axes of the tensors: those that are free by name, the others by their size."""

    def __init__(self, made: CompiledForward) -> None:
        served = made.served
        inputs = [served.arguments[i].free for i in served.tensors]
        named = {size for shape in inputs for size in shape if isinstance(size, str)}
        results = {size for o in served.outputs for size in o.free if isinstance(size, str)}
        # an axis of an output must be one of an input: "2*N" that no input has cannot be told
        self.moves = free(made) and results <= named
        self.sizes = served.verified_sizes() if self.moves else {}
        self.axes: dict[str, dict[str, Any]] = {}
        self.free: dict[str, int] = {}
        self.constraints: list[str] = []

    def shape(self, shape: Sequence[int], by_name: Sequence[int | str]) -> list[str]:
        """Return the names of a tensor's axes."""
        wanted = by_name if self.moves and by_name else shape
        return [self._axis(size, has) for size, has in zip(wanted, shape, strict=True)]

    def _axis(self, size: int | str, has: int) -> str:
        if isinstance(size, int):
            name = f"size_{size}"
            self.axes.setdefault(name, {"type": "const", "value": size})
            return name
        factor, _, base = size.rpartition("*")
        name = f"{base}_times_{factor}" if factor else base
        if name not in self.axes:
            self.axes[name] = {"type": "var"}
            self.free[name] = has
            self.constraints += [f"{name} == {factor} * {base}"] if factor else []
        return name


def _definition(attempt: Attempt, made: CompiledForward, axes: _Axes) -> dict[str, Any]:
    inputs: dict[str, Any] = {}
    for known, argument in zip(attempt.problem.arguments, made.served.arguments, strict=True):
        if isinstance(known, TensorArgument):
            inputs[known.name] = {"shape": axes.shape(argument.shape, argument.free), "dtype": _dtype(argument.dtype)}
            if known.role == "input" and argument.dtype.startswith("int"):
                raise ProblemError(
                    f"{known.name} holds whole numbers, of which such a data set must know the range or the content: "
                    "export it as module or torch-op."
                )
        elif type(known.value) in SCALARS:
            inputs[known.name] = {"shape": None, "dtype": SCALARS[type(known.value)]}
        else:
            raise ProblemError(f"{known.name} is {known.value!r}, which such a data set has no type for.")
    names = _output_names(attempt)
    outputs = {
        name: {"shape": axes.shape(output.shape, output.free), "dtype": _dtype(output.dtype)}
        for name, output in zip(names, made.served.outputs, strict=True)
    }
    name = name_of(attempt)
    if clash := inputs.keys() & axes.axes.keys():
        raise ProblemError(f"An input and an axis are both named {clash.pop()}: rename the problem's input.")
    given = ", ".join(inputs)
    return {
        "name": name,
        "op_type": "_".join(dict.fromkeys(op.removeprefix("aten.") for op in attempt.problem.features.operators))
        or name,
        "description": attempt.problem.problem.name,
        "tags": ["source:rag-kernels"],
        "axes": axes.axes,
        "inputs": inputs,
        "outputs": outputs,
        "constraints": axes.constraints,
        "reference": f"{attempt.problem.source.rstrip()}\n\n\ndef run({given}):\n    return module_fn({given})\n",
    }


def _dtype(name: str) -> str:
    if name not in DTYPES:
        raise ProblemError(f"Such a data set has no type {name}: export the kernel as module or torch-op.")
    return name


def _output_names(attempt: Attempt) -> list[str]:
    taken = {argument.name for argument in attempt.problem.arguments}
    count = len(attempt.problem.outputs)
    stems = ["output"] if count == 1 else [f"output_{i}" for i in range(count)]
    return [f"{stem}_" if stem in taken else stem for stem in stems]


def _solution_name(attempt: Attempt) -> str:
    return f"{name_of(attempt)}_{attempt.candidate.id}"


def _solution(attempt: Attempt, definition: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": _solution_name(attempt),
        "definition": definition["name"],
        "author": f"rag-kernels, {attempt.model or attempt.writer}",
        "description": attempt.idea or "A kernel that rag-kernels verified.",
    }


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
    results = [] if composed else _output_names(attempt)
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
    moves = _Axes(made).moves
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


def _sol_sources(attempt: Attempt) -> list[dict[str, str]]:
    candidate, made = attempt.candidate, compiled_of(attempt)
    inputs, constants = len(made.served.arguments), list(made.constants.values())
    binding = binding_text(exported(candidate), constants, inputs).replace('{"forward",', '{"run",')
    return [
        {"path": "main.cpp", "content": binding},
        {"path": "kernel.cu", "content": kernel_text(candidate)},
    ]


def _evaluation(attempt: Attempt, form: str, licence: Licence | None) -> dict[str, Any]:
    judged, verdict = attempt.judged, attempt.judged.verdict
    assert isinstance(verdict, Passed)
    times = verdict.measurement
    extra = card(attempt, form, licence)
    extra.pop("evidence")
    extra["errors"] = "not measured as largest differences: the judge compares by error_ratio, against fp64"
    return {
        "status": "PASSED",
        "environment": {"hardware": judged.device.name, "libs": {"torch": judged.environment.torch}},
        "timestamp": attempt.created_at,
        "log": f"Judged by rag-kernels, {judged.environment.judge_version}.",
        "correctness": {"extra": extra},
        "performance": {
            "latency_ms": times.candidate_us / 1000,
            "reference_latency_ms": times.eager_us / 1000,
            "speedup_factor": told_ratio(times, times.speedup_eager),
        },
    }


def _cards(attempt: Attempt, form: str, out: Path, licence: Licence | None) -> None:
    row = card(attempt, form, licence)
    (out / "card.json").write_text(card_json(row))
    (out / "CARD.md").write_text(card_text(row))


def _write(file: Path, row: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(row, indent=None if file.suffix == ".jsonl" else 2) + "\n")
