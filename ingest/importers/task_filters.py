"""robust-kbench's own verdicts on tasks: `filter_results.json` beside a task.

Comes in: a checkout, or a task's folder. Goes out: a sentence for each task that fails a numeric filter. The verdicts
of its language model are left out: it calls most references of level 2 inefficient.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

FILTERS = {
    "filter_output_range": "all outputs are below 0.01",
    "filter_output_std": "the output hardly varies",
    "filter_output_axes": "the output is the same along an axis",
    "filter_input_impact": "the output hardly depends on the input",
}
_TASK = re.compile(r"level_(\d+)/task_(\d+)/filter_results\.json$")


def task_warning(folder: Path) -> str:
    """Return a sentence on the numeric filters that a task fails.

    It is empty if it fails none, and where there is no readable verdict.
    """
    try:
        verdict = json.loads((folder / "filter_results.json").read_text())
    except (OSError, ValueError):
        return ""
    if not isinstance(verdict, dict):
        return ""
    found = [sentence for name, sentence in FILTERS.items() if verdict.get(name) is True]
    return f"robust-kbench's filters: {', '.join(found)}" if found else ""


def task_warnings(checkout: Path) -> dict[tuple[int, int], str]:
    """Return these sentences for all KernelBench tasks of a checkout, by level and task."""
    found: dict[tuple[int, int], str] = {}
    for file in sorted(checkout.rglob("filter_results.json")):
        place = _TASK.search(file.as_posix())
        warning = task_warning(file.parent) if place else ""
        if place and warning:
            found[int(place[1]), int(place[2])] = warning
    return found
