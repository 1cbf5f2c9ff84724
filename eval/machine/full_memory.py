"""Is full memory, a GPU's or the host's, behind an error? Comes in: an exception. Goes out: yes or no.

PyTorch's error has a type of its own for its allocator on a GPU alone; elsewhere its words tell, and CUDA's. Knows of
PyTorch by name only: torch is not loaded here.
"""

from __future__ import annotations

TYPES = {"OutOfMemoryError", "MemoryError"}
WORDS = "allocate memory", "not enough memory", "out of memory"


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Return whether it is behind an error; torch.compile raises others from it."""
    while error is not None and not _of_full_memory(error):
        error = error.__cause__ or error.__context__
    return error is not None


def _of_full_memory(error: BaseException) -> bool:
    named = {kind.__name__ for kind in type(error).__mro__}
    return bool(named & TYPES) or (isinstance(error, RuntimeError) and any(words in str(error) for words in WORDS))
