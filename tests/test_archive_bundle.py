"""Bundles and the audit: what goes out comes back the same, and what was tampered with does not come in."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import factories as f
import pytest

from rag_kernels.archive import bundle
from rag_kernels.archive.audit import verify
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import ArchiveError, Edge, KernelFilter
from rag_kernels.archive.store import FileArchive
from rag_kernels.eval.records import Candidate
from rag_kernels.export.card import card
from rag_kernels.export.evidence import evidence

ANY = KernelFilter()


def filled() -> MemoryArchive:
    """A failed ancestor, its child, a grandchild on another problem, and a kernel that was only compiled."""
    archive = MemoryArchive()
    archive.start_run(f.run())
    relu, tanh = f.problem("relu"), f.problem("tanh")
    failed, child = f.candidate(relu, variant=1).id, f.candidate(relu, variant=2).id
    archive.record_call(f.llm_call())
    archive.record_attempt(f.attempt(number=1, p=relu, variant=1, verdict=f.wrong(), call_ids=("call1",)))
    archive.record_attempt(f.attempt(number=2, p=relu, variant=2, parents=(failed,)))
    archive.record_attempt(f.attempt(number=3, p=tanh, variant=3, parents=(child,), exemplars=(f.exemplar(child),)))
    cuda = f.candidate(f.linear_problem(), backend="cuda", tier="composed")
    archive.record_attempt(f.attempt(number=4, p=f.linear_problem(), candidate=cuda, verdict=f.compiled()))
    archive.index_embedding(child, [1.0, 2.0], "model")
    return archive


def test_a_bundle_comes_back_with_everything_and_exports_to_the_same_bytes(tmp_path: Path) -> None:
    source, target = filled(), FileArchive(tmp_path / "archive")
    told = bundle.export(source, tmp_path / "one.zip")
    assert (told["kernels"], told["candidates"], told["edges"]) == (3, 4, 2)
    taken = bundle.import_bundle(target, tmp_path / "one.zip", trust_bundle=True)
    assert taken == told
    assert target.kernels(ANY) == source.kernels(ANY)
    grandchild = f.candidate(f.problem("tanh"), variant=3).id
    assert target.lineage(grandchild) == source.lineage(grandchild) != []
    before, after = (card(evidence(archive, grandchild), "module") for archive in (source, target))
    assert {(e["relation"], e["kernel"]) for e in before["lineage"]} >= {("parent", f.candidate(variant=2).id)}
    assert {name: value for name, value in after.items() if name != "evidence"} == {
        name: value for name, value in before.items() if name != "evidence"
    }, "the card of an export is the same"
    assert len(list(target.missing_embeddings("model"))) == 3  # vectors are made where they are used
    assert verify(target) == []
    bundle.export(target, tmp_path / "two.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    assert set(bundle.import_bundle(target, tmp_path / "two.zip", trust_bundle=True).values()) == {0}


def test_without_trust_kernels_come_in_as_claimed_and_rise_when_trusted_later(tmp_path: Path) -> None:
    source, target = filled(), MemoryArchive()
    bundle.export(source, tmp_path / "b.zip")
    bundle.import_bundle(target, tmp_path / "b.zip")
    assert {kernel.trust for kernel in target.kernels(ANY)} == {"claimed"}
    assert [k.device_name for k in target.kernels(ANY)] == [k.device_name for k in source.kernels(ANY)]
    assert target.kernels(KernelFilter(min_trust="compiled")) == []
    assert len(list(target.missing_embeddings("model"))) == 3
    bundle.export(target, tmp_path / "again.zip", KernelFilter(min_trust="claimed", include_retracted=True))
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    bundle.import_bundle(target, tmp_path / "b.zip", trust_bundle=True)
    assert target.kernels(ANY) == source.kernels(ANY)


def test_own_judgement_stands_beside_a_claim(tmp_path: Path) -> None:
    source, target = filled(), MemoryArchive()
    bundle.export(source, tmp_path / "b.zip")
    own = f.attempt(
        "here", 1, f.problem("relu"), variant=2, verdict=f.passed(1.1), created_at="2026-05-05T00:00:00+00:00"
    )
    target.record_attempt(own)
    target.retract(own.candidate.id, "slow here")
    bundle.import_bundle(target, tmp_path / "b.zip")
    kernel = target.kernel(own.candidate.id)
    assert kernel is not None
    assert (kernel.trust, kernel.speedup_eager, kernel.retracted) == ("confirmed", 1.1, "slow here")


def test_a_stranger_cannot_retract_what_is_here(tmp_path: Path) -> None:
    source, mine, empty = filled(), filled(), MemoryArchive()
    for kernel in source.kernels(ANY):
        source.retract(kernel.id, "sabotage")
    bundle.export(source, tmp_path / "b.zip")
    bundle.import_bundle(mine, tmp_path / "b.zip")
    bundle.import_bundle(empty, tmp_path / "b.zip")
    assert len(mine.kernels(ANY)) == 3
    assert empty.kernels(ANY) == []


def test_two_archives_merge_without_duplicates_and_keep_both_lineages(tmp_path: Path) -> None:
    one, two, merged = filled(), filled(), MemoryArchive()
    shared = f.candidate(variant=2).id
    other = f.attempt("two", 1, variant=9)
    two.start_run(f.run("two"))
    two.record_attempt(other)
    two.record_attempt(f.attempt("two", 2, variant=2, parents=(other.candidate.id,)))
    for name, archive in (("one", one), ("two", two)):
        bundle.export(archive, tmp_path / name)
        bundle.import_bundle(merged, tmp_path / name, trust_bundle=True)
    assert len(merged.kernels(ANY)) == 4
    assert set(merged.lineage(shared)) == {
        Edge(shared, f.candidate(variant=1).id, "parent"),
        Edge(shared, other.candidate.id, "parent"),
    }


def test_filter_licence_and_attribution(tmp_path: Path) -> None:
    folder, target = tmp_path / "out", MemoryArchive()
    told = bundle.export(
        filled(), folder, KernelFilter(min_trust="confirmed"), licence="Apache-2.0", attribution="The authors"
    )
    assert told["kernels"] == 2
    assert {path.suffix for path in (folder / "sources").iterdir()} == {".cpp"}
    bundle.import_bundle(target, folder)
    assert {(k.licence, k.attribution) for k in target.kernels(ANY)} == {("Apache-2.0", "The authors")}
    with pytest.raises(ArchiveError, match="exists already"):
        bundle.export(filled(), folder)
    with pytest.raises(ArchiveError, match="nothing to export"):
        bundle.export(filled(), tmp_path / "none.zip", KernelFilter(text="no such text"))


def test_sources_lie_in_files_that_are_named_by_their_form(tmp_path: Path) -> None:
    archive, relu = MemoryArchive(), f.problem("relu")
    archive.start_run(f.run())
    pybind, inline = "PYBIND11_MODULE(x, m) {}", "class ModelNew: SOURCE = 'PYBIND11_MODULE(x, m) {}'"
    sources = {"py": f.candidate(relu, tier="composed"), "cu": Candidate(pybind, "module", "cuda")}
    sources |= {"cpp": Candidate(pybind, "module", "cpu"), "py ": Candidate(inline, "module", "cpu")}
    for number, candidate in enumerate(sources.values(), 1):
        archive.record_attempt(f.attempt(number=number, p=relu, candidate=candidate))
    bundle.export(archive, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out" / "sources").iterdir()}
    assert names == {f"{candidate.id}.{suffix.strip()}" for suffix, candidate in sources.items()}


def change_a_source(folder: Path) -> None:
    path = next((folder / "sources").iterdir())
    path.write_text(path.read_text() + "// evil")


def drop_a_source(folder: Path) -> None:
    next((folder / "sources").iterdir()).unlink()


def drop_a_table(folder: Path) -> None:
    (folder / "problems.parquet").unlink()


def raise_a_speedup(folder: Path) -> None:
    import duckdb

    path = folder / "evaluations.parquet"
    duckdb.sql(f"COPY (SELECT * REPLACE (9.9 AS speedup) FROM '{path}') TO '{path}.new' (FORMAT parquet)")
    Path(f"{path}.new").replace(path)


def change_the_format(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"format": "rag-kernels bundle 99"}')


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (change_a_source, "not the id of its source"),
        (drop_a_source, "not in candidates"),
        (drop_a_table, "cannot be read"),
        (raise_a_speedup, "does not agree"),
        (change_the_format, "Upgrade"),
    ],
)
def test_a_bundle_that_was_tampered_with_is_refused_whole(tamper: object, message: str, tmp_path: Path) -> None:
    assert callable(tamper)
    bundle.export(filled(), tmp_path / "b")
    tamper(tmp_path / "b")
    target = MemoryArchive()
    with pytest.raises(ArchiveError, match=message):
        bundle.import_bundle(target, tmp_path / "b")
    assert target.stats() == MemoryArchive().stats()


def test_what_is_no_bundle_is_refused_and_nothing_is_written_outside(tmp_path: Path) -> None:
    (tmp_path / "text.zip").write_text("no zip")
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as evil:
        evil.writestr("../evil.txt", "x")
        evil.writestr("sources/../../evil.txt", "x")
    for name in ("text.zip", "evil.zip", "missing.zip"):
        with pytest.raises(ArchiveError):
            bundle.import_bundle(MemoryArchive(), tmp_path / name)
    assert not list(tmp_path.parent.rglob("evil.txt"))


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("UPDATE candidates SET source = source || ' '", "candidates: k_"),
        ("UPDATE problems SET source = 'x' WHERE name = 'scaled_relu'", "problems: p_"),
        ("UPDATE ideas SET text = 'x'", "ideas: i_"),
        ("UPDATE functionals SET graph_key = 'g_x'", "functionals: f_"),
        ("UPDATE functionals SET record = '{'", "cannot be read"),
        ("UPDATE evaluations SET candidate_us = 1", "evaluations: e_"),
        ("UPDATE evaluations SET trust = 'confirmed'", "more trust than its verdict earns"),
        ("UPDATE attempts SET number = 7 WHERE number = 1", "attempts: a_"),
        ("DELETE FROM runs", "attempts refers to run1, which is not in runs."),
        ("DELETE FROM evaluations", "which is not in evaluations."),
        ("DELETE FROM candidates", "edges refers to k_"),
    ],
)
def test_verify_finds_what_was_changed_behind_its_back(sql: str, sentence: str) -> None:
    archive = filled()
    assert verify(archive) == []
    with archive.database.write() as con:
        con.execute(sql)
    assert sentence in " ".join(verify(archive))


def test_a_full_or_forbidden_target_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArchiveError, match="cannot be written"):
        bundle.export(filled(), tmp_path / "file" / "b.zip")
    shutil.rmtree(tmp_path)
