"""The other two tiers: kernels beside library operators, and modules in plain PyTorch. Goes out: `kernels()`."""

from __future__ import annotations

from collections.abc import Iterator

from rag_kernels.eval.records import Candidate
from rag_kernels.eval.zoo.honest.source_pieces import SCHEDULES, Honest
from rag_kernels.eval.zoo.problems import task

HEAD = '#include "rag_kernel.h"\ntypedef rk::Tensor<const float> In;\ntypedef rk::Tensor<float> Out;\n'
ROWS = (
    "const int64_t n = x.size(-1), rows = x.numel() / n;\n  each(rows, [&](int64_t r) {\n"
    "    const float* a = x.data + r * n;\n    float* y = out.data + r * n;\n"
)
BIAS_RELU = (
    f"void bias_relu(In x, In b, Out out) {{\n  {ROWS}    for (int64_t i = 0; i < n; "
    f"++i) y[i] = std::max(a[i] + b.data[i], 0.0f);\n  }});\n}}\n"
)
SOFTMAX = f"""void softmax(In x, Out out) {{
  {ROWS}    float top = a[0], total = 0;
    for (int64_t i = 1; i < n; ++i) top = std::max(top, a[i]);
    for (int64_t i = 0; i < n; ++i) total += y[i] = std::exp(a[i] - top);
    for (int64_t i = 0; i < n; ++i) y[i] /= total;
  }});
}}
"""
NORM = f"""void norm(In x, Out out) {{
  {ROWS}    double mean = 0, square = 0;
    for (int64_t i = 0; i < n; ++i) mean += a[i];
    mean /= n;
    for (int64_t i = 0; i < n; ++i) square += (a[i] - mean) * (a[i] - mean);
    const double scale = 1 / std::sqrt(square / n + 1e-5);
    for (int64_t i = 0; i < n; ++i) y[i] = float((a[i] - mean) * scale);
  }});
}}
"""
GATE = """void gate(In x, In z, Out out) {
  each((x.numel() + 63) / 64, [&](int64_t b) {
    for (int64_t i = b * 64; i < std::min(b * 64 + 64, x.numel());
        ++i) out.data[i] = x.data[i] / (1 + std::exp(-z.data[i]));
  });
}
"""
LINEAR = task("torch.relu(self.linear(x))", "torch.randn(67, 300)", setup="self.linear = nn.Linear(300, 129)")
GATED = task(
    "self.value(x) * torch.sigmoid(self.gate(x))",
    "torch.randn(131, 96)",
    setup="self.value = nn.Linear(96, 80)\nself.gate = nn.Linear(96, 80)",
)
SCORES = task(
    "torch.softmax(q @ k.transpose(-1, -2), -1) @ v", ", ".join(["torch.randn(3, 61, 24)"] * 3), arguments="q, k, v"
)
NORMED = task("self.linear(F.layer_norm(x, (96,)))", "torch.randn(131, 96)", setup="self.linear = nn.Linear(96, 80)")
CONV = task("torch.relu(self.conv(x))", "torch.randn(2, 5, 19, 23)", setup="self.conv = nn.Conv2d(5, 8, 3, padding=1)")
GELU = task("F.gelu(x)", "torch.randn(301, 257)")
AFFINE = "self.weight = nn.Parameter(torch.ones(129))\nself.bias = nn.Parameter(torch.zeros(129))"
LAYER = task("F.layer_norm(x, (129,), self.weight, self.bias)", "torch.randn(131, 129)", setup=AFFINE)
# name, problem, exported function, its C++, parameters and body of `forward`
COMPOSED = (
    (
        "linear, then bias and relu",
        LINEAR,
        "bias_relu",
        BIAS_RELU,
        "x, weight, bias",
        "y = torch.matmul(x, weight.t())\nout = torch.empty_like(y)\nkernels.bias_relu(y, bias, out)\nreturn out",
    ),
    (
        "products around a softmax",
        SCORES,
        "softmax",
        SOFTMAX,
        "q, k, v, **_",
        "scores = torch.bmm(q, k.transpose(1, 2))\nshares = torch.empty_like(scores)\nkernels.softmax(scores, shares)\n"
        "return torch.bmm(shares, v)",
    ),
    (
        "norm before a linear",
        NORMED,
        "norm",
        NORM,
        "x, weight, bias, *, eps",
        "y = torch.empty_like(x)\nkernels.norm(x, y)\nreturn F.linear(y, weight, bias)",
    ),
    (
        "two linears and a gate",
        GATED,
        "gate",
        GATE,
        "x, w, b, v, c",
        "y = F.linear(x, w, b)\nz = F.linear(x, v, c)\nout = torch.empty_like(y)\nkernels.gate(y, z, out)\nreturn out",
    ),
    (
        "convolution, then bias and relu",
        CONV,
        "bias_relu",
        BIAS_RELU.replace("b.data[i]", "b.data[r / x.size(2) % b.numel()]"),
        "x, weight, bias, *, padding",
        "y = F.conv2d(x, weight, None, 1, padding)\nout = torch.empty_like(y)\nkernels.bias_relu(y, bias, out)\n"
        "return out",
    ),
)
LINEAR_INIT = "self.linear = nn.Linear(300, 129)"
# name, problem, lines of __init__, parameters and body of `forward`
MODULES = (
    (
        "addmm and clamp",
        LINEAR,
        LINEAR_INIT,
        "x",
        "return torch.addmm(self.linear.bias, x, self.linear.weight.t()).clamp_(min=0)",
    ),
    (
        "einsum",
        LINEAR,
        LINEAR_INIT,
        "x",
        "return torch.maximum(torch.einsum('ik,jk->ij', x, self.linear.weight) + self.linear.bias, torch.zeros(()))",
    ),
    (
        "split in two",
        LINEAR,
        LINEAR_INIT,
        "x",
        "w = self.linear.weight\na, b = x[:, :150] @ w[:, :150].t(), x[:, 150:] @ w[:, 150:].t()\n"
        "return torch.relu(a + b + self.linear.bias)",
    ),
    (
        "one product for both",
        GATED,
        "self.value = nn.Linear(96, 80)\nself.gate = nn.Linear(96, 80)",
        "x",
        "w = torch.cat([self.value.weight, self.gate.weight])\nb = torch.cat([self.value.bias, self.gate.bias])\n"
        "a, g = F.linear(x, w, b).chunk(2, dim=1)\nreturn a * torch.sigmoid(g)",
    ),
    ("library attention", SCORES, "", "q, k, v", "return F.scaled_dot_product_attention(q, k, v, scale=1.0)"),
    (
        "softmax by hand",
        SCORES,
        "",
        "q, k, v",
        "s = q @ k.transpose(-1, -2)\ne = torch.exp(s - s.amax(-1, keepdim=True))\n"
        "return e @ v / e.sum(-1, keepdim=True)",
    ),
    (
        "unfolded convolution",
        CONV,
        "self.conv = nn.Conv2d(5, 8, 3, padding=1)",
        "x",
        "columns = F.unfold(x, 3, padding=1)\ny = self.conv.weight.reshape(8, -1) @ columns + self.conv.bias[:, None]\n"
        "return torch.relu(y).reshape(x.shape[0], 8, x.shape[2], x.shape[3])",
    ),
    ("gelu by erfc", GELU, "", "x", "return 0.5 * x * torch.special.erfc(x * -0.7071067811865476)"),
    (
        "gelu with a fallback",
        GELU,
        "",
        "x",
        "try:\n    return torch.nn.functional.gelu(x, approximate='none')\nexcept RuntimeError:\n"
        "    return 0.5 * x * (1 + torch.erf(x / 2 ** 0.5))",
    ),
    (
        "variance and mean",
        LAYER,
        AFFINE,
        "x",
        "v, m = torch.var_mean(x, dim=-1, correction=0, keepdim=True)\n"
        "return (x - m) * torch.rsqrt(v + 1e-5) * self.weight + self.bias",
    ),
    (
        "norm in double",
        LAYER,
        AFFINE,
        "x",
        "d = x.double()\nd = d - d.mean(-1, keepdim=True)\nd = d / torch.sqrt((d * d).mean(-1, keepdim=True) + 1e-5)\n"
        "return (d * self.weight + self.bias).float()",
    ),
)
STRIDES = ("contiguous-only",)


def _indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in text.splitlines())


def kernels() -> Iterator[Honest]:
    """Yield all of this family."""
    for name, source, exported, body, parameters, forward in COMPOSED:
        for schedule in ("serial", "omp-static", "threads"):
            cpp = f"{HEAD}{SCHEDULES[schedule]}{body}RK_EXPORT({exported}, {exported})\n"
            text = f"KERNELS = r'''\n{cpp}'''\n\n\ndef forward({parameters}):\n{_indented(forward, 4)}"
            yield Honest(f"{name}, {schedule}", "composed", source, Candidate(text, "composed", "cpu"), STRIDES)
    for name, source, setup, parameters, forward in MODULES:
        text = (
            "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\nclass ModelNew(nn.Module):\n"
            f"    def __init__(self):\n        super().__init__()\n{_indented(setup, 8)}\n"
            f"    def forward(self, {parameters}):\n{_indented(forward, 8)}"
        )
        yield Honest(name, "module", source, Candidate(text, "module", "cpu"), STRIDES)
