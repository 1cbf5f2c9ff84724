"""Distil techniques from lineage: which kernels use one that their parents did not, and what that gained.

Comes in: an archive. Goes out: new rows of evidence, and new cards. A kernel uses a technique where one of the card's
signs is found in its source, comments left out; it proves something where its parent's source has none of them, and
both were timed on the same problem and device. An idea that gained much, and that no card explains, becomes a card.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from rag_kernels.archive.protocol import Tables
from rag_kernels.archive.techniques import Pair, Technique, add_evidence, add_techniques, known_techniques, pairs
from rag_kernels.text.called import called_only

SEEDS = Path(__file__).with_name("techniques.toml")
GAIN = 1.05  # below it, and above its inverse, chance may have made the difference
NEW_GAIN, NEW_PROBLEMS = 1.2, 2  # of an idea, and on how many problems, that becomes a card of its own
TITLE_CHARS = 120
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


@lru_cache(maxsize=1)
def seeds() -> tuple[Technique, ...]:
    """Return the cards that come with the package: what the offline writer and hand-written kernels know."""
    found = tomllib.loads(SEEDS.read_text())["technique"]
    rows: list[dict[str, Any]] = [{n: tuple(v) if isinstance(v, list) else v for n, v in row.items()} for row in found]
    return tuple(Technique(**row) for row in rows)


def distil(archive: Tables) -> tuple[int, int]:
    """Add seeds, evidence and cards for ideas that gained; return how many cards and how many proofs are new."""
    there = {known.technique.id for known in known_techniques(archive)}
    cards = add_techniques(archive, [seed for seed in seeds() if seed.id not in there])
    known = [one.technique for one in known_techniques(archive)]
    measured = [pair for pair in pairs(archive) if not 1 / GAIN < pair.gain < GAIN]
    proofs = [(card, pair) for pair in measured for card in known if card.signs and brings(card, pair)]
    explained = {(pair.child, pair.parent) for _, pair in proofs}
    fresh = _new_cards([pair for pair in measured if (pair.child, pair.parent) not in explained])
    cards += add_techniques(archive, [card for card in fresh if card.id not in {k.id for k in known}])
    proofs += [(card, pair) for card, proving in fresh.items() for pair in proving]
    return cards, add_evidence(archive, proofs)


def brings(card: Technique, pair: Pair) -> bool:
    """Return whether the child uses the technique and its parent does not."""
    return (
        pair.backend in card.backends
        and uses(pair.child_source, card.signs)
        and not uses(pair.parent_source, card.signs)
    )


def uses(source: str, signs: Sequence[str]) -> bool:
    """Return whether any sign is found in what a source calls."""
    text = _plain(source)
    return any(re.search(sign, text) for sign in signs)


@lru_cache(maxsize=4096)
def _plain(source: str) -> str:
    return _COMMENT.sub(" ", called_only(source))


def _new_cards(unexplained: Sequence[Pair]) -> dict[Technique, list[Pair]]:
    """Return a card for each idea that gained on several problems, with what proves it and what speaks against it."""
    by_idea: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in unexplained:
        text = " ".join(pair.idea.split())
        if text:
            by_idea[text, pair.backend].append(pair)
    found: dict[Technique, list[Pair]] = {}
    for (text, backend), group in by_idea.items():
        won = [pair for pair in group if pair.gain >= NEW_GAIN]
        if len({pair.problem_id for pair in won}) >= NEW_PROBLEMS:
            title = text if len(text) <= TITLE_CHARS else text[:TITLE_CHARS].rsplit(" ", 1)[0] + " ..."
            dtypes = tuple(sorted({dtype for pair in won for dtype in pair.dtypes}))
            card = Technique(title=title, advice=text, backends=(backend,), dtypes=dtypes, origin="lineage")
            found[card] = group
    return found
