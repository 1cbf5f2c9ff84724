"""A model as a program, whose reply follows from its prompt alone: the same prompt has the same reply, always.

Standard input is the prompt, standard output the reply. Each reply is a line in the file that the first argument
names; the second one is how many seconds it takes. Sources are right for `factories.problem()`.
"""

import sys
import time
import zlib

SOURCE = """#include "rag_kernel.h"
constexpr int64_t kVariant = {number};  // so that no two are alike
void scaled(rk::Tensor<const float> x, double factor, rk::Tensor<float> out) {{
  #pragma omp parallel for
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = (x.data[i] > 0.0f ? x.data[i] : 0.0f) * float(factor);
}}
RK_EXPORT(forward, scaled)
"""


def main() -> None:
    prompt, log, seconds = sys.stdin.read(), sys.argv[1], float(sys.argv[2])
    number = zlib.crc32(prompt.encode())
    time.sleep(seconds * (0.5 + number % 100 / 100))
    if "numbered list" in prompt:
        reply = "\n".join(f"{n}. Way {number + n}." for n in range(1, 9))
    else:
        reply = f"Idea: the way {number}\n```cpp\n{SOURCE.format(number=number)}```"
    with open(log, "a") as file:
        file.write(f"{number}\n")
    print(reply, flush=True)


main()
