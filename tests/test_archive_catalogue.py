"""What ranking reads: the catalogue agrees with the kernels of the archive, and chosen kernels come whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from factories import attempt, candidate, compiled, device, judged, linear_problem, passed, problem, run

from rag_kernels.archive.connection import literal
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import ArchiveError, KernelFilter
from rag_kernels.archive.store import FileArchive

MODEL = "it's a model"
GPU = device("cuda")


@pytest.fixture
def archive() -> MemoryArchive:
    """Two kernels of one problem, one of them also judged on another device; one of another problem; three that do
    not count."""
    made = MemoryArchive()
    made.start_run(run("run1"))
    tanh, again = problem("tanh"), problem("tanh", 0.5, (8, 16))
    first = candidate(tanh, variant=1).id
    tried = [
        attempt("run1", 1, tanh, variant=1),
        attempt("run1", 2, tanh, variant=2, verdict=passed(5.0, confirmed=False), parents=(first,)),
        attempt("run1", 3, again, variant=2, judged=judged(passed(3.0), on=device(name="Another"))),
        attempt("run1", 4, linear_problem(), variant=3),
        attempt("run1", 5, tanh, variant=4, verdict=compiled()),
        attempt("run1", 6, tanh, variant=5),
        attempt("run1", 7, tanh, variant=6, verdict=replace(passed(99.0), labels=("suspicious: too fast",))),
    ]
    for one in tried:
        made.record_attempt(one)
    made.retract(tried[-2].candidate.id, "it read the answer")
    made.index_embedding(tried[0].candidate.id, [3.0, 4.0], MODEL)
    return made


def test_it_holds_what_the_archive_shows_and_whole_kernels_are_the_same(archive: MemoryArchive) -> None:
    known = archive.catalogue(MODEL)
    ever_run = [kernel for kernel in archive.kernels(KernelFilter()) if kernel.trust != "compiled"]
    shown = {kernel.id: kernel for kernel in ever_run if not kernel.labels}
    assert [name.decode() for name in known.kernel_id.tolist()] and len(known.kernel_id) == len(shown) == 3
    assert {kernel.id: kernel for kernel in archive.chosen(known, range(3))} == shown
    for row, name in enumerate(known.kernel_id.tolist()):
        kernel = shown[name.decode()]
        functional = known.functionals[known.functional[row]]
        assert (functional.graph_key, functional.source) == (kernel.graph_key, kernel.functional_source)
        assert known.speedup[row] == pytest.approx(kernel.speedup) and not known.on_cuda[row]
        assert kernel.idea in known.texts[known.text[row]]
        assert known.devices[known.device[row]] == kernel.device_name


def test_chosen_kernels_come_in_the_order_of_the_asking(archive: MemoryArchive) -> None:
    known = archive.catalogue(MODEL)
    there, back = archive.chosen(known, range(3)), archive.chosen(known, (2, 1, 0))
    assert there == back[::-1] and archive.chosen(known, []) == []
    moved = replace(known, places=known.places + 1)
    assert archive.chosen(moved, range(3)) == there


def test_the_measurement_on_the_device_that_asks_comes_first(archive: MemoryArchive) -> None:
    twice = candidate(problem("tanh"), variant=2).id.encode()
    for asks, fastest in (("", 3.0), (device().key, 4.75), (device(name="Another").key, 3.0), (GPU.key, 3.0)):
        known = archive.catalogue(MODEL, asks)
        [row] = np.flatnonzero(known.kernel_id == twice)
        [kernel] = archive.chosen(known, [row])
        assert kernel.speedup_eager == fastest
        assert known.here[row] == (asks in ("", device().key, device(name="Another").key))


def test_lineage_tells_who_led_to_faster_kernels_and_who_gained(archive: MemoryArchive) -> None:
    known = archive.catalogue(MODEL)
    first, second = (
        int(np.flatnonzero(known.kernel_id == candidate(problem("tanh"), variant=n).id.encode())[0]) for n in (1, 2)
    )
    assert (known.helped[first], known.helped[second]) == (1, 0)
    assert known.gain[second] == pytest.approx(1.0) and known.gain[first] == 0


def test_a_problem_hides_every_kernel_that_was_judged_on_it(archive: MemoryArchive) -> None:
    known, tanh, again = archive.catalogue(MODEL), problem("tanh"), problem("tanh", 0.5, (8, 16))
    on = {n: candidate(tanh, variant=n).id.encode() for n in (1, 2, 4, 5, 6)}
    assert set(known.solvers([tanh.problem.id]).tolist()) == set(on.values())
    assert known.solvers([again.problem.id]).tolist() == [on[2]]
    assert known.solvers(["p_unknown"]).tolist() == [] and known.solvers([]).tolist() == []


def test_kernels_of_one_functional_problem_share_a_vector(archive: MemoryArchive) -> None:
    known = archive.catalogue(MODEL)
    rows = {f.id: known.vectors[n].tolist() for n, f in enumerate(known.functionals)}
    assert sorted(rows.values()) == [[0, 0], [0, 0], [3, 4]]
    assert archive.catalogue("another model").vectors.shape == (3, 0)


def test_a_problem_and_its_judgement_come_back_as_recorded(archive: MemoryArchive) -> None:
    kernel = candidate(problem("tanh"), variant=2).id
    fp, spoke = archive.evaluation(kernel)
    assert (fp, spoke.device.name) == (problem("tanh", 0.5, (8, 16)), "Another")
    assert (archive.run_status("run1"), archive.run_status("run2")) == ("running", "")
    with pytest.raises(ArchiveError, match="No evaluation of 'k_nothing'"):
        archive.evaluation("k_nothing")


def test_an_archive_without_kernels_has_an_empty_catalogue(tmp_path: Path) -> None:
    known = FileArchive(tmp_path / "it's a folder").catalogue(MODEL)
    assert len(known.kernel_id) == len(known.functionals) == 0 and known.solvers(["p_1"]).tolist() == []
    assert literal("it's") == "'it''s'"
