"""One request to one model, tried once: through litellm, or through a program's standard input and output.

Comes in: a model name, messages, a temperature and a deadline. Goes out: a `ModelAnswer`, or a `RequestError` that
says whether another try makes sense. Knows nothing of retries, budgets and records. litellm takes seconds to import
and is loaded by the first request.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rag_kernels.eval.errors import Internal
from rag_kernels.llm.program import run_program
from rag_kernels.text.redact import redact
from rag_kernels.text.tokens import estimate_tokens

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": ...}

PROGRAM_PREFIX = "cmd:"
RETRY_STATUSES = frozenset({408, 409, 425, 429})
KEY_NAMES = {
    "azure": "AZURE_API_KEY",
    "azure_ai": "AZURE_AI_API_KEY",
    "bedrock": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "fireworks_ai": "FIREWORKS_AI_API_KEY",
    "huggingface": "HF_TOKEN",
    "together_ai": "TOGETHERAI_API_KEY",
    "vertex_ai": "GOOGLE_APPLICATION_CREDENTIALS",
}


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """Hold a whole reply. `estimated` says that the tokens are counted by us, not reported by the provider."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    estimated: bool
    truncated: bool  # the model stopped at its output limit


class RequestError(Internal):
    """A request that gave no usable answer; `advice` is the next step for the user.

    `billed` says whether the provider may have charged for it: a refusal costs nothing, a broken reply may.
    """

    def __init__(
        self, reason: str, advice: str, *, retry: bool, billed: bool, retry_after_s: float | None = None
    ) -> None:
        super().__init__(redact(reason))
        self.reason = redact(reason)
        self.advice = advice
        self.retry = retry
        self.billed = billed
        self.retry_after_s = retry_after_s


def prompt_text(messages: Sequence[Message], model: str) -> str:
    """Return the prompt exactly as it is sent: JSON of the messages, or the plain text that a program reads."""
    if model.startswith(PROGRAM_PREFIX):
        return "\n\n".join(m["content"] for m in messages) + "\n"
    return json.dumps(list(messages), ensure_ascii=False)


def price(model: str, prompt_tokens: int, completion_tokens: int) -> float | None:
    """Return dollars for these tokens by litellm's price data; `None` when it does not know the model."""
    if model.startswith(PROGRAM_PREFIX):
        return None
    litellm = load_litellm()
    try:
        parts = litellm.cost_per_token(model=model, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
    except Exception:  # litellm raises bare exceptions of several kinds for a model that it does not know
        return None
    return float(sum(parts))


def load_litellm() -> Any:
    """Import litellm so that it fetches nothing, reads no .env file and prints no advertisement.

    Through importlib, because type checkers need minutes for its sources.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    litellm: Any = importlib.import_module("litellm")
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    return litellm


def request(
    model: str,
    messages: Sequence[Message],
    *,
    temperature: float | None,
    timeout_s: float,
    api_base: str | None,
    reasoning_effort: str | None = None,
) -> ModelAnswer:
    """Ask a model once. `timeout_s` is a deadline for the whole reply, also for one that trickles. Raises
    RequestError.
    """
    if model.startswith(PROGRAM_PREFIX):
        return _ask_program(model, messages, timeout_s=timeout_s)
    options: dict[str, Any] = {"temperature": temperature, "reasoning_effort": reasoning_effort}
    options = {name: value for name, value in options.items() if value is not None}
    return _ask_litellm(model, messages, options, timeout_s=timeout_s, api_base=api_base)


def with_cache_marks(messages: Sequence[Message], model: str) -> list[Any]:
    """Return the messages, with a mark after the system prompt where the provider wants one for its cache.

    Claude's API does. The others that cache do so by themselves: what is the same in every prompt comes first.
    """
    if "claude" not in model.lower() or not load_litellm().utils.supports_prompt_caching(model=model):
        return list(messages)
    mark = {"type": "ephemeral"}
    return [
        {**m, "content": [{"type": "text", "text": m["content"], "cache_control": mark}]}
        if m["role"] == "system"
        else m
        for m in messages
    ]


def _ask_litellm(
    model: str, messages: Sequence[Message], options: dict[str, Any], *, timeout_s: float, api_base: str | None
) -> ModelAnswer:
    litellm = load_litellm()
    errors = (importlib.import_module("openai").OpenAIError, importlib.import_module("httpx").HTTPError)
    if api_base is not None:
        options["allowed_openai_params"] = [name for name in ("reasoning_effort",) if name in options]
        options["api_base"] = api_base
        if model.startswith("openai/") and not os.environ.get("OPENAI_API_KEY"):
            options["api_key"] = "unused"  # local servers ask for none, and the client insists on one
    try:
        stream = litellm.completion(
            model=model,
            messages=with_cache_marks(messages, model),
            stream=True,  # a long answer outlives a gateway's idle limit only when it streams
            stream_options={"include_usage": True},
            timeout=timeout_s,
            num_retries=0,
            max_retries=0,
            drop_params=True,
            **options,
        )
        chunks = _collect(stream, deadline=time.monotonic() + timeout_s, timeout_s=timeout_s)
    except errors as error:
        raise _classify(error, model, timeout_s) from None
    return _answer(litellm, model, messages, stream, chunks)


def _collect(stream: Any, *, deadline: float, timeout_s: float) -> list[Any]:
    chunks = []
    for chunk in stream:
        chunks.append(chunk)
        if time.monotonic() > deadline:
            with suppress(Exception):  # closing is a courtesy; its failure changes nothing
                stream.completion_stream.close()
            raise RequestError(f"the reply was not complete after {timeout_s:g} s", _SLOWER, retry=True, billed=True)
    return chunks


def _answer(litellm: Any, model: str, messages: Sequence[Message], stream: Any, chunks: list[Any]) -> ModelAnswer:
    reported = any(getattr(chunk, "usage", None) for chunk in stream.chunks)
    finish = stream.received_finish_reason
    if finish is None and not reported:
        raise RequestError("the reply broke off or was not a chat completion", _SERVER, retry=True, billed=True)
    whole = litellm.stream_chunk_builder(chunks, messages=list(messages))
    text = whole.choices[0].message.content or ""
    usage = whole.usage
    truncated = finish in ("length", "max_tokens", "MAX_TOKENS")
    cost = _cost(litellm, whole, model)
    return ModelAnswer(redact(text), usage.prompt_tokens, usage.completion_tokens, cost, not reported, truncated)


def _cost(litellm: Any, whole: Any, model: str) -> float | None:
    if price(model, 1, 1) is None:
        return None
    return float(litellm.completion_cost(completion_response=whole, model=model))


_SLOWER = "Give it more time with --reply-seconds, or choose a faster model with --model."
_SERVER = "Try again later, or choose another model with --model."


def _classify(error: Any, model: str, timeout_s: float) -> RequestError:
    """Turn litellm's exception into whether to retry, and a sentence that names the next step."""
    status = int(getattr(error, "status_code", 0) or 0)
    text = str(getattr(error, "message", "") or error).split("Original exception:")[0].strip()[:600]
    if "Timeout" in type(error).__name__:
        return RequestError(f"no reply within {timeout_s:g} s", _SLOWER, retry=True, billed=True)
    if type(error).__name__ == "MidStreamFallbackError":
        return RequestError(f"the reply broke off: {text}", _SERVER, retry=True, billed=True)
    headers = getattr(error, "litellm_response_headers", None) or {}
    if status in (401, 403):
        return RequestError(f"the key was refused ({status}): {text}", _key_advice(model), retry=False, billed=False)
    if status == 429 and ("insufficient_quota" in text or "billing" in text):
        advice = "Check the plan and billing of that account, or choose another model with --model."
        return RequestError(f"the quota is used up (429): {text}", advice, retry=False, billed=False)
    if not headers and re.search(r"credentials|api[_ -]?key", text, re.IGNORECASE):  # no server was asked
        return RequestError(f"there is no key: {text}", _key_advice(model), retry=False, billed=False)
    if status in RETRY_STATUSES or status >= 500 or not status:
        advice = _SERVER if headers else "Check that the server runs and that its address (--api-base) is right."
        after = _seconds(headers.get("retry-after"))
        return RequestError(f"({status}) {text}", advice, retry=True, billed=False, retry_after_s=after)
    return RequestError(f"({status}) {text}", _request_advice(status, text), retry=False, billed=False)


def _request_advice(status: int, text: str) -> str:
    if "LLM Provider NOT provided" in text:
        return "Write the model as provider/name, for example anthropic/claude-sonnet-4-5 or ollama_chat/qwen3-coder."
    if status == 404:
        return "Check the model's name, and the server's address (--api-base) if it is your own."
    if "context" in text.lower():
        return "Show fewer exemplars (--examples), or choose a model with a longer context."
    return "Check the model's name and settings, or choose another model with --model."


def _key_advice(model: str) -> str:
    provider = model.split("/")[0].lower() if "/" in model else ""
    if not provider:
        with suppress(Exception):  # an unknown name has no provider; the general advice serves
            provider = load_litellm().get_llm_provider(model)[1]
    name = KEY_NAMES.get(provider, f"{provider.upper()}_API_KEY" if provider else "the provider's key variable")
    held = bool(os.environ.get(name))
    return f"Set {name} to a valid key{' (the one set now is refused)' if held else ''}, or choose another --model."


def _seconds(header: str | None) -> float | None:
    """Return Retry-After in seconds; the date form is rare with these providers and counts as absent."""
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:
        return None


def _ask_program(model: str, messages: Sequence[Message], *, timeout_s: float) -> ModelAnswer:
    command = shlex.split(model.removeprefix(PROGRAM_PREFIX))
    prompt = prompt_text(messages, model)
    advice = f"Run it by hand to see what it says: {model.removeprefix(PROGRAM_PREFIX)}"
    if not command:
        raise RequestError("no program is named", "Write --model 'cmd:PROGRAM ARGS'.", retry=False, billed=False)
    try:
        code, out, err = run_program(command, prompt, timeout_s=timeout_s)
    except OSError as error:
        raise RequestError(f"the program does not start: {error}", advice, retry=False, billed=False) from None
    except subprocess.TimeoutExpired:
        raise RequestError(f"no reply within {timeout_s:g} s", _SLOWER, retry=False, billed=True) from None
    if code != 0:
        tail = err.decode(errors="replace").strip()[-400:] or "it wrote nothing to its standard error"
        raise RequestError(f"the program ended with code {code}: {tail}", advice, retry=False, billed=True)
    text = redact(out.decode(errors="replace"))
    return ModelAnswer(text, estimate_tokens(prompt), estimate_tokens(text), None, estimated=True, truncated=False)
