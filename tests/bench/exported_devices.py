"""Calls exported packages on every GPU of a machine, on streams of their own, in CUDA graphs, and across GPUs.

    python tests/bench/exported_packages.py write FOLDER KERNEL.py...
    python tests/bench/exported_devices.py check FOLDER [--jobs N]
    python tests/bench/exported_devices.py page FOLDER >> docs/measured/exports.md

For each kernel and format, while the first GPU is the current one: are numbers right and outputs there where the inputs
are; is the current GPU another one afterwards; is the current stream kept to (inputs are written on it after a long
delay); can the call be recorded in a CUDA graph and played again; and what comes of tensors on two GPUs, where eager
raises. With one GPU the rows of the others are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from exported_peers import FORMS, Call, Case, call_of, close, places_of, tensors

DELAY_CYCLES = 100_000_000  # some 60 ms


def numbers(call: Call, case: Case) -> str:
    """Where its tensors are."""
    import torch

    made, before = call(0), torch.cuda.current_device()
    places = {str(tensor.device) for tensor in tensors(made)}
    if places != {case.device}:
        return f"outputs on {', '.join(sorted(places))}"
    if torch.cuda.current_device() != before or before != 0:
        return f"leaves GPU {torch.cuda.current_device()} the current one"
    return close(made, case.model(*case.inputs[0])) or "right"


def on_a_stream(call: Call, case: Case) -> str:
    """After work of a stream of its own."""
    import torch

    changed = next(v for v in tensors(tuple(case.inputs[0])) if isinstance(v, torch.Tensor) and v.is_floating_point())
    kept, other = changed.clone(), torch.rand_like(changed)
    call(0)
    torch.cuda.synchronize(case.device)
    with torch.cuda.stream(torch.cuda.Stream(case.device)):
        torch.cuda._sleep(DELAY_CYCLES)
        changed.copy_(other)
        made = [tensor.clone() for tensor in tensors(call(0))]
        torch.cuda.synchronize(case.device)
    told = close(made, case.model(*case.inputs[0]))
    changed.copy_(kept)
    torch.cuda.synchronize(case.device)
    return f"not kept to ({told[:40]}...)" if told else "right"


def in_a_graph(call: Call, case: Case) -> str:
    """Recorded, and played on other inputs."""
    import torch

    changed = next(v for v in tensors(tuple(case.inputs[0])) if isinstance(v, torch.Tensor) and v.is_floating_point())
    with torch.cuda.device(case.device):
        call(0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):  # torch's own stays on the first GPU of a process
            made = call(0)
        kept = changed.clone()
        changed.copy_(torch.rand_like(changed))
        graph.replay()
        torch.cuda.synchronize()
        told = close(made, case.model(*case.inputs[0]))
        changed.copy_(kept)
    return told or "right"


def across(call: Call, case: Case) -> str:
    """The first tensor is elsewhere."""
    import torch

    values, inputs = case.values[0], case.inputs[0]
    if sum(isinstance(value, torch.Tensor) for value in [*values, *tensors(tuple(case.model.parameters()))]) < 2:
        return "has one tensor"
    i = next(i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor))
    moved = inputs[i].to("cuda:0" if case.device != "cuda:0" else "cuda:1")
    case.inputs[0] = [*inputs[:i], moved, *inputs[i + 1 :]]
    case.values[0] = case.arguments(case.inputs[0])
    try:
        call(0)
        torch.cuda.synchronize(0), torch.cuda.synchronize(1)
    except Exception as error:
        return f"raises {type(error).__name__}"
    finally:
        case.inputs[0], case.values[0] = inputs, values
    return "computes"


ASKED: dict[str, Callable[[Call, Case], str]] = {
    "numbers": numbers, "stream": on_a_stream, "graph": in_a_graph, "across": across,
}  # fmt: skip


def one(place: Path, form: str) -> None:
    """Ask one format of one kernel everything, on the last GPU first: nothing was made on the current one before."""
    import torch

    os.environ.setdefault("FIB_CACHE_PATH", str(place / "fib"))
    count = torch.cuda.device_count()
    case = Case(place, f"cuda:{count - 1}", burst=1)
    row: dict[str, Any] = {"problem": case.told["name"], "kernel": place.name, "form": form}
    with torch.no_grad():
        try:
            call, _ = call_of(form, case)
        except Exception as error:
            told = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            print(json.dumps(row | {"device": case.device, "asked": "numbers", "told": told}))
            return
        for device in [f"cuda:{i}" for i in reversed(range(count))]:
            case.to(device)
            for name, ask in ASKED.items():
                if name == "across" and count < 2:
                    continue
                try:
                    told = ask(call, case)
                except Exception as error:
                    told = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                known = {"device": device, "gpu": torch.cuda.get_device_name(device), "asked": name, "told": told}
                print(json.dumps(row | known), flush=True)


def check(folder: Path, jobs: int) -> None:
    """Ask all formats at once, each in a process of its own."""
    pairs = [(p, f) for f in reversed(FORMS) for p in places_of(folder) if not (p / f / "refused").exists()]

    def asked(pair: tuple[Path, str]) -> list[dict[str, Any]]:
        command = [sys.executable, __file__, "one", str(pair[0]), "--form", pair[1]]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "MAX_JOBS": "2"})
        (pair[0] / pair[1] / "devices.log").write_text(done.stdout + done.stderr)
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        died = {"problem": pair[0].name, "form": pair[1], "device": "", "asked": "", "told": done.stderr[-400:]}
        rows += [died] * (done.returncode != 0)
        print(
            *(f"{r['problem']} {r['form']} {r['device']} {r['asked']}: {r['told']}" for r in rows), sep="\n", flush=True
        )
        with (folder / "devices.jsonl").open("a") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
        return rows

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(asked, pairs))


PAGE = """
## On several GPUs

{kernels} in every format, on {count} of {gpus} in one machine, each GPU's tensors called while the first is the current
one. *numbers*: right, outputs where the inputs are, and the same GPU current afterwards. *stream*: the call waits for
what the stream of the caller does. *graph*: it is recorded in a CUDA graph, and right when that is played on other
inputs. *across*: the first tensor is on another GPU, where eager raises RuntimeError. Submissions to GPU MODE launch on
the default queue, since its rules forbid the word for others.

Made by `python tests/bench/exported_devices.py`.

{rows}
"""


def page(folder: Path) -> str:
    """Return a table with a row for each format: what all kernels came to, on all GPUs."""
    rows = [json.loads(line) for line in (folder / "devices.jsonl").read_text().splitlines()]
    cells: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        told = row["told"].split(":")[0].replace("Tensor-likes are not close!", "not right, ")
        if told != "has one tensor":
            cells.setdefault((row["form"], row["asked"]), {})[told.split(",")[0].split(" (")[0]] = None
    lines = [f"| format | {' | '.join(ASKED)} |", f"|---|{'---|' * len(ASKED)}"]
    lines += [f"| {form} | {' | '.join('; '.join(cells.get((form, n), ['none'])) for n in ASKED)} |" for form in FORMS]
    return PAGE.format(
        kernels=" and ".join(dict.fromkeys(row["problem"] for row in rows)),
        count=len({row["device"] for row in rows if row["device"]}),
        gpus=", ".join(sorted({row["gpu"] for row in rows if "gpu" in row})),
        rows="\n".join(lines),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["check", "one", "page"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--form", default="module")
    asked = parser.parse_args()
    if asked.command == "one":
        one(asked.folder.resolve(), asked.form)
    elif asked.command == "check":
        check(asked.folder.resolve(), asked.jobs)
    else:
        print(page(asked.folder), end="")


if __name__ == "__main__":
    main()
