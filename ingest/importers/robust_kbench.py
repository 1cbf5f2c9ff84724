"""robust-kbench: a folder for each task, with `func_forward.py`, `config_forward.json` and perhaps `forward.cu`, and
the same three for `backward`.

Comes in: a checkout, its `tasks/`, or one task. Goes out: the problem of each direction and single configuration, and
an `Imported` for each kernel: the task's own `.cu`, and those of `highlighted/` with what `results.csv` says of them.
A task is brought into KernelBench's form by lines at the end of its source. A backward problem is the gradient of
every input and parameter for a given gradient of the output.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rag_kernels.archive.records import Claim, Imported
from rag_kernels.eval.records import Candidate, Problem
from rag_kernels.ingest.functional.gradients import backward_problem
from rag_kernels.ingest.importers.protocol import (
    ImportRefused,
    Read,
    Skipped,
    known_problem,
    library_calls,
    microseconds,
    number,
    read_text,
    stated,
    too_good,
    without_paths,
)
from rag_kernels.ingest.importers.task_filters import task_warning

LICENCE = "Apache-2.0"
ATTRIBUTION = "Sakana AI, robust-kbench; tasks under kernelbench/ are from KernelBench (MIT)"
DIRECTIONS = ("forward", "backward")
GROUPS = ("single_init_configs", "single_input_configs", "single_shared_configs")

FORWARD = """

# Added by rag-kernels: KernelBench's form, at one of the task's configurations.
import inspect

{sizes}

_task_inputs = get_inputs


def get_inputs():
    return list(_task_inputs({inputs}))


def get_init_inputs():
    taken = inspect.signature(Model)
    given = dict({init})
    bound = taken.bind(**{{name: given[name] for name in given if name in taken.parameters}})
    bound.apply_defaults()
    return list(bound.args)
"""


@dataclass(frozen=True, slots=True)
class _Task:
    """One direction of a task, with a problem for each of its single configurations."""

    folder: Path
    direction: str
    problems: tuple[Problem, ...]
    functional_source: str
    claim: Claim  # what is said of the task itself; the start of every claim on its kernels


class RobustKbench:
    def read(self, path: Path) -> Iterator[Read]:
        folders = sorted({file.parent for name in DIRECTIONS for file in path.rglob(f"func_{name}.py")})
        if not folders:
            raise ImportRefused(f"{path} holds no task of robust-kbench: name a folder with func_forward.py in it.")
        tasks: dict[tuple[str, str], _Task] = {}
        for folder in folders:
            for direction in DIRECTIONS:
                if not (folder / f"func_{direction}.py").is_file():
                    continue
                try:
                    task = _task(path, folder, direction)
                    tasks[folder.name, direction] = task
                    yield from _task_kernels(task)
                except ValueError as error:
                    yield Skipped(f"{folder.name}/func_{direction}.py", str(error))
        yield from _highlighted(path / "highlighted", tasks)


def _task(root: Path, folder: Path, direction: str) -> _Task:
    source = read_text(folder / f"func_{direction}.py")
    configurations = _configurations(folder / f"config_{direction}.json")
    problems: list[Problem] = []
    for place, (init, inputs) in enumerate(configurations, 1):
        suffix = f"_{place}" if len(configurations) > 1 else ""
        name = f"{folder.name}_{direction}{suffix}"
        problem = known_problem(name, source + _in_kernelbench_form(init, inputs))
        if isinstance(problem, str):
            raise ValueError(problem)
        problems.append(replace(backward_problem(problem), name=name) if direction == "backward" else problem)
    origin = f"{folder.relative_to(root).as_posix() if folder != root else folder.name}, {direction}"
    eager, device = _baseline(folder / "eval_results" / direction / "torch_native_results.json")
    compiled, _ = _baseline(folder / "eval_results" / direction / "torch_compile_results.json")
    claim = Claim(
        importer="robust-kbench",
        origin=origin,
        licence=LICENCE,
        attribution=ATTRIBUTION,
        device_name=device,
        eager_us=eager,
        compile_us=compiled,
        warning=task_warning(folder),
    )
    functional = source.replace("forward_fn", "module_fn") if direction == "forward" else ""
    return _Task(folder, direction, tuple(problems), functional, claim)


def _in_kernelbench_form(init: dict[str, Any], inputs: dict[str, Any]) -> str:
    """Return the lines that make a task a problem; what the module and its inputs share is one size."""
    both = {f"config_{name}": value for name, value in init.items()}
    named = {name: f"config_{name}" for name in init}
    given = {
        name: f"config_{name}" if init.get(name, value) == value else f"config_{name}_given"
        for name, value in inputs.items()
    }
    both |= {given[name]: value for name, value in inputs.items()}
    return FORWARD.format(
        sizes="\n".join(f"{name} = {value!r}" for name, value in both.items()),
        inputs=", ".join(f"{name}={size}" for name, size in given.items()),
        init=", ".join(f"{name}={size}" for name, size in named.items()),
    )


def _configurations(file: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return arguments of the module and of its inputs; what both share comes last, as the benchmark has it."""
    try:
        lists = json.loads(read_text(file))
        groups = [lists[name] for name in GROUPS]
        return [({**init, **both}, {**inputs, **both}) for init, inputs, both in itertools.product(*groups)]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file.name} cannot be used: {error!r}") from error


def _baseline(file: Path) -> tuple[float | None, str]:
    """Return PyTorch's time and the device, where the benchmark has measured them."""
    try:
        found = json.loads(file.read_text())
        devices = found["device_info"]["devices"].values()
        return microseconds(found["summary"]["avg_mean_time"]), next(str(device["name"]) for device in devices)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return None, ""


def _task_kernels(task: _Task) -> Iterator[Read]:
    """Yield the task's problems, and its own kernel if it has one."""
    file = task.folder / f"{task.direction}.cu"
    if not file.is_file():
        for problem in task.problems:
            yield Imported(stated(problem, task.functional_source), None, task.claim)
        return
    claim = replace(task.claim, origin=f"{task.claim.origin}, {file.name}", correct=True)
    yield from _kernel(task, read_text(file), claim, "")


def _kernel(task: _Task, source: str, claim: Claim, idea: str) -> Iterator[Imported]:
    notes = [library_calls(source)]
    if task.direction == "backward":
        notes.append("its entry point is `backward`, which the judge does not call: it stays a claim")
    told = replace(claim, notes=tuple(filter(None, notes)))
    for problem in task.problems:
        candidate = Candidate(source, "module", "cuda")
        yield Imported(stated(problem, task.functional_source), candidate, told, idea=idea)


def _highlighted(folder: Path, tasks: dict[tuple[str, str], _Task]) -> Iterator[Read]:
    """Yield kernels that the benchmark's paper shows, with its table."""
    if not (folder / "results.csv").is_file():
        return
    with (folder / "results.csv").open(newline="", encoding="utf-8") as file:
        for line, row in enumerate(csv.DictReader(file), 1):
            where = f"highlighted/results.csv row {line}"
            try:
                direction = "forward" if row["forward"] == "True" else "backward"
                task = tasks.get((row["task_name"], direction))
                if task is None:
                    raise ValueError(f"there is no task {row['task_name']} ({direction})")
                source = row.get("Code") or read_text(folder / task.folder.name / direction / "kernel.cu")
                yield from _kernel(task, source, _claim_of_row(task, row), row["Kernel Name"].replace("_", " "))
            except (ValueError, KeyError, TypeError) as error:
                yield Skipped(where, str(error) if isinstance(error, ValueError) else f"it lacks {error}")


def _claim_of_row(task: _Task, row: dict[str, str]) -> Claim:
    """Return a row of the table as a claim."""

    def value(name: str) -> float | None:
        return number(float(row[name])) if row.get(name) else None

    correct = row["Correct"] == "True"
    eager = value("Speedup") if correct else None
    details = {"max_diff": value("Max Diff"), "error": without_paths(row.get("Error") or "")[:2000]}
    return replace(
        task.claim,
        origin=f"highlighted, {task.folder.name}, {task.direction}, {row['Kernel Name']}",
        correct=correct,
        device_name="NVIDIA H100",
        candidate_us=microseconds(value("Runtime (ms)")) if correct else None,
        speedup_eager=eager,
        speedup_compile=value("Speedup Compile") if correct else None,
        warning="; ".join(filter(None, [task.claim.warning, too_good(eager)])),
        details=json.dumps(details, sort_keys=True),
    )
