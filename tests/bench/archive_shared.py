"""An archive behind a server, with real processes: `python tests/bench/archive_shared.py [--kills N] [--clients N]`.

Clients record attempts side by side and write down each one that was recorded. Clients, and then the server itself,
are killed (SIGKILL) at random moments; killed ones are started anew. Then everything that was written down must be
there, and `archive verify` must find nothing. A second table has the time of common requests, beside those of a folder.
Prints Markdown.
"""

from __future__ import annotations

import argparse
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

import factories as f  # noqa: E402

from rag_kernels.archive.audit import verify  # noqa: E402
from rag_kernels.archive.duck import DuckArchive  # noqa: E402
from rag_kernels.archive.quack import Address  # noqa: E402
from rag_kernels.archive.records import ArchiveError, KernelFilter  # noqa: E402
from rag_kernels.archive.store import FileArchive, shared_archive  # noqa: E402

TOKEN = "the token of a benchmark"
SILENT_S = 2  # instead of half a minute, so that the trial goes on
PROLOGUE = f"import sys\nsys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]\n"
SERVER = f"""{PROLOGUE}
import time
from pathlib import Path
from archive import serve
from rag_kernels.archive.quack import Address
serve.SILENT_S = {SILENT_S}
with serve.serving(Path(sys.argv[1]), Address("127.0.0.1", int(sys.argv[2])), {TOKEN!r}) as server:
    print("up", flush=True)
    while True:
        time.sleep(0.2)
        server.tend()
"""
CLIENT = f"""{PROLOGUE}
import itertools, time
import factories as f
from rag_kernels.archive.quack import Address
from rag_kernels.archive.records import ArchiveError
from rag_kernels.archive.store import shared_archive
archive, run = shared_archive(Address("127.0.0.1", int(sys.argv[1])), {TOKEN!r}), sys.argv[2]
for n in itertools.count(1):
    made = f.attempt(run_id=run, number=n, variant=n % 200, parents=(f.candidate(f.problem(), variant=1).id,) * (n > 1))
    while True:
        try:
            if n == 1:
                archive.start_run(f.run(run))
            archive.record_attempt(made)
            break
        except ArchiveError as error:  # the server was killed, or somebody else in his turn
            print("#", str(error).replace("\\n", " "), flush=True)
            time.sleep(0.05)
    print(made.id, flush=True)
"""


class Child:
    def __init__(self, code: str, *arguments: object, told: Path) -> None:
        self.told = told
        with told.open("a") as out:
            command = [sys.executable, "-c", code, *map(str, arguments)]
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def wait_for_a_word(self, deadline_s: float = 60) -> None:
        size, deadline = self.told.stat().st_size, time.monotonic() + deadline_s
        while self.told.stat().st_size == size and time.monotonic() < deadline:
            time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def server(root: Path, port: int) -> Child:
    """A server that listens; Chroma's of one that was killed may need a moment to leave its port."""
    for _ in range(20):
        child = Child(SERVER, root / "archive", port, told=root / "server.txt")
        child.wait_for_a_word(60) if child.process.poll() is None else None
        if child.process.poll() is None:
            return child
        time.sleep(0.2)
    raise SystemExit("the server does not start")


def trial(kind: str, kills: int, clients: int) -> str:
    """Kill clients, or the server, and count what is lost."""
    with tempfile.TemporaryDirectory() as folder:
        root, port, number = Path(folder), free_port(), 0
        (root / "server.txt").touch()
        serving, working = server(root, port), []
        for number in range(clients):
            working.append(Child(CLIENT, port, f"run{number}", told=root / f"client{number}.txt"))
        for child in working:
            child.wait_for_a_word()
        for _ in range(kills):
            time.sleep(random.uniform(0.05, 0.5))
            if kind == "the server":
                serving.kill()
                serving = server(root, port)
            else:
                number += 1
                working.pop(random.randrange(clients)).kill()
                working.append(Child(CLIENT, port, f"run{number}", told=root / f"client{number}.txt"))
            working[-1].wait_for_a_word()
        for child in working:
            child.kill()
        lines = [line for file in root.glob("client*.txt") for line in file.read_text().splitlines()]
        told = {line for line in lines if not line.startswith("#")}
        serving.process.send_signal(signal.SIGTERM)
        serving.process.wait()
        archive = FileArchive(root / "archive")
        there = {attempt.id for run in range(number + 1) for attempt in archive.attempts(f"run{run}")}
        refused = len(lines) - len(told)
        lost, faults = len(told - there), len(verify(archive))
        return f"| {kind} | {kills} | {clients} | {len(told)} | {lost} | {refused} | {faults} |"


def median_ms(request: Callable[[int], object], count: int = 30) -> float:
    times = []
    for n in range(count):
        start = time.perf_counter()
        request(n)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def timed(archive: DuckArchive) -> list[float]:
    """Median times of requests in an archive of a few hundred kernels."""
    for n in range(300):
        archive.record_attempt(f.attempt("filled", n, variant=n))
    archive.index_embeddings([(f.attempt(variant=n).candidate.id, [1.0, n, n % 7]) for n in range(300)], "model")
    requests: list[Callable[[int], object]] = [
        lambda n: archive.version(),
        lambda n: archive.record_attempt(f.attempt("timed", n, variant=1000 + n)),
        lambda n: archive.kernel(f.attempt(variant=n).candidate.id),
        lambda n: archive.nearest([1.0, n, 2.0], 5, KernelFilter()),
        lambda n: archive.catalogue("model"),
    ]
    return [median_ms(request) for request in requests]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--clients", type=int, default=3)
    options = parser.parse_args()
    print("| killed | times | clients | attempts told | of these lost | tries that failed | faults |")
    print("|---|---|---|---|---|---|---|")
    for kind in ("clients", "the server"):
        print(trial(kind, options.kills if kind == "clients" else options.kills // 4, options.clients), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        root, port = Path(folder), free_port()
        (root / "server.txt").touch()
        serving = server(root, port)
        try:
            shared = timed(shared_archive(Address("127.0.0.1", port), TOKEN))
        except ArchiveError as error:
            raise SystemExit((root / "server.txt").read_text()) from error
        serving.process.send_signal(signal.SIGTERM)
        serving.process.wait()
        names = ("has it changed?", "record an attempt", "one kernel", "5 nearest", "catalogue for ranking")
        print("\n| request, median ms | served on this machine | in a folder |\n|---|---|---|")
        for name, over, here in zip(names, shared, timed(FileArchive(root / "folder")), strict=True):
            print(f"| {name} | {over:.1f} | {here:.1f} |")


if __name__ == "__main__":
    main()
