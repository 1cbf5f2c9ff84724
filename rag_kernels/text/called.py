"""A kernel's source without what it never calls: the part of it that a reader needs.

Comes in: a source of the kernel or the composed tier. Goes out: the same text, without the functions, types, constants
and macros at file level that nothing in the rest names. What it cannot take apart, it leaves as it is. It is a text
filter, no parser: a name that is used anywhere keeps everything that declares it.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

_NO_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'", re.DOTALL)
_LINE = re.compile(r"(?:[^\n]*\\\n)*[^\n]*\n?")  # with those that a backslash joins to it
_GAP = re.compile(r"\s*")
_NAME = re.compile(r"[A-Za-z_]\w*")
_DIRECTIVE = re.compile(r"\s*#\s*(\w+)\s*(\w*)")
_TEMPLATE = re.compile(r"template\s*<[^{;]*?>\s+(?=[A-Za-z_])")
_TYPE = re.compile(r"(?:struct|class|union|enum(?:\s+class)?)\s+(?:\w+\([^)]*\)\s+)?(\w+)")
_FUNCTION = re.compile(r"[^(={;]*?([A-Za-z_]\w*)\s*\(")
_CONSTANTS = re.compile(r"(?:static\s+|inline\s+|__constant__\s+|__device__\s+)*(?:constexpr|const)\b[^(]*=[^;]*;")
_ALIAS = re.compile(r"using\s+(\w+)\s*=")
_ATTRIBUTE = re.compile(
    r"__(?:launch_bounds|align|attribute|cluster_dims)__\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
)
_KERNELS = re.compile(r"^(KERNELS\s*=\s*r?)('''|\"\"\")(.*?)\2", re.DOTALL | re.MULTILINE)
_OURS = ("RK_EXPORT", "RK_WGMMA_COLUMNS")  # macros of our headers that stand at file level
_CONDITIONS = frozenset({"if", "ifdef", "ifndef"})


@dataclass(frozen=True, slots=True)
class _Part:
    """A declaration, or a line of the preprocessor, with the comment before it. Without `declares` it always stays.

    `head` are the names of a function's signature.
    """

    text: str
    declares: frozenset[str]
    names: frozenset[str]
    directive: str = ""
    is_type: bool = False
    head: frozenset[str] = frozenset()


@functools.lru_cache(maxsize=512)
def called_only(source: str) -> str:
    """Return a kernel's source without what nothing in it calls."""
    inner = _KERNELS.search(source)
    if inner:
        return source[: inner.start(3)] + called_only(inner[3]) + source[inner.end(3) :]
    if "RK_EXPORT" not in source:
        return source
    return "".join(_without_empty_conditions(_called(list(_parts(source)))))


def _called(parts: list[_Part]) -> list[_Part]:
    """Return the parts that stay, and those that they name, and so on. Of a function with overloads, one that takes a
    type of this file stays only where something else names that type.
    """
    overloads = Counter(name for part in parts if part.head for name in part.declares)
    types = {name for part in parts if part.is_type for name in part.declares}
    kept = {n for n, part in enumerate(parts) if not part.declares}
    wanted = {name for n in kept for name in parts[n].names}

    def is_called(part: _Part) -> bool:
        overloaded = any(overloads[name] > 1 for name in part.declares)
        return bool(part.declares & wanted) and not (overloaded and part.head & types - wanted)

    while fresh := [n for n, part in enumerate(parts) if n not in kept and is_called(part)]:
        kept.update(fresh)
        wanted.update(name for n in fresh for name in parts[n].names)
    return [parts[n] for n in sorted(kept)]


def _parts(source: str) -> Iterator[_Part]:
    """Yield the parts of a text at file level, in order; together they are the text."""
    code = _NO_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), source)
    start = 0
    while start < len(source):
        first = _match(_GAP, code, start).end()
        if first == len(code):
            yield _Part(source[start:], frozenset(), frozenset())
            return
        end = _match(_LINE, code, first).end() if code[first] == "#" else _declaration_end(code, first)
        yield _part(source[start:end], code[first:end])
        start = end


def _declaration_end(code: str, start: int) -> int:
    """Return the offset behind a declaration: behind its semicolon, or behind the bracket that closes its body."""
    depth, at = 0, start
    while at < len(code):
        depth += (code[at] in "([{") - (code[at] in ")]}")
        at += 1
        if depth == 0 and code[at - 1] in ";}":
            following = _match(_GAP, code, at).end()
            if code[at - 1] == "}" and code[following : following + 1] == ";":
                at = following + 1
            break
        if depth == 0 and code[at - 1] == ")" and code.startswith(_OURS, start):
            break
    return at + 1 if code[at : at + 1] == "\n" else at


def _part(text: str, code: str) -> _Part:
    names = frozenset(_NAME.findall(code))
    if code.startswith("#"):
        directive = _DIRECTIVE.match(code)
        kind = directive[1] if directive else ""
        own = frozenset({directive[2]}) if directive and kind == "define" else frozenset()
        return _Part(text, own, names if kind == "define" else names - {"define"}, kind)
    plain = _ATTRIBUTE.sub(" ", code)
    template = _TEMPLATE.match(plain)
    rest = plain[template.end() :] if template else plain
    declares, is_type = _declared(rest), _TYPE.match(rest) is not None
    head = frozenset(_NAME.findall(rest.split("{")[0])) if declares and _FUNCTION.match(rest) else frozenset()
    return _Part(text, declares, names, is_type=is_type, head=frozenset() if is_type else head)


def _declared(rest: str) -> frozenset[str]:
    """Return the names that a declaration brings; none where it is not one that can be left out."""
    if rest.startswith((*_OURS, "namespace", "extern", "static_assert")):
        return frozenset()
    if alias := _ALIAS.match(rest):
        return frozenset({alias[1]})
    if kind := _TYPE.match(rest):
        return frozenset({kind[1]})
    if _CONSTANTS.match(rest):
        return frozenset(re.findall(r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)*=", rest))
    function = _FUNCTION.match(rest)
    return frozenset({function[1]}) if function and "operator" not in function[0] else frozenset()


def _without_empty_conditions(parts: list[_Part]) -> list[str]:
    """Return the texts, without an `#if` that has nothing left between it and its `#endif`."""
    kept: list[_Part] = []
    for part in parts:
        kept.append(part)
        if part.directive == "endif":
            start = len(kept) - 2
            while start >= 0 and kept[start].directive in ("else", "elif"):
                start -= 1
            if start >= 0 and kept[start].directive in _CONDITIONS:
                del kept[start:]
    return [part.text for part in kept]


def _match(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    found = pattern.match(text, at)
    assert found is not None  # patterns that match nothing at all, too
    return found
