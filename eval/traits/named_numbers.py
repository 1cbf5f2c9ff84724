"""Which numbers do a source and what was built of it name? Who is another one on some inputs has to name these.

Comes in: a text, its assembly, the bytes of its object. Goes out: `NamedNumbers`. Knows nothing of judging; no torch.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MODERATE = (1e-4, 64.0)  # whose exponentials are finite, and which count beside ordinary numbers
MOST = 96  # of each kind: texts come first, then instructions, then tables
LEAST_REAL, MOST_REAL = 1e-30, 1e30
LEAST_BITS = 1 << 20  # whole numbers from here on may be the bits of a float
LEAST_OF_BITS, MOST_OF_BITS = 1e-6, 1e6
MOST_TABLE_BYTES = 2048  # of each section: what is longer is a table
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|(?<!\S)#(?!\s*(?:define|if|elif))[^\n]*", re.DOTALL)
_NUMBER = re.compile(
    r"(?<![\w.])(0[xX][0-9a-fA-F']+(?:\.[0-9a-fA-F]*)?(?:[pP][+-]?\d+)?|0[bB][01']+|"
    r"(?:\d[\d'_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
)
_STACK = re.compile(r"%[er][sb]p\b|\bsp\b")
_IMMEDIATE = re.compile(r"[$#](-?(?:0x[0-9a-f]+|\d+))\b|\blea\w*\s+(-?0x[0-9a-f]+)\(")
_CONSTANTS = re.compile(r"\.l?rodata(?:\.|$)")


@dataclass(frozen=True, slots=True)
class NamedNumbers:
    """Numbers as floats, and whole ones from two on: counts, places, sizes, bits. Neither has a sign.

    The first `written` floats stand in the text; what follows is made of bits, too, and may be of any size.
    """

    reals: tuple[float, ...] = ()
    wholes: tuple[int, ...] = ()
    written: int = 0

    @property
    def has_far(self) -> bool:
        """Return whether the text has numbers far from one."""
        return any(not MODERATE[0] <= real <= MODERATE[1] for real in self.reals[: self.written])


NOTHING_NAMED = NamedNumbers()


def named_numbers(source: str, assembly: str = "", built: bytes = b"") -> NamedNumbers:
    """Return what a source names, its instructions, and the constants beside them, in this order."""
    reals: dict[float, None] = {}
    wholes: dict[int, None] = {}
    _take(_in_text(source), reals, wholes)
    written = len(reals)
    _take([*_in_instructions(assembly), *_in_tables(built)], reals, wholes)
    return NamedNumbers(tuple(reals)[:MOST], tuple(wholes)[:MOST], min(written, MOST))


def _take(found: Iterable[float], reals: dict[float, None], wholes: dict[int, None]) -> None:
    """Add numbers to those that are known."""
    for value in map(abs, found):
        if isinstance(value, int) and 2 <= value < 1 << 63:
            wholes[value] = None
        number = () if isinstance(value, int) and value >= LEAST_BITS else (value,)
        for real in (*number, *_as_bits(value)):
            if (real := _as_real(real)) and real != 1:
                reals[real] = None


def _as_real(value: float) -> float:
    """Return a number that floats have, or zero."""
    return float(value) if LEAST_REAL <= value <= MOST_REAL else 0.0


def _as_bits(value: float) -> Iterator[float]:
    """Yield the floats of 32 and 64 bits that a whole number may be the bits of."""
    if isinstance(value, int) and value >= LEAST_BITS:
        raw = struct.pack("<Q", value & (1 << 64) - 1)
        for bits in (abs(_unpacked("<f", raw[:4])), abs(_unpacked("<d", raw)) if value >> 52 else 0.0):
            if LEAST_OF_BITS < bits < MOST_OF_BITS:
                yield bits


def _unpacked(form: str, raw: bytes) -> float:
    (value,) = struct.unpack(form, raw)
    return float(value) if math.isfinite(value) else 0.0


def _in_text(source: str) -> Iterator[float]:
    for found in _NUMBER.finditer(_COMMENT.sub(" ", source)):
        text = found[1].replace("'", "").replace("_", "").lower()
        try:
            if text.startswith("0x"):
                yield float.fromhex(text) if "p" in text or "." in text else int(text, 16)
            elif text.startswith("0b"):
                yield int(text, 2)
            else:
                yield float(text) if {".", "e"} & set(text) else int(text)
        except (ValueError, OverflowError):  # no number of any language
            continue


def _in_instructions(assembly: str) -> Iterator[int]:
    """Yield what instructions compare with, mask and add, but for places on the stack."""
    for line in assembly.splitlines():
        for found in () if _STACK.search(line) else _IMMEDIATE.finditer(line):
            value = int(found[1] or found[2], 0)
            yield value - (1 << 64) if value >> 63 else value


def _in_tables(built: bytes) -> Iterator[float]:
    """Yield the constants of an object's code: floats of 64 and 32 bits, and whole numbers where they are neither."""
    for raw in _sections(built):
        for at in range(0, min(len(raw), MOST_TABLE_BYTES) - 3, 4):
            wide = abs(_unpacked("<d", raw[at : at + 8])) if at % 8 == 0 and len(raw) >= at + 8 else 0.0
            narrow = abs(_unpacked("<f", raw[at : at + 4]))
            whole = abs(int.from_bytes(raw[at : at + 4], "little", signed=True))
            plausible = [v for v in (wide, narrow) if LEAST_OF_BITS < v < MOST_OF_BITS]
            yield from plausible or ([whole] if whole < LEAST_BITS else [narrow])


def _sections(built: bytes) -> Iterable[bytes]:
    """Return the sections of constants of an ELF object of 64 bits, those of one width first."""
    if not built.startswith(b"\x7fELF\x02\x01") or len(built) < 64:
        return []
    begin, size, count, names = (struct.unpack_from(f, built, at)[0] for f, at in _HEADER)
    heads = [struct.unpack_from("<IIQQQQ", built, begin + i * size) for i in range(count)]
    found: list[tuple[str, bytes]] = []
    for name, _, _, _, offset, length in heads:
        first = heads[names][4] + name
        text = built[first : built.index(b"\0", first)].decode(errors="replace")
        if _CONSTANTS.match(text) and ".str" not in text:
            found.append((text, built[offset : offset + length]))
    return [raw for _, raw in sorted(found, key=lambda one: ".cst" not in one[0])]


_HEADER = (("<Q", 0x28), ("<H", 0x3A), ("<H", 0x3C), ("<H", 0x3E))  # where sections are told of, how many, their names
