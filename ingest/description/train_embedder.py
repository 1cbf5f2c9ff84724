"""Train the built-in embedder: `python -m rag_kernels.ingest.description.train_embedder [--out DIR] [--steps N]`.

Comes in: a seed. Goes out: `tokenizer.json`, `model.safetensors` and the files that let sentence-transformers load
the folder as a `StaticEmbedding`. The pairs come from `grammar`: texts of one graph in two forms, or of two
graphs that differ in one operator; the other pairs of a batch are the negatives (multiple negatives ranking loss).
The loop is plain torch, because the trainer of sentence-transformers needs two more packages and more time.
Reads no benchmark and downloads nothing.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece

from rag_kernels.ingest.description import grammar
from rag_kernels.ingest.description.describe import functional_text, query_text
from rag_kernels.ingest.description.embedder import BUILTIN, StaticEmbedder
from rag_kernels.ingest.description.vocabulary import family

WORDS = 3600  # whole words in the vocabulary, the most frequent first
ENDINGS = 400  # continuations, so that an unseen identifier still has known parts
DIMENSIONS = 128
TEMPERATURE = 0.05
GUISES = ("description", "description", "query", "query", "english", "functional", "module", "kernel")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts that belong together, and the graph that they describe."""

    key: str
    anchor: str
    positive: str


def describe(graph: grammar.Graph, rng: Random) -> str:
    """Return the description of the graph, written as a function or as a module."""
    written = grammar.functional(graph, rng) if rng.random() < 0.6 else grammar.module(graph, rng)
    ranks = (graph.rank,) if rng.random() < 0.8 else ()
    return functional_text(written, ranks=ranks, dtypes=(graph.dtype,) if ranks else ())


def guise(kind: str, graph: grammar.Graph, rng: Random) -> str:
    """Return the graph as a text of this kind."""
    match kind:
        case "description":
            return describe(graph, rng)
        case "query":
            return query_text(grammar.english(graph, rng))
        case "english":
            return grammar.english(graph, rng)
        case "functional":
            return grammar.functional(graph, rng)
        case "module":
            return grammar.module(graph, rng)
        case _:
            return grammar.kernel(graph, rng)


def pair(rng: Random, without: frozenset[str] = frozenset()) -> Pair:
    """Return a description and another text of the same graph, or in a third of cases of its neighbour.

    No graph has an operator of the families `without`: this tests how well families are placed that were never seen.
    """
    graph, neighbour = grammar.graph(rng), None
    if rng.random() < 1 / 3:
        neighbour = grammar.neighbour(graph, rng)
    operators = graph.operators + (neighbour.operators if neighbour else ())
    if any(family(op.word) in without for op in operators):
        return pair(rng, without)
    if neighbour:
        return Pair(graph.key, describe(graph, rng), describe(neighbour, rng))
    return Pair(graph.key, describe(graph, rng), guise(rng.choice(GUISES), graph, rng))


def build_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Return a tokenizer of whole words by frequency, then single characters and frequent endings.

    The order does not vary from run to run.
    """
    splitter = pre_tokenizers.Whitespace()
    lower = normalizers.Lowercase()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in splitter.pre_tokenize_str(lower.normalize_str(text)))
    endings: Counter[str] = Counter()
    for word, count in counts.items():
        head, _, tail = word.rpartition("_")
        if head and tail.isalpha():
            endings[f"##_{tail}"] += count
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    letters = "abcdefghijklmnopqrstuvwxyz0123456789_"
    tokens = ["[PAD]", "[UNK]", *letters, *(f"##{c}" for c in letters), *ranked[:WORDS]]
    tokens += sorted(endings, key=lambda ending: (-endings[ending], ending))[:ENDINGS]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=64))
    tokenizer.normalizer = lower
    tokenizer.pre_tokenizer = splitter
    return tokenizer


def _ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False)]


def _bag(ids: Sequence[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    offsets = torch.tensor(np.cumsum([0, *(len(row) for row in ids[:-1])]))
    return torch.tensor([token for row in ids for token in row]), offsets


def train(tokenizer: Tokenizer, pairs: Sequence[Pair], *, steps: int, batch: int, seed: int) -> torch.Tensor:
    """Return the embedding matrix after so many steps, of the shape (tokens, dimensions)."""
    torch.manual_seed(seed)
    rng = Random(seed)
    bags = torch.nn.EmbeddingBag(tokenizer.get_vocab_size(), DIMENSIONS, mode="mean")
    torch.nn.init.normal_(bags.weight, std=0.1)
    optimizer = torch.optim.Adam(bags.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=steps)
    anchors, positives = _ids(tokenizer, [p.anchor for p in pairs]), _ids(tokenizer, [p.positive for p in pairs])
    number_of = {key: number for number, key in enumerate(dict.fromkeys(p.key for p in pairs))}
    keys = torch.tensor([number_of[p.key] for p in pairs])
    for step in range(steps):
        chosen = rng.sample(range(len(pairs)), batch)
        a = torch.nn.functional.normalize(bags(*_bag([anchors[i] for i in chosen])), dim=1)
        b = torch.nn.functional.normalize(bags(*_bag([positives[i] for i in chosen])), dim=1)
        same = (keys[chosen][:, None] == keys[chosen]).fill_diagonal_(False)
        scores = (a @ b.T / TEMPERATURE).masked_fill(same, -1e4)  # the same graph twice in a batch is no negative
        target = torch.arange(batch)
        loss = torch.nn.functional.cross_entropy(scores, target) + torch.nn.functional.cross_entropy(scores.T, target)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step + 1}/{steps}: loss {loss.item() / 2:.3f}", file=sys.stderr)
    return bags.weight.detach()


def save(tokenizer: Tokenizer, weights: torch.Tensor, folder: Path) -> None:
    """Write the folder that `StaticEmbedder` and sentence-transformers both load."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    save_file({"embedding.weight": weights.contiguous()}, str(folder / "model.safetensors"))
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.StaticEmbedding"}
    (folder / "modules.json").write_text(json.dumps([module], indent=2) + "\n")
    setting = {"similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(setting, indent=2) + "\n")


def recall(embedder: StaticEmbedder, *, seed: int, graphs: int = 1000) -> dict[str, float]:
    """Return by kind of text how many unseen graphs' texts find their own description first among all, as a share."""
    rng = Random(seed)
    drawn = list({graph.key: graph for graph in (grammar.graph(rng) for _ in range(graphs))}.values())
    corpus = embedder.embed([describe(graph, rng) for graph in drawn])
    found: dict[str, float] = {}
    for kind in dict.fromkeys(GUISES):
        queries = embedder.embed([guise(kind, graph, rng) for graph in drawn])
        found[kind] = float(((queries @ corpus.T).argmax(axis=1) == np.arange(len(drawn))).mean())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=BUILTIN)
    parser.add_argument("--pairs", type=int, default=60_000)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--seed", type=int, default=20)
    settings = parser.parse_args()
    torch.set_num_threads(1)  # sums in one order: the same seed gives the same model
    started = time.monotonic()
    rng = Random(settings.seed)
    pairs = [pair(rng) for _ in range(settings.pairs)]
    tokenizer = build_tokenizer([text for p in pairs for text in (p.anchor, p.positive)])
    print(f"{len(pairs)} pairs, {tokenizer.get_vocab_size()} tokens", file=sys.stderr)
    weights = train(tokenizer, pairs, steps=settings.steps, batch=settings.batch, seed=settings.seed)
    save(tokenizer, weights, settings.out)
    found = recall(StaticEmbedder.load(settings.out), seed=settings.seed + 1)
    result = {"out": str(settings.out), "recall_at_1": {kind: round(share, 3) for kind, share in found.items()}}
    print(json.dumps(result | {"seconds": round(time.monotonic() - started)}))


if __name__ == "__main__":
    main()
