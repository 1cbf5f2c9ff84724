"""What a search in words names: a kernel by its id, a problem by its name, operators by whatever they are called.

Comes in: the words, and a corpus. Goes out: a number for each kernel, above zero where it is named; what is named comes
before whatever is only alike. Knows nothing of the other signals.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rag_kernels.ingest.description.vocabulary import FAMILIES, is_known, phrases_of, squash
from rag_kernels.retrieval.corpus import Corpus

KERNEL_ID = re.compile(r"\bk_[0-9a-f]{4,}\b")
STAND_IN = 0.5  # of an operator that may stand for the one that is named, or is of its family
BY_ID, BY_WHOLE_NAME, BY_NAME = 8.0, 4.0, 2.5  # above what operators (1) and likeness (below 1) make together
PART_OF_NAME = 0.3  # where the words say more than the name
AS_WRITTEN = 0.2  # of two names for the same, the one that stands in the words


def named(corpus: Corpus, words: str) -> NDArray[np.float32]:
    """Return, for each kernel, how far these words name it: 0 for not at all, 1 for all operators that they name."""
    known = corpus.catalogue
    asked = KERNEL_ID.sub(" ", words)
    found = _by_operators(corpus, asked)[known.functional] + _by_names(known.problem_names, asked)[known.problem_name]
    for kernel_id in KERNEL_ID.findall(words):
        found += BY_ID * np.char.startswith(known.kernel_id, kernel_id.encode())
    return found


def _by_operators(corpus: Corpus, words: str) -> NDArray[np.float32]:
    """Return, for each functional problem, the share of the named operators that it has."""
    phrases = [p for p in phrases_of(words) if is_known(p[0]) or p[0] in FAMILIES]
    found = np.zeros(len(corpus.family), dtype=np.float32)
    for first, *others in phrases:
        has = np.zeros_like(found)
        for other in (first, *others):  # as a family, and what may stand for it
            has[_holders(corpus, other)] = STAND_IN
            has[corpus.graphs.holders(other)] = STAND_IN
        has[_holders(corpus, first)] = 1
        if not is_known(first):
            has[corpus.graphs.holders(first)] = 1
        found += has / len(phrases)
    return found


def _holders(corpus: Corpus, operator: str) -> NDArray[np.int32]:
    """Return the functional problems that have an operator, or an idiom that is known by its name."""
    spelled = [f"{operator}#0"] if operator in FAMILIES else [f"{operator}#0", operator]
    return np.concatenate([corpus.graphs.holders(word) for word in spelled])


def _by_names(names: Sequence[str], words: str) -> NDArray[np.float32]:
    """Return, for each name of a problem, how much of these words it is: as it is written, or word for word."""
    asked, whole = _heads(words), squash(words)
    found = np.zeros(len(names), dtype=np.float32)
    for number, name in enumerate(names):
        heads = _heads(name)
        if heads and heads <= asked:
            found[number] = BY_NAME if heads == asked else PART_OF_NAME * len(heads) / len(asked)
            found[number] += AS_WRITTEN * (squash(name) in whole)
        if squash(name) == whole:
            found[number] = BY_WHOLE_NAME
    return found


@lru_cache(maxsize=65536)
def _heads(text: str) -> frozenset[str]:
    """Return what each phrase is about; numbers that tell files apart are left out."""
    return frozenset(phrase[0] for phrase in phrases_of(text) if not phrase[0].isdigit())
