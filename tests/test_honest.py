"""The honest corpus: enough kernels, no two alike, all of them compile, and the judge accepts a sample."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from judging import OF_SANITIZERS, SOFTMAX, verdict
from support.compiler_reading import refusals, together
from support.kept import kept_judge

from rag_kernels.eval.build.compile import BuildError, build, toolchain
from rag_kernels.eval.judge import LocalJudge, open_judge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.places import default_cache
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import Passed, bars
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.eval.zoo.honest.corpus import Honest, cuda_kernels, honest_kernels
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.offline.writer import OfflineWriter
from rag_kernels.records import Brief
from rag_kernels.zoo.runner import BLAND

QUICK = Limits(measure_compile=False, timing=TimingRule(pairs=7, max_pairs=7, timed_s=0.02, few_pairs=3))
CPU, CUDA = honest_kernels(), cuda_kernels()
SAMPLED = (  # of the kinds that a hasty judge would mistake for a cheat, and of most families
    "rows: kahan",
    "softmax of rows: online,",
    "cross-entropy: merged halves",
    "matmul: static workspace",
    "linear and relu: three bf16 terms",
    "conv 3 x 3: Winograd",
    "silu of one shape, serial",
    "argmax with ties: tournament",
    "causal attention: flash,",
    "norm before a linear, omp-static",
    "gelu with a fallback",
)


def test_the_corpus_is_large_and_no_two_kernels_are_alike() -> None:
    assert len(CPU) >= 300
    assert len(CUDA) >= 30
    everything = CPU + CUDA
    assert len({h.candidate.source for h in everything}) == len(everything)
    assert len({(h.family, h.name) for h in everything}) == len(everything)
    assert len({h.task_source for h in CPU}) >= 36
    assert all(h.candidate.backend == "cpu" for h in CPU) and all(h.candidate.backend == "cuda" for h in CUDA)


def test_kernels_compile(tmp_path: Path) -> None:
    """Read, not built, as those that are judged below are."""
    texts = [h.candidate.source for h in CPU[::8] if h.candidate.tier == "kernel"]
    assert len(texts) > 30 and refusals(texts, tmp_path) == {}
    assert refusals([f"{texts[0]}\nint wrong = undeclared;"], tmp_path) != {}


@pytest.mark.skipif(toolchain().nvcc is None, reason="no nvcc")
def test_cuda_kernels_compile() -> None:
    text = together([h.candidate.source for h in CUDA[::8] if h.candidate.tier == "kernel"])
    [built] = build([(text, "cuda")], tools=toolchain(), cache=default_cache())
    assert not isinstance(built, BuildError), built.log


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=QUICK) as opened:
        yield opened


def flags(judge: LocalJudge, honest: Honest) -> set[str]:
    """The kinds of labels that an honest kernel should not have."""
    fp = functionalize(problem_from_source("honest", honest.task_source), workers=judge.workers)
    ((_, judged),) = judge.judge(fp, [honest.candidate])
    assert isinstance(judged.verdict, Passed), judged.verdict
    told = {label for label in judged.verdict.labels if bars(label) or not label.startswith("fragile")}
    return {label.split(":")[0] for label in told} - set(honest.allowed_labels) - BLAND


@pytest.mark.parametrize("start", SAMPLED)
def test_an_honest_kernel_passes(judge: LocalJudge, start: str, tmp_path: Path) -> None:
    honest = next(h for h in CPU if h.name.startswith(start))
    found = flags(judge, honest)
    if found == {"fragile"}:  # special values are drawn: it was seen once, and never in 35 sessions after it
        with open_judge("cpu", limits=QUICK, cache_dir=tmp_path) as fresh:
            found = flags(fresh, honest)
    assert found == set()


def test_cuda_kernels_take_the_arguments_of_their_problems(judge: LocalJudge) -> None:
    for source in {h.task_source for h in CUDA}:
        fp = functionalize(problem_from_source("honest", source), workers=judge.workers)
        expected = len(fp.arguments) + len(fp.abi_constants) + len(fp.outputs)
        for honest in CUDA:
            if honest.task_source == source:
                parameters = re.search(r"void run\(([^)]*)\)", honest.candidate.source)
                assert parameters is not None and parameters[1].count(",") + 1 == expected, honest.name


def test_shifts_into_the_sign_are_confirmed(judge: LocalJudge) -> None:
    """Exponentials are made so, in generated kernels too: g++ defines it, and no sanitizer may reject it."""
    fp = functionalize(problem_from_source("softmax", SOFTMAX), workers=judge.workers)
    brief = Brief("run", fp, judge.device, (), (), "", 1, 1)
    candidate = OfflineWriter().propose(brief)[0].candidate
    signed = candidate.source.replace("(uint32_t(rk_int(z)) << 23)", "uint32_t(rk_int(z) << 23)")
    assert signed != candidate.source
    with kept_judge("cpu", limits=OF_SANITIZERS) as sanitizing:
        confirmed = verdict(sanitizing, fp, signed)
    assert isinstance(confirmed, Passed) and any("undefined" in check for check in confirmed.checks), confirmed
