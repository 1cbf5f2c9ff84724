"""The zoo's problems as KernelBench texts. Goes out: `PROBLEMS`, name to source, and `task`, which writes one."""

from __future__ import annotations


def task(
    forward: str,
    inputs: str,
    *,
    arguments: str = "x",
    setup: str = "",
    init: str = "",
    given: str = "",
    sizes: str = "",
) -> str:
    """Return a KernelBench file whose forward is one expression; `setup` holds the further lines of `__init__`, `sizes`
    names of numbers that stand in `inputs`.
    """
    lines = "".join(f"        {line}\n" for line in setup.splitlines())
    return (
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
        f"{sizes and chr(10)}{sizes}{sizes and chr(10)}\n\nclass Model(nn.Module):\n"
        f"    def __init__(self{init}):\n        super().__init__()\n{lines}\n"
        f"    def forward(self, {arguments}):\n        return {forward}\n\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\n\ndef get_init_inputs():\n    return [{given}]\n"
    )


def weighted(names: str, *, features: int) -> dict[str, str]:
    """Return `__init__` with one parameter of `features` for each name: scales are ones and biases zeros."""
    fill = {name: "zeros" if name == "bias" else "ones" for name in names.split()}
    lines = [f"self.{name} = nn.Parameter(torch.{made}(features))" for name, made in fill.items()]
    return {"setup": "\n".join(lines), "init": ", features", "given": str(features)}


PROBLEMS = {
    "softmax": task("torch.softmax(x, dim=-1)", "torch.randn(256, 512)"),
    "rowsum": task("torch.sum(x, dim=1)", "torch.rand(256, 512)"),
    "matmul": task("torch.matmul(x, y)", "torch.rand(128, 256), torch.rand(256, 128)", arguments="x, y"),
    "layernorm": task(
        "F.layer_norm(x, (x.shape[-1],), self.weight, self.bias, 1e-5)",
        "torch.randn(256, 512)",
        **weighted("weight bias", features=512),
    ),
    "rmsnorm": task(
        "x * torch.rsqrt(torch.mean(x * x, dim=-1, keepdim=True) + 1e-6) * self.weight",
        "torch.randn(256, 512)",
        **weighted("weight", features=512),
    ),
    "gelu": task("F.gelu(x)", "torch.randn(256, 512)"),
    "bias_relu": task("torch.relu(x + self.bias)", "torch.rand(256, 512)", **weighted("bias", features=512)),
    "argmax": task("torch.argmax(x, dim=1)", "torch.randn(256, 512)"),
    "rowmax": task("torch.amax(x, dim=1)", "torch.randn(256, 512)"),
    "cumsum": task("torch.cumsum(x, dim=1)", "torch.rand(256, 512)"),
    "residual": task("torch.tanh(x) * 0.5 + y", "torch.randn(256, 256), torch.randn(256, 256)", arguments="x, y"),
    "hardtanh": task("F.hardtanh(x, -1.5, 1.5)", "torch.rand(256, 512)"),
    "conv": task(
        "F.conv2d(x, self.weight, self.bias)",
        "torch.rand(4, 8, 32, 32)",
        setup="self.weight = nn.Parameter(torch.randn(8, 8, 3, 3) / 8)\nself.bias = nn.Parameter(torch.zeros(8))",
    ),
    "cross_entropy": task(
        "F.cross_entropy(x, target)", "torch.randn(512, 128), torch.randint(0, 128, (512,))", arguments="x, target"
    ),
    "batchnorm": task(
        "F.batch_norm(x, self.mean, self.var, self.weight, self.bias, False, 0.1, 1e-5)",
        "torch.randn(8, 16, 32, 32)",
        setup=weighted("weight bias", features=16)["setup"]
        + "\nself.register_buffer('mean', torch.zeros(features))\nself.register_buffer('var', torch.ones(features))",
        init=", features",
        given="16",
    ),
    "half_matmul": task(
        "torch.matmul(x, y)",
        "torch.randn(32, 1024, dtype=torch.bfloat16), torch.randn(1024, 64, dtype=torch.bfloat16)",
        arguments="x, y",
    ),
    "diagonal": task("torch.diag(x) @ y", "torch.randn(512), torch.randn(512, 512)", arguments="x, y"),
    "centred_max": task(
        "F.gelu((lambda m: m - m.mean(dim=1, keepdim=True))(torch.max(F.linear(x, self.weight, self.bias), dim=1, "
        "keepdim=True).values))",
        "torch.randn(128, 256)",
        setup="self.weight = nn.Parameter(torch.randn(64, 256) / 16)\nself.bias = nn.Parameter(torch.zeros(64))",
    ),
    "clock": task(
        "x % 12 * 3 + y // 5", "torch.randint(0, 100, (256, 512)), torch.randint(0, 100, (256, 512))", arguments="x, y"
    ),
    "lookup": task(
        "F.embedding(x, self.weight)",
        "torch.randint(0, 100, (256, 8))",
        setup="self.weight = nn.Parameter(torch.randn(1000, 64))",
    ),
    "sparse_gelu": task("F.gelu(x)", "torch.relu(torch.randn(256, 512))"),
    "half_layernorm": task(
        "F.layer_norm(x, (512,), self.weight, self.bias, 1e-5)",
        "torch.randn(128, 512, dtype=torch.bfloat16)",
        setup="self.weight = nn.Parameter((1 + torch.randn(512) / 8).bfloat16())\n"
        "self.bias = nn.Parameter(torch.randn(512).bfloat16())",
    ),
    "narrow_floats": task(
        "(x * y).to(torch.float8_e5m2)",
        "torch.randn(256, 512) * 200, torch.randn(256, 512) * 200",
        arguments="x, y",
    ),
    "variance": task("torch.var(x, dim=1)", "torch.randn(256, 512)"),
    "threshold": task(
        "torch.where(x > 0.5, x * y, y)", "torch.randn(256, 512), torch.randn(256, 512)", arguments="x, y"
    ),
    "collect": task(
        "torch.index_add(x, 0, at, y)",
        "torch.randn(40000), torch.randint(0, 40000, (1024,)), torch.randn(1024)",
        arguments="x, at, y",
    ),
    "root": task("x / (torch.sqrt(y) + 1e-8)", "torch.randn(256, 512), torch.rand(256, 512)", arguments="x, y"),
    "running count": task("torch.cumsum(x, 0)", "torch.randint(0, 1000, (65536,))"),
    "ignored": task(
        "F.cross_entropy(x, target, ignore_index=-100)",
        "torch.randn(512, 256), torch.randint(0, 256, (512,))",
        arguments="x, target",
    ),
    "from the end": task("table[at]", "torch.randn(2000, 64), torch.randint(0, 2000, (4096,))", arguments="table, at"),
    "dots": task(
        "(x.to(torch.int32) * y.to(torch.int32)).sum(-1)",
        "torch.randint(-8, 8, (256, 1024), dtype=torch.int8), torch.randint(-8, 8, (256, 1024), dtype=torch.int8)",
        arguments="x, y",
    ),
    "whole quotients": task(
        "torch.floor(x / s)", "torch.randn(256, 512) * 30, torch.rand(256, 1) + 0.5", arguments="x, s"
    ),
    "shifted bits": task(
        "torch.bitwise_left_shift(x, y)",
        "torch.randint(-1000, 1000, (256, 512), dtype=torch.int32), torch.randint(0, 8, (256, 512), dtype=torch.int32)",
        arguments="x, y",
    ),
    "sum of exponents": task("torch.logaddexp(x, y)", "torch.randn(256, 512), torch.randn(256, 512)", arguments="x, y"),
    "two gains": task(
        "x * self.weight * self.bias",
        "torch.randn(256, 512)",
        setup="self.weight = nn.Parameter(torch.rand(512) + 0.5)\nself.bias = nn.Parameter(torch.rand(512) + 0.5)",
    ),
    "two biases": task(
        "x + self.weight + self.bias",
        "torch.randn(256, 512)",
        setup="self.weight = nn.Parameter(torch.randn(512))\nself.bias = nn.Parameter(torch.randn(512))",
    ),
    "lengths": task("torch.hypot(x, y)", "torch.randn(256, 512), torch.randn(256, 512)", arguments="x, y"),
    "tempered": task("torch.softmax(x / y, dim=-1)", "torch.randn(256, 512), torch.tensor(0.5)", arguments="x, y"),
    "angles": task("torch.acos(x)", "torch.rand(256, 512) * 2 - 1"),
    "half products": task(
        "x * y",
        "torch.randn(256, 512, dtype=torch.bfloat16), torch.randn(256, 512, dtype=torch.bfloat16)",
        arguments="x, y",
    ),
    "learned mix": task(
        "x * torch.softmax(self.weight, dim=-1)",
        "torch.randn(256, 512)",
        setup="self.weight = nn.Parameter(torch.randn(256, 512))",
    ),
    "complement": task("torch.erfc(x)", "torch.randn(256, 512)"),
    "softplus": task("F.softplus(x)", "torch.randn(256, 512)"),
    "gated exponential": task("torch.exp(x) * y", "torch.randn(256, 512), torch.randn(256, 512)", arguments="x, y"),
    "gate": task("F.silu(x) * y", "6 * torch.randn(256, 512), torch.randn(256, 512)", arguments="x, y"),
    "weighed counts": task(
        "torch.zeros(at.shape[0], w.shape[0], dtype=torch.int64, device=at.device)"
        ".scatter_add(1, at, torch.ones_like(at)) * w",
        "torch.randint(0, 256, (ROWS, TOKENS)), torch.randint(1, 4, (256,))",
        arguments="at, w",
        sizes="ROWS, TOKENS = 16, 16384",
    ),
    "attention": task(
        "F.scaled_dot_product_attention(q, k, v)",
        "torch.randn(2, 64, 64), torch.randn(2, 64, 64), torch.randn(2, 64, 64)",
        arguments="q, k, v",
    ),
    "routed": task("torch.topk(torch.softmax(x, -1), 2, dim=-1)", "torch.randn(4096, 16, dtype=torch.bfloat16)"),
    "mean of all": task("torch.mean(x)", "torch.rand(2048, 2048)"),
    "at least": task("x >= y", "torch.randn(256, 512), torch.randn(256, 512)", arguments="x, y"),
    "logsumexp": task("torch.logsumexp(x, dim=-1)", "torch.randn(256, 512)"),
    "distances": task(
        "torch.sqrt((lambda d: (d * d).sum(dim=-1))(a.unsqueeze(1) - b.unsqueeze(0)))",
        "torch.randn(256, 32), torch.randn(256, 32)",
        arguments="a, b",
    ),
    "by its norm": task("x / torch.sqrt((x * x).sum(dim=-1, keepdim=True))", "torch.randn(256, 512)"),
    "wave": task("torch.sin(x)", "torch.randn(256, 512)"),
    "masked softmax": task(
        "torch.softmax(x.masked_fill(~m, float('-inf')), dim=-1)",
        "torch.randn(256, 512), torch.rand(256, 512) < 0.7",
        arguments="x, m",
    ),
    "added mask": task(
        "torch.softmax(x + m, dim=-1)",
        "torch.randn(256, 512), torch.where(torch.rand(256, 512) < 0.3, -10000.0, 0.0)",
        arguments="x, m",
    ),
    "walk": task(
        "(lambda w, s: reduce(lambda r, _: 0.85 * r @ w + 0.15 * s, range(20), s))"
        "(torch.softmax(torch.tanh(x), -1), torch.softmax(y, -1))",
        "torch.randn(NODES, NODES), torch.randn(STARTS, NODES)",
        arguments="x, y",
        sizes="from functools import reduce\n\nNODES, STARTS = 320, 4",
    ),
    "chain": task(
        "(lambda w, s: reduce(lambda p, _: p @ w, range(24), s))"
        "(F.normalize(x.abs(), p=1, dim=-1), F.normalize(y.abs(), p=1, dim=-1))",
        "torch.rand(STATES, STATES), torch.rand(STARTS, STATES)",
        arguments="x, y",
        sizes="from functools import reduce\n\nSTATES, STARTS = 256, 16",
    ),
    "growth": task(
        "x / (reduce(lambda u, _: F.normalize(x @ (x.mT @ u), dim=0), range(16), y) @ x).norm()",
        "torch.rand(ROWS, COLUMNS), torch.randn(ROWS)",
        arguments="x, y",
        sizes="from functools import reduce\n\nROWS, COLUMNS = 192, 256",
    ),
    "codes": task(
        "(x.unsqueeze(1) - y).square().sum(-1).amin(1)", "torch.randn(512, 32), torch.randn(64, 32)", arguments="x, y"
    ),
    "fit": task(
        "(x @ w - y).square().mean()",
        "torch.randn(16384, 16), torch.randn(16), torch.randn(16384)",
        arguments="x, w, y",
    ),
    "bytes apart": task(
        "(x.int() - y.int()).abs().sum(-1)",
        "torch.randint(0, 256, (256, 2048), dtype=torch.uint8), torch.randint(0, 256, (256, 2048), dtype=torch.uint8)",
        arguments="x, y",
    ),
    "shortest": task(
        "reduce(lambda d, _: torch.minimum(d, (d.unsqueeze(2) + x.abs()).amin(1)), range(24), y)",
        "torch.rand(PLACES, PLACES), torch.rand(STARTS, PLACES)",
        arguments="x, y",
        sizes="from functools import reduce\n\nPLACES, STARTS = 48, 8",
    ),
    "same rows": task(
        "(x.unsqueeze(0) == x.unsqueeze(1)).all(-1)",
        "torch.randint(0, 1000, (48, 2048))[torch.randint(0, 48, (48,))]",
    ),
    "still to come": task("torch.flip(torch.cumsum(torch.flip(x, [1]), 1), [1])", "torch.randn(256, 512)"),
    "sticks": task(
        "torch.exp(F.logsigmoid(x) + torch.flip(torch.cumsum(torch.flip(F.logsigmoid(-x), [1]), 1), [1])"
        " - F.logsigmoid(-x))",
        "torch.randn(256, 512) - 3",
    ),
    "pruned": task("torch.where(m, x, 0)", "torch.randn(256, 512), torch.rand(256, 512) < 0.5", arguments="x, m"),
    "added in bf16": task(
        "x + y", "torch.randn(256, 512).bfloat16(), torch.randn(256, 512).bfloat16()", arguments="x, y"
    ),
    "rendered": task(
        "(torch.cumprod(1 - torch.sigmoid(x), 1) * y).sum(1)",
        "torch.randn(512, 64), torch.randn(512, 64)",
        arguments="x, y",
    ),
    "taught": task(
        "-(torch.softmax(y, 1) * torch.log_softmax(x, 1)).sum(1)",
        "torch.randn(256, 512), torch.randn(256, 512)",
        arguments="x, y",
    ),
    "phase": task("torch.fmod(x, y)", "100 * torch.randn(256, 512), torch.rand(256, 512) + 0.5", arguments="x, y"),
    "imaginary": task("x * w + y * z", ", ".join(["torch.randn(256, 512)"] * 4), arguments="x, y, z, w"),
    "masked mean": task(
        "torch.where(m, x, 0).sum(-1) / m.sum(-1).clamp(min=1)",
        "torch.randn(256, 512), torch.rand(256, 512) < 0.5",
        arguments="x, m",
    ),
    "unit": task("F.normalize(x, dim=-1)", "torch.randn(256, 512)"),
    "quantise": task(
        "torch.round(x / (x.abs().amax(-1, keepdim=True) / 127)).to(torch.int8)", "torch.randn(256, 1024)"
    ),
    "above": task("(x > self.bias) * x", "torch.randn(256, 512)", **weighted("bias", features=512)),
    "days": task(
        "torch.div(x, y, rounding_mode='floor')",
        "torch.randint(0, 1800000000000000000, (256, 512)), torch.randint(3600000000000, 86400000000000, (256, 512))",
        arguments="x, y",
    ),
    "places": task(
        "x + F.embedding(y, self.weight)",
        "torch.randn(8, 256, 64), torch.arange(256)",
        arguments="x, y",
        setup="self.weight = nn.Parameter(torch.randn(256, 64))",
    ),
    "carried": task(
        "torch.tanh(x + h @ self.weight)",
        "torch.randn(64, 128), torch.zeros(64, 1024)",
        arguments="x, h",
        setup="self.weight = nn.Parameter(torch.randn(inner, n) / 32)",
        init=", inner, n",
        given="1024, 128",
    ),
    "mapped": task(
        "x @ self.weight",
        "torch.randn(64, 256)",
        setup="self.weight = nn.Parameter(torch.randn(inner, n) / 16)",
        init=", inner, n",
        given="256, 128",
    ),
    "kept": task(
        "torch.where(m > 0, x, 0).sum(-1)",
        "torch.randn(256, 512), torch.ones(256, 512, dtype=torch.int64)",
        arguments="x, m",
    ),
    "segments": task(
        "torch.zeros(64, x.shape[1], device=x.device).index_add(0, ids, x)",
        "torch.randn(4096, 64), torch.randint(0, 64, (4096,)).sort().values",
        arguments="x, ids",
    ),
    "even segments": task(
        "torch.zeros(ends.shape[0], x.shape[1], device=x.device).index_add("
        "0, torch.bucketize(torch.arange(x.shape[0], device=x.device), ends, right=True), x)",
        "torch.randn(4096, 64), (torch.arange(64) + 1) * 64",
        arguments="x, ends",
    ),
    "in order": task("torch.sort(x, dim=-1).values", "torch.randn(128, 512)"),
    "ids in order": task("torch.sort(ids, dim=-1).values", "torch.randint(0, 50000, (64, 1024))", arguments="ids"),
    "buckets": task(
        "torch.bucketize(x, self.edges)",
        "torch.randn(256, 512)",
        setup='self.register_buffer("edges", torch.linspace(-3, 3, 65))',
    ),
    "causal": task(
        "torch.softmax(x.masked_fill(~self.allowed, float('-inf')), dim=-1)",
        "torch.randn(4, TOKENS, TOKENS)",
        setup='self.register_buffer("allowed", torch.ones(TOKENS, TOKENS).tril().bool())',
        sizes="TOKENS = 256",
    ),
    "moving mean": task("F.avg_pool1d(x[None], 33, stride=1, padding=16)[0]", "torch.randn(256, 512)"),
    "learned powers": task(
        "torch.pow(x, self.weight)",
        "torch.rand(256, 512) + 0.5",
        setup="self.weight = nn.Parameter(torch.rand(n) * 2 + 0.5)",
        init=", n",
        given="512",
    ),
    "by its sum": task("x / x.sum(-1, keepdim=True)", "torch.rand(256, 512)"),
    "pixels": task(
        "torch.ceil(torch.sqrt(x * x + y * y) * 1000).int()",
        "torch.rand(256, 512), torch.rand(256, 512)",
        arguments="x, y",
    ),
    "slopes": task(
        "F.prelu(x, self.weight)",
        "torch.randn(256, 512)",
        setup="self.weight = nn.Parameter(torch.full((n,), 0.25))",
        init=", n",
        given="512",
    ),
    "between": task(
        "torch.lerp(x, y, t)",
        "torch.randn(256, 512), torch.randn(256, 512), torch.rand(256, 512)",
        arguments="x, y, t",
    ),
    "powers": task("torch.pow(x, y)", "torch.rand(256, 512) + 0.5, torch.randn(256, 512)", arguments="x, y"),
    "same lines": task(
        "(x.unsqueeze(1) == y.unsqueeze(0)).all(dim=-1)",
        "(y := torch.randint(0, 50000, (256, 24)))[torch.randint(0, 256, (192,))], y",
        arguments="x, y",
    ),
    "chances": task(
        "F.binary_cross_entropy(x, y, reduction='none')",
        "torch.rand(256, 512), torch.rand(256, 512)",
        arguments="x, y",
    ),
    "mean of chances": task(
        "F.binary_cross_entropy(x, y)", "torch.rand(256, 512), torch.rand(256, 512).round()", arguments="x, y"
    ),
    "firing": task(
        "(torch.matmul(x, self.weight) + self.bias >= 1.0).float()",
        "torch.randn(256, 128)",
        setup="self.weight = nn.Parameter(torch.randn(128, 64))\nself.bias = nn.Parameter(torch.zeros(64))",
    ),
    "levels": task(
        "torch.floor(x.mean(dim=1, keepdim=True) / self.step)",
        "torch.randn(256, 512)",
        setup="self.step = nn.Parameter(torch.rand(128) + 0.1)",
    ),
    "shared at ties": task(
        "torch.where(x == self.floor, 0.5 * y, torch.where(x > self.floor, y, torch.zeros_like(y))).sum(dim=0)",
        "torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS)",
        arguments="y, x",
        setup="self.floor = nn.Parameter(torch.randn(COLUMNS))",
        sizes="ROWS, COLUMNS = 256, 512",
    ),
    "taken step": task("(x - y, x.clone())", "torch.randn(256, 512), torch.randn(256, 512)", arguments="x, y"),
    "repeated": task(
        "(x + y, torch.tanh(y).repeat(x.shape[0], 1))", "torch.randn(256, 512), torch.randn(512)", arguments="x, y"
    ),
    "arcosine": task("torch.acosh(x)", "torch.rand(256, 512) * 9 + 1"),
    "spread products": task(
        "(x.unsqueeze(2) * y.unsqueeze(0)).sum(1)", "torch.randn(64, 256), torch.randn(256, 64)", arguments="x, y"
    ),
    "cut": task("F.threshold(x, 0.3725, -2.0)", "torch.randn(256, 512)"),
    "even steps": task("torch.clamp(torch.round(x * 16.0), -128.0, 127.0) * 0.0625", "torch.randn(256, 512)"),
    "counted": task("torch.histc(x, bins=50, min=-2.3, max=2.7)", "torch.randn(65536)"),
}
