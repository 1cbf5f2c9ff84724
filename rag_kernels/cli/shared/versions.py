"""What `--version` says: of this package and its checkout, of the judge, and of torch. Imports none of the latter."""

from __future__ import annotations

import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import rag_kernels
from rag_kernels.version import __version__


def versions() -> str:
    """Return a line such as "rag-kernels 0.1.0 (commit 1a2b3c4), judge 3-9f0e1d2c, torch 2.13.0"."""
    from rag_kernels.eval.judge import JUDGE_VERSION

    at = commit()
    return f"rag-kernels {__version__}{f' (commit {at})' if at else ''}, judge {JUDGE_VERSION}, torch {torch()}"


def commit() -> str:
    """Return the short commit of the checkout that this package runs from; empty where it was installed."""
    root = Path(rag_kernels.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def torch() -> str:
    """Return the version of torch that is installed, without importing it."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "not installed"
