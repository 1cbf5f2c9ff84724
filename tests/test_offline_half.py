"""Every schedule in sixteen bits, many in eight, in C++ and in emulated CUDA: rounded less often than PyTorch."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.eight_bits import both, narrowed, off_by_steps, results
from support.generated_kernels import HALF_RATIO, SMALL, Case, functional, halved, worst_ratio

from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.offline.codegen.cuda_functions import EXP_BELOW, EXP_BELOW_OF_BFLOAT16
from rag_kernels.offline.codegen.math_prelude import CUDA
from rag_kernels.offline.compose import Plan, write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda import region
from rag_kernels.offline.cuda.elements import kept_columns, stepped_points, strip_points
from rag_kernels.offline.cuda.function import CudaParameters
from rag_kernels.offline.cuda.texts.vectors import VECTORS

# What a case is about must stand in the CUDA text; and the case.
CASES = {
    "kept rows": (
        "_kept[ITEMS",
        Case("return x.softmax(-1) * y, F.layer_norm(x, (208,), y)", "torch.randn(5, 208)", "torch.randn(208)"),
    ),
    "rows of four": ("Pack<{}, 4>", Case("return x.softmax(-1) + y", "torch.randn(5, 204)", "torch.randn(204)")),
    "odd rows": ("forward_0<<<", Case("return x.softmax(-1) + y", "torch.randn(5, 201)", "torch.randn(201)")),
    "short rows": ("lanes", Case("return x.softmax(-1).max(-1)[0] + y", "torch.randn(37, 24)", "torch.randn(1)")),
    "long rows": (
        "MaxSum",
        Case("return x.softmax(-1) * y, torch.logsumexp(x, -1)", "torch.randn(3, 20800)", "torch.randn(20800)"),
    ),
    "columns": (
        "column_reduce",
        Case("return x / x.abs().sum(0), x.amax(0) + y", "torch.randn(130, 40)", "torch.randn(40)"),
    ),
    "columns that are kept": (
        "const int64_t k = part + 8 * j;",
        Case(
            "u = x.float(); m = u.mean(1, keepdim=True); v = (u - m).pow(2).mean(1, keepdim=True); "
            "return ((u - m) * torch.rsqrt(v + 1e-6)).to(x.dtype) * y[:, None], x.softmax(1), x.amax(1)",
            "torch.randn(3, 70, 44)",
            "torch.randn(70)",
        ),
    ),
    "columns of many": (
        "column_reduce_each(acc",
        Case(
            "return (x.float() * y).sum((0, 1)).to(x.dtype), x.amin((0, 1)), (x > 0).float().mean(0), "
            "x.square().sum(0) + y",
            "torch.randn(3, 71, 44)",
            "torch.randn(44)",
        ),
    ),
    "columns stored on the way": (
        "where_v.x[u] = ",
        Case(
            "d = torch.where(x > 0, y, 0.0); return d, d.float().sum(0)",
            "torch.randn(130, 48)",
            "torch.randn(130, 48)",
        ),
    ),
    "slots": (
        "cat_p + i0 * n0 + 104 + 8 * ",
        Case("return torch.cat([x * 2, y, x * y], -1)", "torch.randn(5, 104)", "torch.randn(5, 104)"),
    ),
    "slots of the same elements": (
        "// cat in 3 pieces: ",
        Case("return torch.cat([x, x * y, y.exp()], 1)", "torch.randn(5, 8, 13)", "torch.randn(5, 8, 13)"),
    ),
    "slots before others": (
        " + 5 * n6 + 8 * l_q) = ",
        Case("return torch.cat([x * 2, y.exp()], 1)", "torch.randn(3, 5, 40)", "torch.randn(3, 2, 40)"),
    ),
    "borders, shifts and sizes": (
        ": 4 fused loop nests",
        Case(
            "return F.pad(x, (2, 3, 1, 1), mode='reflect'), F.interpolate(x, scale_factor=2, mode='bilinear'), "
            "F.pad(F.pad(x, (1, 0, 0, 2)), (3, 1, 1, 1), mode='replicate'), torch.roll(x, (1, -2), (1, 3)) + y",
            "torch.randn(2, 3, 6, 11)",
            "torch.randn(11)",
        ),
    ),
    "windows side by side": (
        "_wide<<<",
        Case(
            "return F.max_pool1d(x, 3, 2, 1) + y, F.avg_pool1d(x, 5, 1, 2), F.max_pool1d(x, 2, 1, 0, 24), "
            "F.avg_pool1d(x, 4, 2)",
            "torch.randn(3, 7, 48)",
            "torch.randn(24)",
        ),
    ),
    "parts of windows": (
        ": 4 fused loop nests",
        Case(
            "z = F.avg_pool1d(x, 3, 1, 1); return F.silu(F.conv1d(x, y, padding=3, groups=7)[..., :48]), "
            "z[..., 1:] - z[..., :-1], F.conv1d(F.pad(x, (3, 0)), y, groups=7).relu(), "
            "F.conv1d(F.pad(x, (0, 5)), y, padding=1, stride=2, groups=7)",
            "torch.randn(3, 7, 48)",
            "torch.randn(7, 1, 4)",
        ),
    ),
    "windows of images side by side": (
        "uint64_t(-1 + i1 + r0) < uint64_t(n",
        Case(
            "z = F.conv2d(x, y, padding=1, groups=4); return F.relu(z), F.max_pool2d(x, 3, 2, 1), "
            "F.avg_pool2d(x, 2), F.conv2d(x, y, padding=2, dilation=2, groups=4) * x, "
            "*F.max_pool2d(x, 3, 1, 1, return_indices=True), F.conv2d(x, y[:, :, :1], padding=1, groups=4), "
            "-F.max_pool2d(-x, 3, 1, 1)",
            "torch.randn(2, 4, 10, 16)",
            "torch.randn(4, 1, 3, 3)",
        ),
    ),
    "whole pixels": (
        "2 * u + 1",
        Case(
            "z = x[..., 0] * 0.3 + x[..., 1] * 0.6 - x[..., 2] * y; "
            "return z, x.reshape(5, 144)[:, 1::2] * x.reshape(5, 144)[:, ::2], x.reshape(5, 48, 3)[..., 1].exp()",
            "torch.randn(5, 48, 3)",
            "torch.randn(48)",
        ),
    ),
    "places that images share": (
        "[step].x[u] = ",
        Case(
            "z = F.interpolate(x, scale_factor=2, mode='bilinear'); return z * y + F.interpolate(y, size=(12, 16)), "
            "F.interpolate(x, size=(9, 12), mode='bicubic'), F.interpolate(x, size=(9, 12), mode='bilinear', "
            "align_corners=True), F.grid_sample(x, torch.tanh(y[:2, 0, :, :8].reshape(2, 4, 12, 2)), "
            "align_corners=False)",
            "torch.randn(2, 6, 6, 8)",
            "torch.randn(2, 6, 12, 16)",
        ),
    ),
    "places that are read": (
        "// places_that_are_read: 1 fused loop nest",
        Case(
            "return F.grid_sample(x, y, align_corners=False) * 0.5",
            "torch.randn(2, 24, 5, 6)",
            "torch.randn(2, 4, 8, 2)",
        ),
    ),
    "weights that rows share": (
        "const Pack<{}, 8> w_v3 = *reinterpret_cast<",
        Case(
            "u, d = x.float(), y.float() * self.w.float(); r = torch.rsqrt(u.pow(2).mean(-1, keepdim=True) + 1e-6); "
            "return (r * (d - u * r * r * (d * u).mean(-1, keepdim=True))).to(x.dtype)",
            "torch.randn(5, 208)",
            "torch.randn(5, 208)",
            init="self.w = nn.Parameter(torch.rand(208) + 0.5)",
        ),
    ),
    "sums that meet together": (
        "row_reduce_each(Sum(), float(0), acc",
        Case("return x.sum(-1) * y / x.square().sum(-1)", "torch.randn(3, 4096)", "torch.randn(3)"),
    ),
    "norms of channels that are put last": (
        "_s0 = *reinterpret_cast<const Pack<{}, 8>*>(y_p + part * 8 + g * 8);",
        Case(
            "n = x.movedim(1, -1); return F.layer_norm(n, (64,), y, y), F.layer_norm(n[..., :40].exp(), (40,), y[:40])",
            "torch.randn(2, 64, 4, 6)",
            "torch.randn(64)",
        ),
    ),
    "masked rows whose exponentials are kept": (
        " = ITEMS ? dear",
        Case(
            "m = torch.ones(24, 40, dtype=torch.bool).triu(17); p = x.masked_fill(m, float('-inf')).float(); "
            "d = torch.arange(24.0)[:, None] - torch.arange(40.0); "
            "s = x * (torch.exp(d * -0.1) * (d >= 0)).to(x.dtype); "
            "r = s / s.float().abs().sum(-1, keepdim=True).clamp(min=1).to(x.dtype); "
            "return torch.softmax(p, -1).to(x.dtype) * y, r",
            "torch.randn(3, 24, 40)",
            "torch.randn(40)",
        ),
    ),
    "rows of odd length": (
        "+ 32 * u + threadIdx.x % 32;",
        Case(
            "return x[:, 1:, :-1] - x[:, :-1, :-1], x[:, :-1, 1:] - x[:, :-1, :-1], "
            "torch.tanh(x.transpose(0, 1)[:, :, 1:]) + y",
            "torch.randn(3, 5, 128)",
            "torch.randn(127)",
        ),
    ),
    "nests in blocks of their own": (
        "int64_t((blockIdx.x - end0)) * blockDim.x",
        Case(
            "return x * 2, y.exp() + 1, torch.cat([x[:, 3:], y, x[:, :2] * 2], 1)",
            "torch.randn(5, 40)",
            "torch.randn(5, 13)",
        ),
    ),
    "slots of two loops": (
        "// cat in 2 pieces: ",
        Case(
            "a = (x[..., None] * y).flatten(-2); return torch.cat([a.sin(), a.cos(), x], -1)",
            "torch.randn(5, 8)",
            "torch.randn(8)",
        ),
    ),
    "by a number": (
        " * 0.16666666666666666f",
        Case("return F.hardswish(x + y), F.hardsigmoid(x)", "torch.randn(6, 40) * 3", "torch.randn(40)"),
    ),
    "places that are taken at once, a vector for all": (
        "const Pack<{}, 4> y_v",
        Case(
            "z = F.interpolate(x, scale_factor=2, mode='bilinear'); return z * (2.0 - y)",
            "torch.randn(4, 2, 6, 8)",
            "torch.rand(12, 16)",
        ),
    ),
    "images of free sizes": (
        "= instance_norm.size(3);",
        Case("return F.instance_norm(x), x.mean((2, 3)) + y", "torch.randn(2, 3, 10, 12)", "torch.randn(3)"),
    ),
    "sigmoids": (
        "__fdividef(",
        Case(
            "return F.silu(x) * y, torch.sigmoid(x * 4), F.normalize(x.sigmoid(), dim=-1)",
            "torch.randn(6, 40) * 9",
            "torch.randn(40)",
        ),
    ),
    "an embedding alone": (
        "e_weight_v1 = *reinterpret_cast<",
        Case(
            "return self.e(y) * x",
            "torch.randn(32)",
            "torch.randint(0, 50, (3, 7))",
            init="self.e = nn.Embedding(50, 32)",
        ),
    ),
    "losses of long rows": (
        "loss",
        Case(
            "return F.cross_entropy(x, y), F.cross_entropy(x * 2, y, label_smoothing=0.1)",
            "torch.randn(70, 264)",
            "torch.randint(0, 264, (70,))",
        ),
    ),
    "losses of rows too long to keep": (
        "take_below_near(",
        Case("return F.cross_entropy(x, y)", "torch.randn(3, 20800)", "torch.randint(0, 20800, (3,))"),
    ),
    "scans": (
        "of_earlier<1>",
        Case("return x.cumsum(-1), (x * y).cumsum(-1) * 2", "torch.randn(4, 640)", "torch.randn(640)"),
    ),
    "points": (
        "Pack<{}, 8>",
        Case("return F.gelu(x) * y + x[:, :1], F.silu(x)", "torch.randn(9, 64)", "torch.randn(64)"),
    ),
    "residual and norm": (
        "add_arg_v.x[u]",
        Case(
            "s = x + y; return s, s * torch.rsqrt(s.float().square().mean(-1, True) + 1e-6).to(s.dtype)",
            "torch.randn(7, 96)",
            "torch.randn(7, 96)",
        ),
    ),
    "halves rotated": (
        "+ 8 +",
        Case(
            "return x * y + torch.cat([-x[..., 8:], x[..., :8]], -1) * y.sin()",
            "torch.randn(2, 5, 16)",
            "torch.randn(5, 16)",
        ),
    ),
    "pairs": (
        "Pack<{}, 8>",
        Case(
            "a, b = x[..., 0], x[..., 1]; return torch.stack([a * y - b, a + b * y], -1)",
            "torch.randn(2, 5, 16, 2)",
            "torch.randn(5, 16)",
        ),
    ),
    "pairs by slices": (
        "2 * u",
        Case(
            "a, b = x[..., ::2], x[..., 1::2]; r = torch.stack([-b, a], -1).flatten(-2); return x * y.cos() + r * y",
            "torch.randn(3, 5, 48)",
            "torch.randn(5, 48)",
        ),
    ),
    "three to a lane": (
        "Pack<{}, 24>",
        Case("return (x * y[..., None]).tanh() + x[..., 1:2]", "torch.randn(4, 16, 3)", "torch.randn(16)"),
    ),
    "pairs of odd number": (
        "forward_0<<<",
        Case("return torch.stack([x * y, x - y], -1)", "torch.randn(4, 15)", "torch.randn(15)"),
    ),
    "masks and choices": (
        "bool",
        Case(
            "return torch.where(y > 0, x, -x).masked_fill(x > 1, 0.5), (x > y).sum(-1), x.float() * 2, "
            "x.clamp(-1, 0.5)",
            "torch.randn(6, 40)",
            "torch.randn(40)",
        ),
    ),
    "embedding and norm": (
        "e_weight_v1_kept[ITEMS",
        Case(
            "return F.rms_norm(self.e(y), (32,)) + x",
            "torch.randn(32)",
            "torch.randint(0, 50, (3, 7))",
            init="self.e = nn.Embedding(50, 32)",
        ),
    ),
    "losses": (
        "scratch<",
        Case(
            "return F.cross_entropy(x, y), F.mse_loss(x, x.sin())", "torch.randn(29, 40)", "torch.randint(0, 40, (29,))"
        ),
    ),
    "images": (
        "forward_0",
        Case(
            "return F.relu(F.batch_norm(x, self.m.detach(), self.v.detach())), F.silu(F.group_norm(x, 2)), "
            "F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1) + y",
            "torch.randn(3, 8, 10, 12)",
            "torch.randn(1)",
            init="self.m, self.v = nn.Parameter(torch.randn(8)), nn.Parameter(torch.rand(8) + 0.5)",
        ),
    ),
}
# In C++ a schedule of each kind is built: what is left of sixteen bits there are conversions of elements.
IN_CPP = (
    "short rows",
    "long rows",
    "columns of many",
    "slots",
    "borders, shifts and sizes",
    "parts of windows",
    "whole pixels",
    "places that images share",
    "weights that rows share",
    "rows of odd length",
    "losses of long rows",
    "scans",
    "masks and choices",
    "embedding and norm",
    "images",
)
C_TYPES = {"bfloat16": "__nv_bfloat16", "float16": "__half"}
# What a text calls one type, and the other.
NAMES = [
    ("__half", "__nv_bfloat16"),
    ("cuda_fp16.h", "cuda_bf16.h"),
    ("rk::f16", "rk::bf16"),
    ("_float16", "_bfloat16"),
]


def written(name: str, dtype: str, parameters: CpuParameters | CudaParameters) -> tuple[FunctionalProblem, Plan]:
    fp = functional(name.replace(" ", "_"), halved(CASES[name][1], dtype))
    plan = write(fp, parameters)
    assert plan is not None and plan.candidate.tier == "kernel"
    return fp, plan


def as_in_bfloat16(plan: Plan) -> str:
    """The text as of bfloat16, but for how an element of a vector is converted; exponentials have a text for each."""
    conversions = [(piece.text, "") for piece in VECTORS if piece.name == "float_at"]
    conversions.append((CUDA[EXP_BELOW][0], CUDA[EXP_BELOW_OF_BFLOAT16][0]))
    return functools.reduce(lambda text, names: text.replace(*names), [*conversions, *NAMES], plan.candidate.source)


@pytest.mark.parametrize("name", CASES)
def test_every_schedule_in_sixteen_bits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the two types is built and called, by turns: the text of the other is the same but for the type's name,
    and for how an element of a vector is converted.
    """
    dtype, other = (*C_TYPES, *C_TYPES)[list(CASES).index(name) % 2 :][:2]
    fp, plan = written(name, dtype, CpuParameters(products=2))
    assert as_in_bfloat16(plan) == as_in_bfloat16(written(name, other, CpuParameters(products=2))[1])
    if name in IN_CPP:
        assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < HALF_RATIO
    monkeypatch.setattr(numbers, "build", build_emulated)
    monkeypatch.setattr(region, "MANY_COLUMNS", 1)
    monkeypatch.setattr(stepped_points, "FULL", 1)
    monkeypatch.setattr(kept_columns, "FULL", 1)
    monkeypatch.setattr(strip_points, "FULL", 1)
    fp, plan = written(name, dtype, SMALL)
    assert CASES[name][0].format(C_TYPES[dtype]) in plan.candidate.source
    assert as_in_bfloat16(plan) == as_in_bfloat16(written(name, other, SMALL)[1])
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < HALF_RATIO


EIGHT_BITS = ("float8_e4m3fn", "float8_e5m2")
STEPS = 2e-3  # of all elements: near to the middle of two numbers the order of a sum decides
IN_EIGHT_BITS = (
    "kept rows",
    "odd rows",
    "columns stored on the way",
    "slots",
    "windows of images side by side",
    "whole pixels",
    "places that images share",
    "embedding and norm",
)


@pytest.mark.parametrize("name", IN_EIGHT_BITS)
def test_schedules_in_eight_bits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region, "MANY_COLUMNS", 1)
    monkeypatch.setattr(stepped_points, "FULL", 1)
    monkeypatch.setattr(kept_columns, "FULL", 1)
    monkeypatch.setattr(strip_points, "FULL", 1)
    fp = narrowed(name.replace(" ", "_"), CASES[name][1], EIGHT_BITS[IN_EIGHT_BITS.index(name) % 2])
    for _, call in both(fp, tmp_path, monkeypatch):
        assert max(off_by_steps(a, b) for a, b in results(fp, call)) <= STEPS
