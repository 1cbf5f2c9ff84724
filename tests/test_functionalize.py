"""Problems as readable functions of their tensors and numbers: sizes, features, keys, texts, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from support.kept import kept_workers
from support.recorded_forwards import HEAD, problem

from rag_kernels.eval.problem import load_module
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import FunctionalProblem, Problem, ProblemError
from rag_kernels.ingest.functional.functionalize import functionalize, functionalize_many
from rag_kernels.ingest.functional.functionalize_child import functionalize_here
from rag_kernels.ingest.functional.verify import verify
from rag_kernels.ingest.graphs.graph import refs
from rag_kernels.ingest.graphs.recording import state_at
from rag_kernels.ingest.graphs.spelling import INFIX


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with kept_workers() as started:
        yield started


CONV = problem(
    "self.conv = nn.Conv2d(3, 8, 3, stride=2)\nself.scale_factor = 0.25",
    "return torch.relu(self.conv(x)) * self.scale_factor",
    "torch.randn(batch, 3, 16, 16)",
    constants="batch = 4",
)


def test_a_convolution_becomes_readable_python(workers: Workers) -> None:
    done = functionalize(CONV, workers=workers)
    assert done.source == (
        "import torch\nimport torch.nn.functional as F\n\n\n"
        "def module_fn(\n"
        "    x,  # float32[4, 3, 16, 16]\n"
        "    conv_weight,  # float32[8, 3, 3, 3]\n"
        "    conv_bias,  # float32[8]\n"
        "    *,\n    stride=2,\n    scale_factor=0.25,\n):\n"
        "    conv2d = F.conv2d(x, conv_weight, conv_bias, stride=stride)\n"
        "    relu = F.relu(conv2d)\n"
        "    mul = relu * scale_factor\n"
        "    return mul\n"
    )
    assert [(a.name, a.path) for a in done.arguments] == [
        ("x", "0"),
        ("conv_weight", "conv.weight"),
        ("conv_bias", "conv.bias"),
    ]
    assert done.constants == (("stride", 2), ("scale_factor", 0.25))
    assert done.outputs[0].shape == (4, 8, 7, 7)
    assert done.verified and done.notice == "" and not done.uses_random and not done.mutated


CACHED = """
import torch, torch.nn as nn
batch, new, width, past, heads = 2, 16, 32, 24, 4
class Model(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.split, self.heads = nn.Linear(width, 3 * width), heads
    def forward(self, x, cache):
        B, T, C = x.shape
        q, k, v = self.split(x).split(C, dim=-1)
        k = torch.cat([cache.expand(B, -1, -1), k], dim=1)
        q, k = (t.reshape(B, t.shape[1], self.heads, C // self.heads).transpose(1, 2) for t in (q, k))
        ahead = torch.arange(k.shape[2])[None, :] <= torch.arange(T)[:, None] + cache.shape[1]
        scores = (q @ k.transpose(-2, -1) / C**0.5).masked_fill(~ahead, 0.0)
        halves = nn.functional.avg_pool1d(x.transpose(1, 2), 3, stride=2).flatten(1)
        return scores, v[:, T // 2 :] * torch.ones(C), halves
def get_inputs():
    return [torch.randn(batch, new, width), torch.randn(1, past, width)]
def get_init_inputs():
    return [width, heads]
"""


def test_sizes_are_read_from_the_shapes_of_arguments_and_serve_others(workers: Workers) -> None:
    done = functionalize(Problem("cached", CACHED), workers=workers)
    lines = [line.strip() for line in done.source.splitlines()]
    assert "N, M, K = x.shape[0], x.shape[1], x.shape[2]" in lines
    assert "offset=24,  # cache.shape[1]" in lines and "divisor=5.656854249492381,  # of these sizes" in lines
    written = "\n".join(lines)
    for text in (
        "cache.expand((N, -1, -1))",
        ".reshape((N, M, 4, K // 4))",
        ".reshape((N, cat.shape[1], 4, K // 4))",
        "torch.arange(M, device=",
        "[:, M // 2:]",
        "torch.ones((K,), device=",
    ):
        assert text in written, text
    assert "alone" not in written and "are numbers" not in written
    told = {(made.dim, made.argument, made.of) for made in done.made}
    assert told == {(0, "x", 1), (0, "x", 2)}, (
        "arange(M) and ones((K,)); how long the keys are, no argument tells alone"
    )
    # An odd length and another batch: sizes at which nothing was recorded. The constants' sizes stay.
    verify(Problem("cached", CACHED.replace("= 2, 16, 32, 24, 4", "= 3, 19, 32, 24, 4")), done.source, done.arguments)


def test_a_size_that_nothing_tells_stays_a_number_and_says_so(workers: Workers) -> None:
    """No argument has the drawn rows; and where the code itself has a number, no other sizes are found."""
    drawn = problem(
        "self.rows = rows",
        "return x.sum(0) + torch.zeros(self.rows, x.shape[1]).sum(0)",
        "torch.randn(batch, width)",
        constants="batch, width, rows = 8, 32, 64",
        args="rows",
    )
    lines = [line.strip() for line in functionalize(drawn, workers=workers).source.splitlines()]
    at = next(i for i, line in enumerate(lines) if "torch.zeros(" in line)
    assert "torch.zeros((64, N)" in lines[at] and lines[at - 1].startswith("# the sizes below that are numbers")
    fixed = problem("pass", "return x.reshape(4, 2, 64).sum(1)", "torch.randn(4, 128)")
    source = functionalize(fixed, workers=workers).source
    assert "x.reshape((4, 2, 64))" in source and "# its sizes are numbers" in source


def test_sizes_that_only_go_together_by_themselves_are_named_one_by_one(workers: Workers) -> None:
    """Two sizes whose ratio has to stay whole: the others are told all the same."""
    patches = problem(
        "self.size, self.patch = size, patch\nself.positions = nn.Parameter(torch.randn((size // patch) ** 2, width))",
        "assert self.size % self.patch == 0\n"
        "x = x.reshape(x.shape[0], self.size // self.patch, self.patch, -1).sum(2)\n"
        "return x.reshape(x.shape[0], -1, self.positions.shape[1]) + self.positions",
        "torch.randn(batch, size, size // patch * width)",
        constants="batch, size, patch, width = 4, 64, 16, 24",
        args="size, patch, width",
    )
    source = functionalize(patches, workers=workers).source
    assert "x.shape[0]" in source and "# its sizes are numbers" not in source


def test_features_are_counted(workers: Workers) -> None:
    features = functionalize(CONV, workers=workers).features
    outputs = 4 * 8 * 7 * 7
    assert features.operators == ("conv2d", "mul", "relu")
    assert features.ranks == (4,) and features.dtypes == ("float32",)
    assert features.parameter_count == 8 * 3 * 9 + 8
    assert features.flops == 2 * outputs * 3 * 9
    assert features.pointwise_flops == 2 * outputs
    assert features.bytes_moved == 4 * (4 * 3 * 16 * 16 + 8 * 3 * 9 + 8 + outputs)


def test_causal_attention_counts_the_scores_that_it_needs(workers: Workers) -> None:
    attention = "return F.scaled_dot_product_attention(x, x, x{})"
    whole, causal = (
        functionalize(problem("pass", attention.format(more), "torch.randn(2, 2, 64, 16)"), workers=workers).features
        for more in ("", ", is_causal=True")
    )
    assert whole.flops == 2 * 2 * (2 * 2 * 64 * 64 * 16)
    assert causal.flops == whole.flops * 65 // 128


def test_products_of_a_dtype_that_no_argument_has_are_named(workers: Workers) -> None:
    multiply = "return x @ x.t()"
    halves = "half = x.to(torch.bfloat16)\nreturn (half @ half.t()).float()"
    found = [
        functionalize(problem("pass", forward, "torch.randn(8, 16)"), workers=workers).features.product_dtypes
        for forward in (multiply, halves)
    ]
    assert found == [(), ("bfloat16",)]


def test_the_source_runs_by_itself_and_agrees_with_the_module(workers: Workers) -> None:
    case = problem(
        "self.fc = nn.Linear(32, 64)\nself.norm = nn.LayerNorm(64)",
        "y, index = torch.max(F.gelu(self.norm(self.fc(x))), dim=1)\nreturn y - 0.5, index",
        "torch.randn(8, 32)",
    )
    done = functionalize(case, workers=workers)
    module = load_module("case", case.source)
    model, inputs = module.Model(), module.get_inputs()
    namespace: dict[str, object] = {}
    exec(done.source, namespace)
    values = [inputs[0] if a.path == "0" else state_at(model, a.path) for a in done.arguments]
    ours = namespace["module_fn"](*values)  # type: ignore[operator]
    for mine, theirs in zip(ours, model(*inputs), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_same_problem_gives_the_same_text(workers: Workers) -> None:
    assert functionalize(CONV, workers=workers) == functionalize(CONV, workers=workers)


RELUS = [
    ("self.act = nn.ReLU()", "return self.act(x @ y)", "M, N"),
    ("self.act = nn.ReLU(inplace=True)", "return self.act(torch.matmul(x, y))", "32, 48"),
    ("pass", "z = torch.matmul(x, y)\nz.relu_()\nreturn z", "M, N"),
    ("pass", "result = F.relu(torch.matmul(x, y))\nreturn result.contiguous()", "96, 16"),
]


def test_the_graph_key_ignores_sizes_names_and_styles(workers: Workers) -> None:
    cases = [
        problem(
            init,
            forward,
            f"torch.randn({sizes}), torch.randn({', '.join(reversed(sizes.split(', ')))})",
            given="x, y",
            constants="M = 64\nN = 32",
        )
        for init, forward, sizes in RELUS
    ]
    keys = {functionalize(case, workers=workers).graph_key for case in cases}
    other = problem("pass", "return F.gelu(x @ y)", "torch.randn(64, 32), torch.randn(32, 64)", given="x, y")
    assert len(keys) == 1
    assert functionalize(other, workers=workers).graph_key not in keys


def test_the_graph_key_tells_constants_and_topology_apart(workers: Workers) -> None:
    forwards = ["return (x + y) * 3.0", "return (x + y) * 4.0", "return (x - y) * 3.0", "return (x + x) * 3.0"]
    cases = [problem("pass", f, "torch.randn(64, 32), torch.randn(64, 32)", given="x, y") for f in forwards]
    assert len({functionalize(case, workers=workers).graph_key for case in cases}) == len(forwards)


def test_inputs_of_many_gigabytes_are_never_materialised(workers: Workers) -> None:
    case = problem(
        "self.linear = nn.Linear(N, N)",
        "return torch.sigmoid(self.linear(x))",
        "torch.rand(batch_size, N)",
        constants="batch_size = 1024 * 256\nN = 16384",
        args="N",
    )
    done = functionalize(case, workers=workers, memory_bytes=3 << 30)
    assert done.tensors[0].spec.shape == (262144, 16384)
    assert done.verified
    assert done.notice.startswith("verified at batch_size=") and "instead of 262144" in done.notice


def test_a_problem_that_cannot_shrink_is_not_called_verified(workers: Workers) -> None:
    case = problem("pass", "return x + 1", "torch.rand(1, side())", constants="def side():\n    return 10**9\n")
    done = functionalize(case, workers=workers)
    assert not done.verified and done.notice.startswith("not verified")


def test_an_operator_with_another_spelling_in_python_is_written_as_recorded(workers: Workers) -> None:
    case = problem("pass", "return torch.tensordot(x, x, dims=2) + 1", "torch.randn(4, 8)")
    done = functionalize(case, workers=workers)
    assert done.verified and "torch.ops.aten.tensordot.default(x, x, " in done.source


def test_a_copy_that_is_returned_stays_a_tensor_of_its_own(workers: Workers) -> None:
    case = problem("pass", "h = x * 2; return h, h.clone(), x.clone(), x, h.detach()", "torch.randn(4, 8)")
    fp = functionalize(case, workers=workers)
    assert [node.op for node in fp.nodes] == ["aten.mul.Tensor", "aten.clone.default", "aten.clone.default"]
    assert fp.results == ("mul", "clone", "clone_1", "x", "mul")


def test_a_view_of_bits_as_another_dtype_is_no_reshape(workers: Workers) -> None:
    done = functionalize(problem("pass", "return x.view(torch.int32) >> 23", "torch.randn(4, 8)"), workers=workers)
    assert done.verified and done.nodes[0].op == "aten.view.dtype" and "view.dtype" in done.source


def test_a_spelling_that_disagrees_is_given_up_for_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(INFIX, "add", "-")
    case = problem("pass", "return x + y", "torch.randn(8), torch.randn(8)", given="x, y")
    done = functionalize_here({"problem": case, "threads": None})
    assert isinstance(done, FunctionalProblem) and done.verified and "torch.ops.aten.add.Tensor(x, y)" in done.source


def test_nodes_refer_only_to_arguments_and_earlier_nodes(workers: Workers) -> None:
    init = "self.a = nn.Linear(8, 8)\nself.b = nn.BatchNorm1d(8)"
    forward = "y = self.b(self.a(x))\np, q = y.chunk(2, dim=1)\nreturn F.silu(p, inplace=True) * q"
    done = functionalize(problem(init, forward, "torch.randn(4, 8)"), workers=workers)
    known = {a.name for a in done.arguments}
    for node in done.nodes:
        assert {r for v in node.args for r in refs(v)} <= known, node
        known.add(node.name)
    assert set(done.results) <= known


BAD = {
    "a syntax error on line 5": Problem("p", HEAD + "\nclass Model(nn.Module:\n"),
    "does not define class Model": Problem("p", HEAD + "def get_inputs(): pass\ndef get_init_inputs(): pass\n"),
    "get_inputs() fails: ValueError: no data": Problem(
        "p", problem("pass", "return x", "1").source.replace("return [1]", "raise ValueError('no data')")
    ),
    "copy what it needs of a file of your own into it": Problem("p", "import not_a_package_at_all\n" + CONV.source),
    "depends on the data": problem("pass", "return x * 2 if x.sum() > 0 else x", "torch.randn(4)"),
    "calls aten.bincount, whose result's shape depends on the data": problem(
        "pass", "return torch.bincount(x)", "torch.randint(0, 16, (4,))"
    ),
    "returns [21] where [16] was recorded": problem(
        "pass", "return torch.bincount(x, minlength=16)", "torch.arange(21)"
    ),
    "is sparse_coo, and kernels take dense ones": problem("pass", "return x @ x", "torch.randn(4, 4).to_sparse()"),
    "a tensor of float8_e8m0fnu": problem("pass", "return x.float() * 2", "torch.ones(4, 4).to(torch.float8_e8m0fnu)"),
    "returns a device": problem("pass", "return x * 2", "torch.randn(4), torch.device('cpu')", given="x, d"),
    "returns int": problem("pass", "return 3", "torch.randn(4)"),
    "write `with torch.enable_grad():` around it": problem(
        "self.w = nn.Parameter(torch.ones(4))",
        "return torch.autograd.grad((x * self.w).sum(), self.w)",
        "torch.randn(4)",
    ),
    "cannot be recorded: RuntimeError": problem("pass", "return x @ x", "torch.randn(4, 5)"),
    "ended its process": problem("pass", "import os\nos.abort()", "torch.randn(4)"),
    "more memory than": problem(
        "self.n = int(torch.ones(1).item())\nself.w = nn.Parameter(torch.ones(1 << 33))", "return x", "torch.randn(4)"
    ),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_problems_are_refused_with_a_sentence(workers: Workers, sentence: str) -> None:
    with pytest.raises(ProblemError) as caught:
        functionalize(BAD[sentence], workers=workers, memory_bytes=4 << 30)
    assert sentence in str(caught.value) and ".." not in str(caught.value)


def test_a_forward_that_hangs_is_given_up_at_the_deadline(workers: Workers) -> None:
    case = problem("pass", "while True: pass", "torch.randn(4)")
    with pytest.raises(ProblemError, match="not functionalized within 2 s"):
        functionalize(case, workers=workers, deadline_s=2.0)


def test_a_deep_network_in_16_bits_may_round_in_another_order(workers: Workers) -> None:
    case = problem(
        "self.net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(24)]).bfloat16()",
        "for layer in self.net:\n    x = x + layer(x.transpose(0, 1).contiguous().transpose(0, 1)).tanh()\nreturn x",
        "torch.randn(256, 64).bfloat16()",
    )
    done = functionalize(case, workers=workers)
    assert done.verified
    with pytest.raises(ProblemError, match="disagrees"):
        verify(case, done.source.replace("torch.tanh", "0.9 * torch.tanh"), done.arguments)


def test_a_functional_form_that_disagrees_is_refused(workers: Workers) -> None:
    done = functionalize(CONV, workers=workers)
    verify(CONV, done.source, done.arguments)
    with pytest.raises(ProblemError, match="disagrees with the module in output 0"):
        verify(CONV, done.source.replace("scale_factor=0.25", "scale_factor=0.2501"), done.arguments)
    with pytest.raises(ProblemError, match="instead of"):
        verify(CONV, done.source.replace("return mul", "return mul[:1]"), done.arguments)


def test_many_problems_come_back_in_order_with_their_reasons(workers: Workers) -> None:
    bad = Problem("bad", "x = 1\n")
    rows = list(functionalize_many([CONV, bad, CONV], workers=workers, jobs=2))
    assert [row.name for row in rows] == ["case", "bad", "case"]
    assert [row.ok for row in rows] == [True, False, True]
    assert isinstance(rows[0].functional, FunctionalProblem)
    assert "does not define" in rows[1].reason and all(row.seconds > 0 for row in rows)


def test_a_long_list_of_outputs_is_broken_so_that_it_parses(workers: Workers) -> None:
    names = [f"a_rather_long_name_{i}" for i in range(40)]
    body = "\n".join(f"{name} = x + {i}" for i, name in enumerate(names)) + f"\nreturn {', '.join(names)}"
    done = functionalize(problem("pass", body, "torch.randn(4)"), workers=workers)
    assert len(done.outputs) == 40 and " \\\n" in done.source


SEGMENTS = """\
import torch

ROWS = 65536


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("offsets", torch.arange(65536 // 16 + 1) * 16)

    def forward(self, x):
        return torch.segment_reduce(x, "sum", offsets=self.offsets)


def get_inputs():
    return [torch.randn(ROWS, 320)]


def get_init_inputs():
    return []
"""


def test_sizes_at_which_an_operator_ends_the_process_are_left_for_others(workers: Workers) -> None:
    found = functionalize(Problem("segments", SEGMENTS), workers=workers)
    assert found.verified and found.notice.startswith("verified at ROWS=") and found.outputs[0].shape == (4096, 320)
    apart = SEGMENTS.replace("65536 // 16 + 1", "4096 + 1").replace("320", "6400")  # of a number that no size is
    found = functionalize(Problem("segments", apart), workers=workers)
    assert not found.verified and "SIGSEGV, line 12 in forward" in found.notice


def test_a_module_that_ends_the_process_is_a_sentence(workers: Workers) -> None:
    beyond = SEGMENTS.replace("* 16)", "* 16000)").replace("ROWS = 65536", "ROWS = 64")
    with pytest.raises(
        ProblemError, match=r"killed by SIGSEGV, line 12 in forward\): an operator reads or writes out of"
    ):
        functionalize(Problem("segments", beyond), workers=workers)
