"""Fixtures that several files share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

# Threads of OpenMP that wait for work sleep, as judges have them: here too they would take another file's core.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
from cli_home import RELU
from support.kept import SHARED_CACHE, STAY_OPEN, checked_once, kept_judge, kept_workers, migrated, stocked

from rag_kernels.cli import SELDOM
from rag_kernels.eval.machine.device_lock import locks
from rag_kernels.eval.records import Backend

# Files that take more than 14 seconds of three processes on two cores, the longest first.
LONG = """
    judge_checks cli_generate app_browser offline_half float8_judge cluster offline_order_scatter honest cli
    optimize_training judge agents zoo offline_places offline_attention judge_timing trust judge_precision
    export_gradients offline_segments ablation json offline_ranks export_peers ranges offline_cuda offline_deep
    workloads offline_sixteen_bit_products offline_product_statistics extensions offline_losses sanitize_module
    offline_products offline_half_ways
    workload_search training_step cli_training archive_durability offline_float8 mutation sampling sanitize
    archive_shared sanitize_composed layers sandbox killed_anywhere protocol notebook offline_numbers
    offline_product_windows steps offline_vectors_anywhere export_packages contract_pieces offline_paired_products
    app_pages judge_sessions offline_transplant
""".split()


def pytest_configure() -> None:
    """Look for garbage as seldom as commands do."""
    gc.set_threshold(*SELDOM)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with files that take long, so that no process waits for one at the end."""
    if missing := [name for name in LONG if not Path(__file__).with_name(f"test_{name}.py").is_file()]:
        raise pytest.UsageError(f"LONG in tests/conftest.py names no files: {', '.join(missing)}.")
    places = {f"test_{name}.py": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


def pytest_collection_finish() -> None:
    """Leave what all tests share to itself: whoever looks for garbage looks through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache for the commands and judges of all tests and processes, as a user has one.

    What takes long is made once: precompiled headers (also for judges with a cache of their own), baselines, builds.
    Judges and warm parents that commands and calls of this process open stay open for the next one. Those of several
    test processes do not wait for each other's clocks on a CPU: no test asserts a time.
    """
    here = tmp_path_factory.getbasetemp()
    folder = (here.parent if "PYTEST_XDIST_WORKER" in os.environ else here) / "cache"
    (folder / "headers").mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rag_kernels.eval.build.compile.header_folder", lambda cache: folder / "headers")
        for name in ("RAG_KERNELS_CACHE", SHARED_CACHE):
            patch.setenv(name, str(folder))
        patch.setattr("rag_kernels.eval.judge.locks", partial(own_turns, here))
        for user in ("wiring", "eval.judge"):  # the last is where commands import it from
            patch.setattr(f"rag_kernels.{user}.open_judge", kept_judge)
        for user in ("wiring", "api", "ingest.functional.functionalize"):
            patch.setattr(f"rag_kernels.{user}.open_workers", kept_workers)
        patch.setattr("rag_kernels.archive.bundle._check", checked_once)
        patch.setattr("rag_kernels.archive.database.migrate", migrated)
        for user in ("wiring", "agents.desk", "retrieval.find"):
            patch.setattr(f"rag_kernels.{user}.stock", stocked)
        with STAY_OPEN:
            yield folder


def own_turns(folder: Path, backend: Backend, cache: Path) -> Path:
    """Return the folder of the locks by which judges of this process alone take turns; on a GPU all of them do."""
    return folder if backend == "cpu" else locks(backend, cache)


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
