"""A search in words puts first what it names: problems, kernels and operators."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from factories import attempt, problem, run

from rag_kernels.archive.bundle import import_bundle
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.eval.records import Candidate, FunctionalProblem, Problem
from rag_kernels.ingest.description.embedder import load_embedder
from rag_kernels.ingest.description.pipeline import reindex
from rag_kernels.retrieval.retriever import Retriever
from rag_kernels.retrieval.starter import BUNDLE

EXAMPLES = sorted(path.stem for path in (Path(__file__).parent.parent / "examples").glob("*.py"))

# What KernelBench's problems of one operator are called in words, and an expression that is that operator.
OPERATORS = {
    "square matrix multiplication": "torch.matmul(x, y)",
    "batched matrix multiplication": "torch.bmm(x, y)",
    "4D tensor matrix multiplication": "torch.einsum('bijl,lk->bijk', x, y)",
    "matmul with diagonal matrices": "torch.diag(x) @ y",
    "matmul for upper triangular matrices": "torch.triu(torch.matmul(x, y))",
    "matmul for lower triangular matrices": "torch.tril(torch.matmul(x, y))",
    "ReLU": "torch.relu(x)",
    "LeakyReLU": "F.leaky_relu(x, 0.01)",
    "Sigmoid": "torch.sigmoid(x)",
    "Tanh": "torch.tanh(x)",
    "Softmax": "torch.softmax(x, dim=1)",
    "LogSoftmax": "torch.log_softmax(x, dim=1)",
    "Swish": "x * torch.sigmoid(x)",
    "GELU": "F.gelu(x)",
    "SELU": "torch.selu(x)",
    "ELU": "F.elu(x, 1.0)",
    "HardSigmoid": "F.hardsigmoid(x)",
    "HardTanh": "F.hardtanh(x, -1.0, 1.0)",
    "Softplus": "F.softplus(x)",
    "Softsign": "x / (1 + torch.abs(x))",
    "BatchNorm": "F.batch_norm(x, mean, var, y, y)",
    "InstanceNorm": "F.instance_norm(x)",
    "GroupNorm": "F.group_norm(x, 8, y, y)",
    "RMSNorm": "x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5)",
    "FrobeniusNorm": "x / torch.norm(x, p='fro')",
    "L1Norm": "x / torch.mean(torch.abs(x), dim=1, keepdim=True)",
    "L2Norm": "x / torch.norm(x, p=2, dim=1, keepdim=True)",
    "LayerNorm": "F.layer_norm(x, (64,), y, y)",
    "Max Pooling 1D": "F.max_pool1d(x, 4)",
    "Max Pooling 2D": "F.max_pool2d(x, 4)",
    "Max Pooling 3D": "F.max_pool3d(x, 4)",
    "Average Pooling 1D": "F.avg_pool1d(x, 4)",
    "Average Pooling 2D": "F.avg_pool2d(x, 4)",
    "Average Pooling 3D": "F.avg_pool3d(x, 4)",
    "Sum reduction over a dimension": "torch.sum(x, dim=1)",
    "Mean reduction over a dimension": "torch.mean(x, dim=1)",
    "Max reduction over a dimension": "torch.max(x, dim=1)[0]",
    "Min reduction over a dimension": "torch.min(x, dim=1)[0]",
    "Product reduction over a dimension": "torch.prod(x, dim=1)",
    "Argmax over a dimension": "torch.argmax(x, dim=1)",
    "Argmin over a dimension": "torch.argmin(x, dim=1)",
    "conv standard 1D": "F.conv1d(x, y)",
    "conv standard 2D square input": "F.conv2d(x, y)",
    "conv standard 3D": "F.conv3d(x, y)",
    "conv transposed 1D": "F.conv_transpose1d(x, y)",
    "conv transposed 2D": "F.conv_transpose2d(x, y)",
    "conv transposed 3D": "F.conv_transpose3d(x, y)",
    "cumsum": "torch.cumsum(x, dim=1)",
    "cumprod": "torch.cumprod(x, dim=1)",
    "MSELoss": "F.mse_loss(x, y)",
    "CrossEntropyLoss": "F.cross_entropy(x, y)",
    "HuberLoss": "F.smooth_l1_loss(x, y)",
    "CosineSimilarityLoss": "torch.mean(1 - F.cosine_similarity(x, y, dim=1))",
    "KLDivLoss": "F.kl_div(torch.log(x), y, reduction='batchmean')",
    "TripletMarginLoss": "F.triplet_margin_loss(x, y, mean)",
    "HingeLoss": "torch.mean(torch.clamp(1 - x * y, min=0))",
    "ScaledDotProductAttention": "F.scaled_dot_product_attention(x, y, y)",
}


def functional(number: int, expression: str) -> FunctionalProblem:
    """A problem of one expression, under a name that says nothing."""
    source = (
        f"import torch\nimport torch.nn.functional as F\n\n\ndef module_fn(x, y, mean, var):\n    return {expression}\n"
    )
    features = replace(problem().features, operators=())
    return replace(
        problem(), problem=Problem(f"p{number}", source), source=source, graph_key=f"g_{number}", features=features
    )


@pytest.fixture(scope="module")
def retriever() -> Retriever:
    """The starter archive, and a kernel for each operator."""
    archive, embedder = MemoryArchive(), load_embedder()
    import_bundle(archive, BUNDLE)
    archive.start_run(run("r1"))
    for number, expression in enumerate(OPERATORS.values()):
        made = Candidate(f"// {number}\nvoid f();\n", "kernel", "cpu")
        archive.record_attempt(attempt("r1", number + 1, functional(number, expression), candidate=made, idea="a loop"))
    reindex(archive, embedder)
    return Retriever(archive, embedder, fixed=True)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_kernels_of_an_example_come_first(retriever: Retriever, name: str) -> None:
    known = [row for row in retriever.corpus().catalogue.problem_name]
    of_name = known.count(retriever.corpus().catalogue.problem_names.index(name))
    for words in (name, name.replace("_", " "), f"fused {name}"):
        found = [hit.kernel.problem_name for hit in retriever.search(words, count=of_name)]
        assert of_name and set(found) == {name}, words


@pytest.mark.parametrize("words", OPERATORS)
def test_a_kernel_of_the_named_operator_comes_first(retriever: Retriever, words: str) -> None:
    wanted = functional(list(OPERATORS).index(words), OPERATORS[words]).source
    found = retriever.search(words, count=20)
    assert "named" in found[0].reasons
    named = [hit for hit in found if "named" in hit.reasons]
    assert found[: len(named)] == named  # nothing that is only alike comes before them
    best = round(named[0].why.named, 3)
    assert wanted in [hit.kernel.functional_source for hit in found[:12]]
    assert all(round(hit.why.named, 3) <= best for hit in named)


def test_a_kernel_that_is_named_by_its_id_comes_first(retriever: Retriever) -> None:
    kernel_id = Candidate("// 7\nvoid f();\n", "kernel", "cpu").id
    for words in (kernel_id, kernel_id[:8], f"softmax like {kernel_id}"):
        assert retriever.search(words, count=1)[0].kernel.id == kernel_id


def test_the_rest_of_a_search_is_by_likeness(retriever: Retriever) -> None:
    found = retriever.search("layernorm gelu", count=12)
    names = [hit.kernel.problem_name for hit in found[:4]]
    assert names[0] == "layernorm_gelu" and all(name.startswith(("layernorm", "layer_norm")) for name in names), names
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
