"""An archive behind a server: `rag-kernels archive serve` and its clients, processes of their own on the loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import factories as f
import pytest
from explorer_archive import numbers, over, shown, visit
from interrupts import ctrl_c

from rag_kernels.archive import queries, serve
from rag_kernels.archive.audit import verify
from rag_kernels.archive.bundle import export, import_bundle
from rag_kernels.archive.duck import DuckArchive
from rag_kernels.archive.opening import CONFIG
from rag_kernels.archive.quack import Address, load, packaged, parse
from rag_kernels.archive.records import ArchiveError, Edge, KernelFilter
from rag_kernels.archive.serve import Server, check
from rag_kernels.archive.shared import SharedDatabase, constant
from rag_kernels.archive.store import FileArchive, shared_archive
from rag_kernels.export.card import card
from rag_kernels.export.evidence import evidence

if packaged("quack", duckdb.__version__) is None:
    pytest.skip("no package of Quack for this version of DuckDB", allow_module_level=True)

TOKEN = "a token of the tests"
CLI = "from rag_kernels.cli import main; main()"
TESTS = Path(__file__).parent
ANY = KernelFilter(include_retracted=True)


def free_port() -> int:
    """One that is free, and the next one too."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port + 1))
                return port
            except OSError:
                continue


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Address, Server]]:
    """DuckDB's half of a server, in this process."""
    path = tmp_path_factory.mktemp("served") / "archive.duckdb"
    FileArchive(path.parent).start_run(f.run("before"))
    con = duckdb.connect(str(path), config=CONFIG)
    load(con)
    address = Address("127.0.0.1", free_port())
    server = Server(con, address, TOKEN)
    yield address, server
    server.close()
    con.close()


@pytest.fixture(scope="module")
def archive(place: tuple[Address, Server]) -> Iterator[DuckArchive]:
    database = SharedDatabase(place[0], TOKEN)
    yield DuckArchive(database)
    database.close()


def test_a_client_reads_back_what_it_recorded(archive: DuckArchive) -> None:
    archive.start_run(f.run())
    origin = f.attempt(number=1, p=f.linear_problem())
    first = f.attempt(
        number=2,
        variant=1,
        parents=(origin.candidate.id,),
        exemplars=(f.exemplar(origin.candidate.id),),
        call_ids=("call1",),
        cost_usd=None,
        note='it\'s "quoted"; $1 ? ünïcode \n and -- lines',
    )
    before = archive.version()
    archive.record_call(f.llm_call())
    for made in (origin, first, origin):
        archive.record_attempt(made)
    archive.index_embeddings([(first.candidate.id, [0.1, 1e-30, -2.5])], "model")
    archive.finish_run("run1", "finished")
    assert archive.version() != before
    assert archive.attempts("run1") == [origin, first]
    assert [run.status for run in archive.runs() if run.id == "run1"] == ["finished"]
    assert archive.lineage(first.candidate.id) == [Edge(first.candidate.id, origin.candidate.id, "parent")]
    assert archive.nearest([0.1, 0.0, -2.5], 3, ANY)[0] == (first.candidate.id, pytest.approx(1.0))
    (kernel,) = archive.kernels(
        KernelFilter(exclude_problem_ids=(origin.problem.problem.id,), text="RELU", min_trust="verified")
    )
    assert kernel.id == first.candidate.id
    shown = archive.chosen(archive.catalogue("model"), range(2))
    assert {each.id for each in shown} == {kernel.id, origin.candidate.id}
    assert [row.number for row in queries.attempts_of_run(archive, "run1")] == [1, 2]
    assert {node.id for node in queries.lineage_graph(archive, kernel.id).nodes} == {kernel.id, origin.candidate.id}
    assert verify(archive) == []


def test_the_explorer_shows_a_served_archive(
    place: tuple[Address, Server], archive: DuckArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.start_run(f.run("explored"))
    archive.record_attempt(f.attempt("explored", 1, variant=77))
    monkeypatch.setenv("RAG_KERNELS_ARCHIVE_TOKEN", TOKEN)
    explorer = over(str(place[0]), monkeypatch).run()
    assert numbers(explorer)["Verified kernels"] == str(archive.stats()["kernels"])
    assert "scaled_relu" in shown(visit(explorer, "kernel", id=f.candidate(variant=77).id))


def test_what_fails_is_undone_whole(archive: DuckArchive) -> None:
    before = archive.stats()
    with pytest.raises(ArchiveError, match="start it first"):
        archive.finish_run("nothing", "finished")
    with pytest.raises(ArchiveError, match="nowhere"), archive.database.write() as con:
        con.execute("INSERT INTO ideas VALUES ('i_x', 'p_x', 'text', 'now')")
        con.execute("SELECT * FROM nowhere")
    with pytest.raises(KeyError), archive.database.write() as con:
        con.execute("INSERT INTO ideas VALUES ('i_x', 'p_x', 'text', 'now')")
        raise KeyError
    with archive.database.read() as con:
        assert con.execute("SELECT count(*) FROM ideas WHERE id = 'i_x'").fetchall() == [(0,)]
    assert archive.stats() == before


def test_a_query_that_is_interrupted_is_an_interrupt(archive: DuckArchive) -> None:
    """Once the server has answered: a client waits for that."""
    with ctrl_c(0.1), archive.database.read() as con:
        con.execute("SELECT sum(hash(range)) FROM range(50000000)")
    archive.record_attempt(f.attempt("interrupted", 1))
    assert [attempt.number for attempt in archive.attempts("interrupted")] == [1]


def test_bundles_go_both_ways(archive: DuckArchive, tmp_path: Path) -> None:
    here = FileArchive(tmp_path / "here")
    here.record_attempt(f.attempt(p=f.problem("tanh"), run_id="elsewhere"))
    export(here, tmp_path / "here.zip", ANY)
    assert import_bundle(archive, tmp_path / "here.zip")["kernels"] == 1
    assert import_bundle(archive, tmp_path / "here.zip", trust_bundle=True)["kernels"] == 0
    [own] = here.kernels(ANY)
    cards = [card(evidence(place, own.id), "module") | {"evidence": ""} for place in (here, archive)]
    assert cards[0] == cards[1], "exports from a served archive hold the same evidence"
    export(archive, tmp_path / "all.zip", ANY)
    back = FileArchive(tmp_path / "back")
    import_bundle(back, tmp_path / "all.zip", trust_bundle=True)
    assert sorted(k.id for k in back.kernels(ANY)) == sorted(k.id for k in archive.kernels(ANY))
    assert verify(back) == []


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        2**40,
        0.1,
        1e-310,
        float("inf"),
        "it's",
        "",
        [],
        [1.5, -0.1],
        ["a", "b'"],
        [[1], [2, 3]],
        [{"a": 1, "b": "x"}],
        [0.5, None],
    ],
)
def test_a_value_is_the_same_as_a_constant(value: object) -> None:
    with duckdb.connect() as con:
        assert con.execute(f"SELECT {constant(value)}").fetchall() == [(value,)]


def test_a_client_that_dies_in_the_middle_does_not_keep_the_others_out(
    place: tuple[Address, Server], archive: DuckArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, server = place
    code = (
        "import sys, time\nfrom rag_kernels.archive.quack import parse\n"
        "from rag_kernels.archive.shared import SharedDatabase\n"
        f"with SharedDatabase(parse(sys.argv[1]), {TOKEN!r}).write() as con:\n"
        "    con.execute(\"INSERT INTO ideas VALUES ('i_dead', 'p_x', 'text', 'now')\")\n"
        "    print('writing', flush=True)\n    time.sleep(100)\n"
    )
    with client(code, str(address)) as killed:
        assert killed.stdout is not None and killed.stdout.readline() == "writing\n"
        killed.kill()
    hurried = DuckArchive(SharedDatabase(address, TOKEN, deadline_s=0.2))
    with pytest.raises(ArchiveError, match="Other clients have been writing"):
        hurried.start_run(f.run("hurried"))
    assert archive.run_status("before") == "running" and not server.tend()  # readers do not wait; it is not silent yet
    monkeypatch.setattr(serve, "SILENT_S", 0.0)
    assert server.tend() and not server.tend()
    for each in (hurried, archive):  # both had a session that has ended
        each.start_run(f.run("hurried"))
    with archive.database.read() as con:
        assert con.execute("SELECT count(*) FROM ideas WHERE id = 'i_dead'").fetchall() == [(0,)]


def test_a_client_waits_for_a_server_that_comes_back(place: tuple[Address, Server], archive: DuckArchive) -> None:
    address, server = place
    archive.start_run(f.run("back"))
    server.close()
    with pytest.raises(ArchiveError, match="does not answer"):
        DuckArchive(SharedDatabase(address, TOKEN)).stats()  # whoever has never met it does not wait
    again = threading.Timer(0.7, server._listen)
    again.start()
    assert archive.run_status("back") == "running"
    again.join()


def test_addresses_and_tokens_are_checked_before_anything_is_sent() -> None:
    for location, problem in (
        ("quack://user:secret@host", "RAG_KERNELS_ARCHIVE_TOKEN"),
        ("quack://", "quack://HOST"),
        ("quack://host:port", "no address"),
        ("quack://host/path", "quack://HOST"),
    ):
        with pytest.raises(ArchiveError, match=problem) as raised:
            parse(location)
        assert "secret" not in str(raised.value)
    with pytest.raises(ArchiveError, match="needs a token"):
        shared_archive(parse("quack://elsewhere.example"), "")
    for host, token in (("0.0.0.0", ""), ("192.0.2.1", "short"), ("::", "123456789012345")):
        with pytest.raises(ArchiveError, match="at least 16 characters"):
            check(Address(host), token)
    check(Address("0.0.0.0"), "1234567890123456")
    check(Address("::1"), "")


def client(code: str, *arguments: str, **env: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **env},
    )


WRITER = """
import sys
import factories as f
from rag_kernels.archive.records import KernelFilter
from rag_kernels.archive.store import open_archive
archive, me = open_archive(), int(sys.argv[1])
for n in range(1, 5):
    archive.start_run(f.run(f"run{me}"))
    # the kernels are the same in both processes, the attempts are not
    archive.record_attempt(f.attempt(run_id=f"run{me}", number=n, variant=n, call_ids=(f"c{me}-{n}",)))
    archive.record_call(f.llm_call(f"run{me}", f"c{me}-{n}"))
    kernel_id, vector = f.attempt(variant=n).candidate.id, [1.0, n + 0.5, n * n]
    archive.index_embedding(kernel_id, vector, "model")
    print(n, archive.nearest(vector, 1, KernelFilter())[0][0] == kernel_id, flush=True)
"""


def test_two_client_processes_share_what_one_command_serves(tmp_path: Path) -> None:
    port = free_port()
    env = {"RAG_KERNELS_ARCHIVE": f"quack://127.0.0.1:{port}", "RAG_KERNELS_ARCHIVE_TOKEN": TOKEN}
    command = [sys.executable, "-c", CLI, "archive", "serve", "--json", "--port", str(port)]
    with subprocess.Popen(
        [*command, "--archive", str(tmp_path / "team")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    ) as server:
        try:
            assert server.stdout is not None
            told = server.stdout.readline()
            assert json.loads(told)["address"] == env["RAG_KERNELS_ARCHIVE"], server.communicate(timeout=10)
            writers = [client(WRITER, str(me), **env) for me in (1, 2)]
            said = [writer.communicate(timeout=120)[0] for writer in writers]
            assert said == ["".join(f"{n} True\n" for n in range(1, 5))] * 2
            archive = shared_archive(parse(env["RAG_KERNELS_ARCHIVE"]), TOKEN)
            counts = archive.stats()
            assert (counts["attempts"], counts["kernels"], counts["llm_calls"], counts["embeddings"]) == (8, 4, 8, 4)
            assert archive.index_faults() == [] and archive.reindex() == 4 and verify(archive) == []
            for sql in ("FROM read_text('/etc/hostname')", "COPY runs TO 'runs.csv'", "SET threads = 1"):
                with pytest.raises(ArchiveError, match=r"disabled|locked"), archive.database.read() as con:
                    con.execute(sql).fetchall()
            with pytest.raises(ArchiveError, match="refuses the token") as refused:
                shared_archive(parse(env["RAG_KERNELS_ARCHIVE"]), "something secret").stats()
            assert "something secret" not in str(refused.value)
        finally:
            server.send_signal(signal.SIGTERM)  # shells have programs in the background ignore Ctrl-C
            told = told + server.communicate(timeout=60)[1]
    assert server.returncode == 0 and TOKEN not in told, told
    with pytest.raises(ArchiveError, match="does not answer"):
        shared_archive(parse(env["RAG_KERNELS_ARCHIVE"]), TOKEN).stats()
    assert FileArchive(tmp_path / "team").index_faults() == []
    deadline = time.monotonic() + 20
    with socket.socket() as probe:  # Chroma's server has ended too
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        while probe.connect_ex(("127.0.0.1", port + 1)) == 0 and time.monotonic() < deadline:
            time.sleep(0.1)
    assert time.monotonic() < deadline
