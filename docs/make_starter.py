"""Puts what the starter archive holds into the pages that say so: `make docs`, or `python docs/make_starter.py`.

Comes in: the bundle of the package, and the table of forms by operator family. Goes out: the numbers in the sentences
of `PAGES`, and nothing else of these pages.
"""

from __future__ import annotations

import re
import sys
import tempfile
from functools import cache
from pathlib import Path
from statistics import median
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
BUNDLE = ROOT / "rag_kernels" / "retrieval" / "starter.zip"
FORMS = ROOT / "tests" / "bench" / "family_forms.txt"
LINE = r"The archive is new: (\d+) kernels of the starter archive are in it now\."
HELD = (
    r"has (\d+) kernels of (\d+) problems for a CPU, confirmed on an EPYC, and\n"
    r"(\d+) in CUDA, confirmed on Hopper: (\d+) in fp32, (\d+) in bf16, (\d+) in fp16; "
    r"(\d+) are for (\d+) families of `family_forms\.py`\.\n(\d+) more are claims, (\d+) a language model's"
)
LONG = r"(\d+) lines at the median of the starter archive, (\d+) in CUDA, (\d+) in C\+\+"
PAGES = {"README.md": (LINE,), "docs/tour.md": (LINE,), "docs/offline.md": (LONG, HELD)}
TABLES = ("candidates", "claims", "evaluations", "functionals", "kernels", "problems")
COUNTS = """
WITH confirmed AS (
    SELECT c.id, c.backend, p.name, e.problem_id, f.dtypes
    FROM candidates c JOIN kernels k USING (id) JOIN functionals f ON f.id = k.functional_id
    JOIN evaluations e ON e.kernel_id = c.id AND e.stated_trust = 'confirmed' JOIN problems p ON p.id = e.problem_id
), own AS (
    SELECT *, CASE WHEN list_contains(dtypes, 'bfloat16') THEN 2 WHEN list_contains(dtypes, 'float16') THEN 3
    ELSE 1 END AS kind FROM confirmed WHERE backend = 'cuda'
), formed AS (
    SELECT own.id, forms.family FROM own JOIN forms ON forms.name = regexp_replace(own.name, '_(bf16|fp16)$', '')
)
SELECT
    (SELECT count(DISTINCT id) FROM confirmed WHERE backend = 'cpu'),
    (SELECT count(DISTINCT problem_id) FROM confirmed WHERE backend = 'cpu'),
    (SELECT count(DISTINCT id) FROM own), (SELECT count(DISTINCT id) FROM own WHERE kind = 1),
    (SELECT count(DISTINCT id) FROM own WHERE kind = 2), (SELECT count(DISTINCT id) FROM own WHERE kind = 3),
    (SELECT count(DISTINCT id) FROM formed), (SELECT count(DISTINCT family) FROM formed),
    (SELECT count(DISTINCT candidate_id) FROM claims), (SELECT count(*) FROM kernels WHERE writer = 'llm')
"""


@cache
def counts(bundle: Path = BUNDLE) -> dict[str, list[int]]:
    """Return the numbers of each sentence in its order."""
    import duckdb

    heads = [paragraph.split(": ", 2)[:2] for paragraph in FORMS.read_text().strip().split("\n\n")]
    with tempfile.TemporaryDirectory() as folder, ZipFile(bundle) as packed, duckdb.connect() as con:
        lines = lines_by_suffix(packed)
        con.execute("CREATE TABLE forms (family VARCHAR, name VARCHAR)")
        con.executemany("INSERT INTO forms VALUES (?, ?)", heads)
        for table in TABLES:
            con.execute(f"CREATE VIEW {table} AS FROM '{packed.extract(f'{table}.parquet', folder)}'")
        [held] = con.execute(COUNTS).fetchall()
        [(kernels,)] = con.execute("SELECT count(*) FROM kernels").fetchall()
    medians = [round(median(lines[suffix])) for suffix in ("", ".cu", ".cpp")]
    return {LINE: [kernels], LONG: medians, HELD: list(held)}


def lines_by_suffix(packed: ZipFile) -> dict[str, list[int]]:
    """Return how many lines each source of a bundle has, by its suffix, and those of all under ""."""
    found: dict[str, list[int]] = {"": []}
    for name in packed.namelist():
        if name.startswith("sources/"):
            count = packed.read(name).count(b"\n")
            found[""].append(count)
            found.setdefault(Path(name).suffix, []).append(count)
    return found


def page(name: str) -> str:
    """Return a page with the numbers of the bundle. Raises ValueError where it lacks its sentence."""
    text = (ROOT / name).read_text()
    for sentence in PAGES[name]:
        found = re.search(sentence, text)
        if found is None:
            raise ValueError(f"{name} lacks a sentence on the starter archive: see {Path(__file__).name}.")
        for place, number in reversed(list(enumerate(counts()[sentence], start=1))):
            text = f"{text[: found.start(place)]}{number}{text[found.end(place) :]}"
    return text


def main() -> int:
    for name in PAGES:
        (ROOT / name).write_text(page(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
