"""Fixtures that several files share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_home import RELU
from support.kept import SHARED_CACHE, STAY_OPEN, kept_judge, kept_workers


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache for the commands and judges of all tests and processes, as a user has one.

    What takes long is made once: precompiled headers (also for judges with a cache of their own), baselines, builds.
    Judges and warm parents that commands and calls of this process open stay open for the next one.
    """
    here = tmp_path_factory.getbasetemp()
    folder = (here.parent if "PYTEST_XDIST_WORKER" in os.environ else here) / "cache"
    (folder / "headers").mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rag_kernels.eval.build.compile.header_folder", lambda cache: folder / "headers")
        for name in ("RAG_KERNELS_CACHE", SHARED_CACHE):
            patch.setenv(name, str(folder))
        patch.setattr("rag_kernels.wiring.open_judge", kept_judge)
        for user in ("wiring", "api", "ingest.functional.functionalize"):  # the last is where commands import it from
            patch.setattr(f"rag_kernels.{user}.open_workers", kept_workers)
        with STAY_OPEN:
            yield folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's home, shared by this file."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "relu.py").write_text(RELU.problem.source)
    return folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why a test that was tried once more had failed: a cause that shows only now and then is found here."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"first try of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext[-3000:])
