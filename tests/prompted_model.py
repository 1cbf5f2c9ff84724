"""A model as a program, whose reply follows from its prompt alone: the same prompt has the same reply, always.

Standard input is the prompt, standard output the reply. Each reply is a line in the file that the first argument
names; the second one is how many seconds it takes. Sources are right for `factories.problem()`. With a third argument
it is careless: of five replies one has a source that it had before, one no code, and one is an error.
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
        fault = number % 5 if len(sys.argv) > 3 else -1
        source = SOURCE.format(number=0 if fault == 0 else number)
        reply = "I would rather not." if fault == 1 else f"Idea: the way {number}\n```cpp\n{source}```"
    with open(log, "a") as file:
        file.write(f"{number}\n")
    print(reply, flush=True)
    if len(sys.argv) > 3 and "numbered list" not in prompt and number % 5 == 2:
        sys.exit("I do not know how.")


if __name__ == "__main__":
    main()
