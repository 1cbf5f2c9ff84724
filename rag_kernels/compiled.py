"""The old name of `rag_kernels.export.runtime`: files that `--out` wrote before December 2026 import it."""

from rag_kernels.export.runtime import CompiledForward

__all__ = ["CompiledForward"]
