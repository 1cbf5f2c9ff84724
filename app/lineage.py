"""Draw the family of a kernel: a Graphviz text with one clickable box a kernel.

Comes in: a kernel's ancestors and descendants. Goes out: DOT, with every label quoted.
"""

from __future__ import annotations

import json

from rag_kernels.app import show
from rag_kernels.archive.queries import LineageGraph, LineageNode
from rag_kernels.archive.records import Relation

STYLES: dict[Relation, str] = {
    "parent": "solid",
    "crossover": "bold",
    "retrieved": "dashed",
    "transplanted": "dotted",
    "imported": "dotted",
}
NAME_CHARS = 28
DRAWN = 40  # boxes


def nearby(family: LineageGraph, focus: str) -> LineageGraph:
    """Return the part of a large family that can be drawn: the relatives that are fewest steps away, up and down."""
    above: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for edge in family.edges:
        above.setdefault(edge.child, []).append(edge.source)
        below.setdefault(edge.source, []).append(edge.child)
    kept = {focus}
    fronts = [([focus], above), ([focus], below)]
    while any(front for front, _ in fronts) and len(kept) < DRAWN:
        steps = []
        for front, next_to in fronts:
            found = [name for one in front for name in next_to.get(one, ()) if name not in kept]
            found = list(dict.fromkeys(found))[: DRAWN - len(kept)]
            kept |= set(found)
            steps.append((found, next_to))
        fronts = steps
    return LineageGraph(
        tuple(node for node in family.nodes if node.id in kept),
        tuple(edge for edge in family.edges if edge.child in kept and edge.source in kept),
    )


def graph(family: LineageGraph, focus: str) -> str:
    """Return DOT for a family; `focus` is the kernel that is drawn in colour."""
    lines = [
        "digraph lineage {",
        '  rankdir=LR; bgcolor="transparent";',
        '  node [shape=box, style="filled,rounded", fontname="sans-serif", fontsize=11, color="#8C8C8C"];',
        '  edge [fontname="sans-serif", fontsize=10, color="#8C8C8C", fontcolor="#8C8C8C"];',
        *(_node(node, node.id == focus) for node in family.nodes),
        *(
            f'  {_quoted(e.source)} -> {_quoted(e.child)} [label="{e.relation}", style={STYLES[e.relation]}];'
            for e in family.edges
        ),
        "}",
    ]
    return "\n".join(lines)


def _node(node: LineageNode, focus: bool) -> str:
    """Draw a node: a kernel's box leads to its page; a failed candidate or an outside origin has none."""
    name = show.short(node.id) if node.backend else node.id[:NAME_CHARS]
    gain = show.times(node.speedup) if node.speedup is not None else "" if node.trust else "failed"
    text = "\n".join(filter(None, (node.problem_name[:NAME_CHARS], name, gain if node.backend else "")))
    fill = "#BFE3D5" if focus else "#E6EBF1"
    link = f', URL={_quoted(f"kernel?id={node.id}")}, target="_top"' if node.trust else ""
    return f'  {_quoted(node.id)} [label={_quoted(text)}, fillcolor="{fill}", fontcolor="#1B2430"{link}];'


def _quoted(text: str) -> str:
    """Return a DOT string: JSON's escapes for quotes and newlines are DOT's too; a backslash could start an escape."""
    return json.dumps(text.replace("\\", "/"), ensure_ascii=False)
