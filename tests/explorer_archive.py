"""A small archive for tests of the explorer, and the explorer over it in Streamlit's AppTest."""

from __future__ import annotations

import json
import re
import sys
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from factories import (
    attempt,
    build_failed,
    candidate,
    exemplar,
    linear_problem,
    llm_call,
    passed,
    problem,
    run,
    wrong,
)

from rag_kernels import app
from rag_kernels.archive.records import Exemplar
from rag_kernels.archive.store import FileArchive

if TYPE_CHECKING:  # each takes a second, in whichever process collects tests
    import pandas as pd
    from streamlit.testing.v1 import AppTest

EXPLORER = str(Path(app.__file__).with_name("explorer.py"))
HOSTILE_NAME = "<img src=x onerror=alert(1)> **bold** [x](http://evil.test)"
HOSTILE_IDEA = "</code><script>window.hacked=1</script> ![p](http://evil.test/p.png) $x$ :red[r] www.evil.test"
PARENT = candidate(problem())
CHILD = candidate(problem(), variant=1)
LINEAR = candidate(linear_problem(), variant=20)
HOSTILE = candidate(problem("tanh"), variant=7)
PROBLEM_ID = problem().problem.id
REASONS = ("same graph", "bm25 rank 2", "dense 0.83", "graph 0.71", "won 1.3x on Test CPU (2 threads)")


def fill(folder: Path) -> FileArchive:
    """Two runs: one with a family of two and failures, one with a text that tries to break out."""
    archive = FileArchive(folder)
    archive.start_run(run("run1", settings='{"rounds": 2, "budget_usd": 0.004, "seed": 1}'))
    archive.record_call(llm_call("run1", "call1", prompt="Make <b>it</b> fast.", reply="Here **it** is."))
    archive.record_attempt(attempt("run1", 1, candidate=PARENT, verdict=passed(1.6)))
    archive.record_attempt(attempt("run1", 2, variant=5, verdict=wrong()))
    archive.record_attempt(attempt("run1", 3, variant=6, verdict=build_failed()))
    archive.record_attempt(
        attempt(
            "run1",
            4,
            candidate=CHILD,
            verdict=passed(2.5),
            parents=[PARENT.id],
            exemplars=(Exemplar(PARENT.id, 1, 1.25, REASONS), exemplar("k_gone", 2)),
            call_ids=("call1",),
            writer="llm",
            model="openai/test-model",
            cost_usd=0.002,
        )
    )
    archive.record_attempt(attempt("run1", 5, linear_problem(), candidate=LINEAR, verdict=passed(1.1)))
    archive.finish_run("run1", "finished")
    archive.start_run(run("run2", problem_name=HOSTILE_NAME, settings='{"rounds": 3, "seed": 1}'))
    strange = problem("tanh", name=HOSTILE_NAME)
    archive.record_attempt(attempt("run2", 1, strange, candidate=HOSTILE, idea=HOSTILE_IDEA, verdict=passed(3.0)))
    return archive


def over(folder: Path | str, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    """The explorer over an archive, before its first page."""
    from streamlit.testing.v1 import AppTest

    monkeypatch.setattr(sys, "argv", ["explorer.py", "--archive", str(folder)])
    return AppTest.from_file(EXPLORER, default_timeout=30)


def visit(explorer: AppTest, view: str, **query: str) -> AppTest:
    explorer.switch_page(f"views/{view}.py")
    for name, value in query.items():
        explorer.query_params[name] = value
    explorer.run()
    assert not explorer.exception, explorer.exception
    return explorer


def lists(page: AppTest) -> list[pd.DataFrame]:
    """Every table of links on the page, with its values."""
    import pandas as pd

    found = [json.loads(element.proto.json) for element in page.get("bidi_component")]
    return [pd.DataFrame(data["rows"], columns=_names(data)) for data in found if "rows" in data]


def markups(page: AppTest) -> list[str]:
    """Every picture and every piece of code on the page, as HTML."""
    return [json.loads(element.proto.json).get("markup", "") for element in page.get("bidi_component")]


def codes(page: AppTest) -> list[tuple[str, str]]:
    """Every piece of code on the page: its language, and its text without colours; "diff" for a difference."""
    found = []
    for markup in markups(page):
        if code := re.match(r'<div class="rk-code[^"]*" data-language="(\w*)">.*?<code>(.*)</code>', markup, re.DOTALL):
            found.append((code[1], unescape(re.sub(r"<[^>]*>", "", code[2]))))
        elif markup.startswith('<pre class="rk-diff"'):
            lines = re.findall(r'<span class="[^"]*">(.*?)</span>', markup, re.DOTALL)
            found.append(("diff", "\n".join(map(unescape, lines))))
    return found


def _names(data: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys([*(c["key"] for c in data["columns"]), *(name for row in data["rows"] for name in row)]))


def shown(page: AppTest) -> str:
    """Every text on the page."""
    kinds = (page.title, page.subheader, page.markdown, page.text, page.caption, page.info, page.warning, page.error)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


def numbers(page: AppTest) -> dict[str, str]:
    return {metric.label: str(metric.value) for metric in page.metric}
