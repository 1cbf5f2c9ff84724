"""The offline writer as the search uses it: reuse, fuse, tune, stop. Nothing is compiled here but CUDA."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from factories import attempt, candidate, linear_problem, problem, wrong
from support.compiler_reading import together
from support.generated_kernels import CASES, Case, functional
from support.offline_briefs import brief, judged, shown

from rag_kernels.eval.build.candidate_form import check_composed, kernels_text
from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.eval.records import Backend, Candidate, Contract, ServedTensor
from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda.function import CudaParameters
from rag_kernels.offline.tuning import has_effect, neighbours, parameters_in, starting_parameters
from rag_kernels.offline.writer import OfflineWriter
from rag_kernels.records import Draft
from rag_kernels.run.generate import with_reason


@pytest.mark.parametrize(("known", "first"), [(True, True), (False, False)])
def test_the_archived_kernel_of_the_same_graph_comes_first_at_its_own_sizes(known: bool, first: bool) -> None:
    fp = problem()
    old = dataclasses.replace(shown(fp, "// archived"), problem=fp if known else None)
    drafts = OfflineWriter().propose(brief(fp, exemplars=(old,)))
    assert [d.candidate.source == "// archived" for d in drafts] == [first, not first]
    assert drafts[0 if first else 1].parents == (("k_old", "retrieved"),)


@pytest.mark.parametrize("other", [{"graph_key": "g_other"}, {"backend": "cuda"}])
def test_a_kernel_of_another_graph_or_backend_is_not_reused(other: dict[str, str]) -> None:
    fp = problem()
    drafts = OfflineWriter().propose(brief(fp, exemplars=(shown(fp, "// archived", **other),)))  # type: ignore[arg-type]
    assert [d.candidate.tier for d in drafts] == ["kernel"]
    assert "// archived" not in drafts[0].candidate.source


@pytest.mark.parametrize(("rows", "reused"), [(64, True), (32, False)])
def test_a_kernel_of_fixed_sizes_is_reused_at_those(rows: int, reused: bool) -> None:
    asked, then = (
        functional(name, Case("return torch.softmax(x, 1) + y", f"torch.rand({n}, 8)", f"torch.rand({n}, 8)"))
        for name, n in (("asked", 64), ("archived", rows))
    )
    old = shown(asked, "// archived")
    kernel = dataclasses.replace(old.kernel, labels=("shape-specialised",))
    drafts = OfflineWriter().propose(brief(asked, exemplars=(dataclasses.replace(old, kernel=kernel, problem=then),)))
    assert (drafts[0].candidate.source == "// archived") is reused
    for columns in ("8", "9"):  # a kernel for any number of rows, which it says itself
        held = Contract(tuple(ServedTensor(x, "float32", ("N", columns)) for x in "xy"), (), "element")
        drafts = OfflineWriter().propose(
            brief(asked, exemplars=(dataclasses.replace(old, problem=then, contract=held),))
        )
        assert any(d.candidate.source == "// archived" for d in drafts) is (columns == "8" or rows == 64)


def test_products_are_the_librarys_or_ours_as_in_what_retrieval_found() -> None:
    """Of a similar problem at other sizes; what no exemplar speaks of stays as it was."""
    asked, then = (
        functional(
            "conv",
            Case(
                "return torch.relu(F.conv2d(x, self.w)) + y",
                f"torch.rand(2, 3, {n}, {n})",
                "torch.rand(1)",
                init="self.w = nn.Parameter(torch.rand(8, 3, 3, 3))",
            ),
        )
        for n in (18, 34)
    )
    ours, librarys = (write(then, CpuParameters(products=products)) for products in (2, 0))
    assert ours is not None and librarys is not None and librarys.library == ("conv2d",) and not ours.library
    plain = OfflineWriter().propose(brief(asked))
    assert len(plain) == 2 and not any("as in" in draft.idea for draft in plain)
    for plan, tier, problem_ in ((ours, "kernel", then), (librarys, "composed", None)):
        old = shown(asked, plan.candidate.source, graph_key="g_similar")
        old = dataclasses.replace(old, kernel=dataclasses.replace(old.kernel, tier=tier), problem=problem_)
        drafts = OfflineWriter().propose(brief(asked, exemplars=(old,)))
        assert drafts[0].candidate.tier == tier
        assert {d.candidate.id for d in drafts} >= {d.candidate.id for d in plain}
        follows = drafts[0].candidate.id != plain[0].candidate.id
        assert ("Products as in k_old." in drafts[0].idea, bool(drafts[0].exemplars)) == (follows, follows)
    foreign = shown(asked, "// of another hand", graph_key="g_similar")
    drafts = OfflineWriter().propose(brief(asked, exemplars=(dataclasses.replace(foreign, problem=then),)))
    assert [d.candidate.id for d in drafts] == [d.candidate.id for d in plain]


def test_a_loop_that_no_tensor_tells_the_size_of_is_right_at_its_own_sizes_only() -> None:
    """Steps of a slice that are summed within the kernel: it refuses other sizes, and does not sum too few of them.

    How long a slice up to the end is, or a flip, and how many windows there are, is told by what they are of.
    """
    told = ("x.sum(-1)", "x.flip(-1).cumsum(-1)[:, 0]", "x[:, 2:].cumsum(-1)[:, 0]", "F.avg_pool1d(x, 4, 4).sum(-1)")
    for body, refused in (("x[:, ::2].sum(-1)", True), *((body, False) for body in told)):
        case = Case(f"return {body} + y", "torch.rand(6, 32)", "torch.rand(6)")
        plan = write(functional("summed", case), CpuParameters(short=0))
        assert plan is not None and ('RK_CHECK(x.size(1) == 32, "' in plan.candidate.source) is refused, plan


def test_room_for_a_result_is_as_large_as_what_it_is_made_of() -> None:
    case = Case("return torch.relu(torch.special.erfcx(x)) * 2", "torch.rand(6, 32)", "torch.rand(6)", tier="composed")
    plan = write(functional("sorted", case), CpuParameters())
    assert plan is not None and ".shape, dtype=torch.float32" in plan.candidate.source
    check_composed(plan.candidate.source)


def test_a_wrong_attempt_is_never_drafted_again() -> None:
    fp = problem()
    (first,) = OfflineWriter().propose(brief(fp))
    failed = dataclasses.replace(attempt("run", 1, fp, verdict=wrong()), candidate=first.candidate)
    assert OfflineWriter().propose(brief(fp, attempts=(failed,), number=2)) == []


def test_what_stays_with_the_library_is_named_with_the_reason() -> None:
    found = functional("left", Case("return torch.linalg.inv(x + 0)", "torch.rand(4, 4)", "torch.rand(1)"))
    assert OfflineWriter().why_not(found) == "It leaves to PyTorch: linalg_inv (no rule)."
    run = with_reason("Nothing is left.", OfflineWriter(), found)
    assert run == "Nothing is left. It leaves to PyTorch: linalg_inv (no rule)."
    assert OfflineWriter().why_not(problem()) == ""


def test_pointers_are_variables_where_a_byte_is_stored() -> None:
    """Such a store may change a tensor that holds a pointer, as far as a compiler knows, and vectors end there."""
    for body, plain in (("(x > y).to(torch.int8), x + y", False), ("x + y", True)):
        plan = write(
            functional("bytes", Case(f"return {body}", "torch.rand(7, 40)", "torch.rand(40)")), CpuParameters()
        )
        assert plan is not None and (".data[" in plan.candidate.source) is plain


def test_no_reduced_loop_is_unrolled_where_other_sizes_are_to_be_served() -> None:
    fp = functional("short", Case("return x.sum(-1) * y", "torch.rand(7, 40)", "torch.rand(7)"))
    for also, unrolled in [((), True), (("COLUMNS=99",), False)]:
        (draft,) = OfflineWriter().propose(dataclasses.replace(brief(fp), also=also))
        assert ("40>()" in draft.candidate.source) is unrolled is ("SHORT = 0" not in draft.candidate.source)
        assert parameters_in(draft.candidate.source, "cpu") == CpuParameters(short=64 if unrolled else 0)


def test_tuning_starts_from_the_fastest_and_ends() -> None:
    fp = functional("tuned", CASES["column_softmax"])
    writer = OfflineWriter()
    (first,) = writer.propose(brief(fp))
    attempts = [judged(fp, first, 1, 100.0)]
    second = writer.propose(brief(fp, attempts=tuple(attempts), number=2, width=2))
    assert [d.parents for d in second] == [((first.candidate.id, "parent"),)] * 2
    attempts += [judged(fp, d, 2 + i, 50.0 - i) for i, d in enumerate(second)]
    seen = {a.candidate.id for a in attempts}
    for number in range(3, 40):
        drafts = writer.propose(brief(fp, attempts=tuple(attempts), number=number, width=2))
        if not drafts:
            break
        best = min(attempts, key=lambda a: a.judged.verdict.measurement.candidate_us)  # type: ignore[union-attr]
        assert all(d.parents == ((best.candidate.id, "parent"),) for d in drafts)
        assert not seen & {d.candidate.id for d in drafts}
        seen |= {d.candidate.id for d in drafts}
        attempts += [judged(fp, d, 10 * number + i, 60.0) for i, d in enumerate(drafts)]
    else:
        raise AssertionError("tuning never ended")


def test_a_parameter_that_nothing_reads_is_not_turned() -> None:
    """A row that a thread block holds is not shared: its source would differ in a number that nothing reads."""
    fp = functional("rows", Case("return x.softmax(-1) + y", "torch.randn(64, 1000)", "torch.randn(1)"))
    first, other = (write(fp, CudaParameters(sharing=sharing)) for sharing in (1024, 0))
    wider = write(fp, CudaParameters(threads=512))
    assert first and other and wider and other.candidate.source != first.candidate.source
    assert not has_effect(other.candidate.source, first.candidate.source)
    assert has_effect(wider.candidate.source, first.candidate.source)


def test_parameters_survive_the_source() -> None:
    fp = functional("read_back", CASES["column_softmax"])
    for base in (CpuParameters(), CudaParameters()):
        backend: Backend = "cpu" if isinstance(base, CpuParameters) else "cuda"
        for parameters in neighbours(base, ("row", "column", "product", "point")):
            plan = write(fp, parameters)
            assert plan is not None
            assert parameters_in(plan.candidate.source, backend) == parameters
    assert parameters_in("// written by hand", "cpu") is None


def test_a_leader_of_another_hand_is_no_reason_to_stop_tuning() -> None:
    fp = functional("other_hand", CASES["column_softmax"])
    (own,) = OfflineWriter().propose(brief(fp))
    foreign = Draft(Candidate("// by hand", "kernel", "cpu"), idea="by hand")
    attempts = (judged(fp, own, 1, 100.0), judged(fp, foreign, 2, 10.0))
    drafts = OfflineWriter().propose(brief(fp, attempts=attempts, number=2))
    assert drafts and all(d.parents == ((own.candidate.id, "parent"),) for d in drafts)


def test_a_product_is_drafted_with_the_library_and_without() -> None:
    composed, own = OfflineWriter().propose(brief(linear_problem()))
    assert (composed.candidate.tier, own.candidate.tier) == ("composed", "kernel")
    check_composed(composed.candidate.source)
    assert composed.note == "fusion stopped at: linear (left to the library)"


def test_a_product_alone_becomes_a_kernel_and_random_numbers_give_nothing() -> None:
    fp = linear_problem()
    assert OfflineWriter().propose(brief(dataclasses.replace(fp, uses_random=True))) == []
    linear = next(n for n in fp.nodes if "linear" in n.op)
    alone = dataclasses.replace(fp, nodes=(linear,), results=(linear.name,))
    assert [d.candidate.tier for d in OfflineWriter().propose(brief(alone))] == ["kernel"]


def test_the_same_problem_gives_the_same_source() -> None:
    first, again = (functional("same", CASES["norms"]) for _ in range(2))
    assert write(first, CpuParameters()) == write(again, CpuParameters())


@pytest.mark.skipif(toolchain().nvcc is None, reason="nvcc is not installed")
def test_cuda_compiles(tmp_path: Path) -> None:
    """Room in shared memory, too, which the emulation does not bound."""
    scan = Case("return x.cumsum(-1).softmax(-1) * y", "torch.rand(3, 4501)", "torch.rand(1)")
    names, texts = ("norms", "scans", "chain", "conv_relu_pool", "long_rows"), list[str]()
    for case in (*(CASES[name] for name in names), scan):
        draft = OfflineWriter().propose(brief(functional("compiled", case), backend="cuda"))[-1]
        source = draft.candidate.source
        texts.append(kernels_text(source) if draft.candidate.tier == "composed" else source)
        assert "__global__" in texts[-1]
    [made] = build([(together(texts), "cuda")], tools=toolchain(), cache=tmp_path)
    assert isinstance(made, Built), made.log


def test_candidates_of_the_factory_are_not_ours() -> None:
    assert parameters_in(candidate(problem()).source, "cpu") is None


@pytest.mark.parametrize(("arch", "shared"), [("sm_90", 1024), ("", 1024), ("sm_80", 0), ("sm_89", 0), ("sm_120", 0)])
def test_rows_are_shared_where_blocks_have_the_room(arch: str, shared: int) -> None:
    parameters = starting_parameters("cuda", arch)
    assert isinstance(parameters, CudaParameters) and parameters.sharing == shared
