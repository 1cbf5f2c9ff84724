"""A vector: neighbouring elements of a tensor that a thread loads or stores at once.

Comes in: a buffer, how its elements are stored, and how many are taken. Goes out: the C type, and the C name by which
a kernel has it. Knows nothing of loops.
"""

from __future__ import annotations

from dataclasses import dataclass

HALF_TYPES = frozenset({"__nv_bfloat16", "__half"})
FLOAT8_TYPES = frozenset({"__nv_fp8_e4m3", "__nv_fp8_e5m2"})
NARROW_TYPES = HALF_TYPES | FLOAT8_TYPES
"""C types of floats of sixteen and eight bits, which arithmetic takes as float."""


@dataclass(frozen=True, slots=True)
class Vector:
    """What a thread takes at once: its name, the buffer, the C type of an element, and how many there are.

    Truths are bytes, of which each is asked whether it is 0.
    """

    name: str
    buffer: str
    ctype: str
    count: int
    truths: bool = False

    @property
    def type(self) -> str:
        """Return the C type of the whole."""
        return f"Pack<{self.ctype}, {self.count}>"

    def element(self, place: str, array: str = "") -> str:
        """Return the element at a place as C, in the type in which arithmetic runs; `array` is what has the vector.

        One of bfloat16 comes out of the word that it shares: nvcc takes vectors apart otherwise, a register an element.
        """
        if self.ctype in HALF_TYPES and self.count % 2 == 0:
            return f"float_at({array or self.name}, {place})"
        return self.converted(place, array)

    def converted(self, place: str, array: str = "") -> str:
        """Return the same by a conversion of the element alone."""
        if self.truths:
            return f"truth_at({array or self.name}, {place})"
        text = f"{array or self.name}.x[{place}]"
        return f"float({text})" if self.ctype in NARROW_TYPES else text
