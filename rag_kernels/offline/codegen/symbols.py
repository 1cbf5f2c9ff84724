"""Names in a finished text: here alone the offline writer reads what it printed, as a linker does.

Comes in: C. Goes out: the names that stand in it, or the text with other names. Some two hundred places print a size, a
pointer or a piece of fixed text: a note beside each would say again what the text says, and one that is forgotten is a
kernel that does not build. Knows nothing of what a name means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable


def symbols(lines: Iterable[str]) -> dict[str, None]:
    """Return the names and other words of a text in order, each once; those of comments left out."""
    return dict.fromkeys(re.findall(r"\w+", re.sub(r"//.*", "", "\n".join(lines))))


def renamed(lines: Iterable[str], other: Callable[[str], str]) -> str:
    """Return the text with other names, but for those of members."""
    return re.sub(r"(?<![.\w])[A-Za-z_]\w*", lambda found: other(found[0]), "\n".join(lines))
