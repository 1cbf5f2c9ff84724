"""What the judge finds beyond wrong numbers on ordinary inputs: special values, sizes, memory, races, libraries."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from judging import (
    BRIEF,
    HEAD,
    OF_REPEATS,
    OF_SANITIZERS,
    OF_SIZES,
    SOFTMAX,
    altered,
    verdict,
)
from support.generated_kernels import Case, functional
from support.kept import kept_judge

from rag_kernels.eval.build.composed_forward import Kernels
from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import (
    ONE_CALLER,
    Crashed,
    FunctionalProblem,
    Passed,
)
from rag_kernels.eval.trial import other_sizes
from rag_kernels.eval.trial.result_class import fuses_nothing
from rag_kernels.eval.verdict_codes import codes
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes

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
def brief() -> Iterator[LocalJudge]:
    """Judge as before a confirmation, for what shows there already."""
    with kept_judge("cpu", limits=BRIEF, at_other_sizes=at_other_sizes) as opened:
        yield opened


@pytest.fixture(scope="module")
def softmax(brief: LocalJudge) -> FunctionalProblem:
    return functionalize(problem_from_source("softmax", SOFTMAX), workers=brief.workers)


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


@pytest.mark.parametrize("size", ["256", "N"])
def test_a_kernel_of_so_many_columns_serves_any_rows_where_its_problem_has_as_many(
    sized: LocalJudge, size: str
) -> None:
    """One integer of the text is both, so that the two are not other sizes apart, unless they are written anew."""
    source = SOFTMAX.replace("128, 256", f"{size}, {size}").replace("class Model", "N = 256\n\n\nclass Model")
    square = functionalize(problem_from_source("square", source), workers=sized.workers)
    only = 'RK_CHECK(n == 256, "only 256 columns");'
    passed = verdict(sized, square, altered(before=only))
    assert isinstance(passed, Passed) and "shape-specialised" not in passed.labels, passed
    assert passed.contract is not None and passed.contract.tensors[0].shape == ("N", "256")
    wrong = verdict(sized, square, altered(before=only, middle="if (rows != 256) m += 1e3f;"))
    assert "label:shape-specialised" in codes(wrong), wrong


def test_an_honest_softmax_serves_any_size(patient: LocalJudge, softmax: FunctionalProblem) -> None:
    passed = verdict(patient, softmax, altered())
    assert isinstance(passed, Passed) and passed.labels == (), passed
    assert "32 kinds of special values" in passed.checks
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


def test_sanitizers_see_rows_of_special_kinds(sanitizing: LocalJudge, softmax: FunctionalProblem) -> None:
    """On ordinary ones no maximum is as great, and nothing is written past the end."""
    past = "if (m > 50) { float p8[8]; volatile int at = 8; p8[at] = 1; (void)p8; }"
    found = verdict(sanitizing, softmax, altered(middle=past))
    assert "rejected:sanitizer" in codes(found) and "special kinds" in str(found), found


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
def test_signs_of_dimensions_and_sizes_call_no_library(brief: LocalJudge, source: str, nothing: bool) -> None:
    fp = functionalize(problem_from_source("attention", ATTENTION), workers=brief.workers)
    assert fuses_nothing(source, fp) is nothing


def test_torch_alone_is_a_library_rewrite(brief: LocalJudge, softmax: FunctionalProblem) -> None:
    assert "label:library rewrite" in codes(verdict(brief, softmax, LIBRARY, "module"))
