"""ThreadSanitizer on an OpenMP runtime of our own: races are found on one core, and what OpenMP orders is no race."""

import base64
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rag_kernels.eval.build.compile import BuildError, Built, build, checked, toolchain
from rag_kernels.eval.build.products import can_show_races
from rag_kernels.eval.instruments import sanitizers
from rag_kernels.eval.process.sandbox import Sandbox
from rag_kernels.eval.process.workers import Workers

SIZE = 1003
HEAD = """#include "rag_kernel.h"
#include <mutex>
#include <omp.h>
#include <sys/personality.h>
#include <thread>
#define MUST(condition) if (!(condition)) std::abort()
"""
LINE = 10  # of the first line of a body
KERNEL = (
    HEAD
    + """void kernel(rk::Tensor<const float> input, rk::Tensor<float> output) {
  const float* x = input.data; float* out = output.data; const int64_t n = input.numel();
  double total = 0; int64_t count = 0;
BODY
  out[0] = float(total + count);
}
RK_EXPORT(forward, kernel)
"""
)
ONES = "for (int64_t i = 0; i < n; ++i) out[i] = 0;\n"  # what follows adds one to each
RACES = {
    "a sum": "#pragma omp parallel for\nfor (int64_t i = 0; i < n; ++i) total += x[i];",
    "a dynamic loop": "#pragma omp parallel for schedule(dynamic, 64)\nfor (int64_t i = 0; i < n; ++i) ++count;",
    "an equal value": "#pragma omp parallel for num_threads(3)\nfor (int64_t i = 0; i < n; ++i) count = n;",
    "no barrier": (
        "#pragma omp parallel\n{\n#pragma omp for nowait\nfor (int64_t i = 0; i < n; ++i) out[i] = x[i];\n"
        "#pragma omp for\nfor (int64_t i = 1; i < n; ++i) out[n - i] += 1;\n}"
    ),
    "no taskwait": (
        "#pragma omp parallel\n#pragma omp single\n{\n#pragma omp task shared(count)\ncount = n;\n"
        "#pragma omp task shared(count)\ncount += 1;\n}"
    ),
    "two locks for one thing": (
        "#pragma omp parallel sections num_threads(2)\n{\n"
        "#pragma omp section\n{\n#pragma omp critical(a)\n++count;\n}\n"
        "#pragma omp section\n{\n#pragma omp critical(b)\n++count;\n}\n}"
    ),
    "threads": "std::thread other([&] { total = 1; }); total += x[0]; other.join();",
}
HONEST = {
    "reductions, atomics and locks": """
      float sum = 0; int64_t most = 0, other = 0; omp_lock_t held; omp_init_lock(&held);
      #pragma omp parallel for reduction(+ : sum)
      for (int64_t i = 0; i < n; ++i) sum += 1;
      #pragma omp parallel for reduction(+ : total, count) reduction(max : most)
      for (int64_t i = 0; i < n; ++i) { total += 1; ++count; most = std::max(most, i); }
      MUST(sum == n && total == n && count == n && most == n - 1);
      #pragma omp parallel
      {
        #pragma omp atomic
        total += 1;
        #pragma omp critical
        count += 1;
        #pragma omp critical(named)
        other += 1;
        omp_set_lock(&held); most += 1; omp_unset_lock(&held);
      }
      MUST(total == n + 4 && count == n + 4 && other == 4 && most == n + 3);
      float lanes[8] = {};
      #pragma omp parallel for simd reduction(+ : lanes[:8])
      for (int64_t i = 0; i < n; ++i) lanes[i % 8] += 1;
      MUST(lanes[0] == (n + 7) / 8);""",
    "schedules and barriers": "out[n - 1] = 0; "
    + ONES
    + """
      int64_t last = 0;
      #pragma omp parallel num_threads(3)
      {
        #pragma omp for schedule(dynamic, 4)
        for (int64_t i = 0; i < n; ++i) out[i] += 1;
        #pragma omp for schedule(guided)
        for (int i = int(n) - 1; i >= 0; --i) out[i] += 1;
        #pragma omp for schedule(runtime)
        for (size_t i = n; i > 0; --i) out[i - 1] += 1;
        #pragma omp for schedule(static, 5) nowait
        for (int64_t i = 0; i < n; ++i) out[i] += 1;
        #pragma omp barrier
        if (omp_get_thread_num() == 1) out[n - 1] -= 1;
        #pragma omp barrier
        #pragma omp for schedule(dynamic, 7) lastprivate(last)
        for (int64_t i = 0; i < n; i += 2) { out[n - 1 - i] += 1; last = i; }
        float one = 0;
        #pragma omp single copyprivate(one)
        one = out[0];
        if (omp_get_thread_num() == 2) out[0] += one;
      }
      MUST(last == n - 1 && out[1] == 4 && out[n - 1] == 4 && out[0] == 10);
      #pragma omp parallel for collapse(2) schedule(dynamic)
      for (int i = 0; i < 10; ++i) for (int j = 0; j < 100; ++j) out[i * 100 + j] = 1;
      #pragma omp parallel sections
      {
        #pragma omp section
        out[0] = 2;
        #pragma omp section
        out[1] = 2;
      }
      MUST(out[0] + out[1] + out[2] == 5);""",
    "tasks": ONES
    + """
      double parts[4] = {};
      #pragma omp parallel num_threads(4)
      #pragma omp single
      {
        for (int64_t i = 0; i < 40; ++i) {
          #pragma omp task firstprivate(i)
          { out[i] += 1; parts[omp_get_thread_num()] += 1; }
        }
        #pragma omp taskwait
        for (int64_t i = 0; i < 40; ++i) out[i] += 1;
        #pragma omp taskgroup
        {
          #pragma omp task
          {
            #pragma omp task
            out[50] = 7;
          }
        }
        out[50] += 1;
        #pragma omp taskloop grainsize(50)
        for (int64_t i = 100; i < n; ++i) out[i] += 1;
        #pragma omp task depend(out : count) shared(count)
        count = n;
        #pragma omp task depend(inout : count) shared(count)
        count += 1;
      }
      MUST(parts[0] + parts[1] + parts[2] + parts[3] == 40 && out[39] == 2 && out[50] == 8 && out[n - 1] == 1);
      MUST(count == n + 1);""",
    "threads": """
      std::mutex held;
      std::thread others[3];
      for (int64_t t = 0; t < 3; ++t) others[t] = std::thread([&, t] {
        #pragma omp parallel for num_threads(2)
        for (int64_t i = t; i < n; i += 3) out[i] = x[i];
        std::lock_guard<std::mutex> guard(held);
        total += 1;
      });
      for (std::thread& one : others) one.join();
      MUST(total == 3);""",
}
VECTOR = struct.pack("<5q", 2, 32, 1, SIZE, 4 * SIZE)
# One call on a vector of ones, in the form that `rag_driver.cpp` reads.
ONES_CALL = base64.b64encode(
    struct.pack("<q", 3) + VECTOR + struct.pack("<f", 1.0) * SIZE + struct.pack("<q", 4) + VECTOR
).decode()
LAYOUT = "MUST(personality(0xffffffff) & ADDR_NO_RANDOMIZE);"


def source(body: str) -> str:
    return KERNEL.replace("BODY", body)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All of them in one graph; "ok: " before the names of the honest ones."""
    bodies = RACES | {f"ok: {name}": body for name, body in HONEST.items()} | {"layout": LAYOUT}
    cache = tmp_path_factory.mktemp("cache")
    built = build([(checked(source(b)), "cpu-raced") for b in bodies.values()], tools=toolchain(), cache=cache)
    assert all(isinstance(one, Built) for one in built), built
    return {name: one.library for name, one in zip(bodies, built, strict=True) if isinstance(one, Built)}


@pytest.fixture(scope="module")
def one_core(programs: dict[str, Path]) -> Iterator[Workers]:
    """A sandbox on a single core, where threads hardly ever meet."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    workers = Workers(sandbox=Sandbox((programs["threads"].parent.parent,)))
    os.sched_setaffinity(0, cores)
    with workers:
        yield workers


def run(workers: Workers, program: Path) -> Any:
    payload = {"checked": "", "raced": str(program), "gpu": False, "calls": [ONES_CALL]}
    (report,) = workers.call("rag_kernels.eval.instruments.sanitizers:run", payload, deadline_s=100)["reports"]
    return report


@pytest.mark.parametrize("name", RACES)
def test_a_race_is_found_on_one_core(one_core: Workers, programs: dict[str, Path], name: str) -> None:
    report = run(one_core, programs[name])
    ((tool, what),) = report["found"]
    lines = range(LINE, LINE + RACES[name].count("\n") + 1)
    assert tool == "thread" and what in {f"data race, line {line}" for line in lines}, report


@pytest.mark.parametrize("name", HONEST)
def test_what_openmp_orders_is_no_race(one_core: Workers, programs: dict[str, Path], name: str) -> None:
    assert run(one_core, programs[f"ok: {name}"]) == {"ran": ("thread",), "found": (), "left_out": ()}


@pytest.mark.skipif(
    shutil.which("setarch") is None or subprocess.run(["setarch", "-R", "true"], check=False).returncode != 0,
    reason="the layout of programs cannot be fixed here",
)
def test_a_randomized_layout_is_not_in_the_way(one_core: Workers, programs: dict[str, Path]) -> None:
    assert run(one_core, programs["layout"])["ran"] == ("thread",)


VECTORS = """
  #pragma omp parallel for
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 v = _mm256_add_ps(_mm256_loadu_ps(x + i / 8), _mm256_maskload_ps(out + i, _mm256_set1_epi32(-1)));
    STORE
  }"""
BACK = {
    "puts back": "_mm256_maskstore_ps(out + i, _mm256_set1_epi32(-1), v);",
    "leaves": "float some[8]; _mm256_storeu_ps(some, v); std::copy(some, some + std::min<int64_t>(8, n - i), out + i);",
}


def test_what_is_put_back_behind_an_output_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of 1003 floats is a whole vector of eight and a part of one: each store there is looked at."""
    monkeypatch.chdir(tmp_path)
    texts = ["#include <immintrin.h>\n" + source(VECTORS.replace("STORE", store)) for store in BACK.values()]
    built = build([(checked(text), "cpu-checked") for text in texts], tools=toolchain(), cache=tmp_path)
    found = []
    for one in built:
        assert isinstance(one, Built), one
        payload = {"checked": str(one.library), "raced": "", "gpu": False, "calls": [ONES_CALL]}
        found.append([what for _, what in sanitizers.run(payload)["reports"][0]["found"]])
    assert found == [["what lies behind an output is read, and put back as it was"], []]


def test_a_source_that_needs_more_than_the_runtime_has_does_not_link(tmp_path: Path) -> None:
    loop = "#pragma omp parallel for ordered\nfor (int i = 0; i < 9; ++i) {\n"
    ordered = source(f"{loop}#pragma omp ordered\n++count;\n}}")
    fence = source("std::atomic_thread_fence(std::memory_order_seq_cst);")
    texts = [checked(ordered), checked("#include <atomic>\n" + fence)]
    results = build([(text, "cpu-raced") for text in texts], tools=toolchain(), cache=tmp_path)
    assert [isinstance(result, BuildError) for result in results] == [True, True]
    assert "GOMP_loop_ordered" in results[0].log and "atomic_thread_fence" in results[1].log


def test_orders_that_the_tool_does_not_see_are_recognised() -> None:
    assert can_show_races(source(HONEST["tasks"]))
    assert not can_show_races(source("#pragma omp flush\n"))
    assert not can_show_races(source('asm volatile("mfence" ::: "memory");'))


def test_a_checked_program_that_does_not_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sanitizers, "RUN_LIMIT_S", 1.0)
    payload = {"checked": str(program), "raced": "", "gpu": False, "calls": [base64.b64encode(b"").decode()]}
    (report,) = sanitizers.run(payload)["reports"]
    assert report["found"] == [["address and undefined-behaviour", "it was not done after 1 s"]]


STANDS_ALONE = """#!/bin/sh
case "$ASAN_OPTIONS" in *detect_stack_use_after_return=0*) AGAIN ;; esac
echo 'File "kernel0.cpp", line 18, in load512' >&2
SAID
exit 1
"""


@pytest.mark.parametrize(
    ("again", "said", "found"),
    [
        ("exit 0", "", ""),
        (":", "", "a segmentation fault, line 18 of load512"),
        (
            "exit 0",
            "echo 'ERROR: AddressSanitizer: heap-buffer-overflow' >&2",
            "heap-buffer-overflow, line 18 of load512",
        ),
    ],
)
def test_what_only_the_tools_own_stacks_make_fault_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str, said: str, found: str
) -> None:
    program = tmp_path / "checked"
    program.write_text(STANDS_ALONE.replace("AGAIN", again).replace("SAID", said))
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    report = sanitizers.run({"gpu": False, "checked": str(program), "raced": "", "calls": [""]})["reports"][0]
    assert [what for _, what in report["found"]] == [found] * bool(found)
