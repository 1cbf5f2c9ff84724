"""What data sets of benchmarks share: one Definition, Solution, Workload and Trace, as FlashInfer-Bench names them.

Comes in: an attempt. Goes out: their records. Inputs, parameters and buffers are the Definition's inputs; constants are
part of the Solution.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.errors import ProblemError
from rag_kernels.eval.records import Passed, TensorArgument
from rag_kernels.eval.told import told_ratio
from rag_kernels.export.card import Licence, card, card_json, card_text
from rag_kernels.export.forms.module_file import compiled_of
from rag_kernels.export.forms.torch_op_package import name_of
from rag_kernels.export.plain.calls import free
from rag_kernels.export.runtime import CompiledForward

DTYPES = frozenset("float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 bool".split())
SCALARS = {int: "int64", float: "float32", bool: "bool"}


def records(
    attempt: Attempt, form: str, licence: Licence | None
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return Definition, Workload and Trace."""
    made = compiled_of(attempt)
    axes = Axes(made)
    known = indices(attempt) if form == "flashinfer-bench" else {}
    definition = _definition(attempt, made, axes, known)
    inputs: dict[str, dict[str, Any]] = {}
    for argument in attempt.problem.arguments:
        if argument.name in known:
            inputs[argument.name] = {
                "type": "safetensors",
                "path": contents_path(definition),
                "tensor_key": argument.name,
            }
        elif isinstance(argument, TensorArgument):
            inputs[argument.name] = {"type": "random"}
        else:
            inputs[argument.name] = {"type": "scalar", "value": argument.value}
    workload = {
        "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, attempt.problem.problem.id)),
        "axes": axes.free,
        "inputs": inputs,
    }
    trace = {
        "definition": definition["name"],
        "solution": _solution_name(attempt),
        "workload": workload,
        "evaluation": _evaluation(attempt, form, licence),
    }
    return definition, workload, trace


def indices(attempt: Attempt) -> dict[str, np.ndarray[Any, Any]]:
    """Return content of each integer input that something reads as indices: any within its bounds will do."""
    problem, draw = attempt.problem, np.random.default_rng(0)
    bounds = {bound.path: bound for bound in problem.bounds if bound.path not in problem.as_drawn}
    found: dict[str, np.ndarray[Any, Any]] = {}
    for argument in problem.tensors:
        if argument.role == "input" and argument.spec.dtype.startswith("int") and argument.path in bounds:
            bound = bounds[argument.path]
            drawn = draw.integers(max(0, bound.low), bound.high, argument.spec.shape)
            found[argument.name] = drawn.astype(argument.spec.dtype)
    return found


def contents_path(definition: dict[str, Any]) -> str:
    """Return where the contents of a data set's inputs are, from its folder."""
    return f"blob/workloads/{definition['op_type']}/{definition['name']}/{definition['name']}.safetensors"


class Axes:
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


def _definition(attempt: Attempt, made: CompiledForward, axes: Axes, contents: Container[str] = ()) -> dict[str, Any]:
    inputs: dict[str, Any] = {}
    for known, argument in zip(attempt.problem.arguments, made.served.arguments, strict=True):
        if isinstance(known, TensorArgument):
            inputs[known.name] = {"shape": axes.shape(argument.shape, argument.free), "dtype": _dtype(argument.dtype)}
            if known.role == "input" and argument.dtype.startswith("int") and known.name not in contents:
                raise ProblemError(
                    f"{known.name} holds whole numbers, of which such a data set must know the range or the content: "
                    "export it as module or torch-op."
                )
        elif type(known.value) in SCALARS:
            inputs[known.name] = {"shape": None, "dtype": SCALARS[type(known.value)]}
        else:
            raise ProblemError(f"{known.name} is {known.value!r}, which such a data set has no type for.")
    names = output_names(attempt)
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


def output_names(attempt: Attempt) -> list[str]:
    taken = {argument.name for argument in attempt.problem.arguments}
    count = len(attempt.problem.outputs)
    stems = ["output"] if count == 1 else [f"output_{i}" for i in range(count)]
    return [f"{stem}_" if stem in taken else stem for stem in stems]


def _solution_name(attempt: Attempt) -> str:
    return f"{name_of(attempt)}_{attempt.candidate.id}"


def solution_head(attempt: Attempt, definition: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": _solution_name(attempt),
        "definition": definition["name"],
        "author": f"rag-kernels, {attempt.model or attempt.writer}",
        "description": attempt.idea or "A kernel that rag-kernels verified.",
    }


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


def write_cards(attempt: Attempt, form: str, out: Path, licence: Licence | None) -> None:
    row = card(attempt, form, licence)
    (out / "card.json").write_text(card_json(row))
    (out / "CARD.md").write_text(card_text(row))


def write_json(file: Path, row: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(row, indent=None if file.suffix == ".jsonl" else 2) + "\n")
