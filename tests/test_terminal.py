"""What a terminal of 80 and of 120 columns shows, as pictures in text; `UPDATE_PICTURES=1 pytest` draws them anew."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import sleep

import pytest
from factories import attempt, candidate, compiled, passed, problem, run, wrong
from rich.console import Console

from rag_kernels.archive.records import Attempt
from rag_kernels.cli.shared.busy import busy
from rag_kernels.eval.progress import PROGRESS, doing
from rag_kernels.eval.records import BuildFailed, Crashed
from rag_kernels.llm.prompt_values import signature
from rag_kernels.long_runs.growth import Grown
from rag_kernels.report.columns import fitting
from rag_kernels.report.console import (
    SCORES_TOLD,
    attempts_table,
    print_table,
    runs_text,
    scores_text,
    summary,
    waiting_line,
)
from rag_kernels.report.growth_view import growth_table
from rag_kernels.report.json_rows import grown_row, result_row
from rag_kernels.report.verdict import report
from rag_kernels.report.waiting import Waiting, changing, console_of
from rag_kernels.text.wording import broken

PICTURES = Path(__file__).parent / "terminal"
RELU = problem()
ATTEMPTS = (
    attempt("r1", 1, RELU, verdict=passed(5.0, confirmed=False), model="openai/a-model-with-a-long-name"),
    attempt("r1", 2, RELU, variant=1, verdict=wrong()),
    attempt("r1", 3, RELU, variant=2, verdict=compiled()),
    attempt("r1", 4, RELU, verdict=passed(2.5), note="confirmation of attempt 1"),
)
COLUMNS = {"problem": "problem", "state": "state", "kernel": "kernel_id", "vs eager": "speedup_eager"}
COLUMNS |= {"vs compile": "speedup_compile", "candidates": "attempts", "seconds": "seconds"}


def attempts(console: Console) -> None:
    with attempts_table(console, "relu [1]") as show:
        for one in ATTEMPTS:
            show(one)


def growth(console: Console) -> None:
    with growth_table(console, "2 problems", {}) as show:
        for one in ATTEMPTS:
            show(one)
        show(Grown(Path("scaled_relu.py"), "scaled_relu", ATTEMPTS))
        show(Grown(Path("2.py"), "a_problem_with_a_long_name", (), failure="It has a syntax error on line 1."))


def grown(console: Console) -> None:
    rows = [grown_row(Grown(Path("p.py"), "scaled_relu", ATTEMPTS))]
    print_table(rows, COLUMNS, ("seconds", "candidates", "state", "kernel", "vs eager"), console)


def verdict(console: Console) -> None:
    console.print(report(ATTEMPTS[-1].judged, console.width))


def does_not_build(console: Console) -> None:
    error = "mine.cpp:3:9: error: 'struct rk::Tensor<const float>' has no member named 'sizes'; did you mean 'size'?"
    log = f"mine.cpp: In function 'f':\n{error}\n    3 |   return x;\n      |          ^"
    said = BuildFailed(error, log)
    console.print(report(replace(ATTEMPTS[-1].judged, verdict=said), console.width))


def misused(console: Console) -> None:
    reason = "The candidate failed during a call: TypeError: the kernel takes another number of arguments than the call"
    said = Crashed(reason, "", raised=True)
    console.print(report(replace(ATTEMPTS[-1].judged, verdict=said), console.width, signature(RELU, "cpu")))


def crashes(console: Console) -> None:
    said = Crashed("It was killed by SIGSEGV.", "mine.cpp:3: heap-buffer-overflow in reach()")
    console.print(report(replace(ATTEMPTS[-1].judged, verdict=said), console.width))


def scored(console: Console) -> None:
    text = f"{runs_text([run('r1')])}\n\n{scores_text([], [])}\n\n{SCORES_TOLD}"
    console.print(broken(text, console.width, hang=0), markup=False, highlight=False)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("draw", [attempts, growth, grown, verdict, does_not_build, crashes, misused, scored])
def test_the_picture(draw: Callable[[Console], None], width: int) -> None:
    console = Console(file=io.StringIO(), record=True, force_terminal=True, width=width, _environ={})
    draw(console)
    lines = [line.rstrip() for line in console.export_text().rstrip().splitlines()]
    heads = [number for number, line in enumerate(lines) if line.startswith("  ") and "   " in line.strip()[:40]]
    shown = [number for number in heads if any(word in lines[number] for word in ("verdict", "problem "))]
    last = "\n".join(lines[shown[-1] :] if shown else lines)  # the last frame of a view that is drawn anew
    assert all(len(line) <= width for line in last.splitlines())
    picture = PICTURES / f"{draw.__name__}_{width}.txt"
    if os.environ.get("UPDATE_PICTURES"):
        picture.write_text(last + "\n")
    assert last + "\n" == picture.read_text()


def test_headings_are_never_cut() -> None:
    for name in ("attempts", "growth", "grown"):
        head = next(
            line
            for line in (PICTURES / f"{name}_80.txt").read_text().splitlines()
            if "problem" in line or "verdict" in line
        )
        assert "…" not in head


def test_a_run_that_wrote_nothing_says_why() -> None:
    row = result_row([], run_id="r1", problem="p", why="The budget of 2 rounds is used up.")
    assert row["reason"] == "No candidate was written: the budget of 2 rounds is used up."
    assert summary(row).endswith("No candidate was written: the budget of 2 rounds is used up.")


def test_lines_are_broken_between_words_and_go_on_beneath_what_they_say() -> None:
    assert broken("  why       one two three four", 24, hang=12) == "  why       one two\n            three four"
    assert broken("a bb ccc", 0) == "a bb ccc" and broken("a bb ccc", 8) == "a bb ccc"


def test_columns_go_by_rank() -> None:
    widths = {"a": 10, "b": 10, "c": 10}
    assert fitting(widths, ("b", "a"), 40) == ["a", "b", "c"]
    assert fitting(widths, ("b", "a"), 39) == ["a", "c"]
    assert fitting(widths, ("b", "a"), 5) == ["c"]


def test_the_line_says_what_is_waited_for_and_what_is_left() -> None:
    line = Waiting()
    PROGRESS.addHandler(line)
    PROGRESS.setLevel("DEBUG")
    try:
        doing("building", wanted=2)
        doing("timing torch.compile")
        line.judged(1)
        assert line.text() == "timing torch.compile 0 s, judged 1 of 2; 0 s in all"
    finally:
        PROGRESS.removeHandler(line)
        PROGRESS.setLevel("NOTSET")


def test_the_line_is_one_line_however_narrow_the_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=30, _environ={})
    console.print(Waiting(first="confirming: eager and torch.compile anew"))
    assert isinstance(console.file, io.StringIO)
    [line] = console.file.getvalue().splitlines()
    assert line.endswith("…") and len(line) <= 30


@pytest.mark.parametrize("terminal", [True, False])
def test_rows_of_json_go_where_stdout_goes_while_a_view_is_on_stderr(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    out, shown = Stream(terminal), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    console = console_of(as_json=True)
    assert not (terminal and console.is_terminal)  # the rows would tear it
    row = json.dumps({"type": "attempt", "reason": "long " * 60})
    view = Console(file=shown, stderr=True, force_terminal=not terminal, width=80)
    with changing("timing", view):
        print(row)
    assert out.getvalue() == row + "\n" and "attempt" not in shown.getvalue()


def test_a_command_says_what_it_waits_for_from_its_first_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (True, False):
        err = Stream(terminal)
        monkeypatch.setattr(sys, "stderr", err)
        with busy("reading mine.py"):
            doing("starting the judge")
            sleep(0.3)
        assert ("reading mine.py" in err.getvalue()) == ("starting the judge" in err.getvalue()) == terminal


class Stream(io.StringIO):
    """A stream that is a terminal, or is none."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def test_in_brief_only_the_line_is_shown() -> None:
    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
        with waiting_line(console) as show:
            one: Attempt = attempt("r1", 1, RELU, candidate=candidate(RELU))
            show(one)
        assert isinstance(console.file, io.StringIO) and "2.00x" not in console.file.getvalue()
