"""An archive that is gone with the process: for tests and for `--archive :memory:`.

The same code as the file archive over a DuckDB in memory; similarity by comparing with every vector.
"""

from __future__ import annotations

from rag_kernels.archive.database import MemoryDatabase
from rag_kernels.archive.duck import DuckArchive


class MemoryArchive(DuckArchive):
    """Keep an archive in memory, until the process ends."""

    def __init__(self) -> None:
        super().__init__(MemoryDatabase())
