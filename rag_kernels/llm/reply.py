"""Parse replies: the ideas of a numbered list, the code of a fenced block.

Comes in: a reply's text. Goes out: ideas, lessons, or a candidate; nothing where there is none. Knows nothing of
models.
"""

from __future__ import annotations

import re

from rag_kernels.eval.build.candidate_form import tier_of
from rag_kernels.eval.records import Backend, Candidate

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
_WHOLE = re.compile(r"RK_EXPORT\s*\(|^def forward\b|class ModelNew|PYBIND11_MODULE", re.MULTILINE)


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
    block = next((m for m in blocks if _WHOLE.search(m.group("code"))), blocks[0])
    source = "\n".join(line.rstrip() for line in block.group("code").strip("\n").splitlines()) + "\n"
    return Candidate(source, tier_of(source, _suffix(block.group("language"), source, backend)), backend)


def _suffix(language: str, source: str, backend: Backend) -> str:
    """Return the suffix that the block would have as a file; models often leave the language out."""
    python = language.lower() in ("python", "py", "python3")
    if python or (not language and re.search(r"^def forward\b|class ModelNew", source, re.MULTILINE)):
        return ".py"
    return ".cu" if backend == "cuda" else ".cpp"


def _flat(text: str) -> str:
    """Return a text on one line without Markdown emphasis."""
    return " ".join(text.replace("**", "").replace("__", "").split()).strip()
