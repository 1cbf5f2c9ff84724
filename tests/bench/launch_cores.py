"""Two processes that send the same work to one GPU: how far apart are they, and does it matter from which core?

    python tests/bench/launch_cores.py [--trials 6]

Each of two children times bursts of 64 calls (`x * 2`, and a softmax of five operators) on tensors of 1 MiB, by turns,
60 pairs a trial, as the judge races a candidate against eager. Prints the least and the greatest median ratio of the
trials: with the children wherever the machine puts them, on two cores, and on one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

CALLS, PAIRS = 64, 60


def child(pipe: Connection, kind: str) -> None:
    import torch

    tensors = [torch.randn(512, 512, device="cuda") for _ in range(CALLS)]
    weight = torch.randn(512, device="cuda")
    calls: dict[str, Callable[[Any], Any]] = {
        "x * 2": lambda x: x * 2.0,
        "softmax of five operators": lambda x: torch.softmax(x * 2.0 + weight, -1) * weight + 1.0,
    }
    call = calls[kind]
    while (cores := pipe.recv()) is not None:
        if cores:
            os.sched_setaffinity(0, cores)
        for tensor in tensors:
            call(tensor)
        torch.cuda.synchronize()
        pipe.send(True)


def burst_s(pipe: Connection) -> float:
    started = time.perf_counter()
    pipe.send(())
    pipe.recv()
    return time.perf_counter() - started


def race(pipes: list[Connection]) -> float:
    ratios = []
    for pair in range(PAIRS):
        taken = {side: burst_s(pipes[side]) for side in ((0, 1) if pair % 2 else (1, 0))}
        ratios.append(taken[0] / taken[1])
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=6)
    trials = parser.parse_args().trials
    free = sorted(os.sched_getaffinity(0))
    places = {"anywhere": (free, free), "two cores": (free[:1], free[-1:]), "one core": (free[:1], free[:1])}
    context = get_context("spawn")
    print("| calls | cores | medians of the pairs' ratios |\n|---|---|---|")
    for kind in ("x * 2", "softmax of five operators"):
        pipes, children = [], []
        for _ in range(2):
            ours, theirs = context.Pipe()
            children.append(context.Process(target=child, args=(theirs, kind), daemon=True))
            children[-1].start()
            pipes.append(ours)
        for name, cores in places.items():
            for pipe, mine in zip(pipes, cores, strict=True):
                pipe.send(mine)
                pipe.recv()
            found = sorted(race(pipes) for _ in range(trials))
            print(f"| {kind} | {name} | {found[0]:.2f} to {found[-1]:.2f} |", flush=True)
        for pipe in pipes:
            pipe.send(None)


if __name__ == "__main__":
    main()
