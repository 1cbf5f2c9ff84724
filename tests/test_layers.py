"""The line of folders and the weight of imports, read from the source and tried in fresh interpreters."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import rag_kernels

ROOT = Path(__file__).resolve().parent.parent
LINE = ("eval", "archive", "ingest", "rag_kernels", "app")
FILES = sorted(p for folder in LINE for p in (ROOT / folder).rglob("*.py"))  # rglob follows no links
HEAVY = (
    "torch",
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
LATE_IMPORTS = ("rag_kernels/cli/", "rag_kernels/export/runtime.py", "eval/")


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return []


def own(names: list[str]) -> list[str]:
    return [name for name in names if name.split(".")[0] in (*LINE, "tests")]


def folder_of(name: str) -> str:
    """The folder in which a module lies, of its full name."""
    second = f"{name}.".split(".")[1]
    return second if second in LINE else "rag_kernels"


def module_of(file: Path) -> str:
    parts = list(file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts if parts[0] == "rag_kernels" else ["rag_kernels", *parts]).removesuffix(".__init__")


def late_imports(tree: ast.Module) -> Iterator[str]:
    """Our own packages, imported inside a function."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                yield from own(imported(node))


def loaded_by(code: str) -> set[str]:
    """The heavy modules that a fresh interpreter has loaded after `code`."""
    ask = f"import sys; {code}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split("\n")[-2].split())


@pytest.mark.parametrize("file", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_left(file: Path) -> None:
    place = LINE.index(file.relative_to(ROOT).parts[0])
    for node in ast.walk(ast.parse(file.read_text())):
        for name in own(imported(node)):
            assert name.split(".")[0] == "rag_kernels", f"{file}: imports {name}, a name that a user may have"
            assert LINE.index(folder_of(name)) <= place, f"{file}: imports {name}, which lies to the right"


@pytest.mark.parametrize("file", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_are_absolute_and_none_hides_in_a_function(file: Path) -> None:
    tree = ast.parse(file.read_text())
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level], f"{file}: relative import"
    if not str(file.relative_to(ROOT)).startswith(LATE_IMPORTS):
        assert list(late_imports(tree)) == [], f"{file}: imports our own packages inside a function"


def test_there_are_no_rings() -> None:
    """Between modules, counting only what is imported when a module is loaded."""
    modules = {module_of(f): f for f in FILES}
    edges = {name: set(module_imports(ast.parse(file.read_text()), set(modules))) for name, file in modules.items()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a ring: {' -> '.join((*path, name))}"
        if name not in done:
            for other in edges[name]:
                visit(other, (*path, name))
            done.add(name)

    for name in modules:
        visit(name, ())


def module_imports(tree: ast.Module, known: set[str]) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (n for n in own(imported(node)) if n in known)
        elif isinstance(node, ast.ImportFrom) and own([node.module or ""]):
            children = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from (children & known) or ({node.module or ""} & known - {"rag_kernels"})


def test_a_users_own_folders_do_no_harm(tmp_path: Path) -> None:
    """A user's `eval/`, `archive.py` and `app.py` lie in the working folder, which Python looks through first."""
    (tmp_path / "eval").mkdir()
    for name in ("eval/__init__.py", "archive.py", "app.py", "ingest.py"):
        (tmp_path / name).write_text("raise RuntimeError('this is the file of the user')")
    modules = " ".join(module_of(f) for f in FILES if not f.stem.startswith("_") and not {"app", "zoo"} & {*f.parts})
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
    for file in (ROOT / "tests").rglob("*.py"):
        names = [name for node in ast.walk(ast.parse(file.read_text())) for name in imported(node)]
        assert not [name for name in names if name.startswith("test_")], file


def test_no_file_is_named_like_a_stdlib_module() -> None:
    assert [str(f.relative_to(ROOT)) for f in FILES if f.stem in sys.stdlib_module_names] == []


def test_the_public_names_are_these() -> None:
    assert sorted(rag_kernels.__all__) == rag_kernels.__all__
    assert set(rag_kernels.__all__) == {
        "Archive",
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
        "evaluate",
        "find_kernels",
        "functionalize",
        "generate",
        "grow",
        "open_session",
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
    assert loaded_by("import rag_kernels") == set()
    assert loaded_by("import rag_kernels.cli") == set()
    assert "torch" in loaded_by("import torch")  # the probe itself works


def test_the_python_api_does_not_import_torch() -> None:
    assert not loaded_by("import rag_kernels; rag_kernels.generate") & {"torch", "litellm", "chromadb", "streamlit"}


def test_what_judges_on_a_gpu_host_needs_nothing_else() -> None:
    assert not loaded_by("import rag_kernels.eval.judge") & set(HEAVY)
