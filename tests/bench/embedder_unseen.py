"""How well are families of operators placed that the embedder never saw? A table for docs/measured/retrieval.md.

    python tests/bench/embedder_unseen.py PATH/TO/KernelBench/KernelBench [--pairs 20000] [--steps 300]

Trains the embedder anew several times, each time without some families of operators: no graph of its training has one.
Problems of KernelBench levels 1 and 2 that are built around such an operator then look for their likes among all
others, by cosine alone. The other rows are the same search by embedders and word counts that were trained on none or
on all families, as `retrieval_kernelbench.py` has them; `all families` is trained as long as the others.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
from retrieval_kernelbench import Nearest, bm25, by_matrix, family, functional_forms, minilm, precision, tf_idf

from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.ingest.description.describe import description
from rag_kernels.ingest.description.embedder import StaticEmbedder, load_embedder
from rag_kernels.ingest.description.train_embedder import build_tokenizer, pair, save, train

# Families of KernelBench's file names that are left out together, and their names in `ingest.description.vocabulary`.
FOLDS: tuple[tuple[tuple[str, ...], frozenset[str]], ...] = (
    (("conv", "conv_transpose"), frozenset({"conv", "conv_transpose"})),
    (("matmul", "attention"), frozenset({"matmul", "attention"})),
    (("activation", "loss"), frozenset({"activation", "softmax", "loss"})),
    (("norm", "pool", "reduction", "scan"), frozenset({"norm", "pool", "reduction", "scan"})),
)


def trained(without: frozenset[str], pairs: int, steps: int) -> StaticEmbedder:
    rng = Random(20)
    made = [pair(rng, without) for _ in range(pairs)]
    tokenizer = build_tokenizer([text for p in made for text in (p.anchor, p.positive)])
    with tempfile.TemporaryDirectory() as folder:
        save(tokenizer, train(tokenizer, made, steps=steps, batch=512, seed=20), Path(folder))
        return StaticEmbedder.load(Path(folder))


def cosine(embedder: StaticEmbedder, texts: list[str], forms: list[FunctionalProblem]) -> Nearest:
    vectors = embedder.embed(texts)
    return by_matrix(vectors @ vectors.T, forms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("path", type=Path)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "kernelbench-functional.json")
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=300)
    settings = parser.parse_args()
    by_file = functional_forms(settings.path, settings.cache)
    forms = [
        replace(fp, problem=replace(fp.problem, source=f"# {level}/{name}\n{fp.problem.source}"))
        for (level, name), fp in by_file.items()
    ]
    labels = {fp.problem.id: family(name, level) for fp, (level, name) in zip(forms, by_file, strict=True)}
    texts, sources = [description(fp) for fp in forms], [fp.problem.source for fp in forms]
    builtin = load_embedder()
    assert isinstance(builtin, StaticEmbedder)
    arms: dict[str, Nearest] = {
        "embedder, all families": cosine(trained(frozenset(), settings.pairs, settings.steps), texts, forms),
        "embedder as shipped": cosine(builtin, texts, forms),
        "bm25, description": bm25(texts, forms),
        "tf-idf, description": tf_idf(texts, forms),
        "tf-idf, module source": tf_idf(sources, forms),
        "MiniLM, description": minilm(texts, forms),
        "MiniLM, module source": minilm(sources, forms),
    }
    found = {arm: {fp.problem.id: nearest(fp) for fp in forms} for arm, nearest in arms.items()}
    unseen: dict[str, list[str]] = {}
    for kinds, without in FOLDS:
        nearest = cosine(trained(without, settings.pairs, settings.steps), texts, forms)
        unseen |= {fp.problem.id: nearest(fp) for fp in forms if labels[fp.problem.id] in kinds}
    rows = {arm: precision(near, labels) for arm, near in {"embedder, family never seen": unseen, **found}.items()}
    print("| ranking by | " + " | ".join(rows["embedder as shipped"]) + " |")
    print("|---" * (len(rows["embedder as shipped"]) + 1) + "|")
    for arm, row in rows.items():
        print(f"| {arm} | " + " | ".join(f"{value:.2f}" for value in row.values()) + " |")
    assert np.isclose(sum(len(kinds) for kinds, _ in FOLDS), len(set(labels.values())))


if __name__ == "__main__":
    main()
