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
