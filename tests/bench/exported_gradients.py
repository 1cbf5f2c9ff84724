"""Trains through exported packages: gradients in every format that carries a kernel for them, by its peer's loader.

    rag-kernels export KERNEL --backward OTHER --as module --out KERNEL.py      # or the module of a training step
    python tests/bench/exported_packages.py write FOLDER KERNEL.py...           # where its device is
    python tests/bench/exported_gradients.py check FOLDER [--jobs N]            # prints a line for each, and a table

For each kernel and format: numbers and every gradient beside those of the problem's own module in eager; whether the
kernel for the gradients made them, or they were computed again; the same under `torch.compile(fullgraph=True)`; torch's
own tests of operators; and, on a GPU, after work of a stream of its own.
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

from exported_peers import Case, call_of, close, places_of, tensors

FORMS = ("module", "standalone", "torch-op", "wheel", "hf-kernels")
DELAY_CYCLES = 100_000_000  # some 60 ms
COLUMNS = ("numbers", "gradients", "made by", "compiled", "opcheck", "stream")


class Step:
    """One call with its gradients, of a package or of the problem's own module."""

    def __init__(self, case: Case, run: Callable[[], Any], module: Any = None) -> None:
        self.case, self.run, self.module = case, run, module

    def __call__(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the results, and the gradients of inputs and parameters by their paths."""
        import torch

        case = self.case
        leaves = [leaf(v) for v in tensors(tuple(case.inputs[0]))]
        case.inputs[0] = torch.utils._pytree.tree_unflatten(leaves, torch.utils._pytree.tree_structure(case.inputs[0]))
        parameters = dict((self.module or case.model).named_parameters())
        if self.module is None:
            case.values[0] = case.arguments(case.inputs[0])
        for parameter in parameters.values():
            parameter.grad = None
        made = tensors(self.run())
        flows = [one for one in made if one.requires_grad]
        torch.autograd.backward(flows, [one.detach().cos() for one in flows])
        graded = {str(i): v for i, v in enumerate(leaves) if isinstance(v, torch.Tensor)} | parameters
        return [v.detach() for v in made], {name: v.grad for name, v in graded.items() if v.grad is not None}


def leaf(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().clone()
    return value.requires_grad_() if value.is_floating_point() else value


def differs(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Return which gradient is another one; sums of many terms are compared by their largest."""
    if missing := wanted.keys() - found.keys():
        return f"none of {', '.join(sorted(missing))}"
    for name, one in wanted.items():
        far = (found[name] - one).abs().max() / one.abs().max().clamp(min=1e-12)
        if not far < 1e-3:
            return f"{name} is off by {far:.1e} of its largest"
    return ""


def count_recomputed() -> list[int]:
    """Note each time that a package computes gradients again; return the notes."""
    noted: list[int] = []
    for module in list(sys.modules.values()):
        if "functional_gradients" in vars(module) and "Registered" in vars(module):
            usual = module.functional_gradients
            module.functional_gradients = lambda *given, usual=usual: noted.append(1) or usual(*given)
    return noted


def one(place: Path, form: str) -> dict[str, str]:
    import torch

    case = Case(place, burst=1)
    plain = Step(case, lambda: case.model(*case.inputs[0]), case.model)
    wanted, slopes = plain()
    call, _ = call_of(form, case)
    module = case.made[-1] if case.made else None
    step = Step(case, lambda: call(0), module)
    recomputed = count_recomputed()
    found, given = step()
    told = {
        "numbers": close(found, wanted) or "right",
        "gradients": differs(given, slopes) or "right",
        "made by": "functional form" if recomputed else "kernel",
    }
    if module is not None and not module.kernel_used:
        told["made by"] = f"module: {module.kernel_reason}"
    told["compiled"] = compiled(step, call, case, module, slopes)
    told["opcheck"] = checked(call, case, module)
    if case.device == "cuda":
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(DELAY_CYCLES)
            _, given = step()
        torch.cuda.synchronize()
        told["stream"] = differs(given, slopes) or "right"
    return told


def compiled(step: Step, call: Any, case: Case, module: Any, slopes: dict[str, Any]) -> str:
    """Train through one graph without breaks."""
    import torch

    whole = torch.compile(module or (lambda: call(0)), fullgraph=True, backend="aot_eager")
    recomputed = count_recomputed()
    graph = Step(case, (lambda: whole(*case.inputs[0])) if module is not None else whole, module)
    _, given = graph()
    by = " (functional form)" if recomputed else ""
    return (differs(given, slopes) or "right") + by


def checked(call: Any, case: Case, module: Any) -> str:
    """Ask torch's own tests of operators, where the format has one that takes the call's arguments."""
    import torch

    op = module.COMPILED.op if module is not None else vars(sys.modules[OPERATORS(call)])["_operator"]
    values = [leaf(v) for v in case.values[0]]
    try:
        torch.library.opcheck(op, tuple(values))
    except Exception as error:  # of whatever kind its tests raise
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return "passes"


def OPERATORS(call: Any) -> str:
    """Return the name of the module that a package's function is of."""
    [function] = [c.cell_contents for c in call.__closure__ if hasattr(c.cell_contents, "__globals__")]
    name: str = function.__globals__["__name__"]
    return name


def check(folder: Path, jobs: int, forms: list[str]) -> None:
    def run(asked: tuple[Path, str]) -> dict[str, str]:
        place, form = asked
        command = [sys.executable, __file__, "one", str(place), form]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "MAX_JOBS": "2"})
        (place / form / "gradients.log").write_text(done.stdout + done.stderr)
        last = next((line for line in reversed(done.stdout.splitlines()) if line.startswith("{")), "")
        told = json.loads(last) if last else {"numbers": " ".join(done.stderr.split())[-300:]}
        name = json.loads((place / "call.json").read_text())["name"]
        print(name, form, *(f"{k}: {v};" for k, v in told.items()), flush=True)
        return {"kernel": name, "format": form, **told}

    asked = [(place, form) for place in places_of(folder) for form in forms if not refused(place, form)]
    with ThreadPoolExecutor(jobs) as pool:
        rows = list(pool.map(run, asked))
    print(f"\n| kernel | format | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 2)}")
    for row in rows:
        print(f"| {row['kernel']} | {row['format']} | {' | '.join(row.get(name, '') for name in COLUMNS)} |")


def refused(place: Path, form: str) -> bool:
    return (place / form / "refused").exists() or not (place / form).exists()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("command", choices=["check", "one"])
    parser.add_argument("place", type=Path)
    parser.add_argument("forms", nargs="*", default=FORMS)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    if given.command == "check":
        check(given.place.resolve(), given.jobs, list(given.forms))
    else:
        print(json.dumps(one(given.place, given.forms[0])))


if __name__ == "__main__":
    main()
