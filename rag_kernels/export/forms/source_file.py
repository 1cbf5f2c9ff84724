"""A kernel as it was judged, and as `rag-kernels eval` takes it: `source`, which carries no evidence.

Comes in: an attempt and a path. Goes out: a file. Knows nothing of the search.
"""

from __future__ import annotations

from pathlib import Path

from rag_kernels.archive.records import Attempt


def write_source(attempt: Attempt, out: Path) -> Path:
    """Write the kernel's source and return the path."""
    out.write_text(attempt.candidate.source)
    return out
