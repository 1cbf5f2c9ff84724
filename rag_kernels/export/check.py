"""Whether an exported package holds what its evidence speaks of: it is written anew from the evidence, and compared.

Comes in: a file or folder that `export` wrote. Goes out: the evidence, and the names of files that are other ones.
Nothing of the package is imported or run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.errors import ProblemError
from rag_kernels.export.evidence import CARD, CARD_OF_BACKWARD, Pulled, of_backwards, of_package, of_variants, opened
from rag_kernels.export.package import Folder, Format, TextFile
from rag_kernels.export.packages import PACKAGES, write_package

TEXTS = frozenset({".py", ".cpp", ".cu", ".h", ".json", ".toml"})
# What holds a licence, which evidence does not know, or the digests of such files.
TOLD = frozenset({CARD, CARD_OF_BACKWARD, "metadata.json", "build.toml", "workload.jsonl", "trace.jsonl"})


@dataclass(frozen=True, slots=True)
class Checked:
    """A package: its evidence, the texts that are not as its evidence has them, and libraries of other bytes."""

    form: str
    attempts: tuple[Attempt, ...]  # one for each kind of device that the package is for
    other_texts: tuple[str, ...]
    other_libraries: tuple[str, ...]  # another compiler makes other bytes of the same source
    backwards: dict[str, Pulled] = field(default_factory=dict)  # kernels for their gradients, by theirs

    @property
    def attempt(self) -> Attempt:
        """The first of them."""
        return self.attempts[0]


def check_package(place: Path) -> Checked:
    """Compare a package with what its evidence would be written as; raises ProblemError where it holds none."""
    if not place.exists():
        raise ProblemError(f"{place} is not there: name a file or folder that `rag-kernels export` wrote.")
    with TemporaryDirectory(prefix="rag-kernels-") as scratch, opened(place, Path(scratch) / "given") as given:
        form, attempt = of_package(given)
        if form not in PACKAGES:
            raise ProblemError(f"{place} is of the form {form!r}, which this version does not know.")
        package = PACKAGES[form]
        others = [found for _, found in of_variants(given)[1:]] if isinstance(package, Folder) and package.joins else []
        made = Path(scratch) / "made"
        made.mkdir()
        backwards = of_backwards(given, attempt)
        written = write_package(
            attempt, form, package.place(made, "anew"), backward=backwards.get(attempt.candidate.id)
        )
        for other in others:
            write_package(other, form, written, backward=backwards.get(other.candidate.id))
        with opened(written, Path(scratch) / "unpacked") as wanted:
            texts, libraries = _differing(given, wanted, package)
    return Checked(form, (attempt, *others), texts, libraries, backwards)


def _differing(given: Path, wanted: Path, package: Format) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if isinstance(package, TextFile):
        if not given.is_file():
            return (given.name,), ()
        same = _without_card(given.read_text(), package) == _without_card(wanted.read_text(), package)
        return (() if same else (given.name,)), ()
    theirs, ours = _files(given), _files(wanted)
    texts = [n for n in theirs.keys() | ours.keys() if Path(n).suffix in TEXTS and Path(n).name not in TOLD]
    other = [name for name in sorted(texts) if theirs.get(name) != ours.get(name)]
    libraries = [n for n in sorted(theirs) if n.endswith(".so") and theirs[n] != ours.get(n)]
    return tuple(other), tuple(libraries)


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def _without_card(text: str, package: TextFile) -> str:
    """Return a file without the comments at its end, which hold the card."""
    return re.sub(rf"(\n{re.escape(package.comment)}[^\n]*)+\s*\Z", "", text.rstrip()).rstrip()
