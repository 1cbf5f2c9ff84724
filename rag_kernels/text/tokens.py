"""The number of tokens of a text, where nobody reports it: one estimate for budgets, retrieval and prompts alike."""

from __future__ import annotations

import math

CHARS_PER_TOKEN = 3.5  # of code, by tokenizers trained on English


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a text has."""
    return math.ceil(len(text) / CHARS_PER_TOKEN)
