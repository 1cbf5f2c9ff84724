"""Judges and warm parents that the tests of one process share: a start takes longer than what most tests ask of one.

They are handed out as `open_judge` and `Workers` are, and stay open until the session ends: `conftest.py` closes them.
Not for tests of what a judge or a worker does when it starts, ends or breaks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from rag_kernels.eval.judge import LocalJudge, open_judge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.places import default_cache
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Backend
from rag_kernels.eval.sessions.session_pool import AtOtherSizes
from rag_kernels.ingest.functional.functionalize import PRELOAD

STAY_OPEN = ExitStack()


@contextmanager
def kept_judge(
    backend: Backend,
    *,
    limits: Limits | None = None,
    cache_dir: Path | None = None,
    at_other_sizes: AtOtherSizes | None = None,
) -> Iterator[LocalJudge]:
    yield _judge(backend, limits or Limits(), cache_dir or default_cache(), at_other_sizes)


@contextmanager
def kept_workers(*, preload: Sequence[str] = ()) -> Iterator[Workers]:
    assert set(preload) <= set(PRELOAD)
    yield _workers()


@cache
def _judge(backend: Backend, limits: Limits, place: Path, at_other_sizes: AtOtherSizes | None) -> LocalJudge:
    opened = open_judge(backend, limits=limits, cache_dir=place, at_other_sizes=at_other_sizes)
    return STAY_OPEN.enter_context(opened)


@cache
def _workers() -> Workers:
    return STAY_OPEN.enter_context(Workers(preload=PRELOAD))
