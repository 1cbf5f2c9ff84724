"""A piece of the fixed part of generated CUDA texts.

Knows nothing of what it defines, nor of who uses it (`linker.py`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """A definition, under the name by which other text uses it. It may use pieces before it.

    An overload is used where `of`, its type, is named as well. `calls`: the mathematical function that it calls.
    """

    name: str
    text: str
    of: str = ""
    calls: str = ""
