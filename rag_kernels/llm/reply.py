"""Parse replies: the ideas of a numbered list, the code of a fenced block.

Comes in: a reply's text. Goes out: ideas, lessons, or a candidate; nothing where there is none. Knows nothing of
models.
"""

from __future__ import annotations

import re

from rag_kernels.eval.records import Backend, Candidate
from rag_kernels.eval.source_form import NATIVE, SUFFIXES, is_whole, source_form

LESSONS_CHARS = 1000
_THOUGHT = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
_ITEM = re.compile(r"^[ \t]*(?:[*_#]+ *)?(\d{1,2})[.)]\s+", re.MULTILINE)
_FENCE = re.compile(
    r"^[ \t]*(?P<mark>`{3,}|~{3,})[ \t]*(?P<language>[\w+#.-]*)[^\n]*\n"
    r"(?P<code>.*?)(?:^[ \t]*(?P=mark)[`~]*[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
_STATED = re.compile(r"^[ \t]*[*_#]*\s*Idea\s*:[*_]*\s*(.+)$", re.MULTILINE | re.IGNORECASE)
_LESSONS = re.compile(
    r"^[ \t]*[*_#]*\s*Lessons\s*:[*_]*\s*(.+?)(?=\n[ \t]*\n|\n[ \t]*(?:[*_#]+ *)?\d{1,2}[.)]\s|\Z)",
    re.MULTILINE | re.IGNORECASE | re.DOTALL,
)


def ideas(text: str, count: int) -> list[str]:
    """Return the items of the first numbered list, at most `count`; a reply without a list is one idea."""
    text = _LESSONS.sub("", _FENCE.sub("", _THOUGHT.sub("", text))).strip()
    starts = list(_ITEM.finditer(text))
    if not starts:
        return [_flat(text)] if text else []
    ends = [m.start() for m in starts[1:]] + [len(text)]
    items = [_flat(text[m.end() : end]) for m, end in zip(starts, ends, strict=True)]
    return [item for item in items if item][:count]


def lessons(text: str) -> str:
    """Return the paragraph that begins with `Lessons:`; empty without one."""
    found = _LESSONS.search(_THOUGHT.sub("", text))
    return _flat(found.group(1))[:LESSONS_CHARS] if found else ""


def stated_idea(text: str) -> str:
    """Return the text after `Idea:` before the code; empty without one."""
    found = _STATED.search(_FENCE.split(_THOUGHT.sub("", text), maxsplit=1)[0])
    return _flat(found.group(1)) if found else ""


def candidate(text: str, backend: Backend) -> Candidate | None:
    """Return the first fenced block that is a whole source, else the first block; `None` when there is no block."""
    blocks = [m for m in _FENCE.finditer(_THOUGHT.sub("", text)) if m.group("code").strip()]
    if not blocks:
        return None
    block = next((m for m in blocks if is_whole(m.group("code"))), blocks[0])
    source = "\n".join(line.rstrip() for line in block.group("code").strip("\n").splitlines()) + "\n"
    form = source_form(source, backend=backend, suffix=_suffix(block.group("language"), backend))
    return Candidate(source, form.tier, backend)


def _suffix(language: str, backend: Backend) -> str:
    """Return the suffix that the block would have as a file.

    Empty where the model left the language out, as many do.
    """
    if not language:
        return ""
    return SUFFIXES["python" if language.lower() in ("python", "py", "python3") else NATIVE[backend]]


def _flat(text: str) -> str:
    """Return a text on one line without Markdown's bold by stars; underscores belong to names such as `__ldg`."""
    return " ".join(text.replace("**", "").split()).strip()
