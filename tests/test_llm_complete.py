"""The LLM seam against a real HTTP server on loopback, through litellm itself, faults included."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from fake_openai import Answer, Cut, FakeOpenAI, Garbage, Say, Status, Trickle

from rag_kernels.archive.records import LLMCall
from rag_kernels.budget import BudgetExhaustedError, Ledger, Spent
from rag_kernels.llm.client import LLM, Reply
from rag_kernels.llm.request import with_cache_marks
from rag_kernels.records import Budget, WriterError
from rag_kernels.text.redact import REPLACEMENT, redact

KEY = "sk-test-0123456789abcdef"
PRICED = "openai/gpt-4o-mini"
MESSAGES = [{"role": "system", "content": "You write kernels."}, {"role": "user", "content": "Say hello."}]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    yield


class Client:
    """An LLM on a fake server, with what it recorded and how long it paused."""

    def __init__(self, server: FakeOpenAI, *, budget: Budget | None = None, retries: int = 3) -> None:
        self.calls: list[LLMCall] = []
        self.pauses: list[float] = []
        self.ledger = Ledger(budget or Budget())
        self.llm = LLM(
            self.calls.append,
            ledger=self.ledger,
            api_base=server.url,
            retries=retries,
            backoff_s=0.01,
            sleep=self.pauses.append,
        )

    def ask(self, model: str = "openai/test", timeout_s: float = 5.0, text: str = "Say hello.") -> Reply:
        messages = [MESSAGES[0], {"role": "user", "content": text}]
        return self.llm.complete(model, messages, run_id="run-1", purpose="ideas", temperature=0.7, timeout_s=timeout_s)


def test_a_reply_is_recorded_exactly_with_its_tokens_and_price() -> None:
    with FakeOpenAI([Say("hello " * 50, prompt_tokens=1000, completion_tokens=2000)]) as server:
        client = Client(server)
        reply = client.ask(PRICED)
    assert reply.text == "hello " * 50
    assert (reply.prompt_tokens, reply.completion_tokens, reply.estimated) == (1000, 2000, False)
    assert reply.cost_usd == pytest.approx(1000 * 0.15e-6 + 2000 * 0.6e-6)
    [call] = client.calls
    assert json.loads(call.prompt) == server.requests[0].body["messages"] == MESSAGES
    assert (call.reply, call.error, call.run_id, call.purpose, call.model) == (reply.text, "", "run-1", "ideas", PRICED)
    assert (call.prompt_tokens, call.completion_tokens, call.cost_usd) == (1000, 2000, reply.cost_usd)
    assert reply.call_ids == (call.id,)
    assert server.requests[0].body["temperature"] == 0.7
    assert client.ledger.spent().tokens == 3000
    assert client.ledger.spent().usd == pytest.approx(reply.cost_usd)


def test_reasoning_effort_is_passed_on_and_temperature_where_the_model_takes_it() -> None:
    with FakeOpenAI([Say("a")]) as server:
        llm = LLM(lambda call: None, api_base=server.url, reasoning_effort="low")
        for model in ("openai/gpt-5", "openai/a-model-of-our-own"):
            llm.complete(model, MESSAGES, run_id="r", purpose="ideas", temperature=0.3)
    sent = [(r.body.get("reasoning_effort"), r.body.get("temperature")) for r in server.requests]
    assert sent == [("low", None), ("low", 0.3)]


def test_the_system_prompt_is_marked_for_the_cache_where_the_provider_wants_a_mark() -> None:
    marked = with_cache_marks(MESSAGES, "anthropic/claude-sonnet-4-5")
    assert marked[0]["content"][0]["cache_control"] == {"type": "ephemeral"} and marked[1] == MESSAGES[1]
    assert with_cache_marks(MESSAGES, "openai/gpt-5") == MESSAGES
    with FakeOpenAI([Status(404, "this is no Claude")]) as server:
        client = Client(server)
        with pytest.raises(WriterError):
            client.ask("anthropic/claude-sonnet-4-5")
    [system] = server.requests[0].body["system"]
    assert system["cache_control"] == {"type": "ephemeral"} and system["text"] == MESSAGES[0]["content"]
    assert json.loads(client.calls[0].prompt)[0] == MESSAGES[0]  # on record as it was meant


def test_an_unknown_price_is_none_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with FakeOpenAI([Say("a"), Say("b")]) as server, caplog.at_level(logging.WARNING, logger="rag_kernels.llm.client"):
        client = Client(server)
        assert [client.ask().cost_usd, client.ask().cost_usd] == [None, None]
    assert caplog.messages == ["The price of openai/test is unknown: costs of this run are shown as unknown."]
    assert replace(client.ledger.spent(), seconds=0.0) == Spent(tokens=60, usd=0.0, calls=2, unpriced_calls=2)


def test_tokens_are_counted_and_marked_when_the_server_reports_none() -> None:
    with FakeOpenAI([Say("a reply of some words", usage=False)]) as server:
        reply = Client(server).ask()
    assert reply.estimated and reply.completion_tokens > 2 and reply.prompt_tokens > 2


@pytest.mark.parametrize(
    ("fault", "billed"),
    [
        (Status(429, "slow down"), False),
        (Status(500, "oops"), False),
        (Status(503, "overloaded"), False),
        (Status(529, "overloaded"), False),
        (Cut("half a"), True),
        (Garbage(), True),
        (Garbage(b"data: {broken\n\n"), True),
        (
            Garbage(
                b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"test","choices":'
                b'[{"index":0,"delta":{"role":"assistant","content":"half"},"finish_reason":null}]}\n\n'
            ),
            True,
        ),
    ],
)
def test_a_passing_fault_is_retried_and_recorded(fault: Answer, billed: bool) -> None:
    with FakeOpenAI([fault, fault, Say("good", 5, 7)]) as server:
        client = Client(server)
        reply = client.ask(PRICED)
    assert reply.text == "good"
    assert [bool(c.error) for c in client.calls] == [True, True, False]
    assert [c.reply for c in client.calls] == ["", "", "good"]
    assert [c.cost_usd is None for c in client.calls] == [billed, billed, False]
    assert reply.call_ids == tuple(c.id for c in client.calls)
    assert len(client.pauses) == 2 and client.pauses[1] > client.pauses[0]
    assert client.ledger.spent().tokens == 12


def test_retry_after_is_honoured() -> None:
    with FakeOpenAI([Status(429, "slow down", {"Retry-After": "7"}), Say("good")]) as server:
        client = Client(server)
        assert client.ask().text == "good"
    assert client.pauses == [7.0]


def test_a_pause_that_outlasts_the_budget_ends_the_call() -> None:
    with FakeOpenAI([Status(429, "slow down", {"Retry-After": "60"})]) as server:
        client = Client(server, budget=Budget(seconds=30))
        with pytest.raises(WriterError, match="slow down"):
            client.ask()
    assert client.pauses == []


def test_retries_are_bounded() -> None:
    with FakeOpenAI([Status(500, "oops")]) as server:
        client = Client(server, retries=2)
        with pytest.raises(WriterError, match=r"after 3 tries: \(500\).*oops\. Try again later"):
            client.ask()
    assert len(client.calls) == len(server.requests) == 3


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Status(401, "bad key"), "Set OPENAI_API_KEY to a valid key"),
        (Status(403, "not yours"), "Set OPENAI_API_KEY to a valid key"),
        (Status(404, "no such model"), "Check the model's name"),
        (Status(400, "strange request"), "Check the model's name and settings"),
        (Status(400, "maximum context length is 8192 tokens"), "Show fewer exemplars"),
        (Status(429, "insufficient_quota: check your billing details"), "Check the plan and billing"),
    ],
)
def test_a_lasting_fault_is_not_retried_and_names_the_next_step(fault: Status, says: str) -> None:
    with FakeOpenAI([fault]) as server:
        client = Client(server)
        with pytest.raises(WriterError, match=says):
            client.ask()
    assert len(server.requests) == len(client.calls) == 1
    assert client.calls[0].cost_usd == 0.0


@pytest.mark.parametrize("model", ["openai/gpt-5", "anthropic/claude-sonnet-4-5"])
def test_a_missing_key_is_said_at_once_with_its_variable(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{model.split('/')[0].upper()}_API_KEY"
    monkeypatch.delenv(name)
    with FakeOpenAI([Say("x")]) as server:
        client = Client(server)
    client.llm = LLM(client.calls.append, ledger=client.ledger, sleep=client.pauses.append)
    with pytest.raises(WriterError, match=f"Set {name} to a valid key, or choose another --model"):
        client.ask(model)
    assert len(client.calls) == 1 and not client.pauses


@pytest.mark.parametrize("slow", [Say("late", delay_s=5), Trickle(5)])
def test_a_deadline_holds_for_silence_and_for_a_trickle(slow: Answer) -> None:
    with FakeOpenAI([slow, Say("good")]) as server:
        client = Client(server)
        reply = client.ask(timeout_s=0.4)
    assert reply.text == "good" and reply.seconds < 3
    assert "0.4 s" in client.calls[0].error and client.calls[0].cost_usd is None


def test_an_unreachable_server_is_said_with_its_address_setting() -> None:
    with FakeOpenAI([Say("x")]) as server:
        pass
    client = Client(server, retries=1)
    with pytest.raises(WriterError, match="Check that the server runs and that its address"):
        client.ask()


def test_a_model_without_provider_is_explained() -> None:
    with FakeOpenAI([Say("x")]) as server:
        client = Client(server)
        with pytest.raises(WriterError, match="Write the model as provider/name"):
            client.ask("no-such-model")
    assert server.requests == []


def test_keys_reach_neither_records_nor_errors_nor_prompts(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    other = "sk-proj-" + "x9" * 20
    faults = [Status(500, f"key {KEY} is tired"), Status(401, f"Incorrect API key provided: {KEY}, {other}")]
    with FakeOpenAI(faults) as server, caplog.at_level(logging.DEBUG, logger="rag_kernels"):
        client = Client(server)
        with pytest.raises(WriterError) as caught:
            client.ask(text=f"my key is {KEY} and {other}")
    everything = " ".join([str(caught.value), repr(client.calls), caplog.text, *capfd.readouterr()])
    assert KEY not in everything and other not in everything and REPLACEMENT in str(caught.value)
    assert KEY not in json.dumps([r.body for r in server.requests])
    assert server.requests[0].headers["Authorization"] == f"Bearer {KEY}"  # where it belongs
    assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_a_local_server_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with FakeOpenAI([Say("hello")]) as server:
        assert Client(server).ask().text == "hello"


def test_redaction_leaves_ordinary_text_alone() -> None:
    text = "risk-averse task-specific code; see https://host:8000/v1 and float* sk = data;"
    assert redact(text) == text
    assert redact("https://user:pass@host/v1") == f"https://{REPLACEMENT}@host/v1"


def test_a_dollar_budget_with_an_unpriced_model_is_refused_up_front() -> None:
    with FakeOpenAI([Say("x")]) as server:
        client = Client(server, budget=Budget(usd=1.0))
        client.llm.require_prices([PRICED])
        with pytest.raises(WriterError, match=r"price of openai/test, cmd:cat is unknown.*--budget-usd"):
            client.llm.require_prices([PRICED, "openai/test", "cmd:cat -"])
    Client(server).llm.require_prices(["openai/test"])  # no dollar budget, no objection


def test_the_dollar_budget_stops_before_it_is_overdrawn() -> None:
    with FakeOpenAI([Say("x", 1000, 1000)]) as server:
        client = Client(server, budget=Budget(usd=0.002))
        for _ in range(2):
            client.ask(PRICED)
        with pytest.raises(BudgetExhaustedError, match=r"\$0\.002"):
            client.ask(PRICED)
    assert len(server.requests) == 2
    assert client.ledger.exhausted() is not None


def test_parallel_calls_cannot_overdraw_a_token_budget_together() -> None:
    with FakeOpenAI([Say("x", 10, 2048, delay_s=0.3)]) as server:  # 2048 is then what a reply is taken to need
        client = Client(server, budget=Budget(tokens=6500))
        refused: list[BudgetExhaustedError] = []

        def ask() -> None:
            try:
                client.ask()
            except BudgetExhaustedError as error:
                refused.append(error)

        client.ask()
        threads = [threading.Thread(target=ask) for _ in range(6)]
        [t.start() for t in threads]
        [t.join() for t in threads]
    assert len(refused) == 4 and len(server.requests) == 3
    assert client.ledger.spent().tokens == 3 * 2058


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / "model.py"
    path.write_text(text)
    return f"cmd:{sys.executable} {path}"


def test_a_program_reads_the_prompt_and_writes_the_reply(tmp_path: Path) -> None:
    calls: list[LLMCall] = []
    model = program(tmp_path, "import sys; print('got: ' + sys.stdin.read())")
    reply = LLM(calls.append).complete(model, MESSAGES, run_id="r", purpose="ideas")
    assert reply.text == "got: You write kernels.\n\nSay hello.\n\n"
    assert reply.estimated and reply.cost_usd is None and reply.prompt_tokens > 0
    assert calls[0].prompt == "You write kernels.\n\nSay hello.\n"


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    child = f"import time, pathlib; time.sleep(1.5); pathlib.Path({str(mark)!r}).write_text('alive')"
    model = program(tmp_path, f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])")
    calls: list[LLMCall] = []
    with pytest.raises(WriterError, match=r"no reply within 0\.5 s"):
        LLM(calls.append).complete(model, MESSAGES, run_id="r", purpose="ideas", timeout_s=0.5)
    threading.Event().wait(1.6)
    assert not mark.exists() and calls[0].error


def test_a_program_ends_with_who_asked_however_that_ends(tmp_path: Path) -> None:
    """Killed with -9, the asker can do nothing; the program and what it started are gone all the same."""
    mark, pids = tmp_path / "mark", tmp_path / "pids"
    asleep = f"echo $$ >> {pids}; sleep 300; touch {mark}"
    command = ["sh", "-c", f"sh -c '{asleep}' & {asleep}"]
    code = f"from rag_kernels.llm.program import run_program; run_program({command!r}, '', timeout_s=200)"
    asker = subprocess.Popen([sys.executable, "-c", code])

    def alive() -> list[int]:
        known = pids.read_text().split() if pids.is_file() else []
        return [int(pid) for pid in known if Path(f"/proc/{pid}").exists() and "Z" not in _state(pid)]

    _until(lambda: len(pids.read_text().split() if pids.is_file() else []) == 2)
    assert alive()
    asker.kill()
    asker.wait()
    _until(lambda: not alive())
    assert not mark.exists()


def _state(pid: str) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return "Z"


def _until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not there() and time.monotonic() < end:
        time.sleep(0.02)
    assert there()


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("cmd:/no/such/program", "does not start"),
        ("cmd:", "Write --model 'cmd:PROGRAM ARGS'"),
        ("cmd:sh -c 'echo trouble >&2; exit 3'", "ended with code 3: trouble.*Run it by hand"),
        ("cmd:false", "ended with code 1: it wrote nothing to its standard error"),
    ],
)
def test_a_program_that_fails_is_explained(model: str, says: str) -> None:
    calls: list[LLMCall] = []
    with pytest.raises(WriterError, match=says):
        LLM(calls.append).complete(model, MESSAGES, run_id="r", purpose="ideas", timeout_s=5)
    assert len(calls) == 1
