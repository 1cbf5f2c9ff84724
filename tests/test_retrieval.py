"""Retrieval over a real archive in memory with the built-in embedder."""

import math
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from factories import attempt, candidate, compiled, linear_problem, passed, problem, run, wrong

from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import ArchivedKernel, Exemplar
from rag_kernels.archive.store import open_archive
from rag_kernels.choices import RetrievalMode
from rag_kernels.eval.records import Candidate, FunctionalProblem
from rag_kernels.eval.zoo.tasks import cpp
from rag_kernels.feedback.bottleneck import Bottleneck
from rag_kernels.ingest.description.embedder import load_embedder
from rag_kernels.ingest.description.pipeline import index_attempt, reindex
from rag_kernels.retrieval.bm25 import Postings
from rag_kernels.retrieval.rank_fusion import diversify, foremost, fuse, jaccard, places
from rag_kernels.retrieval.retriever import LEAST_RELEVANT, Hit, RetrievalLimits, Retriever
from rag_kernels.retrieval.starter import stock
from rag_kernels.retrieval.weights import MOST

EMBEDDER = load_embedder()
SHAPE = (64, 1024)


class Shelf:
    """An archive that is filled by one line a kernel."""

    def __init__(self) -> None:
        self.archive = MemoryArchive()
        self.archive.start_run(run("run1"))
        self.retriever = Retriever(self.archive, EMBEDDER)
        self.number = 0

    def add(
        self, fp: FunctionalProblem, *, speedup: float = 2.0, made: Candidate | None = None, **changes: object
    ) -> str:
        """Record and index one passing attempt; returns its kernel id."""
        self.number += 1
        made = made or Candidate(f"// kernel {self.number}\nvoid f();\n", "kernel", "cpu")
        verdict = changes.pop("verdict", passed(speedup))
        tried = attempt("run1", self.number, fp, candidate=made, verdict=verdict, **changes)  # type: ignore[arg-type]
        self.archive.record_attempt(tried)
        index_attempt(self.archive, tried, EMBEDDER)
        return made.id

    def show(
        self, fp: FunctionalProblem, mode: RetrievalMode = "hybrid", count: int = 3, **options: object
    ) -> list[str]:
        given = {"seed": 0, "token_budget": 6000, "for_reading": True, **options}
        asked = {name: given.pop(name) for name in ("seed", "token_budget", "for_reading")}
        limits = RetrievalLimits(backend="cpu", **given)  # type: ignore[arg-type]
        shown = self.retriever.exemplars(fp, mode=mode, count=count, limits=limits, **asked)  # type: ignore[arg-type]
        assert [s.exemplar.kernel_id for s in shown] == [s.kernel.id for s in shown]
        assert [s.exemplar.rank for s in shown] == list(range(1, len(shown) + 1))
        return [s.kernel.id for s in shown]

    def find(self, query: str | FunctionalProblem, mode: RetrievalMode = "hybrid", **limits: object) -> list[Hit]:
        return self.retriever.search(query, mode=mode, limits=RetrievalLimits(**limits))  # type: ignore[arg-type]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def test_the_same_graph_at_other_sizes_comes_first_and_says_so(shelf: Shelf) -> None:
    shelf.add(problem("sigmoid"))
    shelf.add(linear_problem())
    same = shelf.add(problem("tanh", 0.5, (8, 16)), speedup=1.1)
    shown = shelf.retriever.exemplars(problem("tanh", 3.0, SHAPE), mode="hybrid", count=3, limits=RetrievalLimits())
    assert shown[0].kernel.id == same and shown[0].exemplar.score > 1
    assert {"same graph", "bm25 rank 1", "dense 1.00", "same rank and dtype"} <= set(shown[0].exemplar.reasons)
    assert any(reason.startswith("lost, 0.9x on Test CPU") for reason in shown[0].exemplar.reasons)
    assert all("same graph" not in s.exemplar.reasons for s in shown[1:])


def test_the_best_kernels_of_one_graph_leave_half_the_room_for_others(shelf: Shelf) -> None:
    kernels = {speedup: shelf.add(problem("relu"), speedup=speedup) for speedup in (1.2, 4.0, 2.0, 1.5)}
    other = shelf.add(problem("tanh"))
    found = shelf.show(problem("relu", 7.0), count=4)
    assert found[:2] == [kernels[4.0], kernels[2.0]]
    assert other in found


def test_a_like_problem_is_shown_before_an_unlike_one(shelf: Shelf) -> None:
    far = shelf.add(linear_problem())
    near = shelf.add(problem("tanh"))
    for mode in ("bm25", "dense", "hybrid"):
        assert shelf.show(problem("sigmoid"), mode, 1) == [near], mode
    assert shelf.show(linear_problem(8, 8, 8), "hybrid", 1) == [far]


def test_off_shows_none_and_a_count_of_none_neither(shelf: Shelf) -> None:
    shelf.add(problem())
    assert shelf.show(problem(), "off") == []
    assert shelf.show(problem(), "hybrid", 0) == []
    assert Shelf().show(problem()) == []


def test_random_is_drawn_from_all_by_seed_and_looks_at_no_likeness(shelf: Shelf) -> None:
    kernels = [shelf.add(problem(op, f)) for op in ("relu", "tanh", "abs", "exp") for f in (1.0, 2.0)]
    draws = [shelf.show(problem("relu", 1.0), "random", 3, seed=seed) for seed in range(30)]
    assert draws[0] == shelf.show(problem("relu", 1.0), "random", 3, seed=0)
    assert {kernel_id for drawn in draws for kernel_id in drawn} == set(kernels)
    same = sum(kernel_id in kernels[:2] for drawn in draws for kernel_id in drawn) / 90
    assert 0.1 < same < 0.4  # a quarter of the archive is the same graph, and so is a quarter of what is drawn


def test_only_this_backend_is_shown(shelf: Shelf) -> None:
    gpu = shelf.add(problem(), made=candidate(problem(), backend="cuda"))
    assert shelf.show(problem()) == []
    assert [h.kernel.id for h in shelf.find(problem())] == [gpu]
    assert shelf.find(problem(), backend="cpu") == []


def test_retracted_compiled_and_failed_ones_are_never_shown(shelf: Shelf) -> None:
    bad = shelf.add(problem())
    shelf.add(problem(), verdict=compiled(), made=candidate(problem(), variant=5))
    shelf.add(problem(), verdict=wrong(), made=candidate(problem(), variant=6))
    assert shelf.show(problem()) == [bad]
    shelf.archive.retract(bad, "it read the answer from the reference")
    assert shelf.show(problem()) == [] and shelf.find("relu") == [] and shelf.show(problem(), "random") == []


def test_leave_problem_out(shelf: Shelf) -> None:
    own, other = problem("relu"), problem("tanh")
    shelf.add(own)
    kept = shelf.add(other)
    for mode in ("random", "bm25", "dense", "hybrid"):
        assert shelf.show(own, mode, exclude_problem_ids=(own.problem.id,)) == [kept], mode


def test_leave_family_out(shelf: Shelf) -> None:
    shelf.add(problem("relu"))
    shelf.add(problem("tanh"))
    kept = shelf.add(linear_problem())
    for mode in ("random", "bm25", "dense", "hybrid"):
        assert shelf.show(problem("sigmoid"), mode, exclude_family=True) in ([kept], []), mode
    assert shelf.show(problem("sigmoid"), "random", exclude_family=True) == [kept]
    assert kept not in [h.kernel.id for h in shelf.find(linear_problem(4, 4, 4), exclude_family=True)]


def test_another_rank_is_told_and_weighs_less(shelf: Shelf) -> None:
    other_rank = shelf.add(problem("tanh", 2.0, (4, 4, 32, 32)))
    same_rank = shelf.add(problem("tanh", 2.0, (64, 64), name="flat"))
    hits = {hit.kernel.id: hit for hit in shelf.find(problem("sigmoid", 2.0, SHAPE))}
    assert hits[same_rank].score > hits[other_rank].score
    assert "another rank" in hits[other_rank].reasons and "same rank and dtype" in hits[same_rank].reasons


def test_of_equally_like_kernels_the_faster_comes_first(shelf: Shelf) -> None:
    kernels = {speedup: shelf.add(problem("tanh"), speedup=speedup) for speedup in (0.5, 8.0, 1.5)}
    assert [h.kernel.id for h in shelf.find(problem("sigmoid"))] == [kernels[8.0], kernels[1.5], kernels[0.5]]


def test_what_led_to_faster_kernels_comes_before_its_equal(shelf: Shelf) -> None:
    twins = [shelf.add(problem("tanh")) for _ in range(2)]
    for number in range(2):
        seen = (Exemplar(twins[1], 1, 1.0, ()),)
        shelf.add(problem("exp", float(number + 1)), speedup=1.5, parents=(twins[1],), exemplars=seen)
    hits = [hit for hit in shelf.find(problem("sigmoid")) if hit.kernel.id in twins]
    assert hits[0].kernel.id == twins[1] and "led to 2 faster kernels" in hits[0].reasons
    assert not any("led to" in reason for reason in hits[1].reasons)


def test_what_was_merely_in_view_led_to_nothing(shelf: Shelf) -> None:
    seen = shelf.add(problem("tanh"))
    shelf.add(problem("exp"), speedup=1.5, parents=(), exemplars=(Exemplar(seen, 1, 1.0, ()),))
    assert not [r for hit in shelf.find(problem("sigmoid")) for r in hit.reasons if "led to" in r]


def test_near_copies_do_not_stand_side_by_side_for_a_reader(shelf: Shelf) -> None:
    text = cpp("softmax")
    best = shelf.add(problem("tanh"), speedup=3.0, made=Candidate(text, "kernel", "cpu"))
    renamed = Candidate(text.replace("total", "whole"), "kernel", "cpu")
    copy = shelf.add(problem("tanh", 0.5), speedup=2.0, made=renamed)
    other = shelf.add(problem("relu"), made=Candidate(cpp("layernorm"), "kernel", "cpu"))
    asked = problem("sigmoid")
    assert set(shelf.show(asked)) == {best, other}
    assert set(shelf.show(asked, for_reading=False)) == {best, copy, other}


def test_what_is_hardly_relevant_is_not_shown_to_a_reader() -> None:
    """Most of the starter archive's kernels for a GPU have nothing to teach about this problem."""
    archive, limits = MemoryArchive(), RetrievalLimits(backend="cuda")
    stock(archive, EMBEDDER)
    asked = partial(Retriever(archive, EMBEDDER).exemplars, linear_problem(), mode="hybrid", count=100, limits=limits)
    shown, everything = (asked(token_budget=10**6, for_reading=reads) for reads in (True, False))
    least = LEAST_RELEVANT / MOST / 3
    assert 0 < len(shown) < len(everything) == 100
    assert all(s.exemplar.score >= least for s in shown) and min(s.exemplar.score for s in everything) < least


def test_what_has_little_in_common_or_is_known_to_lose_is_not_shown_to_a_reader(shelf: Shelf) -> None:
    near, slow = shelf.add(problem("tanh"), speedup=2.0), shelf.add(problem("relu"), speedup=0.5)
    far = shelf.add(linear_problem())
    asked = problem("sigmoid")
    assert shelf.show(asked) == [near]
    assert set(shelf.show(asked, for_reading=False)) == {near, slow, far}
    assert shelf.show(problem("relu", 7.0))[0] == slow  # the same graph, that may be the only one
    fast = shelf.add(problem("relu", 3.0), speedup=2.0)
    assert slow not in shelf.show(problem("relu", 7.0), token_budget=10**6) and fast in shelf.show(problem("relu", 7.0))


def test_of_another_kind_of_operator_only_what_gains_under_the_same_ceiling_is_shown(shelf: Shelf) -> None:
    level, gains = shelf.add(problem("tanh"), speedup=1.25), shelf.add(problem("relu"), speedup=2.0)
    own = shelf.add(problem("exp"), speedup=1.25)  # as fast as the better baseline, like the first
    asked = problem("exp", 7.0)
    limits = RetrievalLimits()

    def shown(fp: FunctionalProblem, ridge: float) -> set[str]:
        found = shelf.retriever.exemplars(fp, mode="hybrid", count=3, limits=limits, ridge=ridge)
        return {one.kernel.id for one in found}

    assert shown(asked, 1e9) == {gains, own}
    by_products = replace(asked, features=replace(asked.features, flops=asked.features.bytes_moved * 1e4))
    assert shown(by_products, 100.0) == {own}
    assert level in shown(problem("relu", 7.0), 1e9)  # of the same kind it is shown


def test_a_kernel_is_improved_by_what_is_nearer_to_its_floor(shelf: Shelf) -> None:
    """Of another kind of operator nothing is shown that is farther from its floor than what the writer has."""
    held = passed(2.0)
    near = replace(held, measurement=replace(held.measurement, floor_us=0.9 * held.measurement.candidate_us))
    far = replace(held, measurement=replace(held.measurement, floor_us=0.4 * held.measurement.candidate_us))
    kernels = [shelf.add(problem("relu"), verdict=near), shelf.add(problem("tanh"), verdict=far)]
    own = shelf.add(problem("exp", 3.0), verdict=far)
    limits, asked = RetrievalLimits(), problem("exp", 7.0)
    for reached, expected in ((0.3, {*kernels, own}), (0.8, {kernels[0], own}), (0.95, {own})):
        so_far = Bottleneck("memory", "memory bandwidth", 1e9, reached)
        found = shelf.retriever.exemplars(asked, mode="hybrid", count=3, limits=limits, bottleneck=so_far, ridge=1e9)
        assert {one.kernel.id for one in found} == expected, reached


def test_products_of_the_same_numbers_teach_each_other_where_arithmetic_is_the_ceiling(shelf: Shelf) -> None:
    """Whatever they are built around; by the words alone a product has nothing for attention."""
    product = shelf.add(linear_problem())
    asked = problem("sigmoid")
    bound = replace(asked, features=replace(asked.features, flops=asked.features.bytes_moved * 1e4))
    limits = RetrievalLimits()
    for fp, ridge, expected in ((bound, 0.001, [product]), (bound, 1e9, []), (asked, 0.001, [])):
        shown = shelf.retriever.exemplars(fp, mode="hybrid", count=3, limits=limits, ridge=ridge)
        assert [s.kernel.id for s in shown] == expected, (fp.features.flops, ridge)


def test_the_token_budget_counts_what_a_source_calls(shelf: Shelf) -> None:
    unused = "".join(f"inline float unused_{n}(float x) {{ return x + {n}; }}\n" for n in range(200))
    long = shelf.add(problem("relu"), made=Candidate(unused + cpp("softmax"), "kernel", "cpu"))
    assert shelf.show(problem("relu", 5.0), token_budget=1000) == [long]


def test_exemplars_fit_the_token_budget(shelf: Shelf) -> None:
    long = shelf.add(problem("relu"), made=Candidate("// " + "x" * 9000, "kernel", "cpu"))
    short = shelf.add(problem("tanh"))
    assert shelf.show(problem("relu", 5.0), count=2) == [long, short]
    assert shelf.show(problem("relu", 5.0), count=2, token_budget=2000) == [short]
    assert shelf.show(problem("relu", 5.0), count=2, token_budget=1) == []


def test_many_copies_of_one_problem_do_not_crowd_out_others(shelf: Shelf) -> None:
    copies = [shelf.add(problem("tanh"), speedup=3.0) for _ in range(12)]
    other = shelf.add(problem("relu"))
    found = shelf.show(problem("sigmoid"), count=3)
    assert other in found and set(found) & set(copies)


def test_words_find_kernels_by_operators_by_synonyms_and_by_name(shelf: Shelf) -> None:
    relu = shelf.add(problem("relu", name="clipped_widget"))
    linear = shelf.add(linear_problem())
    asked = {"gemm with relu": linear, "fully connected": linear, "scaled relu": relu, "widget": relu}
    for query, best in asked.items():
        assert shelf.find(query)[0].kernel.id == best, query
    assert shelf.find("triplet margin zebra") == []
    assert shelf.find("") == []


def test_each_mode_gives_only_its_own_reasons(shelf: Shelf) -> None:
    shelf.add(problem("tanh"))
    [words] = shelf.find("tanh", mode="bm25")
    [vectors] = shelf.find("tanh", mode="dense")
    [both] = shelf.find("tanh", mode="hybrid")
    assert all(0 < hit.score < 1 for hit in (words, vectors)) and 1 < both.score < 2  # 1 for the operator that is named
    told = [{reason.split()[0] for reason in hit.reasons} & {"bm25", "dense"} for hit in (words, vectors, both)]
    assert told == [{"bm25"}, {"dense"}, {"bm25", "dense"}]


def test_the_order_does_not_depend_on_the_order_of_arrival() -> None:
    problems = [problem(op, f) for op in ("tanh", "exp", "abs") for f in (1.0, 2.0)]
    orders = []
    for arranged in (problems, problems[::-1]):
        shelf = Shelf()
        for fp in arranged:
            shelf.add(fp, made=Candidate(f"// {fp.problem.id}", "kernel", "cpu"))
        orders.append(shelf.show(problem("sigmoid"), count=4))
    assert orders[0] == orders[1]


def test_reindex_fills_what_is_missing_and_once_only(shelf: Shelf) -> None:
    made = [
        attempt("run1", n, problem(op), candidate=Candidate(f"// {op}", "kernel", "cpu"))
        for n, op in enumerate(("relu", "tanh", "abs"), 1)
    ]
    for tried in made:
        shelf.archive.record_attempt(tried)
    assert shelf.find(problem("relu"), mode="dense")[0].reasons[:1] == ("same graph",)  # found by key alone
    assert reindex(shelf.archive, EMBEDDER) == 3
    assert reindex(shelf.archive, EMBEDDER) == 0
    assert shelf.find("tanh", mode="dense")[0].kernel.id == made[1].candidate.id


def test_another_model_fills_its_own_index(shelf: Shelf) -> None:
    kernel = shelf.add(problem("tanh"))
    other = replace(EMBEDDER, name="other", weights=EMBEDDER.weights[:, :16].copy())  # type: ignore[type-var]
    by_other = Retriever(shelf.archive, other)
    assert by_other.search("tanh", mode="dense") == []
    assert reindex(shelf.archive, other) == 1
    assert [h.kernel.id for h in by_other.search("tanh", mode="dense")] == [kernel]
    assert [h.kernel.id for h in shelf.find("tanh", mode="dense")] == [kernel]


def test_a_failed_attempt_is_not_indexed(shelf: Shelf) -> None:
    tried = attempt("run1", 1, problem(), verdict=wrong())
    shelf.archive.record_attempt(tried)
    assert index_attempt(shelf.archive, tried, EMBEDDER) is False
    assert shelf.archive.stats()["embeddings"] == 0


def test_the_archive_in_a_folder_gives_the_same_and_the_query_path_imports_no_torch(tmp_path: Path) -> None:
    archive = open_archive(tmp_path)
    tried = attempt("run1", 1, problem("tanh"))
    archive.start_run(run("run1"))
    archive.record_attempt(tried)
    reindex(archive, EMBEDDER)
    [hit] = Retriever(archive, EMBEDDER).search("tanh")
    code = (
        "import sys\nfrom rag_kernels.archive.store import open_archive\n"
        "from rag_kernels.ingest.description.embedder import load_embedder\n"
        "from rag_kernels.retrieval.retriever import Retriever\n"
        "hits = Retriever(open_archive(sys.argv[1]), load_embedder()).search('hyperbolic tanh')\n"
        "heavy = {'torch', 'sentence_transformers', 'litellm', 'chromadb', 'scipy'}\n"
        "print(hits[0].kernel.id, sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == f"{hit.kernel.id} []\n"


def test_bm25_gives_nothing_for_unknown_words_and_more_for_rare_ones() -> None:
    words = Postings([["conv", "relu"], ["conv", "gelu"], ["conv", "relu", "pool"]])
    assert words.bm25(["zebra"]).tolist() == [0.0, 0.0, 0.0]
    assert Postings([]).bm25(["conv"]).tolist() == []
    assert int(words.bm25(["conv", "gelu"]).argmax()) == 1


def test_bm25_is_the_formula() -> None:
    documents = [["a", "b", "b"], ["a"], ["c", "a", "d", "e"]]
    scores = Postings(documents).bm25(["b", "a"])
    for tokens, score in zip(documents, scores, strict=True):
        expected = 0.0
        for token in ("b", "a"):
            holders = sum(token in other for other in documents)
            rarity = math.log(1 + (3 - holders + 0.5) / (holders + 0.5))
            often = tokens.count(token)
            expected += rarity * often / (often + 1.5 * (1 - 0.75 + 0.75 * len(tokens) / (8 / 3)))
        assert score == pytest.approx(expected, rel=1e-5)


def test_shared_tokens_over_all_tokens_counted_as_far_as_they_are_rare() -> None:
    graphs = Postings([["conv", "relu"], ["conv", "gelu"], ["softmax"]])
    same, half, none = graphs.shared(["conv", "relu"])
    assert same == pytest.approx(1) and 0 < half < 0.5 and none == 0
    assert graphs.shared(["conv", "relu", "zebra"])[0] < same
    assert Postings([[]]).shared([]).tolist() == [0.0]


def test_equal_scores_share_a_place_and_fusion_scales_to_one() -> None:
    assert places(np.array([3.0, 1.0, 3.0, 0.0])).tolist() == [1, 2, 1, 0]
    fused = sum(fuse([np.array([1, 2, 0]), np.array([1, 0, 2])]))
    assert fused.tolist() == pytest.approx([1, 61 / 62 / 2, 61 / 62 / 2])


def test_the_foremost_are_as_many_as_asked_and_never_the_worthless() -> None:
    assert sorted(foremost(np.array([5.0, 1.0, 1.0, 0.0, 7.0]), 3)) == [0, 1, 4]
    assert sorted(foremost(np.array([5.0, 0.0]), 3)) == [0]


def test_diversity_puts_a_copy_after_something_else() -> None:
    texts = {"a": "conv relu", "b": "conv relu", "c": "softmax"}

    def alike(x: str, y: str) -> float:
        return jaccard(frozenset(texts[x].split()), frozenset(texts[y].split()))

    assert diversify(["a", "b", "c"], [1.0, 0.99, 0.8], alike, 0.6) == ["a", "c", "b"]
    assert diversify(["a", "b", "c"], [1.0, 0.99, 0.8], alike, 1.0) == ["a", "b", "c"]
    assert jaccard(frozenset(), frozenset()) == 1.0


def test_hits_hold_whole_kernels(shelf: Shelf) -> None:
    shelf.add(problem("tanh"))
    [hit] = shelf.find("tanh")
    assert isinstance(hit.kernel, ArchivedKernel) and hit.kernel.functional_source.startswith("import torch")
