"""From a file to a Problem, without running any of it.

Comes in: a path. Goes out: a Problem, or a ProblemError whose sentence names the line and the next step. The
file's code runs only in child processes (`load_module` is for them).
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
import types
from collections.abc import Iterable
from pathlib import Path

from rag_kernels.eval.definition import source_of_definition
from rag_kernels.eval.records import Problem, ProblemError

_GPU = re.compile(r"cuda(:\d+)?")
REQUIRED = {
    "Model": "class Model(nn.Module)",
    "get_inputs": "def get_inputs()",
    "get_init_inputs": "def get_init_inputs()",
}


def load_problem(path: Path) -> Problem:
    """Read a KernelBench file and check its form; a `.json` file is a Definition of FlashInfer-Bench."""
    if not path.is_file():
        hint = "it is a folder: name a file in it" if path.is_dir() else "check the path"
        raise ProblemError(f"There is no problem file {path}; {hint}.")
    if path.suffix == ".json":
        return problem_from_source(path.stem, source_of_definition(path), shown_as=str(path))
    try:
        source = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemError(f"{path} cannot be read as text ({error}).") from error
    return problem_from_source(path.stem, source, shown_as=str(path))


def problem_from_source(name: str, source: str, *, shown_as: str = "") -> Problem:
    """Make a Problem from text, with the same checks as `load_problem`."""
    shown_as = shown_as or name
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ProblemError(f"{shown_as} has a syntax error on line {error.lineno}: {error.msg}.") from error
    defined = _defined_names(tree)
    missing = [form for required, form in REQUIRED.items() if required not in defined]
    if missing:
        raise ProblemError(f"{shown_as} does not define {' and '.join(missing)}; see examples/ for the form.")
    return Problem(name=name, source=source)


def _defined_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {t.id for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def find_problems(paths: Iterable[Path]) -> list[Path]:
    """Expand folders to the `.py` files in them (recursively, in natural order); files stay as they are."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            files = [f for f in path.rglob("*.py") if not f.name.startswith(("_", "."))]
            found += sorted(files, key=lambda f: (str(f.parent), _natural(f.stem)))
        else:
            found.append(path)
    return found


def _natural(stem: str) -> tuple[int, str]:
    head = stem.split("_")[0]
    return (int(head) if head.isdigit() else -1, stem)


class _OnDevice(ast.NodeTransformer):
    """Let a problem's text name the device that it is run on wherever it names a GPU."""

    def __init__(self, device: str) -> None:
        self.device = device

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, str) and _GPU.fullmatch(node.value):
            return ast.copy_location(ast.Constant(self.device), node)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        sides = [node.left, *node.comparators]  # a word beside `==` asks for a device and chooses none
        node.left, *node.comparators = [s if isinstance(s, ast.Constant) else self.visit(s) for s in sides]
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda" and not _names_module(node.func.value):
            moved = ast.Attribute(node.func.value, "to", ast.Load())
            return ast.copy_location(ast.Call(moved, [ast.Constant(self.device)], []), node)
        return node


def _names_module(value: ast.expr) -> bool:
    """Return whether a value is `torch`, whose `cuda` is a module."""
    return isinstance(value, ast.Name) and value.id == "torch"


def load_module(name: str, source: str, *, device: str | None = None) -> types.ModuleType:
    """Execute source as a module of its own. Child processes only: this runs the user's code.

    Where the source names a GPU ("cuda", "cuda:0", `.cuda()`) it gets `device`, so that a problem that was written for
    a GPU is drawn and recorded without one; None leaves it as it is.
    """
    module = types.ModuleType(f"rag_kernels_problem_{abs(hash(source))}")
    filename = f"<{name}>"
    module.__file__ = filename
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    sys.modules[module.__name__] = module
    tree = ast.parse(source, filename)
    if device is not None:
        _OnDevice(device).visit(tree)
        ast.fix_missing_locations(tree)
    exec(compile(tree, filename, "exec"), module.__dict__)
    return module
