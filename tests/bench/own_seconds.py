"""First drafts in C++ beside their modules, by the CPU time of one thread: on a machine that others use too.

    python tests/bench/own_seconds.py PROBLEM.py... [--rounds 9]

The draft is exported as a module; both are called in turn in one process, and compared first. What is taken is the
process' own CPU time, so that a row says how much there is to do, not how long two threads take for it. Nothing is
judged.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before a kernel's library is loaded

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from random_shapes import attempt, form_of, loaded

from rag_kernels.eval.contract import contract
from rag_kernels.export.packages import write_package
from rag_kernels.offline.writer import OfflineWriter
from rag_kernels.records import Brief
from rag_kernels.scripted import ScriptedJudge, device, passed

ROUND_S = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| problem | ours, ms | the module, ms | over it |", "|---|---:|---:|---:|", sep="\n")
    for file in asked.files:
        try:
            ours, theirs = (1e3 * s for s in seconds(file, asked.rounds))
        except Exception as error:  # one that fails costs its row alone
            print(f"| {file.stem} | {type(error).__name__}: {str(error)[:200]} | | |", flush=True)
            continue
        print(f"| {file.stem} | {ours:.2f} | {theirs:.2f} | {theirs / ours:.2f} |", flush=True)
    print(f"\nCPU time of one thread, PyTorch {torch.__version__}.")


def seconds(file: Path, rounds: int) -> tuple[float, float]:
    """Return the medians of a call of the first draft and of one of the module."""
    problem = loaded(file)
    torch.manual_seed(0)
    given = problem.get_inputs()
    kinds = exported(file, Path(tempfile.mkdtemp())), problem.Model
    calls: list[Callable[..., Any]] = []
    for kind in kinds:
        torch.manual_seed(1)
        calls.append(kind(*problem.get_init_inputs()))
    with torch.no_grad():
        found, wanted = (call(*given) for call in calls)
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2, equal_nan=True)
        assert calls[0].kernel_used, calls[0].kernel_reason  # type: ignore[attr-defined]
        taken = [[timed(call, given) for call in calls] for _ in range(rounds)]
    ours, theirs = (statistics.median(times) for times in zip(*taken, strict=True))
    return ours, theirs


def exported(file: Path, folder: Path) -> Any:
    """Return the class of the exported module that runs the first draft."""
    fp, place = form_of(file.stem, file.read_text()), device("cpu")
    draft = OfflineWriter().propose(Brief("bench", fp, place, (), (), "", 1, 1))[0]
    verdict = replace(passed(2.0), contract=contract(fp, [], any_alignment=False))
    made = attempt(fp, draft, ScriptedJudge(on=place).judged_as(verdict), 1, 1)
    return loaded(write_package(made, "module", folder / f"{file.stem}_kernel.py")).ModelNew


def timed(call: Callable[..., Any], given: list[Any]) -> float:
    """Return the CPU time of a call, of as many as take a while."""
    count, began = 0, time.process_time()
    while time.process_time() - began < ROUND_S:
        call(*given)
        count += 1
    return (time.process_time() - began) / count


if __name__ == "__main__":
    main()
