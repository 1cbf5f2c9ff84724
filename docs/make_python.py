"""Writes docs/reference/python.md from the public names and their docstrings: `python docs/make_python.py`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import rag_kernels

PAGE = Path(__file__).with_name("reference") / "python.md"
WIDTH = 100

HEAD = """# The Python API

Everything that the command line does can be called from Python. These are the public names of `rag_kernels`, and the
records that go in and come out. Made from the source by `python docs/make_python.py`.

```python
import rag_kernels

for attempt in rag_kernels.generate("examples/rmsnorm.py", device="cpu"):
    print(attempt.number, attempt.idea, type(attempt.judged.verdict).__name__)
```
"""

Definition = ast.FunctionDef | ast.ClassDef


def page() -> str:
    """Return the whole page: functions, then the public classes, then the records they are made of."""
    public = [getattr(rag_kernels, name) for name in rag_kernels.__all__]
    functions = [thing for thing in public if inspect.isfunction(thing)]
    classes = [thing for thing in public if inspect.isclass(thing)]
    records, aliases = _reached([*functions, *classes])
    others = sorted((r for r in records if r not in classes), key=lambda r: r.__name__)
    return "\n".join(
        [
            HEAD,
            "## Functions\n",
            *map(_function, functions),
            "## Classes\n",
            *map(_class, classes),
            "## Records\n",
            "What the names above take and return, beside themselves.\n",
            *map(_class, others),
            "## Names of types\n",
            "```python",
            *(aliases[name] for name in sorted(aliases)),
            "```\n",
        ]
    )


def _function(function: Any) -> str:
    node = _definition(function)
    text = f"### {function.__name__}\n\n```python\n{_signature(node)}\n```\n\n{_doc(node)}\n"
    return text if isinstance(node, ast.FunctionDef) else ""


def _class(kind: type) -> str:
    node = _definition(kind)
    fields = "\n".join(_fields(kind, node))
    parts = [f"### {kind.__name__}\n", f"In `{kind.__module__}`.\n", _doc(node) + "\n" * bool(_doc(node))]
    parts += [f"```python\n{fields}\n```\n"] if fields else []
    methods = [m for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")]
    parts += ["\n".join(map(_method, methods)) + "\n"] if methods else []
    return "\n".join(part for part in parts if part)


def _method(node: ast.FunctionDef) -> str:
    is_property = any(isinstance(d, ast.Name) and d.id.endswith("property") for d in node.decorator_list)
    signature = f"{node.name}: {ast.unparse(node.returns)}" if is_property and node.returns else _signature(node, 10**4)
    text = " ".join(_doc(node).split())
    return f"- `{signature.replace('(self, ', '(').replace('(self)', '()')}`" + (f": {text}" if text else "")


def _definition(thing: Any) -> Definition:
    """Return the syntax tree of a function or a class."""
    wrapped = inspect.unwrap(thing)
    [node] = ast.parse(textwrap.dedent(inspect.getsource(wrapped))).body
    assert isinstance(node, Definition)
    return node


def _doc(node: Definition) -> str:
    return ast.get_docstring(node) or ""


def _signature(node: Definition, width: int = WIDTH) -> str:
    """Return `name(parameters) -> result` as it is written, a parameter a line where it is longer than `width`."""
    assert isinstance(node, ast.FunctionDef)
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    head = (
        "".join(f"@{ast.unparse(d)}\n" for d in node.decorator_list if ast.unparse(d) == "contextmanager") + node.name
    )
    a = node.args
    padded = [None] * (len(a.args) - len(a.defaults)) + list(a.defaults)
    parts = [_parameter(p, d) for p, d in zip(a.args, padded, strict=True)]
    parts += [f"*{_parameter(a.vararg)}"] if a.vararg else ["*"] if a.kwonlyargs else []
    parts += [_parameter(p, d) for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
    parts += [f"**{_parameter(a.kwarg)}"] if a.kwarg else []
    line = f"{head}({', '.join(parts)}){result}"
    return line if len(line) <= width else f"{head}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def _parameter(parameter: ast.arg, default: ast.expr | None = None) -> str:
    return ast.unparse(parameter) + (f" = {ast.unparse(default)}" if default else "")


def _fields(kind: type, tree: Definition) -> Iterator[str]:
    """Yield the lines that declare a class's fields, with their comments."""
    lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
            above = lines[node.lineno - 2].strip()
            if above.startswith("#"):
                yield above
            yield textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))


def _reached(things: list[Any]) -> tuple[list[type], dict[str, str]]:
    """Return the records that the annotations of these lead to, and the named types on the way, as they are written."""
    records: list[type] = []
    aliases: dict[str, str] = {}
    waiting = [(name, _home(thing)) for thing in things for name in _named(thing)]
    while waiting:
        name, module = waiting.pop(0)
        value = getattr(module, name, None)
        if inspect.isclass(value) and dataclasses.is_dataclass(value) and value.__module__.startswith("rag_kernels."):
            if value not in records:
                records.append(value)
                waiting += [(inner, _home(value)) for inner in _named(value)]
        elif typing.get_args(value) and name not in aliases:
            found = _written(name, value)
            if found is None:
                continue
            home, node = found
            aliases[name] = f"{name} = {ast.unparse(node)}".replace("'", '"')
            waiting += [(inner, home) for inner in _words(node)]
    return records, aliases


def _home(thing: Any) -> ModuleType:
    return sys.modules[thing.__module__]


def _written(name: str, value: object) -> tuple[ModuleType, ast.expr] | None:
    """Return the module of ours that gives a type its name, and what it writes there; None for a library's type."""
    for key, module in sorted(sys.modules.items()):
        if key.startswith("rag_kernels.") and getattr(module, name, None) is value:
            for node in ast.parse(inspect.getsource(module)).body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                    return module, node.value
    return None


def _named(thing: Any) -> list[str]:
    """Return the words in the annotations of a function, of a class's fields and of its public methods."""
    node = _definition(inspect.unwrap(thing))
    if isinstance(node, ast.FunctionDef):
        return _annotated(node)
    methods = [m for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")]
    fields = [m.annotation for m in node.body if isinstance(m, ast.AnnAssign)]
    return [*(name for field in fields for name in _words(field)), *(n for m in methods for n in _annotated(m))]


def _annotated(node: ast.FunctionDef) -> list[str]:
    given = [a.annotation for a in ast.walk(node.args) if isinstance(a, ast.arg)]
    return [name for found in (*given, node.returns) if found for name in _words(found)]


def _words(node: ast.expr) -> list[str]:
    return [name.id for name in ast.walk(node) if isinstance(name, ast.Name)]


if __name__ == "__main__":
    PAGE.write_text(page())
