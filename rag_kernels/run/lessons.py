"""The lesson of an archived kernel: what it gained over its parent, by which change, and what the GPU counted.

Comes in: a kernel and the archive. Goes out: a `Lesson`, where one was measured. Knows nothing of prompts.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import unified_diff

from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import ArchivedKernel
from rag_kernels.eval.records import Passed
from rag_kernels.feedback.bottleneck import counted
from rag_kernels.records import Lesson
from rag_kernels.text.called import called_only

LEAST_GAIN = 1.05  # below it chance may have made the difference
SHORT = 0.5  # of the source: a longer diff says less than the source does
CONTEXT_LINES = 1


def lesson_of(kernel: ArchivedKernel, archive: Archive) -> Lesson | None:
    """Return the greatest gain over a parent that was timed on the same problem and device; None without one."""
    edges = [e for e in archive.lineage(kernel.id) if e.child == kernel.id and e.relation in ("parent", "crossover")]
    parents = [parent for e in edges if (parent := archive.kernel(e.source)) is not None]
    found = [lesson for parent in parents if (lesson := _over(kernel, parent)) is not None]
    best = max(found, key=lambda lesson: lesson.gain, default=None)
    return best and replace(best, counted=counted_of(best.parent_id, archive))


def counted_of(kernel_id: str, archive: Archive) -> str:
    """Return what the GPU's counters say of a kernel, in a few words; empty where they were not read."""
    kernel = archive.kernel(kernel_id)
    if kernel is None or kernel.trust == "claimed":  # nobody has judged it
        return ""
    verdict = archive.evaluation(kernel_id)[1].verdict
    return counted(verdict.counters)[1] if isinstance(verdict, Passed) and verdict.counters is not None else ""


def _over(kernel: ArchivedKernel, parent: ArchivedKernel) -> Lesson | None:
    alike = (kernel.problem_id, kernel.device_name) == (parent.problem_id, parent.device_name)
    if not alike or not kernel.candidate_us or not parent.candidate_us:
        return None
    gain = parent.candidate_us / kernel.candidate_us
    return Lesson(parent.id, gain, _change(parent.source, kernel.source)) if gain >= LEAST_GAIN else None


def _change(before: str, after: str) -> str:
    old, new = (called_only(text).splitlines() for text in (before, after))
    lines = list(unified_diff(old, new, lineterm="", n=CONTEXT_LINES))[2:]  # without the names of files
    text = "\n".join(lines)
    return text if len(text) <= SHORT * len(called_only(after)) else ""
