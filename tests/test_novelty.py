"""What counts as the same idea, and as the same kernel: measured on texts of our own."""

from __future__ import annotations

import re
from itertools import combinations

import factories
import pytest

from rag_kernels.ingest.description.embedder import load_embedder
from rag_kernels.llm.novelty import form, repeated_idea, repeated_source

PARAPHRASES = [
    (
        "Fuse the scaling and the softmax into one pass over each row with an online maximum and sum.",
        "Use online softmax: keep a running maximum and sum over the row, and fold the scale into it.",
    ),
    (
        "Vectorize the inner loop with AVX-512 intrinsics and four accumulators to hide latency.",
        "Use AVX-512 intrinsics with four independent accumulators in the inner loop so that latency is hidden.",
    ),
    (
        "Block the matrix product for the L2 cache with tiles and pack B.",
        "Pack B and tile the matmul so that tiles stay in cache.",
    ),
    (
        "Split each row over several thread blocks and combine the partial sums in a second kernel.",
        "Split rows across multiple thread blocks, then combine partial sums in a second kernel launch.",
    ),
    (
        "Write the output with streaming stores so that caches are not polluted.",
        "Use non-temporal stores for the output to keep the caches clean.",
    ),
    (
        "Keep torch.mm for the product and fuse bias, GELU and residual into one kernel afterwards.",
        "Keep the library matmul (torch.mm) and fuse the bias, the GELU and the residual add in a single pass "
        "after it.",
    ),
    (
        "Use a polynomial approximation of exp that is accurate to float precision and vectorizes.",
        "Replace std::exp with a vectorizable polynomial that is accurate to float precision.",
    ),
]


@pytest.fixture(scope="module")
def embed():  # type: ignore[no-untyped-def]
    return load_embedder().embed


def test_paraphrases_are_often_found_and_other_ideas_never(embed) -> None:  # type: ignore[no-untyped-def]
    found = [repeated_idea(b, {"idea 1": a}, embed) for a, b in PARAPHRASES]
    assert sum(map(bool, found)) >= 3
    assert 'Not taken up, since it repeats idea 1: "Use AVX-512' in found[1]
    others = [(a, b) for one, other in combinations(PARAPHRASES, 2) for a in one for b in other]
    assert len(others) == 84
    assert not any(repeated_idea(a, {"idea": b}, embed) for a, b in others)


def test_the_same_idea_with_another_number_is_another_one(embed) -> None:  # type: ignore[no-untyped-def]
    idea = "Tile the rows by 64 so that a tile stays in the L1 cache."
    assert repeated_idea(idea, {"idea 1": idea}, embed)
    assert not repeated_idea(idea.replace("64", "256"), {"idea 1": idea}, embed)
    assert not repeated_idea(idea, {}, embed)


def test_a_kernel_under_other_names_is_the_same_and_told_by_its_number() -> None:
    source = factories.candidate().source
    renamed = re.sub(r"\bv\b", "value", re.sub(r"\bi\b", "idx", source)).replace("scaled", "other")
    dressed = "// My best kernel\n" + renamed.replace("  for", "\n\n      for")
    told = repeated_source(dressed, {"attempt 3": source}, "an idea")
    assert told.startswith("Not built, since it is attempt 3 again but for names and comments") and "an idea" in told


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("v > 0.0f", "v > 1.0f"),
        ("float f", "double f"),
        ("parallel for", "parallel for schedule(dynamic)"),
        ("? v : 0.0f", "? std::exp(v) : 0.0f"),
        ("++i", "i += 4"),
    ],
)
def test_another_constant_type_schedule_or_function_is_another_kernel(old: str, new: str) -> None:
    source = factories.candidate().source
    assert old in source
    assert not repeated_source(source.replace(old, new), {"attempt 1": source}, "")


def test_functions_that_are_called_keep_their_names() -> None:
    assert form("return std::exp(x);") != form("return std::tanh(x);")
    assert form("float a = g(b);") == form("float c = g(b);") != form("float a = h(b);")
