"""The loop of a team of threads over elements, as CUDA text, in three forms chosen by measurements on an H200.

Comes in: how many elements there are, the axis along which the team lies, and the lines for one element `k`. Goes out:
a loop. `stepped` is the plain one, for passes that store as well (GroupNorm: 0.73 ms so, 0.99 counted). `counted` knows
before how often it runs, so that the compiler has several loads under way (a sum over columns: 0.54 ms for 0.89).
`ahead` does that itself, where the compiler would not because the work on each element is long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rag_kernels.offline.codegen.loop_nest import Loop
from rag_kernels.offline.codegen.reduction_levels import indent

AHEAD = 4
WALKED, DEAR = 8, 4  # elements of a thread alone that are under way together, and where each takes long


def stepped(count: str, axis: str, lines: Sequence[str]) -> list[str]:
    """Return a loop in steps of the team's size."""
    head = f"for (int64_t k = threadIdx.{axis}; k < {count}; k += blockDim.{axis}) {{"
    return [head, *indent(lines), "}"]


def counted(count: str, axis: str, lines: Sequence[str]) -> list[str]:
    """Return a loop whose number of steps is known before it begins."""
    return [
        "#pragma unroll 4",
        f"for (uint32_t j = 0, own = {share(count, axis)}; j < own; ++j) {{",
        f"  {element(axis, 'j')}",
        *indent(lines),
        "}",
    ]


def ahead(count: str, axis: str, indices: Sequence[str], loads: Mapping[str, str], lines: Sequence[str]) -> list[str]:
    """Return a loop that loads several elements before anything else.

    `loads` has where each float is loaded from, by name; the lines find it as element `b` of an array of that name.
    """
    each = f"for (int b = 0; b < {AHEAD}; ++b) {{"
    return [
        "{",
        f"  const int64_t own = {share(count, axis)};",
        "  auto some = [&](int64_t j, int many) {",
        *(f"    float {name}_ahead[{AHEAD}];" for name in loads),
        "    #pragma unroll",
        f"    {each}",
        f"      {element(axis, '(b < many ? j + b : j)')}",
        *indent(indent(indent([*indices, *(f"{name}_ahead[b] = {text};" for name, text in loads.items())]))),
        "    }",
        "    #pragma unroll",
        f"    {each}",
        "      if (b < many) {",
        *indent(indent(indent(indent([element(axis, "(j + b)"), *indices, *lines])))),
        "      }",
        "    }",
        "  };",
        "  int64_t j = 0;",
        f"  for (; j + {AHEAD} <= own; j += {AHEAD}) some(j, {AHEAD});  // no bounds inside",
        "  if (j < own) some(j, int(own - j));",
        "}",
    ]


def walked(loops: Sequence[Loop], lines: Sequence[str], together: int) -> list[str]:
    """Return the loops of a thread that is alone, with so many elements under way at a time."""
    body = list(lines)
    for loop in reversed(loops):
        some = min(together, loop.count)
        together //= max(some, 1)
        head = f"for (int64_t {loop.var} = 0; {loop.var} < {loop.size}; ++{loop.var}) {{"
        body = [*([f"#pragma unroll {some}"] if some > 1 else []), head, *indent(body), "}"]
    return body


def share(count: str, axis: str) -> str:
    """Return how many elements a thread of the team has, as C."""
    return f"share({count}, threadIdx.{axis}, blockDim.{axis})"


def element(axis: str, number: str) -> str:
    """Return the statement that declares the thread's element of this number."""
    return f"const int64_t k = threadIdx.{axis} + int64_t({number}) * blockDim.{axis};"
