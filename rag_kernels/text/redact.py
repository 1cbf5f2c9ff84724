"""Remove keys from texts before they are stored, logged or sent.

Comes in: any text. Goes out: the same text with the values of key-like environment variables, and whatever looks
like a well-known provider's key, replaced. It cannot know a secret that is neither.
"""

from __future__ import annotations

import os
import re

REPLACEMENT = "[key removed]"
MIN_CHARS = 8  # shorter values ("true", "none") would hit ordinary words

_SECRET_NAME = re.compile(r"API_?KEY|ACCESS_KEY|_KEY$|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    r"\bsk-[\w*-]{8,}|\bAIza[\w-]{20,}|\bgh[pousr]_\w{20,}|\bhf_\w{20,}|\bAKIA[0-9A-Z]{16}\b"
    r"|(?<=[Bb]earer )[\w.~+/-]{8,}=*|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)


def redact(text: str) -> str:
    """Return `text` without keys; longer keys first, so that one key inside another leaves no rest."""
    for value in sorted(_environment_secrets(), key=len, reverse=True):
        text = text.replace(value, REPLACEMENT)
    return _SECRET_TEXT.sub(REPLACEMENT, text)


def _environment_secrets() -> set[str]:
    """Return values of key-like variables; a path (`GOOGLE_APPLICATION_CREDENTIALS`) is no secret."""
    return {
        value
        for name, value in os.environ.items()
        if _SECRET_NAME.search(name) and len(value) >= MIN_CHARS and not value.startswith("/")
    }
