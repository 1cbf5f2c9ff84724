"""Times exported kernels by a clock like the judge's, tells why the two differ, and times models with a kernel in them.

    python tests/bench/exported_clocks.py clocks FOLDER       # the bare kernel in ways
    python tests/bench/exported_clocks.py kernelize FOLDER    # in a model, by Hugging Face's `kernelize`

FOLDER is what `exported_packages.py write` and `judge` filled.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import statistics
import time
from pathlib import Path
from typing import Any

from exported_peers import Call, Case, close, places_of

TURNS = 31
DELAY_CYCLES = 4_000_000  # some 2 ms, in which the calls of a burst are queued
WAYS = [("sleep", 8, True), ("sleep", 8, False), ("judge's", 8, True), ("judge's", 0, True), ("judge's", 1, True)]


def medians_us(calls: dict[str, Call], case: Case) -> dict[str, float]:
    """Return the median time of a call, of bursts with cold caches behind a delay; formats take turns."""
    import torch

    times: dict[str, list[float]] = {name: [] for name in calls}
    on_gpu = case.device.startswith("cuda")
    size = 2 * torch.cuda.get_device_properties(0).L2_cache_size if on_gpu else 1 << 26
    cold = torch.empty(max(size, 64 << 20), dtype=torch.uint8, device=case.device)
    for turn in range(TURNS + 3):
        for name, call in calls.items():
            for inputs in case.inputs:  # as the judge's race does: how warm the device is decides its clock
                case.model(*inputs)
            cold.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2)) if on_gpu else (None, None)
            if on_gpu:
                torch.cuda.synchronize()
                torch.cuda._sleep(DELAY_CYCLES)
                start.record()
            began = time.perf_counter()
            kept = [call(i) for i in range(len(case.inputs))]
            took = (time.perf_counter() - began) * 1e6
            if on_gpu:
                end.record()
                torch.cuda.synchronize()
                took = start.elapsed_time(end) * 1e3
            if turn >= 3:
                times[name].append(took / len(kept))
            del kept
    return {name: statistics.median(values) for name, values in times.items()}


def clocks(place: Path) -> None:
    """Time the bare kernel in several ways, by events and by the host's clock, and tell the clock of the GPU in each.

    `sleep` holds the queue back by one thread, `judge's` as the judge does, by all of them until a moment of the host's
    clock, which the time begins at; 0 calls in a burst are as many as the judge's.
    """
    import torch

    from rag_kernels.eval.children.gpu.delay import delay_until, set_clock
    from rag_kernels.eval.machine.throttling import Clocks

    case, judged = Case(place, burst=32), json.loads((place / "judged.json").read_text())
    compiled = case.file.COMPILED
    sizes = compiled.served.sizes_made(case.values[0])
    cold = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device=case.device)
    told = judged["candidate"] * 1e3
    mhz = f"{judged['least mhz']:.0f} to {judged['most mhz']:.0f} MHz"
    print(
        f"{case.told['name']}: the judge's {told:.1f} us, bursts of {judged['burst']:.0f}, of which asking was taken "
    )
    print(f"  off at {judged['asking'] * 1e3:.2f} us a call; {mhz}")
    with torch.no_grad():
        compiled.run(case.values[0], sizes)
        for delay, asked, eager in WAYS:
            count = min(asked or int(judged["burst"]), len(case.inputs))
            by_events, by_host, seen = [], [], Clocks(on_gpu=True)
            for turn in range(TURNS + 3):
                for inputs in case.inputs[: 8 if eager else 0]:
                    case.model(*inputs)
                cold.zero_()
                set_clock()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda.synchronize()
                begun = time.monotonic() + 2e-3
                if delay == "sleep":
                    torch.cuda._sleep(DELAY_CYCLES)
                else:
                    delay_until(begun)
                start.record()
                kept = [compiled.run(case.values[i], sizes) for i in range(count)]
                end.record()
                torch.cuda.synchronize()
                taken = time.monotonic() - begun
                seen.slowed()
                if turn >= 3:
                    by_events.append(start.elapsed_time(end) * 1e3 / count)
                    by_host.append(taken * 1e6 / count)
                del kept
            us, host = statistics.median(by_events), statistics.median(by_host)
            row = f"  {delay:8} {count:3} calls {'after eager' if eager else 'alone':12} {us:8.2f} us {us / told:.3f}"
            last = f" host {host:8.2f} us {host / told:.3f}" if delay != "sleep" else ""
            print(f"{row}{last}  {min(seen.mhz or [0])} to {max(seen.mhz or [0])} MHz", flush=True)


def kernelized(place: Path) -> None:
    """Put a kernel into a model by Hugging Face's `kernelize`, compare, and time the model beside what it was."""
    import torch
    from kernels import LocalLayerRepository, Mode, kernelize, register_kernel_mapping, use_kernel_forward_from_hub

    torch.backends.cudnn.allow_tf32 = False  # of convolutions: as in the race that the kernel comes from
    case, made = Case(place), place / "hf-kernels" / "made"
    layers = [*made.glob("build/*/layers.py")]
    if not layers:
        print(f"{case.told['name']}: its package has no layer")
        return
    [layer] = re.findall(r"^class (\w+)", layers[0].read_text(), re.M)

    class Small(torch.nn.Module):
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, *inputs: Any) -> Any:
            return self.layer(*inputs)

    plain = Small(case.model).eval()
    use_kernel_forward_from_hub(f"Of{layer}")(case.file.Model)
    register_kernel_mapping({f"Of{layer}": {case.device: LocalLayerRepository(made, layer_name=layer)}})
    taking = kernelize(copy.deepcopy(plain), mode=Mode.INFERENCE, device=case.device)
    call = taking.layer.forward.__func__.__globals__["_call"]
    used, taken = call.operator, list[int]()
    with torch.no_grad():
        call.operator = lambda *given: taken.append(1) or used(*given)
        wrong = close(taking(*case.inputs[0]), plain(*case.inputs[0]))
        call.operator = used
        calls: dict[str, Call] = {
            "eager": lambda i: plain(*case.inputs[i]),
            "kernelized": lambda i: taking(*case.inputs[i]),
        }
        times = medians_us(calls, case)
    told = f"{wrong or 'right'}, {'kernel' if taken else 'module'}"
    print(f"{case.told['name']}: {told}; {times['kernelized']:.1f} us, eager {times['eager']:.1f} us", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("command", choices=["clocks", "kernelize"])
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    for place in places_of(given.folder.resolve()):
        (clocks if given.command == "clocks" else kernelized)(place)


if __name__ == "__main__":
    main()
