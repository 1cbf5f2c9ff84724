"""The tree of exceptions is drawn once, and the drawing is true: read from the source, without importing it."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

from rag_kernels.cli import expected
from rag_kernels.eval import errors, records
from rag_kernels.eval.process.workers import WorkerFailed

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("eval", "archive", "ingest", "rag_kernels", "app")
CARRIED = tuple(
    f"rag_kernels/export/{at}" for at in ("plain/", "serving/built_alone.py", "serving/launch.py")
)  # by files
FILES = [
    p
    for folder in FOLDERS
    for p in (ROOT / folder).rglob("*.py")  # rglob follows no links
    if not str(p.relative_to(ROOT)).startswith(CARRIED)
]
LINE = re.compile(r"^    ([│├└─ ]*)(\w+) {2,}(\S+) .*$")
BUILTIN = {name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, Exception)}


def drawn() -> dict[str, tuple[str, str]]:
    """By name: the parent, and the module where it is."""
    found: dict[str, tuple[str, str]] = {"RagKernelsError": ("Exception", "eval.errors")}
    above = ["RagKernelsError"]
    for line in (errors.__doc__ or "").splitlines():
        told = LINE.match(line)
        if told and told[1]:
            depth = len(told[1]) // 4
            found[told[2]] = (above[depth - 1], told[3].replace("here", "eval.errors"))
            above[depth:] = [told[2]]
    return found


def written() -> dict[str, tuple[str, str]]:
    """The same of every class in our source that is an exception, and no warning."""
    bases: dict[str, tuple[str, str]] = {}
    for file in FILES:
        place = ".".join(file.relative_to(ROOT).with_suffix("").parts).removeprefix("rag_kernels.")
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                for base in node.bases:
                    if isinstance(base, ast.Name):
                        bases[node.name] = (base.id, place)

    def is_exception(name: str) -> bool:
        return (name in BUILTIN and not name.endswith("Warning")) or (name in bases and is_exception(bases[name][0]))

    return {name: found for name, found in bases.items() if is_exception(name)}


def test_the_drawing_names_exactly_the_exceptions_that_there_are() -> None:
    assert drawn() == written()


def test_the_command_line_shows_the_sentence_of_what_is_not_internal() -> None:
    assert expected(errors.ProblemError("Do this.")) == "Do this."
    assert expected(WorkerFailed("crashed", "it died")) == ""
    assert records.ProblemError is errors.ProblemError and records.MachineError is errors.MachineError
