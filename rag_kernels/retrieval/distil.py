"""Distil techniques from lineage: which kernels use one that their parents did not, and what that gained.

Comes in: an archive. Goes out: new rows of evidence, and new cards. A kernel uses a technique where one of the card's
signs is found in its source, comments and checks of arguments left out. A kernel and what was made from it prove
something where one of them uses a technique and the other does not, and both were timed on the same problem and device:
what the use gains, whichever of them came first. A pair that differs by several cards for such a problem proves none of
them. An idea that gained much, and that no card explains, becomes a card; not what changes numbers of a text alone.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rag_kernels.archive.protocol import Tables
from rag_kernels.archive.techniques import Pair, Technique, add_evidence, add_techniques, known_techniques, pairs
from rag_kernels.ingest.description.describe import functional_text
from rag_kernels.records import TUNE
from rag_kernels.retrieval.card_sizes import extent_of, operators_of, within
from rag_kernels.text.called import called_only

SEEDS = Path(__file__).with_name("techniques.toml")
GAIN = 1.05  # below it, and above its inverse, chance may have made the difference
NEW_GAIN, NEW_PROBLEMS = 1.2, 2  # of an idea, and on how many problems, that becomes a card of its own
TITLE_CHARS = 120
_SAID = re.compile(r"//[^\n]*|/\*.*?\*/|RK_CHECK\(.*?\);", re.DOTALL)


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
    differing = [(pair, differ_by(pair, known)) for pair in measured]
    proofs = [(cards_of[0], by_use(cards_of[0], pair)) for pair, cards_of in differing if len(cards_of) == 1]
    fresh = _new_cards([pair for pair, cards_of in differing if not cards_of])
    cards += add_techniques(archive, [card for card in fresh if card.id not in {k.id for k in known}])
    proofs += [(card, pair) for card, proving in fresh.items() for pair in proving]
    return cards, add_evidence(archive, proofs)


def differ_by(pair: Pair, cards: Sequence[Technique]) -> list[Technique]:
    """Return the cards that one kernel of a pair uses and the other does not: those for such operators, dtypes and
    sizes alone, if any is.
    """
    found = [
        card
        for card in cards
        if card.signs
        and pair.backend in card.backends
        and uses(pair.child_source, card.signs) != uses(pair.parent_source, card.signs)
    ]
    families = set(functional_text(pair.functional_source, pair.operators).split())
    extent = extent_of(pair.shapes)
    meant = [
        card
        for card in found
        if (not card.operators or operators_of(card, families))
        and (not card.dtypes or set(card.dtypes) & set(pair.dtypes))
        and within(card, extent)
    ]
    return meant or found


def by_use(card: Technique, pair: Pair) -> Pair:
    """Return a pair with the kernel that uses a technique as its child, and with what that gains."""
    if uses(pair.child_source, card.signs):
        return pair
    return replace(pair, child=pair.parent, parent=pair.child, gain=1 / pair.gain)


def uses(source: str, signs: Sequence[str]) -> bool:
    """Return whether any sign is found in what a source calls."""
    text = _plain(source)
    return any(re.search(sign, text) for sign in signs)


@lru_cache(maxsize=4096)
def _plain(source: str) -> str:
    return _SAID.sub(" ", called_only(source))


def _new_cards(unexplained: Sequence[Pair]) -> dict[Technique, list[Pair]]:
    """Return a card for each idea that gained on several problems, with what proves it and what speaks against it."""
    by_idea: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in unexplained:
        text = " ".join(pair.idea.split())
        if text and not text.startswith(TUNE):
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
