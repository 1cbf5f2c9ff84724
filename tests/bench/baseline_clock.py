"""The judge's clock against one that shares nothing with it: eager, torch.compile, max-autotune and CUDA graphs.

    python tests/bench/baseline_clock.py [--only NAME ...] [--device cuda|cpu] [--out FILE.json]
    python tests/bench/baseline_clock.py --part 1/4 --prepare &    # compile alone, side by side, into the shared cache
    python tests/bench/baseline_clock.py --table 1.json 2.json ...

Twenty problems, of some 20 us to 20 ms on an H200. `alone`: a process without the judge times each baseline by CUDA
events around rows of calls, each on inputs other than the last's (on a CPU: plain alternating calls on the wall clock);
`single` is one call between two events, after other data was read into the L2 cache. What such a call writes may still
lie there when it ends, so that it is shorter than a call in a row by up to as long as its cache takes to be written
out. `judge`: the judge's own times of the same baselines, and of the module itself run as a candidate, which should
come out as eager. Prints a table with the judge's time over the other's, and the medians and extremes of these ratios.

Both clocks take turns on the GPU by the judge's lock: nobody computes while one times. All compile into one cache, so
that both time the same code, also where max-autotune chose it. A problem that takes either clock longer than `--each`
seconds is left out, and said so; rows are written as they come.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rag_kernels.eval.machine.device import units
from rag_kernels.eval.machine.device_lock import DeviceLock, locks
from rag_kernels.eval.places import default_cache
from rag_kernels.eval.timing_rule import TimingRule

if TYPE_CHECKING:
    from rag_kernels.eval.records import Backend, Candidate, FunctionalProblem

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
SHORTER = PAUSE_CYCLES // 2  # in which a host launches a row of calls
CYCLES_A_SECOND, SHARE_OF_PAUSE, LONGEST = 2e9, 0.7, 16 * PAUSE_CYCLES  # at most: the host has a part of a pause
ROW_S, ROW_CALLS, ROWS = 1.5e-3, 64, 9  # of calls in a row: at least so long, at most so many; so many rows
CYCLED_BYTES, HELD_BYTES = 256 << 20, 6 << 30  # of inputs in turn, beyond any L2 cache; of results that a row keeps
BEGAN = time.monotonic()
VARIANTS = ("eager", "compile", "autotune", "graph")

Call = Callable[..., Any]
Set = list[torch.Tensor]


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread after so long."""

    def late(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds:.0f} s")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def say(words: str) -> None:
    """Tell on stderr where it stands, with seconds since the process began."""
    print(f"{time.monotonic() - BEGAN:.0f} s: {words}", file=sys.stderr, flush=True)


def alone(paths: Sequence[Path], asked: argparse.Namespace) -> None:
    """In a process of its own: print of each problem milliseconds of a call of each variant, as a line of JSON.

    To prepare is to compile only.
    """
    device = asked.device
    torch.backends.cudnn.allow_tf32 = False  # as for the judge's strict class
    for path in paths:
        try:
            with at_most(asked.each):
                times = of_problem(path, device, asked.variants, prepare=asked.prepare)
            told: dict[str, Any] = {"name": path.stem, "times": times}
        except Exception as error:  # one problem that cannot be had leaves the others
            told = {"name": path.stem, "error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(told), flush=True)
        say(f"{path.stem} by the other clock {told.get('error', '')}")
        torch._dynamo.reset()
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def of_problem(path: Path, device: str, wanted: Sequence[str], *, prepare: bool = False) -> dict[str, float]:
    """Milliseconds of a call of each variant; none if they are to be prepared only."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("problem", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    backend: Backend = "cuda" if device == "cuda" else "cpu"
    turns = DeviceLock(units(backend), locks(backend, default_cache()))
    with torch.no_grad():
        with turns.shared():
            model = module.Model(*module.get_init_inputs()).to(device)
            inputs = [x.to(device) for x in module.get_inputs()]
            count = (
                1 if prepare else max(2, math.ceil(CYCLED_BYTES / sum(x.numel() * x.element_size() for x in inputs)))
            )
            calls, sets = prepared(model, [[x.clone() for x in inputs] for _ in range(count)], wanted)
        if prepare:
            return {}
        with turns.alone():
            return by_turns(calls, sets) if device == "cpu" else by_both(calls, sets, model)


def prepared(model: Any, sets: list[Set], wanted: Sequence[str]) -> tuple[dict[str, Call], list[Set]]:
    """Return the variants, each called on every set of inputs, and the sets."""
    calls: dict[str, Call] = {"eager": model}
    if "compile" in wanted:
        calls["compile"] = torch.compile(model)
    if "autotune" in wanted:
        calls["autotune"] = torch.compile(model, mode="max-autotune")
    for call in calls.values():
        for given in sets:
            call(*given)
            call(*given)
    return calls | ({"graph": model} if "graph" in wanted else {}), sets


def by_both(calls: dict[str, Call], sets: list[Set], model: Any) -> dict[str, float]:
    """Milliseconds of a call in a row, and under `single NAME` of one by itself."""
    found, nothing_ms = {}, _by_events(lambda *_: None, sets, 15, SHORTER)
    for name, call in calls.items():
        run = graphs(model, sets) if name == "graph" else call
        found[f"single {name}"] = _by_events(run, sets, 15, SHORTER) - nothing_ms
        found[name] = by_rows(run, sets, found[f"single {name}"] / 1e3, nothing_ms)
    return found


def by_rows(call: Call, sets: list[Set], about_s: float, nothing_ms: float) -> float:
    """Median milliseconds of a call among others in a row, queued behind a spinning thread and a first call."""
    result = call(*sets[0])
    torch.cuda.synchronize()
    results = result if isinstance(result, tuple) else (result,)  # none of a graph, which has room of its own
    held = sum(x.numel() * x.element_size() for x in results if x is not None)
    count = max(2, min(ROW_CALLS, math.ceil(ROW_S / max(about_s, 1e-6)), HELD_BYTES // max(1, held)))
    taken: list[float] = []
    pause = SHORTER
    while len(taken) < ROWS:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(pause)
        begun = time.perf_counter()
        kept = [call(*sets[len(taken) % len(sets)])]
        start.record()
        kept += [call(*sets[(len(taken) + 1 + i) % len(sets)]) for i in range(count)]
        end.record()
        host_s = time.perf_counter() - begun
        torch.cuda.synchronize()
        if host_s > SHARE_OF_PAUSE * pause / CYCLES_A_SECOND and pause < LONGEST:
            pause = 2 * pause  # a busy host was not ahead of the device: what it took would be told as the calls'
        else:
            taken.append((start.elapsed_time(end) - nothing_ms) / count)
    return statistics.median(taken)


def graphs(model: Any, sets: list[Set]) -> Call:
    """Return what replays the graph of a set: each has its own, with a result of its own."""
    made = {id(given[0]): graphed(model, given)[0] for given in sets}
    return lambda *given: made[id(given[0])]()


def graphed(model: Any, given: Set) -> tuple[Call, list[Set]]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(*given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(*given)
    return (lambda *_: graph.replay()), [given]


def by_events(call: Any, sets: list[Set], count: int = 60, pause: int = PAUSE_CYCLES) -> float:
    """Median milliseconds; before each call the L2 cache is filled with other data, which keeps the host ahead.

    It is read and not written: what was written would be put into memory while the call runs. Ten milliseconds in which
    one thread spins come before it: sixty large products in a row would run into the power limit, and the judge, which
    lays out contents between calls, would not.

    A pair of events by itself takes two microseconds, which are taken off.
    """
    taken = [_by_events(f, sets, count, pause) for f in (call, lambda *_: None)]
    return taken[0] - taken[1]


def _by_events(call: Any, sets: list[Set], count: int, pause: int) -> float:
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


def by_turns(calls: dict[str, Any], sets: list[Set]) -> dict[str, float]:
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

    def times(self, path: Path, *, pairs: int = 30) -> dict[str, float]:
        """Milliseconds of each baseline, and of the module as a candidate."""
        from rag_kernels.eval.problem import load_problem
        from rag_kernels.eval.records import Candidate
        from rag_kernels.ingest.functional.functionalize import functionalize

        fp = functionalize(load_problem(path), workers=self.judge.workers)
        text = fp.problem.source.replace("class Model(", "class ModelNew(").replace("super(Model", "super(ModelNew")
        return self.race(fp, Candidate(text, "module", self.judge.device.backend), pairs=pairs)

    def race(self, fp: FunctionalProblem, candidate: Candidate, *, pairs: int = 30) -> dict[str, float]:
        """Milliseconds of a candidate and of each baseline; on a GPU with what a program sees, as `host ...`."""
        from rag_kernels.eval.sessions.candidate_session import LoadedCandidate
        from rag_kernels.eval.sessions.reference_times import ReferenceTimes
        from rag_kernels.eval.timing.race import Race

        judge = self.judge
        with judge._turns.shared(), judge.sessions.for_baselines(fp) as session:
            reference = ReferenceTimes(session)
            reference.prepare_baselines()
            with LoadedCandidate(session, candidate, judge._builder.whole(candidate)) as subject:
                race = Race(subject, subject.bind(session), reference, ["eager", *reference.variants])
                times = race.run(cold=session.on_gpu, pairs=pairs)
                found = {name: statistics.median(taken) * 1e3 for name, taken in times.seconds.items()}
                if session.on_gpu:
                    host = race.run(cold=True, pairs=5, with_host=True)
                    found |= {f"host {n}": statistics.median(taken) * 1e3 for n, taken in host.seconds.items()}
                found["calls"], found["delay"] = race.calls, times.delay_s * 1e3
                found["burst"] = max(1, len(race.burst))
                found["asking"] = statistics.median(times.asking_s or [0.0]) * 1e3
                found["least mhz"], found["most mhz"] = times.mhz or (0, 0)
        return found


def environment() -> dict[str, str]:
    """Return the environment in which torch.compile keeps what it made where the judge's does."""
    from rag_kernels.eval.judge import inductor_env

    return os.environ | inductor_env(default_cache())


def measure(paths: Sequence[Path], asked: argparse.Namespace) -> None:
    """Time the problems by both clocks: by the other one in a process that goes ahead."""
    rows: dict[str, dict[str, dict[str, float]]] = {}
    end = time.monotonic() + asked.seconds
    options = ["--device", asked.device, "--each", str(asked.each), "--variants", *asked.variants]
    command = [sys.executable, __file__, *options, "--alone", *map(str, paths)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as other:
        judge = Judge(asked.device, asked.variants)
        assert other.stdout is not None
        with judge.judge:
            say("the judge is open")
            for line in other.stdout:
                told = json.loads(line)
                name = told["name"]
                if time.monotonic() > end:
                    break
                if "error" in told:
                    print(f"{name}: {told['error']}", flush=True)
                    continue
                try:
                    with at_most(asked.each):
                        own = judge.times(next(p for p in paths if p.stem == name), pairs=asked.pairs)
                except Exception as error:  # as above
                    print(f"{name}, judge: {type(error).__name__}: {error}"[:400], flush=True)
                    judge.judge.sessions.close()
                    continue
                rows[name] = {"alone": told["times"], "judge": own}
                show(name, rows[name])
                say(f"{name} by the judge")
                if asked.out:
                    asked.out.write_text(json.dumps(rows, indent=1))
        other.kill()
    summary(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--variants", nargs="*", default=["eager", "compile", "graph"])
    parser.add_argument("--pairs", type=int, default=TimingRule().pairs, help="of a race")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which no further problem is begun")
    parser.add_argument("--each", type=float, default=300.0, help="seconds of a problem by one clock")
    parser.add_argument("--prepare", action="store_true", help="compile, and time nothing")
    parser.add_argument("--part", default="1/1", help="I/N: each Nth problem, from the Ith on")
    parser.add_argument("--table", nargs="*", type=Path, help="print what these files hold")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--alone", nargs="*", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.alone:
        alone(asked.alone, asked)
        return
    if asked.table:
        table(
            {name: row for file in asked.table if file.is_file() for name, row in json.loads(file.read_text()).items()}
        )
        return
    number, of = map(int, asked.part.split("/"))
    names = (asked.only or (list(PROBLEMS) if asked.device == "cuda" else list(SMALL)))[number - 1 :: of]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{name}.py") for name in names]
        for path in paths:
            path.write_text(PROBLEMS[path.stem])
        if asked.prepare:
            os.environ.update(environment())
            alone(paths, asked)
        else:
            measure(paths, asked)


def show(name: str, row: dict[str, dict[str, float]]) -> None:
    mine, other = row["judge"], row["alone"]
    cells = [f"{v} {mine[v]:.4f}/{other[v]:.4f}={mine[v] / other[v]:.3f}" for v in VARIANTS if v in mine and v in other]
    cells.append(f"A/A {mine['candidate'] / mine['eager']:.3f}")
    cells.append(f"calls {mine['calls']:.0f} delay {mine['delay']:.2f}")
    cells += [f"{n} {mine[n]:.4f}" for n in mine if n.startswith("host ")]
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def table(rows: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print rows as Markdown: of each variant the judge's milliseconds, those in a row, their ratio, a single call."""
    heads = [f"{v}, judge | row | ratio | single" for v in VARIANTS]
    print(f"| problem | {' | '.join(heads)} | module/eager |\n|---|{'---:|' * (4 * len(VARIANTS) + 1)}")
    for name in [n for n in PROBLEMS if n in rows]:
        mine, other = rows[name]["judge"], rows[name]["alone"]
        cells = [
            f"{mine[v]:.4f} | {other[v]:.4f} | {mine[v] / other[v]:.3f} | {other.get(f'single {v}', math.nan):.4f}"
            if v in mine and v in other
            else " | | | "
            for v in VARIANTS
        ]
        print(f"| {name} | {' | '.join(cells)} | {mine['candidate'] / mine['eager']:.3f} |")
    summary(rows)


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
