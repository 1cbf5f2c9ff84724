"""The notebook of the documentation runs, and what it keeps is what its cells give."""

from __future__ import annotations

import json

import make_notebook
import pytest
from cli_home import quick_limits

from rag_kernels import wiring


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "Limits", quick_limits)  # what is shown here is the notebook, not the clock
    page = json.loads(make_notebook.NOTEBOOK.read_text())
    kept = [cell["outputs"] for cell in page["cells"] if cell["cell_type"] == "code"]
    found = make_notebook.run(page["cells"])
    assert [[o["output_type"] for o in one] for one in found] == [[o["output_type"] for o in one] for one in kept]
    [table] = [o["data"]["text/html"][0] for one in found for o in one if "data" in o]
    assert "<td>passed</td>" in table and "over torch.compile" in table
    assert [o["text"] for o in found[-1]] == [o["text"] for o in kept[-1]]  # the sentence about a wrong option
