"""What a format is: a function that writes an attempt, and what kernels it takes. The files in `forms` make one each.

Comes in: nothing. Goes out: the record `Package`. Knows none of the formats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rag_kernels.archive.records import Attempt
from rag_kernels.export.card import Licence
from rag_kernels.export.evidence import Pulled

WITH_COMPOSED = ("kernel", "composed")


@dataclass(frozen=True, slots=True)
class Package:
    """One format. `suffix` is that of its file, "" for a folder; `tiers` and `backends` are those that it takes.

    `pulled` writes it with a kernel for the gradients, where it can be. `joins` says whether it goes into a folder that
    is there already. `names_itself`: it is given the folder that its file goes to.
    """

    write: Callable[[Attempt, Path, Licence | None], Path]
    suffix: str = ""
    tiers: tuple[str, ...] = ("kernel",)
    backends: tuple[str, ...] = ("cpu", "cuda")
    pulled: Callable[[Attempt, Path, Licence | None, Pulled], Path] | None = None
    joins: Callable[[Attempt, Path], bool] | None = None
    names_itself: bool = False

    @property
    def as_it_is(self) -> bool:
        """Return whether its file is handed on as it is, wherever one file is wanted: else a zip holds what is written.

        Folders are zipped, and what names itself, since its name counts.
        """
        return bool(self.suffix) and not self.names_itself
