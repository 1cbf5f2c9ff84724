"""How long does a query take over many kernels? Tables for docs/measured/retrieval.md.

    python tests/bench/retrieval_scale.py [--kernels 30000] [--problems 3000] [--queries 300] [--folder FOLDER]

Makes an archive in a folder (by default a temporary one; one that is there already is used again): so many kernels of
so many problems that `grammar` makes up, each kernel with its source, an evaluation, an idea, a vector, and for
every fourth an edge to a parent. They are written straight into the tables, because nothing judged them. Then, in a
fresh process: opening it, one cold `rag-kernels search`, and queries for problems that the archive does not hold, with
filters by backend, trust, problem and family, with explanations, and with the chosen kernels read from DuckDB. At last,
how many problems are described and embedded in a second.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd

from rag_kernels.archive.store import DATABASE, FileArchive
from rag_kernels.eval import codec
from rag_kernels.eval.ids import content_id
from rag_kernels.eval.records import Features, FunctionalProblem, Problem, TensorArgument, TensorSpec
from rag_kernels.feedback.bottleneck import Bottleneck
from rag_kernels.ingest.description import grammar
from rag_kernels.ingest.description.callgraph import steps
from rag_kernels.ingest.description.describe import description
from rag_kernels.ingest.description.embedder import load_embedder
from rag_kernels.retrieval.retriever import RetrievalLimits, Retriever

PROBLEMS_SEED, QUERIES_SEED, EMBEDDED_SEED = 1, 2, 3
EMBEDDED = 4000  # problems, described and embedded at once
ARMS = {
    "exemplars": "draft: 5 exemplars for a writer",
    "remedies": "optimise: 5 exemplars for a writer",
    "search": "10 hits for a problem, explained",
    "words": "10 hits for words, explained",
}


def made_up(graph: grammar.Graph, rng: Random) -> FunctionalProblem:
    """A functional problem of a graph of the grammar; nothing of it was traced or run."""
    source = grammar.functional(graph, rng)
    shape = tuple(rng.choice((16, 64, 256, 1024)) for _ in range(graph.rank))
    spec = TensorSpec(shape, graph.dtype)
    elements = int(np.prod(shape))
    return FunctionalProblem(
        problem=Problem("_".join(op.word for op in graph.operators[:3]), grammar.module(graph, rng)),
        source=source,
        arguments=(TensorArgument("x", "input", spec, "0"),),
        constants=(),
        outputs=(spec,),
        nodes=(),
        results=(),
        mutated=(),
        uses_random=False,
        graph_key=content_id("g", graph.key, str(graph.rank)),
        features=Features(
            operators=tuple(sorted(step.op for step in steps(source))),
            ranks=(graph.rank,),
            dtypes=(graph.dtype,),
            parameter_count=0,
            flops=rng.choice((0, 0, 100)) * elements,
            pointwise_flops=elements,
            bytes_moved=8 * elements,
        ),
        verified=True,
    )


def fill(folder: Path, kernels: int, problems: int) -> None:
    """Write the archive in bulk."""
    rng, embedder, archive = Random(PROBLEMS_SEED), load_embedder(), FileArchive(folder)
    made = list({fp.problem.id: fp for fp in (made_up(grammar.graph(rng), rng) for _ in range(problems))}.values())
    texts = [description(fp) for fp in made]
    table = pd.DataFrame(
        {
            "number": range(len(made)),
            "problem_id": [fp.problem.id for fp in made],
            "name": [fp.problem.name for fp in made],
            "module": [fp.problem.source for fp in made],
            "functional_id": [content_id("f", fp.problem.id) for fp in made],
            "graph_key": [fp.graph_key for fp in made],
            "source": [fp.source for fp in made],
            "operators": [list(fp.features.operators) for fp in made],
            "ranks": [list(fp.features.ranks) for fp in made],
            "dtypes": [list(fp.features.dtypes) for fp in made],
            "shapes": [[list(a.spec.shape) for a in fp.tensors] for fp in made],
            "record": [codec.dumps(fp) for fp in made],
            "vector": list(embedder.embed(texts)),
        }
    )
    with archive.database.write() as con:
        con.register("made", table)
        con.execute(INSERTS.format(kernels=kernels, problems=len(made), model=embedder.name))


INSERTS = """
INSERT INTO problems SELECT problem_id, name, module, '2026-01-01' FROM made;
INSERT INTO functionals SELECT functional_id, problem_id, graph_key, source, operators, ranks, dtypes, shapes, record
FROM made;
CREATE TEMP TABLE k AS
SELECT i, 'k_' || md5('k' || i)[:20] AS id, made.*, ['fuse into one pass', 'vectorized loads with float4',
    'tile in shared memory', 'unroll the inner loop', 'online reduction'][1 + i % 5] || ' for ' || name || ' ' || i // 7
    AS idea, 'i_' || md5('i' || i)[:20] AS idea_id, 0.5 + (hash(i) % 1000) / 300 AS speedup
FROM range({kernels}) AS t(i) JOIN made ON made.number = i % {problems};
INSERT INTO candidates
SELECT id, 'kernel', if(i % 3 = 0, 'cuda', 'cpu'), '// kernel ' || i || chr(10) || repeat(source || chr(10), 3) FROM k;
INSERT INTO ideas SELECT idea_id, problem_id, idea, '2026-01-01' FROM k;
INSERT INTO kernels SELECT id, functional_id, idea_id, 'llm', 'a model', '', '', '2026-01-01' FROM k;
INSERT INTO evaluations BY NAME
SELECT 'e_' || md5('e' || i)[:20] AS id, id AS kernel_id, problem_id, functional_id,
    ['claimed', 'verified', 'confirmed', 'confirmed'][1 + i % 4] AS trust, 'confirmed' AS stated_trust,
    'd_' || i % 3 AS device_key, 'device ' || i % 3 AS device_name, 'arch' AS device_arch, '2.13' AS torch,
    'g++' AS compiler, '2' AS judge_version, 'custom kernel' AS label, 'strict' AS "precision", 1.0 AS error_ratio,
    100 / speedup AS candidate_us, 100.0 AS eager_us, 90.0 AS compile_us, speedup AS speedup_eager,
    0.9 * speedup AS speedup_compile, 0.9 * speedup AS speedup, 20.0 AS floor_us, speedup / 5 AS floor_fraction,
    '{{"verdict": {{"labels": []}}, "padding": "' || repeat('judged ', 80) || '"}}' AS judged,
    [] AS labels, '2026-01-01' AS created_at
FROM k;
INSERT INTO edges SELECT a.id, b.id, 'parent' FROM k AS a JOIN k AS b ON b.i = a.i - {problems} WHERE a.i % 4 = 0;
INSERT INTO embeddings SELECT id, '{model}', vector, '2026-01-01' FROM k;
DROP TABLE k
"""


def measure(folder: Path, queries: int) -> dict[str, Any]:
    """Seconds to open and to make ready, milliseconds of each query, and the memory that it took."""
    started = time.perf_counter()
    archive = FileArchive(folder)
    archive.stats()
    opened = time.perf_counter() - started
    retriever = Retriever(archive, load_embedder(), device_key="d_0")
    started = time.perf_counter()
    corpus = retriever.corpus()
    ready = time.perf_counter() - started
    started = time.perf_counter()
    retriever.search("softmax", count=1)
    worded = time.perf_counter() - started
    with archive.database.read() as con:
        old = [name for (name,) in con.execute("SELECT id FROM problems ORDER BY id LIMIT 1000").fetchall()]
    rng = Random(QUERIES_SEED)
    graphs = [grammar.graph(rng) for _ in range(queries)]
    asked = [made_up(graph, rng) for graph in graphs]
    words = [grammar.english(graph, rng) for graph in graphs]
    limits = [
        RetrievalLimits("cuda" if i % 2 else "cpu", exclude_problem_ids=(old[i % len(old)],), exclude_family=i % 4 == 3)
        for i in range(queries)
    ]
    held = Bottleneck("memory", "memory bandwidth")
    show = partial(retriever.exemplars, mode="hybrid", count=5)
    forms: dict[str, Callable[[int], object]] = {
        "exemplars": lambda i: show(asked[i], limits=limits[i]),
        "remedies": lambda i: show(asked[i], limits=limits[i], bottleneck=held),
        "search": lambda i: retriever.search(asked[i], limits=limits[i]),
        "words": lambda i: retriever.search(words[i], limits=limits[i]),
    }
    times = {name: timed(form, queries) for name, form in forms.items()}
    return {
        "kernels": len(corpus.catalogue.kernel_id),
        "problems": len(corpus.catalogue.functionals),
        "opened_s": opened,
        "ready_s": ready,
        "worded_s": worded,
        "embedded": embedded(),
        "ms": {name: [wall for wall, _ in pairs] for name, pairs in times.items()},
        "cpu_ms": {name: [cpu for _, cpu in pairs] for name, pairs in times.items()},
        "load": os.getloadavg()[0],
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def embedded() -> list[float]:
    """Problems a second: described, embedded, and both, by processor time; and both by the clock."""
    rng, embedder = Random(EMBEDDED_SEED), load_embedder()
    made = [made_up(grammar.graph(rng), rng) for _ in range(EMBEDDED)]
    started, cpu = time.perf_counter(), time.process_time()
    texts = [description(fp) for fp in made]
    described = time.process_time() - cpu
    embedder.embed(texts)
    both = time.process_time() - cpu
    return [EMBEDDED / s for s in (described, both - described, both, time.perf_counter() - started)]


def timed(form: Callable[[int], object], queries: int) -> list[tuple[float, float]]:
    """Milliseconds of each query: by the clock, and of the processors, all threads together."""
    times = []
    for number in range(queries):
        started, cpu = time.perf_counter(), time.process_time()
        form(number)
        times.append((1000 * (time.perf_counter() - started), 1000 * (time.process_time() - cpu)))
    return times


def cold(folder: Path, tries: int) -> float:
    """Seconds of `rag-kernels search` in a process of its own, the best of a few: the machine is not ours alone."""
    command = [sys.executable, "-c", "from rag_kernels.cli import main; main()", "search", "fused layernorm gelu"]
    times = []
    for _ in range(tries):
        started = time.perf_counter()
        subprocess.run([*command, "--archive", str(folder)], check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kernels", type=int, default=30_000)
    parser.add_argument("--problems", type=int, default=3_000)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)  # the fresh process
    settings = parser.parse_args()
    if settings.measure:
        print(json.dumps(measure(settings.folder, settings.queries)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = settings.folder or Path(temporary)
        if not (folder / DATABASE).exists():
            fill(folder, settings.kernels, settings.problems)
        report(folder, settings.queries)


def report(folder: Path, queries: int) -> None:
    command = [sys.executable, __file__, "--measure", "--folder", str(folder), "--queries", str(queries)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
    print(f"{found['kernels']:,} kernels of {found['problems']:,} problems, {size:,.0f} MiB on disk\n")
    print("| query | median | 95th percentile | processor time, median | 95th percentile |\n|---|---|---|---|---|")
    for name, title in ARMS.items():
        cells = [*np.percentile(found["ms"][name], (50, 95)), *np.percentile(found["cpu_ms"][name], (50, 95))]
        print(f"| {title} | {' | '.join(f'{cell:.0f} ms' for cell in cells)} |")
    print("\n| problems a second | described | embedded | both | both, by the clock |\n|---|---|---|---|---|")
    print(f"| one process, processor time | {' | '.join(f'{rate:,.0f}' for rate in found['embedded'])} |")
    tries = 5 if found["kernels"] < 100_000 else 1
    print(
        f"\nopened in {found['opened_s']:.2f} s, ready in {found['ready_s']:.2f} s, index of names and ideas in "
        f"{found['worded_s']:.2f} s, peak memory {found['peak_gib']:.1f} GiB; cold search {cold(folder, tries):.2f} s; "
        f"{found['load']:.1f} processes waiting for two cores meanwhile"
    )


if __name__ == "__main__":
    main()
