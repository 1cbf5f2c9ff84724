"""Read from the source who imports whom: held in a line by tests/test_layers.py, drawn by make_graph.py.

Comes in: the Python files of the five folders. Goes out: an `Import` for each import of ours that they hold, whether it
runs when the module is loaded, later inside a function, or for type checkers only. Nothing is imported to find out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
LINE = ("eval", "archive", "ingest", "rag_kernels", "app")  # low to high: an import points to the left
FILES = tuple(sorted(p for folder in LINE for p in (ROOT / folder).rglob("*.py")))  # rglob follows no links

# The packages of a folder, low to high. ROOT_FILES are those that lie beside the packages, TOP_FILES those of them that
# put everything together.
ROOT_FILES, TOP_FILES = "root", "top"
ORDERS = {
    "eval": (
        "root traits sizes process machine buffers messages build sessions timing instruments trial top numerics "
        "children zoo"
    ).split(),
    "ingest": "graphs description functional live importers".split(),
    "rag_kernels": (
        "root text feedback retrieval run llm offline cluster long_runs experiments export zoo mutation report top "
        "agents cli"
    ).split(),
    "rag_kernels/offline": "graph ir lowering fusion codegen cpp cuda root".split(),
    "rag_kernels/offline/cuda": "texts root gemm elements attention scans places top".split(),
}
TOP = {
    "eval": ("judge.py",),
    "rag_kernels": ("__init__.py", "api.py", "best.py", "compiled.py", "doctor.py", "scripted.py", "wiring.py"),
    "ingest": (),
    "rag_kernels/offline": (),
    "rag_kernels/offline/cuda": ("fixed_texts.py", "function.py"),
}

When = Literal["load", "late", "typing"]


@dataclass(frozen=True, slots=True)
class Import:
    """One module that a file imports, by its full name. `path` is from the root of the project."""

    path: str
    module: str
    when: When


@cache
def modules() -> dict[str, str]:
    """Return the path of each module of ours by its full name."""
    return {module_of(file): shown(file) for file in FILES}


def shown(file: Path) -> str:
    """Return a file's path from the root of the project."""
    return file.relative_to(ROOT).as_posix()


def module_of(file: Path) -> str:
    """Return the full name by which a file is imported."""
    parts = list(file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts if parts[0] == "rag_kernels" else ["rag_kernels", *parts]).removesuffix(".__init__")


@cache
def tree_of(file: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(file.read_text())


def statements(node: ast.AST, when: When = "load") -> Iterator[tuple[ast.Import | ast.ImportFrom, When]]:
    """Yield every import statement below a node, with when it runs."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, when
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from statements(child, "late")
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from statements(ast.Module(child.body, []), "typing")
            yield from statements(ast.Module(child.orelse, []), when)
        else:
            yield from statements(child, when)


def names(statement: ast.Import | ast.ImportFrom) -> list[str]:
    """Return what a statement imports: modules of ours by their full names, others as they are written."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    home, known = statement.module or "", modules()
    inner = [f"{home}.{alias.name}" for alias in statement.names]
    found = [name if name in known else home for name in inner]
    return list(dict.fromkeys(found))


@cache
def imports(file: Path) -> tuple[Import, ...]:
    """Return all imports of a file, of ours and of others."""
    found = statements(tree_of(file))
    return tuple(Import(shown(file), name, when) for statement, when in found for name in names(statement))


def edges() -> list[tuple[str, str, When]]:
    """Return every import between two files of ours, as their paths."""
    known = modules()
    found = (i for file in FILES for i in imports(file))
    return [(i.path, known[i.module], i.when) for i in found if known.get(i.module, i.path) != i.path]


def package_of(path: str, folder: str) -> str | None:
    """Return the package of `folder` that a file lies in: a sub-folder, its root or its top; None when elsewhere."""
    if not path.startswith(folder + "/"):
        return None
    first, *rest = path.removeprefix(folder + "/").split("/")
    if rest:
        return first
    return TOP_FILES if first in TOP[folder] else ROOT_FILES


def package_edges(folder: str) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Return the edges between the packages of a folder, each with the imports that make it."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for source, target, _ in edges():
        ends = package_of(source, folder), package_of(target, folder)
        if ends[0] and ends[1] and ends[0] != ends[1]:
            found.setdefault((ends[0], ends[1]), []).append((source, target))
    return found
