"""What the judge finds beyond wrong numbers on ordinary inputs: precision, special values, sizes, memory, races."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from judging import THOROUGH, altered, verdict
from support.generated_kernels import Case, functional
from support.kept import kept_judge

from rag_kernels.eval import codec
from rag_kernels.eval.admission_records import Examination
from rag_kernels.eval.buffers.parallel_copy import CHUNK, copied, copy_bytes
from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.eval.build.products import Library
from rag_kernels.eval.children.bound_module import BoundModule
from rag_kernels.eval.children.right_answers import RightAnswers
from rag_kernels.eval.input_kinds import SEVEN_BITS
from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine.device import device_file, read_device
from rag_kernels.eval.machine.device_lock import DeviceLock
from rag_kernels.eval.messages.protocol import CompileAhead
from rag_kernels.eval.numerics.exactness_probe import one_hot, targets
from rag_kernels.eval.numerics.rounding_noise import Perturbed, through, to_tf32
from rag_kernels.eval.problem import load_module, problem_from_source
from rag_kernels.eval.process.workers import WorkerFailed
from rag_kernels.eval.records import Candidate, Crashed, FunctionalProblem, Passed
from rag_kernels.eval.sessions.admission import admit
from rag_kernels.eval.sessions.candidate_session import LoadedCandidate
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.sessions.reference_times import ReferenceTimes
from rag_kernels.eval.timing.looks import checked_pairs
from rag_kernels.eval.timing.race import Race, Times
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.eval.trial.result_class import fuses_nothing
from rag_kernels.eval.verdict_codes import codes
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
LINEAR = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 96)

    def forward(self, x):
        return torch.relu(self.linear(x))

def get_inputs():
    return [torch.rand(64, 256)]

def get_init_inputs():
    return []
"""
)
SOFTMAX = (
    HEAD
    + """
class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)

def get_inputs():
    return [torch.rand(128, 256)]

def get_init_inputs():
    return []
"""
)
LINEAR_KERNEL = r"""
#include "rag_kernel.h"
#include <cstring>
static inline float cast(float v) { CAST; return v; }
void linear(rk::Tensor<const float> x, rk::Tensor<const float> w, rk::Tensor<const float> b, rk::Tensor<float> out) {
  const int64_t M = x.size(0), K = x.size(1), N = w.size(0);
  #pragma omp parallel for
  for (int64_t i = 0; i < M; ++i)
    for (int64_t j = 0; j < N; ++j) {
      float s = 0;
      for (int64_t k = 0; k < K; ++k) s += cast(x.data[i * K + k]) * cast(w.data[j * K + k]);
      out.data[i * N + j] = s + b.data[j] > 0 ? s + b.data[j] : 0;
    }
}
RK_EXPORT(forward, linear)
"""
ROUND = "unsigned u; std::memcpy(&u, &v, 4); u = (u + {half}) & ~{mask}; std::memcpy(&v, &u, 4)"
DECOY = """
KERNELS = r'''
#include "rag_kernel.h"
void junk(rk::Tensor<const float> x, rk::Tensor<float> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = x.data[i] > 0 ? x.data[i] : 0;
}
RK_EXPORT(junk, junk)
'''

def forward(x, *, dim=-1):
    out = torch.empty_like(x)
    kernels.junk(x, out)
    return torch.softmax(x, -1)
"""
COMPOSED_COPY = """\
KERNELS = r'''
#include "rag_kernel.h"
void half(rk::Tensor<const float> x, rk::Tensor<float> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = x.data[i] * 0.5f;
}
RK_EXPORT(half, half)
'''


def forward(x, *, dim):
    out = torch.empty((x.size(0), x.size(1)))
    kernels.half(GIVEN, out)
    return torch.softmax(torch.add(out, out), dim)
"""
LIBRARY = (
    HEAD + "class ModelNew(nn.Module):\n    def forward(self, x):\n"
    "        e = torch.exp(x - x.amax(-1, keepdim=True))\n"
    "        return e / e.sum(-1, keepdim=True)\n"
)


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=THOROUGH, at_other_sizes=at_other_sizes) as opened:
        yield opened


@pytest.fixture(scope="module")
def linear(judge: LocalJudge) -> FunctionalProblem:
    return functionalize(problem_from_source("linear_relu", LINEAR), workers=judge.workers)


@pytest.fixture(scope="module")
def softmax(judge: LocalJudge) -> FunctionalProblem:
    return functionalize(problem_from_source("softmax", SOFTMAX), workers=judge.workers)


def test_an_honest_product_is_strict(judge: LocalJudge, linear: FunctionalProblem) -> None:
    passed = verdict(judge, linear, LINEAR_KERNEL.replace("CAST", ""))
    assert isinstance(passed, Passed), passed
    assert passed.precision == "strict" and passed.claims_speed
    assert passed.labels == ("finite-only",)  # its ReLU makes 0 of NaN, where PyTorch's leaves it
    assert {"exactness probe", "odd sizes", "10 repeats", "idle after the call"} <= set(passed.checks)
    assert "sanitizers: address, undefined-behaviour, thread" in passed.checks
    assert passed.measurement.cold and passed.measurement.speedup_warm is not None


@pytest.mark.parametrize(("half", "mask", "name"), [("0x1000", "0x1fffu", "tf32"), ("0x8000", "0xffffu", "bf16")])
def test_a_product_in_lower_precision_is_named(
    judge: LocalJudge, linear: FunctionalProblem, half: str, mask: str, name: str
) -> None:
    rejected = verdict(judge, linear, LINEAR_KERNEL.replace("CAST", ROUND.format(half=half, mask=mask)))
    assert "rejected:lower_precision" in codes(rejected), rejected
    assert name in rejected.reason  # type: ignore[union-attr]


def test_a_lower_precision_passes_where_it_is_asked_for(linear: FunctionalProblem) -> None:
    limits = replace(THOROUGH, precision="any")
    source = LINEAR_KERNEL.replace("CAST", ROUND.format(half="0x8000", mask="0xffffu"))
    with kept_judge("cpu", limits=limits, at_other_sizes=at_other_sizes) as lenient:
        passed = verdict(lenient, linear, source)
    assert isinstance(passed, Passed) and passed.precision == "bf16" and not passed.claims_speed, passed
    assert "shape-specialised" not in passed.labels


CHAIN = (
    HEAD
    + """
class Model(nn.Module):
    def forward(self, x, y, z):
        return torch.tanh(x @ y) @ z

def get_inputs():
    return [torch.randn(48, 512), torch.randn(512, 64), torch.randn(64, 40)]

def get_init_inputs():
    return []
"""
)
CHAIN_KERNEL = r"""
#include "rag_kernel.h"
#include <cmath>
#include <cstring>
#include <vector>
typedef rk::Tensor<const float> In;
static inline float cast(float v) { CAST; return v; }
static void times(const float* a, const float* b, float* c, int64_t M, int64_t K, int64_t N) {
  for (int64_t i = 0; i < M; ++i)
    for (int64_t j = 0; j < N; ++j) {
      float s = 0;
      for (int64_t k = 0; k < K; ++k) s += cast(a[i * K + k]) * cast(b[k * N + j]);
      c[i * N + j] = s;
    }
}
void chain(In x, In y, In z, rk::Tensor<float> out) {
  std::vector<float> inner(x.size(0) * y.size(1));
  times(x.data, y.data, inner.data(), x.size(0), x.size(1), y.size(1));
  for (float& v : inner) v = std::tanh(v);
  times(inner.data(), z.data, out.data, x.size(0), y.size(1), z.size(1));
}
RK_EXPORT(forward, chain)
"""


def test_tf32_is_no_fault_where_it_is_allowed() -> None:
    """Neither at other sizes, nor on special values, nor behind another product; less than that is one."""
    limits = replace(THOROUGH, precision="tf32")
    with kept_judge("cpu", limits=limits, at_other_sizes=at_other_sizes) as lenient:
        chain = functionalize(problem_from_source("chain", CHAIN), workers=lenient.workers)
        tf32, less = (
            verdict(lenient, chain, CHAIN_KERNEL.replace("CAST", ROUND.format(half=half, mask=mask)))
            for half, mask in (("0x1000", "0x1fffu"), ("0x8000", "0xffffu"))
        )
    assert isinstance(tf32, Passed) and tf32.precision == "tf32" and not tf32.claims_speed, tf32
    assert not [label for label in tf32.labels if label.startswith("fragile") or label == "shape-specialised"], tf32
    assert not isinstance(less, Passed), less


def test_raw_pointers_of_another_layout_are_labelled(judge: LocalJudge, softmax: FunctionalProblem) -> None:
    blind = verdict(judge, softmax, COMPOSED_COPY.replace("GIVEN", "x"), "composed")
    aware = verdict(judge, softmax, COMPOSED_COPY.replace("GIVEN", "x.contiguous()"), "composed")
    assert isinstance(blind, Passed) and "contiguous-only" in blind.labels, blind
    assert isinstance(aware, Passed) and aware.labels == () and "strides" in aware.checks, aware


def test_settings_without_code_are_flags_only(judge: LocalJudge, softmax: FunctionalProblem) -> None:
    changed = LIBRARY.replace("        e = ", "        torch.backends.cudnn.benchmark = True\n        e = ")
    found = verdict(judge, softmax, changed, "module")
    assert isinstance(found, Passed) and found.label == "flags only" and not found.claims_speed, found


def test_a_read_out_of_bounds_at_other_sizes_is_a_label(judge: LocalJudge, softmax: FunctionalProblem) -> None:
    passed = verdict(judge, softmax, altered(middle="if (n % 8 && r == rows - 1) m += 0 * p[n];"))
    assert isinstance(passed, Passed) and passed.labels == ("shape-specialised",), passed
    assert any("at odd sizes" in note for note in passed.notes)


def test_an_honest_softmax_passes_everything(judge: LocalJudge, softmax: FunctionalProblem) -> None:
    passed = verdict(judge, softmax, altered())
    assert isinstance(passed, Passed) and passed.labels == (), passed
    assert "22 kinds of special values" in passed.checks
    assert "grown sizes: 2048 instead of 256; 1024 instead of 128" in passed.checks
    assert passed.contract is not None and passed.contract.tensors[0].shape == ("N", "M")


def test_a_copy_of_a_half_precision_product_is_right(judge: LocalJudge) -> None:
    """PyTorch's library rests on the team of threads that it is told of: smaller ones are for kernels alone."""
    fp = functional(
        "half", Case("return torch.relu(x @ y)", "torch.randn(64, 512).bfloat16()", "torch.randn(512, 256).bfloat16()")
    )
    copy = fp.problem.source.replace("class Model(", "class ModelNew(")
    found = verdict(judge, fp, copy, "module")
    assert isinstance(found, Passed), found


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"middle": "m = 0;"}, "wrong"),  # no maximum subtracted: overflows on large inputs
        ({"before": "n = 256;"}, "label:shape-specialised"),
        ({"before": 'RK_CHECK(n == 256, "only 256 columns");'}, "label:shape-specialised"),
        ({"after": "for (int64_t i = 600 * n; i < rows * n; ++i) out.data[i] = 0;"}, "label:shape-specialised"),
        ({"after": "out.data[rows * n] = 0;"}, "crashed"),  # one element past the end
        ({"before": "volatile float t = x.data[rows * n]; (void)t;"}, "crashed"),
        ({"before": "volatile float t = x.data[-1]; (void)t;"}, "crashed"),
        ({"after": "_mm_setcsr(_mm_getcsr() | 0x8040);"}, "rejected:floating_point_state"),
        ({"before": "volatile int32_t big = 2147483647; big = big + 1;"}, "rejected:sanitizer"),  # undefined behaviour
        (
            {
                "before": "int64_t last = 0;\n#pragma omp parallel for\nfor (int64_t r = 0; r < rows; ++r) last = n;\n"
                "if (last < n) return;"
            },
            "rejected:sanitizer",
        ),  # a race whose numbers are right
        ({"before": "float p8[8]; volatile int at = 8; p8[at] = 1; (void)p8;"}, "rejected:sanitizer"),
        ({"before": "static int k; ++k;", "after": "out.data[5] *= 1 + k % 2 * 1e-7f;"}, "label:nondeterministic"),
        (
            {"after": "std::thread([] { for (volatile long i = 0; i < 30000000L; ++i) {} }).detach();"},
            "rejected:background_work",
        ),
        (
            {"after": "std::thread([p = out.data] { usleep(2000); p[0] = 7; }).detach();"},
            "rejected:late_write",
        ),
        (  # at other sizes only: no less dishonest
            {"after": "if (rows != 128) std::thread([p = out.data] { usleep(2000); p[0] = 7; }).detach();"},
            "rejected:late_write",
        ),
    ],
)
def test_what_ordinary_inputs_do_not_show(
    judge: LocalJudge, softmax: FunctionalProblem, parts: dict[str, str], expected: str
) -> None:
    found = verdict(judge, softmax, "#include <unistd.h>\n" + altered(**parts))
    assert expected in codes(found), found


def test_an_undefined_symbol_is_named(judge: LocalJudge, softmax: FunctionalProblem) -> None:
    found = verdict(judge, softmax, altered(before="void nowhere(int64_t); if (n > 0) nowhere(n);"))
    assert isinstance(found, Crashed) and "nowherel` is declared and nowhere defined" in found.reason, found


def test_what_thread_sanitizer_cannot_judge_is_left_out(judge: LocalJudge, softmax: FunctionalProblem) -> None:
    passed = verdict(judge, softmax, altered(before="#pragma omp parallel for ordered\nfor (int i = 0; i < 2; ++i);"))
    assert isinstance(passed, Passed) and "sanitizers: address, undefined-behaviour" in passed.checks, passed
    assert any(note.startswith("not run under ThreadSanitizer: it does not build") for note in passed.notes)


def test_a_decoy_kernel_makes_no_custom_kernel(judge: LocalJudge, softmax: FunctionalProblem) -> None:
    found = verdict(judge, softmax, DECOY, "composed")
    assert "label:library rewrite" in codes(found), found
    assert any("decoy" in note for note in found.notes)  # type: ignore[union-attr]


ATTENTION = (
    HEAD
    + """
class Model(nn.Module):
    def forward(self, q, k, v):
        return torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * 0.125, -1) @ v

def get_inputs():
    return [torch.rand(2, 64, 64) for _ in range(3)]

def get_init_inputs():
    return []
"""
)
FUSED_ROWS = """
def forward(q, k, v):
    rows = q.shape[-1] // 2 * 2
    scores = torch.matmul(q, k.transpose(-1, -2))
    out = torch.empty((scores.size(0), scores.size(-1) + 2 - 2, rows))
    kernels.scaled_softmax(scores, out)
    return torch.matmul(out, v)
"""
SPELT_OUT = """
def forward(q, k, v):
    scores = torch.matmul(q, k.transpose(-1, -2)) * 0.125
    out = torch.empty(v.shape)
    kernels.copied(torch.matmul(torch.softmax(scores, -1), -(-v)), out)
    return out
"""


LIBRARY_ATTENTION = """
def forward(q, k, v):
    return torch.ops.aten.scaled_dot_product_attention.default(q, k, v, scale=0.125)
"""


@pytest.mark.parametrize(("source", "nothing"), [(FUSED_ROWS, False), (SPELT_OUT, True), (LIBRARY_ATTENTION, True)])
def test_signs_of_dimensions_and_sizes_call_no_library(judge: LocalJudge, source: str, nothing: bool) -> None:
    fp = functionalize(problem_from_source("attention", ATTENTION), workers=judge.workers)
    assert fuses_nothing(source, fp) is nothing


def test_torch_alone_is_a_library_rewrite(judge: LocalJudge, softmax: FunctionalProblem) -> None:
    assert "label:library rewrite" in codes(verdict(judge, softmax, LIBRARY, "module"))


def test_a_burst_is_timed_without_the_way_there_and_back(judge: LocalJudge, softmax: FunctionalProblem) -> None:
    """And a candidate that is slow to answer is not the faster for it. (Bursts are for GPUs; here one asks.)"""
    candidate = Candidate(altered(), "kernel", "cpu")
    (built,) = build([(candidate.source, "cpu")], tools=toolchain(judge.device.arch), cache=judge.cache)
    assert isinstance(built, Built)
    with (
        ProblemSession(
            softmax, workers=judge.workers, candidate_workers=judge.workers, device=judge.device, limits=judge.limits
        ) as session,
        LoadedCandidate(session, candidate, Library(built.library)) as subject,
    ):
        reference = ReferenceTimes(session)
        assert reference.call("eager", calls=8) > 0 and len(reference.round_trips) == 1
        places = [subject.bind(session) for _ in range(8)]
        recipe = session.random_recipe()
        subject.prepare_all(places, [recipe] * 8)
        honest = min(subject.call_all(places, reference) for _ in range(5))
        assert len(subject.round_trips) == 5
        for place in places:
            assert all(row.ok for row in session.check(subject.outputs(place), recipe))
        reference.round_trips, subject.round_trips = [1e-6] * 9, [honest] * 99
        assert min(subject.call_all(places, reference) for _ in range(5)) > honest / 2


def test_a_burst_grows_until_asking_for_it_takes_little_of_it(
    judge: LocalJudge, softmax: FunctionalProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a candidate that is very slow is called less often than the reference."""
    candidate = Candidate(altered(), "kernel", "cpu")
    (built,) = build([(candidate.source, "cpu")], tools=toolchain(judge.device.arch), cache=judge.cache)
    assert isinstance(built, Built)
    limits = replace(judge.limits, timing=TimingRule())
    with (
        ProblemSession(
            softmax, workers=judge.workers, candidate_workers=judge.workers, device=judge.device, limits=limits
        ) as session,
        LoadedCandidate(session, candidate, Library(built.library)) as subject,
    ):
        reference = ReferenceTimes(session)
        race = Race(subject, subject.bind(session), reference, ["eager"], best_speedup=1e6)
        assert race.calls == 1
        race.burst = race._places(4)
        subject.round_trips = [1e-9] * 9
        assert race._missing() < 0
        subject.round_trips = [1.0] * 9
        assert race._missing() == session.limits.timing.most_burst - 4
        monkeypatch.setattr(reference, "calls_for", lambda seconds: 16)
        monkeypatch.setattr(Race, "_first_s", lambda race: 0.1)
        slow = Race(subject, race.place, reference, ["eager"])  # 16 calls of it would take 1.6 s
        assert (len(slow.burst), slow.calls) == (2, 16)
        shown = Times({"eager": [1e-3], "candidate": [0.1]})
        reference.round_trips = [0.004] * 9
        assert slow.asking(shown) == 0.25  # of the reference's burst, which is the shorter one
        race.burst = []
        for _ in range(9):
            chosen = checked_pairs(session, 60)
            assert [sum(a <= n < b for n in chosen) for a, b in ((0, 7), (7, 30), (30, 60))] == [1, 1, 2]
            assert len(checked_pairs(session, 7)) == 2
        times = race.run()
        assert times.kept  # one of the few pairs is always checked
        assert times.stopped_early and len(times.seconds["eager"]) == session.limits.timing.few_pairs


def test_what_is_compiled_ahead_is_found_in_the_cache_and_nothing_of_it_ran(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch
    from torch._dynamo.utils import counters

    from rag_kernels.eval.children.baseline_variants import compile_ahead, make

    class Product(torch.nn.Module):  # without a kernel of Inductor's own, for which a compiler would run
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mm(x, x.T, out=written)

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    x, written = torch.rand(8, 8), torch.zeros(8, 8)
    with torch.no_grad():
        compile_ahead(Product(), [x])
        assert not written.any()
        counters.clear()
        make("compile", Product(), [x])(x)
    assert counters["inductor"]["fxgraph_cache_hit"] == 1 and written.any()


PRODUCT = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.mm(x, x.T)

def get_inputs():
    return [torch.rand(8, 8)]

def get_init_inputs():
    return []
"""


def test_a_problem_is_compiled_ahead_by_a_child_as_a_judgement_will(
    judge: LocalJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into the judge's cache, where a process that comes later finds it; a failure is logged."""
    import torch
    from torch._dynamo.utils import counters

    from rag_kernels.eval.children.baseline_variants import make
    from rag_kernels.eval.numerics.oracle import strict_precision

    fp = functionalize(problem_from_source("product", PRODUCT), workers=judge.workers)
    judge.sessions.compile_ahead(fp)
    judge.compile_ahead(fp)  # on a CPU compilers would take the cores from what is being timed
    judge.sessions.compile_ahead(replace(fp, problem=problem_from_source("none", PRODUCT.replace("mm(", "mn("))))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(judge.cache / "inductor"))
    counters.clear()
    module = load_module("product", fp.problem.source)
    strict_precision()
    with torch.no_grad():
        make("compile", module.Model(), module.get_inputs())(*module.get_inputs())
    assert counters["inductor"]["fxgraph_cache_hit"] == 1


ENLARGED = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(96, 64)

    def forward(self, x):
        return torch.softmax(4 * self.linear(x), dim=-1)

def get_inputs():
    return [torch.rand(32, 96)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("change", "shown"), [("tf32", "tf32"), ("cut off", "tf32"), ("float16", "tf32"), ("bfloat16", "bf16")]
)
def test_a_probe_tells_tf32_from_bf16_where_what_follows_a_product_enlarges_both(
    judge: LocalJudge, change: str, shown: str
) -> None:
    import torch

    def cut_off(value: torch.Tensor) -> torch.Tensor:
        return (value.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)

    fp = functionalize(problem_from_source("enlarged", ENLARGED), workers=judge.workers)
    chosen = targets(fp)
    generator = torch.Generator().manual_seed(7)
    content = [torch.randn(a.spec.shape, generator=generator) for a in fp.tensors]
    content = [
        one_hot(v, chosen[a.name], generator) if a.name in chosen else v
        for a, v in zip(fp.tensors, content, strict=True)
    ]
    known = {"tf32": to_tf32, "cut off": cut_off}
    with torch.no_grad():
        module = BoundModule(fp, torch.device("cpu"), content, seed=1)
        answers = RightAnswers(module, [torch.empty(32, 64)], operands=0.0)
        answers.compute(0, noisy=False, moved=False)
        assert answers.precision(module.call(), 0).name == "strict"
        with Perturbed(operands=known.get(change) or through(getattr(torch, change))):
            outputs = module.call()
        found = answers.precision(outputs, 0)
    assert found.name == shown and found.error > SEVEN_BITS  # by which alone all four were bf16


@pytest.mark.parametrize(("precision", "by_noise"), [("strict", False), ("tf32", True)])
def test_a_lower_precision_without_calibrated_limits_is_held_to_its_own_noise(
    judge: LocalJudge, monkeypatch: pytest.MonkeyPatch, precision: str, by_noise: bool
) -> None:
    """Fixed limits are what strict results keep: an examination may fail, or leave the calibration out."""
    fp = functionalize(problem_from_source("rows", SOFTMAX.replace("128, 256", "64, 256")), workers=judge.workers)
    other = judge.by_other_limits(replace(judge.limits, precision=precision))
    monkeypatch.setattr(other.sessions, "admission", lambda fp: admit(Examination(notes=("not examined",))))
    try:
        assert other.sessions.open(fp).session.by_noise == by_noise
    finally:
        other.close()


def test_sizes_that_another_process_found_are_not_looked_for_again(
    judge: LocalJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    fp = functionalize(problem_from_source("rows", SOFTMAX.replace("128, 256", "8192, 256")), workers=judge.workers)
    found = judge.sessions.find_sizes(fp, thorough=True)
    again = codec.loads(codec.dumps(found))
    other = judge.by_other_limits(judge.limits)  # without a way to find any
    assert other.sessions.find_sizes(fp, thorough=False) == (None,)
    other.sessions.know_sizes(fp, again, thorough=True)
    small, odd, *_ = other.sessions.find_sizes(fp, thorough=True)
    assert small is not None and odd is not None and small.problem.source != odd.problem.source
    assert tuple(found) == other.sessions.find_sizes(fp, thorough=True)


def test_a_worker_that_died_while_others_timed_is_not_torch_compiles_fault() -> None:
    asked: list[str] = []

    def send(request: object, *_: object, **__: object) -> None:
        asked.append(type(request).__name__)
        if isinstance(request, CompileAhead):
            raise WorkerFailed("crashed", "an assertion on the device")

    session: Any = SimpleNamespace(
        on_gpu=True, device_lock=SimpleNamespace(away=nullcontext), send=send, restart=lambda: asked.append("restart"),
        limits=Limits(),
    )  # fmt: skip
    times = ReferenceTimes(session)
    times.prepare_baselines()
    assert asked == ["CompileAhead", "restart", "PrepareVariant", "PrepareVariant"]
    assert times.variants == ["compile", "graph"] and not times.compile_note


def test_what_was_prepared_is_prepared_again_when_an_input_kills_the_reference(
    judge: LocalJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = "(__import__('os').kill(__import__('os').getpid(), 9) if x.abs().max() > 50 else None)"
    source = SOFTMAX.replace("return ", f"{dies}\n        return ", 1)
    fp = functionalize(problem_from_source("lives", SOFTMAX), workers=judge.workers)
    fp = replace(fp, problem=problem_from_source("dies", source))
    prepared: list[str] = []

    def prepare(times: ReferenceTimes, variant: str) -> str:
        prepared.append(variant)
        times.variants.append(variant)
        return ""

    monkeypatch.setattr(ReferenceTimes, "_prepare", prepare)
    with ProblemSession(
        fp, workers=judge.workers, candidate_workers=judge.workers, device=judge.device, limits=judge.limits
    ) as session:
        times = ReferenceTimes(session)
        times.variants = ["compile"]
        assert session.special("spikes") is None and session.restarts == 1
        assert prepared == ["compile"] == times.variants
        assert session.special("shifted") is None and session.drawn == session.own_draws  # none is tried any more
        assert times.call("eager") > 0


def test_a_small_session_is_opened_beside_the_own_one(judge: LocalJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU's host."""
    problem = problem_from_source("rows", SOFTMAX.replace("128, 256", "16384, 256"))
    fp = functionalize(problem, workers=judge.workers)
    judge.sessions.examine_ahead(fp)
    with ExitStack() as opened:
        own, small = judge.sessions._open_beside(fp, opened)
        assert small is not None and small.device_lock is own.device_lock and small.content_bytes < own.content_bytes
    closed: list[ProblemSession] = []
    close = ProblemSession.close
    monkeypatch.setattr(ProblemSession, "close", lambda session: closed.append(session) or close(session))
    monkeypatch.setattr(ProblemSession, "_accepts_normal", lambda session: 1 / (session.fp is not fp))
    with pytest.raises(ZeroDivisionError), ExitStack() as opened:  # the own one cannot be opened
        judge.sessions._open_beside(fp, opened)
    assert {session.fp is fp for session in closed} == {True, False}  # both


def test_a_problem_is_examined_once_by_threads_that_ask_together(judge: LocalJudge) -> None:
    problem = problem_from_source("rows", SOFTMAX.replace("128, 256", "96, 256"))
    fp = functionalize(problem, workers=judge.workers)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(judge.sessions.admission, [fp] * 4))
    assert all(one == found[0] for one in found)


def test_a_worker_that_found_no_gpu_while_it_waited_still_answers(judge: LocalJudge) -> None:
    judge.workers.spare("rag_kernels.eval.children.reference:serve_cuda", limit_address_space=False)
    with (
        judge.workers.spawn("rag_kernels.eval.children.reference:serve_cuda", limit_address_space=False) as worker,
        pytest.raises(WorkerFailed) as failed,
    ):
        worker.request({}, deadline_s=60)
    assert failed.value.kind == "raised"


def test_large_copies_are_whole() -> None:
    source = np.arange(2 * CHUNK + 5, dtype=np.uint32).view(np.uint8)[: 2 * CHUNK + 5]
    assert np.array_equal(copied(source), source)
    target = np.zeros_like(source)
    copy_bytes(target, source[::-1])
    assert np.array_equal(target, source[::-1])


def test_what_is_shorter_than_asking_for_it_is_timed_in_bursts(
    judge: LocalJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a burst at most a quarter counts as the asking, so that short ones may claim what is left."""
    monkeypatch.setattr(ReferenceTimes, "calls_for", lambda times, call_s: 2)
    limits = replace(judge.limits, without=judge.limits.without | {"fresh content"})  # places share it on a CPU
    monkeypatch.setattr(judge.sessions, "limits", limits)
    for rows in (3, 8192):
        problem = problem_from_source(f"rows_{rows}", SOFTMAX.replace("128, 256", f"{rows}, 256"))
        found = verdict(judge, functionalize(problem, workers=judge.workers), altered())
        assert isinstance(found, Passed) and "burst-timed" in found.labels
        assert found.claims_speed, (found.labels, found.measurement)
        assert found.measurement.candidate_us > 0.2 * found.measurement.eager_us


def test_a_verdict_times_in_one_turn_and_draws_before_it(
    judge: LocalJudge, softmax: FunctionalProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for a turn lets all others wait until he has it: eager's estimate is one, all of a race another."""
    turns: list[str] = []
    take, draw = DeviceLock._take, ProblemSession._draw

    def took(lock: DeviceLock, turn: Any) -> None:
        turns.append(turn)
        take(lock, turn)

    def drew(session: ProblemSession, kind: str) -> list[bool]:
        turns.append("draw")
        return draw(session, kind)

    judge.sessions.close()
    monkeypatch.setattr(DeviceLock, "_take", took)
    monkeypatch.setattr(ProblemSession, "_draw", drew)
    assert isinstance(verdict(judge, softmax, altered()), Passed)
    assert turns.count("alone") == 2 and "draw" in turns
    assert ("alone", "draw") not in pairwise(turns)


def test_a_right_kernel_is_not_accused_of_beating_a_ceiling_of_a_busy_machine(
    judge: LocalJudge, softmax: FunctionalProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are measured again first, and the new ones are kept for the next judge."""
    monkeypatch.setattr(ProblemSession, "exceeds_cache", True)
    monkeypatch.setattr(judge.sessions, "device", replace(judge.device, bandwidth_gbs=0.001))
    judge.sessions.close()
    found = verdict(judge, softmax, altered())
    assert isinstance(found, Passed) and found.claims_speed, found
    assert found.measurement.floor_fraction < 1.25 and judge.device.bandwidth_gbs > 0.1
    assert read_device(device_file(judge.device, judge.cache)).bandwidth_gbs >= judge.device.bandwidth_gbs
    judge.sessions.close()
