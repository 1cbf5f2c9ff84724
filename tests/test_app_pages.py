"""The explorer's pages of one thing: kernel, problem, run, retrieval for an attempt, and two things compared."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from explorer_archive import CHILD, PARENT, PROBLEM_ID, codes, fill, lists, markups, numbers, over, shown, visit
from factories import attempt, candidate, device, judged, passed, problem, run

from rag_kernels.archive.store import FileArchive
from rag_kernels.eval import codec
from rag_kernels.eval.admission_records import Examination, NullKernel, Sensitivity
from rag_kernels.eval.instruments import assembly
from rag_kernels.eval.sessions.admission import admission_file, admit

if TYPE_CHECKING:
    from streamlit.testing.v1 import AppTest

SASS = """\
        Function : k
        /*0010*/                   LDG.E R4, [R2.64] ;
        /*0020*/                   FFMA R5, R4, R4, R5 ;
        /*0030*/              @!P0 BRA 0x10 ;
        /*0040*/                   EXIT ;
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explorer") / "archive"
    fill(path)
    return path


@pytest.fixture
def explorer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    return over(folder, monkeypatch)


def test_kernel_page_shows_source_numbers_and_the_command_that_judges_again(explorer: AppTest) -> None:
    page = visit(explorer, "kernel", id=CHILD.id)
    values = numbers(page)
    assert values["Speed-up"] == "2.00×"
    assert values["Time per call"] == "100 µs"
    source, again = codes(page)
    assert source == ("cpp", CHILD.source.rstrip())
    assert f"rag-kernels archive reverify {CHILD.id[:10]}" in again[1]


def test_what_nothing_confirmed_is_marked_and_loses_to_what_is_confirmed_on_every_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that was told 3 times as fast, confirmed at 1.75 on one device and not on another."""
    archive = FileArchive(tmp_path / "archive")
    archive.start_run(run("r"))
    unsure = candidate(problem(), variant=1)
    for number, (verdict, on) in enumerate(
        [
            (passed(3.75, confirmed=False), device()),
            (passed(2.1875), device()),
            (passed(5.0, confirmed=False), device("cuda")),
        ],
        1,
    ):
        archive.record_attempt(attempt("r", number, candidate=PARENT, judged=judged(verdict, on=on)))
    archive.record_attempt(attempt("r", 4, candidate=unsure, verdict=passed(2.5, confirmed=False)))
    explorer = over(tmp_path / "archive", monkeypatch)
    assert numbers(visit(explorer, "kernel", id=PARENT.id))["Speed-up"] == "1.75×"
    [elsewhere] = [text for text in markups(explorer) if "rk-elsewhere" in text]
    assert "≥ 3.80×" in elsewhere and "Test GPU" in elsewhere and "Test CPU" not in elsewhere
    assert numbers(visit(explorer, "kernel", id=unsure.id))["Over eager"] == "≥ 2.38×"
    assert numbers(visit(explorer, "run", id="r"))["Best speed-up"] == "1.75×"
    assert numbers(visit(explorer, "overview"))["Best speed-up"] == "≥ 3.80×"  # the other device's


@pytest.mark.parametrize(
    ("tab", "expected"),
    [
        ("Changes", "stands in"),
        ("Use it", "Save"),
        ("Use it", "A submission to GPU MODE"),
        ("Assembly", "compiled here"),
        ("Timings", "50 interleaved pairs"),
        ("Verdict", "Checks that held"),
        ("Lineage", "stands beneath it"),
        ("How it was made", "Prompt and reply"),
        ("Problem", "What it computes"),
    ],
)
def test_every_tab_of_a_kernel_draws(explorer: AppTest, tab: str, expected: str) -> None:
    assert expected in shown(visit(explorer, "kernel", id=CHILD.id, tab=tab))


@pytest.mark.skipif(shutil.which("objdump") is None, reason="binutils are not installed")
def test_the_assembly_of_a_kernel_is_shown_with_its_hot_loop(explorer: AppTest) -> None:
    page = visit(explorer, "kernel", id=CHILD.id, tab="Assembly", asm="true")
    loop, listing = [text for language, text in codes(page) if language == "asm"]
    assert "The hot loop" in shown(page) and all(line in listing for line in loop.splitlines())


def test_a_kernel_for_a_gpu_is_shown_in_sass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the page has it: `test_assembly` makes SASS where there are tools for it."""
    monkeypatch.setattr(assembly, "assembly", lambda source, backend, cache: SASS)
    made = candidate(problem(), variant=3, backend="cuda")
    archive = FileArchive(tmp_path / "gpu")
    archive.start_run(run("r"))
    archive.record_attempt(attempt("r", 1, candidate=made, judged=judged(passed(), on=device(backend="cuda"))))
    page = visit(over(tmp_path / "gpu", monkeypatch), "kernel", id=made.id, tab="Assembly", asm="true")
    loop, listing = [text for language, text in codes(page) if language == "asm"]
    assert listing == SASS.rstrip() and "FFMA" in loop and "EXIT" not in loop


def test_the_prompt_and_the_exemplars_are_shown_as_they_were_sent(explorer: AppTest) -> None:
    page = visit(explorer, "kernel", id=CHILD.id, tab="How it was made")
    assert {"Make <b>it</b> fast.", "Here **it** is.", PARENT.source.rstrip()} <= {text for _, text in codes(page)}


def test_changes_show_the_difference_to_the_parent(explorer: AppTest) -> None:
    page = visit(explorer, "kernel", id=CHILD.id, tab="Changes")
    difference = next(text for language, text in codes(page) if language == "diff")
    assert "-constexpr int variant = 0;\n+constexpr int variant = 1;" in difference


def test_an_unknown_id_leads_back_to_the_table(explorer: AppTest) -> None:
    for view in ("kernel", "problem", "run"):
        assert "nonsense" in shown(visit(explorer, view, id="nonsense"))


def test_problem_page_ranks_and_explains(explorer: AppTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAG_KERNELS_CACHE", str(tmp_path))
    page = visit(explorer, "problem", id=PROBLEM_ID)
    assert list(lists(page)[0]["id"])[:2] == [CHILD.id, PARENT.id]
    assert any("module_fn" in text for _, text in codes(page))
    assert "rag-kernels check" in shown(page)


def test_problem_page_shows_the_admission_report_of_this_machine(
    explorer: AppTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAG_KERNELS_CACHE", str(tmp_path))
    found = Examination(
        sensitivities=(Sensitivity("x", "input", 1.2),),
        null_kernels=(NullKernel("zeros", False, False, 300.0, True),),
        notes=("KernelBench's tolerance would pass zeros",),
    )
    file = admission_file(problem(), device(), cache=tmp_path)
    file.parent.mkdir()
    file.write_text(codec.dumps(admit(found)))
    page = visit(explorer, "problem", id=PROBLEM_ID)
    assert "KernelBench's tolerance would pass zeros" in shown(page)
    nulls = next(table.value for table in page.dataframe if "kernelbench" in table.value)
    assert list(nulls["judge"]) == ["rejects it"] and list(nulls["kernelbench"]) == ["passes it"]


def test_run_page_groups_failures_and_tells_the_budget(explorer: AppTest) -> None:
    page = visit(explorer, "run", id="run1")
    reasons = next(table.value for table in page.dataframe if "reason" in table.value and "count" in table.value)
    assert set(reasons["outcome"]) == {"wrong", "build failed"}
    assert numbers(page)["Tokens"] == "200"
    assert "Budget" in shown(page) and "tokens 200" in shown(page)


def test_retrieval_says_what_was_shown_why_and_whether_it_paid(explorer: AppTest) -> None:
    page = visit(explorer, "retrieval", id="run1", attempt="4")
    table = lists(page)[0].set_index("id")
    row = table.loc[PARENT.id]
    assert (row["bm25"], row["dense"], row["graph"], row["won"], row["shown"]) == (2, 0.83, 0.71, 1, 1)
    assert 90 < row["likeness"] < 100  # they differ in one constant
    assert table.at["k_gone", "problem"] == "not in this archive"
    assert numbers(page)["Speed-up"] == "2.00×"


def test_retrieval_as_a_whole_has_the_record_of_each_signal(explorer: AppTest) -> None:
    page = visit(explorer, "retrieval")
    (signals,), (helped, attempts) = (table.value for table in page.dataframe), lists(page)
    assert "vectors (dense)" in set(signals["signal"])
    assert list(helped["id"]) == [PARENT.id]
    assert list(attempts["number"]) == [4]


def test_an_archive_of_an_ablation_shows_what_each_way_is_worth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive: FileArchive = fill(tmp_path / "archive")
    for arm in ("off", "hybrid"):
        settings = f'{{"retrieval": "{arm}", "seed": 0, "problem_id": "p_1"}}'
        archive.start_run(run(f"a-{arm}", command="ablate", settings=settings))
        archive.finish_run(f"a-{arm}", "finished")
    page = visit(over(tmp_path / "archive", monkeypatch), "retrieval")
    assert set(page.dataframe[0].value["arm"]) == {"off", "hybrid"}


def test_two_kernels_are_compared(explorer: AppTest) -> None:
    page = visit(explorer, "compare", a=PARENT.id[:12], b=CHILD.id)
    facts = page.dataframe[0].value.set_index("")
    assert list(facts.loc["speed-up"]) == ["1.28×", "2.00×"]
    difference = next(text for language, text in codes(page) if language == "diff")
    assert "-constexpr int variant = 0;\n+constexpr int variant = 1;" in difference
    times = page.dataframe[1].value
    assert list(times["B is faster by"]) == ["1.00×"]


def test_two_runs_are_compared(explorer: AppTest) -> None:
    facts = visit(explorer, "compare", a="run1", b="run2").dataframe[0].value.set_index("")
    assert list(facts.loc["attempts"]) == ["5", "1"]
    assert list(facts.loc["setting rounds"]) == ["2", "3"]


def test_one_kernel_to_compare_offers_its_rivals(explorer: AppTest) -> None:
    page = visit(explorer, "compare", a=CHILD.id)
    assert "Choose what to compare it with" in shown(page)
    assert "no kernel or run nonsense" in shown(page.text_input(key="b").set_value("nonsense").run())
