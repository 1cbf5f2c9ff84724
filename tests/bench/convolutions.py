"""Convolutions of sixteen bits, and of TF32, by the offline writer beside the library: sizes of many kinds.

    python tests/bench/convolutions.py [--rounds 11] [--only WORDS] [--plans FILE] [--out FILE.json]
    python tests/bench/convolutions.py --table FILE.json
    compute-sanitizer --tool memcheck python tests/bench/convolutions.py --odd

Needs a GPU with Hopper's copy engine. Each problem is drafted for few images with the tile that the writer would choose
for all, checked against float64, and timed by CUDA events as in `sixteen_bit_products.py`: as it is, place by place
where the writer takes pieces of images, with the gathered tiles that serve what the copy engine cannot read, by eager
PyTorch, and by `torch.compile`. `--pieces` takes pieces wherever these serve. `--plans` keeps the drafts,
so that a machine with a GPU need not make them. `--odd` takes small problems of odd sizes in place of the others, and
checks and does not time them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pickle
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import tvm_ffi
from sixteen_bit_products import race

from rag_kernels.eval.build.compile import Built, Flavour, build, toolchain
from rag_kernels.eval.records import FunctionalProblem, Problem, TensorArgument
from rag_kernels.ingest.functional.functionalize_child import functionalize_here
from rag_kernels.offline.compose import Plan, write
from rag_kernels.offline.cuda.function import CudaParameters
from rag_kernels.offline.cuda.gemm.hopper.shape import Product, best_shape

MODEL = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = {layer}
        self.to(torch.{dtype})

    def forward(self, x{also}):
        {body}


def get_inputs():
    return [torch.randn({images}, {shape}).to(torch.{dtype}){second}]


def get_init_inputs():
    return []
"""
STORED = {"tf32": "float32"}
RELU, PLAIN, GELU = "return F.relu(self.c(x))", "return self.c(x)", "return F.gelu(self.c(x))"
ADDED = "return F.gelu(self.c(x)) + y"
TIMED = ("ours", "place by place", "gathered", "eager", "compile")


@dataclasses.dataclass(frozen=True)
class Row:
    """A problem: its layer, images, their shape, the output's shape for one image, what follows, dtype."""

    layer: str
    images: int
    shape: tuple[int, ...]
    out: tuple[int, ...]
    body: str = PLAIN
    dtype: str = "bfloat16"
    depth: int = 0  # terms of the product


def row(layer: str, images: int, shape: tuple[int, ...], body: str = PLAIN, dtype: str = "bfloat16") -> Row:
    made = eval(layer, {"nn": torch.nn})
    out = tuple(made(torch.randn(1, *shape)).shape[1:])
    phases = math.prod(made.stride) if "Transpose" in layer else 1
    return Row(layer, images, shape, out, body, dtype, made.weight.numel() // made.out_channels // phases)


def rows() -> list[Row]:
    """The problems."""
    return [
        row("nn.Conv2d(64, 64, 3, padding=1)", 32, (64, 56, 56), RELU),
        row("nn.Conv2d(128, 128, 3, padding=1)", 32, (128, 28, 28), RELU),
        row("nn.Conv2d(256, 256, 3, padding=1)", 32, (256, 14, 14), RELU),
        row("nn.Conv2d(512, 512, 3, padding=1)", 32, (512, 7, 7), RELU),
        row("nn.Conv2d(256, 256, 3, padding=1)", 16, (256, 56, 56), GELU),
        row("nn.Conv2d(256, 64, 1)", 32, (256, 56, 56)),
        row("nn.Conv2d(64, 256, 1)", 32, (64, 56, 56), RELU),
        row("nn.Conv2d(128, 256, 3, stride=2, padding=1)", 32, (128, 56, 56), RELU),
        row("nn.Conv2d(16, 64, 3)", 64, (16, 256, 256)),
        row("nn.Conv3d(32, 64, 3, padding=1)", 4, (32, 16, 56, 56), GELU),
        row("nn.Conv1d(256, 256, 5, padding=2)", 32, (256, 4096), RELU),
        row("nn.Conv2d(128, 128, 3, padding=(2, 4), dilation=(2, 4))", 16, (128, 56, 48), RELU),
        row("nn.Conv2d(100, 100, (3, 5), padding=(1, 2))", 16, (100, 37, 41), ADDED, "float16"),
        row("nn.Conv2d(128, 128, 3, padding=1)", 32, (128, 28, 28), ADDED, "float16"),
        row("nn.Conv2d(128, 128, 3, padding=1)", 32, (128, 28, 28), RELU, "tf32"),
        row("nn.Conv2d(3, 64, 7, stride=2, padding=3)", 32, (3, 224, 224), RELU),
        row("nn.ConvTranspose2d(64, 64, 3, stride=2, padding=1, output_padding=1)", 32, (64, 128, 128), RELU, "tf32"),
        row("nn.ConvTranspose2d(64, 64, 3, stride=2, padding=1, output_padding=1)", 32, (64, 128, 128), RELU),
        row("nn.ConvTranspose2d(256, 128, 4, stride=2, padding=1)", 32, (256, 32, 32), RELU),
        row("nn.ConvTranspose3d(32, 64, 3, stride=2, padding=1)", 16, (32, 16, 32, 32), PLAIN, "tf32"),
        row("nn.ConvTranspose2d(32, 64, 3, stride=5, padding=1, dilation=2)", 16, (32, 64, 128), PLAIN, "tf32"),
        row("nn.Conv2d(8, 64, 3)", 64, (8, 256, 256), RELU, "tf32"),
        row("nn.Conv2d(8, 64, 3)", 64, (8, 256, 256), RELU),
        row("nn.Conv3d(8, 32, 3)", 16, (8, 32, 64, 64), RELU, "tf32"),
        row("nn.Conv2d(256, 64, 1)", 32, (256, 56, 56), PLAIN, "tf32"),
        row("nn.Conv2d(64, 256, 1)", 32, (64, 56, 56), RELU, "tf32"),
    ]


def odd_rows() -> list[Row]:
    """Small problems of odd sizes, for a checker of memory and races."""
    return [
        row("nn.Conv2d(72, 35, (3, 5), (2, 1), (1, 2), (2, 1))", 3, (72, 9, 7), GELU),
        row("nn.Conv2d(9, 37, 3, padding=1)", 3, (9, 11, 13), RELU, "tf32"),
        row("nn.Conv2d(11, 33, 3)", 2, (11, 17, 15), PLAIN, "float16"),
        row("nn.Conv3d(32, 41, 3, (1, 2, 1), (0, 1, 2))", 3, (32, 5, 7, 9), PLAIN),
        row("nn.Conv1d(300, 130, 5, 3, 2, 2)", 3, (300, 257), RELU, "tf32"),
        row("nn.Conv2d(65, 67, 1)", 3, (65, 15, 17), PLAIN),
        row("nn.ConvTranspose1d(17, 34, 5, 3, 2, 1)", 3, (17, 131), RELU, "tf32"),
        row(
            "nn.ConvTranspose2d(20, 36, (5, 3), (3, 2), (1, 2), (1, 1), dilation=(2, 1))", 3, (20, 9, 13), GELU, "tf32"
        ),
        row("nn.ConvTranspose2d(40, 33, 3, 5, 1, 2, dilation=2)", 2, (40, 9, 7), PLAIN),
        row("nn.ConvTranspose3d(16, 33, (2, 4, 3), (1, 2, 1), (0, 1, 1))", 2, (16, 5, 7, 6), PLAIN, "float16"),
    ]


def source(r: Row, images: int) -> str:
    dtype = STORED.get(r.dtype, r.dtype)
    added = r.body == ADDED
    out = f", torch.randn({images}, {', '.join(map(str, r.out))}).to(torch.{dtype})" if added else ""
    return MODEL.format(
        layer=r.layer,
        dtype=dtype,
        also=", y" if added else "",
        body=r.body,
        images=images,
        shape=", ".join(map(str, r.shape)),
        second=out,
    )


def planned(r: Row, *, pieces: bool) -> tuple[FunctionalProblem, dict[str, Plan]]:
    """Return the problem and its drafts: `ours`, and `place by place` where that takes pieces of images."""
    fp = functionalize_here({"problem": Problem("convolution", source(r, 2)), "threads": 4})
    assert isinstance(fp, FunctionalProblem), fp
    tf32 = r.dtype == "tf32"
    best = best_shape(Product(r.out[0], r.images * math.prod(r.out[1:]), 1, r.depth * (2 if tf32 else 1)))
    shape, turns = best.rows * 1000 + best.columns, 2 if best.alternate else 1
    common = CudaParameters(products=2, tensor=1 + tf32)
    windows = write(fp, dataclasses.replace(common, shape=shape, clusters=best.cluster, turns=turns))
    ours = write(fp, dataclasses.replace(common, turns=3 * pieces))
    assert windows is not None and ours is not None and windows.candidate.tier == ours.candidate.tier == "kernel", r
    return fp, {"ours": ours, "place by place": windows} if "tma_chunks" in ours.candidate.source else {"ours": windows}


def medians(calls: dict[str, Any], rounds: int) -> dict[str, float]:
    """Milliseconds of every call, in turns: medians."""
    return {name: statistics.median(found) / 1000 for name, found in race(calls, rounds).items()}


def table(found: list[dict[str, Any]]) -> list[str]:
    """The results as a table in Markdown."""
    lines = [
        "| layer | what follows | dtype | input | ours, ms | place by place, ms | gathered, ms | eager, ms "
        "| compile, ms | best over ours | gathered over ours | error over eager's |",
        "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for r in found:
        if "ours" not in r:
            continue
        best = min(r["eager"], r.get("compile", math.inf))
        follows = {RELU: "ReLU", PLAIN: "", GELU: "GELU", ADDED: "GELU, residual"}[r["body"]]
        shape = " x ".join(map(str, (r["images"], *r["shape"])))
        times = [f"{r[k]:.3f}" if k in r else "" for k in TIMED]
        ratios = [f"{x:.2f}" for x in (best / r["ours"], r["gathered"] / r["ours"], r["ours: error over eager's"])]
        layer = r["layer"].removeprefix("nn.")
        lines.append(f"| {' | '.join([layer, follows, r['dtype'], shape, *times, *ratios])} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", nargs="+", default=[""], help="layers, or dtypes, with one of these in them")
    parser.add_argument("--odd", action="store_true", help="small problems of odd sizes, which are not timed")
    parser.add_argument("--pieces", action="store_true", help="pieces of images wherever these serve")
    parser.add_argument("--plans", type=Path, help="a file that keeps the drafts")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the results of this file as a table, and stop")
    asked = parser.parse_args()
    if asked.table:
        print("\n".join(table(json.loads(asked.table.read_text()))))
        return
    if asked.plans and asked.plans.exists():
        found = pickle.loads(asked.plans.read_bytes())
    else:
        wanted = odd_rows() if asked.odd else rows()
        wanted = [r for r in wanted if any(word in f"{r.layer} {r.dtype}" for word in asked.only)]
        found = [(r, *planned(r, pieces=asked.pieces)) for r in wanted]
        if asked.plans:
            asked.plans.write_bytes(pickle.dumps(found))
    if not torch.cuda.is_available():
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    texts: list[tuple[str, Flavour]] = []
    for _, _, plans in found:
        gathered = re.sub(r"if \(built && .*\) \{", "if (false) {", plans["ours"].candidate.source)
        texts += [*((plan.candidate.source, "cuda") for plan in plans.values()), (gathered, "cuda")]
    results: list[dict[str, Any]] = []
    compiled: list[tuple[dict[str, Any], Any, list[torch.Tensor]]] = []
    with tempfile.TemporaryDirectory() as cache:
        begun = time.time()
        done = iter(build(texts, tools=toolchain(), cache=Path(cache)))
        print(f"built in {time.time() - begun:.0f} s", flush=True)
        for r, fp, plans in found:
            made = {name: next(done) for name in (*plans, "gathered")}
            line: dict[str, Any] = dataclasses.asdict(r) | {"by pieces": "place by place" in plans}
            results.append(line)
            libraries = {name: one.library for name, one in made.items() if isinstance(one, Built)}
            if len(libraries) < len(made):
                print(r.layer, "not built", str(made)[:2000], flush=True)
                continue
            scope: dict[str, Any] = {}
            exec(source(r, r.images), scope)
            torch.manual_seed(3)
            model = scope["Model"]().cuda()
            inputs = [x.cuda() for x in scope["get_inputs"]()]
            state = dict(model.named_parameters())
            tensors = [
                (inputs[int(a.path)] if a.role == "input" else state[a.path]).detach()
                for a in fp.arguments
                if isinstance(a, TensorArgument)
            ]
            constants = [v for _, v in fp.abi_constants]
            with torch.no_grad():
                try:
                    eager = model(*inputs)
                    exact = scope["Model"]().cuda().double()
                    exact.load_state_dict(model.state_dict())
                    right = exact(*(x[-2:].double() for x in inputs))
                    calls = {"eager": lambda model=model, inputs=inputs: model(*inputs)}
                    error = (eager[-2:].double() - right).abs().max().item()
                    for name, path in libraries.items():
                        out = torch.full_like(eager, float("nan"))
                        library = tvm_ffi.load_module(str(path))
                        call = lambda lib=library, t=tensors, c=constants, o=out: lib.forward(*t, *c, o)  # noqa: E731
                        call()
                        torch.cuda.synchronize()
                        worst = (out[-2:].double() - right).abs().max().item()
                        every = (out.float() - eager.float()).abs().max().item()
                        line[f"{name}: error over eager's"] = worst / error
                        line[f"{name}: farthest from eager"] = every
                        calls[name] = call
                    if not asked.odd:
                        line |= medians(calls, asked.rounds)
                        compiled.append((line, model, inputs))
                except Exception as error_:  # a row that fails is told
                    line["failed"] = str(error_)[:600]
            print(json.dumps(line), flush=True)
            if asked.out:
                asked.out.write_text(json.dumps(results, indent=1))
        for line, model, inputs in compiled:
            with torch.no_grad():
                faster = torch.compile(model)
                faster(*inputs)
                line["compile"] = medians({"compile": lambda f=faster, i=inputs: f(*i)}, asked.rounds)["compile"]
            print(line["layer"], line["dtype"], f"compile {line['compile']:.4f}", flush=True)
            if asked.out:
                asked.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
