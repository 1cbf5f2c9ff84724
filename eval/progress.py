"""What is being waited for, as messages of one logger: a live view listens, and `--debug` shows them.

Comes in: a few words, when something begins that takes a while. Goes out: log records at DEBUG. `wanted`, how many
candidates are to be judged, goes along where it is known. Knows nothing of terminals.
"""

from __future__ import annotations

import logging

PROGRESS = logging.getLogger(__name__)


def doing(what: str, *, wanted: int | None = None) -> None:
    """Say what begins now: "timing", "building 3 candidates"..."""
    PROGRESS.debug(what, extra={} if wanted is None else {"wanted": wanted})
