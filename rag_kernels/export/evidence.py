"""What an export rests on: one judgement of a kernel, as a record, and as text that every export carries along.

Comes in: an archive and a kernel; or a package. Goes out: an attempt. Knows nothing of formats.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

from rag_kernels.archive import browse, queries
from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import Attempt
from rag_kernels.eval import codec
from rag_kernels.eval.errors import ProblemError
from rag_kernels.eval.records import Passed
from rag_kernels.ingest.functional.gradients import GradientNames

MARK = "rag-kernels evidence: "
CARD, CARD_OF_BACKWARD = "card.json", "backward.json"
BACKWARD = "backward"  # in a form's place: of the kernel for the gradients
GRADIENTS = "gradients"  # in a form's place: the names of what that kernel takes and gives


@dataclass(frozen=True, slots=True)
class Pulled:
    """The kernel for a forward's gradients, and their names."""

    attempt: Attempt
    names: GradientNames


def evidence(archive: Archive, kernel_id: str) -> Attempt:
    """Return the judgement that speaks best for a kernel, with where the kernel came from.

    Raises ProblemError for a kernel that is unknown, was withdrawn, or no longer holds.
    """
    known = archive.kernel(kernel_id)
    if known is None:
        raise ProblemError(f"The archive has no kernel {kernel_id}; `rag-kernels search` finds ids.")
    if known.retracted:
        raise ProblemError(f"Kernel {known.id} was withdrawn: {known.retracted}")
    if known.stale:
        raise ProblemError(f"Kernel {known.id} no longer holds: {known.stale}")
    problem, judged = archive.evaluation(known.id)
    judged_at = next((e.created_at for e in queries.evaluations(archive, known.id) if e.judged == judged), "")
    first = browse.origin(archive, known.id)
    return Attempt(
        run_id=first.run_id if first else "imported",
        number=first.number if first else 1,
        round=first.round if first else 1,
        problem=problem,
        candidate=known.candidate,
        judged=judged,
        writer=known.writer,
        model=known.model,
        idea=known.idea,
        exemplars=first.exemplars if first else (),
        parents=tuple(edge for edge in archive.lineage(known.id) if edge.child == known.id),
        call_ids=(),
        cost_usd=first.cost_usd if first else None,
        seconds=first.seconds if first else 0.0,
        created_at=judged_at or known.created_at,
    )


def packed(attempt: Attempt) -> str:
    """Return an attempt as one word of ASCII: it holds the problem and the kernel, so it can be judged again."""
    return base64.b64encode(zlib.compress(codec.dumps(attempt).encode(), 9)).decode()


def unpacked(word: str) -> Attempt:
    """Return the attempt; raises ProblemError where the text is not one."""
    try:
        found = codec.loads(zlib.decompress(base64.b64decode(word, validate=True)).decode())
    except (ValueError, zlib.error, KeyError, TypeError) as error:
        raise ProblemError(f"The evidence cannot be read ({error}): export the kernel again.") from error
    if not isinstance(found, Attempt) or not isinstance(found.judged.verdict, Passed):
        raise ProblemError("The evidence is not of a kernel that passed: export the kernel again.")
    return found


def of_package(place: Path) -> tuple[str, Attempt]:
    """Return the format and the evidence of an exported file or folder; raises ProblemError where there is none."""
    if place.suffix == ".whl":
        raise ProblemError(f"Unpack {place.name} first (`unzip`): its package holds {CARD}.")
    if place.is_file():
        found = next((form for form in reversed(_of_file(place)) if form[0] not in (BACKWARD, GRADIENTS)), None)
        if found is None:
            raise ProblemError(
                f"{place} holds no evidence of rag-kernels: it was not exported, or the line was removed."
            )
        return found[0], unpacked(found[1])
    found_first = next(iter(of_variants(place)), None)
    if found_first is None:
        raise ProblemError(f"{place} holds no {CARD} of rag-kernels: name a file or folder that `export` wrote.")
    return found_first


def of_backwards(place: Path, attempt: Attempt) -> dict[str, Pulled]:
    """Return the evidence of kernels for the gradients of a package, by the forward's kernel; `attempt` is a file's."""
    if not place.is_file():
        cards = [json.loads(card.read_text()) for card in place.rglob(CARD_OF_BACKWARD)]
        return {c["forward"]: Pulled(unpacked(c["evidence"]), unpacked_names(c[GRADIENTS])) for c in cards}
    found = dict(_of_file(place))
    if BACKWARD not in found:
        return {}
    return {attempt.candidate.id: Pulled(unpacked(found[BACKWARD]), unpacked_names(found.get(GRADIENTS, "")))}


def packed_names(names: GradientNames) -> str:
    """Return the names of gradients as one word of ASCII."""
    return json.dumps(asdict(names), separators=(",", ":")).replace(" ", r"\u0020")


def unpacked_names(word: str) -> GradientNames:
    """Return the names; raises ProblemError where the text is not of names."""
    try:
        row = json.loads(word)
        names = GradientNames(tuple(row["outputs"]), tuple(row["arguments"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ProblemError(f"The names of gradients cannot be read ({error}): export the kernel again.") from error
    if not all(type(i) is int and i >= 0 for i in names.outputs) or not all(type(n) is str for n in names.arguments):
        raise ProblemError("The names of gradients are of another kind: export the kernel again.")
    return names


def _of_file(place: Path) -> list[tuple[str, str]]:
    """Return formats and evidence in the order of the file, which ends in its own: a kernel's source may hold some."""
    return re.findall(rf"{MARK}(\S+) (\S+)", place.read_text(errors="replace"))


def of_variants(folder: Path) -> list[tuple[str, Attempt]]:
    """Return formats and evidence of all kernels of a folder: packages for several devices hold one for each."""
    cards = sorted(folder.rglob(CARD), key=lambda card: (len(card.parts), str(card)))
    read = [json.loads(card.read_text()) for card in cards]
    by_kernel = {row["kernel"]: (row["form"], row["evidence"]) for row in reversed(read)}
    kernels = dict.fromkeys(row["kernel"] for row in read)
    return [(by_kernel[kernel][0], unpacked(by_kernel[kernel][1])) for kernel in kernels]


def holds(place: Path, form: str, attempt: Attempt) -> bool:
    """Return whether a folder or a wheel holds the evidence of an attempt as this format."""
    with TemporaryDirectory(prefix="rag-kernels-") as scratch, opened(place, Path(scratch) / "opened") as folder:
        held = of_variants(folder)
    return any((name, found.candidate.id) == (form, attempt.candidate.id) for name, found in held)


@contextmanager
def opened(place: Path, scratch: Path) -> Iterator[Path]:
    """Give the folder of a wheel's files, or the place itself."""
    if place.suffix != ".whl":
        yield place
        return
    try:
        with ZipFile(place) as wheel:
            wheel.extractall(scratch)
    except BadZipFile as error:
        raise ProblemError(f"{place} is no wheel ({error}).") from error
    yield scratch
