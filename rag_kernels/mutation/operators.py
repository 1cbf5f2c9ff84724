"""The mutation operators: each finds the places of a source where one kind of fault can be, and what to write there.

Comes in: C++ or CUDA text. Goes out: `Edit`s, by the operator's name. None is random: which are used, the caller
draws. Operators of accuracy are in `precision_operators`. Knows nothing of judges and problems.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rag_kernels.mutation.cpp_text import (
    blanked,
    calls,
    loops,
    operand_end,
    operand_start,
    statement_end,
    term_end,
)


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace source[start:end] by `text`."""

    start: int
    end: int
    text: str


Find = Callable[[str], Iterator[Edit]]
TYPES = r"(?:Acc|Wide|float|double|T|V)"
_UPDATE = re.compile(r"(?<![\w.\]])([A-Za-z_][\w.]*(?:\[[^\]\n]*\])*) ([+\-*])= ")


def bounds(text: str) -> Iterator[Edit]:
    """Yield loops that begin or end one too early or too late, and indices moved by one."""
    for loop in loops(text):
        for found in re.finditer(r" (<=?) (?=[\w(])", text[slice(*loop.condition)]):
            start = loop.condition[0] + found.start()
            yield Edit(start, start + len(found.group()), " < " if found.group(1) == "<=" else " <= ")
            end = operand_end(text, start + len(found.group()))
            if end > 0:
                yield Edit(end, end, " - 1")
        for found in re.finditer(r"= 0$", text[slice(*loop.first)]):
            yield Edit(loop.first[0] + found.start(), loop.first[1], "= 1")
        for found in re.finditer(r"-- > 0", text[slice(*loop.condition)]):
            yield Edit(loop.condition[0] + found.start(), loop.condition[0] + found.end(), "-- > 1")
    for found in re.finditer(r"\[([a-z]\w*)\](?! ?[({])", text):
        yield Edit(found.end(1), found.end(1), " + 1")
        yield Edit(found.end(1), found.end(1), " - 1")
    for found in re.finditer(r"\((n|size|count|width|keys|depth) - 1\)", text):
        yield Edit(found.start(), found.end(), f"({found.group(1)})")


def terms(text: str) -> Iterator[Edit]:
    """Yield a term or a factor that is left out, or counted twice."""
    for found in re.finditer(r"(?<=[\w)\]]) ([+\-*/]) (?=[\w(])", text):
        product = found.group(1) in "*/"
        end = operand_end(text, found.end()) if product else term_end(text, found.end())
        if end < 0:
            continue
        yield Edit(found.start(), end, "")
        if not product:
            yield Edit(found.end(), found.end(), "2 * ")
    for found in _UPDATE.finditer(text):
        end = statement_end(text, found.end())
        if end > 0:
            yield Edit(found.start(), end, "(void)0")
            if found.group(2) == "+":
                yield Edit(found.end(), end, f"2 * ({text[found.end() : end]})")


def axes(text: str) -> Iterator[Edit]:
    """Yield the wrong axis or stride.

    Factors of an index exchanged, another dimension's size, `/` where `%` belongs.
    """
    for found in re.finditer(r"\b([a-z]\w*) \* ([a-zA-Z]\w*) \+ ([a-z]\w*)\b(?![.(\[])", text):
        a, b, c = found.groups()
        yield Edit(found.start(), found.end(), f"{c} * {b} + {a}")
        yield Edit(found.start(2), found.end(2), f"({b} + 1)")
    for found in re.finditer(r"\.size\((-?\d)\)", text):
        here = int(found.group(1))
        for other in {(here + 1) if here >= 0 else 0, here - 1} - {here}:
            if -2 <= other <= 3:
                yield Edit(found.start(1), found.end(1), str(other))
    for found in re.finditer(r"(?<=[\w)]) ([/%]) (?=[a-zA-Z(])", text):
        yield Edit(found.start(1), found.end(1), "%" if found.group(1) == "/" else "/")
    for found in re.finditer(r" \* (?:\w+\.)?(?:inner|stride|step|ld\w*)\b", text):
        yield Edit(found.start(), found.end(), "")


def epsilon(text: str) -> Iterator[Edit]:
    """Yield an epsilon that is lost, or stands outside the root."""
    small = rf"(?:{TYPES}\()?(?:eps\w*|e|tiny|1e-\d+f?)\)?"
    for found in re.finditer(rf" \+ {small}(?=[);,])", text):
        extra = text[found.start() : found.end()].count(")") - text[found.start() : found.end()].count("(")
        if extra <= 0:
            yield Edit(found.start(), found.end(), "")
    for call in calls(text):
        if call.name in ("std::max", "fmaxf", "std::fmax") and len(call.arguments) == 2:
            (a, b), (c, d) = call.arguments
            if re.fullmatch(small, text[c:d]):
                yield Edit(call.start, call.end, f"({text[a:b]})")


def constants(text: str) -> Iterator[Edit]:
    """Yield a constant of another problem: another literal, another epsilon, n for n - 1."""
    for found in re.finditer(r"(?<![\w.])(\d+\.\d*(?:e-?\d+)?|\d+e-\d+)(f?)(?![\w.])", text):
        value = float(found.group(1))
        for other in (value * 1.01, value * 2, value * 0.1) if value else (1.0,):
            yield Edit(found.start(), found.end(), f"{other:.9g}{'' if f'{other:.9g}'.isdigit() else found.group(2)}")
    for found in re.finditer(rf"{TYPES}\((eps\w*|e)\)|(?<= \+ )(eps\w*)(?=\))", text):
        yield Edit(found.start(), found.end(), "1e-3f")
        yield Edit(found.start(), found.end(), "1e-8f")
    for found in re.finditer(r"/ \((n|size|count) - 1\)", text):
        yield Edit(found.start(), found.end(), f"/ {found.group(1)}")
    for found in re.finditer(r"(?<=[\w)\]]) / n(?=[;,) ])", text):
        yield Edit(found.start(), found.end(), " / (n - 1)")


def start_of_reduction(text: str) -> Iterator[Edit]:
    """Yield a sum that begins at one, a maximum that begins at zero."""
    headers = loops(text)
    for found in re.finditer(
        r"\b[a-z]\w* = (0|1|-INFINITY|INFINITY|-FLT_MAX|[a-z]\w*[(\[](?:0|n - 1)[)\]])(?=[,;])", text
    ):
        if any(loop.holds(found.start()) for loop in headers):
            continue
        value = found.group(1)
        for other in ("1",) if value == "0" else ("0", "1") if value[-1] not in "01" else ("0",):
            yield Edit(found.start(1), found.end(1), other)


def barriers(text: str) -> Iterator[Edit]:
    """Yield a barrier, a fence, a lock, a join or a reduction clause that is missing, or stands a statement later."""
    for found in re.finditer(r"^[ \t]*#pragma omp (?:barrier|critical|atomic|ordered)\b[^\n]*", text, re.M):
        yield Edit(found.start(), found.end(), "")
    for found in re.finditer(r" (?:reduction|private|lastprivate)\([^)\n]*\)", text):
        yield Edit(found.start(), found.end(), "")
    for found in re.finditer(r"\b(?:__syncthreads|__syncwarp|__threadfence\w*|_mm_\w?fence)\(\w*\);", text):
        yield Edit(found.start(), found.end(), "")
        end = statement_end(text, found.end())
        following = text[found.end() : end + 1]
        if end > 0 and "for (" not in following and "if (" not in following:
            yield Edit(found.start(), end + 1, f"{following} {found.group()}")
    for found in re.finditer(r"\bstd::(?:lock_guard|unique_lock|scoped_lock)[^;\n]*;", text):
        yield Edit(found.start(), found.end(), "")
    for found in re.finditer(r"\.join\(\)", text):
        yield Edit(found.start(), found.end(), ".detach()")
    for found in re.finditer(r"\bdone\.wait\(", text):
        end = statement_end(text, found.start())
        if end > 0:
            yield Edit(found.start(), end, "(void)0")
    for loop in loops(text):  # threads that add to one sum
        sum_of = _UPDATE.match(text, loop.body + 1)
        if sum_of and "omp" not in text[: loop.start].rsplit("\n", 2)[-2:][0]:
            yield Edit(loop.start, loop.start, "\n#pragma omp parallel for\n")


def stale(text: str) -> Iterator[Edit]:
    """Yield a buffer or a value that lives on, or that is not emptied, from one row or call to the next."""
    declared = rf"(?<=[;{{}}\n])(\s+)((?:const )?(?:{TYPES}|std::vector<\w+>) (?!run\b|\w+\()[a-z]\w*\b[^;\n]*;)"
    depth = 0
    for found in re.finditer(r"[{}]|" + declared, text):
        if found.group() in "{}":
            depth += 1 if found.group() == "{" else -1
        elif depth > 0:
            yield Edit(found.start(2), found.start(2), "static ")
    for found in re.finditer(r"\b(?:std::fill\([^;]*|memset\([^;]*|[a-z]\w*(?:\[[^\]\n]*\])+ = 0);", text):
        yield Edit(found.start(), found.end(), ";")


def tails(text: str) -> Iterator[Edit]:
    """Yield what a whole number of tiles leaves over is not computed; a sum is not set to its start."""
    for loop in loops(text):
        for found in re.finditer(r" < (?=[\w(])", text[slice(*loop.condition)]):
            start = loop.condition[0] + found.end()
            end = operand_end(text, start)
            if 0 < end <= loop.condition[1] and re.search(r"[a-z]", text[start:end]):
                for tile in (4, 16):
                    yield Edit(end, end, f" / {tile} * {tile}")
    for call in calls(text):
        if call.name == "std::min" and len(call.arguments) == 2:
            a, b = call.arguments[0]
            if re.fullmatch(r"\w+", text[a:b]):
                yield Edit(call.start, call.end, text[a:b])
    for found in re.finditer(rf"(?<=[;{{}}\n])\s+{TYPES} [a-z]\w*( = 0);", text):
        yield Edit(found.start(1), found.end(1), "")


def swaps(text: str) -> Iterator[Edit]:
    """Yield arguments of a call, or operands of a difference or a quotient, in the wrong order."""
    for call in calls(text):
        if len(call.arguments) >= 2:
            (a, b), (c, d) = call.arguments[:2]
            if text[a:b] != text[c:d] and call.name not in ("std::max", "std::min"):
                yield Edit(a, d, f"{text[c:d]}{text[b:c]}{text[a:b]}")
    for found in re.finditer(r"(?<=[\w)\]]) ([-/]) (?=[\w(])", text):
        start, end = operand_start(text, found.start()), operand_end(text, found.end())
        if start >= 0 and end > 0:
            left, right = text[start : found.start()], text[found.end() : end]
            yield Edit(start, end, f"{right} {found.group(1)} {left}")


def masks(text: str) -> Iterator[Edit]:
    """Yield the edge of a mask.

    A comparison of places, outside the headers of loops, that takes in one more or one less.
    """
    headers = loops(text)
    for found in re.finditer(r"\b[a-z]\w* (<=|>=|<|>) (?:[a-zA-Z_]\w*|\d+)\b(?![.(\[])", text):
        if not any(loop.holds(found.start()) for loop in headers):
            sign = found.group(1)
            yield Edit(found.start(1), found.end(1), sign[0] if len(sign) > 1 else sign + "=")


def comparisons(text: str) -> Iterator[Edit]:
    """Yield a comparison the other way round, another one of equality, `and` for `or`.

    The arms of a choice exchanged.
    """
    headers = loops(text)
    flipped = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "!=", "!=": "==", "&&": "||", "||": "&&"}
    for found in re.finditer(r"(?<=[\w)\]]) (<=|>=|<|>|==|!=|&&|\|\|) (?=[\w(\-!])", text):
        if not any(loop.holds(found.start()) for loop in headers):
            yield Edit(found.start(1), found.end(1), flipped[found.group(1)])
    for found in re.finditer(r" \? ", text):
        end = operand_end(text, found.end())
        if end > 0 and text[end : end + 3] == " : ":
            last = operand_end(text, end + 3)
            if last > 0:
                yield Edit(found.end(), last, f"{text[end + 3 : last]} : {text[found.end() : end]}")


def signs(text: str) -> Iterator[Edit]:
    """Yield plus for minus, a minus or an absolute value that is lost."""
    other = {"+": "-", "-": "+"}
    for found in re.finditer(r"(?<=[\w)\]]) ([+\-])(=?) (?=[\w(])", text):
        yield Edit(found.start(1), found.end(1), other[found.group(1)])
    for found in re.finditer(r"(?<=[(=,?:] )-(?=[\w(])|(?<=\()-(?=[\w(])", text):
        yield Edit(found.start(), found.end(), "")
    for found in re.finditer(r"\b(?:std::f?abs|fabsf?)(?=\()", text):
        yield Edit(found.start(), found.end(), "")


def special(text: str) -> Iterator[Edit]:
    """Yield NaN swallowed, infinity cut off, an exponential that overflows."""
    for found in re.finditer(r"-INFINITY", text):
        yield Edit(found.start(), found.end(), "-100.0f")
        yield Edit(found.start(), found.end(), "-1e30f")
    for call in calls(text):
        if call.name in ("std::max", "std::min") and len(call.arguments) == 2:
            (a, b), (c, d) = call.arguments
            yield Edit(call.start, call.end, f"{call.name.replace('::', '::f')}({text[a:b]}, {text[c:d]})")
            yield Edit(a, d, f"{text[c:d]}{text[b:c]}{text[a:b]}")
        if call.name == "put" and len(call.arguments) == 2:
            a, b = call.arguments[1]
            yield Edit(a, b, f"without_nan({text[a:b]})")
            yield Edit(a, b, f"at_most_1e4({text[a:b]})")
        if re.fullmatch(r"(?:std::)?exp[f]?|rk_exp|quick_exp", call.name) and len(call.arguments) == 1:
            a, b = call.arguments[0]
            if minus := re.search(r" - ", text[a:b]):
                yield Edit(a + minus.start(), b, "")


def overflows(text: str) -> Iterator[Edit]:
    """Yield numbers of 32 bits where 64 are needed: in sums and keys, where a test's inputs can show it.

    Not in offsets.
    """
    names = r"(?:s|sum|total|part|first|last|best|key|value|term|T|Acc|Wide)"
    for found in re.finditer(rf"\bint64_t\b(?= {names}\b)", text):
        yield Edit(found.start(), found.end(), "int32_t")
        yield Edit(found.start(), found.end(), "int16_t")


OPERATORS: dict[str, Find] = {
    "bounds off by one": bounds,
    "dropped or doubled term": terms,
    "wrong axis or stride": axes,
    "lost epsilon": epsilon,
    "constant of another problem": constants,
    "reduction start": start_of_reduction,
    "missing or moved barrier": barriers,
    "stale buffer": stale,
    "uninitialised tail": tails,
    "swapped arguments": swaps,
    "mask edge": masks,
    "comparison": comparisons,
    "sign": signs,
    "NaN and infinity": special,
    "overflow at 2^31": overflows,
}


def sites(source: str, operator: Find) -> list[Edit]:
    """Return every edit of one operator that changes something."""
    text = blanked(source)
    found = dict.fromkeys(edit for edit in operator(text) if source[edit.start : edit.end] != edit.text)
    return list(found)
