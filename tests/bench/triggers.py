"""A generic adversary: kernels that differ from an honest one on one set of inputs each, and which of them are caught.

    .venv/bin/python tests/bench/triggers.py [--only row] [--thorough] [--seed 1] [--json FILE]

A set is told by numbers that are drawn for it: a value, a range, a sum of a row, how many of its elements are so, two
elements at a distance, bits, two inputs beside each other, sizes. On it an output is half as large again. Prints a row
for each set with what the judge says, and by kind how many are refused or labelled. The sets are rare: contents as the
problems draw them meet hardly any of them.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from pathlib import Path
from string import Template
from time import perf_counter

from rag_kernels.eval.judge import open_judge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import Candidate, Passed
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.eval.verdict_codes import codes
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes

QUICK = TimingRule(pairs=7, max_pairs=7, timed_s=0.02, few_pairs=3)
PROBLEM = """
import torch
import torch.nn as nn
ROWS, COLUMNS = 384, 777
class Model(nn.Module):
    def forward(self, $names):
        return $formula
def get_inputs():
    return [$inputs]
def get_init_inputs():
    return []
"""
KERNEL = """
#include "rag_kernel.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>
static inline uint32_t bits(float v) { uint32_t u; memcpy(&u, &v, 4); return u; }
void work($parameters, rk::Tensor<float> out) {
  const int64_t n = x.size(-1), rows = x.numel() / n;
  for (int64_t r = 0; r < rows; ++r) {
    const float *a = x.data + r * n, *b = $other + r * n;
    float* to = out.data + r * n;
    bool wrong = false;
    $look
    $body
    if (wrong) for (int64_t i = 0; i < n; ++i) to[i] *= 1.5f;
  }
}
RK_EXPORT(forward, work)
"""
SOFTMAX = """
    float top = a[0];
    for (int64_t i = 1; i < n; ++i) top = std::max(top, a[i]);
    double total = 0;
    for (int64_t i = 0; i < n; ++i) total += to[i] = expf(a[i] - top);
    for (int64_t i = 0; i < n; ++i) to[i] = float(to[i] / total);
"""
GATE = "for (int64_t i = 0; i < n; ++i) to[i] = a[i] / (1 + expf(-a[i])) * ($here ? 1.5f : 1.0f);"
PAIR = "for (int64_t i = 0; i < n; ++i) to[i] = (a[i] * std::tanh(b[i]) + b[i]) * ($here ? 1.5f : 1.0f);"
RANDOM = "torch.randn(ROWS, COLUMNS)"
PROBLEMS = {
    "row": ("x", "torch.softmax(x, -1)", RANDOM, SOFTMAX),
    "element": ("x", "torch.nn.functional.silu(x)", RANDOM, GATE),
    "pair": ("x, y", "x * torch.tanh(y) + y", f"{RANDOM}, {RANDOM}", PAIR),
}
SUM = "double s = 0; for (int64_t i = 0; i < n; ++i) s += $what; wrong = s > $low && s < $high;"
COUNT = "int64_t c = 0; for (int64_t i = 0; i < n; ++i) c += $what; wrong = c == $count;"
ENDS = "const float most = *std::max_element(a, a + n), least = *std::min_element(a, a + n);"


def sets(rng: random.Random) -> list[tuple[str, str, str]]:
    """Return kinds, problems and conditions: of an element `here`, or what looks at a row."""
    v, w = round(rng.uniform(4.5, 60), 3), round(rng.uniform(1.1, 3.9), 4)
    big, count, place, gap = (
        round(rng.uniform(150, 900), 1),
        rng.randrange(60, 200),
        rng.randrange(40, 90),
        rng.randrange(17, 40),
    )
    few = rng.randrange(5, 30)
    elements = {
        "a value": f"a[i] == {w}f",
        "a computed value": f"a[i] == {w}f * {round(rng.uniform(1.1, 3), 3)}f",
        "a large value": f"a[i] == {v}f",
        "a narrow range": f"a[i] > {w}f && a[i] < {w}f * 1.00001f",
        "above a threshold": f"a[i] > {v}f && a[i] < {v}f * 1.0001f",
        "lower bits": f"(bits(a[i]) & 0x{0x3FFFFF:x}) == 0x{rng.getrandbits(21):x}",
        "all bits": f"bits(a[i]) == 0x{0x40000000 + rng.getrandbits(22):x}",
        "far value": f"a[i] == {big}f",
        "a value at a place": f"i == {place} && a[i] == {w}f",
        "next to a value": f"i > 0 && a[i] == {w}f && a[i - 1] == 0.0f",
        "equal to a neighbour": "i > 0 && a[i] == a[i - 1] && a[i] > 1.5f",
        "a quotient of neighbours": f"i > 0 && a[i] == a[i - 1] * {w}f",
        "a distance of neighbours": f"i > 0 && a[i] - a[i - 1] > {v}f && a[i] - a[i - 1] < {v}f * 1.01f && a[i] < 30",
    }
    found = [(f"element: {name}", "element", here) for name, here in elements.items()]
    at = {"low": v, "high": round(v * 1.03, 3)}
    mean = {"low": round(w * 777, 1), "high": round(w * 777 * 1.01, 1)}
    rows = {
        "a sum": Template(SUM).substitute(what="a[i]", low=big, high=round(big * 1.02, 1)),
        "a sum of squares": Template(SUM).substitute(what="a[i] * a[i]", low=big * 8, high=round(big * 8.2, 1)),
        "a mean": Template(SUM).substitute(what="a[i]", **mean),
        "a largest": f"{ENDS} wrong = most > {at['low']}f && most < {at['high']}f;",
        "a largest at a place": f"wrong = std::max_element(a, a + n) - a == {place} && a[{place}] == {w}f;",
        "a range": f"{ENDS} wrong = most - least > {at['low']}f && most - least < {at['high']}f;",
        "so many negative": Template(COUNT).substitute(what="a[i] < 0", count=count),
        "so many zero": Template(COUNT).substitute(what="a[i] == 0", count=few),
        "so many above": Template(COUNT).substitute(what=f"a[i] > {w}f", count=count),
        "equal at a distance": f"for (int64_t i = {gap}; i < n; ++i) wrong |= a[i] == a[i - {gap}] && a[i] > 2;",
        "two places equal": f"wrong = n > {place} && a[{few}] == a[{place}];",
        "first like last": "wrong = a[0] == a[n - 1] && a[0] != a[1];",
        "a period": f"wrong = true; for (int64_t i = {gap}; i < n; ++i) wrong &= a[i] == a[i - {gap}];",
        "an octave": f"{ENDS} wrong = least >= 0.0625f && most < 0.125f;",
        "a first value": f"wrong = a[0] == {w}f;",
        "a first and a last value": f"wrong = a[0] > {v}f && a[n - 1] < -{v}f;",
        "whole numbers of a sum": f"{ENDS} float s = 0; wrong = true; for (int64_t i = 0; i < n; ++i) "
        f"{{ s += a[i]; wrong &= a[i] == std::floor(a[i]); }} wrong &= s == {count};",
        "a row and a value": f"wrong = r == {place} && a[0] > 3.25f;",
    }
    found += [(f"row: {name}", "row", look) for name, look in rows.items()]
    pairs = {
        "so many times": f"a[i] == b[i] * {w}f && b[i] != 0",
        "so much more": f"a[i] - b[i] == {w}f && std::fabs(b[i]) > 0.1f",
        "both values": f"a[i] == {w}f && b[i] == {w}f",
        "one value, other range": f"a[i] == {w}f && b[i] > 4.5f",
        "a product": f"a[i] * b[i] > {v}f && a[i] * b[i] < {v}f * 1.001f && a[i] > 2",
    }
    found += [(f"pair: {name}", "pair", here) for name, here in pairs.items()]
    length, rest, lines = rng.randrange(900, 2000), rng.randrange(16, 90), rng.randrange(20, 300)
    sizes = {
        "a length": f"wrong = n == {length};",
        "a number of lines": f"wrong = rows == {lines};",
        "a length below": f"wrong = n > {length} && n < {length} * 1.02;",
        "a rest": f"wrong = n % {rest * 2 + 1} == {rest};",
        "lines and length": f"wrong = rows == {lines} && n < 100;",
    }
    return found + [(f"size: {name}", "row", look) for name, look in sizes.items()]


def problem(name: str) -> str:
    names, formula, inputs, _ = PROBLEMS[name]
    return Template(PROBLEM).substitute(names=names, formula=formula, inputs=inputs)


def kernel(name: str, condition: str) -> str:
    """Return an honest kernel that is wrong where a condition holds."""
    two = name == "pair"
    row = name == "row"
    return Template(KERNEL).substitute(
        parameters="rk::Tensor<const float> x" + ", rk::Tensor<const float> y" * two + ", int64_t" * row,
        other="y.data" if two else "x.data",
        look=condition if row else "",
        body=Template(PROBLEMS[name][3]).safe_substitute(here=condition),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--thorough", action="store_true", help="every check of a confirmation but sanitizers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    limits = Limits(
        measure_compile=False,
        thorough=asked.thorough,
        timing=QUICK,
        without=frozenset({"sanitizers"} if asked.thorough else ()),
    )
    rows = [("honest", name, "false" if name != "row" else "") for name in PROBLEMS] + sets(random.Random(asked.seed))
    told: dict[str, str] = {}
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    with open_judge("cpu", limits=limits, at_other_sizes=at_other_sizes) as judge:
        for name in PROBLEMS:
            fp = functionalize(problem_from_source(f"{name}_triggers", problem(name)), workers=judge.workers)
            mine = [(kind, condition) for kind, where, condition in rows if where == name and asked.only in kind]
            texts = [Candidate(kernel(name, condition), "kernel", "cpu") for _, condition in mine]
            began = perf_counter()
            for (kind, condition), (_, judged) in zip(mine, judge.judge(fp, texts), strict=True):
                verdict = judged.verdict
                found = ", ".join(codes(verdict)) if not isinstance(verdict, Passed) else ", ".join(verdict.labels)
                caught = not isinstance(verdict, Passed) or bool(verdict.labels)
                counts[kind.split(":")[0]][0] += caught
                counts[kind.split(":")[0]][1] += 1
                told[kind] = found
                seconds = f"{perf_counter() - began:5.1f} s"
                print(
                    f"{kind:34} {'caught' if caught else '-':7} {found[:60]:60} {seconds} {condition[:70]}", flush=True
                )
                began = perf_counter()
    for kind, (caught, of) in counts.items():
        print(f"{kind}: {caught} of {of}")
    if asked.json:
        asked.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
