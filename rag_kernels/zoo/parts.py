"""Split a run of the zoo: which share one process takes, and one report from the rows of all.

Comes in: specimens and honest kernels with `I/N`, or files of rows as `zoo --json` prints them. Goes out: the share, or
the `Seen`s. Rows name their texts, so that the zoo of this version has to have them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rag_kernels.eval.records import Backend, ProblemError
from rag_kernels.eval.zoo.honest.corpus import Honest, cuda_kernels, honest_kernels
from rag_kernels.eval.zoo.specimen import Specimen
from rag_kernels.zoo.report import fine
from rag_kernels.zoo.runner import Seen, Text, chosen, texts_of

BACKENDS: tuple[Backend, ...] = ("cpu", "cuda")


def honest_corpus(backend: Backend) -> list[Honest]:
    return honest_kernels() if backend == "cpu" else cuda_kernels()


def share(specimens: Sequence[Specimen], honest: Sequence[Honest], part: str) -> tuple[list[Specimen], list[Honest]]:
    """Return part `I/N`: every N-th specimen and every N-th honest problem, which costs about as much as any other
    part.

    Specimens go round task by task, honest problems from the one with most kernels on.
    """
    number, of = read_part(part)
    counts = Counter(h.task_source for h in honest)
    mine = {source for source, _ in counts.most_common()[of - number :: of]}
    by_task = sorted(specimens, key=lambda s: s.task)
    return by_task[number - 1 :: of], [h for h in honest if h.task_source in mine]


def read_part(part: str) -> tuple[int, int]:
    """Parse `2/4` as two numbers; raises ValueError with a sentence for anything else."""
    number, _, of = part.partition("/")
    if not (number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise ValueError(f"{part} is no part of a run; write 1/4, 2/4, 3/4 and 4/4 for four parts.")
    return int(number), int(of)


def read(files: Sequence[Path]) -> list[Seen]:
    """Return the texts that were judged, from the rows of several runs; what is no row of a text is passed over."""
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return seen_of([row for row in rows if "kind" in row])


def seen_of(rows: Iterable[dict[str, Any]]) -> list[Seen]:
    """Return rows as texts and verdicts; a text that was judged twice counts by the worse of both.

    Twins with the same source, which parts judge each for itself, count once too. Raises ProblemError for a text that
    this version's zoo does not have.
    """
    named = {
        (backend, text.kind, text.name): (source, text)
        for backend in BACKENDS
        for source, group in texts_of(chosen(backend), honest_corpus(backend), backend).items()
        for text in group
    }
    found: dict[Any, Seen] = {}
    for row in rows:
        key = row["device"], row["kind"], row["name"]
        if key not in named:
            raise ProblemError(f"This version's zoo has no {row['kind']} {row['name']!r}; merge rows of one version.")
        source, text = named[key]
        own = (source, text.candidate) if text.kind == "twin" else key
        if own not in found or fine(found[own]):
            found[own] = _seen(text, row)
    return list(found.values())


def _seen(text: Text, row: dict[str, Any]) -> Seen:
    return Seen(text, frozenset(row["codes"]), row["reason"], row["stage_s"])
