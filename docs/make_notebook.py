"""Runs docs/optimize.ipynb and keeps what its cells print: `python docs/make_notebook.py`."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).with_name("optimize.ipynb")


def run(cells: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Run the code cells one after the other in one namespace; return the outputs of each."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [_run("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]


def _run(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one cell; what it prints is an output, and so is the value of its last line, as notebooks have it."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": [repr(value)]}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = [value._repr_html_()]
        outputs.append({"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return outputs


def main() -> None:
    """Write the notebook with what its cells print now."""
    page = json.loads(NOTEBOOK.read_text())
    code = [cell for cell in page["cells"] if cell["cell_type"] == "code"]
    for number, (cell, outputs) in enumerate(zip(code, run(page["cells"]), strict=True), 1):
        cell["outputs"], cell["execution_count"] = outputs, number
        for output in outputs:
            if "execution_count" in output:
                output["execution_count"] = number
    NOTEBOOK.write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
