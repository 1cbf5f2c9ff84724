"""torch's extensions in the candidate worker: real ninja, real g++."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.kept import kept_judge
from support.relu_module import RELU
from torch.utils import cpp_extension

from rag_kernels.eval.build.torch_extension import lighten
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import Candidate, Passed
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.ingest.functional.functionalize import functionalize

NINJA = """
rule compile
  command = g++ -isystem {torch} -c $in -o $out
build out.o: compile in.cpp
default out.o
"""
MODULE = """import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r'''
#ifndef RAG_KERNELS_LIGHT_EXTENSION
#error the whole header was read
#endif
torch::Tensor run(torch::Tensor x) {
  auto out = torch::empty_like(x);
  const float* from = x.data_ptr<float>();
  float* to = out.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] > 0.0f ? from[i] : 0.0f;
  return out;
}
'''
kernels = load_inline(name="relu", cpp_sources=source, functions=["run"])


class ModelNew(nn.Module):
    def forward(self, x):
        return kernels.run(x)
"""


@pytest.fixture
def lightened() -> Iterator[None]:
    ninja = cpp_extension._run_ninja_build
    lighten()
    yield
    cpp_extension._run_ninja_build = ninja


@pytest.mark.usefixtures("lightened")
@pytest.mark.parametrize("needs", ["Tensor", "Everything"])
def test_what_the_light_header_lacks_is_built_with_the_whole_one(tmp_path: Path, needs: str) -> None:
    """Stand-ins for torch's headers, which take ten seconds to parse."""
    torch = tmp_path / "torch_headers"
    for name, says in {
        "torch/extension.h": "#include <torch/types.h>\nstruct Everything {};",
        "torch/types.h": "#pragma once\nstruct Tensor {};",
        "torch/csrc/Exceptions.h": "",
        "torch/csrc/utils/pybind.h": "#define IS_LIGHT",
    }.items():
        (torch / name).parent.mkdir(parents=True, exist_ok=True)
        (torch / name).write_text(says + "\n")
    (tmp_path / "build.ninja").write_text(NINJA.format(torch=torch))
    source = f"#include <torch/extension.h>\n{needs} known;\n"
    if needs == "Tensor":
        source += "#ifndef IS_LIGHT\n#error the whole header was read\n#endif\n"
    (tmp_path / "in.cpp").write_text(source)
    cpp_extension._run_ninja_build(str(tmp_path), False, "Error building extension")
    assert (tmp_path / "out.o").is_file()


@pytest.mark.usefixtures("lightened")
def test_extensions_are_built_in_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPATH", "own")

    def build(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "build.ninja").write_text(NINJA.format(torch=tmp_path))
        (folder / "in.cpp").write_text(f"int known = {number};\n")
        cpp_extension._run_ninja_build(str(folder), False, "Error building extension")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(build, range(16)))
    assert os.environ["CPATH"] == "own"


@pytest.mark.usefixtures("lightened")
def test_what_builds_with_neither_says_why(tmp_path: Path) -> None:
    (tmp_path / "build.ninja").write_text(NINJA.format(torch=tmp_path))
    (tmp_path / "in.cpp").write_text("int known = unheard_of;\n")
    with pytest.raises(RuntimeError, match="unheard_of"):
        cpp_extension._run_ninja_build(str(tmp_path), False, "Error building extension")


def test_a_module_that_builds_its_extension_is_judged(tmp_path: Path) -> None:
    limits = Limits(measure_compile=False, timing=TimingRule(pairs=8, max_pairs=8, timed_s=0.05))
    with kept_judge("cpu", limits=limits) as judge:
        problem = functionalize(problem_from_source("relu", RELU), workers=judge.workers)
        ((_, judged),) = judge.judge(problem, [Candidate(MODULE, "module", "cpu")])
    assert isinstance(judged.verdict, Passed), judged.verdict
