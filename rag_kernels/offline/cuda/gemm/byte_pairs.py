"""Weights of a byte or half of one as pairs of sixteen bits: `(q - zero) * scale` of two at once, without floats.

Comes in: a factor that is rounded to sixteen bits, and the bytes that it streams. Goes out: C statements that make its
terms of four words, or None where it is none of that shape. A byte becomes a number by its place in the fraction of
1024 (float16) or 128 (bfloat16, so that such bytes have seven bits); differences of bytes are exact in sixteen bits and
a product of two such numbers is rounded once, as it is from float32: results are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import operands, strip

MOST_PACKED = 2  # terms of a byte for which factors' terms are put in this order

BITS = {"bfloat16": 7, "float16": 10}  # of a fraction
DEVICE = """
// Two bytes of four as numbers, the first or the last two, more by {bias}: their bits lie in its fraction.
template <class T> __device__ inline unsigned biased_pair(unsigned four, int last);
template <> __device__ inline unsigned biased_pair<{number}>(unsigned four, int last) {{
#ifdef __CUDACC__
  return __byte_perm(four, {top}u * 0x01010101u, last ? 0x4342u : 0x4140u);
#else
  const unsigned two = four >> 16 * last;
  return (two & 255) | (two & 0xff00) << 8 | {top}u * 0x01000100u;
#endif
}}
// Differences and products of pairs, each rounded once.
template <class T> __device__ inline unsigned minus_pair(unsigned a, unsigned b);
template <> __device__ inline unsigned minus_pair<{number}>(unsigned a, unsigned b) {{
#ifdef __CUDACC__
  {minus}
  return a;
#else
  Pack<{number}, 2> x, y;
  memcpy(&x, &a, 4), memcpy(&y, &b, 4);
  return pair_of<{number}>(float(x.x[0]) - float(y.x[0]), float(x.x[1]) - float(y.x[1]));
#endif
}}
template <class T> __device__ inline unsigned times_pair(unsigned a, unsigned b);
template <> __device__ inline unsigned times_pair<{number}>(unsigned a, unsigned b) {{
#ifdef __CUDACC__
  {times}
  return a;
#else
  Pack<{number}, 2> x, y;
  memcpy(&x, &a, 4), memcpy(&y, &b, 4);
  return pair_of<{number}>(float(x.x[0]) * float(y.x[0]), float(x.x[1]) * float(y.x[1]));
#endif
}}
"""
ARITHMETIC = {  # of bfloat16 one instruction has all GPUs: a product and a sum
    "float16": (
        'asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(a) : "r"(a), "r"(b));',
        'asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(a) : "r"(a), "r"(b));',
    ),
    "bfloat16": (
        'asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(a) : "r"(b), "r"(0xbf80bf80u), "r"(a));',
        'asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(a) : "r"(a), "r"(b), "r"(0x80008000u));',
    ),
}


def device_text(numbers: str, number: str) -> str:
    """Return the functions of pairs of this number format, whose C type is `number`."""
    minus, times = ARITHMETIC[numbers]
    top = {"bfloat16": "0x43", "float16": "0x64"}[numbers]
    return DEVICE.format(number=number, bias=1 << BITS[numbers], top=top, minus=minus, times=times)


@dataclass(frozen=True, slots=True)
class BytePairs:
    """A factor `(q - zero) * scale` of bytes or parts of them; the numbers beside `q` are those of a column."""

    numbers: str  # the format of its terms
    load: ir.Load  # what streams
    whole: ir.Value  # q, of unsigned bytes
    zero: ir.Value | None  # of bytes, too
    scale: ir.Value | None  # of the format

    def lines(self, number: str, inside: Callable[[str], list[str]], printer: Printer, scope: Scope) -> list[str]:
        """Return the statements that make `b` of the words `w`; `inside` names the loops that share a byte."""
        column = Scope(scope)
        zero = printer.emit(self.zero, column) if self.zero else "0.0f"
        less = [f"const float zero = {zero};", f"const unsigned less = pair_of<{number}>({self.bias}, {self.bias});"]
        made = f"minus_pair<{number}>(biased_pair<{number}>(four, last), less)"
        if self.zero and self.numbers == "bfloat16":  # more than a byte has no room beside the bias
            less.append(f"const unsigned zeros = pair_of<{number}>(zero, zero);")
            made = f"minus_pair<{number}>({made}, zeros)"
        if self.scale:
            less.append(f"const float factor = {printer.emit(self.scale, column)};")
            less.append(f"const unsigned factors = pair_of<{number}>(factor, factor);")
            made = f"times_pair<{number}>({made}, factors)"
        term = Scope(column)
        text = word_of(self.whole, self.load, "words[v]", printer, term)
        return [
            *column.lines,
            *less,
            "const unsigned words[4] = {w.x, w.y, w.z, w.w};",
            "#pragma unroll",
            "for (int u = 0; u < PACKED; ++u) {",
            *indent([*inside("u"), *term.lines]),
            "#pragma unroll",
            "  for (int v = 0; v < 4; ++v) {",
            f"    const unsigned four = {text};",
            "#pragma unroll",
            f"    for (int last = 0; last < 2; ++last) b[(2 * v + last) * PACKED + u] = {made};",
            "  }",
            "}",
        ]

    @property
    def bias(self) -> str:
        """Return what is taken from biased numbers at once."""
        bias = f"{1 << BITS[self.numbers]}.0f"
        return f"{bias} + zero" if self.zero and self.numbers == "float16" else bias

    def conditions(self, printer: Printer) -> list[str]:
        """Return when all bytes have bits for the format's fraction, as C."""
        if BITS[self.numbers] >= 8:
            return []
        scope, found = Scope(), []
        for value in leaves(self.whole):
            assert isinstance(value, ir.Op)  # `byte_pairs` has seen to it
            by = printer.emit(value.args[1], scope)
            found.append(f"{by} < 128" if value.operator is Operator.BIT_AND else f"{by} > 0")
        return found


def byte_pairs(
    value: ir.Value, numbers: str, load: ir.Load, packed: int, alike: Callable[[ir.Value], bool]
) -> BytePairs | None:
    """Return a factor before it is rounded to `numbers` as pairs of bytes, or None.

    `packed` terms share a byte; `alike` says whether all terms that a thread takes at a time have a value in common.
    """
    if load.storage != "uint8" or packed > MOST_PACKED:
        return None
    scale, zero, value = None, None, strip(value)
    for one, other in _both_ways(operands(value, Operator.MUL)):
        scaled = strip(other)
        if isinstance(scaled, ir.Load) and scaled.storage == numbers and alike(scaled) and load not in ir.walk(other):
            scale, value = scaled, strip(one)
            break
    if found := operands(value, Operator.SUB):
        value, zero = strip(found[0]), strip(found[1])
        byte = operands(zero, Operator.CAST)
        if not byte or strip(byte[0]).dtype != "uint8" or not alike(zero) or load in ir.walk(zero):
            return None
    cast = operands(value, Operator.CAST)
    if not cast or not _is_bits(cast[0], load) or not (zero or scale):
        return None
    whole = strip(cast[0])
    if BITS[numbers] < 8 and any(leaf is load for leaf in leaves(whole)):
        return None
    return BytePairs(numbers, load, whole, zero, scale)


def bytes_as_floats(value: ir.Value, load: ir.Load, printer: Printer, scope: Scope) -> dict[object, str]:
    """Return the bits of what streams that become floats, each as term `u` has it, in C: converters take four times as
    long."""
    texts = dict[object, str]()
    for v in ir.walk(value):
        found = operands(v, Operator.CAST)
        if found and v.dtype == "float32" and found[0].dtype == "uint8" and _is_bits(found[0], load):
            word = word_of(found[0], load, "words[u / PACKED / 4]", printer, scope)
            texts[v] = f"float_of_byte({word}, u / PACKED % 4)"
    return texts


def word_of(value: ir.Value, load: ir.Load, words: str, printer: Printer, scope: Scope) -> str:
    """Return a term of four neighbouring bytes at once, of the word `words`."""
    value = strip(value)
    if value is load:
        return words
    assert isinstance(value, ir.Op)
    if value.operator is Operator.WHERE:
        asked, *both = value.args
        first, second = (word_of(one, load, words, printer, scope) for one in both)
        return f"({printer.emit(asked, scope)} ? {first} : {second})"
    bits, by = word_of(value.args[0], load, words, printer, scope), printer.emit(value.args[1], scope)
    if value.operator is Operator.BIT_AND:
        return f"({bits} & {by} * 0x01010101u)"
    return f"({bits} >> {by} & (255u >> {by}) * 0x01010101u)"


def leaves(value: ir.Value) -> list[ir.Value]:
    """Return the bits that are chosen among."""
    value = strip(value)
    chosen = operands(value, Operator.WHERE)
    return [leaf for one in chosen[1:] for leaf in leaves(one)] if chosen else [value]


def _both_ways(found: tuple[ir.Value, ...] | None) -> list[tuple[ir.Value, ...]]:
    return [found, found[::-1]] if found else []


def _is_bits(value: ir.Value, load: ir.Load) -> bool:
    """Return whether a value is what streams, bits of it by numbers, or a choice of these by indices."""
    value = strip(value)
    if value is load:
        return True
    if not isinstance(value, ir.Op) or value.dtype != "uint8":
        return False
    if value.operator is Operator.WHERE:
        return not any(isinstance(v, ir.Load) for v in ir.walk(value.args[0])) and all(
            _is_bits(one, load) for one in value.args[1:]
        )
    cut = value.operator in {Operator.BIT_AND, Operator.SHIFT_RIGHT}
    return cut and isinstance(strip(value.args[1]), ir.Const) and _is_bits(value.args[0], load)
