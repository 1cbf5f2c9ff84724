"""Families that memory bounds, as the offline writer drafts them: their share of a copy, beside eager and compile.

    python tests/bench/memory_bound.py [--dtype bfloat16] [--only NAME ...] [--rows 1024 ...] [--quick] [--out FILE]
    python tests/bench/memory_bound.py --neighbours [--dtype bfloat16] [--only NAME ...] [--quick] [--out FILE]

Needs a GPU. Each family runs at several lengths of a row, with as many rows as make some 128 million elements (a few
have one size). The first draft is built by the judge's compiler and timed by CUDA events, other data in the L2 cache
before each call; so are eager PyTorch, `torch.compile`, and a copy of as many bytes as the problem must move (each
input and output once), whose rate is the row's 100 %. Errors are against the module in float64, over eager's own.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tvm_ffi
from baseline_clock import NONE, N, by_events

from rag_kernels.eval.build.candidate_form import check_composed, kernels_text
from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.eval.records import FunctionalProblem, Problem, TensorArgument
from rag_kernels.ingest.functional.functionalize_child import functionalize_here
from rag_kernels.offline.compose import Plan, write
from rag_kernels.offline.tuning import starting_parameters

TOTAL = 1 << 27  # elements of a tensor, about
LENGTHS = (1024, 8192, 65536, 262144)
RMS = "h = {x}.float(); y = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.w"
HALF_ROTATED = "torch.cat([-x[..., x.shape[-1] // 2:], x[..., :x.shape[-1] // 2]], -1)"
WEIGHTED = "self.w = nn.Parameter(torch.rand({n}) + 0.5)"

# name -> (init, forward's arguments and their makers, body); {r} rows of {n} elements
ROWS: dict[str, tuple[str, dict[str, str], str]] = {
    "softmax": ("pass", {"x": "torch.randn({r}, {n})"}, "return torch.softmax(x, -1)"),
    "rms_norm": (WEIGHTED, {"x": "torch.randn({r}, {n})"}, RMS.format(x="x") + "; return y"),
    "residual_rms_norm": (
        WEIGHTED,
        {"x": "torch.randn({r}, {n})", "res": "torch.randn({r}, {n})"},
        "s = x + res; " + RMS.format(x="s") + "; return y, s",
    ),
    "layer_norm": (
        "self.ln = nn.LayerNorm({n})",
        {"x": "torch.randn({r}, {n})"},
        "return self.ln(x)",
    ),
    "cross_entropy": (
        "pass",
        {"x": "torch.randn({r}, {n})", "t": "torch.randint(0, {n}, ({r},))"},
        "return F.cross_entropy(x, t)",
    ),
    "quantise_rows": (
        "pass",
        {"x": "torch.randn({r}, {n})"},
        "s = x.abs().amax(-1, keepdim=True).float() / 127; return (x.float() / s).round().to(torch.int8), s",
    ),
    "silu_gate": ("pass", {"x": "torch.randn({r}, {n})", "g": "torch.randn({r}, {n})"}, "return F.silu(g) * x"),
}
ONCE: dict[str, tuple[str, dict[str, str], str]] = {
    "gelu_gate_split": ("pass", {"x": "torch.randn(8192, 28672)"}, "a, b = x.chunk(2, -1); return F.gelu(a) * b"),
    "rope_halves": (
        "pass",
        {"x": "torch.randn(8, 32, 4096, 128)", "c": "torch.randn(4096, 128)", "s": "torch.randn(4096, 128)"},
        f"return x * c + {HALF_ROTATED} * s",
    ),
    "rope_pairs": (
        "pass",
        {"x": "torch.randn(8, 4096, 32, 64, 2)", "c": "torch.randn(4096, 1, 64)", "s": "torch.randn(4096, 1, 64)"},
        "a, b = x[..., 0], x[..., 1]; return torch.stack([a * c - b * s, a * s + b * c], -1)",
    ),
    "group_norm_silu": (
        "self.gn = nn.GroupNorm(32, 512)",
        {"x": "torch.randn(32, 512, 64, 64)"},
        "return F.silu(self.gn(x))",
    ),
    "batch_norm_relu": (
        "self.bn = nn.BatchNorm2d(256).eval()",
        {"x": "torch.randn(64, 256, 56, 56)"},
        "return F.relu(self.bn(x))",
    ),
    "embedding_rms_norm": (
        "self.e = nn.Embedding(32000, 4096); self.w = nn.Parameter(torch.ones(4096))",
        {"t": "torch.randint(0, 32000, (8, 4096))"},
        "x = self.e(t); " + RMS.format(x="x") + "; return y",
    ),
    "adamw": (
        "pass",
        {name: "torch.rand(8192, 8192)" for name in ("p", "g", "m", "v")},
        "m = 0.9 * m + 0.1 * g; v = 0.999 * v + 0.001 * g * g; return p - 1e-3 * m / (v.sqrt() + 1e-8), m, v",
    ),
    "dequantise_blocks": (
        "pass",
        {"q": "torch.randint(-127, 127, (8192, 128, 64)).to(torch.int8)", "s": "torch.rand(8192, 128, 1)"},
        "return q.to(s.dtype) * s",
    ),
    "layer_norm_weight_gradient": (
        "pass",
        {"x": "torch.randn(16384, 8192)", "g": "torch.randn(16384, 8192)"},
        "return (x.float() * g.float()).sum(0).to(x.dtype), g.float().sum(0).to(x.dtype)",
    ),
    "top_gate": ("pass", {"x": "torch.randn(262144, 128)"}, "v, i = torch.softmax(x, -1).max(-1); return v, i"),
    "prefix_sum": ("pass", {"x": "torch.randn(8192, 8192)"}, "return x.cumsum(-1)"),
    "prefix_sum_flat": ("pass", {"x": "torch.randn(67108864)"}, "return x.cumsum(0)"),
    "sum_all": ("pass", {"x": "torch.randn(134217728)"}, "return x.sum()"),
    "quantise_tokens_e4m3": (
        "pass",
        {"x": "torch.randn(16384, 4096)"},
        "s = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-4) / 448; "
        "return (x.float() / s).clamp(-448, 448).to(torch.float8_e4m3fn), s",
    ),
    "quantise_blocks_e4m3": (
        "pass",
        {"x": "torch.randn(16384, 4096)"},
        "u = x.view(16384, 32, 128).float(); m = u.abs().amax(-1, keepdim=True).clamp(min=1e-4); "
        "q = (u * (448.0 / m)).clamp(-448, 448).to(torch.float8_e4m3fn); "
        "return q.view(16384, 4096), (m / 448.0).squeeze(-1)",
    ),
    "dequantise_blocks_e4m3": (
        "pass",
        {"q": "torch.randn(16384, 32, 128).to(torch.float8_e4m3fn)", "s": "torch.rand(16384, 32, 1)"},
        "return (q.float() * s).view(16384, 4096).to(s.dtype)",
    ),
    "adam_e4m3_states": (
        "pass",
        {
            "p": "torch.randn(8192, 8192)",
            "g": "torch.randn(8192, 8192)",
            "m": "torch.randn(8192, 8192).to(torch.float8_e4m3fn)",
            "v": "torch.rand(8192, 8192).to(torch.float8_e5m2)",
        },
        "a = m.float() * 0.9 + 0.1 * g; b = v.float() * 0.99 + 0.01 * g * g; "
        "return (p - 1e-3 * a / (b.sqrt() + 1e-8)).to(p.dtype), a.to(torch.float8_e4m3fn), b.to(torch.float8_e5m2)",
    ),
    "silu_gate_e4m3": (
        "pass",
        {"x": "torch.randn(16384, 4096)", "g": "torch.randn(16384, 4096)"},
        "return (F.silu(g) * x * 0.5).clamp(-448, 448).to(torch.float8_e4m3fn)",
    ),
}

# Linear layers whose weights have eight bits, of few rows and of many: the writer's own products.
LINEAR: dict[str, tuple[str, dict[str, str], str]] = {
    f"linear_e4m3 {m}": (
        "pass",
        {
            "x": f"torch.randn({m}, 4096)",
            "w": "torch.randn(4096, 4096).to(torch.float8_e4m3fn)",
            "s": "torch.rand(4096, 1)",
        },
        "return F.linear(x, w.to(x.dtype) * s)",
    )
    for m in (16, 4096)
}

# Problems that read what lies beside what they write: windows, resized images, colours, slots, columns that are short.
NEIGHBOURS: dict[str, tuple[str, dict[str, str], str]] = {
    "global_average": ("pass", {"x": "torch.randn(32, 128, 64, 64)"}, "return x.mean((2, 3))"),
    "max_pool1d_3": ("pass", {"x": "torch.randn(64, 128, 4096)"}, "return F.max_pool1d(x, 3, 2, 1)"),
    "max_pool2d_2": ("pass", {"x": "torch.randn(32, 64, 128, 128)"}, "return F.max_pool2d(x, 2)"),
    "max_pool2d_3_2_1": ("pass", {"x": "torch.randn(32, 64, 112, 112)"}, "return F.max_pool2d(x, 3, 2, 1)"),
    "avg_pool2d_3_1_1": ("pass", {"x": "torch.randn(32, 64, 64, 64)"}, "return F.avg_pool2d(x, 3, 1, 1)"),
    "depthwise_3": (
        "self.w = nn.Parameter(torch.randn(128, 1, 3, 3))",
        {"x": "torch.randn(32, 128, 64, 64)"},
        "return F.relu(F.conv2d(x, self.w, padding=1, groups=128))",
    ),
    "depthwise_7": (
        "self.w = nn.Parameter(torch.randn(96, 1, 7, 7))",
        {"x": "torch.randn(16, 96, 56, 56)"},
        "return F.conv2d(x, self.w, padding=3, groups=96)",
    ),
    "causal_conv1d_4": (
        "self.w = nn.Parameter(torch.randn(1024, 1, 4))",
        {"x": "torch.randn(8, 1024, 2048)"},
        "return F.silu(F.conv1d(x, self.w, padding=3, groups=1024)[..., :2048])",
    ),
    "bilinear_twice": (
        "pass",
        {"x": "torch.randn(32, 32, 64, 64)"},
        "return F.interpolate(x, scale_factor=2.0, mode='bilinear', align_corners=False)",
    ),
    "bicubic_twice": (
        "pass",
        {"x": "torch.randn(8, 32, 64, 64)"},
        "return F.interpolate(x, scale_factor=2.0, mode='bicubic', align_corners=False)",
    ),
    "nearest_twice": (
        "pass",
        {"x": "torch.randn(32, 64, 64, 64)"},
        "return F.interpolate(x, scale_factor=2.0, mode='nearest')",
    ),
    "grid_sample": (
        "pass",
        {"x": "torch.randn(8, 32, 128, 128)", "g": "(torch.rand(8, 128, 128, 2) * 2 - 1)"},
        "return F.grid_sample(x, g, align_corners=False)",
    ),
    "reflect_pad": ("pass", {"x": "torch.randn(32, 64, 62, 126)"}, "return F.pad(x, (1, 1, 1, 1), mode='reflect')"),
    "pairwise_hadamard": (
        "pass",
        {"x": "torch.randn(4096, 2048)", "y": "torch.randn(4096, 2048)"},
        "return torch.cat([x, y, x * y], -1)",
    ),
    "rms_norm_backward": (
        "self.w = nn.Parameter(torch.rand(4096) + 0.5)",
        {"x": "torch.randn(4096, 4096)", "g": "torch.randn(4096, 4096)"},
        "u = x.float(); d = g.float() * self.w.float(); "
        "r = torch.rsqrt(u.pow(2).mean(-1, keepdim=True) + 1e-6); "
        "return (r * (d - u * r * r * (d * u).mean(-1, keepdim=True))).to(x.dtype)",
    ),
    "transpose_scale": ("pass", {"x": "torch.randn(4096, 4096)"}, "return (x * 0.5).t().contiguous()"),
    "layer_norm_2d": (
        "self.w = nn.Parameter(torch.rand(96) + 0.5)",
        {"x": "torch.randn(32, 96, 56, 56)"},
        "u = x.float(); m = u.mean(1, keepdim=True); v = (u - m).pow(2).mean(1, keepdim=True); "
        "return ((u - m) * torch.rsqrt(v + 1e-6)).to(x.dtype) * self.w[:, None, None]",
    ),
    "softmax_channels": ("pass", {"x": "torch.randn(8, 21, 512, 512)"}, "return torch.softmax(x, 1)"),
    "argmax_channels": ("pass", {"x": "torch.randn(8, 21, 512, 512)"}, "return x.argmax(1)"),
    "squeeze_scale": (
        "pass",
        {"x": "torch.randn(32, 128, 64, 64)"},
        "return x * torch.sigmoid(x.mean((2, 3), keepdim=True))",
    ),
    "upsample_cat": (
        "pass",
        {"x": "torch.randn(16, 64, 64, 64)", "y": "torch.randn(16, 64, 128, 128)"},
        "return torch.cat([F.interpolate(x, scale_factor=2.0, mode='bilinear', align_corners=True), y], 1)",
    ),
    "channel_shuffle": (
        "pass",
        {"x": "torch.randn(64, 96, 56, 56)"},
        "return F.relu(x.reshape(64, 4, 24, 56, 56).transpose(1, 2).reshape(64, 96, 56, 56))",
    ),
    "channel_statistics": (
        "pass",
        {"x": "torch.randn(64, 64, 112, 112)"},
        "u = x.float(); m = u.mean((0, 2, 3)); return m.to(x.dtype), (u.pow(2).mean((0, 2, 3)) - m * m).to(x.dtype)",
    ),
    "magnitudes": (
        "pass",
        {"a": "torch.randn(4096, 4096, 2)"},
        "return torch.sqrt(a[..., 0] * a[..., 0] + a[..., 1] * a[..., 1] + 1e-6)",
    ),
    "rgb_to_grey": (
        "pass",
        {"x": "torch.randn(32, 512, 512, 3)"},
        "return x[..., 0] * 0.299 + x[..., 1] * 0.587 + x[..., 2] * 0.114",
    ),
    "every_second": ("pass", {"x": "torch.randn(4096, 8192)"}, "return x[..., ::2] * torch.tanh(x[..., 1::2])"),
    "unshuffle": ("pass", {"x": "torch.randn(16, 32, 256, 256)"}, "return F.pixel_unshuffle(x, 2)"),
}


def text_of(init: str, inputs: dict[str, str], body: str, dtype: str, **sizes: int) -> str:
    """Return a problem file in this dtype."""
    init, made = init.format(**sizes), [m.format(**sizes) for m in inputs.values()]
    made = [m if "randint" in m or "float8" in m else f"{m}.to(torch.{dtype})" for m in made]
    lines = "\n        ".join(f"{init}; self.to(torch.{dtype})".split("; "))
    forward = "\n        ".join(body.split("; "))
    return (
        f"{N}class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {lines}\n"
        f"    def forward(self, {', '.join(inputs)}):\n        {forward}\n"
        f"def get_inputs(): return [{', '.join(made)}]\n{NONE}"
    )


def problems(dtype: str, lengths: list[int]) -> dict[str, str]:
    found = {f"{name} {n}": text_of(*ROWS[name], dtype, r=TOTAL // n, n=n) for name in ROWS for n in lengths}
    return found | {name: text_of(*case, dtype) for name, case in (ONCE | LINEAR).items()}


def neighbours(dtype: str) -> dict[str, str]:
    return {name: text_of(*case, dtype) for name, case in NEIGHBOURS.items()}


def called(plan: Plan, fp: FunctionalProblem, library: Any) -> Any:
    """Return the candidate as a function of the problem's tensors that allocates its outputs."""
    if plan.candidate.tier == "kernel":
        numbers = [v for _, v in fp.abi_constants]

        def call(*tensors: torch.Tensor) -> Any:
            outputs = [torch.empty(s.shape, dtype=getattr(torch, s.dtype), device="cuda") for s in fp.outputs]
            library.forward(*tensors, *numbers, *outputs)
            return outputs

        return call
    check_composed(plan.candidate.source)
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "kernels": library}
    exec(plan.candidate.source, scope)
    return lambda *tensors: scope["forward"](*tensors, **dict(fp.constants))


def measure(
    name: str, text: str, fp: FunctionalProblem, plan: Plan, library: Any, compiled: bool, clock: Any
) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    exec(text, scope)
    torch.manual_seed(0)
    with torch.device("cuda"):  # a second of a processor's for each input otherwise
        model, inputs = scope["Model"](), scope["get_inputs"]()
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    arguments = [a for a in fp.arguments if isinstance(a, TensorArgument)]
    tensors = [(inputs[int(a.path)] if a.role == "input" else state[a.path]).detach() for a in arguments]
    size = sum(t.numel() * t.element_size() for t in tensors)
    size += sum(math.prod(s.shape) * getattr(torch, s.dtype).itemsize for s in fp.outputs)
    with torch.no_grad():
        row: dict[str, Any] = {"tier": plan.candidate.tier, "library": plan.library, "schedules": plan.schedules}
        ours = called(plan, fp, library)
        row |= errors(model, inputs, ours(*tensors))
        row["ours"] = clock(ours, [tensors])
        row["eager"] = clock(model, [inputs])
        if compiled:
            torch._dynamo.reset()
            faster = torch.compile(model)
            faster(*inputs)
            row["compile"] = clock(faster, [inputs])
        source = torch.empty(size // 2, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        row["copy"] = clock(lambda: target.copy_(source), [()])
    row["gb"] = size / 1e9
    return row


def errors(model: torch.nn.Module, inputs: list[torch.Tensor], ours: Any) -> dict[str, float]:
    """Return the worst ratio of our error to eager's over the outputs, on what of them fits into memory in float64."""
    eager = model(*inputs)
    eager = list(eager) if isinstance(eager, tuple) else [eager]
    ours = list(ours) if isinstance(ours, list | tuple) else [ours]
    exact = model.double()(*(x.double() if x.is_floating_point() else x for x in inputs))
    exact = list(exact) if isinstance(exact, tuple) else [exact]
    model.to(next((x.dtype for x in inputs if x.is_floating_point()), eager[0].dtype))
    ratios = []
    for mine, theirs, right in zip(ours, eager, exact, strict=True):
        mine_off, theirs_off = ((x.double() - right.double()).pow(2).mean().sqrt() for x in (mine, theirs))
        floor = right.double().pow(2).mean().sqrt() * 2.0**-25
        ratios.append(float(mine_off / torch.maximum(theirs_off, floor)))
    return {"error": max(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--rows", nargs="*", type=int, default=list(LENGTHS))
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--neighbours", action="store_true", help="windows, resized images and their like instead")
    parser.add_argument("--quick", action="store_true", help="a third of the calls, and short pauses")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    known = neighbours(asked.dtype) if asked.neighbours else problems(asked.dtype, asked.rows)
    texts = {n: t for n, t in known.items() if not asked.only or n.split()[0] in asked.only}
    clock = partial(by_events, count=20, pause=3_000_000) if asked.quick else by_events
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    tools = toolchain()
    parameters = starting_parameters("cuda", "sm_90")
    forms, plans = {}, {}
    for name, text in texts.items():
        fp = functionalize_here({"problem": Problem(name.replace(" ", "_"), text), "threads": 4})
        drafted = replace(parameters, products=2) if name in LINEAR else parameters
        plan = write(fp, drafted) if isinstance(fp, FunctionalProblem) else None
        if plan is None or not isinstance(fp, FunctionalProblem):
            print(f"{name}: no draft {fp if plan else ''}"[:200], flush=True)
            continue
        forms[name], plans[name] = fp, plan
    rows = {}
    with tempfile.TemporaryDirectory() as cache:
        sources = [p.candidate.source for p in plans.values()]
        kernels = [
            kernels_text(s) if p.candidate.tier == "composed" else s
            for s, p in zip(sources, plans.values(), strict=True)
        ]
        done = build([(s, "cuda") for s in kernels], tools=tools, cache=Path(cache))
        for (name, plan), made in zip(plans.items(), done, strict=True):
            if not isinstance(made, Built):
                print(f"{name}: {made}"[:600], flush=True)
                continue
            try:
                library = tvm_ffi.load_module(str(made.library))
                rows[name] = measure(name, texts[name], forms[name], plan, library, not asked.no_compile, clock)
            except Exception as error:  # one problem that cannot be had leaves the others
                print(f"{name}: {type(error).__name__}: {error}"[:400], flush=True)
                continue
            show(name, rows[name])
            torch.cuda.empty_cache()
            if asked.out:
                asked.out.write_text(json.dumps(rows, indent=1))
    shares = [r["copy"] / r["ours"] for r in rows.values()]
    wins = [r for r in rows.values() if r["ours"] < min(r["eager"], r.get("compile", math.inf))]
    print(f"share of a copy: median {statistics.median(shares):.2f}, least {min(shares):.2f}; ", end="")
    print(f"faster than eager and compile: {len(wins)} of {len(rows)}")


def show(name: str, row: dict[str, Any]) -> None:
    best = min(row["eager"], row.get("compile", math.inf))
    cells = [f"{row[k]:.3f}" if k in row else "" for k in ("ours", "eager", "compile", "copy")]
    cells += [f"{row['copy'] / row['ours']:.2f}", f"{best / row['ours']:.2f}", f"{row['error']:.2f}"]
    cells += [f"{row['gb'] / row['ours'] * 1e3:.0f} GB/s", ", ".join(row["schedules"]), ", ".join(row["library"])]
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
