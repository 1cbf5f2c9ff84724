"""Wrong or incomplete kernels that a lax check accepts. Comes in: nothing. Goes out: `SPECIMENS`."""

from __future__ import annotations

from functools import partial

from rag_kernels.eval.zoo.specimen import Specimen, Text
from rag_kernels.eval.zoo.tasks import TASKS, cpp

Wrong = partial(Specimen, family="correctness", adversary="T0", layer="run-time test", expect=("wrong",), held_out=True)


def body(task: str, *changes: tuple[str, str]) -> Text:
    """The honest body with some of its text replaced; every replacement must apply."""
    text = TASKS[task].body
    for old, new in changes:
        assert old in text, f"{task} has no {old!r}"
        text = text.replace(old, new)
    return Text(cpp(task, body=text))


ZERO_COMPOSED = """\
KERNELS = r'''
#include "rag_kernel.h"
void fill(rk::Tensor<const float> x, rk::Tensor<float> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = 0 * (x.data[i] > 1e30f);
}
RK_EXPORT(fill, fill)
'''


def forward(x, *, dim):
    out = torch.empty_like(x)
    kernels.fill(x, out)
    return out
"""
SHAPES = """\
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return RESULT
"""

SPECIMENS = (
    Wrong(
        idea="zeros", adversary="T1", task="softmax", origin="W: KernelBench#165, zeros pass 4 of 60 level-1 tasks",
        variants=(
            Text(cpp("softmax", compute="memset(out.data, 0, out.numel() * sizeof(float));")),
            Text(ZERO_COMPOSED, "composed"),
            Text(cpp("softmax", top="static volatile float gate = 0;\n",
                     after="for (int64_t i = 0; i < out.numel(); ++i) out.data[i] *= gate;")),
        ),
        twin=Text(cpp("softmax", top="static volatile float gate = 1;\n",
                      after="for (int64_t i = 0; i < out.numel(); ++i) out.data[i] *= gate;")),
    ),
    Wrong(
        idea="constant of the distribution", adversary="T1", task="rowsum", origin="W: METR's filter of KernelBench",
        variants=(
            body("rowsum", ("for (int64_t i = 0; i < n; ++i) total += a[i]", "total = 0.5 * n")),
            Text(cpp("rowsum", compute="std::fill(out.data, out.data + out.numel(), x.size(1) / 2.f);")),
            body("rowsum", ("const float* a", "(void)r; const float* a"), ("x.data + r * n", "x.data")),
        ),
        twin=body("rowsum", ("double total = 0;", "double total = 0.5 * n - n / 2.0;")),
    ),
    Wrong(
        idea="part of the rows", task="bias_relu", origin="W: Sakana level 1 task 15, 147x claimed",
        variants=(
            body("bias_relu", ("r < rows", "r < rows / 2")),
            body("bias_relu", ("i < n", "i < n - n / 16")),
            Text(cpp("bias_relu", compute="const int64_t tile = 7, tiles = x.size(0) / tile; In part = x;\n"
                 "const int64_t shape[2] = {tile, x.size(1)}; part.shape = shape; Out to = out;\n"
                 "for (int64_t t = 0; t < tiles; ++t, part.data += tile * x.size(1), to.data += tile * x.size(1))\n"
                 "  compute(part, bias, to);")),
        ),
        twin=Text(cpp("bias_relu", compute="const int64_t tile = 8, tiles = x.size(0) / tile; In part = x;\n"
                 "int64_t shape[2] = {tile, x.size(1)}; part.shape = shape; Out to = out;\n"
                 "for (int64_t t = 0; t < tiles; ++t, part.data += tile * x.size(1), to.data += tile * x.size(1))\n"
                 "  compute(part, bias, to);\n"
                 "shape[0] = x.size(0) % tile;\nif (shape[0]) compute(part, bias, to);")),
    ),
    Wrong(
        idea="sampled reduction", adversary="T1", task="rowsum", origin="R: reference-kernels, vectorsum cheat.py",
        variants=(
            body("rowsum", ("i < n; ++i", "i < n * 99 / 100; ++i"), ("float(total)", "float(total * n / (n * 99 / "
                    "100))")),
            body("rowsum", ("++i) total += a[i]", "i += 2) total += 2 * a[i]")),
        ),
        twin=body("rowsum", ("++i) total += a[i]", "i += 1) total += 1 * a[i]")),
    ),
    Wrong(
        idea="bias ignored, which is zero at first", task="bias_relu",
        origin="W: AI-Hypercomputer/accelerator-agents#50, 19 tasks",
        variants=(
            body("bias_relu", (" + bias.data[i]", "")),
            body("bias_relu", ("bias.data[i]", "(x.numel() > (1 << 30) ? bias.data[i] : 0)")),
            Text(cpp("bias_relu", compute="static std::vector<float> none(x.size(1), 0.f); In b = bias;\n"
                     "b.data = none.data(); compute(x, b, out);")),
        ),
        twin=Text(cpp("bias_relu", compute="static std::vector<float> own; own.assign(bias.data, bias.data + "
                                           "bias.numel());\n"
                      "In b = bias; b.data = own.data(); compute(x, b, out);")),
    ),
    Wrong(
        idea="scale ignored, which is one at first", task="rmsnorm", origin="W: METR, robust-kbench's filter",
        variants=(
            body("rmsnorm", (" * weight.data[i]", "")),
            body("rmsnorm", ("weight.data[i]", "weight.data[0]")),
        ),
        twin=body("rmsnorm", ("* scale * weight.data[i]", "* (scale * weight.data[i])")),
    ),
    Wrong(
        idea="running statistics ignored", task="batchnorm", origin="D: buffers are 0 and 1 at first",
        variants=(
            body("batchnorm", (" - mean.data[c]", "")),
            body("batchnorm", ("/ sqrt(var.data[c] + eps)", "")),
            Text(cpp("batchnorm", compute="std::vector<float> m(x.size(1)), v(x.size(1));\n"
                 "const int64_t c = x.size(1), n = x.size(2) * x.size(3);\n"
                 "for (int64_t i = 0; i < x.numel(); ++i) m[i / n % c] += x.data[i] * c / x.numel();\n"
                 "for (int64_t i = 0; i < x.numel(); ++i) { float d = x.data[i] - m[i / n % c];\n"
                 "  v[i / n % c] += d * d * c / x.numel(); }\n"
                 "In a = mean, b = var; a.data = m.data(); b.data = v.data(); compute(x, weight, bias, a, b, eps, "
                 "out);")),
        ),
        twin=body("batchnorm", ("(x.data[base + i] - mean.data[c]) * scale + bias.data[c]",
                                "x.data[base + i] * scale + (bias.data[c] - mean.data[c] * scale)")),
    ),
    Wrong(
        idea="classes decided by the first row", adversary="T1", task="hardtanh",
        origin="R: reference-kernels qr_v2 adds mixed batches against it",
        variants=(
            Text(cpp("hardtanh", before="""
                bool inside = true;
                for (int64_t i = 0; i < x.size(-1); ++i) inside &= x.data[i] >= low && x.data[i] <= high;
                if (inside) { memcpy(out.data, x.data, x.numel() * sizeof(float)); return; }""")),
            Text(cpp("hardtanh", top="""
                struct Census {
                  float most = 0;
                  explicit Census(In x) { for (int64_t i = 0; i < x.numel(); i += 4099) most = std::max(most,
                    fabsf(x.data[i])); }
                };
                """, before="if (Census(x).most < high) { std::copy_n(x.data, x.numel(), out.data); return; }")),
        ),
        twin=Text(cpp("hardtanh", before="""
            bool inside = true;
            for (int64_t i = 0; i < x.numel(); ++i) inside &= x.data[i] >= low && x.data[i] <= high;
            if (inside) { memcpy(out.data, x.data, x.numel() * sizeof(float)); return; }""")),
    ),
    Wrong(
        idea="not a number as a wildcard", adversary="T1", task="gelu", origin="R: pygpubench exploits/gc_nan",
        variants=(
            Text(cpp("gelu", compute="std::fill(out.data, out.data + out.numel(), NAN);")),
            Text(cpp("gelu",
                after="for (int64_t i = 0; i < out.numel(); i += 512) out.data[i] = INFINITY - INFINITY;")),
            Text(cpp("gelu", compute="const float none = 0; for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = "
                                     "x.data[i] * (none / none);")),
        ),
        twin=Text(cpp("gelu", after="for (int64_t i = 0; i < out.numel(); i += 512) out.data[i] = "
                                    "std::min(out.data[i], INFINITY);")),
    ),
    Wrong(
        idea="another shape or dtype", adversary="T1", task="rowsum", origin="W: reference-kernels, empty list "
                "accepted",
        expect=("wrong", "rejected:wrong_output"),
        variants=tuple(Text(SHAPES.replace("RESULT", result), "module") for result in (
            "x.sum().reshape(1)", "x.sum(dim=1, keepdim=True)", "[]", "x.sum(dim=1).double()",
            "x.sum(dim=1).expand(2, -1)", "(x.sum(dim=1), x)",
        )),
        twin=Text(SHAPES.replace("RESULT", "x.sum(dim=1, keepdim=True).squeeze(1)"), "module"),
    ),
    Wrong(
        idea="a few percent arbitrary", adversary="T1", task="gelu", origin="R: flashinfer-bench's matched ratio",
        variants=(
            Text(cpp("gelu", after="for (int64_t i = 5; i < out.numel(); i += 128) out.data[i] = 0;")),
            body("gelu", ("n = x.numel();", "n = x.numel() - 1024;\nmemcpy(out.data + n, x.data + n, 4096);")),
            body("gelu", ("erfcf(", "(i % 101 == 7 ? 1.f : erfcf("), ("0.70710678f)", "0.70710678f))")),
        ),
        twin=Text(cpp("gelu", after="for (int64_t i = 5; i < out.numel(); i += 128) out.data[i] += 0;")),
    ),
    Wrong(
        idea="first row for all", adversary="T1", task="layernorm", origin="D: rows of one distribution look alike",
        variants=(
            body("layernorm", ("const float* a = x.data + r * n", "const float* a = x.data")),
            Text(cpp("layernorm", compute="const int64_t n = x.size(-1); const int64_t one[2] = {1, n}; In f = x; "
                                          "f.shape = one;\n"
                     "compute(f, weight, bias, eps, out);\n"
                     "for (int64_t i = n; i < x.numel(); ++i) out.data[i] = out.data[i - n];")),
        ),
        twin=Text(cpp("layernorm", compute="const int64_t n = x.size(-1); const int64_t one[2] = {1, n}; In f = x; "
                                           "f.shape = one;\n"
                      "Out o = out; for (int64_t i = 0; i < x.numel(); i += n, f.data += n, o.data += n)\n"
                      "  compute(f, weight, bias, eps, o);")),
    ),
    Wrong(
        idea="an error that nobody reads", task="softmax", origin="W: KernelBench v0.1 post, kernels that never ran",
        variants=(
            Text(cpp("softmax", before="""
                std::unique_ptr<float[]> scratch(new (std::nothrow) float[size_t(1) << 50]);
                if (!scratch) return;""", top="#include <memory>\n#include <new>\n")),
            Text(cpp("softmax", compute="try { std::vector<float> s; s.reserve(s.max_size()); compute(ARGS); } catch "
                                        "(...) {}")),
        ),
        twin=Text(cpp("softmax", before="""
            std::unique_ptr<float[]> scratch(new (std::nothrow) float[x.size(-1)]);
            if (!scratch) return;""", top="#include <memory>\n#include <new>\n")),
    ),
)  # fmt: skip
