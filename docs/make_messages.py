"""Writes docs/reference/worker_messages.md from both ends of what crosses a process: `python docs/make_messages.py`.

Comes in, as source: the files that name a function of a child by a string, the records of `eval.messages`, the judge's
side that makes them and the children that match on them. Goes out: for each name where it is called from, and for each
request who makes it, what answers it, and what comes back.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from rag_kernels.eval.messages import to_candidate, to_reference

ROOT = Path(__file__).parent.parent
FOLDERS = ("eval", "archive", "ingest", "rag_kernels", "app")
CHILDRENS = ("eval/children", "eval/numerics", "eval/zoo", "eval/messages")
PAGE = Path(__file__).with_name("reference") / "worker_messages.md"
ROLE = re.compile(r"rag_kernels\.(eval|archive|ingest|app)?\.?([\w.]+):(\w+)")
PREFACE = """# What crosses a process

No import leads from a step to the function that does it in a child process: a string `module:function` does, or a
request. Here are both ends of each. A child is a fork of a warm parent (`eval/process/workers.py` asks,
`eval/process/warm_parent.py` forks): it calls the function with what it was given, or with its end of a socket.

This page is made by `python docs/make_messages.py`.
"""
REQUESTS = """Requests are records of `eval/messages/`. The judge's side makes one and waits for the one kind
of reply that it names; the child matches on it in `answer`, and mypy holds that no request is left out.
"""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One kind of worker: the file and class that answer, its requests, and the first of them."""

    heading: str
    file: str
    answers: str
    requests: tuple[type, ...]
    opening: type


REFERENCE = Conversation(
    "The judge and the reference's worker",
    "eval/children/reference/worker.py",
    "Reference",
    get_args(to_reference.ReferenceRequest),
    to_reference.OpenReference,
)
CANDIDATE = Conversation(
    "The judge and a candidate's worker",
    "eval/children/candidate/worker.py",
    "Loaded",
    get_args(to_candidate.CandidateRequest),
    to_candidate.OpenCandidate,
)


def page() -> str:
    """Return the whole page."""
    sources = {file.relative_to(ROOT).as_posix(): file for folder in FOLDERS for file in _files(folder)}
    trees = {name: ast.parse(file.read_text()) for name, file in sources.items()}
    made = list(_made(trees))
    talks = [_conversation(each, trees, made) for each in (REFERENCE, CANDIDATE)]
    return "\n".join([PREFACE, _roles(trees), REQUESTS, *talks])


def _files(folder: str) -> list[Path]:
    """Return the source files of a folder; the links in `rag_kernels` lead to the other folders."""
    found = sorted((ROOT / folder).rglob("*.py"))
    return [file for file in found if not any(parent.is_symlink() for parent in file.parents)]


def _roles(trees: dict[str, ast.Module]) -> str:
    named: dict[tuple[str, str], list[str]] = {}
    for place, tree in trees.items():
        for node in ast.walk(tree):
            for role in ROLE.finditer(node.value) if isinstance(node, ast.Constant) and type(node.value) is str else ():
                folder, module, function = role.groups()
                file = f"{folder or 'rag_kernels'}/{module.replace('.', '/')}.py"
                if file in trees:
                    named.setdefault((file, function), []).append(f"`{place}`")
    lines = ["## Functions that a child runs, by name\n", "| in the child | what it does | named in |", "|---|---|---|"]
    for (file, function), places in sorted(named.items()):
        found = next(n for n in trees[file].body if isinstance(n, ast.FunctionDef) and n.name == function)
        told = (ast.get_docstring(found) or "").split("\n\n")[0].replace("\n", " ")
        lines.append(f"| `{function}` of `{file}` | {told} | {', '.join(dict.fromkeys(places))} |")
    return "\n".join(lines) + "\n"


def _conversation(talk: Conversation, trees: dict[str, ast.Module], made: list[tuple[str, str, str]]) -> str:
    answered = _answers(trees[talk.file], talk.answers) | {talk.opening.__name__: talk.answers}
    lines = [
        f"## {talk.heading}\n",
        f"`serve` of `{talk.file}` reads, answers and sends.\n",
        "| request | what it is for | made by | answered by | reply |",
        "|---|---|---|---|---|",
    ]
    shared = {*REFERENCE.requests} & {*CANDIDATE.requests}
    for request in (talk.opening, *talk.requests):
        name = request.__name__
        told, _, reply = " ".join((request.__doc__ or "").split()).partition(": `")
        makers = [
            f"`{function}`"
            for of, place, function in made
            if of == name and (request not in shared or ("candidate" in place) == (talk is CANDIDATE))
        ]
        back = reply.partition("`")[0]
        lines.append(f"| `{name}` | {told} | {', '.join(dict.fromkeys(makers))} | `{answered[name]}` | `{back}` |")
    return "\n".join(lines) + "\n"


def _made(trees: dict[str, ast.Module]) -> Iterator[tuple[str, str, str]]:
    """Yield (record, file, class and function) for every place on the judge's side where a record is made."""
    for place, tree in trees.items():
        if not place.startswith("eval/") or place.startswith(CHILDRENS):
            continue
        for owner in (n for n in tree.body if isinstance(n, ast.ClassDef)):
            for function in (n for n in owner.body if isinstance(n, ast.FunctionDef)):
                for node in ast.walk(function):
                    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                        yield node.func.id, place, f"{owner.name}.{function.name}"


def _answers(tree: ast.Module, name: str) -> dict[str, str]:
    """Return by request the function that its case in `answer` calls, with its class."""
    [owner] = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    methods = {n.name: n for n in owner.body if isinstance(n, ast.FunctionDef)}
    parts = {  # attributes that the class makes itself: self.memory = MemoryCount(...)
        ast.unparse(n.targets[0]): ast.unparse(n.value.func)
        for n in ast.walk(methods["__init__"])
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)
    }
    found = {}
    for case in (case for n in ast.walk(methods["answer"]) if isinstance(n, ast.Match) for case in n.cases):
        if isinstance(case.pattern, ast.MatchClass):
            calls = [n.func for n in ast.walk(case.body[-1]) if isinstance(n, ast.Call)]  # the last line does it
            texts = [text for text in map(ast.unparse, calls) if not (text[0].isupper() or hasattr(builtins, text))]
            holder, _, called = texts[0].rpartition(".")
            of = name if holder == "self" else parts.get(holder, "")
            found[ast.unparse(case.pattern.cls)] = f"{of}.{called}" if of else called
    return found


if __name__ == "__main__":
    PAGE.write_text(page())
