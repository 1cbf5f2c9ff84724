"""docs/extending.md as it stands: its files are saved and its code runs, with the real compiler and judge."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_home import quick_limits

from rag_kernels import wiring
from rag_kernels.export.packages import PACKAGES
from rag_kernels.offline.lowering.coverage import RULES

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S))
BLOCK = re.compile(r"(?P<before>[^\n]*\n[^\n]*)\n\n```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S)
SAVED = re.compile(r"[Ss]ave this as\s+`([\w./]+)`:$")


def save_files(folder: Path) -> None:
    """Write every file that the page says to save."""
    for block in BLOCK.finditer(PAGE.read_text()):
        saved = SAVED.search(block["before"])
        if saved:
            (folder / saved[1]).parent.mkdir(exist_ok=True)
            (folder / saved[1]).write_text(block["code"])


@pytest.mark.parametrize("section", SECTIONS)
def test_the_examples_run(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wiring, "Limits", quick_limits)  # torch.compile is no part of what the page shows
    rules, packages = dict(RULES), dict(PACKAGES)
    names: dict[str, object] = {"__name__": "extending"}
    blocks = list(BLOCK.finditer(SECTIONS[section]))
    assert len(blocks) == SECTIONS[section].count("```") // 2
    save_files(tmp_path)
    try:
        for block in blocks:
            if block["language"] == "python" and not SAVED.search(block["before"]):
                exec(compile(block["code"], f"{PAGE.name}, {section}", "exec"), names)
    finally:
        RULES.clear()
        RULES.update(rules)
        PACKAGES.clear()
        PACKAGES.update(packages)


def test_every_section_has_code_and_the_page_is_short() -> None:
    assert len(SECTIONS) == 4 and all("```python" in text for text in SECTIONS.values())
    assert PAGE.stat().st_size <= 12 * 1024
