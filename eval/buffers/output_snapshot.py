"""Short images of outputs: two calls with other content must not show the same one.

Comes in: bytes that the judge reads or has been handed. Goes out: bytes to compare.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rag_kernels.eval.buffers.parallel_copy import same_bytes
from rag_kernels.eval.buffers.shared_arena import Arena


@dataclass(frozen=True, slots=True)
class OutputSnapshot:
    """What a call wrote, where its candidate cannot reach it: bytes here (CPU), or under a number at the reference
    worker, with the fingerprint that this one makes of them (GPU)."""

    copies: tuple[NDArray[np.uint8], ...] = ()
    number: int | None = None
    hash: str = ""
    lent: bool = False  # its bytes lie where those of the next one will

    def digest(self) -> bytes:
        return self.hash.encode() or digest(self.copies)

    def is_in(self, outputs: Arena) -> bool:
        """Return whether this is what outputs hold now (CPU)."""
        return all(same_bytes(raw, outputs.bytes(index)) for index, raw in enumerate(self.copies))


def image(raw: NDArray[np.uint8]) -> bytes:
    """Return a sum of all bytes and a sample of them."""
    words, rest = raw[: len(raw) // 8 * 8].view(np.uint64), raw[len(raw) // 8 * 8 :]
    return int(words.sum()).to_bytes(8, "little") + words[:: max(1, len(words) // 64)].tobytes() + rest.tobytes()


def digest(outputs: Sequence[NDArray[np.uint8]]) -> bytes:
    """Return the fingerprint that a worker gives of tensors where they are, made of bytes that it handed over."""
    made = hashlib.blake2b(digest_size=16)
    for raw in outputs:
        words = raw[: len(raw) // 8 * 8].view(np.int64)
        if len(raw):
            made.update(int(words.sum()).to_bytes(8, "little", signed=True))
            made.update(raw[8 * len(words) :].tobytes())
            made.update(raw[:: max(1, len(raw) // 64)][:64].tobytes())
    return made.hexdigest().encode()
