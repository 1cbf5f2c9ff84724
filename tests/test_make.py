"""The Makefile on machines that lack something: a sentence that says what to do, and exit code 2 from make."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def make(target: str, *, path: Path, python: str) -> subprocess.CompletedProcess[str]:
    """Run make where `path` is the only folder of programs, so that neither g++ nor apt-get is found there."""
    gnu_make = shutil.which("make")
    assert gnu_make
    return subprocess.run(
        [gnu_make, target, f"PYTHON={python}"],
        cwd=ROOT,
        env={"PATH": str(path), "HOME": os.environ.get("HOME", "/")},
        text=True,
        capture_output=True,
        timeout=30,
    )


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder with the programs that every system has, and no compiler."""
    for name in ("bash", "id", "env", "sed", "awk"):
        program = shutil.which(name)
        assert program
        (tmp_path / name).symlink_to(program)
    return tmp_path


def test_help_lists_the_targets(bare: Path) -> None:
    done = make("help", path=bare, python=sys.executable)
    assert done.returncode == 0
    assert {"demo", "test", "setup", "bench", "lint", "clean"} <= {line.split()[1] for line in done.stdout.splitlines()}


def test_no_compiler(bare: Path) -> None:
    done = make("tools", path=bare, python=sys.executable)
    assert done.returncode == 2
    assert "Not found: the C++ compiler g++" in done.stderr
    assert "apt-get install -y g++" in done.stderr


def test_compiler_present(bare: Path) -> None:
    (bare / "g++").write_text("#!/bin/sh\n")
    (bare / "g++").chmod(0o755)
    done = make("tools", path=bare, python=sys.executable)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_python(bare: Path) -> None:
    done = make("tools", path=bare, python="python3")
    assert done.returncode == 2
    assert "Not found: Python 3.11 or newer" in done.stderr


def test_named_python_is_missing(bare: Path) -> None:
    done = make("tools", path=bare, python="python3.99")
    assert done.returncode == 2
    assert "needs Python 3.11 or newer, and python3.99 is missing." in done.stderr


def test_old_python(bare: Path) -> None:
    old = bare / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.18 && exit 0\nexit 1\n')
    old.chmod(0o755)
    done = make("tools", path=bare, python="python3")
    assert done.returncode == 2
    assert "needs Python 3.11 or newer, and python3 is Python 3.9.18" in done.stderr
    assert "make PYTHON=" in done.stderr
