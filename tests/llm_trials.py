"""A search over a server that fails: whole runs with faults at random, and the books of both sides compared.

Used by `test_llm_faults.py` (some forty requests) and `bench/llm_faults.py` (five hundred). The server is a real one on
loopback, the client is litellm, the archive a file; only the judge is scripted.
"""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import factories
from fake_openai import Answer, Body, Cut, FakeOpenAI, Garbage, Say, Status

from rag_kernels.archive.records import Attempt
from rag_kernels.archive.store import FileArchive, open_archive
from rag_kernels.budget import Ledger, Spent
from rag_kernels.eval.records import Verdict
from rag_kernels.llm.client import LLM
from rag_kernels.llm.writer import LLMWriter, Style
from rag_kernels.options import Options
from rag_kernels.run.session import Session
from rag_kernels.scripted import ScriptedJudge

MODEL = "openai/gpt-4o-mini"  # litellm knows its price
PROBLEM = factories.problem()
FAULTS = ("429", "500", "timeout", "cut stream", "garbage")
TIMEOUT_S = 5.0


@dataclass
class Provider:
    """Answers with ideas or a kernel that nobody else got, or fails. Keeps its own books of what it said in full."""

    seed: int
    fault_share: float = 0.3
    faults: Counter[str] = field(default_factory=Counter)
    said: dict[str, Say] = field(default_factory=dict)  # by text
    kernels: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._random, self._lock = random.Random(self.seed), threading.Lock()

    def __call__(self, body: Body) -> Answer:
        with self._lock:
            if self._random.random() < self.fault_share:
                fault = FAULTS[self._random.randrange(len(FAULTS))]
                self.faults[fault] += 1
                return self._fault(fault)
            number = len(self.said) + 1
            say = Say(self._text(body, number), 1000 + self._random.randrange(5000), 1 + self._random.randrange(900))
            self.said[say.text] = say
            return say

    def _fault(self, fault: str) -> Answer:
        return {
            "429": Status(429, "slow down", {"Retry-After": "0.05"}),
            "500": Status(500, "oops"),
            "timeout": Say("too late", delay_s=4 * TIMEOUT_S),
            "cut stream": Cut("```cpp\nvoid half"),
            "garbage": Garbage(),
        }[fault]

    def _text(self, body: Body, number: int) -> str:
        asked = re.search(r"numbered list(?: of exactly (\d+))?", str(body["messages"][1]["content"]))
        if asked:
            return "\n".join(f"{i}. Idea {number}.{i}: tile by {number}." for i in range(1, int(asked[1] or 1) + 1))
        candidate = factories.candidate(variant=number)
        self.kernels.add(candidate.id)
        return f"Idea: variant {number}\n\n```cpp\n{candidate.source}```\n"


@dataclass(frozen=True)
class Books:
    """Both sides of one run. `wrong` is empty when they agree."""

    requests: int
    faults: Counter[str]
    good: int
    kernels: int
    attempts: list[Attempt]
    spent: Spent
    billed_tokens: int
    billed_usd: float
    wrong: list[str]


def fault_trial(folder: Path, *, drafts: int, width: int = 8, seed: int = 0) -> Books:
    """Search for `drafts` kernels through a provider that fails, and compare what both sides have written down."""
    provider = Provider(seed)
    archive = open_archive(folder)
    ledgers: list[Ledger] = []

    with FakeOpenAI(provider) as server:

        def writer(ledger: Ledger) -> LLMWriter:
            ledgers.append(ledger)
            llm = LLM(archive.record_call, ledger=ledger, api_base=server.url, retries=8, backoff_s=0.02)
            return LLMWriter(llm, [MODEL], Style(timeout_s=TIMEOUT_S))

        made = Session(
            options=Options(models=(MODEL,), drafts=width, rounds=-(-drafts // width), budget_usd=1000.0),
            archive=archive,
            judge=ScriptedJudge(_verdicts()),
            functionalize=lambda problem: PROBLEM,
            retrieve=lambda functional, attempts: (),
            index=lambda attempt: None,
            make_writer=writer,
        )
        run = made.new_run("generate", PROBLEM.problem)
        attempts = list(made.generate(PROBLEM.problem, run))
        requests = len(server.requests)
    return _books(provider, requests, archive, run.id, attempts, ledgers[0].spent())


def _verdicts() -> dict[str, Verdict]:
    """Every third kernel fails, the others have speeds of their own."""
    made = {n: factories.candidate(variant=n).id for n in range(2000)}
    speeds = random.Random(1)
    return {
        name: factories.wrong() if n % 3 == 0 else factories.passed(0.5 + 2 * speeds.random(), confirmed=False)
        for n, name in made.items()
    }


def _books(
    provider: Provider, requests: int, archive: FileArchive, run_id: str, attempts: list[Attempt], spent: Spent
) -> Books:
    calls = archive.calls(run_id)
    good = [c for c in calls if not c.error]
    said = sorted((s.text, s.prompt_tokens, s.completion_tokens) for s in provider.said.values())
    billed = sum(s.prompt_tokens + s.completion_tokens for s in provider.said.values())
    usd = sum(0.15e-6 * s.prompt_tokens + 0.6e-6 * s.completion_tokens for s in provider.said.values())
    judged = Counter(a.candidate.id for a in attempts if not a.note.startswith("confirmation"))
    used = Counter(name for a in attempts for name in a.call_ids if not a.note.startswith("confirmation"))
    code = [c.id for c in good if c.purpose != "ideas"]
    checks = {
        "every request is on record": len(calls) == requests,
        "every good reply is on record once, exactly": sorted(
            (c.reply, c.prompt_tokens, c.completion_tokens) for c in good
        )
        == said,
        "every kernel that was written is judged once": judged == Counter(provider.kernels),
        "every reply with a kernel is used by one attempt": all(used[name] == 1 for name in code),
        "faults cost no tokens": all(not c.prompt_tokens + c.completion_tokens for c in calls if c.error),
        "the ledger has the bill to the token": spent.tokens == billed,
        "and to a millionth of a cent": abs(spent.usd - usd) < 1e-8,
    }
    return Books(
        requests,
        provider.faults,
        len(said),
        len(provider.kernels),
        attempts,
        spent,
        billed,
        usd,
        [name for name, holds in checks.items() if not holds],
    )
