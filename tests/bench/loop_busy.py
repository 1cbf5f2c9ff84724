"""Does the search keep the judge busy, and what does our own code cost an attempt? Prints a Markdown table.

    .venv/bin/python tests/bench/loop_busy.py [--drafts 8] [--rounds 6] [--median-s 6] [--problem examples/swiglu.py]

A server on loopback answers with kernels after a while: log-normal with that median, p90 at twice the median, which is
an assumption about models, not a recording of one. One in eight does not build, one in eight is wrong. Client, builds,
sandbox, judge and archive are the real ones, and nothing is in the build cache; exemplars are shown without being
proved here first. "Busy" is the share of the time from the first draft to the last verdict that the judge spends on
building and judging; on a CPU it builds too, since compilers beside a timing would disturb it.
"""

import argparse
import functools
import logging
import os
import queue
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fake_openai import Answer, Body, FakeOpenAI, Say

from rag_kernels.archive.records import Attempt
from rag_kernels.archive.store import FileArchive
from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.problem import load_problem
from rag_kernels.eval.records import verdict_name
from rag_kernels.ingest.description.embedder import load_embedder
from rag_kernels.llm import branch
from rag_kernels.llm.client import LLM
from rag_kernels.llm.run_memory import RunMemory
from rag_kernels.offline.writer import OfflineWriter
from rag_kernels.options import Options
from rag_kernels.records import Brief
from rag_kernels.retrieval.retriever import Retriever
from rag_kernels.run import draft_flow
from rag_kernels.run.exemplars import Exemplars
from rag_kernels.wiring import STALE_S, open_session

ROOT = Path(__file__).resolve().parents[2]
P90 = 1.2816  # standard deviations


class Model:
    """Answers with ideas, or with the offline writer's kernel under a number of its own."""

    def __init__(self, source: str, median_s: float) -> None:
        self.source, self.median_s = source, median_s
        self.count = 0
        self.start = int(time.time())  # a number that no build has had
        self.asked_at: list[float] = []
        self.latencies: list[float] = []
        self._random = random.Random(0)

    def __call__(self, body: Body) -> Answer:
        delay_s = self.median_s * 2 ** (self._random.gauss(0, 1) / P90)
        self.latencies.append(delay_s)
        self.asked_at.append(time.perf_counter())
        self.count += 1
        asked = re.search(r"numbered list of exactly (\d+)", str(body["messages"][1]["content"]))
        text = self._ideas(int(asked[1])) if asked else self._code()
        return Say(text, len(str(body)) // 4, len(text) // 4, delay_s=delay_s)

    def _ideas(self, count: int) -> str:
        return "\n".join(f"{n}. Tile number {self.count * 10 + n}, with prefetch." for n in range(1, count + 1))

    def _code(self) -> str:
        number, contract = self.count, '#include "rag_kernel.h"'
        text = self.source.replace(contract, f"{contract}\nconstexpr int64_t own = {self.start + number};", 1)
        if number % 8 == 3:
            text += "int broken = ;\n"
        if number % 8 == 6:
            text = re.sub(r"(\w+\.data\[[^\]]*\]|\bto\[[^\]]*\]) = ", r"\1 = 0.5f * ", text)
        return f"Idea: variant {number}\n\n```cpp\n{text}```\n"


class Watched:
    """The judge, with a stopwatch."""

    def __init__(self, judge: LocalJudge) -> None:
        self._judge = judge
        self.spans: list[tuple[float, float]] = []
        self.cpu: list[tuple[float, float]] = []  # the same on the clock of this thread's CPU time

    def __getattr__(self, name: str) -> Any:
        return getattr(self._judge, name)

    def judge(self, *asked: Any) -> Iterator[Any]:
        found = self._judge.judge(*asked)
        while True:
            started, cpu = time.perf_counter(), time.thread_time()
            try:
                verdict = next(found)
            except StopIteration:
                return
            finally:
                self.spans.append((started, time.perf_counter()))
                self.cpu.append((cpu, time.thread_time()))
            yield verdict


class Waits(queue.SimpleQueue):  # type: ignore[type-arg]
    """The queue of arrivals: how long the judge's thread waits at it."""

    waited: list[tuple[float, float]] = []  # noqa: RUF012

    def get(self, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return super().get(*args, **kwargs)
        finally:
            Waits.waited.append((started, time.perf_counter()))


def stopwatch(owner: Any, name: str, spent: list[float], clock: Callable[[], float] = time.thread_time) -> None:
    """Replace a function by itself with its time written down: of its thread's CPU, or by another clock."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def timed(*args: Any, **kwargs: Any) -> Any:
        started = clock()
        try:
            return method(*args, **kwargs)
        finally:
            spent.append(clock() - started)

    setattr(owner, name, timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problem", type=Path, default=ROOT / "examples" / "softmax_scale.py")
    parser.add_argument("--drafts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--median-s", type=float, default=6.0)
    asked = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    os.environ.setdefault("OPENAI_API_KEY", "sk-test-0123456789abcdef")
    own: list[float] = []
    client: list[float] = []
    for owner, name in ((branch, "prompt"), (branch, "read"), (RunMemory, "takes_draft")):
        stopwatch(owner, name, own)
    stopwatch(LLM, "complete", client)
    rows: list[float] = []
    retrieval: list[float] = []
    stopwatch(FileArchive, "record_attempt", rows, time.perf_counter)
    stopwatch(Exemplars, "__call__", retrieval, time.perf_counter)
    draft_flow.queue = SimpleNamespace(SimpleQueue=Waits)  # type: ignore[assignment]
    model = Model("", asked.median_s)
    with tempfile.TemporaryDirectory() as folder, FakeOpenAI(model) as server:
        options = Options(
            models=("openai/gpt-4o-mini",),
            api_base=server.url,
            device="cpu",
            archive=f"{folder}/archive",
            drafts=asked.drafts,
            rounds=asked.rounds,
            retrieval="hybrid",
            examples=3,
        )
        with open_session(options) as session:
            problem = load_problem(asked.problem)
            functional = session.functionalize(problem)
            first = OfflineWriter().propose(Brief("bench", functional, session.judge.device, (), (), "", 1, 1))[0]
            model.source = first.candidate.source
            list(session.judge.judge(functional, [first.candidate]))  # baselines and admission: once a problem
            watched = Watched(session.judge)  # type: ignore[arg-type]
            device = session.judge.device
            embedder = load_embedder(options.embedder)
            retriever = Retriever(session.archive, embedder, device_key=device.key, stale_s=STALE_S)
            unproved = Exemplars(retriever, options, device)
            session = replace(session, judge=watched, retrieve=unproved)
            attempts = list(session.generate(problem, session.new_run("bench", problem)))
    report(attempts, watched, model, own, client, rows, retrieval)


def report(
    attempts: list[Attempt],
    judge: Watched,
    model: Model,
    own: list[float],
    client: list[float],
    written: list[float],
    retrieval: list[float],
) -> None:
    judged = [a for a in attempts if not a.note.startswith("confirmation")]
    first, last = judge.spans[0][0], judge.spans[-1][1]
    asked_last = max(model.asked_at)  # after that there is nothing left to ask for: the last replies are waited for
    span_s, steady_s = last - first, asked_last - first
    busy_s, busy_steady_s = within(judge.spans, first, last), within(judge.spans, first, asked_last)
    waited_s = within(Waits.waited, first, last)
    cpu_s = judge.cpu[-1][1] - judge.cpu[0][0] - sum(end - start for start, end in judge.cpu)
    verdicts = Counter(verdict_name(a.judged.verdict) for a in judged)
    latencies = sorted(model.latencies)
    rows = {
        "attempts judged": f"{len(judged)} ({', '.join(f'{n} {name}' for name, n in verdicts.items())})",
        "requests": len(latencies),
        "latency, median (s)": f"{statistics.median(latencies):.1f}",
        "latency, p90 (s)": f"{latencies[int(0.9 * len(latencies))]:.1f}",
        "from the first draft to the last verdict (s)": f"{span_s:.1f}",
        "judge busy (s)": f"{busy_s:.1f}",
        "a verdict (s)": f"{busy_s / len(judged):.2f}",
        "waiting for replies (s)": f"{waited_s:.1f}",
        "**judge busy, first draft to last verdict**": f"**{busy_s / span_s:.0%}**",
        "judge busy, first draft to last request": f"{busy_steady_s / steady_s:.0%}",
        "**own code between verdicts, an attempt (ms)**": f"**{1e3 * (span_s - busy_s - waited_s) / len(judged):.0f}**",
        "of that, CPU of the thread (ms)": f"{1e3 * cpu_s / len(judged):.0f}",
        "of that, its row on disk, median (ms)": f"{1e3 * statistics.median(written):.0f}",
        "of that, retrieval (ms)": f"{1e3 * sum(retrieval[1:]) / len(judged):.0f}",
        "beside it, CPU an attempt (ms): prompt, reply, repeats": f"{1e3 * sum(own) / len(judged):.0f}",
        "beside it, CPU a request (ms): litellm, and the record of it": f"{1e3 * statistics.median(client):.0f}",
        "load average of the machine": f"{os.getloadavg()[0]:.1f}",
    }
    print("| | |\n|---|---:|")
    for name, value in rows.items():
        print(f"| {name} | {value} |")


def within(spans: list[tuple[float, float]], start: float, end: float) -> float:
    """Seconds of the spans that lie between two moments."""
    return sum(max(0.0, min(b, end) - max(a, start)) for a, b in spans)


if __name__ == "__main__":
    main()
