"""Descriptions and the embedding model: one text for one graph, in any style, and a model that loads fast."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from factories import linear_problem, problem

from rag_kernels.ingest.description import grammar
from rag_kernels.ingest.description.callgraph import Step, idioms
from rag_kernels.ingest.description.callgraph import steps as read_steps
from rag_kernels.ingest.description.describe import description, functional_text, main_family, query_text
from rag_kernels.ingest.description.embedder import (
    BUILTIN,
    EmbedderError,
    StaticEmbedder,
    TransformerEmbedder,
    load_embedder,
)

CONV = """
import torch
import torch.nn.functional as F


def module_fn(
    x,  # float32[8, 3, 32, 32]
    conv_weight,  # float32[16, 3, 3, 3]
    conv_bias,  # float32[16]
    *,
    groups=4,
    scale=2.0,
):
    conv2d = F.conv2d(x, conv_weight, conv_bias, groups=groups)
    relu = torch.relu(conv2d)
    view = relu.reshape(8, -1)
    mul = view * scale
    return mul
"""


def words(text: str) -> set[str]:
    return set(text.split())


def test_operators_and_their_flow_are_read_through_views() -> None:
    graph = read_steps(CONV)
    assert [step.op for step in graph] == ["conv2d", "relu", "mul"]
    assert [step.inputs for step in graph] == [("x", "conv_weight", "conv_bias"), (0,), (1,)]
    assert graph[0] == Step("conv2d", ("x", "conv_weight", "conv_bias"), ("grouped",))


def test_a_description_has_operators_families_flow_rank_and_dtype_but_no_sizes_and_no_names() -> None:
    text = functional_text(CONV, ranks=(4,), dtypes=("float32",))
    assert {"main_conv2d", "about_conv", "conv2d", "relu", "mul", "conv", "activation", "pointwise"} <= words(text)
    assert {"conv2d__relu", "relu__mul", "conv__activation", "grouped", "rank4", "float32"} <= words(text)
    assert not words(text) & {"x", "conv_weight", "scale", "32", "16", "view", "reshape"}


def test_names_and_sizes_do_not_change_a_description() -> None:
    assert description(problem("tanh", 0.5, (8, 16))) == description(problem("tanh", 3.0, (4096, 4096), name="other"))
    renamed = CONV.replace("conv_weight", "w").replace("conv2d =", "y =").replace("relu(conv2d)", "relu(y)")
    assert functional_text(renamed) == functional_text(CONV)


def test_a_description_tells_rank_and_dtype_apart() -> None:
    flat = problem("relu", 2.0, (8, 16))
    deep = problem("relu", 2.0, (2, 4, 8, 16))
    half = replace(flat, features=replace(flat.features, dtypes=("float16",)))
    assert len({description(fp) for fp in (flat, deep, half)}) == 3


@pytest.mark.parametrize(
    ("expression", "idiom"),
    [
        ("x * torch.sigmoid(x)", "silu"),
        ("F.silu(x) * y", "swiglu"),
        ("x * torch.tanh(F.softplus(x))", "mish"),
        ("x / (1 + torch.abs(x))", "softsign"),
        ("0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * torch.pow(x, 3.0))))", "gelu"),
        ("x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5)", "rms_norm"),
        ("(x - x.mean(-1)) / torch.sqrt(x.var(-1) + 1e-5)", "layer_norm"),
        ("x / torch.norm(x, p=2, dim=1)", "l2_norm"),
        ("x / torch.mean(torch.abs(x), dim=1)", "l1_norm"),
        ("torch.softmax(x @ y.transpose(-2, -1), dim=-1) @ z", "attention"),
        ("torch.mean((x - y) ** 2)", "mse_loss"),
        ("torch.mean(torch.clamp(1 - x * y, min=0))", "hinge_loss"),
    ],
)
def test_what_is_written_out_is_named(expression: str, idiom: str) -> None:
    source = f"def module_fn(x, y, z):\n    return {expression}\n"
    assert idiom in idioms(read_steps(source))
    assert idiom in words(functional_text(source))


@pytest.mark.parametrize(
    ("expression", "idiom"),
    [("y * torch.sigmoid(x)", "silu"), ("x * torch.tanh(x)", "mish"), ("x / (1 + y)", "softsign")],
)
def test_what_only_looks_alike_is_not_named(expression: str, idiom: str) -> None:
    assert idiom not in idioms(read_steps(f"def module_fn(x, y):\n    return {expression}\n"))


def test_a_module_reads_as_its_functional_form() -> None:
    module = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)

    def forward(self, x):
        x = torch.relu(self.conv(x))
        return x.view(8, -1) * 2.0
"""
    assert words(functional_text(module)) == words(functional_text(CONV)) - {"grouped"}


def test_operators_serve_where_source_cannot_be_read() -> None:
    text = functional_text("this is no Python", ("aten.convolution", "aten.relu.default", "layer_norm", "view"))
    assert {"relu", "layer_norm", "main_convolution"} & words(text) and "view" not in words(text)
    assert functional_text("", ()) == ""


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("fused layernorm gelu", {"main_layer_norm", "layer_norm", "gelu", "layer_norm__gelu"}),
        ("LN then GELU", {"layer_norm", "gelu"}),
        ("gemm + bias + ReLU", {"matmul", "linear", "add", "relu", "add__relu"}),
        ("transposed 3D convolution", {"conv_transpose3d", "about_conv_transpose"}),
        ("3d transposed conv with swish", {"conv_transpose3d", "silu"}),
        ("a fast kernel for row-wise softmax in fp16", {"softmax", "float16"}),
        ("depthwise conv 2d", {"conv2d", "grouped"}),
        ("flash attention", {"about_attention", "attention"}),
        ("root mean square normalization", {"rms_norm", "about_norm"}),
        ("average pooling 2d", {"avg_pool2d", "pool"}),
        ("prefix sum", {"cumsum", "scan"}),
        ("mean squared error", {"mse_loss", "loss"}),
    ],
)
def test_free_text_is_put_into_the_words_of_descriptions(query: str, expected: set[str]) -> None:
    assert expected <= words(query_text(query))


def test_the_family_is_that_of_the_heaviest_operator() -> None:
    assert main_family(CONV) == "conv"
    assert main_family(linear_problem().source) == "matmul"
    assert main_family(problem("relu").source) == "activation"
    assert main_family("x", ()) == "other"


def test_every_operator_of_the_grammar_is_described_and_can_be_asked_for() -> None:
    rng = Random(3)
    for op in (*grammar.HEAVY, *grammar.ALONE, *grammar.TAIL):
        graph = grammar.Graph((op,), False, 2, "float32")
        assert op.word in words(functional_text(grammar.functional(graph, rng))), op.word
        assert op.word in words(functional_text(grammar.module(graph, rng))), op.word
        assert query_text(op.phrases[0]), op.phrases[0]


def test_the_built_in_model_gives_unit_vectors_and_finds_the_likest() -> None:
    embedder = load_embedder()
    corpus = [description(fp) for fp in (problem("relu"), problem("tanh"), linear_problem())]
    rows = embedder.embed(corpus)
    assert rows.shape == (3, embedder.dim) and rows.dtype == np.float32
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    for query, best in (("relu and scale", 0), ("hyperbolic tanh, scaled", 1), ("fully connected layer with relu", 2)):
        assert int(np.argmax(rows @ embedder.embed([query_text(query)])[0])) == best
    assert not embedder.embed([""]).any()


def test_unseen_graphs_are_found_by_another_telling_of_them() -> None:
    rng = Random(77)  # the model was trained on another seed
    graphs = list({graph.key: graph for graph in (grammar.graph(rng) for _ in range(200))}.values())
    embedder = load_embedder()
    corpus = embedder.embed([functional_text(grammar.functional(graph, rng)) for graph in graphs])
    asked = embedder.embed([query_text(grammar.english(graph, rng)) for graph in graphs])
    assert ((asked @ corpus.T).argmax(axis=1) == np.arange(len(graphs))).mean() > 0.9


def test_the_model_is_small_and_described() -> None:
    assert sum(path.stat().st_size for path in BUILTIN.iterdir()) < 3_000_000
    assert (BUILTIN / "MODEL_CARD.md").read_text().startswith("# ")


def test_embedding_a_query_imports_no_torch_and_no_sentence_transformers() -> None:
    code = (
        "import sys\nfrom rag_kernels.ingest.description.embedder import load_embedder\n"
        "from rag_kernels.ingest.description.describe import query_text\n"
        "load_embedder().embed([query_text('softmax')])\n"
        "print(sorted({'torch', 'sentence_transformers', 'model2vec', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_model_is_a_static_embedding_of_sentence_transformers() -> None:
    texts = [description(linear_problem()), "fused softmax kernel", "def module_fn(x): return torch.relu(x)"]
    other = load_embedder(str(BUILTIN))
    assert isinstance(other, TransformerEmbedder) and type(other.model[0]).__name__ == "StaticEmbedding"
    built_in = load_embedder()
    assert other.dim == built_in.dim
    assert np.allclose(other.embed(texts), built_in.embed(texts), atol=1e-5)


def test_training_is_seeded_and_learns(tmp_path: Path) -> None:
    from rag_kernels.ingest.description.train_embedder import build_tokenizer, pair, recall, save, train

    rng = Random(5)
    pairs = [pair(rng) for _ in range(600)]
    tokenizer = build_tokenizer([text for p in pairs for text in (p.anchor, p.positive)])
    weights = {steps: train(tokenizer, pairs, steps=steps, batch=64, seed=1) for steps in (1, 30)}
    assert (train(tokenizer, pairs, steps=1, batch=64, seed=1) == weights[1]).all()
    found = {}
    for steps, matrix in weights.items():
        save(tokenizer, matrix, tmp_path / str(steps))
        found[steps] = recall(StaticEmbedder.load(tmp_path / str(steps)), seed=6, graphs=100)["query"]
    assert found[30] > max(0.5, found[1])


def test_a_model_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(EmbedderError, match=r"cannot be loaded.*Give the path"):
        load_embedder(str(tmp_path / "nothing"))
    with pytest.raises(EmbedderError, match="Reinstall rag-kernels"):
        StaticEmbedder.load(tmp_path)
