"""A real HTTP server on loopback that speaks OpenAI's chat-completions protocol, with faults on order.

Comes in: a script, either a list of answers (used in order, the last one for ever) or a function from the request
body to an answer. Goes out: JSON replies, or server-sent events when the request asks for a stream. Every request
is kept with its headers in `requests`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Say:
    """A good reply with the usage it reports; `usage=False` leaves the usage out, as some servers do."""

    text: str
    prompt_tokens: int = 10
    completion_tokens: int = 20
    delay_s: float = 0.0
    finish: str = "stop"
    usage: bool = True


@dataclass(frozen=True, slots=True)
class Status:
    """An HTTP error with a message and headers."""

    code: int
    message: str = "no"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection closes in the middle of the reply."""

    text: str = "half a reply"


@dataclass(frozen=True, slots=True)
class Trickle:
    """Something arrives all the time, and it never ends (for `seconds` at least)."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Garbage:
    """Status 200 and a body that is no JSON."""

    data: bytes = b"<html>gateway</html>"


Answer = Say | Status | Cut | Trickle | Garbage
Script = Callable[[Body], Answer] | Sequence[Answer]


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    headers: dict[str, str]
    body: Body


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no fault; anything else is shown."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class FakeOpenAI:
    """`with FakeOpenAI([Say("hello")]) as server: ... server.url ...`"""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._lock = threading.Lock()
        self.requests: list[Request] = []
        self.stopping = threading.Event()
        owner = self

        class Handler(_Handler):
            server_script = owner

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> FakeOpenAI:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def answer(self, request: Request) -> Answer:
        with self._lock:
            self.requests.append(request)
            number = len(self.requests) - 1
        if callable(self._script):
            return self._script(request.body)
        return self._script[min(number, len(self._script) - 1)]


class _Handler(BaseHTTPRequestHandler):
    server_script: FakeOpenAI
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = self.server_script.answer(Request(self.path, dict(self.headers), body))
        try:
            self._send(answer, stream=bool(body.get("stream")), body=body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _send(self, answer: Answer, *, stream: bool, body: Body) -> None:
        match answer:
            case Say():
                self.server_script.stopping.wait(answer.delay_s)
                self._say(answer, stream=stream, body=body)
            case Status():
                error = {"error": {"message": answer.message, "type": "test", "code": str(answer.code)}}
                self._whole(answer.code, json.dumps(error).encode(), answer.headers)
            case Garbage():
                self._whole(200, answer.data, {})
            case Cut():
                self._cut(answer, stream=stream, body=body)
            case Trickle():
                self._trickle(answer, body)

    def _whole(self, code: int, data: bytes, headers: dict[str, str], content_type: str = "application/json") -> None:
        self.send_response(code)
        for name, value in {"Content-Type": content_type, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _say(self, say: Say, *, stream: bool, body: Body) -> None:
        usage = {
            "prompt_tokens": say.prompt_tokens,
            "completion_tokens": say.completion_tokens,
            "total_tokens": say.prompt_tokens + say.completion_tokens,
        }
        if not stream:
            message = {"role": "assistant", "content": say.text}
            reply = _envelope(body, "chat.completion", [{"index": 0, "message": message, "finish_reason": say.finish}])
            if say.usage:
                reply["usage"] = usage
            self._whole(200, json.dumps(reply).encode(), {})
            return
        events = [_delta(body, piece) for piece in _pieces(say.text)] + [_delta(body, "", finish=say.finish)]
        if say.usage and body.get("stream_options", {}).get("include_usage"):
            events.append({**_envelope(body, "chat.completion.chunk", []), "usage": usage})
        self._start_stream()
        for event in events:
            self._event(json.dumps(event))
        self._event("[DONE]")
        self._chunk(b"")

    def _cut(self, cut: Cut, *, stream: bool, body: Body) -> None:
        if stream:
            self._start_stream()
            self._event(json.dumps(_delta(body, cut.text)))
        else:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(cut.text.encode())
        self.wfile.flush()
        self.close_connection = True

    def _trickle(self, trickle: Trickle, body: Body) -> None:
        self._start_stream()
        end = time.monotonic() + trickle.seconds
        while time.monotonic() < end and not self.server_script.stopping.wait(0.05):
            self._event(json.dumps(_delta(body, "word ")))
        self.close_connection = True

    def _start_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _event(self, data: str) -> None:
        self._chunk(f"data: {data}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def _envelope(body: Body, kind: str, choices: list[Body]) -> Body:
    return {"id": "chat-1", "object": kind, "created": 1, "model": body["model"], "choices": choices}


def _delta(body: Body, text: str, finish: str | None = None) -> Body:
    delta = {"role": "assistant", "content": text}
    return _envelope(body, "chat.completion.chunk", [{"index": 0, "delta": delta, "finish_reason": finish}])


def _pieces(text: str) -> list[str]:
    return [text[i : i + 40] for i in range(0, len(text), 40)]
