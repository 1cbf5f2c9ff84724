"""The account of a verdict for the writer: the cause, trimmed; never the whole log.

Comes in: an attempt. Goes out: a line for the history, or a paragraph for a repair. Knows nothing of prompts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import assert_never

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.records import (
    BuildFailed,
    Compiled,
    Crashed,
    Device,
    Features,
    Measurement,
    Passed,
    Rejected,
    TimedOut,
    Verdict,
    Wrong,
    verdict_name,
)
from rag_kernels.feedback.bottleneck import recommendation
from rag_kernels.text.wording import shorten

ERRORS_SHOWN = 4
CONTEXT_LINES = 4
LOG_CHARS = 1800
HISTORY_LINES = 12
REASON_CHARS = 200
# Notes of the judge on its own work, and on sizes that a writer is told not to care about.
OF_JUDGING = (
    "at ",
    "verified at ",
    "special values ",
    "SM clock ",
    "timed with few pairs",
    "a call takes ",
    "not run ",
)
IDEA_CHARS = 240  # of a line, when all are there; fewer lines have more each

_ERROR_LINE = re.compile(r"\berror\b\s*[:#]|: fatal error|undefined reference|\berror\s*:", re.IGNORECASE)
_NOISE = re.compile(r"^\s*(In file included from|from |compilation terminated|\d+ errors? detected)")
_FOLDERS = re.compile(r"(?:/[\w.+-]+)+/(?=[\w.+-]+\.(?:cpp|cu|h|hpp|cuh|so|o)\b)")


def trim_log(log: str) -> str:
    """Return the first errors of a compiler log with the lines that explain them, without folder names."""
    lines = [_FOLDERS.sub("", line.rstrip()) for line in log.splitlines()]
    lines = [line for line in lines if line and not _NOISE.match(line)]
    starts = [i for i, line in enumerate(lines) if _ERROR_LINE.search(line)]
    if not starts:
        return "\n".join(lines)[-LOG_CHARS:]
    kept: list[str] = []
    for start, following in zip(starts[:ERRORS_SHOWN], [*starts[1:], len(lines)][:ERRORS_SHOWN], strict=True):
        kept += lines[start : min(following, start + CONTEXT_LINES)]
    more = len(starts) - ERRORS_SHOWN
    if more > 0:
        kept.append(f"({more} more errors follow)")
    return "\n".join(kept)[:LOG_CHARS]


def timing(m: Measurement) -> str:
    """Return one clause: time, speed-up over both baselines, share of the floor.

    Medians, so that they agree with each other: a writer has to choose by them, and nobody is promised anything.
    """
    compiled = f", {m.speedup_compile.median:.2f}x torch.compile" if m.speedup_compile else ""
    return (
        f"{m.candidate_us:.0f} us, {m.speedup_eager.median:.2f}x eager{compiled}, {m.floor_fraction:.0%} of the floor"
    )


def explain(
    verdict: Verdict, *, device: Device, features: Features, precision: str = "strict", signature: str = ""
) -> str:
    """Return a paragraph on what happened to a candidate, which ends with what to look at.

    `signature` is for readers who do not have the kernel's signature above the paragraph.
    """
    match verdict:
        case Passed():
            told = [note for note in verdict.notes if not note.startswith(OF_JUDGING)]
            notes = f" Notes of the judge: {'; '.join(told)}." if told else ""
            took = _against_baselines(verdict.measurement)
            next_step = recommendation(verdict, features, device, precision)
            return f"It is right ({verdict.label}) and takes {took}{notes} {next_step}"
        case Compiled():
            return f"It compiles; it was not run: {_sentence(verdict.reason)}"
        case BuildFailed():
            log = trim_log(verdict.log)
            reason = "" if verdict.reason.strip() in log else f" {_sentence(verdict.reason)}"
            return f"It does not build.{reason} The compiler says:\n\n```\n{log}\n```"
        case Wrong():
            return (
                f"It runs, but the numbers are wrong: {_sentence(verdict.reason)} The inputs were of the class "
                f'"{verdict.input_class}"; where: {verdict.where}; its error is {verdict.error_ratio:.3g} times '
                "PyTorch's own against float64."
            )
        case Crashed():
            log = f"\n\n```\n{trim_log(verdict.log)}\n```" if verdict.log.strip() else ""
            right = (
                f"The signature is:\n\n```cpp\n{signature}\n```"
                if signature
                else "Compare it with the signature above."
            )
            hint = right if verdict.raised else "Look for reads and writes out of bounds."
            return f"It crashed: {_sentence(verdict.reason)} {hint}{log}"
        case TimedOut():
            return (
                f"It was stopped after {verdict.limit_s:g} s in the stage {verdict.stage}: {_sentence(verdict.reason)}"
            )
        case Rejected():
            return f"The judge refused it ({verdict.code}): {_sentence(verdict.reason)}"
        case _ as never:
            assert_never(never)


def latest(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return one attempt for each candidate, the last one: a confirmation replaces the first verdict."""
    return sorted({a.candidate.id: a for a in attempts}.values(), key=lambda a: a.number)


def speed(attempt: Attempt) -> float | None:
    """Return the speed-up over the better baseline, or `None` when it did not pass."""
    verdict = attempt.judged.verdict
    return verdict.measurement.speedup if isinstance(verdict, Passed) else None


def history(attempts: Sequence[Attempt], below: Collection[str] = ()) -> list[str]:
    """Return the run so far in a few lines: winners by speed, then the newest failures. `below` are candidates whose
    ideas and sources follow.
    """
    last = latest(attempts)
    won = sorted((a for a in last if speed(a) is not None), key=lambda a: -(speed(a) or 0.0))
    lost = [a for a in reversed(last) if speed(a) is None]
    shown = won[: HISTORY_LINES // 2]
    shown += lost[: HISTORY_LINES - len(shown)]
    room = IDEA_CHARS * HISTORY_LINES // max(1, len(shown))
    return [_line(a, 0 if a.candidate.id in below else room) for a in shown]


def _line(attempt: Attempt, idea_chars: int) -> str:
    verdict = attempt.judged.verdict
    if isinstance(verdict, Passed):
        outcome = timing(verdict.measurement)
    else:
        outcome = shorten(f"{verdict_name(verdict).replace('_', ' ')}: {_flat(verdict.reason)}", REASON_CHARS)
    if isinstance(verdict, Wrong):
        found = f'inputs "{verdict.input_class}", {verdict.where}, {verdict.error_ratio:.3g} times PyTorch\'s own error'
        outcome = f"{outcome.rstrip('.')} ({shorten(found, REASON_CHARS)})"
    idea = f"Idea: {shorten(_flat(attempt.idea), idea_chars)}" if idea_chars else "It follows below."
    return f"#{attempt.number} {outcome.rstrip('.')}. {idea}"


def _flat(text: str) -> str:
    return " ".join(text.split())


def _against_baselines(m: Measurement) -> str:
    compiled = f", torch.compile {m.compile_us:.0f} us" if m.compile_us is not None else ""
    return f"{m.candidate_us:.0f} us (eager {m.eager_us:.0f} us{compiled}, floor {m.floor_us:.0f} us)."


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
