"""The problems of the zoo: small KernelBench texts, each with the C++ signature and an honest body for it.

Comes in: nothing. Goes out: `TASKS`, and `cpp`, which frames a body as a kernel-tier source. Sizes are a megabyte at
most, so that a judgement is quick, yet enough work that a speed-up can be seen. Knows nothing of specimens.
"""

from __future__ import annotations

from textwrap import dedent, indent

from rag_kernels.eval.zoo.bodies import agreeing, at_numbers, elements, indices, left_out, products, rows

FAMILIES = (rows, products, elements, indices, agreeing, left_out, at_numbers)
TASKS = {task.name: task for family in FAMILIES for task in family.TASKS}

HEAD = """\
#include "rag_kernel.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>
typedef rk::Tensor<const float> In;
typedef rk::Tensor<float> Out;
"""
EXTRAS = {
    "Counts": "typedef rk::Tensor<int32_t> Counts;\n",
    "Index": "typedef rk::Tensor<int64_t> Index;\n",
    "Classes": "typedef rk::Tensor<const int64_t> Classes;\n",
    "Bytes": "typedef rk::Tensor<const int8_t> Bytes;\ntypedef rk::Tensor<int8_t> BytesOut;\n",
    "Mask": "typedef rk::Tensor<const bool> Mask;\n",
    "Pixels": "typedef rk::Tensor<const uint8_t> Pixels;\n",
    "Truth": "typedef rk::Tensor<bool> Truth;\n",
    "HalfOut": """\
typedef rk::Tensor<const rk::bf16> Half;
typedef rk::Tensor<rk::bf16> HalfOut;
static rk::bf16 rounded(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return {uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}
""",
}


def cpp(
    task: str,
    *,
    top: str = "",
    before: str = "",
    body: str | None = None,
    after: str = "",
    compute: str = "compute(ARGS);",
) -> str:
    """Return a kernel-tier source of the task: `top` at file scope, `before` and `after` around the honest computation.

    `body` replaces the honest body; `compute` replaces the call of it. `ARGS` and `PARAMS` stand for the names and the
    declarations of the parameters.
    """
    known = TASKS[task]
    extras = "".join(text for word, text in EXTRAS.items() if word in known.signature)
    inner = indent(known.body if body is None else dedent(body).strip(), "  ")
    steps = [indent(dedent(part).strip(), "  ") for part in (before, compute, after) if part.strip()]
    lines = dedent(top).splitlines(keepends=True)
    includes = "".join(line for line in lines if line.startswith("#include <"))
    top = "".join(line for line in lines if line not in includes)
    text = (
        f"{includes}{HEAD}{extras}static void compute(PARAMS) {{\n{inner}\n}}\n{top}"
        f"static void entry(PARAMS) {{\n" + "\n".join(steps) + "\n}\nRK_EXPORT(forward, entry)\n"
    )
    return text.replace("PARAMS", known.signature).replace("ARGS", known.names)
