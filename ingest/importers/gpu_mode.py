"""GPU MODE: problem folders (`task.yml`, `reference.py`) of your own checkout, with the submissions in them.

Comes in: a checkout of reference-kernels, a set of problems, or one problem. Goes out: the problem of each folder, and
an `Imported` for each submission: `submission.py`, `submissions/*.py`, and `solutions/correct/` and `solutions/wrong/`
with what these names claim. The problem is the last benchmark case, which is the ranked one by default; its seed
follows `torch.manual_seed`, so that draws differ. What a file takes from its neighbours (`from utils import ...`) is
put into its text, so that it stands alone; types from `task` become `object`.

None of their code is part of rag-kernels. Since June 2026 the repository has a licence of its own, which speaks of
training and of systems that improve models: read it. Its texts stay in your archive; bundles leave them out.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rag_kernels.archive.records import KEPT_AT_HOME, Claim, Imported
from rag_kernels.eval.records import Candidate
from rag_kernels.ingest.importers.protocol import (
    ImportRefused,
    Read,
    Skipped,
    known_problem,
    python_files,
    read_text,
    stated,
)

RECIPROCITY, UNSTATED = KEPT_AT_HOME
ATTRIBUTION = "GPU MODE, reference-kernels, and the authors of the submissions"
LICENCE_FILES = ("LICENSE", "LICENSE.md", "LICENSE.txt")
WHERE: tuple[tuple[str, bool | None], ...] = (
    ("submissions", None),
    ("solutions/correct", True),
    ("solutions/wrong", False),
)

REFERENCE = """

# Added by rag-kernels: KernelBench's form, at the case that is ranked.
import torch


class Model(torch.nn.Module):
    def forward(self, *data):
        return ref_kernel(data if len(data) > 1 else data[0])


def get_inputs():
{sizes}
    data = generate_input({arguments})
    return list(data) if isinstance(data, tuple) else [data]


def get_init_inputs():
    return []


def get_workloads():
    return {workloads!r}
"""

SUBMISSION = """

# Added by rag-kernels: KernelBench's form.
import torch


class ModelNew(torch.nn.Module):
    def forward(self, *data):
        return custom_kernel(data if len(data) > 1 else data[0])
"""


@dataclass(frozen=True, slots=True)
class _Folder:
    """A problem's folder: its task file, and the files that its sources may import, by module name."""

    path: Path
    task: dict[str, Any]
    modules: dict[str, Path]


class GpuMode:
    def read(self, path: Path) -> Iterator[Read]:
        files = sorted(path.rglob("task.yml"))
        if not files:
            raise ImportRefused(f"{path} holds no task.yml: name a problem's folder, or your checkout with problems/.")
        names = _leaderboards(path)
        for file in files:
            where = file.parent.relative_to(path).as_posix() if file.parent != path else path.name
            try:
                folder = _folder(file)
                problem = _problem(folder, names.get(file.parent.resolve(), file.parent.name), where)
            except ValueError as error:
                yield Skipped(f"{where}/task.yml", str(error))
                continue
            yield problem
            yield from _submissions(folder, problem, where)


def _folder(file: Path) -> _Folder:
    task = _yaml(file)
    if not isinstance(task, dict):
        raise ValueError("it holds no fields")
    modules: dict[str, Path] = {}
    for entry in task.get("files") or ():
        if isinstance(entry, dict) and str(entry.get("name", "")).endswith(".py"):
            source = (file.parent / str(entry.get("source", ""))).resolve()
            if source.is_file() and source.is_relative_to(file.parent.resolve().parent.parent):
                modules[Path(str(entry["name"])).stem] = source
    return _Folder(file.parent, task, modules)


def _problem(folder: _Folder, name: str, where: str) -> Imported:
    task = folder.task
    if task.get("lang", "py") != "py":
        raise ValueError(f"its language is {task['lang']!r}, and only Python problems are read")
    cases = task.get("benchmarks") or task.get("tests")
    if not isinstance(cases, list) or not isinstance(cases[-1], dict):
        raise ValueError("it lists neither benchmarks nor tests")
    if task.get("multi_gpu"):
        raise ValueError("it is for several GPUs, and a kernel here runs on one")
    source = _flat(folder.path / "reference.py", folder.modules)
    for required in ("ref_kernel", "generate_input"):
        if f"def {required}(" not in source:
            raise ValueError(f"reference.py does not define {required}")
    problem = known_problem(name, source.rstrip() + _in_kernelbench_form(cases))
    if isinstance(problem, str):
        raise ValueError(problem)
    details = {"case": cases[-1], "cases": len(cases), "ranking_by": task.get("ranking_by", "last")}
    claim = Claim(
        importer="gpu-mode",
        origin=where,
        licence=_licence(folder.path),
        attribution=ATTRIBUTION,
        details=json.dumps(details, sort_keys=True, default=str),
    )
    return Imported(stated(problem, source.replace("ref_kernel", "module_fn")), None, claim)


def _in_kernelbench_form(cases: list[dict[str, Any]]) -> str:
    """Return the lines that make a reference a problem: sizes as integers, and a seed that follows PyTorch's own.

    The other cases are its workloads where they differ in sizes alone.
    """
    case = cases[-1]
    values = {name: "torch.initial_seed() % 2**31" if name == "seed" else repr(value) for name, value in case.items()}
    sizes = "\n".join(f"    {name} = {value}" for name, value in values.items())
    workloads = [_sizes(other) for other in cases if isinstance(other, dict) and _rest(other) == _rest(case)]
    arguments = ", ".join(f"{name}={name}" for name in values)
    return REFERENCE.format(sizes=sizes, arguments=arguments, workloads=workloads)


def _sizes(case: dict[str, Any]) -> dict[str, int]:
    return {n: v for n, v in case.items() if type(v) is int and v > 0 and n != "seed"}


def _rest(case: dict[str, Any]) -> dict[str, Any]:
    """Return what is no size, and the names of the sizes: two cases are the same problem where it is equal."""
    sizes = _sizes(case)
    return {n: None if n in sizes else v for n, v in case.items() if n != "seed"}


def _submissions(folder: _Folder, problem: Imported, where: str) -> Iterator[Read]:
    found: list[tuple[Path, bool | None]] = [(folder.path / "submission.py", None)]
    for name, correct in WHERE:
        found += [(file, correct) for file in python_files(folder.path / name)]
    for file, correct in found:
        if not file.is_file():
            continue
        place = f"{where}/{file.relative_to(folder.path).as_posix()}"
        try:
            source = _flat(file, folder.modules)
            if "def custom_kernel(" not in source and "custom_kernel =" not in source:
                raise ValueError("it does not define custom_kernel")
            claim = replace(problem.claim, origin=place, correct=correct, details="{}")
            candidate = Candidate(source.rstrip() + SUBMISSION, "module", "cuda")
            yield Imported(problem.functional, candidate, claim, idea=file.stem.replace("_", " "))
        except ValueError as error:
            yield Skipped(place, str(error))


def _flat(file: Path, modules: Mapping[str, Path], seen: frozenset[str] = frozenset()) -> str:
    """Return the text of a file with its neighbours' text in place of their imports; it is never run here."""
    source = read_text(file)
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"{file.name} has a syntax error on line {error.lineno}: {error.msg}") from error
    lines = source.splitlines()
    for node in reversed(tree.body):
        text = _replacement(node, modules, seen, nested=bool(seen))
        if text is not None:
            lines[node.lineno - 1 : node.end_lineno] = text.splitlines()
    return "\n".join(lines) + "\n"


def _replacement(node: ast.stmt, modules: Mapping[str, Path], seen: frozenset[str], *, nested: bool) -> str | None:
    """Return the text that replaces an import of a neighbour, or None for everything else, which stays."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name in modules:
                raise ValueError(f"it imports {alias.name} as a whole; only `from {alias.name} import ...` can be read")
    if not isinstance(node, ast.ImportFrom) or node.module is None:
        return None
    if node.module == "__future__" and nested:
        return ""
    if node.module == "task":
        return "\n".join(f"{alias.asname or alias.name} = object" for alias in node.names)
    if node.module not in modules:
        return None
    if node.module in seen:
        return ""
    renamed = [f"{alias.asname} = {alias.name}" for alias in node.names if alias.asname]
    return "\n".join([_flat(modules[node.module], modules, seen | {node.module}), *renamed])


def _leaderboards(path: Path) -> dict[Path, str]:
    """Return names of leaderboards by folder, from the files that list a set of problems."""
    found: dict[Path, str] = {}
    for file in sorted({*path.rglob("*.yaml"), *path.parent.glob("*.yaml")}):
        try:
            listed = _yaml(file)
        except ValueError:
            continue
        for problem in listed.get("problems") or () if isinstance(listed, dict) else ():
            if isinstance(problem, dict) and {"directory", "name"} <= problem.keys():
                found[(file.parent / str(problem["directory"])).resolve()] = str(problem["name"])
    return found


def _yaml(file: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(read_text(file))
    except yaml.YAMLError as error:
        raise ValueError(f"it is not YAML: {str(error).splitlines()[0]}") from error


def _licence(folder: Path) -> str:
    """Return what the nearest licence file above says; unstated counts as not to be passed on."""
    for parent in [folder, *folder.resolve().parents]:
        for name in LICENCE_FILES:
            if (parent / name).is_file():
                head = (parent / name).read_text(errors="replace")[:400]
                return "MIT" if "MIT License" in head else RECIPROCITY if "Reciprocity" in head else UNSTATED
        if (parent / ".git").exists():
            break
    return UNSTATED
