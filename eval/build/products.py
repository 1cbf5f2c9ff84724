"""What a build gives: a candidate's library, and the programs around its functions that sanitizers run.

Comes in: paths. Goes out: records. Knows nothing of compilers and tools.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# Orders between threads that TSan does not see.
_HIDDEN = re.compile(r"\bomp\s+flush\b|\b__sync_synchronize\b|\b_mm_[mls]fence\b|\basm\b|\b__asm")


@dataclass(frozen=True, slots=True)
class Library:
    """What was built of a candidate; `cubin` holds the device code of a split CUDA source."""

    path: Path
    cubin: Path | None = None


@dataclass(frozen=True, slots=True)
class Programs:
    """What was built for the tools; None where it does not build. `why_not_raced` says why there is no second one."""

    checked: Path | None
    raced: Path | None = None
    why_not_raced: str = ""


def can_show_races(source: str) -> bool:
    """Return whether ThreadSanitizer sees all that may order the threads of this C++ source."""
    return _HIDDEN.search(source) is None
