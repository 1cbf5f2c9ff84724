"""Fixtures that several files share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_home import RELU


@pytest.fixture(scope="session", autouse=True)
def headers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder of precompiled headers, seconds of g++ each, for the judges of all tests and processes."""
    here = tmp_path_factory.getbasetemp()
    folder = (here.parent if "PYTEST_XDIST_WORKER" in os.environ else here) / "headers"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rag_kernels.eval.build.compile.header_folder", lambda cache: folder)
        yield folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, headers: Path) -> Path:
    """A user's home, shared by this file so that builds and baselines are cached as they are for users."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "cache").mkdir()
    (folder / "cache" / "headers").symlink_to(headers)
    (folder / "relu.py").write_text(RELU.problem.source)
    return folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why a test that was tried once more had failed: a cause that shows only now and then is found here."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"first try of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext[-3000:])
