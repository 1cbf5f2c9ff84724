"""The ablation over archives in memory, with a writer that copies what it is shown, and a scripted judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_home import RELU, RIGHT, WRONG, inside, model
from factories import attempt, candidate, linear_problem, passed, problem, run

from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.choices import RetrievalMode
from rag_kernels.cli.ablate import modes
from rag_kernels.eval.problem import load_problem
from rag_kernels.eval.records import Candidate, FunctionalProblem, Problem, ProblemError
from rag_kernels.experiments.bootstrap import ratio_interval, share_interval
from rag_kernels.experiments.retrieval_ablation import AblationTrial, ablate, summarise
from rag_kernels.experiments.wilson import wilson
from rag_kernels.ingest.description.embedder import load_embedder
from rag_kernels.ingest.description.pipeline import reindex
from rag_kernels.options import Options
from rag_kernels.records import Brief, Draft
from rag_kernels.report.console import arms_text, trial_line
from rag_kernels.retrieval.retriever import Retriever
from rag_kernels.run.exemplars import Exemplars
from rag_kernels.run.session import Session
from rag_kernels.scripted import ScriptedJudge

FORMS = {fp.problem.name: fp for fp in (problem("tanh"), problem("sigmoid"), problem("exp"))}
ARMS: tuple[RetrievalMode, ...] = ("off", "random", "hybrid")
GOOD = candidate(problem("relu"))  # what similar problems are solved by; copied, it is fast
POOR = Candidate("// a linear layer that helps nobody\nvoid linear_of_another_kind();\n", "kernel", "cpu")
OWN = Candidate("// written without help\nvoid g();\n", "kernel", "cpu")


def adapted(source: str) -> Candidate:
    """A kernel that learned from another one: much of it, and something of its own."""
    more = "static int own(int a, int b) { int c = a * 7; while (c > b) { c -= a / 3; b += 2 * c; } return c ^ b; }\n"
    return Candidate(f"{source}\n{more * 2}", "kernel", "cpu")


class Copier:
    """Adapts its first exemplar; without one it writes something of its own. `copies` leaves out the adapting."""

    name = "copier"

    def __init__(self, *, copies: bool = False) -> None:
        self.copies = copies

    def propose(self, brief: Brief) -> Sequence[Draft]:
        if not brief.exemplars:
            return [Draft(OWN, "on my own")]
        kernel = brief.exemplars[0].kernel
        shown = tuple(shown.exemplar for shown in brief.exemplars)
        made = Candidate(f"// copied\n{kernel.source}", "kernel", "cpu") if self.copies else adapted(kernel.source)
        return [Draft(made, "adapt", exemplars=shown)]


def functional(loaded: Problem) -> FunctionalProblem:
    if loaded.name not in FORMS:
        raise ProblemError("It cannot be exported.")
    return replace(FORMS[loaded.name], problem=loaded)


class Bench:
    """An archive to retrieve from, one for the results, and sessions over both."""

    def __init__(self, folder: Path) -> None:
        self.source, self.results = MemoryArchive(), MemoryArchive()
        self.source.start_run(run("run1"))
        for number, (fp, made) in enumerate(((problem("relu"), GOOD), (linear_problem(), POOR)), 1):
            self.source.record_attempt(attempt("run1", number, fp, candidate=made))
        reindex(self.source, load_embedder())
        speeds = {adapted(GOOD.source).id: 4.0, OWN.id: 1.5}
        passes = {name: passed(speed, confirmed=True) for name, speed in speeds.items()}
        self.judge = ScriptedJudge({**passes, adapted(POOR.source).id: passed(0.5)})
        self.retriever = Retriever(self.source, load_embedder(), fixed=True)
        self.writer = Copier()
        self.paths = []
        for name, fp in FORMS.items():
            self.paths.append(folder / f"{name}.py")
            self.paths[-1].write_text(fp.problem.source)

    def session(self, options: Options) -> Session:
        return Session(
            options=options,
            archive=self.results,
            judge=self.judge,
            functionalize=functional,
            retrieve=Exemplars(self.retriever, options, self.judge.device),
            index=lambda attempt: None,
            make_writer=lambda ledger: self.writer,
        )

    def run(self, **options: object) -> list[AblationTrial]:
        asked = Options(effort=1, examples=1, leave_out="problem", **options)  # type: ignore[arg-type]
        return list(ablate(self.paths, self.session, asked, arms=ARMS, seeds=(0, 1), source=self.source))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_arms_differ_in_what_the_writer_was_shown_alone(bench: Bench) -> None:
    before = bench.source.stats()
    trials = bench.run()
    assert bench.source.stats() == before and bench.results.stats()["attempts"] > 0, "no arm sees what another wrote"
    asked = len(bench.judge.asked)
    assert bench.run() == trials and len(bench.judge.asked) == asked, "what is finished is not run again"
    assert len(trials) == len(FORMS) * len(ARMS) * 2 and all(t.solved for t in trials)
    gained = {arm: {round(t.speedup, 3) for t in trials if t.arm == arm} for arm in ARMS}
    assert gained["off"] == {1.2}  # 1.5 over eager is 1.2 over torch.compile
    assert gained["hybrid"] == {3.2}
    assert gained["random"] == {1.0, 3.2}  # what is slower than PyTorch gains nothing
    arms = {arm.arm: arm for arm in summarise(trials)}
    over = arms["hybrid"].over_off
    assert over is not None and over.low == over.high == pytest.approx(3.2 / 1.2) and arms["off"].over_off is None
    assert arms["hybrid"].over_random is not None and arms["hybrid"].over_random.mean > 1
    assert (arms["off"].shown, arms["hybrid"].shown) == (0, 1)


def test_how_like_a_winner_is_to_what_was_shown_is_told_and_copies_are_counted(bench: Bench) -> None:
    adapted_ones = bench.run()
    arms = {arm.arm: arm for arm in summarise(adapted_ones)}
    assert 0.3 < (arms["hybrid"].likest or 0) < 0.9 and arms["hybrid"].near_copies == 0
    assert arms["off"].likest is None and "| hybrid | 3 | 1.00 [0.44, 1.00] |" in arms_text(list(arms.values()))
    bench.writer = Copier(copies=True)
    copies = [t for t in bench.run(hint="copy it") if t.arm == "hybrid"]  # another setting, and so another run
    assert {(t.solved, t.likest) for t in copies} == {(True, 1.0)}
    assert summarise(copies)[0].near_copies == 6
    assert trial_line(copies[0]).endswith("1 exemplar, 100 % like its likest exemplar")


def test_a_program_as_the_model_is_measured_with_its_tokens(tmp_path: Path) -> None:
    """One writes a right kernel at once, one a wrong one, one breaks: an ablation counts or says it."""
    (tmp_path / "relu.py").write_text(RELU.problem.source)
    asked = ("--effort", "1", "--drafts", "1", "--examples", "1", "--json")
    found: dict[str, list[dict[str, Any]]] = {}
    for name, sources in {"right": (RIGHT,), "wrong": (WRONG,)}.items():
        arms = "off,hybrid" if name == "right" else "off"
        command = ("ablate", "relu.py", "--model", model(tmp_path / name, *sources), *asked, "--retrieval", arms)
        place = ("--archive", tmp_path / "archive", "--results", tmp_path / name)
        found[name] = inside(tmp_path, *command, *place, quick=True).rows
    for name, solved in {"right": True, "wrong": False}.items():
        trials = [row for row in found[name] if row["type"] == "trial"]
        assert {(t["solved"], t["first"], t["failure"]) for t in trials} == {(solved, solved, "")}
        assert found[name][-1]["tokens"] > 0
    *_, off, hybrid = found["right"]
    assert 0 < off["tokens"] < hybrid["tokens"] and hybrid["shown"] > 0 == off["shown"]
    asked = (*asked, "--retrieval", "off", "--results", tmp_path / "broken")
    broken = inside(tmp_path, "ablate", "relu.py", "--model", "cmd:sh -c 'exit 3'", *asked, quick=True)
    assert [row["failure"].count("ended with code 3") for row in broken.rows] == [1]


def test_a_problem_that_cannot_be_used_counts_for_no_arm(bench: Bench, tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(load_problem(bench.paths[0]).source + "\n# another problem\n")
    bench.paths.append(bad)
    trials = bench.run()
    assert sum(t.failure == "It cannot be exported." for t in trials) == 6
    assert {arm.problems for arm in summarise(trials)} == {3}


def test_intervals_are_over_problems_and_hold_the_mean() -> None:
    found = share_interval([0.0, 1.0, 1.0, 0.0, 1.0])
    assert found.mean == pytest.approx(0.6) and found.low < 0.6 < found.high <= 1
    alike = share_interval([1.0, 1.0])  # that both are the same does not make it sure
    assert (alike.low, alike.mean, alike.high) == (pytest.approx(0.342, abs=5e-4), 1.0, 1.0)
    ratio = ratio_interval({"a": [4.0], "b": [1.0], "c": [9.0]}, {"a": [2.0], "b": [0.5]})
    assert ratio.mean == ratio.low == ratio.high == pytest.approx(2.0)


def test_the_interval_of_a_share_is_wilsons() -> None:
    assert wilson(120, 120)[0] == pytest.approx(0.969, abs=1e-3)
    assert list(wilson(118, 120)) == pytest.approx([0.941, 0.995], abs=1e-3)
    assert wilson(0, 0) == (0.0, 1.0)


def test_modes_are_a_list_with_commas() -> None:
    assert modes("hybrid, off") == ["off", "hybrid"]
    with pytest.raises(typer.BadParameter, match="--retrieval takes some of off, random"):
        modes("off,best")
