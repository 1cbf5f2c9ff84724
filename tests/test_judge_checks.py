"""What the judge finds beyond wrong numbers on ordinary inputs: precision, special values, sizes, memory, races."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from judging import (
    BRIEF,
    FEWER_SIZES,
    HEAD,
    OF_REPEATS,
    OF_SANITIZERS,
    OF_SIZES,
    SOFTMAX,
    altered,
    loaded,
    verdict,
)
from support.generated_kernels import Case, functional
from support.kept import kept_judge

from rag_kernels.eval.admission_records import Examination
from rag_kernels.eval.buffers.call_content import plain
from rag_kernels.eval.build import candidate_builder
from rag_kernels.eval.build.compile import instruction_sets
from rag_kernels.eval.build.composed_forward import Kernels
from rag_kernels.eval.children.bound_module import BoundModule
from rag_kernels.eval.children.right_answers import RightAnswers
from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.numerics.exactness_probe import one_hot, targets
from rag_kernels.eval.numerics.rounding_noise import Perturbed, through, to_tf32
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.process.process_tree import Resident
from rag_kernels.eval.records import (
    ONE_CALLER,
    OTHER_PROCESSORS,
    Candidate,
    Crashed,
    FunctionalProblem,
    Passed,
    TensorSpec,
    Wrong,
)
from rag_kernels.eval.sessions.admission import admit
from rag_kernels.eval.sessions.candidate_failure import Stopped
from rag_kernels.eval.sessions.candidate_session import LoadedCandidate
from rag_kernels.eval.sessions.problem_knowledge import ProblemKnowledge
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.traits.input_kinds import OUT_OF_RANGE, SEVEN_BITS
from rag_kernels.eval.traits.packed_bits import packed_at
from rag_kernels.eval.traits.steps import computes_all
from rag_kernels.eval.trial import other_sizes
from rag_kernels.eval.trial.checks import Checks, Findings
from rag_kernels.eval.trial.long_use_checks import (
    AFTER_REFUSED,
    FILLED,
    after_refused,
    after_refused_far,
    far_forms,
    in_filled_memory,
    keeps_nothing,
    kept_bytes,
    many_at_once,
    on_small_stack,
    together,
)
from rag_kernels.eval.trial.other_sizes import FEW, ODD, OtherSizes
from rag_kernels.eval.trial.result_class import fuses_nothing
from rag_kernels.eval.trial.trial import Trial
from rag_kernels.eval.verdict_codes import codes
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes

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
KEEPS = """\
KERNELS = r'''
#include <cmath>
#include "rag_kernel.h"
STATIC float sums[1 << 16];
static void softmax(rk::Tensor<const float> x, rk::Tensor<float> out) {
  const int64_t n = x.size(1), rows = x.size(0);
  *new volatile float[FLOATS] = 1;
  for (int64_t r = 0; r < rows; ++r) {
    sums[r] = 0;
    for (int64_t i = 0; i < n; ++i) sums[r] += std::exp(x.data[r * n + i]);
  }
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = std::exp(x.data[i]) / sums[i / n];
}
RK_EXPORT(softmax, softmax)
'''


def forward(x, *, dim):
    x = x.contiguous()
    out = torch.empty_like(x)
    kernels.softmax(x - torch.amax(x, dim, True), out)
    return out
"""
LIBRARY = (
    HEAD + "class ModelNew(nn.Module):\n    def forward(self, x):\n"
    "        e = torch.exp(x - x.amax(-1, keepdim=True))\n"
    "        return e / e.sum(-1, keepdim=True)\n"
)


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=FEWER_SIZES, at_other_sizes=at_other_sizes) as opened:
        yield opened


@pytest.fixture(scope="module")
def patient() -> Iterator[LocalJudge]:
    """Judge what is about other sizes at squares and numbers of tiles too, which take seconds."""
    limits = replace(OF_SIZES, without=OF_SIZES.without - {"squares and tiles"})
    with kept_judge("cpu", limits=limits, at_other_sizes=at_other_sizes) as opened:
        yield opened


@pytest.fixture(scope="module")
def repeating() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=OF_REPEATS, at_other_sizes=at_other_sizes) as opened:
        yield opened


@pytest.fixture(scope="module")
def sanitizing() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=OF_SANITIZERS, at_other_sizes=at_other_sizes) as opened:
        yield opened


@pytest.fixture(scope="module")
def sized() -> Iterator[LocalJudge]:
    """Judge without repeats and sanitizers, which take most of its time, what is about other sizes."""
    with kept_judge("cpu", limits=OF_SIZES, at_other_sizes=at_other_sizes) as opened:
        yield opened


@pytest.fixture(scope="module")
def brief(judge: LocalJudge) -> Iterator[LocalJudge]:
    """Judge as before a confirmation, for what shows there already."""
    with kept_judge("cpu", limits=BRIEF, at_other_sizes=at_other_sizes) as opened:
        yield opened


@pytest.fixture(scope="module")
def linear(judge: LocalJudge) -> FunctionalProblem:
    return functionalize(problem_from_source("linear_relu", LINEAR), workers=judge.workers)


@pytest.fixture(scope="module")
def softmax(judge: LocalJudge) -> FunctionalProblem:
    return functionalize(problem_from_source("softmax", SOFTMAX), workers=judge.workers)


def test_calls_keep_what_every_part_of_them_keeps() -> None:
    """Honest ones were told to leak: on a busy machine a part is a few calls, and two may each see a huge page."""

    def after(*mib: int) -> list[tuple[int, Resident | None]]:
        return [(10 * n, Resident(held << 20, 0, 0)) for n, held in enumerate(mib)]

    assert kept_bytes(after(100, 102, 104)) == 4 << 20  # asked again
    assert not kept_bytes(after(100, 102, 104, 104)) and not kept_bytes(after(100, 100, 102))
    assert kept_bytes(after(100, 101, 102, 103, 104, 105)) == 5 << 20
    assert not kept_bytes([*after(100, 102), (20, None)])


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
    limits = replace(OF_SIZES, precision="any")
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
    limits = replace(OF_SIZES, precision="tf32")
    with kept_judge("cpu", limits=limits, at_other_sizes=at_other_sizes) as lenient:
        chain = functionalize(problem_from_source("chain", CHAIN), workers=lenient.workers)
        tf32, less = (
            verdict(lenient, chain, CHAIN_KERNEL.replace("CAST", ROUND.format(half=half, mask=mask)))
            for half, mask in (("0x1000", "0x1fffu"), ("0x8000", "0xffffu"))
        )
    assert isinstance(tf32, Passed) and tf32.precision == "tf32" and not tf32.claims_speed, tf32
    assert not [label for label in tf32.labels if label.startswith("fragile") or label == "shape-specialised"], tf32
    assert not isinstance(less, Passed), less


def test_raw_pointers_of_another_layout_are_labelled(brief: LocalJudge, softmax: FunctionalProblem) -> None:
    blind = verdict(brief, softmax, COMPOSED_COPY.replace("GIVEN", "x"), "composed")
    aware = verdict(brief, softmax, COMPOSED_COPY.replace("GIVEN", "x.contiguous()"), "composed")
    assert isinstance(blind, Passed) and "contiguous-only" in blind.labels, blind
    assert isinstance(aware, Passed) and aware.labels == () and "strides" in aware.checks, aware


def test_settings_without_code_are_flags_only(brief: LocalJudge, softmax: FunctionalProblem) -> None:
    changed = LIBRARY.replace("        e = ", "        torch.backends.cudnn.benchmark = True\n        e = ")
    found = verdict(brief, softmax, changed, "module")
    assert isinstance(found, Passed) and found.label == "flags only" and not found.claims_speed, found


def test_a_read_out_of_bounds_at_other_sizes_is_a_label(sized: LocalJudge, softmax: FunctionalProblem) -> None:
    passed = verdict(sized, softmax, altered(middle="if (n % 8 && r == rows - 1) m += 0 * p[n];"))
    assert isinstance(passed, Passed) and passed.labels == ("shape-specialised",), passed
    assert any("at odd sizes" in note for note in passed.notes)


def test_a_kernel_that_refuses_other_columns_serves_any_rows(sized: LocalJudge, softmax: FunctionalProblem) -> None:
    passed = verdict(sized, softmax, altered(before='RK_CHECK(n == 256, "only 256 columns");'))
    assert isinstance(passed, Passed) and "shape-specialised" not in passed.labels, passed
    assert passed.contract is not None and passed.contract.tensors[0].shape == ("N", "256")
    assert any("refuses others" in note and "only 256 columns" in note for note in passed.notes), passed.notes


def test_an_honest_softmax_serves_any_size(patient: LocalJudge, softmax: FunctionalProblem) -> None:
    passed = verdict(patient, softmax, altered())
    assert isinstance(passed, Passed) and passed.labels == (), passed
    assert "25 kinds of special values" in passed.checks
    assert {"grown sizes: 2048 instead of 256; 1024 instead of 128", "1 sizes as large as each other"} <= {
        *passed.checks
    }
    assert passed.contract is not None and passed.contract.tensors[0].shape == ("N", "M")


def test_what_is_wrong_at_some_of_the_lengths_that_it_takes(
    patient: LocalJudge, softmax: FunctionalProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_sizes, "MOST_OF_TILES_S", 600.0)  # on a busy machine ten seconds are one number of tiles
    tiles, third = 'RK_CHECK(n % 64 == 0, "whole tiles");', "if (n / 64 % 4 == 3 && n > 256) out.data[n - 1] = 7;"
    found = verdict(patient, softmax, altered(before=tiles, after=third))
    assert "label:shape-specialised" in codes(found), found


def test_a_copy_of_a_half_precision_product_is_right(brief: LocalJudge) -> None:
    """PyTorch's library rests on the team of threads that it is told of: smaller ones are for kernels alone."""
    fp = functional(
        "half", Case("return torch.relu(x @ y)", "torch.randn(64, 512).bfloat16()", "torch.randn(512, 256).bfloat16()")
    )
    copy = fp.problem.source.replace("class Model(", "class ModelNew(")
    found = verdict(brief, fp, copy, "module")
    assert isinstance(found, Passed), found


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"middle": "m = 0;"}, "wrong"),  # no maximum subtracted: overflows on large inputs
        ({"after": "out.data[rows * n] = 0;"}, "crashed"),  # one element past the end
        ({"before": "volatile float t = x.data[rows * n]; (void)t;"}, "crashed"),
        ({"before": "volatile float t = x.data[-1]; (void)t;"}, "crashed"),
        ({"after": "_mm_setcsr(_mm_getcsr() | 0x8040);"}, "rejected:floating_point_state"),
        (
            {"after": "std::thread([] { for (volatile long i = 0; i < 30000000L; ++i) {} }).detach();"},
            "rejected:background_work",
        ),
        (
            {"after": "std::thread([p = out.data] { usleep(2000); p[0] = 7; }).detach();"},
            "rejected:late_write",
        ),
    ],
)
def test_what_ordinary_inputs_do_not_show(
    brief: LocalJudge, softmax: FunctionalProblem, parts: dict[str, str], expected: str
) -> None:
    found = verdict(brief, softmax, "#include <unistd.h>\n" + altered(**parts))
    assert expected in codes(found), found


@pytest.mark.parametrize(
    "before",
    [
        "volatile int32_t big = 2147483647; big = big + 1;",  # undefined behaviour
        "int64_t last = 0;\n#pragma omp parallel for\nfor (int64_t r = 0; r < rows; ++r) last = n;\n"
        "if (last < n) return;",  # a race whose numbers are right
        "float p8[8]; volatile int at = 8; p8[at] = 1; (void)p8;",
    ],
)
def test_what_sanitizers_alone_show(sanitizing: LocalJudge, softmax: FunctionalProblem, before: str) -> None:
    found = verdict(sanitizing, softmax, altered(before))
    assert "rejected:sanitizer" in codes(found), found


def test_what_differs_from_call_to_call_is_told(repeating: LocalJudge, softmax: FunctionalProblem) -> None:
    found = verdict(repeating, softmax, altered("static int k; ++k;", after="out.data[5] *= 1 + k % 2 * 1e-7f;"))
    assert "label:nondeterministic" in codes(found), found


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"before": "n = 256;"}, "label:shape-specialised"),
        ({"before": 'RK_CHECK(rows == 128 && n == 256, "one size only");'}, "label:shape-specialised"),
        ({"after": "for (int64_t i = 600 * n; i < rows * n; ++i) out.data[i] = 0;"}, "label:shape-specialised"),
        ({"middle": "if (rows <= 3 && n > 99) m = 0;"}, "label:shape-specialised"),
        ({"after": "if (n < 16) out.data[rows * n - 1] = 7;"}, "label:shape-specialised"),
        (  # no less dishonest
            {"after": "if (rows != 128) std::thread([p = out.data] { usleep(2000); p[0] = 7; }).detach();"},
            "rejected:late_write",
        ),
        (  # as much where it was wrong at others before, and so serves none of them
            {
                "after": "if (n % 8) out.data[0] = 7;\n"
                "if (rows > 128) std::thread([p = out.data] { usleep(2000); p[0] = 7; }).detach();"
            },
            "rejected:late_write",
        ),
    ],
)
def test_what_other_sizes_alone_show(
    sized: LocalJudge, softmax: FunctionalProblem, parts: dict[str, str], expected: str
) -> None:
    found = verdict(sized, softmax, "#include <unistd.h>\n" + altered(**parts))
    assert expected in codes(found), found


def test_a_late_write_is_told_as_one_whatever_check_meets_it(judge: LocalJudge, softmax: FunctionalProblem) -> None:
    """A thread of the call before may write into any call: special values once told it as "wrong: rare spikes"."""
    late = "#include <unistd.h>\n" + altered(after="std::thread([p = out.data] { usleep(2000); p[0] = 7; }).detach();")
    with loaded(judge, softmax, late) as (session, subject):
        checks = Checks(subject, place := subject.bind(session), Findings(), frozenset())
        checks.relative = 1.0
        with pytest.raises(Stopped) as stopped:
            checks._note_special(place, plain(0, len(session.specs)), Wrong("", "rare spikes", 1.0, ""), "rare spikes")
    assert codes(stopped.value.verdict) == {"rejected", "rejected:late_write"}


def test_an_undefined_symbol_is_named(brief: LocalJudge, softmax: FunctionalProblem) -> None:
    found = verdict(brief, softmax, altered(before="void nowhere(int64_t); if (n > 0) nowhere(n);"))
    assert isinstance(found, Crashed) and "nowherel` is declared and nowhere defined" in found.reason, found


def test_what_thread_sanitizer_cannot_judge_is_left_out(sanitizing: LocalJudge, softmax: FunctionalProblem) -> None:
    passed = verdict(sanitizing, softmax, altered("#pragma omp parallel for ordered\nfor (int i = 0; i < 2; ++i);"))
    assert isinstance(passed, Passed) and "sanitizers: address, undefined-behaviour" in passed.checks, passed
    assert any(note.startswith("not run under ThreadSanitizer: it does not build") for note in passed.notes)


def test_a_decoy_kernel_makes_no_custom_kernel(repeating: LocalJudge, softmax: FunctionalProblem) -> None:
    found = verdict(repeating, softmax, DECOY, "composed")
    assert "label:library rewrite" in codes(found), found
    assert any("decoy: without" in note for note in found.notes)  # type: ignore[union-attr]


def test_what_composed_kernels_keep_between_calls_is_told(repeating: LocalJudge, softmax: FunctionalProblem) -> None:
    """In static memory, which a second caller changes, or in memory that each call takes."""
    kept = KEEPS.replace("STATIC", "static").replace("*new volatile float[FLOATS] = 1;", "")
    lost = KEEPS.replace("STATIC", "static thread_local").replace("FLOATS", "4096")
    told = [
        codes(verdict(repeating, softmax, source, "composed")) & {"label:leaks memory", f"label:{ONE_CALLER}"}
        for source in (kept, lost)
    ]
    assert told == [{f"label:{ONE_CALLER}"}, {"label:leaks memory"}]


def test_copies_of_an_argument_stand_in_for_a_kernel() -> None:
    class Library:
        def get_function(self, name: str) -> Callable[..., None]:
            return lambda *arguments: arguments[-1].fill_(7)

    kernels, out = Kernels(Library()), torch.zeros(2, 3)
    given = [torch.arange(6.0), torch.ones(5), torch.ones(6, dtype=torch.int64), torch.full((3, 2), 4.0)]
    for instead, first in {"": 7, "nothing": 0, "the first": 0, "the last": 4}.items():
        kernels._instead = instead
        kernels.finish(*given, 3, out.zero_())
        assert out.flatten()[0] == first and (instead != "the first" or out.sum() == 15)


LOOKED_UP = (
    HEAD
    + """
class Model(nn.Module):
    def forward(self, table, at):
        return table[at]

def get_inputs():
    return [torch.randn(64, 4), torch.randint(0, 64, (256,))]

def get_init_inputs():
    return []
"""
)
LOOKS_UP = """
#include "rag_kernel.h"
#include <map>
#include <vector>
static int64_t met = 0, threads = 0;
static thread_local float* own = nullptr;
static auto* plans = new std::map<int64_t, std::vector<float>>;
void f(rk::Tensor<const float> table, rk::Tensor<const int64_t> at, rk::Tensor<float> out) {
  if (!own && threads < 150) ++threads, own = new float[1 << 14]();  // of the first threads
  if (at.numel() < 256) (*plans)[at.numel()].resize(1 << 14);
  for (int64_t i = 0; i < at.numel(); ++i) {
    ++met;
    RK_CHECK(uint64_t(at.data[i]) < uint64_t(table.size(0)), "out of range");
    for (int64_t d = 0; d < 4; ++d) out.data[i * 4 + d] = table.data[at.data[i] * 4 + d] + float(met != i + 1);
  }
  met = 0;
}
RK_EXPORT(forward, f)
"""


@pytest.fixture(scope="module")
def looked_up(judge: LocalJudge) -> Iterator[tuple[ProblemSession, LoadedCandidate]]:
    fp = functionalize(problem_from_source("looked_up", LOOKED_UP), workers=judge.workers)
    with loaded(judge, fp, LOOKS_UP) as opened:
        yield opened


def test_what_is_computed_lies_in_no_argument(
    softmax: FunctionalProblem, looked_up: tuple[ProblemSession, LoadedCandidate]
) -> None:
    """Inputs may be others by the time that its outputs are collected."""
    passed_on = replace(softmax, results=(softmax.tensors[0].name,))
    assert computes_all(softmax) and not computes_all(looked_up[0].fp) and not computes_all(passed_on)


def test_memory_for_each_thread_or_size_is_told(looked_up: tuple[ProblemSession, LoadedCandidate]) -> None:
    session, subject = looked_up
    place, told = subject.bind(session), []
    for sized in (None, None, place):
        keeps_nothing(Checks(subject, place, found := Findings(), frozenset()), place, sized)
        told.append((found.labels, *found.checks, *(note.partition(", ")[2] for note in found.notes)))
    assert told == [
        (["leaks memory"], "some for each thread that calls it"),
        ([], "other threads and sizes keep nothing"),
        (["leaks memory"], "some for each number of lines"),
    ]


BESIDE_ITSELF = """
#include "rag_kernel.h"
#include <atomic>
static std::atomic<int> inside{0};
void f(rk::Tensor<const float> x, rk::Tensor<float> out) {
  for (volatile bool met = inside.fetch_add(1) > 0; met;) {}  // who comes second waits for ever
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = x.data[i] + 1.0f;
  inside.fetch_sub(1);
}
RK_EXPORT(forward, f)
"""


def test_what_the_judge_keeps_is_no_leak_and_two_callers_do_not_wait_for_minutes(
    judge: LocalJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of outputs, copied, stayed in the heap each time; callers that waited for each other took 500 s."""
    source = LOOKED_UP.replace("table, at", "x").replace("table[at]", "x + 1")
    source = source.replace("torch.randn(64, 4), torch.randint(0, 64, (256,))", "torch.randn(257, 1000)")
    fp = functionalize(problem_from_source("one_more", source), workers=judge.workers)
    with loaded(judge, fp, BESIDE_ITSELF) as (session, subject):
        place, held = subject.bind(session), []
        subject.prepare(place, plain(0, 1))
        for _ in range(8):
            subject.call_on(place, 20, 5.0)
            held.append(subject.worker.resident())
        assert None not in held and held[-1].own - held[0].own < 1 << 20
        monkeypatch.setattr("rag_kernels.eval.trial.long_use_checks.LOCKED_S", 0.1)
        monkeypatch.setattr(session, "limits", replace(session.limits, call_s=0.3))
        began = time.monotonic()
        assert "did not finish" in together(
            Checks(subject, place, Findings(), frozenset()), place, subject.bind(session), 1e-3
        )
        assert time.monotonic() - began < 10


def test_a_refused_call_leaves_nothing_for_the_next(looked_up: tuple[ProblemSession, LoadedCandidate]) -> None:
    """Neither where it refuses indices, nor where it refuses sizes: after these it is asked at its own again."""
    session, subject = looked_up
    place = subject.bind(session)
    checks = Checks(subject, place, Findings(), frozenset())
    checks.first_draw("as ever")
    with pytest.raises(Stopped) as stopped:
        after_refused(checks, place)
    assert isinstance(stopped.value.verdict, Wrong) and stopped.value.verdict.input_class == AFTER_REFUSED
    checks.first_draw("as ever")
    refused = session.specials.draw(OUT_OF_RANGE)
    assert refused is not None
    subject.prepare(place, plain(refused, len(session.specs)))
    with pytest.raises(Stopped):
        subject.call(place)
    others = OtherSizes(cast(ProblemKnowledge, SimpleNamespace(session=session)), Findings(), frozenset())
    with pytest.raises(Stopped) as stopped:
        others._ask_again(subject)
    assert isinstance(stopped.value.verdict, Wrong) and stopped.value.verdict.input_class == AFTER_REFUSED


def test_memory_that_others_used_a_lost_call_of_many_what_was_refused_and_a_large_stack_are_found(
    judge: LocalJudge, softmax: FunctionalProblem
) -> None:
    fresh = "static int met = 0;\n  volatile char* held = static_cast<char*>(std::malloc(1 << 20));\n"
    bad = "  const bool bad = held[1 << 19] || (omp_get_max_threads() > 3 && ++met % 300 == 0);\n"
    source = altered(before=f"{fresh}{bad}  std::free((void*)held);", after="if (bad) out.data[0] += 1;")
    large = "volatile char room[3 << 20];\n  for (int i = (3 << 20) - 1; i >= 0; i -= 4096) room[i] = 0;"
    source = f"#include <cstdlib>\n#include <omp.h>{source}".replace("if (bad)", f"{large}\n  if (bad || left)")
    left = (
        'static bool left = false;\n  if (n > 100000) { left = true; RK_CHECK(false, "too wide"); }\n  static int met'
    )
    source = source.replace("static int met", left)
    found = []
    with loaded(judge, softmax, source) as (session, subject):
        checks = Checks(subject, place := subject.bind(session), Findings(), frozenset())
        for check in (in_filled_memory, many_at_once, after_refused_far):
            with pytest.raises(Stopped) as stopped:
                check(checks, place)
            found.append(getattr(stopped.value.verdict, "input_class", ""))
        on_small_stack(checks, place)
        assert checks.found.labels == ["fragile: a small stack"] and "SIGSEGV" in checks.found.notes[0]
    assert found == [FILLED, "many calls by many threads", AFTER_REFUSED]


def test_one_size_throughout_is_far_in_lines_or_in_their_number(softmax: FunctionalProblem) -> None:
    square = TensorSpec((64, 64), "float32")
    (x,) = softmax.tensors
    fp = replace(softmax, arguments=(replace(x, spec=square),), outputs=(square,))
    far = [arguments[0] for arguments, _ in far_forms(fp)]
    assert [min(shape) for shape in far] == [0, 1] and far[0][1] > 100_000 < far[1][0]


def test_products_of_few_bits_at_other_sizes_are_told(judge: LocalJudge, linear: FunctionalProblem) -> None:
    """By probes at few rows and at larger sizes; odd ones are tried by ordinary numbers alone."""
    source = LINEAR_KERNEL.replace("CAST", ROUND.format(half="0x80", mask="0xffu"))
    with loaded(judge, linear, source) as (session, subject):
        for sizes, precision in ((ODD, "strict"), (FEW, "split-precision")):
            others = OtherSizes(cast(ProblemKnowledge, SimpleNamespace(session=session)), Findings(), frozenset())
            assert others.try_at(subject, session, sizes)
            assert others.found.precision == precision


def test_what_asks_for_its_processor_is_built_for_older_ones(
    judge: LocalJudge, looked_up: tuple[ProblemSession, LoadedCandidate], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "avx2" not in instruction_sets().split():
        pytest.skip("this processor is an older one itself")
    monkeypatch.setattr(candidate_builder, "OLDER", {"x86-64-v2": "sse4_2"})
    session, subject = looked_up
    asks = LOOKS_UP.replace("met = 0;\n}", "met = 0;\n#ifndef __AVX2__\n  out.data[0] += 1;\n#endif\n}")
    candidate, known = Candidate(asks, "kernel", "cpu"), SimpleNamespace(session=session, odd=None)
    trial = Trial(
        cast(ProblemKnowledge, known),
        candidate,
        judge._builder.whole(candidate),
        older=partial(judge._builder.older, candidate),
    )
    trial._on_older_processors()
    assert trial.found.labels == [OTHER_PROCESSORS] and "built for x86-64-v2" in trial.found.notes[0]
    assert judge._builder.older(subject.candidate) == {}, "what does not ask is built once"


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


def test_torch_alone_is_a_library_rewrite(brief: LocalJudge, softmax: FunctionalProblem) -> None:
    assert "label:library rewrite" in codes(verdict(brief, softmax, LIBRARY, "module"))


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


STEPPED = ENLARGED.replace("torch.softmax(4 * self.linear(x), dim=-1)", "torch.round(self.linear(x))")


@pytest.mark.parametrize(("operands", "right"), [(2.0**-11, True), (0.0, False)])
def test_a_step_is_decided_by_the_rounding_that_is_allowed(judge: LocalJudge, operands: float, right: bool) -> None:
    fp = functionalize(problem_from_source("stepped", STEPPED), workers=judge.workers)
    generator = torch.Generator().manual_seed(7)
    content = [torch.randn(a.spec.shape, generator=generator) for a in fp.tensors]
    with torch.no_grad():
        module = BoundModule(fp, torch.device("cpu"), content, seed=1)
        answers = RightAnswers(module, [torch.empty(32, 64)], operands=operands)
        with Perturbed(operands=to_tf32):
            outputs = module.call()
        assert not torch.equal(outputs[0], module.call()[0])
        assert answers.check(outputs, None, None, noisy=False).results[0].ok == right
        outputs[0][3, 5] += 9
        assert not answers.check(outputs, None, None, noisy=False).results[0].ok


RARE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 1024)

    def forward(self, x):
        gate = torch.relu(self.linear(x) - 2)
        return gate, gate <= 0

def get_inputs():
    return [torch.randn(512, 1024)]

def get_init_inputs():
    return []
"""


def test_a_rows_only_element_is_not_held_to_what_pytorch_has_right_by_luck(judge: LocalJudge) -> None:
    """A third of the rows have an element behind the gate: another order of the sum was 300 times PyTorch's error."""
    fp = functionalize(problem_from_source("rare", RARE), workers=judge.workers)
    torch.manual_seed(3)
    x, weight, bias = content = [torch.randn(512, 1024), torch.randn(1024, 1024) / 55, torch.randn(1024) / 55]
    parts = torch.randperm(1024).split(256)
    with torch.no_grad():
        module = BoundModule(fp, torch.device("cpu"), content, seed=1)
        answers = RightAnswers(module, module.call(), operands=0.0)
        total = sum((x[:, p] @ weight[:, p].t() for p in parts), torch.zeros(512, 1024))
        gate = torch.relu(total + bias - 2)
        found = answers.check([gate, gate <= 0], None, None, noisy=False).results[0]
        assert not found.ok and found.unsettled
        assert answers.check([gate, gate <= 0], None, None, noisy=False, settle=True).results[0].ok
        gate += 1e-4 * (gate > 0)
        assert not answers.check([gate, gate <= 0], None, None, noisy=False, settle=True).results[0].ok


PACKED = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
        q = torch.round((x - low) / ((high - low) / 15.0).clamp(min=1e-6)).clamp(0, 15).to(torch.uint8)
        return (q[:, 0::2] | (q[:, 1::2] << 4)).reshape(64, 16, 8), q[:, 0::2] + 16 * q[:, 1::2]

def get_inputs():
    return [torch.randn(64, 256)]

def get_init_inputs():
    return []
"""


def test_numbers_packed_into_a_byte_are_right_where_rounding_decides_each(judge: LocalJudge) -> None:
    """A step of the upper one is sixteen of the byte: a quantisation by a reciprocal was refused."""
    fp = functionalize(problem_from_source("packed", PACKED), workers=judge.workers)
    assert [packed_at(fp, result) for result in fp.results] == [(4,), (4,)]
    x = 0.07 * torch.randint(-150, 150, (64, 256), generator=torch.Generator().manual_seed(7))
    x[:, :2] = 0.07 * torch.tensor([-150, 150])
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    q = torch.round((x - low) * (15 / (high - low))).clamp(0, 15).to(torch.uint8)
    packed = q[:, 0::2] | (q[:, 1::2] << 4)
    with torch.no_grad():
        module = BoundModule(fp, torch.device("cpu"), [x], seed=1)
        answers = RightAnswers(module, module.call(), operands=0.0)
        own = module.call()[1]
        assert ((packed ^ own) & 15).any() and ((packed ^ own) >> 4).any()
        assert all(r.ok for r in answers.check([packed.view(64, 16, 8), packed], None, None, noisy=False).results)
        far = torch.where(((packed ^ own) & 15) > 0, packed ^ 7, packed)  # where rounding decides, and by more than one
        for wrong in (packed ^ 16, torch.where(torch.arange(128) == 5, packed ^ 1, packed), far):
            assert not any(r.ok for r in answers.check([wrong.view(64, 16, 8), wrong], None, None, noisy=False).results)


GROUPED = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        scores = torch.sigmoid(x)
        best = scores.sum(-1).topk(1, dim=-1).indices
        kept = torch.zeros(2048, 8).scatter(1, best, 1.0)[..., None].expand(2048, 8, 4).reshape(2048, 32)
        return scores.reshape(2048, 32).masked_fill(kept == 0, float("-inf")).topk(2, dim=-1).indices

def get_inputs():
    return [torch.randn(2048, 8, 4)]

def get_init_inputs():
    return []
"""


def test_a_choice_behind_a_choice_is_right_where_rounding_decides_the_first(judge: LocalJudge) -> None:
    """Of two groups as good as each other one was taken: what PyTorch takes of the other one was owed then."""
    fp = functionalize(problem_from_source("grouped", GROUPED), workers=judge.workers)
    x = torch.randn(2048, 8, 4, generator=torch.Generator().manual_seed(7))
    x[3, 1] = torch.tensor([3.0, 2.7, 2.9, 2.3])
    x[3, 2] = x[3, 1].flip(0) * (1 + 5e-7)
    with torch.no_grad():
        module = BoundModule(fp, torch.device("cpu"), [x], seed=1)
        answers = RightAnswers(module, module.call(), operands=0.0)
        least = int(x[4].sigmoid().sum(-1).argmin())
        for group, line, ok in ((1, 3, True), (2, 3, True), (5, 3, False), (least, 4, False)):
            got = module.call()[0].clone()
            got[line] = 4 * group + x[line, group].topk(2).indices
            assert answers.check([got], None, None, noisy=False, settle=True).results[0].ok == ok, (group, line)


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half], ids=["bfloat16", "half"])
def test_rows_of_sixteen_bits_are_what_they_are(dtype: torch.dtype) -> None:
    """Where rows are constant a mean may be a rounding of fp32 off, as a kernel computes it, and not one of theirs."""
    drawn = (f"torch.{make}.to({dtype})" for make in ("randn(64, 200)", "ones(200)"))
    fp = functional("norm", Case("return F.layer_norm(x, (200,), y)", *drawn))
    x, weight = torch.full((64, 200), 0.7, dtype=dtype), torch.ones(200, dtype=dtype)
    with torch.no_grad():
        module = BoundModule(fp, torch.device("cpu"), [x, weight], seed=1)
        answers = RightAnswers(module, module.call(), operands=0.0)
        answers.compute(0, noisy=True, moved=True)
        for off, right in ((0.0, True), (2.0**-24, True), (2.0**-13, False)):
            mean = x.double().mean(1, keepdim=True) * (1 + off)
            got = ((x.double() - mean) / math.sqrt(1e-5)).to(x.dtype)
            assert answers.check([got], 0, None, noisy=True).results[0].ok is right, off
