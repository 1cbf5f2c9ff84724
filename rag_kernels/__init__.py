"""Faster kernels for PyTorch modules: written, proved right, timed honestly, and remembered.

    import rag_kernels
    for attempt in rag_kernels.generate("problem.py", device="cpu"):
        print(attempt.judged.verdict)

Names are imported when they are first used, so that `import rag_kernels` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rag_kernels.api import evaluate, export_kernel, functionalize, generate
    from rag_kernels.archive.memory import MemoryArchive
    from rag_kernels.archive.protocol import Archive
    from rag_kernels.best import Best, apply, optimize
    from rag_kernels.eval.errors import RagKernelsError
    from rag_kernels.eval.judge import Judge
    from rag_kernels.eval.records import Candidate
    from rag_kernels.long_runs.growth import Grown, grow
    from rag_kernels.options import Options
    from rag_kernels.records import Brief, Budget, Draft, Gained, Learnt, Past, Shown, StreamingWriter, Writer
    from rag_kernels.retrieval.find import find_kernels
    from rag_kernels.run.session import Session
    from rag_kernels.run.standings import winner
    from rag_kernels.scripted import ScriptedJudge, ScriptedLLM, ScriptedWriter
    from rag_kernels.wiring import open_session

__all__ = [
    "Archive",
    "Best",
    "Brief",
    "Budget",
    "Candidate",
    "Draft",
    "Gained",
    "Grown",
    "Judge",
    "Learnt",
    "MemoryArchive",
    "Options",
    "Past",
    "RagKernelsError",
    "ScriptedJudge",
    "ScriptedLLM",
    "ScriptedWriter",
    "Session",
    "Shown",
    "StreamingWriter",
    "Writer",
    "apply",
    "evaluate",
    "export_kernel",
    "find_kernels",
    "functionalize",
    "generate",
    "grow",
    "open_session",
    "optimize",
    "winner",
]

_HOMES = {
    "rag_kernels.api": ("evaluate", "export_kernel", "functionalize", "generate"),
    "rag_kernels.archive.memory": ("MemoryArchive",),
    "rag_kernels.archive.protocol": ("Archive",),
    "rag_kernels.best": ("Best", "apply", "optimize"),
    "rag_kernels.eval.errors": ("RagKernelsError",),
    "rag_kernels.eval.judge": ("Judge",),
    "rag_kernels.eval.records": ("Candidate",),
    "rag_kernels.long_runs.growth": ("Grown", "grow"),
    "rag_kernels.options": ("Options",),
    "rag_kernels.records": (
        "Brief",
        "Budget",
        "Draft",
        "Gained",
        "Learnt",
        "Past",
        "Shown",
        "StreamingWriter",
        "Writer",
    ),
    "rag_kernels.retrieval.find": ("find_kernels",),
    "rag_kernels.run.session": ("Session",),
    "rag_kernels.run.standings": ("winner",),
    "rag_kernels.scripted": ("ScriptedJudge", "ScriptedLLM", "ScriptedWriter"),
    "rag_kernels.wiring": ("open_session",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'rag_kernels' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
