"""The line of folders and of packages, and the weight of imports: read from the source, tried in fresh interpreters."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import import_graph as graph
import pytest
from import_graph import FILES, LINE, ROOT

import rag_kernels

HEAVY = (
    "torch",
    "torch._dynamo",
    "litellm",
    "duckdb",
    "chromadb",
    "streamlit",
    "sentence_transformers",
    "pydantic",
    "ray",
    "rich.console",
)

# Where our own packages may be imported inside functions: commands start fast by loading their work when they run,
# and the workers' side of `eval` (which imports torch at the top) is loaded in child processes only.
LATE_IMPORTS = ("rag_kernels/cli/", "eval/")

# Runs in child processes only. The judge starts it by name and never imports it: the wall inside `eval`.
CHILDREN = ("eval/numerics/", "eval/children/")
MAY_IMPORT_CHILDREN = (*CHILDREN, "eval/zoo/")


def folder_of(name: str) -> str:
    """Return the folder in which a module of ours lies, by its full name."""
    second = f"{name}.".split(".")[1]
    return second if second in LINE else "rag_kernels"


def own(file: Path) -> list[graph.Import]:
    """Return a file's imports of ours, also by names that would only work in a checkout."""
    return [i for i in graph.imports(file) if i.module.split(".")[0] in (*LINE, "tests", "docs")]


def strings(file: Path) -> Iterator[str]:
    """Yield every string that stands in a file by itself."""
    for node in ast.walk(graph.tree_of(file)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def defined(file: Path) -> set[str]:
    """Return the names of the functions and classes that a module defines."""
    return {node.name for node in graph.tree_of(file).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def loaded_by(code: str) -> set[str]:
    """The heavy modules that a fresh interpreter has loaded after `code`."""
    ask = f"import sys; {code}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split("\n")[-2].split())


def test_imports_point_left() -> None:
    wrong = []
    for file in FILES:
        place = LINE.index(graph.shown(file).split("/")[0])
        for name in (found.module for found in own(file)):
            if name.split(".")[0] != "rag_kernels":
                wrong.append(f"{file}: imports {name}, a name that a user may have")
            elif LINE.index(folder_of(name)) > place:
                wrong.append(f"{file}: imports {name}, which lies to the right")
    assert wrong == []


def test_imports_are_absolute_and_none_hides_in_a_function() -> None:
    statements = [(f, n) for f in FILES for n, _ in graph.statements(graph.tree_of(f))]
    assert [str(f) for f, n in statements if isinstance(n, ast.ImportFrom) and n.level] == [], "relative imports"
    at_once = [f for f in FILES if not graph.shown(f).startswith(LATE_IMPORTS)]
    late = [(str(f), i.module) for f in at_once for i in own(f) if i.when == "late"]
    assert late == [], "our own packages are imported inside functions"


def test_there_are_no_rings() -> None:
    """Between modules, counting only what is imported when a module is loaded."""
    edges: dict[str, list[str]] = {}
    for source, target, when in graph.edges():
        if when == "load" and target != "rag_kernels/__init__.py":
            edges.setdefault(source, []).append(target)
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a ring: {' -> '.join((*path, name))}"
        if name not in done:
            for other in edges.get(name, ()):
                visit(other, (*path, name))
            done.add(name)

    for name in edges:
        visit(name, ())


@pytest.mark.parametrize("folder", graph.ORDERS)
def test_packages_stand_in_a_line(folder: str) -> None:
    """Every import counts: late ones too, and those for type checkers."""
    rank = {name: place for place, name in enumerate(graph.ORDERS[folder])}
    for (source, target), found in graph.package_edges(folder).items():
        assert source in rank and target in rank, f"give {source} and {target} a place in docs/import_graph.py"
        against = [edge for edge in found if rank[target] > rank[source]]
        assert against == [], f"{folder}: {source} may not import {target}"


@pytest.mark.parametrize("folder", graph.ORDERS)
def test_every_package_of_the_order_is_a_folder_with_files(folder: str) -> None:
    packages = [p for p in graph.ORDERS[folder] if p not in (graph.ROOT_FILES, graph.TOP_FILES)]
    there = {p.parent.name for p in (ROOT / folder).glob("*/__init__.py") if not p.parent.is_symlink()}
    assert set(packages) == there


def test_the_judges_side_imports_nothing_of_the_childrens() -> None:
    edges = [(a, b) for a, b, _ in graph.edges() if b.startswith(CHILDREN) and not a.startswith(MAY_IMPORT_CHILDREN)]
    assert edges == [], "start it by its name in a child process"


def test_only_children_import_torch_when_they_are_loaded() -> None:
    found = {i.path for f in FILES for i in graph.imports(f) if i.when == "load" and i.module.split(".")[0] == "torch"}
    assert {path for path in found if path.startswith("eval/") and not path.startswith(CHILDREN)} == set()
    assert any(path.startswith(CHILDREN) for path in found)  # the reading itself works


def test_no_command_waits_for_torch() -> None:
    """It loads in children, while a command does something else; here it is 1.5 s that each run begins with."""
    known, by_path = graph.modules(), {graph.shown(f): f for f in FILES}
    begun = ("rag_kernels/cli/", "app/", "rag_kernels/export/forms/")  # formats are imported by their names
    reached: dict[str, tuple[str, ...]] = {f: (f,) for f in by_path if f.startswith(begun)}
    waiting = list(reached)
    while waiting:
        file = waiting.pop()
        loaded = ("load", "late") if file.startswith("rag_kernels/cli/") else ("load",)
        found = graph.imports(by_path[file])
        heavy = [i.module for i in found if i.when == "load" and i.module.split(".")[0] == "torch"]
        assert heavy == [], " -> ".join(reached[file])
        for other in {known[i.module] for i in found if i.when in loaded and i.module in known} - reached.keys():
            reached[other] = (*reached[file], other)
            waiting.append(other)
    assert len(reached) > 100  # the reading itself works


READ_TEXT = {
    "ir/parameters.py",  # names of arguments and constants
    "codegen/symbols.py",  # which names a finished text uses, as a linker
    "foreign_kernel.py",  # sources of others, and our own of an earlier round
    "product_choice.py",
    "tuning.py",
}


def test_the_offline_writer_decides_before_it_prints() -> None:
    """A schedule is a record: what a kernel loads, keeps and awaits is not found in the text of its lines."""
    root = "rag_kernels/offline/"
    found = {graph.shown(f).removeprefix(root) for f in FILES if graph.shown(f).startswith(root) and uses(f, "re")}
    assert found == READ_TEXT, "note it in a record when it is printed, or decide it on the IR"


def uses(file: Path, module: str) -> bool:
    """Return whether a file imports this module of Python's."""
    return any(isinstance(n, ast.Import) and n.names[0].name == module for n in graph.tree_of(file).body)


def test_functions_that_are_started_by_name_exist() -> None:
    """Worker roles and targets are strings, `module:function`; programs and children name modules alone."""
    asked = [
        (graph.shown(f), text) for f in FILES for text in strings(f) if re.fullmatch(r"rag_kernels[\w.]*:\w+", text)
    ]
    assert len(asked) > 10
    for path, text in asked:
        module, _, function = text.partition(":")
        assert module in graph.modules(), f"{path}: there is no module {module}"
        assert function in defined(ROOT / graph.modules()[module]), f"{path}: {module} defines no {function}"
    for file in FILES:
        for text in strings(file):
            if re.fullmatch(r"rag_kernels(\.\w+)+", text):
                assert text in graph.modules(), f"{graph.shown(file)}: there is no module {text}"


def test_a_users_own_folders_do_no_harm(tmp_path: Path) -> None:
    """A user's `eval/`, `archive.py` and `app.py` lie in the working folder, which Python looks through first."""
    (tmp_path / "eval").mkdir()
    for name in ("eval/__init__.py", "archive.py", "app.py", "ingest.py"):
        (tmp_path / name).write_text("raise RuntimeError('this is the file of the user')")
    modules = " ".join(
        graph.module_of(f) for f in FILES if not f.stem.startswith("_") and not {"app", "zoo"} & {*f.parts}
    )
    code = (
        "import sys; sys.path.insert(0, ''); from importlib import import_module\n"
        f"for name in {modules!r}.split(): import_module(name)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (tmp_path / "problem.py").write_text((ROOT / "examples" / "softmax_scale.py").read_text())
    program = Path(sys.executable).with_name("rag-kernels")
    command = [program, "functionalize", "problem.py", "--json"]  # with children, which import it too
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_no_test_imports_another() -> None:
    """What tests share stands in `tests/support/` or a flat file beside them."""
    for file, found in imported_by_tests():
        assert not (found.module or "").startswith("test_"), file


def test_what_benches_import_of_ours_is_there() -> None:
    """No test runs them, so that a name which moved would be missed when somebody measures."""
    modules, missing = graph.modules(), []
    for file, found in imported_by_tests():
        module = found.module or ""
        if module in modules:
            known = bound_in(modules[module]) if module != "rag_kernels" else {*rag_kernels.__all__}
            wanted = [a.name for a in found.names if a.name not in known and f"{module}.{a.name}" not in modules]
            missing += [f"{file.name}: {module} has no {name}" for name in wanted]
        elif module.split(".")[0] == "rag_kernels":
            missing.append(f"{file.name}: there is no {module}")
    assert missing == []


@cache
def imported_by_tests() -> tuple[tuple[Path, ast.ImportFrom], ...]:
    """Return the imports of names in tests, benches and the programs that make pages."""
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").glob("*.py")]
    trees = [(file, ast.parse(file.read_text())) for file in files]
    return tuple((file, n) for file, tree in trees for n in ast.walk(tree) if isinstance(n, ast.ImportFrom))


@cache
def bound_in(path: str) -> frozenset[str]:
    """Return the names that stand in a file of ours."""
    return frozenset(name for node in ast.walk(graph.tree_of(ROOT / path)) for name in names_of(node))


def names_of(node: ast.AST) -> list[str]:
    """Return the names that a statement binds."""
    match node:
        case ast.FunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Name(ctx=ast.Store()):
            return [node.id]
        case ast.Import() | ast.ImportFrom():
            return [a.asname or a.name for a in node.names]
    return []


def test_no_file_is_named_like_a_stdlib_module() -> None:
    assert [graph.shown(f) for f in FILES if f.stem in sys.stdlib_module_names] == []


def test_the_public_names_are_these() -> None:
    assert sorted(rag_kernels.__all__) == rag_kernels.__all__
    assert set(rag_kernels.__all__) == {
        "Archive",
        "Best",
        "Brief",
        "Budget",
        "Candidate",
        "Draft",
        "Gained",
        "Grown",
        "Judge",
        "Learnt",
        "MemoryArchive",
        "Options",
        "Past",
        "RagKernelsError",
        "ScriptedJudge",
        "ScriptedLLM",
        "ScriptedWriter",
        "Session",
        "Shown",
        "StreamingWriter",
        "Writer",
        "apply",
        "evaluate",
        "export_kernel",
        "find_kernels",
        "functionalize",
        "generate",
        "grow",
        "open_session",
        "optimize",
        "winner",
    }
    for name in rag_kernels.__all__:
        assert getattr(rag_kernels, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rag_kernels.nothing  # noqa: B018


def test_the_lazy_names_are_those_that_type_checkers_see() -> None:
    tree = ast.parse((ROOT / "rag_kernels" / "__init__.py").read_text())
    [guarded] = [n for n in tree.body if isinstance(n, ast.If)]
    seen = {n.module: tuple(a.name for a in n.names) for n in guarded.body if isinstance(n, ast.ImportFrom)}
    assert seen == import_module("rag_kernels")._HOMES


def test_importing_the_package_and_asking_for_help_load_nothing_heavy() -> None:
    assert loaded_by("import rag_kernels, rag_kernels.cli") == set()


def test_what_runs_kernels_loads_torch_without_its_compiler() -> None:
    """That takes as long as all of torch, and few use it."""
    told = "from rag_kernels.eval.children.candidate.profiling import profile; profile(lambda: None, on_gpu=False)"
    assert loaded_by(f"import rag_kernels.best; {told}") & {"torch", "torch._dynamo"} == {"torch"}


def test_the_python_api_does_not_import_torch() -> None:
    assert not loaded_by("import rag_kernels; rag_kernels.generate") & {"torch", "litellm", "chromadb", "streamlit"}


def test_what_judges_on_a_gpu_host_needs_nothing_else() -> None:
    assert not loaded_by("import rag_kernels.eval.judge") & set(HEAVY)
