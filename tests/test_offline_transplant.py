"""Archived kernels in place of parts of a problem: what matches, what must not, and the numbers to the end."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_home import quick_limits
from factories import attempt, run
from support import generated_kernels as numbers
from support.generated_kernels import Case, functional, worst_ratio
from support.kept import kept_judge
from support.offline_briefs import brief, judged

from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import ArchivedKernel, Exemplar, KernelFilter
from rag_kernels.eval.build.candidate_form import kernels_text
from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.records import Backend, Candidate, Contract, FunctionalProblem, Passed, ServedTensor
from rag_kernels.ingest.description.embedder import load_embedder
from rag_kernels.ingest.description.pipeline import index_attempt
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.offline.compose import Plan, write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.foreign_kernel import foreign
from rag_kernels.offline.transplant import Transplant, transplants
from rag_kernels.offline.writer import OfflineWriter
from rag_kernels.options import Options
from rag_kernels.records import Shown
from rag_kernels.retrieval.retriever import Retriever
from rag_kernels.run.exemplars import Exemplars
from rag_kernels.run.session import Session

# By hand, and as awkward as honest sources are: a macro, an include between, and names that our own texts have too.
RMS = """#include "rag_kernel.h"
#define ROWS rows
constexpr int64_t BLOCK = 8, TILE = 2;  // tuning parameters
#include <cmath>

void part_0_kernel(rk::Tensor<const float> x, rk::Tensor<const float> weight, int64_t dim, double offset,
                   rk::Tensor<float> out) {
  const int64_t n = x.size(-1), ROWS = x.numel() / n;
  RK_CHECK(dim == -1 && x.is_contiguous(), "the last dimension of whole rows");
  #pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += double(x.data[r * n + i]) * x.data[r * n + i];
    const float scale = float(1 / std::sqrt(sum / n + offset));
    for (int64_t i = 0; i < n; ++i) out.data[r * n + i] = x.data[r * n + i] * scale * weight.data[i];
  }
}
RK_EXPORT(forward, part_0_kernel)
"""
RMS_CUDA = """#include <cuda_runtime.h>
#include "rag_kernel.h"
#if RK_DEVICE
extern "C" __global__ void part_0_0(const float* x, const float* w, float* out, int64_t n, float offset) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[blockIdx.x * n + i] * x[blockIdx.x * n + i];
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    out[blockIdx.x * n + i] = x[blockIdx.x * n + i] * rsqrtf(sum / n + offset) * w[i];
}
#endif
#if RK_HOST
void forward(rk::Tensor<const float> x, rk::Tensor<const float> w, int64_t, double offset, rk::Tensor<float> out) {
  const int64_t n = x.size(-1), rows = x.numel() / n;
  RK_LAUNCH(part_0_0, dim3(unsigned(rows)), dim3(128), 0, out, x.data, w.data, out.data, n, float(offset));
}
RK_EXPORT(forward, forward)
#endif
"""
NORM = "h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + {eps}) * {w}"
PATTERN = Case(f"h = x; return {NORM.format(eps='1e-6', w='y')}", "torch.randn(16, 48)", "torch.rand(48) + 0.5")
MORE = "self.l = nn.Linear(40, 64); self.w = nn.Parameter(torch.rand(64) + 0.5)"


def target(body: str, *, name: str = "target", init: str = MORE) -> FunctionalProblem:
    return functional(name, Case(body, "torch.randn(33, 40)", "torch.randn(64)", init=init))


def normed(eps: str = "1e-6", then: str = "return torch.special.erfcx(F.gelu(h)) + y", norm: str = NORM) -> str:
    return f"h = self.l(x); h = {norm.format(eps=eps, w='self.w')}; {then}"


def archived(
    pattern: FunctionalProblem, source: str = RMS, *, name: str = "k_old", backend: Backend = "cpu", **changes: object
) -> Shown:
    values = {f.name: "" for f in dataclasses.fields(ArchivedKernel)} | {
        "id": name,
        "source": source,
        "tier": "kernel",
        "backend": backend,
        "graph_key": pattern.graph_key,
        "problem_name": "older",
        **changes,
    }
    return Shown(Exemplar(name, 1, 0.9, ("similar",)), ArchivedKernel(**values), pattern)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def rms() -> FunctionalProblem:
    found = functional("rms", PATTERN)
    assert found.abi_constants == (("dim", -1), ("offset", 1e-6))
    return found


def planted(fp: FunctionalProblem, *shown: Shown, backend: Backend = "cpu") -> list[Transplant]:
    return list(transplants(fp, shown, backend))


def calls(made: Transplant) -> list[tuple[object, ...]]:
    return [node.args for node in made.problem.nodes if node.op.startswith("archived.")]


def plan_of(made: Transplant, products: int = 0) -> Plan:
    plan = write(made.problem, CpuParameters(products=products), foreign=made.kernels)
    assert plan is not None and plan.candidate.tier == "composed"
    return plan


@pytest.mark.parametrize(
    "then, library",
    [
        ("return torch.special.erfcx(F.gelu(h)) + y", ("linear", "special_erfcx")),
        ("return F.gelu(h) + y", ("linear",)),
    ],
)
def test_a_transplant_computes_what_the_problem_does(
    rms: FunctionalProblem, then: str, library: tuple[str, ...], tmp_path: Path
) -> None:
    fp = target(normed(then=then))
    (made,) = planted(fp, archived(rms))
    plan = plan_of(made)
    assert plan.library == library and plan.regions and "transplant" not in " ".join(plan.stopped)
    assert "kernels.transplant_0(linear.contiguous(), w, -1, 1e-06, " in plan.candidate.source
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


def test_with_our_own_product_before_it_and_in_two_places(rms: FunctionalProblem, tmp_path: Path) -> None:
    again = NORM.format(eps="1e-6", w="self.w")
    fp = target(normed(then=f"h = torch.tanh(h) + y; return {again}"))
    (made,) = planted(fp, archived(rms))
    plan = plan_of(made, products=2)
    assert plan.library == () and plan.candidate.source.count("kernels.transplant_0(") == 2
    assert plan.candidate.source.count("namespace transplant_0 {") == 1
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


def test_a_number_that_the_kernel_is_told_may_differ(rms: FunctionalProblem, tmp_path: Path) -> None:
    fp = target(normed(eps="0.5"))
    (made,) = planted(fp, archived(rms))
    ((*_, dim, offset),) = calls(made)
    assert (dim, offset) == (-1, 0.5)
    assert worst_ratio(fp, numbers.caller(plan_of(made), fp, tmp_path)) < numbers.RATIO


REFUSED = {
    "a number that it is not told": normed(norm=NORM.replace("pow(2)", "pow(3)")),
    "a number of another type": normed(eps="1"),
    "an internal value that is used elsewhere": (
        "h = self.l(x); m = h.pow(2).mean(-1, keepdim=True) + 1e-6; "
        "return torch.special.erfcx(h * torch.rsqrt(m) * self.w) + y, m"
    ),
    "another operator": normed(norm=NORM.replace("pow(2)", "abs()")),
    "another broadcast": normed(norm=NORM.replace("{w}", "self.w[:1]")),
    "another rank": normed(norm=NORM.replace("{w}", "self.w[None]")),
    "a call that would come before and after others": (
        "h = self.l(x); m = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6); "
        "return m * torch.special.erfcx(m)[0] + y"
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_the_same_is_refused(rms: FunctionalProblem, why: str) -> None:
    assert planted(target(REFUSED[why]), archived(rms)) == []


def test_a_default_that_is_left_out_is_a_number_too() -> None:
    norm = "return F.layer_norm({}, (64,)) * y, torch.special.erfcx(x)"
    small = functional("small", Case("return F.layer_norm(x, (64,)) * y", "torch.randn(9, 64)", "torch.randn(64)"))
    fp = target(norm.format("self.l(x)").replace("(64,)", "(64,), eps=0.1"))
    (made,) = planted(fp, archived(small))
    assert small.abi_constants == (("eps", 1e-5),) and calls(made)[0][-1] == 0.1


def test_outputs_may_be_used_anywhere_but_not_between(tmp_path: Path) -> None:
    """Two results, one of which the other part of the pattern would need after another operator."""
    pair = functional("pair", Case("s = x.exp(); return s, (s * y).sum(1)", "torch.randn(5, 8)", "torch.randn(8)"))
    source = """#include "rag_kernel.h"
#include <cmath>
void run(rk::Tensor<const float> x, rk::Tensor<const float> y, int64_t, rk::Tensor<float> s, rk::Tensor<float> t) {
  for (int64_t r = 0; r < x.size(0); ++r) {
    t.data[r] = 0;
    for (int64_t i = 0; i < x.size(1); ++i) {
      s.data[r * x.size(1) + i] = std::exp(x.data[r * x.size(1) + i]);
      t.data[r] += s.data[r * x.size(1) + i] * y.data[i];
    }
  }
}
RK_EXPORT(forward, run)
"""
    fp = target("h = self.l(x); s = h.exp(); return torch.special.erfcx(s), (s * y).sum(1) * 2 + s.sum(1)")
    (made,) = planted(fp, archived(pair, source))
    plan = plan_of(made)
    assert "planted_0 = (torch.empty(" in plan.candidate.source
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO
    # the factor is made of the other result: one call cannot do both
    both = target("h = self.l(x); s = h.exp(); return (s * torch.special.erfcx(s)[0]).sum(1) + y[0]")
    assert planted(both, archived(pair, source)) == []


def test_either_order_of_a_product_matches(rms: FunctionalProblem) -> None:
    turned = "torch.rsqrt(1e-6 + h.pow(2).mean(1, keepdim=True)) * h"
    (made,) = planted(target(normed(norm=f"{{w}} * ({turned})")), archived(rms))
    assert calls(made)[0][2:] == (-1, 1e-6)  # the same dimension counted from the other end


def test_sizes_may_differ_and_numbers_of_groups_may_not() -> None:
    def grouped(rows: int, size: int, groups: int, more: str = "") -> FunctionalProblem:
        body = f"return x.reshape({rows}, {groups}, {size // groups}).softmax(-1).sum(0) * y.mean(){more}"
        return functional("grouped", Case(body, f"torch.randn({rows}, {size})", "torch.randn(3)"))

    pattern = archived(grouped(5, 24, 4))
    assert len(planted(grouped(7, 80, 4, ", torch.special.erfcx(y)"), pattern)) == 1
    assert planted(grouped(7, 80, 8, ", torch.special.erfcx(y)"), pattern) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"tier": "composed"},
        {"labels": ("shape-specialised",)},
        {"retracted": "wrong"},
        {"source": RMS.replace("forward,", "other,")},
        {"source": RMS + "\n// '''"},
        {"source": RMS + "\nnamespace rk { int more; }\n"},
    ],
)
def test_kernels_that_cannot_serve_are_passed_over(rms: FunctionalProblem, changes: dict[str, object]) -> None:
    fp = target(normed())
    assert planted(fp, archived(rms, **changes)) == []  # type: ignore[arg-type]
    assert planted(fp, archived(rms), backend="cuda") == []
    assert planted(fp, dataclasses.replace(archived(rms), problem=None)) == []
    as_large = functional("rms", dataclasses.replace(PATTERN, x="torch.randn(33, 64)", y="torch.randn(64)"))
    assert len(planted(fp, archived(as_large, labels=("shape-specialised",)))) == 1


def test_a_kernel_goes_where_its_contract_takes_the_tensors(rms: FunctionalProblem) -> None:
    def served(*shape: str, rows: str = "64", dtype: str = "float32", only: tuple[int, ...] = ()) -> Shown:
        tensors = (ServedTensor("x", dtype, shape), ServedTensor("y", dtype, (rows,)))
        held = Contract(tensors, (), "element", only=tuple((("N", n),) for n in only))
        return dataclasses.replace(archived(rms), contract=held)

    fp = target(normed())  # where x is [33, 64]
    for right in (
        served("N", "64"),
        served("N", "K", rows="K"),
        served("N", "2*K", rows="64"),
        served("N", "64", only=(33,)),
    ):
        assert len(planted(fp, right)) == 1
    wrong = [
        served("N", "48", rows="48"),
        served("N", "N", rows="64"),
        served("B", "N", "64"),
        served("N", "K", rows="N"),
    ]
    for never in (*wrong, served("N", "64", dtype="float16"), served("N", "64", only=(16, 32))):
        assert planted(fp, never) == []


def test_the_largest_come_first_then_the_same_without_them(rms: FunctionalProblem) -> None:
    soft = functional("soft", Case("return torch.softmax(x * y, -1)", "torch.randn(9, 8)", "torch.randn(8)"))
    one = functional("one", Case("return x * y", "torch.randn(9, 8)", "torch.randn(8)"))
    text = RMS.replace("int64_t dim, double offset", "int64_t dim")
    again = archived(rms, RMS + "//", name="k_again")
    shown = (archived(soft, text, name="k_soft"), archived(rms, name="k_rms"), again)
    fp = target(normed(then="return torch.special.erfcx(torch.softmax(h * y, -1))"))
    first, second = planted(fp, *shown, archived(one, text, name="k_one"))
    assert [s.kernel.id for s in first.shown] == ["k_rms", "k_soft"]
    assert [s.kernel.id for s in second.shown] == ["k_again", "k_soft"]
    assert first.idea == (
        "Transplant k_rms (archived for older) for pow, mean, add, rsqrt, mul, mul; "
        "k_soft (archived for older) for mul, softmax."
    )


def test_one_place_gets_one_kernel() -> None:
    """A call bears the name of what it replaced, which must not be replaced again."""
    soft = functional("soft", Case("return torch.softmax(x, -1) @ y", "torch.randn(9, 8)", "torch.randn(8, 3)"))
    soft = dataclasses.replace(soft, nodes=soft.nodes[:1], results=("softmax",), arguments=soft.arguments[:1])
    shown = (archived(soft, name="k_one"), archived(soft, RMS + "//", name="k_two"))
    made = planted(target("return torch.special.erfcx(self.l(x).softmax(-1)) + y"), *shown)
    assert [[s.kernel.id for s in m.shown] for m in made] == [["k_one"], ["k_two"]]
    assert [len(calls(m)) for m in made] == [1, 1] and all(plan_of(m) for m in made)


def test_drafts_come_after_the_first_fused_one_and_are_tuned(rms: FunctionalProblem) -> None:
    fp = target(normed())
    shown = (archived(rms),)
    writer = OfflineWriter()
    fused, made = writer.propose(brief(fp, exemplars=shown, width=2))
    assert fused.parents == () and made.parents == (("k_old", "transplanted"),)
    assert made.exemplars == (shown[0].exemplar,) and made.idea.startswith("Transplant k_old (archived for older)")
    attempts = (judged(fp, fused, 1, 100.0), judged(fp, made, 2, 50.0))
    later = writer.propose(brief(fp, exemplars=shown, attempts=attempts, number=2, width=9))
    tuned = [d for d in later if d.idea.startswith("Tune")]
    assert tuned and all("namespace transplant_0" in d.candidate.source for d in tuned)
    assert all(d.parents == ((made.candidate.id, "parent"), ("k_old", "transplanted")) for d in tuned)


def test_a_transplant_without_anything_of_ours_leaves_our_own_to_be_tuned(rms: FunctionalProblem) -> None:
    fp = functional("whole", dataclasses.replace(PATTERN, body=PATTERN.body.replace("1e-6", "0.25")))
    fused, made = OfflineWriter().propose(brief(fp, exemplars=(archived(rms),)))
    assert made.idea.endswith("No loop nest of our own is left.") and "KEEP" not in made.candidate.source
    attempts = (judged(fp, fused, 1, 100.0), judged(fp, made, 2, 50.0))
    (tuned, *_) = OfflineWriter().propose(brief(fp, exemplars=(archived(rms),), attempts=attempts, number=2))
    assert tuned.parents == ((fused.candidate.id, "parent"),) and tuned.candidate.tier == "kernel"


def test_two_kernels_with_the_same_names_live_in_one_text(rms: FunctionalProblem, tmp_path: Path) -> None:
    own = write(
        functional("soft", Case("return torch.softmax(x * y, -1)", "torch.randn(9, 8)", "torch.randn(8)")),
        CpuParameters(),
    )
    assert own is not None
    parts = [foreign(source, f"transplant_{i}", "k") for i, source in enumerate((own.candidate.source, RMS, RMS))]
    numbers.build('#include "rag_kernel.h"\n' + "".join(p.text for p in parts if p), tmp_path)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_cuda_compiles_with_a_split_source_beside_ours(rms: FunctionalProblem, tmp_path: Path) -> None:
    shown = (archived(rms, RMS_CUDA, backend="cuda"),)
    drafts = OfflineWriter().propose(brief(target(normed()), exemplars=shown, backend="cuda"))
    (made,) = [d for d in drafts if d.parents]
    text = kernels_text(made.candidate.source)
    assert text.count("part_0_0(") == 2 and "namespace transplant_0 {" in text
    (tmp_path / "k.cu").write_text(text)
    flags = "-O1 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -c"
    flags += f" -I{numbers.ROOT}/eval/include -I{numbers.FFI}/include"
    done = subprocess.run(
        ["nvcc", *flags.split(), "-o", tmp_path / "k.o", tmp_path / "k.cu"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=quick_limits()) as opened:
        yield opened


def test_from_the_archive_to_a_verdict(rms: FunctionalProblem, judge: LocalJudge) -> None:
    """The kernel is recorded, found by retrieval, matched in the graph, built and judged."""
    archive, embedder = MemoryArchive(), load_embedder()
    archive.start_run(run("before"))
    kept = attempt("before", 1, rms, candidate=Candidate(RMS, "kernel", "cpu"))
    archive.record_attempt(kept)
    index_attempt(archive, kept, embedder)
    options = Options(rounds=1, drafts=2)
    session = Session(
        options=options,
        archive=archive,
        judge=judge,
        functionalize=lambda p: functionalize(p, workers=judge.workers),
        retrieve=Exemplars(
            Retriever(archive, embedder, device_key=judge.device.key), options, judge.device, for_reading=False
        ),
        index=lambda made: index_attempt(archive, made, embedder),
        make_writer=lambda ledger: OfflineWriter(),
    )
    problem = target(normed(), name="bigger").problem
    fused, made, *_ = session.generate(problem, session.new_run("generate", problem))
    assert isinstance(fused.judged.verdict, Passed), fused.judged.verdict
    assert isinstance(made.judged.verdict, Passed), made.judged.verdict
    assert "kernels.transplant_0(" in made.candidate.source
    assert [(e.source, e.relation) for e in made.parents] == [(kept.candidate.id, "transplanted")]
    assert made.candidate.id in {k.id for k in archive.kernels(KernelFilter())}
