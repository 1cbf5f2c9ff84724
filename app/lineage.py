"""Choose what of a large family of kernels can be shown. `fragments.tree` draws it.

Comes in: a kernel's ancestors and descendants. Goes out: the part that is nearest to it.
"""

from __future__ import annotations

from rag_kernels.archive.queries import LineageGraph

DRAWN = 40  # kernels


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
