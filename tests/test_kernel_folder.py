"""A folder of problems with their kernels beside them comes in as claims; the starter archive has examples/hopper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from factories import device
from foreign import ANY, MODULE, taken
from support.kept import kept_workers

from rag_kernels.archive.audit import verify
from rag_kernels.archive.bundle import import_bundle
from rag_kernels.archive.claims import claims_of, written_for
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import ArchivedKernel
from rag_kernels.ingest.description.embedder import load_embedder
from rag_kernels.ingest.importers.kernel_folder import KernelFolder
from rag_kernels.ingest.importers.protocol import ImportRefused
from rag_kernels.ingest.importers.take import functionalize_imported
from rag_kernels.llm.prompt_values import exemplar_values
from rag_kernels.options import Options
from rag_kernels.retrieval.retriever import Retriever
from rag_kernels.retrieval.starter import BUNDLE, stock
from rag_kernels.run.exemplars import Exemplars

HOPPER = Path(__file__).parents[1] / "examples" / "hopper"
CPP = """#include "rag_kernel.h"
void run(rk::Tensor<const float> x, rk::Tensor<const float> weight, rk::Tensor<float> out) {}
RK_EXPORT(forward, run)
"""
FACTS = """
licence = "MIT"
attribution = "me"
device = "A board"
notes = ["Timed by hand."]

["scaled.cpp"]
idea = "one pass"
correct = true
kernel_us = 10
eager_us = 20
compile_us = 15.0
notes = ["Rows of 8."]

["gone.cpp"]
idea = "nothing"
"""


def folder(path: Path) -> Path:
    (path / "scaled.py").write_text(MODULE)
    (path / "alone.py").write_text(MODULE.replace("[8]", "[8]  # another"))
    (path / "scaled.cpp").write_text(CPP)
    (path / "scaled.second.cu").write_text(CPP + "// another\n")
    (path / "orphan.cu").write_text(CPP)
    (path / "scaled.bad.cu").write_text("int main() {}")
    (path / "kernels.toml").write_text(FACTS)
    return path


def test_kernels_beside_their_problems_come_in_with_what_is_known_of_them(tmp_path: Path) -> None:
    archive, report = taken(KernelFolder(licence="unused", attribution="unused"), folder(tmp_path))
    assert [(row.where, row.why) for row in report.skipped] == [
        ("kernels.toml", "there is no file gone.cpp"),
        ("orphan.cu", "its problem orphan.py is not beside it"),
        ("scaled.bad.cu", "it does not export `forward` by RK_EXPORT"),
    ]
    assert (report.new["kernels"], report.new["problems"]) == (2, 2)
    kernels = {kernel.backend: kernel for kernel in archive.kernels(ANY)}
    assert (kernels["cpu"].idea, kernels["cpu"].trust, kernels["cpu"].licence) == ("one pass", "claimed", "MIT")
    [claim], [bare] = claims_of(archive, kernels["cpu"].id), claims_of(archive, kernels["cuda"].id)
    assert (claim.candidate_us, claim.speedup_eager, claim.speedup_compile, claim.device_name) == (
        10,
        2,
        1.5,
        "A board",
    )
    assert (claim.notes, claim.correct) == (("Timed by hand.", "Rows of 8."), True)
    assert (bare.candidate_us, bare.device_name, bare.correct) == (None, "", None)
    assert verify(archive) == []


def test_the_form_that_is_worked_out_later_is_the_one_that_a_kernel_was_written_for(tmp_path: Path) -> None:
    archive, _ = taken(KernelFolder(), folder(tmp_path))
    kernel = archive.kernels(ANY)[0]
    assert written_for(archive, kernel.id).arguments == ()
    with kept_workers() as workers:
        assert all(row.ok for row in functionalize_imported(archive, load_embedder(), workers=workers))
    assert [a.name for a in written_for(archive, kernel.id).tensors] == ["x", "weight"]


@pytest.mark.parametrize(
    ("facts", "why"), [("licence =", "is not TOML"), ('["scaled.cpp"]\nspeed = 2', "has 'speed', which is none of")]
)
def test_facts_that_cannot_be_read_are_refused_whole(tmp_path: Path, facts: str, why: str) -> None:
    (folder(tmp_path) / "kernels.toml").write_text(facts)
    with pytest.raises(ImportRefused, match=why):
        taken(KernelFolder(), tmp_path)
    with pytest.raises(ImportRefused, match="holds no kernel"):
        taken(KernelFolder(), tmp_path / "kernels.toml")


def test_the_starter_archive_has_the_hopper_kernels_as_they_lie_in_the_examples() -> None:
    starter = MemoryArchive()
    import_bundle(starter, BUNDLE)
    there = {kernel.id: kernel for kernel in starter.kernels(ANY)}
    fresh, report = taken(KernelFolder(), HOPPER)
    assert report.skipped == []
    own = fresh.kernels(ANY)
    assert len(own) == 9 and {kernel.id for kernel in own} <= there.keys(), "run `make starter-claims`"
    for kernel in own:
        _same(there[kernel.id], kernel)
        assert claims_of(starter, kernel.id) == claims_of(fresh, kernel.id)
        assert written_for(starter, kernel.id).tensors, "the starter has no functional form of it"


def test_a_first_search_on_hopper_finds_them_and_says_what_their_maker_clocked() -> None:
    starter, embedder = MemoryArchive(), load_embedder()
    stock(starter, embedder)
    ours = next(kernel for kernel in starter.kernels(ANY) if kernel.problem_name == "product_fp16_tma_wgmma")
    hopper = replace(device("cuda"), arch="sm_90a")
    exemplars = Exemplars(Retriever(starter, embedder), Options(), hopper)
    best = exemplar_values(exemplars(written_for(starter, ours.id), []))[0]
    assert best["problem_name"] == ours.problem_name and best["source"].startswith("#include <cuda.h>")
    assert "195 us (eager 193 us, torch.compile 185 us) by its maker's clock on NVIDIA H200" in best["result"]
    assert "same graph" in best["why"] and "bm25" not in best["why"]


def _same(stocked: ArchivedKernel, lying: ArchivedKernel) -> None:
    found = (stocked.source, stocked.idea, stocked.trust, stocked.licence, stocked.dtypes != ())
    assert found == (lying.source, lying.idea, "claimed", "Apache-2.0", True)
