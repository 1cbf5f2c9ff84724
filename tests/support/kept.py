"""Judges and warm parents that the tests of one process share: a start takes longer than what most tests ask of one.

Judges over the cache that all tests share, of whatever limits, share its warm parents, and so do `kept_workers`. They
are handed out as by `open_judge` and `open_workers`, and stay open until the session ends: `conftest.py` closes them.
Not for tests of what a judge or a worker does when it starts, ends or breaks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from rag_kernels.archive.bundle import _check as check_bundle
from rag_kernels.archive.bundle import _unpack as unpack_bundle
from rag_kernels.eval.judge import LocalJudge, open_judge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.places import default_cache
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Backend
from rag_kernels.eval.sessions.session_pool import AtOtherSizes
from rag_kernels.ingest.functional.functionalize import PRELOAD
from rag_kernels.retrieval.starter import BUNDLE

STAY_OPEN = ExitStack()
SHARED_CACHE = "TESTS_CACHE"  # not RAG_KERNELS_...: commands under test are not told


@contextmanager
def kept_judge(
    backend: Backend,
    *,
    limits: Limits | None = None,
    cache_dir: Path | None = None,
    at_other_sizes: AtOtherSizes | None = None,
) -> Iterator[LocalJudge]:
    """Open a judge, or take the one with these limits; one over a cache of its own is closed again."""
    place, limits = cache_dir or default_cache(), limits or Limits()
    if place == _shared_cache():
        yield _judge(backend, limits, at_other_sizes)
        return
    with open_judge(backend, limits=limits, cache_dir=place, at_other_sizes=at_other_sizes) as own:
        yield own


@contextmanager
def kept_workers() -> Iterator[Workers]:
    workers = _first_judge("cpu", frozenset()).workers
    workers.preload(*PRELOAD)
    yield workers


def checked_once(path: Path, folder: Path, checked: Path) -> None:
    """Check a bundle as `archive.bundle` does, and the package's own one, which new archives are stocked with, once."""
    if path != BUNDLE:
        check_bundle(path, folder, checked)
        return
    shutil.copytree(_starter(), checked)


@cache
def _starter() -> Path:
    place = Path(STAY_OPEN.enter_context(TemporaryDirectory(prefix="starter-")))
    check_bundle(BUNDLE, unpack_bundle(BUNDLE, place), place / "checked")
    return place / "checked"


def _shared_cache() -> Path:
    return Path(os.environ[SHARED_CACHE])


@cache
def _judge(backend: Backend, limits: Limits, at_other_sizes: AtOtherSizes | None) -> LocalJudge:
    first = _first_judge(backend, frozenset({"sandbox"}) & limits.without)
    return STAY_OPEN.enter_context(first.by_other_limits(limits, at_other_sizes))


@cache
def _first_judge(backend: Backend, without: frozenset[str]) -> LocalJudge:
    return STAY_OPEN.enter_context(open_judge(backend, limits=Limits(without=without), cache_dir=_shared_cache()))
