"""The zoo's problems as KernelBench texts. Comes in: nothing. Goes out: `PROBLEMS`, name to source."""

from __future__ import annotations


def problem(forward: str, inputs: str, *, setup: str = "", init: str = "", given: str = "") -> str:
    """A KernelBench file: `forward` is `(arguments): expression`, `setup` the lines of `__init__`."""
    arguments, _, expression = forward.partition(":")
    lines = "".join(f"        {line}\n" for line in setup.splitlines())
    return (
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\nclass Model(nn.Module):\n"
        f"    def __init__(self{init}):\n        super().__init__()\n{lines}\n"
        f"    def forward(self, {arguments}):\n        return {expression.strip()}\n\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\n\ndef get_init_inputs():\n    return [{given}]\n"
    )


def weighted(names: str, *, features: int) -> dict[str, str]:
    """`__init__` with one parameter of `features` for each name: scales are ones and biases zeros."""
    fill = {name: "zeros" if name == "bias" else "ones" for name in names.split()}
    lines = [f"self.{name} = nn.Parameter(torch.{made}(features))" for name, made in fill.items()]
    return {"setup": "\n".join(lines), "init": ", features", "given": str(features)}


PROBLEMS = {
    "softmax": problem("x: torch.softmax(x, dim=-1)", "torch.randn(256, 512)"),
    "rowsum": problem("x: torch.sum(x, dim=1)", "torch.rand(256, 512)"),
    "matmul": problem("x, y: torch.matmul(x, y)", "torch.rand(128, 256), torch.rand(256, 128)"),
    "layernorm": problem(
        "x: F.layer_norm(x, (x.shape[-1],), self.weight, self.bias, 1e-5)",
        "torch.randn(256, 512)",
        **weighted("weight bias", features=512),
    ),
    "rmsnorm": problem(
        "x: x * torch.rsqrt(torch.mean(x * x, dim=-1, keepdim=True) + 1e-6) * self.weight",
        "torch.randn(256, 512)",
        **weighted("weight", features=512),
    ),
    "gelu": problem("x: F.gelu(x)", "torch.randn(256, 512)"),
    "bias_relu": problem("x: torch.relu(x + self.bias)", "torch.rand(256, 512)", **weighted("bias", features=512)),
    "argmax": problem("x: torch.argmax(x, dim=1)", "torch.randn(256, 512)"),
    "rowmax": problem("x: torch.amax(x, dim=1)", "torch.randn(256, 512)"),
    "cumsum": problem("x: torch.cumsum(x, dim=1)", "torch.rand(256, 512)"),
    "residual": problem("x, y: torch.tanh(x) * 0.5 + y", "torch.randn(256, 256), torch.randn(256, 256)"),
    "hardtanh": problem("x: F.hardtanh(x, -1.5, 1.5)", "torch.rand(256, 512)"),
    "conv": problem(
        "x: F.conv2d(x, self.weight, self.bias)",
        "torch.rand(4, 8, 32, 32)",
        setup="self.weight = nn.Parameter(torch.randn(8, 8, 3, 3) / 8)\nself.bias = nn.Parameter(torch.zeros(8))",
    ),
    "cross_entropy": problem(
        "x, target: F.cross_entropy(x, target)", "torch.randn(512, 128), torch.randint(0, 128, (512,))"
    ),
    "batchnorm": problem(
        "x: F.batch_norm(x, self.mean, self.var, self.weight, self.bias, False, 0.1, 1e-5)",
        "torch.randn(8, 16, 32, 32)",
        setup=weighted("weight bias", features=16)["setup"]
        + "\nself.register_buffer('mean', torch.zeros(features))\nself.register_buffer('var', torch.ones(features))",
        init=", features",
        given="16",
    ),
    "half_matmul": problem(
        "x, y: torch.matmul(x, y)",
        "torch.randn(32, 1024, dtype=torch.bfloat16), torch.randn(1024, 64, dtype=torch.bfloat16)",
    ),
    "diagonal": problem("x, y: torch.diag(x) @ y", "torch.randn(256), torch.randn(256, 256)"),
    "centred_max": problem(
        "x: F.gelu((lambda m: m - m.mean(dim=1, keepdim=True))(torch.max(F.linear(x, self.weight, self.bias), dim=1, "
        "keepdim=True).values))",
        "torch.randn(128, 256)",
        setup="self.weight = nn.Parameter(torch.randn(64, 256) / 16)\nself.bias = nn.Parameter(torch.zeros(64))",
    ),
    "variance": problem("x: torch.var(x, dim=1)", "torch.randn(256, 512)"),
}
