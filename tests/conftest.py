"""Fixtures that several files share."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_home import RELU


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's home, shared by this file so that builds and baselines are cached as they are for users."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "relu.py").write_text(RELU.problem.source)
    return folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why a test that was tried once more had failed: a cause that shows only now and then is found here."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"first try of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext[-3000:])
