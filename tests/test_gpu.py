"""The judge where there is a GPU; elsewhere these tests are left out, and nothing is verified on one by `make test`.

    python -m pytest --noconftest tests/test_gpu.py

It needs torch with CUDA, nvcc, ninja and apache-tvm-ffi; archive, app and LLM are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.deep_cases import BOTTLENECKS, MANY_SUMS, RESIDUAL
from support.generated_kernels import Case, functional

from rag_kernels.eval.judge import LocalJudge, open_judge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine.device import gpu_name
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import Candidate, FunctionalProblem, Passed, Rejected, Verdict, Wrong
from rag_kernels.eval.sessions.reference_times import ReferenceTimes
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.eval.trial.activity_checks import READS_EARLY
from rag_kernels.eval.zoo.exploits.cuda_timing import SPECIMENS
from rag_kernels.eval.zoo.honest.corpus import cuda_kernels
from rag_kernels.eval.zoo.tasks import TASKS
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes
from rag_kernels.offline.compose import write
from rag_kernels.offline.cuda.function import CudaParameters

pytestmark = pytest.mark.skipif(gpu_name() is None, reason="there is no GPU")

SOFTMAX = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x * 0.37, -1)


def get_inputs():
    return [torch.rand(ROWS, 1024)]


def get_init_inputs():
    return []
"""
MODULES = {
    "plain": "        return torch.softmax(x * 0.37, -1)",
    "graph": """        if not hasattr(self, "graph"):
            self.x, self.graph = x.clone(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.y = torch.softmax(self.x * 0.37, -1)
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()""",
}
DIES = "x = x[torch.where(x.abs().max() > 50, 1 << 40, 0) + torch.arange(x.shape[0], device=x.device)]\n        return "

OWN_KERNEL = """import ctypes
import subprocess
import torch
import torch.nn as nn

SOURCE = r'''
__global__ void row_softmax(const float* x, float* kept, float* y, int n) {
  __shared__ float parts[256];
  const float* row = x + blockIdx.x * (long)n;
  float top = -INFINITY, sum = 0;
  for (int i = 0; i < n; ++i) top = fmaxf(top, row[i] * 0.37f);
  for (int i = 0; i < n; ++i) sum += expf(row[i] * 0.37f - top);
  BEFORE
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * (long)n + i] = expf(row[i] * 0.37f - top) / sum;
}
extern "C" void run(const float* x, float* kept, float* y, int rows, int n) {
  row_softmax<<<rows, 256>>>(x, kept, y, n);
}
'''
with open("candidate.cu", "w") as file:
    file.write(SOURCE)
nvcc = "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc) -O2 -lineinfo -arch=native -shared -Xcompiler -fPIC"
subprocess.run(nvcc + " -o own.so candidate.cu", shell=True, check=True)
run = ctypes.CDLL("./own.so").run
run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int] * 2


class ModelNew(nn.Module):
    def forward(self, x):
        y, kept = torch.empty_like(x), torch.ones(x.shape[1], device=x.device)
        run(x.data_ptr(), kept.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1])
        return y
"""
KERNEL_ERRORS = {  # none changes a number
    "": "",
    "memcheck": "if (kept[n] > 1e30f) sum = 1;",
    "racecheck": "parts[threadIdx.x] = 1; if (parts[threadIdx.x ^ 64] == 7.0f) sum = 1;",
}


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalJudge]:
    limits = Limits(measure_compile=False, timing=TimingRule(pairs=7, few_pairs=3))
    with open_judge("cuda", limits=limits, cache_dir=tmp_path_factory.mktemp("cache")) as opened:
        yield opened


def softmax(judge: LocalJudge, rows: int, dies: bool = False) -> tuple[FunctionalProblem, list[Candidate]]:
    """The problem, and candidates for it that are alike but for a parameter."""
    source = SOFTMAX.replace("ROWS", str(rows))
    fp = functionalize(problem_from_source("softmax", source), workers=judge.workers)
    plans = [write(fp, CudaParameters(threads=threads)) for threads in (128, 256, 512)]
    if dies:  # on spikes, by an assertion on the device, which leaves a context that is good for nothing
        fp = replace(fp, problem=problem_from_source("dies", source.replace("return ", DIES, 1)))
    return fp, [plan.candidate for plan in plans if plan is not None]


def verdicts(judge: LocalJudge, fp: FunctionalProblem, candidates: list[Candidate]) -> list[Verdict]:
    return [judged.verdict for _, judged in judge.judge(fp, candidates)]


@pytest.mark.parametrize("rows", [64, 300_000])
def test_candidates_pass_one_after_the_other(judge: LocalJudge, rows: int) -> None:
    """Of 1.2 GB outputs are too large to be kept until the race is over."""
    found = verdicts(judge, *softmax(judge, rows))
    assert len(found) == 3 and all(isinstance(v, Passed) and v.precision == "strict" for v in found), found


def test_what_an_earlier_candidate_handed_over_helps_no_later_one(judge: LocalJudge) -> None:
    """Right ones surround one that writes nothing; all go through the same memory."""
    fp, (right, *_) = softmax(judge, 64)
    text = right.source.partition("forward_kernel(")
    body = text[2].partition("{")
    idle = replace(right, source=f"{text[0]}forward_kernel({body[0]}{{\n  return;{body[2]}")
    found = verdicts(judge, fp, [right, idle, replace(right, source=right.source + "// again\n")])
    assert [type(v) for v in found] == [Passed, Wrong, Passed], found


@pytest.mark.parametrize("name", ["kept", "in L2"])
def test_weights_may_be_read_before_the_wait_which_is_told(judge: LocalJudge, name: str) -> None:
    """No kernel before a forward writes them; what is fetched into L2 is the same after the wait."""
    (kernel,) = (k for k in cuda_kernels() if k.name == f"linear: weights {name} before the wait")
    fp = functionalize(problem_from_source("linear", kernel.task_source), workers=judge.workers)
    (found,) = verdicts(judge, fp, [kernel.candidate])
    assert isinstance(found, Passed) and (READS_EARLY in found.notes) is (name == "kept"), found


@pytest.mark.parametrize("idea", ["one input of two", "outputs written while"])
def test_inputs_and_outputs_wait(judge: LocalJudge, idea: str) -> None:
    (specimen,) = (s for s in SPECIMENS if s.idea.startswith(idea))
    fp = functionalize(problem_from_source("task", TASKS[specimen.task].problem), workers=judge.workers)
    *wrong, twin = verdicts(judge, fp, [*specimen.candidates(), specimen.honest])
    assert isinstance(twin, Passed), twin
    assert {f"rejected:{v.code}" for v in wrong if isinstance(v, Rejected)} == set(specimen.expect), wrong
    assert all(isinstance(v, Rejected) for v in wrong)


@pytest.mark.parametrize("body", MODULES)
def test_a_module_is_called_on_after_the_profiler_has_looked_at_it(judge: LocalJudge, body: str) -> None:
    """The profiler is set up before the first call, and lets go before those that are timed."""
    fp, _ = softmax(judge, 2048)
    head = "import torch\nimport torch.nn as nn\n\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n"
    (found,) = verdicts(judge, fp, [Candidate(f"{head}{MODULES[body]}\n", "module", "cuda")])
    assert isinstance(found, Passed) and found.label != "custom kernel", found


def test_a_burst_of_a_module_has_its_parameters_once(judge: LocalJudge) -> None:
    inputs = "torch.randn(96, 64)", "torch.randn(1)"
    fp = functional("linear", Case("return torch.relu(self.l(x)) + y", *inputs, init="self.l = nn.Linear(64, 48)"))
    text = fp.problem.source.replace("class Model(", "class ModelNew(").replace("super(Model", "super(ModelNew")
    (found,) = verdicts(judge, fp, [Candidate(text, "module", "cuda")])
    assert isinstance(found, Passed) and "burst-timed" in found.labels, found


def test_a_reference_that_an_input_kills_is_started_again(judge: LocalJudge) -> None:
    fp, candidates = softmax(judge, 64, dies=True)
    with judge.sessions.new(fp) as session:
        assert session.specials.draw("spikes") is None and session.restarts == 1
        assert ReferenceTimes(session).call("eager") > 0
    found = verdicts(judge, fp, candidates)
    assert len(found) == 3 and all(isinstance(v, Passed) for v in found), found


@pytest.mark.parametrize("case", [RESIDUAL, MANY_SUMS, BOTTLENECKS], ids=["residual", "sums", "bottlenecks"])
def test_deep_networks_are_right(judge: LocalJudge, case: Case) -> None:
    """Kernels that are launched in several places, and one of 1024 threads with many sums."""
    fp = functional("deep", case)
    plan = write(fp, CudaParameters(products=2))
    assert plan is not None and plan.candidate.tier == "kernel"
    (found,) = verdicts(judge, fp, [plan.candidate])
    assert isinstance(found, Passed), found


def test_memory_is_given_away_and_opened_again(judge: LocalJudge) -> None:
    """What the doctor asks."""
    assert judge.workers.call("rag_kernels.eval.children.gpu.shared_memory:shared", 1, deadline_s=60) >= 1


@pytest.mark.parametrize("tool", KERNEL_ERRORS)
def test_the_kernels_of_a_module_run_under_sanitizers(tmp_path: Path, tool: str) -> None:
    limits = Limits(measure_compile=False, thorough=True, timing=TimingRule(pairs=7, few_pairs=3))
    source = OWN_KERNEL.replace("BEFORE", KERNEL_ERRORS[tool])
    with open_judge("cuda", limits=limits, cache_dir=tmp_path, at_other_sizes=at_other_sizes) as judge:
        fp = functionalize(problem_from_source("softmax", SOFTMAX.replace("ROWS", "512")), workers=judge.workers)
        verdict = verdicts(judge, fp, [Candidate(source, "module", "cuda")])[0]
    if tool:
        assert isinstance(verdict, Rejected) and verdict.code == "sanitizer" and tool in verdict.reason, verdict
    else:
        assert isinstance(verdict, Passed), verdict
        assert "sanitizers: memcheck, racecheck, initcheck, synccheck" in verdict.checks, verdict
