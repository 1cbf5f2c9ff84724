"""Builds with the real compilers: one graph for a round, a cache by content, logs kept."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from rag_kernels.eval.build import compile as building
from rag_kernels.eval.build.compile import BuildError, Built, build, made_once, toolchain
from rag_kernels.eval.records import MachineError
from rag_kernels.eval.trial.result_class import links_library
from rag_kernels.eval.trial.surroundings import looks_around

SOURCE = """
#include "rag_kernel.h"
void twice(rk::Tensor<const float> x, rk::Tensor<float> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = 2 * x.data[i];
}
RK_EXPORT(forward, twice)
"""


def test_a_round_is_one_graph_and_failures_are_values(tmp_path: Path) -> None:
    broken = SOURCE.replace("2 *", "two *")
    good, bad = build([(SOURCE, "cpu"), (broken, "cpu")], tools=toolchain(), cache=tmp_path)
    assert isinstance(good, Built) and good.library.is_file() and not good.cached
    assert isinstance(bad, BuildError)
    assert "two" in bad.reason and str(tmp_path) not in bad.log


def test_the_same_source_is_built_once_and_a_failure_is_remembered(tmp_path: Path) -> None:
    sources = [(SOURCE, "cpu"), ("not C++", "cpu")]
    build(sources, tools=toolchain(), cache=tmp_path)
    good, bad = build(sources, tools=toolchain(), cache=tmp_path)
    assert isinstance(good, Built) and good.cached
    assert isinstance(bad, BuildError)


def test_the_library_is_an_ordinary_tvm_ffi_one(tmp_path: Path) -> None:
    import torch
    import tvm_ffi

    (built,) = build([(SOURCE, "cpu")], tools=toolchain(), cache=tmp_path)
    assert isinstance(built, Built)
    x, out = torch.randn(10), torch.empty(10)
    forward = tvm_ffi.load_module(str(built.library)).forward
    forward(x, out)
    assert torch.equal(out, 2 * x)
    with pytest.raises(TypeError, match="dtype"):
        forward(x.double(), out)
    with pytest.raises(TypeError, match="number of arguments"):
        forward(x)


def test_kernels_of_a_process_keep_their_variables_apart(tmp_path: Path) -> None:
    """Inline ones too, which the dynamic loader would make one of all libraries."""
    import torch
    import tvm_ffi

    text = SOURCE.replace("void twice", "inline int known = 0;\nvoid twice").replace("  for", "  known += 1;\n  for", 1)
    texts = [text.replace("2 *", f"{scale} * float(known) *") for scale in (2, 3)]
    x, out = torch.randn(10), torch.empty(10)
    for scale, built in zip((2, 3), build([(t, "cpu") for t in texts], tools=toolchain(), cache=tmp_path), strict=True):
        assert isinstance(built, Built)
        tvm_ffi.load_module(str(built.library)).forward(x, out)
        assert torch.equal(out, scale * x), "the second one's own count is one as well"


SLOW = """
constexpr long count() {
  long n = 0;
  for (int i = 0; i < 6; ++i) for (int j = 0; j < 200000; ++j) n += j % 3;
  return n;
}
static_assert(count() > 0);
"""


def test_a_compiler_gets_more_time_for_a_long_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build([(SOURCE, "cpu")], tools=toolchain(), cache=tmp_path)  # what all builds share is there
    monkeypatch.setattr(building, "COMPILE_LIMIT_S", 1)
    monkeypatch.setattr(building, "CHARS_A_SECOND", 100)
    slow = SOURCE + SLOW
    long = slow + "// and so on\n" * 500
    (done,) = build([(long, "cpu")], tools=toolchain(), cache=tmp_path)
    assert isinstance(done, Built), done
    monkeypatch.setattr(building, "CHARS_A_SECOND", 10_000)
    (late,) = build([(slow + "// again\n", "cpu")], tools=toolchain(), cache=tmp_path)
    assert isinstance(late, BuildError) and "not done in time" in late.reason, late


@pytest.mark.skipif(toolchain().nvcc is None, reason="no nvcc here")
def test_cuda_compiles_without_a_gpu(tmp_path: Path) -> None:
    source = "#include <cuda_runtime.h>\n" + SOURCE
    (built,) = build([(source, "cuda")], tools=toolchain(), cache=tmp_path)
    assert isinstance(built, Built), built


def test_no_compiler_is_said_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    toolchain.cache_clear()
    try:
        with pytest.raises(MachineError, match=r"apt-get install g\+\+"):
            toolchain()
    finally:
        toolchain.cache_clear()


def test_a_compiler_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    toolchain.cache_clear()
    try:
        with pytest.raises(MachineError, match="CXX"):
            toolchain()
    finally:
        toolchain.cache_clear()


def test_gold_links_where_it_stands_beside_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies elsewhere is not in the compilers' box."""
    elsewhere = tmp_path / "g++"
    elsewhere.write_text(f'#!/bin/sh\nexec {toolchain().cxx} "$@"\n')
    elsewhere.chmod(0o755)
    monkeypatch.setenv("CXX", str(elsewhere))
    toolchain.cache_clear()
    try:
        without = toolchain()
    finally:
        toolchain.cache_clear()
    monkeypatch.delenv("CXX")
    assert not without.gold
    for tools in (without, toolchain()):
        (built,) = build([(SOURCE, "cpu")], tools=tools, cache=tmp_path)
        assert isinstance(built, Built), built
        assert (b"gold 1." in built.library.read_bytes()) == tools.gold


def test_what_a_kernel_takes_is_its_sources_own(tmp_path: Path) -> None:
    """Some compilers link a runtime of their own into each library; g++ 13's asks for an environment variable."""
    runtime, wrapper = tmp_path / "runtime.cpp", tmp_path / "g++-alone"
    runtime.write_text('#include <cstdlib>\nextern "C" char* tuned() { return std::getenv("GLIBCXX_TUNABLES"); }\n')
    added = f'case "$*" in *-shared*) set -- "$@" {runtime} -fPIC;; esac'
    wrapper.write_text(f'#!/bin/sh\n{added}\nexec {toolchain().cxx} "$@"\n')
    wrapper.chmod(0o755)
    tools = replace(toolchain(), cxx=str(wrapper), version="a compiler that links its runtime into each library")
    text = "#include <cstdlib>\n" + SOURCE
    asks = text.replace("2 *", '(std::getenv("HOME") ? 2 : 3) *')
    for source, found in ((text, ""), (asks, "getenv")):
        (built,) = build([(source, "cpu")], tools=tools, cache=tmp_path)
        assert isinstance(built, Built), built
        nm = ["nm", "-D", "--undefined-only", str(built.library)]
        assert " getenv@" in subprocess.run(nm, capture_output=True, text=True, check=True).stdout
        assert looks_around(built.library, source, on_gpu=False) == found
        assert links_library(built.library, source, on_gpu=False) == ""


def test_what_all_builds_share_is_compiled_once_though_several_begin_together(tmp_path: Path) -> None:
    calls, slow = tmp_path / "calls", tmp_path / "cxx"
    slow.write_text(f'#!/bin/sh\necho called >> {calls}\nsleep 0.2\nfor last; do :; done\n: > "$last"\n')
    slow.chmod(0o755)
    tools = replace(toolchain(), cxx=str(slow), version=str(tmp_path))
    with ThreadPoolExecutor(3) as pool:
        made = {*pool.map(lambda _: made_once("a.h", "", "a.h.gch", "-x c++-header", tools, tmp_path), range(3))}
    assert calls.read_text() == "called\n" and [(folder / "a.h.gch").is_file() for folder in made] == [True]
