"""Prints how long one call of each example takes, eager and on demand under torch.compile.

In: the problem files of `examples/` (or those named on the command line). Out: a table on stdout, times in
milliseconds, medians. It checks that sizes suit a two-core machine; it knows nothing of kernels or the judge.

    python tests/bench/examples_sizes.py [--compile] [FILE...]
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def median_ms(call: Callable[[], object], *, seconds: float) -> float:
    """Return the median time of one call, over at least ten calls and `seconds`, after two warm-up calls."""
    call()
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 10 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def measure(path: Path, *, compiled: bool, seconds: float) -> list[str]:
    torch.manual_seed(0)
    module = load(path)
    model = module.Model(*module.get_init_inputs())
    inputs = module.get_inputs()
    calls = [model] + ([torch.compile(model)] if compiled else [])
    with torch.no_grad():
        return [f"{median_ms(lambda call=call: call(*inputs), seconds=seconds):.2f}" for call in calls]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="problem files (default: all of examples/)")
    parser.add_argument("--compile", action="store_true", help="time torch.compile too (some seconds an example)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.5, help="measuring time for each number")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    columns = ["eager ms"] + (["compile ms"] if options.compile else [])
    print(f"{'example':28}" + "".join(f"{column:>12}" for column in columns))
    for path in options.files or sorted(EXAMPLES.glob("*.py")):
        row = measure(path, compiled=options.compile, seconds=options.seconds)
        print(f"{path.stem:28}" + "".join(f"{cell:>12}" for cell in row), flush=True)


if __name__ == "__main__":
    main()
