"""Requests that both workers have, and what comes back: each is a record.

`protocol.py` has the rules.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.eval.records import Scalar


@dataclass(frozen=True, slots=True)
class Done:
    """It was done; nothing is to be told."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Stands for a value that JSON has no word for: no candidate can be given it. `what` describes it."""

    what: str


Leaf = Scalar | Unsupported


@dataclass(frozen=True, slots=True)
class Settle:
    """Give memory that nothing holds back to the system, and begin to count anew (GPU): `Done`."""


@dataclass(frozen=True, slots=True)
class TellShared:
    """Tell which results of a call share elements, with each other or with arguments: `Shared`. Of place `at`."""

    at: int = 0


@dataclass(frozen=True, slots=True)
class Shared:
    """What has elements in common, in words of `numerics.common_elements`."""

    found: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TellMemory:
    """Tell what was taken on the GPU since `Settle`: `MemoryTaken`."""


@dataclass(frozen=True, slots=True)
class MemoryTaken:
    """Bytes at most, by torch's allocator and by the driver's; 0 on a CPU, where the judge looks for itself."""

    peak_bytes: int
