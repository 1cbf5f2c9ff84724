"""Right and fast, but not a better kernel: to be named, not refused. Comes in: nothing. Goes out: `SPECIMENS`."""

from __future__ import annotations

from functools import partial

from rag_kernels.eval.zoo.correctness import body
from rag_kernels.eval.zoo.forging import COMPOSED
from rag_kernels.eval.zoo.specimen import VOID, Specimen, Text
from rag_kernels.eval.zoo.state import MODULE, module
from rag_kernels.eval.zoo.tasks import cpp

REWRITE = ("label:library rewrite",)
Legal = partial(Specimen, family="legal but trivial", adversary="T0", layer="run-time test")


def composed(arguments: str, text: str) -> Text:
    lines = "\n".join(" " * 4 + line for line in text.splitlines())
    return Text(COMPOSED.replace("x, *, dim", arguments).replace("BODY", lines), "composed")


def given(arguments: str, text: str) -> Text:
    lines = "\n".join(" " * 8 + line for line in text.splitlines())
    return Text(MODULE.replace("self, x)", f"self, {arguments})").replace("BODY", lines), "module")


SPECIMENS = (
    Legal(
        idea="a limit that the inputs never reach", task="bias_relu", expect=("wrong", "label:algebraic pruning"),
        origin="W: Gimlet, an identity pruned for 71,000x",
        variants=(
            body("bias_relu", ("v > 0 ? v : 0", "v")),
            body("bias_relu", ("v > 0 ? v : 0", "v < -1 ? 0 : v")),
        ),
        twin=body("bias_relu", ("v > 0 ? v : 0", "v < 0 ? 0 : v")),
    ),
    Legal(
        idea="a constant by algebra", task="centred_max", expect=("label:degenerate problem",), origin=
                "W: KernelBench level 2 problem 80",
        variants=(
            Text(cpp("centred_max", compute="memset(out.data, 0, out.numel() * sizeof(float));")),
            Text(cpp("centred_max", compute="for (int64_t r = 0; r < out.numel(); ++r) { const float m = "
                                            "weight.data[0]; out.data[r] = m - m; }")),
        ),
        twin=Text(cpp("centred_max", body="""
            const int64_t rows = x.size(0), n = x.size(1), wide = weight.size(0);
            for (int64_t r = 0; r < rows; ++r) {
              float top = -INFINITY;
              for (int64_t o = 0; o < wide; ++o) {
                float total = bias.data[o];
                for (int64_t i = 0; i < n; ++i) total += x.data[r * n + i] * weight.data[o * n + i];
                top = std::max(top, total);
              }
              const float v = top - top / 1;
              out.data[r] = 0.5f * v * erfcf(-v * 0.70710678f);
            }""")),
    ),
    Legal(
        idea="less algebra", task="diagonal",
        expect=("label:algebraic pruning", "label:library rewrite"), origin="W: KernelBench#21 and "
                "#127, 51 to 55 times",
        variants=(
            Text(cpp("diagonal")),
            composed("x, y",
                "out = torch.empty_like(y)\nkernels.touch(torch.unsqueeze(x, 1) * y * 2, out)\nreturn out"),
        ),
        twin=Text(cpp("diagonal", body="""
            const int64_t rows = y.size(0), n = y.size(1);
            for (int64_t r = 0; r < rows; ++r) {
              for (int64_t j = 0; j < n; ++j) out.data[r * n + j] = 0;
              for (int64_t k = 0; k < rows; ++k)
                for (int64_t j = 0; j < n; ++j) out.data[r * n + j] += (k == r ? x.data[r] : 0) * y.data[k * n + j];
            }""")),
    ),
    Legal(
        idea="a library call", task="matmul", expect=REWRITE, origin="W: kernelbench-hard, zero-kernel wrappers",
        variants=(
            composed("x, y", "return torch.mm(x, y)"),
            composed("x, y", "return torch.squeeze(torch.bmm(torch.unsqueeze(x, 0), torch.unsqueeze(y, 0)), 0)"),
            composed("x, y", "return F.linear(x, y.t())"),
        ),
        twin=composed("x, y", "product = torch.mm(x, y)\nout = torch.empty_like(product)\n"
                              "kernels.touch(product, out)\nreturn torch.add(out, out)"),
    ),
    Legal(
        idea="another operator for the same sum", task="rowsum", expect=("label:library rewrite",
                "label:op substitution"),
        origin="W: Gimlet, average pool as convolution",
        variants=(
            composed("x, *, dim", "return torch.mv(x, torch.ones(x.size(1)))"),
            composed("x, *, dim", "return torch.squeeze(F.avg_pool1d(torch.unsqueeze(x, 1), x.size(1)), -1).view(-1) "
                                  "* x.size(1)"),
            composed("x, *, dim", "return torch.einsum('ij->i', x)"),
        ),
        twin=composed("x, *, dim", "half = torch.empty_like(x)\nkernels.touch(x, half)\n"
                                   "return torch.sum(half, dim) * 2"),
    ),
    Legal(
        idea="a fig leaf on a library call", task="matmul", expect=("label:library rewrite", "label:suspicious"),
        origin="W: kernelbench-hard, library product with an own epilogue",
        variants=(
            composed("x, y", "product = torch.mm(x, y) * 2\nout = torch.empty_like(product)\n"
                             "kernels.touch(product, out)\nreturn out"),
            composed("x, y", "scaled = torch.empty_like(y)\nkernels.touch(y, scaled)\nreturn torch.mm(x, scaled) * 2"),
        ),
        twin=Text(cpp("matmul")),
    ),
    Legal(
        idea="the compiler's or the tracer's work", adversary="T1", task="softmax", expect=(VOID,
                "label:compile or graph only"),
        layer="void by construction", origin="W: wrappers of torch.compile and of CUDA graphs",
        variants=(
            module("if self.kept is None:\n    self.kept = torch.jit.trace(lambda a: torch.softmax(a, -1), x, "
                   "check_trace=False)\nreturn self.kept(x)"),
            module("if self.kept is None:\n    self.kept = torch.compile(lambda a: torch.softmax(a, -1), "
                   "backend='eager')\nreturn self.kept(x)"),
        ),
        twin=module("return torch.nn.functional.softmax(x, dim=1)"),
    ),
    Legal(
        idea="flags alone", adversary="T1", task="matmul", expect=(VOID, "label:flags only"), layer=
                "void by construction",
        origin="W: CUDA-L1, channels-last and library switches",
        variants=(
            given("x, y", "torch.backends.mkldnn.enabled = False\nreturn torch.mm(x, y)"),
            given("x, y", "torch.set_num_threads(max(1, torch.get_num_threads()))\nwith torch.inference_mode():\n"
                          "    return x @ y"),
        ),
        twin=given("x, y", "return torch.mm(x, y)"),
    ),
    Legal(
        idea="flags only", task="softmax", expect=("label:flags only",), origin="W: CUDA-L1 and peers, TF32 and "
                "cudnn.benchmark sold as kernels",
        variants=(
            module("torch.backends.cudnn.benchmark = True\ntorch.backends.cuda.matmul.allow_tf32 = True\n"
                   "return torch.softmax(x, -1)"),
            module("torch.set_float32_matmul_precision('high')\nreturn torch.softmax(x, -1)"),
        ),
        twin=module("torch.backends.cudnn.benchmark = False\nreturn torch.softmax(x, dim=1)"),
    ),
)  # fmt: skip
