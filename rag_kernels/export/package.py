"""What a format is: what makes a text or a folder of an attempt, and of which kernels. Each file of `forms` is one.

Comes in: nothing. Goes out: the records `TextFile` and `Folder`. Knows none of the formats. What none may forget is not
theirs: `packages` refuses kernels, names files, and puts the evidence under a text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.records import Backend, Tier
from rag_kernels.export.card import Licence
from rag_kernels.export.evidence import Pulled

WITH_COMPOSED: tuple[Tier, ...] = ("kernel", "composed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What every format says of itself. `loaded_by`: who loads what it writes, for users; "" where nobody does.

    `tiers` and `backends` are those of the kernels that it takes; `in_place` whether it takes a problem that writes to
    its arguments or buffers. Other kernels never reach it, nor one that did not pass.
    """

    loaded_by: str
    tiers: tuple[Tier, ...] = ("kernel",)
    backends: tuple[Backend, ...] = ("cpu", "cuda")
    in_place: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile(Package):
    """One file of text; the evidence is put under it as comments, which begin with `comment`.

    `with_gradients` makes it with a kernel for the gradients, where it can be. `refuse` raises ProblemError for the
    whole file, with its evidence.
    """

    text: Callable[[Attempt], str]
    suffix: str
    comment: str
    with_gradients: Callable[[Attempt, Pulled], str] | None = None
    refuse: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        if not self.comment:
            raise ValueError('A TextFile needs what its comments begin with; for plain text, comment="#".')

    def place(self, folder: Path, stem: str) -> Path:
        """Return where it is written in a folder."""
        return folder / f"{stem}{self.suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder(Package):
    """A folder of files, with a `card.json` somewhere that holds the evidence; `write` returns what it wrote.

    `joins` says whether it goes into a folder that is there already. `names_itself`: what is written is one file, whose
    name counts; `write` is given the folder that it goes to.
    """

    write: Callable[[Attempt, Path, Licence | None], Path]
    with_gradients: Callable[[Attempt, Path, Licence | None, Pulled], Path] | None = None
    joins: Callable[[Attempt, Path], bool] | None = None
    names_itself: bool = False

    def place(self, folder: Path, stem: str) -> Path:
        """Return where it is written in a folder."""
        return folder if self.names_itself else folder / stem


Format = TextFile | Folder
