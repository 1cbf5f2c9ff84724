"""No lost verdict: many candidates through one judge on the CPU, of which a third crash, hang or eat memory.

    python tests/bench/thousand.py [--count 1000] [--seed 1]

Prints a Markdown table: verdicts by kind of candidate, unexpected and lost ones, and what the judge has left behind
(processes, scratch folders, file descriptors, memory). Exit code 1 if anything is unexpected, lost or left. Those that
eat memory or fork stop by themselves. Every source has a constant of its own, so that each is built.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

from rag_kernels.eval.judge import LocalJudge, open_judge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine.device import cpu_name
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import Candidate, FunctionalProblem, verdict_name
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.ingest.functional.functionalize import functionalize

PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2 + 1

def get_inputs():
    return [torch.randn(64, 96)]

def get_init_inputs():
    return []
"""
KERNEL = """
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>
#include "rag_kernel.h"
static volatile int64_t number = NUMBER;
static int64_t deep(int64_t i) { volatile char frame[4096]; frame[i % 4096] = 1; return deep(i + 1) + frame[i % 7]; }
static void sink(int64_t bytes) {  // takes memory and keeps it
  volatile char* p = static_cast<volatile char*>(malloc(bytes));
  if (!p) std::abort();
  for (int64_t i = 0; i < bytes; i += 4096) p[i] = 1;
}
void kernel(rk::Tensor<const float> x, rk::Tensor<float> out) {
  const int64_t n = x.numel();
  BEFORE
  for (int64_t i = 0; i < n; ++i) out.data[i] = EXPRESSION;
}
RK_EXPORT(forward, kernel)
"""
RIGHT = "(x.data[i] > 0 ? x.data[i] : 0) * 2 + 1"


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to behave, and the verdicts that are right for it."""

    name: str
    before: str
    expected: frozenset[str]
    expression: str = RIGHT


def _kinds(expected: str, **befores: str) -> list[Kind]:
    return [Kind(name, before, frozenset(expected.split())) for name, before in befores.items()]


BAD = [
    *_kinds(
        "crashed",
        segfault="*(volatile int*)(number & 0xf) = 1;",
        write_far="out.data[(int64_t(1) << 34) + number] = 1;",
        abort="std::abort();",
        own_exception='throw std::runtime_error("no");',
        refusal='RK_CHECK(number < 0, "not today");',
        terminate="[]() noexcept { throw 1; }();",
        exit="std::exit(0);",
        quick_exit="_exit(3);",
        kill_itself="kill(getpid(), SIGKILL);",
        float_signal="raise(SIGFPE);",
        stack_overflow="out.data[0] = float(deep(number));",
    ),
    *_kinds(
        "timed_out",
        endless="while (number >= 0) {}",
        sleeper="for (;;) sleep(60);",
        deadlock="static std::mutex m; m.lock(); m.lock();",
        deaf="signal(SIGTERM, SIG_IGN); signal(SIGALRM, SIG_IGN); for (;;) pause();",
    ),
    *_kinds(
        "crashed",
        allocate="for (int i = 0; i < 64; ++i) sink(32 << 20);",
        one_big="sink(int64_t(6) << 30);",
    ),
    # Children that outlive the call: a verdict of any kind but a pass, and none of them may be left.
    *_kinds(
        "rejected crashed timed_out",
        forks="for (int i = 0; i < 12; ++i) if (fork() == 0) { sleep(20); _exit(0); }",
        fork_and_wait="for (int i = 0; i < 6; ++i) if (!fork()) { sleep(20); _exit(0); } while (wait(nullptr) > 0) {}",
    ),
]
GOOD = [
    Kind("right", "", frozenset({"passed"})),
    Kind("right, the other way", "", frozenset({"passed"}), "1 + 2 * std::fmax(x.data[i], 0.0f)"),
    Kind("wrong", "", frozenset({"wrong"}), "(x.data[i] > 0 ? x.data[i] : 0) * 2 + 1.01f"),
    Kind("does not build", "this is no C++;", frozenset({"build_failed"})),
]
LIMITS = Limits(
    load_s=10,
    call_s=1.5,
    open_s=30,
    memory_bytes=256 << 20,
    measure_compile=False,
    timing=TimingRule(pairs=7, max_pairs=7, few_pairs=5, timed_s=0.01, rechecked=1),
)


@dataclass(frozen=True, slots=True)
class State:
    """What this judge holds of the machine: its processes, descriptors, scratch folders, and memory of its own."""

    processes: int
    descriptors: int
    folders: int
    memory_mib: float

    @staticmethod
    def now() -> State:
        me = psutil.Process()
        folders = len(list(Path(tempfile.gettempdir()).glob("rag-kernels-*")))
        return State(len(me.children(recursive=True)), me.num_fds(), folders, me.memory_info().rss / 2**20)


def make(count: int, rng: random.Random) -> list[tuple[Kind, Candidate]]:
    """A third of bad ones of every kind, mixed."""
    bad = [BAD[i % len(BAD)] for i in range(round(count / 3))]
    good = [GOOD[0] if i % 3 else GOOD[1 + i // 3 % (len(GOOD) - 1)] for i in range(count - len(bad))]
    kinds = bad + good
    rng.shuffle(kinds)
    sent = []
    for number, kind in enumerate(kinds, rng.randrange(1 << 40)):
        source = KERNEL.replace("NUMBER", str(number)).replace("BEFORE", kind.before)
        sent.append((kind, Candidate(source.replace("EXPRESSION", kind.expression), "kernel", "cpu")))
    return sent


def judge_all(
    judge: LocalJudge, fp: FunctionalProblem, sent: list[tuple[Kind, Candidate]], batch: int
) -> dict[str, tuple[str, str]]:
    """Verdict and reason by candidate id."""
    got: dict[str, tuple[str, str]] = {}
    started = time.monotonic()
    for at in range(0, len(sent), batch):
        for candidate, judged in judge.judge(fp, [c for _, c in sent[at : at + batch]]):
            got[candidate.id] = verdict_name(judged.verdict), str(getattr(judged.verdict, "reason", ""))
        print(f"{len(got)} of {len(sent)} after {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return got


def report(
    sent: list[tuple[Kind, Candidate]], got: dict[str, tuple[str, str]], seconds: float, before: State, after: State
) -> bool:
    """Print the tables; whether all is as it should be."""
    print(f"Machine: {cpu_name()}.\n\n| candidates | sent | verdicts | unexpected | lost |\n|---|---:|---|---:|---:|")
    surprises, lost_in_all = [], 0
    for kind in [*GOOD, *BAD]:
        ids = [c.id for k, c in sent if k is kind]
        verdicts = Counter(got[i][0] for i in ids if i in got)
        odd = [got[i] for i in ids if i in got and got[i][0] not in kind.expected]
        lost = sum(i not in got for i in ids)
        surprises += [(kind.name, *one) for one in odd]
        lost_in_all += lost
        shown = ", ".join(f"{name} {count}" for name, count in verdicts.most_common())
        print(f"| {kind.name} | {len(ids)} | {shown} | {len(odd)} | {lost} |")
    print(f"| all | {len(sent)} | {len(got)} | {len(surprises)} | {lost_in_all} |\n")
    print("| | before | after |\n|---|---:|---:|")
    print(f"| processes of the judge | {before.processes} | {after.processes} |")
    print(f"| its file descriptors | {before.descriptors} | {after.descriptors} |")
    print(f"| scratch folders | {before.folders} | {after.folders} |")
    print(f"| memory of the judge's process, MiB | {before.memory_mib:.0f} | {after.memory_mib:.0f} |\n")
    print(f"{seconds:.0f} s in all, {3600 * len(got) / seconds:.0f} verdicts an hour.")
    for name, verdict, reason in surprises[:20]:
        print(f"unexpected: {name}: {verdict}: {reason[:200]}")
    clean = after.processes <= before.processes and after.folders <= before.folders
    return not surprises and not lost_in_all and clean and after.descriptors <= before.descriptors + 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    asked = parser.parse_args()
    print(f"seed {asked.seed}", file=sys.stderr)
    sent = make(asked.count, random.Random(asked.seed))
    # Scratch folders of other judges on this machine must not be counted.
    with tempfile.TemporaryDirectory(prefix="thousand-") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        with open_judge("cpu", limits=LIMITS, cache_dir=Path(folder) / "cache") as judge:
            fp = functionalize(problem_from_source("double_relu", PROBLEM), workers=judge.workers)
            list(judge.judge(fp, [c for k, c in make(3, random.Random(0)) if k is GOOD[0]]))  # the session is open now
            before, started = State.now(), time.monotonic()
            got = judge_all(judge, fp, sent, asked.batch)
            seconds = time.monotonic() - started
            time.sleep(1)
            good = report(sent, got, seconds, before, State.now())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
