"""Writes docs/reference/packages.md, folders and packages with their imports: `python docs/make_graph.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import import_graph as graph

PAGE = Path(__file__).with_name("reference") / "packages.md"
ROOT_SAYS = {
    "eval": "Nouns that every package uses",
    "rag_kernels": "Nouns that every package uses",
    "rag_kernels/offline": "The writer: which drafts, in which order",
    "rag_kernels/offline/cuda": "One element a thread, teams of threads, attention and order",
}
TOP_SAYS = {
    "eval": "The face",
    "rag_kernels": "The face, and what puts the packages together",
    "rag_kernels/offline/cuda": "A function of kernels, and what builds on several of the packages",
}

HEAD = """# Folders and packages

Where to look for a thing, and what may import it. Made from the source by `python docs/make_graph.py`;
`tests/test_layers.py` holds that no import, late ones and those for type checkers included, runs against these arrows,
and that the tables are in order, low to high: a package imports only from rows above its own. An arrow points from who
imports to what is imported, and is left out where a longer way says the same. Lines are rounded to hundreds.
"""


def page() -> str:
    """Return the whole page."""
    folders = {(a, b) for a, b, _ in _folder_edges() if a != b}
    parts = [HEAD, "## The five folders\n", _mermaid(folders, graph.LINE), _table([_folder_row(f) for f in graph.LINE])]
    for folder, order in graph.ORDERS.items():
        rank = {name: place for place, name in enumerate(order)}
        down = {(a, b) for a, b in graph.package_edges(folder) if rank[a] > rank[b]}
        here = [name for name in order if _files(folder, name)]
        parts += [f"## Inside `{folder}/`\n"]
        if folder == "eval":
            parts += [
                "`numerics/` and `children/` run in child processes only. The judge starts them by name; nothing but "
                "`zoo/`\nmay import them, and nothing else in `eval/` imports torch when it is loaded.\n"
            ]
        parts += [_mermaid(down, here), _table([_package_row(folder, name) for name in here])]
    return "\n".join(parts)


def _folder_edges() -> list[tuple[str, str, str]]:
    return [(a.split("/")[0], b.split("/")[0], when) for a, b, when in graph.edges()]


def _mermaid(edges: set[tuple[str, str]], order: Iterable[str]) -> str:
    nodes = [f"    {_id(name)}[{name}]" for name in order]
    arrows = [f"    {_id(a)} --> {_id(b)}" for a, b in sorted(_reduced(edges))]
    return "\n".join(["```mermaid", "graph LR", *nodes, *arrows, "```\n"])


def _id(name: str) -> str:
    return f"p_{name}"  # `graph` and `end` are words of Mermaid's


def _reduced(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the edges that no longer way stands for. They must have no circle."""

    def reaches(start: str, end: str) -> bool:
        return start == end or any(reaches(b, end) for a, b in edges if a == start)

    return {(a, b) for a, b in edges if not any(x == a and y != b and reaches(y, b) for x, y in edges)}


def _folder_row(folder: str) -> tuple[str, str, list[Path]]:
    return f"`{folder}/`", _promise(folder), [f for f in graph.FILES if graph.shown(f).startswith(folder + "/")]


def _package_row(folder: str, name: str) -> tuple[str, str, list[Path]]:
    files = _files(folder, name)
    if name in (graph.ROOT_FILES, graph.TOP_FILES):
        says = (ROOT_SAYS if name == graph.ROOT_FILES else TOP_SAYS)[folder]
        return name, f"{says}: {', '.join(f'`{f.name}`' for f in files if f.name != '__init__.py')}.", files
    return f"`{name}/`", _promise(f"{folder}/{name}"), files


def _files(folder: str, package: str) -> list[Path]:
    return [f for f in graph.FILES if graph.package_of(graph.shown(f), folder) == package]


def _promise(folder: str) -> str:
    """Return the first line of a package's docstring."""
    text = ast.get_docstring(graph.tree_of(graph.ROOT / folder / "__init__.py")) or ""
    assert text, f"{folder}/__init__.py has no docstring: say in one line what the package does."
    return text.splitlines()[0]


def _table(rows: list[tuple[str, str, list[Path]]]) -> str:
    lines = ["| package | what it does | files | lines |", "|---|---|---:|---:|"]
    for name, promise, files in rows:
        total = sum(len(f.read_text().splitlines()) for f in files)
        lines.append(f"| {name} | {promise} | {len(files)} | {round(total, -2):,} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
