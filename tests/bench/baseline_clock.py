"""The judge's clock against one that shares nothing with it: eager, torch.compile, max-autotune and CUDA graphs.

    python tests/bench/baseline_clock.py [--only NAME ...] [--device cuda|cpu] [--out FILE.json]

Twenty problems, of some 20 us to 20 ms on an H200. `alone`: a process without the judge times each baseline by CUDA
events with other data in the L2 cache before each call (on a CPU: plain alternating calls on the wall clock). `judge`:
the judge's own times of the same baselines, and of the module itself run as a candidate, which should come out as
eager. Prints a table with the judge's time over the other's, and the medians and extremes of these ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from rag_kernels.eval.records import Candidate, FunctionalProblem

N = "import torch, torch.nn as nn, torch.nn.functional as F\n"
NONE = "def get_init_inputs(): return []\n"


def plain(body: str, inputs: str) -> str:
    forward = "\n        ".join(body.splitlines())
    names = ", ".join(f"a{i}" for i in range(inputs.count("torch.randn")))
    return f"{N}class Model(nn.Module):\n    def forward(self, {names}):\n        {forward}\n" + (
        f"def get_inputs(): return [{inputs}]\n{NONE}"
    )


def wrapped(module: str, inputs: str) -> str:
    return f"""{N}class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = {module}

    def forward(self, x):
        return self.inner(x)
def get_inputs(): return [{inputs}]
{NONE}"""


def tensors(*shapes: tuple[int, ...], dtype: str = "") -> str:
    cast = f".to(getattr(torch, '{dtype}'))" if dtype else ""
    return ", ".join(f"torch.randn{shape!r}{cast}" for shape in shapes)


HALF = "bfloat16"
MLP = "nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(2048, 2048), nn.GELU())))"
CNN = "nn.Sequential(*(m for _ in range(4) for m in (nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())))"
RMS = "y = a0.float()\nreturn (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(a0.dtype) * a1"
ADAM = "m = 0.9 * a2 + 0.1 * a1\nv = 0.999 * a3 + 0.001 * a1 * a1\nreturn a0 - 1e-3 * m / (v.abs().sqrt() + 1e-8), m, v"
ATTENTION = "s = (a0 @ a1.transpose(-1, -2)) * 0.125\nreturn torch.softmax(s, -1) @ a2"
GRAY = "return 0.299 * a0[..., 0] + 0.587 * a0[..., 1] + 0.114 * a0[..., 2]"
PROBLEMS: dict[str, str] = {
    "relu_16m": plain("return torch.relu(a0)", tensors((4096, 4096))),
    "scale_add_4m": plain("return a0 * 2 + a1", tensors((2048, 2048), (2048, 2048))),
    "softmax_32m": plain("return torch.softmax(a0, -1)", tensors((4096, 8192))),
    "layer_norm_gelu": plain("return F.gelu(F.layer_norm(a0, (4096,)))", tensors((8192, 4096))),
    "rms_norm_bf16": plain(RMS, tensors((16384, 8192), (8192,), dtype=HALF)),
    "silu_gate_bf16": plain("return F.silu(a0) * a1", tensors((16384, 8192), (16384, 8192), dtype=HALF)),
    "adamw_8192": plain(ADAM, tensors(*[(8192, 8192)] * 4)),
    "grayscale_8192": plain(GRAY, tensors((8192, 8192, 3))),
    "attention_fp16": plain(ATTENTION, tensors(*[(16, 16, 2048, 64)] * 3, dtype="float16")),
    "sdpa_bf16": plain(
        "return F.scaled_dot_product_attention(a0, a1, a2)", tensors(*[(8, 16, 4096, 64)] * 3, dtype=HALF)
    ),
    "matmul_fp16_2048": plain("return a0 @ a1", tensors((2048, 2048), (2048, 2048), dtype="float16")),
    "matmul_bf16_8192": plain("return a0 @ a1", tensors((8192, 8192), (8192, 8192), dtype=HALF)),
    "matmul_fp32_2048": plain("return a0 @ a1", tensors((2048, 2048), (2048, 2048))),
    "linear_gelu_bf16": plain("return F.gelu(F.linear(a0, a1))", tensors((8192, 4096), (4096, 4096), dtype=HALF)),
    "cross_entropy": plain("return -torch.log_softmax(a0, -1)[:, :1].mean()", tensors((4096, 32000))),
    "reduce_sum": plain("return a0.sum(0)", tensors((16384, 8192))),
    "cumsum": plain("return a0.cumsum(-1)", tensors((4096, 8192))),
    "mlp_8": wrapped(MLP, tensors((4096, 2048))),
    "cnn_4": wrapped(CNN, tensors((32, 64, 112, 112))),
    "group_norm": plain("return F.relu(F.group_norm(a0, 8))", tensors((32, 64, 128, 128))),
}
SMALL = ("relu_16m", "scale_add_4m", "softmax_32m", "reduce_sum", "matmul_fp32_2048")  # for a CPU
PAUSE_CYCLES = 18_000_000  # about 10 ms of an H200's clock
VARIANTS = ("eager", "compile", "autotune", "graph")


def alone(path: Path, device: str, wanted: list[str]) -> dict[str, float]:
    """In a process of its own: milliseconds of a call of each variant."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("problem", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # as for the judge's strict class
    model = module.Model(*module.get_init_inputs()).to(device)
    inputs = [x.to(device) for x in module.get_inputs()]
    size = sum(x.numel() * x.element_size() for x in inputs)
    sets = [[x.clone() for x in inputs] for _ in range(max(2, min(4, int(30e9 // size))))]
    with torch.no_grad():
        calls = {"eager": model}
        if "compile" in wanted:
            calls["compile"] = torch.compile(model)
        for given in sets:
            for call in calls.values():
                call(*given)
        if device == "cpu":
            return by_turns(calls, sets)
        times = {name: by_events(call, sets) for name, call in calls.items()}
        if "graph" in wanted:
            times["graph"] = by_events(*graphed(model, sets[0]))
        if "autotune" in wanted:
            torch._dynamo.reset()
            tuned = torch.compile(model, mode="max-autotune")
            for given in sets:
                tuned(*given)
                tuned(*given)
            times["autotune"] = by_events(tuned, sets)
    return times


def graphed(model: Any, given: list[torch.Tensor]) -> tuple[Any, list[list[torch.Tensor]]]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(*given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(*given)
    return (lambda *_: graph.replay()), [given]


def by_events(call: Any, sets: list[list[torch.Tensor]], count: int = 60, pause: int = PAUSE_CYCLES) -> float:
    """Median milliseconds; before each call the L2 cache is filled with other data, which keeps the host ahead.

    It is read and not written: what was written would be put into memory while the call runs. Ten milliseconds in which
    one thread spins come before it: sixty large products in a row would run into the power limit, and the judge, which
    lays out contents between calls, would not.

    A pair of events by itself takes two microseconds, which are taken off.
    """
    taken = [_by_events(f, sets, count, pause) for f in (call, lambda *_: None)]
    return taken[0] - taken[1]


def _by_events(call: Any, sets: list[list[torch.Tensor]], count: int, pause: int) -> float:
    flush = torch.zeros(256 << 18, dtype=torch.int32, device="cuda")
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    for number, (start, end) in enumerate(pairs):
        torch.cuda._sleep(pause)
        flush.sum()
        start.record()
        call(*sets[number % len(sets)])
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs)


def by_turns(calls: dict[str, Any], sets: list[list[torch.Tensor]]) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(41):
        for name, call in calls.items():
            start = time.perf_counter()
            call(*sets[number % len(sets)])
            taken[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(row) for name, row in taken.items()}


class Judge:
    """The judge's own clock on the same files."""

    def __init__(self, device: str, wanted: list[str]) -> None:
        from rag_kernels.eval.judge import open_judge
        from rag_kernels.eval.limits import Limits

        limits = Limits(max_autotune="autotune" in wanted, measure_compile="compile" in wanted)
        self.judge = open_judge("cuda" if device == "cuda" else "cpu", limits=limits)

    def times(self, path: Path) -> dict[str, float]:
        """Milliseconds of each baseline, and of the module as a candidate; with the host's time too, as `host ...`."""
        from rag_kernels.eval.problem import load_problem
        from rag_kernels.eval.records import Candidate
        from rag_kernels.ingest.functional.functionalize import functionalize

        fp = functionalize(load_problem(path), workers=self.judge.workers)
        text = fp.problem.source.replace("class Model(", "class ModelNew(").replace("super(Model", "super(ModelNew")
        return self.race(fp, Candidate(text, "module", self.judge.device.backend), with_host=True)

    def race(self, fp: FunctionalProblem, candidate: Candidate, *, with_host: bool = False) -> dict[str, float]:
        """Milliseconds of a candidate and of each baseline."""
        from rag_kernels.eval.sessions.candidate_session import LoadedCandidate
        from rag_kernels.eval.sessions.reference_times import ReferenceTimes
        from rag_kernels.eval.timing.race import Race

        judge = self.judge
        with judge.sessions.for_baselines(fp) as session:
            reference = ReferenceTimes(session)
            reference.prepare_baselines()
            with LoadedCandidate(session, candidate, judge._builder.whole(candidate)) as subject:
                race = Race(subject, subject.bind(session), reference, ["eager", *reference.variants])
                times = race.run(cold=session.on_gpu, pairs=30)
                found = {name: statistics.median(taken) * 1e3 for name, taken in times.seconds.items()}
                if with_host and session.on_gpu:
                    host = race.run(cold=True, pairs=11, with_host=True)
                    found |= {f"host {n}": statistics.median(taken) * 1e3 for n, taken in host.seconds.items()}
                found["calls"], found["delay"] = race.calls, times.delay_s * 1e3
                found["burst"] = max(1, len(race.burst))
                found["asking"] = statistics.median(times.asking_s or [0.0]) * 1e3
                found["least mhz"], found["most mhz"] = times.mhz or (0, 0)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--variants", nargs="*", default=["eager", "compile", "graph"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.alone:
        print(json.dumps(alone(asked.alone, asked.device, asked.variants)))
        return
    names = asked.only or (list(PROBLEMS) if asked.device == "cuda" else SMALL)
    rows = {}
    judge = Judge(asked.device, asked.variants)
    with tempfile.TemporaryDirectory() as folder, judge.judge:
        for name in names:
            path = Path(folder, f"{name}.py")
            path.write_text(PROBLEMS[name])
            command = [sys.executable, __file__, "--alone", str(path), "--device", asked.device, "--variants"]
            done = subprocess.run([*command, *asked.variants], capture_output=True, text=True)
            if done.returncode:
                print(f"{name}: {done.stderr[-300:]}", flush=True)
                continue
            try:
                rows[name] = {"alone": json.loads(done.stdout.splitlines()[-1]), "judge": judge.times(path)}
            except Exception as error:  # one problem that cannot be had leaves the others
                print(f"{name}: {type(error).__name__}: {error}"[:400], flush=True)
                continue
            show(name, rows[name])
            if asked.out:
                asked.out.write_text(json.dumps(rows, indent=1))
    summary(rows)


def show(name: str, row: dict[str, dict[str, float]]) -> None:
    mine, other = row["judge"], row["alone"]
    cells = [f"{v} {mine[v]:.4f}/{other[v]:.4f}={mine[v] / other[v]:.3f}" for v in VARIANTS if v in mine and v in other]
    cells.append(f"A/A {mine['candidate'] / mine['eager']:.3f}")
    cells.append(f"calls {mine['calls']:.0f} delay {mine['delay']:.2f}")
    cells += [f"{n} {mine[n]:.4f}" for n in mine if n.startswith("host ")]
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def summary(rows: dict[str, dict[str, dict[str, float]]]) -> None:
    for variant in VARIANTS:
        pairs = [(r["judge"], r["alone"]) for r in rows.values() if variant in r["judge"] and variant in r["alone"]]
        ratios = sorted(mine[variant] / other[variant] for mine, other in pairs)
        if ratios:
            off = sum(abs(x - 1) > 0.03 for x in ratios)
            middle = statistics.median(ratios)
            print(
                f"{variant}: {middle:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}), {off} of {len(ratios)} off by over 3 %"
            )
    ratios = sorted(r["judge"]["candidate"] / r["judge"]["eager"] for r in rows.values())
    if ratios:
        span = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        print(f"the module as a candidate over eager: {span}")


if __name__ == "__main__":
    main()
