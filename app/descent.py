"""Find what a kernel was made from: the kernel that it nearly copies, its parent, or the likest that was at hand.

Comes in: an archive and a kernel. Goes out: other kernels, each with what it is to this one and how alike they are.
Reads only.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.archive import browse
from rag_kernels.archive.duck import DuckArchive
from rag_kernels.archive.records import ArchivedKernel, Attempt
from rag_kernels.text.likeness import likeness

NEAR_COPY = "near-copy: "
SOURCES = ("parent", "crossover", "transplanted", "retrieved")  # relations of lineage, the closest first
MOST = 40  # that are looked at
LIKE_ENOUGH = 0.2  # less in common says nothing


@dataclass(frozen=True, slots=True)
class Source:
    """Hold a kernel that another may come from; `share` of the other's text stands in it too."""

    id: str
    problem_name: str
    source: str
    relation: str
    share: float


def likely_sources(archive: DuckArchive, kernel: ArchivedKernel, made: Attempt | None) -> list[Source]:
    """Return the kernels that this one may have been made from, the one that it comes from first.

    That is the kernel which the judge says it nearly copies, else a parent, else the likest of those that its writer
    was shown or that compute the same.
    """
    copied = [label.removeprefix(NEAR_COPY) for label in kernel.labels if label.startswith(NEAR_COPY)]
    shown = [e.kernel_id for e in made.exemplars] if made is not None else []
    known = dict(browse.relatives(archive, kernel.id, [*copied, *shown], MOST))
    found = []
    for name, problem, source in browse.sources(archive, list(known)):
        share = likeness(kernel.source, source)
        near = any(name.startswith(one) for one in copied)
        told = "nearly copied" if near else known[name]
        if near or told in SOURCES or share >= LIKE_ENOUGH:
            found.append(Source(name, problem, source, told, share))
    order = ("nearly copied", *SOURCES)
    return sorted(found, key=lambda s: (order.index(s.relation) if s.relation in order else len(order), -s.share))
