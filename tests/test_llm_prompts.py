"""What prompts say is true: the worked examples build and are right, and templates refuse missing values."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import factories
import jinja2
import pytest
from emulated_cuda import build_emulated

from rag_kernels.eval.build.candidate_form import check_composed, kernels_text
from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.eval.machine.device import threads
from rag_kernels.eval.machine.hardware import cpu_facts, gpu_facts
from rag_kernels.eval.places import INCLUDE
from rag_kernels.eval.records import (
    Backend,
    BaselineTimes,
    Crashed,
    FunctionalProblem,
    Ratio,
    ScalarArgument,
    TensorArgument,
    TensorSpec,
    Verdict,
)
from rag_kernels.eval.source_form import source_form
from rag_kernels.feedback import explain
from rag_kernels.feedback.bottleneck import recommendation
from rag_kernels.llm import prompt_values
from rag_kernels.llm.templates import FOLDER, render
from rag_kernels.records import Brief, Learnt

ERRORS = """In file included from /tmp/build-1/kernel.cpp:1:
/tmp/build-1/kernel.cpp: In function 'void scale(rk::Tensor<const float>)':
/tmp/build-1/kernel.cpp:7:12: error: 'expf' was not declared in this scope; did you mean 'exp'?
    7 |     y[i] = expf(x[i]);
      |            ^~~~
      |            exp
/tmp/build-1/kernel.cpp:9:1: error: expected '}' at end of input
"""


NO_IDEAS = {"count": 1, "exemplars": []}


def system(backend: Backend) -> str:
    return render("system", **prompt_values.contract_values(factories.device(backend)))


def examples(backend: Backend) -> tuple[str, str]:
    """The kernel-tier and the composed-tier example of the system prompt."""
    blocks = re.findall(r"```\w+\n(.*?)```", system(backend), re.DOTALL)
    assert len(blocks) == 2
    return blocks[0], blocks[1]


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_the_worked_examples_build(backend: Backend, tmp_path: Path) -> None:
    tools = toolchain()
    if backend == "cuda" and tools.nvcc is None:
        pytest.skip("there is no nvcc")
    kernel, composed = examples(backend)
    check_composed(composed)
    assert (source_form(kernel).tier, source_form(composed).tier) == ("kernel", "composed")
    for result in build([(kernel, backend), (kernels_text(composed), backend)], tools=tools, cache=tmp_path):
        assert isinstance(result, Built), result.log


def test_the_worked_examples_are_right(tmp_path: Path) -> None:
    import torch
    import tvm_ffi

    kernel, composed = examples("cpu")
    built = build([(kernel, "cpu"), (kernels_text(composed), "cpu")], tools=toolchain(), cache=tmp_path)
    softmax, library = (tvm_ffi.load_module(str(b.library)) for b in built if isinstance(b, Built))
    x = torch.randn(5, 37) * 9
    out = torch.empty_like(x)
    softmax.forward(tvm_ffi.from_dlpack(x), 0.5, -1, tvm_ffi.from_dlpack(out))
    torch.testing.assert_close(out, torch.softmax(x * 0.5, dim=-1))

    names = {"torch": torch, "kernels": library}
    exec(composed, names)
    weight, bias = torch.randn(11, 37), torch.randn(11)
    expected = torch.relu(torch.nn.functional.linear(x, weight, bias))
    torch.testing.assert_close(names["forward"](x, weight, bias), expected)  # type: ignore[operator]


@pytest.mark.parametrize("columns", [4, 516, 8192])
def test_the_worked_example_in_cuda_is_right(columns: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """By emulation; it reads each row once, in vectors."""
    import torch
    import tvm_ffi

    kernel, _ = examples("cuda")
    softmax = build_emulated(kernel, tmp_path_factory.mktemp("example"))
    x = torch.randn(3, columns) * 9
    out = torch.empty_like(x)
    softmax.forward(tvm_ffi.from_dlpack(x), -0.5, -1, tvm_ffi.from_dlpack(out))
    torch.testing.assert_close(out, torch.softmax(x * -0.5, dim=-1))


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        render("implement", idea="only this")
    assert {p.stem for p in FOLDER.glob("*.jinja")} >= {"system", "ideas", "implement", "improve"}


def test_braces_in_sources_are_not_template_code() -> None:
    assert "{{ idea }}" in FOLDER.joinpath("implement.jinja").read_text()
    parent = factories.attempt(verdict=factories.wrong(), idea="{{ 7 * 7 }} & <b>")
    row = prompt_values.parent_values(parent, _brief(factories.problem()))
    assert row["idea"] == "{{ 7 * 7 }} & <b>"


def test_prompts_state_the_machine_the_lessons_and_the_repeats() -> None:
    learnt = Learnt("fusing pays", ("Not built, since it is attempt 1 again.",))
    at = replace(_brief(factories.problem()), learnt=learnt)
    text = render("ideas", **prompt_values.problem_values(at, cpu_facts()), count=2, exemplars=[])
    assert f"It has {threads()} threads" in text
    assert "in your own words: fusing pays" in text and "- Not built, since it is attempt 1 again." in text
    assert "Lessons:" not in render("ideas", **prompt_values.problem_values(_brief(at.problem)), count=2, exemplars=[])


def test_what_a_driver_does_not_say_is_left_out() -> None:
    known = {"multi_processor_count": 132, "shared_memory_per_multiprocessor": 228 << 10, "L2_cache_size": 0}
    assert gpu_facts(known) == ("132 SMs", "228 KiB of shared memory an SM")
    assert gpu_facts({"warp_size": 32, "cuda": 12080}) == ("warps of 32", "CUDA 12.8")


def test_one_recommendation_follows_from_the_bottleneck() -> None:
    problem, device = factories.problem(), factories.device()
    passed = factories.passed()

    def said(**changes: float) -> str:
        measured = replace(passed.measurement, **changes)  # type: ignore[arg-type]
        return recommendation(replace(passed, measurement=measured), problem.features, device)

    assert said(candidate_us=27.0, floor_us=26.2).startswith("It is near the floor")
    assert said(candidate_us=29.5, floor_us=26.2).startswith("The unavoidable bytes need 89% of its time")
    behind = Ratio(0.97, 0.96, 0.98)
    told = said(candidate_us=27.0, floor_us=26.2, speedup_eager=Ratio(4.0, 3.9, 4.1), speedup_compile=behind)
    assert told.startswith("torch.compile is 1.03 times as fast") and "none are left to save" in told
    assert "repeated passes" in said(candidate_us=100.0, floor_us=26.2, speedup_compile=behind)
    assert said(candidate_us=10.0, floor_us=0.5).startswith("A call of 10 us is mostly launching")
    told = said(candidate_us=100.0, floor_us=26.2)
    assert told.startswith("Memory bandwidth is the ceiling") and "non-temporal" in told and "sets of the cache" in told
    on_gpu = recommendation(passed, problem.features, factories.device("cuda"))
    assert "Memory bandwidth is the ceiling" in on_gpu and "non-temporal" not in on_gpu
    library = replace(passed, label="fused + library", own_share=0.4)
    assert "40% of the time in its own code" in recommendation(library, problem.features, device)
    busy = replace(problem.features, flops=10**9)
    slow = replace(passed, measurement=replace(passed.measurement, candidate_us=20_000.0))
    assert "it does 50 of the 100 GFLOP/s that products in fp32 reached here" in recommendation(slow, busy, device)


def test_a_ceiling_is_named_with_its_dtype() -> None:
    """Products of half precision are held against tensor cores, and words say so."""
    half = replace(factories.problem().features, dtypes=("float16",), flops=10**9)
    on = replace(factories.device("cuda"), fp16_gflops=990_000.0, tf32_gflops=400_000.0)
    slow = replace(factories.passed().measurement, candidate_us=1000.0)
    text = recommendation(replace(factories.passed(), measurement=slow), half, on)
    assert "1e+03 of the 990000 GFLOP/s that products in fp16 reached here" in text and "tensor cores" in text
    product = replace(factories.problem(), features=replace(factories.problem().features, flops=10**9))
    told = prompt_values.problem_values(replace(_brief(product), device=on))
    assert "9.9e+05 in fp16" in told["rates"] and told["rate"].endswith("in fp32")
    asked = prompt_values.problem_values(replace(_brief(product), device=on), precision="tf32")
    assert asked["rate"] == "4e+05 GFLOP/s in tf32"
    bfloat = replace(on, fp16_gflops=760_000.0, bf16_gflops=790_000.0)
    of_half = replace(_brief(replace(product, features=half)), device=bfloat)
    assert prompt_values.problem_values(of_half)["rate"] == "7.9e+05 GFLOP/s in numbers of sixteen bits"
    without = prompt_values.problem_values(_brief(factories.problem()))
    assert "there are no products. By these rates" in render("ideas", **without, **NO_IDEAS)
    without["bound"] = "arithmetic"
    assert "no products, and about 0.131 million operations on elements. By" in render("ideas", **without, **NO_IDEAS)


def test_nothing_is_called_near_the_floor_that_is_slower_than_pytorch() -> None:
    problem, device, passed = factories.problem(), factories.device(), factories.passed(0.9)
    measured = replace(passed.measurement, candidate_us=27.0, floor_us=26.2)
    text = recommendation(replace(passed, measurement=measured), problem.features, device)
    assert "floor" not in text and "times as fast, so there is more to gain" in text
    assert measured.floor_fraction > 0.8 and measured.speedup < 1

    tried = factories.attempt(verdict=replace(passed, measurement=replace(measured, eager_us=1e-4)))
    beaten = render("ideas", **prompt_values.problem_values(replace(_brief(problem), attempts=(tried,))), **NO_IDEAS)
    assert "this is no floor here" in beaten
    first = render("ideas", **prompt_values.problem_values(_brief(problem)), **NO_IDEAS)
    assert (
        "By these rates the floor is about" in first and "no floor here" not in first and "none can take" not in first
    )


def test_what_is_to_be_beaten_is_said_before_there_is_a_kernel() -> None:
    before = replace(_brief(factories.problem()), baselines=BaselineTimes(312.4, 186.2))
    first = render("ideas", **prompt_values.problem_values(before), **NO_IDEAS)
    assert "Measured: eager 312 us, torch.compile 186 us. Beat the faster one." in first
    later = replace(before, attempts=(factories.attempt(verdict=factories.passed(2.0)),))
    again = render("ideas", **prompt_values.problem_values(later), **NO_IDEAS)
    assert "eager 200 us, torch.compile 160 us" in again
    assert "not named by its number" in again and "by its number" not in first  # its source is not in the coder's view


def test_the_contract_says_which_precision_is_allowed_and_what_is_compiled_for() -> None:
    hopper = replace(factories.device("cuda"), arch="sm_90")
    strict = render("system", **prompt_values.contract_values(hopper))
    assert "programmatic dependent launch" in strict and "programmatic" not in system("cpu")
    assert "for sm_90a only" in strict and "three TF32 products" in strict and "float32 sums" in strict
    lower = render("system", **prompt_values.contract_values(hopper, "tf32"))
    assert "products may be computed in TF32" in lower and "three TF32 products" not in lower


def _brief(problem: FunctionalProblem) -> Brief:
    return Brief("r", problem, factories.device(), (), (), "", 1, 1)


def test_the_signature_follows_the_call() -> None:
    base = factories.linear_problem()
    problem = FunctionalProblem(
        **{name: getattr(base, name) for name in base.__dataclass_fields__}
        | {
            "arguments": (
                TensorArgument("x", "input", TensorSpec((2, 3), "bfloat16"), "0"),
                ScalarArgument("causal", True, "1"),
                ScalarArgument("steps", 3, "2"),
                TensorArgument("table", "buffer", TensorSpec((7,), "int64"), "table"),
            ),
            "constants": (("stride", (2, 1)), ("eps", 1e-5), ("mode", "zeros"), ("exact", False), ("stride_1", 4)),
            "outputs": (TensorSpec((), "float32"), TensorSpec((2,), "bool")),
        }
    )
    assert " ".join(prompt_values.signature(problem, "cuda").split()) == (
        "void kernel(rk::Tensor<const __nv_bfloat16> x, bool causal, int64_t steps, rk::Tensor<const int64_t> table, "
        "int64_t stride_0, int64_t stride_1, double eps, bool exact, int64_t stride_1_, rk::Tensor<float> out_0, "
        "rk::Tensor<bool> out_1); RK_EXPORT(forward, kernel)"
    )
    assert "rk::Tensor<const rk::bf16> x" in prompt_values.signature(problem, "cpu")
    line = prompt_values.composed_signature(problem)
    assert line == "def forward(x, causal, steps, table, *, stride, eps, mode, exact, stride_1):"
    check_composed(f"KERNELS = ''\n\n{line}\n    return x\n")


def test_compiler_logs_are_cut_to_the_first_errors() -> None:
    text = explain.trim_log(ERRORS)
    assert text.splitlines()[0] == "kernel.cpp:7:12: error: 'expf' was not declared in this scope; did you mean 'exp'?"
    assert "y[i] = expf(x[i]);" in text and "kernel.cpp:9:1: error: expected '}'" in text and "/tmp" not in text
    many = explain.trim_log("\n".join(f"k.cu({i}): error: no {i}" for i in range(90)))
    assert many.count("error:") == explain.ERRORS_SHOWN and many.endswith("(86 more errors follow)")
    assert len(explain.trim_log("x" * 99_999)) == explain.LOG_CHARS


def test_a_real_compiler_log_keeps_its_cause(tmp_path: Path) -> None:
    broken = factories.candidate().source.replace("x.numel()", "x.count()")
    [result] = build([(broken, "cpu")], tools=toolchain(), cache=tmp_path)
    assert not isinstance(result, Built)
    text = explain.trim_log(result.log)
    assert "count" in text and len(text.splitlines()) <= explain.ERRORS_SHOWN * explain.CONTEXT_LINES + 1


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        (factories.passed(2.0), "eager 200 us, torch.compile 160 us, floor 50 us"),
        (factories.compiled(), "It compiles; it was not run"),
        (factories.build_failed(), "kernel.cpp:3:1: error: expected ';'"),
        (factories.wrong(), 'class "normal"; where: index (3, 17); its error is 512 times'),
        (factories.crashed(), "SIGSEGV. Look for reads and writes out of bounds."),
        (Crashed("TypeError: another number of arguments", "", raised=True), "Compare it with the signature above."),
        (factories.timed_out(), "after 10 s in the stage check"),
        (factories.rejected(), "(mutated_input): the candidate wrote to its input x."),
    ],
)
def test_every_verdict_is_explained(verdict: Verdict, says: str) -> None:
    problem = factories.problem()
    text = explain.explain(verdict, device=factories.device(), features=problem.features)
    assert says in text and ".." not in text.replace("...", "")
    alone = explain.explain(verdict, device=factories.device(), features=problem.features, signature="void f();")
    assert alone == text.replace("Compare it with the signature above.", "The signature is:\n\n```cpp\nvoid f();\n```")
    [line] = explain.history([factories.attempt(verdict=verdict, idea="an idea")])
    assert line.startswith("#1 ") and line.endswith("Idea: an idea") and "\n" not in line


def test_a_writer_is_spared_what_the_judge_notes_of_its_own_work() -> None:
    problem = factories.problem()
    own = (
        "SM clock 1980 to 1980 MHz",
        "at smaller sizes (4 instead of 64): The candidate failed",
        "verified at 32 instead of 64",
    )
    verdict = replace(factories.passed(2.0), notes=(*own, "less exact on inputs of the kind `edges`: at [0]"))
    text = explain.explain(verdict, device=factories.device(), features=problem.features)
    assert "less exact on inputs of the kind `edges`: at [0]." in text and not any(note in text for note in own)
    text = explain.explain(replace(verdict, notes=own), device=factories.device(), features=problem.features)
    assert "Notes of the judge" not in text


def test_the_history_is_short_with_winners_first() -> None:
    wins = [factories.attempt(number=i, variant=i, verdict=factories.passed(1.0 + i)) for i in range(1, 10)]
    losses = [factories.attempt(number=i, variant=i, verdict=factories.wrong()) for i in range(10, 30)]
    long = factories.attempt(number=1, verdict=factories.wrong(), idea="tile " * 100)
    [line] = explain.history([long])  # alone it has the room of all
    assert line.endswith("tile tile") and 'inputs "normal", index (3, 17), 512 times PyTorch\'s own error' in line
    cut = explain.history([*wins, long])
    assert len(cut) == 7 and cut[-1].endswith("…") and explain.IDEA_CHARS < len(cut[-1].split("Idea: ")[1]) < 500
    lines = explain.history([*wins, *losses])
    assert len(lines) == explain.HISTORY_LINES
    assert lines[0].startswith("#9 ") and lines[6].startswith("#29 wrong")


def test_the_history_has_medians_that_agree_with_the_time() -> None:
    passed = factories.passed(2.0)
    verdict = replace(passed, measurement=replace(passed.measurement, confirmed=False))
    [line] = explain.history([factories.attempt(verdict=verdict)])
    assert line.startswith("#1 100 us, 2.00x eager, 1.60x torch.compile") and "at least" not in line


def test_the_contract_names_functions_of_the_headers_with_their_arguments() -> None:
    device = replace(factories.device("cuda"), arch="sm_90")
    contract = render("system", **prompt_values.contract_values(device))
    for header in ("rag_mma.h", "rag_tma.h"):
        [bullet] = [line for line in contract.splitlines() if line.startswith(f"- `{header}` may be included")]
        source = (INCLUDE / header).read_text()
        named = [
            call
            for span in re.findall(r"`([^`]+)`", bullet)
            for call in re.findall(r"^(\w+)(?:<[^>]*>)?\((.*)\)", span)
        ]
        assert len(named) > 8
        for name, given in named:
            assert re.search(rf"\b{name}\b", source), name
            found = re.search(rf"\b{name}\(((?:[^()]|\([^()]*\))*)\) *{{", source)
            if found and "..." not in given:
                count = [
                    len(re.sub(r"[(<{][^)>}]*[)>}]", "", text).split(",")) if text else 0 for text in (given, found[1])
                ]
                optional = found[1].count(" = ")
                assert count[1] - optional <= count[0] <= count[1], name


def test_one_idea_is_asked_for_as_one() -> None:
    brief = _brief(factories.problem())
    for count, says in ((1, "Propose one idea"), (3, "Propose 3 different ideas")):
        text = render("ideas", **prompt_values.problem_values(brief), count=count, exemplars=[])
        assert says in text and ("the most promising first" in text) == (count > 1)
