"""The parts that importers share: the protocol, the records that it yields, and functions that clean foreign text.

Comes in: nothing. Goes out: `Importer`, `Skipped`, and small functions. An importer reads files and never runs their
code; it knows nothing of archives.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from rag_kernels.archive.records import ArchiveError, Imported
from rag_kernels.eval.ids import content_id
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import Features, FunctionalProblem, Problem, ProblemError

NOT_FUNCTIONALIZED = "not functionalized here yet: the text is that of its source"
BELIEVABLE = 10.0  # KernelBench itself calls more than ten times as fast as PyTorch suspicious

_PATHS = re.compile(r"(?<![\w:/.*])(?:~|/)(?:[\w.+@~-]+/)+")
_LIBRARY_CALL = re.compile(
    r"\b(?:torch|at)::(linear|matmul|mm|bmm|addmm|baddbmm|conv\w+|einsum|layer_norm|batch_norm|group_norm|softmax|"
    r"max_pool\w+|avg_pool\w+|lstm|gru|scaled_dot_product_attention)\s*\("
)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that cannot be used: its location, and the reason."""

    where: str
    why: str


Read = Imported | Skipped


class Importer(Protocol):
    """One source of kernels. `read` yields what it finds, in the order of the source; a bad row is `Skipped`."""

    def read(self, path: Path) -> Iterator[Read]: ...


class ImportRefused(ArchiveError):
    """The path as a whole is not what the importer reads; the message says what it should be."""


@lru_cache(maxsize=512)
def stated(problem: Problem, functional_source: str, notice: str = NOT_FUNCTIONALIZED) -> FunctionalProblem:
    """Return a functional form from text alone: it can be searched by, and not be judged by, having no
    arguments.

    `functional_source` defines `module_fn`; without one the module itself is described.
    """
    source = functional_source or problem.source
    return FunctionalProblem(
        problem=problem,
        source=source,
        arguments=(),
        constants=(),
        outputs=(),
        nodes=(),
        results=(),
        mutated=(),
        uses_random=False,
        graph_key=content_id("g", "stated", source),
        features=Features((), (), (), 0, 0, 0, 0),
        verified=False,
        notice=notice,
    )


@lru_cache(maxsize=512)
def known_problem(name: str, source: str) -> Problem | str:
    """Return a problem, or the sentence that says why this text is none."""
    try:
        return problem_from_source(name, source)
    except ProblemError as error:
        return str(error)


def without_paths(text: str) -> str:
    """Return the text with folders cut out of absolute paths: they name people and machines. File names stay."""
    return _PATHS.sub("", text)


def microseconds(milliseconds: Any) -> float | None:
    """Return a time in microseconds, or None for one that is missing, negative or not finite."""
    known = number(milliseconds)
    return 1000.0 * known if known is not None and known > 0 else None


def number(value: Any) -> float | None:
    """Return a finite number, or None.

    Raises ValueError for what is no number at all.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    return float(value) if math.isfinite(value) else None


def library_calls(source: str) -> str:
    """Return a note on the operators of PyTorch that a C++ or CUDA source calls; empty when it calls none."""
    found = sorted(set(_LIBRARY_CALL.findall(source)))
    return f"calls PyTorch's own {', '.join(found)}" if found else ""


def too_good(speedup: float | None) -> str:
    """Return a warning for speed-ups that have so far always been faults of the measurement; empty for others."""
    if speedup is None or speedup <= BELIEVABLE:
        return ""
    return f"claims {speedup:.0f} times the speed of PyTorch, which has to be seen here first"


def python_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.py") if file.is_file())


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises ValueError with a sentence when it has none.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"it cannot be read as text: {error}") from error
